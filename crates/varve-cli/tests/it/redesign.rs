//! `varve tune STORE --preset`: a store becomes another and keeps its files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;
use varve::store::FileSystem;
use varve_fs::MountOptions;
use varve_testkit::rng::Rng;
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, OpenFlags, Vfs};

use crate::harness::{Mount, run, varve};

const PRESETS: [&str; 5] = ["default", "tablefs", "tablefs-column", "slimfs", "kvfs"];
/// Files that a step writes.
const WRITES: usize = 80;
/// Names there are.
const NAMES: u64 = 600;

/// The presets in an order in which each is followed by each other once.
fn tour() -> Vec<&'static str> {
    let mut tour = Vec::new();
    for (at, first) in PRESETS.iter().enumerate() {
        for second in &PRESETS[at + 1..] {
            tour.extend([*first, *second]);
        }
    }
    tour.push(PRESETS[0]);
    tour
}

/// Opens with so little memory that the memtable is flushed again and again.
fn open(store: &Path) -> FileSystem {
    let options = MountOptions { memory_budget_bytes: 1 << 20, ..MountOptions::default() };
    FileSystem::open(store, &options).unwrap()
}

/// Gives files of any names new bytes, which `files` then has too.
fn write(vfs: &dyn Vfs, files: &mut BTreeMap<String, Vec<u8>>, rng: &mut Rng) {
    for _ in 0..WRITES {
        let text = format!("file-{}", rng.below(NAMES));
        let name = || FileName::new(text.as_bytes()).unwrap();
        if files.contains_key(&text) {
            vfs.unlink(InodeId::ROOT, name()).unwrap();
        }
        let len = [100, 900, 4000, 9000][rng.below(4) as usize];
        let data = rng.bytes(len);
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let (entry, opened) =
            vfs.create(Caller::ROOT, InodeId::ROOT, name(), 0o644, flags).unwrap();
        vfs.write(entry.attr.ino, opened.handle, 0, &data, false).unwrap();
        vfs.release(entry.attr.ino, opened.handle).unwrap();
        files.insert(text, data);
    }
}

/// Every file is there with its bytes, and no other.
fn compare(vfs: &dyn Vfs, files: &BTreeMap<String, Vec<u8>>, when: &str) {
    for number in 0..NAMES {
        let text = format!("file-{number}");
        let found = vfs.lookup(InodeId::ROOT, FileName::new(text.as_bytes()).unwrap());
        let Some(data) = files.get(&text) else {
            assert!(found.is_err(), "{when}: {text} is there");
            continue;
        };
        let ino = found.unwrap_or_else(|error| panic!("{when}: {text}: {error}")).attr.ino;
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let opened = vfs.open(ino, flags).unwrap();
        let bytes = vfs.read(ino, opened.handle, 0, data.len() + 1).unwrap();
        assert!(bytes == data[..], "{when}: {text} has other bytes");
        vfs.release(ino, opened.handle).unwrap();
    }
}

/// Whether some rows stand in tables.
fn has_tables(store: &Path) -> bool {
    let files = fs::read_dir(store.join("engine")).unwrap();
    files.into_iter().any(|file| file.unwrap().path().extension().is_some_and(|of| of == "table"))
}

/// The design that the superblock has.
fn design(store: &Path) -> Value {
    let status = run(varve().args(["status", "--json"]).arg(store)).stdout;
    serde_json::from_slice::<Value>(&status).unwrap()["superblock"]["design"].clone()
}

#[test]
fn a_store_becomes_every_preset_from_every_other_and_keeps_its_files() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let made = PRESETS.map(|preset| {
        run(varve().arg("format").arg(at(preset)).args(["--preset", preset]));
        (preset, design(&at(preset)))
    });
    let made = BTreeMap::from(made);
    let store = at("store");
    run(varve().arg("format").arg(&store));
    let (mut files, mut rng) = (BTreeMap::new(), Rng::new(11));
    let mut before = "nothing";
    for preset in tour() {
        let when = format!("{preset} after {before}");
        run(varve().arg("tune").arg(&store).args(["--preset", preset]));
        assert_eq!(design(&store), made[preset], "{when}");
        let file_system = open(&store);
        let vfs = file_system.vfs();
        compare(&*vfs, &files, &when);
        write(&*vfs, &mut files, &mut rng);
        compare(&*vfs, &files, &when);
        drop(vfs);
        file_system.close().unwrap();
        assert!(has_tables(&store), "{when}: nothing to migrate");
        run(varve().arg("fsck").arg(&store));
        before = preset;
    }
    let file_system = open(&store);
    compare(&*file_system.vfs(), &files, "at the end");
    file_system.close().unwrap();
}

