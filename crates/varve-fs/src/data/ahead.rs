//! Fetching small files before they are read, as [`varve_session::ReadAhead`] plans it.

use std::ops::Bound;

use bytes::Bytes;
use varve_engine::KeyRange;
use varve_schema::{Body, CHUNK_BYTES, Content, EntryRow, Inode, META, RowKey};
use varve_session::{LEAD, PIECE, Piece};
use varve_types::InodeId;
use varve_vfs::FsResult;

use crate::error;
use crate::fs::VarveFs;

/// Rows of the directory that are looked at for a piece, at most: there may be others than small files in it.
const ROWS_MAX: usize = 4 * (LEAD + PIECE);

/// Chunks that are fetched at a time, at most, of however few files.
const CHUNKS_MAX: usize = 256;

impl VarveFs {
    /// Has others of `dir` fetched, where the small file `file` was read from its beginning. Not in a view, which may lock whatever
    /// it looks at.
    pub(super) fn fetch_ahead(&self, dir: InodeId, file: InodeId) {
        if self.views.is_none() {
            return;
        }
        let Some(piece) = self.session.read_ahead.note(dir, file, self.env.monotonic()) else {
            return;
        };
        match self.fetch(piece) {
            Ok(next) => self.session.read_ahead.go_on(dir, next),
            // Whoever reads it will hear of it.
            Err(error) => log::debug!("files of inode {dir} are not fetched: {error}"),
        }
    }

    /// Gives the row at which the next piece begins; `None` at the end, and if all of this one was in memory.
    fn fetch(&self, piece: Piece) -> FsResult<Option<u64>> {
        let Piece { dir, from, files } = piece;
        let mut range = KeyRange::prefix(&RowKey::prefix_bytes(dir));
        range.start = Bound::Included([RowKey::prefix_bytes(dir), from.to_be_bytes()].concat());
        let (mut keys, mut small, mut rows, mut next) = (Vec::with_capacity(files), 0, 0, None);
        let mut visited = Ok(());
        let mut visit = |key: &[u8], value: Bytes| {
            let Some(key) = RowKey::from_bytes(key) else { return true };
            if small >= files || keys.len() >= CHUNKS_MAX || rows == ROWS_MAX {
                next = Some(key.suffix());
                return false;
            }
            rows += 1;
            visited = each_inode(&value, |inode| {
                if inode.content == Content::Chunks {
                    let chunks = 0..inode.size.div_ceil(CHUNK_BYTES as u64);
                    let chunk = |chunk| RowKey::chunk(inode.ino, chunk).to_bytes();
                    keys.extend(chunks.map(chunk).take(CHUNKS_MAX));
                    small += 1;
                }
            })
            .map_err(|error| error::unreadable(META, key, error));
            visited.is_ok()
        };
        self.store.each_row(self.meta, range, &mut visit).map_err(error::store)?;
        visited?;
        // Those that were written together stand together.
        keys.sort_unstable();
        let keys: Vec<&[u8]> = keys.iter().map(<[u8; 16]>::as_slice).collect();
        let fetched = self.store.prefetch(self.data, &keys).map_err(error::store)?;
        Ok(next.filter(|_| fetched > 0 || keys.is_empty()))
    }
}

/// Calls `visit` with the inodes that stand in a row of names.
fn each_inode(row: &Bytes, mut visit: impl FnMut(&Inode)) -> Result<(), varve_schema::DecodeError> {
    let mut inline = |body: &Body| {
        if let Body::Inline(inode) = body {
            visit(inode);
        }
    };
    match EntryRow::only(row).transpose()? {
        Some(only) => inline(&only.body),
        None => EntryRow::decode(row)?.names().iter().for_each(|named| inline(&named.body)),
    }
    Ok(())
}
