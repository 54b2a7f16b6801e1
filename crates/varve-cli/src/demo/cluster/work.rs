//! What programs on two mounts do at once, and how it is known that nothing of it was lost, done twice or seen late.
//!
//! - [`follow`]: one makes files, the other reads each as soon as the first one has closed it.
//! - [`together`]: both work in the same directories ([`Program::round`]) until they are told to stop.
//! - [`verify`]: from each mount, all is there that both were told was done, and nothing else.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use varve::{Error, Result};

use super::scene::MOUNTS;
use crate::demo::Plan;
use crate::demo::place::{Directory, Place, Timed, Times};
use crate::demo::steps::{SMALL_BYTES, content, expect, expect_content, wrong};

/// Files that the one who reads may be behind.
const BEHIND_MAX: usize = 16;
/// How often the one who reads looks at the listing too.
const LIST_EVERY: u32 = 32;
/// Lines of one program in a log. Both together stay a small file, of which the server knows for sure what was appended.
const LINES_OF_ONE: u64 = 256;

/// What programs do in a round.
pub(super) const KINDS: [&str; 5] = [
    "write a 4 KiB file",
    "rename it",
    "append a line to a log of both",
    "claim a name that both want",
    "read the other's newest file",
];

/// One makes the files of `plan` on the first place, another reads each on the second. Returns the times of both.
pub(super) fn follow(plan: &Plan, roots: [&Path; 2], watch: &dyn Fn(u64)) -> Result<[Times; 2]> {
    let [maker, reader] = roots.map(Directory::new);
    let dir = |file: u32| format!("unpacked-{:03}", file % plan.dirs);
    for file in 0..plan.dirs {
        maker.make_dir(&dir(file))?;
    }
    let (made, to_read) = mpsc::sync_channel(BEHIND_MAX);
    let name = |file: u32| format!("file-{file:06}");
    thread::scope(|scope| {
        let (dir, name) = (&dir, &name);
        let making = scope.spawn(move || {
            let place = Timed::new(&maker, &|_| ());
            for file in 0..plan.files {
                place.write(&dir(file), &name(file), &content(file, SMALL_BYTES), false)?;
                if made.send(file).is_err() {
                    break;
                }
            }
            Ok(place.into_times())
        });
        let read = || {
            let place = Timed::new(&reader, watch);
            for file in to_read {
                let found = place.read(&dir(file), &name(file))?;
                expect_content(&name(file), &found, file, SMALL_BYTES)?;
                if file % LIST_EVERY == 0 {
                    let listed = place.list(&dir(file))?;
                    let is_there = listed.iter().any(|found| found.name == name(file));
                    expect("name in a listing of what exists", is_there.into(), 1)?;
                }
            }
            Ok(place.into_times())
        };
        let read: Result<Times> = read();
        let made = making.join().unwrap_or_else(|_| Err(panicked()));
        Ok([made?, read?])
    })
}

fn panicked() -> Error {
    wrong("a thread of the demonstration panicked".to_owned())
}

/// What both programs know.
#[derive(Default)]
pub(super) struct Shared {
    stop: AtomicBool,
    /// Rounds that each has done.
    rounds: [AtomicU64; 2],
    /// The next name to claim.
    claim: AtomicU64,
    /// When the server was killed.
    killed: OnceLock<Instant>,
    /// How much later each had done a round that it began after that.
    back: [OnceLock<Duration>; 2],
}

impl Shared {
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    pub(super) fn server_is_killed(&self) {
        self.killed.get_or_init(Instant::now);
    }

    /// How long after the death of the server each went on; `None` as long as one waits.
    pub(super) fn back(&self) -> Option<[Duration; 2]> {
        Some([*self.back[0].get()?, *self.back[1].get()?])
    }
}

/// Stops both programs when one ends, in whatever way.
struct StopAll<'a>(&'a Shared);

impl Drop for StopAll<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

/// What a program has done.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) rounds: u64,
    /// The names that it has claimed.
    pub(super) claims: BTreeSet<u64>,
    /// The times of its calls, by kind.
    pub(super) times: [Times; KINDS.len()],
}

