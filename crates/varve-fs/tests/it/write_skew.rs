//! Commits that are each right and together might break an invariant of the tree.
//!
//! Two or three transactions, with snapshot isolation and serializable, and the main tree change a few directories and files at
//! once, as a seed has it: large and small files, hard links, directories moved into each other, clones, limits, dictionaries,
//! extended attributes, snapshots and rollbacks in between. Every fifth seed does little but move four directories into each other
//! and commit. After each commit
//!
//! 1. the check finds nothing,
//! 2. after one with snapshot isolation, whatever only one side changed is as that side left it, and what both changed is alike
//!    on both sides ([`Dump::merged`]); anything else had to be a conflict,
//! 3. after a serializable one, the main tree is what the transaction saw right before.
//!
//! Where all transactions are serializable and do what a model can do, what was committed is done once more there, in the order of the
//! commits, changes of the main tree among them: everything reads and comes to the same, and so do tree and bytes at the end ([`replay`]).
//!
//! A rollback leaves what the snapshot had, a received snapshot what was sent, in a store where a transaction is open meanwhile; what
//! failed has changed nothing. Now and then the machine dies within a commit: what it leaves is the state before it or the one after.

mod acts;
mod cases;
mod dump;
mod replay;

use std::collections::BTreeMap;
use std::sync::Arc;

use varve_env::sim::SimEnv;
use varve_fs::fsck::Severity;
use varve_fs::stream::ReceiveError;
use varve_fs::{CommitError, FormatOptions, Isolation, Original, TransactionOptions, VarveFs};
use varve_testkit::rng::Rng;
use varve_types::InodeId;
use varve_vfs::{Caller, FsError, FsResult, RenameMode, TreeLimits, Vfs};

use self::acts::{Act, Found, Log, Piece, Spot, names_in, remove_all};
use self::dump::Dump;
use self::replay::Replay;
use crate::crash::{open, sim_store};
use crate::sent::{receive, sent, target};
use crate::support::{Calls, ROOT, name};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const XATTRS: [&[u8]; 2] = [b"user.a", b"user.b"];
const DICTIONARIES: [&[u8]; 2] = [b"x", b"y"];
const LARGE: usize = 40_000;
const STEPS: u64 = 90;
const OPEN_MAX: usize = 3;
/// Seeds that the test runs each time.
const SEEDS: u64 = 150;

/// An open transaction.
struct Begun {
    id: String,
    isolation: Isolation,
    view: Arc<VarveFs>,
    /// What the main tree showed when it began, if the seed compares.
    base: Option<Dump>,
    /// What was done in it.
    log: Log,
}

/// What came of all that was tried.
#[derive(Debug, Default)]
struct Tally {
    seeds: u64,
    done: u64,
    moved_dirs: u64,
    commits: u64,
    compared: u64,
    conflicts: u64,
    refused: u64,
    aborts: u64,
    rollbacks: u64,
    received: u64,
    received_beside: u64,
    crashes: u64,
    images: u64,
    replayed: u64,
    not_serial: u64,
    told: BTreeMap<String, u64>,
}

/// How a seed runs.
#[derive(Clone, Copy, Debug)]
struct How {
    /// Percent of transactions that are serializable.
    serializable: u64,
    /// Everything that views show is compared, which unfolds all clones.
    compares: bool,
    /// Clones, dictionaries, limits, snapshots and rollbacks come too.
    crosses: bool,
    /// Nearly all that is done is moving directories.
    moves: bool,
    /// Nearly all that is done is moving a few directories into each other, each by its own name, and commits are frequent.
    rings: bool,
    /// The machine dies within the last commit.
    crashes: bool,
    /// What is committed is replayed in the order of the commits.
    replays: bool,
}

impl How {
    fn of(seed: u64) -> How {
        How {
            serializable: [0, 0, 40, 100][(seed % 4) as usize],
            compares: !seed.is_multiple_of(3),
            crosses: seed % 5 > 1,
            moves: seed.is_multiple_of(7),
            rings: seed.is_multiple_of(5),
            crashes: seed % 6 == 1,
            replays: seed % 4 == 3 && seed % 5 <= 1,
        }
    }
}

/// A store that has received snapshots.
struct There {
    fs: VarveFs,
    last: String,
}

