//! What a client has the operating system look after on its connections.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

/// How long a server's machine may be silent before its connections are made anew.
const SILENCE_MAX: Duration = Duration::from_secs(8);

/// Has the operating system end a connection whose other end does not answer any more.
pub(crate) fn notice_silence(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE_MAX / 2)?;
    sockopt::set_tcp_keepintvl(stream, SILENCE_MAX / 8)?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    let silence_ms = u32::try_from(SILENCE_MAX.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(stream, silence_ms)?)
}
