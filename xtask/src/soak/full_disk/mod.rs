//! Stores on small devices that are filled, killed and emptied, on the file systems of this machine.
//!
//! One number makes a [`Case`]: the file system and its size, what fills it, whether a snapshot holds a part, other files take room
//! or inodes are used up, and whether the daemon is killed, and when.
//!
//! 1. The store is filled until nothing more is taken, or its daemon is killed before.
//! 2. On the device as it is a check passes, a read-only mount shows the files, and the store mounts.
//! 3. A clone that nobody has looked at before has all that its original has.
//! 4. All of it can be removed, one after the other, without one refusal.
//! 5. The room comes back within a minute, and files are taken again.
//!
//! A case that fails is told, and the others go on; so the table is one of all.

mod fill;
mod storage;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use fill::{Fill, Progress};
use storage::{Kind, Storage};

use super::Task;
use crate::machine::{self, Scratch, Varve};
use crate::random::Random;
use crate::run::{Failure, Outcome, Step};

/// How long the room may take to come back.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(60);
/// The part of a device, in percent, that may be missing where everything was removed; what is there of an empty store, beside what it
/// holds for itself, which is there at the beginning, too.
const MISSING_PERCENT_MAX: u64 = 4;
/// And so many bytes: logs with the room ahead of them.
const MISSING_BYTES_MAX: u64 = 6 << 20;
/// How often an unmount is tried again, and how long that waits.
const BUSY_TRIES: u32 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(200);
/// Lines of the daemons' log that are shown of a case that is wrong, the last ones.
const LOG_LINES_MAX: usize = 20;
/// The directory that is cloned, and its clone.
const ORIGINAL: &str = "original";
const CLONE: &str = "copy";
/// The most bytes that are cloned.
const CLONED_BYTES_MAX: u64 = 24 << 20;
/// The daemon is killed within this time.
const KILL_WITHIN_MS: u64 = 20_000;

/// What is done to one store.
#[derive(Clone, Copy, Debug)]
struct Case {
    seed: u64,
    kind: Kind,
    mib: u64,
    fill: Fill,
    /// A snapshot holds files that were removed.
    is_held: bool,
    /// Files of others take half of the room.
    has_others: bool,
    /// No more files can be made on the device.
    no_inodes: bool,
    /// A clone is there, and nobody looks at it before the device is full.
    has_clone: bool,
    /// When the daemon is killed; not if it is unmounted.
    kill_after: Option<Duration>,
}

impl Case {
    /// Four seeds one after the other take all file systems; of eight such fours two have larger devices.
    fn of(seed: u64) -> Case {
        let mut random = Random::new(seed + 1);
        let kinds = Kind::ALL.len() as u64;
        let kind = Kind::ALL[(seed % kinds) as usize];
        let mib = match seed / kinds % 8 {
            5 => 1024 + random.below(1024),
            // Not of memory.
            7 if kind != Kind::Tmpfs => 2048 + random.below(8192),
            _ => kind.least_mib() + random.below(100),
        };
        Case {
            seed,
            kind,
            mib,
            fill: Fill::ALL[random.below(Fill::ALL.len() as u64) as usize],
            is_held: random.below(3) == 0,
            has_others: random.below(3) == 0,
            no_inodes: kind.has_inode_limit() && random.below(4) == 0,
            kill_after: (random.below(3) > 0)
                .then(|| Duration::from_millis(random.below(KILL_WITHIN_MS))),
            has_clone: random.below(2) == 0,
        }
    }

    fn told(&self) -> String {
        let mut beside = Vec::new();
        let parts = [
            (self.is_held, "held"),
            (self.has_others, "others"),
            (self.no_inodes, "inodes"),
            (self.has_clone, "clone"),
        ];
        for (is, what) in parts {
            beside.extend(is.then_some(what));
        }
        let end = match self.kill_after {
            Some(after) => format!("kill {:.1} s", after.as_secs_f64()),
            None => "unmount".to_owned(),
        };
        let (kind, fill) = (self.kind.name(), self.fill.name());
        format!(
            "{:>6}  {kind:<5} {:>5} MiB  {fill:<12}  {:<25}  {end:<11}",
            self.seed,
            self.mib,
            beside.join(" ")
        )
    }
}

/// What came of a case.
#[derive(Default)]
struct Came {
    files: u64,
    removed: u64,
    /// Until the room was back.
    waited: Duration,
}

