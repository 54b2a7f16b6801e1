//! The states of the store that clones read from, and how views are made of states.
//!
//! A source is a named snapshot, called by its epoch: one that a user made, or one made for a clone, whose name begins with
//! a dot and which nobody sees. It stays as long as a reference row anywhere names it: in the main tree, in a view that is open,
//! or in another source. When a user deletes a snapshot that is a source it only loses its name.
//!
//! What a source or a snapshot itself has not copied is unfolded in a branch over it ([`State`]), which belongs to it and stays as
//! long as it does: so the inode ids that it shows never change. It begins with the first row that it gets.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use varve_engine::{Branch, Db, Direction, SnapshotStore, Store, StoreError, StoreResult};
use varve_env::Env;
use varve_schema::RowKey;
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use super::released::Released;
use super::state::{State, info_of, name_of};
use super::unwritten::UnwrittenStore;
use crate::dictionaries::Dictionaries;
use crate::epoch::Epoch;
use crate::error;
use crate::fs::{Parts, VarveFs};
use crate::ids::IdAllocator;
use crate::keyspaces::Keyspaces;
use crate::locks::RowLocks;
use crate::lost::{LOST_NAME, Lost};
use crate::objects::Objects;
use crate::options::{Atime, MountOptions};
use crate::rows::rows_from;
use crate::snapshots::stored_name::{HIDDEN_NAME, parse_name};
use crate::spill::Openings;
use crate::superblock::{Superblock, view_dir};
use crate::views::ViewParts;

/// Sources that are kept open.
const OPEN_MAX: usize = 8;
/// A view has an eighth of the memory that the main tree has for the places of inodes.
const LOCATED_SHARE: usize = 8;

/// The states of a store, shared by the main tree and all others.
pub(crate) struct Sources {
    pub(super) db: Arc<Db>,
    env: Arc<dyn Env>,
    dir: PathBuf,
    options: MountOptions,
    superblock: Superblock,
    /// The main tree's.
    objects: Arc<Objects>,
    ids: Arc<IdAllocator>,
    keyspaces: Keyspaces,
    openings: Arc<Openings>,
    /// The store as the main tree sees it.
    pub(super) unwritten: Arc<UnwrittenStore>,
    /// The states that something is unfolded in, or may be, by epoch. One that has rows in memory stays.
    states: Mutex<BTreeMap<Epoch, Arc<UnwrittenStore>>>,
    /// The open ones by epoch, the one used last at the end. Held while one is opened.
    open: Mutex<Vec<(Epoch, Arc<VarveFs>)>>,
    /// The row locks of views by epoch, as long as one is open.
    locks: Mutex<BTreeMap<Epoch, Weak<RowLocks>>>,
    /// The objects of views by epoch, as long as one is open or a sync of the store asks for them.
    of_views: Mutex<BTreeMap<Epoch, Weak<Objects>>>,
    /// Which named snapshots have anything that clones have yet to copy, as far as that was asked. It stays so.
    folded: Mutex<BTreeMap<Epoch, bool>>,
    /// Batches of unfolding, in any view.
    pub(super) unfoldings: Unfoldings,
    /// Sources that may be needed no more.
    pub(super) returned: Released,
}