/// The directories of programs that work together.
struct Dirs {
    work: String,
    logs: String,
    claims: String,
}

impl Dirs {
    fn of(phase: &str) -> Dirs {
        let dir = |what: &str| format!("{phase}-{what}");
        Dirs { work: dir("work"), logs: dir("logs"), claims: dir("claims") }
    }
}

/// A program on one of the mounts.
struct Program<'a> {
    number: usize,
    root: &'a Path,
    place: Directory,
    dirs: &'a Dirs,
    shared: &'a Shared,
}

fn work_name(program: usize, round: u64) -> String {
    format!("{}-{round:06}", MOUNTS[program])
}

/// The number of the bytes of a file, other than of any other file.
fn seed(program: usize, round: u64) -> u32 {
    u32::try_from(round * 2 + program as u64).unwrap_or(u32::MAX)
}

fn line(program: usize, round: u64) -> String {
    format!("{} {round}", MOUNTS[program])
}

impl Program<'_> {
    fn path(&self, dir: &str, name: &str) -> PathBuf {
        self.root.join(dir).join(name)
    }

    fn run(&self) -> Result<Done> {
        let _stop = StopAll(self.shared);
        let mut done = Done::default();
        while !self.shared.is_stopped() {
            let begin = Instant::now();
            self.round(&mut done)?;
            done.rounds += 1;
            self.shared.rounds[self.number].store(done.rounds, Ordering::SeqCst);
            if let Some(killed) = self.shared.killed.get().filter(|killed| begin > **killed) {
                self.shared.back[self.number].get_or_init(|| killed.elapsed());
            }
        }
        Ok(done)
    }

    /// Makes a file under a name that others do not look for, renames it, appends to a log, claims a name that the other wants too, and
    /// reads what the other has made last.
    fn round(&self, done: &mut Done) -> Result<()> {
        let Done { rounds: round, claims, times: [write, rename, append, claim, read] } = done;
        let (name, dirs) = (work_name(self.number, *round), self.dirs);
        let (draft, bytes) =
            (format!("{name}.draft"), content(seed(self.number, *round), SMALL_BYTES));
        write.of(|| self.place.write(&dirs.work, &draft, &bytes, false))?;
        rename.of(|| self.place.rename(&dirs.work, &draft, &name))?;
        append.of(|| self.append(*round))?;
        let wanted = self.shared.claim.load(Ordering::SeqCst);
        if claim.of(|| self.claim(wanted))? {
            claims.insert(wanted);
        }
        self.shared.claim.fetch_max(wanted + 1, Ordering::SeqCst);
        let other = 1 - self.number;
        if let Some(newest) = self.shared.rounds[other].load(Ordering::SeqCst).checked_sub(1) {
            let name = work_name(other, newest);
            let found = read.of(|| self.place.read(&dirs.work, &name))?;
            expect_content(&name, &found, seed(other, newest), SMALL_BYTES)?;
        }
        Ok(())
    }

    fn append(&self, round: u64) -> Result<()> {
        let path = self.path(&self.dirs.logs, &(round / LINES_OF_ONE).to_string());
        let line = line(self.number, round) + "\n";
        let file = File::options().append(true).create(true).open(&path);
        let appended = file.and_then(|mut file| file.write_all(line.as_bytes()));
        appended.map_err(|error| Error::io("append to", &path, &error))
    }

    /// Makes a file that must not exist. False if it does.
    fn claim(&self, number: u64) -> Result<bool> {
        let path = self.path(&self.dirs.claims, &number.to_string());
        let made = match File::create_new(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
            made => made.and_then(|mut file| file.write_all(MOUNTS[self.number].as_bytes())),
        };
        made.map(|()| true).map_err(|error| Error::io("create", &path, &error))
    }
}

