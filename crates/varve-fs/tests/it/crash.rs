//! Crashes: what is found afterwards is whole, holds what was synced, and nothing is left over.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_engine::Store;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_env::{Env, OpenMode};
use varve_fs::dump::dump_store;
use varve_fs::fsck::{CheckOptions, Finding, Severity, check_store};
use varve_fs::{FormatOptions, MountOptions, NewFiles, TransactionOptions, VarveFs};
use varve_fs::{format, open_engine};
use varve_testkit::fsops::{Lockstep, Times, TreeDump, Universe, tree};
use varve_testkit::rng::Rng;
use varve_types::Timestamp;
use varve_vfs::{Caller, FsResult, OpenFlags, RenameMode, SetAttr, SetTime, Vfs};

use crate::crash_points::open_tiny;
use crate::support::{BOTH, Calls, ROOT, WRITE, name};

pub(crate) const STORE: &str = "/store";

pub(crate) fn sim_store(seed: u64, options: &FormatOptions) -> Arc<SimEnv> {
    let env = SimEnv::new(seed);
    let dyn_env: Arc<dyn Env> = env.clone();
    format(&dyn_env, Path::new(STORE), options).unwrap();
    env
}

pub(crate) fn open(env: &Arc<SimEnv>) -> VarveFs {
    let env: Arc<dyn Env> = env.clone();
    VarveFs::open(env, Path::new(STORE), MountOptions::default()).unwrap()
}

/// Everything that a check finds after a crash, except room wasted by objects that lost their row.
fn broken(fs: &VarveFs) -> Vec<Finding> {
    let report = fs.check(&mut |_| ()).unwrap();
    report.findings.into_iter().filter(|finding| finding.severity() != Severity::Waste).collect()
}

fn same_tree(a: &TreeDump, b: &TreeDump) -> bool {
    a.differences(b, Times::Ignore).is_empty()
}

#[test]
fn the_death_of_the_process_loses_nothing() {
    for seed in 0..20 {
        let env = sim_store(seed, &FormatOptions::default());
        let mut lockstep = Lockstep::new(seed);
        let fs = open(&env);
        lockstep.run(&fs, 50 + seed * 10).unwrap();
        let before = tree(&fs).unwrap();
        let env = env.process_kill();
        drop(fs);
        let fs = open(&env);
        let after = tree(&fs).unwrap();
        assert_eq!(before.differences(&after, Times::Compare), [""; 0], "seed {seed}");
        lockstep.check_tree(&fs).unwrap();
        lockstep.check_usage(&fs).unwrap();
        assert_eq!(broken(&fs), [], "seed {seed}");
        let report = fs.check(&mut |_| ()).unwrap();
        assert_eq!(report.findings, [], "seed {seed}: orphans and objects are reclaimed");
    }
}

#[test]
fn a_power_cut_leaves_a_state_that_existed_and_holds_what_was_synced() {
    // All data in the store, so that every state is one of the model's.
    let options = FormatOptions { large_file_threshold_bytes: 1 << 20, ..FormatOptions::default() };
    for seed in 0..40 {
        let env = sim_store(seed, &options);
        let mut lockstep = Lockstep::with_universe(seed, Universe::default());
        let fs = open(&env);
        lockstep.run(&fs, 40 + 5 * (seed % 10)).unwrap();
        fs.sync().unwrap();
        let mut states = vec![tree(lockstep.model()).unwrap()];
        for _ in 0..25 {
            lockstep.run(&fs, 1).unwrap();
            states.push(tree(lockstep.model()).unwrap());
        }
        for cut in 0..6 {
            let env = match cut {
                0 => env.power_cut_keep_nothing(),
                1 => env.power_cut_keep_all(),
                _ => env.power_cut(seed * 100 + cut),
            };
            let fs = open(&env);
            let found = tree(&fs).unwrap();
            assert!(
                states.iter().any(|state| same_tree(state, &found)),
                "seed {seed}, cut {cut}: {:?}",
                states[0].differences(&found, Times::Ignore)
            );
            assert_eq!(broken(&fs), [], "seed {seed}, cut {cut}");
        }
    }
}

