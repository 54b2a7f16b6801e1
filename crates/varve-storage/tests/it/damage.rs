//! Damaged objects, and caches that lie, fail or are full.

use std::io;
use std::path::Path;
use std::sync::Arc;

use varve_env::sim::SimEnv;
use varve_env::{Env, OpenMode};
use varve_storage::{CacheOptions, MemoryObjects, RemoteEnv};

use crate::support::{ANCHOR, format, own, path, read, remote, write};

const MIB: usize = 1 << 20;

fn large() -> Vec<u8> {
    (0..9 * MIB).map(|at| (at / 3001) as u8 ^ at as u8).collect()
}

/// A store with a large file.
fn with_large() -> Arc<MemoryObjects> {
    let objects = format();
    let env = own(&objects, 1).unwrap();
    write(&*env, "large", &large()).unwrap();
    env.close().unwrap();
    objects
}

/// A reader whose cache is on `machine`.
fn reader(objects: &Arc<MemoryObjects>, machine: &Arc<SimEnv>, bytes_max: u64) -> Arc<RemoteEnv> {
    let mut remote = remote(objects);
    remote.options.memory_bytes = 0;
    remote.cache = Some(CacheOptions { dir: "/cache".into(), bytes_max });
    let env: Arc<dyn Env> = Arc::<SimEnv>::clone(machine);
    RemoteEnv::read(env, Path::new(ANCHOR), remote).unwrap()
}

#[test]
fn a_damaged_object_is_named_with_the_offset_and_costs_a_piece_of_a_file() {
    let objects = with_large();
    let mut damaged = objects.objects();
    let (name, bytes) = damaged
        .iter()
        .find(|(name, _)| name.starts_with("data/"))
        .map(|(n, b)| (n.clone(), b.to_vec()))
        .unwrap();
    let mut flipped = bytes.clone();
    flipped[2 * MIB + 5] ^= 4;
    damaged.insert(name.clone(), flipped.into());
    let objects = Arc::new(MemoryObjects::with(damaged));
    let env = own(&objects, 2).unwrap();
    let failed = read(&*env, "large").unwrap_err();
    assert_eq!(failed.kind(), io::ErrorKind::InvalidData);
    let text = failed.to_string();
    // The block of 64 KiB and its checksum.
    let block = (2 * MIB + 5) / 65540 * 65540;
    assert!(
        text.contains(&name) && text.contains(&format!("at offset {block} is wrong")),
        "{text}"
    );
    let file = env.open(&path("large"), OpenMode::Read).unwrap();
    let mut part = vec![0; MIB];
    file.read_exact_at(&mut part, 0).unwrap();
    assert!(part == large()[..MIB]);
}

#[test]
fn a_cut_table_of_names_is_named() {
    let objects = with_large();
    let mut damaged = objects.objects();
    let name = damaged.keys().rfind(|name| name.starts_with("dir/")).unwrap().clone();
    let cut = damaged[&name].slice(..20);
    damaged.insert(name.clone(), cut);
    let failed = own(&Arc::new(MemoryObjects::with(damaged)), 2)
        .and_then(|env| read(&*env, "large"))
        .unwrap_err();
    assert!(failed.to_string().contains(&name), "{failed}");
}

#[test]
fn a_cache_is_bounded_and_what_is_wrong_in_it_is_fetched_again() {
    let objects = with_large();
    let machine = SimEnv::new(3);
    let count = || machine.list(Path::new("/cache")).unwrap().len();
    let env = reader(&objects, &machine, 64 << 20);
    assert!(read(&*env, "large").unwrap() == large());
    assert_eq!((count(), env.counts().cache.misses), (9, 9), "pieces of 1 MiB, and none twice");
    // Another process finds it.
    let env = reader(&objects, &machine, 64 << 20);
    assert!(read(&*env, "large").unwrap() == large());
    assert_eq!(env.counts().cache.misses, 0);
    // Each kind of damage: a bit, an empty file, a file that is gone.
    let names = machine.list(Path::new("/cache")).unwrap();
    let at = |index: usize| Path::new("/cache").join(&names[index].name);
    machine.damage(&at(0), 70_000, 1).unwrap();
    machine.open(&at(1), OpenMode::ReadWrite).unwrap().set_len(0).unwrap();
    machine.remove_file(&at(2)).unwrap();
    let env = reader(&objects, &machine, 64 << 20);
    assert!(read(&*env, "large").unwrap() == large());
    assert_eq!(env.counts().cache.misses, 3);
    // A smaller one.
    let env = reader(&objects, &machine, 5 << 20);
    assert!(read(&*env, "large").unwrap() == large());
    assert!(env.counts().cache.disk_bytes <= 5 << 20 && count() <= 5, "{}", count());
}

#[test]
fn a_cache_without_room_costs_nothing_but_time() {
    let objects = with_large();
    let machine = SimEnv::new(4);
    machine.set_capacity(3 << 20);
    for _ in 0..2 {
        let env = reader(&objects, &machine, 64 << 20);
        assert!(read(&*env, "large").unwrap() == large());
    }
}

/// The objects that two files have outlive either, as garbage is removed at once here; also where another owner comes between,
/// which knows the journal alone.
#[test]
fn a_file_keeps_what_it_shares_when_the_other_one_changes_or_goes() {
    for (is_removed, is_new_owner) in [(true, false), (false, false), (true, true), (false, true)] {
        let objects = with_large();
        let mut env = own(&objects, 5).unwrap();
        let source = env.open(&path("large"), OpenMode::ReadWrite).unwrap();
        let target = env.open(&path("shared"), OpenMode::CreateNew).unwrap();
        assert!(target.share_all(&*source).unwrap());
        target.sync_data().unwrap();
        drop((source, target));
        if is_new_owner {
            env = own(&objects, 6).unwrap();
        }
        if is_removed {
            env.remove_file(&path("large")).unwrap();
        } else {
            write(&*env, "large", b"").unwrap();
        }
        // Roots, behind which garbage goes.
        (0..20).for_each(|n| write(&*env, &format!("small-{n}"), b"x").unwrap());
        env.close().unwrap();
        let found = read(&*own(&objects, 7).unwrap(), "shared")
            .unwrap_or_else(|error| panic!("{is_removed} {is_new_owner}: {error}"));
        assert!(found == large(), "{is_removed} {is_new_owner}");
    }
}

/// Until the removal is recorded a crash brings the file back, whichever record has a root by then.
#[test]
fn the_objects_of_a_removed_file_wait_for_the_record_of_that() {
    for records in 0..6 {
        let objects = with_large();
        let env = own(&objects, 5).unwrap();
        (0..records).for_each(|n| write(&*env, &format!("small-{n}"), b"x").unwrap());
        env.remove_file(&path("large")).unwrap();
        env.collect().unwrap();
        drop(env);
        assert!(read(&*own(&objects, 6).unwrap(), "large").unwrap() == large(), "{records}");
    }
}
