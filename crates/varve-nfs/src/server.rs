//! Accepts connections, and runs the threads that answer calls.
//!
//! ```text
//! accept --> a thread for each connection, which reads calls --> a queue --> workers, which answer on the connection
//! ```
//!
//! 1. A thread accepts connections and starts a reader for each.
//! 2. A reader decodes calls and puts them into the queue.
//! 3. Workers take calls from the queue, serve them and write the replies.
//! 4. A sweeper closes files that no client uses any more.
//!
//! Invariants: a client can make the server hold only so much. Limits hold for connections ([`CONNECTIONS_MAX`],
//! [`CONNECTIONS_OF_CLIENT_MAX`]), the bytes of one call ([`CALL_BYTES_MAX`]), the unanswered calls of one connection
//! ([`CALLS_OF_CONNECTION_MAX`]) and the bytes of all waiting calls ([`WAITING_BYTES_MAX`]). A call that cannot be
//! decoded ends its connection and no other. So does a client that does not read its answers.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_types::InodeId;
use varve_vfs::{FileType, FsError, Vfs};

use crate::export::Export;
use crate::looked_up::LookedUp;
use crate::mount;
use crate::opened::Opened;
use crate::procedures::{self, DATA_BYTES_MAX, Outcome};
use crate::replies::{CallId, Replies, Seen};
use crate::rpc::{Accepted, Call, accepted, denied};
use crate::service::Service;
use crate::xdr::{Reader, Writer};

/// The most connections at once.
const CONNECTIONS_MAX: usize = 256;
/// The most connections at once from one address.
const CONNECTIONS_OF_CLIENT_MAX: usize = 64;
/// The most unanswered calls of one connection.
const CALLS_OF_CONNECTION_MAX: usize = 16;
/// The most bytes of all waiting calls. Beyond this no reader reads on.
const WAITING_BYTES_MAX: usize = 64 << 20;
/// The most bytes of a call: the data of a write and what precedes it.
const CALL_BYTES_MAX: usize = DATA_BYTES_MAX as usize + (64 << 10);
/// The number of workers: more than there are CPUs, because many wait for storage.
const WORKERS: usize = 32;
/// How long a client may leave an answer unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an idle connection stays open. A client opens another one when it needs it.
const IDLE_MAX: Duration = Duration::from_secs(600);
/// How often the sweeper looks for unused files.
const SWEEP: Duration = Duration::from_millis(500);

/// The last fragment of a message has this bit in its length.
const LAST_FRAGMENT: u32 = 1 << 31;

/// What the server serves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directories that clients may mount.
    pub exports: Vec<Export>,
    /// A number that tells this file system from others; the same after every start.
    pub file_system: u64,
    /// A number that no earlier server had.
    pub start: u64,
}

/// Why the server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A directory cannot be exported.
    #[error("{path} cannot be exported: {cause}")]
    Export {
        /// Its path.
        path: String,
        /// The cause.
        cause: FsError,
    },
    /// The operating system refused it.
    #[error("{0}")]
    Io(#[from] io::Error),
}

struct Connection {
    address: IpAddr,
    stream: Mutex<TcpStream>,
    calls: Mutex<usize>,
    answered: Condvar,
}

struct Job {
    connection: Arc<Connection>,
    message: Vec<u8>,
}

/// The queue of calls.
#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    bytes: usize,
    has_ended: bool,
}

struct Shared {
    service: Service,
    replies: Replies,
    queue: Mutex<Queue>,
    /// Signals a new call or the end. Only workers wait for it, because one call wakes one thread.
    came: Condvar,
    /// The server ends.
    ended: Condvar,
    /// Signals that a call has left the queue.
    went: Condvar,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    is_ending: AtomicBool,
}

