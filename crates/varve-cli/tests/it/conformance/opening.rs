//! open(2): its flags and its errors.

use std::path::Path;

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, Result};

use super::{Case, all, check, open};
use crate::semantics::{Place, semantics};

semantics!(open_errors_and_flags);

fn size(dir: &Path, name: &str) -> Result<i64> {
    rustix::fs::stat(dir.join(name)).map(|stat| stat.st_size)
}

const CASES: &[Case] = &[
    ("O_CREAT makes", |d| open(d.join("new"), OFlags::CREATE | OFlags::WRONLY).map(drop), None),
    (
        "O_CREAT of a file",
        |d| open(d.join("file"), OFlags::CREATE | OFlags::WRONLY).map(drop),
        None,
    ),
    (
        "O_CREAT keeps the bytes",
        |d| {
            drop(open(d.join("file"), OFlags::CREATE | OFlags::WRONLY)?);
            check(size(d, "file")? == 10)
        },
        None,
    ),
    (
        "O_CREAT|O_EXCL of a file",
        |d| open(d.join("file"), OFlags::CREATE | OFlags::EXCL | OFlags::RDWR).map(drop),
        Some(Errno::EXIST),
    ),
    (
        "O_CREAT|O_EXCL of a dangling link",
        |d| open(d.join("dangling"), OFlags::CREATE | OFlags::EXCL | OFlags::RDWR).map(drop),
        Some(Errno::EXIST),
    ),
    (
        "O_CREAT|O_EXCL of a directory",
        |d| open(d.join("dir"), OFlags::CREATE | OFlags::EXCL | OFlags::RDWR).map(drop),
        Some(Errno::EXIST),
    ),
    (
        "O_CREAT of a dangling link makes its target",
        |d| {
            drop(open(d.join("dangling"), OFlags::CREATE | OFlags::RDWR)?);
            check(size(d, "absent")? == 0)
        },
        None,
    ),
    (
        "O_CREAT of a directory",
        |d| open(d.join("dir"), OFlags::CREATE | OFlags::RDONLY).map(drop),
        Some(Errno::ISDIR),
    ),
    (
        "O_CREAT with a slash at the end",
        |d| open(d.join("new/"), OFlags::CREATE | OFlags::RDWR).map(drop),
        Some(Errno::ISDIR),
    ),
    (
        "O_CREAT|O_DIRECTORY",
        |d| open(d.join("new"), OFlags::CREATE | OFlags::DIRECTORY).map(drop),
        Some(Errno::INVAL),
    ),
    (
        "O_WRONLY of a directory",
        |d| open(d.join("dir"), OFlags::WRONLY).map(drop),
        Some(Errno::ISDIR),
    ),
    ("O_RDWR of a directory", |d| open(d.join("dir"), OFlags::RDWR).map(drop), Some(Errno::ISDIR)),
    (
        "O_RDONLY|O_TRUNC of a directory",
        |d| open(d.join("dir"), OFlags::TRUNC).map(drop),
        Some(Errno::ISDIR),
    ),
    ("O_RDONLY of a directory", |d| open(d.join("dir"), OFlags::RDONLY).map(drop), None),
    (
        "O_DIRECTORY of a file",
        |d| open(d.join("file"), OFlags::DIRECTORY).map(drop),
        Some(Errno::NOTDIR),
    ),
    (
        "O_DIRECTORY of a link to a directory",
        |d| open(d.join("dirlink"), OFlags::DIRECTORY).map(drop),
        None,
    ),
    (
        "O_DIRECTORY|O_NOFOLLOW of a link to a directory",
        |d| open(d.join("dirlink"), OFlags::DIRECTORY | OFlags::NOFOLLOW).map(drop),
        Some(Errno::NOTDIR),
    ),
    (
        "O_NOFOLLOW of a link",
        |d| open(d.join("link"), OFlags::NOFOLLOW).map(drop),
        Some(Errno::LOOP),
    ),
    ("O_NOFOLLOW of a file", |d| open(d.join("file"), OFlags::NOFOLLOW).map(drop), None),
    (
        "a file with a slash at the end",
        |d| open(d.join("file/"), OFlags::RDONLY).map(drop),
        Some(Errno::NOTDIR),
    ),
    (
        "O_TRUNC cuts",
        |d| {
            drop(open(d.join("file"), OFlags::WRONLY | OFlags::TRUNC)?);
            check(size(d, "file")? == 0)
        },
        None,
    ),
    (
        "O_RDONLY|O_TRUNC cuts",
        |d| {
            drop(open(d.join("file"), OFlags::RDONLY | OFlags::TRUNC)?);
            check(size(d, "file")? == 0)
        },
        None,
    ),
    (
        "O_TRUNC of a fifo does nothing",
        |d| open(d.join("fifo"), OFlags::RDWR | OFlags::TRUNC).map(drop),
        None,
    ),
    (
        "O_WRONLY|O_NONBLOCK of a fifo nobody reads",
        |d| open(d.join("fifo"), OFlags::WRONLY | OFlags::NONBLOCK).map(drop),
        Some(Errno::NXIO),
    ),
    (
        "O_RDONLY|O_NONBLOCK of a fifo",
        |d| open(d.join("fifo"), OFlags::RDONLY | OFlags::NONBLOCK).map(drop),
        None,
    ),
    (
        "a socket",
        |d| {
            let _listener =
                std::os::unix::net::UnixListener::bind(d.join("s")).map_err(|_| Errno::IO)?;
            open(d.join("s"), OFlags::RDONLY).map(drop)
        },
        Some(Errno::NXIO),
    ),
    (
        "a device that does not exist",
        |d| {
            let dev = rustix::fs::makedev(4000, 200);
            rustix::fs::mknodat(
                rustix::fs::CWD,
                d.join("c"),
                rustix::fs::FileType::CharacterDevice,
                Mode::RWXU,
                dev,
            )?;
            open(d.join("c"), OFlags::RDONLY).map(drop)
        },
        Some(Errno::NXIO),
    ),
    (
        "/dev/null by another name",
        |d| {
            let dev = rustix::fs::makedev(1, 3);
            rustix::fs::mknodat(
                rustix::fs::CWD,
                d.join("c"),
                rustix::fs::FileType::CharacterDevice,
                Mode::RWXU,
                dev,
            )?;
            let null = open(d.join("c"), OFlags::RDWR)?;
            check(
                rustix::io::write(&null, b"gone")? == 4
                    && rustix::io::read(&null, &mut [0; 4])? == 0,
            )
        },
        None,
    ),
    (
        "O_PATH neither reads",
        |d| rustix::io::read(open(d.join("file"), OFlags::PATH)?, &mut [0; 4]).map(drop),
        Some(Errno::BADF),
    ),
    (
        "O_PATH nor changes",
        |d| rustix::fs::fchmod(open(d.join("file"), OFlags::PATH)?, Mode::RWXU),
        Some(Errno::BADF),
    ),
    (
        "O_PATH of a link is the link",
        |d| {
            let stat = rustix::fs::fstat(open(d.join("link"), OFlags::PATH | OFlags::NOFOLLOW)?)?;
            check(rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink())
        },
        None,
    ),
    (
        "reading what is open for writing",
        |d| rustix::io::read(open(d.join("file"), OFlags::WRONLY)?, &mut [0; 4]).map(drop),
        Some(Errno::BADF),
    ),
    (
        "writing what is open for reading",
        |d| rustix::io::write(open(d.join("file"), OFlags::RDONLY)?, b"x").map(drop),
        Some(Errno::BADF),
    ),
    (
        "reading a directory",
        |d| rustix::io::read(open(d.join("dir"), OFlags::RDONLY)?, &mut [0; 4]).map(drop),
        Some(Errno::ISDIR),
    ),
    // The daemon kept to the flags of the open: a file opened to append appended for ever, whatever fcntl had
    // set since.
    (
        "O_APPEND is shown and can go",
        |d| {
            let file = open(d.join("file"), OFlags::WRONLY | OFlags::APPEND)?;
            check(fcntl_getfl(&file)?.contains(OFlags::APPEND))?;
            rustix::io::write(&file, b"ab")?;
            fcntl_setfl(&file, OFlags::empty())?;
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
            rustix::io::write(&file, b"cd")?;
            check(std::fs::read(d.join("file")).is_ok_and(|bytes| bytes == b"cd23456789ab"))
        },
        None,
    ),
    (
        "O_APPEND ignores the place of pwrite",
        |d| {
            let file = open(d.join("file"), OFlags::WRONLY | OFlags::APPEND)?;
            rustix::io::pwrite(&file, b"ab", 3)?;
            check(std::fs::read(d.join("file")).is_ok_and(|bytes| bytes == b"0123456789ab"))
        },
        None,
    ),
    (
        "O_APPEND can come later",
        |d| {
            let file = open(d.join("file"), OFlags::WRONLY)?;
            fcntl_setfl(&file, OFlags::APPEND)?;
            rustix::io::write(&file, b"ab")?;
            check(std::fs::read(d.join("file")).is_ok_and(|bytes| bytes == b"0123456789ab"))
        },
        None,
    ),
    (
        "O_SYNC and O_DSYNC write",
        |d| {
            for flag in [OFlags::SYNC, OFlags::DSYNC] {
                let file = open(d.join("file"), OFlags::WRONLY | flag)?;
                check(rustix::io::write(&file, b"ab")? == 2)?;
            }
            Ok(())
        },
        None,
    ),
    (
        "O_TMPFILE for reading only",
        |d| open(d.join("dir"), OFlags::TMPFILE | OFlags::RDONLY).map(drop),
        Some(Errno::INVAL),
    ),
    (
        "O_TMPFILE has no link",
        |d| {
            let file = open(d.join("dir"), OFlags::TMPFILE | OFlags::RDWR)?;
            check(rustix::fs::fstat(&file)?.st_nlink == 0)
        },
        None,
    ),
    (
        "O_TMPFILE leaves the directory empty",
        |d| {
            let _file = open(d.join("dir"), OFlags::TMPFILE | OFlags::RDWR)?;
            rustix::fs::rmdir(d.join("dir"))
        },
        None,
    ),
    ("O_NOATIME by root", |d| open(d.join("file"), OFlags::NOATIME).map(drop), None),
    (
        "the mode of a new file obeys 0",
        |d| {
            let file =
                rustix::fs::open(d.join("new"), OFlags::CREATE | OFlags::RDWR, Mode::empty())?;
            check(
                rustix::io::write(&file, b"x")? == 1
                    && rustix::fs::fstat(&file)?.st_mode & 0o7777 == 0,
            )
        },
        None,
    ),
];

fn open_errors_and_flags(place: &Place) {
    all(place, CASES);
}
