//! Small files that are fetched before they are read.
//!
//! Who goes through a tree reads most files of a directory one after the other, and waits for each that is not in memory. What was
//! written one after the other stands side by side, and the kernel reads on by itself; what a directory has got over time lies
//! apart. So once a second file of a directory is read, others are asked for, in the order in which they are listed:
//!
//! 1. [`Walks::note`] counts the files that are read of a directory, but for those that were made right after the one that was
//!    read before.
//! 2. As many are fetched as were read, and some more, at most [`LEAD`]. Where somebody reads few of many, or in another order, no
//!    more than that are fetched in vain.
//! 3. It ends with the directory, and with a piece of it that was in memory already. Who comes back later begins anew.

use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use varve_engine::KeyRange;
use varve_schema::{Body, CHUNK_BYTES, Content, EntryRow, Inode, META, RowKey};
use varve_types::InodeId;
use varve_vfs::FsResult;

use crate::error;
use crate::fs::VarveFs;

/// Directories known at a time; one that falls on the place of another takes it.
const DIRS: usize = 256;

/// After so long without a read a directory is begun anew.
const PAUSE: Duration = Duration::from_secs(5);

/// Files that are fetched before anybody has read them, at most; and how many for each that was read.
const LEAD: usize = 32;
const LEAD_FOR_EACH: usize = 8;

/// The fewest files for which a directory is looked at.
const PIECE: usize = 16;

/// Whoever goes from one file to another whose id is higher by so many reads what the kernel has read ahead.
const STEP_MAX: u64 = 4;

/// Rows of the directory that are looked at for a piece, at most: there may be others than small files in it.
const ROWS_MAX: usize = 4 * (LEAD + PIECE);

/// Chunks that are fetched at a time, at most, of however few files.
const CHUNKS_MAX: usize = 256;

/// Directories in which small files were read.
#[derive(Debug)]
pub(crate) struct Walks(Box<[Mutex<Option<Walk>>]>);

#[derive(Clone, Copy, Debug)]
struct Walk {
    dir: InodeId,
    /// The file that was read last, and when.
    file: InodeId,
    at: Duration,
    /// So many files were read, but for those that followed the one before.
    read: usize,
    /// So many were fetched, or are being fetched.
    fetched: usize,
    /// The row from which on files are to be fetched; `None` while some are, and when there are no more.
    next: Option<u64>,
}

/// Files of a directory that are to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    dir: InodeId,
    /// The first row.
    from: u64,
    files: usize,
}

impl Walks {
    pub(crate) fn new() -> Walks {
        Walks((0..DIRS).map(|_| Mutex::new(None)).collect())
    }

    fn place(&self, dir: InodeId) -> &Mutex<Option<Walk>> {
        &self.0[(dir.get() % DIRS as u64) as usize]
    }

    /// Notes that `file` of `dir` is read. Gives what the caller is to fetch, who then calls [`Walks::go_on`].
    fn note(&self, dir: InodeId, file: InodeId, at: Duration) -> Option<Piece> {
        let mut place = self.place(dir).lock();
        let is_known = |walk: &&mut Walk| walk.dir == dir && at.saturating_sub(walk.at) < PAUSE;
        let Some(walk) = place.as_mut().filter(is_known) else {
            *place = Some(Walk { dir, file, at, read: 1, fetched: 0, next: Some(1) });
            return None;
        };
        let step = file.get().wrapping_sub(walk.file.get());
        (walk.file, walk.at) = (file, at);
        if step <= STEP_MAX {
            return None;
        }
        walk.read += 1;
        let due = walk.read + LEAD.min(LEAD_FOR_EACH * walk.read);
        let files = due.saturating_sub(walk.fetched);
        let from = walk.next.filter(|_| files >= PIECE)?;
        (walk.fetched, walk.next) = (due, None);
        Some(Piece { dir, from, files })
    }

    /// What was to be fetched of `dir` is: the next files begin at `next`, if there are more.
    fn go_on(&self, dir: InodeId, next: Option<u64>) {
        if let Some(walk) = self.place(dir).lock().as_mut().filter(|walk| walk.dir == dir) {
            walk.next = next;
        }
    }
}

impl VarveFs {
    /// Has others of `dir` fetched, where the small file `file` was read from its beginning. Not in a view, which may lock whatever
    /// it looks at.
    pub(super) fn fetch_ahead(&self, dir: InodeId, file: InodeId) {
        if self.views.is_none() {
            return;
        }
        let Some(piece) = self.walks.note(dir, file, self.env.monotonic()) else { return };
        match self.fetch(piece) {
            Ok(next) => self.walks.go_on(dir, next),
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

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: InodeId = InodeId::new(7);

    fn file(number: usize) -> InodeId {
        InodeId::new(1000 + (STEP_MAX + 1) * number as u64)
    }

    #[test]
    fn what_follows_each_other_is_left_to_the_kernel() {
        let now = Duration::from_secs(1);
        for step in 0..=STEP_MAX {
            let walks = Walks::new();
            let mut ids = (0..100).map(|number| InodeId::new(2000 + step * number));
            assert!(ids.all(|id| walks.note(DIR, id, now).is_none()), "{step}");
            assert!(walks.note(DIR, InodeId::new(1000), now).is_some());
        }
    }

    #[test]
    fn the_lead_grows_with_what_is_read_and_never_beyond() {
        let (walks, now) = (Walks::new(), Duration::from_secs(1));
        assert_eq!(walks.note(DIR, file(0), now), None);
        let mut fetched = 0;
        for read in 2..500 {
            if let Some(piece) = walks.note(DIR, file(read), now) {
                assert_eq!((piece.dir, piece.from), (DIR, 1 + fetched as u64));
                assert!(piece.files >= PIECE);
                assert_eq!(walks.note(DIR, file(read), now), None, "they are being fetched");
                fetched += piece.files;
                walks.go_on(DIR, Some(1 + fetched as u64));
            }
            assert!(fetched > read && fetched <= read + LEAD.min(LEAD_FOR_EACH * read));
        }
        walks.go_on(DIR, None);
        assert!((500..600).all(|read| walks.note(DIR, file(read), now).is_none()));
        let later = now + PAUSE;
        assert_eq!(walks.note(DIR, file(0), later), None);
        assert_eq!(walks.note(DIR, file(1), later).map(|piece| piece.from), Some(1), "anew");
    }

    #[test]
    fn one_directory_takes_the_place_of_another() {
        let (walks, now) = (Walks::new(), Duration::from_secs(1));
        let other = InodeId::new(DIR.get() + DIRS as u64);
        let third = InodeId::new(DIR.get() + 1);
        for dir in [DIR, third, other, third] {
            assert_eq!(walks.note(dir, file(0), now), None);
        }
        assert!(
            walks.note(third, file(1), now).is_some() && walks.note(DIR, file(1), now).is_none()
        );
        walks.go_on(other, None);
        assert!(walks.note(DIR, file(2), now).is_some());
    }
}
