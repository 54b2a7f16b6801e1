//! The write-ahead log: batches reach it before anything else sees them.
//!
//! 1. [`LogWriter::append_batch`] writes one record, through a window of memory where the storage has such (see
//!    [`varve_env::File::window`]), it fits in the room and little is synced, else with one `pwrite`; the batch then survives
//!    the death of the process.
//! 2. A sync (see [`crate::db`]) takes the [`SyncTargets`], fsyncs them without holding the writer, and
//!    reports back with [`LogWriter::mark_synced`], which appends a marker record.
//! 3. [`LogWriter::rotate`] begins the next log when the memtable is full.
//! 4. After a crash [`recovery`] replays the logs.
//!
//! Invariants:
//! - Every record says how much of its log was known durable when it was written; a log's header names
//!   the log before it and its final length. Both together tell a torn tail from damage.
//! - An fsync of a log counts only after those of all earlier logs and of the directory, so that what is
//!   durable is always a prefix of the history.
//! - After a failed sync nothing is synced until the store was opened again, which writes anew what of the logs was not
//!   known durable; large files are not the log's.
//! - A failed append changes nothing: the next one begins at the same offset.
//! - The log has room of its own ahead of its end, which reads as zeros; an orderly close cuts it. When the device gives no
//!   more, because others filled it, what is left is for batches that free room; so a file can be removed where nothing can
//!   be made.

pub(crate) mod plan;
pub(crate) mod recovery;
pub(crate) mod scan;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use varve_env::{Allocate, File, OpenMode, Window, is_no_space};
use varve_format::batch::{encode_batch_start, encode_branch_end, encode_delete, encode_put};
use varve_format::log::{
    LogHeader, LogId, LogKind, PreviousLog, RecordKind, Stamp, begin_record, encode_barrier,
    finish_record,
};
use varve_types::{FileNo, SeqNo};

use crate::files::{StoreFile, io_error};
use crate::reserve::Reserve;
use crate::wal::recovery::Recovered;
use crate::{Batch, Op, StoreResult};

/// The encode buffer is given back above this size.
const BUFFER_BYTES_KEPT: usize = 1 << 20;

/// Room is taken in pieces of this size, in bytes, that begin and end at multiples of it.
const AHEAD_BYTES: u64 = 128 << 10;
/// Where there is no room for a whole piece, in multiples of this.
const SCARCE_BYTES: u64 = 4 << 10;
/// With less room than this ahead, the next piece is taken.
const AHEAD_BYTES_MIN: u64 = 32 << 10;
/// Once this many bytes were appended without a sync, records go through the window.
const UNSYNCED_BYTES_TO_MAP: u64 = 1 << 20;
/// A window is opened over this many bytes, of which only those with room are written.
const WINDOW_BYTES: u64 = 4 << 20;

/// One log file.
#[derive(Debug)]
struct Log {
    file: Arc<dyn File>,
    no: FileNo,
    path: PathBuf,
    /// Where the next record goes: the end of the last good one.
    len: u64,
    /// The end of the room taken for it.
    room_end: u64,
    /// A window from before the end of the last record to there or beyond, if the storage has windows.
    window: Option<Box<dyn Window>>,
    /// The end of the window.
    window_end: u64,
    /// Bytes known durable.
    synced_len: u64,
    /// Whether its name is known durable.
    named: bool,
}

impl Log {
    /// Writes `record` behind the end, through the window if it `may` and fits; says whether it did.
    fn write(&mut self, record: &[u8], may: bool) -> io::Result<bool> {
        let end = self.len + record.len() as u64;
        let window = self.window.as_mut().filter(|_| may && end <= self.room_end);
        let in_window = window.is_some();
        match window {
            Some(window) => window.write(record, self.len)?,
            None => self.file.write_all_at(record, self.len)?,
        }
        self.len = end;
        Ok(in_window)
    }

    /// Takes room for `bytes` more, up to the end of a piece if there is so much, and brings it into memory if there is a window; says how
    /// much of it.
    fn extend_room(&mut self, bytes: u64) -> io::Result<u64> {
        match self.extend_room_by(bytes, AHEAD_BYTES) {
            Err(error) if is_no_space(&error) => self.extend_room_by(bytes, SCARCE_BYTES),
            extended => extended,
        }
    }

