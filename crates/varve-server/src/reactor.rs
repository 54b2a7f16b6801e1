//! Threads that read requests from connections.
//!
//! Each thread waits for its connections by epoll(7). What comes is read, decoded and served in place, and the answers
//! of one read go out by one write. Only calls that have to wait go elsewhere ([`crate::workers`]).

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use varve_wire::FrameError;
use varve_wire::frame::{self, Frame};

use crate::connection::{Connection, HELLO_BYTES_MAX};
use crate::server::Shared;

/// The most bytes that are read from one connection before others get their turn.
const READ_BYTES: usize = 256 << 10;
/// The number by which a thread is woken.
const WAKE: u64 = 0;

/// One thread and its connections.
pub(crate) struct Reactor {
    epoll: OwnedFd,
    wake: OwnedFd,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
    next: AtomicU64,
    /// Connections that can be served on.
    resumed: Mutex<Vec<u64>>,
}

/// What came from a connection and is not decoded yet.
#[derive(Default)]
struct Input {
    bytes: Vec<u8>,
    /// How many bytes at the begin are served.
    served: usize,
}

impl Reactor {
    pub(crate) fn new() -> io::Result<Reactor> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let next = AtomicU64::new(WAKE + 1);
        let (connections, resumed) = (Mutex::default(), Mutex::default());
        Ok(Reactor { epoll, wake, connections, next, resumed })
    }

    /// Adds a connection.
    pub(crate) fn add(&self, connection: &Arc<Connection>) -> io::Result<()> {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let _ = connection.key.set(key);
        self.connections.lock().insert(key, Arc::clone(connection));
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let added = epoll::add(&self.epoll, &connection.stream, EventData::new_u64(key), flags);
        if added.is_err() {
            self.connections.lock().remove(&key);
        }
        Ok(added?)
    }

    pub(crate) fn wake(&self) {
        // A full counter wakes too.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Has the thread serve a connection on.
    pub(crate) fn resume(&self, connection: &Connection) {
        if let Some(key) = connection.key.get() {
            self.resumed.lock().push(*key);
            self.wake();
        }
    }

    /// Returns the connections to serve on, if the thread was woken for some.
    fn take_resumed(&self) -> Vec<u64> {
        // Resets the counter; it is zero if another event came first.
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
        std::mem::take(&mut *self.resumed.lock())
    }

    /// Returns the connection that has waited longest for a hello, of those that `is_meant`.
    pub(crate) fn oldest_silent(
        &self,
        is_meant: impl Fn(&Connection) -> bool,
    ) -> Option<(u64, Arc<Connection>)> {
        let connections = self.connections.lock();
        let silent = connections.values().filter(|connection| is_meant(connection));
        silent
            .filter_map(|connection| Some((connection.silent_since_ms()?, connection)))
            .min_by_key(|(since_ms, _)| *since_ms)
            .map(|(since_ms, connection)| (since_ms, Arc::clone(connection)))
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.lock().len()
    }

    /// Ends connections whose clients do not say who they are.
    pub(crate) fn end_silent(&self, now_ms: u64) {
        let connections = self.connections.lock();
        let silent = connections.values().filter(|connection| connection.is_silent(now_ms));
        silent.for_each(|connection| connection.end());
    }

    /// Serves connections until the server ends.
    pub(crate) fn run(&self, shared: &Arc<Shared>) {
        let mut inputs: HashMap<u64, Input> = HashMap::new();
        let mut events = Vec::with_capacity(256);
        // Room for what comes. An idle connection has none of its own.
        let mut room = Vec::new();
        // Connections with more to read or serve than one turn has taken.
        let mut again: Vec<u64> = Vec::new();
        while !shared.is_ending() {
            events.clear();
            let moment = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let timeout = (!again.is_empty()).then_some(&moment);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    log::error!("a thread cannot wait for connections and ends: {error}");
                    return;
                }
            }
            let mut ready: Vec<u64> = std::mem::take(&mut again);
            ready.extend(events.iter().map(|event| event.data.u64()));
            if ready.contains(&WAKE) {
                ready.extend(self.take_resumed());
            }
            ready.sort_unstable();
            ready.dedup();
            for key in ready {
                if key == WAKE {
                    continue;
                }
                let Some(connection) = self.connections.lock().get(&key).cloned() else { continue };
                let input = inputs.entry(key).or_default();
                if input.bytes.capacity() == 0 {
                    input.bytes = std::mem::take(&mut room);
                }
                let turned = turn(shared, &connection, input);
                if input.bytes.is_empty() {
                    room = std::mem::take(&mut input.bytes);
                }
                match turned {
                    Ok(true) => again.push(key),
                    Ok(false) => {}
                    Err(error) => {
                        inputs.remove(&key);
                        self.connections.lock().remove(&key);
                        shared.disconnected(&connection, &error);
                    }
                }
            }
        }
        for connection in self.connections.lock().values() {
            let _ = connection.flush();
            connection.end();
        }
    }
}

/// Why a connection ends.
pub(crate) enum Ended {
    /// The client has closed it, or the network has failed.
    Io(io::Error),
    /// The client does not speak the protocol.
    Frame(FrameError),
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Ended {
        Ended::Io(error)
    }
}

impl From<FrameError> for Ended {
    fn from(error: FrameError) -> Ended {
        Ended::Frame(error)
    }
}

/// Sends, reads and serves what a connection has. Returns whether there is more to do at once.
fn turn(
    shared: &Arc<Shared>,
    connection: &Arc<Connection>,
    input: &mut Input,
) -> Result<bool, Ended> {
    let mut taken = 0;
    loop {
        connection.flush()?;
        while let Some(Frame { header, body, data, bytes }) =
            frame::first(&input.bytes[input.served..])
                .inspect_err(|error| shared.not_understood(connection, error))?
        {
            if connection.must_wait()? {
                return Ok(false);
            }
            shared.serve(connection, header, body, data)?;
            input.served += bytes;
        }
        input.tidy();
        let expected = frame::expected_bytes(&input.bytes)?.unwrap_or(0);
        if expected > HELLO_BYTES_MAX && connection.silent_since_ms().is_some() {
            return Err(FrameError::Unexpected("a hello is shorter").into());
        }
        if taken >= READ_BYTES {
            connection.flush()?;
            return Ok(true);
        }
        match input.read(&connection.stream)? {
            Some(read) => {
                taken += read;
                connection.meter.bytes_in.add(read as u64);
            }
            None => {
                connection.flush()?;
                return Ok(false);
            }
        }
    }
}

impl Input {
    /// Reads what is there; `None` if nothing is.
    fn read(&mut self, stream: &std::net::TcpStream) -> io::Result<Option<usize>> {
        let expected = frame::expected_bytes(&self.bytes[self.served..]);
        let missing =
            expected.ok().flatten().unwrap_or(0).saturating_sub(self.bytes.len() - self.served);
        let begin = self.bytes.len();
        self.bytes.resize(begin + missing.clamp(16 << 10, READ_BYTES), 0);
        let read = loop {
            match (&mut &*stream).read(&mut self.bytes[begin..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.bytes.truncate(begin + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Drops what is served.
    fn tidy(&mut self) {
        if self.served == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(32 << 10);
        } else {
            self.bytes.drain(..self.served);
        }
        self.served = 0;
    }
}
