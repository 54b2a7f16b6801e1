//! Postmark (Katcher, NetApp TR3022; Ren, thesis, 4.3.2): mail and web services.
//!
//! Files of 512 bytes to 4 KiB are made in the order of their numbers, one in each directory in turn, which is not the order of
//! their paths (the thesis has them made in alphabetical order); then come transactions, each a create or delete and a read or
//! append, all equally likely; then what is left is deleted. Each worker has files of its own, so that what a
//! transaction finds does not depend on others. The thesis: a million files, two million transactions.

use serde::{Deserialize, Serialize};

use super::{Expects, Ops, Phase, Plan, SAMPLES, Worker, samples};
use crate::op::{Expect, Op};
use crate::random::Random;

/// Bytes of a file when it is made, and of an append.
const SIZES: std::ops::RangeInclusive<u64> = 512..=4096;

/// The options.
#[derive(Clone, Debug, Serialize, Deserialize, clap::Args)]
pub(crate) struct Options {
    /// Files at the beginning
    #[arg(long, default_value_t = 100_000)]
    files: u64,
    /// Transactions [default: two for each file]
    #[arg(long)]
    transactions: Option<u64>,
    /// Directories of each worker
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    dirs: u64,
}

/// The workload.
pub(super) struct Postmark {
    files: u64,
    transactions: u64,
    dirs: u64,
}

/// A worker's files, as they are after some of its transactions.
struct Mailbox<'a> {
    plan: &'a Postmark,
    worker: u64,
    random: Random,
    /// Number and size of each file.
    files: Vec<(u64, u64)>,
    next_file: u64,
}

impl Postmark {
    /// With these options.
    pub(super) fn new(options: &Options) -> Postmark {
        let transactions = options.transactions.unwrap_or(2 * options.files);
        Postmark { files: options.files, transactions, dirs: options.dirs }
    }

    fn dir(worker: u64, dir: u64) -> String {
        format!("w{worker}/d{dir}")
    }

    fn mailbox(&self, worker: Worker) -> (Mailbox<'_>, Vec<Op>) {
        let random = Random::new(worker.index);
        let files = Vec::new();
        let mut mailbox = Mailbox { plan: self, worker: worker.index, random, files, next_file: 0 };
        let count = worker.share(self.files);
        let creates = (count.start..count.end).map(|_| mailbox.create()).collect();
        (mailbox, creates)
    }

    /// The mailbox after all transactions.
    fn last(&self, worker: Worker) -> Mailbox<'_> {
        let (mut mailbox, _) = self.mailbox(worker);
        for _ in worker.share(self.transactions) {
            mailbox.transaction();
        }
        mailbox
    }
}

impl Mailbox<'_> {
    fn path(&self, file: u64) -> String {
        format!("{}/f{file:09}", Postmark::dir(self.worker, file % self.plan.dirs))
    }

    fn key(&self, file: u64) -> u64 {
        (self.worker << 40) | file
    }

    fn size(&mut self) -> u64 {
        SIZES.start() + self.random.below(SIZES.end() - SIZES.start() + 1)
    }

    fn create(&mut self) -> Op {
        let (file, bytes) = (self.next_file, self.size());
        self.next_file += 1;
        self.files.push((file, bytes));
        Op::Create { path: self.path(file), bytes, key: self.key(file) }
    }

    fn pick(&mut self) -> Option<usize> {
        match self.files.len() as u64 {
            0 => None,
            count => Some(self.random.below(count) as usize),
        }
    }

    /// The two operations of the next transaction.
    fn transaction(&mut self) -> [Op; 2] {
        let first = match self.random.below(2) {
            0 => None,
            _ => self.pick(),
        };
        let first = match first {
            None => self.create(),
            Some(at) => {
                let (file, _) = self.files.swap_remove(at);
                Op::Unlink(self.path(file))
            }
        };
        let append = self.random.below(2) == 0;
        let Some(at) = self.pick() else { return [first, self.create()] };
        let (file, size) = self.files[at];
        let path = self.path(file);
        if !append {
            return [first, Op::Read { path, bytes: size, key: self.key(file) }];
        }
        let bytes = self.size();
        self.files[at].1 += bytes;
        [first, Op::Append { path, at: size, bytes, key: self.key(file), durable: false }]
    }
}

const PHASES: [&str; 4] = ["mkdir", "create", "transactions", "delete"];

impl Plan for Postmark {
    fn phases(&self) -> Vec<Phase> {
        let phase = |name: &&str| match *name {
            "transactions" => Phase::cold(name),
            _ => Phase::warm(name),
        };
        PHASES.iter().map(phase).collect()
    }

    fn ops(&self, phase: usize, worker: Worker) -> Ops<'_> {
        match PHASES[phase] {
            "mkdir" => {
                let root = Op::MakeDir(format!("w{}", worker.index));
                let dirs = (0..self.dirs).map(move |dir| Op::MakeDir(Self::dir(worker.index, dir)));
                Box::new(std::iter::once(root).chain(dirs))
            }
            "create" => Box::new(self.mailbox(worker).1.into_iter()),
            "transactions" => {
                let (mut mailbox, _) = self.mailbox(worker);
                Box::new(worker.share(self.transactions).flat_map(move |_| mailbox.transaction()))
            }
            _ => {
                let mailbox = self.last(worker);
                let files = mailbox.files.iter().map(|(file, _)| Op::Unlink(mailbox.path(*file)));
                Box::new(files.collect::<Vec<_>>().into_iter())
            }
        }
    }

    fn expects(&self, phase: usize, workers: u64) -> Expects<'_> {
        let workers = (0..workers).map(move |index| Worker { index, of: workers });
        Box::new(workers.flat_map(move |worker| {
            let mailbox = match PHASES[phase] {
                "create" => self.mailbox(worker).0,
                "transactions" => self.last(worker),
                _ => Mailbox { files: Vec::new(), ..self.mailbox(worker).0 },
            };
            let mut names = vec![0; self.dirs as usize];
            for (file, _) in &mailbox.files {
                names[(file % self.dirs) as usize] += 1;
            }
            let names = names.into_iter().enumerate();
            let dirs =
                names.map(|(dir, count)| Expect::Names(Self::dir(worker.index, dir as u64), count));
            let files = samples(mailbox.files.len() as u64, SAMPLES).map(|at| {
                let (file, bytes) = mailbox.files[at as usize];
                Expect::File { path: mailbox.path(file), bytes, key: mailbox.key(file) }
            });
            dirs.chain(files).collect::<Vec<_>>()
        }))
    }

    fn inodes(&self) -> u64 {
        // A random walk of creates and deletes rarely leaves this.
        2 * self.files + self.transactions / 10 + 1000 * self.dirs
    }
}
