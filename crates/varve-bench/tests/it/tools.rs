//! What is beside comparisons: trees, charts, memory held down.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{bench, report};
use varve_testkit::{eventually, skipped};

#[test]
fn a_generated_tree_has_the_statistics_that_were_asked_for() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let tree = dir.path().to_str().expect("a path of text");
    let make = ["generate", tree, "--files", "2000", "--size-median", "1K", "--size-max", "64K"];
    assert!(bench(dir.path(), &make).status.success());
    assert!(!bench(dir.path(), &make).status.success(), "it is not empty any more");
    let found = report(dir.path(), &["fsstats", tree, "--json"]);
    let found = |property: &str, value: &str| {
        found["statistics"][property][value]
            .as_f64()
            .unwrap_or_else(|| panic!("{property} {value}"))
    };
    assert_eq!(found("bytes_of_files", "count"), 2000.0);
    assert_eq!(found("depth_of_directories", "count"), 181.0);
    assert!((850.0..1200.0).contains(&found("bytes_of_files", "p50")));
    assert!((65_536.0..67_000.0).contains(&found("bytes_of_files", "max")));
    assert!(found("names_in_directories", "p50") < 8.0);
    assert!(found("names_in_directories", "max") > 200.0);
    assert!(found("depth_of_directories", "p50") >= 2.0);
    let table = bench(dir.path(), &["fsstats", tree]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("2000 files of"));
}

#[test]
fn a_tree_that_is_made_takes_the_ids_of_the_one_thought_up() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (tree, plots) = (dir.path().join("tree"), dir.path().join("plots"));
    fs::create_dir(&tree).expect("directory");
    let (tree, plots) = (tree.to_str().expect("text"), plots.to_str().expect("text"));
    let make = ["generate", tree, "--files", "2000", "--size-max", "1K", "--seed", "5"];
    assert!(bench(dir.path(), &make).status.success());
    let made = report(dir.path(), &["ids", tree, "--json", "--plots", plots]);
    let thought = report(dir.path(), &["ids", "--generate", "2000", "--seed", "5", "--json"]);
    // Which of the directories of one directory comes first is not the same.
    assert_eq!(made["properties"], thought["properties"]);
    assert_eq!(made["objects_by_id_bits"], thought["objects_by_id_bits"]);
    assert_eq!(made["variable_slots"], thought["variable_slots"]);
    assert_eq!(made["properties"]["files"], 2000);
    let svg = fs::read_to_string(dir.path().join("plots/id-bits.svg")).expect("a chart");
    assert!(svg.contains("<polyline points=\""), "{svg}");
    let table = bench(dir.path(), &["ids", tree]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("(table 4.4)"));
    let refused = bench(dir.path(), &["ids", "/etc/hostname"]);
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && error.contains("/etc/hostname: this is no dump"),
        "{error}"
    );
}

#[test]
fn a_trace_is_made_shown_and_analysed() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let (log, trace, plots) = (path("log"), path("trace"), path("plots"));
    fs::write(
        &log,
        "1 1.000001 mkdir(\"/d\", 0777) = 0\n1 1.5 creat(\"/d/f\", 0644) = 3 <0.000020>\n\
         1 2.0 rename(\"/d/f\", \"/e/g\") = 0\n1 2.1 stat(\"/e/g\", {}) = 0\nhello\n",
    )
    .expect("log");
    let import = ["trace", "import", "--from", "strace", &log, &trace];
    let imported = bench(dir.path(), &import);
    assert!(imported.status.success());
    assert!(String::from_utf8_lossy(&imported.stdout).starts_with("4 operations out of 5 lines"));
    assert!(!bench(dir.path(), &import).status.success(), "it is there already");
    let shown = bench(dir.path(), &["trace", "show", &trace]);
    assert_eq!(
        String::from_utf8_lossy(&shown.stdout),
        "1.000001 1 mkdir 1/d = 2/\n1.500000 1 create 2/f = 3 20 us\n2.000000 0 known 1/e = 4/\n\
         2.000000 1 rename 2/f -> 4/g = 3\n2.100000 1 getattr 4/g = 3\n"
    );
    let found = report(dir.path(), &["trace", "analyze", &trace, "--json", "--plots", &plots]);
    assert_eq!(
        (&found["operations"], &found["changed_together"]["near_renames"]),
        (&4.into(), &1.into())
    );
    for chart in ["mix.svg", "rate.svg", "popularity.svg"] {
        assert!(fs::read_to_string(dir.path().join("plots").join(chart)).is_ok(), "{chart}");
    }
    let ids = report(dir.path(), &["ids", &trace, "--json"]);
    assert_eq!(
        (&ids["properties"]["files"], &ids["properties"]["directories"]),
        (&1.into(), &3.into())
    );
    let bytes = fs::read(&trace).expect("trace");
    fs::write(&trace, &bytes[..bytes.len() - 3]).expect("cut");
    let cut = bench(dir.path(), &["trace", "analyze", &trace]);
    let said = String::from_utf8_lossy(&cut.stderr);
    assert!(cut.status.success() && said.contains("ends in the middle of a frame"), "{said}");
    fs::write(&trace, "varvetrc\x01\x05\0\0\0abcdefghi").expect("damaged");
    let damaged = bench(dir.path(), &["trace", "analyze", &trace]);
    let said = String::from_utf8_lossy(&damaged.stderr);
    assert!(!damaged.status.success() && said.contains("frame 0 at offset 9 is damaged"), "{said}");
    let generated = path("generated");
    let generate = [
        "trace",
        "generate",
        "--mix",
        "eecs",
        "--files",
        "1000",
        "--operations",
        "5000",
        &generated,
    ];
    assert!(bench(dir.path(), &generate).status.success());
    assert_eq!(report(dir.path(), &["trace", "analyze", &generated, "--json"])["operations"], 5000);
}

