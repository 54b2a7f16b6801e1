//! Commits of more large files than have room in one portion.

use std::path::Path;
use std::sync::Arc;

use varve_engine::{Direction, KeyRange};
use varve_env::Env;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_types::FileName;
use varve_vfs::{Caller, FsError, OpenFlags, Vfs};

use super::*;
use crate::commit::CommitError;
use crate::stream::frame::FrameReader;
use crate::stream::{ReceiveError, Received, read_header};
use crate::{FormatOptions, MountOptions, TransactionOptions, ViewName};

const STORE: &str = "/store";
/// Files that the transaction changes, and the number of all when it has made others.
const CHANGED: usize = 12;
const ALL: usize = 20;
const LEN: usize = 5000;
/// ENOSPC.
const NO_SPACE: i32 = 28;

fn open(env: &Arc<SimEnv>) -> VarveFs {
    // So little that the commit does not fit into a batch.
    let options = MountOptions { memory_budget_bytes: 1 << 14, ..MountOptions::default() };
    let machine: Arc<dyn Env> = Arc::<SimEnv>::clone(env);
    VarveFs::open(machine, Path::new(STORE), options).unwrap()
}

fn both() -> OpenFlags {
    OpenFlags { read: true, write: true, ..OpenFlags::default() }
}

fn file_name(n: usize) -> String {
    format!("file {n}")
}

fn write(fs: &VarveFs, n: usize, byte: u8) {
    let text = file_name(n);
    let name = FileName::new(text.as_bytes()).unwrap();
    let (ino, handle) = match fs.lookup(InodeId::ROOT, name) {
        Ok(entry) => (entry.attr.ino, fs.open(entry.attr.ino, both()).unwrap().handle),
        Err(_) => {
            let made = fs.create(Caller::ROOT, InodeId::ROOT, name, 0o600, both()).unwrap();
            (made.0.attr.ino, made.1.handle)
        }
    };
    fs.write(ino, handle, 0, &[byte; LEN], false).unwrap();
    fs.release(ino, handle).unwrap();
}

/// What the files begin with.
fn bytes(fs: &VarveFs) -> Vec<Option<u8>> {
    let byte = |n: usize| {
        let text = file_name(n);
        let ino = fs.lookup(InodeId::ROOT, FileName::new(text.as_bytes()).unwrap()).ok()?.attr.ino;
        let read = OpenFlags { write: false, ..both() };
        let handle = fs.open(ino, read).unwrap().handle;
        let bytes = fs.read(ino, handle, 0, LEN).unwrap();
        fs.release(ino, handle).unwrap();
        assert!(bytes == vec![bytes[0]; LEN], "file {n}");
        Some(bytes[0])
    };
    (0..ALL).map(byte).collect()
}

fn before() -> Vec<Option<u8>> {
    (0..ALL).map(|n| (n < CHANGED).then_some(1)).collect()
}

/// A store with large files, and a transaction that has changed all of them and made others.
fn scene(seed: u64) -> (Arc<SimEnv>, VarveFs, ViewName, VarveFs) {
    let env = SimEnv::new(seed);
    let machine: Arc<dyn Env> = Arc::<SimEnv>::clone(&env);
    let options = FormatOptions { large_file_threshold_bytes: 4096, ..FormatOptions::default() };
    crate::format(&machine, Path::new(STORE), &options).unwrap();
    let fs = open(&env);
    (0..CHANGED).for_each(|n| write(&fs, n, 1));
    let txn = fs.begin_transaction(InodeId::ROOT, &TransactionOptions::default()).unwrap();
    let view = fs.open_view(&txn).unwrap();
    (0..ALL).for_each(|n| write(&view, n, 2));
    fs.sync().unwrap();
    (env, fs, txn, view)
}

/// What is pending in the transaction.
fn pending(fs: &VarveFs, txn: &ViewName) -> Vec<(Bytes, Bytes)> {
    let branch = fs.any_transaction(&txn.name).unwrap().branch;
    let branch = fs.views().unwrap().db().open_branch(branch).unwrap();
    let range = KeyRange::prefix(&RowKey::pending_prefix());
    let rows = branch.scan(fs.meta, range, Direction::Forward).unwrap();
    rows.map(Result::unwrap).collect()
}

fn spotless(fs: &VarveFs) {
    assert_eq!(fs.check(&mut |_| ()).unwrap().findings, []);
}

