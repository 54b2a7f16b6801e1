//! Snapshots of random trees with random changes between them: what is told of two states, against a comparison of both.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::{
    ChangeKind, CommitError, Diff, FormatOptions, MountOptions, ROLL_BACK_PHASES, RollBackError,
    TransactionOptions, VarveFs, ViewKind, ViewName,
};
use varve_testkit::fsops::{
    Generator, NodeDump, Session, Times, TreeDump, TreePath, Universe, tree,
};
use varve_testkit::rng::Rng;
use varve_types::InodeId;
use varve_vfs::{Caller, FileType, FsError, Vfs, XattrMode};

use crate::bench::Rows;
use crate::crash::{STORE, sim_store};
use crate::support::{BOTH, Calls, ROOT, name};
use crate::views::sound;

/// Names with what they stand for.
struct Seen {
    /// By directory and name: the inode, and the path.
    names: BTreeMap<(InodeId, Vec<u8>), (InodeId, PathBuf)>,
    nodes: BTreeMap<InodeId, NodeDump>,
}

fn path_of(path: &TreePath) -> PathBuf {
    let names = path.0.iter().map(|name| OsStr::from_bytes(name));
    Path::new("/").join(names.collect::<PathBuf>())
}

fn seen(fs: &VarveFs) -> Seen {
    let (mut names, mut nodes) = (BTreeMap::new(), BTreeMap::new());
    for (path, node) in tree(fs).unwrap().0 {
        let mut at = (ROOT, ROOT);
        for name in &path.0 {
            let name = varve_types::FileName::new(name).unwrap();
            let ino = fs.lookup(at.1, name).unwrap().attr.ino;
            fs.forget(ino, 1);
            at = (at.1, ino);
        }
        if let Some(name) = path.0.last() {
            names.insert((at.0, name.clone()), (at.1, path_of(&path)));
        }
        nodes.insert(at.1, node);
    }
    Seen { names, nodes }
}

/// What of a node is told when it differs.
fn compared(node: &NodeDump) -> NodeDump {
    let mut node = NodeDump { nlink: 0, first_path: TreePath::default(), ..node.clone() };
    node.times = [node.times[0], node.times[2], node.times[2]];
    if node.kind == FileType::Directory {
        node.times[0] = node.times[2];
        node.size = 0;
    }
    node
}

/// Checks that `diff` tells every difference of two states, and no name that neither came nor went.
fn check(before: &Seen, after: &Seen, diff: &Diff) {
    assert!(diff.complete);
    let paths_of = |these: &Seen, those: &Seen| -> BTreeSet<PathBuf> {
        let gone = these.names.iter().filter(|(name, _)| !those.names.contains_key(name));
        gone.map(|(_, (_, path))| path.clone()).collect()
    };
    let told = |kind| {
        let of_kind = diff.changes.iter().filter(move |change| change.change == kind);
        of_kind.map(|change| change.path.clone())
    };
    let renamed = diff.changes.iter().filter(|change| change.change == ChangeKind::Renamed);
    let from = renamed.map(|change| change.from.clone().unwrap());
    let removed: BTreeSet<PathBuf> = told(ChangeKind::Removed).chain(from).collect();
    assert_eq!(removed, paths_of(before, after), "{diff:?}");
    let added = told(ChangeKind::Added).chain(told(ChangeKind::Renamed));
    assert_eq!(added.collect::<BTreeSet<_>>(), paths_of(after, before), "{diff:?}");
    let changed: BTreeSet<PathBuf> = told(ChangeKind::Changed).collect();
    let mut changed_inodes = BTreeSet::new();
    for (name, (ino, path)) in &after.names {
        // What was elsewhere, where another file is now, counts as added.
        if changed.contains(path) || told(ChangeKind::Added).any(|added| added == *path) {
            changed_inodes.insert(*ino);
        }
        if let Some((other, _)) = before.names.get(name) {
            assert!(ino == other || changed.contains(path), "{path:?} is another file: {diff:?}");
        }
    }
    for (ino, node) in &after.nodes {
        let Some(was) = before.nodes.get(ino) else { continue };
        let is_told =
            changed_inodes.contains(ino) || (*ino == ROOT && changed.contains(Path::new("/")));
        let differs = compared(was) != compared(node);
        assert!(is_told || !differs, "{ino} is {node:?}, was {was:?}: {diff:?}");
    }
}

