//! Handles of files (name_to_handle_at(2), open_by_handle_at(2)), as servers of NFS keep them.

use std::fs;
use std::path::Path;

use rustix::mount::MountFlags;
use varve_testkit::there_is;

use super::views::{begin, commit, snapshot};
use super::{Place, pattern, semantics};
use crate::harness::python;

semantics!(file_handles, file_handles_of_large_trees, file_handles_in_views);

/// What the programs below have in common: handles are kept by name in a file. The calls have no wrapper elsewhere.
const WORDS: &str = r#"
import ctypes, errno, hashlib, json, os, stat, sys
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint32), ("type", ctypes.c_int32), ("data", ctypes.c_ubyte * 128)]
KEPT = "../handles.json"
def take(name):
    handle, mount = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(name), ctypes.byref(handle), ctypes.byref(mount), 0) != 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at", name)
    return [handle.type, bytes(handle.data[:handle.bytes]).hex()]
def open_by(kept, flags=os.O_RDONLY):
    data = bytes.fromhex(kept[1])
    handle = Handle(bytes=len(data), type=kept[0])
    ctypes.memmove(handle.data, data, len(data))
    place = os.open(".", os.O_RDONLY)
    fd = libc.open_by_handle_at(place, ctypes.byref(handle), flags)
    os.close(place)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return fd
def show(fd):
    s = os.fstat(fd)
    what = [s.st_ino, s.st_mode, s.st_nlink, s.st_size]
    if stat.S_ISREG(s.st_mode):
        what.append(hashlib.sha256(os.pread(fd, 1 << 22, 0)).hexdigest())
    return what
def opened(kept, kind):
    return open_by(kept, os.O_PATH if kind not in (stat.S_IFREG, stat.S_IFDIR) else os.O_RDONLY)
def keep(names):
    json.dump({name: [os.lstat(name).st_mode, take(name)] for name in names}, open(KEPT, "w"))
def check(now, gone=()):
    kept = json.load(open(KEPT))
    fds = {}
    # Directories last, and names after all handles: to find these tells the kernel of the others.
    for name, (mode, handle) in sorted(kept.items(), key=lambda one: stat.S_ISDIR(one[1][0])):
        try:
            fds[name] = opened(handle, stat.S_IFMT(mode))
        except OSError as error:
            if name in gone and error.errno == errno.ESTALE: continue
            raise SystemExit("%s: %s" % (name, error))
        if name in gone: raise SystemExit(name + " is gone and was opened")
    for name, fd in fds.items():
        path, is_special = now.get(name, name), stat.S_IFMT(kept[name][0]) not in (stat.S_IFREG, stat.S_IFDIR)
        named = os.open(path, os.O_PATH | os.O_NOFOLLOW if is_special else os.O_RDONLY)
        assert show(fd) == show(named), (name, show(fd), show(named))
        if stat.S_ISDIR(kept[name][0]):
            found = os.readlink("/proc/self/fd/%d" % fd)
            assert found == os.path.realpath(path), (found, path)
            assert sorted(os.listdir(fd)) == sorted(os.listdir(path))
        os.close(named)
        os.close(fd)
"#;

/// Has the kernel forget all that nobody uses of what is mounted on `dir`.
fn forget(place: &Place, dir: &Path, flags: MountFlags) {
    if place.is_varve() {
        rustix::mount::mount_remount(dir, flags, c"").unwrap();
    }
}

fn words(dir: &Path, program: &str) {
    assert!(python(dir, &format!("{WORDS}\n{program}")));
}

