//! Sessions: what the server knows of each client.
//!
//! A client is known by the number of 128 bits that it chose at random, which it tells to nobody but the server. Whoever
//! knows the number is the client: it proves that a session may be resumed. So no message, log or status shows it. Its
//! session begins with its first connection and ends when it had no connection for [`crate::Options::session`]. Then its
//! files are closed.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::Serialize;
use varve_meta::{Begun, SessionId, Slots};
use varve_types::{ClientId, InodeId};
use varve_vfs::{FsError, FsResult, Handle, RequestId};
use varve_wire::frame::Kind;
use varve_wire::{Answer, DATA_BYTES_MAX, Header, Notice};

use crate::connection::Connection;
use crate::journal::on_one_line;
use crate::shares::{Share, Shares};

/// The most sessions at once.
pub(crate) const SESSIONS_MAX: usize = 16384;
/// The most connections of one session.
pub(crate) const CONNECTIONS_MAX: usize = 16;
/// The number of the connection for notices.
const NOTICES: u32 = 0;
/// The number of slots of a session.
pub(crate) const SLOTS: u32 = 256;
/// The most open files of one session.
const FILES_MAX: usize = 1 << 16;
/// A client that leaves more notices than this unread loses its connection for notices.
const NOTICES_BYTES_MAX: usize = 1 << 20;

/// How many answers of the host that do not fit into one message are kept for a client.
const TOLD_MAX: usize = 4;

/// The length of an answer, and its bytes from `offset` on, as many as fit into a message.
fn part(told: &Bytes, offset: u64) -> (Answer, Bytes) {
    let length = told.len();
    let begin = usize::try_from(offset).unwrap_or(length).min(length);
    (Answer::Number(length as u64), told.slice(begin..length.min(begin + DATA_BYTES_MAX)))
}

/// An open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    pub(crate) ino: InodeId,
    pub(crate) handle: Handle,
}

/// Open files by the client's numbers, and how often each inode is open.
#[derive(Default)]
struct Files {
    by_number: HashMap<u64, File>,
    by_inode: HashMap<InodeId, u32>,
}

impl Files {
    fn insert(&mut self, file: u64, opened: File) -> Option<File> {
        let before = self.remove(file);
        *self.by_inode.entry(opened.ino).or_default() += 1;
        self.by_number.insert(file, opened);
        before
    }

    fn remove(&mut self, file: u64) -> Option<File> {
        let removed = self.by_number.remove(&file)?;
        if let Some(count) = self.by_inode.get_mut(&removed.ino) {
            *count -= 1;
            if *count == 0 {
                self.by_inode.remove(&removed.ino);
            }
        }
        Some(removed)
    }
}

/// Requests by their slots.
struct Requests {
    slots: Slots,
    /// Where the answers to requests under way go that have arrived again on another connection.
    moved: HashMap<u32, Arc<Connection>>,
}

/// A request with its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbered {
    pub(crate) id: RequestId,
    /// The server before may have executed it.
    pub(crate) is_first: bool,
}

/// Returns a client's number, as the file system knows it.
fn client_id([high, low]: [u64; 2]) -> ClientId {
    ClientId::new(u128::from(high) << 64 | u128::from(low))
}

/// Returns a client's number, as sessions know it.
fn numbers(client: ClientId) -> [u64; 2] {
    let number = client.get();
    [(number >> 64) as u64, number as u64]
}

/// The session of one client.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) client: [u64; 2],
    /// What the client calls itself.
    pub(crate) name: String,
    /// The directory that the client sees as its root.
    pub(crate) root: InodeId,
    pub(crate) read_only: bool,
    /// The client may open files again that it had open at the server before. What else it had there (locks) it may claim
    /// by the same rule, until it has [recovered](Session::recovered).
    pub(crate) may_reopen: bool,
    has_recovered: AtomicBool,
    under_way: Mutex<Requests>,
    files: Mutex<Files>,
    connections: Mutex<Vec<(u32, Arc<Connection>)>>,
    /// Where its latest connection came from.
    address: Mutex<SocketAddr>,
    /// When it began, in milliseconds.
    pub(crate) began_ms: u64,
    /// When the client was last seen, in milliseconds.
    pub(crate) seen_ms: AtomicU64,
    /// How many requests it has made.
    pub(crate) requests: AtomicU64,
    notices: AtomicU64,
    /// The latest answers of the host that do not fit into one message, by the client's numbers of the questions.
    told: Mutex<BTreeMap<u64, Bytes>>,
    /// The client reads and obeys notices, so it may keep what it learns.
    obeys: AtomicBool,
    _share: Share,
}

