//! Carrying out an operation of [`varve_namespace`] on this store: locks, what it reads under them, the batch, and what follows.
//!
//! 1. [`VarveFs::decide`] locks the rows that an operation is expected to write, and lets it decide.
//! 2. Where it needs more ([`Need`]), all row locks are dropped and taken anew with what it needs, so that no operation waits
//!    for a lock while it holds one. Then the operation begins again.
//! 3. [`VarveFs::carry_out`] writes the decision as one batch and lets memory follow, still under the locks.
//!
//! Invariant: the lock of the tree is taken before row locks.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use smallvec::SmallVec;
use varve_env::File;
use varve_namespace::{Decision, Effect, Locked, Need, Outcome, Rows, Space, Stop};
use varve_schema::key::MetaRow;
use varve_schema::{
    EntryRow, FileKind, Inode, InodeLocation, NameHasher, ParentRow, RowKey, Usage, XattrRow,
};
use varve_session::InodeTable;
use varve_types::{InodeId, Timestamp};
use varve_vfs::{FsError, FsResult, Gave};

use crate::fs::VarveFs;
use crate::locks::RowGuards;

/// Rows that an operation asked for besides those it began with, before those of earlier tries are dropped: each try may have
/// met other names.
const ASKED_ROWS_MAX: usize = 8;

/// Rows that are locked for an operation, and what it knows under the locks.
pub(crate) struct LockedRows<'a> {
    fs: &'a VarveFs,
    keys: SmallVec<[RowKey; 6]>,
    /// How many of `keys` it began with.
    first: usize,
    new_ino: Cell<Option<InodeId>>,
    orphans: Orphans<'a>,
    // In the order in which they are dropped.
    guards: RowGuards<'a>,
    all: bool,
    tree: Option<MutexGuard<'a, ()>>,
}

/// Inodes that the operation is about to take the last name from. Dropped before it is committed, they keep their names.
struct Orphans<'a> {
    inodes: &'a InodeTable<Arc<dyn File>>,
    marked: RefCell<SmallVec<[InodeId; 1]>>,
}

impl Drop for Orphans<'_> {
    fn drop(&mut self) {
        self.marked.get_mut().iter().for_each(|ino| self.inodes.unmark_orphan(*ino));
    }
}

