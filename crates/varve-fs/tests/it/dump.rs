//! Dumps: what is loaded is the tree that was dumped, and gives the same dump again; anything else is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::dump::{LINES, dump_store, load_store};
use varve_fs::fsck::{CheckOptions, check_store};
use varve_fs::{FormatOptions, MountOptions, VarveFs};
use varve_testkit::fsops::{Lockstep, Times, TreePath, Universe, tree, tree_with};
use varve_types::{InodeId, Timestamp};
use varve_vfs::{Caller, SetAttr, SetTime, TreeLimits, Vfs, XattrMode};

use crate::bench::TIGHT;
use crate::crash::{STORE, open, sim_store};
use crate::support::{Calls, ROOT, name};

/// Memory for dumps and loads in bytes.
const MEMORY: usize = 16 << 20;

fn dump(env: &Arc<SimEnv>, dir: &str, memory_bytes: usize) -> Vec<u8> {
    let env: Arc<dyn Env> = env.clone();
    let mut out = Vec::new();
    dump_store(env, Path::new(dir), memory_bytes, &mut out, &mut |_| ()).unwrap();
    out
}

fn load(env: &Arc<SimEnv>, dir: &str, mut bytes: &[u8]) -> Result<(), String> {
    let env: Arc<dyn Env> = env.clone();
    let loaded = load_store(env, Path::new(dir), MEMORY, &mut bytes, &mut |_| ());
    loaded.map(drop).map_err(|error| error.to_string())
}

fn open_at(env: &Arc<SimEnv>, dir: &str) -> VarveFs {
    let env: Arc<dyn Env> = env.clone();
    VarveFs::open(env, &PathBuf::from(dir), MountOptions::default()).unwrap()
}

fn assert_spotless(env: &Arc<SimEnv>, dir: &str) {
    let env: Arc<dyn Env> = env.clone();
    let options = CheckOptions::default();
    let report = check_store(env, Path::new(dir), &options, &mut |_| ()).unwrap();
    assert!(report.is_spotless(), "{:?}", report.findings);
}

/// Every regular file's path and inode.
fn identities(fs: &VarveFs) -> Vec<(TreePath, InodeId)> {
    let mut all = Vec::new();
    tree_with(fs, &mut |path, ino, _| all.push((path.clone(), ino))).unwrap();
    all.sort();
    all
}

/// Loads the store's dump beside it and compares everything.
fn assert_round_trip(env: &Arc<SimEnv>, what: &str) {
    let bytes = dump(env, STORE, MEMORY);
    assert!(dump(env, STORE, TIGHT) == bytes, "{what}: memory changes the dump");
    load(env, "/loaded", &bytes).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_spotless(env, "/loaded");
    assert!(dump(env, "/loaded", MEMORY) == bytes, "{what}: the second dump differs");
    let (fs, loaded) = (open(env), open_at(env, "/loaded"));
    let differences = tree(&fs).unwrap().differences(&tree(&loaded).unwrap(), Times::Compare);
    assert!(differences.is_empty(), "{what}: {differences:#?}");
    assert_eq!(identities(&fs), identities(&loaded), "{what}");
    assert_eq!(fs.usage(ROOT).unwrap(), loaded.usage(ROOT).unwrap(), "{what}");
    fs.close().unwrap();
    loaded.close().unwrap();
}

fn random_round(seed: u64, options: &FormatOptions) {
    let env = sim_store(seed, options);
    let fs = open(&env);
    let mut lockstep = Lockstep::with_universe(seed, Universe::default());
    lockstep.run(&fs, 300).unwrap();
    lockstep.release_all(&fs).unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_round_trip(&env, &format!("seed {seed}"));
}

#[test]
fn random_trees_come_back_byte_for_byte() {
    for seed in 0..40 {
        random_round(seed, &FormatOptions::default());
    }
}

#[test]
fn trees_with_colliding_names_and_many_large_files_come_back() {
    let options = FormatOptions {
        name_hash_bits: 3,
        large_file_threshold_bytes: 4096,
        compression: false,
        ..FormatOptions::default()
    };
    for seed in 100..130 {
        random_round(seed, &options);
    }
}

