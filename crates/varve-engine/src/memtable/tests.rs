mod oracle;

use std::sync::Arc;

use super::*;
use crate::iter::Source;
use crate::iter::memory::MemorySource;
use crate::{Direction, StoreError};

const SPACE: KeyspaceId = KeyspaceId::new(1);
const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

fn put(table: &Memtable, seq: u64, key: &'static str, value: &'static str, snap: Option<u64>) {
    let op = Op::Put { keyspace: SPACE, key: Key::from_slice(key.as_bytes()), value: value.into() };
    table.apply(SeqNo::new(seq), [op].into_iter(), snap.map(SeqNo::new), None);
}

fn get(table: &Memtable, key: &str, seq: u64) -> Option<Found> {
    table.get(SPACE, key.as_bytes(), filter_hash(key.as_bytes()), SeqNo::new(seq))
}

fn versions(table: &Memtable, reverse: bool) -> Vec<(Vec<u8>, u64)> {
    let mut out = Vec::new();
    assert!(table.chunk(SPACE, ALL, reverse, SeqNo::MAX, 100, &mut out).is_none());
    out.into_iter().map(|entry| (entry.key.as_slice().to_vec(), entry.seq.get())).collect()
}

#[test]
fn rows_are_overwritten_in_place_without_snapshots() {
    let table = Memtable::new(FileNo::new(1), 4096);
    put(&table, 1, "a", "one", None);
    let bytes = table.bytes();
    put(&table, 2, "a", "two", None);
    assert_eq!(table.bytes(), bytes);
    assert_eq!(versions(&table, false), [(b"a".to_vec(), 2)]);
}

#[test]
fn versions_that_a_snapshot_sees_stay() {
    let table = Memtable::new(FileNo::new(1), 4096);
    put(&table, 1, "a", "one", None);
    put(&table, 2, "a", "two", Some(1));
    put(&table, 3, "a", "three", Some(1));
    put(&table, 4, "b", "four", Some(1));
    let value = |key: &str, seq| get(&table, key, seq);
    assert_eq!(value("a", 1), Some(Found::Value("one".into())));
    assert_eq!(value("a", 3), Some(Found::Value("three".into())));
    assert_eq!(value("a", 0), None);
    assert_eq!(value("b", 3), None);
    assert_eq!(
        versions(&table, false),
        [(b"a".to_vec(), 3), (b"a".to_vec(), 1), (b"b".to_vec(), 4)]
    );
    let mut backwards = versions(&table, true);
    backwards.reverse();
    assert_eq!(versions(&table, false), backwards);
}

#[test]
fn chunks_stop_at_their_limit_but_keep_a_key_whole() {
    let table = Memtable::new(FileNo::new(1), 4096);
    put(&table, 1, "a", "", None);
    put(&table, 2, "a", "", Some(1));
    put(&table, 3, "b", "", None);
    let mut out = Vec::new();
    let last = table.chunk(SPACE, ALL, false, SeqNo::MAX, 1, &mut out).expect("more");
    assert_eq!((out.len(), last.as_slice()), (2, &b"a"[..]));
    let rest = (Bound::Excluded(&b"a"[..]), Bound::Unbounded);
    assert!(table.chunk(SPACE, rest, false, SeqNo::MAX, 1, &mut out).is_some());
    assert_eq!(out[2].key.as_slice(), b"b");
}

/// Who looked for rows of an old state among many that were newer kept all others from the memtable meanwhile.
#[test]
fn a_chunk_looks_at_so_many_rows_and_a_scan_goes_on_behind_them() {
    let table = Arc::new(Memtable::new(FileNo::new(1), 1 << 16));
    let key = |at: usize| Key::from_slice(&(at as u64).to_be_bytes());
    let (first, rows) = (2 * CHUNK_ROWS_MAX + 10, 5 * CHUNK_ROWS_MAX);
    // The oldest stands in the middle.
    for (seq, at) in (1..).zip(std::iter::once(first).chain((0..rows).filter(|at| *at != first))) {
        let op = Op::Put { keyspace: SPACE, key: key(at), value: "value".into() };
        table.apply(SeqNo::new(seq), [op].into_iter(), None, None);
    }
    let old = SeqNo::new(1);
    for reverse in [false, true] {
        let mut out = Vec::new();
        let last = table.chunk(SPACE, ALL, reverse, old, 16, &mut out).expect("more");
        let at = if reverse { rows - CHUNK_ROWS_MAX } else { CHUNK_ROWS_MAX - 1 };
        assert!(last == key(at) && out.is_empty(), "{last:?}");
    }
    for direction in [Direction::Forward, Direction::Reverse] {
        let mut source = MemorySource::new(Arc::clone(&table), SPACE, old, ALL, direction);
        assert!(source.valid() && source.key() == key(first).as_slice());
        source.advance().expect("the next");
        assert!(!source.valid());
    }
}

