//! Making, removing, linking and moving names: each call lets the operation of [`varve_namespace`] decide under its locks
//! ([`crate::locked`]), writes the decision, and counts lookups before the locks are dropped.

use std::sync::Arc;

use varve_namespace::{Created, Decision, NameIn, NewInode, Remove, create, link, remove, rename};
use varve_schema::{InodeLocation, RowKey};
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, Entry, FsError, FsResult, Gave, OpenFlags, Opened, RenameMode};

use crate::descriptors::OpenNode;
use crate::fs::VarveFs;

impl VarveFs {
    /// Makes `new` under `name`; the entry counts as a lookup.
    pub(crate) fn make(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        new: &NewInode,
    ) -> FsResult<Entry> {
        let note = |ino, place| self.session.inodes.note_new(ino, place);
        self.make_under_locks(caller, parent, name, new, note).map(|(entry, ())| entry)
    }

    /// Makes an empty regular file under `name` and opens it; the entry counts as a lookup.
    pub(crate) fn make_and_open(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        let new = NewInode::regular(perm);
        self.make_under_locks(caller, parent, name, &new, |ino, place| {
            let node = self.session.inodes.note_new_and_open(ino, place);
            if flags.write {
                self.note_begin(&mut node.state(), parent);
            }
            self.add_handle(&node, flags, false)
        })
    }

    /// Makes an empty regular file under `name` and counts a handle of it, which is a writer; the entry counts as a lookup.
    pub(crate) fn make_and_count(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
    ) -> FsResult<(Entry, Arc<OpenNode>)> {
        let new = NewInode::regular(perm);
        self.make_under_locks(caller, parent, name, &new, |ino, place| {
            let node = self.session.inodes.note_new_and_open(ino, place);
            let mut state = node.state();
            self.note_begin(&mut state, parent);
            state.writers += 1;
            drop(state);
            node
        })
    }

    /// Makes `new` and calls `then`, which counts the lookup, before the locks are dropped.
    fn make_under_locks<T>(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        new: &NewInode,
        then: impl FnOnce(InodeId, InodeLocation) -> T,
    ) -> FsResult<(Entry, T)> {
        self.writable()?;
        self.check_name(parent, name)?;
        let at = NameIn::new(&self.hasher, parent, name);
        let keys = [RowKey::inode(parent), at.key()];
        let mut decision = Decision::default();
        let (_locks, created) = self.decide(&keys, &mut decision, |rows, decision, now| {
            create(rows, &mut decision.changes, caller, at, new, now)
        })?;
        let Created { inode, place } = created;
        self.commit_call(&mut decision.changes, Gave::Inode(inode.ino))?;
        let then = then(inode.ino, place);
        Ok((Entry::of(self.attr(&inode)?), then))
    }

    pub(crate) fn do_link(
        &self,
        ino: InodeId,
        parent: InodeId,
        name: FileName<'_>,
    ) -> FsResult<Entry> {
        self.writable()?;
        self.check_name(parent, name)?;
        if ino.is_synthetic() {
            return Err(FsError::NotPermitted);
        }
        let at = NameIn::new(&self.hasher, parent, name);
        let mut keys = vec![RowKey::inode(parent), at.key(), RowKey::inode(ino)];
        if let Some(InodeLocation::Entry { key, .. }) = self.session.inodes.place(ino)? {
            keys.push(key);
        }
        // What has no name counts nowhere, so it must not grow between the look at its size and the name.
        let node = self.session.inodes.node(ino).filter(|node| node.state().linkable);
        let growing = node.as_ref().map(|node| node.append.lock());
        let mut decision = Decision::default();
        let (locks, inode) = self.decide(&keys, &mut decision, |rows, decision, now| {
            link(rows, decision, ino, at, now)
        })?;
        self.carry_out(&locks, &mut decision, Gave::Inode(ino))?;
        self.session.inodes.note_lookup(ino, InodeLocation::Own)?;
        drop((locks, growing));
        // A writer may have closed it when it had no name.
        if inode.nlink == 1 && inode.content.is_dirty() {
            self.settle_unwritten(ino);
        }
        Ok(Entry::of(self.attr(&inode)?))
    }

    pub(crate) fn remove_name(
        &self,
        parent: InodeId,
        name: FileName<'_>,
        what: Remove,
    ) -> FsResult<()> {
        self.writable()?;
        self.check_name(parent, name)?;
        let at = NameIn::new(&self.hasher, parent, name);
        let keys = [RowKey::inode(parent), at.key()];
        let mut decision = Decision::default();
        let (locks, ()) = self.decide(&keys, &mut decision, |rows, decision, now| {
            remove(rows, decision, at, what, now)
        })?;
        self.carry_out(&locks, &mut decision, Gave::Nothing)
    }

    pub(crate) fn do_rename(
        &self,
        from: NameIn<'_>,
        to: NameIn<'_>,
        mode: RenameMode,
    ) -> FsResult<()> {
        self.writable()?;
        self.check_name(from.dir, from.name)?;
        self.check_name(to.dir, to.name)?;
        let keys = [RowKey::inode(from.dir), RowKey::inode(to.dir), from.key(), to.key()];
        let mut decision = Decision::default();
        let (locks, ()) = self.decide(&keys, &mut decision, |rows, decision, now| {
            rename(rows, decision, from, to, mode, now)
        })?;
        // Nothing changes where both names are of one inode.
        if decision.changes.dirs.is_empty() {
            return Ok(());
        }
        self.carry_out(&locks, &mut decision, Gave::Nothing)
    }
}
