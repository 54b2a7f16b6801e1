//! Every broken invariant is found and named.

use std::path::Path;
use std::sync::Arc;

use varve_engine::db::Db;
use varve_engine::options::DbOptions;
use varve_engine::{Batch, KeyspaceOptions, Store};
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::fsck::{Finding, Report, check_store};
use varve_fs::superblock::{Superblock, engine_dir};
use varve_fs::{FormatOptions, VarveFs};
use varve_schema::{
    Body, Content, DATA, EntryRow, EntrySuffix, Inode, META, NameHasher, Pending, RowKey, XattrRow,
    decode_inode_row, encode_inode_row,
};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::{Vfs, XattrMode};

use crate::crash::{STORE, open, sim_store};
use crate::support::{Calls, ROOT};

/// A closed store whose rows can be changed at will.
pub(crate) struct Bench {
    env: Arc<SimEnv>,
    pub(crate) hasher: NameHasher,
    pub(crate) dir: InodeId,
    pub(crate) inner: InodeId,
    pub(crate) small: InodeId,
    pub(crate) linked: InodeId,
    large: InodeId,
}

impl Bench {
    /// `d/inner/`, `d/small` (chunks, an attribute), `d/linked` and `linked2`, `d/large`.
    pub(crate) fn new() -> Bench {
        let env = sim_store(1, &FormatOptions::default());
        let fs = open(&env);
        let dir = fs.mk_dir(ROOT, "d");
        let inner = fs.mk_dir(dir, "inner");
        let small = fs.mk(dir, "small");
        fs.put_at(small, 0, &[1; 20_000]);
        fs.setxattr(small, b"user.a", b"1", XattrMode::Set).unwrap();
        let linked = fs.mk(dir, "linked");
        fs.link(linked, ROOT, crate::support::name("linked2")).unwrap();
        let large = fs.mk(dir, "large");
        fs.put_at(large, 0, &[2; 200_000]);
        fs.sync().unwrap();
        fs.close().unwrap();
        drop::<VarveFs>(fs);
        let superblock = Superblock::read(env.as_ref(), Path::new(STORE)).unwrap();
        let key = u128::from_str_radix(&superblock.name_hash_key, 16).unwrap();
        let hasher = NameHasher::new(key, superblock.name_hash_bits);
        Bench { env, hasher, dir, inner, small, linked, large }
    }

    fn env(&self) -> Arc<dyn Env> {
        self.env.clone()
    }

    /// Opens the engine alone, lets `change` break something, closes it, and checks.
    pub(crate) fn after(&self, change: impl FnOnce(&Rows)) -> Report {
        let dir = engine_dir(Path::new(STORE));
        let db = Db::open(self.env(), &dir, DbOptions::default()).unwrap();
        let options = KeyspaceOptions { prefixed: true, compressed: false };
        let meta = db.keyspace(META, options).unwrap();
        let data = db.keyspace(DATA, options).unwrap();
        db.set_external_sync(Box::new(|| Ok(())));
        let rows = Rows { db, meta, data };
        change(&rows);
        rows.db.close().unwrap();
        drop(rows);
        check_store(self.env(), Path::new(STORE), &mut |_| ()).unwrap()
    }

    pub(crate) fn entry(&self, dir: InodeId, text: &str) -> RowKey {
        RowKey::entry(dir, self.hasher.entry(text.as_bytes()))
    }
}

pub(crate) struct Rows {
    pub(crate) db: Db,
    pub(crate) meta: KeyspaceId,
    data: KeyspaceId,
}

impl Rows {
    pub(crate) fn put(&self, keyspace: KeyspaceId, key: RowKey, value: Vec<u8>) {
        let mut batch = Batch::new();
        batch.put(keyspace, key.to_bytes().to_vec(), value);
        self.db.write(batch).unwrap();
    }

    pub(crate) fn delete(&self, keyspace: KeyspaceId, key: RowKey) {
        let mut batch = Batch::new();
        batch.delete(keyspace, key.to_bytes().to_vec());
        self.db.write(batch).unwrap();
    }

    pub(crate) fn change_inode(&self, ino: InodeId, change: impl FnOnce(&mut Inode)) {
        let key = RowKey::inode(ino);
        let value = self.db.get(self.meta, &key.to_bytes()).unwrap().unwrap();
        let mut inode = decode_inode_row(&value).unwrap();
        change(&mut inode);
        self.put(self.meta, key, encode_inode_row(&inode));
    }

    pub(crate) fn change_dir(&self, ino: InodeId, change: impl FnOnce(&mut varve_schema::DirInfo)) {
        self.change_inode(ino, |inode| match &mut inode.content {
            Content::Directory(info) => change(info),
            _ => panic!("not a directory"),
        });
    }

