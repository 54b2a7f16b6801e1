//! Mounts begin and end as promised: by the command line, by mount(8), by signals, by the death of the daemon.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, prlimit};

use crate::harness::{
    Mount, can_mount, fails, json, run, stderr, varve, with_namespaces, without_namespaces,
};
use varve_engine::{Batch, Db, DbOptions, KeyspaceOptions, Store};
use varve_env::os::OsEnv;
use varve_fs::superblock::engine_dir;
use varve_schema::{META, RowKey};
use varve_testkit::{Command, eventually, skipped};
use varve_types::InodeId;

#[test]
fn a_store_is_mounted_once_and_says_where() {
    let Some(mount) = Mount::new() else { return };
    let status = json(varve().args(["status", "--json"]).arg(mount.store()));
    assert_eq!(status["mount_point"], mount.path().to_str().unwrap());
    assert!(status["holder"]["pid"].is_u64());
    assert!(status["daemon"].is_object());
    fs::create_dir(mount.path().join("below")).unwrap();
    let from_below = json(varve().args(["status", "--json"]).arg(mount.path().join("below")));
    assert_eq!(from_below["store"], mount.store().to_str().unwrap());
    let other = tempfile::tempdir().unwrap();
    let said = fails(varve().arg("mount").arg(mount.store()).arg(other.path()), 1);
    assert!(said.contains(mount.path().to_str().unwrap()), "{said}");
    let said = fails(varve().arg("fsck").arg(mount.store()), 1);
    assert!(said.contains("umount"), "{said}");
    mount.unmount();
    let status = json(varve().args(["status", "--json"]).arg(mount.store()));
    assert!(status["holder"].is_null() && status["mount_point"].is_null());
}

/// Where a file's first bytes go.
#[test]
fn new_files_begin_as_the_mount_was_told() {
    let Some(mount) = Mount::new() else { return };
    for (told, objects) in [("small", 0), ("large", 1)] {
        mount.unmount();
        mount.mount_with(&format!("newfiles={told}"));
        fs::write(mount.path().join(told), "a few bytes").unwrap();
        assert_eq!(mount.count_objects(), objects, "{told}");
        assert_eq!(fs::read_to_string(mount.path().join(told)).unwrap(), "a few bytes");
    }
}

#[test]
fn a_store_and_its_mount_point_lie_apart() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    run(varve().arg("format").arg(&store));
    for nested in [dir.path(), store.as_path(), &store.join("objects")] {
        let said = fails(varve().arg("mount").arg(&store).arg(nested), 1);
        assert!(said.contains("within each other"), "{said}");
    }
}

#[test]
fn a_busy_mount_stays_and_a_lazy_unmount_takes_it() {
    let Some(mount) = Mount::new() else { return };
    let held = fs::File::create(mount.path().join("held")).unwrap();
    let said = fails(varve().arg("umount").arg(mount.path()), 1);
    assert!(said.contains("in use"), "{said}");
    run(varve().args(["umount", "--lazy"]).arg(mount.path()));
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
    // Who has the store is asked, as long as it serves.
    run(varve().args(["snapshot", "create"]).arg(mount.store()).arg("now"));
    drop(held);
    wait_until_free(&mount);
}

/// Another store on the directory of one that closes was taken for it: its counters were told, and to unmount it.
#[test]
fn another_store_in_the_place_of_one_that_closes_is_told_apart() {
    let Some(mount) = Mount::new() else { return };
    let other = mount.store().with_file_name("other");
    run(varve().arg("format").arg(&other));
    let held = fs::File::create(mount.path().join("held")).unwrap();
    run(varve().args(["umount", "--lazy"]).arg(mount.path()));
    run(varve().arg("mount").arg(&other).arg(mount.path()));
    let status = json(varve().args(["status", "--json"]).arg(mount.store()));
    assert!(status["holder"].is_object(), "{status}");
    assert!(status["mount_point"].is_null() && status["daemon"].is_null(), "{status}");
    let status = json(varve().args(["status", "--json"]).arg(&other));
    assert_eq!(status["mount_point"], mount.path().to_str().unwrap());
    // Its close is waited for, for longer than somebody who has it for a moment.
    let held = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(held);
    });
    run(varve().arg("fsck").arg(mount.store()));
    held.join().unwrap();
}

