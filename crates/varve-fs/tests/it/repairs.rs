//! Every broken invariant is repaired, and what was whole stays as it was, byte for byte.

use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_fs::dump::dump_store;
use varve_fs::fsck::CheckOptions;
use varve_fs::fsck::Finding;
use varve_fs::fsck::repair::{RepairReport, repair_store};
use varve_schema::key::{ID_MARK, STORE_ID};
use varve_schema::{Body, Content, EntryRow, EntrySuffix, FileKind, Pending, RowKey, XattrRow};
use varve_testkit::fsops::{Times, TreeDump, tree};
use varve_types::InodeId;
use varve_vfs::{Caller, TreeLimits, Vfs};

use crate::bench::{Bench, Rows, check, repair};
use crate::crash::{STORE, open};
use crate::support::{Calls, ROOT, name};

fn dump(bench: &Bench) -> TreeDump {
    let fs = open(&bench.env);
    let dump = tree(&fs).unwrap();
    fs.close().unwrap();
    dump
}

/// Lets `change` break something and repairs it. The findings of the check must include `expected`;
/// afterwards nothing is found, a second repair does nothing, and all paths but `except` are as before.
fn mend(
    bench: &Bench,
    expected: &[Finding],
    except: &[&str],
    change: impl FnOnce(&Rows),
) -> RepairReport {
    let before = dump(bench);
    let found = bench.after(change);
    for finding in expected {
        assert!(found.findings.contains(finding), "{finding} is not among {:?}", found.findings);
    }
    let report = repair(&bench.env);
    assert_eq!(report.left.findings, [], "{:?}", report.mended);
    assert!(!report.mended.is_empty());
    assert!(repair(&bench.env).did_nothing());
    let after = dump(bench);
    let differences: Vec<String> = before
        .differences(&after, Times::Ignore)
        .into_iter()
        .filter(|line| {
            let path = line.split(' ').next().unwrap_or_default();
            // The root counts lost+found.
            !except.contains(&path) && path != "/" && !path.starts_with("/lost+found")
        })
        .collect();
    assert_eq!(differences, [] as [&str; 0], "{:?}", report.mended);
    report
}

/// The content of a file by its path.
fn content(bench: &Bench, path: &[&str]) -> Vec<u8> {
    let fs = open(&bench.env);
    let ino = path.iter().fold(ROOT, |dir, name| fs.find(dir, name).unwrap().ino);
    let content = fs.contents(ino);
    fs.close().unwrap();
    content
}

#[test]
fn wrong_counts_and_links_are_counted_again() {
    let bench = Bench::new();
    let (dir, linked) = (bench.dir.get(), bench.linked.get());
    let expected = [
        Finding::WrongEntryCount { dir, recorded: 9, counted: 4 },
        Finding::WrongSubdirCount { dir, recorded: 7, counted: 1 },
        Finding::WrongLinkCount { ino: linked, recorded: 30, counted: 2 },
    ];
    mend(&bench, &expected, &[], |rows| {
        rows.change_dir(bench.dir, |info| (info.entries, info.subdirs) = (9, 7));
        rows.change_inode(bench.linked, |inode| inode.nlink = 30);
        rows.change_inline(bench.entry(bench.dir, "small"), |inode| inode.nlink = 5);
    });
}

#[test]
fn what_lost_its_name_is_found_in_lost_and_found() {
    let bench = Bench::new();
    let (inner, linked) = (bench.inner.get(), bench.linked.get());
    let expected = [
        Finding::DirectoryWithoutName { dir: inner, parent: bench.dir.get() },
        Finding::InodeWithoutName { ino: linked },
    ];
    let gone = ["/d", "/d/inner", "/d/inner/deep", "/d/linked", "/linked2"];
    mend(&bench, &expected, &gone, |rows| {
        rows.delete(rows.meta, bench.entry(bench.dir, "inner"));
        rows.delete(rows.meta, bench.entry(bench.dir, "linked"));
        rows.delete(rows.meta, bench.entry(ROOT, "linked2"));
    });
    assert_eq!(content(&bench, &["lost+found", &format!("#{linked}")]), b"both");
    assert_eq!(content(&bench, &["lost+found", &format!("#{inner}"), "deep"]), b"deep");
}

