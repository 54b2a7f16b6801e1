//! Where a table stands within a key space: a level, and a sub-level of it.

use varve_types::SublevelId;

/// Levels of a key space. With a growth of 10 the last holds 400 TB beside a level 1 of 400 MB.
pub(crate) const LEVELS: usize = 7;

/// A place for tables within a key space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) level: usize,
    pub(crate) sublevel: SublevelId,
}
