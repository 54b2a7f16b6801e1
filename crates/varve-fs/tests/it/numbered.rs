//! Numbered requests: after any crash a slot's row says that a request was done if and only if its effect is there.
//!
//! A script of calls, each numbered in one of a few slots, runs on a simulated machine and notes the tree and the rows after each
//! call. Then it runs again for each operation of the machine, which crashes there. What is found afterwards must be one of the
//! noted states, with tree and rows of the same moment. A client that repeats what it has no answer to must end with the tree
//! of the run without a crash.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use varve_engine::{Batch, KeyspaceOptions, Store as _};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::fsck::repair::repair_engine;
use varve_fs::fsck::{CheckOptions, Finding};
use varve_fs::{Atime, FormatOptions, MountOptions, TransactionOptions, VarveFs};
use varve_schema::{REQUESTS, RequestsKey};
use varve_testkit::crash::Subject;
use varve_testkit::fsops::{Times, TreeDump, tree};
use varve_testkit::rng::Rng;
use varve_types::{ClientId, FileFlags, InodeId};
use varve_vfs::{
    AllocateMode, Caller, FsError, FsResult, Gave, OpenFlags, Position, RenameMode, RequestDone,
    RequestId, SetAttr, TreeLimits, Vfs, XattrMode,
};

use crate::bench::{Rows, check, repair};
use crate::crash::{self, STORE, sim_store};
use crate::crash_points::{Store, open_tiny};
use crate::support::{BOTH, Calls, READ, ROOT, Rig, WRITE, name};

