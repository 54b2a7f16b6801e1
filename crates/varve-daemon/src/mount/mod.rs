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
mod attached;
mod background;
mod options;
mod remount;
mod settings;
mod signals;
mod succession;
mod umount;

pub use attached::{AttachError, Attached};
pub use background::{daemon, start_in_background};
pub use options::{Choices, memory};
pub use remount::{Began, remount};
pub(crate) use settings::{mount_again, mount_options, session_options};
pub use succession::{serve, take_over};
pub use umount::{Unmounted, unmount_and_wait};

pub use crate::control::Ready;
pub use crate::error::not_unmounted;
