//! Bytes: small, growing and large files, holes, appends, passthrough, attributes.

use std::path::Path;
use std::sync::Arc;

use varve_engine::StoreDesign;
use varve_engine::design::Values;
use varve_env::Env;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_fs::{Atime, FormatOptions, MountOptions, NewFiles, TransactionOptions, VarveFs};
use varve_testkit::eventually;
use varve_types::Timestamp;
use varve_vfs::{
    AccessMode, AllocateMode, Caller, FsError, OpenFlags, SeekFrom, SetAttr, SetTime, TreeLimits,
    Vfs, Written, XattrMode,
};

use crate::crash::{STORE, open, sim_store};
use crate::support::{BOTH, Calls, READ, ROOT, Rig, WRITE, name, opened_straight};

const SIZES: [u64; 9] = [0, 1, 511, 512, 513, 16_384, 16_385, 65_536, 65_537];

#[test]
fn every_size_comes_back_however_it_was_reached() {
    let rig = Rig::new();
    let mut files = Vec::new();
    for from in SIZES {
        for to in SIZES {
            let ino = rig.mk(ROOT, &format!("{from}-{to}"));
            rig.put_at(ino, 0, &vec![1; from as usize]);
            rig.cut(ino, to);
            rig.cut(ino, to + 100);
            files.push((ino, from.min(to) as usize, to as usize + 100));
        }
    }
    let check = |rig: &Rig| {
        for (ino, ones, size) in &files {
            let bytes = rig.contents(*ino);
            assert_eq!(bytes.len(), *size);
            assert!(bytes[..*ones].iter().all(|b| *b == 1), "{ino}");
            assert!(bytes[*ones..].iter().all(|b| *b == 0), "{ino}: cut bytes came back");
        }
    };
    rig.readdir(ROOT, 0, true, &mut |_| true).unwrap();
    check(&rig);
    let rig = rig.remount();
    rig.readdir(ROOT, 0, true, &mut |_| true).unwrap();
    check(&rig);
}

/// The files of each directory were written with those of others in between.
#[test]
fn files_of_a_directory_are_fetched_before_they_are_read() {
    // Each has two chunks, in a block each. Some may be in the log.
    let fetched = fetched_of_a_directory(Values::InRow);
    assert!(fetched > FILES_OF_EACH && fetched <= 2 * FILES_OF_EACH, "{fetched}");
    // Each has two values, besides the blocks that say where they stand, which alone are fewer than the files.
    let fetched = fetched_of_a_directory(Values::Separated);
    assert!(fetched > FILES_OF_EACH && fetched <= 3 * FILES_OF_EACH, "{fetched}");
}

const FILES_OF_EACH: usize = 30;

/// Blocks and values that are fetched for who reads the files of one of many directories.
fn fetched_of_a_directory(values: Values) -> usize {
    const BYTES: usize = 20_000;
    let options = MountOptions { memory_budget_bytes: 8 << 20, ..MountOptions::default() };
    let design = StoreDesign { values, ..StoreDesign::default() };
    let rig = Rig::with(&FormatOptions { design, ..FormatOptions::default() }, options);
    let dirs: Vec<_> = (0..40).map(|n| rig.mk_dir(ROOT, &format!("d{n}"))).collect();
    // Nothing that compression makes smaller.
    let bytes = |n: usize| {
        let numbers = (0..BYTES as u64 / 8).map(|at| at.wrapping_add(n as u64 * 7919));
        let mixed =
            numbers.map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31));
        mixed
            .flat_map(|number| number.wrapping_mul(0xbf58_476d_1ce4_e5b9).to_le_bytes())
            .collect::<Vec<u8>>()
    };
    for n in 0..FILES_OF_EACH {
        for dir in &dirs {
            let ino = rig.mk(*dir, &n.to_string());
            rig.put_at(ino, 0, &bytes(n));
        }
    }
    let rig = rig.remount();
    let fetched = || {
        let status: serde_json::Value = serde_json::from_str(&rig.status_json()).unwrap();
        status["engine"]["counters"]["rows_prefetched"].as_u64().unwrap() as usize
    };
    let read = |dir: usize, n: usize| {
        let ino = rig.find(dirs[dir], &n.to_string()).unwrap().ino;
        assert!(rig.contents(ino) == bytes(n), "{n}");
    };
    (0..40).for_each(|dir| read(dir, 0));
    assert_eq!(fetched(), 0, "one of each");
    (1..FILES_OF_EACH).for_each(|n| read(20, n));
    fetched()
}

