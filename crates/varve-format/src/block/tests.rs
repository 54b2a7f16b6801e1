//! Blocks against a sorted list.

use super::*;

type Version = (Vec<u8>, SeqNo, EntryKind, Vec<u8>);

fn version(key: &str, seq: u64, value: Option<&str>) -> Version {
    let kind = if value.is_some() { EntryKind::Put } else { EntryKind::Delete };
    (key.into(), SeqNo::new(seq), kind, value.unwrap_or("").into())
}

/// Keys that share much, that are prefixes of each other, with several versions each.
fn versions() -> Vec<Version> {
    let mut versions = Vec::new();
    for i in 0..120u64 {
        let key = format!("dir{:02}{}", i / 7, "x".repeat((i % 7) as usize));
        for back in 0..=(i % 5) {
            let value = format!("value {i} {back}");
            let seq = 1000 - 3 * back;
            versions.push(version(&key, seq, (back != 2).then_some(value.as_str())));
        }
    }
    versions
}

fn build(versions: &[Version]) -> Block {
    let mut builder = BlockBuilder::new();
    for (key, seq, kind, value) in versions {
        assert!(builder.add(key, *seq, *kind, value, usize::MAX));
    }
    Block::parse(Bytes::copy_from_slice(builder.finish())).unwrap()
}

fn here(cursor: &BlockCursor) -> Option<Version> {
    let value = cursor.value().to_vec();
    cursor.valid().then(|| (cursor.key().to_vec(), cursor.seq(), cursor.kind(), value))
}

fn probes(versions: &[Version]) -> Vec<(Vec<u8>, SeqNo)> {
    let mut probes = vec![(Vec::new(), SeqNo::MAX), (b"zzz".to_vec(), SeqNo::ZERO)];
    for (key, seq, ..) in versions {
        for seq in [SeqNo::ZERO, SeqNo::new(seq.get() - 1), *seq, seq.advanced(1), SeqNo::MAX] {
            probes.push((key.clone(), seq));
            probes.push(([key.as_slice(), b"\0"].concat(), seq));
            probes.push((key[..key.len() - 1].to_vec(), seq));
        }
    }
    probes
}

#[test]
fn walks_in_both_directions() {
    let versions = versions();
    let block = build(&versions);
    assert_eq!(block.check(), Ok(versions.len() as u64));
    let mut cursor = BlockCursor::new(block);
    assert!(!cursor.valid());
    cursor.seek_first().unwrap();
    for expected in &versions {
        assert_eq!(here(&cursor).as_ref(), Some(expected));
        cursor.next().unwrap();
    }
    assert!(!cursor.valid());
    cursor.seek_last().unwrap();
    for expected in versions.iter().rev() {
        assert_eq!(here(&cursor).as_ref(), Some(expected));
        cursor.prev().unwrap();
    }
    assert!(!cursor.valid());
}

#[test]
fn seeks_and_gets_agree_with_a_sorted_list() {
    let versions = versions();
    agree(&versions, &build(&versions));
}

#[test]
fn keys_of_one_length_take_a_byte_less_each() {
    let mut versions = versions();
    versions.iter_mut().for_each(|version| version.0.resize(12, b'.'));
    let mut builder = BlockBuilder::for_keys_of(12);
    for (key, seq, kind, value) in &versions {
        assert!(builder.add(key, *seq, *kind, value, usize::MAX));
    }
    let block = Block::parse(Bytes::copy_from_slice(builder.finish())).unwrap();
    let own_lengths = build(&versions).content.len();
    // The offsets of restarts are as many.
    assert_eq!(block.content.len() + versions.len(), own_lengths);
    assert_eq!(block.check(), Ok(versions.len() as u64));
    agree(&versions, &block);
}

/// Looks for every version, and for what is between them.
fn agree(versions: &[Version], block: &Block) {
    let mut cursor = BlockCursor::new(block.clone());
    for (key, seq) in probes(versions) {
        let at =
            versions.partition_point(|v| internal_cmp((&v.0, v.1), (&key, seq)) == Ordering::Less);
        let expected = versions.get(at);
        cursor.seek(&key, seq).unwrap();
        assert_eq!(here(&cursor).as_ref(), expected, "seek {key:?} {seq}");
        let found = block.get(&key, seq).unwrap();
        let expected = expected.filter(|v| v.0 == key);
        assert_eq!(
            found.map(|found| (found.seq, found.kind, found.value.to_vec())),
            expected.map(|v| (v.1, v.2, v.3.clone())),
            "get {key:?} {seq}"
        );
    }
}

