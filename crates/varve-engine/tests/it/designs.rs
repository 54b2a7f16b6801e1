//! Stores of every kind: the presets, and any combination of the policies that a store may be opened with.
//!
//! A combination is drawn number by number: from a seed, from the randomness of a simulated machine, or from what a
//! fuzzer makes up. Policies are drawn each for itself, also where no design names them together, as the engine promises
//! to cope with tables of all of them in one store. Sizes are small, so that a few hundred rows reach several levels;
//! half of the combinations have blocks of whole pages, which all indexes but the plain one need.

use varve_engine::design::{Compaction, TableFilter, TableIndex, Values};
use varve_engine::options::{CompactionPolicy, FilteredLevels, Tuning};
use varve_engine::{DbOptions, StoreDesign, ValuePolicy};
use varve_format::filter::FilterPolicy;
use varve_format::index::IndexPolicy;

/// Gives a number below another.
pub(crate) type Draw<'a> = &'a mut dyn FnMut(u64) -> u64;

/// The designs that have names, and one more of a compaction that none of them has.
pub(crate) const PRESETS: [(&str, StoreDesign); 6] = [
    ("tablefs", StoreDesign::TABLEFS),
    ("tablefs-column", StoreDesign::TABLEFS_COLUMN),
    ("slimfs", StoreDesign::SLIMFS),
    ("kvfs", StoreDesign::KVFS),
    (
        "default",
        StoreDesign {
            compaction: Compaction::LazyLeveled,
            index: TableIndex::EliasFano,
            filter: TableFilter::Fuse,
            ..StoreDesign::TABLEFS
        },
    ),
    (
        "stepped without filters",
        StoreDesign {
            compaction: Compaction::Stepped,
            index: TableIndex::ThreeLevel,
            filter: TableFilter::None,
            values: Values::Separated,
            ..StoreDesign::TABLEFS
        },
    ),
];

