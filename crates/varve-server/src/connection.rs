//! One connection: what came and is not served yet, what is to be sent.

use std::io::{self, ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use serde::Serialize;
use varve_wire::Header;

use crate::calls::Service;
use crate::meters::Meter;
use crate::session::Session;
use crate::shares::Share;

/// The most bytes that the server holds for a connection, before it reads nothing more from it: answers that the client
/// has not taken, and requests that wait for a thread with the answers that they will have.
pub(crate) const HELD_BYTES_MAX: usize = 8 << 20;
/// The most bytes of a first message.
pub(crate) const HELLO_BYTES_MAX: usize = 16 << 10;

/// How long a client may take to say who it is, in milliseconds.
const HELLO_MS_MAX: u64 = 10_000;

#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    sent: usize,
}

/// A connection.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
    /// When it was accepted, in milliseconds.
    since_ms: u64,
    /// The client's session, and the file system that it uses, as soon as it has said who it is.
    session: OnceLock<(Weak<Session>, Weak<Service>)>,
    output: Mutex<Output>,
    /// Bytes of requests that wait for a thread, and of the answers that they will have.
    waiting_bytes: AtomicUsize,
    /// Its thread does not read from it until some of them are released.
    is_paused: AtomicBool,
    has_ended: AtomicBool,
    /// The number of its thread, and the key by which the thread knows it.
    pub(crate) reactor: usize,
    pub(crate) key: OnceLock<u64>,
    share: Mutex<Option<Share>>,
    /// Its share of inquiries, once it has made one.
    inquiry: OnceLock<Share>,
    /// Of its thread.
    pub(crate) meter: Arc<Meter>,
}

impl Connection {
    pub(crate) fn new(
        (stream, address): (TcpStream, SocketAddr),
        share: Share,
        (reactor, meter): (usize, &Arc<Meter>),
        since_ms: u64,
    ) -> Connection {
        Connection {
            stream,
            address,
            since_ms,
            session: OnceLock::new(),
            output: Mutex::default(),
            waiting_bytes: AtomicUsize::new(0),
            is_paused: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            reactor,
            key: OnceLock::new(),
            share: Mutex::new(Some(share)),
            inquiry: OnceLock::new(),
            meter: Arc::clone(meter),
        }
    }

    pub(crate) fn session(&self) -> Option<(Arc<Session>, Arc<Service>)> {
        let (session, service) = self.session.get()?;
        Some((session.upgrade()?, service.upgrade()?))
    }

    /// Returns since when the client owes a hello, in milliseconds; `None` if it has said who it is.
    pub(crate) fn silent_since_ms(&self) -> Option<u64> {
        self.session.get().is_none().then_some(self.since_ms)
    }

    /// Returns whether the client should have said long ago who it is.
    pub(crate) fn is_silent(&self, now_ms: u64) -> bool {
        self.silent_since_ms()
            .is_some_and(|since_ms| now_ms.saturating_sub(since_ms) > HELLO_MS_MAX)
    }

    /// Ends the connection, and lets another have its share at once. Returns false if that was done before.
    pub(crate) fn make_room(&self) -> bool {
        self.end();
        self.share.lock().take().is_some()
    }

    /// Returns whether the server holds so much for the client that its next request has to wait. Its thread is woken
    /// when there is room again: by the network if the client has to read, or by [`Connection::release`].
    pub(crate) fn must_wait(&self) -> io::Result<bool> {
        if self.held_bytes() <= HELD_BYTES_MAX {
            return Ok(false);
        }
        self.flush()?;
        self.is_paused.store(true, Ordering::SeqCst);
        self.meter.paused.add(1);
        // What is released before the mark is seen wakes nobody.
        Ok(self.held_bytes() > HELD_BYTES_MAX)
    }

    /// Returns whether the client takes no answers.
    pub(crate) fn is_full(&self) -> bool {
        self.unsent_bytes() > HELD_BYTES_MAX
    }

    fn held_bytes(&self) -> usize {
        self.unsent_bytes() + self.waiting_bytes.load(Ordering::SeqCst)
    }

    /// A request waits for a thread.
    pub(crate) fn hold(&self, bytes: usize) {
        self.waiting_bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// A request has its answer. Returns whether the thread of the connection has to be woken.
    pub(crate) fn release(&self, bytes: usize) -> bool {
        self.waiting_bytes.fetch_sub(bytes, Ordering::SeqCst);
        self.is_paused.swap(false, Ordering::SeqCst)
    }

    /// Returns false if the connection has a session already.
    pub(crate) fn belongs_to(&self, session: &Arc<Session>, service: &Arc<Service>) -> bool {
        self.session.set((Arc::downgrade(session), Arc::downgrade(service))).is_ok()
    }

    /// The client has made an inquiry. Returns false if it had made one before.
    pub(crate) fn inquires(&self, share: Share) -> bool {
        self.inquiry.set(share).is_ok()
    }

    pub(crate) fn has_inquired(&self) -> bool {
        self.inquiry.get().is_some()
    }

    /// Adds a message to what is to be sent.
    pub(crate) fn put<T: Serialize>(&self, header: Header, body: &T, data: &[u8]) {
        varve_wire::encode(&mut self.output.lock().bytes, header, body, data);
    }

    /// Adds an encoded message.
    pub(crate) fn put_again(&self, message: &[u8]) {
        self.output.lock().bytes.extend_from_slice(message);
    }

    /// Sends what the client takes. Returns whether all is sent.
    pub(crate) fn flush(&self) -> io::Result<bool> {
        let mut output = self.output.lock();
        while output.sent < output.bytes.len() {
            match (&self.stream).write(&output.bytes[output.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    output.sent += sent;
                    self.meter.bytes_out.add(sent as u64);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        output.sent = 0;
        output.bytes.clear();
        // Room for a large answer is not kept for the small ones after it.
        output.bytes.shrink_to(64 << 10);
        Ok(true)
    }

    /// Returns how many bytes the client has not taken.
    pub(crate) fn unsent_bytes(&self) -> usize {
        let output = self.output.lock();
        output.bytes.len() - output.sent
    }

    /// Returns whether nothing that is sent arrives any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Ends the connection. Its thread notices.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
