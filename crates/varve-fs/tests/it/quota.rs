//! Limits on directory trees: at the edge, across domains, under threads, after crashes.

use std::sync::atomic::{AtomicBool, Ordering};

use varve_fs::{FormatOptions, MountOptions, VarveFs};
use varve_testkit::at_end;
use varve_testkit::rng::Rng;
use varve_types::InodeId;
use varve_vfs::{
    AllocateMode, Caller, FsError, FsResult, OpenFlags, Position, RenameMode, SetAttr, TreeLimits,
    TreeUsage, Vfs,
};

use crate::concurrent::{assert_sound, in_threads, random_operation};
use crate::crash::{open, sim_store};
use crate::support::{BOTH, Calls, READ, ROOT, Rig, WRITE, name, opened_straight};

fn limits(bytes: Option<u64>, inodes: Option<u64>) -> TreeLimits {
    TreeLimits { bytes, inodes }
}

/// Asserts that every limit's counters say what lies below, and says what that is.
#[track_caller]
fn counted(fs: &VarveFs) -> Vec<TreeUsage> {
    let quotas = fs.quotas(ROOT).unwrap();
    let usages = quotas.iter().map(|quota| {
        let mut at = ROOT;
        for part in quota.path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            at = fs.find(at, std::str::from_utf8(part).unwrap()).unwrap().ino;
        }
        assert_eq!(quota.usage, fs.usage(at).unwrap(), "{}", quota.path.escape_ascii());
        quota.usage
    });
    usages.collect()
}

#[track_caller]
fn exceeded<T: std::fmt::Debug>(result: FsResult<T>) {
    assert!(matches!(result, Err(FsError::QuotaExceeded)), "{result:?}");
}

fn write(fs: &VarveFs, ino: InodeId, offset: u64, len: usize) -> FsResult<usize> {
    let handle = fs.open_as(ino, WRITE);
    let written = fs.write(ino, handle, offset, &vec![1; len], false);
    fs.release(ino, handle).unwrap();
    written.map(|written| written.bytes)
}

fn resize(fs: &VarveFs, ino: InodeId, size: u64) -> FsResult<()> {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(Caller::ROOT, ino, set).map(drop)
}

/// Small files, files that become large, and large ones: the last byte fits, the next does not.
#[test]
fn a_tree_takes_exactly_as_many_bytes_as_its_limit() {
    for limit in [100, 5000, 65_536, 65_537, 200_000] {
        let rig = Rig::new();
        let top = rig.mk_dir(ROOT, "top");
        let dir = rig.mk_dir(top, "d");
        rig.set_limits(top, limits(Some(limit), None)).unwrap();
        let file = rig.mk(dir, "f");
        assert_eq!(write(&rig, file, 0, limit as usize).unwrap() as u64, limit);
        exceeded(write(&rig, file, limit, 1));
        exceeded(resize(&rig, file, limit + 1));
        assert_eq!(write(&rig, file, 0, limit as usize).unwrap() as u64, limit, "over itself");
        let handle = rig.open_as(file, WRITE);
        let grow = |len| rig.fallocate(file, handle, AllocateMode::Extend, 0, len);
        exceeded(grow(limit + 1));
        rig.release(file, handle).unwrap();
        exceeded(rig.symlink(Caller::ROOT, dir, name("s"), b"x"));
        rig.mk(dir, "empty");
        resize(&rig, file, limit - 10).unwrap();
        assert_eq!(write(&rig, file, limit - 10, 30).unwrap(), 10, "what fits is written");
        assert_eq!(rig.getattr(file).unwrap().size, limit);
        let append = OpenFlags { append: true, ..WRITE };
        let handle = rig.open_as(file, append);
        exceeded(rig.write(file, handle, 0, b"x", false));
        rig.release(file, handle).unwrap();
        assert_eq!(counted(&rig), [TreeUsage { bytes: limit, files: 2, dirs: 1 }]);
        let rig = rig.remount();
        let file = rig.find(rig.find(rig.find(ROOT, "top").unwrap().ino, "d").unwrap().ino, "f");
        exceeded(write(&rig, file.unwrap().ino, limit, 1));
        assert_eq!(counted(&rig), [TreeUsage { bytes: limit, files: 2, dirs: 1 }]);
        rig.unlink(dir, name("f")).unwrap();
        let other = rig.mk(dir, "g");
        resize(&rig, other, limit).unwrap();
        exceeded(resize(&rig, other, limit + 1));
        rig.set_limits(top, TreeLimits::default()).unwrap();
        resize(&rig, other, limit + 1).unwrap();
        assert!(rig.quotas(ROOT).unwrap().is_empty());
        assert_eq!(rig.check(&mut |_| ()).unwrap().errors, 0);
    }
}