    /// The same up to a multiple of `piece_bytes`.
    fn extend_room_by(&mut self, bytes: u64, piece_bytes: u64) -> io::Result<u64> {
        let end = (self.len + bytes).next_multiple_of(piece_bytes);
        self.file.allocate(Allocate::Extend, self.len, end - self.len)?;
        let start = self.room_end.max(self.len);
        self.room_end = end;
        if self.window.is_none() || end > self.window_end {
            self.window_end = self.len + WINDOW_BYTES;
            // Without one the log is written as other files are.
            self.window = self.file.window(self.len, WINDOW_BYTES).unwrap_or_default();
        }
        if self.window.is_none() {
            return Ok(0);
        }
        self.file.warm_room(start, end - start);
        Ok(end - start)
    }

    /// Cuts what is behind the end.
    fn give_back_room(&mut self) -> io::Result<()> {
        self.window = None;
        self.room_end = self.room_end.min(self.len);
        self.file.set_len(self.len)
    }
}

/// A log as a sync found it.
#[derive(Clone, Debug)]
pub(crate) struct SyncTarget {
    pub(crate) file: Arc<dyn File>,
    pub(crate) path: PathBuf,
    no: FileNo,
    len: u64,
}

/// What appending a batch took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Appended {
    /// Bytes of the log.
    pub(crate) bytes: u64,
    /// Whether they went through a window.
    pub(crate) in_window: bool,
    /// Bytes of room that were brought into memory for it and what follows.
    pub(crate) warmed: u64,
}

/// What a sync has to make durable, oldest log first.
#[derive(Clone, Debug)]
pub(crate) struct SyncTargets {
    pub(crate) logs: Vec<SyncTarget>,
    /// Whether the directory must be synced as well.
    pub(crate) directory: bool,
    /// The position that is durable afterwards.
    pub(crate) position: u64,
    /// The newest batch that depends on data outside the store.
    pub(crate) external_seq: SeqNo,
}

impl SyncTargets {
    /// The log that is durable once these are, as are those before it.
    pub(crate) fn newest(&self) -> Option<FileNo> {
        self.logs.last().map(|log| log.no)
    }
}

/// The end of the log. One writer at a time holds it.
#[derive(Debug)]
pub(crate) struct LogWriter {
    reserve: Arc<Reserve>,
    dir: PathBuf,
    log: Log,
    /// Earlier logs that are not known durable to their end, oldest first.
    behind: Vec<Log>,
    /// The numbers of all earlier logs whose files still exist, oldest first.
    older: Vec<FileNo>,
    /// Bytes of batches ever appended; positions in the history that a sync can be asked for.
    position: u64,
    /// The position that is known durable.
    synced_position: u64,
    external_seq: SeqNo,
    /// The salt of the store's logs.
    salt: u64,
    buffer: Vec<u8>,
}

impl LogWriter {
    /// Begins the log `id`, after those that `recovered` lists, and makes it durable. Its first record
    /// repeats which outside data are durable, because the records that said so may go.
    pub(crate) fn create(
        reserve: Arc<Reserve>,
        dir: PathBuf,
        id: LogId,
        recovered: &Recovered,
    ) -> StoreResult<LogWriter> {
        let mut buffer = Vec::new();
        let first_seq = recovered.last_seq.advanced(1);
        let (previous, covered) = (recovered.previous, Some(recovered.covered));
        let mut log = begin_log(&reserve, &dir, id, first_seq, previous, covered, &mut buffer)?;
        log.file.sync_data().map_err(|error| io_error("sync the log", &log.path, error))?;
        reserve.below().sync_dir(&dir).map_err(|error| io_error("sync", &dir, error))?;
        (log.synced_len, log.named) = (log.len, true);
        let external_seq = recovered.external_seq;
        Ok(LogWriter {
            reserve,
            dir,
            log,
            behind: Vec::new(),
            older: recovered.logs.clone(),
            // Recovered batches that no barrier covers are something to sync.
            position: u64::from(external_seq > SeqNo::ZERO),
            synced_position: 0,
            external_seq,
            salt: id.salt,
            buffer,
        })
    }

    /// Bytes of the present log.
    pub(crate) fn len(&self) -> u64 {
        self.log.len
    }

    /// The position after the last batch.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The newest batch that depends on data outside the store.
    pub(crate) fn external_seq(&self) -> SeqNo {
        self.external_seq
    }