#[test]
fn read_only_mounts_refuse_changes() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path().join("file"), "x").unwrap();
    mount.unmount();
    run(varve().arg("mount").args(["-o", "ro,noatime"]).arg(mount.store()).arg(mount.path()));
    assert_eq!(fs::read(mount.path().join("file")).unwrap(), b"x");
    let error = fs::write(mount.path().join("other"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
}

/// One that was begun with `ro` became `rw` by its looks alone, and what failed then said to do so.
#[test]
fn a_mount_that_began_read_only_stays_so_and_says_how_to_change_it() {
    let Some(mount) = Mount::new() else { return };
    let dir = mount.path();
    run(varve().args(["kv", "create"]).arg(&dir).arg("tags"));
    mount.unmount();
    mount.mount_with("ro");
    let next = format!("`varve umount {}`, and mount it again without `ro`", dir.display());
    let remount = |options: &str| {
        let mut command = varve();
        command.arg(mount.store()).arg(&dir).args(["-o", options]);
        command
    };
    let said = fails(&mut remount("rw,remount"), 32);
    assert!(said.contains("was mounted with `ro`") && said.contains(&next), "{said}");
    assert_eq!(json(varve().args(["status", "--json"]).arg(&dir))["read_only"], true);
    run(&mut remount("ro,remount,nosuid"));
    let changes: [&[&str]; 3] =
        [&["snapshot", "create", "now"], &["txn", "begin"], &["kv", "put", "tags", "k", "v"]];
    let changed = |change: &[&str]| {
        let mut command = varve();
        command.args(&change[..2]).arg(&dir).args(&change[2..]);
        command
    };
    for change in changes {
        let said = fails(&mut changed(change), 1);
        assert!(said.contains(&next), "{change:?}: {said}");
    }
    // As they say.
    mount.remount();
    for change in changes {
        run(&mut changed(change));
    }
    // By the flag alone it is as it was.
    run(&mut remount("ro,remount"));
    for change in changes {
        let said = fails(&mut changed(change), 1);
        assert!(said.contains("`mount -o remount,rw` allows changes"), "{change:?}: {said}");
    }
}

#[test]
fn sigterm_unmounts_cleanly() {
    let Some(mount) = Mount::new() else { return };
    mount.unmount();
    let mut daemon = varve()
        .args(["mount", "-f", "-v"])
        .arg(mount.store())
        .arg(mount.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // It says how it mounted when the mount answers.
    let mut first = [0; 1];
    daemon.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    fs::write(mount.path().join("file"), "kept").unwrap();
    let pid = rustix::process::Pid::from_child(&daemon);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(daemon.wait().unwrap().success());
    mount.mount();
    assert_eq!(fs::read(mount.path().join("file")).unwrap(), b"kept");
}

/// Whoever started a daemon with a lock or a pipe open had it held, or waited for its end, until the mount was gone.
#[test]
fn a_daemon_keeps_nothing_that_its_caller_has_open() {
    let Some((mount, helper)) = helped() else { return };
    let held = tempfile::NamedTempFile::new().unwrap();
    for program in [&[env!("CARGO_BIN_EXE_varve"), "mount"][..], &[helper.to_str().unwrap()]] {
        let mut script = Command::new("sh");
        script.args(["-c", "file=$0; exec 3>\"$file\" 8<\"$file\" && exec \"$@\""]);
        run(script.arg(held.path()).args(program).arg(mount.store()).arg(mount.path()));
        let open = fs::read_dir(format!("/proc/{}/fd", mount.daemon().as_raw_nonzero())).unwrap();
        let open = open.filter_map(|item| fs::read_link(item.unwrap().path()).ok());
        assert!(open.into_iter().all(|file| file != held.path()));
        mount.unmount();
    }
    mount.mount();
}

/// Who closed the terminal of a mount in the foreground left a dead one behind.
#[test]
fn sighup_unmounts_too_unless_it_is_ignored() {
    let Some(mount) = Mount::new() else { return };
    for (ignored, sent, heard) in [
        ("", &[Signal::HUP][..], "signal 1:"),
        ("trap '' HUP;", &[Signal::HUP, Signal::TERM], "signal 15:"),
    ] {
        mount.unmount();
        // Whoever runs the tests may ignore it, which a shell leaves as it is.
        let mut daemon = Command::new("env")
            .args(["--default-signal=HUP", "sh", "-c", &format!("{ignored} exec \"$0\" \"$@\"")])
            .args([env!("CARGO_BIN_EXE_varve"), "mount", "-f", "-v"])
            .arg(mount.store())
            .arg(mount.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        daemon.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
        let pid = rustix::process::Pid::from_child(&daemon);
        sent.iter().for_each(|signal| rustix::process::kill_process(pid, *signal).unwrap());
        let ended = daemon.wait_with_output().unwrap();
        let said = stderr(&ended);
        assert!(ended.status.success() && said.contains(heard), "{}: {said}", ended.status);
        assert_eq!(said.matches(": unmounting").count(), 1, "{said}");
        mount.mount();
    }
}

/// Who took away a mount whose daemon did not answer waited for an answer himself.
#[test]
fn a_mount_whose_daemon_does_not_answer_is_taken_away() {
    let Some(mount) = Mount::new() else { return };
    let daemon = mount.daemon();
    // The kernel forgets the attributes of the directory.
    fs::write(mount.path().join("file"), "").unwrap();
    rustix::process::kill_process(daemon, Signal::STOP).unwrap();
    let mut umount = Command::new("timeout");
    umount.args(["-s", "KILL", "60", env!("CARGO_BIN_EXE_varve"), "umount", "--lazy"]);
    let output = umount.arg(mount.path()).output();
    rustix::process::kill_process(daemon, Signal::CONT).unwrap();
    let output = output.unwrap();
    assert!(output.status.success(), "{}: {}", output.status, stderr(&output));
    wait_until_free(&mount);
    mount.mount();
}

#[test]
fn a_killed_daemon_loses_nothing_and_its_mount_can_be_taken_away() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path().join("file"), "acknowledged").unwrap();
    // The log then holds rows that wait for a large file's bytes to be synced, which the check once took
    // for a problem.
    fs::write(mount.path().join("large"), vec![7; 300_000]).unwrap();
    let status = json(varve().args(["status", "--json"]).arg(mount.store()));
    let pid = i32::try_from(status["holder"]["pid"].as_u64().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    wait_until_free(&mount);
    mount.unmount();
    run(varve().arg("fsck").arg(mount.store()));
    mount.mount();
    assert_eq!(fs::read(mount.path().join("file")).unwrap(), b"acknowledged");
}

/// What a mount with `-o transport=` has agreed on; the harness asks for the one of this run.
#[test]
fn the_transport_is_chosen_at_mount_and_told() {
    let Some(mount) = Mount::new() else { return };
    mount.unmount();
    for (asked, told) in [("dev", "/dev/fuse"), ("uring", "io_uring"), ("auto", "")] {
        let options = format!("transport={asked}");
        let output = varve()
            .args(["mount", "-o", &options])
            .arg(mount.store())
            .arg(mount.path())
            .output()
            .unwrap();
        if asked == "uring" && !output.status.success() {
            let said = stderr(&output);
            assert!(said.contains("does not offer") && said.contains("enable_uring"), "{said}");
            assert_eq!(output.status.code(), Some(1));
            continue;
        }
        assert!(output.status.success(), "{}", stderr(&output));
        let status = json(varve().args(["status", "--json"]).arg(mount.path()));
        let transport = status["session"]["transport"].as_str().unwrap();
        let text = String::from_utf8(run(varve().arg("status").arg(mount.path())).stdout).unwrap();
        assert!(
            text.lines().any(|line| line.starts_with("requests over") && line.contains(transport))
        );
        if asked == "auto" {
            let has_reason = status["session"]["no_io_uring"].is_string();
            assert_eq!(has_reason, transport == "/dev/fuse", "{status}");
        } else {
            assert_eq!(transport, told);
        }
        fs::write(mount.path().join("file"), asked).unwrap();
        mount.unmount();
    }
}

/// A store that is not mounted, and what mount(8) runs to mount it, in a directory of its own.
fn helped() -> Option<(Mount, PathBuf)> {
    if !can_mount() {
        return None;
    }
    let mount = Mount::unformatted();
    run(varve().arg("format").arg(mount.store()));
    let helper = helper(&mount);
    Some((mount, helper))
}

/// What mount(8) runs, beside a store.
fn helper(mount: &Mount) -> PathBuf {
    let dir = mount.store().with_file_name("helpers");
    fs::create_dir(&dir).unwrap();
    let helper = dir.join("mount.fuse.varve");
    symlink(env!("CARGO_BIN_EXE_varve"), &helper).unwrap();
    helper
}

#[test]
fn mount_of_the_system_finds_the_helper() {
    let Some((mount, helper)) = helped() else { return };
    let helped = |options: &str| {
        let mut command = Command::new(&helper);
        command.arg(mount.store()).arg(mount.path()).args(["-o", options]);
        command
    };
    fails(&mut helped("rw,nobarrier"), 32);
    run(helped("rw,nobarrier").arg("-sf"));
    run(&mut helped("rw,nofail,x-systemd.automount,noatime"));
    fs::write(mount.path().join("file"), "x").unwrap();
    run(varve().arg("umount").arg(mount.path()));
    fails(Command::new(&helper).arg(mount.store()), 2);
}

/// `mount -o remount,ro` ended in "no such file": it runs the helper, which knew no `remount`. Through the
/// link of mount(8) and through libfuse's helper, which calls the program with a store in place of a verb.
#[test]
fn a_mount_becomes_read_only_while_in_use() {
    let Some(mount) = Mount::new() else { return };
    let helper = helper(&mount);
    let file = mount.path().join("file");
    fs::write(&file, "before").unwrap();
    for program in [helper.as_path(), Path::new(env!("CARGO_BIN_EXE_varve"))] {
        let remount = |options: &str| {
            run(Command::new(program)
                .arg(mount.store())
                .arg(mount.path())
                .args(["-o", &format!("rw,remount,{options}")]));
        };
        remount("ro");
        let refused = fs::write(&file, "refused").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
        assert_eq!(fs::read(&file).unwrap(), b"before");
        remount("rw");
        fs::write(mount.path().join("other"), "x").unwrap();
    }
    // Root was told to be root, and who gave what a remount cannot change that it was done.
    let remount = |options: &str| {
        let mut command = Command::new(&helper);
        command.arg(mount.store()).arg(mount.path()).args(["-o", options]);
        command
    };
    let writing = fs::File::options().append(true).open(&file).unwrap();
    let said = fails(&mut remount("remount,ro"), 32);
    assert!(said.contains("open for writing") && said.contains("fuser -vm"), "{said}");
    drop(writing);
    let told = run(&mut remount("remount,rw,nonsense,memory=1G,user_id=0,nosuid")).stdout;
    let told = String::from_utf8(told).unwrap();
    assert!(told.contains("nonsense") && told.contains("memory=1G"), "{told}");
    assert_eq!(told.lines().count(), 2, "{told}");
    // Scripts compare what mount(8) says, and an option that is so already changes nothing.
    let status = json(varve().args(["status", "--json"]).arg(mount.store()));
    let (same, other) = match status["session"]["transport"].as_str() {
        Some("io_uring") => ("uring", "dev"),
        _ => ("dev", "uring"),
    };
    let kept =
        "auto,defaults,mand,nomand,iversion,noiversion,silent,loud,relatime,nolazytime,diratime";
    for options in [format!("remount,rw,transport={same}"), format!("remount,rw,{kept}")] {
        let told = run(&mut remount(&options)).stdout;
        assert_eq!(String::from_utf8(told).unwrap(), "", "{options}");
    }
    for option in [&format!("transport={other}"), "nodiratime", "strictatime", "dirsync"] {
        let told = run(&mut remount(&format!("remount,rw,{option}"))).stdout;
        let told = String::from_utf8(told).unwrap();
        assert!(told.starts_with(&format!("`{option}` changes nothing now")), "{told}");
    }
    let elsewhere = tempfile::tempdir().unwrap();
    fails(
        Command::new(&helper).arg(mount.store()).arg(elsewhere.path()).args(["-o", "remount,ro"]),
        32,
    );
}

/// Of what is as it was it was said each time that it changes nothing.
#[test]
fn a_remount_is_silent_about_what_is_so() {
    let Some(mount) = Mount::new() else { return };
    let told = |options: &str| {
        let mut command = varve();
        command.arg(mount.store()).arg(mount.path()).args(["-o", options]);
        String::from_utf8(run(&mut command).stdout).unwrap()
    };
    assert_eq!(told("remount,rw,memory=256M"), "");
    mount.unmount();
    mount.mount_with("memory=64M,threads=3");
    assert_eq!(told("remount,rw,memory=65536K,threads=3"), "");
    for option in ["threads=4", "memory=65M", "threads=3,memory=256M"] {
        let changed = option.rsplit(',').next().unwrap();
        let said = told(&format!("remount,rw,{option}"));
        assert!(said.starts_with(&format!("`{changed}` changes nothing now")), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

/// The option was unknown, and a remount passed it over.
#[test]
fn a_mount_follows_no_symbolic_links_if_it_is_told_so() {
    let Some(mount) = Mount::new() else { return };
    let (dir, link) = (mount.path(), mount.path().join("link"));
    fs::write(dir.join("file"), "x").unwrap();
    std::os::unix::fs::symlink("file", &link).unwrap();
    let follows = || match fs::read(&link) {
        Ok(read) => {
            assert_eq!(read, b"x");
            true
        }
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::LOOP.raw_os_error()));
            assert_eq!(fs::read_link(&link).unwrap(), Path::new("file"));
            false
        }
    };
    assert!(follows());
    let remount = |options: &str| {
        let mut command = varve();
        command.arg(mount.store()).arg(&dir).args(["-o", options]);
        assert_eq!(String::from_utf8(run(&mut command).stdout).unwrap(), "", "{options}");
    };
    remount("rw,remount,nosymfollow");
    assert!(!follows());
    remount("rw,remount,symfollow");
    assert!(follows());
    mount.unmount();
    mount.mount_with("nosymfollow");
    assert!(!follows());
}

/// The one whom the other was ahead of had mounted before it knew, and took away what was on top: the mount of the other.
#[test]
fn of_those_who_mount_a_store_at_once_one_does() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path().join("f"), "x").unwrap();
    let mut mounts = 0;
    for _ in 0..15 {
        mount.unmount();
        let tries = [0; 3].map(|_| {
            let mut command = varve();
            command.arg("mount").arg(mount.store()).arg(mount.path());
            std::thread::spawn(move || command.output().unwrap().status.success())
        });
        let mounted = tries.into_iter().map(|tried| tried.join().unwrap());
        let mounted = mounted.filter(|done| *done).count();
        assert!(mounted <= 1);
        mounts += mounted;
        if mounted == 0 {
            mount.mount();
        }
        assert_eq!(fs::read(mount.path().join("f")).unwrap(), b"x");
    }
    assert!(mounts > 0);
}

