//! Ways to read and write: direct, synchronous, mapped; and readers while names change.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, OFlags, RenameFlags};
use rustix::io::Errno;
use varve_testkit::at_end;

use super::{Place, content, pattern, refused, refused_io, semantics, tick};
use crate::harness::python;

semantics!(
    direct_io,
    synchronous_writes,
    append_always,
    mapped_files,
    seek_errors,
    access_times,
    access_times_of_directories,
    names_never_absent,
    exclusive_temporary_files,
);

fn open_with(path: &Path, flags: OFlags) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.custom_flags(flags.bits() as i32).open(path).unwrap()
}

/// Nothing, within the inode, in the store, in a file of the storage below.
const SIZES: [usize; 4] = [0, 300, 30_000, 300_000];

fn direct_io(place: &Place) {
    for size in SIZES {
        let path = place.dir().join(format!("direct-{size}"));
        fs::write(&path, pattern(1, size)).unwrap();
        let mut model = pattern(1, size);
        let direct = open_with(&path, OFlags::DIRECT);
        // Memory at a page's border, as direct I/O wants it.
        let page = 4096;
        let mut room = vec![0u8; 3 * page];
        let start = room.as_ptr().align_offset(page);
        let aligned = &mut room[start..start + page];
        aligned.copy_from_slice(&pattern(2, page));
        for at in [0usize, 8192, 65_536] {
            direct.write_all_at(aligned, at as u64).unwrap();
            model.resize(model.len().max(at + page), 0);
            model[at..at + page].copy_from_slice(aligned);
        }
        assert!(fs::read(&path).unwrap() == model, "{size}");
        let cached = open_with(&path, OFlags::empty());
        cached.write_all_at(b"through the cache", 100).unwrap();
        model[100..117].copy_from_slice(b"through the cache");
        assert_eq!(direct.read_at(aligned, 0).unwrap(), page);
        assert!(aligned == &model[..page], "{size}");
        if place.is_varve() && size < 100_000 {
            // The store below is not asked, so nothing has to be aligned.
            direct.write_all_at(b"odd", 33).unwrap();
            model[33..36].copy_from_slice(b"odd");
            let mut three = [0; 3];
            assert_eq!(direct.read_at(&mut three, 33).unwrap(), 3);
            assert_eq!(&three, b"odd");
        }
        drop((direct, cached));
        place.remount();
        assert!(fs::read(&path).unwrap() == model, "{size}");
    }
}

fn synchronous_writes(place: &Place) {
    for flags in [OFlags::SYNC, OFlags::DSYNC, OFlags::SYNC | OFlags::APPEND] {
        for size in SIZES {
            let path = place.dir().join(format!("sync-{}-{size}", flags.bits()));
            fs::write(&path, pattern(1, size)).unwrap();
            let file = open_with(&path, flags);
            let at = if flags.contains(OFlags::APPEND) { size } else { 0 };
            file.write_all_at(&pattern(2, 5000), at as u64).unwrap();
            let mut model = pattern(1, size);
            model.resize(size.max(at + 5000), 0);
            model[at..at + 5000].copy_from_slice(&pattern(2, 5000));
            assert!(content(&file) == model);
            let told = rustix::fs::fcntl_getfl(&file).unwrap();
            assert!(told.contains(flags), "{told:?}");
        }
    }
}

fn append_always(place: &Place) {
    for size in SIZES {
        let path = place.dir().join(format!("append-{size}"));
        fs::write(&path, pattern(1, size)).unwrap();
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        // The offset of a write to a file open to append counts for nothing.
        file.write_all_at(b"first", 0).unwrap();
        file.write_all_at(b"second", 7).unwrap();
        let wanted = [pattern(1, size), b"firstsecond".to_vec()].concat();
        assert!(fs::read(&path).unwrap() == wanted, "{size}");
        file.set_len(3).unwrap();
        file.write_all_at(b"end", 0).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 6);
    }
}