/// Files that have names were ESTALE once the kernel had forgotten them: a file in the row of its only name could be found by that
/// name alone.
fn file_handles(place: &Place) {
    if !there_is("python3") {
        return;
    }
    let dir = place.dir().join("tree");
    let forget = || forget(place, &place.dir(), MountFlags::empty());
    fs::create_dir_all(dir.join("a/b/c")).unwrap();
    fs::create_dir(dir.join("d")).unwrap();
    for (name, len) in [("empty", 0), ("inline", 100), ("chunks", 30_000), ("large", 300_000)] {
        for at in ["", "a/b/"] {
            fs::write(dir.join(format!("{at}{name}")), pattern(1 + len as u64, len)).unwrap();
        }
    }
    for at in ["", "a/b/"] {
        for name in ["moved", "replaced", "replacing", "removed", "two", "gone-dir"] {
            fs::write(dir.join(format!("{at}{name}")), name).unwrap();
        }
    }
    fs::remove_file(dir.join("gone-dir")).unwrap();
    fs::create_dir(dir.join("gone-dir")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.join("a/link")).unwrap();
    fs::hard_link(dir.join("two"), dir.join("a/other")).unwrap();
    words(
        &dir,
        "os.mkfifo('a/b/fifo')\n\
         keep([os.path.join(at, name) for at, dirs, files in os.walk('.') for name in dirs + files])\n\
         check({})",
    );
    let check = |program: &str| {
        forget();
        words(&dir, program);
        place.remount();
        words(&dir, program);
    };
    check("check({})");
    let rename = |from: &str, to: &str| fs::rename(dir.join(from), dir.join(to)).unwrap();
    rename("moved", "d/elsewhere");
    rename("a/b/moved", "a/b/renamed");
    rename("replacing", "replaced");
    rename("a/b/replacing", "a/b/replaced");
    rename("a/b/c", "d/c");
    rename("a", "d/a");
    fs::remove_file(dir.join("removed")).unwrap();
    fs::remove_file(dir.join("d/a/b/removed")).unwrap();
    fs::remove_file(dir.join("two")).unwrap();
    fs::remove_dir(dir.join("gone-dir")).unwrap();
    check(
        "now = {'./moved': 'd/elsewhere', './a/b/moved': 'd/a/b/renamed', './replacing': 'replaced',\n\
         \x20      './a/b/replacing': 'd/a/b/replaced', './a/b/c': 'd/c', './two': 'd/a/other'}\n\
         now = {**{name: 'd' + name[1:] for name in json.load(open(KEPT)) if name.startswith('./a')}, **now}\n\
         now['./a'] = 'd/a'\n\
         gone = ['./removed', './a/b/removed', './gone-dir', './replaced', './a/b/replaced']\n\
         check(now, gone)",
    );
}

/// Files that one search finds and that several do.
fn file_handles_of_large_trees(place: &Place) {
    if !there_is("python3") {
        return;
    }
    let dir = place.dir().join("tree");
    fs::create_dir(&dir).unwrap();
    words(
        &dir,
        "for n in range(40):\n\
         \x20   os.mkdir('d%d' % n)\n\
         \x20   for m in range(50):\n\
         \x20       with open('d%d/f%d' % (n, m), 'w') as file: file.write('%d %d' % (n, m))\n\
         keep([os.path.join(at, name) for at, dirs, files in os.walk('.') for name in dirs + files])",
    );
    place.remount();
    words(&dir, "for n in range(0, 40, 3): os.rename('d%d/f1' % n, 'd%d/new' % ((n + 1) % 40))");
    let check = "check({'./d%d/f1' % n: 'd%d/new' % ((n + 1) % 40) for n in range(0, 40, 3)})";
    words(&dir, check);
    forget(place, &place.dir(), MountFlags::empty());
    words(&dir, check);
}

fn file_handles_in_views(place: &Place) {
    if !place.is_varve() || !there_is("python3") {
        return;
    }
    let dir = place.dir();
    fs::create_dir(dir.join("sub")).unwrap();
    for (name, len) in [("small", 100), ("sub/chunks", 5000), ("sub/large", 300_000)] {
        fs::write(dir.join(name), pattern(1, len)).unwrap();
    }
    let snapshot = snapshot(place, "monday");
    let transaction = begin(&dir);
    fs::write(transaction.join("sub/new"), "new").unwrap();
    fs::rename(transaction.join("small"), transaction.join("sub/moved")).unwrap();
    for (view, read_only) in [(&snapshot, true), (&transaction, false)] {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, read_only);
        let kept = format!("KEPT = {:?}\n", dir.join("../kept.json"));
        let keep = "keep([os.path.join(at, name) for at, dirs, files in os.walk('.') for name in dirs + files])";
        words(view, &format!("{kept}{keep}"));
        if read_only {
            // What the main view has become changes nothing there.
            fs::remove_file(dir.join("sub/chunks")).unwrap();
        }
        forget(place, view, flags);
        words(view, &format!("{kept}check({{}})"));
    }
    commit(place, &transaction);
    let kept = format!("KEPT = {:?}\n", dir.join("../kept.json"));
    forget(place, &dir, MountFlags::empty());
    // Inodes keep their numbers.
    words(&dir, &format!("{kept}check({{'.': '.'}}, ['./sub/chunks'])"));
}
