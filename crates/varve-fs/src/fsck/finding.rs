//! What a check can find.

use bytes::Bytes;
use serde::Serialize;

use super::fact::Spot;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Work that a crash cut short and the next mount finishes.
    Unfinished,
    /// Room that nothing refers to. Harmless.
    Waste,
    /// Bytes that a repair could not save: reads of them fail until they are written anew or their file is removed.
    Lost,
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
    /// No row says which store the rows belong to.
    #[error("no row says which store the rows belong to")]
    NoStoreId,
    /// The rows are those of another store than the superblock.
    #[error(
        "the rows belong to another store than the superblock; put the files of one store together"
    )]
    OtherStore,
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
    /// A name that two entries of one directory have.
    #[error("entry {name} of directory {dir} is there twice")]
    DuplicateName { dir: u64, name: String },
    /// A name that no file can have.
    #[error("entry {name} of directory {dir} has a name that is none")]
    BadName { dir: u64, name: String },
    /// An entry that says another type than its inode.
    #[error("entry {name} of directory {dir} says another type than inode {ino}")]
    WrongType { dir: u64, name: String, ino: u64 },
    /// A second place that claims to be the inode.
    #[error("inode {ino} exists twice")]
    InodeTwice { ino: u64 },
    /// Several names of an inode, which has no row of its own.
    #[error("inode {ino} has {names} names and no row of its own")]
    NamesWithoutRow { ino: u64, names: u64 },
    /// A row that holds another inode than its key says.
    #[error("the row of inode {ino} holds inode {found}")]
    WrongInode { ino: u64, found: u64 },
    /// An inode with an id that none can have.
    #[error("entry {name} of directory {dir} holds inode {ino}, an id that no inode can have")]
    ImpossibleId { dir: u64, name: String, ino: u64 },
    /// The mark of ids handed out is not above all of them.
    #[error("ids up to {mark} are marked as handed out, but {largest} is in use")]
    IdBeyondMark { mark: u64, largest: u64 },
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
    /// A name of a file with a row of its own that no parent pointer leads to.
    #[error("no parent pointer of inode {ino} says {name} in directory {dir}, which is its name")]
    MissingParentPointer { ino: u64, dir: u64, name: String },
    /// Limits on a directory that does not exist.
    #[error("there are limits on directory {dir}, which does not exist")]
    LimitsWithoutDirectory { dir: u64 },
    /// A directory whose name is elsewhere than it says.
    #[error("directory {dir} says that its name is in directory {parent}; it is in {found}")]
    WrongParent { dir: u64, parent: u64, found: u64 },
    /// A second name of a directory.
    #[error("entry {name} of directory {dir} is a second name of directory {ino}")]
    SecondName { dir: u64, name: String, ino: u64 },
    /// A directory that no entry names.
    #[error("directory {dir} has no name; it was in directory {parent}")]
    DirectoryWithoutName { dir: u64, parent: u64 },
    /// A directory that is above itself.
    #[error("directory {dir} is above itself")]
    DirectoryLoop { dir: u64 },
    /// A directory whose parents never lead to the root.
    #[error("directory {dir} cannot be reached from the root")]
    UnreachableDirectory { dir: u64 },
    /// An inode row of a file that no name refers to and that is not pending.
    #[error("inode {ino} has no name")]
    InodeWithoutName { ino: u64 },
    /// A row that a crash left for the next mount to finish.
    #[error("inode {ino}: {what}; the next mount finishes this")]
    Pending { ino: u64, what: &'static str },
    /// Pending work on an inode that does not exist.
    #[error("work on inode {ino} is pending, which does not exist")]
    PendingWithoutInode { ino: u64 },
    /// Pending work that would destroy what is in use.
    #[error("inode {ino}: {what} is pending, which its row contradicts")]
    PendingContradicted { ino: u64, what: &'static str },
    /// A size that no file can have.
    #[error("inode {ino} has {size} bytes, more than a file can have")]
    ImpossibleSize { ino: u64, size: u64 },
    /// Content within an inode that its size does not allow for.
    #[error("inode {ino} of {size} bytes holds {found}")]
    ContentBeyondSize { ino: u64, size: u64, found: u64 },
    /// Data of an inode that has no row.
    #[error("{chunks} chunks of data belong to inode {ino}, which does not exist")]
    DataWithoutInode { ino: u64, chunks: u64 },
    /// Data of an inode that has none in the store.
    #[error("chunk {index} belongs to inode {ino}, which has no data in the store")]
    StrayChunk { ino: u64, index: u64 },
    /// Data beyond the end of a file.
    #[error("chunk {index} of inode {ino} reaches beyond the size, {size}")]
    ChunkBeyondSize { ino: u64, index: u64, size: u64 },
    /// A chunk longer than one can be.
    #[error("chunk {index} of inode {ino} has {bytes} bytes")]
    OversizedChunk { ino: u64, index: u64, bytes: u64 },
    /// A chunk that is absent where a repair of the engine's files lost rows.
    #[error("{path} (inode {ino}) has lost bytes from offset {offset} on, at most {bytes}")]
    LostChunk { path: String, ino: u64, offset: u64, bytes: u64 },
    /// A row that stands for a lost chunk.
    #[error(
        "{path} (inode {ino}): bytes from offset {offset} on, at most {bytes}, are lost; reading them fails until they are written anew"
    )]
    LostBytes { path: String, ino: u64, offset: u64, bytes: u64 },
    /// Extended attributes of an inode that says it has none, or that does not exist.
    #[error("extended attributes of inode {ino}, which should have none")]
    StrayXattr { ino: u64 },
    /// An inode that says it has extended attributes and has none.
    #[error("inode {ino} should have extended attributes and has none")]
    MissingXattr { ino: u64 },
    /// An extended attribute in another row than its name's hash says.
    #[error("extended attribute {name} of inode {ino} is not where its hash says")]
    MisplacedXattr { ino: u64, name: String },
    /// An extended attribute with a name that none can have.
    #[error("extended attribute {name} of inode {ino} has a name that none can have")]
    BadXattrName { ino: u64, name: String },
    /// A large file whose object is gone.
    #[error("the object file of inode {ino} is gone")]
    MissingObject { ino: u64 },
    /// An object shorter than its row says.
    #[error("the object file of inode {ino} has {found} of {recorded} bytes")]
    ShortObject { ino: u64, recorded: u64, found: u64 },
    /// An object longer than its row says: writes that a power cut kept although their row was lost.
    #[error("the object file of inode {ino} has {found} bytes, its row claims {recorded}")]
    LongObject { ino: u64, recorded: u64, found: u64 },
    /// A large file whose object knows better than its row how large it is, and nothing is pending that makes them agree.
    #[error("inode {ino} was being written, and nothing is pending that brings its row up to date")]
    UnsettledObject { ino: u64 },
    /// What a commit has yet to put in the place of a large file and of which is not known which blocks it is.
    #[error("{detail}; a commit has changed inode {ino} by it, and it cannot be put in place")]
    DamagedInstall { ino: u64, detail: String },
    /// An object of an inode that does not exist.
    #[error("the object file of inode {ino}, which does not exist; it only takes room")]
    ObjectWithoutRow { ino: u64 },
    /// An object of an inode whose content is elsewhere.
    #[error("inode {ino} does not claim its object file; it only takes room")]
    UnclaimedObject { ino: u64 },
    /// A reference of an inode that shares nothing with that source.
    #[error("inode {ino} has a reference to state {state} of the store that it does not use")]
    StrayLoan { ino: u64, state: u64 },
    /// A folded directory or a file that shares its bytes, without its reference row.
    #[error("inode {ino} reads from state {state} of the store and has no reference for that")]
    MissingLoan { ino: u64, state: u64 },
    /// A folded directory or a file that borrows its bytes from a state of the store that is gone.
    #[error("inode {ino} reads from state {state} of the store, which is gone")]
    SourceGone { ino: u64, state: u64 },
    /// Names to come of an inode that has no row of its own.
    #[error("names of inode {ino} are to come, which has no row of its own")]
    StrayTwin { ino: u64 },
    /// A dictionary whose row cannot be read.
    #[error("dictionary {name} cannot be found: {detail}")]
    UnreadableDictionary { name: String, detail: String },
    /// Two names of one set of pairs.
    #[error("dictionary {name} has the pairs of dictionary {other}")]
    SharedDictionary { name: String, other: String },
    /// Pairs that no name leads to.
    #[error("pairs of dictionary number {number}, which has no name")]
    PairsWithoutDictionary { number: u32 },
    /// A dictionary that was dropped when a crash came.
    #[error("dictionary {name} was dropped; the next mount finishes this")]
    DictionaryGoing { name: String },
    /// Blocks of a large file in a view of which is not known which they are.
    #[error("{detail}; {seen} cannot be read in {view}, which can only be deleted or aborted")]
    DamagedOverlay { path: String, detail: String, view: String, seen: String },
    /// A file among the objects that is none.
    #[error("{path} is not an object file")]
    StrayFile { path: String },
}

impl Finding {
    /// How bad it is.
    pub fn severity(&self) -> Severity {
        match self {
            Finding::Pending { .. } | Finding::DictionaryGoing { .. } => Severity::Unfinished,
            Finding::LostBytes { .. } => Severity::Lost,
            Finding::ObjectWithoutRow { .. }
            | Finding::UnclaimedObject { .. }
            | Finding::LongObject { .. }
            | Finding::StrayFile { .. }
            | Finding::MarkWithoutDirectory { .. }
            | Finding::StrayLoan { .. }
            | Finding::StrayTwin { .. }
            | Finding::LimitsWithoutDirectory { .. } => Severity::Waste,
            _ => Severity::Error,
        }
    }
}

/// Where a finding is, for who repairs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// The finding says it all; an inode is in its own row.
    Own,
    /// The row with this key.
    Row(Bytes),
    /// A name.
    Name(Spot),
    /// Two names.
    Names(Spot, Spot),
}
