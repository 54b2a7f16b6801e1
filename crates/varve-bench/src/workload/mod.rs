//! What is done: named lists of phases. Each phase is a stream of operations per worker and a list of what must
//! hold afterwards.

pub(crate) mod begun;
mod build;
mod mdtest;
mod mix;
mod namespace;
mod postmark;
mod script;
mod slimfs;
mod streams;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::op::{Expect, Op};
use crate::source_tree::SourceOptions;

/// One of the workers of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Worker {
    /// Which one, from 0.
    pub(crate) index: u64,
    /// How many there are.
    pub(crate) of: u64,
}

impl Worker {
    /// This worker's part of the numbers below `count`: a range of its own.
    pub(crate) fn share(self, count: u64) -> std::ops::Range<u64> {
        let at = |index: u64| (u128::from(count) * u128::from(index) / u128::from(self.of)) as u64;
        at(self.index)..at(self.index + 1)
    }
}

/// A part of a workload that is measured by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    /// Its name in reports.
    pub(crate) name: String,
    /// Whether it begins with nothing in memory: remounted, caches dropped.
    pub(crate) is_cold: bool,
    /// Whether figures are per name that its listings meet, instead of per operation.
    pub(crate) counts_names: bool,
    /// How many workers it takes, if not as many as the user chose.
    pub(crate) workers: Option<u64>,
}

impl Phase {
    /// A phase of single operations that begins with whatever is in memory.
    pub(crate) fn warm(name: &str) -> Phase {
        let name = name.to_owned();
        Phase { name, is_cold: false, counts_names: false, workers: None }
    }

    /// How many workers it has where the user chose `chosen`.
    pub(crate) fn workers_of(&self, chosen: Option<u64>) -> u64 {
        chosen.or(self.workers).unwrap_or(1)
    }

    /// A phase of single operations that begins with nothing in memory.
    pub(crate) fn cold(name: &str) -> Phase {
        Phase { is_cold: true, ..Phase::warm(name) }
    }
}

/// A stream of operations.
pub(crate) type Ops<'a> = Box<dyn Iterator<Item = Op> + 'a>;

/// What must hold.
pub(crate) type Expects<'a> = Box<dyn Iterator<Item = Expect> + 'a>;

/// A workload with everything worked out that its phases share.
pub(crate) trait Plan: Send + Sync {
    /// An error that says what to do if so many workers cannot work on it.
    fn require(&self, _workers: u64) -> Result<(), Failure> {
        Ok(())
    }
    /// The phases, in order.
    fn phases(&self) -> Vec<Phase>;
    /// What a worker does in a phase.
    fn ops(&self, phase: usize, worker: Worker) -> Ops<'_>;
    /// What holds after a phase done by `workers` workers. A phase that changes how many names a directory has must tell how
    /// many it has then, if one before it has told of that directory: a later one that is ended early counts from there.
    fn expects(&self, phase: usize, workers: u64) -> Expects<'_>;
    /// About how many files and directories there are at most, for file systems that must know before.
    fn inodes(&self) -> u64;
}

/// A workload and its options.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Subcommand)]
pub(crate) enum Choice {
    /// Each operation on many files, and on many directories, in turn (after mdtest)
    Mdtest(mdtest::Options),
    /// Create, list, query, rename, delete on a generated namespace (thesis, 4.3.4)
    Namespace(namespace::Options),
    /// Create and stat files in directories of 128 (thesis, 5.5.2)
    Slimfs(slimfs::Options),
    /// Small files of mail and web services (Postmark; thesis, 4.3.2)
    Postmark(postmark::Options),
    /// Unpack, search, build and pack a source tree (thesis, 4.3.2), then copy, commit, clone and remove it
    Build(SourceOptions),
    /// Shell scripts of your own, each a phase
    Script(script::Options),
    /// Read and write one large file in order and at random (KVFS, 4.3.1)
    Streams(streams::Options),
    /// A file, video, mail or web server (KVFS, 4.3.2)
    Mix(mix::Options),
}

impl Choice {
    /// Whether other programs do some of its work.
    pub(crate) fn runs_programs(&self) -> bool {
        matches!(self, Choice::Build(_) | Choice::Script(_))
    }

    /// Works out what the phases share.
    pub(crate) fn plan(&self) -> Result<Box<dyn Plan>, Failure> {
        Ok(match self {
            Choice::Mdtest(options) => Box::new(mdtest::Mdtest::new(options)?),
            Choice::Namespace(options) => Box::new(namespace::Namespace::new(options)?),
            Choice::Slimfs(options) => Box::new(slimfs::Slimfs::new(options)),
            Choice::Postmark(options) => Box::new(postmark::Postmark::new(options)),
            Choice::Build(options) => Box::new(build::Build::new(options)?),
            Choice::Script(options) => Box::new(script::Script::new(options)?),
            Choice::Streams(options) => Box::new(streams::Streams::new(options)?),
            Choice::Mix(options) => mix::plan(options),
        })
    }
}

/// Up to `samples` of the numbers below `count`, evenly spread.
pub(crate) fn samples(count: u64, samples: u64) -> impl Iterator<Item = u64> {
    let step = (count / samples.max(1)).max(1);
    (0..count).step_by(usize::try_from(step).unwrap_or(usize::MAX))
}

/// How many files are looked at one by one after a phase.
pub(crate) const SAMPLES: u64 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_the_whole() {
        let shares: Vec<_> = (0..3).map(|index| Worker { index, of: 3 }.share(10)).collect();
        assert_eq!(shares, [0..3, 3..6, 6..10]);
    }

    #[test]
    fn samples_are_spread() {
        assert_eq!(samples(10, 100).count(), 10);
        assert!((100..=101).contains(&samples(12_345, 100).count()));
        assert_eq!(samples(0, 100).count(), 0);
    }
}
