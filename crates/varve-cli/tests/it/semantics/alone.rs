//! Mounts of root alone (`noallow_other`), where the kernel checks no permissions: what root may do is what root may do
//! anywhere, and nobody else does anything.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, StatxFlags, XattrFlags};
use rustix::io::Errno;

use super::acl::{ACCESS, DEFAULT, get, six, three};
use super::{Place, as_user, chmod, refused, refused_io};
use crate::harness::{Mount, can_mount, run, varve};
use varve_testkit::{Command, put_program, there_is};

/// A store mounted for root alone.
fn mounted(options: &str) -> Option<Mount> {
    let mount = Mount::new()?;
    mount.unmount();
    mount.mount_with(&format!("noallow_other{options}"));
    Some(mount)
}

/// What the table of mounts says of the mount on `dir`.
fn shown(dir: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let dir = format!(" {} ", dir.display());
    table.lines().find(|line| line.contains(&dir)).unwrap().to_owned()
}

/// What root may do with files of others that let nobody do anything.
fn rights_of_root(at: &Place) {
    let dir = at.dir().join("dir");
    let (file, program) = (dir.join("file"), dir.join("program"));
    fs::create_dir(&dir).unwrap();
    fs::write(&file, "x").unwrap();
    put_program("/bin/true", &program);
    for path in [&file, &program, &dir] {
        chmod(path, 0);
        chown(path, Some(1000), Some(1000)).unwrap();
    }
    for path in [&file, &dir] {
        rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK).unwrap();
    }
    rustix::fs::access(&dir, Access::EXEC_OK).unwrap();
    refused(rustix::fs::access(&file, Access::EXEC_OK), Errno::ACCESS);
    refused(rustix::fs::access(dir.join("absent"), Access::EXISTS), Errno::NOENT);
    refused(rustix::fs::accessat(CWD, &program, Access::EXEC_OK, AtFlags::EACCESS), Errno::ACCESS);
    refused_io(Command::new(&program).status(), Errno::ACCESS);
    assert!(Command::new("/bin/true").current_dir(&dir).status().unwrap().success());
    OpenOptions::new().read(true).write(true).open(&file).unwrap();
    for (mode, runs) in [(0o100, true), (0o600, false), (0o001, true), (0o644, false)] {
        chmod(&program, mode);
        assert_eq!(rustix::fs::access(&program, Access::EXEC_OK).is_ok(), runs, "{mode:o}");
        assert_eq!(Command::new(&program).status().is_ok(), runs, "{mode:o}");
    }
    // Set-id bits stay with root, and go with a change of owner. Not of what was executed: whoever looks at that process in /proc,
    // as ps(1) does, may keep the file from being written to after its end.
    let set_id = dir.join("set-id");
    fs::write(&set_id, "some").unwrap();
    chmod(&set_id, 0o6755);
    fs::write(&set_id, "other").unwrap();
    assert_eq!(fs::metadata(&set_id).unwrap().mode() & 0o7777, 0o6755);
    chown(&set_id, Some(5), None).unwrap();
    assert_eq!(fs::metadata(&set_id).unwrap().mode() & 0o7777, 0o755);
    chmod(&dir, 0o3770);
    chown(&dir, Some(7), Some(7)).unwrap();
    fs::create_dir(dir.join("below")).unwrap();
    let below = fs::metadata(dir.join("below")).unwrap();
    assert_eq!((below.gid(), below.mode() & 0o7000), (7, 0o2000));
    fs::rename(&file, dir.join("renamed")).unwrap();
    fs::remove_file(dir.join("renamed")).unwrap();
}

#[test]
fn root_alone() {
    if !can_mount() {
        return;
    }
    rights_of_root(&Place::Plain(tempfile::tempdir().unwrap()));
    let Some(mount) = mounted("") else { return };
    let mount = Place::Mount(mount);
    rights_of_root(&mount);
    chmod(mount.dir().parent().unwrap(), 0o755);
    let stranger = as_user(1000, &[1000], || fs::metadata(mount.dir()));
    refused_io(stranger, Errno::ACCESS);
    let group = as_user(0, &[1000], || fs::metadata(mount.dir()));
    refused_io(group, Errno::ACCESS);
}

