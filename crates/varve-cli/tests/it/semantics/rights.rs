//! What users other than root may do, and what their changes take from a file.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, XattrFlags,
};
use rustix::io::Errno;
use varve_testkit::{Command, put_program};

use super::{
    NamedChange, Place, as_user, changed, chmod, mode, pattern, refused, refused_io, semantics,
    tick,
};

semantics!(
    groups_and_sticky_directories,
    set_id_on_every_change,
    set_group_id_without_execution,
    set_id_of_programs,
    capabilities,
    xattr_rights,
    xattr_limits,
    setting_times,
    not_supported
);

fn groups_and_sticky_directories(place: &Place) {
    let dir = place.dir().join("shared");
    chmod(&place.dir(), 0o755);
    fs::create_dir(&dir).unwrap();
    let file = dir.join("file");
    fs::write(&file, "x").unwrap();
    chown(&file, Some(1000), Some(2000)).unwrap();
    chmod(&file, 0o640);
    let reads = |uid, groups: &[u32]| as_user(uid, groups, || File::open(&file).is_ok());
    assert!(reads(1001, &[2000]) && reads(1001, &[1001, 2000]) && !reads(1001, &[1001]));
    // The owner may give the file to groups they are in, to nobody else.
    as_user(1000, &[1000, 3000], || {
        chown(&file, None, Some(3000)).unwrap();
        refused_io(chown(&file, None, Some(4000)), Errno::PERM);
        refused_io(chown(&file, Some(1001), None), Errno::PERM);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o2750)).unwrap();
    });
    assert_eq!((mode(&file), fs::metadata(&file).unwrap().gid()), (0o2750, 3000));
    // Outside of its group the bit is not given.
    as_user(1000, &[1000], || {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o2750)).unwrap();
    });
    assert_eq!(mode(&file), 0o750);
    as_user(1001, &[1001], || {
        refused_io(fs::set_permissions(&file, fs::Permissions::from_mode(0o777)), Errno::PERM);
    });
    // In a sticky directory names are their owners' and the directory's owner's.
    chmod(&dir, 0o1777);
    as_user(1001, &[1001], || {
        refused_io(fs::remove_file(&file), Errno::PERM);
        refused_io(fs::rename(&file, dir.join("mine")), Errno::PERM);
        fs::write(dir.join("mine"), "").unwrap();
        refused_io(fs::rename(dir.join("mine"), &file), Errno::PERM);
    });
    as_user(1000, &[1000], || fs::rename(&file, dir.join("renamed")).unwrap());
    chown(&dir, Some(1001), None).unwrap();
    as_user(1001, &[1001], || fs::remove_file(dir.join("renamed")).unwrap());
}

fn set_id_on_every_change(place: &Place) {
    chmod(&place.dir(), 0o755);
    for size in [0usize, 300, 30_000, 300_000] {
        let path = place.dir().join(format!("program-{size}"));
        fs::write(&path, pattern(1, size)).unwrap();
        let open = || OpenOptions::new().write(true).open(&path).unwrap();
        let allocate = |flags| rustix::fs::fallocate(open(), flags, 0, 5).unwrap();
        let keep = FallocateFlags::KEEP_SIZE;
        let changes: [(&str, &(dyn Fn() + Sync)); 7] = [
            ("write", &|| open().write_all_at(b"x", 0).unwrap()),
            ("truncate", &|| open().set_len(size as u64).unwrap()),
            ("extend", &|| allocate(FallocateFlags::empty())),
            ("reserve", &|| allocate(keep)),
            ("punch", &|| allocate(FallocateFlags::PUNCH_HOLE | keep)),
            ("zero", &|| allocate(FallocateFlags::ZERO_RANGE)),
            ("cut on open", &|| drop(File::create(&path).unwrap())),
        ];
        for (what, change) in changes {
            chmod(&path, 0o6777);
            change();
            assert_eq!(mode(&path), 0o6777, "{what} of {size} bytes by root");
            as_user(1000, &[1000], change);
            assert_eq!(mode(&path), 0o777, "{what} of {size} bytes by another user");
        }
        chmod(&path, 0o6777);
        let handed_over = open();
        as_user(1000, &[1000], || handed_over.write_all_at(b"x", 0).unwrap());
        assert_eq!(mode(&path), 0o777, "by another user, who did not open it, {size} bytes");
        drop(handed_over);
        chmod(&path, 0o6777);
        as_user(1000, &[1000], || File::open(&path).unwrap().sync_all().unwrap());
        assert_eq!(mode(&path), 0o6777, "reading changes nothing");
        chown(&path, None, Some(7)).unwrap();
        assert_eq!(mode(&path), 0o777);
        // Without the right to execute for the group the bit means something else, and a chown leaves it.
        chmod(&path, 0o6767);
        chown(&path, Some(8), None).unwrap();
        assert_eq!(mode(&path), 0o2767);
    }
    let dir = place.dir().join("dir");
    fs::create_dir(&dir).unwrap();
    chmod(&dir, 0o6777);
    chown(&dir, Some(1), Some(1)).unwrap();
    assert_eq!(mode(&dir), 0o6777);
}

