//! Identifiers. Each is one integer that must not be confused with another.

use std::fmt;

/// The identity of a file, directory or other object, never reused within a store.
///
/// Ids below [`InodeId::FIRST_FREE`] are reserved: 0 is never an inode, 1 is the root directory, 2 to
/// 15 prefix the store's own bookkeeping rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(u64);

impl InodeId {
    /// The root directory; the kernel's FUSE protocol fixes this number.
    pub const ROOT: InodeId = InodeId(1);
    /// The first id handed out to a file or directory.
    pub const FIRST_FREE: InodeId = InodeId(16);
    /// Ids from here on stand for no row: a file system makes them up for places where others are mounted.
    pub const FIRST_MADE_UP: InodeId = InodeId(1 << 63);

    /// The id with this number.
    pub const fn new(raw: u64) -> InodeId {
        InodeId(raw)
    }

    /// The number, as the kernel and the rows carry it.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether it stands for no row.
    pub const fn is_made_up(self) -> bool {
        self.0 >= InodeId::FIRST_MADE_UP.0
    }
}

/// The position of one write in the history of a store. Later writes have larger numbers; 0 comes
/// before the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SeqNo(u64);

impl SeqNo {
    /// Before the first write.
    pub const ZERO: SeqNo = SeqNo(0);
    /// After every write: reads as of the newest state.
    pub const MAX: SeqNo = SeqNo(u64::MAX >> 8);

    /// The sequence number with this value.
    pub const fn new(raw: u64) -> SeqNo {
        SeqNo(raw)
    }

    /// The value.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number `n` writes later.
    #[must_use]
    pub const fn advanced(self, n: u64) -> SeqNo {
        SeqNo(self.0 + n)
    }
}

/// The number of a log, table or manifest file within a store; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNo(u64);

impl FileNo {
    /// Above all that a store counts up to in its life.
    pub const MAX: FileNo = FileNo(u64::MAX >> 8);

    /// The file number with this value.
    pub const fn new(raw: u64) -> FileNo {
        FileNo(raw)
    }

    /// The value.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next file's number.
    ///
    /// REQUIRES: it was counted up from one that is at most [`FileNo::MAX`].
    #[must_use]
    pub const fn next(self) -> FileNo {
        FileNo(self.0 + 1)
    }
}

/// Drawn at random for each table file, and part of every checksum in it: what was written to another file, were it one
/// with the same number in another store, does not pass for a part of this one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileSalt(u64);

impl FileSalt {
    /// The salt with this value.
    pub const fn new(raw: u64) -> FileSalt {
        FileSalt(raw)
    }

    /// The value.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// One sorted run of tables within a level of a key space. Of two in one level the larger holds the newer
/// versions of every key they share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SublevelId(u64);

impl SublevelId {
    /// The sub-level with this number.
    pub const fn new(raw: u64) -> SublevelId {
        SublevelId(raw)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The bit in the numbers of key spaces of branches.
const OF_BRANCH: u32 = 1 << 31;

/// A branch: a writable tree over a state of the store, or of another branch. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BranchId(u64);

impl BranchId {
    /// The branch with this number.
    pub const fn new(raw: u64) -> BranchId {
        BranchId(raw)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// One sorted key space within a store. All key spaces share the log, the sequence numbers and the
/// manifest; each has its own memtable and table files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyspaceId(u32);

impl KeyspaceId {
    /// The key space with this number.
    pub const fn new(raw: u32) -> KeyspaceId {
        KeyspaceId(raw)
    }

    /// The `n`-th of the key spaces that hold the rows of branches; they are counted apart.
    pub const fn of_branch(n: u32) -> KeyspaceId {
        KeyspaceId(n | OF_BRANCH)
    }

    /// Which of the key spaces of branches it is.
    pub const fn number_of_branch(self) -> u32 {
        self.0 & !OF_BRANCH
    }

    /// Whether it holds rows of a branch.
    pub const fn is_of_branch(self) -> bool {
        self.0 & OF_BRANCH != 0
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

macro_rules! show_as_number {
    ($($id:ident),*) => {$(
        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($id), self.0)
            }
        }
    )*};
}

show_as_number!(BranchId, InodeId, SeqNo, FileNo, FileSalt, SublevelId, KeyspaceId);
