//! Computes the figures of a trace (Ren, thesis, 3.3 and 3.4; Sinnamohideen, thesis, 3.1.3).
//!
//! 1. [`Analysis`] takes one record after the other and updates the [`Tree`].
//! 2. It counts the operation by kind, by interval, by depth and by the objects that it changes.
//! 3. It compares each rename with the renames of the last second.
//!
//! Invariant: the memory is the one of the tree, of the renames of one second, and of at most [`INTERVALS_MAX`]
//! intervals. When there are more intervals, two are merged into one.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use crate::record::{OPS, Op, Record};
use crate::tree::{Distance, Tree};

/// The most intervals that are kept.
pub const INTERVALS_MAX: usize = 1440;
/// The length of an interval to begin with, in microseconds.
const INTERVAL_US: u64 = 1_000_000;
/// The number of depths that are counted; a deeper object counts with the last one.
pub const DEPTH_MAX: usize = 64;
/// The time within which two renames may conflict (table 3.2).
const CONFLICT_US: u64 = 1_000_000;

/// Operations by kind.
pub type Counts = [u64; OPS.len()];

/// How many objects operations change together (tables 3.1 and 3.2 of Sinnamohideen).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scopes {
    /// One file or directory.
    pub single: u64,
    /// A directory and what is in it.
    pub parent_and_child: u64,
    /// A file and two directories near to each other: renames and links. Links to files whose directory is not known are here.
    pub near: [u64; 2],
    /// A file and two directories that are not near, or not known to be near: renames and links.
    pub distant: [u64; 2],
}

/// Renames and their conflicts (table 3.2 of Ren).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renames {
    /// The successful ones.
    pub all: u64,
    /// The ones between two directories.
    pub across: u64,
    /// The ones that conflict with a rename in the second before: both move the same object or to the same name, or
    /// one moves something below what the other moves.
    pub conflicts: u64,
}

/// The figures after some records.
pub struct Analysis {
    /// The tree that the records imply.
    pub tree: Tree,
    /// Operations by kind, including failed ones.
    pub counts: Counts,
    /// Operations that failed.
    pub failed: u64,
    /// The time of the first record, in microseconds since 1970.
    pub begin_us: u64,
    /// The time of the last record.
    pub end_us: u64,
    /// The length of an interval.
    pub interval_us: u64,
    /// Operations by kind in each interval from the first record on.
    pub intervals: Vec<Counts>,
    /// Operations of each kind by the depth of their objects (figure 3.8).
    pub depths: Vec<[u64; DEPTH_MAX + 1]>,
    /// Operations by the objects that they change together.
    pub scopes: Scopes,
    /// Renames.
    pub renames: Renames,
    recent: Recent,
}

impl Default for Analysis {
    fn default() -> Analysis {
        Analysis {
            tree: Tree::new(),
            counts: [0; OPS.len()],
            failed: 0,
            begin_us: 0,
            end_us: 0,
            interval_us: INTERVAL_US,
            intervals: Vec::new(),
            depths: vec![[0; DEPTH_MAX + 1]; OPS.len()],
            scopes: Scopes::default(),
            renames: Renames::default(),
            recent: Recent::default(),
        }
    }
}

/// Returns the index of the figures of a kind of operation.
fn place(op: Op) -> usize {
    op as usize - 1
}