#[test]
fn charts_and_tables_are_made() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let (path, plots) = (dir.path().join("here"), dir.path().join("plots"));
    fs::create_dir(&path).expect("directory");
    let (path, into) = (path.to_str().expect("text"), plots.to_str().expect("text"));
    let course =
        ["compare", "--rounds", "2", "--warm", "--step", "20", "-t", path, "--plots", into];
    let output =
        bench(dir.path(), &[&course[..], &["mdtest", "--files", "100", "--dirs", "1"]].concat());
    let table = String::from_utf8_lossy(&output.stdout);
    let phase = "create: 100 operations, 2 rounds, workers: 1, warm";
    let setup = "CPUs: --rounds 2 --image-size 65536M --warm\n";
    assert!(table.contains(phase) && table.contains(setup), "{table}");
    assert!(table.contains("  slab "), "the kernel serves a directory: {table}");
    assert!(table.contains("operations per second, by 20 operations"), "{table}");
    for chart in ["create-rate.svg", "create-latency.svg", "ls--l-latency.svg"] {
        let svg = fs::read_to_string(plots.join(chart)).expect("a chart");
        assert!(svg.starts_with("<svg") && svg.contains("<polyline points=\""), "{chart}");
    }
}

/// The process that gives huge pages back for the run `run`, once it has its own name.
fn keeper_of(run: u32) -> Option<Pid> {
    let parent = format!("PPid:\t{run}\n");
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    processes.map(|process| process.path()).find_map(|process| {
        let read = |name: &str| fs::read_to_string(process.join(name)).unwrap_or_default();
        let is_it = read("status").contains(&parent) && read("cmdline").contains("give-back");
        let id = process.file_name()?.to_str()?.parse().ok()?;
        Pid::from_raw(id).filter(|_| is_it && read("comm") == "give-back\n")
    })
}

/// Huge pages are given back although nobody is left to give them back; they stayed reserved where who outlives the run was killed
/// before it, as by the name of both.
#[test]
fn memory_is_given_back_whoever_of_both_is_left() {
    const PAGES: &str = "/proc/sys/vm/nr_hugepages";
    let pages = || fs::read_to_string(PAGES).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let meminfo = fs::read_to_string("/proc/meminfo").expect("meminfo");
    let kib = |field: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(field));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let page = kib("Hugepagesize:");
    let writable = pages().is_some_and(|before| fs::write(PAGES, before.to_string()).is_ok());
    if page == 0 || !writable {
        skipped("huge pages are not ours to reserve");
        return;
    }
    let before = pages().expect("a number");
    let left = format!("{}K", kib("MemTotal:") - kib("Hugetlb:") - 2 * page);
    let wait_for = |wanted: u64| {
        let begin = Instant::now();
        while pages() != Some(wanted) && begin.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        pages()
    };
    for is_keeper_killed in [false, true] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut child = Command::new(env!("CARGO_BIN_EXE_varve-bench"))
            .args(["compare", "--rounds", "1", "--warm", "--rate", "1", "--memory", &left, "-t"])
            .arg(dir.path())
            .args(["mdtest", "--files", "1000", "--dirs", "1"])
            .stdout(Stdio::null())
            .spawn()
            .expect("the program starts");
        let held = wait_for(before + 2);
        let mut keeper = None;
        eventually("a keeper has its name", || {
            keeper = keeper_of(child.id());
            keeper.is_some()
        });
        let keeper = keeper.expect("a keeper");
        if is_keeper_killed {
            kill_process(keeper, Signal::KILL).expect("it is killed");
            kill_process(Pid::from_child(&child), Signal::TERM).expect("it is told");
        } else {
            child.kill().expect("it is killed");
        }
        child.wait().expect("it ends");
        let after = wait_for(before);
        assert_eq!((held, after), (Some(before + 2), Some(before)), "{is_keeper_killed}");
    }
}

/// A run whose figures could not be written panicked, and had written no charts.
#[test]
fn charts_are_written_though_figures_cannot_be() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let plots = dir.path().join("plots");
    let run = |out: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_varve-bench"));
        command.args(["compare", "--rounds", "1", "--warm", "--until", "create", "--json", "-t"]);
        command.arg(dir.path()).arg("--plots").arg(&plots);
        command.args(["mdtest", "--files", "10", "--dirs", "1"]);
        let output = command.stdout(out).output().expect("the program starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let full = fs::File::options().write(true).open("/dev/full").expect("a full device");
    let (status, said) = run(full.into());
    assert!(status == Some(1) && said.contains("cannot write to the standard output"), "{said}");
    assert!(plots.join("create-rate.svg").exists());
    // Who reads no more has what it wanted.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let (status, said) = run(writer.into());
    assert_eq!(status, Some(0), "{said}");
}
