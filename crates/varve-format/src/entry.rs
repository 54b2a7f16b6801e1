//! What a version of a row does.

/// The effect of one version of a key. The numbers stand in logs and tables; logs hold no separated values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// The key is absent from this version on.
    Delete = 1,
    /// The key has a value from this version on.
    Put = 2,
    /// The key has a value from this version on, which stands in a segment; the row has a
    /// [`crate::segment::ValuePointer`].
    Separated = 3,
}

impl EntryKind {
    /// Returns the kind with this number.
    pub fn from_id(id: u8) -> Option<EntryKind> {
        match id {
            1 => Some(EntryKind::Delete),
            2 => Some(EntryKind::Put),
            3 => Some(EntryKind::Separated),
            _ => None,
        }
    }
}
