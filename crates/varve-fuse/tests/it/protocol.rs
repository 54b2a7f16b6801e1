//! What the kernel and the server agree on: caches, set-id bits, attributes, what is not served.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use rustix::fs::{CWD, FallocateFlags, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use varve_fuse::{ReaddirPlus, SessionOptions};
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, SetAttr, Vfs};

use crate::objectfs::ObjectFs;
use crate::support::{TestMount, model, mounted};
use varve_testkit::{Command, PATIENCE, eventually, skipped};

#[test]
fn names_present_and_absent_are_looked_up_once() {
    let fs = Arc::new(ObjectFs::new());
    let Some(mount) = TestMount::new(fs.clone(), &SessionOptions::default()) else { return };
    for _ in 0..10 {
        assert!(!mount.path("a").exists());
    }
    assert_eq!(fs.lookups.load(Relaxed), 1);
    fs::write(mount.path("a"), b"x").unwrap();
    for _ in 0..10 {
        assert_eq!(fs::metadata(mount.path("a")).unwrap().len(), 1);
    }
    fs::rename(mount.path("a"), mount.path("b")).unwrap();
    assert!(!mount.path("a").exists());
    assert!(mount.path("b").exists());
    fs::remove_file(mount.path("b")).unwrap();
    assert!(!mount.path("b").exists());
    // One for `b` as rename's target, at most one each for `a` and `b` after they are gone.
    assert!(fs.lookups.load(Relaxed) <= 4, "{} lookups", fs.lookups.load(Relaxed));
    mount.finish().unwrap();
}

#[test]
fn without_timeouts_every_name_is_asked_for() {
    let fs = Arc::new(ObjectFs::new());
    let zero = std::time::Duration::ZERO;
    let options = SessionOptions {
        entry_timeout: zero,
        negative_timeout: zero,
        attr_timeout: zero,
        ..SessionOptions::default()
    };
    let Some(mount) = TestMount::new(fs.clone(), &options) else { return };
    for _ in 0..10 {
        assert!(!mount.path("a").exists());
    }
    assert_eq!(fs.lookups.load(Relaxed), 10);
    mount.finish().unwrap();
}

#[test]
fn a_listing_with_attributes_saves_the_lookups() {
    for (plus, most) in [(ReaddirPlus::Always, 0), (ReaddirPlus::Never, 100)] {
        let fs = Arc::new(ObjectFs::new());
        let options = SessionOptions { readdir_plus: plus, ..SessionOptions::default() };
        let Some(mount) = TestMount::new(fs.clone(), &options) else { return };
        fs::create_dir(mount.path("d")).unwrap();
        for i in 0..100 {
            fs::write(mount.path(&format!("d/{i}")), b"").unwrap();
        }
        // A rename makes the kernel forget what it knows below.
        fs::rename(mount.path("d"), mount.path("e")).unwrap();
        let before = fs.lookups.load(Relaxed);
        for entry in fs::read_dir(mount.path("e")).unwrap() {
            assert_eq!(entry.unwrap().metadata().unwrap().len(), 0);
        }
        assert!(fs.lookups.load(Relaxed) - before <= most, "{plus:?}");
        mount.finish().unwrap();
    }
}

/// A walk that only wants names is not given attributes from some point on, until it looks at a file.
#[test]
fn who_wants_names_alone_is_given_no_attributes() {
    let fs = Arc::new(ObjectFs::new());
    // Made where the kernel does not see it.
    for dir in 0..20 {
        let name = format!("d{dir}");
        let name = FileName::new(name.as_bytes()).unwrap();
        let made = fs.mkdir(Caller::ROOT, InodeId::ROOT, name, 0o755).unwrap();
        for file in ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"] {
            let name = FileName::new(file.as_bytes()).unwrap();
            fs.mknod(Caller::ROOT, made.attr.ino, name, 0o100_644, 0).unwrap();
        }
    }
    let Some(mount) = TestMount::new(fs.clone(), &SessionOptions::default()) else { return };
    let list = |dir: u32| -> Vec<_> {
        let entries = fs::read_dir(mount.path(&format!("d{dir}"))).unwrap();
        let paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        assert_eq!(paths.len(), 10, "{dir}");
        paths
    };
    let lookups_of_files = |dir: u32| {
        let paths = list(dir);
        let before = fs.lookups.load(Relaxed);
        paths.iter().for_each(|path| assert_eq!(fs::metadata(path).unwrap().len(), 0));
        fs.lookups.load(Relaxed) - before
    };
    // This thread may have listed others before.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(lookups_of_files(0), 0, "attributes come with the names");
            (1..12).for_each(|dir| drop(list(dir)));
            assert_eq!(lookups_of_files(12), 10, "names alone");
            (13..19).for_each(|dir| assert_eq!(lookups_of_files(dir), 0, "attributes again"));
        });
    });
    mount.finish().unwrap();
}

