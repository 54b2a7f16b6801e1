//! The signals that this process ignores.

use std::fs;

/// Returns whether this process ignores `signal`, as a process started by nohup(1) ignores SIGHUP. False if the
/// kernel does not say (proc_pid_status(5)).
pub fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