/// What was found went into any directory of that name, whose owner could read all that its modes let everybody read.
#[test]
fn what_is_found_goes_to_no_directory_of_somebody_else() {
    for (uid, perm) in [(1000, 0o700), (0, 0o755)] {
        let bench = Bench::new();
        let fs = open(&bench.env);
        let caller = Caller { uid, ..Caller::ROOT };
        fs.mkdir(caller, ROOT, name("lost+found"), perm).unwrap();
        fs.close().unwrap();
        let inner = bench.inner.get();
        let gone = ["/d", "/d/inner", "/d/inner/deep"];
        let report = mend(&bench, &[], &gone, |rows| {
            rows.delete(rows.meta, bench.entry(bench.dir, "inner"));
        });
        let done: Vec<_> = report.mended.iter().map(|mended| mended.done.as_str()).collect();
        let place = format!("/lost+found.1/#{inner}");
        assert!(done.iter().any(|done| done.contains(&place)), "{done:?}");
        let fs = open(&bench.env);
        assert_eq!(fs.list(fs.find(ROOT, "lost+found").unwrap().ino), [] as [&str; 0]);
        let found = fs.find(ROOT, "lost+found.1").unwrap();
        assert_eq!((found.uid, found.perm), (0, 0o700));
        assert_eq!(fs.list(found.ino), [format!("#{inner}")]);
        fs.close().unwrap();
    }
}

/// Of a user's own store they were root's, and no way led there for who may not change owners.
#[test]
fn what_is_made_anew_is_of_whom_the_store_is() {
    let bench = Bench::new();
    bench.change(|rows| {
        rows.delete(rows.meta, RowKey::inode(ROOT));
        rows.delete(rows.meta, RowKey::inode(bench.inner));
        rows.delete(rows.meta, bench.entry(bench.dir, "large"));
        rows.delete(rows.meta, bench.entry(bench.dir, "linked"));
        rows.delete(rows.meta, bench.entry(ROOT, "linked2"));
    });
    let options = CheckOptions { owner: (1000, 1001), ..CheckOptions::default() };
    let env: Arc<dyn Env> = bench.env.clone();
    repair_store(env, Path::new(STORE), &options, &mut |_| ()).unwrap();
    let fs = open(&bench.env);
    let found = fs.find(ROOT, "lost+found").unwrap();
    let large = fs.find(found.ino, &format!("#{}", bench.large)).unwrap();
    let inner = fs.getattr(bench.inner).unwrap();
    for attr in [fs.getattr(ROOT).unwrap(), found, large, inner] {
        assert_eq!((attr.uid, attr.gid), (1000, 1001), "{attr:?}");
    }
    let linked = fs.find(found.ino, &format!("#{}", bench.linked)).unwrap();
    assert_eq!(linked.uid, 0, "what was not lost is of whom it was");
    fs.close().unwrap();
}

#[test]
fn a_lost_directory_row_is_made_anew_where_it_was() {
    let bench = Bench::new();
    let inner = bench.inner.get();
    let expected = [Finding::EntriesWithoutDirectory { dir: inner, entries: 1 }];
    mend(&bench, &expected, &["/d/inner"], |rows| {
        rows.delete(rows.meta, RowKey::inode(bench.inner));
    });
    assert_eq!(content(&bench, &["d", "inner", "deep"]), b"deep");
    let bench = Bench::new();
    mend(&bench, &[Finding::NoRoot], &[], |rows| rows.delete(rows.meta, RowKey::inode(ROOT)));
    assert_eq!(content(&bench, &["d", "inner", "deep"]), b"deep");
}

/// The limits on a directory whose row was lost went aside just after the row was made anew, in the same pass.
#[test]
fn a_directory_that_is_made_anew_keeps_its_limits() {
    let bench = Bench::new();
    let inner = bench.inner.get();
    let limits = TreeLimits { bytes: Some(1 << 20), inodes: Some(50) };
    let fs = open(&bench.env);
    let dir = fs.find(ROOT, "d").unwrap().ino;
    fs.set_limits(fs.find(dir, "inner").unwrap().ino, limits).unwrap();
    fs.close().unwrap();
    drop(fs);
    let expected = [
        Finding::EntriesWithoutDirectory { dir: inner, entries: 1 },
        Finding::LimitsWithoutDirectory { dir: inner },
    ];
    mend(&bench, &expected, &["/d/inner"], |rows| {
        rows.delete(rows.meta, RowKey::inode(bench.inner));
    });
    let fs = open(&bench.env);
    let quotas = fs.quotas(ROOT).unwrap();
    assert_eq!(quotas.iter().map(|quota| quota.limits).collect::<Vec<_>>(), [limits]);
}

