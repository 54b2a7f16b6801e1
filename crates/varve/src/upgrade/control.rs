//! The daemon's ear: a socket in the store on which `varve upgrade` asks for a successor, and others about views and tables.
//!
//! ```text
//! client: {"upgrade": {"binary": PATH}} LF  -->  daemon
//! client: {"views": ...} LF              -->  daemon
//! client: "redesign" LF                  -->  daemon
//! client: "end" LF                       -->  daemon
//! client <--  {"ready": ...} LF  or  {"failed": ...} LF      by the daemon, or by its successor
//! client <--  {"done": ...} LF  or  {"failed": ...} LF       if it is about views or a step of a redesign; streams: `transfer.rs`
//! client <--  {"done": null} LF, then the same or {"failed": ...} LF      at once, and when the daemon has ended: who asked for its end
//! client <--  {"at": ...} LF                                 before that, if he has asked to be told how far it is; he says LF to each
//! ```
//!
//! 1. A thread takes one client after the other. Only root and the daemon's own user are heard.
//! 2. Each has a thread of its own, as one may be slow to say what it wants, or wait for what another has locked, and that for its
//!    commit; and an upgrade waits for those that are under way.
//! 3. The binary is asked whether it can take over (`--probe`); nothing has been stopped until then.
//! 4. Nobody works with views any more, until the mount is served again (`mounting::door`), and their mounts are taken away.
//! 5. The order is left for the serving thread and the session paused. Whoever serves next answers the client.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde_json::Value;
use varve_env::os::peer::peer_of;
use varve_fs::ROLL_BACK_PHASES;
use varve_fs::fsck::Progress;
use varve_fuse::PauseHandle;

use super::request::Request;
use super::{Abilities, PROBE, successor};
use crate::mounting::{Closed, Report, ViewDesk, Working, being_upgraded};
use crate::socket::{InTime, Places, SocketName, Taken};
use crate::views::{Asked, ViewRequest};
use crate::{Error, Result, socket};

/// Name of the socket within a store.
const CONTROL_NAME: &str = "control";
/// The longest request that is read.
const REQUEST_BYTES_MAX: u64 = 32 << 10;
/// Clients that say what they want at once.
const HEARD_MAX: usize = 64;
/// Requests that are worked on at once. So many wait only for what others have locked.
const REQUESTS_MAX: usize = 256;
/// Transactions that are ended beside those, as what the others wait for.
const ENDS_MAX: usize = 32;
/// Clients that wait to be told how the daemon ends.
const WITNESSES_MAX: usize = 64;
/// How long a client may take to say what it wants, and to hear.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);
/// How long a binary may take to say whether it can take over.
const PROBE_PATIENCE: Duration = Duration::from_secs(10);
const PROBE_POLL: Duration = Duration::from_millis(5);
/// How often a client is told how far his request is.
const TOLD_EVERY: Duration = Duration::from_millis(100);

/// A binary that is to take over, and who asked.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) binary: PathBuf,
    pub(crate) client: UnixStream,
    /// Until the order is refused.
    _nobody_works: Closed,
}

impl Order {
    /// Tells the client why nothing has changed.
    pub(crate) fn refuse(mut self, error: &Error) {
        log::warn!("not upgraded: {}", error.message());
        answer(&mut self.client, &Report::of(error));
    }
}

/// Writes one line; a client that has gone needs none.
pub(crate) fn answer(client: &mut UnixStream, report: &Report) {
    drop(client.write_all(report.line().as_bytes()));
}

/// The socket of a mount and what was asked on it. Removed when dropped.
pub(crate) struct Control {
    _name: SocketName,
    desk: Arc<Mutex<Desk>>,
}

/// Between the thread that hears and the one that serves.
#[derive(Default)]
struct Desk {
    /// Of the session that serves now.
    pause: Option<PauseHandle>,
    views: Option<Arc<ViewDesk>>,
    order: Option<Order>,
    witnesses: Witnesses,
}

/// Who is told how the daemon ends.
#[derive(Default)]
struct Witnesses {
    clients: Vec<UnixStream>,
    /// They have been taken: nobody who comes now would be told.
    are_taken: bool,
}

