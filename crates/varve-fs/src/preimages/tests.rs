//! Who waits for whom where objects change that views see.

use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

use varve_env::Seek;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_schema::overlay::BLOCK_BYTES;
use varve_testkit::rng::Rng;
use varve_testkit::{PATIENCE, eventually};
use varve_types::FileName;
use varve_vfs::{Caller, OpenFlags, Vfs};

use super::*;
use crate::epoch::Epoch;
use crate::files::create_dirs_between;
use crate::{FormatOptions, MountOptions, TransactionOptions, VarveFs};

const INO: InodeId = InodeId::new(100);
const FIRST: Epoch = Epoch::new(200);
const SECOND: Epoch = Epoch::new(300);
/// Longer than it takes who does not wait.
const A_WHILE: Duration = Duration::from_millis(200);
const PIECE: Range<u64> = 0..9;

/// One object, of ones, and what is kept of it.
struct Rig {
    env: Arc<SimEnv>,
    preimages: Preimages,
    path: PathBuf,
    object: Arc<dyn File>,
}

impl Rig {
    fn new() -> Rig {
        let (env, store) = (SimEnv::new(1), Path::new("/store"));
        env.create_dir(store).unwrap();
        let path = store.join("object");
        let object = env.open(&path, OpenMode::CreateOrOpen).unwrap();
        object.write_all_at(&[1; 3 * BLOCK_BYTES as usize], 0).unwrap();
        let overlays = Arc::new(Overlays::new(env.clone()));
        let preimages = Preimages::new(env.clone(), store.join("kept"), overlays);
        Rig { env, preimages, path, object }
    }

    /// The same for a process that begins.
    fn again(self) -> Rig {
        let overlays = Arc::new(Overlays::new(self.env.clone()));
        let preimages = Preimages::new(self.env.clone(), PathBuf::from("/store/kept"), overlays);
        let object = self.env.open(&self.path, OpenMode::ReadWrite).unwrap();
        Rig { preimages, object, ..self }
    }

    /// Changes the piece after it was kept.
    fn change(&self, byte: u8) {
        let write = || self.object.write_all_at(&[byte; PIECE.end as usize], PIECE.start);
        self.preimages.change(INO, self.object.as_ref(), PIECE, write).unwrap();
    }

    /// The piece as the view of `epoch` sees it, read when `during` has returned, which is called while nobody must change it.
    fn read_after(&self, epoch: Epoch, during: impl FnOnce() + Send) -> [u8; 9] {
        let mut seen = [0; 9];
        let read = |file: &dyn File| {
            during();
            file.read_at(&mut seen, PIECE.start)
        };
        self.preimages.read(epoch, INO, &self.path, read).unwrap();
        seen
    }
}

/// A change of what another one had kept, which still waited for who had looked before, was made at once: he read its bytes as
/// those of the view.
#[test]
fn every_change_waits_for_who_has_looked_before() {
    let rig = Rig::new();
    rig.preimages.begin(FIRST);
    let (looked, done) = (Barrier::new(2), mpsc::channel());
    thread::scope(|scope| {
        let (rig, looked) = (&rig, &looked);
        let reader = scope.spawn(move || {
            rig.read_after(FIRST, || {
                looked.wait();
                looked.wait();
            })
        });
        looked.wait();
        scope.spawn(|| rig.change(2));
        let is_kept = |overlay: Arc<Overlay>| overlay.owns(&PIECE);
        eventually("the block is kept", || {
            rig.preimages.blocks(FIRST, INO).unwrap().is_some_and(is_kept)
        });
        scope.spawn(move || {
            rig.change(3);
            done.0.send(()).unwrap();
        });
        let waits = done.1.recv_timeout(A_WHILE).is_err();
        looked.wait();
        assert_eq!(reader.join().unwrap(), [1; 9]);
        assert!(waits);
    });
    assert_eq!(rig.read_after(FIRST, || ()), [1; 9]);
}

