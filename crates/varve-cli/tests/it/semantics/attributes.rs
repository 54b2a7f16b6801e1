//! Times, modes, special files, symbolic links, extended attributes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use varve_testkit::{Command, there_is};

use super::{Place, changed, pattern, refused, refused_io, semantics, tick};
use crate::harness::python;

semantics!(
    times,
    relatime,
    ctime_and_mtime,
    times_of_mapped_memory,
    set_id_bits,
    special_files,
    symlinks,
    xattrs,
    permissions
);

fn set_times(path: &Path, atime: (i64, i64), mtime: (i64, i64)) {
    let spec = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn times(place: &Place) {
    let dir = place.dir().join("times");
    fs::create_dir(&dir).unwrap();
    for (n, len) in [0usize, 100, 5000, 100_000].into_iter().enumerate() {
        let path = dir.join(format!("f{n}"));
        fs::write(&path, pattern(1, len)).unwrap();
        for secs in [-86_400i64, 0, 1_700_000_000, 4_294_967_296 + 77] {
            set_times(&path, (secs, 999_999_999), (secs + 1, 123_456_789));
            let meta = fs::metadata(&path).unwrap();
            assert_eq!((meta.atime(), meta.atime_nsec()), (secs, 999_999_999));
            assert_eq!((meta.mtime(), meta.mtime_nsec()), (secs + 1, 123_456_789));
        }
    }
    set_times(&dir, (5, 6), (7, 8));
    place.remount();
    let meta = fs::metadata(&dir).unwrap();
    assert_eq!((meta.atime(), meta.mtime(), meta.mtime_nsec()), (5, 7, 8));
    let meta = fs::metadata(dir.join("f3")).unwrap();
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (4_294_967_296 + 78, 123_456_789));
}

fn relatime(place: &Place) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
        as i64;
    let path = place.dir().join("read");
    fs::write(&path, "data").unwrap();
    let atime_after_read = |atime, mtime| {
        set_times(&path, (atime, 0), (mtime, 0));
        // Each read comes from a cold cache, as the first read of a day does.
        place.remount();
        assert_eq!(fs::read(&path).unwrap(), b"data");
        fs::metadata(&path).unwrap().atime()
    };
    assert!(atime_after_read(now - 7200, now - 3600) >= now, "atime was before mtime");
    assert!(atime_after_read(now - 200_000, now - 300_000) >= now, "atime was more than a day old");
    // ctime is later than both here, so atime moves once and then stays.
    let moved = fs::metadata(&path).unwrap().atime();
    tick();
    place.remount();
    fs::read(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().atime(), moved);
}

/// An operation, its name, and whether it moves mtime and ctime.
type Step<'a> = (&'a str, &'a dyn Fn(), (bool, bool));

fn ctime_and_mtime(place: &Place) {
    let path = place.dir().join("file");
    fs::write(&path, "start").unwrap();
    let write = || OpenOptions::new().write(true).open(&path).unwrap();
    let steps: [Step<'_>; 7] = [
        (
            "chmod",
            &|| fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap(),
            (false, true),
        ),
        ("chown", &|| std::os::unix::fs::chown(&path, Some(7), None).unwrap(), (false, true)),
        ("link", &|| fs::hard_link(&path, place.dir().join("second")).unwrap(), (false, true)),
        ("unlink", &|| fs::remove_file(place.dir().join("second")).unwrap(), (false, true)),
        ("write", &|| write().write_all_at(b"x", 3).unwrap(), (true, true)),
        ("grow", &|| write().write_all_at(&pattern(1, 100_000), 0).unwrap(), (true, true)),
        ("truncate", &|| write().set_len(2).unwrap(), (true, true)),
    ];
    for (what, step, moves) in steps {
        let before = changed(&path);
        tick();
        step();
        let after = changed(&path);
        assert_eq!((after.0 > before.0, after.1 > before.1), moves, "{what}");
    }
    let before = changed(&path);
    place.remount();
    assert_eq!(changed(&path), before);
}