/// A disk that lies about syncs must be noticed by the test above.
#[test]
fn canary_a_disk_that_ignores_syncs_is_noticed() {
    let mut noticed = 0;
    for seed in 0..10 {
        let env = sim_store(seed, &FormatOptions::default());
        let fs = open(&env);
        env.set_ignore_syncs(true);
        fs.mk(ROOT, "synced");
        fs.sync().unwrap();
        let env = env.power_cut_keep_nothing();
        let fs = VarveFs::open(env, Path::new(STORE), MountOptions::default());
        noticed += u32::from(!fs.is_ok_and(|fs| fs.find(ROOT, "synced").is_ok()));
    }
    assert_eq!(noticed, 10);
}

/// What the kernel appended to a file that was open for O_SYNC was durable, but after a power cut the file was cut to what
/// it was when it was opened: the log, which says that it may be longer, was not synced yet.
#[test]
fn what_is_appended_straight_and_synchronously_stays() {
    for sync in [true, false] {
        let env = sim_store(1, &FormatOptions::default());
        #[allow(clippy::disallowed_methods, reason = "a descriptor that nobody uses")]
        let descriptor = std::fs::File::open("/dev/null").unwrap();
        env.set_descriptor(descriptor.into());
        let fs = open(&env);
        let ino = fs.mk(ROOT, "large");
        fs.put_at(ino, 0, &[1; 200_000]);
        fs.sync().unwrap();
        // Another has it open already, for which nothing needed to be durable.
        let other = fs.open(ino, WRITE).unwrap();
        let opened = fs.open(ino, OpenFlags { sync, ..WRITE }).unwrap();
        assert!(opened.passthrough && other.passthrough);
        let path = format!("{STORE}/objects/0/0/{ino}");
        let object = env.open(Path::new(&path), OpenMode::ReadWrite).unwrap();
        object.write_all_at(&[2; 5000], 200_000).unwrap();
        object.sync_data().unwrap();
        let fs = open(&env.power_cut_keep_nothing());
        let ino = fs.find(ROOT, "large").unwrap().ino;
        let appended = if sync { 5000 } else { 0 };
        assert!(fs.contents(ino) == [vec![1; 200_000], vec![2; appended]].concat());
        assert_eq!(broken(&fs), []);
    }
}

/// A file that begins large was open for O_SYNC, and what was written to it was durable, but neither its name nor a row that leads to
/// it.
#[test]
fn what_is_written_straight_and_synchronously_to_a_new_file_stays() {
    for sync in [true, false] {
        for by_maker in [true, false] {
            let env = sim_store(1, &FormatOptions::default());
            #[allow(clippy::disallowed_methods, reason = "a descriptor that nobody uses")]
            let descriptor = std::fs::File::open("/dev/null").unwrap();
            env.set_descriptor(descriptor.into());
            let options = MountOptions { new_files: NewFiles::Large, ..MountOptions::default() };
            let fs = VarveFs::open(env.clone(), Path::new(STORE), options).unwrap();
            let flags = |sync| OpenFlags { sync, ..WRITE };
            let made = fs.create(Caller::ROOT, ROOT, name("f"), 0o644, flags(sync && by_maker));
            let (entry, mut opened) = made.unwrap();
            let ino = entry.attr.ino;
            if !by_maker {
                opened = fs.open(ino, flags(sync)).unwrap();
            }
            assert!(opened.passthrough);
            let path = format!("{STORE}/objects/0/0/{ino}");
            let object = env.open(Path::new(&path), OpenMode::ReadWrite).unwrap();
            object.write_all_at(&[2; 5000], 0).unwrap();
            object.sync_data().unwrap();
            let fs = open(&env.power_cut_keep_nothing());
            let left = fs.find(ROOT, "f").ok().map(|found| fs.contents(found.ino));
            assert!(left == sync.then(|| vec![2; 5000]), "{sync}, by who made it: {by_maker}");
            assert_eq!(broken(&fs), []);
        }
    }
}