impl Session {
    /// A request arrives. Returns how it is to be executed, if it is. If it was executed before, its answer is sent again;
    /// if that is under way, its answer goes to the connection that it came on last.
    pub(crate) fn begins(
        &self,
        connection: &Arc<Connection>,
        slot: u32,
        number: u64,
    ) -> Option<Numbered> {
        let id = RequestId { client: self.client_id(), slot, number };
        let mut requests = self.under_way.lock();
        let Requests { slots, moved } = &mut *requests;
        match slots.begin(slot, number) {
            begun @ (Begun::New | Begun::First) => {
                let is_first = begun == Begun::First;
                moved.remove(&slot);
                return Some(Numbered { id, is_first });
            }
            Begun::UnderWay => drop(moved.insert(slot, Arc::clone(connection))),
            Begun::Again(answer) => connection.put_again(answer),
            Begun::Superfluous => {}
        }
        None
    }

    /// Drops a request of which nothing is executed yet, if the connection on which the client waits for its answer has ended:
    /// a client that lives sends it again, and from one that does not nothing may happen any more. Returns false if the
    /// client still waits.
    pub(crate) fn drops(&self, connection: &Connection, id: RequestId) -> bool {
        let mut requests = self.under_way.lock();
        let latest = requests.moved.get(&id.slot).map_or(connection, |moved| moved);
        let has_ended = latest.has_ended();
        if has_ended {
            requests.moved.remove(&id.slot);
            requests.slots.drop_request(id.slot, id.number);
        }
        has_ended
    }

    /// Returns the client, as the file system knows it.
    pub(crate) fn client_id(&self) -> ClientId {
        client_id(self.client)
    }

    /// Returns whether the client may keep what it learns: it reads notices and obeys them.
    pub(crate) fn obeys(&self) -> bool {
        self.obeys.load(Ordering::Relaxed)
    }

    pub(crate) fn set_obeys(&self, obeys: bool) {
        self.obeys.store(obeys, Ordering::Relaxed);
    }

    /// The client has what it had at the server before, as far as it can.
    pub(crate) fn recovered(&self) {
        self.has_recovered.store(true, Ordering::Relaxed);
    }

    /// Finds an open file. `Stale` if it went with an earlier session of the client.
    pub(crate) fn file(&self, file: u64) -> FsResult<File> {
        self.files.lock().by_number.get(&file).copied().ok_or(FsError::Stale)
    }

    /// Keeps an open file under the client's number for it. Returns a file that had the number.
    pub(crate) fn keep(&self, file: u64, opened: File) -> Option<File> {
        self.files.lock().insert(file, opened)
    }

    /// Fails if the client has as many files open as it may have.
    pub(crate) fn has_room(&self) -> FsResult<()> {
        if self.files.lock().by_number.len() < FILES_MAX {
            Ok(())
        } else {
            Err(FsError::NoSpace(format!("a client can have {FILES_MAX} files open")))
        }
    }

    pub(crate) fn take(&self, file: u64) -> Option<File> {
        self.files.lock().remove(file)
    }

    pub(crate) fn has_file(&self, file: u64) -> bool {
        self.files.lock().by_number.contains_key(&file)
    }

    /// Returns whether the client has the inode open.
    pub(crate) fn has_open(&self, ino: InodeId) -> bool {
        self.files.lock().by_inode.contains_key(&ino)
    }

