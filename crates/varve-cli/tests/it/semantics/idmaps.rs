//! Mounts whose user and group ids are mapped (mount_setattr(2), idmapped mounts).

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use varve_testkit::{Command, skipped, there_is};

use super::{Place, as_user, chmod, mode, pattern, refused_io, semantics};
use crate::harness::python;

semantics!(mapped_ids);

/// Mounts `base` on `at` too, where the ids 0 to 9 are 1000 to 1009. The call has no wrapper elsewhere, and a user namespace takes
/// a process.
const MAP: &str = r"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result, what):
    if result < 0:
        print(what, os.strerror(ctypes.get_errno()))
        sys.exit(3)
    return result
begun, begins = os.pipe()
ended, ends = os.pipe()
child = os.fork()
if child == 0:
    check(libc.unshare(0x10000000), 'unshare')
    os.write(begins, b'x')
    os.read(ended, 1)
    os._exit(0)
os.read(begun, 1)
for ids in ('uid_map', 'gid_map'):
    with open('/proc/%d/%s' % (child, ids), 'w') as file: file.write('0 1000 10\n')
namespace = os.open('/proc/%d/ns/user' % child, os.O_RDONLY)
os.write(ends, b'x')
os.waitpid(child, 0)
class Attr(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ('set', 'clear', 'propagation', 'namespace')]
base, at = (os.fsencode(path) for path in sys.argv[1:])
tree = check(libc.syscall(428, -100, base, 1), 'open_tree')
attr = Attr(1 << 20, 0, 0, namespace)
check(libc.syscall(442, tree, b'', 0x1000, ctypes.byref(attr), ctypes.sizeof(attr)), 'mount_setattr')
check(libc.syscall(429, tree, b'', -100, at, 4), 'move_mount')
";

struct Mapped(PathBuf);

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// `dir` with mapped ids, on a directory of its own; `None`, which is said, where there is none.
fn mapped(dir: &Path, at: &Path) -> Option<Mapped> {
    if !there_is("python3") {
        return None;
    }
    fs::create_dir(at).unwrap();
    let output = Command::new("python3").arg("-c").arg(MAP).arg(dir).arg(at).output().unwrap();
    match output.status.code() {
        Some(0) => Some(Mapped(at.to_path_buf())),
        Some(3) => {
            let why = String::from_utf8(output.stdout).unwrap();
            assert!(why.contains("Invalid argument") || why.contains("not implemented"), "{why}");
            skipped("this machine maps no ids of mounts of this file system");
            None
        }
        _ => panic!("{output:?}"),
    }
}

fn owner(path: &Path) -> (u32, u32) {
    let meta = fs::symlink_metadata(path).unwrap();
    (meta.uid(), meta.gid())
}

/// Where ids are mapped the kernel says of few requests who makes them.
fn mapped_ids(place: &Place) {
    chmod(&place.dir(), 0o755);
    let base = place.dir().join("base");
    fs::create_dir(&base).unwrap();
    chmod(&base, 0o777);
    let elsewhere = tempfile::tempdir().unwrap();
    chmod(elsewhere.path(), 0o755);
    let at = elsewhere.path().join("mapped");
    let Some(_mapped) = mapped(&base, &at) else { return };
    // What is made belongs to who makes it, on either side.
    as_user(1003, &[1004], || {
        fs::write(at.join("file"), "x").unwrap();
        fs::create_dir(at.join("dir")).unwrap();
        std::os::unix::fs::symlink("file", at.join("link")).unwrap();
    });
    for name in ["file", "dir", "link"] {
        assert_eq!(owner(&base.join(name)), (3, 4), "{name}");
        assert_eq!(owner(&at.join(name)), (1003, 1004), "{name}");
    }
    refused_io(as_user(77, &[77], || fs::write(at.join("nobody"), "x")), Errno::OVERFLOW);
    std::os::unix::fs::chown(at.join("file"), Some(1005), Some(1006)).unwrap();
    assert_eq!(owner(&base.join("file")), (5, 6));
    refused_io(std::os::unix::fs::chown(at.join("file"), Some(5), None), Errno::OVERFLOW);
    // Rights follow the mapped ids.
    chmod(&base.join("file"), 0o600);
    as_user(1005, &[1006], || fs::write(at.join("file"), "mine").unwrap());
    refused_io(as_user(5, &[6], || fs::read(at.join("file"))), Errno::ACCESS);
    as_user(5, &[6], || assert_eq!(fs::read(base.join("file")).unwrap(), b"mine"));
    rights_of_others(&base, &at);
    set_group_id(place.is_varve(), &base, &at);
}