/// Goes on for the rounds or the time that the task says.
pub(super) fn run(task: &Task) -> Outcome {
    let program = machine::varve_program(task.how.varve.as_deref())?;
    machine::enter_private_namespace()?;
    if !rustix::process::geteuid().is_root() {
        return Err("it takes root to mount file systems\nhint: run it as root".into());
    }
    let begin = Instant::now();
    let (mut cases, mut failed, mut left_out) = (0, 0, 0);
    println!(
        "  seed  storage           fill          beside                     end          outcome"
    );
    for seed in task.how.seed.. {
        let is_over = match task.rounds {
            Some(rounds) => cases >= rounds,
            None => begin.elapsed() >= task.time(),
        };
        if is_over {
            break;
        }
        cases += 1;
        let case = Case::of(seed);
        if !case.kind.is_there() {
            left_out += 1;
            println!("{}  left out: there is no mkfs.{}", case.told(), case.kind.name());
            continue;
        }
        let scratch = Scratch::new(task.how.base.as_deref())?;
        match one(&case, task, &program, &scratch) {
            Ok(Came { files, removed, waited }) => println!(
                "{}  right: {files} files, {removed} names removed, room after {:.1} s",
                case.told(),
                waited.as_secs_f64()
            ),
            Err(error) => {
                failed += 1;
                println!("{}  WRONG: {error}", case.told());
                let log = fs::read_to_string(scratch.path(machine::LOG_NAME)).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                for line in &lines[lines.len().saturating_sub(LOG_LINES_MAX)..] {
                    println!("        {line}");
                }
            }
        }
    }
    println!(
        "full-disk: {cases} cases in {} s, {failed} wrong, {left_out} left out",
        begin.elapsed().as_secs()
    );
    match failed {
        0 => Ok(()),
        _ => Err(format!(
            "{failed} of {cases} cases are wrong\nhint: `cargo xtask soak full-disk --rounds 1 --seed SEED` repeats one"
        )
        .into()),
    }
}

fn one(case: &Case, task: &Task, program: &Path, scratch: &Scratch) -> Result<Came, Failure> {
    let inodes_max = if case.no_inodes { 1000 } else { 0 };
    let storage = Storage::make(case.kind, case.mib, inodes_max, &scratch.dir("device")?)?;
    let store = storage.dir().join("store");
    let mut varve = Varve::format_at(program, scratch, &store, &task.how.mount_arg)?;
    let came = on(case, &storage, &mut varve);
    // Nothing may be open there when it is unmounted.
    drop(varve);
    let came = came?;
    storage.end()?;
    Ok(came)
}

fn on(case: &Case, storage: &Storage, varve: &mut Varve) -> Result<Came, Failure> {
    let mut random = Random::new(case.seed + 7);
    let mut came = Came::default();
    varve.mount()?;
    let empty = storage.left()?;
    let root = varve.mount_point().to_path_buf();
    if case.is_held {
        hold(varve, &root, case, empty.available_bytes / 4, &mut random)?;
    }
    if case.has_clone {
        let bytes = CLONED_BYTES_MAX.min(empty.available_bytes / 8);
        clone(varve, &root, case, bytes, &mut random)
            .map_err(|error| format!("a clone: {error}"))?;
    }
    let others = storage.dir().join("others");
    if case.has_others {
        let available = || Ok(storage.left().map_err(io::Error::other)?.available_bytes);
        fill::fill_beside(&others, empty.available_bytes / 3, available)
            .map_err(|error| format!("files of others: {error}"))?;
    }
    let spare = storage.dir().join("inodes");
    came.files = fill_up(case, &spare, varve, &mut random)?;
    let named =
        |what: &'static str| move |error: Failure| -> Failure { format!("{what}: {error}").into() };
    varve.fsck().map_err(named("the check"))?;
    varve.mount_with(&["-o", "ro"]).map_err(named("the read-only mount"))?;
    fs::read_dir(&root)?.try_for_each(|entry| entry.map(drop))?;
    unmount(varve).map_err(named("the unmount of the read-only mount"))?;
    varve.mount().map_err(named("the mount"))?;
    if case.is_held {
        let delete = Step::new(varve.program()).args(["snapshot", "delete"]);
        delete.arg(&root).arg("held").quiet().map_err(named("the snapshot"))?;
    }
    if case.has_clone {
        compare(&root.join(ORIGINAL), &root.join(CLONE))?;
    }
    came.removed = fill::empty(&root)?;
    let others_bytes = fs::metadata(&others).map_or(0, |file| file.len());
    let wanted = empty
        .available_bytes
        .saturating_sub(others_bytes)
        .saturating_sub(empty.total_bytes * MISSING_PERCENT_MAX / 100 + MISSING_BYTES_MAX);
    // Others may have left too little to expect any.
    let expects_room = !case.no_inodes && wanted > 0;
    let write = || if expects_room { write_again(&root, wanted / 2) } else { Ok(()) };
    came.waited = wait_for_room(storage, wanted, write)?;
    unmount(varve).map_err(named("the last unmount"))?;
    varve.fsck().map_err(named("the last check"))?;
    Ok(came)
}