impl VarveFs {
    /// Lets `operation` fill `decision`, which is empty, under the locks of the rows `first` and of what else it turns out to need.
    /// The locks are held as long as the first of what this returns. REQUIRES: the caller holds no row lock.
    pub(crate) fn decide<T>(
        &self,
        first: &[RowKey],
        decision: &mut Decision,
        operation: impl Fn(&LockedRows<'_>, &mut Decision, Timestamp) -> Outcome<T>,
    ) -> FsResult<(LockedRows<'_>, T)> {
        let mut rows = LockedRows {
            fs: self,
            keys: SmallVec::from_slice(first),
            first: first.len(),
            new_ino: Cell::new(None),
            orphans: Orphans { inodes: &self.session.inodes, marked: RefCell::default() },
            guards: self.lock_rows(first)?,
            all: false,
            tree: None,
        };
        loop {
            match operation(&rows, decision, self.now()) {
                Ok(decided) => return Ok((rows, decided)),
                Err(Stop::Refused(error)) => return Err(error),
                Err(Stop::Needs(need)) => {
                    *decision = Decision::default();
                    rows = rows.with(need)?;
                }
            }
        }
    }

    /// Writes what an operation has decided, which may move inodes and gives `gave`, and lets memory follow.
    pub(crate) fn carry_out(
        &self,
        rows: &LockedRows<'_>,
        decision: &mut Decision,
        gave: Gave,
    ) -> FsResult<()> {
        debug_assert!(
            rows.hold_locks_of(decision),
            "an operation writes rows that it has not locked"
        );
        let committed = self.commit_call(&mut decision.changes, gave);
        if rows.all {
            self.accounts.forget_chains();
        }
        committed?;
        rows.orphans.marked.borrow_mut().clear();
        self.follow(decision.effects.drain(..))
    }

    /// Lets memory follow what was written.
    pub(crate) fn follow(&self, effects: impl IntoIterator<Item = Effect>) -> FsResult<()> {
        self.moves.fetch_add(1, Ordering::AcqRel);
        for effect in effects {
            match effect {
                Effect::Moved { ino, to } => self.session.inodes.moved(ino, to)?,
                Effect::Orphaned(ino) => self.session.inodes.moved(ino, InodeLocation::Own)?,
                Effect::Gone { inode, has_object } => {
                    let ino = inode.ino;
                    self.session.inodes.detach(inode)?;
                    if has_object {
                        self.reaper.enqueue(ino);
                    }
                }
                Effect::Named(ino) => {
                    self.session.inodes.unmark_orphan(ino);
                    if let Some(node) = self.session.inodes.node(ino) {
                        node.state().linkable = false;
                    }
                }
            }
        }
        Ok(())
    }
}

impl LockedRows<'_> {
    /// The same, with what is needed as well.
    fn with(mut self, need: Need) -> FsResult<Self> {
        self.orphans = Orphans { inodes: &self.fs.session.inodes, marked: RefCell::default() };
        drop(self.guards);
        match need {
            Need::Rows(more) => {
                if self.keys.len() + more.len() > self.first + ASKED_ROWS_MAX {
                    self.keys.truncate(self.first);
                }
                self.keys.extend(more);
            }
            Need::Names(dir) => self.fs.unfold(dir)?,
            Need::Tree => self.tree = Some(self.fs.tree.lock()),
            Need::AllRows => self.all = true,
        }
        self.guards = self.fs.lock_rows_or_all(&self.keys, self.all)?;
        Ok(self)
    }

    /// Whether the locks of all rows of names and inodes that `decision` writes are held here. An inode gets its first row under the
    /// lock of the row of names that it lies in.
    fn hold_locks_of(&self, decision: &Decision) -> bool {
        let changes = &decision.changes;
        let inodes = changes.dirs.iter().map(|dir| dir.ino);
        let inodes = inodes.chain(changes.charges.iter().map(|(dir, _)| *dir));
        let written = changes.writes.iter().filter(|write| write.space == Space::Meta);
        let mut keys = written.map(|write| write.key).chain(inodes.map(RowKey::inode));
        keys.all(|key| match key.meta_kind() {
            MetaRow::Entry(..) => self.guards.holds(key),
            MetaRow::Inode(ino) => {
                let lies_in = match self.fs.session.inodes.place(ino) {
                    Ok(Some(InodeLocation::Entry { key, .. })) => key,
                    _ => key,
                };
                self.new_ino.get() == Some(ino)
                    || self.guards.holds(key)
                    || self.guards.holds(lies_in)
            }
            _ => true,
        })
    }

    /// Asks for the lock of `key`, unless it is held.
    fn check_locked(&self, key: RowKey) -> Outcome<()> {
        if self.guards.holds(key) { Ok(()) } else { Err(Stop::row(key)) }
    }
}

impl Rows for LockedRows<'_> {
    type Error = Stop;

    fn hasher(&self) -> &NameHasher {
        &self.fs.hasher
    }

    fn obeys_lists(&self) -> bool {
        self.fs.obeys_lists()
    }

    fn peek_inode(&self, ino: InodeId) -> Outcome<Option<Inode>> {
        Ok(self.fs.inode_row(ino)?)
    }

    fn xattr_row(&self, key: RowKey) -> Outcome<XattrRow> {
        Ok(self.fs.xattr_row(key)?)
    }

    fn xattr_rows(
        &self,
        ino: InodeId,
        visit: &mut dyn FnMut(RowKey, XattrRow) -> bool,
    ) -> Outcome<()> {
        Ok(self.fs.xattr_rows(ino, visit)?)
    }

    fn xattr_keys(&self, ino: InodeId, visit: &mut dyn FnMut(RowKey) -> bool) -> Outcome<()> {
        Ok(self.fs.xattr_keys(ino, visit)?)
    }

    fn parent_row(&self, key: RowKey) -> Outcome<ParentRow> {
        Ok(self.fs.parent_row(key)?)
    }

    fn parent_rows(
        &self,
        key: RowKey,
        visit: &mut dyn FnMut(RowKey, ParentRow) -> bool,
    ) -> Outcome<()> {
        Ok(self.fs.parent_rows(key, visit)?)
    }
}