fn mapped_files(place: &Place) {
    let script = r#"
import mmap, os, signal, subprocess, sys
for size in (5000, 20_000, 200_000):
    fd = os.open(f"mapped-{size}", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"a" * size)
    shared = mmap.mmap(fd, size)
    # Cut and extended while mapped: what was cut off is zeros, also within the last page.
    os.ftruncate(fd, 100)
    os.ftruncate(fd, size)
    assert shared[99] == ord("a") and shared[100] == 0 and shared[size - 1] == 0
    os.pwrite(fd, b"Q", size - 1)
    assert shared[size - 1] == ord("Q")
    # Seen through another descriptor and another mapping, and the other way round.
    other = os.open(f"mapped-{size}", os.O_RDWR)
    again = mmap.mmap(other, size)
    os.pwrite(other, b"ZZ", 50)
    assert shared[50:52] == b"ZZ"
    again[7] = ord("C")
    assert shared[7] == ord("C") and os.pread(fd, 1, 7) == b"C"
    # It grows far beyond what the store keeps, while mapped.
    os.pwrite(fd, b"x" * 300_000, size)
    shared[10:13] = b"map"
    assert os.pread(other, 3, 10) == b"map"
    os.pwrite(fd, b"after", 100)
    assert shared[100:105] == b"after" and again[100:105] == b"after"
    third = os.open(f"mapped-{size}", os.O_RDWR)
    assert os.pread(third, 3, 10) == b"map"
    os.pwrite(third, b"third", 200)
    assert shared[200:205] == b"third"
    shared[300:306] = b"mapped"
    assert os.pread(third, 6, 300) == b"mapped"
    shared.close(); again.close()
    for descriptor in (fd, other, third):
        os.close(descriptor)
    # Opened anew, it may be served another way.
    fd = os.open(f"mapped-{size}", os.O_RDWR)
    assert os.pread(fd, 6, 300) == b"mapped" and os.fstat(fd).st_size == size + 300_000
    shared = mmap.mmap(fd, size)
    shared[0:2] = b"pp"
    assert os.pread(fd, 2, 0) == b"pp"
    os.pwrite(fd, b"vv", 0)
    assert shared[0:2] == b"vv"
    shared.close()
    # Beyond the end of the file there is nothing: SIGBUS.
    code = "import mmap,os,sys; f=os.open(sys.argv[1],os.O_RDWR); n=os.fstat(f).st_size; m=mmap.mmap(f,n); os.ftruncate(f,1); m[n-1]"
    done = subprocess.run([sys.executable, "-c", code, f"mapped-{size}"])
    assert done.returncode == -signal.SIGBUS, done
    # A mapping must not be able to do more than its descriptor.
    reader = os.open(f"mapped-{size}", os.O_RDONLY)
    try:
        mmap.mmap(reader, 1)
        raise AssertionError("writable")
    except PermissionError:
        pass
    private = mmap.mmap(reader, 1, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    private[0] = 0
"#;
    python(&place.dir(), script);
}

fn seek_errors(place: &Place) {
    use rustix::fs::{SeekFrom, seek};
    for size in SIZES {
        let path = place.dir().join(format!("seek-{size}"));
        fs::write(&path, pattern(1, size)).unwrap();
        let file = File::open(&path).unwrap();
        for past in [size as u64, size as u64 + 1, 1 << 62] {
            refused(seek(&file, SeekFrom::Data(past)), Errno::NXIO);
            refused(seek(&file, SeekFrom::Hole(past)), Errno::NXIO);
        }
        if size > 0 {
            let last = size as u64 - 1;
            assert_eq!(seek(&file, SeekFrom::Data(last)), Ok(last));
            assert_eq!(seek(&file, SeekFrom::Hole(last)), Ok(size as u64));
        }
        refused(seek(&file, SeekFrom::End(-(size as i64) - 1)), Errno::INVAL);
        assert_eq!(seek(&file, SeekFrom::End(10)), Ok(size as u64 + 10));
    }
}

fn access_times(place: &Place) {
    let atime = |path: &Path| {
        let meta = fs::metadata(path).unwrap();
        (meta.atime(), meta.atime_nsec())
    };
    let mut paths = Vec::new();
    for size in SIZES.into_iter().skip(1) {
        let path = place.dir().join(format!("read-{size}"));
        fs::write(&path, pattern(1, size)).unwrap();
        // Read for the first time after a change, although what was written may be cached; then again.
        let written = atime(&path);
        tick();
        assert!(fs::read(&path).unwrap() == pattern(1, size));
        let read = atime(&path);
        assert!(read > written, "{size}");
        tick();
        fs::read(&path).unwrap();
        assert_eq!(atime(&path), read, "{size}");
        fs::write(&path, pattern(2, size)).unwrap();
        tick();
        fs::read(&path).unwrap();
        assert!(atime(&path) > read, "{size}");
        paths.push(path);
    }
    if let Place::Mount(mount) = place {
        for options in ["noatime", "lazytime,noatime"] {
            mount.unmount();
            mount.mount_with(options);
            for path in &paths {
                fs::write(path, "changed").unwrap();
                let before = atime(path);
                tick();
                fs::read(path).unwrap();
                assert_eq!(atime(path), before);
            }
        }
    }
}

fn access_times_of_directories(place: &Place) {
    let Place::Mount(mount) = place else { return };
    let (dir, file) = (place.dir().join("listed"), place.dir().join("listed/file"));
    fs::create_dir(&dir).unwrap();
    let atime = |path: &Path| {
        let meta = fs::metadata(path).unwrap();
        (meta.atime(), meta.atime_nsec())
    };
    for (options, moves) in [("nodiratime,strictatime", false), ("diratime,strictatime", true)] {
        mount.unmount();
        mount.mount_with(options);
        fs::write(&file, "read").unwrap();
        let before = (atime(&dir), atime(&file));
        tick();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::read(&file).unwrap();
        let after = (atime(&dir), atime(&file));
        assert_eq!((after.0 > before.0, after.1 > before.1), (moves, true), "{options}");
    }
}

fn names_never_absent(place: &Place) {
    let dir = place.dir();
    fs::write(dir.join("target"), "version").unwrap();
    fs::write(dir.join("one"), "version").unwrap();
    fs::write(dir.join("two"), "version").unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = at_end(|| done.store(true, Ordering::Relaxed));
        let readers: Vec<_> = (0..4)
            .map(|n| {
                let (done, dir) = (&done, &dir);
                scope.spawn(move || {
                    let mut reads = 0;
                    while !done.load(Ordering::Relaxed) {
                        for name in ["target", "one", "two"] {
                            let path = dir.join(name);
                            match n % 2 {
                                0 => assert_eq!(fs::read(&path).unwrap(), b"version"),
                                _ => assert_eq!(fs::metadata(&path).unwrap().len(), 7),
                            }
                            reads += 1;
                        }
                        // A name known to be absent, which the next rename brings and takes again.
                        drop(fs::metadata(dir.join("next")));
                        drop(fs::metadata(dir.join("absent")));
                    }
                    reads
                })
            })
            .collect();
        for n in 0..600 {
            fs::write(dir.join("next"), "version").unwrap();
            fs::rename(dir.join("next"), dir.join("target")).unwrap();
            let (one, two) = (dir.join("one"), dir.join("two"));
            rustix::fs::renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE).unwrap();
            if n % 50 == 0 {
                std::thread::yield_now();
            }
        }
        drop(end);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    refused_io(fs::metadata(dir.join("next")), Errno::NOENT);
}

