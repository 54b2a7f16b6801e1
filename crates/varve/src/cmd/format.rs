//! `varve format`: make a store.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde::de::DeserializeOwned;
use varve::{Result, size, store};
use varve_engine::StoreDesign;
use varve_engine::design::{Compaction, StitchThreshold, TableFilter, TableIndex, Values};
use varve_engine::options::{FilteredLevels, Tuning};
use varve_fs::{EngineKind, FormatOptions};

use crate::output;

/// What to make.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The directory for the store; made if it is missing
    store: PathBuf,
    /// Files larger than this become one file each in the storage below
    #[arg(long, value_name = "BYTES", default_value = "64K", value_parser = size::parse)]
    large_file_threshold: u64,
    /// How data of small files is compressed
    #[arg(long, value_enum, default_value_t = Compression::Lz4)]
    compression: Compression,
    /// The store that keeps names and small files: varve, or fjall in programs built with it
    #[arg(long, value_name = "ENGINE", default_value = "varve", value_parser = named::<EngineKind>)]
    engine: EngineKind,
    /// What the tables of the store are made of
    #[arg(long, value_enum, default_value_t = Preset::Default)]
    preset: Preset,
    /// Instead of the preset's: how tables are merged (leveled, stepped, lazy-leveled, stitched)
    #[arg(long, value_name = "POLICY", value_parser = named::<Compaction>)]
    compaction: Option<Compaction>,
    /// Where tables are stitched: runs of blocks of at least so many bytes stay where they are, 4K to 1M
    #[arg(long, value_name = "BYTES", value_parser = threshold)]
    stitch_threshold: Option<StitchThreshold>,
    /// Instead of the preset's: how blocks of tables are found (plain, elias-fano, three-level)
    #[arg(long, value_name = "INDEX", value_parser = named::<TableIndex>)]
    index: Option<TableIndex>,
    /// Instead of the preset's: filters of tables (none, bloom, cuckoo, quotient, fuse, multi-level-cuckoo)
    #[arg(long, value_name = "FILTER", value_parser = named::<TableFilter>)]
    filter: Option<TableFilter>,
    /// How many levels have filters, from the uppermost on, or `all`
    #[arg(long, value_name = "LEVELS", value_parser = named::<FilteredLevels>)]
    filtered_levels: Option<FilteredLevels>,
    /// Whether the store changes merging and filters with what is asked of it (fixed, auto)
    #[arg(long, value_name = "BY", value_parser = named::<Tuning>)]
    tuning: Option<Tuning>,
    /// Instead of the preset's: where large values stand (in-row, separated)
    #[arg(long, value_name = "VALUES", value_parser = named::<Values>)]
    values: Option<Values>,
    /// Format although the directory is not empty; a store is never replaced
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How data is compressed.
#[derive(Clone, Copy, ValueEnum)]
enum Compression {
    /// With LZ4, where it saves room
    Lz4,
    /// Not at all
    None,
}

/// Designs that go by a name.
#[derive(Clone, Copy, ValueEnum)]
enum Preset {
    /// What measures best
    Default,
    /// The store of TableFS: leveled, separator keys, Bloom filters
    Tablefs,
    /// The same in column style: small index rows, values of 1 KiB and more apart
    TablefsColumn,
    /// The store of SlimFS: stepped above one leveled level, entropy-coded tries, a multi-level cuckoo filter
    Slimfs,
    /// The store of KVFS: stitched, quotient filters
    Kvfs,
}

/// A choice by its name in superblocks.
fn named<T: DeserializeOwned>(name: &str) -> std::result::Result<T, serde_json::Error> {
    serde_json::from_value(name.into())
}

/// A stitching threshold.
fn threshold(text: &str) -> std::result::Result<StitchThreshold, String> {
    let bytes = size::parse(text).map_err(|error| error.to_string())?;
    let [least, most] = [StitchThreshold::MIN, StitchThreshold::MAX].map(StitchThreshold::bytes);
    let rule = || format!("{} to {}", size::show(least.into()), size::show(most.into()));
    StitchThreshold::new(bytes).ok_or_else(rule)
}

impl Arguments {
    fn design(&self) -> StoreDesign {
        let preset = match self.preset {
            Preset::Default => StoreDesign::default(),
            Preset::Tablefs => StoreDesign::TABLEFS,
            Preset::Slimfs => StoreDesign::SLIMFS,
            Preset::TablefsColumn => StoreDesign::TABLEFS_COLUMN,
            Preset::Kvfs => StoreDesign::KVFS,
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

#[derive(Serialize)]
struct Formatted<'a> {
    store: &'a PathBuf,
    superblock: &'a varve_fs::Superblock,
}

/// Makes the store.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let options = FormatOptions {
        large_file_threshold_bytes: arguments.large_file_threshold,
        compression: matches!(arguments.compression, Compression::Lz4),
        engine: arguments.engine,
        design: arguments.design(),
        force: arguments.force,
        root_owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        ..FormatOptions::default()
    };
    let superblock = store::format(&arguments.store, &options)?;
    if arguments.json {
        return output::json(&Formatted { store: &arguments.store, superblock: &superblock });
    }
    let dir = arguments.store.display();
    output::line(format!("{dir} is a store now ({})", superblock.uuid));
    output::line(format!("mount it with `varve mount {dir} DIR`"));
    Ok(())
}
