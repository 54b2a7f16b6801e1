//! Branches and named snapshots against models: random operations on the store, on branches of it and on branches of
//! those, over restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use varve_engine::{
    Branch, BranchOptions, Clash, Db, Direction, Fit, KeyRange, Merged, RowVersion, Store,
    StoreError, StoreResult,
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

/// A row as it was read.
type Read = (RowVersion, Option<Vec<u8>>);

pub(crate) struct World {
    pub(crate) env: Arc<SimEnv>,
    /// What the store is opened with from the next time on.
    pub(crate) designs: Designs,
    db: Option<Db>,
    pub(crate) ids: Vec<KeyspaceId>,
    trees: Vec<Tree>,
    /// What they see, and the step in which they were made.
    snapshots: BTreeMap<String, (Model, u64)>,
    step: u64,
    /// Commits that went through, that merged rows, that were refused.
    commits: [u64; 3],
    /// Commits by batch and by reference.
    ways: [u64; 2],
    /// Rows that differed between two states.
    told: u64,
    /// Rows of the store as they were read, with their versions.
    read: BTreeMap<(usize, Vec<u8>), Read>,
    /// Rows that still had the version that they were read with.
    unchanged: u64,
    /// Chooses rows to read, without a part in what happens.
    reader: Rng,
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
    pub(crate) fn new(designs: Designs, seed: u64) -> World {
        let env = SimEnv::new(seed);
        let db = open_as(&env, designs).unwrap();
        let ids = make_spaces(&db).unwrap();
        let (rows, changed) = (Model::new(), BTreeMap::new());
        let store = Tree { id: None, parent: 0, base: rows.clone(), rows, begun: 0, changed };
        let (trees, snapshots) = (vec![store], BTreeMap::new());
        World {
            env,
            designs,
            db: Some(db),
            ids,
            trees,
            snapshots,
            step: 0,
            commits: [0; 3],
            ways: [0; 2],
            told: 0,
            read: BTreeMap::new(),
            unchanged: 0,
            reader: Rng::new(seed),
        }
    }

    pub(crate) fn db(&self) -> &Db {
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
        self.note(at, ops);
    }

