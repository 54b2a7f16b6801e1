//! Recorded histories of serializable transactions over files, against running them one after the other.
//!
//! Transactions and single calls of the main tree work on a few files in two directories, as seeded schedules have it: who acts
//! next, who meets a lock and comes back to it, who gives way. Each call's answer is recorded. What was committed must be
//! what running the transactions whole gives, in the order of their commits: the same answers, the same files. The same
//! checker finds write skew, when told to, among transactions that see snapshots; so it can fail.

use std::collections::BTreeMap;

use varve_fs::{CommitError, FormatOptions, Isolation, TransactionOptions, VarveFs, ViewName};
use varve_testkit::rng::Rng;
use varve_types::InodeId;
use varve_vfs::{Caller, FsError, FsResult, SetAttr, Vfs, XattrMode};

use crate::crash::{open, sim_store};
use crate::support::{Calls, ROOT, WRITE, name};
use crate::views::sound;

/// A file by its directory and its name, both by number.
type FileNumber = (usize, usize);

const DIRS: [&str; 2] = ["d0", "d1"];
const NAMES: [&str; 3] = ["a", "b", "c"];
const LARGE: u64 = 70_000;

/// One thing that a program does. The size of a file is its value.
#[derive(Clone, Copy, Debug)]
enum Act {
    Read(FileNumber),
    List(usize),
    /// Makes the file if there is none.
    Put(FileNumber, u64),
    /// Puts the sum of two files' sizes and one.
    Sum(FileNumber, FileNumber, FileNumber),
    Move(FileNumber, FileNumber),
    Remove(FileNumber),
    /// Makes and removes a directory beside the files.
    Dir(usize, bool),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Value(Option<u64>),
    Names(Vec<String>),
    Done(bool),
}

/// What there is: files with their sizes, and which directories hold the one beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    files: BTreeMap<FileNumber, u64>,
    dirs: [bool; 2],
}

impl State {
    fn act(&mut self, act: Act) -> Found {
        let value = |state: &State, place| state.files.get(&place).copied();
        match act {
            Act::Read(place) => Found::Value(value(self, place)),
            Act::List(dir) => {
                let files = self.files.keys().filter(|(of, _)| *of == dir);
                let mut names: Vec<String> = files.map(|(_, n)| NAMES[*n].to_owned()).collect();
                names.extend(self.dirs[dir].then(|| "sub".to_owned()));
                Found::Names(names)
            }
            Act::Put(place, size) => {
                self.files.insert(place, size);
                Found::Done(true)
            }
            Act::Sum(one, other, to) => {
                let sum = (value(self, one).unwrap_or(0) + value(self, other).unwrap_or(0)) % 500;
                self.files.insert(to, sum + 1);
                Found::Value(Some(sum + 1))
            }
            Act::Move(from, to) => {
                let moved = self.files.remove(&from).map(|size| self.files.insert(to, size));
                Found::Done(moved.is_some())
            }
            Act::Remove(place) => Found::Done(self.files.remove(&place).is_some()),
            Act::Dir(dir, made) => {
                Found::Done(std::mem::replace(&mut self.dirs[dir], made) != made)
            }
        }
    }
}

/// The answer, or `None` if there was an error that says which of two ways it went.
fn went(result: FsResult<()>) -> FsResult<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(FsError::NotFound | FsError::Exists) => Ok(false),
        Err(error) => Err(error),
    }
}

fn read(fs: &VarveFs, dirs: [InodeId; 2], (dir, n): FileNumber) -> FsResult<Option<u64>> {
    match fs.find(dirs[dir], NAMES[n]) {
        Ok(attr) => Ok(Some(attr.size)),
        Err(FsError::NotFound) => Ok(None),
        Err(error) => Err(error),
    }
}