/// All rows of large files were one batch each, before the commit and after it, and more of them than one may have could never be
/// committed.
#[test]
fn rows_of_any_number_of_large_files_come_a_portion_at_a_time() {
    let (env, fs, txn, view) = scene(1);
    let first = env.op_count();
    fs.commit_transaction(&txn.name, &view).unwrap();
    let sizes = log_writes(&env, first);
    // The commit itself is one, as it is small.
    let large = sizes.iter().filter(|bytes| **bytes > 200).count();
    assert!(large == 1 && sizes.len() > 2 * ALL / 4, "{sizes:?}");
    drop(view);
    assert_eq!(bytes(&fs), [Some(2); ALL]);
    spotless(&fs);
}

/// Sizes of what has been written to logs since the operation `first`.
fn log_writes(env: &SimEnv, first: u64) -> Vec<u64> {
    let writes = env.journal().into_iter().filter(|entry| {
        let is_log = entry.path.extension().is_some_and(|extension| extension == "wal");
        entry.number > first && entry.op == SimOp::Write && is_log
    });
    writes.filter_map(|entry| Some(entry.range?.1)).collect()
}

/// Directories with a file each.
fn make_dirs(fs: &VarveFs, dirs: usize) {
    for n in 0..dirs {
        let text = format!("dir {n}");
        let name = FileName::new(text.as_bytes()).unwrap();
        let dir = fs.mkdir(Caller::ROOT, InodeId::ROOT, name, 0o700).unwrap().attr.ino;
        fs.mknod(Caller::ROOT, dir, name, 0o100_600, 0).unwrap();
    }
}

/// The mark rows in `of`.
fn marks(fs: &VarveFs, of: &dyn Store) -> Vec<(Bytes, Bytes)> {
    let rows = of.scan(fs.meta, KeyRange::prefix(&RowKey::mark_prefix()), Direction::Forward);
    rows.unwrap().map(Result::unwrap).collect()
}

/// All marks that a commit brings were one batch, and more of them than one may have could never be committed.
#[test]
fn any_number_of_marks_comes_a_portion_at_a_time() {
    const DIRS: usize = 100;
    let (env, fs, txn, view) = scene(1);
    make_dirs(&view, DIRS);
    let branch =
        fs.views().unwrap().db().open_branch(fs.any_transaction(&txn.name).unwrap().branch);
    let branch = branch.unwrap();
    let of_view = marks(&fs, &branch);
    assert_eq!(of_view.len(), DIRS);
    write(&fs, 3, 9);
    let first = env.op_count();
    let conflict = fs.commit_transaction(&txn.name, &view);
    assert!(matches!(conflict, Err(CommitError::Conflict(_))), "{conflict:?}");
    let sizes = log_writes(&env, first);
    assert!(sizes.iter().all(|bytes| *bytes < 1000) && sizes.len() > DIRS / 4, "{sizes:?}");
    assert_eq!((marks(&fs, &branch), fs.accounts.marked()), (of_view, 0));
}

/// Between the portions, too.
#[test]
fn a_crash_between_portions_leaves_all_of_a_commit_or_nothing() {
    let (mut whole, mut absent) = (0, 0);
    for n in 0.. {
        let (env, fs, txn, view) = scene(n);
        make_dirs(&view, 8);
        env.crash_after(env.op_count() + n);
        let committed = fs.commit_transaction(&txn.name, &view);
        let crashed = env.crashed();
        assert!(crashed || committed.is_ok(), "{committed:?}");
        for image in [env.process_kill(), env.power_cut_keep_nothing(), env.power_cut(n)] {
            let fs = open(&image);
            let found = bytes(&fs);
            if found == before() {
                absent += 1;
                assert!(committed.is_err(), "a commit that returned is lost");
                let view = fs.open_view(&txn).unwrap();
                assert_eq!(bytes(&view), [Some(2); ALL], "crash {n}");
                fs.commit_transaction(&txn.name, &view).unwrap();
            } else {
                whole += 1;
            }
            assert_eq!(bytes(&fs), [Some(2); ALL], "crash {n}");
            fs.close().unwrap();
            drop(fs);
            let fs = open(&image);
            assert_eq!(bytes(&fs), [Some(2); ALL], "crash {n}");
            spotless(&fs);
        }
        if !crashed {
            break;
        }
    }
    assert!(whole > 20 && absent > 20, "{whole} whole, {absent} absent");
}

