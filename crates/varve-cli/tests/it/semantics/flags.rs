//! File flags, as chattr(1) sets them.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, IFlags, OFlags, XattrFlags};
use rustix::io::Errno;
use varve_testkit::{Command, eventually, there_is};

use super::views::{snapshot, text};
use super::{Place, as_user, chmod, names, pattern, refused, refused_io, semantics};
use crate::harness::{python, run, varve};

semantics!(
    file_flags,
    file_flags_of_directories,
    file_flags_of_others,
    file_flags_in_memory,
    file_flags_in_views,
);

/// Takes all flags below a directory away again, so that it can be removed.
struct Cleared(PathBuf);

impl Drop for Cleared {
    fn drop(&mut self) {
        let _ = Command::new("chattr").args(["-R", "-f", "-ia"]).arg(&self.0).output();
    }
}

fn chattr(how: &str, path: &Path) {
    run(Command::new("chattr").arg(how).arg(path));
}

/// The letters of its flags among those that are known here.
fn lsattr(path: &Path) -> String {
    let listed = text(&run(Command::new("lsattr").arg("-d").arg(path)));
    let flags = listed.split_whitespace().next().unwrap();
    flags.chars().filter(|letter| "iad".contains(*letter)).collect()
}

fn open(path: &Path, flags: OFlags) -> std::io::Result<File> {
    let flags = flags.bits().cast_signed();
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

fn is_mine(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| rustix::fs::ioctl_getflags(&file).is_ok())
}

/// Whatever changes the file `path` in `dir` is EPERM.
fn refuses_all(dir: &Path, path: &Path) {
    refused_io(open(path, OFlags::empty()), Errno::PERM);
    refused_io(open(path, OFlags::APPEND), Errno::PERM);
    refused_io(OpenOptions::new().write(true).truncate(true).open(path), Errno::PERM);
    let permissions = fs::Permissions::from_mode(0o600);
    refused_io(fs::set_permissions(path, permissions), Errno::PERM);
    refused_io(std::os::unix::fs::chown(path, Some(7), None), Errno::PERM);
    refused_io(
        File::open(path).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH),
        Errno::PERM,
    );
    let flags = XattrFlags::empty();
    refused(rustix::fs::setxattr(path, "user.b", b"", flags), Errno::PERM);
    refused(rustix::fs::removexattr(path, "user.a"), Errno::PERM);
    refused_io(fs::hard_link(path, dir.join("link")), Errno::PERM);
    refused_io(fs::remove_file(path), Errno::PERM);
    refused_io(fs::rename(path, dir.join("moved")), Errno::PERM);
    refused_io(fs::rename(dir.join("free"), path), Errno::PERM);
}

/// Everything that changes a file is EPERM, for root too.
fn file_flags(place: &Place) {
    let dir = place.dir().join("flags");
    fs::create_dir(&dir).unwrap();
    if !there_is("chattr") || !is_mine(&dir) {
        return;
    }
    let _cleared = Cleared(dir.clone());
    fs::write(dir.join("free"), "free").unwrap();
    for (name, len) in [("inline", 100), ("chunks", 30_000), ("large", 300_000)] {
        let path = dir.join(name);
        fs::write(&path, pattern(1, len)).unwrap();
        rustix::fs::setxattr(&path, "user.a", b"1", XattrFlags::empty()).unwrap();
        chattr("+id", &path);
        for _ in 0..2 {
            assert_eq!(lsattr(&path), "id");
            refuses_all(&dir, &path);
            assert!(fs::read(&path).unwrap() == pattern(1, len));
            place.remount();
        }
        chattr("=", &path);
        open(&path, OFlags::empty()).unwrap().write_all_at(b"x", 0).unwrap();
        chattr("+a", &path);
        assert_eq!(lsattr(&path), "a");
        refused_io(open(&path, OFlags::empty()), Errno::PERM);
        refused_io(open(&path, OFlags::APPEND | OFlags::TRUNC), Errno::PERM);
        refused_io(fs::remove_file(&path), Errno::PERM);
        let permissions = fs::Permissions::from_mode(0o600);
        refused_io(fs::set_permissions(&path, permissions), Errno::PERM);
        let mut appended = open(&path, OFlags::APPEND).unwrap();
        appended.write_all(b"more").unwrap();
        appended.write_all_at(b" yet", 0).unwrap();
        refused_io(appended.set_len(1), Errno::PERM);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        refused(rustix::fs::fallocate(&appended, punch, 0, 10), Errno::PERM);
        // Others find out when it is taken off, here it is found out when something is written.
        if rustix::fs::fcntl_setfl(&appended, OFlags::empty()) != Err(Errno::PERM) {
            refused_io(appended.write_all_at(b"over", 0), Errno::PERM);
        }
        drop(appended);
        place.remount();
        let mut expected = pattern(1, len);
        expected[0] = b'x';
        expected.extend_from_slice(b"more yet");
        assert!(fs::read(&path).unwrap() == expected);
        chattr("-a", &path);
        fs::remove_file(&path).unwrap();
    }
}

