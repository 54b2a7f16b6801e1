//! What files hold: reads, writes, growth, holes, removal while open, durability, room.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::process::Stdio;

use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, fallocate};
use rustix::io::Errno;
use varve_testkit::Command;

use super::{Place, content, pattern, refused, refused_io, semantics};
use crate::harness::python;

semantics!(
    read_write,
    growing_and_shrinking,
    large_files_in_a_row,
    append,
    unlink_while_open,
    temporary_files,
    mmap,
    seek_mapped,
    truncate,
    fallocate_modes,
    seek_holes,
    survives_remount,
    daemon_death,
    inode_numbers,
    survives_upgrade,
    statfs,
);

fn open_new(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap()
}

fn read_write(place: &Place) {
    let path = place.dir().join("file");
    let file = open_new(&path);
    let mut model = Vec::new();
    for (n, (offset, len)) in
        [(0, 10), (5, 600), (300, 5), (40_000, 100), (16_380, 10), (90_000, 3), (0, 70_000)]
            .into_iter()
            .enumerate()
    {
        let bytes = pattern(n as u64, len);
        file.write_all_at(&bytes, offset as u64).unwrap();
        model.resize(model.len().max(offset + len), 0);
        model[offset..offset + len].copy_from_slice(&bytes);
        assert!(content(&File::open(&path).unwrap()) == model, "after write {n}");
    }
    let mut buffer = [1u8; 16];
    assert_eq!(file.read_at(&mut buffer, model.len() as u64 + 5).unwrap(), 0);
    assert_eq!(file.read_at(&mut buffer, model.len() as u64 - 4).unwrap(), 4);
    place.remount_after(file);
    assert!(fs::read(&path).unwrap() == model);
}

impl Place {
    /// Closes `file`, then remounts.
    fn remount_after(&self, file: File) {
        drop(file);
        self.remount();
    }
}

fn growing_and_shrinking(place: &Place) {
    let path = place.dir().join("grows");
    let mut model: Vec<u8> = Vec::new();
    for (step, len) in
        [300, 513, 20_000, 65_536, 65_537, 400_000, 70_000, 100, 0, 66_000, 5_000_000]
            .into_iter()
            .enumerate()
    {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).unwrap();
        if len < model.len() {
            file.set_len(len as u64).unwrap();
            model.truncate(len);
        } else {
            // Leave a hole of a third of the growth, then write the rest.
            let hole = (len - model.len()) / 3;
            let start = model.len() + hole;
            model.resize(start, 0);
            let bytes = pattern(step as u64, len - start);
            file.write_all_at(&bytes, start as u64).unwrap();
            model.extend_from_slice(&bytes);
        }
        drop(file);
        if step % 4 == 3 {
            place.remount();
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), model.len() as u64, "step {step}");
        assert!(fs::read(&path).unwrap() == model, "step {step}");
    }
    // Grown through one open handle, seen through another that was open all the while.
    let path = place.dir().join("grows-open");
    let writer = open_new(&path);
    let reader = File::open(&path).unwrap();
    let mut model = Vec::new();
    for n in 0..40 {
        let bytes = pattern(n, 5000);
        writer.write_all_at(&bytes, model.len() as u64).unwrap();
        model.extend_from_slice(&bytes);
        assert!(content(&reader) == model, "after {} bytes", model.len());
    }
    let late = File::open(&path).unwrap();
    assert!(content(&late) == model);
    writer.write_all_at(b"seen by all", 100).unwrap();
    model[100..111].copy_from_slice(b"seen by all");
    assert!(content(&late) == model && content(&reader) == model);
}

