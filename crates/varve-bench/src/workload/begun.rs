//! What must hold of a phase that was ended early, when each worker has done the first of its operations.
//!
//! What a plan expects is what holds when all of a phase is done. So samples of the operations that were done are followed
//! up to the last of them: what is done later to the same names counts. Names of directories are counted from what an earlier
//! phase has left. Listings check themselves.

use std::collections::{BTreeMap, HashMap};

use super::{Plan, SAMPLES, Worker};
use crate::op::{Expect, Op};

/// What must hold after phase number `phase`, of which each worker has done so many operations.
pub(crate) fn expects(plan: &dyn Plan, phase: usize, done: &[u64]) -> Vec<Expect> {
    let of = done.len() as u64;
    let mut names = names_before(plan, phase, of);
    let mut expects = Vec::new();
    for (index, done) in (0..of).zip(done) {
        expects.extend(of_worker(plan, phase, Worker { index, of }, *done, &mut names));
    }
    expects.extend(names.into_iter().map(|(dir, count)| Expect::Names(dir, count)));
    expects
}

/// How many names directories have before a phase, as far as the phases before it tell.
fn names_before(plan: &dyn Plan, phase: usize, workers: u64) -> HashMap<String, u64> {
    let mut names = HashMap::new();
    for before in 0..phase {
        for expect in plan.expects(before, workers) {
            if let Expect::Names(dir, count) = expect {
                names.insert(dir, count);
            }
        }
    }
    names
}

/// Counts what an operation does to the names of directories. REQUIRES: a name it makes has not been there.
fn count(op: &Op, names: &mut HashMap<String, u64>) {
    let mut change = |path: &str, by: i64| {
        let (dir, _) = path.rsplit_once('/').unwrap_or((".", path));
        if let Some(count) = names.get_mut(dir) {
            *count = count.saturating_add_signed(by);
        }
    };
    match op {
        Op::MakeDir(path) | Op::Create { path, .. } | Op::Deliver { path, .. } => change(path, 1),
        Op::RemoveDir(path) | Op::Unlink(path) => change(path, -1),
        Op::Rename(from, to) => {
            change(from, -1);
            change(to, 1);
        }
        _ => {}
    }
    // A directory that has gone has no names to count.
    if let Op::RemoveDir(path) = op {
        names.remove(path);
    }
}

fn of_worker(
    plan: &dyn Plan,
    phase: usize,
    worker: Worker,
    done: u64,
    names: &mut HashMap<String, u64>,
) -> Vec<Expect> {
    let step = (done / SAMPLES).max(1);
    let mut followed: BTreeMap<String, Expect> = BTreeMap::new();
    for (number, op) in (0..done).zip(plan.ops(phase, worker)) {
        count(&op, names);
        for (path, expect) in leaves(op) {
            if number % step == 0 || followed.contains_key(&path) {
                followed.insert(path, expect);
            }
        }
    }
    followed.into_values().collect()
}

