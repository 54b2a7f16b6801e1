//! Every crash of one run.
//!
//! 1. The script runs once, on one thread. Before each operation that changes what a disk may hold, the machine is
//!    copied, which costs little. The copy goes to the checkers as a [`Point`].
//! 2. A checker makes the images of a point, one after the other, and opens each. What it finds must be a
//!    state that the history allows and have no broken invariant; a file written and synced then must
//!    survive another power cut, beside everything else.
//! 3. For some images the machine is copied during the opening too, and the power goes again there.
//!
//! One number, the script's seed, makes the whole run; with a point and an image it makes one failure.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;
use varve_env::Env;
use varve_env::sim::{JournalEntry, SimEnv, SimOp};
use varve_types::{Errno, FileName, InodeId};
use varve_vfs::{Caller, FsError, OpenFlags, Vfs};

use super::clock::Clock;
use super::history::{Found, Reached};
use super::image::Image;
use super::script::{Script, Step};
use crate::fsops::{Session, Times, TreePath};
use crate::rng::{Rng, mix};

/// Points that wait for a checker.
const WAITING_MAX: usize = 64;
/// Crashes during the opening of one image.
const CRASHES_AT_OPEN: usize = 2;
/// The name of the file that tells whether a store is usable.
const PROBE: &[u8] = b"usable";

/// The file system under test.
pub trait Subject: Sync {
    /// A file system.
    type Fs: Vfs;

    /// Makes a store.
    fn format(&self, env: &Arc<SimEnv>) -> Result<(), String>;

    /// Opens it.
    fn open(&self, env: &Arc<SimEnv>) -> Result<Self::Fs, String>;

    /// Every broken invariant.
    fn problems(&self, fs: &Self::Fs) -> Result<Vec<String>, String>;

    /// Closes it in order.
    fn close(&self, fs: Self::Fs) -> Result<(), String>;

    /// Checks something new that is written to what a crash left: where a test is not about a disk that is full, that is a file
    /// that is synced and survives.
    fn check_usable(&self, env: &Arc<SimEnv>, fs: Self::Fs, found: &Found) -> Result<(), String>
    where
        Self: Sized,
    {
        check_usable(self, env, fs, found)
    }
}

/// What to explore.
#[derive(Clone, Debug)]
pub struct Exploration {
    /// Seeded power cuts per point, of each kind, beside the fixed images.
    pub cuts: u64,
    /// Seeded cuts per point of the power of the storage alone.
    pub storage_cuts: u64,
    /// Every so many points one is explored.
    pub stride: u64,
    /// Only this point and image.
    pub only: Option<(u64, Image)>,
    /// Syncs that are left out, by kind and a part of the path.
    pub left_out: Vec<(SimOp, String)>,
    /// Threads that check.
    pub threads: usize,
}

/// A moment of the run.
#[derive(Clone, Debug)]
pub struct Point {
    /// The number of the operation about to be made.
    pub number: u64,
    /// That operation.
    pub next: JournalEntry,
    /// When the steps ended that had ended.
    pub clock: Clock,
    machine: Arc<SimEnv>,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Points.
    pub points: u64,
    /// Images opened after the first crash.
    pub images: u64,
    /// Images opened after a crash while the first was opened.
    pub second_images: u64,
}

impl Tally {
    /// Adds what another run did.
    pub fn add(&mut self, other: Tally) {
        self.points += other.points;
        self.images += other.images;
        self.second_images += other.second_images;
    }
}

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The script's seed.
    pub seed: u64,
    /// The point, or 0 if the run itself failed.
    pub point: u64,
    /// What was left by the crash.
    pub image: Option<Image>,
    /// What is wrong.
    pub what: String,
}

/// What the run and its checkers share.
struct Shared<'a, S> {
    subject: &'a S,
    script: &'a Script,
    options: &'a Exploration,
    tally: [AtomicU64; 3],
    /// The number of the last operation.
    numbered: Arc<AtomicU64>,
    stopped: Arc<AtomicBool>,
    violation: Mutex<Option<Violation>>,
}

/// Runs `script` on the subject and crashes it everywhere. The first violation ends it.
pub fn explore<S: Subject>(
    subject: &S,
    script: &Script,
    options: &Exploration,
) -> Result<Tally, Violation> {
    let shared = Shared {
        subject,
        script,
        options,
        tally: Default::default(),
        numbered: Arc::default(),
        stopped: Arc::default(),
        violation: Mutex::new(None),
    };
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let receiver = Mutex::new(receiver);
    std::thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(|| shared.check_points(&receiver));
        }
        if let Err(what) = shared.run(sender) {
            shared.note(Violation { seed: script.seed, point: 0, image: None, what });
        }
    });
    if let Some(violation) = shared.violation.into_inner() {
        return Err(violation);
    }
    let [points, images, second_images] = shared.tally.map(AtomicU64::into_inner);
    Ok(Tally { points, images, second_images })
}

