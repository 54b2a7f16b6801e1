//! `varve fsck --repair`: what it does, what it says, and its exit statuses.

use std::fs;
use std::path::Path;

use serde_json::Value;
use varve_types::FileName;
use varve_types::InodeId;
use varve_vfs::{Caller, OpenFlags};

use crate::harness::varve;

/// A store with a small and a large file in its root, made without a mount. Says the inode of the large one.
fn store_with_files(store: &Path) -> u64 {
    varve::store::format(store, &varve_fs::FormatOptions::default()).unwrap();
    let file_system = varve::open(store.to_str().unwrap()).unwrap();
    let vfs = file_system.vfs();
    let mut large = 0;
    for (name, len) in [("small", 3000), ("large", 200_000)] {
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let name = FileName::new(name.as_bytes()).unwrap();
        let (entry, opened) = vfs.create(Caller::ROOT, InodeId::ROOT, name, 0o644, flags).unwrap();
        let ino = entry.attr.ino;
        vfs.write(ino, opened.handle, 0, &vec![7; len], false).unwrap();
        vfs.release(ino, opened.handle).unwrap();
        large = ino.get();
    }
    drop(vfs);
    file_system.close().unwrap();
    large
}

fn fsck(store: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = varve().arg("fsck").arg(store).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_damaged_store_is_repaired_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let large = store_with_files(&store);
    assert_eq!(fsck(&store, &[]).0, 0);
    assert_eq!(fsck(&store, &["--repair", "--yes"]).0, 0);
    let object = store.join(format!("objects/0/0/{large}"));
    fs::OpenOptions::new().write(true).open(&object).unwrap().set_len(1000).unwrap();
    fs::write(store.join("objects/0/0/99"), vec![8; 500]).unwrap();

    let (status, said, hint) = fsck(&store, &[]);
    assert_eq!(status, 4, "{said}");
    assert!(said.contains("1000 of 200000 bytes") && hint.contains("--repair"), "{said}{hint}");
    let (status, _, hint) = fsck(&store, &["--repair"]);
    assert_eq!(status, 2, "nobody is there to ask");
    assert!(hint.contains("--yes"), "{hint}");
    let (status, said, hint) = fsck(&store, &["--repair", "--yes", "--json", "--memory", "1M"]);
    assert_eq!(status, 3, "{said}{hint}");
    let report: Value = serde_json::from_str(&said).unwrap();
    let mended = report["repair"]["file_system"]["mended"].as_array().unwrap();
    assert_eq!(mended[0]["finding"]["finding"], "short_object");
    assert!(said.contains("/lost+found/#99"), "{said}");
    assert_eq!(fsck(&store, &["--repair", "--yes"]).0, 0);

    let file_system = varve::open(store.to_str().unwrap()).unwrap();
    let size = |dir, name: &str| {
        let name = FileName::new(name.as_bytes()).unwrap();
        let attr = file_system.vfs().lookup(dir, name).unwrap().attr;
        (attr.ino, attr.size)
    };
    assert_eq!(size(InodeId::ROOT, "large").1, 1000);
    assert_eq!(size(InodeId::ROOT, "small").1, 3000);
    let (found, _) = size(InodeId::ROOT, "lost+found");
    assert_eq!(size(found, "#99").1, 500);
    file_system.close().unwrap();
}

#[test]
fn lost_and_damaged_files_of_the_engine_are_repaired() {
    for lost in ["CURRENT", "MANIFEST", "table"] {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        store_with_files(&store);
        // The first repair has the rows in tables: a lost log is put into them.
        let engine = store.join("engine");
        let files = || fs::read_dir(&engine).unwrap().map(|entry| entry.unwrap().path());
        for path in files().filter(|path| path.to_string_lossy().contains("MANIFEST")) {
            fs::remove_file(path).unwrap();
        }
        assert_eq!(fsck(&store, &[]).0, 4);
        assert_eq!(fsck(&store, &["--repair", "--yes"]).0, 3);
        for path in files().filter(|path| path.to_string_lossy().contains(lost)) {
            if lost == "table" {
                let mut bytes = fs::read(&path).unwrap();
                let at = bytes.len() - 30;
                bytes[at] ^= 1;
                fs::write(&path, bytes).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }
        let (status, said, hint) = fsck(&store, &["--repair", "--yes"]);
        assert_eq!(status, 3, "{lost}: {said}{hint}");
        assert_eq!(fsck(&store, &[]).0, 0);
        let file_system = varve::open(store.to_str().unwrap()).unwrap();
        for (name, size) in [("small", 3000), ("large", 200_000)] {
            let name = FileName::new(name.as_bytes()).unwrap();
            let found = file_system.vfs().lookup(InodeId::ROOT, name).unwrap();
            assert_eq!(found.attr.size, size);
        }
        file_system.close().unwrap();
    }
}

#[test]
fn a_store_in_use_is_not_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    store_with_files(&store);
    let file_system = varve::open(store.to_str().unwrap()).unwrap();
    let (status, _, said) = fsck(&store, &["--repair", "--yes"]);
    assert_eq!(status, 1);
    assert!(said.contains("in use by process"), "{said}");
    file_system.close().unwrap();
}
