//! The ends of what there is: sizes, links, names, paths; and what a mount that is read-only, in use or another
//! file system's neighbour refuses.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::Stdio;

use rustix::fs::{Access, AtFlags, CWD, FallocateFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use varve_testkit::{Command, put_program};

use super::views::{begin, id};
use super::{Place, refused, refused_io, semantics};
use crate::harness::{python, run, varve};

semantics!(
    largest_file,
    file_size_limit,
    many_links,
    long_paths,
    symlink_loops,
    read_only,
    busy_and_beyond
);

fn largest_file(place: &Place) {
    let path = place.dir().join("large");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let end = i64::MAX as u64;
    refused_io(file.write_all_at(b"x", end - 1), Errno::FBIG);
    refused_io(file.write_all_at(b"xx", end - 1), Errno::INVAL);
    refused(rustix::fs::fallocate(&file, FallocateFlags::empty(), end, 2), Errno::FBIG);
    refused(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, u64::MAX), Errno::INVAL);
    refused(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 0), Errno::INVAL);
    file.write_all_at(b"far", 1 << 40).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 40) + 3);
    if place.is_varve() {
        refused(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 60), Errno::NOSPC);
        assert_eq!(file.metadata().unwrap().len(), (1 << 40) + 3);
    }
    let mut bytes = [1; 5];
    assert_eq!(file.read_at(&mut bytes, 1 << 39).unwrap(), 5);
    assert_eq!(bytes, [0; 5]);
    assert_eq!(file.read_at(&mut bytes, (1 << 40) + 1).unwrap(), 2);
    drop(file);
    place.remount();
    assert_eq!(fs::metadata(&path).unwrap().len(), (1 << 40) + 3);
    if place.is_varve() {
        // Before its own bytes of a file a transaction keeps which they are.
        let view = begin(&place.dir());
        let file = OpenOptions::new().write(true).open(view.join("large")).unwrap();
        refused(rustix::fs::ftruncate(&file, end), Errno::FBIG);
        refused_io(file.write_all_at(b"x", end - 2), Errno::FBIG);
        drop(file);
        run(varve().args(["txn", "abort"]).arg(place.dir()).arg(id(&view)));
    }
}

fn file_size_limit(place: &Place) {
    let script = r#"
import errno, os, resource, signal, time
for name, limit in (("small", 1000), ("large", 100_000)):
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    signals = []
    signal.signal(signal.SIGXFSZ, lambda *_: signals.append(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    def refused(function):
        before = len(signals)
        try:
            function()
        except OSError as error:
            time.sleep(0.01)
            assert error.errno == errno.EFBIG and len(signals) > before, (error, signals)
        else:
            raise AssertionError("granted")
    assert os.pwrite(fd, b"x" * 2 * limit, 0) == limit
    assert os.pwrite(fd, b"x" * limit, limit // 2) == limit - limit // 2
    refused(lambda: os.pwrite(fd, b"x", limit))
    refused(lambda: os.ftruncate(fd, limit + 1))
    refused(lambda: os.posix_fallocate(fd, 0, limit + 1))
    os.ftruncate(fd, limit)
    assert os.fstat(fd).st_size == limit
"#;
    python(&place.dir(), script);
}

fn many_links(place: &Place) {
    // Other file systems end at 65,000.
    let count = if place.is_varve() { 65_100 } else { 1000 };
    let dir = place.dir().join("links");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("first"), "all of them").unwrap();
    let dirs = place.dir().join("dirs");
    fs::create_dir(&dirs).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..count {
                fs::hard_link(dir.join("first"), dir.join(n.to_string())).unwrap();
            }
        });
        for n in 0..count {
            fs::create_dir(dirs.join(n.to_string())).unwrap();
        }
    });
    place.remount();
    assert_eq!(fs::metadata(dir.join("777")).unwrap().nlink(), count);
    assert_eq!(fs::metadata(&dirs).unwrap().nlink(), count + 2);
    assert_eq!(fs::read(dir.join((count - 1).to_string())).unwrap(), b"all of them");
    fs::remove_file(dir.join("777")).unwrap();
    fs::remove_dir(dirs.join("777")).unwrap();
    assert_eq!(fs::metadata(dir.join("first")).unwrap().nlink(), count - 1);
    assert_eq!(fs::metadata(&dirs).unwrap().nlink(), count + 1);
}

