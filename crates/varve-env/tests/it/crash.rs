//! What the simulated machine keeps and loses, promise by promise.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use varve_env::sim::{FaultRule, SimEnv, SimOp, is_crash};
use varve_env::{Env, File, OpenMode, is_passing};
use varve_types::Timestamp;

pub(crate) const SEEDS: std::ops::Range<u64> = 0..200;

pub(crate) fn create(env: &SimEnv, path: &str) -> Arc<dyn File> {
    env.open(Path::new(path), OpenMode::CreateNew).unwrap()
}

fn names(env: &SimEnv, dir: &str) -> BTreeSet<String> {
    env.list(Path::new(dir))
        .unwrap()
        .into_iter()
        .map(|item| item.name.into_string().unwrap())
        .collect()
}

pub(crate) fn bytes(env: &SimEnv, path: &str) -> Option<Vec<u8>> {
    env.read_raw(Path::new(path)).ok()
}

/// A machine with the durable file `/f` holding `content`.
pub(crate) fn with_durable(content: &[u8]) -> (Arc<SimEnv>, Arc<dyn File>) {
    let env = SimEnv::new(1);
    let file = create(&env, "/f");
    file.write_all_at(content, 0).unwrap();
    file.sync_data().unwrap();
    env.sync_dir(Path::new("/")).unwrap();
    (env, file)
}

#[test]
fn promise_1_written_bytes_survive_the_process() {
    let env = SimEnv::new(1);
    let file = create(&env, "/f");
    file.write_all_at(b"not synced", 0).unwrap();
    let _lock = env.lock(Path::new("/LOCK")).unwrap().unwrap();
    let next = env.process_kill();
    assert_eq!(bytes(&next, "/f").unwrap(), b"not synced");
    assert_eq!(next.boot_id(), env.boot_id());
    assert!(next.lock(Path::new("/LOCK")).unwrap().is_some(), "locks die with the process");
    assert!(is_crash(&file.write_all_at(b"x", 0).unwrap_err()), "the old process is gone");
    assert_eq!(names(&next.power_cut_keep_nothing(), "/"), BTreeSet::new(), "still not synced");
}

#[test]
fn a_process_leaves_a_prefix_of_the_write_in_which_it_is_killed_and_any_part_of_a_copy() {
    let (old, new) = ([7; 1024], [8; 512]);
    let left = |by_copy: bool| {
        let (env, file) = with_durable(&old);
        let mut window = file.window(0, 1024).unwrap().unwrap();
        env.crash_after(env.op_count());
        let refused = if by_copy { window.write(&new, 256) } else { file.write_all_at(&new, 256) };
        assert!(is_crash(&refused.unwrap_err()) && file.set_len(0).is_err());
        assert!(file.write_all_at(b"later", 0).is_err() && env.crashed_at_write());
        assert_eq!(bytes(&env.process_kill(), "/f").unwrap(), old);
        let all: BTreeSet<_> = SEEDS
            .map(|seed| {
                let next = env.process_kill_within(seed);
                assert_eq!(next.boot_id(), env.boot_id());
                assert_eq!(bytes(&next.power_cut_keep_nothing(), "/f").unwrap(), old);
                let found = bytes(&next, "/f").unwrap();
                assert!(
                    found.len() == 1024 && found[..256] == old[..256] && found[768..] == old[768..]
                );
                found
            })
            .collect();
        all
    };
    let prefix = |found: &Vec<u8>| {
        let written = found.iter().filter(|byte| **byte == 8).count();
        found[256..256 + written] == new[..written]
    };
    let (called, copied) = (left(false), left(true));
    assert!(called.len() > 100 && called.iter().all(prefix), "{}", called.len());
    assert!(copied.len() > 100 && !copied.iter().all(prefix), "{}", copied.len());
    assert!(copied.iter().any(|found| found[256] == 7 && found[767] == 8), "the end alone");
}

#[test]
fn promise_2_synced_bytes_and_length_survive_a_power_cut() {
    let (env, file) = with_durable(&[7; 5000]);
    file.write_all_at(&[8; 5000], 5000).unwrap();
    file.sync_data().unwrap();
    for seed in SEEDS {
        let found = bytes(&env.power_cut(seed), "/f").unwrap();
        assert_eq!(found, [[7; 5000], [8; 5000]].concat());
    }
    assert_ne!(env.power_cut(0).boot_id(), env.boot_id());
    assert_ne!(env.power_cut(0).boot_id(), env.power_cut(1).boot_id());
}

