//! The daemon's side of the control socket.
//!
//! 1. A thread takes one client after the other. Only root and the daemon's own user are heard.
//! 2. Each has a thread of its own, as one may be slow to say what it wants, or wait for what another has locked, and that for its
//!    commit; and an upgrade waits for those that are under way.
//! 3. The binary is asked whether it can take over (`--probe`); nothing has been stopped until then.
//! 4. Nobody works with views any more, until the mount is served again (`service::admission_gate`), and their mounts are taken away.
//! 5. The order is left for the serving thread and the session paused. Whoever serves next answers the client.

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
use crate::service::{Closed, ViewDesk, Working, being_upgraded};
use crate::slots::{Slot, Slots};
use crate::socket::{self, CONTROL, InTime, SocketName};
use crate::upgrade::probe::probe;

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
        let failed = |error: std::io::Error| Error::io("listen on", Path::new(CONTROL), &error);
        let (listener, name) = socket::listen(dir, CONTROL).map_err(failed)?;
        let control = Control { _name: name, desk: Arc::default() };
        let desk = Arc::clone(&control.desk);
        let hall = Hall {
            heard: Slots::new(HEARD_MAX),
            requests: Slots::new(REQUESTS_MAX),
            ends: Slots::new(ENDS_MAX),
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

/// Whether a client, who has nothing more to say, has not hung up.
fn is_connected(client: &UnixStream) -> bool {
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let said = rustix::net::recv(client, &mut [0; 1], flags);
    said.is_ok_and(|(_, len)| len > 0) || said == Err(Errno::AGAIN)
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

/// Slots for clients.
#[derive(Clone)]
struct Hall {
    heard: Slots,
    requests: Slots,
    /// For those who end transactions, beside those.
    ends: Slots,
}

impl Hall {
    /// A place for who asks for this.
    fn place_for(&self, request: &Request) -> Result<Slot> {
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
            let control = Control::listen(opened(store)).unwrap();
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
        let (listener, _name) = socket::listen(opened(dir.path()), CONTROL).unwrap();
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
