//! Every crash of seeded runs of the whole store: rows, logs, tables, large files. See
//! [`varve_testkit::crash::explore`] for what is done at each point.
//!
//! A failure prints the command that replays it. `cargo xtask soak crash` goes on with other seeds.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_engine::options::{CompactionPolicy, DbOptions};
use varve_env::Env;
use varve_env::sim::{SimEnv, SimOp};
use varve_fs::fsck::Severity;
use varve_fs::{FormatOptions, MountOptions, NewFiles, VarveFs, format};
use varve_testkit::crash::{
    Exploration, Found, Image, NewLarge, Script, ScriptOptions, Step, Subject, Tally, Violation,
    explore,
};
use varve_testkit::fsops::Session;
use varve_testkit::skipped;
use varve_vfs::Vfs;

use crate::crash::STORE;
use crate::support::{Calls, ROOT};

/// Small enough for a few pages of writes to cross it.
pub(crate) const THRESHOLD_BYTES: u64 = 16 << 10;
/// Where [`NewFiles::Auto`] guesses: after so many large files of one directory the next begins large.
pub(crate) const GUESSED_LARGE: NewLarge = NewLarge::After(4);
const THREADS: usize = 2;

/// A store whose logs, tables and manifests are so small that all of them are replaced during one run.
pub(crate) struct Store;

pub(crate) fn tiny_engine(compaction: CompactionPolicy) -> DbOptions {
    DbOptions {
        compaction,
        memtable_bytes: 6 << 10,
        table_bytes: 4 << 10,
        block_bytes: 1024,
        sublevels_trigger: 2,
        level_base_bytes: 16 << 10,
        level_multiplier: 3,
        space_reserve_bytes: 0,
        manifest_bytes_max: 2000,
        ..DbOptions::with_memory_budget(1 << 20)
    }
}

pub(crate) fn open_tiny(env: &Arc<SimEnv>, options: MountOptions) -> Result<VarveFs, String> {
    let env: Arc<dyn Env> = Arc::clone(env) as Arc<dyn Env>;
    // A store may change its policy at every open; here each machine and each boot chooses one.
    const POLICIES: [CompactionPolicy; 3] =
        [CompactionPolicy::Leveled, CompactionPolicy::Stepped, CompactionPolicy::LazyLeveled];
    let policy = POLICIES[(env.boot_id() >> 64) as usize % POLICIES.len()];
    VarveFs::open_with(env, Path::new(STORE), options, tiny_engine(policy))
        .map_err(|error| error.to_string())
}

impl Subject for Store {
    type Fs = VarveFs;

    fn format(&self, env: &Arc<SimEnv>) -> Result<(), String> {
        let env: Arc<dyn Env> = Arc::clone(env) as Arc<dyn Env>;
        let options = FormatOptions {
            large_file_threshold_bytes: THRESHOLD_BYTES,
            ..FormatOptions::default()
        };
        format(&env, Path::new(STORE), &options).map(drop).map_err(|error| error.to_string())
    }

    fn open(&self, env: &Arc<SimEnv>) -> Result<VarveFs, String> {
        open_tiny(env, MountOptions::default())
    }

    fn problems(&self, fs: &VarveFs) -> Result<Vec<String>, String> {
        let report = fs.check(&mut |_| ()).map_err(|error| format!("check: {error}"))?;
        let broken = report.findings.iter().filter(|f| f.severity() != Severity::Waste);
        Ok(broken.map(ToString::to_string).collect())
    }

    fn close(&self, fs: VarveFs) -> Result<(), String> {
        fs.close().map_err(|error| error.to_string())
    }
}

/// The same where every file that is written begins as a large one.
struct BeginsLarge;

impl Subject for BeginsLarge {
    type Fs = VarveFs;

    fn format(&self, env: &Arc<SimEnv>) -> Result<(), String> {
        Store.format(env)
    }

    fn open(&self, env: &Arc<SimEnv>) -> Result<VarveFs, String> {
        open_tiny(env, MountOptions { new_files: NewFiles::Large, ..MountOptions::default() })
    }

    fn problems(&self, fs: &VarveFs) -> Result<Vec<String>, String> {
        Store.problems(fs)
    }

    fn close(&self, fs: VarveFs) -> Result<(), String> {
        Store.close(fs)
    }
}

pub(crate) fn script(seed: u64, steps: usize, restarts: bool) -> Script {
    script_with(seed, steps, restarts, GUESSED_LARGE)
}

/// Which files begin large on a mount with this option.
pub(crate) fn new_large(new_files: NewFiles) -> NewLarge {
    match new_files {
        NewFiles::Auto => GUESSED_LARGE,
        NewFiles::Small => NewLarge::Never,
        NewFiles::Large => NewLarge::Always,
    }
}

