//! Files damaged behind the store's back: a clean error that names the file, or the correct rows, never
//! wrong ones.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_engine::{Db, Store, StoreError, StoreResult, ValuePolicy};
use varve_env::sim::SimEnv;
use varve_env::{Env, OpenMode};
use varve_types::FileNo;

use crate::common::*;
use crate::designs::PRESETS;
use crate::repair::repaired;

/// A closed store with tables in several levels and rows in the log, and what it holds.
pub(crate) fn sample(seed: u64) -> (Arc<SimEnv>, Model) {
    sample_of(Designs::Drawn, seed)
}

fn sample_of(designs: Designs, seed: u64) -> (Arc<SimEnv>, Model) {
    let env = SimEnv::new(seed);
    let mut rng = Rng::new(seed);
    let mut model = Model::new();
    for round in 0..3 {
        let mut options = designs.options(&mut |below| env.random() % below);
        if round > 0 && matches!(designs, Designs::Drawn) {
            options.values = ValuePolicy::Separated { bytes_min: 30 };
        }
        let db = Db::open(env.clone(), &store_dir(), options).unwrap();
        let ids = make_spaces(&db).unwrap();
        for _ in 0..150 {
            let ops = random_ops(&mut rng);
            db.write(to_batch(&ids, &ops)).unwrap();
            model.apply(&ops);
        }
        if round < 2 {
            db.flush().unwrap();
        }
        db.close().unwrap();
    }
    (env, model)
}

fn read_all(env: &Arc<SimEnv>) -> StoreResult<Model> {
    let db: Db = open(env)?;
    let ids = make_spaces(&db)?;
    let found = contents(&db, &ids)?;
    for (space, rows) in found.spaces.iter().enumerate() {
        for (key, value) in rows {
            assert_eq!(db.get(ids[space], key)?.as_deref(), Some(&value[..]));
        }
    }
    Ok(found)
}

pub(crate) fn store_files(env: &SimEnv) -> Vec<PathBuf> {
    let mut files = env.files_raw();
    files.retain(|path| path.parent() == Some(&store_dir()) && !path.ends_with("LOCK"));
    files
}

/// Whether `error` is about `path`, and says where in it.
fn names(error: &StoreError, path: &Path, len: u64) -> bool {
    match error {
        StoreError::Damaged { path: named, offset, .. } => named == path && *offset <= len,
        StoreError::NewerFormat { path: named, .. } => named == path,
        _ => false,
    }
}

/// Flips bits in `flips` places of each file of a store, one at a time: wrong rows are never read. Gives how many were
/// noticed, of how many.
pub(crate) fn flip_bits(designs: Designs, seed: u64, flips: u64) -> [usize; 2] {
    let (env, model) = sample_of(designs, seed);
    let files = store_files(&env);
    let mut rng = Rng::new(seed + 1);
    let mut noticed = 0;
    for path in &files {
        let len = env.read_raw(path).unwrap().len() as u64;
        for i in 0..flips {
            let copy = if i % 2 == 0 { env.power_cut_keep_all() } else { env.process_kill() };
            let offset = if i < flips / 5 { len - 1 - i.min(len - 1) } else { rng.below(len) };
            copy.damage(path, offset, 1 << rng.below(8)).unwrap();
            match read_all(&copy) {
                Ok(found) => assert!(found == model, "{} at {offset}: wrong rows", path.display()),
                Err(error) => {
                    noticed += 1;
                    let named = names(&error, path, len);
                    assert!(named, "{} at {offset}: {error}", path.display());
                }
            }
        }
    }
    [noticed, files.len() * flips as usize]
}

#[test]
fn a_flipped_bit_is_an_error_or_harmless() {
    let (env, model) = sample(1);
    assert_eq!(read_all(&env.power_cut_keep_all()).unwrap(), model);
    let files = store_files(&env);
    for kind in ["CURRENT", "MANIFEST", ".wal", ".table", ".seg"] {
        assert!(files.iter().any(|path| path.to_string_lossy().contains(kind)), "no {kind}");
    }
    let presets = PRESETS.iter().map(|(_, design)| (Designs::Always(*design), 10));
    for (designs, flips) in presets.chain([(Designs::Drawn, 40), (Designs::Drawn, 10)]) {
        let [noticed, of] = flip_bits(designs, 1, flips);
        // Nobody reads what is no longer in use of a segment.
        assert!(noticed * 2 > of, "{designs:?}: {noticed} of {of} noticed");
    }
}

/// A stray file's number made the next manifest's name one that was not taken for a manifest's, or left the manifest none
/// that it may say: the store did not open again.
#[test]
fn large_numbers_of_files_are_counted_on_or_refused() {
    let (env, model) = sample(5);
    let put = |number: u64| {
        let path = store_dir().join(format!("{number:012}.map"));
        env.open(&path, OpenMode::CreateNew).unwrap();
        path
    };
    for number in [999_999_999_999, 7_000_000_000_000, FileNo::MAX.get() / 2] {
        put(number);
        for _ in 0..3 {
            assert_eq!(read_all(&env).unwrap(), model);
        }
    }
    for number in [FileNo::MAX.get() - 2, FileNo::MAX.get(), u64::MAX] {
        let path = put(number);
        let error = read_all(&env).unwrap_err();
        assert!(names(&error, &path, 0), "{error}");
        env.remove_raw(&path).unwrap();
        assert_eq!(read_all(&env).unwrap(), model);
    }
    // Nor is a store that has come to such numbers taken for one of stray files where its manifest is lost.
    let manifests = store_files(&env).into_iter().filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name == "CURRENT" || name.starts_with("MANIFEST")
    });
    manifests.for_each(|path| env.remove_raw(&path).unwrap());
    assert!(repaired(&env).manifest_lost.is_some());
    let kept = read_all(&env).unwrap();
    for _ in 0..2 {
        assert_eq!(read_all(&env).unwrap(), kept);
    }
}

