//! What a store is opened with.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use varve_format::filter::FilterPolicy;
use varve_format::index::IndexPolicy;
use varve_format::log::LOG_BYTES_MAX;

use crate::place::LEVELS;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Full memtables that may wait for their flush; a writer that would make one more waits.
pub(crate) const IMMUTABLES_MAX: usize = 2;

/// A table has one part in so many of the budget. While it is built, the hashes of its keys, the filters made of them
/// and its index take more than its own bytes where rows are small, and nobody counts them.
const TABLE_SHARE: usize = 6;

/// The reserve is at most this part of the device.
const RESERVE_PART_MAX: u64 = 16;

/// Sub-levels that level 0 of a leveled store collects before they are merged.
const LEVELED_SUBLEVELS: usize = 4;
/// Sub-levels that stepped levels collect before they are merged. More would write less and read more while a store is
/// filled: each that holds rows of a directory costs a scan of it about one block.
const STEPPED_SUBLEVELS: usize = 16;
/// Notes of what lookups found take one part in so many of the cache.
const FINDINGS_SHARE: usize = 64;

/// How tables are merged and moved down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompactionPolicy {
    /// Levels of growing size, disjoint tables within each level below the first (TableFS 4.1.2).
    Leveled,
    /// Levels of sub-levels, each level's merged into one of the next (SlimDB, thesis 5.1.2).
    Stepped,
    /// So above, with one leveled level at the bottom.
    LazyLeveled,
    /// Stepped, but runs of blocks that nothing interleaves stay where they are (VT-tree, KVFS thesis 3.2).
    Stitched,
}

impl CompactionPolicy {
    /// Whether merges may leave runs of blocks where they are.
    pub(crate) fn may_stitch(self) -> bool {
        matches!(self, CompactionPolicy::LazyLeveled | CompactionPolicy::Stitched)
    }
}

/// The levels whose tables have filters; as text `all` or how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FilteredLevels {
    /// All of them.
    All,
    /// So many, the uppermost.
    Upper(u8),
}

impl FilteredLevels {
    /// As many as there are levels.
    pub const UPPER_MAX: u8 = LEVELS as u8;

    /// Whether `level` is one of them.
    pub fn holds(self, level: usize) -> bool {
        match self {
            FilteredLevels::All => true,
            FilteredLevels::Upper(count) => level < count.into(),
        }
    }
}

impl From<FilteredLevels> for String {
    fn from(levels: FilteredLevels) -> String {
        match levels {
            FilteredLevels::All => "all".to_owned(),
            FilteredLevels::Upper(count) => count.to_string(),
        }
    }
}

impl TryFrom<String> for FilteredLevels {
    type Error = String;

    fn try_from(text: String) -> Result<FilteredLevels, String> {
        match text.parse() {
            Ok(count) => Ok(FilteredLevels::Upper(count)),
            Err(_) if text == "all" => Ok(FilteredLevels::All),
            Err(_) => Err(format!("levels with filters: `all` or a number, not {text:?}")),
        }
    }
}

/// Who chooses the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tuning {
    /// Who made the store.
    Fixed,
    /// The store, by the analytic model, from the operations it counts.
    Auto,
}

/// Where the values of rows stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValuePolicy {
    /// In the row, beside the key.
    InRow,
    /// In the row if they have fewer bytes, else in segments (TableFS 4.2.8).
    Separated {
        /// The fewest bytes of a value that stands apart.
        bytes_min: usize,
    },
}

impl ValuePolicy {
    /// Whether a value of `len` bytes stands apart.
    pub(crate) fn separates(self, len: usize) -> bool {
        match self {
            ValuePolicy::InRow => false,
            ValuePolicy::Separated { bytes_min } => len >= bytes_min,
        }
    }
}

