//! The workload "rows" on each compaction policy: `presets DIR [ROWS] [POLICY]`.
//!
//! Keys of 8 + 8 bytes with 128 rows a prefix, values of 256 bytes, existence looked up before each insert; 64 MiB
//! of cache beside the memtables, no compression. Rows come in random order, then once more by directory. Printed:
//! processor time of all threads per operation, write amplification with the log and by source, bytes read per
//! lookup, memory of indexes and filters per key, space amplification, and the worst second of the creates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_engine::{
    Batch, CompactionPolicy, Db, DbOptions, Direction, KeyRange, KeyspaceOptions, Store,
    StoreResult,
};
use varve_env::os::OsEnv;
use varve_env::{Env, OpenMode};
use varve_types::KeyspaceId;

const ROWS_PER_PREFIX: u64 = 128;
const VALUE_BYTES: usize = 256;
const ROW_BYTES: u64 = 16 + VALUE_BYTES as u64;
const MIB: usize = 1 << 20;
const LOOKUPS: u64 = 200_000;
const SCANS: u64 = 5_000;
const POLICIES: [(&str, CompactionPolicy); 3] = [
    ("leveled", CompactionPolicy::Leveled),
    ("stepped", CompactionPolicy::Stepped),
    ("lazy", CompactionPolicy::LazyLeveled),
];

fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Row `number` of all, directory by directory.
fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&(number / ROWS_PER_PREFIX).to_be_bytes());
    key[8..].copy_from_slice(&mixed(number).to_be_bytes());
    key
}

/// Visits the numbers below `count`, each once, in an order that looks random.
fn scattered(index: u64, count: u64) -> u64 {
    let bits = 64 - (count - 1).leading_zeros();
    let mask = (1u64 << bits) - 1;
    let mut number = index;
    loop {
        // An affine step and a shift are invertible within `bits` bits; values above the count go round again.
        for round in 0..3 {
            number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15 | 1).wrapping_add(round) & mask;
            number ^= number >> (bits / 2 + 1);
        }
        if number < count {
            return number;
        }
    }
}

/// Microseconds that all threads of this process spent on processors.
fn cpu_us(env: &OsEnv) -> u64 {
    let mut text = [0; 512];
    let stat = Path::new("/proc/self/stat");
    let read = env.open(stat, OpenMode::Read).and_then(|file| file.read_at(&mut text, 0));
    let text = String::from_utf8_lossy(&text[..read.unwrap_or(0)]);
    let after_name = text.rsplit(')').next().unwrap_or("");
    let ticks =
        after_name.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok());
    ticks.sum::<u64>() * 10_000
}

struct Bench {
    env: Arc<OsEnv>,
    db: Db,
    space: KeyspaceId,
    dir: PathBuf,
    /// What was done, in operations and rows written.
    rows: u64,
}

impl Bench {
    fn open(dir: &Path, policy: CompactionPolicy) -> StoreResult<Bench> {
        let env = OsEnv::new();
        let mut options = DbOptions::with_memory_budget(64 * MIB + 3 * 32 * MIB);
        options.memtable_bytes = 32 * MIB;
        options.compaction = policy;
        if policy != CompactionPolicy::Leveled {
            options.sublevels_trigger = 8;
        }
        options.level_base_bytes = options.sublevels_trigger as u64 * options.memtable_bytes as u64;
        let shared: Arc<dyn Env> = env.clone();
        let db = Db::open(shared, dir, options)?;
        let space = db.keyspace("rows", KeyspaceOptions { prefixed: true, compressed: false })?;
        Ok(Bench { env, db, space, dir: dir.to_path_buf(), rows: 0 })
    }

    fn counter(&self, name: &str) -> u64 {
        let metrics: serde_json::Value =
            serde_json::from_str(&self.db.metrics_json()).unwrap_or_default();
        metrics["counters"][name].as_u64().unwrap_or(0)
    }

    fn levels(&self) -> String {
        let metrics: serde_json::Value =
            serde_json::from_str(&self.db.metrics_json()).unwrap_or_default();
        let levels = metrics["keyspaces"][0]["levels"].as_array().cloned().unwrap_or_default();
        let used = levels.iter().filter(|level| level["tables"] != 0);
        let shown = used.map(|level| {
            format!(
                "{}: {} sub-levels, {} tables",
                level["level"], level["sublevels"], level["tables"]
            )
        });
        shown.collect::<Vec<_>>().join("; ")
    }

    fn compaction_bytes(&self) -> u64 {
        let metrics: serde_json::Value =
            serde_json::from_str(&self.db.metrics_json()).unwrap_or_default();
        let by_level = metrics["compaction_write_bytes_by_level"].as_array().cloned();
        by_level.unwrap_or_default().iter().filter_map(serde_json::Value::as_u64).sum()
    }

    fn create(&self, number: u64) -> StoreResult<()> {
        let key = key(number);
        if self.db.get(self.space, &key)?.is_some() {
            return Ok(());
        }
        let mut batch = Batch::new();
        let mut value = vec![0; VALUE_BYTES];
        for (at, bytes) in value.chunks_mut(8).enumerate() {
            bytes.copy_from_slice(&mixed(number ^ (at as u64) << 40).to_le_bytes());
        }
        batch.put(self.space, bytes::Bytes::copy_from_slice(&key), value);
        self.db.write(batch)
    }

