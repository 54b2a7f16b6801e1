//! rename(2) and renameat2(2).

use std::path::Path;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::{Errno, Result};

use super::{Case, all, check};
use crate::semantics::{Place, semantics};

semantics!(rename_table, exchange_and_noreplace_table);

fn rename(dir: &Path, from: &str, to: &str) -> Result<()> {
    rustix::fs::rename(dir.join(from), dir.join(to))
}

fn flagged(dir: &Path, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
    rustix::fs::renameat_with(CWD, dir.join(from), CWD, dir.join(to), flags)
}

fn is_gone(dir: &Path, name: &str) -> bool {
    matches!(rustix::fs::lstat(dir.join(name)), Err(Errno::NOENT))
}

fn ino(dir: &Path, name: &str) -> Result<u64> {
    rustix::fs::lstat(dir.join(name)).map(|stat| stat.st_ino)
}

/// Renames and checks that the old name is gone and the new one is the same inode.
fn moves(dir: &Path, from: &str, to: &str) -> Result<()> {
    let before = ino(dir, from.trim_end_matches('/'))?;
    rename(dir, from, to)?;
    check(is_gone(dir, from.trim_end_matches('/')) && ino(dir, to.trim_end_matches('/'))? == before)
}

const RENAMES: &[Case] = &[
    ("a file to a new name", |d| moves(d, "file", "new"), None),
    (
        "a file over a file",
        |d| {
            std::fs::write(d.join("other"), "x").unwrap();
            moves(d, "file", "other")
        },
        None,
    ),
    ("a file over a fifo", |d| moves(d, "file", "fifo"), None),
    ("a file over a symbolic link replaces the link", |d| moves(d, "file", "dangling"), None),
    ("a symbolic link is itself moved", |d| moves(d, "link", "new"), None),
    ("a symbolic link that goes in circles", |d| moves(d, "loop", "new"), None),
    ("a fifo", |d| moves(d, "fifo", "new"), None),
    ("an empty directory", |d| moves(d, "dir", "new"), None),
    ("a directory with a slash at both ends", |d| moves(d, "dir/", "new/"), None),
    ("a full directory", |d| moves(d, "full", "new"), None),
    ("a directory over an empty one", |d| moves(d, "full", "dir"), None),
    ("a directory into another", |d| moves(d, "full/sub", "dir/sub"), None),
    ("a directory over a full one", |d| rename(d, "dir", "full"), Some(Errno::NOTEMPTY)),
    ("a directory over a file", |d| rename(d, "dir", "file"), Some(Errno::NOTDIR)),
    (
        "a directory over a symbolic link to a directory",
        |d| rename(d, "full", "dirlink"),
        Some(Errno::NOTDIR),
    ),
    ("a file over a directory", |d| rename(d, "file", "dir"), Some(Errno::ISDIR)),
    ("a file over a full directory", |d| rename(d, "file", "full"), Some(Errno::ISDIR)),
    ("a file to a name with a slash", |d| rename(d, "file", "new/"), Some(Errno::NOTDIR)),
    ("a file with a slash", |d| rename(d, "file/", "new"), Some(Errno::NOTDIR)),
    ("a directory into itself", |d| rename(d, "dir", "dir/x"), Some(Errno::INVAL)),
    ("a directory below itself", |d| rename(d, "full", "full/sub/x"), Some(Errno::INVAL)),
    ("a directory over its parent", |d| rename(d, "full/sub", "full"), Some(Errno::NOTEMPTY)),
    ("a directory over itself", |d| rename(d, "dir", "dir"), None),
    ("a file over itself", |d| rename(d, "file", "file"), None),
    (
        "a file over its other name leaves both",
        |d| {
            rustix::fs::link(d.join("file"), d.join("two"))?;
            rename(d, "file", "two")?;
            check(
                ino(d, "file")? == ino(d, "two")?
                    && rustix::fs::stat(d.join("file"))?.st_nlink == 2,
            )
        },
        None,
    ),
    (". is refused", |d| rename(d, "dir/.", "new"), Some(Errno::BUSY)),
    (".. is refused", |d| rename(d, "full/sub/..", "new"), Some(Errno::BUSY)),
    ("to . is refused", |d| rename(d, "dir", "full/."), Some(Errno::BUSY)),
    ("an absent name", |d| rename(d, "absent", "new"), Some(Errno::NOENT)),
    ("into an absent directory", |d| rename(d, "file", "absent/new"), Some(Errno::NOENT)),
    (
        "into another file system",
        |d| rustix::fs::rename(d.join("file"), "/proc/self/x"),
        Some(Errno::XDEV),
    ),
    (
        "into a removed directory",
        |d| {
            let dir = super::open(d.join("dir"), rustix::fs::OFlags::DIRECTORY)?;
            rustix::fs::rmdir(d.join("dir"))?;
            rustix::fs::renameat(CWD, d.join("file"), &dir, "new")
        },
        Some(Errno::NOENT),
    ),
    (
        "the link counts of both parents follow",
        |d| {
            rename(d, "full/sub", "dir/sub")?;
            let links = |name: &str| rustix::fs::stat(d.join(name)).map(|stat| stat.st_nlink);
            check(links("full")? == 2 && links("dir")? == 3)
        },
        None,
    ),
    (
        ".. follows",
        |d| {
            rename(d, "full/sub", "dir/sub")?;
            check(ino(d, "dir/sub/..")? == ino(d, "dir")?)
        },
        None,
    ),
    (
        "the replaced file keeps its other name",
        |d| {
            rustix::fs::link(d.join("file"), d.join("two"))?;
            rename(d, "fifo", "file")?;
            check(rustix::fs::stat(d.join("two"))?.st_nlink == 1)
        },
        None,
    ),
];

