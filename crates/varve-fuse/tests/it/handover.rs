//! Sessions that follow one another on one mount, under load: programs only wait.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use varve_fuse::{SessionOptions, Transport};

use crate::objectfs::ObjectFs;
use crate::support::{TestMount, model};
use varve_testkit::eventually;

/// Sessions follow one another over /dev/fuse only.
fn over_dev() -> SessionOptions {
    SessionOptions { transport: Some(Transport::Dev), ..SessionOptions::default() }
}

/// Calls `work` with the number of the round on each of four threads while sessions change `changes` times.
fn under_load(mount: &TestMount, changes: u64, work: impl Fn(usize, u64) + Sync) -> u64 {
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let (stop, rounds, work) = (&stop, &rounds, &work);
            scope.spawn(move || {
                for round in 0.. {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    work(worker, round);
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..changes {
            let before = rounds.load(Ordering::SeqCst);
            mount.change_session();
            eventually("work goes on", || rounds.load(Ordering::SeqCst) >= before + 8);
        }
        stop.store(true, Ordering::SeqCst);
    });
    rounds.load(Ordering::SeqCst)
}

#[test]
fn programs_do_not_notice_that_sessions_change() {
    let Some(mount) = TestMount::new(model(), &over_dev()) else { return };
    let mut held = File::create_new(mount.path("held")).unwrap();
    under_load(&mount, 50, |worker, round| {
        let path = mount.path(&format!("f{worker}"));
        let text = format!("round {round}");
        fs::write(&path, &text).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        File::open(&path).unwrap().sync_all().unwrap();
        fs::rename(&path, mount.path(&format!("g{worker}"))).unwrap();
        assert!(fs::read_dir(mount.dir()).unwrap().count() >= 2);
        fs::remove_file(mount.path(&format!("g{worker}"))).unwrap();
    });
    held.write_all(b"still open").unwrap();
    drop(held);
    assert_eq!(fs::read(mount.path("held")).unwrap(), b"still open");
    mount.finish().unwrap();
}

#[test]
fn a_quiet_session_is_paused_with_any_number_of_readers() {
    for threads in [1, 3, 16] {
        for clone_device in [false, true] {
            let threads = std::num::NonZeroUsize::new(threads);
            let options = SessionOptions { threads, clone_device, ..over_dev() };
            let Some(mount) = TestMount::new(model(), &options) else { return };
            for round in 0..3 {
                mount.change_session();
                fs::write(mount.path("f"), format!("{round}")).unwrap();
            }
            mount.finish().unwrap();
        }
    }
}

/// Backing files belong to the connection: an open file stays straight, and the last close forgets it.
#[test]
fn files_that_pass_straight_stay_so() {
    let fs = Arc::new(ObjectFs::new());
    let Some(mount) = TestMount::new(fs.clone(), &over_dev()) else { return };
    let path = mount.path("big-file");
    fs::write(&path, vec![1; 200_000]).unwrap();
    let mut held = File::options().read(true).write(true).open(&path).unwrap();
    held.write_all_at(b"a", 0).unwrap();
    let straight = fs.transfers.swap(0, Ordering::Relaxed) == 0;
    under_load(&mount, 10, |_, round| {
        held.write_all_at(&round.to_le_bytes(), 100_000).unwrap();
        let mut byte = [0];
        File::open(&path).unwrap().read_exact_at(&mut byte, 0).unwrap();
        assert_eq!(byte, *b"a");
    });
    let mut all = Vec::new();
    held.read_to_end(&mut all).unwrap();
    assert_eq!((all.len(), all[0]), (200_000, b'a'));
    if straight {
        assert_eq!(fs.transfers.load(Ordering::Relaxed), 0, "all of it straight");
    }
    drop(held);
    fs::write(&path, b"short").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"short");
    mount.finish().unwrap();
}