#[test]
fn a_tree_takes_exactly_as_many_inodes_as_its_limit() {
    let rig = Rig::new();
    let top = rig.mk_dir(ROOT, "top");
    rig.set_limits(top, limits(None, Some(3))).unwrap();
    let dir = rig.mk_dir(top, "d");
    rig.mk(dir, "a");
    let b = rig.mk(dir, "b");
    exceeded(rig.create(Caller::ROOT, dir, name("c"), 0o644, WRITE));
    exceeded(rig.mkdir(Caller::ROOT, dir, name("c"), 0o755));
    exceeded(rig.mknod(Caller::ROOT, dir, name("c"), 0o010_644, 0));
    exceeded(rig.symlink(Caller::ROOT, dir, name("c"), b"x"));
    let (entry, opened) = rig.tmpfile(Caller::ROOT, dir, 0o600, WRITE).unwrap();
    exceeded(rig.link(entry.attr.ino, dir, name("c")));
    rig.link(b, dir, name("second name")).unwrap();
    rig.mk(ROOT, "outside");
    exceeded(rig.mv(ROOT, "outside", dir, "c"));
    rig.mv(ROOT, "outside", dir, "a").unwrap();
    rig.unlink(dir, name("b")).unwrap();
    exceeded(rig.link(entry.attr.ino, dir, name("c")));
    rig.unlink(dir, name("second name")).unwrap();
    rig.link(entry.attr.ino, dir, name("c")).unwrap();
    rig.release(entry.attr.ino, opened.handle).unwrap();
    assert_eq!(counted(&rig), [TreeUsage { bytes: 0, files: 2, dirs: 1 }]);
}