    fn change_entry(&self, key: RowKey, change: impl FnOnce(&mut EntryRow)) {
        let value = self.db.get(self.meta, &key.to_bytes()).unwrap().unwrap();
        let mut row = EntryRow::decode(&value).unwrap();
        change(&mut row);
        self.put(self.meta, key, row.encode());
    }

    fn change_inline(&self, key: RowKey, change: impl FnOnce(&mut Inode)) {
        self.change_entry(key, |row| {
            let named = row.names()[0].clone();
            let Body::Inline(mut inode) = named.body else { panic!("not inline") };
            change(&mut inode);
            row.set_body(named.slot, Body::Inline(inode));
        });
    }
}

#[test]
fn a_sound_store_has_no_findings() {
    let bench = Bench::new();
    let report = bench.after(|_| ());
    assert_eq!(report.findings, []);
    assert!(report.is_clean());
    assert_eq!((report.directories, report.files, report.names), (3, 3, 6));
    assert_eq!((report.chunks, report.objects), (2, 1));
}

#[test]
fn wrong_counts_are_found() {
    let bench = Bench::new();
    let (dir, linked) = (bench.dir.get(), bench.linked.get());
    let report = bench.after(|rows| {
        rows.change_dir(bench.dir, |info| {
            info.entries += 1;
            info.subdirs += 1;
        });
        rows.change_inode(bench.linked, |inode| inode.nlink = 3);
    });
    assert!(!report.is_clean());
    assert_eq!(
        report.findings,
        [
            Finding::WrongLinkCount { ino: dir, recorded: 3, counted: 4 },
            Finding::WrongEntryCount { dir, recorded: 5, counted: 4 },
            Finding::WrongSubdirCount { dir, recorded: 2, counted: 1 },
            Finding::WrongLinkCount { ino: linked, recorded: 3, counted: 2 },
        ]
    );
}

#[test]
fn dangling_entries_and_lost_inodes_are_found() {
    let bench = Bench::new();
    let (dir, inner, linked) = (bench.dir.get(), bench.inner.get(), bench.linked.get());
    let report = bench.after(|rows| {
        rows.delete(rows.meta, RowKey::inode(bench.inner));
        rows.delete(rows.meta, RowKey::inode(bench.linked));
    });
    let dangling = |dir, name: &str, ino| Finding::DanglingEntry { dir, name: name.into(), ino };
    assert!(report.findings.contains(&dangling(dir, "inner", inner)));
    assert!(report.findings.contains(&dangling(ROOT.get(), "linked2", linked)));
    let bench = Bench::new();
    let report = bench.after(|rows| {
        rows.delete(rows.meta, bench.entry(bench.dir, "linked"));
        rows.delete(rows.meta, bench.entry(ROOT, "linked2"));
        rows.change_inode(bench.linked, |inode| inode.nlink = 0);
    });
    assert!(report.findings.contains(&Finding::InodeWithoutName { ino: linked }));
}

#[test]
fn a_loop_of_directories_is_found() {
    let bench = Bench::new();
    let (dir, inner) = (bench.dir.get(), bench.inner.get());
    let report = bench.after(|rows| {
        // d moves into d/inner: each has a name in the other, none is below the root.
        let reference = Body::Reference { ino: bench.dir, kind: varve_schema::FileKind::Directory };
        let mut row = EntryRow::default();
        row.insert(b"d", reference).unwrap();
        rows.put(rows.meta, bench.entry(bench.inner, "d"), row.encode());
        rows.delete(rows.meta, bench.entry(ROOT, "d"));
        rows.change_dir(bench.dir, |info| info.parent = bench.inner);
        rows.change_inode(bench.inner, |inode| {
            inode.nlink = 3;
            if let Content::Directory(info) = &mut inode.content {
                (info.entries, info.subdirs) = (1, 1);
            }
        });
        rows.change_inode(ROOT, |inode| {
            inode.nlink = 2;
            if let Content::Directory(info) = &mut inode.content {
                (info.entries, info.subdirs) = (1, 0);
            }
        });
    });
    let mut found = report.findings;
    found.retain(|finding| !matches!(finding, Finding::WrongUsage { .. }));
    assert_eq!(
        found,
        [Finding::UnreachableDirectory { dir }, Finding::UnreachableDirectory { dir: inner }]
    );
}

