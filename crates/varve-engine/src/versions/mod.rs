//! The version set: which tables, segments, key spaces, snapshots and branches there are, on disk and for readers.
//!
//! 1. A flush, a merge or a call gives its [`Changes`] to [`VersionSet::install`], which checks that they still hold.
//! 2. An edit that says so is made durable in the manifest.
//! 3. A new read state that has the changes takes the place of the present one.
//! 4. Files that serve no table any more, and segments that no table points into, are removed when their last reader
//!    drops them. A long manifest is replaced by one that holds the present state only.
//!
//! Invariants:
//! - The manifest's lock is held from the check to the new read state. So changes are installed one after the other, and
//!   the manifest and the read state change in one order.
//! - A change is durable before anybody sees it. A version that is broken ([`Version::check`]) is not written.
//! - A memtable is flushed as the oldest of those that wait, and its log is named in no manifest after that.
//! - The newest write that tables hold never becomes older.
//!
//! Source: LevelDB's version set, with branches and named snapshots beside the levels.

pub(crate) mod changes;
pub(crate) mod edits;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use varve_env::Env;
use varve_format::log::LogId;
use varve_types::{BranchId, FileNo, KeyspaceId};

use self::changes::Changes;
use self::edits::{edit_of, state_edit};
use crate::base::Base;
use crate::files::FileNumbers;
use crate::health::Health;
use crate::keyspace::Keyspace;
use crate::manifest::Manifest;
use crate::options::DbOptions;
use crate::place::Place;
use crate::plans::Plans;
use crate::read_state::{ReadState, ReadStates};
use crate::segment::Segment;
use crate::snapshot::Snapshots;
use crate::sublevel_map::next::{Next, next_map};
use crate::sublevel_map::saved::Maps;
use crate::table::cache::TableCache;
use crate::table::file::Table;
use crate::version::Version;
use crate::{StoreError, StoreResult};

/// See the module's comment.
pub(crate) struct VersionSet {
    env: Arc<dyn Env>,
    dir: PathBuf,
    options: Arc<DbOptions>,
    health: Arc<Health>,
    cache: Arc<TableCache>,
    snapshots: Arc<Snapshots>,
    pub(crate) read_states: Arc<ReadStates>,
    pub(crate) file_numbers: Arc<FileNumbers>,
    plans: Arc<Plans>,
    maps: Arc<Maps>,
    manifest: Mutex<Manifest>,
    /// How often changes were installed.
    installs: AtomicU64,
}

impl VersionSet {
    /// What `manifest` and the present read state of `base` have.
    pub(crate) fn new(
        base: &Base,
        plans: Arc<Plans>,
        maps: Arc<Maps>,
        manifest: Manifest,
    ) -> VersionSet {
        let Base { env, dir, options, health, .. } = base.clone();
        let Base { cache, snapshots, read_states, file_numbers, .. } = base.clone();
        let (manifest, installs) = (Mutex::new(manifest), AtomicU64::new(0));
        VersionSet {
            env,
            dir,
            options,
            health,
            cache,
            snapshots,
            read_states,
            file_numbers,
            plans,
            maps,
            manifest,
            installs,
        }
    }

