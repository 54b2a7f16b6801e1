//! Mounting: serve a store on a directory until it is unmounted.
//!
//! In the foreground ([`serve`]):
//!
//! 1. Check the store: its superblock, and that nobody has it open. Take its lock: of two who mount it on one directory at
//!    once the other must not touch the mount of the first.
//! 2. Attach a FUSE connection to the directory. This comes before the store is opened because a private
//!    namespace can only be entered while the process has a single thread.
//! 3. Open the store; if that fails take the mount away again.
//! 4. Serve. A thread of its own waits until the mount answers and then calls `ready`; another waits for
//!    SIGTERM, SIGINT and SIGHUP, which unmount.
//! 5. Unmounted: close the store, which syncs it and releases its lock. Or, asked to on the control socket,
//!    become another program that goes on ([`crate::upgrade`], `succession`).
//!
//! [`background`] runs the same in a process of its own.

mod allocator;
mod attach;
mod background;
mod door;
mod find;
mod follow;
mod idle;
mod options;
mod report;
mod succession;
mod transact;
mod turns;
mod umount;
mod views;

use std::path::{Path, PathBuf};
use std::thread;

use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use varve_fs::{MountOptions as FsOptions, ViewKind};
use varve_fuse::{
    IdlePoll, MountMethod, MountOptions, Mounted, Session, SessionOptions, StopHandle, Transport,
    UnmountMode, find_mounts,
};
use varve_types::InodeId;

pub use background::{daemon, start_in_background};
pub(crate) use door::{Closed, Working, being_upgraded};
pub use find::find_mount;
pub(crate) use find::{not_on_mount, open_on_mount, whole_mounts, within_mount};
pub use options::{Choices, memory};
pub(crate) use report::Report;
pub use succession::take_over;
pub use umount::{Unmounted, unmount_and_wait};
pub(crate) use views::ViewDesk;

use crate::passing::is_ignored;
use crate::status::{ask_daemon, ask_session};
use crate::store::{self, FileSystem};
use crate::{Error, Result};

/// With more descriptors nothing gets faster.
const OPEN_FILES_MAX: usize = 4096;
/// With fewer nothing works.
const OPEN_FILES_MIN: usize = 16;

/// A mount that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The store.
    #[serde(with = "varve_engine::paths")]
    pub store: PathBuf,
    /// Where it is mounted.
    #[serde(with = "varve_engine::paths")]
    pub dir: PathBuf,
    /// The process that serves it.
    pub pid: u32,
    /// How it was mounted.
    pub method: String,
    /// Whether only this process and its children see the mount.
    pub is_private: bool,
    /// The methods that were tried before, each with its reason.
    pub refusals: Vec<String>,
}

/// A mount that is attached and not yet served.
pub struct Attached {
    store: PathBuf,
    file_system: FileSystem,
    session: Session,
    ready: Ready,
}

impl Attached {
    /// Opens the store `store` and attaches it to `dir`.
    pub fn new(store: &Path, dir: &Path, choices: &Choices) -> Result<Attached> {
        store::superblock(store)?;
        store::require_free(store)?;
        let store = store.canonicalize().map_err(|error| Error::io("find", store, &error))?;
        refuse_nesting(&store, dir)?;
        let lock = FileSystem::lock(&store)?;
        let mounted = varve_fuse::mount(dir, &mount_options(&store, choices))?;
        let ready = describe(&store, &mounted);
        if mounted.is_for_root_alone() {
            log::info!("{} is for root alone: no permissions are checked", ready.dir.display());
        }
        let stop = mounted.stop_handle();
        let options = fs_options(choices, &ready.dir);
        let opened = FileSystem::open_locked(&store, &options, lock);
        let file_system = match opened.and_then(|opened| with_root(opened, &store)) {
            Ok(file_system) => file_system,
            Err(error) => {
                drop(mounted);
                stop.give_up();
                return Err(error);
            }
        };
        let session = match Session::new(file_system.vfs(), mounted, &session_options(choices)) {
            Ok(session) => session,
            Err(error) => {
                file_system.close()?;
                return Err(error.into());
            }
        };
        Ok(Attached { store, file_system, session, ready })
    }

    /// How it is mounted.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Ends [`Attached::serve`] from another thread.
    pub fn stop_handle(&self) -> StopHandle {
        self.session.stop_handle()
    }

    /// Serves until it is unmounted, then closes the store.
    pub fn serve(self) -> Result<()> {
        let served = self.session.run().map(drop);
        let closed = self.file_system.close();
        log::info!("{} is closed", self.store.display());
        served?;
        closed
    }
}

