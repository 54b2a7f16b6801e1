//! Every single fault of every file of a store with named snapshots and an open branch: what is repaired is sound, and holds
//! all but what stood in the damaged part, in the snapshots and the branch too.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_engine::repair::EngineRepair;
use varve_engine::{BranchOptions, Db, Store};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_types::{BranchId, KeyspaceId};

use crate::common::*;
use crate::damage::store_files;
use crate::designs::PRESETS;
use crate::repair::{is_lost, repaired};

/// The most writes of one batch of the tests.
const BATCH_WRITES_MAX: usize = 5;
const PAGE_BYTES: u64 = 4096;

/// Keys with their key spaces.
type Keys = BTreeSet<(usize, Vec<u8>)>;

/// A closed store and what each of its trees holds.
struct Scene {
    env: Arc<SimEnv>,
    main: Model,
    snapshots: Vec<(&'static str, Model)>,
    branch: (BranchId, Model),
    /// Keys that the log has writes of.
    logged: Keys,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Bit(u64),
    /// A page that reads as zeros.
    Page(u64),
    Cut(u64),
    Zeros,
    Removed,
    /// The bytes of another file of the store.
    Another,
}

impl Scene {
    fn new(designs: Designs, seed: u64) -> Scene {
        let env = SimEnv::new(seed);
        let (mut rng, mut main) = (Rng::new(seed), Model::new());
        let (mut logged, mut snapshots) = (Keys::new(), Vec::new());
        let mut write = |db: &dyn Store, ids: &[KeyspaceId], model: &mut Model, count| {
            let mut keys = Keys::new();
            for _ in 0..count {
                let ops = random_ops(&mut rng);
                db.write(to_batch(ids, &ops)).unwrap();
                model.apply(&ops);
                for op in ops {
                    keys.insert((op.space, op.key));
                }
            }
            keys
        };
        let mut branch = None;
        for round in 0..3 {
            let options = designs.options(&mut |below| env.random() % below);
            let db = Db::open(env.clone(), &store_dir(), options).unwrap();
            let ids = make_spaces(&db).unwrap();
            write(&db, &ids, &mut main, 80);
            if round < 2 {
                let name = ["one", "two"][round];
                db.create_snapshot(name).unwrap();
                snapshots.push((name, main.clone()));
                write(&db, &ids, &mut main, 40);
            }
            if round == 1 {
                let open = db.branch(&BranchOptions::default()).unwrap();
                let mut model = main.clone();
                write(&open, &ids, &mut model, 30);
                branch = Some((open.id(), model));
            }
            if round < 2 {
                db.flush().unwrap();
            } else {
                db.flush().unwrap();
                logged = write(&db, &ids, &mut main, 25);
                let (id, model) = branch.as_mut().unwrap();
                logged.extend(write(&db.open_branch(*id).unwrap(), &ids, model, 5));
                db.create_snapshot("three").unwrap();
                snapshots.push(("three", main.clone()));
                logged.extend(write(&db, &ids, &mut main, 10));
            }
            db.close().unwrap();
        }
        Scene { env, main, snapshots, branch: branch.unwrap(), logged }
    }

    fn damaged(&self, path: &Path, other: &Path, fault: Fault) -> Arc<SimEnv> {
        let copy = self.env.power_cut_keep_all();
        let bytes = self.env.read_raw(path).unwrap();
        match fault {
            Fault::Bit(at) => copy.damage(path, at / 8, 1 << (at % 8)).unwrap(),
            Fault::Page(at) => {
                let len = (bytes.len() as u64 - at).min(PAGE_BYTES);
                copy.write_raw(path, at, &vec![0; len as usize]).unwrap();
            }
            Fault::Cut(len) => copy.truncate_raw(path, len).unwrap(),
            Fault::Zeros => copy.write_raw(path, 0, &vec![0; bytes.len()]).unwrap(),
            Fault::Removed => copy.remove_raw(path).unwrap(),
            Fault::Another => {
                copy.truncate_raw(path, 0).unwrap();
                copy.write_raw(path, 0, &self.env.read_raw(other).unwrap()).unwrap();
            }
        }
        copy
    }