fn put(fs: &VarveFs, dirs: [InodeId; 2], (dir, n): FileNumber, size: u64) -> FsResult<()> {
    let (dir, text) = (dirs[dir], name(NAMES[n]));
    let ino = match fs.lookup(dir, text) {
        Err(FsError::NotFound) => fs.mknod(Caller::ROOT, dir, text, 0o100_644, 0)?.attr.ino,
        found => found?.attr.ino,
    };
    fs.setattr(Caller::ROOT, ino, SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

/// Does one thing in a file system.
fn act(fs: &VarveFs, dirs: [InodeId; 2], act: Act) -> FsResult<Found> {
    match act {
        Act::Read(place) => read(fs, dirs, place).map(Found::Value),
        Act::List(dir) => {
            let mut names = Vec::new();
            fs.readdir(dirs[dir], 0, false, &mut |entry| {
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                true
            })?;
            names.retain(|name| name != "." && name != "..");
            names.sort();
            Ok(Found::Names(names))
        }
        Act::Put(place, size) => put(fs, dirs, place, size).map(|()| Found::Done(true)),
        Act::Sum(one, other, to) => {
            let (one, other) = (read(fs, dirs, one)?, read(fs, dirs, other)?);
            let sum = (one.unwrap_or(0) + other.unwrap_or(0)) % 500 + 1;
            put(fs, dirs, to, sum).map(|()| Found::Value(Some(sum)))
        }
        Act::Move((from, a), (to, b)) => {
            went(fs.mv(dirs[from], NAMES[a], dirs[to], NAMES[b])).map(Found::Done)
        }
        Act::Remove((dir, n)) => went(fs.unlink(dirs[dir], name(NAMES[n]))).map(Found::Done),
        Act::Dir(dir, true) => {
            let made = fs.mkdir(Caller::ROOT, dirs[dir], name("sub"), 0o755);
            went(made.map(drop)).map(Found::Done)
        }
        Act::Dir(dir, false) => went(fs.rmdir(dirs[dir], name("sub"))).map(Found::Done),
    }
}

fn random_act(rng: &mut Rng) -> Act {
    let mut place = || (rng.below(2) as usize, rng.below(NAMES.len() as u64) as usize);
    let (a, b, c) = (place(), place(), place());
    match rng.below(12) {
        0..3 => Act::Read(a),
        3 => Act::List(a.0),
        4..6 => Act::Put(a, 1 + rng.below(500) + if rng.chance(12) { LARGE } else { 0 }),
        6..9 => Act::Sum(a, b, c),
        9 => Act::Move(a, if a == b { (1 - a.0, a.1) } else { b }),
        10 => Act::Remove(a),
        _ => Act::Dir(a.0, rng.chance(50)),
    }
}

/// What one transaction, or one call of the main tree, did; whether what it read counts.
#[derive(Clone, Debug)]
struct History {
    acts: Vec<(Act, Found)>,
    reads_count: bool,
}

impl History {
    /// Runs it on `state`; false if an answer would be another.
    fn replay(&self, state: &mut State) -> bool {
        self.acts.iter().all(|(act, found)| match (act, found) {
            _ if self.reads_count => state.act(*act) == *found,
            (Act::Read(_) | Act::List(_), _) | (_, Found::Done(false)) => true,
            (Act::Sum(_, _, to), Found::Value(Some(sum))) => {
                state.act(Act::Put(*to, *sum)) == Found::Done(true)
            }
            _ => state.act(*act) == *found,
        })
    }
}

struct Open {
    name: ViewName,
    view: VarveFs,
    program: Vec<Act>,
    history: History,
    blocked: Option<varve_vfs::Blocked>,
}

/// How often it happened.
#[derive(Debug, Default)]
struct Counts {
    commits: u64,
    victims: u64,
    blocked: u64,
    plain_blocked: u64,
    conflicts: u64,
}

struct Schedule<'a> {
    fs: &'a VarveFs,
    dirs: [InodeId; 2],
    open: Vec<Open>,
    committed: Vec<History>,
    counts: &'a mut Counts,
}

impl Schedule<'_> {
    fn begin(&mut self, isolation: Isolation, program: Vec<Act>, reads_count: bool) {
        let options = TransactionOptions { isolation, ..TransactionOptions::default() };
        let name = self.fs.begin_transaction(ROOT, &options).unwrap();
        let view = self.fs.open_view(&name).unwrap();
        let history = History { acts: Vec::new(), reads_count };
        self.open.push(Open { name, view, program, history, blocked: None });
    }

    fn abort(&mut self, at: usize) {
        let open = self.open.swap_remove(at);
        drop(open.view);
        self.fs.abort_transaction(&open.name.name).unwrap();
    }

    /// One more thing in one transaction, or its commit; false if it waits.
    fn step(&mut self, at: usize) -> bool {
        let open = &mut self.open[at];
        if let Some(blocked) = open.blocked.take() {
            open.view.wait_is_over(&blocked);
        }
        let Some(next) = open.program.first().copied() else { return self.commit(at) };
        match act(&open.view, self.dirs, next) {
            Ok(found) => {
                open.program.remove(0);
                open.history.acts.push((next, found));
            }
            Err(FsError::Blocked(blocked)) => {
                self.counts.blocked += 1;
                open.blocked = Some(blocked);
                return false;
            }
            Err(FsError::DeadlockVictim) => {
                self.counts.victims += 1;
                self.abort(at);
            }
            Err(error) => panic!("{next:?}: {error}"),
        }
        true
    }

    fn commit(&mut self, at: usize) -> bool {
        let open = &self.open[at];
        match self.fs.commit_transaction(&open.name.name, &open.view) {
            Ok(_) => {
                self.counts.commits += 1;
                let open = self.open.swap_remove(at);
                self.committed.push(open.history);
            }
            Err(CommitError::Conflict(paths)) => {
                assert!(
                    !open.history.reads_count,
                    "a serializable one is refused by nobody: {paths:?}"
                );
                self.counts.conflicts += 1;
                self.abort(at);
            }
            Err(CommitError::DeadlockVictim(_)) => {
                self.counts.victims += 1;
                self.abort(at);
            }
            Err(CommitError::Failed(FsError::Blocked(_))) => {
                assert!(!open.history.reads_count, "it has its locks");
                self.counts.plain_blocked += 1;
                return false;
            }
            Err(error) => panic!("{error:?}"),
        }
        true
    }

    fn plain(&mut self, next: Act) {
        match act(self.fs, self.dirs, next) {
            Ok(found) => {
                let acts = vec![(next, found)];
                self.committed.push(History { acts, reads_count: true });
            }
            // What has been done of it so far is to make an empty file, if that.
            Err(FsError::Blocked(_)) => self.counts.plain_blocked += 1,
            Err(error) => panic!("{next:?}: {error}"),
        }
    }

    /// Lets everybody come to an end.
    fn finish(&mut self, rng: &mut Rng) {
        let mut idle = 0;
        while !self.open.is_empty() {
            let at = rng.below(self.open.len() as u64) as usize;
            idle = if self.step(at) { 0 } else { idle + 1 };
            assert!(idle < 200, "they wait for each other");
        }
    }

    fn told(&self) -> String {
        self.committed.iter().map(|history| format!("{history:?}\n")).collect()
    }

    fn state(&self) -> State {
        let mut state = State::default();
        for dir in 0..2 {
            for n in 0..NAMES.len() {
                if let Some(size) = read(self.fs, self.dirs, (dir, n)).unwrap() {
                    state.files.insert((dir, n), size);
                }
            }
            state.dirs[dir] = self.fs.find(self.dirs[dir], "sub").is_ok();
        }
        state
    }
}