/// Names come into what is append-only and do not go, and neither into nor out of what is immutable.
fn file_flags_of_directories(place: &Place) {
    let dir = place.dir().join("directories");
    fs::create_dir(&dir).unwrap();
    if !there_is("chattr") || !is_mine(&dir) {
        return;
    }
    let _cleared = Cleared(dir.clone());
    fs::write(dir.join("free"), "free").unwrap();
    let within = dir.join("within");
    fs::create_dir_all(within.join("inner")).unwrap();
    chattr("+a", &within);
    fs::write(within.join("made"), "x").unwrap();
    refused_io(fs::remove_file(within.join("made")), Errno::PERM);
    refused_io(fs::rename(within.join("made"), dir.join("made")), Errno::PERM);
    refused_io(fs::remove_dir(within.join("inner")), Errno::PERM);
    fs::rename(dir.join("free"), within.join("came")).unwrap();
    chattr("-a", &within);
    chattr("+i", &within);
    place.remount();
    refused_io(fs::write(within.join("more"), "x"), Errno::PERM);
    refused_io(fs::create_dir(within.join("more")), Errno::PERM);
    refused_io(symlink("t", within.join("more")), Errno::PERM);
    refused_io(fs::remove_file(within.join("made")), Errno::PERM);
    refused_io(fs::rename(&within, dir.join("elsewhere")), Errno::PERM);
    fs::write(within.join("made"), "what is in it may be written to").unwrap();
    assert_eq!(names(&within), ["came", "inner", "made"]);
}

/// Who owns a file may say that it is not to be dumped; the other flags are root's. The second pair of ioctls says the same.
fn file_flags_of_others(place: &Place) {
    let dir = place.dir().join("others");
    fs::create_dir(&dir).unwrap();
    if !there_is("chattr") || !is_mine(&dir) {
        return;
    }
    let _cleared = Cleared(dir.clone());
    chmod(&place.dir(), 0o755);
    chmod(&dir, 0o777);
    let path = dir.join("file");
    as_user(1000, &[1000], || fs::write(&path, "x").unwrap());
    let set = |uid, flags| {
        as_user(uid, &[uid], || rustix::fs::ioctl_setflags(File::open(&path).unwrap(), flags))
    };
    let get = || rustix::fs::ioctl_getflags(File::open(&path).unwrap()).unwrap();
    // What is set of its own accord there.
    let others = get();
    set(1000, others | IFlags::NODUMP).unwrap();
    refused(set(1001, others), Errno::PERM);
    for flags in [IFlags::IMMUTABLE, IFlags::APPEND] {
        refused(set(1000, others | flags), Errno::PERM);
    }
    assert_eq!(get(), others | IFlags::NODUMP);
    chattr("+i", &path);
    refused(set(1000, others), Errno::PERM);
    assert_eq!(lsattr(&path), "id");
    let words = r"
import fcntl, os, struct
GET, SET = 0x801c581f, 0x401c5820
fd = os.open('file', os.O_RDONLY)
def get(): return struct.unpack_from('I', fcntl.ioctl(fd, GET, bytes(28)))[0] & 0x98
def put(flags):
    was = fcntl.ioctl(fd, GET, bytes(28))
    fcntl.ioctl(fd, SET, struct.pack('I', flags) + was[4:])
assert get() == 0x88, get()
for flags in (0, 0x10, 0x80, 0x18, 0):
    put(flags)
    assert get() == flags, (flags, get())
dir = os.open('.', os.O_RDONLY)
fcntl.ioctl(dir, SET, struct.pack('I', 0x80) + bytes(24))
open('child', 'w').close()
";
    python(&dir, words);
    assert_eq!(lsattr(&path), "");
    if place.is_varve() && there_is("python3") {
        assert_eq!((lsattr(&dir).as_str(), lsattr(&dir.join("child")).as_str()), ("d", "d"));
        let file = File::open(&path).unwrap();
        refused(rustix::fs::ioctl_setflags(&file, IFlags::NOATIME), Errno::OPNOTSUPP);
    }
    symlink("file", dir.join("link")).unwrap();
}