#[test]
fn promise_2_what_one_power_cut_left_is_durable_for_the_next() {
    let (env, file) = with_durable(b"old");
    file.write_all_at(b"new", 0).unwrap();
    for seed in SEEDS {
        let first = env.power_cut(seed);
        let (found, second) = (bytes(&first, "/f"), first.power_cut_keep_nothing());
        assert!(found.is_some());
        assert_eq!(bytes(&second, "/f"), found);
        assert_ne!(second.boot_id(), first.boot_id());
    }
}

#[test]
fn promise_2_unsynced_bytes_may_survive_whole_torn_or_not_at_all() {
    let (env, file) = with_durable(&[7; 1024]);
    file.write_all_at(&[8; 2048], 512).unwrap();
    let mut seen = BTreeSet::new();
    for seed in SEEDS {
        let found = bytes(&env.power_cut(seed), "/f").unwrap();
        assert!(found.len() == 1024 || found.len() == 2560, "length {}", found.len());
        for sector in found.chunks(512) {
            assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is written as one");
        }
        assert_eq!(found[..512], [7; 512], "what was not rewritten stays");
        seen.insert(found);
    }
    let whole = [vec![7; 512], vec![8; 2048]].concat();
    assert!(seen.contains(&vec![7; 1024]) && seen.contains(&whole));
    assert!(seen.contains(&[vec![7; 1024], vec![0; 1536]].concat()), "the length alone");
    assert!(seen.contains(&[vec![7; 512], vec![8; 512]].concat()), "bytes without the length");
    assert!(seen.len() > 8, "only {} states", seen.len());
    assert_eq!(bytes(&env.power_cut_keep_nothing(), "/f").unwrap(), [7; 1024]);
    assert_eq!(bytes(&env.power_cut_keep_all(), "/f").unwrap(), whole);
}

#[test]
fn promise_2_writes_between_syncs_are_reordered() {
    let (env, file) = with_durable(&[7; 1024]);
    file.write_all_at(&[8; 512], 0).unwrap();
    file.write_all_at(&[9; 512], 512).unwrap();
    let second_only = [[7; 512], [9; 512]].concat();
    assert!(SEEDS.map(|seed| bytes(&env.power_cut(seed), "/f").unwrap()).any(|b| b == second_only));
}

#[test]
fn promise_3_a_name_needs_the_sync_of_its_directory() {
    let env = SimEnv::new(1);
    env.create_dir(Path::new("/d")).unwrap();
    env.sync_dir(Path::new("/")).unwrap();
    let file = create(&env, "/d/f");
    file.write_all_at(b"x", 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(names(&env.power_cut_keep_nothing(), "/d"), BTreeSet::new());
    let both: BTreeSet<_> = SEEDS.map(|seed| names(&env.power_cut(seed), "/d").len()).collect();
    assert_eq!(both, BTreeSet::from([0, 1]), "either state may be found");
    env.sync_dir(Path::new("/d")).unwrap();
    for seed in SEEDS {
        assert_eq!(bytes(&env.power_cut(seed), "/d/f").unwrap(), b"x");
    }
}

#[test]
fn promise_3_a_name_may_survive_without_the_bytes() {
    let env = SimEnv::new(1);
    create(&env, "/f").write_all_at(&[1; 512], 0).unwrap();
    env.sync_dir(Path::new("/")).unwrap();
    assert_eq!(bytes(&env.power_cut_keep_nothing(), "/f").unwrap(), b"");
}

#[test]
fn promise_3_a_rename_in_one_directory_is_there_or_not() {
    let (env, _) = with_durable(b"old");
    let next = create(&env, "/f.tmp");
    next.write_all_at(b"new", 0).unwrap();
    next.sync_all().unwrap();
    env.sync_dir(Path::new("/")).unwrap();
    env.rename(Path::new("/f.tmp"), Path::new("/f")).unwrap();
    let mut seen = BTreeSet::new();
    for seed in SEEDS {
        let cut = env.power_cut(seed);
        let found = bytes(&cut, "/f").unwrap();
        assert_eq!(bytes(&cut, "/f.tmp").is_some(), found == b"old");
        seen.insert(found);
    }
    assert_eq!(seen.len(), 2);
    env.sync_dir(Path::new("/")).unwrap();
    assert_eq!(bytes(&env.power_cut_keep_nothing(), "/f").unwrap(), b"new");
}

#[test]
fn promise_3_a_rename_across_directories_needs_both_syncs() {
    let (env, _) = with_durable(b"x");
    env.create_dir(Path::new("/d")).unwrap();
    env.sync_dir(Path::new("/")).unwrap();
    env.rename(Path::new("/f"), Path::new("/d/f")).unwrap();
    env.sync_dir(Path::new("/d")).unwrap();
    let cut = env.power_cut_keep_nothing();
    assert_eq!(bytes(&cut, "/d/f").unwrap(), b"x");
    assert_eq!(bytes(&cut, "/f").unwrap(), b"x", "the old name was not synced away");
    env.sync_dir(Path::new("/")).unwrap();
    assert_eq!(bytes(&env.power_cut_keep_nothing(), "/f"), None);
}

#[test]
fn promise_3_a_removed_name_comes_back_unless_synced() {
    let (env, file) = with_durable(b"x");
    env.remove_file(Path::new("/f")).unwrap();
    drop(file);
    assert_eq!(env.used_bytes(), 0);
    assert_eq!(bytes(&env.power_cut_keep_nothing(), "/f").unwrap(), b"x");
    assert_eq!(env.power_cut_keep_nothing().used_bytes(), 4096);
    env.sync_dir(Path::new("/")).unwrap();
    assert_eq!(bytes(&env.power_cut_keep_nothing(), "/f"), None);
}

#[test]
fn promise_4_nothing_is_promised_after_a_failed_sync() {
    let mut seen = BTreeSet::new();
    for seed in 0..20 {
        let env = SimEnv::new(seed);
        let file = create(&env, "/f");
        env.sync_dir(Path::new("/")).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        env.fail(FaultRule {
            path_suffix: "f".into(),
            op: SimOp::Sync,
            nth: 1,
            errno: 5,
            sticky: false,
        });
        assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(5));
        file.sync_data().unwrap();
        assert_eq!(bytes(&env, "/f").unwrap(), b"x", "readers see it all the same");
        seen.insert(bytes(&env.power_cut_keep_all(), "/f").unwrap());
    }
    assert_eq!(seen, BTreeSet::from([vec![], b"x".to_vec()]), "a later sync does not repair it");
}

