//! Metrics of a server over HTTP, as Prometheus fetches them: `GET /metrics`, and nothing else.
//!
//! 1. One thread waits for all connections by poll(2). It reads the head of a request, answers it and ends the connection.
//! 2. The text is made at most once each [`TEXT_AGE_MAX`], however many ask.
//!
//! Invariants: there are at most [`CONNECTIONS_MAX`] connections, with at most [`HEAD_BYTES_MAX`] bytes of a request each, and each
//! lasts at most [`PATIENCE`]. The oldest one makes room for a new one. So a client that sends or reads slowly, or many of them, delay
//! nobody; nothing that they send reaches the rest of the server.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use varve::{Error, Result};

/// The most connections at once.
const CONNECTIONS_MAX: usize = 32;
/// So many are accepted before those that are there get their turn.
const ACCEPTED_AT_ONCE: usize = CONNECTIONS_MAX / 2;
/// The most bytes of the head of a request.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// How long a connection may take for its request and its answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How old a text may be.
const TEXT_AGE_MAX: Duration = Duration::from_millis(200);
/// How long to wait after a connection could not be accepted.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Serves metrics until it is dropped.
pub(crate) struct Metrics {
    address: SocketAddr,
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// A listener on `address`.
pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener> {
    let failed = |error: io::Error| {
        Error::failed(format!("cannot listen on {address}: {error}"))
            .hint("choose another address with --metrics; only root may use ports below 1024")
    };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

impl Metrics {
    /// Serves what `text` returns.
    pub(crate) fn start(
        listener: TcpListener,
        text: impl Fn() -> String + Send + 'static,
    ) -> Result<Metrics> {
        let failed = |error| Error::machine("serve metrics", error);
        let address = listener.local_addr().map_err(failed)?;
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let end = Arc::new(end.map_err(|error| failed(error.into()))?);
        let of_thread = Arc::clone(&end);
        let mut serving =
            Serving { listener, text: Box::new(text), made: None, clients: Vec::new() };
        let run = move || serving.run(&of_thread);
        let thread = thread::Builder::new().name("varve-metrics".to_owned()).spawn(run);
        Ok(Metrics { address, end, thread: Some(thread.map_err(failed)?) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.end, &1_u64.to_ne_bytes());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            log::error!("the thread that serves metrics has panicked");
        }
    }
}

struct Client {
    stream: TcpStream,
    since: Instant,
    head: Vec<u8>,
    answer: Vec<u8>,
    sent: usize,
}

struct Serving {
    listener: TcpListener,
    text: Box<dyn Fn() -> String + Send>,
    made: Option<(Instant, Arc<str>)>,
    /// In the order in which they came.
    clients: Vec<Client>,
}

impl Serving {
    fn run(&mut self, end: &OwnedFd) {
        loop {
            let mut waiting =
                vec![PollFd::new(end, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
            waiting.extend(self.clients.iter().map(|client| {
                let for_what =
                    if client.answer.is_empty() { PollFlags::IN } else { PollFlags::OUT };
                PollFd::new(&client.stream, for_what)
            }));
            let left = self.clients.first().map(|client| {
                let left = PATIENCE.saturating_sub(client.since.elapsed());
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
            });
            match poll(&mut waiting, left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return log::error!("metrics are not served any more: {error}"),
            }
            let ready: Vec<bool> = waiting.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[0] {
                return;
            }
            let mut ready_clients = ready[2..].iter();
            let mut clients = std::mem::take(&mut self.clients);
            clients.retain_mut(|client| {
                let is_ready = ready_clients.next().is_some_and(|ready| *ready);
                let goes_on = !is_ready || client.goes_on(|| self.text());
                goes_on && client.since.elapsed() < PATIENCE
            });
            self.clients = clients;
            if ready[1] {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED_AT_ONCE {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    log::debug!("a connection for metrics: {error}");
                    // Out of descriptors, for example.
                    return thread::sleep(AGAIN_AFTER);
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() == CONNECTIONS_MAX {
                self.clients.remove(0);
            }
            let (head, answer) = (Vec::new(), Vec::new());
            self.clients.push(Client { stream, since: Instant::now(), head, answer, sent: 0 });
        }
    }

    /// The metrics, as they are now or were a moment ago.
    fn text(&mut self) -> Arc<str> {
        match &self.made {
            Some((made, text)) if made.elapsed() < TEXT_AGE_MAX => Arc::clone(text),
            _ => {
                let text: Arc<str> = (self.text)().into();
                self.made = Some((Instant::now(), Arc::clone(&text)));
                text
            }
        }
    }
}

impl Client {
    /// Reads and writes what is possible now. Returns false when the connection is to end.
    fn goes_on(&mut self, text: impl FnOnce() -> Arc<str>) -> bool {
        if self.answer.is_empty() {
            match self.read() {
                Ok(true) => self.answer = answer(&self.head, text),
                Ok(false) => return true,
                Err(_) => return false,
            }
        }
        loop {
            match (&self.stream).write(&self.answer[self.sent..]) {
                Ok(0) => return false,
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
            if self.sent == self.answer.len() {
                return false;
            }
        }
    }

    /// Reads what has come. Returns whether the head is there, or longer than it may be.
    fn read(&mut self) -> io::Result<bool> {
        let mut part = [0; 1024];
        loop {
            match (&self.stream).read(&mut part) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.head.extend_from_slice(&part[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
            if is_whole(&self.head) || self.head.len() > HEAD_BYTES_MAX {
                return Ok(true);
            }
        }
    }
}

/// Whether the head of a request has come to its end.
fn is_whole(head: &[u8]) -> bool {
    head.windows(4).any(|end| end == b"\r\n\r\n") || head.windows(2).any(|end| end == b"\n\n")
}

/// The answer to a request.
fn answer(head: &[u8], text: impl FnOnce() -> Arc<str>) -> Vec<u8> {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = std::str::from_utf8(line).unwrap_or_default();
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let said = |what: &str| Arc::from(what);
    let (status, kind, body): (_, _, Arc<str>) = match words[..] {
        _ if !is_whole(head) => {
            ("431 Request Header Fields Too Large", PLAIN, said("The request is too long.\n"))
        }
        [method, target, version] if version.starts_with("HTTP/1.") => {
            let path = target.split('?').next().unwrap_or_default();
            match (method, path) {
                ("GET" | "HEAD", "/metrics") => {
                    ("200 OK", "text/plain; version=0.0.4; charset=utf-8", text())
                }
                ("GET" | "HEAD", _) => {
                    ("404 Not Found", PLAIN, said("The metrics are at /metrics.\n"))
                }
                _ => ("405 Method Not Allowed", PLAIN, said("Only GET is answered.\n")),
            }
        }
        _ => ("400 Bad Request", PLAIN, said("This is no request of HTTP/1.\n")),
    };
    let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    let has_body = words.first() != Some(&"HEAD");
    let body = if has_body { body.as_bytes() } else { &[] };
    [head.as_bytes(), body].concat()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn serve(text: impl Fn() -> String + Send + 'static) -> Metrics {
        Metrics::start(listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap(), text).unwrap()
    }

    fn fetch(metrics: &Metrics, request: &str) -> String {
        let mut stream = TcpStream::connect(metrics.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    const GET: &str = "GET /metrics HTTP/1.1\r\nHost: varve\r\n\r\n";

    #[test]
    fn requests_get_the_metrics_or_why_not() {
        let metrics = serve(|| "varve_up 1\n".to_owned());
        let whole = fetch(&metrics, GET);
        assert!(whole.starts_with("HTTP/1.1 200 OK\r\n"), "{whole}");
        assert!(whole.contains("\r\nContent-Length: 11\r\n"), "{whole}");
        assert!(whole.contains("text/plain; version=0.0.4"), "{whole}");
        assert!(whole.ends_with("\r\n\r\nvarve_up 1\n"), "{whole}");
        let head = fetch(&metrics, "HEAD /metrics HTTP/1.0\n\n");
        assert!(head.contains("Content-Length: 11") && head.ends_with("\r\n\r\n"), "{head}");
        for (request, status) in [
            ("GET /metrics?a=b HTTP/1.1\r\n\r\n", "200"),
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET /metrics\r\n\r\n", "400"),
            ("\u{1f600}\r\n\r\n", "400"),
            ("GET /metrics HTTP/2.0\r\n\r\n", "400"),
        ] {
            let said = fetch(&metrics, request);
            assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {said}");
        }
        // A head that has no end, which is not read to its end.
        let mut stream = TcpStream::connect(metrics.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nx: ").unwrap();
        stream.write_all(&vec![b'x'; HEAD_BYTES_MAX]).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 431");
    }

    /// Clients that send nothing, send slowly, and do not read.
    #[test]
    fn slow_and_many_clients_delay_nobody() {
        let large = "x".repeat(4 << 20);
        let metrics = serve(move || large.clone());
        let mut slow = Vec::new();
        for round in 0..8 * CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(metrics.address()).unwrap();
            let said = [&b""[..], b"GET /met", GET.as_bytes()][round % 3];
            // The server may have ended it already.
            let _ = stream.write_all(said);
            slow.push(stream);
            if round % 16 == 0 {
                let begin = Instant::now();
                let answer = fetch(&metrics, GET);
                assert!(answer.starts_with("HTTP/1.1 200 OK"), "{round}");
                assert!(answer.len() > 4 << 20, "{round}");
                assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
            }
        }
        // The first ones are gone.
        slow[0].set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(matches!(slow[0].read(&mut [0]), Ok(0) | Err(_)));
    }

    #[test]
    fn many_who_ask_at_once_get_one_text() {
        let (made, told) = std::sync::mpsc::channel();
        let metrics = serve(move || {
            made.send(()).unwrap();
            "varve_up 1\n".to_owned()
        });
        let begin = Instant::now();
        (0..50).for_each(|_| assert!(fetch(&metrics, GET).ends_with("varve_up 1\n")));
        let periods = begin.elapsed().as_millis() / TEXT_AGE_MAX.as_millis();
        drop(metrics);
        assert!(told.iter().count() <= 1 + periods as usize);
    }
}
