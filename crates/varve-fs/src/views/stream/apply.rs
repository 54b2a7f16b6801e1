//! Takes the frames of a stream into the transaction that receives it.
//!
//! 1. Rows are checked, and written to its branch. A dictionary that goes, or is made anew, loses its pairs.
//! 2. Large files come beside it, as any transaction's own.
//! 3. How far it is stands with its rows: behind rows at once, behind files when they are durable, every so often.
//! 4. At the end every large file must be there that is new, and those that no row has any more are to be removed.
//!
//! Rows and bytes may come twice, after what was noted last: they are the same.

use std::sync::Arc;

use bytes::Bytes;
use varve_engine::{Batch, Branch, Store};
use varve_env::File;
use varve_schema::key::MetaRow;
use varve_schema::{
    Body, Content, DICTIONARIES_MAX, DictionaryRow, EntryRow, Inode, Limits, ParentRow, Pending,
    RowKey, decode_inode_row,
};
use varve_types::{FileName, InodeId, KeyspaceId, Timestamp};
use varve_vfs::FsResult;

use super::frame::{FilePosition, Frame, FrameReader, Position, SentRow};
use super::plain::objects_in;
use super::receipt::{RECEIPT_KEY, Receipt, TO_BE_NAMED};
use super::receive::ReceiveError;
use super::send::{Progress, Totals};
use super::{DATA_SPACE, META_SPACE, NAMES_SPACE, PAIRS_SPACE, hex};
use crate::dictionaries::check_pair;
use crate::error;
use crate::fs::VarveFs;
use crate::objects::Objects;
use crate::views::Own;
use crate::views::txn::Transaction;

/// Bytes of large files after which they are made durable and the position is noted.
const NOTED_BYTES: u64 = 64 << 20;
/// Large files after which it is done, too.
const NOTED_FILES: u64 = 64;

/// A snapshot on its way into the store.
pub(super) struct Receiving<'a> {
    fs: &'a VarveFs,
    pub(super) txn: Transaction,
    pub(super) branch: Branch,
    staged: Arc<Objects>,
    receipt: Receipt,
    /// The large files of the last row, with their lengths.
    expected: Vec<(InodeId, u64)>,
    /// The one that is coming.
    file: Option<(InodeId, Arc<dyn File>)>,
    /// The one that was interrupted.
    begun: Option<FilePosition>,
    unsynced: Totals,
    pub(super) totals: Totals,
}

fn wrong(what: &str) -> ReceiveError {
    ReceiveError::Stream(format!("the stream makes no sense: {what}"))
}

