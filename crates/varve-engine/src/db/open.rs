//! Opens and closes a store.
//!
//! 1. Lock the directory; read the manifest; see that every table and segment it lists is there.
//! 2. Recover the memtables from the logs ([`crate::wal::recovery`]).
//! 3. Begin a new log, make it durable, and begin a new manifest that holds the state as it is now.
//! 4. Remove files that nothing refers to: what a crash interrupted.
//! 5. Take up the maps of the sub-levels ([`crate::sublevel_map`]) where an earlier close left them, and make the parts of
//!    the store ([`super::assemble`]).
//! 6. If much was recovered, flush it, so that logs do not pile up over restarts.
//!
//! Nothing here costs more for a store with more rows: tables are listed, not read, and maps have a part of the cache.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use varve_env::{Env, FileLock, OpenMode};
use varve_format::edit::TableMeta;
use varve_format::log::LogId;
use varve_types::{BranchId, FileNo, KeyspaceId, SeqNo};

use super::assemble::assembled;
use super::{Db, Inner};
use crate::base::Base;
use crate::branch::record::BranchRecord;
use crate::commit::log::Writer;
use crate::files::FileNumbers;
use crate::files::{LOCK, StoreFile, io_error, next_number};
use crate::health::Health;
use crate::keyspace::Keyspace;
use crate::manifest::{Manifest, ManifestState, load};
use crate::memtable::Memtable;
use crate::metrics::Metrics;
use crate::options::DbOptions;
use crate::place::Place;
use crate::read_state::{ReadState, ReadStates};
use crate::reserve::Reserve;
use crate::segment::Segments;
use crate::snapshot::Snapshots;
use crate::sublevel_map::saved::restore;
use crate::table::cache::TableCache;
use crate::table::file::TableFiles;
use crate::version::Version;
use crate::versions::edits::state_edit;
use crate::wal::LogWriter;
use crate::wal::recovery::{Recovered, RecoveryInput, recover};
use crate::{StoreError, StoreResult};

/// Logs that may be left unflushed at an open; each costs a little at the next one.
const LOGS_KEPT_MAX: usize = 8;
/// Bytes of a log that holds no rows: at most its header and a marker or two.
const EMPTY_LOG_BYTES_MAX: u64 = 128;

impl Db {
    /// Opens the store in the directory `dir`, making it if there is none and the options say so.
    pub fn open(env: Arc<dyn Env>, dir: &Path, options: DbOptions) -> StoreResult<Db> {
        if options.create_if_missing {
            make_dir(&*env, dir)?;
        }
        let lock = lock_dir(&*env, dir)?;
        let space = env.space(dir).map_err(|error| io_error("measure", dir, error))?;
        let options = options.fitted(space.total_bytes);
        let reserve = Reserve::find(&env, dir, options.space_reserve_bytes);
        let files = list_files(&*env, dir)?;
        let state = load(&*env, dir)?;
        if state.is_none() {
            check_new(&*env, dir, &files, &options)?;
        }
        let inner = Arc::new(build(reserve, dir, options, state, &files)?);
        inner.reserve.is_recovered();
        inner.reserve.refill();
        inner.flush_recovered()?;
        inner.reserve.is_open();
        inner.reserve.refill();
        inner.compactor.update_pace();
        let threads = inner
            .start_threads()
            .map_err(|error| io_error("start threads for", &inner.dir, error))?;
        inner.commits.work_is_due();
        Ok(Db { inner, threads: Mutex::new(threads), lock: Mutex::new(Some(lock)) })
    }

    /// Ends all work, syncs the log and lets others open the store.
    pub(crate) fn shut_down(&self) -> StoreResult<()> {
        if self.inner.stop().is_err() {
            return Ok(());
        }
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A worker that panicked has poisoned the store, which the sync below reports.
            let _ = thread.join();
        }
        self.inner.maps.save();
        let synced = self.inner.log.sync().and_then(|()| self.inner.log.name_last_log());
        let outcome = synced.and_then(|()| self.inner.log.close());
        // Others may still be at work that they began before: none may be left, and nothing come of what is not done.
        self.inner.flusher.wait_until_idle();
        self.inner.compactor.wait_until_idle();
        self.inner.versions.give_up();
        *self.lock.lock() = None;
        outcome
    }
}

impl Inner {
    /// Flushes recovered memtables beyond the one that stays active. Want of room, or rows that wait for
    /// the external sync, leave them to the background.
    fn flush_recovered(&self) -> StoreResult<()> {
        match self.flusher.flush_pending() {
            Err(StoreError::NoSpace { .. }) => Ok(()),
            other => other,
        }
    }
}

