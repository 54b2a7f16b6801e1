//! Decides what to compact: pure functions of the tables' sizes and key ranges.
//!
//! 1. [`pick`] asks the store's policy: [`leveled`] (LevelDB's), or [`stepped`] (SlimDB's stepped merge, with
//!    sub-levels all the way down or above one leveled bottom).
//! 2. Either answers with the level most in need and a [`Job`]: which tables to merge up to which key, and into
//!    which sub-level.
//! 3. [`debt_bytes`] says how much work is waiting, which sets the pace of writes.
//!
//! A job may end at a key: tables that reach beyond it are left clipped, so that a merge takes a range of keys
//! out of several runs, however their tables are cut.

pub(crate) mod cleaning;
pub(crate) mod defragment;
pub(crate) mod leveled;
pub(crate) mod stepped;

use bytes::Bytes;
use varve_format::edit::TableMeta;
use varve_types::{FileNo, SublevelId};

use crate::CompactionPolicy;
use crate::place::{LEVELS, Place};

/// A sub-level: its tables, sorted by key and disjoint.
#[derive(Clone, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) id: SublevelId,
    pub(crate) tables: Vec<&'a TableMeta>,
    /// Bytes of rows that replace or delete older ones, as far as anybody looked; else all of them.
    pub(crate) replacing_bytes: u64,
}

impl<'a> Run<'a> {
    /// A run of `tables`, all of whose rows may replace older ones.
    pub(crate) fn new(id: SublevelId, tables: Vec<&'a TableMeta>) -> Run<'a> {
        let replacing_bytes = tables.iter().map(|table| table.total_bytes()).sum();
        Run { id, tables, replacing_bytes }
    }
}

/// The tables of a key space by level, and of each level the sub-levels, newest first, as
/// [`crate::version::Version::runs`] lists them.
pub(crate) type Levels<'a> = [Vec<Run<'a>>];

/// The shape to keep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) policy: CompactionPolicy,
    /// Sub-levels of level 0 (of any level, if they are stepped) at which they are merged.
    pub(crate) sublevels_trigger: usize,
    pub(crate) level_base_bytes: u64,
    pub(crate) level_multiplier: u64,
    pub(crate) table_bytes: u64,
    /// Nothing was flushed for a while: stepped levels may merge before they must.
    pub(crate) at_rest: bool,
    /// A job is to take no more than about so many bytes, as there is no room for the outputs of more.
    pub(crate) room_bytes: u64,
    /// Merges bring values that stand apart into their rows.
    pub(crate) values_in_rows: bool,
}

/// What is remembered of a level between compactions; forgotten at close.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LevelState {
    /// Leveled: where the last compaction ended, so that the next takes up from there.
    pub(crate) cursor: Bytes,
    /// Stepped: the newest sub-level of the merge that goes on.
    pub(crate) pass: Option<SublevelId>,
}

/// The levels' states.
pub(crate) type States = [LevelState; LEVELS];

/// What to merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// The level that is in need.
    pub(crate) level: usize,
    /// The tables to merge: all of their places' that hold keys of the range.
    pub(crate) inputs: Vec<(Place, FileNo)>,
    /// The level that the rows go to.
    pub(crate) output_level: usize,
    /// The sub-level there; a new one if `None`.
    pub(crate) output_sublevel: Option<SublevelId>,
    /// The last key to merge; all if `None`.
    pub(crate) end: Option<Bytes>,
    /// Whether the one table may move as it is.
    pub(crate) is_move: bool,
    /// What is to be remembered of the level.
    pub(crate) state: LevelState,
}

impl Job {
    /// Rewrites the table `file` in its place; of the level is remembered what was.
    pub(crate) fn in_place(place: Place, file: FileNo, states: &States) -> Job {
        Job {
            level: place.level,
            inputs: vec![(place, file)],
            output_level: place.level,
            output_sublevel: Some(place.sublevel),
            end: None,
            is_move: false,
            state: states[place.level].clone(),
        }
    }
}

/// The urgency and the job of the level most in need, above 1 if it is due, or `None` if all is in shape.
pub(crate) fn pick(shape: &Shape, levels: &Levels<'_>, states: &States) -> Option<(f64, Job)> {
    match shape.policy {
        CompactionPolicy::Leveled => leveled::pick(shape, levels, states),
        CompactionPolicy::Stepped | CompactionPolicy::LazyLeveled | CompactionPolicy::Stitched => {
            stepped::pick(shape, levels, states)
        }
    }
}

/// Whether it would be well to know of how many rows newer ones stand above: the store might be merged for them.
pub(crate) fn asks_what_is_replaced(shape: &Shape, levels: &Levels<'_>) -> bool {
    shape.policy == CompactionPolicy::LazyLeveled
        && stepped::is_top_heavy(levels, stepped::bottom(shape, levels))
}