#[test]
fn what_moves_between_trees_counts_where_it_comes_to() {
    let rig = Rig::new();
    let [a, b] = ["a", "b"].map(|text| rig.mk_dir(ROOT, text));
    let tree = rig.mk_dir(a, "tree");
    let deep = rig.mk_dir(tree, "deep");
    let file = rig.mk(deep, "f");
    write(&rig, file, 0, 700).unwrap();
    rig.set_limits(a, limits(Some(1000), None)).unwrap();
    rig.set_limits(b, limits(Some(699), Some(10))).unwrap();
    exceeded(rig.mv(a, "tree", b, "tree"));
    exceeded(rig.mv(deep, "f", b, "f"));
    resize(&rig, file, 699).unwrap();
    rig.mv(a, "tree", b, "tree").unwrap();
    assert_eq!(counted(&rig)[1], TreeUsage { bytes: 699, files: 1, dirs: 2 });
    exceeded(resize(&rig, file, 700));
    // Exchanging frees as much as it takes.
    let other = rig.mk(a, "other");
    resize(&rig, other, 1000).unwrap();
    exceeded(rig.rename(a, name("other"), b, name("tree"), RenameMode::Exchange));
    resize(&rig, other, 600).unwrap();
    rig.rename(a, name("other"), b, name("tree"), RenameMode::Exchange).unwrap();
    assert_eq!(counted(&rig)[0], TreeUsage { bytes: 699, files: 1, dirs: 2 });
    // A limit within a limit: both hold.
    rig.set_limits(deep, limits(Some(699), None)).unwrap();
    exceeded(resize(&rig, file, 700));
    rig.set_limits(deep, limits(Some(2000), None)).unwrap();
    resize(&rig, file, 1000).unwrap();
    exceeded(resize(&rig, file, 1001));
    assert_eq!(counted(&rig).len(), 3);
    // One file has its names where the same limits hold.
    rig.link(file, deep, name("again")).unwrap();
    let crossing = |result| assert!(matches!(result, Err(FsError::CrossesLimits)));
    crossing(rig.link(file, b, name("again")).map(drop));
    crossing(rig.mv(deep, "again", b, "again"));
    rig.mv(deep, "again", deep, "f2").unwrap();
    // What had limits and is removed has none.
    for text in ["f", "f2"] {
        rig.unlink(deep, name(text)).unwrap();
    }
    rig.rmdir(tree, name("deep")).unwrap();
    assert_eq!(counted(&rig).len(), 2);
    let rig = rig.remount();
    assert_eq!(counted(&rig).len(), 2);
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

/// A large file without a name counts nowhere, and its row says how large it was when it became one: limits were passed by
/// writing to it first and naming it then.
#[test]
fn a_large_file_that_gets_a_name_counts_as_large_as_it_is() {
    let rig = Rig::new();
    let top = rig.mk_dir(ROOT, "top");
    rig.set_limits(top, limits(Some(200_000), None)).unwrap();
    let (entry, opened) = rig.tmpfile(Caller::ROOT, top, 0o600, WRITE).unwrap();
    let (ino, handle) = (entry.attr.ino, opened.handle);
    for at in 0..10 {
        let written = rig.write(ino, handle, at * 30_000, &[1; 30_000], false).unwrap();
        assert_eq!(written.bytes, 30_000);
    }
    exceeded(rig.link(ino, top, name("f")));
    assert_eq!(counted(&rig), [TreeUsage::default()]);
    resize(&rig, ino, 150_000).unwrap();
    rig.write(ino, handle, 150_000, &[1; 50_000], false).unwrap();
    rig.link(ino, top, name("f")).unwrap();
    exceeded(rig.write(ino, handle, 200_000, b"x", false));
    assert_eq!(counted(&rig), [TreeUsage { bytes: 200_000, files: 1, dirs: 0 }]);
    rig.release(ino, handle).unwrap();
    assert_eq!(counted(&rig), [TreeUsage { bytes: 200_000, files: 1, dirs: 0 }]);
    let rig = rig.remount();
    assert_eq!(counted(&rig), [TreeUsage { bytes: 200_000, files: 1, dirs: 0 }]);
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

/// What is written to a large file where no limits hold is not in its row at once: a file that had several names could be
/// moved below a limit with less than it holds.
#[test]
fn a_large_file_that_comes_below_a_limit_counts_as_large_as_it_is() {
    for had_two_names in [false, true] {
        let rig = Rig::new();
        let top = rig.mk_dir(ROOT, "top");
        rig.set_limits(top, limits(Some(200_000), None)).unwrap();
        let file = rig.mk(ROOT, "f");
        if had_two_names {
            rig.link(file, ROOT, name("g")).unwrap();
            rig.unlink(ROOT, name("f")).unwrap();
            rig.mv(ROOT, "g", ROOT, "f").unwrap();
        }
        let handle = rig.open_as(file, WRITE);
        for at in 0..10 {
            rig.write(file, handle, at * 30_000, &[1; 30_000], false).unwrap();
        }
        exceeded(rig.mv(ROOT, "f", top, "f"));
        resize(&rig, file, 150_000).unwrap();
        rig.write(file, handle, 150_000, &[1; 50_000], false).unwrap();
        rig.mv(ROOT, "f", top, "f").unwrap();
        exceeded(rig.write(file, handle, 200_000, b"x", false));
        rig.release(file, handle).unwrap();
        assert_eq!(counted(&rig), [TreeUsage { bytes: 200_000, files: 1, dirs: 0 }]);
        let rig = rig.remount();
        assert_eq!(counted(&rig), [TreeUsage { bytes: 200_000, files: 1, dirs: 0 }]);
        assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
    }
}

/// Cutting a large file was refused like growth, where the kernel had written more to it than its row says.
#[test]
fn a_file_larger_than_a_new_limit_can_be_cut() {
    let rig = Rig::new();
    let top = rig.mk_dir(ROOT, "top");
    let file = rig.mk(top, "f");
    write(&rig, file, 0, 100_000).unwrap();
    let opened = rig.open(file, WRITE).unwrap();
    let mut straight = None;
    rig.with_passthrough(opened.handle, &mut |fd| straight = Some(opened_straight(fd))).unwrap();
    rig.set_limits(top, limits(Some(200_000), None)).unwrap();
    straight.take().unwrap().set_len(500_000).unwrap();
    resize(&rig, file, 300_000).unwrap();
    assert_eq!(rig.getattr(file).unwrap().size, 300_000);
    exceeded(resize(&rig, file, 300_001));
    resize(&rig, file, 150_000).unwrap();
    resize(&rig, file, 200_000).unwrap();
    exceeded(resize(&rig, file, 200_001));
    rig.release(file, opened.handle).unwrap();
    assert_eq!(counted(&rig), [TreeUsage { bytes: 200_000, files: 1, dirs: 0 }]);
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

/// What was reserved beyond the end of a large file counted nowhere, and stayed when the file was closed: a limit of some MiB
/// was no bar to taking the whole disk.
#[test]
fn nothing_is_reserved_beyond_the_end_of_a_file_where_limits_hold() {
    const SIZE: usize = 1 << 20;
    let rig = Rig::new();
    let top = rig.mk_dir(ROOT, "top");
    rig.set_limits(top, limits(Some(2 << 20), None)).unwrap();
    let taken = |ino| rig.getattr(ino).unwrap().blocks * 512;
    let reserve = |ino, handle, offset| {
        for mode in [AllocateMode::KeepSize, AllocateMode::ZeroKeepSize] {
            rig.fallocate(ino, handle, mode, offset, 64 << 20).unwrap();
        }
    };
    let named = rig.mk(top, "f");
    write(&rig, named, 0, SIZE).unwrap();
    let handle = rig.open_as(named, WRITE);
    reserve(named, handle, SIZE as u64);
    assert!(taken(named) <= 2 << 20, "{} bytes", taken(named));
    rig.fallocate(named, handle, AllocateMode::PunchHole, 0, SIZE as u64).unwrap();
    let punched = taken(named);
    reserve(named, handle, 0);
    assert!((punched + 1..=2 << 20).contains(&taken(named)), "within it, room is reserved");
    rig.release(named, handle).unwrap();
    // One that may get a name below the limit.
    let (entry, opened) = rig.tmpfile(Caller::ROOT, top, 0o600, WRITE).unwrap();
    let unnamed = entry.attr.ino;
    rig.write(unnamed, opened.handle, 0, &[1; SIZE], false).unwrap();
    reserve(unnamed, opened.handle, SIZE as u64);
    assert!(taken(unnamed) <= 2 << 20, "{} bytes", taken(unnamed));
    rig.release(unnamed, opened.handle).unwrap();
    // No limits hold there.
    let free = rig.mk(ROOT, "free");
    write(&rig, free, 0, SIZE).unwrap();
    let handle = rig.open_as(free, WRITE);
    rig.fallocate(free, handle, AllocateMode::KeepSize, 0, 4 << 20).unwrap();
    assert!(taken(free) >= 4 << 20);
    rig.release(free, handle).unwrap();
}

/// It was EDQUOT where limits held for anything at all.
#[test]
fn what_has_no_name_takes_copies_however_small_the_limits() {
    let rig = Rig::new();
    let top = rig.mk_dir(ROOT, "top");
    let from = rig.mk(ROOT, "from");
    write(&rig, from, 0, 300_000).unwrap();
    let read = rig.open_as(from, READ);
    let (made, opened) = rig.tmpfile(Caller::ROOT, top, 0o600, BOTH).unwrap();
    let removed = rig.mk(top, "removed");
    let handle = rig.open_as(removed, BOTH);
    rig.set_limits(top, limits(Some(10), None)).unwrap();
    rig.unlink(top, name("removed")).unwrap();
    for (ino, handle) in [(made.attr.ino, opened.handle), (removed, handle)] {
        let source = Position { ino: from, handle: read, offset: 0 };
        let target = Position { ino, handle, offset: 0 };
        assert_eq!(rig.copy_range(source, target, 300_000).unwrap(), 300_000);
        assert_eq!(rig.read(ino, handle, 0, 300_000).unwrap(), vec![1; 300_000]);
        rig.release(ino, handle).unwrap();
    }
    rig.release(from, read).unwrap();
}

/// Naming a file while it grows: whichever comes first, the limit holds.
#[test]
fn a_file_that_is_named_while_it_grows_stays_within_the_limit() {
    let rig = Rig::new();
    let top = rig.mk_dir(ROOT, "top");
    rig.set_limits(top, limits(Some(200_000), None)).unwrap();
    let (mut named, mut refused) = (0, 0);
    for round in 0..200 {
        let (entry, opened) = rig.tmpfile(Caller::ROOT, top, 0o600, WRITE).unwrap();
        let (ino, handle) = (entry.attr.ino, opened.handle);
        rig.write(ino, handle, 0, &[1; 70_000], false).unwrap();
        let linked = std::thread::scope(|scope| {
            let grow = scope.spawn(|| match round % 2 {
                0 => rig.write(ino, handle, 200_000, &[1; 100_000], false).map(drop),
                _ => rig.fallocate(ino, handle, AllocateMode::Extend, 0, 300_000),
            });
            let linked = rig.link(ino, top, name("f"));
            let _ = grow.join().unwrap();
            linked
        });
        rig.release(ino, handle).unwrap();
        rig.forget(ino, 1);
        match linked {
            Ok(_) => {
                named += 1;
                let usage = counted(&rig)[0];
                assert!(usage.bytes <= 200_000, "round {round}: {usage:?}");
                rig.unlink(top, name("f")).unwrap();
                rig.forget(ino, 1);
            }
            other => {
                exceeded(other);
                refused += 1;
            }
        }
    }
    assert!(named > 0, "{named} named, {refused} refused");
}

#[test]
fn limits_on_the_root_are_the_room_of_the_file_system() {
    let rig = Rig::new();
    rig.set_limits(ROOT, limits(Some(1 << 20), Some(5))).unwrap();
    let file = rig.mk(ROOT, "f");
    write(&rig, file, 0, 4096 * 3).unwrap();
    let room = rig.statfs().unwrap();
    assert_eq!((room.blocks, room.blocks_free, room.blocks_available), (256, 253, 253));
    assert_eq!((room.files, room.files_free), (5, 4));
    rig.set_limits(ROOT, limits(Some(4096), Some(1))).unwrap();
    let room = rig.statfs().unwrap();
    assert_eq!(
        (room.blocks, room.blocks_free, room.files_free),
        (1, 0, 0),
        "more is there already"
    );
    exceeded(write(&rig, file, 4096 * 3, 1));
    rig.cut(file, 4095);
    assert_eq!(write(&rig, file, 4095, 5).unwrap(), 1);
}

/// Writers together never exceed a limit, and reach it.
#[test]
fn concurrent_writers_never_exceed_a_limit() {
    const LIMIT: u64 = 400_000;
    for seed in 0..3 {
        let rig = Rig::new();
        let top = rig.mk_dir(ROOT, "top");
        let dirs: Vec<_> = (0..4).map(|i| rig.mk_dir(top, &format!("d{i}"))).collect();
        rig.set_limits(top, limits(Some(LIMIT), Some(60))).unwrap();
        let done = AtomicBool::new(false);
        let refused = std::thread::scope(|scope| {
            let end = at_end(|| done.store(true, Ordering::Relaxed));
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let usage = rig.quotas(top).unwrap()[0].usage;
                    assert!(usage.bytes <= LIMIT && usage.files + usage.dirs <= 60, "{usage:?}");
                }
            });
            let refused = std::sync::atomic::AtomicU64::new(0);
            in_threads(&rig, seed, |fs, mut rng| {
                for _ in 0..400 {
                    if let Err(FsError::QuotaExceeded) = grow_or_shrink(fs, &dirs, &mut rng) {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            drop(end);
            refused.into_inner()
        });
        assert!(refused > 10, "{refused} refusals: the limit was hardly met");
        counted(&rig);
        assert_sound(&rig, "after the writers");
    }
}

fn grow_or_shrink(fs: &VarveFs, dirs: &[InodeId], rng: &mut Rng) -> FsResult<()> {
    let (dir, text) = (*rng.pick(dirs), format!("f{}", rng.below(20)));
    if rng.chance(20) {
        return fs.unlink(dir, name(&text));
    }
    let (entry, opened) = fs.create(Caller::ROOT, dir, name(&text), 0o644, WRITE)?;
    let len = *rng.pick(&[10, 600, 5000, 40_000, 90_000]);
    let at = *rng.pick(&[0, 100, 60_000]);
    let written = fs.write(entry.attr.ino, opened.handle, at, &vec![1; len], false);
    fs.release(entry.attr.ino, opened.handle)?;
    fs.forget(entry.attr.ino, 1);
    written.map(drop)
}

/// Every operation, with trees that move between limits while files grow, from many threads: the counters are
/// what lies below, in the end and after a remount.
#[test]
fn counters_follow_every_operation() {
    for seed in 0..4 {
        let bits = if seed == 3 { 1 } else { 55 };
        let format_options = FormatOptions { name_hash_bits: bits, ..FormatOptions::default() };
        let few = MountOptions { marked_dirs_max: 4, ..MountOptions::default() };
        let rig = Rig::with(&format_options, few);
        let tops: Vec<_> = (0..3).map(|i| rig.mk_dir(ROOT, &format!("top{i}"))).collect();
        let mut dirs = vec![ROOT];
        for top in &tops {
            rig.set_limits(*top, limits(Some(1 << 40), Some(1 << 30))).unwrap();
            let inner = rig.mk_dir(*top, "inner");
            dirs.extend([*top, inner]);
        }
        rig.set_limits(dirs[2], limits(Some(1 << 30), None)).unwrap();
        in_threads(&rig, seed, |fs, mut rng| {
            for _ in 0..1000 {
                let moved = match rng.below(6) {
                    0 => {
                        let (from, to) = (*rng.pick(&tops), *rng.pick(&tops));
                        let mode = *rng.pick(&[RenameMode::NoReplace, RenameMode::Exchange]);
                        fs.rename(from, name("inner"), to, name("inner"), mode)
                    }
                    1 => fs.set_limits(tops[0], limits(Some(1 << 41), None)),
                    _ => random_operation(fs, &dirs, &mut rng),
                };
                match moved {
                    Err(FsError::Storage(text)) => panic!("{text}"),
                    Err(FsError::QuotaExceeded) => panic!("there is room"),
                    _ => {}
                }
            }
        });
        assert_eq!(counted(&rig).len(), 4, "seed {seed}");
        assert_sound(&rig, &format!("seed {seed}"));
        let rig = rig.remount();
        assert_eq!(counted(&rig).len(), 4, "seed {seed}, remounted");
    }
}

/// Grows under a limit in every way until it is met.
fn fill(fs: &VarveFs, top: InodeId) -> FsResult<()> {
    let dir = fs.mkdir(Caller::ROOT, top, name("d"), 0o755)?.attr.ino;
    let (entry, opened) = fs.create(Caller::ROOT, dir, name("f"), 0o644, WRITE)?;
    let ino = entry.attr.ino;
    for at in 0..8 {
        fs.write(ino, opened.handle, at * 30_000, &[1; 30_000], false)?;
        if at % 3 == 0 {
            fs.fsync(ino, opened.handle, false)?;
        }
    }
    fs.sync()?;
    fs.release(ino, opened.handle)
}

#[test]
fn counters_are_right_and_limits_hold_after_a_crash_at_every_point() {
    const LIMIT: u64 = 200_000;
    let prepared = || {
        let env = sim_store(5, &FormatOptions::default());
        let fs = open(&env);
        let top = fs.mk_dir(ROOT, "top");
        fs.set_limits(top, limits(Some(LIMIT), Some(5))).unwrap();
        fs.sync().unwrap();
        (env, fs, top)
    };
    let ops = {
        let (env, fs, top) = prepared();
        let before = env.op_count();
        exceeded(fill(&fs, top));
        fs.sync().unwrap();
        before..env.op_count()
    };
    for crash in ops {
        let (env, fs, top) = prepared();
        env.crash_after(crash);
        let _ = fill(&fs, top);
        for cut in 0..4 {
            let env = match cut {
                0 => env.power_cut_keep_nothing(),
                1 => env.power_cut_keep_all(),
                2 => env.process_kill_within(crash),
                _ => env.power_cut(crash),
            };
            let fs = open(&env);
            let usage = counted(&fs);
            assert_eq!(usage.len(), 1, "operation {crash}, cut {cut}");
            assert!(usage[0].bytes <= LIMIT, "operation {crash}, cut {cut}: {usage:?}");
            assert_eq!(fs.check(&mut |_| ()).unwrap().errors, 0, "operation {crash}, cut {cut}");
            let left = LIMIT - usage[0].bytes;
            let file = fs.mk(top, "rest");
            resize(&fs, file, left).unwrap();
            exceeded(resize(&fs, file, left + 1));
        }
    }
}