/// Runs `script` as an ordinary user in `dir`.
pub(crate) fn as_user(dir: &Path, script: &str) {
    let done = Command::new("sh")
        .args(["-c", script])
        .current_dir(dir)
        .uid(1000)
        .gid(1000)
        .status()
        .unwrap();
    assert!(done.success(), "{script}");
}

#[test]
fn a_change_by_an_ordinary_user_takes_the_set_id_bits() {
    if !rustix::process::geteuid().is_root() {
        return skipped("needs root to become another user");
    }
    let Some(mount) = mounted() else { return };
    let path = mount.path("program");
    for script in ["echo x >> program", ": > program", "truncate -s 1 program"] {
        fs::write(&path, b"#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        as_user(mount.dir(), script);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{script}");
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    File::options().append(true).open(&path).unwrap().write_all(b"by root").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6777, "root keeps them");
    std::os::unix::fs::chown(&path, Some(1000), None).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "chown takes them from a file");
    fs::create_dir(mount.path("dir")).unwrap();
    fs::set_permissions(mount.path("dir"), fs::Permissions::from_mode(0o2775)).unwrap();
    std::os::unix::fs::chown(mount.path("dir"), Some(1000), None).unwrap();
    assert_eq!(
        fs::metadata(mount.path("dir")).unwrap().mode() & 0o7777,
        0o2775,
        "and not from a directory"
    );
    mount.finish().unwrap();
}

/// Opens a file to be written anew, as a user without rights of its own.
fn cut_as_nobody(path: &Path) -> io::Result<()> {
    let cut = || {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        File::options().write(true).truncate(true).open(path).map(drop)
    };
    std::thread::scope(|scope| scope.spawn(cut).join().unwrap())
}

/// A mount with a program that all may write to, with set-id bits.
fn program_with_set_id_bits() -> Option<(Arc<ObjectFs>, TestMount, PathBuf)> {
    if !rustix::process::geteuid().is_root() {
        skipped("needs root to become another user");
        return None;
    }
    let fs = Arc::new(ObjectFs::new());
    let mount = TestMount::new(fs.clone(), &SessionOptions::default())?;
    let path = mount.path("program");
    fs::write(&path, b"#!/bin/sh\n").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
    Some((fs, mount, path))
}

/// An open cut the file and kept them.
#[test]
fn a_file_whose_set_id_bits_cannot_go_is_not_cut() {
    let Some((fs, mount, path)) = program_with_set_id_bits() else { return };
    fs.setattrs_fail.store(true, Relaxed);
    let refused = cut_as_nobody(&path).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::IO.raw_os_error()));
    assert_eq!(fs::read(&path).unwrap(), b"#!/bin/sh\n");
    mount.finish().unwrap();
}

/// The kernel took them to be there still.
#[test]
fn set_id_bits_that_went_are_not_shown_though_the_open_failed() {
    let Some((fs, mount, path)) = program_with_set_id_bits() else { return };
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6777);
    fs.opens_fail.store(true, Relaxed);
    let refused = cut_as_nobody(&path).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::IO.raw_os_error()));
    let ino = InodeId::new(fs::metadata(&path).unwrap().ino());
    assert_eq!(fs.getattr(ino).unwrap().perm, 0o777);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
    mount.finish().unwrap();
}

/// The thread that tells the kernel of appends that went astray.
fn astray_thread() -> Option<OsString> {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap());
    let is_it = |thread: &fs::DirEntry| {
        fs::read(thread.path().join("comm")).is_ok_and(|comm| comm == b"varve-astray\n")
    };
    threads.into_iter().find(is_it).map(|thread| thread.file_name())
}

