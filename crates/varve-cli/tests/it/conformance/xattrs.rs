//! setxattr, getxattr, listxattr, removexattr.

use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, listxattr, lsetxattr, removexattr, setxattr};
use rustix::io::{Errno, Result};

use super::{Case, all, check};
use crate::semantics::{Place, semantics};

semantics!(xattrs_table);

fn set(dir: &Path, name: &str, value: &[u8], flags: XattrFlags) -> Result<()> {
    setxattr(dir.join("file"), name, value, flags)
}

fn get(dir: &Path, name: &str) -> Result<Vec<u8>> {
    let mut value = vec![0; 70_000];
    let len = getxattr(dir.join("file"), name, &mut value)?;
    value.truncate(len);
    Ok(value)
}

fn names(dir: &Path) -> Result<Vec<String>> {
    let mut list = vec![0_u8; 70_000];
    let len = listxattr(dir.join("file"), &mut list)?;
    let names = list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<_> = names.map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    names.retain(|name| !name.starts_with("security."));
    names.sort();
    Ok(names)
}

const NONE: XattrFlags = XattrFlags::empty();

const CASES: &[Case] = &[
    (
        "set and get",
        |d| {
            set(d, "user.a", b"value\0with zero", NONE)?;
            check(get(d, "user.a")? == b"value\0with zero")
        },
        None,
    ),
    (
        "an empty value",
        |d| {
            set(d, "user.a", b"", NONE)?;
            check(get(d, "user.a")?.is_empty() && names(d)? == ["user.a"])
        },
        None,
    ),
    (
        "replaced by a shorter one",
        |d| {
            set(d, "user.a", b"long value", NONE)?;
            set(d, "user.a", b"x", NONE)?;
            check(get(d, "user.a")? == b"x")
        },
        None,
    ),
    (
        "XATTR_CREATE of what is there",
        |d| {
            set(d, "user.a", b"1", XattrFlags::CREATE)?;
            set(d, "user.a", b"2", XattrFlags::CREATE)
        },
        Some(Errno::EXIST),
    ),
    (
        "XATTR_REPLACE of what is not",
        |d| set(d, "user.a", b"1", XattrFlags::REPLACE),
        Some(Errno::NODATA),
    ),
    (
        "unknown flags",
        |d| set(d, "user.a", b"1", XattrFlags::from_bits_retain(8)),
        Some(Errno::INVAL),
    ),
    ("get of what is not there", |d| get(d, "user.a").map(drop), Some(Errno::NODATA)),
    ("remove of what is not there", |d| removexattr(d.join("file"), "user.a"), Some(Errno::NODATA)),
    (
        "remove",
        |d| {
            set(d, "user.a", b"1", NONE)?;
            removexattr(d.join("file"), "user.a")?;
            get(d, "user.a").map(drop)
        },
        Some(Errno::NODATA),
    ),
    (
        "into a short buffer",
        |d| {
            set(d, "user.a", b"12345", NONE)?;
            getxattr(d.join("file"), "user.a", &mut [0; 3]).map(drop)
        },
        Some(Errno::RANGE),
    ),
    (
        "list into a short buffer",
        |d| {
            set(d, "user.abcdef", b"1", NONE)?;
            listxattr(d.join("file"), &mut [0_u8; 3]).map(drop)
        },
        Some(Errno::RANGE),
    ),
    (
        "list names all",
        |d| {
            for name in ["user.c", "user.a", "trusted.b"] {
                set(d, name, b"1", NONE)?;
            }
            check(names(d)? == ["trusted.b", "user.a", "user.c"])
        },
        None,
    ),
    ("no namespace", |d| set(d, "plain", b"1", NONE), Some(Errno::OPNOTSUPP)),
    ("an unknown namespace", |d| set(d, "other.a", b"1", NONE), Some(Errno::OPNOTSUPP)),
    ("the empty name", |d| set(d, "", b"1", NONE), Some(Errno::RANGE)),
    (
        "a name of 255 bytes",
        |d| {
            let name = format!("user.{}", "n".repeat(250));
            set(d, &name, b"1", NONE)?;
            check(names(d)? == [name])
        },
        None,
    ),
    (
        "a name of 256 bytes",
        |d| set(d, &format!("user.{}", "n".repeat(251)), b"1", NONE),
        Some(Errno::RANGE),
    ),
    ("a value beyond 64 KiB", |d| set(d, "user.a", &vec![1; 65_537], NONE), Some(Errno::TOOBIG)),
    (
        "names differ by case",
        |d| {
            set(d, "user.a", b"1", NONE)?;
            set(d, "user.A", b"2", NONE)?;
            check(get(d, "user.a")? == b"1" && get(d, "user.A")? == b"2")
        },
        None,
    ),
    (
        "user attributes of a symbolic link",
        |d| lsetxattr(d.join("link"), "user.a", b"1", NONE),
        Some(Errno::PERM),
    ),
    (
        "trusted attributes of a symbolic link",
        |d| lsetxattr(d.join("link"), "trusted.a", b"1", NONE),
        None,
    ),
    (
        "user attributes of a fifo",
        |d| setxattr(d.join("fifo"), "user.a", b"1", NONE),
        Some(Errno::PERM),
    ),
    ("trusted attributes of a fifo", |d| setxattr(d.join("fifo"), "trusted.a", b"1", NONE), None),
    ("of a directory", |d| setxattr(d.join("dir"), "user.a", b"1", NONE), None),
    (
        "all names of a file share them",
        |d| {
            set(d, "user.a", b"1", NONE)?;
            rustix::fs::link(d.join("file"), d.join("two"))?;
            let mut value = [0; 9];
            check(getxattr(d.join("two"), "user.a", &mut value)? == 1)
        },
        None,
    ),
    (
        "they move with the name",
        |d| {
            set(d, "user.a", b"1", NONE)?;
            rustix::fs::rename(d.join("file"), d.join("two"))?;
            check(getxattr(d.join("two"), "user.a", &mut [0; 9])? == 1)
        },
        None,
    ),
    (
        "they end with the file",
        |d| {
            set(d, "user.a", b"1", NONE)?;
            rustix::fs::unlink(d.join("file"))?;
            std::fs::write(d.join("file"), "").unwrap();
            get(d, "user.a").map(drop)
        },
        Some(Errno::NODATA),
    ),
    (
        "set changes ctime and not mtime",
        |d| {
            let before = rustix::fs::stat(d.join("file"))?;
            std::thread::sleep(std::time::Duration::from_millis(20));
            set(d, "user.a", b"1", NONE)?;
            let after = rustix::fs::stat(d.join("file"))?;
            check(
                after.st_mtime_nsec == before.st_mtime_nsec
                    && after.st_ctime_nsec != before.st_ctime_nsec,
            )
        },
        None,
    ),
];

fn xattrs_table(place: &Place) {
    all(place, CASES);
}