pub(crate) fn script_with(seed: u64, steps: usize, restarts: bool, new_large: NewLarge) -> Script {
    let large_file_threshold_bytes = THRESHOLD_BYTES;
    let (clones_percent, copies_percent) = (0, 0);
    let options = ScriptOptions {
        steps,
        large_file_threshold_bytes,
        new_large,
        restarts,
        clones_percent,
        copies_percent,
    };
    Script::new(seed, &options).unwrap()
}

/// How much is explored of one script.
fn everything() -> Exploration {
    Exploration {
        cuts: 1,
        storage_cuts: 0,
        stride: 1,
        only: None,
        left_out: Vec::new(),
        threads: THREADS,
    }
}

/// Explores every second point of seeded scripts; gives how many points there were.
pub(crate) fn explore_seeds<S: Subject + Sync>(
    subject: &S,
    seeds: std::ops::Range<u64>,
    options: &ScriptOptions,
) -> u64 {
    let exploration = Exploration { stride: 2, ..everything() };
    let explored = |seed| {
        explore(subject, &Script::new(seed, options).unwrap(), &exploration)
            .unwrap_or_else(|v| panic!("seed {seed}, point {}: {}", v.point, v.what))
    };
    seeds.map(|seed| explored(seed).points).sum()
}

const STEPS: usize = 150;

/// Explores the script of `steps` steps; for every third seed files begin large.
fn explored(seed: u64, steps: usize, exploration: &Exploration) -> Result<Tally, Violation> {
    match seed % 3 {
        2 => explore(&BeginsLarge, &script_with(seed, steps, true, NewLarge::Always), exploration),
        _ => explore(&Store, &script(seed, steps, true), exploration),
    }
}

/// What is wrong, and how to see it again in a script of `steps` steps.
fn report(violation: &Violation, steps: usize) -> String {
    let Violation { seed, point, image, what } = violation;
    let image = image.map_or("nothing".to_owned(), |image| image.to_string());
    format!(
        "seed {seed}, point {point}, image {image}: {what}\nreplay: VARVE_CRASH_POINT={seed}/{steps}/{point}/{image} \
         cargo test -p varve-fs --test it -- --ignored --exact crash_points::replay --nocapture"
    )
}

#[test]
fn every_crash_of_the_whole_store_keeps_the_promises() {
    let mut sum = Tally::default();
    for seed in 0..12 {
        let tally = explored(seed, STEPS, &everything())
            .unwrap_or_else(|v| panic!("{}", report(&v, STEPS)));
        sum.add(tally);
    }
    println!("{sum:?}");
    assert!(sum.points > 3750 && sum.images > 18_750, "{sum:?}");
}

/// The disk loses its power while the machine goes on, and is the same to it: rows are as after a power cut, and so are the large files that
/// were not changed since they were synced; what is lost of others without a gap in the log is told of, and can be removed.
#[test]
fn storage_without_power_loses_large_files_alone_and_only_what_was_not_synced() {
    let mut sum = Tally::default();
    for seed in 0..12 {
        let exploration = Exploration { cuts: 0, storage_cuts: 2, ..everything() };
        let tally =
            explored(seed, STEPS, &exploration).unwrap_or_else(|v| panic!("{}", report(&v, STEPS)));
        sum.add(tally);
    }
    println!("{sum:?}");
    assert!(sum.points > 3750 && sum.images > 7500, "{sum:?}");
}

/// What is lost although it was synced must be noticed there too.
#[test]
fn canary_storage_without_power_that_ignores_syncs_is_noticed() {
    for path_part in [".wal", "/objects/"] {
        let left_out = vec![(SimOp::Sync, path_part.to_owned())];
        let exploration = Exploration { cuts: 0, storage_cuts: 2, left_out, ..everything() };
        let noticed = (0..8).find_map(|seed| explored(seed, STEPS, &exploration).err());
        assert!(noticed.is_some(), "without syncs of {path_part} nothing is noticed");
    }
}

/// A sync left out must be noticed, wherever it is.
#[test]
fn canary_each_sync_that_is_left_out_is_noticed() {
    let left_out = [
        (SimOp::Sync, ".wal"),
        (SimOp::Sync, "MANIFEST-"),
        (SimOp::Sync, ".table"),
        // The rename that puts a manifest in force comes before the sync of what it renames.
        (SimOp::Sync, "CURRENT"),
        (SimOp::SyncDir, "/engine"),
        // Large files, before the rows that claim them.
        (SimOp::Sync, "/objects/"),
        // The first sync of a process.
        (SimOp::SyncFs, "/objects"),
    ];
    for (op, path_part) in left_out {
        let mut exploration = everything();
        exploration.left_out = vec![(op, path_part.to_owned())];
        let noticed = (0..8).find_map(|seed| explored(seed, STEPS, &exploration).err());
        match noticed {
            Some(violation) => println!("{op:?} of {path_part}: {}", report(&violation, STEPS)),
            None => panic!("without {op:?} of {path_part} nothing is noticed"),
        }
    }
}

