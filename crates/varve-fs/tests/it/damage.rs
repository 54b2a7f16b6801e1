//! Files of a store changed behind its back: a clear error that names the file, or everything as it was;
//! never other names or other bytes.
//!
//! One exception is by design: bytes within a large file's object have no checksum here, as they would have
//! none on the storage below. What a row knows of them, their number, is checked.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_fs::fsck::{CheckOptions, check_store};
use varve_fs::superblock::SUPERBLOCK_NAME;
use varve_fs::{FormatOptions, MountOptions, TransactionOptions, ViewKind, ViewName};
use varve_testkit::crash::{Step, Subject};
use varve_testkit::fsops::{Lockstep, Session, Times, TreeDump, tree};
use varve_testkit::rng::Rng;
use varve_types::Timestamp;
use varve_vfs::{FsError, Vfs};

use crate::crash::{STORE, open, sim_store};
use crate::crash_points::{Store, open_tiny, script};
use crate::support::{Calls, READ, ROOT, name};

/// A closed store with every kind of file, and what it holds.
fn sample(seed: u64) -> (Arc<SimEnv>, TreeDump) {
    let env = SimEnv::new(seed);
    Store.format(&env).unwrap();
    let script = script(1, 200, false);
    for part in script.steps.chunks(100) {
        let fs = open_tiny(&env, MountOptions::default()).unwrap();
        let mut session = Session::default();
        for step in part {
            if let Step::Op(op) = step {
                session.apply(&fs, op);
            }
        }
        session.release_all(&fs).unwrap();
        fs.close().unwrap();
    }
    let fs = open_tiny(&env, MountOptions::default()).unwrap();
    for (text, size) in [("large1", 40_000), ("large2", 50_000)] {
        let ino = fs.mk(ROOT, text);
        fs.put_at(ino, 0, &vec![7; size]);
    }
    let expected = tree(&fs).unwrap();
    fs.close().unwrap();
    (env, expected)
}

fn all_files(env: &SimEnv) -> Vec<PathBuf> {
    env.files_raw()
}

fn is_object(path: &Path) -> bool {
    path.starts_with(Path::new(STORE).join("objects"))
}

/// What a reader of the whole store finds.
fn read_all(env: &Arc<SimEnv>) -> Result<TreeDump, String> {
    let fs = open_tiny(env, MountOptions::default())?;
    tree(&fs).map_err(|error| error.to_string())
}

/// How many damages were noticed, and how many were harmless.
#[derive(Debug, Default)]
struct Sum {
    noticed: u32,
    harmless: u32,
}

/// What was found must be an error that names `path`, or what was there.
fn expect(env: &Arc<SimEnv>, path: &Path, expected: &TreeDump, what: &str, sum: &mut Sum) {
    let name = path.file_name().unwrap().to_string_lossy();
    match read_all(env) {
        Err(error) => {
            // A manifest that lost its last edits, or is another, is noticed by the files it does not fit.
            let lists = name.starts_with("MANIFEST") || name == "CURRENT";
            let by_others = lists && error.contains("/store/engine/");
            let named = error.contains(&*name) || by_others;
            assert!(named, "{what} of {}: {error}", path.display());
            sum.noticed += 1;
        }
        Ok(found) => {
            let lines = expected.differences(&found, Times::Ignore);
            assert!(lines.is_empty(), "{what} of {}: {}", path.display(), lines.join("\n"));
            sum.harmless += 1;
        }
    }
}

#[test]
fn a_flipped_bit_is_named_or_harmless() {
    let (env, expected) = sample(1);
    let (mut rng, mut sum) = (Rng::new(1), Sum::default());
    for path in all_files(&env).iter().filter(|path| !is_object(path)) {
        let len = env.read_raw(path).unwrap().len() as u64;
        for _ in 0..if len == 0 { 0 } else { 24 } {
            let copy = env.copy().power_cut_keep_all();
            let at = rng.below(len);
            copy.damage(path, at, 1 << rng.below(8)).unwrap();
            expect(&copy, path, &expected, &format!("byte {at}"), &mut sum);
        }
    }
    println!("{sum:?}");
    assert!(sum.noticed > 100, "{sum:?}");
}