/// A server that answers until it is stopped.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Serves `vfs` on `listener`: NFS and MOUNT, both on its port. Registers nothing with a port mapper.
    pub fn start(
        vfs: Arc<dyn Vfs>,
        listener: TcpListener,
        options: &Options,
    ) -> Result<Server, StartError> {
        let mut exports = Vec::new();
        for export in &options.exports {
            let root = mount::walk(&*vfs, InodeId::ROOT, &export.path).and_then(|root| {
                let is_dir = vfs.getattr(root)?.kind == FileType::Directory;
                if is_dir { Ok(root) } else { Err(FsError::NotDirectory) }
            });
            let wrong = |cause| StartError::Export { path: export.shown_path().to_owned(), cause };
            exports.push((export.clone(), root.map_err(wrong)?));
        }
        let address = listener.local_addr()?;
        let service = Service {
            vfs,
            file_system: options.file_system,
            verifier: options.start.to_be_bytes(),
            exports,
            looked_up: LookedUp::new(),
            opened: Opened::default(),
        };
        let shared = Arc::new(Shared {
            service,
            replies: Replies::default(),
            queue: Mutex::default(),
            came: Condvar::new(),
            ended: Condvar::new(),
            went: Condvar::new(),
            connections: Mutex::default(),
            is_ending: AtomicBool::new(false),
        });
        let mut server = Server { shared, address, threads: Vec::new() };
        let begun = server.begin(listener);
        if let Err(error) = begun {
            server.stop();
            return Err(error.into());
        }
        Ok(server)
    }

    fn begin(&mut self, listener: TcpListener) -> io::Result<()> {
        let begin = |name: &str, work: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(format!("nfs-{name}")).spawn(work)
        };
        for number in 0..WORKERS {
            let shared = Arc::clone(&self.shared);
            self.threads.push(begin(&format!("work-{number}"), Box::new(move || shared.work()))?);
        }
        let shared = Arc::clone(&self.shared);
        self.threads.push(begin("sweep", Box::new(move || shared.sweep()))?);
        let shared = Arc::clone(&self.shared);
        self.threads.push(begin("accept", Box::new(move || shared.accept(&listener)))?);
        Ok(())
    }

    /// Returns the address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers the calls that have arrived, and ends the server. Then the file system can be closed.
    pub fn stop(self) {
        self.shared.is_ending.store(true, Ordering::Release);
        self.shared.went.notify_all();
        // Wakes the thread that accepts connections.
        drop(TcpStream::connect_timeout(&self.wake_address(), Duration::from_secs(1)));
        let connections: Vec<_> = self.shared.connections.lock().values().cloned().collect();
        for connection in connections {
            let _ = connection.stream.lock().shutdown(Shutdown::Read);
            connection.answered.notify_all();
        }
        self.shared.queue.lock().has_ended = true;
        self.shared.came.notify_all();
        self.shared.ended.notify_all();
        for thread in self.threads {
            if thread.join().is_err() {
                log::error!("a thread of the NFS server has panicked");
            }
        }
        for connection in self.shared.connections.lock().values() {
            let _ = connection.stream.lock().shutdown(Shutdown::Both);
        }
        self.shared.service.opened.close_idle(true);
    }

    /// Returns an address by which this machine reaches the listener.
    fn wake_address(&self) -> SocketAddr {
        let ip = match self.address.ip() {
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        SocketAddr::new(ip, self.address.port())
    }
}

