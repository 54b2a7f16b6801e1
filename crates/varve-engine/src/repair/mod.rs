//! Makes a store that was damaged one that opens again, with all that can still be read.
//!
//! 1. The manifest says which tables make up the store, and which named snapshots and branches there are. If only CURRENT
//!    is lost, it is the newest one that is whole. If edits of it are damaged, all others count ([`edits`]).
//! 2. Every table is read, with the values that it points at. What can be read of a damaged one becomes a new table in its
//!    place, all versions of it, so that snapshots go on to see what they saw ([`salvage`]).
//! 3. Where edits are lost, nobody knows which tables count: all that are there and that no edit removed are merged, the
//!    sequence numbers saying what is newer ([`merged`]). Rows may come back then whose deletion was merged away while a
//!    table that the lost edit removed still held them.
//! 4. If the logs cannot be recovered as after a crash, every whole record of them is taken, also behind damaged ones, into
//!    tables of level 0 ([`logs`]). Its writes are valid in themselves; what they build on may be lost, so who knows what the
//!    rows mean is to check them.
//! 5. Damaged files are linked into a directory apart; then a new manifest puts the new state in force at once, by
//!    the rename of CURRENT, and only then they leave the store ([`force`]).
//!
//! Invariants: a repair that is cut short before step 5 has changed nothing; after it, there is nothing to do. Named snapshots
//! and branches are there afterwards if what can be read of the manifest names them.
//!
//! Source: LevelDB, `db/repair.cc`. Departures: with a manifest tables keep their levels; without one they are
//! merged instead of being called level 0, since tables of different levels may overlap in sequence numbers;
//! blocks of a table whose index is lost are found by their checksums; logs are read on behind damage.

mod edits;
mod force;
mod logs;
mod merged;
mod salvage;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use varve_env::Env;
use varve_types::{FileNo, KeyspaceId, SeqNo};

use crate::db::open::{list_files, lock_dir};
use crate::files::{StoreFile, next_number};
use crate::manifest::ManifestState;
use crate::metrics::Metrics;
use crate::options::DbOptions;
use crate::place::Place;
use crate::reserve::Reserve;
use crate::segment::Segments;
use crate::table::cache::TableCache;
use crate::table::file::Table;
use crate::{KeyspaceOptions, StoreResult};

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

/// The most keys of a lost part of a log that are said, and how many of them to people.
const KEYS_MAX: usize = 10_000;
const KEYS_SHOWN: usize = 4;

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

/// A part of a log that could not be read, or a log that is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostRecords {
    /// The log.
    #[serde(with = "crate::paths")]
    pub log: PathBuf,
    /// Where the part begins.
    pub offset: u64,
    /// What is wrong there.
    pub why: String,
    /// Writes that are missing, by the sequence numbers of those around; 0 if nothing follows that would tell.
    pub writes: u64,
    /// Keys that these writes seem to have had, as far as the damaged bytes make up batches with the numbers that are missing. Damage to
    /// a key itself does not show.
    pub keys: Vec<LostKey>,
}

/// A row whose last write may be lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostKey {
    /// The key space; of a branch that of the store which it stands over.
    pub keyspace: String,
    /// The key.
    pub key: Vec<u8>,
}

impl fmt::Display for LostRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, offset {}: {}; ", self.log.display(), self.offset, self.why)?;
        match self.writes {
            0 => f.write_str("what stood there is lost, if anything did"),
            1 => f.write_str("1 write is lost"),
            writes => write!(f, "{writes} writes are lost"),
        }?;
        if self.keys.is_empty() {
            return f.write_str(", of which keys is not known");
        }
        f.write_str(", as it seems of")?;
        for (at, LostKey { keyspace, key }) in self.keys.iter().take(KEYS_SHOWN).enumerate() {
            write!(f, "{} {keyspace} {}", if at == 0 { "" } else { "," }, show_key(key))?;
        }
        match self.keys.len().saturating_sub(KEYS_SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// What a repair did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EngineRepair {
    /// Why CURRENT or the manifest could not be taken as they are; `None` if they are sound.
    pub manifest_lost: Option<String>,
    /// All tables were merged into new ones, as what is left of the manifest does not say which of them count.
    pub is_merged: bool,
    /// Versions taken out of damaged tables.
    pub versions_saved: u64,
    /// What could not be read of tables.
    pub lost: Vec<LostRows>,
    /// What could not be read of logs.
    pub lost_records: Vec<LostRecords>,
    /// Damaged files that were put aside.
    #[serde(with = "crate::paths")]
    pub aside: Vec<PathBuf>,
    /// What their makers said of the open branches that are gone because the edit is lost that began the branch below them.
    pub branches_dropped: Vec<String>,
}

impl EngineRepair {
    /// True if there was nothing to do.
    pub fn did_nothing(&self) -> bool {
        *self == EngineRepair::default()
    }

    /// True if nothing was lost, as far as that can be known.
    pub fn lost_nothing(&self) -> bool {
        self.lost.is_empty() && self.lost_records.is_empty() && !self.is_merged
    }
}

/// See [`repair_telling`].
type Tell<'a> = &'a mut dyn FnMut(&EngineRepair) -> StoreResult<()>;

