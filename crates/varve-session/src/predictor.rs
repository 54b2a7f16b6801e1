//! The large-file predictor: which directories get large files.
//!
//! Where the last new files have grown beyond the threshold, the next one is expected to: it begins as an object, so that the
//! kernel may write its bytes straight from the first on, and none of them goes through the store. A guess, kept in memory
//! for some directories at a time. A wrong one costs an object for a small file, and ends the run, at once if bytes were
//! written: files that stay empty, as locks do, may come between large ones.

use std::sync::atomic::{AtomicU64, Ordering};

use varve_types::InodeId;

/// Directories known at a time; one that falls on the place of another takes it.
const DIRS: usize = 256;

/// After so many large files in a row another one is expected.
const IN_A_ROW: u64 = 4;

/// Bits of a place that count, below the id of the directory.
const COUNT_BITS: u32 = 3;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// What became of a new file.
#[derive(Clone, Copy, Debug)]
pub enum Became {
    /// It grew beyond the threshold.
    Large,
    /// It did not.
    Small,
    /// It began as an object, and nothing was written.
    Nothing,
}

/// How many new files in a row grew large, by directory.
#[derive(Debug)]
pub struct LargeFilePredictor {
    places: [AtomicU64; DIRS],
}

impl Default for LargeFilePredictor {
    fn default() -> LargeFilePredictor {
        LargeFilePredictor::new()
    }
}

impl LargeFilePredictor {
    /// Nothing is known.
    pub fn new() -> LargeFilePredictor {
        LargeFilePredictor { places: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    fn place(&self, dir: InodeId) -> &AtomicU64 {
        &self.places[(dir.get() % DIRS as u64) as usize]
    }

    /// So many of the last files of `dir` were large, at most [`COUNT_MAX`].
    pub fn in_a_row(&self, dir: InodeId) -> u64 {
        // The highest bits of an id go unseen: another guess about a directory that nobody has.
        let place = self.place(dir).load(Ordering::Relaxed);
        if place >> COUNT_BITS == dir.get() & (u64::MAX >> COUNT_BITS) {
            place & COUNT_MAX
        } else {
            0
        }
    }

    /// Notes what a file of `dir` became. Of two at one moment one may be missed.
    pub fn note(&self, dir: InodeId, became: Became) {
        let before = self.in_a_row(dir);
        let count = match became {
            Became::Large => COUNT_MAX.min(before + 1),
            Became::Nothing => before.saturating_sub(1),
            Became::Small => 0,
        };
        self.place(dir).store(dir.get() << COUNT_BITS | count, Ordering::Relaxed);
    }

    /// Whether the next file of `dir` is expected to be large.
    pub fn expects_large(&self, dir: InodeId) -> bool {
        self.in_a_row(dir) >= IN_A_ROW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_in_a_row_are_expected_to_go_on() {
        let predictor = LargeFilePredictor::new();
        let (dir, other) = (InodeId::new(7), InodeId::new(7 + DIRS as u64));
        for _ in 0..IN_A_ROW {
            assert!(!predictor.expects_large(dir));
            predictor.note(dir, Became::Large);
        }
        (0..20).for_each(|_| predictor.note(dir, Became::Large));
        assert!(predictor.expects_large(dir) && !predictor.expects_large(other));
        predictor.note(dir, Became::Small);
        assert!(!predictor.expects_large(dir));
        (0..IN_A_ROW).for_each(|_| predictor.note(dir, Became::Large));
        predictor.note(other, Became::Large);
        assert!(!predictor.expects_large(dir) && predictor.in_a_row(other) == 1);
    }

    #[test]
    fn empty_files_between_large_ones_change_nothing() {
        let predictor = LargeFilePredictor::new();
        let dir = InodeId::new(7);
        predictor.note(dir, Became::Nothing);
        (0..COUNT_MAX).for_each(|_| predictor.note(dir, Became::Large));
        for _ in 0..20 {
            predictor.note(dir, Became::Nothing);
            assert!(predictor.expects_large(dir));
            predictor.note(dir, Became::Large);
        }
        (0..COUNT_MAX).for_each(|_| predictor.note(dir, Became::Nothing));
        assert_eq!(predictor.in_a_row(dir), 0);
    }
}