/// The later ones may begin as large files, and stay so when they turn out to be small; nobody is to see more of that than
/// the room they take.
fn large_files_in_a_row(place: &Place) {
    let dir = place.dir().join("row");
    fs::create_dir(&dir).unwrap();
    let mut lens = vec![100_000; 8];
    lens.extend([0, 200_000, 5, 5_000, 70_000]);
    for (n, len) in lens.iter().copied().enumerate() {
        let path = dir.join(n.to_string());
        let mut file = open_new(&path);
        let bytes = pattern(n as u64, len);
        for (index, piece) in bytes.chunks(10_000).enumerate() {
            file.write_all(piece).unwrap();
            let end = (index * 10_000 + piece.len()) as u64;
            assert_eq!(fs::metadata(&path).unwrap().len(), end, "file {n}");
        }
        assert!(content(&File::open(&path).unwrap()) == bytes, "file {n}");
        file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        file.sync_all().unwrap();
        let before = file.metadata().unwrap();
        assert_eq!((before.len(), before.mode() & 0o7777), (len as u64, 0o600));
        fs::rename(&path, dir.join(format!("moved{n}"))).unwrap();
        drop(file);
        let path = dir.join(format!("moved{n}"));
        let mut last = OpenOptions::new().append(true).open(&path).unwrap();
        last.write_all(b"end").unwrap();
        drop(last);
        let after = fs::metadata(&path).unwrap();
        assert_eq!((after.len(), after.ino()), (len as u64 + 3, before.ino()));
        assert!(after.modified().unwrap() >= before.modified().unwrap());
    }
    place.remount();
    for (n, len) in lens.iter().copied().enumerate() {
        let mut bytes = pattern(n as u64, len);
        bytes.extend_from_slice(b"end");
        assert!(fs::read(dir.join(format!("moved{n}"))).unwrap() == bytes, "file {n}");
    }
}

