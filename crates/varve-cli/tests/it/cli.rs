//! The command line: what it says, and its exit statuses.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use varve_testkit::Command;

use crate::harness::{Mount, fails, json, run, stderr, told_a_terminal, varve, without_namespaces};

/// A store was checked, which may take hours, before it turned out that nobody could be asked; and with `--json` who was asked had not seen
/// about what.
#[test]
fn a_repair_that_cannot_ask_is_refused_before_it_checks() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    run(varve().arg("format").arg(&store));
    let said = fails(varve().args(["fsck", "--repair"]).arg(&store).stdin(Stdio::null()), 2);
    assert!(said.contains("hint: add --yes"), "{said}");
    let store = store.to_str().unwrap();
    refused_at_a_terminal(dir.path(), &["fsck", "--repair", "--json", store], "add --yes");
}

/// Runs varve in `dir` with `words` at a terminal where nobody types: it must refuse, with `why`.
fn refused_at_a_terminal(dir: &Path, words: &[&str], why: &str) {
    let Some(told) = told_a_terminal(dir, words, 2) else { return };
    assert!(told.contains(why), "{words:?}: {told:?}");
}

/// Who received a snapshot at a terminal waited for what nobody typed.
#[test]
fn what_is_no_text_is_not_read_from_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    run(varve().arg("format").arg(dir.path().join("store")));
    run(varve().args(["kv", "create"]).arg(dir.path().join("store")).arg("tags"));
    let commands: [&[&str]; 3] = [
        &["load", "other"],
        &["kv", "put", "store", "tags", "key"],
        &["snapshot", "receive", "store"],
    ];
    for words in commands {
        refused_at_a_terminal(dir.path(), words, "the standard input is a terminal");
    }
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

/// `.` and `..` were names that the system was asked to make, which it refused.
#[test]
fn a_store_is_made_in_the_working_directory() {
    let dir = tempfile::tempdir().unwrap();
    let below = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    };
    run(varve().args(["format", "."]).current_dir(below("here")));
    run(varve().args(["format", ".."]).current_dir(below("above/below")).arg("--force"));
    let dump = dir.path().join("dump");
    fs::write(&dump, run(varve().arg("dump").arg(dir.path().join("here"))).stdout).unwrap();
    run(varve().args(["load", "./"]).arg(&dump).current_dir(below("loaded")));
    for made in ["here", "above", "loaded"] {
        run(varve().arg("fsck").arg(dir.path().join(made)));
    }
}

/// Who gave `varve load` a wrong dump for a store that is there was told to remove the store; and after a load that was cut, there
/// was no word of how to go on.
#[test]
fn a_load_looks_at_its_directory_before_the_dump() {
    let dir = tempfile::tempdir().unwrap();
    let [store, other] = ["store", "other"].map(|name| dir.path().join(name));
    run(varve().arg("format").arg(&store));
    let said = fails(varve().arg("load").arg(&store).arg("/dev/null"), 1);
    assert!(said.contains("holds a store already"), "{said}");
    let said = fails(varve().arg("load").arg(&other).arg("/dev/null"), 1);
    assert!(!said.contains("remove") && !other.exists(), "{said}");
    let dump = run(varve().arg("dump").arg(&store)).stdout;
    let (whole, cut) = (dir.path().join("whole"), dir.path().join("cut"));
    fs::write(&cut, &dump[..dump.len() / 2]).unwrap();
    fs::write(&whole, dump).unwrap();
    let said = fails(varve().arg("load").arg(&other).arg(&cut), 1);
    assert!(said.contains(&format!("remove what is in {}", other.display())), "{said}");
    let said = fails(varve().arg("load").arg(&other).arg(&whole), 1);
    assert!(said.contains("remove what is in it") && !said.contains("--force"), "{said}");
    fs::remove_dir_all(&other).unwrap();
    run(varve().arg("load").arg(&other).arg(&whole));
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
    for threshold in ["x", "4095", "16385K"] {
        let wrong = ["format", "/nowhere/at/all", "--large-file-threshold", threshold];
        let said = fails(varve().args(wrong), 2);
        assert!(threshold == "x" || said.contains("4.00 KiB to 16.0 MiB"), "{said}");
    }
    let said = fails(varve().args(["format", "/nowhere/at/all", "--filtered-levels", "8"]), 2);
    assert!(said.contains("0 to 7"), "{said}");
}

