//! Marked directories tell their parents.
//!
//! One directory at a time, under the locks of both rows, in one batch: the parent is charged with what the
//! directory has not told, which thereby is told, and the directory's mark ends. The parent may be marked by
//! that; younger directories, which mostly lie deeper, come first, so that few parents are told twice.
//!
//! One that cannot tell, as a transaction has locked it or its row cannot be read, keeps no other from telling. A commit may have
//! brought any number. Nobody waits for all of these: who finds no room lets about [`MARKS_MAX`] tell, and from then on there is
//! room for as many again as are left.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use varve_namespace::{Changes, Standing};
use varve_schema::{Content, DirInfo, Inode, RowKey, UsageChange};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use super::{Accounts, MARKS_MAX};

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
        self.tell_marked(&mut self.telling.lock(), usize::MAX);
    }

    /// Lets some directories tell if more are marked than there is room for.
    pub(crate) fn make_room(&self) {
        if self.marks.count() <= self.room.load(Ordering::Relaxed) {
            return;
        }
        let mut telling = self.telling.lock();
        // Somebody else may have done it meanwhile.
        if self.marks.count() > self.room.load(Ordering::Relaxed) {
            self.tell_marked(&mut telling, self.marks_max);
        }
    }

    /// Whether there is little room left, so that somebody should let directories tell before callers wait for it. Says so once until
    /// they are let.
    pub(crate) fn should_tell_soon(&self) -> bool {
        let room = self.room.load(Ordering::Relaxed);
        self.marks.count() > room - room / 4 && !self.asked.swap(true, Ordering::Relaxed)
    }

    /// Lets `max` of the marked directories tell, and those above them; in a view none, as its commit relies on. Who waits for
    /// `telling` has it in between.
    fn tell_marked(&self, telling: &mut MutexGuard<'_, ()>, max: usize) {
        if !self.marks.are_of_main() {
            return;
        }
        self.asked.store(false, Ordering::Relaxed);
        self.set_room();
        let mut left: BTreeSet<InodeId> = self.marks.dirs().into_iter().take(max).collect();
        let (mut failed, mut failures, mut asked) = (None, 0_usize, 0_usize);
        while let Some(dir) = left.pop_last() {
            asked += 1;
            if asked.is_multiple_of(MARKS_MAX) {
                MutexGuard::bump(telling);
            }
            match self.tell(dir) {
                Ok(parent) => left.extend(parent),
                // A transaction has it locked; the mark stays until another time.
                Err(FsError::Blocked(_)) => {}
                Err(error) => {
                    failures += 1;
                    failed.get_or_insert((dir, error));
                }
            }
        }
        self.set_room();
        if let Some((dir, error)) = failed {
            log::warn!(
                "the usage of {failures} directories is not summed up for now, of inode {dir} first: {error}"
            );
        }
    }

    /// Who is marked now is not asked by each change that comes: not before as many more wait.
    fn set_room(&self) {
        let room = self.marks_max.max(self.marks.count().saturating_mul(2));
        self.room.store(room, Ordering::Relaxed);
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
            let mut changes = Changes::new();
            changes.reclaims_space = true;
            changes.standing = Standing::Propagated;
            changes.charge(parent, info.untold);
            inode.content = Content::Directory(DirInfo { untold: UsageChange::default(), ..info });
            changes.put_inode(&inode);
            changes.propagated.push(dir);
            self.commit(changes)?;
            let passes_on = parent != InodeId::ROOT && !info.untold.is_zero();
            return Ok(passes_on.then_some(parent));
        }
    }

    /// The inode of a directory; `None` if it was removed.
    fn directory(&self, dir: InodeId) -> FsResult<Option<(Inode, DirInfo)>> {
        let Some(inode) = self.dirs.read(dir)? else {
            return Ok(None);
        };
        let Content::Directory(info) = inode.content else { return Ok(None) };
        Ok(Some((inode, info)))
    }
}
