//! Serializable transactions side by side, of which more or fewer meet each other: the experiment of KVFS (thesis 4.2.2,
//! figures 4.2 and 4.3) on files.
//!
//! Four threads each run transactions that write files of 4 KiB in directories of their own; of every hundred so many as
//! the overlap says first change one file that all share, and so wait for each other. Prints, for each overlap, the time of
//! the operations and of the commits of all threads together, how long it all took, and how often a transaction began
//! again, beside the thesis's seconds (1,920 transactions of 16 MB).
//!
//! `cargo run --release -p varve-fs --example overlap [TRANSACTIONS FILES]`
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use varve_env::Env;
use varve_env::os::OsEnv;
use varve_fs::{
    CommitError, FormatOptions, Isolation, MountOptions, TransactionOptions, VarveFs, format,
};
use varve_types::{FileName, InodeId};
use varve_vfs::{Blocked, Caller, FsError, FsResult, OpenFlags, Vfs};

const THREADS: u64 = 4;
const FILE_BYTES: usize = 4096;
const WRITE: OpenFlags = OpenFlags {
    read: false,
    write: true,
    append: false,
    appends: false,
    truncate: false,
    exclusive: false,
    sync: false,
    execute: false,
};

/// What the thesis has for 0 and 100 percent: seconds of operations, of commits, and in all.
const THESIS: [(u64, [f64; 3]); 2] = [(0, [29.7, 819.74, 846.13]), (100, [555.07, 324.69, 852.07])];

/// Makes a call, and again as long as locks are in its way.
fn call<T>(fs: &VarveFs, mut work: impl FnMut() -> FsResult<T>) -> FsResult<T> {
    loop {
        let blocked: Blocked = match work() {
            Err(FsError::Blocked(blocked)) => blocked,
            other => return other,
        };
        fs.wait_for_locks(&blocked, Duration::from_millis(100));
        fs.wait_is_over(&blocked);
    }
}

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

fn write(fs: &VarveFs, dir: InodeId, text: &str, bytes: &[u8]) -> FsResult<()> {
    let (entry, opened) = call(fs, || fs.create(Caller::ROOT, dir, name(text), 0o644, WRITE))?;
    let ino = entry.attr.ino;
    let written = call(fs, || fs.write(ino, opened.handle, 0, bytes, false));
    fs.release(ino, opened.handle)?;
    fs.forget(ino, 1);
    written.map(drop)
}

/// The time of operations and of commits, in nanoseconds, and how often a transaction began again.
#[derive(Default)]
struct Sums {
    operations: AtomicU64,
    commits: AtomicU64,
    again: AtomicU64,
}

impl Sums {
    fn add(sum: &AtomicU64, since: Instant) {
        sum.fetch_add(since.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

fn transaction(fs: &VarveFs, sums: &Sums, place: (u64, u64), files: u64, meets: bool) {
    let isolation = Isolation::Serializable;
    let options = TransactionOptions { isolation, ..TransactionOptions::default() };
    let bytes = vec![place.0 as u8; FILE_BYTES];
    loop {
        let txn = fs.begin_transaction(InodeId::ROOT, &options).unwrap();
        let view = fs.open_view(&txn).unwrap();
        let since = Instant::now();
        let done = (|| {
            if meets {
                write(&view, InodeId::ROOT, "shared", &bytes)?;
            }
            let text = format!("t{}-{}", place.0, place.1);
            let dir = call(&view, || view.mkdir(Caller::ROOT, InodeId::ROOT, name(&text), 0o755))?;
            (0..files).try_for_each(|n| write(&view, dir.attr.ino, &format!("f{n}"), &bytes))
        })();
        Sums::add(&sums.operations, since);
        let since = Instant::now();
        let committed = match done {
            Ok(()) => fs.commit_transaction(&txn.name, &view).map(drop),
            Err(error) => Err(error.into()),
        };
        Sums::add(&sums.commits, since);
        match committed {
            Ok(()) => return,
            Err(CommitError::DeadlockVictim(_)) => {
                sums.again.fetch_add(1, Ordering::Relaxed);
                drop(view);
                fs.abort_transaction(&txn.name).unwrap();
            }
            Err(error) => panic!("{error:?}"),
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().unwrap());
    let (transactions, files) = (arguments.next().unwrap_or(240), arguments.next().unwrap_or(256));
    println!(
        "{transactions} transactions of {files} files of {FILE_BYTES} bytes, {THREADS} threads"
    );
    println!(
        "overlap  operations s  commits s   all s  again   thesis: operations  commits     all"
    );
    for overlap in [0, 50, 100] {
        let dir = tempfile::tempdir().unwrap();
        let (env, store): (Arc<dyn Env>, _) = (OsEnv::new(), dir.path().join("store"));
        format(&env, &store, &FormatOptions::default()).unwrap();
        let fs = VarveFs::open(env, &store, MountOptions::default()).unwrap();
        write(&fs, InodeId::ROOT, "shared", b"x").unwrap();
        let (sums, since) = (Sums::default(), Instant::now());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (fs, sums) = (&fs, &sums);
                scope.spawn(move || {
                    for n in 0..transactions / THREADS {
                        transaction(fs, sums, (thread, n), files, n * 100 % 200 < overlap * 2);
                    }
                });
            }
        });
        let seconds = |sum: &AtomicU64| sum.load(Ordering::Relaxed) as f64 / 1e9;
        let all = since.elapsed().as_secs_f64();
        let thesis = THESIS.iter().find(|(of, _)| *of == overlap).map(|(_, seconds)| *seconds);
        let thesis = thesis.map_or_else(String::new, |[operations, commits, all]| {
            format!("{operations:18.2} {commits:8.2} {all:7.2}")
        });
        println!(
            "{overlap:6}% {:13.2} {:10.2} {all:7.2} {:6}   {thesis}",
            seconds(&sums.operations),
            seconds(&sums.commits),
            sums.again.load(Ordering::Relaxed),
        );
        fs.close().unwrap();
    }
}