fn make_dirs(fs: &VarveFs, number: u64) -> [InodeId; 2] {
    let top = fs.mk_dir(ROOT, &format!("s{number}"));
    DIRS.map(|dir| fs.mk_dir(top, dir))
}

/// Main calls that are one call each: a file that is made and then filled is two.
fn plain_act(rng: &mut Rng) -> Act {
    loop {
        let next = random_act(rng);
        if !matches!(next, Act::Put(..) | Act::Sum(..)) {
            return next;
        }
    }
}

fn schedules(seeds: std::ops::Range<u64>, mixed: bool) -> Counts {
    let mut counts = Counts::default();
    let env = sim_store(seeds.start, &FormatOptions::default());
    let fs = open(&env);
    for seed in seeds {
        let mut rng = Rng::new(seed);
        let dirs = make_dirs(&fs, seed);
        let mut schedule = Schedule {
            fs: &fs,
            dirs,
            open: Vec::new(),
            committed: Vec::new(),
            counts: &mut counts,
        };
        for place in [(0, 0), (0, 1), (1, 0)] {
            schedule.plain(Act::Put(place, 1 + rng.below(100)));
        }
        for _ in 0..30 {
            if schedule.open.len() < 3 && rng.chance(30) {
                let program = (0..2 + rng.below(4)).map(|_| random_act(&mut rng));
                let mut program: Vec<Act> = program.collect();
                let snapshot = mixed && rng.chance(35);
                if snapshot {
                    // What it makes and takes away again is as if it had not been, which a replay is not.
                    let takes = |next: &Act| {
                        matches!(next, Act::Move(..) | Act::Remove(_) | Act::Dir(_, false))
                    };
                    program.retain(|next| !takes(next));
                }
                let isolation =
                    if snapshot { Isolation::Snapshot } else { Isolation::Serializable };
                schedule.begin(isolation, program, !snapshot);
            } else if schedule.open.is_empty() || rng.chance(15) {
                schedule.plain(plain_act(&mut rng));
            } else {
                let at = rng.below(schedule.open.len() as u64) as usize;
                schedule.step(at);
            }
        }
        schedule.finish(&mut rng);
        let mut state = State::default();
        for (at, history) in schedule.committed.iter().enumerate() {
            assert!(history.replay(&mut state), "seed {seed}: {at} of {}", schedule.told());
        }
        assert_eq!(state, schedule.state(), "seed {seed}: {}", schedule.told());
    }
    sound(&fs);
    fs.close().unwrap();
    counts
}

