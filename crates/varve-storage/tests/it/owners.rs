//! One owner at a time.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use varve_env::sim::SimEnv;
use varve_env::{Env, OpenMode};
use varve_storage::{Fate, MemoryObjects, Remote, RemoteEnv, Request, StoreOptions, transient};

use crate::support::{ANCHOR, format, own, owner, path, read, remote, write};

fn open(objects: &Arc<MemoryObjects>, process: u32, take_over: bool) -> io::Result<Arc<RemoteEnv>> {
    open_on(&SimEnv::new(process.into()), objects, process, take_over)
}

/// The same on a given machine.
fn open_on(
    machine: &Arc<SimEnv>,
    objects: &Arc<MemoryObjects>,
    process: u32,
    take_over: bool,
) -> io::Result<Arc<RemoteEnv>> {
    let machine: Arc<dyn Env> = Arc::<SimEnv>::clone(machine);
    let mut remote: Remote = remote(objects);
    remote.options.take_over = take_over;
    RemoteEnv::own(machine, Path::new(ANCHOR), remote, owner(process), |_| false)
}

#[test]
fn an_owner_that_is_alive_is_named_and_one_that_is_fenced_off_answers_nothing() {
    let objects = format();
    let first = open(&objects, 1, false).unwrap();
    write(&*first, "synced", b"kept").unwrap();
    let unsynced = first.open(&path("unsynced"), OpenMode::CreateNew).unwrap();
    unsynced.write_all_at(b"x", 0).unwrap();
    let refused = open(&objects, 2, false).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy);
    let text = refused.to_string();
    assert!(text.contains("process 1 on host (test)") && text.contains("seconds longer"), "{text}");
    let second = open(&objects, 2, true).unwrap();
    assert_eq!(read(&*second, "synced").unwrap(), b"kept");
    assert!(read(&*second, "unsynced").is_err());
    // It finds out when it writes, and then does not even read.
    let failed = unsynced.sync_data().unwrap_err().to_string();
    assert!(failed.contains("taken over by process 2 on host (test)"), "{failed}");
    for failed in [
        read(&*first, "synced").map(drop),
        first.list(Path::new(ANCHOR)).map(drop),
        first.close(),
        unsynced.read_at(&mut [0], 0).map(drop),
        unsynced.write_all_at(b"y", 0),
    ] {
        assert!(failed.unwrap_err().to_string().contains("taken over"));
    }
    write(&*second, "synced", b"new").unwrap();
    second.close().unwrap();
    let third = open(&objects, 3, false).unwrap();
    assert_eq!(read(&*third, "synced").unwrap(), b"new");
}

/// Without a request of its own an owner learns of a fence when its lease ends; until then the next one waits.
#[test]
fn an_owner_that_is_cut_off_reads_no_longer_than_its_lease() {
    let objects = format();
    let machine = SimEnv::new(1);
    let first = open_on(&machine, &objects, 1, false).unwrap();
    write(&*first, "file", b"old").unwrap();
    let file = first.open(&path("file"), OpenMode::Read).unwrap();
    let taker = SimEnv::new(2);
    let before = taker.monotonic();
    let second = open_on(&taker, &objects, 2, true).unwrap();
    assert!(taker.monotonic() - before >= Duration::from_secs(30), "the lease is waited out");
    write(&*second, "file", b"new").unwrap();
    assert_eq!(file.read_at(&mut [0; 3], 0).unwrap(), 3, "its lease is not over by its own clock");
    machine.sleep(Duration::from_secs(31));
    let failed = file.read_at(&mut [0; 3], 0).unwrap_err().to_string();
    assert!(failed.contains("taken over by process 2"), "{failed}");
}

