//! The daemon's socket for dictionaries, `kv` in the store.
//!
//! 1. One thread takes clients, another serves each, as many at once as [`CLIENTS_MAX`].
//! 2. Only root and the daemon's own user are heard.
//! 3. A client sends requests one after the other and gets each answer before the next. One that says something that
//!    is none is told so, and hung up on; one that says nothing for [`IDLE_MAX`] is hung up on too, so that no place
//!    is held for ever.
//!
//! When the session pauses for another program, requests that wait are answered with a failure or by a hang-up; what
//! was acknowledged is in the store.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use super::protocol::{Failure, Request, Response};
use super::{answer, receive, send};
use crate::mounting::ViewDesk;
use crate::socket::{Places, SocketName};
use crate::{Error, Result, socket};

/// Name of the socket within a store.
const SOCKET_NAME: &str = "kv";
/// Clients that are served at once.
const CLIENTS_MAX: usize = 64;
/// How long a client may take to hear an answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may say nothing: longer than a person reads one page of a scan.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// Who knows of the file system that is served now; `None` while there is none.
type Desk = Mutex<Option<Arc<ViewDesk>>>;

/// See the module's comment. Stops to listen for new requests when dropped.
pub(crate) struct Server {
    _name: SocketName,
    desk: Arc<Desk>,
}

impl Server {
    /// Listens in `dir`, the directory of a store that is locked by this process.
    pub(crate) fn listen(dir: OwnedFd) -> Result<Server> {
        let failed = |error: std::io::Error| Error::io("listen on", Path::new(SOCKET_NAME), &error);
        let (listener, name) = socket::listen(dir, SOCKET_NAME).map_err(failed)?;
        let server = Server { _name: name, desk: Arc::default() };
        let desk = Arc::clone(&server.desk);
        let accept = move || {
            let places = Places::new(CLIENTS_MAX);
            socket::take_clients(&listener, |client| admit(client, &desk, &places));
        };
        thread::Builder::new().name("varve-kv".to_owned()).spawn(accept).map_err(failed)?;
        Ok(server)
    }

    /// Says whose dictionaries are served from now on, if any.
    pub(crate) fn serves(&self, served: Option<Arc<ViewDesk>>) {
        *self.desk.lock() = served;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serves(None);
    }
}

/// Connects to the daemon that has the store `store` open.
pub(super) fn connect(store: &Path) -> std::io::Result<UnixStream> {
    socket::connect(store, SOCKET_NAME)
}

/// Has a thread serve `client`, unless there are too many.
fn admit(mut client: UnixStream, desk: &Arc<Desk>, places: &Places) {
    let Some(place) = places.take() else {
        return refuse(&mut client, "too many clients; try again later");
    };
    let desk = Arc::clone(desk);
    let serve = move || {
        if let Err(error) = serve(client, &desk, IDLE_MAX) {
            log::debug!("a client of dictionaries is gone: {error}");
        }
        drop(place);
    };
    // Without a thread the client is hung up on.
    if let Err(error) = thread::Builder::new().name("varve-kv-client".to_owned()).spawn(serve) {
        log::warn!("a client of dictionaries is not served: {error}");
    }
}

fn refuse(client: &mut UnixStream, why: &str) {
    let refusal = Response::Failed(Failure::Invalid, why.to_owned());
    drop(send(client, &refusal.encode()));
}

/// Why nothing changes, and after a semicolon what to do about it.
fn read_only(error: &Error) -> Response {
    let parts = [Some(error.message()), error.next_step()];
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
    Response::Failed(Failure::ReadOnly, text)
}

/// Answers one request after the other, until the client goes, says nothing for `idle_max` or something that is none.
fn serve(mut client: UnixStream, desk: &Desk, idle_max: Duration) -> std::io::Result<()> {
    client.set_write_timeout(Some(CLIENT_PATIENCE))?;
    client.set_read_timeout(Some(idle_max))?;
    let peer = rustix::net::sockopt::socket_peercred(&client)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        refuse(&mut client, "only root and the user who mounted may do this");
        return Ok(());
    }
    while let Some(body) = receive(&mut client)? {
        let (transaction, request) = match Request::decode(&body) {
            Ok(request) => request,
            Err(why) => {
                refuse(&mut client, &format!("this is no request: {why}"));
                return Ok(());
            }
        };
        let served = desk.lock().clone();
        let response = match served {
            Some(served) => match served.refuses_changes().filter(|_| request.is_change()) {
                Some(error) => read_only(&error),
                None => answer(&served.fs, transaction, &request),
            },
            None => {
                Response::Failed(Failure::Storage, "the mount is being upgraded or ends".to_owned())
            }
        };
        send(&mut client, &response.encode())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Neither a client that never asks nor one that stops within a request keeps its place.
    #[test]
    fn clients_that_say_nothing_are_hung_up_on() {
        for said in [&b""[..], &[9, 0, 0, 0, 1]] {
            let (served, mut client) = UnixStream::pair().unwrap();
            client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            std::io::Write::write_all(&mut client, said).unwrap();
            let served = thread::spawn(|| {
                serve(served, &Desk::default(), Duration::from_millis(20)).unwrap_err().kind()
            });
            assert!(receive(&mut client).unwrap().is_none());
            assert_eq!(served.join().unwrap(), std::io::ErrorKind::WouldBlock);
        }
    }
}
