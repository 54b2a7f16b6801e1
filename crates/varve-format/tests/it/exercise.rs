//! Each decoder on arbitrary bytes: it must not panic, must end, and what it accepts must hold
//! together. The mutation tests and the fuzz targets call the same functions.

use std::cmp::Ordering;

use bytes::Bytes;
use varve_format::batch::{
    decode_batch, encode_batch_start, encode_branch_end, encode_delete, encode_put,
};
use varve_format::block::{Block, BlockCursor, internal_cmp};
use varve_format::edit::VersionEdit;
use varve_format::filter::multi_level::Prior;
use varve_format::filter::{Filter, SubLevel, filter_hash};
use varve_format::index::{Index, IndexPolicy};
use varve_format::log::{HEADER_BYTES, LogHeader, LogReader, NextRecord, encoded_len, resync};
use varve_format::saved_map::{MAP_HEADER_BYTES, SavedMap, encode_map, map_at, map_salt};
use varve_format::section::{Handle, SECTION_BYTES_MAX, open_section};
use varve_format::section_search::SectionSearch;
use varve_format::segment::{
    RECORD_PREFIX_BYTES, SEGMENT_HEADER_BYTES, ValuePointer, record_at, segment_salt,
};
use varve_format::table::{FOOTER_BYTES, Footer, Properties, Zones};
use varve_types::{FileNo, FileSalt, SeqNo};

/// The number of the file that arbitrary bytes are taken to come from.
pub(crate) const FILE: FileNo = FileNo::new(0x0102_0304);
const SALT: FileSalt = FileSalt::new(FILE.get());

/// A log, as it is and with the checksums put right.
pub(crate) fn log(data: &[u8]) {
    check_log(data);
    check_log(&with_checksums(data));
}

/// A log's records, up to the first bad one and after it.
fn check_log(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let mut reader = LogReader::new(bytes.clone(), FILE);
    let mut records = Vec::new();
    let end = loop {
        match reader.next_record() {
            NextRecord::Record(record) => records.push(record),
            NextRecord::End => break data.len() as u64,
            NextRecord::Bad { offset, why } => {
                assert!(why.offset >= offset);
                break offset;
            }
        }
    };
    assert_eq!(records.last().map_or(0, |record| record.end()), end);
    let found: Vec<_> = resync(bytes, reader.log(), 0).collect();
    assert!(found.starts_with(&records), "a search finds what reading finds, and maybe more");
}

