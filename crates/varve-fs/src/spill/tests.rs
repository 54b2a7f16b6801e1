use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_schema::{Inode, InodeLocation};
use varve_session::Spill as _;
use varve_types::InodeId;
use varve_vfs::Vfs;

use super::*;
use crate::{FormatOptions, MountOptions, VarveFs};

/// What has been fetched without its row is passed over, until it is written again.
#[test]
fn a_row_that_stayed_is_not_fetched_twice() {
    let (machine, dir): (Arc<dyn Env>, _) = (SimEnv::new(1), Path::new("/store"));
    crate::format(&machine, dir, &FormatOptions::default()).unwrap();
    let fs = VarveFs::open(machine, dir, MountOptions::default()).unwrap();
    let spill = Spill::new(Arc::clone(&fs.store), fs.lookups);
    let (ino, row) =
        (InodeId::new(1000), |lookups| LookupsRow { lookups, place: InodeLocation::Own });
    spill.put(&[(ino, row(3))]).unwrap();
    // As if the store had refused to remove it.
    spill.owed.lock().insert(ino);
    assert_eq!(spill.take(ino).unwrap(), None);
    spill.put(&[(ino, row(5))]).unwrap();
    assert_eq!(spill.take(ino).unwrap(), Some(row(5)));
    assert_eq!(spill.take(ino).unwrap(), None);
}

/// Each lookup beyond the limit walked over all of the shard, twice, and logged, for as long as the store refused writes.
#[test]
fn a_store_that_refuses_writes_is_seldom_asked() {
    const INODES: u64 = 50_000;
    let (env, dir) = (SimEnv::new(1), Path::new("/store"));
    let machine: Arc<dyn Env> = Arc::<SimEnv>::clone(&env);
    crate::format(&machine, dir, &FormatOptions::default()).unwrap();
    let options = MountOptions { located_inodes_max: Some(640), ..MountOptions::default() };
    let fs = VarveFs::open(machine, dir, options).unwrap();
    let note = |from: u64| {
        for ino in (from..from + INODES).map(InodeId::new) {
            fs.session.inodes.note_lookup(ino, InodeLocation::Own).unwrap();
        }
    };
    note(1000);
    assert!(fs.session.inodes.counts().0 <= 640 && fs.session.inodes.refusals() == 0);
    let path_suffix = ".wal".to_owned();
    env.fail(FaultRule { path_suffix, op: SimOp::Sync, nth: 1, errno: 5, sticky: false });
    fs.sync().unwrap_err();
    note(1_000_000);
    let (known, spilled) = fs.session.inodes.counts();
    assert!(known >= INODES && known + spilled == 2 * INODES, "{known} {spilled}");
    // From 10 to 800 entries a shard doubles seven times.
    let refused = fs.session.inodes.refusals();
    assert!((64..64 * 9).contains(&refused), "{refused}");
    for ino in (1_000_000..1_000_000 + INODES).map(InodeId::new) {
        assert_eq!(fs.session.inodes.place(ino).unwrap(), Some(InodeLocation::Own));
    }
}

/// While the store refused writes nothing that had gone there could be asked about.
#[test]
fn what_was_spilled_is_found_while_the_store_refuses_writes() {
    const INODES: u64 = 2000;
    let (env, dir) = (SimEnv::new(1), Path::new("/store"));
    let machine: Arc<dyn Env> = Arc::<SimEnv>::clone(&env);
    crate::format(&machine, dir, &FormatOptions::default()).unwrap();
    let options = MountOptions { located_inodes_max: Some(640), ..MountOptions::default() };
    let fs = VarveFs::open(machine, dir, options).unwrap();
    let inos = || (1000..1000 + INODES).map(InodeId::new);
    inos().for_each(|ino| fs.session.inodes.note_lookup(ino, InodeLocation::Own).unwrap());
    assert!(fs.session.inodes.counts().1 >= INODES - 640);
    let path_suffix = ".wal".to_owned();
    env.fail(FaultRule { path_suffix, op: SimOp::Sync, nth: 1, errno: 5, sticky: false });
    fs.sync().unwrap_err();
    for ino in inos() {
        assert_eq!(fs.session.inodes.place(ino).unwrap(), Some(InodeLocation::Own));
    }
    assert_eq!(fs.session.inodes.counts(), (INODES, 0));
    for ino in inos() {
        fs.session.inodes.note_lookup(ino, InodeLocation::Own).unwrap();
        // Not before both lookups are taken back, and then for good.
        assert!(!fs.session.inodes.forget(ino, 1).unwrap() && fs.session.inodes.is_reachable(ino));
        assert!(!fs.session.inodes.forget(ino, 1).unwrap());
        assert_eq!(fs.session.inodes.place(ino).unwrap(), None);
    }
}

