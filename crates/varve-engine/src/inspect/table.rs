//! Describes tables.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use varve_env::{Env, File};
use varve_format::EntryKind;
use varve_format::block::{Block, BlockCursor};
use varve_format::edit::ZoneMeta;
use varve_format::index::Index;
use varve_format::section::{Handle, open_section};
use varve_format::segment::{SegmentShare, ValuePointer};
use varve_format::table::{Properties, Zones};
use varve_format::{FormatError, FormatResult};
use varve_types::{FileNo, FileSalt};

use super::{show_key, show_value};
use crate::files::{StoreFile, format_error};
use crate::read::{open, open_table, read_part};
use crate::{StoreError, StoreResult};

/// A table.
#[derive(Debug, Serialize)]
pub struct TableReport {
    /// Its file number.
    pub number: u64,
    /// Bytes of the file.
    pub length_bytes: u64,
    /// The key space whose rows it holds.
    pub keyspace: u32,
    /// Whether its keys are 8 + 8 bytes.
    pub prefixed: bool,
    /// How its blocks are compressed.
    pub compression: String,
    /// Versions, tombstones included.
    pub versions: u64,
    /// Versions that delete their key.
    pub tombstones: u64,
    /// The oldest and the newest version.
    pub sequence_numbers: (u64, u64),
    /// Bytes of keys and values before sharing and compression.
    pub raw_bytes: u64,
    /// The first and the last key.
    pub keys: (String, String),
    /// The segments that versions point into, with bytes of records.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub segments: Vec<(u64, u64)>,
    /// The parts besides the data blocks.
    pub sections: Vec<SectionReport>,
    /// The other files whose blocks the table points at.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<ZoneReport>,
    /// Runs of blocks that follow each other in one file.
    pub runs: u64,
    /// Bytes of such a run, on average.
    pub mean_run_bytes: u64,
    /// The data blocks.
    pub blocks: Vec<BlockReport>,
}

/// A file whose blocks a stitched table points at.
#[derive(Debug, Serialize)]
pub struct ZoneReport {
    /// Its file number.
    pub number: u64,
    /// Bytes of the file.
    pub length_bytes: u64,
    /// Bytes that the table points at.
    pub live_bytes: u64,
    /// Runs that they make up.
    pub runs: u64,
}

/// A part of a table.
#[derive(Debug, Serialize)]
pub struct SectionReport {
    /// What it is.
    pub name: &'static str,
    /// Its kind, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'static str>,
    /// Its bits for each version of the table.
    pub bits_per_version: f64,
    /// Where it begins.
    pub offset: u64,
    /// Its bytes, trailer included.
    pub length_bytes: u32,
}

/// A data block.
#[derive(Debug, Serialize)]
pub struct BlockReport {
    /// The number of the file, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<u64>,
    /// Where it begins.
    pub offset: u64,
    /// Its bytes, trailer included.
    pub length_bytes: u32,
    /// What is wrong with it, if it was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
    /// Its versions, if asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<RowReport>,
}

/// A version of a row.
#[derive(Debug, Serialize)]
pub struct RowReport {
    /// The key.
    pub key: String,
    /// When it was written.
    pub seq: u64,
    /// The value's bytes, as they are stored if it stands in a segment; none for a deletion.
    pub value_bytes: Option<usize>,
    /// The value's beginning, or where it stands.
    pub value: String,
}

struct Opened<'a> {
    file: Arc<dyn File>,
    len: u64,
    path: &'a Path,
    salt: FileSalt,
}

impl Opened<'_> {
    /// The content of a section, decoded.
    fn section<T>(
        &self,
        handle: Handle,
        decode: impl FnOnce(&Bytes) -> FormatResult<T>,
    ) -> StoreResult<T> {
        let at = |error: FormatError| format_error(self.path, error.shifted(handle.offset));
        handle.check().map_err(at)?;
        if handle.end() > self.len {
            let detail = "a section beyond the end of the file".to_owned();
            let (path, offset) = (self.path.to_path_buf(), handle.offset);
            return Err(StoreError::Damaged { path, offset, detail });
        }
        let bytes = read_part(&*self.file, self.path, handle.offset, handle.len.into())?;
        open_section(&bytes, self.salt, handle.offset)
            .and_then(|content| decode(&content))
            .map_err(at)
    }
}

/// Describes the table `no` at `path`.
pub(super) fn describe(
    env: &dyn Env,
    path: &Path,
    no: FileNo,
    rows: bool,
) -> StoreResult<TableReport> {
    let (opened, len, footer) = open_table(env, path, None)?;
    let file = Opened { file: opened, len, path, salt: footer.salt };
    let properties = file.section(footer.properties, |content| Properties::decode(content))?;
    let own_end = footer.data_end();
    let zones = footer.zones.map(|list| file.section(list, |c| Zones::decode(c, own_end)));
    let zones = zones.transpose()?.unwrap_or_default();
    let data_end = if footer.zones.is_some() { zones.data_bytes() } else { own_end };
    let index = file
        .section(footer.index, |content| Index::decode(footer.index_policy, content, data_end))?;
    let handles = (0..index.block_count()).filter_map(|block| index.handle(block));
    let runs = zones.runs().len().max(1) as u64;
    let sections = footer.sections().map(|(name, handle)| {
        let (offset, length_bytes) = (handle.offset, handle.len);
        let kind = match name {
            "index" => Some(footer.index_policy.name()),
            "filter" | "prefix filter" => Some(footer.filter_kind.name()),
            _ => None,
        };
        let bits_per_version = f64::from(handle.len) * 8.0 / properties.entries.max(1) as f64;
        SectionReport { name, kind, bits_per_version, offset, length_bytes }
    });
    Ok(TableReport {
        number: no.get(),
        length_bytes: len,
        keyspace: properties.keyspace.get(),
        prefixed: properties.prefixed,
        compression: format!("{:?}", properties.compression).to_lowercase(),
        versions: properties.entries,
        tombstones: properties.tombstones,
        sequence_numbers: (properties.smallest_seq.get(), properties.largest_seq.get()),
        raw_bytes: properties.raw_bytes,
        keys: (show_key(&properties.smallest_key), show_key(&properties.largest_key)),
        segments: properties.segments.iter().map(show_share).collect(),
        sections: sections.collect(),
        zones: zones.metas().iter().map(describe_zone).collect(),
        runs,
        mean_run_bytes: data_end / runs,
        blocks: handles.map(|handle| describe_block(env, &file, &zones, handle, rows)).collect(),
    })
}

