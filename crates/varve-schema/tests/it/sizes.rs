//! How large rows are, and that slots keep their numbers.

use varve_schema::{Body, EntryRow, FileKind, NAMES_PER_ROW_MAX, encode_inode_row};
use varve_types::InodeId;

use crate::samples::{directory, file};

#[test]
fn the_row_of_an_empty_file_takes_at_most_60_bytes() {
    let mut row = EntryRow::default();
    row.insert(b"node_modules.json", Body::Inline(file())).unwrap();
    assert!(row.encode().len() <= 60, "{} bytes", row.encode().len());
    let directory = encode_inode_row(&directory());
    assert!(directory.len() <= 60, "{} bytes", directory.len());
}

#[test]
fn a_name_keeps_its_slot_and_the_lowest_free_one_is_used_again() {
    let body = |ino| Body::Reference { ino: InodeId::new(ino), kind: FileKind::Regular };
    let mut row = EntryRow::default();
    let name = |i: usize| format!("name-{i}").into_bytes();
    for i in 0..NAMES_PER_ROW_MAX {
        assert_eq!(row.insert(&name(i), body(i as u64)), Some(i as u8));
    }
    assert_eq!(row.insert(b"one more", body(1)), None);
    row.remove(&name(200)).unwrap();
    row.remove(&name(7)).unwrap();
    assert_eq!(row.insert(b"new", body(1000)), Some(7));
    assert_eq!(row.insert(b"newer", body(1001)), Some(200));
    assert_eq!(row.at(8).unwrap().name, name(8));
    assert_eq!(row.find(b"newer").unwrap().slot, 200);
    let row = EntryRow::decode(&row.encode().into()).unwrap();
    assert_eq!(row.at(7).unwrap().body.ino(), InodeId::new(1000));
    assert!(row.names().is_sorted_by_key(|named| named.slot));
}
