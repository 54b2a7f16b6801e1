//! Traces with a published mix of operations, on a namespace like those found in use ([`crate::tree`]).
//!
//! Operations come at random times (exponential, so many a second) by a number of clients. Which file an operation is about follows
//! Zipf's law with exponent 1 over all files in a random order; which directory, is the file's. Directories and files are made known
//! when an operation names them first. What was made is removed again, oldest first; where nothing is left of that, files that were there from
//! the beginning go, the least popular first, and a directory that is not empty is refused.

use std::collections::{HashMap, HashSet, VecDeque};

use varve_trace::{Op, Record};

use super::mixes::{Kind, Mix, Reach};
use crate::Failure;
use crate::random::{Random, Shuffle};
use crate::tree::Tree;

/// The errno of a directory with something in it.
const ENOTEMPTY: u32 = 39;
/// How often a directory at the wanted distance is tried for.
const TRIES_MAX: u32 = 1000;

/// What to generate.
pub(super) struct Wanted<'a> {
    pub(super) mix: &'a Mix,
    pub(super) files: u64,
    pub(super) operations: u64,
    pub(super) clients: u64,
    pub(super) per_second: f64,
    pub(super) begin_us: u64,
    pub(super) seed: u64,
}

/// A namespace while a trace goes over it.
struct World {
    tree: Tree,
    random: Random,
    order: Shuffle,
    /// Directories and files that records have named already.
    known: HashSet<u64>,
    /// Where files are that are not where they began, by number: directory and name.
    moved: HashMap<u64, (u64, u64)>,
    /// Files and directories that the trace has made, with their directories.
    made_files: VecDeque<(u64, u64)>,
    made_dirs: VecDeque<(u64, u64)>,
    /// Files that are gone of those from the beginning: so many of the least popular.
    gone: u64,
    next: u64,
}

impl World {
    fn new(wanted: &Wanted<'_>) -> Result<World, Failure> {
        let tree = Tree::new(Tree::usual_dirs(wanted.files)?, wanted.files, wanted.seed);
        if tree.dirs() < 8 {
            return Err("a trace takes a namespace of at least 88 files".into());
        }
        let next = 1 + tree.dirs() + tree.files();
        Ok(World {
            order: Shuffle::new(tree.files(), wanted.seed),
            random: Random::new(wanted.seed),
            tree,
            known: HashSet::new(),
            moved: HashMap::new(),
            made_files: VecDeque::new(),
            made_dirs: VecDeque::new(),
            gone: 0,
            next,
        })
    }

    /// The number of a directory of the tree.
    fn dir_number(dir: u64) -> u64 {
        dir + 1
    }

    fn file_number(&self, file: u64) -> u64 {
        1 + self.tree.dirs() + file
    }

    /// A file by Zipf's law.
    fn popular_file(&mut self) -> u64 {
        let files = self.tree.files() - self.gone;
        let rank = ((files as f64 + 1.0).ln() * self.random.unit()).exp() as u64 - 1;
        self.order.at(rank.min(files - 1))
    }

    /// The directory of the tree that a file is in, and the number in its name.
    fn place(&self, file: u64) -> (u64, u64) {
        let begun = (self.tree.dir_of(file), file);
        self.moved.get(&self.file_number(file)).copied().unwrap_or(begun)
    }

    /// Makes a directory of the tree known, and those above it.
    fn introduce_dir(&mut self, dir: u64, records: &mut Vec<Record>) {
        let (mut at, mut new) = (dir, Vec::new());
        while at != 0 && self.known.insert(Self::dir_number(at)) {
            new.push(at);
            at = self.tree.parent(at);
        }
        for dir in new.into_iter().rev() {
            records.push(Record {
                object: Some(Self::dir_number(dir)),
                dir: Some(Self::dir_number(self.tree.parent(dir))),
                name: format!("d{dir}").into_bytes(),
                is_dir: true,
                ..Record::new(0, 0, Op::Known)
            });
        }
    }