/// The name of a large file must be durable before the row that claims it. Most runs do not show it: the
/// first sync of a process covers all objects, and so does the sync of the same directory for a removed one.
#[test]
fn canary_a_left_out_sync_of_the_directory_of_objects_is_noticed() {
    let found_after = |left_out: &[&str]| {
        let env = SimEnv::new(1);
        Store.format(&env).unwrap();
        let fs = Store.open(&env).unwrap();
        // The directories of objects are made and durable.
        let first = fs.mk(ROOT, "first");
        fs.put_at(first, 0, &[1; 2 * THRESHOLD_BYTES as usize]);
        fs.sync().unwrap();
        left_out.iter().for_each(|part| env.ignore_syncs_of(SimOp::SyncDir, part));
        let second = fs.mk(ROOT, "second");
        fs.put_at(second, 0, &[2; 2 * THRESHOLD_BYTES as usize]);
        fs.sync().unwrap();
        let fs = Store.open(&env.power_cut_keep_nothing()).unwrap();
        (Store.problems(&fs).unwrap(), Found::read(&fs).is_ok())
    };
    assert_eq!(found_after(&[]), (Vec::new(), true));
    let (problems, readable) = found_after(&["/objects/0/0"]);
    assert!(!problems.is_empty() && !readable, "{problems:?}");
}

/// Replays one image: `VARVE_CRASH_POINT=SEED/STEPS/POINT/IMAGE`.
#[test]
#[ignore = "replays what a failure printed"]
fn replay() {
    let Ok(wanted) = std::env::var("VARVE_CRASH_POINT") else {
        return skipped("VARVE_CRASH_POINT names no image to replay");
    };
    let parts: Vec<&str> = wanted.split('/').collect();
    let [seed, steps, point, image] = parts[..] else {
        panic!("{wanted} is not SEED/STEPS/POINT/IMAGE")
    };
    let image: Image = image.parse().unwrap();
    let exploration = Exploration { only: Some((point.parse().unwrap(), image)), ..everything() };
    let steps = steps.parse().unwrap();
    let tally = explored(seed.parse().unwrap(), steps, &exploration);
    let tally = tally.unwrap_or_else(|violation| panic!("{}", report(&violation, steps)));
    assert!(tally.images > 0, "there is no point {point} in this script");
    println!("{tally:?}: the promises are kept");
}

#[test]
#[ignore = "takes as long as it is told"]
fn soak() {
    let mut sum = Tally::default();
    let told = varve_testkit::soak(|seed| {
        // Longer runs now and then, which reach more levels.
        let steps = if seed % 4 == 0 { 6 * STEPS } else { STEPS };
        let exploration = Exploration { cuts: 2, ..everything() };
        let tally = explored(seed, steps, &exploration);
        let tally = tally.unwrap_or_else(|violation| panic!("{}", report(&violation, steps)));
        sum.add(tally);
    });
    println!("{told}: {sum:?}");
}

/// They were explored on a store without views, which no mount is.
#[test]
fn the_store_whose_crashes_are_explored_has_views() {
    let env = SimEnv::new(1);
    Store.format(&env).unwrap();
    let fs = Store.open(&env).unwrap();
    fs.create_snapshot("s").unwrap();
    Store.close(fs).unwrap();
}

/// A replay needs the same operations below in the same order, byte for byte.
#[test]
fn one_seed_makes_one_run() {
    let trace = |seed| {
        let env = SimEnv::new(seed);
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let record = Arc::clone(&seen);
        env.watch(Box::new(move |entry, _| record.lock().push(entry.to_string())));
        Store.format(&env).unwrap();
        let fs = Store.open(&env).unwrap();
        let mut session = Session::default();
        for step in &script(seed, 300, false).steps {
            if let Step::Op(op) = step {
                session.apply(&fs, op);
            }
        }
        session.release_all(&fs).unwrap();
        Store.close(fs).unwrap();
        let files = env.files_raw().into_iter().map(|path| (env.read_raw(&path).unwrap(), path));
        (std::mem::take(&mut *seen.lock()), files.collect::<Vec<_>>())
    };
    for seed in 0..4 {
        let ((first, files), (second, same_files)) = (trace(seed), trace(seed));
        let differ = first.iter().zip(&second).find(|(a, b)| a != b);
        assert_eq!((differ, first.len()), (None, second.len()), "seed {seed}");
        assert!(files == same_files, "seed {seed}: other bytes in the same places");
    }
}
