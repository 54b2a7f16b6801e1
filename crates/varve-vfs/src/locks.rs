//! Waits for the locks of transactions, for front ends whose thread may wait.

use std::time::{Duration, Instant};

use crate::{Blocked, Vfs};

/// How often one call may meet the locks of further transactions before it fails.
const OVERRULED_MAX: usize = 16;

/// Makes `call`, and repeats it each time transactions have released locks, until it is not blocked or `wait_max` has
/// passed. A blocked call has changed nothing.
#[allow(clippy::disallowed_methods, reason = "a thread of a front end waits in real time")]
pub fn in_time<T>(
    vfs: &dyn Vfs,
    wait_max: Duration,
    mut call: impl FnMut() -> Result<T, Blocked>,
) -> Result<T, Blocked> {
    let since = Instant::now();
    loop {
        let done = call();
        let Err(blocked) = &done else { return done };
        let left = wait_max.saturating_sub(since.elapsed());
        if left.is_zero() {
            return done;
        }
        vfs.wait_for_locks(blocked, left);
    }
}

/// Decides about a `call` that was `blocked` for as long as it may wait: either the transactions that block it lose
/// their locks and the call is made once more, or it fails ([`Vfs::overrule`]).
pub fn insist<T>(
    vfs: &dyn Vfs,
    mut blocked: Blocked,
    mut call: impl FnMut() -> Result<T, Blocked>,
) -> Result<T, Blocked> {
    for _ in 0..OVERRULED_MAX {
        if !vfs.overrule(&blocked) {
            break;
        }
        match call() {
            Err(others) => blocked = others,
            done => return done,
        }
    }
    vfs.wait_is_over(&blocked);
    Err(blocked)
}