fn long_paths(place: &Place) {
    let dir = place.dir();
    fs::write(dir.join("file"), "x").unwrap();
    let long = dir.join("n".repeat(256));
    refused_io(fs::metadata(&long), Errno::NAMETOOLONG);
    refused_io(fs::create_dir(&long), Errno::NAMETOOLONG);
    refused_io(fs::remove_file(&long), Errno::NAMETOOLONG);
    refused_io(fs::remove_dir(&long), Errno::NAMETOOLONG);
    refused_io(fs::rename(dir.join("file"), &long), Errno::NAMETOOLONG);
    refused_io(fs::rename(&long, dir.join("file")), Errno::NAMETOOLONG);
    refused_io(fs::hard_link(dir.join("file"), &long), Errno::NAMETOOLONG);
    refused_io(symlink("x", &long), Errno::NAMETOOLONG);
    let padded = |bytes: usize| {
        let start = dir.to_str().unwrap().len();
        let room = bytes - start - "/file".len();
        PathBuf::from(format!("{}{}/file", dir.display(), "/".repeat(room)))
    };
    assert_eq!(fs::metadata(padded(4095)).unwrap().len(), 1);
    refused_io(fs::metadata(padded(4096)), Errno::NAMETOOLONG);
    // A tree deeper than any path can say, made and removed step by step.
    let open = |at: &rustix::fd::OwnedFd| {
        rustix::fs::openat(at, "d".repeat(250), OFlags::DIRECTORY, Mode::empty()).unwrap()
    };
    let mut chain = vec![rustix::fs::open(&dir, OFlags::DIRECTORY, Mode::empty()).unwrap()];
    for _ in 0..40 {
        let at = chain.last().unwrap();
        rustix::fs::mkdirat(at, "d".repeat(250), Mode::RWXU).unwrap();
        let below = open(at);
        chain.push(below);
    }
    assert_eq!(rustix::fs::fstat(chain.last().unwrap()).unwrap().st_nlink, 2);
    chain.pop();
    while let Some(at) = chain.pop() {
        rustix::fs::unlinkat(&at, "d".repeat(250), AtFlags::REMOVEDIR).unwrap();
    }
}

fn symlink_loops(place: &Place) {
    let dir = place.dir();
    fs::write(dir.join("end"), "reached").unwrap();
    let mut target = "end".to_owned();
    for n in 0..=40 {
        let name = format!("link-{n}");
        symlink(&target, dir.join(&name)).unwrap();
        target = name;
    }
    assert_eq!(fs::read(dir.join("link-39")).unwrap(), b"reached");
    refused_io(fs::read(dir.join("link-40")), Errno::LOOP);
    symlink("self", dir.join("self")).unwrap();
    refused_io(fs::metadata(dir.join("self")), Errno::LOOP);
    refused_io(fs::create_dir(dir.join("self/x")), Errno::LOOP);
    let no_follow = OFlags::RDONLY | OFlags::NOFOLLOW;
    refused(rustix::fs::open(dir.join("link-0"), no_follow, Mode::empty()), Errno::LOOP);
}