#[test]
fn thousands_of_histories_of_files_are_serializable() {
    let counts = schedules(0..2000, false);
    let Counts { commits, victims, blocked, plain_blocked, .. } = counts;
    let all = [commits, victims, blocked, plain_blocked];
    assert!(all.iter().all(|n| *n > 100), "{counts:?}");
}

#[test]
fn snapshots_beside_serializable_transactions_wait_for_their_locks() {
    let counts = schedules(10_000..11_000, true);
    let Counts { commits, conflicts, plain_blocked, .. } = counts;
    assert!([commits, conflicts, plain_blocked].iter().all(|n| *n > 50), "{counts:?}");
}

/// Two programs each read two files and change one; whether what they did is as if one had run after the other.
fn skewed(fs: &VarveFs, number: u64, isolation: Isolation) -> bool {
    let mut counts = Counts::default();
    let dirs = make_dirs(fs, number);
    let mut schedule =
        Schedule { fs, dirs, open: Vec::new(), committed: Vec::new(), counts: &mut counts };
    let (a, b) = ((0, 0), (0, 1));
    let before: Vec<Act> = [a, b].map(|place| Act::Put(place, 10)).into();
    before.iter().for_each(|next| schedule.plain(*next));
    for to in [a, b] {
        schedule.begin(isolation, vec![Act::Sum(a, b, to)], true);
    }
    let mut rng = Rng::new(number);
    for at in [0, 1] {
        if at < schedule.open.len() {
            schedule.step(at);
        }
    }
    schedule.finish(&mut rng);
    let (found, two) = (schedule.state(), schedule.committed.split_off(2));
    let orders: Vec<Vec<&History>> = vec![two.iter().collect(), two.iter().rev().collect()];
    !orders.into_iter().any(|order| {
        let mut state = State::default();
        before.iter().for_each(|next| drop(state.act(*next)));
        order.iter().all(|history| history.replay(&mut state)) && state == found
    })
}

/// The canary: snapshots let write skew through, and the checker sees it.
#[test]
fn write_skew_is_found_among_snapshots_and_not_among_serializable_ones() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    assert!(skewed(&fs, 1, Isolation::Snapshot));
    assert!(!skewed(&fs, 2, Isolation::Serializable));
}

/// A change of the main tree that has waited long enough takes the locks of who is in its way.
#[test]
fn who_keeps_the_main_view_waiting_gives_way() {
    let env = sim_store(2, &FormatOptions::default());
    let fs = open(&env);
    let dirs = make_dirs(&fs, 0);
    put(&fs, dirs, (0, 0), 7).unwrap();
    let isolation = Isolation::Serializable;
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    let txn = fs.begin_transaction(ROOT, &options).unwrap();
    let view = fs.open_view(&txn).unwrap();
    assert_eq!(read(&view, dirs, (0, 0)).unwrap(), Some(7));
    let Err(FsError::Blocked(blocked)) = fs.unlink(dirs[0], name("a")) else {
        panic!("it is locked");
    };
    assert_eq!(fs.transactions_of(&blocked), std::slice::from_ref(&txn.name));
    assert!(!view.overrule(&blocked), "only the main tree does that");
    assert!(fs.overrule(&blocked));
    fs.unlink(dirs[0], name("a")).unwrap();
    assert!(matches!(read(&view, dirs, (0, 1)), Err(FsError::DeadlockVictim)));
    match fs.commit_transaction(&txn.name, &view) {
        Err(CommitError::DeadlockVictim(why)) => assert!(why.contains("10 seconds"), "{why}"),
        other => panic!("{other:?}"),
    }
    fs.abort_transaction(&txn.name).unwrap();
    assert_eq!(fs.lock_status().unwrap(), []);
}

