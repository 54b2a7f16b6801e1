//! Names, bytes and attributes through the kernel.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use rustix::fs::{RenameFlags, renameat_with};
use varve_fuse::{ReaddirPlus, SessionOptions};
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, OpenFlags, Vfs};

use crate::support::{TestMount, model, mounted};
use varve_testkit::{eventually, skipped};

fn names(dir: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_is_made_written_read_listed_renamed_and_removed() {
    let Some(mount) = mounted() else { return };
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("d/a"), b"hello").unwrap();
    assert_eq!(fs::read(mount.path("d/a")).unwrap(), b"hello");
    assert_eq!(fs::metadata(mount.path("d/a")).unwrap().len(), 5);
    fs::write(mount.path("b"), b"old").unwrap();
    fs::rename(mount.path("d/a"), mount.path("b")).unwrap();
    assert_eq!(fs::read(mount.path("b")).unwrap(), b"hello");
    assert_eq!(names(mount.dir()), ["b", "d"]);
    assert!(names(&mount.path("d")).is_empty());
    fs::remove_file(mount.path("b")).unwrap();
    fs::remove_dir(mount.path("d")).unwrap();
    assert!(names(mount.dir()).is_empty());
    mount.finish().unwrap();
}

#[test]
fn a_long_directory_is_listed_whole_with_and_without_attributes() {
    for readdir_plus in [ReaddirPlus::Never, ReaddirPlus::Auto, ReaddirPlus::Always] {
        let options = SessionOptions { readdir_plus, ..SessionOptions::default() };
        let Some(mount) = TestMount::new(model(), &options) else { return };
        for i in 0..3000 {
            // Lengths differ, so that after a name that no longer fits a reply a shorter one would.
            let name = format!("{i:05}{}", "x".repeat(i * 37 % 150));
            fs::write(mount.path(&name), vec![0u8; i % 7]).unwrap();
        }
        let mut seen = Vec::new();
        for entry in fs::read_dir(mount.dir()).unwrap() {
            let entry = entry.unwrap();
            let i: u64 = entry.file_name().into_string().unwrap()[..5].parse().unwrap();
            let attributes = entry.metadata().unwrap();
            assert_eq!((attributes.len(), attributes.ino()), (i % 7, entry_ino(&entry)));
            seen.push(i);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..3000).collect::<Vec<_>>(), "{readdir_plus:?}");
        mount.finish().unwrap();
    }
}

#[test]
fn the_kernel_takes_back_every_lookup() {
    for readdir_plus in [ReaddirPlus::Never, ReaddirPlus::Always] {
        let vfs = model();
        let options = SessionOptions { readdir_plus, ..SessionOptions::default() };
        let Some(mount) = TestMount::new(vfs.clone(), &options) else { return };
        fs::create_dir(mount.path("d")).unwrap();
        for i in 0..300 {
            fs::write(mount.path(&format!("d/{i}")), b"x").unwrap();
        }
        fs::hard_link(mount.path("d/1"), mount.path("d/one")).unwrap();
        symlink("1", mount.path("d/s")).unwrap();
        fs::rename(mount.path("d"), mount.path("e")).unwrap();
        for _ in 0..3 {
            assert_eq!(names(&mount.path("e")).len(), 302);
        }
        fs::remove_dir_all(mount.path("e")).unwrap();
        // The model keeps what is looked up, also without a name. FORGET is sent when the kernel likes.
        eventually(&format!("all is forgotten, {readdir_plus:?}"), || vfs.inode_count() == 1);
        mount.finish().unwrap();
    }
}

fn entry_ino(entry: &fs::DirEntry) -> u64 {
    std::os::unix::fs::DirEntryExt::ino(entry)
}

/// The kernel, which took the name for absent, had checked nothing, and whoever could make it got the file of somebody else open.
#[test]
fn a_name_that_has_come_past_the_kernel_is_not_opened_by_who_is_to_make_it() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can act as somebody else");
    }
    let fs = model();
    let Some(mount) = TestMount::new(fs.clone(), &SessionOptions::default()) else { return };
    fs::create_dir(mount.path("d")).unwrap();
    fs::set_permissions(mount.path("d"), fs::Permissions::from_mode(0o777)).unwrap();
    let dir = InodeId::new(fs::metadata(mount.path("d")).unwrap().ino());
    for (name, perm) in [("secret", 0o600), ("public", 0o666), ("exclusive", 0o666)] {
        fs::metadata(mount.path("d").join(name)).unwrap_err();
        let (name, flags) = (FileName::new(name.as_bytes()).unwrap(), OpenFlags::default());
        let (entry, opened) = fs.create(Caller::ROOT, dir, name, perm, flags).unwrap();
        fs.release(entry.attr.ino, opened.handle).unwrap();
        fs.forget(entry.attr.ino, 1);
    }
    let as_nobody = || {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let open = |name: &str, is_new: bool| {
            let mut options = fs::OpenOptions::new();
            options.read(true).write(true).create(true).create_new(is_new);
            options.open(mount.path("d").join(name)).map(drop).map_err(|error| error.kind())
        };
        [open("secret", false), open("public", false), open("exclusive", true), open("new", false)]
    };
    let opened = std::thread::scope(|scope| scope.spawn(as_nobody).join().unwrap());
    let (denied, exists) = (ErrorKind::PermissionDenied, ErrorKind::AlreadyExists);
    assert_eq!(opened, [Err(denied), Ok(()), Err(exists), Ok(())]);
    mount.finish().unwrap();
}