/// A set-group-id file that its group may not execute kept the bit whoever changed it. It is to keep it only from root and from
/// members of the group.
fn set_group_id_without_execution(place: &Place) {
    const GROUP: u32 = 77;
    chmod(&place.dir(), 0o755);
    let source = place.dir().join("source");
    fs::write(&source, pattern(2, 5000)).unwrap();
    chmod(&source, 0o644);
    for size in [0usize, 300, 30_000, 300_000] {
        let path = place.dir().join(format!("file-{size}"));
        fs::write(&path, pattern(1, size)).unwrap();
        let open = || OpenOptions::new().write(true).open(&path).unwrap();
        let allocate = |flags| rustix::fs::fallocate(open(), flags, 0, 5).unwrap();
        let keep = FallocateFlags::KEEP_SIZE;
        let changes: [(&str, &(dyn Fn() + Sync)); 10] = [
            ("write", &|| open().write_all_at(b"x", 0).unwrap()),
            ("append", &|| {
                let mut file = OpenOptions::new().append(true).open(&path).unwrap();
                file.write_all(b"x").unwrap();
            }),
            ("cut", &|| open().set_len(size as u64 / 2).unwrap()),
            ("extend by a hole", &|| open().set_len(size as u64).unwrap()),
            ("extend", &|| allocate(FallocateFlags::empty())),
            ("reserve", &|| allocate(keep)),
            ("punch", &|| allocate(FallocateFlags::PUNCH_HOLE | keep)),
            ("zero", &|| allocate(FallocateFlags::ZERO_RANGE)),
            ("copy", &|| {
                let from = File::open(&source).unwrap();
                rustix::fs::copy_file_range(from, Some(&mut 0), open(), Some(&mut 0), 100).unwrap();
            }),
            ("cut on open", &|| drop(File::create(&path).unwrap())),
        ];
        for (what, change) in changes {
            for (before, outside) in [(0o2666, 0o666), (0o6666, 0o666), (0o2767, 0o767)] {
                let by = |who: &str, after: u32, change: &dyn Fn()| {
                    chown(&path, Some(0), Some(GROUP)).unwrap();
                    chmod(&path, before);
                    change();
                    assert_eq!(mode(&path), after, "{what} of {size} bytes, {before:o}, by {who}");
                };
                by("root", before, change);
                by("another user", outside, &|| as_user(1000, &[1000], change));
                let member = before & !0o4000;
                by("one of the group", member, &|| as_user(1000, &[GROUP], change));
                by("one also of the group", member, &|| {
                    as_user(1000, &[1000, 5, GROUP, 900], change);
                });
            }
        }
        chown(&path, Some(1000), Some(GROUP)).unwrap();
        chmod(&path, 0o2767);
        as_user(1000, &[1000, GROUP], || chown(&path, None, Some(1000)).unwrap());
        assert_eq!(mode(&path), 0o2767, "given away by one of the group, {size} bytes");
        chown(&path, None, Some(GROUP)).unwrap();
        chmod(&path, 0o2767);
        as_user(1000, &[1000], || chown(&path, None, Some(1000)).unwrap());
        assert_eq!(mode(&path), 0o767, "given away by one outside of the group, {size} bytes");
    }
}

/// A program that somebody else had written over was executed once more as its owner: the kernel still knew the mode of before,
/// for which it does not ask then, as it does for stat(2).
fn set_id_of_programs(place: &Place) {
    chmod(&place.dir(), 0o755);
    let mut image = fs::read("/usr/bin/id").unwrap();
    for kind in ["small", "large"] {
        if kind == "large" {
            image.resize(300_000, 0);
        }
        let named = |what: &str| place.dir().join(format!("{what}-{kind}"));
        let original = named("original");
        fs::write(&original, &image).unwrap();
        chmod(&original, 0o755);
        let changes: [NamedChange; 3] = [
            ("written", &|file| file.write_all_at(&image, 0).unwrap()),
            ("copied", &|file| {
                let from = File::open(&original).unwrap();
                let copied = rustix::fs::copy_file_range(from, None, file, None, image.len());
                assert_eq!(copied, Ok(image.len()));
            }),
            ("reserved", &|file| {
                rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, 5).unwrap();
            }),
        ];
        for (what, change) in changes {
            let program = named(what);
            put_program(&original, &program);
            chmod(&program, 0o4777);
            as_user(1000, &[1000], || {
                change(&OpenOptions::new().write(true).open(&program).unwrap());
            });
            let ran = Command::new(&program).arg("-u").uid(1000).gid(1000).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&ran.stdout), "1000\n", "{what}, {kind}");
        }
    }
}

