//! Branches and named snapshots against models: random operations on the store, on branches of it and on branches of
//! those, over restarts.

use std::collections::BTreeMap;
use std::sync::Arc;

use varve_engine::{
    Branch, BranchOptions, Clash, Db, Direction, KeyRange, Merged, Store, StoreError, StoreResult,
};
use varve_env::sim::SimEnv;
use varve_types::{BranchId, KeyspaceId};

use crate::common::*;

/// The store, or a branch.
struct Tree {
    id: Option<BranchId>,
    /// Its place among the trees.
    parent: usize,
    rows: Model,
    /// When it began, as a number of steps.
    begun: u64,
    /// The rows of its parent then.
    base: Model,
    /// When each row was last changed in it.
    changed: BTreeMap<(usize, Vec<u8>), u64>,
}

struct World {
    env: Arc<SimEnv>,
    db: Option<Db>,
    ids: Vec<KeyspaceId>,
    trees: Vec<Tree>,
    /// What they see, and the step in which they were made.
    snapshots: BTreeMap<String, (Model, u64)>,
    step: u64,
    /// Commits that went through, that merged rows, that were refused.
    commits: [u64; 3],
}

/// What two values become where the test merges.
fn merged(clash: &Clash<'_>) -> Vec<u8> {
    let part = |value: &Option<bytes::Bytes>| value.as_ref().map_or(vec![b'-'], |v| v.to_vec());
    let mut value = part(&clash.theirs);
    value.truncate(30);
    value.extend(part(&clash.ours).into_iter().take(30));
    value
}

impl World {
    fn new(seed: u64) -> World {
        let env = SimEnv::new(seed);
        let db = open(&env).unwrap();
        let ids = make_spaces(&db).unwrap();
        let (rows, changed) = (Model::new(), BTreeMap::new());
        let store = Tree { id: None, parent: 0, base: rows.clone(), rows, begun: 0, changed };
        let (trees, snapshots) = (vec![store], BTreeMap::new());
        World { env, db: Some(db), ids, trees, snapshots, step: 0, commits: [0; 3] }
    }

    fn db(&self) -> &Db {
        self.db.as_ref().unwrap()
    }

    fn branch(&self, tree: usize) -> Option<Branch> {
        self.trees[tree].id.map(|id| self.db().open_branch(id).unwrap())
    }

    fn with_store<T>(&self, tree: usize, run: impl FnOnce(&dyn Store) -> T) -> T {
        match self.branch(tree) {
            Some(branch) => run(&branch),
            None => run(self.db()),
        }
    }

    fn write(&mut self, rng: &mut Rng) {
        let at = rng.below(self.trees.len() as u64) as usize;
        let ops = random_ops(rng);
        self.with_store(at, |store| store.write(to_batch(&self.ids, &ops))).unwrap();
        let tree = &mut self.trees[at];
        tree.rows.apply(&ops);
        for op in ops {
            tree.changed.insert((op.space, op.key), self.step);
        }
    }

    fn begin(&mut self, rng: &mut Rng) {
        let parent = rng.below(self.trees.len() as u64) as usize;
        let named = self.snapshots.keys().nth(rng.below(3) as usize).filter(|_| parent == 0);
        let options = BranchOptions { snapshot: named.cloned(), ..BranchOptions::default() };
        let branch = match self.branch(parent) {
            Some(parent) => parent.branch(&options),
            None => self.db().branch(&options),
        };
        let (base, begun) = match named {
            Some(name) => self.snapshots[name].clone(),
            None => (self.trees[parent].rows.clone(), self.step),
        };
        let (id, changed) = (Some(branch.unwrap().id()), BTreeMap::new());
        self.trees.push(Tree { id, parent, rows: base.clone(), begun, base, changed });
    }

    /// A branch without branches of its own; none if there is no branch.
    fn leaf(&self, rng: &mut Rng) -> Option<usize> {
        let has_child = |tree: usize| self.trees.iter().skip(1).any(|other| other.parent == tree);
        let leaves: Vec<usize> = (1..self.trees.len()).filter(|tree| !has_child(*tree)).collect();
        (!leaves.is_empty()).then(|| leaves[rng.below(leaves.len() as u64) as usize])
    }

    fn forget(&mut self, tree: usize) -> Tree {
        for other in &mut self.trees {
            other.parent -= usize::from(other.parent > tree);
        }
        self.trees.remove(tree)
    }

