//! Bulk insertion: tables that are whole join the store without log or memtable.
//!
//! 1. Their rows are all as new as the call: the manifest gives each table a sequence override, so what the store
//!    held before of the same keys is hidden, and what is written later hides them.
//! 2. Until then nothing may wait in memtables: recovery would take such rows for newer. They become tables
//!    first, and are made durable, since the insertion will be.
//! 3. Each table goes to the deepest level where nothing overlaps it, or one above it, so that what is disjoint is
//!    never merged; what overlaps goes to a new sub-level of level 0.
//! 4. One manifest edit adds all of them.
//!
//! A file from outside ([`crate::Db::table_file`], [`crate::Db::ingest`]) is linked into the store, or copied where the storage refuses the link,
//! and read as a whole, every checksum compared, before it counts. The names of the files that were given remain;
//! a write to them afterwards damages the store. Varve's own loads ([`crate::Store::insert_sorted`]) make no such files.
//!
//! Source: thesis 6.1.3 and 6.1.4 (clients build tables, servers insert them in bulk). Departure: the moment of the
//! insertion orders the rows, not the numbers that the client gave them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_env::OpenMode;
use varve_format::edit::TableMeta;
use varve_types::{FileNo, KeyspaceId, SeqNo, SublevelId};

use super::log::Writer;
use super::write::Commits;
use crate::compaction::outputs::{Outputs, Written};
use crate::files::{StoreFile, io_error};
use crate::memtable::Found;
use crate::read_state::ReadState;
use crate::store::SortedRows;
use crate::table::describe::describe;
use crate::table::file::Table;
use crate::table::writer::TableWriter;
use crate::verify::{VerifyReport, verify_table};
use crate::versions::changes::Changes;
use crate::{StoreError, StoreResult};

/// EXDEV: a link from one file system to another.
const OTHER_FILE_SYSTEM: i32 = 18;
/// The number of a table that no store has given one.
const UNNUMBERED: FileNo = FileNo::new(0);
const COPY_BYTES: usize = 1 << 20;

/// A table file in the making, outside of a store, for [`crate::Db::ingest`]. Dropped before it is finished, it goes.
pub struct NewTable {
    writer: TableWriter,
    seq: SeqNo,
}

impl NewTable {
    /// Adds a row, or without a value the deletion of one. Fails if `key` is not above the last.
    pub fn add(&mut self, key: &[u8], value: Option<&[u8]>) -> StoreResult<()> {
        let found = match value {
            Some(value) => Found::Value(bytes::Bytes::copy_from_slice(value)),
            None => Found::Tombstone,
        };
        self.writer.add(key, self.seq, &found)
    }

    /// Completes the file and makes its content durable. REQUIRES: a row was added.
    pub fn finish(self) -> StoreResult<()> {
        self.writer.finish().map(|_| ())
    }
}

impl Commits {
    /// Begins a table of `keyspace` in a new file at `path`, which may be anywhere.
    pub(crate) fn table_file(&self, keyspace: KeyspaceId, path: &Path) -> StoreResult<NewTable> {
        let read_state = self.read_states.get();
        let options = self.maker.plans.table_options(read_state.keyspace(keyspace)?, 0);
        let writer = TableWriter::create_at(
            self.maker.reserve.below(),
            path.to_path_buf(),
            UNNUMBERED,
            options,
        )?;
        Ok(NewTable { writer, seq: self.ingested_seq() })
    }

    /// Takes in the tables at `paths`, all of them or none, durably; they are visible when it returns. `Damaged`
    /// and `Invalid` say what is wrong with a table. Costs the reading of the tables.
    pub(crate) fn ingest(&self, paths: &[PathBuf]) -> StoreResult<()> {
        self.health.check_open()?;
        let mut tables = Vec::new();
        let taken = paths.iter().try_for_each(|path| {
            tables.push(self.take(path)?);
            Ok(())
        });
        let taken_in = Written { tables, segments: Vec::new() };
        taken.and_then(|()| self.join(&taken_in, false)).inspect_err(|_| self.discard(&taken_in))
    }

    /// See [`crate::Store::insert_sorted`].
    pub(crate) fn insert_sorted(
        &self,
        keyspace: KeyspaceId,
        rows: SortedRows<'_>,
        external: bool,
    ) -> StoreResult<()> {
        self.health.check_open()?;
        let read_state = self.read_states.get();
        let seq = self.ingested_seq();
        let mut outputs = Outputs::new(&self.maker, read_state.keyspace(keyspace)?, 0).growing();
        for (key, value) in rows {
            if outputs.bytes() >= self.options.table_bytes {
                outputs.cut()?;
            }
            outputs.add(&key, seq, &Found::Value(value))?;
        }
        let written = outputs.finish()?;
        self.join(&written, external).inspect_err(|_| self.discard(&written))
    }

    /// The sequence number in the files of tables that are taken in. The manifest's override counts; without a
    /// manifest this one, which is above all that is there now.
    fn ingested_seq(&self) -> SeqNo {
        self.log.snapshots.last_seq().advanced(1)
    }

