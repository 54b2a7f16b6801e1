//! Copying between files of every size class, without a kernel in between.

use varve_fs::FormatOptions;
use varve_testkit::crash::ScriptOptions;
use varve_testkit::fsops::{Lockstep, Universe};
use varve_types::InodeId;
use varve_vfs::{FsError, Handle, Position, Vfs};

use crate::against_model::run_rounds;
use crate::crash::{open, sim_store};
use crate::crash_points::{GUESSED_LARGE, Store, THRESHOLD_BYTES, explore_seeds};
use crate::support::{BOTH, Calls, READ, ROOT, Rig, WRITE, name, os_env, store_of};

const SIZES: [usize; 4] = [0, 300, 30_000, 300_000];

fn at(ino: InodeId, handle: Handle, offset: u64) -> Position {
    Position { ino, handle, offset }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 + 1).collect()
}

#[test]
fn ranges_are_copied_between_files_of_every_size() {
    let rig = Rig::new();
    for size in SIZES {
        for old in SIZES {
            let (from, to) = (
                rig.mk(ROOT, &format!("from-{size}-{old}")),
                rig.mk(ROOT, &format!("to-{size}-{old}")),
            );
            rig.put_at(from, 0, &bytes(size));
            rig.put_at(to, 0, &vec![255; old]);
            let (source, target) = (rig.open_as(from, READ), rig.open_as(to, BOTH));
            let (start, place) = (size as u64 / 3, old as u64 / 2);
            let mut copied = 0;
            loop {
                let (a, b) = (at(from, source, start + copied), at(to, target, place + copied));
                match rig.copy_range(a, b, 1 << 40).unwrap() {
                    0 => break,
                    more => copied += more,
                }
            }
            let mut model = vec![255; old];
            let part = &bytes(size)[start as usize..];
            model.resize(old.max(old / 2 + part.len()), 0);
            model[old / 2..old / 2 + part.len()].copy_from_slice(part);
            rig.release(from, source).unwrap();
            rig.release(to, target).unwrap();
            assert!(rig.contents(to) == model, "{size} over {old}");
            assert_eq!(rig.getattr(to).unwrap().size, model.len() as u64);
        }
    }
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

#[test]
fn copies_that_make_no_sense_are_refused() {
    let rig = Rig::new();
    let file = rig.mk(ROOT, "f");
    rig.put_at(file, 0, &bytes(300_000));
    let (both, read) = (rig.open_as(file, BOTH), rig.open_as(file, READ));
    let append = rig.open_as(file, varve_vfs::OpenFlags { append: true, ..BOTH });
    let copy = |from, to, len| rig.copy_range(from, to, len);
    let overlap = copy(at(file, both, 10), at(file, both, 0), 11);
    assert!(matches!(overlap, Err(FsError::Invalid(_))));
    assert_eq!(copy(at(file, both, 10), at(file, both, 0), 10).unwrap(), 10);
    for (from, to) in [(both, read), (both, append), (Handle(99), both)] {
        let refused = copy(at(file, from, 0), at(file, to, 1000), 10);
        assert!(matches!(refused, Err(FsError::BadHandle)), "{from:?} {to:?}");
    }
    let far = copy(at(file, both, 0), at(file, both, i64::MAX as u64), 10);
    assert!(matches!(far, Err(FsError::FileTooLarge)));
    for handle in [both, read, append] {
        rig.release(file, handle).unwrap();
    }
}

#[test]
fn a_copy_ends_where_the_source_does() {
    let rig = Rig::new();
    for size in SIZES {
        let file = rig.mk(ROOT, &format!("f-{size}"));
        rig.put_at(file, 0, &bytes(size));
        let handle = rig.open_as(file, BOTH);
        // The whole file behind itself: what is asked for reaches further, and what there is does not overlap.
        let mut copied = 0;
        while copied < size as u64 {
            let (from, to) = (at(file, handle, copied), at(file, handle, size as u64 + copied));
            copied += rig.copy_range(from, to, size as u64 - copied).unwrap();
        }
        let past = at(file, handle, 2 * size as u64 + 5);
        assert_eq!(rig.copy_range(past, at(file, handle, 0), 1 << 40).unwrap(), 0);
        rig.release(file, handle).unwrap();
        assert!(rig.contents(file) == [bytes(size), bytes(size)].concat(), "{size}");
    }
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

#[test]
fn a_large_file_is_copied_into_an_object_from_the_first_byte() {
    let rig = Rig::new();
    let (from, to) = (rig.mk(ROOT, "from"), rig.mk(ROOT, "to"));
    let size: u64 = (16 << 20) + 70_000;
    rig.cut(from, size);
    rig.put_at(from, 16 << 20, &bytes(70_000));
    let (source, target) = (rig.open_as(from, READ), rig.open_as(to, BOTH));
    let copy = |place| rig.copy_range(at(from, source, place), at(to, target, place), 1 << 40);
    assert_eq!((copy(0).unwrap(), copy(16 << 20).unwrap()), (16 << 20, 70_000));
    rig.release(to, target).unwrap();
    rig.release(from, source).unwrap();
    let attr = rig.find(ROOT, "to").unwrap();
    assert_eq!(attr.size, size);
    assert!(attr.blocks * 512 < 1 << 20, "holes take room: {attr:?}");
    assert!(rig.contents(to) == rig.contents(from));
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

#[test]
fn what_a_clone_has_not_copied_is_copied_from_its_source() {
    let rig = Rig::new();
    let d = rig.mk_dir(ROOT, "d");
    for size in SIZES {
        let file = rig.mk(d, &size.to_string());
        rig.put_at(file, 0, &bytes(size));
    }
    let clone = rig.clone_tree(ROOT, name("d"), ROOT, name("c")).unwrap().attr.ino;
    for size in SIZES {
        rig.put_at(rig.find(d, &size.to_string()).unwrap().ino, 0, b"changed");
        let (from, to) = (rig.find(clone, &size.to_string()).unwrap().ino, rig.mk(ROOT, "to"));
        let (source, target) = (rig.open_as(from, READ), rig.open_as(to, BOTH));
        let mut copied = 0;
        while copied < size as u64 {
            let place = (at(from, source, copied), at(to, target, copied));
            copied += rig.copy_range(place.0, place.1, 1 << 40).unwrap();
        }
        rig.release(from, source).unwrap();
        rig.release(to, target).unwrap();
        assert!(rig.contents(to) == bytes(size), "{size}");
        rig.forget(to, 1);
        rig.unlink(ROOT, name("to")).unwrap();
    }
    rig.sync().unwrap();
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

#[test]
fn a_copy_of_a_clones_large_file_borrows_what_that_borrows() {
    let rig = Rig::new();
    let d = rig.mk_dir(ROOT, "d");
    let original = rig.mk(d, "large");
    rig.put_at(original, 0, &bytes(300_000));
    let c = rig.clone_tree(ROOT, name("d"), ROOT, name("c")).unwrap().attr.ino;
    let lent = rig.find(c, "large").unwrap().ino;
    let copy = |to: InodeId| {
        let (source, target) = (rig.open_as(lent, READ), rig.open_as(to, BOTH));
        let copied = rig.copy_range(at(lent, source, 0), at(to, target, 0), 1 << 40).unwrap();
        rig.write(to, target, 1, b"own", false).unwrap();
        assert_eq!(&rig.read(to, target, 0, 6).unwrap()[..], [1, b'o', b'w', b'n', 5, 6]);
        rig.release(lent, source).unwrap();
        rig.release(to, target).unwrap();
        copied
    };
    let (first, second) = (rig.mk(ROOT, "first"), rig.mk(ROOT, "second"));
    assert_eq!(copy(first), 300_000, "at once");
    let (source, target) = (rig.open_as(lent, READ), rig.open_as(second, BOTH));
    let whole = (at(lent, source, 0), at(second, target, 0));
    assert_eq!(rig.copy_range(whole.0, whole.1, 300_000).unwrap(), 300_000);
    // Not over what is there.
    assert_eq!(rig.copy_range(at(lent, source, 5), at(second, target, 0), 10).unwrap(), 10);
    rig.release(lent, source).unwrap();
    rig.release(second, target).unwrap();
    let third = rig.mk(ROOT, "third");
    let (source, target) = (rig.open_as(lent, READ), rig.open_as(third, BOTH));
    let whole = (at(lent, source, 0), at(third, target, 0));
    assert_eq!(rig.copy_range(whole.0, whole.1, 300_000).unwrap(), 300_000);
    rig.release(lent, source).unwrap();
    rig.release(third, target).unwrap();
    // The lenders go, and the last that borrows still has the bytes, also after a remount.
    rig.cut(original, 0);
    rig.forget(lent, 1);
    rig.unlink(c, name("large")).unwrap();
    rig.sync().unwrap();
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
    let rig = rig.remount();
    let again = |text| rig.find(ROOT, text).unwrap().ino;
    assert_eq!([again("second"), again("third")], [second, third]);
    assert!(rig.contents(third) == bytes(300_000));
    let mut changed = bytes(300_000);
    changed[..10].copy_from_slice(&bytes(300_000)[5..15]);
    assert!(rig.contents(second) == changed);
    rig.forget(third, 1);
    rig.unlink(ROOT, name("third")).unwrap();
    rig.mk(ROOT, "afterwards");
    let kept = os_env().list(&store_of(rig.dir.path()).join("kept")).unwrap();
    assert!(kept.is_empty(), "{kept:?}");
    assert_eq!(rig.check(&mut |_| ()).unwrap().findings, []);
}

#[test]
fn random_copies_answer_as_the_model_does() {
    for (seed, clones_percent) in (200..212).zip([0, 3].into_iter().cycle()) {
        let large_file_threshold_bytes = if seed % 3 == 0 { 4096 } else { 65_536 };
        let options = FormatOptions { large_file_threshold_bytes, ..FormatOptions::default() };
        let env = sim_store(seed, &options);
        let universe = Universe { clones_percent, copies_percent: 15, ..Universe::default() };
        let lockstep = Lockstep::with_universe(seed, universe);
        run_rounds(lockstep, &|| open(&env), 3, &|lockstep, fs| lockstep.run(fs, 200));
    }
}

#[test]
fn a_crash_while_copying_leaves_bytes_that_were_there() {
    let options = ScriptOptions {
        steps: 80,
        large_file_threshold_bytes: THRESHOLD_BYTES,
        new_large: GUESSED_LARGE,
        restarts: true,
        clones_percent: 0,
        copies_percent: 25,
    };
    let points = explore_seeds(&Store, 0..4, &options);
    assert!(points > 200, "{points}");
}

/// The target had become longer, and its times new.
#[test]
fn a_copy_of_bytes_and_holes_for_which_there_is_no_room_changes_nothing() {
    let large_file_threshold_bytes = THRESHOLD_BYTES;
    let options = FormatOptions { large_file_threshold_bytes, ..FormatOptions::default() };
    let env = sim_store(3, &options);
    let fs = open(&env);
    let (source, target) = (fs.mk(ROOT, "source"), fs.mk(ROOT, "target"));
    fs.put_at(source, 0, &[1; 9000]);
    fs.put_at(source, 3 * THRESHOLD_BYTES, &[1; 9000]);
    fs.put_at(target, 0, &[2; 2 * THRESHOLD_BYTES as usize]);
    let before = fs.getattr(target).unwrap();
    let (read, write) = (fs.open(source, READ).unwrap(), fs.open(target, WRITE).unwrap());
    env.set_capacity(0);
    let to = at(target, write.handle, 4 * THRESHOLD_BYTES);
    let refused = fs.copy_range(at(source, read.handle, 0), to, 1 << 20);
    assert!(matches!(refused, Err(FsError::NoSpace(_))), "{refused:?}");
    let after = fs.getattr(target).unwrap();
    assert_eq!((after.size, after.mtime), (before.size, before.mtime));
}
