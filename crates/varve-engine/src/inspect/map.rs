//! Describes files of maps.

use std::fmt;
use std::path::Path;

use serde::Serialize;
use varve_env::Env;
use varve_format::filter::parent::ParentFilter;
use varve_format::saved_map::{MAP_HEADER_BYTES, SavedMap, map_at, map_salt};
use varve_format::section::SECTION_BYTES_MAX;
use varve_types::FileNo;

use crate::StoreResult;
use crate::files::format_error;
use crate::read::read_whole;

/// A file of maps.
#[derive(Debug, Serialize)]
pub struct MapFileReport {
    /// Its file number.
    pub number: u64,
    /// Bytes of the file.
    pub length_bytes: u64,
    /// The maps up to the first damage.
    pub maps: Vec<MapReport>,
    /// What is wrong after them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// The map of a key space.
#[derive(Debug, Serialize)]
pub struct MapReport {
    /// The key space.
    pub keyspace: u32,
    /// The tables that it numbers: file and number.
    pub tables: Vec<(u64, u8)>,
    /// Fingerprints of keys in it.
    pub fingerprints: usize,
    /// Fingerprints that it has room for.
    pub room: usize,
    /// Keys kept whole.
    pub whole_keys: usize,
    /// Whether it may name several tables for a key.
    pub degraded: bool,
    /// Bytes of memory of the filter over keys.
    pub key_filter_bytes: usize,
    /// Bytes of memory of the filter over prefixes.
    pub prefix_filter_bytes: usize,
}

/// Describes the file of maps `no` at `path`.
pub(super) fn describe(env: &dyn Env, path: &Path, no: FileNo) -> StoreResult<MapFileReport> {
    let bytes = read_whole(env, path, SECTION_BYTES_MAX.into())?;
    let salt = map_salt(bytes.get(..MAP_HEADER_BYTES).unwrap_or_default())
        .map_err(|error| format_error(path, error))?;
    let (number, length_bytes) = (no.get(), bytes.len() as u64);
    let mut report = MapFileReport { number, length_bytes, maps: Vec::new(), broken: None };
    let mut offset = MAP_HEADER_BYTES;
    while offset < bytes.len() {
        match map_at(&bytes, salt, offset) {
            Ok((map, end)) => {
                report.maps.push(describe_map(&map));
                offset = end;
            }
            Err(error) => {
                report.broken = Some(format_error(path, error).to_string());
                break;
            }
        }
    }
    Ok(report)
}

fn describe_map(map: &SavedMap) -> MapReport {
    MapReport {
        keyspace: map.keyspace.get(),
        tables: map.tables.iter().map(|table| (table.file.get(), table.number.get())).collect(),
        fingerprints: map.keys.used(),
        room: map.keys.capacity(),
        whole_keys: map.keys.secondary_keys(),
        degraded: map.keys.is_degraded(),
        key_filter_bytes: map.keys.memory_bytes(),
        prefix_filter_bytes: map.prefixes.as_ref().map_or(0, ParentFilter::memory_bytes),
    }
}

impl fmt::Display for MapFileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "number {}, {} bytes", self.number, self.length_bytes)?;
        for map in &self.maps {
            writeln!(
                f,
                "key space {}: {} tables; {} of {} fingerprints, {} keys kept whole{}; filters of {} and {} bytes",
                map.keyspace,
                map.tables.len(),
                map.fingerprints,
                map.room,
                map.whole_keys,
                if map.degraded { ", degraded" } else { "" },
                map.key_filter_bytes,
                map.prefix_filter_bytes
            )?;
            for (file, number) in &map.tables {
                writeln!(f, "  table {file} has number {number}")?;
            }
        }
        self.broken.iter().try_for_each(|broken| writeln!(f, "{broken}"))
    }
}
