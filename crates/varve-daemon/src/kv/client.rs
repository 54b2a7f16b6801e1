//! The dictionaries of a store for one client, whichever process has the store open.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use varve::{Error, FileSystem, Result};
use varve_fs::{MountOptions, ViewKind};

use super::answer::answer;
use super::message::{receive, send};
use super::protocol::{Failure, MESSAGE_BYTES_MAX, Request, Response};
use crate::socket::{self, DICTIONARIES};
use crate::target::{Target, target_and_view};

/// How long a daemon may take to answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(600);
/// Connects to the daemon that serves the store `store`.
fn connect(store: &Path) -> std::io::Result<UnixStream> {
    let daemon = socket::connect(store, DICTIONARIES)?;
    daemon.set_read_timeout(Some(ANSWER_WAIT_MAX))?;
    Ok(daemon)
}

/// Sends a request and receives its answer.
pub(super) fn exchange(daemon: &mut UnixStream, body: &[u8]) -> std::io::Result<Vec<u8>> {
    let sent = send(daemon, body);
    let hung_up = || std::io::Error::new(ErrorKind::UnexpectedEof, "it has hung up");
    match receive(daemon) {
        // A daemon that refuses the client sends its reason and then closes the connection.
        Ok(Some(answer)) => Ok(answer),
        heard => sent.and_then(|()| heard?.ok_or_else(hung_up)),
    }
}

fn is_hang_up(error: &std::io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// What answers the requests.
enum Connection {
    Daemon(UnixStream),
    Store(FileSystem),
}

/// The dictionaries of one store, or of a transaction on it.
pub struct Client {
    target: Target,
    connection: Connection,
    transaction: u64,
}

impl Client {
    /// Opens the dictionaries of the store at `path`, or of the store that is mounted there: in the transaction with this number, or in
    /// the transaction whose mount `path` lies in.
    pub fn open(path: &Path, transaction: Option<u64>) -> Result<Client> {
        let (target, view) = target_and_view(path)?;
        let transaction = match view {
            None => transaction.unwrap_or(0),
            Some(view) => {
                let number = view.name.parse().ok().filter(|_| view.kind == ViewKind::Transaction);
                let told_same = transaction.is_none_or(|told| number == Some(told));
                number.filter(|_| told_same).ok_or_else(|| {
                    let seen = view.path();
                    let text = format!("{} lies in {}", path.display(), seen.display());
                    Error::failed(text).hint("name a directory of the mount itself")
                })?
            }
        };
        target.require_dictionaries(path)?;
        if !target.is_served()? {
            let file_system = FileSystem::open(&target.store, &MountOptions::default())?;
            return Ok(Client { target, connection: Connection::Store(file_system), transaction });
        }
        let absent = |error: std::io::Error| {
            let store = target.store.display();
            Error::failed(format!("cannot reach a daemon of {store}: {error}"))
                .hint("`varve status` shows whether the store is mounted, and by which process")
        };
        let daemon = target.answered_by(connect(&target.store), absent)?;
        Ok(Client { target, connection: Connection::Daemon(daemon), transaction })
    }

    /// Sends `request` and waits for the response; a response that is a failure becomes an error.
    pub fn ask(&mut self, request: Request) -> Result<Response> {
        let response = match &mut self.connection {
            Connection::Store(file_system) => {
                answer(&file_system.inner(), self.transaction, &request)
            }
            Connection::Daemon(daemon) => {
                let lost = |reason: &dyn std::fmt::Display| {
                    Error::failed(format!("the daemon does not answer: {reason}"))
                        .hint("`varve status` shows whether it runs; try again")
                };
                let body = request.encode(self.transaction);
                if body.len() > MESSAGE_BYTES_MAX {
                    let text = format!("a request of more than {MESSAGE_BYTES_MAX} bytes");
                    return Err(Error::failed(text).hint("change fewer pairs in one request"));
                }
                let mut answer = exchange(daemon, &body);
                // The daemon closes a connection that is silent for long. A request that changes nothing can be sent again.
                if !request.is_change() && answer.as_ref().is_err_and(is_hang_up) {
                    let reached = connect(&self.target.store);
                    *daemon = self.target.answered_by(reached, |error| lost(&error))?;
                    answer = exchange(daemon, &body);
                }
                let answer = answer.map_err(|error| lost(&error))?;
                Response::decode(&answer).map_err(|reason| lost(&reason))?
            }
        };
        match response {
            Response::Failed(failure, text) => Err(failed(failure, text)),
            done => Ok(done),
        }
    }

    /// Closes the connection, or the store if the client has opened it.
    pub fn close(self) -> Result<()> {
        match self.connection {
            Connection::Daemon(_) => Ok(()),
            Connection::Store(file_system) => file_system.close(),
        }
    }
}

fn failed(failure: Failure, text: String) -> Error {
    let error = Error::split_hint(&text);
    match failure {
        Failure::NotFound => {
            error.hint("`varve kv list` lists the dictionaries, `varve kv create` creates one")
        }
        Failure::Exists => {
            error.hint("choose another name, or drop the dictionary with `varve kv drop`")
        }
        Failure::ReadOnly => error.or_hint("`mount -o remount,rw` allows changes"),
        Failure::NoTransaction => error.hint("`varve txn list` lists the open transactions"),
        Failure::Invalid
        | Failure::NoSpace
        | Failure::Storage
        | Failure::Locked
        | Failure::GaveWay => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAGS: &[u8] = b"tags";

    fn put(value: &[u8]) -> Request {
        let changes = vec![(b"key".to_vec(), Some(value.to_vec()))];
        Request::Change { name: TAGS.to_vec(), changes }
    }

    fn get() -> Request {
        Request::Get { name: TAGS.to_vec(), key: b"key".to_vec() }
    }

    /// A client too many was told of a broken pipe.
    #[test]
    fn who_is_refused_before_he_asks_hears_why() {
        let (mut daemon, mut client) = UnixStream::pair().unwrap();
        send(&mut daemon, b"too many clients").unwrap();
        drop(daemon);
        assert_eq!(exchange(&mut client, &get().encode(0)).unwrap(), b"too many clients");
        assert!(is_hang_up(&exchange(&mut client, &get().encode(0)).unwrap_err()));
    }

    /// A scan of which a page was read for longer than the daemon waits broke off.
    #[test]
    fn who_was_hung_up_on_reads_on_and_changes_nothing_twice() {
        let dir = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(dir.path().join("kv")).unwrap();
        // Answers once and hangs up.
        let serve = move || {
            for heard in 1.. {
                let (mut daemon, _) = listener.accept().unwrap();
                let Some(body) = receive(&mut daemon).unwrap() else { return };
                let (_, request) = Request::decode(&body).unwrap();
                assert!(!request.is_change() || heard == 1, "{request:?} was sent twice");
                send(&mut daemon, &Response::Value(None).encode()).unwrap();
            }
        };
        let served = std::thread::spawn(serve);
        let connection = Connection::Daemon(connect(dir.path()).unwrap());
        let mut client =
            Client { target: Target::of_store(dir.path()), connection, transaction: 0 };
        for request in [put(b"one"), get(), get(), Request::Sync] {
            assert_eq!(client.ask(request).unwrap(), Response::Value(None));
        }
        let error = client.ask(put(b"two")).unwrap_err();
        assert!(error.message().contains("does not answer"), "{error}");
        drop(connect(dir.path()).unwrap());
        served.join().unwrap();
    }
}
