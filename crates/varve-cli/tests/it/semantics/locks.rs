//! Locks. The calls are made from Python, whose standard library has them all.

use std::path::Path;

use super::{Place, semantics};
use crate::harness::python;

semantics!(flock_locks, posix_locks, ofd_locks, lock_deadlock, leases);

/// What the scripts share: `attempt` runs a function in a child process and gives its result, 0 or an errno.
const PRELUDE: &str = r#"
import errno, fcntl, os, struct, time
open("file", "w").write("x" * 100)
def opened(flags=os.O_RDWR):
    return os.open("file", flags)
def attempt(function):
    child = os.fork()
    if child == 0:
        try:
            function()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
        except BaseException:
            os._exit(255)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
def lock(fd, kind, start, length, command=fcntl.F_SETLK):
    answer = fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, 0, start, length, 0))
    return struct.unpack("hhqqi4x", answer)
READ, WRITE, NONE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
def refused(function, wanted):
    try:
        function()
    except OSError as error:
        assert error.errno == wanted, error
    else:
        raise AssertionError("granted")
"#;

fn script(dir: &Path, text: &str) {
    python(dir, &format!("{PRELUDE}{text}"));
}

fn flock_locks(place: &Place) {
    script(
        &place.dir(),
        r#"
a, b = opened(), opened()
NOWAIT = fcntl.LOCK_NB
fcntl.flock(a, fcntl.LOCK_EX)
refused(lambda: fcntl.flock(b, fcntl.LOCK_SH | NOWAIT), errno.EWOULDBLOCK)
assert attempt(lambda: fcntl.flock(opened(), fcntl.LOCK_EX | NOWAIT)) == errno.EWOULDBLOCK
fcntl.flock(a, fcntl.LOCK_SH)
fcntl.flock(b, fcntl.LOCK_SH | NOWAIT)
refused(lambda: fcntl.flock(b, fcntl.LOCK_EX | NOWAIT), errno.EWOULDBLOCK)
# The lock is the open file's, whoever holds it: it goes with the last descriptor, and with its process.
copy = os.dup(a)
os.close(a)
refused(lambda: fcntl.flock(b, fcntl.LOCK_EX | NOWAIT), errno.EWOULDBLOCK)
os.close(copy)
fcntl.flock(b, fcntl.LOCK_EX | NOWAIT)
fcntl.flock(b, fcntl.LOCK_UN)
assert attempt(lambda: fcntl.flock(opened(), fcntl.LOCK_EX)) == 0
fcntl.flock(b, fcntl.LOCK_EX | NOWAIT)
# A waiter gets it when it is free.
child = os.fork()
if child == 0:
    os.close(b)
    fcntl.flock(opened(), fcntl.LOCK_EX)
    os._exit(0)
time.sleep(0.2)
assert os.waitpid(child, os.WNOHANG) == (0, 0)
os.close(b)
assert os.waitpid(child, 0)[1] == 0
"#,
    );
}

fn posix_locks(place: &Place) {
    script(
        &place.dir(),
        r#"
a = opened()
lock(a, WRITE, 10, 10)
assert attempt(lambda: lock(opened(), READ, 15, 10)) in (errno.EAGAIN, errno.EACCES)
assert attempt(lambda: lock(opened(), WRITE, 20, 10)) == 0
lock(opened(), WRITE, 15, 10)
me = os.getpid()
def who():
    kind, _, start, length, pid = lock(opened(), WRITE, 0, 0, fcntl.F_GETLK)
    assert (kind, start, length, pid) == (WRITE, 10, 15, me)
assert attempt(who) == 0
# Locks split and change within a process.
lock(a, NONE, 12, 4)
lock(a, READ, 20, 2)
assert attempt(lambda: lock(opened(), WRITE, 12, 4)) == 0
assert attempt(lambda: lock(opened(), READ, 20, 2)) == 0
assert attempt(lambda: lock(opened(), WRITE, 20, 2)) in (errno.EAGAIN, errno.EACCES)
# The close of any descriptor of the file ends them all.
os.close(opened())
assert attempt(lambda: lock(opened(), WRITE, 0, 0)) == 0
# So does the end of the process, and waiters go on.
locked, ends = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    lock(opened(), WRITE, 0, 0)
    os.write(locked[1], b"x")
    os.read(ends[0], 1)
    time.sleep(0.2)
    os._exit(0)
os.read(locked[0], 1)
refused(lambda: lock(a, WRITE, 0, 1), errno.EAGAIN)
os.write(ends[1], b"x")
lock(a, WRITE, 0, 1, fcntl.F_SETLKW)
os.waitpid(child, 0)
refused(lambda: lock(opened(os.O_WRONLY), READ, 0, 1), errno.EBADF)
refused(lambda: lock(opened(os.O_RDONLY), WRITE, 0, 1), errno.EBADF)
refused(lambda: lock(a, 9, 0, 1), errno.EINVAL)
refused(lambda: lock(a, WRITE, -1, 1), errno.EINVAL)
refused(lambda: lock(a, WRITE, 2**63 - 1, 2), errno.EOVERFLOW)
"#,
    );
}

fn ofd_locks(place: &Place) {
    script(
        &place.dir(),
        r#"
F_OFD_GETLK, F_OFD_SETLK = 36, 37
a, b = opened(), opened()
lock(a, WRITE, 0, 10, F_OFD_SETLK)
refused(lambda: lock(b, WRITE, 5, 10, F_OFD_SETLK), errno.EAGAIN)
assert lock(b, WRITE, 5, 10, F_OFD_GETLK)[4] == -1
os.close(opened())
refused(lambda: lock(b, READ, 5, 10, F_OFD_SETLK), errno.EAGAIN)
assert attempt(lambda: lock(opened(), READ, 5, 1)) in (errno.EAGAIN, errno.EACCES)
os.close(a)
lock(b, WRITE, 5, 10, F_OFD_SETLK)
"#,
    );
}

fn lock_deadlock(place: &Place) {
    script(
        &place.dir(),
        r#"
fd = opened()
lock(fd, WRITE, 0, 1)
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    fd = opened()
    lock(fd, WRITE, 1, 1)
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    try:
        lock(fd, WRITE, 0, 1, fcntl.F_SETLKW)
        os._exit(0)
    except OSError as error:
        os._exit(error.errno)
os.read(ready[0], 1)
os.write(go[1], b"x")
time.sleep(0.2)
# Of the two the one that asks last, which is not said, waits for the other, which waits for it.
try:
    lock(fd, WRITE, 1, 1, fcntl.F_SETLKW)
    own = 0
except OSError as error:
    own = error.errno
lock(fd, NONE, 0, 0)
others = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert sorted((own, others)) == [0, errno.EDEADLK], (own, others)
"#,
    );
}

fn leases(place: &Place) {
    script(
        &place.dir(),
        r#"
import signal
broken = []
signal.signal(signal.SIGIO, lambda *_: broken.append(1))
fd = opened(os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
assert fcntl.fcntl(fd, fcntl.F_GETLEASE) == fcntl.F_RDLCK
def write():
    os.open("file", os.O_WRONLY | os.O_NONBLOCK)
assert attempt(write) == errno.EWOULDBLOCK
time.sleep(0.05)
assert broken
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
assert attempt(write) == 0
os.close(fd)
fd = opened()
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
assert attempt(lambda: os.open("file", os.O_RDONLY | os.O_NONBLOCK)) == errno.EWOULDBLOCK
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
"#,
    );
}
