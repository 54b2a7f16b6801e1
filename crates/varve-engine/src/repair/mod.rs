//! Makes a store that was damaged one that opens again, with all that can still be read.
//!
//! 1. The manifest says which tables make up the store; if only CURRENT is lost, the newest one. If the manifest is
//!    lost, every table found counts ([`rebuild`]): they are merged, of each key the version with the largest
//!    sequence number stays, in the file: sequence overrides are lost with the manifest. Rows may come back then whose deletion was merged away while a part of an older table
//!    that the manifest no longer counted still held them.
//! 2. Every table is read, with the values that it points at. What can be read of a damaged one becomes a new table
//!    in its place ([`salvage`]).
//! 3. If the logs cannot be recovered as after a crash, they are replayed up to the damage into tables of level 0
//!    ([`logs`]); what lies after it is counted, since it may build on what is lost.
//! 4. Damaged files are linked into a directory apart; then a new manifest puts the new state in force at once, by
//!    the rename of CURRENT, and only then they leave the store.
//!
//! Invariant: a repair that is cut short before step 4 has changed nothing; after it, there is nothing to do.
//!
//! Source: LevelDB, `db/repair.cc`. Departures: with a manifest tables keep their levels; without one they are
//! merged instead of being called level 0, since tables of different levels may overlap in sequence numbers;
//! blocks of a table whose index is lost are found by their checksums.

mod dropped;
mod logs;
mod rebuild;
mod salvage;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use varve_env::Env;
use varve_format::edit::{Change, SegmentMeta, TableMeta, VersionEdit};
use varve_format::log::LogId;
use varve_format::section::Compression;
use varve_format::table::TableOptions;
use varve_types::{FileNo, KeyspaceId, SeqNo};

use crate::db::VerifyReport;
use crate::db::open::{list_files, lock_dir};
use crate::db::verify::verify_table;
use crate::files::{StoreFile, io_error, next_number};
use crate::manifest::{Manifest, ManifestKeyspace, ManifestState, load, load_manifest};
use crate::metrics::Metrics;
use crate::options::DbOptions;
use crate::poison::Poison;
use crate::segment::Segments;
use crate::table::TableCache;
use crate::version::{Place, Table, Version};
use crate::wal::LogWriter;
use crate::wal::recovery::Recovered;
use crate::{KeyspaceOptions, StoreError, StoreResult};

/// What a repair may need to know.
#[derive(Clone, Debug)]
pub struct RepairOptions {
    /// Memory and the shape of new tables.
    pub db: DbOptions,
    /// The names of the key spaces in the order in which they were made, for a store that lost its manifest; more may
    /// be named than were made.
    pub keyspaces: Vec<(String, KeyspaceOptions)>,
    /// Where damaged files go.
    pub aside: PathBuf,
}

/// Rows that are lost: those of a damaged part of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostRows {
    /// The key space.
    pub keyspace: String,
    /// The table.
    #[serde(with = "crate::paths")]
    pub table: PathBuf,
    /// The last key before the lost ones; `None` at the table's beginning.
    pub after: Option<Vec<u8>>,
    /// The first key after them; `None` at its end.
    pub before: Option<Vec<u8>>,
    /// What is wrong there.
    pub why: String,
}

impl fmt::Display for LostRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows of key space {} in {}", self.keyspace, self.table.display())?;
        for (word, key) in [("after", &self.after), ("before", &self.before)] {
            if let Some(key) = key {
                write!(f, ", {word} {}", show_key(key))?;
            }
        }
        write!(f, " are lost: {}", self.why)
    }
}

