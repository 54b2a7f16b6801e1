//! What directories say lies below them: after every operation, at every crash, under threads.

use std::sync::atomic::{AtomicBool, Ordering};

use varve_fs::fsck::Finding;
use varve_fs::{FormatOptions, MountOptions, VarveFs};
use varve_schema::{Mark, ParentRow, RowKey};
use varve_testkit::rng::Rng;
use varve_types::InodeId;
use varve_vfs::{Caller, FileType, FsError, FsResult, RenameMode, TreeUsage, Vfs};

use crate::bench::Bench;
use crate::crash::{open, sim_store};
use crate::support::{Calls, READ, ROOT, Rig, WRITE, name};

/// What lies below `dir` by a walk; no file in it may have two names.
fn walk(fs: &VarveFs, dir: InodeId) -> TreeUsage {
    let mut usage = TreeUsage::default();
    let mut found = Vec::new();
    fs.readdir(dir, 0, true, &mut |entry| {
        found.extend(entry.attr);
        true
    })
    .unwrap();
    for attr in found {
        if attr.kind == FileType::Directory {
            let below = walk(fs, attr.ino);
            usage.dirs += 1 + below.dirs;
            usage.files += below.files;
            usage.bytes += below.bytes;
        } else {
            usage.files += 1;
            usage.bytes += attr.size;
        }
        fs.forget(attr.ino, 1);
    }
    usage
}

fn of(bytes: u64, files: u64, dirs: u64) -> TreeUsage {
    TreeUsage { bytes, files, dirs }
}