#[test]
fn what_is_not_told_of_a_design_stays() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    run(varve().arg("format").arg(&store).args(["--preset", "slimfs"]));
    let mut expected = design(&store);
    expected["index"] = "plain".into();
    let said = run(varve().arg("tune").arg(&store).args(["--index", "plain", "--json"])).stdout;
    let said: Value = serde_json::from_slice(&said).unwrap();
    assert_eq!((&said["superblock"]["design"], &design(&store)), (&expected, &expected));
    let refused = |arguments: &[&str]| {
        let output = varve().arg("tune").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    };
    let name = store.to_str().unwrap();
    refused(&["--preset", "kvfs"]);
    for other in [["--apply"].as_slice(), &["--auto"], &["--memory", "1M"], &["--mix", "stat"]] {
        refused(&[&[name, "--preset", "kvfs"], other].concat());
    }
    assert_eq!(design(&store), expected);
    let file_system = open(&store);
    let output = varve().arg("tune").args([name, "--preset", "kvfs"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "a store in use: {output:?}");
    file_system.close().unwrap();
    assert_eq!(design(&store), expected);
}

/// What the tables of a store are made of: index, filters, whether some are stitched, whether some point into segments.
fn made_of(store: &Path) -> (Vec<Value>, BTreeSet<[String; 2]>) {
    let said = run(varve().arg("inspect").arg(store).arg("--json")).stdout;
    let said: Value = serde_json::from_slice(&said).unwrap();
    assert_eq!(said["file"], "store");
    let mut tables = Vec::new();
    let list = |value: &Value| value.as_array().unwrap().clone();
    for space in list(&said["keyspaces"]) {
        for level in list(&space["levels"]) {
            for sublevel in list(&level["sublevels"]) {
                tables.extend(list(&sublevel["tables"]));
            }
        }
    }
    let kinds = tables
        .iter()
        .map(|table| ["index", "filter"].map(|part| table[part].as_str().unwrap().to_owned()));
    let kinds = kinds.collect();
    (tables, kinds)
}

#[test]
fn a_change_of_design_is_finished_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    run(varve().arg("format").arg(&store).args(["--preset", "kvfs"]));
    let (mut files, mut rng) = (BTreeMap::new(), Rng::new(12));
    for (preset, index, filter) in [
        ("slimfs", "three-level", "fuse"),
        ("tablefs-column", "plain", "bloom"),
        ("tablefs", "plain", "bloom"),
        ("kvfs", "elias-fano", "quotient"),
        ("default", "elias-fano", "fuse"),
    ] {
        let file_system = open(&store);
        for _ in 0..4 {
            write(&*file_system.vfs(), &mut files, &mut rng);
        }
        file_system.close().unwrap();
        let (before, _) = made_of(&store);
        assert!(before.len() > 1, "{preset}: {} tables", before.len());
        let tune =
            || run(varve().arg("tune").arg(&store).args(["--preset", preset, "--now", "--json"]));
        let said: Value = serde_json::from_slice(&tune().stdout).unwrap();
        assert_eq!(said["redesign"]["done"], true, "{said}");
        assert_eq!(said["superblock"]["design"], design(&store));
        let (tables, kinds) = made_of(&store);
        // The key space of data is compressed and so has separator keys whatever the design.
        let all = [[index, filter], ["plain", filter]].map(|kind| kind.map(str::to_owned));
        assert!(kinds.iter().all(|kind| all.contains(kind)), "{preset}: {kinds:?}");
        assert!(kinds.contains(&all[0]), "{preset}: {kinds:?}");
        let points = tables.iter().any(|table| table["segments"].as_u64() > Some(0));
        assert_eq!(points, preset == "tablefs-column", "{preset}");
        // Nothing is left, so nothing is done.
        let said: Value = serde_json::from_slice(&tune().stdout).unwrap();
        assert_eq!(said["redesign"]["rewrites"], 0, "{said}");
        run(varve().arg("fsck").arg(&store));
        let file_system = open(&store);
        compare(&*file_system.vfs(), &files, preset);
        file_system.close().unwrap();
    }
    let text = String::from_utf8(run(varve().arg("inspect").arg(&store)).stdout).unwrap();
    assert!(text.contains("sub-level") && text.contains("index elias-fano"), "{text}");
}

#[test]
fn a_change_of_design_is_finished_while_the_store_is_mounted() {
    let Some(mount) = Mount::new() else { return };
    mount.unmount();
    let (mut files, mut rng) = (BTreeMap::new(), Rng::new(13));
    let file_system = open(&mount.store());
    for _ in 0..4 {
        write(&*file_system.vfs(), &mut files, &mut rng);
    }
    file_system.close().unwrap();
    run(varve().arg("tune").arg(mount.store()).args(["--preset", "tablefs"]));
    // Once it is mounted, the store may rewrite tables by itself at any moment.
    let (_, kinds) = made_of(&mount.store());
    assert!(kinds.iter().any(|[_, filter]| filter == "fuse"), "{kinds:?}");
    mount.mount();
    let said = run(varve().arg("tune").arg(mount.path()).arg("--now")).stdout;
    assert!(String::from_utf8_lossy(&said).contains("tables are of the store's design"));
    let (_, kinds) = made_of(&mount.store());
    assert_eq!(kinds, BTreeSet::from([["plain", "bloom"].map(str::to_owned)]));
    for (name, data) in &files {
        assert_eq!(&fs::read(mount.path().join(name)).unwrap(), data, "{name}");
    }
    let refused =
        varve().arg("tune").arg(mount.store()).args(["--preset", "kvfs", "--now"]).output();
    assert_eq!(refused.unwrap().status.code(), Some(1), "a store in use changes no design");
}
