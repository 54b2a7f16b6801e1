//! Marked directories tell their parents.
//!
//! One directory at a time, under the locks of both rows, in one batch: the parent is charged with what the
//! directory has not told, which thereby is told, and the directory's mark ends. The parent may be marked by
//! that; younger directories, which mostly lie deeper, come first, so that few parents are told twice.

use std::collections::BTreeSet;

use varve_schema::{Content, DirInfo, Inode, RowKey, UsageChange};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use super::Accounts;
use crate::rows::{Changes, Standing, read_inode_row};

impl Accounts {
    /// Lets every marked directory tell if any was marked since the last time: so a mount that changes nothing
    /// writes nothing.
    pub(crate) fn tell_news(&self) {
        if self.marks.take_news() {
            self.tell_all();
        }
    }

    /// Lets every directory tell that is marked now. Failures leave marks, and are logged.
    pub(crate) fn tell_all(&self) {
        let _telling = self.telling.lock();
        if let Err(error) = self.tell_marked() {
            log::warn!("the usage of some directories is not summed up for now: {error}");
        }
    }

    fn tell_marked(&self) -> FsResult<()> {
        let mut left: BTreeSet<InodeId> = self.marks.dirs().into_iter().collect();
        while let Some(dir) = left.pop_last() {
            match self.tell(dir) {
                Ok(parent) => left.extend(parent),
                // A transaction has it locked; the mark stays until another time.
                Err(FsError::Blocked(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Lets `dir` tell its parent; returns the parent if that now has something to tell.
    fn tell(&self, dir: InodeId) -> FsResult<Option<InodeId>> {
        let Some((_, seen)) = self.directory(dir)? else { return Ok(None) };
        let mut parent = seen.parent;
        loop {
            let _guards = self.locks.lock(&[RowKey::inode(dir), RowKey::inode(parent)]);
            let Some((mut inode, info)) = self.directory(dir)? else { return Ok(None) };
            if info.parent != parent {
                parent = info.parent;
                continue;
            }
            let mut changes = Changes::in_keyspaces(self.meta, self.data);
            changes.batch.reclaims_space();
            changes.standing = Standing::Told;
            changes.charge(parent, info.untold);
            inode.content = Content::Directory(DirInfo { untold: UsageChange::default(), ..info });
            changes.put_inode(&inode);
            changes.told.push(dir);
            self.commit(changes)?;
            let passes_on = parent != InodeId::ROOT && !info.untold.is_zero();
            return Ok(passes_on.then_some(parent));
        }
    }

    /// The inode of a directory; `None` if it was removed.
    fn directory(&self, dir: InodeId) -> FsResult<Option<(Inode, DirInfo)>> {
        let Some(inode) = read_inode_row(self.store.as_ref(), self.meta, dir)? else {
            return Ok(None);
        };
        let Content::Directory(info) = inode.content else { return Ok(None) };
        Ok(Some((inode, info)))
    }
}
