//! Brings the memtables back from the logs after a crash or a close.
//!
//! 1. Scan every log from the oldest needed one on ([`super::scan`]).
//! 2. Decide how much of each counts ([`super::plan`]).
//! 3. Replay that much into memtables.
//! 4. fsync the logs that count, after writing once more what no sync is known to have made durable and was written
//!    since the machine started: a sync that failed leaves bytes in memory that the disk lacks and that no later one
//!    writes. It costs the bytes since the last sync.
//!
//! Nothing is cut or removed here. What decides (torn ends, barriers after them, logs that are dropped)
//! must stay until the next log is durable: its header says how much of the last log counts, and its
//! first record which outside data are durable. Until then another crash decides the same again.
//!
//! The work is bounded by the logs, which are bounded by the memtables; it does not depend on the
//! number of rows in the store.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use varve_env::{Env, File, OpenMode, is_no_space};
use varve_format::batch::{LoggedBatch, decode_batch};
use varve_format::log::{HEADER_BYTES, LogId, LogReader, NextRecord, PreviousLog, RecordKind};
use varve_types::{FileNo, KeyspaceId, SeqNo};

use super::plan::{KeptLog, Plan, plan, same_boot};
use super::scan::{LogScan, scan_log};
use crate::files::{StoreFile, format_error, io_error};
use crate::memtable::Memtable;
use crate::read::read_log;
use crate::reserve::Reserve;
use crate::{Key, Op, StoreError, StoreResult};

/// Bytes of a log that are written once more at a time.
const REWRITE_BYTES: usize = 1 << 20;

/// What recovery starts from.
#[derive(Debug)]
pub(crate) struct RecoveryInput<'a> {
    pub(crate) env: &'a Arc<dyn Env>,
    /// What is found no room for otherwise.
    pub(crate) reserve: &'a Reserve,
    pub(crate) dir: &'a Path,
    /// The oldest log that holds rows which are in no table.
    pub(crate) oldest_log: FileNo,
    /// The newest log that is known to have been synced, as were those before it; 0: none is.
    pub(crate) newest_log: FileNo,
    /// The logs found, from that one on, sorted.
    pub(crate) logs: Vec<FileNo>,
    /// The newest write that tables hold.
    pub(crate) tables_seq: SeqNo,
    /// The moments that snapshots and branches keep, ascending.
    pub(crate) pinned: Vec<SeqNo>,
    /// Key spaces that exist, those of branches not counted.
    pub(crate) keyspaces: usize,
    /// The salt of the store's logs.
    pub(crate) salt: u64,
    /// Bytes at which a memtable is full.
    pub(crate) memtable_bytes: usize,
}

/// What the logs hold.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// Filled memtables, oldest first; none is empty.
    pub(crate) memtables: Vec<Arc<Memtable>>,
    /// The newest write.
    pub(crate) last_seq: SeqNo,
    /// The newest batch whose external data is not known durable, or zero.
    pub(crate) external_seq: SeqNo,
    /// The log that the next one follows.
    pub(crate) previous: Option<PreviousLog>,
    /// The newest batch whose outside data a barrier covers, or zero.
    pub(crate) covered: SeqNo,
    /// Logs that were replayed, oldest first.
    pub(crate) logs: Vec<FileNo>,
}

/// Recovers the memtables.
pub(crate) fn recover(input: &RecoveryInput<'_>) -> StoreResult<Recovered> {
    let path_of = |no| StoreFile::Wal(no).path(input.dir);
    if input.logs.first() != Some(&input.oldest_log) {
        let detail = "the manifest needs this log, but it is missing".to_owned();
        return Err(StoreError::Damaged { path: path_of(input.oldest_log), offset: 0, detail });
    }
    let named = input.newest_log;
    if named > input.oldest_log && !input.logs.contains(&named) {
        let detail = "the manifest says that this log was synced, but it is missing".to_owned();
        return Err(StoreError::Damaged { path: path_of(named), offset: 0, detail });
    }
    let scan = |no: &FileNo| {
        let id = LogId { file: *no, salt: input.salt };
        let mut scan = scan_log(&**input.env, input.dir, id)?;
        // Its header at least.
        scan.durable_len = scan.durable_len.max(u64::from(*no == named));
        Ok(scan)
    };
    let scans = input.logs.iter().map(scan).collect::<StoreResult<Vec<_>>>()?;
    let plan = plan(&scans, input.tables_seq, input.env.boot_id());
    let plan = plan.map_err(|damage| StoreError::Damaged {
        path: path_of(damage.no),
        offset: damage.offset,
        detail: damage.detail,
    })?;
    let mut replay = Replay {
        input,
        barrier: SeqNo::ZERO,
        covered: SeqNo::ZERO,
        memtables: Vec::new(),
        last_seq: input.tables_seq,
        external_seq: SeqNo::ZERO,
    };
    for log in &plan.keep {
        replay.barrier = log.covered;
        replay.log(log.no, log.len)?;
    }
    let Replay { memtables, last_seq, external_seq, covered, .. } = replay;
    settle(input, &plan, &scans)?;
    let logs = plan.keep.iter().map(|log| log.no).collect();
    let previous = plan.keep.last().map(|log| PreviousLog { file: log.no, final_len: log.len });
    Ok(Recovered { memtables, last_seq, external_seq, previous, covered, logs })
}

struct Replay<'a> {
    input: &'a RecoveryInput<'a>,
    /// What barriers say of the present log.
    barrier: SeqNo,
    /// The newest batch that one covers.
    covered: SeqNo,
    memtables: Vec<Arc<Memtable>>,
    last_seq: SeqNo,
    external_seq: SeqNo,
}

