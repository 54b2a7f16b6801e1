//! What it costs to keep values apart from their rows, by the threshold: `columns DIR [ROWS]`.
//!
//! As in section 4.3.5 of the thesis of TableFS, smaller: ROWS rows (200,000 if not given) with keys of 16 bytes are inserted in
//! random order into a leveled store; of three, two have values of attributes (128 to 200 bytes), and one of a small file (up to
//! 8 KiB); then a third of the rows is overwritten. Printed for each threshold from which values stand apart, and for
//! none: bytes written for each byte put in, room for each byte alive, then with an empty cache the bytes read by a
//! listing of the keys of all directories, by a scan with values, and by each of the lookups of attributes and of
//! files. Figure 4.19 and table 4.1 stand beside.

use std::path::Path;
use std::sync::Arc;

use varve_engine::{
    Batch, Db, DbOptions, Direction, KeyRange, KeyspaceOptions, Store, StoreDesign, StoreResult,
    ValuePolicy,
};
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_testkit::rng;
use varve_types::KeyspaceId;

const MIB: usize = 1 << 20;
/// The last stands for none.
const THRESHOLDS: [usize; 7] = [128, 256, 512, 1024, 2048, 4096, IN_ROW];
const IN_ROW: usize = usize::MAX;
const ROWS_PER_DIRECTORY: u64 = 32;
const LOOKUPS: u64 = 20_000;

