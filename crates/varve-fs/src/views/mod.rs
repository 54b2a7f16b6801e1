//! Views: file systems over a state of the store of their own, beside the main view of it.
//!
//! A *snapshot* is what the store was at one moment; it has a name and cannot change. A *transaction* ([`txn`]) can be
//! written to, and ends by becoming part of the main view ([`commit`]) or by being dropped. Each view is a
//! [`VarveFs`] of its own on its own [`Store`], and so has its own locks, its own knowledge of inodes, and, once
//! mounted, its own node ids and caches in the kernel.
//!
//! What views share with the main view, and how it stays right:
//!
//! 1. Inode ids come from the one allocator. An id is handed out for each view that begins, its *epoch*.
//! 2. Object files: what a view sees is kept before it changes ([`crate::kept`]); a view writes to blocks of its own
//!    ([`file`]).
//! 3. The volatile key space, where each view has rows of its own ([`crate::spill`]).
//!
//! The epoch of a snapshot is part of the name by which the store knows it, and so is what other stores know it by if they
//! have it too ([`stream`]): `EPOCH:ID@NAME`; without an id if it was made by an earlier version of this program.
//!
//! [`names`] has the directory by which mounts of views are reached, [`below`] what leads there from other directories.
//!
//! Source: KVFS, thesis sections 3.3 and 4.2. Departure: a view is a mount, not a process's way of seeing one, so that
//! every program works in it unchanged and several share it.

mod attributes;
mod below;
mod commit;
mod diff;
mod file;
mod limits;
mod made_up;
mod names;
mod pairs;
mod paths;
mod plan;
mod rollback;
mod serial;
pub mod stream;
mod txn;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use varve_engine::{Db, SnapshotStore, Store, StoreError, StoreResult};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, Transact};

use crate::dictionaries::Dictionaries;
use crate::error;
use crate::fs::{VarveFs, invalid};
use crate::lost::{LOST_NAME, Lost};
use crate::usage::Accounts;

pub(crate) use below::is_made_up_below;
pub use commit::CommitError;
pub use diff::{ChangeKind, Diff, PathChange};
pub(crate) use file::{Own, ViewFile};
pub(crate) use names::{is_fleeting, is_place};
pub use plan::Committed;
pub use rollback::{ROLL_BACK_PHASES, RollBackError};
pub use serial::TransactionLocks;
pub use txn::{Isolation, OnConflict, Transaction, TransactionOptions};
pub(crate) use txn::{cover_left, transaction_of_epoch, transactions_of};

/// The store of a serializable view.
pub(crate) type Serial = Arc<serial::SerialStore>;

/// The longest name of a snapshot, in bytes.
const NAME_BYTES_MAX: usize = 200;

/// The name of snapshots that clones alone read from; users see none that begins with a dot.
pub(crate) const HIDDEN_NAME: &str = ".clone";

/// What a view is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ViewKind {
    /// A named snapshot.
    Snapshot,
    /// A transaction.
    Transaction,
}

impl ViewKind {
    /// The directory below the mount point of the main view in which all of a kind are seen.
    fn dir(self) -> &'static str {
        match self {
            ViewKind::Snapshot => ".varve/snapshots",
            ViewKind::Transaction => ".varve/txn",
        }
    }
}

/// The name of a view.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ViewName {
    /// What it is.
    pub kind: ViewKind,
    /// Its name among those.
    pub name: String,
}

impl ViewName {
    /// Where it is seen below the mount point of the main view; if there is none of this name ([`VarveFs::check_view`]), it may
    /// be anywhere.
    pub fn path(&self) -> PathBuf {
        Path::new(self.kind.dir()).join(&self.name)
    }

    /// That of the transaction `id`.
    pub fn transaction(id: impl Into<String>) -> ViewName {
        ViewName { kind: ViewKind::Transaction, name: id.into() }
    }

    /// The name of the view that is seen at `path` below the mount point of the main view.
    pub fn at(path: &Path) -> Option<ViewName> {
        let kinds = [ViewKind::Snapshot, ViewKind::Transaction].into_iter();
        let (kind, name) =
            kinds.filter_map(|kind| Some((kind, path.strip_prefix(kind.dir()).ok()?))).next()?;
        Some(ViewName { kind, name: name.to_str()?.to_owned() })
    }

