//! A crash at every sync point, and between: the store opens at a state that existed, which holds all
//! batches that were synced (after a power cut) or acknowledged (after the death of the process).

use std::path::Path;
use std::sync::Arc;

use varve_engine::{Batch, Db, Fit, Store, StoreError, StoreResult};
use varve_env::sim::SimEnv;
use varve_env::{Env, File, OpenMode};
use varve_types::KeyspaceId;

use crate::common::*;
use crate::designs::try_presets;
use crate::threaded::threaded;

/// Where the data outside of the store are.
const OUTSIDE: &str = "/outside";
const OUTSIDE_BYTES: usize = 600;

/// What was done up to the crash.
struct History {
    /// The state after each batch, the first before any.
    states: Vec<Model>,
    /// The last state that a sync made durable.
    synced: usize,
    /// Batches that depend on outside data: the state after, where the data are, what they are.
    outside: Vec<(usize, u64, u8)>,
}

impl History {
    fn new(first: Model) -> History {
        History { states: vec![first], synced: 0, outside: Vec::new() }
    }

    fn last(&self) -> &Model {
        &self.states[self.states.len() - 1]
    }
}

/// How a store is opened.
#[derive(Clone, Copy)]
struct How {
    designs: Designs,
    /// Whether it runs its threads.
    threads: bool,
}

/// Other policies at each open, and no threads.
const DRAWN: How = How { designs: Designs::Drawn, threads: false };

struct Run<'a> {
    env: &'a Arc<SimEnv>,
    how: How,
    history: History,
    /// States that count as acknowledged.
    acknowledged: usize,
    outside: Option<Arc<dyn File>>,
}

impl Run<'_> {
    fn open(&mut self) -> StoreResult<(Db, Vec<KeyspaceId>)> {
        let db = match self.how.threads {
            true => open_as(&Arc::new(threaded(self.env)), self.how.designs)?,
            false => open_as(self.env, self.how.designs)?,
        };
        if let Some(file) = &self.outside {
            let file = Arc::clone(file);
            db.set_external_sync(Box::new(move || file.sync_data()));
        }
        let ids = make_spaces(&db)?;
        Ok((db, ids))
    }

    fn note_synced(&mut self, upto: usize) {
        self.history.synced = self.history.synced.max(upto);
    }

    fn write(&mut self, db: &Db, ids: &[KeyspaceId], rng: &mut Rng) -> StoreResult<()> {
        let ops = random_ops(rng);
        let mut batch = to_batch(ids, &ops);
        let mut next = self.history.last().clone();
        next.apply(&ops);
        self.history.states.push(next);
        if rng.one_in(6) {
            self.write_outside(&mut batch, rng);
        }
        db.write(batch)?;
        self.acknowledged = self.history.states.len() - 1;
        Ok(())
    }

    fn write_outside(&mut self, batch: &mut Batch, rng: &mut Rng) {
        let Some(file) = &self.outside else { return };
        let offset = self.history.outside.len() as u64 * OUTSIDE_BYTES as u64;
        let byte = rng.below(255) as u8 + 1;
        // Fails only after the crash, when the batch fails too.
        if file.write_all_at(&[byte; OUTSIDE_BYTES], offset).is_ok() {
            self.history.outside.push((self.history.states.len() - 1, offset, byte));
            batch.depends_on_external();
        }
    }

    /// A bulk insertion: durable, with all before it.
    fn insert(&mut self, db: &Db, ids: &[KeyspaceId], rng: &mut Rng) -> StoreResult<()> {
        let run = random_run(rng);
        let mut next = self.history.last().clone();
        next.apply(&run);
        self.history.states.push(next);
        insert_run(&**self.env, Path::new("/"), db, ids, &run)?;
        self.acknowledged = self.history.states.len() - 1;
        self.note_synced(self.acknowledged);
        Ok(())
    }

    /// Random work until the crash or the end.
    fn work(&mut self, rng: &mut Rng, steps: usize) -> StoreResult<()> {
        let (mut db, mut ids) = self.open()?;
        for _ in 0..steps {
            self.write(&db, &ids, rng)?;
            let now = self.history.states.len() - 1;
            match rng.below(40) {
                0..4 => {
                    db.sync()?;
                    self.note_synced(now);
                }
                4 => db.flush()?,
                5 => db.compact()?,
                6 => {
                    db.close()?;
                    self.note_synced(now);
                    (db, ids) = self.open()?;
                }
                7 => {
                    let space = rng.below(ids.len() as u64) as usize;
                    let mut next = self.history.last().clone();
                    next.spaces[space].clear();
                    self.history.states.push(next);
                    db.clear_keyspace(ids[space])?;
                    self.acknowledged = self.history.states.len() - 1;
                }
                8 => self.insert(&db, &ids, rng)?,
                9 => drop(db.defragment(Fit::Best)?),
                10 => drop(db.redesign()?),
                _ => {}
            }
        }
        db.close()?;
        self.note_synced(self.history.states.len() - 1);
        Ok(())
    }

    /// Random work on a disk that is full now and then; what finds no room has no effect.
    fn work_on_a_full_disk(&mut self, rng: &mut Rng, steps: usize) -> StoreResult<()> {
        let (db, ids) = self.open()?;
        for step in 0..steps {
            if step % 10 == 0 {
                let room = if rng.one_in(2) { 1 << 30 } else { rng.below(5) * 4096 };
                self.env.set_capacity(self.env.used_bytes() + room);
            }
            let now = self.history.states.len();
            let outcome = match rng.below(20) {
                0 | 1 => db.sync().inspect(|()| self.note_synced(now - 1)),
                2 => db.flush(),
                3 => db.compact(),
                4 => self.insert(&db, &ids, rng),
                5 => db.defragment(Fit::First).map(drop),
                6 => db.redesign().map(drop),
                _ => self.write(&db, &ids, rng),
            };
            match outcome {
                Err(StoreError::NoSpace { .. }) => {
                    self.history.states.truncate(now);
                    self.history.outside.retain(|(state, ..)| *state < now);
                }
                other => other?,
            }
        }
        Ok(())
    }
}

