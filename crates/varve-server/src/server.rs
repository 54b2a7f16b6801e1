//! Starts and stops a server, and hands out the requests of its clients.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use varve_meta::Policy;
use varve_types::ClientId;
use varve_vfs::{FsError, Vfs};
use varve_wire::frame::Kind;
use varve_wire::request::kind;
use varve_wire::{Answer, Failure, FrameError, Header, Request};

use crate::admission::INQUIRIES_MAX;
use crate::calls::{Service, failed, is_once};
use crate::changes::Changes;
use crate::clock::Clock;
use crate::connection::{Connection, HELD_BYTES_MAX};
use crate::host::{Asked, Host, View, Views};
use crate::journal::{Journal, Subject, described, time};
use crate::meters::Meters;
use crate::nodes::Nodes;
use crate::reactor::{Ended, Reactor};
use crate::session::{Numbered, Numbers, SLOTS, Session, Sessions};
use crate::shares::{Shares, same_site};
use crate::status::{Grace, Status};
use crate::workers::Workers;

/// The most connections at once.
const CONNECTIONS_MAX: usize = 18_000;
/// The most threads that read requests.
const REACTORS_MAX: usize = 16;
/// The most threads for calls that wait.
const WORKERS_MAX: usize = 64;
/// How long a client's machine may be silent before it is asked whether it is there.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// How often sessions and connections are looked at.
const SWEEP: Duration = Duration::from_millis(500);
/// How long the operating system tries to send what a client does not take.
const UNTAKEN_MS_MAX: u32 = 60_000;
/// A request that waits for a thread counts as so many bytes at least, so that a connection has no more of them than a
/// session has slots.
const WAITING_BYTES_MIN: usize = HELD_BYTES_MAX / SLOTS as usize;

/// How a server serves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The identity of the file system: the same at each start, another for another store.
    pub file_system: [u64; 2],
    /// A number that grows with each start.
    pub epoch: u32,
    /// How long a client may keep what it learns.
    pub leases: Policy,
    /// How long a client may be away before its session ends.
    pub session: Duration,
    /// The secret that clients must know; empty for none.
    pub token: Vec<u8>,
    /// Refuse every change.
    pub read_only: bool,
    /// Requests that take longer are logged.
    pub slow: Duration,
}

/// What all threads share.
pub(crate) struct Shared {
    /// The main file system.
    pub(crate) main: Arc<Service>,
    pub(crate) views: Views,
    /// Numbers and bounds the sessions with all of them.
    pub(crate) sessions: Arc<Numbers>,
    pub(crate) options: Options,
    pub(crate) reactors: Vec<Reactor>,
    pub(crate) workers: Workers,
    shares: Arc<Shares>,
    /// Who makes an inquiry.
    pub(crate) inquiries: Arc<Shares>,
    pub(crate) clock: Clock,
    pub(crate) meters: Arc<Meters>,
    pub(crate) journal: Arc<Journal>,
    next_reactor: AtomicUsize,
    is_ending: AtomicBool,
    /// Clients of the server before may come and go on.
    pub(crate) is_grace: AtomicBool,
    /// The clients of the server before, as soon as they are known.
    expected: OnceLock<Vec<ClientId>>,
}

