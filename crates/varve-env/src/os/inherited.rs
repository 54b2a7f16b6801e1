//! Controls what a started program has of the process that starts it: which descriptors it inherits, whether it outlives it.

#![allow(unsafe_code, reason = "what is done between fork(2) and execve(2)")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The first descriptor after the standard ones.
const FIRST: libc::c_uint = 3;
/// The last descriptor that is closed one by one, if the kernel cannot close a range (Linux before 5.11).
const LAST: libc::c_int = 4096;

/// Makes the program of `command` inherit only the standard descriptors, and none of the descriptors that this
/// process inherited without knowing of them.
pub fn nothing_inherited(command: &mut Command) -> &mut Command {
    // SAFETY: the closure takes no lock and no memory, and changes the descriptors of the child alone, which they are
    // closed in by execve(2) as those of this program are.
    unsafe { command.pre_exec(close_with_exec) }
}

/// Has the program of `command` get SIGTERM when the thread that starts it ends, or its process is killed.
pub fn ends_with_its_starter(command: &mut Command) -> &mut Command {
    // SAFETY: the closure takes no lock and no memory, and changes the child alone.
    unsafe { command.pre_exec(ask_for_signal) }
}

/// Asks for SIGTERM when the parent ends.
fn ask_for_signal() -> io::Result<()> {
    // SAFETY: it takes numbers alone.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM as libc::c_ulong) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Marks all but the standard descriptors to be closed by execve(2).
fn close_with_exec() -> io::Result<()> {
    let mark = libc::c_long::from(libc::CLOSE_RANGE_CLOEXEC as i32);
    // SAFETY: it takes numbers alone.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, mark) };
    if marked != 0 {
        for descriptor in FIRST as libc::c_int..LAST {
            // SAFETY: the same; what is none is refused.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}