/// Batches of unfolding that have begun and that have ended, each counted for good: so that whoever reads rows can tell
/// whether one was written meanwhile.
#[derive(Debug, Default)]
pub(super) struct Unfoldings {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Unfoldings {
    /// Calls `unfold`, which writes one batch or none.
    pub(super) fn count<T>(&self, unfold: impl FnOnce() -> T) -> T {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let unfolded = unfold();
        self.ended.fetch_add(1, Ordering::SeqCst);
        unfolded
    }
}

/// What of a file system sources are made of.
pub(crate) struct SourceParts {
    pub(crate) db: Arc<Db>,
    pub(crate) env: Arc<dyn Env>,
    pub(crate) dir: PathBuf,
    pub(crate) options: MountOptions,
    pub(crate) superblock: Superblock,
    pub(crate) objects: Arc<Objects>,
    pub(crate) ids: Arc<IdAllocator>,
    pub(crate) unwritten: Arc<UnwrittenStore>,
    pub(crate) keyspaces: Keyspaces,
    /// Drawn anew each time.
    pub(crate) random: u64,
}

impl Sources {
    /// Those of the store of which this is the main tree's.
    pub(crate) fn new(ground: SourceParts) -> Arc<Sources> {
        let SourceParts { db, env, dir, options, superblock, objects, ids, .. } = ground;
        let SourceParts { unwritten, keyspaces, random, .. } = ground;
        let main: Arc<dyn Store> = Arc::<Db>::clone(&db);
        let openings = Openings::new(Arc::clone(&env), main, keyspaces.lookups, random);
        let (open, locks) = (Mutex::default(), Mutex::default());
        let (of_views, folded) = (Mutex::default(), Mutex::default());
        let hidden = hidden_of(&db).into_keys().collect();
        let (unfoldings, returned) = (Unfoldings::default(), Released::of(hidden));
        let sources = Arc::new(Sources {
            unwritten,
            states: Mutex::default(),
            db,
            env,
            dir,
            options,
            superblock,
            objects,
            ids,
            keyspaces,
            openings: Arc::new(openings),
            open,
            locks,
            of_views,
            folded,
            unfoldings,
            returned,
        });
        let of = Arc::downgrade(&sources);
        sources.unwritten.write_older_by(move |reclaims| match of.upgrade() {
            Some(sources) => sources.write_kept_before(Epoch::LAST, reclaims),
            None => Ok(()),
        });
        sources
    }

    /// Writes what states older than `epoch` keep in memory.
    fn write_kept_before(&self, epoch: Epoch, reclaims: bool) -> StoreResult<()> {
        let states: Vec<_> = self.states.lock().range(..epoch).map(|it| Arc::clone(it.1)).collect();
        states.iter().try_for_each(|state| state.write_kept(reclaims))
    }

    /// How many batches of unfolding have ended.
    pub(crate) fn unfoldings_ended(&self) -> u64 {
        self.unfoldings.ended.load(Ordering::SeqCst)
    }

    /// Whether a batch of unfolding may have been written since `ended` of them had ended. One that the caller has seen
    /// the rows of had begun before it was written; if as many have begun as had ended, those are the same ones.
    pub(crate) fn unfolds_since(&self, ended: u64) -> bool {
        self.unfoldings.begun.load(Ordering::SeqCst) != ended
    }

    /// The row locks of the view of the epoch `epoch`: whoever has it open writes to the same rows.
    fn locks_of(&self, epoch: Epoch) -> Arc<RowLocks> {
        let mut locks = self.locks.lock();
        if let Some(shared) = locks.get(&epoch).and_then(Weak::upgrade) {
            return shared;
        }
        locks.retain(|_, locks| locks.strong_count() > 0);
        let own = Arc::new(RowLocks::new());
        locks.insert(epoch, Arc::downgrade(&own));
        own
    }

    /// The objects of the view of the epoch `epoch`, which sees those of the store as of `sees`: whoever has it open writes to the
    /// same files, and the sync that comes before its rows must know what each has claimed.
    pub(crate) fn objects_of(&self, epoch: Epoch, sees: Option<Epoch>) -> Arc<Objects> {
        let mut of_views = self.of_views.lock();
        if let Some(shared) = of_views.get(&epoch).and_then(Weak::upgrade) {
            return shared;
        }
        of_views.retain(|_, objects| objects.strong_count() > 0);
        let own = Arc::new(self.objects.of_view(view_dir(&self.dir, epoch), sees));
        of_views.insert(epoch, Arc::downgrade(&own));
        own
    }

    /// [`Objects::end_claims`] of a view that has ended.
    pub(crate) fn end_claims(&self, epoch: Epoch) {
        let ended = self.of_views.lock().remove(&epoch);
        if let Some(objects) = ended.and_then(|objects| objects.upgrade()) {
            objects.end_claims();
        }
    }