/// Two programs work on the two mounts until `meanwhile` returns. It must make sure that no call on the mounts waits for ever.
pub(super) fn together<T>(
    phase: &str,
    roots: [&Path; 2],
    meanwhile: impl FnOnce(&Shared) -> Result<T>,
) -> Result<(T, [Done; 2])> {
    let (dirs, shared) = (Dirs::of(phase), Shared::default());
    let place = Directory::new(roots[0]);
    for dir in [&dirs.work, &dirs.logs, &dirs.claims] {
        place.make_dir(dir)?;
    }
    thread::scope(|scope| {
        let programs = [0, 1].map(|number| {
            let (root, place) = (roots[number], Directory::new(roots[number]));
            let program = Program { number, root, place, dirs: &dirs, shared: &shared };
            scope.spawn(move || program.run())
        });
        let stop = StopAll(&shared);
        let result = meanwhile(&shared);
        drop(stop);
        let [a, b] = programs.map(|program| program.join().unwrap_or_else(|_| Err(panicked())));
        let done = [a?, b?];
        Ok((result?, done))
    })
}

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Compared {
    pub(super) files: u64,
    pub(super) lines: u64,
}

/// Compares what both programs were told was done with what is there, on each mount.
pub(super) fn verify(phase: &str, roots: [&Path; 2], done: &[Done; 2]) -> Result<Compared> {
    let dirs = Dirs::of(phase);
    let names: BTreeSet<String> = (0..2)
        .flat_map(|program| (0..done[program].rounds).map(move |round| work_name(program, round)))
        .collect();
    let mut compared = Compared::default();
    for (at, root) in roots.into_iter().enumerate() {
        let place = Directory::new(root);
        let found: BTreeSet<_> =
            place.list(&dirs.work)?.into_iter().map(|listed| listed.name).collect();
        if let Some(name) = names.symmetric_difference(&found).next() {
            let what = if found.contains(name) { "should not be there" } else { "is lost" };
            return Err(wrong(format!("on {}: {}/{name} {what}", MOUNTS[at], dirs.work)));
        }
        // What the other has made.
        let other = 1 - at;
        for round in 0..done[other].rounds {
            let name = work_name(other, round);
            let found = place.read(&dirs.work, &name)?;
            expect_content(&name, &found, seed(other, round), SMALL_BYTES)?;
        }
        compared.files += done[other].rounds + verify_claims(&place, &dirs, done)?;
        compared.lines += verify_logs(&place, &dirs, done)?;
    }
    Ok(compared)
}

/// Each name was claimed by one program, which knows that.
fn verify_claims(place: &dyn Place, dirs: &Dirs, done: &[Done; 2]) -> Result<u64> {
    let [of_a, of_b] = done.each_ref().map(|done| &done.claims);
    if let Some(twice) = of_a.intersection(of_b).next() {
        return Err(wrong(format!("{}/{twice} was made twice", dirs.claims)));
    }
    expect("claimed names", place.list(&dirs.claims)?.len() as u64, count(of_a) + count(of_b))?;
    for (claims, program) in [of_a, of_b].into_iter().zip(MOUNTS) {
        for claim in claims {
            if place.read(&dirs.claims, &claim.to_string())? != program.as_bytes() {
                return Err(wrong(format!("{}/{claim} is not of {program}", dirs.claims)));
            }
        }
    }
    Ok(count(of_a) + count(of_b))
}

fn count(claims: &BTreeSet<u64>) -> u64 {
    claims.len() as u64
}

/// Each line of each program is there once, and in order.
fn verify_logs(place: &dyn Place, dirs: &Dirs, done: &[Done; 2]) -> Result<u64> {
    let rounds = done.each_ref().map(|done| done.rounds);
    let mut next = [0, 0];
    for log in 0..rounds[0].max(rounds[1]).div_ceil(LINES_OF_ONE) {
        let name = log.to_string();
        let bytes = place.read(&dirs.logs, &name)?;
        for found in String::from_utf8_lossy(&bytes).lines() {
            let of = |program: usize| found == line(program, next[program]);
            let Some(program) = [0, 1].into_iter().find(|program| of(*program)) else {
                let at = format!("{}/{name}", dirs.logs);
                return Err(wrong(format!(
                    "{at}: `{}` stands where `{}` or `{}` should",
                    found.escape_debug(),
                    line(0, next[0]),
                    line(1, next[1])
                )));
            };
            next[program] += 1;
        }
    }
    for program in [0, 1] {
        expect(&format!("lines of {}", MOUNTS[program]), next[program], rounds[program])?;
    }
    Ok(next[0] + next[1])
}
