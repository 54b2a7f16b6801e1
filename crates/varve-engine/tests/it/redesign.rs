//! A change of design that is finished at once: every table is of the new design, every row is what it was, and the room
//! that it takes meanwhile is bounded.

use std::sync::Arc;

use varve_engine::design::Compaction;
use varve_engine::{Db, Redesign, Store, StoreDesign, ValuePolicy, inspect_store};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_types::KeyspaceId;

use crate::common::*;
use crate::designs::{PRESETS, options_of};

struct Run {
    env: Arc<SimEnv>,
    rng: Rng,
    model: Model,
}

impl Run {
    fn open(&self, design: StoreDesign) -> (Db, Vec<KeyspaceId>) {
        let env: Arc<dyn Env> = self.env.clone();
        let db = Db::open(env, &store_dir(), options_of(design)).unwrap();
        let ids = make_spaces(&db).unwrap();
        (db, ids)
    }

    fn write(&mut self, db: &Db, ids: &[KeyspaceId], batches: usize) {
        for _ in 0..batches {
            let mut ops = random_ops(&mut self.rng);
            for op in &mut ops {
                // Rows enough for several levels.
                if SPACES[op.space].1.prefixed {
                    op.key[14..].copy_from_slice(&(self.rng.below(300) as u16).to_be_bytes());
                }
                if self.rng.one_in(4) && op.value.is_some() {
                    op.value = Some(vec![self.rng.below(256) as u8; 300]);
                }
            }
            db.write(to_batch(ids, &ops)).unwrap();
            self.model.apply(&ops);
        }
    }

    fn disk_bytes(&self) -> u64 {
        let files = self.env.files_raw();
        files.iter().map(|path| self.env.read_raw(path).unwrap().len() as u64).sum()
    }
}

fn new_run(seed: u64) -> Run {
    Run { env: SimEnv::new(seed), rng: Rng::new(seed), model: Model::new() }
}

pub(crate) fn finish(db: &Db) -> Redesign {
    let mut steps = 0;
    loop {
        let left = db.redesign().unwrap();
        steps += 1;
        assert!(steps < 5000, "no end: {left:?}");
        if left.done {
            return left;
        }
    }
}

/// Every table of the store is as `design` says, by what inspection shows.
pub(crate) fn assert_is_of(env: &SimEnv, design: StoreDesign, when: &str) {
    let report = inspect_store(env, &store_dir()).unwrap();
    let options = options_of(design);
    let mut tables = 0;
    for space in &report.keyspaces {
        let compressed = space.name.starts_with("data");
        let index = if space.prefixed && !compressed { options.index.name() } else { "plain" };
        for table in space.levels.iter().flat_map(|l| &l.sublevels).flat_map(|s| &s.tables) {
            tables += 1;
            let parts = table.parts.as_ref().unwrap();
            let (filter, number) = (format!("{:?}", options.filter.kind()), table.number);
            assert_eq!(parts.index, index, "{when}: table {number} of {}", space.name);
            assert_eq!(parts.filter, filter.to_lowercase(), "{when}: table {number}");
            assert_eq!(parts.filter_bytes > 0, parts.filter != "none", "{when}: {number}");
            let stitches = options.stitch_threshold_bytes > 0;
            let may_point = options.values != ValuePolicy::InRow;
            assert!(table.zones == 0 || stitches, "{when}: table {number} is stitched");
            assert!(table.segments == 0 || may_point, "{when}: table {number} points");
        }
        let has_one_run = |level: &varve_engine::inspect::LevelReport| level.sublevels.len() == 1;
        if design.compaction == Compaction::Leveled {
            let mut lower = space.levels.iter().filter(|level| level.level > 0);
            assert!(lower.all(has_one_run), "{when}: {} is not leveled", space.name);
        }
    }
    assert!(tables > 3, "{when}: {tables} tables");
}