/// Names in a directory commute with who has looked at it. Its extended attributes do not, whatever else is committed with them.
#[test]
fn extended_attributes_of_a_directory_do_not_commute() {
    let env = sim_store(3, &FormatOptions::default());
    let fs = open(&env);
    let dir = fs.mk_dir(ROOT, "dir");
    fs.setxattr(dir, b"user.a", b"1", XattrMode::Set).unwrap();
    let isolation = Isolation::Serializable;
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    let reader = fs.begin_transaction(ROOT, &options).unwrap();
    let view = fs.open_view(&reader).unwrap();
    let seen = view.find(ROOT, "dir").unwrap().ino;
    assert_eq!(view.getxattr(seen, b"user.a").unwrap(), &b"1"[..]);
    let commit = |file: &str, value: Option<&[u8]>| {
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let changing = fs.open_view(&txn).unwrap();
        changing.mk(dir, file);
        if let Some(value) = value {
            changing.setxattr(dir, b"user.a", value, XattrMode::Set).unwrap();
        }
        fs.commit_transaction(&txn.name, &changing)
    };
    commit("first", None).unwrap();
    match commit("second", Some(b"2")) {
        Err(CommitError::Failed(FsError::Blocked(_))) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(view.getxattr(seen, b"user.a").unwrap(), &b"1"[..]);
    drop(view);
    fs.abort_transaction(&reader.name).unwrap();
    commit("third", Some(b"3")).unwrap();
    assert_eq!(fs.getxattr(dir, b"user.a").unwrap(), &b"3"[..]);
}

/// Who reads files of a directory has looked at those, whatever else would be fetched for others.
#[test]
fn who_reads_some_files_of_a_directory_locks_no_others() {
    let env = sim_store(4, &FormatOptions::default());
    let fs = open(&env);
    let dir = fs.mk_dir(ROOT, "dir");
    for text in ["0", "1", "2", "3"] {
        let ino = fs.mk(dir, text);
        fs.put_at(ino, 0, &[7; 2000]);
    }
    let isolation = Isolation::Serializable;
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    let txn = fs.begin_transaction(ROOT, &options).unwrap();
    let view = fs.open_view(&txn).unwrap();
    for text in ["3", "1", "0"] {
        assert_eq!(view.contents(view.find(dir, text).unwrap().ino), [7; 2000]);
    }
    fs.unlink(dir, name("2")).unwrap();
    let Err(FsError::Blocked(_)) = fs.unlink(dir, name("1")) else { panic!("it is locked") };
    drop(view);
    fs.abort_transaction(&txn.name).unwrap();
}

/// A large file whose row could not follow it when it was closed, as another transaction had locked what that changes, left its
/// transaction waiting for that one, which was told of a deadlock then.
#[test]
fn what_is_not_tried_again_does_not_wait() {
    let env = sim_store(5, &FormatOptions::default());
    let fs = open(&env);
    let ino = fs.mk(ROOT, "large");
    fs.put_at(ino, 0, &[1; 100_000]);
    let isolation = Isolation::Serializable;
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    let [(writer, writing), (other, beside)] = [(); 2].map(|()| {
        let txn = fs.begin_transaction(ROOT, &options).unwrap();
        let view = fs.open_view(&txn).unwrap();
        (txn, view)
    });
    let seen = writing.find(ROOT, "large").unwrap().ino;
    let handle = writing.open_as(seen, WRITE);
    writing.write(seen, handle, 0, &[2; 150_000], false).unwrap();
    let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
    beside.setattr(Caller::ROOT, ROOT, set).unwrap();
    writing.release(seen, handle).unwrap();
    let waits = fs.lock_status().unwrap().into_iter().flat_map(|status| status.waits_for);
    assert_eq!(waits.collect::<Vec<_>>(), [] as [String; 0]);
    match beside.find(ROOT, "large") {
        Err(FsError::Blocked(blocked)) => beside.wait_is_over(&blocked),
        read => panic!("{read:?}"),
    }
    match fs.commit_transaction(&writer.name, &writing) {
        Err(CommitError::Failed(FsError::Blocked(_))) => {}
        committed => panic!("{committed:?}"),
    }
    let status = fs.lock_status().unwrap().remove(0);
    assert_eq!((&status.id, status.waits_for), (&writer.name, vec![]));
    drop(beside);
    fs.abort_transaction(&other.name).unwrap();
    fs.commit_transaction(&writer.name, &writing).unwrap();
    assert!(fs.contents(ino) == [2; 150_000]);
}