fn make_dir(env: &dyn Env, dir: &Path) -> StoreResult<()> {
    match env.create_dir(dir) {
        Ok(()) => {
            let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            env.sync_dir(parent).map_err(|error| io_error("sync", parent, error))
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(io_error("create", dir, error)),
    }
}

pub(crate) fn lock_dir(env: &dyn Env, dir: &Path) -> StoreResult<Box<dyn FileLock>> {
    let path = dir.join(LOCK);
    let lock = match env.lock(&path) {
        Ok(Some(lock)) => lock,
        Ok(None) => {
            let holder = read_note(env, &path);
            return Err(StoreError::Locked { path: dir.to_path_buf(), holder });
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(StoreError::NotAStore { path: dir.to_path_buf() });
        }
        Err(error) => return Err(io_error("lock", &path, error)),
    };
    // The note only helps to name the holder.
    let _ = lock.write_note(format!("process {}\n", std::process::id()).as_bytes());
    Ok(lock)
}

fn read_note(env: &dyn Env, path: &Path) -> String {
    let mut note = [0; 128];
    let len = env.open(path, OpenMode::Read).and_then(|file| file.read_at(&mut note, 0));
    let note = String::from_utf8_lossy(&note[..len.unwrap_or(0)]).trim().to_owned();
    if note.is_empty() { "it does not say which".to_owned() } else { note }
}

pub(crate) fn list_files(env: &dyn Env, dir: &Path) -> StoreResult<Vec<StoreFile>> {
    let items = env.list(dir).map_err(|error| io_error("list", dir, error))?;
    Ok(items.iter().filter_map(|item| StoreFile::parse(&item.name)).collect())
}

/// Fails unless a directory without CURRENT may be made a store: a store that lost it must not be taken
/// for an empty one.
fn check_new(
    env: &dyn Env,
    dir: &Path,
    files: &[StoreFile],
    options: &DbOptions,
) -> StoreResult<()> {
    for file in files {
        let path = file.path(dir);
        let holds_rows = match file {
            StoreFile::Table(_) | StoreFile::Segment(_) => true,
            StoreFile::Wal(_) => {
                let stat = env.stat(&path).map_err(|error| io_error("look at", &path, error))?;
                stat.len > EMPTY_LOG_BYTES_MAX
            }
            StoreFile::Manifest(_)
            | StoreFile::ManifestCopy(_)
            | StoreFile::Map(_)
            | StoreFile::Current
            | StoreFile::Temporary
            | StoreFile::Reserve(_) => false,
        };
        if holds_rows {
            let detail = format!("it is missing, but {} is there", path.display());
            let path = StoreFile::Current.path(dir);
            return Err(StoreError::Damaged { path, offset: 0, detail });
        }
    }
    if options.create_if_missing {
        Ok(())
    } else {
        Err(StoreError::NotAStore { path: dir.to_path_buf() })
    }
}

/// Recovers everything and assembles the store.
fn build(
    reserve: Arc<Reserve>,
    dir: &Path,
    options: DbOptions,
    state: Option<ManifestState>,
    files: &[StoreFile],
) -> StoreResult<Inner> {
    let env = reserve.env();
    let recovered = recovered((&env, &reserve), dir, state.as_ref(), files, &options)?;
    let snapshots = Arc::new(Snapshots::new(recovered.last_seq));
    let next_file = next_number(dir, files, state.as_ref().map(|state| state.next_file))?;
    let (log_no, manifest_no) = (next_file, next_file.next());
    if state.is_none() {
        remove_all(&*env, dir, files)?;
    }
    // A store keeps the salt it was made with: it tells its logs from those of another.
    let salt = state.as_ref().map_or_else(|| env.random(), |state| state.salt);
    let log_id = LogId { file: log_no, salt };
    let mut log = LogWriter::create(Arc::clone(&reserve), dir.to_path_buf(), log_id, &recovered)?;
    let tables_seq = state.as_ref().map_or(SeqNo::ZERO, |state| state.last_seq);
    let mut read_state = first_read_state(&recovered, log_no, options.memtable_bytes);
    read_state = loaded_read_state(&env, dir, state.as_ref(), files, read_state, &snapshots)?;
    let health = Arc::new(Health::default());
    let edit = state_edit(&read_state, log_no, manifest_no.next(), tables_seq);
    let manifest_id = LogId { file: manifest_no, salt };
    let manifest = Manifest::create(&env, dir, manifest_id, &edit, tables_seq, &health.poison)?;
    remove_unreferenced(&*env, dir, files, &read_state, &recovered, &mut log)?;
    let metrics = Arc::new(Metrics::default());
    let cache = Arc::new(TableCache::new(Arc::clone(&env), &options, Arc::clone(&metrics))?);
    let saved_maps = restore(&env, dir, files, &options, &cache, &mut read_state);
    let next_seq = recovered.last_seq.advanced(1);
    let writer = Writer { log, next_seq, active: Arc::clone(&read_state.active) };
    let base = Base {
        env,
        dir: dir.to_path_buf(),
        options: Arc::new(options),
        health,
        metrics,
        cache,
        snapshots,
        read_states: Arc::new(ReadStates::new(read_state)),
        file_numbers: Arc::new(FileNumbers::new(manifest_no.next())),
        reserve,
    };
    Ok(assembled(base, writer, manifest, saved_maps))
}

/// What the logs of the store hold, if there is one.
fn recovered(
    machine: (&Arc<dyn Env>, &Reserve),
    dir: &Path,
    state: Option<&ManifestState>,
    files: &[StoreFile],
    options: &DbOptions,
) -> StoreResult<Recovered> {
    let mut recovered = match state {
        Some(state) => {
            recover(&recovery_input(machine, dir, state, files, options.memtable_bytes))?
        }
        None => Recovered::default(),
    };
    recovered.last_seq = recovered.last_seq.max(newest_table(state));
    Ok(recovered)
}

fn recovery_input<'a>(
    (env, reserve): (&'a Arc<dyn Env>, &'a Reserve),
    dir: &'a Path,
    state: &ManifestState,
    files: &[StoreFile],
    memtable_bytes: usize,
) -> RecoveryInput<'a> {
    let mut logs: Vec<FileNo> = files
        .iter()
        .filter_map(|file| if let StoreFile::Wal(no) = file { Some(*no) } else { None })
        .filter(|no| *no >= state.oldest_log)
        .collect();
    logs.sort_unstable();
    RecoveryInput {
        env,
        reserve,
        dir,
        oldest_log: state.oldest_log,
        newest_log: state.newest_log,
        logs,
        tables_seq: state.last_seq,
        pinned: state.pinned(),
        keyspaces: state.keyspaces.len(),
        salt: state.salt,
        memtable_bytes,
    }
}