pub(crate) fn open_with(env: &Arc<SimEnv>, options: MountOptions) -> VarveFs {
    let env: Arc<dyn Env> = env.clone();
    VarveFs::open(env, Path::new(STORE), options).unwrap()
}

/// Little memory, so that tables are made and merged.
fn tight() -> MountOptions {
    MountOptions { memory_budget_bytes: 1 << 19, ..MountOptions::default() }
}

/// Random operations on a file system, with files that stay open.
pub(crate) struct Work {
    generator: Generator,
    session: Session,
}

impl Work {
    pub(crate) fn new(seed: u64) -> Work {
        Work::with_clones(seed, 0)
    }

    fn with_clones(seed: u64, clones_percent: u64) -> Work {
        let universe = Universe { clones_percent, ..Universe::default() };
        Work { generator: Generator::new(seed, universe), session: Session::default() }
    }

    pub(crate) fn run(&mut self, fs: &VarveFs, ops: u64) {
        for _ in 0..ops {
            let op = self.generator.next_op();
            if self.session.apply(fs, &op).answer.is_ok() {
                self.generator.observe(&op);
            }
        }
    }

    pub(crate) fn release_all(&mut self, fs: &VarveFs) {
        self.session.release_all(fs).unwrap();
    }
}

pub(crate) fn view(fs: &VarveFs, name: &str) -> VarveFs {
    fs.open_view(&ViewName { kind: ViewKind::Snapshot, name: name.to_owned() }).unwrap()
}

#[test]
fn what_changed_between_snapshots_is_what_differs() {
    for seed in 0..16 {
        let low = FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
        let env = sim_store(seed, &if seed % 2 == 0 { low } else { FormatOptions::default() });
        let mut fs = open_with(&env, tight());
        let (mut work, mut states, mut rng) = (Work::new(seed), Vec::new(), Rng::new(seed));
        for round in 0..5 {
            work.run(&fs, 20 + rng.below(150));
            let name = format!("{round}");
            fs.create_snapshot(&name).unwrap();
            states.push((Some(name.clone()), seen(&view(&fs, &name))));
            if rng.below(4) == 0 {
                let gone = states.remove(rng.below(states.len() as u64) as usize);
                fs.delete_snapshot(&gone.0.unwrap()).unwrap();
            }
            if rng.below(2) == 0 {
                work.release_all(&fs);
                fs.close().unwrap();
                fs = open_with(&env, tight());
            }
        }
        work.run(&fs, 60);
        states.push((None, seen(&fs)));
        for (at, (from, before)) in states.iter().enumerate() {
            let Some(from) = from else { continue };
            for (to, after) in &states[at..] {
                let diff = fs.snapshot_diff(from, to.as_deref()).unwrap();
                check(before, after, &diff);
                if to.as_deref() == Some(from) {
                    assert_eq!(diff.changes, []);
                } else if let Some(to) = to {
                    let reversed = fs.snapshot_diff(to, Some(from));
                    assert!(matches!(reversed, Err(FsError::Invalid(_))), "{reversed:?}");
                }
            }
        }
        assert!(matches!(fs.snapshot_diff("none", None), Err(FsError::NotFound)));
    }
}

/// Both trees are the same, with the same inode numbers and times.
pub(crate) fn same(one: &VarveFs, other: &VarveFs) {
    let differences = tree(one).unwrap().differences(&tree(other).unwrap(), Times::Compare);
    assert_eq!(differences, Vec::<String>::new());
    let (one, other) = (seen(one), seen(other));
    assert_eq!(one.names, other.names);
}