/// The names that an operation changes, each with what holds of it then.
fn leaves(op: Op) -> Vec<(String, Expect)> {
    let one = |path: String, expect: fn(String) -> Expect| vec![(path.clone(), expect(path))];
    match op {
        Op::MakeDir(path) => one(path, Expect::Present),
        Op::RemoveDir(path) | Op::Unlink(path) => one(path, Expect::Absent),
        Op::Create { path, bytes, key } | Op::Deliver { path, bytes, key } => {
            vec![(path.clone(), Expect::File { path, bytes, key })]
        }
        Op::Append { path, at, bytes, key, .. } => {
            vec![(path.clone(), Expect::File { path, bytes: at + bytes, key })]
        }
        Op::WriteAt { path, offset, bytes, key } => {
            vec![(path.clone(), Expect::Part { path, offset, bytes, key })]
        }
        Op::Chmod(path, mode) => vec![(path.clone(), Expect::Mode(path, mode))],
        Op::Utime(path, seconds) => vec![(path.clone(), Expect::Changed(path, seconds))],
        Op::Rename(from, to) => [one(from, Expect::Absent), one(to, Expect::Present)].concat(),
        // What is only looked at is checked as it is seen; what programs do is their own affair.
        Op::Read { .. }
        | Op::Stat(..)
        | Op::List(_)
        | Op::ReadAt { .. }
        | Op::Sync(_)
        | Op::Run(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Expects, Ops, Phase};

    /// One phase of these operations, the same for each worker.
    struct Listed(Vec<Op>);

    impl Plan for Listed {
        fn phases(&self) -> Vec<Phase> {
            vec![Phase::warm("listed")]
        }

        fn ops(&self, _phase: usize, _worker: Worker) -> Ops<'_> {
            Box::new(self.0.iter().cloned())
        }

        fn expects(&self, _phase: usize, _workers: u64) -> Expects<'_> {
            Box::new(std::iter::empty())
        }

        fn inodes(&self) -> u64 {
            0
        }
    }

    #[test]
    fn later_operations_on_a_name_count_and_those_not_done_do_not() {
        let name = |name: &str| name.to_owned();
        let create = |path: &str| Op::Create { path: name(path), bytes: 5, key: 1 };
        let more = Op::Append { path: name("a"), at: 5, bytes: 2, key: 1, durable: false };
        let renamed = Op::Rename(name("b"), name("c"));
        let ops = vec![create("a"), create("b"), more, renamed, Op::Unlink(name("a"))];
        let file = |path: &str, bytes| Expect::File { path: name(path), bytes, key: 1 };
        let plan = Listed(ops);
        assert_eq!(expects(&plan, 0, &[0]), []);
        assert_eq!(expects(&plan, 0, &[2]), [file("a", 5), file("b", 5)]);
        let renamed = [Expect::Absent(name("b")), Expect::Present(name("c"))];
        assert_eq!(expects(&plan, 0, &[4]), [vec![file("a", 7)], renamed.to_vec()].concat());
        let all = [vec![Expect::Absent(name("a"))], renamed.to_vec()].concat();
        assert_eq!(expects(&plan, 0, &[5, 1]), [all, vec![file("a", 5)]].concat());
    }

    #[test]
    fn of_many_operations_some_are_followed() {
        let create = |at| Op::Create { path: format!("f{at}"), bytes: 0, key: at };
        let gone = (0..10_000).map(|at| Op::Unlink(format!("f{at}")));
        let plan = Listed((0..10_000).map(create).chain(gone).collect());
        let found = expects(&plan, 0, &[20_000]);
        assert!((50..=100).contains(&found.len()), "{}", found.len());
        assert!(found.iter().all(|it| matches!(it, Expect::Absent(_))));
    }

    /// After one phase, which leaves so many names in `d`, a second one of these operations.
    struct After(u64, Vec<Op>);

    impl Plan for After {
        fn phases(&self) -> Vec<Phase> {
            vec![Phase::warm("before"), Phase::warm("after")]
        }

        fn ops(&self, _phase: usize, _worker: Worker) -> Ops<'_> {
            Box::new(self.1.iter().cloned())
        }

        fn expects(&self, phase: usize, _workers: u64) -> Expects<'_> {
            let names = Expect::Names("d".to_owned(), self.0);
            Box::new(std::iter::once(names).filter(move |_| phase == 0))
        }

        fn inodes(&self) -> u64 {
            0
        }
    }

    /// What was done too much, or twice under another name, was not found: directories were not counted.
    #[test]
    fn names_are_counted_as_far_as_it_came() {
        let name = |name: &str| name.to_owned();
        let ops = vec![
            Op::MakeDir(name("d/a")),
            Op::Create { path: name("d/b"), bytes: 0, key: 0 },
            Op::Rename(name("d/b"), name("e/b")),
            Op::Unlink(name("d/c")),
        ];
        let plan = After(10, ops);
        for (done, expected) in [(0, 10), (1, 11), (2, 12), (3, 11), (4, 10)] {
            let found = expects(&plan, 1, &[done]);
            assert!(found.contains(&Expect::Names(name("d"), expected)), "{done}: {found:?}");
        }
        let gone = After(0, vec![Op::RemoveDir(name("d"))]);
        assert_eq!(expects(&gone, 1, &[1]), [Expect::Absent(name("d"))]);
    }
}