#[test]
fn appends_of_several_handles_never_overlap() {
    let rig = Rig::new();
    let ino = rig.mk(ROOT, "log");
    let append = OpenFlags { append: true, ..WRITE };
    std::thread::scope(|scope| {
        for thread in 1..=4u8 {
            let rig = &rig;
            scope.spawn(move || {
                let handle = rig.open_as(ino, append);
                for _ in 0..300 {
                    rig.write(ino, handle, 0, &[thread; 100], false).unwrap();
                }
                rig.release(ino, handle).unwrap();
            });
        }
    });
    let bytes = rig.contents(ino);
    assert_eq!(bytes.len(), 4 * 300 * 100, "it moved to an object on the way");
    assert!(bytes.chunks(100).all(|chunk| chunk.iter().all(|b| *b == chunk[0])));
    for thread in 1..=4 {
        assert_eq!(bytes.iter().filter(|b| **b == thread).count(), 300 * 100);
    }
}

#[test]
fn holes_are_found_and_punched() {
    let rig = Rig::new();
    for (text, unit) in [("small", 16_384u64), ("large", 1 << 20)] {
        let ino = rig.mk(ROOT, text);
        rig.put_at(ino, 2 * unit, &vec![1; unit as usize]);
        let handle = rig.open_as(ino, WRITE);
        let seek = |offset, what| rig.lseek(ino, handle, offset, what);
        assert_eq!(seek(0, SeekFrom::Data).unwrap(), 2 * unit, "{text}");
        assert_eq!(seek(0, SeekFrom::Hole).unwrap(), 0);
        assert_eq!(seek(2 * unit + 5, SeekFrom::Hole).unwrap(), 3 * unit);
        assert!(matches!(seek(3 * unit, SeekFrom::Data), Err(FsError::NoSuchOffset)));
        rig.fallocate(ino, handle, AllocateMode::PunchHole, 2 * unit, unit - 1).unwrap();
        let bytes = rig.contents(ino);
        assert_eq!(bytes.iter().filter(|b| **b == 1).count(), 1, "{text}");
        rig.fallocate(ino, handle, AllocateMode::KeepSize, 0, 10 * unit).unwrap();
        assert_eq!(rig.getattr(ino).unwrap().size, 3 * unit);
        rig.fallocate(ino, handle, AllocateMode::Extend, 0, 4 * unit).unwrap();
        assert_eq!(rig.getattr(ino).unwrap().size, 4 * unit);
        rig.fallocate(ino, handle, AllocateMode::ZeroRange, 3 * unit - 1, 2 * unit).unwrap();
        assert_eq!(rig.getattr(ino).unwrap().size, 5 * unit - 1);
        assert!(rig.contents(ino).iter().all(|b| *b == 0));
        rig.release(ino, handle).unwrap();
    }
}

#[test]
fn passthrough_and_cached_handles_never_mix() {
    let rig = Rig::new();
    let ino = rig.mk(ROOT, "f");
    let small = rig.open(ino, WRITE).unwrap();
    assert!(!small.passthrough);
    rig.write(ino, small.handle, 0, &[1; 100_000], false).unwrap();
    let second = rig.open(ino, READ).unwrap();
    assert!(!second.passthrough, "a cached handle is open");
    rig.release(ino, small.handle).unwrap();
    rig.release(ino, second.handle).unwrap();
    let first = rig.open(ino, BOTH).unwrap();
    assert!(first.passthrough && rig.open(ino, READ).unwrap().passthrough);
    let mut len = 0;
    rig.with_passthrough(first.handle, &mut |fd| {
        let file = opened_straight(fd);
        std::os::unix::fs::FileExt::write_all_at(&file, &[2; 10], 100_000).unwrap();
        len = file.metadata().unwrap().len();
    })
    .unwrap();
    assert_eq!(len, 100_010);
    assert_eq!(rig.getattr(ino).unwrap().size, 100_010, "the object knows better than the row");
    let none = rig.with_passthrough(small.handle, &mut |_| ());
    assert!(matches!(none, Err(FsError::BadHandle)));
}

/// Makes a file of so many bytes in the root directory; says whether the kernel might write them straight.
fn make_file(rig: &Rig, text: &str, bytes: usize) -> bool {
    let (entry, opened) = rig.create(Caller::ROOT, ROOT, name(text), 0o644, WRITE).unwrap();
    let ino = entry.attr.ino;
    rig.write(ino, opened.handle, 0, &vec![7; bytes], false).unwrap();
    rig.release(ino, opened.handle).unwrap();
    assert_eq!(rig.contents(ino), vec![7; bytes], "{text}");
    opened.passthrough
}

