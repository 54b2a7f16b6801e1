//! mkdir, rmdir, mknod, link, unlink, symlink, readlink, getdents.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::{Errno, Result};

use super::{Case, all, check, open};
use crate::semantics::{Place, semantics};

semantics!(names_table, directories_read_by_handle);

const MODE: Mode = Mode::RWXU;

fn links(dir: &Path, name: &str) -> Result<u64> {
    rustix::fs::lstat(dir.join(name)).map(|stat| stat.st_nlink)
}

const CASES: &[Case] = &[
    ("mkdir", |d| rustix::fs::mkdir(d.join("new"), MODE), None),
    ("mkdir with a slash", |d| rustix::fs::mkdir(d.join("new/"), MODE), None),
    ("mkdir of a file", |d| rustix::fs::mkdir(d.join("file"), MODE), Some(Errno::EXIST)),
    (
        "mkdir of a dangling link",
        |d| rustix::fs::mkdir(d.join("dangling"), MODE),
        Some(Errno::EXIST),
    ),
    ("mkdir of .", |d| rustix::fs::mkdir(d.join("dir/."), MODE), Some(Errno::EXIST)),
    ("mkdir of ..", |d| rustix::fs::mkdir(d.join("dir/.."), MODE), Some(Errno::EXIST)),
    (
        "mkdir keeps the sticky bit",
        |d| {
            rustix::fs::mkdir(d.join("new"), Mode::from_raw_mode(0o1755))?;
            check(rustix::fs::stat(d.join("new"))?.st_mode & 0o7777 == 0o1755)
        },
        None,
    ),
    (
        "mkdir in a removed directory",
        |d| {
            let dir = open(d.join("dir"), OFlags::DIRECTORY)?;
            rustix::fs::rmdir(d.join("dir"))?;
            rustix::fs::mkdirat(&dir, "new", MODE)
        },
        Some(Errno::NOENT),
    ),
    ("rmdir", |d| rustix::fs::rmdir(d.join("dir")), None),
    ("rmdir with a slash", |d| rustix::fs::rmdir(d.join("dir/")), None),
    ("rmdir of a full directory", |d| rustix::fs::rmdir(d.join("full")), Some(Errno::NOTEMPTY)),
    ("rmdir of a file", |d| rustix::fs::rmdir(d.join("file")), Some(Errno::NOTDIR)),
    (
        "rmdir of a link to a directory",
        |d| rustix::fs::rmdir(d.join("dirlink")),
        Some(Errno::NOTDIR),
    ),
    ("rmdir of .", |d| rustix::fs::rmdir(d.join("dir/.")), Some(Errno::INVAL)),
    ("rmdir of ..", |d| rustix::fs::rmdir(d.join("full/sub/..")), Some(Errno::NOTEMPTY)),
    (
        "rmdir takes a link from the parent",
        |d| {
            let before = links(d, "full")?;
            rustix::fs::rmdir(d.join("full/sub"))?;
            check(before == 3 && links(d, "full")? == 2)
        },
        None,
    ),
    (
        "a removed directory has no links",
        |d| {
            let dir = open(d.join("dir"), OFlags::DIRECTORY)?;
            rustix::fs::rmdir(d.join("dir"))?;
            check(rustix::fs::fstat(&dir)?.st_nlink == 0)
        },
        None,
    ),
    (
        ".. of a removed directory",
        |d| {
            let dir = open(d.join("full/sub"), OFlags::DIRECTORY)?;
            rustix::fs::rmdir(d.join("full/sub"))?;
            rustix::fs::statat(&dir, "..", AtFlags::empty()).map(drop)
        },
        None,
    ),
    ("unlink of a file", |d| rustix::fs::unlink(d.join("file")), None),
    (
        "unlink of a link leaves its target",
        |d| {
            rustix::fs::unlink(d.join("link"))?;
            links(d, "file").map(drop)
        },
        None,
    ),
    ("unlink of a fifo", |d| rustix::fs::unlink(d.join("fifo")), None),
    ("unlink of a directory", |d| rustix::fs::unlink(d.join("dir")), Some(Errno::ISDIR)),
    ("unlink of a file with a slash", |d| rustix::fs::unlink(d.join("file/")), Some(Errno::NOTDIR)),
    ("unlink of .", |d| rustix::fs::unlink(d.join("dir/.")), Some(Errno::ISDIR)),
    (
        "unlink takes one link",
        |d| {
            rustix::fs::link(d.join("file"), d.join("two"))?;
            rustix::fs::unlink(d.join("file"))?;
            check(links(d, "two")? == 1)
        },
        None,
    ),
    (
        "unlink of an open file sets its ctime and link count",
        |d| {
            let file = open(d.join("file"), OFlags::RDWR)?;
            rustix::fs::unlink(d.join("file"))?;
            check(rustix::fs::fstat(&file)?.st_nlink == 0 && rustix::io::write(&file, b"x")? == 1)
        },
        None,
    ),
    (
        "unlinkat with unknown flags",
        |d| rustix::fs::unlinkat(CWD, d.join("file"), AtFlags::SYMLINK_FOLLOW),
        Some(Errno::INVAL),
    ),
    (
        "link",
        |d| {
            rustix::fs::link(d.join("file"), d.join("two"))?;
            check(links(d, "file")? == 2)
        },
        None,
    ),
    (
        "link to what exists",
        |d| rustix::fs::link(d.join("file"), d.join("fifo")),
        Some(Errno::EXIST),
    ),
    ("link to itself", |d| rustix::fs::link(d.join("file"), d.join("file")), Some(Errno::EXIST)),
    (
        "link over a dangling link",
        |d| rustix::fs::link(d.join("file"), d.join("dangling")),
        Some(Errno::EXIST),
    ),
    ("link of a directory", |d| rustix::fs::link(d.join("dir"), d.join("two")), Some(Errno::PERM)),
    ("link of a fifo", |d| rustix::fs::link(d.join("fifo"), d.join("two")), None),
    (
        "link of a symbolic link is the link",
        |d| {
            rustix::fs::link(d.join("link"), d.join("two"))?;
            check(links(d, "link")? == 2 && links(d, "file")? == 1)
        },
        None,
    ),
    (
        "linkat that follows",
        |d| {
            rustix::fs::linkat(CWD, d.join("link"), CWD, d.join("two"), AtFlags::SYMLINK_FOLLOW)?;
            check(links(d, "file")? == 2)
        },
        None,
    ),
    (
        "link to another file system",
        |d| rustix::fs::link(d.join("file"), "/dev/shm/varve-conformance"),
        Some(Errno::XDEV),
    ),
    ("link with a slash", |d| rustix::fs::link(d.join("file"), d.join("two/")), Some(Errno::NOENT)),
    (
        "link of a removed open file",
        |d| {
            let file = open(d.join("file"), OFlags::RDWR)?;
            rustix::fs::unlink(d.join("file"))?;
            rustix::fs::linkat(&file, "", CWD, d.join("two"), AtFlags::EMPTY_PATH)
        },
        Some(Errno::NOENT),
    ),
    (
        "link of a temporary file",
        |d| {
            let file = open(d.join("dir"), OFlags::TMPFILE | OFlags::RDWR)?;
            rustix::fs::linkat(&file, "", CWD, d.join("two"), AtFlags::EMPTY_PATH)?;
            check(links(d, "two")? == 1)
        },
        None,
    ),
    (
        "link of an exclusive temporary file",
        |d| {
            let file = open(d.join("dir"), OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL)?;
            rustix::fs::linkat(&file, "", CWD, d.join("two"), AtFlags::EMPTY_PATH)
        },
        Some(Errno::NOENT),
    ),
    ("symlink", |d| rustix::fs::symlink("anything", d.join("new")), None),
    ("symlink to the empty path", |d| rustix::fs::symlink("", d.join("new")), Some(Errno::NOENT)),
    ("symlink of what exists", |d| rustix::fs::symlink("x", d.join("file")), Some(Errno::EXIST)),
    (
        "symlink of a dangling link",
        |d| rustix::fs::symlink("x", d.join("dangling")),
        Some(Errno::EXIST),
    ),
    ("symlink with a slash", |d| rustix::fs::symlink("x", d.join("new/")), Some(Errno::NOENT)),
    (
        "symlink of 4095 bytes",
        |d| {
            let target = "x".repeat(4095);
            rustix::fs::symlink(&*target, d.join("new"))?;
            check(rustix::fs::readlink(d.join("new"), Vec::new())?.to_bytes() == target.as_bytes())
        },
        None,
    ),
    (
        "symlink of 4096 bytes",
        |d| rustix::fs::symlink(&*"x".repeat(4096), d.join("new")),
        Some(Errno::NAMETOOLONG),
    ),
    (
        "a link's size is its target's length",
        |d| check(rustix::fs::lstat(d.join("link"))?.st_size == 4),
        None,
    ),
    (
        "a link's mode is 0777",
        |d| check(rustix::fs::lstat(d.join("link"))?.st_mode & 0o7777 == 0o777),
        None,
    ),
    (
        "readlink of a file",
        |d| rustix::fs::readlink(d.join("file"), Vec::new()).map(drop),
        Some(Errno::INVAL),
    ),
    (
        "readlink of a directory",
        |d| rustix::fs::readlink(d.join("dir"), Vec::new()).map(drop),
        Some(Errno::INVAL),
    ),
    (
        "readlink into a short buffer",
        |d| {
            let mut short = [0_u8; 2];
            let len = rustix::fs::readlinkat_raw(CWD, d.join("link"), &mut short)?;
            check(len == 2 && &short == b"fi")
        },
        None,
    ),
    // Of 40 that it follows at most, the kernel counts those anew of a walk that it begins again, which it does twice at most.
    (
        "13 links in a row",
        |d| {
            rustix::fs::symlink("../file", d.join("dir/0"))?;
            (1..13).try_for_each(|n| {
                rustix::fs::symlink(&*(n - 1).to_string(), d.join(format!("dir/{n}")))
            })?;
            open(d.join("dir/12"), OFlags::RDONLY).map(drop)
        },
        None,
    ),
    (
        "41 links in a row",
        |d| {
            rustix::fs::symlink("../file", d.join("dir/0"))?;
            (1..41).try_for_each(|n| {
                rustix::fs::symlink(&*(n - 1).to_string(), d.join(format!("dir/{n}")))
            })?;
            open(d.join("dir/40"), OFlags::RDONLY).map(drop)
        },
        Some(Errno::LOOP),
    ),
    (
        "mknod of a file",
        |d| {
            rustix::fs::mknodat(CWD, d.join("new"), FileType::RegularFile, MODE, 0)?;
            check(rustix::fs::stat(d.join("new"))?.st_size == 0)
        },
        None,
    ),
    (
        "mknod of a socket",
        |d| rustix::fs::mknodat(CWD, d.join("new"), FileType::Socket, MODE, 0),
        None,
    ),
    (
        "mknod of a block device keeps its number",
        |d| {
            let dev = rustix::fs::makedev(0xfff, 0xf_ffff);
            rustix::fs::mknodat(CWD, d.join("new"), FileType::BlockDevice, MODE, dev)?;
            check(rustix::fs::stat(d.join("new"))?.st_rdev == dev)
        },
        None,
    ),
    (
        "mknod of what exists",
        |d| rustix::fs::mknodat(CWD, d.join("file"), FileType::Fifo, MODE, 0),
        Some(Errno::EXIST),
    ),
    (
        "mknod of a directory",
        |d| rustix::fs::mknodat(CWD, d.join("new"), FileType::Directory, MODE, 0),
        Some(Errno::PERM),
    ),
    (
        "mknod of a link",
        |d| rustix::fs::mknodat(CWD, d.join("new"), FileType::Symlink, MODE, 0),
        Some(Errno::INVAL),
    ),
    (
        "a name of 255 bytes",
        |d| {
            let name = "é".repeat(127) + "x";
            drop(open(d.join(&name), OFlags::CREATE | OFlags::RDWR)?);
            rustix::fs::rename(d.join(&name), d.join(name.replace('x', "y")))
        },
        None,
    ),
    (
        "names differ by case and form",
        |d| {
            for name in ["A", "a", "\u{e9}", "e\u{301}"] {
                rustix::fs::mkdir(d.join(format!("dir/{name}")), MODE)?;
            }
            Ok(())
        },
        None,
    ),
    (
        "getdents of a file",
        |d| {
            let file = open(d.join("file"), OFlags::RDONLY)?;
            list(&file).map(drop)
        },
        Some(Errno::NOTDIR),
    ),
    (
        "getdents into a buffer too small for one",
        |d| {
            let dir = open(d, OFlags::DIRECTORY)?;
            let mut buffer = Vec::with_capacity(16);
            let mut reader = rustix::fs::RawDir::new(&dir, buffer.spare_capacity_mut());
            reader.next().map_or(Ok(()), |entry| entry.map(drop))
        },
        Some(Errno::INVAL),
    ),
];

