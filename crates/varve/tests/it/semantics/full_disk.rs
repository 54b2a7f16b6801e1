//! A commit on a file system below that is full.

use std::fs;
use std::path::Path;

use varve_testkit::Command;

use super::views::{begin, id};
use super::{Place, semantics};
use crate::harness::{run, varve};

semantics!(transaction_on_full_disk);

/// A small file system in memory; unmounted when dropped, with what is mounted in it.
struct Small(tempfile::TempDir);

impl Drop for Small {
    fn drop(&mut self) {
        for dir in [self.0.path().join("mnt"), self.0.path().to_path_buf()] {
            let _ = rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

fn transaction_on_full_disk(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let small = Small(tempfile::tempdir().unwrap());
    let dir = small.0.path();
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "none"]).arg(dir));
    let [store, mnt, filler] = ["store", "mnt", "filler"].map(|name| dir.join(name));
    fs::create_dir(&mnt).unwrap();
    run(varve().arg("format").arg(&store));
    run(varve().arg("mount").args([&store, &mnt]));
    fs::write(mnt.join("large"), vec![1; 2_000_000]).unwrap();
    let view = begin(&mnt);
    fs::write(view.join("large"), vec![2; 3_000_000]).unwrap();
    for n in 0..100 {
        fs::write(view.join(format!("small{n}")), vec![3; 9000]).unwrap();
    }
    assert!(fs::write(&filler, vec![0; 24 << 20]).is_err(), "there was room for more");
    let commit = || varve().args(["txn", "commit"]).arg(&mnt).arg(id(&view)).output().unwrap();
    let refused = commit();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.to_lowercase().contains("no space left") && said.contains("still open"), "{said}");
    let is =
        |at: &Path, byte: u8, len: usize| fs::read(at.join("large")).unwrap() == vec![byte; len];
    assert!(is(&mnt, 1, 2_000_000) && is(&view, 2, 3_000_000));
    assert!(!mnt.join("small0").exists());
    fs::remove_file(&filler).unwrap();
    assert!(commit().status.success());
    assert!(is(&mnt, 2, 3_000_000));
    assert!((0..100).all(|n| fs::read(mnt.join(format!("small{n}"))).unwrap() == [3; 9000]));
    run(varve().arg("umount").arg(&mnt));
    run(varve().arg("fsck").arg(&store));
}