    /// The directory of the main view in which its place is.
    pub fn dir(&self) -> InodeId {
        names::dir_of(self.kind)
    }

    /// The directories of the main view of which the listings tell of it.
    pub fn listed_in(&self) -> impl Iterator<Item = InodeId> {
        let control = (self.kind == ViewKind::Transaction).then_some(names::CONTROLS);
        [self.dir()].into_iter().chain(control)
    }
}

/// Attaches a mount of the view to its place, or says why it cannot.
type Attach = Arc<dyn Fn(&ViewName) -> FsResult<()> + Send + Sync>;

/// Has the kernel write what programs have changed in mapped memory of files of the main view, each with its path there.
type WriteBack = Arc<dyn Fn(&[(InodeId, PathBuf)]) -> io::Result<()> + Send + Sync>;

/// Begins or ends a transaction, with its mount and all who know of it.
type Transacting = Arc<dyn Fn(Transact) -> FsResult<u64> + Send + Sync>;

/// What the main view knows of the others.
pub(crate) struct Views {
    db: Arc<Db>,
    links: below::Links,
    attach: Mutex<Option<Attach>>,
    transacting: Mutex<Option<Transacting>>,
    write_back: Mutex<Option<WriteBack>>,
    /// When somebody last asked for pairs of a transaction, as [`VarveFs::unused_for`] counts.
    pairs_used: Mutex<BTreeMap<InodeId, u64>>,
    /// The open transactions, by what each opening alone has.
    opened: Mutex<Vec<(InodeId, Weak<Accounts>)>>,
    /// Held while a view begins or ends; not while a commit of rows alone waits to be durable.
    changing: Mutex<()>,
    /// The store is being closed, and views are left to the next mount.
    closed: AtomicBool,
    /// Epochs of the snapshots that are being sent or received, once for each time.
    held: Mutex<Vec<InodeId>>,
    /// Held while a snapshot is received.
    receiving: Mutex<()>,
}

/// Keeps snapshots from being deleted until it is dropped.
struct HeldSnapshots<'a> {
    views: &'a Views,
    /// Their epochs, and how the store calls them.
    snapshots: Vec<(InodeId, String)>,
}

impl Drop for HeldSnapshots<'_> {
    fn drop(&mut self) {
        let mut held = self.views.held.lock();
        for (epoch, _) in &self.snapshots {
            if let Some(at) = held.iter().position(|other| other == epoch) {
                held.swap_remove(at);
            }
        }
    }
}

impl Views {
    /// Of the store `db`; `random` is drawn anew each time.
    pub(crate) fn new(db: Arc<Db>, random: u64) -> Views {
        Views {
            db,
            links: below::Links::new(random),
            attach: Mutex::default(),
            transacting: Mutex::default(),
            write_back: Mutex::default(),
            pairs_used: Mutex::default(),
            opened: Mutex::default(),
            changing: Mutex::default(),
            closed: AtomicBool::new(false),
            held: Mutex::default(),
            receiving: Mutex::default(),
        }
    }

    /// The store.
    pub(crate) fn db(&self) -> &Arc<Db> {
        &self.db
    }