fn read_only(place: &Place) {
    let Place::Mount(mount) = place else { return };
    let dir = place.dir();
    fs::create_dir(dir.join("dir")).unwrap();
    for name in ["file", "other"] {
        fs::write(dir.join(name), "content").unwrap();
    }
    rustix::fs::setxattr(dir.join("file"), "user.a", b"1", XattrFlags::empty()).unwrap();
    mount.unmount();
    mount.mount_with("ro");
    let file = dir.join("file");
    refused_io(fs::write(dir.join("new"), ""), Errno::ROFS);
    refused_io(OpenOptions::new().write(true).open(&file), Errno::ROFS);
    refused_io(OpenOptions::new().append(true).open(&file), Errno::ROFS);
    refused_io(fs::create_dir(dir.join("new")), Errno::ROFS);
    refused_io(fs::remove_file(&file), Errno::ROFS);
    refused_io(fs::remove_dir(dir.join("dir")), Errno::ROFS);
    refused_io(fs::rename(&file, dir.join("new")), Errno::ROFS);
    refused_io(fs::hard_link(&file, dir.join("new")), Errno::ROFS);
    refused_io(symlink("x", dir.join("new")), Errno::ROFS);
    refused_io(fs::set_permissions(&file, fs::Permissions::from_mode(0o600)), Errno::ROFS);
    refused_io(std::os::unix::fs::chown(&file, Some(1), Some(1)), Errno::ROFS);
    let set = rustix::fs::setxattr(&file, "user.b", b"1", XattrFlags::empty());
    refused(set, Errno::ROFS);
    refused(rustix::fs::removexattr(&file, "user.a"), Errno::ROFS);
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
    refused(rustix::fs::utimensat(CWD, &file, &times, AtFlags::empty()), Errno::ROFS);
    let fifo = rustix::fs::mknodat(CWD, dir.join("new"), rustix::fs::FileType::Fifo, Mode::RWXU, 0);
    refused(fifo, Errno::ROFS);
    refused(rustix::fs::access(&file, Access::WRITE_OK), Errno::ROFS);
    let unnamed = rustix::fs::open(&dir, OFlags::TMPFILE | OFlags::RDWR, Mode::RWXU);
    refused(unnamed, Errno::ROFS);
    assert_eq!(fs::read(&file).unwrap(), b"content");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 3);
    File::open(&file).unwrap().sync_all().unwrap();
    let flags = rustix::fs::statvfs(&dir).unwrap().f_flag;
    assert!(flags.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    let before = fs::metadata(&file).unwrap().atime();
    assert_eq!(fs::metadata(&file).unwrap().atime(), before);
}

fn busy_and_beyond(place: &Place) {
    let dir = place.dir();
    fs::write(dir.join("file"), "x").unwrap();
    // A program that runs, and one that is open for writing. None of them is written to after it was executed, when somebody may
    // be looking at its process, nor by a thread of this process, whose children would have it open too.
    let (runs, written) = (dir.join("runs"), dir.join("written"));
    for program in [&runs, &written] {
        put_program("/bin/sleep", program);
    }
    let mut running = Command::new(&runs).arg("600").spawn().unwrap();
    for open in [OpenOptions::new().write(true), OpenOptions::new().write(true).truncate(true)] {
        refused_io(open.open(&runs), Errno::TXTBSY);
    }
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(fs::read(&runs).unwrap(), fs::read("/bin/sleep").unwrap());
    let mut writer = Command::new("sh");
    writer.args(["-c", "exec 3>>\"$0\" && echo open && read line"]).arg(&written);
    let mut writer = writer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    writer.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
    refused_io(Command::new(&written).arg("0").status(), Errno::TXTBSY);
    drop(writer.stdin.take());
    writer.wait().unwrap();
    assert!(Command::new(&written).arg("0").status().unwrap().success());
    if place.is_varve() {
        let outside = tempfile::tempdir().unwrap();
        refused_io(fs::rename(dir.join("file"), outside.path().join("file")), Errno::XDEV);
        refused_io(fs::hard_link(dir.join("file"), outside.path().join("file")), Errno::XDEV);
        refused_io(fs::remove_dir(&dir), Errno::BUSY);
        refused_io(fs::rename(&dir, outside.path().join("moved")), Errno::BUSY);
        let removed = rustix::fs::unlinkat(CWD, dir.join("file/."), AtFlags::REMOVEDIR);
        refused(removed, Errno::NOTDIR);
    }
}
