//! Targets that are made, mounted and taken away. Each test says so and passes where the machine cannot: without
//! root, loop devices, a program that makes the file system, /dev/fuse, or `varve` beside this program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{bench, phases, report};
use varve_testkit::skipped;

/// Whether root may make loop devices.
fn may_loop() -> bool {
    let control = fs::OpenOptions::new().read(true).write(true).open("/dev/loop-control");
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    control.is_ok() && status.lines().any(|line| line.starts_with("Uid:\t0\t"))
}

/// Whether Varve can be mounted.
fn may_mount() -> bool {
    let varve = Path::new(env!("CARGO_BIN_EXE_varve-bench")).with_file_name("varve");
    varve.exists() && fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok()
}

/// Those of some targets that can be made here.
pub(crate) fn possible(targets: &[&'static str]) -> Vec<&'static str> {
    let program =
        |name: &str| Command::new("sh").args(["-c", &format!("command -v {name}")]).output();
    let is_possible = |target: &&str| match *target {
        "varve" | "served" => may_loop() && may_mount(),
        "library" => may_loop(),
        kind => {
            may_loop() && program(&format!("mkfs.{kind}")).is_ok_and(|out| out.status.success())
        }
    };
    let (left, out) =
        targets.iter().partition::<Vec<&'static str>, _>(|target| is_possible(target));
    if !out.is_empty() {
        skipped(&format!("{out:?} cannot be made here"));
    }
    left
}

/// The loop devices whose image lies below `dir`.
fn loops(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for device in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let image = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        if image.starts_with(&dir.to_string_lossy().into_owned()) {
            found.push(device.path());
        }
    }
    found
}

#[test]
fn targets_are_made_remounted_and_taken_away() {
    let targets = possible(&["ext4", "xfs", "btrfs", "varve", "served", "library"]);
    let Some(first) = targets.first() else { return };
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut args = vec!["compare", "--rounds", "1", "--json", "--image-size", "400M", "-t", first];
    args.extend(targets[1..].iter().flat_map(|target| ["-t", target]));
    args.extend(["slimfs", "--files", "500", "--per-dir", "10"]);
    let found = report(dir.path(), &args);
    assert_eq!(phases(&found)[1], ("create".to_owned(), 500, targets.len()));
    let targets = found["phases"][1]["targets"].as_array().expect("targets");
    for target in targets {
        let round = &target["rounds"][0];
        assert!(round["device"]["written_bytes"].as_u64() > Some(0), "{target}");
        assert!(
            round["space_bytes"].is_u64() && round["slab_bytes"].as_u64() > Some(0),
            "{target}"
        );
        let is_served = ["varve", "served", "library"].iter().any(|name| target["target"] == *name);
        assert_eq!(round["memory_peak_bytes"].is_u64(), is_served, "{target}");
        assert_eq!(round["daemon_cpu_us"].is_f64(), is_served, "{target}");
        // What closing a store, or unmounting any other, writes before a phase that begins cold was not counted at all.
        assert!(round["later_written_bytes"].as_u64() > Some(4096), "{target}");
        assert!(target["direct_io"].is_boolean(), "{target}");
        assert_eq!(target["write_amplification"].as_f64() > Some(0.0), is_served, "{target}");
        assert!(round["opening"].is_null(), "creating begins with what is in memory: {target}");
    }
    // What it takes to read a store's log again, before a phase that begins cold, was not told.
    for target in found["phases"][2]["targets"].as_array().expect("targets") {
        let opening = &target["rounds"][0]["opening"];
        assert!(opening["seconds"].as_f64() > Some(0.0), "{target}");
        assert!(opening["read_bytes"].as_u64() > Some(0), "{target}");
    }
    // The kernel keeps a device that was let go of as long as anybody has it open, as one that looks for a free device does.
    varve_testkit::eventually("no device is left", || loops(dir.path()).is_empty());
}

/// What an unmount lost after the last phase was not looked at.
#[test]
fn a_file_that_is_lost_by_the_last_unmount_is_found() {
    if possible(&["varve"]).is_empty() {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let varve = Path::new(env!("CARGO_BIN_EXE_varve-bench")).with_file_name("varve");
    let mounts = dir.path().join("mounts");
    // The second mount is that at the end.
    let script = format!(
        "#!/bin/sh\nVARVE='{}'\nMOUNTS='{}'\n[ \"$1\" = mount ] && echo >>\"$MOUNTS\"\n\
         if [ \"$1\" = mount ] && [ \"$(wc -l <\"$MOUNTS\")\" = 2 ]; then\n\
         for at; do store=$dir; dir=$at; done\n\
         mkdir \"$dir.aside\" && \"$VARVE\" mount \"$store\" \"$dir.aside\" &&\n\
         (cd \"$dir.aside\" && rm work/d*/f*0) && \"$VARVE\" umount \"$dir.aside\"\nfi\n\
         exec \"$VARVE\" \"$@\"",
        varve.display(),
        mounts.display()
    );
    let wrapper = dir.path().join("wrapper");
    varve_testkit::put_script(&wrapper, &script);
    let wrapper = wrapper.to_str().expect("a path of text");
    let args = ["compare", "--rounds", "1", "--image-size", "64M", "--varve", wrapper];
    let workload = ["--until", "create", "-t", "varve", "mdtest", "--files", "20", "--dirs", "1"];
    let output = bench(dir.path(), &[&args[..], &workload].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
    assert!(said.contains("brought back at the end: check failed"), "{said}");
}

/// Whether a mount had got the transport that was asked for was not told.
#[test]
fn a_mount_tells_how_requests_travel() {
    if possible(&["varve"]).is_empty() {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let args = ["compare", "--rounds", "1", "--warm", "--json", "--image-size", "64M"];
    let workload =
        ["--until", "create", "-t", "varve:dev", "mdtest", "--files", "10", "--dirs", "1"];
    let found = report(dir.path(), &[&args[..], &workload].concat());
    let session = &found["phases"][1]["targets"][0]["sessions"][0];
    assert_eq!(session["transport"], "/dev/fuse", "{found}");
    assert!(found["setup"]["varve"].as_str().is_some_and(|said| said.starts_with("varve ")));
}

/// It was at the disk's full speed beside those that were held down.
#[test]
fn a_target_whose_disk_cannot_be_held_down_is_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().to_str().expect("a path of text");
    let output = bench(dir.path(), &["compare", "--iops", "50", "-t", path, "mdtest"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("hint: leave out --iops"), "{said}");
}

/// A hundred reads cannot take less than a second of a disk that answers fifty in each.
#[test]
fn a_disk_is_held_down_for_the_run() {
    let limits = || fs::read_to_string("/sys/fs/cgroup/blkio/blkio.throttle.read_iops_device");
    let Ok(before) = limits() else {
        return skipped("there is no blkio controller of control groups, version 1");
    };
    if possible(&["ext4"]).is_empty() {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let args =
        ["compare", "--rounds", "1", "--json", "--image-size", "64M", "--filled", "--iops", "50"];
    let workload = ["-t", "ext4", "streams", "--size", "4M", "--operations", "100"];
    let found = report(dir.path(), &[&args[..], &workload].concat());
    let phases = found["phases"].as_array().expect("phases");
    let reads = phases.iter().find(|phase| phase["phase"] == "random read").expect("the phase");
    let seconds = reads["targets"][0]["rounds"][0]["seconds"].as_f64();
    assert!(seconds > Some(1.0), "{seconds:?}");
    assert_eq!((&found["setup"]["iops"], &found["setup"]["filled"]), (&50.into(), &true.into()));
    varve_testkit::eventually("no device is left", || loops(dir.path()).is_empty());
    assert_eq!(limits().expect("it stays"), before);
}

/// A loop device that goes through the page cache passed for one that does not.
#[test]
fn a_device_within_the_page_cache_is_told() {
    if possible(&["ext4"]).is_empty() {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    // The mount goes with its namespace.
    let script = "mount -t ramfs none \"$1\" && exec \"$0\" compare --rounds 1 --warm --image-size 64M --base \"$1\" \
         -t ext4 mdtest --files 10 --dirs 1";
    let mut run = Command::new("unshare");
    run.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    run.arg(env!("CARGO_BIN_EXE_varve-bench")).arg(dir.path());
    let output = run.output().expect("unshare runs");
    let (table, said) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    let expected = "the loop device goes through the page cache";
    assert!(
        String::from_utf8_lossy(&table).contains(expected) && said.contains(expected),
        "{said}"
    );
}

#[test]
fn a_killed_run_leaves_no_mount_device_or_daemon() {
    // What is killed while the daemon starts must go as well.
    killed_leaves_nothing(&[], &FILES, None);
}

/// Workers went on to the end of their phase, and kept mount, device and image.
#[test]
fn a_killed_run_leaves_no_worker_processes() {
    killed_leaves_nothing(&["--processes", "--workers", "2"], &FILES, Some("d00000"));
}

/// Scripts went on, and what they had started, and kept all of that, too.
#[test]
fn a_killed_run_leaves_no_scripts() {
    let script = "x=mkdir up; touch up/now; (sleep 600); true";
    killed_leaves_nothing(&[], &["script", script], Some("up"));
}

const FILES: [&str; 5] = ["mdtest", "--files", "1000", "--dirs", "2"];

/// Kills a run of `workload` while its daemon is being started, or once there is something in the directory `up` of the target.
fn killed_leaves_nothing(more: &[&str], workload: &[&str], up: Option<&str>) {
    if possible(&["varve"]).is_empty() {
        return;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut child = Command::new(env!("CARGO_BIN_EXE_varve-bench"))
        .args([
            "compare",
            "--rounds",
            "1",
            "--warm",
            "--image-size",
            "400M",
            "--rate",
            "5",
            "--base",
        ])
        .arg(dir.path())
        .args(more)
        .args(["-t", "varve"])
        .args(workload)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let scratch = || fs::read_dir(dir.path()).ok()?.flatten().next().map(|it| it.path());
    let working = || {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|it| it.path());
        let below = format!("{}/", dir.path().display());
        let works = |process: &PathBuf| {
            fs::read_to_string(process.join("cmdline")).is_ok_and(|line| line.contains(&below))
        };
        processes.filter(works).collect::<Vec<PathBuf>>()
    };
    // The mount is there for the run's own processes alone.
    let has_files = |up: &str| {
        let files = scratch().unwrap_or_default().join("varve/work").join(up);
        let seen = |process: &PathBuf| {
            process.join("root").join(files.strip_prefix("/").ok()?).read_dir().ok()?.next()
        };
        working().iter().any(|process| seen(process).is_some())
    };
    let is_started = || scratch().is_some_and(|it| it.join("varve.log").exists());
    let wait = |done: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !done() && begin.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        done()
    };
    let is_up = wait(&|| loops(dir.path()).len() == 1 && up.map_or_else(is_started, has_files));
    child.kill().expect("it is killed");
    child.wait().expect("it ends");
    let image = scratch().expect("the directory of the run").join("image");
    let is_gone = wait(&|| loops(dir.path()).is_empty() && working().is_empty() && !image.exists());
    assert!(is_up && is_gone, "up {is_up}, gone {is_gone}, {:?}", working());
}