    fn commit(&mut self, rng: &mut Rng) {
        let Some(at) = self.leaf(rng) else { return };
        let merges = rng.chance(2);
        let (tree, parent) = (&self.trees[at], &self.trees[self.trees[at].parent]);
        let clashes = |key: &&(usize, Vec<u8>)| {
            parent.changed.get(*key).is_some_and(|changed| *changed > tree.begun)
        };
        let expected: Vec<_> = tree.changed.keys().filter(clashes).cloned().collect();
        let mut news = BTreeMap::new();
        let branch = self.branch(at).unwrap();
        let outcome = branch.commit(&mut |clash| {
            let space = self.ids.iter().position(|id| *id == clash.keyspace).unwrap();
            let value = |model: &Model| model.spaces[space].get(clash.key).cloned();
            let found =
                [&clash.base, &clash.theirs, &clash.ours].map(|v| v.as_ref().map(|v| v.to_vec()));
            assert_eq!(found, [value(&tree.base), value(&parent.rows), value(&tree.rows)]);
            if !merges {
                return Merged::Conflict;
            }
            news.insert((space, clash.key.to_vec()), merged(clash));
            Merged::Value(merged(clash).into())
        });
        match outcome {
            Err(StoreError::Conflict { keys }) => {
                assert!(!merges && !expected.is_empty());
                let space = |id| self.ids.iter().position(|known| *known == id).unwrap();
                let keys: Vec<_> =
                    keys.into_iter().map(|(id, key)| (space(id), key.to_vec())).collect();
                assert_eq!(keys, expected[..keys.len()]);
                self.commits[2] += 1;
            }
            Err(error) => panic!("{error}"),
            Ok(()) => {
                assert_eq!(news.keys().collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
                self.commits[usize::from(!news.is_empty())] += 1;
                assert!(matches!(branch.commit(&mut |_| Merged::Conflict), Err(StoreError::Ended)));
                assert!(matches!(branch.get(self.ids[0], b""), Err(StoreError::Ended)));
                self.committed(at, news);
            }
        }
    }

    fn committed(&mut self, at: usize, mut news: BTreeMap<(usize, Vec<u8>), Vec<u8>>) {
        let tree = self.forget(at);
        let parent = tree.parent;
        for key in tree.changed.into_keys() {
            let merged = news.remove(&key);
            let value = merged.or_else(|| tree.rows.spaces[key.0].get(&key.1).cloned());
            let op = ModelOp { space: key.0, key: key.1.clone(), value };
            self.trees[parent].rows.apply(&[op]);
            self.trees[parent].changed.insert(key, self.step);
        }
    }

    fn snapshot(&mut self, rng: &mut Rng) {
        let name = format!("state {}", rng.below(4));
        if self.snapshots.remove(&name).is_some() {
            self.db().delete_snapshot(&name).unwrap();
            return;
        }
        self.db().create_snapshot(&name).unwrap();
        self.snapshots.insert(name, (self.trees[0].rows.clone(), self.step));
    }

    fn reopen(&mut self, rng: &mut Rng) {
        match rng.below(3) {
            0 => self.db().close().unwrap(),
            1 => self.db().sync().unwrap(),
            _ => {
                self.db().flush().unwrap();
                self.db().compact().unwrap();
            }
        }
        self.db = None;
        self.env = self.env.process_kill();
        self.db = Some(open(&self.env).unwrap());
        let branches: Vec<BranchId> = self.db().branches().iter().map(|info| info.id).collect();
        let expected: Vec<BranchId> = self.trees.iter().filter_map(|tree| tree.id).collect();
        assert_eq!(branches, expected);
        let names: Vec<String> = self.db().snapshots().into_iter().map(|info| info.name).collect();
        assert_eq!(names, self.snapshots.keys().cloned().collect::<Vec<_>>());
    }

    fn check(&self, rng: &mut Rng) {
        let at = rng.below(self.trees.len() as u64) as usize;
        self.with_store(at, |store| {
            check_rows(store, &self.ids, &self.trees[at].rows, rng).unwrap();
        });
        if let Some((name, (rows, _))) = self.snapshots.iter().nth(rng.below(4) as usize) {
            let store = self.db().open_snapshot(name).unwrap();
            check_rows(&store, &self.ids, rows, rng).unwrap();
        }
    }

    fn run(&mut self, rng: &mut Rng, steps: u64) {
        for _ in 0..steps {
            self.step += 1;
            match rng.below(100) {
                0..70 => self.write(rng),
                70..76 if self.trees.len() < 7 => self.begin(rng),
                76..80 => self.commit(rng),
                80..82 => {
                    if let Some(leaf) = self.leaf(rng) {
                        self.branch(leaf).unwrap().abort().unwrap();
                        self.forget(leaf);
                    }
                }
                82..84 => self.snapshot(rng),
                84 => self.db().flush().unwrap(),
                85 => self.db().compact().unwrap(),
                86 => self.reopen(rng),
                _ => self.check(rng),
            }
        }
    }
}

/// Compares a range of a key space in both directions, and some rows of it.
fn check_rows(
    store: &dyn Store,
    ids: &[KeyspaceId],
    expected: &Model,
    rng: &mut Rng,
) -> StoreResult<()> {
    let space = rng.below(ids.len() as u64) as usize;
    let (rows, id) = (&expected.spaces[space], ids[space]);
    for _ in 0..3 {
        let key = random_key(rng, space);
        assert_eq!(store.get(id, &key)?.as_deref(), rows.get(&key).map(|value| &value[..]));
    }
    let prefix = if rng.chance(2) { Vec::new() } else { random_key(rng, space) };
    let range = KeyRange::prefix(&prefix[..prefix.len().min(8)]);
    let within = |key: &[u8]| key.starts_with(&prefix[..prefix.len().min(8)]);
    let mut expected: Vec<_> =
        rows.iter().filter(|(key, _)| within(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
    for direction in [Direction::Forward, Direction::Reverse] {
        let found = store.scan(id, range.clone(), direction)?;
        let found = found.map(|row| row.map(|(key, value)| (key.to_vec(), value.to_vec())));
        assert_eq!(found.collect::<StoreResult<Vec<_>>>()?, expected);
        expected.reverse();
    }
    Ok(())
}

#[test]
fn branches_and_snapshots_agree_with_the_model() {
    let mut commits = [0; 3];
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let mut world = World::new(seed);
        world.run(&mut rng, 1200);
        let report = world.db().verify(&mut |_| {}).unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        world.commits.iter().zip(&mut commits).for_each(|(n, sum)| *sum += n);
    }
    assert!(commits.iter().all(|n| *n > 30), "{commits:?}");
}