/// With a record on its way it asked itself for ever whether it still was the owner.
#[test]
fn an_owner_whose_lease_ends_while_a_record_is_on_its_way_learns_of_the_next_one() {
    let objects = format();
    let machine = SimEnv::new(1);
    let first = open_on(&machine, &objects, 1, false).unwrap();
    write(&*first, "file", b"old").unwrap();
    objects.decide(|request| match request {
        Request::Create(_) => Fate::Lost(transient("cut off")),
        _ => Fate::Answered,
    });
    assert!(write(&*first, "file", b"lost").is_err(), "after all attempts");
    machine.sleep(Duration::from_secs(31));
    assert_eq!(read(&*first, "file").unwrap(), b"lost", "nobody else has come");
    objects.decide(|_| Fate::Answered);
    let second = open(&objects, 2, true).unwrap();
    assert_eq!(read(&*second, "file").unwrap(), b"old");
    machine.sleep(Duration::from_secs(31));
    let failed = read(&*first, "file").unwrap_err().to_string();
    assert!(failed.contains("taken over by process 2"), "{failed}");
}

#[test]
fn of_owners_that_come_at_once_one_is_left() {
    for round in 0..100 {
        let objects = format();
        let (begin, owners) = (Barrier::new(4), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for process in 1..5 {
                let (begin, owners, objects) = (&begin, &owners, &objects);
                scope.spawn(move || {
                    begin.wait();
                    match open(objects, process, false) {
                        Ok(env) => {
                            let name = format!("of-{process}");
                            if write(&*env, &name, b"x").is_ok() {
                                owners.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ResourceBusy),
                    }
                });
            }
        });
        // One that fenced off another which had not said yet that it was there may have come late: what both
        // have synced is there.
        let env = own(&objects, 9).unwrap();
        let left = env.list(Path::new(ANCHOR)).unwrap().len();
        assert!(left >= 1 && left == owners.load(Ordering::Relaxed), "round {round}");
    }
}

#[test]
fn a_prefix_with_something_else_is_named_and_not_touched() {
    let objects = Arc::new(MemoryObjects::default());
    varve_storage::Objects::create(&*objects, "photos/1.jpg", "x".into()).unwrap();
    let machine: Arc<dyn Env> = SimEnv::new(0);
    let refused = varve_storage::format(&machine, &remote(&objects)).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::DirectoryNotEmpty);
    assert!(refused.to_string().contains("photos/1.jpg"), "{refused}");
    let none = own(&objects, 1).unwrap_err();
    assert_eq!(none.kind(), io::ErrorKind::NotFound);
    assert_eq!(objects.objects().len(), 1);
}

/// The time of a record was the time of its making: what a reader had until the record was there went as soon as it was.
#[test]
fn what_a_record_leaves_behind_stays_for_readers_of_the_state_before_however_late_it_comes() {
    let age = Duration::from_secs(600);
    let objects = format();
    let machine = SimEnv::new(1);
    let aged = || {
        let mut remote = remote(&objects);
        remote.options = StoreOptions { reader_age: age, checkpoint_records: 1, ..remote.options };
        remote
    };
    let env = || Arc::<SimEnv>::clone(&machine);
    let first = RemoteEnv::own(env(), Path::new(ANCHOR), aged(), owner(1), |_| true).unwrap();
    let large = vec![7; 1 << 20];
    write(&*first, "large", &large).unwrap();
    let data: Vec<String> =
        objects.objects().into_keys().filter(|name| name.starts_with("data/")).collect();
    // Gone, and nobody elsewhere knows it for long.
    first.remove_file(&path("large")).unwrap();
    machine.sleep(age);
    let reader = RemoteEnv::read(env(), Path::new(ANCHOR), aged()).unwrap();
    let write_more = |name: &str| write(&*first, name, b"x").unwrap();
    write_more("one");
    assert!(reader.is_behind().unwrap());
    machine.sleep(age - Duration::from_secs(1));
    write_more("two");
    first.collect().unwrap();
    assert!(read(&*reader, "large").unwrap() == large);
    assert!(data.iter().all(|name| objects.objects().contains_key(name)));
    machine.sleep(Duration::from_secs(2));
    write_more("three");
    first.collect().unwrap();
    let left = objects.objects();
    assert!(!data.is_empty() && data.iter().all(|name| !left.contains_key(name)), "{data:?}");
}