#[test]
fn a_missing_or_cut_file_is_an_error_or_harmless() {
    let (env, model) = sample(3);
    let mut rng = Rng::new(4);
    for path in store_files(&env) {
        let len = env.read_raw(&path).unwrap().len() as u64;
        let copy = env.power_cut_keep_all();
        copy.remove_raw(&path).unwrap();
        // That of the manifest serves repairs alone.
        if path.extension().is_some_and(|extension| extension == "copy") {
            assert!(read_all(&copy).unwrap() == model);
        } else {
            let error = read_all(&copy).map(drop).unwrap_err();
            let name = path.file_name().unwrap().to_string_lossy();
            assert!(error.to_string().contains(&*name), "{error}");
        }
        // The end of a log is the one place where a cut cannot be told from a crash.
        if is_log(&path) {
            continue;
        }
        for _ in 0..20 {
            let copy = env.power_cut_keep_all();
            let cut = rng.below(len);
            copy.truncate_raw(&path, cut).unwrap();
            match read_all(&copy) {
                Ok(found) => assert!(found == model, "{} cut at {cut}", path.display()),
                Err(error) => assert!(matches!(error, StoreError::Damaged { .. }), "{error}"),
            }
        }
    }
}

fn is_log(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "wal")
}

/// Fails unless a store whose log `path` was tampered with says so, or as much with the logs that it names.
fn refuses(copy: &Arc<SimEnv>, logs: &[PathBuf], path: &Path, what: &str) {
    let Err(error) = read_all(copy) else { panic!("{}: {what}, unnoticed", path.display()) };
    let named = logs.iter().any(|log| names(&error, log, u64::MAX));
    assert!(named, "{}: {what}: {error}", path.display());
}

/// The newest log of a store that was opened and closed: if it was gone the store went back to what it had been before.
#[test]
fn a_log_that_is_missing_or_another_is_noticed() {
    let mut several = 0;
    for seed in 10..30 {
        let (env, mut model) = sample(seed);
        let mut rng = Rng::new(seed);
        for _ in 0..seed % 4 {
            let db = open(&env).unwrap();
            let (ids, ops) = (make_spaces(&db).unwrap(), random_ops(&mut rng));
            db.write(to_batch(&ids, &ops)).unwrap();
            model.apply(&ops);
            db.close().unwrap();
        }
        let logs: Vec<PathBuf> =
            store_files(&env).into_iter().filter(|path| is_log(path)).collect();
        several += usize::from(logs.len() > 2);
        for path in &logs {
            for copy in [env.power_cut_keep_all(), env.process_kill()] {
                copy.remove_raw(path).unwrap();
                refuses(&copy, std::slice::from_ref(path), path, "missing");
            }
            for other in logs.iter().filter(|other| *other != path) {
                let copy = env.power_cut_keep_all();
                copy.truncate_raw(path, 0).unwrap();
                copy.write_raw(path, 0, &env.read_raw(other).unwrap()).unwrap();
                refuses(&copy, &logs, path, "another log");
            }
        }
        assert_eq!(read_all(&env.power_cut_keep_all()).unwrap(), model);
    }
    assert!(several > 5, "{several} stores with more than two logs");
}

#[test]
fn a_table_in_the_place_of_another_is_noticed() {
    let (env, _) = sample(5);
    let files = store_files(&env);
    let is_table = |path: &&PathBuf| path.to_string_lossy().ends_with(".table");
    let tables: Vec<&PathBuf> = files.iter().filter(is_table).collect();
    assert!(tables.len() > 2);
    for pair in tables.windows(2) {
        let copy = env.power_cut_keep_all();
        let other = env.read_raw(pair[1]).unwrap();
        copy.truncate_raw(pair[0], 0).unwrap();
        copy.write_raw(pair[0], 0, &other).unwrap();
        let error = read_all(&copy).unwrap_err();
        assert!(names(&error, pair[0], u64::MAX), "{error}");
    }
}

/// A read that fails is an error of that read only.
#[test]
fn a_failed_read_is_not_the_end() {
    let (env, model) = sample(7);
    let env = env.power_cut_keep_all();
    let db = open(&env).unwrap();
    let ids = make_spaces(&db).unwrap();
    env.fail(varve_env::sim::FaultRule {
        path_suffix: ".table".to_owned(),
        op: varve_env::sim::SimOp::Read,
        nth: 1,
        errno: 5,
        sticky: true,
    });
    let error = contents(&db, &ids).unwrap_err();
    assert!(matches!(error, StoreError::Io { .. }), "{error}");
    env.clear_faults();
    assert_eq!(contents(&db, &ids).unwrap(), model);
    db.write(to_batch(&ids, &[])).unwrap();
}
