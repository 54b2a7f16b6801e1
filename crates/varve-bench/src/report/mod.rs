//! The figures of a comparison: each round's of each phase on each target.

mod json;
mod plots;
mod setup;
mod table;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::Value;

use crate::Failure;
use crate::machine::Traffic;
use crate::meter::{self, BUCKET, Tally};
use crate::target::{Opening, Spec};
use crate::workload::Phase;

pub(crate) use setup::{Machine, Setup};
pub(crate) use table::print;

/// What one round measured of one phase on one target.
pub(crate) struct Figure {
    /// Operations, or names where the phase counts those.
    count: u64,
    /// Of those, in a second of all workers together.
    per_second: f64,
    /// CPU time of the workers for one, in microseconds.
    client_cpu_us: f64,
    /// CPU time of who serves them for one, in microseconds, up to the end of the last worker; `None` if that is the kernel.
    daemon_cpu_us: Option<f64>,
    /// CPU time of all that ran on the machine for one, writing back included, in microseconds.
    machine_cpu_us: f64,
    /// Time to write everything back afterwards, in seconds.
    sync_seconds: f64,
    /// To and from the device, that included.
    traffic: Option<Traffic>,
    /// Bytes of the rows that were put into the store meanwhile, if it is one.
    row_bytes: Option<u64>,
    /// Bytes that the device wrote from then until the next phase, or until the target had been taken away, if it has a device.
    later_bytes: Option<u64>,
    /// What the target took to be brought back before it, if it was.
    opening: Option<Opening>,
    /// The most memory that who serves the workers has taken so far, in bytes.
    memory_peak_bytes: Option<u64>,
    /// Memory that the kernel keeps of names and inodes of all file systems, among others, in bytes.
    slab_bytes: u64,
    /// Bytes that the target takes on its device.
    space_bytes: Option<u64>,
    /// Latencies of each kind of operation in nanoseconds.
    latencies: BTreeMap<String, Histogram<u64>>,
    /// Operations, or names where the phase counts those, in each tenth of a second.
    buckets: Vec<u64>,
    /// From when all workers were let go to the end of the last, in seconds; the last bucket ends there.
    seconds: f64,
    /// Whether its time was over before all was done.
    is_cut: bool,
}

/// What a phase took besides the workers' own time.
#[derive(Default)]
pub(crate) struct Costs {
    /// CPU time of who serves the workers, up to the end of the last of them; `None` if that is the kernel.
    pub(crate) daemon_cpu: Option<Duration>,
    /// CPU time of all that ran on the machine, writing back included.
    pub(crate) machine_cpu: Duration,
    /// Time to write everything back afterwards.
    pub(crate) synced: Duration,
    /// Bytes of the rows that were put into the store, if the target is one.
    pub(crate) row_bytes: Option<u64>,
    /// To and from the device, that included.
    pub(crate) traffic: Option<Traffic>,
    /// The most memory that who serves the workers has taken so far, in bytes.
    pub(crate) memory_peak_bytes: Option<u64>,
    /// The kernel's slabs, in bytes.
    pub(crate) slab_bytes: u64,
    /// Bytes that the target takes on its device.
    pub(crate) space_bytes: Option<u64>,
}