impl Witnesses {
    /// Says to `client` that it will be told, and keeps it.
    fn admit(&mut self, mut client: UnixStream) {
        self.clients.retain(is_connected);
        if self.are_taken || self.clients.len() >= WITNESSES_MAX {
            let error = Error::failed("the daemon tells nobody else how it ends");
            return answer(&mut client, &Report::of(&error.hint("wait until the store is free")));
        }
        answer(&mut client, &Report::Done(Value::Null));
        self.clients.push(client);
    }
}

impl Control {
    /// Listens in `dir`, the directory of a store that is locked by this process.
    pub(crate) fn listen(dir: OwnedFd) -> Result<Control> {
        let failed =
            |error: std::io::Error| Error::io("listen on", Path::new(CONTROL_NAME), &error);
        let (listener, name) = socket::listen(dir, CONTROL_NAME).map_err(failed)?;
        let control = Control { _name: name, desk: Arc::default() };
        let desk = Arc::clone(&control.desk);
        let hall = Hall {
            heard: Places::new(HEARD_MAX),
            requests: Places::new(REQUESTS_MAX),
            ends: Places::new(ENDS_MAX),
        };
        let hear = move || socket::take_clients(&listener, |client| admit(client, &desk, &hall));
        thread::Builder::new().name("varve-control".to_owned()).spawn(hear).map_err(failed)?;
        Ok(control)
    }

    /// Says which session serves now, and who knows of its views.
    pub(crate) fn serves(&self, pause: PauseHandle, views: Arc<ViewDesk>) {
        let mut desk = self.desk.lock();
        (desk.pause, desk.views) = (Some(pause), Some(views));
    }

    /// The order for which the session was paused.
    pub(crate) fn take_order(&self) -> Option<Order> {
        let mut desk = self.desk.lock();
        (desk.pause, desk.views) = (None, None);
        desk.order.take()
    }

    /// Those who asked to be told how the daemon ends. Nobody else is from now on.
    pub(crate) fn take_witnesses(&self) -> Vec<UnixStream> {
        let witnesses = &mut self.desk.lock().witnesses;
        witnesses.are_taken = true;
        std::mem::take(&mut witnesses.clients)
    }
}

/// What a daemon has promised: to tell how it ends.
pub(crate) struct End {
    daemon: BufReader<UnixStream>,
    line: Vec<u8>,
}

impl End {
    /// Asks the daemon of `asked`; `None` if none answers, or it is of an earlier version.
    pub(crate) fn ask(asked: &Asked) -> Option<End> {
        let reached = connect(&asked.store);
        let unheard = |error| Error::io("ask", &asked.store, &error);
        let mut daemon = asked.answered_by(reached, unheard).ok()?;
        let mut line = serde_json::to_string(&Request::End).ok()?;
        line.push('\n');
        daemon.write_all(line.as_bytes()).ok()?;
        let mut end = End { daemon: BufReader::new(daemon), line: Vec::new() };
        end.hear(CLIENT_PATIENCE)?.ok()?;
        Some(end)
    }

