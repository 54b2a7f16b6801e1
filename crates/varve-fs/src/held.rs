//! Finding an inode by its id, and holding it for a read-modify-write.
//!
//! [`VarveFs::read_inode`] takes no lock: it goes to the place the locator names. If an operation is
//! moving the inode at that moment, it holds the inode as writers do. [`VarveFs::hold`] locks the row
//! the inode is in, checks that it is still there, and gives it to the caller, who writes it back with
//! [`VarveFs::stage`] and a commit.

use varve_env::Space;
use varve_namespace::Changes;
use varve_schema::{Inlined, Inode, InodeLocation, Pending, RowKey, UsageChange};
use varve_types::{InodeId, Timestamp};
use varve_vfs::{FsError, FsResult};

use crate::fs::VarveFs;
use crate::locks::RowGuards;

/// How often a place may turn out to be old before the store is taken to be broken. Each time another
/// operation must have moved the inode while we waited for a lock.
pub(crate) const RETRIES_MAX: u32 = 10_000;

/// An inode whose row is locked.
pub(crate) struct Held<'a> {
    pub(crate) inode: Inode,
    home: Home,
    /// Size and state as the row has them.
    stored: Stored,
    guards: RowGuards<'a>,
}

/// What of a row decides where and how it counts.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stored {
    size: u64,
    dirty: bool,
}

impl Stored {
    fn of(inode: &Inode) -> Stored {
        let dirty = inode.content.is_dirty();
        Stored { size: inode.size, dirty }
    }
}

enum Home {
    Own,
    Entry { key: RowKey, slot: u8, row: Inlined },
    Detached,
}

impl Held<'_> {
    /// Where the inode is.
    pub(crate) fn place(&self) -> InodeLocation {
        match &self.home {
            Home::Own => InodeLocation::Own,
            Home::Entry { key, slot, .. } => InodeLocation::Entry { key: *key, slot: *slot },
            Home::Detached => InodeLocation::Detached(Box::new(self.inode.clone())),
        }
    }

    /// The directory in which the inode counts, if it does.
    pub(crate) fn counted_in(&self) -> Option<InodeId> {
        match &self.home {
            Home::Own => self.inode.home.map(|home| home.dir),
            Home::Entry { key, .. } => Some(InodeId::new(key.prefix())),
            Home::Detached => None,
        }
    }

    /// The row that the inode is in.
    pub(crate) fn row_key(&self) -> RowKey {
        self.entry_key().unwrap_or(RowKey::inode(self.inode.ino))
    }

    /// The entry row that the inode is in, if it is in one.
    fn entry_key(&self) -> Option<RowKey> {
        match &self.home {
            Home::Entry { key, .. } => Some(*key),
            Home::Own | Home::Detached => None,
        }
    }

    /// True if no row holds the inode any more.
    pub(crate) fn is_detached(&self) -> bool {
        matches!(self.home, Home::Detached)
    }
}

impl VarveFs {
    /// The inode, as of some moment during the call.
    pub(crate) fn read_inode(&self, ino: InodeId) -> FsResult<Inode> {
        match self.peek_inode(ino)? {
            Some(inode) => Ok(inode),
            // Wait for the locks of who moves it.
            None => Ok(self.hold(ino)?.inode),
        }
    }

    /// The same without waiting for anybody: `None` while another operation has moved it and is about to say so.
    pub(crate) fn peek_inode(&self, ino: InodeId) -> FsResult<Option<Inode>> {
        if ino.is_synthetic() {
            return self.synthetic(ino).ok_or(FsError::Stale).map(Some);
        }
        match self.session.inodes.place(ino)? {
            Some(InodeLocation::Detached(inode)) => Ok(Some(*inode)),
            Some(InodeLocation::Entry { key, slot }) => self.inode_in(key, slot, ino),
            Some(InodeLocation::Own) => self.inode_row(ino),
            None => self.inode_row(ino)?.ok_or(FsError::Stale).map(Some),
        }
    }

