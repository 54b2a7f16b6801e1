//! Crashes while several threads work on one file system, whose own threads flush, compact and sync: each
//! thread's files are found as a prefix of what it made, with all that it synced.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use varve_engine::options::CompactionPolicy;
use varve_env::Env;
use varve_env::sim::SimEnv;
use varve_fs::{MountOptions, VarveFs};
use varve_testkit::at_end;
use varve_testkit::crash::{Image, Subject};
use varve_types::InodeId;
use varve_vfs::{Caller, Vfs};

use crate::crash::STORE;
use crate::crash_points::{Store, tiny_engine};
use crate::interposed;
use crate::support::{BOTH, Calls, ROOT, name, os_env};

const WRITERS: usize = 3;
const ROUNDS: u64 = 16;
/// Files that each thread may make before the next crash.
const FILES_PER_ROUND: u64 = 5;
/// Milliseconds, at least, after which a thread that made no file is stuck.
const PAUSES_MAX: u32 = 100_000;
/// Every so many files one is synced.
const SYNC_EVERY: u64 = 6;

/// What one thread has done.
#[derive(Default)]
struct Progress {
    made: AtomicU64,
    synced: AtomicU64,
}

fn pause() {
    os_env().sleep(Duration::from_millis(1));
}

fn content(writer: usize, number: u64) -> Vec<u8> {
    let len = [10, 700, 5000, 20_000][number as usize % 4] + number as usize % 50;
    vec![(number as u8) ^ ((writer as u8) << 6) | 1; len]
}

/// Makes files as long as there are `allowed` ones to make.
fn make_files(fs: &VarveFs, writer: usize, dir: InodeId, progress: &Progress, allowed: &AtomicU64) {
    for number in 0.. {
        while number >= allowed.load(Ordering::Relaxed) {
            pause();
        }
        if number >= FILES_PER_ROUND * ROUNDS {
            return;
        }
        let text = format!("f{number}");
        let (entry, opened) = fs.create(Caller::ROOT, dir, name(&text), 0o644, BOTH).unwrap();
        let ino = entry.attr.ino;
        for (part, offset) in content(writer, number).chunks(6000).zip((0..).step_by(6000)) {
            fs.write(ino, opened.handle, offset, part, false).unwrap();
        }
        if number % SYNC_EVERY == 0 {
            fs.fsync(ino, opened.handle, false).unwrap();
            progress.synced.store(number + 1, Ordering::SeqCst);
        }
        fs.release(ino, opened.handle).unwrap();
        fs.forget(ino, 1);
        progress.made.store(number + 1, Ordering::SeqCst);
    }
}

/// Checks one thread's files: `least` must be there, and no more than `most`.
fn check_writer(fs: &VarveFs, writer: usize, least: u64, most: u64) -> Result<u64, String> {
    let dir = fs.find(ROOT, &format!("d{writer}")).map_err(|error| error.to_string())?.ino;
    let there = fs.list(dir).len() as u64;
    if !(least..=most).contains(&there) {
        return Err(format!("writer {writer}: {there} files, not {least} to {most}"));
    }
    for number in 0..there {
        let found = fs.find(dir, &format!("f{number}"));
        let ino = found.map_err(|error| format!("writer {writer}, file {number}: {error}"))?.ino;
        let (found, expected) = (fs.contents(ino), content(writer, number));
        // The last one may have been under way.
        let whole = number < least || number + 1 < there;
        if whole && found != expected {
            let (has, of) = (found.len(), expected.len());
            return Err(format!("writer {writer}, file {number}: {has} of {of} bytes, or others"));
        }
    }
    Ok(there)
}

#[test]
fn crashes_among_threads_leave_prefixes_with_all_that_was_synced() {
    let sim = SimEnv::new(1);
    Store.format(&sim).unwrap();
    let env: Arc<dyn Env> = Arc::new(interposed::with_threads(&sim));
    let (options, engine) = (MountOptions::default(), tiny_engine(CompactionPolicy::Leveled));
    let fs = VarveFs::open_with(env, Path::new(STORE), options, engine).unwrap();
    let dirs: Vec<InodeId> = (0..WRITERS).map(|i| fs.mk_dir(ROOT, &format!("d{i}"))).collect();
    fs.sync().unwrap();
    let progress: [Progress; WRITERS] = Default::default();
    let allowed = AtomicU64::new(0);
    let mut found = 0;
    let failure = std::thread::scope(|scope| {
        let (fs, progress, allowed) = (&fs, &progress, &allowed);
        for (writer, dir) in dirs.into_iter().enumerate() {
            scope.spawn(move || make_files(fs, writer, dir, &progress[writer], allowed));
        }
        let _end = at_end(|| allowed.store(u64::MAX, Ordering::Relaxed));
        (0..ROUNDS).find_map(|round| {
            let until = round * FILES_PER_ROUND + 2;
            allowed.store((round + 1) * FILES_PER_ROUND, Ordering::Relaxed);
            let mut pauses = 0;
            while progress[0].made.load(Ordering::SeqCst) < until {
                pause();
                pauses += 1;
                if pauses > PAUSES_MAX {
                    return Some("the first writer stands still".to_owned());
                }
            }
            crash_now(&sim, progress, round).map(|files| found += files).err()
        })
    });
    assert_eq!(failure, None);
    assert!(found > 1000, "{found} files found");
    fs.close().unwrap();
}

/// Copies the machine as it is, makes images of it, and checks each; returns how many files there were.
fn crash_now(sim: &SimEnv, progress: &[Progress], round: u64) -> Result<u64, String> {
    let load = |of: fn(&Progress) -> &AtomicU64| -> Vec<u64> {
        progress.iter().map(|progress| of(progress).load(Ordering::SeqCst)).collect()
    };
    let (synced, made) = (load(|p| &p.synced), load(|p| &p.made));
    let copy = sim.copy();
    let most: Vec<u64> = load(|p| &p.made).iter().map(|made| made + 1).collect();
    let mut files = 0;
    let cuts = [Image::Cut(round), Image::Cut(round + 1000), Image::Stale(round)];
    for image in [Image::Nothing, Image::All, Image::Kill].into_iter().chain(cuts) {
        let named = |error: String| format!("round {round}, {image}: {error}");
        let fs = Store.open(&image.of(&copy)).map_err(named)?;
        let least = if image == Image::Kill { &made } else { &synced };
        for writer in 0..WRITERS {
            files += check_writer(&fs, writer, least[writer], most[writer]).map_err(named)?;
        }
        let problems = Store.problems(&fs).map_err(named)?;
        if !problems.is_empty() {
            return Err(named(problems.join("; ")));
        }
    }
    Ok(files)
}