/// A snapshot that was deleted while its mount was to be seen elsewhere too showed what there is now.
#[test]
fn nothing_is_read_for_a_view_that_has_ended() {
    let rig = Rig::new();
    rig.preimages.begin(FIRST);
    rig.change(2);
    assert_eq!(rig.read_after(FIRST, || ()), [1; 9]);
    let read = || rig.preimages.read(FIRST, INO, &rig.path, |_| Ok(()));
    rig.preimages.retire(FIRST);
    assert_eq!(read().unwrap_err().kind(), io::ErrorKind::StaleNetworkFileHandle);
    rig.preimages.end(FIRST).unwrap();
    assert_eq!(read().unwrap_err().kind(), io::ErrorKind::StaleNetworkFileHandle);
}

/// What a commit keeps for a later view was taken for kept by the change that follows, which did not wait for the readers of that
/// view.
#[test]
fn a_change_waits_for_who_has_looked_before_a_commit_kept() {
    let rig = Rig::new();
    rig.preimages.begin(FIRST);
    rig.preimages.begin(SECOND);
    let (looked, done) = (Barrier::new(2), mpsc::channel());
    thread::scope(|scope| {
        let (rig, looked) = (&rig, &looked);
        let reader = scope.spawn(move || {
            rig.read_after(SECOND, || {
                looked.wait();
                looked.wait();
            })
        });
        looked.wait();
        scope.spawn(move || {
            let object = rig.object.as_ref();
            rig.preimages.save_besides(FIRST, INO, object, &[PIECE], &mut BTreeSet::new()).unwrap();
            rig.change(2);
            done.0.send(()).unwrap();
        });
        let waits = done.1.recv_timeout(A_WHILE).is_err();
        looked.wait();
        assert_eq!(reader.join().unwrap(), [1; 9]);
        assert!(waits);
    });
}

/// What the kernel wrote straight was copied from front to back also where the storage below could have given all of it as it
/// was at one moment.
#[test]
fn what_is_written_straight_is_kept_at_one_moment_where_room_is_shared() {
    let rig = Rig::new();
    rig.preimages.begin(FIRST);
    rig.env.set_shares_room(true);
    rig.preimages.save_all(INO, &rig.path).unwrap();
    assert!(
        rig.preimages.has_all(FIRST, INO).unwrap() && rig.preimages.shares.load(Ordering::Relaxed)
    );
    rig.preimages.begin(SECOND);
    rig.env.set_shares_room(false);
    rig.preimages.save_all(INO, &rig.path).unwrap();
    assert!(rig.preimages.has_all(SECOND, INO).unwrap());
    assert!(!rig.preimages.shares.load(Ordering::Relaxed), "the storage was not asked");
    rig.object.write_all_at(&[2; 9], 0).unwrap();
    for epoch in [FIRST, SECOND] {
        assert_eq!(rig.read_after(epoch, || ()), [1; 9]);
    }
}

/// A view that was to begin while much was being kept of a large file had everybody wait until that was done.
#[test]
fn others_go_on_while_a_view_waits_for_a_change_that_began_before() {
    let (machine, dir): (Arc<dyn Env>, _) = (SimEnv::new(1), Path::new("/store"));
    crate::format(&machine, dir, &FormatOptions::default()).unwrap();
    let fs = VarveFs::open(machine, dir, MountOptions::default()).unwrap();
    let (object, preimages, at_work) =
        (Rig::new().object, fs.objects.preimages().unwrap(), Barrier::new(2));
    let (done, made) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        let (fs, at_work) = (&fs, &at_work);
        scope.spawn(move || {
            let change = || {
                at_work.wait();
                at_work.wait();
                Ok(())
            };
            preimages.change(INO, object.as_ref(), PIECE, change).unwrap();
        });
        at_work.wait();
        scope.spawn(move || {
            fs.create_snapshot("after").unwrap();
            done.0.send(()).unwrap();
        });
        let waits = done.1.recv_timeout(A_WHILE).is_err();
        scope.spawn(move || {
            let name = FileName::new(b"made").unwrap();
            fs.mkdir(Caller::ROOT, InodeId::ROOT, name, 0o755).unwrap();
            made.0.send(()).unwrap();
        });
        let others_go_on = made.1.recv_timeout(PATIENCE).is_ok();
        at_work.wait();
        assert!(waits && others_go_on, "{waits} {others_go_on}");
    });
}

