//! Describes segments.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use varve_env::Env;
use varve_format::section::open_section;
use varve_format::segment::{RECORD_PREFIX_BYTES, SEGMENT_HEADER_BYTES, record_at, segment_salt};
use varve_types::FileNo;

use super::show_value;
use crate::StoreResult;
use crate::files::format_error;
use crate::manifest::load;
use crate::read::{open, read_part};

/// A segment.
#[derive(Debug, Serialize)]
pub struct SegmentReport {
    /// Its file number.
    pub number: u64,
    /// Bytes of the file.
    pub length_bytes: u64,
    /// Bytes of records that tables point at, as the manifest beside it says; none if it names no such segment.
    pub used_bytes: Option<u64>,
    /// Values.
    pub values: u64,
    /// Where it ends to make sense, if it does so before its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// The values, if asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<SegmentRecord>,
}

/// A value.
#[derive(Debug, Serialize)]
pub struct SegmentRecord {
    /// Where it stands: what rows point at.
    pub offset: u64,
    /// Its bytes as stored.
    pub stored_bytes: u32,
    /// Its beginning, or what is wrong with it.
    pub value: String,
}

/// Describes the segment `no` at `path`.
pub(super) fn describe(
    env: &dyn Env,
    path: &Path,
    no: FileNo,
    rows: bool,
) -> StoreResult<SegmentReport> {
    let (file, len) = open(env, path)?;
    let header = read_part(&*file, path, 0, SEGMENT_HEADER_BYTES as u64)?;
    let salt = segment_salt(&header).map_err(|error| format_error(path, error))?;
    let mut report = SegmentReport {
        number: no.get(),
        length_bytes: len,
        used_bytes: used_bytes(env, path, no),
        values: 0,
        broken: None,
        records: Vec::new(),
    };
    let mut at = SEGMENT_HEADER_BYTES as u64;
    while at < len {
        let prefix = read_part(&*file, path, at, (RECORD_PREFIX_BYTES as u64).min(len - at))?;
        let handle = match record_at(&prefix, at, len) {
            Ok(handle) => handle,
            Err(error) => {
                report.broken = Some(error.shifted(at).to_string());
                break;
            }
        };
        if rows {
            let section = read_part(&*file, path, handle.offset, handle.len.into())?;
            let value = match open_section(&section, salt, handle.offset) {
                Ok(value) => show_value(&value),
                Err(error) => error.to_string(),
            };
            let (offset, stored_bytes) = (handle.offset, handle.len);
            report.records.push(SegmentRecord { offset, stored_bytes, value });
        }
        report.values += 1;
        at = handle.end();
    }
    Ok(report)
}

/// What the manifest beside the segment says of its use, if one can be read.
fn used_bytes(env: &dyn Env, path: &Path, no: FileNo) -> Option<u64> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let state = match load(env, dir) {
        Ok(state) => state?,
        Err(error) => {
            log::warn!("how much of {} is in use is unknown: {error}", path.display());
            return None;
        }
    };
    state.segments.get(&no)?;
    let tables = state.keyspaces.iter().flat_map(|space| &space.tables);
    let shares = tables.flat_map(|(_, meta)| &meta.segments);
    Some(shares.filter(|share| share.segment == no).map(|share| share.bytes).sum())
}

impl fmt::Display for SegmentReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "number {}, {} bytes, {} values", self.number, self.length_bytes, self.values)?;
        match self.used_bytes {
            Some(used) => {
                let records = self.length_bytes.saturating_sub(SEGMENT_HEADER_BYTES as u64);
                let part = used as f64 * 100.0 / records.max(1) as f64;
                writeln!(f, "{used} bytes in use, {part:.0} of 100")?;
            }
            None => writeln!(f, "no manifest beside it names it")?,
        }
        for SegmentRecord { offset, stored_bytes, value } in &self.records {
            writeln!(f, "{offset:>10} {stored_bytes} bytes {value}")?;
        }
        match &self.broken {
            Some(broken) => writeln!(f, "{broken}"),
            None => Ok(()),
        }
    }
}
