//! Epochs: when views began, on the clock of inode ids.
//!
//! In: ids that were handed out. Out: which of two moments is the earlier one. Never: hands out an id.
//!
//! One allocator hands out inode ids in ascending order ([`crate::ids`]), to files, directories, dictionaries and views. The id of a view
//! is its *epoch*: what has a smaller id was born before the view began, and what has a larger one was born after. The store keeps epochs
//! as such ids: in clone references, pending rows, names of snapshots and of directories.

use std::fmt;

use varve_types::InodeId;

/// The moment at which a view began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Epoch(InodeId);

impl Epoch {
    /// Before every inode of a new store but the root.
    pub(crate) const FORMAT: Epoch = Epoch(InodeId::FIRST_FREE);
    /// After all that can have an id.
    pub(crate) const LAST: Epoch = Epoch(InodeId::new(u64::MAX));

    /// The epoch of the view that has the id `id`.
    pub(crate) const fn of(id: InodeId) -> Epoch {
        Epoch(id)
    }

    /// The epoch with this number.
    pub(crate) const fn new(number: u64) -> Epoch {
        Epoch(InodeId::new(number))
    }

    /// The epoch as it is written in decimal.
    pub(crate) fn parse(text: &str) -> Option<Epoch> {
        Some(Epoch::new(text.parse().ok()?))
    }

    /// The id of the view, as rows have it.
    pub(crate) const fn id(self) -> InodeId {
        self.0
    }

    /// Its number, as names of directories have it.
    pub(crate) const fn get(self) -> u64 {
        self.0.get()
    }

    /// Whether what has the id `id` was born before this epoch, so that a view that began then may know it.
    pub(crate) fn knows(self, id: InodeId) -> bool {
        id < self.0
    }

    /// The next moment.
    pub(crate) fn next(self) -> Epoch {
        Epoch::new(self.get() + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