    /// Returns how many requests are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.lock().slots.under_way()
    }

    /// Returns where the latest connection came from.
    pub(crate) fn address(&self) -> SocketAddr {
        *self.address.lock()
    }

    /// Returns which client this is, for messages.
    pub(crate) fn described(&self) -> String {
        format!("{} {} (session {})", self.address(), self.name, self.id.0)
    }

    pub(crate) fn open_files(&self) -> usize {
        self.files.lock().by_number.len()
    }

    /// Returns the length of an answer of the host, with as many of its first bytes as fit into a message. Keeps the rest.
    pub(crate) fn tell(&self, question: u64, told: Vec<u8>) -> (Answer, Bytes) {
        let told = Bytes::from(told);
        if told.len() > DATA_BYTES_MAX {
            let mut kept = self.told.lock();
            kept.insert(question, told.clone());
            if kept.len() > TOLD_MAX {
                kept.pop_first();
            }
        }
        part(&told, 0)
    }

    /// Returns the bytes of an answer of the host from `offset` on.
    pub(crate) fn told(&self, question: u64, offset: u64) -> (Answer, Bytes) {
        let kept = self.told.lock();
        part(kept.get(&question).unwrap_or(&Bytes::new()), offset)
    }

    /// Adds a connection; false if there are too many.
    fn connect(&self, number: u32, connection: &Arc<Connection>) -> bool {
        let mut connections = self.connections.lock();
        // One that the client has given up may not be known to have ended.
        let before = connections.iter().position(|(other, _)| *other == number);
        if let Some((_, before)) = before.map(|at| connections.swap_remove(at)) {
            before.end();
        }
        if connections.len() >= CONNECTIONS_MAX {
            return false;
        }
        connections.push((number, Arc::clone(connection)));
        *self.address.lock() = connection.address;
        if number == NOTICES {
            self.set_obeys(true);
        }
        true
    }

    /// A connection has ended. Returns whether the client has no other one.
    pub(crate) fn disconnect(&self, connection: &Arc<Connection>, now_ms: u64) -> bool {
        self.seen_ms.store(now_ms, Ordering::Relaxed);
        let mut connections = self.connections.lock();
        connections.retain(|(_, other)| !Arc::ptr_eq(other, connection));
        if connections.iter().all(|(number, _)| *number != NOTICES) {
            self.set_obeys(false);
        }
        connections.is_empty()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.lock().len()
    }

    /// Sends an answer on `connection`, and keeps it if the request must not be executed again.
    pub(crate) fn answer<T: Serialize>(
        &self,
        connection: &Connection,
        header: Header,
        (answer, data): (&T, &[u8]),
        is_kept: bool,
    ) {
        let (slot, number) = (header.slot, header.number);
        let mut kept = Vec::new();
        if is_kept {
            varve_wire::encode(&mut kept, header, answer, data);
        }
        let mut requests = self.under_way.lock();
        let is_latest = requests.slots.end(slot, number, is_kept.then_some(&kept));
        let moved = requests.moved.remove(&slot).filter(|_| is_latest);
        drop(requests);
        let to = moved.as_deref().unwrap_or(connection);
        if moved.is_some() && to.is_full() {
            // Nothing holds back answers that move to another connection than they were asked for on.
            return to.end();
        }
        match is_kept {
            true => to.put_again(&kept),
            false => to.put(header, answer, data),
        }
        // Its own thread does not know that there is something to send.
        if moved.is_some() && to.flush().is_err() {
            to.end();
        }
    }

    /// Sends a notice on the client's connection 0, which it reads at all times. Returns its number; `None` if the client
    /// is away.
    pub(crate) fn notify(&self, notice: &Notice, epoch: u32) -> Option<u64> {
        let number = self.notices.fetch_add(1, Ordering::Relaxed) + 1;
        let connections = self.connections.lock();
        let (_, connection) = connections.iter().find(|(number, _)| *number == NOTICES)?;
        let header = Header { number, ..Header::new(Kind::Notice, epoch) };
        connection.put(header, notice, &[]);
        match connection.flush() {
            Ok(_) if connection.unsent_bytes() <= NOTICES_BYTES_MAX => Some(number),
            _ => {
                connection.end();
                None
            }
        }
    }

    /// Ends all connections.
    pub(crate) fn end_connections(&self) {
        self.connections.lock().iter().for_each(|(_, connection)| connection.end());
    }

    /// Takes all open files.
    pub(crate) fn take_files(&self) -> Vec<File> {
        std::mem::take(&mut *self.files.lock()).by_number.into_values().collect()
    }
}

/// Numbers the sessions of a server, with all its file systems, and bounds how many there are.
pub(crate) struct Numbers {
    last: AtomicU32,
    shares: Arc<Shares>,
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers { last: AtomicU32::new(0), shares: Shares::new(SESSIONS_MAX) }
    }
}

/// All sessions with a file system.
pub(crate) struct Sessions {
    sessions: Mutex<HashMap<[u64; 2], Arc<Session>>>,
    by_id: Mutex<HashMap<SessionId, Arc<Session>>>,
    numbers: Arc<Numbers>,
}

