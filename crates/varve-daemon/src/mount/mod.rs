//! Mounting: serves a store on a directory until it is unmounted.
//!
//! In the foreground ([`serve`]):
//!
//! 1. Check that the store has a superblock and that no process has it open. Lock it: of two processes that mount it on one directory at
//!    once the second must not touch the mount of the first.
//! 2. Attach a FUSE connection to the directory. This precedes opening the store, because a process can enter a private namespace only
//!    while it has a single thread.
//! 3. Open the store; remove the mount if that fails.
//! 4. Serve. One thread waits until the mount answers and then calls `ready`; another waits for SIGTERM, SIGINT and SIGHUP, which
//!    unmount.
//! 5. When it is unmounted, close the store, which syncs it and releases its lock. Or, for an upgrade, become the new program
//!    ([`crate::upgrade`], `succession`).
//!
//! [`start_in_background`] starts a process that does the same. In the place of a store may be the address of a metadata server
//! (`client`).

mod allocator;
mod attached;
mod background;
mod client;
mod client_views;
mod options;
mod remount;
mod settings;
mod signals;
mod succession;
mod umount;

pub use attached::{AttachError, Attached};
pub use background::{daemon, start_in_background};
pub(crate) use client::not_connected;
pub use options::{Choices, memory};
pub use remount::{DaemonSettings, remount};
pub(crate) use settings::{mount_again, mount_options, session_options};
pub use succession::{serve, take_over};
pub use umount::{Unmounted, unmount_and_wait};

pub use crate::control::Ready;
pub use crate::error::not_unmounted;
pub use crate::server_address::{is_server, read_token};