/// With neither mount(2) nor a fusermount the daemon mounts for itself alone: the helper said nothing and was taken to have mounted.
#[test]
fn what_only_the_daemon_would_see_is_no_mount_for_the_helper() {
    let Some((mount, helper)) = helped() else { return };
    // Root who may not mount, and finds no program that may.
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-sys_admin", "env", "PATH=/nonexistent"]);
    let said = fails(command.arg(&helper).arg(mount.store()).arg(mount.path()), 32);
    assert!(said.contains("not permitted") && said.contains("no fusermount3"), "{said}");
    assert!(said.contains("hint: run as root, or install fuse3"), "{said}");
    assert!(json(varve().args(["status", "--json"]).arg(mount.store()))["holder"].is_null());
}

/// Who met such a mount was told to unmount it, and by that that nothing is mounted there.
#[test]
fn who_meets_a_mount_that_only_its_daemon_sees_is_told_how_to_end_it() {
    let Some((mount, _helper)) = helped() else { return };
    let without_rights = |program: &[&str]| {
        let mut command = Command::new("setpriv");
        command.arg("--bounding-set=-sys_admin").args(program);
        command
    };
    let apart = without_rights(&["unshare", "--user", "--mount", "true"]).output().unwrap();
    if !apart.status.success() {
        skipped("this machine lets no process have a mount namespace of its own");
        return;
    }
    let mut command = without_rights(&["env", "PATH=/nonexistent", env!("CARGO_BIN_EXE_varve")]);
    run(command.arg("mount").arg(mount.store()).arg(mount.path()));
    let daemon = mount.daemon();
    let said = fails(varve().arg("mount").arg(mount.store()).arg(mount.path()), 1);
    rustix::process::kill_process(daemon, rustix::process::Signal::TERM).unwrap();
    let ends = format!("`kill {}` unmounts", daemon.as_raw_nonzero());
    assert!(said.contains(&ends) && !said.contains("varve umount"), "{said}");
    wait_until_free(&mount);
}