/// Mistakes alone told of them.
#[test]
fn help_names_the_ranges_of_numbers() {
    for (command, ranges) in [
        ("format", &["4K to 16M", "0 to 7"][..]),
        ("fsck", &["1M at least"]),
        ("gc", &["1M at least"]),
        ("stats", &["0.001 to 86400"]),
        ("txn run", &["0 to 3600"]),
        ("txn begin", &["0 to 3600", "1s at least"]),
    ] {
        let help = run(varve().args(command.split(' ')).arg("--help")).stdout;
        let help = String::from_utf8(help).unwrap();
        let told = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for range in ranges {
            assert!(told.contains(range), "{command}: {range}: {help}");
        }
    }
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

/// These ended without one.
#[test]
fn failures_end_with_the_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let (store, file) = (dir.path().join("store"), dir.path().join("file"));
    let missing = dir.path().join("missing");
    fs::write(&file, "x").unwrap();
    run(varve().arg("format").arg(&store));
    for place in [&missing, &file] {
        let said = fails(varve().args(["mount", "-f"]).arg(&store).arg(place), 1);
        assert!(said.contains("mkdir"), "{said}");
    }
    fails(varve().arg("load").arg(dir.path().join("other")).arg(&missing), 1);
    fails(varve().arg("man").arg(file.join("below")), 1);
    fails(varve().arg("du").arg(&missing), 1);
    fails(varve().args(["snapshot", "delete"]).arg(&store).arg("none"), 1);
    run(varve().args(["kv", "create"]).arg(&store).arg("tags"));
    let said = fails(varve().args(["kv", "get"]).arg(&store).args(["tags", "none"]), 1);
    assert!(said.contains("kv scan"), "{said}");
    let Some(mount) = Mount::new() else { return };
    let said = fails(varve().args(["upgrade", "--binary"]).arg(&missing).arg(mount.path()), 1);
    assert!(said.contains("check the path"), "{said}");
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

/// What lies on a mount was said to hold no store, also within a snapshot.
#[test]
fn directories_of_a_mount_are_told_from_stores() {
    let Some(mount) = Mount::new() else { return };
    let _apart = without_namespaces();
    run(varve().args(["snapshot", "create"]).arg(mount.path()).arg("before"));
    let snapshot = mount.path().join(".varve/snapshots/before");
    fs::read_dir(&snapshot).unwrap();
    let told = json(varve().args(["status", "--json"]).arg(&snapshot));
    assert_eq!(told["store"], mount.store().to_str().unwrap());
    assert_eq!(told["mount_point"], mount.path().to_str().unwrap());
    for verb in [&["fsck"][..], &["dump"], &["gc"], &["tune"], &["tune", "--auto"]] {
        let said = fails(varve().args(verb).arg(mount.path()), 1);
        let named = format!("on a mount of {}", mount.store().display());
        assert!(said.contains(&named) && said.contains("name the store"), "{said}");
    }
    fails(varve().arg("inspect").arg(mount.path()), 1);
}

/// Hints that were of something else, and words that were not for people.
#[test]
fn words_are_of_what_was_asked() {
    let dir = tempfile::tempdir().unwrap();
    let said = fails(varve().arg("format").arg(dir.path().join("none/store")), 1);
    assert!(said.contains("check the path") && !said.contains("varve format"), "{said}");
    let store = dir.path().join("a store");
    let said = String::from_utf8(run(varve().arg("format").arg(&store)).stdout).unwrap();
    assert!(said.contains(&format!("`varve mount '{}' DIR`", store.display())), "{said}");
    let said = fails(varve().args(["kv", "create"]).arg(&store).arg(""), 1);
    assert!(said.contains("the name of a dictionary"), "{said}");
    for line in [&["set", "--inodes", "5"][..], &["clear"]] {
        let said = fails(varve().arg("quota").args(line).arg(dir.path()), 1);
        assert!(said.contains("not on a Varve mount") && !said.contains("du(1)"), "{said}");
    }
    let said = fails(varve().args(["quota", "set"]).arg(dir.path()), 2);
    assert!(said.contains("--bytes <SIZE>|--inodes <N>"), "{said}");
    let Some(mount) = Mount::new() else { return };
    let begun = json(varve().args(["txn", "begin", "--json"]).arg(mount.path()));
    let id = begun["id"].as_str().unwrap();
    let told = run(varve().args(["txn", "status"]).arg(mount.path()).arg(id)).stdout;
    let told = String::from_utf8(told).unwrap();
    assert!(told.contains("begun        20") && !told.contains("1970"), "{told}");
    run(varve().args(["txn", "abort"]).arg(mount.path()).arg(id));
    let said = fails(varve().args(["tune", "--auto"]).arg(mount.store()), 1);
    assert!(said.contains("in use by process") && said.contains("varve umount"), "{said}");
    mount.unmount();
    mount.mount_with("ro");
    for line in [&["txn", "begin"][..], &["snapshot", "create"]] {
        let mut command = varve();
        command.args(line).arg(mount.path());
        let command = if line[0] == "txn" { &mut command } else { command.arg("now") };
        let said = fails(command, 1);
        assert!(said.contains("mount it again without `ro`"), "{said}");
    }
}

/// An empty directory was said to be no store.
#[test]
fn a_snapshot_is_received_into_an_empty_directory() {
    let dir = tempfile::tempdir().unwrap();
    let [store, empty, stream] = ["store", "empty", "stream"].map(|name| dir.path().join(name));
    run(varve().arg("format").arg(&store));
    run(varve().args(["snapshot", "create"]).arg(&store).arg("first"));
    fs::write(&stream, run(varve().args(["snapshot", "send"]).arg(&store).arg("first")).stdout)
        .unwrap();
    fs::create_dir(&empty).unwrap();
    let input = fs::File::open(&stream).unwrap();
    run(varve().args(["snapshot", "receive"]).arg(&empty).stdin(input));
    let told = json(varve().args(["snapshot", "list", "--json"]).arg(&empty));
    assert_eq!(told[0]["name"], "first", "{told}");
}

/// The hint was of the command line, and nothing was said of the other snapshot that it takes.
#[test]
fn a_snapshot_with_clones_is_not_sent_and_the_next_step_is_said() {
    let Some(mount) = Mount::new() else { return };
    let (top, copy) = (mount.path().join("top"), mount.path().join("copy"));
    fs::create_dir(&top).unwrap();
    fs::write(top.join("file"), "x").unwrap();
    run(varve().arg("clone").arg(&top).arg(&copy));
    run(varve().args(["snapshot", "create"]).arg(mount.path()).arg("with"));
    let said = fails(varve().args(["snapshot", "send"]).arg(mount.path()).arg("with"), 1);
    assert!(
        said.contains("hint: copy them with `cp -a`") && said.contains("another snap"),
        "{said}"
    );
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
        .find(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("MANIFEST-") && !name.ends_with(".copy")
        })
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
    for name in ["large", "kept", "changed"] {
        fs::write(mount.path().join(name), vec![7; 200_000]).unwrap();
    }
    // Large files of a snapshot and of a transaction, whole and by blocks.
    run(varve().args(["snapshot", "create"]).arg(mount.path()).arg("before"));
    fs::remove_file(mount.path().join("kept")).unwrap();
    let begun = run(varve().args(["txn", "begin"]).arg(mount.path())).stdout;
    let view = Path::new(std::str::from_utf8(&begun).unwrap().trim()).to_path_buf();
    fs::write(view.join("of-the-transaction"), vec![8; 200_000]).unwrap();
    for dir in [mount.path(), view] {
        let changed = fs::OpenOptions::new().write(true).open(dir.join("changed")).unwrap();
        changed.write_all_at(&[9; 5000], 50_000).unwrap();
    }
    mount.unmount();
    let (mut inspected, mut large) = (0, BTreeSet::new());
    let mut pending = vec![mount.store()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
                continue;
            }
            run(varve().args(["inspect", "--rows"]).arg(&path));
            let told = json(varve().args(["inspect", "--rows", "--json"]).arg(&path));
            inspected += 1;
            let within = path.strip_prefix(mount.store()).unwrap().iter().next().unwrap();
            if told["file"] == "object" {
                assert!(told["inode"].as_u64() >= Some(16) && told["bytes"] == 200_000, "{told}");
                large.insert(within.to_str().unwrap().to_owned());
            }
        }
    }
    assert!(inspected >= 7, "superblock, lock, log, current, manifest, write-ahead log, object");
    assert_eq!(large.into_iter().collect::<Vec<_>>(), ["kept", "objects", "views"]);
    fails(varve().arg("inspect").arg("/etc/passwd"), 1);
}