    /// The inode, with its row locked.
    pub(crate) fn hold(&self, ino: InodeId) -> FsResult<Held<'_>> {
        self.hold_and(ino, None)
    }

    /// The inode, with its row locked and that of the directory in which it counts: for who changes its size.
    pub(crate) fn hold_counted(&self, ino: InodeId) -> FsResult<Held<'_>> {
        let held = self.hold(ino)?;
        self.and_directory(held)
    }

    /// Locks the row of the directory too in which the held inode counts. If that means waiting, all locks
    /// are given up first, and the inode may have changed.
    pub(crate) fn and_directory<'a>(&'a self, mut held: Held<'a>) -> FsResult<Held<'a>> {
        let ino = held.inode.ino;
        for _ in 0..RETRIES_MAX {
            let Some(dir) = held.counted_in() else { return Ok(held) };
            if self.locks.try_extend(&mut held.guards, RowKey::inode(dir)) {
                self.prepare_rows(&[RowKey::inode(dir)])?;
                return Ok(held);
            }
            drop(held);
            held = self.hold_and(ino, Some(RowKey::inode(dir)))?;
        }
        Err(lost(ino))
    }

    fn hold_and(&self, ino: InodeId, also: Option<RowKey>) -> FsResult<Held<'_>> {
        if ino.is_synthetic() {
            return Err(FsError::NotPermitted);
        }
        for _ in 0..RETRIES_MAX {
            let place = self.session.inodes.place(ino)?;
            let key = match &place {
                Some(InodeLocation::Entry { key, .. }) => *key,
                _ => RowKey::inode(ino),
            };
            let guards = match also {
                Some(also) => self.lock_rows(&[key, also])?,
                None => self.lock_rows(&[key])?,
            };
            if let Some(InodeLocation::Entry { key, slot }) = place
                && let Some((inode, row)) = self.inlined(key, slot, ino)?
            {
                let (stored, home) = (Stored::of(&inode), Home::Entry { key, slot, row });
                return Ok(Held { stored, inode, home, guards });
            }
            if self.session.inodes.place(ino)? != place {
                continue;
            }
            let (inode, home) = match place {
                Some(InodeLocation::Detached(inode)) => (*inode, Home::Detached),
                Some(InodeLocation::Entry { .. }) => return Err(lost(ino)),
                Some(InodeLocation::Own) | None => match self.inode_row(ino)? {
                    Some(inode) => (inode, Home::Own),
                    None => return Err(FsError::Stale),
                },
            };
            return Ok(Held { stored: Stored::of(&inode), inode, home, guards });
        }
        Err(lost(ino))
    }

    /// The inode `ino`, whose row is locked too as long as `held` is; `None` if that would mean waiting.
    pub(crate) fn try_hold_also<'a>(
        &'a self,
        held: &mut Held<'a>,
        ino: InodeId,
    ) -> FsResult<Option<Inode>> {
        let place = self.session.inodes.place(ino)?;
        let key = match &place {
            Some(InodeLocation::Entry { key, .. }) => *key,
            _ => RowKey::inode(ino),
        };
        if !self.locks.try_extend(&mut held.guards, key) {
            return Ok(None);
        }
        self.prepare_rows(&[key])?;
        match place {
            Some(InodeLocation::Detached(_)) => Ok(None),
            // If it has moved meanwhile, it is not found there.
            Some(InodeLocation::Entry { key, slot }) => self.inode_in(key, slot, ino),
            Some(InodeLocation::Own) | None => self.inode_row(ino),
        }
    }

    /// Gives a detached inode its row back, as an orphan, so that it can be opened and changed like one that
    /// was open when its last name went.
    pub(crate) fn revive(&self, held: &mut Held<'_>) -> FsResult<()> {
        if !held.is_detached() {
            return Ok(());
        }
        let ino = held.inode.ino;
        self.session.inodes.mark_orphan(ino, true)?;
        let mut changes = Changes::new();
        changes.put_inode(&held.inode);
        changes.put_pending(ino, Pending::Orphan);
        self.commit(&mut changes)?;
        held.home = Home::Own;
        self.session.inodes.moved(ino, InodeLocation::Own)
    }

    /// Adds the held inode, as it is now, to `changes`, and charges its directory if its size changed.
    /// REQUIRES: in that case the lock of the directory's row ([`VarveFs::hold_counted`]).
    pub(crate) fn stage(&self, changes: &mut Changes, held: &mut Held<'_>) -> FsResult<()> {
        match &held.home {
            Home::Entry { key, row, .. } => self.check_none_beside_written_elsewhere(*key, row)?,
            Home::Own if held.stored.dirty => self.check_written_elsewhere(&held.inode)?,
            Home::Own | Home::Detached => {}
        }
        let (before, now) = (held.stored, Stored::of(&held.inode));
        if let Some(dir) = held.counted_in() {
            if before.size != now.size {
                debug_assert!(
                    held.guards.holds(RowKey::inode(dir)),
                    "a size without its directory"
                );
                changes.charge(dir, UsageChange::size(before.size, now.size));
            }
            if before.dirty != now.dirty {
                changes.put_dirty(&held.inode, held.entry_key());
            }
        }
        held.stored = now;
        match &held.home {
            Home::Own => changes.put_inode(&held.inode),
            Home::Entry { key, row, .. } => {
                changes.put_row(*key, row.replaced(&held.inode).into());
            }
            Home::Detached => self.session.inodes.detach(Box::new(held.inode.clone()))?,
        }
        Ok(())
    }

    /// Writes the held inode back.
    pub(crate) fn write_back(&self, held: &mut Held<'_>) -> FsResult<()> {
        let mut changes = Changes::new();
        self.stage(&mut changes, held)?;
        self.commit(&mut changes)
    }

    /// The room of the storage below.
    pub(crate) fn room_below(&self) -> FsResult<Space> {
        self.env.space(&self.dir).map_err(|error| {
            FsError::Storage(format!("cannot ask for the room of {}: {error}", self.dir.display()))
        })
    }

    /// The time of day.
    pub(crate) fn now(&self) -> Timestamp {
        self.env.now()
    }

    /// `ReadOnly` if nothing may change.
    pub(crate) fn writable(&self) -> FsResult<()> {
        if self.options.read_only { Err(FsError::ReadOnly) } else { Ok(()) }
    }
}

/// An inode that is at none of the places where it is looked for.
pub(crate) fn lost(ino: InodeId) -> FsError {
    FsError::Storage(format!("inode {ino} is not where it was last seen; run `varve fsck`"))
}