fn append(place: &Place) {
    let path = place.dir().join("log");
    fs::write(&path, "").unwrap();
    let writers: Vec<_> = (0..4)
        .map(|n| {
            Command::new("sh")
                .arg("-c")
                .arg(format!(
                    "for i in $(seq 200); do echo writer-{n}-$i-xxxxxxxxxxxxxxxx >> log; done"
                ))
                .current_dir(place.dir())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut writer in writers {
        assert!(writer.wait().unwrap().success());
    }
    let text = fs::read_to_string(&path).unwrap();
    let mut lines: Vec<_> = text.lines().collect();
    assert!(lines.iter().all(|line| line.ends_with("-xxxxxxxxxxxxxxxx")));
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 800);
}

fn unlink_while_open(place: &Place) {
    for len in [0, 100, 10_000, 200_000] {
        let path = place.dir().join("doomed");
        let mut file = open_new(&path);
        file.write_all(&pattern(1, len)).unwrap();
        fs::remove_file(&path).unwrap();
        refused_io(File::open(&path), Errno::NOENT);
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        assert!(content(&file) == pattern(1, len), "{len}");
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(&pattern(2, 70_000)).unwrap();
        let mut wanted = pattern(1, len);
        wanted.extend(pattern(2, 70_000));
        assert!(content(&file) == wanted, "{len}");
        fs::write(&path, "another").unwrap();
        assert!(content(&file) == wanted, "{len}");
        fs::remove_file(&path).unwrap();
    }
    // Replaced by rename while open.
    let (old, new) = (place.dir().join("old"), place.dir().join("new"));
    fs::write(&old, pattern(5, 9000)).unwrap();
    let held = File::open(&old).unwrap();
    fs::write(&new, "new").unwrap();
    fs::rename(&new, &old).unwrap();
    assert!(content(&held) == pattern(5, 9000));
    assert_eq!(fs::read(&old).unwrap(), b"new");
}

fn temporary_files(place: &Place) {
    let open = |flags| {
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(place.dir()).unwrap()
    };
    let tmpfile = rustix::fs::OFlags::TMPFILE.bits() as i32;
    let file = open(tmpfile);
    file.write_all_at(&pattern(1, 90_000), 0).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_dir(place.dir()).unwrap().count(), 0);
    let name = place.dir().join("named");
    let source = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    rustix::fs::linkat(CWD, source, CWD, &name, AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    drop(open(tmpfile));
    place.remount_after(file);
    assert!(fs::read(&name).unwrap() == pattern(1, 90_000));
}

/// Maps a file with Python, since mapping from safe Rust needs a crate of its own.
fn mmap(place: &Place) {
    let script = r#"
import mmap, os, sys
for size in (300, 30000, 300000):
    name = f"mapped-{size}"
    with open(name, "wb") as f:
        f.write(b"a" * size)
    fd = os.open(name, os.O_RDWR)
    shared = mmap.mmap(fd, size, mmap.MAP_SHARED)
    private = mmap.mmap(fd, size, mmap.MAP_PRIVATE)
    assert private[:3] == b"aaa"
    shared[0:5] = b"first"
    shared[size-4:size] = b"last"
    shared.flush()
    assert os.pread(fd, 5, 0) == b"first"
    os.pwrite(fd, b"written", 100)
    assert shared[100:107] == b"written", shared[100:107]
    private[50:57] = b"private"
    assert os.pread(fd, 7, 50) == b"aaaaaaa"
    shared[200:206] = b"unsynd"
    shared.close(); private.close(); os.close(fd)
    with open(name, "rb") as f:
        data = f.read()
    assert len(data) == size and data[:5] == b"first" and data[-4:] == b"last"
    assert data[100:107] == b"written" and data[200:206] == b"unsynd"
"#;
    if !python(&place.dir(), script) {
        return;
    }
    place.remount();
    let data = fs::read(place.dir().join("mapped-30000")).unwrap();
    assert_eq!((&data[..5], &data[200..206], data.len()), (&b"first"[..], &b"unsynd"[..], 30_000));
}

fn truncate(place: &Place) {
    let path = place.dir().join("cut");
    for start in [400usize, 30_000, 100_000] {
        fs::write(&path, pattern(3, start)).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.set_len(start as u64 / 2).unwrap();
        file.set_len(start as u64 * 3).unwrap();
        let mut wanted = pattern(3, start)[..start / 2].to_vec();
        wanted.resize(start * 3, 0);
        assert!(content(&file) == wanted, "{start}");
        drop(file);
        fs::write(&path, "").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    refused(rustix::fs::ftruncate(&file, u64::MAX), Errno::INVAL);
    let reader = File::open(&path).unwrap();
    refused(rustix::fs::ftruncate(&reader, 5), Errno::INVAL);
}

fn fallocate_modes(place: &Place) {
    for len in [400u64, 40_000, 400_000] {
        let path = place.dir().join(format!("allocated-{len}"));
        let file = open_new(&path);
        file.write_all_at(&pattern(4, len as usize), 0).unwrap();
        let mut model = pattern(4, len as usize);
        fallocate(&file, FallocateFlags::empty(), len, len).unwrap();
        model.resize(2 * len as usize, 0);
        assert!(content(&file) == model, "extend {len}");
        fallocate(&file, FallocateFlags::KEEP_SIZE, 2 * len, len).unwrap();
        assert!(content(&file) == model, "keep size {len}");
        let (from, cut) = (len / 4, len / 2);
        fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, cut)
            .unwrap();
        model[from as usize..(from + cut) as usize].fill(0);
        assert!(content(&file) == model, "punch {len}");
        fallocate(&file, FallocateFlags::ZERO_RANGE, 10, 20).unwrap();
        model[10..30].fill(0);
        assert!(content(&file) == model, "zero {len}");
        if place.is_varve() {
            refused(fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Errno::OPNOTSUPP);
            refused(fallocate(&file, FallocateFlags::INSERT_RANGE, 0, 4096), Errno::OPNOTSUPP);
        }
    }
}

fn seek_holes(place: &Place) {
    use rustix::fs::SeekFrom::{Data, Hole};
    let path = place.dir().join("sparse");
    let file = open_new(&path);
    // Data in the third unit of 16 KiB and again from 1 MiB on; both sides agree on these offsets.
    file.write_all_at(&pattern(6, 16_384), 32_768).unwrap();
    file.write_all_at(&pattern(7, 65_536), 1 << 20).unwrap();
    drop(file);
    let file = File::open(&path).unwrap();
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(Data(0)), Ok(32_768));
    assert_eq!(seek(Hole(0)), Ok(0));
    assert_eq!(seek(Hole(32_768)), Ok(49_152));
    assert_eq!(seek(Data(49_152)), Ok(1 << 20));
    assert_eq!(seek(Hole(1 << 20)), Ok((1 << 20) + 65_536));
    refused(seek(Data((1 << 20) + 65_536)), Errno::NXIO);
    let path = place.dir().join("small-sparse");
    let small = open_new(&path);
    small.write_all_at(&pattern(8, 10_000), 32_768).unwrap();
    drop(small);
    let small = File::open(&path).unwrap();
    assert_eq!(rustix::fs::seek(&small, Data(0)), Ok(32_768));
    assert_eq!(rustix::fs::seek(&small, Hole(32_768)), Ok(42_768));
    let path = place.dir().join("tiny");
    fs::write(&path, "data").unwrap();
    let tiny = File::open(&path).unwrap();
    assert_eq!(rustix::fs::seek(&tiny, Data(1)), Ok(1));
    assert_eq!(rustix::fs::seek(&tiny, Hole(1)), Ok(4));
}

