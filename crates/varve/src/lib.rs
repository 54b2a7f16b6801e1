//! Varve as a library, and what the command line is made of.
//!
//! [`open`] turns the address of a store into a file system to call ([`varve_vfs::Vfs`]); nothing is mounted
//! for that. The subcommands of the program `varve` are thin wrappers over the other modules:
//!
//! - [`store`]: format, open; who holds a store. [`check`]: whether all of it is whole. [`gc`]: room that nobody needs.
//!   [`redesign`]: another design for all of it. [`dump`]: all of it as text, and back.
//! - [`embedded`]: transactions and snapshots without a mount. [`kv`]: dictionaries of pairs.
//! - [`mounting`]: serve a store on a directory, in this process or in the background, and take it away.
//! - [`nfs`]: serve a store over NFS.
//! - [`views`]: snapshots and transactions of a mount. [`transaction`]: programs in a transaction. [`transfer`]: snapshots sent and
//!   received.
//! - [`clone`](mod@clone): copies that are made when somebody looks.
//! - [`upgrade`]: another program for a mount in use.
//! - [`status`]: what a store or a mount says of itself. [`stats`]: what a mount does. [`logging`]: what it had to say.
//! - [`trees`]: what lies below the directories of a mount. [`size`]: numbers of bytes as people write them.
//! - [`demo`]: a demonstration.
//!
//! Errors are [`Error`]: what happened, what to do next, and the exit status that says so to scripts.
#![allow(clippy::disallowed_methods, reason = "the front end talks to the machine itself")]

pub mod check;
pub mod clone;
pub mod demo;
pub mod dump;
pub mod embedded;
mod error;
pub mod gc;
pub mod kv;
pub mod logging;
pub mod mounting;
pub mod nfs;
mod passing;
pub mod redesign;
pub mod size;
mod socket;
pub mod stats;
pub mod status;
pub mod store;
pub mod transaction;
pub mod transfer;
pub mod trees;
pub mod upgrade;
mod uri;
pub mod views;
mod whole_file;

pub use embedded::Transaction;
pub use error::{Error, Result, exit_status};
pub use passing::is_ignored;
pub use store::FileSystem;
pub use varve_fs::{Isolation, OnConflict, TransactionOptions};

/// Opens the store at `uri`: a path, `file:///path` or `varve:/path`.
///
/// On ext4, XFS and tmpfs the process gets a handler of SIGBUS with the first row that is written: a failing disk under the log is then
/// an error as any other. Faults elsewhere go to the handler that was there before; one that is set later has to pass on to this one
/// what is not its own, or such a disk ends the process.
///
/// ```no_run
/// use varve_vfs::Vfs;
///
/// # fn main() -> varve::Result<()> {
/// let file_system = varve::open("/srv/store")?;
/// let room = file_system.vfs().statfs()?;
/// println!("{} of {} blocks are free", room.blocks_free, room.blocks);
/// file_system.close()
/// # }
/// ```
pub fn open(uri: &str) -> Result<FileSystem> {
    FileSystem::open(&uri::store_path(uri)?, &varve_fs::MountOptions::default())
}
