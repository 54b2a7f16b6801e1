//! Repaired stores open again, and hold all that could be read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_engine::repair::{EngineRepair, LostRows, RepairOptions, repair};
use varve_engine::{Db, Store};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_types::KeyspaceId;

use crate::common::*;
use crate::damage::{sample, store_files};

pub(crate) fn repaired(env: &Arc<SimEnv>) -> EngineRepair {
    let options = RepairOptions {
        db: small_options(),
        keyspaces: SPACES.iter().map(|(name, space)| ((*name).to_owned(), *space)).collect(),
        aside: PathBuf::from("/aside"),
    };
    let env: Arc<dyn Env> = env.clone();
    repair(&env, &store_dir(), &options).unwrap()
}

/// What the store holds after a repair; a second repair and a verification find nothing.
fn after(env: &Arc<SimEnv>) -> Model {
    let again = repaired(env);
    assert!(again.did_nothing(), "{again:?}");
    let db: Db = open(env).unwrap();
    assert!(db.verify(&mut |_| ()).unwrap().errors.is_empty());
    let ids = make_spaces(&db).unwrap();
    let found = contents(&db, &ids).unwrap();
    db.close().unwrap();
    found
}

fn of_kind(env: &SimEnv, kind: &str) -> Vec<PathBuf> {
    let mut files = store_files(env);
    files.retain(|path| path.to_string_lossy().contains(kind));
    files
}

#[test]
fn a_sound_store_is_left_alone() {
    let (env, model) = sample(1);
    let files = store_files(&env);
    assert!(repaired(&env).did_nothing());
    assert_eq!(store_files(&env), files);
    assert_eq!(after(&env), model);
}

/// The sequence numbers in the tables decide which version of a row is the last.
#[test]
fn a_lost_manifest_is_made_anew_of_the_tables_and_logs() {
    for seed in 0..12 {
        for lost in [&["CURRENT"][..], &["MANIFEST"], &["CURRENT", "MANIFEST"]] {
            let is_exact = lost == ["CURRENT"];
            let (env, model) = sample(seed);
            for path in lost.iter().flat_map(|kind| of_kind(&env, kind)) {
                env.remove_raw(&path).unwrap();
            }
            assert!(open(&env).is_err());
            let report = repaired(&env);
            assert!(report.manifest_lost.is_some());
            assert_eq!((&report.lost[..], &report.lost_records[..]), (&[][..], &[][..]));
            let found = after(&env);
            if is_exact {
                assert_eq!(found, model, "seed {seed}");
            }
            // Deleted rows may come back, others may not be lost or old.
            for (expected, found) in model.spaces.iter().zip(&found.spaces) {
                for (key, value) in expected {
                    assert_eq!(found.get(key), Some(value), "seed {seed} without {lost:?}");
                }
            }
        }
    }
}

/// What either file of the manifest has lost the other one has: damage to both at different places costs nothing. Without a copy, as earlier
/// versions left a store, it opens.
#[test]
fn a_manifest_and_its_copy_make_up_for_each_other() {
    let (mut tried, mut rng) = (0, Rng::new(3));
    for seed in 0..6 {
        let (env, model) = sample(seed);
        let db = open(&env).unwrap();
        for name in 0..20 {
            db.create_snapshot(&format!("{name:0100}")).unwrap();
        }
        db.close().unwrap();
        let (copies, mut manifests) = (of_kind(&env, ".copy"), of_kind(&env, "MANIFEST"));
        manifests.retain(|path| !copies.contains(path));
        let ([manifest], [copied]) = (&manifests[..], &copies[..]) else {
            panic!("{manifests:?}, {copies:?}")
        };
        let len = env.read_raw(copied).unwrap().len() as u64;
        let old = env.power_cut_keep_all();
        old.remove_raw(copied).unwrap();
        assert_eq!(after(&old), model);
        for _ in 0..40 {
            let damaged = env.power_cut_keep_all();
            // Records of the two are about as long, and apart.
            let at = rng.below(len - 2000);
            damaged.write_raw(manifest, at, &vec![0xee; 1 + rng.below(200) as usize]).unwrap();
            match rng.below(3) {
                0 => damaged.write_raw(copied, at + 1200, &[0; 100]).unwrap(),
                1 => damaged.truncate_raw(copied, at + 1200).unwrap(),
                _ => damaged.damage(copied, at + 1200, 1).unwrap(),
            }
            let report = repaired(&damaged);
            assert!(
                report.lost_nothing() && !report.did_nothing(),
                "seed {seed} at {at}: {report:?}"
            );
            assert!(repaired(&damaged).did_nothing());
            let db = open(&damaged).unwrap();
            assert_eq!(db.snapshots().len(), 20, "seed {seed} at {at}");
            db.close().unwrap();
            assert_eq!(after(&damaged), model, "seed {seed} at {at}");
            tried += 1;
        }
    }
    assert_eq!(tried, 240);
}