impl<S: Subject> Shared<'_, S> {
    fn note(&self, violation: Violation) {
        self.stopped.store(true, Ordering::Relaxed);
        self.violation.lock().get_or_insert(violation);
    }

    /// Runs the script, and sends its points.
    fn run(&self, sender: SyncSender<Point>) -> Result<(), String> {
        let mut env = SimEnv::new(self.script.seed);
        self.subject.format(&env)?;
        let clock = Arc::new(Mutex::new(Clock::begin(env.now())));
        self.watch(&env, &clock, sender.clone());
        let mut fs = self.subject.open(&env)?;
        let mut session = Session::default();
        for (step, expected) in self.script.steps.iter().zip(&self.script.outcomes) {
            if self.stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            match step {
                Step::Op(op) => {
                    let outcome = session.apply(&fs, op);
                    if expected.as_ref().is_some_and(|expected| expected.answer != outcome.answer) {
                        return Err(format!("{op:?}: got {outcome:?}; expected {expected:?}"));
                    }
                }
                Step::Refused(op) => {
                    let outcome = session.apply(&fs, op);
                    if outcome.answer != Err(Errno::NoSpace) {
                        return Err(format!("{op:?}: got {outcome:?}; expected no room"));
                    }
                }
                Step::Remount => {
                    session.release_all(&fs).map_err(text)?;
                    self.subject.close(fs)?;
                    fs = self.subject.open(&env)?;
                }
                Step::Kill => {
                    session.abandon();
                    env.unwatch();
                    env = env.process_kill();
                    drop(fs);
                    self.watch(&env, &clock, sender.clone());
                    fs = self.subject.open(&env)?;
                }
            }
            let now = env.now();
            clock.lock().step_ended(now);
        }
        let reached =
            Reached { steps: self.script.steps.len(), killed: true, ..Reached::default() };
        let found = Found::read(&fs).map_err(text)?;
        let clock = clock.lock().clone();
        self.script.history.check(&found, &clock, reached).map(drop)
    }

    fn watch(&self, env: &SimEnv, clock: &Arc<Mutex<Clock>>, sender: SyncSender<Point>) {
        let clock = Arc::clone(clock);
        let stopped = Arc::clone(&self.stopped);
        let Exploration { stride, only, left_out, .. } = self.options.clone();
        for (op, path_part) in left_out {
            env.ignore_syncs_of(op, &path_part);
        }
        // A machine that goes on after a kill counts from 0 again.
        let before = self.numbered.load(Ordering::Relaxed);
        let numbered = Arc::clone(&self.numbered);
        env.watch(Box::new(move |entry, copy| {
            let number = before + entry.number;
            numbered.store(number, Ordering::Relaxed);
            let wanted = match only {
                Some((point, _)) => number == point,
                None => number.is_multiple_of(stride),
            };
            if wanted && !stopped.load(Ordering::Relaxed) {
                let clock = clock.lock().clone();
                let point = Point { number, next: entry.clone(), clock, machine: copy() };
                // The checkers end only after this side.
                let _ = sender.send(point);
            }
        }));
    }

    fn check_points(&self, receiver: &Mutex<Receiver<Point>>) {
        loop {
            let next = receiver.lock().recv();
            let Ok(point) = next else { return };
            // What waits is taken all the same, or the run would wait for room.
            if self.stopped.load(Ordering::Relaxed) {
                continue;
            }
            self.tally[0].fetch_add(1, Ordering::Relaxed);
            for (at, image) in self.images(&point).into_iter().enumerate() {
                let mut check =
                    Check { shared: self, point: &point, image, rng: self.rng(&point, at) };
                let checked = catch_unwind(AssertUnwindSafe(|| check.run()));
                if let Err(what) = checked.unwrap_or_else(|panic| Err(said(&*panic))) {
                    let what =
                        format!("before {}, step {}: {what}", point.next, point.clock.steps());
                    let seed = self.script.seed;
                    self.note(Violation { seed, point: point.number, image: Some(image), what });
                    break;
                }
            }
        }
    }

    fn rng(&self, point: &Point, at: usize) -> Rng {
        Rng::new(mix(self.script.seed ^ mix(point.number)) ^ at as u64)
    }

    fn images(&self, point: &Point) -> Vec<Image> {
        if let Some((_, image)) = self.options.only {
            return vec![image];
        }
        let storage = point.number * self.options.storage_cuts;
        let storage = storage..storage + self.options.storage_cuts;
        if self.options.cuts == 0 && !storage.is_empty() {
            return storage.map(Image::Storage).collect();
        }
        let mut images = vec![Image::Nothing, Image::All];
        images.extend(storage.map(Image::Storage));
        let first = point.number * self.options.cuts;
        let seeds = first..first + self.options.cuts;
        images.extend(seeds.flat_map(|seed| [Image::Cut(seed), Image::Stale(seed)]));
        // Every second write is not made as a whole.
        let within = point.next.op == SimOp::Write && mix(point.number).is_multiple_of(2);
        images.push(if within { Image::KillWithin(point.number) } else { Image::Kill });
        images
    }
}