/// The newest write that a table holds; with a sequence override it may be newer than all that came through a log.
fn newest_table(state: Option<&ManifestState>) -> SeqNo {
    let of_store = state.iter().flat_map(|state| &state.keyspaces).map(|space| &space.tables);
    let of_branches = state.iter().flat_map(|state| state.branch_tables.values());
    let tables = of_store.chain(of_branches).flatten();
    tables.map(|(_, meta)| meta.largest_seq).max().unwrap_or_default()
}

/// Opens the tables and segments of a manifest, each of which must be there.
struct TableOpener<'a> {
    dir: &'a Path,
    state: &'a ManifestState,
    segments: Segments,
    present: HashSet<FileNo>,
    files: TableFiles,
}

impl<'a> TableOpener<'a> {
    fn new(
        env: &'a Arc<dyn Env>,
        dir: &'a Path,
        state: &'a ManifestState,
        files: &[StoreFile],
    ) -> TableOpener<'a> {
        let listed = |file: &StoreFile| match file {
            StoreFile::Table(no) | StoreFile::Segment(no) => Some(*no),
            _ => None,
        };
        let segments = Segments::new(env, dir, state.segments.values().copied());
        let present = files.iter().filter_map(listed).collect();
        TableOpener { dir, state, segments, present, files: TableFiles::new(env, dir) }
    }

    fn check_present(&self, what: &str, file: FileNo, path: &Path) -> StoreResult<()> {
        if self.present.contains(&file) {
            return Ok(());
        }
        let detail = format!("the manifest lists this {what}, but it is missing");
        Err(StoreError::Damaged { path: path.to_path_buf(), offset: 0, detail })
    }

    fn version(
        &mut self,
        id: KeyspaceId,
        tables: &[(Place, TableMeta)],
    ) -> StoreResult<Arc<Version>> {
        let mut placed = Vec::new();
        for (place, meta) in tables {
            let segments = self.segments.of(&meta.segments);
            let table = self.files.table(id, meta.clone()).with_segments(segments);
            for file in table.files() {
                self.check_present("table", file.no(), file.path())?;
            }
            for segment in table.segments() {
                self.check_present("segment", segment.file_no(), segment.path())?;
            }
            placed.push((*place, Arc::new(table)));
        }
        let version = Version::default().changed(&[], &placed);
        version.check().map_err(|detail| {
            let path: PathBuf = StoreFile::Manifest(self.state.no).path(self.dir);
            StoreError::Damaged { path, offset: 0, detail }
        })?;
        Ok(Arc::new(version))
    }
}

/// `first` with what the manifest has, if there is one.
fn loaded_read_state(
    env: &Arc<dyn Env>,
    dir: &Path,
    state: Option<&ManifestState>,
    files: &[StoreFile],
    first: ReadState,
    snapshots: &Arc<Snapshots>,
) -> StoreResult<ReadState> {
    let Some(state) = state else { return Ok(first) };
    with_tables(first, &mut TableOpener::new(env, dir, state, files), snapshots)
}

