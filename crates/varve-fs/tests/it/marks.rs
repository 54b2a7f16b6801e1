//! Directories with something pending: each has a mark, none keeps others from telling.

use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::{FormatOptions, Isolation, MountOptions, TransactionOptions, VarveFs};
use varve_schema::RowKey;
use varve_vfs::{Caller, SetAttr, TreeUsage, Vfs};

use crate::bench::Rows;
use crate::crash::{STORE, open, sim_store};
use crate::support::{Calls, ROOT, name};

fn of(bytes: u64, files: u64, dirs: u64) -> TreeUsage {
    TreeUsage { bytes, files, dirs }
}

fn begin(fs: &VarveFs, isolation: Isolation) -> (String, VarveFs) {
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    let txn = fs.begin_transaction(ROOT, &options).unwrap();
    let view = fs.open_view(&txn).unwrap();
    (txn.name, view)
}

/// Lets all directories tell that can.
fn tell(fs: &VarveFs, snapshot: &str) {
    fs.create_snapshot(snapshot).unwrap();
    fs.delete_snapshot(snapshot).unwrap();
}

fn number(fs: &VarveFs, of: &[&str]) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&fs.status_json()).unwrap();
    of.iter().fold(&status, |at, key| &at[*key]).as_u64().unwrap()
}

const MARKED: [&str; 1] = ["directories_marked"];

/// A transaction took away what a directory had not told when it began, and the main tree told it meanwhile: the commit left
/// the directory with less than nothing pending, and no mark.
#[test]
fn what_a_commit_leaves_untold_has_a_mark() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let top = fs.mk_dir(ROOT, "top");
    let dir = fs.mk_dir(top, "dir");
    tell(&fs, "s");
    let (blocker, blocking) = begin(&fs, Isolation::Serializable);
    let perm = SetAttr { perm: Some(0o700), ..SetAttr::default() };
    blocking.setattr(Caller::ROOT, top, perm).unwrap();
    fs.mk(dir, "f");
    let (id, view) = begin(&fs, Isolation::Snapshot);
    assert_eq!(number(&fs, &MARKED), 1, "it could not tell");
    view.unlink(dir, name("f")).unwrap();
    drop(blocking);
    fs.abort_transaction(&blocker).unwrap();
    tell(&fs, "s");
    assert_eq!(number(&fs, &MARKED), 0);
    fs.commit_transaction(&id, &view).unwrap();
    for told in 0..2 {
        assert_eq!(fs.usage(top).unwrap(), of(0, 0, 1), "{told}");
        assert_eq!(fs.check(&mut |_| ()).unwrap().findings, [], "{told}");
        tell(&fs, "s");
    }
}

/// What a serializable transaction and the main tree have both changed in a directory counted twice in the transaction.
#[test]
fn what_is_untold_counts_once_however_many_marks_there_are() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let top = fs.mk_dir(ROOT, "top");
    let dir = fs.mk_dir(top, "dir");
    tell(&fs, "s");
    let (id, view) = begin(&fs, Isolation::Serializable);
    view.mk(dir, "ours");
    fs.mk(dir, "theirs");
    assert_eq!(view.usage(dir).unwrap(), view.usage(top).map(|all| of(0, all.files, 0)).unwrap());
    view.mk(dir, "ours too");
    assert_eq!(view.usage(top).unwrap(), of(0, 3, 1));
    fs.commit_transaction(&id, &view).unwrap();
    assert_eq!(fs.usage(top).unwrap(), of(0, 3, 1));
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
}

/// Where directories wait that cannot tell, each change asked every one of them again.
#[test]
fn directories_that_cannot_tell_keep_nobody_up() {
    let env = sim_store(1, &FormatOptions::default());
    let few = MountOptions { marked_dirs_max: 16, ..MountOptions::default() };
    let dyn_env: Arc<dyn Env> = Arc::<SimEnv>::clone(&env);
    let fs = VarveFs::open(dyn_env, Path::new(STORE), few).unwrap();
    let top = fs.mk_dir(ROOT, "top");
    let dirs: Vec<_> = (0..200).map(|i| fs.mk_dir(top, &format!("d{i}"))).collect();
    let elsewhere = fs.mk_dir(ROOT, "elsewhere");
    tell(&fs, "s");
    let (blocker, blocking) = begin(&fs, Isolation::Serializable);
    let perm = SetAttr { perm: Some(0o700), ..SetAttr::default() };
    blocking.setattr(Caller::ROOT, top, perm).unwrap();
    for dir in &dirs {
        fs.mk(*dir, "f");
    }
    assert_eq!(number(&fs, &MARKED), 200);
    let before = number(&fs, &["engine", "counters", "gets"]);
    for i in 0..100 {
        fs.mk(elsewhere, &format!("f{i}"));
    }
    let gets = number(&fs, &["engine", "counters", "gets"]) - before;
    assert!(gets < 100 * 20, "{gets} reads for 100 files");
    assert_eq!(fs.usage(ROOT).unwrap(), of(0, 300, 202));
    drop(blocking);
    fs.abort_transaction(&blocker).unwrap();
    tell(&fs, "s");
    for dir in &dirs {
        fs.mk(*dir, "g");
    }
    assert!(number(&fs, &MARKED) <= 18, "as few as before wait again");
    assert_eq!(fs.usage(ROOT).unwrap(), of(0, 500, 202));
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
}