    /// Holds off views that would begin or end.
    pub(crate) fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// The same, unless it would have to wait.
    pub(crate) fn try_lock_changes(&self) -> Option<MutexGuard<'_, ()>> {
        self.changing.try_lock()
    }

    /// Waits for who begins or ends a view. What is still to follow commits then is left to the next mount.
    pub(crate) fn close(&self) {
        let _changing = self.changing.lock();
        self.closed.store(true, Ordering::Release);
    }

    /// Makes the ends of views durable that may be in the log alone: a power cut would bring a transaction back without what is let
    /// go of. False, and that is logged, if it cannot be.
    fn make_ends_durable(&self) -> bool {
        let synced = self.db.sync();
        if let Err(error) = &synced {
            log::warn!("what views that have ended left stays until the next mount: {error}");
        }
        synced.is_ok()
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

/// Two states of the main view.
struct Span {
    before: SnapshotStore,
    after: SnapshotStore,
    /// Large files that may have been written to in between.
    written: BTreeSet<InodeId>,
}

/// Cuts the name by which the store knows a snapshot into epoch and name.
pub(crate) fn parse_name(stored: &str) -> Option<(InodeId, &str)> {
    let (epoch, name) = stored.split_once('@')?;
    let epoch = epoch.split_once(':').map_or(epoch, |(epoch, _)| epoch);
    Some((InodeId::new(epoch.parse().ok()?), name))
}

/// The name by which the store knows a snapshot.
fn stored_name(epoch: InodeId, id: &str, name: &str) -> String {
    format!("{}:{id}@{name}", epoch.get())
}

/// What all stores know a snapshot by that this store, with this uuid, knows as `stored`.
fn stored_id(stored: &str, uuid: &str) -> String {
    let epoch = stored.split_once('@').map_or(stored, |(epoch, _)| epoch);
    match epoch.split_once(':') {
        Some((_, id)) => id.to_owned(),
        None => format!("{uuid}-{epoch}"),
    }
}

/// How other stores know the snapshot that this one, with this uuid, knows as `stored`.
fn snapshot_id(stored: &str, uuid: &str) -> stream::frame::SnapshotId {
    let name = parse_name(stored).map_or("", |(_, name)| name).to_owned();
    stream::frame::SnapshotId { id: stored_id(stored, uuid), name }
}

/// Refuses what cannot be the name of a snapshot.
fn check_name(name: &str) -> FsResult<()> {
    let wrong = name.is_empty()
        || name.len() > NAME_BYTES_MAX
        || name.starts_with('.')
        || name.contains(|letter: char| letter == '/' || letter.is_control());
    match wrong {
        true => Err(FsError::Invalid(
            "a snapshot's name has 1 to 200 bytes, no slash, no control character, and begins with no dot",
        )),
        false => Ok(()),
    }
}

/// What the file system of a view is made of.
pub(crate) struct ViewParts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dictionaries: Dictionaries,
    /// The epoch as of which it sees large files; `None`: as they are.
    pub(crate) sees_objects_of: Option<InodeId>,
    pub(crate) epoch: InodeId,
    pub(crate) serial: Option<Serial>,
}

impl VarveFs {
    /// Says how views are attached to their places, by the session that serves the file system from now on.
    pub fn attach_views_by(
        &self,
        attach: impl Fn(&ViewName) -> FsResult<()> + Send + Sync + 'static,
    ) {
        if let Some(views) = &self.views {
            *views.attach.lock() = Some(Arc::new(attach));
        }
    }

    /// Says how transactions are begun and ended for programs on the mount, by the session that serves it from now on.
    pub fn transact_by(&self, work: impl Fn(Transact) -> FsResult<u64> + Send + Sync + 'static) {
        if let Some(views) = &self.views {
            *views.transacting.lock() = Some(Arc::new(work));
        }
    }

    /// Says how the kernel is had to write what programs have changed in mapped memory of files of the main view, by the session that
    /// serves it from now on. `NotFound` says that some files are not where they were.
    pub fn write_back_by(
        &self,
        work: impl Fn(&[(InodeId, PathBuf)]) -> io::Result<()> + Send + Sync + 'static,
    ) {
        if let Some(views) = &self.views {
            *views.write_back.lock() = Some(Arc::new(work));
        }
    }

    pub(crate) fn do_transact(&self, what: Transact) -> FsResult<u64> {
        let work = self.views()?.transacting.lock().clone();
        work.ok_or(FsError::NotSupported("transactions by this mount"))?(what)
    }

    pub(crate) fn views(&self) -> FsResult<&Views> {
        self.views.as_ref().ok_or(FsError::NotSupported("views by this file system"))
    }

    /// Attaches the view whose place is `id`.
    pub(crate) fn do_arrive(&self, id: InodeId) -> FsResult<()> {
        let views = self.views()?;
        let name = self.view_at(id).ok_or(FsError::Stale)?;
        let attach = views.attach.lock().clone();
        let attach = attach.ok_or(FsError::NotSupported("views by this mount"))?;
        attach(&name)?;
        Err(FsError::Stale)
    }