/// Rollbacks between random operations, of which so many percent clone; gives how many met files in use.
fn roll_back_and_forth(seeds: Range<u64>, clones_percent: u64) -> u32 {
    let mut in_use = 0;
    for seed in seeds {
        let low = FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
        let env = sim_store(seed, &if seed % 2 == 0 { low } else { FormatOptions::default() });
        let mut fs = open_with(&env, tight());
        let mut work = Work::with_clones(seed, clones_percent);
        let (mut states, mut rng) = (Vec::new(), Rng::new(seed));
        for round in 0..6 {
            work.run(&fs, 20 + rng.below(150));
            fs.create_snapshot(&format!("{round}")).unwrap();
            states.push((format!("{round}"), tree(&view(&fs, &format!("{round}"))).unwrap()));
            work.run(&fs, rng.below(100));
            let (name, _) = &states[rng.below(states.len() as u64) as usize];
            let done = fs.roll_back(name);
            if let Err(error) = done {
                let RollBackError::NotCommitted(CommitError::InUse(paths)) = error else {
                    panic!("{error:?}");
                };
                assert!(!paths.is_empty());
                in_use += 1;
                work.release_all(&fs);
                fs.roll_back(name).unwrap();
            }
            let (now, then) = (tree(&fs).unwrap(), tree(&view(&fs, name)).unwrap());
            assert_eq!(now.differences(&then, Times::Compare), Vec::<String>::new(), "seed {seed}");
            // Files of several names in clones may get other numbers.
            if clones_percent == 0 {
                assert_eq!(seen(&fs).names, seen(&view(&fs, name)).names);
            }
            // Large files that were being written to when the snapshot was made may be told.
            let told = fs.roll_back_diff(name).unwrap().changes;
            assert!(told.iter().all(|told| told.change == ChangeKind::Changed), "{told:?}");
            sound(&fs);
            for (name, then) in &states {
                let now = tree(&view(&fs, name)).unwrap();
                assert_eq!(then.differences(&now, Times::Compare), Vec::<String>::new());
            }
            if rng.below(2) == 0 {
                work.release_all(&fs);
                fs.close().unwrap();
                fs = open_with(&env, tight());
                sound(&fs);
            }
        }
    }
    in_use
}

#[test]
fn a_rollback_brings_back_what_the_snapshot_is() {
    assert!(roll_back_and_forth(100..116, 0) > 0);
}

#[test]
fn a_rollback_brings_back_what_the_snapshot_is_with_clones() {
    roll_back_and_forth(200..212, 8);
}

/// A file that had no name when the snapshot was made and got one since left its bytes behind: a rollback removed only those of its
/// rows that had changed.
#[test]
fn a_file_that_got_its_name_after_the_snapshot_goes_with_all_of_its_rows() {
    let fs = open_with(&sim_store(91, &FormatOptions::default()), MountOptions::default());
    for (text, open_at_rollback) in [("closed", false), ("open", true)] {
        let (entry, opened) = fs.tmpfile(Caller::ROOT, ROOT, 0o600, BOTH).unwrap();
        let ino = entry.attr.ino;
        fs.write(ino, opened.handle, 0, &[7; 20_000], false).unwrap();
        fs.setxattr(ino, b"user.a", b"1", XattrMode::Set).unwrap();
        fs.create_snapshot(text).unwrap();
        fs.link(ino, ROOT, name(text)).unwrap();
        if !open_at_rollback {
            fs.release(ino, opened.handle).unwrap();
            fs.forget(ino, 2);
        }
        fs.roll_back(text).unwrap();
        assert!(matches!(fs.lookup(ROOT, name(text)), Err(FsError::NotFound)));
        sound(&fs);
        if open_at_rollback {
            assert_eq!(fs.read(ino, opened.handle, 0, 3).unwrap(), [7; 3][..]);
            fs.release(ino, opened.handle).unwrap();
        }
    }
    sound(&fs);
}

