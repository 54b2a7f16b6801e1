//! The file server and the mail server: workers that make, change and remove files of their own.

use std::collections::BTreeMap;

use super::{
    APPEND_BYTES_MEAN, Expects, Ops, Phase, Plan, SAMPLES, TREE_WIDTH, Worker, bytes, phases,
    samples,
};
use crate::op::{Expect, Is, Op};
use crate::random::Random;

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    File,
    Mail,
}

/// The workload.
pub(super) struct Office {
    kind: Kind,
    files: u64,
    turns: u64,
}

/// A worker's files, as they are after some of its turns.
struct Desk<'a> {
    office: &'a Office,
    worker: Worker,
    random: Random,
    /// Number and size of each file.
    files: Vec<(u64, u64)>,
    next_file: u64,
}

impl Office {
    /// A file server: a tree of files, 80 of 100 of them there from the beginning.
    pub(super) fn files(files: u64, turns: u64) -> Office {
        Office { kind: Kind::File, files, turns }
    }

    /// A mail server: one directory.
    pub(super) fn mail(files: u64, turns: u64) -> Office {
        Office { kind: Kind::Mail, files, turns }
    }

    fn desk(&self, worker: Worker) -> (Desk<'_>, Vec<Op>) {
        let random = Random::new(worker.index);
        let mut desk = Desk { office: self, worker, random, files: Vec::new(), next_file: 0 };
        let share = worker.share(self.files);
        let count = match self.kind {
            Kind::File => (share.end - share.start) * 8 / 10,
            Kind::Mail => share.end - share.start,
        };
        let creates = (0..count).map(|_| desk.create(false)).collect();
        (desk, creates)
    }

    /// The desk after all turns.
    fn last(&self, worker: Worker) -> Desk<'_> {
        let (mut desk, _) = self.desk(worker);
        for _ in worker.share(self.turns) {
            desk.turn();
        }
        desk
    }

    /// How many directories each directory of a worker holds once they are made.
    fn made(&self, worker: Worker) -> Vec<Expect> {
        let mut names = BTreeMap::new();
        for dir in self.dirs(worker) {
            let parent = dir.rsplit_once('/').and_then(|(parent, _)| names.get_mut(parent));
            parent.into_iter().for_each(|count| *count += 1);
            names.insert(dir, 0);
        }
        names.into_iter().map(|(dir, count)| Expect::Names(dir, count)).collect()
    }

    /// The directories of a worker, parents first.
    fn dirs(&self, worker: Worker) -> Vec<String> {
        if self.kind == Kind::Mail {
            return if worker.index == 0 { vec!["mail".to_owned()] } else { Vec::new() };
        }
        let share = worker.share(self.files);
        let leaves = (share.end - share.start).div_ceil(TREE_WIDTH).max(1);
        let mut dirs = vec![format!("w{}", worker.index)];
        for leaf in 0..leaves {
            if leaf % TREE_WIDTH == 0 {
                dirs.push(format!("w{}/d{}", worker.index, leaf / TREE_WIDTH));
            }
            dirs.push(leaf_dir(worker.index, leaf));
        }
        dirs
    }
}

fn leaf_dir(worker: u64, leaf: u64) -> String {
    format!("w{worker}/d{}/e{leaf}", leaf / TREE_WIDTH)
}

