//! Dictionaries of a store, as programs and the command line reach them.
//!
//! 1. [`Client::open`] finds who can answer: the daemon, by its socket, if the store is mounted; else the store
//!    itself, which it opens.
//! 2. Either way a [`Request`](protocol::Request) goes in and a [`Response`](protocol::Response) comes out of
//!    [`answer`], so both mean the same. docs/kv-protocol.md describes the socket's side of it.
//! 3. A request may belong to a transaction: then it is done in that one's tree, and committed or dropped with its
//!    files. On a directory of a transaction's own mount that is so without being told.
//!
//! Source: KVFS thesis 3.1 (files and pairs on one store).

pub mod protocol;
mod room;
mod server;

use std::io::{ErrorKind, Read, Write};
use std::ops::Bound;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use varve_engine::{Direction, KeyRange};
use varve_fs::{Dictionaries, MountOptions, VarveFs, ViewKind};
use varve_vfs::{Blocked, FsError, FsResult, Vfs, in_time, insist};

use crate::error::split_hint;
use crate::store::{self, FileSystem};
use crate::views::{Asked, place_of};
use crate::{Error, Result};
use protocol::{End, Failure, MESSAGE_BYTES_MAX, Request, Response};
pub(crate) use server::Server;

/// How long a daemon may take to answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(600);
/// Bytes of the keys and values of an answer, unless one pair is larger.
const PAGE_BYTES: usize = 256 << 10;

/// Messages up to this size are sent at once with their length.
const COPIED_BYTES_MAX: usize = 64 << 10;

/// Does what `request` asks for, in a transaction unless its number is 0. Waits for what transactions have locked, as long
/// as calls about files do.
fn answer(fs: &VarveFs, transaction: u64, request: &Request) -> Response {
    match transaction {
        0 => answer_in_main(fs, fs.lock_wait_max(), request),
        _ => answer_in_transaction(fs, transaction, request),
    }
}

/// What is in the way for longer than `wait_max` gives way.
fn answer_in_main(fs: &VarveFs, wait_max: Duration, request: &Request) -> Response {
    let call = || attempt(fs.dictionaries(), request);
    let done = in_time(fs, wait_max, call).or_else(|blocked| insist(fs, blocked, call));
    done.unwrap_or_else(|blocked| Err(FsError::Blocked(blocked)))
        .unwrap_or_else(|e| failure(fs, &e))
}

fn answer_in_transaction(fs: &VarveFs, transaction: u64, request: &Request) -> Response {
    let ended = || {
        let text = format!("no transaction {transaction} is open");
        Response::Failed(Failure::NoTransaction, text)
    };
    let id = transaction.to_string();
    let found = fs.transaction(&id).and_then(|txn| Ok((fs.transaction_dictionaries(&id)?, txn)));
    let (dictionaries, txn) = match found {
        Ok(found) => found,
        Err(FsError::NotFound | FsError::Stale) => return ended(),
        Err(error) => return failure(fs, &error),
    };
    let mut refused: Option<Blocked> = None;
    let call = || {
        if let Some(blocked) = refused.take() {
            fs.give_up(&txn, &blocked);
        }
        let done = attempt(&dictionaries, request);
        refused = done.as_ref().err().cloned();
        done
    };
    match in_time(fs, txn.lock_wait_max(), call) {
        // It may end meanwhile.
        Ok(Err(FsError::Stale)) => ended(),
        Ok(done) => done.unwrap_or_else(|error| failure(fs, &error)),
        Err(blocked) => {
            fs.give_up(&txn, &blocked);
            failure(fs, &FsError::Blocked(blocked))
        }
    }
}

/// Does it, unless locks are in the way.
fn attempt(
    dictionaries: &Dictionaries,
    request: &Request,
) -> std::result::Result<FsResult<Response>, Blocked> {
    match done(dictionaries, request) {
        Err(FsError::Blocked(blocked)) => Err(blocked),
        done => Ok(done),
    }
}

fn done(dictionaries: &Dictionaries, request: &Request) -> FsResult<Response> {
    match request {
        Request::Create(name) => dictionaries.create(name).map(|()| Response::Done),
        Request::Drop(name) => dictionaries.remove(name).map(|()| Response::Done),
        Request::List => dictionaries.list().map(Response::Names),
        Request::Get { name, key } => {
            dictionaries.get(name, key).map(|value| Response::Value(value.map(Into::into)))
        }
        Request::Change { name, changes } => {
            let copy = |bytes: &Vec<u8>| Bytes::copy_from_slice(bytes);
            let changes = changes.iter().map(|(key, value)| (copy(key), value.as_ref().map(copy)));
            dictionaries.change(name, changes.collect()).map(|()| Response::Done)
        }
        Request::Scan { name, start, end, reverse } => {
            let range = KeyRange { start: bound(start), end: bound(end) };
            page(dictionaries, name, range, *reverse)
        }
        Request::Sync => dictionaries.sync().map(|()| Response::Done),
    }
}