/// `read_state` with the key spaces, snapshots and branches of the manifest.
fn with_tables(
    mut read_state: ReadState,
    opener: &mut TableOpener<'_>,
    snapshots: &Arc<Snapshots>,
) -> StoreResult<ReadState> {
    for (space, id) in opener.state.keyspaces.iter().zip(0..) {
        let (name, id) = (Arc::from(space.name.as_str()), KeyspaceId::new(id));
        let version = opener.version(id, &space.tables)?;
        let (options, branch, private) = (space.options, None, false);
        read_state.keyspaces.push(Keyspace { id, name, options, version, branch, private });
    }
    for (name, seq) in &opener.state.snapshots {
        read_state.snapshots.insert(Arc::from(name.as_str()), Arc::new(snapshots.pin_at(*seq)));
    }
    let ended: Vec<BranchId> =
        read_state.memtables().flat_map(|memtable| memtable.ended()).collect();
    // Those that held locks are not brought back; none stands over them.
    let lasting = opener.state.branches.iter().filter(|(_, branch)| !branch.locking);
    for (id, branch) in lasting {
        let base = Arc::new(snapshots.pin_at(branch.seq));
        let record = BranchRecord::new(
            *id,
            branch.parent,
            base,
            branch.info.clone(),
            branch.spaces.clone(),
            None,
            Vec::new(),
        );
        record.shared.recovered(ended.contains(id));
        read_state.branches.insert(*id, Arc::new(record));
        for own in &branch.spaces {
            let tables = opener.state.branch_tables.get(&own.id);
            let version = opener.version(own.id, tables.map_or(&[], Vec::as_slice))?;
            let new = Keyspace { version, ..own.keyspace(*id, read_state.keyspace(own.base)?) };
            read_state.branch_spaces.insert(own.id, new);
        }
    }
    Ok(read_state)
}

/// The read state of what was recovered. The last memtable goes on being filled unless it is large or many logs
/// wait for it.
fn first_read_state(recovered: &Recovered, log_no: FileNo, memtable_bytes: usize) -> ReadState {
    let mut immutables: Vec<Arc<Memtable>> = recovered.memtables.iter().rev().cloned().collect();
    let goes_on = |memtable: &Arc<Memtable>| {
        memtable.bytes() < memtable_bytes / 2 && recovered.logs.len() < LOGS_KEPT_MAX
    };
    let active = if immutables.first().is_some_and(goes_on) {
        immutables.remove(0)
    } else {
        Arc::new(Memtable::new(log_no, memtable_bytes))
    };
    ReadState {
        active,
        immutables,
        keyspaces: Vec::new(),
        branch_spaces: BTreeMap::new(),
        snapshots: BTreeMap::new(),
        branches: BTreeMap::new(),
    }
}

/// Removes what the making of a store left behind before it had rows.
fn remove_all(env: &dyn Env, dir: &Path, files: &[StoreFile]) -> StoreResult<()> {
    for file in files.iter().filter(|file| !matches!(file, StoreFile::Reserve(_))) {
        let path = file.path(dir);
        env.remove_file(&path).map_err(|error| io_error("remove", &path, error))?;
    }
    Ok(())
}

/// Removes tables, segments and logs that are not needed, and earlier manifests. `log` forgets what goes of those before it.
///
/// REQUIRES: CURRENT names the manifest that says so, and the log that follows the recovered ones is durable.
fn remove_unreferenced(
    env: &dyn Env,
    dir: &Path,
    files: &[StoreFile],
    read_state: &ReadState,
    recovered: &Recovered,
    log: &mut LogWriter,
) -> StoreResult<()> {
    let versions = || read_state.spaces().map(|space| &space.version);
    let tables = versions().flat_map(|version| version.files());
    let segments = versions().flat_map(|version| version.segments().into_keys());
    let kept: HashSet<FileNo> = tables.chain(segments).collect();
    for file in files {
        let needed = match file {
            StoreFile::Table(no) | StoreFile::Segment(no) => kept.contains(no),
            StoreFile::Wal(no) => *no >= read_state.oldest_log() && recovered.logs.contains(no),
            StoreFile::Manifest(_) | StoreFile::ManifestCopy(_) => false,
            // [`restore`] has seen to them.
            StoreFile::Map(_) => true,
            StoreFile::Current => true,
            // The new CURRENT was made of it.
            StoreFile::Temporary => true,
            StoreFile::Reserve(_) => true,
        };
        let path = file.path(dir);
        if !needed && env.stat(&path).is_ok() {
            env.remove_file(&path).map_err(|error| io_error("remove", &path, error))?;
        }
    }
    log.forget_before(read_state.oldest_log());
    Ok(())
}
