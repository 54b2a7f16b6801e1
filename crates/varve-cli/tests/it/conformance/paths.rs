//! What every call that takes a path makes of paths that lead nowhere.

use std::path::{Path, PathBuf};

use rustix::fs::{
    Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, StatxFlags, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::{Errno, Result};

use super::{as_user, open, prepare};
use crate::semantics::{Place, semantics};

semantics!(paths_that_lead_nowhere, paths_without_the_right_to_search);

/// What a call needs of its path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    /// Something there; symbolic links at the end are followed.
    Followed,
    /// Something there; a symbolic link at the end is itself meant.
    Itself,
    /// A directory there.
    Directory,
    /// Nothing there.
    Nothing,
}

/// A call on a path; the second one is any file beside it.
type Call = (&'static str, Wants, fn(&Path, &Path) -> Result<()>);

const MODE: Mode = Mode::RWXU;

fn times() -> Timestamps {
    let time = Timespec { tv_sec: 1, tv_nsec: 2 };
    Timestamps { last_access: time, last_modification: time }
}

const CALLS: &[Call] = &[
    ("stat", Wants::Followed, |path, _| rustix::fs::stat(path).map(drop)),
    ("lstat", Wants::Itself, |path, _| rustix::fs::lstat(path).map(drop)),
    ("statx", Wants::Followed, |path, _| {
        rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::ALL).map(drop)
    }),
    ("statfs", Wants::Followed, |path, _| rustix::fs::statfs(path).map(drop)),
    ("statvfs", Wants::Followed, |path, _| rustix::fs::statvfs(path).map(drop)),
    ("access", Wants::Followed, |path, _| rustix::fs::access(path, Access::EXISTS)),
    ("open O_RDONLY", Wants::Followed, |path, _| {
        open(path, OFlags::RDONLY | OFlags::NONBLOCK).map(drop)
    }),
    ("open O_PATH", Wants::Followed, |path, _| open(path, OFlags::PATH).map(drop)),
    ("open O_PATH|O_NOFOLLOW", Wants::Itself, |path, _| {
        open(path, OFlags::PATH | OFlags::NOFOLLOW).map(drop)
    }),
    ("open O_DIRECTORY", Wants::Directory, |path, _| {
        open(path, OFlags::RDONLY | OFlags::DIRECTORY).map(drop)
    }),
    ("open O_TMPFILE", Wants::Directory, |path, _| {
        open(path, OFlags::TMPFILE | OFlags::RDWR).map(drop)
    }),
    ("open O_CREAT|O_EXCL", Wants::Nothing, |path, _| {
        open(path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY).map(drop)
    }),
    ("mkdir", Wants::Nothing, |path, _| rustix::fs::mkdir(path, MODE)),
    ("mknod file", Wants::Nothing, |path, _| {
        rustix::fs::mknodat(CWD, path, FileType::RegularFile, MODE, 0)
    }),
    ("mknod fifo", Wants::Nothing, |path, _| {
        rustix::fs::mknodat(CWD, path, FileType::Fifo, MODE, 0)
    }),
    ("symlink", Wants::Nothing, |path, _| rustix::fs::symlink("target", path)),
    ("link from", Wants::Itself, |path, other| {
        rustix::fs::link(path, other.with_file_name("made"))
    }),
    ("link to", Wants::Nothing, |path, other| rustix::fs::link(other, path)),
    ("rename from", Wants::Itself, |path, other| {
        rustix::fs::rename(path, other.with_file_name("made"))
    }),
    ("rename to", Wants::Nothing, |path, other| rustix::fs::rename(other, path)),
    ("unlink", Wants::Itself, |path, _| rustix::fs::unlink(path)),
    ("rmdir", Wants::Itself, |path, _| rustix::fs::rmdir(path)),
    ("readlink", Wants::Itself, |path, _| rustix::fs::readlink(path, Vec::new()).map(drop)),
    ("chmod", Wants::Followed, |path, _| rustix::fs::chmod(path, MODE)),
    ("chown", Wants::Followed, |path, _| rustix::fs::chown(path, Some(Uid::ROOT), Some(Gid::ROOT))),
    ("lchown", Wants::Itself, |path, _| {
        let (uid, gid) = (Some(Uid::ROOT), Some(Gid::ROOT));
        rustix::fs::chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
    }),
    ("utimensat", Wants::Followed, |path, _| {
        rustix::fs::utimensat(CWD, path, &times(), AtFlags::empty())
    }),
    ("utimensat of a link", Wants::Itself, |path, _| {
        rustix::fs::utimensat(CWD, path, &times(), AtFlags::SYMLINK_NOFOLLOW)
    }),
    ("getxattr", Wants::Followed, |path, _| {
        no_data(rustix::fs::getxattr(path, "user.x", &mut [0; 9]))
    }),
    ("lgetxattr", Wants::Itself, |path, _| {
        no_data(rustix::fs::lgetxattr(path, "trusted.x", &mut [0; 9]))
    }),
    ("listxattr", Wants::Followed, |path, _| {
        rustix::fs::listxattr(path, &mut [0_u8; 999]).map(drop)
    }),
    ("setxattr", Wants::Followed, |path, _| {
        rustix::fs::setxattr(path, "trusted.x", b"1", XattrFlags::empty())
    }),
    ("removexattr", Wants::Followed, |path, _| no_data(rustix::fs::removexattr(path, "trusted.y"))),
];

