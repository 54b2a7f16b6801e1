//! chmod, chown, utimensat, stat, statfs: what they change and what they leave.

use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, StatxFlags, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, Uid,
};
use rustix::io::{Errno, Result};

use super::{Case, all, check, open};
use crate::semantics::{Place, semantics};

semantics!(attributes_table);

fn stat(dir: &Path, name: &str) -> Result<Stat> {
    rustix::fs::lstat(dir.join(name))
}

fn chmod(dir: &Path, name: &str, mode: u32) -> Result<()> {
    rustix::fs::chmod(dir.join(name), Mode::from_raw_mode(mode))
}

fn chown(dir: &Path, name: &str, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    rustix::fs::chown(dir.join(name), uid.map(Uid::from_raw), gid.map(Gid::from_raw))
}

fn touch(dir: &Path, name: &str, atime: (i64, i64), mtime: (i64, i64)) -> Result<()> {
    let time = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
    rustix::fs::utimensat(CWD, dir.join(name), &times, AtFlags::SYMLINK_NOFOLLOW)
}

const NOW: i64 = UTIME_NOW;
const OMIT: i64 = UTIME_OMIT;

const CASES: &[Case] = &[
    (
        "every mode bit is kept",
        |d| {
            (0..=0o7777).step_by(37).try_for_each(|mode| {
                chmod(d, "file", mode)?;
                check(stat(d, "file")?.st_mode == 0o100_000 | mode)
            })
        },
        None,
    ),
    (
        "chmod of a directory",
        |d| {
            chmod(d, "dir", 0o7755)?;
            check(stat(d, "dir")?.st_mode & 0o7777 == 0o7755)
        },
        None,
    ),
    (
        "chmod follows links",
        |d| {
            chmod(d, "link", 0o600)?;
            check(stat(d, "file")?.st_mode & 0o777 == 0o600)
        },
        None,
    ),
    (
        "fchmod of a removed file",
        |d| {
            let file = open(d.join("file"), OFlags::RDONLY)?;
            rustix::fs::unlink(d.join("file"))?;
            rustix::fs::fchmod(&file, Mode::from_raw_mode(0o611))?;
            check(rustix::fs::fstat(&file)?.st_mode & 0o7777 == 0o611)
        },
        None,
    ),
    (
        "fchmod of what is open for reading",
        |d| rustix::fs::fchmod(open(d.join("file"), OFlags::RDONLY)?, Mode::RWXU),
        None,
    ),
    (
        "chmod leaves mtime",
        |d| {
            touch(d, "file", (5, 5), (7, 7))?;
            chmod(d, "file", 0o600)?;
            check(stat(d, "file")?.st_mtime == 7 && stat(d, "file")?.st_ctime > 1000)
        },
        None,
    ),
    (
        "chown sets both",
        |d| {
            chown(d, "file", Some(70_000), Some(80_000))?;
            check(stat(d, "file")?.st_uid == 70_000 && stat(d, "file")?.st_gid == 80_000)
        },
        None,
    ),
    (
        "chown with -1 leaves",
        |d| {
            chown(d, "file", Some(5), Some(6))?;
            chown(d, "file", None, Some(7))?;
            chown(d, "file", None, None)?;
            check(stat(d, "file")?.st_uid == 5 && stat(d, "file")?.st_gid == 7)
        },
        None,
    ),
    (
        "the largest user and group",
        |d| {
            chown(d, "file", Some(u32::MAX - 1), Some(u32::MAX - 1))?;
            check(
                stat(d, "file")?.st_uid == u32::MAX - 1 && stat(d, "file")?.st_gid == u32::MAX - 1,
            )
        },
        None,
    ),
    (
        "chown takes the set-id bits of a program",
        |d| {
            chmod(d, "file", 0o6755)?;
            chown(d, "file", Some(5), None)?;
            check(stat(d, "file")?.st_mode & 0o7777 == 0o755)
        },
        None,
    ),
    (
        "chown leaves the set-group-id bit of what nobody's group executes",
        |d| {
            chmod(d, "file", 0o2644)?;
            chown(d, "file", Some(5), None)?;
            check(stat(d, "file")?.st_mode & 0o7777 == 0o2644)
        },
        None,
    ),
    (
        "chown leaves the bits of a directory",
        |d| {
            chmod(d, "dir", 0o6755)?;
            chown(d, "dir", Some(5), Some(5))?;
            check(stat(d, "dir")?.st_mode & 0o7777 == 0o6755)
        },
        None,
    ),
    (
        "lchown is of the link",
        |d| {
            let (uid, gid) = (Some(Uid::from_raw(5)), Some(Gid::from_raw(6)));
            rustix::fs::chownat(CWD, d.join("link"), uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
            check(stat(d, "link")?.st_uid == 5 && stat(d, "file")?.st_uid == 0)
        },
        None,
    ),
    (
        "utimensat sets nanoseconds",
        |d| {
            touch(d, "file", (1, 999_999_999), (2, 1))?;
            let stat = stat(d, "file")?;
            check((stat.st_atime, stat.st_atime_nsec) == (1, 999_999_999))?;
            check((stat.st_mtime, stat.st_mtime_nsec) == (2, 1))
        },
        None,
    ),
    (
        "utimensat with nanoseconds out of range",
        |d| touch(d, "file", (1, 1_000_000_000), (2, 1)),
        Some(Errno::INVAL),
    ),
    (
        "utimensat with negative nanoseconds",
        |d| touch(d, "file", (1, -1), (2, 1)),
        Some(Errno::INVAL),
    ),
    (
        "UTIME_OMIT leaves one",
        |d| {
            touch(d, "file", (1, 1), (2, 2))?;
            touch(d, "file", (0, OMIT), (3, 3))?;
            touch(d, "file", (4, 4), (0, OMIT))?;
            check(stat(d, "file")?.st_atime == 4 && stat(d, "file")?.st_mtime == 3)
        },
        None,
    ),
    (
        "UTIME_NOW takes the clock",
        |d| {
            touch(d, "file", (0, NOW), (2, 2))?;
            check(stat(d, "file")?.st_atime > 1_000_000_000 && stat(d, "file")?.st_mtime == 2)
        },
        None,
    ),
    ("UTIME_OMIT twice does not even look", |d| touch(d, "absent", (0, OMIT), (0, OMIT)), None),
    (
        "times of a symbolic link",
        |d| {
            touch(d, "link", (11, 0), (12, 0))?;
            check(stat(d, "link")?.st_mtime == 12 && stat(d, "file")?.st_mtime != 12)
        },
        None,
    ),
    (
        "times of a directory",
        |d| {
            touch(d, "dir", (11, 0), (12, 0))?;
            check(stat(d, "dir")?.st_mtime == 12)
        },
        None,
    ),
    (
        "times before 1970 and after 2106",
        |d| {
            touch(d, "file", (-2_000_000_000, 5), (5_000_000_000, 6))?;
            check(
                stat(d, "file")?.st_atime == -2_000_000_000
                    && stat(d, "file")?.st_mtime == 5_000_000_000,
            )
        },
        None,
    ),
    (
        "futimens of a file open for reading",
        |d| {
            let time = Timespec { tv_sec: 9, tv_nsec: 0 };
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::futimens(open(d.join("file"), OFlags::RDONLY)?, &times)?;
            check(stat(d, "file")?.st_mtime == 9)
        },
        None,
    ),
    (
        "statx has a birth time that stays",
        |d| {
            let birth = |name: &str| {
                let found =
                    rustix::fs::statx(CWD, d.join(name), AtFlags::empty(), StatxFlags::ALL)?;
                check(found.stx_mask & StatxFlags::BTIME.bits() != 0)?;
                Ok((found.stx_btime.tv_sec, found.stx_btime.tv_nsec))
            };
            let before: Result<_> = birth("file");
            touch(d, "file", (1, 1), (2, 2))?;
            chmod(d, "file", 0o600)?;
            check(before? == birth("file")?)
        },
        None,
    ),
    (
        "statx with unknown flags",
        |d| {
            rustix::fs::statx(
                CWD,
                d.join("file"),
                AtFlags::from_bits_retain(1 << 30),
                StatxFlags::ALL,
            )
            .map(drop)
        },
        Some(Errno::INVAL),
    ),
    (
        "stat counts 512-byte blocks",
        |d| {
            std::fs::write(d.join("file"), vec![1; 200_000]).unwrap();
            rustix::fs::fsync(open(d.join("file"), OFlags::RDONLY)?)?;
            check(
                (391..=512).contains(&stat(d, "file")?.st_blocks)
                    && stat(d, "file")?.st_blksize >= 512,
            )
        },
        None,
    ),
    (
        "types",
        |d| {
            let kind = |name: &str| stat(d, name).map(|stat| FileType::from_raw_mode(stat.st_mode));
            check(kind("file")? == FileType::RegularFile && kind("dir")? == FileType::Directory)?;
            check(kind("link")? == FileType::Symlink && kind("fifo")? == FileType::Fifo)
        },
        None,
    ),
    (
        "all of one device, with inode numbers of their own",
        |d| {
            let names = ["file", "dir", "full", "full/sub", "link", "fifo", "dangling"];
            let mut seen = Vec::new();
            for name in names {
                seen.push(stat(d, name)?.st_ino);
                check(stat(d, name)?.st_dev == stat(d, ".")?.st_dev)?;
            }
            seen.sort_unstable();
            seen.dedup();
            check(seen.len() == names.len())
        },
        None,
    ),
    (
        "statfs",
        |d| {
            let found = rustix::fs::statvfs(d.join("file"))?;
            check(
                found.f_namemax == 255
                    && found.f_bavail <= found.f_bfree
                    && found.f_bfree <= found.f_blocks,
            )
        },
        None,
    ),
];

fn attributes_table(place: &Place) {
    all(place, CASES);
}