#[test]
fn a_rollback_tells_how_far_it_is() {
    let fs = open_with(&sim_store(90, &FormatOptions::default()), MountOptions::default());
    let large = ["one", "two"].map(|name| fs.mk(ROOT, name));
    large.iter().for_each(|ino| fs.put_at(*ino, 0, &[1; 100_000]));
    for n in 0..2000 {
        fs.mk(ROOT, &format!("{n}"));
    }
    fs.create_snapshot("then").unwrap();
    large.iter().for_each(|ino| fs.put_at(*ino, 0, &[2; 10]));
    (0..2000).for_each(|n| fs.mv(ROOT, &format!("{n}"), ROOT, &format!("new {n}")).unwrap());
    let mut told = Vec::new();
    fs.roll_back_watched("then", &mut |at| told.push((at.phase, at.done, at.permille))).unwrap();
    let [rows, files, changes] = ROLL_BACK_PHASES;
    let (parts, last) = told.split_at(told.len() - 3);
    let expected: Vec<_> = (0..parts.len()).map(|n| (rows, n as u64 * 1024, None)).collect();
    assert_eq!(parts, expected);
    let (_, all, _) = last[2];
    assert_eq!(last, [(files, 0, Some(0)), (files, 1, Some(500)), (changes, all, None)]);
    assert!(all > 4000 && all.div_ceil(1024) == parts.len() as u64, "{told:?}");
}

/// A store with a snapshot and changes after it, to small and large files and to a dictionary.
fn changed_store(seed: u64) -> (Arc<SimEnv>, VarveFs) {
    let env = sim_store(seed, &FormatOptions::default());
    let fs = open_with(&env, MountOptions::default());
    let dir = fs.mk_dir(ROOT, "dir");
    for (name, len) in [("large", 70_000), ("gone", 70_000), ("small", 100), ("same", 50)] {
        let ino = fs.mk(dir, name);
        fs.put_at(ino, 0, &vec![1; len]);
    }
    fs.dictionaries().create(b"pairs").unwrap();
    fs.dictionaries().change(b"pairs", vec![("key".into(), Some("then".into()))]).unwrap();
    fs.sync().unwrap();
    fs.create_snapshot("before").unwrap();
    fs.put_at(fs.find(dir, "large").unwrap().ino, 10, b"changed");
    fs.put_at(fs.find(dir, "small").unwrap().ino, 0, &vec![2; 70_000]);
    fs.unlink(dir, name("gone")).unwrap();
    let made = fs.mk_dir(ROOT, "made");
    let new = fs.mk(made, "new");
    fs.put_at(new, 0, &vec![3; 70_000]);
    fs.dictionaries().change(b"pairs", vec![("key".into(), Some("now".into()))]).unwrap();
    fs.dictionaries().create(b"later").unwrap();
    fs.sync().unwrap();
    (env, fs)
}

/// Whether a store is as it was before the changes; it is as after them otherwise.
fn is_before(fs: &VarveFs, before: &TreeDump, after: &TreeDump) -> bool {
    let now = tree(fs).unwrap();
    let is_before = before.differences(&now, Times::Compare).is_empty();
    let pairs = fs.dictionaries().get(b"pairs", b"key").unwrap();
    let names = fs.dictionaries().list().unwrap().len();
    if is_before {
        assert_eq!((pairs.as_deref(), names), (Some(&b"then"[..]), 1));
    } else {
        assert_eq!(after.differences(&now, Times::Compare), Vec::<String>::new());
        assert_eq!((pairs.as_deref(), names), (Some(&b"now"[..]), 2));
    }
    is_before
}

/// A large file that a rollback had made small again lost its bytes when it grew at once, as its old object was still to be
/// removed.
fn grows(fs: &VarveFs) {
    let small = fs.find(fs.find(ROOT, "dir").unwrap().ino, "small").unwrap().ino;
    fs.put_at(small, 0, &[5; 70_000]);
    fs.sync().unwrap();
    assert!(fs.contents(small) == [5; 70_000]);
    sound(fs);
}