#[test]
fn a_dangling_name_goes_unless_its_data_is_there() {
    let bench = Bench::new();
    let (dir, linked) = (bench.dir.get(), bench.linked.get());
    let dangling = Finding::DanglingEntry { dir, name: "linked".into(), ino: linked };
    mend(&bench, &[dangling], &["/d", "/d/linked", "/linked2"], |rows| {
        rows.delete(rows.meta, RowKey::inode(bench.linked));
    });
    let bench = Bench::new();
    let large = bench.large.get();
    let dangling = Finding::DanglingEntry { dir, name: "large".into(), ino: large };
    mend(&bench, &[dangling], &["/d/large"], |rows| {
        let kind = FileKind::Regular;
        rows.change_entry(bench.entry(bench.dir, "large"), |row| {
            row.set_body(0, Body::Reference { ino: bench.large, kind });
        });
    });
    assert_eq!(content(&bench, &["d", "large"]), [2; 200_000]);
}

#[test]
fn data_and_objects_without_an_inode_become_files() {
    let bench = Bench::new();
    let (small, large) = (bench.small.get(), bench.large.get());
    let expected = [
        Finding::DataWithoutInode { ino: small, chunks: 2 },
        Finding::ObjectWithoutRow { ino: large },
    ];
    mend(&bench, &expected, &["/d", "/d/small", "/d/large"], |rows| {
        rows.delete(rows.meta, bench.entry(bench.dir, "small"));
        rows.delete(rows.meta, bench.entry(bench.dir, "large"));
    });
    assert_eq!(content(&bench, &["lost+found", &format!("#{small}")]), [1; 20_000]);
    assert_eq!(content(&bench, &["lost+found", &format!("#{large}")]), [2; 200_000]);
}

#[test]
fn names_come_to_their_places() {
    let bench = Bench::new();
    let dir = bench.dir.get();
    let misplaced = |name: &str| Finding::MisplacedEntry { dir, name: name.into() };
    mend(&bench, &[misplaced("inner"), misplaced("small")], &[], |rows| {
        for (at, text) in [(12_345, "inner"), (12_346, "small")] {
            let key = bench.entry(bench.dir, text);
            let value = rows.get(rows.meta, key);
            rows.delete(rows.meta, key);
            rows.put(rows.meta, RowKey::entry(bench.dir, EntrySuffix::from_hash(at)), value);
        }
    });
}

#[test]
fn a_name_that_is_there_twice_gets_another() {
    let bench = Bench::new();
    let (dir, small) = (bench.dir.get(), bench.small.get());
    let duplicate = Finding::DuplicateName { dir, name: "small".into() };
    let renamed = format!("/d/small#{}", small + 500);
    mend(&bench, &[duplicate], &["/d", &renamed], |rows| {
        let deep = rows.get(rows.meta, bench.entry(bench.inner, "deep"));
        let deep = EntryRow::decode(&deep.into()).unwrap().names()[0].body.clone();
        let Body::Inline(mut inode) = deep else { panic!("not inline") };
        inode.ino = InodeId::new(small + 500);
        rows.change_entry(bench.entry(bench.dir, "small"), |row| {
            row.insert(b"another", Body::Inline(inode)).unwrap();
        });
        // The same name twice: no encoder makes it, so the bytes are changed.
        let key = bench.entry(bench.dir, "small");
        let row = rows.get(rows.meta, key);
        let at = row.windows(7).position(|window| window == b"another").unwrap();
        let row = [&row[..at - 1], &[5], b"small", &row[at + 7..]].concat();
        rows.put(rows.meta, key, row);
        rows.change_dir(bench.dir, |info| info.entries += 1);
    });
    assert_eq!(content(&bench, &["d", &format!("small#{}", small + 500)]), b"deep");
    let bench = Bench::new();
    let bad = Finding::BadName { dir, name: "sm/ll".into() };
    mend(&bench, &[bad], &["/d", "/d/small", "/d/sm_ll"], |rows| {
        let key = bench.entry(bench.dir, "small");
        let row = rows.get(rows.meta, key);
        let at = row.windows(5).position(|window| window == b"small").unwrap();
        rows.put(rows.meta, key, [&row[..at], b"sm/ll", &row[at + 5..]].concat());
    });
    assert_eq!(content(&bench, &["d", "sm_ll"]), [1; 20_000]);
}