/// What was mapped before a file became immutable keeps what was changed until then, and nothing after it.
fn file_flags_in_memory(place: &Place) {
    let dir = place.dir().join("memory");
    fs::create_dir(&dir).unwrap();
    if !there_is("chattr") || !there_is("python3") || !is_mine(&dir) {
        return;
    }
    let _cleared = Cleared(dir.clone());
    let path = dir.join("file");
    let map = r"
import mmap, os, subprocess, sys
fd = os.open('file', os.O_RDWR | APPEND)
m = mmap.mmap(fd, 8192)
";
    let change = r"
m[0:6] = b'before'
subprocess.check_call(['chattr', '+i', 'file'])
m[0:5] = b'after'
m[4096:4101] = b'after'
try: m.flush()
except OSError: pass
";
    fs::write(&path, pattern(1, 20_000)).unwrap();
    let program = map.replace("APPEND", "0") + change;
    // Elsewhere it is a signal that says so.
    let output =
        Command::new("python3").arg("-c").arg(&program).current_dir(&dir).output().unwrap();
    assert!(output.status.success() || !place.is_varve(), "{output:?}");
    let mut expected = pattern(1, 20_000);
    expected[..6].copy_from_slice(b"before");
    eventually("what was changed too late is forgotten", || fs::read(&path).unwrap() == expected);
    place.remount();
    assert!(fs::read(&path).unwrap() == expected);
    chattr("=", &path);
    // What is append-only changes in no other way either.
    for len in [20_000, 300_000] {
        fs::write(&path, pattern(2, len)).unwrap();
        chattr("+a", &path);
        let program = map.replace("APPEND", "os.O_APPEND") + "m[0:4] = b'over'\nm.flush()\n";
        let mapped =
            Command::new("python3").arg("-c").arg(&program).current_dir(&dir).output().unwrap();
        assert!(!mapped.status.success(), "{len}");
        eventually("it is forgotten", || fs::read(&path).unwrap() == pattern(2, len));
        place.remount();
        assert!(fs::read(&path).unwrap() == pattern(2, len));
        chattr("=", &path);
    }
    if !place.is_varve() {
        return;
    }
    let straight = r"
import errno, mmap, os, subprocess
fd = os.open('file', os.O_RDWR)
def busy():
    said = subprocess.run(['chattr', '+i', 'file'], stderr=subprocess.PIPE)
    return said.returncode != 0 and b'Text file busy' in said.stderr
assert busy(), 'open'
m = mmap.mmap(fd, 8192)
os.close(fd)
assert busy(), 'mapped'
m[0:4] = b'last'
m.close()
assert not busy(), 'closed'
";
    assert!(python(&dir, straight));
    assert_eq!(lsattr(&path), "i");
    assert_eq!(fs::read(&path).unwrap()[..4], b"last"[..]);
}

/// Flags go with transactions, snapshots and clones.
fn file_flags_in_views(place: &Place) {
    let dir = place.dir();
    if !place.is_varve() || !there_is("chattr") {
        return;
    }
    let _cleared = Cleared(dir.clone());
    fs::create_dir(dir.join("d")).unwrap();
    for (name, len) in [("small", 100), ("large", 300_000)] {
        fs::write(dir.join("d").join(name), pattern(1, len)).unwrap();
        chattr("+i", &dir.join("d").join(name));
    }
    let snapshot = snapshot(place, "with").join("d");
    let id = text(&run(varve().args(["txn", "begin"]).arg(&dir)));
    let within = Path::new(&id).join("d");
    for name in ["small", "large"] {
        assert_eq!(lsattr(&within.join(name)), "i");
        refused_io(fs::write(within.join(name), "x"), Errno::PERM);
        chattr("-i", &within.join(name));
        OpenOptions::new()
            .append(true)
            .open(within.join(name))
            .unwrap()
            .write_all(b"more")
            .unwrap();
        chattr("+a", &within.join(name));
        assert_eq!(lsattr(&dir.join("d").join(name)), "i");
    }
    run(varve().args(["txn", "commit"]).arg(&dir).arg(&id));
    run(varve().arg("clone").arg(dir.join("d")).arg(dir.join("copy")));
    for (name, len) in [("small", 100), ("large", 300_000)] {
        let committed = dir.join("d").join(name);
        assert_eq!(lsattr(&committed), "a");
        assert_eq!(lsattr(&snapshot.join(name)), "i");
        assert_eq!(lsattr(&dir.join("copy").join(name)), "a");
        assert_eq!(fs::read(&committed).unwrap().len(), len + 4);
        refused_io(fs::remove_file(&committed), Errno::PERM);
        refused_io(fs::remove_file(dir.join("copy").join(name)), Errno::PERM);
        refused_io(open(&committed, OFlags::empty()), Errno::PERM);
    }
    run(varve().args(["snapshot", "rollback"]).arg(&dir).arg("with"));
    assert_eq!(lsattr(&dir.join("d/large")), "i");
    assert!(fs::read(dir.join("d/large")).unwrap() == pattern(1, 300_000));
}
