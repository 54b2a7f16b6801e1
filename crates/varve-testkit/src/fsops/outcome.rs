//! The outcome of an operation, in a form that is equal for any two correct file systems: inode ids become numbers in
//! the order of their first appearance, times become flags for a change, and listings are sorted.

use varve_types::{Errno, FileFlags, Timestamp};
use varve_vfs::FileType;

/// Attributes without what two correct file systems may differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of varve_vfs::Attr")]
pub struct AttrView {
    /// Which inode, numbered in the order the session saw them. One that comes back counts as the same.
    pub inode: usize,
    pub kind: FileType,
    pub perm: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub size: u64,
}

/// One name of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: Vec<u8>,
    /// The type the listing gave.
    pub kind: FileType,
    /// The inode, as in [`AttrView::inode`].
    pub inode: usize,
    /// The attributes, if they were asked for.
    pub attr: Option<AttrView>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Success with nothing to show.
    Done,
    /// The slot was empty.
    Skipped,
    /// Attributes, and the times that were set to fixed values.
    Attr(AttrView, Option<Timestamp>, Option<Timestamp>),
    /// Bytes read.
    Bytes(Vec<u8>),
    /// Bytes written.
    Count(usize),
    /// A listing, sorted by name, and whether its cookies kept their rules.
    Listing(Vec<Listed>, bool),
    /// File flags.
    Flags(FileFlags),
    /// Names of extended attributes, sorted.
    Names(Vec<Vec<u8>>),
    /// Whether a data or hole offset was one of the allowed ones.
    SeekAllowed(bool),
}

/// How an inode that the operation was about looks afterwards, and which of its times moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched {
    /// The attributes after the operation; `None` if they cannot be had.
    pub after: Option<AttrView>,
    /// The mtime changed.
    pub mtime_moved: bool,
    /// The ctime changed.
    pub ctime_moved: bool,
}

/// Everything that an operation returned or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The answer.
    pub answer: Result<Answer, Errno>,
    /// The inodes it was about: parents first, then targets.
    pub touched: Vec<Touched>,
}
