//! Views: file systems on a state of the store of their own, beside the main tree.
//!
//! A *snapshot* ([`crate::snapshots`]) is what the store was at one moment; it has a name and cannot change. A *transaction*
//! ([`crate::transactions`]) can be written to, and ends by becoming part of the main tree ([`crate::commit`]) or by being dropped. Each
//! view is a [`VarveFs`] of its own on its own [`Store`](varve_engine::Store), and so has its own locks, its own inode table, and, once
//! mounted, its own node ids and caches in the kernel.
//!
//! In: the name of a view, the functions of the front end ([`hooks`]). Out: the file system of a view; its beginning and end, as far as
//! large files are concerned. Never: knows what ends a view, or what is written in it.
//!
//! What views share with the main tree, and how it stays right:
//!
//! 1. Inode ids come from the one allocator. An id is handed out for each view that begins, its *epoch*.
//! 2. Object files: what a view sees is kept before it changes ([`crate::preimages`]); a view writes to blocks of its own
//!    ([`crate::objects`]).
//! 3. The volatile key space, where each view has rows of its own ([`crate::spill`]).
//!
//! Source: KVFS, thesis sections 3.3 and 4.2. Departure: a view is a mount, not a process's way of seeing one, so that
//! every program works in it unchanged and several share it.

mod hooks;
mod name;
mod parts;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use varve_engine::{StoreError, StoreResult};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, Transact};

use crate::dictionaries::Dictionaries;
use crate::epoch::Epoch;
use crate::error::{self, invalid};
use crate::fs::VarveFs;
use crate::snapshots::stored_name::{HIDDEN_NAME, parse_name};
pub use name::{ViewKind, ViewName};
pub(crate) use parts::{ViewParts, Views};

impl VarveFs {
    /// Says how views are attached to their places, by the session that serves the file system from now on.
    pub fn attach_views_by(
        &self,
        attach: impl Fn(&ViewName) -> FsResult<()> + Send + Sync + 'static,
    ) {
        if let Some(views) = &self.views {
            views.hooks.attach.set(Arc::new(attach));
        }
    }

    /// Says how transactions are begun and ended for programs on the mount, by the session that serves it from now on.
    pub fn transact_by(&self, work: impl Fn(Transact) -> FsResult<u64> + Send + Sync + 'static) {
        if let Some(views) = &self.views {
            views.hooks.transacting.set(Arc::new(work));
        }
    }

    /// Says how the kernel is had to write what programs have changed in mapped memory of files of the main tree, by the session that
    /// serves it from now on. `NotFound` says that some files are not where they were.
    pub fn write_back_by(
        &self,
        work: impl Fn(&[(InodeId, PathBuf)]) -> io::Result<()> + Send + Sync + 'static,
    ) {
        if let Some(views) = &self.views {
            views.hooks.write_back.set(Arc::new(work));
        }
    }

    pub(crate) fn do_transact(&self, what: Transact) -> FsResult<u64> {
        let work = self.views()?.hooks.transacting.get();
        work.ok_or(FsError::NotSupported("transactions by this mount"))?(what)
    }

    pub(crate) fn views(&self) -> FsResult<&Views> {
        self.views.as_ref().ok_or(FsError::NotSupported("views by this file system"))
    }

    /// Attaches the view whose place is `id`.
    pub(crate) fn do_arrive(&self, id: InodeId) -> FsResult<()> {
        let views = self.views()?;
        let name = self.view_at(id).ok_or(FsError::Stale)?;
        let attach = views.hooks.attach.get();
        let attach = attach.ok_or(FsError::NotSupported("views by this mount"))?;
        attach(&name)?;
        Err(FsError::Stale)
    }

    /// Notes the views of a store that is being opened, and removes what views that were ending have left, unless that
    /// must wait.
    pub(crate) fn begin_views(&self) -> StoreResult<()> {
        let Some(preimages) = self.objects.preimages() else { return Ok(()) };
        let Some(views) = &self.views else { return Ok(()) };
        for snapshot in views.db().snapshots() {
            if let Some((epoch, _)) = parse_name(&snapshot.name) {
                preimages.begin(epoch);
            }
        }
        for txn in self.all_transactions().map_err(invalid)? {
            if !self.options.read_only {
                // A transaction is durable at once, and the mark above its epoch only with the log.
                self.ids.pass(txn.epoch.get(), 1).map_err(invalid)?;
            }
            txn.sees_objects_of().into_iter().for_each(|epoch| preimages.begin(epoch));
        }
        let fail = |error| invalid(error::object("list", &self.dir.join("kept"), error));
        let ended = preimages.ended().map_err(fail)?;
        // What they kept is needed by those before as long as it is there, and by themselves until their end is durable.
        ended.iter().for_each(|epoch| preimages.begin(*epoch));
        if !self.options.read_only && !ended.is_empty() && views.make_ends_durable() {
            ended.into_iter().for_each(|epoch| self.end_view(epoch));
        }
        Ok(())
    }

    /// Does what need not keep others from beginning or ending views, before one begins.
    pub(crate) fn settle_before_view(&self) -> FsResult<()> {
        // A row that says that its file is being written refuses changes in the view, and a rollback.
        self.settle_all_waiting();
        self.accounts.propagate_all();
        // Objects that are removed already need no preimage.
        self.reaper.sync_and_drain()
    }