#[test]
fn every_crash_of_a_rollback_leaves_all_of_it_or_nothing() {
    let (mut whole, mut absent) = (0, 0);
    for n in 0.. {
        let (env, fs) = changed_store(n);
        let (before, after) = (tree(&view(&fs, "before")).unwrap(), tree(&fs).unwrap());
        env.crash_after(n);
        let done = fs.roll_back("before");
        let crashed = env.crashed();
        assert!(crashed || done.is_ok(), "{done:?}");
        for image in [
            env.process_kill_within(n),
            env.power_cut_keep_nothing(),
            env.power_cut_keep_all(),
            env.power_cut(n),
        ] {
            let fs = open_with(&image, MountOptions::default());
            assert_eq!(fs.transactions().unwrap().len(), 0);
            sound(&fs);
            let rolled = is_before(&fs, &before, &after);
            assert!(rolled || done.is_err(), "a rollback that returned is lost");
            if rolled {
                whole += 1
            } else {
                absent += 1
            }
            let kept = tree(&view(&fs, "before")).unwrap();
            assert_eq!(before.differences(&kept, Times::Compare), Vec::<String>::new());
            grows(&fs);
            fs.roll_back("before").unwrap();
            assert!(is_before(&fs, &before, &after));
            grows(&fs);
            fs.roll_back("before").unwrap();
            sound(&fs);
        }
        if !crashed {
            break;
        }
    }
    assert!(whole > 20 && absent > 20, "{whole} whole, {absent} absent");
}

#[test]
fn a_rollback_that_meets_a_full_disk_or_a_dropped_dictionary_changes_nothing() {
    let (env, fs) = changed_store(1);
    let (before, after) = (tree(&view(&fs, "before")).unwrap(), tree(&fs).unwrap());
    let mut refused = 0;
    for room in 0..20 {
        env.set_capacity(env.used_bytes() + room * 8192);
        let done = fs.roll_back("before");
        env.set_capacity(u64::MAX);
        if done.is_ok() {
            break;
        }
        refused += 1;
        assert!(!is_before(&fs, &before, &after));
        sound(&fs);
    }
    assert!(refused > 0);
    fs.roll_back("before").unwrap();
    assert!(is_before(&fs, &before, &after));
    fs.dictionaries().remove(b"pairs").unwrap();
    let done = fs.roll_back("before");
    assert!(matches!(&done, Err(RollBackError::Dropped(names)) if names == &["pairs"]), "{done:?}");
}

fn clone(fs: &VarveFs, of: (InodeId, &str), to: (InodeId, &str)) -> InodeId {
    let original = varve_fs::Original { snapshot: None, dir: of.0, name: Some(name(of.1)) };
    fs.do_clone(original, to.0, name(to.1)).unwrap()
}

/// What may become of a clone after a snapshot, each tried alone and all one after the other.
const DEEDS: &[fn(&VarveFs, InodeId)] = &[
    |fs, clone| drop(fs.list(clone)),
    |fs, clone| {
        let sub = fs.find(clone, "sub").unwrap().ino;
        fs.put_at(fs.find(sub, "deep").unwrap().ino, 0, b"another");
        fs.put_at(fs.find(clone, "large").unwrap().ino, 9, b"another");
        fs.put_at(fs.find(clone, "small").unwrap().ino, 0, &[9; 90_000]);
    },
    |fs, clone| {
        // What was looked up stays known, and its directory is empty.
        let sub = fs.find(clone, "sub").unwrap().ino;
        fs.find(sub, "deep").unwrap();
        fs.unlink(sub, name("deep")).unwrap();
        assert!(fs.list(sub).is_empty());
    },
    |fs, clone| {
        fs.mv(clone, "small", ROOT, "small").unwrap();
        fs.put_at(fs.find(ROOT, "small").unwrap().ino, 0, b"elsewhere");
    },
    |fs, clone| {
        remove_tree(fs, clone);
        fs.rmdir(ROOT, name("clone")).unwrap();
    },
];

fn remove_tree(fs: &VarveFs, dir: InodeId) {
    for text in fs.list(dir) {
        let found = fs.find(dir, &text).unwrap();
        if found.kind == FileType::Directory {
            remove_tree(fs, found.ino);
            fs.rmdir(dir, name(&text)).unwrap();
            // As the kernel does, unless somebody is in it. Files stay known.
            fs.forget(found.ino, u64::MAX);
        } else {
            fs.unlink(dir, name(&text)).unwrap();
        }
    }
}

