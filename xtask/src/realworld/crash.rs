//! Killing the daemon in the middle of a copy.
//!
//! 1. A copy of the tree runs, and beside it a writer that makes files of all sizes, syncs every other one,
//!    and remembers each that the file system has acknowledged: synced or not, since the death of a process
//!    may lose nothing that was acknowledged (only the death of the machine may lose what was not synced).
//! 2. The daemon is killed with SIGKILL; both get errors and end.
//! 3. The store must pass its check, mount again, and hold every remembered file byte for byte.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::small_tree;
use super::steps::Side;
use crate::machine::Varve;
use crate::run::{Failure, Outcome};

/// How long the copy runs before the earliest kill.
const RUN_BASE: Duration = Duration::from_millis(150);

/// Steps between the moments of the kills, which go through [`RUN_STEPS`] of them.
const RUN_STEP: Duration = Duration::from_millis(330);

/// Number of different moments.
const RUN_STEPS: u32 = 7;

/// A file that the file system has acknowledged.
struct Promise {
    path: PathBuf,
    seed: u64,
    length: usize,
}

/// Runs one round; returns how many files were promised.
pub(super) fn kill_in_a_copy(varve: &mut Varve, side: &Side, round: u32) -> Result<usize, Failure> {
    let dir = side.root().join(format!("crash-{round}"));
    fs::create_dir(&dir)?;
    let written = dir.join("written");
    fs::create_dir(&written)?;
    let mut copy = Command::new("cp")
        .arg("-a")
        .arg(side.root().join("tree"))
        .arg(dir.join("copy"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let stop = AtomicBool::new(false);
    let promises = thread::scope(|scope| {
        let writer = scope.spawn(|| write_until_it_fails(&written, u64::from(round), &stop));
        thread::sleep(RUN_BASE + RUN_STEP * (round * 3 % RUN_STEPS));
        let killed = varve.kill();
        stop.store(true, Ordering::Relaxed);
        let promises = writer.join().map_err(|_| Failure::from("the writer panicked"));
        killed.and(promises)
    });
    copy.wait()?;
    let promises = promises?;
    varve.fsck().map_err(|error| format!("after kill {round}: {error}"))?;
    varve.mount()?;
    for promise in &promises {
        check(promise)
            .map_err(|error| format!("after kill {round}: {}: {error}", promise.path.display()))?;
    }
    fs::remove_dir_all(&dir)?;
    Ok(promises.len())
}

/// Writes files until the mount dies, and returns what was acknowledged.
fn write_until_it_fails(dir: &Path, round: u64, stop: &AtomicBool) -> Vec<Promise> {
    let mut promises = Vec::new();
    for at in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let length = usize::try_from(at.wrapping_mul(7919) % 40).unwrap_or(0).pow(3) * 3;
        let promise =
            Promise { path: dir.join(format!("file-{at}")), seed: round << 32 | at, length };
        if write(&promise, at % 2 == 0).is_err() {
            break;
        }
        promises.push(promise);
    }
    promises
}

/// Writes under another name, syncs if asked, and renames: the way programs save files.
fn write(promise: &Promise, sync: bool) -> std::io::Result<()> {
    let temporary = promise.path.with_extension("new");
    let mut file = File::create(&temporary)?;
    file.write_all(&small_tree::bytes(promise.seed, promise.length))?;
    if sync {
        file.sync_all()?;
    }
    drop(file);
    fs::rename(&temporary, &promise.path)
}

fn check(promise: &Promise) -> Outcome {
    let found = fs::read(&promise.path)?;
    if found == small_tree::bytes(promise.seed, promise.length) {
        return Ok(());
    }
    Err(format!("{} bytes promised, {} found, or other bytes", promise.length, found.len()).into())
}
