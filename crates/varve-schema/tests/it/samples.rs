//! One sample of every kind of row, by name.

use bytes::Bytes;
use varve_schema::{
    Body, ClientRow, CloneReference, CloneRemap, Content, DictionaryRow, DirInfo, EntryRow,
    EntrySuffix, FileKind, Folded, Handover, Home, Inode, InodeLocation, KnownInode, Limits,
    LookupsRow, Mark, OpenHandle, ParentRow, Pending, RequestResult, RequestRow, RowKey,
    SharedContent, StoreId, Times, Usage, UsageChange, XattrRow, encode_inode_row,
};
use varve_types::{FileFlags, InodeId, Timestamp};

use crate::exercise::{self, Recode};

/// A row with the decoder of its kind.
pub(crate) struct Sample {
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
    pub(crate) recode: Recode,
}

pub(crate) fn time(secs: i64, nanos: u32) -> Timestamp {
    Timestamp::new(secs, nanos).unwrap()
}

/// A fresh empty file of a user, as most files begin.
pub(crate) fn file() -> Inode {
    Inode {
        ino: InodeId::new(1_234_567),
        kind: FileKind::Regular,
        perm: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 1000,
        rdev: 0,
        size: 0,
        times: Times::all(time(1_700_000_000, 123_456_789)),
        has_xattrs: false,
        flags: FileFlags::default(),
        home: None,
        content: Content::None,
    }
}

pub(crate) fn directory() -> Inode {
    let suffix = Some(EntrySuffix::from_hash(0x1234_5678_9abc));
    let usage = Usage { bytes: 1_234_567, files: 400, dirs: 12 };
    let info =
        DirInfo { entries: 300, subdirs: 2, usage, ..DirInfo::new(InodeId::new(77), suffix) };
    Inode { kind: FileKind::Directory, nlink: 4, content: Content::Directory(info), ..file() }
}

fn row_of(names: Vec<(&[u8], Body)>) -> EntryRow {
    let mut row = EntryRow::default();
    for (name, body) in names {
        row.insert(name, body).unwrap();
    }
    row
}

/// A named file of which a commit has made another, a directory, an O_TMPFILE file and a removed symbolic link; two of them open.
fn handover() -> Handover {
    let known = |ino, lookups, place| KnownInode {
        ino: InodeId::new(ino),
        lookups,
        orphan: false,
        linkable: false,
        replaced: false,
        place,
    };
    let key = RowKey::entry(InodeId::ROOT, EntrySuffix::from_hash(0xabc));
    let temporary =
        KnownInode { orphan: true, linkable: true, ..known(300, 1, InodeLocation::Own) };
    let place = InodeLocation::Entry { key, slot: 1 };
    let read = KnownInode { replaced: true, ..known(200, 2, place) };
    let open = |handle, ino, write| OpenHandle {
        handle,
        ino: InodeId::new(ino),
        read: true,
        write,
        append: write,
        sync: false,
        passthrough: !write,
        execute: !write,
        appends: false,
    };
    Handover {
        next_handle: 1000,
        spilled: 70_000,
        known: vec![
            read,
            known(77, 1, InodeLocation::Own),
            temporary,
            known(1_234_567, 3, InodeLocation::Detached(Box::new(file()))),
        ],
        open: vec![open(998, 200, false), open(999, 300, true)],
    }
}

/// A directory that a clone has not copied yet, a small and a large file whose bytes it has not, and their rows.
fn clones() -> Vec<Sample> {
    let (source, ino) = (InodeId::new(1 << 30), InodeId::new(1_234_000));
    let mut folded = directory();
    if let Content::Directory(info) = &mut folded.content {
        info.source = Some(source);
    }
    let borrowed = |size, blocks| {
        let content = Content::Shared(SharedContent { source, ino, blocks });
        let mut row = EntryRow::default();
        row.insert(b"b", Body::Inline(Inode { size, content, ..file() })).unwrap();
        row.encode()
    };
    let loan = Folded {
        dir: ino,
        top: InodeId::ROOT,
        clone: InodeId::new((1 << 30) + 1),
        next: InodeId::new((1 << 30) + 2),
        end: InodeId::new((1 << 30) + 70_000),
        after: Some(EntrySuffix::from_hash(0x1234_5678_9abc)),
        made: time(1_700_000_000, 999_999_999),
    };
    let sample = |name, bytes, recode: Recode| Sample { name, bytes, recode };
    vec![
        sample("inode-folded-directory", encode_inode_row(&folded), exercise::inode),
        sample("entry-borrowed-chunks", borrowed(40_000, None), exercise::entry),
        sample("entry-borrowed-object", borrowed(200_000, Some(400)), exercise::entry),
        sample("loan-file", CloneReference::File.encode(), exercise::clone_reference),
        sample(
            "loan-directory",
            CloneReference::Directory(loan).encode(),
            exercise::clone_reference,
        ),
        sample("twin", CloneRemap { ino, left: 300 }.encode(), exercise::clone_remap),
    ]
}

/// Inodes that were looked up two hundred times: one with a row of its own, and one in the row of its name.
fn lookups() -> [Sample; 2] {
    let key = RowKey::entry(InodeId::new(300), EntrySuffix::from_hash(77));
    let places = [
        ("lookups-own", InodeLocation::Own),
        ("lookups-entry", InodeLocation::Entry { key, slot: 3 }),
    ];
    places.map(|(name, place)| {
        let bytes = LookupsRow { lookups: 200, place }.encode();
        Sample { name, bytes, recode: exercise::lookups }
    })
}

fn dictionary(name: &'static str, number: u32, going: bool, made: u64) -> Sample {
    let bytes = DictionaryRow { number, going, made: InodeId::new(made) }.encode();
    Sample { name, bytes, recode: exercise::dictionary }
}

