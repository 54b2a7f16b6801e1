//! One small example of every structure, the same on every run.

use bytes::Bytes;
use varve_format::EntryKind;
use varve_format::batch::{encode_batch_start, encode_branch_end, encode_delete, encode_put};
use varve_format::block::{Block, BlockBuilder, BlockCursor};
use varve_format::edit::{Change, SegmentMeta, TableMeta, VersionEdit, ZoneMeta};
use varve_format::filter::multi_level::{MultiLevelFilter, Prior, Widths};
use varve_format::filter::parent::ParentFilter;
use varve_format::filter::{FilterPolicy, SubLevel, filter_hash};
use varve_format::index::{Index, IndexPolicy};
use varve_format::log::{
    LogHeader, LogId, LogKind, PreviousLog, RecordKind, Stamp, encode_barrier, encode_record,
};
use varve_format::saved_map::{
    NumberedTable, SavedMap, encode_map, put_map_header, put_map_section,
};
use varve_format::section::{Compression, Handle, open_section};
use varve_format::segment::{SegmentBuilder, SegmentShare, ValuePointer};
use varve_format::table::{FOOTER_BYTES, Footer, TableBuilder, TableOptions, Zone};
use varve_types::{BranchId, FileNo, FileSalt, KeyspaceId, SeqNo, SublevelId};

/// The number of the file that each sample of a whole file stands in.
pub(crate) const FILE: FileNo = FileNo::new(0x0102_0304);
pub(crate) const SALT: FileSalt = FileSalt::new(FILE.get());

/// The number of the sample of a stitched table.
pub(crate) const STITCHED: FileNo = FileNo::new(0x0506_0708);
pub(crate) const STITCHED_SALT: FileSalt = FileSalt::new(0x0506_0708);

/// The log that the samples of records stand in.
pub(crate) const LOG: LogId = LogId { file: FILE, salt: 0xfedc_ba98_7654_3210 };

/// Appends a record where `log` ends.
fn append(log: &mut Vec<u8>, kind: RecordKind, external: bool, synced_len: u64, payload: &[u8]) {
    let offset = log.len() as u64;
    let stamp = Stamp { log: LOG, offset, kind, external, synced_len };
    encode_record(log, stamp, &[payload]);
}

pub(crate) fn log_header(kind: LogKind) -> LogHeader {
    let previous = Some(PreviousLog { file: FileNo::new(7), final_len: 8192 });
    LogHeader {
        kind,
        boot_id: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
        first_seq: SeqNo::new(40),
        previous,
        salt: LOG.salt,
    }
}

fn header_payload(kind: LogKind) -> Vec<u8> {
    let mut out = Vec::new();
    log_header(kind).encode(&mut out);
    out
}

pub(crate) fn batch() -> Vec<u8> {
    let mut out = Vec::new();
    encode_batch_start(&mut out, SeqNo::new(41), 3);
    encode_put(&mut out, KeyspaceId::new(1), b"the key", b"the value");
    encode_delete(&mut out, KeyspaceId::new(300), b"gone");
    encode_put(&mut out, KeyspaceId::new(2), b"", &[0xab; 200]);
    encode_branch_end(&mut out, BranchId::new(11));
    out
}

fn table_meta() -> TableMeta {
    TableMeta {
        file: FileNo::new(9),
        salt: FileSalt::new(0x0bad_cafe_1234_5678),
        size_bytes: 33_554_432,
        entries: 100_000,
        tombstones: 17,
        smallest_seq: SeqNo::new(1),
        largest_seq: SeqNo::new(99_999),
        seq_override: None,
        smallest_key: Bytes::from_static(b"\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\x01\0"),
        largest_key: Bytes::from_static(b"\0\0\0\0\0\0\0\x09\xff\xff\xff\xff\xff\xff\xff\0"),
        segments: vec![SegmentShare { segment: FileNo::new(11), bytes: 1 << 24 }],
        zones: vec![ZoneMeta {
            zone: Zone {
                file: FileNo::new(6),
                salt: FileSalt::new(0x1234_5678_0bad_cafe),
                size_bytes: 2_097_152,
            },
            live_bytes: 1_048_576,
            runs: 5,
        }],
        zones_at: Some(Handle { offset: 33_000_000, len: 60 }),
    }
}

