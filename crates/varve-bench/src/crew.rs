//! The workers of a phase: threads of this process, or processes of their own.
//!
//! All are made ready first and then let go at once. The time of each begins at that moment, so that with more workers than CPUs
//! it contains the wait for a CPU. A worker process is this program again with the hidden subcommand `worker` and
//! its task as JSON; it says `ready`, waits for a line that tells the moment by the clock which all processes share,
//! and answers with its [`Tally`].

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdout, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::meter::{self, Tally, Tempo};
use crate::place::{Kernel, Place};
use crate::run::{self, Running};
use crate::workload::{Choice, Phase, Plan, Worker};

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
    /// How many workers a phase has.
    pub(crate) fn workers_of(&self, phase: &Phase) -> u64 {
        phase.workers_of(self.workers)
    }

    /// The clock of a worker. At a fixed rate the first operations of all are as far apart as those that follow.
    fn tempo(&self, worker: Worker) -> Tempo {
        let after = |operations: u64| {
            self.rate.map(|rate| Duration::from_secs_f64(operations as f64 / rate))
        };
        let first = after(worker.index).unwrap_or_default();
        Tempo { interval: after(worker.of), first, limit: self.limit }
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
        if !self.as_processes {
            return self.run_threads(plan, phase, workers, place);
        }
        let root = place.root().ok_or("worker processes need a mount, not the library")?;
        let tasks = (0..workers).map(|worker| Task {
            workload: workload.clone(),
            phase,
            worker,
            of: workers,
            tempo: self.tempo(Worker { index: worker, of: workers }),
            root: root.to_path_buf(),
        });
        run_processes(tasks)
    }

    fn run_threads(
        &self,
        plan: &dyn Plan,
        phase: usize,
        workers: u64,
        place: &dyn Place,
    ) -> Result<Vec<Tally>, Failure> {
        let gate = Gate::new(workers);
        thread::scope(|scope| {
            let start = |index| {
                let gate = &gate;
                thread::Builder::new().spawn_scoped(scope, move || {
                    let worker = Worker { index, of: workers };
                    let ops = plan.ops(phase, worker);
                    meter::measure(place, ops, self.tempo(worker), || gate.wait())
                })
            };
            let threads: Result<Vec<_>, _> =
                (0..workers).map(|index| start(index).inspect_err(|_| gate.give_up())).collect();
            let threads = threads.map_err(|error| {
                format!("cannot start {workers} workers: {error}\nhint: give fewer with --workers")
            })?;
            let join = |thread: thread::ScopedJoinHandle<'_, Result<Tally, Failure>>| {
                thread.join().unwrap_or_else(|_| Err("a worker panicked".into()))
            };
            // All must have ended before the first error is passed on.
            let outcomes: Vec<_> = threads.into_iter().map(join).collect();
            outcomes.into_iter().collect()
        })
    }
}

/// Where threads wait until all are ready.
struct Gate {
    way: Mutex<Way>,
    changed: Condvar,
}

/// What a gate lets through.
enum Way {
    /// Nobody: so many are still to come.
    Shut(u64),
    /// All, since then.
    Open(Instant),
    /// Nobody any more: some will not come.
    GivenUp,
}

impl Gate {
    fn new(threads: u64) -> Gate {
        Gate { way: Mutex::new(Way::Shut(threads)), changed: Condvar::new() }
    }

    /// Waits for the others. Returns when all were let go, whenever this one goes on.
    fn wait(&self) -> Result<Instant, Failure> {
        let mut way = self.way.lock();
        if let Way::Shut(missing) = &mut *way {
            *missing -= 1;
            if *missing == 0 {
                *way = Way::Open(Instant::now());
                self.changed.notify_all();
            }
        }
        loop {
            match *way {
                Way::Shut(_) => self.changed.wait(&mut way),
                Way::Open(since) => return Ok(since),
                Way::GivenUp => return Err("the other workers could not be started".into()),
            }
        }
    }

    /// Lets those go who wait for others that will not come.
    fn give_up(&self) {
        *self.way.lock() = Way::GivenUp;
        self.changed.notify_all();
    }
}

