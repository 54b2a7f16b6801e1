//! One connection: what came and is not served yet, what is to be sent.

use std::io::{self, ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use serde::Serialize;
use varve_wire::Header;

use crate::calls::Service;
use crate::session::Session;

/// A client that leaves more than this unread is not served until it reads on.
pub(crate) const UNREAD_BYTES_MAX: usize = 8 << 20;

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
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, address: SocketAddr, since_ms: u64) -> Connection {
        Connection { stream, address, since_ms, session: OnceLock::new(), output: Mutex::default() }
    }

    pub(crate) fn session(&self) -> Option<(Arc<Session>, Arc<Service>)> {
        let (session, service) = self.session.get()?;
        Some((session.upgrade()?, service.upgrade()?))
    }

    /// Returns whether the client should have said long ago who it is.
    pub(crate) fn is_silent(&self, now_ms: u64) -> bool {
        self.session.get().is_none() && now_ms.saturating_sub(self.since_ms) > HELLO_MS_MAX
    }

    /// Returns false if the connection has a session already.
    pub(crate) fn belongs_to(&self, session: &Arc<Session>, service: &Arc<Service>) -> bool {
        self.session.set((Arc::downgrade(session), Arc::downgrade(service))).is_ok()
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
                Ok(sent) => output.sent += sent,
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

    /// Ends the connection. Its thread notices.
    pub(crate) fn end(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