/// What mount(8) and umount(8) do for a store in /etc/fstab. Where they look for helpers there is one for these processes alone.
const BY_THE_SYSTEM: &str = r#"
set -eu
mount --bind "$HELPERS" /sbin
for round in 1 2 3; do
    mount -t fuse.varve "$STORE" "$DIR" -o noatime
    echo $round >>"$DIR/file"
    test "$(findmnt -n -o FSTYPE,SOURCE "$DIR" | tr -s ' ')" = "fuse.varve $STORE"
    mount -o remount,ro "$DIR"
    if touch "$DIR/file" 2>/dev/null; then echo "it can still be written to" >&2; exit 1; fi
    umount "$DIR"
done
mount -v -t fuse.varve "$STORE" "$DIR"
cat "$DIR/file"
umount "$DIR"
! mount -t fuse.varve "$STORE" "$DIR/missing"
"#;

#[test]
fn the_system_mounts_and_unmounts() {
    let Some((mount, helper)) = helped() else { return };
    let _copied = with_namespaces();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", BY_THE_SYSTEM]);
    command.env("HELPERS", helper.parent().unwrap());
    command.envs([("STORE", mount.store()), ("DIR", mount.path())]);
    let said = String::from_utf8(run(&mut command).stdout).unwrap();
    assert!(said.contains("is mounted on") && said.ends_with("1\n2\n3\n"), "{said}");
}

