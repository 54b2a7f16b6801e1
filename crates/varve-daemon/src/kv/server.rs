//! The daemon's side of the socket for dictionaries, `kv` in the store.
//!
//! 1. One thread accepts clients; a thread of its own serves each, up to [`CLIENTS_MAX`] at a time.
//! 2. The daemon answers root and its own user, and refuses all others.
//! 3. A client sends one request after the other and gets each answer before it sends the next. The daemon closes the connection after a
//!    message that is no request, after [`IDLE_MAX`] without a request, and after [`CLIENT_PATIENCE`] within a request or an answer.
//! 4. Large requests wait for memory ([`MemoryBudget`]): one budget for requests that are received, one for requests that are done.
//!    Requests in transactions have budgets of their own, since the others may wait for the locks of transactions.
//!
//! When the session pauses for an upgrade, waiting requests get a failure or a closed connection; what was acknowledged is in the
//! store.

use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use varve::{Error, Result};
use varve_env::os::peer::peer_of;

use super::memory_budget::MemoryBudget;
use super::message::{body_len, receive_body, send};
use super::protocol::{
    Failure, Request, Response, TRANSACTION_BYTES, memory_bytes, transaction_of,
};
use crate::slots::Slots;
use crate::socket::{self, DICTIONARIES, InTime, SocketName};

/// Clients that are served at a time.
const CLIENTS_MAX: usize = 64;
/// How long a client may take to send the rest of a request, and to receive an answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// Memory for requests that are being received, outside of transactions and in them.
const RECEIVED_BYTES: usize = 8 << 20;
/// Memory for requests that are done, outside of transactions and in them.
const WORK_BYTES: usize = 48 << 20;
/// How long a request may wait for memory: those that have it may wait for locks.
const WORK_WAIT_MAX: Duration = Duration::from_secs(60);
/// How long a client may send nothing: longer than a person reads one page of a scan.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// Who has the file system whose dictionaries are served.
pub(crate) trait DictionaryHost: Send + Sync {
    /// Refuses a change while the file system is read-only.
    fn admit(&self, is_change: bool) -> Result<()>;
    /// Does `request`, in the transaction with this number unless that is 0 ([`answer`](super::answer())).
    fn answer(&self, transaction: u64, request: &Request) -> Response;
}

/// Who serves now; `None` while nobody does.
type Current = Mutex<Option<Arc<dyn DictionaryHost>>>;

/// The socket for dictionaries of a mount. Dropping it removes the socket.
pub(crate) struct Server {
    _name: SocketName,
    current: Arc<Current>,
}

impl Server {
    /// Listens in `dir`, the directory of a store that this process has locked, which may lend an inode.
    pub(crate) fn listen(dir: OwnedFd, lend_inode: &dyn Fn() -> bool) -> Result<Server> {
        let failed =
            |error: std::io::Error| Error::io("listen on", Path::new(DICTIONARIES), &error);
        let (listener, name) = socket::listen(dir, DICTIONARIES, lend_inode).map_err(failed)?;
        let server = Server { _name: name, current: Arc::default() };
        let current = Arc::clone(&server.current);
        let accept = move || {
            let limits = Arc::new(Limits::new(CLIENT_PATIENCE, IDLE_MAX));
            let places = Slots::new(CLIENTS_MAX);
            socket::take_clients(&listener, |client| admit(client, &current, &limits, &places));
        };
        thread::Builder::new().name("varve-kv".to_owned()).spawn(accept).map_err(failed)?;
        Ok(server)
    }

    /// Sets whose dictionaries are served from now on.
    pub(crate) fn serves(&self, served: Option<Arc<dyn DictionaryHost>>) {
        *self.current.lock() = served;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serves(None);
    }
}

/// Starts a thread that serves `client`, unless too many clients are served.
fn admit(mut client: UnixStream, current: &Arc<Current>, limits: &Arc<Limits>, places: &Slots) {
    let Some(place) = places.take() else {
        return refuse(&mut client, "too many clients; try again later");
    };
    let (current, limits) = (Arc::clone(current), Arc::clone(limits));
    let serve = move || {
        if let Err(error) = serve(client, &current, &limits) {
            log::debug!("a client of dictionaries is gone: {error}");
        }
        drop(place);
    };
    // If no thread can be started, the connection closes.
    if let Err(error) = thread::Builder::new().name("varve-kv-client".to_owned()).spawn(serve) {
        log::warn!("a client of dictionaries is not served: {error}");
    }
}

fn refuse(client: &mut UnixStream, why: &str) {
    let refusal = Response::Failed(Failure::Invalid, why.to_owned());
    drop(send(client, &refusal.encode()));
}

/// A failure of a kind; the next step stands after a semicolon.
pub(crate) fn failed(kind: Failure, error: &Error) -> Response {
    let parts = [Some(error.message()), error.next_step()];
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
    Response::Failed(kind, text)
}

/// The limits that all clients share, and the time that each has.
struct Limits {
    patience: Duration,
    idle_max: Duration,
    outside: Rooms,
    in_transactions: Rooms,
}

/// Memory for requests.
struct Rooms {
    received: MemoryBudget,
    work: MemoryBudget,
}

impl Rooms {
    fn new() -> Rooms {
        Rooms { received: MemoryBudget::new(RECEIVED_BYTES), work: MemoryBudget::new(WORK_BYTES) }
    }
}