#[test]
fn root_alone_is_chosen() {
    let Some(mount) = mounted("") else { return };
    let is_checked = || shown(&mount.path()).contains("default_permissions");
    assert!(!is_checked());
    let mut session = [0; 256];
    let len = rustix::fs::getxattr(mount.path(), "user.varve.session", &mut session[..]).unwrap();
    assert!(String::from_utf8_lossy(&session[..len]).contains("\"root_alone\":true"));
    mount.unmount();
    for options in ["allow_other", "noallow_other,default_permissions", ""] {
        mount.mount_with(options);
        assert!(is_checked(), "{options}");
        mount.unmount();
    }
    // Root without what makes root of it, as in some containers.
    for right in ["dac_override", "fowner"] {
        let mut command = Command::new("setpriv");
        command.arg(format!("--bounding-set=-{right}")).arg(varve().get_program());
        run(command.args(["mount", "-o", "noallow_other"]).arg(mount.store()).arg(mount.path()));
        assert!(is_checked(), "without {right}");
        mount.unmount();
    }
    mount.mount();
}

#[test]
fn root_alone_keeps_lists() {
    let Some(mount) = mounted("") else { return };
    let (program, dir) = (mount.path().join("program"), mount.path().join("dir"));
    put_program("/bin/true", &program);
    chmod(&program, 0o755);
    assert!(Command::new(&program).status().unwrap().success());
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::setxattr(path, name, value, XattrFlags::empty()).unwrap();
    };
    let mode = || {
        let found = rustix::fs::statx(CWD, &program, AtFlags::empty(), StatxFlags::MODE).unwrap();
        u32::from(found.stx_mode) & 0o7777
    };
    // A list sets the mode, which the kernel knows at once.
    set(&program, ACCESS, &six([6, 6, 4, 2, 6, 0]));
    assert_eq!(mode(), 0o660);
    refused_io(Command::new(&program).status(), Errno::ACCESS);
    set(&program, ACCESS, &three([7, 4, 0]));
    assert_eq!(mode(), 0o740);
    assert!(Command::new(&program).status().unwrap().success());
    set(&program, ACCESS, &six([6, 6, 4, 2, 6, 0]));
    assert_eq!(get(&program, ACCESS), Ok(six([6, 6, 4, 2, 6, 0])));
    chmod(&program, 0o640);
    assert_eq!(get(&program, ACCESS), Ok(six([6, 6, 4, 2, 4, 0])));
    fs::create_dir(&dir).unwrap();
    set(&dir, DEFAULT, &six([7, 7, 5, 4, 7, 1]));
    fs::write(dir.join("file"), "x").unwrap();
    assert_eq!(get(&dir.join("file"), ACCESS), Ok(six([6, 7, 5, 4, 6, 0])));
    rustix::fs::removexattr(&dir, DEFAULT).unwrap();
    refused(get(&dir, DEFAULT), Errno::NODATA);
    // Where permissions are checked they count.
    mount.remount();
    for path in [mount.path().parent().unwrap(), &mount.path()] {
        chmod(path, 0o755);
    }
    assert!(as_user(1000, &[77], || fs::read(&program).is_ok()));
    assert!(!as_user(1001, &[77], || fs::read(&program).is_ok()));
    mount.unmount();
    mount.mount_with("noallow_other,noacl");
    refused(get(&program, ACCESS), Errno::OPNOTSUPP);
}

/// Whoever acts as somebody else (setfsuid) gets in, and would do all that root may.
const ACTING: &str = r#"
import ctypes, errno, os, sys
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None)
def refused(work):
    try:
        work()
    except OSError as error:
        assert error.errno in (errno.EACCES, errno.EPERM), error
    else:
        raise AssertionError("not refused")
