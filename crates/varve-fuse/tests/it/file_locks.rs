//! Locks of files that a file system keeps, for programs on two mounts of it, over each transport.

use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use varve_fuse::{SessionOptions, Transport, UnmountMode, unmount};
use varve_meta::LockLimits;
use varve_testkit::{Command, PATIENCE, eventually};

use crate::remotefs::{Locks, RemoteFs};
use crate::support::{TestMount, model};

/// Does what its lines of input say, and answers each with a line: `ok`, what was found, or an errno.
const PROGRAM: &str = r#"
import errno, fcntl, os, signal, struct, sys
class Signal(Exception): pass
def on_alarm(*_): raise Signal()
signal.signal(signal.SIGALRM, on_alarm)
files = {}
modes = {"sh": fcntl.F_RDLCK, "ex": fcntl.F_WRLCK, "un": fcntl.F_UNLCK}
flocks = {"sh": fcntl.LOCK_SH, "ex": fcntl.LOCK_EX, "un": fcntl.LOCK_UN}
commands = {"set": fcntl.F_SETLK, "wait": fcntl.F_SETLKW, "get": fcntl.F_GETLK, "ofd": 37, "ofdwait": 38}
def do(word, name, *more):
    if word == "open":
        files[name] = os.open(more[0], os.O_RDWR)
    elif word == "close":
        os.close(files.pop(name))
    elif word == "flock":
        fcntl.flock(files[name], flocks[more[0]] | (0 if more[1:] else fcntl.LOCK_NB))
    else:
        mode, first, length = modes[more[0]], int(more[1]), int(more[2])
        if more[3:]:
            signal.setitimer(signal.ITIMER_REAL, float(more[3]))
        lock = struct.pack("hhqqi4x", mode, 0, first, length, 0)
        found = fcntl.fcntl(files[name], commands[word], lock)
        if word == "get":
            mode, _, first, length, pid = struct.unpack("hhqqi4x", found)
            return "free" if mode == fcntl.F_UNLCK else f"{mode} {first} {length} {pid}"
    return "ok"
for line in sys.stdin:
    try: answer = do(*line.split())
    # EDEADLK has two names.
    except OSError as e: answer = "EDEADLK" if e.errno == errno.EDEADLK else errno.errorcode[e.errno]
    except Signal: answer = "signal"
    print(answer, flush=True)
"#;

/// A process that locks, killed when dropped.
struct Program {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Program {
    fn new() -> Program {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, answers) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let input = child.stdin.take().unwrap();
        Program { child, input, answers }
    }

    /// A process that has `path` open as `f`.
    fn with(path: &Path) -> Program {
        let mut program = Program::new();
        assert_eq!(program.does(&format!("open f {}", path.display())), "ok");
        program
    }

