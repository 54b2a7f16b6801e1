//! What is said of a store after its unmount, and who is waited for.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use varve_testkit::{Command, eventually, skipped};

use crate::harness::{
    Mount, can_mount, fails, json, python, run, stderr, varve, without_namespaces,
};

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

/// A daemon in the foreground, which has told that its mount answers.
fn in_the_foreground(mount: &Mount) -> std::process::Child {
    let mut daemon = varve();
    daemon.args(["mount", "-f", "-v"]).arg(mount.store()).arg(mount.path());
    let mut daemon = daemon.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    daemon.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
    daemon
}

/// Reads what `program` says on its standard error output until that has `words`.
fn hear(program: &mut std::process::Child, words: &str) {
    let (mut said, mut byte) = (Vec::new(), [0; 1]);
    while !String::from_utf8_lossy(&said).contains(words) {
        program.stderr.as_mut().unwrap().read_exact(&mut byte).unwrap();
        said.push(byte[0]);
    }
}

/// What has a mount namespace of its own, with a copy of `mount`.
fn with_a_copy() -> std::process::Child {
    let mut apart = Command::new("unshare");
    apart.args(["--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 1000"]);
    let mut apart = apart.stdout(Stdio::piped()).spawn().unwrap();
    apart.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
    apart
}

/// A second signal changed nothing once the first had detached the mount: the daemon went on as long as a program held it.
#[test]
fn a_second_signal_does_not_wait_for_programs() {
    let Some(mount) = Mount::new() else { return };
    let _apart = without_namespaces();
    for held_by_a_copy in [false, true] {
        mount.unmount();
        let mut daemon = in_the_foreground(&mount);
        fs::write(mount.path().join("file"), "kept").unwrap();
        let held = (!held_by_a_copy).then(|| fs::File::open(mount.path().join("file")).unwrap());
        let copy = held_by_a_copy.then(with_a_copy);
        let pid = rustix::process::Pid::from_child(&daemon);
        let send = || rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        send();
        hear(&mut daemon, ": unmounting");
        eventually("the mount is gone here", || !mount.path().join("file").exists());
        send();
        assert!(daemon.wait().unwrap().success());
        drop(held);
        copy.into_iter().for_each(|mut copy| {
            copy.kill().unwrap();
            copy.wait().unwrap();
        });
        mount.mount();
        assert_eq!(fs::read(mount.path().join("file")).unwrap(), b"kept");
    }
}

/// Who unmounted waited for two minutes, and was told then that programs might have files open.
#[test]
fn who_has_a_copy_of_a_mount_is_named() {
    let Some(mount) = Mount::new() else { return };
    let _apart = without_namespaces();
    let mut copy = with_a_copy();
    let mut umount =
        varve().arg("umount").arg(mount.path()).stderr(Stdio::piped()).spawn().unwrap();
    let place = mount.path();
    hear(&mut umount, &format!("process {} (sleep) sees it at {}", copy.id(), place.display()));
    copy.kill().unwrap();
    copy.wait().unwrap();
    assert!(umount.wait().unwrap().success());
    mount.mount();
}

/// An ext4 of its own in a directory, and a store on it that is mounted.
struct OnExt4(tempfile::TempDir);

impl OnExt4 {
    /// `None`, which is said, where there can be none.
    fn new() -> Option<OnExt4> {
        let on = OnExt4(tempfile::tempdir().unwrap());
        File::create_new(on.at("image")).unwrap().set_len(64 << 20).unwrap();
        ["low", "mnt"].iter().for_each(|dir| fs::create_dir(on.at(dir)).unwrap());
        let done = |command: &mut Command| command.output().is_ok_and(|done| done.status.success());
        if !done(Command::new("mkfs.ext4").arg("-q").arg(on.at("image")))
            || !done(
                Command::new("mount").args(["-o", "loop"]).args([on.at("image"), on.at("low")]),
            )
        {
            skipped("no ext4 can be made and mounted here");
            return None;
        }
        run(varve().arg("format").arg(on.at("low/store")));
        run(varve().arg("mount").args([on.at("low/store"), on.at("mnt")]));
        Some(on)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl Drop for OnExt4 {
    fn drop(&mut self) {
        for dir in ["mnt", "low"] {
            let _ = rustix::mount::unmount(self.at(dir), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// The store was said to be closed, with status 0, where the last sync had failed and the daemon had ended with status 1.
#[test]
fn a_store_whose_daemon_failed_is_not_said_to_be_closed() {
    if !can_mount() {
        return;
    }
    let _apart = without_namespaces();
    for (file, len) in [("small", 100), ("large", 1 << 20)] {
        let Some(on) = OnExt4::new() else { return };
        fs::write(on.at("mnt").join(file), vec![1; len]).unwrap();
        // EXT4_IOC_SHUTDOWN without a flush of its log: from now on each write fails, as where the disk is gone.
        let program = "import fcntl, os, struct\n\
             fcntl.ioctl(os.open('low', os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
        if !python(on.0.path(), program) {
            return;
        }
        let said = fails(varve().arg("umount").arg(on.at("mnt")), 1);
        assert!(said.contains(" is unmounted, but its daemon failed: "), "{said}");
        assert!(said.contains("cannot sync") && said.contains("(os error 5)"), "{said}");
    }
}

/// The same where it had been killed while it closed the store.
#[test]
fn a_store_whose_daemon_was_killed_is_not_said_to_be_closed() {
    let Some(mount) = Mount::new() else { return };
    let _apart = without_namespaces();
    let daemon = mount.daemon();
    let kill = |signal| rustix::process::kill_process(daemon, signal).unwrap();
    // As it does not close the store as long as a copy of the mount is there.
    let mut copy = with_a_copy();
    let mut umount =
        varve().arg("umount").arg(mount.path()).stderr(Stdio::piped()).spawn().unwrap();
    eventually("the mount is gone here", || !find(&mount));
    kill(rustix::process::Signal::KILL);
    assert_eq!(umount.wait().unwrap().code(), Some(1));
    copy.kill().unwrap();
    copy.wait().unwrap();
    mount.mount();
}

/// Whether it is mounted where this process is.
fn find(mount: &Mount) -> bool {
    varve_fuse::find_mounts().unwrap().iter().any(|found| found.dir == mount.path())
}
