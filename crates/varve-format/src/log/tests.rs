//! Records come back, and nothing else does.

use bytes::Bytes;
use varve_types::{FileNo, SeqNo};

use super::*;

const FILE: FileNo = FileNo::new(9);
const LOG: LogId = LogId { file: FILE, salt: 0x5a5a_0000_1111_2222 };

fn stamp(offset: usize, kind: RecordKind, synced_len: u64) -> Stamp {
    Stamp { log: LOG, offset: offset as u64, kind, external: kind == RecordKind::Batch, synced_len }
}

fn header() -> LogHeader {
    let (kind, salt) = (LogKind::Wal, LOG.salt);
    LogHeader { kind, boot_id: 1, first_seq: SeqNo::new(1), previous: None, salt }
}

fn header_payload() -> Vec<u8> {
    let mut out = Vec::new();
    header().encode(&mut out);
    out
}

fn three_records() -> Vec<u8> {
    let mut out = Vec::new();
    encode_record(&mut out, stamp(0, RecordKind::Header, 0), &[&header_payload()]);
    let offset = out.len();
    encode_record(&mut out, stamp(offset, RecordKind::Batch, 24), &[b"a batch of ", b"thirteen+"]);
    let offset = out.len();
    encode_record(&mut out, stamp(offset, RecordKind::Marker, offset as u64), &[]);
    out
}

fn read_all(bytes: Vec<u8>, file: FileNo) -> (Vec<Record>, NextRecord) {
    let mut reader = LogReader::new(Bytes::from(bytes), file);
    let mut records = Vec::new();
    loop {
        match reader.next_record() {
            NextRecord::Record(record) => {
                assert_eq!(record.end(), reader.offset());
                records.push(record);
            }
            end => return (records, end),
        }
    }
}

#[test]
fn records_come_back() {
    let log = three_records();
    assert_eq!(log.len() % ALIGN_BYTES, 0);
    let (records, end) = read_all(log, FILE);
    assert_eq!(end, NextRecord::End);
    assert_eq!(records.len(), 3);
    assert_eq!(LogHeader::decode(&records[0].payload), Ok(header()));
    assert!(!records[0].external);
    assert_eq!(records[1].payload.as_ref(), b"a batch of thirteen+");
    assert!(records[1].external);
    assert_eq!(records[1].synced_len, 24);
    assert_eq!(records[2].kind, RecordKind::Marker);
}

#[test]
fn every_flipped_bit_is_noticed() {
    let log = three_records();
    let (records, _) = read_all(log.clone(), FILE);
    for bit in 0..log.len() * 8 {
        let mut bad = log.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let (read, end) = read_all(bad, FILE);
        let NextRecord::Bad { offset, .. } = end else { panic!("bit {bit} passed") };
        let hit = records.iter().rposition(|record| record.offset <= bit as u64 / 8).unwrap();
        assert_eq!(read, records[..hit], "bit {bit}");
        assert_eq!(offset, records[hit].offset, "bit {bit}");
    }
}

#[test]
fn a_cut_anywhere_yields_a_prefix() {
    let log = three_records();
    let (records, _) = read_all(log.clone(), FILE);
    for cut in 0..log.len() {
        let (read, end) = read_all(log[..cut].to_vec(), FILE);
        let whole = records.iter().take_while(|record| record.end() <= cut as u64).count();
        assert_eq!(read, records[..whole]);
        let ends_whole = read.last().map_or(0, Record::end) == cut as u64;
        assert_eq!(end == NextRecord::End, ends_whole, "cut at {cut}");
    }
}

#[test]
fn moved_records_do_not_pass() {
    let log = three_records();
    assert_eq!(read_all(log.clone(), FILE.next()).0, []);
    let (records, _) = read_all(log.clone(), FILE);
    let second = records[1].offset as usize;
    assert_eq!(read_all(log[second..].to_vec(), FILE).0, []);
    assert_eq!(read_all(vec![0; 4096], FILE).0, []);
}

/// A file that holds a record for its very place in the log, by someone who knows all but the salt.
#[test]
fn a_forged_record_in_a_files_bytes_is_no_record() {
    let mut log = three_records();
    let place = log.len() + 512;
    let forged = |salt| {
        let stamp = Stamp {
            log: LogId { salt, ..LOG },
            ..stamp(place, RecordKind::Marker, place as u64 - 8)
        };
        let mut record = Vec::new();
        encode_record(&mut record, stamp, &[]);
        record
    };
    log.resize(place, 0xff);
    let from = log.len() as u64;
    for salt in [0, 1, LOG.salt ^ 1, u64::from(FILE.get() as u32)] {
        let bytes = Bytes::from([&log[..], &forged(salt)].concat());
        assert_eq!(resync(bytes, LOG, from).count(), 0, "salt {salt:x}");
    }
    let bytes = Bytes::from([&log[..], &forged(LOG.salt)].concat());
    assert_eq!(resync(bytes, LOG, from).count(), 1, "with the salt it is one");
}

#[test]
fn resync_finds_the_records_after_a_bad_one() {
    let mut log = three_records();
    let (records, _) = read_all(log.clone(), FILE);
    log[records[1].offset as usize + HEADER_BYTES] ^= 1;
    let bytes = Bytes::from(log);
    let found: Vec<Record> = resync(bytes.clone(), LOG, records[1].offset).collect();
    assert_eq!(found, records[2..]);
    assert_eq!(resync(bytes.clone(), LOG, records[2].offset + 1).count(), 0);
    assert_eq!(resync(bytes, LOG, u64::MAX).count(), 0);
}

#[test]
fn headers_come_back() {
    let previous = Some(PreviousLog { file: FileNo::new(8), final_len: 4096 });
    for previous in [None, previous] {
        for kind in [LogKind::Wal, LogKind::Manifest] {
            let header = LogHeader { boot_id: u128::MAX - 5, kind, previous, ..header() };
            let mut out = Vec::new();
            header.encode(&mut out);
            assert_eq!(LogHeader::decode(&out), Ok(header));
            for cut in 0..out.len() {
                assert!(LogHeader::decode(&out[..cut]).is_err());
            }
            out[0] = 2;
            assert_eq!(LogHeader::decode(&out).unwrap_err().newer(), Some((2, 1)));
        }
    }
}