fn capabilities(place: &Place) {
    // Version 2, CAP_NET_BIND_SERVICE permitted and effective.
    let mut value = 0x0200_0001_u32.to_le_bytes().to_vec();
    value.extend((1u32 << 10).to_le_bytes());
    value.extend([0; 12]);
    let name = "security.capability";
    for size in [300usize, 300_000] {
        let path = place.dir().join(format!("capable-{size}"));
        fs::write(&path, pattern(1, size)).unwrap();
        let has = || {
            let mut buffer = [0u8; 64];
            match rustix::fs::getxattr(&path, name, &mut buffer[..]) {
                Ok(len) => buffer[..len] == value,
                Err(Errno::NODATA) => false,
                Err(other) => panic!("{other}"),
            }
        };
        let set = || rustix::fs::setxattr(&path, name, &value, XattrFlags::empty()).unwrap();
        let open = || OpenOptions::new().write(true).open(&path).unwrap();
        let changes: [(&str, &dyn Fn()); 4] = [
            ("write", &|| open().write_all_at(b"x", 0).unwrap()),
            ("truncate", &|| open().set_len(size as u64 / 2).unwrap()),
            ("chown", &|| chown(&path, Some(5), Some(5)).unwrap()),
            ("allocate", &|| {
                rustix::fs::fallocate(open(), FallocateFlags::empty(), 0, 10).unwrap();
            }),
        ];
        for (what, change) in changes {
            set();
            assert!(has());
            change();
            assert!(!has(), "{what}");
        }
        set();
        chmod(&path, 0o755);
        assert!(has(), "chmod leaves it");
    }
}

fn xattr_rights(place: &Place) {
    let dir = place.dir();
    chmod(&dir, 0o755);
    let file = dir.join("file");
    fs::write(&file, "").unwrap();
    let fifo = dir.join("fifo");
    rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
    let link = dir.join("link");
    std::os::unix::fs::symlink("file", &link).unwrap();
    let set =
        |path: &Path, name: &str| rustix::fs::lsetxattr(path, name, b"v", XattrFlags::empty());
    let get = |path: &Path, name: &str| {
        let mut buffer = [0u8; 64];
        rustix::fs::lgetxattr(path, name, &mut buffer[..])
    };
    // `user` is for files and directories; the others for everything.
    for path in [&fifo, &link] {
        refused(set(path, "user.a"), Errno::PERM);
        refused(get(path, "user.a"), Errno::NODATA);
        set(path, "trusted.a").unwrap();
        assert_eq!(get(path, "trusted.a"), Ok(1));
    }
    for name in ["user.", "trusted."] {
        refused(set(&file, name), Errno::INVAL);
    }
    for name in ["system.other", "other.a", "user"] {
        refused(set(&file, name), Errno::OPNOTSUPP);
        refused(get(&file, name), Errno::OPNOTSUPP);
    }
    // Others write `user` where they may write; `trusted` is root's, and hidden.
    set(&file, "trusted.a").unwrap();
    set(&file, "security.a").unwrap();
    chmod(&file, 0o644);
    as_user(1000, &[1000], || {
        refused(set(&file, "user.a"), Errno::ACCESS);
        refused(set(&file, "trusted.b"), Errno::PERM);
        refused(set(&file, "security.b"), Errno::PERM);
        refused(get(&file, "trusted.a"), Errno::NODATA);
        assert_eq!(get(&file, "security.a"), Ok(1));
        let mut names = [0u8; 256];
        let len = rustix::fs::listxattr(&file, &mut names[..]).unwrap();
        assert!(!names[..len].windows(7).any(|part| part == b"trusted"));
    });
    chmod(&file, 0o666);
    as_user(1000, &[1000], || set(&file, "user.a")).unwrap();
    let sticky = dir.join("sticky");
    fs::create_dir(&sticky).unwrap();
    chmod(&sticky, 0o1777);
    refused(as_user(1000, &[1000], || set(&sticky, "user.a")), Errno::PERM);
    chmod(&sticky, 0o777);
    as_user(1000, &[1000], || set(&sticky, "user.a")).unwrap();
}

