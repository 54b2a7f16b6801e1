//! Crashes on disks that are full: whatever fills them, however they give room out, and wherever that ends, a refused call
//! changes nothing, and what is left opens on the disk as it is, can be emptied, and then takes new files.
//!
//! 1. A seeded script is made on the disk, so that it is known which of its calls find no room ([`Script::on_full_disk`]).
//! 2. It runs again, and is crashed before operations on the disk ([`varve_testkit::crash::explore`]). What a crash left is opened
//!    with no more room than there was, compared with what may be found, checked, emptied, and written to.
//!
//! One number makes a disk, what fills it, the script and the crashes; a failure prints it, and the ignored test `soak` goes on
//! with others.

use std::path::Path;
use std::sync::Arc;

use varve_engine::options::{CompactionPolicy, DbOptions};
use varve_env::Env;
use varve_env::sim::{RoomRules, SimEnv};
use varve_fs::fsck::Severity;
use varve_fs::{MountOptions, NewFiles, TransactionOptions, VarveFs};
use varve_testkit::crash::{
    Exploration, Fits, Found, Script, ScriptOptions, Step, Subject, Tally, Violation, explore,
};
use varve_testkit::fsops::{Answer, Op, Session};
use varve_testkit::rng::{Rng, mix};
use varve_types::Errno;
use varve_vfs::{Caller, FileType, FsError, Vfs};

use crate::crash::STORE;
use crate::crash_points::{Store, THRESHOLD_BYTES, new_large, tiny_engine};
use crate::support::{BOTH, Calls, ROOT, name};

const KIB: u64 = 1 << 10;
/// Its reserve is 512 KiB.
const DISK_BYTES: u64 = 8 << 20;
const RESERVE_BYTES: u64 = DISK_BYTES / 16;
/// What an empty store may take beside its reserve: two logs with the room ahead of them, manifests, and tables of what is not
/// merged yet.
const EMPTY_BYTES_MAX: u64 = 1 << 20;

/// Before how many operations on the disk others fill it: what the store gives back in between goes, too.
const FILL_MOMENTS: [u64; 3] = [40, 300, 700];

/// One disk, and what fills it.
#[derive(Clone, Debug)]
struct Disk {
    rules: RoomRules,
    /// Others leave so much, beside what the store holds, each time once so many operations were made on the disk.
    others: Vec<(u64, u64)>,
    /// The store has a reserve.
    has_reserve: bool,
    /// A snapshot holds files that were removed, a transaction has written, and a dictionary has pairs.
    is_held: bool,
    new_files: NewFiles,
}

impl Disk {
    fn of(seed: u64) -> Disk {
        let mut rng = Rng::new(mix(seed));
        let plain = RoomRules { metadata: true, ..RoomRules::default() };
        let left = |rng: &mut Rng| if rng.chance(40) { 0 } else { rng.below(100) * KIB };
        let rules = [
            plain,
            RoomRules { copies_on_write: true, frees_late: true, ..plain },
            RoomRules { frees_late: true, ..plain },
            RoomRules { inodes_max: rng.between(50, 100), ..plain },
            RoomRules { unusable_bytes: 256 * KIB, ..plain },
        ];
        Disk {
            rules: rules[(seed % rules.len() as u64) as usize],
            others: FILL_MOMENTS
                .iter()
                .map(|before| (rng.below(*before), left(&mut rng)))
                .collect(),
            has_reserve: true,
            is_held: rng.chance(50),
            new_files: if rng.chance(30) { NewFiles::Large } else { NewFiles::Auto },
        }
    }

    fn options(&self) -> MountOptions {
        MountOptions { new_files: self.new_files, ..MountOptions::default() }
    }
}

impl Subject for Disk {
    type Fs = VarveFs;

    fn format(&self, env: &Arc<SimEnv>) -> Result<(), String> {
        env.set_capacity(DISK_BYTES);
        env.set_room_rules(self.rules);
        Store.format(env)?;
        if self.is_held {
            let fs = self.open(env)?;
            hold(&fs).map_err(|error| format!("what is held: {error}"))?;
            self.close(fs)?;
        }
        for (after, left_bytes) in &self.others {
            env.fill_after(env.op_count() + after, *left_bytes);
        }
        Ok(())
    }