#[test]
fn directories_have_one_name_and_no_loop() {
    let bench = Bench::new();
    let (dir, inner) = (bench.dir.get(), bench.inner.get());
    let expected = [
        Finding::WrongParent { dir: inner, parent: ROOT.get(), found: dir },
        Finding::SecondName { dir: inner, name: "again".into(), ino: dir },
    ];
    mend(&bench, &expected, &[], |rows| {
        rows.change_dir(bench.inner, |info| info.parent = ROOT);
        let mut row = EntryRow::default();
        row.insert(b"again", Body::Reference { ino: bench.dir, kind: FileKind::Directory })
            .unwrap();
        rows.put(rows.meta, bench.entry(bench.inner, "again"), row.encode());
    });
    let bench = Bench::new();
    let all = ["/d", "/d/inner", "/d/inner/deep", "/d/small", "/d/linked", "/d/large", "/linked2"];
    mend(&bench, &[Finding::DirectoryLoop { dir }], &all, |rows| {
        rows.delete(rows.meta, bench.entry(ROOT, "d"));
        let mut row = EntryRow::default();
        row.insert(b"up", Body::Reference { ino: bench.dir, kind: FileKind::Directory }).unwrap();
        rows.put(rows.meta, bench.entry(bench.inner, "up"), row.encode());
    });
    let found = format!("#{dir}");
    assert_eq!(content(&bench, &["lost+found", &found, "inner", "deep"]), b"deep");
    assert_eq!(content(&bench, &["lost+found", &found, "large"]), [2; 200_000]);
}

#[test]
fn one_inode_in_two_places_becomes_links_or_two() {
    let bench = Bench::new();
    let (small, linked) = (bench.small.get(), bench.linked.get());
    let twice = Finding::InodeTwice { ino: small };
    mend(&bench, &[twice], &["/", "/d/small", "/copy"], |rows| {
        let row = rows.get(rows.meta, bench.entry(bench.dir, "small"));
        let mut row = EntryRow::decode(&row.into()).unwrap();
        let body = row.remove(b"small").unwrap().body;
        row.insert(b"copy", body).unwrap();
        rows.put(rows.meta, bench.entry(ROOT, "copy"), row.encode());
    });
    assert_eq!(content(&bench, &["copy"]), [1; 20_000]);
    assert_eq!(content(&bench, &["d", "small"]), [1; 20_000]);
    let bench = Bench::new();
    let twice = Finding::InodeTwice { ino: linked };
    mend(&bench, &[twice], &[], |rows| {
        rows.change_inline(bench.entry(bench.inner, "deep"), |inode| inode.ino = bench.linked);
    });
    let bench = Bench::new();
    let expected = [Finding::NamesWithoutRow { ino: small, names: 2 }];
    mend(&bench, &expected, &["/", "/d/small", "/link"], |rows| {
        let mut row = EntryRow::default();
        row.insert(b"link", Body::Reference { ino: bench.small, kind: FileKind::Regular }).unwrap();
        rows.put(rows.meta, bench.entry(ROOT, "link"), row.encode());
    });
    assert_eq!(content(&bench, &["link"]), [1; 20_000]);
}