impl Analysis {
    /// All operations.
    pub fn operations(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Takes the next record.
    pub fn learn(&mut self, record: &Record) {
        if record.op == Op::Known {
            return self.tree.learn(record);
        }
        if self.operations() == 0 {
            self.begin_us = record.at_us;
        }
        self.end_us = self.end_us.max(record.at_us);
        let at = place(record.op);
        self.counts[at] += 1;
        self.failed += u64::from(record.error != 0);
        self.count_in_interval(record.at_us, at);
        self.count_scope(record);
        if record.op == Op::Rename && record.error == 0 {
            self.count_rename(record);
        }
        self.tree.learn(record);
        let depth = match (self.tree.object(record), record.dir) {
            (Some(object), _) => self.tree.depth(object),
            (None, Some(dir)) => self.tree.depth(dir) + 1,
            (None, None) => return,
        };
        self.depths[at][(depth as usize).min(DEPTH_MAX)] += 1;
    }

    fn count_in_interval(&mut self, at_us: u64, op: usize) {
        let number = |interval_us: u64| at_us.saturating_sub(self.begin_us) / interval_us;
        while number(self.interval_us) >= INTERVALS_MAX as u64 {
            self.interval_us *= 2;
            let pairs = self.intervals.chunks(2);
            let sum = |pair: &[Counts]| {
                std::array::from_fn(|op| pair.iter().map(|counts| counts[op]).sum())
            };
            self.intervals = pairs.map(sum).collect();
        }
        let number = number(self.interval_us) as usize;
        if self.intervals.len() <= number {
            self.intervals.resize(number + 1, [0; OPS.len()]);
        }
        self.intervals[number][op] += 1;
    }

    fn count_scope(&mut self, record: &Record) {
        let scopes = &mut self.scopes;
        let (distance, kind) = match record.op {
            Op::Create | Op::Mknod | Op::Mkdir | Op::Symlink | Op::Unlink | Op::Rmdir => {
                scopes.parent_and_child += 1;
                return;
            }
            Op::Rename => match (record.dir, record.new_dir) {
                (Some(from), Some(to)) => (self.tree.distance(from, to), 0),
                _ => (Distance::Far(None), 0),
            },
            Op::Link => {
                match (self.tree.object(record).and_then(|it| self.tree.parent(it)), record.dir) {
                    (Some(first), Some(to)) => (self.tree.distance(first, to), 1),
                    _ => (Distance::Near, 1),
                }
            }
            _ => {
                scopes.single += 1;
                return;
            }
        };
        match distance {
            Distance::Same => scopes.parent_and_child += 1,
            Distance::Near => scopes.near[kind] += 1,
            Distance::Far(_) => scopes.distant[kind] += 1,
        }
    }

    /// REQUIRES: the tree has not taken this record yet.
    fn count_rename(&mut self, record: &Record) {
        self.renames.all += 1;
        self.renames.across += u64::from(record.dir != record.new_dir);
        let object = self.tree.object(record);
        let dirs: Vec<u64> = record.dir.into_iter().chain(record.new_dir).collect();
        let above = |dir: &u64| std::iter::once(*dir).chain(self.tree.ancestors(*dir));
        let mut above: Vec<u64> = dirs.iter().flat_map(above).collect();
        above.sort_unstable();
        above.dedup();
        let target = record.new_dir.map(|dir| (dir, record.new_name.clone()));
        let rename = Rename { at_us: record.at_us, object, above, target };
        self.renames.conflicts += u64::from(self.recent.meets(rename));
    }
}

/// A rename of the last second.
struct Rename {
    at_us: u64,
    object: Option<u64>,
    /// The directories of its old and new name, and all directories above them.
    above: Vec<u64>,
    target: Option<(u64, Vec<u8>)>,
}

/// The renames of the last second, with counts for finding conflicts.
#[derive(Default)]
struct Recent {
    renames: VecDeque<Rename>,
    objects: HashMap<u64, u32>,
    above: HashMap<u64, u32>,
    targets: HashMap<(u64, Vec<u8>), u32>,
}

fn add<K: Eq + Hash>(counts: &mut HashMap<K, u32>, key: K) {
    *counts.entry(key).or_default() += 1;
}

fn take<K: Eq + Hash>(counts: &mut HashMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Recent {
    /// Adds a rename. Returns whether it conflicts with one of the second before it.
    fn meets(&mut self, rename: Rename) -> bool {
        while let Some(old) = self.renames.front()
            && old.at_us.saturating_add(CONFLICT_US) < rename.at_us
        {
            let Some(old) = self.renames.pop_front() else { break };
            old.object.iter().for_each(|object| take(&mut self.objects, object));
            old.above.iter().for_each(|dir| take(&mut self.above, dir));
            old.target.iter().for_each(|target| take(&mut self.targets, target));
        }
        let of_object =
            |object: &u64| self.objects.contains_key(object) || self.above.contains_key(object);
        let meets = rename.object.as_ref().is_some_and(of_object)
            || rename.above.iter().any(|dir| self.objects.contains_key(dir))
            || rename.target.as_ref().is_some_and(|target| self.targets.contains_key(target));
        rename.object.iter().for_each(|object| add(&mut self.objects, *object));
        rename.above.iter().for_each(|dir| add(&mut self.above, *dir));
        rename.target.iter().for_each(|target| add(&mut self.targets, target.clone()));
        self.renames.push_back(rename);
        meets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn record(at_us: u64, op: Op, object: u64, dir: u64, name: &str) -> Record {
        Record {
            object: Some(object),
            dir: Some(dir),
            name: name.into(),
            ..Record::new(at_us, 1, op)
        }
    }

    fn rename(at_us: u64, object: u64, from: u64, to: u64, name: &str) -> Record {
        let new_name = name.as_bytes().to_vec();
        Record { new_dir: Some(to), new_name, ..record(at_us, Op::Rename, object, from, "old") }
    }

    fn analysis(records: &[Record]) -> Analysis {
        let mut analysis = Analysis::default();
        records.iter().for_each(|record| analysis.learn(record));
        analysis
    }

    /// 1 has 2 and 3 in it, 2 has 4 and 3 has 5; 6 is a file in 4.
    fn grown() -> Vec<Record> {
        vec![
            record(0, Op::Mkdir, 2, 1, "a"),
            record(0, Op::Mkdir, 3, 1, "b"),
            record(0, Op::Mkdir, 4, 2, "c"),
            record(0, Op::Mkdir, 5, 3, "d"),
            record(0, Op::Create, 6, 4, "f"),
        ]
    }

    #[test]
    fn operations_are_sorted_by_what_they_change_together() {
        let mut records = grown();
        records.extend([
            record(1, Op::Getattr, 6, 4, "f"),
            rename(2, 6, 4, 4, "g"),
            rename(10 * SECOND, 6, 4, 2, "g"),
            rename(20 * SECOND, 6, 2, 5, "g"),
            record(30 * SECOND, Op::Link, 6, 5, "h"),
            record(31 * SECOND, Op::Link, 6, 3, "i"),
            record(32 * SECOND, Op::Link, 6, 4, "j"),
            record(33 * SECOND, Op::Link, 77, 4, "k"),
        ]);
        let found = analysis(&records);
        let scopes = Scopes { single: 1, parent_and_child: 7, near: [1, 2], distant: [1, 1] };
        assert_eq!(found.scopes, scopes);
        assert_eq!(found.renames, Renames { all: 3, across: 2, conflicts: 0 });
        // f is 3 below the root when it is made and looked at.
        assert_eq!(
            (found.depths[place(Op::Create)][3], found.depths[place(Op::Getattr)][3]),
            (1, 1)
        );
        assert_eq!((found.operations(), found.intervals.len()), (13, 34));
    }

    #[test]
    fn renames_of_one_second_conflict_by_object_name_or_ancestor() {
        let of = |more: &[Record]| analysis(&[grown(), more.to_vec()].concat()).renames.conflicts;
        assert_eq!(of(&[rename(1, 6, 4, 5, "x"), rename(2, 6, 5, 4, "y")]), 1, "one object");
        assert_eq!(of(&[rename(1, 6, 4, 5, "x"), rename(2, 8, 4, 5, "x")]), 1, "one name");
        assert_eq!(of(&[rename(1, 4, 2, 3, "x"), rename(2, 6, 4, 4, "y")]), 1, "below it");
        assert_eq!(of(&[rename(1, 6, 4, 4, "y"), rename(2, 4, 2, 3, "x")]), 1, "above it");
        assert_eq!(of(&[rename(1, 6, 4, 4, "x"), rename(2, 8, 4, 4, "y")]), 0, "one directory");
        let later = 2 + CONFLICT_US;
        assert_eq!(of(&[rename(1, 6, 4, 5, "x"), rename(later, 6, 5, 4, "y")]), 0, "later");
    }

    #[test]
    fn intervals_stay_few_however_long_it_takes() {
        let day = 86_400 * SECOND;
        let records: Vec<Record> =
            (0..5000).map(|at| Record::new(at * day / 40, 1, OPS[at as usize % 3])).collect();
        let found = analysis(&records);
        assert!((INTERVALS_MAX / 2..=INTERVALS_MAX).contains(&found.intervals.len()));
        let sum = |op: usize| found.intervals.iter().map(|counts| counts[op]).sum::<u64>();
        assert_eq!([sum(0), sum(1), sum(2)], [found.counts[0], found.counts[1], found.counts[2]]);
    }
}