impl<'a> Receiving<'a> {
    pub(super) fn new(
        fs: &'a VarveFs,
        txn: Transaction,
        branch: Branch,
        staged: Arc<Objects>,
        receipt: Receipt,
    ) -> Receiving<'a> {
        let begun = receipt.position.as_ref().and_then(|position| position.file);
        Receiving {
            fs,
            txn,
            branch,
            staged,
            receipt,
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
        let keyspace = self.keyspace(space)?;
        let Some((last, value)) = rows.last() else { return Err(wrong("a frame without rows")) };
        let position = Position { space, key: hex(last), file: None };
        let (last, value) = (last.clone(), value.clone().map(Bytes::from));
        self.totals.rows += rows.len() as u64;
        let mut batch = Batch::new();
        for (key, value) in rows {
            let value = value.map(Bytes::from);
            check_row(space, &key, value.as_ref())?;
            if space == NAMES_SPACE {
                self.clear_pairs(&key, value.as_ref())?;
            }
            match value {
                Some(value) => batch.put(keyspace, key, value),
                None => batch.delete(keyspace, key),
            }
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

    fn keyspace(&self, space: u32) -> Result<KeyspaceId, ReceiveError> {
        let fs = self.fs;
        match space {
            META_SPACE => Ok(fs.meta),
            DATA_SPACE => Ok(fs.data),
            NAMES_SPACE => Ok(fs.dictionaries().names()),
            _ => {
                let number = space - PAIRS_SPACE;
                if number >= DICTIONARIES_MAX {
                    return Err(wrong("rows of a key space that no store has"));
                }
                // They are made in the order of their numbers.
                let mut pairs = None;
                for number in 0..=number {
                    pairs = Some(fs.dictionaries().pairs(DictionaryRow::found(number))?);
                }
                pairs.ok_or_else(|| wrong("rows of no key space"))
            }
        }
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
        let file = self.file(ino)?;
        let fail = |error| error::object("write", &self.staged.path(ino), error);
        file.write_all_at(bytes, offset).map_err(fail)?;
        self.totals.bytes += bytes.len() as u64;
        self.unsynced.bytes += bytes.len() as u64;
        self.came(ino, offset + bytes.len() as u64)
    }

    /// The file that something comes for: a new one, or one that was interrupted.
    fn file(&mut self, ino: InodeId) -> Result<Arc<dyn File>, ReceiveError> {
        match &self.file {
            Some((known, file)) if *known == ino => return Ok(Arc::clone(file)),
            Some(_) => return Err(wrong("bytes of a file before the last was whole")),
            None if self.expected.iter().all(|(known, _)| *known != ino) => {
                return Err(wrong("bytes of a file that is not of the last row"));
            }
            None => {}
        }
        let begun = self.begun.take().filter(|begun| begun.ino == ino.get() && begun.offset > 0);
        let fail = |error| error::object("open", &self.staged.path(ino), error);
        let file = match begun {
            Some(_) => match self.staged.own(ino).map_err(fail)? {
                Some(Own::All(file)) => file,
                _ => return Err(wrong("the rest of a file whose beginning is not here")),
            },
            None => self.staged.create(ino)?,
        };
        self.staged.claim(ino, Arc::clone(&file));
        self.file = Some((ino, Arc::clone(&file)));
        Ok(file)
    }

    fn end_file(
        &mut self,
        ino: InodeId,
        len: u64,
        modified: (i64, u32),
    ) -> Result<(), ReceiveError> {
        let file = self.file(ino)?;
        let fail = |error| error::object("complete", &self.staged.path(ino), error);
        let modified = Timestamp::new(modified.0, modified.1)
            .ok_or_else(|| wrong("a time that does not exist"))?;
        if !self.expected.contains(&(ino, len)) || file.stat().map_err(fail)?.len > len {
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
        self.note_all()?;
        let base = self.branch.base().map_err(error::store)?;
        let (meta, mut then, mut now) = (self.fs.meta, Vec::new(), Vec::new());
        let mut failed = None;
        let walked = self.branch.changes(&mut |keyspace, key, is| {
            let mut compare = || -> FsResult<()> {
                if keyspace == meta {
                    let was = base.get(meta, key).map_err(error::store)?;
                    then.extend(objects_in(key, was.as_ref())?.into_iter().map(|(ino, _)| ino));
                    now.extend(objects_in(key, is.as_ref())?);
                }
                Ok(())
            };
            failed = compare().err();
            failed.is_none()
        });
        walked.map_err(error::store)?;
        failed.map_or(Ok(()), Err)?;
        then.sort_unstable();
        now.sort_unstable();
        let own = self.staged.own_inodes()?;
        let is_in = |set: &[InodeId], ino: &InodeId| set.binary_search(ino).is_ok();
        for (ino, len) in &now {
            let fail = |error| error::object("look at", &self.staged.path(*ino), error);
            match self.staged.own(*ino).map_err(fail)? {
                Some(Own::All(file)) if file.stat().map_err(fail)?.len == *len => {}
                None if is_in(&then, ino) && !is_in(&own, ino) => {}
                _ => return Err(wrong("a large file has not come, or not all of it")),
            }
        }
        let now: Vec<InodeId> = now.into_iter().map(|(ino, _)| ino).collect();
        let mut batch = Batch::new();
        for ino in then.iter().filter(|ino| !is_in(&now, ino)) {
            let key = Bytes::copy_from_slice(&RowKey::pending(*ino).to_bytes());
            batch.put(meta, key, Pending::ObjectDelete.encode());
        }
        let named = serde_json::to_vec(&self.receipt.snapshot).unwrap_or_default();
        batch.put(meta, Bytes::copy_from_slice(&TO_BE_NAMED.to_bytes()), named);
        Ok(self.branch.write(batch).map_err(error::store)?)
    }
}

/// Refuses rows that no plain form has ([`super::plain`]), or that could not be read.
fn check_row(space: u32, key: &[u8], value: Option<&Bytes>) -> Result<(), ReceiveError> {
    let unreadable = |_| wrong("a row that cannot be read");
    match space {
        META_SPACE => return check_meta(key, value),
        DATA_SPACE => {
            RowKey::from_bytes(key).ok_or_else(|| wrong("a row of data with no such key"))?;
        }
        NAMES_SPACE => {
            FileName::new(key).map_err(|_| wrong("a name that no dictionary has"))?;
            let row = value.map(DictionaryRow::decode).transpose().map_err(unreadable)?;
            if row.is_some_and(|row| row.going) {
                return Err(wrong("a dictionary that is gone"));
            }
        }
        _ => {
            let pair = check_pair(key, value.map(AsRef::as_ref));
            pair.map_err(|_| wrong("a pair that no dictionary has"))?;
        }
    }
    Ok(())
}

fn check_meta(key: &[u8], value: Option<&Bytes>) -> Result<(), ReceiveError> {
    let not_sent = || wrong("a row that is not to be sent");
    let unreadable = |_| wrong("a row that cannot be read");
    let check = |inode: &Inode| match &inode.content {
        Content::Borrowed(_) | Content::Object { dirty: true, .. } => Err(not_sent()),
        Content::Directory(info) if info.source.is_some() || !info.untold.is_zero() => {
            Err(not_sent())
        }
        _ => Ok(()),
    };
    match (RowKey::from_bytes(key).ok_or_else(not_sent)?.meta_kind(), value) {
        (MetaRow::Entry(..), Some(row)) => {
            for named in EntryRow::decode(row).map_err(unreadable)?.names() {
                if let Body::Inline(inode) = &named.body {
                    check(inode)?;
                }
            }
            Ok(())
        }
        (MetaRow::Inode(_), Some(row)) => check(&decode_inode_row(row).map_err(unreadable)?),
        (MetaRow::Parent(..), Some(row)) => ParentRow::decode(row).map(drop).map_err(unreadable),
        (MetaRow::Limits(_), Some(row)) => Limits::decode(row).map(drop).map_err(unreadable),
        (
            MetaRow::Entry(..) | MetaRow::Inode(_) | MetaRow::Parent(..) | MetaRow::Limits(_),
            None,
        ) => Ok(()),
        _ => Err(not_sent()),
    }
}