#[test]
fn files_begin_large_where_the_last_ones_became_so() {
    let rig = Rig::new();
    for text in ["1", "2", "3", "4"] {
        // An empty one says nothing.
        rig.mk(ROOT, &format!("lock{text}"));
        assert!(!make_file(&rig, text, 100_000), "{text}");
    }
    assert!(make_file(&rig, "5", 200_000) && make_file(&rig, "6", 65_537));
    // An old one without bytes that is opened for writing is like a new one.
    let lock = rig.find(ROOT, "lock1").unwrap().ino;
    let again = rig.open(lock, WRITE).unwrap();
    assert!(again.passthrough);
    rig.write(lock, again.handle, 0, &[1; 100_000], false).unwrap();
    rig.release(lock, again.handle).unwrap();
    // One for reading, one in another directory, and one that is open already begin as ever.
    let (read, opened) = rig.create(Caller::ROOT, ROOT, name("read"), 0o644, READ).unwrap();
    assert!(!opened.passthrough && !rig.open(read.attr.ino, WRITE).unwrap().passthrough);
    let dir = rig.mk_dir(ROOT, "dir");
    assert!(!rig.create(Caller::ROOT, dir, name("f"), 0o644, WRITE).unwrap().1.passthrough);
    // What stays small was a wrong guess, and the last one.
    assert!(make_file(&rig, "small", 3) && !make_file(&rig, "later", 3));
    let rig = rig.remount();
    assert_eq!(rig.contents(rig.find(ROOT, "small").unwrap().ino), [7; 3]);
    assert_eq!(rig.find(ROOT, "5").unwrap().size, 200_000);
    assert!(!make_file(&rig, "after", 100_000));
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

/// Each file that was made by one open and written by another took one from the count, and gave none.
#[test]
fn files_that_are_made_and_then_opened_make_a_habit_too() {
    let rig = Rig::new();
    for index in 0..20 {
        let ino = rig.mk(ROOT, &index.to_string());
        let opened = rig.open(ino, WRITE).unwrap();
        assert_eq!(opened.passthrough, index >= 4, "{index}");
        rig.write(ino, opened.handle, 0, &[7; 100_000], false).unwrap();
        rig.release(ino, opened.handle).unwrap();
    }
}

#[test]
fn how_files_begin_can_be_chosen() {
    let begins = |new_files, passthrough| {
        let options = MountOptions { new_files, passthrough, ..MountOptions::default() };
        let rig = Rig::with(&FormatOptions::default(), options);
        let first = make_file(&rig, "first", 10);
        for index in 2..8 {
            make_file(&rig, &index.to_string(), 100_000);
        }
        (first, make_file(&rig, "last", 100_000))
    };
    assert_eq!(begins(NewFiles::Auto, true), (false, true));
    assert_eq!(begins(NewFiles::Small, true), (false, false));
    assert_eq!(begins(NewFiles::Large, true), (true, true));
    assert_eq!(begins(NewFiles::Large, false), (false, false));
}

/// The call failed and the name was there, which the kernel went on taking for absent.
#[test]
fn a_file_that_cannot_begin_large_is_made_nevertheless() {
    let ops = [SimOp::Create, SimOp::SetTimes, SimOp::Open, SimOp::Stat];
    for (op, nth) in ops.into_iter().flat_map(|op| (1..4).map(move |nth| (op, nth))) {
        let env = sim_store(9, &FormatOptions::default());
        let machine: Arc<dyn Env> = Arc::<SimEnv>::clone(&env);
        let options = MountOptions { new_files: NewFiles::Large, ..MountOptions::default() };
        let fs = VarveFs::open(machine, Path::new(STORE), options).unwrap();
        let next = fs.mk(ROOT, "before").get() + 1;
        let path_suffix = format!("/{next}");
        env.fail(FaultRule { path_suffix, op, nth, errno: 5, sticky: true });
        let new = OpenFlags { exclusive: true, ..BOTH };
        let (entry, opened) = fs.create(Caller::ROOT, ROOT, name("f"), 0o644, new).unwrap();
        env.clear_faults();
        let ino = entry.attr.ino;
        assert_eq!((ino.get(), fs.find(ROOT, "f").unwrap().ino), (next, ino));
        fs.write(ino, opened.handle, 0, b"bytes", false).unwrap();
        fs.release(ino, opened.handle).unwrap();
        assert_eq!((fs.contents(ino), fs.getattr(ino).unwrap().size), (b"bytes".to_vec(), 5));
        assert_eq!(fs.check(&mut |_| ()).unwrap().findings, [], "{op:?} {nth}");
    }
}

#[test]
fn a_file_that_began_large_and_lost_its_name_leaves_nothing() {
    let options = MountOptions { new_files: NewFiles::Large, ..MountOptions::default() };
    let rig = Rig::with(&FormatOptions::default(), options);
    let (entry, opened) = rig.create(Caller::ROOT, ROOT, name("f"), 0o644, BOTH).unwrap();
    let ino = entry.attr.ino;
    rig.unlink(ROOT, name("f")).unwrap();
    rig.write(ino, opened.handle, 0, &[1; 5], false).unwrap();
    assert_eq!(rig.read(ino, opened.handle, 0, 10).unwrap(), [1; 5][..]);
    rig.release(ino, opened.handle).unwrap();
    rig.forget(ino, 1);
    let rig = rig.remount();
    // Who closes a store does not wait long for storage to remove files.
    eventually("nothing is left", || rig.check(&mut |_| ()).unwrap().findings.is_empty());
}

#[test]
fn a_large_file_can_be_cut_and_grow_again() {
    let rig = Rig::new();
    let ino = rig.mk(ROOT, "f");
    rig.put_at(ino, 0, &[1; 200_000]);
    rig.cut(ino, 10);
    assert_eq!(rig.contents(ino), [1; 10]);
    let cut = rig.open(ino, OpenFlags { truncate: true, ..WRITE }).unwrap();
    assert_eq!(rig.getattr(ino).unwrap().size, 0);
    rig.write(ino, cut.handle, 5, b"x", false).unwrap();
    rig.release(ino, cut.handle).unwrap();
    let rig = rig.remount();
    let attr = rig.find(ROOT, "f").unwrap();
    assert_eq!(attr.size, 6);
    assert_eq!(rig.contents(ino), b"\0\0\0\0\0x");
    rig.unlink(ROOT, name("f")).unwrap();
    rig.forget(attr.ino, 1);
    rig.sync().unwrap();
    assert_eq!(rig.check(&mut |_| ()).unwrap().objects, 0);
}

#[test]
fn times_of_access_follow_the_mount() {
    for (atime, first, second) in [
        (Atime::Relatime, true, false),
        (Atime::Noatime, false, false),
        (Atime::Strict, true, true),
    ] {
        let options = MountOptions { atime, ..MountOptions::default() };
        let rig = Rig::with(&FormatOptions::default(), options);
        let ino = rig.mk(ROOT, "f");
        rig.put_at(ino, 0, b"x");
        let at = |rig: &Rig| rig.getattr(ino).unwrap().atime;
        let before = at(&rig);
        rig.contents(ino);
        let then = at(&rig);
        rig.contents(ino);
        assert_eq!((then > before, at(&rig) > then), (first, second), "{atime:?}");
    }
}

#[test]
fn attributes_change_together_or_not_at_all() {
    let rig = Rig::new();
    let dir = rig.mk_dir(ROOT, "d");
    let bad = SetAttr { size: Some(1), perm: Some(0), ..SetAttr::default() };
    assert!(matches!(rig.setattr(Caller::ROOT, dir, bad), Err(FsError::IsDirectory)));
    assert_eq!(rig.getattr(dir).unwrap().perm, 0o755);
    let ino = rig.mk(ROOT, "f");
    let time = Timestamp::new(-5, 999_999_999).unwrap();
    let set = SetAttr {
        perm: Some(0o6755),
        uid: Some(7),
        gid: Some(8),
        atime: Some(SetTime::To(time)),
        mtime: Some(SetTime::To(time)),
        ..SetAttr::default()
    };
    let attr = rig.setattr(Caller::ROOT, ino, set).unwrap();
    assert_eq!((attr.perm, attr.uid, attr.gid, attr.atime, attr.mtime), (0o6755, 7, 8, time, time));
    let user = Caller { uid: 7, gid: 8, umask: 0 };
    let chown = SetAttr { gid: Some(9), ..SetAttr::default() };
    assert_eq!(rig.setattr(user, ino, chown).unwrap().perm, 0o755);
    let too_large = SetAttr { size: Some(u64::MAX), ..SetAttr::default() };
    assert!(matches!(rig.setattr(Caller::ROOT, ino, too_large), Err(FsError::FileTooLarge)));
    let write = AccessMode { write: true, ..AccessMode::default() };
    assert!(rig.access(user, &[], ino, write).is_ok());
    let stranger = Caller { uid: 1, gid: 1, umask: 0 };
    assert!(matches!(rig.access(stranger, &[9], ino, write), Err(FsError::AccessDenied)));
    let read = AccessMode { read: true, execute: true, ..AccessMode::default() };
    assert!(rig.access(stranger, &[], ino, read).is_ok());
}

#[test]
fn a_set_group_id_directory_gives_its_group_away() {
    let rig = Rig::new();
    let dir = rig.mk_dir(ROOT, "d");
    let set = SetAttr { perm: Some(0o2775), gid: Some(50), ..SetAttr::default() };
    rig.setattr(Caller::ROOT, dir, set).unwrap();
    let user = Caller { uid: 7, gid: 8, umask: 0o022 };
    let sub = rig.mkdir(user, dir, name("sub"), 0o777).unwrap().attr;
    assert_eq!((sub.perm, sub.uid, sub.gid), (0o2755, 7, 50));
    let file = rig.mknod(user, sub.ino, name("f"), 0o100_666, 0).unwrap().attr;
    assert_eq!((file.perm, file.uid, file.gid), (0o644, 7, 50));
    let fifo = rig.mknod(user, ROOT, name("fifo"), 0o010_666, 0).unwrap().attr;
    assert_eq!((fifo.perm, fifo.gid), (0o644, 8));
}

#[test]
fn extended_attributes_have_limits_and_namespaces() {
    let rig = Rig::new();
    let ino = rig.mk(ROOT, "f");
    let set = |attr: &[u8], value: &[u8], mode| rig.setxattr(ino, attr, value, mode);
    assert!(matches!(rig.getxattr(ino, b"user.a"), Err(FsError::NoXattr)));
    assert!(matches!(set(b"user.a", b"1", XattrMode::Replace), Err(FsError::NoXattr)));
    set(b"user.a", b"1", XattrMode::Create).unwrap();
    assert!(matches!(set(b"user.a", b"2", XattrMode::Create), Err(FsError::XattrExists)));
    set(b"user.a", &[3; 65_536], XattrMode::Replace).unwrap();
    assert!(matches!(set(b"user.a", &[3; 65_537], XattrMode::Set), Err(FsError::XattrTooLarge)));
    assert!(matches!(set(&[b'u'; 256], b"", XattrMode::Set), Err(FsError::XattrNameTooLong)));
    assert!(matches!(set(b"other.a", b"", XattrMode::Set), Err(FsError::NotSupported(_))));
    for i in 0..255 {
        let long = format!("user.{i:0>249}");
        set(long.as_bytes(), b"", XattrMode::Set).unwrap();
    }
    let longest = |byte| [b"user.".as_slice(), &[byte; 250]].concat();
    set(&longest(b'x'), b"", XattrMode::Set).unwrap();
    assert!(matches!(set(&longest(b'y'), b"", XattrMode::Set), Err(FsError::NoSpace(_))));
    set(&longest(b'x'), b"again", XattrMode::Set).unwrap();
    assert!(rig.listxattr(ino).unwrap().len() <= 65_536);
    rig.mv(ROOT, "f", ROOT, "g").unwrap();
    assert_eq!(rig.getxattr(ino, b"user.a").unwrap().len(), 65_536);
    rig.unlink(ROOT, name("g")).unwrap();
    assert_eq!(rig.getxattr(ino, b"user.a").unwrap().len(), 65_536, "as long as it is known");
    rig.forget(ino, 1);
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

/// Large files fill the disk without asking anybody, to the last block.
/// A file could have so many attributes that no batch took them all, and a clone of it could never be looked into.
#[test]
fn extended_attributes_of_one_inode_have_a_bound_together() {
    let rig = Rig::new();
    let ino = rig.mk(ROOT, "f");
    let set =
        |attr: &str, len: usize| rig.setxattr(ino, attr.as_bytes(), &vec![3; len], XattrMode::Set);
    // Each has a name of 7 bytes.
    (10..25).for_each(|i| set(&format!("user.{i}"), 65_536).unwrap());
    let room = (1 << 20) - 15 * (65_536 + 7);
    assert!(matches!(set("user.25", room - 6), Err(FsError::NoSpace(_))));
    set("user.25", room - 7).unwrap();
    assert!(matches!(set("user.x", 0), Err(FsError::NoSpace(_))));
    assert!(matches!(set("user.25", room - 6), Err(FsError::NoSpace(_))));
    set("user.25", room - 7).unwrap();
    set("user.10", 65_530).unwrap();
    set("user.x", 0).unwrap();
    assert!(matches!(set("user.y", 0), Err(FsError::NoSpace(_))));
    rig.removexattr(ino, b"user.11").unwrap();
    set("user.y", 65_536).unwrap();
    assert_eq!(rig.getxattr(ino, b"user.y").unwrap().len(), 65_536);
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

#[test]
fn files_can_be_removed_when_others_have_filled_the_disk() {
    let env = sim_store(10, &FormatOptions::default());
    let fs = open(&env);
    let inos: Vec<_> = (0..100).map(|i| fs.mk(ROOT, &format!("f{i}"))).collect();
    env.set_capacity(env.used_bytes());
    for (i, ino) in inos.into_iter().enumerate() {
        fs.unlink(ROOT, name(&format!("f{i}"))).unwrap();
        fs.forget(ino, 1);
    }
    assert_eq!(fs.list(ROOT), Vec::<String>::new());
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
}

#[test]
fn a_full_disk_refuses_and_recovers() {
    let env = sim_store(9, &FormatOptions::default());
    let fs = open(&env);
    let ino = fs.mk(ROOT, "f");
    fs.put_at(ino, 0, &[1; 100]);
    env.set_capacity(env.used_bytes() + 4096);
    let handle = fs.open_as(ino, WRITE);
    let mut refused = 0;
    for i in 0..64u64 {
        match fs.write(ino, handle, i * 65_536, &[2; 65_536], false) {
            Ok(_) => {}
            Err(FsError::NoSpace(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0);
    env.set_capacity(1 << 30);
    fs.write(ino, handle, 0, &[3; 100_000], false).unwrap();
    fs.release(ino, handle).unwrap();
    fs.sync().unwrap();
    assert_eq!(&fs.contents(ino)[..100_000], &[3; 100_000][..]);
    assert_eq!(fs.check(&mut |_| ()).unwrap().errors, 0);
}

/// It failed as a whole, although a part of it could be read then.
#[test]
fn a_write_to_a_large_file_writes_what_there_is_room_for() {
    for is_limited in [false, true] {
        let env = sim_store(9, &FormatOptions::default());
        let fs = open(&env);
        if is_limited {
            fs.set_limits(ROOT, TreeLimits { bytes: Some(1 << 30), inodes: None }).unwrap();
        }
        let ino = fs.mk(ROOT, "f");
        fs.put_at(ino, 0, &[1; 100_000]);
        let handle = fs.open_as(ino, WRITE);
        let path_suffix = format!("/{}", ino.get());
        env.fail(FaultRule { path_suffix, op: SimOp::Write, nth: 1, errno: 28, sticky: true });
        let mut bytes = vec![1; 100_000];
        for size in [200_000, 100_000] {
            let written = fs.write(ino, handle, bytes.len() as u64, &vec![2; size], false);
            let written = written.unwrap().bytes;
            assert!(written > 0 && written < size, "{written}");
            bytes.resize(bytes.len() + written, 2);
            assert_eq!(fs.getattr(ino).unwrap().size, bytes.len() as u64);
            assert_eq!(fs.usage(ROOT).unwrap().bytes, bytes.len() as u64);
        }
        env.clear_faults();
        fs.release(ino, handle).unwrap();
        assert!(fs.contents(ino) == bytes);
        assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
    }
}

/// Room that the file has elsewhere passed for it, and zeros were not checked at all. The storage below, which would give what
/// there is and then fail, is not asked.
#[test]
fn reservations_for_which_there_is_no_room_change_nothing() {
    const MIB: u64 = 1 << 20;
    let env = sim_store(9, &FormatOptions::default());
    let fs = open(&env);
    let ino = fs.mk(ROOT, "f");
    fs.put_at(ino, 0, &vec![1; 4 << 20]);
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = fs.open_view(&txn).unwrap();
    let handle = fs.open_as(ino, WRITE);
    let in_view = view.open_as(view.find(ROOT, "f").unwrap().ino, WRITE);
    fs.sync().unwrap();
    env.set_capacity(env.used_bytes() + 2 * MIB);
    let path_suffix = format!("/{}", ino.get());
    env.fail(FaultRule { path_suffix, op: SimOp::Allocate, nth: 1, errno: 5, sticky: true });
    let refused = |done| assert!(matches!(done, Err(FsError::NoSpace(_))), "{done:?}");
    for mode in [AllocateMode::Extend, AllocateMode::KeepSize] {
        refused(fs.fallocate(ino, handle, mode, 4 * MIB, 3 * MIB));
    }
    for mode in [AllocateMode::ZeroRange, AllocateMode::ZeroKeepSize] {
        refused(fs.fallocate(ino, handle, mode, 4 * MIB, 3 * MIB));
    }
    refused(view.fallocate(ino, in_view, AllocateMode::KeepSize, 0, 3 * MIB));
    assert_eq!(fs.getattr(ino).unwrap().size, 4 * MIB);
    fs.release(ino, handle).unwrap();
    view.release(ino, in_view).unwrap();
}

/// There it failed as a whole after that.
#[test]
fn a_write_to_a_large_file_of_a_transaction_does_too() {
    let env = sim_store(9, &FormatOptions::default());
    let fs = open(&env);
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    let view = fs.open_view(&txn).unwrap();
    let ino = view.mk(ROOT, "f");
    view.put_at(ino, 0, &[1; 100_000]);
    let handle = view.open_as(ino, WRITE);
    let path_suffix = format!("/{}", ino.get());
    env.fail(FaultRule { path_suffix, op: SimOp::Write, nth: 1, errno: 28, sticky: true });
    let written = view.write(ino, handle, 100_000, &[2; 200_000], false).unwrap().bytes;
    assert!(written > 0 && written < 200_000, "{written}");
    assert_eq!(view.getattr(ino).unwrap().size, 100_000 + written as u64);
    env.clear_faults();
    view.release(ino, handle).unwrap();
}

/// It failed as a whole although the file had grown by a part, where the file is one of the main tree.
#[test]
fn a_write_over_a_large_file_of_the_main_view_does_too() {
    let mut parts = 0;
    for (at, size, nth) in (1..8).flat_map(|nth| {
        [(100_000, 200_000, nth), (131_072, 200_000, nth), (40_000, 200_000, nth), (0, 70_000, nth)]
    }) {
        let env = sim_store(9, &FormatOptions::default());
        let fs = open(&env);
        let ino = fs.mk(ROOT, "f");
        let before = vec![1; at.max(100_000)];
        fs.put_at(ino, 0, &before);
        let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
        let view = fs.open_view(&txn).unwrap();
        let handle = view.open_as(view.find(ROOT, "f").unwrap().ino, WRITE);
        // From here on it has blocks of its own.
        view.write(ino, handle, 0, &[1], false).unwrap();
        // Under the name by which it was made.
        let path_suffix = format!("/{}.blocks-begun", ino.get());
        env.fail(FaultRule { path_suffix, op: SimOp::Write, nth, errno: 28, sticky: true });
        let mut bytes = before.clone();
        match view.write(ino, handle, at as u64, &vec![2; size], false) {
            Ok(Written { bytes: written, .. }) => {
                parts += u32::from(written < size);
                bytes.resize(bytes.len().max(at + written), 2);
                bytes[at..at + written].fill(2);
            }
            Err(error) => assert!(matches!(error, FsError::NoSpace(_)), "{error}"),
        }
        let case = format!("{size} at {at}, {nth}");
        assert_eq!(view.getattr(ino).unwrap().size, bytes.len() as u64, "{case}");
        env.clear_faults();
        view.release(ino, handle).unwrap();
        assert!(view.contents(ino) == bytes, "{case}");
        assert!(fs.contents(ino) == before, "{case}");
    }
    assert!(parts > 0);
}

/// Fills the disk up to the room that is kept for what frees some.
pub(crate) fn fill(env: &SimEnv, fs: &VarveFs) {
    fs.sync().unwrap();
    env.set_capacity(64 << 20);
    let target = [b'x'; 4000];
    let refused = (0..100_000)
        .find_map(|i| fs.symlink(Caller::ROOT, ROOT, name(&format!("s{i}")), &target).err());
    assert!(matches!(refused, Some(FsError::NoSpace(_))), "the engine keeps a reserve");
}

#[test]
fn a_nearly_full_disk_still_takes_what_frees_room() {
    let env = sim_store(11, &FormatOptions::default());
    let fs = open(&env);
    let (small, large) = (fs.mk(ROOT, "small"), fs.mk(ROOT, "large"));
    fs.put_at(small, 0, &[1; 50_000]);
    fs.put_at(large, 0, &[2; 500_000]);
    fs.mk(ROOT, "gone");
    fill(&env, &fs);
    fs.cut(small, 100);
    let before = env.used_bytes();
    fs.cut(large, 100);
    assert!(env.used_bytes() < before);
    let cut = fs.open(large, OpenFlags { truncate: true, ..WRITE }).unwrap();
    fs.unlink(ROOT, name("gone")).unwrap();
    fs.unlink(ROOT, name("large")).unwrap();
    fs.release(large, cut.handle).unwrap();
    fs.forget(large, 1);
    fs.sync().unwrap();
    env.set_capacity(1 << 30);
    fs.mk_dir(ROOT, "d");
    let names: Vec<_> = fs.list(ROOT).into_iter().filter(|text| !text.starts_with('s')).collect();
    assert_eq!(names, ["d"]);
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
}

/// It failed for want of room after it had happened; and where a file was being written, so did cutting it.
#[test]
fn a_large_file_is_cut_and_extended_on_a_nearly_full_disk() {
    let env = sim_store(11, &FormatOptions::default());
    let fs = open(&env);
    let (closed, written) = (fs.mk(ROOT, "closed"), fs.mk(ROOT, "written"));
    fs.put_at(closed, 0, &[2; 500_000]);
    let handle = fs.open_as(written, WRITE);
    fs.write(written, handle, 0, &[1; 500_000], false).unwrap();
    fill(&env, &fs);
    fs.cut(closed, 600_000);
    assert_eq!(fs.getattr(closed).unwrap().size, 600_000);
    let before = env.used_bytes();
    fs.cut(written, 100_000);
    assert!(env.used_bytes() < before);
    fs.release(written, handle).unwrap();
    env.set_capacity(1 << 30);
    fs.close().unwrap();
    drop(fs);
    let fs = open(&env);
    let sizes = ["closed", "written"].map(|text| fs.find(ROOT, text).unwrap().size);
    assert_eq!(sizes, [600_000, 100_000]);
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
}

/// They were refused for want of room, although they give some back.
#[test]
fn a_nearly_full_disk_takes_every_change_that_frees_room() {
    let env = sim_store(11, &FormatOptions::default());
    let fs = open(&env);
    let [kept, from, to] = ["kept", "from", "to"].map(|text| fs.mk(ROOT, text));
    fs.put_at(kept, 0, &[1; 65_000]);
    fs.put_at(to, 0, &[2; 50_000]);
    fs.setxattr(kept, b"user.large", &[3; 65_536], XattrMode::Set).unwrap();
    fill(&env, &fs);
    fs.removexattr(kept, b"user.large").unwrap();
    let handle = fs.open_as(kept, WRITE);
    for (mode, at) in [
        (AllocateMode::PunchHole, 0),
        (AllocateMode::ZeroKeepSize, 16_384),
        (AllocateMode::ZeroRange, 32_768),
    ] {
        fs.fallocate(kept, handle, mode, at, 16_384).unwrap();
    }
    fs.release(kept, handle).unwrap();
    fs.mv(ROOT, "from", ROOT, "to").unwrap();
    fs.forget(to, 1);
    assert!(fs.find(ROOT, "from").is_err());
    assert_eq!(fs.find(ROOT, "to").unwrap().ino, from);
    let expected: Vec<_> = [vec![0; 49_152], vec![1; 65_000 - 49_152]].concat();
    assert_eq!(fs.contents(kept), expected);
    assert_eq!(fs.listxattr(kept).unwrap(), b"");
    env.set_capacity(1 << 30);
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
}

/// What is kept for what frees room went to changes that wrote more than they freed.
#[test]
fn a_nearly_full_disk_does_not_take_a_hole_that_frees_nothing() {
    let env = sim_store(11, &FormatOptions::default());
    let fs = open(&env);
    let ino = fs.mk(ROOT, "f");
    let chunk = 16_384;
    fs.put_at(ino, 0, &vec![1; chunk as usize]);
    fs.put_at(ino, 2 * chunk, &vec![2; chunk as usize]);
    fill(&env, &fs);
    let handle = fs.open_as(ino, WRITE);
    let punch = || fs.fallocate(ino, handle, AllocateMode::PunchHole, chunk - 1, chunk + 2);
    assert!(matches!(punch(), Err(FsError::NoSpace(_))));
    env.set_capacity(1 << 30);
    punch().unwrap();
    fs.release(ino, handle).unwrap();
}

#[test]
fn a_failed_sync_of_a_large_file_fails_every_later_one() {
    let env = sim_store(10, &FormatOptions::default());
    let fs = open(&env);
    let ino = fs.mk(ROOT, "f");
    let handle = fs.open_as(ino, WRITE);
    fs.write(ino, handle, 0, &[2; 100_000], false).unwrap();
    let (path_suffix, op) = (ino.get().to_string(), SimOp::Sync);
    env.fail(FaultRule { path_suffix, op, nth: 1, errno: 5, sticky: false });
    assert!(matches!(fs.fsync(ino, handle, true), Err(FsError::Storage(_))));
    for _ in 0..2 {
        assert!(matches!(fs.fsync(ino, handle, true), Err(FsError::Storage(_))));
        assert!(
            matches!(fs.sync(), Err(FsError::Storage(_))),
            "what was lost is not promised later"
        );
    }
}

/// A program that ran lost its text to an open with O_RDONLY | O_TRUNC, now and then: the kernel asks whether a
/// file is being executed only after such an open has been answered.
#[test]
fn an_executed_file_is_not_cut_by_an_open() {
    let rig = Rig::new();
    let ino = rig.mk(ROOT, "program");
    rig.put_at(ino, 0, b"text");
    let executed = rig.open_as(ino, OpenFlags { execute: true, ..READ });
    let cut = OpenFlags { truncate: true, ..READ };
    assert!(matches!(rig.open(ino, cut), Err(FsError::TextBusy)));
    // Nor where the kernel took it for new, and asked about nothing.
    let new = OpenFlags { truncate: true, ..WRITE };
    let created = rig.create(Caller::ROOT, ROOT, name("program"), 0o644, new);
    assert!(matches!(created, Err(FsError::TextBusy)));
    assert_eq!(rig.getattr(ino).unwrap().size, 4);
    rig.release(ino, executed).unwrap();
    let opened = rig.open_as(ino, cut);
    assert_eq!(rig.getattr(ino).unwrap().size, 0);
    rig.release(ino, opened).unwrap();
}

/// Who wrote a program anew right after it had ended was told, now and then, that it still ran: the kernel had asked, and tells of
/// the end of a program only when it is over.
#[test]
fn a_program_that_has_ended_is_written_anew_before_the_kernel_tells_of_it() {
    let rig = Rig::new();
    let ino = rig.mk(ROOT, "program");
    rig.put_at(ino, 0, b"text");
    let executed = rig.open_as(ino, OpenFlags { execute: true, ..READ });
    let written = rig.open_as(ino, OpenFlags { truncate: true, ..WRITE });
    rig.write(ino, written, 0, b"new", false).unwrap();
    rig.release(ino, executed).unwrap();
    rig.release(ino, written).unwrap();
    assert_eq!(rig.contents(ino), b"new");
}
