//! A whole store on a simulated machine, with policies that the input chooses anew at each open, against a model: what
//! was acknowledged is there after the death of the process, what was synced after a power cut.
//!
//! The input is a list of steps of two bytes: what to do, and the seed of what it is done with.
#![no_main]

#[path = "../../crates/varve-engine/tests/it/common.rs"]
#[allow(dead_code, unused_imports, reason = "the target uses a part of it")]
mod common;
#[path = "../../crates/varve-engine/tests/it/designs.rs"]
#[allow(dead_code, reason = "the target uses a part of it")]
mod designs;

use std::path::Path;
use std::sync::Arc;

use common::*;
use varve_engine::{Branch, BranchOptions, Db, Fit, Merged, Store, StoreResult};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_types::KeyspaceId;

struct World<'a> {
    input: std::slice::Iter<'a, u8>,
    env: Arc<SimEnv>,
    db: Db,
    ids: Vec<KeyspaceId>,
    rows: Model,
    /// A branch, its rows, and what was done in it.
    branch: Option<(Branch, Model, Vec<ModelOp>)>,
    /// What the snapshot sees.
    snapshot: Option<Model>,
}

const SNAPSHOT: &str = "then";

fn open(env: &Arc<SimEnv>, input: &mut std::slice::Iter<'_, u8>) -> StoreResult<Db> {
    let mut draw = |below: u64| input.next().map_or(0, |byte| u64::from(*byte) % below);
    let shared: Arc<dyn Env> = env.clone();
    Db::open(shared, &store_dir(), Designs::Drawn.options(&mut draw))
}

impl World<'_> {
    fn write(&mut self, rng: &mut Rng, to_branch: bool) -> StoreResult<()> {
        for _ in 0..1 + rng.below(30) {
            let ops = random_ops(rng);
            let batch = to_batch(&self.ids, &ops);
            match &mut self.branch {
                Some((branch, rows, done)) if to_branch => {
                    branch.write(batch)?;
                    rows.apply(&ops);
                    done.extend(ops);
                }
                _ => {
                    self.db.write(batch)?;
                    self.rows.apply(&ops);
                }
            }
        }
        Ok(())
    }

    /// Begins a branch, or ends the one that there is.
    fn branch(&mut self, commits: bool) -> StoreResult<()> {
        match self.branch.take() {
            None => {
                let branch = self.db.branch(&BranchOptions::default())?;
                self.branch = Some((branch, self.rows.clone(), Vec::new()));
            }
            Some((branch, _, done)) if commits => {
                branch.commit(&mut |clash| {
                    clash.ours.clone().map_or(Merged::Deleted, Merged::Value)
                })?;
                self.rows.apply(&done);
            }
            Some((branch, ..)) => branch.abort()?,
        }
        Ok(())
    }

    fn snapshot(&mut self) -> StoreResult<()> {
        match self.snapshot.take() {
            Some(_) => self.db.delete_snapshot(SNAPSHOT),
            None => {
                self.snapshot = Some(self.rows.clone());
                self.db.create_snapshot(SNAPSHOT).map(drop)
            }
        }
    }

    /// Opens the store again, on `env`.
    fn reopen(&mut self, env: Arc<SimEnv>) -> StoreResult<()> {
        self.env = env;
        self.db = open(&self.env, &mut self.input)?;
        if let Some((branch, ..)) = &mut self.branch {
            *branch = self.db.open_branch(branch.id())?;
        }
        self.check()
    }

    fn check(&self) -> StoreResult<()> {
        assert_eq!(contents(&self.db, &self.ids)?, self.rows);
        if let Some((branch, rows, _)) = &self.branch {
            assert_eq!(contents(branch, &self.ids)?, *rows);
        }
        if let Some(rows) = &self.snapshot {
            assert_eq!(contents(&self.db.open_snapshot(SNAPSHOT)?, &self.ids)?, *rows);
        }
        let report = self.db.verify(&mut |_| {})?;
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        Ok(())
    }

    fn step(&mut self, what: u8, rng: &mut Rng) -> StoreResult<()> {
        match what % 20 {
            0..5 => self.write(rng, false),
            5..9 => self.write(rng, true),
            9 => self.db.flush(),
            10 => self.db.compact(),
            11 => {
                while !self.db.redesign()?.done {}
                Ok(())
            }
            12 => self.db.defragment(Fit::Best).map(drop),
            13 => {
                let run = random_run(rng);
                insert_run(&*self.env, Path::new("/"), &self.db, &self.ids, &run)?;
                self.rows.apply(&run);
                Ok(())
            }
            14 => self.branch(true),
            15 => self.branch(false),
            16 => self.snapshot(),
            17 => {
                self.db.close()?;
                self.reopen(self.env.process_kill())
            }
            18 => self.reopen(self.env.process_kill()),
            _ => {
                self.db.sync()?;
                self.reopen(self.env.power_cut(rng.next_u64()))
            }
        }
    }
}

fn run(data: &[u8]) -> StoreResult<()> {
    let mut input = data.iter();
    let env = SimEnv::new(0);
    let db = open(&env, &mut input)?;
    let ids = make_spaces(&db)?;
    let (rows, branch, snapshot) = (Model::new(), None, None);
    let mut world = World { input, env, db, ids, rows, branch, snapshot };
    for _ in 0..200 {
        let (Some(what), Some(seed)) = (world.input.next(), world.input.next()) else { break };
        world.step(*what, &mut Rng::new(u64::from(*seed)))?;
    }
    world.check()
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data).unwrap());
