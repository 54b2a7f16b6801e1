//! Replays logs that cannot be recovered as after a crash.
//!
//! 1. The chain: from the newest log on back each header names the log before it and how much of it counts. What is
//!    behind that, and the logs in between, an earlier recovery has cut. Where a header is lost, the sequence numbers of the
//!    later log tell the same: those that were cut came again.
//! 2. The replay of the chain, from the oldest log on: every record that is whole, also behind damaged ones, which are found
//!    by their checksums ([`varve_format::log::resync`]). Sequence numbers say what tables hold already, and how many writes are
//!    missing.
//!
//! A batch is whole or missing, and says by itself what it writes: it needs none before it. What its rows mean may need
//! others; who knows that checks it after the repair. A commit that is missing leaves its branch open, with its rows.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use varve_format::batch::{LoggedBatch, decode_batch};
use varve_format::log::{
    LogHeader, LogId, LogKind, LogReader, NextRecord, PreviousLog, Record, RecordKind,
    claimed_record, is_room, resync,
};
use varve_types::{BranchId, FileNo, KeyspaceId, SeqNo, SublevelId};

use super::tables::space_of;
use super::{KEYS_MAX, LostKey, LostRecords, Repair, Tables};
use crate::compaction::retain::Retention;
use crate::files::StoreFile;
use crate::manifest::ManifestState;
use crate::memtable::{Found, Memtable};
use crate::place::Place;
use crate::read::read_log;
use crate::table::file::Table;
use crate::table::writer::TableWriter;
use crate::wal::recovery::{RecoveryInput, recover};
use crate::{Key, Op, StoreError, StoreResult};

/// A part of a log.
pub(super) enum Part {
    Record(Record),
    /// No record, from an offset to another.
    Bad {
        offset: u64,
        end: u64,
        why: String,
    },
}

/// A log as a repair finds it.
struct FoundLog {
    no: FileNo,
    /// How much of it counts, if a later log says so.
    end: Option<u64>,
    /// Bytes of the file.
    len: u64,
    /// Those that count.
    bytes: Bytes,
    parts: Vec<Part>,
    /// The smallest sequence number that it may hold.
    first_seq: SeqNo,
    /// What is wrong with the file as a whole.
    why: Option<String>,
}

/// A part of a log that could not be read.
struct Gap {
    offset: u64,
    /// The batches that seem to have stood there.
    claimed: Vec<LoggedBatch>,
}

/// The replay of logs.
struct Replay<'a> {
    memtable: Memtable,
    last_seq: SeqNo,
    state: &'a ManifestState,
    /// The moments that snapshots and branches keep, ascending.
    pinned: Vec<SeqNo>,
    /// Branches whose commits were replayed.
    ended: Vec<BranchId>,
}

