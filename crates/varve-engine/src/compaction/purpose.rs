//! Why tables are merged, and what follows from it for the merge.

use varve_types::FileNo;

use super::policy::Job;

/// Why tables are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The levels are out of shape.
    Shape,
    /// A segment is to be emptied: the outputs shall not point into it.
    Cleaning(FileNo),
    /// The one table is of another design than the store: all of it is copied.
    Redesign,
    /// So is it, but its rows point at too many bytes to bring into rows at once: it becomes several tables, whose rows
    /// point at about so many bytes each.
    Split(u64),
}

impl Purpose {
    /// The segment that is to be emptied.
    pub(super) fn emptied(self) -> Option<FileNo> {
        if let Purpose::Cleaning(segment) = self { Some(segment) } else { None }
    }

    /// The table from which a `job` to empty a segment takes values.
    pub(super) fn cleaned(self, job: &Job) -> Option<FileNo> {
        self.emptied().and(job.inputs.first()).map(|(_, table)| *table)
    }

    /// Whether values that stand apart stay so, although new ones stand in their rows: else cleaning, which is to keep
    /// a store small, would have to make room for values that it has no business with.
    pub(super) fn leaves_values(self) -> bool {
        matches!(self, Purpose::Cleaning(_) | Purpose::Split(_))
    }

    /// Whether all blocks are copied.
    pub(super) fn copies_all(self) -> bool {
        matches!(self, Purpose::Redesign | Purpose::Split(_))
    }

    /// Bytes of records that the rows of one output point at, nearly.
    pub(super) fn pointed_max(self) -> u64 {
        if let Purpose::Split(bytes) = self { bytes } else { u64::MAX }
    }
}