    /// The file system of a view; all of one view share their row locks and objects.
    pub(crate) fn view_on(
        self: &Arc<Self>,
        view: ViewParts,
        read_only: bool,
    ) -> StoreResult<VarveFs> {
        let ViewParts { store, dictionaries, sees_objects_of, epoch, serial } = view;
        let lost = Lost::read(self.env.as_ref(), &self.dir).map_err(|source| StoreError::Io {
            action: "read",
            path: self.dir.join(LOST_NAME),
            source,
        })?;
        let lost = lost.seen_at(epoch);
        let options = MountOptions {
            read_only,
            atime: Atime::Noatime,
            passthrough: false,
            keep_orphans: false,
            marked_dirs_max: usize::MAX,
            located_inodes_max: Some(self.options.located_inodes() / LOCATED_SHARE),
            ..self.options.clone()
        };
        let parts = Parts {
            env: Arc::clone(&self.env),
            dir: self.dir.clone(),
            options,
            lock: Mutex::new(None),
            locks: self.locks_of(epoch),
            store,
            superblock: self.superblock.clone(),
            objects: self.objects_of(epoch, sees_objects_of),
            ids: Arc::clone(&self.ids),
            dictionaries,
            views: None,
            sources: Some(Arc::clone(self)),
            serial,
            lost,
            requests: None,
        };
        VarveFs::build(parts, &self.keyspaces, self.openings.begin())
    }

    /// The source of the epoch `epoch`, opened if it is not.
    pub(crate) fn open(self: &Arc<Self>, epoch: Epoch) -> FsResult<Arc<VarveFs>> {
        let mut open = self.open.lock();
        if let Some(at) = open.iter().position(|(known, _)| *known == epoch) {
            let found = open.remove(at);
            let fs = Arc::clone(&found.1);
            open.push(found);
            return Ok(fs);
        }
        let name = name_of(&self.db, epoch).ok_or_else(|| missing(epoch))?;
        let store = self.state(epoch, &name)?;
        let (names, compression) = (self.keyspaces.dictionaries, self.superblock.compression);
        let ids = Arc::clone(&self.ids);
        let dictionaries = Dictionaries::new(Arc::clone(&store), names, compression, true, ids);
        let sees_objects_of = Some(epoch);
        let view = ViewParts { store, dictionaries, sees_objects_of, epoch, serial: None };
        let fs = Arc::new(self.view_on(view, true).map_err(error::store)?);
        if open.len() >= OPEN_MAX {
            open.remove(0);
        }
        open.push((epoch, Arc::clone(&fs)));
        Ok(fs)
    }

    /// A named snapshot as a store in which directories can be unfolded.
    pub(crate) fn snapshot(
        self: &Arc<Self>,
        epoch: Epoch,
        stored: &str,
    ) -> FsResult<Arc<dyn Store>> {
        let _open = self.open.lock();
        self.state(epoch, stored)
    }

    /// Whether `snapshot`, the named one of the epoch `epoch`, has anything that clones have yet to copy.
    pub(crate) fn has_folded(&self, epoch: Epoch, snapshot: &SnapshotStore) -> FsResult<bool> {
        if let Some(known) = self.folded.lock().get(&epoch) {
            return Ok(*known);
        }
        let mut found = false;
        for source in self.epochs().into_iter().filter(|source| *source < epoch) {
            found = found || self.lends(source, snapshot)?;
        }
        self.folded.lock().insert(epoch, found);
        Ok(found)
    }

    /// REQUIRES: `open` is held, so that a state is opened once.
    fn state(self: &Arc<Self>, epoch: Epoch, stored: &str) -> FsResult<Arc<dyn Store>> {
        if let Some(open) = self.states.lock().get(&epoch) {
            return Ok(Arc::<UnwrittenStore>::clone(open));
        }
        let snapshot = self.db.open_snapshot(stored).map_err(error::store)?;
        if !self.has_folded(epoch, &snapshot)? {
            return Ok(Arc::new(snapshot));
        }
        let state = State::open(&self.db, epoch, self.keyspaces, snapshot).map_err(error::store)?;
        let state = UnwrittenStore::over(Arc::new(state), self.unwritten.bytes());
        let of = Arc::downgrade(self);
        state.write_older_by(move |reclaims| match of.upgrade() {
            Some(sources) => sources.write_kept_before(epoch, reclaims),
            None => Ok(()),
        });
        let state = Arc::new(state);
        let mut states = self.states.lock();
        states.retain(|_, state| Arc::strong_count(state) > 1 || !state.is_empty());
        states.insert(epoch, Arc::clone(&state));
        Ok(state)
    }