#[test]
fn a_missing_cut_or_zeroed_file_is_named_or_harmless() {
    let (env, expected) = sample(1);
    let (mut rng, mut sum) = (Rng::new(2), Sum::default());
    for path in &all_files(&env) {
        let len = env.read_raw(path).unwrap().len() as u64;
        let copy = env.copy().power_cut_keep_all();
        copy.remove_raw(path).unwrap();
        match path.file_name().unwrap().to_str().unwrap() {
            name if name == "LOCK" || name.ends_with(".copy") => {
                expect(&copy, path, &expected, "removal", &mut sum);
            }
            SUPERBLOCK_NAME => expect(&copy, Path::new(STORE), &expected, "removal", &mut sum),
            _ => {
                let error = read_all(&copy).unwrap_err();
                let name = path.file_name().unwrap().to_string_lossy();
                assert!(error.contains(&*name), "removal of {}: {error}", path.display());
            }
        }
        // The end of a log is the one place where a cut cannot be told from a crash.
        if len == 0 || path.extension().is_some_and(|extension| extension == "wal") {
            continue;
        }
        for _ in 0..8 {
            let copy = env.copy().power_cut_keep_all();
            let cut = rng.below(len);
            copy.truncate_raw(path, cut).unwrap();
            expect(&copy, path, &expected, &format!("a cut at {cut}"), &mut sum);
        }
        for page in (0..len.div_ceil(4096)).filter(|_| !is_object(path)) {
            let copy = env.copy().power_cut_keep_all();
            let bytes = (len - page * 4096).min(4096) as usize;
            copy.write_raw(path, page * 4096, &vec![0; bytes]).unwrap();
            expect(&copy, path, &expected, &format!("zeros in page {page}"), &mut sum);
        }
    }
    println!("{sum:?}");
    assert!(sum.noticed > 100, "{sum:?}");
}

fn put_in_place(env: &SimEnv, path: &Path, bytes: &[u8]) {
    env.truncate_raw(path, 0).unwrap();
    env.write_raw(path, 0, bytes).unwrap();
}

#[test]
fn a_file_in_the_place_of_another_is_named() {
    let (env, expected) = sample(1);
    let mut sum = Sum::default();
    let kind = |path: &Path| path.extension().map(|extension| extension.to_owned());
    // Nobody reads the copy of a manifest before a repair.
    let is_read = |path: &PathBuf| kind(path).is_some_and(|kind| kind != "copy");
    let files: Vec<PathBuf> = all_files(&env).into_iter().filter(is_read).collect();
    for path in &files {
        for other in files.iter().filter(|other| *other != path && kind(other) == kind(path)) {
            let copy = env.copy().power_cut_keep_all();
            put_in_place(&copy, path, &env.read_raw(other).unwrap());
            let harmless = sum.harmless;
            expect(&copy, path, &expected, &format!("{} in place", other.display()), &mut sum);
            // A table of bookkeeping alone is read by nobody who looks at the tree.
            if sum.harmless > harmless {
                let machine: Arc<dyn Env> = copy.clone();
                let options = CheckOptions::default();
                let report = check_store(machine, Path::new(STORE), &options, &mut |_| ());
                let file = path.file_name().unwrap().to_str().unwrap();
                assert!(format!("{report:?}").contains(file), "{report:?}");
            }
        }
    }
    assert!(sum.noticed > 5, "{sum:?}");
}

/// Another store with the same history has files of the same names with the same sequence numbers.
#[test]
fn a_file_of_another_store_is_named() {
    let (env, expected) = sample(1);
    let mut sum = Sum::default();
    for seed in 2..8 {
        let (other, _) = sample(seed);
        let others = all_files(&other);
        for path in &all_files(&env) {
            if is_object(path) || !others.contains(path) {
                continue;
            }
            let copy = env.copy().power_cut_keep_all();
            put_in_place(&copy, path, &other.read_raw(path).unwrap());
            expect(&copy, path, &expected, "a file of another store in the place", &mut sum);
        }
    }
    assert!(sum.noticed > 8, "{sum:?}");
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let (env, _) = sample(1);
    let path = Path::new(STORE).join(SUPERBLOCK_NAME);
    let text = String::from_utf8(env.read_raw(&path).unwrap()).unwrap();
    let json = text.lines().next().unwrap().replace("\"format_version\":1", "\"format_version\":9");
    let newer = format!("{json}\n{:08x}\n", crc32c::crc32c(json.as_bytes()));
    put_in_place(&env, &path, newer.as_bytes());
    let error = read_all(&env).unwrap_err();
    assert!(error.contains("VARVE has format version 9, this program reads up to 1"), "{error}");
}

#[test]
fn a_second_opener_is_told_who_has_it_and_a_lock_of_the_dead_needs_no_hand() {
    let (env, expected) = sample(1);
    let options = MountOptions { mount_point: Some("/mnt/here".into()), ..MountOptions::default() };
    let fs = open_tiny(&env, options).unwrap();
    let second = open_tiny(&env, MountOptions::default()).unwrap_err();
    for part in ["/mnt/here", &std::process::id().to_string(), STORE] {
        assert!(second.contains(part), "{second}");
    }
    let env = env.process_kill();
    drop(fs);
    assert!(env.read_raw(&Path::new(STORE).join("LOCK")).unwrap().starts_with(b"{"));
    assert_eq!(expected.differences(&read_all(&env).unwrap(), Times::Ignore), [""; 0]);
}