    fn open(&self, env: &Arc<SimEnv>) -> Result<VarveFs, String> {
        let policy = [CompactionPolicy::Leveled, CompactionPolicy::LazyLeveled];
        let policy = policy[(env.boot_id() >> 64) as usize % policy.len()];
        let engine = DbOptions {
            space_reserve_bytes: if self.has_reserve { 2 * RESERVE_BYTES } else { 0 },
            ..tiny_engine(policy)
        };
        let dyn_env: Arc<dyn Env> = Arc::clone(env) as _;
        VarveFs::open_with(dyn_env, Path::new(STORE), self.options(), engine)
            .map_err(|error| error.to_string())
    }

    fn problems(&self, fs: &VarveFs) -> Result<Vec<String>, String> {
        let report = fs.check(&mut |_| ()).map_err(|error| format!("check: {error}"))?;
        // Without room a mount leaves unfinished work to the next.
        let broken = report.findings.iter().filter(|f| f.severity() == Severity::Error);
        Ok(broken.map(ToString::to_string).collect())
    }

    fn close(&self, fs: VarveFs) -> Result<(), String> {
        Store.close(fs)
    }

    /// All of it goes, on the disk as it is; then there is room again.
    fn check_usable(&self, env: &Arc<SimEnv>, fs: VarveFs, _: &Found) -> Result<(), String> {
        empty(&fs).map_err(|error| format!("it cannot be emptied: {error}"))?;
        let problems = self.problems(&fs)?;
        if !problems.is_empty() {
            return Err(format!("emptied: {}", problems.join("; ")));
        }
        // Others leave what a store needs that begins.
        env.fill(2 * RESERVE_BYTES + EMPTY_BYTES_MAX);
        write_probe(&fs)
            .map_err(|error| format!("nothing can be written where all was removed: {error}"))?;
        self.close(fs).map_err(|error| format!("close: {error}"))?;
        let used = env.used_bytes();
        if used > RESERVE_BYTES + EMPTY_BYTES_MAX {
            return Err(format!("empty, and it takes {used} bytes"));
        }
        Ok(())
    }
}

/// Puts into the store what holds room without a file.
fn hold(fs: &VarveFs) -> Result<(), FsError> {
    for (text, bytes) in [("small", 3000), ("large", 3 * THRESHOLD_BYTES as usize)] {
        fs.put_at(fs.mk(ROOT, text), 0, &vec![7; bytes]);
    }
    fs.create_snapshot("held")?;
    let txn = fs.begin_transaction(ROOT, &TransactionOptions::default())?;
    let view = fs.open_view(&txn)?;
    view.put_at(view.mk(ROOT, "in the transaction"), 0, &[8; 40_000]);
    drop(view);
    for text in ["small", "large"] {
        fs.unlink(ROOT, name(text))?;
    }
    fs.dictionaries().create(b"pairs")?;
    let put = |key: u8| (vec![key].into(), Some(vec![key; 500].into()));
    fs.dictionaries().change(b"pairs", (0..20).map(put).collect())?;
    fs.sync()
}

fn empty(fs: &VarveFs) -> Result<(), String> {
    let named = |what: &'static str| move |error: FsError| format!("{what}: {error}");
    for txn in fs.transactions().map_err(named("transactions"))? {
        fs.abort_transaction(&txn.name().name).map_err(named("abort"))?;
    }
    match fs.delete_snapshot("held") {
        Ok(()) | Err(FsError::NotFound) => {}
        Err(error) => return Err(named("the snapshot")(error)),
    }
    for dictionary in fs.dictionaries().list().map_err(named("dictionaries"))? {
        fs.dictionaries().remove(&dictionary).map_err(named("a dictionary"))?;
    }
    empty_below(fs, ROOT).map_err(named("a file"))?;
    fs.sync().map_err(named("the sync"))
}

fn empty_below(fs: &VarveFs, dir: varve_types::InodeId) -> Result<(), FsError> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, false, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push((entry.name.to_vec(), entry.kind));
        }
        true
    })?;
    for (text, kind) in names {
        let name = varve_types::FileName::new(&text)?;
        if kind == FileType::Directory {
            let below = fs.lookup(dir, name)?.attr.ino;
            let emptied = empty_below(fs, below);
            fs.forget(below, 1);
            emptied?;
            fs.rmdir(dir, name)?;
        } else {
            fs.unlink(dir, name)?;
        }
    }
    Ok(())
}

