//! Room, time and false positives of filters: `filters [KEYS]`, in each of 8 sub-levels.
//!
//! 1. Every kind of table filter: bits per key, building and asking.
//! 2. SlimDB's experiment (thesis 5.5.4): 8 sub-levels of random keys of 16 bytes, of which a share is in
//!    several; a cuckoo filter of 16 bits for each sub-level beside one multi-level filter of 12 + 4 bits.
//!    The thesis's tables 5.6 and 5.7 are printed beside ours. Its figure 5.14 has no numbers but the shape:
//!    the multi-level filter is faster at every share.
//!
//! Times are of the processor, of one thread.

mod shared;

use varve_env::os::OsEnv;
use varve_format::filter::multi_level::{MultiLevelFilter, Prior, Widths};
use varve_format::filter::{Filter, FilterPolicy, SubLevel, filter_hash};
use varve_testkit::rng;

const LEVELS: u64 = 8;
const TABLE_KEYS: u64 = 1_000_000;
/// Millions of insertions a second at shares of 0 to 90 percent: thesis table 5.7, cuckoo and multi-level.
const THEIRS: [(u64, f64, f64); 6] = [
    (0, 2.0, 0.86),
    (10, 2.05, 0.90),
    (30, 2.05, 0.98),
    (50, 2.05, 1.11),
    (70, 2.05, 1.31),
    (90, 2.05, 1.40),
];

