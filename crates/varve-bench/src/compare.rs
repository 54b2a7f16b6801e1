//! Targets in turn.
//!
//! 1. One round runs the whole workload on each target in turn, each freshly made; rounds follow each other
//!    (A B A B), so that a slow minute of the machine meets all.
//! 2. A phase that is to begin cold begins with the target taken away and brought back and caches dropped.
//! 3. After the clock has stopped the target writes everything back, so that device counters hold all of the
//!    phase; then what must hold is checked.
//! 4. The first error ends everything: no figure is printed of a run with errors.

use std::time::{Duration, Instant};

use crate::Failure;
use crate::crew::Crew;
use crate::machine;
use crate::meter::Tally;
use crate::place::check;
use crate::report::{Costs, Figure, Report};
use crate::target::{Ground, Spec, Target};
use crate::workload::{Choice, Phase, Plan};

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
    let mut report = Report::new(&course.targets, phases.clone());
    for round in 1..=course.rounds {
        for (at, spec) in course.targets.iter().enumerate() {
            eprintln!("round {round} of {}: {spec}", course.rounds);
            let run = Run { course, workload, plan: &*plan };
            let figures = run.on(spec, &phases).map_err(|error| format!("{spec}: {error}"))?;
            report.add(at, figures);
        }
    }
    Ok(report)
}

/// One round on one target.
struct Run<'a> {
    course: &'a Course,
    workload: &'a Choice,
    plan: &'a dyn Plan,
}

impl Run<'_> {
    /// A figure for each phase.
    fn on(&self, spec: &Spec, phases: &[Phase]) -> Result<Vec<Figure>, Failure> {
        let mut target = Target::new(spec, &self.course.ground, self.plan.inodes())?;
        let mut figures = Vec::new();
        for (number, phase) in phases.iter().enumerate() {
            eprintln!("  {}", phase.name);
            let figure = self.phase(&mut target, number, phase);
            figures.push(figure.map_err(|error| format!("{}: {error}", phase.name))?);
        }
        target.finish(!self.course.no_fsck)?;
        Ok(figures)
    }

    fn phase(&self, target: &mut Target, number: usize, phase: &Phase) -> Result<Figure, Failure> {
        if phase.is_cold && !self.course.warm {
            target.make_cold()?;
        }
        let workers = self.course.crew.workers.or(phase.workers).unwrap_or(1);
        let (tallies, costs) = self.measure(target, number, workers)?;
        let names: u64 = tallies.iter().map(|tally| tally.names).sum();
        if let Some(expected) = phase.names.filter(|expected| *expected != names) {
            return Err(format!("check failed: {names} names instead of {expected}").into());
        }
        for expect in self.plan.expects(number, workers) {
            check(target.place()?, &expect)?;
        }
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
        let daemon_cpu = target.daemon_cpu(in_workers)?.saturating_sub(cpu);
        let begin = Instant::now();
        place.sync()?;
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
