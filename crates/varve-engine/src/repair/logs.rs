//! Replays logs that cannot be recovered as after a crash.
//!
//! 1. The chain: from the newest log on back each header names the log before it and how much of it counts. What is
//!    behind that, and the logs in between, an earlier recovery has cut.
//! 2. The replay of the chain, from the oldest log on.
//!
//! Batches are taken in order, up to the first record that is damaged or missing: what lies after it may build
//! on what is lost, and no state of the store ever had the one without the other. It is counted and named, and
//! the logs are put aside, so that nothing is gone.

use std::ops::Bound;
use std::sync::Arc;

use varve_format::batch::decode_batch;
use varve_format::log::{
    LogHeader, LogKind, LogReader, NextRecord, PreviousLog, RecordKind, is_room, resync,
};
use varve_types::{FileNo, KeyspaceId, SeqNo, SublevelId};

use super::{CutLog, Placed, Repair};
use crate::files::StoreFile;
use crate::iter::Source;
use crate::iter::memory::MemorySource;
use crate::manifest::{ManifestKeyspace, ManifestState};
use crate::memtable::Memtable;
use crate::read::read_log;
use crate::table::TableWriter;
use crate::version::{Place, Table};
use crate::wal::recovery::{RecoveryInput, recover};
use crate::{Direction, Key, Op, StoreError, StoreResult};

/// The replay of logs.
struct Replay {
    memtable: Memtable,
    last_seq: SeqNo,
    /// Something was applied: the next batch must follow it.
    begun: bool,
    keyspaces: usize,
    /// Where it ended, and how many batches were found after that.
    cut: Option<CutLog>,
}