/// The log with the checksum of every record put right, as far as the lengths lead.
fn with_checksums(data: &[u8]) -> Vec<u8> {
    let mut log = data.to_vec();
    let header = data.get(HEADER_BYTES..).and_then(|rest| rest.get(..54));
    let salt = header.and_then(|header| LogHeader::decode(header).ok()).map_or(0, |h| h.salt);
    let mut start = 0;
    while let Some(header) = log.get(start..start + HEADER_BYTES) {
        let payload_len = u32::from_le_bytes(header[4..8].try_into().unwrap()) as usize;
        let end = start + HEADER_BYTES + payload_len;
        let Some(covered) = log.get(start + 4..end) else { break };
        let crc = salted_crc(if start == 0 { 0 } else { salt }, start as u64, covered);
        log[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        start += encoded_len(payload_len);
    }
    log
}

/// The payload of a log's header.
pub(crate) fn log_header(data: &[u8]) {
    if let Ok(header) = LogHeader::decode(data) {
        let mut out = Vec::new();
        header.encode(&mut out);
        assert_eq!(LogHeader::decode(&out), Ok(header));
    }
}

/// The payload of a batch: what is accepted is written back as it was.
pub(crate) fn batch(data: &[u8]) {
    let payload = Bytes::copy_from_slice(data);
    let Ok(batch) = decode_batch(&payload) else { return };
    let mut out = Vec::new();
    encode_batch_start(&mut out, batch.first_seq, batch.writes.len() as u32);
    for write in &batch.writes {
        match &write.value {
            Some(value) => encode_put(&mut out, write.keyspace, &write.key, value),
            None => encode_delete(&mut out, write.keyspace, &write.key),
        }
    }
    batch.ends.iter().for_each(|branch| encode_branch_end(&mut out, *branch));
    assert_eq!(out, data);
}

/// The payload of a manifest edit: what is accepted is written back as it was.
pub(crate) fn edit(data: &[u8]) {
    let Ok(edit) = VersionEdit::decode(data) else { return };
    let mut out = Vec::new();
    edit.encode(&mut out);
    assert_eq!(out, data);
}

/// A block's content.
pub(crate) fn block(data: &[u8]) {
    let Ok(block) = Block::parse(Bytes::copy_from_slice(data)) else { return };
    let checked = block.check();
    let mut cursor = BlockCursor::new(block.clone());
    let mut forward = Vec::new();
    let mut result = cursor.seek_first();
    while result.is_ok() && cursor.valid() {
        forward.push((cursor.key().to_vec(), cursor.seq(), cursor.value()));
        result = cursor.next();
    }
    let mut backward = Vec::new();
    let mut result = cursor.seek_last();
    while result.is_ok() && cursor.valid() {
        backward.push((cursor.key().to_vec(), cursor.seq(), cursor.value()));
        result = cursor.prev();
    }
    for (key, seq, value) in forward.iter().take(64) {
        let found = block.get(key, *seq);
        let sought = cursor.seek(key, *seq);
        let _ = (block.get(key, SeqNo::MAX), cursor.seek(data, *seq));
        if checked.is_ok() {
            assert_eq!(found.unwrap().map(|found| found.value).as_ref(), Some(value));
            assert_eq!(sought, Ok(()));
        }
    }
    if checked.is_ok() {
        assert_eq!(checked, Ok(forward.len() as u64));
        let ascending = |pair: &[(Vec<u8>, SeqNo, Bytes)]| {
            internal_cmp((&pair[0].0, pair[0].1), (&pair[1].0, pair[1].1)) == Ordering::Less
        };
        assert!(forward.windows(2).all(ascending));
        backward.reverse();
        assert_eq!(forward, backward);
    }
}

/// A section as it stands in a file.
pub(crate) fn section(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let _ = open_section(&bytes, SALT, 0);
    let sealed = Bytes::from(seal(data));
    if let Ok(content) = open_section(&sealed, SALT, 0) {
        assert!(content.len() <= data.len().saturating_mul(255));
    }
}

/// The data with the checksum of a section at offset 0 after it, so that what lies behind the
/// checksum is reached.
fn seal(data: &[u8]) -> Vec<u8> {
    let crc = placed_crc(0, data);
    [data, &crc.to_le_bytes()].concat()
}

fn placed_crc(offset: u64, data: &[u8]) -> u32 {
    salted_crc(0, offset, data)
}

fn salted_crc(salt: u64, offset: u64, data: &[u8]) -> u32 {
    crc_of(FILE.get() ^ salt, offset, data)
}

fn crc_of(file: u64, offset: u64, data: &[u8]) -> u32 {
    let place = [file.to_le_bytes(), offset.to_le_bytes()].concat();
    crc32c::crc32c_append(crc32c::crc32c(&place), data)
}

/// A table's footer, as it is and with its checksum and magic put right.
pub(crate) fn footer(data: &[u8]) {
    let offset = 1 << 20;
    let check = |bytes: &[u8]| {
        if let Ok(footer) = Footer::decode(bytes, SALT, offset) {
            assert!(footer.data_end() <= offset);
            assert!(footer.sections().all(|(_, handle)| handle.end() <= offset));
        }
    };
    check(data);
    if data.len() >= FOOTER_BYTES - 12 {
        let fields = &data[..FOOTER_BYTES - 12];
        let crc = placed_crc(offset, fields).to_le_bytes();
        check(&[fields, &crc, b"varvetbl"].concat());
    }
}

/// An index section's content, as that of each kind of index.
pub(crate) fn index(data: &[u8]) {
    for policy in [IndexPolicy::Plain, IndexPolicy::EliasFano, IndexPolicy::ThreeLevel] {
        index_of(policy, data);
    }
}

fn index_of(policy: IndexPolicy, data: &[u8]) {
    let data_end = 1 << 30;
    let Ok(index) = Index::decode(policy, data, data_end) else { return };
    assert!(index.memory_bytes() <= 1024 + data.len() * 16);
    let mut end = 0;
    for block in 0..index.block_count().min(10_000) {
        let handle = index.handle(block).unwrap();
        assert!(handle.offset >= end && handle.end() <= data_end);
        end = handle.end();
    }
    for key in data.chunks(7).chain(data.windows(16).step_by(5)) {
        for seq in [SeqNo::MAX, SeqNo::ZERO] {
            let (found, sought) = (index.find(key, seq), index.seek(key, seq));
            let Some((found, sought)) = found.zip(sought) else { continue };
            assert!(found.start() <= found.end() && *sought.end() < index.block_count());
            assert!(sought.start() <= found.start() && found.end() <= sought.end());
        }
        let number = |seq| index.seek(key, seq).map_or(index.block_count(), |found| *found.start());
        assert!(number(SeqNo::MAX) <= number(SeqNo::ZERO), "older versions stand in later blocks");
    }
}

/// A filter section's content.
pub(crate) fn filter(data: &[u8]) {
    let Ok(filter) = Filter::decode(data) else { return };
    for key in data.chunks(7) {
        let _ = filter.may_contain(filter_hash(key));
    }
    assert!(filter.memory_bytes() <= 1024 + data.len());
}

/// A list of zones: what is accepted is written back as it was, and names only places within its files.
pub(crate) fn zones(data: &[u8]) {
    let own_end = 1 << 20;
    let Ok(zones) = Zones::decode(data, own_end) else { return };
    let mut out = Vec::new();
    zones.encode(&mut out);
    assert_eq!(out, data);
    assert!(zones.memory_bytes() <= 1024 + data.len() * 24);
    for offset in data.iter().map(|byte| u64::from(*byte) << 9) {
        let Some((zone, place)) = zones.place(Handle { offset, len: 512 }) else { continue };
        let end = zone.checked_sub(1).map_or(own_end, |zone| zones.zones()[zone].size_bytes);
        assert!(place.end() <= end);
    }
    assert!(zones.metas().iter().all(|meta| meta.runs > 0));
}

/// A segment, and the bytes as a pointer into one: what is accepted is written back as it was.
pub(crate) fn segment(data: &[u8]) {
    if let Ok(pointer) = ValuePointer::decode(data) {
        let mut out = Vec::new();
        pointer.encode(&mut out);
        assert_eq!(out, data);
        assert!(pointer.record_bytes() <= u64::from(SECTION_BYTES_MAX) + 4);
    }
    let (header, end) = (data.get(..SEGMENT_HEADER_BYTES), data.len() as u64);
    let salt = header.and_then(|header| segment_salt(header).ok()).unwrap_or(SALT);
    let bytes = Bytes::copy_from_slice(data);
    let mut at = SEGMENT_HEADER_BYTES;
    while let Some(prefix) = data.get(at..).and_then(|rest| rest.get(..RECORD_PREFIX_BYTES)) {
        let Ok(handle) = record_at(prefix, at as u64, end) else { break };
        assert!(handle.offset > at as u64 && handle.end() <= end);
        at = handle.end() as usize;
        let _ = open_section(&bytes.slice(handle.offset as usize..at), salt, handle.offset);
    }
}

/// A file of maps, as it is and with its checksums put right.
pub(crate) fn map_file(data: &[u8]) {
    check_map_file(data);
    check_map_file(&with_map_checksums(data));
}

/// The maps of a file, up to the first bad one, as a store reads them.
fn check_map_file(data: &[u8]) {
    let header = data.get(..MAP_HEADER_BYTES).unwrap_or(data);
    let Ok(salt) = map_salt(header) else { return };
    let (bytes, mut at) = (Bytes::copy_from_slice(data), MAP_HEADER_BYTES);
    while at < data.len() {
        match map_at(&bytes, salt, at) {
            Ok((map, end)) => {
                assert!(end > at && end <= data.len());
                check_saved_map(map);
                at = end;
            }
            Err(error) => {
                assert!(error.offset >= at as u64);
                return;
            }
        }
    }
}

/// The file with the checksums of its header and of every section put right, as far as the lengths lead.
fn with_map_checksums(data: &[u8]) -> Vec<u8> {
    let mut file = data.to_vec();
    let Some(header) = file.get_mut(..MAP_HEADER_BYTES) else { return file };
    let (fields, stored) = header.split_at_mut(MAP_HEADER_BYTES - 4);
    let salt = u64::from_le_bytes(fields[MAP_HEADER_BYTES - 12..].try_into().unwrap());
    stored.copy_from_slice(&crc_of(salt, 0, fields).to_le_bytes());
    let mut at = MAP_HEADER_BYTES;
    while let Some(prefix) = file.get(at..).and_then(|rest| rest.get(..RECORD_PREFIX_BYTES)) {
        let Ok(handle) = record_at(prefix, at as u64, file.len() as u64) else { break };
        let (start, end) = (handle.offset as usize, handle.end() as usize);
        let Some(crc_at) = end.checked_sub(4).filter(|crc_at| *crc_at >= start) else { break };
        let crc = crc_of(salt, handle.offset, &file[start..crc_at]);
        file[crc_at..end].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
    file
}

/// Data in which a section that nothing says the length of is looked for: as they are, and with one that stands at an offset.
pub(crate) fn lost_section(data: &[u8]) {
    const BEFORE: usize = 24;
    let find = |bytes: &[u8], offset| {
        let search = SectionSearch::new(Bytes::copy_from_slice(bytes), SALT, 0);
        search.find(offset, |handle, found| Some((handle, found)))
    };
    for offset in [0, data.len() as u64 / 2, data.len() as u64, u64::MAX] {
        if let Some((handle, _)) = find(data, offset) {
            assert!(handle.offset == offset && handle.end() <= data.len() as u64);
        }
    }
    let crc = placed_crc(BEFORE as u64, data);
    let file = [&[0x5a; BEFORE][..], data, &crc.to_le_bytes(), &[0x5a; 9]].concat();
    let section = Bytes::from(file.clone()).slice(BEFORE..BEFORE + data.len() + 4);
    let found = find(&file, BEFORE as u64);
    if let Ok(content) = open_section(&section, SALT, BEFORE as u64) {
        let (handle, found) = found.expect("a sound section is found");
        // Unless what stands before its end passes for one.
        if handle.len as usize == section.len() {
            assert_eq!(found, content);
        }
    }
}

/// The content of a section of a file of maps: what is accepted is written back as it was, and answers.
pub(crate) fn saved_map(data: &[u8]) {
    let Ok(map) = SavedMap::decode(data) else { return };
    let SavedMap { keyspace, tables, keys, prefixes } = &map;
    let mut out = Vec::new();
    encode_map(&mut out, *keyspace, tables, keys, prefixes.as_ref());
    assert_eq!(out, data);
    assert!(keys.used() <= data.len() * 2);
    assert!(keys.memory_bytes() <= 1024 + data.len() * 40);
    for key in data.chunks(16) {
        let _ = keys.lookup(key, filter_hash(key));
        let _ = prefixes.as_ref().map(|prefixes| prefixes.lookup(filter_hash(key)));
    }
    check_saved_map(map);
}

/// What was read can be changed on.
fn check_saved_map(SavedMap { tables, mut keys, .. }: SavedMap) {
    tables.iter().for_each(|table| keys.forget(table.number));
    let number = SubLevel::new(1).unwrap();
    keys.insert(b"a key that comes later", filter_hash(b"a"), number, Prior::Unknown);
    assert!(keys.lookup(b"a key that comes later", filter_hash(b"a")).contains(number));
}

/// A properties section's content.
pub(crate) fn properties(data: &[u8]) {
    let _ = Properties::decode(data);
}
