//! A limit on how many clients or requests are served at a time.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// A number of slots.
#[derive(Clone)]
pub(crate) struct Slots {
    free: Arc<Free>,
}

struct Free {
    count: Mutex<usize>,
    one: Condvar,
}

/// A slot that is taken. Dropping it frees the slot.
pub(crate) struct Slot {
    free: Arc<Free>,
}

impl Slots {
    /// `count` free slots.
    pub(crate) fn new(count: usize) -> Slots {
        Slots { free: Arc::new(Free { count: Mutex::new(count), one: Condvar::new() }) }
    }

    /// Takes a slot; `None` if all are taken.
    pub(crate) fn take(&self) -> Option<Slot> {
        let mut count = self.free.count.lock();
        *count = count.checked_sub(1)?;
        Some(Slot { free: Arc::clone(&self.free) })
    }

    /// Waits for a free slot and takes it.
    pub(crate) fn wait(&self) -> Slot {
        let mut count = self.free.count.lock();
        self.free.one.wait_while(&mut count, |count| *count == 0);
        *count -= 1;
        Slot { free: Arc::clone(&self.free) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *self.free.count.lock() += 1;
        self.free.one.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_served_at_once_than_there_are_slots() {
        let slots = Slots::new(2);
        let taken = [slots.take(), slots.clone().take()];
        assert!(taken.iter().all(Option::is_some) && slots.take().is_none());
        drop(taken);
        assert!(slots.take().is_some());
    }
}