const CLIENT: ClientId = ClientId::new(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
const SLOTS: u64 = 3;
const NAMES: [&str; 3] = ["a", "b", "c"];

/// The changing part of a call.
type Effect<'a> = &'a mut dyn FnMut() -> FsResult<()>;
/// Makes it as a numbered call.
type Numbered<'a> = &'a mut dyn FnMut(Effect<'_>) -> FsResult<()>;

/// How a call and its row are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Row {
    /// As they should be.
    WithItsEffect,
    /// The planted bugs.
    Before,
    After,
}

/// One call of the script, of any kind: `bits` choose what it is about.
#[derive(Clone, Copy)]
struct Call {
    kind: u64,
    bits: u64,
}

const KINDS: u64 = 23;

impl Call {
    fn name(self, nth: u32) -> &'static str {
        NAMES[(self.bits >> (8 * nth)) as usize % NAMES.len()]
    }

    /// A directory: the root, or one that may be there.
    fn dir(self, fs: &VarveFs, nth: u32) -> FsResult<InodeId> {
        match (self.bits >> (40 + 2 * nth)) % 3 {
            0 => Ok(ROOT),
            one => fs.find(ROOT, ["x", "y"][one as usize - 1]).map(|attr| attr.ino),
        }
    }

    fn file(self, fs: &VarveFs, nth: u32) -> FsResult<InodeId> {
        fs.find(self.dir(fs, nth)?, self.name(nth)).map(|attr| attr.ino)
    }

    /// Does something with an open file by `call`, which is numbered.
    fn opened<T>(
        self,
        fs: &VarveFs,
        flags: OpenFlags,
        call: impl FnOnce(InodeId, varve_vfs::Handle) -> FsResult<T>,
    ) -> FsResult<()> {
        let ino = self.file(fs, 0)?;
        let opened = fs.open(ino, flags)?;
        let done = call(ino, opened.handle);
        let released = fs.release(ino, opened.handle);
        done.and(released)
    }

    /// Makes the call, the changing part of it by `numbered`.
    fn make(self, fs: &VarveFs, numbered: Numbered<'_>) -> FsResult<()> {
        match self.kind {
            0..=6 => self.make_name(fs, numbered),
            7..=12 => self.change_names(fs, numbered),
            13..=18 => self.change_attributes(fs, numbered),
            _ => self.change_bytes(fs, numbered),
        }
    }

    /// Makes a name.
    fn make_name(self, fs: &VarveFs, numbered: Numbered<'_>) -> FsResult<()> {
        let root = Caller::ROOT;
        let (dir, text) = (self.dir(fs, 0), name(self.name(0)));
        let perm = (self.bits % 0o1000) as u32;
        match self.kind {
            0 => numbered(&mut || fs.mkdir(root, ROOT, name("x"), 0o755).map(drop)),
            1 => numbered(&mut || fs.mkdir(root, ROOT, name("y"), 0o755).map(drop)),
            2 => {
                let dir = dir?;
                numbered(&mut || fs.mknod(root, dir, text, 0o100_644, 0).map(drop))
            }
            3 | 4 => {
                let (dir, mut opened) = (dir?, None);
                let flags = OpenFlags { truncate: self.kind == 4, ..BOTH };
                let made = numbered(&mut || {
                    fs.create(root, dir, text, 0o644, flags).map(|made| opened = Some(made))
                });
                if let Some((entry, opened)) = opened {
                    fs.release(entry.attr.ino, opened.handle)?;
                }
                made
            }
            5 => {
                let dir = dir?;
                numbered(&mut || fs.mkdir(root, dir, text, perm).map(drop))
            }
            _ => {
                let dir = dir?;
                numbered(&mut || fs.symlink(root, dir, text, b"target").map(drop))
            }
        }
    }

    /// Adds, removes or moves names.
    fn change_names(self, fs: &VarveFs, numbered: Numbered<'_>) -> FsResult<()> {
        let (dir, text) = (self.dir(fs, 0), name(self.name(0)));
        let (to_dir, to) = (self.dir(fs, 1), name(self.name(1)));
        match self.kind {
            7 => {
                let (ino, to_dir) = (self.file(fs, 0)?, to_dir?);
                numbered(&mut || fs.link(ino, to_dir, to).map(drop))
            }
            8 => {
                let dir = dir?;
                numbered(&mut || fs.unlink(dir, text))
            }
            9 => {
                let dir = dir?;
                numbered(&mut || fs.rmdir(dir, text))
            }
            10 | 11 => {
                let (dir, to_dir) = (dir?, to_dir?);
                let mode = match self.bits % 5 {
                    0 => RenameMode::NoReplace,
                    1 => RenameMode::Exchange,
                    2 => RenameMode::Whiteout { caller: Caller::ROOT, replaces: true },
                    _ => RenameMode::Replace,
                };
                numbered(&mut || fs.rename(dir, text, to_dir, to, mode))
            }
            _ => {
                let (dir, to_dir) = (dir?, to_dir?);
                numbered(&mut || fs.clone_tree(dir, text, to_dir, to).map(drop))
            }
        }
    }

    /// Changes attributes, a size or limits.
    fn change_attributes(self, fs: &VarveFs, numbered: Numbered<'_>) -> FsResult<()> {
        let perm = (self.bits % 0o1000) as u32;
        let set = |set: SetAttr| move |ino| fs.setattr(Caller::ROOT, ino, set).map(drop);
        match self.kind {
            13 => {
                let ino = self.file(fs, 0)?;
                let set = set(SetAttr { perm: Some(perm), ..SetAttr::default() });
                numbered(&mut || set(ino))
            }
            14 => {
                let ino = self.file(fs, 0)?;
                let set =
                    set(SetAttr { size: Some((self.bits >> 16) % 3000), ..SetAttr::default() });
                numbered(&mut || set(ino))
            }
            15 => {
                let ino = self.file(fs, 0)?;
                numbered(&mut || fs.setxattr(ino, b"user.x", b"value", XattrMode::Set))
            }
            16 => {
                let ino = marked(fs).ok_or(FsError::NotFound)?;
                numbered(&mut || fs.removexattr(ino, b"user.x"))
            }
            17 => {
                let dir = self.dir(fs, 0)?;
                let limits = TreeLimits { bytes: Some(1 << 20), inodes: Some(1 << 20) };
                numbered(&mut || fs.set_limits(dir, limits))
            }
            _ => {
                let ino = self.file(fs, 0)?;
                let on = fs.file_flags(ino)? != FileFlags::NO_DUMP;
                let flags = if on { FileFlags::NO_DUMP } else { FileFlags::default() };
                numbered(&mut || fs.set_file_flags(ino, flags))
            }
        }
    }

    /// Changes bytes of an open file.
    fn change_bytes(self, fs: &VarveFs, numbered: Numbered<'_>) -> FsResult<()> {
        let small = (self.bits >> 16) as usize % 3000;
        let bytes = vec![self.bits as u8; small + 1];
        let offset = (self.bits >> 30) % 2000;
        match self.kind {
            19 => self.opened(fs, WRITE, |ino, handle| {
                numbered(&mut || fs.write(ino, handle, offset, &bytes, true).map(drop))
            }),
            20 => self.opened(fs, OpenFlags { append: true, ..WRITE }, |ino, handle| {
                numbered(&mut || fs.write(ino, handle, 0, &bytes, true).map(drop))
            }),
            21 => self.opened(fs, WRITE, |ino, handle| {
                let mode = AllocateMode::ZeroRange;
                numbered(&mut || fs.fallocate(ino, handle, mode, offset, small as u64 + 1))
            }),
            _ => self.opened(fs, WRITE, |to, handle| {
                let from = self.file(fs, 1)?;
                let opened = fs.open(from, READ)?;
                let (from, source) = (from, opened.handle);
                let position = |ino, handle, offset| Position { ino, handle, offset };
                let copied = numbered(&mut || {
                    let (from, to) = (position(from, source, 0), position(to, handle, offset));
                    fs.copy_range(from, to, 500).map(drop)
                });
                fs.release(from, source)?;
                copied
            }),
        }
    }
}

