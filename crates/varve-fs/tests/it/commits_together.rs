//! Transactions that are committed at the same moment: they share their syncs, and crashes and failures leave each of them whole or
//! absent.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use varve_env::Env;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_fs::{
    CommitError, Committed, FormatOptions, MountOptions, TransactionOptions, VarveFs, ViewName,
};
use varve_testkit::hooked::Before;
use varve_vfs::{Caller, FsResult, SetAttr, Vfs};

use crate::crash::{STORE, open, sim_store};
use crate::interposed::interposed;
use crate::support::{Calls, ROOT, WRITE, name, os_env};
use crate::views::sound;

const LARGE: usize = 70_000;
/// Transactions at the same time where crashes are tried.
const TWO: usize = 2;
/// Pauses of a millisecond that the first sync waits for the other commits, at most.
const PAUSES_MAX: u32 = 60_000;

/// A store, and transactions of it that are ready to be committed.
struct Scene {
    sim: Arc<SimEnv>,
    fs: Arc<VarveFs>,
    /// What happens before each sync of the log.
    before_log_sync: Arc<Mutex<Option<Before>>>,
    begun: Vec<(String, VarveFs)>,
}

/// Each transaction `n` changes `small{n}`, makes a directory with a file, removes the large file `gone{n}` and changes the mode of
/// the large file `large{n}`.
fn scene(seed: u64, count: usize) -> Scene {
    let sim = sim_store(seed, &FormatOptions::default());
    let env = Arc::new(interposed(&sim));
    let machine: Arc<dyn Env> = Arc::clone(&env) as Arc<dyn Env>;
    let fs = VarveFs::open(machine, Path::new(STORE), MountOptions::default()).unwrap();
    for n in 0..count {
        for (what, len) in [("small", 100), ("gone", LARGE), ("large", LARGE)] {
            let ino = fs.mk(ROOT, &format!("{what}{n}"));
            fs.put_at(ino, 0, &vec![1; len]);
            fs.forget(ino, 1);
        }
    }
    let begun: Vec<(String, VarveFs)> = (0..count).map(|n| begin(&fs, n)).collect();
    fs.sync().unwrap();
    let before_log_sync = Arc::clone(&env.hooks.before_log_sync);
    Scene { sim, fs: Arc::new(fs), before_log_sync, begun }
}

fn begin(fs: &VarveFs, n: usize) -> (String, VarveFs) {
    let name_of = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = fs.open_view(&name_of).unwrap();
    view.put_at(view.find(ROOT, &format!("small{n}")).unwrap().ino, 0, b"changed");
    view.put_at(view.mk(view.mk_dir(ROOT, &format!("made{n}")), "file"), 0, b"new");
    view.unlink(ROOT, name(&format!("gone{n}"))).unwrap();
    let large = view.find(ROOT, &format!("large{n}")).unwrap().ino;
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    view.setattr(Caller::ROOT, large, set).unwrap();
    (name_of.name, view)
}

/// Whether transaction `n` is in what `fs` shows; it is as a whole, or not at all.
fn has(fs: &VarveFs, n: usize) -> bool {
    let find = |what: &str| fs.find(ROOT, &format!("{what}{n}"));
    let small = fs.contents(find("small").unwrap().ino);
    let made = find("made").ok().map(|made| fs.contents(fs.find(made.ino, "file").unwrap().ino));
    let facts = [
        small.starts_with(b"changed"),
        made.is_some_and(|made| made == b"new"),
        find("gone").is_err(),
        find("large").unwrap().perm == 0o600,
    ];
    assert!(facts.iter().all(|fact| *fact == facts[0]), "transaction {n}: {facts:?}");
    assert!(facts[0] || small == [1; 100]);
    facts[0]
}

type Outcome = Result<Committed, CommitError>;