/// Small, synced; then grown past the threshold, which moves it; then synced again.
fn grow(fs: &VarveFs, synced: &mut u32) -> FsResult<()> {
    let (entry, opened) = fs.create(Caller::ROOT, ROOT, name("f"), 0o644, BOTH)?;
    let ino = entry.attr.ino;
    fs.write(ino, opened.handle, 0, &[1; 60_000], false)?;
    fs.fsync(ino, opened.handle, false)?;
    *synced = 1;
    fs.write(ino, opened.handle, 60_000, &[2; 140_000], false)?;
    fs.write(ino, opened.handle, 200_000, &[3; 10], false)?;
    fs.fsync(ino, opened.handle, true)?;
    *synced = 2;
    fs.release(ino, opened.handle)?;
    fs.sync()?;
    *synced = 3;
    fs.mkdir(Caller::ROOT, ROOT, name("d"), 0o755)?;
    fs.rename(ROOT, name("f"), ROOT, name("g"), RenameMode::Replace)?;
    fs.unlink(ROOT, name("g"))?;
    fs.sync()?;
    *synced = 4;
    Ok(())
}

fn check_grown(fs: &VarveFs, synced: u32, what: &str) {
    assert_eq!(broken(fs), [], "{what}");
    let found = fs.find(ROOT, "f").or_else(|_| fs.find(ROOT, "g"));
    match (found, synced) {
        (Err(_), 0 | 3 | 4) => {}
        (Err(error), _) => panic!("{what}: the synced file is gone: {error}"),
        (Ok(attr), synced) => {
            let bytes = fs.contents(attr.ino);
            assert_eq!(bytes.len() as u64, attr.size, "{what}");
            if synced >= 1 {
                assert!(bytes.len() >= 60_000 && bytes[..60_000].iter().all(|b| *b == 1), "{what}");
            }
            if synced >= 2 {
                assert_eq!(bytes.len(), 200_010, "{what}");
                assert!(bytes[60_000..200_000].iter().all(|b| *b == 2), "{what}");
                assert!(bytes[200_000..].iter().all(|b| *b == 3), "{what}");
            }
        }
    }
}

#[test]
fn a_large_file_is_moved_without_a_moment_in_which_it_is_lost() {
    let ops = {
        let env = sim_store(1, &FormatOptions::default());
        let fs = open(&env);
        let before = env.op_count();
        grow(&fs, &mut 0).unwrap();
        before..env.op_count()
    };
    for crash in ops {
        let env = sim_store(1, &FormatOptions::default());
        let fs = open(&env);
        env.crash_after(crash);
        let mut synced = 0;
        let done = grow(&fs, &mut synced);
        assert!(done.is_err() || synced == 4, "operation {crash}: {done:?}");
        for cut in 0..4 {
            let env = match cut {
                0 => env.power_cut_keep_nothing(),
                1 => env.power_cut_keep_all(),
                _ => env.power_cut(crash * 10 + cut),
            };
            check_grown(&open(&env), synced, &format!("operation {crash}, power cut {cut}"));
        }
        let env = env.process_kill();
        let fs = open(&env);
        check_grown(&fs, synced, &format!("operation {crash}, kill"));
        assert_eq!(fs.check(&mut |_| ()).unwrap().findings, [], "operation {crash}, kill");
    }
}

#[test]
fn orphans_are_reclaimed_at_the_next_mount() {
    let env = sim_store(3, &FormatOptions::default());
    let fs = open(&env);
    for (text, size) in [("empty", 0), ("inline", 100), ("chunks", 40_000), ("object", 300_000)] {
        let ino = fs.mk(ROOT, text);
        fs.put_at(ino, 0, &vec![7; size]);
        fs.setxattr(ino, b"user.x", b"y", varve_vfs::XattrMode::Set).unwrap();
        fs.open_as(ino, WRITE);
        fs.unlink(ROOT, name(text)).unwrap();
        // And one that is only known.
        let known = fs.mk(ROOT, text);
        fs.put_at(known, 0, &vec![8; size]);
        fs.unlink(ROOT, name(text)).unwrap();
    }
    fs.sync().unwrap();
    let report = fs.check(&mut |_| ()).unwrap();
    assert_eq!(report.errors, 0);
    assert_eq!(
        report.findings.len(),
        6,
        "all that are open, and the two known ones with data rows"
    );
    for env in [env.power_cut_keep_all(), env.process_kill()] {
        let fs = open(&env);
        let report = fs.check(&mut |_| ()).unwrap();
        assert_eq!(report.findings, []);
        assert_eq!((report.files, report.chunks, report.objects), (0, 0, 0));
    }
}