#[test]
fn a_change_counts_in_every_directory_above_at_once() {
    let rig = Rig::new();
    let mut dirs = vec![ROOT];
    for level in 0..5 {
        dirs.push(rig.mk_dir(dirs[level], "d"));
    }
    let file = rig.mk(dirs[5], "f");
    rig.put_at(file, 0, &[1; 1000]);
    rig.symlink(Caller::ROOT, dirs[2], name("s"), b"target").unwrap();
    for (level, dir) in dirs.iter().enumerate() {
        let symlink = u64::from(level <= 2);
        let expected = of(1000 + 6 * symlink, 1 + symlink, 5 - level as u64);
        assert_eq!(rig.usage(*dir).unwrap(), expected, "level {level}");
    }
    assert_eq!(rig.usage(file).unwrap(), of(1000, 1, 0));
    rig.cut(file, 10);
    assert_eq!(rig.usage(ROOT).unwrap(), of(16, 2, 5));
    rig.mv(dirs[3], "d", ROOT, "moved").unwrap();
    assert_eq!(rig.usage(dirs[3]).unwrap(), of(0, 0, 0));
    assert_eq!(rig.usage(dirs[1]).unwrap(), of(6, 1, 2));
    assert_eq!(rig.usage(ROOT).unwrap(), of(16, 2, 5));
    let rig = rig.remount();
    assert_eq!(rig.usage(ROOT).unwrap(), of(16, 2, 5));
    rig.unlink(dirs[5], name("f")).unwrap();
    assert_eq!(rig.usage(ROOT).unwrap(), of(6, 1, 5));
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

#[test]
fn a_file_with_several_names_counts_where_one_of_them_is() {
    let rig = Rig::new();
    let dirs: Vec<_> = (0..4).map(|i| rig.mk_dir(ROOT, &format!("d{i}"))).collect();
    let file = rig.mk(dirs[0], "f0");
    rig.put_at(file, 0, &[1; 700]);
    for (i, dir) in dirs.iter().enumerate().skip(1) {
        rig.link(file, *dir, name(&format!("f{i}"))).unwrap();
    }
    let counted = |rig: &Rig| {
        let files = dirs.iter().map(|dir| rig.usage(*dir).unwrap());
        files.map(|usage| (usage.files, usage.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(counted(&rig), [(1, 700), (0, 0), (0, 0), (0, 0)], "where it was first");
    rig.put_at(file, 700, &[1; 1]);
    rig.unlink(dirs[0], name("f0")).unwrap();
    let mut now = counted(&rig);
    assert_eq!(now.remove(0), (0, 0));
    now.sort_unstable();
    assert_eq!(now, [(0, 0), (0, 0), (1, 701)]);
    let home = counted(&rig).iter().position(|counted| counted.0 == 1).unwrap();
    rig.mv(dirs[home], &format!("f{home}"), dirs[0], "back").unwrap();
    assert_eq!(counted(&rig)[0], (1, 701), "the home moves along");
    let other = if home == 1 { 2 } else { 1 };
    rig.mv(dirs[other], &format!("f{other}"), ROOT, "elsewhere").unwrap();
    assert_eq!(counted(&rig)[0], (1, 701), "another name moves alone");
    let mover = rig.mk(ROOT, "mover");
    rig.mv(ROOT, "mover", dirs[0], "back").unwrap();
    assert_eq!(rig.usage(ROOT).unwrap(), of(701, 2, 4), "replaced by {mover}");
    assert_eq!(counted(&rig)[0], (1, 0));
    assert_eq!(rig.check(&mut |_| ()).unwrap().errors, 0);
    for (dir, text) in [(ROOT, "elsewhere".to_owned())]
        .into_iter()
        .chain(dirs.iter().enumerate().map(|(i, dir)| (*dir, format!("f{i}"))))
    {
        let _ = rig.unlink(dir, name(&text));
    }
    assert_eq!(rig.usage(ROOT).unwrap(), of(0, 1, 4));
    assert_eq!(rig.check(&mut |_| ()).unwrap().errors, 0);
}

#[test]
fn temporary_and_removed_files_count_only_with_a_name() {
    let rig = Rig::new();
    let (entry, opened) = rig.tmpfile(Caller::ROOT, ROOT, 0o600, WRITE).unwrap();
    let ino = entry.attr.ino;
    rig.write(ino, opened.handle, 0, &[1; 100_000], false).unwrap();
    assert_eq!(rig.usage(ROOT).unwrap(), of(0, 0, 0));
    rig.link(ino, ROOT, name("named")).unwrap();
    assert_eq!(rig.usage(ROOT).unwrap(), of(100_000, 1, 0), "while it is still written to");
    rig.write(ino, opened.handle, 100_000, &[1; 50], false).unwrap();
    assert_eq!(rig.usage(ROOT).unwrap(), of(100_050, 1, 0));
    rig.release(ino, opened.handle).unwrap();
    assert_eq!(rig.usage(ROOT).unwrap(), of(100_050, 1, 0));
    let held = rig.open_as(ino, READ);
    rig.unlink(ROOT, name("named")).unwrap();
    assert_eq!(rig.usage(ROOT).unwrap(), of(0, 0, 0));
    rig.release(ino, held).unwrap();
    assert_eq!(rig.check(&mut |_| ()).unwrap().errors, 0);
}

/// Names, sizes and directories that change in all ways; stops at the first failure.
fn workload(fs: &VarveFs) -> FsResult<()> {
    let (a, b) = (fs.find(ROOT, "a")?.ino, fs.find(ROOT, "b")?.ino);
    let deep = fs.mkdir(Caller::ROOT, a, name("deep"), 0o755)?.attr.ino;
    let (entry, opened) = fs.create(Caller::ROOT, deep, name("f"), 0o644, WRITE)?;
    fs.write(entry.attr.ino, opened.handle, 0, &[1; 3000], false)?;
    fs.sync()?;
    fs.link(entry.attr.ino, b, name("g"))?;
    fs.write(entry.attr.ino, opened.handle, 3000, &[1; 90_000], false)?;
    fs.write(entry.attr.ino, opened.handle, 93_000, &[1; 10_000], false)?;
    fs.rename(a, name("deep"), b, name("deeper"), RenameMode::Replace)?;
    fs.unlink(deep, name("f"))?;
    fs.release(entry.attr.ino, opened.handle)?;
    fs.rename(b, name("deeper"), ROOT, name("a"), RenameMode::Exchange)?;
    fs.fsync_dir(ROOT)?;
    fs.unlink(b, name("g"))?;
    fs.rmdir(b, name("inner"))?;
    fs.sync()
}

/// At whatever point a crash comes, and whatever of the disk survives: every total is that of a walk.
#[test]
fn totals_are_those_of_a_walk_after_a_crash_at_every_point() {
    let prepared = |seed| {
        let env = sim_store(seed, &FormatOptions::default());
        let fs = open(&env);
        for text in ["a", "b"] {
            let dir = fs.mk_dir(ROOT, text);
            fs.mk_dir(dir, "inner");
        }
        fs.sync().unwrap();
        (env, fs)
    };
    let ops = {
        let (env, fs) = prepared(1);
        let before = env.op_count();
        workload(&fs).unwrap();
        before..env.op_count()
    };
    assert!(ops.end - ops.start > 20, "{ops:?}");
    for crash in ops {
        let (env, fs) = prepared(1);
        env.crash_after(crash);
        let _ = workload(&fs);
        for cut in 0..5 {
            let env = match cut {
                0 => env.power_cut_keep_nothing(),
                1 => env.power_cut_keep_all(),
                2 => env.process_kill_within(crash),
                _ => env.power_cut(crash * 10 + cut),
            };
            let fs = open(&env);
            let report = fs.check(&mut |_| ()).unwrap();
            assert_eq!(report.errors, 0, "operation {crash}, cut {cut}: {:?}", report.findings);
            let usage = fs.usage(ROOT).unwrap();
            let mut expected = walk(&fs, ROOT);
            let (b, shared) = (fs.find(ROOT, "b").unwrap().ino, |dir, text: &str| {
                fs.find(dir, text).is_ok_and(|attr| attr.nlink == 2)
            });
            if shared(b, "g") {
                expected.files -= 1;
                expected.bytes -= fs.find(b, "g").unwrap().size;
            }
            assert_eq!(usage, expected, "operation {crash}, cut {cut}");
        }
    }
}

/// Renames directories and files to and fro below `top`; returns how many of the renames went well.
fn move_about(fs: &VarveFs, top: InodeId, dirs: &[InodeId], mut rng: Rng) -> u32 {
    let mut moved = 0;
    for _ in 0..3000 {
        let mut dir = || if rng.chance(30) { top } else { *rng.pick(dirs) };
        let (from, to) = (dir(), dir());
        let text = match rng.below(2) {
            0 => format!("d{}", rng.below(6)),
            _ => format!("f{}{}", rng.below(6), rng.below(4)),
        };
        match fs.rename(from, name(&text), to, name(&text), RenameMode::NoReplace) {
            Err(FsError::Storage(text)) => panic!("{text}"),
            renamed => moved += u32::from(renamed.is_ok()),
        }
    }
    moved
}

/// Renames of whole trees, and of files among them, change no total above them: whoever asks meanwhile, and
/// whatever is told upward meanwhile, the answer is the same all along.
#[test]
fn totals_stand_still_while_trees_move_below() {
    for seed in 0..3 {
        let few = MountOptions { marked_dirs_max: 3, ..MountOptions::default() };
        let rig = Rig::with(&FormatOptions::default(), few);
        let top = rig.mk_dir(ROOT, "top");
        let dirs: Vec<_> = (0..6).map(|i| rig.mk_dir(top, &format!("d{i}"))).collect();
        for (i, dir) in dirs.iter().enumerate() {
            for j in 0..4 {
                let file = rig.mk(*dir, &format!("f{i}{j}"));
                rig.put_at(file, 0, &vec![1; 100 * i + j]);
            }
        }
        let expected = rig.usage(top).unwrap();
        assert_eq!(expected, walk(&rig, top));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let rngs = [seed * 10, seed * 10 + 1].map(Rng::new);
            let movers = rngs.map(|rng| scope.spawn(|| move_about(&rig, top, &dirs, rng)));
            let asker = scope.spawn(|| {
                loop {
                    let last = done.load(Ordering::Relaxed);
                    assert_eq!(rig.usage(top).unwrap(), expected, "seed {seed}");
                    if last {
                        break;
                    }
                }
            });
            let moved: u32 = movers.map(|mover| mover.join().unwrap()).iter().sum();
            done.store(true, Ordering::Relaxed);
            asker.join().unwrap();
            assert!(moved > 100, "{moved} renames");
        });
        for dir in &dirs {
            assert_eq!(rig.usage(*dir).unwrap(), walk(&rig, *dir), "seed {seed}");
        }
        assert_eq!(rig.check(&mut |_| ()).unwrap().findings, [], "seed {seed}");
    }
}

#[test]
fn wrong_accounts_are_found() {
    let bench = Bench::new();
    let (dir, inner) = (bench.dir.get(), bench.inner.get());
    let report = bench.after(|rows| {
        rows.change_dir(bench.dir, |info| {
            info.usage.bytes += 5;
            info.usage.dirs += 1;
        });
    });
    let wrong = |dir, what, recorded, counted| Finding::WrongUsage { dir, what, recorded, counted };
    assert!(report.findings.contains(&wrong(dir, "bytes", 220_009, 220_004)), "{report:?}");
    assert!(report.findings.contains(&wrong(dir, "directories", 2, 1)), "{report:?}");
    // What is wrong in one place is wrong there and for the parent that was told it, nowhere else.
    assert_eq!(report.findings.len(), 4, "{report:?}");

    let bench = Bench::new();
    let report = bench.after(|rows| {
        (0..9).for_each(|slot| rows.delete(rows.meta, RowKey::mark(slot)));
        rows.change_dir(bench.inner, |info| {
            info.usage.files += 1;
            info.pending.files += 1;
        });
    });
    assert!(report.findings.contains(&wrong(inner, "files", 2, 1)));
    assert!(report.findings.contains(&Finding::UntoldWithoutMark { dir: inner }));

    let bench = Bench::new();
    let nobody = InodeId::new(900_000);
    let report = bench.after(|rows| {
        rows.put(rows.meta, RowKey::mark(77), Mark(nobody).encode());
        rows.put(rows.meta, RowKey::limits(nobody), varve_schema::Limits::default().encode());
    });
    let dir = nobody.get();
    assert_eq!(
        report.findings,
        [Finding::MarkWithoutDirectory { dir }, Finding::LimitsWithoutDirectory { dir }]
    );
    assert!(report.is_clean());
}

#[test]
fn wrong_homes_and_parent_pointers_are_found() {
    let ino = Bench::new().linked.get();
    let bench = Bench::new();
    let report = bench.after(|rows| rows.change_inode(bench.linked, |inode| inode.home = None));
    assert!(report.findings.contains(&Finding::WrongHome { ino }));
    let dir = bench.dir.get();
    let bytes = Finding::WrongUsage { dir, what: "files", recorded: 3, counted: 2 };
    assert!(report.findings.contains(&bytes), "{report:?}");

    let bench = Bench::new();
    let report = bench.after(|rows| {
        let hash = bench.hasher.parent(ROOT, b"linked2");
        rows.delete(rows.meta, RowKey::parent(bench.linked, hash));
    });
    let dir = ROOT.get();
    let missing = Finding::MissingParentPointer { ino, dir, name: "linked2".into() };
    assert_eq!(report.findings, [missing]);

    let bench = Bench::new();
    let report = bench.after(|rows| {
        let mut row = ParentRow::default();
        row.add(bench.dir, b"nothing");
        let hash = bench.hasher.parent(bench.dir, b"nothing");
        rows.put(rows.meta, RowKey::parent(bench.linked, hash), row.encode());
    });
    let dir = bench.dir.get();
    let stray = Finding::StrayParentPointer { ino, dir, name: "nothing".into() };
    assert_eq!(report.findings, [stray]);
}
