//! Begins a connection to a server.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use varve_wire::FrameError;

use crate::client::ConnectError;
use crate::deadline::Deadline;
use crate::silence::notice_silence;

/// How long one attempt to connect may take.
pub(crate) const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long a read waits before its thread looks whether its call has waited for too long.
pub(crate) const GLANCE: Duration = Duration::from_millis(100);

/// Connects to a server, whose silence is noticed.
pub(crate) fn dial(address: &str, deadline: Deadline) -> Result<TcpStream, ConnectError> {
    // A timeout of zero is none.
    let left = || deadline.left(CONNECT_MAX).max(Duration::from_millis(1));
    let failed = |error: io::Error| ConnectError::Network(address.to_owned(), error);
    let mut tried = Err(io::Error::other("the name stands for no address"));
    for address in address.to_socket_addrs().map_err(failed)? {
        tried = TcpStream::connect_timeout(&address, left());
        if tried.is_ok() {
            break;
        }
    }
    let stream = tried.map_err(failed)?;
    notice_silence(&stream).map_err(failed)?;
    stream.set_read_timeout(Some(GLANCE)).map_err(failed)?;
    Ok(stream)
}

/// The error for a server whose first message cannot be read.
pub(crate) fn unheard(address: &str, error: io::Error) -> ConnectError {
    let wrong = error.get_ref().and_then(|cause| cause.downcast_ref::<FrameError>()).cloned();
    match wrong {
        Some(wrong) => ConnectError::Protocol(address.to_owned(), wrong),
        None => ConnectError::Network(address.to_owned(), error),
    }
}