#[test]
fn ids_are_never_handed_out_again_after_a_crash() {
    let mut env = sim_store(4, &FormatOptions::default());
    let mut highest = 0;
    for round in 0..6 {
        let fs = open(&env);
        let ino = fs.mk(ROOT, &format!("f{round}")).get();
        assert!(ino > highest, "round {round}");
        highest = fs.mk(ROOT, &format!("g{round}")).get();
        if round % 2 == 0 {
            fs.sync().unwrap();
        }
        env = match round % 3 {
            0 => env.process_kill(),
            1 => {
                let ids = fs.mk(ROOT, "not synced").get();
                highest = highest.max(ids);
                env.power_cut_keep_all()
            }
            _ => env.power_cut(round),
        };
        if round % 3 == 2 {
            // What was lost was never seen by anybody who was promised it.
            highest = 0;
        }
    }
}

/// A row that says "clean, 200000 bytes" must not come back after the object was cut.
#[test]
fn a_cut_large_file_is_found_as_it_was_or_cut() {
    for (seed, close_first) in (0..30).map(|seed| (seed, seed % 2 == 0)) {
        let env = sim_store(seed, &FormatOptions::default());
        let fs = open(&env);
        let ino = fs.mk(ROOT, "f");
        fs.put_at(ino, 0, &[1; 200_000]);
        fs.sync().unwrap();
        let fs = if close_first {
            fs.close().unwrap();
            drop(fs);
            open(&env)
        } else {
            fs
        };
        let ino = fs.find(ROOT, "f").unwrap().ino;
        let handle = fs.open_as(ino, WRITE);
        fs.cut(ino, 10);
        fs.write(ino, handle, 10, &[2; 5], false).unwrap();
        for cut in 0..4 {
            let env = match cut {
                0 => env.power_cut_keep_nothing(),
                1 => env.power_cut_keep_all(),
                _ => env.power_cut(seed * 7 + cut),
            };
            let fs = open(&env);
            assert_eq!(broken(&fs), [], "seed {seed}, cut {cut}");
            let attr = fs.find(ROOT, "f").unwrap();
            let bytes = fs.contents(attr.ino);
            assert_eq!(bytes.len() as u64, attr.size, "seed {seed}, cut {cut}");
            assert!(bytes[..10] == [1; 10], "seed {seed}, cut {cut}");
        }
    }
}

#[test]
fn after_a_power_cut_no_row_claims_bytes_of_large_files_that_are_gone() {
    let low = FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
    for seed in 0..25 {
        let env = sim_store(seed, &low);
        let mut lockstep = Lockstep::new(seed);
        let fs = open(&env);
        lockstep.run(&fs, 60).unwrap();
        fs.sync().unwrap();
        lockstep.run(&fs, 60).unwrap();
        for cut in 0..4 {
            let env = match cut {
                0 => env.power_cut_keep_nothing(),
                1 => env.power_cut_keep_all(),
                _ => env.power_cut(seed * 9 + cut),
            };
            assert_eq!(broken(&open(&env)), [], "seed {seed}, cut {cut}");
        }
    }
}