/// A server that answers until it is stopped.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Server {
    /// Serves `vfs` on `listener`, with the views of a `host`.
    pub fn start(
        vfs: Arc<dyn Vfs>,
        host: Option<Arc<dyn Host>>,
        listener: TcpListener,
        options: Options,
    ) -> io::Result<Server> {
        let address = listener.local_addr()?;
        let clock = Clock::new();
        let reactors = thread::available_parallelism().map_or(1, usize::from).min(REACTORS_MAX);
        let (meters, journal) = (Arc::new(Meters::new(reactors)), Arc::new(Journal::new()));
        let reactors: io::Result<Vec<Reactor>> = (0..reactors).map(|_| Reactor::new()).collect();
        let sessions = Arc::new(Numbers::default());
        let main = Arc::new(service(vfs, &options, clock, &sessions, (&meters, &journal)));
        let shared = Arc::new(Shared {
            main,
            views: Views::new(host),
            sessions,
            options,
            reactors: reactors?,
            workers: Workers::new(WORKERS_MAX),
            shares: Shares::new(CONNECTIONS_MAX),
            inquiries: Shares::new(INQUIRIES_MAX),
            clock,
            meters,
            journal,
            next_reactor: AtomicUsize::new(0),
            is_ending: AtomicBool::new(false),
            is_grace: AtomicBool::new(true),
            expected: OnceLock::new(),
        });
        let server = Server { shared, address, threads: Mutex::default() };
        if let Err(error) = server.begin(listener) {
            server.stop();
            return Err(error);
        }
        Ok(server)
    }

    fn begin(&self, listener: TcpListener) -> io::Result<()> {
        let mut threads = self.threads.lock();
        let mut begin = |name: String, work: Box<dyn FnOnce() + Send>| {
            thread::Builder::new().name(name).spawn(work).map(|thread| threads.push(thread))
        };
        for number in 0..self.shared.reactors.len() {
            let shared = Arc::clone(&self.shared);
            let run = move || shared.reactors[number].run(&shared);
            begin(format!("varve-read-{number}"), Box::new(run))?;
        }
        let shared = Arc::clone(&self.shared);
        begin("varve-sweep".to_owned(), Box::new(move || shared.sweep()))?;
        let shared = Arc::clone(&self.shared);
        begin("varve-accept".to_owned(), Box::new(move || shared.accept(&listener)))
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns what the server has and does.
    pub fn status(&self) -> Status {
        Status::of(&self.shared)
    }

    /// Has `ask` do something about the store as its [`Host`] does, for somebody on this machine.
    pub fn ask<T>(&self, ask: impl FnOnce(&Asked<'_>) -> T) -> T {
        ask(&Asked { main: &self.shared.main, views: &self.shared.views })
    }

    /// Answers the requests that have arrived and ends the server. Then the file system can be closed.
    pub fn stop(&self) {
        let shared = &self.shared;
        shared.is_ending.store(true, Ordering::Release);
        // Wakes the thread that accepts connections.
        drop(TcpStream::connect_timeout(&self.wake_address(), Duration::from_secs(1)));
        shared.reactors.iter().for_each(Reactor::wake);
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            thread.thread().unpark();
            if thread.join().is_err() {
                log::error!("a thread of the server has panicked");
            }
        }
        shared.workers.stop();
        shared.views.end_all();
        for session in shared.main.sessions.all() {
            shared.main.leave(&session);
        }
        shared.main.nodes.clear(&*shared.main.vfs);
    }

    /// Returns an address by which this machine reaches the listener.
    fn wake_address(&self) -> SocketAddr {
        let ip = match self.address.ip() {
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        };
        SocketAddr::new(ip, self.address.port())
    }
}