impl Figure {
    /// Puts together what the workers did; `opening` is what the target took before, if it was brought back for it.
    pub(crate) fn new(
        phase: &Phase,
        tallies: &[Tally],
        costs: &Costs,
        opening: Option<Opening>,
    ) -> Result<Figure, Failure> {
        let of = |tally: &Tally| if phase.counts_names { tally.names } else { tally.ops };
        // Not the sum of their rates: one that is done early has left the machine to the others. All began at once.
        let longest = tallies.iter().map(|tally| tally.active).max().unwrap_or_default();
        let seconds = longest.as_secs_f64();
        let count: u64 = tallies.iter().map(of).sum();
        let each_us = |time: Duration| time.as_secs_f64() * 1e6 / count.max(1) as f64;
        let (mut latencies, mut buckets) = (BTreeMap::new(), Vec::new());
        for tally in tallies {
            for (kind, counts) in &tally.latencies {
                let of_kind = match latencies.entry(kind.clone()) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(meter::latencies()?),
                };
                for (nanos, times) in counts {
                    of_kind.record_n(*nanos, *times)?;
                }
            }
            buckets.resize(tally.buckets.len().max(buckets.len()), 0);
            for (sum, more) in buckets.iter_mut().zip(&tally.buckets) {
                *sum += more;
            }
        }
        Ok(Figure {
            count,
            per_second: count as f64 / seconds.max(1e-9),
            client_cpu_us: each_us(tallies.iter().map(|tally| tally.cpu).sum()),
            daemon_cpu_us: costs.daemon_cpu.map(each_us),
            machine_cpu_us: each_us(costs.machine_cpu),
            sync_seconds: costs.synced.as_secs_f64(),
            traffic: costs.traffic,
            row_bytes: costs.row_bytes,
            later_bytes: None,
            opening,
            memory_peak_bytes: costs.memory_peak_bytes,
            slab_bytes: costs.slab_bytes,
            space_bytes: costs.space_bytes,
            latencies,
            buckets,
            seconds,
            is_cut: tallies.iter().any(|tally| tally.is_cut),
        })
    }

    /// Memory that it takes to serve, in bytes: the kernel's slabs where that serves.
    fn memory_bytes(&self) -> Option<u64> {
        let is_the_kernel = self.daemon_cpu_us.is_none();
        self.memory_peak_bytes.or(is_the_kernel.then_some(self.slab_bytes))
    }

    /// What the device wrote after it.
    #[cfg(test)]
    pub(crate) fn later_bytes(&self) -> Option<u64> {
        self.later_bytes
    }

    /// Adds what the device wrote after it.
    pub(crate) fn add_later(&mut self, bytes: u64) {
        *self.later_bytes.get_or_insert(0) += bytes;
    }

    /// Bytes that the device wrote, later ones included, over those of the rows that were put into the store.
    fn amplification(&self) -> Option<f64> {
        let row_bytes = self.row_bytes.filter(|bytes| *bytes > 0)?;
        let written = self.traffic?.written_bytes + self.later_bytes.unwrap_or(0);
        Some(written as f64 / row_bytes as f64)
    }

    /// How long a bucket was, in seconds: the last one ends with the phase.
    fn bucket_seconds(&self, number: usize) -> f64 {
        let bucket = BUCKET.as_secs_f64();
        (self.seconds - number as f64 * bucket).clamp(0.0, bucket)
    }

    /// The rate of every `step` operations (or names), of all workers together, in a second.
    fn rates_by(&self, step: u64) -> Vec<f64> {
        let mut rates = Vec::new();
        let (mut done, mut from) = (0_u64, 0.0);
        for (number, in_bucket) in self.buckets.iter().enumerate() {
            let (begin, length) =
                (number as f64 * BUCKET.as_secs_f64(), self.bucket_seconds(number));
            let before = done;
            done += in_bucket;
            // Within a bucket the rate counts as even.
            while step > 0 && (rates.len() as u64 + 1) * step <= done {
                let missing = (rates.len() as u64 + 1) * step - before;
                let at = begin + length * missing as f64 / *in_bucket as f64;
                rates.push(step as f64 / (at - from).max(1e-9));
                from = at;
            }
        }
        rates
    }
}

/// What is told of a target besides its figures.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Whether its device, if it has one of its own, goes past the page cache.
    pub(crate) is_direct: Option<bool>,
    /// What its daemon and the kernel have agreed on, if it has one that tells: how requests travel.
    pub(crate) session: Option<Value>,
}

/// All figures of a comparison.
pub(crate) struct Report {
    setup: Setup,
    /// From the start of the first round to the end of the last, in seconds.
    seconds: f64,
    targets: Vec<String>,
    /// Of each target whether its device went past the page cache, if it had one.
    direct: Vec<Option<bool>>,
    /// Of each target what its daemons and the kernel had agreed on; one, if it was always the same.
    sessions: Vec<Vec<Value>>,
    phases: Vec<Phase>,
    /// By target, round and phase.
    figures: Vec<Vec<Vec<Figure>>>,
}

impl Report {
    /// An empty report.
    pub(crate) fn new(setup: Setup, targets: &[Spec], phases: Vec<Phase>) -> Report {
        let (direct, sessions) = (vec![None; targets.len()], vec![Vec::new(); targets.len()]);
        let figures = targets.iter().map(|_| Vec::new()).collect();
        let targets = targets.iter().map(ToString::to_string).collect();
        Report { setup, seconds: 0.0, targets, direct, sessions, phases, figures }
    }

