//! A store that is opened and attached to a directory, ready to be served.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve::follower::Front;
use varve::{Error, FileSystem, Result, anchor};
use varve_fuse::{MountError, MountMethod, Mounted, Notifier, Session, SessionOptions, StopHandle};
use varve_types::InodeId;

use super::options::Choices;
use super::settings::{fs_options, mount_options, session_options};
use crate::control::Ready;
use crate::{error, holder};

/// A mount that is attached and not yet served.
pub struct Attached {
    pub(crate) store: PathBuf,
    pub(crate) file_system: FileSystem,
    pub(crate) session: Session,
    pub(crate) ready: Ready,
}

/// Why a store is not attached to a directory.
#[derive(Debug)]
pub enum AttachError {
    /// The machine allows no way to mount; nothing is wrong with the store.
    NotAllowed(Error),
    /// Any other failure.
    Failed(Error),
}

impl From<Error> for AttachError {
    fn from(error: Error) -> AttachError {
        AttachError::Failed(error)
    }
}

impl From<AttachError> for Error {
    fn from(error: AttachError) -> Error {
        match error {
            AttachError::NotAllowed(error) | AttachError::Failed(error) => error,
        }
    }
}

impl Attached {
    /// Opens the store `store` and attaches it to `dir`.
    pub fn new(
        store: &Path,
        dir: &Path,
        choices: &Choices,
    ) -> std::result::Result<Attached, AttachError> {
        holder::superblock(store)?;
        holder::require_free(store)?;
        let store = store.canonicalize().map_err(|error| Error::io("find", store, &error))?;
        refuse_nesting(&store, dir)?;
        check_following(&store, choices)?;
        let lock = FileSystem::lock(&store)?
            .taking_over(choices.take_over)
            .following(choices.follow_interval().is_some());
        let mounted =
            varve_fuse::mount(dir, &mount_options(&store, choices)).map_err(not_attached)?;
        let ready = describe(&store, &mounted);
        if mounted.is_for_root_alone() {
            log::info!(
                "only root gets into {}: the kernel checks no permissions",
                ready.dir.display()
            );
        }
        let stop = mounted.stop_handle();
        let options = fs_options(choices, &ready.dir);
        let opened = FileSystem::open_locked(&store, &options, lock);
        let file_system = match opened.and_then(|opened| with_root(opened, &store)) {
            Ok(file_system) => file_system,
            Err(error) => {
                drop(mounted);
                stop.give_up();
                return Err(error.into());
            }
        };
        let session_options = followed_options(&file_system, choices);
        let session = match Session::new(file_system.vfs(), mounted, &session_options) {
            Ok(session) => session,
            Err(error) => {
                file_system.close()?;
                return Err(error::not_served(&error).into());
            }
        };
        if let Some(interval) = choices.follow_interval() {
            file_system.follow(Arc::new(Kernel(session.notifier())), interval)?;
        }
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
        served.map_err(|error| error::not_served(&error))?;
        closed
    }
}

/// The options of the session of a store. Of one that is followed the kernel keeps nothing for longer than the interval.
pub(super) fn followed_options(file_system: &FileSystem, choices: &Choices) -> SessionOptions {
    let options = session_options(choices);
    match choices.follow_interval().filter(|_| file_system.is_followed()) {
        None => options,
        Some(interval) => SessionOptions {
            entry_timeout: interval,
            negative_timeout: interval,
            attr_timeout: interval,
            passthrough: false,
            ..options
        },
    }
}

/// Has the kernel forget what a follower tells of.
struct Kernel(Notifier);

impl Kernel {
    fn told(told: std::io::Result<()>) {
        if let Err(error) = told {
            log::warn!("the kernel may show an older state for a few seconds: {error}");
        }
    }
}

impl Front for Kernel {
    fn names_changed(&self) {
        // A kernel before Linux 6.16 does not know the notice, and keeps names for the interval.
        Kernel::told(self.0.names_dropped().map(drop));
    }

    fn attributes_changed(&self, ino: InodeId) {
        Kernel::told(self.0.attributes_changed(ino));
    }

    fn listing_changed(&self, dir: InodeId) {
        Kernel::told(self.0.inode_changed(dir));
    }
}

/// Fails if the choices name an interval to follow a store that cannot be followed.
fn check_following(store: &Path, choices: &Choices) -> Result<()> {
    let is_asked = choices.follow_every.is_some_and(|every| !every.is_zero());
    if !is_asked || choices.read_only && anchor::is_anchor(store) {
        return Ok(());
    }
    Err(Error::usage("only a mount with `ro` of a store on shared storage follows it")
        .hint("add `ro`, or leave out `follow_every`"))
}

fn not_attached(error: MountError) -> AttachError {
    match &error {
        MountError::Refused { .. } => AttachError::NotAllowed(error::not_mounted(error)),
        _ => AttachError::Failed(error::not_mounted(error)),
    }
}

/// Fails if the root directory of `file_system` cannot be read, and closes the store then.
fn with_root(file_system: FileSystem, store: &Path) -> Result<FileSystem> {
    let Err(error) = file_system.vfs().getattr(InodeId::ROOT) else { return Ok(file_system) };
    drop(file_system.close());
    let (store, error) = (store.display(), Error::from(error));
    Err(Error::failed(format!("the root directory of {store} cannot be read: {}", error.message()))
        .hint(format!("`varve fsck {store}` finds the damage")))
}

/// Fails if the store and the mount point lie within each other: a store below its own mount could no longer be reached, and a mount
/// within a store would count as a part of it.
fn refuse_nesting(store: &Path, dir: &Path) -> Result<()> {
    // A directory that cannot be found is refused by the mount itself, with its reason.
    let Ok(dir) = dir.canonicalize() else { return Ok(()) };
    if store.starts_with(&dir) || dir.starts_with(store) {
        let (store, dir) = (store.display(), dir.display());
        return Err(Error::failed(format!("{dir} and the store {store} lie within each other"))
            .hint("mount on a directory beside the store"));
    }
    Ok(())
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