/// The first file or directory with an extended attribute.
fn marked(fs: &VarveFs) -> Option<InodeId> {
    let dirs = ["x", "y"].map(|dir| fs.find(ROOT, dir).ok().map(|attr| attr.ino));
    let dirs = [Some(ROOT)].into_iter().chain(dirs).flatten();
    let mut all = dirs.flat_map(|dir| NAMES.map(|text| fs.find(dir, text).map(|attr| attr.ino)));
    all.find_map(|ino| ino.ok().filter(|ino| fs.getxattr(*ino, b"user.x").is_ok()))
}

/// A script; some calls fail, as names are taken or not there.
fn script(seed: u64, calls: usize) -> Vec<Call> {
    let mut rng = Rng::new(seed);
    (0..calls)
        .map(|call| {
            let kind = if call < 2 { call as u64 } else { rng.below(KINDS) };
            Call { kind, bits: rng.next_u64() }
        })
        .collect()
}

fn request(number: u64) -> RequestId {
    RequestId { client: CLIENT, slot: (number % SLOTS) as u32, number }
}

/// Makes the call with this number.
fn make(fs: &VarveFs, number: u64, call: Call, row: Row) -> FsResult<()> {
    // Changes nothing that is compared.
    let row_alone = || {
        let set = SetAttr { perm: Some(0o755), ..SetAttr::default() };
        let mut done = Ok(());
        fs.numbered(request(number), &mut || {
            done = fs.setattr(Caller::ROOT, ROOT, set).map(drop);
        });
        done
    };
    call.make(fs, &mut |effect| {
        if row == Row::Before {
            row_alone()?;
        }
        let mut done = Ok(());
        match row {
            Row::WithItsEffect => fs.numbered(request(number), &mut || done = effect()),
            Row::Before | Row::After => done = effect(),
        }
        if row == Row::After && done.is_ok() {
            row_alone()?;
        }
        done
    })
}

/// What is found at one moment.
#[derive(Debug)]
struct State {
    tree: TreeDump,
    rows: Vec<Option<RequestDone>>,
}

fn state(fs: &VarveFs) -> State {
    let rows = (0..SLOTS as u32).map(|slot| fs.request_done(CLIENT, slot).unwrap()).collect();
    State { tree: tree(fs).unwrap(), rows }
}

/// Syncs come after each such number of calls.
const SYNC_EVERY: u64 = 16;

fn open(env: &Arc<SimEnv>) -> VarveFs {
    open_tiny(env, MountOptions { atime: Atime::Noatime, ..MountOptions::default() }).unwrap()
}

fn formatted(seed: u64) -> (Arc<SimEnv>, VarveFs) {
    let env = SimEnv::new(seed);
    Store.format(&env).unwrap();
    let fs = open(&env);
    fs.set_limits(ROOT, TreeLimits { bytes: Some(1 << 30), inodes: None }).unwrap();
    fs.remember_client(CLIENT).unwrap();
    fs.sync().unwrap();
    (env, fs)
}

/// What has been explored.
#[derive(Debug, Default)]
struct Tally {
    points: u64,
    images: u64,
    /// States found with a request that was done and not answered.
    ahead: u64,
    /// Rows by what they say a request gave.
    gave: [u64; 3],
    /// Rows by the kind of the call.
    kinds: [u64; KINDS as usize],
}