/// Who has left what is not durable.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// A process that died.
    Dead,
    /// One whose sync failed, and which knows the overlay no more.
    Forgetful,
    /// One whose sync failed.
    Itself,
}

const LEFT_BY: [Left; 3] = [Left::Dead, Left::Forgetful, Left::Itself];

/// What a process had kept, but not durably, when it died or the sync failed was taken for durable by the next one: the object changed
/// upon that, and a power cut left the view without what it saw.
#[test]
fn what_is_kept_is_durable_whatever_an_earlier_process_has_left() {
    let again = |env: &Arc<SimEnv>| {
        let preimages =
            Preimages::new(env.clone(), "/store/kept".into(), Arc::new(Overlays::new(env.clone())));
        preimages.begin(FIRST);
        preimages
    };
    for (shares, left_by, nth) in [false, true].into_iter().flat_map(|shares| {
        LEFT_BY.into_iter().flat_map(move |by| (1..12).map(move |nth| (shares, by, nth)))
    }) {
        let rig = Rig::new();
        rig.object.sync_all().unwrap();
        ["/store", "/"].iter().for_each(|dir| rig.env.sync_dir(Path::new(dir)).unwrap());
        rig.preimages.begin(FIRST);
        rig.env.set_shares_room(shares);
        let fail = |op| FaultRule { path_suffix: String::new(), op, nth, errno: 5, sticky: false };
        match left_by {
            Left::Dead => rig.env.crash_at_sync(rig.env.sync_count() + nth),
            _ => [SimOp::Sync, SimOp::SyncDir].into_iter().for_each(|op| rig.env.fail(fail(op))),
        }
        let change = |preimages: &Preimages, object: &dyn File| {
            preimages.change(INO, object, PIECE, || object.write_all_at(&[2; 9], 0))
        };
        let was_kept = change(&rig.preimages, rig.object.as_ref()).is_ok();
        assert!(!was_kept || nth > 1);
        rig.env.clear_faults();
        let env = match left_by {
            Left::Dead => rig.env.process_kill(),
            _ => Arc::clone(&rig.env),
        };
        let object = env.open(&rig.path, OpenMode::ReadWrite).unwrap();
        let changed = match left_by {
            // After a failed sync it keeps nothing more in the overlay that it has in memory.
            Left::Itself => change(&rig.preimages, object.as_ref()).or(Ok(())),
            _ => change(&again(&env), object.as_ref()),
        };
        changed.unwrap();
        object.sync_all().unwrap();
        for cut in [env.power_cut_keep_nothing(), env.power_cut_keep_all(), env.power_cut(nth)] {
            let mut seen = [0; 9];
            let read = |file: &dyn File| file.read_at(&mut seen, 0);
            again(&cut).read(FIRST, INO, &rig.path, read).unwrap();
            assert_eq!(seen, [1; 9], "shares {shares}, left {left_by:?}, at sync {nth}");
        }
    }
}

/// After each removal of what a view sees the next write to a file that was wholly kept beside it synced the directories of that again,
/// while all others waited who kept something.
#[test]
fn what_is_kept_is_made_durable_once_whatever_comes_beside_it() {
    for shares in [false, true] {
        let rig = Rig::new();
        rig.env.set_shares_room(shares);
        rig.preimages.begin(FIRST);
        rig.change(2);
        for ino in 101..104 {
            let removed = Path::new("/store/removed");
            rig.env.open(removed, OpenMode::CreateNew).unwrap();
            let mut unsynced = BTreeSet::new();
            assert!(rig.preimages.take(InodeId::new(ino), removed, &mut unsynced).unwrap());
            unsynced.iter().rev().for_each(|dir| rig.env.sync_dir(dir).unwrap());
            let before = rig.env.sync_count();
            rig.change(3);
            assert_eq!(rig.env.sync_count(), before, "shares {shares}");
        }
        // One in the place of the last one that was removed, which nobody relied upon yet.
        let [first, again] = [(); 2].map(|()| {
            let before = rig.env.sync_count();
            rig.preimages.change(InodeId::new(103), rig.object.as_ref(), PIECE, || Ok(())).unwrap();
            rig.env.sync_count() - before
        });
        assert!(first > 0 && again == 0, "{first} syncs, then {again}");
    }
}

