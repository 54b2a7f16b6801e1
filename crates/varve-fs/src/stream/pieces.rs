//! The pieces of large files that are sent.
//!
//! 1. Of a file that is new: all that is no hole.
//! 2. Of one that the earlier state has too: what differs. Looked at are the places where it may differ
//!    ([`crate::preimages`]), in windows; what was a hole and is one is passed over without being read. Compared are units of
//!    4 KiB, at multiples of that, so that the pieces depend on the two states alone and not on what is kept.
//!
//! Files are opened for each piece or window, as the versions that a state sees may change places. A file ends where its
//! row says, which a power cut may have left shorter than the object.

use std::io;
use std::ops::Range;

use varve_env::{File, FileStat, Seek};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use super::plain::Plain;
use crate::overlay::data_of;

/// Bytes of a piece, at most, and of a window.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes that are compared as one.
const UNIT_BYTES: u64 = 4096;
/// ENXIO: there is nothing more to seek.
const NO_MORE: i32 = 6;

/// A large file in a state.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    pub(super) state: &'a Plain<'a>,
    pub(super) ino: InodeId,
    pub(super) len: u64,
}

/// What of a file is to be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Bytes from an offset on.
    Bytes(u64, Vec<u8>),
    /// Nothing where the earlier state has bytes.
    Hole(Range<u64>),
}

impl Piece {
    /// Where it ends.
    fn end(&self) -> u64 {
        match self {
            Piece::Bytes(offset, bytes) => offset + bytes.len() as u64,
            Piece::Hole(range) => range.end,
        }
    }
}

/// Takes a piece.
pub(super) type EachPiece<'a> = dyn FnMut(Piece) -> FsResult<()> + 'a;

impl Seen<'_> {
    fn read<T>(&self, with: impl FnOnce(&dyn File) -> io::Result<T>) -> FsResult<T> {
        self.state.read_object(self.ino, with)
    }

    /// When it was changed last: seconds since 1970 and nanoseconds. Fails if it does not reach as far as its row says.
    pub(super) fn modified(&self) -> FsResult<(i64, u32)> {
        let FileStat { len, modified, .. } = self.read(|file| file.stat())?;
        if len < self.len {
            return Err(FsError::Storage(format!(
                "the large file {} of the snapshot is damaged: it ends at {len}, its row says {} bytes; run `varve fsck`",
                self.ino, self.len
            )));
        }
        Ok((modified.secs(), modified.nanos()))
    }

    /// Calls `each` with all that is no hole, from `from` on.
    pub(super) fn all(&self, from: u64, each: &mut EachPiece<'_>) -> FsResult<()> {
        let mut at = from;
        while let Some(piece) = self.read(|file| next_piece(file, at, self.len))? {
            at = piece.end();
            each(piece)?;
        }
        Ok(())
    }

    /// Calls `each` with what differs from the file in an earlier state, from `from` on.
    pub(super) fn changes(
        &self,
        base: &Seen<'_>,
        from: u64,
        each: &mut EachPiece<'_>,
    ) -> FsResult<()> {
        let earlier = (base.state, base.len);
        for range in self.state.may_differ(earlier, self.ino, self.len)? {
            let mut at = range.start.max(from);
            loop {
                let data = base.next_data(at)?.min(self.next_data(at)?);
                at = at.max(data / UNIT_BYTES * UNIT_BYTES);
                if at >= range.end {
                    break;
                }
                let window = at..range.end.min(at + PIECE_BYTES);
                let (was, _) = base.window(&window)?;
                let (is, data) = self.window(&window)?;
                compare(&window, &was, &is, &data).into_iter().try_for_each(&mut *each)?;
                at = window.end;
            }
        }
        Ok(())
    }

    /// Whether the file has the same bytes in another state. What is a hole in both is passed over.
    pub(super) fn is_same(&self, other: &Seen<'_>) -> FsResult<bool> {
        if self.len != other.len {
            return Ok(false);
        }
        let mut at = 0;
        loop {
            let data = self.next_data(at)?.min(other.next_data(at)?);
            at = at.max(data / UNIT_BYTES * UNIT_BYTES);
            if at >= self.len {
                return Ok(true);
            }
            let window = at..self.len.min(at + PIECE_BYTES);
            if self.window(&window)?.0 != other.window(&window)?.0 {
                return Ok(false);
            }
            at = window.end;
        }
    }

    /// Where the next bytes are that are no hole.
    fn next_data(&self, at: u64) -> FsResult<u64> {
        if at >= self.len {
            return Ok(u64::MAX);
        }
        self.read(|file| match file.seek(Seek::Data, at) {
            Err(error) if error.raw_os_error() == Some(NO_MORE) => Ok(u64::MAX),
            found => found,
        })
    }

    /// The bytes in a window, zeros where the file does not reach, and where they are no hole.
    fn window(&self, window: &Range<u64>) -> FsResult<(Vec<u8>, Vec<Range<u64>>)> {
        let mut bytes = vec![0; (window.end - window.start) as usize];
        let end = window.end.min(self.len);
        if end <= window.start {
            return Ok((bytes, Vec::new()));
        }
        self.read(|file| {
            file.read_exact_at(&mut bytes[..(end - window.start) as usize], window.start)?;
            let data = data_of(file, window.start..end)?;
            Ok((std::mem::take(&mut bytes), data))
        })
    }
}