fn rename_table(place: &Place) {
    all(place, RENAMES);
}

const FLAGGED: &[Case] = &[
    ("NOREPLACE to a new name", |d| flagged(d, "file", "new", RenameFlags::NOREPLACE), None),
    (
        "NOREPLACE over a file",
        |d| flagged(d, "fifo", "file", RenameFlags::NOREPLACE),
        Some(Errno::EXIST),
    ),
    (
        "NOREPLACE over a directory",
        |d| flagged(d, "full", "dir", RenameFlags::NOREPLACE),
        Some(Errno::EXIST),
    ),
    (
        "NOREPLACE over a dangling link",
        |d| flagged(d, "file", "dangling", RenameFlags::NOREPLACE),
        Some(Errno::EXIST),
    ),
    (
        "NOREPLACE over itself",
        |d| flagged(d, "file", "file", RenameFlags::NOREPLACE),
        Some(Errno::EXIST),
    ),
    (
        "NOREPLACE of an absent name",
        |d| flagged(d, "absent", "new", RenameFlags::NOREPLACE),
        Some(Errno::NOENT),
    ),
    (
        "EXCHANGE of a file and a directory",
        |d| {
            let (file, dir) = (ino(d, "file")?, ino(d, "full")?);
            flagged(d, "file", "full", RenameFlags::EXCHANGE)?;
            check(ino(d, "full")? == file && ino(d, "file")? == dir && ino(d, "file/sub").is_ok())
        },
        None,
    ),
    (
        "EXCHANGE of two files",
        |d| {
            let (file, fifo) = (ino(d, "file")?, ino(d, "fifo")?);
            flagged(d, "file", "fifo", RenameFlags::EXCHANGE)?;
            check(ino(d, "fifo")? == file && ino(d, "file")? == fifo)
        },
        None,
    ),
    (
        "EXCHANGE over directories moves link counts",
        |d| {
            flagged(d, "file", "full/sub", RenameFlags::EXCHANGE)?;
            check(
                rustix::fs::stat(d.join("full"))?.st_nlink == 2
                    && ino(d, "file/..")? == ino(d, ".")?,
            )
        },
        None,
    ),
    (
        "EXCHANGE of two names of one file",
        |d| {
            rustix::fs::link(d.join("file"), d.join("two"))?;
            flagged(d, "file", "two", RenameFlags::EXCHANGE)?;
            check(ino(d, "file")? == ino(d, "two")?)
        },
        None,
    ),
    ("EXCHANGE with itself", |d| flagged(d, "file", "file", RenameFlags::EXCHANGE), None),
    (
        "EXCHANGE with an absent name",
        |d| flagged(d, "file", "absent", RenameFlags::EXCHANGE),
        Some(Errno::NOENT),
    ),
    (
        "EXCHANGE of an absent name",
        |d| flagged(d, "absent", "file", RenameFlags::EXCHANGE),
        Some(Errno::NOENT),
    ),
    (
        "EXCHANGE of a directory and what is in it",
        |d| flagged(d, "full", "full/sub", RenameFlags::EXCHANGE),
        Some(Errno::INVAL),
    ),
    (
        "EXCHANGE of what is in a directory and it",
        |d| flagged(d, "full/sub", "full", RenameFlags::EXCHANGE),
        Some(Errno::INVAL),
    ),
    (
        "NOREPLACE and EXCHANGE together",
        |d| flagged(d, "file", "dir", RenameFlags::NOREPLACE | RenameFlags::EXCHANGE),
        Some(Errno::INVAL),
    ),
    (
        "WHITEOUT and EXCHANGE together",
        |d| flagged(d, "file", "dir", RenameFlags::WHITEOUT | RenameFlags::EXCHANGE),
        Some(Errno::INVAL),
    ),
    (
        "unknown flags",
        |d| flagged(d, "file", "new", RenameFlags::from_bits_retain(1 << 9)),
        Some(Errno::INVAL),
    ),
];

fn exchange_and_noreplace_table(place: &Place) {
    all(place, FLAGGED);
}
