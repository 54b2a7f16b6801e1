//! Derives the directories and files that a trace implies (Sinnamohideen, thesis, 3.1.2 and 3.2.1).
//!
//! 1. A successful lookup or creation shows which object a name in a directory stands for.
//! 2. A successful removal or rename changes that.
//! 3. A directory whose parent no operation names is a root of its own.
//!
//! Invariant: the tree holds each object that the trace names, and no other.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};

use crate::record::{Op, Record};

/// How far up a directory is followed. Damaged traces may have rings.
const DEPTH_MAX: u32 = 4096;

/// What is known of an object.
#[derive(Clone, Copy, Debug, Default)]
struct Node {
    parent: Option<u64>,
    /// Operations on it.
    accesses: u64,
    is_dir: bool,
    is_gone: bool,
}

/// How far two directories are from each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distance {
    /// They are one.
    Same,
    /// One is the other's parent, or both have one parent.
    Near,
    /// Anything else, so many steps up and down; `None` if no common ancestor is known.
    Far(Option<u32>),
}

/// A directory, or a root of a tree of files, as [`Tree::directories`] gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Its number.
    pub object: u64,
    /// The directory that it is in, if that is known.
    pub parent: Option<u64>,
    /// The files in it.
    pub files: u64,
}

/// The tree, as far as the records so far tell.
#[derive(Default)]
pub struct Tree {
    nodes: HashMap<u64, Node>,
    /// Objects by directory and hash of the name.
    names: HashMap<(u64, u64), u64>,
    hashes: RandomState,
}

impl Tree {
    /// Nothing is known.
    pub fn new() -> Tree {
        Tree::default()
    }

    fn name(&self, dir: u64, name: &[u8]) -> (u64, u64) {
        (dir, self.hashes.hash_one(name))
    }

    /// Returns the object that a record is about: the one that it names, or the one that has the name it names.
    pub fn object(&self, record: &Record) -> Option<u64> {
        record.object.or_else(|| self.names.get(&self.name(record.dir?, &record.name)).copied())
    }

    /// Learns from the next record, and counts it as an access of its object, or else of its directory.
    pub fn learn(&mut self, record: &Record) {
        let object = self.object(record);
        if let Some(accessed) = object.or(record.dir).filter(|_| record.op != Op::Known) {
            self.nodes.entry(accessed).or_default().accesses += 1;
        }
        for dir in record.dir.iter().chain(&record.new_dir) {
            self.nodes.entry(*dir).or_default().is_dir = true;
        }
        if let Some(object) = object {
            let is_dir = record.is_dir || matches!(record.op, Op::Readdir | Op::Mkdir | Op::Rmdir);
            self.nodes.entry(object).or_default().is_dir |= is_dir;
        }
        if record.error != 0 {
            return;
        }
        match (record.op, object, record.dir, record.new_dir) {
            (Op::Unlink | Op::Rmdir, _, Some(dir), _) => self.remove(dir, &record.name, object),
            (Op::Rename, Some(object), Some(dir), Some(new_dir)) => {
                let from = self.name(dir, &record.name);
                self.names.remove(&from);
                self.remove(new_dir, &record.new_name, None);
                self.give_name(new_dir, &record.new_name, object, true);
            }
            // Another name does not move it.
            (Op::Link, Some(object), Some(dir), _) => {
                self.give_name(dir, &record.name, object, false);
            }
            (_, Some(object), Some(dir), _) => self.give_name(dir, &record.name, object, true),
            _ => {}
        }
    }

    fn give_name(&mut self, dir: u64, name: &[u8], object: u64, moves: bool) {
        if object == dir {
            return;
        }
        let name = self.name(dir, name);
        self.names.insert(name, object);
        let node = self.nodes.entry(object).or_default();
        if moves || node.parent.is_none() {
            node.parent = Some(dir);
        }
        node.is_gone = false;
    }

    fn remove(&mut self, dir: u64, name: &[u8], object: Option<u64>) {
        let named = self.names.remove(&self.name(dir, name));
        if let Some(object) = object.or(named)
            && let Entry::Occupied(mut node) = self.nodes.entry(object)
            && node.get().parent == Some(dir)
        {
            node.get_mut().is_gone = true;
        }
    }

    /// Returns the directory that an object is in, if it is known.
    pub fn parent(&self, object: u64) -> Option<u64> {
        self.nodes.get(&object).and_then(|node| node.parent)
    }

    /// Returns the directories above an object, nearest first.
    pub fn ancestors(&self, object: u64) -> impl Iterator<Item = u64> {
        let up = move |at: &u64| self.parent(*at);
        std::iter::successors(self.parent(object), up).take(DEPTH_MAX as usize)
    }

    /// Returns how many directories are known to be above an object.
    pub fn depth(&self, object: u64) -> u32 {
        self.ancestors(object).count() as u32
    }