/// The group of a directory goes on, and the bit with it, as the map has it. Where a file is changed the kernel leaves the bit to the daemon,
/// and says neither who asks nor by which mount: the group counts without the map.
fn set_group_id(is_varve: bool, base: &Path, at: &Path) {
    fs::create_dir(base.join("shared")).unwrap();
    std::os::unix::fs::chown(base.join("shared"), Some(0), Some(4)).unwrap();
    chmod(&base.join("shared"), 0o2777);
    let (there, here) = (at.join("shared"), base.join("shared"));
    let make = |name: &str, groups: &[u32]| {
        as_user(1007, groups, || {
            fs::write(there.join(name), "x").unwrap();
            fs::create_dir(there.join(format!("{name} dir"))).unwrap();
            chmod(&there.join(name), 0o2666);
        });
        assert_eq!(owner(&here.join(name)), (7, 4), "{name}");
        let dir = here.join(format!("{name} dir"));
        assert_eq!((owner(&dir), mode(&dir) & 0o2000), ((7, 4), 0o2000), "{name}");
    };
    make("stranger's", &[1007]);
    assert_eq!(mode(&here.join("stranger's")), 0o666, "chmod by who is not in the group");
    make("member's", &[1004]);
    assert_eq!(mode(&here.join("member's")), 0o2666);
    let write = |dir: &Path, (uid, groups): (u32, &[u32])| {
        chmod(&here.join("member's"), 0o2666);
        as_user(uid, groups, || {
            let mut file = fs::OpenOptions::new().append(true).open(dir.join("member's")).unwrap();
            std::io::Write::write_all(&mut file, b"more").unwrap();
        });
        mode(&here.join("member's"))
    };
    assert_eq!(write(&here, (7, &[4])), 0o2666);
    assert_eq!(write(&here, (7, &[5])), 0o666);
    assert_eq!(write(&there, (1007, &[1007])), 0o666);
    // By the map the former is a member, and the latter is not; the daemon finds it the other way round.
    let (member, lookalike) = if is_varve { (0o666, 0o2666) } else { (0o2666, 0o666) };
    assert_eq!(write(&there, (1007, &[1004])), member);
    assert_eq!(write(&there, (1007, &[4])), lookalike);
    as_user(1007, &[4], || chmod(&there.join("member's"), 0o2666));
    assert_eq!(mode(&here.join("member's")), 0o666, "chmod by a lookalike");
}

/// What depends on who changes a file: set-id bits, and attributes that are root's.
fn rights_of_others(base: &Path, at: &Path) {
    for len in [100, 300_000] {
        let (path, through) = (base.join("program"), at.join("program"));
        fs::write(&path, pattern(1, len)).unwrap();
        let begin = |bits: u32| {
            fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
        };
        for (dir, uid) in [(&through, 1007), (&path, 7)] {
            begin(0o6777);
            let append = || fs::OpenOptions::new().append(true).open(dir);
            as_user(0, &[0], || append().unwrap().set_len(len as u64).unwrap());
            assert_eq!(mode(&path), 0o6777, "root of {len} bytes by {uid}");
            as_user(uid, &[uid], || {
                std::io::Write::write_all(&mut append().unwrap(), b"more").unwrap();
            });
            assert_eq!(mode(&path), 0o777, "{uid} of {len} bytes");
            begin(0o6777);
            as_user(uid, &[uid], || {
                let file = append().unwrap();
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 10).unwrap();
            });
            assert_eq!(mode(&path), 0o777, "{uid} reserves room");
        }
        fs::remove_file(&path).unwrap();
    }
    fs::write(base.join("tagged"), "x").unwrap();
    chmod(&base.join("tagged"), 0o666);
    let words = r"
import os
os.setxattr('tagged', 'user.a', b'1')
os.setxattr('tagged', 'trusted.b', b'2')
assert sorted(os.listxattr('tagged')) == ['trusted.b', 'user.a'], os.listxattr('tagged')
os.setgroups([])
os.setgid(1007)
os.setuid(1007)
assert os.listxattr('tagged') == ['user.a'], os.listxattr('tagged')
";
    for dir in [base, at] {
        python(dir, words);
    }
}