fn outside_file(env: &SimEnv) -> std::io::Result<Arc<dyn File>> {
    let file = env.open(Path::new(OUTSIDE), OpenMode::CreateOrOpen)?;
    env.sync_dir(Path::new("/"))?;
    Ok(file)
}

/// Works on `env` until it crashes or all is done.
fn work(
    env: &Arc<SimEnv>,
    how: How,
    seed: u64,
    steps: usize,
    from: Model,
) -> Result<(History, usize), String> {
    let outside = outside_file(env).ok();
    let mut run = Run { env, how, history: History::new(from), acknowledged: 0, outside };
    match run.work(&mut Rng::new(seed), steps) {
        Err(error) if !env.crashed() => Err(format!("failed without a crash: {error}")),
        _ => Ok((run.history, run.acknowledged)),
    }
}

/// Opens what a crash left and finds which state it is; it must be one from `least` on.
fn recovered(
    env: &Arc<SimEnv>,
    designs: Designs,
    history: &History,
    least: usize,
) -> Result<Model, String> {
    let db = open_as(env, designs).map_err(|error| format!("open: {error}"))?;
    // Nothing calls it: what is uncovered after a power cut must be gone already.
    db.set_external_sync(Box::new(|| Ok(())));
    let found = make_spaces(&db).and_then(|ids| contents(&db, &ids));
    let found = found.map_err(|error| format!("read: {error}"))?;
    let outside = env.read_raw(Path::new(OUTSIDE)).unwrap_or_default();
    let is_there = |(_, offset, byte): &&(usize, u64, u8)| {
        let start = *offset as usize;
        outside.get(start..start + OUTSIDE_BYTES) == Some(&[*byte; OUTSIDE_BYTES][..])
    };
    // Several states may have the same rows; the earliest refers to the fewest outside data.
    let Some(at) = (least..history.states.len()).find(|at| history.states[*at] == found) else {
        let earlier = history.states.iter().position(|state| *state == found);
        return Err(format!("not a state from {least} on; {earlier:?} has the same rows"));
    };
    let mut referred = history.outside.iter().filter(|(state, ..)| *state <= at);
    match referred.find(|data| !is_there(data)) {
        Some((state, ..)) => {
            Err(format!("state {at} refers to outside data of state {state} that are lost"))
        }
        None => Ok(found),
    }
}

/// After one crash: every kind of end, and a second crash after some more work.
fn check_ends(
    env: &Arc<SimEnv>,
    designs: Designs,
    seed: u64,
    history: &History,
    acked: usize,
) -> Result<(), String> {
    let how = How { designs, threads: false };
    let named = |end: &'static str| move |error: String| format!("{end}: {error}");
    let found =
        |env: &Arc<SimEnv>, history: &History, least| recovered(env, designs, history, least);
    let synced = history.synced;
    found(&env.power_cut_keep_nothing(), history, synced).map_err(named("nothing kept"))?;
    found(&env.power_cut_keep_all(), history, synced).map_err(named("all kept"))?;
    for cut in 0..3 {
        let next = env.power_cut(seed ^ cut << 32);
        let rows = found(&next, history, synced).map_err(named("power cut"))?;
        if cut == 0 {
            let killed = next.process_kill();
            let (history, _) = work(&killed, how, seed + 1, 12, rows)?;
            let again = killed.power_cut(seed + 2);
            found(&again, &history, history.synced).map_err(named("second crash"))?;
        }
    }
    // Of the data outside nobody can tell that they are lost: the machine says that it is the same.
    let rows_alone = History { states: history.states.clone(), synced, outside: Vec::new() };
    for cut in 0..3 {
        let next = env.storage_cut(seed ^ cut << 40);
        let rows = found(&next, &rows_alone, synced).map_err(named("storage cut"))?;
        if cut == 0 {
            let killed = next.process_kill();
            let (history, acked) = work(&killed, how, seed + 4, 12, rows)?;
            found(&killed.process_kill(), &history, acked).map_err(named("kill after that"))?;
        }
    }
    let within = env.crashed_at_write() && seed.is_multiple_of(2);
    let killed = if within { env.process_kill_within(seed) } else { env.process_kill() };
    let rows = found(&killed, history, acked).map_err(named("process kill"))?;
    // The process died without a word: the next one works on, and then the power fails.
    let killed = killed.process_kill();
    let (history, acked) = work(&killed, how, seed + 3, 12, rows)?;
    found(&killed.power_cut_keep_nothing(), &history, history.synced)
        .map_err(named("power cut after a kill"))?;
    found(&killed.process_kill(), &history, acked).map_err(named("second kill"))?;
    Ok(())
}

