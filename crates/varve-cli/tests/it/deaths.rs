//! What programs are told whose calls the death of a daemon cuts off.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Signal, kill_process};
use varve_testkit::{eventually, there_are_rings};

use crate::harness::{Mount, can_mount, run, varve, without_namespaces};

/// Programs that make calls at the same time.
const CALLERS: usize = 16;

/// Makes, writes and removes a file in `dir` for as long as that goes; what it failed with in the end.
fn call_until_dead(dir: &Path, number: usize) -> Errno {
    let path = dir.join(number.to_string());
    loop {
        let done = fs::write(&path, "x").and_then(|()| fs::remove_file(&path));
        if let Err(error) = done {
            return Errno::from_io_error(&error).unwrap();
        }
    }
}

/// Of calls over io_uring that the daemon had not taken yet when it died a third to a half failed with ECANCELED.
#[test]
fn calls_that_a_death_cuts_off_say_that_the_file_system_is_gone() {
    if !can_mount() || !there_are_rings() {
        return;
    }
    let _apart = without_namespaces();
    for signal in [Signal::ABORT, Signal::QUIT, Signal::USR1] {
        for round in 0..4 {
            let mount = Mount::unformatted();
            run(varve().arg("format").arg(mount.store()));
            mount.mount_with("transport=uring");
            let (daemon, begin) = (mount.daemon(), Barrier::new(CALLERS + 1));
            let errors: BTreeSet<_> = thread::scope(|scope| {
                let call = |number| {
                    let (begin, dir) = (&begin, mount.path());
                    scope.spawn(move || {
                        begin.wait();
                        call_until_dead(&dir, number)
                    })
                };
                let calls: Vec<_> = (0..CALLERS).map(call).collect();
                begin.wait();
                thread::sleep(Duration::from_millis(20 + 30 * round));
                kill_process(daemon, signal).unwrap();
                calls.into_iter().map(|call| call.join().unwrap().raw_os_error()).collect()
            });
            let gone = [Errno::NOTCONN, Errno::CONNABORTED].map(Errno::raw_os_error);
            assert!(errors.is_subset(&gone.into()), "{signal:?}, round {round}: {errors:?}");
            eventually("the daemon is dead", || {
                rustix::process::test_kill_process(daemon).is_err()
            });
        }
    }
}