impl Repair<'_> {
    /// Adds to `tables` what the logs hold that they do not, and gives the branches that ended there. `None` if `state` is
    /// all that the manifest said and the logs are sound: the next open recovers them.
    pub(super) fn logs(
        &mut self,
        state: &ManifestState,
        is_whole: bool,
        tables: &mut Tables,
    ) -> StoreResult<Option<Vec<BranchId>>> {
        let number = |file: &StoreFile| match file {
            StoreFile::Wal(no) => Some(*no).filter(|no| !is_whole || *no >= state.oldest_log),
            _ => None,
        };
        let mut logs: Vec<FileNo> = self.files.iter().filter_map(number).collect();
        logs.sort_unstable();
        if is_whole && self.are_sound(state, &logs)? {
            return Ok(None);
        }
        let mut replay = Replay {
            memtable: self.empty_memtable(),
            last_seq: if is_whole { state.last_seq } else { SeqNo::ZERO },
            state,
            pinned: state.pinned(),
            ended: Vec::new(),
        };
        let found = self.found_logs(&logs)?;
        for (at, log) in found.iter().enumerate() {
            let limit = found[at + 1..].iter().map(|later| later.first_seq).min();
            self.replay(log, limit.unwrap_or(SeqNo::MAX), &mut replay, tables)?;
        }
        self.flush(&mut replay, tables)?;
        Ok(Some(replay.ended))
    }

    /// Whether the logs can be recovered as after a crash; else notes what is wrong.
    fn are_sound(&mut self, state: &ManifestState, logs: &[FileNo]) -> StoreResult<bool> {
        let input = RecoveryInput {
            env: self.env,
            reserve: &self.reserve,
            dir: self.dir,
            oldest_log: state.oldest_log,
            newest_log: state.newest_log,
            logs: logs.to_vec(),
            tables_seq: state.last_seq,
            pinned: Vec::new(),
            keyspaces: state.keyspaces.len(),
            salt: self.salt,
            memtable_bytes: self.options.db.memtable_bytes,
        };
        match recover(&input) {
            Ok(_) => Ok(true),
            Err(StoreError::Damaged { path, offset, detail }) => {
                self.lost_records(path, offset, detail);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Notes that a part of a log cannot be read.
    fn lost_records(&mut self, log: PathBuf, offset: u64, why: String) {
        let known = |lost: &LostRecords| lost.log == log && lost.offset == offset;
        if !self.report.lost_records.iter().any(known) {
            self.put_aside(log.clone());
            let lost = LostRecords { log, offset, why, writes: 0, keys: Vec::new() };
            self.report.lost_records.push(lost);
        }
    }

    /// The logs that follow each other, oldest first, of `logs`, which are sorted.
    fn found_logs(&self, logs: &[FileNo]) -> StoreResult<Vec<FoundLog>> {
        let named = |no: &FileNo| {
            let header = self.header(StoreFile::Wal(*no))?;
            // That of another store says nothing of these logs.
            let own = header.filter(|header| header.salt == self.salt);
            Ok((*no, own.and_then(|header| header.previous)))
        };
        let chain = chain(&logs.iter().map(named).collect::<StoreResult<Vec<_>>>()?);
        chain.into_iter().map(|(no, end)| self.found_log(no, end)).collect()
    }

    fn found_log(&self, no: FileNo, end: Option<u64>) -> StoreResult<FoundLog> {
        let (len, parts, first_seq) = (0, Vec::new(), SeqNo::MAX);
        let mut log = FoundLog { no, end, len, bytes: Bytes::new(), parts, first_seq, why: None };
        let Some(bytes) = self.log_bytes(StoreFile::Wal(no))? else {
            log.why = Some("a file that is too long for a log".to_owned());
            return Ok(log);
        };
        log.len = bytes.len() as u64;
        let counted = end.map_or(usize::MAX, |end| usize::try_from(end).unwrap_or(usize::MAX));
        let bytes = bytes.slice(..counted.min(bytes.len()));
        log.parts = self::parts(&bytes, LogId { file: no, salt: self.salt });
        log.bytes = bytes;
        let seqs = log.parts.iter().filter_map(|part| match part {
            Part::Record(record) if record.kind == RecordKind::Header => {
                LogHeader::decode(&record.payload).ok().map(|header| header.first_seq)
            }
            Part::Record(record) if record.kind == RecordKind::Batch => {
                decode_batch(&record.payload).ok().map(|batch| batch.first_seq)
            }
            _ => None,
        });
        log.first_seq = seqs.min().unwrap_or(SeqNo::MAX);
        Ok(log)
    }

    /// The bytes of a log or a manifest; none if it is missing, `None` if it is longer than any.
    pub(super) fn log_bytes(&self, file: StoreFile) -> StoreResult<Option<Bytes>> {
        match read_log(&**self.env, &file.path(self.dir)) {
            Err(StoreError::Damaged { .. }) => Ok(None),
            Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Ok(Some(Bytes::new()))
            }
            bytes => bytes.map(Some),
        }
    }

    /// The header of a log or a manifest, if it can be read.
    pub(super) fn header(&self, file: StoreFile) -> StoreResult<Option<LogHeader>> {
        let (no, kind) = match file {
            StoreFile::Wal(no) => (no, LogKind::Wal),
            StoreFile::Manifest(no) | StoreFile::ManifestCopy(no) => (no, LogKind::Manifest),
            _ => return Ok(None),
        };
        let Some(bytes) = self.log_bytes(file)? else { return Ok(None) };
        let NextRecord::Record(first) = LogReader::new(bytes, no).next_record() else {
            return Ok(None);
        };
        let header = LogHeader::decode(&first.payload).ok();
        Ok(header.filter(|header| header.kind == kind))
    }

    /// Replays one log; what has numbers from `limit` on was cut before the next log began.
    fn replay(
        &mut self,
        log: &FoundLog,
        limit: SeqNo,
        replay: &mut Replay<'_>,
        tables: &mut Tables,
    ) -> StoreResult<()> {
        let path = StoreFile::Wal(log.no).path(self.dir);
        if let Some(why) = &log.why {
            self.lost_records(path.clone(), 0, why.clone());
        }
        let mut gap: Option<Gap> = None;
        let count = log.parts.len();
        for (at, part) in log.parts.iter().enumerate() {
            let record = match part {
                Part::Record(record) if record.kind == RecordKind::Batch => record,
                Part::Record(_) => continue,
                // A torn end is what every crash leaves.
                Part::Bad { .. } if at + 1 == count && log.end.is_none() => break,
                Part::Bad { offset, end, why } => {
                    self.lost_records(path.clone(), *offset, why.clone());
                    let gap = gap.get_or_insert(Gap { offset: *offset, claimed: Vec::new() });
                    gap.claimed.extend(claimed(&log.bytes, *offset, *end));
                    continue;
                }
            };
            let before = replay.last_seq;
            let missing = match replay.take(&record.payload, limit) {
                Ok(missing) => missing,
                Err(why) => {
                    self.lost_records(path.clone(), record.offset, why.to_owned());
                    continue;
                }
            };
            if let Some(gap) = gap.take() {
                let keys = replay.keys_of(gap.claimed, before, before.advanced(missing));
                let mut lost = self.report.lost_records.iter_mut();
                let lost = lost.find(|lost| lost.log == path && lost.offset == gap.offset);
                lost.into_iter()
                    .for_each(|lost| (lost.writes, lost.keys) = (missing, keys.clone()));
            }
            if replay.memtable.bytes() >= self.options.db.memtable_bytes {
                self.flush(replay, tables)?;
            }
        }
        if log.end.is_some_and(|end| end > log.len) {
            let why = "the log ends before the length that the next one says it has";
            self.lost_records(path, log.len, why.to_owned());
        }
        Ok(())
    }

    fn empty_memtable(&self) -> Memtable {
        Memtable::new(FileNo::new(0), self.options.db.memtable_bytes)
    }

    /// Writes what was replayed to tables of level 0: the newest versions, and those that snapshots and branches see.
    fn flush(&mut self, replay: &mut Replay<'_>, tables: &mut Tables) -> StoreResult<()> {
        let memtable = std::mem::replace(&mut replay.memtable, self.empty_memtable());
        for id in memtable.keyspaces() {
            // Rows of a branch that is gone are no longer needed.
            let Some(space) = space_of(replay.state, id) else { continue };
            let (no, options) = (self.new_file(), self.table_options(id, space.options));
            let mut writer = TableWriter::create(self.env, self.dir, no, options)?;
            let mut retention = Retention::new(&replay.pinned);
            memtable.each_version(id, |key, seq, found| {
                // Tables below may hold the key, so a deletion stays.
                match retention.keeps(key, seq, *found == Found::Tombstone, || true) {
                    true => writer.add(key, seq, found),
                    false => Ok(()),
                }
            })?;
            let place = Place { level: 0, sublevel: SublevelId::new(no.get()) };
            if let Some(meta) = writer.finish()? {
                let table = Table::new(Arc::clone(self.env), self.dir, id, meta);
                tables.entry(id).or_default().push((place, Arc::new(table)));
            }
        }
        Ok(())
    }
}

impl Replay<'_> {
    /// The keys of batches that were not proven, of those whose numbers are above `before` and not above `last`.
    fn keys_of(&self, claimed: Vec<LoggedBatch>, before: SeqNo, last: SeqNo) -> Vec<LostKey> {
        let is_missing = |batch: &LoggedBatch| {
            let end = batch.first_seq.get().saturating_add(batch.writes.len() as u64);
            batch.first_seq > before && end <= last.get() + 1
        };
        let writes = claimed.into_iter().filter(is_missing).flat_map(|batch| batch.writes);
        let named = writes.filter_map(|write| {
            let keyspace = space_of(self.state, write.keyspace)?.name.clone();
            Some(LostKey { keyspace, key: write.key.to_vec() })
        });
        named.take(KEYS_MAX).collect()
    }

    /// Applies a batch that tables do not hold, unless it was cut; gives how many writes are missing before it, or why it
    /// cannot be taken.
    fn take(&mut self, payload: &Bytes, limit: SeqNo) -> Result<u64, &'static str> {
        let Ok(batch) = decode_batch(payload) else { return Err("a batch that makes no sense") };
        let last = batch.first_seq.advanced(batch.writes.len() as u64 - 1);
        if last <= self.last_seq || batch.first_seq >= limit {
            return Ok(0);
        }
        if batch.first_seq <= self.last_seq {
            return Err("a batch with sequence numbers that others have");
        }
        let count = self.state.keyspaces.len();
        let known = |id: KeyspaceId| id.is_of_branch() || (id.get() as usize) < count;
        if !batch.writes.iter().all(|write| known(write.keyspace)) {
            return Err("a batch of unknown key spaces");
        }
        let missing = match self.last_seq {
            SeqNo::ZERO => 0,
            last => batch.first_seq.get() - last.get() - 1,
        };
        let ops = batch.writes.into_iter().map(|write| match write.value {
            Some(value) => Op::Put {
                keyspace: write.keyspace,
                key: Key::from_slice(&write.key),
                value: Bytes::copy_from_slice(&value),
            },
            None => Op::Delete { keyspace: write.keyspace, key: Key::from_slice(&write.key) },
        });
        let before = |seq: SeqNo| self.pinned.partition_point(|pin| *pin < seq);
        let is_seen = |seq, next| before(seq) < before(next);
        self.memtable.apply(batch.first_seq, ops, &is_seen, None);
        self.ended.extend(batch.ends);
        self.last_seq = last;
        Ok(missing)
    }
}

