//! What is said of a store after its unmount, and who is waited for.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use varve_testkit::{Command, eventually};

use crate::harness::{Mount, can_mount, fails, json, run, stderr, varve, without_namespaces};

/// What `varve umount` tells once nobody uses the mount on `dir`.
fn told_of_umount(dir: &Path) -> Value {
    let mut told = Value::Null;
    eventually("nobody uses the mount", || {
        let output = varve().args(["umount", "--json"]).arg(dir).output().unwrap();
        told = serde_json::from_slice(&output.stdout).unwrap_or_default();
        assert!(output.status.success() || stderr(&output).contains(" is in use"));
        output.status.success()
    });
    told
}

/// A store that had been renamed while it was mounted was said to be closed while its daemon still wrote.
#[test]
fn nobody_says_that_a_store_is_closed_that_was_moved() {
    let Some(mount) = Mount::new() else { return };
    let moved = mount.store().with_file_name("moved");
    fs::rename(mount.store(), &moved).unwrap();
    let told = told_of_umount(&mount.path());
    assert_eq!(told["store"], mount.store().to_str().unwrap());
    assert!(told["is_closed"].is_null(), "{told}");
    eventually("the daemon lets go", || {
        json(varve().args(["status", "--json"]).arg(&moved))["holder"].is_null()
    });
}

/// Which process closes the store was told by where it had mounted that: of another place of its mount, and after a directory
/// above had been renamed, the store was said to be closed while it was open.
#[test]
fn a_store_is_said_to_be_closed_when_it_is() {
    if !can_mount() {
        return;
    }
    let _apart = without_namespaces();
    let base = tempfile::tempdir().unwrap();
    let at = |name: &str| base.path().join(name);
    let (store, dir, other) = (at("store"), at("above/mnt"), at("other"));
    [&dir, &other].iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    run(varve().arg("format").arg(&store));
    let is_open = || !json(varve().args(["status", "--json"]).arg(&store))["holder"].is_null();
    for [first, second] in [[&dir, &other], [&other, &dir]] {
        run(varve().arg("mount").arg(&store).arg(&dir));
        rustix::mount::mount_bind(&dir, &other).unwrap();
        let told = told_of_umount(first);
        assert_eq!(told["is_closed"], false, "{told}");
        assert_eq!(told["elsewhere"], second.to_str().unwrap());
        assert!(is_open());
        let told = told_of_umount(second);
        assert_eq!(told["is_closed"], true, "{told}");
        assert!(!is_open());
    }
    run(varve().arg("mount").arg(&store).arg(&dir));
    for n in 0..400 {
        let path = dir.join(format!("large{n}"));
        fs::write(&path, vec![1; 100_000]).unwrap();
        fs::remove_file(&path).unwrap();
    }
    fs::write(dir.join("kept"), vec![2; 10_000_000]).unwrap();
    fs::rename(at("above"), at("renamed")).unwrap();
    // It was said to be one that only its daemon sees.
    let said = fails(varve().arg("fsck").arg(&store), 1);
    assert!(said.contains(&format!("`varve umount {}`", at("renamed/mnt").display())), "{said}");
    assert_eq!(told_of_umount(&at("renamed/mnt"))["is_closed"], true);
    assert!(!is_open());
}

/// Who only looked at the store was taken for its daemon, and waited for.
#[test]
fn a_dead_mount_goes_while_somebody_looks_at_its_store() {
    let Some(mount) = Mount::new() else { return };
    for n in 0..1000 {
        fs::write(mount.path().join(format!("a file with a long name {n}")), "x").unwrap();
    }
    run(Command::new("sync").arg("-f").arg(mount.path()));
    mount.kill_daemon();
    let mut dump = varve();
    dump.arg("dump").arg(mount.store()).stdout(Stdio::piped());
    let mut dump = dump.spawn().unwrap();
    // It has the store until somebody reads what it writes.
    let mut said = dump.stdout.take().unwrap();
    said.read_exact(&mut [0; 1]).unwrap();
    let begin = Instant::now();
    run(varve().arg("umount").arg(mount.path()));
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    said.read_to_end(&mut Vec::new()).unwrap();
    assert!(dump.wait().unwrap().success());
    mount.mount();
}