#[test]
fn promise_4_names_too_are_lost_for_good_or_kept() {
    let mut seen = BTreeSet::new();
    for seed in 0..20 {
        let env = SimEnv::new(seed);
        create(&env, "/f");
        env.fail(FaultRule {
            path_suffix: "/".into(),
            op: SimOp::SyncDir,
            nth: 1,
            errno: 5,
            sticky: false,
        });
        assert_eq!(env.sync_dir(Path::new("/")).unwrap_err().raw_os_error(), Some(5));
        env.sync_dir(Path::new("/")).unwrap();
        assert_eq!(names(&env, "/").len(), 1, "readers see it all the same");
        seen.insert(names(&env.power_cut_keep_all(), "/").len());
    }
    assert_eq!(seen, BTreeSet::from([0, 1]), "a later sync does not repair it");
}

#[test]
fn files_without_a_name_go_with_the_process() {
    let (env, file) = with_durable(&[1; 4096]);
    env.remove_file(Path::new("/f")).unwrap();
    assert_eq!(env.used_bytes(), 4096, "open files keep their room");
    assert_eq!(env.process_kill().used_bytes(), 0);
    drop(file);
    assert_eq!(env.used_bytes(), 0);
}

#[test]
fn crash_points_stop_everything() {
    for n in 0..3 {
        let env = SimEnv::new(1);
        env.crash_after(n);
        let file = env.open(Path::new("/f"), OpenMode::CreateNew);
        let written = file.and_then(|file| file.write_all_at(b"x", 0).map(|()| file));
        let synced = written.and_then(|file| file.sync_data());
        assert!(
            is_crash(&synced.and_then(|()| env.stat(Path::new("/f")).map(drop)).unwrap_err())
                == (n < 3)
        );
        assert_eq!(env.op_count(), n);
        assert!(env.crashed());
    }
    let (env, file) = with_durable(b"x");
    assert_eq!((env.sync_count(), env.op_count()), (2, 4));
    env.crash_at_sync(3);
    file.write_all_at(b"y", 0).unwrap();
    assert!(is_crash(&file.sync_data().unwrap_err()));
    assert!(is_crash(&file.read_at(&mut [0], 0).unwrap_err()));
    assert_eq!(bytes(&env.power_cut_keep_nothing(), "/f").unwrap(), b"x");
    assert_eq!(env.journal().last().unwrap().to_string(), "6 Sync /f");
}

