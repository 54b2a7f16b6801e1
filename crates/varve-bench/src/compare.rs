//! Targets in turn.
//!
//! 1. One round runs the whole workload on each target in turn, each freshly made; rounds follow each other
//!    (A B A B), so that a slow minute of the machine meets all.
//! 2. A phase that is to begin cold begins with the target taken away and brought back and caches dropped.
//! 3. After the clock has stopped the target writes everything back, so that device counters hold all of the
//!    phase, of rows in a store's memtables the log; then what must hold is checked.
//! 4. A phase whose time is over ends the round of its target: those behind it are about what it would have left.
//! 5. The first error ends everything: no figure is printed of a run with errors.

use std::time::{Duration, Instant};

use crate::Failure;
use crate::crew::Crew;
use crate::machine;
use crate::meter::Tally;
use crate::place::check;
use crate::report::{Costs, Facts, Figure, Machine, Report, Setup};
use crate::run::Step;
use crate::target::{Ground, Kind, Spec, Target};
use crate::workload::{Choice, Phase, Plan, begun};

/// How a comparison runs.
pub(crate) struct Course {
    /// What is measured.
    pub(crate) targets: Vec<Spec>,
    /// Where, and by what programs.
    pub(crate) ground: Ground,
    /// How often.
    pub(crate) rounds: u32,
    /// By whom.
    pub(crate) crew: Crew,
    /// Whether phases begin with whatever is in memory.
    pub(crate) warm: bool,
    /// To how many bytes the machine's memory was to be held down, and to how many it is, if it is.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) memory_left_bytes: Option<u64>,
    /// The last phase; all if it is not given.
    pub(crate) until: Option<String>,
    /// Whether stores are left unchecked at the end.
    pub(crate) no_fsck: bool,
}

/// Runs it.
pub(crate) fn run(course: &Course, workload: &Choice) -> Result<Report, Failure> {
    let plan = workload.plan()?;
    let mut phases = plan.phases();
    if let Some(until) = &course.until {
        let last = phases.iter().position(|phase| phase.name == *until);
        let names: Vec<&str> = phases.iter().map(|phase| phase.name.as_str()).collect();
        let last = last.ok_or_else(|| format!("no phase {until}: {}", names.join(", ")))?;
        phases.truncate(last + 1);
    }
    phases.iter().try_for_each(|phase| plan.require(course.crew.workers_of(phase)))?;
    let begin = Instant::now();
    let mut report = Report::new(course.setup()?, &course.targets, phases.clone());
    for round in 1..=course.rounds {
        for (at, spec) in course.targets.iter().enumerate() {
            eprintln!("round {round} of {}: {spec}", course.rounds);
            let run = Run { course, workload, plan: &*plan };
            let (figures, facts) =
                run.on(spec, &phases).map_err(|error| format!("{spec}: {error}"))?;
            report.add(at, figures, facts);
        }
    }
    report.took(begin.elapsed());
    Ok(report)
}

impl Course {
    fn setup(&self) -> Result<Setup, Failure> {
        let is_mounted = self.targets.iter().any(|spec| spec.kind == Kind::Varve);
        let version = || Step::new(&self.ground.varve).arg("--version").capture();
        Ok(Setup {
            rounds: self.rounds,
            workers: self.crew.workers,
            processes: self.crew.as_processes,
            rate: self.crew.rate,
            limit_seconds: self.crew.limit.map(|limit| limit.as_secs()),
            warm: self.warm,
            memory_bytes: self.memory_bytes,
            memory_left_bytes: self.memory_left_bytes,
            image_bytes: self.ground.image_bytes,
            iops: self.ground.iops,
            until: self.until.clone(),
            no_fsck: self.no_fsck,
            version: env!("CARGO_PKG_VERSION"),
            varve: is_mounted.then(version).transpose()?.map(|said| said.trim().to_owned()),
            machine: Machine::this(),
        })
    }
}

/// One round on one target.
struct Run<'a> {
    course: &'a Course,
    workload: &'a Choice,
    plan: &'a dyn Plan,
}

impl Run<'_> {
    /// A figure for each phase, and what else is told of the target.
    fn on(&self, spec: &Spec, phases: &[Phase]) -> Result<(Vec<Figure>, Facts), Failure> {
        let mut target = Target::new(spec, &self.course.ground, self.plan.inodes())?;
        let mut figures: Vec<Figure> = Vec::new();
        for (number, phase) in phases.iter().enumerate() {
            eprintln!("  {}", phase.name);
            let failed = |error: Failure| format!("{}: {error}", phase.name);
            if phase.is_cold && !self.course.warm {
                let closing = target.make_cold().map_err(failed)?;
                if let Some(figure) = figures.last_mut() {
                    figure.add_closing(closing);
                }
            }
            let figure = self.phase(&target, number, phase).map_err(failed)?;
            let is_cut = figure.is_cut();
            figures.push(figure);
            if is_cut {
                eprintln!("  its time is over, and so is the round");
                break;
            }
        }
        let facts = Facts { is_direct: target.is_direct(), session: target.session() };
        let closing = target.finish(!self.course.no_fsck)?;
        if let Some(figure) = figures.last_mut() {
            figure.add_closing(closing);
        }
        Ok((figures, facts))
    }

    fn phase(&self, target: &Target, number: usize, phase: &Phase) -> Result<Figure, Failure> {
        let workers = self.course.crew.workers_of(phase);
        let (tallies, costs) = self.measure(target, number, workers)?;
        let place = target.place()?;
        if tallies.iter().any(|tally| tally.is_cut) {
            let done: Vec<u64> = tallies.iter().map(|tally| tally.ops).collect();
            let expects = begun::expects(self.plan, number, &done);
            expects.iter().try_for_each(|expect| check(place, expect))?;
            return Figure::new(phase, &tallies, &costs);
        }
        self.plan.expects(number, workers).try_for_each(|expect| check(place, &expect))?;
        Figure::new(phase, &tallies, &costs)
    }

    fn measure(
        &self,
        target: &Target,
        number: usize,
        workers: u64,
    ) -> Result<(Vec<Tally>, Costs), Failure> {
        let place = target.place()?;
        let (cpu, traffic) = (target.daemon_cpu(Duration::ZERO)?, target.traffic()?);
        let machine_cpu = machine::cpu()?;
        let tallies = self.course.crew.run(self.workload, self.plan, number, workers, place)?;
        let in_workers = tallies.iter().map(|tally| tally.thread_cpu).sum();
        let daemon_cpu = target.daemon_cpu(in_workers)?.zip(cpu);
        let daemon_cpu = daemon_cpu.map(|(after, before)| after.saturating_sub(before));
        let begin = Instant::now();
        target.sync()?;
        let synced = begin.elapsed();
        let traffic = match (target.traffic()?, traffic) {
            (Some(after), Some(before)) => Some(after.since(before)),
            _ => None,
        };
        let costs = Costs {
            daemon_cpu,
            machine_cpu: machine::cpu()?.saturating_sub(machine_cpu),
            synced,
            traffic,
            memory_peak_bytes: target.memory_peak_bytes()?,
            slab_bytes: machine::memory_bytes("/proc/meminfo", "Slab")?,
            space_bytes: target.space_bytes()?,
        };
        Ok((tallies, costs))
    }
}