fn show_share(share: &SegmentShare) -> (u64, u64) {
    (share.segment.get(), share.bytes)
}

fn describe_zone(meta: &ZoneMeta) -> ZoneReport {
    ZoneReport {
        number: meta.zone.file.get(),
        length_bytes: meta.zone.size_bytes,
        live_bytes: meta.live_bytes,
        runs: meta.runs,
    }
}

fn describe_block(
    env: &dyn Env,
    own: &Opened<'_>,
    zones: &Zones,
    handle: Handle,
    rows: bool,
) -> BlockReport {
    let placed = if zones.zones().is_empty() { Some((0, handle)) } else { zones.place(handle) };
    let (number, handle) = placed.unwrap_or((0, handle));
    let zone = number.checked_sub(1).map(|at| zones.zones()[at]);
    let mut report = BlockReport {
        zone: zone.map(|zone| zone.file.get()),
        offset: handle.offset,
        length_bytes: handle.len,
        broken: None,
        rows: Vec::new(),
    };
    if rows {
        let parse = |content: &Bytes| push_rows(Block::parse(content.clone())?, &mut report.rows);
        let read = match zone {
            None => own.section(handle, parse),
            Some(zone) => {
                let path = StoreFile::Table(zone.file).path(own.path.parent().unwrap_or(own.path));
                open(env, &path).and_then(|(file, len)| {
                    Opened { file, len, path: &path, salt: zone.salt }.section(handle, parse)
                })
            }
        };
        report.broken = read.err().map(|error| error.to_string());
    }
    report
}

fn push_rows(block: Block, rows: &mut Vec<RowReport>) -> FormatResult<()> {
    let mut cursor = BlockCursor::new(block);
    cursor.seek_first()?;
    while cursor.valid() {
        let value = cursor.value();
        let (value_bytes, value) = match cursor.kind() {
            EntryKind::Put => (Some(value.len()), show_value(&value)),
            EntryKind::Delete => (None, String::new()),
            EntryKind::Separated => {
                let ValuePointer { segment, handle } = ValuePointer::decode(&value)?;
                (Some(handle.len as usize), format!("in segment {segment} at {}", handle.offset))
            }
        };
        let (key, seq) = (show_key(cursor.key()), cursor.seq().get());
        rows.push(RowReport { key, seq, value_bytes, value });
        cursor.next()?;
    }
    Ok(())
}

impl fmt::Display for TableReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "number {}, {} bytes", self.number, self.length_bytes)?;
        writeln!(
            f,
            "key space {}, prefixed {}, compression {}",
            self.keyspace, self.prefixed, self.compression
        )?;
        let (oldest, newest) = self.sequence_numbers;
        writeln!(
            f,
            "{} versions, {} tombstones, writes {oldest} to {newest}, {} bytes before packing",
            self.versions, self.tombstones, self.raw_bytes
        )?;
        writeln!(f, "keys {} to {}", self.keys.0, self.keys.1)?;
        for (segment, bytes) in &self.segments {
            writeln!(f, "points at {bytes} bytes of segment {segment}")?;
        }
        for section in &self.sections {
            let kind = section.kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
            writeln!(
                f,
                "{:>10} {}{kind}, {} bytes, {:.2} bits per version",
                section.offset, section.name, section.length_bytes, section.bits_per_version
            )?;
        }
        for zone in &self.zones {
            writeln!(
                f,
                "zone {}, {} of {} bytes in {} runs",
                zone.number, zone.live_bytes, zone.length_bytes, zone.runs
            )?;
        }
        writeln!(
            f,
            "{} blocks in {} runs of {} bytes on average",
            self.blocks.len(),
            self.runs,
            self.mean_run_bytes
        )?;
        for block in
            self.blocks.iter().filter(|block| !block.rows.is_empty() || block.broken.is_some())
        {
            let zone = block.zone.map(|zone| format!(" of zone {zone}")).unwrap_or_default();
            writeln!(f, "{:>10} block{zone}, {} bytes", block.offset, block.length_bytes)?;
            for row in &block.rows {
                match row.value_bytes {
                    Some(len) => {
                        writeln!(
                            f,
                            "           put {} at {}, {len} bytes {}",
                            row.key, row.seq, row.value
                        )?;
                    }
                    None => writeln!(f, "           delete {} at {}", row.key, row.seq)?,
                }
            }
            if let Some(broken) = &block.broken {
                writeln!(f, "           {broken}")?;
            }
        }
        Ok(())
    }
}