/// How a store uses memory, disk and time. None of it is recorded: a store may be opened with
/// different options each time.
#[derive(Clone, Debug, PartialEq)]
pub struct DbOptions {
    /// Make the store if the directory holds none.
    pub create_if_missing: bool,
    /// Bytes of memory for memtables, cached blocks, indexes and filters together.
    pub memory_budget_bytes: usize,
    /// Table files open at once.
    pub open_tables_max: usize,
    /// Bytes of rows at which a memtable is turned into tables.
    pub memtable_bytes: usize,
    /// Bytes at which a compaction starts its next output table.
    pub table_bytes: u64,
    /// Bytes of a block of a table, trailer included.
    pub block_bytes: u32,
    /// How the blocks of new tables are indexed, where keys are prefixed and blocks not compressed; else
    /// always [`IndexPolicy::Plain`].
    pub index: IndexPolicy,
    /// The filter of new tables.
    pub filter: FilterPolicy,
    /// The levels whose tables have it.
    pub filtered_levels: FilteredLevels,
    /// Whether compaction, filtered levels and the map change with what is asked of the store.
    pub tuning: Tuning,
    /// Whether one map over the upper sub-levels of a key space says which of them to read, instead of the filters of
    /// their tables (SlimDB's multi-level cuckoo filter).
    pub sublevel_map: bool,
    /// How tables are compacted.
    pub compaction: CompactionPolicy,
    /// The fewest bytes of a run of blocks that stays where it is, if lazy leveled or stitched; 0: none does.
    pub stitch_threshold_bytes: u32,
    /// Where values are kept.
    pub values: ValuePolicy,
    /// Sub-levels at which they are merged: of level 0 if leveled, of any level if stepped.
    pub sublevels_trigger: usize,
    /// Bytes that level 1 holds before it is compacted (leveled) or has its own sub-levels (lazy leveling).
    pub level_base_bytes: u64,
    /// How many times larger each level is than the one above.
    pub level_multiplier: u64,
    /// How often unsynced writes are synced without being asked.
    pub sync_interval: Duration,
    /// Free bytes of the device below which only writes that free room are taken; at most a sixteenth of the device.
    /// Memtables and tables take at most half of it, so that one can be written again on a full device; 0: all they want.
    pub space_reserve_bytes: u64,
    /// The part of the bytes of tables' files, in percent, that nobody may need before files are emptied.
    pub dead_percent_max: u8,
    /// Bytes of the manifest at which it is replaced by one that holds the present state only, or twice that state if it
    /// is more.
    pub manifest_bytes_max: u64,
    /// Bytes of compaction debt at which writes begin to be slowed down.
    pub debt_soft_bytes: u64,
    /// Bytes of compaction debt at which writes are slowest.
    pub debt_hard_bytes: u64,
    /// The longest that a write to the store waits for locks of serializable branches; zero: it is refused at once.
    pub lock_wait: Duration,
}

impl DbOptions {
    /// A leveled store within `memory_budget_bytes` of memory; a [`crate::StoreDesign`] makes it another.
    pub fn with_memory_budget(memory_budget_bytes: usize) -> DbOptions {
        let memtable_bytes = (memory_budget_bytes / 8).clamp(64 * KIB, 64 * MIB);
        let level_base_bytes = LEVELED_SUBLEVELS as u64 * memtable_bytes as u64;
        DbOptions {
            create_if_missing: true,
            memory_budget_bytes,
            open_tables_max: 512,
            memtable_bytes,
            table_bytes: (memory_budget_bytes / TABLE_SHARE).clamp(2 * MIB, 32 * MIB) as u64,
            block_bytes: 4 * KIB as u32,
            index: IndexPolicy::EliasFano,
            filter: FilterPolicy::Fuse { fingerprint_bits: 8 },
            filtered_levels: FilteredLevels::All,
            tuning: Tuning::Fixed,
            sublevel_map: false,
            compaction: CompactionPolicy::Leveled,
            stitch_threshold_bytes: 0,
            values: ValuePolicy::InRow,
            sublevels_trigger: LEVELED_SUBLEVELS,
            level_base_bytes,
            level_multiplier: 10,
            sync_interval: Duration::from_secs(5),
            space_reserve_bytes: 2 * memtable_bytes.max(32 * MIB) as u64,
            dead_percent_max: 25,
            manifest_bytes_max: 4 * MIB as u64,
            debt_soft_bytes: 4 * level_base_bytes,
            debt_hard_bytes: 16 * level_base_bytes,
            lock_wait: Duration::from_secs(30),
        }
    }