/// The next bytes of a file of `len` bytes from `at` on that are no hole.
fn next_piece(file: &dyn File, at: u64, len: u64) -> io::Result<Option<Piece>> {
    if at >= len {
        return Ok(None);
    }
    let from = match file.seek(Seek::Data, at) {
        Err(error) if error.raw_os_error() == Some(NO_MORE) => return Ok(None),
        from => from?,
    };
    if from >= len {
        return Ok(None);
    }
    let end = file.seek(Seek::Hole, from)?.min(len).min(from + PIECE_BYTES);
    let mut bytes = vec![0; end.saturating_sub(from) as usize];
    file.read_exact_at(&mut bytes, from)?;
    Ok(Some(Piece::Bytes(from, bytes)).filter(|piece| piece.end() > from))
}

/// In what pieces the bytes in a window differ; `data` says where there are any now.
fn compare(window: &Range<u64>, was: &[u8], is: &[u8], data: &[Range<u64>]) -> Vec<Piece> {
    let (mut pieces, mut at): (Vec<Piece>, u64) = (Vec::new(), window.start);
    while at < window.end {
        let end = ((at / UNIT_BYTES + 1) * UNIT_BYTES).min(window.end);
        let unit = (at - window.start) as usize..(end - window.start) as usize;
        let has_data = data.iter().any(|data| data.start < end && at < data.end);
        match pieces.last_mut() {
            _ if was[unit.clone()] == is[unit.clone()] => {}
            Some(Piece::Bytes(offset, bytes)) if has_data && *offset + bytes.len() as u64 == at => {
                bytes.extend_from_slice(&is[unit]);
            }
            Some(Piece::Hole(hole)) if !has_data && hole.end == at => hole.end = end,
            _ if has_data => pieces.push(Piece::Bytes(at, is[unit].to_vec())),
            _ => pieces.push(Piece::Hole(at..end)),
        }
        at = end;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each byte stands for a unit: 0 is nothing there.
    fn units(units: &[u8]) -> (Vec<u8>, Vec<Range<u64>>) {
        let bytes = units.iter().flat_map(|unit| vec![*unit; UNIT_BYTES as usize]).collect();
        let range = |(at, _): (usize, &u8)| at as u64 * UNIT_BYTES..(at as u64 + 1) * UNIT_BYTES;
        (bytes, units.iter().enumerate().filter(|(_, unit)| **unit != 0).map(range).collect())
    }

    #[test]
    fn only_units_that_differ_are_pieces_and_what_touches_is_one() {
        let (was, _) = units(&[1, 1, 1, 2, 2, 0, 0]);
        let (is, data) = units(&[1, 3, 4, 0, 0, 5, 0]);
        let whole = 0..7 * UNIT_BYTES;
        let pieces = compare(&whole, &was, &is, &data);
        let changed = [vec![3; UNIT_BYTES as usize], vec![4; UNIT_BYTES as usize]].concat();
        let expected = [
            Piece::Bytes(UNIT_BYTES, changed),
            Piece::Hole(3 * UNIT_BYTES..5 * UNIT_BYTES),
            Piece::Bytes(5 * UNIT_BYTES, vec![5; UNIT_BYTES as usize]),
        ];
        assert_eq!(pieces, expected);
        assert_eq!(compare(&whole, &is, &is, &data), []);
    }

    #[test]
    fn a_window_may_begin_and_end_within_a_unit() {
        let (was, is) = (vec![0; 5000], vec![1; 5000]);
        let window = UNIT_BYTES - 10..UNIT_BYTES + 4990;
        let pieces = compare(&window, &was, &is, std::slice::from_ref(&window));
        assert_eq!(pieces, [Piece::Bytes(UNIT_BYTES - 10, vec![1; 5000])]);
    }
}