    /// Begins a view, after [`VarveFs::settle_before_view`]: `pin` makes it, at a moment at which no operation is between two
    /// writes; `unpin` takes it back if preimages of large files cannot be saved for it.
    pub(crate) fn begin_view<T>(
        &self,
        pin: impl FnOnce(Epoch) -> StoreResult<T>,
        unpin: impl FnOnce(&T) -> StoreResult<()>,
    ) -> FsResult<T> {
        let Some(preimages) = self.objects.preimages() else { return Err(FsError::Stale) };
        // Other operations go on while it waits, but changes of large files do not.
        preimages.wait_for_changes();
        let guards = self.locks.lock_all();
        let straight = self.written_straight()?;
        // What the view sees is older than this id: it would be taken for unknown to the view otherwise.
        let epoch = self.ids.begin_epoch()?;
        preimages.begin(epoch);
        let pinned = self.store.write_kept(false).and_then(|()| pin(epoch)).map_err(error::store);
        drop(guards);
        self.save_straight(epoch, &straight, pinned, unpin)
    }

    /// The large files that are open for writing straight, or mapped. REQUIRES: all row locks, so that nobody opens one.
    pub(crate) fn written_straight(&self) -> FsResult<BTreeSet<InodeId>> {
        let open = self.session.handles.written_objects().into_iter();
        let open = open.filter(|node| node.state().passthrough > 0).map(|node| node.ino);
        let mut straight: BTreeSet<InodeId> = open.collect();
        // Later, as one that is being closed is noted before it is no handle any more.
        straight.extend(self.mapped_files(|_| true)?);
        Ok(straight)
    }

    /// Keeps what is written `straight` for a view that has been `pinned` at `epoch`. Takes the view back if either failed.
    pub(crate) fn save_straight<T>(
        &self,
        epoch: Epoch,
        straight: &BTreeSet<InodeId>,
        pinned: FsResult<T>,
        unpin: impl FnOnce(&T) -> StoreResult<()>,
    ) -> FsResult<T> {
        let begun = pinned.and_then(|pinned| {
            let kept = straight.iter().try_for_each(|ino| self.objects.save_all(*ino));
            if kept.is_err()
                && let Err(error) = unpin(&pinned)
            {
                log::error!(
                    "a view that could not begin stays, with later bytes of large files: {error}"
                );
            }
            kept.map(|()| pinned)
        });
        if begun.is_err() {
            self.end_view(epoch);
        }
        begun
    }

    /// Removes the preimages of a view that has ended, as far as no other view needs them.
    pub(crate) fn end_view(&self, epoch: Epoch) {
        if let Some(preimages) = self.objects.preimages()
            && let Err(error) = preimages.end(epoch)
        {
            log::warn!("what was kept for a view stays until the next mount: {error}");
        }
    }

    /// The names of all views of a kind, in order.
    pub fn view_names(&self, kind: ViewKind) -> FsResult<Vec<ViewName>> {
        Ok(self.views_of(kind)?.into_iter().map(|(_, name)| name).collect())
    }

    /// All views of a kind, with their epochs, in the order of their names.
    pub(crate) fn views_of(&self, kind: ViewKind) -> FsResult<Vec<(Epoch, ViewName)>> {
        let mut views: Vec<(Epoch, ViewName)> = match kind {
            ViewKind::Snapshot => {
                let stored = self.views()?.db().snapshots();
                let names = stored.iter().filter_map(|stored| parse_name(&stored.name));
                let names = names.filter(|(_, name)| *name != HIDDEN_NAME);
                names
                    .map(|(epoch, name)| (epoch, ViewName { kind, name: name.to_owned() }))
                    .collect()
            }
            ViewKind::Transaction => {
                self.transactions()?.iter().map(|txn| (txn.epoch, txn.name())).collect()
            }
        };
        views.sort_by(|(_, one), (_, other)| one.cmp(other));
        Ok(views)
    }

    /// `NotFound` unless there is such a view.
    pub fn check_view(&self, view: &ViewName) -> FsResult<()> {
        match view.kind {
            ViewKind::Transaction => self.transaction(&view.name).map(drop),
            ViewKind::Snapshot => {
                self.find_snapshot(&view.name)?.map(drop).ok_or(FsError::NotFound)
            }
        }
    }

    /// The file system of a view, beside this one, which outlives it.
    pub fn open_view(&self, view: &ViewName) -> FsResult<VarveFs> {
        if view.kind == ViewKind::Transaction {
            return self.open_transaction(&self.transaction(&view.name)?);
        }
        let (epoch, stored) = self.find_snapshot(&view.name)?.ok_or(FsError::NotFound)?;
        let store = self.sources()?.snapshot(epoch, &stored)?;
        let (names, compression) = (self.dictionaries().names(), self.superblock.compression);
        let ids = Arc::clone(&self.ids);
        let dictionaries = Dictionaries::new(Arc::clone(&store), names, compression, true, ids);
        let sees = Some(epoch);
        let view = ViewParts { store, dictionaries, sees_objects_of: sees, epoch, serial: None };
        let fs = self.view_on(view, true).map_err(error::store)?;
        fs.load_quotas()?;
        Ok(fs)
    }

    pub(crate) fn view_on(&self, view: ViewParts, read_only: bool) -> StoreResult<VarveFs> {
        match &self.sources {
            Some(sources) => sources.view_on(view, read_only),
            None => Err(StoreError::Invalid("the store has no views".to_owned())),
        }
    }
}
