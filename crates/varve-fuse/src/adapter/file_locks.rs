//! Serves requests about locks of files, for a file system that keeps them ([`varve_vfs::Vfs::has_locks`]).
//!
//! What the kernel sends:
//!
//! - GETLK, SETLK and SETLKW for fcntl(2), and SETLK and SETLKW with a flag for flock(2). The number of an owner is that
//!   of a process, or of an open file; the kernel does not say which.
//! - FLUSH with the owner at each close(2), in which the locks of a process on the file end.
//! - RELEASE when an open file ends, which ends the locks that were set by its handle: those of open files. This comes
//!   after the last close(2) has returned.
//!
//! Source: `fuse_setlk`, `fuse_flush` and `fuse_file_release` in the kernel's fs/fuse/file.c.

use std::sync::Arc;

use varve_vfs::{FileLock, FsError, FsResult, Handle, LockKind, LockMode, LockOwner, LockRange};

use super::rules::errno;
use super::{Adapter, Call, DONE, Served};
use crate::answer::Answer;
use crate::lock_waits::End;
use crate::meters::Meters;
use crate::protocol::constants::opcode_name;
use crate::protocol::reply::Reply;
use crate::protocol::request::{Header, Lock};
use crate::transport::Until;

/// The types of locks in the kernel's requests.
const F_RDLCK: u32 = libc::F_RDLCK as u32;
const F_WRLCK: u32 = libc::F_WRLCK as u32;
const F_UNLCK: u32 = libc::F_UNLCK as u32;

/// What SETLK asks for.
enum Change {
    Set(FileLock),
    Unlock((LockOwner, LockKind), LockRange),
}

fn range(lock: &Lock) -> FsResult<LockRange> {
    LockRange::new(lock.first, lock.last).ok_or(FsError::Invalid("the range of a lock"))
}

fn change(lock: &Lock, kind: LockKind) -> FsResult<Change> {
    let (owner, range) = (LockOwner(lock.owner), range(lock)?);
    let set = |mode| Ok(Change::Set(FileLock { owner, kind, mode, range, pid: lock.pid }));
    match lock.mode {
        F_RDLCK => set(LockMode::Shared),
        F_WRLCK => set(LockMode::Exclusive),
        F_UNLCK => Ok(Change::Unlock((owner, kind), range)),
        _ => Err(FsError::Invalid("the type of a lock")),
    }
}

/// Returns by which system call a lock is set. Of locks of ranges the kernel does not say whether they are those of a
/// process or of an open file. Only for a wait it matters, in which case the waiting thread shows it.
fn kind(header: &Header, lock: &Lock, waits: bool) -> LockKind {
    match () {
        () if lock.is_flock => LockKind::Flock,
        () if waits && waits_for_open_file(header.pid) => LockKind::OpenFile,
        () => LockKind::Posix,
    }
}

/// Returns whether a thread waits in fcntl(2) for a lock of an open file. False if that cannot be found out.
#[allow(clippy::disallowed_methods, reason = "threads belong to the machine")]
fn waits_for_open_file(thread: u32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{thread}/syscall"));
    call.is_ok_and(|call| is_wait_for_open_file(&call))
}

/// Returns whether a system call, as proc(5) shows it, has F_OFD_SETLKW as its second argument.
fn is_wait_for_open_file(call: &str) -> bool {
    let argument = call.split_ascii_whitespace().nth(2);
    argument == Some(format!("{:#x}", libc::F_OFD_SETLKW).as_str())
}

impl Adapter {
    /// Ends the locks of a process that closes a descriptor. Without locks of the file system the answer tells the kernel
    /// to stop asking.
    pub(super) fn flush(&self, call: &Call<'_>, handle: Handle, owner: u64) -> Served {
        self.serves_locks()?;
        self.vfs.close_locks(call.ino, handle, LockOwner(owner))?;
        Ok(DONE)
    }

