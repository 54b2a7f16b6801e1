//! What it costs to find a file by its number alone, as a handle does that the kernel has forgotten: makes files in directories of a
//! thousand, forgets them, and finds some.
//!
//! Prints, for a directory, for files each of which takes a search, for those that a search before it has found the places of, and for
//! a file that was removed, the mean time and the mean time that the CPU worked for it.
//!
//! `cargo run --release -p varve-fs --example by_number [FILES]`
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::print_stdout)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use varve_env::Env;
use varve_env::os::OsEnv;
use varve_fs::{FormatOptions, MountOptions, VarveFs, format};
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, Vfs};

const FILES_PER_DIR: u64 = 1000;
/// Files that lie further apart are found by different searches.
const APART: u64 = 1 << 15;

/// For how long this thread has worked.
fn worked() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// Finds each of `inos` and forgets it again.
fn find(fs: &VarveFs, what: &str, inos: &[InodeId]) {
    let (began, before, mut found) = (Instant::now(), worked(), 0);
    for ino in inos {
        if fs.lookup_inode(*ino).is_ok() {
            fs.forget(*ino, 1);
            found += 1;
        }
    }
    let count = u32::try_from(inos.len()).unwrap();
    let (took, work) = (began.elapsed() / count, (worked() - before) / count);
    println!(
        "{what:<40} {count:>6} asked for, {found:>6} found, {took:>12.3?} each, {work:>12.3?} of the CPU"
    );
}

fn main() {
    let files: u64 = std::env::args().nth(1).map_or(1_000_000, |files| files.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let env: Arc<dyn Env> = OsEnv::new();
    format(&env, &store, &FormatOptions::default()).unwrap();
    let fs = VarveFs::open(env, &store, MountOptions::default()).unwrap();
    let name = |text: String| text.into_bytes();
    let (mut dirs, mut inos) = (Vec::new(), Vec::new());
    for number in 0..files {
        if number % FILES_PER_DIR == 0 {
            let text = name(format!("d{number}"));
            let made = fs.mkdir(Caller::ROOT, InodeId::ROOT, FileName::new(&text).unwrap(), 0o755);
            dirs.push(made.unwrap().attr.ino);
        }
        let (parent, text) = (*dirs.last().unwrap(), name(format!("f{number}")));
        let made = fs.mknod(Caller::ROOT, parent, FileName::new(&text).unwrap(), 0o100_644, 0);
        inos.push(made.unwrap().attr.ino);
        fs.forget(*inos.last().unwrap(), 1);
    }
    dirs.iter().for_each(|dir| fs.forget(*dir, 1));
    find(&fs, "directories", &dirs);
    let apart: Vec<InodeId> = inos.iter().copied().step_by(APART as usize).collect();
    find(&fs, "files of different searches", &apart);
    let last = inos.len().saturating_sub(APART as usize / 2);
    find(&fs, "files whose places a search has found", &inos[last..]);
    let gone = inos.len() - 1;
    let text = name(format!("f{gone}"));
    fs.unlink(*dirs.last().unwrap(), FileName::new(&text).unwrap()).unwrap();
    find(&fs, "a file that was removed, three times", &[inos[gone]; 3]);
    fs.close().unwrap();
}
