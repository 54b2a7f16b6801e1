//! Propagation of pending usage from marked directories to their parents.
//!
//! 1. One directory at a time, under the locks of both rows and in one batch: the parent is charged with the pending usage of the
//!    directory, which has none then, and the directory's mark ends.
//! 2. The parent may be marked by that. Younger directories, which mostly lie deeper, come first, so that few parents are charged
//!    twice.
//!
//! A directory that a transaction has locked, or whose row cannot be read, keeps no other from being propagated. A commit may have
//! brought any number of marks. Nobody waits for all of these: an operation that finds no room propagates about [`MARKS_MAX`], and
//! from then on there is room for as many again as are left.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use varve_namespace::{Changes, Standing};
use varve_schema::{Content, DirInfo, Inode, RowKey, UsageChange};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use super::Accounts;
use super::marks::MARKS_MAX;

impl Accounts {
    /// Propagates all pending usage if any directory was marked since the last time. So a mount that changes nothing writes
    /// nothing.
    pub(crate) fn propagate_news(&self) {
        if self.marks.take_news() {
            self.propagate_all();
        }
    }

    /// Propagates the pending usage of all directories that are marked now. Failures leave marks, and are logged.
    pub(crate) fn propagate_all(&self) {
        self.propagate_marked(&mut self.propagating.lock(), usize::MAX);
    }

    /// Propagates some pending usage if more directories are marked than there is room for.
    pub(crate) fn make_room(&self) {
        if self.marks.count() <= self.room.load(Ordering::Relaxed) {
            return;
        }
        let mut propagating = self.propagating.lock();
        // Somebody else may have done it meanwhile.
        if self.marks.count() > self.room.load(Ordering::Relaxed) {
            self.propagate_marked(&mut propagating, self.marks_max);
        }
    }

    /// Whether there is little room left, so that usage should be propagated before callers wait for it. Says so once until
    /// that begins.
    pub(crate) fn should_propagate_soon(&self) -> bool {
        let room = self.room.load(Ordering::Relaxed);
        self.marks.count() > room - room / 4 && !self.asked.swap(true, Ordering::Relaxed)
    }

    /// Propagates the pending usage of `max` marked directories, and of the directories above them; in a snapshot or transaction of
    /// none, as its commit relies on. Others that wait for `propagating` have it in between.
    fn propagate_marked(&self, propagating: &mut MutexGuard<'_, ()>, max: usize) {
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
                MutexGuard::bump(propagating);
            }
            match self.propagate(dir) {
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

    /// Changes that come do not ask for the directories that are marked now: not before as many more are marked.
    fn set_room(&self) {
        let room = self.marks_max.max(self.marks.count().saturating_mul(2));
        self.room.store(room, Ordering::Relaxed);
    }

    /// Propagates the pending usage of `dir` to its parent; returns the parent if that has pending usage now.
    fn propagate(&self, dir: InodeId) -> FsResult<Option<InodeId>> {
        let Some((_, seen)) = self.directory(dir)? else { return Ok(None) };
        let mut parent = seen.parent;
        loop {
            let _guards = self.locks.lock(&[RowKey::inode(dir), RowKey::inode(parent)]);
            let Some((mut inode, info)) = self.directory(dir)? else { return Ok(None) };
            if info.parent != parent {
                parent = info.parent;
                continue;
            }
            if cfg!(debug_assertions)
                && let Some((_, above)) = self.directory(parent)?
            {
                let counted = info.usage.minus(info.pending).as_change().plus(UsageChange::DIR);
                assert!(
                    above.usage.covers(counted.negated()),
                    "directory {parent} holds {:?}, less than it counts for directory {dir} in it: {counted:?}",
                    above.usage
                );
            }
            let mut changes = Changes::new();
            changes.reclaims_space = true;
            changes.standing = Standing::Propagated;
            changes.charge(parent, info.pending);
            inode.content = Content::Directory(DirInfo { pending: UsageChange::default(), ..info });
            changes.put_inode(&inode);
            changes.propagated.push(dir);
            self.commit(&mut changes)?;
            let passes_on = parent != InodeId::ROOT && !info.pending.is_zero();
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