/// The kernel does not learn where a file ends from appends that go elsewhere than it takes them to: each began a thread.
#[test]
fn a_thread_that_has_told_of_an_append_stays_for_the_next() {
    let fs = Arc::new(ObjectFs::new());
    let Some(mount) = TestMount::new(fs.clone(), &SessionOptions::default()) else { return };
    let path = mount.path("log");
    fs::write(&path, b"a\n").unwrap();
    let ino = InodeId::new(fs::metadata(&path).unwrap().ino());
    let mut log = File::options().append(true).open(&path).unwrap();
    // Past the kernel, as by a commit.
    fs.setattr(Caller::ROOT, ino, SetAttr { size: Some(1 << 20), ..SetAttr::default() }).unwrap();
    let (mut thread, mut times, mut written) = (None, 0, 0);
    eventually("one thread tells of many appends", || {
        log.write_all(b"b\n").unwrap();
        written += 2;
        let before = std::mem::replace(&mut thread, astray_thread());
        times = if thread.is_some() && thread == before { times + 1 } else { 0 };
        times == 10
    });
    assert_eq!(fs.getattr(ino).unwrap().size, (1 << 20) + written);
    drop(log);
    eventually("it has ended", || astray_thread().is_none());
    mount.finish().unwrap();
}

#[test]
fn sync_and_dirsync_are_kept_by_the_server() {
    let fs = Arc::new(ObjectFs::new());
    let options =
        SessionOptions { sync_writes: true, sync_dirs: true, ..SessionOptions::default() };
    let Some(mount) = TestMount::new(fs.clone(), &options) else { return };
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("a"), b"x").unwrap();
    fs::read(mount.path("a")).unwrap();
    fs::hard_link(mount.path("a"), mount.path("b")).unwrap();
    std::os::unix::fs::symlink("a", mount.path("s")).unwrap();
    fs::rename(mount.path("a"), mount.path("d/a")).unwrap();
    fs::remove_file(mount.path("d/a")).unwrap();
    fs::remove_dir(mount.path("d")).unwrap();
    assert_eq!(fs.dir_syncs.load(Relaxed), 8, "one for each directory changed");
    assert_eq!(fs.sync_opens.load(Relaxed), 2);
    mount.finish().unwrap();
}

/// The kernel never heard of what was made then, and so never forgot it.
#[test]
fn what_is_made_and_not_made_durable_is_not_kept_for_the_kernel() {
    let fs = Arc::new(ObjectFs::new());
    // The names are there, and the kernel is not to remember that they were not.
    let negative_timeout = Duration::ZERO;
    let options = SessionOptions { sync_dirs: true, negative_timeout, ..SessionOptions::default() };
    let Some(mount) = TestMount::new(fs.clone(), &options) else { return };
    File::create(mount.path("file")).unwrap();
    let before = fs.inode_count();
    fs.dir_syncs_fail.store(true, Relaxed);
    let pipe = rustix::fs::FileType::Fifo;
    let fails = |name: &str, made: io::Result<()>| {
        assert_eq!(made.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()), "{name}");
    };
    fails("dir", fs::create_dir(mount.path("dir")));
    fails("created", File::create(mount.path("created")).map(drop));
    let made = rustix::fs::mknodat(CWD, mount.path("pipe"), pipe, Mode::RUSR, 0);
    fails("pipe", made.map_err(io::Error::from));
    fails("symlink", std::os::unix::fs::symlink("file", mount.path("symlink")));
    fails("link", fs::hard_link(mount.path("file"), mount.path("link")));
    fs.dir_syncs_fail.store(false, Relaxed);
    fs::remove_dir(mount.path("dir")).unwrap();
    for name in ["created", "pipe", "symlink", "link"] {
        fs::remove_file(mount.path(name)).unwrap();
    }
    eventually("what was made is gone", || fs.inode_count() == before);
    fs::remove_file(mount.path("file")).unwrap();
    eventually("the file of two names is gone", || fs.inode_count() == before - 1);
    mount.finish().unwrap();
}