    /// What it says within `patience`; an error also if it has hung up and said nothing.
    pub(crate) fn hear(&mut self, patience: Duration) -> Option<Result<()>> {
        let read = self.daemon.get_ref().set_read_timeout(Some(patience));
        match read.and_then(|()| self.daemon.read_until(b'\n', &mut self.line)) {
            Err(error) if is_timeout(&error) => return None,
            Ok(_) | Err(_) => {}
        }
        let report = serde_json::from_slice::<Report>(&std::mem::take(&mut self.line));
        let silent =
            |_| Err(Error::failed("it ended without closing the store, as when it is killed"));
        Some(report.map_or_else(silent, |report| report.into_value().map(drop)))
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Whether a client, who has nothing more to say, has not hung up.
fn is_connected(client: &UnixStream) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let said = rustix::net::recv(client, &mut [0; 1], flags);
    said.is_ok_and(|(_, len)| len > 0) || said == Err(Errno::AGAIN)
}

/// Connects to the daemon that has the store `store` open.
pub(crate) fn connect(store: &Path) -> std::io::Result<UnixStream> {
    socket::connect(store, CONTROL_NAME)
}

/// Whether a daemon that has the store `store` open takes clients: none does before it lets go of it. REQUIRES: somebody has it open.
pub(crate) fn listens(store: &Path) -> bool {
    std::fs::symlink_metadata(store.join(CONTROL_NAME)).is_ok()
}

/// Has the daemon that has the store open do `request`; its answer is a JSON value.
pub(crate) fn ask(asked: &Asked, request: &Request) -> Result<Value> {
    ask_watching(asked, request, &mut |_| ())
}

/// The same, where a daemon may tell how far it is.
pub(crate) fn ask_watching(
    asked: &Asked,
    request: &Request,
    progress: &mut dyn FnMut(Progress),
) -> Result<Value> {
    let lost = |error: std::io::Error| {
        let hint = match request {
            Request::Views(ViewRequest::Commit { .. }) => {
                "the transaction is committed as a whole or not at all: if the daemon is gone, mount again, and `varve txn \
                 list` names it if it is not committed (a serializable one has ended either way)"
            }
            _ => "`varve status` tells whether it runs; its log is varve.log in the store",
        };
        let store = asked.store.display();
        Error::failed(format!("the daemon of {store} does not answer: {error}")).hint(hint)
    };
    let mut daemon = asked.answered_by(connect(&asked.store), lost)?;
    // No matter how long it takes, as a large rollback does: a daemon that has gone has hung up.
    let mut line = serde_json::to_string(request)
        .map_err(|error| Error::usage(format!("the request cannot be sent: {error}")))?;
    line.push('\n');
    // A daemon that does not hear us says why before it hangs up.
    drop(daemon.write_all(line.as_bytes()));
    let (mut daemon, mut answer) = (BufReader::new(daemon), String::new());
    loop {
        answer.clear();
        daemon.read_line(&mut answer).map_err(lost)?;
        match serde_json::from_str::<Report>(&answer) {
            Ok(Report::At { phase, done, permille }) => {
                let known = ROLL_BACK_PHASES.into_iter().find(|known| *known == phase);
                known.into_iter().for_each(|phase| progress(Progress { phase, done, permille }));
                // One that is gone is noticed when there is no answer.
                drop(daemon.get_mut().write_all(b"\n"));
            }
            Ok(report) => return report.into_value(),
            Err(_) => return Err(lost(std::io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

/// Tells `client`, if he wants that, now and then how far it is. Nobody waits for him: only once he says that he has heard the last line
/// he gets another, so that there is room for his answer.
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

/// Whether a client has said so since this was asked last.
fn has_heard(client: &UnixStream) -> bool {
    let mut said = [0; 1];
    rustix::net::recv(client, &mut said, RecvFlags::DONTWAIT).is_ok_and(|(_, len)| len == 1)
}

/// Places for clients.
#[derive(Clone)]
struct Hall {
    heard: Places,
    requests: Places,
    /// For those who end transactions, beside those.
    ends: Places,
}

impl Hall {
    /// A place for who asks for this.
    fn place_for(&self, request: &Request) -> Result<Taken> {
        use ViewRequest::{Abort, Commit};
        let is_end = matches!(request, Request::Views(Commit { .. } | Abort { .. }));
        let beside = || is_end.then(|| self.ends.take()).flatten();
        self.requests.take().or_else(beside).ok_or_else(|| {
            Error::failed(format!("{REQUESTS_MAX} requests are being worked on"))
                .hint("try again when some are done, as those that wait for a transaction's locks")
        })
    }
}

/// Has a thread hear one client, and do what he asks. Without one he is hung up on.
fn admit(mut client: UnixStream, desk: &Arc<Mutex<Desk>>, hall: &Hall) {
    // None of those before takes it for long.
    let heard = hall.heard.wait();
    let (desk, hall) = (Arc::clone(desk), hall.clone());
    let work = move || {
        let request = understand(&client, CLIENT_PATIENCE).inspect_err(|error| {
            log::warn!("{}", error.message());
        });
        drop(heard);
        match request.and_then(|request| Ok((hall.place_for(&request)?, request))) {
            Ok((_place, request)) => serve(client, request, &desk),
            Err(error) => answer(&mut client, &Report::of(&error)),
        }
    };
    if let Err(error) = thread::Builder::new().name("varve-desk".to_owned()).spawn(work) {
        log::warn!("a request is not answered: {error}");
    }
}

/// Does what a client asks.
fn serve(mut client: UnixStream, request: Request, desk: &Mutex<Desk>) {
    let views = || views(desk);
    match request {
        Request::Views(request) => match views().and_then(|entered| {
            entered.0.admit(request.is_change())?;
            Ok(entered)
        }) {
            Ok((views, _working)) => match request {
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
            let done = views().and_then(|(views, _working)| views.redesign());
            answer(&mut client, &report(done));
        }
        Request::Upgrade { binary } => upgrade(client, binary, desk),
        Request::End => desk.lock().witnesses.admit(client),
    }
}

fn report(done: Result<Value>) -> Report {
    done.map_or_else(|error| Report::of(&error), Report::Done)
}

/// Leaves an order for the thread that serves, and has it look.
fn upgrade(mut client: UnixStream, binary: PathBuf, desk: &Mutex<Desk>) {
    let (pause, nobody_works) = match prepare(&binary, desk) {
        Ok(prepared) => prepared,
        Err(error) => {
            log::warn!("not upgraded: {}", error.message());
            return answer(&mut client, &Report::of(&error));
        }
    };
    desk.lock().order = Some(Order { binary, client, _nobody_works: nobody_works });
    if let Err(error) = pause.pause() {
        let error = Error::failed(format!("the mount cannot be paused: {error}"))
            .hint("try again, or unmount and mount again");
        if let Some(order) = desk.lock().order.take() {
            order.refuse(&error);
        }
    }
}

/// Who knows of the views of the session that serves now, who goes on as long as the caller is at work.
fn views(desk: &Mutex<Desk>) -> Result<(Arc<ViewDesk>, Working)> {
    let desk = desk.lock();
    let views = desk.views.as_ref().ok_or_else(being_upgraded)?;
    Ok((Arc::clone(views), views.enter()?))
}

/// What an allowed client wants, if he says it within `patience`.
fn understand(client: &UnixStream, patience: Duration) -> Result<Request> {
    let failed = |reason: &dyn std::fmt::Display| {
        Error::failed(format!("a request is not heard: {reason}"))
            .hint("ask with a varve of the daemon's version; `varve upgrade` makes it the daemon's")
    };
    let peer = peer_of(client).map_err(|error| failed(&error))?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Err(Error::failed("only root and the user who mounted may do this")
            .hint("run it as one of them"));
    }
    client.set_write_timeout(Some(CLIENT_PATIENCE)).map_err(|error| failed(&error))?;
    let mut line = String::new();
    let mut reader = BufReader::new(InTime::new(client, patience).take(REQUEST_BYTES_MAX));
    reader.read_line(&mut line).map_err(|error| failed(&error))?;
    serde_json::from_str(&line).map_err(|error| failed(&error))
}

/// Everything that may be wrong before the mount is paused. From then on nobody works with views.
fn prepare(binary: &Path, desk: &Mutex<Desk>) -> Result<(PauseHandle, Closed)> {
    let serving = || {
        let desk = desk.lock();
        desk.pause.clone().zip(desk.views.clone()).ok_or_else(being_upgraded)
    };
    serving()?.0.check().map_err(|error| {
        Error::failed(format!("this mount cannot be upgraded: {error}"))
            .hint("mount with `-o transport=dev` to upgrade without unmounting")
    })?;
    probe(binary)?;
    let (pause, views) = serving()?;
    let nobody_works = views.leave()?;
    // Another upgrade may have failed meanwhile, and a new session serve. From now on none does.
    match serving() {
        Ok((_, still)) if Arc::ptr_eq(&views, &still) => Ok((pause, nobody_works)),
        _ => Err(being_upgraded()),
    }
}

/// Asks `binary` whether it could be this process with this command line and take this baton.
fn probe(binary: &Path) -> Result<()> {
    let refused = |reason: String| {
        let text = format!("{} cannot take the mount over: {reason}", binary.display());
        Error::failed(text)
            .hint("give a varve of this version or newer, or unmount and mount again")
    };
    let mut child = Command::new(binary)
        .args(successor::arguments(PROBE))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| refused(error.to_string()))?;
    let mut waited = Duration::ZERO;
    while child.try_wait().map_err(|error| refused(error.to_string()))?.is_none() {
        if waited > PROBE_PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return Err(refused("it does not answer".to_owned()));
        }
        thread::sleep(PROBE_POLL);
        waited += PROBE_POLL;
    }
    let output = child.wait_with_output().map_err(|error| refused(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let first = said.lines().next().unwrap_or("it says nothing").to_owned();
        return Err(refused(format!("{} ({first})", output.status)));
    }
    match serde_json::from_slice(&output.stdout) {
        Ok(abilities) if Abilities::suffice(&abilities) => Ok(()),
        Ok(other) => {
            let own = Abilities::of_this_version();
            Err(refused(format!("it has {other}; this daemon has {own}")))
        }
        Err(_) => Err(refused("it is no varve".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(dir: &Path) -> OwnedFd {
        std::fs::File::open(dir).unwrap().into()
    }

    #[test]
    fn stores_with_long_paths_have_an_address_too() {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("x".repeat(200));
        std::fs::create_dir(&store).unwrap();
        for store in [dir.path(), &store] {
            let control = Control::listen(opened(store)).unwrap();
            let mut client = connect(store).unwrap();
            client.write_all(b"{\"upgrade\":{\"binary\":\"/bin/true\"}}\n").unwrap();
            let mut heard = String::new();
            client.read_to_string(&mut heard).unwrap();
            assert!(heard.contains("already"), "no session serves yet: {heard}");
            drop(control);
            assert!(!store.join(CONTROL_NAME).exists());
        }
    }

    /// A client that is stopped must not find the room for his answer taken by what he was told before.
    #[test]
    fn who_asked_to_be_told_how_far_it_is_hears_one_line_after_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, _name) = socket::listen(opened(dir.path()), CONTROL_NAME).unwrap();
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
            let asked = Asked::of_store(dir.path());
            let hear = &mut |at: Progress| heard.push(at.done);
            ask_watching(&asked, &Request::Views(request), hear).unwrap();
        });
        assert_eq!(heard, [0, 1, 2]);
    }

    /// Who asked for a commit of a daemon that died meanwhile was not told whether it may have happened.
    #[test]
    fn who_is_not_answered_is_told_what_may_have_happened() {
        let dir = tempfile::tempdir().unwrap();
        let (listener, _name) = socket::listen(opened(dir.path()), CONTROL_NAME).unwrap();
        let id = || "17".to_owned();
        for (request, next) in [
            (ViewRequest::Commit { id: id() }, "as a whole or not at all"),
            (ViewRequest::Abort { id: id() }, "`varve status`"),
        ] {
            let error = thread::scope(|scope| {
                scope.spawn(|| drop(listener.accept().unwrap()));
                ask(&Asked::of_store(dir.path()), &Request::Views(request)).unwrap_err()
            });
            assert!(error.message().contains("does not answer"), "{error}");
            assert!(error.next_step().is_some_and(|hint| hint.contains(next)), "{error}");
        }
    }

    #[test]
    fn what_is_no_varve_is_refused() {
        for (binary, reason) in [
            ("/bin/true", "no varve"),
            ("/bin/false", "exit status: 1"),
            ("/nonexistent", "No such"),
        ] {
            let error = probe(Path::new(binary)).unwrap_err();
            assert!(error.message().contains(reason), "{error}");
        }
    }

    /// One who was slow to say what he wants kept all others waiting.
    #[test]
    fn who_says_nothing_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let _control = Control::listen(opened(dir.path())).unwrap();
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