#[test]
fn every_key_is_found_however_many_there_are_and_in_its_key_space_only() {
    let table = Memtable::new(FileNo::new(1), 1 << 16);
    let keys: Vec<String> = (0..5000).map(|key| format!("key {key}")).collect();
    for (seq, key) in (1..).zip(&keys) {
        let op = Op::Put {
            keyspace: SPACE,
            key: Key::from_slice(key.as_bytes()),
            value: "value".into(),
        };
        table.apply(SeqNo::new(seq), [op].into_iter(), None, None);
    }
    assert!(keys.iter().all(|key| get(&table, key, 5000).is_some()));
    let is_elsewhere = |key: &String| {
        let hash = filter_hash(key.as_bytes());
        table.get(KeyspaceId::new(2), key.as_bytes(), hash, SeqNo::MAX).is_some()
    };
    assert!(!keys.iter().any(is_elsewhere));
    assert_eq!(get(&table, "key", 5000), None);
}

#[test]
fn empty_ranges_yield_nothing() {
    let table = Memtable::new(FileNo::new(1), 4096);
    put(&table, 1, "a", "", None);
    let (a, b) = (&b"a"[..], &b"b"[..]);
    for range in [
        (Bound::Included(b), Bound::Included(a)),
        (Bound::Excluded(a), Bound::Excluded(a)),
        (Bound::Included(a), Bound::Excluded(a)),
    ] {
        let mut out = Vec::new();
        assert!(table.chunk(SPACE, range, false, SeqNo::MAX, 9, &mut out).is_none());
        assert!(out.is_empty());
    }
}

/// What a flush walks over is what a scan of all sees, versions that only snapshots see among it.
#[test]
fn all_versions_are_those_of_a_scan() {
    let table = Arc::new(Memtable::new(FileNo::new(1), 4096));
    let other = KeyspaceId::new(2);
    let mut rng = 7u64;
    let (mut seq, mut snapshot) = (0, None);
    for _ in 0..2000 {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = Key::from_slice(format!("key {}", (rng >> 33) % 200).as_bytes());
        let keyspace = if (rng >> 50).is_multiple_of(3) { other } else { SPACE };
        seq += 1;
        let op = match (rng >> 55) % 4 {
            0 => Op::Delete { keyspace, key },
            _ => Op::Put { keyspace, key, value: format!("value {seq}").into() },
        };
        table.apply(SeqNo::new(seq), [op].into_iter(), snapshot, None);
        if (rng >> 40).is_multiple_of(16) {
            snapshot = Some(SeqNo::new(seq));
        }
    }
    for keyspace in [SPACE, other, KeyspaceId::new(3)] {
        let mut walked = Vec::new();
        table
            .each_version(keyspace, |key, seq, found| {
                walked.push((key.to_vec(), seq, found.clone()));
                Ok(())
            })
            .expect("nothing fails");
        let (memtable, forward) = (Arc::clone(&table), Direction::Forward);
        let mut source = MemorySource::new(memtable, keyspace, SeqNo::MAX, ALL, forward);
        let mut scanned = Vec::new();
        while source.valid() {
            scanned.push((source.key().to_vec(), source.seq(), source.found().expect("a value")));
            source.advance().expect("the next");
        }
        assert_eq!(walked, scanned);
        assert_eq!(keyspace == KeyspaceId::new(3), walked.is_empty());
        assert!(walked.is_empty() || walked.len() > table.rows(keyspace), "no old versions");
    }
}

#[test]
fn a_walk_ends_with_the_first_failure() {
    let table = Memtable::new(FileNo::new(1), 4096);
    put(&table, 1, "a", "", None);
    put(&table, 2, "b", "", None);
    let mut visited = 0;
    let walked = table.each_version(SPACE, |_, _, _| {
        visited += 1;
        Err(StoreError::Closed)
    });
    assert!(matches!(walked, Err(StoreError::Closed)) && visited == 1);
}