#[test]
fn many_syncs_run_at_once_and_keep_nobody_else_waiting() {
    let mut fs = ObjectFs::new();
    fs.syncs_together = Some(Barrier::new(12));
    let options = SessionOptions { threads: NonZeroUsize::new(1), ..SessionOptions::default() };
    let Some(mount) = TestMount::new(Arc::new(fs), &options) else { return };
    std::thread::scope(|scope| {
        for i in 0..12 {
            // Made while all those before are waiting in their sync, and a single reader serves.
            let file = File::create(mount.path(&i.to_string())).unwrap();
            scope.spawn(move || rustix::fs::fsync(&file).unwrap());
        }
    });
    mount.finish().unwrap();
}

#[test]
fn the_kernel_checks_permissions() {
    if !rustix::process::geteuid().is_root() {
        return skipped("needs root to become another user");
    }
    let Some(mount) = mounted() else { return };
    fs::set_permissions(mount.dir(), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(mount.path("secret"), b"x").unwrap();
    fs::set_permissions(mount.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    as_user(mount.dir(), "! cat secret 2>/dev/null && echo mine > own && test -O own");
    mount.finish().unwrap();
}

#[test]
fn ranges_are_allocated_zeroed_sought_and_copied() {
    let fs = Arc::new(ObjectFs::new());
    let Some(mount) = TestMount::new(fs.clone(), &SessionOptions::default()) else { return };
    let file =
        File::options().read(true).write(true).create_new(true).open(mount.path("a")).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 10_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10_000);
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 20_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 10_000);
    file.write_all_at(&[9; 10_000], 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 0, 5000).unwrap();
    let mut bytes = vec![1u8; 10_000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes[..5000].iter().all(|&b| b == 0) && bytes[5000..].iter().all(|&b| b == 9));
    let collapse = rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(collapse, Err(Errno::OPNOTSUPP));
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(100)), Ok(100));
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(100)), Ok(10_000));
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(10_000)), Err(Errno::NXIO));
    let copy =
        File::options().read(true).write(true).create_new(true).open(mount.path("b")).unwrap();
    let copied =
        rustix::fs::copy_file_range(&file, Some(&mut 0), &copy, Some(&mut 0), 10_000).unwrap();
    let mut again = vec![1u8; copied];
    copy.read_exact_at(&mut again, 0).unwrap();
    assert_eq!(again, bytes[..copied]);
    assert!(fs.copies.load(Relaxed) > 0, "the bytes did not come here and go back");
    rustix::fs::fsync(&file).unwrap();
    rustix::fs::fdatasync(&file).unwrap();
    rustix::fs::fsync(File::open(mount.dir()).unwrap()).unwrap();
    drop((file, copy));
    mount.finish().unwrap();
}

#[test]
fn the_room_left_is_told() {
    let fs = model();
    let Some(mount) = TestMount::new(fs.clone(), &SessionOptions::default()) else { return };
    let (told, meant) = (rustix::fs::statvfs(mount.dir()).unwrap(), fs.statfs().unwrap());
    assert_eq!((told.f_blocks, told.f_bfree), (meant.blocks, meant.blocks_free));
    assert_eq!((told.f_bavail, told.f_files), (meant.blocks_available, meant.files));
    assert_eq!((told.f_ffree, told.f_namemax), (meant.files_free, u64::from(meant.name_bytes_max)));
    assert_eq!((told.f_bsize, told.f_frsize), (meant.block_bytes.into(), meant.block_bytes.into()));
    mount.finish().unwrap();
}

