//! Bytes written by the first version of the format must be written, and read, for ever.
//!
//! `VARVE_BLESS=1 cargo test -p varve-format` rewrites the files: only for a new version of the format,
//! in a folder of its own.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use varve_format::EntryKind;
use varve_format::batch::decode_batch;
use varve_format::block::{Block, BlockCursor};
use varve_format::edit::VersionEdit;
use varve_format::filter::{Filter, filter_hash};
use varve_format::index::{Index, IndexPolicy};
use varve_format::log::{
    BARRIER_BYTES, LogHeader, LogKind, LogReader, NextRecord, RecordKind, decode_barrier,
};
use varve_format::saved_map::{MAP_HEADER_BYTES, map_at, map_salt};
use varve_format::section::{Compression, Handle, open_section};
use varve_format::segment::{SEGMENT_HEADER_BYTES, SegmentShare, ValuePointer, segment_salt};
use varve_format::table::{FOOTER_BYTES, Footer, Properties, Zones};
use varve_types::SeqNo;

use crate::sample::{self, FILE, SALT, STITCHED_SALT};

/// The golden file called `name`, after writing it if blessing was asked for.
#[allow(clippy::disallowed_methods, reason = "golden files are on the machine's disk")]
fn golden(name: &str, encoded: &[u8]) -> Bytes {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1").join(name);
    if std::env::var_os("VARVE_BLESS").is_some() {
        std::fs::write(&path, encoded).unwrap();
    }
    Bytes::from(std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

fn records(bytes: Bytes) -> Vec<varve_format::log::Record> {
    let mut reader = LogReader::new(bytes, FILE);
    let mut records = Vec::new();
    loop {
        match reader.next_record() {
            NextRecord::Record(record) => records.push(record),
            NextRecord::End => return records,
            NextRecord::Bad { offset, why } => panic!("at {offset}: {why}"),
        }
    }
}

#[test]
fn write_ahead_log() {
    let bytes = golden("log.wal", &sample::wal());
    assert_eq!(bytes, sample::wal());
    let records = records(bytes);
    let kinds: Vec<RecordKind> = records.iter().map(|record| record.kind).collect();
    use RecordKind::{Barrier, Batch, CloseClean, Header, Marker};
    assert_eq!(kinds, [Header, Batch, Marker, Batch, Barrier, CloseClean]);
    assert_eq!(LogHeader::decode(&records[0].payload), Ok(sample::log_header(LogKind::Wal)));
    assert_eq!(records[2].synced_len, records[2].offset);
    assert_eq!(records[4].payload.len(), BARRIER_BYTES);
    assert_eq!(decode_barrier(&records[4].payload), SeqNo::new(43));
    assert!(records[3].external && !records[1].external);
    let batch = decode_batch(&records[1].payload).unwrap();
    assert_eq!(batch.first_seq, SeqNo::new(41));
    assert_eq!(batch.writes.len(), 3);
    assert_eq!(batch.writes[0].key.as_ref(), b"the key");
    assert_eq!(batch.writes[0].value.as_deref(), Some(&b"the value"[..]));
    assert_eq!(batch.writes[1].value, None);
}

#[test]
fn manifest() {
    let bytes = golden("manifest.log", &sample::manifest());
    assert_eq!(bytes, sample::manifest());
    let records = records(bytes);
    assert_eq!(LogHeader::decode(&records[0].payload), Ok(sample::log_header(LogKind::Manifest)));
    assert_eq!(VersionEdit::decode(&records[1].payload), Ok(sample::edit()));
    assert_eq!(records[2].kind, RecordKind::Marker);
    assert_eq!(records[2].synced_len, records[2].offset);
}

#[test]
fn table() {
    let encoded = sample::table(Compression::None);
    let bytes = golden("plain.table", &encoded);
    assert_eq!(bytes, encoded);
    check_table(&bytes, Compression::None, 90);
    let properties = properties_of(&bytes);
    assert_eq!(properties.newest.len() as u64, properties.blocks);
    assert_eq!(properties.newest.iter().max(), Some(&properties.largest_seq));
}

/// Earlier versions of this program did not say how new the blocks are.
#[test]
fn table_without_the_newest_of_its_blocks() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1/plain-without-newest.table");
    #[allow(clippy::disallowed_methods, reason = "golden files are on the machine's disk")]
    let bytes = Bytes::from(std::fs::read(path).unwrap());
    check_table(&bytes, Compression::None, 90);
    assert_eq!(properties_of(&bytes).newest, []);
}

/// The properties of a table with the salt of the samples.
fn properties_of(bytes: &Bytes) -> Properties {
    let at = bytes.len() - FOOTER_BYTES;
    let footer = Footer::decode(&bytes[at..], SALT, at as u64).unwrap();
    Properties::decode(&section_of(bytes, SALT, footer.properties)).unwrap()
}

#[test]
fn paged_tables() {
    for index in [IndexPolicy::EliasFano, IndexPolicy::ThreeLevel] {
        let encoded = sample::paged_table(index);
        let bytes = golden(&format!("{}.table", index.name()), &encoded);
        assert_eq!(bytes, encoded);
        check_table(&bytes, Compression::None, 900);
    }
}

/// The content of the section of `bytes`, which are the file with this salt, at `handle`.
fn section_of(bytes: &Bytes, salt: varve_types::FileSalt, handle: Handle) -> Bytes {
    open_section(&bytes.slice(handle.offset as usize..handle.end() as usize), salt, handle.offset)
        .unwrap()
}

#[test]
fn stitched_table() {
    let encoded = sample::stitched_table();
    let bytes = golden("stitched.table", &encoded);
    assert_eq!(bytes, encoded);
    let old = Bytes::from(sample::paged_table(IndexPolicy::EliasFano));
    let at = bytes.len() - FOOTER_BYTES;
    let footer = Footer::decode(&bytes[at..], STITCHED_SALT, at as u64).unwrap();
    let content = section_of(&bytes, STITCHED_SALT, footer.zones.unwrap());
    let zones = Zones::decode(&content, footer.data_end()).unwrap();
    let content = section_of(&bytes, STITCHED_SALT, footer.index);
    let index = Index::decode(footer.index_policy, &content, zones.data_bytes()).unwrap();
    let (mut read, mut own_blocks) = (Vec::new(), 0);
    for block in 0..index.block_count() {
        let (zone, handle) = zones.place(index.handle(block).unwrap()).unwrap();
        own_blocks += usize::from(zone == 0);
        let (salt, bytes) = if zone == 0 { (STITCHED_SALT, &bytes) } else { (SALT, &old) };
        let mut cursor = BlockCursor::new(Block::parse(section_of(bytes, salt, handle)).unwrap());
        cursor.seek_first().unwrap();
        while cursor.valid() {
            let value = cursor.value().to_vec();
            read.push((cursor.key().to_vec(), cursor.seq(), cursor.kind(), value));
            cursor.next().unwrap();
        }
    }
    assert_eq!(read, sample::versions(900));
    assert!(own_blocks > 0 && own_blocks * 2 < index.block_count());
    let filter =
        Filter::decode(&section_of(&bytes, STITCHED_SALT, footer.filter.unwrap())).unwrap();
    assert!(read.iter().all(|(key, ..)| filter.may_contain(filter_hash(key))));
}

#[test]
fn filtered_tables() {
    for filter in sample::FILTERS.into_iter().skip(1) {
        let encoded = sample::filtered_table(filter);
        let at = encoded.len() - FOOTER_BYTES;
        let kind = Footer::decode(&encoded[at..], SALT, at as u64).unwrap().filter_kind;
        let bytes = golden(&format!("{}.table", kind.name()), &encoded);
        assert_eq!(bytes, encoded);
        check_table(&bytes, Compression::None, 90);
    }
}

#[test]
fn segment() {
    let (encoded, pointers) = sample::segment(Compression::None);
    let bytes = golden("plain.seg", &encoded);
    assert_eq!(bytes, encoded);
    check_segment(&bytes, &pointers);
    let separated = sample::separated_table();
    let table = golden("separated.table", &separated);
    assert_eq!(table, separated);
    let section = |handle: Handle| {
        let range = handle.offset as usize..handle.end() as usize;
        open_section(&table.slice(range), SALT, handle.offset).unwrap()
    };
    let at = table.len() - FOOTER_BYTES;
    let footer = Footer::decode(&table[at..], SALT, at as u64).unwrap();
    let properties = Properties::decode(&section(footer.properties)).unwrap();
    let bytes = pointers.iter().map(ValuePointer::record_bytes).sum();
    assert_eq!(properties.segments, [SegmentShare { segment: FILE, bytes }]);
    let index = Index::decode(footer.index_policy, &section(footer.index), footer.data_end());
    let first = Block::parse(section(index.unwrap().handle(0).unwrap())).unwrap();
    let (key, seq, ..) = &sample::versions(20)[0];
    let found = first.get(key, *seq).unwrap().unwrap();
    assert_eq!(found.kind, EntryKind::Separated);
    assert_eq!(ValuePointer::decode(&found.value), Ok(pointers[0]));
}

#[test]
fn map_file() {
    let encoded = sample::map_file();
    let bytes = golden("maps.map", &encoded);
    assert_eq!(bytes, encoded);
    assert_eq!(map_salt(&bytes[..MAP_HEADER_BYTES]), Ok(SALT));
    let (map, end) = map_at(&bytes, SALT, MAP_HEADER_BYTES).unwrap();
    assert_eq!((map, end), (sample::saved_map(), bytes.len()));
    for bit in 0..MAP_HEADER_BYTES * 8 {
        let mut header = bytes[..MAP_HEADER_BYTES].to_vec();
        header[bit / 8] ^= 1 << (bit % 8);
        assert!(map_salt(&header).is_err(), "bit {bit}");
    }
}

fn check_segment(bytes: &Bytes, pointers: &[ValuePointer]) {
    assert_eq!(segment_salt(&bytes[..SEGMENT_HEADER_BYTES]), Ok(SALT));
    for (value, ValuePointer { handle, .. }) in sample::values().zip(pointers) {
        let section = bytes.slice(handle.offset as usize..handle.end() as usize);
        assert_eq!(open_section(&section, SALT, handle.offset).unwrap(), value);
    }
}

/// What a compressor makes of some bytes may change with its version, so only reading is fixed.
#[test]
fn compressed_segment() {
    let (encoded, pointers) = sample::segment(Compression::Lz4);
    check_segment(&golden("lz4.seg", &encoded), &pointers);
}

/// As [`compressed_segment`].
#[test]
fn compressed_table() {
    check_table(&golden("lz4.table", &sample::table(Compression::Lz4)), Compression::Lz4, 90);
}

fn check_table(bytes: &Bytes, compression: Compression, rows: u64) {
    let section = |handle: Handle| {
        let range = handle.offset as usize..handle.end() as usize;
        open_section(&bytes.slice(range), SALT, handle.offset).unwrap()
    };
    let footer_at = bytes.len() - FOOTER_BYTES;
    let footer = Footer::decode(&bytes[footer_at..], SALT, footer_at as u64).unwrap();
    let properties = Properties::decode(&section(footer.properties)).unwrap();
    let index =
        Index::decode(footer.index_policy, &section(footer.index), footer.data_end()).unwrap();
    let keys = Filter::decode(&section(footer.filter.unwrap())).unwrap();
    let prefixes = Filter::decode(&section(footer.prefix_filter.unwrap())).unwrap();
    let versions = sample::versions(rows);
    let mut read = Vec::new();
    for block in 0..index.block_count() {
        let block = Block::parse(section(index.handle(block).unwrap())).unwrap();
        let mut cursor = BlockCursor::new(block);
        cursor.seek_first().unwrap();
        while cursor.valid() {
            let value = cursor.value().to_vec();
            read.push((cursor.key().to_vec(), cursor.seq(), cursor.kind(), value));
            cursor.next().unwrap();
        }
    }
    assert_eq!(read, versions);
    for (key, ..) in &versions {
        assert!(keys.may_contain(filter_hash(key)));
        assert!(prefixes.may_contain(filter_hash(&key[..8])));
    }
    assert_eq!(properties.entries, versions.len() as u64);
    assert_eq!(properties.compression, compression);
    assert!(index.block_count() > 3);
}
