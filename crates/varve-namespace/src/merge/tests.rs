use varve_schema::{EntrySuffix, FileKind, RowKey, Times};
use varve_testkit::rng::Rng;
use varve_types::{FileFlags, InodeId, Timestamp};

use super::*;

fn time(secs: u64) -> Timestamp {
    Timestamp::new(secs as i64, 0).unwrap()
}

fn inode(content: Content) -> Inode {
    Inode {
        ino: InodeId::new(100),
        kind: if matches!(content, Content::Directory(_)) {
            FileKind::Directory
        } else {
            FileKind::Regular
        },
        perm: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        times: Times::all(time(1)),
        has_xattrs: false,
        flags: FileFlags::default(),
        home: None,
        content,
    }
}

fn directory() -> Inode {
    let mut info = DirInfo::new(InodeId::ROOT, Some(EntrySuffix::from_hash(9)));
    (info.entries, info.subdirs) = (50, 20);
    info.usage = info.usage.plus(UsageChange { bytes: 1000, files: 30, dirs: 20 });
    Inode { nlink: 22, ..inode(Content::Directory(info)) }
}

fn info(inode: &mut Inode) -> &mut DirInfo {
    match &mut inode.content {
        Content::Directory(info) => info,
        _ => panic!("a directory"),
    }
}

fn merged(key: RowKey, base: Option<Bytes>, theirs: Option<Bytes>, ours: Option<Bytes>) -> Merged {
    let [base, theirs, ours] = [&base, &theirs, &ours].map(Option::as_ref);
    merge(&Clash { meta: Some(key.meta_kind()), base, theirs, ours })
}

fn merged_inodes(base: &Inode, theirs: &Inode, ours: &Inode) -> Option<Inode> {
    let [base, theirs, ours] =
        [base, theirs, ours].map(|inode| Some(Bytes::from(encode_inode_row(inode))));
    match merged(RowKey::inode(InodeId::new(100)), base, theirs, ours) {
        Merged::Value(value) => Some(decode_inode_row(&value).unwrap()),
        Merged::Conflict => None,
        Merged::Deleted => panic!("nobody deleted it"),
    }
}

/// Changes of a directory on both sides come to the same as one after the other.
#[test]
fn changes_of_what_a_directory_holds_add_up() {
    let mut rng = Rng::new(20_261_120);
    for _ in 0..2000 {
        let base = directory();
        let mut change = |on: &mut [&mut Inode]| {
            let (names, dirs) = (rng.below(9) as i64 - 4, rng.below(5) as i32 - 2);
            let more = UsageChange { bytes: names * 100, files: names, dirs: dirs.into() };
            let at = time(rng.below(100));
            for inode in on {
                inode.times.mtime = inode.times.mtime.max(at);
                let info = info(inode);
                info.entries = info.entries.checked_add_signed(names).unwrap();
                info.subdirs = info.subdirs.checked_add_signed(dirs).unwrap();
                info.usage = info.usage.plus(more);
                info.pending = info.pending.plus(more);
                inode.nlink = self::info(inode).subdirs + 2;
            }
        };
        let (mut theirs, mut ours, mut both) = (base.clone(), base.clone(), base.clone());
        change(&mut [&mut theirs, &mut both]);
        change(&mut [&mut ours, &mut both]);
        assert_eq!(merged_inodes(&base, &theirs, &ours), Some(both));
    }
}

#[test]
fn one_may_move_a_directory_but_not_while_the_other_changes_what_is_told_of_it() {
    let base = directory();
    let (mut moved, mut grown) = (base.clone(), base.clone());
    info(&mut moved).parent = InodeId::new(77);
    let more = UsageChange::file(5);
    info(&mut grown).usage = info(&mut grown).usage.plus(more);
    info(&mut grown).pending = more;
    let mut both = moved.clone();
    (info(&mut both).usage, info(&mut both).pending) = (info(&mut grown).usage, more);
    assert_eq!(merged_inodes(&base, &moved, &grown), Some(both.clone()));
    assert_eq!(merged_inodes(&base, &grown, &moved), Some(both));
    info(&mut grown).pending = UsageChange::default();
    assert_eq!(merged_inodes(&base, &moved, &grown), None);
    assert_eq!(merged_inodes(&base, &grown, &moved), None);
    let mut elsewhere = base.clone();
    info(&mut elsewhere).parent = InodeId::new(78);
    assert_eq!(merged_inodes(&base, &elsewhere, &moved), None);
    let mut owned = base.clone();
    owned.uid = 5;
    let mut other = base.clone();
    other.perm = 0o700;
    assert_eq!(merged_inodes(&base, &owned, &other), None);
}

