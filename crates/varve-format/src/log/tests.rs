//! Records come back, and nothing else does.

use bytes::Bytes;
use varve_types::{FileNo, SeqNo};

use super::*;

const FILE: FileNo = FileNo::new(9);

fn stamp(offset: usize, kind: RecordKind, synced_len: u64) -> Stamp {
    Stamp {
        file: FILE,
        offset: offset as u64,
        kind,
        external: kind == RecordKind::Batch,
        synced_len,
    }
}

fn three_records() -> Vec<u8> {
    let mut out = Vec::new();
    encode_record(&mut out, stamp(0, RecordKind::Header, 0), &[b"head"]);
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
    assert_eq!(records[0].payload.as_ref(), b"head");
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

#[test]
fn resync_finds_the_records_after_a_bad_one() {
    let mut log = three_records();
    let (records, _) = read_all(log.clone(), FILE);
    log[records[1].offset as usize + HEADER_BYTES] ^= 1;
    let bytes = Bytes::from(log);
    let found: Vec<Record> = resync(bytes.clone(), FILE, records[1].offset).collect();
    assert_eq!(found, records[2..]);
    assert_eq!(resync(bytes.clone(), FILE, records[2].offset + 1).count(), 0);
    assert_eq!(resync(bytes, FILE, u64::MAX).count(), 0);
}

#[test]
fn headers_come_back() {
    let previous = Some(PreviousLog { file: FileNo::new(8), final_len: 4096 });
    for previous in [None, previous] {
        for kind in [LogKind::Wal, LogKind::Manifest] {
            let header =
                LogHeader { kind, boot_id: u128::MAX - 5, first_seq: SeqNo::new(77), previous };
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