#[test]
fn identities_and_types_are_put_right() {
    let bench = Bench::new();
    let (dir, inner) = (bench.dir.get(), bench.inner.get());
    let expected = [
        Finding::WrongInode { ino: inner, found: 999 },
        Finding::ImpossibleId { dir: inner, name: "deep".into(), ino: 7 },
        Finding::WrongType { dir, name: "linked".into(), ino: bench.linked.get() },
    ];
    mend(&bench, &expected, &[], |rows| {
        let mut row = rows.get(rows.meta, RowKey::inode(bench.inner));
        let mut inode = varve_schema::decode_inode_row(&row.clone().into()).unwrap();
        inode.ino = InodeId::new(999);
        row = varve_schema::encode_inode_row(&inode);
        rows.put(rows.meta, RowKey::inode(bench.inner), row);
        rows.change_inline(bench.entry(bench.inner, "deep"), |inode| inode.ino = InodeId::new(7));
        rows.change_entry(bench.entry(bench.dir, "linked"), |row| {
            row.set_body(0, Body::Reference { ino: bench.linked, kind: FileKind::Fifo });
        });
    });
    for mark in [Some(vec![1, 20]), Some(vec![9]), None] {
        let bench = Bench::new();
        mend(&bench, &[], &[], |rows| match mark {
            Some(mark) => rows.put(rows.meta, ID_MARK, mark),
            None => rows.delete(rows.meta, ID_MARK),
        });
        let fs = open(&bench.env);
        assert!(fs.mk(ROOT, "new").get() > bench.large.get());
    }
}

#[test]
fn the_store_id_is_written_again_but_not_that_of_another_store() {
    for id in [None, Some(vec![9])] {
        let bench = Bench::new();
        mend(&bench, &[], &[], |rows| match id {
            None => rows.delete(rows.meta, STORE_ID),
            Some(bytes) => rows.put(rows.meta, STORE_ID, bytes),
        });
    }
    let bench = Bench::new();
    let other = varve_schema::StoreId(77).encode();
    let report = bench.after(|rows| rows.put(rows.meta, STORE_ID, other));
    assert_eq!(report.findings, [Finding::OtherStore]);
}

#[test]
fn contents_follow_their_sizes() {
    let bench = Bench::new();
    let (small, linked) = (bench.small.get(), bench.linked.get());
    let expected = [
        Finding::ContentBeyondSize { ino: linked, size: 2, found: 4 },
        Finding::OversizedChunk { ino: small, index: 0, bytes: 20_000 },
        Finding::ChunkBeyondSize { ino: small, index: 1, size: 20_000 },
        Finding::StrayChunk { ino: linked, index: 1 },
    ];
    let report = mend(&bench, &expected, &["/d/linked", "/linked2"], |rows| {
        rows.change_inode(bench.linked, |inode| inode.size = 2);
        rows.put(rows.data, RowKey::chunk(bench.small, 0), vec![1; 20_000]);
        rows.put(rows.data, RowKey::chunk(bench.small, 1), vec![1; 5_000]);
        rows.put(rows.data, RowKey::chunk(bench.linked, 1), vec![1; 5_000]);
    });
    assert_eq!(content(&bench, &["d", "linked"]), b"bo");
    // Nothing that was cut is gone.
    let aside = report.aside.unwrap();
    let rows = bench.env.read_raw(&Path::new(&aside).join("rows-1.jsonl")).unwrap();
    assert_eq!(String::from_utf8(rows).unwrap().lines().count(), 4);
}

/// A size beyond what a file can have was not found, and programs were told of less than none.
#[test]
fn sizes_are_those_that_files_can_have() {
    let bench = Bench::new();
    let (inner, deep) = (bench.inner.get(), bench.inner.get() + 4);
    let large = bench.large.get();
    let size = 1 << 63;
    let expected = [
        Finding::ImpossibleSize { ino: inner, size: u64::MAX },
        Finding::ImpossibleSize { ino: deep, size },
        Finding::ImpossibleSize { ino: large, size },
    ];
    mend(&bench, &expected, &["/d/inner/deep"], |rows| {
        rows.change_inode(bench.inner, |inode| inode.size = u64::MAX);
        rows.change_inline(bench.entry(bench.dir, "large"), |inode| inode.size = size);
        rows.change_inline(bench.entry(bench.inner, "deep"), |inode| {
            assert_eq!(inode.ino.get(), deep);
            (inode.size, inode.content) = (size, Content::None);
        });
    });
    assert_eq!(content(&bench, &["d", "large"]), [2; 200_000]);
    assert_eq!(content(&bench, &["d", "inner", "deep"]), b"");
}

