//! What crash enumeration builds on: copies of the machine, stale sectors, syncs left out.

use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::{SimEnv, SimOp, is_crash};

use crate::crash::{SEEDS, bytes, create, with_durable};

#[test]
fn a_copy_at_each_operation_is_the_machine_before_it() {
    let env = SimEnv::new(1);
    type Seen = parking_lot::Mutex<Vec<(u64, SimOp, Arc<SimEnv>)>>;
    let seen: Arc<Seen> = Arc::default();
    let record = Arc::clone(&seen);
    env.watch(Box::new(move |entry, copy| record.lock().push((entry.number, entry.op, copy()))));
    let file = create(&env, "/f");
    file.write_all_at(b"one", 0).unwrap();
    env.stat(Path::new("/f")).unwrap();
    file.sync_data().unwrap();
    env.sync_dir(Path::new("/")).unwrap();
    env.unwatch();
    file.write_all_at(b"two", 0).unwrap();
    let seen = std::mem::take(&mut *seen.lock());
    let ops: Vec<_> = seen.iter().map(|(number, op, _)| (*number, *op)).collect();
    assert_eq!(ops, [(1, SimOp::Create), (2, SimOp::Write), (3, SimOp::Sync), (4, SimOp::SyncDir)]);
    let kept = |at: usize| bytes(&seen[at].2.power_cut_keep_all(), "/f");
    assert_eq!((kept(0), kept(1), kept(2)), (None, Some(vec![]), Some(b"one".to_vec())));
    assert_eq!(bytes(&seen[3].2.power_cut_keep_nothing(), "/f"), None, "its name is not synced");
    assert_eq!(seen[2].2.boot_id(), env.boot_id());
    assert!(is_crash(&seen[2].2.stat(Path::new("/f")).unwrap_err()), "a copy answers nothing");
    assert_eq!(env.open_handles(), 1);
    drop(file);
    assert_eq!(env.open_handles(), 0);
}

#[test]
fn a_length_without_its_bytes_shows_what_a_removed_file_left() {
    let (env, file) = with_durable(b"durable");
    let gone = create(&env, "/gone");
    gone.write_all_at(&[9; 8192], 0).unwrap();
    env.remove_file(Path::new("/gone")).unwrap();
    drop(gone);
    file.write_all_at(&[7; 4000], 4096).unwrap();
    let (mut old, mut zeros) = (0, 0);
    for seed in SEEDS {
        let found = bytes(&env.power_cut_stale(seed), "/f").unwrap();
        assert!(found.starts_with(b"durable"));
        let written = found.get(4096..).unwrap_or_default();
        assert!(written.iter().all(|byte| *byte == 7 || *byte == 9), "seed {seed}");
        old += u32::from(written.contains(&9));
        let found = bytes(&env.power_cut(seed), "/f").unwrap();
        zeros += u32::from(found.get(4096..).is_some_and(|written| written.contains(&0)));
        let hole = found.get(7..4096).unwrap_or_default();
        assert!(hole.iter().all(|byte| *byte == 0), "seed {seed}: a hole is a hole");
    }
    assert!(old > 10 && zeros > 10, "{old} with old bytes, {zeros} with zeros");
}

#[test]
fn single_syncs_can_be_left_out() {
    let env = SimEnv::new(1);
    env.ignore_syncs_of(SimOp::Sync, ".log");
    for path in ["/a.log", "/b"] {
        let file = create(&env, path);
        file.write_all_at(b"x", 0).unwrap();
        file.sync_data().unwrap();
    }
    env.sync_dir(Path::new("/")).unwrap();
    let next = env.power_cut_keep_nothing();
    assert_eq!(
        (bytes(&next, "/a.log").unwrap(), bytes(&next, "/b").unwrap()),
        (vec![], vec![b'x'])
    );
}
