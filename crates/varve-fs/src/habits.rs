//! Which directories get large files.
//!
//! Where the last new files have grown beyond the threshold, the next one is expected to: it begins as an object, so that the
//! kernel may write its bytes straight from the first on, and none of them goes through the store. A guess, kept in memory
//! for some directories at a time. A wrong one costs an object for a small file, and ends the habit, at once if bytes were
//! written: files that stay empty, as locks do, may come between large ones.

use std::sync::atomic::{AtomicU64, Ordering};

use varve_schema::{Content, Inode};
use varve_types::InodeId;

use crate::fs::VarveFs;
use crate::held::Held;
use crate::node::OpenNode;
use crate::options::NewFiles;

/// Directories known at a time; one that falls on the place of another takes it.
const DIRS: usize = 256;

/// After so many large files in a row another one is expected.
const IN_A_ROW: u64 = 4;

/// Bits of a place that count, below the id of the directory.
const COUNT_BITS: u32 = 3;
const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;

/// What became of a new file.
#[derive(Clone, Copy, Debug)]
enum Became {
    Large,
    Small,
    /// It began as an object, and nothing was written.
    Nothing,
}

/// How many new files in a row grew large, by directory.
#[derive(Debug)]
pub(crate) struct Habits {
    places: [AtomicU64; DIRS],
}

impl Habits {
    pub(crate) fn new() -> Habits {
        Habits { places: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    fn place(&self, dir: InodeId) -> &AtomicU64 {
        &self.places[(dir.get() % DIRS as u64) as usize]
    }

    /// So many of the last files of `dir` were large, at most [`COUNT_MAX`].
    fn in_a_row(&self, dir: InodeId) -> u64 {
        // The highest bits of an id go unseen: another guess about a directory that nobody has.
        let place = self.place(dir).load(Ordering::Relaxed);
        if place >> COUNT_BITS == dir.get() & (u64::MAX >> COUNT_BITS) {
            place & COUNT_MAX
        } else {
            0
        }
    }

    /// Notes what a file of `dir` became. Of two at one moment one may be missed.
    fn note(&self, dir: InodeId, became: Became) {
        let before = self.in_a_row(dir);
        let count = match became {
            Became::Large => COUNT_MAX.min(before + 1),
            Became::Nothing => before.saturating_sub(1),
            Became::Small => 0,
        };
        self.place(dir).store(dir.get() << COUNT_BITS | count, Ordering::Relaxed);
    }

    /// Whether the next file of `dir` is expected to be large.
    fn expects_large(&self, dir: InodeId) -> bool {
        self.in_a_row(dir) >= IN_A_ROW
    }
}

impl VarveFs {
    /// Whether new files of `dir` begin as objects. None do in views, where what is large and open stands in the way of a
    /// commit, nor where every write has to be counted.
    pub(crate) fn begins_large(&self, dir: InodeId) -> bool {
        let expected = match self.options.new_files {
            NewFiles::Auto => self.habits.expects_large(dir),
            NewFiles::Small => false,
            NewFiles::Large => true,
        };
        expected
            && self.options.passthrough
            && self.objects.kept().is_some()
            && !self.accounts.has_quotas()
    }

    /// Has the held file, which is being opened for writing, begin as an object if it is empty and its directory's files do.
    pub(crate) fn begin(&self, held: &mut Held<'_>, node: &OpenNode) {
        let may_move = held.inode.content == Content::None;
        let is_empty = may_move || held.inode.content.is_object();
        let Some(dir) = held.counted_in().filter(|_| is_empty && held.inode.size == 0) else {
            return;
        };
        {
            let mut state = node.state();
            // Of what began as an object when it was made, what it becomes counts too.
            state.began_in = Some(dir);
            // The kernel writes straight to none that is open otherwise.
            if state.cached > 0 {
                return;
            }
        }
        if may_move
            && self.begins_large(dir)
            && let Err(error) = self.migrate(held)
        {
            log::debug!("inode {} begins small: {error}", held.inode.ino);
        }
    }

    /// Notes what a file became that was empty when it was opened for writing in `dir`, and nobody writes to any more.
    pub(crate) fn note_habit(&self, dir: InodeId, ino: InodeId, has_object: bool) {
        if !has_object && self.habits.in_a_row(dir) == 0 {
            return;
        }
        let size = |inode: Inode| self.attr(&inode).map(|attr| attr.size);
        match self.read_inode(ino).and_then(size) {
            Ok(0) if !has_object => {}
            Ok(0) => self.habits.note(dir, Became::Nothing),
            Ok(size) if size <= self.superblock.large_file_threshold_bytes => {
                self.habits.note(dir, Became::Small);
            }
            Ok(_) => self.habits.note(dir, Became::Large),
            Err(error) => log::debug!("inode {ino}: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_files_in_a_row_make_a_habit() {
        let habits = Habits::new();
        let (dir, other) = (InodeId::new(7), InodeId::new(7 + DIRS as u64));
        for _ in 0..IN_A_ROW {
            assert!(!habits.expects_large(dir));
            habits.note(dir, Became::Large);
        }
        (0..20).for_each(|_| habits.note(dir, Became::Large));
        assert!(habits.expects_large(dir) && !habits.expects_large(other));
        habits.note(dir, Became::Small);
        assert!(!habits.expects_large(dir));
        (0..IN_A_ROW).for_each(|_| habits.note(dir, Became::Large));
        habits.note(other, Became::Large);
        assert!(!habits.expects_large(dir) && habits.in_a_row(other) == 1);
    }

    #[test]
    fn empty_files_between_large_ones_leave_the_habit() {
        let habits = Habits::new();
        let dir = InodeId::new(7);
        habits.note(dir, Became::Nothing);
        (0..COUNT_MAX).for_each(|_| habits.note(dir, Became::Large));
        for _ in 0..20 {
            habits.note(dir, Became::Nothing);
            assert!(habits.expects_large(dir));
            habits.note(dir, Became::Large);
        }
        (0..COUNT_MAX).for_each(|_| habits.note(dir, Became::Nothing));
        assert_eq!(habits.in_a_row(dir), 0);
    }
}