/// The state of a repair.
struct Repair<'a> {
    env: &'a Arc<dyn Env>,
    reserve: Arc<Reserve>,
    dir: &'a Path,
    options: &'a RepairOptions,
    cache: Arc<TableCache>,
    /// The files of the store, as they were found.
    files: Vec<StoreFile>,
    next_file: FileNo,
    salt: u64,
    /// What tables may point into.
    segments: Segments,
    report: EngineRepair,
    /// Is told what is lost before that is in force.
    tell: Tell<'a>,
    /// Files that are damaged.
    damaged: BTreeSet<PathBuf>,
}

/// Tables of one key space with their places.
type Placed = Vec<(Place, Arc<Table>)>;
/// Those of each key space, those of branches among them.
type Tables = BTreeMap<KeyspaceId, Placed>;

/// What is known of a store before its tables and logs are read.
struct KnownState {
    /// Its key spaces, snapshots and branches; which tables there are, if it is whole.
    state: ManifestState,
    /// Nothing of it is missing.
    is_whole: bool,
    /// Tables that an edit removed.
    gone: BTreeSet<FileNo>,
    /// How many key spaces the store is known to have; what is beyond them it may have had.
    keyspaces: usize,
}

/// Repairs the store in `dir`, which nobody may have open. `NewerFormat` and `NotAStore` are left as they are.
pub fn repair(
    env: &Arc<dyn Env>,
    dir: &Path,
    options: &RepairOptions,
) -> StoreResult<EngineRepair> {
    repair_telling(env, dir, options, &mut |_| Ok(()))
}

/// The same, and tells `tell` what is lost before that is in force, so that it is not forgotten whatever is cut short. If that fails, nothing
/// is changed.
pub fn repair_telling(
    env: &Arc<dyn Env>,
    dir: &Path,
    options: &RepairOptions,
    tell: &mut dyn FnMut(&EngineRepair) -> StoreResult<()>,
) -> StoreResult<EngineRepair> {
    let _lock = lock_dir(&**env, dir)?;
    let reserve = Reserve::find(env, dir, options.db.space_reserve_bytes);
    let env = &reserve.env();
    let metrics = Arc::new(Metrics::default());
    let mut repair = Repair {
        env,
        reserve,
        dir,
        options,
        cache: Arc::new(TableCache::new(Arc::clone(env), &options.db, metrics)?),
        files: list_files(&**env, dir)?,
        next_file: FileNo::new(1),
        salt: env.random(),
        segments: Segments::new(env, dir, std::iter::empty()),
        report: EngineRepair::default(),
        tell,
        damaged: BTreeSet::new(),
    };
    let known = repair.known()?;
    let counted = Some(known.state.next_file).filter(|next| next.get() > 0);
    repair.next_file = next_number(dir, &repair.files, counted)?;
    repair.salt = known.state.salt;
    if known.is_whole { repair.by_manifest(known) } else { repair.by_tables(known) }?;
    Ok(repair.report)
}

/// The newest write in `tables`.
fn newest(tables: &Tables) -> SeqNo {
    let tables = tables.values().flatten();
    tables.map(|(_, table)| table.meta().largest_seq).max().unwrap_or_default()
}

impl Repair<'_> {
    fn new_file(&mut self) -> FileNo {
        let no = self.next_file;
        self.next_file = no.next();
        no
    }

    /// Repairs a store whose manifest is whole.
    fn by_manifest(&mut self, known: KnownState) -> StoreResult<()> {
        let mut state = known.state;
        self.segments = Segments::new(self.env, self.dir, state.segments.values().copied());
        let mut tables = self.check_tables(&state)?;
        let replayed = self.logs(&state, true, &mut tables)?;
        if let Some(ended) = &replayed {
            edits::end_branches(&mut state, ended);
        }
        if self.report.did_nothing() && self.damaged.is_empty() && replayed.is_none() {
            return Ok(());
        }
        let logs = Some((state.oldest_log, state.newest_log)).filter(|_| replayed.is_none());
        // Rows of logs that are still needed may be older than a table with a sequence override.
        if replayed.is_some() {
            state.last_seq = state.last_seq.max(newest(&tables));
        }
        self.put_in_force(&state, &tables, logs)
    }

    /// Repairs a store of whose manifest edits are missing, or all of it.
    fn by_tables(&mut self, known: KnownState) -> StoreResult<()> {
        self.report.is_merged = true;
        let mut state = known.state.clone();
        self.segments = self.found_segments(&state)?;
        // Tables of a repair that was cut short may hold some of the logs' newest rows and not others, so what
        // is in tables is no measure of what the logs are needed for: all their rows are merged with the tables.
        let mut replayed = Tables::new();
        let ended = self.logs(&state, false, &mut replayed)?.unwrap_or_default();
        edits::end_branches(&mut state, &ended);
        let seq = newest(&replayed);
        let tables = self.merged(&known, &state, replayed)?;
        state.last_seq = state.last_seq.max(seq).max(newest(&tables));
        // Who needs an empty key space makes it.
        let is_empty =
            |id: usize| tables.get(&KeyspaceId::new(id as u32)).is_none_or(Vec::is_empty);
        while state.keyspaces.len() > known.keyspaces && is_empty(state.keyspaces.len() - 1) {
            state.keyspaces.pop();
        }
        self.put_in_force(&state, &tables, None)
    }
}
