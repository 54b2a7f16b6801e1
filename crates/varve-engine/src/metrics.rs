//! What the store did and what it holds, counted by source.
//!
//! [`Metrics`] is counted into by everybody; [`MetricsReport`] is what [`crate::Store::metrics_json`]
//! prints: the counters and the present sizes.

use std::collections::BTreeMap;

use serde::Serialize;
use varve_types::Counter;

use crate::place::LEVELS;
use crate::tuning::Mix;
use crate::tuning::layout::StorePlan;

/// What the files of tables hold beside what is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Fragmentation {
    /// Table files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that nobody needs.
    pub dead_bytes: u64,
    /// Files that are no table's own: others point at their blocks.
    pub zones: u64,
    /// Zones of which less than three quarters are needed.
    pub under_utilized: u64,
    /// Zones by the part that is needed: below 10, 20 ... percent, and all of it.
    pub by_use: [u64; 11],
    /// Runs of blocks in zones.
    pub runs: u64,
    /// Bytes of such a run, on average.
    pub mean_run_bytes: u64,
}

/// Counters since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) batches: Counter,
    pub(crate) writes: Counter,
    /// Bytes of keys and values that were put, and of keys that were removed.
    pub(crate) row_bytes: Counter,
    pub(crate) gets: Counter,
    /// Gets that found a row.
    pub(crate) gets_found: Counter,
    /// Blocks that gets searched, in memory or not.
    pub(crate) lookup_blocks: Counter,
    /// Blocks that gets had to read.
    pub(crate) lookup_reads: Counter,
    pub(crate) scans: Counter,
    pub(crate) syncs: Counter,
    pub(crate) log_syncs: Counter,
    pub(crate) log_bytes: Counter,
    /// Those that were written as memory, without a system call.
    pub(crate) log_window_bytes: Counter,
    /// Room of the log that was written with zeros before it was used.
    pub(crate) log_warmed_bytes: Counter,
    pub(crate) flushes: Counter,
    pub(crate) flush_bytes: Counter,
    pub(crate) ingest_bytes: Counter,
    pub(crate) branches_begun: Counter,
    pub(crate) branches_logged: Counter,
    pub(crate) branches_joined: Counter,
    /// Bytes of segments that flushes wrote.
    pub(crate) segment_flush_bytes: Counter,
    /// Bytes of segments that merges wrote: values taken out of rows, and out of segments of little use.
    pub(crate) segment_merge_bytes: Counter,
    pub(crate) compactions: Counter,
    /// Merges of one table to empty a segment.
    pub(crate) cleanings: Counter,
    /// Merges of one table because it was of another design than the store.
    pub(crate) redesigns: Counter,
    /// Bytes of tables and segments that they wrote.
    pub(crate) redesign_bytes: Counter,
    pub(crate) table_moves: Counter,
    pub(crate) table_clips: Counter,
    pub(crate) compaction_read_bytes: Counter,
    pub(crate) defragmentations: Counter,
    pub(crate) defragment_bytes: Counter,
    /// Tables of which what nobody saw was dropped for want of room, and what stayed of them.
    pub(crate) reclaims: Counter,
    pub(crate) reclaim_bytes: Counter,
    /// Bytes of blocks that merges left where they were.
    pub(crate) stitched_bytes: Counter,
    /// By output level.
    pub(crate) compaction_write_bytes: [Counter; LEVELS],
    pub(crate) cache_hits: Counter,
    pub(crate) cache_misses: Counter,
    pub(crate) value_hits: Counter,
    pub(crate) value_reads: Counter,
    pub(crate) index_loads: Counter,
    pub(crate) device_reads: Counter,
    pub(crate) device_read_bytes: Counter,
    /// Bytes that somebody had fetched before he read them.
    pub(crate) prefetched_bytes: Counter,
    /// Blocks and values that were fetched for who was about to look up rows in them.
    pub(crate) rows_prefetched: Counter,
    pub(crate) filter_negatives: Counter,
    /// Tables that the map of the sub-levels spared lookups and scans.
    pub(crate) map_negatives: Counter,
    /// Lookups that read the table that a map named, and no other with a number.
    pub(crate) map_hits: Counter,
    /// Keys that a flush put into a map, of which a lookup before had noted where they were.
    pub(crate) map_notes: Counter,
    /// Those of which none had: new ones, and ones that were written without looking.
    pub(crate) map_unnoted: Counter,
    /// Times that maps were written to their file.
    pub(crate) map_saves: Counter,
    pub(crate) filter_false_positives: Counter,
    pub(crate) prefix_filter_negatives: Counter,
    /// Blocks looked at because an index could not tell them apart.
    pub(crate) index_ties: Counter,
    pub(crate) paced_ns: Counter,
    pub(crate) flush_waits: Counter,
    pub(crate) flush_wait_ns: Counter,
    pub(crate) refused_no_space: Counter,
}

/// One level of one key space.
#[derive(Debug, Serialize)]
pub(crate) struct LevelReport {
    pub(crate) level: usize,
    pub(crate) sublevels: usize,
    pub(crate) tables: usize,
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    pub(crate) tombstones: u64,
}

