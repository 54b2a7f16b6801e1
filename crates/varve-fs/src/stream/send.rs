//! Sends a snapshot as a stream, or what has changed since an earlier one.
//!
//! 1. The header says what is sent, what the receiver must have, and how names are hashed ([`super::frame`]).
//! 2. The rows come, one key space after the other, in their plain form ([`super::plain`]): all of the snapshot, or those that
//!    differ from the earlier one ([`super::differences`]). Behind a row come its large files: whole where they are new,
//!    as pieces that differ where they may have other bytes than in the earlier snapshot ([`super::pieces`]).
//! 3. The end says how much there was.
//!
//! What is sent depends on the two snapshots alone, and so does its order: an interrupted stream goes on at any
//! [`Position`]. Costs what is sent, and reading what may differ of large files, twice; memory for a few frames, and the
//! large files that moved or went since the earlier snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::Bound;

use bytes::Bytes;
use varve_engine::Store;
use varve_schema::DictionaryRow;
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use super::differences::Differences;
use super::frame::{
    FilePosition, Frame, FrameWriter, Header, Position, STREAM_VERSION, SentRow, SnapshotId,
    WHOLE_FILES_VERSION,
};
use super::outcome::{Progress, Totals};
use super::pieces::{EachPiece, Piece, Seen};
use super::plain::{Plain, objects_in};
use super::receipt::Receipt;
use super::{META_SPACE, Space, unhex};
use crate::dictionaries::unreadable;
use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::snapshots::stored_name::{parse_name, stored_id};

/// Bytes of rows in one frame, about.
const ROWS_BYTES: usize = 256 << 10;

/// The error of a stream that cannot be written.
fn broken(error: std::io::Error) -> FsError {
    FsError::Storage(format!(
        "the stream cannot be written: {error}; is there room where it goes, and is its reader still there?"
    ))
}

/// A large file that is to be sent.
struct SentFile {
    ino: InodeId,
    len: u64,
    /// How long it is in the earlier snapshot, if it is in that.
    base_len: Option<u64>,
}

/// One snapshot on its way.
struct Sending<'a> {
    out: FrameWriter<'a>,
    progress: Progress<'a>,
    totals: Totals,
    /// Large files that may have changed since the earlier snapshot.
    written: BTreeSet<InodeId>,
    /// Large files of the earlier snapshot that are not where they were, with their lengths then.
    moved: BTreeMap<InodeId, u64>,
    space: u32,
    rows: Vec<SentRow>,
    rows_bytes: usize,
    /// Large files of the first row up to here have come.
    begun: Option<FilePosition>,
}

impl VarveFs {
    /// Writes the snapshot `name` to `out`, or what has changed since the snapshot `since`; with `resumed`, what comes after
    /// what was received of that stream. `NotFound` if there is no such snapshot, `Invalid` if `since` is the later one.
    pub fn send_snapshot(
        &self,
        name: &str,
        since: Option<&str>,
        resumed: Option<&Receipt>,
        out: &mut dyn Write,
        progress: Progress<'_>,
    ) -> FsResult<Totals> {
        let held = self.hold_snapshots(&[Some(name), since])?;
        let [(epoch, stored), earlier @ ..] = &held.snapshots[..] else {
            return Err(FsError::NotFound);
        };
        self.require_whole(*epoch)?;
        let earlier = earlier.first();
        if earlier.is_some_and(|(since, _)| since >= epoch) {
            return Err(FsError::Invalid("the snapshot to begin with is not the older one"));
        }
        let uuid = &self.superblock.uuid;
        let snapshot = snapshot_id(stored, uuid);
        let base = earlier.map(|(_, stored)| snapshot_id(stored, uuid));
        let is_other = |receipt: &Receipt| (&receipt.snapshot, &receipt.base) != (&snapshot, &base);
        if resumed.is_some_and(is_other) {
            return Err(FsError::Invalid("the snapshot was deleted and made anew since"));
        }
        let from = resumed.and_then(|receipt| receipt.position.clone());
        let new_from = earlier.map_or(Epoch::FORMAT, |(since, _)| *since);
        let receipt = Receipt { snapshot, base, position: from.clone() };
        let header = self.stream_header(receipt, *epoch, new_from);
        let plain = |(epoch, stored): &(Epoch, String)| {
            let rows = self.views()?.db().open_snapshot(stored).map_err(error::store)?;
            self.plain(rows, *epoch)
        };
        let differences = Differences {
            before: earlier.map(plain).transpose()?,
            after: plain(&held.snapshots[0])?,
        };
        self.check_pairs(&differences.after)?;
        let written = match earlier {
            Some((since, _)) => self.written_between(*since, Some(*epoch))?,
            None => BTreeSet::new(),
        };
        let mut sending = Sending {
            out: FrameWriter::new(out).map_err(broken)?,
            progress,
            totals: Totals::default(),
            written,
            moved: BTreeMap::new(),
            space: META_SPACE,
            rows: Vec::new(),
            rows_bytes: 0,
            begun: from.as_ref().and_then(|from| from.file),
        };
        sending.frame(&Frame::Header(header))?;
        let spaces = differences.spaces(self)?;
        sending.find_moved(&differences, &spaces)?;
        sending.rows(&differences, &spaces, from.as_ref())?;
        self.check_pairs(&differences.after)?;
        let Totals { rows, bytes, .. } = sending.totals;
        let frames = sending.out.frames();
        sending.frame(&Frame::End { frames, rows, bytes })?;
        Ok(sending.totals)
    }