/// The batches that seem to stand between two offsets of a log.
fn claimed(bytes: &Bytes, mut at: u64, end: u64) -> Vec<LoggedBatch> {
    let mut batches = Vec::new();
    while at < end
        && let Some((kind, len, payload)) = claimed_record(bytes, at)
    {
        if kind == RecordKind::Batch {
            batches.extend(decode_batch(&payload).ok());
        }
        at += len as u64;
    }
    batches
}

/// What stands in `bytes`, all of the log or manifest `log` that counts; room at its end is left out.
pub(super) fn parts(bytes: &Bytes, log: LogId) -> Vec<Part> {
    let mut reader = LogReader::new(bytes.clone(), log.file);
    let mut parts = Vec::new();
    let (mut at, mut why) = loop {
        match reader.next_record() {
            NextRecord::Record(record) => parts.push(Part::Record(record)),
            NextRecord::End => break (reader.offset(), String::new()),
            NextRecord::Bad { offset, why } => break (offset, why.problem.to_string()),
        }
    };
    let len = bytes.len() as u64;
    if at > 0 && reader.log() != log {
        let why = "it is of another store".to_owned();
        return vec![Part::Bad { offset: 0, end: len, why }];
    }
    for record in resync(bytes.clone(), log, at) {
        if record.offset > at {
            let why = std::mem::replace(&mut why, "no record".to_owned());
            parts.push(Part::Bad { offset: at, end: record.offset, why });
        }
        at = record.end();
        parts.push(Part::Record(record));
    }
    if !is_room(&bytes[at as usize..]) {
        parts.push(Part::Bad { offset: at, end: len, why });
    }
    parts
}

