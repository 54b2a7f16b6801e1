//! Crowds on one CPU, whose requests all wait for something that takes another request to the same mount.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, mpsc};

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use varve_testkit::{PATIENCE, there_are_rings};

use crate::harness::{Mount, run, varve};

/// Has the calling thread, and what it starts, run on the first CPU.
fn stay_on_one_cpu() {
    let mut first = CpuSet::new();
    first.set(0);
    sched_setaffinity(None, &first).unwrap();
}

/// A mount over `transport` whose daemon runs on the first CPU.
fn mounted(transport: &str) -> Option<Mount> {
    let mount = Mount::new()?;
    mount.unmount();
    let mut command = varve();
    command.args(["mount", "-o", &format!("transport={transport}")]);
    command.arg(mount.store()).arg(mount.path());
    let output = std::thread::spawn(move || {
        stay_on_one_cpu();
        command.output().unwrap()
    });
    let output = output.join().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("does not offer FUSE over io_uring") {
        assert!(!there_are_rings(), "{said}");
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(mount)
}

/// Has each of `count` threads on the first CPU do `work`, which is told the number of the thread.
fn crowd(mount: &Mount, count: usize, work: impl Fn(usize) + Clone + Send + 'static) {
    let (done, all_done) = mpsc::channel();
    let all_there = Arc::new(Barrier::new(count));
    for number in 0..count {
        let (done, work, all_there) = (done.clone(), work.clone(), Arc::clone(&all_there));
        // Apart, since threads that wait within the kernel cannot be joined.
        std::thread::spawn(move || {
            stay_on_one_cpu();
            all_there.wait();
            work(number);
            done.send(())
        });
    }
    drop(done);
    for finished in 0..count {
        if all_done.recv_timeout(PATIENCE).is_err() {
            mount.kill_daemon();
            panic!("{finished} of {count} came through, the others wait for each other");
        }
    }
}

/// Makes a call until so many others make it no more that it is done.
fn in_turn<T>(what: &str, call: impl Fn() -> rustix::io::Result<T>) -> T {
    loop {
        match call() {
            Ok(done) => return done,
            Err(Errno::AGAIN | Errno::INTR | Errno::STALE) => std::thread::yield_now(),
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

/// Each entry of a ring had a request that waited for the mount, and the thread that was to do it found none.
#[test]
fn many_transactions_end_at_once() {
    for transport in ["uring", "dev"] {
        let Some(mount) = mounted(transport) else { continue };
        let dir = mount.path();
        crowd(&mount, 64, move |number| {
            let id = in_turn("begin", || {
                let mut id = [0; 20];
                let len = getxattr(&dir, "varve.txn-begin", &mut id[..])?;
                Ok(String::from_utf8(id[..len].to_vec()).unwrap())
            });
            let view = dir.join(".varve/txn").join(&id);
            let path = view.join(format!("{number}"));
            in_turn("write", || fs::write(&path, &id).map_err(errno));
            let control = dir.join(".varve/control").join(&id);
            in_turn("commit", || setxattr(&control, "varve.txn-commit", b"", XattrFlags::empty()));
        });
        assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 64);
        assert_eq!(run(varve().args(["txn", "list"]).arg(mount.path())).stdout, b"");
        mount.unmount();
        run(varve().arg("fsck").arg(mount.store()));
    }
}

/// Views are mounted one at a time, and whoever came by one that was mounted already waited, too.
#[test]
fn many_come_by_snapshots_at_once() {
    for transport in ["uring", "dev"] {
        let Some(mount) = mounted(transport) else { continue };
        fs::write(mount.path().join("file"), "x").unwrap();
        let snapshots: Vec<PathBuf> = (0..10).map(|n| snapshot(&mount.path(), n)).collect();
        crowd(&mount, 200, move |number| {
            let file = snapshots[number % snapshots.len()].join("file");
            assert_eq!(in_turn("look", || fs::metadata(&file).map_err(errno)).len(), 1);
        });
        mount.unmount();
    }
}

fn snapshot(dir: &Path, number: usize) -> PathBuf {
    let name = format!("s{number}");
    run(varve().args(["snapshot", "create"]).arg(dir).arg(&name));
    dir.join(".varve/snapshots").join(name)
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap()
}
