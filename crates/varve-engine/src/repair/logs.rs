//! Replays logs that cannot be recovered as after a crash.
//!
//! Batches are taken in order, up to the first record that is damaged or missing: what lies after it may build
//! on what is lost, and no state of the store ever had the one without the other. It is counted and named, and
//! the logs are put aside, so that nothing is gone.

use std::ops::Bound;
use std::sync::Arc;

use varve_format::batch::decode_batch;
use varve_format::log::{LogReader, NextRecord, RecordKind, is_room, resync};
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
        };
        let mut is_cut = false;
        for no in logs {
            is_cut |= missing.is_some_and(|missing| no > missing);
            self.damaged.push(StoreFile::Wal(no).path(self.dir));
            is_cut = self.replay(no, is_cut, &mut replay, spaces, tables)?;
        }
        self.flush(&mut replay, spaces, tables)?;
        Ok(Some(()))
    }

    /// Replays one log, or counts its batches if an earlier one was cut. Says whether anything was cut.
    fn replay(
        &mut self,
        no: FileNo,
        mut is_cut: bool,
        replay: &mut Replay,
        spaces: &[ManifestKeyspace],
        tables: &mut [Placed],
    ) -> StoreResult<bool> {
        let path = StoreFile::Wal(no).path(self.dir);
        let bytes = match read_log(&**self.env, &path) {
            // No log at all, as of a length that none has.
            Err(StoreError::Damaged { path, offset, detail }) => {
                let cut = CutLog { log: path, offset, why: detail, batches_after: 0 };
                self.report.cut.get_or_insert(cut);
                return Ok(true);
            }
            bytes => bytes?,
        };
        let mut reader = LogReader::new(bytes.clone(), no);
        let mut after = 0;
        loop {
            match reader.next_record() {
                NextRecord::Record(record) if record.kind == RecordKind::Batch => {
                    is_cut = is_cut || !replay.take(&record.payload);
                    after += u64::from(is_cut);
                    if replay.memtable.bytes() >= self.options.db.memtable_bytes {
                        self.flush(replay, spaces, tables)?;
                    }
                }
                NextRecord::Record(_) => {}
                NextRecord::End => break,
                NextRecord::Bad { offset, .. } if is_room(&bytes[offset as usize..]) => break,
                NextRecord::Bad { offset, why } => {
                    let later = resync(bytes, reader.log(), offset);
                    let batches = later.filter(|record| record.kind == RecordKind::Batch).count();
                    after += batches as u64;
                    // A torn end is what every crash leaves; one with batches after it is damage.
                    if batches > 0 && self.report.cut.is_none() {
                        let why = why.problem.to_string();
                        let cut = CutLog { log: path, offset, why, batches_after: 0 };
                        self.report.cut = Some(cut);
                    }
                    is_cut = true;
                    break;
                }
            }
        }
        if let Some(cut) = &mut self.report.cut {
            cut.batches_after += after;
        }
        Ok(is_cut)
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
        self.memtable.apply(batch.first_seq, ops, None, None);
        (self.last_seq, self.begun) = (last, true);
        true
    }
}
