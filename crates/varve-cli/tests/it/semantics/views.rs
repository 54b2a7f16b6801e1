//! Snapshots and transactions: what is seen in them, and what they leave alone.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use varve_testkit::there_is;

use super::{Place, names, pattern, refused, refused_io, semantics};
use crate::harness::{run, varve, with_namespaces};

semantics!(
    snapshots,
    snapshot_of_large_files,
    snapshot_of_mapped_files,
    snapshot_names,
    snapshot_diff,
    view_places,
    transactions,
    transaction_of_large_files,
    blocks_of_large_files,
    transaction_use,
    transaction_pairs,
    transaction_limits,
    transaction_diff,
    transaction_run
);

/// Larger than any file that is kept in the store.
pub(super) const LARGE: usize = 300_000;

pub(super) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Makes a snapshot; gives the directory where it is seen.
pub(super) fn snapshot(place: &Place, name: &str) -> PathBuf {
    PathBuf::from(text(&run(varve().args(["snapshot", "create"]).arg(place.dir()).arg(name))))
}

/// What a command says that fails, with a hint.
pub(super) fn fails(args: &[&str], dir: &Path, last: &[&str]) -> String {
    let output = varve().args(args).arg(dir).args(last).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        matches!(output.status.code(), Some(1 | 5)) && said.contains("\nhint: "),
        "{args:?}: {said}"
    );
    said
}

pub(super) fn write_at(path: &Path, bytes: &[u8], offset: u64) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, offset).unwrap();
}

fn snapshots(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    fs::create_dir_all(dir.join("d/e")).unwrap();
    fs::write(dir.join("d/kept"), "first").unwrap();
    fs::write(dir.join("d/e/gone"), pattern(1, 40_000)).unwrap();
    fs::hard_link(dir.join("d/kept"), dir.join("second")).unwrap();
    let seen = snapshot(place, "before");
    assert_eq!(seen, dir.join(".varve/snapshots/before"));
    fs::write(dir.join("d/kept"), "changed").unwrap();
    fs::remove_dir_all(dir.join("d/e")).unwrap();
    fs::rename(dir.join("d"), dir.join("moved")).unwrap();
    let check = || {
        assert_eq!(names(&seen), ["d", "second"]);
        assert_eq!(fs::read(seen.join("d/kept")).unwrap(), b"first");
        assert_eq!(fs::read(seen.join("d/e/gone")).unwrap(), pattern(1, 40_000));
        assert_eq!(fs::metadata(seen.join("second")).unwrap().nlink(), 2);
        assert_ne!(fs::metadata(&seen).unwrap().dev(), fs::metadata(&dir).unwrap().dev());
        refused_io(fs::write(seen.join("new"), "x"), Errno::ROFS);
        refused_io(fs::remove_file(seen.join("second")), Errno::ROFS);
        refused_io(fs::rename(seen.join("second"), dir.join("third")), Errno::XDEV);
    };
    check();
    assert_eq!(fs::read(dir.join("moved/kept")).unwrap(), b"changed");
    place.remount();
    check();
    place.kill_daemon();
    place.mount_again();
    check();
    run(varve().args(["snapshot", "delete"]).arg(&dir).arg("before"));
    refused_io(fs::metadata(&seen), Errno::NOENT);
    assert_eq!(fs::read(dir.join("second")).unwrap(), b"changed");
}

