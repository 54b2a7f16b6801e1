//! The operations, as values that print themselves.

use std::fmt;

use varve_types::FileFlags;
use varve_vfs::{
    AccessMode, AllocateMode, Caller, OpenFlags, RenameMode, SeekFrom, SetAttr, XattrMode,
};

/// The names from the root down to an object; none for the root itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TreePath(pub Vec<Vec<u8>>);

impl TreePath {
    /// Returns the path of `name` in this directory.
    pub fn join(&self, name: &[u8]) -> TreePath {
        let mut names = self.0.clone();
        names.push(name.to_vec());
        TreePath(names)
    }

    /// Returns the directory's path and the last name; `None` for the root.
    pub fn split(&self) -> Option<(&[Vec<u8>], &[u8])> {
        self.0.split_last().map(|(name, dir)| (dir, name.as_slice()))
    }

    /// Returns whether it leads to `above` or below it.
    pub fn is_within(&self, above: &TreePath) -> bool {
        self.0.starts_with(&above.0)
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        for name in &self.0 {
            let shown = &name[..name.len().min(12)];
            write!(f, "/{}", shown.escape_ascii())?;
            if shown.len() < name.len() {
                write!(f, "[{} bytes]", name.len())?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where a session keeps an open handle.
pub type Slot = usize;

/// One operation on a file system. Opening into a slot in use ends the old handle first; an operation on
/// an empty slot does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "each is the call of Vfs of that name with the arguments of that name"
)]
pub enum Op {
    Getattr { path: TreePath },
    SetAttr { caller: Caller, path: TreePath, set: SetAttr },
    Readlink { path: TreePath },
    Mknod { caller: Caller, path: TreePath, mode: u32, rdev: u32 },
    Mkdir { caller: Caller, path: TreePath, perm: u32 },
    Symlink { caller: Caller, path: TreePath, target: Vec<u8> },
    Link { from: TreePath, to: TreePath },
    Unlink { path: TreePath },
    Rmdir { path: TreePath },
    Rename { from: TreePath, to: TreePath, mode: RenameMode },
    Clone { from: TreePath, to: TreePath },
    Create { caller: Caller, path: TreePath, perm: u32, flags: OpenFlags, slot: Slot },
    Tmpfile { caller: Caller, dir: TreePath, perm: u32, flags: OpenFlags, slot: Slot },
    Open { path: TreePath, flags: OpenFlags, slot: Slot },
    Readdir { path: TreePath, page: usize, with_attr: bool },
    Access { caller: Caller, path: TreePath, mode: AccessMode },
    SetXattr { path: TreePath, name: Vec<u8>, len: usize, fill: u64, mode: XattrMode },
    GetXattr { path: TreePath, name: Vec<u8> },
    ListXattr { path: TreePath },
    RemoveXattr { path: TreePath, name: Vec<u8> },
    GetFlags { path: TreePath },
    SetFlags { path: TreePath, flags: FileFlags },
    FsyncDir { path: TreePath },
    Sync,
    SlotGetattr { slot: Slot },
    SlotSetAttr { caller: Caller, slot: Slot, set: SetAttr },
    SlotLink { slot: Slot, to: TreePath },
    Read { slot: Slot, offset: u64, len: usize },
    Write { slot: Slot, offset: u64, len: usize, fill: u64, kill_set_id: bool },
    CopyRange { from: Slot, from_offset: u64, slot: Slot, offset: u64, len: u64 },
    Fallocate { slot: Slot, mode: AllocateMode, offset: u64, len: u64 },
    Seek { slot: Slot, offset: u64, what: SeekFrom },
    Fsync { slot: Slot, data_only: bool },
    Release { slot: Slot },
}

impl Op {
    /// Returns the slot of the open file that this operates on.
    pub(crate) fn open_slot(&self) -> Option<Slot> {
        match self {
            Op::SlotGetattr { slot }
            | Op::SlotSetAttr { slot, .. }
            | Op::SlotLink { slot, .. }
            | Op::Read { slot, .. }
            | Op::Write { slot, .. }
            | Op::CopyRange { slot, .. }
            | Op::Fallocate { slot, .. }
            | Op::Seek { slot, .. }
            | Op::Fsync { slot, .. }
            | Op::Release { slot } => Some(*slot),
            _ => None,
        }
    }

    /// Returns the slot of the open file that this operates on, or opens.
    pub(crate) fn slot(&self) -> Option<Slot> {
        match self {
            Op::Create { slot, .. } | Op::Open { slot, .. } | Op::Tmpfile { slot, .. } => {
                Some(*slot)
            }
            _ => self.open_slot(),
        }
    }
}