#[test]
fn a_full_disk_takes_a_prefix_and_recovers() {
    let (env, file) = with_durable(&[1; 4096]);
    env.set_capacity(3 * 4096);
    let error = file.write_all_at(&[2; 4 * 4096], 4096).unwrap_err();
    assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::StorageFull, Some(28)));
    assert_eq!(file.stat().unwrap().len, 3 * 4096);
    assert_eq!(env.space(Path::new("/")).unwrap().available_bytes, 0);
    file.write_all_at(&[3; 4096], 0).unwrap();
    let second = create(&env, "/g");
    assert_eq!(second.write_all_at(b"x", 0).unwrap_err().raw_os_error(), Some(28));
    env.remove_file(Path::new("/f")).unwrap();
    assert_eq!(second.write_all_at(b"x", 0).unwrap_err().raw_os_error(), Some(28), "still open");
    drop(file);
    second.write_all_at(b"x", 0).unwrap();
    assert_eq!(env.used_bytes(), 4096);
}

/// The caller was told that there is no room, and not what had been written.
#[test]
fn a_copy_that_finds_no_room_halfway_says_how_far_it_came() {
    let (env, source) = with_durable(&[1; 4 * 4096]);
    let target = create(&env, "/g");
    env.set_capacity(env.used_bytes() + 2 * 4096);
    let copy = |at| target.copy_from(source.as_ref(), at, at, 4 * 4096 - at);
    assert_eq!(copy(0).unwrap(), 2 * 4096);
    assert_eq!(copy(2 * 4096).unwrap_err().raw_os_error(), Some(28));
    assert_eq!(target.stat().unwrap().len, 2 * 4096);
}

#[test]
fn others_may_fill_the_disk_several_times() {
    let (env, file) = with_durable(&[1; 4096]);
    env.set_capacity(16 * 4096);
    let free = || env.space(Path::new("/")).unwrap().available_bytes / 4096;
    let count = env.op_count();
    env.fill_after(count, 4 * 4096);
    env.fill_after(count + 2, 4096);
    file.write_all_at(&[1; 4096], 4096).unwrap();
    assert_eq!(free(), 3);
    file.set_len(4096).unwrap();
    assert_eq!(free(), 4);
    file.write_all_at(&[1], 0).unwrap();
    assert_eq!(free(), 1);
}