/// The logs that follow each other, oldest first, of `logs`, which are sorted, each with what its header says of the log
/// before it; and of each up to where it counts, if a later one says so. Where that cannot be read, or is of a log that is
/// missing, the next older one counts as far as it goes.
fn chain(logs: &[(FileNo, Option<PreviousLog>)]) -> Vec<(FileNo, Option<u64>)> {
    let (mut chain, mut rest, mut end) = (Vec::new(), logs, None);
    while let Some(((no, previous), older)) = rest.split_last() {
        chain.push((*no, end));
        let place = |log: &PreviousLog| older.iter().position(|(no, _)| *no == log.file);
        (rest, end) = match previous.and_then(|log| Some((place(&log)?, log.final_len))) {
            Some((at, final_len)) => (&older[..=at], Some(final_len)),
            None => (older, None),
        };
    }
    chain.reverse();
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_cut_is_not_in_the_chain() {
        let log = |no, previous: Option<(u64, u64)>| {
            let log = |(file, final_len)| PreviousLog { file: FileNo::new(file), final_len };
            (FileNo::new(no), previous.map(log))
        };
        let found = |logs: &[_]| -> Vec<_> {
            chain(logs).into_iter().map(|(no, end)| (no.get(), end)).collect()
        };
        assert_eq!(found(&[]), []);
        let logs = [log(3, Some((2, 50))), log(5, Some((3, 80))), log(7, Some((5, 40)))];
        assert_eq!(found(&logs), [(3, Some(80)), (5, Some(40)), (7, None)]);
        let logs = [log(3, None), log(5, Some((3, 96))), log(7, Some((3, 80)))];
        assert_eq!(found(&logs), [(3, Some(80)), (7, None)], "the log 5 was dropped");
        let logs = [log(3, None), log(5, None), log(7, Some((6, 40))), log(8, Some((7, 16)))];
        assert_eq!(found(&logs), [(3, None), (5, None), (7, Some(16)), (8, None)]);
    }
}
