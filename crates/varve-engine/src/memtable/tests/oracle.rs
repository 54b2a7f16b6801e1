//! The memtable beside a map of all that was ever written, under seeded random operations.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::RangeBounds;

use varve_testkit::rng::Rng;

use super::*;

const SPACES: [KeyspaceId; 4] =
    [KeyspaceId::new(0), KeyspaceId::new(2), KeyspaceId::of_branch(0), KeyspaceId::of_branch(7)];

/// All versions of each key, newest first.
type History = BTreeMap<KeyspaceId, BTreeMap<Vec<u8>, Vec<(SeqNo, Found)>>>;

/// Keys of all lengths, many of them the beginnings of others, and most of the file system's; a few again and again.
fn key(rng: &mut Rng) -> Vec<u8> {
    let bytes = [0x00, 0x01, 0x7f, 0x80, 0xff];
    let mut key = vec![*rng.pick(&bytes); 16];
    if rng.chance(20) {
        return key;
    }
    for _ in 0..2 {
        key[rng.below(16) as usize] = *rng.pick(&bytes);
    }
    match rng.below(4) {
        0 => key.truncate(rng.below(17) as usize),
        1 => key.resize(16 + rng.below(4) as usize, *rng.pick(&bytes)),
        _ => {}
    }
    key
}

fn bound(rng: &mut Rng) -> Bound<Vec<u8>> {
    match rng.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key(rng)),
        _ => Bound::Excluded(key(rng)),
    }
}

struct Beside {
    table: Memtable,
    history: History,
    /// States that may be looked at besides the newest.
    snapshots: BTreeSet<SeqNo>,
    seq: SeqNo,
    /// What stands for the filter hash of a key.
    hash: fn(&[u8]) -> u64,
}

impl Beside {
    fn new(hash: fn(&[u8]) -> u64) -> Beside {
        let (history, snapshots) = (History::new(), BTreeSet::new());
        let table = Memtable::new(FileNo::new(1), 4096);
        Beside { table, history, snapshots, seq: SeqNo::ZERO, hash }
    }

    fn write(&mut self, rng: &mut Rng) {
        self.seq = self.seq.advanced(1);
        let (space, key) = (*rng.pick(&SPACES), key(rng));
        let len = rng.below(40) as usize;
        let found = match rng.below(4) {
            0 => Found::Tombstone,
            _ => Found::Value(rng.bytes(len).into()),
        };
        let version = (self.seq, found);
        let is_seen = |seq, next| self.snapshots.range(seq..next).next().is_some();
        let mut contents = self.table.contents.write();
        let hash = (self.hash)(&key);
        contents.set(space, Key::from_slice(&key), hash, version.clone(), &is_seen);
        let versions = self.history.entry(space).or_default().entry(key).or_default();
        versions.insert(0, version);
    }

    fn at(versions: &[(SeqNo, Found)], seq: SeqNo) -> Option<&(SeqNo, Found)> {
        versions.iter().find(|(version, _)| *version <= seq)
    }

    fn check_key(&self, rng: &mut Rng, seq: SeqNo) {
        let (space, key) = (*rng.pick(&SPACES), key(rng));
        let versions = self.history.get(&space).and_then(|rows| rows.get(&key));
        let expected = versions.and_then(|versions| Beside::at(versions, seq));
        let hash = (self.hash)(&key);
        let found = self.table.get(space, &key, hash, seq);
        assert_eq!(found.as_ref(), expected.map(|(_, found)| found), "{key:?} at {seq}");
        let newest = self.table.newest(space, &key, hash);
        assert_eq!(newest.as_ref(), versions.and_then(|versions| versions.first()));
    }