    /// How far two directories are from each other.
    pub fn distance(&self, one: u64, other: u64) -> Distance {
        let (above_one, above_other) = (self.parent(one), self.parent(other));
        if one == other {
            return Distance::Same;
        }
        let is_sibling = above_one.is_some() && above_one == above_other;
        if is_sibling || above_one == Some(other) || above_other == Some(one) {
            return Distance::Near;
        }
        let steps: HashMap<u64, u32> =
            std::iter::once(one).chain(self.ancestors(one)).zip(0..).collect();
        let mut up = std::iter::once(other).chain(self.ancestors(other)).zip(0..);
        Distance::Far(up.find_map(|(at, more)| steps.get(&at).map(|steps| steps + more)))
    }

    /// How often each object was accessed, most often first.
    pub fn accesses(&self) -> Vec<u64> {
        let mut all: Vec<u64> =
            self.nodes.values().map(|node| node.accesses).filter(|count| *count > 0).collect();
        all.sort_unstable_by(|one, other| other.cmp(one));
        all
    }

    /// Returns the directories that are there, in no order, and how many files are in each. Files whose directory is
    /// not known are in none.
    pub fn directories(&self) -> Vec<Directory> {
        let is_there = |node: &Node| !node.is_gone;
        let mut files: HashMap<u64, u64> = HashMap::new();
        for node in self.nodes.values().filter(|node| is_there(node) && !node.is_dir) {
            if let Some(parent) = node.parent {
                *files.entry(parent).or_default() += 1;
            }
        }
        let dirs = self.nodes.iter().filter(|(_, node)| is_there(node) && node.is_dir);
        let directory = |(object, node): (&u64, &Node)| Directory {
            object: *object,
            parent: node.parent.filter(|parent| self.nodes.get(parent).is_some_and(is_there)),
            files: files.get(object).copied().unwrap_or(0),
        };
        dirs.map(directory).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(op: Op, object: Option<u64>, dir: u64, name: &str) -> Record {
        Record { object, dir: Some(dir), name: name.into(), ..Record::new(0, 0, op) }
    }

    fn tree(records: &[Record]) -> Tree {
        let mut tree = Tree::new();
        records.iter().for_each(|record| tree.learn(record));
        tree
    }

    #[test]
    fn a_tree_is_what_operations_name() {
        let rename = Record {
            new_dir: Some(3),
            new_name: b"moved".to_vec(),
            ..record(Op::Rename, None, 2, "file")
        };
        let mut failed = record(Op::Create, Some(99), 1, "failed");
        failed.error = 13;
        let tree = tree(&[
            record(Op::Lookup, Some(2), 1, "a"),
            record(Op::Mkdir, Some(3), 2, "b"),
            record(Op::Create, Some(4), 2, "file"),
            rename,
            record(Op::Create, Some(5), 3, "other"),
            record(Op::Unlink, None, 3, "other"),
            record(Op::Link, Some(4), 1, "again"),
            failed,
            // A part that nothing connects with the rest.
            record(Op::Lookup, Some(21), 20, "x"),
        ]);
        assert_eq!(tree.ancestors(4).collect::<Vec<_>>(), [3, 2, 1]);
        assert_eq!((tree.depth(4), tree.depth(21), tree.parent(99)), (3, 1, None));
        let mut dirs = tree.directories();
        dirs.sort_unstable_by_key(|dir| dir.object);
        let dir = |object, parent, files| Directory { object, parent, files };
        assert_eq!(
            dirs,
            [dir(1, None, 0), dir(2, Some(1), 0), dir(3, Some(2), 1), dir(20, None, 1)]
        );
        assert_eq!(tree.accesses().iter().sum::<u64>(), 9);
    }

    #[test]
    fn directories_are_near_by_one_parent_or_one_step() {
        let tree = tree(&[
            record(Op::Mkdir, Some(2), 1, "a"),
            record(Op::Mkdir, Some(3), 1, "b"),
            record(Op::Mkdir, Some(4), 2, "c"),
            record(Op::Mkdir, Some(5), 3, "d"),
            record(Op::Mkdir, Some(31), 30, "x"),
        ]);
        assert_eq!(tree.distance(2, 2), Distance::Same);
        assert_eq!(tree.distance(2, 3), Distance::Near);
        assert_eq!((tree.distance(4, 2), tree.distance(2, 4)), (Distance::Near, Distance::Near));
        assert_eq!(tree.distance(4, 1), Distance::Far(Some(2)));
        assert_eq!(tree.distance(4, 5), Distance::Far(Some(4)));
        assert_eq!(tree.distance(4, 31), Distance::Far(None));
    }

    #[test]
    fn a_ring_in_a_damaged_trace_ends() {
        let tree = tree(&[record(Op::Mkdir, Some(2), 1, "a"), record(Op::Mkdir, Some(1), 2, "b")]);
        assert_eq!(tree.depth(1), DEPTH_MAX);
        assert_eq!(tree.distance(1, 99), Distance::Far(None));
    }
}
