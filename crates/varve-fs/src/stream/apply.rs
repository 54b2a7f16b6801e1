//! Takes the frames of a stream into the transaction that receives it.
//!
//! 1. Rows are checked ([`super::checks`]), and written to its branch. A dictionary that goes, or is made anew, loses its
//!    pairs.
//! 2. Large files come beside it, as any transaction's own: those that are whole as files, changes of what the base has as
//!    blocks over that ([`crate::overlay`]).
//! 3. How far it is stands with its rows: behind rows at once, behind files when they are durable, every so often.
//! 4. At the end every large file must be there that is new, and those that no row has any more are to be removed.
//!
//! Rows and bytes may come twice, after what was noted last: they are the same.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use varve_engine::{Batch, Branch, Direction, KeyRange, Op, Store};
use varve_env::{File, OpenMode};
use varve_namespace::xattr::XattrBytes;
use varve_schema::key::DataRow;
use varve_schema::{DictionaryRow, Pending, RowKey, XattrRow};
use varve_types::limits::XATTRS_BYTES_MAX;
use varve_types::{InodeId, KeyspaceId, Timestamp};
use varve_vfs::{FsError, FsResult};

use super::checks::{Checks, wrong};
use super::frame::{
    FilePosition, Frame, FrameReader, Header, POSITION_KEY_BYTES_MAX, Position, STREAM_VERSION,
    SentRow,
};
use super::outcome::{Progress, ReceiveError, Totals};
use super::plain::objects_in;
use super::receipt::{RECEIPT_KEY, Receipt, TO_BE_NAMED};
use super::{DATA_SPACE, META_SPACE, NAMES_SPACE, PAIRS_SPACE, hex, unhex};
use crate::commit::Portion;
use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::objects::Objects;
use crate::objects::Own;
use crate::overlay::clear_range;
use crate::rows::for_each_xattr_row;
use crate::transactions::Transaction;

/// Bytes of large files after which they are made durable and the position is noted.
const NOTED_BYTES: u64 = 64 << 20;
/// Large files after which it is done, too.
const NOTED_FILES: u64 = 64;

/// The inode of a row of extended attributes.
fn attributes_of(key: &[u8]) -> Option<InodeId> {
    match RowKey::from_bytes(key)?.data_kind() {
        DataRow::Xattr(ino) => Some(ino),
        DataRow::Chunk(..) => None,
    }
}

/// A snapshot on its way into the store.
pub(super) struct Receiving<'a> {
    fs: &'a VarveFs,
    pub(super) txn: Transaction,
    pub(super) branch: Branch,
    staged: Arc<Objects>,
    receipt: Receipt,
    version: u32,
    inodes_end: Epoch,
    /// The numbers of the dictionaries that have names, once their pairs come.
    numbers: Option<BTreeSet<u32>>,
    /// The inode of the last row, if that was of extended attributes, of which more may come.
    attributes_of: Option<InodeId>,
    /// The newest inode of which such rows have come: of those above there are none yet. `None` where the base or an earlier stream
    /// may have brought some.
    newest: Option<InodeId>,
    /// The large files of the last row, with their lengths.
    expected: Vec<(InodeId, u64)>,
    /// The one that is coming.
    file: Option<(InodeId, Arc<dyn File>)>,
    /// The one that was interrupted.
    begun: Option<FilePosition>,
    unsynced: Totals,
    pub(super) totals: Totals,
}

impl Drop for Receiving<'_> {
    /// Where it ended early what has not been noted is sent anew.
    fn drop(&mut self) {
        self.staged.end_claims();
    }
}