#[test]
fn the_size_limit_is_exact() {
    let versions = versions();
    let mut builder = BlockBuilder::new();
    let mut blocks = 0;
    for (key, seq, kind, value) in &versions {
        if !builder.add(key, *seq, *kind, value, 300) {
            assert!(builder.finish().len() <= 300);
            builder.clear();
            blocks += 1;
            assert!(builder.add(key, *seq, *kind, value, 300));
        }
    }
    assert!(blocks > 10, "{blocks}");
    builder.clear();
    assert!(builder.add(b"key", SeqNo::new(1), EntryKind::Put, &[7; 1000], 300));
    assert!(!builder.add(b"kez", SeqNo::new(1), EntryKind::Put, b"", 300));
    assert_eq!(builder.last_key(), b"key");
    let exact = builder.finish().len();
    builder.clear();
    assert!(builder.add(b"a", SeqNo::new(1), EntryKind::Put, b"", exact));
    let small = builder.finish().len();
    builder.clear();
    assert!(builder.add(b"a", SeqNo::new(1), EntryKind::Put, b"", small));
    assert!(builder.add(b"b", SeqNo::new(1), EntryKind::Put, b"", small + 5));
    assert_eq!(builder.finish().len(), small + 5);
}

#[test]
fn disorder_is_found_by_the_check() {
    let mut versions = versions();
    versions.swap(20, 21);
    assert!(build(&versions).check().is_err());
    versions.swap(20, 21);
    versions[30] = versions[29].clone();
    assert!(build(&versions).check().is_err());
}

#[test]
fn a_bad_frame_is_refused() {
    let entries = [0u8, 1, 0, 6, b'k'];
    let frame = |restarts: &[u32], count: u32| {
        let mut out = entries.to_vec();
        restarts.iter().for_each(|restart| out.extend_from_slice(&restart.to_le_bytes()));
        out.extend_from_slice(&count.to_le_bytes());
        Block::parse(Bytes::from(out))
    };
    assert_eq!(frame(&[0], 1).unwrap().check(), Ok(1));
    assert!(frame(&[], 0).is_err());
    assert!(frame(&[1], 1).is_err());
    assert!(frame(&[5], 1).is_err());
    assert!(frame(&[0, 0], 2).is_err());
    assert!(frame(&[0, 4], 2).unwrap().check().is_err());
    assert!(frame(&[0], 3).is_err());
    assert!(frame(&[0], u32::MAX).is_err());
    assert!(Block::parse(Bytes::from_static(&[0; 3])).is_err());
}

#[test]
fn an_entry_that_shares_more_than_keys_have_is_refused() {
    // Keys of 1 byte; the second entry shares 2.
    let mut content = vec![0u8, 0, 6, b'k', 2, 0, 6];
    content.extend_from_slice(&0u32.to_le_bytes());
    content.extend_from_slice(&(1u32 | 1 << COUNT_BITS).to_le_bytes());
    let block = Block::parse(Bytes::from(content)).unwrap();
    assert_eq!(block.first_key(), Ok(&b"k"[..]));
    assert_eq!(block.check().unwrap_err().offset, 4);
}

#[test]
fn an_entry_that_shares_more_than_there_is_stops_the_cursor() {
    let mut content = vec![0u8, 1, 0, 6, b'k', 2, 1, 0, 6, b'x'];
    content.extend_from_slice(&0u32.to_le_bytes());
    content.extend_from_slice(&1u32.to_le_bytes());
    let mut cursor = BlockCursor::new(Block::parse(Bytes::from(content)).unwrap());
    cursor.seek_first().unwrap();
    assert_eq!(cursor.next().unwrap_err().offset, 5);
    assert!(!cursor.valid());
}

/// At any place of any bytes, sound or not.
#[test]
fn short_entries_are_what_all_entries_are() {
    let mut builder = BlockBuilder::for_keys_of(16);
    for i in 0..200u64 {
        let key = [(i / 9).to_be_bytes(), ((i * 1_000_003) << 30).to_be_bytes()].concat();
        let (kind, len) = match i % 3 {
            0 => (EntryKind::Delete, 0),
            1 => (EntryKind::Put, (i * i % 300) as usize),
            _ => (EntryKind::Separated, 11),
        };
        let seq = SeqNo::new(1 << (i % 60));
        let _ = builder.add(&key, seq, kind, &vec![i as u8; len], usize::MAX);
    }
    let content = builder.finish().to_vec();
    let noise: Vec<u8> = (0..20_000u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8 & (0xff >> (i % 4)))
        .collect();
    let mut short = 0;
    for bytes in [&content[..], &noise] {
        for (pos, key_bytes) in (0..=bytes.len()).flat_map(|pos| [0, 16, 200].map(|key| (pos, key)))
        {
            if let Some(entry) = short_entry(bytes, pos, key_bytes) {
                assert_eq!(decode_entry(bytes, pos, key_bytes), Ok(entry), "{pos} of {key_bytes}");
                short += 1;
            }
        }
    }
    assert!(short > 1000, "{short}");
}
