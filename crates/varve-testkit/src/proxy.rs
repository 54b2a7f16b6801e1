//! A network between a client and a server that is slow, loses connections, or reaches an overloaded server.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How requests begin.
const METHODS: [&[u8]; 5] = [b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE "];

/// An answer of an overloaded S3 server.
const OVERLOADED: &str =
    "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";

/// A TCP proxy on the loopback interface.
///
/// - What a client sends arrives later by a fixed delay. Bytes that are sent one after the other are all on their way at
///   the same time, so a delay does not lower the throughput. What a server sends arrives at once: a request takes longer
///   by the delay.
/// - [`Proxy::cut`] ends all connections and lets in no new one until [`Proxy::mend`].
/// - [`Proxy::overload`] answers requests with 503 in place of the server.
#[derive(Debug)]
pub struct Proxy {
    state: Arc<State>,
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct State {
    target: SocketAddr,
    delay_micros: AtomicU64,
    is_cut: AtomicBool,
    is_overloaded: AtomicBool,
    is_over: AtomicBool,
    requests: AtomicU64,
    /// Both ends of all connections, also of ones that have ended.
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Starts a proxy before `target`.
    ///
    /// # Panics
    /// If there is no free port.
    #[allow(clippy::disallowed_methods, reason = "a test waits for real sockets")]
    pub fn start(target: SocketAddr, delay: Duration) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = Arc::new(State {
            target,
            delay_micros: AtomicU64::new(delay.as_micros() as u64),
            is_cut: AtomicBool::new(false),
            is_overloaded: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            open: Mutex::new(Vec::new()),
        });
        let shared = Arc::clone(&state);
        let accepting = std::thread::spawn(move || {
            for client in listener.incoming() {
                if shared.is_over.load(Ordering::SeqCst) {
                    return;
                }
                // A connection that cannot be made is closed, as one to a dead server is.
                let _ = client.and_then(|client| connect(&shared, client));
            }
        });
        Proxy { state, address, accepting: Some(accepting) }
    }

    /// The address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the server behind the proxy.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes the delay of what is sent from now on.
    pub fn set_delay(&self, delay: Duration) {
        self.state.delay_micros.store(delay.as_micros() as u64, Ordering::SeqCst);
    }

    /// The number of requests that have arrived: of the pieces of data that begin as a request of HTTP does.
    pub fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::SeqCst)
    }

    /// Ends all connections. New ones end at once until [`Proxy::mend`].
    pub fn cut(&self) {
        self.state.is_cut.store(true, Ordering::SeqCst);
        for stream in self.state.open.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Lets connections in again.
    pub fn mend(&self) {
        self.state.is_cut.store(false, Ordering::SeqCst);
    }

    /// Begins or ends to answer requests with 503 in place of the server.
    pub fn overload(&self, is_overloaded: bool) {
        self.state.is_overloaded.store(is_overloaded, Ordering::SeqCst);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

/// Joins a client to the server by threads that end with the connection.
#[allow(clippy::disallowed_methods, reason = "a test waits for real sockets")]
fn connect(state: &Arc<State>, client: TcpStream) -> io::Result<()> {
    if state.is_cut.load(Ordering::SeqCst) {
        return Ok(());
    }
    let server = TcpStream::connect(state.target)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    {
        let mut open = state.open.lock();
        open.extend([client.try_clone()?, server.try_clone()?]);
        // A cut between the look above and here has not seen them.
        if state.is_cut.load(Ordering::SeqCst) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }
    let (sender, pieces) = mpsc::channel::<(Instant, Vec<u8>)>();
    let (from_client, to_server) = (client.try_clone()?, server.try_clone()?);
    let shared = Arc::clone(state);
    std::thread::spawn(move || receive(&shared, from_client, &sender));
    std::thread::spawn(move || deliver(to_server, &pieces));
    std::thread::spawn(move || {
        let (mut server, mut client) = (server, client);
        let _ = io::copy(&mut server, &mut client);
        let _ = client.shutdown(Shutdown::Both);
    });
    Ok(())
}

/// Receives what a client sends, and says when it is to arrive.
#[allow(clippy::disallowed_methods, reason = "a test waits for real sockets")]
fn receive(state: &State, mut client: TcpStream, sender: &mpsc::Sender<(Instant, Vec<u8>)>) {
    let mut piece = vec![0; 256 << 10];
    while let Ok(count @ 1..) = client.read(&mut piece) {
        let piece = &piece[..count];
        if METHODS.iter().any(|method| piece.starts_with(method)) {
            state.requests.fetch_add(1, Ordering::SeqCst);
            if state.is_overloaded.load(Ordering::SeqCst) {
                let _ = refuse(client);
                return;
            }
        }
        let delay = Duration::from_micros(state.delay_micros.load(Ordering::SeqCst));
        if sender.send((Instant::now() + delay, piece.to_vec())).is_err() {
            return;
        }
    }
}

/// Answers that the server is overloaded.
fn refuse(mut client: TcpStream) -> io::Result<()> {
    write!(
        client,
        "HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{OVERLOADED}",
        OVERLOADED.len()
    )?;
    client.shutdown(Shutdown::Write)?;
    // With unread data a close would take the answer back.
    io::copy(&mut client, &mut io::sink()).map(drop)
}

/// Sends pieces to the server when they are to arrive.
#[allow(clippy::disallowed_methods, reason = "a test waits for real sockets")]
fn deliver(mut server: TcpStream, pieces: &mpsc::Receiver<(Instant, Vec<u8>)>) {
    for (due, piece) in pieces {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if server.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers each piece with its length.
    #[allow(clippy::disallowed_methods, reason = "a test waits for real sockets")]
    fn server() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let mut client = client.unwrap();
                std::thread::spawn(move || {
                    let mut piece = [0; 1000];
                    while let Ok(count @ 1..) = client.read(&mut piece) {
                        client.write_all(&[count as u8]).unwrap();
                    }
                });
            }
        });
        address
    }

    fn ask(stream: &mut TcpStream, text: &[u8]) -> io::Result<u8> {
        stream.write_all(text)?;
        let mut answer = [0];
        stream.read_exact(&mut answer).map(|()| answer[0])
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "what is tested is a delay")]
    fn requests_are_delayed_cut_and_refused() {
        let proxy = Proxy::start(server(), Duration::from_millis(30));
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        let begin = Instant::now();
        assert_eq!(ask(&mut client, b"PUT /").unwrap(), 5);
        assert!(begin.elapsed() >= Duration::from_millis(30));
        proxy.set_delay(Duration::ZERO);
        proxy.cut();
        assert!(ask(&mut client, b"GET /").is_err());
        assert!(
            TcpStream::connect(proxy.address())
                .and_then(|mut client| ask(&mut client, b"x"))
                .is_err()
        );
        proxy.mend();
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        assert_eq!(ask(&mut client, b"more").unwrap(), 4);
        proxy.overload(true);
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert_eq!(proxy.requests(), 2);
    }
}