/// The check of one image.
struct Check<'a, 'b, S> {
    shared: &'a Shared<'b, S>,
    point: &'a Point,
    image: Image,
    rng: Rng,
}

impl<S: Subject> Check<'_, '_, S> {
    fn run(&mut self) -> Result<(), String> {
        let (subject, history) = (self.shared.subject, &self.shared.script.history);
        let env = self.image.of(&self.point.machine);
        let crashes_at_open = self.shared.options.only.is_some() || self.rng.chance(30);
        let copies = Arc::new(Mutex::new(Vec::new()));
        if crashes_at_open {
            let copies = Arc::clone(&copies);
            env.watch(Box::new(move |_, copy| copies.lock().push(copy())));
        }
        let fs = subject.open(&env).map_err(|error| format!("open: {error}"))?;
        env.unwatch();
        self.shared.tally[1].fetch_add(1, Ordering::Relaxed);
        let reached = Reached {
            steps: self.point.clock.steps(),
            killed: self.image.is_kill(),
            stale: self.image.is_stale(),
            unplugged: self.image.is_of_storage(),
            failed: self.shared.script.has_refusals(),
        };
        if reached.unplugged {
            return self.check_what_is_left(&fs, reached);
        }
        let found = Found::read(&fs).map_err(|error| format!("read: {error}"))?;
        history.check(&found, &self.point.clock, reached)?;
        self.expect_sound(&fs)?;
        if self.rng.chance(30) {
            subject.check_usable(&env, fs, &found)?;
        }
        let copies = std::mem::take(&mut *copies.lock());
        for _ in 0..CRASHES_AT_OPEN.min(copies.len()) {
            let machine = Arc::clone(self.rng.pick(&copies));
            self.crash_again(&machine, reached)?;
        }
        Ok(())
    }

    /// Checks an image in which large files may be lost: everything else is right, the check of the file system
    /// reports the losses, and the lost files can be removed.
    fn check_what_is_left(&self, fs: &S::Fs, reached: Reached) -> Result<(), String> {
        let left = Found::read_what_is_left(fs).map_err(|error| format!("read: {error}"))?;
        self.shared.script.history.check(&left, &self.point.clock, reached)?;
        let problems = self.shared.subject.problems(fs)?;
        if problems.is_empty() != left.lost.is_empty() {
            return Err(format!("{:?} are lost, and a check says: {problems:?}", left.lost));
        }
        for TreePath(names) in &left.lost {
            remove(fs, names).map_err(|error| format!("remove what is lost: {error}"))?;
        }
        fs.sync().map_err(text)?;
        Found::read(fs).map(drop).map_err(|error| format!("read again: {error}"))
    }

    fn expect_sound(&self, fs: &S::Fs) -> Result<(), String> {
        let problems = self.shared.subject.problems(fs)?;
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }

    /// The power goes while the first image is opened.
    fn crash_again(&mut self, machine: &SimEnv, reached: Reached) -> Result<(), String> {
        let seed = self.rng.next_u64() >> 32;
        let image = *self.rng.pick(&[Image::Nothing, Image::Cut(seed), Image::Stale(seed)]);
        let named = |error: String| format!("and then {image} while it was opened: {error}");
        let env = image.of(machine);
        let fs = self.shared.subject.open(&env).map_err(|error| named(format!("open: {error}")))?;
        self.shared.tally[2].fetch_add(1, Ordering::Relaxed);
        let found = Found::read(&fs).map_err(|error| named(format!("read: {error}")))?;
        // The process died first, if it did: what the machine had not synced may be lost after all.
        let reached =
            Reached { killed: false, stale: reached.stale || image.is_stale(), ..reached };
        self.shared.script.history.check(&found, &self.point.clock, reached).map_err(named)?;
        self.expect_sound(&fs).map_err(named)
    }
}