/// A key of two numbers as such, any other in hexadecimal.
fn show_key(key: &[u8]) -> String {
    match <[u8; 16]>::try_from(key) {
        Ok(key) => {
            let both = u128::from_be_bytes(key);
            format!("({}, {:#x})", (both >> 64) as u64, both as u64)
        }
        Err(_) => key.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// A log that was cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CutLog {
    /// The log.
    #[serde(with = "crate::paths")]
    pub log: PathBuf,
    /// Where it was cut.
    pub offset: u64,
    /// What is wrong there.
    pub why: String,
    /// Whole batches after it, in this log and later ones, which are not taken.
    pub batches_after: u64,
}

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EngineRepair {
    /// Why the manifest was made anew from the tables; `None` if it was sound.
    pub manifest_lost: Option<String>,
    /// Versions taken out of damaged tables.
    pub versions_saved: u64,
    /// What could not be read.
    pub lost: Vec<LostRows>,
    /// The log that was cut, if one was.
    pub cut: Option<CutLog>,
    /// Damaged files that were put aside.
    #[serde(with = "crate::paths")]
    pub aside: Vec<PathBuf>,
    /// The named snapshots that are gone, as far as that is known.
    pub snapshots_dropped: Vec<String>,
    /// What their makers said of the open branches that are gone, as far as that is known.
    pub branches_dropped: Vec<String>,
}

impl EngineRepair {
    /// True if there was nothing to do.
    pub fn did_nothing(&self) -> bool {
        *self == EngineRepair::default()
    }
}

/// The state of a repair.
struct Repair<'a> {
    env: &'a Arc<dyn Env>,
    dir: &'a Path,
    options: &'a RepairOptions,
    cache: Arc<TableCache>,
    next_file: FileNo,
    salt: u64,
    /// What tables may point into.
    segments: Segments,
    report: EngineRepair,
    /// Files that are damaged.
    damaged: Vec<PathBuf>,
}

/// Tables of one key space with their places.
type Placed = Vec<(Place, Arc<Table>)>;

/// Repairs the store in `dir`, which nobody may have open. `NewerFormat` and `NotAStore` are left as they are.
pub fn repair(
    env: &Arc<dyn Env>,
    dir: &Path,
    options: &RepairOptions,
) -> StoreResult<EngineRepair> {
    let _lock = lock_dir(&**env, dir)?;
    let files = list_files(&**env, dir)?;
    let metrics = Arc::new(Metrics::default());
    let mut repair = Repair {
        env,
        dir,
        options,
        cache: Arc::new(TableCache::new(Arc::clone(env), &options.db, metrics)?),
        next_file: FileNo::new(1),
        salt: env.random(),
        segments: Segments::new(env, dir, std::iter::empty()),
        report: EngineRepair::default(),
        damaged: Vec::new(),
    };
    let state = repair.manifest(&files)?;
    repair.next_file = next_number(dir, &files, state.as_ref().map(|state| state.next_file))?;
    let largest = |tables: &[Placed]| {
        tables.iter().flatten().map(|(_, table)| table.meta().largest_seq).max().unwrap_or_default()
    };
    let (spaces, tables, oldest_log, seq) = match &state {
        Some(state) => {
            repair.salt = state.salt;
            repair.segments = Segments::new(env, dir, state.segments.values().copied());
            let mut tables = repair.check_tables(&state.keyspaces)?;
            let (oldest, seq) = (state.oldest_log, state.last_seq);
            let replayed = repair.logs(&files, Some(state), &state.keyspaces, &mut tables)?;
            if repair.report.did_nothing() && replayed.is_none() {
                return Ok(repair.report);
            }
            // Rows of logs that are still needed may be older than a table with a sequence override.
            let seq = if replayed.is_some() { seq.max(largest(&tables)) } else { seq };
            (state.keyspaces.clone(), tables, Some(oldest).filter(|_| replayed.is_none()), seq)
        }
        None => {
            let mut spaces = rebuild::keyspaces(&repair, &files)?;
            repair.segments = repair.found_segments(&files)?;
            // Tables of a repair that was cut short may hold some of the logs' newest rows and not others, so what
            // is in tables is no measure of what the logs are needed for: all their rows are merged with the tables.
            let mut replayed = vec![Placed::new(); spaces.len()];
            repair.logs(&files, None, &spaces, &mut replayed)?;
            let seq = largest(&replayed);
            let mut tables = repair.rebuild(&files, &spaces, replayed)?;
            let seq = seq.max(largest(&tables));
            // Who needs an empty key space makes it.
            while tables.last().is_some_and(Vec::is_empty) {
                tables.pop();
                spaces.pop();
            }
            (spaces, tables, None, seq)
        }
    };
    repair.note_dropped(&files, state.as_ref())?;
    repair.put_in_force(&spaces, &tables, oldest_log, seq)?;
    Ok(repair.report)
}