/// Calls `try_one` with each preset, and a seed of its own.
pub(crate) fn try_presets(try_one: impl Fn(Designs, u64) -> Result<(), String>) {
    for (seed, (name, design)) in (0..).zip(PRESETS) {
        try_one(Designs::Always(design), seed).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// What a store is opened with over its life.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Designs {
    /// Another combination at each open.
    Drawn,
    /// One design.
    Always(StoreDesign),
}

impl Designs {
    /// What the next open is to be given.
    pub(crate) fn options(self, draw: Draw<'_>) -> DbOptions {
        match self {
            Designs::Drawn => drawn(draw),
            Designs::Always(design) => options_of(design),
        }
    }
}

/// Everything is small, so that a few hundred writes reach every level.
pub(crate) fn small_options() -> DbOptions {
    DbOptions {
        memtable_bytes: 8 << 10,
        table_bytes: 4 << 10,
        block_bytes: 512,
        sublevels_trigger: 2,
        level_base_bytes: 12 << 10,
        level_multiplier: 3,
        space_reserve_bytes: 0,
        manifest_bytes_max: 1500,
        ..DbOptions::with_memory_budget(1 << 20)
    }
}

/// A store of `design` whose tables are small, but have blocks of whole pages, which most indexes need.
pub(crate) fn options_of(design: StoreDesign) -> DbOptions {
    let mut options = small_options();
    design.apply(&mut options);
    let small = small_options();
    (options.sublevels_trigger, options.level_multiplier) = (3, small.level_multiplier);
    (options.block_bytes, options.memtable_bytes) = (4096, 16 << 10);
    (options.table_bytes, options.level_base_bytes) = (24 << 10, 48 << 10);
    options.stitch_threshold_bytes = options.stitch_threshold_bytes.min(4096);
    if design.values == Values::Separated {
        options.values = ValuePolicy::Separated { bytes_min: 200 };
    }
    options
}

/// Any combination.
fn drawn(draw: Draw<'_>) -> DbOptions {
    let mut options = small_options();
    sizes(&mut options, draw);
    options.compaction = one(
        draw,
        &[
            CompactionPolicy::Leveled,
            CompactionPolicy::Stepped,
            CompactionPolicy::LazyLeveled,
            CompactionPolicy::Stitched,
        ],
    );
    options.stitch_threshold_bytes = match options.compaction {
        CompactionPolicy::LazyLeveled | CompactionPolicy::Stitched => {
            one(draw, &[0, 512, 512, 1 << 10, 4 << 10])
        }
        CompactionPolicy::Leveled | CompactionPolicy::Stepped => 0,
    };
    options.tuning = one(draw, &[Tuning::Fixed, Tuning::Fixed, Tuning::Auto]);
    let indexes = [IndexPolicy::Plain, IndexPolicy::EliasFano, IndexPolicy::ThreeLevel];
    options.index = one(draw, &indexes);
    options.filter = filter(draw);
    options.filtered_levels = one(draw, &[FilteredLevels::All, FilteredLevels::Upper(1)]);
    options.sublevel_map = one(draw, &[false, true]);
    let apart = |bytes_min| ValuePolicy::Separated { bytes_min };
    options.values = match one(draw, &[false, false, true]) {
        true => one(draw, &[apart(1), apart(50), apart(200)]),
        false => ValuePolicy::InRow,
    };
    options.dead_percent_max = one(draw, &[0, 25, 100]);
    options
}

fn sizes(options: &mut DbOptions, draw: Draw<'_>) {
    let is_paged = one(draw, &[false, true]);
    if is_paged {
        options.block_bytes = one(draw, &[4 << 10, 4 << 10, 8 << 10]);
        (options.memtable_bytes, options.level_base_bytes) = (24 << 10, 48 << 10);
        options.table_bytes = one(draw, &[8 << 10, 24 << 10, 40 << 10]);
    } else {
        options.block_bytes = one(draw, &[256, 512, 1 << 10]);
        options.table_bytes = one(draw, &[1 << 10, 2 << 10, 4 << 10]);
    }
    options.sublevels_trigger = one(draw, &[2, 3, 5]);
    options.level_multiplier = one(draw, &[2, 3, 10]);
    options.open_tables_max = one(draw, &[512, 3]);
}

fn filter(draw: Draw<'_>) -> FilterPolicy {
    let bits = |draw: Draw<'_>, bits: [u8; 3]| one(draw, &bits);
    match draw(5) {
        0 => FilterPolicy::Bloom { bits_per_key: bits(draw, [1, 10, 16]) },
        1 => FilterPolicy::Cuckoo { fingerprint_bits: bits(draw, [4, 12, 32]) },
        2 => FilterPolicy::Quotient { remainder_bits: bits(draw, [1, 8, 32]) },
        3 => FilterPolicy::Fuse { fingerprint_bits: bits(draw, [1, 8, 32]) },
        _ => FilterPolicy::None,
    }
}

fn one<T: Copy>(draw: Draw<'_>, choices: &[T]) -> T {
    choices[draw(choices.len() as u64) as usize]
}

#[test]
fn every_combination_is_drawn() {
    use std::collections::BTreeSet;

    let mut rng = crate::common::Rng::new(1);
    let kinds = (0..20_000).map(|_| {
        let options = drawn(&mut |below| rng.below(below));
        let is_paged = options.block_bytes >= 4 << 10;
        let apart = options.values != ValuePolicy::InRow;
        let stitches = options.stitch_threshold_bytes > 0;
        let index = format!("{:?}", options.index);
        let filter = format!("{:?}", options.filter.kind());
        let compaction = format!("{:?}", options.compaction);
        (compaction, stitches, index, filter, options.sublevel_map, apart, is_paged)
    });
    // Two of four compactions stitch or not.
    assert_eq!(kinds.collect::<BTreeSet<_>>().len(), 6 * 3 * 5 * 2 * 2 * 2);
}
