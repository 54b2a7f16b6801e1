//! What the tests share: a small store, random operations, and a model of correct.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_engine::{
    Batch, Db, Direction, Inspection, KeyRange, KeyspaceOptions, Store, StoreResult, inspect,
};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_types::KeyspaceId;

pub(crate) use varve_env::rng::Rng;

pub(crate) use crate::designs::{Designs, small_options};

pub(crate) fn store_dir() -> PathBuf {
    PathBuf::from("/store")
}

/// Opens the store, each time with the policies that the machine's randomness happens to choose: a store may change
/// them at every open.
pub(crate) fn open(env: &Arc<impl Env + 'static>) -> StoreResult<Db> {
    open_as(env, Designs::Drawn)
}

pub(crate) fn open_as(env: &Arc<impl Env + 'static>, designs: Designs) -> StoreResult<Db> {
    let env: Arc<dyn Env> = Arc::clone(env) as Arc<dyn Env>;
    let options = designs.options(&mut |below| env.random() % below);
    Db::open(env, &store_dir(), options)
}

/// The key spaces of the tests: of prefixed keys, of any keys, and one that is compressed.
pub(crate) const SPACES: [(&str, KeyspaceOptions); 3] = [
    ("rows", KeyspaceOptions { prefixed: true, compressed: false }),
    ("any", KeyspaceOptions { prefixed: false, compressed: false }),
    ("data", KeyspaceOptions { prefixed: true, compressed: true }),
];

pub(crate) fn make_spaces(db: &Db) -> StoreResult<Vec<KeyspaceId>> {
    SPACES.iter().map(|(name, options)| db.keyspace(name, *options)).collect()
}

/// All rows of one key space.
pub(crate) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// All rows of a store, by key space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) spaces: Vec<Rows>,
}

/// One write of a model batch.
#[derive(Clone, Debug)]
pub(crate) struct ModelOp {
    pub(crate) space: usize,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
}

impl Model {
    pub(crate) fn new() -> Model {
        Model { spaces: vec![Rows::new(); SPACES.len()] }
    }

    pub(crate) fn apply(&mut self, ops: &[ModelOp]) {
        for op in ops {
            match &op.value {
                Some(value) => self.spaces[op.space].insert(op.key.clone(), value.clone()),
                None => self.spaces[op.space].remove(&op.key),
            };
        }
    }
}

/// A key from a small universe, so that keys come again.
pub(crate) fn random_key(rng: &mut Rng, space: usize) -> Vec<u8> {
    if SPACES[space].1.prefixed {
        let mut key = rng.below(6).to_be_bytes().to_vec();
        key.extend_from_slice(&(rng.below(40) << 56 | 7).to_be_bytes());
        return key;
    }
    let len = rng.below(5) as usize;
    (0..len).map(|_| [0, 1, b'a', b'b', 0xff][rng.below(5) as usize]).collect()
}

pub(crate) fn random_value(rng: &mut Rng) -> Vec<u8> {
    let len = if rng.one_in(40) { rng.below(3000) } else { rng.below(60) };
    let byte = rng.below(256) as u8;
    let mut value = vec![byte; len as usize];
    value.iter_mut().step_by(3).for_each(|byte| *byte = rng.next_u64() as u8);
    value
}

pub(crate) fn random_ops(rng: &mut Rng) -> Vec<ModelOp> {
    (0..=rng.below(4))
        .map(|_| {
            let space = rng.below(SPACES.len() as u64) as usize;
            let key = random_key(rng, space);
            let value = if rng.one_in(3) { None } else { Some(random_value(rng)) };
            ModelOp { space, key, value }
        })
        .collect()
}

pub(crate) fn to_batch(ids: &[KeyspaceId], ops: &[ModelOp]) -> Batch {
    let mut batch = Batch::new();
    for op in ops {
        match &op.value {
            Some(value) => batch.put(ids[op.space], op.key.clone(), value.clone()),
            None => batch.delete(ids[op.space], op.key.clone()),
        }
    }
    batch
}

/// Changes to different keys of one key space, in their order.
pub(crate) fn random_run(rng: &mut Rng) -> Vec<ModelOp> {
    let space = rng.below(SPACES.len() as u64) as usize;
    let mut run = Rows::new();
    for _ in 0..=rng.below(40) {
        run.insert(random_key(rng, space), random_value(rng));
    }
    run.into_iter()
        .map(|(key, value)| ModelOp { space, key, value: (!rng.one_in(5)).then_some(value) })
        .collect()
}

/// Inserts a run: as rows if it deletes nothing, else as two tables built in `outside`.
pub(crate) fn insert_run(
    env: &dyn Env,
    outside: &Path,
    db: &Db,
    ids: &[KeyspaceId],
    run: &[ModelOp],
) -> StoreResult<()> {
    let Some(first) = run.first() else { return Ok(()) };
    let id = ids[first.space];
    if run.iter().all(|op| op.value.is_some()) {
        let rows = run.iter().map(|op| (op.key.clone(), op.value.clone().unwrap_or_default()));
        let mut rows = rows.map(|(key, value)| (key.into(), value.into()));
        return db.insert_sorted(id, &mut rows, false);
    }
    let mut paths = Vec::new();
    for half in run.chunks(run.len().div_ceil(2)) {
        let path = outside.join(format!("incoming-{:x}.table", env.random()));
        let mut table = db.table_file(id, &path)?;
        half.iter().try_for_each(|op| table.add(&op.key, op.value.as_deref()))?;
        table.finish()?;
        paths.push(path);
    }
    let outcome = db.ingest(&paths);
    paths.iter().for_each(|path| drop(env.remove_file(path)));
    outcome
}

/// All rows of a store, by a scan of each key space.
pub(crate) fn contents(store: &dyn Store, ids: &[KeyspaceId]) -> StoreResult<Model> {
    let mut model = Model { spaces: Vec::new() };
    for id in ids {
        let rows = store.scan(*id, KeyRange::all(), Direction::Forward)?;
        let rows = rows.map(|row| row.map(|(key, value)| (key.to_vec(), value.to_vec())));
        model.spaces.push(rows.collect::<StoreResult<Rows>>()?);
    }
    Ok(model)
}

pub(crate) fn metrics(db: &Db) -> serde_json::Value {
    serde_json::from_str(&db.metrics_json()).unwrap()
}

pub(crate) fn counter(db: &Db, name: &str) -> u64 {
    metrics(db)["counters"][name].as_u64().unwrap()
}

/// Bytes that merges wrote, to all levels.
pub(crate) fn merged_bytes(db: &Db) -> u64 {
    let by_level = metrics(db)["compaction_write_bytes_by_level"].clone();
    by_level.as_array().unwrap().iter().map(|bytes| bytes.as_u64().unwrap()).sum()
}

/// Where the last record of a log ends; behind it is the room that it has taken ahead.
pub(crate) fn log_end(env: &SimEnv, log: &Path) -> u64 {
    match inspect(env, log, false).unwrap() {
        Inspection::Wal(report) => report.valid_bytes,
        other => panic!("{} is no log: {other}", log.display()),
    }
}