const STEPS: usize = 120;

/// Crashes the same run at many places; returns the first violation.
pub(crate) fn crash_everywhere(
    designs: Designs,
    seed: u64,
    stride: u64,
    lying_disk: bool,
) -> Result<(), String> {
    let how = How { designs, threads: false };
    let new_env = || {
        let env = SimEnv::new(seed);
        env.set_ignore_syncs(lying_disk);
        env
    };
    let env = new_env();
    work(&env, how, seed, STEPS, Model::new())?;
    let (ops, syncs) = (env.op_count(), env.sync_count());
    assert!(syncs > 30, "the run syncs {syncs} times");
    let points = (1..=syncs).map(|n| (n, true));
    let points =
        points.chain((1 + seed % stride..ops).step_by(stride as usize).map(|n| (n, false)));
    for (n, at_sync) in points {
        let env = new_env();
        if at_sync {
            env.crash_at_sync(n)
        } else {
            env.crash_after(n)
        }
        let (history, acked) = work(&env, how, seed, STEPS, Model::new())?;
        check_ends(&env, designs, seed ^ n, &history, acked).map_err(|error| {
            let point = if at_sync { "sync" } else { "operation" };
            format!("seed {seed}, crash at {point} {n}: {error}")
        })?;
    }
    Ok(())
}

#[test]
fn every_crash_leaves_a_state_that_existed() {
    for seed in 0..4 {
        crash_everywhere(Designs::Drawn, seed, 11, false).unwrap();
    }
}

#[test]
fn every_crash_of_every_preset_leaves_a_state_that_existed() {
    try_presets(|designs, seed| crash_everywhere(designs, seed, 31, false));
}

/// The same with flush, compaction and sync on their own threads, at random places.
#[test]
fn crashes_with_threads_leave_a_state_that_existed() {
    let how = How { threads: true, ..DRAWN };
    let env = SimEnv::new(0);
    work(&env, how, 0, STEPS, Model::new()).unwrap();
    let env_ops = env.op_count();
    let mut rng = Rng::new(77);
    for round in 0..60 {
        let env = SimEnv::new(round);
        env.crash_after(1 + rng.below(env_ops));
        let (history, acked) = work(&env, how, round, STEPS, Model::new()).unwrap();
        check_ends(&env, how.designs, round, &history, acked).unwrap();
    }
}

#[test]
fn crashes_on_a_full_disk_leave_a_state_that_existed() {
    let mut refused = 0;
    for seed in 0..150 {
        let env = SimEnv::new(seed);
        let mut rng = Rng::new(seed);
        env.crash_after(60 + rng.below(300));
        let (history, outside) = (History::new(Model::new()), outside_file(&env).ok());
        let how = How { threads: seed % 2 == 1, ..DRAWN };
        let mut run = Run { env: &env, how, history, acknowledged: 0, outside };
        let steps = 2 * STEPS;
        match run.work_on_a_full_disk(&mut rng, steps) {
            Err(error) if !env.crashed() => panic!("seed {seed}: failed without a crash: {error}"),
            _ => {}
        }
        refused += usize::from(run.history.states.len() < steps / 3);
        env.set_capacity(1 << 30);
        check_ends(&env, how.designs, seed, &run.history, run.acknowledged).unwrap();
    }
    assert!(refused > 5, "{refused} runs were refused much");
}

/// The canary: on a disk that ignores syncs the test above must fail.
#[test]
fn a_lying_disk_is_noticed() {
    let violation = (0..4).find_map(|seed| crash_everywhere(Designs::Drawn, seed, 11, true).err());
    assert!(violation.is_some_and(|error| error.contains("crash at")));
}

/// Clearing a key space was durable at once, but a batch written before it was not, so that a power cut
/// left a state that never existed.
#[test]
fn what_was_written_before_a_clearing_survives_with_it() {
    let env = SimEnv::new(1);
    let db = open(&env).unwrap();
    let ids = make_spaces(&db).unwrap();
    let put = |space: usize, key: Vec<u8>| {
        let op = ModelOp { space, key, value: Some(b"value".to_vec()) };
        db.write(to_batch(&ids, &[op])).unwrap();
    };
    put(2, vec![7; 16]);
    db.flush().unwrap();
    put(1, b"before".to_vec());
    db.clear_keyspace(ids[2]).unwrap();
    let db = open(&env.power_cut_keep_nothing()).unwrap();
    let found = contents(&db, &ids).unwrap();
    assert!(found.spaces[2].is_empty());
    assert_eq!(found.spaces[1].len(), 1);
}
