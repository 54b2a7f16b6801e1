//! The end of a wait for locks of transactions.

use crate::{Blocked, Vfs};

/// How often those who are in the way of one call may be others than before.
const OVERRULED_MAX: usize = 16;

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
