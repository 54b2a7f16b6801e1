//! Measures single operations on rows of 16 + 100 bytes: `rows DIR [ROWS] [PRESET]`, the preset default, tablefs, slimfs
//! or kvfs.
//!
//! Prints nanoseconds per operation, of processor time of the calling thread and of the clock, for puts in random order, gets
//! from the memtable, gets from tables that are in the cache, gets of absent keys, and scans; of gets the blocks they searched
//! and the bytes they read too; then the store's own counters.

mod shared;

use std::path::PathBuf;
use std::sync::Arc;

use varve_engine::{
    Batch, Db, DbOptions, Direction, KeyRange, KeyspaceOptions, Store, StoreDesign, StoreResult,
};
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_env::rng::Rng;

/// Spreads numbers over the key space.
fn key(number: u64) -> [u8; 16] {
    let mixed = Rng::new(number).next_u64();
    let mut key = [0; 16];
    key[..8].copy_from_slice(&(mixed % 1000).to_be_bytes());
    key[8..].copy_from_slice(&mixed.to_be_bytes());
    key
}

fn timed(
    env: &OsEnv,
    name: &str,
    count: u64,
    mut step: impl FnMut(u64) -> StoreResult<()>,
) -> StoreResult<()> {
    let (start, cpu) = (env.monotonic(), shared::cpu_ns(env));
    for number in 0..count {
        step(number)?;
    }
    let cpu = (shared::cpu_ns(env) - cpu) / count.max(1);
    let clock = (env.monotonic() - start).as_nanos() / u128::from(count.max(1));
    println!("{name:24} {cpu:9} ns processor {clock:9} ns clock");
    Ok(())
}

/// Blocks that gets searched and bytes that were read, so far.
fn reads(db: &Db) -> [u64; 2] {
    let metrics: serde_json::Value = serde_json::from_str(&db.metrics_json()).unwrap_or_default();
    ["lookup_blocks", "device_read_bytes"].map(|n| metrics["counters"][n].as_u64().unwrap_or(0))
}

fn timed_gets(
    env: &OsEnv,
    db: &Db,
    name: &str,
    count: u64,
    step: impl FnMut(u64) -> StoreResult<()>,
) -> StoreResult<()> {
    let before = reads(db);
    timed(env, name, count, step)?;
    let after = reads(db);
    let [blocks, bytes] =
        std::array::from_fn(|i| (after[i] - before[i]) as f64 / count.max(1) as f64);
    println!("{:24} {blocks:9.4} blocks and {bytes:.0} bytes for each", "");
    Ok(())
}

fn main() -> StoreResult<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().unwrap_or_else(|| "rows-store".to_owned()));
    let rows: u64 = arguments.next().and_then(|rows| rows.parse().ok()).unwrap_or(2_000_000);
    let design = match arguments.next().as_deref() {
        Some("tablefs") => StoreDesign::TABLEFS,
        Some("slimfs") => StoreDesign::SLIMFS,
        Some("kvfs") => StoreDesign::KVFS,
        _ => StoreDesign::default(),
    };
    let env = OsEnv::new();
    let open = || {
        let env: Arc<dyn Env> = env.clone();
        let mut options = DbOptions::default();
        design.apply(&mut options);
        Db::open(env, &dir, options)
    };
    let db = open()?;
    let space = db.keyspace("rows", KeyspaceOptions { prefixed: true, compressed: false })?;
    let value = bytes::Bytes::from(vec![b'v'; 100]);
    let put = |number: u64| {
        let mut batch = Batch::new();
        batch.put(space, bytes::Bytes::copy_from_slice(&key(number)), value.clone());
        db.write(batch)
    };
    let get = |number: u64| db.get(space, &key(number)).map(|_| ());
    let small = rows.min(100_000);
    timed(&env, "put, first rows", small, put)?;
    timed(&env, "get, memtable", small, get)?;
    timed(&env, "put, rest", rows - small, |number| put(small + number))?;
    db.flush()?;
    timed(&env, "compact", 1, |_| db.compact())?;
    timed(&env, "get, tables, warming", small, get)?;
    timed(&env, "get, tables, cached", small, get)?;
    timed_gets(&env, &db, "get, absent", small, |number| get(number + (1 << 40)))?;
    timed_gets(&env, &db, "get, any row", rows, get)?;
    timed(&env, "scan of one prefix", 1000, |prefix| {
        let range = KeyRange::prefix(&prefix.to_be_bytes());
        db.scan(space, range, Direction::Forward)?.try_for_each(|row| row.map(|_| ()))
    })?;
    let mut count = 0;
    timed(&env, "full scan", 1, |_| {
        let mut scan = db.scan(space, KeyRange::all(), Direction::Forward)?;
        scan.try_for_each(|row| row.map(|_| count += 1))
    })?;
    println!("{count} rows");
    println!("{}", db.metrics_json());
    timed(&env, "close", 1, |_| db.close())?;
    drop(db);
    let mut db = None;
    timed(&env, "reopen", 1, |_| open().map(|opened| db = Some(opened)))?;
    if let Some(db) = db {
        for number in 0..small {
            let mut batch = Batch::new();
            batch.put(space, bytes::Bytes::copy_from_slice(&key(number)), value.clone());
            db.write(batch)?;
        }
        db.close()?;
    }
    timed(&env, "reopen, replay of rows", 1, |_| open()?.close())
}