    /// Gives the file at `path` a name in the store and checks it. Removes the name again if it cannot be taken.
    fn take(&self, path: &Path) -> StoreResult<Arc<Table>> {
        let no = self.maker.file_numbers.take();
        let own = StoreFile::Table(no).path(&self.dir);
        match self.env.link(path, &own) {
            Err(error) if error.raw_os_error() == Some(OTHER_FILE_SYSTEM) => {
                log::info!("{} is on another file system: it is copied", path.display());
                self.copy(path, &own)?;
            }
            linked => linked.map_err(|error| io_error("link", path, error))?,
        }
        let check = || {
            let file = self.env.open(&own, OpenMode::Read);
            let synced = file.and_then(|file| file.sync_data());
            synced.map_err(|error| io_error("sync", &own, error))?;
            let (keyspace, meta) = describe(&*self.env, &own, no)?;
            if meta.zones_at.is_some() || !meta.segments.is_empty() {
                let message = "a table that points at files of another store".to_owned();
                return Err(StoreError::Invalid(message));
            }
            let read_state = self.read_states.get();
            let prefixed = read_state.keyspace(keyspace)?.options.prefixed;
            let meta = overridden(meta, SeqNo::MAX);
            let table = Table::new(Arc::clone(&self.env), &self.dir, keyspace, meta);
            verify_table(&self.maker.cache, &table, prefixed, None, &mut VerifyReport::default())?;
            self.maker.cache.forget(no);
            Ok(Arc::new(table))
        };
        check().inspect_err(|_| {
            self.maker.cache.forget(no);
            // What stays behind is removed at the next open.
            if let Err(error) = self.env.remove_file(&own) {
                log::warn!("cannot remove the refused table {}: {error}", own.display());
            }
        })
    }

    fn copy(&self, from: &Path, to: &Path) -> StoreResult<()> {
        let run = || {
            let source = self.env.open(from, OpenMode::Read)?;
            let copy = self.maker.reserve.below().open(to, OpenMode::CreateNew)?;
            let (len, mut at) = (source.stat()?.len, 0);
            let mut piece = vec![0; COPY_BYTES];
            while at < len {
                let bytes = (len - at).min(COPY_BYTES as u64) as usize;
                source.read_exact_at(&mut piece[..bytes], at)?;
                copy.write_all_at(&piece[..bytes], at)?;
                at += bytes as u64;
            }
            Ok(())
        };
        run().map_err(|error| io_error("copy", from, error))
    }

    /// Adds what was written, whose content is durable, to the store.
    fn join(&self, written: &Written, external: bool) -> StoreResult<()> {
        if written.tables.is_empty() {
            return Ok(());
        }
        self.refuse_overlap(&written.tables)?;
        let bytes = written.table_bytes() + written.segment_bytes();
        self.space.wrote(bytes);
        self.admit(0, false)?;
        if let Some(delay) = self.pace.charge(bytes) {
            self.metrics.paced_ns.add(delay.as_nanos() as u64);
            self.env.sleep(delay);
        }
        self.versions.sync_names()?;
        if external {
            self.external.run()?;
        }
        // No compaction may be on its way to the level that is chosen; while one is, level 0 is right.
        let compaction = self.compactor.hold_off();
        let spaces: BTreeSet<_> = written.tables.iter().map(|table| table.keyspace()).collect();
        spaces.iter().try_for_each(|space| self.locking.wait_until_unlocked(*space))?;
        self.flusher.when_flushed(|writer, read_state| {
            spaces.iter().try_for_each(|space| self.locking.refuse_locked(*space))?;
            self.put_in_force(writer, read_state, written, compaction.is_some())
        })?;
        drop(compaction);
        self.metrics.ingest_bytes.add(bytes);
        self.compactor.update_pace();
        self.work_is_due();
        Ok(())
    }

    /// One edit for all tables; true, as nothing is left to wait for.
    fn put_in_force(
        &self,
        writer: &mut Writer,
        read_state: &ReadState,
        written: &Written,
        may_go_deep: bool,
    ) -> StoreResult<bool> {
        let seq = writer.next_seq;
        // The numbers of the files may be below those of tables that were flushed meanwhile.
        let newest = SublevelId::new(self.maker.file_numbers.take().get());
        let mut added = Vec::new();
        for table in &written.tables {
            let version = &read_state.keyspace(table.keyspace())?.version;
            let place = self.maker.plans.place_of(version, table.meta(), newest, may_go_deep);
            let table = table.with_meta(overridden(table.meta().clone(), seq));
            added.push((table.keyspace(), place, Arc::new(table)));
        }
        let (ingested, segments) = (Some(seq), written.segments.clone());
        self.versions.install(&Changes { added, segments, ingested, ..Changes::default() })?;
        writer.next_seq = seq.advanced(1);
        self.log.locks.store_has_changed();
        Ok(true)
    }

    /// Tables that are inserted together are equally new, so no two may hold the same key.
    fn refuse_overlap(&self, tables: &[Arc<Table>]) -> StoreResult<()> {
        let mut sorted: Vec<_> = tables.iter().map(|table| (table.keyspace(), table)).collect();
        sorted.sort_by_key(|(keyspace, table)| (*keyspace, table.meta().smallest_key.clone()));
        for pair in sorted.windows(2) {
            let [(space, below), (other, above)] = [pair[0], pair[1]];
            if space == other && below.meta().largest_key >= above.meta().smallest_key {
                let message = format!("tables {} and {} overlap", below.file_no(), above.file_no());
                return Err(StoreError::Invalid(message));
            }
        }
        Ok(())
    }

    /// Removes what did not join the store, unless the edit may have reached the disk.
    fn discard(&self, written: &Written) {
        if self.health.poison.cause().is_none() {
            written.discard();
        }
    }
}

fn overridden(meta: TableMeta, seq: SeqNo) -> TableMeta {
    TableMeta { smallest_seq: seq, largest_seq: seq, seq_override: Some(seq), ..meta }
}
