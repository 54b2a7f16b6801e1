//! Finding an inode by its number alone, for who has kept a handle of it (open_by_handle_at(2), servers of NFS).
//!
//! A directory and a file that has or had several names have rows of their own. A file in the row of its only name does not, and no
//! row says where that is: creating and moving files are to cost nothing for the few that are ever asked for so. What the front end
//! knows is in the [inode table](varve_session::InodeTable). For a file that it has forgotten
//!
//! 1. the hints of an earlier search are tried;
//! 2. else the rows of names are searched as they are at one moment, until there are no more. The search leaves hints
//!    ([`LocationHints`]).
//!
//! A place is believed when the inode is found there under the lock of the row. So a search costs what a listing of all directories
//! does, 0.14 seconds of a CPU for a million files (`examples/by_number.rs`), and one search goes on at a time. Of a file that is not found
//! nothing is kept: it may be one of a clone whose directory is yet to be unfolded, so each try is a search. Whoever calls this must
//! expect that.

use std::collections::HashMap;

use bytes::Bytes;
use varve_engine::{Direction, KeyRange};
use varve_schema::key::MetaRow;
use varve_schema::{EntryRow, FileKind, InodeLocation, Listed, META, RowKey};
use varve_session::{Hint, IdHash, LocationHints};
use varve_types::InodeId;
use varve_vfs::{Entry, FsError, FsResult};

use crate::error;
use crate::fs::VarveFs;
use crate::held::lost;

/// How often a file may have moved between the search and the look at its row.
const RETRIES_MAX: usize = 64;

impl VarveFs {
    /// The inode `ino`, whether the front end knows it or not; counts as a lookup.
    pub(crate) fn do_lookup_inode(&self, ino: InodeId) -> FsResult<Entry> {
        if ino.is_synthetic() {
            return Ok(Entry { attr: self.attr(&self.read_inode(ino)?)? });
        }
        for _ in 0..RETRIES_MAX {
            let place = self.place_of(ino)?;
            let key = match &place {
                InodeLocation::Entry { key, .. } => *key,
                InodeLocation::Own => RowKey::inode(ino),
                // Its last name is gone.
                InodeLocation::Detached(_) => return Err(FsError::Stale),
            };
            let _guards = self.lock_rows(&[key])?;
            let inode = match &place {
                InodeLocation::Entry { key, slot } => self.inode_in(*key, *slot, ino)?,
                InodeLocation::Own | InodeLocation::Detached(_) => self.inode_row(ino)?,
            };
            match inode {
                Some(inode) if inode.nlink > 0 => {
                    let attr = self.attr(&inode)?;
                    self.session.inodes.note_lookup(ino, place)?;
                    return Ok(Entry { attr });
                }
                Some(_) => return Err(FsError::Stale),
                None => {}
            }
        }
        Err(lost(ino))
    }

    /// Where `ino` is, or was a moment ago.
    fn place_of(&self, ino: InodeId) -> FsResult<InodeLocation> {
        if let Some(place) = self.session.inodes.place(ino)? {
            return Ok(place);
        }
        if self.inode_row(ino)?.is_some() {
            return Ok(InodeLocation::Own);
        }
        if !self.ids.may_have_handed_out(ino) {
            return Err(FsError::Stale);
        }
        let mut hints = self.session.hints.hold();
        if let Some((key, slot)) = hints.get(ino)
            && self.inode_in(key, slot, ino)?.is_some()
        {
            return Ok(InodeLocation::Entry { key, slot });
        }
        let run = LocationHints::run_of(ino);
        let places = self.search(run)?;
        let found = places.get(&ino.get()).copied();
        hints.keep(run, places);
        drop(hints);
        match found {
            Some((key, slot)) => Ok(InodeLocation::Entry { key, slot }),
            // It may have got a second name meanwhile, and with it a row of its own.
            None if self.inode_row(ino)?.is_some() => Ok(InodeLocation::Own),
            None => Err(FsError::Stale),
        }
    }

    /// Where the files are whose ids lie in a run, as far as they have no rows of their own.
    fn search(&self, run: u64) -> FsResult<HashMap<u64, Hint, IdHash>> {
        let mut places = HashMap::default();
        let snapshot = self.store.snapshot().map_err(error::store)?;
        let rows = snapshot.scan(self.meta, KeyRange::all(), Direction::Forward);
        for row in rows.map_err(error::store)? {
            let (bytes, value) = row.map_err(error::store)?;
            let Some(key) = RowKey::from_bytes(&bytes) else { continue };
            if !matches!(key.meta_kind(), MetaRow::Entry(..)) {
                continue;
            }
            each_name(key, &value, &mut |listed| {
                let ino = listed.ino.get();
                if LocationHints::run_of(listed.ino) == run && listed.kind != FileKind::Directory {
                    places.insert(ino, (key, listed.slot));
                }
            })?;
        }
        Ok(places)
    }
}

/// Visits the names of a row.
fn each_name(key: RowKey, value: &Bytes, visit: &mut dyn FnMut(Listed<'_>)) -> FsResult<()> {
    if let Some(only) = Listed::only(value) {
        visit(only);
        return Ok(());
    }
    let row = EntryRow::decode(value).map_err(|cause| error::unreadable(META, key, cause))?;
    row.names().iter().for_each(|named| visit(named.into()));
    Ok(())
}