fn set_id_bits(place: &Place) {
    let path = place.dir().join("setid");
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    fs::write(&path, "program").unwrap();
    let set = || {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(mode(), 0o6777);
    };
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o777)).unwrap();
    set();
    as_nobody(&format!("printf x >> '{}'", path.display()));
    assert_eq!(mode(), 0o777, "after a write by another user");
    set();
    as_nobody(&format!(": > '{}'", path.display()));
    assert_eq!(mode(), 0o777, "after a truncation by another user");
    set();
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(b"root", 0).unwrap();
    assert_eq!(mode(), 0o6777, "after a write by root");
    std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
    assert_eq!(mode(), 0o777, "after a change of owner");
}

/// Of a large file the kernel changes the storage below, and had the times for the same that it knew before.
fn times_of_mapped_memory(place: &Place) {
    if !there_is("python3") {
        return;
    }
    let dir = place.dir();
    for (name, len) in [("small", 30_000), ("large", 300_000)] {
        fs::write(dir.join(name), pattern(1, len)).unwrap();
    }
    let program = r"
import mmap, os, time
def times(of):
    is_now = os.stat(of)
    return is_now.st_mtime_ns, is_now.st_ctime_ns
def later(before, of, what):
    now = times(of)
    assert now[0] > before[0] and now[1] > before[1], (what, before, now)
    return now
for name in ('small', 'large'):
    for flushes in (True, False):
        os.utime(name, (1000000000, 1000000000))
        before = times(name)
        time.sleep(0.05)
        fd = os.open(name, os.O_RDWR)
        assert times(fd) == before == times(name), name
        mapped = mmap.mmap(fd, 8192)
        assert times(fd) == before, name
        mapped[5:9] = b'text'
        if flushes:
            mapped.flush()
            later(before, fd, name + ' by its descriptor')
            later(before, name, name + ' by its name')
        mapped.close()
        os.close(fd)
        now = later(before, name, name + ' closed')
        time.sleep(0.05)
        assert times(name) == now, name
";
    python(&dir, program);
    if let Place::Mount(mount) = place {
        for options in ["transport=dev", "transport=auto,nopassthrough"] {
            mount.unmount();
            mount.mount_with(options);
            python(&dir, program);
        }
    }
}

/// Runs a shell command as an unprivileged user and returns whether it succeeded.
fn as_nobody(script: &str) -> bool {
    Command::new("sh").arg("-c").arg(script).uid(65_534).gid(65_534).status().unwrap().success()
}

fn special_files(place: &Place) {
    let dir = place.dir().join("special");
    fs::create_dir(&dir).unwrap();
    let device = rustix::fs::makedev(1, 3);
    let make = |name: &str, kind, device| {
        rustix::fs::mknodat(CWD, dir.join(name), kind, Mode::from(0o644), device).unwrap();
    };
    make("fifo", FileType::Fifo, 0);
    make("socket", FileType::Socket, 0);
    make("null", FileType::CharacterDevice, device);
    make("block", FileType::BlockDevice, rustix::fs::makedev(300, 70_000));
    make("regular", FileType::RegularFile, 0);
    place.remount();
    let meta = |name: &str| fs::symlink_metadata(dir.join(name)).unwrap();
    assert!(meta("fifo").file_type().is_fifo() && meta("socket").file_type().is_socket());
    assert!(meta("null").file_type().is_char_device() && meta("regular").is_file());
    assert_eq!(meta("null").rdev(), device);
    assert!(meta("block").file_type().is_block_device());
    assert_eq!(meta("block").rdev(), rustix::fs::makedev(300, 70_000));
    let status = Command::new("sh")
        .arg("-c")
        .arg("cat fifo > out & echo through > fifo; wait")
        .current_dir(&dir)
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(fs::read(dir.join("out")).unwrap(), b"through\n");
}