pub(crate) fn edit() -> VersionEdit {
    let keyspace = KeyspaceId::new(1);
    let meta = table_meta();
    let taken_in = TableMeta {
        file: FileNo::new(10),
        smallest_seq: SeqNo::new(77),
        largest_seq: SeqNo::new(77),
        seq_override: Some(SeqNo::new(77)),
        ..meta.clone()
    };
    let changes = vec![
        Change::CreateKeyspace { keyspace, name: "meta".into(), prefixed: true, compressed: false },
        Change::CreateKeyspace {
            keyspace: KeyspaceId::new(2),
            name: "data".into(),
            prefixed: true,
            compressed: true,
        },
        Change::OldestLog(FileNo::new(8)),
        Change::NextFile(FileNo::new(12)),
        Change::LastSeq(SeqNo::new(99_999)),
        Change::AddSegment(SegmentMeta {
            file: FileNo::new(11),
            salt: FileSalt::new(0x0123_4567_89ab_cdef),
            size_bytes: 1 << 25,
        }),
        Change::AddTable { keyspace, level: 1, sublevel: SublevelId::new(0), meta },
        Change::AddTable { keyspace, level: 0, sublevel: SublevelId::new(10), meta: taken_in },
        Change::RemoveTable { keyspace, level: 0, file: FileNo::new(5) },
        Change::CreateSnapshot { name: "before the upgrade".into(), seq: SeqNo::new(90_000) },
        Change::DeleteSnapshot { name: "yesterday".into() },
        Change::CreateBranch {
            branch: BranchId::new(10),
            parent: None,
            seq: SeqNo::new(99_000),
            locking: true,
            info: Bytes::from_static(b"{}"),
        },
        later_branch(),
        Change::CreateBranchSpace {
            branch: BranchId::new(11),
            base: keyspace,
            keyspace: KeyspaceId::of_branch(6),
            private: true,
        },
        Change::EndBranch(BranchId::new(4)),
        Change::NewestLog(FileNo::new(9)),
    ];
    VersionEdit { changes }
}

/// A branch over another.
fn later_branch() -> Change {
    let (branch, parent) = (BranchId::new(11), Some(BranchId::new(10)));
    Change::CreateBranch {
        branch,
        parent,
        seq: SeqNo::new(99_998),
        locking: false,
        info: Bytes::new(),
    }
}

pub(crate) fn edit_payload() -> Vec<u8> {
    let mut out = Vec::new();
    edit().encode(&mut out);
    out
}

pub(crate) fn wal() -> Vec<u8> {
    let mut log = Vec::new();
    append(&mut log, RecordKind::Header, false, 0, &header_payload(LogKind::Wal));
    append(&mut log, RecordKind::Batch, false, 0, &batch());
    let synced_len = log.len() as u64;
    append(&mut log, RecordKind::Marker, false, synced_len, b"");
    append(&mut log, RecordKind::Batch, true, synced_len, &batch());
    append(&mut log, RecordKind::Barrier, false, synced_len, &encode_barrier(SeqNo::new(43)));
    append(&mut log, RecordKind::CloseClean, false, synced_len, b"");
    log
}

pub(crate) fn manifest() -> Vec<u8> {
    let mut log = Vec::new();
    append(&mut log, RecordKind::Header, false, 0, &header_payload(LogKind::Manifest));
    append(&mut log, RecordKind::Edit, false, 72, &edit_payload());
    let synced_len = log.len() as u64;
    append(&mut log, RecordKind::Marker, false, synced_len, b"");
    log
}

