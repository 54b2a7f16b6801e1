//! Tells the service manager that started this process how it is: readiness, and the end (sd_notify(3)).
//!
//! The manager names a datagram socket in `NOTIFY_SOCKET`; a name that begins with `@` has no file. Without one nothing is said.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where the service manager listens; `None` if there is none.
pub(crate) struct ServiceManager(Option<SocketAddr>);

impl ServiceManager {
    /// The one that this process was started by.
    pub(crate) fn of_this_process() -> ServiceManager {
        let name = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty());
        let address = name.map(|name| address(&name)).transpose();
        ServiceManager(address.unwrap_or_else(|error| {
            log::warn!("the service manager will not hear that this server is ready: NOTIFY_SOCKET: {error}");
            None
        }))
    }

    /// The server answers; `status` is a line for people.
    pub(crate) fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={status}"));
    }

    /// The server ends.
    pub(crate) fn stopping(&self) {
        self.say("STOPPING=1\nSTATUS=Answering the requests that have come");
    }

    fn say(&self, what: &str) {
        let Some(address) = &self.0 else { return };
        let sent = UnixDatagram::unbound().and_then(|socket| {
            // A manager that does not read must not hold up the server.
            socket.set_nonblocking(true)?;
            socket.send_to_addr(what.as_bytes(), address)
        });
        if let Err(error) = sent {
            log::warn!("the service manager did not hear {what:?}: {error}");
        }
    }
}

fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managers_listen_on_files_and_on_names_without() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("notify");
        let abstract_name = format!("@varve-notify-{}", std::process::id());
        for name in [file.as_os_str(), OsStr::new(&abstract_name)] {
            let manager = UnixDatagram::bind_addr(&address(name).unwrap()).unwrap();
            ServiceManager(Some(address(name).unwrap())).ready("it runs");
            let mut heard = [0; 100];
            let length = manager.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], b"READY=1\nSTATUS=it runs");
        }
        // Nobody listens any more, or ever did.
        ServiceManager(Some(address(OsStr::new(&abstract_name)).unwrap())).stopping();
        ServiceManager(None).stopping();
    }
}
