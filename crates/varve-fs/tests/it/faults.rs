//! A fault at every operation on the storage below: the call that meets it says which file failed and
//! changes nothing, what was acknowledged stays readable, and the store opens again without the fault at a
//! state that keeps every promise.
//!
//! For each kind of fault the same run of file system calls is made once per operation of that kind, with
//! the fault at that operation.

use std::sync::Arc;

use varve_env::Env;
use varve_env::sim::{FaultRule, SimEnv, SimOp};
use varve_fs::{MountOptions, NewFiles, VarveFs};
use varve_testkit::crash::{Clock, Found, Image, Reached, Script, Step, Subject};
use varve_testkit::fsops::{Answer, Session, TreePath};
use varve_vfs::{Caller, FsError, Vfs};

use crate::crash_points::{Store, new_large, open_tiny, script_with};
use crate::support::{BOTH, ROOT, name};

const EIO: i32 = 5;
const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EDQUOT: i32 = 122;
const STEPS: usize = 200;

/// A kind of fault, and whether the store must go on without being opened again once it is over.
struct Kind {
    op: SimOp,
    errno: i32,
    sticky: bool,
    goes_on: bool,
}

const KINDS: [Kind; 18] = [
    kind(SimOp::Read, EIO, false, false),
    kind(SimOp::Stat, EIO, false, false),
    kind(SimOp::Open, EIO, false, false),
    kind(SimOp::Open, EMFILE, false, true),
    kind(SimOp::Write, EDQUOT, false, true),
    kind(SimOp::Write, ENOSPC, true, true),
    kind(SimOp::Create, ENOSPC, true, true),
    kind(SimOp::CreateDir, ENOSPC, true, true),
    kind(SimOp::Allocate, ENOSPC, false, true),
    kind(SimOp::Create, EMFILE, false, true),
    kind(SimOp::Write, EIO, false, false),
    kind(SimOp::SetLen, EIO, false, true),
    kind(SimOp::Sync, EIO, false, false),
    kind(SimOp::SyncDir, EIO, false, false),
    kind(SimOp::SyncFs, EIO, false, false),
    // There was no descriptor for it.
    kind(SimOp::SyncDir, EMFILE, false, true),
    kind(SimOp::Rename, EIO, false, false),
    kind(SimOp::Remove, EIO, false, true),
];

const fn kind(op: SimOp, errno: i32, sticky: bool, goes_on: bool) -> Kind {
    Kind { op, errno, sticky, goes_on }
}

/// What is run, and how files begin meanwhile.
struct Case {
    script: Script,
    new_files: NewFiles,
}

impl Case {
    fn new(seed: u64, new_files: NewFiles) -> Case {
        let script = script_with(seed, STEPS, false, new_large(new_files));
        Case { script, new_files }
    }
}

/// What a run came to.
#[derive(Debug, Default)]
struct Sum {
    runs: u32,
    /// Calls refused because of the fault.
    refused: u32,
    /// Runs that met the fault and refused nothing.
    absorbed: u32,
    /// Stores that took no more writes.
    poisoned: u32,
}

/// A store that runs a script up to the first call that a fault makes fail.
struct Run<'a> {
    script: &'a Script,
    env: Arc<SimEnv>,
    fs: VarveFs,
    session: Session,
    /// When the steps ended that did.
    clock: Clock,
    refusal: Option<String>,
}

