//! Dictionaries: against ordered maps, over crashes, and what checks and repairs say of them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use varve_engine::{Batch, Direction, KeyRange, KeyspaceOptions, Store};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::dictionaries::{PAIR_VALUE_BYTES_MAX, PairChange};
use varve_fs::fsck::repair::repair_engine;
use varve_fs::fsck::{CheckOptions, Finding};
use varve_fs::{Dictionaries, FormatOptions, Isolation, MountOptions, TransactionOptions, VarveFs};
use varve_schema::{DICTIONARIES, DictionaryRow};
use varve_testkit::rng::Rng;
use varve_types::InodeId;
use varve_types::limits::KEY_BYTES_MAX;
use varve_vfs::{FsError, FsResult};

use crate::bench::{Rows, check, repair};
use crate::crash::{STORE, open, sim_store};

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;
type Model = BTreeMap<Vec<u8>, Pairs>;

fn put(key: &[u8], value: &[u8]) -> PairChange {
    (key.to_vec().into(), Some(value.to_vec().into()))
}

fn contents(dictionaries: &Dictionaries) -> Model {
    let pairs = |name: Vec<u8>| {
        let mut pairs = Pairs::new();
        let mut range = KeyRange::all();
        loop {
            let page = dictionaries.scan(&name, range, Direction::Forward, 300).unwrap();
            let last = page.pairs.last().map(|(key, _)| key.to_vec());
            pairs.extend(page.pairs.into_iter().map(|(k, v)| (k.to_vec(), v.to_vec())));
            match last.filter(|_| page.more) {
                Some(last) => {
                    range = KeyRange { start: Bound::Excluded(last), end: Bound::Unbounded }
                }
                None => return (name, pairs),
            }
        }
    };
    dictionaries.list().unwrap().into_iter().map(pairs).collect()
}

#[test]
fn dictionaries_are_made_used_and_removed() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let tags = fs.dictionaries();
    tags.create(b"tags").unwrap();
    assert!(matches!(tags.create(b"tags"), Err(FsError::Exists)));
    for name in [&b""[..], b".", b"a/b", b"a\0b", &[b'x'; 256]] {
        assert!(tags.create(name).is_err(), "{name:?}");
    }
    assert!(matches!(tags.get(b"none", b"k"), Err(FsError::NotFound)));
    assert!(matches!(tags.remove(b"none"), Err(FsError::NotFound)));
    tags.change(b"tags", vec![put(b"", b"empty key"), put(b"b", b"2"), put(b"a", b"")]).unwrap();
    assert_eq!(tags.get(b"tags", b"").unwrap().as_deref(), Some(&b"empty key"[..]));
    assert_eq!(tags.get(b"tags", b"a").unwrap().as_deref(), Some(&b""[..]));
    tags.change(b"tags", vec![(b"b".to_vec().into(), None), put(b"c", b"3")]).unwrap();
    assert_eq!(tags.get(b"tags", b"b").unwrap(), None);
    let reverse = tags.scan(b"tags", KeyRange::all(), Direction::Reverse, usize::MAX).unwrap();
    let keys: Vec<&[u8]> = reverse.pairs.iter().map(|(key, _)| &key[..]).collect();
    assert_eq!((keys, reverse.more), (vec![&b"c"[..], b"a", b""], false));
    let largest = put(&[7; KEY_BYTES_MAX], &vec![8; PAIR_VALUE_BYTES_MAX]);
    tags.change(b"tags", vec![largest]).unwrap();
    for (key, value) in [(KEY_BYTES_MAX + 1, 0), (1, PAIR_VALUE_BYTES_MAX + 1)] {
        let change = put(&vec![7; key], &vec![8; value]);
        assert!(matches!(tags.change(b"tags", vec![change]), Err(FsError::Invalid(_))));
    }
    tags.remove(b"tags").unwrap();
    tags.create(b"other").unwrap();
    assert_eq!(contents(tags), Model::from([(b"other".to_vec(), Pairs::new())]));
    fs.close().unwrap();
    let dyn_env: Arc<dyn Env> = env.clone();
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = VarveFs::open(dyn_env, Path::new(STORE), options).unwrap();
    assert!(matches!(fs.dictionaries().create(b"x"), Err(FsError::ReadOnly)));
    assert!(matches!(fs.dictionaries().change(b"other", vec![]), Err(FsError::ReadOnly)));
    assert_eq!(fs.dictionaries().list().unwrap(), [b"other"]);
}