fn xattr_limits(place: &Place) {
    let path = place.dir().join("file");
    fs::write(&path, "").unwrap();
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    let plain = XattrFlags::empty();
    refused(set(&format!("user.{}", "n".repeat(251)), b"", plain), Errno::RANGE);
    refused(set("", b"", plain), Errno::RANGE);
    refused(set("user.big", &[0; 65_537], plain), Errno::TOOBIG);
    let before = changed(&path);
    tick();
    set("user.a", b"12345", plain).unwrap();
    let after = changed(&path);
    assert!(after.0 == before.0 && after.1 > before.1, "ctime moves, mtime does not");
    let both = XattrFlags::CREATE | XattrFlags::REPLACE;
    refused(set("user.a", b"", both), Errno::EXIST);
    refused(set("user.absent", b"", both), Errno::NODATA);
    refused(rustix::fs::getxattr(&path, "user.a", &mut [0u8; 4][..]), Errno::RANGE);
    refused(rustix::fs::listxattr(&path, &mut [0u8; 3][..]), Errno::RANGE);
    if place.is_varve() {
        // More names than one list can hold.
        let mut made = 0;
        let full = loop {
            match set(&format!("user.{made:0>250}"), b"", plain) {
                Ok(()) => made += 1,
                Err(errno) => break errno,
            }
        };
        assert_eq!((full, made), (Errno::NOSPC, (65_536 - 7) / 256));
    }
}

fn setting_times(place: &Place) {
    chmod(&place.dir(), 0o755);
    let path = place.dir().join("file");
    fs::write(&path, "x").unwrap();
    let (now, omit) = (UTIME_NOW, UTIME_OMIT);
    let set = |atime: (i64, i64), mtime: (i64, i64)| {
        let spec = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())
    };
    let times = || {
        let meta = fs::metadata(&path).unwrap();
        (meta.atime(), meta.mtime(), (meta.ctime(), meta.ctime_nsec()))
    };
    set((1, 5), (2, 6)).unwrap();
    let before = times();
    tick();
    set((0, omit), (0, omit)).unwrap();
    assert_eq!(times(), before, "nothing is set, and ctime stays");
    set((0, omit), (77, 0)).unwrap();
    assert_eq!((times().0, times().1), (1, 77));
    assert!(times().2 > before.2);
    set((0, now), (0, omit)).unwrap();
    assert!(times().0 > 1_700_000_000 && times().1 == 77);
    refused(set((0, 1_000_000_000), (0, 0)), Errno::INVAL);
    refused(set((0, -5), (0, 0)), Errno::INVAL);
    // Who may write may set both to now; the owner may set them to anything.
    chmod(&path, 0o666);
    as_user(1000, &[1000], || {
        set((0, now), (0, now)).unwrap();
        refused(set((0, now), (0, omit)), Errno::PERM);
        refused(set((5, 0), (5, 0)), Errno::PERM);
    });
    chmod(&path, 0o644);
    refused(as_user(1000, &[1000], || set((0, now), (0, now))), Errno::ACCESS);
    chown(&path, Some(1000), None).unwrap();
    as_user(1000, &[1000], || set((5, 0), (6, 0))).unwrap();
    assert_eq!((times().0, times().1), (5, 6));
    // The birth stays as it was.
    let flags = rustix::fs::StatxFlags::BTIME;
    let birth = || {
        let stat = rustix::fs::statx(CWD, &path, AtFlags::empty(), flags).unwrap();
        (stat.stx_mask & flags.bits(), stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)
    };
    let (mask, secs, nanos) = birth();
    assert!(mask != 0 && secs > 1_700_000_000);
    fs::hard_link(&path, place.dir().join("other")).unwrap();
    place.remount();
    assert_eq!(birth(), (mask, secs, nanos));
}

fn not_supported(place: &Place) {
    if !place.is_varve() {
        return;
    }
    chmod(&place.dir(), 0o755);
    let path = place.dir().join("file");
    fs::write(&path, pattern(1, 100)).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let unsupported = [
        FallocateFlags::COLLAPSE_RANGE,
        FallocateFlags::INSERT_RANGE,
        FallocateFlags::UNSHARE_RANGE,
    ];
    for flags in unsupported {
        refused(rustix::fs::fallocate(&file, flags, 0, 4096), Errno::OPNOTSUPP);
    }
    let mut bytes = [0; 3];
    let buffers = &mut [std::io::IoSliceMut::new(&mut bytes)];
    let flags = rustix::io::ReadWriteFlags::NOWAIT;
    refused(rustix::io::preadv2(&file, buffers, 0, flags), Errno::OPNOTSUPP);
    let dir = place.dir().join("removed");
    fs::create_dir(&dir).unwrap();
    let held = File::open(&dir).unwrap();
    fs::remove_dir(&dir).unwrap();
    let set = rustix::fs::fsetxattr(&held, "user.a", b"1", XattrFlags::empty());
    refused(set, Errno::NOENT);
    chmod(&path, 0o6777);
    chown(&path, None, None).unwrap();
    assert_eq!(mode(&path), 0o6777);
}