    fn stream_header(&self, sent: Receipt, inodes_end: Epoch, new_from: Epoch) -> Header {
        Header {
            version: if sent.base.is_some() { STREAM_VERSION } else { WHOLE_FILES_VERSION },
            snapshot: sent.snapshot,
            base: sent.base,
            inodes_end: inodes_end.get(),
            new_from: new_from.get(),
            name_hash_key: self.superblock.name_hash_key.clone(),
            name_hash_bits: self.superblock.name_hash_bits,
            large_file_threshold_bytes: self.superblock.large_file_threshold_bytes,
            compression: self.superblock.compression,
            from: sent.position,
        }
    }

    /// Refuses to send dictionaries that were dropped since: their pairs are gone, whatever snapshots there are.
    fn check_pairs(&self, state: &Plain<'_>) -> FsResult<()> {
        let present = self.views()?.db().present().map_err(error::store)?;
        for (name, then) in &state.dictionaries {
            let now = present.get(self.dictionaries().names(), name).map_err(error::store)?;
            let now = now.as_ref().map(DictionaryRow::decode).transpose();
            if now.map_err(|cause| unreadable(name, &cause))? != Some(*then) {
                let name = name.escape_ascii();
                return Err(FsError::Conflict(format!(
                    "dictionary {name} of the snapshot was dropped since, and its pairs with it"
                )));
            }
        }
        Ok(())
    }
}

/// How other stores know the snapshot that this store, with this uuid, knows as `stored`.
fn snapshot_id(stored: &str, uuid: &str) -> SnapshotId {
    let name = parse_name(stored).map_or("", |(_, name)| name).to_owned();
    SnapshotId { id: stored_id(stored, uuid), name }
}

