//! Rows in memory over a store without room, against a map.

use std::path::Path;

use varve_engine::{Db, DbOptions};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_testkit::rng::Rng;

use super::*;

/// A store on a disk without room.
fn full() -> (Arc<SimEnv>, UnwrittenStore, KeyspaceId) {
    let env = SimEnv::new(1);
    env.set_capacity(16 << 20);
    let options = DbOptions { memtable_bytes: 256 << 10, ..DbOptions::default() };
    let dyn_env: Arc<dyn Env> = Arc::clone(&env) as _;
    let db = Db::open(dyn_env, Path::new("/db"), options).unwrap();
    let space = KeyspaceOptions { prefixed: false, compressed: false };
    let space = Store::keyspace(&db, "rows", space).unwrap();
    let bytes = Arc::new(KeptBytes::new(1 << 20));
    (env, UnwrittenStore::over(Arc::new(db), bytes), space)
}

fn put(space: KeyspaceId, rows: &[(u8, Option<u8>)]) -> Batch {
    let mut batch = Batch::new();
    for (key, value) in rows {
        match value {
            Some(value) => batch.put(space, [*key], vec![*value]),
            None => batch.delete(space, [*key]),
        }
    }
    batch
}

/// Compares all that can be read with `model`.
fn compare(store: &UnwrittenStore, space: KeyspaceId, model: &BTreeMap<u8, u8>, rng: &mut Rng) {
    let (first, last) = (rng.below(40) as u8, rng.below(40) as u8);
    let (first, last) = (first.min(last), first.max(last));
    let bounds = |key: u8| match key % 3 {
        0 => Bound::Included(vec![key]),
        1 => Bound::Excluded(vec![key]),
        _ => Bound::Unbounded,
    };
    let range = KeyRange { start: bounds(first), end: bounds(last) };
    let is_in = |key: u8| {
        let low = match &range.start {
            Bound::Included(start) => start[0] <= key,
            Bound::Excluded(start) => start[0] < key,
            Bound::Unbounded => true,
        };
        low && match &range.end {
            Bound::Included(end) => key <= end[0],
            Bound::Excluded(end) => key < end[0],
            Bound::Unbounded => true,
        }
    };
    let mut expected: Vec<(u8, u8)> =
        model.iter().filter(|it| is_in(*it.0)).map(|it| (*it.0, *it.1)).collect();
    let taken = |rows: ScanIter<'_>| -> Vec<(u8, u8)> {
        rows.map(|row| row.map(|(key, value)| (key[0], value[0])).unwrap()).collect()
    };
    let snapshot = store.snapshot().unwrap();
    for direction in [Direction::Forward, Direction::Reverse] {
        assert_eq!(taken(store.scan(space, range.clone(), direction).unwrap()), expected);
        assert_eq!(taken(snapshot.scan(space, range.clone(), direction).unwrap()), expected);
        expected.reverse();
    }
    let keys = store.keys(space, range.clone()).unwrap().map(|key| key.unwrap()[0]);
    assert!(keys.eq(expected.iter().map(|it| it.0)));
    let mut visited = Vec::new();
    let visit = &mut |key: &[u8], value: Bytes| {
        visited.push((key[0], value[0]));
        true
    };
    store.each_row(space, range, visit).unwrap();
    assert_eq!(visited, expected);
    for key in 0..40 {
        let expected = model.get(&key).map(|value| vec![*value]);
        let get = |found: Option<Bytes>| found.map(|value| value.to_vec());
        assert_eq!(get(store.get(space, &[key]).unwrap()), expected);
        assert_eq!(get(snapshot.get(space, &[key]).unwrap()), expected);
    }
}

#[test]
fn rows_in_memory_are_read_as_if_they_were_written() {
    let (env, store, space) = full();
    let options = KeyspaceOptions { prefixed: false, compressed: false };
    let other = store.keyspace("others", options).unwrap();
    let large = |other| {
        let mut batch = Batch::new();
        batch.put(other, [0], vec![0; 60_000]);
        batch
    };
    let (mut rng, mut model, mut kept) = (Rng::new(7), BTreeMap::new(), 0);
    for step in 0..3000 {
        match rng.below(20) {
            0 => {
                env.fill(0);
                // What was granted before is used up.
                let more = || store.below.write(large(other));
                while more().is_ok() {}
            }
            1 => env.fill(u64::MAX),
            _ => {}
        }
        let rows: Vec<(u8, Option<u8>)> = (0..1 + rng.below(3))
            .map(|_| (rng.below(40) as u8, rng.chance(70).then(|| rng.below(256) as u8)))
            .collect();
        let is_derived = rng.chance(60);
        let written = match is_derived {
            true => store.write_derived(put(space, &rows)),
            false => store.write(put(space, &rows)),
        };
        match written {
            Ok(()) => model.extend(rows.iter().map(|it| (it.0, it.1))),
            Err(StoreError::NoSpace { .. }) if !is_derived => {}
            Err(error) => panic!("step {step}: {error}"),
        }
        kept += usize::from(!store.is_empty());
        let there = model.iter().filter_map(|(key, value)| Some((*key, (*value)?))).collect();
        compare(&store, space, &there, &mut rng);
    }
    assert!((500..2500).contains(&kept), "{kept}");
    env.fill(u64::MAX);
    store.sync().unwrap();
    assert!(store.is_empty() && store.has_written() && !store.has_written());
    assert_eq!(store.bytes.used.load(Ordering::Relaxed), 0);
}

/// A removal writes what it builds on, and leaves the rest in memory.
#[test]
fn a_write_takes_along_what_it_builds_on() {
    let (env, store, space) = full();
    env.fill(0);
    for rows in [[(1, 1), (2, 1)], [(2, 2), (3, 2)], [(5, 3), (6, 3)], [(3, 4), (4, 4)]] {
        store.write_derived(put(space, &rows.map(|(key, value)| (key, Some(value))))).unwrap();
    }
    let in_memory = || store.rows.read().keys().map(|it| it.1[0]).collect::<Vec<_>>();
    assert_eq!(in_memory(), [1, 2, 3, 4, 5, 6]);
    let refused = store.write(put(space, &[(2, None)]));
    assert!(matches!(refused, Err(StoreError::NoSpace { .. })), "{refused:?}");
    let mut removal = put(space, &[(3, None), (4, None)]);
    removal.reclaims_space();
    store.write(removal).unwrap();
    assert_eq!(in_memory(), [5, 6]);
    let below = |key: u8| store.below.get(space, &[key]).unwrap().map(|value| value[0]);
    assert_eq!([1, 2, 3, 4, 5].map(below), [Some(1), Some(2), None, None, None]);
}