impl Repair<'_> {
    /// Adds to `tables` what the logs hold that they do not. `None` if the logs are sound and the manifest, whose `state` is
    /// known, still says where they begin: the next open recovers them.
    pub(super) fn logs(
        &mut self,
        files: &[StoreFile],
        state: Option<&ManifestState>,
        spaces: &[ManifestKeyspace],
        tables: &mut [Placed],
    ) -> StoreResult<Option<()>> {
        let mut logs: Vec<FileNo> = files
            .iter()
            .filter_map(|file| if let StoreFile::Wal(no) = file { Some(*no) } else { None })
            .filter(|no| state.is_none_or(|state| *no >= state.oldest_log))
            .collect();
        logs.sort_unstable();
        let mut missing = None;
        if let Some(state) = state {
            let needed = [state.oldest_log, state.newest_log.max(state.oldest_log)];
            missing = needed.into_iter().find(|no| !logs.contains(no));
            let input = RecoveryInput {
                env: self.env,
                dir: self.dir,
                oldest_log: state.oldest_log,
                newest_log: state.newest_log,
                logs: logs.clone(),
                tables_seq: state.last_seq,
                pinned: Vec::new(),
                keyspaces: spaces.len(),
                salt: self.salt,
                memtable_bytes: self.options.db.memtable_bytes,
            };
            match recover(&input) {
                Ok(_) => return Ok(None),
                Err(StoreError::Damaged { path, offset, detail }) => {
                    let cut = CutLog { log: path, offset, why: detail, batches_after: 0 };
                    self.report.cut = Some(cut);
                }
                Err(error) => return Err(error),
            }
        }
        let mut replay = Replay {
            memtable: self.empty_memtable(),
            last_seq: state.map_or(SeqNo::ZERO, |state| state.last_seq),
            begun: false,
            keyspaces: spaces.len(),
            cut: None,
        };
        self.damaged.extend(logs.iter().map(|no| StoreFile::Wal(*no).path(self.dir)));
        for (no, end) in self.chain(&logs, state)? {
            if missing.is_some_and(|missing| no > missing) && replay.cut.is_none() {
                replay.cut.clone_from(&self.report.cut);
            }
            self.replay(no, end, &mut replay, spaces, tables)?;
        }
        self.flush(&mut replay, spaces, tables)?;
        match (&mut self.report.cut, replay.cut) {
            (Some(found), Some(cut)) => found.batches_after = cut.batches_after,
            // A torn end is what every crash leaves; one with batches after it is damage.
            (found, Some(cut)) if cut.batches_after > 0 => *found = Some(cut),
            _ => {}
        }
        Ok(Some(()))
    }

    /// Those of `logs`, ascending, that follow each other, and how much the next one says of each that counts.
    fn chain(
        &self,
        logs: &[FileNo],
        state: Option<&ManifestState>,
    ) -> StoreResult<Vec<(FileNo, Option<u64>)>> {
        let named = |no: &FileNo| {
            let header = self.header(*no)?;
            // That of another store says nothing of these logs.
            let own = header.filter(|header| state.is_none_or(|state| header.salt == state.salt));
            Ok((*no, own.and_then(|header| header.previous)))
        };
        Ok(chain(&logs.iter().map(named).collect::<StoreResult<Vec<_>>>()?))
    }

    /// The header of a log, if it can be read.
    fn header(&self, no: FileNo) -> StoreResult<Option<LogHeader>> {
        let bytes = match read_log(&**self.env, &StoreFile::Wal(no).path(self.dir)) {
            Err(StoreError::Damaged { .. }) => return Ok(None),
            bytes => bytes?,
        };
        let NextRecord::Record(first) = LogReader::new(bytes, no).next_record() else {
            return Ok(None);
        };
        let header = LogHeader::decode(&first.payload).ok();
        Ok(header.filter(|header| header.kind == LogKind::Wal))
    }

    /// Replays one log up to `end`, or as far as it goes, or counts its batches if it was cut before.
    fn replay(
        &mut self,
        no: FileNo,
        end: Option<u64>,
        replay: &mut Replay,
        spaces: &[ManifestKeyspace],
        tables: &mut [Placed],
    ) -> StoreResult<()> {
        let path = StoreFile::Wal(no).path(self.dir);
        let cut = |offset, why| CutLog { log: path.clone(), offset, why, batches_after: 0 };
        let bytes = match read_log(&**self.env, &path) {
            // No log at all, as of a length that none has.
            Err(StoreError::Damaged { offset, detail, .. }) => {
                let cut = replay.cut.get_or_insert_with(|| cut(offset, detail));
                self.report.cut.get_or_insert_with(|| cut.clone());
                return Ok(());
            }
            bytes => bytes?,
        };
        let len = end.map_or(usize::MAX, |end| usize::try_from(end).unwrap_or(usize::MAX));
        let bytes = bytes.slice(..len.min(bytes.len()));
        let mut reader = LogReader::new(bytes.clone(), no);
        let mut after = 0;
        loop {
            match reader.next_record() {
                NextRecord::Record(record) if record.kind == RecordKind::Batch => {
                    if replay.cut.is_none() && !replay.take(&record.payload) {
                        let why = "a batch that does not follow the one before".to_owned();
                        replay.cut = Some(cut(record.offset, why));
                    }
                    after += u64::from(replay.cut.is_some());
                    if replay.memtable.bytes() >= self.options.db.memtable_bytes {
                        self.flush(replay, spaces, tables)?;
                    }
                }
                NextRecord::Record(_) => {}
                NextRecord::End => {
                    if end.is_some_and(|end| end > reader.offset()) {
                        let why = "the log ends before the length that the next one says it has";
                        replay.cut.get_or_insert_with(|| cut(reader.offset(), why.to_owned()));
                    }
                    break;
                }
                NextRecord::Bad { offset, .. }
                    if end.is_none() && is_room(&bytes[offset as usize..]) =>
                {
                    break;
                }
                NextRecord::Bad { offset, why } => {
                    let later = resync(bytes, reader.log(), offset);
                    after += later.filter(|record| record.kind == RecordKind::Batch).count() as u64;
                    replay.cut.get_or_insert_with(|| cut(offset, why.problem.to_string()));
                    break;
                }
            }
        }
        if let Some(cut) = &mut replay.cut {
            cut.batches_after += after;
        }
        Ok(())
    }

    fn empty_memtable(&self) -> Memtable {
        Memtable::new(FileNo::new(0), self.options.db.memtable_bytes)
    }

    /// Writes what was replayed to tables of level 0.
    fn flush(
        &mut self,
        replay: &mut Replay,
        spaces: &[ManifestKeyspace],
        tables: &mut [Placed],
    ) -> StoreResult<()> {
        let memtable = std::mem::replace(&mut replay.memtable, self.empty_memtable());
        let memtable = Arc::new(memtable);
        for ((space, id), placed) in spaces.iter().zip(0..).zip(tables) {
            let id = KeyspaceId::new(id);
            if memtable.rows(id) == 0 {
                continue;
            }
            let (no, options) = (self.new_file(), self.table_options(id, space.options));
            let mut writer = TableWriter::create(self.env, self.dir, no, options)?;
            let (all, forward) = ((Bound::Unbounded, Bound::Unbounded), Direction::Forward);
            let rows = Arc::clone(&memtable);
            let mut source = MemorySource::new(rows, id, SeqNo::MAX, all, forward);
            while source.valid() {
                writer.add(source.key(), source.seq(), &source.found()?)?;
                source.advance()?;
            }
            let place = Place { level: 0, sublevel: SublevelId::new(no.get()) };
            if let Some(meta) = writer.finish()? {
                let table = Table::new(Arc::clone(self.env), self.dir, id, meta);
                placed.push((place, Arc::new(table)));
            }
        }
        Ok(())
    }
}

impl Replay {
    /// Applies a batch; false if it does not follow what was applied, or makes no sense.
    fn take(&mut self, payload: &bytes::Bytes) -> bool {
        let Ok(batch) = decode_batch(payload) else { return false };
        let Some(count) = (batch.writes.len() as u64).checked_sub(1) else { return false };
        let last = batch.first_seq.advanced(count);
        if last <= self.last_seq {
            return true;
        }
        // Branches do not survive a repair of logs, but what came between their rows does.
        let known = |id: KeyspaceId| id.is_of_branch() || (id.get() as usize) < self.keyspaces;
        let follows = batch.first_seq == self.last_seq.advanced(1);
        if (self.begun && !follows)
            || batch.first_seq <= self.last_seq
            || !batch.writes.iter().all(|w| known(w.keyspace))
        {
            return false;
        }
        let ops = batch.writes.into_iter().map(|write| match write.value {
            Some(value) => Op::Put {
                keyspace: write.keyspace,
                key: Key::from_slice(&write.key),
                value: bytes::Bytes::copy_from_slice(&value),
            },
            None => Op::Delete { keyspace: write.keyspace, key: Key::from_slice(&write.key) },
        });
        self.memtable.apply(batch.first_seq, ops, &|_, _| false, None);
        (self.last_seq, self.begun) = (last, true);
        true
    }
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