#[test]
fn wrong_parents_and_misplaced_names_are_found() {
    let bench = Bench::new();
    let (dir, inner) = (bench.dir.get(), bench.inner.get());
    let report = bench.after(|rows| rows.change_dir(bench.inner, |info| info.parent = ROOT));
    let without_name = Finding::DirectoryWithoutName { dir: inner, parent: ROOT.get() };
    assert!(report.findings.contains(&without_name));
    assert!(report.findings.contains(&Finding::InodeTwice { ino: inner }));
    let bench = Bench::new();
    let report = bench.after(|rows| {
        let key = bench.entry(bench.dir, "small");
        let value = rows.db.get(rows.meta, &key.to_bytes()).unwrap().unwrap();
        rows.delete(rows.meta, key);
        let elsewhere = RowKey::entry(bench.dir, EntrySuffix::from_hash(12345));
        rows.put(rows.meta, elsewhere, value.to_vec());
    });
    assert_eq!(report.findings, [Finding::MisplacedEntry { dir, name: "small".into() }]);
}

#[test]
fn stray_and_missing_data_is_found() {
    let bench = Bench::new();
    let (small, large) = (bench.small.get(), bench.large.get());
    let nobody = InodeId::new(900_000);
    let report = bench.after(|rows| {
        rows.put(rows.data, RowKey::chunk(nobody, 3), vec![0; 10]);
        rows.put(rows.data, RowKey::chunk(bench.small, 0), vec![0; 20_000]);
        rows.put(rows.data, RowKey::xattr(nobody, 1), XattrRow::default().encode());
        let xattr = RowKey::xattr(bench.small, bench.hasher.xattr(b"user.a"));
        rows.delete(rows.data, xattr);
        rows.put(rows.meta, RowKey::pending(nobody), Pending::Orphan.encode().to_vec());
    });
    assert_eq!(
        report.findings,
        [
            Finding::Pending { ino: nobody.get(), what: "removed while in use" },
            Finding::PendingWithoutInode { ino: nobody.get() },
            Finding::OversizedChunk { ino: small, index: 0, bytes: 20_000 },
            Finding::StrayChunk { ino: nobody.get(), index: 3 },
            Finding::StrayXattr { ino: nobody.get() },
            Finding::MissingXattr { ino: small },
        ]
    );
    let bench = Bench::new();
    let objects = Path::new(STORE).join("objects/0/0");
    bench.env.truncate_raw(&objects.join(large.to_string()), 100).unwrap();
    bench.env.open(&objects.join("77"), varve_env::OpenMode::CreateNew).unwrap();
    bench.env.open(&objects.join("x"), varve_env::OpenMode::CreateNew).unwrap();
    let report = bench.after(|_| ());
    let path = objects.join("x").display().to_string();
    for finding in [
        Finding::ObjectWithoutRow { ino: 77 },
        Finding::ShortObject { ino: large, recorded: 200_000, found: 100 },
        Finding::StrayFile { path },
    ] {
        assert!(report.findings.contains(&finding), "{finding}");
    }
    assert_eq!((report.findings.len(), report.errors), (3, 1));
    bench.env.remove_raw(&objects.join(large.to_string())).unwrap();
    assert!(bench.after(|_| ()).findings.contains(&Finding::MissingObject { ino: large }));
}

#[test]
fn unreadable_and_unknown_rows_are_found() {
    let bench = Bench::new();
    let report = bench.after(|rows| {
        rows.put(rows.meta, bench.entry(bench.dir, "small"), vec![9, 9, 9]);
        rows.put(rows.meta, RowKey::chunk(bench.dir, 1), vec![1]);
        rows.put(rows.meta, RowKey::inode(bench.linked), vec![1]);
    });
    let has = |test: &dyn Fn(&Finding) -> bool| report.findings.iter().any(test);
    assert!(has(
        &|f| matches!(f, Finding::UnreadableRow { prefix, .. } if *prefix == bench.dir.get())
    ));
    assert!(has(&|f| matches!(f, Finding::UnreadableRow { suffix: 0, .. })));
    assert!(has(&|f| matches!(f, Finding::UnknownRow { .. })));
}

#[test]
fn an_inode_in_two_places_or_beyond_the_mark_is_found() {
    let bench = Bench::new();
    let ino = bench.small.get();
    let report = bench.after(|rows| {
        rows.change_inline(bench.entry(bench.dir, "large"), |inode| inode.ino = bench.small);
    });
    assert!(report.findings.contains(&Finding::InodeTwice { ino }));
    let bench = Bench::new();
    let report = bench.after(|rows| {
        rows.change_inline(bench.entry(bench.dir, "small"), |inode| {
            inode.ino = InodeId::new(1 << 50)
        });
    });
    assert!(report.findings.iter().any(|f| matches!(f, Finding::IdBeyondMark { .. })));
}
