//! Decides which signals end the wait of a thread.
//!
//! The kernel reports the first signal of a waiting thread, whichever it is. Signals of timers or children come at
//! any time, and few programs expect that an open fails because of one. So a wait goes on until there is a signal
//! that will end the program. Either the kernel will end it by this signal, and then sends a SIGKILL to each of its
//! threads, or it is one of the signals that people send to end a program.
//!
//! Source: proc_pid_status(5); `complete_signal` in the kernel's kernel/signal.c.

/// The signals that people send to end a program.
const ENDING: [i32; 5] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGKILL];

/// Returns whether a signal will end the thread `thread`. True also if that cannot be found out.
#[allow(clippy::disallowed_methods, reason = "threads belong to the machine")]
pub(super) fn is_to_end(thread: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{thread}/status"))
        .map_or(true, |status| has_ending_signal(&status))
}

/// Returns whether a signal that ends the program is pending for a thread with this status.
fn has_ending_signal(status: &str) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    let pending = (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:");
    ENDING.iter().any(|signal| pending & 1 << (signal - 1) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_signals_that_are_to_end_a_thread_end_its_wait() {
        let status = |own: u64, shared: u64, blocked: u64| {
            let masks = format!("SigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\n");
            format!("Name:\tcat\nSigQ:\t1/7\n{masks}SigBlk:\t{blocked:016x}\nSigIgn:\t0\n")
        };
        let bit = |signal: i32| 1 << (signal - 1);
        for signal in ENDING {
            assert!(has_ending_signal(&status(bit(signal), 0, 0)));
            assert!(has_ending_signal(&status(bit(libc::SIGALRM), bit(signal), 0)));
            assert!(!has_ending_signal(&status(0, bit(signal), bit(signal))));
        }
        for signal in [libc::SIGALRM, libc::SIGCHLD, libc::SIGURG, libc::SIGPROF, libc::SIGCONT] {
            assert!(!has_ending_signal(&status(bit(signal), bit(signal), 0)));
        }
        assert!(!has_ending_signal(&status(0, 0, u64::MAX)));
        let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert!(!is_to_end(own) && is_to_end(0), "of some it is not known");
    }
}
