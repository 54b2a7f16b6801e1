//! Inode ids that no row stands for, and what each of them means.
//!
//! ```text
//! | 1 | kind: 3 bits | number: 60 bits |
//!
//! kind 0   0 to 3: a directory at the top; from 16 on: a place for a mount, counted
//!      1   what ends the transaction with that id
//! ```

use varve_schema::FileKind;
use varve_types::InodeId;

/// How many bits the number has.
const NUMBER_BITS: u32 = 60;
/// The first number of a place for a mount.
const FIRST_PLACE: u64 = 16;

/// What a made-up id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MadeUp {
    /// `.varve` in the root.
    Top,
    /// `.varve/snapshots`.
    Snapshots,
    /// `.varve/txn`.
    Transactions,
    /// `.varve/control`.
    Controls,
    /// A place for a mount; they are counted.
    Place(u64),
    /// `.varve/control/ID`.
    Control(u64),
}

impl MadeUp {
    /// What `id` stands for, if it is made up and stands for anything.
    pub(super) fn of(id: InodeId) -> Option<MadeUp> {
        let bits = id.get().checked_sub(InodeId::FIRST_MADE_UP.get())?;
        let number = bits & ((1 << NUMBER_BITS) - 1);
        Some(match (bits >> NUMBER_BITS, number) {
            (0, 0) => MadeUp::Top,
            (0, 1) => MadeUp::Snapshots,
            (0, 2) => MadeUp::Transactions,
            (0, 3) => MadeUp::Controls,
            (0, place) => MadeUp::Place(place.checked_sub(FIRST_PLACE)?),
            (1, transaction) => MadeUp::Control(transaction),
            _ => return None,
        })
    }

    /// Its id. REQUIRES: the number has no more than 60 bits, which ids of rows have not in any lifetime.
    pub(super) const fn id(self) -> InodeId {
        let (kind, number) = match self {
            MadeUp::Top => (0, 0),
            MadeUp::Snapshots => (0, 1),
            MadeUp::Transactions => (0, 2),
            MadeUp::Controls => (0, 3),
            MadeUp::Place(place) => (0, FIRST_PLACE + place),
            MadeUp::Control(transaction) => (1, transaction),
        };
        InodeId::new(InodeId::FIRST_MADE_UP.get() + (kind << NUMBER_BITS) + number)
    }

    /// What kind of inode it is.
    pub(super) fn kind(self) -> FileKind {
        match self {
            MadeUp::Control(_) => FileKind::Regular,
            _ => FileKind::Directory,
        }
    }

    /// Whether what is known of it may end at any moment, without anybody telling the kernel.
    pub(super) fn is_fleeting(self) -> bool {
        matches!(self, MadeUp::Place(_) | MadeUp::Control(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_id_stands_for_one_thing() {
        let number = (1 << NUMBER_BITS) - 1;
        let all = [
            MadeUp::Top,
            MadeUp::Snapshots,
            MadeUp::Transactions,
            MadeUp::Controls,
            MadeUp::Place(0),
            MadeUp::Place(number - FIRST_PLACE),
            MadeUp::Control(16),
            MadeUp::Control(number),
        ];
        for what in all {
            assert_eq!(MadeUp::of(what.id()), Some(what));
        }
        for id in [16, (1 << 63) - 1, (1 << 63) + 4, (1 << 63) + 15, u64::MAX] {
            assert_eq!(MadeUp::of(InodeId::new(id)), None, "{id:#x}");
        }
    }
}