/// Large files that come and go between two syncs are never made durable, their objects go at once. No power cut brings a row back
/// that misses one.
#[test]
fn large_files_that_come_and_go_are_missed_by_no_row() {
    let low = FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
    let mut gone_at_once = 0;
    for seed in 0..16 {
        let env = sim_store(seed, &low);
        // Its memtables are flushed all the time.
        let fs = open_tiny(&env, MountOptions::default()).unwrap();
        let (mut rng, mut there) = (Rng::new(seed), Vec::new());
        for round in 0..40 {
            let text = format!("f{round}");
            let ino = fs.mk(ROOT, &text);
            fs.put_at(ino, 0, &vec![1; 5000 + rng.below(20_000) as usize]);
            there.push((text, ino));
            for other in 0..rng.below(8) {
                let small = fs.mk(ROOT, &format!("s{round}-{other}"));
                fs.put_at(small, 0, &[2; 300]);
            }
            match rng.below(6) {
                0 => fs.sync().unwrap(),
                1..=3 => {
                    let (text, ino) = there.swap_remove(rng.below(there.len() as u64) as usize);
                    fs.unlink(ROOT, name(&text)).unwrap();
                    fs.forget(ino, 1);
                    let object = format!("{STORE}/objects/0/0/{ino}");
                    gone_at_once += u32::from(env.stat(Path::new(&object)).is_err());
                }
                _ => {}
            }
            for cut in 0..3 {
                let env = match cut {
                    0 => env.power_cut_keep_nothing(),
                    1 => env.power_cut_keep_all(),
                    _ => env.power_cut(seed * 1000 + round),
                };
                let fs = open_tiny(&env, MountOptions::default()).unwrap();
                assert_eq!(broken(&fs), [], "seed {seed}, round {round}, cut {cut}");
                for text in (0..=round).map(|round| format!("f{round}")) {
                    let Ok(attr) = fs.find(ROOT, &text) else { continue };
                    // What was never synced may be there in part.
                    let is_its = fs.contents(attr.ino).iter().all(|byte| *byte <= 1);
                    assert!(is_its, "seed {seed}, round {round}, cut {cut}: {text}");
                }
            }
        }
    }
    assert!(gone_at_once > 50, "{gone_at_once}");
}

/// A process that died leaves rows in the log whose large files it never synced; the next one, which did
/// not write them, promises both with its first sync.
#[test]
fn a_sync_after_a_kill_covers_large_files_written_before_it() {
    for seed in 0..8 {
        let env = sim_store(seed, &FormatOptions::default());
        let fs = open(&env);
        let ino = fs.mk(ROOT, "f");
        fs.put_at(ino, 0, &[1; 200_000]);
        let env = env.process_kill();
        drop(fs);
        let fs = open(&env);
        fs.sync().unwrap();
        let env = if seed == 0 { env.power_cut_keep_nothing() } else { env.power_cut(seed) };
        let fs = open(&env);
        assert_eq!(broken(&fs), [], "seed {seed}");
        let ino = fs.find(ROOT, "f").unwrap().ino;
        assert!(fs.contents(ino) == [1; 200_000], "seed {seed}");
    }
}

/// The same of an open transaction at which nobody had looked since: its large files were promised, and nobody synced them. A check
/// promises them, too, as it recovers the log.
#[test]
fn a_sync_after_a_kill_covers_large_files_of_transactions() {
    type Promise = fn(&Arc<SimEnv>);
    let ways: [(&str, Promise); 3] = [
        ("a mount", |env| open(env).sync().unwrap()),
        ("a check of files", |env| {
            let options = CheckOptions::default();
            check_store(env.clone(), Path::new(STORE), &options, &mut |_| ()).unwrap();
        }),
        ("a check of tables", |env| {
            open_engine(env.clone(), Path::new(STORE), 16 << 20).unwrap().close().unwrap();
        }),
    ];
    for (what, promise) in ways {
        let env = sim_store(1, &FormatOptions::default());
        let fs = open(&env);
        let changed = fs.mk(ROOT, "changed");
        fs.put_at(changed, 0, &[1; 200_000]);
        fs.sync().unwrap();
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let view = fs.open_view(&txn).unwrap();
        view.put_at(view.find(ROOT, "changed").unwrap().ino, 0, &[9; 200_000]);
        view.put_at(view.mk(ROOT, "made"), 0, &[9; 200_000]);
        let env = env.process_kill();
        drop((view, fs));
        promise(&env);
        let fs = open(&env.power_cut_keep_nothing());
        let view = fs.open_view(&txn).unwrap();
        let is_all = |fs: &VarveFs| {
            let bytes =
                ["changed", "made"].map(|text| fs.contents(fs.find(ROOT, text).unwrap().ino));
            bytes.iter().all(|bytes| *bytes == [9; 200_000])
        };
        assert!(is_all(&view), "{what}");
        fs.commit_transaction(&txn.name, &view).unwrap();
        drop(view);
        assert!(is_all(&fs), "{what}");
        assert_eq!(broken(&fs), [], "{what}");
    }
}

