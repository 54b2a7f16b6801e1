//! The daemon is killed with SIGKILL under load, again and again; nothing acknowledged may be lost.
//!
//! 1. Several [`writer`] processes work, each through steps that its seed determines ([`model`]), in
//!    directories of their own and in one that they share. Each tells every step over a pipe once the call
//!    has returned.
//! 2. Once each has told a step, and after a moment more that the seed chooses, the daemon is killed. The
//!    writers get errors and end, and none of them before.
//! 3. The store must pass its check and mount again. [`check`] goes through the steps of each writer as far as
//!    they were told, and compares the outcome with what is there: everything acknowledged, synced or not,
//!    since only the death of the machine may lose what was not synced.
//! 4. What a round leaves stays for [`ROUNDS_KEPT`] more and must still be the same after each of their kills.
//!
//! Shared maps are not among the steps, which take `unsafe`: the suites fsx and fio and the databases have them.

mod check;
pub(super) mod model;
pub(crate) mod writer;

use std::collections::VecDeque;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use check::Found;
use model::Model;

use super::Task;
use crate::machine::{self, Scratch, Varve};
use crate::random::Random;
use crate::run::{Failure, Outcome};

/// Processes that write at once.
const WRITERS: u64 = 4;

/// Rounds whose files stay and are compared again.
const ROUNDS_KEPT: usize = 3;

/// How long the first step of a writer may take.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(60);

/// The shortest and the longest time from the first steps of the writers to the kill.
const LOAD: std::ops::Range<u64> = 40..900;

/// What a round left.
struct Round {
    dir: PathBuf,
    /// What was found of each writer, by its number.
    found: Vec<Found>,
}

/// Figures of all rounds.
#[derive(Default)]
struct Sum {
    rounds: u64,
    steps: u64,
    syncs: u64,
}

/// Goes on for the rounds or the time that the task says.
pub(super) fn run(task: &Task) -> Outcome {
    let program = machine::varve_program(task.how.varve.as_deref())?;
    machine::enter_private_namespace()?;
    let scratch = Scratch::new(task.how.base.as_deref())?;
    let outcome = rounds(task, &program, &scratch);
    if outcome.is_err() && task.how.keep {
        eprintln!("kept: {}", scratch.keep().display());
    }
    outcome
}

fn rounds(task: &Task, program: &Path, scratch: &Scratch) -> Outcome {
    let begin = Instant::now();
    let mut varve = Varve::format(program, scratch, &task.how.mount_arg)?;
    varve.mount()?;
    let mut kept: VecDeque<Round> = VecDeque::new();
    let mut sum = Sum::default();
    for at in 0.. {
        let is_over = match task.rounds {
            Some(rounds) => at >= rounds,
            None => begin.elapsed() >= task.time(),
        };
        if is_over {
            break;
        }
        let seed = task.how.seed + at;
        let failed = |error: Failure| -> Failure {
            let seconds = begin.elapsed().as_secs();
            format!(
                "round {at}, seed {seed}, after {seconds} s: {error}\nhint: --keep keeps the store"
            )
            .into()
        };
        let round = one(&mut varve, seed, &mut sum).map_err(failed)?;
        kept.iter().try_for_each(check_again).map_err(failed)?;
        kept.push_back(round);
        if kept.len() > ROUNDS_KEPT
            && let Some(oldest) = kept.pop_front()
        {
            fs::remove_dir_all(oldest.dir)?;
        }
    }
    varve.unmount()?;
    varve.fsck()?;
    println!(
        "kills: {} survived in {} s; {} steps acknowledged, {} of them syncs; nothing was lost",
        sum.rounds,
        begin.elapsed().as_secs(),
        sum.steps,
        sum.syncs
    );
    Ok(())
}

/// Writers, the kill, the check of the store, the mount, the check of what the writers did.
fn one(varve: &mut Varve, seed: u64, sum: &mut Sum) -> Result<Round, Failure> {
    let dir = varve.mount_point().join(format!("round-{seed}"));
    fs::create_dir(&dir)?;
    make_places(&dir, WRITERS)?;
    let seeds: Vec<u64> = (0..WRITERS).map(|number| seed * WRITERS + number + 1).collect();
    let mut children = Vec::new();
    for (number, seed) in seeds.iter().enumerate() {
        children.push(start(&dir, number, *seed)?);
    }
    let mut random = Random::new(seed);
    let load = Duration::from_millis(LOAD.start + random.below(LOAD.end - LOAD.start));
    let tales = kill_under_load(children, load, || varve.kill())?;
    for told in &tales {
        sum.steps += told.len() as u64;
        sum.syncs += told.iter().filter(|byte| **byte == b's').count() as u64;
    }
    sum.rounds += 1;
    varve.fsck()?;
    varve.mount()?;
    let mut found = Vec::new();
    for (number, (seed, told)) in (0..).zip(seeds.into_iter().zip(tales)) {
        let steps = told.len() as u64;
        let (model, under_way) = Model::after(seed, steps);
        let checked = check::check(&dir, number, &model, &under_way);
        found.push(checked.map_err(|error| {
            let dir = dir.display();
            format!("{dir}, writer {number} (seed {seed}, {steps} steps acknowledged): {error}")
        })?);
    }
    Ok(Round { dir, found })
}