impl Replay<'_> {
    /// Replays the first `len` bytes of the log `no`.
    fn log(&mut self, no: FileNo, len: u64) -> StoreResult<()> {
        let path = StoreFile::Wal(no).path(self.input.dir);
        let bytes = read_log(&**self.input.env, &path)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(bytes.len());
        let mut reader = LogReader::new(bytes.slice(..len), no);
        loop {
            match reader.next_record() {
                NextRecord::Record(record) if record.kind == RecordKind::Batch => {
                    let base = record.offset + HEADER_BYTES as u64;
                    let batch = decode_batch(&record.payload)
                        .map_err(|error| format_error(&path, error.shifted(base)))?;
                    self.batch(no, &path, record.offset, record.external, batch)?;
                }
                NextRecord::Record(_) => {}
                NextRecord::End => return Ok(()),
                NextRecord::Bad { offset, why } => {
                    let detail = format!("the file changed while it was read: {}", why.problem);
                    return Err(StoreError::Damaged { path, offset, detail });
                }
            }
        }
    }

    fn batch(
        &mut self,
        no: FileNo,
        path: &Path,
        offset: u64,
        external: bool,
        batch: LoggedBatch,
    ) -> StoreResult<()> {
        let damaged = |detail| StoreError::Damaged { path: PathBuf::from(path), offset, detail };
        let count = batch.writes.len() as u64;
        let Some(last_seq) = count.checked_sub(1).map(|n| batch.first_seq.advanced(n)) else {
            return Err(damaged("a batch without writes".to_owned()));
        };
        if last_seq <= self.input.tables_seq {
            return Ok(());
        }
        if batch.first_seq <= self.last_seq {
            let detail = format!("sequence number {} after {}", batch.first_seq, self.last_seq);
            return Err(damaged(detail));
        }
        // Those of a branch may be gone; then nobody looks at its rows.
        let is_unknown =
            |id: KeyspaceId| !id.is_of_branch() && id.get() as usize >= self.input.keyspaces;
        if let Some(write) = batch.writes.iter().find(|write| is_unknown(write.keyspace)) {
            return Err(damaged(format!("a write to unknown key space {}", write.keyspace)));
        }
        let full = |table: &Arc<Memtable>| table.bytes() >= self.input.memtable_bytes;
        let memtable = match self.memtables.last() {
            Some(table) if !full(table) => Arc::clone(table),
            _ => {
                let table = Arc::new(Memtable::new(no, self.input.memtable_bytes));
                self.memtables.push(Arc::clone(&table));
                table
            }
        };
        if external {
            memtable.mark_external();
            if last_seq > self.barrier {
                self.external_seq = last_seq;
            } else {
                self.covered = last_seq;
            }
        }
        // Copies, because a value that shares the memory of the log would keep all of it.
        let ops = batch.writes.into_iter().map(|write| match write.value {
            Some(value) => Op::Put {
                keyspace: write.keyspace,
                key: Key::from_slice(&write.key),
                value: Bytes::copy_from_slice(&value),
            },
            None => Op::Delete { keyspace: write.keyspace, key: Key::from_slice(&write.key) },
        });
        let pinned = &self.input.pinned;
        let before = |seq: SeqNo| pinned.partition_point(|pin| *pin < seq);
        memtable.apply(batch.first_seq, ops, &|seq, next| before(seq) < before(next), None);
        batch.ends.iter().for_each(|branch| memtable.note_ended(*branch));
        self.last_seq = last_seq;
        Ok(())
    }
}

/// Makes the logs that count durable: the next log, once synced, is proof that they are.
fn settle(input: &RecoveryInput<'_>, plan: &Plan, scans: &[LogScan]) -> StoreResult<()> {
    for KeptLog { no, len, .. } in &plan.keep {
        let path = StoreFile::Wal(*no).path(input.dir);
        let scan = scans.iter().find(|scan| scan.no == *no);
        let is_in_memory = scan.is_some_and(|scan| same_boot(scan, input.env.boot_id()));
        let is_durable = !is_in_memory || *no < input.newest_log;
        let durable = if is_durable { *len } else { scan.map_or(0, |scan| scan.durable_len) };
        let sync = || {
            let file = input.reserve.below().open(&path, OpenMode::ReadWrite)?;
            rewrite(&*file, durable, *len)?;
            file.sync_data()
        };
        // All of it once more where a sync found no room.
        let settled = input.reserve.with_room(sync);
        settled.map_err(|error| io_error("sync the log", &path, error))?;
    }
    for no in &plan.drop {
        let path = StoreFile::Wal(*no).path(input.dir);
        log::warn!("{} was never synced and follows a torn log; dropped", path.display());
    }
    Ok(())
}

/// Writes the bytes from `at` to `end` of a file where they are, so that the next sync writes them. A file system that writes
/// elsewhere what is written over gives the room of that back at a sync.
fn rewrite(file: &dyn File, mut at: u64, end: u64) -> io::Result<()> {
    let mut piece = vec![0; REWRITE_BYTES.min(end.saturating_sub(at) as usize)];
    while at < end {
        let len = piece.len().min((end - at) as usize);
        file.read_exact_at(&mut piece[..len], at)?;
        match file.write_all_at(&piece[..len], at) {
            Err(error) if is_no_space(&error) => {
                file.sync_data()?;
                file.write_all_at(&piece[..len], at)?;
            }
            written => written?,
        }
        at += len as u64;
    }
    Ok(())
}