/// What nothing can read is in the way of nobody else.
#[test]
fn a_damaged_large_file_of_a_transaction_keeps_no_store_from_being_mounted_after_a_kill() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let ino = fs.mk(ROOT, "f");
    fs.put_at(ino, 0, &[1; 200_000]);
    fs.sync().unwrap();
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = fs.open_view(&txn).unwrap();
    view.put_at(view.find(ROOT, "f").unwrap().ino, 0, &[9; 200_000]);
    let env = env.process_kill();
    drop((view, fs));
    let path = format!("{STORE}/views/{}/0/0/{ino}.blocks", txn.name);
    let blocks = env.open(Path::new(&path), OpenMode::ReadWrite).unwrap();
    blocks.write_all_at(&[0; 4096], 0).unwrap();
    drop(blocks);
    let fs = open(&env);
    fs.mk(ROOT, "g");
    fs.sync().unwrap();
    fs.abort_transaction(&txn.name).unwrap();
    assert!(fs.contents(fs.find(ROOT, "f").unwrap().ino) == [1; 200_000]);
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
}

/// The rows were synced by the process that died, and later bytes of the file were not: a sync of the next
/// process found no row to cover and left them out.
#[test]
fn a_sync_after_a_kill_covers_bytes_that_no_row_claims() {
    for closes in [false, true] {
        let env = sim_store(1, &FormatOptions::default());
        let fs = open(&env);
        let ino = fs.mk(ROOT, "f");
        let handle = fs.open_as(ino, WRITE);
        fs.write(ino, handle, 0, &[1; 100_000], false).unwrap();
        fs.sync().unwrap();
        fs.write(ino, handle, 0, &[2; 100_000], false).unwrap();
        let env = env.process_kill();
        drop(fs);
        let fs = open(&env);
        if closes {
            fs.close().unwrap()
        } else {
            fs.sync().unwrap()
        }
        let fs = open(&env.power_cut_keep_nothing());
        let ino = fs.find(ROOT, "f").unwrap().ino;
        assert!(fs.contents(ino) == [2; 100_000], "closed: {closes}");
    }
}

/// A mount whose storage failed, or was full, forgot which files had been written when a daemon died: their rows stayed as they were
/// for ever.
#[test]
fn what_was_being_written_is_settled_by_a_later_mount_if_the_first_cannot() {
    for errno in [5, 28] {
        let env = sim_store(9, &FormatOptions::default());
        let fs = open(&env);
        let ino = fs.mk(ROOT, "f");
        fs.put_at(ino, 0, &[1; 100_000]);
        let handle = fs.open_as(ino, WRITE);
        fs.write(ino, handle, 0, &[2; 200_000], false).unwrap();
        drop(fs);
        let env = env.process_kill();
        let path_suffix = format!("/{ino}");
        env.fail(FaultRule { path_suffix, op: SimOp::Stat, nth: 1, errno, sticky: true });
        open(&env).close().unwrap();
        assert!(env.fault_count() > 0);
        env.clear_faults();
        let env = env.process_kill();
        let fs = open(&env);
        assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
        assert_eq!(fs.usage(ROOT).unwrap().bytes, 200_000);
        fs.close().unwrap();
        drop(fs);
        let (mut dumped, dyn_env): (_, Arc<dyn Env>) = (Vec::new(), env);
        dump_store(dyn_env, Path::new(STORE), 16 << 20, &mut dumped, &mut |_| ()).unwrap();
    }
}