    /// Appends `batch`, whose first write gets `first_seq`.
    pub(crate) fn append_batch(
        &mut self,
        first_seq: SeqNo,
        batch: &Batch,
    ) -> StoreResult<Appended> {
        let ops = batch.ops();
        self.encode(RecordKind::Batch, batch.is_external(), |out| {
            encode_batch_start(out, first_seq, ops.len() as u32);
            for op in ops {
                match op {
                    Op::Put { keyspace, key, value } => encode_put(out, *keyspace, key, value),
                    Op::Delete { keyspace, key } => encode_delete(out, *keyspace, key),
                }
            }
            if let Some(branch) = batch.ended() {
                encode_branch_end(out, branch);
            }
        });
        let warmed = self.take_room(batch.is_reclaiming())?;
        let start = self.log.len;
        let in_window = self.append_encoded(batch.is_reclaiming())?;
        let bytes = self.log.len - start;
        self.position += bytes;
        if batch.is_external() {
            self.external_seq = SeqNo::new(first_seq.get() + ops.len() as u64 - 1);
        }
        Ok(Appended { bytes, in_window, warmed })
    }

    /// Takes the next piece of room if little is left for the record that is encoded, and says how much of it was brought
    /// into memory. Fails if there is none, unless the record frees some.
    fn take_room(&mut self, reclaims: bool) -> StoreResult<u64> {
        let log = &mut self.log;
        // What is larger than a piece is written beyond the room.
        let needed = (self.buffer.len() as u64).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES);
        if log.room_end.saturating_sub(log.len) >= needed {
            return Ok(0);
        }
        let taken = match reclaims {
            true => self.reserve.with_room(|| log.extend_room(needed)),
            false => log.extend_room(needed),
        };
        match taken {
            Ok(warmed) => return Ok(warmed),
            Err(error) if is_no_space(&error) && !reclaims => {
                return Err(io_error("take room for the log", &log.path, error));
            }
            Err(error) if is_no_space(&error) => {}
            // The storage below has no such thing, so the log grows as it is written.
            Err(_) => (log.room_end, log.window) = (u64::MAX, None),
        }
        Ok(0)
    }

    /// Appends that the external data of all batches up to `covered` is durable.
    pub(crate) fn append_barrier(&mut self, covered: SeqNo) -> StoreResult<()> {
        let (start, payload) = (self.log.len, encode_barrier(covered));
        self.append(RecordKind::Barrier, false, |out| out.extend_from_slice(&payload))?;
        self.position += self.log.len - start;
        Ok(())
    }

    /// Appends that the log was closed in order, and gives back the room behind it.
    pub(crate) fn append_close(&mut self) -> StoreResult<()> {
        self.append(RecordKind::CloseClean, false, |_| ())?;
        self.log.give_back_room().map_err(|error| io_error("cut the log", &self.log.path, error))
    }

    fn append(
        &mut self,
        kind: RecordKind,
        external: bool,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> StoreResult<()> {
        self.encode(kind, external, fill);
        self.append_encoded(true)?;
        Ok(())
    }

    /// Encodes the next record.
    fn encode(&mut self, kind: RecordKind, external: bool, fill: impl FnOnce(&mut Vec<u8>)) {
        let log = &self.log;
        self.buffer.clear();
        let start = begin_record(&mut self.buffer);
        fill(&mut self.buffer);
        let (offset, synced_len) = (log.len, log.synced_len);
        let id = LogId { file: log.no, salt: self.salt };
        let stamp = Stamp { log: id, offset, kind, external, synced_len };
        finish_record(&mut self.buffer, start, stamp);
    }

    /// Appends the record that is encoded, in room of the reserve if there is no other and it `reclaims` some; says whether through the
    /// window.
    fn append_encoded(&mut self, reclaims: bool) -> StoreResult<bool> {
        // A sync writes all of a page that was written to as memory, and has the next such write wait for a fault. What a system
        // call has written it knows by blocks.
        let is_little_synced = self.position - self.synced_position >= UNSYNCED_BYTES_TO_MAP;
        let log = &mut self.log;
        let buffer = &self.buffer;
        let mut write = || log.write(buffer, is_little_synced);
        let written = if reclaims { self.reserve.with_room(write) } else { write() };
        let in_window = written.map_err(|error| {
            // What was written of the record goes. If that fails too the next append overwrites it.
            let _ = log.give_back_room();
            io_error("append to the log", &log.path, error)
        })?;
        if self.buffer.capacity() > BUFFER_BYTES_KEPT {
            self.buffer = Vec::new();
        }
        Ok(in_window)
    }

    /// Begins the log `no`; no write in it has a smaller sequence number than `first_seq`.
    pub(crate) fn rotate(&mut self, no: FileNo, first_seq: SeqNo) -> StoreResult<()> {
        let previous = PreviousLog { file: self.log.no, final_len: self.log.len };
        let id = LogId { file: no, salt: self.salt };
        let next = begin_log(
            &self.reserve,
            &self.dir,
            id,
            first_seq,
            Some(previous),
            None,
            &mut self.buffer,
        )?;
        let mut full = std::mem::replace(&mut self.log, next);
        full.window = None;
        self.older.push(full.no);
        if full.synced_len < full.len || !full.named {
            self.behind.push(full);
        }
        Ok(())
    }

    /// What must be fsynced so that everything appended so far is durable.
    pub(crate) fn sync_targets(&self) -> SyncTargets {
        let logs: Vec<&Log> = self.behind.iter().chain([&self.log]).collect();
        SyncTargets {
            directory: logs.iter().any(|log| !log.named),
            logs: logs
                .into_iter()
                .map(|log| SyncTarget {
                    file: Arc::clone(&log.file),
                    path: log.path.clone(),
                    no: log.no,
                    len: log.len,
                })
                .collect(),
            position: self.position,
            external_seq: self.external_seq,
        }
    }

    /// Notes that `targets` were fsynced, and appends a marker that says so.
    pub(crate) fn mark_synced(&mut self, targets: &SyncTargets) -> StoreResult<()> {
        for target in &targets.logs {
            let logs = self.behind.iter_mut().chain([&mut self.log]);
            for log in logs.filter(|log| log.no == target.no) {
                log.synced_len = log.synced_len.max(target.len);
                log.named |= targets.directory;
            }
        }
        self.behind.retain(|log| log.synced_len < log.len || !log.named);
        self.synced_position = self.synced_position.max(targets.position);
        if self.log.synced_len > 0 {
            self.append(RecordKind::Marker, false, |_| ())?;
        }
        Ok(())
    }

    /// Forgets the logs before `oldest`, because tables hold what they hold; returns their numbers.
    pub(crate) fn forget_before(&mut self, oldest: FileNo) -> Vec<FileNo> {
        self.behind.retain(|log| log.no >= oldest);
        let needed = self.older.partition_point(|no| *no < oldest);
        self.older.drain(..needed).collect()
    }
}