/// A number that looks random and belongs to `n`.
fn mixed(n: u64) -> u64 {
    rng::mix(n.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

fn key(row: u64) -> Vec<u8> {
    [(row / ROWS_PER_DIRECTORY).to_be_bytes(), mixed(row).to_be_bytes()].concat()
}

fn is_file(row: u64) -> bool {
    row.is_multiple_of(3)
}

fn value(row: u64, round: u64) -> Vec<u8> {
    let len = if is_file(row) { 1 + mixed(row) % 8192 } else { 128 + mixed(row) % 73 };
    let words =
        (0..len.div_ceil(8)).flat_map(|at| mixed(row << 24 ^ round << 20 ^ at).to_le_bytes());
    words.take(len as usize).collect()
}

/// What one threshold came to.
struct Outcome {
    bytes_min: usize,
    write_amplification: f64,
    space_amplification: f64,
    /// Bytes read by a listing of keys and by a scan with values, for each row.
    scanned: [f64; 2],
    /// Bytes and reads by lookups of attributes and of files, for each.
    looked_up: [[f64; 2]; 2],
    inserted_per_second: f64,
}

fn open(
    env: &Arc<OsEnv>,
    dir: &Path,
    bytes_min: usize,
    budget: usize,
) -> StoreResult<(Db, KeyspaceId)> {
    let mut options = DbOptions::with_memory_budget(budget);
    StoreDesign::TABLEFS.apply(&mut options);
    if bytes_min != IN_ROW {
        options.values = ValuePolicy::Separated { bytes_min };
    }
    let db = Db::open(env.clone(), dir, options)?;
    let id = db.keyspace("rows", KeyspaceOptions { prefixed: true, compressed: false })?;
    Ok((db, id))
}

fn metrics(db: &Db) -> serde_json::Value {
    serde_json::from_str(&db.metrics_json()).unwrap_or_default()
}

fn counter(db: &Db, name: &str) -> u64 {
    metrics(db)["counters"][name].as_u64().unwrap_or(0)
}

/// Bytes that were written: log, flushes, merges, segments.
fn written(db: &Db) -> u64 {
    let levels = metrics(db)["compaction_write_bytes_by_level"].clone();
    let merged: u64 =
        levels.as_array().into_iter().flatten().filter_map(serde_json::Value::as_u64).sum();
    let sources = ["log_bytes", "flush_bytes", "segment_flush_bytes", "segment_merge_bytes"];
    merged + sources.iter().map(|name| counter(db, name)).sum::<u64>()
}

fn fill(db: &Db, id: KeyspaceId, rows: u64) -> StoreResult<u64> {
    let mut put = 0;
    let overwritten = (0..rows / 3).map(|at| (mixed(at ^ 77) % rows, 1));
    let inserted = (0..rows).map(|at| (at.wrapping_mul(0x9e37_79b1) % rows, 0));
    for (row, round) in inserted.chain(overwritten) {
        let (mut batch, value) = (Batch::new(), value(row, round));
        put += 16 + value.len() as u64;
        batch.put(id, key(row), value);
        db.write(batch)?;
    }
    db.flush()?;
    db.compact()?;
    Ok(put)
}

/// Bytes and reads of the device that `work` makes, each for one of `count`.
fn read_by(db: &Db, count: u64, work: impl FnOnce() -> StoreResult<()>) -> StoreResult<[f64; 2]> {
    let names = ["device_read_bytes", "device_reads"];
    let before = names.map(|name| counter(db, name));
    work()?;
    let after = names.map(|name| counter(db, name));
    Ok([0, 1].map(|at| (after[at] - before[at]) as f64 / count as f64))
}

fn measure(env: &Arc<OsEnv>, dir: &Path, bytes_min: usize, rows: u64) -> StoreResult<Outcome> {
    let dir = dir.join(format!("threshold-{bytes_min}"));
    let (db, id) = open(env, &dir, bytes_min, 64 * MIB)?;
    let start = env.monotonic();
    let put = fill(&db, id, rows)?;
    let seconds = (env.monotonic() - start).as_secs_f64();
    let write_amplification = written(&db) as f64 / put as f64;
    db.close()?;
    // So little memory that what is looked up is hardly ever there already.
    let (db, id) = open(env, &dir, bytes_min, 4 * MIB)?;
    let [keys, _] =
        read_by(&db, rows, || db.keys(id, KeyRange::all())?.try_for_each(|key| key.map(drop)))?;
    let mut alive = 0;
    let [values, _] = read_by(&db, rows, || {
        db.scan(id, KeyRange::all(), Direction::Forward)?.try_for_each(|row| {
            let (key, value) = row?;
            alive += (key.len() + value.len()) as u64;
            Ok(())
        })
    })?;
    let lookups = |files: bool| {
        let sought = (0..).map(|at| mixed(at ^ 5) % rows).filter(|row| is_file(*row) == files);
        read_by(&db, LOOKUPS, || {
            sought.take(LOOKUPS as usize).try_for_each(|row| db.get(id, &key(row)).map(drop))
        })
    };
    let looked_up = [lookups(false)?, lookups(true)?];
    let on_disk: u64 = env
        .list(&dir)
        .and_then(|items| items.iter().map(|item| Ok(env.stat(&dir.join(&item.name))?.len)).sum())
        .unwrap_or(0);
    db.close()?;
    Ok(Outcome {
        bytes_min,
        write_amplification,
        space_amplification: on_disk as f64 / alive.max(1) as f64,
        scanned: [keys, values],
        looked_up,
        inserted_per_second: rows as f64 * 4.0 / 3.0 / seconds,
    })
}

#[allow(clippy::print_stdout, reason = "this is what the program is for")]
fn print(outcomes: &[Outcome]) {
    println!(
        "                                     bytes read for each row by       bytes (reads) by a lookup of"
    );
    println!(
        "values apart   written   room   puts/s   keys    a scan with values      attributes      a file"
    );
    for outcome in outcomes {
        let label = match outcome.bytes_min {
            IN_ROW => "none".to_owned(),
            bytes => format!("from {bytes} B"),
        };
        let [attributes, file] = outcome.looked_up;
        println!(
            "{label:>12}   {:>7.2}   {:>4.2}   {:>6.0}   {:>4.0}   {:>18.0}   {:>7.0} ({:.2})   {:>7.0} ({:.2})",
            outcome.write_amplification,
            outcome.space_amplification,
            outcome.inserted_per_second,
            outcome.scanned[0],
            outcome.scanned[1],
            attributes[0],
            attributes[1],
            file[0],
            file[1]
        );
    }
    println!(
        "\nThesis, figure 4.19: column style inserts two to four times as many bytes a second as rows with their values."
    );
    println!(
        "Thesis, table 4.1: it reads 60 % faster at random what was written in order, and 10 times slower what is hot of what"
    );
    println!(
        "was written at random, as its log of values is not sorted; here a segment is in the order of its keys."
    );
}

fn main() -> StoreResult<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().unwrap_or_else(|| "columns".to_owned());
    let rows = arguments.next().and_then(|rows| rows.parse().ok()).unwrap_or(200_000);
    let env = OsEnv::new();
    let dir = Path::new(&dir);
    let measured = THRESHOLDS.map(|threshold| measure(&env, dir, threshold, rows));
    let outcomes = measured.into_iter().collect::<StoreResult<Vec<Outcome>>>()?;
    print(&outcomes);
    Ok(())
}
