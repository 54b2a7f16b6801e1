//! What a simulated disk does with its room, rule by rule.

use std::path::Path;
use std::sync::Arc;

use varve_env::sim::{RoomRules, SimEnv};
use varve_env::{Allocate, Env, File, OpenMode};

use crate::crash::{bytes, create};

const PAGE: u64 = 4096;
const NO_SPACE: Option<i32> = Some(28);
const IO_ERROR: i32 = 5;

/// A machine whose disk has `pages` and these rules.
fn machine(pages: u64, rules: RoomRules) -> Arc<SimEnv> {
    let env = SimEnv::new(1);
    env.set_capacity(pages * PAGE);
    env.set_room_rules(rules);
    env
}

fn put(file: &dyn File, page: u64, count: u64) -> Option<i32> {
    let written = file.write_all_at(&vec![page as u8 + 1; (count * PAGE) as usize], page * PAGE);
    written.err().and_then(|error| error.raw_os_error())
}

fn free_pages(env: &SimEnv) -> u64 {
    env.space(Path::new("/")).unwrap().available_bytes / PAGE
}

fn sync_root(env: &SimEnv) {
    env.sync_dir(Path::new("/")).unwrap();
}

#[test]
fn without_inodes_no_file_is_made() {
    let env = machine(10, RoomRules { inodes_max: 3, ..RoomRules::default() });
    create(&env, "/a");
    env.create_dir(Path::new("/d")).unwrap();
    let refused = env.open(Path::new("/b"), OpenMode::CreateNew).unwrap_err();
    assert_eq!(refused.raw_os_error(), NO_SPACE);
    assert_eq!(env.create_dir(Path::new("/e")).unwrap_err().raw_os_error(), NO_SPACE);
    // A second name is none.
    env.link(Path::new("/a"), Path::new("/c")).unwrap();
    env.remove_dir(Path::new("/d")).unwrap();
    create(&env, "/b");
}

#[test]
fn names_and_places_take_room_where_metadata_does() {
    let env = machine(100, RoomRules { metadata: true, ..RoomRules::default() });
    let before = free_pages(&env);
    (0..40).for_each(|at| drop(create(&env, &format!("/{at}"))));
    assert_eq!(before - free_pages(&env), 1);
    let file = create(&env, "/file");
    assert_eq!(put(file.as_ref(), 0, 64), None);
    assert_eq!(before - free_pages(&env), 1 + 64 + 1);
    env.fill(0);
    env.remove_file(Path::new("/0")).unwrap();
    // The directory keeps what it took.
    assert_eq!(free_pages(&env), 0);
    let is_made = |at: &u32| {
        let made = env.open(Path::new(&format!("/{at}")), OpenMode::CreateNew);
        made.is_ok()
    };
    assert_eq!((100..200).take_while(is_made).count(), 23, "up to 64 names but one");
    let refused = env.open(Path::new("/last"), OpenMode::CreateNew).unwrap_err();
    assert_eq!(refused.raw_os_error(), NO_SPACE);
    let refused = env.rename(Path::new("/1"), Path::new("/last")).unwrap_err();
    assert_eq!(refused.raw_os_error(), NO_SPACE);
    // What takes the place of another needs no more.
    env.rename(Path::new("/1"), Path::new("/2")).unwrap();
}

#[test]
fn a_delayed_write_fails_at_its_sync_and_is_lost() {
    for errno in [28, IO_ERROR] {
        let env = machine(4, RoomRules { delayed_errno: errno, ..RoomRules::default() });
        let (kept, file) = (create(&env, "/kept"), create(&env, "/f"));
        assert_eq!(put(kept.as_ref(), 0, 2), None);
        kept.sync_data().unwrap();
        sync_root(&env);
        assert_eq!(put(file.as_ref(), 0, 3), None, "taken without room");
        assert_eq!(free_pages(&env), 2, "nobody has it yet");
        let all = env.copy().power_cut_keep_all();
        assert!(all.used_bytes() <= 4 * PAGE, "{}", all.used_bytes());
        assert_eq!(bytes(&all, "/kept").unwrap(), [1; 2 * PAGE as usize]);
        assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(errno));
        assert!(env.used_bytes() <= 4 * PAGE);
        // Readers find what is on disk, and what fits is written again.
        assert!(bytes(&env, "/f").unwrap().len() as u64 <= 3 * PAGE);
        file.set_len(0).unwrap();
        assert_eq!(put(file.as_ref(), 0, 1), None);
        file.sync_data().unwrap();
        // What is reserved has its room.
        assert!(file.allocate(Allocate::Extend, PAGE, 2 * PAGE).is_err());
        file.allocate(Allocate::Extend, PAGE, PAGE).unwrap();
        assert_eq!(put(file.as_ref(), 1, 1), None);
        file.sync_data().unwrap();
    }
}