#[test]
fn every_design_becomes_every_other_at_once() {
    let mut rewrites = 0;
    for (from_name, from) in PRESETS {
        let mut run = new_run(from_name.len() as u64);
        let (db, ids) = run.open(from);
        run.write(&db, &ids, 900);
        db.create_snapshot("then").unwrap();
        let then = run.model.clone();
        run.write(&db, &ids, 200);
        db.flush().unwrap();
        db.close().unwrap();
        for (to_name, to) in PRESETS {
            let when = format!("{to_name} after {from_name}");
            let copy = Run { env: run.env.power_cut_keep_nothing(), ..new_run(1) };
            let (db, ids) = copy.open(to);
            let done = finish(&db);
            assert_eq!((done.tables_left, done.bytes_left), (0, 0), "{when}");
            rewrites += done.rewrites;
            assert_is_of(&copy.env, to, &when);
            assert_eq!(contents(&db, &ids).unwrap(), run.model, "{when}");
            let report = db.verify(&mut |_| {}).unwrap();
            assert!(report.errors.is_empty(), "{when}: {:?}", report.errors);
            for (id, rows) in ids.iter().zip(&then.spaces) {
                let snapshot = db.open_snapshot("then").unwrap();
                for (key, value) in rows {
                    assert_eq!(snapshot.get(*id, key).unwrap().as_deref(), Some(&value[..]));
                }
            }
            // What is done is done: to look again costs nothing and writes nothing.
            db.close().unwrap();
            let (db, _) = copy.open(to);
            assert_eq!(finish(&db).rewrites, 0, "{when}: again");
            db.close().unwrap();
        }
    }
    assert!(rewrites > 200, "{rewrites} tables were written again");
}

/// A power cut after every step, and at every sync within: nothing is lost, and who comes next goes on.
#[test]
fn an_interrupted_change_is_taken_up_again() {
    for (from, to) in [
        (StoreDesign::TABLEFS_COLUMN, StoreDesign::TABLEFS),
        (StoreDesign::TABLEFS, StoreDesign::SLIMFS),
    ] {
        let mut run = new_run(7);
        let (db, ids) = run.open(from);
        run.write(&db, &ids, 2000);
        db.flush().unwrap();
        db.close().unwrap();
        let mut cuts = 0;
        for nth in (1..).step_by(3) {
            let env = run.env.power_cut_keep_nothing();
            let copy = Run { env: Arc::clone(&env), ..new_run(nth) };
            let (db, _) = copy.open(to);
            env.crash_at_sync(env.sync_count() + nth);
            let outcome = loop {
                match db.redesign() {
                    Ok(left) if left.done => break true,
                    Ok(_) => {}
                    Err(_) => break false,
                }
            };
            drop(db);
            let copy = Run { env: env.power_cut_keep_nothing(), ..copy };
            let (db, ids) = copy.open(to);
            assert_eq!(contents(&db, &ids).unwrap(), run.model, "cut {nth}");
            if cuts % 8 == 0 {
                finish(&db);
                assert_is_of(&copy.env, to, &format!("cut {nth}"));
                assert_eq!(contents(&db, &ids).unwrap(), run.model, "after cut {nth}");
            }
            db.close().unwrap();
            if outcome {
                break;
            }
            cuts += 1;
        }
        assert!(cuts > 10, "{cuts} cuts");
    }
}

/// Values that come back into rows, and blocks that come back into tables, give their old room back meanwhile.
#[test]
fn the_room_of_a_change_is_bounded() {
    for (name, from) in
        [("values apart", StoreDesign::TABLEFS_COLUMN), ("stitched", StoreDesign::KVFS)]
    {
        let mut run = new_run(9);
        let (db, ids) = run.open(from);
        for round in 0..4 {
            for row in 0..1500u64 {
                let mut batch = varve_engine::Batch::new();
                let number = row * 7919 % 1500;
                let mut key = (number / 30).to_be_bytes().to_vec();
                key.extend_from_slice(&number.to_be_bytes());
                let value: Vec<u8> = (0..600).map(|_| run.rng.next_u64() as u8).collect();
                if round == 0 || run.rng.one_in(2) {
                    batch.put(ids[0], key, value);
                    db.write(batch).unwrap();
                }
            }
        }
        db.flush().unwrap();
        db.compact().unwrap();
        db.close().unwrap();
        let (db, _) = run.open(StoreDesign::TABLEFS);
        db.compact().unwrap();
        let (start, mut most) = (run.disk_bytes(), 0);
        while !db.redesign().unwrap().done {
            most = most.max(run.disk_bytes());
        }
        let step = 5 * options_of(from).table_bytes;
        assert!(start > 8 * step, "{name}: {start} bytes to begin with");
        assert!(most <= start * 4 / 3 + 2 * step, "{name}: {most} bytes, {start} before");
        assert_is_of(&run.env, StoreDesign::TABLEFS, name);
        db.close().unwrap();
    }
}
