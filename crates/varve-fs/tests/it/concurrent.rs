//! Many threads at once; afterwards every invariant holds.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use varve_fs::fsck::Severity;
use varve_fs::{CommitError, FormatOptions, Isolation, MountOptions, TransactionOptions, VarveFs};
use varve_testkit::rng::Rng;
use varve_types::InodeId;
use varve_vfs::{Caller, FsError, RenameMode, SetAttr, Vfs, XattrMode};

use crate::support::{BOTH, Calls, ROOT, Rig, name};

const THREADS: u64 = 4;

pub(crate) fn in_threads(fs: &VarveFs, seed: u64, body: impl Fn(&VarveFs, Rng) + Sync) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let body = &body;
            scope.spawn(move || body(fs, Rng::new(seed * THREADS + thread)));
        }
    });
}

/// Nothing is wrong. The reaper may still be at work on files that it took before the sync.
pub(crate) fn assert_sound(fs: &VarveFs, what: &str) {
    fs.sync().unwrap();
    let mut findings = fs.check(&mut |_| ()).unwrap().findings;
    findings.retain(|finding| finding.severity() != Severity::Unfinished);
    assert_eq!(findings, [], "{what}");
}

/// A lookup that finds nothing spares the operation after it a second search. What others do between the two counts.
#[test]
fn a_name_that_was_absent_is_made_once_whoever_else_makes_it() {
    for (seed, name_hash_bits) in (0..4).zip([55, 1, 2, 3]) {
        let options = FormatOptions { name_hash_bits, ..FormatOptions::default() };
        let rig = Rig::with(&options, MountOptions::default());
        let dir = rig.mk_dir(ROOT, "d");
        let exclusive = varve_vfs::OpenFlags { exclusive: true, ..BOTH };
        let names: Vec<String> = (0..6).map(|i| format!("f{i}")).collect();
        let there: Vec<AtomicI64> = names.iter().map(|_| AtomicI64::new(0)).collect();
        in_threads(&rig, seed, |fs, mut rng| {
            for _ in 0..2000 {
                let (at, to) = (rng.below(6) as usize, rng.below(6) as usize);
                let known = fs.lookup(dir, name(&names[at]));
                match (known, rng.below(3)) {
                    (Ok(_), 0) => {
                        if fs.unlink(dir, name(&names[at])).is_ok() {
                            there[at].fetch_sub(1, Ordering::Relaxed);
                        }
                    }
                    (Ok(_), _) => {
                        drop(fs.lookup(dir, name(&names[to])));
                        let (from, onto) = (name(&names[at]), name(&names[to]));
                        if at != to
                            && fs.rename(dir, from, dir, onto, RenameMode::NoReplace).is_ok()
                        {
                            there[at].fetch_sub(1, Ordering::Relaxed);
                            there[to].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    (Err(_), _) => {
                        let made = fs.create(Caller::ROOT, dir, name(&names[at]), 0o644, exclusive);
                        if let Ok((entry, opened)) = made {
                            fs.release(entry.attr.ino, opened.handle).unwrap();
                            there[at].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            }
        });
        for (name, there) in names.iter().zip(there) {
            let found = i64::from(rig.find(dir, name).is_ok());
            assert_eq!(there.into_inner(), found, "{name}, seed {seed}");
        }
        assert_sound(&rig, &format!("seed {seed}"));
    }
}

/// Two renames can each be right and together cut a loop of directories off the tree.
#[test]
fn concurrent_directory_renames_never_make_an_orphaned_loop() {
    for seed in 0..4 {
        let rig = Rig::new();
        let dirs: Vec<InodeId> = (0..8).map(|i| rig.mk_dir(ROOT, &format!("d{i}"))).collect();
        let moved = AtomicU64::new(0);
        in_threads(&rig, seed, |fs, mut rng| {
            // Directories that sank deep are moved rarely, so a seed may take more attempts than another.
            for attempt in 0..200_000 {
                if attempt >= 1500 && moved.load(Ordering::Relaxed) > 100 {
                    break;
                }
                let (from, to) = (*rng.pick(&dirs), *rng.pick(&dirs));
                let (from, to) = match rng.below(8) {
                    0 => (ROOT, to),
                    1 => (from, ROOT),
                    _ => (from, to),
                };
                let (a, b) = (format!("d{}", rng.below(8)), format!("d{}", rng.below(8)));
                let mode =
                    *rng.pick(&[RenameMode::NoReplace, RenameMode::Replace, RenameMode::Exchange]);
                match fs.rename(from, name(&a), to, name(&b), mode) {
                    Ok(()) => drop(moved.fetch_add(1, Ordering::Relaxed)),
                    Err(FsError::Storage(text)) => panic!("{text}"),
                    Err(_) => {}
                }
            }
        });
        assert!(moved.into_inner() > 100);
        assert_sound(&rig, &format!("seed {seed}"));
    }
}

/// Moves one of `dirs`, whose names are their numbers, into another, wherever the two are.
fn move_into_another(fs: &VarveFs, dirs: &[InodeId], rng: &mut Rng) -> Result<(), FsError> {
    let (n, to) = (rng.below(dirs.len() as u64) as usize, *rng.pick(dirs));
    let to = if rng.chance(25) { ROOT } else { to };
    let parent = fs.lookup_parent(dirs[n])?.attr.ino;
    let text = n.to_string();
    let moved = fs.rename(parent, name(&text), to, name(&text), RenameMode::NoReplace);
    fs.forget(parent, 1);
    moved
}

/// Commits of transactions that move directories, and moves outside of them at the same time: each may be right for the tree that it was
/// made for, and together they might cut a ring off.
#[test]
fn commits_beside_renames_never_make_an_orphaned_loop() {
    const ROUNDS: usize = 150;
    for seed in 0..4 {
        let rig = Rig::new();
        let dirs: Vec<InodeId> = (0..6).map(|n| rig.mk_dir(ROOT, &n.to_string())).collect();
        let [moved, committed, refused, threads] = [(); 4].map(|()| AtomicU64::new(0));
        let blocked = |fs: &VarveFs, done: Result<(), FsError>| match done {
            Ok(()) => true,
            Err(FsError::Blocked(blocked)) => {
                fs.wait_is_over(&blocked);
                false
            }
            Err(FsError::Storage(text)) => panic!("{text}"),
            Err(_) => false,
        };
        in_threads(&rig, seed, |fs, mut rng| {
            let commits = threads.fetch_add(1, Ordering::Relaxed) % 2 == 0;
            for _ in 0..ROUNDS {
                if !commits {
                    let done = blocked(fs, move_into_another(fs, &dirs, &mut rng));
                    moved.fetch_add(u64::from(done), Ordering::Relaxed);
                    continue;
                }
                let isolation = *rng.pick(&[Isolation::Snapshot, Isolation::Serializable]);
                let options = TransactionOptions { isolation, ..TransactionOptions::default() };
                let txn = fs.begin_transaction(ROOT, &options).unwrap();
                let view = fs.open_view(&txn).unwrap();
                for _ in 0..rng.between(1, 4) {
                    blocked(&view, move_into_another(&view, &dirs, &mut rng));
                }
                match fs.commit_transaction(&txn.name, &view) {
                    Ok(_) => drop(committed.fetch_add(1, Ordering::Relaxed)),
                    Err(CommitError::Unfinished(_, error)) => panic!("{error:?}"),
                    Err(_) => {
                        drop(view);
                        fs.abort_transaction(&txn.name).unwrap();
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        let counts = [moved, committed, refused].map(AtomicU64::into_inner);
        assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
        for dir in &dirs {
            let mut above = *dir;
            for _ in 0..=dirs.len() {
                above = rig.lookup_parent(above).unwrap().attr.ino;
                rig.forget(above, 1);
            }
            assert_eq!(above, ROOT, "seed {seed}: {dir} is in a ring");
        }
        assert_sound(&rig, &format!("seed {seed}, {counts:?}"));
    }
}

/// One random operation on a few shared directories and names.
pub(crate) fn random_operation(
    fs: &VarveFs,
    dirs: &[InodeId],
    rng: &mut Rng,
) -> Result<(), FsError> {
    let (dir, other) = (*rng.pick(dirs), *rng.pick(dirs));
    let text = format!("n{}", rng.below(12));
    let to = format!("n{}", rng.below(12));
    match rng.below(12) {
        0 | 1 => {
            let (entry, opened) = fs.create(Caller::ROOT, dir, name(&text), 0o644, BOTH)?;
            let len = *rng.pick(&[0, 10, 600, 40_000, 70_000]);
            let at = rng.below(30_000);
            let written = fs.write(entry.attr.ino, opened.handle, at, &vec![1; len], false);
            let read = fs.read(entry.attr.ino, opened.handle, 0, 1000);
            fs.release(entry.attr.ino, opened.handle)?;
            fs.forget(entry.attr.ino, 1);
            written.and(read).map(drop)
        }
        2 => fs.mkdir(Caller::ROOT, dir, name(&text), 0o755).map(|e| fs.forget(e.attr.ino, 1)),
        3 => fs.unlink(dir, name(&text)),
        4 => fs.rmdir(dir, name(&text)),
        5 | 6 => {
            let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            fs.rename(dir, name(&text), other, name(&to), *rng.pick(&modes))
        }
        7 => {
            let ino = fs.lookup(dir, name(&text))?.attr.ino;
            let linked = fs.link(ino, other, name(&to)).map(|e| fs.forget(e.attr.ino, 1));
            fs.forget(ino, 1);
            linked
        }
        8 => {
            let ino = fs.lookup(dir, name(&text))?.attr.ino;
            let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
            let result = fs.setattr(Caller::ROOT, ino, set).and_then(|_| fs.getattr(ino));
            fs.forget(ino, 1);
            result.map(drop)
        }
        9 => {
            let ino = fs.lookup(dir, name(&text))?.attr.ino;
            let result = fs.setxattr(ino, b"user.a", b"v", XattrMode::Set);
            fs.forget(ino, 1);
            result
        }
        10 => {
            let mut known = Vec::new();
            let listed = fs.readdir(dir, 0, true, &mut |entry| {
                if entry.attr.is_some() {
                    known.push(entry.ino);
                }
                true
            });
            for ino in known {
                fs.getattr(ino)?;
                fs.forget(ino, 1);
            }
            listed
        }
        _ => {
            let ino = fs.lookup(dir, name(&text))?.attr.ino;
            let size = *rng.pick(&[0, 100, 20_000, 80_000]);
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            let result = fs.setattr(Caller::ROOT, ino, set);
            fs.forget(ino, 1);
            result.map(drop)
        }
    }
}

#[test]
fn concurrent_operations_on_the_same_names_keep_every_invariant() {
    for (seed, bits, known) in [(0, 55, 1_000_000), (1, 2, 1_000_000), (2, 55, 64), (3, 1, 64)] {
        let format_options = FormatOptions { name_hash_bits: bits, ..FormatOptions::default() };
        let options = MountOptions { located_inodes_max: Some(known), ..MountOptions::default() };
        let rig = Rig::with(&format_options, options);
        let dirs: Vec<InodeId> = std::iter::once(ROOT)
            .chain((0..3).map(|i| rig.mk_dir(ROOT, &format!("d{i}"))))
            .collect();
        in_threads(&rig, seed, |fs, mut rng| {
            for _ in 0..1500 {
                match random_operation(fs, &dirs, &mut rng) {
                    Err(FsError::Storage(text)) => panic!("{text}"),
                    Err(FsError::BadHandle) => panic!("a handle was lost"),
                    _ => {}
                }
            }
        });
        assert_sound(&rig, &format!("seed {seed}"));
        let rig = rig.remount();
        assert_sound(&rig, &format!("seed {seed}, remounted"));
    }
}