impl Desk<'_> {
    fn dir(&self, file: u64) -> String {
        if self.office.kind == Kind::Mail {
            return "mail".to_owned();
        }
        let share = self.worker.share(self.office.files);
        let leaves = (share.end - share.start).div_ceil(TREE_WIDTH).max(1);
        leaf_dir(self.worker.index, file / TREE_WIDTH % leaves)
    }

    fn path(&self, file: u64) -> String {
        format!("{}/f{}-{file}", self.dir(file), self.worker.index)
    }

    fn key(&self, file: u64) -> u64 {
        (self.worker.index << 40) | file
    }

    fn create(&mut self, durable: bool) -> Op {
        let mean = match self.office.kind {
            Kind::File => 102_400.0,
            Kind::Mail => 16_384.0,
        };
        let (file, bytes) = (self.next_file, bytes(&mut self.random, mean));
        self.next_file += 1;
        self.files.push((file, bytes));
        let (path, key) = (self.path(file), self.key(file));
        if durable { Op::Deliver { path, bytes, key } } else { Op::Create { path, bytes, key } }
    }

    fn pick(&mut self) -> Option<usize> {
        match self.files.len() as u64 {
            0 => None,
            count => Some(self.random.below(count) as usize),
        }
    }

    fn append(&mut self, at: usize, durable: bool) -> Op {
        let bytes = bytes(&mut self.random, APPEND_BYTES_MEAN);
        let (file, size) = self.files[at];
        self.files[at].1 += bytes;
        Op::Append { path: self.path(file), at: size, bytes, key: self.key(file), durable }
    }

    fn read(&self, at: usize) -> Op {
        let (file, bytes) = self.files[at];
        Op::Read { path: self.path(file), bytes, key: self.key(file) }
    }

    fn delete(&mut self) -> Option<Op> {
        let at = self.pick()?;
        let (file, _) = self.files.swap_remove(at);
        Some(Op::Unlink(self.path(file)))
    }

    /// The operations of the next turn.
    fn turn(&mut self) -> Vec<Op> {
        let mut ops = Vec::new();
        match self.office.kind {
            Kind::File => {
                ops.push(self.create(false));
                if let Some(at) = self.pick() {
                    ops.push(self.append(at, false));
                }
                ops.extend(self.pick().map(|at| self.read(at)));
                ops.extend(self.delete());
                let stat = self.pick().map(|at| {
                    let (file, bytes) = self.files[at];
                    Op::Stat(self.path(file), Is::File { bytes })
                });
                ops.extend(stat);
            }
            Kind::Mail => {
                ops.extend(self.delete());
                ops.push(self.create(true));
                if let Some(at) = self.pick() {
                    ops.push(self.read(at));
                    ops.push(self.append(at, true));
                }
                ops.extend(self.pick().map(|at| self.read(at)));
            }
        }
        ops
    }
}

impl Plan for Office {
    fn phases(&self) -> Vec<Phase> {
        phases(match self.kind {
            Kind::File => 10,
            Kind::Mail => 16,
        })
    }

    fn ops(&self, phase: usize, worker: Worker) -> Ops<'_> {
        match phase {
            0 => Box::new(self.dirs(worker).into_iter().map(Op::MakeDir)),
            1 => Box::new(self.desk(worker).1.into_iter()),
            _ => {
                let (mut desk, _) = self.desk(worker);
                Box::new(worker.share(self.turns).flat_map(move |_| desk.turn()))
            }
        }
    }

    fn expects(&self, phase: usize, workers: u64) -> Expects<'_> {
        let workers = (0..workers).map(move |index| Worker { index, of: workers });
        let desks: Vec<Desk<'_>> = match phase {
            0 => return Box::new(workers.flat_map(|worker| self.made(worker))),
            1 => workers.map(|worker| self.desk(worker).0).collect(),
            _ => workers.map(|worker| self.last(worker)).collect(),
        };
        let mut names = BTreeMap::new();
        let mut expects = Vec::new();
        for desk in &desks {
            for (file, _) in &desk.files {
                *names.entry(desk.dir(*file)).or_insert(0) += 1;
            }
            expects.extend(samples(desk.files.len() as u64, SAMPLES).map(|at| {
                let (file, bytes) = desk.files[at as usize];
                Expect::File { path: desk.path(file), bytes, key: desk.key(file) }
            }));
        }
        let names = names.into_iter().map(|(dir, count)| Expect::Names(dir, count));
        Box::new(names.chain(expects))
    }

    fn inodes(&self) -> u64 {
        2 * self.files + self.turns + 10_000
    }
}
