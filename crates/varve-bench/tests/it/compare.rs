//! Each workload on a directory and on the library.

use serde_json::Value;

use crate::support::{bench, compare, phases, program, report};

/// The phases of a workload and their operations, on a directory and the library.
fn counts(workload: &[&str]) -> Vec<(String, u64)> {
    counted(workload).1
}

/// The report besides.
fn counted(workload: &[&str]) -> (Value, Vec<(String, u64)>) {
    let report = compare(workload);
    let phases = phases(&report);
    assert!(phases.iter().all(|(_, _, targets)| *targets == 2));
    (report, phases.into_iter().map(|(name, count, _)| (name, count)).collect())
}

fn named(counts: &[(&str, u64)]) -> Vec<(String, u64)> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn mdtest() {
    let found = counts(&["mdtest", "--files", "100", "--dirs", "3", "--size-max", "70K"]);
    let files = ["create", "stat cold", "stat cached", "readdir", "ls -l", "read cold"];
    let mut expected = vec![("mkdir", 3)];
    expected.extend(files.map(|name| (name, 100)));
    expected.extend(["chmod", "utime", "rename", "unlink"].map(|name| (name, 100)));
    let dirs = ["create", "stat", "readdir", "ls -l", "chmod", "utime", "rename", "remove"];
    let dirs = dirs.map(|name| format!("dir {name}"));
    expected.extend(dirs.each_ref().map(|name| (&**name, 25)));
    expected.push(("rmdir", 3));
    assert_eq!(found, named(&expected));
}

#[test]
fn namespace() {
    let found = counts(&["namespace", "--files", "330", "--sizes", "mixed"]);
    let count = |name: &str| found.iter().find(|(found, _)| found == name).map(|found| found.1);
    assert_eq!((count("mkdir"), count("create"), count("query")), (Some(29), Some(330), Some(330)));
    assert_eq!((count("rename"), count("delete")), (Some(165), Some(165)));
    assert!(count("readdir") == count("readdir+read") && count("readdir") > Some(0));
}

#[test]
fn slimfs() {
    let found = counts(&["slimfs", "--files", "300", "--per-dir", "16", "--stats", "50"]);
    assert_eq!(found, named(&[("mkdir", 20), ("create", 300), ("stat", 50)]));
}

#[test]
fn postmark() {
    let report = compare(&["postmark", "--files", "100", "--dirs", "5"]);
    let target = &report["phases"][2]["targets"][1];
    let kinds = target["kinds"].as_object().expect("kinds of operations");
    assert_eq!(kinds.keys().collect::<Vec<_>>(), ["append", "create", "delete", "read"]);
    let counts = kinds.values().map(|kind| kind["count"].as_u64().expect("a count"));
    assert_eq!(Some(counts.sum()), target["rounds"][0]["count"].as_u64());
    let median = |of: &Value| of["latency_us"]["p50"].as_f64().expect("a median");
    let medians = kinds.values().map(median);
    assert!(medians.clone().fold(f64::MAX, f64::min) <= median(target));
    assert!(medians.fold(0.0, f64::max) >= median(target));
    let found: Vec<(String, u64)> =
        phases(&report).into_iter().map(|(name, count, _)| (name, count)).collect();
    assert_eq!(found[..3], named(&[("mkdir", 6), ("create", 100), ("transactions", 400)]));
}

#[test]
fn streams() {
    let found = counts(&["streams", "--size", "1M", "--operations", "20"]);
    let expected = [
        ("sequential write", 66),
        ("sequential write, after others", 7 * 66),
        ("sequential read", 64),
        ("random read", 20),
        ("random write", 21),
    ];
    assert_eq!(found, named(&expected));
}

#[test]
fn servers() {
    for (server, workers) in [("file", 10), ("video", 49), ("mail", 16), ("web", 110)] {
        let mix = ["mix", server, "--files", "200", "--turns", "120", "--video-size", "1M"];
        let (report, found) = counted(&mix);
        assert!(found[2].0 == "serve" && found[2].1 >= 110, "{server}: {found:?}");
        assert_eq!(report["phases"][2]["workers"], workers, "{server}");
    }
}

