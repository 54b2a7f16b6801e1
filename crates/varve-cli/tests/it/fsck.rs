//! `varve fsck --repair`: what it does, what it says, and its exit statuses.

use std::fs;
use std::path::{Path, PathBuf};

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
    assert!(hint.contains("mount it with -o ro"), "{hint}");
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

/// A copy of a store that lacked the directory of large files could be mounted, but was neither checked nor repaired.
#[test]
fn a_store_without_the_directory_of_objects_is_checked_and_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    store_with_files(&store);
    fs::remove_dir_all(store.join("objects")).unwrap();
    let (status, said, hint) = fsck(&store, &[]);
    assert_eq!(status, 4, "{said}{hint}");
    assert!(said.contains("is gone") && hint.contains("has 1 problems"), "{said}{hint}");
    assert_eq!(fsck(&store, &["--repair", "--yes"]).0, 3);
    assert_eq!(fsck(&store, &[]).0, 0);
}

/// The files in `store/engine` whose names hold `kind`.
fn engine_files(store: &Path, kind: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(store.join("engine")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.file_name().unwrap().to_string_lossy().contains(kind)).collect()
}

/// A store like [`store_with_files`] whose rows stand in tables: the repair puts those of a log into them.
fn store_with_tables(store: &Path) {
    store_with_files(store);
    for path in engine_files(store, "MANIFEST") {
        fs::remove_file(path).unwrap();
    }
    assert_eq!(fsck(store, &[]).0, 4);
    assert_eq!(fsck(store, &["--repair", "--yes"]).0, 3);
}

/// Both files have their sizes.
fn assert_files(store: &Path) {
    let file_system = varve::open(store.to_str().unwrap()).unwrap();
    for (name, size) in [("small", 3000), ("large", 200_000)] {
        let name = FileName::new(name.as_bytes()).unwrap();
        let found = file_system.vfs().lookup(InodeId::ROOT, name).unwrap();
        assert_eq!(found.attr.size, size);
    }
    file_system.close().unwrap();
}

/// A length costs nothing to claim, so it must cost nothing to refuse.
#[test]
fn files_with_holes_of_a_tebibyte_are_refused_and_repaired() {
    for kind in ["VARVE", "VARVE.copy", "LOCK", "CURRENT", "MANIFEST", "wal", "table"] {
        for emptied in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let store = dir.path().join("store");
            store_with_tables(&store);
            let paths = match kind {
                "VARVE" | "VARVE.copy" | "LOCK" => vec![store.join(kind)],
                _ => engine_files(&store, kind),
            };
            assert!(!paths.is_empty());
            for path in &paths {
                let file = fs::OpenOptions::new().write(true).open(path).unwrap();
                if emptied {
                    file.set_len(0).unwrap();
                }
                file.set_len(1 << 40).unwrap();
                let output = varve().arg("inspect").arg(path).output().unwrap();
                let said = String::from_utf8(output.stderr).unwrap();
                assert_eq!(output.status.code(), Some(1), "{kind}: {said}");
                assert!(said.contains(&*path.to_string_lossy()), "{said}");
                let counted = ["MANIFEST", "wal", "CURRENT"].contains(&kind);
                assert!(!counted || said.contains("1099511627776 bytes"), "{said}");
            }
            // What follows a table's end is none of it, and what stands in LOCK only names the holder.
            let is_sound = kind == "LOCK" || (kind == "table" && !emptied);
            let (status, said, hint) = fsck(&store, &[]);
            assert_eq!(status, if is_sound { 0 } else { 4 }, "{kind}: {said}{hint}");
            let (status, said, hint) = fsck(&store, &["--repair", "--yes", "--memory", "16M"]);
            assert_eq!(status, if is_sound { 0 } else { 3 }, "{kind}: {said}{hint}");
            assert_eq!(fsck(&store, &[]).0, 0);
            if kind != "table" || is_sound {
                assert_files(&store);
            }
        }
    }
}