impl Shared {
    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Accepts connections until the server ends.
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for number in 0.. {
            let accepted = listener.accept();
            if self.is_ending() {
                return;
            }
            let admitted =
                accepted.and_then(|(stream, address)| self.admit(number, stream, address));
            if let Err(error) = admitted {
                log::warn!("cannot accept a connection: {error}");
                // Out of descriptors, for example.
                thread::sleep(Duration::from_millis(10));
            }
        }
    }

    fn admit(self: &Arc<Self>, number: u64, stream: TcpStream, from: SocketAddr) -> io::Result<()> {
        let address = from.ip().to_canonical();
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        stream.set_read_timeout(Some(IDLE_MAX))?;
        let input = stream.try_clone()?;
        let connection = Arc::new(Connection {
            address,
            stream: Mutex::new(stream),
            calls: Mutex::new(0),
            answered: Condvar::new(),
        });
        let mut connections = self.connections.lock();
        let of_client = connections.values().filter(|other| other.address == address).count();
        if connections.len() >= CONNECTIONS_MAX || of_client >= CONNECTIONS_OF_CLIENT_MAX {
            log::warn!(
                "{address} or all clients together have too many connections; one more is refused"
            );
            return Ok(());
        }
        connections.insert(number, Arc::clone(&connection));
        drop(connections);
        let shared = Arc::clone(self);
        let begun = thread::Builder::new().name("nfs-read".to_owned()).spawn(move || {
            if let Err(error) = shared.read(&connection, input) {
                log::warn!("{address}: {error}; the connection ends");
            }
            // The calls that have arrived are answered first.
            let mut calls = connection.calls.lock();
            while *calls > 0 && !shared.is_ending() {
                connection.answered.wait_for(&mut calls, Duration::from_secs(1));
            }
            drop(calls);
            if !shared.is_ending() {
                let _ = connection.stream.lock().shutdown(Shutdown::Both);
            }
            shared.connections.lock().remove(&number);
        });
        if begun.is_err() {
            self.connections.lock().remove(&number);
        }
        begun.map(drop)
    }

    /// Reads calls until the client ends the connection.
    fn read(&self, connection: &Arc<Connection>, mut input: TcpStream) -> io::Result<()> {
        while let Some(message) = read_message(&mut input)? {
            let mut calls = connection.calls.lock();
            while *calls >= CALLS_OF_CONNECTION_MAX && !self.is_ending() {
                connection.answered.wait(&mut calls);
            }
            *calls += 1;
            drop(calls);
            let mut queue = self.queue.lock();
            while queue.bytes > WAITING_BYTES_MAX && !self.is_ending() {
                self.went.wait(&mut queue);
            }
            if self.is_ending() {
                return Ok(());
            }
            queue.bytes += message.len();
            queue.jobs.push_back(Job { connection: Arc::clone(connection), message });
            drop(queue);
            self.came.notify_one();
        }
        Ok(())
    }

    /// Serves calls until the server ends.
    fn work(&self) {
        loop {
            let mut queue = self.queue.lock();
            let job = loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.has_ended {
                    return;
                }
                self.came.wait(&mut queue);
            };
            drop(queue);
            let connection = &job.connection;
            let reply = self.answer(connection.address, &job.message);
            let sent = match reply {
                Answer::Reply(reply) => send(&connection.stream, &reply),
                Answer::None => Ok(()),
                Answer::End => Err(ErrorKind::InvalidData.into()),
            };
            if sent.is_err() {
                let _ = connection.stream.lock().shutdown(Shutdown::Both);
            }
            *connection.calls.lock() -= 1;
            connection.answered.notify_all();
            self.queue.lock().bytes -= job.message.len();
            self.went.notify_all();
        }
    }

    fn answer(&self, address: IpAddr, message: &[u8]) -> Answer {
        let mut reader = Reader::new(message);
        let call = match Call::read(&mut reader) {
            Ok(call) => call,
            Err(no_call) => {
                return denied(no_call)
                    .map_or(Answer::End, |writer| Answer::Reply(writer.into_bytes().into()));
            }
        };
        let transaction = call.transaction;
        let refuse = |why| Answer::Reply(accepted(transaction, why).into_bytes().into());
        match (call.program, call.version) {
            (procedures::PROGRAM, procedures::VERSION) => {}
            (mount::PROGRAM, mount::VERSION) => {
                let called = mount::call(&self.service, call.procedure, address, &mut reader);
                return called.map_or_else(refuse, |result| success(transaction, &result));
            }
            (procedures::PROGRAM | mount::PROGRAM, _) => return refuse(Accepted::OtherVersion(3)),
            _ => return refuse(Accepted::NoProgram),
        }
        let once =
            procedures::is_once(call.procedure).then(|| CallId::new(address, transaction, message));
        match once.map(|id| self.replies.begin(id)) {
            Some(Seen::Answered(reply)) => return Answer::Reply(reply),
            Some(Seen::UnderWay) => return Answer::None,
            Some(Seen::New) | None => {}
        }
        let caller = (address, &call.credentials);
        let outcome = procedures::call(&self.service, call.procedure, caller, &mut reader);
        let (answer, is_final) = match outcome {
            Outcome::NoProcedure => (refuse(Accepted::NoProcedure), true),
            Outcome::Garbage => (refuse(Accepted::Garbage), true),
            Outcome::Result { writer, is_later } => (success(transaction, &writer), !is_later),
        };
        if let (Some(id), Answer::Reply(reply)) = (once, &answer) {
            match is_final {
                true => self.replies.end(id, reply),
                false => self.replies.forget(id),
            }
        }
        answer
    }

    /// Closes unused files until the server ends.
    fn sweep(&self) {
        let mut queue = self.queue.lock();
        while !queue.has_ended {
            self.ended.wait_for(&mut queue, SWEEP);
            drop(queue);
            self.service.opened.close_idle(false);
            queue = self.queue.lock();
        }
    }
}