#[test]
fn build() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().to_str().expect("a path of text");
    let script = "mkdir src && echo 'all: ; echo made > out' > src/Makefile && tar -cf src.tar src";
    let made = std::process::Command::new("sh").args(["-c", script]).current_dir(path).status();
    assert!(made.expect("sh starts").success());
    let tarball = format!("{path}/src.tar");
    let course = ["compare", "--rounds", "1", "--warm", "--json", "-t", path];
    let found =
        report(dir.path(), &[&course[..], &["build", &tarball, "--make", "make -s"]].concat());
    let names: Vec<String> = phases(&found).into_iter().map(|phase| phase.0).collect();
    let expected = ["untar", "grep", "make", "gzip", "copy", "commit", "status", "clone", "remove"];
    assert_eq!(names, expected);
    // Programs do not run in a library, and a script that fails fails the run.
    let library = format!("library@{path}");
    let course = ["compare", "--rounds", "1", "--warm", "-t", &library, "build", &tarball];
    assert!(!bench(dir.path(), &course).status.success());
    let course =
        ["compare", "--rounds", "1", "--warm", "-t", path, "build", &tarball, "--make", "false"];
    assert!(!bench(dir.path(), &course).status.success());
}

/// Errors of grep, git and tar passed for their success.
#[test]
fn programs_that_fail_fail_the_build() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().to_str().expect("a path of text");
    let script = "mkdir src tools && echo made > src/file && tar -cf src.tar src";
    let made = std::process::Command::new("sh").args(["-c", script]).current_dir(path).status();
    assert!(made.expect("sh starts").success());
    let (tarball, tool) =
        (format!("{path}/src.tar"), |name: &str| dir.path().join("tools").join(name));
    let before = std::env::var("PATH").expect("a search path");
    let run = || {
        let course = ["compare", "--rounds", "1", "--warm", "-t", path];
        let build = ["build", &tarball, "--make", "true"];
        let mut run = program(dir.path(), &[&course[..], &build].concat());
        run.env("PATH", format!("{path}/tools:{before}")).output().expect("the program starts")
    };
    for (name, fails, phase) in [
        ("grep", "true", "grep"),
        ("tar", "[ \"$1\" = -cf ] && $REAL \"$@\"", "gzip"),
        // Only when it is checked.
        (
            "git",
            "case \" $* \" in *' status '*) [ -e \"$0.1\" ] || ! : >\"$0.1\";; *) false;; esac",
            "status",
        ),
    ] {
        let find =
            std::process::Command::new("sh").args(["-c", "command -v \"$0\"", name]).output();
        let real = String::from_utf8(find.expect("sh starts").stdout).expect("a path of text");
        let real = real.trim();
        let script =
            format!("#!/bin/sh\nREAL={real}\nif {fails}; then exit 2; fi\nexec $REAL \"$@\"");
        varve_testkit::put_script(tool(name), &script);
        let output = run();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(&format!("{phase}: ")), "{name}: {said}");
        std::fs::remove_file(tool(name)).expect("it goes");
    }
    let output = run();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn scripts() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().to_str().expect("a path of text");
    let course = ["compare", "--rounds", "1", "--warm", "-t", path, "script"];
    let given = ["write=echo text > made", "read=grep -q text made"];
    let found = report(dir.path(), &[&course[..1], &["--json"], &course[1..], &given].concat());
    let names: Vec<String> = phases(&found).into_iter().map(|phase| phase.0).collect();
    assert_eq!(names, ["write", "read"]);
    for refused in [&["read=test -e made"][..], &["no name"], &["one=true", "one=true"]] {
        assert!(!bench(dir.path(), &[&course[..], refused].concat()).status.success());
    }
}

#[test]
fn workers_may_be_processes_and_share_directories() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().to_str().expect("a path of text");
    let course = ["compare", "--rounds", "2", "--warm", "--json", "-t", path, "--workers", "3"];
    let mdtest = ["mdtest", "--files", "100", "--dirs"];
    for more in [&["--processes"][..], &[]] {
        // Workers that share directories list each of them.
        for (dirs, listings) in [(&["1", "--shared"][..], 3), (&["6"], 1)] {
            let found = report(dir.path(), &[&course[..], more, &mdtest, dirs].concat());
            assert_eq!(
                found["phases"][0]["targets"][0]["rounds"].as_array().map(Vec::len),
                Some(2)
            );
            let found = phases(&found);
            let count = |name: &str| found.iter().find(|it| it.0 == name).map(|it| it.1);
            assert!(found.iter().filter(|phase| phase.1 == 100).count() >= 7);
            assert_eq!(count("readdir"), Some(100 * listings));
            assert_eq!(count("dir ls -l"), Some(25 * listings));
        }
    }
    let output = bench(dir.path(), &[&course[..], &mdtest, &["4"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("hint: give --dirs 6, or --shared"),
        "{said}"
    );
    let alone = ["compare", "--warm", "-t", path, "--workers", "1", "mix", "video"];
    let output = bench(dir.path(), &alone);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("hint: give --workers 2"), "{said}");
}

