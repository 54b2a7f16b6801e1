//! Segments: files with the values of rows that are too large to stand beside their keys.
//!
//! 1. Values go through log and memtable like all others. A flush writes those of some size to a segment
//!    ([`writer`]), in the order of their keys, and the table a pointer; so does a merge that meets them in rows.
//! 2. A merge carries pointers along: values are not written again as rows move down the levels.
//! 3. Each table's record in the manifest says how many bytes of which segments it points at. Their sum over the
//!    tables is what is in use of a segment; when it is little, merges write those values anew
//!    ([`crate::compaction::policy::cleaning`]).
//! 4. A segment that no table points into is removed when its last reader lets go of it.
//!
//! Invariant: tables, and through them versions, read states and readers, hold the segments that they point into, so
//! that a snapshot reads values that were overwritten since. Segments are durable before the edit that names them.
//!
//! Source: column style, thesis 4.2.8. Departures: values are separated at the flush and not before the log, so
//! that a row is durable at one place; cleaning goes through the merges, which know what is in use, instead
//! of looking up the row of each value.

pub(crate) mod writer;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_format::edit::SegmentMeta;
use varve_format::section::Handle;
use varve_format::segment::{SEGMENT_HEADER_BYTES, SegmentShare};
use varve_types::FileNo;

use crate::files::{OwnedFile, StoreFile};

pub(crate) use writer::SegmentWriter;

/// A segment.
#[derive(Debug)]
pub(crate) struct Segment {
    meta: SegmentMeta,
    file: OwnedFile,
}

impl Segment {
    /// The segment that `meta` describes, in the store at `dir`.
    pub(crate) fn new(env: &Arc<dyn Env>, dir: &Path, meta: SegmentMeta) -> Segment {
        let path = StoreFile::Segment(meta.file).path(dir);
        Segment { meta, file: OwnedFile::new(meta.file, path, Arc::clone(env)) }
    }

    pub(crate) fn meta(&self) -> &SegmentMeta {
        &self.meta
    }

    pub(crate) fn file_no(&self) -> FileNo {
        self.meta.file
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file itself.
    pub(crate) fn owned(&self) -> &OwnedFile {
        &self.file
    }

    /// Bytes of all its records, in use or not.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.meta.size_bytes.saturating_sub(SEGMENT_HEADER_BYTES as u64)
    }

    /// Has the file removed when the last user lets go of it.
    ///
    /// REQUIRES: no durable edit names a table that points into it, or one after it removes that table.
    pub(crate) fn mark_obsolete(&self) {
        self.file.mark_obsolete();
    }
}

/// A value that stands in a segment.
#[derive(Clone, Debug)]
pub(crate) struct Separated {
    pub(crate) segment: Arc<Segment>,
    pub(crate) handle: Handle,
}

impl PartialEq for Separated {
    fn eq(&self, other: &Separated) -> bool {
        (self.segment.file_no(), self.handle) == (other.segment.file_no(), other.handle)
    }
}

impl Eq for Separated {}

/// The segments that tables point into, each once.
#[derive(Debug)]
pub(crate) struct Segments {
    known: BTreeMap<FileNo, Arc<Segment>>,
}

impl Segments {
    /// Those that `metas` describe, in the store at `dir`.
    pub(crate) fn new(
        env: &Arc<dyn Env>,
        dir: &Path,
        metas: impl Iterator<Item = SegmentMeta>,
    ) -> Segments {
        let segment = |meta: SegmentMeta| (meta.file, Arc::new(Segment::new(env, dir, meta)));
        Segments { known: metas.map(segment).collect() }
    }

    /// Those of `shares` that are known.
    pub(crate) fn of(&self, shares: &[SegmentShare]) -> Vec<Arc<Segment>> {
        shares.iter().filter_map(|share| self.known.get(&share.segment)).cloned().collect()
    }
}
