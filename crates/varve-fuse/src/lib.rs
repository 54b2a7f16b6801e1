//! Serves any [`varve_vfs::Vfs`] to the kernel through FUSE.
//!
//! The way of a request:
//!
//! 1. [`mount()`] attaches a `/dev/fuse` descriptor to a directory by the first method that works ([`MountMethod`]).
//!    It reports this method and why the earlier ones failed.
//! 2. [`Session::new`] shakes hands with the kernel on that descriptor (`handshake`). Both agree on the capabilities
//!    and on how requests travel (`agreement`).
//! 3. [`Session::run`] serves requests on its threads (`transport`) until the directory is unmounted. A thread takes
//!    each request from the ring of its caller's CPU or from the descriptor (`device`), decodes it (`protocol`),
//!    makes one call of the `Vfs` for it (`adapter`), and sends the answer back: a reply, or the errno of
//!    [`varve_vfs::FsError::errno`].
//! 4. [`StopHandle::stop`] or [`unmount()`] ends the session. [`PauseHandle::pause`] ends it too, but leaves the
//!    mount for the next session to serve (`handover`).
//!
//! Only `device`, `transport` and `handshake` know how requests travel. Among the public items only [`Transport`]
//! names it.

mod adapter;
mod agreement;
mod answer;
mod backing;
mod bursts;
mod convert;
mod device;
mod groups;
mod handover;
mod handshake;
mod lock_waits;
mod meters;
mod mount;
mod notify;
mod options;
mod parked;
mod protocol;
mod readers;
mod session;
mod transport;
mod waiters;

pub use bursts::IdlePoll;
pub use handover::{PauseHandle, Paused, StateError};
pub use mount::{
    DEAD, Elsewhere, FS_TYPE, MountError, MountMethod, MountOptions, MountPoint, MountTarget,
    MountWatch, Mounted, Refusal, StopHandle, UnmountError, UnmountMode, bound_elsewhere,
    copies_of, find_mounts, find_mounts_of, is_dead, mount, mount_of, mount_within, remount,
    seen_elsewhere, unmount, unmount_that, walk_apart,
};
pub use notify::Notifier;
pub use options::{ReaddirPlus, SessionOptions};
pub use readers::Placement;
pub use session::{Ended, Session, SessionError};
pub use transport::{NoUring, Transport};
pub use waiters::ASKED_WAITS_MAX;
