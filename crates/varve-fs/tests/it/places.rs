//! Places of inodes, which clients of a server keep: with one a file is found that the file system has forgotten, without a
//! walk over all names, and whatever the place says, never another file.

use varve_testkit::rng::Rng;
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, Place, Vfs};

use super::support::{Calls, ROOT, Rig, name};

/// The place of a looked-up inode.
fn place(rig: &Rig, ino: InodeId) -> Place {
    rig.place(ino).unwrap().expect("a looked-up inode has a place")
}

/// The inode that is found without a walk.
fn found(rig: &Rig, ino: InodeId, place: Option<Place>) -> FsResult<InodeId> {
    rig.lookup_at(ino, place, false).map(|entry| entry.attr.ino)
}

fn is_stale(found: FsResult<InodeId>) -> bool {
    matches!(found, Err(FsError::Stale))
}

#[test]
fn a_forgotten_file_is_found_at_its_place_without_a_walk() {
    let rig = Rig::new();
    let (dir, file) = (rig.mk_dir(ROOT, "d"), rig.mk(ROOT, "f"));
    let linked = rig.mk(dir, "linked");
    rig.link(linked, dir, name("again")).unwrap();
    rig.forget(linked, 1);
    let inos = [dir, file, linked];
    let places = inos.map(|ino| place(&rig, ino));
    inos.iter().for_each(|ino| rig.forget(*ino, 1));
    assert!(inos.iter().all(|ino| rig.place(*ino).unwrap().is_none()), "all are forgotten");
    assert!(is_stale(found(&rig, file, None)), "only a walk finds it");
    let rig = rig.after_death();
    for (ino, place) in inos.iter().zip(places) {
        assert_eq!(found(&rig, *ino, Some(place)).unwrap(), *ino);
        assert_eq!(rig.place(*ino).unwrap(), Some(place));
        // It counts once.
        rig.forget(*ino, 1);
        assert_eq!(rig.place(*ino).unwrap(), None);
    }
    assert!(is_stale(found(&rig, file, None)));
    assert_eq!(rig.lookup_at(file, None, true).unwrap().attr.ino, file);
    // The walk left a hint.
    rig.forget(file, 1);
    assert_eq!(found(&rig, file, None).unwrap(), file);
}

#[test]
fn an_old_place_never_gives_another_file() {
    let rig = Rig::new();
    let dir = rig.mk_dir(ROOT, "d");
    let file = rig.mk(dir, "f");
    let old = place(&rig, file);
    rig.mv(dir, "f", dir, "moved").unwrap();
    let other = rig.mk(dir, "f");
    assert_eq!(place(&rig, other), old, "the new file has the place of the old one");
    assert_ne!(place(&rig, file), old);
    // While it is looked up it is found in spite of the place.
    assert_eq!(found(&rig, file, Some(old)).unwrap(), file);
    rig.forget(file, 2);
    assert!(is_stale(found(&rig, file, Some(old))));
    assert_eq!(rig.lookup_at(file, Some(old), true).unwrap().attr.ino, file);
    rig.forget(file, 1);
    // With a second name it gets a row of its own, which is found whatever the place says.
    rig.find(dir, "moved").unwrap();
    rig.link(file, ROOT, name("second")).unwrap();
    rig.forget(file, 2);
    assert_eq!(found(&rig, file, Some(old)).unwrap(), file);
}

#[test]
fn a_removed_file_is_stale_and_has_no_place() {
    let rig = Rig::new();
    let (file, held) = (rig.mk(ROOT, "f"), rig.mk(ROOT, "open"));
    let (at, held_at) = (place(&rig, file), place(&rig, held));
    let handle = rig.open_as(held, super::support::READ);
    rig.unlink(ROOT, name("f")).unwrap();
    rig.unlink(ROOT, name("open")).unwrap();
    assert_eq!(rig.place(file).unwrap(), None);
    for (ino, place) in [(file, at), (held, held_at), (file, place(&rig, held))] {
        assert!(is_stale(found(&rig, ino, Some(place))));
    }
    rig.release(held, handle).unwrap();
    rig.forget(held, 1);
    rig.forget(file, 1);
    assert!(is_stale(found(&rig, file, Some(at))) && is_stale(found(&rig, held, Some(held_at))));
}

/// Whatever a client sends, the answer is the inode or that it is stale: no error that says that the store is damaged, as
/// rows of other kinds would give that are taken for rows of names.
#[test]
fn forged_places_do_no_harm() {
    let rig = Rig::new();
    let dir = rig.mk_dir(ROOT, "d");
    let file = rig.mk(dir, "f");
    let linked = rig.mk(dir, "g");
    rig.link(linked, ROOT, name("h")).unwrap();
    let orphan = rig.mk(ROOT, "o");
    let _open = rig.open_as(orphan, super::support::READ);
    rig.unlink(ROOT, name("o")).unwrap();
    rig.forget(file, 1);
    let mut rng = Rng::new(7);
    let inos: Vec<u64> = (0..16).chain([dir, file, linked, orphan].map(InodeId::get)).collect();
    let suffixes = [0, 1, 2, 3, 256, 1 << 63, 3 << 62, 7 << 61];
    for round in 0..20_000u64 {
        let mut bytes = [0u8; Place::BYTES];
        bytes.iter_mut().for_each(|byte| *byte = rng.next_u64() as u8);
        if round % 4 != 0 {
            let pick = |from: &[u64], at: u64| from[at as usize % from.len()];
            bytes[0] = (round % 4) as u8;
            bytes[1..9].copy_from_slice(&pick(&inos, rng.next_u64()).to_be_bytes());
            let all: Vec<u64> = suffixes.iter().chain(&inos).copied().collect();
            bytes[9..17].copy_from_slice(&pick(&all, rng.next_u64()).to_be_bytes());
        }
        let ino = InodeId::new(inos[rng.next_u64() as usize % inos.len()]);
        match found(&rig, ino, Some(Place::from_bytes(bytes))) {
            Ok(found) => assert!(found == ino && [ROOT, dir, linked].contains(&ino), "{ino}"),
            Err(error) => assert!(matches!(error, FsError::Stale), "{ino}: {error}"),
        }
    }
}
