//! Writes one segment file.
//!
//! A writer that is dropped before it finished removes its file. The name becomes durable when the caller syncs
//! the directory, before a manifest edit mentions it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_env::{Env, File, OpenMode};
use varve_format::edit::SegmentMeta;
use varve_format::section::Compression;
use varve_format::segment::{SegmentBuilder, ValuePointer};
use varve_types::{FileNo, FileSalt};

use crate::StoreResult;
use crate::files::{StoreFile, format_error, io_error};

/// Output is handed to the operating system in pieces of about this size.
const WRITE_BYTES: usize = 256 << 10;

/// See the module's comment.
pub(crate) struct SegmentWriter {
    env: Arc<dyn Env>,
    file: Arc<dyn File>,
    path: PathBuf,
    no: FileNo,
    salt: FileSalt,
    builder: SegmentBuilder,
    written: u64,
    finished: bool,
}

impl SegmentWriter {
    /// Begins the segment `no` in the store at `dir`.
    pub(crate) fn create(
        env: &Arc<dyn Env>,
        dir: &Path,
        no: FileNo,
        compression: Compression,
    ) -> StoreResult<SegmentWriter> {
        let path = StoreFile::Segment(no).path(dir);
        let file = env
            .open(&path, OpenMode::CreateNew)
            .map_err(|error| io_error("create", &path, error))?;
        let salt = FileSalt::new(env.random());
        let builder = SegmentBuilder::new(salt, compression);
        let env = Arc::clone(env);
        Ok(SegmentWriter { env, file, path, no, salt, builder, written: 0, finished: false })
    }

    /// Appends a value; returns what stands for it in the row.
    pub(crate) fn add(&mut self, value: &[u8]) -> StoreResult<ValuePointer> {
        let handle = self.builder.add(value).map_err(|error| format_error(&self.path, error))?;
        if self.builder.output().len() >= WRITE_BYTES {
            self.write_out()?;
        }
        Ok(ValuePointer { segment: self.no, handle })
    }

    /// Bytes of the segment so far.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.builder.file_bytes()
    }

    /// Completes the segment and syncs its content.
    pub(crate) fn finish(mut self) -> StoreResult<SegmentMeta> {
        self.write_out()?;
        self.file.sync_data().map_err(|error| io_error("sync", &self.path, error))?;
        self.finished = true;
        Ok(SegmentMeta { file: self.no, salt: self.salt, size_bytes: self.written })
    }

    fn write_out(&mut self) -> StoreResult<()> {
        let output = self.builder.output();
        self.file
            .write_all_at(output, self.written)
            .map_err(|error| io_error("write", &self.path, error))?;
        self.written += output.len() as u64;
        self.builder.clear_output();
        Ok(())
    }
}

impl Drop for SegmentWriter {
    fn drop(&mut self) {
        if !self.finished {
            // What stays behind is removed at the next open.
            if let Err(error) = self.env.remove_file(&self.path) {
                log::warn!("cannot remove the unfinished {}: {error}", self.path.display());
            }
        }
    }
}
