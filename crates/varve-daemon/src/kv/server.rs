//! The daemon's socket for dictionaries, `kv` in the store.
//!
//! 1. One thread takes clients, another serves each, as many at once as [`CLIENTS_MAX`].
//! 2. Only root and the daemon's own user are heard.
//! 3. A client sends requests one after the other and gets each answer before the next. One that says something that
//!    is none is told so, and hung up on; one that says nothing for [`IDLE_MAX`], or is longer about a request or its answer than
//!    [`CLIENT_PATIENCE`], is hung up on too, so that no place is held for ever.
//! 4. Large requests wait for memory ([`Room`]): all that are being received share some, and all that are worked on. Those in
//!    transactions have some of their own, as the others may have theirs while they wait for what transactions have locked.
//!
//! When the session pauses for another program, requests that wait are answered with a failure or by a hang-up; what
//! was acknowledged is in the store.

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

use super::answer::answer;
use super::memory_budget::Room;
use super::message::{body_len, receive_body, send};
use super::protocol::{
    Failure, Request, Response, TRANSACTION_BYTES, memory_bytes, transaction_of,
};
use crate::service::ViewDesk;
use crate::slots::Slots;
use crate::socket::{self, DICTIONARIES, InTime, SocketName};

/// Clients that are served at once.
const CLIENTS_MAX: usize = 64;
/// How long a client may take to say a request that it has begun, and to hear an answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// Memory for requests that are being received, outside of transactions and in them.
const RECEIVED_BYTES: usize = 8 << 20;
/// The same for those that are worked on.
const WORK_BYTES: usize = 48 << 20;
/// How long a request may wait for that: those that have it may wait for what others have locked.
const WORK_WAIT_MAX: Duration = Duration::from_secs(60);
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
        let failed =
            |error: std::io::Error| Error::io("listen on", Path::new(DICTIONARIES), &error);
        let (listener, name) = socket::listen(dir, DICTIONARIES).map_err(failed)?;
        let server = Server { _name: name, desk: Arc::default() };
        let desk = Arc::clone(&server.desk);
        let accept = move || {
            let hall = Arc::new(Hall::new(CLIENT_PATIENCE, IDLE_MAX));
            let places = Slots::new(CLIENTS_MAX);
            socket::take_clients(&listener, |client| admit(client, &desk, &hall, &places));
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

/// Has a thread serve `client`, unless there are too many.
fn admit(mut client: UnixStream, desk: &Arc<Desk>, hall: &Arc<Hall>, places: &Slots) {
    let Some(place) = places.take() else {
        return refuse(&mut client, "too many clients; try again later");
    };
    let (desk, hall) = (Arc::clone(desk), Arc::clone(hall));
    let serve = move || {
        if let Err(error) = serve(client, &desk, &hall) {
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

/// What all clients share, and how long each is waited for.
struct Hall {
    patience: Duration,
    idle_max: Duration,
    outside: Rooms,
    in_transactions: Rooms,
}

/// Memory for requests.
struct Rooms {
    received: Room,
    work: Room,
}

impl Rooms {
    fn new() -> Rooms {
        Rooms { received: Room::new(RECEIVED_BYTES), work: Room::new(WORK_BYTES) }
    }
}

impl Hall {
    fn new(patience: Duration, idle_max: Duration) -> Hall {
        Hall { patience, idle_max, outside: Rooms::new(), in_transactions: Rooms::new() }
    }

    /// What a request that begins with `begun` takes its memory of.
    fn rooms_of(&self, begun: &[u8]) -> &Rooms {
        match transaction_of(begun) {
            0 => &self.outside,
            _ => &self.in_transactions,
        }
    }
}

/// Answers one request after the other, until the client goes, says nothing for long or something that is none.
fn serve(mut client: UnixStream, desk: &Desk, hall: &Hall) -> std::io::Result<()> {
    client.set_write_timeout(Some(hall.patience))?;
    let peer = peer_of(&client)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        refuse(&mut client, "only root and the user who mounted may do this");
        return Ok(());
    }
    while let Some((len, mut body)) = begin_next(&mut client, hall)? {
        let rooms = hall.rooms_of(&body);
        // Who has some of it goes on within a time.
        let Some(received) = rooms.received.take(len, hall.idle_max) else { return Ok(()) };
        let begun = body.len();
        body.resize(len, 0);
        InTime::new(&client, hall.patience).read_exact(&mut body[begun..])?;
        let Some(_work) = rooms.work.take(memory_bytes(&body), WORK_WAIT_MAX) else {
            let text = "other requests take all memory there is for them; try again".to_owned();
            let busy = Response::Failed(Failure::Locked, text).encode();
            send(&mut InTime::new(&client, hall.patience), &busy)?;
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
        let answer = respond(desk, transaction, &request).encode();
        send(&mut InTime::new(&client, hall.patience), &answer)?;
    }
    Ok(())
}

/// The length of the next request, and how it begins: with its transaction. `None` if the client has gone.
fn begin_next(client: &mut UnixStream, hall: &Hall) -> std::io::Result<Option<(usize, Vec<u8>)>> {
    client.set_read_timeout(Some(hall.idle_max))?;
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
    let mut client = InTime::new(client, hall.patience);
    client.read_exact(&mut len[begun..])?;
    let len = body_len(len)?;
    let begun = receive_body(&mut client, len.min(TRANSACTION_BYTES))?;
    Ok(Some((len, begun)))
}

fn respond(desk: &Desk, transaction: u64, request: &Request) -> Response {
    let Some(served) = desk.lock().clone() else {
        let text = "the mount is being upgraded or ends".to_owned();
        return Response::Failed(Failure::Storage, text);
    };
    match served.admit(request.is_change()) {
        Err(error) => read_only(&error),
        Ok(()) => answer(&served.fs, transaction, request),
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
            serve(served, &Desk::default(), &Hall::new(short, short)).unwrap_err().kind()
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
        let hall = Hall::new(varve_testkit::PATIENCE, varve_testkit::PATIENCE);
        let request = Request::Create(vec![b'x'; 1 << 20]);
        let ask = |transaction: u64| {
            let (served, mut client) = UnixStream::pair().unwrap();
            client.set_read_timeout(Some(varve_testkit::PATIENCE)).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| serve(served, &Desk::default(), &hall));
                let answer = exchange(&mut client, &request.encode(transaction)).unwrap();
                drop(client);
                Response::decode(&answer).unwrap()
            })
        };
        let rooms = hall.rooms_of(&request.encode(0));
        let all = [&rooms.received, &rooms.work].map(|room| room.take(usize::MAX, Duration::ZERO));
        assert!(all.iter().all(Option::is_some));
        let no_mount = |response| matches!(response, Response::Failed(Failure::Storage, _));
        assert!(no_mount(ask(7)));
        drop(all);
        assert!(no_mount(ask(0)));
    }
}
