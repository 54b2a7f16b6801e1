//! Tables against a sorted list.

use bytes::Bytes;
use varve_types::{FileNo, FileSalt, KeyspaceId, SeqNo};

use super::*;
use crate::block::{Block, Found};
use crate::edit::TableMeta;
use crate::filter::{Filter, FilterPolicy, filter_hash};
use crate::index::{Index, IndexPolicy};
use crate::section::{Compression, Handle, open_section};
use crate::{EntryKind, FormatResult};

const FILE: FileNo = FileNo::new(77);
const SALT: FileSalt = FileSalt::new(0x5a17_0000_0000_0001);

fn options(prefixed: bool, compression: Compression) -> TableOptions {
    indexed(prefixed, compression, IndexPolicy::Plain)
}

fn indexed(prefixed: bool, compression: Compression, index: IndexPolicy) -> TableOptions {
    TableOptions {
        keyspace: KeyspaceId::new(1),
        prefixed,
        block_bytes: 4096,
        compression,
        index,
        filter: FilterPolicy::Bloom { bits_per_key: 10 },
        cut_after_prefix_bytes: 0,
    }
}

fn key(i: u64) -> Vec<u8> {
    [(i / 50).to_be_bytes(), (i * 0x1234_5678_9abc).to_be_bytes()].concat()
}

/// The i-th row: some long, one with many versions, some deleted.
fn value(i: u64, version: u64) -> Vec<u8> {
    let len = if i % 997 == 5 { 9000 } else { (i % 200) as usize };
    format!("{i} {version} ").bytes().cycle().take(len).collect()
}

fn versions_of(i: u64) -> u64 {
    if i == 1234 { 300 } else { 1 + i % 2 }
}

fn build(options: TableOptions, rows: u64) -> (Bytes, TableMeta) {
    let mut builder = TableBuilder::new(options, FILE, SALT);
    let mut file = Vec::new();
    for i in 0..rows {
        for version in (1..=versions_of(i)).rev() {
            let kind = if i % 13 == 3 { EntryKind::Delete } else { EntryKind::Put };
            let value = if kind == EntryKind::Put { value(i, version) } else { Vec::new() };
            builder.add(&key(i), SeqNo::new(10 * version), kind, &value).unwrap();
            assert_eq!(builder.last_key(), key(i));
        }
        if builder.output().len() > 10_000 {
            file.extend_from_slice(builder.output());
            builder.clear_output();
            assert_eq!(builder.file_bytes(), file.len() as u64);
        }
    }
    let (tail, meta) = builder.finish().unwrap();
    file.extend_from_slice(&tail);
    (Bytes::from(file), meta)
}

struct Opened {
    file: Bytes,
    footer: Footer,
    index: Index,
    properties: Properties,
}

impl Opened {
    fn new(file: Bytes) -> FormatResult<Opened> {
        let footer_at = file.len() - FOOTER_BYTES;
        let footer = Footer::decode(&file[footer_at..], SALT, footer_at as u64)?;
        let content = section(&file, footer.index)?;
        let index = Index::decode(footer.index_policy, &content, footer.data_end())?;
        let properties = Properties::decode(&section(&file, footer.properties)?)?;
        Ok(Opened { file, footer, index, properties })
    }

    fn block(&self, block: usize) -> Block {
        let handle = self.index.handle(block).unwrap();
        Block::parse(section(&self.file, handle).unwrap()).unwrap()
    }

    fn get(&self, key: &[u8], seq: u64) -> Option<Found> {
        let mut blocks = self.index.find(key, SeqNo::new(seq))?;
        blocks.find_map(|block| self.block(block).get(key, SeqNo::new(seq)).unwrap())
    }

    fn filter(&self, handle: Option<Handle>) -> Filter {
        Filter::decode(&section(&self.file, handle.unwrap()).unwrap()).unwrap()
    }
}

fn section(file: &Bytes, handle: Handle) -> FormatResult<Bytes> {
    open_section(&file.slice(handle.offset as usize..handle.end() as usize), SALT, handle.offset)
}

#[test]
fn every_version_is_found() {
    let plain = IndexPolicy::Plain;
    for (prefixed, compression, index) in [
        (true, Compression::None, plain),
        (true, Compression::Lz4, plain),
        (false, Compression::None, plain),
        (true, Compression::None, IndexPolicy::EliasFano),
        (true, Compression::None, IndexPolicy::ThreeLevel),
    ] {
        let rows = 3000;
        let (file, meta) = build(indexed(prefixed, compression, index), rows);
        assert_eq!(meta.size_bytes, file.len() as u64);
        let table = Opened::new(file).unwrap();
        for i in 0..rows {
            let top = versions_of(i);
            assert_eq!(table.get(&key(i), 9), None);
            for version in [1, 2, top / 2, top].into_iter().filter(|v| (1..=top).contains(v)) {
                let found = table.get(&key(i), 10 * version + 4).unwrap();
                assert_eq!(found.seq, SeqNo::new(10 * version), "row {i}");
                if found.kind == EntryKind::Put {
                    assert_eq!(found.value, value(i, version));
                } else {
                    assert_eq!(i % 13, 3);
                }
            }
            assert_eq!(table.get(&[&key(i)[..], b"0"].concat(), 1000), None);
            assert_eq!(table.get(&key(i)[..15], 1000), None);
        }
        assert_eq!(table.get(&key(rows), 1000), None);
    }
}

