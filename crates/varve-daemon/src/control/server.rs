//! The daemon's side of the control socket.
//!
//! 1. One thread accepts clients. A thread for each client reads its request and does it: a client may be slow to send, and a commit may
//!    wait for locks that another client's commit releases.
//! 2. The daemon answers root and its own user, and refuses all others.
//! 3. For an upgrade it asks the binary whether it can take over (`--probe`). Nothing has stopped by then.
//! 4. It closes the admission gate ([`Answers::leave`]) and removes the mounts of snapshots and transactions. Until the mount is served
//!    again, each request about them is refused.
//! 5. It stores the order for the serving thread and pauses the session. The process that serves next answers the client.
//!
//! Invariants: at most [`HEARD_MAX`] clients send a request at a time, and at most [`REQUESTS_MAX`] + [`ENDS_MAX`] requests are done.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde_json::Value;
use varve::{Error, Result};
use varve_env::os::peer::peer_of;
use varve_fs::fsck::Progress;
use varve_fuse::PauseHandle;

use super::report::{Report, answer};
use super::request::{Request, ViewRequest};
use crate::service::{Admitted, GateClosed, being_upgraded};
use crate::slots::{Slot, Slots};
use crate::socket::{self, CONTROL, InTime, SocketName};
use crate::upgrade::probe::probe;

/// The longest request that is read.
const REQUEST_BYTES_MAX: u64 = 32 << 10;
/// Clients whose requests are read at a time.
const HEARD_MAX: usize = 64;
/// Requests that are done at a time. Only requests that wait for locks become so many.
const REQUESTS_MAX: usize = 256;
/// Commits and aborts that are done beyond [`REQUESTS_MAX`]: they release the locks for which the others wait.
const ENDS_MAX: usize = 32;
/// Clients that wait for the report on the daemon's end.
const END_WAITERS_MAX: usize = 64;
/// How long a client may take to send its request, and to receive a report.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);
/// The shortest time between two progress lines.
const TOLD_EVERY: Duration = Duration::from_millis(100);

/// Who answers requests about the snapshots and transactions of a mount.
pub(crate) trait Answers: Send + Sync {
    /// Admits a request. It is under way until the admission is dropped.
    fn enter(&self) -> Result<Option<Admitted>>;
    /// Refuses a change while the mount is read-only.
    fn admit(&self, is_change: bool) -> Result<()>;
    /// Does a client's request. REQUIRES: the caller has entered, and [`Answers::admit`] has let the request pass.
    fn answer(
        self: Arc<Self>,
        request: &ViewRequest,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Value>;
    /// Serves a client that sends or receives a stream. REQUIRES: as [`Answers::answer`].
    fn transfer(&self, request: &ViewRequest, client: &mut UnixStream);
    /// Writes the next tables again by the store's design. REQUIRES: the caller has entered.
    fn redesign(&self) -> Result<Value>;
    /// What a server has and does. REQUIRES: the caller has entered.
    fn server(&self) -> Result<Value> {
        Err(Error::failed("this store is mounted, and not served to other machines")
            .hint("name its mount point"))
    }
    /// Refuses to promise a report on the end of the daemon, if it does not end with a mount.
    fn promise_end(&self) -> Result<()> {
        Ok(())
    }
    /// Before an upgrade: refuses requests until the returned value is dropped, and unmounts all views.
    fn leave(&self) -> Result<GateClosed>;
}

/// A request for an upgrade that the serving thread has to carry out.
#[derive(Debug)]
pub(crate) struct UpgradeOrder {
    pub(crate) binary: PathBuf,
    pub(crate) client: UnixStream,
    /// Keeps the gate closed until the order is refused.
    _closed: GateClosed,
}

impl UpgradeOrder {
    /// Reports to the client why nothing has changed.
    pub(crate) fn refuse(mut self, error: &Error) {
        log::warn!("not upgraded: {}", error.message());
        answer(&mut self.client, &Report::of(error));
    }
}

/// The control socket of a mount. Dropping it removes the socket.
pub(crate) struct Control {
    _name: SocketName,
    shared: Arc<Mutex<Shared>>,
}

/// What the threads for clients share with the serving thread.
#[derive(Default)]
struct Shared {
    /// Pauses the session that serves now.
    pause: Option<PauseHandle>,
    views: Option<Arc<dyn Answers>>,
    order: Option<UpgradeOrder>,
    end_waiters: EndWaiters,
}

/// The clients that wait for the report on the daemon's end.
#[derive(Default)]
struct EndWaiters {
    clients: Vec<UnixStream>,
    /// The serving thread has taken them: a client that comes now would get no report.
    are_taken: bool,
}

impl EndWaiters {
    /// Confirms to `client` that it will get the report, and keeps it.
    fn admit(&mut self, mut client: UnixStream) {
        self.clients.retain(is_connected);
        if self.are_taken || self.clients.len() >= END_WAITERS_MAX {
            let error = Error::failed("too many clients wait for the report on the daemon's end");
            return answer(&mut client, &Report::of(&error.hint("wait until the store is free")));
        }
        answer(&mut client, &Report::Done(Value::Null));
        self.clients.push(client);
    }
}

impl Control {
    /// Listens in `dir`, the directory of a store that this process has locked, which may lend an inode.
    pub(crate) fn listen(dir: OwnedFd, lend_inode: &dyn Fn() -> bool) -> Result<Control> {
        let failed = |error: std::io::Error| Error::io("listen on", Path::new(CONTROL), &error);
        let (listener, name) = socket::listen(dir, CONTROL, lend_inode).map_err(failed)?;
        let control = Control { _name: name, shared: Arc::default() };
        let shared = Arc::clone(&control.shared);
        let limits = Limits {
            heard: Slots::new(HEARD_MAX),
            requests: Slots::new(REQUESTS_MAX),
            ends: Slots::new(ENDS_MAX),
        };
        let hear =
            move || socket::take_clients(&listener, |client| admit(client, &shared, &limits));
        thread::Builder::new().name("varve-control".to_owned()).spawn(hear).map_err(failed)?;
        Ok(control)
    }