/// All kinds of pending work.
fn pending() -> [Sample; 6] {
    let suffix = EntrySuffix::from_hash(0x1234_5678_9abc);
    let kinds = [
        ("pending-orphan", Pending::Orphan),
        ("pending-object-making", Pending::ObjectMaking),
        ("pending-object-delete", Pending::ObjectDelete),
        ("pending-orphan-object-making", Pending::OrphanObjectMaking),
        ("pending-object-dirty", Pending::ObjectDirty { entry: Some((InodeId::new(77), suffix)) }),
        ("pending-object-install", Pending::ObjectInstall { view: InodeId::new(70_000) }),
    ];
    kinds.map(|(name, kind)| Sample { name, bytes: kind.encode(), recode: exercise::pending })
}

/// All kinds of results of requests, and a client.
fn requests() -> [Sample; 4] {
    let written = RequestResult::Written { offset: 1 << 33, bytes: 70_000, set_id: 2 };
    let kinds = [
        ("request-nothing", 300, RequestResult::Nothing),
        ("request-inode", u64::MAX, RequestResult::Inode(InodeId::new(1_234_567))),
        ("request-written", 1, written),
    ];
    let [nothing, inode, written] = kinds.map(|(name, number, result)| Sample {
        name,
        bytes: RequestRow { number, result }.encode(),
        recode: exercise::request,
    });
    let client = Sample { name: "client", bytes: ClientRow.encode(), recode: exercise::client };
    [nothing, inode, written, client]
}

pub(crate) fn samples() -> Vec<Sample> {
    let old = Times {
        atime: time(-1, 999_999_999),
        mtime: time(1, 0),
        ctime: time(i64::MAX, 1),
        btime: time(i64::MIN, 2),
    };
    let device = Inode { kind: FileKind::BlockDevice, rdev: 0x801, times: old, ..file() };
    let inline =
        Inode { size: 5, content: Content::Inline(Bytes::from_static(b"hello")), ..file() };
    let target = Content::Symlink(Bytes::from_static(b"../target"));
    let symlink =
        Inode { kind: FileKind::Symlink, perm: 0o777, size: 9, content: target, ..file() };
    let chunks = Inode { size: 40_000, has_xattrs: true, content: Content::Chunks, ..file() };
    let clean = Content::Object { dirty: false, blocks: 400 };
    let object = Inode { size: 200_000, content: clean, ..file() };
    let dirty = Inode { content: Content::Object { dirty: true, blocks: 0 }, ..object.clone() };
    let home = Some(Home { dir: InodeId::new(1234), hash: 0x12_3456_789a_bcde });
    let linked = Inode { nlink: 3, home, ..inline.clone() };
    let all_flags = FileFlags::IMMUTABLE.with(FileFlags::APPEND_ONLY).with(FileFlags::NO_DUMP);
    let mut telling = directory();
    if let Content::Directory(info) = &mut telling.content {
        info.pending = UsageChange { bytes: -70_000, files: 3, dirs: -1 };
    }
    let mut parents = ParentRow::default();
    parents.add(InodeId::ROOT, b"name");
    parents.add(InodeId::new(1 << 40), &[0xff; 255]);
    let store_id = StoreId(0x0123_4567_89ab_cdef_u128 << 64 | 77);
    let limits = Limits { bytes: Some(10 << 30), inodes: Some(100_000) };
    let reference = Body::Reference { ino: InodeId::new(99), kind: FileKind::Directory };
    let mut gap = row_of(vec![
        (&[0xff; 255], Body::Inline(device)),
        (b"gone", reference.clone()),
        (b"symlink", Body::Inline(symlink)),
    ]);
    gap.remove(b"gone");
    let mut xattrs = XattrRow::default();
    xattrs.set(b"user.one", b"value");
    xattrs.set(b"security.two", b"");
    let sample = |name, bytes, recode: Recode| Sample { name, bytes, recode };
    let entry = |name, row: EntryRow| sample(name, row.encode(), exercise::entry);
    let inode = |name, inode: &Inode| sample(name, encode_inode_row(inode), exercise::inode);
    let mut all = vec![
        entry("entry-empty-file", row_of(vec![(b"readme.txt", Body::Inline(file()))])),
        entry("entry-inline-data", row_of(vec![(b"a", Body::Inline(inline))])),
        entry("entry-directory", row_of(vec![(b"src", reference)])),
        entry("entry-collision-with-gap", gap),
        entry("entry-chunks-with-xattrs", row_of(vec![(b"c", Body::Inline(chunks))])),
        entry("entry-object", row_of(vec![(b"o", Body::Inline(object))])),
        entry("entry-dirty-object", row_of(vec![(b"d", Body::Inline(dirty))])),
        inode("inode-directory", &directory()),
        inode("inode-linked-file", &linked),
        inode("inode-fixed-directory", &Inode { flags: FileFlags::IMMUTABLE, ..directory() }),
        inode("inode-all-flags", &Inode { flags: all_flags, ..linked.clone() }),
        sample("handover", handover().encode(), exercise::handover),
        sample("xattrs", xattrs.encode(), exercise::xattr),
        inode("inode-directory-untold", &telling),
        sample("mark", Mark(InodeId::new(1_234_567)).encode(), exercise::mark),
        sample("store-id", store_id.encode(), exercise::store_id),
        sample("limits", limits.encode(), exercise::limits),
        dictionary("dictionary", 300, false, 0),
        dictionary("dictionary-going", 0, true, 0),
        dictionary("dictionary-made", 7, false, 70_000),
        sample("parents", parents.encode(), exercise::parent),
    ];
    all.extend(clones());
    all.extend(lookups());
    all.extend(pending().into_iter().chain(requests()));
    all
}