impl Limits {
    fn new(patience: Duration, idle_max: Duration) -> Limits {
        Limits { patience, idle_max, outside: Rooms::new(), in_transactions: Rooms::new() }
    }

    /// The budgets for a request that begins with `begun`.
    fn budgets_of(&self, begun: &[u8]) -> &Rooms {
        match transaction_of(begun) {
            0 => &self.outside,
            _ => &self.in_transactions,
        }
    }
}

/// Answers one request after the other, until the connection closes or the client breaks a rule.
fn serve(mut client: UnixStream, current: &Current, limits: &Limits) -> std::io::Result<()> {
    client.set_write_timeout(Some(limits.patience))?;
    let peer = peer_of(&client)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        refuse(&mut client, "only root and the user who mounted may do this");
        return Ok(());
    }
    while let Some((len, mut body)) = begin_next(&mut client, limits)? {
        let budgets = limits.budgets_of(&body);
        // A request that has memory gives it back within its time.
        let Some(received) = budgets.received.take(len, limits.idle_max) else { return Ok(()) };
        let begun = body.len();
        body.resize(len, 0);
        InTime::new(&client, limits.patience).read_exact(&mut body[begun..])?;
        let Some(_work) = budgets.work.take(memory_bytes(&body), WORK_WAIT_MAX) else {
            let text = "other requests take all memory there is for them; try again".to_owned();
            let busy = Response::Failed(Failure::Locked, text).encode();
            send(&mut InTime::new(&client, limits.patience), &busy)?;
            continue;
        };
        let decoded = Request::decode(&body);
        drop((body, received));
        let (transaction, request) = match decoded {
            Ok(request) => request,
            Err(why) => {
                refuse(&mut client, &format!("this is no request: {why}"));
                return Ok(());
            }
        };
        let answer = respond(current, transaction, &request).encode();
        send(&mut InTime::new(&client, limits.patience), &answer)?;
    }
    Ok(())
}

/// The length of the next request, and its first bytes, which name its transaction. `None` if the client closed the connection.
fn begin_next(
    client: &mut UnixStream,
    limits: &Limits,
) -> std::io::Result<Option<(usize, Vec<u8>)>> {
    client.set_read_timeout(Some(limits.idle_max))?;
    let mut len = [0; 4];
    let begun = loop {
        match client.read(&mut len) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    if begun == 0 {
        return Ok(None);
    }
    let mut client = InTime::new(client, limits.patience);
    client.read_exact(&mut len[begun..])?;
    let len = body_len(len)?;
    let begun = receive_body(&mut client, len.min(TRANSACTION_BYTES))?;
    Ok(Some((len, begun)))
}

fn respond(current: &Current, transaction: u64, request: &Request) -> Response {
    let Some(served) = current.lock().clone() else {
        let text = "the mount is being upgraded or ends".to_owned();
        return Response::Failed(Failure::Storage, text);
    };
    match served.admit(request.is_change()) {
        Err(error) => failed(Failure::ReadOnly, &error),
        Ok(()) => served.answer(transaction, request),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::client::exchange;
    use super::super::message::receive;
    use super::*;

    /// What a client hears, and why it is hung up on, that says `said` and then a byte now and then.
    fn hung_up_on(said: &[u8], says_more: bool) -> ErrorKind {
        let (served, mut client) = UnixStream::pair().unwrap();
        client.set_read_timeout(Some(varve_testkit::PATIENCE)).unwrap();
        client.write_all(said).unwrap();
        let short = Duration::from_millis(20);
        let served = thread::spawn(move || {
            serve(served, &Current::default(), &Limits::new(short, short)).unwrap_err().kind()
        });
        while says_more && client.write_all(&[0]).is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!matches!(receive(&mut client), Ok(Some(_))));
        served.join().unwrap()
    }

    /// Neither a client that never asks nor one that stops within a request keeps its place, or is long about it.
    #[test]
    fn clients_that_say_nothing_are_hung_up_on() {
        let late = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
        assert!(late.contains(&hung_up_on(b"", false)));
        assert!(late.contains(&hung_up_on(&[9, 0, 0, 0, 1], false)));
        assert!(late.contains(&hung_up_on(&[0, 0, 16, 0], true)));
    }

    /// Large requests that wait for the locks of a transaction had all memory there was, and those of that transaction waited for it,
    /// until the others had waited for too long and it lost its locks.
    #[test]
    fn requests_of_a_transaction_do_not_wait_for_those_that_wait_for_it() {
        let limits = Limits::new(varve_testkit::PATIENCE, varve_testkit::PATIENCE);
        let request = Request::Create(vec![b'x'; 1 << 20]);
        let ask = |transaction: u64| {
            let (served, mut client) = UnixStream::pair().unwrap();
            client.set_read_timeout(Some(varve_testkit::PATIENCE)).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| serve(served, &Current::default(), &limits));
                let answer = exchange(&mut client, &request.encode(transaction)).unwrap();
                drop(client);
                Response::decode(&answer).unwrap()
            })
        };
        let budgets = limits.budgets_of(&request.encode(0));
        let all =
            [&budgets.received, &budgets.work].map(|room| room.take(usize::MAX, Duration::ZERO));
        assert!(all.iter().all(Option::is_some));
        let no_mount = |response| matches!(response, Response::Failed(Failure::Storage, _));
        assert!(no_mount(ask(7)));
        drop(all);
        assert!(no_mount(ask(0)));
    }
}
