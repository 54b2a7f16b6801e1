//! What the operations of a file system do to rows, and nothing else.
//!
//! What goes in: rows, read through [`Rows`] and [`Locked`], the time, and new ids. What comes out: a [`Decision`], which is rows
//! to write as one batch ([`Changes`]) and what follows from them ([`Effect`]). What it never does: take a lock, read a
//! clock, start a thread, touch a file. So the same code runs on a local store, on a server, and in tests on a map.
//!
//! 1. The executor locks the rows that it expects the operation to write, and calls the operation: [`create()`], [`remove()`],
//!    [`link()`], [`rename()`].
//! 2. The operation reads, checks, and decides; or it stops with a [`Need`], which the executor meets, and begins again.
//! 3. The executor writes the changes in one batch, then lets memory follow the effects, and drops the locks.
//!
//! What becomes of a row that a transaction and the main view have both changed is in [`merge`].
//!
//! Operations on one inode ([`attrs`], [`xattr`], [`acl`]) get the inode from the executor, who has locked the row it is in.
//!
//! Invariants that each decision keeps, given that they held before: every entry's inode exists, exactly once; a directory knows
//! its parent, the place of its name, its counts and what lies below it; an inode's link count is the number of its names; an
//! inode with several names has a parent pointer for each, and one of them is its home.
//!
//! Source: TableFS, thesis sections 4.2.1 to 4.2.6.

pub mod acl;
pub mod attrs;
mod changes;
mod create;
mod decision;
pub mod directory;
pub mod flags;
mod link;
pub mod merge;
mod name;
mod parents;
mod remove;
mod rename;
mod rows;
pub mod xattr;

use varve_schema::{DecodeError, Inode, RowKey, UsageChange};
use varve_types::InodeId;
use varve_vfs::FsError;

pub use changes::{Changes, Space, Standing, Write};
pub use create::{Created, NewInode, create, create_unnamed};
pub use decision::{Decision, Effect};
pub use link::link;
pub use name::NameIn;
pub use parents::Parents;
pub use remove::{Remove, delete_content, reap, remove};
pub use rename::rename;
pub use rows::{Locked, Need, Outcome, Rows, Stop};

/// A row that the store gave back whole but that makes no sense.
pub fn unreadable(keyspace: &str, key: RowKey, error: DecodeError) -> FsError {
    FsError::Damaged(format!(
        "row ({}, {:#x}) of key space {keyspace} cannot be read: {error}; run `varve fsck`",
        key.prefix(),
        key.suffix()
    ))
}

/// Charges `dir`, where `inode` begins to count, with what a large file that is being written has beyond its row: it may have
/// grown where no limits hold, or where it counted nowhere.
fn charge_growth(
    host: &impl Locked,
    changes: &mut Changes,
    inode: &mut Inode,
    dir: InodeId,
) -> Outcome<()> {
    if inode.content.is_dirty() {
        let bytes = host.object_bytes(inode.ino)?;
        changes.charge(dir, UsageChange::size(inode.size, bytes));
        inode.size = bytes;
    }
    Ok(())
}
