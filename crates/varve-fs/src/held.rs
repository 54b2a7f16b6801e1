//! Finding an inode by its id, and holding it for a read-modify-write.
//!
//! [`VarveFs::read_inode`] takes no lock: it goes to the place the locator names. If an operation is
//! moving the inode at that moment, it holds the inode as writers do. [`VarveFs::hold`] locks the row
//! the inode is in, checks that it is still there, and gives it to the caller, who writes it back with
//! [`VarveFs::stage`] and a commit.

use varve_schema::{Body, EntryRow, Inode, Pending, RowKey};
use varve_types::{InodeId, Timestamp};
use varve_vfs::{FsError, FsResult};

use crate::fs::VarveFs;
use crate::locator::Place;
use crate::locks::RowGuards;
use crate::rows::Changes;

/// How often a place may turn out to be old before the store is taken to be broken. Each time another
/// operation must have moved the inode while we waited for a lock.
const RETRIES_MAX: u32 = 10_000;

/// An inode whose row is locked.
pub(crate) struct Held<'a> {
    pub(crate) inode: Inode,
    home: Home,
    _guards: RowGuards<'a>,
}

enum Home {
    Own,
    Entry { key: RowKey, slot: u8, row: EntryRow },
    Detached,
}

impl Held<'_> {
    /// Where the inode is.
    pub(crate) fn place(&self) -> Place {
        match &self.home {
            Home::Own => Place::Own,
            Home::Entry { key, slot, .. } => Place::Entry { key: *key, slot: *slot },
            Home::Detached => Place::Detached(Box::new(self.inode.clone())),
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
        let found = match self.locator.place(ino)? {
            Some(Place::Detached(inode)) => return Ok(*inode),
            Some(Place::Entry { key, slot }) => {
                inline_at(&self.entry_row(key)?, slot, ino).cloned()
            }
            Some(Place::Own) => self.inode_row(ino)?,
            None => return self.inode_row(ino)?.ok_or(FsError::Stale),
        };
        match found {
            Some(inode) => Ok(inode),
            // Another operation has moved it and is about to say so: wait for its locks.
            None => Ok(self.hold(ino)?.inode),
        }
    }

    /// The inode, with its row locked.
    pub(crate) fn hold(&self, ino: InodeId) -> FsResult<Held<'_>> {
        for _ in 0..RETRIES_MAX {
            let place = self.locator.place(ino)?;
            let key = match &place {
                Some(Place::Entry { key, .. }) => *key,
                _ => RowKey::inode(ino),
            };
            let guards = self.locks.lock(&[key]);
            if self.locator.place(ino)? != place {
                continue;
            }
            let (inode, home) = match place {
                Some(Place::Detached(inode)) => (*inode, Home::Detached),
                Some(Place::Entry { key, slot }) => {
                    let row = self.entry_row(key)?;
                    let inode = inline_at(&row, slot, ino).cloned().ok_or_else(|| lost(ino))?;
                    (inode, Home::Entry { key, slot, row })
                }
                Some(Place::Own) | None => match self.inode_row(ino)? {
                    Some(inode) => (inode, Home::Own),
                    None => return Err(FsError::Stale),
                },
            };
            return Ok(Held { inode, home, _guards: guards });
        }
        Err(lost(ino))
    }

    /// Gives a detached inode its row back, as an orphan, so that it can be opened and changed like one that
    /// was open when its last name went.
    pub(crate) fn revive(&self, held: &mut Held<'_>) -> FsResult<()> {
        if !held.is_detached() {
            return Ok(());
        }
        let ino = held.inode.ino;
        self.locator.mark_orphan(ino, true)?;
        let mut changes = self.changes();
        changes.put_inode(&held.inode);
        changes.put_pending(ino, Pending::Orphan);
        self.commit(changes)?;
        held.home = Home::Own;
        self.locator.moved(ino, Place::Own)
    }

    /// Adds the held inode, as it is now, to `changes`.
    pub(crate) fn stage(&self, changes: &mut Changes, held: &mut Held<'_>) -> FsResult<()> {
        match &mut held.home {
            Home::Own => changes.put_inode(&held.inode),
            Home::Entry { key, slot, row } => {
                row.set_body(*slot, Body::Inline(held.inode.clone()));
                changes.put_entry_row(*key, row);
            }
            Home::Detached => self.locator.detach(held.inode.clone())?,
        }
        Ok(())
    }

    /// Writes the held inode back.
    pub(crate) fn write_back(&self, held: &mut Held<'_>) -> FsResult<()> {
        let mut changes = self.changes();
        self.stage(&mut changes, held)?;
        self.commit(changes)
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

/// The inode `ino` in the slot of an entry row, if it is there.
fn inline_at(row: &EntryRow, slot: u8, ino: InodeId) -> Option<&Inode> {
    match &row.at(slot)?.body {
        Body::Inline(inode) if inode.ino == ino => Some(inode),
        _ => None,
    }
}

fn lost(ino: InodeId) -> FsError {
    FsError::Storage(format!("inode {ino} is not where it was last seen; run `varve fsck`"))
}