/// A store with a clone in which nobody has looked, and a snapshot of that; what was cloned changes afterwards.
fn folded_store() -> (Arc<SimEnv>, VarveFs, InodeId) {
    let env = sim_store(3, &FormatOptions::default());
    let fs = open_with(&env, MountOptions::default());
    let dir = fs.mk_dir(ROOT, "dir");
    for (text, len) in [("large", 70_000), ("small", 100), ("medium", 30_000)] {
        let ino = fs.mk(dir, text);
        fs.put_at(ino, 0, &vec![1; len]);
    }
    let sub = fs.mk_dir(dir, "sub");
    let ino = fs.mk(sub, "deep");
    fs.put_at(ino, 0, &[2; 5000]);
    let made = clone(&fs, (ROOT, "dir"), (ROOT, "clone"));
    fs.create_snapshot("folded").unwrap();
    fs.put_at(fs.find(dir, "large").unwrap().ino, 0, b"later");
    (env, fs, made)
}

#[test]
fn a_rollback_over_clones_brings_them_back_too() {
    for from in 0..DEEDS.len() {
        for until in [from + 1, DEEDS.len()] {
            let (env, fs, made) = folded_store();
            for deed in &DEEDS[from..until] {
                deed(&fs, made);
            }
            fs.create_snapshot("after").unwrap();
            let after = tree(&fs).unwrap();
            let mut fs = fs;
            for round in 0..2 {
                fs.roll_back("folded").unwrap();
                sound(&fs);
                same(&fs, &view(&fs, "folded"));
                let large = fs.find(made, "large").unwrap().ino;
                assert!(fs.contents(large) == [1; 70_000], "{from}..{until}");
                fs.put_at(large, 1, b"own");
                let sub = fs.find(made, "sub").unwrap().ino;
                assert!(fs.contents(fs.find(sub, "deep").unwrap().ino) == [2; 5000]);
                fs.roll_back("after").unwrap();
                sound(&fs);
                let now = tree(&fs).unwrap();
                assert_eq!(after.differences(&now, Times::Compare), [""; 0], "{from}..{until}");
                if round == 0 {
                    fs.close().unwrap();
                    fs = open_with(&env, MountOptions::default());
                }
            }
        }
    }
}

#[test]
fn clones_made_since_a_snapshot_go_with_a_rollback_and_let_go_of_what_they_read_from() {
    let (env, fs) = changed_store(1);
    let before = tree(&view(&fs, "before")).unwrap();
    let made = clone(&fs, (ROOT, "dir"), (ROOT, "clone"));
    let again = clone(&fs, (ROOT, "clone"), (made, "again"));
    let open = fs.find(again, "large").unwrap().ino;
    fs.roll_back("before").unwrap();
    assert_eq!(before.differences(&tree(&fs).unwrap(), Times::Compare), [""; 0]);
    // The kernel still knows it, and so it reads on.
    assert_eq!(fs.contents(open).len(), 70_000);
    fs.forget(open, 1);
    sound(&fs);
    fs.mk(ROOT, "afterwards");
    fs.close().unwrap();
    let rows = Rows::open(&env);
    assert_eq!(rows.db.snapshots().len(), 1);
    rows.close();
}

/// A clone that nobody has looked at goes and comes back at the cost of a few rows, however large it is.
#[test]
fn a_rollback_over_an_unseen_clone_costs_the_same_however_large_it_is() {
    let mut written = Vec::new();
    for files in [10, 3000] {
        let env = sim_store(1, &FormatOptions::default());
        let fs = open_with(&env, MountOptions::default());
        let dir = fs.mk_dir(ROOT, "dir");
        for i in 0..files {
            fs.mk(dir, &format!("{i}"));
        }
        fs.create_snapshot("without").unwrap();
        let made = clone(&fs, (ROOT, "dir"), (ROOT, "clone"));
        fs.create_snapshot("with").unwrap();
        let rows = || {
            let status: serde_json::Value = serde_json::from_str(&fs.status_json()).unwrap();
            status["engine"]["counters"]["writes"].as_u64().unwrap()
        };
        let begun = rows();
        fs.roll_back("without").unwrap();
        fs.roll_back("with").unwrap();
        written.push(rows() - begun);
        assert_eq!(fs.list(made).len(), files);
        sound(&fs);
    }
    assert!(written[1] < written[0] + 10, "{written:?}");
}