#[test]
fn extended_attributes_and_inodes_agree() {
    let bench = Bench::new();
    let (small, large) = (bench.small.get(), bench.large.get());
    let expected = [Finding::StrayXattr { ino: small }, Finding::MissingXattr { ino: large }];
    mend(&bench, &expected, &[], |rows| {
        rows.change_inline(bench.entry(bench.dir, "small"), |inode| inode.has_xattrs = false);
        rows.change_inline(bench.entry(bench.dir, "large"), |inode| inode.has_xattrs = true);
        rows.put(rows.data, RowKey::xattr(InodeId::new(5000), 1), XattrRow::default().encode());
    });
    let bench = Bench::new();
    let misplaced = Finding::MisplacedXattr { ino: small, name: "user.a".into() };
    mend(&bench, &[misplaced], &[], |rows| {
        let key = RowKey::xattr(bench.small, bench.hasher.xattr(b"user.a"));
        let value = rows.get(rows.data, key);
        rows.delete(rows.data, key);
        rows.put(rows.data, RowKey::xattr(bench.small, 77), value);
    });
}

#[test]
fn rows_and_objects_agree() {
    let objects = Path::new(STORE).join("objects/0/0");
    for (len, expected) in [(None, 0), (Some(70), 70), (Some(300_000), 300_000)] {
        let bench = Bench::new();
        let path = objects.join(bench.large.to_string());
        mend(&bench, &[], &["/d/large"], |_| match len {
            None => bench.env.remove_raw(&path).unwrap(),
            Some(len) => bench.env.truncate_raw(&path, len).unwrap(),
        });
        assert_eq!(content(&bench, &["d", "large"]).len(), expected);
    }
    let bench = Bench::new();
    let stray = Finding::StrayFile { path: objects.join("x").display().to_string() };
    mend(&bench, &[stray], &[], |_| {
        bench.env.open(&objects.join("x"), varve_env::OpenMode::CreateNew).unwrap();
    });
}

/// An object that was shorter than its file was removed as a part of it, whatever it held: what was written to it last, and synced, was
/// lost where the log that told so was damaged.
#[test]
fn an_object_goes_only_if_its_file_begins_with_its_bytes() {
    let objects = Path::new(STORE).join("objects/0/0");
    let hole = [&[1; 20_000][..], &[0; 20_000], &[4; 500]].concat();
    for (ino_is_small, held, is_kept) in [
        (true, vec![1; 17_000], false),
        (true, hole[..35_000].to_vec(), false),
        (true, hole.clone(), false),
        (true, vec![3; 10], true),
        (true, vec![1; 35_000], true),
        (true, [&hole[..], &[4]].concat(), true),
        (false, b"bot".to_vec(), false),
        (false, b"but".to_vec(), true),
        (false, vec![3; 3000], true),
    ] {
        let bench = Bench::new();
        let fs = open(&bench.env);
        let dir = fs.find(ROOT, "d").unwrap().ino;
        fs.put_at(fs.find(dir, "small").unwrap().ino, 40_000, &[4; 500]);
        fs.close().unwrap();
        drop(fs);
        let ino = if ino_is_small { bench.small } else { bench.linked };
        mend(&bench, &[Finding::UnclaimedObject { ino: ino.get() }], &[], |_| {
            let path = objects.join(ino.to_string());
            let file = bench.env.open(&path, varve_env::OpenMode::CreateNew).unwrap();
            file.write_all_at(&held, 0).unwrap();
        });
        let fs = open(&bench.env);
        let found = fs.find(ROOT, "lost+found").unwrap().ino;
        let names = fs.list(found);
        assert_eq!(names.len(), usize::from(is_kept), "{names:?} of {} bytes", held.len());
        assert!(names.iter().all(|name| fs.contents(fs.find(found, name).unwrap().ino) == held));
    }
}

