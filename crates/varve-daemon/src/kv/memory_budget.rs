//! Room for what requests take of the memory, over all clients.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// What takes no more than this passes as it is.
const SMALL_BYTES: usize = 16 << 10;

/// So many bytes.
pub(super) struct Room {
    all: usize,
    free: Mutex<usize>,
    freed: Condvar,
    /// Who waits for much is not overtaken.
    next: Mutex<()>,
}

/// Some of them, free again when dropped.
pub(super) struct Taken<'a> {
    room: &'a Room,
    bytes: usize,
}

impl Room {
    /// `bytes` free ones.
    pub(super) fn new(bytes: usize) -> Room {
        let (freed, next) = (Condvar::new(), Mutex::new(()));
        Room { all: bytes, free: Mutex::new(bytes), freed, next }
    }

    /// Takes room for `bytes`, all there is at most; `None` if there is none within `wait_max`.
    pub(super) fn take(&self, bytes: usize, wait_max: Duration) -> Option<Taken<'_>> {
        let bytes = if bytes <= SMALL_BYTES { 0 } else { bytes.min(self.all) };
        if bytes == 0 {
            return Some(Taken { room: self, bytes });
        }
        let end = Instant::now() + wait_max;
        let _next = self.next.try_lock_until(end)?;
        let mut free = self.free.lock();
        while *free < bytes {
            if self.freed.wait_until(&mut free, end).timed_out() {
                return None;
            }
        }
        *free -= bytes;
        Some(Taken { room: self, bytes })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.room.free.lock() += self.bytes;
        self.room.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is() {
        let room = Room::new(3 * SMALL_BYTES);
        let much = room.take(2 * SMALL_BYTES, Duration::ZERO).unwrap();
        assert!(room.take(2 * SMALL_BYTES, Duration::from_millis(5)).is_none());
        // What is small does not wait, and what is more than all waits for all.
        assert!(room.take(SMALL_BYTES, Duration::ZERO).is_some());
        drop(much);
        let all = room.take(usize::MAX, Duration::ZERO).unwrap();
        assert!(room.take(SMALL_BYTES + 1, Duration::ZERO).is_none());
        std::thread::scope(|scope| {
            let waits =
                scope.spawn(|| room.take(SMALL_BYTES + 1, varve_testkit::PATIENCE).is_some());
            drop(all);
            assert!(waits.join().unwrap());
        });
    }
}