/// The level for a table that is newer than all there is: the deepest of those in use, or the one below if that is
/// full, such that nothing overlaps it there or above.
pub(crate) fn level_for(shape: &Shape, levels: &Levels<'_>, table: &TableMeta) -> usize {
    let is_free = |level: &usize| {
        let tables = levels[*level].iter().flat_map(|run| run.tables.iter().copied());
        let tables: Vec<&TableMeta> = tables.collect();
        overlapping(&tables, &table.smallest_key, &table.largest_key).is_empty()
    };
    let deepest = (1..LEVELS).rfind(|level| !levels[*level].is_empty()).unwrap_or(1);
    let full = level_bytes(&levels[deepest]) + table.size_bytes > target_bytes(shape, deepest);
    let last = if full { (deepest + 1).min(LEVELS - 1) } else { deepest };
    (0..=last).take_while(is_free).last().unwrap_or(0)
}

/// Bytes that have to be moved sooner or later to bring the store into shape.
pub(crate) fn debt_bytes(shape: &Shape, levels: &Levels<'_>) -> u64 {
    match shape.policy {
        CompactionPolicy::Leveled => leveled::debt_bytes(shape, levels),
        CompactionPolicy::Stepped | CompactionPolicy::LazyLeveled | CompactionPolicy::Stitched => {
            stepped::debt_bytes(shape, levels)
        }
    }
}

/// The levels above the one that is kept in one sorted run: those that the map of the sub-levels is for.
pub(crate) fn mapped_levels(shape: &Shape, levels: &Levels<'_>) -> usize {
    match shape.policy {
        CompactionPolicy::Leveled => 1,
        CompactionPolicy::Stepped | CompactionPolicy::LazyLeveled | CompactionPolicy::Stitched => {
            stepped::bottom(shape, levels)
        }
    }
}

/// Bytes that `level` may hold, for a level below level 0.
pub(crate) fn target_bytes(shape: &Shape, level: usize) -> u64 {
    let growth = shape.level_multiplier.saturating_pow(level.saturating_sub(1) as u32);
    shape.level_base_bytes.saturating_mul(growth).max(1)
}

/// Bytes that a merge takes of `table`, and writes again.
fn merged_bytes(shape: &Shape, table: &TableMeta) -> u64 {
    let pointed = table.segments.iter().map(|share| share.bytes);
    table.total_bytes() + if shape.values_in_rows { pointed.sum() } else { 0 }
}

fn run_bytes(run: &Run<'_>) -> u64 {
    run.tables.iter().map(|table| table.total_bytes()).sum()
}

fn level_bytes(runs: &[Run<'_>]) -> u64 {
    runs.iter().map(run_bytes).sum()
}

/// The tables that may hold keys from `smallest` to `largest`.
fn overlapping<'a>(
    tables: &[&'a TableMeta],
    smallest: &Bytes,
    largest: &Bytes,
) -> Vec<&'a TableMeta> {
    let overlaps =
        |table: &&&TableMeta| table.largest_key >= smallest && table.smallest_key <= largest;
    tables.iter().filter(overlaps).copied().collect()
}

#[cfg(test)]
mod testing {
    //! Small levels to decide on.

    use varve_types::{FileSalt, SeqNo};

    use super::*;

    /// A leveled store of small levels and tables, with room for everything.
    pub(crate) const SHAPE: Shape = Shape {
        policy: CompactionPolicy::Leveled,
        sublevels_trigger: 2,
        level_base_bytes: 100,
        level_multiplier: 10,
        table_bytes: 10,
        at_rest: false,
        room_bytes: u64::MAX,
        values_in_rows: false,
    };

    pub(crate) fn table(
        file: u64,
        range: (&'static str, &'static str),
        size_bytes: u64,
    ) -> TableMeta {
        TableMeta {
            file: FileNo::new(file),
            salt: FileSalt::new(0),
            size_bytes,
            entries: 1,
            tombstones: 0,
            smallest_seq: SeqNo::new(file),
            largest_seq: SeqNo::new(file),
            seq_override: None,
            smallest_key: Bytes::from_static(range.0.as_bytes()),
            largest_key: Bytes::from_static(range.1.as_bytes()),
            segments: Vec::new(),
            zones: Vec::new(),
            zones_at: None,
        }
    }

    /// Levels made of tables with their level and sub-level.
    pub(crate) fn levels(tables: &[(usize, u64, TableMeta)]) -> Vec<Vec<Run<'_>>> {
        let mut levels: Vec<Vec<Run<'_>>> = vec![Vec::new(); LEVELS];
        for (level, id, table) in tables {
            let id = SublevelId::new(*id);
            match levels[*level].iter_mut().find(|run| run.id == id) {
                Some(run) => run.tables.push(table),
                None => levels[*level].push(Run::new(id, vec![table])),
            }
        }
        for level in &mut levels {
            level.iter_mut().for_each(|run| *run = Run::new(run.id, run.tables.clone()));
            level.sort_by_key(|run| std::cmp::Reverse(run.id));
        }
        levels
    }

    pub(crate) fn files(job: &Job) -> Vec<u64> {
        job.inputs.iter().map(|(_, file)| file.get()).collect()
    }
}
