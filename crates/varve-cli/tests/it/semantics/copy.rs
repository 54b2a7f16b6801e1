//! copy_file_range.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, copy_file_range, fallocate};
use rustix::io::Errno;
use varve_testkit::rng::Rng;
use varve_testkit::{Command, skipped};

use super::{Place, as_user, changed, content, pattern, refused, semantics, tick};
use crate::harness::{python, run, varve};

semantics!(
    copy_ranges,
    copy_refusals,
    copies_with_holes,
    random_copies,
    copies_beyond_the_limit,
    copies_from_views,
    copies_by_cp,
    copies_that_share_room
);

/// Nothing, within the inode, in the store, in a file of the storage below.
const SIZES: [usize; 4] = [0, 300, 30_000, 300_000];

fn open_both(path: &std::path::Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Copies until all is copied or the source ends.
fn copy(from: &File, mut at: u64, to: &File, mut to_at: u64, len: usize) -> usize {
    let mut left = len;
    while left > 0 {
        match copy_file_range(from, Some(&mut at), to, Some(&mut to_at), left).unwrap() {
            0 => break,
            copied => left -= copied,
        }
    }
    len - left
}

fn copy_ranges(place: &Place) {
    let (source, target) = (place.dir().join("source"), place.dir().join("target"));
    for size in SIZES {
        for old in SIZES {
            fs::write(&source, pattern(1, size)).unwrap();
            fs::write(&target, pattern(2, old)).unwrap();
            let (from, to) = (open_both(&source), open_both(&target));
            let mut model = pattern(2, old);
            let cases = [
                (0, 0, size),
                (size / 3, old / 2, 50),
                (0, old + 5000, size + 10),
                (size / 2, 100_000, size),
                (size + 1, 0, 10),
            ];
            for (at, to_at, len) in cases {
                let bytes = pattern(1, size);
                let bytes = bytes.get(at..(at + len).min(size)).unwrap_or_default();
                let before = changed(&target);
                tick();
                let copied = copy(&from, at as u64, &to, to_at as u64, len);
                assert_eq!(copied, bytes.len(), "{size} {old} {at} {to_at} {len}");
                if !bytes.is_empty() {
                    model.resize(model.len().max(to_at + bytes.len()), 0);
                    model[to_at..to_at + bytes.len()].copy_from_slice(bytes);
                    let after = changed(&target);
                    assert!(after.0 > before.0 && after.1 > before.1);
                }
                assert!(content(&to) == model, "{size} {old} {at} {to_at} {len}");
            }
            drop((from, to));
            assert!(fs::read(&target).unwrap() == model, "{size} {old}");
        }
    }
    place.remount();
    assert_eq!(fs::metadata(&target).unwrap().len(), 605_000);
    // Within one file, side by side; and by the descriptors' own positions.
    for size in SIZES.into_iter().skip(1) {
        fs::write(&source, pattern(3, size)).unwrap();
        let (from, to) = (open_both(&source), open_both(&source));
        assert_eq!(copy(&from, 0, &to, size as u64, size), size);
        let doubled = [pattern(3, size), pattern(3, size)].concat();
        assert!(content(&to) == doubled, "{size}");
        assert_eq!(copy_file_range(&from, None, &to, Some(&mut (3 * size as u64)), 100), Ok(100));
        assert_eq!(rustix::fs::tell(&from), Ok(100));
        assert_eq!(content(&to)[3 * size..], pattern(3, size)[..100]);
    }
}

fn copy_refusals(place: &Place) {
    let (source, target) = (place.dir().join("source"), place.dir().join("target"));
    fs::set_permissions(place.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    for size in SIZES.into_iter().skip(1) {
        fs::write(&source, pattern(1, size)).unwrap();
        fs::write(&target, pattern(2, size)).unwrap();
        let (from, to, other) = (open_both(&source), open_both(&target), open_both(&source));
        let at = |from: &File, at: u64, to: &File, mut to_at: u64| {
            copy_file_range(from, Some(&mut { at }), to, Some(&mut to_at), 10)
        };
        refused(at(&from, 0, &other, 9), Errno::INVAL);
        refused(at(&from, 9, &other, 0), Errno::INVAL);
        let append = OpenOptions::new().append(true).open(&target).unwrap();
        refused(at(&from, 0, &append, 0), Errno::BADF);
        let (reader, writer) = (
            File::open(&target).unwrap(),
            OpenOptions::new().write(true).custom_flags(0).open(&target).unwrap(),
        );
        refused(at(&from, 0, &reader, 0), Errno::BADF);
        refused(at(&writer, 0, &to, 0), Errno::BADF);
        let dir = File::open(place.dir()).unwrap();
        refused(at(&dir, 0, &to, 0), Errno::ISDIR);
        refused(at(&from, 0, &to, i64::MAX as u64), Errno::FBIG);
        assert!(content(&to) == pattern(2, size));
        // Somebody who may write but not keep the set-id bits takes them.
        fs::set_permissions(&target, fs::Permissions::from_mode(0o6777)).unwrap();
        let copied = as_user(1000, &[1000], || {
            let (from, to) = (File::open(&source).unwrap(), open_both(&target));
            copy(&from, 0, &to, 0, 10)
        });
        let mode = fs::metadata(&target).unwrap().mode() & 0o7777;
        assert_eq!((copied, mode), (10, 0o777));
    }
}

fn copies_with_holes(place: &Place) {
    let (source, target) = (place.dir().join("source"), place.dir().join("target"));
    const LEN: u64 = 24 << 20;
    let from = File::create_new(&source).unwrap();
    from.set_len(LEN).unwrap();
    from.write_all_at(&pattern(1, 100_000), 5 << 20).unwrap();
    from.write_all_at(&pattern(2, 100_000), 20 << 20).unwrap();
    drop(from);
    let (from, to) = (File::open(&source).unwrap(), File::create_new(&target).unwrap());
    assert_eq!(copy(&from, 0, &to, 0, LEN as usize), LEN as usize);
    drop(to);
    assert!(fs::read(&target).unwrap() == fs::read(&source).unwrap());
    if place.is_varve() {
        let room = fs::metadata(&target).unwrap().blocks() * 512;
        assert!((200_000..1 << 20).contains(&room), "{room}");
    }
    // Over bytes, a hole is zeros; over a hole, it is a change all the same.
    fs::write(&target, pattern(3, 1 << 20)).unwrap();
    for what in ["bytes", "a hole"] {
        let (to, before) = (open_both(&target), changed(&target));
        tick();
        assert_eq!(copy(&from, 0, &to, 300_000, 500_000), 500_000);
        let after = changed(&target);
        assert!(after.0 > before.0 && after.1 > before.1, "a hole over {what}");
        let mut model = pattern(3, 1 << 20);
        model[300_000..800_000].fill(0);
        assert!(content(&to) == model, "a hole over {what}");
    }
}

/// Copies, writes, cuts and punches in three files at random, each beside what it should hold.
fn random_copies(place: &Place) {
    const SIZES: [u64; 8] = [0, 1, 500, 513, 16_384, 65_536, 65_537, 300_000];
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let path = |n: usize| place.dir().join(format!("{seed}-{n}"));
        let mut model: [Vec<u8>; 3] = Default::default();
        let mut files = [0, 1, 2].map(|n| {
            fs::write(path(n), "").unwrap();
            open_both(&path(n))
        });
        for step in 0..300 {
            let near = |rng: &mut Rng| {
                rng.pick(&SIZES).saturating_add(rng.below(600)).saturating_sub(rng.below(600))
            };
            let (n, at, len) = (rng.below(3) as usize, near(&mut rng), near(&mut rng));
            let end = (at + len) as usize;
            match rng.below(8) {
                0 | 1 => {
                    let bytes = pattern(rng.next_u64(), len as usize);
                    files[n].write_all_at(&bytes, at).unwrap();
                    model[n].resize(model[n].len().max(if len > 0 { end } else { 0 }), 0);
                    let place = at as usize..end;
                    model[n].get_mut(place).into_iter().for_each(|to| to.copy_from_slice(&bytes));
                }
                2 => {
                    files[n].set_len(at).unwrap();
                    model[n].resize(at as usize, 0);
                }
                3 if len > 0 => {
                    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(&files[n], punch, at, len).unwrap();
                    let held = model[n].len();
                    model[n][held.min(at as usize)..held.min(end)].fill(0);
                }
                4 => files[n] = open_both(&path(n)),
                _ => {
                    let (m, from) = (rng.below(3) as usize, near(&mut rng) as usize);
                    let bytes = model[m].get(from..model[m].len().min(from + len as usize));
                    let bytes = bytes.unwrap_or_default().to_vec();
                    // What is copied behind itself could be copied again.
                    let len = if m == n { bytes.len() } else { len as usize };
                    if m == n && from.abs_diff(at as usize) < bytes.len() {
                        let (file, mut from, mut to) = (&files[n], from as u64, at);
                        let copied =
                            copy_file_range(file, Some(&mut from), file, Some(&mut to), len);
                        refused(copied, Errno::INVAL);
                        continue;
                    }
                    let copied = copy(&files[m], from as u64, &files[n], at, len);
                    assert_eq!(copied, bytes.len(), "seed {seed}, step {step}");
                    if !bytes.is_empty() {
                        let end = at as usize + bytes.len();
                        model[n].resize(model[n].len().max(end), 0);
                        model[n][at as usize..end].copy_from_slice(&bytes);
                    }
                }
            }
            assert!(content(&files[n]) == model[n], "seed {seed}, step {step}");
        }
        drop(files);
        place.remount();
        for (n, model) in model.iter().enumerate() {
            assert!(fs::read(path(n)).unwrap() == *model, "seed {seed}, file {n} afterwards");
        }
    }
}

fn copies_beyond_the_limit(place: &Place) {
    let script = r#"
import errno, os, resource, signal, time
for size, limit in ((3000, 1000), (300_000, 100_000)):
    with open("source", "wb") as file:
        file.write(b"x" * size)
    source, target = os.open("source", os.O_RDONLY), os.open("target", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    signals = []
    signal.signal(signal.SIGXFSZ, lambda *_: signals.append(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    assert os.copy_file_range(source, target, size, 0, 0) == limit
    try:
        os.copy_file_range(source, target, size, 0, limit)
    except OSError as error:
        time.sleep(0.01)
        assert error.errno == errno.EFBIG and signals, (error, signals)
    else:
        raise AssertionError("granted")
    assert os.fstat(target).st_size == limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"#;
    python(&place.dir(), script);
}

fn copies_from_views(place: &Place) {
    let Place::Mount(mount) = place else { return };
    let dir = place.dir();
    for size in SIZES {
        fs::write(dir.join(size.to_string()), pattern(4, size)).unwrap();
    }
    run(varve().args(["snapshot", "create"]).arg(&dir).arg("before"));
    let begun = run(varve().args(["txn", "begin"]).arg(&dir)).stdout;
    let txn = PathBuf::from(String::from_utf8(begun).unwrap().trim_end());
    for size in SIZES {
        let name = size.to_string();
        let copy_to = |from: PathBuf, to: PathBuf| {
            let (from, to) = (File::open(from).unwrap(), File::create(to).unwrap());
            assert_eq!(copy(&from, 0, &to, 0, size + 10), size);
        };
        // Out of a snapshot, within a transaction, and over what a snapshot sees.
        copy_to(dir.join(".varve/snapshots/before").join(&name), dir.join("from-snapshot"));
        assert!(fs::read(dir.join("from-snapshot")).unwrap() == pattern(4, size), "{size}");
        copy_to(txn.join(&name), txn.join(format!("{name}-copy")));
        assert!(fs::read(txn.join(format!("{name}-copy"))).unwrap() == pattern(4, size), "{size}");
        fs::write(dir.join("new"), pattern(5, size)).unwrap();
        let (from, to) = (File::open(dir.join("new")).unwrap(), open_both(&dir.join(&name)));
        assert_eq!(copy(&from, 0, &to, 0, size), size);
        assert!(content(&to) == pattern(5, size), "{size}");
        let seen = fs::read(dir.join(".varve/snapshots/before").join(&name)).unwrap();
        assert!(seen == pattern(4, size), "{size}");
        // What a clone has not copied yet.
        fs::create_dir(dir.join(format!("d{size}"))).unwrap();
        fs::write(dir.join(format!("d{size}/file")), pattern(6, size)).unwrap();
        run(varve().arg("clone").args([&dir.join(format!("d{size}")), &dir.join("clone")]));
        let before = mount.count_objects();
        copy_to(dir.join("clone/file"), dir.join("from-clone"));
        assert_eq!(mount.count_objects(), before, "all of it is borrowed");
        assert!(fs::read(dir.join("from-clone")).unwrap() == pattern(6, size), "{size}");
        fs::remove_dir_all(dir.join("clone")).unwrap();
    }
    run(varve().args(["txn", "commit"]).arg(&dir).arg(txn.file_name().unwrap()));
    assert!(fs::read(dir.join("300000-copy")).unwrap() == pattern(4, 300_000));
}

fn copies_by_cp(place: &Place) {
    let (source, target) = (place.dir().join("source"), place.dir().join("target"));
    for size in SIZES {
        fs::write(&source, pattern(7, size)).unwrap();
        for how in ["auto", "never"] {
            run(Command::new("cp").arg(format!("--reflink={how}")).args([&source, &target]));
            assert!(fs::read(&target).unwrap() == pattern(7, size), "{size} {how}");
        }
    }
    if place.is_varve() {
        let (from, to) = (File::open(&source).unwrap(), open_both(&target));
        refused(rustix::fs::ioctl_ficlone(&to, &from), Errno::OPNOTSUPP);
        assert!(content(&to) == pattern(7, 300_000));
    }
}

/// A file system that shares room between files; unmounted when dropped, with what is mounted in it.
struct Sharing(tempfile::TempDir);

impl Drop for Sharing {
    fn drop(&mut self) {
        for dir in ["below/mnt", "below"] {
            let dir = self.0.path().join(dir);
            let _ = rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

fn copies_that_share_room(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let sharing = Sharing(tempfile::tempdir().unwrap());
    let (image, below) = (sharing.0.path().join("image"), sharing.0.path().join("below"));
    File::create_new(&image).unwrap().set_len(400 << 20).unwrap();
    fs::create_dir(&below).unwrap();
    let done = |command: &mut Command| command.output().is_ok_and(|done| done.status.success());
    if !done(Command::new("mkfs.xfs").arg("-q").arg(&image))
        || !done(Command::new("mount").args(["-t", "xfs", "-o", "loop"]).args([&image, &below]))
    {
        skipped("no XFS can be made and mounted here");
        return;
    }
    let (store, mnt) = (below.join("store"), below.join("mnt"));
    fs::create_dir(&mnt).unwrap();
    run(varve().arg("format").arg(&store));
    run(varve().arg("mount").args([&store, &mnt]));
    fs::write(mnt.join("large"), pattern(8, 16 << 20)).unwrap();
    let free = || {
        run(Command::new("sync").arg("-f").arg(&mnt));
        let below = rustix::fs::statvfs(&below).unwrap();
        below.f_bfree * below.f_frsize
    };
    let before = free();
    run(Command::new("cp").args([mnt.join("large"), mnt.join("copy")]));
    assert!(fs::read(mnt.join("copy")).unwrap() == pattern(8, 16 << 20));
    let taken = before.saturating_sub(free());
    assert!(taken < 4 << 20, "{taken} bytes");
    run(varve().arg("umount").arg(&mnt));
    run(varve().arg("fsck").arg(&store));
}