#[test]
fn lost_and_damaged_files_of_the_engine_are_repaired() {
    for lost in ["CURRENT", "MANIFEST", "table"] {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        store_with_tables(&store);
        for path in engine_files(&store, lost) {
            if lost == "table" {
                let mut bytes = fs::read(&path).unwrap();
                let at = bytes.len() - 30;
                bytes[at] ^= 1;
                fs::write(&path, bytes).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }
        // No mount opens it, though every check said that one could.
        let (status, said, hint) = fsck(&store, &[]);
        assert_eq!(status, 4, "{lost}: {said}{hint}");
        assert!(varve::open(store.to_str().unwrap()).is_err(), "{lost}");
        assert!(hint.contains("--repair") && !hint.contains("-o ro"), "{lost}: {hint}");
        let (status, said, hint) = fsck(&store, &["--repair", "--yes"]);
        assert_eq!(status, 3, "{lost}: {said}{hint}");
        assert_eq!(fsck(&store, &[]).0, 0);
        assert_files(&store);
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

/// What the check could not do was taken for damage of the store, and a repair of it offered.
#[test]
fn a_check_without_room_has_failed_and_has_found_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    store_with_files(&store);
    let file_system = varve::open(store.to_str().unwrap()).unwrap();
    for n in 0..20_000 {
        let name = format!("file{n}");
        let name = FileName::new(name.as_bytes()).unwrap();
        file_system.vfs().mkdir(Caller::ROOT, InodeId::ROOT, name, 0o755).unwrap();
    }
    file_system.close().unwrap();
    let spill = dir.path().join("spill");
    let small = ["--memory", "1M", "--spill-dir", spill.to_str().unwrap()];
    for repair in [&[][..], &["--repair", "--yes"]] {
        let (status, said, hint) = fsck(&store, &[&small, repair].concat());
        assert_eq!(status, 1, "{said}{hint}");
        assert!(hint.contains("spill (sorted data") && hint.contains("hint: make room"), "{hint}");
    }
    fs::create_dir(&spill).unwrap();
    let (status, said, hint) = fsck(&store, &small);
    assert_eq!(status, 0, "{said}{hint}");
}

/// One damaged byte in it, and nobody reached the files.
#[test]
fn a_lost_or_damaged_superblock_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    store_with_files(&store);
    let [superblock, copy] = ["VARVE", "VARVE.copy"].map(|name| store.join(name));
    let whole = fs::read(&superblock).unwrap();
    let damaged = [&whole[..30], b"?", &whole[31..]].concat();
    let lose = || fs::remove_file(&superblock).unwrap();
    let damage = |path: &Path| fs::write(path, &damaged).unwrap();
    for (what, lose) in [
        ("VARVE is damaged", &lose as &dyn Fn()),
        ("VARVE is damaged", &|| damage(&superblock)),
        ("VARVE.copy is damaged", &|| damage(&copy)),
    ] {
        lose();
        if what == "VARVE is damaged" {
            let refused = varve::open(store.to_str().unwrap()).unwrap_err();
            assert!(refused.to_string().contains("varve fsck"), "{refused}");
            let again = varve().args(["format", "--force"]).arg(&store).output().unwrap();
            assert!(String::from_utf8_lossy(&again.stderr).contains("holds a store already"));
        }
        let (status, said, hint) = fsck(&store, &[]);
        assert_eq!(status, 4, "{said}{hint}");
        assert!(said.contains(what) && hint.contains("has 1 problems"), "{said}{hint}");
        assert!(what == "VARVE.copy is damaged" || !hint.contains("-o ro"), "{hint}");
        let (status, said, hint) = fsck(&store, &["--repair", "--yes"]);
        assert_eq!(status, 3, "{said}{hint}");
        assert!(said.contains("written anew") && said.contains(what), "{said}");
        assert_eq!([&superblock, &copy].map(|path| fs::read(path).unwrap()), [&whole[..]; 2]);
        assert_eq!(fsck(&store, &[]).0, 0);
        assert_files(&store);
    }
    // As stores were before there was a copy.
    fs::remove_file(&copy).unwrap();
    assert_eq!(fsck(&store, &[]).0, 0);
    assert_files(&store);
    assert_eq!(fs::read(&copy).unwrap(), whole);
    fs::remove_file(&copy).unwrap();
    fs::remove_file(&superblock).unwrap();
    let (status, _, hint) = fsck(&store, &["--repair", "--yes"]);
    assert_eq!(status, 1);
    assert!(hint.contains("holds no store"), "{hint}");
}
