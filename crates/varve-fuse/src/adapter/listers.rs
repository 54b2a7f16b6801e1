//! Learns which threads list directories for their names alone.
//!
//! At the beginning of a listing the kernel asks for attributes too, before it can know whether the program wants
//! them. It makes an inode for each entry with attributes, which costs it more than all else about the entry. After
//! the first part it asks for attributes only if the program has looked at names. So a thread that has read on a few
//! times without a look at a name gets names alone. When it looks up a file in a directory listed so, it gets
//! attributes again, for good.
//!
//! ```text
//!              reads on without a look, LISTINGS times in a row                  looks at a file in it
//! undecided -----------------------------------------------------> names only ----------------------> attributes
//! ```
//!
//! Looks at directories do not count, because a walk through a tree looks at them in any case.
//!
//! Invariant: a wrong guess costs time, but never makes an answer wrong.

use std::sync::atomic::{AtomicU64, Ordering};

use varve_types::InodeId;

/// Threads remembered at a time. A thread with the same slot as another replaces it.
const THREADS: usize = 256;

/// How many listings in a row without a look at a name decide that a thread wants names only.
const LISTINGS: u8 = 8;

/// What a thread wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    /// Undecided: this many of its last listings went on without a look.
    Undecided(u8),
    Names,
    Attributes,
}

/// A thread with what it wants and its last listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lister {
    thread: u32,
    /// The lowest bits of the id of the directory that it listed last.
    dir: u16,
    /// The thread has read only the beginning of that listing.
    is_begun: bool,
    wants: Wants,
}

impl Lister {
    fn new(thread: u32) -> Lister {
        Lister { thread, dir: 0, is_begun: false, wants: Wants::Undecided(0) }
    }

    /// `thread 32 | dir 16 | begun 8 | wants 8`
    fn pack(self) -> u64 {
        let wants = match self.wants {
            Wants::Undecided(count) => count,
            Wants::Names => 254,
            Wants::Attributes => 255,
        };
        u64::from(self.thread) << 32
            | u64::from(self.dir) << 16
            | u64::from(self.is_begun) << 8
            | u64::from(wants)
    }

    fn unpack(packed: u64) -> Lister {
        let [.., dir_high, dir_low, begun, wants] = packed.to_be_bytes();
        let wants = match wants {
            255 => Wants::Attributes,
            254 => Wants::Names,
            count => Wants::Undecided(count),
        };
        let dir = u16::from_be_bytes([dir_high, dir_low]);
        Lister { thread: (packed >> 32) as u32, dir, is_begun: begun != 0, wants }
    }
}

/// What the threads that list directories want. This is a guess: of two notes at one moment one may be lost.
#[derive(Debug)]
pub(super) struct Listers {
    places: [AtomicU64; THREADS],
}

impl Default for Listers {
    fn default() -> Listers {
        Listers { places: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Listers {
    fn place(&self, thread: u32) -> &AtomicU64 {
        &self.places[thread as usize % THREADS]
    }

    /// Returns what is known of a thread. Threads of the kernel and of other process namespaces are 0.
    fn known(&self, thread: u32) -> Option<Lister> {
        let lister = Lister::unpack(self.place(thread).load(Ordering::Relaxed));
        (lister.thread == thread && thread != 0).then_some(lister)
    }

    fn note(&self, lister: Lister) {
        self.place(lister.thread).store(lister.pack(), Ordering::Relaxed);
    }

    /// Notes that `thread` begins to list `dir`. Returns whether it gets attributes.
    pub(super) fn begins(&self, thread: u32, dir: InodeId) -> bool {
        if thread == 0 {
            return true;
        }
        let before = self.known(thread).unwrap_or(Lister::new(thread));
        self.note(Lister { dir: dir.get() as u16, is_begun: true, ..before });
        before.wants != Wants::Names
    }

    /// Notes that `thread` reads on in `dir`, and whether the kernel asks for attributes because the program has
    /// looked at names.
    pub(super) fn goes_on(&self, thread: u32, dir: InodeId, with_attributes: bool) {
        let Some(before) = self.known(thread) else { return };
        if !before.is_begun || before.dir != dir.get() as u16 {
            return;
        }
        let wants = match before.wants {
            Wants::Undecided(_) if with_attributes => Wants::Undecided(0),
            Wants::Undecided(count) if count + 1 < LISTINGS => Wants::Undecided(count + 1),
            Wants::Undecided(_) => Wants::Names,
            decided => decided,
        };
        self.note(Lister { is_begun: false, wants, ..before });
    }

    /// Notes that `thread` has looked up something other than a directory in `dir`.
    pub(super) fn looks_up(&self, thread: u32, dir: InodeId) {
        if let Some(before) = self.known(thread)
            && before.wants == Wants::Names
            && before.dir == dir.get() as u16
        {
            self.note(Lister { wants: Wants::Attributes, ..before });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: u32 = 70_000;

    fn dir(number: u64) -> InodeId {
        InodeId::new(number)
    }

    fn names_only(listers: &Listers, thread: u32) {
        for number in 0..u64::from(LISTINGS) {
            assert!(listers.begins(thread, dir(number)));
            listers.goes_on(thread, dir(number), false);
        }
    }

    #[test]
    fn who_never_looks_gets_names_alone_until_it_does() {
        let listers = Listers::default();
        names_only(&listers, THREAD);
        assert!(!listers.begins(THREAD, dir(90)));
        listers.looks_up(THREAD, dir(91));
        listers.looks_up(THREAD + 1, dir(90));
        listers.goes_on(THREAD, dir(90), false);
        assert!(!listers.begins(THREAD, dir(92)), "it has looked elsewhere");
        listers.looks_up(THREAD, dir(92));
        for number in 100..200 {
            assert!(listers.begins(THREAD, dir(number)), "it looks at what it lists");
            listers.goes_on(THREAD, dir(number), false);
        }
    }

    #[test]
    fn a_look_between_two_parts_begins_the_count_anew() {
        let listers = Listers::default();
        for number in 0..100 {
            assert!(listers.begins(THREAD, dir(number)));
            listers.goes_on(THREAD, dir(number), number % u64::from(LISTINGS) == 0);
            // Only the first of the later parts tells something.
            (0..9).for_each(|_| listers.goes_on(THREAD, dir(number), false));
        }
    }

    #[test]
    fn threads_are_told_apart() {
        let listers = Listers::default();
        names_only(&listers, THREAD);
        assert!(listers.begins(THREAD + 1, dir(1)) && listers.begins(0, dir(1)));
        assert!(!listers.begins(THREAD, dir(1)));
        // The one that takes its place is unknown, and so is this one then.
        assert!(listers.begins(THREAD + THREADS as u32, dir(1)));
        assert!(listers.begins(THREAD, dir(1)));
    }

    #[test]
    fn what_is_packed_comes_back() {
        for wants in [Wants::Undecided(0), Wants::Undecided(7), Wants::Names, Wants::Attributes] {
            for (thread, dir, is_begun) in [(1, 0, true), (u32::MAX, u16::MAX, false)] {
                let lister = Lister { thread, dir, is_begun, wants };
                assert_eq!(Lister::unpack(lister.pack()), lister);
            }
        }
    }
}