/// One random step; `Err` only if the machine stops.
fn step(rng: &mut Rng, dictionaries: &Dictionaries, next: &mut Model) -> FsResult<bool> {
    let name = vec![b'a' + rng.below(3) as u8];
    match rng.below(10) {
        0 if !next.contains_key(&name) => {
            next.insert(name.clone(), Pairs::new());
            dictionaries.create(&name).map(|()| true)
        }
        1 if next.remove(&name).is_some() => dictionaries.remove(&name).map(|()| true),
        2 => dictionaries.sync().map(|()| true),
        _ => {
            let mut changes: Vec<PairChange> = Vec::new();
            for _ in 0..=rng.below(5) {
                let key = vec![rng.below(20) as u8; rng.below(3) as usize + 1];
                let len = if rng.chance(20) { 3000 } else { rng.below(50) };
                let value = (!rng.chance(30)).then(|| rng.bytes(len as usize));
                changes.push((key.into(), value.map(Into::into)));
            }
            if let Some(pairs) = next.get_mut(&name) {
                for (key, value) in &changes {
                    match value {
                        Some(value) => drop(pairs.insert(key.to_vec(), value.to_vec())),
                        None => drop(pairs.remove(&key[..])),
                    }
                }
                return dictionaries.change(&name, changes).map(|()| false);
            }
            assert!(matches!(dictionaries.change(&name, changes), Err(FsError::NotFound)));
            Ok(false)
        }
    }
}

/// Runs `steps` random steps until the machine stops: the states, the last that was acknowledged, and the last that
/// was made durable.
fn run(env: &Arc<SimEnv>, seed: u64, steps: usize) -> (Vec<Model>, usize, usize) {
    let (mut states, mut acknowledged, mut durable) = (vec![Model::new()], 0, 0);
    let dyn_env: Arc<dyn Env> = env.clone();
    let Ok(fs) = VarveFs::open(dyn_env, Path::new(STORE), MountOptions::default()) else {
        return (states, 0, 0);
    };
    let mut rng = Rng::new(seed);
    for _ in 0..steps {
        let mut next = states[states.len() - 1].clone();
        let done = step(&mut rng, fs.dictionaries(), &mut next);
        states.push(next);
        match done {
            Ok(is_durable) => {
                acknowledged = states.len() - 1;
                durable = if is_durable { acknowledged } else { durable };
            }
            Err(error) => {
                assert!(env.crashed(), "{error}");
                break;
            }
        }
    }
    (states, acknowledged, durable)
}

/// A removal that met locks was marked as begun: until they had gone no dictionary could be asked for anything.
#[test]
fn a_dictionary_with_locked_pairs_is_removed_later() {
    let env = sim_store(7, &FormatOptions::default());
    let fs = open(&env);
    let tags = fs.dictionaries();
    tags.create(b"tags").unwrap();
    tags.create(b"others").unwrap();
    tags.change(b"tags", vec![put(b"key", b"1")]).unwrap();
    let isolation = Isolation::Serializable;
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    let id = fs.begin_transaction(InodeId::ROOT, &options).unwrap().name;
    let own = fs.transaction_dictionaries(&id).unwrap();
    assert_eq!(own.get(b"tags", b"key").unwrap().as_deref(), Some(&b"1"[..]));
    for _ in 0..2 {
        assert!(matches!(tags.remove(b"tags"), Err(FsError::Blocked(_))));
        assert_eq!(tags.get(b"tags", b"key").unwrap().as_deref(), Some(&b"1"[..]));
        tags.change(b"others", vec![put(b"key", b"2")]).unwrap();
    }
    assert_eq!(tags.list().unwrap(), [&b"others"[..], b"tags"]);
    drop(own);
    fs.abort_transaction(&id).unwrap();
    tags.remove(b"tags").unwrap();
    assert_eq!(tags.list().unwrap(), [b"others"]);
}

