//! Locks that programs set on files, so that their processes agree about who works on which bytes.

/// The system call by which a program locks. Locks of the first two kinds exclude each other; locks of the third kind
/// know nothing of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockKind {
    /// fcntl(2) with F_SETLK: a range that belongs to a process.
    Posix,
    /// fcntl(2) with F_OFD_SETLK: a range that belongs to an open file.
    OpenFile,
    /// flock(2): the whole file; it belongs to an open file.
    Flock,
}

/// What else may be locked at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// Others may hold shared locks.
    Shared,
    /// Nobody else may hold a lock.
    Exclusive,
}

/// A range of bytes of a file, of at least one byte. It may reach beyond the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockRange {
    first: u64,
    last: u64,
}

impl LockRange {
    /// The last byte that a range can have: the largest offset of a file.
    pub const LAST_MAX: u64 = i64::MAX as u64;
    /// All bytes.
    pub const ALL: LockRange = LockRange { first: 0, last: LockRange::LAST_MAX };

    /// Returns the range of these bytes; `None` if there is none, or if it lies beyond the largest offset.
    pub const fn new(first: u64, last: u64) -> Option<LockRange> {
        if first <= last && last <= LockRange::LAST_MAX {
            Some(LockRange { first, last })
        } else {
            None
        }
    }

    /// Returns the first byte.
    pub const fn first(self) -> u64 {
        self.first
    }

    /// Returns the last byte.
    pub const fn last(self) -> u64 {
        self.last
    }

    /// Returns whether both have a byte in common.
    pub const fn overlaps(self, other: LockRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Returns whether both together are one range.
    pub const fn touches(self, other: LockRange) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }

    /// Returns the smallest range that has the bytes of both.
    pub fn union(self, other: LockRange) -> LockRange {
        LockRange { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// Returns what is left of this range before and after `other`. REQUIRES: they overlap.
    pub fn without(self, other: LockRange) -> impl Iterator<Item = LockRange> {
        let before = other.first.checked_sub(1).and_then(|last| LockRange::new(self.first, last));
        let after = LockRange::new(other.last + 1, self.last);
        [before, after].into_iter().flatten()
    }
}

/// Whom a lock belongs to: a process or an open file, by a number that a front end chose. The numbers of one front end
/// differ, also between processes and open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockOwner(pub u64);

/// A lock that is held or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// Whom it belongs to.
    pub owner: LockOwner,
    /// By which system call it was set.
    pub kind: LockKind,
    /// What it excludes.
    pub mode: LockMode,
    /// What it covers; for [`LockKind::Flock`] all bytes.
    pub range: LockRange,
    /// The process that set it; 0 if it is none that the front end knows.
    pub pid: u32,
}

/// The number of a request for a lock that waits (F_SETLKW).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockWait(pub u64);