/// A large file that is open for writing in both states has the same row in both.
#[test]
fn a_large_file_that_is_still_being_written_is_told() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open_with(&env, MountOptions::default());
    let ino = fs.mk(ROOT, "large");
    fs.put_at(ino, 0, &vec![1; 100_000]);
    let handle = fs.open_as(ino, crate::support::BOTH);
    fs.create_snapshot("one").unwrap();
    fs.write(ino, handle, 0, b"changed", false).unwrap();
    for to in [None, Some("two")] {
        if let Some(name) = to {
            fs.create_snapshot(name).unwrap();
        }
        let diff = fs.snapshot_diff("one", to).unwrap();
        let told: Vec<_> =
            diff.changes.iter().map(|change| (change.change, change.path.as_path())).collect();
        assert_eq!(told, [(ChangeKind::Changed, Path::new("/large"))]);
    }
    fs.release(ino, handle).unwrap();
}

/// Each link was looked for in all earlier snapshots, and all snapshots were looked through for each link.
#[test]
fn listing_the_snapshots_of_a_directory_costs_as_many_reads_as_there_are() {
    let reads = |snapshots: usize| {
        let env = sim_store(1, &FormatOptions::default());
        let fs = open_with(&env, MountOptions::default());
        let listing = |fs: &VarveFs, dir: InodeId| {
            let below = fs.find(dir, ".varve").unwrap().ino;
            fs.find(below, "snapshots").unwrap().ino
        };
        let old = fs.mk_dir(ROOT, "old");
        // Its id is older than all snapshots, and it is in none of them.
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let view = fs.open_view(&txn).unwrap();
        let late = view.mk_dir(ROOT, "late");
        (0..snapshots).for_each(|n| fs.create_snapshot(&format!("s{n:03}")).unwrap());
        fs.commit_transaction(&txn.name, &view).unwrap();
        let new = fs.mk_dir(ROOT, "new");
        assert_eq!(fs.list(listing(&fs, old)).len(), snapshots);
        [late, new].map(|dir| {
            let dir = listing(&fs, dir);
            let count = || ["gets", "scans"].map(|of| counter(&fs, of)).iter().sum::<u64>();
            // What is found out once is known from then on.
            fs.list(dir);
            let before = count();
            assert_eq!(fs.list(dir), [""; 0]);
            count() - before
        })
    };
    let (few, many) = (reads(20), reads(80));
    for (few, many) in few.into_iter().zip(many) {
        assert!(many <= 5 * few.max(1), "{few} reads for 20 snapshots, {many} for 80");
    }
}

/// All links were made for each piece of a listing.
#[test]
fn a_piece_of_a_listing_of_snapshots_costs_what_it_has() {
    const SNAPSHOTS: usize = 100;
    let env = sim_store(1, &FormatOptions::default());
    let fs = open_with(&env, MountOptions::default());
    let dir = fs.mk_dir(ROOT, "dir");
    let names: Vec<String> = (0..SNAPSHOTS).map(|n| format!("s{n:03}")).collect();
    names.iter().for_each(|name| fs.create_snapshot(name).unwrap());
    let below = fs.find(dir, ".varve").unwrap().ino;
    let listing = fs.find(below, "snapshots").unwrap().ino;
    let gets = || counter(&fs, "gets");
    let before = gets();
    assert_eq!(fs.list(listing), names);
    let whole = gets() - before;
    assert_eq!(fs.list_by(listing, 2), names);
    let pieces = gets() - before - whole;
    assert!(pieces <= 3 * whole, "{whole} reads at once, {pieces} in pieces");
}

fn counter(fs: &VarveFs, name: &str) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&fs.status_json()).unwrap();
    status["engine"]["counters"][name].as_u64().unwrap()
}
