//! Column style under load: what crashes, snapshots and branches make of values that are being cleaned away.

use std::collections::BTreeMap;
use std::sync::Arc;

use varve_engine::{
    BranchOptions, Db, DbOptions, KeyspaceOptions, Store, StoreDesign, StoreResult, ValuePolicy,
};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_types::KeyspaceId;

use crate::common::*;
use crate::segments::{key, segments};

const ROWS: u64 = 250;

/// The design of the preset, small.
fn options() -> DbOptions {
    let mut options = small_options();
    StoreDesign::TABLEFS_COLUMN.apply(&mut options);
    options.values = ValuePolicy::Separated { bytes_min: 100 };
    let small = small_options();
    (options.sublevels_trigger, options.level_base_bytes) =
        (small.sublevels_trigger, small.level_base_bytes);
    DbOptions { table_bytes: 8 << 10, ..options }
}

fn open_column(env: &Arc<SimEnv>) -> StoreResult<(Db, KeyspaceId)> {
    let shared: Arc<dyn Env> = env.clone();
    let db = Db::open(shared, &store_dir(), options())?;
    let space = db.keyspace("rows", KeyspaceOptions { prefixed: true, compressed: false })?;
    Ok((db, space))
}

fn value(row: u64, round: u64) -> Vec<u8> {
    let mut rng = Rng::new(row << 20 | round);
    (0..300).map(|_| rng.next_u64() as u8).collect()
}

/// Overwrites rows at random; `done` is told of each row and round before it is written, and which was synced last.
fn overwrite(
    db: &Db,
    space: KeyspaceId,
    steps: u64,
    done: &mut dyn FnMut(u64, u64, bool),
) -> StoreResult<()> {
    let mut rng = Rng::new(21);
    for step in 0..steps {
        let row = rng.below(ROWS);
        done(row, step, false);
        let mut batch = varve_engine::Batch::new();
        batch.put(space, key(row), value(row, step));
        db.write(batch)?;
        if step % 25 == 24 {
            db.sync()?;
            done(row, step, true);
        }
    }
    Ok(())
}

/// A crash at every sync while segments are emptied: each row has the value of its last synced round, or a later one.
#[test]
fn a_crash_while_segments_are_cleaned_loses_nothing() {
    const STEPS: u64 = 2200;
    let env = SimEnv::new(1);
    let (db, space) = open_column(&env).unwrap();
    overwrite(&db, space, STEPS, &mut |_, _, _| {}).unwrap();
    assert!(counter(&db, "cleanings") > 10, "{} cleanings", counter(&db, "cleanings"));
    db.close().unwrap();
    let syncs = env.sync_count();
    let mut crashes = 0;
    for n in (syncs / 3..syncs).step_by((syncs / 40).max(1) as usize) {
        let env = SimEnv::new(1);
        env.crash_at_sync(n);
        let (mut rounds, mut synced): (BTreeMap<u64, Vec<u64>>, _) = (BTreeMap::new(), 0);
        let worked = open_column(&env).and_then(|(db, space)| {
            overwrite(&db, space, STEPS, &mut |row, step, is_synced| match is_synced {
                true => synced = step,
                false => rounds.entry(row).or_default().push(step),
            })
        });
        assert!(worked.is_err() && env.crashed(), "crash {n}");
        crashes += 1;
        for image in [env.power_cut_keep_nothing(), env.power_cut(n), env.process_kill_within(n)] {
            let (db, space) = open_column(&image).unwrap();
            for (row, rounds) in &rounds {
                let found = db.get(space, &key(*row)).unwrap();
                let last = rounds.iter().rfind(|round| **round <= synced);
                let at = |round: &u64| found.as_deref() == Some(&value(*row, *round)[..]);
                let later = rounds.iter().filter(|round| Some(*round) >= last).any(at);
                assert!(later || (last.is_none() && found.is_none()), "crash {n}: row {row}");
            }
            assert!(db.verify(&mut |_| ()).unwrap().errors.is_empty(), "crash {n}");
            db.close().unwrap();
        }
    }
    assert!(crashes > 20, "{crashes} crashes");
}

/// A named snapshot and a branch read what was, however often that is overwritten and segments are cleaned; over
/// restarts, too. When they go, so does what only they needed.
#[test]
fn snapshots_and_branches_keep_the_values_they_see() {
    let env = SimEnv::new(2);
    let (db, space) = open_column(&env).unwrap();
    for row in 0..ROWS {
        let mut batch = varve_engine::Batch::new();
        batch.put(space, key(row), value(row, 1 << 30));
        db.write(batch).unwrap();
    }
    db.create_snapshot("then").unwrap();
    let branch = db.branch(&BranchOptions::default()).unwrap();
    let id = branch.id();
    let mut batch = varve_engine::Batch::new();
    (0..20).for_each(|row| batch.put(space, key(row), value(row, 2 << 30)));
    branch.write(batch).unwrap();
    drop(branch);
    overwrite(&db, space, 3000, &mut |_, _, _| {}).unwrap();
    assert!(counter(&db, "segment_merge_bytes") > 0, "nothing moved");
    db.flush().unwrap();
    db.compact().unwrap();
    db.close().unwrap();
    let (db, space) = open_column(&env).unwrap();
    let (snapshot, branch) = (db.open_snapshot("then").unwrap(), db.open_branch(id).unwrap());
    for row in 0..ROWS {
        let then = snapshot.get(space, &key(row)).unwrap();
        assert_eq!(then.as_deref(), Some(&value(row, 1 << 30)[..]), "row {row} then");
        let own = if row < 20 { 2 << 30 } else { 1 << 30 };
        let found = branch.get(space, &key(row)).unwrap();
        assert_eq!(found.as_deref(), Some(&value(row, own)[..]), "row {row} of the branch");
    }
    assert!(db.verify(&mut |_| ()).unwrap().errors.is_empty());
    let bytes = |env: &SimEnv| -> usize {
        segments(env).iter().map(|path| env.read_raw(path).unwrap().len()).sum()
    };
    let kept = bytes(&env);
    drop(snapshot);
    branch.abort().unwrap();
    drop(branch);
    db.delete_snapshot("then").unwrap();
    overwrite(&db, space, 3000, &mut |_, _, _| {}).unwrap();
    db.flush().unwrap();
    db.compact().unwrap();
    let live = ROWS as usize * 309;
    let left = bytes(&env);
    assert!(kept > live * 3 / 2 && left < live * 2, "{kept} bytes kept, {left} left, {live} alive");
}