/// Commits all at the same moment. The first sync of the log begins when the others wait for it too, or cannot come so far, and
/// after `meanwhile`. Gives how often the log was synced.
fn commit_all(scene: &Scene, meanwhile: fn(&VarveFs, usize)) -> (u64, Vec<Outcome>) {
    let Scene { sim, fs, before_log_sync, begun } = scene;
    let (syncs, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU32::new(0)));
    let count = begun.len();
    let (main, machine) = (Arc::clone(fs), Arc::clone(sim));
    let (counted, over) = (Arc::clone(&syncs), Arc::clone(&ended));
    *before_log_sync.lock() = Some(Arc::new(move || {
        if counted.fetch_add(1, Ordering::SeqCst) > 0 {
            return;
        }
        let mut pauses = 0;
        let waits = || {
            let open = main.transactions().map_or(0, |open| open.len());
            open > over.load(Ordering::SeqCst) as usize && !machine.crashed()
        };
        while waits() && pauses < PAUSES_MAX {
            os_env().sleep(Duration::from_millis(1));
            pauses += 1;
        }
        meanwhile(&main, count);
    }));
    let outcomes = std::thread::scope(|scope| {
        let threads = begun.iter().map(|(id, view)| {
            let ended = Arc::clone(&ended);
            scope.spawn(move || {
                let outcome = fs.commit_transaction(id, view);
                // One that is still open comes no further.
                let is_open = outcome.as_ref().is_err_and(|error| error.committed().is_none());
                ended.fetch_add(u32::from(is_open), Ordering::SeqCst);
                outcome
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    *before_log_sync.lock() = None;
    (syncs.load(Ordering::SeqCst), outcomes)
}

/// Programs go on with what the commits have not touched, as soon as these have let go of their locks.
fn write_to_large_files(fs: &VarveFs, count: usize) {
    let write = |n: usize| -> FsResult<()> {
        let ino = fs.find(ROOT, &format!("large{n}"))?.ino;
        let handle = fs.open(ino, WRITE)?.handle;
        fs.write(ino, handle, 0, b"later", false)?;
        fs.release(ino, handle)
    };
    for n in 0..count {
        // Unless the machine has crashed.
        let _ = write(n);
    }
}

/// Everybody waited for each of them in turn while it was synced.
#[test]
fn commits_at_the_same_moment_share_their_syncs() {
    let scene = scene(90, 8);
    let (syncs, outcomes) = commit_all(&scene, |_, _| ());
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    // That of the first, and one for all who came meanwhile.
    assert_eq!(syncs, 2);
    assert!((0..8).all(|n| has(&scene.fs, n)));
    assert!(scene.fs.transactions().unwrap().is_empty());
    sound(&scene.fs);
}

/// One that is alone waits for one sync, which is all that a small one costs.
#[test]
fn a_small_commit_takes_one_sync() {
    let scene = scene(91, 1);
    let before = (scene.sim.count_of(SimOp::Sync), scene.sim.count_of(SimOp::SyncDir));
    let (syncs, outcomes) = commit_all(&scene, |_, _| ());
    assert!(outcomes[0].is_ok(), "{outcomes:?}");
    let after = (scene.sim.count_of(SimOp::Sync), scene.sim.count_of(SimOp::SyncDir));
    assert_eq!((syncs, after.0 - before.0, after.1 - before.1), (1, 1, 0));
}

/// Opens what a crash left, and looks at the transactions `acknowledged` or not: gives those that are there. Those that are not
/// go on as if nothing had happened.
fn check(image: &Arc<SimEnv>, scene: &Scene, acknowledged: &[bool], what: &str) -> Vec<bool> {
    let fs = open(image);
    let found: Vec<bool> = (0..TWO).map(|n| has(&fs, n)).collect();
    for n in 0..TWO {
        assert!(found[n] || !acknowledged[n], "{what}: a commit that returned is lost");
    }
    assert_eq!(fs.transactions().unwrap().len(), found.iter().filter(|found| !**found).count());
    sound(&fs);
    for n in (0..TWO).filter(|n| !found[*n]) {
        let id = &scene.begun[n].0;
        let view = fs.open_view(&ViewName::transaction(id.clone())).unwrap();
        assert!(has(&view, n), "{what}: not as it was when it was to be committed");
        // It has not seen what was written to them since it began.
        for large in 0..TWO {
            let ino = view.find(ROOT, &format!("large{large}")).unwrap().ino;
            assert!(view.contents(ino) == [1; LARGE], "{what}: what it sees has changed");
        }
        fs.commit_transaction(id, &view).unwrap();
        assert!(has(&fs, n));
    }
    assert!((0..TWO).all(|n| has(&fs, n)));
    sound(&fs);
    fs.close().unwrap();
    let fs = open(image);
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, [], "{what}");
    let left = |dir: &str| image.list(&Path::new(STORE).join(dir)).map_or(0, |items| items.len());
    assert_eq!((left("kept"), left("views")), (0, 0), "{what}");
    found
}

/// With a crash at any point, and programs that change large files that the transactions have seen before these are durable.
#[test]
fn every_crash_of_commits_at_the_same_moment_leaves_each_whole_or_absent() {
    let (mut both, mut one, mut none) = (0, 0, 0);
    for n in 0.. {
        let scene = scene(n, TWO);
        scene.sim.crash_after(scene.sim.op_count() + n);
        let (_, outcomes) = commit_all(&scene, write_to_large_files);
        let crashed = scene.sim.crashed();
        let acknowledged: Vec<bool> = outcomes.iter().map(Result::is_ok).collect();
        assert!(crashed || acknowledged == [true; TWO], "{outcomes:?}");
        let copy = scene.sim.copy();
        let images = [
            copy.power_cut_keep_nothing(),
            copy.power_cut_keep_all(),
            copy.power_cut(n),
            copy.power_cut(n + 1000),
            copy.process_kill_within(n),
        ];
        for (at, image) in images.iter().enumerate() {
            match check(image, &scene, &acknowledged, &format!("crash {n}, image {at}"))[..] {
                [true, true] => both += 1,
                [false, false] => none += 1,
                _ => one += 1,
            }
        }
        if !crashed {
            break;
        }
    }
    assert!(both > 20 && one > 0 && none > 20, "{both} both, {one} one, {none} none");
}

/// The sync that two wait for fails. Both are told that it is not known whether they are durable, nothing changes any more, and
/// nothing is gone that the transactions need if they are not.
#[test]
fn a_sync_that_fails_is_told_to_all_who_wait_for_it() {
    let scene = scene(92, TWO);
    let path_suffix = ".wal".to_owned();
    scene.sim.fail(FaultRule { path_suffix, op: SimOp::Sync, nth: 1, errno: 5, sticky: false });
    let (_, outcomes) = commit_all(&scene, write_to_large_files);
    for outcome in &outcomes {
        let Err(CommitError::Unfinished(committed, error)) = outcome else { panic!("{outcome:?}") };
        assert!(!committed.names.is_empty());
        let told = error.to_string();
        assert!(told.contains("is committed") && told.contains("not known"), "{told}");
    }
    assert!((0..TWO).all(|n| has(&scene.fs, n)));
    scene.fs.mkdir(Caller::ROOT, ROOT, name("later"), 0o755).unwrap_err();
    scene.sim.clear_faults();
    let copy = scene.sim.copy();
    let (lost, kept) = (copy.power_cut_keep_nothing(), copy.process_kill());
    check(&lost, &scene, &[false; TWO], "power cut");
    assert_eq!(check(&kept, &scene, &[true; TWO], "end of the process"), [true; TWO]);
}

const COMMITTERS: u64 = 3;
const COMMITS: u64 = 4;

/// Commits transactions one after the other, each of which makes a directory with two files and counts in a file of this thread's.
/// Gives how many were acknowledged.
fn commit_in_turn(fs: &VarveFs, committer: u64) -> u64 {
    let commit = |number: u64| -> Option<()> {
        let name_of = fs.begin_transaction(ROOT, &TransactionOptions::default()).ok()?;
        let view = fs.open_view(&name_of).ok()?;
        let work = || -> FsResult<()> {
            let text = format!("c{committer}-{number}");
            let made = view.mkdir(Caller::ROOT, ROOT, name(&text), 0o755)?.attr.ino;
            for file in ["a", "b"] {
                view.mkdir(Caller::ROOT, made, name(file), 0o755)?;
            }
            let count = view.find(ROOT, &format!("count{committer}"))?.ino;
            let handle = view.open(count, WRITE)?.handle;
            view.write(count, handle, 0, &[number as u8 + 1], false)?;
            view.release(count, handle)?;
            if number == 1 {
                view.unlink(ROOT, name(&format!("large{committer}")))?;
            }
            Ok(())
        };
        work().ok()?;
        fs.commit_transaction(&name_of.name, &view).ok().map(drop)
    };
    (0..COMMITS).take_while(|number| commit(*number).is_some()).count() as u64
}

/// Snapshots come and go, transactions are aborted, and a large file that all of them see is written to.
fn disturb(fs: &VarveFs) -> FsResult<()> {
    for round in 0..COMMITS {
        fs.create_snapshot(&format!("s{round}"))?;
        let large = fs.find(ROOT, "large")?.ino;
        let handle = fs.open(large, WRITE)?.handle;
        fs.write(large, handle, round * 20_000, &[round as u8 + 2; 20_000], false)?;
        fs.release(large, handle)?;
        let dropped = fs.begin_transaction(ROOT, &TransactionOptions::default())?;
        fs.abort_transaction(&dropped.name)?;
        if round > 0 {
            fs.delete_snapshot(&format!("s{}", round - 1))?;
        }
    }
    Ok(())
}

/// What a crash among all that has left: of each thread's transactions the first so many, and all that were acknowledged.
fn check_turns(image: &Arc<SimEnv>, acknowledged: &[u64], what: &str) -> u64 {
    let fs = open(image);
    let mut there = 0;
    for (committer, least) in (0..).zip(acknowledged) {
        let count = fs.find(ROOT, &format!("count{committer}")).unwrap().ino;
        let commits = u64::from(fs.contents(count).first().copied().unwrap_or(0));
        assert!((*least..=COMMITS).contains(&commits), "{what}: {commits} of {least}");
        for number in 0..COMMITS {
            let made = fs.find(ROOT, &format!("c{committer}-{number}"));
            assert_eq!(made.is_ok(), number < commits, "{what}: {committer}-{number}");
            assert!(made.is_err() || fs.list(made.unwrap().ino) == ["a", "b"], "{what}");
        }
        let large = fs.find(ROOT, &format!("large{committer}"));
        assert_eq!(large.is_err(), commits > 1, "{what}");
        assert!(large.is_err() || fs.contents(large.unwrap().ino) == [1; LARGE], "{what}");
        there += commits;
    }
    for open in fs.transactions().unwrap() {
        let view = fs.open_view(&open.name()).unwrap();
        for committer in 0..COMMITTERS {
            if let Ok(large) = view.find(ROOT, &format!("large{committer}")) {
                assert!(view.contents(large.ino) == [1; LARGE], "{what}");
            }
        }
        drop(view);
        fs.abort_transaction(&open.name().name).unwrap();
    }
    sound(&fs);
    fs.close().unwrap();
    sound(&open(image));
    there
}

/// Transactions are committed by several threads while others make and delete snapshots, abort and write, with crashes anywhere.
#[test]
fn crashes_among_commits_and_other_views_leave_what_was_acknowledged() {
    let (mut there, mut crashes) = (0, 0);
    for seed in 0..60 {
        let sim = sim_store(seed, &FormatOptions::default());
        let machine: Arc<dyn Env> = Arc::new(interposed(&sim));
        let fs = VarveFs::open(machine, Path::new(STORE), MountOptions::default()).unwrap();
        fs.put_at(fs.mk(ROOT, "large"), 0, &vec![1; LARGE]);
        for committer in 0..COMMITTERS {
            fs.put_at(fs.mk(ROOT, &format!("large{committer}")), 0, &vec![1; LARGE]);
            fs.put_at(fs.mk(ROOT, &format!("count{committer}")), 0, &[0]);
        }
        fs.sync().unwrap();
        sim.crash_after(sim.op_count() + seed * 7);
        let acknowledged: Vec<u64> = std::thread::scope(|scope| {
            let fs = &fs;
            let other = scope.spawn(move || disturb(fs));
            let threads = (0..COMMITTERS).map(|n| scope.spawn(move || commit_in_turn(fs, n)));
            let threads: Vec<_> = threads.collect();
            let done = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert!(other.join().unwrap().is_ok() || sim.crashed());
            done
        });
        crashes += u32::from(sim.crashed());
        assert!(sim.crashed() || acknowledged == [COMMITS; COMMITTERS as usize]);
        let copy = sim.copy();
        let images = [
            copy.power_cut_keep_nothing(),
            copy.power_cut_keep_all(),
            copy.power_cut(seed),
            copy.process_kill_within(seed),
        ];
        for (at, image) in images.iter().enumerate() {
            there += check_turns(image, &acknowledged, &format!("seed {seed}, image {at}"));
        }
    }
    assert!(there > 400 && crashes > 30, "{there} there, {crashes} crashes");
}