/// A tree with something of everything.
fn sample() -> Arc<SimEnv> {
    let env = sim_store(7, &FormatOptions::default());
    let fs = open(&env);
    let dir = fs.mk_dir(ROOT, "d");
    let inner = fs.mk_dir(dir, "inner");
    let small = fs.mk(dir, "caf\u{e9} \"quoted\"\n");
    fs.put_at(small, 0, b"inline");
    let chunks = fs.mk(dir, "chunks");
    fs.put_at(chunks, 40_000, &[5; 300]);
    fs.setxattr(chunks, b"user.a", &[0, 255], XattrMode::Set).unwrap();
    fs.link(chunks, ROOT, name("again")).unwrap();
    fs.link(chunks, inner, name("once more")).unwrap();
    let large = fs.mk(inner, "large");
    fs.put_at(large, 0, &[7; 10_000]);
    fs.put_at(large, 3 << 20, &[8; 10]);
    fs.cut(large, 4 << 20);
    let odd = varve_types::FileName::new(b"odd\xff").unwrap();
    fs.symlink(Caller::ROOT, inner, odd, b"to/\xfe").unwrap();
    fs.mknod(Caller::ROOT, ROOT, name("disk"), 0o060_640, 0x0801).unwrap();
    let old = Timestamp::new(-5, 7).map(SetTime::To);
    let set = SetAttr { atime: old, mtime: old, uid: Some(1000), ..SetAttr::default() };
    fs.setattr(Caller::ROOT, small, set).unwrap();
    // A directory whose name is in one that was made later.
    let late = fs.mk_dir(ROOT, "late");
    fs.mv(dir, "inner", late, "moved").unwrap();
    let limits = TreeLimits { bytes: Some(1 << 30), inodes: Some(50) };
    fs.set_limits(late, limits).unwrap();
    let put = |key: &[u8], value: &[u8]| (key.to_vec().into(), Some(value.to_vec().into()));
    fs.dictionaries().create(b"tags").unwrap();
    let pairs = vec![put(b"late", b"yes"), put(b"\xff", &[0; 40]), put(b"", b"")];
    fs.dictionaries().change(b"tags", pairs).unwrap();
    fs.dictionaries().create(b"votes").unwrap();
    fs.dictionaries().change(b"votes", vec![put(b"a", b"1")]).unwrap();
    fs.close().unwrap();
    env
}

#[test]
fn a_tree_with_something_of_everything_comes_back_with_its_limits() {
    let env = sample();
    assert_round_trip(&env, "sample");
    let (fs, loaded) = (open(&env), open_at(&env, "/loaded"));
    assert_eq!(fs.quotas(ROOT).unwrap().len(), 1);
    assert_eq!(fs.quotas(ROOT).unwrap(), loaded.quotas(ROOT).unwrap());
    let made = |fs: &VarveFs| fs.mk(ROOT, "new");
    assert_eq!(made(&fs), made(&loaded), "no id is handed out twice");
}

/// A dump without the times of the simulated clock, which goes on with each operation of the store, and the checksum over them.
fn without_times(dump: &[u8]) -> String {
    let text = String::from_utf8(dump.to_vec()).unwrap();
    let (text, _) = text.rsplit_once("\"crc32c\"").unwrap();
    let mut pieces = text.split("[1700000000,");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + "[then" + &piece[piece.find(']').unwrap()..])
}

/// The sample as version 1 wrote it; `VARVE_BLESS=1` rewrites it, which is right only before that version is released.
#[test]
#[allow(clippy::disallowed_methods, reason = "golden files are read from the source tree")]
fn a_dump_is_written_and_read_as_version_1_wrote_it() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/dump-1.jsonl");
    let bytes = dump(&sample(), STORE, MEMORY);
    if std::env::var_os("VARVE_BLESS").is_some() {
        std::fs::write(&path, &bytes).unwrap();
    }
    let golden = std::fs::read(&path).unwrap();
    let (now, then) = (without_times(&bytes), without_times(&golden));
    assert!(now == then, "the dump is another:\n{now}");
    let env = SimEnv::new(5);
    load(&env, STORE, &golden).unwrap();
    assert!(dump(&env, STORE, MEMORY) == golden);
}

#[test]
fn a_crashed_store_is_finished_before_it_is_dumped() {
    let env = sim_store(3, &FormatOptions::default());
    let fs = open(&env);
    let dir = fs.mk_dir(ROOT, "d");
    let file = fs.mk(dir, "f");
    fs.put_at(file, 0, &[1; 200_000]);
    let handle = fs.open_as(file, crate::support::BOTH);
    fs.write(file, handle, 200_000, &[2; 50], false).unwrap();
    let orphan = fs.mk(dir, "gone");
    fs.open_as(orphan, crate::support::READ);
    fs.unlink(dir, name("gone")).unwrap();
    fs.sync().unwrap();
    drop(fs);
    assert_round_trip(&env, "unclosed");
}