/// The states before the first call and after each.
fn states(seed: u64, script: &[Call], row: Row, tally: &mut Tally) -> Vec<State> {
    // What is read between the calls writes nothing, and ids do not depend on it.
    let (_env, fs) = formatted(seed);
    let mut states = vec![state(&fs)];
    for (number, call) in (1..).zip(script) {
        let made = make(&fs, number, *call, row);
        let now = state(&fs);
        let done = now.rows[request(number).slot as usize].filter(|done| done.number == number);
        if made.is_err() && row == Row::WithItsEffect {
            assert!(done.is_none(), "a call that failed left a row: {made:?}, kind {}", call.kind);
        }
        if let Some(done) = done {
            tally.kinds[call.kind as usize] += 1;
            tally.gave[match done.gave {
                Gave::Nothing => 0,
                Gave::Inode(_) => 1,
                Gave::Written(_) => 2,
            }] += 1;
        } else if row == Row::WithItsEffect {
            let before = &states[states.len() - 1].tree;
            let changed = before.differences(&now.tree, Times::Ignore);
            assert!(changed.is_empty(), "kind {} changed without a row: {changed:?}", call.kind);
        }
        states.push(now);
        if number.is_multiple_of(SYNC_EVERY) {
            fs.sync().unwrap();
        }
    }
    states
}

/// Explores the crashes of one script; an error says what was wrong.
fn explore(seed: u64, calls: usize, row: Row, tally: &mut Tally) -> Result<(), String> {
    let script = script(seed, calls);
    let states = states(seed, &script, row, tally);
    let (env, fs) = formatted(seed);
    let begin = env.op_count();
    run(&fs, &script, row);
    for point in begin..env.op_count() {
        let (env, fs) = formatted(seed);
        env.crash_after(point);
        let (acknowledged, synced) = run(&fs, &script, row);
        tally.points += 1;
        let images = [
            (env.power_cut_keep_nothing(), synced),
            (env.power_cut_keep_all(), synced),
            (env.power_cut(point), synced),
            (env.process_kill_within(point), acknowledged),
        ];
        drop(fs);
        for (image, (env, at_least)) in images.into_iter().enumerate() {
            tally.images += 1;
            let fs = open(&env);
            let last = last_call(&fs, &states, at_least)
                .and_then(|last| {
                    let done = (0..SLOTS as u32).map(|slot| fs.request_done(CLIENT, slot).unwrap());
                    let done = done.flatten().map(|done| done.number).max();
                    tally.ahead += u64::from(done > Some(acknowledged as u64));
                    // The client repeats what it has no answer to, and makes the calls that a power cut has taken.
                    repeat(&fs, &script, last.min(acknowledged), row, &states[calls].tree)
                })
                .map_err(|what| format!("seed {seed}, operation {point}, image {image}: {what}"));
            last?;
        }
    }
    Ok(())
}

/// The last call whose effect and row are there; an error if they do not fit, or if it is not one of the first that are promised.
fn last_call(fs: &VarveFs, states: &[State], promised: usize) -> Result<usize, String> {
    let found = state(fs);
    let fits = |state: &State| {
        state.rows == found.rows && state.tree.differences(&found.tree, Times::Ignore).is_empty()
    };
    let last = states.iter().rposition(fits);
    let last = last.ok_or_else(|| format!("the rows {:?} do not fit the tree", found.rows))?;
    if last < promised {
        return Err(format!("call {last} is the last, {promised} are promised"));
    }
    if fs.remembered_clients().unwrap() != [CLIENT] {
        return Err("the client is forgotten".to_owned());
    }
    let report = fs.check(&mut |_| ()).unwrap();
    if report.is_clean() { Ok(last) } else { Err(format!("{:?}", report.findings)) }
}

/// Makes the calls of a script after the first `from`, but those that were done; `end` must come of it.
fn repeat(
    fs: &VarveFs,
    script: &[Call],
    from: usize,
    row: Row,
    end: &TreeDump,
) -> Result<(), String> {
    for (number, call) in (from as u64 + 1..).zip(&script[from..]) {
        if done(fs, number).is_none_or(|done| done.number < number) {
            // Some fail, as they did before.
            let _ = make(fs, number, *call, row);
        }
    }
    let differ = end.differences(&tree(fs).unwrap(), Times::Ignore);
    if differ.is_empty() { Ok(()) } else { Err(format!("after the repetitions {differ:?}")) }
}

/// Runs a script until the machine crashes; how many calls were answered, and of those synced.
fn run(fs: &VarveFs, script: &[Call], row: Row) -> (usize, usize) {
    let mut synced = 0;
    for (at, call) in script.iter().enumerate() {
        let number = at as u64 + 1;
        match make(fs, number, *call, row) {
            Err(FsError::Storage(_)) => return (at, synced),
            _ if number.is_multiple_of(SYNC_EVERY) => match fs.sync() {
                Ok(()) => synced = at + 1,
                Err(_) => return (at + 1, synced),
            },
            _ => {}
        }
    }
    (script.len(), synced)
}

