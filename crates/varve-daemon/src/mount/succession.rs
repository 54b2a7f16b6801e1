//! Serves a mount from its first request to its last, over any number of successors ([`crate::upgrade`]).
//!
//! ```text
//! Attached --run--> unmounted: close the store, end
//!    ^        |
//!    |        +---> paused for an order: sync, close the store, become the new program
//!    |                 | could not be synced         | could not be started
//!    +-----------------+<--- open the store again ---+
//! ```

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use varve::{Error, FileSystem, Result};
use varve_env::os::OsEnv;
use varve_fs::HandedOver;
use varve_fuse::{DEAD, Ended, Paused, Session, StopHandle};

use super::allocator;
use super::attached::{Attached, followed_options};
use super::client;
use super::options::Choices;
use super::settings::fs_options;
use super::signals::unmount_on_signals;
use crate::control::server::{Control, UpgradeOrder};
use crate::control::{Ready, Report, answer};
use crate::error;
use crate::kv::{DictionaryHost, Server};
use crate::server_address::ServerAddress;
use crate::service::ViewService;
use crate::upgrade::SUCCESSOR;
use crate::upgrade::handover_message::HandoverMessage;
use crate::upgrade::successor::{Handover, arguments, become_program, receive};

/// What a successor must know: the mount, and the arguments of the program.
#[derive(Clone, Serialize, Deserialize)]
struct MountFacts {
    ready: Ready,
    arguments: Vec<OsString>,
}

/// The running program's file, also if its name has changed.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Mounts `store`, or what the server at this address serves, on `dir` and serves it until it is unmounted or this process is told to end. Calls
/// `ready` from another thread when the mount answers.
pub fn serve(
    store: &Path,
    dir: &Path,
    choices: &Choices,
    ready: impl FnOnce(&Ready) + Send,
) -> Result<()> {
    allocator::limit_arenas();
    let address = ServerAddress::parse(store);
    choices.check_server(address.is_some())?;
    if let Some(address) = address {
        return client::serve(store, &address?, dir, choices, ready);
    }
    let attached = Attached::new(store, dir, choices)?;
    let facts = attached.ready();
    log::info!(
        "{} is mounted on {} by {}, requests over {}",
        facts.store.display(),
        facts.dir.display(),
        facts.method,
        attached.session.transport()
    );
    serve_on(attached, choices, ready)
}

/// Serves until it is unmounted or this process is told to end. Calls `ready` from another thread when the
/// mount answers.
fn serve_on(
    mut attached: Attached,
    choices: &Choices,
    ready: impl FnOnce(&Ready) + Send,
) -> Result<()> {
    allocator::keep_near(fs_options(choices, &attached.ready.dir).memory_budget_bytes);
    unmount_on_signals(attached.stop_handle(), attached.ready.dir.clone(), None)?;
    let directory = || attached.file_system.directory();
    let lend_inode = || attached.file_system.lend_inode();
    let control = directory()
        .and_then(|dir| Control::listen(dir, &lend_inode))
        .inspect_err(|error| log::warn!("this mount cannot be upgraded: {}", error.message()))
        .ok();
    let pairs = directory()
        .and_then(|dir| Server::listen(dir, &lend_inode))
        .inspect_err(|error| log::warn!("this mount serves no dictionaries: {}", error.message()))
        .ok();
    let serve_pairs = |of: Option<Arc<dyn DictionaryHost>>| {
        pairs.iter().for_each(|server| server.serves(of.clone()));
    };
    let facts = attached.ready.clone();
    let mut ready = Some(ready);
    loop {
        let service = ViewService::open(&attached, choices);
        serve_pairs(Some(Arc::<ViewService>::clone(&service)));
        if let Some(control) = &control {
            control.serves(attached.session.pause_handle(), Arc::<ViewService>::clone(&service));
        }
        let Attached { store, file_system, session, ready: own } = attached;
        let (first, facts) = (ready.take(), &facts);
        let ended = thread::scope(|scope| {
            scope.spawn(move || {
                if let Some(ready) = first
                    && answers(&facts.dir)
                {
                    ready(facts);
                }
            });
            session.run()
        });
        serve_pairs(None);
        let paused = match ended {
            Ok(Ended::Paused(paused)) => paused,
            ended => {
                service.close();
                let end_waiters = control.as_ref().map(Control::take_end_waiters);
                // Before the store is released: a process that waits for it listens on sockets of the same names.
                drop((control, pairs));
                let closed = file_system.close();
                log::info!("{} is closed", store.display());
                let ended = ended.map(drop).map_err(|error| error::not_served(&error)).and(closed);
                client::report_end(end_waiters.unwrap_or_default(), &ended);
                return ended;
            }
        };
        let order = control.as_ref().and_then(Control::take_order);
        let paused_mount = PausedMount { store, file_system, ready: own, paused };
        attached = match order {
            Some(order) => paused_mount.hand_over(order, choices)?,
            // The order was withdrawn.
            None => paused_mount.go_on(choices)?,
        };
    }
}

