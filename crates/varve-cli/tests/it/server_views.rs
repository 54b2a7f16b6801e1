//! Snapshots, transactions and clones on two mounts of one server.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read};
use std::path::Path;

use varve_testkit::eventually;

use crate::harness::{fails, json, run, with_namespaces};
use crate::two_mounts::Mounts;

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

#[test]
fn a_snapshot_is_seen_on_every_mount_and_restored_on_all() {
    let Some(mounts) = Mounts::new(&["a", "b"], &[]) else { return };
    let (a, b) = (mounts.path("a"), mounts.path("b"));
    fs::write(a.join("f"), "one").unwrap();
    fs::write(a.join("large"), vec![1; 300_000]).unwrap();
    run(mounts.varve().args(["snapshot", "create"]).arg(&a).arg("s"));
    fs::write(b.join("f"), "two").unwrap();
    fs::write(b.join("large"), vec![2; 300_000]).unwrap();
    fs::write(b.join("new"), "").unwrap();
    for root in [&a, &b] {
        let kept = root.join(".varve/snapshots/s");
        assert_eq!(fs::read(kept.join("f")).unwrap(), b"one");
        assert_eq!(fs::read(kept.join("large")).unwrap(), vec![1; 300_000]);
        let refused = fs::write(kept.join("x"), "").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        assert_eq!(fs::read(root.join("f")).unwrap(), b"two");
    }
    let changes = json(mounts.varve().args(["snapshot", "diff", "--json"]).arg(&b).arg("s"));
    assert_eq!(changes["changes"].as_array().unwrap().len(), 3, "{changes}");
    // What both mounts have cached is gone.
    run(mounts.varve().args(["snapshot", "rollback"]).arg(&b).arg("s"));
    for root in [&a, &b] {
        assert_eq!(fs::read(root.join("f")).unwrap(), b"one");
        assert_eq!(fs::read(root.join("large")).unwrap(), vec![1; 300_000]);
        assert!(!root.join("new").exists());
    }
    run(mounts.varve().args(["clone"]).arg(a.join(".varve/snapshots/s/large")).arg(b.join("copy")));
    assert_eq!(fs::read(a.join("copy")).unwrap(), vec![1; 300_000]);
    // A program of this machine that is in the snapshot keeps it.
    let mut open = fs::File::open(a.join(".varve/snapshots/s/f")).unwrap();
    fails(mounts.varve().args(["snapshot", "delete"]).arg(&a).arg("s"), 1);
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "one");
    drop(open);
    run(mounts.varve().args(["snapshot", "delete"]).arg(&a).arg("s"));
    eventually("the view is unmounted", || !is_mounted(&b.join(".varve/snapshots/s")));
    assert!(!b.join(".varve/snapshots/s/f").exists());
    mounts.end();
}

