//! Describes any file of a store, for people and as JSON, without opening the store.
//!
//! [`inspect`] tells by the name what the file is. What cannot be read any further is part of the
//! description, so that a damaged file can be looked at up to the damage.

mod log;
mod map;
mod segment;
mod store;
mod table;

use std::fmt;
use std::path::Path;

use serde::Serialize;
use varve_env::Env;

pub use self::log::{LogReport, RecordReport};
pub use self::map::{MapFileReport, MapReport};
pub use self::segment::{SegmentRecord, SegmentReport};
pub use self::store::{
    KeyspaceReport, LevelReport, StoreReport, SublevelReport, TableParts, TableSummary,
    inspect_store,
};
pub use self::table::{BlockReport, RowReport, SectionReport, TableReport, ZoneReport};

use crate::files::StoreFile;
use crate::manifest::read_current;
use crate::{StoreError, StoreResult};

/// The most bytes of a value that are shown.
const VALUE_BYTES_SHOWN: usize = 32;

/// A file of a store.
#[derive(Debug, Serialize)]
#[serde(tag = "file", rename_all = "snake_case")]
pub enum Inspection {
    /// A write-ahead log.
    Wal(LogReport),
    /// A manifest.
    Manifest(LogReport),
    /// The file that names the manifest in force.
    Current {
        /// The manifest's file number.
        manifest: u64,
    },
    /// A table.
    Table(TableReport),
    /// A segment.
    Segment(SegmentReport),
    /// A file of maps.
    Map(MapFileReport),
    /// A store as a whole, by [`inspect_store`].
    Store(StoreReport),
}

/// Describes the file at `path`; with `rows`, every write of a log, version of a table and value of a segment
/// too.
pub fn inspect(env: &dyn Env, path: &Path, rows: bool) -> StoreResult<Inspection> {
    let unknown = || {
        let message = format!(
            "{} is no file of a store: CURRENT, MANIFEST-*, *.wal, *.table, *.seg and *.map are",
            path.display()
        );
        StoreError::Invalid(message)
    };
    match path.file_name().and_then(StoreFile::parse).ok_or_else(unknown)? {
        StoreFile::Wal(no) => Ok(Inspection::Wal(log::describe(env, path, no, rows)?)),
        StoreFile::Manifest(no) | StoreFile::ManifestCopy(no) => {
            Ok(Inspection::Manifest(log::describe(env, path, no, rows)?))
        }
        StoreFile::Table(no) => Ok(Inspection::Table(table::describe(env, path, no, rows)?)),
        StoreFile::Segment(no) => Ok(Inspection::Segment(segment::describe(env, path, no, rows)?)),
        StoreFile::Map(no) => Ok(Inspection::Map(map::describe(env, path, no)?)),
        StoreFile::Current => {
            let dir = path.parent().unwrap_or(Path::new("."));
            let manifest = read_current(env, dir)?.ok_or_else(unknown)?;
            Ok(Inspection::Current { manifest: manifest.get() })
        }
        StoreFile::Reserve(_) => {
            let message =
                format!("{} holds room for a full device, and nothing else", path.display());
            Err(StoreError::Invalid(message))
        }
        StoreFile::Temporary => Err(unknown()),
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Inspection::Wal(report) => write!(f, "write-ahead log\n{report}"),
            Inspection::Manifest(report) => write!(f, "manifest\n{report}"),
            Inspection::Current { manifest } => {
                writeln!(f, "current: manifest {manifest} is in force")
            }
            Inspection::Table(report) => write!(f, "table\n{report}"),
            Inspection::Segment(report) => write!(f, "segment\n{report}"),
            Inspection::Map(report) => write!(f, "maps of sub-levels\n{report}"),
            Inspection::Store(report) => report.fmt(f),
        }
    }
}

/// A key as text: hexadecimal halves if it may be a prefixed one, else its bytes with escapes.
fn show_key(key: &[u8]) -> String {
    match key.split_at_checked(8) {
        Some((prefix, suffix)) if suffix.len() == 8 => format!("{}:{}", hex(prefix), hex(suffix)),
        _ => format!("\"{}\"", key.escape_ascii()),
    }
}

/// The beginning of a value as text.
fn show_value(value: &[u8]) -> String {
    let shown = &value[..value.len().min(VALUE_BYTES_SHOWN)];
    let more = if shown.len() < value.len() { "..." } else { "" };
    format!("\"{}\"{more}", shown.escape_ascii())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
