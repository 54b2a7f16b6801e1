//! The compact indexes on tables, against the keys of each block.

use bytes::Bytes;
use varve_types::{FileNo, FileSalt, KeyspaceId};

use super::*;
use crate::EntryKind;
use crate::block::{Block, BlockCursor};
use crate::filter::FilterPolicy;
use crate::section::{Compression, open_section};
use crate::table::{FOOTER_BYTES, Footer, TableBuilder, TableOptions};

const FILE: FileNo = FileNo::new(5);
const SALT: FileSalt = FileSalt::new(0x5a17_0000_0000_0001);
const COMPACT: [IndexPolicy; 2] = [IndexPolicy::EliasFano, IndexPolicy::ThreeLevel];

type Key = (u64, u64);

fn mix(i: u64) -> u64 {
    let i = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (i ^ (i >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

fn bytes_of((prefix, suffix): Key) -> [u8; 16] {
    ((u128::from(prefix) << 64) | u128::from(suffix)).to_be_bytes()
}

/// An index and the keys of each block.
struct Built {
    index: Index,
    content: Bytes,
    data_end: u64,
    blocks: Vec<Vec<[u8; 16]>>,
}

/// A table of `keys`, the `versions` of the `many`th one filling several blocks.
fn build(
    policy: IndexPolicy,
    keys: &[Key],
    value_bytes: usize,
    many: Option<(usize, u64)>,
) -> Built {
    let options = TableOptions {
        keyspace: KeyspaceId::new(1),
        prefixed: true,
        block_bytes: 4096,
        compression: Compression::None,
        index: policy,
        filter: FilterPolicy::None,
        cut_after_prefix_bytes: 0,
    };
    let mut builder = TableBuilder::new(options, FILE, SALT);
    let value = vec![b'v'; value_bytes];
    for (i, key) in keys.iter().enumerate() {
        let versions = many.filter(|(at, _)| *at == i).map_or(1, |(_, versions)| versions);
        for seq in (1..=versions).rev() {
            builder.add(&bytes_of(*key), SeqNo::new(seq), EntryKind::Put, &value).unwrap();
        }
    }
    let file = Bytes::from(builder.finish().unwrap().0);
    let at = file.len() - FOOTER_BYTES;
    let footer = Footer::decode(&file[at..], SALT, at as u64).unwrap();
    assert_eq!(footer.index_policy, policy);
    let section = |handle: Handle| {
        let range = handle.offset as usize..handle.end() as usize;
        open_section(&file.slice(range), SALT, handle.offset).unwrap()
    };
    let content = section(footer.index);
    let index = Index::decode(policy, &content, footer.data_end()).unwrap();
    let blocks = (0..index.block_count())
        .map(|block| {
            let mut keys = Vec::new();
            let block = Block::parse(section(index.handle(block).unwrap())).unwrap();
            let mut cursor = BlockCursor::new(block);
            cursor.seek_first().unwrap();
            while cursor.valid() {
                keys.push(cursor.key().try_into().unwrap());
                cursor.next().unwrap();
            }
            keys
        })
        .collect();
    Built { index, content, data_end: footer.data_end(), blocks }
}

impl Built {
    /// Every key is in the blocks named; every seek leads to the first key at or after.
    fn check(&self, what: &str) {
        for (at, keys) in self.blocks.iter().enumerate() {
            for key in keys {
                let found = self.index.find(key, SeqNo::MAX).unwrap();
                assert!(found.contains(&at), "{what}: {key:02x?} of block {at} in {found:?}");
                let prefix = &key[..8];
                for probe in [&key[..], prefix, &key[..5], &[&key[..], b"\0"].concat()] {
                    self.check_seek(probe, what);
                }
                for delta in [1, u128::from(u64::MAX), 1 << 64, 1 << 90] {
                    let number = u128::from_be_bytes(*key);
                    let after = number.saturating_add(delta).to_be_bytes();
                    self.check_seek(&after, what);
                    self.check_seek(&number.saturating_sub(delta).to_be_bytes(), what);
                }
            }
        }
    }

    /// No block after that named has keys below.
    fn check_last(&self, end: &[u8], what: &str) {
        let last = self.index.last_below(end).unwrap_or(self.blocks.len() - 1);
        let holds = |keys: &Vec<[u8; 16]>| keys.first().is_some_and(|first| &first[..] < end);
        let right = self.blocks.partition_point(holds).saturating_sub(1);
        assert!(last >= right, "{what}: below {end:02x?} are blocks up to {right}, not {last}");
    }

    fn check_seek(&self, probe: &[u8], what: &str) {
        self.check_last(probe, what);
        let sought = self.index.seek(probe, SeqNo::MAX).unwrap();
        let found = self.index.find(probe, SeqNo::MAX).unwrap();
        assert!(sought.contains(found.start()) && sought.contains(found.end()));
        let before = |keys: &Vec<[u8; 16]>| keys.last().is_some_and(|last| &last[..] < probe);
        let first = self.blocks.partition_point(before);
        let begins = self.blocks.get(first).is_none_or(|keys| &keys[0][..] >= probe);
        let right = sought.contains(&first) || (begins && first == sought.end() + 1);
        assert!(right, "{what}: {probe:02x?} first in block {first}, sought in {sought:?}");
    }
}

fn sets() -> Vec<(&'static str, Vec<Key>)> {
    let grouped = |directories: u64, rows: u64, id: fn(u64) -> u64, name: fn(u64) -> u64| {
        let keys = (0..directories)
            .flat_map(move |dir| (0..rows).map(move |row| (id(dir), name(dir * rows + row))));
        let mut keys: Vec<Key> = keys.collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    };
    let dense = |i: u64| 1000 + i;
    let far = |i: u64| (i % 3) << 60 | (i * 5);
    vec![
        ("one key", vec![(7, 9)]),
        ("smallest and largest", vec![(0, 0), (0, u64::MAX), (u64::MAX, 0), (u64::MAX, u64::MAX)]),
        ("one directory", grouped(1, 8000, dense, mix)),
        ("hashed, 16 rows", grouped(300, 16, mix, mix)),
        ("hashed, 1 row", grouped(4000, 1, mix, mix)),
        ("hashed, 300 rows", grouped(20, 300, mix, mix)),
        ("dense, 3 rows", grouped(1500, 3, dense, mix)),
        ("dense, 128 rows", grouped(50, 128, dense, mix)),
        ("dense, numbered rows", grouped(50, 128, dense, |i| i % 128)),
        ("far apart, numbered rows", grouped(60, 64, far, |i| i % 64)),
        ("rows 0 alone", grouped(3000, 1, dense, |_| 0)),
        ("two ends of a directory", grouped(9, 400, dense, |i| if i % 2 == 0 { i } else { !i })),
    ]
}

#[test]
fn every_key_is_found_and_every_seek_leads_on() {
    for policy in COMPACT {
        for (what, keys) in sets() {
            for value_bytes in [200, 900] {
                let take = keys.len().min(800_000 / value_bytes);
                build(policy, &keys[..take], value_bytes, None).check(what);
            }
        }
    }
}

#[test]
fn versions_over_many_blocks_are_all_in_the_range() {
    for policy in COMPACT {
        for (_, keys) in sets() {
            let keys = &keys[..keys.len().min(100)];
            for at in [0, keys.len() / 2, keys.len() - 1] {
                build(policy, keys, 100, Some((at, 200))).check("versions");
            }
        }
    }
}

#[test]
fn rows_larger_than_a_block_are_placed() {
    for policy in COMPACT {
        let (_, keys) = sets().swap_remove(7);
        let built = build(policy, &keys[..300], 9000, None);
        assert_eq!(built.blocks.len(), 300);
        let third = Handle { offset: 2 * 12_288, len: 12_288 };
        assert_eq!(built.index.handle(2), Some(third));
        built.check("large rows");
    }
}

#[test]
fn rows_of_uniform_names_are_found_in_one_block() {
    for (policy, ties_max) in [(IndexPolicy::EliasFano, 0.02), (IndexPolicy::ThreeLevel, 0.0)] {
        let (_, keys) = sets().swap_remove(7);
        let built = build(policy, &keys, 200, None);
        let more = |key: &[u8; 16]| {
            let found = built.index.find(key, SeqNo::MAX).unwrap();
            found.end() - found.start()
        };
        let extra: usize = built.blocks.iter().flatten().map(more).sum();
        let share = extra as f64 / keys.len() as f64;
        assert!(share <= ties_max, "{policy:?}: {share} more blocks per key");
    }
}

/// Thesis table 5.4: 2.56, 1.94 and 1.57 bits per key with 16, 32 and 64 rows of a hashed prefix.
#[test]
fn the_three_level_index_takes_no_more_room_than_the_paper_says() {
    for (rows, bits_max) in [(16, 2.56), (32, 1.94), (64, 1.57)] {
        let mut keys: Vec<Key> =
            (0..40_000).map(|i| (mix(i / rows), mix(i ^ 0x5555_0000))).collect();
        keys.sort_unstable();
        let built = build(IndexPolicy::ThreeLevel, &keys, 220, None);
        let bits = built.index.memory_bytes() as f64 * 8.0 / keys.len() as f64;
        assert!(bits < bits_max, "{rows} rows: {bits} bits per key");
    }
}

#[test]
fn an_index_that_does_not_hold_together_is_refused() {
    for policy in COMPACT {
        let (_, keys) = sets().swap_remove(3);
        let built = build(policy, &keys, 100, None);
        let decode = |content: &[u8]| Index::decode(policy, content, built.data_end);
        for cut in 0..built.content.len() {
            assert!(decode(&built.content[..cut]).is_err(), "{policy:?} cut at {cut}");
        }
        assert!(decode(&[&built.content[..], b"\0"].concat()).is_err());
        assert!(Index::decode(policy, &built.content, built.data_end - 4096).is_err());
        for bit in 0..built.content.len() * 8 {
            let mut bad = built.content.to_vec();
            bad[bit / 8] ^= 1 << (bit % 8);
            let Ok(index) = decode(&bad) else { continue };
            for key in keys.iter().step_by(97) {
                let key = bytes_of(*key);
                let last = index.block_count() - 1;
                assert!(*index.find(&key, SeqNo::MAX).unwrap().end() <= last);
                assert!(*index.seek(&key, SeqNo::MAX).unwrap().end() <= last);
            }
        }
    }
}

/// What a scan of one directory reads is that directory's blocks, where its rows begin and end with a block.
#[test]
fn a_directory_that_fills_its_blocks_is_scanned_without_others() {
    let rows = |dir: u64| (0..60).map(move |row| (dir, mix(dir << 8 | row)));
    let mut keys: Vec<Key> = (0..50).flat_map(rows).collect();
    keys.sort_unstable();
    // 4 rows fill a block, so that 15 blocks are a directory.
    let built = build(IndexPolicy::EliasFano, &keys, 990, None);
    for dir in 0..50u64 {
        let first = built.index.find(&bytes_of((dir, 0)), SeqNo::MAX).unwrap();
        let last = built.index.last_below(&(dir + 1).to_be_bytes()).unwrap();
        assert_eq!(*first.start()..=last, dir as usize * 15..=dir as usize * 15 + 14, "{dir}");
    }
}
