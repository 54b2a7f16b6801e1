//! Keeps the daemon's memory near its budget.
//!
//! The budget counts memory in use. The allocator holds more: blocks of tables are freed between rows of memtables and buffers of
//! merges, and free memory of one arena serves no other. In an hour of creates that doubled the memory of the process. So the allocator
//! gets few arenas, and a thread checks at intervals whether the process holds too much, and then gives free memory back.

use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;

use varve_env::os::memory;

/// How often the memory is looked at.
const INTERVAL: Duration = Duration::from_secs(15);

/// What a daemon takes besides its budget: its program, stacks, buffers of requests.
const CONSTANT_BYTES: u64 = 32 << 20;

/// Memory is given back only after it has grown by one part in so many: less is not worth the time.
const GROWTH_PARTS: u64 = 16;

/// Threads of so many CPUs share an arena, and there are at least [`ARENAS_MIN`].
const CPUS_PER_ARENA: usize = 4;
const ARENAS_MIN: usize = 2;

/// Decides when to give free memory back.
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

    /// Checks once, and gives free memory back if that is due.
    fn look(&mut self) -> std::io::Result<()> {
        let before = memory::resident_bytes()?;
        if self.is_due(before) {
            memory::give_back();
            self.left_bytes = memory::resident_bytes()?;
            log::debug!("gave free memory back: {before} bytes before, {} now", self.left_bytes);
        }
        Ok(())
    }
}

/// Limits the allocator to few arenas. REQUIRES: the process has no other threads, which would keep their arenas.
pub(super) fn limit_arenas() {
    let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let arenas = cpus.div_ceil(CPUS_PER_ARENA).max(ARENAS_MIN);
    if !memory::limit_arenas(u16::try_from(arenas).unwrap_or(u16::MAX)) {
        log::debug!("cannot limit the number of arenas");
    }
}

/// Starts the thread that keeps the process near `budget_bytes`.
pub(super) fn keep_near(budget_bytes: usize) {
    let mut watch = Watch { limit_bytes: budget_bytes as u64 + CONSTANT_BYTES, left_bytes: 0 };
    let look = move || {
        loop {
            thread::sleep(INTERVAL);
            if let Err(error) = watch.look() {
                log::warn!("cannot read the memory in use: {error}");
                return;
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("varve-memory".to_owned()).spawn(look) {
        log::warn!("free memory is not given back, as no thread starts: {error}");
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