    /// Takes note of the views that there are in a store that is being opened, and lets go of what those that were
    /// ending left, unless that must wait.
    pub(crate) fn begin_views(&self) -> StoreResult<()> {
        let Some(kept) = self.objects.kept() else { return Ok(()) };
        let Some(views) = &self.views else { return Ok(()) };
        for snapshot in views.db.snapshots() {
            if let Some((epoch, _)) = parse_name(&snapshot.name) {
                kept.begin(epoch);
            }
        }
        for txn in self.all_transactions().map_err(invalid)? {
            if !self.options.read_only {
                // A transaction is durable at once, and the mark above its epoch only with the log.
                self.ids.pass(txn.epoch.get(), 1).map_err(invalid)?;
            }
            txn.sees_objects_of().into_iter().for_each(|epoch| kept.begin(epoch));
        }
        let fail = |error| invalid(error::object("list", &self.dir.join("kept"), error));
        let ended = kept.ended().map_err(fail)?;
        // What they kept is needed by those before as long as it is there, and by themselves until their end is durable.
        ended.iter().for_each(|epoch| kept.begin(*epoch));
        if !self.options.read_only && !ended.is_empty() && views.make_ends_durable() {
            ended.into_iter().for_each(|epoch| self.end_view(epoch));
        }
        Ok(())
    }

    /// Gives the present state the name `name`. Costs the same however many files there are; large files that the kernel
    /// has open for writing straight, or mapped, are copied.
    pub fn create_snapshot(&self, name: &str) -> FsResult<()> {
        check_name(name)?;
        self.writable()?;
        let views = self.views()?;
        self.settle_before_view()?;
        let _changing = views.changing.lock();
        if self.find_snapshot(name)?.is_some() {
            return Err(FsError::Exists);
        }
        let pin = |epoch: InodeId| {
            let stored = stored_name(epoch, &format!("{:016x}", self.env.random()), name);
            views.db.create_snapshot(&stored)?;
            Ok(stored)
        };
        self.begin_view(pin, |stored| views.db.delete_snapshot(stored)).map(drop)
    }

    /// Does what need not keep others from beginning or ending views, before one begins.
    pub(crate) fn settle_before_view(&self) -> FsResult<()> {
        // What looks written to is in the way of who changes it there, and of a rollback.
        self.settle_all_waiting();
        self.accounts.propagate_all();
        // What is removed already need not be kept.
        self.reaper.sync_and_drain()
    }

