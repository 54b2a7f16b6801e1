//! The workers of a phase: threads of this process, or processes of their own.
//!
//! All are made ready first and then let go at once. A worker process is this program again with the hidden
//! subcommand `worker` and its task as JSON; it says `ready`, waits for a line, and answers with its [`Tally`].

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::meter::{self, Tally, Tempo};
use crate::place::{Kernel, Place};
use crate::workload::{Choice, Plan, Worker};

/// How a phase is worked on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Crew {
    /// How many workers there are, if not as many as the workload wants.
    pub(crate) workers: Option<u64>,
    /// Whether each is a process of its own.
    pub(crate) as_processes: bool,
    /// Operations per second of all together, if they come at a fixed rate.
    pub(crate) rate: Option<f64>,
    /// The time after which a phase is ended, if it may be.
    pub(crate) limit: Option<Duration>,
}

/// What a worker process is to do.
#[derive(Serialize, Deserialize)]
struct Task {
    workload: Choice,
    phase: usize,
    worker: u64,
    of: u64,
    tempo: Tempo,
    root: PathBuf,
}

impl Crew {
    /// The clock of one of `workers` workers.
    fn tempo(&self, workers: u64) -> Tempo {
        let interval = self.rate.map(|rate| Duration::from_secs_f64(workers as f64 / rate));
        Tempo { interval, limit: self.limit }
    }

    /// Runs phase number `phase` of `workload` by `workers` workers.
    pub(crate) fn run(
        &self,
        workload: &Choice,
        plan: &dyn Plan,
        phase: usize,
        workers: u64,
        place: &dyn Place,
    ) -> Result<Vec<Tally>, Failure> {
        let tempo = self.tempo(workers);
        if !self.as_processes {
            return run_threads(plan, phase, workers, tempo, place);
        }
        let root = place.root().ok_or("worker processes need a mount, not the library")?;
        let tasks = (0..workers).map(|worker| Task {
            workload: workload.clone(),
            phase,
            worker,
            of: workers,
            tempo,
            root: root.to_path_buf(),
        });
        run_processes(tasks)
    }
}

fn run_threads(
    plan: &dyn Plan,
    phase: usize,
    workers: u64,
    tempo: Tempo,
    place: &dyn Place,
) -> Result<Vec<Tally>, Failure> {
    let barrier = Barrier::new(usize::try_from(workers)?);
    std::thread::scope(|scope| {
        let start = |index| {
            let barrier = &barrier;
            scope.spawn(move || {
                let ops = plan.ops(phase, Worker { index, of: workers });
                barrier.wait();
                meter::measure(place, ops, tempo)
            })
        };
        let threads: Vec<_> = (0..workers).map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Tally, Failure>>| {
            thread.join().unwrap_or_else(|_| Err("a worker panicked".into()))
        };
        // All must have ended before the first error is passed on.
        let outcomes: Vec<_> = threads.into_iter().map(join).collect();
        outcomes.into_iter().collect()
    })
}

/// A worker process; killed if it is dropped before it has answered.
struct Hired {
    child: Child,
}

impl Drop for Hired {
    fn drop(&mut self) {
        // Fails if it has ended, which is what is wanted.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn run_processes(tasks: impl Iterator<Item = Task>) -> Result<Vec<Tally>, Failure> {
    let mut hired = Vec::new();
    for task in tasks {
        let child = Command::new(std::env::current_exe()?)
            .args(["worker", &serde_json::to_string(&task)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        hired.push(Hired { child });
    }
    let mut answers = Vec::new();
    for worker in &mut hired {
        let stdout = worker.child.stdout.take().ok_or("a worker has no output")?;
        let mut answer = BufReader::new(stdout);
        line(&mut answer)?;
        answers.push(answer);
    }
    for worker in &mut hired {
        worker.child.stdin.take().ok_or("a worker has no input")?.write_all(b"go\n")?;
    }
    answers.iter_mut().map(|answer| Ok(serde_json::from_str(&line(answer)?)?)).collect()
}

fn line(from: &mut impl BufRead) -> Result<String, Failure> {
    let mut text = String::new();
    match from.read_line(&mut text)? {
        0 => Err("a worker process failed".into()),
        _ => Ok(text),
    }
}

/// Does the task `text` as a process of its own.
pub(crate) fn work(text: &str) -> Result<(), Failure> {
    let task: Task = serde_json::from_str(text)?;
    let place = Kernel::new(&task.root)?;
    let plan = task.workload.plan()?;
    let ops = plan.ops(task.phase, Worker { index: task.worker, of: task.of });
    println!("ready");
    line(&mut std::io::stdin().lock())?;
    let tally = meter::measure(&place, ops, task.tempo)?;
    println!("{}", serde_json::to_string(&tally)?);
    Ok(())
}