    /// Makes `changes` durable and publishes them. False, and nothing changed, if a table to be removed is no longer there,
    /// or a key space that was seen has other tables by now.
    ///
    /// REQUIRES: the added tables and segments and their names are durable.
    pub(crate) fn install(&self, changes: &Changes) -> StoreResult<bool> {
        let mut manifest = self.manifest.lock();
        let read_state = self.read_states.get();
        if !changes.holds_for(&read_state) {
            return Ok(false);
        }
        let changes = &changes.for_read_state(&read_state);
        let versions = self.changed_versions(&read_state, changes)?;
        for (keyspace, version) in &versions {
            // A broken version must not reach the disk: it would be found broken at every open.
            version.check().map_err(|broken| {
                self.health.poison.set(&format_args!("key space {keyspace}: {broken}"))
            })?;
        }
        let edit = edit_of(&read_state, changes, manifest.tables_seq(), self.file_numbers.next());
        manifest.append(&edit, &self.health.poison)?;
        if let Some(last_seq) = changes.flushed.as_ref().map(|(_, seq)| *seq).or(changes.ingested) {
            manifest.note_tables_seq(last_seq);
        }
        let ended = ended_tables(&read_state, &changes.ended);
        drop(read_state);
        let change = |read_state: &mut ReadState| {
            read_state.keyspaces.extend(changes.created.clone());
            for (keyspace, version) in versions {
                read_state.set_version(keyspace, version);
            }
            change_branches(read_state, changes);
            if let Some((flushed, _)) = &changes.flushed {
                let oldest = read_state.immutables.last();
                debug_assert!(oldest.is_some_and(|oldest| Arc::ptr_eq(oldest, flushed)));
                read_state.immutables.retain(|memtable| !Arc::ptr_eq(memtable, flushed));
            }
        };
        // If the tables were visible before their number counts, a merge of them would not know a state that is pinned between.
        drop(match changes.ingested {
            Some(last_seq) => self.snapshots.publish(last_seq, |_| self.read_states.update(change)),
            None => self.read_states.update(change),
        });
        self.installs.fetch_add(1, Ordering::Release);
        let removed = changes.removed.iter().map(|(_, _, table)| table).chain(&ended);
        self.release_files(removed.clone());
        self.release_segments(removed);
        if manifest.is_long(self.options.manifest_bytes_max) {
            self.rewrite_manifest(&mut manifest);
        }
        Ok(true)
    }

    /// How often changes were installed. A caller that looks at tables, and finds this number to be what it was before, has
    /// seen the present ones.
    pub(crate) fn installs(&self) -> u64 {
        self.installs.load(Ordering::Acquire)
    }

    /// Makes the names of new files durable. A failure poisons, unless nothing was tried.
    pub(crate) fn sync_names(&self) -> StoreResult<()> {
        self.health.poison.sync_dir(&*self.env, &self.dir)
    }

    /// Names `log` in the manifest, unless it is named or the manifest is being changed: then a later sync names it.
    ///
    /// REQUIRES: the log is durable, as are those before it.
    pub(crate) fn try_name_log(&self, log: Option<FileNo>) -> StoreResult<()> {
        self.manifest.try_lock().map_or(Ok(()), |manifest| self.name_log_in(manifest, log))
    }

    /// Names `log` in the manifest, unless it is named.
    ///
    /// REQUIRES: the log is durable, as are those before it.
    pub(crate) fn name_log(&self, log: Option<FileNo>) -> StoreResult<()> {
        self.name_log_in(self.manifest.lock(), log)
    }

    fn name_log_in(
        &self,
        mut manifest: MutexGuard<'_, Manifest>,
        log: Option<FileNo>,
    ) -> StoreResult<()> {
        let named = log.map_or(Ok(()), |log| manifest.name_log(log, &self.health.poison));
        match named {
            Err(StoreError::NoSpace { .. }) => Ok(()),
            named => named,
        }
    }

    /// Takes no changes any more, as the store closes.
    pub(crate) fn give_up(&self) {
        self.manifest.lock().give_up();
    }

    /// What becomes of the key spaces whose tables change.
    fn changed_versions(
        &self,
        read_state: &ReadState,
        changes: &Changes,
    ) -> StoreResult<Vec<(KeyspaceId, Version)>> {
        let touched = changes.added.iter().chain(&changes.removed).map(|(keyspace, ..)| *keyspace);
        let ids: BTreeSet<KeyspaceId> = touched.collect();
        let mut versions = Vec::new();
        for id in ids {
            let space = read_state.keyspace(id)?;
            let (removed, added) = (tables_of(id, &changes.removed), tables_of(id, &changes.added));
            let gone: Vec<(Place, FileNo)> =
                removed.iter().map(|(place, table)| (*place, table.file_no())).collect();
            let mut version = space.version.changed(&gone, &added);
            if self.plans.present().0.sublevel_map && space.branch.is_none() {
                let next = Next {
                    space,
                    added: &added,
                    removed: &removed,
                    moves: changes.moves.as_deref(),
                    flushed: changes.flushed.as_ref().map(|(memtable, _)| memtable),
                    shape: self.plans.shape(),
                    findings: &self.maps.findings,
                    cache: &self.cache,
                    metrics: &self.maps.metrics,
                    id: self.maps.new_id(),
                };
                next_map(&next, &mut version)?;
                self.maps.has_changed();
            } else {
                version.set_map(None);
            }
            versions.push((id, version));
        }
        Ok(versions)
    }

