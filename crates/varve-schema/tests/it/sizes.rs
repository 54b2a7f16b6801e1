//! How large rows are, and that slots keep their numbers.

use varve_schema::{
    Body, CloneReference, Content, DirInfo, EntryRow, EntrySuffix, FileKind, Folded, Home, Inode,
    NAMES_PER_ROW_MAX, Times, Usage, UsageChange, decode_inode_row, encode_inode_row,
};
use varve_types::{FileFlags, InodeId, Timestamp};

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

/// Every number as large as it may be.
#[test]
fn the_largest_rows_come_back() {
    let most = InodeId::new(u64::MAX);
    let time = |secs| Timestamp::new(secs, 999_999_999).unwrap();
    let (ctime, btime) = (time(i64::MAX - 1), time(i64::MIN + 1));
    let times = Times { atime: time(i64::MIN), mtime: time(i64::MAX), ctime, btime };
    let largest = |kind, home, content| Inode {
        ino: most,
        kind,
        perm: 0o7777,
        nlink: u32::MAX,
        uid: u32::MAX,
        gid: u32::MAX,
        rdev: u32::MAX,
        size: u64::MAX,
        times,
        has_xattrs: true,
        flags: FileFlags::default(),
        home,
        content,
    };
    let suffix = Some(EntrySuffix::from_hash((1 << 55) - 1));
    let all = u64::MAX;
    let usage = Usage { bytes: all, files: all, dirs: all };
    let pending = UsageChange { bytes: i64::MIN, files: i64::MIN, dirs: i64::MIN };
    let counts = DirInfo { entries: all, subdirs: u32::MAX, ..DirInfo::new(most, suffix) };
    let info = DirInfo { usage, pending, source: Some(most), ..counts };
    let home = Some(Home { dir: most, hash: u64::MAX >> 1 });
    let object = Content::Object { dirty: false, blocks: u64::MAX };
    for inode in [
        largest(FileKind::Directory, None, Content::Directory(info)),
        largest(FileKind::Regular, home, object),
    ] {
        assert_eq!(decode_inode_row(&encode_inode_row(&inode).into()), Ok(inode));
    }
    let (dir, top, clone, next, end) = (most, most, most, most, most);
    let folded = Folded { dir, top, clone, next, end, after: suffix, made: time(i64::MIN) };
    let loan = CloneReference::Directory(folded);
    assert_eq!(CloneReference::decode(&loan.encode().into()), Ok(loan));
}
