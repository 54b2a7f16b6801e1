//! The file system on an object store in the place of a directory.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::fsck::{Finding, Severity};
use varve_fs::{FormatOptions, MountOptions, VarveFs, format};
use varve_storage::{
    Fate, MemoryObjects, Owner, Remote, RemoteEnv, Request, Retry, StoreOptions, transient,
};
use varve_testkit::fsops::Lockstep;
use varve_testkit::rng::Rng;

use crate::against_model::run_rounds;

const STORE: &str = "/store";

type Objects = BTreeMap<String, Bytes>;

fn remote(objects: &Arc<MemoryObjects>) -> Remote {
    let objects = Arc::<MemoryObjects>::clone(objects);
    let options = StoreOptions {
        checkpoint_records: 40,
        reader_age: Duration::ZERO,
        ..StoreOptions::default()
    };
    Remote { objects, options, retry: Retry::default(), cache: None }
}

fn machine(seed: u64) -> Arc<dyn Env> {
    let machine = SimEnv::new(seed);
    machine.create_dir(Path::new(STORE)).unwrap();
    machine
}

fn own(objects: &Arc<MemoryObjects>, machine: &Arc<dyn Env>) -> Arc<dyn Env> {
    let (machine, store) = (Arc::clone(machine), Path::new(STORE));
    RemoteEnv::own(machine, store, remote(objects), Owner::default(), |_| true).unwrap()
}

fn open(objects: &Arc<MemoryObjects>, machine: &Arc<dyn Env>) -> VarveFs {
    VarveFs::open(own(objects, machine), Path::new(STORE), MountOptions::default()).unwrap()
}

/// Makes an empty store of objects, and a file system in it.
fn formatted(machine: &Arc<dyn Env>, options: &FormatOptions) -> Arc<MemoryObjects> {
    let objects = Arc::new(MemoryObjects::default());
    varve_storage::format(machine, &remote(&objects)).unwrap();
    format(&own(&objects, machine), Path::new(STORE), options).unwrap();
    objects
}

/// Lets some requests fail, half of them after they had their effect, and remembers the objects at some moments.
fn disturb(objects: &Arc<MemoryObjects>, seed: u64) -> Arc<Mutex<Vec<Objects>>> {
    let moments = Arc::new(Mutex::new(Vec::new()));
    let (all, kept, rng) =
        (Arc::downgrade(objects), Arc::clone(&moments), Mutex::new(Rng::new(seed)));
    objects.decide(move |request| {
        let mut rng = rng.lock();
        if rng.below(100) == 0 {
            kept.lock().extend(all.upgrade().map(|all| all.objects()));
        }
        match (rng.below(60), request) {
            (0, _) => Fate::Lost(transient("lost")),
            (1, Request::Create(_)) => Fate::Unanswered(transient("not answered")),
            _ => Fate::Answered,
        }
    });
    moments
}

/// Returns how many moments of a crash were looked at.
fn run(seed: u64) -> usize {
    let large_file_threshold_bytes = if seed.is_multiple_of(2) { 4096 } else { 65536 };
    let options = FormatOptions { large_file_threshold_bytes, ..FormatOptions::default() };
    let machine = machine(seed);
    let objects = formatted(&machine, &options);
    let found = disturb(&objects, seed);
    let open = |objects: &Arc<MemoryObjects>| open(objects, &machine);
    // The owner of each round goes without a word: what it synced is there.
    let opened = || open(&objects);
    run_rounds(Lockstep::new(seed), &opened, 4, &|lockstep, fs| lockstep.run(fs, 300));
    let found = std::mem::take(&mut *found.lock());
    let moments = found.len();
    for (moment, objects) in found.into_iter().enumerate() {
        let fs = open(&Arc::new(MemoryObjects::with(objects)));
        let report = fs.check(&mut |_| ()).unwrap();
        let is_broken = |finding: &Finding| finding.severity() != Severity::Waste;
        let broken: Vec<_> = report.findings.into_iter().filter(is_broken).collect();
        assert_eq!(broken, [], "seed {seed}, moment {moment}");
        fs.close().unwrap();
    }
    moments
}

#[test]
fn random_operations_on_objects_answer_as_the_model_does() {
    let moments: usize = (0..8).map(run).sum();
    assert!(moments > 20, "{moments}");
}

/// Other seeds of the same, for as long as `varve_testkit::soak` says.
#[test]
#[ignore = "a soak"]
fn soak() {
    println!("{}", varve_testkit::soak(|seed| assert!(run(seed) < usize::MAX)));
}