impl Repair<'_> {
    fn new_file(&mut self) -> FileNo {
        let no = self.next_file;
        self.next_file = no.next();
        no
    }

    /// What the manifest says; `None` if that is lost.
    fn manifest(&mut self, files: &[StoreFile]) -> StoreResult<Option<ManifestState>> {
        let lost = match load(&**self.env, self.dir) {
            Ok(Some(state)) => match self.contradiction(&state) {
                None => return Ok(Some(state)),
                Some(contradiction) => contradiction,
            },
            Ok(None) if files.iter().all(|file| file.number().is_none()) => {
                return Err(StoreError::NotAStore { path: self.dir.to_path_buf() });
            }
            Ok(None) => "CURRENT is missing".to_owned(),
            Err(error @ StoreError::Damaged { .. }) => error.to_string(),
            Err(StoreError::Io { source, path, .. })
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                format!("{} is missing", path.display())
            }
            Err(error) => return Err(error),
        };
        self.report.manifest_lost = Some(lost);
        // CURRENT alone may be lost: the newest manifest is the one it named.
        let numbers = files.iter().filter_map(|file| match file {
            StoreFile::Manifest(no) => Some(*no),
            _ => None,
        });
        if let Some(no) = numbers.max()
            && let Ok(state) = load_manifest(&**self.env, self.dir, no)
            && self.contradiction(&state).is_none()
        {
            return Ok(Some(state));
        }
        for file in files {
            if matches!(file, StoreFile::Manifest(_) | StoreFile::Current) {
                self.damaged.push(file.path(self.dir));
            }
        }
        Ok(None)
    }

    /// Why the tables of `state` make no store.
    fn contradiction(&self, state: &ManifestState) -> Option<String> {
        state.keyspaces.iter().zip(0..).find_map(|(space, id)| {
            let id = KeyspaceId::new(id);
            let table = |meta: &TableMeta| {
                Arc::new(Table::new(Arc::clone(self.env), self.dir, id, meta.clone()))
            };
            let placed: Placed =
                space.tables.iter().map(|(place, meta)| (*place, table(meta))).collect();
            Version::default().changed(&[], &placed).check().err()
        })
    }

    /// The tables of each key space, those that are damaged replaced by what can be read of them.
    fn check_tables(&mut self, spaces: &[ManifestKeyspace]) -> StoreResult<Vec<Placed>> {
        let mut all = Vec::new();
        for (space, id) in spaces.iter().zip(0..) {
            let id = KeyspaceId::new(id);
            let mut tables = Placed::new();
            for (place, meta) in &space.tables {
                let table = self.table(id, meta.clone());
                if let Some(table) = self.sound_or_salvaged(space, table)? {
                    tables.push((*place, table));
                }
            }
            all.push(tables);
        }
        Ok(all)
    }

    /// `table`, or a new one with what can be read of it; `None` if that is nothing.
    fn sound_or_salvaged(
        &mut self,
        space: &ManifestKeyspace,
        table: Arc<Table>,
    ) -> StoreResult<Option<Arc<Table>>> {
        let mut seen = VerifyReport::default();
        let prefixed = space.options.prefixed;
        match verify_table(&self.cache, &table, prefixed, None, &mut seen) {
            Ok(()) => return Ok(Some(table)),
            // The manifest is of this version, so a table that says it is newer does not tell the truth.
            Err(StoreError::Damaged { path, .. } | StoreError::NewerFormat { path, .. }) => {
                self.put_aside(path);
            }
            // A file that it points at is missing: what does not is left.
            Err(StoreError::Io { source, path, .. })
                if source.kind() == std::io::ErrorKind::NotFound && path != table.path() => {}
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                let meta = table.meta();
                self.report.lost.push(LostRows {
                    keyspace: space.name.clone(),
                    table: table.path().to_path_buf(),
                    after: Some(meta.smallest_key.to_vec()),
                    before: Some(meta.largest_key.to_vec()),
                    why: "the table is missing; it held the rows from the first key to the last"
                        .to_owned(),
                });
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        self.put_aside(table.path().to_path_buf());
        self.salvage(space, &table)
    }

    /// Notes that a file is damaged.
    fn put_aside(&mut self, path: PathBuf) {
        if !self.damaged.contains(&path) {
            self.damaged.push(path);
        }
    }

    /// The table that `meta` describes, with the segments that it points into as far as they are known.
    fn table(&self, id: KeyspaceId, meta: TableMeta) -> Arc<Table> {
        let segments = self.segments.of(&meta.segments);
        let table = Table::new(Arc::clone(self.env), self.dir, id, meta);
        Arc::new(table.with_segments(segments))
    }

    /// How new tables of a key space are built.
    fn table_options(&self, id: KeyspaceId, options: KeyspaceOptions) -> TableOptions {
        let db = &self.options.db;
        TableOptions {
            keyspace: id,
            prefixed: options.prefixed,
            block_bytes: db.block_bytes,
            compression: if options.compressed { Compression::Lz4 } else { Compression::None },
            index: db.index,
            filter: db.filter,
            cut_after_prefix_bytes: 0,
        }
    }

    /// Puts the new state in force. Without `oldest_log` the logs are no longer needed.
    fn put_in_force(
        &mut self,
        spaces: &[ManifestKeyspace],
        tables: &[Placed],
        oldest_log: Option<FileNo>,
        last_seq: SeqNo,
    ) -> StoreResult<()> {
        self.link_aside()?;
        let (env, dir) = (Arc::clone(self.env), self.dir.to_path_buf());
        let oldest_log = match oldest_log {
            Some(oldest) => oldest,
            None => {
                let log = LogId { file: self.new_file(), salt: self.salt };
                let recovered = Recovered { last_seq, ..Recovered::default() };
                LogWriter::create(Arc::clone(&env), dir.clone(), log, &recovered)?;
                log.file
            }
        };
        env.sync_dir(&dir).map_err(|error| io_error("sync", &dir, error))?;
        let manifest = LogId { file: self.new_file(), salt: self.salt };
        let mut changes = Vec::new();
        for (space, id) in spaces.iter().zip(0..) {
            let KeyspaceOptions { prefixed, compressed } = space.options;
            let (keyspace, name) = (KeyspaceId::new(id), space.name.clone());
            changes.push(Change::CreateKeyspace { keyspace, name, prefixed, compressed });
        }
        changes.push(Change::OldestLog(oldest_log));
        changes.push(Change::NextFile(self.next_file));
        changes.push(Change::LastSeq(last_seq));
        let segments = tables.iter().flatten().flat_map(|(_, table)| table.segments());
        let segments: BTreeMap<FileNo, SegmentMeta> =
            segments.map(|segment| (segment.file_no(), *segment.meta())).collect();
        changes.extend(segments.into_values().map(Change::AddSegment));
        for (Place { level, sublevel }, table) in tables.iter().flatten() {
            let (keyspace, level, meta) = (table.keyspace(), *level as u8, table.meta().clone());
            changes.push(Change::AddTable { keyspace, level, sublevel: *sublevel, meta });
        }
        let (edit, poison) = (VersionEdit { changes }, Poison::default());
        Manifest::create(&*env, &dir, manifest, &edit, last_seq, &poison)?;
        // The next open removes what the new manifest does not list.
        Ok(())
    }

    /// Gives damaged files a second name outside of the store, so that they survive their removal.
    fn link_aside(&mut self) -> StoreResult<()> {
        let aside = &self.options.aside;
        let env = self.env;
        if self.damaged.is_empty() {
            return Ok(());
        }
        match env.create_dir(aside) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(io_error("create", aside, error));
            }
            _ => {}
        }
        for path in &self.damaged {
            let Some(name) = path.file_name() else { continue };
            let to = aside.join(name);
            match env.link(path, &to) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(io_error("link aside", path, error));
                }
                _ => self.report.aside.push(to),
            }
        }
        for dir in [Some(aside.as_path()), aside.parent()].into_iter().flatten() {
            env.sync_dir(dir).map_err(|error| io_error("sync", dir, error))?;
        }
        Ok(())
    }
}