fn exclusive_temporary_files(place: &Place) {
    let dir = place.dir();
    let flags = (OFlags::TMPFILE | OFlags::EXCL).bits() as i32;
    let file = OpenOptions::new().write(true).custom_flags(flags).open(&dir).unwrap();
    let source = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let follow = rustix::fs::AtFlags::SYMLINK_FOLLOW;
    refused(rustix::fs::linkat(CWD, source, CWD, dir.join("named"), follow), Errno::NOENT);
    // Once it has lost the names it was given, it cannot have another.
    let flags = OFlags::TMPFILE.bits() as i32;
    let file = OpenOptions::new().write(true).custom_flags(flags).open(&dir).unwrap();
    let link = |name: &str| {
        let source = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        rustix::fs::linkat(CWD, source, CWD, dir.join(name), follow)
    };
    link("a").unwrap();
    link("b").unwrap();
    fs::remove_file(dir.join("a")).unwrap();
    fs::remove_file(dir.join("b")).unwrap();
    refused(link("c"), Errno::NOENT);
    fs::write(dir.join("file"), "").unwrap();
    let on_file = OpenOptions::new().write(true).custom_flags(flags).open(dir.join("file"));
    refused_io(on_file, Errno::NOTDIR);
    let to_read = rustix::fs::open(&dir, OFlags::TMPFILE | OFlags::RDONLY, 0o600.into());
    refused(to_read, Errno::INVAL);
}