/// umount(8) returns when the mount is gone, and the daemon writes and removes for a while: a mount after it was refused.
#[test]
fn a_store_that_closes_is_waited_for() {
    let Some(mount) = Mount::new() else { return };
    let _apart = without_namespaces();
    for round in 0..3 {
        for n in 0..400 {
            let path = mount.path().join(format!("large{n}"));
            fs::write(&path, vec![round; 100_000]).unwrap();
            fs::remove_file(&path).unwrap();
        }
        fs::write(mount.path().join("kept"), vec![round; 10_000_000]).unwrap();
        eventually("nobody uses the mount", || {
            rustix::mount::unmount(mount.path(), rustix::mount::UnmountFlags::empty()).is_ok()
        });
        mount.mount();
        assert_eq!(fs::read(mount.path().join("kept")).unwrap(), vec![round; 10_000_000]);
    }
    // Not of one that is there.
    let begin = Instant::now();
    let said = fails(varve().arg("fsck").arg(mount.store()), 1);
    // It would be 10 seconds.
    assert!(said.contains("umount") && begin.elapsed() < Duration::from_secs(9), "{said}");
}

/// The same for who asks for what a daemon does while it serves: they asked the one that closed the store, and heard that it did not
/// answer.
#[test]
fn who_asks_while_a_store_closes_waits_too() {
    let Some(mount) = Mount::new() else { return };
    let _apart = without_namespaces();
    for words in [
        &["txn", "list"][..],
        &["snapshot", "create"],
        &["kv", "create"],
        &["snapshot", "send"],
        &["snapshot", "list"],
        &["kv", "list"],
    ] {
        for n in 0..400 {
            let path = mount.path().join(format!("large{n}"));
            fs::write(&path, vec![1; 100_000]).unwrap();
            fs::remove_file(&path).unwrap();
        }
        fs::write(mount.path().join("kept"), vec![2; 10_000_000]).unwrap();
        eventually("nobody uses the mount", || {
            rustix::mount::unmount(mount.path(), rustix::mount::UnmountFlags::empty()).is_ok()
        });
        let mut command = varve();
        command.args(words).arg(mount.store());
        if matches!(words[1], "create" | "send") {
            command.arg("name");
        }
        run(&mut command);
        mount.mount();
    }
}

