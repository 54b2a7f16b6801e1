//! The scheduling policy SCHED_BATCH, for which the standard library and rustix have no call.
#![allow(unsafe_code, reason = "sched_setscheduler(2) takes a pointer")]

use std::io;

/// Has the calling thread run under SCHED_BATCH: with its fair share of the CPU, but without interrupting
/// whoever runs when it is woken.
pub(super) fn enter() -> io::Result<()> {
    // SAFETY: a structure of integers, for all of which zero is a value; on some systems it has more fields
    // than the priority, which is 0 for this policy.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel only reads the structure, in the course of the call; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    /// The policy of the calling thread, as proc(5) has it in field 41 of its stat.
    fn policy() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let after_name = stat.rsplit(')').next().unwrap();
        after_name.split_whitespace().nth(41 - 3).unwrap().parse().unwrap()
    }

    #[test]
    fn a_thread_changes_its_own_policy_and_no_other() {
        let before = policy();
        std::thread::scope(|scope| {
            let changed = scope.spawn(|| {
                super::enter().unwrap();
                policy()
            });
            assert_eq!(changed.join().unwrap(), libc::SCHED_BATCH);
        });
        assert_eq!(policy(), before);
    }
}
