//! The scheduling policy SCHED_BATCH, for which the standard library and rustix have no call.
#![allow(unsafe_code, reason = "sched_setscheduler(2) takes a pointer")]

use std::io;

/// Has the calling thread run under SCHED_BATCH: with its fair share of the CPU, but without interrupting
/// whoever runs when it is woken.
pub(super) fn enter() -> io::Result<()> {
    set_policy(libc::SCHED_BATCH)
}

/// Has the calling thread run as threads usually do, whatever the thread ran under that started it.
pub(super) fn leave() -> io::Result<()> {
    set_policy(libc::SCHED_OTHER)
}

fn set_policy(policy: libc::c_int) -> io::Result<()> {
    // SAFETY: a structure of integers, for all of which zero is a value; on some systems it has more fields
    // than the priority, which is 0 for these policies.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel only reads the structure, in the course of the call; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    /// The policy of the calling thread, as proc(5) has it in field 41 of its stat.
    pub(crate) fn policy() -> i32 {
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
                let changed = policy();
                super::leave().unwrap();
                [changed, policy()]
            });
            assert_eq!(changed.join().unwrap(), [libc::SCHED_BATCH, libc::SCHED_OTHER]);
        });
        assert_eq!(policy(), before);
    }
}