/// The process that took over believed the rows of what had been fetched.
#[test]
fn what_was_fetched_stays_so_over_a_handover() {
    const INODES: u64 = 2000;
    let (env, dir) = (SimEnv::new(1), Path::new("/store"));
    let machine: Arc<dyn Env> = Arc::<SimEnv>::clone(&env);
    crate::format(&machine, dir, &FormatOptions::default()).unwrap();
    let options = MountOptions { located_inodes_max: Some(640), ..MountOptions::default() };
    let fs = VarveFs::open(Arc::clone(&machine), dir, options.clone()).unwrap();
    let inos = || (1000..1000 + INODES).map(InodeId::new);
    inos().for_each(|ino| fs.session.inodes.note_lookup(ino, InodeLocation::Own).unwrap());
    env.fail(FaultRule {
        path_suffix: String::new(),
        op: SimOp::Write,
        nth: 1,
        errno: 28,
        sticky: true,
    });
    inos().step_by(2).for_each(|ino| drop(fs.session.inodes.place(ino).unwrap()));
    assert!(env.fault_count() > 0 && fs.session.inodes.counts().1 > 0);
    env.clear_faults();
    fs.sync().unwrap();
    let handed_over = fs.hand_over().unwrap();
    drop(fs);
    let fs = VarveFs::resume(machine, dir, options, handed_over).unwrap();
    for ino in inos() {
        assert!(!fs.session.inodes.forget(ino, 1).unwrap());
        assert_eq!(fs.session.inodes.place(ino).unwrap(), None);
    }
    assert_eq!(fs.session.inodes.counts(), (0, 0));
}

/// Each lookup beyond the limit walked over all that had to stay.
#[test]
fn what_must_stay_is_seldom_walked_over() {
    let (env, dir) = (SimEnv::new(1), Path::new("/store"));
    let machine: Arc<dyn Env> = env;
    crate::format(&machine, dir, &FormatOptions::default()).unwrap();
    let options = MountOptions { located_inodes_max: Some(64 * 80), ..MountOptions::default() };
    let fs = VarveFs::open(machine, dir, options).unwrap();
    let root = fs.read_inode(InodeId::ROOT).unwrap();
    for ino in (1000..11_000).map(InodeId::new) {
        fs.session.inodes.note_new(ino, InodeLocation::Own);
        fs.session.inodes.detach(Box::new(Inode { ino, ..root.clone() })).unwrap();
    }
    let batches = || {
        let metrics: serde_json::Value = serde_json::from_str(&fs.store.metrics_json()).unwrap();
        metrics["counters"]["batches"].as_u64().unwrap()
    };
    let before = batches();
    for ino in (20_000..26_000).map(InodeId::new) {
        fs.session.inodes.note_new(ino, InodeLocation::Own);
    }
    let (known, spilled) = fs.session.inodes.counts();
    assert!(known < 10_000 + 64 * 20 && known + spilled == 16_000, "{known} {spilled}");
    assert!(batches() - before <= 6000 / 10 + 64, "{} batches", batches() - before);
    // What has gone leaves no room for others.
    (1000..11_000)
        .for_each(|ino| assert!(!fs.session.inodes.forget(InodeId::new(ino), 1).unwrap()));
    for ino in (30_000..40_000).map(InodeId::new) {
        fs.session.inodes.note_new(ino, InodeLocation::Own);
    }
    let (known, _) = fs.session.inodes.counts();
    assert!(known <= 64 * (80 + 11), "{known}");
}
