//! What closing does not wait for, and what it leaves to the next mount.

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_env::{Env, FileKind, OpenMode};
use varve_fs::fsck::{CheckOptions, Finding, check_store};
use varve_fs::{FormatOptions, MountOptions, VarveFs, format};
use varve_vfs::Vfs;

use crate::interposed::{Interposed, interposed, with_threads};
use crate::sent::{receive, sent};
use crate::support::{BOTH, Calls, ROOT, name};

const STORE: &str = "/store";
/// How long the storage below takes to remove a file, on the simulated clock.
const SLOW: Duration = Duration::from_millis(100);

fn formatted() -> Arc<SimEnv> {
    let sim = SimEnv::new(1);
    let env: Arc<dyn Env> = Arc::<SimEnv>::clone(&sim);
    let low = FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
    format(&env, Path::new(STORE), &low).unwrap();
    sim
}

fn open(env: Arc<dyn Env>) -> VarveFs {
    VarveFs::open(env, Path::new(STORE), MountOptions::default()).unwrap()
}

/// What a check of the closed store says.
fn findings(sim: &Arc<SimEnv>) -> Vec<Finding> {
    let env: Arc<dyn Env> = Arc::<SimEnv>::clone(sim);
    let report = check_store(env, Path::new(STORE), &CheckOptions::default(), &mut |_| ());
    report.unwrap().findings
}

fn objects(sim: &SimEnv) -> usize {
    object_paths(sim).len()
}

fn object_paths(sim: &SimEnv) -> Vec<PathBuf> {
    let (mut dirs, mut files) = (vec![Path::new(STORE).join("objects")], Vec::new());
    while let Some(dir) = dirs.pop() {
        for item in sim.list(&dir).unwrap() {
            match item.kind {
                FileKind::Dir => dirs.push(dir.join(&item.name)),
                _ => files.push(dir.join(&item.name)),
            }
        }
    }
    files
}

/// Removes `count` large files and closes the store while each takes [`SLOW`] to go below; returns how long the
/// closing took.
fn close_with_removals(sim: &Arc<SimEnv>, count: usize) -> Duration {
    let env = Arc::new(interposed(sim));
    let fs = open(Arc::<Interposed>::clone(&env));
    for i in 0..count {
        let (text, large) = (format!("f{i}"), [7; 5000]);
        let ino = fs.mk(ROOT, &text);
        fs.put_at(ino, 0, &large);
        fs.forget(ino, 1);
    }
    // Else they would go at once.
    fs.sync().unwrap();
    for i in 0..count {
        fs.unlink(ROOT, name(&format!("f{i}"))).unwrap();
    }
    assert_eq!(objects(sim), count);
    let clock = Arc::clone(sim);
    *env.hooks.before_removal.lock() = Some(Arc::new(move || clock.sleep(SLOW)));
    let begin = sim.monotonic();
    fs.close().unwrap();
    sim.monotonic() - begin
}

#[test]
fn closing_gives_up_removing_files_after_a_second() {
    let sim = formatted();
    let took = close_with_removals(&sim, 300);
    assert!((Duration::from_secs(1)..Duration::from_secs(2)).contains(&took), "{took:?}");
    let left = objects(&sim);
    assert!((280..300).contains(&left), "{left} of 300 are left");
    let unfinished = findings(&sim);
    assert_eq!(unfinished.len(), left, "{unfinished:?}");
    assert!(unfinished.iter().all(|finding| matches!(finding, Finding::Pending { .. })));
    open(Arc::<SimEnv>::clone(&sim)).close().unwrap();
    assert_eq!((objects(&sim), findings(&sim)), (0, Vec::new()));
}

/// Lets removals through once it is open, and counts them.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |(open, _)| !*open);
        state.1 += 1;
        self.changed.notify_all();
    }

    fn open(&self) {
        self.state.lock().0 = true;
        self.changed.notify_all();
    }

    fn wait_for(&self, count: usize) {
        let mut state = self.state.lock();
        while state.1 < count {
            let waited = self.changed.wait_for(&mut state, Duration::from_secs(60));
            assert!(!waited.timed_out(), "{} of {count} are removed", state.1);
        }
    }
}

#[test]
fn a_mount_does_not_wait_for_the_removals_that_are_left() {
    let sim = formatted();
    close_with_removals(&sim, 300);
    let (left, gate) = (objects(&sim), Arc::new(Gate::default()));
    let (env, held) = (with_threads(&sim), Arc::clone(&gate));
    *env.hooks.before_removal.lock() = Some(Arc::new(move || held.pass()));
    let fs = open(Arc::new(env));
    let ino = fs.mk(ROOT, "meanwhile");
    fs.put_at(ino, 0, b"here");
    assert_eq!(objects(&sim), left, "nothing is removed yet");
    gate.open();
    gate.wait_for(left);
    assert_eq!(fs.contents(ino), b"here");
    fs.close().unwrap();
    assert_eq!((objects(&sim), findings(&sim)), (0, Vec::new()));
}

