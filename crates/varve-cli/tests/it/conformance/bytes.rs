//! read, write, lseek, truncate, fallocate, fsync: offsets, limits and errors.

use std::path::Path;

use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, ftruncate, seek};
use rustix::io::{Errno, Result, pread, pwrite, read, write};

use super::{Case, all, check, open};
use crate::semantics::{Place, semantics};

semantics!(bytes_table);

fn file(dir: &Path) -> Result<OwnedFd> {
    open(dir.join("file"), OFlags::RDWR)
}

fn size(file: &OwnedFd) -> Result<i64> {
    rustix::fs::fstat(file).map(|stat| stat.st_size)
}

fn holds(dir: &Path, bytes: &[u8]) -> Result<()> {
    check(std::fs::read(dir.join("file")).is_ok_and(|found| found == bytes))
}

const CASES: &[Case] = &[
    (
        "read moves the place",
        |d| {
            let f = file(d)?;
            let mut buffer = [0; 4];
            check(
                read(&f, &mut buffer)? == 4
                    && read(&f, &mut buffer)? == 4
                    && read(&f, &mut buffer)? == 2,
            )?;
            check(read(&f, &mut buffer)? == 0)
        },
        None,
    ),
    (
        "pread does not",
        |d| {
            let f = file(d)?;
            let mut buffer = [0; 4];
            check(pread(&f, &mut buffer, 8)? == 2 && seek(&f, SeekFrom::Current(0))? == 0)
        },
        None,
    ),
    ("pread past the end", |d| check(pread(file(d)?, &mut [0; 4], 1 << 40)? == 0), None),
    ("read of nothing", |d| check(read(file(d)?, &mut [0; 0])? == 0), None),
    (
        "write of nothing changes nothing",
        |d| {
            let f = file(d)?;
            check(pwrite(&f, b"", 1 << 30)? == 0 && size(&f)? == 10)
        },
        None,
    ),
    (
        "pwrite past the end leaves zeros",
        |d| {
            pwrite(file(d)?, b"x", 12)?;
            holds(d, b"0123456789\0\0x")
        },
        None,
    ),
    (
        "write in the middle",
        |d| {
            pwrite(file(d)?, b"xy", 4)?;
            holds(d, b"0123xy6789")
        },
        None,
    ),
    (
        "pwrite at a negative offset",
        |d| pwrite(file(d)?, b"x", u64::MAX).map(drop),
        Some(Errno::INVAL),
    ),
    (
        "pread at a negative offset",
        |d| pread(file(d)?, &mut [0; 1], u64::MAX).map(drop),
        Some(Errno::INVAL),
    ),
    (
        "writev and readv",
        |d| {
            let f = file(d)?;
            rustix::io::pwritev(
                &f,
                &[std::io::IoSlice::new(b"ab"), std::io::IoSlice::new(b"cd")],
                2,
            )?;
            let (mut a, mut b) = ([0; 3], [0; 3]);
            let read = rustix::io::preadv(
                &f,
                &mut [std::io::IoSliceMut::new(&mut a), std::io::IoSliceMut::new(&mut b)],
                1,
            )?;
            check(read == 6 && &a == b"1ab" && &b == b"cd6")
        },
        None,
    ),
    (
        "lseek from all three ends",
        |d| {
            let f = file(d)?;
            check(seek(&f, SeekFrom::End(-3))? == 7 && seek(&f, SeekFrom::Current(2))? == 9)?;
            check(seek(&f, SeekFrom::Start(100))? == 100 && read(&f, &mut [0; 1])? == 0)
        },
        None,
    ),
    (
        "lseek before the beginning",
        |d| seek(file(d)?, SeekFrom::End(-11)).map(drop),
        Some(Errno::INVAL),
    ),
    (
        "lseek of a fifo",
        |d| seek(open(d.join("fifo"), OFlags::RDWR)?, SeekFrom::Start(0)).map(drop),
        Some(Errno::SPIPE),
    ),
    ("SEEK_DATA at the end", |d| seek(file(d)?, SeekFrom::Data(10)).map(drop), Some(Errno::NXIO)),
    ("SEEK_HOLE at the end", |d| seek(file(d)?, SeekFrom::Hole(10)).map(drop), Some(Errno::NXIO)),
    (
        "SEEK_HOLE of a full file is its end",
        |d| check(seek(file(d)?, SeekFrom::Hole(3))? == 10),
        None,
    ),
    (
        "SEEK_DATA of data is the place itself",
        |d| check(seek(file(d)?, SeekFrom::Data(3))? == 3),
        None,
    ),
    (
        "SEEK_DATA over a large hole",
        |d| {
            let f = file(d)?;
            ftruncate(&f, 0)?;
            pwrite(&f, b"x", 1 << 20)?;
            // While it may be mapped and written to, a file need not tell of holes.
            drop(f);
            let f = open(d.join("file"), OFlags::RDONLY)?;
            let data = seek(&f, SeekFrom::Data(0))?;
            check(data > 0 && data <= 1 << 20 && seek(&f, SeekFrom::Hole(data))? == (1 << 20) + 1)
        },
        None,
    ),
    (
        "ftruncate cuts and extends by zeros",
        |d| {
            let f = file(d)?;
            ftruncate(&f, 4)?;
            ftruncate(&f, 6)?;
            holds(d, b"0123\0\0")
        },
        None,
    ),
    (
        "ftruncate leaves the place",
        |d| {
            let f = file(d)?;
            seek(&f, SeekFrom::Start(8))?;
            ftruncate(&f, 2)?;
            write(&f, b"x")?;
            holds(d, b"01\0\0\0\0\0\0x")
        },
        None,
    ),
    (
        "ftruncate of what is open for reading",
        |d| ftruncate(open(d.join("file"), OFlags::RDONLY)?, 1),
        Some(Errno::INVAL),
    ),
    (
        "ftruncate of a fifo",
        |d| ftruncate(open(d.join("fifo"), OFlags::RDWR)?, 1),
        Some(Errno::INVAL),
    ),
    ("ftruncate below zero", |d| ftruncate(file(d)?, u64::MAX), Some(Errno::INVAL)),
    (
        "ftruncate of a removed file",
        |d| {
            let f = file(d)?;
            rustix::fs::unlink(d.join("file"))?;
            ftruncate(&f, 100_000)?;
            check(size(&f)? == 100_000)
        },
        None,
    ),
    (
        "a sparse file of a terabyte",
        |d| {
            let f = file(d)?;
            pwrite(&f, b"end", 1 << 40)?;
            let mut buffer = [9; 3];
            check(
                size(&f)? == (1 << 40) + 3
                    && pread(&f, &mut buffer, 1 << 39)? == 3
                    && buffer == [0; 3],
            )?;
            check(rustix::fs::fstat(&f)?.st_blocks < 1000)
        },
        None,
    ),
    (
        "fallocate of nothing",
        |d| fallocate(file(d)?, FallocateFlags::empty(), 0, 0),
        Some(Errno::INVAL),
    ),
    (
        "fallocate below zero",
        |d| fallocate(file(d)?, FallocateFlags::empty(), u64::MAX, 1),
        Some(Errno::INVAL),
    ),
    (
        "fallocate beyond the largest offset",
        |d| fallocate(file(d)?, FallocateFlags::empty(), i64::MAX as u64, 10),
        Some(Errno::FBIG),
    ),
    (
        "fallocate of what is open for reading",
        |d| fallocate(open(d.join("file"), OFlags::RDONLY)?, FallocateFlags::empty(), 0, 1),
        Some(Errno::BADF),
    ),
    (
        "fallocate of a fifo",
        |d| fallocate(open(d.join("fifo"), OFlags::RDWR)?, FallocateFlags::empty(), 0, 1),
        Some(Errno::SPIPE),
    ),
    (
        "fallocate of a directory",
        |d| fallocate(open(d.join("dir"), OFlags::RDONLY)?, FallocateFlags::empty(), 0, 1),
        Some(Errno::BADF),
    ),
    (
        "punching without keeping the size",
        |d| fallocate(file(d)?, FallocateFlags::PUNCH_HOLE, 0, 1),
        Some(Errno::OPNOTSUPP),
    ),
    (
        "punching and zeroing at once",
        |d| {
            let both =
                FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
            fallocate(file(d)?, both, 0, 1)
        },
        Some(Errno::OPNOTSUPP),
    ),
    (
        "fsync and fdatasync",
        |d| {
            rustix::fs::fsync(open(d.join("file"), OFlags::RDONLY)?)?;
            rustix::fs::fdatasync(file(d)?)?;
            rustix::fs::fsync(open(d.join("dir"), OFlags::RDONLY)?)?;
            rustix::fs::fdatasync(open(d.join("dir"), OFlags::RDONLY)?)
        },
        None,
    ),
    (
        "fsync of a fifo",
        |d| rustix::fs::fsync(open(d.join("fifo"), OFlags::RDWR)?),
        Some(Errno::INVAL),
    ),
    ("syncfs", |d| rustix::fs::syncfs(open(d.join("dir"), OFlags::RDONLY)?), None),
    (
        "O_DIRECT reads and writes what buffers see",
        |d| {
            std::fs::write(d.join("file"), vec![7; 131_072]).unwrap();
            let f = open(d.join("file"), OFlags::RDWR | OFlags::DIRECT)?;
            let mut memory = vec![0_u8; 3 * 4096];
            let begin = memory.as_ptr().align_offset(4096);
            let page = &mut memory[begin..begin + 4096];
            check(pread(&f, &mut *page, 65_536)? == 4096 && page.iter().all(|byte| *byte == 7))?;
            page.fill(8);
            check(pwrite(&f, &*page, 4096)? == 4096)?;
            let found = std::fs::read(d.join("file")).unwrap();
            check(
                found[4095] == 7
                    && found[4096..8192].iter().all(|byte| *byte == 8)
                    && found[8192] == 7,
            )
        },
        None,
    ),
    (
        "copy_file_range",
        |d| {
            let (from, to) = (file(d)?, open(d.join("new"), OFlags::CREATE | OFlags::RDWR)?);
            let (mut at, mut place) = (2, 1);
            check(
                rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut place), 5)? == 5,
            )?;
            check(
                at == 7
                    && place == 6
                    && std::fs::read(d.join("new")).is_ok_and(|found| found == b"\x0023456"),
            )
        },
        None,
    ),
    (
        "copy_file_range past the end",
        |d| {
            let (from, to) = (file(d)?, open(d.join("new"), OFlags::CREATE | OFlags::RDWR)?);
            check(rustix::fs::copy_file_range(&from, Some(&mut 10), &to, None, 5)? == 0)
        },
        None,
    ),
    (
        "copy_file_range over itself",
        |d| {
            rustix::fs::copy_file_range(file(d)?, Some(&mut 0), file(d)?, Some(&mut 2), 5).map(drop)
        },
        Some(Errno::INVAL),
    ),
    (
        "copy_file_range into what is open for reading",
        |d| {
            rustix::fs::copy_file_range(
                file(d)?,
                None,
                open(d.join("file"), OFlags::RDONLY)?,
                None,
                5,
            )
            .map(drop)
        },
        Some(Errno::BADF),
    ),
    (
        "copy_file_range into what appends",
        |d| {
            let to = open(d.join("new"), OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND)?;
            rustix::fs::copy_file_range(file(d)?, None, to, None, 5).map(drop)
        },
        Some(Errno::BADF),
    ),
    (
        "copy_file_range of a directory",
        |d| {
            rustix::fs::copy_file_range(
                open(d.join("dir"), OFlags::RDONLY)?,
                None,
                file(d)?,
                None,
                5,
            )
            .map(drop)
        },
        Some(Errno::ISDIR),
    ),
];

fn bytes_table(place: &Place) {
    all(place, CASES);
}