/// The first change after a commit let every directory tell that the commit had brought a mark for, and all others waited for it.
#[test]
fn directories_that_a_commit_brings_keep_nobody_up() {
    const MADE: u64 = 2000;
    let env = sim_store(1, &FormatOptions::default());
    let few = MountOptions { marked_dirs_max: 16, ..MountOptions::default() };
    let dyn_env: Arc<dyn Env> = Arc::<SimEnv>::clone(&env);
    let fs = VarveFs::open(dyn_env, Path::new(STORE), few).unwrap();
    let elsewhere = fs.mk_dir(ROOT, "elsewhere");
    tell(&fs, "s");
    let (id, view) = begin(&fs, Isolation::Snapshot);
    let top = view.mk_dir(ROOT, "top");
    for i in 0..MADE {
        view.mk(view.mk_dir(top, &format!("d{i}")), "f");
    }
    fs.commit_transaction(&id, &view).unwrap();
    assert!(number(&fs, &MARKED) >= MADE);
    let mut before = number(&fs, &["engine", "counters", "gets"]);
    for i in 0..100 {
        fs.mk(elsewhere, &format!("f{i}"));
        let gets = number(&fs, &["engine", "counters", "gets"]);
        assert!(gets - before < 16 * 20, "{} reads for file {i}", gets - before);
        before = gets;
    }
    assert_eq!(fs.usage(ROOT).unwrap(), of(0, MADE + 100, MADE + 2));
    tell(&fs, "s");
    assert_eq!(number(&fs, &MARKED), 0);
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
}

/// One directory whose row cannot be read kept all others from telling.
#[test]
fn a_row_that_cannot_be_read_keeps_no_other_directory_from_telling() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let top = fs.mk_dir(ROOT, "top");
    let lost = fs.mk_dir(top, "lost");
    let dirs: Vec<_> = (0..20).map(|i| fs.mk_dir(top, &format!("d{i}"))).collect();
    let below = fs.mk_dir(lost, "below");
    tell(&fs, "s");
    for dir in dirs.iter().chain([&below]) {
        fs.mk(*dir, "f");
    }
    fs.close().unwrap();
    drop(fs);
    let rows = Rows::open(&env);
    rows.put(rows.meta, RowKey::inode(lost), b"nothing".to_vec());
    rows.close();
    let fs = open(&env);
    assert_eq!(number(&fs, &MARKED), 21);
    tell(&fs, "s");
    assert_eq!(number(&fs, &MARKED), 1, "only what lies below the unreadable one waits");
}

/// A change that failed after it had found a directory to be marked left it marked in memory alone: the next change wrote no
/// mark, and what it did was missing from totals after a crash.
#[test]
fn a_change_that_fails_leaves_no_mark_in_memory() {
    let env = sim_store(1, &FormatOptions::default());
    let fs = open(&env);
    let [a, b] = ["a", "b"].map(|text| fs.mk_dir(ROOT, text));
    let file = fs.mk(a, "f");
    fs.link(file, b, name("g")).unwrap();
    tell(&fs, "s");
    fs.close().unwrap();
    drop(fs);
    let rows = Rows::open(&env);
    let before = rows.get(rows.meta, RowKey::inode(b));
    rows.put(rows.meta, RowKey::inode(b), b"nothing".to_vec());
    rows.close();
    let fs = open(&env);
    // The other name's directory is where it would count from then on.
    fs.unlink(a, name("f")).unwrap_err();
    assert_eq!(number(&fs, &MARKED), 0);
    fs.mk(a, "new");
    assert_eq!(number(&fs, &MARKED), 1);
    fs.sync().unwrap();
    let env = env.power_cut_keep_nothing();
    let rows = Rows::open(&env);
    rows.put(rows.meta, RowKey::inode(b), before);
    rows.close();
    let fs = open(&env);
    assert_eq!(fs.usage(ROOT).unwrap(), of(0, 2, 2));
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
}