    /// Creates `count` rows; prints what it cost.
    fn creates(&mut self, name: &str, count: u64, row: impl Fn(u64) -> u64) -> StoreResult<()> {
        let before =
            (self.counter("log_bytes"), self.counter("flush_bytes"), self.compaction_bytes());
        let (start, cpu) = (self.env.monotonic(), cpu_us(&self.env));
        let (mut second, mut done, mut worst) = (start, 0, f64::MAX);
        for index in 0..count {
            self.create(row(index))?;
            if index % 256 == 0 {
                let now = self.env.monotonic();
                let elapsed = (now - second).as_secs_f64();
                if elapsed >= 1.0 {
                    worst = worst.min((index - done) as f64 / elapsed);
                    (second, done) = (now, index);
                }
            }
        }
        let seconds = (self.env.monotonic() - start).as_secs_f64();
        self.rows += count;
        self.db.flush()?;
        self.db.compact()?;
        let cpu = (cpu_us(&self.env) - cpu) as f64 / count as f64;
        let bytes = (count * ROW_BYTES) as f64;
        let log = (self.counter("log_bytes") - before.0) as f64 / bytes;
        let flush = (self.counter("flush_bytes") - before.1) as f64 / bytes;
        let merge = (self.compaction_bytes() - before.2) as f64 / bytes;
        println!(
            "{name:28} {cpu:7.2} us processor  write amplification {:5.2} = log {log:.2} + flush {flush:.2} + merges {merge:.2}  worst second {:.2} of the mean",
            log + flush + merge,
            worst.min(count as f64 / seconds) / (count as f64 / seconds),
        );
        Ok(())
    }

    fn lookups(
        &self,
        name: &str,
        count: u64,
        step: impl Fn(u64) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let (reads, cpu) = (self.counter("device_read_bytes"), cpu_us(&self.env));
        for index in 0..count {
            step(index)?;
        }
        let bytes = (self.counter("device_read_bytes") - reads) as f64 / count as f64;
        let cpu = (cpu_us(&self.env) - cpu) as f64 / count as f64;
        println!("{name:28} {cpu:7.2} us processor  {:8.1} KiB read", bytes / 1024.0);
        Ok(())
    }

    fn space(&self) -> StoreResult<()> {
        let items = self.env.list(&self.dir).unwrap_or_default();
        let tables = items.iter().filter(|item| item.name.to_string_lossy().ends_with(".table"));
        let bytes: u64 = tables
            .filter_map(|item| self.env.stat(&self.dir.join(&item.name)).ok())
            .map(|stat| stat.len)
            .sum();
        println!(
            "{:28} {:7.3}",
            "space amplification",
            bytes as f64 / (self.rows * ROW_BYTES) as f64
        );
        println!("{:28} {}", "levels", self.levels());
        Ok(())
    }
}

fn run(dir: &Path, rows: u64, name: &str, policy: CompactionPolicy) -> StoreResult<()> {
    let dir = dir.join(name);
    println!("== {name}, {rows} rows");
    let mut bench = Bench::open(&dir, policy)?;
    bench.creates("create, random order", rows, |index| scattered(index, rows))?;
    bench.space()?;
    bench.lookups("get, found", LOOKUPS, |index| {
        bench.db.get(bench.space, &key(mixed(index) % rows)).map(|_| ())
    })?;
    bench.lookups("get, absent", LOOKUPS, |index| {
        let mut key = key(mixed(index) % rows);
        key[15] ^= 0x55;
        bench.db.get(bench.space, &key).map(|_| ())
    })?;
    bench.lookups("scan of one directory", SCANS, |index| {
        let prefix = mixed(index) % (rows / ROWS_PER_PREFIX);
        let range = KeyRange::prefix(&prefix.to_be_bytes());
        let mut scan = bench.db.scan(bench.space, range, Direction::Forward)?;
        scan.try_for_each(|row| row.map(|_| ()))
    })?;
    // Directories beyond those of the first phase, each made whole, in an order that looks random.
    let dirs = rows / ROWS_PER_PREFIX;
    bench.creates("create, by directory", dirs * ROWS_PER_PREFIX, |index| {
        let dir = dirs + 1 + scattered(index / ROWS_PER_PREFIX, dirs);
        dir * ROWS_PER_PREFIX + index % ROWS_PER_PREFIX
    })?;
    bench.space()?;
    bench.db.close()
}

fn main() -> StoreResult<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().unwrap_or_else(|| "presets-stores".to_owned()));
    let rows = arguments.next().and_then(|rows| rows.parse().ok()).unwrap_or(5_000_000);
    let only = arguments.next();
    if let Err(error) = OsEnv::new().create_dir(&dir) {
        println!("{}: {error}", dir.display());
    }
    for (name, policy) in
        POLICIES.iter().filter(|(name, _)| only.as_deref().is_none_or(|o| o == *name))
    {
        run(&dir, rows, name, *policy)?;
    }
    Ok(())
}