/// Creates a log file and writes its header, and a barrier for `covered`, in one write.
fn begin_log(
    reserve: &Reserve,
    dir: &std::path::Path,
    id: LogId,
    first_seq: SeqNo,
    previous: Option<PreviousLog>,
    covered: Option<SeqNo>,
    buffer: &mut Vec<u8>,
) -> StoreResult<Log> {
    let (no, salt) = (id.file, id.salt);
    let path = StoreFile::Wal(no).path(dir);
    buffer.clear();
    let start = begin_record(buffer);
    let env = reserve.below();
    let boot_id = env.boot_id();
    LogHeader { kind: LogKind::Wal, boot_id, first_seq, previous, salt }.encode(buffer);
    let stamp = |offset: usize, kind| Stamp {
        log: id,
        offset: offset as u64,
        kind,
        external: false,
        synced_len: 0,
    };
    finish_record(buffer, start, stamp(0, RecordKind::Header));
    if let Some(covered) = covered.filter(|covered| *covered > SeqNo::ZERO) {
        let offset = buffer.len();
        let start = begin_record(buffer);
        buffer.extend_from_slice(&encode_barrier(covered));
        finish_record(buffer, start, stamp(offset, RecordKind::Barrier));
    }
    let create = |error| io_error("create the log", &path, error);
    let file = reserve.with_room(|| env.open(&path, OpenMode::CreateNew)).map_err(create)?;
    if let Err(error) = reserve.with_room(|| file.write_all_at(buffer, 0)) {
        drop(file);
        // A log without a header would stand for an empty one; without the name there is nothing to tell.
        let _ = env.remove_file(&path);
        return Err(io_error("begin the log", &path, error));
    }
    let len = buffer.len() as u64;
    let (window, window_end) = (None, 0);
    Ok(Log { file, no, path, len, room_end: len, synced_len: 0, named: false, window, window_end })
}