fn write_probe(fs: &VarveFs) -> Result<(), FsError> {
    for (text, bytes) in [("small", 3000), ("large", 2 * THRESHOLD_BYTES as usize)] {
        let (entry, opened) = fs.create(Caller::ROOT, ROOT, name(text), 0o644, BOTH)?;
        let ino = entry.attr.ino;
        let mut at = 0;
        while at < bytes {
            at += fs.write(ino, opened.handle, at as u64, &vec![1; bytes - at], false)?.bytes;
        }
        fs.fsync(ino, opened.handle, false)?;
        fs.release(ino, opened.handle)?;
        fs.unlink(ROOT, name(text))?;
        fs.forget(ino, 1);
    }
    fs.sync()
}

fn script_options(disk: &Disk, steps: usize) -> ScriptOptions {
    ScriptOptions {
        steps,
        large_file_threshold_bytes: THRESHOLD_BYTES,
        new_large: new_large(disk.new_files),
        restarts: false,
        clones_percent: 0,
        copies_percent: 3,
    }
}

/// The script as the disk lets it be.
fn script_on(disk: &Disk, seed: u64, steps: usize) -> Result<Script, String> {
    let env = SimEnv::new(seed);
    disk.format(&env)?;
    let fs = disk.open(&env)?;
    let mut session = Session::default();
    let mut gate = |op: &Op| match (session.apply(&fs, op).answer, op) {
        (Err(Errno::NoSpace), _) => Fits::Refused,
        (Ok(Answer::Count(part)), Op::Write { len, .. }) if part < *len => Fits::Part(part),
        (Ok(Answer::Count(part)), Op::CopyRange { len, .. })
            if part > 0 && part < *len as usize =>
        {
            Fits::Part(part)
        }
        _ => Fits::Whole,
    };
    Script::on_full_disk(seed, &script_options(disk, steps), &mut gate)
        .map_err(|error| error.to_string())
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    runs: u64,
    refused: usize,
    tally: Tally,
}

/// Makes the script on the disk and crashes it before each `stride`-th operation.
fn explore_disk(
    disk: &Disk,
    seed: u64,
    steps: usize,
    stride: u64,
    sum: &mut Sum,
) -> Result<(), String> {
    let told = |what: String| {
        format!(
            "{disk:?}: {what}\nreplay: VARVE_SOAK_SEED={seed} VARVE_SOAK_SECONDS=0 cargo test -p varve-fs --test it -- \
             --ignored --exact full_disk::soak --nocapture"
        )
    };
    let script = script_on(disk, seed, steps).map_err(told)?;
    sum.refused += script.steps.iter().filter(|step| matches!(step, Step::Refused(_))).count();
    sum.runs += 1;
    let (cuts, only, left_out, threads) = (1, None, Vec::new(), 2);
    let exploration = Exploration { cuts, storage_cuts: 0, stride, only, left_out, threads };
    let tally = explore(disk, &script, &exploration).map_err(|violation| {
        let Violation { point, image, what, .. } = violation;
        told(format!("point {point}, image {image:?}: {what}"))
    })?;
    sum.tally.add(tally);
    Ok(())
}

const STEPS: usize = 120;

#[test]
fn every_crash_on_a_full_disk_keeps_the_promises() {
    let mut sum = Sum::default();
    for seed in 0..30 {
        explore_disk(&Disk::of(seed), seed, STEPS, 29, &mut sum).unwrap_or_else(|e| panic!("{e}"));
    }
    println!("{sum:?}");
    assert!(sum.refused > 300 && sum.tally.points > 200, "{sum:?}");
}

/// A store that keeps no room for what gives room back must be noticed.
#[test]
fn canary_a_store_without_a_reserve_is_noticed() {
    let wrong = (0..10).find_map(|seed| {
        let disk = Disk { has_reserve: false, ..Disk::of(seed) };
        explore_disk(&disk, seed, STEPS, 29, &mut Sum::default()).err()
    });
    let wrong = wrong.expect("without a reserve nothing is noticed");
    assert!(wrong.to_lowercase().contains("no space left"), "{wrong}");
}

