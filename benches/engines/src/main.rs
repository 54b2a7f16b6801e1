//! Varve's engine beside RocksDB, fjall and LevelDB on the same rows, one after the other in one run.
//!
//! 1. [`workload`] makes the rows: keys of 8 + 8 bytes, 128 rows to a directory, values that do not compress.
//! 2. [`store`] is what is asked of a store; [`varve`], [`fjall`] and [`c_api`] (RocksDB and LevelDB) answer.
//! 3. [`phases`] creates, looks up, scans and measures by [`meter`], which counts the same for all: processor time of
//!    the process, bytes given to write calls, bytes read from the device.
//! 4. [`report`] prints a table for people or JSON.

mod c_api;
mod fjall;
mod meter;
mod phases;
mod report;
mod store;
mod varve;
mod workload;

use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};
use varve_engine::design::Compaction;

use crate::phases::{Figures, Plan};
use crate::store::{Memory, Outcome, Store};

/// A store to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Subject {
    /// Varve as it is by default.
    Varve,
    VarveLeveled,
    VarveStepped,
    VarveLazyLeveled,
    VarveStitched,
    Rocksdb,
    RocksdbUniversal,
    Fjall,
    Leveldb,
}

impl Subject {
    const USUAL: [Subject; 5] = [
        Subject::Varve,
        Subject::Rocksdb,
        Subject::RocksdbUniversal,
        Subject::Fjall,
        Subject::Leveldb,
    ];

    fn open(self, dir: &Path, memory: Memory) -> Outcome<Box<dyn Store>> {
        let varve = |policy| varve::Varve::open(dir, memory, policy);
        Ok(match self {
            Subject::Varve => Box::new(varve(None)?),
            Subject::VarveLeveled => Box::new(varve(Some(Compaction::Leveled))?),
            Subject::VarveStepped => Box::new(varve(Some(Compaction::Stepped))?),
            Subject::VarveLazyLeveled => Box::new(varve(Some(Compaction::LazyLeveled))?),
            Subject::VarveStitched => Box::new(varve(Some(Compaction::Stitched))?),
            Subject::Rocksdb => Box::new(c_api::rocksdb::RocksDb::open(dir, memory, false)?),
            Subject::RocksdbUniversal => {
                Box::new(c_api::rocksdb::RocksDb::open(dir, memory, true)?)
            }
            Subject::Fjall => Box::new(fjall::Fjall::open(dir, memory)?),
            Subject::Leveldb => Box::new(c_api::leveldb::LevelDb::open(dir, memory)?),
        })
    }
}

/// Measures stores on rows of 16 + 256 bytes. A quick run keeps the proportions of a full one:
/// `engines DIR --rows 1000000 --memory-mib 13`.
#[derive(Debug, Parser)]
struct Arguments {
    /// Where the stores are made, each in a directory of its own that must not exist, and removed.
    dir: PathBuf,
    /// Rows created in random order, and again directory by directory.
    #[arg(long, default_value_t = 5_000_000)]
    rows: u64,
    /// MiB of cache, and of a memtable.
    #[arg(long, default_value_t = 64)]
    memory_mib: usize,
    /// Lookups of each kind.
    #[arg(long, default_value_t = 20_000)]
    lookups: u64,
    /// Stores to measure, if not the usual five.
    #[arg(long = "store", value_enum)]
    stores: Vec<Subject>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print what each store says of itself after each phase.
    #[arg(long)]
    details: bool,
}

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    let chosen = &arguments.stores;
    let subjects = if chosen.is_empty() { Subject::USUAL.to_vec() } else { chosen.clone() };
    let plan = Plan {
        rows: arguments.rows.next_multiple_of(workload::ROWS_PER_DIRECTORY),
        lookups: arguments.lookups,
        details: arguments.details,
    };
    let memory = Memory::of_mib(arguments.memory_mib);
    std::fs::create_dir_all(&arguments.dir)?;
    let mut results: Vec<(String, Figures)> = Vec::new();
    for subject in subjects {
        let name =
            subject.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
        eprintln!("{name}");
        let dir = arguments.dir.join(&name);
        std::fs::create_dir(&dir)?;
        let figures = subject.open(&dir, memory).and_then(|store| phases::run(&plan, &dir, store));
        std::fs::remove_dir_all(&dir)?;
        results.push((name, figures?));
    }
    if arguments.json { report::json(&results) } else { report::table(&plan, &results) }
}