/// A file system that can show its root directory.
fn with_root(file_system: FileSystem, store: &Path) -> Result<FileSystem> {
    let Err(error) = file_system.vfs().getattr(InodeId::ROOT) else { return Ok(file_system) };
    drop(file_system.close());
    let (store, error) = (store.display(), Error::from(error));
    Err(Error::failed(format!("the root directory of {store} cannot be read: {}", error.message()))
        .hint(format!("`varve fsck {store}` tells what is damaged")))
}

/// Mounts `store` on `dir` and serves it until it is unmounted or this process is told to end. Calls
/// `ready` from another thread when the mount answers.
pub fn serve(
    store: &Path,
    dir: &Path,
    choices: &Choices,
    ready: impl FnOnce(&Ready) + Send,
) -> Result<()> {
    allocator::limit_arenas();
    let attached = Attached::new(store, dir, choices)?;
    let facts = attached.ready();
    log::info!(
        "{} is mounted on {} by {}, requests over {}",
        facts.store.display(),
        facts.dir.display(),
        facts.method,
        attached.session.transport()
    );
    succession::serve_on(attached, choices, ready)
}

/// Gives the mount on `dir`, and the mounts of views within it, the flags among `choices`, as `mount -o remount` asks; what
/// the daemon itself was told when it began stays.
pub fn remount(dir: &Path, choices: &Choices) -> Result<()> {
    let look = || {
        find_mounts().map_err(|error| Error::io("read", Path::new("/proc/self/mountinfo"), &error))
    };
    let mounts = look()?;
    let resolved = dir.canonicalize().map_err(|error| Error::io("find", dir, &error))?;
    let Some(mount) = mounts.iter().rfind(|mount| mount.dir == resolved) else {
        return Err(Error::failed(format!("no Varve is mounted on {}", dir.display()))
            .hint("`findmnt -t fuse.varve` lists what is mounted"));
    };
    let options = mount_options(Path::new(&mount.source), choices);
    let began_read_only = || ask_daemon(&mount.dir).is_ok_and(|told| told["read_only"] == true);
    if !options.read_only && began_read_only() {
        let text =
            format!("{} was mounted with `ro`, and its daemon changes nothing", dir.display());
        return Err(Error::failed(text).hint(mount_again(&mount.dir)));
    }
    varve_fuse::remount(mount, &options)?;
    // Views that come from now on have these flags, those that have come until now the ones before.
    for (name, view) in views::views_of(mount, &look()?) {
        let read_only = options.read_only || name.kind == ViewKind::Snapshot;
        let options = MountOptions { read_only, ..options.clone() };
        varve_fuse::remount(view, &options).map_err(|error| {
            Error::failed(format!("{} is remounted, and a view is not: {error}", dir.display()))
                .hint("end the programs that write to it, and remount again")
        })?;
    }
    Ok(())
}

/// What the daemon of a mount was told when it began, as far as it says so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Began {
    transport: Option<Transport>,
    threads: Option<u64>,
    memory_bytes: Option<u64>,
}

impl Began {
    /// That of the mount on `dir`.
    pub fn of(dir: &Path) -> Began {
        let (session, daemon) = (ask_session(dir), ask_daemon(dir));
        let told = session.as_ref().ok().and_then(|told| told["transport"].as_str());
        let known = [Transport::Dev, Transport::Uring];
        Began {
            transport: known.into_iter().find(|known| Some(&*known.to_string()) == told),
            threads: session.as_ref().ok().and_then(|told| told["threads"].as_u64()),
            memory_bytes: daemon.ok().and_then(|told| told["memory_budget_bytes"].as_u64()),
        }
    }

    /// Whether one option says what is so already.
    pub fn is_so(&self, option: &Choices) -> bool {
        let threads = option.threads.map(|threads| threads.get() as u64);
        let same = |asked: Option<u64>, is: Option<u64>| asked.is_none() || asked == is;
        let asks = option.transport.is_some() || threads.is_some() || option.memory_bytes.is_some();
        asks && (option.transport.is_none() || option.transport == self.transport)
            && same(threads, self.threads)
            && same(option.memory_bytes, self.memory_bytes)
    }
}

/// How what was mounted with `ro` on `dir` can be changed.
fn mount_again(dir: &Path) -> String {
    format!("`varve umount {}`, and mount it again without `ro`", dir.display())
}