    fn begins(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    fn answer(&self) -> String {
        self.answers.recv_timeout(PATIENCE).expect("an answer")
    }

    fn does(&mut self, what: &str) -> String {
        self.begins(what);
        self.answer()
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two mounts of one file system, with an empty file `f`, and a process on each that has it open.
struct Two {
    locks: Arc<Locks>,
    mounts: [TestMount; 2],
}

impl Two {
    fn program(&self, mount: usize) -> Program {
        Program::with(&self.mounts[mount].path("f"))
    }

    fn eventually_waiting(&self, count: usize) {
        eventually("requests wait", || self.locks.counts().1 == count);
    }

    fn eventually_held(&self, count: usize) {
        eventually("locks are held", || self.locks.counts().0 == count);
    }
}

/// Runs `test` over each transport.
fn over_each(test: impl Fn(&Two)) {
    for transport in [Transport::Dev, Transport::Uring] {
        // One thread: whoever kept it would keep everybody waiting.
        let (transport, threads) = (Some(transport), NonZeroUsize::new(1));
        let options = SessionOptions { transport, threads, ..SessionOptions::default() };
        let (model, locks) = (model(), Locks::new(LockLimits::default()));
        let mount = |session| {
            let fs = RemoteFs::with_locks(model.clone(), locks.clone(), session);
            TestMount::new(Arc::new(fs), &options)
        };
        let (Some(one), Some(other)) = (mount(1), mount(2)) else { continue };
        std::fs::write(one.path("f"), b"").unwrap();
        let two = Two { locks, mounts: [one, other] };
        test(&two);
        two.eventually_held(0);
        assert_eq!(two.locks.counts(), (0, 0));
        for mount in two.mounts {
            mount.finish().unwrap();
        }
    }
}

#[test]
fn ranges_of_processes_exclude_each_other_across_mounts() {
    over_each(|two| {
        let (mut a, mut near, mut far) = (two.program(0), two.program(0), two.program(1));
        assert_eq!(a.does("set f ex 0 10"), "ok");
        for other in [&mut near, &mut far] {
            assert_eq!(other.does("set f sh 9 1"), "EAGAIN");
            assert_eq!(other.does("set f sh 10 0"), "ok", "to the end of the file");
        }
        assert_eq!(near.does("get f ex 5 1"), format!("1 0 10 {}", a.pid()));
        assert_eq!(
            far.does("get f ex 5 1"),
            "1 0 10 0",
            "a process on another mount has no number"
        );
        assert_eq!(a.does("get f ex 5 1"), "free");
        assert_eq!(a.does("set f un 3 2"), "ok");
        assert_eq!(far.does("set f ex 3 2"), "ok");
        assert_eq!(far.does("get f sh 0 3"), "1 0 3 0");
        assert_eq!(a.does("get f sh 0 20"), "1 3 2 0");
    });
}

#[test]
fn a_wait_ends_when_the_lock_goes() {
    over_each(|two| {
        let (mut a, mut b) = (two.program(0), two.program(1));
        assert_eq!(a.does("set f ex 0 10"), "ok");
        b.begins("wait f ex 0 5");
        two.eventually_waiting(1);
        // The mount has one thread, and serves others meanwhile.
        assert_eq!(std::fs::metadata(two.mounts[1].path("f")).unwrap().len(), 0);
        b.answers.recv_timeout(Duration::from_millis(50)).expect_err("the lock is held");
        assert_eq!(a.does("set f un 0 5"), "ok");
        assert_eq!(b.answer(), "ok");
        assert_eq!(a.does("set f sh 0 1"), "EAGAIN");
        assert_eq!(b.does("wait f sh 20 1"), "ok", "nothing to wait for");
    });
}

#[test]
fn a_signal_ends_a_wait() {
    over_each(|two| {
        let (mut a, mut b) = (two.program(0), two.program(1));
        assert_eq!(a.does("set f ex 0 10"), "ok");
        assert_eq!(b.does("wait f ex 0 5 0.2"), "signal");
        assert_eq!(two.locks.counts(), (1, 0));
        // Its next request is one like any other.
        b.begins("wait f ex 0 5");
        two.eventually_waiting(1);
        assert_eq!(a.does("set f un 0 10"), "ok");
        assert_eq!(b.answer(), "ok");
    });
}

#[test]
fn the_end_of_a_process_ends_its_locks_and_its_waits() {
    over_each(|two| {
        let (mut a, mut b, mut c) = (two.program(0), two.program(1), two.program(0));
        for lock in ["set f ex 0 10", "ofd f ex 10 10", "flock f ex"] {
            assert_eq!(a.does(lock), "ok");
        }
        b.begins("wait f ex 0 10");
        two.eventually_waiting(1);
        c.begins("wait f ex 0 10");
        two.eventually_waiting(2);
        b.kill();
        two.eventually_waiting(1);
        a.kill();
        assert_eq!(c.answer(), "ok");
        two.eventually_held(1);
        for lock in ["ofd f ex 10 10", "flock f ex"] {
            assert_eq!(c.does(lock), "ok");
        }
    });
}

#[test]
fn processes_that_would_wait_for_each_other_for_ever_are_told() {
    over_each(|two| {
        let (mut a, mut b, mut c) = (two.program(0), two.program(1), two.program(1));
        for (at, program) in [&mut a, &mut b, &mut c].into_iter().enumerate() {
            assert_eq!(program.does(&format!("set f ex {at} 1")), "ok");
        }
        a.begins("wait f ex 1 1");
        two.eventually_waiting(1);
        b.begins("wait f sh 2 1");
        two.eventually_waiting(2);
        assert_eq!(c.does("wait f sh 0 1"), "EDEADLK");
        assert_eq!(c.does("set f un 2 1"), "ok");
        assert_eq!(b.answer(), "ok");
        b.kill();
        assert_eq!(a.answer(), "ok");
    });
}

#[test]
fn locks_of_open_files_end_with_them_and_know_no_deadlock() {
    over_each(|two| {
        let (mut a, mut b) = (two.program(0), two.program(1));
        assert_eq!(a.does("ofd f ex 0 1"), "ok");
        assert_eq!(b.does("set f ex 0 1"), "EAGAIN");
        assert_eq!(b.does("ofd f ex 1 1"), "ok");
        a.begins("ofdwait f ex 1 1");
        two.eventually_waiting(1);
        b.begins("ofdwait f ex 0 1");
        two.eventually_waiting(2);
        b.kill();
        assert_eq!(a.answer(), "ok");
        // Another descriptor of the file says nothing about this one.
        assert_eq!(a.does(&format!("open g {}", two.mounts[0].path("f").display())), "ok");
        assert_eq!(a.does("close g"), "ok");
        let mut c = two.program(1);
        assert_eq!(c.does("set f ex 0 1"), "EAGAIN");
        assert_eq!(a.does("close f"), "ok");
        assert_eq!(c.does("wait f ex 0 1"), "ok");
    });
}

#[test]
fn a_process_that_closes_any_descriptor_of_a_file_loses_its_locks() {
    over_each(|two| {
        let (mut a, mut b) = (two.program(0), two.program(1));
        assert_eq!(a.does("set f ex 0 1"), "ok");
        assert_eq!(a.does(&format!("open g {}", two.mounts[0].path("f").display())), "ok");
        assert_eq!(b.does("set f ex 0 1"), "EAGAIN");
        assert_eq!(a.does("close g"), "ok");
        assert_eq!(b.does("set f ex 0 1"), "ok", "at once, as close(2) has returned");
    });
}

#[test]
fn flock_locks_whole_files_for_open_files() {
    over_each(|two| {
        let (mut a, mut b) = (two.program(0), two.program(1));
        assert_eq!((a.does("flock f sh"), b.does("flock f sh")), ("ok".into(), "ok".into()));
        assert_eq!(b.does("set f ex 0 0"), "ok", "fcntl(2) knows nothing of it");
        assert_eq!(a.does("flock f ex"), "EAGAIN");
        assert_eq!(b.does("flock f ex"), "ok", "the other has lost its lock by asking for more");
        assert_eq!(a.does(&format!("open g {}", two.mounts[0].path("f").display())), "ok");
        a.begins("flock g sh wait");
        two.eventually_waiting(1);
        assert_eq!(b.does("close f"), "ok");
        assert_eq!(a.answer(), "ok");
        assert_eq!(a.does("flock f ex"), "EAGAIN", "of another open file of the same process");
        assert_eq!(a.does("flock g un"), "ok");
        assert_eq!(a.does("flock f ex"), "ok");
    });
}

#[test]
fn too_many_locks_are_refused() {
    let limits = LockLimits { session_locks_max: 2, session_waits_max: 1, ..Default::default() };
    let (model, locks) = (model(), Locks::new(limits));
    let fs = RemoteFs::with_locks(model, locks.clone(), 1);
    let Some(mount) = TestMount::new(Arc::new(fs), &SessionOptions::default()) else { return };
    std::fs::write(mount.path("f"), b"").unwrap();
    let mut a = Program::with(&mount.path("f"));
    assert_eq!((a.does("set f ex 0 1"), a.does("set f ex 5 3")), ("ok".into(), "ok".into()));
    assert_eq!(
        (a.does("set f ex 9 1"), a.does("set f un 6 1")),
        ("ENOLCK".into(), "ENOLCK".into())
    );
    let (mut b, mut c) = (Program::with(&mount.path("f")), Program::with(&mount.path("f")));
    b.begins("wait f ex 0 1");
    // Not by asking with `c`: that request could be the one that waits.
    eventually("it waits", || locks.counts() == (2, 1));
    assert_eq!(c.does("wait f ex 0 1"), "ENOLCK");
    drop((a, b, c));
    mount.finish().unwrap();
}

#[test]
fn the_end_of_a_mount_ends_the_waits_on_it() {
    for transport in [Transport::Dev, Transport::Uring] {
        let options = SessionOptions { transport: Some(transport), ..SessionOptions::default() };
        let locks = Locks::new(LockLimits::default());
        let fs = RemoteFs::with_locks(model(), locks.clone(), 1);
        let Some(mount) = TestMount::new(Arc::new(fs), &options) else { continue };
        std::fs::write(mount.path("f"), b"").unwrap();
        let mut holder = Program::with(&mount.path("f"));
        let mut waiter = Program::with(&mount.path("f"));
        assert_eq!(holder.does("flock f ex"), "ok");
        waiter.begins("flock f ex wait");
        eventually("it waits", || locks.counts() == (1, 1));
        unmount(mount.dir(), UnmountMode::Force).unwrap();
        assert_ne!(waiter.answer(), "ok");
        eventually("the wait ends", || locks.counts().1 == 0);
        drop((holder, waiter));
        mount.join().unwrap();
    }
}