fn failure(fs: &VarveFs, error: &FsError) -> Response {
    let failure = match error {
        FsError::NotFound => Failure::NotFound,
        FsError::Exists => Failure::Exists,
        FsError::ReadOnly => Failure::ReadOnly,
        FsError::NoSpace(_) => Failure::NoSpace,
        FsError::Invalid(_) | FsError::Name(_) => Failure::Invalid,
        FsError::Blocked(_) => Failure::Locked,
        FsError::GaveWay => Failure::GaveWay,
        _ => Failure::Storage,
    };
    let text = match error {
        FsError::NotFound => "no such dictionary".to_owned(),
        FsError::Exists => "there is a dictionary of that name".to_owned(),
        FsError::Blocked(blocked) => {
            let holders = fs.transactions_of(blocked).join(", ");
            format!("transaction {holders} has locked it; try again when that one has ended")
        }
        _ => error.to_string(),
    };
    Response::Failed(failure, text)
}

fn bound(end: &End) -> Bound<Vec<u8>> {
    match end {
        End::Open => Bound::Unbounded,
        End::Included(key) => Bound::Included(key.clone()),
        End::Excluded(key) => Bound::Excluded(key.clone()),
    }
}

fn page(
    dictionaries: &Dictionaries,
    name: &[u8],
    range: KeyRange,
    reverse: bool,
) -> FsResult<Response> {
    let direction = if reverse { Direction::Reverse } else { Direction::Forward };
    let page = dictionaries.scan(name, range, direction, PAGE_BYTES)?;
    let pairs = page.pairs.into_iter().map(|(key, value)| (key.into(), value.into()));
    Ok(Response::Pairs(pairs.collect(), page.more))
}

/// Sends a message.
fn send(stream: &mut impl Write, body: &[u8]) -> std::io::Result<()> {
    if body.len() > MESSAGE_BYTES_MAX {
        return Err(std::io::Error::new(ErrorKind::InvalidInput, "a message of more than 2 MiB"));
    }
    let len = (body.len() as u32).to_le_bytes();
    if body.len() <= COPIED_BYTES_MAX {
        return stream.write_all(&[&len, body].concat());
    }
    stream.write_all(&len)?;
    stream.write_all(body)
}

/// Receives a message; `None` if the other side has gone before it began.
fn receive(stream: &mut impl Read) -> std::io::Result<Option<Vec<u8>>> {
    let mut len = [0; 4];
    match stream.read_exact(&mut len) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    receive_body(stream, body_len(len)?).map(Some)
}

/// The length of a body, as it is said before it.
fn body_len(said: [u8; 4]) -> std::io::Result<usize> {
    let len = u32::from_le_bytes(said) as usize;
    if len > MESSAGE_BYTES_MAX {
        return Err(std::io::Error::new(ErrorKind::InvalidData, "a message of more than 2 MiB"));
    }
    Ok(len)
}

fn receive_body(stream: &mut impl Read, len: usize) -> std::io::Result<Vec<u8>> {
    let mut body = vec![0; len];
    stream.read_exact(&mut body)?;
    Ok(body)
}

/// Connects to the daemon that has the store `store` open.
fn connect(store: &Path) -> std::io::Result<UnixStream> {
    let daemon = server::connect(store)?;
    daemon.set_read_timeout(Some(ANSWER_WAIT_MAX))?;
    Ok(daemon)
}

/// Sends a request and receives its answer.
fn exchange(daemon: &mut UnixStream, body: &[u8]) -> std::io::Result<Vec<u8>> {
    let sent = send(daemon, body);
    let hung_up = || std::io::Error::new(ErrorKind::UnexpectedEof, "it has hung up");
    match receive(daemon) {
        // One that does not hear us says why before it hangs up.
        Ok(Some(answer)) => Ok(answer),
        heard => sent.and_then(|()| heard?.ok_or_else(hung_up)),
    }
}