/// A log of a process that died ends with the room that it had taken ahead. No rows are missing there, and the logs after
/// it count.
#[test]
fn logs_that_end_with_room_are_followed_by_others() {
    for seed in 0..6 {
        let (mut env, mut rng, mut model) = (SimEnv::new(seed), Rng::new(seed), Model::new());
        for session in 0..4 {
            let shared: Arc<dyn Env> = env.clone();
            let db = Db::open(shared, &store_dir(), small_options()).unwrap();
            let ids = make_spaces(&db).unwrap();
            for row in 0..3_u8 {
                let (key, value) = (vec![session, row], rng.next_u64().to_be_bytes().to_vec());
                let ops = [ModelOp { space: 1, key, value: Some(value) }];
                db.write(to_batch(&ids, &ops)).unwrap();
                model.apply(&ops);
            }
            db.sync().unwrap();
            env = env.process_kill();
        }
        assert!(of_kind(&env, ".wal").len() > 2);
        for path in of_kind(&env, "MANIFEST").iter().chain(&of_kind(&env, "CURRENT")) {
            env.remove_raw(path).unwrap();
        }
        let report = repaired(&env);
        assert_eq!((&report.lost[..], &report.lost_records[..]), (&[][..], &[][..]));
        assert_eq!(after(&env), model, "seed {seed}");
    }
}

/// Where a recovery had cut a log, a repair took what had been cut for the store's, or the logs after it for what no longer
/// counts, without a word where the manifest was lost.
#[test]
fn logs_count_up_to_where_a_recovery_cut_them() {
    let put = |db: &Db, ids: &[KeyspaceId], key: &'static str, value: &str| {
        let value = Some(value.as_bytes().to_vec());
        let ops = [ModelOp { space: 1, key: key.as_bytes().to_vec(), value }];
        db.write(to_batch(ids, &ops)).unwrap();
    };
    for (seed, is_torn) in [(1, true), (2, false)] {
        let env = SimEnv::new(seed);
        let db = open(&env).unwrap();
        let ids = make_spaces(&db).unwrap();
        db.set_external_sync(Box::new(|| Ok(())));
        put(&db, &ids, "a", "first");
        db.sync().unwrap();
        let log = of_kind(&env, ".wal").pop().unwrap();
        let end = log_end(&env, &log);
        let mut lost = to_batch(&ids, &[]);
        lost.put(ids[1], &b"lost"[..], &b"outside"[..]);
        if !is_torn {
            lost.depends_on_external();
        }
        db.write(lost).unwrap();
        (0..3).for_each(|_| put(&db, &ids, "a", "lost"));
        let env = env.power_cut_keep_all();
        if is_torn {
            env.damage(&log, end + 20, 1).unwrap();
        }
        let db = open(&env).unwrap();
        let mut model = contents(&db, &ids).unwrap();
        assert_eq!(model.spaces[1], Rows::from([(b"a".to_vec(), b"first".to_vec())]));
        for (key, value) in [("b", "second"), ("c", "third"), ("a", "fourth")] {
            put(&db, &ids, key, value);
            model.spaces[1].insert(key.into(), value.into());
        }
        db.sync().unwrap();
        let end = log_end(&env, of_kind(&env, ".wal").last().unwrap());
        put(&db, &ids, "damaged", "value");
        put(&db, &ids, "after", "value");
        db.sync().unwrap();
        let (env, damaged) = (env.power_cut_keep_all(), env.power_cut_keep_all());
        damaged.damage(of_kind(&env, ".wal").last().unwrap(), end + 20, 1).unwrap();
        let report = repaired(&damaged);
        let lost: Vec<_> = report.lost_records.iter().map(|l| (l.offset, l.writes)).collect();
        assert_eq!(lost, [(end, 1)]);
        let mut without = model.clone();
        without.spaces[1].insert(b"after".to_vec(), b"value".to_vec());
        assert_eq!(after(&damaged), without, "torn: {is_torn}");
        for path in ["MANIFEST", "CURRENT"].iter().flat_map(|kind| of_kind(&env, kind)) {
            env.remove_raw(&path).unwrap();
        }
        let report = repaired(&env);
        assert_eq!((&report.lost[..], &report.lost_records[..]), (&[][..], &[][..]));
        model.spaces[1].extend(["damaged", "after"].map(|key| (key.into(), b"value".to_vec())));
        assert_eq!(after(&env), model, "torn: {is_torn}");
    }
}