impl Shared {
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Accepts connections until the server ends.
    fn accept(&self, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            if self.is_ending() {
                return;
            }
            let admitted = accepted.and_then(|(stream, address)| self.admit(stream, address));
            if let Err(error) = admitted {
                let line = || format!("cannot accept a connection: {error}");
                self.journal.write(Subject::Refused, line);
                // Out of descriptors, for example.
                thread::sleep(Duration::from_millis(10));
            }
        }
    }

    fn admit(&self, stream: TcpStream, address: SocketAddr) -> io::Result<()> {
        let ip = address.ip();
        let share = self.shares.take(ip).or_else(|| {
            self.end_oldest_silent(|connection| {
                same_site(connection.address.ip()) == same_site(ip)
            });
            self.shares.take(ip)
        });
        let share = share.or_else(|| {
            self.end_oldest_silent(|_| true);
            self.shares.take(ip)
        });
        let Some(share) = share else {
            self.meters.refused_connections.add(1);
            return Err(io::Error::other(format!("{ip} has as many connections as it may have")));
        };
        stream.set_nodelay(true)?;
        // Of a machine that dies without a word the operating system learns so.
        rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
        rustix::net::sockopt::set_tcp_keepidle(&stream, SILENCE_MAX)?;
        rustix::net::sockopt::set_tcp_keepintvl(&stream, SILENCE_MAX / 3)?;
        rustix::net::sockopt::set_tcp_keepcnt(&stream, 3)?;
        rustix::net::sockopt::set_tcp_user_timeout(&stream, UNTAKEN_MS_MAX)?;
        stream.set_nonblocking(true)?;
        let next = self.next_reactor.fetch_add(1, Ordering::Relaxed) % self.reactors.len();
        let thread = (next, self.meters.of_thread(next));
        let connection = Connection::new((stream, address), share, thread, self.clock.now_ms());
        self.reactors[next].add(&Arc::new(connection))
    }

    /// Ends the connection that has waited longest for a hello, of those that `is_meant`.
    fn end_oldest_silent(&self, is_meant: impl Fn(&Connection) -> bool) {
        let silent = self.reactors.iter().filter_map(|reactor| reactor.oldest_silent(&is_meant));
        if let Some((_, connection)) = silent.min_by_key(|(since_ms, _)| *since_ms) {
            connection.make_room();
        }
    }

    /// A connection has ended.
    pub(crate) fn disconnected(&self, connection: &Arc<Connection>, why: &Ended) {
        let session = connection.session();
        let who = session
            .as_ref()
            .map_or_else(|| connection.address.to_string(), |(session, _)| session.described());
        match why {
            Ended::Frame(error) => {
                self.meters.broken.add(1);
                let line = || format!("{who}: {error}; the connection ends");
                self.journal.write(Subject::Broken, line);
            }
            Ended::Io(error) => log::debug!("{who}: {error}"),
        }
        connection.end();
        if let Some((session, _)) = session
            && session.disconnect(connection, self.clock.now_ms())
        {
            let left = time(self.session_ms());
            let line = || {
                format!("{who}: has no connection; the session ends in {left} unless it comes back")
            };
            self.journal.write(Subject::Sessions, line);
        }
    }

    /// Serves one message.
    pub(crate) fn serve(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        header: Header,
        body: &[u8],
        data: &[u8],
    ) -> Result<(), Ended> {
        let session = connection.session();
        match (header.kind, session) {
            (Kind::Request, Some((session, service))) => {
                self.request(connection, (&session, &service), header, body, data)
            }
            (Kind::Acknowledgement, Some((session, service))) => {
                service.changes.acknowledged(&session, header.number);
                Ok(())
            }
            (Kind::Hello, None) if !connection.has_inquired() => {
                self.hello(connection, &varve_wire::decode(body)?)
            }
            (Kind::Inquiry, None) => self.inquiry(connection, &varve_wire::decode(body)?),
            _ => Err(FrameError::Unexpected(
                "a client's first message is a hello or an inquiry, and no other is",
            )
            .into()),
        }
    }

    /// Makes what serves a view.
    pub(crate) fn view_service(&self, View { vfs, root, read_only }: View) -> Service {
        let watched = (&self.meters, &self.journal);
        let made = service(vfs, &self.options, self.clock, &self.sessions, watched);
        Service { root: Some(root), read_only, ..made }
    }

    /// The main file system and the views that are open.
    pub(crate) fn services(&self) -> impl Iterator<Item = Arc<Service>> {
        [Arc::clone(&self.main)].into_iter().chain(self.views.all())
    }

    /// Makes the call of a request, or has the host answer it. A call that panics fails, and its thread goes on with those
    /// of others. `None`: as [`Service::serve`].
    fn answer(
        &self,
        (session, service): (&Session, &Service),
        numbered: Numbered,
        request: &Request<'_>,
        data: &[u8],
        waiting: Option<&Connection>,
    ) -> Option<(Answer, Bytes)> {
        let answer = || match request {
            Request::Ask { .. } if waiting.is_none() => None,
            Request::Ask { question } => Some(self.ask(session, *question, data)),
            Request::AskRest { question, offset } => Some(session.told(*question, *offset)),
            _ => service.serve(session, numbered, request, data, waiting),
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(answer)).unwrap_or_else(|_| {
            log::error!("{}: a call has panicked", session.name);
            Some(failed())
        })
    }

    /// Has the host answer a request.
    fn ask(&self, session: &Session, question: u64, request: &[u8]) -> (Answer, Bytes) {
        let Some(host) = self.views.host() else {
            let error = FsError::NotSupported("requests about views, by this server");
            return (Answer::Failed(Failure::from(&error)), Bytes::new());
        };
        let asked = Asked { main: &self.main, views: &self.views };
        session.tell(question, host.ask(request, session.read_only, &asked))
    }

    fn request(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        (session, service): (&Arc<Session>, &Arc<Service>),
        header: Header,
        body: &[u8],
        data: &[u8],
    ) -> Result<(), Ended> {
        let header = Header { kind: Kind::Answer, epoch: self.options.epoch, ..header };
        let Ok(request) = varve_wire::decode::<Request<'_>>(body) else {
            // A call of a newer client. It is not executed, so that a repetition does no harm.
            let unknown = FsError::NotSupported("calls that this server does not know");
            connection.put(header, &Answer::Failed(Failure::from(&unknown)), &[]);
            return Ok(());
        };
        let Some(numbered) = session.begins(connection, header.slot, header.number) else {
            return Ok(());
        };
        let came = Came { kind: kind(body), at: Instant::now() };
        session.requests.fetch_add(1, Ordering::Relaxed);
        let is_kept = is_once(&request);
        if let Some((answer, returned)) =
            self.answer((session, service), numbered, &request, data, None)
        {
            session.answer(connection, header, (&answer, &returned), is_kept);
            self.answered(connection, session, (came, came.at), (&request, &answer));
            return Ok(());
        }
        let bytes = (body.len() + data.len() + answer_bytes_max(&request)).max(WAITING_BYTES_MIN);
        connection.hold(bytes);
        let waiting =
            Waiting { shared: Arc::clone(self), connection: Arc::clone(connection), bytes };
        let (id, session, service) = (session.id, Arc::clone(session), Arc::clone(service));
        let (body, data) = (body.to_vec(), data.to_vec());
        self.workers.run(
            id,
            Box::new(move || {
                let Waiting { shared, connection, .. } = &waiting;
                if session.drops(connection, numbered.id) {
                    return;
                }
                let begun = Instant::now();
                // It was decoded before.
                let Ok(request) = varve_wire::decode::<Request<'_>>(&body) else { return };
                let served = shared.answer(
                    (&session, &service),
                    numbered,
                    &request,
                    &data,
                    Some(connection),
                );
                let Some((answer, returned)) = served else { return };
                session.answer(connection, header, (&answer, &returned), is_kept);
                shared.answered(connection, &session, (came, begun), (&request, &answer));
                if connection.flush().is_err() {
                    connection.end();
                }
            }),
        );
        Ok(())
    }

    /// Counts a request whose answer is ready. A thread has begun it at `begun`.
    fn answered(
        &self,
        connection: &Connection,
        session: &Session,
        (came, begun): (Came, Instant),
        (request, answer): (&Request<'_>, &Answer),
    ) {
        let took = came.at.elapsed();
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        connection.meter.answered(came.kind, nanos, matches!(answer, Answer::Failed(_)));
        if took > self.options.slow {
            self.meters.slow.add(1);
            self.journal.write(Subject::Slow, || {
                let waited = begun.saturating_duration_since(came.at);
                slow(session, (came.kind, request), (took, waited))
            });
        }
    }

    /// Returns who of the clients of the server before is awaited; `None` if the grace is over.
    pub(crate) fn grace(&self, now_ms: u64) -> Option<Grace> {
        let is_back = |client: &&ClientId| self.main.sessions.has_recovered(**client);
        let expected = self.expected.get();
        self.is_grace.load(Ordering::Acquire).then(|| Grace {
            expected: expected.map(Vec::len),
            returned: expected.map_or(0, |expected| expected.iter().filter(is_back).count()),
            ends_in: Duration::from_millis(self.session_ms().saturating_sub(now_ms)),
        })
    }

    fn forget(&self, client: ClientId) {
        if let Err(error) = self.main.vfs.forget_client(client) {
            log::warn!("notes of the requests of a client that is gone stay: {error}");
        }
    }

    pub(crate) fn session_ms(&self) -> u64 {
        u64::try_from(self.options.session.as_millis()).unwrap_or(u64::MAX)
    }

    /// Ends the grace, and sessions whose clients are away for too long, until the server ends.
    fn sweep(&self) {
        let expected = self.main.vfs.remembered_clients().unwrap_or_else(|error| {
            log::error!("the clients of the server before are not known: {error}");
            Vec::new()
        });
        let expected = self.expected.get_or_init(|| expected);
        let session_ms = self.session_ms();
        while !self.is_ending() {
            let now_ms = self.clock.now_ms();
            if self.is_grace.load(Ordering::Acquire) {
                let is_back = |client: &ClientId| self.main.sessions.has_recovered(*client);
                if now_ms >= session_ms || expected.iter().all(is_back) {
                    self.end_grace(expected);
                }
            }
            thread::park_timeout(SWEEP);
            let now_ms = self.clock.now_ms();
            self.reactors.iter().for_each(|reactor| reactor.end_silent(now_ms));
            self.journal.say_what_is_missing();
            let Some(since_ms) = now_ms.checked_sub(session_ms) else { continue };
            for service in self.services() {
                for session in service.sessions.take_lost(since_ms) {
                    self.lost(&session, now_ms);
                    service.end(&session);
                    if Arc::ptr_eq(&service, &self.main) {
                        self.forget(session.client_id());
                    }
                }
            }
            self.views.close_unused();
        }
    }

    /// Says that a session ends because its client is away.
    fn lost(&self, session: &Session, now_ms: u64) {
        self.journal.write(Subject::Sessions, || {
            let away = time(now_ms.saturating_sub(session.seen_ms.load(Ordering::Relaxed)));
            let age = time(now_ms.saturating_sub(session.began_ms));
            let (who, files) = (session.described(), session.open_files());
            format!("{who}: the session ends after {age}, its client is away for {away}; files that were open: {files}")
        });
    }

    /// All clients of the server before are here and have what they had, or have been away for too long.
    fn end_grace(&self, expected: &[ClientId]) {
        self.is_grace.store(false, Ordering::Release);
        let is_gone = |client: &&ClientId| !self.main.sessions.has(**client);
        let gone: Vec<ClientId> = expected.iter().filter(is_gone).copied().collect();
        gone.iter().for_each(|client| self.forget(*client));
        if !expected.is_empty() {
            log::info!(
                "the grace is over: of {} clients of the server before {} did not come back",
                expected.len(),
                gone.len()
            );
        }
        if let Err(error) = self.main.vfs.end_grace() {
            log::error!("removed files that nobody has open any more keep their room: {error}");
        }
    }
}