/// How a client arrives.
pub(crate) enum Arrival {
    /// It has no session yet.
    New,
    /// It has a session, and a connection.
    Again,
    /// It has a session, and had no connection for a time.
    Back { away_ms: u64 },
}

/// How a client introduces itself.
pub(crate) struct Introduction<'a> {
    pub(crate) client: [u64; 2],
    /// Which of the client's connections it uses.
    pub(crate) connection: u32,
    pub(crate) name: &'a str,
    pub(crate) root: InodeId,
    pub(crate) read_only: bool,
    pub(crate) may_reopen: bool,
}

impl Sessions {
    pub(crate) fn new(numbers: &Arc<Numbers>) -> Sessions {
        let (sessions, by_id) = (Mutex::default(), Mutex::default());
        Sessions { sessions, by_id, numbers: Arc::clone(numbers) }
    }

    /// Finds or begins the session of a client that has connected. `None` if there are
    /// too many sessions of its address, or connections of it.
    pub(crate) fn connect(
        &self,
        who: &Introduction<'_>,
        connection: &Arc<Connection>,
        now_ms: u64,
    ) -> Option<(Arc<Session>, Arrival)> {
        let mut sessions = self.sessions.lock();
        if let Some(session) = sessions.get(&who.client) {
            let seen_ms = session.seen_ms.swap(now_ms, Ordering::Relaxed);
            let arrival = match session.connections() {
                0 => Arrival::Back { away_ms: now_ms.saturating_sub(seen_ms) },
                _ => Arrival::Again,
            };
            let is_connected = session.connect(who.connection, connection);
            return is_connected.then(|| (Arc::clone(session), arrival));
        }
        let share = self.numbers.shares.take(connection.address.ip())?;
        let session = Arc::new(Session {
            id: SessionId(self.numbers.last.fetch_add(1, Ordering::Relaxed) + 1),
            client: who.client,
            name: on_one_line(who.name),
            root: who.root,
            read_only: who.read_only,
            may_reopen: who.may_reopen,
            has_recovered: AtomicBool::new(false),
            under_way: Mutex::new(Requests { slots: Slots::new(SLOTS), moved: HashMap::new() }),
            files: Mutex::default(),
            connections: Mutex::new(vec![(who.connection, Arc::clone(connection))]),
            address: Mutex::new(connection.address),
            began_ms: now_ms,
            seen_ms: AtomicU64::new(now_ms),
            requests: AtomicU64::new(0),
            notices: AtomicU64::new(0),
            told: Mutex::default(),
            obeys: AtomicBool::new(who.connection == NOTICES),
            _share: share,
        });
        sessions.insert(who.client, Arc::clone(&session));
        self.by_id.lock().insert(session.id, Arc::clone(&session));
        Some((session, Arrival::New))
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<Arc<Session>> {
        self.by_id.lock().get(&id).cloned()
    }

    /// Returns whether a client has a session.
    pub(crate) fn has(&self, client: ClientId) -> bool {
        self.sessions.lock().contains_key(&numbers(client))
    }

    /// Returns whether a client has a session, and in it all that it had at the server before.
    pub(crate) fn has_recovered(&self, client: ClientId) -> bool {
        let sessions = self.sessions.lock();
        let session = sessions.get(&numbers(client));
        session.is_some_and(|session| session.has_recovered.load(Ordering::Relaxed))
    }

    /// Returns the directory that a client with a session sees as its root.
    pub(crate) fn root(&self, client: [u64; 2]) -> Option<InodeId> {
        self.sessions.lock().get(&client).map(|session| session.root)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().values().cloned().collect()
    }

    /// Removes the sessions of clients that were last seen before `since_ms` and have no connection.
    pub(crate) fn take_lost(&self, since_ms: u64) -> Vec<Arc<Session>> {
        let mut sessions = self.sessions.lock();
        let is_lost = |session: &Arc<Session>| {
            session.connections() == 0
                && session.seen_ms.load(Ordering::Relaxed) < since_ms
                && !session.under_way.lock().slots.is_busy()
        };
        let lost: Vec<_> = sessions.values().filter(|session| is_lost(session)).cloned().collect();
        let mut by_id = self.by_id.lock();
        for session in &lost {
            sessions.remove(&session.client);
            by_id.remove(&session.id);
        }
        lost
    }
}