/// What was begun or made was told to people alone.
#[test]
fn what_is_made_is_told_to_programs_too() {
    let Some(mount) = Mount::new() else { return };
    let made = json(varve().args(["snapshot", "create", "--json"]).arg(mount.path()).arg("before"));
    assert_eq!(made["name"], "before");
    let path = made["path"].as_str().unwrap();
    assert!(Path::new(path).is_dir() && path.ends_with("/before"), "{made}");
    let begun = json(varve().args(["txn", "begin", "--json"]).arg(mount.path()));
    let (id, path) = (begun["id"].as_str().unwrap(), begun["path"].as_str().unwrap());
    assert!(Path::new(path).is_dir() && path.ends_with(&format!("/{id}")), "{begun}");
    run(varve().args(["txn", "commit"]).arg(mount.path()).arg(id));
    let limits = ["--bytes", "1M", "--json"];
    let set = json(varve().args(["quota", "set"]).arg(mount.path()).args(limits));
    assert_eq!(set, json(varve().args(["quota", "show", "--json"]).arg(mount.path())));
    assert_eq!(set[0]["bytes_max"], 1 << 20, "{set}");
    mount.unmount();
    let made = json(varve().args(["snapshot", "create", "--json"]).arg(mount.store()).arg("after"));
    assert_eq!(made, serde_json::json!({ "name": "after", "path": null }));
    let pages = mount.store().with_file_name("pages");
    let written = json(varve().args(["man", "--json"]).arg(&pages));
    assert!(written["dir"] == pages.to_str().unwrap() && pages.join("varve.1").exists());
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

/// Most were told by nothing that is installed.
#[test]
fn the_help_of_mount_tells_every_option() {
    let help = String::from_utf8(run(varve().args(["mount", "--help"])).stdout).unwrap();
    let told: BTreeSet<&str> = help.split([' ', ',', '\n', '|', '=']).collect();
    let hint = fails(varve().args(["mount", "-o", "none-such", "store", "dir"]), 2);
    let (_, known) = hint.split_once("known are ").unwrap();
    let known = known.replace(", and what only mount(8) reads (", " ").replace(')', "");
    let known: BTreeSet<&str> =
        known.split_whitespace().map(|one| one.split('=').next().unwrap()).collect();
    assert!(known.len() > 40, "{known:?}");
    let untold: Vec<_> = known.difference(&told).collect();
    assert!(untold.is_empty(), "{untold:?}");
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

/// What programs print of a superblock is in logs and reports of bugs: the key of the name hash was there.
#[test]
fn what_tells_of_a_superblock_keeps_the_key_of_the_name_hash() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let formatted = json(varve().args(["format", "--json"]).arg(&store))["superblock"].take();
    let superblock = fs::read_to_string(store.join("VARVE")).unwrap();
    let mut superblock: serde_json::Value =
        serde_json::from_str(superblock.lines().next().unwrap()).unwrap();
    let key = superblock.as_object_mut().unwrap().remove("name_hash_key");
    assert_eq!(key.unwrap().as_str().unwrap().len(), 32);
    assert_eq!(formatted, superblock);
    for file in ["VARVE", "VARVE.copy"] {
        assert_eq!(json(varve().arg("inspect").arg(store.join(file))), superblock, "{file}");
    }
}

/// What programs did on a mount is told to people, to programs and to Prometheus; a later report is of what happened since the one before.
#[test]
fn stats_tell_what_a_mount_does() {
    let Some(mount) = Mount::new() else { return };
    for at in 0..50 {
        fs::write(mount.path().join(format!("f{at}")), "x").unwrap();
    }
    let told = json(varve().args(["stats", "--json"]).arg(mount.path()));
    let creates = &told["operations"]["CREATE"];
    assert_eq!((creates["count"].as_u64(), creates["failed"].as_u64()), (Some(50), Some(0)));
    assert!(creates["timed"].as_u64().unwrap() > 0 && creates["p50_us"].as_f64().unwrap() > 0.0);
    assert!(told["engine"]["writes"].as_u64().unwrap() >= 50, "{told}");
    let output = run(varve().args(["stats", "-n", "2", "-i", "0.01"]).arg(mount.path()));
    let text = String::from_utf8(output.stdout).unwrap();
    let (first, second) = text.split_once("\n\n").unwrap();
    assert!(first.lines().any(|line| line.starts_with("create  ")), "{text}");
    assert!(!second.contains("create  ") && second.contains("getxattr"), "{text}");
    let output = run(varve().args(["stats", "--prometheus"]).arg(mount.path()));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\nvarve_requests_total{operation=\"create\"} 50\n"), "{text}");
    let missing = fails(varve().arg("stats").arg(mount.store()), 1);
    assert!(missing.contains("is a store, and not on a Varve mount"), "{missing}");
}