/// A copy of a store that lacked the directory of large files could be mounted, but was neither checked nor repaired.
#[test]
fn a_store_without_the_directory_of_objects_is_checked_and_repaired() {
    let bench = Bench::new();
    let object = Path::new(STORE).join(format!("objects/0/0/{}", bench.large));
    let lose_objects = || {
        let objects = Path::new(STORE).join("objects");
        for dir in [objects.join("0/0"), objects.join("0"), objects] {
            bench.env.remove_dir(&dir).unwrap();
        }
    };
    let expected = [Finding::MissingObject { ino: bench.large.get() }];
    mend(&bench, &expected, &["/d/large"], |_| {
        bench.env.remove_raw(&object).unwrap();
        lose_objects();
    });
    assert_eq!(content(&bench, &["d", "large"]), b"");
    assert_eq!(check(&bench.env).findings, []);
    let fs = open(&bench.env);
    let dir = fs.find(ROOT, "d").unwrap().ino;
    fs.put_at(fs.find(dir, "large").unwrap().ino, 0, &[2; 200_000]);
    fs.sync().unwrap();
    drop(fs);
    let bench = Bench { env: bench.env.power_cut_keep_nothing(), ..bench };
    assert_eq!(content(&bench, &["d", "large"]), [2; 200_000]);
    assert_eq!(check(&bench.env).findings, []);
}

/// A sync took the directory of large files, which somebody had removed, for one that has nothing to be synced.
#[test]
fn a_sync_fails_where_the_directory_of_objects_is_gone() {
    let bench = Bench::new();
    let fs = open(&bench.env);
    let objects = Path::new(STORE).join("objects");
    bench.env.remove_raw(&objects.join(format!("0/0/{}", bench.large))).unwrap();
    for dir in [objects.join("0/0"), objects.join("0"), objects] {
        bench.env.remove_dir(&dir).unwrap();
    }
    let failed = fs.sync().unwrap_err().to_string();
    assert!(failed.contains("objects"), "{failed}");
}

#[test]
fn rows_that_make_no_sense_are_set_aside() {
    let bench = Bench::new();
    let report = mend(&bench, &[], &["/d", "/d/small", "/d/linked", "/linked2"], |rows| {
        rows.put(rows.meta, bench.entry(bench.dir, "small"), vec![9, 9, 9]);
        rows.put(rows.meta, RowKey::inode(bench.linked), vec![1]);
        rows.put(rows.meta, RowKey::chunk(bench.dir, 1), vec![1]);
        rows.put(rows.meta, RowKey::inode(InodeId::new(5)), vec![1]);
        rows.put(rows.meta, RowKey::pending(bench.dir), vec![1]);
        rows.put(rows.data, RowKey::xattr(bench.dir, 5), vec![7]);
    });
    assert_eq!(content(&bench, &["lost+found", &format!("#{}", bench.small)]), [1; 20_000]);
    let aside = report.aside.unwrap();
    let rows = bench.env.read_raw(&Path::new(&aside).join("rows-1.jsonl")).unwrap();
    assert!(String::from_utf8(rows).unwrap().lines().count() >= 6);
}

#[test]
fn pending_work_never_takes_what_is_in_use() {
    let bench = Bench::new();
    mend(&bench, &[], &[], |rows| {
        let put = |ino, pending: Pending| {
            rows.put(rows.meta, RowKey::pending(ino), pending.encode().to_vec());
        };
        put(bench.large, Pending::ObjectMaking);
        put(bench.linked, Pending::Orphan);
        put(bench.inner, Pending::OrphanObjectMaking);
        put(InodeId::new(7000), Pending::Orphan);
        put(InodeId::new(7001), Pending::ObjectDelete);
    });
    let bench = Bench::new();
    mend(&bench, &[], &[], |rows| {
        let value = Pending::ObjectDelete.encode().to_vec();
        rows.put(rows.meta, RowKey::pending(bench.large), value);
    });
    assert_eq!(check(&bench.env).objects, 1);
}

type Change<'a> = &'a dyn Fn(&Bench, &Rows);

