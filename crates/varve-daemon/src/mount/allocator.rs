//! Keeps the daemon's memory near its budget.
//!
//! What counts against the budget is what is in use. The allocator holds more: blocks of tables come and go between
//! rows of memtables and buffers of merges, and what one arena has free no other can use. In an hour of creates that was as
//! much again as was in use. So there are few arenas, and a thread looks now and then whether the process holds more than it should, and
//! then has what is free given back.

use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;

use varve_env::os::memory;

/// How often the memory is looked at.
const INTERVAL: Duration = Duration::from_secs(15);

/// What a daemon takes besides its budget: its program, stacks, buffers of requests.
const CONSTANT_BYTES: u64 = 32 << 20;

/// A part of the memory so large must have come since the last time, or giving it back is not worth the time.
const GROWTH_PARTS: u64 = 16;

/// Threads of so many CPUs share an arena, and there are at least [`ARENAS_MIN`].
const CPUS_PER_ARENA: usize = 4;
const ARENAS_MIN: usize = 2;

/// When free memory is to be given back.
struct Watch {
    limit_bytes: u64,
    /// What the process held after the last time.
    left_bytes: u64,
}

impl Watch {
    fn is_due(&self, resident_bytes: u64) -> bool {
        resident_bytes > self.limit_bytes
            && resident_bytes > self.left_bytes + self.left_bytes / GROWTH_PARTS
    }

    /// Looks once, and gives back what is free if that is due.
    fn look(&mut self) -> std::io::Result<()> {
        let before = memory::resident_bytes()?;
        if self.is_due(before) {
            memory::give_back();
            self.left_bytes = memory::resident_bytes()?;
            log::debug!("free memory was given back: {before} bytes, now {}", self.left_bytes);
        }
        Ok(())
    }
}

/// Has the process do with few arenas. Threads keep those that they have, so this is to be called before there are any.
pub(super) fn limit_arenas() {
    let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let arenas = cpus.div_ceil(CPUS_PER_ARENA).max(ARENAS_MIN);
    if !memory::limit_arenas(u16::try_from(arenas).unwrap_or(u16::MAX)) {
        log::debug!("the number of arenas stays as it is");
    }
}

/// Has the process keep near `budget_bytes` for as long as it lives.
pub(super) fn keep_near(budget_bytes: usize) {
    let mut watch = Watch { limit_bytes: budget_bytes as u64 + CONSTANT_BYTES, left_bytes: 0 };
    let look = move || {
        loop {
            thread::sleep(INTERVAL);
            if let Err(error) = watch.look() {
                log::warn!("how much memory is in use cannot be told: {error}");
                return;
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("varve-memory".to_owned()).spawn(look) {
        log::warn!("memory that is free stays with this process: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_beyond_the_limit_and_once_for_what_cannot_go() {
        let mut watch = Watch { limit_bytes: 1000, left_bytes: 0 };
        assert!(!watch.is_due(1000) && watch.is_due(1001));
        watch.left_bytes = 1600;
        assert!(!watch.is_due(1600) && !watch.is_due(1700) && watch.is_due(1701));
    }
}