/// A conflict, or a disk that is full after some of them.
#[test]
fn portions_are_taken_back_where_a_commit_does_not_come() {
    let (env, fs, txn, view) = scene(1);
    let unchanged = pending(&fs, &txn);
    // Again when room was got back for the write, too.
    for nth in [3, 4] {
        let path_suffix = ".wal".to_owned();
        env.fail(FaultRule { path_suffix, op: SimOp::Write, nth, errno: NO_SPACE, sticky: false });
    }
    let full = fs.commit_transaction(&txn.name, &view);
    assert!(matches!(full, Err(CommitError::Failed(FsError::NoSpace(_)))), "{full:?}");
    assert_eq!(pending(&fs, &txn), unchanged);
    write(&fs, 3, 9);
    let conflict = fs.commit_transaction(&txn.name, &view);
    assert!(matches!(conflict, Err(CommitError::Conflict(_))), "{conflict:?}");
    assert_eq!(pending(&fs, &txn), unchanged);
    assert_eq!(bytes(&view), [Some(2); ALL]);
    drop(view);
    fs.abort_transaction(&txn.name).unwrap();
    spotless(&fs);
}

fn sent(fs: &VarveFs, name: &str, since: Option<&str>) -> Vec<u8> {
    let mut out = Vec::new();
    fs.send_snapshot(name, since, None, &mut out, &mut |_| ()).unwrap();
    out
}

fn receive(fs: &VarveFs, mut stream: &[u8]) -> Result<Received, ReceiveError> {
    let mut stream = FrameReader::new(&mut stream).map_err(ReceiveError::Interrupted)?;
    let header = read_header(&mut stream)?;
    fs.receive_snapshot(&header, &mut stream, &mut |_| ())
}

/// So do the rows of large files that go with what is received; whoever goes on after a crash writes them once more.
#[test]
fn a_crash_between_portions_leaves_all_of_a_receipt_or_nothing() {
    let (_env, fs, _, _) = scene(1);
    fs.create_snapshot("one").unwrap();
    let gone = 0..CHANGED / 2;
    for n in gone.clone() {
        fs.unlink(InodeId::ROOT, FileName::new(file_name(n).as_bytes()).unwrap()).unwrap();
    }
    (gone.end..ALL).for_each(|n| write(&fs, n, 2));
    fs.create_snapshot("two").unwrap();
    let (one, two) = (sent(&fs, "one", None), sent(&fs, "two", Some("one")));
    let after: Vec<Option<u8>> = (0..ALL).map(|n| (n >= gone.end).then_some(2)).collect();
    let (mut whole, mut absent) = (0, 0);
    for n in (0..).step_by(5) {
        let env = SimEnv::new(n);
        let options = FormatOptions {
            large_file_threshold_bytes: 4096,
            name_hash_key: Some(fs.superblock().name_hash_key.clone()),
            ..FormatOptions::default()
        };
        let machine: Arc<dyn Env> = Arc::<SimEnv>::clone(&env);
        crate::format(&machine, Path::new(STORE), &options).unwrap();
        let there = open(&env);
        receive(&there, &one).unwrap();
        env.crash_after(env.op_count() + n);
        let done = receive(&there, &two);
        let crashed = env.crashed();
        assert!(crashed || done.is_ok(), "{done:?}");
        for image in [env.process_kill(), env.power_cut_keep_nothing(), env.power_cut(n)] {
            let there = open(&image);
            if bytes(&there) == before() {
                absent += 1;
                assert!(done.is_err(), "a receipt that returned is lost");
                let (receipt, mut rest) = (there.interrupted_receipt().unwrap(), Vec::new());
                let receipt = receipt.as_ref();
                fs.send_snapshot("two", Some("one"), receipt, &mut rest, &mut |_| ()).unwrap();
                receive(&there, &rest).unwrap();
            } else {
                whole += 1;
            }
            assert_eq!(bytes(&there), after, "crash {n}");
            there.close().unwrap();
            drop(there);
            let there = open(&image);
            assert_eq!(bytes(&there), after, "crash {n}");
            spotless(&there);
        }
        if !crashed {
            break;
        }
    }
    assert!(whole > 5 && absent > 10, "{whole} whole, {absent} absent");
}