/// Who named the store where a directory of its mount is meant was told to look for mounts.
#[test]
fn a_store_in_the_place_of_a_directory_on_its_mount_is_told_apart() {
    let Some(mount) = Mount::new() else { return };
    let (dir, store) = (mount.path().display().to_string(), mount.store());
    let refused = |next: &str| {
        let commands: [&[&str]; 3] = [&["txn", "begin"], &["txn", "run"], &["stats"]];
        for words in commands {
            let mut command = varve();
            command.args(words).arg(&store);
            if words.ends_with(&["run"]) {
                command.args(["--", "true"]);
            }
            let said = fails(&mut command, 1);
            assert!(said.contains("is a store, and not on a Varve mount"), "{words:?}: {said}");
            assert!(said.contains(next), "{words:?}: {said}");
        }
    };
    refused(&format!("hint: name {dir}, where it is mounted, or a directory below that\n"));
    mount.unmount();
    refused(&format!("hint: `varve mount {} DIR`, and name DIR\n", store.display()));
}

/// The threads that take clients spun while the daemon had no descriptor for one.
#[test]
fn clients_wait_while_there_are_no_descriptors() {
    let Some(mount) = Mount::new() else { return };
    let daemon = mount.daemon();
    run(varve().args(["kv", "create"]).arg(mount.store()).arg("tags"));
    let none = Rlimit { current: Some(3), ..getrlimit(Resource::Nofile) };
    let granted = prlimit(Some(daemon), Resource::Nofile, none).unwrap();
    let connect = |name| UnixStream::connect(mount.store().join(name)).unwrap();
    // For one client each listener has a descriptor already. It speaks, so that they go on to the next.
    let _firsts = ["control", "kv"].map(|name| {
        let mut first = connect(name);
        first.write_all(b"\x04\0\0\0none\n").unwrap();
        assert!(first.read(&mut [0; 16]).unwrap() > 0);
        first
    });
    let mut asks = ["control", "kv"].map(connect);
    // Time on CPUs, in hundredths of a second.
    let ticks = || {
        let stat = format!("/proc/{}/stat", daemon.as_raw_nonzero());
        let stat = fs::read_to_string(stat).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let fields = fields.split(' ').skip(12).take(2);
        fields.map(|field| field.parse::<u64>().unwrap()).sum::<u64>()
    };
    let before = ticks();
    std::thread::sleep(Duration::from_secs(1));
    let spent = ticks() - before;
    prlimit(Some(daemon), Resource::Nofile, granted).unwrap();
    assert!(spent < 20, "{spent} ticks in a second");
    // Both are heard after all.
    for ask in &mut asks {
        ask.write_all(b"\x04\0\0\0none\n").unwrap();
        assert!(ask.read(&mut [0; 16]).unwrap() > 0);
    }
    run(varve().args(["kv", "put"]).arg(mount.store()).args(["tags", "key", "value"]));
    run(varve().args(["snapshot", "create"]).arg(mount.store()).arg("later"));
}

