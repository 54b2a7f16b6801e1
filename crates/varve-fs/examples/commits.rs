//! Small transactions that are committed at the same moment, and so share their syncs.
//!
//! Each of some threads begins a transaction, makes files of a kilobyte in it, commits, and begins the next one, with a directory
//! of its own, so that none meets another. Prints commits a second, the time from the call of a commit to its answer, and how
//! often the log was synced for each.
//!
//! `cargo run --release -p varve-fs --example commits [SECONDS FILES THREADS...]`
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use varve_env::Env;
use varve_env::os::OsEnv;
use varve_fs::{FormatOptions, MountOptions, TransactionOptions, VarveFs, format};
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, OpenFlags, Vfs};

const FILE_BYTES: usize = 1024;

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

/// Runs one transaction in `dir`; gives how long its commit took.
fn transaction(fs: &VarveFs, dir: InodeId, number: u64, files: u64) -> Duration {
    let txn = fs.begin_transaction(dir, &TransactionOptions::default()).unwrap();
    let view = fs.open_view(&txn).unwrap();
    let flags = OpenFlags { write: true, ..OpenFlags::default() };
    for file in 0..files {
        let text = format!("{number}-{file}");
        let (entry, opened) = view.create(Caller::ROOT, dir, name(&text), 0o644, flags).unwrap();
        view.write(entry.attr.ino, opened.handle, 0, &[7; FILE_BYTES], false).unwrap();
        view.release(entry.attr.ino, opened.handle).unwrap();
        view.forget(entry.attr.ino, 1);
    }
    let since = Instant::now();
    fs.commit_transaction(&txn.name, &view).unwrap();
    since.elapsed()
}

fn log_syncs(fs: &VarveFs) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&fs.status_json()).unwrap();
    status["engine"]["counters"]["log_syncs"].as_u64().unwrap()
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().unwrap());
    let (seconds, files) = (arguments.next().unwrap_or(3), arguments.next().unwrap_or(4));
    let threads: Vec<u64> = arguments.collect();
    let threads = if threads.is_empty() { vec![1, 8] } else { threads };
    println!("threads  commits/s  a commit ms  syncs of the log for each");
    for threads in threads {
        let dir = tempfile::tempdir().unwrap();
        let (env, store): (Arc<dyn Env>, _) = (OsEnv::new(), dir.path().join("store"));
        format(&env, &store, &FormatOptions::default()).unwrap();
        let fs = VarveFs::open(env, &store, MountOptions::default()).unwrap();
        let (before, since) = (log_syncs(&fs), Instant::now());
        let run = |thread: u64| {
            let (text, mut took) = (format!("d{thread}"), Vec::new());
            let made = fs.mkdir(Caller::ROOT, InodeId::ROOT, name(&text), 0o755).unwrap();
            while since.elapsed().as_secs() < seconds {
                took.push(transaction(&fs, made.attr.ino, took.len() as u64, files));
            }
            took
        };
        let took: Vec<Duration> = std::thread::scope(|scope| {
            let run = &run;
            let running: Vec<_> = (0..threads).map(|n| scope.spawn(move || run(n))).collect();
            running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let (commits, all) = (took.len() as f64, since.elapsed().as_secs_f64());
        println!(
            "{threads:7} {:10.0} {:12.2} {:26.2}",
            commits / all,
            took.iter().sum::<Duration>().as_secs_f64() * 1e3 / commits,
            (log_syncs(&fs) - before) as f64 / commits,
        );
        fs.close().unwrap();
    }
}