/// SIGTERM, SIGINT and, unless whoever started this ignores it (nohup), SIGHUP unmount; if programs still use the mount it goes when they are done, and a second
/// signal does not wait for them.
fn unmount_on_signals(stop: StopHandle, dir: PathBuf) -> Result<()> {
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut signals = Signals::new([SIGTERM, SIGINT].into_iter().chain(hang_up))
        .map_err(|error| Error::machine("handle signals", error))?;
    let wait = move || {
        let mut is_first = true;
        for signal in signals.forever() {
            log::info!("signal {signal}: unmounting");
            if !std::mem::take(&mut is_first) {
                // Of what is detached, but held, only its connection can be got at.
                stop.give_up();
                continue;
            }
            let plain = UnmountMode::Plain;
            views::unmount_below(&dir, plain).unwrap_or_else(|error| log::warn!("{error}"));
            if stop.stop(plain).is_err() {
                log::warn!("the mount is in use and goes when the last program is done");
                stop.stop(UnmountMode::Lazy).unwrap_or_else(|error| log::warn!("{error}"));
            }
        }
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(wait)
        .map(drop)
        .map_err(|error| Error::machine("start a thread", error))
}

/// A store below its own mount point could no longer be reached, and a mount point within a store would be
/// taken for a part of it.
fn refuse_nesting(store: &Path, dir: &Path) -> Result<()> {
    // A directory that cannot be found is refused by the mount itself, with its reason.
    let Ok(dir) = dir.canonicalize() else { return Ok(()) };
    if store.starts_with(&dir) || dir.starts_with(store) {
        let (store, dir) = (store.display(), dir.display());
        return Err(Error::failed(format!("{dir} and the store {store} lie within one another"))
            .hint("mount on a directory beside the store"));
    }
    Ok(())
}

fn mount_options(store: &Path, choices: &Choices) -> MountOptions {
    let defaults = MountOptions::new(store);
    let methods = MountMethod::ALL.into_iter();
    MountOptions {
        read_only: choices.read_only,
        allow_other: choices.allow_other.unwrap_or(defaults.allow_other),
        default_permissions: choices.default_permissions,
        no_suid: choices.no_suid,
        no_dev: choices.no_dev,
        no_exec: choices.no_exec,
        no_symfollow: choices.no_symfollow,
        synchronous: choices.synchronous,
        methods: methods
            .filter(|method| *method != MountMethod::Namespace || !choices.no_private)
            .collect(),
        ..defaults
    }
}

fn session_options(choices: &Choices) -> SessionOptions {
    SessionOptions {
        transport: choices.transport,
        threads: choices.threads,
        passthrough: !choices.no_passthrough,
        acl: !choices.no_acl,
        sync_writes: choices.synchronous,
        sync_dirs: choices.synchronous || choices.synchronous_dirs,
        idle_poll: match choices.idle_poll {
            None => IdlePoll::Auto,
            Some(true) => IdlePoll::Always,
            Some(false) => IdlePoll::Never,
        },
        give_way: !choices.no_give_way,
        ..SessionOptions::default()
    }
}

/// Descriptors that tables and objects may take: half of what the process may have, after asking for all the
/// machine grants. The rest is for the connection, logs, and what operations hold for a moment.
fn open_files_max() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let granted = match rustix::process::setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    let granted = granted.and_then(|granted| usize::try_from(granted).ok());
    (granted.unwrap_or(usize::MAX) / 2).clamp(OPEN_FILES_MIN, OPEN_FILES_MAX)
}

fn fs_options(choices: &Choices, dir: &Path) -> FsOptions {
    let defaults = FsOptions::default();
    let memory_budget_bytes = choices
        .memory_bytes
        .map_or(defaults.memory_budget_bytes, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    FsOptions {
        read_only: choices.read_only,
        atime: choices.atime,
        dir_atime: !choices.no_dir_atime,
        acl: !choices.no_acl,
        memory_budget_bytes,
        passthrough: !choices.no_passthrough,
        new_files: choices.new_files,
        open_files_max: open_files_max(),
        mount_point: Some(dir.to_path_buf()),
        ..defaults
    }
}

fn describe(store: &Path, mounted: &Mounted) -> Ready {
    Ready {
        store: store.to_path_buf(),
        dir: mounted.dir().to_path_buf(),
        pid: std::process::id(),
        method: mounted.method().to_string(),
        is_private: mounted.method() == MountMethod::Namespace,
        refusals: mounted.refusals().iter().map(ToString::to_string).collect(),
    }
}
