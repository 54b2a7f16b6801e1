//! Writers, readers and scans at once, on the real machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use varve_engine::{Batch, Db, DbOptions, Direction, KeyRange, Store};
use varve_env::os::OsEnv;
use varve_testkit::at_end;
use varve_types::KeyspaceId;

use crate::common::*;
use crate::designs::{PRESETS, options_of};

const WRITERS: u64 = 3;
const ROUNDS: u64 = 600;

fn key(writer: u64, row: u64) -> Vec<u8> {
    [writer.to_be_bytes(), row.to_be_bytes()].concat()
}

fn number(value: &[u8]) -> u64 {
    u64::from_be_bytes(value[..8].try_into().unwrap())
}

/// Each batch sets all rows of its writer, in two key spaces, to one number.
fn write_rounds(db: &Db, ids: &[KeyspaceId], writer: u64, done: &AtomicU64) {
    for round in 1..=ROUNDS {
        let mut batch = Batch::new();
        let mut value = round.to_be_bytes().to_vec();
        value.resize(60, writer as u8);
        for row in 0..4 {
            batch.put(ids[0], key(writer, row), value.clone());
            batch.put(ids[2], key(writer, row), value.clone());
        }
        db.write(batch).unwrap();
        done.fetch_max(round, Ordering::SeqCst);
        if round % 100 == writer {
            db.sync().unwrap();
        }
    }
}

/// All rows of a writer show one number, in each scan and in each snapshot, and it never falls back.
fn read_rounds(
    db: &Db,
    ids: &[KeyspaceId],
    writer: u64,
    done: &AtomicU64,
    stop: &AtomicBool,
) -> u64 {
    let mut last = 0;
    let mut reads = 0;
    while !stop.load(Ordering::SeqCst) {
        let at_least = done.load(Ordering::SeqCst);
        let snapshot = db.snapshot().unwrap();
        let mut numbers = Vec::new();
        for (id, direction) in [(ids[0], Direction::Forward), (ids[2], Direction::Reverse)] {
            let range = KeyRange::prefix(&writer.to_be_bytes());
            let rows = snapshot.scan(id, range, direction).unwrap();
            numbers.extend(rows.map(|row| number(&row.unwrap().1)));
        }
        for row in 0..4 {
            let value = snapshot.get(ids[0], &key(writer, row)).unwrap();
            numbers.extend(value.map(|value| number(&value)));
        }
        if numbers.is_empty() {
            assert_eq!(at_least, 0);
            continue;
        }
        assert_eq!(numbers.len(), 12);
        assert!(numbers.iter().all(|n| *n == numbers[0]), "{numbers:?}");
        assert!(numbers[0] >= last.max(at_least));
        last = numbers[0];
        let now = db.get(ids[2], &key(writer, 3)).unwrap();
        assert!(number(&now.unwrap()) >= last);
        reads += 1;
    }
    reads
}

#[test]
fn readers_see_whole_batches_while_writers_write() {
    whole_batches(&small_options());
}

#[test]
fn readers_see_whole_batches_in_every_preset() {
    for (name, design) in PRESETS {
        println!("{name}");
        whole_batches(&options_of(design));
    }
}

fn whole_batches(options: &DbOptions) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let open = || Db::open(OsEnv::new(), &path, options.clone()).unwrap();
    let db = open();
    let ids = make_spaces(&db).unwrap();
    let stop = AtomicBool::new(false);
    let done: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let (db_ref, ids_ref, stop_ref) = (&db, &ids[..], &stop);
    let reads: u64 = std::thread::scope(|scope| {
        let end = at_end(|| stop.store(true, Ordering::SeqCst));
        let mut readers = Vec::new();
        let mut writers = Vec::new();
        for (writer, done) in (0..WRITERS).zip(&done) {
            writers.push(scope.spawn(move || write_rounds(db_ref, ids_ref, writer, done)));
            readers.push(scope.spawn(move || read_rounds(db_ref, ids_ref, writer, done, stop_ref)));
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        drop(end);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert!(reads > 10);
    db.close().unwrap();
    assert!(matches!(db.sync(), Err(varve_engine::StoreError::Closed)));
    drop(db);
    let db = open();
    for writer in 0..WRITERS {
        for id in [ids[0], ids[2]] {
            let rows = db.scan(id, KeyRange::prefix(&writer.to_be_bytes()), Direction::Forward);
            let rows: Vec<u64> = rows.unwrap().map(|row| number(&row.unwrap().1)).collect();
            assert_eq!(rows, [ROUNDS; 4]);
        }
    }
}

#[test]
fn a_store_is_opened_once() {
    let dir = tempfile::tempdir().unwrap();
    let first = Db::open(OsEnv::new(), dir.path(), small_options()).unwrap();
    let error = Db::open(OsEnv::new(), dir.path(), small_options()).unwrap_err();
    assert!(matches!(error, varve_engine::StoreError::Locked { .. }), "{error}");
    first.close().unwrap();
    let second = Arc::new(Db::open(OsEnv::new(), dir.path(), small_options()).unwrap());
    assert!(second.metrics_json().starts_with('{'));
}