#[test]
fn faults_hit_what_they_name() {
    let env = SimEnv::new(1);
    let (a, b) = (create(&env, "/a.wal"), create(&env, "/b.table"));
    env.fail(FaultRule {
        path_suffix: ".wal".into(),
        op: SimOp::Write,
        nth: 2,
        errno: 5,
        sticky: true,
    });
    b.write_all_at(b"x", 0).unwrap();
    a.write_all_at(b"x", 0).unwrap();
    assert_eq!(a.write_all_at(b"y", 1).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(a.write_all_at(b"y", 1).unwrap_err().raw_os_error(), Some(5));
    b.write_all_at(b"y", 1).unwrap();
    env.clear_faults();
    a.write_all_at(b"y", 1).unwrap();
    env.fail(FaultRule {
        path_suffix: String::new(),
        op: SimOp::Rename,
        nth: 1,
        errno: 28,
        sticky: false,
    });
    let rename = || env.rename(Path::new("/a.wal"), Path::new("/c.wal"));
    assert_eq!(rename().unwrap_err().raw_os_error(), Some(28));
    rename().unwrap();
}

#[test]
fn damage_reaches_the_disk() {
    let (env, _file) = with_durable(b"abc");
    env.damage(Path::new("/f"), 1, 0x20).unwrap();
    assert_eq!(bytes(&env, "/f").unwrap(), b"aBc");
    assert_eq!(bytes(&env.power_cut_keep_nothing(), "/f").unwrap(), b"aBc");
    env.truncate_raw(Path::new("/f"), 1).unwrap();
    assert_eq!(bytes(&env.power_cut_keep_nothing(), "/f").unwrap(), b"a");
    assert_eq!(env.files_raw(), [Path::new("/f")]);
    env.remove_raw(Path::new("/f")).unwrap();
    assert_eq!(bytes(&env.power_cut_keep_nothing(), "/f"), None);
}

#[test]
fn a_disk_that_lies_loses_synced_bytes() {
    let (env, file) = with_durable(b"old");
    env.set_ignore_syncs(true);
    file.write_all_at(b"new", 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!(bytes(&env.power_cut_keep_nothing(), "/f").unwrap(), b"old");
}

#[test]
fn one_seed_replays_one_machine() {
    let run = |seed| {
        let env = SimEnv::new(seed);
        let file = create(&env, "/f");
        file.write_all_at(&env.random().to_le_bytes().repeat(500), 0).unwrap();
        env.sync_dir(Path::new("/")).unwrap();
        let cut = env.power_cut(seed);
        (bytes(&cut, "/f"), env.now(), cut.boot_id(), cut.random(), env.is_deterministic())
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn the_clock_jumps_only_when_told() {
    let env = SimEnv::new(1);
    let (first, second) = (env.now(), env.now());
    assert!(first < second);
    let before = env.monotonic();
    env.set_time(Timestamp::new(-10, 5).unwrap());
    assert_eq!(env.now().secs(), -10);
    assert!(env.monotonic() > before);
    assert!((env.monotonic() - before).as_secs() < 1);
}

#[test]
fn syncing_a_tree_keeps_what_an_earlier_process_wrote() {
    let env = SimEnv::new(1);
    env.create_dir(Path::new("/d")).unwrap();
    env.create_dir(Path::new("/d/e")).unwrap();
    create(&env, "/d/f").write_all_at(b"one", 0).unwrap();
    create(&env, "/d/e/g").write_all_at(b"two", 0).unwrap();
    create(&env, "/beside").write_all_at(b"three", 0).unwrap();
    env.sync_dir(Path::new("/")).unwrap();
    let next = env.process_kill();
    let watch = Env::watch(&*next, Path::new("/d")).unwrap();
    next.sync_below(&watch, Path::new("/d")).unwrap();
    let found = next.power_cut_keep_nothing();
    assert_eq!(bytes(&found, "/d/f").unwrap(), b"one");
    assert_eq!(bytes(&found, "/d/e/g").unwrap(), b"two");
    assert_ne!(bytes(&found, "/beside").unwrap_or_default(), b"three", "only what is below");
}

#[test]
fn a_sync_of_a_tree_that_fails_loses_some_of_it_and_tells_each_watch_once() {
    let (root, dir) = (Path::new("/"), Path::new("/d"));
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let env = SimEnv::new(seed);
        env.create_dir(dir).unwrap();
        env.sync_dir(root).unwrap();
        create(&env, "/d/f").write_all_at(b"x", 0).unwrap();
        let [one, other] = [(); 2].map(|()| Env::watch(&*env, root).unwrap());
        let fail = |errno| {
            let path_suffix = String::new();
            env.fail(FaultRule { path_suffix, op: SimOp::SyncFs, nth: 1, errno, sticky: false });
        };
        let fails = |watch| env.sync_below(watch, dir).unwrap_err().raw_os_error();
        fail(24);
        assert_eq!(fails(&one), Some(24));
        assert_eq!(env.count_of(SimOp::SyncFs), 1);
        fail(5);
        assert_eq!((fails(&one), fails(&other)), (Some(5), Some(5)));
        assert!(env.sync_below(&one, dir).is_ok() && env.sync_below(&other, dir).is_ok());
        seen.insert(bytes(&env.power_cut_keep_all(), "/d/f"));
    }
    let all = [None, Some(vec![]), Some(b"x".to_vec())];
    assert_eq!(seen, BTreeSet::from(all), "a later sync does not repair it");
}

#[test]
fn a_sync_of_a_directory_takes_a_descriptor() {
    let env = SimEnv::new(1);
    create(&env, "/f");
    let path_suffix = "/".to_owned();
    env.fail(FaultRule { path_suffix, op: SimOp::Open, nth: 1, errno: 24, sticky: false });
    assert!(is_passing(&env.sync_dir(Path::new("/")).unwrap_err()));
    assert_eq!(names(&env.power_cut_keep_nothing(), "/"), BTreeSet::new());
    env.sync_dir(Path::new("/")).unwrap();
    assert_eq!(names(&env.power_cut_keep_nothing(), "/").len(), 1, "nothing was lost");
}

#[test]
fn who_watched_before_is_told_once_what_could_not_be_written() {
    let env = SimEnv::new(1);
    let root = Path::new("/");
    create(&env, "/f").write_all_at(b"lost", 0).unwrap();
    let before = Env::watch(&*env, root).unwrap();
    env.lose_unsynced(Path::new("/f")).unwrap();
    let after = Env::watch(&*env, root).unwrap();
    assert_eq!(env.sync_below(&before, root).unwrap_err().raw_os_error(), Some(5));
    env.sync_below(&after, root).unwrap();
    env.sync_below(&before, root).unwrap();
}
