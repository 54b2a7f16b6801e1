//! What a front end knows of the files it uses: which inodes it has looked up and where they are, which files it has open, and
//! what it is expected to do next.
//!
//! What goes in: lookups, opens, releases, forgets, and what operations say of the places of inodes. What comes out: where an
//! inode is, how it is open, whether it must outlive its last name, and guesses. What it never does: read a row or touch a file. What
//! does not fit in memory goes to a [`Spill`].
//!
//! - [`InodeTable`]: places, lookups and open nodes, by inode id.
//! - [`Handles`]: open files by handle.
//! - [`LargeFilePredictor`], [`ReadAhead`], [`LocationHints`]: guesses that cost memory of a fixed size and are never needed.
//!
//! `O` is what an executor keeps of an open large file, such as a descriptor.

mod handles;
mod hints;
mod id_hash;
mod inode_table;
mod predictor;
mod read_ahead;

pub use handles::{Handles, NodeState, OpenFile, OpenNode};
pub use hints::{HeldHints, Hint, LocationHints};
pub use id_hash::{IdHash, IdHasher};
pub use inode_table::{InodeEntry, InodeTable, Spill};
pub use predictor::{Became, LargeFilePredictor};
pub use read_ahead::{LEAD, PIECE, Piece, ReadAhead};

/// All that is known of one front end.
pub struct Session<O> {
    /// Inodes.
    pub inodes: InodeTable<O>,
    /// Open files.
    pub handles: Handles<O>,
    /// Directories that get large files.
    pub predictor: LargeFilePredictor,
    /// Directories whose small files are read one after the other.
    pub read_ahead: ReadAhead,
    /// Where files were found that the front end did not know.
    pub hints: LocationHints,
}

impl<O> Session<O> {
    /// A front end that knows nothing yet, with about `entries_max` inodes in memory.
    pub fn new(spill: Box<dyn Spill>, entries_max: usize) -> Session<O> {
        Session {
            inodes: InodeTable::new(spill, entries_max),
            handles: Handles::new(),
            predictor: LargeFilePredictor::new(),
            read_ahead: ReadAhead::new(),
            hints: LocationHints::default(),
        }
    }
}

impl<O> std::fmt::Debug for Session<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}
