//! A daemon that has no descriptors left.

use std::fs::{self, File};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use varve_testkit::eventually;

use crate::harness::{Mount, run, varve};

/// The lowest descriptor that `process` does not use.
fn lowest_free(process: Pid) -> u64 {
    let dir = format!("/proc/{}/fd", process.as_raw_nonzero());
    let used: Vec<u64> = fs::read_dir(dir)
        .unwrap()
        .map(|item| item.unwrap().file_name().into_string().unwrap().parse().unwrap())
        .collect();
    (0..).find(|number| !used.contains(number)).unwrap()
}

/// A sync of what large files hold opens a directory, and a store whose sync fails takes no more writes.
#[test]
fn syncs_take_none_that_others_could_have() {
    let Some(mount) = Mount::new() else { return };
    let (daemon, dir) = (mount.daemon(), File::open(mount.path()).unwrap());
    let write = |name: &str| fs::write(mount.path().join(name), vec![7; 200_000]);
    write("large").unwrap();
    let limit_to = |current| {
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        prlimit(Some(daemon), Resource::Nofile, Rlimit { current, maximum }).unwrap().current
    };
    let before = limit_to(Some(lowest_free(daemon)));
    for _ in 0..2 {
        // Those of files that were closed are given back a little later.
        eventually("none is left", || {
            limit_to(Some(lowest_free(daemon)));
            write("refused").is_err()
        });
        dir.sync_all().unwrap();
    }
    limit_to(before);
    write("later").unwrap();
    dir.sync_all().unwrap();
    assert_eq!(fs::read(mount.path().join("large")).unwrap(), vec![7; 200_000]);
    drop(dir);
    mount.unmount();
    run(varve().arg("fsck").arg(mount.store()));
}