#[test]
fn an_effect_is_there_if_and_only_if_its_row_is() {
    let mut tally = Tally::default();
    for seed in 0..10 {
        explore(seed, 70, Row::WithItsEffect, &mut tally).unwrap_or_else(|what| panic!("{what}"));
    }
    println!("{tally:?}");
    assert!(tally.points > 1000 && tally.ahead > 0, "{tally:?}");
    assert!(tally.gave.iter().all(|count| *count > 20), "{tally:?}");
    assert!(tally.kinds.iter().all(|count| *count > 0), "{tally:?}");
}

#[test]
fn canary_a_row_in_a_batch_of_its_own_is_noticed() {
    for row in [Row::Before, Row::After] {
        let noticed = (0..4).any(|seed| explore(seed, 70, row, &mut Tally::default()).is_err());
        assert!(noticed);
    }
}

/// A row as a call that changed nothing but one name leaves it.
fn made(rig: &Rig, number: u64, text: &str) -> InodeId {
    let mut made = None;
    rig.numbered(request(number), &mut || {
        made = Some(rig.mkdir(Caller::ROOT, ROOT, name(text), 0o755).unwrap().attr.ino);
    });
    made.unwrap()
}

fn done(fs: &VarveFs, number: u64) -> Option<RequestDone> {
    fs.request_done(CLIENT, request(number).slot).unwrap()
}

#[test]
fn a_row_says_what_the_call_gave_and_lasts_until_the_client_is_forgotten() {
    let rig = Rig::new();
    let other = ClientId::new(7);
    assert_eq!(rig.remembered_clients().unwrap(), []);
    rig.forget_client(other).unwrap();
    for client in [CLIENT, other] {
        rig.remember_client(client).unwrap();
        rig.remember_client(client).unwrap();
    }
    let ino = made(&rig, 1, "d");
    let file = rig.mk(ROOT, "f");
    let handle = rig.open_as(file, OpenFlags { append: true, ..WRITE });
    for number in [2, 3] {
        rig.numbered(request(number), &mut || {
            rig.write(file, handle, 0, b"twelve bytes", true).unwrap();
        });
    }
    // Of other calls nothing is noted, nor of one that fails.
    rig.mk(ROOT, "not numbered");
    rig.numbered(RequestId { number: 9, ..request(1) }, &mut || {
        rig.mkdir(Caller::ROOT, ROOT, name("d"), 0o755).unwrap_err();
    });
    let check = |rig: &Rig| {
        let gave = done(rig, 1).map(|done| (done.number, done.gave));
        assert_eq!(gave, Some((1, Gave::Inode(ino))));
        for (number, at) in [(2, 0), (3, 12)] {
            let Some(RequestDone { number: noted, gave: Gave::Written(written) }) =
                done(rig, number)
            else {
                panic!("no write is noted")
            };
            assert_eq!((noted, written.offset, written.bytes), (number, at, 12));
        }
        assert_eq!(rig.remembered_clients().unwrap(), [other, CLIENT]);
        assert!(rig.check(&mut |_| ()).unwrap().is_clean());
    };
    check(&rig);
    let rig = rig.after_death();
    check(&rig);
    let rig = rig.remount();
    check(&rig);
    rig.forget_client(CLIENT).unwrap();
    assert!((1..4).all(|number| done(&rig, number).is_none()));
    assert_eq!(rig.remembered_clients().unwrap(), [other]);
    let rig = rig.after_death();
    assert!((1..4).all(|number| done(&rig, number).is_none()));
    assert_eq!(rig.remembered_clients().unwrap(), [other]);
}