struct Run<'a> {
    env: Arc<SimEnv>,
    fs: Arc<VarveFs>,
    seed: u64,
    how: How,
    rng: Rng,
    /// Directories that there are or were.
    dirs: Vec<InodeId>,
    open: Vec<Begun>,
    snapshots: Vec<(String, Option<Dump>)>,
    there: Option<There>,
    replay: Option<Replay>,
    has_crashed: bool,
    number: u64,
    history: Vec<String>,
    tally: &'a mut Tally,
}

impl Run<'_> {
    fn fail(&self, what: &str) -> ! {
        let history = self.history.join("\n  ");
        panic!("seed {} {:?}: {what}; it had done\n  {history}", self.seed, self.how)
    }

    fn dir(&mut self) -> InodeId {
        *self.rng.pick(&self.dirs)
    }

    /// A name in a directory, mostly one that is there.
    fn spot(&mut self, fs: &VarveFs, is_serial: bool) -> Spot {
        let mut dir = self.dir();
        if !is_serial && self.rng.chance(70) {
            for _ in 0..3 {
                let names = names_in(fs, dir).unwrap_or_default();
                if !names.is_empty() {
                    return (dir, self.rng.pick(&names).clone());
                }
                dir = self.dir();
            }
        }
        (dir, (*self.rng.pick(&NAMES)).to_owned())
    }

    fn free(&mut self) -> Spot {
        (self.dir(), (*self.rng.pick(&NAMES)).to_owned())
    }

    /// Does one thing in a view; what it is called, and what came of it. What was done is added to `log`.
    fn act(&mut self, fs: &VarveFs, is_serial: bool, log: &mut Log) -> (String, FsResult<()>) {
        if self.how.rings && self.rng.chance(95) {
            return self.move_into(fs, is_serial, log);
        }
        let kind = match self.how.moves {
            true if self.rng.chance(85) => 50,
            _ => self.rng.below(if self.how.crosses { 120 } else { 100 }),
        };
        let at = self.spot(fs, is_serial);
        if self.replay.is_some() && self.rng.chance(25) {
            let act = if self.rng.chance(30) { Act::List(at.0) } else { Act::Read(at) };
            return (format!("{act:?}"), act.done(fs, log).map(drop));
        }
        let act = match kind {
            0..10 => Act::MakeDir(self.free()),
            10..24 => return self.make_file(fs, log),
            24..32 => Act::Write(at, self.piece(&[0, 100], 90)),
            32..36 => Act::Cut(at, self.rng.below(60_000)),
            36..42 => Act::Link(at, self.free()),
            42..72 => self.rename(fs, at, is_serial),
            72..80 => Act::Unlink(at),
            80..86 => Act::RemoveDir(at),
            86..90 => {
                return (format!("remove all of {at:?}"), remove_all(fs, &at, log));
            }
            90..94 => Act::Chmod(at, 0o700 + self.rng.below(3) as u32),
            94..100 => {
                let attribute = *self.rng.pick(&XATTRS);
                let value = self.rng.chance(70).then(|| vec![self.rng.next_u64() as u8; 3]);
                Act::SetXattr(at, attribute, value)
            }
            _ => return self.act_beside(fs, at, kind),
        };
        let moved = act.moves_dir(fs);
        let done = act.done(fs, log).map(|found| {
            if let Found::Made(ino) = found {
                self.dirs.push(ino);
            }
        });
        self.tally.moved_dirs += u64::from(moved && done.is_ok());
        (format!("{act:?}"), done)
    }

    fn piece(&mut self, offsets: &[u64], small: usize) -> Piece {
        let len = if self.rng.chance(30) { LARGE } else { small };
        let (at, fill) = (*self.rng.pick(offsets), self.rng.next_u64() as u8);
        Piece { at, len, fill }
    }

    /// Makes a file, and writes to it.
    fn make_file(&mut self, fs: &VarveFs, log: &mut Log) -> (String, FsResult<()>) {
        let (spot, piece) = (self.free(), self.piece(&[0], 50));
        let (make, write) = (Act::MakeFile(spot.clone()), Act::Write(spot, piece));
        let done = make.done(fs, log).and_then(|_| write.done(fs, log)).map(drop);
        (format!("{make:?} {write:?}"), done)
    }

    fn rename(&mut self, fs: &VarveFs, from: Spot, is_serial: bool) -> Act {
        let whiteout = |replaces| RenameMode::Whiteout { caller: Caller::ROOT, replaces };
        let mode = *self.rng.pick(&[
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
            whiteout(self.number.is_multiple_of(2)),
        ]);
        let to = if self.rng.chance(50) { self.free() } else { self.spot(fs, is_serial) };
        Act::Rename(from, to, mode)
    }

    /// Moves what is in one directory into another, by the same name.
    fn move_into(
        &mut self,
        fs: &VarveFs,
        is_serial: bool,
        log: &mut Log,
    ) -> (String, FsResult<()>) {
        let ((dir, text), to) = (self.spot(fs, is_serial), self.dir());
        let act = Act::Rename((dir, text.clone()), (to, text), RenameMode::Replace);
        let done = act.done(fs, log).map(drop);
        self.tally.moved_dirs += u64::from(done.is_ok());
        (format!("{act:?}"), done)
    }

    /// What is done in no other file system.
    fn act_beside(&mut self, fs: &VarveFs, (dir, text): Spot, kind: u64) -> (String, FsResult<()>) {
        let told = |what: &str| format!("{what} {dir}/{text}");
        match kind {
            100..107 => {
                let (to, new) = self.free();
                let snapshot = self.snapshots.last().filter(|_| self.number.is_multiple_of(3));
                let snapshot = snapshot.map(|(snapshot, _)| snapshot.as_str());
                let original = Original { snapshot, dir, name: Some(name(&text)) };
                let made = fs.do_clone(original, to, name(&new)).map(|ino| self.dirs.push(ino));
                (format!("{} to {to}/{new}", told("clone")), made)
            }
            107..112 => {
                let inodes = self.rng.chance(60).then(|| self.rng.between(5, 40));
                let bytes = self.rng.chance(40).then(|| self.rng.between(1000, 300_000));
                let limits = TreeLimits { inodes, bytes };
                (format!("limit {dir}"), fs.set_limits(dir, limits))
            }
            _ => self.act_on_pairs(fs),
        }
    }

    fn act_on_pairs(&mut self, fs: &VarveFs) -> (String, FsResult<()>) {
        let dictionary = *self.rng.pick(&DICTIONARIES);
        let key = vec![self.rng.below(3) as u8];
        let called = dictionary.escape_ascii();
        match self.rng.below(4) {
            0 => (format!("make dictionary {called}"), fs.dictionaries().create(dictionary)),
            1 => (format!("drop dictionary {called}"), fs.dictionaries().remove(dictionary)),
            _ => {
                let value = self.rng.chance(80).then(|| vec![self.rng.next_u64() as u8].into());
                let done = fs.dictionaries().change(dictionary, vec![(key.into(), value)]);
                (format!("put into dictionary {called}"), done)
            }
        }
    }

    fn begin(&mut self) {
        let isolation = match self.rng.chance(self.how.serializable) {
            true => Isolation::Serializable,
            false => Isolation::Snapshot,
        };
        let base = self.dump(&self.fs);
        let options = TransactionOptions { isolation, ..TransactionOptions::default() };
        let txn = match self.fs.begin_transaction(ROOT, &options) {
            Ok(txn) => txn,
            Err(error) => self.fail(&format!("begin: {error:?}")),
        };
        self.history.push(format!("begin {} {isolation:?}", txn.name));
        let view = match self.fs.open_view(&txn) {
            Ok(view) => Arc::new(view),
            Err(FsError::Blocked(_)) => return self.fs.abort_transaction(&txn.name).unwrap(),
            Err(error) => self.fail(&format!("open {}: {error:?}", txn.name)),
        };
        self.open.push(Begun { id: txn.name, isolation, view, base, log: Log::new() });
    }

    /// Does one thing in the main tree or in a transaction.
    fn step(&mut self) {
        let at = self.rng.below(self.open.len() as u64 + 1) as usize;
        let (fs, is_serial, of) = match at.checked_sub(1).map(|at| &self.open[at]) {
            None => (Arc::clone(&self.fs), false, "main".to_owned()),
            Some(begun) => {
                let is_serial = begun.isolation == Isolation::Serializable;
                (Arc::clone(&begun.view), is_serial, begun.id.clone())
            }
        };
        let mut log = Log::new();
        let (told, done) = self.act(&fs, is_serial, &mut log);
        self.tally.done += u64::from(done.is_ok());
        match at.checked_sub(1) {
            None => self.replay(&log, "what the main tree did"),
            Some(at) => self.open[at].log.extend(log),
        }
        let Err(error) = done else {
            self.history.push(format!("{of}: {told}"));
            return;
        };
        self.note(&error);
        match &error {
            FsError::Storage(_) | FsError::Damaged(_) => {
                self.fail(&format!("{of}: {told}: {error:?}"))
            }
            FsError::Blocked(blocked) => {
                fs.wait_is_over(blocked);
                if at == 0 && self.rng.chance(20) {
                    fs.overrule(blocked);
                }
            }
            _ => {}
        }
    }

    fn note(&mut self, error: &FsError) {
        let told = format!("{error:?}");
        let kind = told.split(['(', '{', ' ']).next().unwrap_or_default();
        *self.tally.told.entry(kind.to_owned()).or_default() += 1;
    }

    /// What a view shows, if the seed compares and no lock is in the way.
    fn dump(&self, fs: &VarveFs) -> Option<Dump> {
        match self.how.compares.then(|| Dump::of(fs))? {
            Ok(dump) => Some(dump),
            Err(FsError::Blocked(blocked)) => {
                fs.wait_is_over(&blocked);
                None
            }
            Err(FsError::DeadlockVictim) => None,
            Err(error) => self.fail(&format!("a view cannot be read: {error:?}")),
        }
    }

    /// The check finds nothing.
    fn check(&self, after: &str) {
        let report = self.fs.check(&mut |_| ()).unwrap();
        let broken = report.findings.iter().filter(|found| found.severity() == Severity::Error);
        let broken: Vec<_> = broken.collect();
        if !broken.is_empty() {
            self.fail(&format!("after {after} the check finds {broken:?}"));
        }
    }

    /// The main tree shows `expected`.
    fn expect(&self, expected: &Dump, after: &str) {
        let Some(found) = self.dump(&self.fs) else { return };
        self.expect_in(&found, expected, after);
    }

    fn expect_in(&self, found: &Dump, expected: &Dump, after: &str) {
        if found != expected {
            self.fail(&format!("after {after} (found, right): {:?}", found.differences(expected)));
        }
    }

    fn commit(&mut self, at: usize) {
        if self.how.crashes && self.rng.chance(40) {
            return self.crash_within_commit(at);
        }
        let begun = self.open.swap_remove(at);
        let ours = self.dump(&begun.view);
        let theirs = self.dump(&self.fs);
        let committed = self.fs.commit_transaction(&begun.id, &begun.view);
        let what = format!("the commit of {}", begun.id);
        match committed {
            Ok(_) => {
                self.tally.commits += 1;
                self.history.push(what.clone());
                self.check(&what);
                self.replay(&begun.log, &what);
                let right = match (begun.isolation, &begun.base, theirs, ours) {
                    (Isolation::Serializable, _, _, ours) => ours,
                    (_, Some(base), Some(theirs), Some(ours)) => {
                        match Dump::merged(base, &theirs, &ours) {
                            Ok(merged) => Some(merged),
                            Err(both) => self.fail(&format!("{what} is none of both: {both:?}")),
                        }
                    }
                    _ => None,
                };
                if let Some(right) = right {
                    self.tally.compared += 1;
                    let found = self.dump(&self.fs);
                    found.iter().for_each(|found| self.expect_in(found, &right, &what));
                }
            }
            Err(error) => {
                let is_victim = matches!(error, CommitError::DeadlockVictim(_));
                match error {
                    CommitError::Conflict(_) => self.tally.conflicts += 1,
                    CommitError::Unfinished(_, error) => self.fail(&format!("{what}: {error:?}")),
                    CommitError::Failed(error @ (FsError::Storage(_) | FsError::Damaged(_))) => {
                        self.fail(&format!("{what}: {error:?}"))
                    }
                    CommitError::Failed(FsError::Blocked(_)) => self.tally.refused += 1,
                    CommitError::Failed(error) => self.note(&error),
                    _ => self.tally.refused += 1,
                }
                self.history.push(format!("{what} is refused"));
                if let Some(theirs) = theirs {
                    self.expect(&theirs, &format!("{what}, which is refused,"));
                }
                self.open.push(begun);
                if is_victim || self.rng.chance(60) {
                    self.abort(self.open.len() - 1);
                }
            }
        }
    }

    /// The machine dies somewhere within a commit, or right after it, and what may be left is mounted: all is as before it, or as after
    /// it.
    fn crash_within_commit(&mut self, at: usize) {
        let begun = self.open.swap_remove(at);
        let (ours, theirs) = (self.dump(&begun.view), self.dump(&self.fs));
        // What came before is durable, unless locks are in the way.
        let is_durable = self.fs.sync().is_ok();
        let after = self.rng.below(40);
        self.env.crash_after(self.env.op_count() + after);
        let committed = self.fs.commit_transaction(&begun.id, &begun.view);
        let crashed = self.env.crashed();
        self.has_crashed = true;
        self.tally.crashes += u64::from(crashed);
        let what = format!("a crash {after} operations into the commit of {}", begun.id);
        let right = match (begun.isolation, &begun.base, &theirs, ours) {
            (Isolation::Serializable, _, _, ours) => ours,
            (_, Some(base), Some(theirs), Some(ours)) => Dump::merged(base, theirs, &ours).ok(),
            _ => None,
        };
        // Known only if all of them are.
        let may_be: Option<Vec<Dump>> = match (committed.is_ok(), crashed) {
            (true, _) => right.map(|right| vec![right]),
            (false, true) => theirs.zip(right).map(|(theirs, right)| vec![theirs, right]),
            (false, false) => theirs.map(|theirs| vec![theirs]),
        };
        let may_be = may_be.filter(|_| is_durable);
        let env = &self.env;
        let images = [
            env.process_kill_within(after),
            env.power_cut_keep_nothing(),
            env.power_cut_keep_all(),
            env.power_cut(self.seed),
            env.power_cut_stale(self.seed),
        ];
        for (n, image) in images.iter().enumerate() {
            let what = format!("{what}, image {n}, commit {committed:?}");
            let fs = open(image);
            let report = fs.check(&mut |_| ()).unwrap();
            let broken = report.findings.iter().filter(|found| found.severity() == Severity::Error);
            let broken: Vec<_> = broken.collect();
            if !broken.is_empty() {
                self.fail(&format!("after {what} the check finds {broken:?}"));
            }
            self.tally.images += 1;
            let found = may_be.as_ref().and_then(|_| self.dump(&fs));
            if let (Some(may_be), Some(found)) = (&may_be, found)
                && !may_be.contains(&found)
            {
                let unlike: Vec<_> = may_be.iter().map(|right| found.differences(right)).collect();
                self.fail(&format!("after {what} (found, right): {unlike:?}"));
            }
        }
    }

    fn delete_snapshot(&mut self) {
        let count = self.snapshots.len() as u64;
        if count > 0 {
            let at = self.rng.below(count) as usize;
            let called = self.snapshots[at].0.clone();
            match self.fs.delete_snapshot(&called) {
                Ok(()) => drop(self.snapshots.remove(at)),
                // A transaction that has lost its locks is still open.
                Err(FsError::DeadlockVictim) => {}
                Err(error) => self.fail(&format!("delete {called}: {error:?}")),
            }
            self.history.push(format!("delete snapshot {called}"));
        }
    }

    /// Another store receives a new snapshot while a transaction is open there, which is committed after it.
    fn send(&mut self) {
        let dump = self.dump(&self.fs);
        self.number += 1;
        let called = format!("sent{}", self.number);
        match self.fs.create_snapshot(&called) {
            Ok(()) => {}
            Err(FsError::Blocked(blocked)) => return self.fs.wait_is_over(&blocked),
            Err(error) => self.fail(&format!("{called}: {error:?}")),
        }
        self.snapshots.push((called.clone(), dump.clone()));
        let there = self.there.take();
        let since = there.as_ref().map(|there| there.last.clone());
        let known = since.filter(|since| self.snapshots.iter().any(|(known, _)| known == since));
        let there = there.filter(|_| known.is_some());
        let mut stream = Vec::new();
        // Not if clones have yet to copy something.
        if self.fs.send_snapshot(&called, known.as_deref(), None, &mut stream, &mut |_| ()).is_err()
        {
            self.history.push(format!("{called} is not sent"));
            return;
        }
        drop(stream);
        let stream = sent(&self.fs, &called, known.as_deref());
        let fs = there.map_or_else(|| open(&target(self.seed, &self.fs)), |there| there.fs);
        // A whole snapshot goes into an empty store alone.
        let begun = known.is_some().then(|| {
            let begun = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
            let view = fs.open_view(&begun).unwrap();
            for _ in 0..self.rng.below(5) {
                let (told, done) = self.act(&view, false, &mut Log::new());
                self.history.push(format!("there: {told} {:?}", done.is_ok()));
            }
            (begun.name, view)
        });
        match receive(&fs, &stream) {
            Ok(_) => self.tally.received += 1,
            Err(ReceiveError::Refused(why, _)) => {
                self.history.push(format!("there: {called} is refused: {why}"));
                return;
            }
            Err(error) => self.fail(&format!("there {called} is not received: {error:?}")),
        }
        self.history.push(format!("there: receive {called}"));
        self.check_there(&fs, &called);
        if let (Some(dump), Some(found)) = (&dump, self.dump(&fs)) {
            self.expect_in(&found, dump, &format!("{called} was received"));
        }
        if let Some((id, view)) = begun {
            match fs.commit_transaction(&id, &view) {
                // What is changed there takes no more from here.
                Ok(_) => {
                    self.check_there(&fs, "the commit of the transaction that was open");
                    self.tally.received_beside += 1;
                    return fs.close().unwrap();
                }
                Err(CommitError::Unfinished(_, error)) => self.fail(&format!("there: {error:?}")),
                Err(_) => {
                    drop(view);
                    fs.abort_transaction(&id).unwrap();
                }
            }
        }
        self.there = Some(There { fs, last: called });
    }

    fn check_there(&self, fs: &VarveFs, after: &str) {
        let report = fs.check(&mut |_| ()).unwrap();
        let broken = report.findings.iter().filter(|found| found.severity() == Severity::Error);
        let broken: Vec<_> = broken.collect();
        if !broken.is_empty() {
            self.fail(&format!("there, after {after}, the check finds {broken:?}"));
        }
    }

    fn abort(&mut self, at: usize) {
        let Begun { id, view, .. } = self.open.swap_remove(at);
        drop(view);
        self.fs.abort_transaction(&id).unwrap();
        self.history.push(format!("abort {id}"));
        self.tally.aborts += 1;
    }

    fn snapshot(&mut self) {
        let dump = self.dump(&self.fs);
        self.number += 1;
        let called = format!("s{}", self.number);
        match self.fs.create_snapshot(&called) {
            Ok(()) => {}
            // A serializable transaction has locked what it brings up to date.
            Err(FsError::Blocked(blocked)) => return self.fs.wait_is_over(&blocked),
            Err(error) => self.fail(&format!("{called}: {error:?}")),
        }
        self.history.push(format!("snapshot {called}"));
        self.snapshots.push((called, dump));
    }

    fn roll_back(&mut self) {
        if self.snapshots.is_empty() {
            return;
        }
        let (called, then) = self.rng.pick(&self.snapshots).clone();
        let (before, what) = (self.dump(&self.fs), format!("the rollback to {called}"));
        match self.fs.roll_back(&called) {
            Ok(_) => {
                self.tally.rollbacks += 1;
                self.history.push(what.clone());
                self.check(&what);
                then.iter().for_each(|then| self.expect(then, &what));
            }
            Err(error) => {
                self.history.push(format!("{what} is refused: {error:?}"));
                before.iter().for_each(|before| self.expect(before, &what));
            }
        }
    }

    fn run(&mut self) {
        // Rings take many tries, each of which costs little.
        let steps = if self.how.rings { 4 * STEPS } else { STEPS };
        for _ in 0..steps {
            if self.has_crashed {
                return;
            }
            let open = self.open.len() as u64;
            match self.rng.below(100) {
                20..50 if self.how.rings && open == 0 => self.begin(),
                20..40 if self.how.rings => {
                    let at = self.rng.below(open) as usize;
                    self.commit(at);
                }
                0..10 if self.open.len() < OPEN_MAX => self.begin(),
                10..14 if open > 0 => {
                    let at = self.rng.below(open) as usize;
                    self.commit(at);
                }
                14 if open > 0 => {
                    let at = self.rng.below(open) as usize;
                    self.abort(at);
                }
                15 if self.how.crosses => self.snapshot(),
                16 if self.how.crosses => self.roll_back(),
                17 if self.how.crosses => self.delete_snapshot(),
                18 if self.how.crosses => self.send(),
                _ => self.step(),
            }
        }
        while !self.open.is_empty() && !self.has_crashed {
            let left = self.open.len();
            self.commit(0);
            if self.open.len() == left {
                self.abort(left - 1);
            }
        }
        if self.has_crashed {
            return;
        }
        for (snapshot, _) in std::mem::take(&mut self.snapshots) {
            self.fs.delete_snapshot(&snapshot).unwrap();
        }
        self.check("the end");
        self.compare_replayed();
    }
}

