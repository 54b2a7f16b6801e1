//! What an operation decides: rows to write, and what is to follow once they are written.

use smallvec::SmallVec;
use varve_schema::{Inode, InodeLocation};
use varve_types::InodeId;

use crate::Changes;

/// What follows in memory and on the storage below once the rows of a decision are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// An inode is at another place than before.
    Moved {
        /// The inode.
        ino: InodeId,
        /// Where it is now.
        to: InodeLocation,
    },
    /// An inode lost its last name. Its rows stay until nobody holds it any more.
    Orphaned(InodeId),
    /// An inode lost its last name and its rows.
    Gone {
        /// Its attributes, for front ends that still know it.
        inode: Box<Inode>,
        /// Its large file is to be removed.
        has_object: bool,
    },
    /// An inode got a name, and may have had none.
    Named(InodeId),
}

/// The outcome of an operation that was not refused. An operation adds to an empty one, which its executor provides and drops
/// when the operation begins again: it is too large to be moved about.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// Rows to write as one batch.
    pub changes: Changes,
    /// What follows, in order.
    pub effects: SmallVec<[Effect; 2]>,
}