/// One key space.
#[derive(Debug, Serialize)]
pub(crate) struct KeyspaceReport {
    pub(crate) name: String,
    pub(crate) memtable_rows: usize,
    pub(crate) levels: Vec<LevelReport>,
    pub(crate) fragmentation: Fragmentation,
    pub(crate) segments: usize,
    /// Bytes of the segments' records.
    pub(crate) segment_bytes: u64,
    /// Bytes of records that tables point at.
    pub(crate) segment_used_bytes: u64,
    pub(crate) sublevel_map: Option<MapReport>,
}

/// The map of the upper sub-levels of a key space.
#[derive(Debug, Serialize)]
pub(crate) struct MapReport {
    pub(crate) tables: usize,
    pub(crate) fingerprints: usize,
    /// Keys kept whole.
    pub(crate) whole_keys: usize,
    pub(crate) degraded: bool,
    pub(crate) memory_bytes: usize,
}

/// The layout in force.
#[derive(Debug, Serialize)]
pub(crate) struct PlanReport {
    #[serde(flatten)]
    pub(crate) plan: StorePlan,
    /// How often the store changed it.
    pub(crate) changes: u64,
    /// What it was last asked for.
    pub(crate) mix: Option<Mix>,
}

/// Sizes at this moment.
#[derive(Debug, Serialize)]
pub(crate) struct StateReport {
    pub(crate) last_seq: u64,
    pub(crate) memtable_bytes: usize,
    pub(crate) immutable_memtables: usize,
    pub(crate) cache_bytes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) memory_budget_bytes: usize,
    pub(crate) debt_bytes: u64,
    pub(crate) delay_ns_per_byte: u64,
    pub(crate) live_snapshots: usize,
    pub(crate) named_snapshots: usize,
    pub(crate) branches: usize,
    pub(crate) branch_tables: usize,
    pub(crate) poisoned: Option<String>,
    pub(crate) plan: PlanReport,
    pub(crate) keyspaces: Vec<KeyspaceReport>,
}

/// Counters and sizes.
#[derive(Debug, Serialize)]
pub(crate) struct MetricsReport {
    counters: BTreeMap<&'static str, u64>,
    compaction_write_bytes_by_level: Vec<u64>,
    #[serde(flatten)]
    state: StateReport,
}

impl Metrics {
    /// The counters with their names.
    fn counters(&self) -> BTreeMap<&'static str, u64> {
        [
            ("batches", &self.batches),
            ("writes", &self.writes),
            ("gets", &self.gets),
            ("gets_found", &self.gets_found),
            ("lookup_blocks", &self.lookup_blocks),
            ("lookup_reads", &self.lookup_reads),
            ("scans", &self.scans),
            ("syncs", &self.syncs),
            ("log_syncs", &self.log_syncs),
            ("row_bytes", &self.row_bytes),
            ("log_bytes", &self.log_bytes),
            ("log_window_bytes", &self.log_window_bytes),
            ("log_warmed_bytes", &self.log_warmed_bytes),
            ("flushes", &self.flushes),
            ("flush_bytes", &self.flush_bytes),
            ("ingest_bytes", &self.ingest_bytes),
            ("branches_begun", &self.branches_begun),
            ("branches_logged", &self.branches_logged),
            ("branches_joined", &self.branches_joined),
            ("segment_flush_bytes", &self.segment_flush_bytes),
            ("segment_merge_bytes", &self.segment_merge_bytes),
            ("compactions", &self.compactions),
            ("cleanings", &self.cleanings),
            ("redesigns", &self.redesigns),
            ("redesign_bytes", &self.redesign_bytes),
            ("table_moves", &self.table_moves),
            ("table_clips", &self.table_clips),
            ("compaction_read_bytes", &self.compaction_read_bytes),
            ("stitched_bytes", &self.stitched_bytes),
            ("defragmentations", &self.defragmentations),
            ("defragment_bytes", &self.defragment_bytes),
            ("reclaims", &self.reclaims),
            ("reclaim_bytes", &self.reclaim_bytes),
            ("cache_hits", &self.cache_hits),
            ("cache_misses", &self.cache_misses),
            ("value_hits", &self.value_hits),
            ("value_reads", &self.value_reads),
            ("index_loads", &self.index_loads),
            ("device_reads", &self.device_reads),
            ("device_read_bytes", &self.device_read_bytes),
            ("prefetched_bytes", &self.prefetched_bytes),
            ("rows_prefetched", &self.rows_prefetched),
            ("filter_negatives", &self.filter_negatives),
            ("map_negatives", &self.map_negatives),
            ("map_hits", &self.map_hits),
            ("map_notes", &self.map_notes),
            ("map_unnoted", &self.map_unnoted),
            ("map_saves", &self.map_saves),
            ("filter_false_positives", &self.filter_false_positives),
            ("prefix_filter_negatives", &self.prefix_filter_negatives),
            ("index_ties", &self.index_ties),
            ("paced_ns", &self.paced_ns),
            ("flush_waits", &self.flush_waits),
            ("flush_wait_ns", &self.flush_wait_ns),
            ("refused_no_space", &self.refused_no_space),
        ]
        .map(|(name, counter)| (name, counter.get()))
        .into()
    }

    /// Counters and `state` together.
    pub(crate) fn report(&self, state: StateReport) -> MetricsReport {
        MetricsReport {
            counters: self.counters(),
            compaction_write_bytes_by_level: self
                .compaction_write_bytes
                .iter()
                .map(Counter::get)
                .collect(),
            state,
        }
    }
}