/// A serializable transaction saw what was written to files after it had begun, but not the dictionaries that were made before that; and
/// one that had found a dictionary, or none, could meet the opposite later.
#[test]
fn a_serializable_transaction_finds_the_dictionaries_that_are_there_and_keeps_them_so() {
    let fs = open(&sim_store(8, &FormatOptions::default()));
    let tags = fs.dictionaries();
    let isolation = Isolation::Serializable;
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    let begun = fs.begin_transaction(InodeId::ROOT, &options).unwrap();
    let id = begun.name.clone();
    tags.create(b"since").unwrap();
    tags.change(b"since", vec![put(b"key", b"1")]).unwrap();
    let own = fs.transaction_dictionaries(&id).unwrap();
    assert_eq!(own.get(b"since", b"key").unwrap().as_deref(), Some(&b"1"[..]));
    assert!(matches!(own.get(b"none", b"key"), Err(FsError::NotFound)));
    let blocked =
        |done: FsResult<()>| assert!(matches!(done, Err(FsError::Blocked(_))), "{done:?}");
    blocked(tags.create(b"none"));
    blocked(tags.remove(b"since"));
    tags.create(b"beside").unwrap();
    assert_eq!(own.list().unwrap(), [&b"beside"[..], b"since"]);
    blocked(tags.create(b"further"));
    assert_eq!(tags.list().unwrap(), [&b"beside"[..], b"since"]);
    own.change(b"since", vec![put(b"key", b"2")]).unwrap();
    drop(own);
    let view = fs.open_view(&begun).unwrap();
    fs.commit_transaction(&id, &view).unwrap();
    tags.create(b"none").unwrap();
    assert_eq!(tags.get(b"since", b"key").unwrap().as_deref(), Some(&b"2"[..]));
    tags.remove(b"since").unwrap();
}

#[test]
fn a_crash_anywhere_leaves_a_state_that_existed() {
    for seed in 0..3 {
        let fresh = || sim_store(seed, &FormatOptions::default());
        let whole = fresh();
        let before = whole.op_count();
        run(&whole, seed, 60);
        let ops = whole.op_count() - before;
        assert!(ops > 60, "{ops} operations");
        for at in (0..ops).step_by(2) {
            let env = fresh();
            env.crash_after(env.op_count() + at);
            let (states, acknowledged, durable) = run(&env, seed, 60);
            let kill = (env.process_kill_within(at), acknowledged);
            let cuts = [env.power_cut(at), env.power_cut_keep_nothing(), env.power_cut_keep_all()];
            for (image, least) in [kill].into_iter().chain(cuts.map(|image| (image, durable))) {
                let fs = open(&image);
                let found = contents(fs.dictionaries());
                assert!(states[least..].contains(&found), "seed {seed}, crash after {at}");
                fs.close().unwrap();
                drop(fs);
                let report = check(&image);
                assert_eq!(report.findings, [], "seed {seed}, crash after {at}");
            }
        }
    }
}

/// The rows of names of the store, changed behind its back.
fn change_names(env: &Arc<SimEnv>, change: impl FnOnce(&mut Batch, varve_types::KeyspaceId)) {
    let rows = Rows::open(env);
    let options = KeyspaceOptions { prefixed: false, compressed: false };
    let names = rows.db.keyspace(DICTIONARIES, options).unwrap();
    let mut batch = Batch::new();
    change(&mut batch, names);
    rows.db.write(batch).unwrap();
    rows.close();
}

