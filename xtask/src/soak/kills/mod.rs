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
//! With `VARVE_TEST_SERVER` set, two mounts of one server have half of the writers each. Before the kill the server is killed
//! and started again, once or twice, which no writer may notice. Then all are killed at once; or, in half of the rounds, one
//! mount after the other while the server goes on, until it has nothing left to do for them. What a writer did is compared on the mount that it did not use.
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

use rustix::process::{Pid, Signal, kill_process};

use check::Found;
use model::Model;

use super::Task;
use crate::machine::{self, Scratch, Varve};
use crate::random::Random;
use crate::run::{Failure, Outcome};

/// Processes that write at once.
const WRITERS: u64 = 4;

/// Mounts of a server that they share.
const MOUNTS_SERVED: usize = 2;

/// Rounds whose files stay and are compared again.
const ROUNDS_KEPT: usize = 3;

/// How long the first step of a writer may take.
const FIRST_WAIT_MAX: Duration = Duration::from_secs(60);

/// The shortest and the longest time from the first steps of the writers to the kill.
const LOAD: std::ops::Range<u64> = 40..900;

/// What a round left.
struct Round {
    /// Its directory below a mount point.
    name: String,
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
    if machine::is_served() {
        (1..MOUNTS_SERVED).try_for_each(|_| varve.add_mount(scratch))?;
    }
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
        kept.iter().try_for_each(|round| check_again(&varve, round)).map_err(failed)?;
        kept.push_back(round);
        if kept.len() > ROUNDS_KEPT
            && let Some(oldest) = kept.pop_front()
        {
            fs::remove_dir_all(varve.mount_point().join(oldest.name))?;
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
    let name = format!("round-{seed}");
    let dirs: Vec<PathBuf> = varve.mount_points().map(|mount| mount.join(&name)).collect();
    fs::create_dir(&dirs[0])?;
    make_places(&dirs[0], WRITERS)?;
    let seeds: Vec<u64> = (0..WRITERS).map(|number| seed * WRITERS + number + 1).collect();
    let mut children = Vec::new();
    for (number, seed) in seeds.iter().enumerate() {
        children.push(start(&dirs[number % dirs.len()], number, *seed)?);
    }
    let mut random = Random::new(seed);
    let tales = kill_under_load(varve, children, &mut random)?;
    if !varve.has_server() {
        varve.fsck()?;
    }
    varve.mount()?;
    for told in &tales {
        sum.steps += told.len() as u64;
        sum.syncs += told.iter().filter(|byte| **byte == b's').count() as u64;
    }
    sum.rounds += 1;
    let mut found = Vec::new();
    for (number, (seed, told)) in seeds.into_iter().zip(tales).enumerate() {
        let steps = told.len() as u64;
        let (model, under_way) = Model::after(seed, steps);
        let dir = other(&dirs, number);
        let checked = check::check(dir, number as u64, &model, &under_way);
        found.push(checked.map_err(|error| {
            let dir = dir.display();
            format!("{dir}, writer {number} (seed {seed}, {steps} steps acknowledged): {error}")
        })?);
    }
    Ok(Round { name, found })
}

/// Of the same directory on all mounts, the one on which what `writer` did is looked at: the next to its own.
fn other(dirs: &[PathBuf], writer: usize) -> &Path {
    &dirs[(writer + 1) % dirs.len()]
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

/// Lets the writers work and kills what serves them. Returns what each writer told.
fn kill_under_load(
    varve: &mut Varve,
    writers: Vec<Child>,
    random: &mut Random,
) -> Result<Vec<Vec<u8>>, Failure> {
    let mut load = || Duration::from_millis(LOAD.start + random.below(LOAD.end - LOAD.start));
    end_under_load(writers, |are_at_work| {
        thread::sleep(load());
        if !machine::is_served() {
            are_at_work(0)?;
            return varve.kill();
        }
        for _ in 0..=load().as_millis() % 2 {
            are_at_work(0)?;
            varve.restart_server()?;
            thread::sleep(load());
        }
        are_at_work(0)?;
        if load().as_millis() % 2 == 0 {
            return varve.kill();
        }
        varve.kill_one(0)?;
        thread::sleep(load());
        are_at_work(1)?;
        varve.kill_one(1)
    })
}

/// Waits until every writer has told a step; calls `end`, after which all must end. Returns what each writer told. `end` gets
/// what fails if writers have ended already, other than those of so many first mounts.
fn end_under_load(
    writers: Vec<Child>,
    end: impl FnOnce(&dyn Fn(usize) -> Outcome) -> Outcome,
) -> Result<Vec<Vec<u8>>, Failure> {
    let (sender, begun) = channel();
    let pids: Vec<Pid> = writers.iter().map(Pid::from_child).collect();
    let listen_to = |writer| {
        let sender = sender.clone();
        move || listen(writer, &sender)
    };
    thread::scope(|scope| {
        let listeners: Vec<_> =
            writers.into_iter().map(|writer| scope.spawn(listen_to(writer))).collect();
        let are_at_work = |mounts_killed: usize| {
            let mut rest = listeners.iter().enumerate();
            let ended = rest.find(|(number, listener)| {
                number % MOUNTS_SERVED >= mounts_killed && listener.is_finished()
            });
            match ended {
                Some((number, _)) => {
                    Err(format!("writer {number} lost its files before the kill").into())
                }
                None => Ok(()),
            }
        };
        let outcome = if listeners.iter().all(|_| begun.recv_timeout(FIRST_WAIT_MAX).is_ok()) {
            end(&are_at_work)
        } else {
            Err(format!("no step within {FIRST_WAIT_MAX:?}").into())
        };
        if outcome.is_err() {
            // They would not end. The number of one that has ended may be another process's by now.
            for (pid, listener) in pids.into_iter().zip(&listeners) {
                if !listener.is_finished() {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
        }
        let ends = listeners.into_iter().map(thread::ScopedJoinHandle::join);
        let tales = ends
            .map(|end| end.map_err(|_| Failure::from("a listener panicked"))?)
            .collect::<Result<_, Failure>>();
        outcome.and(tales)
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

fn check_again(varve: &Varve, round: &Round) -> Outcome {
    let dirs: Vec<PathBuf> = varve.mount_points().map(|mount| mount.join(&round.name)).collect();
    round.found.iter().enumerate().try_for_each(|(number, found)| {
        let dir = other(&dirs, number);
        let checked = found.check_again(dir, number as u64);
        checked.map_err(|error| format!("{}, writer {number}: {error}", dir.display()).into())
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
        let kill = |are_at_work: &dyn Fn(usize) -> Outcome| {
            thread::sleep(Duration::from_millis(LOAD.end));
            are_at_work(0)?;
            Ok(fs::write(&killed, "")?)
        };
        let writers = vec![writer(Some(&killed)), writer(None)];
        let error = end_under_load(writers, kill).unwrap_err().to_string();
        assert_eq!(error, "writer 1 lost its files before the kill");
        let writers = vec![writer(Some(&killed)), writer(Some(&killed))];
        assert_eq!(end_under_load(writers, kill).unwrap(), [b".", b"."]);
    }
}