/// Why a daemon did not send was taken for the beginning of the stream, and written to its end.
#[test]
fn a_refusal_to_send_is_no_stream() {
    let Some(mount) = Mount::new() else { return };
    run(varve().args(["snapshot", "create"]).arg(mount.store()).arg("now"));
    // As many as are heard at once, each of which has something to send and does not.
    let senders = [0; 256].map(|_| {
        let mut sender = UnixStream::connect(mount.store().join("control")).unwrap();
        sender.write_all(b"{\"views\":\"receive\"}\n").unwrap();
        assert!(sender.read(&mut [0; 64]).unwrap() > 0);
        sender
    });
    let output = varve().args(["snapshot", "send"]).arg(mount.path()).arg("now").output().unwrap();
    let said = stderr(&output);
    assert!(
        !output.status.success() && said.contains("the daemon is busy with 256 requests"),
        "{said}"
    );
    assert_eq!(output.stdout, b"");
    drop(senders);
}

/// Whoever could not read what was to be received waited for a daemon that waited for it, and did not say why.
#[test]
fn a_stream_that_cannot_be_read_is_told_at_once() {
    let Some(mount) = Mount::new() else { return };
    let mut in_time = Command::new("timeout");
    in_time.args(["60", env!("CARGO_BIN_EXE_varve"), "snapshot", "receive"]).arg(mount.path());
    let said = fails(in_time.stdin(fs::File::open(mount.path()).unwrap()), 1);
    assert!(said.contains("the stream cannot be read: Is a directory"), "{said}");
}

/// A daemon that could not look at its root did not say that it served, and whoever had started it waited for that.
#[test]
fn a_store_without_a_root_is_not_mounted() {
    let Some(mount) = Mount::new() else { return };
    mount.unmount();
    let rows = Db::open(OsEnv::new(), &engine_dir(&mount.store()), DbOptions::default()).unwrap();
    let meta = KeyspaceOptions { prefixed: true, compressed: false };
    let mut batch = Batch::new();
    batch.delete(rows.keyspace(META, meta).unwrap(), RowKey::inode(InodeId::ROOT).to_bytes());
    rows.write(batch).unwrap();
    rows.close().unwrap();
    let mut in_time = Command::new("timeout");
    in_time.args(["60", env!("CARGO_BIN_EXE_varve"), "mount"]);
    let said = fails(in_time.arg(mount.store()).arg(mount.path()), 1);
    assert!(said.contains("the root directory of") && said.contains("varve fsck"), "{said}");
    wait_until_free(&mount);
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
}