    /// Removes the files that served the tables `removed` and now serve none, once their last reader drops them.
    fn release_files<'a>(&self, removed: impl Iterator<Item = &'a Arc<Table>>) {
        let mut removed = removed.peekable();
        if removed.peek().is_none() {
            return;
        }
        let read_state = self.read_states.get();
        let serving: HashSet<FileNo> =
            read_state.spaces().flat_map(|space| space.version.files()).collect();
        for file in removed.flat_map(|table| table.files()) {
            if !serving.contains(&file.no()) {
                file.mark_obsolete();
                self.cache.forget(file.no());
            }
        }
    }

    /// Removes the segments that only `tables`, which are gone, pointed into, once their last reader drops them.
    fn release_segments<'a>(&self, tables: impl Iterator<Item = &'a Arc<Table>>) {
        let segments = tables.flat_map(|table| table.segments());
        let mut left: BTreeMap<FileNo, Arc<Segment>> =
            segments.map(|segment| (segment.file_no(), Arc::clone(segment))).collect();
        if left.is_empty() {
            return;
        }
        let read_state = self.read_states.get();
        for (_, table) in read_state.spaces().flat_map(|space| space.version.tables()) {
            table.segments().iter().for_each(|used| drop(left.remove(&used.file_no())));
        }
        for (file, segment) in left {
            segment.mark_obsolete();
            self.cache.forget(file);
        }
    }

    /// Replaces a long manifest by one that holds the present state only. If that fails, the old one goes on. If it is
    /// unknown which of the two a restart would find, the store is poisoned.
    fn rewrite_manifest(&self, manifest: &mut Manifest) {
        let no = self.file_numbers.take();
        let read_state = self.read_states.get();
        let tables_seq = manifest.tables_seq();
        let newest_log = manifest.newest_log();
        let state = state_edit(&read_state, newest_log, self.file_numbers.next(), tables_seq);
        let log = LogId { file: no, salt: manifest.salt() };
        match Manifest::create(&self.env, &self.dir, log, &state, tables_seq, &self.health.poison) {
            Ok(next) => {
                let old = std::mem::replace(manifest, next);
                old.remove();
            }
            Err(error) => log::warn!("cannot rewrite the manifest: {error}"),
        }
    }
}

/// Makes the changes of snapshots and branches.
fn change_branches(read_state: &mut ReadState, changes: &Changes) {
    read_state.snapshots.extend(changes.named.clone());
    changes.unnamed.iter().for_each(|name| drop(read_state.snapshots.remove(name)));
    if let Some(record) = &changes.branch {
        read_state.branches.insert(record.id, Arc::clone(record));
    }
    read_state
        .branch_spaces
        .extend(changes.branch_spaces.iter().map(|space| (space.id, space.clone())));
    for branch in &changes.ended {
        read_state.branches.remove(branch);
        read_state.branch_spaces.retain(|_, space| space.branch != Some(*branch));
    }
}

/// The tables of branches that end.
fn ended_tables(read_state: &ReadState, ended: &[BranchId]) -> Vec<Arc<Table>> {
    let is_over = |space: &&Keyspace| space.branch.is_some_and(|branch| ended.contains(&branch));
    let spaces = read_state.branch_spaces.values().filter(is_over);
    spaces.flat_map(|space| space.version.tables().map(|(_, table)| Arc::clone(table))).collect()
}

/// The tables of one key space.
fn tables_of(id: KeyspaceId, list: &[(KeyspaceId, Place, Arc<Table>)]) -> Vec<(Place, Arc<Table>)> {
    let own = list.iter().filter(|(keyspace, _, _)| *keyspace == id);
    own.map(|(_, place, table)| (*place, Arc::clone(table))).collect()
}

#[cfg(test)]
mod tests;
