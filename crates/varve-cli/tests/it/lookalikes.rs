//! What looks like a store, a mount or its daemon, and is another.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::Uid;
use serde_json::json;
use varve_testkit::Command;

use crate::harness::{self, Mount, fails, run, varve};

/// Another file system, mounted within a Varve mount for as long as this lives.
struct Within(PathBuf);

impl Within {
    fn new(dir: &Path) -> Within {
        rustix::mount::mount("none", dir, "tmpfs", MountFlags::empty(), None).unwrap();
        Within(dir.to_path_buf())
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, UnmountFlags::DETACH).unwrap();
    }
}

/// Inode numbers of another file system were taken for those of the mount that it is mounted within, and what was asked for was done to
/// whatever has them there.
#[test]
fn what_is_mounted_within_a_mount_is_no_part_of_it() {
    let Some(mount) = Mount::new() else { return };
    let [file, inner, copy] = ["file", "inner", "copy"].map(|name| mount.path().join(name));
    fs::write(&file, "x").unwrap();
    fs::create_dir(&inner).unwrap();
    run(varve().args(["snapshot", "create"]).arg(mount.path()).arg("before"));
    fs::write(mount.path().join("later"), "x").unwrap();
    let within = Within::new(&inner);
    fs::write(inner.join("file"), "y").unwrap();
    let refused = |command: &mut Command| {
        let said = fails(command, 1);
        assert!(said.contains("on a file system mounted within one"), "{command:?}: {said}");
    };
    refused(varve().arg("clone").args([&file, &inner.join("copy")]));
    refused(varve().arg("clone").args([&inner.join("file"), &copy]));
    refused(varve().arg("clone").args([&inner, &copy]));
    refused(varve().args(["txn", "begin"]).arg(&inner));
    refused(varve().args(["txn", "run"]).arg(&inner).args(["--", "true"]));
    refused(varve().args(["txn", "list"]).arg(&inner));
    refused(varve().args(["snapshot", "create"]).arg(&inner).arg("now"));
    refused(varve().args(["snapshot", "rollback"]).arg(&inner).arg("before"));
    refused(varve().args(["kv", "list"]).arg(&inner));
    refused(varve().arg("status").arg(&inner));
    refused(varve().arg("stats").arg(&inner));
    assert_eq!(harness::json(varve().args(["txn", "list", "--json"]).arg(mount.path())), json!([]));
    assert!(mount.path().join("later").exists() && !copy.exists());
    assert!(!mount.path().join("copy").exists());
    drop(within);
    // What is mounted over a mount is not taken away for it.
    let _within = Within::new(&mount.path());
    assert!(fails(varve().arg("umount").arg(mount.path()), 1).contains("no Varve"));
}

/// Whoever may write to a mount could have others take it for another store by a file in its root, or by a whole store there.
#[test]
fn a_mount_is_taken_for_itself_whatever_lies_in_its_root() {
    let Some(mount) = Mount::new() else { return };
    let (dir, other) = (mount.path(), tempfile::tempdir().unwrap());
    let listed =
        |place: &Path| harness::json(varve().args(["snapshot", "list", "--json"]).arg(place));
    let is_served = || {
        let told = harness::json(varve().args(["status", "--json"]).arg(&dir));
        assert_eq!(told["store"], mount.store().to_str().unwrap(), "{told}");
        run(varve().args(["txn", "begin"]).arg(&dir));
        run(varve().args(["kv", "list"]).arg(&dir));
    };
    fs::write(dir.join("VARVE.copy"), "x").unwrap();
    is_served();
    fs::remove_file(dir.join("VARVE.copy")).unwrap();
    run(varve().arg("format").arg(other.path().join("store")));
    run(Command::new("cp").arg("-a").arg(other.path().join("store/.")).arg(&dir));
    is_served();
    run(varve().args(["snapshot", "create"]).arg(&dir).arg("now"));
    run(varve().arg("clone").arg(dir.join("VARVE")).arg(dir.join("copy")));
    assert_eq!(listed(&mount.store())[0]["name"], "now");
    // Further down it is not clear which is meant, unless only a mount can be.
    let inner = dir.join("inner");
    run(varve().arg("format").arg(&inner));
    for line in ["snapshot list", "txn list", "kv list", "status"] {
        let said = fails(varve().args(line.split(' ')).arg(&inner), 1);
        assert!(said.contains("is a store, and lies on a mount of another"), "{said}");
        assert!(said.contains(&format!("name {}", dir.display())), "{said}");
    }
    run(varve().args(["txn", "begin"]).arg(&inner));
    run(varve().arg("clone").arg(dir.join("copy")).arg(inner.join("copy")));
    // As it says, it is reached by a mount of its own.
    let own = other.path().join("mnt");
    fs::create_dir(&own).unwrap();
    run(varve().arg("mount").args([&inner, &own]));
    let told = listed(&own);
    run(varve().arg("umount").arg(&own));
    assert_eq!(told, json!([]));
}