    /// Sets the session that serves now, and the service for its snapshots and transactions.
    pub(crate) fn serves(&self, pause: PauseHandle, views: Arc<dyn Answers>) {
        let mut shared = self.shared.lock();
        (shared.pause, shared.views) = (Some(pause), Some(views));
    }

    /// Sets the service for a store that has no mount.
    pub(crate) fn serves_store(&self, views: Arc<dyn Answers>) {
        self.shared.lock().views = Some(views);
    }

    /// The order for which the session was paused.
    pub(crate) fn take_order(&self) -> Option<UpgradeOrder> {
        let mut shared = self.shared.lock();
        (shared.pause, shared.views) = (None, None);
        shared.order.take()
    }

    /// The clients that wait for the report on the daemon's end. From now on no other client is accepted for it.
    pub(crate) fn take_end_waiters(&self) -> Vec<UnixStream> {
        let end_waiters = &mut self.shared.lock().end_waiters;
        end_waiters.are_taken = true;
        std::mem::take(&mut end_waiters.clients)
    }
}

/// Whether a client is still connected. REQUIRES: it has nothing more to send.
fn is_connected(client: &UnixStream) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let said = rustix::net::recv(client, &mut [0; 1], flags);
    said.is_ok_and(|(_, len)| len > 0) || said == Err(Errno::AGAIN)
}

/// Sends progress lines to `client`, if it asked for them. The daemon never waits for the client: it sends the next line only after the
/// client has confirmed the last one, so that the socket's buffer always has room for the answer.
fn tell(client: &UnixStream, is_wanted: bool) -> impl FnMut(Progress) {
    let mut told: Option<Instant> = None;
    move |Progress { phase, done, permille }| {
        let is_late = told.is_none_or(|told| told.elapsed() >= TOLD_EVERY);
        if is_wanted && is_late && (told.is_none() || has_heard(client)) {
            told = Some(Instant::now());
            let line = Report::At { phase: phase.to_owned(), done, permille }.line();
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let _ = rustix::net::send(client, line.as_bytes(), flags);
        }
    }
}

/// Whether the client has confirmed a line since the last call.
fn has_heard(client: &UnixStream) -> bool {
    let mut said = [0; 1];
    rustix::net::recv(client, &mut said, RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len == 1)
}

/// The limits on clients and requests.
#[derive(Clone)]
struct Limits {
    heard: Slots,
    requests: Slots,
    /// For commits and aborts, when `requests` has none left.
    ends: Slots,
}

impl Limits {
    /// A slot for `request`.
    fn slot_for(&self, request: &Request) -> Result<Slot> {
        use ViewRequest::{Abort, Commit};
        let is_end = matches!(request, Request::Views(Commit { .. } | Abort { .. }));
        let beside = || is_end.then(|| self.ends.take()).flatten();
        self.requests.take().or_else(beside).ok_or_else(|| {
            Error::failed(format!("the daemon is busy with {REQUESTS_MAX} requests"))
                .hint("try again later; `varve txn list` shows which transactions hold locks that others wait for")
        })
    }
}