    pub(super) fn getlk(&self, call: &mut Call<'_>, lock: &Lock) -> Served {
        self.serves_locks()?;
        let Change::Set(wanted) = change(lock, kind(call.header, lock, false))? else {
            return Err(FsError::Invalid("the type of a lock"));
        };
        let found = self.vfs.test_lock(call.ino, Handle(lock.handle), wanted)?;
        match found {
            Some(FileLock { mode, range, pid, .. }) => {
                let mode = if mode == LockMode::Shared { F_RDLCK } else { F_WRLCK };
                call.reply.lock_out((range.first(), range.last()), mode, pid);
            }
            None => call.reply.lock_out((lock.first, lock.last), F_UNLCK, 0),
        }
        Ok(Answer::Body)
    }

    pub(super) fn setlk(&self, call: &Call<'_>, lock: &Lock, waits: bool) -> Served {
        self.serves_locks()?;
        let (ino, handle) = (call.ino, Handle(lock.handle));
        match change(lock, kind(call.header, lock, waits))? {
            Change::Unlock(owner, range) => self.vfs.unlock(ino, handle, owner, range)?,
            Change::Set(wanted) if waits => return self.await_lock(call, handle, wanted),
            Change::Set(wanted) => self.vfs.set_lock(ino, handle, wanted)?,
        }
        Ok(DONE)
    }

    fn await_lock(&self, call: &Call<'_>, handle: Handle, wanted: FileLock) -> Served {
        let (unique, opcode) = (call.header.unique, call.header.opcode);
        let hold = call.origin.hold(Until::Unlocked);
        let Some(hold) = hold.filter(|_| self.lock_waits.begin(unique)) else {
            // It may not wait, but perhaps it need not.
            return match self.vfs.set_lock(call.ino, handle, wanted) {
                Err(FsError::TryAgain) => Err(FsError::TooManyLocks),
                set => set.map(|()| DONE),
            };
        };
        let (waits, origin) = (Arc::clone(&self.lock_waits), call.origin.clone());
        let (meters, began) = (Arc::clone(&self.meters), Meters::now());
        let done = move |result: FsResult<()>| {
            let result = match waits.end(unique) {
                End::Answer => result,
                End::Refuse => result.map_err(|_| FsError::TooManyLocks),
                End::Forget => return,
            };
            let answer = match result {
                Ok(()) => DONE,
                Err(error) => Answer::Errno(errno(opcode_name(opcode), &error)),
            };
            meters.answered(opcode, began.elapsed(), &answer);
            origin.reply(unique, answer, &mut Reply::new());
            drop(hold);
        };
        let wait = self.vfs.await_lock(call.ino, handle, wanted, Box::new(done));
        self.lock_waits.waits(&*self.vfs, unique, wait);
        if self.parked.is_signalled(unique) {
            self.lock_waits.interrupt(&*self.vfs, unique);
        }
        Ok(Answer::Later)
    }

    fn serves_locks(&self) -> FsResult<()> {
        if self.vfs.has_locks() { Ok(()) } else { Err(FsError::NotImplemented) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_shows_whether_it_waits_for_an_open_file() {
        let call = |command| format!("72 0x3 {command} 0x7ffd8 0x0 0x0 0x0 0x7ffd7 0x7f0\n");
        assert!(is_wait_for_open_file(&call("0x26")));
        for other in [call("0x7"), call("0x25"), "running\n".to_owned(), String::new()] {
            assert!(!is_wait_for_open_file(&other), "{other}");
        }
    }

    #[test]
    fn what_is_no_lock_is_refused() {
        let lock =
            Lock { handle: 1, owner: 2, first: 3, last: 4, mode: F_WRLCK, pid: 5, is_flock: false };
        assert!(change(&lock, LockKind::Posix).is_ok());
        for wrong in
            [Lock { mode: 3, ..lock }, Lock { first: 5, ..lock }, Lock { last: 1 << 63, ..lock }]
        {
            let refused = change(&wrong, LockKind::Posix);
            assert!(matches!(refused, Err(FsError::Invalid(_))), "{wrong:?}");
        }
    }
}
