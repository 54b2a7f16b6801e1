//! Room and time of a table's index: `indexes [LOOKUPS]`.
//!
//! Builds a table of 32 MiB for each pattern of prefixes of SlimDB's experiment (thesis 5.5.3: rows of 256
//! bytes, blocks of 4 KiB) and for densely numbered directories, with each kind of index, and prints beside
//! what the thesis's tables 5.4 and 5.5 say: bits of memory per key, lookups per second of processor time,
//! and the share of lookups that must look at a second block.

mod shared;

use bytes::Bytes;
use varve_env::os::OsEnv;
use varve_format::filter::FilterPolicy;
use varve_format::index::{Index, IndexPolicy};
use varve_format::section::{Compression, open_section};
use varve_format::table::{FOOTER_BYTES, Footer, TableBuilder, TableOptions};
use varve_format::{EntryKind, FormatResult};
use varve_testkit::rng;
use varve_types::{FileNo, FileSalt, KeyspaceId, SeqNo};

const FILE: FileNo = FileNo::new(1);
const SALT: FileSalt = FileSalt::new(0x5a17_0000_0000_0001);
const ROWS: u64 = 148_639;
/// Keys of 16 and values of 240 bytes make the 256 of the paper's rows.
const VALUE: [u8; 240] = [b'v'; 240];
const POLICIES: [IndexPolicy; 3] =
    [IndexPolicy::Plain, IndexPolicy::EliasFano, IndexPolicy::ThreeLevel];

/// A pattern of prefixes, and what the thesis's tables 5.4 and 5.5 say of it: LevelDB's bits per key
/// and thousands of lookups a second, then SlimDB's.
struct Pattern {
    name: &'static str,
    prefix: fn(u64) -> u64,
    theirs: Option<[f64; 4]>,
}

const PATTERNS: [Pattern; 5] = [
    Pattern {
        name: "fixed 16",
        prefix: |i| mix(i / 16),
        theirs: Some([17.39, 1042.7, 2.56, 147.5]),
    },
    Pattern {
        name: "fixed 32",
        prefix: |i| mix(i / 32),
        theirs: Some([17.39, 1019.4, 1.94, 143.6]),
    },
    Pattern {
        name: "fixed 64",
        prefix: |i| mix(i / 64),
        theirs: Some([17.39, 1016.3, 1.57, 149.5]),
    },
    Pattern { name: "zipf to 8000", prefix: zipf, theirs: Some([17.39, 1046.0, 1.56, 288.5]) },
    Pattern { name: "dense ids, 128", prefix: |i| 1000 + i / 128, theirs: None },
];

/// Spreads numbers over all bits.
fn mix(number: u64) -> u64 {
    rng::mix(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The 26 groups of falling size, the first of 8000 rows, that the paper's table had.
fn zipf(row: u64) -> u64 {
    let (mut left, mut group) = (row as f64, 1.0f64);
    loop {
        let rows = 8000.0 / group.powf(0.17);
        if left < rows {
            return mix(group as u64);
        }
        (left, group) = (left - rows, group + 1.0);
    }
}

/// The index of a table of `keys`.
fn index_of(policy: IndexPolicy, keys: &[[u8; 16]]) -> FormatResult<Index> {
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
    for key in keys {
        builder.add(key, SeqNo::new(1), EntryKind::Put, &VALUE)?;
    }
    let file = Bytes::from(builder.finish()?.0);
    let at = file.len() - FOOTER_BYTES;
    let footer = Footer::decode(&file[at..], SALT, at as u64)?;
    let range = footer.index.offset as usize..footer.index.end() as usize;
    let content = open_section(&file.slice(range), SALT, footer.index.offset)?;
    Index::decode(policy, &content, footer.data_end())
}

fn main() -> FormatResult<()> {
    let argument = std::env::args().nth(1).and_then(|lookups| lookups.parse().ok());
    let lookups: u64 = argument.unwrap_or(1_000_000);
    let env = OsEnv::new();
    println!(
        "{:16} {:12} {:>12} {:>16} {:>12}",
        "prefixes", "index", "bits per key", "1000 lookups/s", "more blocks"
    );
    for pattern in PATTERNS {
        let mut keys: Vec<[u8; 16]> = (0..ROWS)
            .map(|row| {
                let key = (u128::from((pattern.prefix)(row)) << 64) | u128::from(mix(!row));
                key.to_be_bytes()
            })
            .collect();
        keys.sort_unstable();
        for policy in POLICIES {
            let index = index_of(policy, &keys)?;
            let (start, mut more) = (shared::cpu_ns(&env), 0);
            for lookup in 0..lookups {
                let key = &keys[(mix(lookup) % ROWS) as usize];
                if let Some(blocks) = index.find(key, SeqNo::MAX) {
                    more += blocks.end() - blocks.start();
                }
            }
            let seconds = (shared::cpu_ns(&env) - start) as f64 / 1e9;
            let bits = index.memory_bytes() as f64 * 8.0 / ROWS as f64;
            let speed = lookups as f64 / seconds / 1000.0;
            let more = more as f64 / lookups as f64;
            println!(
                "{:16} {:12} {bits:12.2} {speed:16.1} {more:12.4}",
                pattern.name,
                policy.name()
            );
        }
        if let Some([plain_bits, plain_speed, slim_bits, slim_speed]) = pattern.theirs {
            println!("{:16} {:12} {plain_bits:12.2} {plain_speed:16.1}", "", "(LevelDB)");
            println!("{:16} {:12} {slim_bits:12.2} {slim_speed:16.1}", "", "(SlimDB)");
        }
    }
    Ok(())
}