/// The directories in which `writers` work.
fn make_places(dir: &Path, writers: u64) -> Outcome {
    fs::create_dir(dir.join("shared"))?;
    for number in 0..writers {
        fs::create_dir_all(dir.join(format!("writer-{number}/own")))?;
    }
    Ok(())
}

fn start(dir: &Path, number: usize, seed: u64) -> Result<Child, Failure> {
    Command::new(std::env::current_exe()?)
        .arg("kills-writer")
        .arg(dir)
        .args([number.to_string(), seed.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot start a writer: {error}").into())
}

/// Waits until every writer has told a step, and then for `load`; kills. Returns what each writer told.
fn kill_under_load(
    writers: Vec<Child>,
    load: Duration,
    kill: impl FnOnce() -> Outcome,
) -> Result<Vec<Vec<u8>>, Failure> {
    let (sender, begun) = channel();
    let listen_to = |writer| {
        let sender = sender.clone();
        move || listen(writer, &sender)
    };
    thread::scope(|scope| {
        let listeners: Vec<_> =
            writers.into_iter().map(|writer| scope.spawn(listen_to(writer))).collect();
        let has_begun = listeners.iter().all(|_| begun.recv_timeout(FIRST_WAIT_MAX).is_ok());
        thread::sleep(load);
        let ended = listeners.iter().position(thread::ScopedJoinHandle::is_finished);
        // Whatever is wrong, without it the writers would not end.
        kill()?;
        let ends = listeners.into_iter().map(thread::ScopedJoinHandle::join);
        let tales = ends
            .map(|end| end.map_err(|_| Failure::from("a listener panicked"))?)
            .collect::<Result<_, Failure>>()?;
        match ended {
            Some(number) => Err(format!("writer {number} lost its files before the kill").into()),
            None if !has_begun => Err(format!("no step within {FIRST_WAIT_MAX:?}").into()),
            None => Ok(tales),
        }
    })
}

/// What a writer told until its end, which must be that of the file system. Says when the first step was
/// told.
fn listen(mut child: Child, begun: &Sender<()>) -> Result<Vec<u8>, Failure> {
    let mut told = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.by_ref().take(1).read_to_end(&mut told)?;
        let _ = begun.send(());
        pipe.read_to_end(&mut told)?;
    }
    let status = child.wait()?;
    if status.success() { Ok(told) } else { Err(format!("a writer failed: {status}").into()) }
}

fn check_again(round: &Round) -> Outcome {
    (0..).zip(&round.found).try_for_each(|(number, found)| {
        let checked = found.check_again(&round.dir, number);
        checked.map_err(|error| format!("{}, writer {number}: {error}", round.dir.display()).into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells a step and ends: at once, or when there is such a file.
    fn writer(until: Option<&Path>) -> Child {
        let script = "printf .; while [ -n \"$0\" ] && ! [ -e \"$0\" ]; do sleep 0.01; done";
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(until.unwrap_or(Path::new("")));
        shell.stdout(Stdio::piped()).spawn().unwrap()
    }

    /// A store that answers EIO is not a dead daemon.
    #[test]
    fn a_writer_that_ends_before_the_kill_fails_the_round() {
        let dir = tempfile::tempdir().unwrap();
        let killed = dir.path().join("killed");
        let kill = || fs::write(&killed, "").map_err(Failure::from);
        let load = Duration::from_millis(LOAD.end);
        let writers = vec![writer(Some(&killed)), writer(None)];
        let error = kill_under_load(writers, load, kill).unwrap_err().to_string();
        assert_eq!(error, "writer 1 lost its files before the kill");
        fs::remove_file(&killed).unwrap();
        let writers = vec![writer(Some(&killed)), writer(Some(&killed))];
        assert_eq!(kill_under_load(writers, load, kill).unwrap(), [b".", b"."]);
    }
}