#[test]
fn who_only_read_a_file_takes_nothing_from_the_other() {
    let base = inode(Content::None);
    let (mut read, mut written) = (base.clone(), base.clone());
    read.times.atime = time(50);
    (written.size, written.times.mtime) = (7, time(40));
    let mut both = written.clone();
    both.times.atime = time(50);
    assert_eq!(merged_inodes(&base, &read, &written), Some(both.clone()));
    assert_eq!(merged_inodes(&base, &written, &read), Some(both.clone()));
    assert_eq!(merged_inodes(&base, &written, &Inode { size: 8, ..written.clone() }), None);
    let row = |inode: &Inode| {
        let mut row = EntryRow::default();
        row.insert(b"name", Body::Inline(inode.clone()));
        Some(Bytes::from(row.encode()))
    };
    let key = RowKey::entry(InodeId::ROOT, EntrySuffix::from_hash(3));
    let value = Merged::Value(row(&both).unwrap());
    assert_eq!(merged(key, row(&base), row(&read), row(&written)), value);
    assert_eq!(merged(key, row(&base), row(&read), None), Merged::Deleted);
    assert_eq!(merged(key, row(&base), row(&written), None), Merged::Conflict);
    assert_eq!(merged(key, row(&base), None, row(&written)), Merged::Conflict);
    assert_eq!(merged(key, None, row(&base), row(&written)), Merged::Conflict);
    assert_eq!(merged(key, row(&base), None, None), Merged::Conflict);
    let own = |inode: &Inode| Some(Bytes::from(encode_inode_row(inode)));
    let own_key = RowKey::inode(base.ino);
    assert_eq!(merged(own_key, own(&base), own(&read), None), Merged::Deleted);
    assert_eq!(merged(own_key, own(&base), own(&written), None), Merged::Conflict);
    assert_eq!(merged(own_key, own(&base), None, own(&read)), Merged::Conflict);
    let mut linked = EntryRow::default();
    linked.insert(b"name", Body::Reference { ino: base.ino, kind: base.kind });
    let linked = Bytes::from(linked.encode());
    let value = Merged::Value(linked.clone());
    assert_eq!(merged(key, row(&base), row(&read), Some(linked.clone())), value);
    assert_eq!(merged(key, row(&base), row(&written), Some(linked)), Merged::Conflict);
    assert_eq!(
        merged(key, row(&base), row(&written), row(&written)),
        Merged::Value(row(&written).unwrap())
    );
    assert_eq!(
        merged(key, row(&base), row(&written), row(&base)),
        Merged::Value(row(&written).unwrap())
    );
}

#[test]
fn marks_that_come_are_written_and_marks_that_go_are_the_main_views() {
    let key = RowKey::mark(3);
    let [one, two] = ["one", "two"].map(|text| Some(Bytes::from(text)));
    assert_eq!(merged(key, None, one.clone(), two.clone()), Merged::Value(two.clone().unwrap()));
    assert_eq!(merged(key, one, two.clone(), None), Merged::Value(two.unwrap()));
}

/// Rows that cannot be read, and rows of other kinds, are conflicts.
#[test]
fn anything_else_is_a_conflict() {
    let rows = ["a", "b", "c"].map(|text| Some(Bytes::from(text)));
    let [a, b, c] = rows;
    let ino = InodeId::new(100);
    for key in
        [RowKey::inode(ino), RowKey::pending(ino), RowKey::limits(ino), RowKey::parent(ino, 5)]
    {
        assert_eq!(merged(key, a.clone(), b.clone(), c.clone()), Merged::Conflict);
    }
    let [base, theirs, ours] = [&a, &b, &c].map(Option::as_ref);
    assert_eq!(merge(&Clash { meta: None, base, theirs, ours }), Merged::Conflict);
}

/// The main view had ended the mark since, so that the slot came to the same directory again.
#[test]
fn a_mark_that_a_commit_brings_is_there_also_if_there_was_such_a_one() {
    let mark = Bytes::from(varve_schema::Mark(InodeId::new(100)).encode().to_vec());
    let (key, is_there) = (RowKey::mark(5), Some(mark.clone()));
    assert_eq!(merged(key, is_there.clone(), None, is_there.clone()), Merged::Value(mark.clone()));
    assert_eq!(merged(key, is_there.clone(), is_there, None), Merged::Value(mark));
}