impl Sending<'_> {
    fn frame(&mut self, frame: &Frame) -> FsResult<()> {
        self.out.write(frame).map_err(broken)
    }

    /// Notes what large files are to be found elsewhere than in the earlier snapshot.
    fn find_moved(&mut self, differences: &Differences<'_>, spaces: &[Space]) -> FsResult<()> {
        if differences.before.is_none() {
            return Ok(());
        }
        let meta = spaces.iter().filter(|(number, _)| *number == META_SPACE);
        for space in meta {
            differences.each(*space, Bound::Unbounded, &mut |key, was, is| {
                let is = objects_in(key, is.as_ref())?;
                let was = objects_in(key, was.as_ref())?.into_iter();
                self.moved.extend(was.filter(|(ino, _)| is.iter().all(|(other, _)| other != ino)));
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Step 2, from a place on.
    fn rows(
        &mut self,
        differences: &Differences<'_>,
        spaces: &[Space],
        from: Option<&Position>,
    ) -> FsResult<()> {
        let first = from.map_or(META_SPACE, |from| from.space);
        let nowhere = || FsError::Invalid("a place of a stream that does not exist");
        let key = from.map(|from| unhex(&from.key).ok_or_else(nowhere)).transpose()?;
        for space in spaces.iter().filter(|(number, _)| *number >= first) {
            let from = match (&key, from) {
                (Some(key), Some(from)) if space.0 == first => match from.file {
                    Some(_) => Bound::Included(key.as_slice()),
                    None => Bound::Excluded(key.as_slice()),
                },
                _ => Bound::Unbounded,
            };
            self.space = space.0;
            differences
                .each(*space, from, &mut |key, was, is| self.row(key, was, is, differences))?;
            self.flush()?;
        }
        Ok(())
    }

    fn row(
        &mut self,
        key: &[u8],
        was: Option<Bytes>,
        is: Option<Bytes>,
        states: &Differences<'_>,
    ) -> FsResult<()> {
        let begun = self.begun.take();
        let files = match self.space {
            META_SPACE => self.files_of(key, was.as_ref(), is.as_ref())?,
            _ => Vec::new(),
        };
        if was == is && files.is_empty() {
            return Ok(());
        }
        self.rows_bytes += key.len() + is.as_ref().map_or(0, Bytes::len);
        self.rows.push((key.to_vec(), is.map(|is| is.to_vec())));
        if self.rows_bytes >= ROWS_BYTES || !files.is_empty() {
            self.flush()?;
        }
        let is_begun = |file: &SentFile| begun.is_some_and(|begun| begun.ino == file.ino.get());
        let whole = files.iter().position(is_begun);
        for (at, file) in files.iter().enumerate().skip(whole.unwrap_or(0)) {
            let offset = begun.filter(|_| whole == Some(at)).map_or(0, |begun| begun.offset);
            self.file(states, file, offset)?;
        }
        Ok(())
    }

    /// The large files of a row that are to be sent.
    fn files_of(
        &self,
        key: &[u8],
        was: Option<&Bytes>,
        is: Option<&Bytes>,
    ) -> FsResult<Vec<SentFile>> {
        let was: BTreeMap<InodeId, u64> = objects_in(key, was)?.into_iter().collect();
        let sent = objects_in(key, is)?.into_iter().map(|(ino, len)| {
            let base_len = was.get(&ino).or(self.moved.get(&ino)).copied();
            SentFile { ino, len, base_len }
        });
        let is_sent = |file: &SentFile| file.base_len.is_none() || self.written.contains(&file.ino);
        Ok(sent.filter(is_sent).collect())
    }

    fn flush(&mut self) -> FsResult<()> {
        let rows = std::mem::take(&mut self.rows);
        self.rows_bytes = 0;
        if rows.is_empty() {
            return Ok(());
        }
        self.totals.rows += rows.len() as u64;
        self.frame(&Frame::Rows { space: self.space, rows })?;
        (self.progress)(&self.totals);
        Ok(())
    }

    /// Sends a large file, or what has changed in it, from `offset` on.
    fn file(&mut self, states: &Differences<'_>, file: &SentFile, offset: u64) -> FsResult<()> {
        let SentFile { ino, len, base_len } = *file;
        let now = Seen { state: &states.after, ino, len };
        let base = states.before.as_ref().zip(base_len);
        let base = base.map(|(state, len)| Seen { state, ino, len });
        let modified = now.modified()?;
        if let Some(base) = &base {
            base.modified()?;
            self.frame(&Frame::Changed { ino: ino.get(), base_len: base.len })?;
        }
        let each: &mut EachPiece<'_> = &mut |piece| self.piece(ino, piece);
        match &base {
            Some(base) => now.changes(base, offset, each)?,
            None => now.all(offset, each)?,
        }
        self.totals.files += 1;
        self.frame(&Frame::File { ino: ino.get(), len, modified })
    }

    fn piece(&mut self, ino: InodeId, piece: Piece) -> FsResult<()> {
        let ino = ino.get();
        let frame = match piece {
            Piece::Bytes(offset, bytes) => Frame::Bytes { ino, offset, bytes },
            Piece::Hole(range) => {
                Frame::Hole { ino, offset: range.start, len: range.end - range.start }
            }
        };
        if let Frame::Bytes { bytes, .. } = &frame {
            self.totals.bytes += bytes.len() as u64;
        }
        self.frame(&frame)?;
        (self.progress)(&self.totals);
        Ok(())
    }
}