/// Makes what serves a file system.
fn service(
    vfs: Arc<dyn Vfs>,
    options: &Options,
    clock: Clock,
    sessions: &Arc<Numbers>,
    watched: (&Arc<Meters>, &Arc<Journal>),
) -> Service {
    let changes = Changes::new(options.leases, clock, options.epoch, watched);
    let (nodes, sessions) = (Nodes::new(), Sessions::new(sessions));
    Service { vfs, nodes, sessions, changes, root: None, read_only: false }
}

/// When a request came, and its kind.
#[derive(Clone, Copy)]
struct Came {
    kind: usize,
    at: Instant,
}

/// A message about a request that `took` long, so much of it to wait for a thread.
fn slow(
    session: &Session,
    (kind, request): (usize, &Request<'_>),
    (took, waited): (Duration, Duration),
) -> String {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let (who, what, took) = (session.described(), described(kind, request), time(ms(took)));
    let waited = match ms(waited) {
        0 => String::new(),
        waited => format!(", of which it waited {} for a thread", time(waited)),
    };
    format!("{who}: {what} took {took}{waited}")
}

/// A request that waits for a thread or for its answer. The server reads on from its connection when it has that.
struct Waiting {
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    bytes: usize,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.connection.release(self.bytes) {
            self.shared.reactors[self.connection.reactor].resume(&self.connection);
        }
    }
}

/// Returns how many bytes of data the answer to a request may have.
fn answer_bytes_max(request: &Request<'_>) -> usize {
    let bytes = match *request {
        Request::Read { length, .. } => length as usize,
        Request::Readdir { bytes, .. } => bytes as usize,
        Request::Getxattr { .. } | Request::Listxattr { .. } => varve_wire::BODY_BYTES_MAX,
        Request::Ask { .. } => varve_wire::DATA_BYTES_MAX,
        _ => 0,
    };
    bytes.min(varve_wire::DATA_BYTES_MAX)
}
