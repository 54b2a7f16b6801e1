//! Varve as a library: the file system of a store, in the process that calls it.
//!
//! [`open`] turns the address of a store into a file system to call ([`varve_vfs::Vfs`]). Nothing is mounted for that, and nothing
//! of a daemon or a command line is linked in.
//!
//! - [`store`]: format and open a store; which process has it open.
//! - [`transactions`], [`snapshots`]: of an open store. [`transaction_options`]: how a transaction is to be, as people write it.
//! - [`check`]: whether all of a store is whole. [`gc`]: gives room back. [`dump`]: all of it as text, and back.
//! - [`size`]: numbers of bytes as people write them.
//!
//! Errors are [`Error`]: what happened, what to do next, and the exit status that says so to scripts.
//!
//! ```
//! use varve::FileSystem;
//! use varve_types::{FileName, InodeId};
//! use varve_vfs::{Caller, Vfs};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("store");
//! varve::store::format(&path, &Default::default())?;
//! let store = FileSystem::open(&path, &Default::default())?;
//! store.dictionaries().create(b"tags")?;
//!
//! // A directory and its tag, together or not at all.
//! let txn = store.begin()?;
//! let name = FileName::new(b"photos")?;
//! txn.vfs().mkdir(Caller::ROOT, InodeId::ROOT, name, 0o755)?;
//! txn.dictionaries().change(b"tags", vec![(b"photos"[..].into(), Some(b"holiday"[..].into()))])?;
//! assert!(store.vfs().lookup(InodeId::ROOT, name).is_err());
//! txn.commit()?;
//! assert!(store.vfs().lookup(InodeId::ROOT, name).is_ok());
//! assert_eq!(store.dictionaries().get(b"tags", b"photos")?.as_deref(), Some(&b"holiday"[..]));
//!
//! // What was there stays there, under a name.
//! store.create_snapshot("before")?;
//! store.vfs().rmdir(InodeId::ROOT, name)?;
//! assert!(store.snapshot("before")?.lookup(InodeId::ROOT, name).is_ok());
//! store.delete_snapshot("before")?;
//! store.close()?;
//! # Ok(())
//! # }
//! ```
#![allow(clippy::disallowed_methods, reason = "the library talks to the machine itself")]

pub mod anchor;
pub mod check;
pub mod dump;
mod error;
pub mod follower;
pub mod gc;
mod machine;
pub mod size;
pub mod snapshots;
pub mod store;
pub mod transaction_options;
pub mod transactions;
mod whole_file;

pub use error::{Error, Result, exit_status};
pub use store::FileSystem;
pub use transactions::Transaction;
pub use varve_fs::{Isolation, OnConflict, TransactionOptions};

/// Opens the store at `uri`: a path, `file:///path`, `varve:/path`, `s3://bucket/prefix`, or `shared:///path` for a directory of a
/// cluster file system.
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
    FileSystem::open(&anchor::path_of(uri)?, &varve_fs::MountOptions::default())
}
