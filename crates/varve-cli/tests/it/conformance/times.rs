//! Which times each call moves, and which it leaves, of everything it touches.

use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Uid,
    XattrFlags,
};
use rustix::io::Result;

use super::{open, prepare};
use crate::semantics::{Place, semantics};

semantics!(times_table);

/// A call, and for each thing that is watched which of its times it moves: `m` mtime, `c` ctime. Nothing
/// moves an atime here.
type Case = (&'static str, fn(&Path) -> Result<()>, &'static [(&'static str, &'static str)]);

const PARENT: (&str, &str) = (".", "mc");
const PARENT_LEFT: (&str, &str) = (".", "");

fn file(dir: &Path) -> Result<rustix::fd::OwnedFd> {
    open(dir.join("file"), OFlags::RDWR)
}

const CASES: &[Case] = &[
    ("create", |d| open(d.join("new"), OFlags::CREATE | OFlags::RDWR).map(drop), &[PARENT]),
    ("open", |d| file(d).map(drop), &[("file", ""), PARENT_LEFT]),
    (
        "O_CREAT of what is there",
        |d| open(d.join("file"), OFlags::CREATE | OFlags::RDWR).map(drop),
        &[("file", ""), PARENT_LEFT],
    ),
    (
        "O_TRUNC",
        |d| open(d.join("file"), OFlags::WRONLY | OFlags::TRUNC).map(drop),
        &[("file", "mc"), PARENT_LEFT],
    ),
    (
        "O_TRUNC of an empty file",
        |d| open(d.join("full/empty"), OFlags::WRONLY | OFlags::TRUNC).map(drop),
        &[("full/empty", "mc")],
    ),
    (
        "O_TMPFILE",
        |d| open(d.join("dir"), OFlags::TMPFILE | OFlags::RDWR).map(drop),
        &[("dir", "")],
    ),
    ("mkdir", |d| rustix::fs::mkdir(d.join("new"), Mode::RWXU), &[PARENT]),
    (
        "mkdir of what is there",
        |d| {
            let _ = rustix::fs::mkdir(d.join("dir"), Mode::RWXU);
            Ok(())
        },
        &[("dir", ""), PARENT_LEFT],
    ),
    (
        "mknod",
        |d| rustix::fs::mknodat(CWD, d.join("new"), FileType::Fifo, Mode::RWXU, 0),
        &[PARENT],
    ),
    ("symlink", |d| rustix::fs::symlink("x", d.join("new")), &[PARENT]),
    ("link", |d| rustix::fs::link(d.join("file"), d.join("new")), &[("file", "c"), PARENT]),
    (
        "link into another directory",
        |d| rustix::fs::link(d.join("file"), d.join("dir/new")),
        &[("file", "c"), ("dir", "mc"), PARENT_LEFT],
    ),
    (
        "unlink of one of two names",
        |d| rustix::fs::unlink(d.join("full/two")),
        &[("full/one", "c"), ("full", "mc"), PARENT_LEFT],
    ),
    ("rmdir", |d| rustix::fs::rmdir(d.join("full/sub")), &[("full", "mc"), PARENT_LEFT]),
    (
        "rmdir that is refused",
        |d| {
            let _ = rustix::fs::rmdir(d.join("full"));
            Ok(())
        },
        &[("full", ""), PARENT_LEFT],
    ),
    ("rename", |d| rustix::fs::rename(d.join("file"), d.join("new")), &[PARENT]),
    (
        "rename into another directory",
        |d| rustix::fs::rename(d.join("file"), d.join("dir/new")),
        &[("dir", "mc"), PARENT],
    ),
    (
        "rename over a file with another name",
        |d| rustix::fs::rename(d.join("file"), d.join("full/two")),
        &[("full/one", "c"), ("full", "mc"), PARENT],
    ),
    (
        "rename onto the same file",
        |d| rustix::fs::rename(d.join("full/one"), d.join("full/two")),
        &[("full/one", ""), ("full", "")],
    ),
    (
        "exchange",
        |d| {
            rustix::fs::renameat_with(
                CWD,
                d.join("file"),
                CWD,
                d.join("full/one"),
                RenameFlags::EXCHANGE,
            )
        },
        &[("full", "mc"), PARENT],
    ),
    (
        "readlink",
        |d| rustix::fs::readlink(d.join("link"), Vec::new()).map(drop),
        &[("link", ""), PARENT_LEFT],
    ),
    ("chmod", |d| rustix::fs::chmod(d.join("file"), Mode::RWXU), &[("file", "c"), PARENT_LEFT]),
    (
        "chmod to the same mode",
        |d| rustix::fs::chmod(d.join("file"), Mode::from_raw_mode(0o644)),
        &[("file", "c")],
    ),
    (
        "chown",
        |d| rustix::fs::chown(d.join("file"), Some(Uid::from_raw(7)), None::<Gid>),
        &[("file", "c"), PARENT_LEFT],
    ),
    (
        "setxattr",
        |d| rustix::fs::setxattr(d.join("file"), "user.x", b"1", XattrFlags::empty()),
        &[("file", "c"), PARENT_LEFT],
    ),
    ("write", |d| rustix::io::write(file(d)?, b"x").map(drop), &[("file", "mc"), PARENT_LEFT]),
    ("write of nothing", |d| rustix::io::write(file(d)?, b"").map(drop), &[("file", "")]),
    (
        "write to a large file",
        |d| rustix::io::write(open(d.join("full/large"), OFlags::RDWR)?, b"x").map(drop),
        &[("full/large", "mc")],
    ),
    ("read", |d| rustix::io::read(file(d)?, &mut [0; 4]).map(drop), &[("file", "")]),
    ("lseek", |d| rustix::fs::seek(file(d)?, SeekFrom::Hole(0)).map(drop), &[("file", "")]),
    ("ftruncate shorter", |d| rustix::fs::ftruncate(file(d)?, 3), &[("file", "mc")]),
    ("ftruncate longer", |d| rustix::fs::ftruncate(file(d)?, 300), &[("file", "mc")]),
    ("ftruncate to the same size", |d| rustix::fs::ftruncate(file(d)?, 10), &[("file", "mc")]),
    (
        "ftruncate of a large file",
        |d| rustix::fs::ftruncate(open(d.join("full/large"), OFlags::RDWR)?, 100_000),
        &[("full/large", "mc")],
    ),
    (
        "fallocate longer",
        |d| rustix::fs::fallocate(file(d)?, FallocateFlags::empty(), 0, 100),
        &[("file", "mc")],
    ),
    (
        "punching a hole",
        |d| {
            rustix::fs::fallocate(
                file(d)?,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                2,
                3,
            )
        },
        &[("file", "mc")],
    ),
    (
        "copy_file_range",
        |d| {
            let from = open(d.join("full/large"), OFlags::RDONLY)?;
            rustix::fs::copy_file_range(from, None, file(d)?, None, 5).map(drop)
        },
        &[("file", "mc"), ("full/large", "")],
    ),
    (
        "stat and access",
        |d| {
            rustix::fs::stat(d.join("file"))?;
            rustix::fs::access(d.join("file"), rustix::fs::Access::READ_OK)?;
            rustix::fs::statx(CWD, d.join("file"), AtFlags::empty(), rustix::fs::StatxFlags::ALL)
                .map(drop)
        },
        &[("file", ""), PARENT_LEFT],
    ),
    ("fsync", |d| rustix::fs::fsync(file(d)?), &[("file", "")]),
];

