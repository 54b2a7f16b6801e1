//! What the tables of a store are made of: the part of its options that is chosen when it is made.
//!
//! Who opens the store records a [`StoreDesign`] and gives it at every open. The engine copes with tables of
//! every design: a store that is opened with another one is migrated by its compactions.

use serde::{Deserialize, Serialize};
use varve_format::filter::FilterPolicy;
use varve_format::index::IndexPolicy;

use crate::options::{CompactionPolicy, DbOptions, FilteredLevels, Tuning, ValuePolicy};

/// The fewest bytes of a value that stands apart. A pointer takes some 10 bytes and a read more; rows of the file
/// system with attributes and a name are smaller, so that listings read no segment.
const SEPARATED_BYTES_MIN: usize = 1024;

/// How tables are merged and moved down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compaction {
    /// Levels of growing size, each one sorted run.
    Leveled,
    /// Levels of sub-levels, merged step by step: the least writing.
    Stepped,
    /// Stepped levels above one sorted run; long runs of blocks stay where they are, if the threshold says so.
    LazyLeveled,
    /// Stepped; long runs of blocks stay where they are and are pointed at.
    Stitched,
}

/// How the blocks of tables are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TableIndex {
    /// Separator keys.
    Plain,
    /// Lists of directories and fences, in well under a byte per row.
    EliasFano,
    /// Entropy-coded tries: the smallest, and slower.
    ThreeLevel,
}

/// How lookups of absent rows are cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TableFilter {
    /// Not at all.
    None,
    /// Bloom filters of 10 bits per row.
    Bloom,
    /// Cuckoo filters.
    Cuckoo,
    /// Quotient filters.
    Quotient,
    /// Binary fuse filters of 9 bits per row.
    Fuse,
    /// One multi-level cuckoo filter over all upper sub-levels, fuse filters below.
    MultiLevelCuckoo,
}

/// The fewest bytes of a run of blocks that stays where it is, 0 if none does. In JSON it is text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StitchThreshold(u32);

impl StitchThreshold {
    /// What KVFS measured best (KVFS thesis 4.5).
    pub const BEST: StitchThreshold = StitchThreshold(32 << 10);
    /// No run stays where it is.
    pub const NEVER: StitchThreshold = StitchThreshold(0);
    /// One block.
    pub const MIN: StitchThreshold = StitchThreshold(4 << 10);
    /// 1 MiB.
    pub const MAX: StitchThreshold = StitchThreshold(1 << 20);

    /// A threshold of `bytes`; `None` outside of its range, of which 0 is one.
    pub fn new(bytes: u64) -> Option<StitchThreshold> {
        let within = StitchThreshold::MIN.bytes()..=StitchThreshold::MAX.bytes();
        let bytes = u32::try_from(bytes).ok().filter(|bytes| *bytes == 0 || within.contains(bytes));
        bytes.map(StitchThreshold)
    }

    /// In bytes.
    pub const fn bytes(self) -> u32 {
        self.0
    }
}

impl TryFrom<String> for StitchThreshold {
    type Error = String;

    fn try_from(text: String) -> Result<StitchThreshold, String> {
        let threshold = text.parse().ok().and_then(StitchThreshold::new);
        threshold.ok_or_else(|| format!("{text} is no stitching threshold"))
    }
}

impl From<StitchThreshold> for String {
    fn from(threshold: StitchThreshold) -> String {
        threshold.0.to_string()
    }
}

/// Where the values of rows stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Values {
    /// Beside their keys.
    InRow,
    /// Beside their keys if they are small, else in segments that rows point into: merges do not write
    /// them again. Merges of such a store are not stitched.
    Separated,
}

/// See the module's comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreDesign {
    /// How tables are merged.
    pub compaction: Compaction,
    /// How their blocks are indexed.
    pub index: TableIndex,
    /// What filters they have.
    pub filter: TableFilter,
    /// The levels whose tables have them.
    pub filtered_levels: FilteredLevels,
    /// Whether the store chooses compaction, the filtered levels and whether there is one filter over the upper ones by itself.
    pub tuning: Tuning,
    /// Which runs of blocks stay where they are, if lazy leveled or stitched.
    pub stitch_threshold_bytes: StitchThreshold,
    /// Where large values stand.
    pub values: Values,
}

