//! Clones on a device without any room: what is in them is found and read although nobody has looked at it before, and they can be
//! removed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use varve_engine::Db;
use varve_engine::options::{CompactionPolicy, DbOptions};
use varve_env::Env;
use varve_env::sim::{RoomRules, SimEnv};
use varve_fs::fsck::Severity;
use varve_fs::{MountOptions, TransactionOptions, VarveFs, ViewKind, ViewName};
use varve_testkit::crash::Subject;
use varve_types::InodeId;
use varve_vfs::{Caller, FileType, FsError, Vfs, XattrMode};

use crate::crash::STORE;
use crate::crash_points::{Store, THRESHOLD_BYTES, tiny_engine};
use crate::support::{Calls, ROOT, name};

const DISK_BYTES: u64 = 8 << 20;
const LARGE_BYTES: usize = 3 * THRESHOLD_BYTES as usize;

fn open_with(env: &Arc<SimEnv>, memory_budget_bytes: usize) -> VarveFs {
    let engine = DbOptions {
        space_reserve_bytes: DISK_BYTES / 16,
        ..tiny_engine(CompactionPolicy::LazyLeveled)
    };
    let options = MountOptions { memory_budget_bytes, ..MountOptions::default() };
    let dyn_env: Arc<dyn Env> = Arc::clone(env) as _;
    VarveFs::open_with(dyn_env, Path::new(STORE), options, engine).unwrap()
}

fn open(env: &Arc<SimEnv>) -> VarveFs {
    open_with(env, MountOptions::default().memory_budget_bytes)
}

fn sound(fs: &VarveFs) {
    let report = fs.check(&mut |_| ()).unwrap();
    let broken: Vec<_> =
        report.findings.iter().filter(|found| found.severity() == Severity::Error).collect();
    assert!(broken.is_empty(), "{broken:?}");
}

/// `d` with small and large files, deep directories, a link, and a file of two names.
fn make(fs: &VarveFs) -> InodeId {
    let d = fs.mk_dir(ROOT, "d");
    for dir in 0..12 {
        let below = fs.mk_dir(d, &format!("dir{dir}"));
        for file in 0..8 {
            let ino = fs.mk(below, &format!("file{file}"));
            fs.put_at(ino, 0, &vec![dir * 16 + file; [5, 900, 3000][file as usize % 3]]);
        }
        if dir % 4 == 0 {
            let large = fs.mk(below, "large");
            fs.put_at(large, 0, &vec![dir; LARGE_BYTES]);
            fs.setxattr(large, b"user.of", b"large", XattrMode::Set).unwrap();
        }
        if dir > 0 {
            let other = fs.find(d, "dir0").unwrap().ino;
            let file = fs.find(other, "file1").unwrap().ino;
            fs.link(file, below, name("again")).unwrap();
        }
    }
    let mut deep = d;
    for level in 0..15 {
        deep = fs.mk_dir(deep, &format!("level{level}"));
        fs.put_at(fs.mk(deep, "file"), 0, &vec![level; 2000]);
    }
    d
}

/// What stands at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    ino: InodeId,
    kind: FileType,
    nlink: u32,
    bytes: Vec<u8>,
    xattr: Option<Vec<u8>>,
}

/// Everything below `dir`, which is forgotten again.
fn found_in(fs: &VarveFs, dir: InodeId) -> Result<BTreeMap<String, Found>, FsError> {
    let mut found = BTreeMap::new();
    let mut left = vec![(dir, String::new())];
    while let Some((dir, path)) = left.pop() {
        let mut names = Vec::new();
        fs.readdir(dir, 0, false, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            }
            true
        })?;
        for text in names {
            let attr = fs.lookup(dir, name(&text))?.attr;
            assert_eq!(fs.getattr(attr.ino)?.ino, attr.ino);
            let path = format!("{path}/{text}");
            let mut bytes = Vec::new();
            if attr.kind == FileType::Directory {
                left.push((attr.ino, path.clone()));
            } else {
                let handle = fs.open(attr.ino, crate::support::READ)?.handle;
                bytes = fs.read(attr.ino, handle, 0, 1 << 20)?.to_vec();
                fs.release(attr.ino, handle)?;
            }
            let xattr = fs.getxattr(attr.ino, b"user.of").ok().map(|value| value.to_vec());
            let nlink = attr.nlink;
            found.insert(path, Found { ino: attr.ino, kind: attr.kind, nlink, bytes, xattr });
        }
    }
    Ok(found)
}