/// What was done stays done: a rollback takes back the effect, which somebody else asked for, but not that the request was
/// answered. Transactions neither see rows nor leave any.
#[test]
fn rows_are_no_part_of_snapshots_and_transactions() {
    let rig = Rig::new();
    made(&rig, 1, "before");
    rig.create_snapshot("s").unwrap();
    made(&rig, 4, "after");
    let txn = rig.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = rig.open_view(&txn).unwrap();
    assert_eq!(done(&view, 1), None);
    view.numbered(request(7), &mut || {
        view.mkdir(Caller::ROOT, ROOT, name("in the transaction"), 0o755).unwrap();
    });
    assert_eq!(done(&view, 1), None);
    assert!(view.remember_client(CLIENT).is_err());
    rig.commit_transaction(&txn.name, &view).unwrap();
    drop(view);
    assert!(rig.find(ROOT, "in the transaction").is_ok());
    assert_eq!(done(&rig, 1).map(|done| done.number), Some(4));
    rig.roll_back("s").unwrap();
    assert!(rig.find(ROOT, "after").is_err() && rig.find(ROOT, "before").is_ok());
    assert_eq!(done(&rig, 1).map(|done| done.number), Some(4));
    assert!(rig.check(&mut |_| ()).unwrap().is_clean());
    let (dumped, rig) = rig.dumped();
    let dumped = String::from_utf8(dumped.unwrap()).unwrap();
    assert!(dumped.contains("before") && !dumped.contains("requests"));
    assert_eq!(done(&rig, 1).map(|done| done.number), Some(4));
}

#[test]
fn unreadable_rows_are_found_and_set_aside() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = crash::open(&env);
    fs.remember_client(CLIENT).unwrap();
    fs.numbered(request(1), &mut || {
        fs.mk_dir(ROOT, "d");
    });
    fs.close().unwrap();
    let keys = [RequestsKey::Client(CLIENT), RequestsKey::Slot(CLIENT, request(1).slot)];
    let rows = Rows::open(&env);
    let options = KeyspaceOptions { prefixed: false, compressed: false };
    let space = rows.db.keyspace(REQUESTS, options).unwrap();
    let mut batch = Batch::new();
    keys.iter().for_each(|key| batch.put(space, key.to_bytes(), vec![1, 99]));
    batch.put(space, b"no key", vec![1]);
    rows.db.write(batch).unwrap();
    rows.close();
    let fs = crash::open(&env);
    assert!(matches!(fs.request_done(CLIENT, request(1).slot), Err(FsError::Damaged(_))));
    assert!(matches!(fs.remembered_clients(), Err(FsError::Damaged(_))));
    fs.close().unwrap();
    let found = check(&env).findings;
    let of = |unreadable: bool| {
        let is_it = |finding: &&Finding| match finding {
            Finding::UnreadableRow { keyspace, .. } => unreadable && *keyspace == REQUESTS,
            Finding::UnknownRow { keyspace, .. } => !unreadable && *keyspace == REQUESTS,
            _ => false,
        };
        found.iter().filter(is_it).count()
    };
    assert_eq!((of(true), of(false), found.len()), (2, 1, 3), "{found:?}");
    repair(&env);
    assert_eq!(check(&env).findings, []);
    let fs = crash::open(&env);
    assert_eq!(fs.request_done(CLIENT, request(1).slot).unwrap(), None);
    assert_eq!(fs.remembered_clients().unwrap(), []);
}

/// A repair that finds tables and no manifest knows key spaces by their order alone, and a store may have got that of requests after
/// those of dictionaries.
#[test]
fn rows_and_pairs_are_told_apart_without_a_manifest() {
    let env = sim_store(1, &FormatOptions::default());
    let pair = |value: &'static [u8]| vec![(Bytes::from_static(b"key"), Some(value.into()))];
    let fs = crash::open(&env);
    fs.dictionaries().create(b"one").unwrap();
    fs.dictionaries().change(b"one", pair(b"of one")).unwrap();
    fs.remember_client(CLIENT).unwrap();
    fs.numbered(request(1), &mut || {
        fs.mk_dir(ROOT, "d");
    });
    fs.dictionaries().create(b"two").unwrap();
    fs.dictionaries().change(b"two", pair(b"of two")).unwrap();
    fs.close().unwrap();
    let rows = Rows::open(&env);
    rows.db.flush().unwrap();
    rows.close();
    for path in env.files_raw() {
        let name = path.file_name().unwrap().to_string_lossy();
        if name.starts_with("MANIFEST") || name.starts_with("CURRENT") {
            env.remove_raw(&path).unwrap();
        }
    }
    let dyn_env: Arc<dyn Env> = env.clone();
    repair_engine(&dyn_env, Path::new(STORE), &CheckOptions::default()).unwrap();
    repair(&env);
    let fs = crash::open(&env);
    for (dictionary, value) in [(b"one", b"of one"), (b"two", b"of two")] {
        let found = fs.dictionaries().get(dictionary, b"key");
        assert_eq!(found.unwrap(), Some(Bytes::from_static(value)));
    }
    assert_eq!(done(&fs, 1).map(|done| done.number), Some(1));
    assert_eq!(fs.remembered_clients().unwrap(), [CLIENT]);
}