    /// Says which file a record is about, which is known from then on.
    fn name_file(&mut self, record: &mut Record, file: u64, records: &mut Vec<Record>) {
        let (dir, number) = self.place(file);
        self.introduce_dir(dir, records);
        record.object = Some(self.file_number(file));
        record.dir = Some(Self::dir_number(dir));
        record.name = format!("f{number}").into_bytes();
        if self.known.insert(self.file_number(file)) {
            records.push(Record { op: Op::Known, ..record.clone() });
        }
    }

    /// A directory so far from `dir`, another one than it.
    fn dir_at(&mut self, dir: u64, reach: Reach) -> Result<u64, Failure> {
        let is_near = |tree: &Tree, other: u64| {
            let (one, two) = (tree.parent(dir), tree.parent(other));
            one == two && dir != 0 && other != 0 || one == other || two == dir
        };
        match reach {
            Reach::Same => return Ok(dir),
            // The first directory in it.
            Reach::Near if dir == 0 => return Ok(1),
            Reach::Near => return Ok(self.tree.parent(dir)),
            Reach::Far => {}
        }
        for _ in 0..TRIES_MAX {
            let other = self.random.below(self.tree.dirs());
            if other != dir && !is_near(&self.tree, other) {
                return Ok(other);
            }
        }
        Err("the namespace is too small for renames between directories; ask for more files".into())
    }

    fn new_number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Adds one operation of `kind`, and before it what it names first.
    fn operation(
        &mut self,
        kind: Kind,
        mut record: Record,
        records: &mut Vec<Record>,
    ) -> Result<(), Failure> {
        let file = self.popular_file();
        match kind {
            Kind::Plain(Op::Readdir) => {
                let (dir, _) = self.place(file);
                self.introduce_dir(dir, records);
                (record.object, record.is_dir) = (Some(Self::dir_number(dir)), true);
            }
            Kind::Plain(op @ (Op::Create | Op::Mkdir)) => {
                let (dir, _) = self.place(file);
                self.introduce_dir(dir, records);
                let (number, dir) = (self.new_number(), Self::dir_number(dir));
                (record.object, record.dir) = (Some(number), Some(dir));
                record.name = format!("n{number}").into_bytes();
                record.is_dir = op == Op::Mkdir;
                if record.is_dir { &mut self.made_dirs } else { &mut self.made_files }
                    .push_back((number, dir));
            }
            Kind::Plain(op @ (Op::Unlink | Op::Rmdir)) => {
                let made = if op == Op::Rmdir { &mut self.made_dirs } else { &mut self.made_files };
                record.is_dir = op == Op::Rmdir;
                if let Some((number, dir)) = made.pop_front() {
                    (record.object, record.dir) = (Some(number), Some(dir));
                    record.name = format!("n{number}").into_bytes();
                } else if op == Op::Unlink && self.gone + 1 < self.tree.files() {
                    self.gone += 1;
                    let file = self.order.at(self.tree.files() - self.gone);
                    self.name_file(&mut record, file, records);
                } else {
                    let (dir, _) = self.place(file);
                    self.introduce_dir(dir, records);
                    (record.object, record.error) = (Some(Self::dir_number(dir)), ENOTEMPTY);
                }
            }
            Kind::Plain(_) => self.name_file(&mut record, file, records),
            Kind::Rename(reach) => {
                self.name_file(&mut record, file, records);
                let (dir, _) = self.place(file);
                let to = self.dir_at(dir, reach)?;
                self.introduce_dir(to, records);
                let name = self.new_number();
                self.moved.insert(self.file_number(file), (to, name));
                record.new_dir = Some(Self::dir_number(to));
                record.new_name = format!("f{name}").into_bytes();
            }
            Kind::Link(reach) => {
                self.name_file(&mut record, file, records);
                let (dir, _) = self.place(file);
                let to = self.dir_at(dir, reach)?;
                self.introduce_dir(to, records);
                record.dir = Some(Self::dir_number(to));
                record.name = format!("l{}", self.new_number()).into_bytes();
            }
        }
        records.push(record);
        Ok(())
    }
}