    /// Bytes of the budget that are left to cached blocks, indexes and filters: all but the memtables,
    /// of which [`IMMUTABLES_MAX`] may wait for their flush beside the active one.
    pub(crate) fn cache_bytes(&self) -> usize {
        let memtables = (IMMUTABLES_MAX + 1) * self.memtable_bytes;
        self.memory_budget_bytes.saturating_sub(memtables).max(64 * KIB)
    }

    /// The same with memtables and tables that the reserve of a device of `total_bytes` has room for twice.
    pub(crate) fn fitted(self, total_bytes: u64) -> DbOptions {
        if self.space_reserve_bytes == 0 {
            return self;
        }
        let most = (reserve_bytes(self.space_reserve_bytes, total_bytes) / 2).max(64 * KIB as u64);
        let memtable_bytes = self.memtable_bytes.min(most as usize);
        DbOptions { memtable_bytes, table_bytes: self.table_bytes.min(most), ..self }
    }

    /// Sub-levels that a store of this policy merges at once.
    pub(crate) fn sublevels(policy: CompactionPolicy) -> usize {
        match policy {
            CompactionPolicy::Leveled => LEVELED_SUBLEVELS,
            CompactionPolicy::Stepped
            | CompactionPolicy::LazyLeveled
            | CompactionPolicy::Stitched => STEPPED_SUBLEVELS,
        }
    }

    /// Makes `policy` the one that tables are compacted by, with the sizes that go with it.
    pub(crate) fn set_compaction(&mut self, policy: CompactionPolicy) {
        self.compaction = policy;
        self.sublevels_trigger = DbOptions::sublevels(policy);
        let bytes = self.sublevels_trigger as u64 * self.memtable_bytes as u64;
        // A merge of that many memtables, which hold little more than half of their bytes in rows, fills level 1.
        self.level_base_bytes = if policy == CompactionPolicy::Leveled { bytes } else { bytes / 2 };
    }

    /// Bytes of the cache that notes of what lookups found may take.
    pub(crate) fn findings_bytes(&self) -> usize {
        if self.sublevel_map || self.tuning == Tuning::Auto {
            self.cache_bytes() / FINDINGS_SHARE
        } else {
            0
        }
    }

    /// Bytes of notes about moved keys at which a merge ends.
    pub(crate) fn moves_bytes_max(&self) -> usize {
        self.memtable_bytes / 4
    }

    /// Bytes of a log at which it is rotated although the memtable is small, because rows were
    /// overwritten in place: bounds the work of recovery. A batch may follow, and as much again where
    /// the device is full; together they stay below what a log may have.
    pub(crate) fn log_bytes_max(&self) -> u64 {
        (2 * self.memtable_bytes as u64).min(LOG_BYTES_MAX / 4)
    }
}

/// Bytes that are kept free of a device of `total_bytes` where `wanted_bytes` shall be: so that small ones are of use at all.
pub(crate) fn reserve_bytes(wanted_bytes: u64, total_bytes: u64) -> u64 {
    wanted_bytes.min(total_bytes / RESERVE_PART_MAX)
}

impl Default for DbOptions {
    fn default() -> DbOptions {
        DbOptions::with_memory_budget(256 * MIB)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memtables_and_tables_are_small_where_the_device_is() {
        let fitted = |total: usize| {
            let options = DbOptions::default().fitted((total * MIB) as u64);
            (options.memtable_bytes, options.table_bytes as usize)
        };
        assert_eq!(fitted(1 << 20), (32 * MIB, 32 * MIB));
        assert_eq!(fitted(256), (8 * MIB, 8 * MIB));
        assert_eq!(fitted(1), (64 * KIB, 64 * KIB));
        let unguarded = DbOptions { space_reserve_bytes: 0, ..DbOptions::default() };
        assert_eq!(unguarded.clone().fitted(1 << 20), unguarded);
    }

    #[test]
    fn tables_are_small_where_memory_is() {
        for (budget, table) in [(1, 2), (48, 8), (96, 16), (192, 32), (1 << 14, 32)] {
            let options = DbOptions::with_memory_budget(budget * MIB);
            assert_eq!(options.table_bytes, (table * MIB) as u64, "{budget} MiB");
        }
    }
}