/// Makes what is there at the beginning, with the `filled` ones of the directories; gives all directories.
fn begin(fs: &dyn Vfs, filled: &[usize]) -> Vec<InodeId> {
    let mut dirs = vec![ROOT];
    dirs.extend(NAMES.map(|text| fs.mk_dir(ROOT, text)));
    for above in filled.iter().copied() {
        dirs.push(fs.mk_dir(dirs[above], "a"));
        fs.put_at(fs.mk(dirs[above], "b"), 0, b"small");
        fs.put_at(fs.mk(dirs[above], "c"), 0, &[7; LARGE]);
    }
    dirs
}

fn run(seed: u64, tally: &mut Tally) {
    run_as(seed, How::of(seed), tally);
}

fn run_as(seed: u64, how: How, tally: &mut Tally) {
    let env = sim_store(seed, &FormatOptions::default());
    let fs = Arc::new(open(&env));
    // The only names of directories that are moved into each other are their own.
    let filled: &[usize] = if how.rings { &[] } else { &[1, 2] };
    let dirs = begin(fs.as_ref(), filled);
    let replay = how.replays.then(|| Replay::new(fs.as_ref(), &dirs, filled));
    let rng = Rng::new(seed);
    let (history, snapshots) = (Vec::new(), Vec::new());
    let mut run = Run {
        env: Arc::clone(&env),
        fs,
        seed,
        how,
        rng,
        dirs,
        open: Vec::new(),
        snapshots,
        there: None,
        replay,
        has_crashed: false,
        number: 0,
        history,
        tally,
    };
    run.run();
    let Run { fs, history, has_crashed, .. } = run;
    tally.seeds += 1;
    if has_crashed {
        return;
    }
    fs.close().unwrap();
    let report = open(&env).check(&mut |_| ()).unwrap();
    assert_eq!(report.findings, [], "seed {seed} after another mount; it had done {history:#?}");
}

#[test]
fn commits_that_are_each_right_leave_a_tree_that_is() {
    let mut tally = Tally::default();
    (0..SEEDS).for_each(|seed| run(seed, &mut tally));
    let Tally { moved_dirs, commits, compared, conflicts, rollbacks, received, crashes, .. } =
        tally;
    let least = moved_dirs.min(commits).min(compared).min(conflicts);
    assert!(tally.replayed > SEEDS, "{tally:?}");
    let rare = rollbacks.min(received).min(crashes);
    assert!(least > SEEDS / 2 && rare > 0, "{tally:?}");
}

/// The canary: what transactions that see snapshots have read is not what others had committed by then.
#[test]
fn a_replay_finds_what_is_not_serializable() {
    let mut tally = Tally::default();
    for seed in 0..20 {
        let how =
            How { serializable: 0, crosses: false, crashes: false, rings: false, ..How::of(seed) };
        run_as(seed, How { replays: true, ..how }, &mut tally);
    }
    assert!(tally.not_serial > 5, "{tally:?}");
}

#[test]
#[ignore = "takes as long as it is told"]
fn soak() {
    let mut tally = Tally::default();
    let told = varve_testkit::soak(|seed| run(seed, &mut tally));
    println!("{told}: {tally:?}");
}
