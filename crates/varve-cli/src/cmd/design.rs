//! The options that say what the tables of a store are made of: `varve format` takes them over the default, `varve
//! tune` over what the store is.

use clap::{Args, ValueEnum};
use serde::de::DeserializeOwned;
use varve::size;
use varve_engine::StoreDesign;
use varve_engine::design::{Compaction, StitchThreshold, TableFilter, TableIndex, Values};
use varve_engine::options::{FilteredLevels, Tuning};

/// A design: a preset, and options that replace parts of it.
#[derive(Args)]
#[group(id = "design", multiple = true)]
pub(crate) struct DesignOptions {
    /// The design of the store's tables
    #[arg(long, value_enum)]
    preset: Option<Preset>,
    /// How tables are merged, instead of the preset's way (leveled, stepped, lazy-leveled, stitched)
    #[arg(long, value_name = "POLICY", value_parser = named::<Compaction>)]
    compaction: Option<Compaction>,
    /// For lazy-leveled and stitched tables: merges leave runs of blocks of at least so many bytes where they are, 4K to 1M; 0 moves
    /// all
    #[arg(long, value_name = "BYTES", value_parser = threshold)]
    stitch_threshold: Option<StitchThreshold>,
    /// How blocks of tables are found, instead of the preset's way (plain, elias-fano, three-level)
    #[arg(long, value_name = "INDEX", value_parser = named::<TableIndex>)]
    index: Option<TableIndex>,
    /// The filters of tables, instead of the preset's (none, bloom, cuckoo, quotient, fuse, multi-level-cuckoo)
    #[arg(long, value_name = "FILTER", value_parser = named::<TableFilter>)]
    filter: Option<TableFilter>,
    /// How many levels have filters, counted from the uppermost, 0 to 7, or `all`
    #[arg(long, value_name = "LEVELS", value_parser = filtered_levels)]
    filtered_levels: Option<FilteredLevels>,
    /// Whether the store adapts merging and filters to the operations that it counts (fixed, auto)
    #[arg(long, value_name = "BY", value_parser = named::<Tuning>)]
    tuning: Option<Tuning>,
    /// Where large values stand, instead of the preset's place (in-row, separated)
    #[arg(long, value_name = "VALUES", value_parser = named::<Values>)]
    values: Option<Values>,
}

/// Designs with a name.
#[derive(Clone, Copy, ValueEnum)]
enum Preset {
    /// The design that measures best
    Default,
    /// The store of TableFS: leveled, separator keys, Bloom filters
    Tablefs,
    /// The store of TableFS in column style: small index rows, and values of 1 KiB and more apart
    TablefsColumn,
    /// The store of SlimFS: stepped above one leveled level, entropy-coded tries, a multi-level cuckoo filter
    Slimfs,
    /// The store of KVFS: stitched, quotient filters
    Kvfs,
}

/// A choice by its name in superblocks.
pub(crate) fn named<T: DeserializeOwned>(name: &str) -> std::result::Result<T, serde_json::Error> {
    serde_json::from_value(name.into())
}

/// A stitching threshold.
fn threshold(text: &str) -> std::result::Result<StitchThreshold, String> {
    let bytes = size::parse(text).map_err(|error| error.to_string())?;
    let [least, most] = [StitchThreshold::MIN, StitchThreshold::MAX].map(StitchThreshold::bytes);
    let rule = || format!("0, or {} to {}", size::show(least.into()), size::show(most.into()));
    StitchThreshold::new(bytes).ok_or_else(rule)
}

/// A number of levels.
fn filtered_levels(text: &str) -> std::result::Result<FilteredLevels, String> {
    match FilteredLevels::try_from(text.to_owned()) {
        Ok(levels @ FilteredLevels::All) => Ok(levels),
        Ok(levels @ FilteredLevels::Upper(0..=FilteredLevels::UPPER_MAX)) => Ok(levels),
        _ => Err(format!("`all`, or 0 to {}", FilteredLevels::UPPER_MAX)),
    }
}

impl DesignOptions {
    /// The design that these options make of `base`.
    pub(crate) fn over(&self, base: StoreDesign) -> StoreDesign {
        let preset = match self.preset {
            None => base,
            Some(Preset::Default) => StoreDesign::default(),
            Some(Preset::Tablefs) => StoreDesign::TABLEFS,
            Some(Preset::TablefsColumn) => StoreDesign::TABLEFS_COLUMN,
            Some(Preset::Slimfs) => StoreDesign::SLIMFS,
            Some(Preset::Kvfs) => StoreDesign::KVFS,
        };
        StoreDesign {
            compaction: self.compaction.unwrap_or(preset.compaction),
            index: self.index.unwrap_or(preset.index),
            filter: self.filter.unwrap_or(preset.filter),
            values: self.values.unwrap_or(preset.values),
            stitch_threshold_bytes: self.stitch_threshold.unwrap_or(preset.stitch_threshold_bytes),
            filtered_levels: self.filtered_levels.unwrap_or(preset.filtered_levels),
            tuning: self.tuning.unwrap_or(preset.tuning),
        }
    }
}