/// Spreads numbers over all bits.
fn mix(number: u64) -> u64 {
    rng::mix(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn key(number: u64) -> [u8; 16] {
    ((u128::from(mix(number)) << 64) | u128::from(mix(!number))).to_be_bytes()
}

/// The `i`th key of a sub-level whose share of keys that all sub-levels have is `percent`.
fn member(level: u64, i: u64, keys: u64, percent: u64) -> u64 {
    if i < keys * percent / 100 { i } else { (level << 40) + i }
}

/// What `step` returns, and how many million of `count` steps a second it takes.
fn timed<T>(env: &OsEnv, count: u64, step: impl FnOnce() -> T) -> (T, f64) {
    let start = shared::cpu_ns(env);
    let made = step();
    (made, count as f64 * 1000.0 / (shared::cpu_ns(env) - start).max(1) as f64)
}

fn table_filters(env: &OsEnv, keys: u64) {
    println!("one table of {keys} keys; millions a second");
    println!(
        "{:28} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "bits/key", "passed", "build", "present", "absent"
    );
    let hashes: Vec<u64> = (0..keys).map(|i| filter_hash(&key(i))).collect();
    let absent: Vec<u64> = (0..keys).map(|i| filter_hash(&key(i | 1 << 50))).collect();
    for policy in [
        FilterPolicy::Bloom { bits_per_key: 10 },
        FilterPolicy::Cuckoo { fingerprint_bits: 12 },
        FilterPolicy::Quotient { remainder_bits: 8 },
        FilterPolicy::Fuse { fingerprint_bits: 8 },
    ] {
        let given = hashes.clone();
        let (built, build) = timed(env, keys, || Filter::build(policy, given));
        let Some(filter) = built else { continue };
        let ask = |hashes: &[u64]| hashes.iter().filter(|hash| filter.may_contain(**hash)).count();
        let (_, present) = timed(env, keys, || ask(&hashes));
        let (passed, denied) = timed(env, keys, || ask(&absent));
        let (bits, passed) =
            (filter.memory_bytes() as f64 * 8.0 / keys as f64, passed as f64 / keys as f64);
        let name = format!("{policy:?}");
        let name: String = name.chars().filter(|c| !c.is_whitespace()).take(28).collect();
        println!("{name:28} {bits:9.2} {passed:9.5} {build:9.2} {present:9.2} {denied:9.2}");
    }
}

/// Figures of the filters of one store: bits per key, part of absent keys passed, and millions of
/// insertions, lookups of present keys and of absent keys a second.
struct Figures {
    bits: f64,
    passed: f64,
    insert: f64,
    present: f64,
    absent: f64,
}

/// A cuckoo filter for each sub-level, asked from the newest on.
fn cuckoo(env: &OsEnv, keys: u64, percent: u64) -> Figures {
    let policy = FilterPolicy::Cuckoo { fingerprint_bits: 16 };
    let all = keys * LEVELS;
    let (filters, insert) = timed(env, all, || {
        let of = |level| (0..keys).map(move |i| filter_hash(&key(member(level, i, keys, percent))));
        let build = |level| Filter::build(policy, of(level).collect());
        (1..=LEVELS).rev().filter_map(build).collect::<Vec<_>>()
    });
    let ask = |number: u64| {
        let hash = filter_hash(&key(number));
        filters.iter().filter(|filter| filter.may_contain(hash)).count()
    };
    let first = |number: u64| {
        let hash = filter_hash(&key(number));
        usize::from(filters.iter().any(|filter| filter.may_contain(hash)))
    };
    let bytes: usize = filters.iter().map(Filter::memory_bytes).sum();
    figures(env, keys, percent, bytes, insert, first, ask)
}

fn multi_level(env: &OsEnv, keys: u64, percent: u64) -> Figures {
    let all = keys * LEVELS;
    let shared = keys * percent / 100;
    let (filter, insert) = timed(env, all, || {
        let distinct = (shared + (keys - shared) * LEVELS) as usize;
        let mut filter = MultiLevelFilter::new(distinct, Widths::DEFAULT);
        let levels = (1..=LEVELS).filter_map(|level| Some((level, SubLevel::new(level as u8)?)));
        let mut before = None;
        for (number, level) in levels {
            for i in 0..keys {
                let key = key(member(number, i, keys, percent));
                let prior = before.filter(|_| i < shared).map_or(Prior::Absent, Prior::At);
                filter.insert(&key, filter_hash(&key), level, prior);
            }
            before = Some(level);
        }
        filter
    });
    let ask = |number: u64| {
        let key = key(number);
        filter.lookup(&key, filter_hash(&key)).len()
    };
    figures(env, keys, percent, filter.memory_bytes(), insert, ask, ask)
}

fn figures(
    env: &OsEnv,
    keys: u64,
    percent: u64,
    bytes: usize,
    insert: f64,
    find: impl Fn(u64) -> usize,
    count: impl Fn(u64) -> usize,
) -> Figures {
    let all = keys * LEVELS;
    let (_, present) = timed(env, all, || {
        let any = |i| member(1 + mix(i) % LEVELS, mix(!i) % keys, keys, percent);
        (0..all).map(|i| find(any(i))).sum::<usize>()
    });
    let (passed, absent) = timed(env, all, || (0..all).map(|i| count(i | 1 << 60)).sum::<usize>());
    let (bits, passed) = (bytes as f64 * 8.0 / all as f64, passed as f64 / all as f64);
    Figures { bits, passed, insert, present, absent }
}

fn main() {
    let env = OsEnv::new();
    let argument = std::env::args().nth(1).and_then(|keys| keys.parse().ok());
    let keys: u64 = argument.unwrap_or(250_000);
    table_filters(&env, TABLE_KEYS);
    println!("\n8 sub-levels of {keys} keys; millions a second (theirs in parentheses)");
    println!(
        "{:6} {:12} {:>16} {:>16} {:>14} {:>9} {:>9}",
        "shared", "", "bits/key", "passed", "insert", "present", "absent"
    );
    for (percent, cuckoo_insert, multi_insert) in THEIRS {
        let first = |text: &str| if percent == 0 { text.to_owned() } else { String::new() };
        let rows = [
            (
                "cuckoo",
                cuckoo(&env, keys, percent),
                first("(16.78)"),
                first("(.001)"),
                cuckoo_insert,
            ),
            (
                "multi-level",
                multi_level(&env, keys, percent),
                first("(16.67)"),
                first("(.002)"),
                multi_insert,
            ),
        ];
        for (name, ours, bits, passed, insert) in rows {
            println!(
                "{percent:4} % {name:12} {:8.2} {bits:7} {:9.5} {passed:6} {:6.2} ({insert:4.2}) {:9.2} {:9.2}",
                ours.bits, ours.passed, ours.insert, ours.present, ours.absent
            );
        }
    }
}