fn snapshot_of_large_files(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    let [written, cut, removed, open] = ["written", "cut", "removed", "open"].map(|n| dir.join(n));
    for path in [&written, &cut, &removed, &open] {
        fs::write(path, pattern(7, LARGE)).unwrap();
    }
    let during = OpenOptions::new().write(true).open(&open).unwrap();
    let first = snapshot(place, "first");
    during.write_all_at(b"through the snapshot", 0).unwrap();
    write_at(&written, b"after the first", 1000);
    let reader = File::open(first.join("written")).unwrap();
    let second = snapshot(place, "second");
    write_at(&written, b"after the second", 5000);
    File::options().write(true).open(&cut).unwrap().set_len(10).unwrap();
    fs::remove_file(&removed).unwrap();
    drop(during);
    let unchanged = |path: PathBuf| assert!(fs::read(path).unwrap() == pattern(7, LARGE));
    let check = |first: &Path| {
        for name in ["written", "cut", "removed", "open"] {
            unchanged(first.join(name));
        }
    };
    check(&first);
    for name in ["cut", "removed"] {
        unchanged(second.join(name));
    }
    let mut between = pattern(7, LARGE);
    between[1000..1015].copy_from_slice(b"after the first");
    assert!(fs::read(second.join("written")).unwrap() == between);
    let mut bytes = [0; 100];
    reader.read_exact_at(&mut bytes, 990).unwrap();
    assert_eq!(bytes, pattern(7, LARGE)[990..1090]);
    drop(reader);
    place.remount();
    check(&first);
    run(varve().args(["snapshot", "delete"]).arg(&dir).arg("second"));
    check(&first);
    run(varve().args(["snapshot", "delete"]).arg(&dir).arg("first"));
    assert_eq!(fs::metadata(&cut).unwrap().len(), 10);
    refused_io(fs::metadata(&removed), Errno::NOENT);
}

/// Maps a file and closes it, and changes it in memory when it is told to.
pub(super) const MAPPER: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
fd = os.open("mapped", os.O_RDWR)
size = os.fstat(fd).st_size
memory = (ctypes.c_char * size).from_address(libc.mmap(None, size, 3, 1, fd, 0))
os.close(fd)
print("closed", flush=True)
sys.stdin.readline()
memory[1000:1008] = b"in place"
print("changed", flush=True)
sys.stdin.readline()
"#;

