//! What comes of a file system below that is full.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use varve_testkit::Command;

use super::views::{begin, id};
use super::{Place, semantics};
use crate::harness::{python, run, varve};

semantics!(transaction_on_full_disk, mapped_memory_on_full_disk, room_of_removed_files);

/// A small file system in memory; unmounted when dropped, with what is mounted in it.
struct Small(tempfile::TempDir);

impl Drop for Small {
    fn drop(&mut self) {
        for dir in [self.0.path().join("mnt"), self.0.path().to_path_buf()] {
            let _ = rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

impl Small {
    /// With a store in it, which is mounted with these options.
    fn mounted(options: &str) -> (Small, [PathBuf; 3]) {
        let small = Small(tempfile::tempdir().unwrap());
        let dir = small.0.path();
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "none"]).arg(dir));
        let paths = ["store", "mnt", "filler"].map(|name| dir.join(name));
        let [store, mnt, _] = &paths;
        fs::create_dir(mnt).unwrap();
        run(varve().arg("format").arg(store));
        run(varve().args(["mount", "-o", options]).args([store, mnt]));
        (small, paths)
    }
}

/// The kernel took a part that was written for the whole.
fn mapped_memory_on_full_disk(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let (_small, [store, mnt, filler]) = Small::mounted("nopassthrough");
    let large = mnt.join("large");
    fs::write(&large, vec![1; 300_000]).unwrap();
    let file = File::options().write(true).open(&large).unwrap();
    file.set_len(16 << 20).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let script = r#"
import mmap, os, sys
fd = os.open("large", os.O_RDWR)
shared = mmap.mmap(fd, 16 << 20, mmap.MAP_SHARED)
filler = os.open("../filler", os.O_RDWR | os.O_CREAT)
try:
    while os.write(filler, bytes(1 << 20)): pass
except OSError: pass
os.ftruncate(filler, os.fstat(filler).st_size - 40960)
shared[8 << 20:(8 << 20) + 131072] = bytes([2]) * 131072
try:
    shared.flush()
except OSError: pass
else: sys.exit("nobody was told")
"#;
    if !python(&mnt, script) {
        return;
    }
    fs::remove_file(&filler).unwrap();
    run(varve().arg("umount").arg(&mnt));
    run(varve().arg("fsck").arg(&store));
}

/// None of the files of 20 kB that had been removed from a full disk made room for another.
fn room_of_removed_files(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let (_small, [store, mnt, _]) = Small::mounted("rw");
    // Nothing that can be compressed.
    let content = |n: usize| -> Vec<u8> {
        let bytes = (n as u64..).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        bytes.flatten().take(20_000).collect()
    };
    let fill = |name: &str| {
        let dir = mnt.join(name);
        fs::create_dir(&dir).unwrap();
        let fits = |n: &usize| fs::write(dir.join(n.to_string()), content(*n)).is_ok();
        let count = (0..).take_while(fits).count();
        let _ = fs::remove_file(dir.join(count.to_string()));
        count
    };
    let first = fill("first");
    assert!(first > 800, "{first} files of 20 kB in 24 MiB");
    fs::remove_dir_all(mnt.join("first")).unwrap();
    let all = fill("second");
    assert!(all > first * 9 / 10, "{first} files, then {all}");
    for n in (0..all).step_by(2) {
        fs::remove_file(mnt.join("second").join(n.to_string())).unwrap();
    }
    let half = fill("third");
    assert!(half > first * 4 / 10, "{first} files, then {half} beside half of them");
    let is = |dir: &str, n: usize| {
        let read = fs::read(mnt.join(dir).join(n.to_string())).unwrap();
        read == content(n)
    };
    assert!((0..half).all(|n| is("third", n)) && (1..all).step_by(2).all(|n| is("second", n)));
    fs::remove_dir_all(mnt.join("second")).unwrap();
    fs::remove_dir_all(mnt.join("third")).unwrap();
    run(varve().arg("umount").arg(&mnt));
    let said = run(varve().arg("gc").arg(&store).arg("--json")).stdout;
    let done: serde_json::Value = serde_json::from_slice(&said).unwrap();
    assert!(done["reclaimed"].as_u64().unwrap() > 0, "{done}");
    assert!(done["after"]["bytes"].as_u64().unwrap() < 2 << 20, "{done}");
    run(varve().arg("fsck").arg(&store));
}

fn transaction_on_full_disk(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let (_small, [store, mnt, filler]) = Small::mounted("rw");
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
