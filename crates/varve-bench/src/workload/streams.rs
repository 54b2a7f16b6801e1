//! One large file, read and written in order and at random (Shetty, KVFS, 4.3.1; there 30 GB).
//!
//! Everything is read and written 4 KiB at a time at random, 16 KiB at a time in order; what was written is made
//! durable within the phase. Each worker has a file of its own. Random writes meet each block at most once.

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

/// What random writes write.
fn rewritten(worker: u64) -> u64 {
    worker | 1 << 40
}

const PHASES: [&str; 4] = ["sequential write", "sequential read", "random read", "random write"];

impl Plan for Streams {
    fn phases(&self) -> Vec<Phase> {
        let phase = |name: &&str| match *name {
            "sequential write" => Phase::warm(name),
            _ => Phase::cold(name),
        };
        PHASES.iter().map(phase).collect()
    }

    fn ops(&self, phase: usize, worker: Worker) -> Ops<'_> {
        let key = worker.index;
        let in_order = (0..self.size).step_by(SEQUENTIAL_BYTES as usize);
        let sync = std::iter::once(Op::Sync(file(key)));
        match PHASES[phase] {
            "sequential write" => {
                let create = Op::Create { path: file(key), bytes: 0, key };
                let writes = in_order.map(move |offset| Op::WriteAt {
                    path: file(key),
                    offset,
                    bytes: SEQUENTIAL_BYTES,
                    key,
                });
                Box::new(std::iter::once(create).chain(writes).chain(sync))
            }
            "sequential read" => Box::new(in_order.map(move |offset| Op::ReadAt {
                path: file(key),
                offset,
                bytes: SEQUENTIAL_BYTES,
                key,
            })),
            "random read" => Box::new((0..self.operations).map(move |index| {
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
            "sequential write" => Box::new((0..workers).map(|key| Expect::File {
                path: file(key),
                bytes: self.size,
                key,
            })),
            "random write" => Box::new((0..workers).flat_map(move |worker| {
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