#[test]
fn a_phase_whose_time_is_over_is_told_as_far_as_it_came() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().to_str().expect("a path of text");
    let course = ["compare", "--warm", "-t", path, "--rate", "50", "--for", "1s"];
    let mdtest = ["mdtest", "--files", "1000", "--dirs", "1", "--size-min", "10"];
    let found = report(dir.path(), &[&course[..], &["--json", "--rounds", "2"], &mdtest].concat());
    assert_eq!(found["setup"]["limit_seconds"], 1);
    let rounds = |phase: usize| {
        let rounds = found["phases"][phase]["targets"][0]["rounds"].as_array().expect("rounds");
        rounds
            .iter()
            .map(|it| (it["count"].as_u64(), it["ended_early"].as_bool()))
            .collect::<Vec<_>>()
    };
    assert_eq!(rounds(0), [(Some(1), Some(false)); 2]);
    for (count, ended_early) in rounds(1) {
        assert!(
            (1..=51).contains(&count.expect("a count")) && ended_early == Some(true),
            "{count:?}"
        );
    }
    assert_eq!(rounds(2), [], "later phases are about what is not there");
    let output = bench(dir.path(), &[&course[..], &["--rounds", "1"], &mdtest].concat());
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains(": ended after ") && !table.contains("stat cold"), "{table}");
}

#[test]
fn a_rate_is_kept_and_runs_end_where_they_are_told() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().to_str().expect("a path of text");
    let course = ["compare", "--rounds", "1", "--warm", "--json", "-t", path];
    let paced = ["--rate", "1000", "--until", "create", "mdtest", "--files", "200"];
    let found = report(dir.path(), &[&course[..], &paced].concat());
    assert_eq!(phases(&found).len(), 2);
    let rate = found["phases"][1]["targets"][0]["per_second"]["median"].as_f64().expect("a rate");
    assert!((1.0..1010.0).contains(&rate), "{rate}");
    assert_eq!((&found["setup"]["rate"], &found["setup"]["rounds"]), (&1000.0.into(), &1.into()));
    assert_eq!(
        (&found["setup"]["warm"], &found["phases"][1]["workers"]),
        (&true.into(), &1.into())
    );
    assert_eq!(found["setup"]["until"], "create");
    assert!(found["setup"]["machine"]["cpus"].as_u64() > Some(0), "{}", found["setup"]);
    let target = &found["phases"][1]["targets"][0];
    assert!(target["ratio"] == 1.0 && target["write_amplification"].is_null(), "{target}");
    let steps = target["latency_steps"].as_array().expect("steps");
    assert_eq!(steps.iter().filter_map(|step| step["count"].as_u64()).sum::<u64>(), 200);
    let round = &target["rounds"][0];
    assert!(round["seconds"].as_f64() > Some(0.19) && found["seconds"].as_f64() > Some(0.19));
    assert!(round["daemon_cpu_us"].is_null(), "the kernel serves a directory: {round}");
}

/// What was wrong with the last target, or with where charts go, was found when all others had been measured.
#[test]
fn what_can_be_known_before_is_said_before() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().to_str().expect("a path of text");
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("a file");
    let charts = format!("{}/charts", file.display());
    let mdtest = ["mdtest", "--files", "10", "--dirs", "1"];
    let mistakes: [(&[&str], &[&str], &str); 6] = [
        (&["-t", "library:uring"], &mdtest, "the library has no option uring"),
        (&["-t", "library", "--processes"], &mdtest, "--processes, which needs a mount"),
        (&["-t", "library"], &["script", "a=true"], "the workload runs programs"),
        (&["-t", "null", "--null", "/"], &mdtest, "--example null"),
        (&["-t", "varve", "--varve", "/"], &mdtest, "-p varve-cli --bins"),
        (&["--plots", &charts], &mdtest, &charts),
    ];
    for (mistake, workload, expected) in mistakes {
        let course = ["compare", "--warm", "-t", path];
        let output = bench(dir.path(), &[&course, mistake, workload].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{mistake:?}: {said}");
        assert!(!said.contains("round 1"), "{mistake:?}: {said}");
    }
}

#[test]
fn what_is_printed_may_be_said_behind_the_workload() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().to_str().expect("a path of text");
    let course = ["compare", "--warm", "--rounds", "1", "-t", path];
    let workload = ["mdtest", "--files", "10", "--dirs", "1", "--json"];
    let found = report(dir.path(), &[&course[..], &workload].concat());
    assert_eq!(phases(&found)[1].1, 10);
}
