//! Large files that the kernel reads and writes straight.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use varve_fuse::SessionOptions;

use crate::objectfs::ObjectFs;
use crate::support::TestMount;
use varve_testkit::{eventually, skipped};

const OVERLAYFS_MAGIC: rustix::fs::FsWord = 0x794c_7630;

fn mounted(passthrough: bool) -> Option<(Arc<ObjectFs>, TestMount)> {
    let fs = Arc::new(ObjectFs::new());
    let options = SessionOptions { passthrough, ..SessionOptions::default() };
    Some((fs.clone(), TestMount::new(fs, &options)?))
}

/// Makes an object of 200,000 bytes, all `fill`.
fn make(path: &Path, fill: u8) {
    fs::write(path, vec![fill; 200_000]).unwrap();
}

/// Waits for the RELEASE of every file, which the kernel sends after close(2) has returned.
fn all_released(fs: &ObjectFs) {
    eventually("no file is open", || fs.open_files() == 0);
}

/// Whether nothing is seen that would keep the kernel from it: a kernel without it, rights, a stacked file system.
fn must_work() -> bool {
    let says = |path: &str, part: &str| fs::read_to_string(path).is_ok_and(|it| it.contains(part));
    let below = rustix::fs::statfs(std::env::temp_dir()).unwrap();
    says("/proc/kallsyms", " fuse_passthrough_open")
        && rustix::process::geteuid().is_root()
        && says("/proc/self/uid_map", " 4294967295")
        && below.f_type != OVERLAYFS_MAGIC
}

/// Whether the kernel takes descriptors of this machine's temporary directory: it must be new enough, the
/// test privileged, and the directory not on a stacked file system.
fn works(fs: &ObjectFs, mount: &TestMount) -> bool {
    make(&mount.path("big-probe"), 1);
    all_released(fs);
    fs.transfers.store(0, Relaxed);
    fs::read(mount.path("big-probe")).unwrap();
    all_released(fs);
    let works = fs.transfers.swap(0, Relaxed) == 0;
    if !works {
        assert!(!must_work(), "the kernel does not read the object straight");
        skipped("no FUSE passthrough on this machine");
    }
    works
}

#[test]
fn reads_and_writes_of_an_object_do_not_come_through_the_server() {
    let Some((fs, mount)) = mounted(true) else { return };
    if !works(&fs, &mount) {
        return;
    }
    let path = mount.path("big-probe");
    let mut file = File::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(b"changed", 100_000).unwrap();
    let mut text = [0u8; 7];
    file.read_exact_at(&mut text, 100_000).unwrap();
    assert_eq!(&text, b"changed");
    file.set_len(300_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 300_000);
    file = File::options().append(true).open(&path).unwrap();
    file.write_all(b"end").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 300_003);
    drop(file);
    assert_eq!(&fs::read(&path).unwrap()[300_000..], b"end");
    assert_eq!(fs.transfers.load(Relaxed), 0);
    all_released(&fs);
    mount.finish().unwrap();
}

#[test]
fn opens_at_one_time_share_one_backing_file() {
    let Some((fs, mount)) = mounted(true) else { return };
    if !works(&fs, &mount) {
        return;
    }
    let path = mount.path("big-probe");
    fs.registered.store(0, Relaxed);
    let files: Vec<File> = (0..20).map(|_| File::open(&path).unwrap()).collect();
    assert_eq!(fs.registered.load(Relaxed), 1);
    std::thread::scope(|scope| {
        for mut file in files {
            scope.spawn(move || {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).unwrap();
                assert_eq!(bytes.len(), 200_000);
            });
        }
    });
    assert_eq!(fs.transfers.load(Relaxed), 0);
    all_released(&fs);
    drop(File::open(&path).unwrap());
    assert_eq!(fs.registered.load(Relaxed), 2, "the last release forgets the backing file");
    mount.finish().unwrap();
}

#[test]
fn many_threads_may_open_write_and_close_one_object() {
    let Some((fs, mount)) = mounted(true) else { return };
    make(&mount.path("big"), 0);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let path = mount.path("big");
            scope.spawn(move || {
                for i in 0..50u64 {
                    let file = File::options().read(true).write(true).open(&path).unwrap();
                    let at = (thread * 50 + i) * 8;
                    file.write_all_at(&at.to_le_bytes(), at).unwrap();
                }
            });
        }
    });
    let bytes = fs::read(mount.path("big")).unwrap();
    for at in (0..8 * 50 * 8).step_by(8) {
        assert_eq!(bytes[at..at + 8], (at as u64).to_le_bytes(), "at {at}");
    }
    all_released(&fs);
    mount.finish().unwrap();
}

#[test]
fn a_file_open_through_the_cache_keeps_later_opens_there() {
    let Some((fs, mount)) = mounted(true) else { return };
    if !works(&fs, &mount) {
        return;
    }
    let path = mount.path("big-made");
    let made = File::create(&path).unwrap();
    made.write_all_at(&[7; 100_000], 0).unwrap();
    // create() is served through the cache; opening straight now would be EIO.
    let mut second = File::open(&path).unwrap();
    let mut bytes = Vec::new();
    second.read_to_end(&mut bytes).unwrap();
    assert!(bytes == vec![7; 100_000]);
    drop((made, second));
    all_released(&fs);
    // Straight now: what the kernel writes past its cache must show through the cache afterwards.
    File::options().write(true).open(&path).unwrap().write_all_at(&[8; 100_000], 0).unwrap();
    all_released(&fs);
    fs.offers.store(false, Relaxed);
    let straight = fs.transfers.swap(0, Relaxed);
    assert!(fs::read(&path).unwrap() == vec![8; 100_000], "after {straight} transfers");
    mount.finish().unwrap();
}

#[test]
fn a_writer_past_the_server_takes_the_set_id_bits() {
    if !rustix::process::geteuid().is_root() {
        return skipped("needs root to become another user");
    }
    let Some((fs, mount)) = mounted(true) else { return };
    if !works(&fs, &mount) {
        return;
    }
    let path = mount.path("big-probe");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    crate::protocol::as_user(mount.dir(), "echo x >> big-probe");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
    assert_eq!(fs.transfers.load(Relaxed), 0);
    all_released(&fs);
    mount.finish().unwrap();
}

#[test]
fn without_passthrough_objects_are_served_all_the_same() {
    let Some((fs, mount)) = mounted(false) else { return };
    make(&mount.path("big"), 5);
    assert!(fs::read(mount.path("big")).unwrap() == vec![5; 200_000]);
    assert!(fs.transfers.load(Relaxed) > 0);
    assert_eq!(fs.registered.load(Relaxed), 0);
    all_released(&fs);
    mount.finish().unwrap();
}