/// A file that was being written was taken for whole although nothing was pending that brings its row up to date: it counted with
/// its old size for ever, and no dump took it. A repair that moved such a row made it so.
#[test]
fn what_was_being_written_is_brought_up_to_date() {
    let key = |bench: &Bench| bench.entry(bench.dir, "large");
    let cases: [(&str, Change<'_>); 4] = [
        ("nothing is pending", &|bench, rows| {
            rows.delete(rows.meta, RowKey::pending(bench.large));
        }),
        ("another row is named", &|bench, rows| {
            let entry = Some((bench.inner, EntrySuffix::from_hash(5)));
            let pending = Pending::ObjectDirty { entry }.encode().to_vec();
            rows.put(rows.meta, RowKey::pending(bench.large), pending);
        }),
        ("misplaced", &|bench, rows| {
            let (wrong, value) = (EntrySuffix::from_hash(12_345), rows.get(rows.meta, key(bench)));
            rows.delete(rows.meta, key(bench));
            rows.put(rows.meta, RowKey::entry(bench.dir, wrong), value);
            let pending = Pending::ObjectDirty { entry: Some((bench.dir, wrong)) };
            rows.put(rows.meta, RowKey::pending(bench.large), pending.encode().to_vec());
        }),
        ("two names", &|bench, rows| {
            let (ino, kind) = (bench.large, FileKind::Regular);
            let mut row = EntryRow::default();
            row.insert(b"link", Body::Reference { ino, kind }).unwrap();
            rows.put(rows.meta, bench.entry(ROOT, "link"), row.encode());
        }),
    ];
    for (what, change) in cases {
        let bench = Bench::new();
        let env: Arc<dyn Env> = bench.env.clone();
        let object = Path::new(STORE).join(format!("objects/0/0/{}", bench.large));
        let file = env.open(&object, varve_env::OpenMode::ReadWrite).unwrap();
        file.write_all_at(&[2; 100], 200_000).unwrap();
        let found = bench.after(|rows| {
            rows.change_inline(key(&bench), |inode| {
                inode.content = Content::Object { dirty: true, blocks: 0 };
            });
            let suffix = bench.hasher.entry(b"large");
            let pending = Pending::ObjectDirty { entry: Some((bench.dir, suffix)) };
            rows.put(rows.meta, RowKey::pending(bench.large), pending.encode().to_vec());
            change(&bench, rows);
        });
        assert!(found.errors > 0, "{what}");
        assert_eq!(repair(&bench.env).left.findings, [], "{what}");
        assert!(repair(&bench.env).did_nothing(), "{what}");
        let mut dumped = Vec::new();
        dump_store(env, Path::new(STORE), 16 << 20, &mut dumped, &mut |_| ()).expect(what);
        assert_eq!(content(&bench, &["d", "large"]), [2; 200_100], "{what}");
    }
}

fn break_much(bench: &Bench) {
    bench.change(|rows| {
        rows.change_dir(bench.dir, |info| info.entries = 70);
        rows.delete(rows.meta, bench.entry(bench.dir, "inner"));
        rows.delete(rows.meta, bench.entry(bench.dir, "small"));
        rows.delete(rows.meta, RowKey::inode(bench.linked));
        rows.put(rows.meta, RowKey::chunk(bench.dir, 1), vec![1]);
        rows.put(rows.data, RowKey::chunk(bench.inner, 1), vec![1; 50]);
    });
}

#[test]
fn a_repair_that_is_cut_short_can_be_begun_again() {
    let bench = Bench::new();
    break_much(&bench);
    let options = CheckOptions::default();
    let steps = {
        let copy = bench.env.power_cut_keep_all();
        let before = copy.op_count();
        repair(&copy);
        copy.op_count() - before
    };
    for step in (0..steps).step_by(3) {
        let copy = bench.env.power_cut_keep_all();
        copy.crash_after(copy.op_count() + step);
        let env: Arc<dyn Env> = copy.clone();
        let cut_short = repair_store(env, Path::new(STORE), &options, &mut |_| ());
        assert!(cut_short.is_err() || step + 40 > steps, "step {step}");
        for image in
            [copy.power_cut_keep_nothing(), copy.power_cut_keep_all(), copy.power_cut(step)]
        {
            let report = repair(&image);
            assert_eq!(report.left.findings, [], "step {step}: {:?}", report.mended);
            assert!(repair(&image).did_nothing(), "step {step}");
            let after = Bench { env: image, ..bench.clone() };
            let small = format!("#{}", bench.small);
            assert_eq!(content(&after, &["lost+found", &small]), [1; 20_000], "step {step}");
            let inner = format!("#{}", bench.inner);
            assert_eq!(content(&after, &["lost+found", &inner, "deep"]), b"deep", "step {step}");
            assert_eq!(content(&after, &["d", "large"]), [2; 200_000], "step {step}");
        }
    }
}
