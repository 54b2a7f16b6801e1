//! The changes that one operation decides on: rows to write, and what directories count for it.
//!
//! 1. An operation adds rows ([`Changes::put_entry_row`] and others). It keeps directories apart, since several steps of one
//!    operation change the same directory.
//! 2. It charges directories with what it adds to them or takes from them ([`Changes::charge`]).
//! 3. The executor applies the charges to the directories' rows, adds these to the writes ([`Changes::put_dirs`]), and writes
//!    everything as one batch.
//!
//! Invariant: each directory appears once among `dirs` and once among `charges`.

use bytes::Bytes;
use smallvec::SmallVec;
use varve_schema::{
    CHUNK_BYTES, Content, EntryRow, EntrySuffix, Inode, Pending, RowKey, UsageChange,
    encode_inode_row,
};
use varve_types::InodeId;

/// The key space of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Space {
    /// Names and inodes ([`varve_schema::META`]).
    Meta,
    /// Bytes of small files and extended attributes ([`varve_schema::DATA`]).
    Data,
}

/// One row to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where.
    pub space: Space,
    /// The key.
    pub key: RowKey,
    /// The value; `None` removes the row.
    pub value: Option<Bytes>,
    /// It commutes with such writes of others to the same row.
    pub commutes: bool,
}

/// How the charges of an operation meet limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Refused beyond a limit.
    Asked,
    /// They have happened and are only recorded now.
    Happened,
    /// They only move from a directory's account to that of its parent, and are counted already.
    Propagated,
}

/// The writes of one operation.
#[derive(Clone, Debug)]
pub struct Changes {
    /// Rows to write, in order: of two on one key the later wins.
    pub writes: SmallVec<[Write; 4]>,
    /// Directories to write, each once.
    pub dirs: SmallVec<[Inode; 2]>,
    /// Changes of what lies directly in directories, each directory once.
    pub charges: SmallVec<[(InodeId, UsageChange); 2]>,
    /// What moves with directories between limits besides `charges`: usage that the parent does not count yet.
    pub brought: SmallVec<[(InodeId, UsageChange); 2]>,
    /// Directories whose parents count all of their usage from now on, and directories that are removed.
    pub propagated: SmallVec<[InodeId; 1]>,
    /// How the charges meet limits.
    pub standing: Standing,
    /// Directories among `dirs` whose change commutes with such changes of others.
    pub counted: SmallVec<[InodeId; 2]>,
    /// The rows only say what has become of large files. Serializable transactions do not rely on these rows while the files are
    /// written to.
    pub settles: bool,
    /// Sources of clones whose references end: whether they are still needed is asked after the commit.
    pub released_sources: SmallVec<[InodeId; 1]>,
    /// The writes free room, so that they are taken on a full device too.
    pub reclaims_space: bool,
    /// The rows can be made again from what is written, so that they may stay in memory where the device has no room.
    pub derived: bool,
    /// The rows claim bytes outside of the store, which must be durable before the rows are.
    pub depends_on_external: bool,
}

impl Default for Changes {
    fn default() -> Changes {
        Changes::new()
    }
}

impl Changes {
    /// No changes.
    pub fn new() -> Changes {
        Changes {
            writes: SmallVec::new(),
            dirs: SmallVec::new(),
            charges: SmallVec::new(),
            brought: SmallVec::new(),
            propagated: SmallVec::new(),
            standing: Standing::Asked,
            counted: SmallVec::new(),
            settles: false,
            released_sources: SmallVec::new(),
            reclaims_space: false,
            derived: false,
            depends_on_external: false,
        }
    }

    /// Adds to what lies directly in `dir`.
    pub fn charge(&mut self, dir: InodeId, change: UsageChange) {
        match self.charges.iter_mut().find(|(charged, _)| *charged == dir) {
            Some((_, sum)) => *sum = sum.plus(change),
            None => self.charges.push((dir, change)),
        }
    }

    /// Moves `change` from one directory to another.
    pub fn move_charge(&mut self, from: InodeId, to: InodeId, change: UsageChange) {
        if from != to {
            self.charge(from, change.negated());
            self.charge(to, change);
        }
    }

