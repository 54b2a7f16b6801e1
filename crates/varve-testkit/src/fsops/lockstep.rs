//! A file system and the model, side by side.

use std::collections::VecDeque;
use std::fmt;

use varve_env::sim::SimEnv;
use varve_vfs::Vfs;

use super::generate::{Generator, Universe};
use super::op::Op;
use super::outcome::Outcome;
use super::session::Session;
use super::tree::{Times, tree};
use super::usage;
use crate::model::ModelFs;

/// How many operations a mismatch shows.
const HISTORY_OPS: usize = 30;

/// Runs the same random operations on a file system and on the model and compares every answer.
///
/// ```
/// use varve_env::sim::SimEnv;
/// use varve_testkit::{fsops::Lockstep, model::ModelFs};
/// let fs = ModelFs::new(SimEnv::new(7));
/// let mut lockstep = Lockstep::new(7);
/// lockstep.run(&fs, 100).unwrap();
/// lockstep.check_tree(&fs).unwrap();
/// ```
#[derive(Debug)]
pub struct Lockstep {
    seed: u64,
    model: ModelFs,
    generator: Generator,
    expected: Session,
    actual: Session,
    history: VecDeque<(u64, Op)>,
    step: u64,
    times: Times,
}

/// The file system and the model answered differently.
pub struct Mismatch {
    text: String,
}

impl Lockstep {
    /// Returns the sequence of `seed` in the usual world.
    pub fn new(seed: u64) -> Lockstep {
        Lockstep::with_universe(seed, Universe::default())
    }

    /// Returns the sequence of `seed` in `universe`.
    pub fn with_universe(seed: u64, universe: Universe) -> Lockstep {
        Lockstep {
            seed,
            model: ModelFs::new(SimEnv::new(seed)),
            generator: Generator::new(seed, universe),
            expected: Session::default(),
            actual: Session::default(),
            history: VecDeque::new(),
            step: 0,
            times: Times::Compare,
        }
    }

    /// Stops comparing whether times moved, for file systems whose clock is too coarse.
    #[must_use]
    pub fn ignoring_times(mut self) -> Lockstep {
        self.times = Times::Ignore;
        self
    }

    /// Does not compare objects without names, for file systems that forget one although it is looked up.
    #[must_use]
    pub fn ignoring_removed(mut self) -> Lockstep {
        self.expected.ignore_removed();
        self.actual.ignore_removed();
        self
    }

    /// Returns the model.
    pub fn model(&self) -> &ModelFs {
        &self.model
    }

    /// Runs `count` operations on `fs`, which must have the same history as the model.
    pub fn run(&mut self, fs: &dyn Vfs, count: u64) -> Result<(), Mismatch> {
        for _ in 0..count {
            let op = self.generator.next_op();
            self.apply(fs, &op)?;
        }
        Ok(())
    }

    /// Runs one operation on both.
    pub fn apply(&mut self, fs: &dyn Vfs, op: &Op) -> Result<(), Mismatch> {
        self.step += 1;
        if self.history.len() == HISTORY_OPS {
            self.history.pop_front();
        }
        self.history.push_back((self.step, op.clone()));
        let mut expected = self.expected.apply(&self.model, op);
        let mut actual = self.actual.apply(fs, op);
        if self.times == Times::Ignore {
            forget_times(&mut expected);
            forget_times(&mut actual);
        }
        if expected == actual {
            if expected.answer.is_ok() {
                self.generator.observe(op);
            }
            return Ok(());
        }
        Err(self.mismatch(&format!("expected {expected:?}\n     got {actual:?}")))
    }

    /// Ends all handles on both, for instance before a remount.
    pub fn release_all(&mut self, fs: &dyn Vfs) -> Result<(), Mismatch> {
        let expected = self.expected.release_all(&self.model).map_err(|error| error.errno());
        let actual = self.actual.release_all(fs).map_err(|error| error.errno());
        if expected == actual {
            return Ok(());
        }
        Err(self.mismatch(&format!("ending all handles: expected {expected:?}, got {actual:?}")))
    }

    /// Compares the trees.
    pub fn check_tree(&self, fs: &dyn Vfs) -> Result<(), Mismatch> {
        let trees = tree(&self.model).and_then(|expected| Ok((expected, tree(fs)?)));
        match trees.map(|(expected, actual)| expected.differences(&actual, Times::Ignore)) {
            Ok(lines) if lines.is_empty() => Ok(()),
            Ok(lines) => Err(self.mismatch(&lines.join("\n"))),
            Err(error) => Err(self.mismatch(&format!("cannot read the tree: {error}"))),
        }
    }

    /// Compares what every directory says lies below it.
    pub fn check_usage(&self, fs: &dyn Vfs) -> Result<(), Mismatch> {
        match tree(&self.model).and_then(|expected| usage::differences(&expected, fs)) {
            Ok(lines) if lines.is_empty() => Ok(()),
            Ok(lines) => Err(self.mismatch(&lines.join("\n"))),
            Err(error) => Err(self.mismatch(&format!("cannot ask for the usage: {error}"))),
        }
    }

    fn mismatch(&self, what: &str) -> Mismatch {
        let history: Vec<_> =
            self.history.iter().map(|(step, op)| format!("{step} {op:?}")).collect();
        let (seed, step) = (self.seed, self.step);
        Mismatch { text: format!("seed {seed}, step {step}:\n{}\n{what}", history.join("\n")) }
    }
}

fn forget_times(outcome: &mut Outcome) {
    for touched in &mut outcome.touched {
        touched.mtime_moved = false;
        touched.ctime_moved = false;
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Mismatch {}