#[test]
fn locks_are_the_kernels_and_go_with_the_file() {
    let Some(mount) = mounted() else { return };
    let one = File::create(mount.path("a")).unwrap();
    let two = File::open(mount.path("a")).unwrap();
    rustix::fs::flock(&one, FlockOperation::LockExclusive).unwrap();
    let refused = rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(refused, Err(Errno::WOULDBLOCK));
    drop(one);
    // A process that another test is just starting may hold a copy of it.
    eventually("it is free", || {
        rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
    rustix::fs::fcntl_lock(&two, FlockOperation::NonBlockingLockShared).unwrap();
    drop(two);
    mount.finish().unwrap();
}

#[test]
fn a_file_without_a_name_can_be_given_one() {
    let Some(mount) = mounted() else { return };
    let open =
        |flags| rustix::fs::open(mount.dir(), flags, Mode::RUSR | Mode::WUSR).map(File::from);
    let unnamed = open(OFlags::TMPFILE | OFlags::RDWR).unwrap();
    unnamed.write_all_at(b"text", 0).unwrap();
    assert_eq!(unnamed.metadata().unwrap().nlink(), 0);
    assert!(fs::read_dir(mount.dir()).unwrap().next().is_none());
    let (descriptors, at) = (rustix::fs::CWD, rustix::fs::AtFlags::SYMLINK_FOLLOW);
    let link = |file: &File, name| {
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(descriptors, own, descriptors, mount.path(name), at)
    };
    link(&unnamed, "named").unwrap();
    assert_eq!(fs::read(mount.path("named")).unwrap(), b"text");
    assert_eq!(unnamed.metadata().unwrap().nlink(), 1);
    let never = open(OFlags::TMPFILE | OFlags::WRONLY | OFlags::EXCL).unwrap();
    assert_eq!(link(&never, "never"), Err(Errno::NOENT));
    drop((unnamed, never));
    mount.finish().unwrap();
}

#[test]
fn the_time_of_birth_is_told() {
    let fs = model();
    let Some(mount) = TestMount::new(fs.clone(), &SessionOptions::default()) else { return };
    fs::write(mount.path("a"), b"x").unwrap();
    let asked = rustix::fs::StatxFlags::BASIC_STATS | rustix::fs::StatxFlags::BTIME;
    let none = rustix::fs::AtFlags::empty();
    let told = rustix::fs::statx(rustix::fs::CWD, mount.path("a"), none, asked).unwrap();
    assert_ne!(told.stx_mask & rustix::fs::StatxFlags::BTIME.bits(), 0);
    let meant = fs.getattr(varve_types::InodeId::new(told.stx_ino)).unwrap();
    assert_eq!(told.stx_btime.tv_sec, meant.btime.secs());
    assert_eq!(told.stx_btime.tv_nsec, meant.btime.nanos());
    assert_eq!(
        (told.stx_size, told.stx_nlink, u32::from(told.stx_mode)),
        (1, 1, 0o100_000 | meant.perm)
    );
    assert_eq!(
        (told.stx_mtime.tv_sec, told.stx_mtime.tv_nsec),
        (meant.mtime.secs(), meant.mtime.nanos())
    );
    mount.finish().unwrap();
}

/// Setting a time of i64::MIN seconds once took the decoder, its reader thread and with them the mount
/// down, and the caller waited for ever.
#[test]
fn times_at_the_ends_of_the_range_harm_nobody() {
    let options = SessionOptions { threads: NonZeroUsize::new(1), ..SessionOptions::default() };
    let Some(mount) = TestMount::new(model(), &options) else { return };
    let file = File::create(mount.path("a")).unwrap();
    for secs in [i64::MIN, i64::MIN + 1, i64::MAX, -1, 0] {
        let time = rustix::fs::Timespec { tv_sec: secs, tv_nsec: 999_999_999 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::futimens(&file, &times).unwrap();
        // At the very ends the kernel itself drops the nanoseconds.
        let nanos = if matches!(secs, i64::MIN | i64::MAX) { 0 } else { 999_999_999 };
        let found = file.metadata().unwrap();
        assert_eq!((found.mtime(), found.mtime_nsec()), (secs, nanos));
        assert_eq!((found.atime(), found.atime_nsec()), (secs, nanos));
    }
    drop(file);
    mount.finish().unwrap();
}

#[test]
fn a_call_that_panics_fails_alone() {
    let fs = Arc::new(ObjectFs::new());
    let options = SessionOptions { threads: NonZeroUsize::new(1), ..SessionOptions::default() };
    let Some(mount) = TestMount::new(fs.clone(), &options) else { return };
    let file = File::create(mount.path("a")).unwrap();
    fs.panics.store(true, Relaxed);
    for _ in 0..3 {
        let failed = fs::metadata(mount.path("b")).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(Errno::IO.raw_os_error()));
        assert_eq!(rustix::fs::fsync(&file), Err(Errno::IO), "also off the reader threads");
    }
    fs.panics.store(false, Relaxed);
    fs::write(mount.path("b"), b"x").unwrap();
    rustix::fs::fsync(&file).unwrap();
    drop(file);
    mount.finish().unwrap();
}

/// A request whose wait for locks panicked had no answer, or took its reader along.
#[test]
fn a_wait_that_panics_fails_alone() {
    let fs = Arc::new(ObjectFs::new());
    let Some(mount) = TestMount::new(fs.clone(), &SessionOptions::default()) else { return };
    for wait_max in [PATIENCE, Duration::ZERO, PATIENCE] {
        *fs.blocks.lock() = Some(wait_max);
        let (sender, receiver) = mpsc::channel();
        let path = mount.path("a");
        // Apart, since without an answer it does not end before the mount does.
        let asks = std::thread::spawn(move || sender.send(fs::metadata(path).map(drop)));
        let answer = receiver.recv_timeout(PATIENCE).expect("an answer");
        assert_eq!(answer.unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
        asks.join().unwrap().unwrap();
    }
    *fs.blocks.lock() = None;
    fs::write(mount.path("a"), b"x").unwrap();
    mount.finish().unwrap();
}

/// A call that had waited for a transaction to end was done by the permissions of before it.
#[test]
fn permissions_are_asked_for_again_after_a_wait_for_locks() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can act as somebody else");
    }
    let fs = Arc::new(ObjectFs::new());
    let Some(mount) = TestMount::new(fs.clone(), &SessionOptions::default()) else { return };
    let mut to_close = Vec::new();
    for name in ["open", "closed"] {
        let [new, old, file] =
            ["new", "old", "file"].map(|what| mount.path(&format!("{name}.{what}")));
        fs::create_dir(&new).unwrap();
        fs::create_dir(&old).unwrap();
        fs::write(old.join("removed"), b"x").unwrap();
        fs::write(&file, b"x").unwrap();
        for path in [new, old, file] {
            fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
            to_close.extend((name == "closed").then(|| fs::metadata(&path).unwrap().ino()));
        }
    }
    fs.locks.take();
    let as_nobody = |call: usize, name: &str| {
        let nobody = rustix::process::Uid::from_raw(65_534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let path = |what| mount.path(&format!("{name}.{what}"));
        let mut options = File::options();
        options.write(true);
        let done = match call {
            0 => options.open(path("file")).map(drop),
            1 => options.truncate(true).open(path("file")).map(drop),
            2 => {
                // The kernel does not walk to it again.
                let (dir, flags) =
                    (File::open(path("new")).unwrap(), OFlags::CREATE | OFlags::WRONLY);
                rustix::fs::openat(&dir, "made", flags, Mode::RUSR)
                    .map(drop)
                    .map_err(io::Error::from)
            }
            _ => fs::remove_file(path("old/removed")),
        };
        done.map_err(|error| error.kind())
    };
    let ended: Vec<_> = std::thread::scope(|scope| {
        let calls = (0..4).flat_map(|call| ["open", "closed"].map(|name| (call, name)));
        let started = calls.map(|(call, name)| (name, scope.spawn(move || as_nobody(call, name))));
        let started: Vec<_> = started.collect();
        eventually("all wait", || fs.locks.waiting.lock().len() == 8);
        let close = SetAttr { perm: Some(0o700), ..SetAttr::default() };
        for ino in to_close {
            // Past the kernel, as by a commit.
            fs.setattr(Caller::ROOT, InodeId::new(ino), close).unwrap();
        }
        fs.locks.let_go();
        started.into_iter().map(|(name, call)| (name, call.join().unwrap())).collect()
    });
    let (done, denied) = (("open", Ok(())), ("closed", Err(ErrorKind::PermissionDenied)));
    assert_eq!(ended, [done, denied].repeat(4));
    assert_eq!(fs::read(mount.path("closed.file")).unwrap(), b"x");
    assert!(!mount.path("open.old/removed").exists() && mount.path("closed.old/removed").exists());
    mount.finish().unwrap();
}

#[test]
fn what_is_not_served_says_so() {
    let Some(mount) = mounted() else { return };
    let file = File::create(mount.path("a")).unwrap();
    assert_eq!(rustix::io::ioctl_fionread(&file), Ok(0));
    let long = mount.path(&"n".repeat(256));
    assert_eq!(
        File::create(long).unwrap_err().raw_os_error(),
        Some(Errno::NAMETOOLONG.raw_os_error())
    );
    let longest = mount.dir().join(OsStr::new(&"n".repeat(255)));
    File::create(&longest).unwrap();
    assert!(longest.exists());
    drop(file);
    mount.finish().unwrap();
}