/// The same but for inode ids.
fn same(one: &BTreeMap<String, Found>, other: &BTreeMap<String, Found>) {
    assert!(one.keys().eq(other.keys()), "{:?}\n{:?}", one.keys(), other.keys());
    for ((path, one), other) in one.iter().zip(other.values()) {
        let other = Found { ino: one.ino, ..other.clone() };
        assert!(*one == other, "{path}: {} and {} bytes", one.bytes.len(), other.bytes.len());
    }
}

fn remove_below(fs: &VarveFs, dir: InodeId) -> Result<(), FsError> {
    for (text, kind) in fs.kinds_in(dir) {
        if kind == FileType::Directory {
            remove_below(fs, fs.find(dir, &text)?.ino)?;
            fs.rmdir(dir, name(&text))?;
        } else {
            fs.unlink(dir, name(&text))?;
        }
    }
    Ok(())
}

trait Kinds {
    fn kinds_in(&self, dir: InodeId) -> Vec<(String, FileType)>;
}

impl Kinds for VarveFs {
    fn kinds_in(&self, dir: InodeId) -> Vec<(String, FileType)> {
        let mut kinds = Vec::new();
        self.readdir(dir, 0, false, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                kinds.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.kind));
            }
            true
        })
        .unwrap();
        kinds
    }
}

fn rules(seed: u64) -> RoomRules {
    let plain = RoomRules { metadata: true, ..RoomRules::default() };
    let all = [
        plain,
        RoomRules { copies_on_write: true, frees_late: true, ..plain },
        RoomRules { unusable_bytes: 256 << 10, ..plain },
    ];
    all[seed as usize % all.len()]
}

/// A full device with `d`, its clone `c`, and `cc`, a clone of that one; what is in `d`.
fn full(seed: u64) -> (Arc<SimEnv>, VarveFs, BTreeMap<String, Found>) {
    let env = SimEnv::new(seed);
    env.set_capacity(DISK_BYTES);
    env.set_room_rules(rules(seed));
    Store.format(&env).unwrap();
    let fs = open(&env);
    let d = make(&fs);
    let clone = |from: &str, to: &str| fs.clone_tree(ROOT, name(from), ROOT, name(to)).unwrap();
    clone("d", "c");
    if seed % 2 == 1 {
        // Some of it is unfolded already.
        let c = fs.find(ROOT, "c").unwrap().ino;
        fs.list(fs.find(c, "dir3").unwrap().ino);
    }
    clone("c", "cc");
    fs.sync().unwrap();
    let found = found_in(&fs, d).unwrap();
    fill(&env, &fs);
    (env, fs, found)
}