/// What a daemon says comes as the value of an attribute, which some seventy dictionaries or some hundreds of limits filled: status,
/// stats and limits were not told any more, as if the daemon had died.
#[test]
fn daemons_tell_of_many_dictionaries_and_limits() {
    let Some(mount) = Mount::new() else { return };
    for n in 0..80 {
        run(varve().args(["kv", "create"]).arg(mount.path()).arg(n.to_string()));
    }
    for n in ["7", "8"] {
        run(varve().args(["kv", "put"]).arg(mount.path()).args([n, "key", "value"]));
    }
    let told = json(varve().args(["status", "--json"]).arg(mount.path()));
    let spaces = told["daemon"]["engine"]["keyspaces"].as_array().unwrap();
    let sum = spaces.iter().find(|space| space["name"] == "dictionary-*").unwrap();
    assert_eq!([&sum["keyspaces"], &sum["memtable_rows"]], [80, 2], "{sum}");
    run(varve().args(["stats", "--prometheus"]).arg(mount.path()));
    let name = |n: u32| format!("{n:0>200}");
    for n in 0..250 {
        let dir = mount.path().join(name(n));
        fs::create_dir(&dir).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&dir, "varve.limits", b"inodes=9", flags).unwrap();
    }
    run(varve().args(["quota", "set", "--bytes", "1M"]).arg(mount.path()));
    let told = json(varve().args(["quota", "show", "--json"]).arg(mount.path()));
    let told = told.as_array().unwrap();
    assert_eq!((told.len(), &told[0]["bytes_max"]), (251, &Value::from(1 << 20)));
    assert_eq!(told[250]["path"], mount.path().join(name(249)).to_str().unwrap());
}
