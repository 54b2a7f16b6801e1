//! Every broken invariant is found and named.

use std::path::Path;

use varve_env::Env;
use varve_fs::FormatOptions;
use varve_fs::fsck::{Finding, Report};
use varve_schema::{Body, Content, EntryRow, EntrySuffix, Pending, RowKey, XattrRow};
use varve_types::InodeId;

use crate::bench::{Bench, check};
use crate::crash::{STORE, open, sim_store};
use crate::support::{Calls, ROOT};

/// What follows from other findings left out.
fn but_usage(report: Report) -> Vec<Finding> {
    let mut found = report.findings;
    found.retain(|finding| !matches!(finding, Finding::WrongUsage { .. }));
    found
}

#[test]
fn a_sound_store_has_no_findings() {
    let bench = Bench::new();
    let report = bench.after(|_| ());
    assert_eq!(report.findings, []);
    assert!(report.is_clean());
    assert_eq!((report.directories, report.files, report.names), (3, 4, 7));
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
                (info.entries, info.subdirs) = (2, 1);
            }
        });
        rows.change_inode(ROOT, |inode| {
            inode.nlink = 2;
            if let Content::Directory(info) = &mut inode.content {
                (info.entries, info.subdirs) = (1, 0);
            }
        });
    });
    assert_eq!(
        but_usage(report),
        [Finding::DirectoryLoop { dir }, Finding::UnreachableDirectory { dir: inner }]
    );
}

#[test]
fn wrong_parents_and_misplaced_names_are_found() {
    let bench = Bench::new();
    let (dir, inner) = (bench.dir.get(), bench.inner.get());
    let report = bench.after(|rows| rows.change_dir(bench.inner, |info| info.parent = ROOT));
    let wrong_parent = Finding::WrongParent { dir: inner, parent: ROOT.get(), found: dir };
    assert_eq!(but_usage(report), [wrong_parent]);
    let bench = Bench::new();
    let report = bench.after(|rows| {
        let key = bench.entry(bench.dir, "small");
        let value = rows.get(rows.meta, key);
        rows.delete(rows.meta, key);
        let elsewhere = RowKey::entry(bench.dir, EntrySuffix::from_hash(12345));
        rows.put(rows.meta, elsewhere, value);
    });
    assert_eq!(report.findings, [Finding::MisplacedEntry { dir, name: "small".into() }]);
}

#[test]
fn stray_and_missing_data_is_found() {
    let bench = Bench::new();
    let (small, linked, large) = (bench.small.get(), bench.linked.get(), bench.large.get());
    let nobody = InodeId::new(900_000);
    let report = bench.after(|rows| {
        rows.put(rows.data, RowKey::chunk(nobody, 3), vec![0; 10]);
        rows.put(rows.data, RowKey::chunk(bench.small, 0), vec![0; 20_000]);
        rows.put(rows.data, RowKey::chunk(bench.small, 1), vec![0; 5_000]);
        rows.put(rows.data, RowKey::chunk(bench.linked, 1), vec![0; 5_000]);
        rows.put(rows.data, RowKey::xattr(nobody, 1), XattrRow::default().encode());
        let xattr = RowKey::xattr(bench.small, bench.hasher.xattr(b"user.a"));
        rows.delete(rows.data, xattr);
        rows.put(rows.meta, RowKey::pending(nobody), Pending::Orphan.encode().to_vec());
        rows.put(rows.meta, RowKey::pending(bench.large), Pending::ObjectDelete.encode().to_vec());
    });
    let nobody = nobody.get();
    assert_eq!(
        report.findings,
        [
            Finding::OversizedChunk { ino: small, index: 0, bytes: 20_000 },
            Finding::ChunkBeyondSize { ino: small, index: 1, size: 20_000 },
            Finding::MissingXattr { ino: small },
            Finding::StrayChunk { ino: linked, index: 1 },
            Finding::PendingContradicted { ino: large, what: "its object file is to be removed" },
            Finding::PendingWithoutInode { ino: nobody },
            Finding::DataWithoutInode { ino: nobody, chunks: 1 },
            Finding::StrayXattr { ino: nobody },
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
    bench.env.truncate_raw(&objects.join(large.to_string()), 300_000).unwrap();
    let long = Finding::LongObject { ino: large, recorded: 200_000, found: 300_000 };
    assert!(bench.after(|_| ()).findings.contains(&long));
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
    let beyond =
        |f: &Finding| matches!(f, Finding::IdBeyondMark { largest, .. } if *largest == 1 << 50);
    assert!(report.findings.iter().any(beyond));
}

/// With four kilobytes to sort in, thirty runs and more are written and merged.
#[test]
fn a_store_larger_than_the_memory_is_checked_alike() {
    let env = sim_store(5, &FormatOptions::default());
    let fs = open(&env);
    let mut dir = ROOT;
    for i in 0..60 {
        dir = fs.mk_dir(dir, &format!("d{i}"));
        for j in 0..50 {
            fs.mk(dir, &format!("f{j}"));
        }
    }
    fs.close().unwrap();
    drop(fs);
    let report = check(&env);
    assert_eq!((report.directories, report.files, report.findings), (61, 3000, vec![]));
}
