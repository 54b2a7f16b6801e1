//! Tables of random rows and random options against a sorted map.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use varve_format::EntryKind;
use varve_format::block::{Block, BlockCursor, Found};
use varve_format::filter::{Filter, FilterPolicy, filter_hash};
use varve_format::index::{Index, IndexPolicy};
use varve_format::section::{Compression, Handle, open_section};
use varve_format::table::{FOOTER_BYTES, Footer, TableBuilder, TableOptions};
use varve_types::{KeyspaceId, SeqNo};

use varve_testkit::rng::MachineRng as Rng;

use crate::random::below;
use crate::sample::{FILE, FILTERS, SALT};

const ROUNDS: u64 = 300;

/// Versions in internal order.
type Rows = BTreeMap<(Vec<u8>, Reverse<u64>), (EntryKind, Vec<u8>)>;

fn random_key(rng: &mut Rng, prefixed: bool) -> Vec<u8> {
    let alphabet = [0, 1, b'a', b'b', 0xfe, 0xff];
    let long = !prefixed && below(rng, 200) == 0;
    let len = match (prefixed, long) {
        (true, _) => 16,
        (false, true) => 3000 + below(rng, 3000),
        (false, false) => below(rng, 7),
    };
    let varies = if prefixed { 3 } else { usize::MAX };
    (0..len)
        .map(|i| if i % 8 < 8usize.saturating_sub(varies) { 0 } else { alphabet[below(rng, 6)] })
        .collect()
}

fn random_rows(rng: &mut Rng, prefixed: bool) -> Rows {
    let mut rows = Rows::new();
    for _ in 0..1 + below(rng, 400) {
        let key = random_key(rng, prefixed);
        for _ in 0..=below(rng, 4).saturating_sub(1) * below(rng, 8) {
            let seq = 1 + below(rng, 500) as u64;
            let delete = below(rng, 5) == 0;
            let kind = if delete { EntryKind::Delete } else { EntryKind::Put };
            let len = if below(rng, 100) == 0 { 10_000 } else { below(rng, 60) };
            let value = if delete { Vec::new() } else { vec![rng.next_u64() as u8; len] };
            rows.insert((key.clone(), Reverse(seq)), (kind, value));
        }
    }
    rows
}

fn random_options(rng: &mut Rng, prefixed: bool) -> TableOptions {
    TableOptions {
        keyspace: KeyspaceId::new(1),
        prefixed,
        block_bytes: [1, 64, 256, 4096, 4096, 8192][below(rng, 6)],
        compression: [Compression::None, Compression::Lz4][below(rng, 2)],
        index: [IndexPolicy::Plain, IndexPolicy::EliasFano, IndexPolicy::ThreeLevel][below(rng, 3)],
        filter: *FILTERS.get(below(rng, 5)).unwrap_or(&FilterPolicy::None),
        cut_after_prefix_bytes: [0, 200, 5000][below(rng, 3)],
    }
}

struct Table {
    file: Bytes,
    index: Index,
    filters: [Option<Filter>; 2],
}

impl Table {
    fn build(options: TableOptions, rows: &Rows) -> Table {
        let mut builder = TableBuilder::new(options, FILE, SALT);
        for ((key, Reverse(seq)), (kind, value)) in rows {
            builder.add(key, SeqNo::new(*seq), *kind, value).unwrap();
        }
        let file = Bytes::from(builder.finish().unwrap().0);
        let at = file.len() - FOOTER_BYTES;
        let footer = Footer::decode(&file[at..], SALT, at as u64).unwrap();
        let index = section(&file, footer.index);
        let index = Index::decode(footer.index_policy, &index, footer.data_end()).unwrap();
        let filters = [footer.filter, footer.prefix_filter]
            .map(|handle| handle.map(|handle| Filter::decode(&section(&file, handle)).unwrap()));
        Table { file, index, filters }
    }

    fn block(&self, number: usize) -> Block {
        let block = Block::parse(section(&self.file, self.index.handle(number).unwrap())).unwrap();
        block.check().unwrap();
        block
    }

    fn get(&self, key: &[u8], seq: SeqNo) -> Option<Found> {
        let mut blocks = self.index.find(key, seq)?;
        let found = blocks.find_map(|number| self.block(number).get(key, seq).unwrap());
        if let [Some(keys), _] = &self.filters {
            assert!(found.is_none() || keys.may_contain(filter_hash(key)));
        }
        if let ([_, Some(prefixes)], Some(prefix)) = (&self.filters, key.get(..8)) {
            assert!(found.is_none() || prefixes.may_contain(filter_hash(prefix)));
        }
        found
    }

    /// All versions from (`key`, `seq`) on: the index leads to the first, the blocks follow.
    fn scan(&self, key: &[u8], seq: SeqNo) -> Vec<(Vec<u8>, u64)> {
        let Some(sought) = self.index.seek(key, seq) else { return Vec::new() };
        let mut versions = Vec::new();
        for number in *sought.start()..self.index.block_count() {
            let mut cursor = BlockCursor::new(self.block(number));
            cursor.seek(key, seq).unwrap();
            assert!(
                cursor.valid() || sought.contains(&number),
                "the next version is not further on"
            );
            while cursor.valid() {
                versions.push((cursor.key().to_vec(), cursor.seq().get()));
                cursor.next().unwrap();
            }
        }
        versions
    }
}

fn section(file: &Bytes, handle: Handle) -> Bytes {
    let range = handle.offset as usize..handle.end() as usize;
    open_section(&file.slice(range), SALT, handle.offset).unwrap()
}

#[test]
fn random_tables_agree_with_a_map() {
    for seed in 0..ROUNDS {
        let mut rng = Rng::new(seed);
        let prefixed = below(&mut rng, 2) == 0;
        let rows = random_rows(&mut rng, prefixed);
        let table = Table::build(random_options(&mut rng, prefixed), &rows);
        let mut probes: BTreeSet<Vec<u8>> =
            (0..60).map(|_| random_key(&mut rng, prefixed)).collect();
        probes.extend(rows.keys().step_by(7).map(|(key, _)| key.clone()));
        for (i, key) in probes.into_iter().enumerate() {
            let seq = below(&mut rng, 502) as u64;
            let mut from = rows.range((key.clone(), Reverse(seq))..);
            let expected = from.clone().next().filter(|((found, _), _)| *found == key);
            let found = table.get(&key, SeqNo::new(seq));
            assert_eq!(
                found.map(|found| (found.seq.get(), found.kind, found.value.to_vec())),
                expected.map(|((_, seq), (kind, value))| (seq.0, *kind, value.clone())),
                "seed {seed}, key {key:?}, seq {seq}"
            );
            if i % 8 == 0 {
                let scanned = table.scan(&key, SeqNo::new(seq));
                let agrees = scanned.iter().all(|found| {
                    from.next().is_some_and(|(row, _)| (&row.0, row.1.0) == (&found.0, found.1))
                });
                assert!(agrees && from.next().is_none(), "seed {seed}, scan from {key:?}, {seq}");
            }
        }
    }
}
