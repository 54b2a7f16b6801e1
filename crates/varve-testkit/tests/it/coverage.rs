//! The generator reaches what it is for.

use std::collections::BTreeMap;

use varve_env::sim::SimEnv;
use varve_testkit::fsops::{Answer, Generator, Lockstep, Op, Session, Times, Universe, tree};
use varve_testkit::model::ModelFs;

/// The name of an operation's kind.
fn kind(op: &Op) -> String {
    format!("{op:?}").split([' ', '{']).next().unwrap_or_default().to_owned()
}

#[test]
fn every_operation_succeeds_and_fails_often() {
    let fs = ModelFs::new(SimEnv::new(1));
    let (mut generator, mut session) = (Generator::new(1, Universe::default()), Session::default());
    let mut counts: BTreeMap<String, (u32, u32)> = BTreeMap::new();
    let mut errors: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..20_000 {
        let op = generator.next_op();
        let (good, bad) = counts.entry(kind(&op)).or_default();
        match session.apply(&fs, &op).answer {
            Ok(Answer::Skipped) => {}
            Ok(_) => {
                *good += 1;
                generator.observe(&op);
            }
            Err(errno) => {
                *bad += 1;
                *errors.entry(errno.name()).or_default() += 1;
            }
        }
    }
    assert_eq!(counts.len(), 30, "{counts:?}");
    for (kind, (good, _)) in &counts {
        assert!(*good >= 30, "{kind} succeeds only {good} times: {counts:?}");
    }
    for kind in
        ["Rename", "Create", "Unlink", "Rmdir", "Link", "Mkdir", "Write", "Seek", "SetXattr"]
    {
        assert!(counts[kind].1 >= 10, "{kind} hardly fails: {counts:?}");
    }
    for errno in [
        "EEXIST",
        "ENOENT",
        "ENOTDIR",
        "EISDIR",
        "ENOTEMPTY",
        "EINVAL",
        "EPERM",
        "EBADF",
        "ENODATA",
    ] {
        assert!(errors.get(errno).is_some_and(|n| *n >= 10), "{errno}: {errors:?}");
    }
}

#[test]
fn one_seed_makes_one_run() {
    let run = |seed| {
        let fs = ModelFs::new(SimEnv::new(3));
        let mut lockstep = Lockstep::new(seed);
        lockstep.run(&fs, 2000).unwrap();
        lockstep.check_tree(&fs).unwrap();
        lockstep.release_all(&fs).unwrap();
        tree(&fs).unwrap()
    };
    assert_eq!(run(1).differences(&run(1), Times::Compare), [""; 0]);
    assert_ne!(run(1).differences(&run(2), Times::Ignore), [""; 0]);
}

#[test]
fn sessions_take_back_what_they_hold() {
    for seed in 0..20 {
        let fs = ModelFs::new(SimEnv::new(seed));
        let mut lockstep = Lockstep::new(seed);
        lockstep.run(&fs, 1000).unwrap();
        lockstep.release_all(&fs).unwrap();
        let mut inodes: Vec<_> =
            tree(&fs).unwrap().0.into_values().map(|node| node.first_path).collect();
        inodes.sort();
        inodes.dedup();
        assert_eq!(fs.inode_count(), inodes.len(), "seed {seed}: an inode without a name stayed");
    }
}
