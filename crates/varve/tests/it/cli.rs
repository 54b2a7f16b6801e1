//! The command line: what it says, its exit statuses, and that mounts begin and end as promised.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::harness::{Mount, can_mount, run, varve};
use varve_testkit::eventually;

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json(command: &mut Command) -> Value {
    serde_json::from_slice(&run(command).stdout).unwrap()
}

/// Runs `command`, which must fail with `status` and end with a hint.
fn fails(command: &mut Command, status: i32) -> String {
    let output = command.output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(status), "{command:?}: {text}");
    assert!(status == 2 || text.contains("\nhint: "), "{command:?}: no hint in {text}");
    text
}

#[test]
fn format_refuses_what_it_would_destroy() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let made =
        json(varve().arg("format").arg(&store).args(["--json", "--large-file-threshold", "32K"]));
    assert_eq!(made["superblock"]["large_file_threshold_bytes"], 32_768);
    fails(varve().arg("format").arg(&store), 1);
    fails(varve().arg("format").arg("--force").arg(&store), 1);
    let full = dir.path().join("full");
    fs::create_dir(&full).unwrap();
    fs::write(full.join("precious"), "x").unwrap();
    fails(varve().arg("format").arg(&full), 1);
    assert_eq!(fs::read(full.join("precious")).unwrap(), b"x");
    run(varve().arg("format").arg("--force").arg(&full));
    assert_eq!(fs::read(full.join("precious")).unwrap(), b"x");
}

#[test]
fn a_store_is_made_as_told() {
    let dir = tempfile::tempdir().unwrap();
    let made = |name: &str, options: &[&str]| {
        let store = dir.path().join(name);
        json(varve().arg("format").arg(&store).arg("--json").args(options));
        let design =
            json(varve().args(["status", "--json"]).arg(&store))["superblock"]["design"].clone();
        ["compaction", "index", "filter", "values"]
            .map(|part| design[part].as_str().unwrap().to_owned())
    };
    assert_eq!(made("preset", &["--preset", "tablefs"]), ["leveled", "plain", "bloom", "in-row"]);
    let column = made("column", &["--preset", "tablefs-column"]);
    assert_eq!(column, ["leveled", "plain", "bloom", "separated"]);
    let slimfs = ["lazy-leveled", "three-level", "multi-level-cuckoo", "in-row"];
    assert_eq!(made("slimfs", &["--preset", "slimfs"]), slimfs);
    let kvfs = ["stitched", "elias-fano", "quotient", "in-row"];
    assert_eq!(made("kvfs", &["--preset", "kvfs"]), kvfs);
    let parts = ["--compaction", "lazy-leveled", "--index", "three-level", "--filter", "quotient"];
    let parts = [&parts[..], &["--values", "separated"]].concat();
    assert_eq!(made("parts", &parts), ["lazy-leveled", "three-level", "quotient", "separated"]);
    fails(varve().arg("format").arg(dir.path().join("odd")).args(["--filter", "sieve"]), 2);
    fails(varve().arg("format").arg(dir.path().join("odd")).args(["--stitch-threshold", "2K"]), 2);
}

#[test]
fn room_is_given_back_and_the_store_stays_whole() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let stitched = ["--preset", "kvfs", "--stitch-threshold", "4K"];
    run(varve().arg("format").arg(&store).args(stitched));
    for fit in ["best", "first"] {
        let done = json(varve().arg("gc").arg(&store).args(["--json", "--fit", fit]));
        assert_eq!((&done["rewrites"], &done["after"]["under_utilized"]), (&0.into(), &0.into()));
    }
    let said = run(varve().arg("gc").arg(&store).args(["--memory", "1M"])).stdout;
    assert!(String::from_utf8(said).unwrap().contains("needed by nobody"));
    run(varve().arg("fsck").arg(&store));
    fails(varve().arg("gc").arg(dir.path().join("none")), 1);
    fails(varve().arg("gc").arg(&store).args(["--fit", "worst"]), 2);
}

#[test]
fn wrong_command_lines_have_status_2() {
    fails(varve().arg("mount"), 2);
    fails(varve().args(["mount", "/nowhere", "/nowhere", "-o", "nobarrier"]), 2);
    fails(varve().args(["mount", "/nowhere", "/nowhere", "--memory", "1K"]), 2);
    fails(varve().args(["format", "/nowhere/at/all", "--large-file-threshold", "x"]), 2);
}

