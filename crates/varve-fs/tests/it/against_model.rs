//! Random operations on the file system and on the model, which must answer alike.

use std::path::Path;
use std::sync::Arc;

use varve_engine::StoreDesign;
use varve_engine::design::{Compaction, StitchThreshold, TableFilter, TableIndex, Values};
use varve_engine::options::Tuning;
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::{FormatOptions, MountOptions, NewFiles, VarveFs, format};
use varve_testkit::fsops::{Lockstep, Mismatch, Times, TreeDump, tree};
use varve_vfs::Vfs;

const STORE: &str = "/store";

fn open(env: &Arc<SimEnv>, options: &MountOptions) -> VarveFs {
    let env: Arc<dyn Env> = env.clone();
    VarveFs::open(env, Path::new(STORE), options.clone()).unwrap()
}

/// Does `run` in lockstep `rounds` times, with a check and a remount after each, and compares the trees: with the model's, but
/// for the times, which are of another clock, and with the times with what was there before the remount.
pub(crate) fn run_rounds(
    mut lockstep: Lockstep,
    open: &dyn Fn() -> VarveFs,
    rounds: u64,
    run: &dyn Fn(&mut Lockstep, &VarveFs) -> Result<(), Mismatch>,
) {
    let mut before: Option<TreeDump> = None;
    let expect_kept = |before: &Option<TreeDump>, fs: &VarveFs| {
        let Some(before) = before else { return };
        assert_eq!(before.differences(&tree(fs).unwrap(), Times::Compare), [""; 0]);
    };
    for round in 0..rounds {
        let fs = open();
        expect_kept(&before, &fs);
        run(&mut lockstep, &fs).unwrap();
        lockstep.check_tree(&fs).unwrap();
        lockstep.check_usage(&fs).unwrap();
        lockstep.release_all(&fs).unwrap();
        fs.sync().unwrap();
        let report = fs.check(&mut |_| ()).unwrap();
        assert_eq!(report.findings, [], "round {round}");
        before = Some(tree(&fs).unwrap());
        fs.close().unwrap();
    }
    let fs = open();
    expect_kept(&before, &fs);
    lockstep.check_tree(&fs).unwrap();
    lockstep.check_usage(&fs).unwrap();
}

/// Runs `rounds` times `ops` operations with a remount after each round, and compares the trees.
fn lockstep(
    seed: u64,
    format_options: &FormatOptions,
    options: &MountOptions,
    rounds: u64,
    ops: u64,
) {
    let env = SimEnv::new(seed);
    let dyn_env: Arc<dyn Env> = env.clone();
    format(&dyn_env, Path::new(STORE), format_options).unwrap();
    let open = || open(&env, options);
    run_rounds(Lockstep::new(seed), &open, rounds, &|lockstep, fs| lockstep.run(fs, ops));
}

#[test]
fn random_operations_answer_as_the_model_does() {
    for seed in 0..12 {
        lockstep(seed, &FormatOptions::default(), &MountOptions::default(), 4, 300);
    }
}

#[test]
fn random_operations_with_colliding_names_answer_as_the_model_does() {
    for seed in 100..106 {
        let narrow = FormatOptions { name_hash_bits: 1, ..FormatOptions::default() };
        lockstep(seed, &narrow, &MountOptions::default(), 4, 300);
    }
}

#[test]
fn random_operations_with_a_low_threshold_answer_as_the_model_does() {
    for seed in 200..206 {
        let low = FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
        lockstep(seed, &low, &MountOptions::default(), 4, 300);
    }
}

#[test]
fn random_operations_with_little_memory_answer_as_the_model_does() {
    for seed in 400..403 {
        let tight = MountOptions { memory_budget_bytes: 1 << 19, ..MountOptions::default() };
        lockstep(seed, &FormatOptions::default(), &tight, 3, 600);
    }
}

#[test]
fn random_operations_with_places_spilled_to_the_store_answer_as_the_model_does() {
    for seed in 300..306 {
        let tiny = MountOptions { located_inodes_max: Some(64), ..MountOptions::default() };
        lockstep(seed, &FormatOptions::default(), &tiny, 4, 300);
    }
}

#[test]
fn random_operations_with_few_directories_marked_answer_as_the_model_does() {
    for seed in 500..506 {
        let few = MountOptions { marked_dirs_max: 2, ..MountOptions::default() };
        lockstep(seed, &FormatOptions::default(), &few, 4, 300);
    }
}

#[test]
fn random_operations_on_files_that_begin_large_answer_as_the_model_does() {
    for seed in 600..606 {
        let large = MountOptions { new_files: NewFiles::Large, ..MountOptions::default() };
        lockstep(seed, &FormatOptions::default(), &large, 4, 300);
    }
}

/// Little memory, so that tables are made and merged.
#[test]
fn random_operations_on_each_design_answer_as_the_model_does() {
    let compactions =
        [Compaction::Leveled, Compaction::Stepped, Compaction::LazyLeveled, Compaction::Stitched];
    let indexes = [TableIndex::Plain, TableIndex::EliasFano, TableIndex::ThreeLevel];
    let filters = [
        TableFilter::None,
        TableFilter::Bloom,
        TableFilter::Cuckoo,
        TableFilter::Quotient,
        TableFilter::Fuse,
        TableFilter::MultiLevelCuckoo,
    ];
    for seed in 0..18_u64 {
        let at = seed as usize;
        let (compaction, index) = (compactions[at % 4], indexes[at % 5 % 3]);
        let (filter, values) = (filters[at / 3], [Values::InRow, Values::Separated][at % 7 % 2]);
        let stitch_threshold_bytes = StitchThreshold::new(4096 << (at % 3)).unwrap();
        let tuning = if seed % 4 == 3 { Tuning::Auto } else { Tuning::Fixed };
        let design = StoreDesign {
            compaction,
            index,
            filter,
            stitch_threshold_bytes,
            tuning,
            values,
            ..StoreDesign::default()
        };
        let format_options = FormatOptions { design, ..FormatOptions::default() };
        let tight = MountOptions { memory_budget_bytes: 1 << 19, ..MountOptions::default() };
        lockstep(500 + seed, &format_options, &tight, 3, 400);
    }
}