    /// Deletes the state of the epoch `epoch`, which the store calls `stored`, with what was unfolded in it. Nobody can begin
    /// to unfold more meanwhile.
    pub(crate) fn delete(&self, epoch: Epoch, stored: &str) -> FsResult<()> {
        let mut open = self.open.lock();
        open.retain(|(known, _)| *known != epoch);
        self.states.lock().remove(&epoch);
        let info = info_of(epoch);
        for branch in self.db.branches().iter().filter(|branch| branch.info == info) {
            let branch = self.db.open_branch(branch.id).map_err(error::store)?;
            branch.abort().map_err(error::store)?;
        }
        self.db.delete_snapshot(stored).map_err(error::store)?;
        self.folded.lock().remove(&epoch);
        Ok(())
    }

    /// Lets go of all that are open.
    pub(crate) fn close(&self) {
        let open = std::mem::take(&mut *self.open.lock());
        drop(open);
        self.states.lock().clear();
    }

    /// The epochs of all named snapshots.
    pub(crate) fn epochs(&self) -> Vec<Epoch> {
        epochs_of(&self.db)
    }

    /// Whether something in `state` reads from the source of the epoch `source`. From the end on, as files are
    /// often rewritten in the order of their ids: the tombstones of the references that they returned lie in front.
    pub(crate) fn lends(&self, source: Epoch, state: &dyn Store) -> FsResult<bool> {
        let mut loans = state
            .scan(
                self.keyspaces.meta,
                rows_from(RowKey::clone_reference(source.id(), InodeId::new(0))),
                Direction::Reverse,
            )
            .map_err(error::store)?;
        loans.next().transpose().map(|first| first.is_some()).map_err(error::store)
    }

    /// Whether any state besides the main tree's has something that reads from the source of the epoch `source`.
    pub(super) fn lends_to_views(&self, source: Epoch) -> FsResult<bool> {
        for stored in self.db.snapshots() {
            let Some((epoch, _)) = parse_name(&stored.name) else { continue };
            let state = self.db.open_snapshot(&stored.name).map_err(error::store)?;
            if epoch > source && self.lends(source, &state)? {
                return Ok(true);
            }
        }
        for branch in self.db.branches() {
            let state = self.db.open_branch(branch.id).map_err(error::store)?;
            let lends = match state.meets_locks() {
                true => self.lends_beside(source, &state)?,
                false => self.lends(source, &state)?,
            };
            if lends {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a serializable transaction has something of its own that reads from the source of the epoch `source`. All else in it is
    /// the main tree's; to look there as it does would lock it, or fail once it has given way.
    fn lends_beside(&self, source: Epoch, branch: &Branch) -> FsResult<bool> {
        let mut lends = false;
        let range = rows_from(RowKey::clone_reference(source.id(), InodeId::new(0)));
        let walked = branch.changes_of(self.keyspaces.meta, &range, &mut |_, _, loan| {
            lends |= loan.is_some();
            !lends
        });
        walked.map_err(error::store)?;
        Ok(lends)
    }

    /// Notes that a reference of `source` was returned. REQUIRES: that is committed.
    pub(crate) fn note_returned(&self, source: Epoch) {
        self.returned.note(source);
    }
}

/// The snapshots that clones alone read from: their epochs and how the store calls them.
pub(super) fn hidden_of(db: &Db) -> BTreeMap<Epoch, String> {
    let hidden = db.snapshots().into_iter().filter_map(|stored| {
        let (epoch, name) = parse_name(&stored.name)?;
        let is_hidden = name == HIDDEN_NAME;
        is_hidden.then_some((epoch, stored.name))
    });
    hidden.collect()
}

/// The epochs of all named snapshots of a store.
pub(crate) fn epochs_of<C: FromIterator<Epoch>>(db: &Db) -> C {
    let stored = db.snapshots();
    stored.iter().filter_map(|stored| Some(parse_name(&stored.name)?.0)).collect()
}

fn missing(epoch: Epoch) -> FsError {
    FsError::Storage(format!(
        "the state {epoch} of the store is gone, from which a clone reads; run `varve fsck`"
    ))
}

impl VarveFs {
    /// The states that clones read from.
    pub(crate) fn sources(&self) -> FsResult<&Arc<Sources>> {
        self.sources.as_ref().ok_or(FsError::NotSupported("clones by this engine"))
    }
}
