//! What repairs of the engine's files could not save ([`crate::lost`]), by the paths of those that it belonged to.
//!
//! What may be lost though something is there, as an older version of a row shows through, is only named.

use bytes::Bytes;
use serde::Serialize;
use varve_schema::{
    CHUNK_BYTES, Content, EntryRow, RowKey, STORED_FILE_BYTES_MAX, decode_inode_row,
};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::fact::{ContentKind, Spot};
use super::inodes::CountedInode;
use super::names::printable;
use super::{At, Check, FINDINGS_MAX, Finding};
use crate::error;

/// No path that is looked for is longer; damaged directories may be above themselves.
const DEPTH_MAX: usize = 4096;
/// The first suffix of extended attributes.
const XATTRS: u64 = 1 << 63;

/// Something of which an older version may show, or a part be lost, since a repair could not save all rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Doubt {
    /// Its path, as far as it has one.
    pub path: String,
    /// Its inode.
    pub ino: u64,
    /// What may be lost or older.
    pub what: &'static str,
}

impl Check<'_> {
    /// Names the chunks from `from` to before `to` that are absent and may be lost.
    pub(super) fn absent_chunks(
        &mut self,
        known: &CountedInode,
        from: u64,
        to: u64,
    ) -> FsResult<()> {
        if self.lost.is_empty() {
            return Ok(());
        }
        let Some(seen) = known.seen().filter(|seen| seen.place == ContentKind::Chunks) else {
            return Ok(());
        };
        let chunk = CHUNK_BYTES as u64;
        let size = seen.size.min(STORED_FILE_BYTES_MAX);
        let end = size.div_ceil(chunk).min(to);
        if !self.may_miss(known.ino, from, end) {
            return Ok(());
        }
        for index in from..end {
            if self.lost.hides(&RowKey::chunk(known.ino, index).to_bytes()) {
                let (path, ino, offset) = (self.path_of(known)?, known.ino.get(), index * chunk);
                let bytes = chunk.min(size - offset);
                self.found(Finding::LostChunk { path, ino, offset, bytes }, At::Own)?;
            }
        }
        Ok(())
    }

    fn may_miss(&self, ino: InodeId, from: u64, end: u64) -> bool {
        let key = |index| RowKey::chunk(ino, index).to_bytes();
        from < end && self.lost.meets_data(&key(from), &key(end - 1))
    }

    /// Names a chunk that is lost, in whose place a row stands.
    pub(super) fn lost_chunk(
        &mut self,
        known: &CountedInode,
        index: u64,
        size: u64,
    ) -> FsResult<()> {
        let (path, ino) = (self.path_of(known)?, known.ino.get());
        let offset = index.saturating_mul(CHUNK_BYTES as u64);
        let bytes = size.saturating_sub(offset).min(CHUNK_BYTES as u64);
        self.found(Finding::LostBytes { path, ino, offset, bytes }, At::Own)
    }

    /// Names a file if what is there of its bytes or attributes may be older than what was lost.
    pub(super) fn doubt_data(&mut self, known: &CountedInode, chunks: u64) -> FsResult<()> {
        let Some(seen) = known.seen().filter(|_| !self.lost.is_empty()) else { return Ok(()) };
        let key = |suffix| RowKey::chunk(known.ino, suffix).to_bytes();
        if chunks > 0 && self.lost.doubts_data(&key(0), &key(chunks - 1)) {
            self.doubt(known, "bytes may be older, or lost")?;
        }
        if seen.has_xattrs && self.lost.doubts_data(&key(XATTRS), &key(u64::MAX)) {
            self.doubt(known, "extended attributes may be older, or lost")?;
        }
        Ok(())
    }

    /// Names a file with a row of its own, or a directory, if what is there of its rows may be older than what was lost.
    pub(super) fn doubt_names(&mut self, ino: InodeId, is_directory: bool) -> FsResult<()> {
        let key = |suffix| RowKey::chunk(ino, suffix).to_bytes();
        if self.lost.is_empty() || !self.lost.meets_meta(&key(0), &key(u64::MAX)) {
            return Ok(());
        }
        let (path, what) = match is_directory {
            true => {
                (self.path_of_dir(ino)?, "names, and what they stand for, may be older, or lost")
            }
            false => (String::new(), "attributes and names may be older, or lost"),
        };
        self.note_doubt(Doubt { path, ino: ino.get(), what });
        Ok(())
    }

    fn doubt(&mut self, known: &CountedInode, what: &'static str) -> FsResult<()> {
        let (path, ino) = (self.path_of(known)?, known.ino.get());
        self.note_doubt(Doubt { path, ino, what });
        Ok(())
    }

    fn note_doubt(&mut self, doubt: Doubt) {
        if self.report.doubts.len() < FINDINGS_MAX {
            self.report.doubts.push(doubt);
        } else {
            self.report.doubts_omitted += 1;
        }
    }

    /// A path of an inode; of one without a name its id.
    pub(super) fn path_of(&self, known: &CountedInode) -> FsResult<String> {
        match known.any_name() {
            Some(spot) => self.path_at(spot),
            None if known.is_directory() => self.path_of_dir(known.ino),
            None => Ok(format!("#{}", known.ino)),
        }
    }

    fn path_at(&self, spot: Spot) -> FsResult<String> {
        let dir = self.path_of_dir(InodeId::new(spot.dir))?;
        let name = self.name_at(spot)?;
        Ok(if dir == "/" { format!("/{name}") } else { format!("{dir}/{name}") })
    }

    fn path_of_dir(&self, dir: InodeId) -> FsResult<String> {
        let get = |key: RowKey| {
            self.snapshot.get(self.volume.meta, &key.to_bytes()).map_err(error::store)
        };
        path_of_dir_in(&get, dir)
    }
}

/// Gives a row of names and inodes.
type Get<'a> = &'a dyn Fn(RowKey) -> FsResult<Option<Bytes>>;

/// The path of a directory in the tree whose rows `get` gives.
pub(super) fn path_of_dir_in(get: Get<'_>, dir: InodeId) -> FsResult<String> {
    let (mut names, mut at) = (Vec::new(), dir);
    while at != InodeId::ROOT {
        match name_of_dir(get, at)?.filter(|_| names.len() < DEPTH_MAX) {
            Some((name, parent)) => {
                names.push(name);
                at = parent;
            }
            None => {
                names.push(format!("#{at}"));
                break;
            }
        }
    }
    let is_rooted = at == InodeId::ROOT;
    names.reverse();
    Ok(if is_rooted { format!("/{}", names.join("/")) } else { names.join("/") })
}

/// The name of a directory and the one that holds it.
fn name_of_dir(get: Get<'_>, dir: InodeId) -> FsResult<Option<(String, InodeId)>> {
    let row = get(RowKey::inode(dir))?.and_then(|row| decode_inode_row(&row).ok());
    let Some(Content::Directory(info)) = row.map(|inode| inode.content) else {
        return Ok(None);
    };
    let Some(suffix) = info.suffix else { return Ok(None) };
    let row = get(RowKey::entry(info.parent, suffix))?;
    let row = row.and_then(|row| EntryRow::decode(&row).ok()).unwrap_or_default();
    let named = row.names().iter().find(|named| named.body.ino() == dir);
    Ok(named.map(|named| (printable(&named.name), info.parent)))
}