#[test]
fn a_store_on_a_read_only_file_system_says_so() {
    const EROFS: i32 = 30;
    let (env, _) = sample(1);
    let path_suffix = "LOCK".to_owned();
    env.fail(FaultRule { path_suffix, op: SimOp::Open, nth: 1, errno: EROFS, sticky: true });
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let error = open_tiny(&env, options).unwrap_err();
    assert!(error.contains("/store is on a read-only file system"), "{error}");
}

#[test]
fn a_clock_that_jumps_loses_nothing_and_ids_stay_unique() {
    const YEAR_SECS: i64 = 31_556_952;
    for seed in 0..4 {
        let mut env = sim_store(seed, &FormatOptions::default());
        let mut lockstep = Lockstep::new(seed).ignoring_times();
        let mut seen = HashSet::new();
        let years = [53, -200, 0, 400, 1, 53, -1];
        for (round, years) in years.into_iter().enumerate() {
            let fs = open(&env);
            lockstep.run(&fs, 40).unwrap();
            env.set_time(Timestamp::new(years * YEAR_SECS, 999_999_999).unwrap());
            lockstep.run(&fs, 40).unwrap();
            let ino = fs.mk(ROOT, "probe");
            assert!(seen.insert(ino), "seed {seed}, round {round}: {ino} again");
            fs.forget(ino, 1);
            fs.unlink(ROOT, name("probe")).unwrap();
            lockstep.release_all(&fs).unwrap();
            let before = tree(&fs).unwrap();
            if round % 2 == 0 {
                env = env.process_kill();
                drop(fs);
            } else {
                fs.sync().unwrap();
                env = env.power_cut_keep_nothing();
            }
            let fs = open(&env);
            assert_eq!(before.differences(&tree(&fs).unwrap(), Times::Compare), [""; 0]);
            lockstep.check_tree(&fs).unwrap();
            assert_eq!(fs.check(&mut |_| ()).unwrap().findings, [], "seed {seed}, round {round}");
            fs.close().unwrap();
        }
    }
}

/// A large file that had been cut below read as zeros in snapshots, transactions and clones, and through handles that were open:
/// only opening it in the main tree looked at its length.
#[test]
fn a_large_file_that_was_cut_below_reads_as_an_error_wherever_it_is_seen() {
    for (keeps, opened_before) in [(false, false), (true, false), (false, true), (true, true)] {
        let env = sim_store(1, &FormatOptions::default());
        let fs = open(&env);
        let dir = fs.mk_dir(ROOT, "dir");
        let large = fs.mk(dir, "large");
        fs.put_at(large, 0, &vec![7; 300_000]);
        fs.clone_tree(ROOT, name("dir"), ROOT, name("clone")).unwrap();
        fs.create_snapshot("s").unwrap();
        let id = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap().name;
        if keeps {
            fs.put_at(large, 10, b"changed since");
        }
        fs.sync().unwrap();
        let view = |kind, name: &str| fs.open_view(&ViewName { kind, name: name.to_owned() });
        let snapshot = view(ViewKind::Snapshot, "s").unwrap();
        let transaction = view(ViewKind::Transaction, &id).unwrap();
        let own =
            transaction.find(transaction.find(ROOT, "dir").unwrap().ino, "large").unwrap().ino;
        transaction.put_at(own, 20, b"changed");
        let places = [(&fs, "dir"), (&fs, "clone"), (&snapshot, "dir"), (&transaction, "dir")];
        let mut places: Vec<_> = places
            .into_iter()
            .map(|(fs, at)| (fs, at, fs.find(fs.find(ROOT, at).unwrap().ino, "large").unwrap().ino))
            .map(|(fs, at, ino)| (fs, at, ino, opened_before.then(|| fs.open_as(ino, READ))))
            .collect();
        env.truncate_raw(&Path::new(STORE).join(format!("objects/0/0/{large}")), 100_000).unwrap();
        for (fs, at, ino, handle) in &mut places {
            let what = format!("{at}, kept {keeps}, opened before {opened_before}");
            let handle = match handle.take().map_or_else(|| Ok(fs.open(*ino, READ)?.handle), Ok) {
                Ok(handle) => handle,
                Err(error) => {
                    let error: FsError = error;
                    assert!(error.to_string().contains("100000"), "{what}: {error}");
                    continue;
                }
            };
            for offset in [99_000, 150_000] {
                let read = fs.read(*ino, handle, offset, 4096);
                let error = read.expect_err(&what).to_string();
                assert!(error.contains(&format!("/{large}")), "{what}: {error}");
                assert!(error.contains("offset"), "{what}: {error}");
            }
            assert_eq!(fs.read(*ino, handle, 50_000, 10).unwrap()[..], [7; 10], "{what}");
            fs.release(*ino, handle).unwrap();
        }
    }
}