/// What was written to mapped memory is data before anybody has told the file system of it.
fn seek_mapped(place: &Place) {
    let script = r#"
import mmap, os, shutil, subprocess
for size, data in ((30000, 0), (40000, 7000), (400000, 7000)):
    name = f"held-{size}"
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    os.pwrite(fd, b"d" * data, size - data)
    shared = mmap.mmap(fd, size)
    os.close(fd)
    shared[0:5] = b"hello"
    fd = os.open(name, os.O_RDONLY)
    assert os.lseek(fd, 0, os.SEEK_DATA) == 0, size
    os.close(fd)
    subprocess.run(["cp", name, f"{name}-copied"], check=True)
    with open(f"{name}-copied", "rb") as copied:
        assert copied.read(5) == b"hello", size
    shared.close()
"#;
    python(&place.dir(), script);
}

fn survives_remount(place: &Place) {
    for n in 0..300usize {
        let dir = place.dir().join(format!("d{}", n % 7));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("f{n}")), pattern(n as u64, n * 700)).unwrap();
    }
    let dir = File::open(place.dir()).unwrap();
    dir.sync_all().unwrap();
    drop(dir);
    place.remount();
    for n in 0..300usize {
        let path = place.dir().join(format!("d{}/f{n}", n % 7));
        assert!(fs::read(&path).unwrap() == pattern(n as u64, n * 700), "{}", path.display());
    }
}

fn survives_upgrade(place: &Place) {
    let path = place.dir().join("f");
    let (file, large) = (open_new(&path), open_new(&place.dir().join("large")));
    large.write_all_at(&pattern(1, 200_000), 0).unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    for round in 0..2_u8 {
        place.upgrade();
        file.write_all_at(&[round], u64::from(round)).unwrap();
        assert_eq!(content(&large), pattern(1, 200_000));
        let other = File::open(&path).unwrap();
        let taken = rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
        refused(taken, Errno::WOULDBLOCK);
    }
    assert_eq!(fs::read(&path).unwrap(), [0, 1]);
}

fn daemon_death(place: &Place) {
    let path = place.dir().join("f");
    let mut file = File::create(&path).unwrap();
    file.write_all(b"kept").unwrap();
    if place.is_varve() {
        place.kill_daemon();
        refused_io(file.write_all(b"lost"), Errno::NOTCONN);
        refused_io(fs::read_dir(place.dir()).map(drop), Errno::NOTCONN);
        place.mount_again();
    }
    assert_eq!(fs::read(&path).unwrap(), b"kept");
}

fn inode_numbers(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let mut seen = std::collections::HashSet::new();
    for round in 0..3 {
        for n in 0..50 {
            let path = place.dir().join(format!("f{n}"));
            fs::write(&path, "").unwrap();
            assert!(seen.insert(fs::metadata(&path).unwrap().ino()), "round {round}, file {n}");
            fs::remove_file(&path).unwrap();
        }
        place.remount();
    }
}

fn statfs(place: &Place) {
    let here = rustix::fs::statvfs(place.dir()).unwrap();
    let below = rustix::fs::statvfs(std::env::temp_dir()).unwrap();
    let bytes = |stat: &rustix::fs::StatVfs, blocks: u64| blocks * stat.f_frsize;
    assert_eq!(bytes(&here, here.f_blocks), bytes(&below, below.f_blocks));
    assert!(here.f_bavail > 0 && here.f_bfree >= here.f_bavail && here.f_ffree > 0);
    assert_eq!(here.f_namemax, 255);
    // A file opened for O_SYNC can be written and read back.
    let path = place.dir().join("synced");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .custom_flags(0o4_010_000)
        .open(&path)
        .unwrap();
    file.write_all(b"at once").unwrap();
    let mut text = String::new();
    File::open(&path).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "at once");
}