/// Fills the store, and unmounts it or kills its daemon meanwhile. Says how many files it took.
fn fill_up(
    case: &Case,
    spare: &Path,
    varve: &mut Varve,
    random: &mut Random,
) -> Result<u64, Failure> {
    let progress = Progress::default();
    let files = varve.mount_point().join("files");
    // Others may have left none.
    let most = match fs::create_dir(&files) {
        Err(error) if fill::is_full(&error) => 0,
        made => made.map(|()| u64::MAX).map_err(|error| format!("a directory: {error}"))?,
    };
    if case.no_inodes {
        fill::use_inodes_up(spare)?;
    }
    thread::scope(|scope| -> Outcome {
        let filling = scope.spawn(|| fill::fill(&files, case.fill, random, most, &progress));
        let begin = Instant::now();
        if let Some(after) = case.kill_after {
            while begin.elapsed() < after && !filling.is_finished() {
                thread::sleep(Duration::from_millis(5));
            }
            progress.stop.store(true, Ordering::Relaxed);
            varve.kill()?;
            // Whatever it was told then.
            let _ = filling.join();
            return Ok(());
        }
        match filling.join() {
            Ok(filled) => filled.map_err(|error| format!("while it was filled: {error}").into()),
            Err(_) => Err("the filler panicked".into()),
        }
    })?;
    if case.kill_after.is_none() {
        unmount(varve).map_err(|error| format!("unmount: {error}"))?;
    }
    Ok(progress.files.load(Ordering::Relaxed))
}

/// Waits until `wanted` bytes are available and `write` finds room; says how long that took.
fn wait_for_room(
    storage: &Storage,
    wanted: u64,
    write: impl Fn() -> io::Result<()>,
) -> Result<Duration, Failure> {
    let begin = Instant::now();
    loop {
        let left = storage.left()?.available_bytes;
        // Writing takes its own time.
        let waited = begin.elapsed();
        let missing = match left < wanted {
            true => format!("{} MiB of {} have not come back", (wanted - left) >> 20, wanted >> 20),
            false => match write() {
                Ok(()) => return Ok(waited),
                Err(error) if fill::is_full(&error) => format!("files again: {error}"),
                Err(error) => return Err(error.into()),
            },
        };
        if waited > ROOM_WAIT_MAX {
            return Err(missing.into());
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Unmounts, after a while where somebody is looking into the mount, as programs do that go through all of them.
fn unmount(varve: &mut Varve) -> Outcome {
    for _ in 0..BUSY_TRIES {
        if varve.unmount().is_ok() {
            return Ok(());
        }
        thread::sleep(BUSY_PAUSE);
    }
    varve.unmount()
}

/// Files that are removed, and that a snapshot holds.
fn hold(varve: &Varve, root: &Path, case: &Case, bytes: u64, random: &mut Random) -> Outcome {
    let dir = root.join("held");
    fs::create_dir(&dir)?;
    fill::fill(&dir, case.fill, random, bytes, &Progress::default())?;
    let create = Step::new(varve.program()).args(["snapshot", "create"]);
    create.arg(root).arg("held").quiet()?;
    fill::empty(&dir)?;
    Ok(())
}

/// A directory with files of `bytes` bytes, and a clone of it.
fn clone(varve: &Varve, root: &Path, case: &Case, bytes: u64, random: &mut Random) -> Outcome {
    let (dir, to) = (root.join(ORIGINAL), root.join(CLONE));
    fs::create_dir(&dir)?;
    fill::fill(&dir, case.fill, random, bytes, &Progress::default())?;
    Step::new(varve.program()).arg("clone").arg(&dir).arg(&to).quiet()
}

/// Fails unless `clone` has the names and bytes that `original` has.
fn compare(original: &Path, clone: &Path) -> Outcome {
    let named = |error: io::Error| format!("{}: {error}", clone.display());
    let mut names: Vec<_> = fs::read_dir(clone)
        .and_then(|dir| dir.map(|entry| Ok(entry?.file_name())).collect())
        .map_err(named)?;
    let mut expected: Vec<_> =
        fs::read_dir(original)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
    names.sort();
    expected.sort();
    if names != expected {
        return Err(format!("{} has other names", clone.display()).into());
    }
    for name in names {
        let (one, other) = (original.join(&name), clone.join(&name));
        if fs::symlink_metadata(&other).map_err(named)?.is_dir() {
            compare(&one, &other)?;
        } else if fs::read(&one)?
            != fs::read(&other).map_err(|error| format!("{}: {error}", other.display()))?
        {
            return Err(format!("{} has other bytes", other.display()).into());
        }
    }
    Ok(())
}

/// A large file of `bytes` bytes and a small one are taken again.
fn write_again(root: &Path, bytes: u64) -> io::Result<()> {
    let large = root.join("again");
    let mut source = io::Read::take(io::repeat(7), bytes);
    let mut file = fs::File::create(&large)?;
    io::copy(&mut source, &mut file)?;
    file.sync_all()?;
    fs::write(root.join("small"), [7; 100])?;
    fs::remove_file(large)
}