#[test]
fn properties_and_meta_say_what_is_there() {
    let (file, meta) = build(options(true, Compression::Lz4), 1000);
    let table = Opened::new(file).unwrap();
    let entries: u64 = (0..1000).map(versions_of).sum();
    let tombstones: u64 = (0..1000).filter(|i| i % 13 == 3).map(versions_of).sum();
    let properties = &table.properties;
    assert_eq!((properties.entries, meta.entries), (entries, entries));
    assert_eq!((properties.tombstones, meta.tombstones), (tombstones, tombstones));
    assert_eq!(meta.smallest_key, key(0));
    assert_eq!(meta.largest_key, key(999));
    assert_eq!((meta.smallest_seq, meta.largest_seq), (SeqNo::new(10), SeqNo::new(20)));
    assert_eq!(properties.largest_key, meta.largest_key);
    assert!(properties.prefixed);
    let counted: u64 =
        (0..table.index.block_count()).map(|block| table.block(block).check().unwrap()).sum();
    assert_eq!(counted, entries);
    assert_eq!(properties.blocks, table.index.block_count() as u64);
}

#[test]
fn a_block_that_fits_a_page_never_crosses_one() {
    let (file, _) = build(options(true, Compression::None), 3000);
    let table = Opened::new(file).unwrap();
    let mut large = 0;
    for block in 0..table.index.block_count() {
        let handle = table.index.handle(block).unwrap();
        if u64::from(handle.len) > PAGE_BYTES {
            large += 1;
        } else {
            assert_eq!(handle.offset / PAGE_BYTES, (handle.end() - 1) / PAGE_BYTES);
        }
    }
    assert_eq!(large, 6, "rows of 9000 bytes have blocks of their own");
    let (packed, _) = build(options(true, Compression::Lz4), 3000);
    assert!(packed.len() < table.file.len() / 2);
}

#[test]
fn filters_know_keys_and_prefixes() {
    let (file, _) = build(options(true, Compression::None), 3000);
    let table = Opened::new(file).unwrap();
    let keys = table.filter(table.footer.filter);
    let prefixes = table.filter(table.footer.prefix_filter);
    assert!((0..3000).all(|i| keys.may_contain(filter_hash(&key(i)))));
    assert!((0..60u64).all(|dir| prefixes.may_contain(filter_hash(&dir.to_be_bytes()))));
    let passed =
        (60..10_060u64).filter(|dir| prefixes.may_contain(filter_hash(&dir.to_be_bytes()))).count();
    assert!(passed < 400, "{passed} of 10000 absent prefixes pass");
    let (file, _) = build(options(false, Compression::None), 10);
    assert_eq!(Opened::new(file).unwrap().footer.prefix_filter, None);
    let bare = TableOptions { filter: FilterPolicy::None, ..options(true, Compression::None) };
    let footer = Opened::new(build(bare, 10).0).unwrap().footer;
    assert_eq!((footer.filter, footer.prefix_filter), (None, None));
}

#[test]
fn every_flipped_bit_outside_of_padding_is_noticed() {
    let (file, _) = build(options(true, Compression::None), 120);
    let table = Opened::new(file.clone()).unwrap();
    let blocks = (0..table.index.block_count()).filter_map(|block| table.index.handle(block));
    let handles: Vec<Handle> =
        blocks.chain(table.footer.sections().map(|(_, handle)| handle)).collect();
    let footer_at = (file.len() - FOOTER_BYTES) as u64;
    for at in (0..file.len()).step_by(3) {
        let mut bad = file.to_vec();
        bad[at] ^= 1 << (at % 8);
        let bad = Bytes::from(bad);
        let hit = handles.iter().find(|h| (h.offset..h.end()).contains(&(at as u64)));
        if let Some(&handle) = hit {
            assert!(section(&bad, handle).is_err(), "byte {at}");
        } else if at as u64 >= footer_at {
            assert!(Opened::new(bad).is_err(), "byte {at}");
        }
    }
}

#[test]
fn misuse_is_refused_and_changes_nothing() {
    let mut builder = TableBuilder::new(options(true, Compression::None), FILE, SALT);
    let put = |builder: &mut TableBuilder, key: &[u8], seq| {
        builder.add(key, SeqNo::new(seq), EntryKind::Put, b"v")
    };
    assert!(put(&mut builder, b"short", 5).is_err());
    assert!(put(&mut builder, &key(5), 0).is_err());
    assert!(put(&mut builder, &key(5), u64::MAX).is_err());
    assert!(builder.is_empty());
    put(&mut builder, &key(5), 5).unwrap();
    assert!(put(&mut builder, &key(5), 5).is_err());
    assert!(put(&mut builder, &key(5), 6).is_err());
    assert!(put(&mut builder, &key(4), 1).is_err());
    put(&mut builder, &key(5), 4).unwrap();
    let (_, meta) = builder.finish().unwrap();
    assert_eq!(meta.entries, 2);
    assert!(TableBuilder::new(options(true, Compression::None), FILE, SALT).finish().is_err());
}