    /// Damages, repairs, and compares; gives how many rows were lost.
    fn try_one(&self, path: &Path, other: &Path, fault: Fault, about: &str) -> usize {
        let what = format!("{about}: {} {fault:?}", path.display());
        let copy = self.damaged(path, other, fault);
        let report = repaired(&copy);
        let again = repaired(&copy);
        assert!(again.did_nothing(), "{what}: {report:?}, then {again:?}");
        let db: Db = open(&copy).unwrap_or_else(|error| panic!("{what}: {error}: {report:?}"));
        let errors = db.verify(&mut |_| ()).unwrap().errors;
        assert!(errors.is_empty(), "{what}: {errors:?}");
        let ids = make_spaces(&db).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let mut lost = 0;
        let mut compare = |store: &dyn Store, expected: &Model, tree: &str| {
            let found = contents(store, &ids).unwrap();
            lost +=
                self.compare(&name, fault, &report, expected, &found, &format!("{what}, {tree}"));
        };
        compare(&db, &self.main, "main");
        let mut missing = 0;
        for (name, expected) in &self.snapshots {
            match db.open_snapshot(name) {
                Ok(snapshot) => compare(&snapshot, expected, name),
                Err(_) => missing += 1,
            }
        }
        match db.open_branch(self.branch.0) {
            Ok(branch) => compare(&branch, &self.branch.1, "branch"),
            Err(_) => missing += 1,
        }
        assert_eq!(missing, 0, "{what}: trees are gone: {report:?}");
        db.close().unwrap();
        lost
    }

    /// How many rows of a tree differ, all of which may.
    fn compare(
        &self,
        name: &str,
        fault: Fault,
        report: &EngineRepair,
        expected: &Model,
        found: &Model,
        what: &str,
    ) -> usize {
        let mut differing = 0;
        for (space, (expected, found)) in expected.spaces.iter().zip(&found.spaces).enumerate() {
            let keys: BTreeSet<&Vec<u8>> = expected.keys().chain(found.keys()).collect();
            for key in keys.into_iter().filter(|key| expected.get(*key) != found.get(*key)) {
                differing += 1;
                let row = (space, key.clone());
                let is_allowed = match name {
                    // The manifest has a copy.
                    _ if name == "CURRENT" || name.starts_with("MANIFEST") => false,
                    _ if name.ends_with(".wal") => self.logged.contains(&row),
                    _ => is_lost(report, space, key),
                };
                assert!(is_allowed, "{what}: {key:?} of {space}: {report:?}");
            }
        }
        if name.ends_with(".wal") && matches!(fault, Fault::Bit(_)) {
            assert!(differing <= BATCH_WRITES_MAX, "{what}: {differing} rows: {report:?}");
        }
        differing
    }
}

/// All faults of a file of so many bytes: `share` bits of it, and as many cuts.
fn faults(len: u64, share: u64, rng: &mut Rng) -> Vec<Fault> {
    let mut faults = vec![Fault::Zeros, Fault::Removed, Fault::Another, Fault::Cut(0)];
    let step = (len / share).max(1);
    let places = || (0..len).step_by(step as usize);
    faults.extend(
        places().map(|at| Fault::Bit((at + rng.below(step).min(len - 1 - at)) * 8 + at % 8)),
    );
    faults.extend((0..len).step_by(PAGE_BYTES as usize).take(8).map(Fault::Page));
    faults.extend(places().step_by(4).map(|at| Fault::Cut(at + step.min(len - at) / 2)));
    faults
}

/// Tries the faults of each file; gives how many, and how many cost no row.
pub(crate) fn try_faults(designs: Designs, seed: u64, share: u64) -> [usize; 2] {
    let scene = Scene::new(designs, seed);
    let files: Vec<PathBuf> = store_files(&scene.env);
    let (mut tried, mut free) = (0, 0);
    let mut rng = Rng::new(seed);
    for (at, path) in files.iter().enumerate() {
        let len = scene.env.read_raw(path).unwrap().len() as u64;
        let other = &files[(at + 1) % files.len()];
        for fault in faults(len, share, &mut rng) {
            let lost = scene.try_one(path, other, fault, &format!("{designs:?} {seed}"));
            tried += 1;
            free += usize::from(lost == 0);
        }
    }
    [tried, free]
}

/// A bit in any file dropped all snapshots and branches, one in a log all that followed, and a table of no bytes was never
/// repaired.
#[test]
fn a_single_fault_costs_what_stood_in_the_damaged_part() {
    let presets = PRESETS.iter().map(|(_, design)| Designs::Always(*design));
    let designs = presets.chain([Designs::Drawn; 2]);
    let (mut tried, mut free) = (0, 0);
    for (seed, designs) in (1..).zip(designs) {
        let [more, without_loss] = try_faults(designs, seed, 16);
        (tried, free) = (tried + more, free + without_loss);
    }
    println!("{tried} faults, {free} of which cost no row");
    assert!(tried > 1000 && free > tried / 5, "{free} of {tried} cost no row");
}