/// Listens on the socket `name` of a mount's daemon, as user `uid`, and answers one client after the other with `answer`.
fn listens(mount: &Mount, name: &str, uid: u32, answer: &'static str) {
    let path = mount.store().join(name);
    let aside = mount.store().join(format!("{name}.aside"));
    if !aside.exists() {
        fs::rename(&path, aside).unwrap();
    } else {
        fs::remove_file(&path).unwrap();
    }
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let listener = UnixListener::bind(&path).unwrap();
        // The kernel tells clients who called listen(2) last; that of this thread alone is changed.
        let uid = Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(None, uid, None).unwrap();
        rustix::net::listen(&listener, 8).unwrap();
        ready.send(()).unwrap();
        while let Ok((client, _)) = listener.accept() {
            BufReader::new(&client).read_line(&mut String::new()).unwrap();
            let _ = (&client).write_all(answer.as_bytes());
        }
    });
    is_ready.recv().unwrap();
}

/// Whoever owned the directory of a store could listen in the place of the daemon of root's mount, and name any path as that of a
/// transaction, which `varve txn run` then had its program see.
#[test]
fn a_transaction_is_where_its_mount_has_it_whoever_answers() {
    let Some(mount) = Mount::new() else { return };
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("precious"), "x").unwrap();
    let answer = |path: &Path| -> &'static str {
        format!("{{\"done\":{{\"id\":\"7\",\"path\":{:?}}}}}\n", path.to_str().unwrap()).leak()
    };
    let run = || {
        let mut command = varve();
        command.args(["txn", "run"]).arg(mount.path()).args(["--", "rm", "precious"]);
        command.current_dir(mount.path());
        fails(&mut command, 1)
    };
    // Of who mounted, and so is heard; but not followed.
    listens(&mount, "control", 0, answer(outside.path()));
    run();
    assert!(outside.path().join("precious").exists());
    listens(&mount, "control", 1000, answer(outside.path()));
    let said = run();
    assert!(said.contains("another user mounted the store"), "{said}");
    for id in ["../../../etc", "", "7/.."] {
        let answer = format!("{{\"done\":{{\"id\":\"{id}\",\"path\":null}}}}\n").leak();
        listens(&mount, "control", 0, answer);
        let said = run();
        assert!(said.contains("does not say which transaction"), "{id}: {said}");
    }
    is_back(&mount, "control");
}

fn is_back(mount: &Mount, name: &str) {
    let aside = mount.store().join(format!("{name}.aside"));
    fs::rename(aside, mount.store().join(name)).unwrap();
}

/// Only what is asked about transactions and snapshots was asked of nobody else: pairs and whole snapshots were given to whoever
/// listened, and what he said was believed.
#[test]
fn nobody_else_is_told_or_believed_in_the_place_of_a_daemon() {
    let Some(mount) = Mount::new() else { return };
    for name in ["control", "kv"] {
        listens(&mount, name, 1000, "{\"done\":null}\n");
    }
    let (dir, program) = (mount.path(), env!("CARGO_BIN_EXE_varve"));
    for line in [
        "snapshot send DIR one",
        "snapshot receive DIR",
        "tune --now DIR",
        "upgrade DIR",
        "kv put DIR dictionary key value",
        "kv get DIR dictionary key",
    ] {
        let words = line.split(' ').map(|word| match word {
            "DIR" => dir.clone().into_os_string(),
            word => word.into(),
        });
        let said = fails(Command::new(program).args(words), 1);
        assert!(said.contains("another user mounted the store"), "{line}: {said}");
    }
    ["control", "kv"].into_iter().for_each(|name| is_back(&mount, name));
}
