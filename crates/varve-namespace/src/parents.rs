//! Parent pointers: the names of an inode that has or had several, and the home where it counts.
//!
//! 1. The second name gives an inode a row of its own ([`mod@crate::link`]). From then on every name has a parent pointer, a row
//!    beside the inode's, and one name is the home.
//! 2. When the home's name goes, the next pointer in the order of their hashes becomes the home. The search goes on
//!    from the old home and begins again at the end: over the life of an inode it passes each removed pointer about
//!    once, so that the 65,000th link costs what the second does.
//!
//! Source: XFS, `xfs_parent.c` (parent pointers as attributes of the child). Departure: only inodes with several
//! names have them; of all others the place of the row says it.

use smallvec::SmallVec;
use varve_schema::{Home, ParentRow, RowKey};
use varve_types::InodeId;

use crate::{Changes, Rows};

/// Parent pointers of one inode that change together. REQUIRES: the lock of the inode's row.
pub struct Parents<'a, R> {
    rows: &'a R,
    ino: InodeId,
    changed: SmallVec<[(u64, ParentRow); 2]>,
}

impl<'a, R: Rows> Parents<'a, R> {
    /// The parent pointers of `ino`, none of them changed.
    pub fn new(rows: &'a R, ino: InodeId) -> Parents<'a, R> {
        Parents { rows, ino, changed: SmallVec::new() }
    }

    /// Adds the name `name` in `dir`; returns it as a home.
    pub fn add(&mut self, dir: InodeId, name: &[u8]) -> Result<Home, R::Error> {
        let hash = self.rows.hasher().parent(dir, name);
        self.row(hash)?.add(dir, name);
        Ok(Home { dir, hash })
    }

    /// Removes the name `name` in `dir`.
    pub fn remove(&mut self, dir: InodeId, name: &[u8]) -> Result<(), R::Error> {
        let hash = self.rows.hasher().parent(dir, name);
        self.row(hash)?.remove(dir, name);
        Ok(())
    }

    fn row(&mut self, hash: u64) -> Result<&mut ParentRow, R::Error> {
        let at = match self.changed.iter().position(|(row_hash, _)| *row_hash == hash) {
            Some(at) => at,
            None => {
                let row = self.rows.parent_row(RowKey::parent(self.ino, hash))?;
                self.changed.push((hash, row));
                self.changed.len() - 1
            }
        };
        Ok(&mut self.changed[at].1)
    }

    /// The home after the changes: `home` itself if its name is still there, else the next name; `None` if no name
    /// is left.
    pub fn home_after(&mut self, home: Home) -> Result<Option<Home>, R::Error> {
        if self.row(home.hash)?.pointers.iter().any(|pointer| pointer.dir == home.dir) {
            return Ok(Some(home));
        }
        for start in [home.hash, 0] {
            if let Some(next) = self.first_from(start)? {
                return Ok(Some(next));
            }
        }
        // A name may have been added in this change, in a row that is not stored yet.
        Ok(self.changed.iter().find_map(|(hash, row)| as_home(*hash, row)))
    }

    fn first_from(&self, start: u64) -> Result<Option<Home>, R::Error> {
        let mut first = None;
        self.rows.parent_rows(RowKey::parent(self.ino, start), &mut |key, stored| {
            let hash = key.suffix() & (u64::MAX >> 1);
            let changed = self.changed.iter().find(|(changed, _)| *changed == hash);
            first = as_home(hash, changed.map_or(&stored, |(_, row)| row));
            first.is_none()
        })?;
        Ok(first)
    }

    /// Adds the changed rows to `changes`.
    pub fn stage(self, changes: &mut Changes) {
        for (hash, row) in self.changed {
            let key = RowKey::parent(self.ino, hash);
            if row.pointers.is_empty() {
                changes.delete_meta(key);
            } else {
                changes.put_meta(key, row.encode());
            }
        }
    }
}

fn as_home(hash: u64, row: &ParentRow) -> Option<Home> {
    row.pointers.first().map(|pointer| Home { dir: pointer.dir, hash })
}
