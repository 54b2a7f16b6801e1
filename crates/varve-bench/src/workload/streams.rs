//! One large file, read and written in order and at random (Shetty, KVFS, 4.3.1; there 30 GB).
//!
//! Everything is read and written 4 KiB at a time at random, 16 KiB at a time in order; what was written is made
//! durable within the phase. Each worker has files of its own. Random writes meet each block at most once.
//!
//! In order a file is written twice: as the first one of its directory, and once more under another name after others that
//! were as large as matters, since a file system may learn from them where the next one belongs.

use serde::{Deserialize, Serialize};

use super::{Expects, Ops, Phase, Plan, SAMPLES, Worker, samples};
use crate::Failure;
use crate::op::{Expect, Op};
use crate::random::{Shuffle, mix};

/// Bytes of one random and one sequential operation.
const RANDOM_BYTES: u64 = 4 << 10;
const SEQUENTIAL_BYTES: u64 = 16 << 10;

/// The options.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub(crate) struct Options {
    /// Bytes of each worker's file; a multiple of 16K
    #[arg(long, default_value = "1G", value_parser = varve::size::parse)]
    size: u64,
    /// Random reads, and random writes, of each worker [default: as many as there are blocks, but no more than 100000]
    #[arg(long)]
    operations: Option<u64>,
}

/// The workload.
pub(super) struct Streams {
    size: u64,
    operations: u64,
}

impl Streams {
    /// With these options.
    pub(super) fn new(options: &Options) -> Result<Streams, Failure> {
        let size = options.size;
        if size == 0 || !size.is_multiple_of(SEQUENTIAL_BYTES) {
            return Err("--size must be a multiple of 16K".into());
        }
        let blocks = size / RANDOM_BYTES;
        let operations = options.operations.unwrap_or(100_000).min(blocks);
        Ok(Streams { size, operations })
    }

    /// The offset of random write number `index`.
    fn offset(&self, worker: u64, index: u64) -> u64 {
        Shuffle::new(self.size / RANDOM_BYTES, worker).at(index) * RANDOM_BYTES
    }
}

fn file(worker: u64) -> String {
    format!("stream{worker}")
}

/// Files of [`BEFORE_BYTES`] that are written before the one that comes after others.
const BEFORE: u64 = 6;
const BEFORE_BYTES: u64 = 1 << 20;

/// File number `index` of those written after the first.
fn another(worker: u64, index: u64) -> String {
    format!("stream{worker}.{index}")
}

/// What it holds: no two files hold the same.
fn another_key(worker: u64, index: u64) -> u64 {
    worker | (index + 1) << 41
}

/// Makes a file and writes it in order.
fn write_in_order(path: String, size: u64, key: u64) -> impl Iterator<Item = Op> {
    let create = Op::Create { path: path.clone(), bytes: 0, key };
    let sync = Op::Sync(path.clone());
    let writes = (0..size).step_by(SEQUENTIAL_BYTES as usize).map(move |offset| Op::WriteAt {
        path: path.clone(),
        offset,
        bytes: SEQUENTIAL_BYTES,
        key,
    });
    std::iter::once(create).chain(writes).chain(std::iter::once(sync))
}

/// What random writes write.
fn rewritten(worker: u64) -> u64 {
    worker | 1 << 40
}

const FIRST: &str = "sequential write";
const AFTER_OTHERS: &str = "sequential write, after others";
const IN_ORDER: &str = "sequential read";
const AT_RANDOM: &str = "random read";
const OVER: &str = "random write";
const PHASES: [&str; 5] = [FIRST, AFTER_OTHERS, IN_ORDER, AT_RANDOM, OVER];

impl Plan for Streams {
    fn phases(&self) -> Vec<Phase> {
        let phase = |name: &&str| match *name {
            FIRST | AFTER_OTHERS => Phase::warm(name),
            _ => Phase::cold(name),
        };
        PHASES.iter().map(phase).collect()
    }

    fn ops(&self, phase: usize, worker: Worker) -> Ops<'_> {
        let key = worker.index;
        let in_order = (0..self.size).step_by(SEQUENTIAL_BYTES as usize);
        let sync = std::iter::once(Op::Sync(file(key)));
        match PHASES[phase] {
            FIRST => Box::new(write_in_order(file(key), self.size, key)),
            AFTER_OTHERS => Box::new((0..=BEFORE).flat_map(move |index| {
                let size = if index < BEFORE { BEFORE_BYTES } else { self.size };
                write_in_order(another(key, index), size, another_key(key, index))
            })),
            IN_ORDER => Box::new(in_order.map(move |offset| Op::ReadAt {
                path: file(key),
                offset,
                bytes: SEQUENTIAL_BYTES,
                key,
            })),
            AT_RANDOM => Box::new((0..self.operations).map(move |index| {
                let block = mix(index ^ key << 32) % (self.size / RANDOM_BYTES);
                let (path, offset) = (file(key), block * RANDOM_BYTES);
                Op::ReadAt { path, offset, bytes: RANDOM_BYTES, key }
            })),
            _ => {
                let writes = (0..self.operations).map(move |index| Op::WriteAt {
                    path: file(key),
                    offset: self.offset(key, index),
                    bytes: RANDOM_BYTES,
                    key: rewritten(key),
                });
                Box::new(writes.chain(sync))
            }
        }
    }

    fn expects(&self, phase: usize, workers: u64) -> Expects<'_> {
        match PHASES[phase] {
            FIRST => Box::new((0..workers).map(|key| Expect::File {
                path: file(key),
                bytes: self.size,
                key,
            })),
            AFTER_OTHERS => Box::new((0..workers).map(|key| Expect::File {
                path: another(key, BEFORE),
                bytes: self.size,
                key: another_key(key, BEFORE),
            })),
            OVER => Box::new((0..workers).flat_map(move |worker| {
                samples(self.operations, SAMPLES).map(move |index| Expect::Part {
                    path: file(worker),
                    offset: self.offset(worker, index),
                    bytes: RANDOM_BYTES,
                    key: rewritten(worker),
                })
            })),
            // Some of what is read is compared as it comes, and so are samples once more.
            _ => Box::new((0..workers).flat_map(move |key| {
                samples(self.size / RANDOM_BYTES, SAMPLES).map(move |block| Expect::Part {
                    path: file(key),
                    offset: block * RANDOM_BYTES,
                    bytes: RANDOM_BYTES,
                    key,
                })
            })),
        }
    }

    fn inodes(&self) -> u64 {
        1024
    }
}