opened = os.open("open", os.O_RDWR | os.O_CREAT)
os.write(opened, b"bytes")
listed = os.open(".", os.O_RDONLY)
libc.setfsuid(1000)
assert os.pread(opened, 9, 0) == b"bytes" and os.pwrite(opened, b"more!", 0) == 5
os.fsync(opened)
os.ftruncate(opened, 4)
assert os.fstat(opened).st_size == 4 and os.listdir(listed) == ["open"]
for work in [
    lambda: os.open("open", os.O_RDONLY),
    lambda: os.open("made", os.O_RDWR | os.O_CREAT),
    lambda: os.stat("unknown"),
    lambda: os.listdir("."),
    lambda: os.mkdir("dir"),
    lambda: os.unlink("open"),
    lambda: os.rename("open", "moved"),
    lambda: os.link("open", "linked"),
    lambda: os.symlink("open", "link"),
    lambda: os.chmod("open", 0o777),
    lambda: os.fchmod(opened, 0o777),
    lambda: os.truncate("open", 0),
    lambda: os.setxattr("open", "user.name", b"value"),
]:
    refused(work)
os.close(opened)
libc.setfsuid(0)
assert os.listdir(".") == ["open"]
os.close(os.open("second", os.O_RDWR | os.O_CREAT))
os.setresuid(1000, 1000, 1000)
# Without fstat(2), which the kernel lets nobody else make.
names = ctypes.create_string_buffer(4096)
os.lseek(listed, 0, os.SEEK_SET)
assert libc.getdents64(listed, names, 4096) > 0 and b"second" in names.raw
"#;

#[test]
fn root_alone_is_no_other() {
    let Some(mount) = mounted(",transport=dev") else { return };
    if !there_is("python3") {
        return;
    }
    let act = || {
        run(Command::new("python3").args(["-c", ACTING]).arg(mount.path()));
        for made in ["open", "second"] {
            fs::remove_file(mount.path().join(made)).unwrap();
        }
    };
    act();
    // The next process knows what mount it is.
    run(varve().arg("upgrade").arg(mount.path()));
    act();
    mount.unmount();
    mount.mount_with("noallow_other");
    act();
}

/// Views come when somebody first comes by their place, whatever is asked of it first, and by how many at once.
#[test]
fn root_alone_meets_views() {
    let Some(mount) = mounted("") else { return };
    fs::create_dir(mount.path().join("dir")).unwrap();
    fs::write(mount.path().join("dir/file"), "bytes").unwrap();
    let firsts: [fn(&Path); 8] = [
        |view| assert_eq!(fs::read_dir(view).unwrap().map(Result::unwrap).count(), 1),
        |view| assert_eq!(fs::read(view.join("dir/file")).unwrap(), b"bytes"),
        |view| assert!(fs::metadata(view.join("dir")).unwrap().is_dir()),
        |view| fs::write(view.join("made"), "x").unwrap(),
        |view| fs::create_dir(view.join("made")).unwrap(),
        |view| fs::rename(view.join("dir"), view.join("moved")).unwrap(),
        |view| {
            let here = Command::new("/bin/ls").current_dir(view).output().unwrap();
            assert_eq!(here.stdout, b"dir\n");
        },
        |view| chmod(view, 0o700),
    ];
    for first in firsts {
        let begun = run(varve().args(["txn", "begin"]).arg(mount.path()));
        let view = PathBuf::from(String::from_utf8(begun.stdout).unwrap().trim_end());
        first(&view);
        assert!(!shown(&view).contains("default_permissions"));
        run(varve().args(["txn", "abort"]).arg(mount.path()).arg(view.file_name().unwrap()));
    }
    for round in 0..4 {
        let name = format!("seen-{round}");
        run(varve().args(["snapshot", "create"]).arg(mount.path()).arg(&name));
        let view = mount.path().join(".varve/snapshots").join(name);
        std::thread::scope(|scope| {
            for at in 0..8 {
                let view = &view;
                scope.spawn(move || match at % 2 {
                    0 => assert_eq!(fs::read(view.join("dir/file")).unwrap(), b"bytes"),
                    _ => assert_eq!(fs::read_dir(view).unwrap().map(Result::unwrap).count(), 1),
                });
            }
        });
    }
}