    /// Notes what was done to a tree; the store itself is the first.
    pub(crate) fn note(&mut self, at: usize, ops: Vec<ModelOp>) {
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
        let merges = rng.one_in(2);
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

    /// Adds up which way commits went since the store was opened.
    fn count_ways(&mut self) {
        let db = self.db.as_ref().unwrap();
        for (way, name) in self.ways.iter_mut().zip(["branches_logged", "branches_joined"]) {
            *way += counter(db, name);
        }
    }

    /// Ends the process, in one of several ways, and opens the store again.
    pub(crate) fn reopen(&mut self, rng: &mut Rng) {
        self.count_ways();
        match rng.below(3) {
            0 => self.db().close().unwrap(),
            1 => self.db().sync().unwrap(),
            _ => {
                self.db().flush().unwrap();
                self.db().compact().unwrap();
            }
        }
        self.db = None;
        self.read.clear();
        self.env = self.env.process_kill();
        self.db = Some(open_as(&self.env, self.designs).unwrap());
        let branches: Vec<BranchId> = self.db().branches().iter().map(|info| info.id).collect();
        let expected: Vec<BranchId> = self.trees.iter().filter_map(|tree| tree.id).collect();
        assert_eq!(branches, expected);
        let names: Vec<String> = self.db().snapshots().into_iter().map(|info| info.name).collect();
        assert_eq!(names, self.snapshots.keys().cloned().collect::<Vec<_>>());
    }

    /// Compares all rows of all trees and snapshots; gives how many branches and snapshots there are.
    pub(crate) fn check_all(&self, when: &str) -> [usize; 2] {
        for (at, tree) in self.trees.iter().enumerate() {
            let found = self.with_store(at, |store| contents(store, &self.ids).unwrap());
            assert_eq!(found, tree.rows, "{when}: {:?}", tree.id);
        }
        for (name, (rows, _)) in &self.snapshots {
            let snapshot = self.db().open_snapshot(name).unwrap();
            assert_eq!(contents(&snapshot, &self.ids).unwrap(), *rows, "{when}: {name}");
        }
        let report = self.db().verify(&mut |_| {}).unwrap();
        assert!(report.errors.is_empty(), "{when}: {:?}", report.errors);
        [self.trees.len() - 1, self.snapshots.len()]
    }

    fn check(&self, rng: &mut Rng) {
        let at = rng.below(self.trees.len() as u64) as usize;
        self.with_store(at, |store| {
            check_rows(store, &self.ids, &self.trees[at].rows, rng).unwrap();
        });
        if let Some(branch) = self.branch(at) {
            self.check_own(&branch, &self.trees[at], rng);
            match self.trees[at].parent {
                0 => {
                    let base = branch.base().unwrap();
                    check_rows(&base, &self.ids, &self.trees[at].base, rng).unwrap();
                }
                _ => assert!(matches!(branch.base(), Err(StoreError::Invalid(_)))),
            }
        }
        if let Some((name, (rows, _))) = self.snapshots.iter().nth(rng.below(4) as usize) {
            let store = self.db().open_snapshot(name).unwrap();
            check_rows(&store, &self.ids, rows, rng).unwrap();
        }
    }

    /// Each row that was written in a branch is told, as the branch has it, and no other; of a range only what is in it.
    fn check_own(&self, branch: &Branch, tree: &Tree, rng: &mut Rng) {
        let (mut all, mut changed) = (Vec::new(), branch.changed_spaces().unwrap());
        let keep = |all: &mut Vec<_>, id: KeyspaceId, key: &[u8], value: Option<Bytes>| {
            all.push((id, key.to_vec(), value.map(|value| value.to_vec())));
            true
        };
        branch.changes(&mut |id, key, value| keep(&mut all, id, key, value)).unwrap();
        let spaces: BTreeSet<KeyspaceId> = all.iter().map(|(id, ..)| *id).collect();
        changed.sort();
        assert_eq!(changed, Vec::from_iter(spaces));
        for (space, id) in self.ids.iter().enumerate() {
            let own = all.iter().filter(|(of, ..)| of == id);
            let own: BTreeMap<&Vec<u8>, _> = own.map(|(_, key, value)| (key, value)).collect();
            let written = tree.changed.keys().filter(|(of, _)| *of == space).map(|(_, key)| key);
            assert!(own.keys().copied().eq(written), "other rows than were written");
            for (key, value) in &own {
                assert_eq!(tree.rows.spaces[space].get(*key), value.as_ref(), "{key:?}");
            }
            let keys: Vec<_> = own.keys().collect();
            let [from, to] = [(); 2].map(|()| match keys.len() {
                0 => Vec::new(),
                len => keys[rng.below(len as u64) as usize].to_vec(),
            });
            let range =
                KeyRange { start: Bound::Included(from.clone()), end: Bound::Excluded(to.clone()) };
            let mut part = Vec::new();
            let told = branch
                .changes_of(*id, &range, &mut |id, key, value| keep(&mut part, id, key, value));
            told.unwrap();
            let within = all.iter().filter(|(of, key, _)| of == id && *key >= from && *key < to);
            let within: Vec<_> = within.cloned().collect();
            assert_eq!(part, within);
            assert_eq!(branch.count_changes(*id, &range, 3).unwrap(), within.len().min(3) as u64);
        }
    }

    /// Of two snapshots, or one and the present: each row that differs is told, as the later state has it, and rows that
    /// are told are as that state has them.
    fn check_changes(&mut self, rng: &mut Rng) {
        let present = ("".to_owned(), (self.trees[0].rows.clone(), self.step + 1));
        let mut states: Vec<_> =
            self.snapshots.iter().map(|(name, state)| (name.clone(), state.clone())).collect();
        states.push(present);
        states.sort_by_key(|(_, (_, step))| *step);
        let later = rng.below(states.len() as u64) as usize;
        let older = rng.below(later as u64 + 1) as usize;
        let open = |(name, _): &(String, _)| match name.is_empty() {
            true => self.db().present().unwrap(),
            false => self.db().open_snapshot(name).unwrap(),
        };
        let (before, after) = (open(&states[older]), open(&states[later]));
        let mut told = BTreeMap::new();
        let changes = after.changes_since(&before, &self.ids, &mut |id, key, value| {
            let space = self.ids.iter().position(|known| *known == id).unwrap();
            let value = value.map(|value| value.to_vec());
            assert!(told.insert((space, key.to_vec()), value).is_none(), "{key:?} is told twice");
            true
        });
        changes.unwrap();
        let (before, after) = (&states[older].1.0, &states[later].1.0);
        for (space, rows) in before.spaces.iter().enumerate() {
            let later = &after.spaces[space];
            for key in
                rows.keys().chain(later.keys()).filter(|key| rows.get(*key) != later.get(*key))
            {
                let key = (space, key.clone());
                assert!(told.contains_key(&key), "{key:?} is not told");
                self.told += 1;
            }
        }
        for ((space, key), value) in &told {
            assert_eq!(after.spaces[*space].get(key), value.as_ref());
        }
    }

    /// Inserts rows past log and memtable.
    fn insert(&mut self, rng: &mut Rng) {
        let run = random_run(rng);
        insert_run(self.env.as_ref(), std::path::Path::new("/"), self.db(), &self.ids, &run)
            .unwrap();
        self.note(0, run);
    }

    /// Rows of the store that have the version with which they were read are as they were.
    fn check_versions(&mut self) {
        for _ in 0..4 {
            let space = self.reader.below(self.ids.len() as u64) as usize;
            let (id, key) = (self.ids[space], random_key(&mut self.reader, space));
            let version = self.db().version(id, &key).unwrap();
            let found = self.db().get(id, &key).unwrap().map(|value| value.to_vec());
            let read = self.read.insert((space, key), (version, found.clone()));
            if let Some((_, before)) = read.filter(|(before, _)| *before == version) {
                assert_eq!(before, found);
                self.unchanged += 1;
            }
        }
    }

    pub(crate) fn run(&mut self, rng: &mut Rng, steps: u64) {
        for _ in 0..steps {
            self.step += 1;
            self.check_versions();
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
                87 => self.insert(rng),
                88..91 => self.check_changes(rng),
                91 => drop(self.db().redesign().unwrap()),
                92 => drop(self.db().defragment(Fit::Best).unwrap()),
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
    let prefix = if rng.one_in(2) { Vec::new() } else { random_key(rng, space) };
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
    let (mut commits, mut ways, mut told, mut unchanged) = ([0; 3], [0; 2], 0, 0);
    for seed in 0..16 {
        let mut rng = Rng::new(seed);
        let mut world = World::new(Designs::Drawn, seed);
        world.run(&mut rng, 1200);
        let report = world.db().verify(&mut |_| {}).unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        world.count_ways();
        told += world.told;
        unchanged += world.unchanged;
        world.commits.iter().zip(&mut commits).for_each(|(n, sum)| *sum += n);
        world.ways.iter().zip(&mut ways).for_each(|(n, sum)| *sum += n);
    }
    assert!(ways.iter().all(|n| *n > 60), "{ways:?}");
    assert!(told > 2000, "{told}");
    assert!(unchanged > 2000, "{unchanged}");
    assert!(commits.iter().all(|n| *n > 30), "{commits:?}");
}

/// A branch of many times the memory budget; its commit moves references, not rows.
#[test]
fn a_branch_outgrows_memory_and_commits_by_reference() {
    const BUDGET: usize = 1 << 20;
    const ROWS: u64 = 24_000;
    let dir = tempfile::tempdir().unwrap();
    let env: Arc<dyn varve_env::Env> = varve_env::os::OsEnv::new();
    let options = varve_engine::DbOptions::with_memory_budget(BUDGET);
    let db = Db::open(env, &dir.path().join("store"), options).unwrap();
    let ids = make_spaces(&db).unwrap();
    let key = |n: u64| [(n % 50).to_be_bytes(), (n / 50).to_be_bytes()].concat();
    let mut old = varve_engine::Batch::new();
    (0..100).for_each(|n| old.put(ids[0], key(n), &b"old"[..]));
    db.write(old).unwrap();
    let branch = db.branch(&BranchOptions::default()).unwrap();
    for first in (0..ROWS).step_by(100) {
        let mut batch = varve_engine::Batch::new();
        (first..first + 100).for_each(|n| batch.put(ids[0], key(n), vec![n as u8; 1000]));
        branch.write(batch).unwrap();
        let memory = metrics(&db)["memory_bytes"].as_u64().unwrap();
        assert!(memory < 2 * BUDGET as u64, "{memory} bytes of memory");
    }
    assert_eq!(db.get(ids[0], &key(0)).unwrap().as_deref(), Some(&b"old"[..]));
    let rows = |store: &dyn Store| {
        store.scan(ids[0], KeyRange::all(), Direction::Forward).unwrap().count()
    };
    assert_eq!((rows(&db), rows(&branch)), (100, ROWS as usize));
    let mut other = varve_engine::Batch::new();
    other.put(ids[0], key(7), &b"theirs"[..]);
    db.write(other).unwrap();
    db.flush().unwrap();
    let before = counter(&db, "flush_bytes");
    let mut clashes = 0;
    branch
        .commit(&mut |clash| {
            clashes += 1;
            assert_eq!(clash.key, key(7));
            Merged::Value(clash.theirs.clone().unwrap())
        })
        .unwrap();
    assert!(clashes > 0);
    let flushed = counter(&db, "flush_bytes") - before;
    assert!(flushed < 2 * BUDGET as u64, "{flushed} bytes were written by the commit");
    assert_eq!(counter(&db, "branches_joined"), 1);
    assert_eq!(rows(&db), ROWS as usize);
    assert_eq!(db.get(ids[0], &key(7)).unwrap().as_deref(), Some(&b"theirs"[..]));
    assert_eq!(db.get(ids[0], &key(8)).unwrap().as_deref(), Some(&[8; 1000][..]));
    let report = db.verify(&mut |_| {}).unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
}

/// Versions in the tables of a store whose rows were all written again and again, with or without a snapshot and a
/// branch for some of the time: while they were there, and at the end.
fn versions_after_rewrites(held: bool) -> [u64; 2] {
    let env: Arc<dyn varve_env::Env> = SimEnv::new(3);
    let db = Db::open(env, &store_dir(), small_options()).unwrap();
    let ids = make_spaces(&db).unwrap();
    let versions = || {
        db.flush().unwrap();
        db.compact().unwrap();
        db.verify(&mut |_| {}).unwrap().versions
    };
    let fill = |store: &dyn Store, byte: u8| {
        for n in 0..300u64 {
            let mut batch = varve_engine::Batch::new();
            batch.put(ids[0], [n.to_be_bytes(); 2].concat(), vec![byte; 100]);
            store.write(batch).unwrap();
        }
    };
    (0..3).for_each(|byte| fill(&db, byte));
    let branch = held.then(|| {
        db.create_snapshot("then").unwrap();
        fill(&db, 3);
        let branch = db.branch(&BranchOptions::default()).unwrap();
        fill(&branch, 4);
        branch
    });
    fill(&db, 5);
    let then = versions();
    if let Some(branch) = branch {
        db.delete_snapshot("then").unwrap();
        branch.abort().unwrap();
    }
    (6..10).for_each(|byte| fill(&db, byte));
    [then, versions()]
}

/// What only a snapshot or a branch held goes after its end.
#[test]
fn room_is_given_back_after_a_snapshot_and_a_branch() {
    let (held, plain) = (versions_after_rewrites(true), versions_after_rewrites(false));
    assert!(held[0] >= plain[0] + 500, "{held:?} {plain:?}");
    assert!(held[1] <= plain[1] + 300, "{held:?} {plain:?}");
}

/// Calls that make no sense have a clear error and change nothing.
#[test]
fn wrong_use_of_branches_and_snapshots_is_refused() {
    let env = SimEnv::new(4);
    let db = open(&env).unwrap();
    let ids = make_spaces(&db).unwrap();
    let is_invalid =
        |error: StoreError| assert!(matches!(error, StoreError::Invalid(_)), "{error}");
    is_invalid(db.create_snapshot("").unwrap_err());
    is_invalid(db.create_snapshot(&"x".repeat(256)).unwrap_err());
    is_invalid(db.delete_snapshot("none").unwrap_err());
    is_invalid(db.open_snapshot("none").unwrap_err());
    db.create_snapshot("one").unwrap();
    is_invalid(db.create_snapshot("one").unwrap_err());
    db.insert_sorted(ids[1], &mut [("key".into(), "value".into())].into_iter(), false).unwrap();
    let (one, now) = (db.open_snapshot("one").unwrap(), db.present().unwrap());
    is_invalid(one.changes_since(&now, &ids, &mut |_, _, _| true).unwrap_err());
    now.changes_since(&one, &ids, &mut |_, key, _| key == b"key").unwrap();
    let over = |name: &str| BranchOptions { snapshot: Some(name.to_owned()), ..Default::default() };
    is_invalid(db.branch(&over("none")).unwrap_err());
    let long = BranchOptions { info: vec![0; 4097].into(), ..BranchOptions::default() };
    is_invalid(db.branch(&long).unwrap_err());
    let branch = db.branch(&over("one")).unwrap();
    is_invalid(branch.branch(&over("one")).unwrap_err());
    let child = branch.branch(&BranchOptions::default()).unwrap();
    is_invalid(branch.commit(&mut |_| Merged::Conflict).unwrap_err());
    is_invalid(branch.abort().unwrap_err());
    child.abort().unwrap();
    assert!(matches!(child.abort(), Err(StoreError::Ended)));
    let mut batch = varve_engine::Batch::new();
    batch.put(ids[1], &b"key"[..], &b"value"[..]);
    assert!(matches!(child.write(batch.clone()), Err(StoreError::Ended)));
    is_invalid(db.open_snapshot("one").unwrap().write(batch).unwrap_err());
    db.delete_snapshot("one").unwrap();
    branch.commit(&mut |_| Merged::Conflict).unwrap();
    assert!(matches!(db.open_branch(branch.id()), Err(StoreError::Ended)));
    assert_eq!(db.branches(), []);
}

/// Scratch space of a branch begins empty and stays with it.
#[test]
fn private_key_spaces_are_not_committed() {
    let env = SimEnv::new(5);
    let db = open(&env).unwrap();
    let ids = make_spaces(&db).unwrap();
    let put = |store: &dyn Store, id: KeyspaceId, value: &'static str| {
        let mut batch = varve_engine::Batch::new();
        batch.put(id, &b"key"[..], value);
        store.write(batch).unwrap();
    };
    put(&db, ids[1], "main");
    let options = BranchOptions { private: vec![ids[1]], ..BranchOptions::default() };
    let branch = db.branch(&options).unwrap();
    assert_eq!(branch.get(ids[1], b"key").unwrap(), None);
    put(&branch, ids[1], "scratch");
    branch.clear_keyspace(ids[1]).unwrap();
    assert_eq!(branch.get(ids[1], b"key").unwrap(), None);
    put(&branch, ids[1], "scratch");
    branch.commit(&mut |_| Merged::Conflict).unwrap();
    assert_eq!(db.get(ids[1], b"key").unwrap().as_deref(), Some(&b"main"[..]));
}

/// Writes some rows, or deletes them.
fn change(store: &dyn Store, id: KeyspaceId, rows: std::ops::Range<u64>, put: bool) {
    let mut batch = varve_engine::Batch::new();
    for row in rows {
        match put {
            true => batch.put(id, [row.to_be_bytes(); 2].concat(), vec![7; 100]),
            false => batch.delete(id, [row.to_be_bytes(); 2].concat()),
        }
    }
    store.write(batch).unwrap();
}

/// What is deleted in a private key space hides nothing, but was kept until the branch ended.
#[test]
fn deletions_in_private_key_spaces_go() {
    let env = SimEnv::new(6);
    let db = Db::open(env, &store_dir(), small_options()).unwrap();
    let ids = make_spaces(&db).unwrap();
    change(&db, ids[2], 0..10, true);
    let options = BranchOptions { private: vec![ids[0]], ..BranchOptions::default() };
    let branch = db.branch(&options).unwrap();
    change(&branch, ids[2], 0..10, false);
    for row in (0..2000).step_by(20) {
        change(&branch, ids[0], row..row + 20, true);
        change(&branch, ids[0], row..row + 20, false);
    }
    db.flush().unwrap();
    db.compact().unwrap();
    assert_eq!(contents(&branch, &ids).unwrap(), Model::new());
    let report = db.verify(&mut |_| {}).unwrap();
    assert!(report.errors.is_empty(), "{:?}", report.errors);
    // The ten rows below the branch, its deletions of them, and what was not merged yet.
    assert!((20..200).contains(&report.versions), "{} versions", report.versions);
}

/// A commit has to be told of deletions, even if nothing is older than the branch.
#[test]
fn what_came_and_went_beside_a_branch_is_a_clash() {
    let env = SimEnv::new(7);
    let db = Db::open(env, &store_dir(), small_options()).unwrap();
    let ids = make_spaces(&db).unwrap();
    let branch = db.branch(&BranchOptions::default()).unwrap();
    change(&branch, ids[0], 100..101, true);
    for row in (0..2000).step_by(20) {
        change(&db, ids[0], row..row + 20, true);
        change(&db, ids[0], row..row + 20, false);
    }
    db.flush().unwrap();
    db.compact().unwrap();
    let refused = branch.commit(&mut |_| Merged::Conflict);
    assert!(matches!(refused, Err(StoreError::Conflict { .. })), "{refused:?}");
}