    /// A scan, in chunks, sees the newest version of each row of the range, and none besides.
    fn check_scan(&self, rng: &mut Rng, seq: SeqNo) {
        let (space, range) = (*rng.pick(&SPACES), (bound(rng), bound(rng)));
        let (reverse, limit) = (rng.chance(50), rng.between(1, 20) as usize);
        let (mut start, mut end) = range.clone();
        let mut seen: Vec<MemEntry> = Vec::new();
        loop {
            let bounds = (start.as_ref().map(Vec::as_slice), end.as_ref().map(Vec::as_slice));
            let last = self.table.chunk(space, bounds, reverse, seq, limit, &mut seen);
            let Some(last) = last else { break };
            let side = if reverse { &mut end } else { &mut start };
            *side = Bound::Excluded(last.as_slice().to_vec());
        }
        if reverse {
            seen.reverse();
        }
        let rows = self.history.get(&space).into_iter().flatten();
        let expected: Vec<_> = rows
            .filter(|(key, _)| range.contains(*key))
            .filter_map(|(key, versions)| Some((&key[..], Beside::at(versions, seq)?)))
            .map(|(key, (seq, found))| (key, *seq, found))
            .collect();
        let seen: Vec<_> =
            seen.iter().map(|entry| (entry.key.as_slice(), entry.seq, &entry.found)).collect();
        assert_eq!(seen, expected, "{range:?} at {seq}");
    }

    /// A walk over a key space sees of each row the newest version and what the snapshots see, and nothing that never was.
    fn check_walk(&self, space: KeyspaceId) {
        let mut walked: Vec<(Vec<u8>, (SeqNo, Found))> = Vec::new();
        let walk = self.table.each_version(space, |key, seq, found| {
            walked.push((key.to_vec(), (seq, found.clone())));
            Ok(())
        });
        walk.expect("nothing fails");
        assert!(walked.is_sorted_by_key(|(key, (seq, _))| (key.clone(), Reverse(*seq))));
        let none = BTreeMap::new();
        let rows = self.history.get(&space).unwrap_or(&none);
        assert!(walked.iter().all(|(key, version)| rows[key].contains(version)));
        for (key, versions) in rows {
            let moments = self.snapshots.iter().copied().chain([SeqNo::MAX]);
            for version in moments.filter_map(|seq| Beside::at(versions, seq)) {
                let wanted = (key.clone(), version.clone());
                assert!(walked.contains(&wanted), "{wanted:?}");
            }
        }
        assert_eq!(self.table.rows(space), rows.len());
    }
}

fn run(seed: u64, hash: fn(&[u8]) -> u64) -> Beside {
    let mut rng = Rng::new(seed);
    let mut beside = Beside::new(hash);
    for _ in 0..2000 {
        match rng.below(20) {
            0 => drop(beside.snapshots.insert(beside.seq)),
            1 if rng.chance(50) => drop(beside.snapshots.pop_first()),
            1 => drop(beside.snapshots.pop_last()),
            2..12 => beside.write(&mut rng),
            kind => {
                let mut moments: Vec<SeqNo> = beside.snapshots.iter().copied().collect();
                moments.extend([beside.seq, SeqNo::MAX]);
                let seq = *rng.pick(&moments);
                match kind {
                    12..18 => beside.check_key(&mut rng, seq),
                    _ => beside.check_scan(&mut rng, seq),
                }
            }
        }
    }
    SPACES.iter().for_each(|space| beside.check_walk(*space));
    let spaces: Vec<_> = beside.history.keys().copied().collect();
    assert_eq!(beside.table.keyspaces(), spaces);
    let spaces_of_branches = beside.history.keys().filter(|space| space.is_of_branch());
    assert_eq!(beside.table.last_branch_space(), spaces_of_branches.max().copied());
    beside
}

#[test]
fn rows_are_what_was_written_whatever_is_asked() {
    for seed in 0..20 {
        run(seed, filter_hash);
    }
}

/// The same if most keys have the hash of many others, so that the index names few of the rows.
#[test]
fn rows_are_what_was_written_though_hashes_meet() {
    for seed in 20..40 {
        let beside = run(seed, |key| filter_hash(key) % 4);
        let rows: usize = SPACES.iter().map(|space| beside.table.rows(*space)).sum();
        let named = beside.table.contents.read().rows.named();
        assert!(named < rows / 2, "the index names {named} of {rows}");
    }
}
