//! The key space `data` and the object files, against what the names promise.

use std::collections::HashSet;

use varve_engine::{Direction, KeyRange};
use varve_schema::key::DataRow;
use varve_schema::{CHUNK_BYTES, DATA, RowKey, XattrRow};
use varve_vfs::FsResult;

use super::bitmap::InodeSet;
use super::{Check, Finding};
use crate::error;

const DATA_PHASE: &str = "data";
const OBJECTS_PHASE: &str = "large files";

impl Check<'_> {
    pub(super) fn check_data(&mut self) -> FsResult<()> {
        self.begin(DATA_PHASE);
        let rows = self.snapshot.scan(self.fs.data, KeyRange::all(), Direction::Forward);
        let mut xattrs_seen = InodeSet::default();
        for row in rows.map_err(error::store)? {
            let (bytes, value) = row.map_err(error::store)?;
            self.step(DATA_PHASE);
            let Some(key) = RowKey::from_bytes(&bytes) else {
                self.found(Finding::UnknownRow { keyspace: DATA, prefix: 0, suffix: 0 });
                continue;
            };
            match key.data_kind() {
                DataRow::Chunk(ino, index) => {
                    self.report.chunks += 1;
                    if !self.with_chunks.contains(ino) {
                        self.found(Finding::StrayChunk { ino: ino.get(), index });
                    }
                    if value.len() > CHUNK_BYTES {
                        let bytes = value.len() as u64;
                        self.found(Finding::OversizedChunk { ino: ino.get(), index, bytes });
                    }
                }
                DataRow::Xattr(ino) => {
                    xattrs_seen.insert(ino);
                    if !self.with_xattrs.contains(ino) {
                        self.found(Finding::StrayXattr { ino: ino.get() });
                    }
                    if let Err(error) = XattrRow::decode(&value) {
                        self.found(Finding::UnreadableRow {
                            keyspace: DATA,
                            prefix: key.prefix(),
                            suffix: key.suffix(),
                            detail: error.to_string(),
                        });
                    }
                }
            }
        }
        let promised = std::mem::take(&mut self.with_xattrs);
        for ino in promised.without(&xattrs_seen) {
            self.found(Finding::MissingXattr { ino: ino.get() });
        }
        Ok(())
    }

    pub(super) fn check_objects(&mut self) -> FsResult<()> {
        self.begin(OBJECTS_PHASE);
        let fs = self.fs;
        let mut seen = HashSet::new();
        fs.objects.for_each(&mut |object| {
            self.step(OBJECTS_PHASE);
            let ino = match object {
                Ok(ino) => ino,
                Err(path) => {
                    self.found(Finding::StrayFile { path: path.display().to_string() });
                    return Ok(());
                }
            };
            self.report.objects += 1;
            seen.insert(ino.get());
            match self.large.get(&ino.get()).copied() {
                Some(recorded) => {
                    let found = fs.objects.stat(ino)?.len;
                    if found < recorded {
                        self.found(Finding::ShortObject { ino: ino.get(), recorded, found });
                    }
                }
                None if self.pending.contains_key(&ino.get()) => {}
                None => self.found(Finding::ObjectWithoutRow { ino: ino.get() }),
            }
            Ok(())
        })?;
        let mut missing: Vec<u64> =
            self.large.keys().copied().filter(|ino| !seen.contains(ino)).collect();
        missing.sort_unstable();
        for ino in missing {
            self.found(Finding::MissingObject { ino });
        }
        Ok(())
    }
}
