//! Parent pointers: the names of an inode that has or had several, and the home where it counts.
//!
//! 1. The second name gives an inode a row of its own ([`crate::namespace`]); from then on every name has a
//!    parent pointer, a row beside the inode's, and one name is the home.
//! 2. When the home's name goes, the next pointer in the order of their hashes becomes the home. The search goes on
//!    from the old home and begins again at the end: over the life of an inode it passes each removed pointer about
//!    once, so that the 65,000th link costs what the second does.
//!
//! Source: XFS, `xfs_parent.c` (parent pointers as attributes of the child). Departure: only inodes with several
//! names have them; of all others the place of the row says it.

use smallvec::SmallVec;
use varve_engine::{Direction, KeyRange};
use varve_schema::{Home, META, ParentRow, RowKey};
use varve_types::InodeId;
use varve_vfs::FsResult;

use crate::error;
use crate::fs::VarveFs;
use crate::rows::{Changes, rows_from};

/// Parent pointers of one inode that change together. REQUIRES: the lock of its row.
pub(crate) struct Parents<'a> {
    fs: &'a VarveFs,
    ino: InodeId,
    rows: SmallVec<[(u64, ParentRow); 2]>,
}

impl VarveFs {
    /// The parent pointers of `ino`, none changed.
    pub(crate) fn parents(&self, ino: InodeId) -> Parents<'_> {
        Parents { fs: self, ino, rows: SmallVec::new() }
    }
}

impl Parents<'_> {
    /// Adds the name `name` in `dir`; returns it as a home.
    pub(crate) fn add(&mut self, dir: InodeId, name: &[u8]) -> FsResult<Home> {
        let hash = self.fs.hasher.parent(dir, name);
        self.row(hash)?.add(dir, name);
        Ok(Home { dir, hash })
    }

    /// Removes the name `name` in `dir`.
    pub(crate) fn remove(&mut self, dir: InodeId, name: &[u8]) -> FsResult<()> {
        let hash = self.fs.hasher.parent(dir, name);
        self.row(hash)?.remove(dir, name);
        Ok(())
    }

    fn row(&mut self, hash: u64) -> FsResult<&mut ParentRow> {
        let at = match self.rows.iter().position(|(row_hash, _)| *row_hash == hash) {
            Some(at) => at,
            None => {
                let key = RowKey::parent(self.ino, hash);
                let value = self.fs.store.get(self.fs.meta, &key.to_bytes());
                let row = match value.map_err(error::store)? {
                    Some(value) => {
                        ParentRow::decode(&value).map_err(|error| error::row(META, key, error))?
                    }
                    None => ParentRow::default(),
                };
                self.rows.push((hash, row));
                self.rows.len() - 1
            }
        };
        Ok(&mut self.rows[at].1)
    }

    /// The home after the changes: `home` itself if its name is still there, else the next; `None` if no name
    /// is left.
    pub(crate) fn home_after(&mut self, home: Home) -> FsResult<Option<Home>> {
        if self.row(home.hash)?.pointers.iter().any(|pointer| pointer.dir == home.dir) {
            return Ok(Some(home));
        }
        for start in [home.hash, 0] {
            let range = rows_from(RowKey::parent(self.ino, start));
            if let Some(next) = self.first_in(range)? {
                return Ok(Some(next));
            }
        }
        // A name may have been added in this change, in a row that is not stored yet.
        Ok(self.rows.iter().find_map(|(hash, row)| as_home(*hash, row)))
    }

    fn first_in(&self, range: KeyRange) -> FsResult<Option<Home>> {
        let rows = self.fs.store.scan(self.fs.meta, range, Direction::Forward);
        for row in rows.map_err(error::store)? {
            let (key, value) = row.map_err(error::store)?;
            let Some(key) = RowKey::from_bytes(&key) else { continue };
            let hash = key.suffix() & (u64::MAX >> 1);
            let stored;
            let row = match self.rows.iter().find(|(changed, _)| *changed == hash) {
                Some((_, row)) => row,
                None => {
                    stored =
                        ParentRow::decode(&value).map_err(|error| error::row(META, key, error))?;
                    &stored
                }
            };
            if let Some(home) = as_home(hash, row) {
                return Ok(Some(home));
            }
        }
        Ok(None)
    }

    /// Adds the changed rows to `changes`.
    pub(crate) fn stage(self, changes: &mut Changes) {
        for (hash, row) in self.rows {
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
