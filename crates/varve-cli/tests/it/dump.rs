//! `varve dump` and `varve load`: a store through a pipe and through a file, and what they say when they refuse.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use rustix::process::Signal;
use varve_testkit::{Command, skipped};
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, OpenFlags};

use crate::harness::{Mount, fails, json, run, told_a_terminal, varve};

/// A store with a small and a large file, made without a mount.
fn store_with_files(store: &Path) {
    varve::store::format(store, &varve_fs::FormatOptions::default()).unwrap();
    let file_system = varve::open(store.to_str().unwrap()).unwrap();
    let vfs = file_system.vfs();
    for (name, len) in [("small", 3000), ("large", 3_000_000)] {
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let name = FileName::new(name.as_bytes()).unwrap();
        let (entry, opened) = vfs.create(Caller::ROOT, InodeId::ROOT, name, 0o644, flags).unwrap();
        vfs.write(entry.attr.ino, opened.handle, 10_000, &vec![7; len], false).unwrap();
        vfs.release(entry.attr.ino, opened.handle).unwrap();
    }
    drop(vfs);
    file_system.close().unwrap();
}

#[test]
fn a_store_goes_through_a_pipe_and_through_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    store_with_files(&at("a"));
    let mut dump = varve().arg("dump").arg(at("a")).stdout(Stdio::piped()).spawn().unwrap();
    let load = run(varve().arg("load").arg(at("b")).stdin(dump.stdout.take().unwrap()));
    assert!(dump.wait().unwrap().success());
    assert!(String::from_utf8_lossy(&load.stdout).contains("3 inodes"), "{load:?}");
    run(varve().arg("fsck").arg(at("b")));
    for store in ["a", "b"] {
        let file = at(store).with_extension("jsonl");
        run(varve().arg("dump").arg(at(store)).arg("-o").arg(file));
    }
    let first = fs::read(at("a.jsonl")).unwrap();
    assert!(first == fs::read(at("b.jsonl")).unwrap());
    let said = fails(varve().arg("dump").arg(at("a")).arg("-o").arg(at("a.jsonl")), 1);
    assert!(said.contains("exists"), "{said}");

    let loaded = json(varve().args(["load", "--json"]).arg(at("c")).arg(at("a.jsonl")));
    let told = serde_json::json!({ "store": at("c"), "inodes": 3, "names": 2 });
    assert_eq!(loaded, told);
    let said = fails(varve().arg("load").arg(at("c")).arg(at("a.jsonl")), 1);
    assert!(said.contains("holds a store already"), "{said}");
    fs::write(at("cut"), &first[..first.len() / 2]).unwrap();
    let said = fails(varve().arg("load").arg(at("d")).arg(at("cut")), 1);
    assert!(said.contains("of the dump: cut") && said.contains("remove what is in"), "{said}");
    let said = fails(varve().arg("fsck").arg(at("d")), 1);
    assert!(said.contains("holds no store"), "{said}");
}

#[test]
fn a_mounted_store_is_not_dumped() {
    let Some(mount) = Mount::new() else { return };
    let said = fails(varve().arg("dump").arg(mount.store()), 1);
    assert!(said.contains("in use by") && said.contains("varve umount"), "{said}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    let said = fails(varve().arg("dump").arg(mount.store()).arg("-o").arg(&file), 1);
    assert!(said.contains("in use by") && !file.exists(), "{said}");
}

/// A dump that failed left its file behind, and the next one was refused because of that.
#[test]
fn a_dump_that_fails_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    store_with_files(&at("a"));
    let objects = at("a").join("objects");
    fs::rename(&objects, at("objects")).unwrap();
    let said = fails(varve().arg("dump").arg(at("a")).arg("-o").arg(at("file")), 1);
    assert!(!at("file").exists(), "{said}");
    fs::rename(at("objects"), &objects).unwrap();
    run(varve().arg("dump").arg(at("a")).arg("-o").arg(at("file")));
    let said = fails(varve().arg("dump").arg(at("a")).arg("-o").arg(at("file")), 1);
    assert!(said.contains("exists") && at("file").exists(), "{said}");
}

/// `sh` that does `first`, then is `varve dump -o FILE` of a store.
fn dump_after(first: &str, store: &Path, file: &Path) -> Command {
    let mut command = Command::new("sh");
    let script = format!("{first}; exec \"$0\" dump \"$1\" -o \"$2\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_varve")]).arg(store).arg(file);
    command
}

/// What only their owners may read was in a file for everybody.
#[test]
fn a_dump_is_for_its_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    store_with_files(&at("a"));
    run(&mut dump_after("umask 0", &at("a"), &at("file")));
    let mode = fs::metadata(at("file")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600, "{mode:o}");
}

/// The name of a dump that was written was not, and a power cut could take it.
#[test]
fn a_dump_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
    store_with_files(&at("a"));
    fs::create_dir(at("to")).unwrap();
    let calls = "trace=fsync,fdatasync,link,linkat,rename,renameat,renameat2,openat";
    let mut traced = Command::new("strace");
    traced.args(["-y", "-e", calls, "-o"]).arg(at("calls")).arg(env!("CARGO_BIN_EXE_varve"));
    let output = traced.arg("dump").arg(at("a")).arg("-o").arg(at("to/file")).output();
    let told = fs::read_to_string(at("calls")).unwrap_or_default();
    if told.is_empty() {
        return skipped(&format!("this takes strace, which said {output:?}"));
    }
    assert!(output.unwrap().status.success(), "{told}");
    let last = |of: &[&str]| {
        let is_it = |line: &str| of.iter().all(|part| line.contains(part));
        told.lines().enumerate().filter(|(_, line)| is_it(line)).map(|(at, _)| at).last()
    };
    let (file, dir) = (at("to/"), format!("<{}>", at("to").display()));
    let bytes = last(&["sync(", file.to_str().unwrap()]);
    let name = last(&["\"", at("to/file").to_str().unwrap(), " = "]);
    assert!(bytes.is_some() && bytes < name && name < last(&["sync(", &dir, " = 0"]), "{told}");
}

/// A dump whose program was ended in the middle looked like one that is whole, and the next one was refused because of it.
#[test]
fn a_dump_that_is_interrupted_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    store_with_files(&at("a"));
    fs::create_dir(at("to")).unwrap();
    // Ended by a signal (SIGXFSZ) when it has written so many blocks of 512 bytes, about half.
    let output = dump_after("ulimit -f 4000", &at("a"), &at("to/file")).output().unwrap();
    assert_eq!(output.status.signal(), Some(Signal::XFSZ.as_raw()), "{output:?}");
    assert_eq!(fs::read_dir(at("to")).unwrap().count(), 0);
    run(&mut dump_after("ulimit -f 40000", &at("a"), &at("to/file")));
    assert!(fs::metadata(at("to/file")).unwrap().len() > 4_000_000);
    assert_eq!(fs::read_dir(at("to")).unwrap().count(), 1);
}

/// What takes long says how far it is, to who looks on.
#[test]
fn a_dump_and_a_load_tell_a_terminal_how_far_they_are() {
    let dir = tempfile::tempdir().unwrap();
    store_with_files(&dir.path().join("a"));
    for (words, begun) in [
        (&["dump", "a", "-o", "file"][..], "dumping lines: 0"),
        (&["load", "b", "file"], "loading lines: 0"),
    ] {
        let Some(told) = told_a_terminal(dir.path(), words, 0) else { return };
        assert!(told.contains(begun) && told.ends_with("\r\x1b[K"), "{told}");
    }
}
