//! Stores on shared storage, used by two machines, each with anchors of its own: in a directory of a cluster file system, and on a
//! server.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use varve_testkit::{Command, Proxy, S3Server, at_end, eventually};

use crate::harness::{can_mount, fails, json, run, varve};

/// The storage, and the directories of the machines.
struct Shared {
    dir: TempDir,
    uri: String,
    /// What the environment says of the storage.
    variables: Vec<(&'static str, String)>,
}

/// A machine that mounts the store; what it has mounted is unmounted at the end.
struct Machine {
    dir: PathBuf,
    uri: String,
    variables: Vec<(&'static str, String)>,
}

impl Shared {
    /// A directory with a store in it; `None` where tests cannot mount.
    fn formatted() -> Option<Shared> {
        let dir = can_mount().then(|| tempfile::tempdir().unwrap())?;
        let storage = dir.path().join("storage");
        fs::create_dir(&storage).unwrap();
        Some(Shared::with_store(dir, format!("shared://{}", storage.display()), Vec::new()))
    }

    /// A store on a server that is reached at `endpoint`.
    fn on_server(server: &S3Server, endpoint: &str) -> Shared {
        let uri = format!("s3://{}/some/prefix", server.bucket());
        Shared::with_store(tempfile::tempdir().unwrap(), uri, server.variables_for(endpoint))
    }

    fn with_store(dir: TempDir, uri: String, variables: Vec<(&'static str, String)>) -> Shared {
        let shared = Shared { dir, uri, variables };
        let first = shared.machine("first");
        run(first.varve().arg("format").arg(&first.uri).args(["--lease", "2"]));
        shared
    }

    /// With its owner, and a machine whose mount follows it.
    fn followed() -> Option<(Shared, Machine, Machine)> {
        let shared = Shared::formatted()?;
        let (first, second) = (shared.machine("first"), shared.machine("second"));
        first.mount();
        run(&mut second.mount_with(&["-o", "ro", "--follow-every", "0.2"]));
        Some((shared, first, second))
    }

    fn machine(&self, name: &str) -> Machine {
        let dir = self.dir.path().join(name);
        fs::create_dir_all(dir.join("mnt")).unwrap();
        Machine { dir, uri: self.uri.clone(), variables: self.variables.clone() }
    }
}

impl Machine {
    fn varve(&self) -> Command {
        let mut command = varve();
        command.env("VARVE_ANCHORS", self.dir.join("anchors"));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join("mnt").join(name)
    }

    fn mount_with(&self, words: &[&str]) -> Command {
        let mut command = self.varve();
        command.arg("mount").args(["--lease", "2"]).args(words);
        command.arg(&self.uri).arg(self.dir.join("mnt"));
        command
    }

    fn mount(&self) {
        run(&mut self.mount_with(&[]));
    }

    fn unmount(&self) {
        run(self.varve().arg("umount").arg(self.dir.join("mnt")));
    }

    fn daemon(&self) -> Pid {
        let status = json(self.varve().args(["status", "--json"]).arg(self.dir.join("mnt")));
        let pid = i32::try_from(status["holder"]["pid"].as_i64().unwrap()).unwrap();
        Pid::from_raw(pid).unwrap()
    }

    /// Writes a file, durably.
    fn write(&self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        let file = fs::File::create(self.path(name))?;
        file.write_all_at(bytes, 0)?;
        file.sync_all()
    }

    fn reads(&self, name: &str, bytes: &[u8]) -> bool {
        fs::read(self.path(name)).unwrap() == bytes
    }

