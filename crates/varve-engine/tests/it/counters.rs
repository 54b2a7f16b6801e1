//! What the store counts is what happens: bytes by their source against the writes that reach the disk, and what lookups
//! cost against lookups that were made to cost it.

use std::sync::Arc;

use varve_engine::{Batch, Db, DbOptions, KeyspaceOptions, Store, StoreDesign};
use varve_env::Env;
use varve_env::sim::{SimEnv, SimOp};
use varve_format::filter::FilterPolicy;
use varve_format::index::IndexPolicy;
use varve_types::KeyspaceId;

use crate::common::*;
use crate::designs::options_of;

const ROWS: KeyspaceOptions = KeyspaceOptions { prefixed: true, compressed: false };

fn open_with(env: &Arc<SimEnv>, options: DbOptions) -> (Db, KeyspaceId) {
    let shared: Arc<dyn Env> = env.clone();
    let db = Db::open(shared, &store_dir(), options).unwrap();
    let space = db.keyspace("rows", ROWS).unwrap();
    (db, space)
}

/// Bytes that were written to files with these endings, by the journal of the disk, which is read again and again as it
/// forgets.
#[derive(Default)]
struct Disk {
    last: u64,
    tables: u64,
    segments: u64,
    logs: u64,
}

impl Disk {
    fn read(&mut self, env: &SimEnv) {
        let seen = self.last;
        for entry in env.journal().iter().filter(|entry| entry.number > seen) {
            self.last = self.last.max(entry.number);
            let Some((_, len)) = entry.range.filter(|_| entry.op == SimOp::Write) else { continue };
            match entry.path.extension().and_then(|extension| extension.to_str()) {
                Some("table") => self.tables += len,
                Some("seg") => self.segments += len,
                Some("wal") => self.logs += len,
                _ => {}
            }
        }
    }
}

fn put(db: &Db, space: KeyspaceId, row: u64, len: usize, byte: u64) {
    let key = [(row / 30).to_be_bytes(), row.to_be_bytes()].concat();
    let mut batch = Batch::new();
    batch.put(space, key, vec![byte as u8; len]);
    db.write(batch).unwrap();
}

/// Every byte of a table or segment is counted, by what wrote it, and none twice: so write amplification is what the
/// counters say.
#[test]
fn bytes_written_are_counted_by_their_source() {
    let mut seen = [0; 3];
    for (from, to) in [
        (StoreDesign::TABLEFS_COLUMN, StoreDesign::SLIMFS),
        (StoreDesign::KVFS, StoreDesign::TABLEFS),
        (StoreDesign::default(), StoreDesign::KVFS),
    ] {
        let env = SimEnv::new(5);
        for (design, steps) in [(from, 6000), (to, 200)] {
            let mut disk = Disk::default();
            disk.read(&env);
            disk = Disk { last: disk.last, ..Disk::default() };
            let mut options = options_of(design);
            options.dead_percent_max = 10;
            let (db, space) = open_with(&env, options);
            let mut rng = Rng::new(8);
            for step in 0..steps {
                put(&db, space, rng.below(700), if step % 3 == 0 { 500 } else { 60 }, step);
                disk.read(&env);
            }
            while !db.redesign().unwrap().done {
                disk.read(&env);
            }
            disk.read(&env);
            let of = |name: &str| counter(&db, name);
            let merged = merged_bytes(&db);
            let apart = of("segment_flush_bytes") + of("segment_merge_bytes");
            let counted =
                of("flush_bytes") + merged + of("defragment_bytes") + of("redesign_bytes") + apart;
            assert_eq!(
                counted,
                disk.tables + disk.segments,
                "{design:?}: {}",
                metrics(&db)["counters"]
            );
            assert!(apart <= disk.segments && of("flush_bytes") + merged <= disk.tables);
            // Beside batches the log has headers and markers.
            let logged = of("log_bytes");
            assert!(
                logged <= disk.logs && disk.logs < logged + logged / 4 + 4096,
                "{logged} of {}",
                disk.logs
            );
            let counts = ["cleanings", "defragmentations", "redesigns"].map(of);
            seen.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            db.close().unwrap();
        }
    }
    assert!(
        seen.iter().all(|count| *count > 0),
        "cleanings, defragmentations, redesigns: {seen:?}"
    );
}

/// A store of 600 rows in one table, of one directory if `tied`.
fn one_table(options: DbOptions, tied: bool) -> (Arc<SimEnv>, Db, KeyspaceId) {
    let env = SimEnv::new(6);
    let options =
        DbOptions { block_bytes: 4096, memtable_bytes: 1 << 20, table_bytes: 1 << 20, ..options };
    let (db, space) = open_with(&env, options);
    for row in 0..600u64 {
        let mut batch = Batch::new();
        batch.put(space, one_key(row, tied), vec![row as u8; 100]);
        db.write(batch).unwrap();
    }
    db.flush().unwrap();
    (env, db, space)
}

/// Keys most of whose suffixes begin alike, if `tied`: an index of fences cannot tell their blocks apart.
fn one_key(row: u64, tied: bool) -> Vec<u8> {
    let (prefix, suffix) = match (tied, row) {
        (true, 500..) => (7, row << 50),
        (true, row) => (7, row),
        (false, row) => (row, row << 56),
    };
    [prefix.to_be_bytes(), suffix.to_be_bytes()].concat()
}

#[test]
fn ties_of_an_index_are_counted() {
    let ties = |index, tied| {
        let (_env, db, space) = one_table(DbOptions { index, ..small_options() }, tied);
        for row in 0..600 {
            assert!(db.get(space, &one_key(row, tied)).unwrap().is_some());
        }
        let (ties, blocks) = (counter(&db, "index_ties"), counter(&db, "lookup_blocks"));
        assert!(blocks <= 600 + ties, "{blocks} blocks, {ties} ties");
        ties
    };
    assert_eq!(ties(IndexPolicy::Plain, true), 0);
    let [tied, apart] = [true, false].map(|tied| ties(IndexPolicy::EliasFano, tied));
    assert!(tied > apart + 20, "{tied} ties of keys that begin alike, {apart} of others");
}

/// A lookup reads the block that it searches once, and then has it in memory; what a filter passes wrongly is a block
/// searched for nothing.
#[test]
fn reads_and_false_positives_of_lookups_are_counted() {
    let filter = FilterPolicy::Bloom { bits_per_key: 3 };
    let index = IndexPolicy::Plain;
    let (_env, db, space) = one_table(DbOptions { filter, index, ..small_options() }, false);
    for round in 1..=2 {
        for row in 0..600 {
            assert!(db.get(space, &one_key(row, false)).unwrap().is_some());
        }
        let [gets, found, blocks, reads] =
            ["gets", "gets_found", "lookup_blocks", "lookup_reads"].map(|name| counter(&db, name));
        assert_eq!((gets, found, blocks), (600 * round, 600 * round, 600 * round));
        assert!(reads > 10 && reads < 40, "{reads} blocks of 4 KiB hold 600 rows of 116 bytes");
    }
    let before = counter(&db, "lookup_blocks");
    for row in 0..599u64 {
        // Between two keys that are there.
        let mut key = one_key(row, false);
        key[15] = 1;
        assert_eq!(db.get(space, &key).unwrap(), None);
    }
    let [passed, denied, found] =
        ["filter_false_positives", "filter_negatives", "gets_found"].map(|name| counter(&db, name));
    assert_eq!((passed + denied, found), (599, 1200));
    assert!((40..300).contains(&passed), "{passed} of 599 pass a filter of 3 bits");
    assert_eq!(counter(&db, "lookup_blocks") - before, passed);
}
