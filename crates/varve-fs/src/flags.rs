//! File flags where bytes change and where they are set. What they forbid is said in [`varve_namespace::flags`].

use varve_namespace::Changes;
use varve_namespace::flags::check_changes;
use varve_schema::Inode;
use varve_types::{FileFlags, InodeId};
use varve_vfs::{FsError, FsResult, Gave, OpenFlags};

use crate::data::At;
use crate::fs::VarveFs;

impl VarveFs {
    /// Whether who has opened `inode` with `flags` may write there. Who has opened it to append, and so may have found it to be
    /// append-only, writes elsewhere if the descriptor was changed since, or through mapped memory.
    pub(crate) fn check_writes(&self, inode: &Inode, flags: OpenFlags, at: At) -> FsResult<()> {
        check_changes(inode)?;
        match at {
            At::Offset(offset) if inode.flags.append_only() && flags.appends => {
                match offset < self.attr(inode)?.size {
                    true => Err(FsError::NotPermitted),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn do_set_file_flags(&self, ino: InodeId, flags: FileFlags) -> FsResult<()> {
        self.writable()?;
        let mut held = self.hold(ino)?;
        if !held.inode.kind.has_flags() {
            return Err(FsError::NotSupported("file flags of special files and symbolic links"));
        }
        if held.inode.flags == flags {
            return Ok(());
        }
        let is_fixed_now = flags.immutable() && !held.inode.flags.immutable();
        if is_fixed_now && held.inode.content.is_object() && self.is_written_straight(ino)? {
            return Err(FsError::TextBusy);
        }
        held.inode.flags = flags;
        held.inode.times.ctime = self.now();
        let mut changes = Changes::new();
        self.stage(&mut changes, &mut held)?;
        self.commit_call(&mut changes, Gave::Nothing)
    }
}