fn run_processes(tasks: impl Iterator<Item = Task>) -> Result<Vec<Tally>, Failure> {
    let mut hired = Vec::new();
    for task in tasks {
        let mut worker = run::while_this_one_lives("KILL", std::env::current_exe()?);
        worker.args(["worker", &serde_json::to_string(&task)?]);
        hired.push(Running::start(worker.stdin(Stdio::piped()).stdout(Stdio::piped()))?);
    }
    let mut answers = Vec::new();
    for worker in &mut hired {
        let stdout = worker.child.stdout.take().ok_or("a worker has no output")?;
        let mut from = BufReader::new(stdout);
        answer(&mut from)?;
        answers.push(from);
    }
    let go = format!("{}\n", meter::since_boot().as_nanos());
    for worker in &mut hired {
        worker.child.stdin.take().ok_or("a worker has no input")?.write_all(go.as_bytes())?;
    }
    answers.iter_mut().map(|from| Ok(serde_json::from_str(&answer(from)?)?)).collect()
}

/// What a worker has to say next. It may be told to end before who waits for it is.
fn answer(from: &mut BufReader<ChildStdout>) -> Result<String, Failure> {
    meter::wait_for(from.get_ref())?;
    line(from).or_else(|error| meter::check_interrupt().and(Err(error)))
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
    let tally = meter::measure(&place, ops, task.tempo, || {
        println!("ready");
        let go = Duration::from_nanos(line(&mut std::io::stdin().lock())?.trim().parse()?);
        let late = meter::since_boot().saturating_sub(go);
        Ok(Instant::now().checked_sub(late).ok_or("the clock has gone back")?)
    })?;
    println!("{}", serde_json::to_string(&tally)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Op;
    use crate::workload::{Expects, Ops};

    const WORKERS: u64 = 64;

    /// Each worker writes to a file of its own, for some tenths of a millisecond.
    struct Writes;

    impl Plan for Writes {
        fn phases(&self) -> Vec<Phase> {
            vec![Phase::warm("write")]
        }

        fn ops(&self, _phase: usize, worker: Worker) -> Ops<'_> {
            let key = worker.index;
            let write =
                move |_| Op::WriteAt { path: format!("f{key}"), offset: 0, bytes: 256 << 10, key };
            Box::new((0..100).map(write))
        }

        fn expects(&self, _phase: usize, _workers: u64) -> Expects<'_> {
            Box::new(std::iter::empty())
        }

        fn inodes(&self) -> u64 {
            WORKERS
        }
    }

    /// A worker that was done within its first slice of a CPU counted as parallel with all the others, so that the rate of many was
    /// a multiple of what the CPUs can do.
    #[test]
    fn workers_that_take_turns_take_as_long_as_all_of_them() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for worker in 0..WORKERS {
            std::fs::write(dir.path().join(format!("f{worker}")), "").expect("a file");
        }
        let place = Kernel::new(dir.path()).expect("directory opens");
        let crew = Crew { workers: None, as_processes: false, rate: None, limit: None };
        let tallies = crew.run_threads(&Writes, 0, WORKERS, &place).expect("phase");
        let longest = tallies.iter().map(|tally| tally.active).max().expect("workers");
        let cpu: Duration = tallies.iter().map(|tally| tally.thread_cpu).sum();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
        // Half: making workers ready is among their CPU time, too.
        assert!(longest * cpus >= cpu / 2, "{longest:?} on {cpus} CPUs for {cpu:?}");
    }

    #[test]
    fn all_have_begun_when_the_first_went_on() {
        let gate = Gate::new(8);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| gate.wait())).collect();
            let begins = threads.into_iter().map(|thread| thread.join().expect("a thread"));
            let begins: Vec<Instant> = begins.map(|begin| begin.expect("all came")).collect();
            assert!(begins.iter().all(|begin| *begin == begins[0]));
        });
    }

    /// Where one thread could not be started the others waited for it.
    #[test]
    fn who_waits_for_one_that_will_not_come_is_let_go() {
        let gate = Gate::new(2);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| gate.wait().is_err());
            gate.give_up();
            assert!(waiting.join().expect("a thread"));
        });
    }

    #[test]
    fn workers_at_a_rate_take_turns_from_the_beginning() {
        let crew = Crew { workers: None, as_processes: false, rate: Some(100.0), limit: None };
        let firsts = [0, 1, 3].map(|index| crew.tempo(Worker { index, of: 4 }).first);
        assert_eq!(firsts, [0, 10, 30].map(Duration::from_millis));
        let interval = crew.tempo(Worker { index: 2, of: 4 }).interval;
        assert_eq!(interval, Some(Duration::from_millis(40)));
    }
}