#[test]
fn what_is_written_over_takes_room_until_the_sync_where_it_is_copied() {
    let env = machine(5, RoomRules { copies_on_write: true, ..RoomRules::default() });
    let file = create(&env, "/f");
    file.allocate(Allocate::Extend, 0, 3 * PAGE).unwrap();
    assert_eq!(put(file.as_ref(), 0, 3), None);
    assert_eq!(free_pages(&env), 2, "the first write is made where room was reserved");
    assert_eq!(put(file.as_ref(), 0, 3), None);
    assert_eq!(free_pages(&env), 2, "what is not on disk is not copied");
    file.sync_data().unwrap();
    assert_eq!(put(file.as_ref(), 0, 3), NO_SPACE);
    assert_eq!(free_pages(&env), 0);
    file.sync_data().unwrap();
    assert_eq!(free_pages(&env), 2);
    assert!(file.window(0, PAGE).unwrap().is_none(), "it could fail");
}

#[test]
fn what_goes_keeps_its_room_until_that_is_durable_where_it_is_freed_late() {
    let env = machine(8, RoomRules { frees_late: true, ..RoomRules::default() });
    let (file, other) = (create(&env, "/f"), create(&env, "/g"));
    assert_eq!((put(file.as_ref(), 0, 3), put(other.as_ref(), 0, 3)), (None, None));
    file.sync_data().unwrap();
    other.sync_data().unwrap();
    sync_root(&env);
    file.set_len(PAGE).unwrap();
    assert_eq!(free_pages(&env), 2);
    file.sync_data().unwrap();
    assert_eq!(free_pages(&env), 4);
    drop(other);
    env.remove_file(Path::new("/g")).unwrap();
    assert_eq!(free_pages(&env), 4);
    let back = env.copy().power_cut_keep_nothing();
    assert_eq!(bytes(&back, "/g").unwrap().len() as u64, 3 * PAGE);
    assert_eq!(back.used_bytes(), 4 * PAGE);
    sync_root(&env);
    assert_eq!(free_pages(&env), 7);
}

#[test]
fn others_take_room_in_between_and_more_is_told_of_than_there_is() {
    let env = machine(8, RoomRules { unusable_bytes: 2 * PAGE, ..RoomRules::default() });
    let file = create(&env, "/f");
    env.fill_after(env.op_count() + 1, PAGE);
    assert_eq!(put(file.as_ref(), 0, 3), None);
    assert_eq!(put(file.as_ref(), 3, 2), NO_SPACE);
    let space = env.space(Path::new("/")).unwrap();
    assert_eq!((space.available_bytes, space.total_bytes), (2 * PAGE, 8 * PAGE));
    env.fill(u64::MAX);
    assert_eq!(put(file.as_ref(), 3, 2), None);
}

#[test]
fn a_copy_into_a_hole_without_room_fails_as_a_signal_does() {
    let env = machine(2, RoomRules::default());
    let file = create(&env, "/f");
    file.set_len(4 * PAGE).unwrap();
    let mut window = file.window(0, 4 * PAGE).unwrap().unwrap();
    window.write(&[1; 2 * PAGE as usize], 0).unwrap();
    let failed = window.write(&[1; 10], 2 * PAGE).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(IO_ERROR));
    assert!(window.write(&[1; 10], 0).is_err(), "and so does every further one");
}