/// The mark of a file that was removed while it was written to claimed what was written since the snapshot, which a power cut may take: the
/// check found the snapshot's file cut, and nothing was missing.
#[test]
fn a_mark_claims_no_more_than_views_see() {
    const END: u64 = 3 * BLOCK_BYTES;
    let last = 2 * BLOCK_BYTES;
    let cases =
        [(0..0, END), (END..END + 9, END), (0..9, END), (last..last + 9, last), (0..END, 0)];
    for (written, claimed) in cases {
        let rig = Rig::new();
        rig.env.set_shares_room(false);
        rig.preimages.begin(FIRST);
        let bytes = vec![2; (written.end - written.start) as usize];
        let write = || rig.object.write_all_at(&bytes, written.start);
        rig.preimages.change(INO, rig.object.as_ref(), written.clone(), write).unwrap();
        let mut unsynced = BTreeSet::new();
        assert!(rig.preimages.take(INO, &rig.path, &mut unsynced).unwrap());
        rig.preimages.marking(&unsynced, || io::Result::Ok(())).unwrap();
        let mark = rig.preimages.path(FIRST, INO).with_extension("mark");
        let found = inspect_mark(rig.env.as_ref(), &mark).unwrap();
        assert_eq!(found, Some(claimed), "{written:?}");
    }
}

/// A commit of rows alone was in the log behind what no barrier covered yet when its daemon died. The next mount let go of what was
/// kept for the transaction, and a power cut soon after brought that back, with later bytes of large files.
#[test]
fn what_a_transaction_sees_is_kept_until_its_end_is_durable() {
    let (env, dir) = (SimEnv::new(1), Path::new("/store"));
    let machine: Arc<dyn Env> = env.clone();
    crate::format(&machine, dir, &FormatOptions::default()).unwrap();
    let fs = VarveFs::open(machine, dir, MountOptions::default()).unwrap();
    let (root, file) = (InodeId::ROOT, FileName::new(b"file").unwrap());
    let both = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let (entry, opened) = fs.create(Caller::ROOT, root, file, 0o600, both).unwrap();
    let ino = entry.attr.ino;
    for at in 0..3 {
        fs.write(ino, opened.handle, at * 100_000, &[7; 100_000], false).unwrap();
    }
    fs.release(ino, opened.handle).unwrap();
    fs.sync().unwrap();
    let txn = fs.begin_transaction(root, &TransactionOptions::default()).unwrap();
    let view = fs.open_view(&txn).unwrap();
    view.mkdir(Caller::ROOT, root, FileName::new(b"d").unwrap(), 0o755).unwrap();
    // The row that claims it waits for a sync of the object.
    let opened = fs.open(ino, both).unwrap();
    fs.write(ino, opened.handle, 0, &[8; 1000], false).unwrap();
    fs.release(ino, opened.handle).unwrap();
    let path_suffix = format!("/{ino}");
    env.fail(FaultRule { path_suffix, op: SimOp::Sync, nth: 1, errno: 5, sticky: true });
    fs.commit_transaction(&txn.name, &view).unwrap_err();
    let dead = env.process_kill();
    dead.clear_faults();
    drop((view, fs));
    let mut open = 0;
    for n in 1.. {
        let env = dead.process_kill();
        env.crash_after(env.op_count() + n);
        let mounted = VarveFs::open(env.clone(), dir, MountOptions::default());
        let is_done = mounted.is_ok() && !env.crashed();
        for env in [env.power_cut_keep_nothing(), env.power_cut_keep_all(), env.power_cut(n)] {
            let fs = VarveFs::open(env, dir, MountOptions::default()).unwrap();
            if fs.transaction(&txn.name).is_err() {
                continue;
            }
            open += 1;
            let view = fs.open_view(&txn).unwrap();
            view.lookup(root, file).unwrap();
            let opened = view.open(ino, both).unwrap();
            assert!(view.read(ino, opened.handle, 0, 10).unwrap() == [7; 10][..], "crash {n}");
        }
        if is_done {
            break;
        }
    }
    assert!(open > 0);
}