    /// Adds a round of the target number `target`: one figure for each phase, and what else is told of it.
    pub(crate) fn add(&mut self, target: usize, figures: Vec<Figure>, facts: Facts) {
        self.figures[target].push(figures);
        let (direct, sessions) = (&mut self.direct[target], &mut self.sessions[target]);
        *direct = facts.is_direct.map(|is_direct| is_direct && direct.unwrap_or(true));
        sessions.extend(facts.session.filter(|session| !sessions.contains(session)));
    }

    /// Notes what all rounds took.
    pub(crate) fn took(&mut self, time: Duration) {
        self.seconds = time.as_secs_f64();
    }

    /// What a phase counts.
    fn unit(&self, phase: usize) -> &'static str {
        if self.phases[phase].counts_names { "names" } else { "operations" }
    }

    /// How many workers a phase had.
    fn workers(&self, phase: &Phase) -> u64 {
        phase.workers_of(self.setup.workers)
    }

    /// What was in memory when a phase began.
    fn state(&self, phase: &Phase) -> &'static str {
        if phase.is_cold && !self.setup.warm { "cold" } else { "warm" }
    }

    /// The rounds of a phase on a target.
    fn rounds(&self, target: usize, phase: usize) -> impl Iterator<Item = &Figure> + Clone {
        self.figures[target].iter().filter_map(move |round| round.get(phase))
    }

    /// A value of each round of a phase on a target, in the middle and at both ends.
    fn spread(&self, target: usize, phase: usize, value: impl Fn(&Figure) -> f64) -> Spread {
        Spread::of(self.rounds(target, phase).map(value).collect())
    }

    /// The middle of a value of each round of a phase on a target, if it is known of all.
    fn median_known(
        &self,
        target: usize,
        phase: usize,
        value: impl Fn(&Figure) -> Option<f64>,
    ) -> Option<f64> {
        let values: Option<Vec<f64>> = self.rounds(target, phase).map(value).collect();
        values.filter(|values| !values.is_empty()).map(|values| Spread::of(values).median)
    }

    /// The rate of a phase on a target over that on the first.
    fn ratio(&self, target: usize, phase: usize) -> Option<f64> {
        let rate = |target| self.median_known(target, phase, |figure| Some(figure.per_second));
        Some(rate(target)? / rate(0).filter(|first| *first > 0.0)?)
    }

    /// Bytes that the device wrote, later ones included, over those of the rows, where the target is a store.
    fn amplification(&self, target: usize, phase: usize) -> Option<f64> {
        self.median_known(target, phase, Figure::amplification)
    }

    /// The kinds of operations of a phase.
    fn kinds(&self, phase: usize) -> BTreeSet<&str> {
        let figures = (0..self.targets.len()).flat_map(|target| self.rounds(target, phase));
        figures.flat_map(|figure| figure.latencies.keys().map(String::as_str)).collect()
    }

    /// The latencies of all rounds of a phase on a target, of all operations or those of one kind.
    fn latencies(
        &self,
        target: usize,
        phase: usize,
        kind: Option<&str>,
    ) -> Result<Histogram<u64>, Failure> {
        let mut all = meter::latencies()?;
        for (_, latencies) in self
            .rounds(target, phase)
            .flat_map(|figure| &figure.latencies)
            .filter(|(its, _)| kind.is_none_or(|kind| kind == *its))
        {
            all.add(latencies)?;
        }
        Ok(all)
    }
}

/// The middle and the ends of several values.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    /// Of some values; all zero of none.
    pub(crate) fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
        let last = values.len().saturating_sub(1);
        Spread {
            median: f64::midpoint(at(last / 2), at(last.div_ceil(2))),
            min: at(0),
            max: at(last),
        }
    }

    /// The middle with so many decimals, and the ends in brackets.
    pub(crate) fn told(self, decimals: usize) -> String {
        let Spread { median, min, max } = self;
        format!("{median:.decimals$} ({min:.decimals$}-{max:.decimals$})")
    }
}

#[cfg(test)]
mod tests;