#[test]
fn a_transaction_is_used_on_two_mounts_and_ends_on_both() {
    let Some(mounts) = Mounts::new(&["a", "b"], &[]) else { return };
    let (a, b) = (mounts.path("a"), mounts.path("b"));
    fs::write(a.join("f"), "one").unwrap();
    fs::create_dir(a.join("old")).unwrap();
    for ends in ["abort", "commit"] {
        let begun = json(mounts.varve().args(["txn", "begin", "--json"]).arg(&a));
        let id = begun["id"].as_str().unwrap().to_owned();
        let (here, there) = (a.join(".varve/txn").join(&id), b.join(".varve/txn").join(&id));
        assert_eq!(Path::new(begun["path"].as_str().unwrap()), here);
        fs::write(here.join("f"), "two").unwrap();
        assert_eq!(fs::read(there.join("f")).unwrap(), b"two");
        fs::write(there.join("g"), "three").unwrap();
        assert_eq!(fs::read(here.join("g")).unwrap(), b"three");
        fs::write(there.join("large"), vec![4; 300_000]).unwrap();
        fs::rename(here.join("old"), here.join("moved")).unwrap();
        for root in [&a, &b] {
            assert_eq!(fs::read(root.join("f")).unwrap(), b"one");
            assert!(!root.join("g").exists() && root.join("old").exists());
        }
        // A large file that is open for writing on the other machine keeps it open.
        if ends == "commit" {
            let open = OpenOptions::new().write(true).open(there.join("large")).unwrap();
            fails(mounts.varve().args(["txn", "commit"]).arg(&a).arg(&id), 5);
            drop(open);
        }
        run(mounts.varve().args(["txn", ends]).arg(&a).arg(&id));
        assert!(!is_mounted(&here));
        for root in [&a, &b] {
            let is_committed = ends == "commit";
            assert_eq!(
                fs::read(root.join("f")).unwrap(),
                if is_committed { b"two" } else { b"one" }
            );
            assert_eq!(root.join("large").exists(), is_committed);
            assert_eq!(root.join("moved").exists(), is_committed);
            assert_eq!(root.join("old").exists(), !is_committed);
        }
        eventually("the view is unmounted", || !is_mounted(&there));
    }
    let open = json(mounts.varve().args(["txn", "list", "--json"]).arg(&b));
    assert_eq!(open.as_array().map(Vec::len), Some(0), "{open}");
    mounts.end();
}

#[test]
fn programs_in_transactions_on_two_mounts_conflict_as_on_one() {
    let Some(mounts) = Mounts::new(&["a", "b"], &[]) else { return };
    let _namespaces = with_namespaces();
    let (a, b) = (mounts.path("a"), mounts.path("b"));
    fs::write(a.join("n"), "0").unwrap();
    // Counters that lose nothing.
    let add = |root: &Path| {
        let text = "for i in 1 2 3 4 5; do $VARVE txn run --isolation serializable --retry 50 . -- \
                    sh -c 'echo $(($(cat n) + 1)) > n.new && mv n.new n' || exit 1; done";
        let mut sh = varve_testkit::Command::new("sh");
        sh.arg("-c").arg(text).current_dir(root);
        sh.env("VARVE_ANCHORS", mounts.path("anchors")).env("VARVE", env!("CARGO_BIN_EXE_varve"));
        run(&mut sh);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| add(&a));
        scope.spawn(|| add(&b));
    });
    for root in [&a, &b] {
        assert_eq!(fs::read_to_string(root.join("n")).unwrap().trim(), "10");
    }
    // A conflict is told by its status.
    let begun = json(mounts.varve().args(["txn", "begin", "--json"]).arg(&a));
    let id = begun["id"].as_str().unwrap();
    fs::write(a.join(".varve/txn").join(id).join("n"), "x").unwrap();
    fs::write(b.join("n"), "y").unwrap();
    fails(mounts.varve().args(["txn", "commit"]).arg(&a).arg(id), 5);
    run(mounts.varve().args(["txn", "abort"]).arg(&b).arg(id));
    assert_eq!(fs::read(a.join("n")).unwrap(), b"y");
    mounts.end();
}

/// The server goes, and comes again: what is open goes on, also in a transaction.
#[test]
fn a_transaction_outlives_the_server() {
    let Some(mut mounts) = Mounts::new(&["a"], &[]) else { return };
    let a = mounts.path("a");
    fs::write(a.join("f"), "one").unwrap();
    let begun = json(mounts.varve().args(["txn", "begin", "--json"]).arg(&a));
    let id = begun["id"].as_str().unwrap().to_owned();
    let here = a.join(".varve/txn").join(&id);
    fs::write(here.join("g"), "two").unwrap();
    mounts.restart(&[]);
    assert_eq!(fs::read(here.join("g")).unwrap(), b"two");
    fs::write(here.join("f"), "three").unwrap();
    run(mounts.varve().args(["txn", "commit"]).arg(&a).arg(&id));
    assert_eq!(fs::read(a.join("f")).unwrap(), b"three");
    assert_eq!(fs::read(a.join("g")).unwrap(), b"two");
    mounts.end();
}
