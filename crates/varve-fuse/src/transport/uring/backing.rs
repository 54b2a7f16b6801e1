//! Tracks how much memory the entries of a queue have, and which entries give some back.
//!
//! To get a page and to give it back costs about as much as to copy 16 KiB. So an entry keeps the memory that its
//! requests have touched for the next ones, until all entries together have more than [`BACKED_BYTES_MAX`].

use crate::transport::held::ENTRIES;

/// The most bytes that the payloads of all entries of a queue keep together.
pub(super) const BACKED_BYTES_MAX: usize = 2 << 20;
/// How many bytes of its payload each entry keeps, whatever the others have.
const SMALL_PAYLOAD_BYTES: usize = 16 << 10;

/// How far the payload of each entry has been touched.
#[derive(Debug)]
pub(super) struct Backing {
    /// Bytes, by entry.
    touched: [usize; ENTRIES],
    /// Their sum.
    total: usize,
}

impl Backing {
    pub(super) fn new() -> Backing {
        Backing { touched: [0; ENTRIES], total: 0 }
    }

    /// Notes that the first `len` bytes of the payload of `entry` have been touched.
    pub(super) fn touch(&mut self, entry: usize, len: usize) {
        let more = len.saturating_sub(self.touched[entry]);
        self.touched[entry] += more;
        self.total += more;
    }

    /// If the entries have too much memory, returns which of them must shrink and to how many bytes, the last entries
    /// first, until half of the limit is left. Skips entries that are `busy`.
    pub(super) fn surplus(
        &mut self,
        busy: impl Fn(usize) -> bool,
    ) -> impl Iterator<Item = (usize, usize)> {
        let goal = if self.total > BACKED_BYTES_MAX { BACKED_BYTES_MAX / 2 } else { usize::MAX };
        (0..ENTRIES).rev().filter_map(move |entry| {
            let touched = &mut self.touched[entry];
            if self.total <= goal || *touched <= SMALL_PAYLOAD_BYTES || busy(entry) {
                return None;
            }
            self.total -= *touched - SMALL_PAYLOAD_BYTES;
            *touched = SMALL_PAYLOAD_BYTES;
            Some((entry, SMALL_PAYLOAD_BYTES))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::PAYLOAD_BYTES_MAX;
    use super::*;

    #[test]
    fn a_queue_keeps_what_its_requests_touch_up_to_a_bound() {
        let mut backing = Backing::new();
        for _ in 0..1000 {
            (0..ENTRIES).for_each(|entry| backing.touch(entry, SMALL_PAYLOAD_BYTES));
            (0..8).for_each(|entry| backing.touch(entry, 100 << 10));
            assert_eq!(backing.surplus(|_| false).count(), 0);
        }
        (0..ENTRIES).for_each(|entry| backing.touch(entry, PAYLOAD_BYTES_MAX));
        let (last, small) = (ENTRIES - 1, SMALL_PAYLOAD_BYTES);
        let given: Vec<_> = backing.surplus(|entry| entry == last).collect();
        assert!(given.iter().all(|(entry, keep)| *entry < last && *keep == small));
        assert_eq!(backing.touched[last], PAYLOAD_BYTES_MAX);
        assert_eq!(backing.total, backing.touched.iter().sum::<usize>());
        assert!(backing.total <= BACKED_BYTES_MAX);
    }

    #[test]
    fn what_is_busy_is_given_back_later() {
        let mut backing = Backing::new();
        (0..ENTRIES).for_each(|entry| backing.touch(entry, PAYLOAD_BYTES_MAX));
        assert_eq!(backing.surplus(|_| true).count(), 0);
        assert!(backing.surplus(|_| false).count() > 0);
        assert!(backing.total <= BACKED_BYTES_MAX);
    }
}