impl<'a> Receiving<'a> {
    pub(super) fn new(
        fs: &'a VarveFs,
        txn: Transaction,
        branch: Branch,
        staged: Arc<Objects>,
        receipt: Receipt,
        header: &Header,
    ) -> Receiving<'a> {
        let begun = receipt.position.as_ref().and_then(|position| position.file);
        let last = receipt.position.as_ref().filter(|position| position.space == DATA_SPACE);
        let last = last.and_then(|position| unhex(&position.key));
        let attributes_of = last.and_then(|key| attributes_of(&key));
        let is_all = receipt.base.is_none() && receipt.position.is_none();
        Receiving {
            fs,
            txn,
            branch,
            staged,
            receipt,
            version: header.version,
            inodes_end: Epoch::new(header.inodes_end),
            numbers: None,
            attributes_of,
            newest: is_all.then_some(InodeId::new(0)),
            expected: Vec::new(),
            file: None,
            begun,
            unsynced: Totals::default(),
            totals: Totals::default(),
        }
    }

    /// Takes all frames up to the end.
    pub(super) fn take_all(
        &mut self,
        stream: &mut FrameReader<'_>,
        progress: Progress<'_>,
    ) -> Result<(), ReceiveError> {
        loop {
            let frames = stream.frames();
            match stream.next_frame().map_err(ReceiveError::Interrupted)? {
                Frame::Rows { space, rows } => self.rows(space, rows)?,
                Frame::Bytes { ino, offset, bytes } => {
                    self.bytes(InodeId::new(ino), offset, &bytes)?;
                }
                Frame::Changed { ino, base_len } => {
                    self.begin_changed(InodeId::new(ino), base_len)?;
                }
                Frame::Hole { ino, offset, len } => {
                    self.hole(InodeId::new(ino), offset..offset + len)?;
                }
                Frame::File { ino, len, modified } => {
                    self.end_file(InodeId::new(ino), len, modified)?;
                }
                Frame::End { frames: sent, rows, bytes } => {
                    let Totals { rows: came, bytes: came_bytes, .. } = self.totals;
                    if (sent, rows, bytes) != (frames, came, came_bytes) || self.file.is_some() {
                        return Err(wrong("another sum at its end than what has come"));
                    }
                    return Ok(());
                }
                Frame::Header(_) => return Err(wrong("a second header")),
            }
            progress(&self.totals);
        }
    }

    /// Step 1.
    fn rows(&mut self, space: u32, rows: Vec<SentRow>) -> Result<(), ReceiveError> {
        if self.file.is_some() {
            return Err(wrong("rows before a file is whole"));
        }
        if self.receipt.position.as_ref().is_some_and(|position| space < position.space) {
            return Err(wrong("its key spaces are out of order"));
        }
        let keyspace = self.keyspace(space)?;
        let Some((last, value)) = rows.last() else { return Err(wrong("a frame without rows")) };
        let noted = &last[..last.len().min(POSITION_KEY_BYTES_MAX)];
        let position = Position { space, key: hex(noted), file: None };
        let (last, value) = (last.clone(), value.clone().map(Bytes::from));
        self.totals.rows += rows.len() as u64;
        let checks = Checks { hasher: &self.fs.hasher, end: self.inodes_end };
        let mut batch = Batch::new();
        for (key, value) in rows {
            let value = value.map(Bytes::from);
            checks.row(space, &key, value.as_ref())?;
            if space == NAMES_SPACE {
                self.clear_pairs(&key, value.as_ref())?;
            }
            match value {
                Some(value) => batch.put(keyspace, key, value),
                None => batch.delete(keyspace, key),
            }
        }
        match space {
            DATA_SPACE => self.check_attributes(&batch, &last)?,
            _ => self.check_last_attributes()?,
        }
        self.expected = match space {
            META_SPACE => objects_in(&last, value.as_ref())?,
            _ => Vec::new(),
        };
        // Whoever goes on gets that row again, unless it has no files.
        let begun =
            |known: &FilePosition| self.expected.iter().any(|(ino, _)| ino.get() == known.ino);
        let first =
            self.expected.first().map(|(ino, _)| FilePosition { ino: ino.get(), offset: 0 });
        let file = self.begun.filter(begun).or(first);
        self.receipt.position = Some(Position { file, ..position });
        if self.unsynced == Totals::default() {
            self.put_receipt(&mut batch);
        }
        Ok(self.branch.write(batch).map_err(error::store)?)
    }

    /// Refuses more extended attributes than one inode may have: of inodes all of whose rows have come with `batch`, which ends
    /// with the row `last`. Whoever goes on behind it knows of no others.
    fn check_attributes(&mut self, batch: &Batch, last: &[u8]) -> Result<(), ReceiveError> {
        let mut came: BTreeMap<InodeId, BTreeMap<RowKey, Option<&Bytes>>> = BTreeMap::new();
        came.extend(self.attributes_of.map(|ino| (ino, BTreeMap::new())));
        for op in batch.ops() {
            let (key, value) = match op {
                Op::Put { key, value, .. } => (key, Some(value)),
                Op::Delete { key, .. } => (key, None),
            };
            let Some(key) = RowKey::from_bytes(key) else { continue };
            if let DataRow::Xattr(ino) = key.data_kind() {
                came.entry(ino).or_default().insert(key, value);
            }
        }
        self.attributes_of = attributes_of(last);
        let newest = self.newest;
        self.newest = newest.max(newest.and(came.keys().next_back().copied()));
        for (ino, rows) in came {
            if Some(ino) != self.attributes_of {
                let are_all = newest.is_some_and(|newest| ino > newest);
                self.check_attributes_of(ino, &rows, are_all)?;
            }
        }
        Ok(())
    }

    /// The same of the inode of the last row. REQUIRES: all rows of data have come.
    fn check_last_attributes(&mut self) -> Result<(), ReceiveError> {
        match self.attributes_of.take() {
            Some(ino) => self.check_attributes_of(ino, &BTreeMap::new(), false),
            None => Ok(()),
        }
    }

    /// The same of one inode, once `rows` are in the place of those that are there; of none if they `are_all`.
    fn check_attributes_of(
        &self,
        ino: InodeId,
        rows: &BTreeMap<RowKey, Option<&Bytes>>,
        are_all: bool,
    ) -> Result<(), ReceiveError> {
        let mut bytes = XattrBytes::default();
        for row in rows.values().flatten() {
            let row = XattrRow::decode(row).map_err(|_| wrong("a row that cannot be read"))?;
            bytes.add_row(&row);
        }
        if !are_all {
            for_each_xattr_row(&self.branch, self.fs.data, ino, &mut |key, row| {
                if !rows.contains_key(&key) {
                    bytes.add_row(&row);
                }
                !bytes.is_too_much()
            })?;
        }
        match bytes.is_too_much() {
            true => Err(wrong(&format!(
                "extended attributes of inode {ino} of more than {XATTRS_BYTES_MAX} bytes"
            ))),
            false => Ok(()),
        }
    }

    fn keyspace(&mut self, space: u32) -> Result<KeyspaceId, ReceiveError> {
        let fs = self.fs;
        match space {
            META_SPACE => Ok(fs.meta),
            DATA_SPACE => Ok(fs.data),
            NAMES_SPACE => Ok(fs.dictionaries().names()),
            _ => {
                let number = space - PAIRS_SPACE;
                if !self.numbers()?.contains(&number) {
                    return Err(wrong(&format!(
                        "pairs of the dictionary number {number}, which has no name"
                    )));
                }
                // They are made in the order of their numbers.
                let mut pairs = fs.dictionaries().pairs(DictionaryRow::found(0))?;
                for number in 1..=number {
                    pairs = fs.dictionaries().pairs(DictionaryRow::found(number))?;
                }
                Ok(pairs)
            }
        }
    }

    /// The numbers of dictionaries. REQUIRES: all names have come.
    fn numbers(&mut self) -> Result<&BTreeSet<u32>, ReceiveError> {
        if self.numbers.is_none() {
            let names = self.fs.dictionaries().names();
            let rows = self.branch.scan(names, KeyRange::all(), Direction::Forward);
            let mut numbers = BTreeSet::new();
            for row in rows.map_err(error::store)? {
                let (name, row) = row.map_err(error::store)?;
                let row = DictionaryRow::decode(&row);
                let row = row.map_err(|cause| crate::dictionaries::unreadable(&name, &cause))?;
                if !numbers.insert(row.number) {
                    return Err(wrong("two dictionaries of one number"));
                }
            }
            self.numbers = Some(numbers);
        }
        Ok(self.numbers.get_or_insert_default())
    }

    /// The pairs of a dictionary that was here under this name go, if it is another now. REQUIRES: no pairs have come yet.
    fn clear_pairs(&self, name: &[u8], now: Option<&Bytes>) -> FsResult<()> {
        let base = self.branch.base().map_err(error::store)?;
        let names = self.fs.dictionaries().names();
        let was = base.get(names, name).map_err(error::store)?;
        let Some(row) = was.as_ref().filter(|was| Some(*was) != now) else { return Ok(()) };
        let unreadable = |cause| crate::dictionaries::unreadable(name, &cause);
        let row = DictionaryRow::decode(row).map_err(unreadable)?;
        let pairs = self.fs.dictionaries().pairs(row)?;
        self.branch.clear_keyspace(pairs).map_err(error::store)
    }

    fn put_receipt(&self, batch: &mut Batch) {
        let noted = serde_json::to_vec(&self.receipt).unwrap_or_default();
        batch.put(self.fs.lookups, RECEIPT_KEY, noted);
    }

    /// Step 2.
    fn bytes(&mut self, ino: InodeId, offset: u64, bytes: &[u8]) -> Result<(), ReceiveError> {
        let end = offset + bytes.len() as u64;
        let file = self.file(ino, end)?;
        file.write_all_at(bytes, offset).map_err(|error| self.fail("write", ino, error))?;
        self.totals.bytes += bytes.len() as u64;
        self.unsynced.bytes += bytes.len() as u64;
        self.came(ino, end)
    }

    fn hole(&mut self, ino: InodeId, range: Range<u64>) -> Result<(), ReceiveError> {
        if self.version < STREAM_VERSION {
            return Err(wrong("a hole in a file of a stream that has none"));
        }
        let file = self.file(ino, range.end)?;
        let end = range.end;
        clear_range(file.as_ref(), range).map_err(|error| self.fail("punch", ino, error))?;
        self.came(ino, end)
    }

    fn fail(&self, action: &str, ino: InodeId, error: io::Error) -> FsError {
        error::object(action, &self.staged.path(ino), error)
    }

    /// Refuses what is out of turn: a file of which something comes up to `end`.
    fn check_turn(&self, ino: InodeId, end: u64) -> Result<(), ReceiveError> {
        match &self.file {
            Some((coming, _)) if *coming != ino => {
                return Err(wrong("bytes of a file before the last was whole"));
            }
            _ => {}
        }
        match self.expected.iter().find(|(known, _)| *known == ino) {
            None => Err(wrong("bytes of a file that is not of the last row")),
            Some((_, len)) if end > *len => Err(wrong("bytes beyond the end of a file")),
            Some(_) => Ok(()),
        }
    }

    /// Where the file goes on, if it is the one that was interrupted.
    fn take_begun(&mut self, ino: InodeId) -> Option<u64> {
        let begun = self.begun.take().filter(|begun| begun.ino == ino.get() && begun.offset > 0);
        begun.map(|begun| begun.offset)
    }

    /// The file that something comes for: a new one, or one that was interrupted.
    fn file(&mut self, ino: InodeId, end: u64) -> Result<Arc<dyn File>, ReceiveError> {
        self.check_turn(ino, end)?;
        if let Some((_, file)) = &self.file {
            return Ok(Arc::clone(file));
        }
        let file = match self.take_begun(ino) {
            Some(_) => match self.staged.own(ino).map_err(|error| self.fail("open", ino, error))? {
                Some(Own::All(file)) => file,
                _ => return Err(wrong("the rest of a file whose beginning is not here")),
            },
            None => self.staged.create(ino)?,
        };
        self.coming(ino, &file);
        Ok(file)
    }

    fn coming(&mut self, ino: InodeId, file: &Arc<dyn File>) {
        self.staged.claim(ino, Arc::clone(file));
        self.file = Some((ino, Arc::clone(file)));
    }

    /// A file begins with what the base has, `base_len` bytes: it gets blocks of its own over that.
    fn begin_changed(&mut self, ino: InodeId, base_len: u64) -> Result<(), ReceiveError> {
        self.check_turn(ino, 0)?;
        if self.version < STREAM_VERSION || self.file.is_some() {
            return Err(wrong("changes of a file in a place where none can be"));
        }
        let begun = self.take_begun(ino);
        let fail = |error| self.fail("open", ino, error);
        match self.staged.read_origin(ino, |file| file.stat()) {
            Ok(stat) if stat.len >= base_len => {}
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error).into()),
            _ => return Err(wrong("changes of a file that the base has not, or not as long")),
        }
        match (self.staged.own(ino).map_err(fail)?, begun) {
            (Some(Own::All(_)), _) | (None, Some(_)) => {
                return Err(wrong("the rest of a file whose beginning is not here"));
            }
            (Some(Own::Blocks(_)), _) | (None, None) => {}
        }
        self.staged.make_own(ino, false).map_err(fail)?;
        let file = self.staged.open(ino, OpenMode::ReadWrite)?;
        // What a power cut may have left beyond the end of the base is no part of it.
        if begun.is_none() && file.stat().map_err(fail)?.len > base_len {
            file.set_len(base_len).map_err(fail)?;
        }
        self.coming(ino, &file);
        Ok(())
    }

    fn end_file(
        &mut self,
        ino: InodeId,
        len: u64,
        modified: (i64, u32),
    ) -> Result<(), ReceiveError> {
        let file = self.file(ino, len)?;
        let fail = |error| self.fail("complete", ino, error);
        let modified = Timestamp::new(modified.0, modified.1)
            .ok_or_else(|| wrong("a time that does not exist"))?;
        if !self.expected.contains(&(ino, len)) {
            return Err(wrong("a file of another length than its row says"));
        }
        file.set_len(len).map_err(fail)?;
        file.set_times(None, Some(modified)).map_err(fail)?;
        // What was claimed when it was opened may have been synced when half of it had come.
        self.staged.sync(ino, file.as_ref(), false)?;
        self.file = None;
        self.totals.files += 1;
        self.unsynced.files += 1;
        self.came(ino, len)
    }

    /// Step 3: a large file has come up to `offset`.
    fn came(&mut self, ino: InodeId, offset: u64) -> Result<(), ReceiveError> {
        if let Some(position) = &mut self.receipt.position {
            position.file = Some(FilePosition { ino: ino.get(), offset });
        }
        if self.unsynced.bytes >= NOTED_BYTES || self.unsynced.files >= NOTED_FILES {
            self.note_all()?;
        }
        Ok(())
    }

    /// Makes what has come of files durable, and notes it.
    pub(super) fn note_all(&mut self) -> FsResult<()> {
        if let Some((ino, file)) = &self.file {
            self.staged.sync(*ino, file.as_ref(), true)?;
        }
        self.staged.sync_claimed().map_err(error::sync)?;
        self.unsynced = Totals::default();
        let mut batch = Batch::new();
        self.put_receipt(&mut batch);
        self.branch.write(batch).map_err(error::store)
    }

    /// Step 4.
    pub(super) fn finish(&mut self) -> Result<(), ReceiveError> {
        self.check_last_attributes()?;
        self.note_all()?;
        let base = self.branch.base().map_err(error::store)?;
        let (meta, mut then, mut now) = (self.fs.meta, BTreeMap::new(), BTreeMap::new());
        let mut failed = None;
        let walked = self.branch.changes_of(meta, &KeyRange::all(), &mut |_, key, is| {
            let mut compare = || -> FsResult<()> {
                let was = base.get(meta, key).map_err(error::store)?;
                then.extend(objects_in(key, was.as_ref())?);
                now.extend(objects_in(key, is.as_ref())?);
                Ok(())
            };
            failed = compare().err();
            failed.is_none()
        });
        walked.map_err(error::store)?;
        failed.map_or(Ok(()), Err)?;
        for (ino, len) in &now {
            let fail = |error| self.fail("look at", *ino, error);
            let came = match self.staged.own(*ino).map_err(fail)? {
                Some(Own::All(file)) => file.stat().map_err(fail)?.len == *len,
                Some(Own::Blocks(_)) => {
                    then.contains_key(ino) && self.staged.stat(*ino)?.len == *len
                }
                None => match then.get(ino) {
                    Some(known) if known == len => true,
                    // The row of one that is being written to does not say how long it is.
                    Some(_) => self.staged.stat(*ino)?.len == *len,
                    None => false,
                },
            };
            if !came {
                return Err(wrong("a large file has not come, or not all of it"));
            }
        }
        let mut portion = Portion::new();
        for ino in then.keys().filter(|ino| !now.contains_key(*ino)) {
            portion.put(meta, RowKey::pending(*ino).to_bytes(), Pending::ObjectDelete.encode());
            portion.write_if_full(&self.branch).map_err(error::store)?;
        }
        portion.put(meta, TO_BE_NAMED.to_bytes(), self.receipt.snapshot.row());
        Ok(portion.write(&self.branch).map_err(error::store)?)
    }
}