    fn fsck(&self) {
        run(self.varve().arg("fsck").arg(&self.uri));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mount = self.dir.join("mnt");
        let _ = self.varve().arg("umount").arg(&mount).output();
        let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
    }
}

/// Bytes that no other seed gives.
fn bytes(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 4093) as u8 ^ (at as u8).wrapping_mul(seed)).collect()
}

#[test]
fn a_store_on_shared_storage_does_what_a_local_one_does() {
    let Some(shared) = Shared::formatted() else { return };
    does_what_a_local_one_does(&shared);
}

#[test]
fn a_store_on_a_server_does_what_a_local_one_does() {
    let Some(server) = can_mount().then(S3Server::start).flatten() else { return };
    does_what_a_local_one_does(&Shared::on_server(&server, &server.endpoint()));
}

/// Programs wait while the server is away or refuses requests, and lose nothing.
#[test]
fn a_server_that_is_away_for_a_while_is_waited_for() {
    let Some(server) = can_mount().then(S3Server::start).flatten() else { return };
    let proxy = Proxy::start(server.address(), Duration::from_millis(5));
    let shared = Shared::on_server(&server, &proxy.endpoint());
    let first = shared.machine("first");
    first.mount();
    let large = bytes(9, 3 << 20);
    first.write("before", &large).unwrap();
    std::thread::scope(|scope| {
        proxy.cut();
        let waits = scope.spawn(|| first.write("while-cut", &large));
        eventually("a request was made", || first.path("while-cut").exists());
        proxy.mend();
        waits.join().unwrap().unwrap();
        proxy.overload(true);
        let waits = scope.spawn(|| first.write("while-overloaded", &large));
        let requests = proxy.requests();
        eventually("requests were refused", || proxy.requests() > requests);
        proxy.overload(false);
        waits.join().unwrap().unwrap();
    });
    let stats = json(first.varve().args(["stats", "--json"]).arg(first.path("")));
    assert!(stats["storage"]["retries"].as_u64().unwrap() > 0, "{stats}");
    first.unmount();
    let second = shared.machine("second");
    second.mount();
    for name in ["before", "while-cut", "while-overloaded"] {
        assert!(fs::read(second.path(name)).unwrap() == large, "{name}");
    }
    second.unmount();
    second.fsck();
}

fn does_what_a_local_one_does(shared: &Shared) {
    let first = shared.machine("first");
    first.mount();
    let large = bytes(3, 5 << 20);
    fs::write(first.path("small"), b"small").unwrap();
    fs::write(first.path("large"), &large).unwrap();
    run(first.varve().args(["snapshot", "create"]).arg(first.path("")).arg("before"));
    let inner = "echo new >in-txn; printf X | dd of=large bs=1 seek=100 conv=notrunc status=none";
    let mut txn = first.varve();
    run(txn.args(["txn", "run"]).arg(first.path("")).args(["--", "sh", "-c", inner]));
    run(first.varve().arg("clone").arg(first.path("large")).arg(first.path("clone")));
    let mut changed = large.clone();
    changed[100] = b'X';
    // Nothing of it is on this machine alone.
    for round in 0..2 {
        assert_eq!(fs::read(first.path("in-txn")).unwrap(), b"new\n");
        assert!(fs::read(first.path("large")).unwrap() == changed, "{round}");
        assert!(fs::read(first.path("clone")).unwrap() == changed, "{round}");
        assert!(fs::read(first.path(".varve/snapshots/before/large")).unwrap() == large);
        first.unmount();
        first.fsck();
        fs::remove_dir_all(first.dir.join("anchors")).unwrap();
        first.mount();
    }
    let status = json(first.varve().args(["status", "--json"]).arg(&first.uri));
    assert_eq!(status["address"], first.uri, "{status}");
    let stats = json(first.varve().args(["stats", "--json"]).arg(first.path("")));
    assert!(stats["storage"]["reads"].as_u64().unwrap() > 0, "{stats}");
    first.unmount();
    // A dump of it makes the same store elsewhere.
    let (dump, copy) = (shared.dir.path().join("dump"), shared.dir.path().join("copy"));
    run(first.varve().arg("dump").arg(&first.uri).arg("--output").arg(&dump));
    run(first.varve().arg("load").arg(&copy).arg(&dump));
    run(varve().arg("fsck").arg(&copy));
}

#[test]
fn an_owner_that_is_killed_leaves_what_it_synced() {
    let Some(shared) = Shared::formatted() else { return };
    let first = shared.machine("first");
    for round in 0..3u8 {
        first.mount();
        let large = bytes(round + 2, 3 << 20);
        first.write(&format!("small-{round}"), &[round; 100]).unwrap();
        first.write(&format!("large-{round}"), &large).unwrap();
        fs::write(first.path("unsynced"), &large).unwrap();
        kill_process(first.daemon(), Signal::KILL).unwrap();
        eventually("the mount is dead", || rustix::fs::statfs(first.path("")).is_err());
        run(first.varve().arg("umount").arg(first.path("")));
        // At once, since the process is known to be gone.
        first.mount();
        for round in 0..=round {
            let small = fs::read(first.path(&format!("small-{round}"))).unwrap();
            assert_eq!(small, [round; 100]);
            let large = fs::read(first.path(&format!("large-{round}"))).unwrap();
            assert!(large == bytes(round + 2, 3 << 20), "{round}");
        }
        first.unmount();
        first.fsck();
    }
}

#[test]
fn an_owner_elsewhere_is_named_and_can_be_fenced_off() {
    let Some(shared) = Shared::formatted() else { return };
    let (first, second) = (shared.machine("first"), shared.machine("second"));
    first.mount();
    first.write("synced", b"kept").unwrap();
    let daemon = first.daemon();
    let refused = fails(&mut second.mount_with(&[]), 1);
    let names_it = refused.contains(&format!("process {} on", daemon.as_raw_nonzero()));
    assert!(names_it && refused.contains("--take-over"), "{refused}");
    // Whoever only reads is let in, and sees what is there now.
    run(&mut second.mount_with(&["-o", "ro"]));
    assert_eq!(fs::read(second.path("synced")).unwrap(), b"kept");
    assert!(fs::write(second.path("new"), "x").is_err());
    second.unmount();
    let open = fs::File::options().write(true).open(first.path("synced")).unwrap();
    open.write_all_at(b"late", 0).unwrap();
    // Paused for longer than its lease, as a machine that swaps is.
    kill_process(daemon, Signal::STOP).unwrap();
    let _goes_on = at_end(move || {
        let _ = kill_process(daemon, Signal::CONT);
    });
    run(&mut second.mount_with(&["--take-over"]));
    second.write("of-second", b"2").unwrap();
    assert_eq!(fs::read(second.path("synced")).unwrap(), b"kept");
    kill_process(daemon, Signal::CONT).unwrap();
    assert!(open.sync_all().is_err());
    eventually("its programs get errors", || first.write("of-first", b"1").is_err());
    let log = fs::read_dir(first.dir.join("anchors")).unwrap().next().unwrap().unwrap().path();
    let log = fs::read_to_string(log.join("varve.log")).unwrap();
    assert!(log.contains("was taken over by process"), "{log}");
    second.write("synced", b"more").unwrap();
    drop(open);
    let _ = first.varve().arg("umount").arg(first.path("")).output();
    second.unmount();
    second.fsck();
    second.mount();
    assert_eq!(fs::read(second.path("synced")).unwrap(), b"more");
    assert_eq!(fs::read(second.path("of-second")).unwrap(), b"2");
    assert!(!second.path("of-first").exists());
}

#[test]
fn a_mount_to_read_follows_the_owner() {
    let Some((_shared, first, second)) = Shared::followed() else { return };
    let large = bytes(5, 3 << 20);
    first.write("changed", b"old").unwrap();
    first.write("removed", b"there").unwrap();
    first.write("large", &large).unwrap();
    fs::create_dir(first.path("dir")).unwrap();
    first.write("dir/within", b"1").unwrap();
    eventually("it has them", || second.path("dir/within").exists());
    let open: Vec<fs::File> = ["changed", "removed", "large"]
        .map(|name| fs::File::open(second.path(name)).unwrap())
        .into();
    let dir = fs::File::open(second.path("dir")).unwrap();
    fs::remove_file(first.path("removed")).unwrap();
    fs::rename(first.path("dir"), first.path("moved")).unwrap();
    let in_place = fs::File::options().write(true).open(first.path("large")).unwrap();
    in_place.write_all_at(b"XYZ", 1 << 20).unwrap();
    in_place.sync_all().unwrap();
    first.write("changed", b"newer").unwrap();
    first.write("moved/more", b"2").unwrap();
    eventually("it moves on", || second.path("moved/more").exists());
    assert!(!second.path("removed").exists() && !second.path("dir").exists());
    let names = |dir: PathBuf| {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|item| item.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(second.path("")), ["changed", "large", "moved"]);
    assert_eq!(names(second.path("moved")), ["more", "within"]);
    // Programs in the directory are still there.
    let more =
        rustix::fs::openat(&dir, "more", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
    assert_eq!(std::io::read_to_string(fs::File::from(more.unwrap())).unwrap(), "2");
    drop(dir);
    // Open files are as they were.
    for (mut file, before) in open.into_iter().zip([&b"old"[..], b"there", &large]) {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        assert!(bytes == before, "{} bytes", bytes.len());
    }
    let mut changed = large;
    changed[1 << 20..][..3].copy_from_slice(b"XYZ");
    eventually("files are closed", || {
        second.reads("changed", b"newer") && second.reads("large", &changed)
    });
}

#[test]
fn a_mount_to_read_goes_on_with_the_next_owner_and_after_an_outage() {
    let Some((shared, first, second)) = Shared::followed() else { return };
    first.write("changed", b"by the first").unwrap();
    eventually("it follows", || second.path("changed").exists());
    // No mount over io_uring is upgraded, and that is told first.
    let other = shared.machine("other");
    run(&mut other.mount_with(&["-o", "ro,transport=dev", "--follow-every", "0.2"]));
    let said = fails(other.varve().arg("upgrade").arg(other.path("")), 1);
    assert!(said.contains("follows its owner"), "{said}");
    other.unmount();
    // The owner dies, and another machine goes on.
    kill_process(first.daemon(), Signal::KILL).unwrap();
    let third = shared.machine("third");
    run(&mut third.mount_with(&["--take-over"]));
    third.write("changed", b"by the next").unwrap();
    eventually("it follows the next owner", || second.reads("changed", b"by the next"));
    // The storage is away for a while.
    let (storage, aside) = (shared.dir.path().join("storage"), shared.dir.path().join("aside"));
    third.unmount();
    fs::rename(&storage, &aside).unwrap();
    std::thread::sleep(Duration::from_millis(700));
    assert!(second.reads("changed", b"by the next"));
    fs::rename(&aside, &storage).unwrap();
    third.mount();
    third.write("changed", b"again").unwrap();
    eventually("it goes on", || second.reads("changed", b"again"));
}

#[test]
fn a_mount_to_read_can_stay_at_one_state() {
    let Some((_shared, first, second)) = Shared::followed() else { return };
    first.write("changed", b"before").unwrap();
    second.unmount();
    run(&mut second.mount_with(&["-o", "ro,follow_every=0"]));
    first.write("changed", b"unseen").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(second.reads("changed", b"before"));
    second.unmount();
    let said = fails(&mut second.mount_with(&["--follow-every", "1"]), 2);
    assert!(said.contains("`ro`"), "{said}");
}

#[test]
fn what_is_no_store_is_named_and_not_touched() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let machine = Machine { dir: dir.path().join("m"), uri: String::new(), variables: Vec::new() };
    fs::create_dir_all(machine.dir.join("mnt")).unwrap();
    let photos = dir.path().join("photos");
    fs::create_dir(&photos).unwrap();
    fs::write(photos.join("1.jpg"), "x").unwrap();
    let uri = format!("shared://{}", photos.display());
    let said = fails(machine.varve().arg("format").arg(&uri), 1);
    assert!(said.contains("is not empty: it has 1.jpg"), "{said}");
    let said = fails(machine.varve().arg("mount").arg(&uri).arg(machine.path("")), 1);
    assert!(said.contains("there is no store at"), "{said}");
    assert_eq!(fs::read_dir(&photos).unwrap().count(), 1);
    for wrong in ["ftp://host/x", "s3://", "s3://ab/x y"] {
        let said = fails(machine.varve().arg("format").arg(wrong), 2);
        assert!(!said.contains("panicked"), "{said}");
    }
}