/// Writes small and large files until there is no room for either.
fn fill(fs: &VarveFs) -> Result<(), FsError> {
    let mut refusals = 0;
    for number in 0.. {
        let bytes = if number % 3 == 0 { 3 * THRESHOLD_BYTES as usize } else { 2000 };
        let text = format!("file {number}");
        let made = fs.create(Caller::ROOT, ROOT, name(&text), 0o644, BOTH).and_then(|made| {
            let (entry, opened) = made;
            let written = fs.write(entry.attr.ino, opened.handle, 0, &vec![9; bytes], false);
            fs.release(entry.attr.ino, opened.handle)?;
            fs.forget(entry.attr.ino, 1);
            written
        });
        match made {
            Ok(_) => {}
            Err(FsError::NoSpace(_)) if refusals == 8 => return Ok(()),
            Err(FsError::NoSpace(_)) => refusals += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fills a disk of `seed`, others what is left, and empties the store again; what a kill leaves before operations of that is opened
/// without more room, checked, emptied, and takes files again. Says how many kills there were.
fn kill_without_room(seed: u64) -> Result<u64, String> {
    let disk = Disk { others: Vec::new(), ..Disk::of(seed) };
    let env = SimEnv::new(seed);
    disk.format(&env)?;
    let fs = disk.open(&env)?;
    let stride = 37 + seed % 7;
    let machines = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let kept = Arc::clone(&machines);
    fill(&fs).map_err(|error| format!("fill: {error}"))?;
    env.fill(0);
    env.watch(Box::new(move |entry, copy| {
        if entry.number.is_multiple_of(stride) {
            kept.lock().push(copy());
        }
    }));
    fill(&fs).map_err(|error| format!("fill again: {error}"))?;
    empty(&fs)?;
    env.unwatch();
    let machines = std::mem::take(&mut *machines.lock());
    for (at, machine) in machines.iter().enumerate() {
        let told = |what: String| format!("kill {at}: {what}");
        let env = machine.process_kill();
        env.fill(0);
        let fs = disk.open(&env).map_err(|error| told(format!("open: {error}")))?;
        let problems = disk.problems(&fs).map_err(told)?;
        if !problems.is_empty() {
            return Err(told(problems.join("; ")));
        }
        empty(&fs).map_err(|error| told(format!("it cannot be emptied: {error}")))?;
        env.fill(2 * RESERVE_BYTES + EMPTY_BYTES_MAX);
        write_probe(&fs).map_err(|error| told(format!("nothing can be written: {error}")))?;
        disk.close(fs).map_err(|error| told(format!("close: {error}")))?;
    }
    Ok(machines.len() as u64)
}

/// A store whose device was filled by large files, or by others, could not be opened again: what opening it writes was room that
/// was merely free.
#[test]
fn a_store_opens_and_can_be_emptied_where_there_is_no_room_at_all() {
    let kills: u64 = (0..10)
        .map(|seed| kill_without_room(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}")))
        .sum();
    println!("{kills} kills");
    assert!(kills > 40, "only {kills} kills");
}

#[test]
#[ignore = "takes as long as it is told"]
fn soak() {
    let mut sum = Sum::default();
    let told = varve_testkit::soak(|seed| {
        let disk = Disk::of(seed);
        // Longer runs now and then, at fewer of their points.
        let (steps, stride) = if seed % 4 == 3 { (4 * STEPS, 31) } else { (STEPS, 7) };
        explore_disk(&disk, seed, steps, stride, &mut sum).unwrap_or_else(|e| panic!("{e}"));
    });
    println!("{told}: {sum:?}");
}

/// Neither pairs nor a dictionary could be removed from a full disk, as the row that says so took ordinary room.
#[test]
fn dictionaries_and_their_pairs_go_on_a_full_disk() {
    let others = vec![(0, RESERVE_BYTES + 400 * KIB)];
    let disk = Disk { others, is_held: false, ..Disk::of(0) };
    let env = SimEnv::new(1);
    disk.format(&env).unwrap();
    let fs = disk.open(&env).unwrap();
    let pairs = fs.dictionaries();
    pairs.create(b"pairs").unwrap();
    let put = |key: u8, len: usize| (vec![key].into(), Some(vec![key; len].into()));
    pairs.change(b"pairs", (0..20).map(|key| put(key, 3000)).collect()).unwrap();
    env.fill(0);
    // Ever less, until there is no room for anything.
    for len in [3000, 300, 1] {
        let more = |n: u32| (n.to_be_bytes().to_vec().into(), Some(vec![20; len].into()));
        let mut tries = 0..20_000;
        let refused = tries.find_map(|n| pairs.change(b"pairs", vec![more(n)]).err());
        assert!(matches!(refused, Some(FsError::NoSpace(_))), "{refused:?}");
    }
    pairs.change(b"pairs", (0..10).map(|key| (vec![key].into(), None)).collect()).unwrap();
    assert_eq!(pairs.get(b"pairs", &[5]).unwrap(), None);
    assert!(pairs.get(b"pairs", &[15]).unwrap().is_some());
    pairs.remove(b"pairs").unwrap();
    assert_eq!(pairs.list().unwrap(), Vec::<Vec<u8>>::new());
}
