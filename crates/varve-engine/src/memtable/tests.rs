mod oracle;

use std::sync::Arc;

use varve_env::rng::Rng;

use super::*;
use crate::iter::Source;
use crate::iter::memory::MemorySource;
use crate::{Direction, StoreError};

const SPACE: KeyspaceId = KeyspaceId::new(1);
const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

/// Nobody looks at an old state.
const UNSEEN: &IsSeen<'_> = &|_, _| false;

fn put(table: &Memtable, seq: u64, key: &'static str, value: &'static str, snap: Option<u64>) {
    let op = Op::Put { keyspace: SPACE, key: Key::from_slice(key.as_bytes()), value: value.into() };
    let snap = snap.map(SeqNo::new);
    let is_seen = |seq, next| snap.is_some_and(|snap| seq <= snap && snap < next);
    table.apply(SeqNo::new(seq), [op].into_iter(), &is_seen, None);
}

fn get(table: &Memtable, key: &str, seq: u64) -> Option<Found> {
    table.get(SPACE, key.as_bytes(), filter_hash(key.as_bytes()), SeqNo::new(seq))
}

fn versions(table: &Memtable) -> Vec<(Vec<u8>, u64)> {
    let mut out = Vec::new();
    let walked = table.each_version(SPACE, |key, seq, _| {
        out.push((key.to_vec(), seq.get()));
        Ok(())
    });
    walked.expect("nothing fails");
    out
}

fn rows(table: &Memtable, reverse: bool, seq: u64) -> Vec<(Vec<u8>, u64)> {
    let mut out = Vec::new();
    assert!(table.chunk(SPACE, ALL, reverse, SeqNo::new(seq), 100, &mut out).is_none());
    out.into_iter().map(|entry| (entry.key.as_slice().to_vec(), entry.seq.get())).collect()
}

#[test]
fn rows_are_overwritten_in_place_without_snapshots() {
    let table = Memtable::new(FileNo::new(1), 4096);
    put(&table, 1, "a", "one", None);
    let bytes = table.bytes();
    put(&table, 2, "a", "two", None);
    assert_eq!(table.bytes(), bytes);
    assert_eq!(versions(&table), [(b"a".to_vec(), 2)]);
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
    assert_eq!(versions(&table), [(b"a".to_vec(), 3), (b"a".to_vec(), 1), (b"b".to_vec(), 4)]);
    assert_eq!(rows(&table, false, 4), [(b"a".to_vec(), 3), (b"b".to_vec(), 4)]);
    assert_eq!(rows(&table, true, 4), [(b"b".to_vec(), 4), (b"a".to_vec(), 3)]);
    assert_eq!(rows(&table, false, 2), [(b"a".to_vec(), 1)]);
}

/// All versions of a row stayed that anybody had seen when they were written over, and a write moved them all: a name that
/// was changed while others listed its directory became slower with every change.
#[test]
fn versions_go_once_no_snapshot_sees_them() {
    for last in 1..20 {
        let table = Memtable::new(FileNo::new(1), 4096);
        let (mut most, mut bytes_max) = (0, 0);
        for seq in 1..=1000_u64 {
            let op = Op::Put { keyspace: SPACE, key: Key::from_slice(b"a"), value: "value".into() };
            // One that stays, and the last of those that come and go.
            let pins: Vec<u64> = (seq.saturating_sub(last)..seq).chain([30]).collect();
            let is_seen = |seq: SeqNo, next: SeqNo| {
                pins.iter().any(|pin| (seq.get()..next.get()).contains(pin))
            };
            table.apply(SeqNo::new(seq), [op].into_iter(), &is_seen, None);
            for pin in pins.into_iter().filter(|pin| (1..seq).contains(pin)) {
                assert_eq!(rows(&table, false, pin), [(b"a".to_vec(), pin)]);
            }
            most = most.max(versions(&table).len());
            bytes_max = bytes_max.max(table.bytes());
        }
        let most_allowed = 1 + (2 * (last as usize + 1)).max(4);
        assert!(most <= most_allowed, "{most} versions, the last {last} are seen");
        let bytes_allowed = ROW_OVERHEAD_BYTES + 6 + most_allowed * (VERSION_OVERHEAD_BYTES + 5);
        assert!(bytes_max <= bytes_allowed, "{bytes_max} bytes");
        assert!(versions(&table).is_sorted_by_key(|(_, seq)| std::cmp::Reverse(*seq)));
    }
}

#[test]
fn chunks_stop_at_their_limit() {
    let table = Memtable::new(FileNo::new(1), 4096);
    put(&table, 1, "a", "", None);
    put(&table, 2, "a", "", Some(1));
    put(&table, 3, "b", "", None);
    let mut out = Vec::new();
    let last = table.chunk(SPACE, ALL, false, SeqNo::MAX, 1, &mut out).expect("more");
    assert_eq!((out.len(), last.as_slice()), (1, &b"a"[..]));
    let rest = (Bound::Excluded(&b"a"[..]), Bound::Unbounded);
    assert!(table.chunk(SPACE, rest, false, SeqNo::MAX, 1, &mut out).is_some());
    assert_eq!((out[0].seq.get(), out[1].key.as_slice()), (2, &b"b"[..]));
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
        table.apply(SeqNo::new(seq), [op].into_iter(), UNSEEN, None);
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
        table.apply(SeqNo::new(seq), [op].into_iter(), UNSEEN, None);
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

/// What a flush walks over is what scans see, of the newest state and of snapshots.
#[test]
fn all_versions_are_those_of_scans() {
    let table = Arc::new(Memtable::new(FileNo::new(1), 4096));
    let other = KeyspaceId::new(2);
    let mut rng = Rng::new(7);
    let (mut seq, mut snapshots) = (0, Vec::new());
    for _ in 0..2000 {
        let key = Key::from_slice(format!("key {}", rng.below(200)).as_bytes());
        let keyspace = if rng.one_in(3) { other } else { SPACE };
        seq += 1;
        let op = match rng.one_in(4) {
            true => Op::Delete { keyspace, key },
            _ => Op::Put { keyspace, key, value: format!("value {seq}").into() },
        };
        let is_seen = |seq, next| snapshots.iter().any(|snap| (seq..next).contains(snap));
        table.apply(SeqNo::new(seq), [op].into_iter(), &is_seen, None);
        if rng.one_in(16) {
            snapshots.push(SeqNo::new(seq));
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
        let mut scanned = Vec::new();
        for seq in snapshots.iter().copied().chain([SeqNo::MAX]) {
            let (memtable, forward) = (Arc::clone(&table), Direction::Forward);
            let mut source = MemorySource::new(memtable, keyspace, seq, ALL, forward);
            while source.valid() {
                let found = source.found().expect("a value");
                scanned.push((source.key().to_vec(), source.seq(), found));
                source.advance().expect("the next");
            }
        }
        scanned.sort_by_key(|(key, seq, _)| (key.clone(), std::cmp::Reverse(*seq)));
        scanned.dedup();
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
