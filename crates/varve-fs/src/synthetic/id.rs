//! Inode ids that no row stands for, and what each of them means.
//!
//! ```text
//! | 1 | kind: 3 bits | number: 60 bits |
//!
//! kind 0   0 to 3: a directory at the top
//!      1   what ends the transaction with that id
//!      2   `.varve` of the directory with that id
//!      3   `snapshots` in there
//!      4   a link in there; they are numbered ([`super::below`])
//!      5   the place for the mount of the snapshot of that epoch
//!      6   the place for the mount of the transaction with that id
//! ```

use varve_schema::FileKind;
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use crate::epoch::Epoch;
use crate::ids::IDS_END;
use crate::views::ViewKind;

/// How many bits the number has.
const NUMBER_BITS: u32 = IDS_END.ilog2();
/// The largest number.
pub(super) const NUMBER_MAX: u64 = IDS_END - 1;

/// Name of the directory in the root.
pub(super) const TOP_NAME: &[u8] = b".varve";

/// What lies in a synthetic directory, by its number there, with its name.
pub(super) type Numbered = (u64, SyntheticId, String);

/// A name of a view.
pub(super) fn text(name: &[u8]) -> FsResult<&str> {
    std::str::from_utf8(name).map_err(|_| FsError::NotFound)
}

/// What a synthetic id stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyntheticId {
    /// `.varve` in the root.
    Top,
    /// `.varve/snapshots`.
    Snapshots,
    /// `.varve/txn`.
    Transactions,
    /// `.varve/control`.
    Controls,
    /// `.varve/snapshots/NAME` or `.varve/txn/ID`, by epoch, so that it stands for the same whoever serves the mount.
    ViewPlace(ViewKind, Epoch),
    /// `.varve/control/ID`.
    Control(u64),
    /// `.varve` of a directory below the root.
    Below(InodeId),
    /// `.varve/snapshots` of a directory below the root.
    SnapshotsOf(InodeId),
    /// A link in there.
    Link(u64),
}

impl SyntheticId {
    /// What `id` stands for, if it is synthetic and stands for anything.
    pub(crate) fn of(id: InodeId) -> Option<SyntheticId> {
        let bits = id.get().checked_sub(InodeId::FIRST_SYNTHETIC.get())?;
        let number = bits & NUMBER_MAX;
        Some(match (bits >> NUMBER_BITS, number) {
            (0, 0) => SyntheticId::Top,
            (0, 1) => SyntheticId::Snapshots,
            (0, 2) => SyntheticId::Transactions,
            (0, 3) => SyntheticId::Controls,
            (1, transaction) => SyntheticId::Control(transaction),
            (2, dir) => SyntheticId::Below(InodeId::new(dir)),
            (3, dir) => SyntheticId::SnapshotsOf(InodeId::new(dir)),
            (4, link) => SyntheticId::Link(link),
            (5, epoch) => SyntheticId::ViewPlace(ViewKind::Snapshot, Epoch::new(epoch)),
            (6, epoch) => SyntheticId::ViewPlace(ViewKind::Transaction, Epoch::new(epoch)),
            _ => return None,
        })
    }

    /// Its id. REQUIRES: the number is an id that was handed out, or at most [`NUMBER_MAX`].
    pub(crate) const fn id(self) -> InodeId {
        let (kind, number) = match self {
            SyntheticId::Top => (0, 0),
            SyntheticId::Snapshots => (0, 1),
            SyntheticId::Transactions => (0, 2),
            SyntheticId::Controls => (0, 3),
            SyntheticId::Control(transaction) => (1, transaction),
            SyntheticId::Below(dir) => (2, dir.get()),
            SyntheticId::SnapshotsOf(dir) => (3, dir.get()),
            SyntheticId::Link(link) => (4, link),
            SyntheticId::ViewPlace(ViewKind::Snapshot, epoch) => (5, epoch.get()),
            SyntheticId::ViewPlace(ViewKind::Transaction, epoch) => (6, epoch.get()),
        };
        InodeId::new(InodeId::FIRST_SYNTHETIC.get() + (kind << NUMBER_BITS) + number)
    }

    /// What kind of inode it is.
    pub(crate) fn kind(self) -> FileKind {
        match self {
            SyntheticId::Control(_) => FileKind::Regular,
            SyntheticId::Link(_) => FileKind::Symlink,
            _ => FileKind::Directory,
        }
    }

    /// Whether what is known of it may end at any moment, without anybody telling the kernel.
    pub(crate) fn is_fleeting(self) -> bool {
        let at_the_top = [
            SyntheticId::Top,
            SyntheticId::Snapshots,
            SyntheticId::Transactions,
            SyntheticId::Controls,
        ];
        !at_the_top.contains(&self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_id_stands_for_one_thing() {
        let number = NUMBER_MAX;
        let all = [
            SyntheticId::Top,
            SyntheticId::Snapshots,
            SyntheticId::Transactions,
            SyntheticId::Controls,
            SyntheticId::ViewPlace(ViewKind::Snapshot, Epoch::new(16)),
            SyntheticId::ViewPlace(ViewKind::Snapshot, Epoch::new(number)),
            SyntheticId::ViewPlace(ViewKind::Transaction, Epoch::new(16)),
            SyntheticId::ViewPlace(ViewKind::Transaction, Epoch::new(number)),
            SyntheticId::Control(16),
            SyntheticId::Control(number),
            SyntheticId::Below(InodeId::new(16)),
            SyntheticId::Below(InodeId::new(number)),
            SyntheticId::SnapshotsOf(InodeId::new(16)),
            SyntheticId::SnapshotsOf(InodeId::new(number)),
            SyntheticId::Link(0),
            SyntheticId::Link(number),
        ];
        let ids: std::collections::BTreeSet<InodeId> = all.iter().map(|what| what.id()).collect();
        assert_eq!(ids.len(), all.len());
        for what in all {
            assert_eq!(SyntheticId::of(what.id()), Some(what));
        }
        for id in [16, (1 << 63) - 1, (1 << 63) + 4, (1 << 63) + 16, u64::MAX] {
            assert_eq!(SyntheticId::of(InodeId::new(id)), None, "{id:#x}");
        }
    }
}
