//! Scheduling policies of threads, for which the standard library and rustix have no call.
#![allow(unsafe_code, reason = "sched_setscheduler(2) takes a pointer")]

use std::io;

/// How a thread shares its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Policy {
    /// As threads usually do.
    Other = libc::SCHED_OTHER,
    /// With its fair share, but without interrupting the running thread when it wakes.
    Batch = libc::SCHED_BATCH,
    /// Almost only when no other thread wants the CPU. A CPU that runs only such threads counts as idle when the
    /// scheduler looks for one.
    Idle = libc::SCHED_IDLE,
}

/// Makes the calling thread run under `policy`, whatever the policy of the thread that started it.
pub(crate) fn set_own(policy: Policy) -> io::Result<()> {
    // 0 is the calling thread.
    set(0, policy)
}

/// Makes the thread `tid` run under `policy`.
pub(crate) fn set(tid: libc::pid_t, policy: Policy) -> io::Result<()> {
    // SAFETY: a structure of integers, for all of which zero is a value; on some systems it has more fields
    // than the priority, which is 0 for these policies.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel only reads the structure, in the course of the call.
    match unsafe { libc::sched_setscheduler(tid, policy as libc::c_int, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the policy of the calling thread, by its number in sched(7).
pub(crate) fn own() -> io::Result<libc::c_int> {
    // SAFETY: takes no pointer.
    match unsafe { libc::sched_getscheduler(0) } {
        -1 => Err(io::Error::last_os_error()),
        policy => Ok(policy),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The policy of a thread of this process, as proc(5) has it in field 41 of its stat.
    pub(crate) fn policy_of(tid: libc::pid_t) -> i32 {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
        let after_name = stat.rsplit(')').next().unwrap();
        after_name.split_whitespace().nth(41 - 3).unwrap().parse().unwrap()
    }

    #[test]
    fn a_thread_changes_its_own_policy_and_no_other() {
        let before = own().unwrap();
        std::thread::scope(|scope| {
            let changed = scope.spawn(|| {
                set_own(Policy::Batch).unwrap();
                let tid = rustix::thread::gettid().as_raw_nonzero().get();
                let changed = [own().unwrap(), policy_of(tid)];
                set_own(Policy::Other).unwrap();
                (changed, own().unwrap())
            });
            assert_eq!(changed.join().unwrap(), ([libc::SCHED_BATCH; 2], libc::SCHED_OTHER));
        });
        assert_eq!(own().unwrap(), before);
    }
}