    /// Begins a view, after [`VarveFs::settle_before_view`]: `pin` makes it, at a moment at which no operation is between two
    /// writes; `unpin` takes it back if large files cannot be kept for it.
    pub(crate) fn begin_view<T>(
        &self,
        pin: impl FnOnce(InodeId) -> StoreResult<T>,
        unpin: impl FnOnce(&T) -> StoreResult<()>,
    ) -> FsResult<T> {
        let Some(kept) = self.objects.kept() else { return Err(FsError::Stale) };
        // While they are waited for others go on, but for who changes a large file, too.
        kept.wait_for_changes();
        let guards = self.locks.lock_all();
        let straight = self.written_straight()?;
        // What the view sees is older than this id: it would be taken for unknown to the view otherwise.
        let epoch = self.ids.allocate()?;
        kept.begin(epoch);
        let pinned = pin(epoch).map_err(error::store);
        drop(guards);
        self.keep_straight(epoch, &straight, pinned, unpin)
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
    pub(crate) fn keep_straight<T>(
        &self,
        epoch: InodeId,
        straight: &BTreeSet<InodeId>,
        pinned: FsResult<T>,
        unpin: impl FnOnce(&T) -> StoreResult<()>,
    ) -> FsResult<T> {
        let begun = pinned.and_then(|pinned| {
            let kept = straight.iter().try_for_each(|ino| self.objects.keep_all(*ino));
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

    /// Lets go of what is kept for a view that has ended.
    pub(crate) fn end_view(&self, epoch: InodeId) {
        if let Some(kept) = self.objects.kept()
            && let Err(error) = kept.end(epoch)
        {
            log::warn!("what was kept for a view stays until the next mount: {error}");
        }
    }

    /// The names of all views of a kind, in order.
    pub fn view_names(&self, kind: ViewKind) -> FsResult<Vec<ViewName>> {
        Ok(self.views_of(kind)?.into_iter().map(|(_, name)| name).collect())
    }

    /// All views of a kind, with their epochs, in the order of their names.
    fn views_of(&self, kind: ViewKind) -> FsResult<Vec<(InodeId, ViewName)>> {
        let mut views: Vec<(InodeId, ViewName)> = match kind {
            ViewKind::Snapshot => {
                let stored = self.views()?.db.snapshots();
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

    /// The epoch of a snapshot and how the store calls it, if there is such a snapshot.
    pub(crate) fn find_snapshot(&self, name: &str) -> FsResult<Option<(InodeId, String)>> {
        let stored = self.views()?.db.snapshots();
        Ok(stored.into_iter().find_map(|stored| {
            let (epoch, known) = parse_name(&stored.name)?;
            let is_it = known == name && known != HIDDEN_NAME;
            is_it.then(|| (epoch, stored.name.clone()))
        }))
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

    /// Keeps these snapshots until the guard is dropped. `NotFound` if one is not there.
    fn hold_snapshots(&self, names: &[Option<&str>]) -> FsResult<HeldSnapshots<'_>> {
        let views = self.views()?;
        let _changing = views.changing.lock();
        let found = names.iter().flatten().map(|name| self.find_snapshot(name));
        let found = found.map(|found| found?.ok_or(FsError::NotFound));
        let snapshots = found.collect::<FsResult<Vec<_>>>()?;
        views.held.lock().extend(snapshots.iter().map(|(epoch, _)| *epoch));
        Ok(HeldSnapshots { views, snapshots })
    }

    /// Deletes a snapshot. What only it held is freed afterwards; what clones still read from it, when they do no more.
    /// REQUIRES: it is not open.
    pub fn delete_snapshot(&self, name: &str) -> FsResult<()> {
        self.writable()?;
        let views = self.views()?;
        let changing = views.changing.lock();
        let (epoch, stored) = self.find_snapshot(name)?.ok_or(FsError::NotFound)?;
        if views.held.lock().contains(&epoch) {
            return Err(FsError::NotSupported(
                "deleting a snapshot that is being sent or received upon",
            ));
        }
        if self.is_source(epoch)? {
            let hidden = format!("{}@{HIDDEN_NAME}", epoch.get());
            views.db.rename_snapshot(&stored, &hidden).map_err(error::store)?;
            self.sources()?.note_returned(epoch);
            return Ok(());
        }
        // A power cut must bring no clone back without it.
        self.store.sync().map_err(error::store)?;
        self.sources()?.delete(epoch, &stored)?;
        self.end_view(epoch);
        self.drop_sources_after_view(&changing);
        Ok(())
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

    /// Refuses a snapshot of which a repair lost rows: those that are absent would be taken for holes.
    pub(crate) fn require_whole(&self, epoch: InodeId) -> FsResult<()> {
        let lost = Lost::read(self.env.as_ref(), &self.dir);
        let lost = lost.map_err(|error| error::object("read", &self.dir.join(LOST_NAME), error))?;
        if lost.seen_at(epoch).is_empty() {
            return Ok(());
        }
        let text = "a repair of the store lost rows of this snapshot: it can be read, and copied file by file, not sent and not rolled back to";
        Err(FsError::Damaged(text.to_owned()))
    }

    /// The snapshot `from` and a later one, or the present.
    fn span(&self, from: &str, to: Option<&str>) -> FsResult<Span> {
        let db = &self.views()?.db;
        let find = |name| self.find_snapshot(name)?.ok_or(FsError::NotFound);
        let (from, stored) = find(from)?;
        let before = db.open_snapshot(&stored).map_err(error::store)?;
        let (until, after) = match to.map(find).transpose()? {
            Some((to, _)) if to < from => {
                return Err(FsError::Invalid("the first snapshot is the later one"));
            }
            Some((to, stored)) => (Some(to), db.open_snapshot(&stored)),
            None => (None, db.present()),
        };
        let after = after.map_err(error::store)?;
        Ok(Span { before, after, written: self.written_between(from, until)? })
    }

    /// Large files that may have been written to after the view of epoch `from` began, and before that of `until` did.
    fn written_between(
        &self,
        from: InodeId,
        until: Option<InodeId>,
    ) -> FsResult<BTreeSet<InodeId>> {
        let Some(kept) = self.objects.kept() else { return Err(FsError::Stale) };
        let written = kept.changed_between(from, until);
        written.map_err(|error| error::object("list", &self.dir.join("kept"), error))
    }

    fn view_on(&self, view: ViewParts, read_only: bool) -> StoreResult<VarveFs> {
        match &self.sources {
            Some(sources) => sources.view_on(view, read_only),
            None => Err(StoreError::Invalid("the store has no views".to_owned())),
        }
    }
}

impl fmt::Debug for Views {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Views").finish_non_exhaustive()
    }
}
