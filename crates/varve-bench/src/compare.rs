//! Targets in turn.
//!
//! 1. One round runs the whole workload on each target in turn, each freshly made; rounds follow each other
//!    (A B A B), so that a slow minute of the machine meets all.
//! 2. A phase that is to begin cold begins with the target taken away and brought back and caches dropped.
//! 3. After the clock has stopped the target writes everything back, so that device counters hold all of the
//!    phase, of rows in a store's memtables the log; then what must hold is checked. What the device writes from then until the
//!    next phase, or until the target is taken away, is told apart: no byte it wrote falls between two phases.
//! 4. A phase whose time is over ends the round of its target: those behind it are about what it would have left.
//! 5. At the end of a round the target is brought back once more, and what the last phase must have left is checked again: by
//!    then it comes from the device.
//! 6. The first error ends everything: no figure is printed of a run with errors.

use std::time::{Duration, Instant};

use crate::Failure;
use crate::crew::Crew;
use crate::machine::{self, Traffic};
use crate::meter::{Tally, check_interrupt};
use crate::op::Expect;
use crate::place::{Place, check};
use crate::report::{Costs, Facts, Figure, Machine, Report, Setup};
use crate::run::Step;
use crate::target::{Ground, Kind, Opening, Spec, Target};
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
    course.targets.iter().try_for_each(|spec| course.require(spec, workload))?;
    // At its end every round brings the target back.
    if !course.warm {
        machine::require_drop_caches()?;
    }
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
    /// An error that says what to do unless `spec` can do this work: no figures are lost to what can be known before.
    fn require(&self, spec: &Spec, workload: &Choice) -> Result<(), Failure> {
        let needs_a_mount = if workload.runs_programs() {
            Some("the workload runs programs")
        } else {
            self.crew.as_processes.then_some("--processes")
        };
        match needs_a_mount {
            Some(why) if spec.kind == Kind::Library => {
                Err(format!("{spec}: {why}, which needs a mount, as of varve").into())
            }
            _ => spec.require(&self.ground),
        }
    }

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
            filled: self.ground.is_filled,
            iops: self.ground.iops,
            until: self.until.clone(),
            no_fsck: self.no_fsck,
            version: env!("CARGO_PKG_VERSION"),
            varve: is_mounted.then(version).transpose()?.map(|said| said.trim().to_owned()),
            machine: Machine::this(),
        })
    }
}

/// The phases of a round, and how far what the device wrote is told in them.
#[derive(Default)]
struct Told {
    figures: Vec<Figure>,
    until: Option<Traffic>,
}

impl Told {
    /// What the device wrote until `now` and is not told yet belongs to the last phase.
    fn add_later(&mut self, now: Option<Traffic>) {
        if let (Some(figure), Some(until), Some(now)) = (self.figures.last_mut(), self.until, now) {
            figure.add_later(now.since(until).written_bytes);
        }
        self.until = now;
    }

    /// Takes the target away and brings it back.
    fn bring_back(&mut self, target: &mut Target) -> Result<Opening, Failure> {
        let came = target.make_cold()?;
        self.add_later(came.closed);
        self.until = came.begun;
        Ok(came.opening)
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
        let mut told = Told::default();
        let mut last = (0, Vec::new());
        for (number, phase) in phases.iter().enumerate() {
            check_interrupt()?;
            eprintln!("  {}", phase.name);
            let failed = |error: Failure| format!("{}: {error}", phase.name);
            let is_cold = phase.is_cold && !self.course.warm;
            let opening = is_cold.then(|| told.bring_back(&mut target));
            let opening = opening.transpose().map_err(failed)?;
            let workers = self.course.crew.workers_of(phase);
            told.add_later(target.traffic()?);
            let (tallies, costs) = self.measure(&target, number, workers).map_err(failed)?;
            told.until = target.traffic()?;
            self.check(target.place()?, number, &tallies).map_err(failed)?;
            told.figures.push(Figure::new(phase, &tallies, &costs, opening).map_err(failed)?);
            last = (number, tallies);
            if last.1.iter().any(|tally| tally.is_cut) {
                eprintln!("  its time is over, and so is the round");
                break;
            }
        }
        let facts = Facts { is_direct: target.is_direct(), session: target.session() };
        if !self.course.warm {
            told.bring_back(&mut target)?;
            let checked = self.check(target.place()?, last.0, &last.1);
            checked.map_err(|error| format!("brought back at the end: {error}"))?;
        }
        told.add_later(target.finish(!self.course.no_fsck)?);
        Ok((told.figures, facts))
    }

    /// An error unless the place is as phase number `number` must have left it, as far as its workers came.
    fn check(&self, place: &dyn Place, number: usize, tallies: &[Tally]) -> Result<(), Failure> {
        let holds = |expect: &Expect| {
            check_interrupt()?;
            check(place, expect)
        };
        if tallies.iter().any(|tally| tally.is_cut) {
            let done: Vec<u64> = tallies.iter().map(|tally| tally.ops).collect();
            let expects = begun::expects(self.plan, number, &done);
            return expects.iter().try_for_each(holds);
        }
        let mut expects = self.plan.expects(number, tallies.len() as u64);
        expects.try_for_each(|expect| holds(&expect))
    }

    fn measure(
        &self,
        target: &Target,
        number: usize,
        workers: u64,
    ) -> Result<(Vec<Tally>, Costs), Failure> {
        let place = target.place()?;
        // To tell of its rows takes the daemon some time.
        let row_bytes = target.row_bytes()?;
        let (cpu, traffic) = (target.daemon_cpu(Duration::ZERO)?, target.traffic()?);
        let machine_cpu = machine::cpu()?;
        let tallies = self.course.crew.run(self.workload, self.plan, number, workers, place)?;
        let in_workers = tallies.iter().map(|tally| tally.thread_cpu).sum();
        let daemon_cpu = target.daemon_cpu(in_workers)?.zip(cpu);
        let daemon_cpu = daemon_cpu.map(|(after, before)| after.saturating_sub(before));
        let begin = Instant::now();
        target.sync()?;
        let synced = begin.elapsed();
        let row_bytes = target.row_bytes()?.zip(row_bytes).map(|(after, before)| after - before);
        let traffic = match (target.traffic()?, traffic) {
            (Some(after), Some(before)) => Some(after.since(before)),
            _ => None,
        };
        let costs = Costs {
            daemon_cpu,
            machine_cpu: machine::cpu()?.saturating_sub(machine_cpu),
            synced,
            row_bytes,
            traffic,
            memory_peak_bytes: target.memory_peak_bytes()?,
            slab_bytes: machine::memory_bytes("/proc/meminfo", "Slab")?,
            space_bytes: target.space_bytes()?,
        };
        Ok((tallies, costs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(bytes: u64) -> Option<Traffic> {
        Some(Traffic { written_bytes: bytes, ..Traffic::default() })
    }

    /// What a device wrote while what must hold was checked was told of no phase.
    #[test]
    fn all_that_the_device_writes_after_a_phase_is_told_of_it() {
        let figure = || Figure::new(&Phase::warm("create"), &[], &Costs::default(), None);
        let mut told = Told::default();
        told.add_later(written(10));
        told.figures.push(figure().expect("a figure"));
        told.until = written(100);
        told.add_later(written(130));
        told.add_later(written(137));
        told.figures.push(figure().expect("a figure"));
        told.add_later(written(138));
        let later: Vec<_> = told.figures.iter().map(Figure::later_bytes).collect();
        assert_eq!(later, [Some(37), Some(1)]);
    }
}