/// The versions of the sample tables and of the sample block.
pub(crate) fn versions(count: u64) -> Vec<(Vec<u8>, SeqNo, EntryKind, Vec<u8>)> {
    let mut versions = Vec::new();
    for i in 0..count {
        let key = [(1 + i / 20).to_be_bytes(), ((i % 20) << 40).to_be_bytes()].concat();
        for back in 0..=(i % 3) {
            let seq = SeqNo::new(1000 + i - 100 * back);
            let deleted = i % 7 == 2 && back == 0;
            let kind = if deleted { EntryKind::Delete } else { EntryKind::Put };
            let len = if deleted { 0 } else { (i * 11 % 97) as usize };
            let value = b"layer of sediment ".iter().copied().cycle().take(len).collect();
            versions.push((key.clone(), seq, kind, value));
        }
    }
    versions
}

/// A block whose entries have lengths of their own, and one whose keys have one length.
pub(crate) fn blocks() -> [Vec<u8>; 2] {
    [BlockBuilder::new(), BlockBuilder::for_keys_of(16)].map(block)
}

fn block(mut builder: BlockBuilder) -> Vec<u8> {
    for (key, seq, kind, value) in versions(30) {
        assert!(builder.add(&key, seq, kind, &value, usize::MAX));
    }
    builder.finish().to_vec()
}

pub(crate) fn table(compression: Compression) -> Vec<u8> {
    table_with(TableOptions { compression, ..options() }, 90)
}

/// The values of the sample segment: longer and longer.
pub(crate) fn values() -> impl Iterator<Item = Vec<u8>> {
    (0..20).map(|i| b"layer of sediment ".iter().copied().cycle().take(i * i * 4).collect())
}

/// A segment of [`values`], and where they stand.
pub(crate) fn segment(compression: Compression) -> (Vec<u8>, Vec<ValuePointer>) {
    let mut builder = SegmentBuilder::new(SALT, compression);
    let pointers = values()
        .map(|value| ValuePointer { segment: FILE, handle: builder.add(&value).unwrap() })
        .collect();
    (builder.output().to_vec(), pointers)
}

/// A table whose rows point into the sample segment.
pub(crate) fn separated_table() -> Vec<u8> {
    let mut builder = TableBuilder::new(options(), FILE, SALT);
    for ((key, seq, ..), pointer) in versions(20).iter().zip(segment(Compression::None).1) {
        let mut row = Vec::new();
        pointer.encode(&mut row);
        builder.add(key, *seq, EntryKind::Separated, &row).unwrap();
    }
    builder.finish().unwrap().0
}

/// A table with an index that needs whole pages.
pub(crate) fn paged_table(index: IndexPolicy) -> Vec<u8> {
    table_with(TableOptions { index, block_bytes: 4096, ..options() }, 900)
}

/// A table with filters of this kind.
pub(crate) fn filtered_table(filter: FilterPolicy) -> Vec<u8> {
    table_with(TableOptions { filter, ..options() }, 90)
}

/// The policies of the filters that a table may have.
pub(crate) const FILTERS: [FilterPolicy; 4] = [
    FilterPolicy::Bloom { bits_per_key: 10 },
    FilterPolicy::Cuckoo { fingerprint_bits: 12 },
    FilterPolicy::Quotient { remainder_bits: 8 },
    FilterPolicy::Fuse { fingerprint_bits: 8 },
];