/// Starts a thread that reads the request of one client and does it. If no thread can be started, the connection closes.
fn admit(mut client: UnixStream, shared: &Arc<Mutex<Shared>>, limits: &Limits) {
    // Each client has a slot only as long as its request is read.
    let heard = limits.heard.wait();
    let (shared, limits) = (Arc::clone(shared), limits.clone());
    let work = move || {
        let request = understand(&client, CLIENT_PATIENCE).inspect_err(|error| {
            log::warn!("{}", error.message());
        });
        drop(heard);
        match request.and_then(|request| Ok((limits.slot_for(&request)?, request))) {
            Ok((_slot, request)) => serve(client, request, &shared),
            Err(error) => answer(&mut client, &Report::of(&error)),
        }
    };
    if let Err(error) = thread::Builder::new().name("varve-shared".to_owned()).spawn(work) {
        log::warn!("cannot answer a request, as no thread starts: {error}");
    }
}

/// Does a client's request and reports to the client.
fn serve(mut client: UnixStream, request: Request, shared: &Mutex<Shared>) {
    let views = || views(shared);
    match request {
        Request::Views(request) => match views().and_then(|entered| {
            entered.0.admit(request.is_change())?;
            Ok(entered)
        }) {
            Ok((views, _admitted)) => match request {
                ViewRequest::Send(_) | ViewRequest::Receive => {
                    views.transfer(&request, &mut client);
                }
                _ => {
                    let done = views.answer(&request, &mut tell(&client, request.is_watched()));
                    answer(&mut client, &report(done));
                }
            },
            Err(error) => answer(&mut client, &Report::of(&error)),
        },
        Request::Redesign => {
            let done = views().and_then(|(views, _admitted)| views.redesign());
            answer(&mut client, &report(done));
        }
        Request::Server => {
            let done = views().and_then(|(views, _admitted)| views.server());
            answer(&mut client, &report(done));
        }
        Request::Upgrade { binary } => upgrade(client, binary, shared),
        Request::End => {
            let mut shared = shared.lock();
            match shared.views.as_ref().map_or(Ok(()), |views| views.promise_end()) {
                Ok(()) => shared.end_waiters.admit(client),
                Err(error) => answer(&mut client, &Report::of(&error)),
            }
        }
    }
}

fn report(done: Result<Value>) -> Report {
    done.map_or_else(|error| Report::of(&error), Report::Done)
}

/// Stores an order for the serving thread and pauses the session.
fn upgrade(mut client: UnixStream, binary: PathBuf, shared: &Mutex<Shared>) {
    let (pause, closed) = match prepare(&binary, shared) {
        Ok(prepared) => prepared,
        Err(error) => {
            log::warn!("not upgraded: {}", error.message());
            return answer(&mut client, &Report::of(&error));
        }
    };
    shared.lock().order = Some(UpgradeOrder { binary, client, _closed: closed });
    if let Err(error) = pause.pause() {
        let error = Error::failed(format!("cannot pause the mount: {error}"))
            .hint("try again, or unmount the store and mount it again");
        if let Some(order) = shared.lock().order.take() {
            order.refuse(&error);
        }
    }
}

/// The service of the session that serves now. The gate stays open as long as the caller holds the admission.
fn views(shared: &Mutex<Shared>) -> Result<(Arc<dyn Answers>, Option<Admitted>)> {
    let shared = shared.lock();
    let views = shared.views.as_ref().ok_or_else(being_upgraded)?;
    Ok((Arc::clone(views), views.enter()?))
}

/// Reads the request of a client that is allowed to ask. The client has `patience` to send it.
fn understand(client: &UnixStream, patience: Duration) -> Result<Request> {
    let failed = |reason: &dyn std::fmt::Display| {
        Error::failed(format!("the daemon cannot read the request: {reason}"))
            .hint("use the varve of the daemon's version, or `varve upgrade` to give the daemon this version")
    };
    let peer = peer_of(client).map_err(|error| failed(&error))?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Err(Error::failed("only root and the user who mounted the store may do this")
            .hint("run the command as one of them"));
    }
    client.set_write_timeout(Some(CLIENT_PATIENCE)).map_err(|error| failed(&error))?;
    let mut line = String::new();
    let mut reader = BufReader::new(InTime::new(client, patience).take(REQUEST_BYTES_MAX));
    reader.read_line(&mut line).map_err(|error| failed(&error))?;
    serde_json::from_str(&line).map_err(|error| failed(&error))
}