impl<'a> Run<'a> {
    fn new(case: &'a Case) -> Run<'a> {
        let (script, new_files) = (&case.script, case.new_files);
        let env = SimEnv::new(script.seed);
        Store.format(&env).unwrap();
        let fs = open_tiny(&env, MountOptions { new_files, ..MountOptions::default() }).unwrap();
        let clock = Clock::begin(env.now());
        Run { script, env, fs, session: Session::default(), clock, refusal: None }
    }

    /// Makes the calls up to `steps`, or to the first refusal.
    fn work(&mut self, steps: usize) -> Result<(), String> {
        while self.clock.steps() < steps && self.refusal.is_none() {
            let step = self.clock.steps();
            let (Step::Op(op), Some(expected)) =
                (&self.script.steps[step], &self.script.outcomes[step])
            else {
                unreachable!("no restarts");
            };
            let outcome = self.session.apply(&self.fs, op);
            if outcome.answer == expected.answer {
                self.clock.step_ended(self.env.now());
                continue;
            }
            let refusal = match (&outcome.answer, &expected.answer) {
                // Who goes on with the rest is told.
                (Ok(Answer::Count(part)), Ok(Answer::Count(all))) if part < all => {
                    Some("a part was written to an object of /store".to_owned())
                }
                _ => self.session.refusal().map(str::to_owned),
            };
            if self.env.fault_count() == 0 || refusal.is_none() {
                return Err(format!("{op:?}: got {outcome:?}; expected {expected:?}"));
            }
            self.refusal = refusal;
        }
        Ok(())
    }

    fn reached(&self, killed: bool) -> Reached {
        Reached { steps: self.clock.steps(), killed, failed: true, ..Reached::default() }
    }

    /// Everything acknowledged can be read, now and after opening again in any way.
    fn check(self, goes_on: bool, sum: &mut Sum) -> Result<(), String> {
        let history = &self.script.history;
        self.env.clear_faults();
        let found = Found::read(&self.fs).map_err(|error| format!("read: {error}"))?;
        history
            .check(&found, &self.clock, self.reached(true))
            .map_err(|error| format!("live: {error}"))?;
        let cut = self.env.copy();
        match write_probe(&self.fs, "probe") {
            Ok(()) => {}
            Err(error) if goes_on => return Err(format!("it does not go on: {error}")),
            Err(_) => sum.poisoned += 1,
        }
        let _ = self.fs.unlink(ROOT, name("probe"));
        let (killed, reached) = (self.env.process_kill(), self.reached(true));
        let (env, fs) = (Arc::clone(&self.env), self.fs);
        drop(fs);
        if env.open_handles() > 0 {
            return Err(format!("{} files are still open", env.open_handles()));
        }
        let as_before = |again: &mut Found| {
            // The probe came and went in it.
            let root = &TreePath::default();
            if let (Some(root), Some(before)) = (again.tree.0.get_mut(root), found.tree.0.get(root))
            {
                root.times = before.times;
            }
        };
        let (script, clock) = (self.script, &self.clock);
        reopen(script, &killed, clock, reached, &as_before)
            .map_err(|error| format!("opened again: {error}"))?;
        for image in [Image::Nothing, Image::All, Image::Cut(1), Image::Cut(2)] {
            let reached = Reached { killed: false, ..reached };
            reopen(script, &image.of(&cut), clock, reached, &|_| ())
                .map_err(|error| format!("{image}: {error}"))?;
        }
        Ok(())
    }
}

/// Opens the store, and checks what is found once `as_before` has made up for what came after the script.
fn reopen(
    script: &Script,
    env: &Arc<SimEnv>,
    clock: &Clock,
    reached: Reached,
    as_before: &dyn Fn(&mut Found),
) -> Result<(), String> {
    let fs = Store.open(env)?;
    // A store that took no more writes could not remove it.
    if fs.unlink(ROOT, name("probe")).is_ok() {
        fs.sync().map_err(|error| format!("sync: {error}"))?;
    }
    let mut found = Found::read(&fs).map_err(|error| error.to_string())?;
    as_before(&mut found);
    script.history.check(&found, clock, reached)?;
    let problems = Store.problems(&fs)?;
    if !problems.is_empty() {
        return Err(problems.join("; "));
    }
    write_probe(&fs, "after").map_err(|error| format!("write: {error}"))
}

fn write_probe(fs: &VarveFs, text: &str) -> Result<(), FsError> {
    let (entry, opened) = fs.create(Caller::ROOT, ROOT, name(text), 0o644, BOTH)?;
    fs.write(entry.attr.ino, opened.handle, 0, b"still usable", false)?;
    fs.release(entry.attr.ino, opened.handle)?;
    fs.forget(entry.attr.ino, 1);
    fs.sync()
}

fn rule(kind: &Kind, nth: u64) -> FaultRule {
    let Kind { op, errno, sticky, .. } = *kind;
    FaultRule { path_suffix: String::new(), op, nth, errno, sticky }
}

/// Makes the run once for each operation of the kind.
fn strike_everywhere(case: &Case, kind: &Kind) -> Sum {
    let mut whole = Run::new(case);
    let before = whole.env.count_of(kind.op);
    whole.work(STEPS).unwrap();
    let mut sum = Sum::default();
    for nth in 1..=whole.env.count_of(kind.op) - before {
        let at = format!("seed {}, {:?} {nth}, errno {}", case.script.seed, kind.op, kind.errno);
        let mut run = Run::new(case);
        run.env.fail(rule(kind, nth));
        run.work(STEPS).unwrap_or_else(|error| panic!("{at}: {error}"));
        assert!(run.env.fault_count() > 0, "{at}: it is not met");
        sum.runs += 1;
        match &run.refusal {
            None => sum.absorbed += 1,
            Some(refusal) => {
                sum.refused += 1;
                assert!(refusal.contains("/store"), "{at}: which file is it? {refusal}");
            }
        }
        let step = run.clock.steps();
        run.check(kind.goes_on, &mut sum).unwrap_or_else(|e| panic!("{at}, step {step}: {e}"));
    }
    sum
}

#[test]
fn a_fault_at_any_operation_loses_nothing() {
    let cases = [(1, NewFiles::Auto), (3, NewFiles::Auto), (5, NewFiles::Large)]
        .map(|(seed, new_files)| Case::new(seed, new_files));
    let mut runs = 0;
    for kind in &KINDS {
        for case in &cases {
            let sum = strike_everywhere(case, kind);
            println!("{:?} errno {} sticky {}: {sum:?}", kind.op, kind.errno, kind.sticky);
            runs += sum.runs;
        }
    }
    assert!(runs > 1000, "{runs} faults");
}

/// A store that cannot be opened says why, and opens when the fault is over.
#[test]
fn a_fault_at_any_operation_of_an_open_is_refused_and_loses_nothing() {
    let case = Case::new(3, NewFiles::Auto);
    let script = &case.script;
    let mut run = Run::new(&case);
    run.work(STEPS).unwrap();
    let reached = run.reached(true);
    let killed = run.env.process_kill().copy();
    let (mut refused, mut met) = (0, 0);
    for kind in &KINDS {
        for nth in 1.. {
            let env = Image::Kill.of(&killed);
            env.fail(rule(kind, nth));
            let at = format!("{:?} {nth}, errno {}", kind.op, kind.errno);
            let opened = Store.open(&env);
            if env.fault_count() == 0 {
                break;
            }
            met += 1;
            env.clear_faults();
            match opened {
                Err(error) => {
                    refused += 1;
                    assert!(error.contains("/store"), "{at}: which file is it? {error}");
                }
                Ok(fs) => {
                    let found = Found::read(&fs).unwrap();
                    script
                        .history
                        .check(&found, &run.clock, reached)
                        .unwrap_or_else(|error| panic!("{at}: {error}"));
                }
            }
            assert_eq!(env.open_handles(), 0, "{at}");
            reopen(script, &env.process_kill(), &run.clock, reached, &|_| ())
                .unwrap_or_else(|error| panic!("{at}: {error}"));
        }
    }
    println!("{met} faults, {refused} opens refused");
    assert!(met > 100 && refused > 50, "{met} faults, {refused} opens refused");
}

/// The storage below becomes read-only, as the kernel makes it after an error of its own.
#[test]
fn a_storage_that_becomes_read_only_is_named_and_loses_nothing() {
    const CHANGES: [SimOp; 9] = [
        SimOp::Create,
        SimOp::Write,
        SimOp::SetLen,
        SimOp::Allocate,
        SimOp::Rename,
        SimOp::Link,
        SimOp::Remove,
        SimOp::CreateDir,
        SimOp::SetTimes,
    ];
    let case = Case::new(1, NewFiles::Auto);
    let mut sum = Sum::default();
    for step in 0..STEPS {
        let mut run = Run::new(&case);
        run.work(step).unwrap();
        for op in CHANGES {
            run.env.fail(rule(&kind(op, EROFS, true, false), 1));
        }
        run.work(STEPS).unwrap();
        if let Some(refusal) = &run.refusal {
            sum.refused += 1;
            let says = refusal.contains("/store") && refusal.contains("Read-only file system");
            assert!(says, "step {step}: {refusal}");
        }
        run.check(false, &mut sum).unwrap_or_else(|error| panic!("step {step}: {error}"));
    }
    assert!(sum.refused as usize > STEPS / 2, "{sum:?}");
}