/// The sample table again, of which only every third block is in this file, the others in the file that
/// [`table`] made.
pub(crate) fn stitched_table() -> Vec<u8> {
    let old = Bytes::from(paged_table(IndexPolicy::EliasFano));
    let footer_at = old.len() - FOOTER_BYTES;
    let footer = Footer::decode(&old[footer_at..], SALT, footer_at as u64).unwrap();
    let section = |handle: Handle| {
        let range = handle.offset as usize..handle.end() as usize;
        open_section(&old.slice(range), SALT, handle.offset).unwrap()
    };
    let index = section(footer.index);
    let index = Index::decode(footer.index_policy, &index, footer.data_end()).unwrap();
    let options = TableOptions { index: IndexPolicy::EliasFano, block_bytes: 4096, ..options() };
    let zone = Zone { file: FILE, salt: SALT, size_bytes: old.len() as u64 };
    let mut builder = TableBuilder::new(options, STITCHED, STITCHED_SALT);
    for block_no in 0..index.block_count() {
        let handle = index.handle(block_no).unwrap();
        let block = Block::parse(section(handle)).unwrap();
        assert!(options.may_stitch(handle));
        if block_no % 3 != 1 {
            builder.stitch(zone, handle, &block).unwrap();
            continue;
        }
        let mut cursor = BlockCursor::new(block);
        cursor.seek_first().unwrap();
        while cursor.valid() {
            let (key, seq, kind) = (cursor.key(), cursor.seq(), cursor.kind());
            builder.add(key, seq, kind, &cursor.value()).unwrap();
            cursor.next().unwrap();
        }
    }
    builder.finish().unwrap().0
}

fn options() -> TableOptions {
    TableOptions {
        keyspace: KeyspaceId::new(1),
        prefixed: true,
        block_bytes: 1024,
        compression: Compression::None,
        index: IndexPolicy::Plain,
        filter: FilterPolicy::Bloom { bits_per_key: 10 },
        cut_after_prefix_bytes: 0,
    }
}

fn table_with(options: TableOptions, rows: u64) -> Vec<u8> {
    let mut builder = TableBuilder::new(options, FILE, SALT);
    for (key, seq, kind, value) in versions(rows) {
        builder.add(&key, seq, kind, &value).unwrap();
    }
    builder.finish().unwrap().0
}

/// A map of two sub-levels with a key kept whole, and its tables.
pub(crate) fn saved_map() -> SavedMap {
    let widths = Widths { fingerprint_bits: 12, level_bits: 6 };
    let mut keys = MultiLevelFilter::new(100, widths);
    let mut prefixes = ParentFilter::new(20, 12, 48);
    let number = |at: u8| SubLevel::new(at).unwrap();
    for row in 0..80u64 {
        let key = [(row / 10).to_be_bytes(), row.to_be_bytes()].concat();
        let level = number(1 + (row % 2) as u8 * 47);
        keys.insert(&key, filter_hash(&key), level, Prior::Absent);
        prefixes.insert(filter_hash(&key[..8]), level);
    }
    // Blind: whether the fingerprint is its own is not known.
    let first = [0u64.to_be_bytes(), 0u64.to_be_bytes()].concat();
    keys.insert(&first, filter_hash(&first), number(48), Prior::Unknown);
    assert_eq!(keys.secondary_keys(), 1);
    let table = |file: u64, at: u8, key: &'static [u8]| NumberedTable {
        file: FileNo::new(file),
        salt: FileSalt::new(file << 40 | 7),
        smallest_key: Bytes::from_static(key),
        number: number(at),
    };
    let tables = vec![table(31, 1, b"a"), table(300, 48, b""), table(301, 48, b"z")];
    SavedMap { keyspace: KeyspaceId::new(2), tables, keys, prefixes: Some(prefixes) }
}

/// The content of its section.
pub(crate) fn saved_map_content() -> Vec<u8> {
    let SavedMap { keyspace, tables, keys, prefixes } = saved_map();
    let mut out = Vec::new();
    encode_map(&mut out, keyspace, &tables, &keys, prefixes.as_ref());
    out
}

/// A file with it.
pub(crate) fn map_file() -> Vec<u8> {
    let mut file = Vec::new();
    put_map_header(&mut file, SALT);
    let offset = file.len() as u64;
    let encode = |out: &mut Vec<u8>| out.extend_from_slice(&saved_map_content());
    put_map_section(&mut file, SALT, offset, encode).unwrap();
    file
}