#[test]
fn trees_outside_a_mount_are_refused_with_the_next_step() {
    let dir = tempfile::tempdir().unwrap();
    fails(varve().arg("du").arg(dir.path()), 1);
    fails(varve().args(["quota", "show"]).arg(dir.path()), 1);
    fails(varve().args(["quota", "set", "--inodes", "5"]).arg(dir.path()), 1);
    fails(varve().args(["quota", "set"]).arg(dir.path()), 2);
    fails(varve().args(["quota", "set", "--bytes", "many"]).arg(dir.path()), 2);
}

#[test]
fn trees_are_told_by_directory_and_limits_by_path() {
    let Some(mount) = Mount::new() else { return };
    let top = mount.path().join("top");
    fs::create_dir_all(top.join("a/b")).unwrap();
    fs::write(top.join("a/b/f"), [0; 2048]).unwrap();
    let text = |command: &mut Command| String::from_utf8(run(command).stdout).unwrap();
    let told = text(varve().args(["du", "--depth", "1"]).arg(&top));
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 3, "{told}");
    assert!(lines[1].contains("2.00 KiB") && lines[1].ends_with("top/a"), "{told}");
    assert!(lines[2].ends_with("top"), "{told}");
    let set = text(varve().args(["quota", "set", "--bytes", "1K"]).arg(&top));
    assert!(set.contains("holds more already"), "{set}");
    let shown = text(varve().args(["quota", "show"]).arg(mount.path()));
    assert!(shown.contains("1.00 KiB") && shown.contains("top"), "{shown}");
    assert_eq!(json(varve().arg("status").arg(mount.path()).arg("--json"))["daemon"]["quotas"], 1);
    run(varve().args(["quota", "clear"]).arg(&top));
    assert!(text(varve().args(["quota", "show"]).arg(&top)).contains("no limits"));
}

#[test]
fn what_is_no_store_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for verb in ["status", "fsck"] {
        let said = fails(varve().arg(verb).arg(dir.path()), 1);
        assert!(said.contains(dir.path().to_str().unwrap()), "{said}");
    }
    fails(varve().arg("umount").arg(dir.path()), 1);
    fails(varve().arg("mount").arg(dir.path()).arg(dir.path()), 1);
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        0,
        "nothing is left in a directory that is no store"
    );
}

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
        assert!(said.contains("within one another"), "{said}");
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
    drop(held);
    wait_until_free(&mount);
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

#[test]
fn damage_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    run(varve().arg("format").arg(&store));
    run(varve().arg("fsck").arg(&store));
    let manifest = fs::read_dir(store.join("engine"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("MANIFEST-"))
        .unwrap();
    let mut bytes = fs::read(&manifest).unwrap();
    bytes[80] ^= 0x20;
    fs::write(&manifest, bytes).unwrap();
    let output = varve().args(["fsck", "--json"]).arg(&store).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let said = report["engine"]["errors"][0].as_str().unwrap();
    assert!(said.contains("MANIFEST-") && said.contains("offset"), "{said}");
}

#[test]
fn every_file_of_a_store_can_be_inspected() {
    let Some(mount) = Mount::new() else { return };
    fs::write(mount.path().join("small"), "x").unwrap();
    fs::write(mount.path().join("large"), vec![7; 200_000]).unwrap();
    mount.unmount();
    let mut inspected = 0;
    let mut pending = vec![mount.store()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
                continue;
            }
            run(varve().args(["inspect", "--rows"]).arg(&path));
            json(varve().args(["inspect", "--rows", "--json"]).arg(&path));
            inspected += 1;
        }
    }
    assert!(inspected >= 7, "superblock, lock, log, current, manifest, write-ahead log, object");
    fails(varve().arg("inspect").arg("/etc/passwd"), 1);
}

#[test]
fn mount_of_the_system_finds_the_helper() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (store, mount_point) = (dir.path().join("store"), dir.path().join("mnt"));
    fs::create_dir(&mount_point).unwrap();
    run(varve().arg("format").arg(&store));
    let helper = dir.path().join("mount.fuse.varve");
    symlink(env!("CARGO_BIN_EXE_varve"), &helper).unwrap();
    let helped = |options: &str| {
        let mut command = Command::new(&helper);
        command.arg(&store).arg(&mount_point).args(["-o", options]);
        command
    };
    fails(&mut helped("rw,nobarrier"), 32);
    run(helped("rw,nobarrier").arg("-sf"));
    run(&mut helped("rw,nofail,x-systemd.automount,noatime"));
    fs::write(mount_point.join("file"), "x").unwrap();
    run(varve().arg("umount").arg(&mount_point));
    fails(Command::new(&helper).arg(&store), 2);
}

