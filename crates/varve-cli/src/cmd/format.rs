//! `varve format`: make a store.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use varve::{Result, anchor, size, store};
use varve_engine::StoreDesign;
use varve_fs::superblock::LARGE_FILE_THRESHOLDS;
use varve_fs::{EngineKind, FormatOptions};

use crate::cmd::design::{DesignOptions, named};
use crate::cmd::storage::StorageOptions;
use crate::cmd::store_path;
use crate::output;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    /// The directory for the store, created if it is missing; or an address such as s3://bucket/prefix
    #[arg(value_parser = store_path())]
    store: PathBuf,
    /// The size, 4K to 16M, above which a file becomes a file of its own in the storage below
    #[arg(long, value_name = "BYTES", default_value = "64K", value_parser = threshold)]
    large_file_threshold: u64,
    /// How data of small files is compressed
    #[arg(long, value_enum, default_value_t = Compression::Lz4)]
    compression: Compression,
    /// The engine that stores names and small files: varve, or fjall in programs built with it
    #[arg(long, value_name = "ENGINE", default_value = "varve", value_parser = named::<EngineKind>)]
    engine: EngineKind,
    #[command(flatten)]
    storage: StorageOptions,
    #[command(flatten)]
    design: DesignOptions,
    /// Format even if the directory is not empty; a store, or a part of one, is never replaced
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How data is compressed.
#[derive(Clone, Copy, ValueEnum)]
enum Compression {
    /// With LZ4, if it saves room
    Lz4,
    /// Not at all
    None,
}

#[derive(Serialize)]
struct Formatted<'a> {
    #[serde(with = "varve_engine::paths")]
    store: &'a PathBuf,
    superblock: serde_json::Value,
}

/// A threshold for large files.
fn threshold(text: &str) -> std::result::Result<u64, String> {
    let bytes = size::parse(text).map_err(|error| error.to_string())?;
    let (least, most) = (LARGE_FILE_THRESHOLDS.start(), LARGE_FILE_THRESHOLDS.end());
    let rule = || format!("{} to {}", size::show(*least), size::show(*most));
    if LARGE_FILE_THRESHOLDS.contains(&bytes) { Ok(bytes) } else { Err(rule()) }
}

/// Formats the store.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let options = FormatOptions {
        large_file_threshold_bytes: arguments.large_file_threshold,
        compression: matches!(arguments.compression, Compression::Lz4),
        engine: arguments.engine,
        design: arguments.design.over(StoreDesign::default()),
        force: arguments.force,
        root_owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        ..FormatOptions::default()
    };
    arguments.storage.apply(&arguments.store)?;
    let superblock = store::format(&arguments.store, &options)?;
    if arguments.json {
        return output::json(&Formatted {
            store: &arguments.store,
            superblock: superblock.public(),
        });
    }
    let address = anchor::settings(&arguments.store)?.map(|settings| PathBuf::from(settings.uri));
    let store = address.as_ref().unwrap_or(&arguments.store);
    output::line(format!("{} is a store now ({})", store.display(), superblock.uuid));
    let word = output::word(store);
    output::line(format!("mount it with `varve mount {word} DIR`"));
    Ok(())
}