#[test]
fn bytes_that_outlived_their_row_are_not_read() {
    let mut trimmed = 0;
    for seed in 0..60 {
        let env = sim_store(seed, &FormatOptions::default());
        let fs = open(&env);
        let ino = fs.mk(ROOT, "f");
        fs.put_at(ino, 0, &[1; 200_000]);
        fs.sync().unwrap();
        fs.put_at(ino, 200_000, &[2; 50_000]);
        let env = env.power_cut(seed);
        let object = Path::new(STORE).join("objects/0/0").join(ino.get().to_string());
        let kept = env.read_raw(&object).unwrap().len() as u64;
        let fs = open(&env);
        let attr = fs.find(ROOT, "f").unwrap();
        assert_eq!(fs.contents(ino).len() as u64, attr.size, "seed {seed}");
        trimmed += u32::from(kept > attr.size);
    }
    assert!(trimmed > 0, "no seed kept the bytes and lost the row");
}

#[test]
fn one_sync_covers_more_large_files_than_are_held_open() {
    let env = sim_store(7, &FormatOptions::default());
    let fs = open(&env);
    // The first sync covers everything in any case.
    let first = fs.mk(ROOT, "first");
    fs.put_at(first, 0, &[1; 70_000]);
    fs.sync().unwrap();
    let files: Vec<_> = (0..150).map(|i| fs.mk(ROOT, &format!("f{i}"))).collect();
    for ino in &files {
        fs.put_at(*ino, 0, &[1; 70_000]);
    }
    fs.sync().unwrap();
    let fs = open(&env.power_cut_keep_nothing());
    assert_eq!(broken(&fs), []);
    fs.readdir(ROOT, 0, true, &mut |_| true).unwrap();
    for ino in &files {
        assert!(fs.contents(*ino) == [1; 70_000], "{ino}");
    }
}

/// A program sets the mtime of a large file that it has written and not closed. The object was given the time before the row
/// noted that of the change, so that a crash in between, or a refusal, left a ctime before that of the last write.
#[test]
fn the_ctime_of_a_file_that_is_written_never_goes_back() {
    let old = Timestamp::new(-5, 7).unwrap();
    let set = SetAttr { mtime: Some(SetTime::To(old)), ..SetAttr::default() };
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let ino = fs.mk(ROOT, "f");
    let handle = fs.open_as(ino, WRITE);
    fs.write(ino, handle, 0, &[1; 100_000], false).unwrap();
    fs.write(ino, handle, 0, &[2; 100], false).unwrap();
    let before = fs.getattr(ino).unwrap();
    let copies: Arc<Mutex<Vec<Arc<SimEnv>>>> = Arc::default();
    let kept = Arc::clone(&copies);
    env.watch(Box::new(move |_, copy| kept.lock().push(copy())));
    let after = fs.setattr(Caller::ROOT, ino, set).unwrap();
    env.unwatch();
    assert!(after.mtime == old && after.ctime > before.ctime, "{after:?}");
    let copies = std::mem::take(&mut *copies.lock());
    assert!(copies.len() > 1, "the row and the object");
    for copy in copies {
        let found = open(&copy.process_kill()).find(ROOT, "f").unwrap();
        assert!(found.ctime >= before.ctime, "{found:?}");
        assert!(found.mtime == before.mtime || found.ctime > before.ctime, "{found:?}");
    }
    for op in [SimOp::Stat, SimOp::SetTimes] {
        let before = fs.getattr(ino).unwrap();
        fs.write(ino, handle, 0, &[3; 100], false).unwrap();
        let path_suffix = format!("/{ino}");
        env.fail(FaultRule { path_suffix, op, nth: 1, errno: 5, sticky: true });
        fs.setattr(Caller::ROOT, ino, set).unwrap_err();
        env.clear_faults();
        let found = fs.getattr(ino).unwrap();
        assert!(found.ctime > before.ctime, "{op:?}: {found:?}");
    }
}
