//! Rows that a repair of the engine's files could not save: their bytes are errors, never zeros, wherever they are seen, and each file
//! that lost some is named.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::fsck::repair::{repair_engine, repair_store};
use varve_fs::fsck::{CheckOptions, Finding, Severity, check_store};
use varve_fs::{FormatOptions, TransactionOptions, VarveFs, ViewKind, ViewName};
use varve_types::InodeId;
use varve_vfs::{Caller, FsError, Vfs};

use crate::bench::Rows;
use crate::crash::{STORE, open, sim_store};
use crate::support::{Calls, READ, ROOT, WRITE, name};

const FILES: usize = 40;
const CHUNK: usize = 16 << 10;
const BYTES: usize = 3 * CHUNK + 5000;

/// What a file holds: no zeros.
fn bytes_of(file: usize) -> Vec<u8> {
    (0..BYTES).map(|at| 1 + ((file * 31 + at / CHUNK * 7 + at) % 255) as u8).collect()
}

/// `d/0` to `d/39` of four chunks each, a clone `c` of `d` that nobody has looked at, a snapshot, and an open transaction.
fn sample() -> (Arc<SimEnv>, ViewName) {
    let options = FormatOptions { compression: false, ..FormatOptions::default() };
    let env = sim_store(1, &options);
    let fs = open(&env);
    let dir = fs.mk_dir(ROOT, "d");
    for file in 0..FILES {
        let ino = fs.mk(dir, &file.to_string());
        fs.put_at(ino, 0, &bytes_of(file));
    }
    fs.clone_tree(ROOT, name("d"), ROOT, name("c")).unwrap();
    fs.create_snapshot("s").unwrap();
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default()).unwrap();
    fs.sync().unwrap();
    fs.close().unwrap();
    drop(fs);
    let rows = Rows::open(&env);
    rows.db.flush().unwrap();
    rows.close();
    (env, txn)
}

fn tables(env: &SimEnv) -> Vec<PathBuf> {
    let mut files = env.files_raw();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "table"));
    files.sort_by_key(|path| env.read_raw(path).unwrap().len());
    files
}

fn repaired(env: &Arc<SimEnv>) -> varve_fs::fsck::repair::RepairReport {
    let (dyn_env, options): (Arc<dyn Env>, _) = (env.clone(), CheckOptions::default());
    repair_engine(&dyn_env, Path::new(STORE), &options).unwrap();
    repair_store(dyn_env, Path::new(STORE), &options, &mut |_| ()).unwrap()
}

/// Reads every chunk of the files below `dir`; gives the names of those of which one cannot be read. No byte is another than it was.
fn unreadable(fs: &VarveFs, dir: InodeId, what: &str) -> BTreeSet<String> {
    let mut unreadable = BTreeSet::new();
    for file in fs.list(dir) {
        let Ok(number) = file.parse::<usize>() else { continue };
        let (expected, ino) = (bytes_of(number), fs.find(dir, &file).unwrap().ino);
        let handle = fs.open_as(ino, READ);
        for start in (0..BYTES).step_by(CHUNK) {
            let end = BYTES.min(start + CHUNK);
            match fs.read(ino, handle, start as u64, end - start) {
                Ok(bytes) => {
                    assert!(bytes[..] == expected[start..end], "{what}: {file} at {start}")
                }
                Err(FsError::Damaged(text)) => {
                    assert!(text.contains(&ino.to_string()) || what == "clone", "{text}");
                    unreadable.insert(file.clone());
                }
                Err(error) => panic!("{what}: {file} at {start}: {error}"),
            }
        }
        fs.release(ino, handle).unwrap();
    }
    unreadable
}

fn lost_in(findings: &[Finding]) -> BTreeSet<String> {
    let paths = findings.iter().filter_map(|finding| match finding {
        Finding::LostBytes { path, .. } => Some(path.strip_prefix("/d/")?.to_owned()),
        _ => None,
    });
    paths.collect()
}

fn damaged(at: u64) -> (Arc<SimEnv>, ViewName) {
    let (env, txn) = sample();
    let table = tables(&env).pop().unwrap();
    env.damage(&table, at, 0x10).unwrap();
    (env, txn)
}