/// Waits until the mount on `dir` answers. False if it is gone; its end is reported elsewhere.
pub(super) fn answers(dir: &Path) -> bool {
    let Err(error) = std::fs::metadata(dir) else { return true };
    log::warn!("cannot examine {}: {error}", dir.display());
    Errno::from_io_error(&error).is_none_or(|errno| !DEAD.contains(&errno))
}

/// A mount whose session is paused.
struct PausedMount {
    store: PathBuf,
    file_system: FileSystem,
    ready: Ready,
    paused: Paused,
}

impl PausedMount {
    /// Resumes the session with the program that it had.
    fn go_on(self, choices: &Choices) -> Result<Attached> {
        let PausedMount { store, file_system, ready, paused } = self;
        let options = followed_options(&file_system, choices);
        let session = Session::resume(file_system.vfs(), paused, &options)
            .map_err(|error| error::not_served(&error))?;
        Ok(Attached { store, file_system, session, ready })
    }

    /// Becomes the program of `order`. Returns only if that fails.
    fn hand_over(self, order: UpgradeOrder, choices: &Choices) -> Result<Attached> {
        if let Err(error) = self.file_system.check_hand_over() {
            order.refuse(&error);
            return self.go_on(choices);
        }
        if let Err(error) = self.file_system.vfs().sync() {
            let error = Error::failed(format!("cannot sync the store: {error}"))
                .hint("the daemon continues; check the storage first");
            order.refuse(&error);
            return self.go_on(choices);
        }
        let PausedMount { store, file_system, ready, paused } = self;
        log::info!("becoming {}", order.binary.display());
        let handed_over = file_system.hand_over().inspect_err(|_| detach(&ready))?;
        let mut order = order;
        let failure = match handover(&ready, &paused, &handed_over, &mut order) {
            Ok(handover) => become_program(&order.binary, &arguments(SUCCESSOR), &handover),
            Err(error) => error,
        };
        let file_system = FileSystem::resume(&store, &fs_options(choices, &ready.dir), handed_over);
        let file_system = file_system.inspect_err(|_| detach(&ready))?;
        order.refuse(&failure.hint("the daemon continues with its old program"));
        PausedMount { store, file_system, ready, paused }.go_on(choices)
    }
}