/// Others take all room, and the store takes what it grants to ordinary writes.
fn fill(env: &SimEnv, fs: &VarveFs) {
    env.fill(0);
    let mut refused = 0;
    for number in 0.. {
        let text = format!("filler {number} {}", "x".repeat(200 / (1 + refused)));
        match fs.mknod(Caller::ROOT, ROOT, name(&text), 0o100_644, 0) {
            Ok(_) | Err(FsError::Exists) => {}
            Err(FsError::NoSpace(_)) if refused == 20 => return,
            Err(FsError::NoSpace(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A folded directory could not even be listed where no room was left.
#[test]
fn clones_are_read_without_room() {
    for seed in 0..6 {
        let (_env, fs, expected) = full(seed);
        for clone in ["cc", "c"] {
            let top = fs.find(ROOT, clone).unwrap().ino;
            let first = found_in(&fs, top).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            same(&expected, &first);
            assert_eq!(found_in(&fs, top).unwrap(), first, "other inodes: seed {seed}");
        }
        sound(&fs);
        let refused = fs.mkdir(Caller::ROOT, ROOT, name("more"), 0o755);
        assert!(matches!(refused, Err(FsError::NoSpace(_))), "there was room: {refused:?}");
    }
}

#[test]
fn a_clone_that_was_read_without_room_can_be_removed_without_room() {
    for seed in 0..6 {
        let (env, fs, expected) = full(seed);
        let [c, cc] = ["c", "cc"].map(|clone| fs.find(ROOT, clone).unwrap().ino);
        if seed % 3 != 0 {
            same(&expected, &found_in(&fs, cc).unwrap());
        }
        remove_below(&fs, cc).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        fs.rmdir(ROOT, name("cc")).unwrap();
        sound(&fs);
        same(&expected, &found_in(&fs, c).unwrap());
        remove_below(&fs, c).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        fs.rmdir(ROOT, name("c")).unwrap();
        sound(&fs);
        let d = fs.find(ROOT, "d").unwrap().ino;
        remove_below(&fs, d).unwrap();
        fs.rmdir(ROOT, name("d")).unwrap();
        env.fill(1 << 20);
        fs.sync().unwrap();
        fs.mk(ROOT, "there is room");
        fs.close().unwrap();
        let fs = open(&env);
        fs.find(ROOT, "there is room").unwrap();
        sound(&fs);
    }
}

/// What was only in memory is found again with the same inodes, whoever dies in between.
#[test]
fn a_death_loses_nothing_of_a_clone_that_was_read_without_room() {
    for seed in 0..6 {
        let (env, fs, expected) = full(seed);
        let top = fs.find(ROOT, "cc").unwrap().ino;
        let before = found_in(&fs, top).unwrap();
        let one = fs.find(top, "dir1").unwrap().ino;
        fs.unlink(one, name("file0")).unwrap();
        fs.unlink(one, name("again")).unwrap();
        let env = env.process_kill();
        env.fill(0);
        let fs = open(&env);
        sound(&fs);
        let after = found_in(&fs, top).unwrap();
        assert_eq!(before.len(), after.len() + 2);
        let counts = |found: &Found| if found.nlink > 1 { 0 } else { found.ino.get() };
        assert!(after.iter().all(|(path, found)| counts(&before[path]) == counts(found)));
        assert!(after["/dir2/again"].nlink + 1 == expected["/dir2/again"].nlink);
        remove_below(&fs, top).unwrap();
        sound(&fs);
    }
}

#[test]
fn what_stayed_in_memory_is_written_once_there_is_room() {
    for seed in 0..6 {
        let (env, fs, expected) = full(seed);
        let top = fs.find(ROOT, "cc").unwrap().ino;
        let read = found_in(&fs, top).unwrap();
        env.fill(u64::MAX);
        let file = fs.find(fs.find(top, "dir1").unwrap().ino, "file2").unwrap().ino;
        fs.put_at(file, 0, b"changed");
        let large = fs.find(fs.find(top, "dir4").unwrap().ino, "large").unwrap().ino;
        fs.put_at(large, 0, b"changed");
        // Of these all rows are there.
        fs.create_snapshot("then").unwrap();
        let view = ViewName { kind: ViewKind::Snapshot, name: "then".to_owned() };
        let view = fs.open_view(&view).unwrap();
        let dir = view.find(view.find(ROOT, "cc").unwrap().ino, "dir1").unwrap().ino;
        assert!(view.contents(view.find(dir, "file2").unwrap().ino).starts_with(b"changed"));
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let in_txn = fs.open_view(&txn).unwrap();
        let top_there = in_txn.find(ROOT, "cc").unwrap().ino;
        in_txn.unlink(in_txn.find(top_there, "dir2").unwrap().ino, name("file0")).unwrap();
        fs.commit_transaction(&txn.name, &in_txn).unwrap();
        drop(in_txn);
        drop(view);
        sound(&fs);
        fs.close().unwrap();
        let fs = open(&env);
        let after = found_in(&fs, top).unwrap();
        for (path, found) in &read {
            match path.as_str() {
                "/dir2/file0" => assert!(!after.contains_key(path)),
                "/dir1/file2" | "/dir4/large" => {
                    assert!(after[path].bytes.starts_with(b"changed"));
                    assert_eq!(after[path].bytes.len(), expected[path].bytes.len());
                }
                _ => assert_eq!(found, &after[path], "{path}"),
            }
        }
        let c = fs.find(ROOT, "c").unwrap().ino;
        same(&expected, &found_in(&fs, c).unwrap());
        sound(&fs);
    }
}

/// A snapshot in which clones are folded is read by its own branch.
#[test]
fn snapshots_with_clones_are_read_without_room() {
    for seed in 0..3 {
        let (env, fs, expected) = full(seed);
        env.fill(u64::MAX);
        fs.create_snapshot("then").unwrap();
        env.fill(0);
        fill(&env, &fs);
        let view = ViewName { kind: ViewKind::Snapshot, name: "then".to_owned() };
        let view = fs.open_view(&view).unwrap();
        for clone in ["cc", "c"] {
            same(&expected, &found_in(&view, view.find(ROOT, clone).unwrap().ino).unwrap());
        }
        drop(view);
        fs.delete_snapshot("then").unwrap();
        sound(&fs);
    }
}

/// The memory for it has an end: what is looked at beyond is refused, and nothing that was seen changes.
#[test]
fn what_stays_in_memory_is_bounded() {
    let (env, fs, expected) = full(0);
    fs.close().unwrap();
    let fs = open_with(&env, 3 << 20);
    fill(&env, &fs);
    let top = fs.find(ROOT, "cc").unwrap().ino;
    let mut refused = 0;
    for dir in 0..12 {
        let dir = fs.find(top, &format!("dir{dir}")).unwrap().ino;
        match found_in(&fs, dir) {
            Ok(found) => assert!(found.len() >= 8),
            Err(FsError::NoSpace(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!((1..12).contains(&refused), "{refused} of 12 were refused");
    env.fill(u64::MAX);
    same(&expected, &found_in(&fs, top).unwrap());
    sound(&fs);
}

/// The names of the snapshots that the engine keeps, of a store that is closed.
fn engine_snapshots(env: &Arc<SimEnv>) -> Vec<String> {
    let dyn_env: Arc<dyn Env> = Arc::clone(env) as _;
    let dir = Path::new(STORE).join("engine");
    let db = Db::open(dyn_env, &dir, tiny_engine(CompactionPolicy::LazyLeveled)).unwrap();
    db.snapshots().into_iter().map(|stored| stored.name).collect()
}

/// Unfolded in memory alone, a clone still needs its source; once that is written it does not.
#[test]
fn a_source_stays_until_what_was_taken_from_it_is_written() {
    for is_killed in [true, false] {
        let env = SimEnv::new(3);
        env.set_capacity(DISK_BYTES);
        env.set_room_rules(rules(0));
        Store.format(&env).unwrap();
        let fs = open(&env);
        let d = fs.mk_dir(ROOT, "d");
        for number in 0..5 {
            fs.put_at(fs.mk(d, &format!("tiny{number}")), 0, b"tiny");
        }
        fs.clone_tree(ROOT, name("d"), ROOT, name("c")).unwrap();
        fs.sync().unwrap();
        fill(&env, &fs);
        let c = fs.find(ROOT, "c").unwrap().ino;
        assert_eq!(fs.list(c).len(), 5);
        let remove = |number: u32| fs.unlink(d, name(&format!("tiny{number}"))).unwrap();
        (0..2).for_each(remove);
        if is_killed {
            let env = env.process_kill();
            let fs = open(&env);
            assert_eq!(fs.list(fs.find(ROOT, "c").unwrap().ino).len(), 5);
            sound(&fs);
            continue;
        }
        env.fill(u64::MAX);
        fs.sync().unwrap();
        (2..4).for_each(remove);
        fs.close().unwrap();
        assert_eq!(engine_snapshots(&env), Vec::<String>::new());
    }
}

/// The next daemon knows the inodes that the kernel has looked up.
#[test]
fn a_successor_finds_what_stayed_in_memory() {
    let (env, fs, expected) = full(1);
    let top = fs.find(ROOT, "c").unwrap().ino;
    let read = found_in(&fs, top).unwrap();
    fs.sync().unwrap();
    let handed_over = fs.hand_over().unwrap();
    drop(fs);
    let dyn_env: Arc<dyn Env> = Arc::clone(&env) as _;
    let options = MountOptions::default();
    let fs = VarveFs::resume(dyn_env, Path::new(STORE), options, handed_over).unwrap();
    for (path, found) in &read {
        assert_eq!(fs.getattr(found.ino).unwrap().kind, found.kind, "{path}");
        if found.kind == FileType::Regular {
            assert_eq!(fs.contents(found.ino), expected[path].bytes, "{path}");
        }
    }
}

/// A commit was hidden by rows of a clone that had stayed in memory.
#[test]
fn a_commit_shows_over_what_stayed_in_memory() {
    let (env, fs, expected) = full(0);
    env.fill(u64::MAX);
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = fs.open_view(&txn).unwrap();
    env.fill(0);
    fill(&env, &fs);
    let c = fs.find(ROOT, "c").unwrap().ino;
    same(&expected, &found_in(&fs, c).unwrap());
    env.fill(u64::MAX);
    let there = view.find(view.find(ROOT, "c").unwrap().ino, "level0").unwrap().ino;
    view.unlink(there, name("file")).unwrap();
    fs.commit_transaction(&txn.name, &view).unwrap();
    let mut found = found_in(&fs, c).unwrap();
    assert!(!found.contains_key("/level0/file"));
    found.insert("/level0/file".to_owned(), expected["/level0/file"].clone());
    same(&expected, &found);
    drop(view);
    sound(&fs);
}