/// Whether a key of `space` lies in a part of a table that was lost.
pub(crate) fn is_lost(report: &EngineRepair, space: usize, key: &[u8]) -> bool {
    report.lost.iter().any(|lost| {
        let is_missing = lost.why.contains("missing");
        let above = lost
            .after
            .as_deref()
            .is_none_or(|after| if is_missing { key >= after } else { key > after });
        let below = lost
            .before
            .as_deref()
            .is_none_or(|before| if is_missing { key <= before } else { key < before });
        // Several versions of the key beside the gap may have been split by it.
        let beside = lost.after.as_deref() == Some(key) || lost.before.as_deref() == Some(key);
        lost.keyspace == SPACES[space].0 && ((above && below) || beside)
    })
}

fn assert_rest_is_there(report: &EngineRepair, model: &Model, found: &Model, what: &str) {
    for (space, (expected, found)) in model.spaces.iter().zip(&found.spaces).enumerate() {
        for key in expected.keys().chain(found.keys()) {
            if !is_lost(report, space, key) {
                assert_eq!(expected.get(key), found.get(key), "{what}: {key:?} of {space}");
            }
        }
    }
}

#[test]
fn a_damaged_table_gives_what_can_be_read_of_it() {
    let mut saved = 0;
    for seed in 0..6 {
        let (env, model) = sample(seed);
        let mut rng = Rng::new(seed);
        for path in of_kind(&env, ".table") {
            let len = env.read_raw(&path).unwrap().len() as u64;
            for _ in 0..6 {
                let copy = env.power_cut_keep_all();
                let offset = rng.below(len);
                copy.damage(&path, offset, 1 << rng.below(8)).unwrap();
                let report = repaired(&copy);
                saved += report.versions_saved;
                let what = format!("seed {seed}, {} at {offset}", path.display());
                assert_rest_is_there(&report, &model, &after(&copy), &what);
                if !report.did_nothing() {
                    let aside = Path::new("/aside").join(path.file_name().unwrap());
                    assert_eq!(copy.read_raw(&aside).unwrap().len() as u64, len, "{what}");
                }
            }
        }
    }
    assert!(saved > 1000, "{saved}");
}

#[test]
fn the_blocks_of_a_table_are_found_without_its_index() {
    for seed in 0..6 {
        let (env, model) = sample(seed);
        for path in of_kind(&env, ".table") {
            let copy = env.power_cut_keep_all();
            let len = copy.read_raw(&path).unwrap().len() as u64;
            copy.damage(&path, len - 30, 0xff).unwrap();
            let report = repaired(&copy);
            // A file that is only a zone of others is no longer read as a table.
            assert!(report.versions_saved > 0 || report.did_nothing());
            assert_eq!(after(&copy), model, "{}", path.display());
        }
    }
}

#[test]
fn a_missing_table_is_named() {
    let (env, model) = sample(7);
    for path in of_kind(&env, ".table") {
        let copy = env.power_cut_keep_all();
        copy.remove_raw(&path).unwrap();
        let report = repaired(&copy);
        let name = path.display().to_string();
        // Or each table that points at it names it.
        let is_named = |lost: &LostRows| lost.table == path || lost.why.contains(&name);
        assert!(!report.lost.is_empty() && report.lost.iter().all(is_named), "{name}: {report:?}");
        assert_rest_is_there(&report, &model, &after(&copy), &path.display().to_string());
    }
}