/// Checks everything that can be checked before the mount is paused, and closes the gate.
fn prepare(binary: &Path, shared: &Mutex<Shared>) -> Result<(PauseHandle, GateClosed)> {
    let serving = || {
        let (pause, views) = {
            let shared = shared.lock();
            (shared.pause.clone(), shared.views.clone())
        };
        match (pause, views) {
            (Some(pause), Some(views)) => Ok((pause, views)),
            // Says why there is nothing to pause.
            (None, Some(views)) => Err(views.leave().err().unwrap_or_else(being_upgraded)),
            _ => Err(being_upgraded()),
        }
    };
    serving()?.0.check().map_err(|error| {
        Error::failed(format!("this mount cannot be upgraded: {error}"))
            .hint("mount with `-o transport=dev` to upgrade without unmounting")
    })?;
    probe(binary)?;
    let (pause, views) = serving()?;
    let closed = views.leave()?;
    // Another upgrade may have failed meanwhile, and a new session may serve. With the gate closed that cannot happen any more.
    match serving() {
        Ok((_, still)) if Arc::ptr_eq(&views, &still) => Ok((pause, closed)),
        _ => Err(being_upgraded()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use varve_fs::ROLL_BACK_PHASES;

    use super::super::client::{ask_watching, connect};
    use super::*;
    use crate::target::Target;

    fn opened(dir: &Path) -> OwnedFd {
        std::fs::File::open(dir).unwrap().into()
    }

    #[test]
    fn stores_with_long_paths_have_an_address_too() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("x".repeat(200));
        std::fs::create_dir(&store).unwrap();
        for store in [dir.path(), &store] {
            let control = Control::listen(opened(store), &|| false).unwrap();
            let mut client = connect(store).unwrap();
            client.write_all(b"{\"upgrade\":{\"binary\":\"/bin/true\"}}\n").unwrap();
            let mut heard = String::new();
            client.read_to_string(&mut heard).unwrap();
            assert!(heard.contains("already"), "no session serves yet: {heard}");
            drop(control);
            assert!(!store.join(CONTROL).exists());
        }
    }

    /// A client that is stopped must not find the room for his answer taken by what he was told before.
    #[test]
    fn who_asked_to_be_told_how_far_it_is_hears_one_line_after_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, _name) = socket::listen(opened(dir.path()), CONTROL, &|| false).unwrap();
        let at = |done| Progress { phase: ROLL_BACK_PHASES[0], done, permille: None };
        let mut heard = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut client, _) = listener.accept().unwrap();
                let request = understand(&client, CLIENT_PATIENCE).unwrap();
                assert!(matches!(request, Request::Views(request) if request.is_watched()));
                for done in 0..3 {
                    tell(&client, false)(at(7));
                    tell(&client, true)(at(done));
                    varve_testkit::eventually("it is heard", || has_heard(&client));
                    assert!(!has_heard(&client));
                }
                answer(&mut client, &Report::Done(Value::Null));
            });
            let name = "before".to_owned();
            let request = ViewRequest::Rollback { name, dry_run: false, watched: true };
            let target = Target::of_store(dir.path());
            let hear = &mut |at: Progress| heard.push(at.done);
            ask_watching(&target, &Request::Views(request), hear).unwrap();
        });
        assert_eq!(heard, [0, 1, 2]);
    }

    /// One who was slow to say what he wants kept all others waiting.
    #[test]
    fn who_says_nothing_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let _control = Control::listen(opened(dir.path()), &|| false).unwrap();
        let silent = [0; HEARD_MAX - 1].map(|_| connect(dir.path()).unwrap());
        for mut half in &silent {
            half.write_all(b"{").unwrap();
        }
        let mut client = connect(dir.path()).unwrap();
        client.set_read_timeout(Some(varve_testkit::PATIENCE)).unwrap();
        client.write_all(b"\"redesign\"\n").unwrap();
        let mut heard = String::new();
        client.read_to_string(&mut heard).unwrap();
        assert!(heard.contains("already"), "no session serves yet: {heard}");
    }

    /// Who said a byte now and then was heard for as long as he did.
    #[test]
    fn a_request_is_said_in_time() {
        let (client, mut slow) = UnixStream::pair().unwrap();
        let drip = thread::spawn(move || {
            while slow.write_all(b" ").is_ok() {
                thread::sleep(Duration::from_millis(1));
            }
        });
        let error = understand(&client, Duration::from_millis(100)).unwrap_err();
        drop(client);
        drip.join().unwrap();
        let late = ["timed out", "temporarily unavailable"];
        assert!(late.iter().any(|late| error.message().contains(late)), "{error}");
    }
}
