//! What a check can find.

use serde::Serialize;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Work that a crash cut short and the next mount finishes.
    Unfinished,
    /// Room that nothing refers to. Harmless.
    Waste,
    /// A broken invariant.
    Error,
}

/// One finding. Directories and inodes are given by their ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "finding", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are ids, names and the two counts that differ")]
pub enum Finding {
    /// A row whose value cannot be read.
    #[error("row ({prefix}, {suffix:#x}) of {keyspace} cannot be read: {detail}")]
    UnreadableRow { keyspace: &'static str, prefix: u64, suffix: u64, detail: String },
    /// A row that nothing of this version writes.
    #[error("row ({prefix}, {suffix:#x}) of {keyspace} is of no known kind")]
    UnknownRow { keyspace: &'static str, prefix: u64, suffix: u64 },
    /// The root directory has no row.
    #[error("the root directory has no row")]
    NoRoot,
    /// Entries of a directory that has no row.
    #[error("{entries} entries of directory {dir}, which does not exist")]
    EntriesWithoutDirectory { dir: u64, entries: u64 },
    /// An entry whose inode has no row.
    #[error("entry {name} of directory {dir} stands for inode {ino}, which does not exist")]
    DanglingEntry { dir: u64, name: String, ino: u64 },
    /// An entry in another row than its name's hash says.
    #[error("entry {name} of directory {dir} is not where its hash says")]
    MisplacedEntry { dir: u64, name: String },
    /// An entry that says another type than its inode.
    #[error("entry {name} of directory {dir} says another type than inode {ino}")]
    WrongType { dir: u64, name: String, ino: u64 },
    /// A second place that claims to be the inode.
    #[error("inode {ino} exists twice")]
    InodeTwice { ino: u64 },
    /// A row that holds another inode than its key says.
    #[error("the row of inode {ino} holds inode {found}")]
    WrongInode { ino: u64, found: u64 },
    /// An id beyond those handed out.
    #[error("inode {ino} is beyond the ids handed out so far, {mark}")]
    IdBeyondMark { ino: u64, mark: u64 },
    /// A link count that is not the number of names.
    #[error("inode {ino} records {recorded} links and has {counted}")]
    WrongLinkCount { ino: u64, recorded: u64, counted: u64 },
    /// A directory's count of entries.
    #[error("directory {dir} records {recorded} entries and has {counted}")]
    WrongEntryCount { dir: u64, recorded: u64, counted: u64 },
    /// A directory's count of subdirectories.
    #[error("directory {dir} records {recorded} subdirectories and has {counted}")]
    WrongSubdirCount { dir: u64, recorded: u64, counted: u64 },
    /// A directory's account of what lies below it.
    #[error("directory {dir} records {recorded} {what} below it and has {counted}")]
    WrongUsage { dir: u64, what: &'static str, recorded: u64, counted: u64 },
    /// A directory with something to tell its parent that no mark names, or a root with something to tell.
    #[error("directory {dir} has usage that its parent will never be told")]
    UntoldWithoutMark { dir: u64 },
    /// A mark of a directory that does not exist.
    #[error("a mark names directory {dir}, which does not exist")]
    MarkWithoutDirectory { dir: u64 },
    /// A file that counts where it has no name, or nowhere.
    #[error("inode {ino} does not count in the directory of one of its names")]
    WrongHome { ino: u64 },
    /// A parent pointer that leads to no name of its inode.
    #[error(
        "a parent pointer of inode {ino} says {name} in directory {dir}, which is not its name"
    )]
    StrayParentPointer { ino: u64, dir: u64, name: String },
    /// A file with fewer or more parent pointers than names.
    #[error("inode {ino} has {pointers} parent pointers and {names} names")]
    WrongParentPointers { ino: u64, pointers: u64, names: u64 },
    /// Limits on a directory that does not exist.
    #[error("there are limits on directory {dir}, which does not exist")]
    LimitsWithoutDirectory { dir: u64 },
    /// A directory that no entry of its parent names.
    #[error("directory {dir} has no name in directory {parent}")]
    DirectoryWithoutName { dir: u64, parent: u64 },
    /// A directory whose parents never lead to the root.
    #[error("directory {dir} cannot be reached from the root")]
    UnreachableDirectory { dir: u64 },
    /// An inode row of a file that no name refers to and that is not pending.
    #[error("inode {ino} has no name")]
    InodeWithoutName { ino: u64 },
    /// A row that a crash left for the next mount to finish.
    #[error("inode {ino}: {what}; the next mount finishes this")]
    Pending { ino: u64, what: &'static str },
    /// A pending orphan without a row.
    #[error("orphan {ino} is pending and does not exist")]
    PendingWithoutInode { ino: u64 },
    /// Data of an inode that has none in the store, or that does not exist.
    #[error("chunk {index} belongs to inode {ino}, which has no data in the store")]
    StrayChunk { ino: u64, index: u64 },
    /// A chunk longer than one can be.
    #[error("chunk {index} of inode {ino} has {bytes} bytes")]
    OversizedChunk { ino: u64, index: u64, bytes: u64 },
    /// Extended attributes of an inode that says it has none, or that does not exist.
    #[error("extended attributes of inode {ino}, which should have none")]
    StrayXattr { ino: u64 },
    /// An inode that says it has extended attributes and has none.
    #[error("inode {ino} should have extended attributes and has none")]
    MissingXattr { ino: u64 },
    /// A large file whose object is gone.
    #[error("the object file of inode {ino} is gone")]
    MissingObject { ino: u64 },
    /// An object shorter than its row says.
    #[error("the object file of inode {ino} has {found} of {recorded} bytes")]
    ShortObject { ino: u64, recorded: u64, found: u64 },
    /// An object that no row claims.
    #[error("no row claims the object file of inode {ino}; it only takes room")]
    ObjectWithoutRow { ino: u64 },
    /// A file among the objects that is none.
    #[error("{path} is not an object file")]
    StrayFile { path: String },
}

impl Finding {
    /// How bad it is.
    pub fn severity(&self) -> Severity {
        match self {
            Finding::Pending { .. } => Severity::Unfinished,
            Finding::ObjectWithoutRow { .. }
            | Finding::StrayFile { .. }
            | Finding::MarkWithoutDirectory { .. }
            | Finding::LimitsWithoutDirectory { .. } => Severity::Waste,
            _ => Severity::Error,
        }
    }
}
