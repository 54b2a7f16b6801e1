//! Finding an inode by its number alone, for who has kept a handle of it (open_by_handle_at(2), servers of NFS, clients of a server).
//!
//! A directory and a file that has or had several names have rows of their own; where the store is served, so does a file that moved
//! while it was open ([`varve_namespace::Locked::must_be_found`]). A file in the row of its only name does not, and no row says where
//! that is: creating and moving files are to cost nothing for the few that are ever asked for so. What the front end
//! knows is in the [inode table](varve_session::InodeTable). For a file that it has forgotten
//!
//! 1. the place that the caller has kept of it is tried, if it has one ([`varve_vfs::Place`]);
//! 2. the hints of an earlier search are tried;
//! 3. else the rows of names are searched as they are at one moment, until there are no more. The search leaves hints
//!    ([`LocationHints`]).
//!
//! A place is believed when the inode is found there under the lock of the row. So a search costs what a listing of all directories
//! does, 0.14 seconds of a CPU for a million files (`examples/by_number.rs`), and one search goes on at a time. Of a file that is not found
//! nothing is kept: it may be one of a clone whose directory is yet to be unfolded, so each try is a search. Whoever calls this must
//! expect that, or say that no search is wanted: a server does for clients that it need not believe.

use std::collections::HashMap;

use bytes::Bytes;
use varve_engine::{Direction, KeyRange};
use varve_schema::key::MetaRow;
use varve_schema::{EntryRow, FileKind, InodeLocation, Listed, META, RowKey};
use varve_session::{Hint, IdHash, LocationHints};
use varve_types::InodeId;
use varve_vfs::{Entry, FsError, FsResult, Place};

use crate::error;
use crate::fs::VarveFs;
use crate::held::lost;

/// How often a file may have moved between the search and the look at its row.
const RETRIES_MAX: usize = 64;
/// The first byte of a place in the inode's own row.
const IN_OWN_ROW: u8 = 1;
/// The first byte of a place in the row of a name.
const IN_ENTRY: u8 = 2;
/// Where the slot is in a place.
const SLOT_AT: usize = Place::BYTES - 1;

impl VarveFs {
    /// Where `ino` is, as those keep it who may outlive this process; `None` if it is not looked up, or in no row any more.
    pub(crate) fn do_place(&self, ino: InodeId) -> FsResult<Option<Place>> {
        Ok(self.session.inodes.place(ino)?.as_ref().and_then(to_place))
    }

    /// The inode `ino`, whether the front end knows it or not; counts as a lookup. It is looked for at `place` first. Without
    /// `walk` no names are searched.
    pub(crate) fn do_lookup_at(
        &self,
        ino: InodeId,
        place: Option<Place>,
        walk: bool,
    ) -> FsResult<Entry> {
        if ino.is_synthetic() {
            return Ok(Entry::of(self.attr(&self.read_inode(ino)?)?));
        }
        if let Some(place) = place.and_then(from_place)
            && let Some(found) = self.look_at(ino, place)?
        {
            return Ok(found);
        }
        for _ in 0..RETRIES_MAX {
            if let Some(found) = self.look_at(ino, self.place_of(ino, walk)?)? {
                return Ok(found);
            }
        }
        Err(lost(ino))
    }

    /// Counts a lookup of `ino` if it is at `place`. `Stale` if it has no name.
    fn look_at(&self, ino: InodeId, place: InodeLocation) -> FsResult<Option<Entry>> {
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
                Ok(Some(Entry::of(attr)))
            }
            Some(_) => Err(FsError::Stale),
            None => Ok(None),
        }
    }

    /// Where `ino` is, or was a moment ago. Without `walk` only what is known or takes one look is believed.
    fn place_of(&self, ino: InodeId, walk: bool) -> FsResult<InodeLocation> {
        if let Some(place) = self.session.inodes.place(ino)? {
            return Ok(place);
        }
        if self.inode_row(ino)?.is_some() {
            return Ok(InodeLocation::Own);
        }
        if !self.ids.may_have_handed_out(ino) {
            return Err(FsError::Stale);
        }
        let hints =
            if walk { Some(self.session.hints.hold()) } else { self.session.hints.try_hold() };
        let Some(mut hints) = hints else { return Err(FsError::Stale) };
        if let Some((key, slot)) = hints.get(ino)
            && self.inode_in(key, slot, ino)?.is_some()
        {
            return Ok(InodeLocation::Entry { key, slot });
        }
        if !walk {
            return Err(FsError::Stale);
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

/// The place as front ends and their clients keep it. What is in no row has none.
///
/// ```text
/// | 1 u8 | 0 [17] |               in its own row
/// | 2 u8 | key [16] | slot u8 |   in the row of its only name
/// ```
fn to_place(location: &InodeLocation) -> Option<Place> {
    let mut bytes = [0; Place::BYTES];
    match location {
        InodeLocation::Own => bytes[0] = IN_OWN_ROW,
        InodeLocation::Entry { key, slot } => {
            (bytes[0], bytes[SLOT_AT]) = (IN_ENTRY, *slot);
            bytes[1..SLOT_AT].copy_from_slice(&key.to_bytes());
        }
        InodeLocation::Detached(_) => return None,
    }
    Some(Place::from_bytes(bytes))
}

/// The location that a place names; `None` if it can be none, whoever made it.
fn from_place(place: Place) -> Option<InodeLocation> {
    let bytes = place.to_bytes();
    match bytes[0] {
        IN_OWN_ROW => Some(InodeLocation::Own),
        IN_ENTRY => {
            let key = RowKey::from_bytes(&bytes[1..SLOT_AT])?;
            let is_entry = matches!(key.meta_kind(), MetaRow::Entry(..));
            is_entry.then_some(InodeLocation::Entry { key, slot: bytes[SLOT_AT] })
        }
        _ => None,
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
