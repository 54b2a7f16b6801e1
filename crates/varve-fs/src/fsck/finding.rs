//! What a check can find.

use std::fmt;

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields are ids, names and the two counts that differ")]
pub enum Finding {
    /// A row whose value cannot be read.
    UnreadableRow { keyspace: &'static str, prefix: u64, suffix: u64, detail: String },
    /// A row that nothing of this version writes.
    UnknownRow { keyspace: &'static str, prefix: u64, suffix: u64 },
    /// The root directory has no row.
    NoRoot,
    /// Entries of a directory that has no row.
    EntriesWithoutDirectory { dir: u64, entries: u64 },
    /// An entry whose inode has no row.
    DanglingEntry { dir: u64, name: String, ino: u64 },
    /// An entry in another row than its name's hash says.
    MisplacedEntry { dir: u64, name: String },
    /// An entry that says another type than its inode.
    WrongType { dir: u64, name: String, ino: u64 },
    /// A second place that claims to be the inode.
    InodeTwice { ino: u64 },
    /// A row that holds another inode than its key says.
    WrongInode { ino: u64, found: u64 },
    /// An id beyond those handed out.
    IdBeyondMark { ino: u64, mark: u64 },
    /// A link count that is not the number of names.
    WrongLinkCount { ino: u64, recorded: u64, counted: u64 },
    /// A directory's count of entries.
    WrongEntryCount { dir: u64, recorded: u64, counted: u64 },
    /// A directory's count of subdirectories.
    WrongSubdirCount { dir: u64, recorded: u64, counted: u64 },
    /// A directory that no entry of its parent names.
    DirectoryWithoutName { dir: u64, parent: u64 },
    /// A directory whose parents never lead to the root.
    UnreachableDirectory { dir: u64 },
    /// An inode row of a file that no name refers to and that is not pending.
    InodeWithoutName { ino: u64 },
    /// A row that a crash left for the next mount to finish.
    Pending { ino: u64, what: &'static str },
    /// A pending orphan without a row.
    PendingWithoutInode { ino: u64 },
    /// Data of an inode that has none in the store, or that does not exist.
    StrayChunk { ino: u64, index: u64 },
    /// A chunk longer than one can be.
    OversizedChunk { ino: u64, index: u64, bytes: u64 },
    /// Extended attributes of an inode that says it has none, or that does not exist.
    StrayXattr { ino: u64 },
    /// An inode that says it has extended attributes and has none.
    MissingXattr { ino: u64 },
    /// A large file whose object is gone.
    MissingObject { ino: u64 },
    /// An object shorter than its row says.
    ShortObject { ino: u64, recorded: u64, found: u64 },
    /// An object that no row claims.
    ObjectWithoutRow { ino: u64 },
    /// A file among the objects that is none.
    StrayFile { path: String },
}

impl Finding {
    /// How bad it is.
    pub fn severity(&self) -> Severity {
        match self {
            Finding::Pending { .. } => Severity::Unfinished,
            Finding::ObjectWithoutRow { .. } | Finding::StrayFile { .. } => Severity::Waste,
            _ => Severity::Error,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::UnreadableRow { keyspace, prefix, suffix, detail } => {
                write!(f, "row ({prefix}, {suffix:#x}) of {keyspace} cannot be read: {detail}")
            }
            Finding::UnknownRow { keyspace, prefix, suffix } => {
                write!(f, "row ({prefix}, {suffix:#x}) of {keyspace} is of no known kind")
            }
            Finding::NoRoot => write!(f, "the root directory has no row"),
            Finding::EntriesWithoutDirectory { dir, entries } => {
                write!(f, "{entries} entries of directory {dir}, which does not exist")
            }
            Finding::DanglingEntry { dir, name, ino } => {
                write!(
                    f,
                    "entry {name} of directory {dir} stands for inode {ino}, which does not exist"
                )
            }
            Finding::MisplacedEntry { dir, name } => {
                write!(f, "entry {name} of directory {dir} is not where its hash says")
            }
            Finding::WrongType { dir, name, ino } => {
                write!(f, "entry {name} of directory {dir} says another type than inode {ino}")
            }
            Finding::InodeTwice { ino } => write!(f, "inode {ino} exists twice"),
            Finding::WrongInode { ino, found } => {
                write!(f, "the row of inode {ino} holds inode {found}")
            }
            Finding::IdBeyondMark { ino, mark } => {
                write!(f, "inode {ino} is beyond the ids handed out so far, {mark}")
            }
            Finding::WrongLinkCount { ino, recorded, counted } => {
                write!(f, "inode {ino} records {recorded} links and has {counted}")
            }
            Finding::WrongEntryCount { dir, recorded, counted } => {
                write!(f, "directory {dir} records {recorded} entries and has {counted}")
            }
            Finding::WrongSubdirCount { dir, recorded, counted } => {
                write!(f, "directory {dir} records {recorded} subdirectories and has {counted}")
            }
            Finding::DirectoryWithoutName { dir, parent } => {
                write!(f, "directory {dir} has no name in directory {parent}")
            }
            Finding::UnreachableDirectory { dir } => {
                write!(f, "directory {dir} cannot be reached from the root")
            }
            Finding::InodeWithoutName { ino } => write!(f, "inode {ino} has no name"),
            Finding::Pending { ino, what } => {
                write!(f, "inode {ino}: {what}; the next mount finishes this")
            }
            Finding::PendingWithoutInode { ino } => {
                write!(f, "orphan {ino} is pending and does not exist")
            }
            Finding::StrayChunk { ino, index } => {
                write!(f, "chunk {index} belongs to inode {ino}, which has no data in the store")
            }
            Finding::OversizedChunk { ino, index, bytes } => {
                write!(f, "chunk {index} of inode {ino} has {bytes} bytes")
            }
            Finding::StrayXattr { ino } => {
                write!(f, "extended attributes of inode {ino}, which should have none")
            }
            Finding::MissingXattr { ino } => {
                write!(f, "inode {ino} should have extended attributes and has none")
            }
            Finding::MissingObject { ino } => write!(f, "the object file of inode {ino} is gone"),
            Finding::ShortObject { ino, recorded, found } => {
                write!(f, "the object file of inode {ino} has {found} of {recorded} bytes")
            }
            Finding::ObjectWithoutRow { ino } => {
                write!(f, "no row claims the object file of inode {ino}; it only takes room")
            }
            Finding::StrayFile { path } => write!(f, "{path} is not an object file"),
        }
    }
}