fn is_hang_up(error: &std::io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Who answers.
enum Way {
    Daemon(UnixStream),
    Store(FileSystem),
}

/// The dictionaries of one store, or as a transaction has them.
pub struct Client {
    asked: Asked,
    way: Way,
    transaction: u64,
}

impl Client {
    /// Those of the store at `path`, or of the one mounted there; in the transaction of this number, or in the one whose
    /// mount `path` lies in.
    pub fn open(path: &Path, transaction: Option<u64>) -> Result<Client> {
        let (asked, view) = place_of(path)?;
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
        if !store::is_served(&asked.store)? {
            let file_system = FileSystem::open(&asked.store, &MountOptions::default())?;
            return Ok(Client { asked, way: Way::Store(file_system), transaction });
        }
        let absent = |error: std::io::Error| {
            let store = asked.store.display();
            Error::failed(format!("no daemon of {store} can be asked: {error}"))
                .hint("`varve status` tells whether it is mounted, and by whom")
        };
        let daemon = asked.answered_by(connect(&asked.store), absent)?;
        Ok(Client { asked, way: Way::Daemon(daemon), transaction })
    }

    /// Asks, and waits for the answer; a failure is an error.
    pub fn ask(&mut self, request: Request) -> Result<Response> {
        let response = match &mut self.way {
            Way::Store(file_system) => answer(&file_system.inner(), self.transaction, &request),
            Way::Daemon(daemon) => {
                let lost = |reason: &dyn std::fmt::Display| {
                    Error::failed(format!("the daemon does not answer: {reason}"))
                        .hint("`varve status` tells whether it runs; try again")
                };
                let body = request.encode(self.transaction);
                if body.len() > MESSAGE_BYTES_MAX {
                    let text = format!("a request of more than {MESSAGE_BYTES_MAX} bytes");
                    return Err(Error::failed(text).hint("change fewer pairs at once"));
                }
                let mut answer = exchange(daemon, &body);
                // It hangs up on who says nothing for long, and what changes nothing may be asked twice.
                if !request.is_change() && answer.as_ref().is_err_and(is_hang_up) {
                    let reached = connect(&self.asked.store);
                    *daemon = self.asked.answered_by(reached, |error| lost(&error))?;
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

    /// Ends; a store that was opened for it is closed.
    pub fn close(self) -> Result<()> {
        match self.way {
            Way::Daemon(_) => Ok(()),
            Way::Store(file_system) => file_system.close(),
        }
    }
}

fn failed(failure: Failure, text: String) -> Error {
    let error = split_hint(&text);
    match failure {
        Failure::NotFound => {
            error.hint("`varve kv list` tells which there are, `varve kv create` makes one")
        }
        Failure::Exists => error.hint("choose another name, or drop that one with `varve kv drop`"),
        Failure::ReadOnly => error.or_hint("`mount -o remount,rw` lets it be changed"),
        Failure::NoTransaction => error.hint("`varve txn list` tells those that are"),
        Failure::Invalid
        | Failure::NoSpace
        | Failure::Storage
        | Failure::Locked
        | Failure::GaveWay => error,
    }
}

#[cfg(test)]
mod tests {
    use varve_fs::{FormatOptions, Isolation, TransactionOptions};
    use varve_types::InodeId;

    use super::protocol::memory_bytes;
    use super::*;

    const TAGS: &[u8] = b"tags";

    fn put(value: &[u8]) -> Request {
        let changes = vec![(b"key".to_vec(), Some(value.to_vec()))];
        Request::Change { name: TAGS.to_vec(), changes }
    }

    fn get() -> Request {
        Request::Get { name: TAGS.to_vec(), key: b"key".to_vec() }
    }

    fn begin(fs: &VarveFs, lock_wait_ms: u64) -> u64 {
        let isolation = Isolation::Serializable;
        let options = TransactionOptions { isolation, lock_wait_ms, ..Default::default() };
        fs.begin_transaction(InodeId::ROOT, &options).unwrap().name.parse().unwrap()
    }

    /// With a dictionary that has one pair.
    fn on_store(test: impl FnOnce(&VarveFs)) {
        let dir = tempfile::tempdir().unwrap();
        store::format(dir.path(), &FormatOptions::default()).unwrap();
        let file_system = FileSystem::open(dir.path(), &MountOptions::default()).unwrap();
        let fs = file_system.inner();
        assert_eq!(answer(&fs, 0, &Request::Create(TAGS.to_vec())), Response::Done);
        assert_eq!(answer(&fs, 0, &put(b"first")), Response::Done);
        test(&fs);
        drop(fs);
        file_system.close().unwrap();
    }

    /// Messages as they go over the socket, each with its length.
    fn sent(bodies: &[Vec<u8>]) -> Vec<u8> {
        let mut out = Vec::new();
        bodies.iter().for_each(|body| send(&mut out, body).unwrap());
        out
    }

    #[test]
    fn messages_are_written_as_version_1_wrote_them() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1");
        let (name, key) = (TAGS.to_vec(), b"key".to_vec());
        let scan = |start, end, reverse| Request::Scan { name: name.clone(), start, end, reverse };
        let changes = vec![(key.clone(), Some(b"value".to_vec())), (b"gone".to_vec(), None)];
        let requests = [
            (0, Request::Create(name.clone())),
            (0, Request::Drop(name.clone())),
            (0, Request::List),
            (7, get()),
            (1 << 40, Request::Change { name: name.clone(), changes }),
            (0, scan(End::Open, End::Included(key.clone()), false)),
            (0, scan(End::Excluded(key.clone()), End::Open, true)),
            (0, Request::Sync),
        ];
        let bodies = requests.each_ref().map(|(transaction, request)| request.encode(*transaction));
        varve_testkit::golden(format!("{dir}/kv.requests"), &sent(&bodies));
        for (body, request) in bodies.iter().zip(requests) {
            assert_eq!(Request::decode(body), Ok(request));
        }
        let pairs = vec![(key.clone(), b"value".to_vec()), (b"other".to_vec(), Vec::new())];
        let responses = [
            Response::Done,
            Response::Names(vec![name, b"more".to_vec()]),
            Response::Value(Some(b"value".to_vec())),
            Response::Value(None),
            Response::Pairs(pairs, true),
            Response::Pairs(Vec::new(), false),
            Response::Failed(Failure::NotFound, "there is none".to_owned()),
            Response::Failed(Failure::GaveWay, "others go on".to_owned()),
        ];
        let bodies = responses.each_ref().map(Response::encode);
        varve_testkit::golden(format!("{dir}/kv.responses"), &sent(&bodies));
        for (body, response) in bodies.iter().zip(responses) {
            assert_eq!(Response::decode(body), Ok(response));
        }
    }

    #[test]
    fn what_a_request_takes_is_known_before_it_is_taken_apart() {
        let changes = (0..1000_u32).map(|n| (n.to_be_bytes().to_vec(), None)).collect();
        let body = Request::Change { name: TAGS.to_vec(), changes }.encode(7);
        assert_eq!(memory_bytes(&body), 2 * body.len() + 256_000);
        assert_eq!(memory_bytes(&get().encode(0)), 2 * get().encode(0).len());
        for len in 0..30 {
            assert!(memory_bytes(&body[..len]) <= 2 * len + 256 * len);
        }
    }

    #[test]
    fn who_is_in_the_way_for_too_long_gives_way() {
        for request in [put(b"second"), Request::Drop(TAGS.to_vec())] {
            on_store(|fs| {
                let txn = begin(fs, 0);
                let value = |bytes: &[u8]| Response::Value(Some(bytes.to_vec()));
                assert_eq!(answer(fs, txn, &get()), value(b"first"));
                assert_eq!(answer(fs, 0, &get()), value(b"first"), "readers do not wait");
                assert_eq!(answer_in_main(fs, Duration::ZERO, &request), Response::Done);
                match answer(fs, txn, &get()) {
                    Response::Failed(failure, text) => {
                        assert_eq!(failure, Failure::GaveWay, "{text}");
                    }
                    other => panic!("{other:?}"),
                }
            });
        }
    }

    /// A request that was given up counted as waiting on, so that another transaction was taken to wait for its own holder.
    #[test]
    fn a_request_that_was_refused_waits_no_more() {
        on_store(|fs| {
            let (holds, asks) = (begin(fs, 0), begin(fs, 1));
            assert_eq!(answer(fs, holds, &put(b"held")), Response::Done);
            match answer(fs, asks, &get()) {
                Response::Failed(Failure::Locked, text) => {
                    assert!(text.contains(&format!("transaction {holds} has locked it")), "{text}");
                }
                other => panic!("{other:?}"),
            }
            let waits = |fs: &VarveFs| fs.lock_status().unwrap();
            assert!(waits(fs).iter().all(|status| status.waits_for.is_empty()));
        });
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
        let way = Way::Daemon(connect(dir.path()).unwrap());
        let mut client = Client { asked: Asked::of_store(dir.path()), way, transaction: 0 };
        for request in [put(b"one"), get(), get(), Request::Sync] {
            assert_eq!(client.ask(request).unwrap(), Response::Value(None));
        }
        let error = client.ask(put(b"two")).unwrap_err();
        assert!(error.message().contains("does not answer"), "{error}");
        drop(connect(dir.path()).unwrap());
        served.join().unwrap();
    }
}