/// One flipped bit lost all that a log held behind it. The batch with the bit is lost, and no other; its keys are named where its bytes make
/// sense all the same.
#[test]
fn a_damaged_log_costs_the_damaged_records() {
    let (mut lost_batches, mut named) = (0, 0);
    for seed in 0..40 {
        let env = SimEnv::new(seed);
        let mut rng = Rng::new(seed);
        let db = open(&env).unwrap();
        let ids = make_spaces(&db).unwrap();
        let mut batches = Vec::new();
        for _ in 0..100 {
            let ops = random_ops(&mut rng);
            db.write(to_batch(&ids, &ops)).unwrap();
            batches.push(ops);
        }
        db.close().unwrap();
        drop(db);
        let path = of_kind(&env, ".wal").pop().unwrap();
        let len = env.read_raw(&path).unwrap().len() as u64;
        env.damage(&path, 200 + rng.below(len / 2), 1 << rng.below(8)).unwrap();
        if open(&env).is_ok() {
            continue;
        }
        let report = repaired(&env);
        let [lost] = &report.lost_records[..] else { panic!("{report:?}") };
        assert_eq!(lost.log, path);
        let found = after(&env);
        let without = |missing: usize| {
            let mut model = Model::new();
            let others = batches.iter().enumerate().filter(|(at, _)| *at != missing);
            others.for_each(|(_, ops)| model.apply(ops));
            model
        };
        // Those that were written over are missed by nobody.
        let missing: Vec<usize> = (0..batches.len()).filter(|at| without(*at) == found).collect();
        assert!(!missing.is_empty(), "seed {seed}: more than a batch is lost, or another");
        lost_batches += 1;
        if !lost.keys.is_empty() {
            let differing = |at: &usize| {
                let own = batches[*at].iter().map(|op| (SPACES[op.space].0, &op.key));
                let said = lost.keys.iter().map(|lost| (lost.keyspace.as_str(), &lost.key));
                let is_as_long = own.len() == said.len();
                is_as_long.then(|| own.zip(said).filter(|(own, said)| own != said).count())
            };
            // The bit may be in a key.
            let least = missing.iter().filter_map(differing).min();
            assert!(least.is_some_and(|least| least <= 1), "seed {seed}: {lost}");
            named += usize::from(least == Some(0));
        }
        assert!(env.read_raw(&Path::new("/aside").join(path.file_name().unwrap())).is_ok());
    }
    assert!(lost_batches > 10 && named > lost_batches / 3, "{named} of {lost_batches} named");
}

/// A repair had written the newest rows of one key space when it was cut short; the next took the logs for no longer
/// needed and lost those of the others.
#[test]
fn a_repair_that_is_cut_short_can_be_begun_again() {
    for seed in 9..13 {
        cut_short_everywhere(seed);
    }
}

fn cut_short_everywhere(seed: u64) {
    let (env, _) = sample(seed);
    for path in of_kind(&env, "MANIFEST") {
        env.remove_raw(&path).unwrap();
    }
    let (steps, expected) = {
        let copy = env.power_cut_keep_all();
        let before = copy.op_count();
        repaired(&copy);
        (copy.op_count() - before, after(&copy))
    };
    for step in (0..steps).step_by(7) {
        let copy = env.power_cut_keep_all();
        copy.crash_after(copy.op_count() + step);
        let options = RepairOptions {
            db: small_options(),
            keyspaces: SPACES.iter().map(|(name, space)| ((*name).to_owned(), *space)).collect(),
            aside: PathBuf::from("/aside"),
        };
        let dyn_env: Arc<dyn Env> = copy.clone();
        let cut_short = repair(&dyn_env, &store_dir(), &options);
        for image in
            [copy.power_cut_keep_nothing(), copy.power_cut_keep_all(), copy.power_cut(step)]
        {
            repaired(&image);
            assert!(after(&image) == expected, "seed {seed}, step {step}, {cut_short:?}");
        }
    }
}
