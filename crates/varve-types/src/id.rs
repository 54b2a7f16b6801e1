//! Identifiers. Each is an integer with a type of its own, so that no identifier is taken for another.

use std::fmt;

/// The identity of a file, directory or other object, never reused within a store.
///
/// Ids below [`InodeId::FIRST_FREE`] are reserved: 0 is never an inode, 1 is the root directory, 2 to
/// 15 prefix the store's own bookkeeping rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(u64);

impl InodeId {
    /// The root directory. The FUSE protocol of the kernel fixes this number.
    pub const ROOT: InodeId = InodeId(1);
    /// The first id that a file or directory can get.
    pub const FIRST_FREE: InodeId = InodeId(16);
    /// The first synthetic id. No row has such an id: a file system uses them for directories on which it mounts
    /// others.
    pub const FIRST_SYNTHETIC: InodeId = InodeId(1 << 63);

    /// Returns the id with this number.
    pub const fn new(raw: u64) -> InodeId {
        InodeId(raw)
    }

    /// Returns the number, as the kernel and the rows carry it.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns whether the id is synthetic, so that no row has it.
    pub const fn is_synthetic(self) -> bool {
        self.0 >= InodeId::FIRST_SYNTHETIC.0
    }
}

/// A client of a server. Clients choose their ids at random, so that no two are the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u128);

impl ClientId {
    /// Returns the id with this number.
    pub const fn new(raw: u128) -> ClientId {
        ClientId(raw)
    }

    /// Returns the number.
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientId({self})")
    }
}

/// The position of one write in the history of a store. Later writes have larger numbers; 0 comes
/// before the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SeqNo(u64);

impl SeqNo {
    /// Precedes the first write.
    pub const ZERO: SeqNo = SeqNo(0);
    /// Follows every write: a read at this number sees the newest state.
    pub const MAX: SeqNo = SeqNo(u64::MAX >> 8);

    /// Returns the sequence number with this value.
    pub const fn new(raw: u64) -> SeqNo {
        SeqNo(raw)
    }

    /// Returns the value.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number that is `n` writes later.
    #[must_use]
    pub const fn advanced(self, n: u64) -> SeqNo {
        SeqNo(self.0 + n)
    }
}

/// The number of a log, table or manifest file within a store; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNo(u64);

impl FileNo {
    /// Larger than any number that a store reaches in its life.
    pub const MAX: FileNo = FileNo(u64::MAX >> 8);

    /// Returns the file number with this value.
    pub const fn new(raw: u64) -> FileNo {
        FileNo(raw)
    }

    /// Returns the value.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the number of the next file.
    ///
    /// REQUIRES: the number was counted up from one that is at most [`FileNo::MAX`].
    #[must_use]
    pub const fn next(self) -> FileNo {
        FileNo(self.0 + 1)
    }
}

/// A random number of one table file, which is part of every checksum in it. So bytes of another file fail the
/// checksum, even if that file has the same number in another store.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileSalt(u64);

impl FileSalt {
    /// Returns the salt with this value.
    pub const fn new(raw: u64) -> FileSalt {
        FileSalt(raw)
    }

    /// Returns the value.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// One sorted run of tables within a level of a key space. Of two sub-levels of one level, the one with the larger id
/// holds the newer versions of every key that both hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SublevelId(u64);

impl SublevelId {
    /// Returns the sub-level with this number.
    pub const fn new(raw: u64) -> SublevelId {
        SublevelId(raw)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The bit that marks the key spaces of branches.
const OF_BRANCH: u32 = 1 << 31;

/// A branch: a writable tree over a state of the store or of another branch. The number is never zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BranchId(u64);

impl BranchId {
    /// Returns the branch with this number.
    pub const fn new(raw: u64) -> BranchId {
        BranchId(raw)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// One sorted key space within a store. All key spaces share the log, the sequence numbers and the
/// manifest; each has its own memtable and table files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyspaceId(u32);

impl KeyspaceId {
    /// Returns the key space with this number.
    pub const fn new(raw: u32) -> KeyspaceId {
        KeyspaceId(raw)
    }

    /// Returns the `n`-th key space for rows of branches; these key spaces have a count of their own.
    pub const fn of_branch(n: u32) -> KeyspaceId {
        KeyspaceId(n | OF_BRANCH)
    }

    /// Returns the position among the key spaces of branches.
    pub const fn number_of_branch(self) -> u32 {
        self.0 & !OF_BRANCH
    }

    /// Returns whether the key space holds rows of a branch.
    pub const fn is_of_branch(self) -> bool {
        self.0 & OF_BRANCH != 0
    }

    /// Returns the number.
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