    /// Moves `change` along from one directory to another, besides what is charged.
    pub fn bring(&mut self, from: InodeId, to: InodeId, change: UsageChange) {
        self.brought.push((from, change.negated()));
        self.brought.push((to, change));
    }

    /// Adds the rows of the directories to the writes.
    pub fn put_dirs(&mut self) {
        for dir in &self.dirs {
            self.writes.push(Write {
                space: Space::Meta,
                key: RowKey::inode(dir.ino),
                value: Some(encode_inode_row(dir).into()),
                commutes: self.counted.contains(&dir.ino),
            });
        }
    }

    /// Writes the names of a row; without names, removes it.
    pub fn put_entry_row(&mut self, key: RowKey, row: &EntryRow) {
        if row.is_empty() {
            self.delete_meta(key);
        } else {
            self.put_row(key, row.encode().into());
        }
    }

    /// Writes a row of names or of an inode.
    pub fn put_row(&mut self, key: RowKey, row: Bytes) {
        let commutes = self.settles;
        self.writes.push(Write { space: Space::Meta, key, value: Some(row), commutes });
    }

    /// Writes an inode's own row.
    pub fn put_inode(&mut self, inode: &Inode) {
        match inode.content {
            Content::Directory(_) => self.put_dir(inode.clone()),
            _ => self.put_row(RowKey::inode(inode.ino), encode_inode_row(inode).into()),
        }
    }

    /// Writes a directory's row.
    pub fn put_dir(&mut self, dir: Inode) {
        match self.dirs.iter_mut().find(|known| known.ino == dir.ino) {
            Some(known) => *known = dir,
            None => self.dirs.push(dir),
        }
    }

    /// Removes an inode's own row.
    pub fn delete_inode(&mut self, ino: InodeId) {
        self.delete_meta(RowKey::inode(ino));
    }

    /// Records pending work on an inode.
    pub fn put_pending(&mut self, ino: InodeId, pending: Pending) {
        self.put_meta(RowKey::pending(ino), pending.encode());
    }

    /// Records whether the object of `inode`, which has a name and lies in the entry row `entry` or in a row of its own, knows
    /// better than the row how large it is.
    pub fn put_dirty(&mut self, inode: &Inode, entry: Option<RowKey>) {
        match inode.content {
            Content::Object { dirty: true, .. } => {
                let entry = entry.and_then(|key| {
                    Some((InodeId::new(key.prefix()), EntrySuffix::new(key.suffix())?))
                });
                self.put_pending(inode.ino, Pending::ObjectDirty { entry });
            }
            _ => self.delete_pending(inode.ino),
        }
    }

    /// Records that no work is pending on an inode.
    pub fn delete_pending(&mut self, ino: InodeId) {
        self.delete_meta(RowKey::pending(ino));
    }

    /// Ends the reference of `inode` to the bytes of another file, if it has one.
    pub fn release_source(&mut self, inode: &Inode) {
        if let Content::Shared(borrowed) = inode.content {
            self.delete_meta(RowKey::clone_reference(borrowed.source, inode.ino));
            self.released_sources.push(borrowed.source);
        }
    }

    /// Writes a row of the key space `meta`.
    pub fn put_meta(&mut self, key: RowKey, value: impl Into<Bytes>) {
        self.put(Space::Meta, key, Some(value.into()));
    }

    /// Removes a row of the key space `meta`.
    pub fn delete_meta(&mut self, key: RowKey) {
        self.put(Space::Meta, key, None);
    }

    /// Writes a row of the key space `data`.
    pub fn put_data(&mut self, key: RowKey, value: impl Into<Bytes>) {
        self.put(Space::Data, key, Some(value.into()));
    }

    /// Removes a row of the key space `data`.
    pub fn delete_data(&mut self, key: RowKey) {
        self.put(Space::Data, key, None);
    }

    fn put(&mut self, space: Space, key: RowKey, value: Option<Bytes>) {
        self.writes.push(Write { space, key, value, commutes: false });
    }

    /// Removes the chunks of a file of `size` bytes from chunk `first` on.
    pub fn delete_chunks(&mut self, ino: InodeId, first: u64, size: u64) {
        for index in first..size.div_ceil(CHUNK_BYTES as u64) {
            self.delete_data(RowKey::chunk(ino, index));
        }
    }
}