fn snapshot_of_mapped_files(place: &Place) {
    if !place.is_varve() || !there_is("python3") {
        return;
    }
    let (dir, before) = (place.dir(), pattern(7, LARGE));
    fs::write(dir.join("mapped"), &before).unwrap();
    let mut mapper = Command::new("python3")
        .args(["-c", MAPPER])
        .current_dir(&dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut order = mapper.stdin.take().unwrap();
    let mut said = BufReader::new(mapper.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(said.next().unwrap(), "closed");
    let seen = snapshot(place, "mapped");
    order.write_all(b"\n").unwrap();
    assert_eq!(said.next().unwrap(), "changed");
    let mut after = before.clone();
    after[1000..1008].copy_from_slice(b"in place");
    assert!(fs::read(dir.join("mapped")).unwrap() == after);
    assert!(fs::read(seen.join("mapped")).unwrap() == before);
    drop(order);
    assert!(mapper.wait().unwrap().success());
    assert!(fs::read(seen.join("mapped")).unwrap() == before);
    run(varve().args(["snapshot", "delete"]).arg(&dir).arg("mapped"));
}

fn snapshot_names(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    refused_io(fs::metadata(dir.join(".varve/snapshots/one")), Errno::NOENT);
    let one = snapshot(place, "one");
    snapshot(place, "zwei und drei");
    assert_eq!(names(&dir.join(".varve/snapshots")), ["one", "zwei und drei"]);
    assert_eq!(names(&one), Vec::<&str>::new());
    assert!(fails(&["snapshot", "create"], &dir, &["one"]).contains("already"));
    for wrong in ["", ".", "..", "a/b", "a\nb", &"x".repeat(201)] {
        assert!(fails(&["snapshot", "create"], &dir, &[wrong]).contains("name"), "{wrong:?}");
    }
    assert!(fails(&["snapshot", "delete"], &dir, &["two"]).contains("no snapshot"));
    fails(&["snapshot", "create"], &one, &["nested"]);
    let used = File::open(&one).unwrap();
    assert!(fails(&["snapshot", "delete"], &dir, &["one"]).contains("in use"));
    drop(used);
    run(varve().args(["snapshot", "delete"]).arg(&dir).arg("one"));
    let listed = run(varve().args(["snapshot", "list", "--json"]).arg(&dir));
    assert!(text(&listed).contains("zwei und drei") && !text(&listed).contains("one"));
    let again = snapshot(place, "one");
    assert_eq!(names(&again), Vec::<&str>::new());
}

fn view_places(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let (dir, top) = (place.dir(), place.dir().join(".varve"));
    assert_eq!(names(&dir), Vec::<&str>::new());
    assert_eq!(names(&top), ["control", "snapshots", "txn"]);
    for path in ["x", "control/x", "snapshots/x", "txn/x"].map(|name| top.join(name)) {
        refused_io(fs::write(&path, "x"), Errno::PERM);
        refused_io(fs::create_dir(&path), Errno::PERM);
    }
    refused_io(fs::create_dir(&top), Errno::EXIST);
    refused_io(fs::remove_dir(&top), Errno::PERM);
    fs::create_dir(dir.join("d")).unwrap();
    refused_io(fs::rename(dir.join("d"), top.join("d")), Errno::PERM);
    refused_io(fs::rename(top.join("txn"), dir.join("txn")), Errno::PERM);
    fs::create_dir(dir.join("d/.varve")).unwrap();
    assert_eq!(names(&dir.join("d/.varve")), Vec::<&str>::new());
    fs::create_dir(dir.join("e")).unwrap();
    snapshot(place, "monday");
    let view = begin(&dir);
    let control = top.join("control").join(id(&view));
    for synthetic in [dir.join("e/.varve/snapshots/monday"), control] {
        refused_io(fs::hard_link(synthetic, dir.join("x")), Errno::PERM);
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    refused(rustix::fs::open(top.join("txn"), flags, Mode::RUSR), Errno::PERM);
    run(varve().args(["txn", "abort"]).arg(&dir).arg(id(&view)));
}

/// Begins a transaction on a directory; gives its view.
pub(super) fn begin(dir: &Path) -> PathBuf {
    PathBuf::from(text(&run(varve().args(["txn", "begin"]).arg(dir))))
}

pub(super) fn id(view: &Path) -> &str {
    view.file_name().unwrap().to_str().unwrap()
}

pub(super) fn commit(place: &Place, view: &Path) {
    run(varve().args(["txn", "commit"]).arg(place.dir()).arg(id(view)));
}

/// Unmounts, finds nothing wrong, and mounts again.
pub(super) fn checked(on: &Place) {
    let Place::Mount(mount) = on else { return };
    mount.unmount();
    run(varve().arg("fsck").arg(mount.store()));
    mount.mount();
}

fn transactions(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    for name in ["a/deep", "b"] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    for name in ["kept", "changed", "a/removed", "a/deep/renamed"] {
        fs::write(dir.join(name), name).unwrap();
    }
    fs::hard_link(dir.join("changed"), dir.join("linked")).unwrap();
    refused_io(fs::metadata(dir.join("new")), Errno::NOENT);
    let view = begin(&dir);
    assert_eq!(names(&view), names(&dir));
    assert_ne!(fs::metadata(&view).unwrap().dev(), fs::metadata(&dir).unwrap().dev());
    refused_io(fs::rename(view.join("kept"), dir.join("out")), Errno::XDEV);
    fs::write(view.join("changed"), "by the transaction").unwrap();
    fs::remove_file(view.join("a/removed")).unwrap();
    fs::rename(view.join("a/deep"), view.join("b/deep")).unwrap();
    fs::create_dir(view.join("new")).unwrap();
    fs::write(view.join("new/file"), pattern(3, 20_000)).unwrap();
    let before = || {
        assert_eq!(fs::read(dir.join("changed")).unwrap(), b"changed");
        assert_eq!(names(&dir), ["a", "b", "changed", "kept", "linked"]);
        assert_eq!(names(&dir.join("a")), ["deep", "removed"]);
    };
    before();
    fs::write(dir.join("a/deep/other"), "by the main view").unwrap();
    place.kill_daemon();
    place.mount_again();
    fs::remove_file(dir.join("a/deep/other")).unwrap();
    before();
    assert_eq!(fs::read(view.join("b/deep/renamed")).unwrap(), b"a/deep/renamed");
    let open = File::open(dir.join("a/removed")).unwrap();
    let inside = File::open(view.join("kept")).unwrap();
    commit(place, &view);
    assert_eq!(fs::read(dir.join("changed")).unwrap(), b"by the transaction");
    assert_eq!(fs::read(dir.join("linked")).unwrap(), b"by the transaction");
    assert_eq!(names(&dir), ["a", "b", "changed", "kept", "linked", "new"]);
    assert_eq!(names(&dir.join("a")), Vec::<&str>::new());
    assert_eq!(names(&dir.join("b/deep")), ["renamed"]);
    assert!(fs::read(dir.join("new/file")).unwrap() == pattern(3, 20_000));
    assert_eq!(super::content(&open), b"a/removed");
    assert!(inside.read_at(&mut [0], 0).is_err(), "its view has ended");
    refused_io(fs::metadata(&view), Errno::NOENT);
    drop((open, inside));
    let dropped = begin(&dir);
    fs::remove_dir_all(dropped.join("b")).unwrap();
    run(varve().args(["txn", "abort"]).arg(&dir).arg(id(&dropped)));
    assert_eq!(names(&dir.join("b/deep")), ["renamed"]);
    checked(place);
    assert_eq!(names(&dir), ["a", "b", "changed", "kept", "linked", "new"]);
}

fn transaction_of_large_files(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    for name in ["written", "removed", "untouched", "grown"] {
        fs::write(dir.join(name), pattern(9, if name == "grown" { 10 } else { LARGE })).unwrap();
    }
    let before = snapshot(place, "before");
    let view = begin(&dir);
    write_at(&view.join("written"), b"in the transaction", 1000);
    fs::write(view.join("grown"), pattern(8, LARGE)).unwrap();
    fs::write(view.join("new"), pattern(5, LARGE)).unwrap();
    fs::remove_file(view.join("removed")).unwrap();
    write_at(&dir.join("untouched"), b"in the main view", 0);
    assert!(fs::read(view.join("untouched")).unwrap() == pattern(9, LARGE));
    assert!(fs::read(dir.join("written")).unwrap() == pattern(9, LARGE));
    let writer = OpenOptions::new().write(true).open(view.join("new")).unwrap();
    assert!(fails(&["txn", "commit"], &dir, &[id(&view)]).contains("/new"));
    drop(writer);
    commit(place, &view);
    let mut written = pattern(9, LARGE);
    written[1000..1018].copy_from_slice(b"in the transaction");
    let mut untouched = pattern(9, LARGE);
    untouched[..16].copy_from_slice(b"in the main view");
    let check = || {
        assert!(fs::read(dir.join("written")).unwrap() == written);
        assert!(fs::read(dir.join("untouched")).unwrap() == untouched);
        assert!(fs::read(dir.join("grown")).unwrap() == pattern(8, LARGE));
        assert!(fs::read(dir.join("new")).unwrap() == pattern(5, LARGE));
        refused_io(fs::metadata(dir.join("removed")), Errno::NOENT);
        for name in ["written", "removed", "untouched"] {
            assert!(fs::read(before.join(name)).unwrap() == pattern(9, LARGE), "{name}");
        }
    };
    check();
    checked(place);
    check();
}

/// Bytes that the files of a directory take, however deep; one that the daemon removes meanwhile takes none.
fn taken(dir: &Path) -> u64 {
    let items = fs::read_dir(dir).into_iter().flatten().map(Result::unwrap);
    let bytes = items.map(|item| match item.file_type().unwrap().is_dir() {
        true => taken(&item.path()),
        false => item.metadata().map_or(0, |file| file.blocks() * 512),
    });
    bytes.sum()
}

fn bytes_at(path: &Path, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(path).unwrap().read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

fn blocks_of_large_files(place: &Place) {
    let Place::Mount(mount) = place else { return };
    let (dir, huge) = (place.dir(), place.dir().join("huge"));
    let (gib, mib) = (1u64 << 30, 1u64 << 20);
    File::create(&huge).unwrap().set_len(10 * gib).unwrap();
    write_at(&huge, &pattern(1, LARGE), gib);
    fs::write(dir.join("read"), pattern(4, LARGE)).unwrap();
    let before = snapshot(place, "before");
    let view = begin(&dir);
    let store = |name: &str| taken(&mount.store().join(name));
    let objects = store("objects");
    let inside = OpenOptions::new().read(true).write(true).open(view.join("huge")).unwrap();
    inside.write_all_at(b"in the transaction", 5 * gib + 3).unwrap();
    inside.write_all_at(b"beyond", 10 * gib + 3).unwrap();
    rustix::fs::fallocate(
        &inside,
        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
        gib,
        1000,
    )
    .unwrap();
    inside.sync_all().unwrap();
    assert!(store("views") < mib, "{} bytes of a transaction", store("views"));
    drop(inside);
    let inside = File::open(view.join("huge")).unwrap();
    assert_eq!(rustix::fs::seek(&inside, rustix::fs::SeekFrom::Data(9 * gib)).unwrap() >> 30, 10);
    drop(inside);
    assert_eq!(bytes_at(&huge, 5 * gib, 30), [0; 30]);
    // What somebody reads meanwhile stays for him as it was.
    write_at(&view.join("read"), b"changed", 1000);
    let reader = File::open(dir.join("read")).unwrap();
    commit(place, &view);
    assert!(super::content(&reader) == pattern(4, LARGE));
    // Who wrote now would write to what he reads.
    let written = || OpenOptions::new().write(true).open(dir.join("read"));
    refused_io(written(), Errno::TXTBSY);
    refused_io(File::create(dir.join("read")), Errno::TXTBSY);
    drop(reader);
    // The kernel tells of a close when it has answered it.
    varve_testkit::eventually("it is closed", || {
        bytes_at(&dir.join("read"), 1000, 7) == b"changed"
    });
    written().unwrap().write_all_at(b"later", 2000).unwrap();
    assert_eq!(bytes_at(&dir.join("read"), 1000, 7), b"changed");
    assert_eq!(bytes_at(&dir.join("read"), 2000, 5), b"later");
    assert!(store("objects") < objects + mib && store("kept") < mib && store("views") == 0);
    let check = || {
        assert_eq!(fs::metadata(&huge).unwrap().len(), 10 * gib + 9);
        assert_eq!(bytes_at(&huge, 5 * gib, 21)[3..], *b"in the transaction");
        assert_eq!(bytes_at(&huge, 10 * gib, 9)[3..], *b"beyond");
        let punched = bytes_at(&huge, gib, LARGE);
        assert!(punched[..1000] == [0; 1000] && punched[1000..] == pattern(1, LARGE)[1000..]);
        let seen = before.join("huge");
        assert_eq!(fs::metadata(&seen).unwrap().len(), 10 * gib);
        assert_eq!(bytes_at(&seen, 5 * gib, 30), [0; 30]);
        assert!(bytes_at(&seen, gib, LARGE) == pattern(1, LARGE));
        assert!(fs::read(before.join("read")).unwrap() == pattern(4, LARGE));
    };
    check();
    let kept = store("kept");
    write_at(&huge, b"by the main view", 7 * gib);
    File::options().write(true).open(&huge).unwrap().set_len(10 * gib + 9).unwrap();
    assert!(store("kept") < kept + mib, "{} bytes kept", store("kept"));
    checked(place);
    check();
    assert_eq!(bytes_at(&before.join("huge"), 7 * gib, 16), [0; 16]);
    run(varve().args(["snapshot", "delete"]).arg(&dir).arg("before"));
    assert_eq!(store("kept"), 0);
    assert_eq!(bytes_at(&huge, 7 * gib, 16), b"by the main view");
}

fn transaction_use(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    fs::create_dir_all(dir.join("sub/tree")).unwrap();
    fs::write(dir.join("beside"), "x").unwrap();
    let view = begin(&dir.join("sub"));
    assert_eq!(names(&view), ["tree"]);
    fs::write(view.join("file"), "in the subtree").unwrap();
    fs::write(view.join("tree/deep"), "deep").unwrap();
    let listed = text(&run(varve().args(["txn", "list"]).arg(&dir)));
    assert_eq!(listed, format!("{}  {}", id(&view), view.display()));
    fails(&["txn", "begin"], &view, &[]);
    fails(&["txn", "begin"], &dir.join("beside"), &[]);
    let running = begin(&dir);
    place.remount();
    assert_eq!(names(&dir.join(".varve/txn")).len(), 2);
    commit(place, &view);
    assert_eq!(names(&dir.join("sub")), ["file", "tree"]);
    assert_eq!(fs::read(dir.join("sub/tree/deep")).unwrap(), b"deep");
    assert!(fails(&["txn", "commit"], &dir, &[id(&view)]).contains("no transaction"));
    assert!(fails(&["txn", "abort"], &dir, &[id(&view)]).contains("no transaction"));
    let Place::Mount(mount) = place else { return };
    mount.unmount();
    run(varve().args(["txn", "abort"]).arg(mount.store()).arg(id(&running)));
    assert_eq!(text(&run(varve().args(["txn", "list"]).arg(mount.store()))), "");
    mount.mount();
}

fn transaction_pairs(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    let kv = |path: &Path, args: &[&str]| {
        text(&run(varve().args(["kv", args[0]]).arg(path).args(&args[1..])))
    };
    kv(&dir, &["create", "tags"]);
    kv(&dir, &["put", "tags", "k", "before"]);
    let [one, two] = [begin(&dir), begin(&dir)];
    for view in [&one, &two] {
        kv(view, &["put", "tags", "k", "same"]);
        kv(&dir, &["put", "tags", id(view), "own", "--txn", id(view)]);
        fs::write(view.join(id(view)), "own").unwrap();
        assert_eq!(kv(view, &["scan", "tags"]), format!("{}\town\nk\tsame", id(view)));
    }
    assert_eq!(kv(&dir, &["scan", "tags"]), "k\tbefore");
    commit(place, &one);
    assert_eq!(kv(&dir, &["scan", "tags"]), format!("{}\town\nk\tsame", id(&one)));
    assert!(fails(&["txn", "commit"], &dir, &[id(&two)]).contains("key k of dictionary tags\n"));
    assert_eq!(names(&dir), [id(&one)]);
    run(varve().args(["txn", "abort"]).arg(&dir).arg(id(&two)));
    let third = begin(&dir);
    kv(&third, &["put", "tags", "k", "third"]);
    fails(&["kv", "drop"], &third, &["tags"]);
    kv(&dir, &["drop", "tags"]);
    let said = fails(&["txn", "commit"], &dir, &[id(&third)]);
    assert!(said.contains("dictionary tags, which was dropped"), "{said}");
    checked(place);
}

fn transaction_limits(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    fs::create_dir(dir.join("top")).unwrap();
    run(varve().args(["quota", "set", "--bytes", "100000"]).arg(dir.join("top")));
    let [one, two] = [begin(&dir), begin(&dir)];
    fs::write(one.join("top/one"), pattern(1, 60_000)).unwrap();
    fs::write(two.join("top/two"), pattern(2, 60_000)).unwrap();
    commit(place, &one);
    let said = fails(&["txn", "commit"], &dir, &[id(&two)]);
    assert!(said.contains("/top: 120000 bytes, its limit is 100000"), "{said}");
    assert_eq!(names(&dir.join("top")), ["one"]);
    fs::write(two.join("top/two"), pattern(2, 40_000)).unwrap();
    commit(place, &two);
    assert_eq!(names(&dir.join("top")), ["one", "two"]);
    checked(place);
}

/// What `varve txn diff` tells, of a mount or a store.
fn diff(path: &Path, id: &str) -> Vec<String> {
    let output = run(varve().args(["txn", "diff"]).arg(path).arg(id));
    text(&output).lines().map(str::to_owned).collect()
}

/// Files and directories to change.
pub(super) fn make_files(dir: &Path) {
    for name in ["a/b", "moved/deep", "gone/deep", "mode", "linked.d"] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    for name in ["a/kept", "a/b/written", "mode/x", "moved/deep/x", "gone/deep/x", "replaced", "f"]
    {
        fs::write(dir.join(name), name).unwrap();
    }
    fs::write(dir.join("chunks"), pattern(4, 30_000)).unwrap();
    fs::write(dir.join("large"), pattern(4, LARGE)).unwrap();
    fs::write(dir.join("linked"), "two names").unwrap();
    fs::hard_link(dir.join("linked"), dir.join("linked.d/second")).unwrap();
}

fn snapshot_diff(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    make_files(&dir);
    let told = |path: &Path, states: &[&str]| -> Vec<String> {
        let output = run(varve().args(["snapshot", "diff"]).arg(path).args(states));
        text(&output).lines().map(str::to_owned).collect()
    };
    snapshot(place, "one");
    assert_eq!(told(&dir, &["one"]), Vec::<&str>::new());
    names(&dir);
    fs::write(dir.join("a/new"), "new").unwrap();
    fs::rename(dir.join("moved"), dir.join("a/moved")).unwrap();
    let large = OpenOptions::new().write(true).open(dir.join("large")).unwrap();
    large.write_all_at(b"in place", 200_000).unwrap();
    snapshot(place, "two");
    let first = ["R  /moved -> /a/moved", "A  /a/new", "M  /large"];
    assert_eq!(told(&dir, &["one", "two"]), first);
    large.write_all_at(b"again", 200_000).unwrap();
    fs::remove_dir_all(dir.join("gone")).unwrap();
    fs::set_permissions(dir.join("mode"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::remove_file(dir.join("a/new")).unwrap();
    let second =
        ["D  /a/new", "D  /gone", "D  /gone/deep", "D  /gone/deep/x", "M  /large", "M  /mode"];
    assert_eq!(told(&dir, &["two"]), second);
    drop(large);
    assert_eq!(told(&dir, &["two"]), second);
    assert_eq!(told(&dir, &["one", "two"]), first);
    let output = run(varve().args(["snapshot", "diff", "--json"]).arg(&dir).args(["one", "two"]));
    let json: serde_json::Value = serde_json::from_str(&text(&output)).unwrap();
    assert_eq!(json["complete"], true);
    assert_eq!(json["changes"][0]["from"], "/moved");
    assert!(
        fails(&["snapshot", "diff"], &dir, &["two", "one"]).contains("is later than the second")
    );
    assert!(fails(&["snapshot", "diff"], &dir, &["one", "three"]).contains("no snapshot `three`"));
    let Place::Mount(mount) = place else { return };
    mount.unmount();
    assert_eq!(told(&mount.store(), &["two"]), second);
    assert_eq!(told(&mount.store(), &["one", "two"]), first);
    mount.mount();
}

fn transaction_diff(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    make_files(&dir);
    let view = begin(&dir);
    assert_eq!(diff(&dir, id(&view)), Vec::<&str>::new());
    names(&view);
    fs::write(view.join("a/b/written"), "by the transaction").unwrap();
    fs::write(view.join("a/new"), "new").unwrap();
    fs::write(view.join("passing"), "comes").unwrap();
    fs::remove_file(view.join("passing")).unwrap();
    fs::create_dir(view.join("made")).unwrap();
    fs::write(view.join("made/line\nbreak"), "x").unwrap();
    fs::rename(view.join("moved"), view.join("a/moved")).unwrap();
    fs::write(view.join("a/moved/deep/x"), "in a renamed directory").unwrap();
    fs::rename(view.join("f"), view.join("g")).unwrap();
    fs::remove_dir_all(view.join("gone")).unwrap();
    fs::write(view.join("replaced.new"), "another file").unwrap();
    fs::rename(view.join("replaced.new"), view.join("replaced")).unwrap();
    fs::set_permissions(view.join("mode"), fs::Permissions::from_mode(0o700)).unwrap();
    let chunks = fs::metadata(view.join("chunks")).unwrap().modified().unwrap();
    write_at(&view.join("chunks"), b"same length", 20_000);
    File::options().write(true).open(view.join("chunks")).unwrap().set_modified(chunks).unwrap();
    write_at(&view.join("large"), b"in place", 200_000);
    write_at(&view.join("linked.d/second"), b"TWO", 0);
    fs::write(dir.join("a/kept"), "by the main view").unwrap();
    let told = diff(&dir, id(&view));
    let linked: Vec<&String> = told.iter().filter(|line| line.contains("linked")).collect();
    assert!(linked.len() == 1 && linked[0].starts_with("M  /linked"), "{told:?}");
    let rest: Vec<&String> = told.iter().filter(|line| !line.contains("linked")).collect();
    let expected = [
        "M  /a/b/written",
        "R  /moved -> /a/moved",
        "M  /a/moved/deep/x",
        "A  /a/new",
        "M  /chunks",
        "R  /f -> /g",
        "D  /gone",
        "D  /gone/deep",
        "D  /gone/deep/x",
        "M  /large",
        "A  /made",
        "A  /made/line\\nbreak",
        "M  /mode",
        "M  /replaced",
    ];
    assert_eq!(rest, expected);
    let status = |path: &Path| {
        let output = run(varve().args(["txn", "status", "--json"]).arg(path).arg(id(&view)));
        let status: serde_json::Value = serde_json::from_str(&text(&output)).unwrap();
        ["added", "removed", "changed", "renamed"].map(|kind| status[kind].as_u64().unwrap())
    };
    assert_eq!(status(&dir), [3, 3, 7, 2]);
    let Place::Mount(mount) = place else { return };
    mount.unmount();
    assert_eq!(diff(&mount.store(), id(&view)), told);
    assert_eq!(status(&mount.store()), [3, 3, 7, 2]);
    mount.mount();
    commit(place, &view);
    assert!(fails(&["txn", "diff"], &dir, &[id(&view)]).contains("no transaction"));
    assert!(fails(&["txn", "status"], &dir, &[id(&view)]).contains("no transaction"));
}

fn transaction_run(place: &Place) {
    if !place.is_varve() {
        return;
    }
    let dir = place.dir();
    let _copied = with_namespaces();
    fs::write(dir.join("count"), "1").unwrap();
    let in_txn = |options: &[&str], script: &str| {
        let mut command = varve();
        command.args(["txn", "run"]).args(options).arg(&dir).args(["--", "sh", "-c", script]);
        command.current_dir(&dir).output().unwrap()
    };
    let output = in_txn(&[], "pwd; echo 2 > count; mkdir made; cat count");
    assert_eq!(text(&output), format!("{}\n2", dir.display()));
    assert_eq!(fs::read(dir.join("count")).unwrap(), b"2\n");
    assert_eq!(in_txn(&[], "echo 3 > count; exit 7").status.code(), Some(7));
    assert_eq!(in_txn(&[], "kill -9 $$").status.code(), Some(128 + 9));
    assert_eq!(in_txn(&[], "exec /no/such/program").status.code(), Some(127));
    assert_eq!(fs::read(dir.join("count")).unwrap(), b"2\n");
    let beside = place.dir().parent().unwrap().join("beside");
    fs::create_dir(&beside).unwrap();
    // Another changes the same file meanwhile, once.
    let clash = format!(
        "echo x >> {0}/runs; echo 4 >> count; [ $(wc -l < {0}/runs) -gt 1 ] || echo 5 > {1}",
        beside.display(),
        beside.join("now").display()
    );
    let other = std::thread::spawn({
        let (count, now) = (dir.join("count"), beside.join("now"));
        move || {
            varve_testkit::eventually("the program runs", || now.exists());
            fs::write(count, "by another\n").unwrap();
            fs::remove_file(now).unwrap();
        }
    });
    let waits = format!(
        "{clash}; timeout 60 sh -c 'while [ -e {}/now ]; do sleep 0.02; done'",
        beside.display()
    );
    let output = in_txn(&["--retry", "3"], &waits);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    other.join().unwrap();
    assert_eq!(fs::read(dir.join("count")).unwrap(), b"by another\n4\n");
    assert_eq!(text(&run(varve().args(["txn", "list"]).arg(&dir))), "");
}