impl Default for StoreDesign {
    /// What measures best.
    fn default() -> StoreDesign {
        StoreDesign {
            compaction: Compaction::LazyLeveled,
            index: TableIndex::EliasFano,
            filter: TableFilter::Fuse,
            filtered_levels: FilteredLevels::All,
            tuning: Tuning::Fixed,
            stitch_threshold_bytes: StitchThreshold::BEST,
            values: Values::InRow,
        }
    }
}

impl StoreDesign {
    /// The store that TableFS describes (thesis 4.1.2, 4.2.4): LevelDB with a filter over directories.
    pub const TABLEFS: StoreDesign = StoreDesign {
        compaction: Compaction::Leveled,
        index: TableIndex::Plain,
        filter: TableFilter::Bloom,
        filtered_levels: FilteredLevels::All,
        tuning: Tuning::Fixed,
        stitch_threshold_bytes: StitchThreshold::BEST,
        values: Values::InRow,
    };

    /// The store that KVFS describes (KVFS thesis 3.1, 3.2): stitched lists with quotient filters.
    pub const KVFS: StoreDesign = StoreDesign {
        compaction: Compaction::Stitched,
        index: TableIndex::EliasFano,
        filter: TableFilter::Quotient,
        filtered_levels: FilteredLevels::All,
        tuning: Tuning::Fixed,
        stitch_threshold_bytes: StitchThreshold::BEST,
        values: Values::InRow,
    };

    /// The same in column style (thesis 4.2.8): small index rows, large values apart.
    pub const TABLEFS_COLUMN: StoreDesign =
        StoreDesign { values: Values::Separated, ..StoreDesign::TABLEFS };

    /// The store that SlimDB describes (thesis 5.1.3, figure 5.4).
    pub const SLIMFS: StoreDesign = StoreDesign {
        compaction: Compaction::LazyLeveled,
        index: TableIndex::ThreeLevel,
        filter: TableFilter::MultiLevelCuckoo,
        filtered_levels: FilteredLevels::All,
        tuning: Tuning::Fixed,
        stitch_threshold_bytes: StitchThreshold::NEVER,
        values: Values::InRow,
    };

    /// Makes `options` those of this design.
    pub fn apply(self, options: &mut DbOptions) {
        options.set_compaction(match self.compaction {
            Compaction::Leveled => CompactionPolicy::Leveled,
            Compaction::Stepped => CompactionPolicy::Stepped,
            Compaction::LazyLeveled => CompactionPolicy::LazyLeveled,
            Compaction::Stitched => CompactionPolicy::Stitched,
        });
        options.stitch_threshold_bytes = match options.compaction.may_stitch() {
            true => self.stitch_threshold_bytes.bytes(),
            false => 0,
        };
        (options.filtered_levels, options.tuning) = (self.filtered_levels, self.tuning);
        options.index = match self.index {
            TableIndex::Plain => IndexPolicy::Plain,
            TableIndex::EliasFano => IndexPolicy::EliasFano,
            TableIndex::ThreeLevel => IndexPolicy::ThreeLevel,
        };
        options.filter = match self.filter {
            TableFilter::None => FilterPolicy::None,
            TableFilter::Bloom => FilterPolicy::Bloom { bits_per_key: 10 },
            TableFilter::Cuckoo => FilterPolicy::Cuckoo { fingerprint_bits: 12 },
            TableFilter::Quotient => FilterPolicy::Quotient { remainder_bits: 8 },
            TableFilter::Fuse | TableFilter::MultiLevelCuckoo => {
                FilterPolicy::Fuse { fingerprint_bits: 8 }
            }
        };
        options.sublevel_map = self.filter == TableFilter::MultiLevelCuckoo;
        options.values = match self.values {
            Values::InRow => ValuePolicy::InRow,
            Values::Separated => ValuePolicy::Separated { bytes_min: SEPARATED_BYTES_MIN },
        };
    }
}