impl Locked for LockedRows<'_> {
    fn inode(&self, ino: InodeId) -> Outcome<Option<Inode>> {
        self.check_locked(RowKey::inode(ino))?;
        Ok(self.fs.inode_row(ino)?)
    }

    fn entry_row(&self, key: RowKey) -> Outcome<EntryRow> {
        self.check_locked(key)?;
        match self.guards.know_absent(key) {
            true => Ok(EntryRow::default()),
            false => Ok(self.fs.entry_row(key)?),
        }
    }

    fn not_a_directory(&self, ino: InodeId) -> FsError {
        match self.fs.peek_inode(ino) {
            Ok(Some(inode)) if inode.kind == FileKind::Directory => FsError::NotFound,
            // What is being moved within rows of names is none either.
            Ok(_) => FsError::NotDirectory,
            Err(error) => error,
        }
    }

    fn new_ino(&self) -> Outcome<InodeId> {
        let ino = match self.new_ino.get() {
            Some(ino) => ino,
            None => self.fs.ids.allocate()?,
        };
        self.new_ino.set(Some(ino));
        Ok(ino)
    }

    fn place(&self, ino: InodeId) -> Outcome<InodeLocation> {
        Ok(self.fs.session.inodes.place(ino)?.unwrap_or(InodeLocation::Own))
    }

    fn must_outlive_its_name(&self, ino: InodeId, has_more_rows: bool) -> Outcome<bool> {
        let marked = self.fs.session.inodes.mark_orphan(ino, has_more_rows)?;
        if marked {
            self.orphans.marked.borrow_mut().push(ino);
        }
        Ok(marked)
    }

    fn is_linkable(&self, ino: InodeId) -> bool {
        self.fs.session.inodes.node(ino).is_some_and(|node| node.state().linkable)
    }

    fn must_be_found(&self, ino: InodeId) -> bool {
        let is_open = || self.fs.session.inodes.node(ino).is_some_and(|it| it.state().handles > 0);
        self.fs.options.keep_orphans && is_open()
    }

    fn tree_stands_still(&self) -> bool {
        self.tree.is_some()
    }

    fn all_rows_are_locked(&self) -> bool {
        self.all
    }

    fn crosses_limits(&self, from: InodeId, to: InodeId) -> Outcome<bool> {
        Ok(self.fs.accounts.crosses(from, to)?)
    }

    fn usage_below(&self, dir: InodeId) -> Outcome<Usage> {
        Ok(self.fs.recorded_usage(dir)?)
    }

    fn claim_directory(&self, dir: InodeId) -> Outcome<()> {
        self.check_locked(RowKey::inode(dir))?;
        Ok(self.fs.claim_directory(dir)?)
    }

    fn check_written_elsewhere(&self, inode: &Inode) -> Outcome<()> {
        Ok(self.fs.check_written_elsewhere(inode)?)
    }

    fn check_none_written_elsewhere(&self, row: &EntryRow) -> Outcome<()> {
        Ok(self.fs.check_none_written_elsewhere(row)?)
    }

    fn refresh_from_object(&self, inode: &mut Inode) {
        if let Err(error) = self.fs.take_from_object(inode) {
            log::warn!("the object of a removed inode cannot be asked for its size: {error}");
        }
    }

    fn object_bytes(&self, ino: InodeId) -> Outcome<u64> {
        Ok(self.fs.object_stat(ino)?.len)
    }
}
