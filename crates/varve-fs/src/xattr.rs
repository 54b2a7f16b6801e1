//! Extended attributes, as calls ask for them: what they mean for rows is in [`varve_namespace::xattr`].

mod known;

use bytes::Bytes;
use varve_namespace::Changes;
use varve_namespace::xattr::{self, NewXattr, check_name, check_value};
use varve_schema::FileKind;
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, Gave, XattrMode};

use crate::fs::VarveFs;
pub(crate) use known::KnownXattrs;

impl VarveFs {
    pub(crate) fn do_getxattr(&self, ino: InodeId, name: &[u8]) -> FsResult<Bytes> {
        xattr::get(self, &self.read_inode(ino)?, name)
    }

    pub(crate) fn do_listxattr(&self, ino: InodeId) -> FsResult<Vec<u8>> {
        xattr::list(self, &self.read_inode(ino)?)
    }

    pub(crate) fn do_setxattr(
        &self,
        ino: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> FsResult<()> {
        self.writable()?;
        check_name(name)?;
        check_value(value)?;
        let mut held = self.hold(ino)?;
        if held.is_detached() {
            // As one that lost its last name while somebody had it open, or while this call waited for who took that.
            match held.inode.kind {
                FileKind::Regular => self.revive(&mut held)?,
                _ => return Err(FsError::NotFound),
            }
        }
        let row = self.xattrs.now(ino, held.row_key());
        let known = row.and_then(|row| self.xattrs.get(row));
        let mut changes = Changes::new();
        let new = NewXattr { name, value, mode };
        let bytes = xattr::set(self, &mut changes, &mut held.inode, new, known)?;
        held.inode.times.ctime = self.now();
        self.stage(&mut changes, &mut held)?;
        self.commit_call(&mut changes, Gave::Nothing)?;
        if let Some((before, bytes)) = row.zip(bytes) {
            self.xattrs.keep(before, bytes);
        }
        Ok(())
    }

    pub(crate) fn do_removexattr(&self, ino: InodeId, name: &[u8]) -> FsResult<()> {
        self.writable()?;
        check_name(name)?;
        let mut held = self.hold(ino)?;
        let row = self.xattrs.now(ino, held.row_key());
        let known = row.and_then(|row| self.xattrs.get(row));
        let mut changes = Changes::new();
        let removed = xattr::remove(self, &mut changes, &mut held.inode, name, known)?;
        let Some(removed) = removed else { return Ok(()) };
        held.inode.times.ctime = self.now();
        self.stage(&mut changes, &mut held)?;
        self.commit_call(&mut changes, Gave::Nothing)?;
        if let Some((before, bytes)) = row.zip(removed.bytes) {
            self.xattrs.keep(before, bytes);
        }
        Ok(())
    }
}
