//! What an operation reads, and what stops it.
//!
//! An operation is a function of rows. It reads rows through [`Rows`] and [`Locked`], and returns what to write. It takes no lock:
//! where it needs one that it does not have, the reader answers with a [`Need`]. Then the operation is dropped, the executor
//! does what is needed, and the operation begins again. So one implementation serves a local store, a server that may have to
//! fetch a row first, and a test with a map.
//!
//! Source: Ursa Minor, Sinnamohideen section 5.8 (an operation that lacks a row is dropped, and begins again with it).

use smallvec::SmallVec;
use varve_schema::{
    EntryRow, Inode, InodeLocation, NameHasher, ParentRow, RowKey, Usage, XattrRow,
};
use varve_types::InodeId;
use varve_vfs::FsError;

/// What an operation needs before it can begin again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// The locks of these rows, besides those that it has.
    Rows(SmallVec<[RowKey; 2]>),
    /// All names of this directory, which is folded.
    Names(InodeId),
    /// That no directory anywhere gets another parent meanwhile.
    Tree,
    /// The locks of all rows.
    AllRows,
}

/// Why an operation ends before it has decided.
#[derive(Debug)]
pub enum Stop {
    /// It is refused.
    Refused(FsError),
    /// It needs something and begins again.
    Needs(Need),
}

impl Stop {
    /// Asks for the lock of one row.
    pub fn row(key: RowKey) -> Stop {
        Stop::Needs(Need::Rows(SmallVec::from_slice(&[key])))
    }
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Stop {
        Stop::Refused(error)
    }
}

/// The result of an operation or of a step of one.
pub type Outcome<T> = Result<T, Stop>;

/// Reads of rows that need no lock of their own: the lock of the inode that they belong to guards them, or what they say is
/// checked again later.
pub trait Rows {
    /// [`Stop`], or [`FsError`] where nothing can be needed.
    type Error: From<FsError>;

    /// The hashes of names.
    fn hasher(&self) -> &NameHasher;

    /// Whether access control lists count.
    fn obeys_lists(&self) -> bool;

    /// The inode in its own row, at some moment.
    fn peek_inode(&self, ino: InodeId) -> Result<Option<Inode>, Self::Error>;

    /// A row of extended attributes; an empty row if there is none.
    fn xattr_row(&self, key: RowKey) -> Result<XattrRow, Self::Error>;

    /// Visits the rows of extended attributes of an inode, until `visit` returns false.
    fn xattr_rows(
        &self,
        ino: InodeId,
        visit: &mut dyn FnMut(RowKey, XattrRow) -> bool,
    ) -> Result<(), Self::Error>;

    /// Visits the keys of the rows of extended attributes of an inode, until `visit` returns false.
    fn xattr_keys(
        &self,
        ino: InodeId,
        visit: &mut dyn FnMut(RowKey) -> bool,
    ) -> Result<(), Self::Error>;

    /// A row of parent pointers; an empty row if there is none.
    fn parent_row(&self, key: RowKey) -> Result<ParentRow, Self::Error>;

    /// Visits the rows of parent pointers of one inode from `key` on, in order, until `visit` returns false.
    fn parent_rows(
        &self,
        key: RowKey,
        visit: &mut dyn FnMut(RowKey, ParentRow) -> bool,
    ) -> Result<(), Self::Error>;
}

/// Reads of rows that an operation is going to write, and what it must know besides rows. An answer holds until the operation is
/// committed or dropped.
///
/// An implementation answers [`Need::Rows`] for a row that is not locked.
pub trait Locked: Rows<Error = Stop> {
    /// The inode in its own row.
    fn inode(&self, ino: InodeId) -> Outcome<Option<Inode>>;

    /// The names in the row `key`; an empty row if there is none.
    fn entry_row(&self, key: RowKey) -> Outcome<EntryRow>;

    /// Why `ino`, which has no row of its own, is no directory.
    fn not_a_directory(&self, ino: InodeId) -> FsError;

    /// An id that no inode has had. An operation that begins again gets the same one.
    fn new_ino(&self) -> Outcome<InodeId>;

    /// Where `ino` is.
    fn place(&self, ino: InodeId) -> Outcome<InodeLocation>;

    /// Whether an inode without a name must keep its rows: somebody has it open, or knows it, and it `has_more_rows` than
    /// memory keeps.
    fn must_outlive_its_name(&self, ino: InodeId, has_more_rows: bool) -> Outcome<bool>;

    /// Whether an inode without a name may get one (O_TMPFILE without O_EXCL).
    fn is_linkable(&self, ino: InodeId) -> bool;

    /// Whether somebody has to find `ino` again after a restart who may know only where it was: it is open, and clients open it
    /// again by that.
    fn must_be_found(&self, ino: InodeId) -> bool;

    /// Whether no directory anywhere gets another parent meanwhile.
    fn tree_stands_still(&self) -> bool;

    /// Whether the locks of all rows are held.
    fn all_rows_are_locked(&self) -> bool;

    /// Whether a move from one directory to the other leaves or enters a tree with limits.
    fn crosses_limits(&self, from: InodeId, to: InodeId) -> Outcome<bool>;

    /// What lies below a directory, as far as rows tell, with what directories below have not yet propagated.
    fn usage_below(&self, dir: InodeId) -> Outcome<Usage>;

    /// Keeps others from changing anything in a directory that is to be moved or removed. What is read of it before may be old.
    fn claim_directory(&self, dir: InodeId) -> Outcome<()>;

    /// Refuses to write an inode whose large file somebody writes to who does not ask here.
    fn check_written_elsewhere(&self, inode: &Inode) -> Outcome<()>;

    /// Refuses that for any inode in a row of names.
    fn check_none_written_elsewhere(&self, row: &EntryRow) -> Outcome<()>;

    /// Brings size and times of `inode` up to date, if it is a large file that is being written.
    fn refresh_from_object(&self, inode: &mut Inode);

    /// The size of a large file that is being written, in bytes.
    fn object_bytes(&self, ino: InodeId) -> Outcome<u64>;
}
