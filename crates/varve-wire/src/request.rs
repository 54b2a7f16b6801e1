//! The calls of a client.
//!
//! There is one request for each call of [`varve_vfs::Vfs`]. The client chooses the numbers of its open files, so that
//! they stay the same when it opens them again after a restart of the server.

use serde::{Deserialize, Serialize};

use crate::attr::{AllocateMode, Caller, OpenFlags, Place, RenameMode, SetAttr, XattrMode};

/// An inode, and where the server found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The inode id.
    pub ino: u64,
    /// The place that came with its entry.
    pub place: Place,
}

/// A position in an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The inode.
    pub node: Node,
    /// The number of the open file.
    pub file: u64,
    /// The offset in bytes.
    pub offset: u64,
}

/// One call. New calls go last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "fields are the arguments of the calls of `Vfs`")]
pub enum Request<'a> {
    /// `Entry`
    Lookup { parent: Node, name: &'a [u8] },
    /// `Entry`
    LookupParent { dir: Node },
    /// `Entry`; the inode by its number alone.
    LookupInode { ino: u64 },
    /// `Attr`
    Getattr { node: Node },
    /// `Attr`
    Setattr { caller: Caller, node: Node, set: SetAttr },
    /// `Done`, the target is the data.
    Readlink { node: Node },
    /// `Entry`
    Mknod { caller: Caller, parent: Node, name: &'a [u8], mode: u32, rdev: u32 },
    /// `Entry`
    Mkdir { caller: Caller, parent: Node, name: &'a [u8], perm: u32 },
    /// `Entry`; the target is the data.
    Symlink { caller: Caller, parent: Node, name: &'a [u8] },
    /// `Entry`
    Link { node: Node, parent: Node, name: &'a [u8] },
    /// `Done`
    Unlink { parent: Node, name: &'a [u8] },
    /// `Done`
    Rmdir { parent: Node, name: &'a [u8] },
    /// `Done`
    Rename { parent: Node, name: &'a [u8], new_parent: Node, new_name: &'a [u8], mode: RenameMode },
    /// `Created`; opens the file under the number `file`.
    Create { caller: Caller, parent: Node, name: &'a [u8], perm: u32, flags: OpenFlags, file: u64 },
    /// `Created`
    Tmpfile { caller: Caller, parent: Node, perm: u32, flags: OpenFlags, file: u64 },
    /// `Opened`. With `again` the file was open before the server began anew.
    Open { node: Node, flags: OpenFlags, file: u64, again: bool },
    /// `Done`, the bytes are the data.
    Read { node: Node, file: u64, offset: u64, length: u32 },
    /// `Written`; the bytes are the data. With `append` the offset is where the client takes the end to be.
    Write { node: Node, file: u64, offset: u64, append: bool, kill_set_id: bool },
    /// `Done`
    Release { node: Node, file: u64 },
    /// `Done`
    Fsync { node: Node, file: u64, data_only: bool },
    /// `Done`
    FsyncDir { node: Node },
    /// `Done`
    Sync,
    /// `Listed`; names of at most `bytes` bytes of data.
    Readdir { node: Node, cookie: u64, with_attr: bool, bytes: u32 },
    /// `StatFs`
    Statfs,
    /// `Done`
    Access { caller: Caller, groups: Vec<u32>, node: Node, rights: u8 },
    /// `Done`
    Fallocate { node: Node, file: u64, mode: AllocateMode, offset: u64, length: u64 },
    /// `Number`
    CopyRange { from: Position, to: Position, length: u64 },
    /// `Number`
    FileFlags { node: Node },
    /// `Done`
    SetFileFlags { node: Node, flags: u8 },
    /// `Number`
    Lseek { node: Node, file: u64, offset: u64, hole: bool },
    /// `Done`, the value is the data.
    Getxattr { node: Node, name: &'a [u8] },
    /// `Done`; the value is the data.
    Setxattr { node: Node, name: &'a [u8], mode: XattrMode },
    /// `Done`, the names are the data.
    Listxattr { node: Node },
    /// `Done`
    Removexattr { node: Node, name: &'a [u8] },
    /// `Entry`
    CloneTree { dir: Node, old_name: &'a [u8], parent: Node, name: &'a [u8] },
    /// `Usage`
    Usage { node: Node },
    /// `Done`
    SetLimits { node: Node, bytes: Option<u64>, inodes: Option<u64> },
    /// `Quotas`; with `below` also the limits on directories below.
    Quotas { node: Node, below: bool },
    /// `Done`, the state as JSON is the data.
    Status,
    /// `Number`; a question about the whole store is the data, in the host's own encoding. The number is the length of its
    /// answer, whose first bytes are the data. The client numbers its questions.
    Ask { question: u64 },
    /// `Number`; the bytes of the answer to a question from an offset on.
    AskRest { question: u64, offset: u64 },
    /// All files that were open at the server before are open again, as far as that was possible. Answer: `Done`.
    Recovered,
}

/// What requests are called, in the order of their variants: in statistics and logs of servers.
pub const KINDS: [&str; 42] = [
    "lookup",
    "lookup_parent",
    "lookup_inode",
    "getattr",
    "setattr",
    "readlink",
    "mknod",
    "mkdir",
    "symlink",
    "link",
    "unlink",
    "rmdir",
    "rename",
    "create",
    "tmpfile",
    "open",
    "read",
    "write",
    "release",
    "fsync",
    "fsync_dir",
    "sync",
    "readdir",
    "statfs",
    "access",
    "fallocate",
    "copy_range",
    "file_flags",
    "set_file_flags",
    "lseek",
    "getxattr",
    "setxattr",
    "listxattr",
    "removexattr",
    "clone_tree",
    "usage",
    "set_limits",
    "quotas",
    "status",
    "ask",
    "ask_rest",
    "recovered",
];

/// Returns the place in [`KINDS`] of the request with this body, which decodes.
pub fn kind(body: &[u8]) -> usize {
    // The number of a variant takes one byte as long as there are fewer than 128.
    body.first().map_or(0, |number| usize::from(*number).min(KINDS.len() - 1))
}
