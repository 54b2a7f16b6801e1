//! Writes one table file.
//!
//! 1. [`TableWriter::add`] takes versions in internal order and writes as blocks fill.
//! 2. [`TableWriter::finish`] completes the file and makes its content durable. Its name becomes durable
//!    when the caller syncs the directory, before a manifest edit mentions it.
//!
//! A writer that is dropped before it finished removes its file.

use std::path::PathBuf;
use std::sync::Arc;

use varve_env::{Env, File, OpenMode};
use varve_format::EntryKind;
use varve_format::block::Block;
use varve_format::edit::TableMeta;
use varve_format::section::Handle;
use varve_format::segment::ValuePointer;
use varve_format::table::{TableBuilder, TableOptions, Zone};
use varve_types::{FileNo, FileSalt, SeqNo};

use crate::StoreResult;
use crate::files::{StoreFile, format_error, io_error};
use crate::memtable::Found;
use crate::segment::Separated;

/// Output is handed to the operating system in pieces of about this size.
const WRITE_BYTES: usize = 256 << 10;

/// See the module's comment.
pub(crate) struct TableWriter {
    env: Arc<dyn Env>,
    file: Arc<dyn File>,
    path: PathBuf,
    /// `None` once the table is finished.
    builder: Option<TableBuilder>,
    written: u64,
}

impl TableWriter {
    /// Begins the table `no` in the store at `dir`.
    pub(crate) fn create(
        env: &Arc<dyn Env>,
        dir: &std::path::Path,
        no: FileNo,
        options: TableOptions,
    ) -> StoreResult<TableWriter> {
        TableWriter::create_at(env, StoreFile::Table(no).path(dir), no, options)
    }

    /// Begins a table in a new file at `path`.
    pub(crate) fn create_at(
        env: &Arc<dyn Env>,
        path: PathBuf,
        no: FileNo,
        options: TableOptions,
    ) -> StoreResult<TableWriter> {
        let file = env
            .open(&path, OpenMode::CreateNew)
            .map_err(|error| io_error("create", &path, error))?;
        let builder = Some(TableBuilder::new(options, no, FileSalt::new(env.random())));
        Ok(TableWriter { env: Arc::clone(env), file, path, builder, written: 0 })
    }

    /// Adds a version.
    ///
    /// REQUIRES: after all versions added so far, in internal order.
    pub(crate) fn add(&mut self, key: &[u8], seq: SeqNo, found: &Found) -> StoreResult<()> {
        match found {
            Found::Value(value) => self.add_version(key, seq, EntryKind::Put, value),
            Found::Tombstone => self.add_version(key, seq, EntryKind::Delete, &[]),
            Found::Separated(Separated { segment, handle }) => {
                let pointer = ValuePointer { segment: segment.file_no(), handle: *handle };
                self.add_pointer(key, seq, &pointer)
            }
        }
    }

    /// Adds a version whose value stands in a segment.
    ///
    /// REQUIRES: as [`TableWriter::add`].
    pub(crate) fn add_pointer(
        &mut self,
        key: &[u8],
        seq: SeqNo,
        pointer: &ValuePointer,
    ) -> StoreResult<()> {
        let mut row = Vec::new();
        pointer.encode(&mut row);
        self.add_version(key, seq, EntryKind::Separated, &row)
    }

    fn add_version(
        &mut self,
        key: &[u8],
        seq: SeqNo,
        kind: EntryKind,
        value: &[u8],
    ) -> StoreResult<()> {
        let Some(builder) = &mut self.builder else { return Ok(()) };
        builder.add(key, seq, kind, value).map_err(|error| format_error(&self.path, error))?;
        if builder.output().len() >= WRITE_BYTES {
            self.file
                .write_all_at(builder.output(), self.written)
                .map_err(|error| io_error("write", &self.path, error))?;
            self.written += builder.output().len() as u64;
            builder.clear_output();
        }
        Ok(())
    }

    /// Points at the block at `handle` of `zone`.
    ///
    /// REQUIRES: after all versions added so far; [`TableOptions::may_stitch`].
    pub(crate) fn stitch(&mut self, zone: Zone, handle: Handle, block: &Block) -> StoreResult<()> {
        let Some(builder) = &mut self.builder else { return Ok(()) };
        builder.stitch(zone, handle, block).map_err(|error| format_error(&self.path, error))
    }

    /// Bytes of the table so far, with those it points at.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.builder.as_ref().map_or(self.written, TableBuilder::table_bytes)
    }

    /// Completes the table and syncs its content.
    ///
    /// REQUIRES: at least one version was added.
    pub(crate) fn finish(mut self) -> StoreResult<Option<TableMeta>> {
        let Some(builder) = self.builder.take() else { return Ok(None) };
        match self.complete(builder) {
            Ok(meta) => Ok(Some(meta)),
            Err(error) => {
                self.remove();
                Err(error)
            }
        }
    }

    fn complete(&self, builder: TableBuilder) -> StoreResult<TableMeta> {
        let (tail, meta) = builder.finish().map_err(|error| format_error(&self.path, error))?;
        self.file
            .write_all_at(&tail, self.written)
            .map_err(|error| io_error("write", &self.path, error))?;
        self.file.sync_data().map_err(|error| io_error("sync", &self.path, error))?;
        Ok(meta)
    }

    fn remove(&self) {
        // What stays behind is removed at the next open.
        if let Err(error) = self.env.remove_file(&self.path) {
            log::warn!("cannot remove the unfinished table {}: {error}", self.path.display());
        }
    }
}

impl Drop for TableWriter {
    fn drop(&mut self) {
        if self.builder.is_some() {
            self.remove();
        }
    }
}