/// `mount -o remount,ro` ended in "no such file": it runs the helper, which knew no `remount`. Through the
/// link of mount(8) and through libfuse's helper, which calls the program with a store in place of a verb.
#[test]
fn a_mount_becomes_read_only_while_in_use() {
    let Some(mount) = Mount::new() else { return };
    let helper = mount.store().with_file_name("mount.fuse.varve");
    symlink(env!("CARGO_BIN_EXE_varve"), &helper).unwrap();
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
    let elsewhere = tempfile::tempdir().unwrap();
    fails(
        Command::new(&helper).arg(mount.store()).arg(elsewhere.path()).args(["-o", "remount,ro"]),
        32,
    );
}

#[test]
fn the_model_chooses_within_the_memory_given() {
    let tune = |memory: &str| {
        let thesis = ["--costs", "thesis", "--mix", "update", "--json"];
        json(varve().args(["tune", "--rows", "613548032", "--memory", memory]).args(thesis))
    };
    let advice = tune("500M");
    let designs = advice["plan"]["designs"].as_array().unwrap();
    assert_eq!(designs.len(), 5);
    assert_eq!(designs[0]["layout"], "stepped");
    assert_eq!(designs[4]["layout"], "leveled");
    assert!(advice["plan"]["memory_bytes"].as_f64().unwrap() <= 500.0 * 1048576.0);
    assert_eq!(tune("0")["plan"]["memory_bytes"], 0.0);
    let text = run(varve().args(["tune", "--operations", "8", "1", "1"]));
    assert!(String::from_utf8_lossy(&text.stdout).contains("reads per operation"));
    fails(varve().args(["tune", "--operations", "0", "0", "0"]), 2);
}

#[test]
fn a_store_is_tuned_by_hand_or_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    run(varve().arg("format").arg(&store));
    let design = || {
        let status = json(varve().args(["status", "--json"]).arg(&store));
        let design = status["superblock"]["design"].clone();
        ["compaction", "filter", "filtered_levels", "tuning"]
            .map(|part| design[part].as_str().unwrap().to_owned())
    };
    let untouched = design();
    json(varve().arg("tune").arg(&store).arg("--json"));
    assert_eq!(design(), untouched);
    // Hardly any rows and no memory: one level without filters.
    run(varve().arg("tune").arg(&store).args(["--memory", "0", "--apply"]));
    assert_eq!(design(), ["leveled", "fuse", "0", "fixed"]);
    run(varve().arg("tune").arg(&store).arg("--auto"));
    assert_eq!(design(), ["leveled", "fuse", "0", "auto"]);
    run(varve().arg("tune").arg(&store).arg("--apply"));
    assert_eq!(design(), ["leveled", "fuse", "all", "fixed"]);
    fails(varve().args(["tune", "--apply"]), 2);
    fails(varve().args(["tune", "/nowhere/at/all"]), 1);
}

#[test]
fn completions_and_manual_pages_are_complete() {
    let script = run(varve().args(["completions", "bash"]));
    assert!(String::from_utf8_lossy(&script.stdout).contains("large-file-threshold"));
    let dir = tempfile::tempdir().unwrap();
    run(varve().arg("man").arg(dir.path()));
    for page in ["varve.1", "varve-mount.1", "varve-fsck.1"] {
        assert!(fs::read_to_string(dir.path().join(page)).unwrap().contains(".TH"), "{page}");
    }
}

#[test]
fn the_demonstration_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let figures = json(
        varve().args(["demo", "--files", "300", "--dirs", "3", "--json"]).env("TMPDIR", dir.path()),
    );
    assert_eq!(figures["rows"].as_array().unwrap().len(), 11);
    assert!(figures["files_compared"].as_u64().unwrap() > 150);
    if can_mount() {
        assert!(figures["method"].is_string(), "{figures}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Waits until no process has the store open.
fn wait_until_free(mount: &Mount) {
    eventually("the daemon lets go", || {
        json(varve().args(["status", "--json"]).arg(mount.store()))["holder"].is_null()
    });
}

/// Who knows the key of the name hash can make names that share a hash; the status is for everybody.
#[test]
fn the_status_keeps_the_key_of_the_name_hash() {
    let Some(mount) = Mount::new() else { return };
    let superblock = std::fs::read_to_string(mount.store().join("VARVE")).unwrap();
    let line = superblock.lines().next().unwrap();
    let superblock: serde_json::Value = serde_json::from_str(line).unwrap();
    let key = superblock["name_hash_key"].as_str().unwrap();
    assert_eq!(key.len(), 32);
    for place in [mount.path(), mount.store()] {
        let output = run(varve().arg("status").arg("--json").arg(place));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains(superblock["uuid"].as_str().unwrap()) && !text.contains(key));
    }
    let mut status = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(mount.path(), "user.varve.status", &mut status[..]).unwrap();
    assert!(!String::from_utf8_lossy(&status[..len]).contains(key));
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