/// An attribute that is not there is no error of the path.
fn no_data<T>(result: Result<T>) -> Result<()> {
    match result {
        Ok(_) | Err(Errno::NODATA) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Paths that fail before their last component, whatever the call.
fn nowhere(dir: &Path) -> Vec<(&'static str, PathBuf, Errno)> {
    let long = "x".repeat(256);
    vec![
        ("absent/x", dir.join("absent/x"), Errno::NOENT),
        ("dangling/x", dir.join("dangling/x"), Errno::NOENT),
        ("file/x", dir.join("file/x"), Errno::NOTDIR),
        ("link/x", dir.join("link/x"), Errno::NOTDIR),
        ("fifo/x", dir.join("fifo/x"), Errno::NOTDIR),
        ("file/../x", dir.join("file/../x"), Errno::NOTDIR),
        ("loop/x", dir.join("loop/x"), Errno::LOOP),
        ("a name of 256 bytes", dir.join(&long), Errno::NAMETOOLONG),
        ("a directory's name of 256 bytes", dir.join(&long).join("x"), Errno::NAMETOOLONG),
        ("a path of 4097 bytes", dir.join("dir/../".repeat(700)).join("x"), Errno::NAMETOOLONG),
        ("the empty path", PathBuf::new(), Errno::NOENT),
    ]
}

/// What the last component must make of a call.
fn last(wants: Wants, name: &str) -> Option<Errno> {
    match (wants, name) {
        (Wants::Nothing, "absent") => None,
        (Wants::Nothing, _) => Some(Errno::EXIST),
        (_, "absent") => Some(Errno::NOENT),
        (Wants::Followed | Wants::Directory, "dangling") => Some(Errno::NOENT),
        (Wants::Followed | Wants::Directory, "loop") => Some(Errno::LOOP),
        (Wants::Directory, _) => Some(Errno::NOTDIR),
        (_, "file/" | "fifo/" | "link/") => Some(Errno::NOTDIR),
        _ => None,
    }
}

fn paths_that_lead_nowhere(place: &Place) {
    let mut wrong = Vec::new();
    let mut cases = 0;
    for (at, (call, wants, run)) in CALLS.iter().enumerate() {
        let dir = place.dir().join(format!("call-{at}"));
        prepare(&dir);
        let other = dir.join("file");
        let mut expect = |name: &str, path: &Path, wanted: Option<Errno>| {
            cases += 1;
            let found = run(path, &other).err();
            if found != wanted {
                wrong.push(format!("{call} of {name}: {found:?}, wanted {wanted:?}"));
            }
        };
        for (name, path, errno) in nowhere(&dir) {
            expect(name, &path, Some(errno));
        }
        for name in ["absent", "dangling", "loop", "file", "fifo/", "file/", "link/"] {
            let wanted = last(*wants, name);
            // What succeeds is for the tables of the calls.
            let is_made = *wants == Wants::Nothing && name.ends_with('/');
            let replaces = *call == "rename to" && name != "absent";
            if wanted.is_some() && !is_made && !replaces {
                expect(name, &dir.join(name), wanted);
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {cases} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(cases > 450, "{cases}");
}

fn paths_without_the_right_to_search(place: &Place) {
    let mut wrong = Vec::new();
    for (at, (call, _, run)) in CALLS.iter().enumerate() {
        let dir = place.dir().join(format!("closed-{at}"));
        prepare(&dir);
        rustix::fs::chmod(&dir, Mode::from_raw_mode(0o666)).unwrap();
        for name in ["file", "absent", "dir", "link"] {
            let path = dir.join(name);
            let other = place.dir().join("none");
            let found = as_user(1000, 1000, &[], || run(&path, &other)).err();
            // A second path that does not exist is found first.
            let is_second = matches!(*call, "link to" | "rename to");
            let wanted = if is_second { Errno::NOENT } else { Errno::ACCESS };
            if found != Some(wanted) && !(is_second && found == Some(Errno::ACCESS)) {
                wrong.push(format!("{call} of {name}: {found:?}, wanted {wanted:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}
