//! Small files that are fetched before they are read.
//!
//! Who goes through a tree reads most files of a directory one after the other, and waits for each that is not in memory. What was
//! written one after the other stands side by side, and the kernel reads on by itself; what a directory has got over time lies
//! apart. So once a second file of a directory is read, others are asked for, in the order in which they are listed:
//!
//! 1. [`ReadAhead::note`] counts the files that are read of a directory, but for those that were made right after the one that was
//!    read before.
//! 2. As many are fetched as were read, and some more, at most [`LEAD`]. Where somebody reads few of many, or in another order, no
//!    more than that are fetched in vain.
//! 3. It ends with the directory, and with a piece of it that was in memory already. Who comes back later begins anew.

use std::time::Duration;

use parking_lot::Mutex;
use varve_types::InodeId;

/// Directories known at a time; one that falls on the place of another takes it.
const DIRS: usize = 256;

/// After so long without a read a directory is begun anew.
const PAUSE: Duration = Duration::from_secs(5);

/// Files that are fetched before anybody has read them, at most; and how many for each that was read.
pub const LEAD: usize = 32;
const LEAD_FOR_EACH: usize = 8;

/// The fewest files for which a directory is looked at.
pub const PIECE: usize = 16;

/// Whoever goes from one file to another whose id is higher by so many reads what the kernel has read ahead.
const STEP_MAX: u64 = 4;

/// Directories in which small files were read.
#[derive(Debug)]
pub struct ReadAhead(Box<[Mutex<Option<Walk>>]>);

#[derive(Clone, Copy, Debug)]
struct Walk {
    dir: InodeId,
    /// The file that was read last, and when.
    file: InodeId,
    at: Duration,
    /// So many files were read, but for those that followed the one before.
    read: usize,
    /// So many were fetched, or are being fetched.
    fetched: usize,
    /// The row from which on files are to be fetched; `None` while some are, and when there are no more.
    next: Option<u64>,
}

/// Files of a directory that are to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The directory.
    pub dir: InodeId,
    /// The first row.
    pub from: u64,
    /// How many.
    pub files: usize,
}

impl Default for ReadAhead {
    fn default() -> ReadAhead {
        ReadAhead::new()
    }
}

impl ReadAhead {
    /// No directory is known.
    pub fn new() -> ReadAhead {
        ReadAhead((0..DIRS).map(|_| Mutex::new(None)).collect())
    }

    fn place(&self, dir: InodeId) -> &Mutex<Option<Walk>> {
        &self.0[(dir.get() % DIRS as u64) as usize]
    }

    /// Notes that `file` of `dir` is read. Gives what the caller is to fetch, who then calls [`ReadAhead::go_on`].
    pub fn note(&self, dir: InodeId, file: InodeId, at: Duration) -> Option<Piece> {
        let mut place = self.place(dir).lock();
        let is_known = |walk: &&mut Walk| walk.dir == dir && at.saturating_sub(walk.at) < PAUSE;
        let Some(walk) = place.as_mut().filter(is_known) else {
            *place = Some(Walk { dir, file, at, read: 1, fetched: 0, next: Some(1) });
            return None;
        };
        let step = file.get().wrapping_sub(walk.file.get());
        (walk.file, walk.at) = (file, at);
        if step <= STEP_MAX {
            return None;
        }
        walk.read += 1;
        let due = walk.read + LEAD.min(LEAD_FOR_EACH * walk.read);
        let files = due.saturating_sub(walk.fetched);
        let from = walk.next.filter(|_| files >= PIECE)?;
        (walk.fetched, walk.next) = (due, None);
        Some(Piece { dir, from, files })
    }

    /// What was to be fetched of `dir` is: the next files begin at `next`, if there are more.
    pub fn go_on(&self, dir: InodeId, next: Option<u64>) {
        if let Some(walk) = self.place(dir).lock().as_mut().filter(|walk| walk.dir == dir) {
            walk.next = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: InodeId = InodeId::new(7);

    fn file(number: usize) -> InodeId {
        InodeId::new(1000 + (STEP_MAX + 1) * number as u64)
    }

    #[test]
    fn what_follows_each_other_is_left_to_the_kernel() {
        let now = Duration::from_secs(1);
        for step in 0..=STEP_MAX {
            let ahead = ReadAhead::new();
            let mut ids = (0..100).map(|number| InodeId::new(2000 + step * number));
            assert!(ids.all(|id| ahead.note(DIR, id, now).is_none()), "{step}");
            assert!(ahead.note(DIR, InodeId::new(1000), now).is_some());
        }
    }

    #[test]
    fn the_lead_grows_with_what_is_read_and_never_beyond() {
        let (ahead, now) = (ReadAhead::new(), Duration::from_secs(1));
        assert_eq!(ahead.note(DIR, file(0), now), None);
        let mut fetched = 0;
        for read in 2..500 {
            if let Some(piece) = ahead.note(DIR, file(read), now) {
                assert_eq!((piece.dir, piece.from), (DIR, 1 + fetched as u64));
                assert!(piece.files >= PIECE);
                assert_eq!(ahead.note(DIR, file(read), now), None, "they are being fetched");
                fetched += piece.files;
                ahead.go_on(DIR, Some(1 + fetched as u64));
            }
            assert!(fetched > read && fetched <= read + LEAD.min(LEAD_FOR_EACH * read));
        }
        ahead.go_on(DIR, None);
        assert!((500..600).all(|read| ahead.note(DIR, file(read), now).is_none()));
        let later = now + PAUSE;
        assert_eq!(ahead.note(DIR, file(0), later), None);
        assert_eq!(ahead.note(DIR, file(1), later).map(|piece| piece.from), Some(1), "anew");
    }

    #[test]
    fn one_directory_takes_the_place_of_another() {
        let (ahead, now) = (ReadAhead::new(), Duration::from_secs(1));
        let other = InodeId::new(DIR.get() + DIRS as u64);
        let third = InodeId::new(DIR.get() + 1);
        for dir in [DIR, third, other, third] {
            assert_eq!(ahead.note(dir, file(0), now), None);
        }
        assert!(
            ahead.note(third, file(1), now).is_some() && ahead.note(DIR, file(1), now).is_none()
        );
        ahead.go_on(other, None);
        assert!(ahead.note(DIR, file(2), now).is_some());
    }
}