fn names_table(place: &Place) {
    all(place, CASES);
}

/// The names behind a descriptor, from where it stands.
fn list(dir: &rustix::fd::OwnedFd) -> Result<Vec<String>> {
    let mut buffer = Vec::with_capacity(8192);
    let mut reader = rustix::fs::RawDir::new(dir, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(entry) = reader.next() {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

fn directories_read_by_handle(place: &Place) {
    let dir = place.dir().join("listed");
    super::prepare(&dir);
    let all = [".", "..", "dangling", "dir", "dirlink", "fifo", "file", "full", "link", "loop"];
    let opened = open(&dir, OFlags::DIRECTORY).unwrap();
    assert_eq!(list(&opened).unwrap(), all);
    assert!(list(&opened).unwrap().is_empty(), "at the end");
    rustix::fs::seek(&opened, rustix::fs::SeekFrom::Start(0)).unwrap();
    assert_eq!(list(&opened).unwrap(), all);
    // Two handles stand at places of their own; a copy of a descriptor shares its place.
    let (second, copy) =
        (open(&dir, OFlags::DIRECTORY).unwrap(), rustix::io::dup(&opened).unwrap());
    assert!(list(&copy).unwrap().is_empty());
    assert_eq!(list(&second).unwrap(), all);
    // What is made after a rewind is seen, what is removed is not.
    std::fs::remove_file(dir.join("fifo")).unwrap();
    std::fs::write(dir.join("new"), "").unwrap();
    rustix::fs::seek(&opened, rustix::fs::SeekFrom::Start(0)).unwrap();
    let names = list(&opened).unwrap();
    assert!(names.contains(&"new".to_owned()) && !names.contains(&"fifo".to_owned()), "{names:?}");
    // Types and inode numbers are those of stat.
    rustix::fs::seek(&opened, rustix::fs::SeekFrom::Start(0)).unwrap();
    let mut buffer = Vec::with_capacity(8192);
    let mut reader = rustix::fs::RawDir::new(&opened, buffer.spare_capacity_mut());
    while let Some(entry) = reader.next() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_str().unwrap();
        let stat = rustix::fs::lstat(dir.join(name)).unwrap();
        assert_eq!(entry.file_type(), FileType::from_raw_mode(stat.st_mode), "{name}");
        assert!(name == ".." || entry.ino() == stat.st_ino, "{name}");
    }
}