/// The outcome of a call.
enum Answer {
    Reply(Arc<[u8]>),
    /// Another thread answers.
    None,
    /// The connection must end.
    End,
}

fn success(transaction: u32, result: &Writer) -> Answer {
    let mut writer = accepted(transaction, Accepted::Success);
    writer.append(result);
    Answer::Reply(writer.into_bytes().into())
}

fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::WouldBlock
            | ErrorKind::TimedOut
            | ErrorKind::ConnectionReset
    )
}

/// Reads the next message; `None` at the end of the connection.
fn read_message(input: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut message = Vec::new();
    loop {
        let mut head = [0; 4];
        match input.read_exact(&mut head) {
            // The connection has ended, or was idle for too long.
            Err(error) if message.is_empty() && is_end(&error) => return Ok(None),
            read => read?,
        }
        let head = u32::from_be_bytes(head);
        let bytes = (head & !LAST_FRAGMENT) as usize;
        let is_last = head & LAST_FRAGMENT != 0;
        if message.len() + bytes > CALL_BYTES_MAX || (bytes == 0 && !is_last) {
            let what = format!("a call of more than {CALL_BYTES_MAX} bytes, or an empty fragment");
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        let before = message.len();
        Read::by_ref(input).take(bytes as u64).read_to_end(&mut message)?;
        if message.len() - before < bytes {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if is_last {
            return Ok(Some(message));
        }
    }
}

fn send(stream: &Mutex<TcpStream>, reply: &[u8]) -> io::Result<()> {
    let head = reply.len() as u32 | LAST_FRAGMENT;
    let mut stream = stream.lock();
    // By one write, so that a short reply is one packet.
    let mut message = Vec::with_capacity(reply.len() + 4);
    message.extend_from_slice(&head.to_be_bytes());
    message.extend_from_slice(reply);
    stream.write_all(&message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_in_fragments_and_end_where_they_say() {
        let fragment = |last: u32, bytes: &[u8]| {
            [&(bytes.len() as u32 | last << 31).to_be_bytes()[..], bytes].concat()
        };
        let two = [fragment(0, b"hel"), fragment(1, b"lo"), fragment(1, b"")].concat();
        let mut input = &two[..];
        assert_eq!(read_message(&mut input).expect("read"), Some(b"hello".to_vec()));
        assert_eq!(read_message(&mut input).expect("read"), Some(Vec::new()));
        assert_eq!(read_message(&mut input).expect("read"), None);
        let huge = [0x7f, 0xff, 0xff, 0xff];
        assert_eq!(read_message(&mut &huge[..]).expect_err("huge").kind(), ErrorKind::InvalidData);
        assert!(read_message(&mut &fragment(0, b"")[..]).is_err(), "for ever");
        assert!(read_message(&mut &two[..5]).is_err(), "cut");
    }
}