/// A mount, and the successor of an upgrade, failed where it met what a daemon had left that was killed while a view ended, and a sync
/// that could not be.
#[test]
fn what_ended_views_left_waits_for_a_sync_that_succeeds() {
    let (env, dir) = (SimEnv::new(1), Path::new("/store"));
    let machine: Arc<dyn Env> = env.clone();
    crate::format(&machine, dir, &FormatOptions::default()).unwrap();
    let fs = VarveFs::open(machine, dir, MountOptions::default()).unwrap();
    // The row of a large file waits for a sync of that.
    let write = OpenFlags { write: true, ..OpenFlags::default() };
    let file = FileName::new(b"file").unwrap();
    let (entry, opened) = fs.create(Caller::ROOT, InodeId::ROOT, file, 0o600, write).unwrap();
    fs.write(entry.attr.ino, opened.handle, 0, &[7; 300_000], false).unwrap();
    fs.release(entry.attr.ino, opened.handle).unwrap();
    let dead = env.process_kill();
    drop(fs);
    let left = dir.join("kept/900");
    create_dirs_between(dead.as_ref(), Some(dir), &left.join("0")).unwrap();
    // Of the log's writes the first two make it.
    for (path_suffix, op, nth, errno) in
        [("/objects", SimOp::SyncFs, 1, 5), (".wal", SimOp::Write, 3, 28)]
    {
        let env = dead.process_kill();
        let path_suffix = path_suffix.to_owned();
        env.fail(FaultRule { path_suffix, op, nth, errno, sticky: true });
        let fs = VarveFs::open(env.clone(), dir, MountOptions::default()).unwrap();
        assert!(env.fault_count() > 0 && env.stat(&left).is_ok());
        // A power cut may bring the view back: it must not find later bytes.
        assert!(fs.objects.preimages().unwrap().may_be_seen(INO));
        env.clear_faults();
        drop(fs);
        drop(VarveFs::open(env.clone(), dir, MountOptions::default()).unwrap());
        assert!(env.stat(&left).is_err());
    }
}

/// Where thousands of views had each kept something of one object, who read it in the first one ran out of stack.
#[test]
fn any_number_of_versions_is_read_through() {
    let rig = Rig::new();
    for n in 0..1000 {
        rig.preimages.begin(Epoch::new(FIRST.get() + n));
        rig.change((n % 250) as u8 + 2);
    }
    let mut seen = [0; 9];
    // Nobody but the object has it.
    let read = |file: &dyn File| {
        assert_eq!(file.stat()?.len, 3 * BLOCK_BYTES);
        assert_eq!(file.seek(Seek::Data, 2 * BLOCK_BYTES)?, 2 * BLOCK_BYTES);
        file.read_at(&mut seen, 2 * BLOCK_BYTES)
    };
    thread::scope(|scope| {
        let little = thread::Builder::new().stack_size(1 << 17);
        let read = || rig.preimages.read(FIRST, INO, &rig.path, read).unwrap();
        little.spawn_scoped(scope, read).unwrap();
    });
    assert_eq!(seen, [1; 9]);
}

