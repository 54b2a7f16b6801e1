//! A whole file system as a stream of JSON lines, and back.
//!
//! 1. [`dump_store`] opens the store as a mount does, so that nothing is left half done, and writes one snapshot of
//!    it in the order of inode ids ([`mod@line`] has the lines).
//! 2. [`load_store`] makes a new store from such a stream: rows and object files as the lines come, then a check
//!    of all of it, then the superblock, without which a directory is no store.
//!
//! Invariants: neither needs memory in proportion to the store; the same tree gives the same bytes, and what was
//! loaded gives the dump again, byte for byte; a dump that was cut or changed is refused, and what a refused or
//! interrupted load leaves is not taken for a store.

mod inode;
mod line;
mod load;
mod objects;
mod pairs;
mod read;
mod rows;
mod write;
mod wrong;

use serde::Serialize;
use varve_types::InodeId;

use self::line::InodeLine;
use crate::fsck::Progress;

pub use read::load_store;
pub use write::dump_store;

/// The phase of what goes through the lines of a dump, as [`Progress`] has it.
pub const LINES: &str = "lines";

/// Lines between two calls of who is told how far it has come. One has 1 MiB of a file at most.
const LINES_STEP: u64 = 64;

/// Tells how far what goes through the lines has come.
struct Steps<'a> {
    tell: &'a mut dyn FnMut(Progress),
    /// How many inodes there are, once the root has told.
    inodes: Option<u64>,
}

impl<'a> Steps<'a> {
    fn begin(tell: &'a mut dyn FnMut(Progress)) -> Steps<'a> {
        tell(Progress { phase: LINES, done: 0, permille: None });
        Steps { tell, inodes: None }
    }

    /// An inode comes.
    fn inode(&mut self, line: &InodeLine) {
        let root = line.dir.as_ref().filter(|_| line.ino == InodeId::ROOT.get());
        if let Some(root) = root {
            self.inodes = Some(root.files_below.saturating_add(root.dirs_below).saturating_add(1));
        }
    }

    /// So much has gone through.
    fn line(&mut self, Counts { lines, inodes, .. }: Counts) {
        if lines.is_multiple_of(LINES_STEP) {
            let permille =
                self.inodes.map(|all| (inodes.saturating_mul(1000) / all).min(1000) as u16);
            (self.tell)(Progress { phase: LINES, done: lines, permille });
        }
    }
}

/// What a dump holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Lines besides the last.
    pub lines: u64,
    /// Inodes.
    pub inodes: u64,
    /// Names, each hard link counted.
    pub names: u64,
}