#[test]
fn rename_flags_reach_the_file_system() {
    let Some(mount) = mounted() else { return };
    fs::write(mount.path("a"), b"a").unwrap();
    fs::write(mount.path("b"), b"b").unwrap();
    let dir = rustix::fs::CWD;
    let refused = renameat_with(dir, mount.path("a"), dir, mount.path("b"), RenameFlags::NOREPLACE);
    assert_eq!(refused, Err(rustix::io::Errno::EXIST));
    renameat_with(dir, mount.path("a"), dir, mount.path("b"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(mount.path("a")).unwrap(), b"b");
    assert_eq!(fs::read(mount.path("b")).unwrap(), b"a");
    mount.finish().unwrap();
}

#[test]
fn links_count_and_symlinks_resolve() {
    let Some(mount) = mounted() else { return };
    fs::write(mount.path("a"), b"text").unwrap();
    fs::hard_link(mount.path("a"), mount.path("b")).unwrap();
    assert_eq!(fs::metadata(mount.path("a")).unwrap().nlink(), 2);
    symlink("b", mount.path("s")).unwrap();
    assert_eq!(fs::read(mount.path("s")).unwrap(), b"text");
    assert_eq!(fs::read_link(mount.path("s")).unwrap().to_str(), Some("b"));
    fs::remove_file(mount.path("a")).unwrap();
    assert_eq!(fs::metadata(mount.path("b")).unwrap().nlink(), 1);
    fs::create_dir(mount.path("d")).unwrap();
    assert_eq!(fs::metadata(mount.dir()).unwrap().nlink(), 3);
    mount.finish().unwrap();
}

#[test]
fn large_transfers_arrive_whole() {
    let Some(mount) = mounted() else { return };
    let bytes: Vec<u8> = (0..5_000_011u32).map(|i| (i * 7 + i / 251) as u8).collect();
    fs::write(mount.path("big"), &bytes).unwrap();
    assert!(fs::read(mount.path("big")).unwrap() == bytes);
    let file = fs::OpenOptions::new().read(true).write(true).open(mount.path("big")).unwrap();
    file.write_all_at(b"patch", 1_048_570).unwrap();
    file.set_len(1_048_580).unwrap();
    let mut tail = [0u8; 10];
    file.read_exact_at(&mut tail, 1_048_570).unwrap();
    assert_eq!(&tail[..5], b"patch");
    drop(file);
    assert_eq!(fs::metadata(mount.path("big")).unwrap().len(), 1_048_580);
    mount.finish().unwrap();
}

/// The umask of this process, from proc_pid_status(5): umask(2) tells it by setting another one, which is that of all threads.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(mask.trim(), 8).unwrap()
}

#[test]
fn modes_obey_the_umask_and_times_are_kept_to_the_nanosecond() {
    let Some(mount) = mounted() else { return };
    fs::write(mount.path("a"), b"").unwrap();
    assert_eq!(fs::metadata(mount.path("a")).unwrap().mode() & 0o777, 0o666 & !umask());
    fs::set_permissions(mount.path("a"), fs::Permissions::from_mode(0o1640)).unwrap();
    assert_eq!(fs::metadata(mount.path("a")).unwrap().mode() & 0o7777, 0o1640);
    let file = fs::File::open(mount.path("a")).unwrap();
    let stamp = |secs, nanos| rustix::fs::Timespec { tv_sec: secs, tv_nsec: nanos };
    let times = rustix::fs::Timestamps {
        last_access: stamp(1_234_567_890, 123_456_789),
        last_modification: stamp(-2, 800_000_000),
    };
    rustix::fs::futimens(&file, &times).unwrap();
    let found = fs::metadata(mount.path("a")).unwrap();
    assert_eq!((found.atime(), found.atime_nsec()), (1_234_567_890, 123_456_789));
    assert_eq!((found.mtime(), found.mtime_nsec()), (-2, 800_000_000));
    drop(file);
    mount.finish().unwrap();
}