#[test]
fn each_view_sees_what_the_object_was_whatever_the_others_keep() {
    for seed in 0..20 {
        let (rig, mut rng) = (Rig::new(), Rng::new(seed));
        rig.preimages.shares.store(rng.chance(20), Ordering::Relaxed);
        let (mut now, mut views) = (vec![1; 3 * BLOCK_BYTES as usize], Vec::new());
        for n in 0..12 {
            let epoch = Epoch::new(FIRST.get() + n);
            rig.preimages.begin(epoch);
            views.push((epoch, now.clone()));
            for byte in 2..2 + rng.below(4) as u8 {
                let at = rng.below(4 * BLOCK_BYTES);
                if rng.chance(30) {
                    let cut = || rig.object.set_len(at);
                    rig.preimages.change(INO, rig.object.as_ref(), at..u64::MAX, cut).unwrap();
                    now.resize(at as usize, 0);
                } else {
                    let bytes = vec![byte; rng.below(BLOCK_BYTES) as usize + 1];
                    let end = at + bytes.len() as u64;
                    let write = || rig.object.write_all_at(&bytes, at);
                    rig.preimages.change(INO, rig.object.as_ref(), at..end, write).unwrap();
                    now.resize(now.len().max(end as usize), 0);
                    now[at as usize..end as usize].copy_from_slice(&bytes);
                }
            }
            if rng.chance(20) {
                rig.preimages
                    .end(views.swap_remove(rng.below(views.len() as u64) as usize).0)
                    .unwrap();
            }
        }
        for (epoch, expected) in views {
            let mut seen = vec![7; expected.len() + 1];
            let read = |file: &dyn File| {
                assert_eq!(file.stat()?.len, expected.len() as u64);
                let copy = rig.env.open(Path::new("/copy"), OpenMode::CreateOrOpen)?;
                copy.set_len(0)?;
                crate::overlay::copy_bytes(file, copy.as_ref(), expected.len() as u64)?;
                copy.set_len(expected.len() as u64)?;
                let mut copied = vec![7; expected.len()];
                copy.read_exact_at(&mut copied, 0)?;
                assert!(copied == expected, "seed {seed}: a copy of {epoch}");
                file.read_at(&mut seen, 0)
            };
            let count = rig.preimages.read(epoch, INO, &rig.path, read).unwrap();
            assert!(seen[..count] == expected, "seed {seed}: {epoch}");
        }
    }
}

/// What the newest view had kept was removed below, and that view deleted before anybody looked: the one before it, which needs that too,
/// read what was written later.
#[test]
fn what_has_gone_from_a_view_that_ends_is_missed_by_the_one_before() {
    for (holds_all, goes) in [(false, false), (false, true), (true, false), (true, true)] {
        let rig = Rig::new();
        rig.preimages.begin(FIRST);
        rig.preimages.begin(SECOND);
        if holds_all {
            rig.preimages.save_all(INO, &rig.path).unwrap();
        }
        rig.change(2);
        let kept = rig.preimages.path(SECOND, INO);
        if goes {
            let gone = if holds_all { kept } else { blocks_path(&kept) };
            rig.env.remove_file(&gone).unwrap();
        }
        // Another process has nothing open.
        let rig = rig.again();
        rig.preimages.begin(FIRST);
        rig.preimages.begin(SECOND);
        let whole = rig.env.power_cut_keep_all();
        rig.preimages.end(SECOND).unwrap();
        let mut seen = [0; 9];
        let mut read = |rig: &Rig| {
            let read = |file: &dyn File| file.read_at(&mut seen, PIECE.start);
            rig.preimages.read(FIRST, INO, &rig.path, read).map(|_| seen)
        };
        let found = read(&rig);
        match (goes, found) {
            (false, found) => assert_eq!(found.unwrap(), [1; 9]),
            (true, found) => assert_eq!(found.unwrap_err().kind(), io::ErrorKind::InvalidData),
        }
        // The end is done once more where the first one was cut short.
        let rig = Rig { env: whole, ..rig }.again();
        rig.preimages.begin(FIRST);
        rig.preimages.end(SECOND).unwrap();
        rig.preimages.end(SECOND).unwrap();
        assert_eq!(read(&rig).is_err(), goes);
    }
}