/// The daemon was not told of `-v`, which promises more in its log.
#[test]
fn a_verbose_mount_says_more_in_its_log() {
    let Some((mount, helper)) = helped() else { return };
    let log = || fs::read_to_string(mount.store().join("varve.log")).unwrap();
    let is_told = |program: &mut Command| {
        run(program.arg(mount.store()).arg(mount.path()).arg("-v"));
        let before = log().matches(" debug ").count();
        // A client that stops within its request.
        let mut client = UnixStream::connect(mount.store().join("kv")).unwrap();
        client.write_all(&[9, 0, 0, 0, 1]).unwrap();
        drop(client);
        eventually("the log says more", || log().matches(" debug ").count() > before);
        mount.unmount();
    };
    is_told(varve().arg("mount"));
    is_told(&mut Command::new(&helper));
}

/// Waits until no process has the store open.
fn wait_until_free(mount: &Mount) {
    eventually("the daemon lets go", || {
        json(varve().args(["status", "--json"]).arg(mount.store()))["holder"].is_null()
    });
}

/// Whoever gets a mount namespace has copies of all that is mounted, which is no use of a snapshot.
#[test]
fn a_snapshot_is_deleted_though_a_program_has_a_copy_of_its_mount() {
    let Some(mount) = Mount::new() else { return };
    let _copied = with_namespaces();
    let dir = mount.path();
    run(varve().args(["snapshot", "create"]).arg(&dir).arg("s"));
    fs::read_dir(dir.join(".varve/snapshots/s")).unwrap().count();
    let mut apart = Command::new("unshare");
    apart.args(["--mount", "--propagation", "private", "sleep", "60"]);
    let mut apart = apart.spawn().unwrap();
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).unwrap();
    let id = apart.id().to_string();
    eventually("a namespace of its own", || namespace(&id) != namespace("self"));
    let deleted = varve().args(["snapshot", "delete"]).arg(&dir).arg("s").output().unwrap();
    apart.kill().unwrap();
    apart.wait().unwrap();
    assert!(deleted.status.success(), "{}", stderr(&deleted));
}

/// A snapshot could be deleted while it was mounted elsewhere too, and showed the present bytes of large files there.
#[test]
fn a_snapshot_that_is_mounted_elsewhere_too_is_not_deleted() {
    let Some(mount) = Mount::new() else { return };
    let _apart = without_namespaces();
    let (dir, elsewhere) = (mount.path(), tempfile::tempdir().unwrap());
    let write = |byte| {
        for name in ["one", "two"] {
            fs::write(dir.join(name), vec![byte; 300_000]).unwrap();
        }
    };
    write(1);
    run(varve().args(["snapshot", "create"]).arg(&dir).arg("s"));
    let seen = dir.join(".varve/snapshots/s");
    fs::read_dir(&seen).unwrap().count();
    rustix::mount::mount_bind(&seen, elsewhere.path()).unwrap();
    write(2);
    let delete = || {
        let output = varve().args(["snapshot", "delete"]).arg(&dir).arg("s").output().unwrap();
        (output.status.success(), stderr(&output))
    };
    let (deleted, said) = delete();
    assert!(!deleted && said.contains("is also mounted on"), "{said}");
    assert!(fs::read(elsewhere.path().join("one")).unwrap() == vec![1; 300_000]);
    // Taken away from its place by hand it cannot be found elsewhere, but shows nothing that it was not.
    rustix::mount::unmount(&seen, rustix::mount::UnmountFlags::empty()).unwrap();
    let (deleted, said) = delete();
    assert!(deleted, "{said}");
    let read = fs::read(elsewhere.path().join("two"));
    assert_eq!(read.unwrap_err().raw_os_error(), Some(rustix::io::Errno::STALE.raw_os_error()));
    rustix::mount::unmount(elsewhere.path(), rustix::mount::UnmountFlags::empty()).unwrap();
}