fn symlinks(place: &Place) {
    let dir = place.dir().join("symlinks");
    fs::create_dir(&dir).unwrap();
    let long = "x/".repeat(2000);
    let targets = ["a", "/absolute/nowhere", "../symlinks/file", long.as_str()];
    for (n, target) in targets.iter().enumerate() {
        symlink(target, dir.join(format!("l{n}"))).unwrap();
    }
    refused_io(symlink("y".repeat(4096), dir.join("too-long")), Errno::NAMETOOLONG);
    refused_io(symlink("", dir.join("empty")), Errno::NOENT);
    fs::write(dir.join("file"), "reached").unwrap();
    place.remount();
    for (n, target) in targets.iter().enumerate() {
        let path = dir.join(format!("l{n}"));
        assert_eq!(fs::read_link(&path).unwrap(), Path::new(target));
        assert_eq!(fs::symlink_metadata(&path).unwrap().len(), target.len() as u64);
    }
    assert_eq!(fs::read(dir.join("l2")).unwrap(), b"reached");
    symlink("loop", dir.join("loop")).unwrap();
    refused_io(File::open(dir.join("loop")), Errno::LOOP);
}

fn xattrs(place: &Place) {
    let path = place.dir().join("attributed");
    fs::write(&path, "x").unwrap();
    let get = |name: &str| {
        let mut value = vec![0u8; 70_000];
        rustix::fs::getxattr(&path, name, &mut value[..]).map(|len| value[..len].to_vec())
    };
    refused(get("user.absent"), Errno::NODATA);
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    refused(set("user.a", b"1", XattrFlags::REPLACE), Errno::NODATA);
    set("user.a", b"1", XattrFlags::CREATE).unwrap();
    refused(set("user.a", b"2", XattrFlags::CREATE), Errno::EXIST);
    set("user.a", b"second value", XattrFlags::REPLACE).unwrap();
    set("user.empty", b"", XattrFlags::empty()).unwrap();
    set("trusted.t", b"root only", XattrFlags::empty()).unwrap();
    if place.is_varve() {
        set("user.big", &pattern(9, 65_536), XattrFlags::empty()).unwrap();
        let long = format!("user.{}", "n".repeat(250));
        set(&long, b"long name", XattrFlags::empty()).unwrap();
    }
    place.remount();
    assert_eq!(get("user.a").unwrap(), b"second value");
    assert_eq!(get("user.empty").unwrap(), b"");
    assert_eq!(get("trusted.t").unwrap(), b"root only");
    if place.is_varve() {
        assert!(get("user.big").unwrap() == pattern(9, 65_536));
    }
    rustix::fs::removexattr(&path, "user.empty").unwrap();
    refused(rustix::fs::removexattr(&path, "user.empty"), Errno::NODATA);
    let mut list = vec![0u8; 70_000];
    let len = rustix::fs::listxattr(&path, &mut list[..]).unwrap();
    let mut names: Vec<_> =
        list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.retain(|name| name.len() < 20 && !name.starts_with(b"security."));
    names.sort_unstable();
    let mut wanted: Vec<&[u8]> = vec![b"trusted.t", b"user.a"];
    if place.is_varve() {
        wanted.push(b"user.big");
    }
    assert_eq!(names, wanted);
    let mut small = [0u8; 3];
    refused(rustix::fs::getxattr(&path, "user.a", &mut small[..]), Errno::RANGE);
}

fn permissions(place: &Place) {
    let dir = place.dir();
    let path = dir.join("secret");
    fs::write(&path, "secret").unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let read = format!("cat '{}' >/dev/null 2>&1", path.display());
    assert!(!as_nobody(&read));
    assert!(!as_nobody(&format!("touch '{}' 2>/dev/null", dir.join("new").display())));
    std::os::unix::fs::chown(&path, None, Some(65_534)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(as_nobody(&read));
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).unwrap();
    assert!(!as_nobody(&format!("rm -f '{}' 2>/dev/null", path.display())), "sticky directory");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(as_nobody(&format!("rm -f '{}'", path.display())));
}