/// Gives the records of a trace to `each`.
pub(super) fn generate(
    wanted: &Wanted<'_>,
    each: &mut dyn FnMut(&Record) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut world = World::new(wanted)?;
    let weights = wanted.mix.weights;
    let all: f64 = weights.iter().map(|(_, weight)| weight).sum();
    let (mut at_us, mut records) = (wanted.begin_us as f64, Vec::new());
    for _ in 0..wanted.operations {
        at_us += world.random.exponential(1e6 / wanted.per_second);
        let mut drawn = world.random.unit() * all;
        let kind = weights.iter().find(|(_, weight)| {
            drawn -= weight;
            drawn < 0.0
        });
        let Some((kind, _)) = kind.or(weights.last()) else { continue };
        let op = match kind {
            Kind::Plain(op) => *op,
            Kind::Rename(_) => Op::Rename,
            Kind::Link(_) => Op::Link,
        };
        let record = Record::new(at_us as u64, world.random.below(wanted.clients), op);
        world.operation(*kind, record, &mut records)?;
        for mut record in records.drain(..) {
            record.at_us = at_us as u64;
            each(&record)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use varve_trace::Analysis;

    use super::super::mixes::MIXES;
    use super::*;

    /// What the analysis finds in a generated trace is what was put in: parts of operations, how many objects they change together, and
    /// how popular files are.
    #[test]
    fn the_analysis_gives_what_was_put_in() {
        const OPERATIONS: u64 = 200_000;
        for mix in &MIXES {
            let wanted = Wanted {
                mix,
                files: 50_000,
                operations: OPERATIONS,
                clients: 10,
                per_second: 1000.0,
                begin_us: 1_000_000,
                seed: 3,
            };
            let mut analysis = Analysis::default();
            let mut of_files: HashMap<u64, u64> = HashMap::new();
            generate(&wanted, &mut |record| {
                analysis.learn(record);
                if let (Op::Getattr | Op::Setattr | Op::Open | Op::Read, Some(file)) =
                    (record.op, record.object)
                {
                    *of_files.entry(file).or_default() += 1;
                }
                Ok(())
            })
            .expect("a trace");
            let all: f64 = mix.weights.iter().map(|(_, weight)| weight).sum();
            let share = |is_of: &dyn Fn(Kind) -> bool| {
                let of = mix.weights.iter().filter(|(kind, _)| is_of(*kind));
                of.map(|(_, weight)| weight).sum::<f64>() / all
            };
            // Five standard deviations.
            let check = |what: &str, found: u64, share: f64| {
                let wrong = (found as f64 / OPERATIONS as f64 - share).abs();
                let deviation = (share * (1.0 - share) / OPERATIONS as f64).sqrt();
                assert!(wrong <= 5.0 * deviation + 1e-9, "{} {what}: {found}, {share}", mix.name);
            };
            for op in varve_trace::OPS {
                let is_of = |kind: Kind| match kind {
                    Kind::Plain(plain) => plain == op,
                    Kind::Rename(_) => op == Op::Rename,
                    Kind::Link(_) => op == Op::Link,
                };
                check(op.name(), analysis.counts[op as usize - 1], share(&is_of));
            }
            let scopes = analysis.scopes;
            for (number, reach) in [Reach::Near, Reach::Far].into_iter().enumerate() {
                let found = [scopes.near, scopes.distant][number];
                check("renames", found[0], share(&|kind| kind == Kind::Rename(reach)));
                // Links to files that were moved are as far as the first name was.
                check("links", found[1], share(&|kind| kind == Kind::Link(reach)));
            }
            let seconds = (analysis.end_us - analysis.begin_us) as f64 / 1e6;
            assert!((OPERATIONS as f64 / seconds / 1000.0 - 1.0).abs() < 0.02, "{seconds}");
            // Of Zipf's law over n files the first tenth gets ln(n/10)/ln(n) of all.
            let mut accesses: Vec<u64> = of_files.into_values().collect();
            accesses.sort_unstable_by(|one, other| other.cmp(one));
            let (tenth, all) =
                (accesses.iter().take(5000).sum::<u64>(), accesses.iter().sum::<u64>());
            let expected = (5000_f64).ln() / (50_000_f64).ln();
            let found = tenth as f64 / all as f64;
            assert!((expected - 0.01..expected + 0.06).contains(&found), "{} {found}", mix.name);
        }
    }
}