/// All that the successor needs, as descriptors and bytes.
fn handover(
    ready: &Ready,
    paused: &Paused,
    handed_over: &HandedOver,
    order: &mut UpgradeOrder,
) -> Result<Handover> {
    let failed =
        |error: &dyn std::fmt::Display| Error::failed(format!("cannot hand over: {error}"));
    let lock = handed_over.lock.fd().ok_or_else(|| failed(&"the lock has no descriptor"))?;
    let facts = MountFacts { ready: ready.clone(), arguments: arguments(SUCCESSOR) };
    let facts = serde_json::to_vec(&facts).map_err(|error| failed(&error))?;
    let message =
        HandoverMessage { facts, session: paused.state(), files: handed_over.state.clone() };
    Ok(Handover {
        device: paused.descriptor().try_clone_to_owned().map_err(|error| failed(&error))?,
        lock: lock.try_clone_to_owned().map_err(|error| failed(&error))?,
        message,
        client: Some(order.client.try_clone().map_err(|error| failed(&error))?),
        program: Some(File::open(OWN_PROGRAM).map_err(|error| failed(&error))?),
    })
}

/// Takes over the mount that the previous program left on the standard input. `prepare` gets the store and returns the mount options. If
/// the takeover fails, the process becomes the previous program again.
pub fn take_over(prepare: impl FnOnce(&Path) -> Result<Choices>) -> Result<()> {
    allocator::limit_arenas();
    let handover = receive()?;
    let facts: MountFacts = serde_json::from_slice(&handover.message.facts).map_err(|error| {
        Error::failed(format!("the facts of the handover message cannot be read: {error}"))
    })?;
    let MountFacts { ready, arguments } = facts;
    // For the way back, if this program cannot take over.
    let spare = spare(&handover);
    let Handover { device, lock, message, client, .. } = handover;
    let resumed = prepare(&ready.store).and_then(|choices| {
        let lock = OsEnv::adopt_lock(lock);
        let handed_over = HandedOver { state: message.files, lock };
        let paused = Paused::from_parts(device, ready.dir.clone(), &message.session)
            .map_err(|error| Error::failed(error.to_string()))?;
        let options = fs_options(&choices, &ready.dir);
        let file_system = FileSystem::resume(&ready.store, &options, handed_over)?;
        let (store, ready) = (ready.store.clone(), ready.clone());
        Ok((PausedMount { store, file_system, ready, paused }, choices))
    });
    match resumed {
        Ok((paused_mount, choices)) => {
            drop(spare);
            log::info!("{} is served by a new program", ready.dir.display());
            serve_on(paused_mount.go_on(&choices)?, &choices, move |ready| tell(client, ready))
        }
        Err(error) => Err(back(spare, &arguments, client, &ready, error)),
    }
}

/// A copy of `handover` with which the process can become the previous program.
fn spare(handover: &Handover) -> Option<(File, Handover)> {
    let program = handover.program.as_ref()?.try_clone().ok()?;
    let again = Handover {
        device: handover.device.try_clone().ok()?,
        lock: handover.lock.try_clone().ok()?,
        message: handover.message.clone(),
        client: None,
        program: None,
    };
    Some((program, again))
}

/// Becomes the previous program. Returns only if that fails; the mount is detached then, so that no program waits on it.
fn back(
    spare: Option<(File, Handover)>,
    arguments: &[OsString],
    client: Option<UnixStream>,
    ready: &Ready,
    error: Error,
) -> Error {
    let error = Error::failed(format!("the new program cannot take over: {}", error.message()))
        .hint("`varve status` shows which program serves the mount now");
    log::error!("{}", error.message());
    if let Some(mut client) = client {
        answer(&mut client, &Report::of(&error));
    }
    let Some((program, handover)) = spare else {
        detach(ready);
        return error;
    };
    let path = format!("/proc/self/fd/{}", program.as_raw_fd());
    let failure = become_program(Path::new(&path), arguments, &handover);
    log::error!("the previous program cannot take over either: {}", failure.message());
    detach(ready);
    error
}

/// Reports to the client that the upgrade is done.
fn tell(client: Option<UnixStream>, ready: &Ready) {
    if let Some(mut client) = client {
        answer(&mut client, &Report::Ready(ready.clone()));
    }
}

/// Removes a mount that no process will serve.
fn detach(ready: &Ready) {
    StopHandle::on(ready.dir.clone()).give_up();
}