fn two_dictionaries(seed: u64) -> Arc<SimEnv> {
    let env = sim_store(seed, &FormatOptions::default());
    let fs = open(&env);
    for name in [b"one", b"two"] {
        fs.dictionaries().create(name).unwrap();
        fs.dictionaries().change(name, vec![put(b"key", name)]).unwrap();
    }
    fs.close().unwrap();
    env
}

#[test]
fn broken_names_are_found_and_repaired_without_losing_pairs() {
    let env = two_dictionaries(1);
    assert_eq!(check(&env).dictionaries, 2);
    change_names(&env, |batch, names| {
        batch.put(names, &b"one"[..], &b"\x01\x07\x00"[..]);
        let shared = DictionaryRow::found(1);
        batch.put(names, &b"zwei"[..], shared.encode());
        batch.put(names, &b"no/name"[..], DictionaryRow::found(2).encode());
    });
    let findings = check(&env).findings;
    let is = |wanted: fn(&Finding) -> bool| findings.iter().filter(|f| wanted(f)).count();
    assert_eq!(is(|f| matches!(f, Finding::UnreadableDictionary { .. })), 2, "{findings:?}");
    assert_eq!(is(|f| matches!(f, Finding::SharedDictionary { .. })), 1, "{findings:?}");
    assert!(findings.contains(&Finding::PairsWithoutDictionary { number: 0 }), "{findings:?}");
    let fs = open(&env);
    let error = fs.dictionaries().list().unwrap_err().to_string();
    assert!(error.contains("varve fsck"), "{error}");
    fs.close().unwrap();
    drop(fs);
    let report = repair(&env);
    assert!(report.left.is_spotless(), "{:?}", report.left.findings);
    let fs = open(&env);
    let found = contents(fs.dictionaries());
    let names: Vec<&[u8]> = found.keys().map(|name| &name[..]).collect();
    assert_eq!(names, [&b"recovered-0"[..], b"two"]);
    assert_eq!(found[&b"recovered-0"[..]][&b"key"[..]], b"one");
    assert_eq!(found[&b"two"[..]][&b"key"[..]], b"two");
}

#[test]
fn a_removal_that_was_cut_short_is_finished_at_the_next_mount() {
    let env = two_dictionaries(2);
    change_names(&env, |batch, names| {
        batch.put(
            names,
            &b"one"[..],
            DictionaryRow { going: true, ..DictionaryRow::found(0) }.encode(),
        );
    });
    let report = check(&env);
    assert_eq!(report.findings, [Finding::DictionaryGoing { name: "one".into() }]);
    assert!(report.is_clean());
    open(&env).close().unwrap();
    assert_eq!(check(&env).findings, []);
    let fs = open(&env);
    assert_eq!(contents(fs.dictionaries()).len(), 1);
    fs.dictionaries().create(b"three").unwrap();
    assert_eq!(fs.dictionaries().get(b"three", b"key").unwrap(), None);
}

#[test]
fn a_store_that_lost_its_manifest_finds_its_dictionaries() {
    let env = two_dictionaries(3);
    let engine = Path::new(STORE).join("engine");
    {
        let rows = Rows::open(&env);
        rows.db.flush().unwrap();
        rows.close();
    }
    let names = env.list(&engine).unwrap().into_iter().map(|item| item.name);
    for name in names.filter(|name| name.to_string_lossy().contains("MANIFEST")) {
        env.remove_file(&engine.join(name)).unwrap();
    }
    let dyn_env: Arc<dyn Env> = env.clone();
    let repaired = repair_engine(&dyn_env, Path::new(STORE), &CheckOptions::default()).unwrap();
    assert!(repaired.manifest_lost.is_some());
    assert_eq!(check(&env).findings, []);
    let fs = open(&env);
    let found = contents(fs.dictionaries());
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|(name, pairs)| pairs[&b"key"[..]] == *name));
}