fn times(path: &Path) -> [(i64, i64); 3] {
    let stat = rustix::fs::lstat(path).unwrap();
    let nsec = |nsec| i64::try_from(nsec).unwrap();
    [
        (stat.st_atime, nsec(stat.st_atime_nsec)),
        (stat.st_mtime, nsec(stat.st_mtime_nsec)),
        (stat.st_ctime, nsec(stat.st_ctime_nsec)),
    ]
}

fn times_table(place: &Place) {
    let mut wrong = Vec::new();
    for (at, (name, run, watched)) in CASES.iter().enumerate() {
        let dir = place.dir().join(format!("times-{at}"));
        prepare(&dir);
        std::fs::write(dir.join("full/empty"), "").unwrap();
        std::fs::write(dir.join("full/one"), "x").unwrap();
        std::fs::hard_link(dir.join("full/one"), dir.join("full/two")).unwrap();
        std::fs::write(dir.join("full/large"), vec![1; 200_000]).unwrap();
        // An atime that was not behind does not move (relatime).
        let ahead = rustix::fs::Timespec { tv_sec: 4_000_000_000, tv_nsec: 0 };
        let omit = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let set = rustix::fs::Timestamps { last_access: ahead, last_modification: omit };
        for (path, _) in *watched {
            rustix::fs::utimensat(CWD, dir.join(path), &set, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
        let before: Vec<_> = watched.iter().map(|(path, _)| times(&dir.join(path))).collect();
        std::thread::sleep(std::time::Duration::from_millis(20));
        if let Err(errno) = run(&dir) {
            wrong.push(format!("{name}: {errno}"));
            continue;
        }
        for ((path, wanted), before) in watched.iter().zip(before) {
            let after = times(&dir.join(path));
            let moved: String = ["a", "m", "c"]
                .iter()
                .zip(before.iter().zip(after))
                .filter(|(_, (before, after))| *before != after)
                .map(|(letter, _)| *letter)
                .collect();
            if moved != *wanted {
                wrong.push(format!("{name}: of {path} moved `{moved}`, wanted `{wanted}`"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
