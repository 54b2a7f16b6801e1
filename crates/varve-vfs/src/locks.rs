//! Waits for locks of transactions, and their end.

use std::time::{Duration, Instant};

use crate::{Blocked, Vfs};

/// How often those who are in the way of one call may be others than before.
const OVERRULED_MAX: usize = 16;

/// Makes `call` again when locks have gone, until they are not in its way or `wait_max` is over; for front ends with a thread that may
/// wait for that. What was in the way has changed nothing.
#[allow(clippy::disallowed_methods, reason = "who waits is a front end's thread, in real time")]
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

/// Makes `call` for the last time, which was refused as `blocked` for as long as it may wait: those in its way give way to
/// it, or it has failed ([`Vfs::overrule`]).
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