/// A removal that was left by another process, and is under way, meets a file that comes back with its inode id.
#[test]
fn a_removal_that_is_left_spares_what_is_received() {
    let from = open(formatted());
    let there = crate::sent::target(11, &from);
    let fs = open(Arc::<SimEnv>::clone(&there));
    let ino = from.mk(ROOT, "large");
    from.put_at(ino, 0, &[7; 5000]);
    from.create_snapshot("one").unwrap();
    let whole = sent(&from, "one", None);
    receive(&fs, &whole).unwrap();
    fs.delete_snapshot("one").unwrap();
    fs.unlink(ROOT, name("large")).unwrap();
    drop(fs);
    let there = there.process_kill();
    assert_eq!(objects(&there), 1, "the object is left");
    let (gate, env) = (Arc::new(Gate::default()), with_threads(&there));
    let (begun, held) = (Arc::new(Gate::default()), Arc::clone(&gate));
    begun.open();
    let begins = Arc::clone(&begun);
    *env.hooks.before_removal.lock() = Some(Arc::new(move || {
        begins.pass();
        held.pass();
    }));
    let fs = open(Arc::new(env));
    begun.wait_for(1);
    let (tell, told) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| tell.send(receive(&fs, &whole).map(drop)).unwrap());
        // It waits for the removal; it could be done long before.
        let early = told.recv_timeout(Duration::from_millis(500));
        gate.open();
        early.or_else(|_| told.recv()).unwrap().unwrap();
    });
    fs.close().unwrap();
    assert_eq!((objects(&there), findings(&there)), (1, Vec::new()));
}

/// A program that still had files open which have no names any more left work to the next mount.
#[test]
fn closing_removes_what_only_open_files_kept() {
    let sim = formatted();
    let fs = open(Arc::<SimEnv>::clone(&sim));
    for (text, size) in [("small", 100), ("large", 100_000)] {
        let ino = fs.mk(ROOT, text);
        let handle = fs.open_as(ino, BOTH);
        fs.write(ino, handle, 0, &vec![7; size], false).unwrap();
        fs.unlink(ROOT, name(text)).unwrap();
    }
    let known = fs.mk(ROOT, "known");
    fs.put_at(known, 0, &[7; 100_000]);
    fs.unlink(ROOT, name("known")).unwrap();
    assert_eq!(objects(&sim), 2, "large files without names are there");
    fs.close().unwrap();
    assert_eq!((objects(&sim), findings(&sim)), (0, Vec::new()));
}

/// The object of one removed file cannot be removed. Those after it had to wait for it, whoever asked, and for good.
#[test]
fn an_object_that_cannot_be_removed_keeps_no_other_there() {
    let env = formatted();
    let dyn_env: Arc<dyn Env> = Arc::<SimEnv>::clone(&env);
    let fs = open(dyn_env);
    let inos = ["first", "second", "third"].map(|name| {
        let ino = fs.mk(ROOT, name);
        fs.put_at(ino, 0, &[1; 5000]);
        ino
    });
    fs.sync().unwrap();
    let path_suffix = format!("/objects/0/0/{}", inos[0]);
    env.fail(FaultRule { path_suffix, op: SimOp::Remove, nth: 1, errno: 5, sticky: true });
    for (file, ino) in ["first", "second", "third"].into_iter().zip(inos) {
        fs.unlink(ROOT, name(file)).unwrap();
        fs.forget(ino, 1);
    }
    assert_eq!(objects(&env), 3);
    fs.sync().unwrap();
    assert_eq!(objects(&env), 1);
    env.clear_faults();
    fs.sync().unwrap();
    assert_eq!(objects(&env), 0);
    assert!(fs.check(&mut |_| ()).unwrap().is_spotless());
}

/// The failure of the last sync was only logged: what had been written to a large file after its rows were durable was lost, and the store
/// said to be closed.
#[test]
fn a_store_whose_last_sync_fails_is_not_said_to_be_closed() {
    let sim = formatted();
    let fs = open(Arc::<SimEnv>::clone(&sim));
    let ino = fs.mk(ROOT, "large");
    let handle = fs.open_as(ino, BOTH);
    fs.write(ino, handle, 0, &[1; 5000], false).unwrap();
    fs.sync().unwrap();
    // As the kernel does it, past the rows.
    let path = object_paths(&sim).remove(0);
    sim.open(&path, OpenMode::ReadWrite).unwrap().write_all_at(&[2; 5000], 0).unwrap();
    let path_suffix = path.display().to_string();
    sim.fail(FaultRule { path_suffix, op: SimOp::Sync, nth: 1, errno: 5, sticky: true });
    let error = fs.close().unwrap_err();
    assert!(error.to_string().contains("cannot sync"), "{error}");
}

/// Bytes of the logs of a store.
fn log_bytes(sim: &SimEnv) -> u64 {
    let logs =
        sim.files_raw().into_iter().filter(|path| path.extension().is_some_and(|e| e == "wal"));
    logs.map(|path| sim.stat(&path).unwrap().len).sum()
}

/// One flipped bit in the log of a store that was unmounted cost 54 of 60 files, a clone and a snapshot. An upgrade has no time to lose, and
/// opens the store at once.
#[test]
fn an_unmount_leaves_a_short_log_and_a_hand_over_what_it_has() {
    for ends in [true, false] {
        let sim = formatted();
        let fs = open(sim.clone());
        (0..60).for_each(|i| fs.put_at(fs.mk(ROOT, &format!("f{i}")), 0, &[7; 3000]));
        if ends {
            fs.close().unwrap();
            assert!(log_bytes(&sim) < 1000, "{}", log_bytes(&sim));
        } else {
            fs.sync().unwrap();
            drop(fs.hand_over().unwrap());
            assert!(log_bytes(&sim) > 180_000, "{}", log_bytes(&sim));
        }
        drop(fs);
        assert!(findings(&sim).is_empty());
        let fs = open(sim.clone());
        assert_eq!(fs.list(ROOT).len(), 60);
    }
}