/// A directory that is unfolded has something to tell its parent: the names in it of files whose first name lies elsewhere.
/// Where dumps unfolded after directories had told, they took what was left to tell for a contradiction.
#[test]
fn a_clone_that_nobody_has_looked_at_is_dumped_with_all_its_names() {
    let env = sim_store(11, &FormatOptions::default());
    let fs = open(&env);
    let file = fs.mk(ROOT, "a");
    fs.put_at(file, 0, b"hi");
    let dir = fs.mk_dir(ROOT, "d");
    fs.link(file, dir, name("b")).unwrap();
    fs.clone_tree(ROOT, name("d"), ROOT, name("d2")).unwrap();
    fs.close().unwrap();
    drop(fs);
    // This one unfolds, which takes inode numbers.
    let first = dump(&env, STORE, MEMORY);
    load(&env, "/first", &first).unwrap();
    assert_spotless(&env, "/first");
    assert_round_trip(&env, "a clone");
    let loaded = open_at(&env, "/first");
    assert_eq!(loaded.usage(ROOT).unwrap(), open(&env).usage(ROOT).unwrap());
}

/// Whatever byte is changed and wherever the dump is cut, it is refused, and the line is named.
#[test]
fn a_changed_or_cut_dump_is_refused_and_leaves_no_store() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let file = fs.mk(ROOT, "f");
    fs.put_at(file, 0, b"some bytes");
    fs.link(file, ROOT, name("g")).unwrap();
    fs.close().unwrap();
    drop(fs);
    let whole = dump(&env, STORE, MEMORY);
    let refused = |bytes: &[u8], what: &str| {
        let env = SimEnv::new(9);
        let error = load(&env, "/s", bytes).expect_err(what);
        let unformatted = error.contains("threshold must lie");
        assert!(error.starts_with("line ") || unformatted, "{what}: {error}");
        let dyn_env: Arc<dyn Env> = env;
        let opened = VarveFs::open(dyn_env, Path::new("/s"), MountOptions::default());
        assert!(opened.unwrap_err().to_string().contains("no store"), "{what}");
    };
    for at in 0..whole.len() {
        let mut bad = whole.clone();
        bad[at] ^= 1 << (at % 8);
        refused(&bad, &format!("byte {at} changed"));
    }
    for len in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
        refused(&whole[..len], &format!("cut to {len} bytes"));
    }
    refused(&[whole.as_slice(), b"\n"].concat(), "more behind the end");
    load(&env, "/good", &whole).unwrap();
}

/// With the checksum put right, what the lines say still has to be a sound tree.
#[test]
fn lines_that_contradict_each_other_are_refused() {
    let env = sample();
    let whole = String::from_utf8(dump(&env, STORE, MEMORY)).unwrap();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    let end: serde_json::Value = serde_json::from_str(lines[lines.len() - 1]).unwrap();
    for left_out in 1..lines.len() - 1 {
        let mut kept = lines[..lines.len() - 1].to_vec();
        let line: serde_json::Value = serde_json::from_str(kept.remove(left_out)).unwrap();
        // Without its limits, a piece of its data or a pair, a store is sound all the same.
        if ["limits", "data", "pair"].iter().any(|kind| line.get(kind).is_some()) {
            continue;
        }
        let text = kept.concat();
        let mut end = end.clone();
        let inodes = u64::from(line.get("inode").is_some());
        let names = u64::from(line["inode"].get("name").or(line.get("link")).is_some());
        let less = |count: &serde_json::Value, by: u64| (count.as_u64().unwrap() - by).into();
        end["end"]["lines"] = less(&end["end"]["lines"], 1);
        end["end"]["inodes"] = less(&end["end"]["inodes"], inodes);
        end["end"]["names"] = less(&end["end"]["names"], names);
        end["end"]["crc32c"] = format!("{:08x}", crc32c::crc32c(text.as_bytes())).into();
        let error = load(&SimEnv::new(1), "/s", format!("{text}{end}\n").as_bytes()).unwrap_err();
        assert!(error.starts_with("line "), "{line}: {error}");
    }
}

/// A file without bytes could have any size, and was loaded.
#[test]
fn a_size_that_no_file_can_have_is_refused() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    fs.mk(ROOT, "f");
    fs.close().unwrap();
    drop(fs);
    let whole = String::from_utf8(dump(&env, STORE, MEMORY)).unwrap();
    let (lines, end) = whole.trim_end().rsplit_once('\n').unwrap();
    let end: serde_json::Value = serde_json::from_str(end).unwrap();
    let with_size = |size: u64| {
        let is = "\"name\":\"f\"";
        let lines = lines.split('\n').map(|line| match line.contains(is) {
            true => line.replace("\"size\":0", &format!("\"size\":{size}")) + "\n",
            false => format!("{line}\n"),
        });
        let (lines, mut end) = (lines.collect::<String>(), end.clone());
        end["end"]["crc32c"] = format!("{:08x}", crc32c::crc32c(lines.as_bytes())).into();
        load(&SimEnv::new(1), "/s", format!("{lines}{end}\n").as_bytes())
    };
    with_size(0).unwrap();
    for size in [1 << 63, u64::MAX] {
        let error = with_size(size).unwrap_err();
        assert!(error.contains(&format!("size: {size} bytes")), "{error}");
    }
}

