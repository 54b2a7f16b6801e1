//! Calls that locks of transactions are in the way of, where a thread may wait for them: of commits and of dictionaries.
//! Requests of the kernel wait without one (`varve_fuse`, `parked.rs`).

use std::time::{Duration, Instant};

use varve_fs::VarveFs;
use varve_vfs::{Blocked, Vfs};

/// Makes `call` again when locks have gone, until they are not in its way or `wait_max` is over. What was in the way has
/// changed nothing.
pub(crate) fn in_time<T>(
    fs: &VarveFs,
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
        fs.wait_for_locks(blocked, left);
    }
}
