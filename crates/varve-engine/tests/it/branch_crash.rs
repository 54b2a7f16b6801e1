//! Crashes while branches and snapshots come and go: what is found is a prefix of what was acknowledged, in the store
//! and in its branches alike, and each commit is there as a whole or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use varve_engine::{BranchOptions, Db, Fit, Merged, Store, StoreError, StoreResult};
use varve_env::sim::SimEnv;
use varve_types::{BranchId, KeyspaceId};

use crate::common::*;
use crate::designs::try_presets;

/// The store's rows under `None`, and those of each branch with what it stands over.
type Trees = BTreeMap<Option<BranchId>, (Option<BranchId>, Model)>;

/// What was done up to the crash.
struct History {
    /// The state after each step, the first before any.
    states: Vec<Trees>,
    /// The last state that is known durable.
    durable: usize,
    /// The last state that was acknowledged.
    acknowledged: usize,
    /// Branches whose dropping was begun.
    dropped: BTreeSet<BranchId>,
    /// The rows that each named snapshot sees, if it was made with certainty.
    snapshots: BTreeMap<String, Model>,
    /// Names whose making or deleting may not have come to its end.
    uncertain: BTreeSet<String>,
}

struct Run {
    env: Arc<SimEnv>,
    designs: Designs,
    db: Db,
    ids: Vec<KeyspaceId>,
    history: History,
    /// Rows that each tree changed since it began.
    changed: BTreeMap<BranchId, BTreeSet<(usize, Vec<u8>)>>,
}

impl Run {
    fn now(&self) -> &Trees {
        &self.history.states[self.history.states.len() - 1]
    }

    /// Notes the state that the next step is to bring about.
    fn expect(&mut self, next: Trees) {
        self.history.states.push(next);
    }

    fn done(&mut self, durable: bool) {
        self.history.acknowledged = self.history.states.len() - 1;
        if durable {
            self.history.durable = self.history.acknowledged;
        }
    }

    fn any_tree(&self, rng: &mut Rng) -> Option<BranchId> {
        *self.now().keys().nth(rng.below(self.now().len() as u64) as usize).unwrap()
    }

    /// A branch that none stands over.
    fn leaf(&self, rng: &mut Rng) -> Option<BranchId> {
        let tree = self.any_tree(rng);
        tree.filter(|_| self.now().values().all(|(parent, _)| *parent != tree))
    }

    fn write(&mut self, rng: &mut Rng) -> StoreResult<()> {
        let tree = self.any_tree(rng);
        let ops = random_ops(rng);
        let mut next = self.now().clone();
        next.get_mut(&tree).unwrap().1.apply(&ops);
        self.expect(next);
        let batch = to_batch(&self.ids, &ops);
        match tree {
            Some(id) => {
                let changed = self.changed.entry(id).or_default();
                changed.extend(ops.into_iter().map(|op| (op.space, op.key)));
                self.db.open_branch(id)?.write(batch)?;
            }
            None => self.db.write(batch)?,
        }
        self.done(false);
        Ok(())
    }

    fn begin(&mut self, rng: &mut Rng) -> StoreResult<()> {
        let parent = self.any_tree(rng);
        let options = BranchOptions::default();
        let branch = match parent {
            Some(id) => self.db.open_branch(id)?.branch(&options)?,
            None => self.db.branch(&options)?,
        };
        let mut next = self.now().clone();
        let rows = next[&parent].1.clone();
        next.insert(Some(branch.id()), (parent, rows));
        self.expect(next);
        self.done(false);
        Ok(())
    }

    fn commit(&mut self, rng: &mut Rng) -> StoreResult<()> {
        let Some(id) = self.leaf(rng) else { return Ok(()) };
        let mut next = self.now().clone();
        let (parent, rows) = next.remove(&Some(id)).unwrap();
        let changed = self.changed.remove(&id).unwrap_or_default();
        for (space, key) in &changed {
            let value = rows.spaces[*space].get(key).cloned();
            let op = ModelOp { space: *space, key: key.clone(), value };
            next.get_mut(&parent).unwrap().1.apply(&[op]);
        }
        if changed.is_empty() {
            self.history.dropped.insert(id);
        }
        if let Some(parent) = parent {
            self.changed.entry(parent).or_default().extend(changed);
        }
        self.expect(next);
        self.db
            .open_branch(id)?
            .commit(&mut |clash| clash.ours.clone().map_or(Merged::Deleted, Merged::Value))?;
        self.done(false);
        Ok(())
    }

    fn abort(&mut self, rng: &mut Rng) -> StoreResult<()> {
        let Some(id) = self.leaf(rng) else { return Ok(()) };
        let mut next = self.now().clone();
        next.remove(&Some(id));
        self.changed.remove(&id);
        self.history.dropped.insert(id);
        self.expect(next);
        self.db.open_branch(id)?.abort()?;
        self.done(false);
        Ok(())
    }

    fn snapshot(&mut self, rng: &mut Rng) -> StoreResult<()> {
        let name = format!("state {}", rng.below(3));
        let history = &mut self.history;
        history.uncertain.insert(name.clone());
        if history.snapshots.remove(&name).is_some() {
            self.db.delete_snapshot(&name)?;
        } else {
            self.db.create_snapshot(&name)?;
            let rows = self.now()[&None].1.clone();
            self.history.snapshots.insert(name.clone(), rows);
            self.done(true);
        }
        self.history.uncertain.remove(&name);
        Ok(())
    }