/// Small files of which a repair had lost chunks read as zeros at their full size, and the next check called the store clean.
#[test]
fn lost_chunks_are_errors_wherever_they_are_seen_and_named() {
    let (env, txn) = damaged(1_000_000);
    let report = repaired(&env);
    assert!(report.left.is_clean(), "{:?}", report.left.findings);
    let lost = lost_in(&report.left.findings);
    assert!(!lost.is_empty() && lost.len() < 5, "{lost:?}");
    assert_eq!(report.left.lost as usize, report.left.findings.len());
    let again = repaired(&env);
    assert!(again.did_nothing(), "{:?}", again.mended);
    assert_eq!(lost_in(&again.left.findings), lost);
    let fs = open(&env);
    let snapshot = ViewName { kind: ViewKind::Snapshot, name: "s".to_owned() };
    let (snapshot, txn) = (fs.open_view(&snapshot).unwrap(), fs.open_view(&txn).unwrap());
    for (what, fs, dir) in [
        ("main", &fs, "d"),
        ("snapshot", &snapshot, "d"),
        ("transaction", &txn, "d"),
        ("clone", &fs, "c"),
    ] {
        let dir = fs.find(ROOT, dir).unwrap().ino;
        assert_eq!(unreadable(fs, dir, what), lost, "{what}");
    }
    drop((snapshot, txn));
    assert!(fs.roll_back("s").is_err());
    assert!(fs.send_snapshot("s", None, None, &mut Vec::new(), &mut |_| ()).is_err());
    // What a clone copies of a lost chunk is lost too.
    let clone = fs.find(ROOT, "c").unwrap().ino;
    for file in &lost {
        let ino = fs.find(clone, file).unwrap().ino;
        let handle = fs.open_as(ino, WRITE);
        fs.write(ino, handle, BYTES as u64, b"more", false).unwrap();
        fs.release(ino, handle).unwrap();
    }
    assert_eq!(unreadable(&fs, clone, "clone"), lost);
    fs.close().unwrap();
}

/// Whether nothing is found to be lost after `change` in each file that lost something.
fn is_over_after(change: impl Fn(&VarveFs, InodeId, &str)) -> bool {
    let (env, _) = damaged(1_000_000);
    let lost = lost_in(&repaired(&env).left.findings);
    let fs = open(&env);
    let dir = fs.find(ROOT, "d").unwrap().ino;
    lost.iter().for_each(|file| change(&fs, dir, file));
    fs.close().unwrap();
    drop(fs);
    let dyn_env: Arc<dyn Env> = env.clone();
    let report =
        check_store(dyn_env, Path::new(STORE), &CheckOptions::default(), &mut |_| ()).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    assert!(report.findings.iter().all(|finding| finding.severity() == Severity::Lost));
    report.lost == 0
}

#[test]
fn what_is_written_anew_cut_off_zeroed_or_removed_is_lost_no_more() {
    assert!(!is_over_after(|_, _, _| ()));
    let ino = |fs: &VarveFs, dir, file: &str| fs.find(dir, file).unwrap().ino;
    assert!(is_over_after(|fs, dir, file| fs.put_at(ino(fs, dir, file), 0, &[5; BYTES])));
    assert!(is_over_after(|fs, dir, file| fs.cut(ino(fs, dir, file), 0)));
    assert!(is_over_after(|fs, dir, file| fs.unlink(dir, name(file)).unwrap()));
    // A cut within a lost chunk leaves its beginning lost; a write to a part of it is refused.
    is_over_after(|fs, dir, file| {
        let ino = ino(fs, dir, file);
        let handle = fs.open_as(ino, WRITE);
        let at =
            (0..4).map(|index| fs.write(ino, handle, index * CHUNK as u64 + 10, b"part", false));
        assert!(at.filter(|written| matches!(written, Err(FsError::Damaged(_)))).count() > 0);
        fs.release(ino, handle).unwrap();
        fs.setattr(Caller::ROOT, ino, varve_vfs::SetAttr { size: Some(100), ..Default::default() })
            .unwrap();
    });
}