/// Something new can be written and synced, and survives with all the rest.
fn check_usable<S: Subject>(
    subject: &S,
    env: &SimEnv,
    fs: S::Fs,
    found: &Found,
) -> Result<(), String> {
    write_probe(&fs).map_err(|error| format!("write after the crash: {error}"))?;
    let next = env.copy().power_cut_keep_nothing();
    drop(fs);
    let fs = subject.open(&next).map_err(|error| format!("open again: {error}"))?;
    let mut again = Found::read(&fs).map_err(|error| format!("read again: {error}"))?;
    let probe = again.tree.0.remove(&TreePath(vec![PROBE.to_vec()]));
    if probe.is_none_or(|node| node.content_len != PROBE.len() as u64) {
        return Err("what was synced after the crash is lost".to_owned());
    }
    // Its size counts the probe.
    let mut before = found.tree.clone();
    before.0.remove(&TreePath::default());
    again.tree.0.remove(&TreePath::default());
    let lines = before.differences(&again.tree, Times::Compare);
    if lines.is_empty() { Ok(()) } else { Err(format!("after a sync: {}", lines.join("\n  "))) }
}

fn remove(fs: &dyn Vfs, names: &[Vec<u8>]) -> Result<(), FsError> {
    let Some((last, above)) = names.split_last() else { return Ok(()) };
    let mut dir = InodeId::ROOT;
    for name in above {
        dir = fs.lookup(dir, FileName::new(name)?)?.attr.ino;
    }
    fs.unlink(dir, FileName::new(last)?)
}

fn write_probe(fs: &dyn Vfs) -> Result<(), FsError> {
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let (entry, opened) =
        fs.create(Caller::ROOT, InodeId::ROOT, FileName::new(PROBE)?, 0o644, flags)?;
    let ino = entry.attr.ino;
    fs.write(ino, opened.handle, 0, PROBE, false)?;
    fs.release(ino, opened.handle)?;
    fs.forget(ino, 1);
    fs.sync()
}

fn text(error: FsError) -> String {
    error.to_string()
}

/// Returns what a panic says.
fn said(panic: &(dyn Any + Send)) -> String {
    let literal = panic.downcast_ref::<&str>().copied();
    let message = panic.downcast_ref::<String>().map(String::as_str).or(literal);
    format!("panicked: {}", message.unwrap_or("without a message"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use varve_env::{Env, OpenMode};

    use super::super::{NewLarge, ScriptOptions};
    use super::*;
    use crate::model::ModelFs;

    /// Opens once; whatever is found after a crash makes it panic.
    struct Panics {
        is_opened: AtomicBool,
    }

    impl Subject for Panics {
        type Fs = ModelFs;

        fn format(&self, _: &Arc<SimEnv>) -> Result<(), String> {
            Ok(())
        }

        fn open(&self, env: &Arc<SimEnv>) -> Result<ModelFs, String> {
            assert!(!self.is_opened.swap(true, Ordering::Relaxed), "opened again");
            let file = env.open(Path::new("/f"), OpenMode::CreateNew).map_err(|e| e.to_string())?;
            for at in 0..2 * WAITING_MAX as u64 {
                file.write_all_at(b"x", at).map_err(|e| e.to_string())?;
            }
            Ok(ModelFs::new(Arc::clone(env) as Arc<dyn Env>))
        }

        fn problems(&self, _: &ModelFs) -> Result<Vec<String>, String> {
            Ok(Vec::new())
        }

        fn close(&self, _: ModelFs) -> Result<(), String> {
            Ok(())
        }
    }

    /// It killed the checkers one by one, and then the run waited for them for ever.
    #[test]
    fn a_panic_of_the_subject_is_a_violation() {
        let options = ScriptOptions {
            steps: 1,
            large_file_threshold_bytes: 1 << 16,
            new_large: NewLarge::Never,
            restarts: false,
            clones_percent: 0,
            copies_percent: 0,
        };
        let (cuts, stride, only, left_out, threads) = (0, 1, None, Vec::new(), 2);
        let exploration = Exploration { cuts, storage_cuts: 0, stride, only, left_out, threads };
        let script = Script::new(7, &options).unwrap();
        let subject = Panics { is_opened: AtomicBool::new(false) };
        let violation = explore(&subject, &script, &exploration).unwrap_err();
        assert_eq!((violation.seed, violation.image), (7, Some(Image::Nothing)));
        assert!(violation.point > 0 && violation.what.ends_with("panicked: opened again"));
    }
}