    fn step(&mut self, rng: &mut Rng) -> StoreResult<()> {
        match rng.below(40) {
            0..4 if self.now().len() < 5 => self.begin(rng)?,
            4..7 => self.commit(rng)?,
            7 => self.abort(rng)?,
            8 => self.snapshot(rng)?,
            9 | 10 => {
                self.db.sync()?;
                self.done(true);
            }
            11 => self.db.flush()?,
            12 => self.db.compact()?,
            14 => drop(self.db.redesign()?),
            15 => drop(self.db.defragment(Fit::Best)?),
            13 => {
                self.db.close()?;
                self.done(true);
                self.db = open_as(&self.env, self.designs)?;
            }
            _ => self.write(rng)?,
        }
        Ok(())
    }
}

/// Random work on an empty store until the crash or the end.
fn work(env: &Arc<SimEnv>, designs: Designs, seed: u64, steps: usize) -> History {
    let states = vec![Trees::from([(None, (None, Model::new()))])];
    let (durable, acknowledged) = (0, 0);
    let (dropped, snapshots, uncertain) = Default::default();
    let history = History { states, durable, acknowledged, dropped, snapshots, uncertain };
    let Ok(db) = open_as(env, designs) else { return history };
    let Ok(ids) = make_spaces(&db) else { return history };
    let changed = BTreeMap::new();
    let mut run = Run { env: Arc::clone(env), designs, db, ids, history, changed };
    let mut rng = Rng::new(seed);
    for _ in 0..steps {
        if let Err(error) = run.step(&mut rng) {
            assert!(env.crashed(), "seed {seed}: {error}");
            break;
        }
    }
    run.history
}

/// Whether what was found is `state`, but for what is durable at once: the beginning of a branch, which then stands
/// over what is left of its parent, and its end.
fn is_state(found: &Trees, state: &Trees, history: &History) -> bool {
    let is_known =
        |(id, (parent, rows)): (&Option<BranchId>, &(Option<BranchId>, Model))| match state.get(id)
        {
            Some((_, expected)) => rows == expected,
            None => found.get(parent).is_some_and(|(_, expected)| rows == expected),
        };
    let missing = state.keys().flatten().filter(|id| !found.contains_key(&Some(**id)));
    found.iter().all(is_known) && missing.into_iter().all(|id| history.dropped.contains(id))
}

/// Opens what a crash left and compares it with the history.
fn check(
    env: &Arc<SimEnv>,
    designs: Designs,
    history: &History,
    least: usize,
) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let db = open_as(env, designs).map_err(text)?;
    let ids = make_spaces(&db).map_err(text)?;
    let mut found = Trees::from([(None, (None, contents(&db, &ids).map_err(text)?))]);
    for info in db.branches() {
        let rows = db.open_branch(info.id).and_then(|branch| contents(&branch, &ids));
        found.insert(Some(info.id), (info.parent, rows.map_err(text)?));
    }
    for (name, expected) in &history.snapshots {
        match db.open_snapshot(name) {
            Ok(snapshot) if contents(&snapshot, &ids).map_err(text)? == *expected => {}
            Ok(_) => return Err(format!("snapshot {name} sees other rows")),
            Err(_) if history.uncertain.contains(name) => {}
            Err(error) => return Err(text(error)),
        }
    }
    let report = db.verify(&mut |_| {}).map_err(text)?;
    if !report.errors.is_empty() {
        return Err(format!("{:?}", report.errors));
    }
    db.close().map_err(text)?;
    let mut states = history.states[least..].iter();
    if states.any(|state| is_state(&found, state, history)) {
        return Ok(());
    }
    Err(format!("not a state from {least} of {} on", history.states.len()))
}

pub(crate) fn crash_everywhere(
    designs: Designs,
    seed: u64,
    stride: u64,
    lying_disk: bool,
) -> Result<(), String> {
    const STEPS: usize = 260;
    let new_env = || {
        let env = SimEnv::new(seed);
        env.set_ignore_syncs(lying_disk);
        env
    };
    let env = new_env();
    work(&env, designs, seed, STEPS);
    for n in (1 + seed % stride..env.op_count()).step_by(stride as usize) {
        let env = new_env();
        env.crash_after(n);
        let history = work(&env, designs, seed, STEPS);
        let (durable, acknowledged) = (history.durable, history.acknowledged);
        let ends = [
            ("nothing kept", env.power_cut_keep_nothing(), durable),
            ("all kept", env.power_cut_keep_all(), durable),
            ("power cut", env.power_cut(seed ^ n), durable),
            ("process kill", env.process_kill_within(n), acknowledged),
        ];
        for (name, end, least) in ends {
            check(&end, designs, &history, least)
                .and_then(|()| check(&end.process_kill(), designs, &history, least))
                .map_err(|error| format!("seed {seed}, crash at {n}, {name}: {error}"))?;
        }
    }
    Ok(())
}

#[test]
fn every_crash_leaves_each_transaction_whole_or_absent() {
    for seed in 0..4 {
        crash_everywhere(Designs::Drawn, seed, 53, false).unwrap();
    }
}

#[test]
fn every_crash_of_every_preset_leaves_each_transaction_whole_or_absent() {
    try_presets(|designs, seed| crash_everywhere(designs, seed, 211, false));
}

/// The canary: on a disk that ignores syncs the test above must fail.
#[test]
fn a_lying_disk_is_noticed_with_branches() {
    let violation = (0..4).find_map(|seed| crash_everywhere(Designs::Drawn, seed, 53, true).err());
    assert!(violation.is_some_and(|error| error.contains("crash at")));
}