/// More extended attributes of one inode than it may have.
#[test]
fn a_dump_with_more_attributes_than_may_be_is_refused() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open_at(&env, STORE);
    let ino = fs.mk(ROOT, "f");
    for i in 10..25 {
        fs.setxattr(ino, format!("user.{i}").as_bytes(), &[3; 65_536], XattrMode::Set).unwrap();
    }
    fs.setxattr(ino, b"user.last", &[3; 65_000], XattrMode::Set).unwrap();
    drop(fs);
    let whole = String::from_utf8(dump(&env, STORE, MEMORY)).unwrap();
    load(&SimEnv::new(1), "/s", whole.as_bytes()).unwrap();
    let small = whole.lines().find(|line| line.contains("user.last")).unwrap();
    let large = whole.lines().find(|line| line.contains("user.10")).unwrap();
    let text = whole.replace(small, &large.replace("user.10", "user.last"));
    let error = load(&SimEnv::new(1), "/s", text.as_bytes()).unwrap_err();
    assert!(error.contains("have 1048576 bytes at most"), "{error}");
}

#[test]
fn a_store_or_a_used_directory_is_no_place_to_load_into() {
    let env = sample();
    let bytes = dump(&env, STORE, MEMORY);
    let error = load(&env, STORE, &bytes).unwrap_err();
    assert!(error.contains("holds a store already"), "{error}");
    let fs = open(&env);
    let dyn_env: Arc<dyn Env> = env.clone();
    let busy =
        dump_store(dyn_env, Path::new(STORE), MEMORY, &mut Vec::new(), &mut |_| ()).unwrap_err();
    assert!(matches!(busy, varve_engine::StoreError::Locked { .. }), "{busy}");
    fs.close().unwrap();
}

/// A crash at any moment of a load leaves no store, or the whole one.
#[test]
fn an_interrupted_load_leaves_no_store_or_all_of_it() {
    let bytes = dump(&sample(), STORE, MEMORY);
    let whole = SimEnv::new(4);
    let before = whole.op_count();
    load(&whole, STORE, &bytes).unwrap();
    let ops = whole.op_count() - before;
    assert!(ops > 20, "{ops} operations");
    let (mut none, mut all) = (0, 0);
    for at in 0..ops {
        let env = SimEnv::new(4);
        env.crash_after(env.op_count() + at);
        // The last operations can come after the store is whole.
        let _outcome = load(&env, STORE, &bytes);
        let images = [env.power_cut(at), env.power_cut_keep_nothing(), env.power_cut_keep_all()];
        for image in images {
            let dyn_env: Arc<dyn Env> = image.clone();
            match VarveFs::open(dyn_env, Path::new(STORE), MountOptions::default()) {
                Ok(fs) => {
                    fs.close().unwrap();
                    drop(fs);
                    assert!(dump(&image, STORE, MEMORY) == bytes, "crash after {at}");
                    all += 1;
                }
                Err(varve_engine::StoreError::NotAStore { .. }) => none += 1,
                Err(error) => panic!("crash after {at}: {error}"),
            }
        }
    }
    assert!(none > 0 && all > 0, "{none} without a store, {all} with all of it");
}

/// The longest work there is was done without a word.
#[test]
fn a_dump_and_a_load_tell_how_far_they_are() {
    let env = sim_store(3, &FormatOptions::default());
    let fs = open(&env);
    for at in 0..200 {
        fs.mk(ROOT, &format!("file {at}"));
    }
    fs.close().unwrap();
    let (mut dumped, mut bytes, dyn_env) = (Vec::new(), Vec::new(), env.clone());
    dump_store(dyn_env, Path::new(STORE), MEMORY, &mut bytes, &mut |at| dumped.push(at)).unwrap();
    let (mut loaded, dyn_env) = (Vec::new(), env.clone());
    load_store(dyn_env, Path::new("/new"), MEMORY, &mut &bytes[..], &mut |at| loaded.push(at))
        .unwrap();
    for told in [&dumped, &loaded] {
        let lines = told.iter().take_while(|at| at.phase == LINES);
        let steps: Vec<_> = lines.map(|at| (at.done, at.permille)).collect();
        assert!(steps.len() >= 4 && steps[0] == (0, None), "{told:?}");
        assert!(steps.is_sorted_by(|a, b| a < b), "{told:?}");
        let last = steps.last().unwrap().1.unwrap();
        assert!((900..=1000).contains(&last), "{told:?}");
    }
    assert!(dumped.iter().all(|at| at.phase == LINES), "{dumped:?}");
    let checked = loaded.iter().skip_while(|at| at.phase == LINES);
    assert!(
        checked.clone().count() >= 3 && checked.clone().all(|at| at.phase != LINES),
        "{loaded:?}"
    );
}
