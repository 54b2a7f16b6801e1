//! The figures of a comparison: each round's of each phase on each target.

mod chart;
mod json;
mod plots;
mod table;

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::Failure;
use crate::machine::Traffic;
use crate::meter::{self, BUCKET, Tally};
use crate::target::Spec;
use crate::workload::Phase;

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
    /// Bytes that the device wrote when the store was closed after it, if it was.
    closing_bytes: Option<u64>,
    /// The most memory that who serves the workers has taken so far, in bytes.
    memory_peak_bytes: Option<u64>,
    /// Memory that the kernel keeps of names and inodes of all file systems, among others, in bytes.
    slab_bytes: u64,
    /// Bytes that the target takes on its device.
    space_bytes: Option<u64>,
    /// Mean microseconds of each kind of operation.
    kinds_us: BTreeMap<String, f64>,
    /// Latencies of operations in nanoseconds.
    latencies: Histogram<u64>,
    /// Operations, or names where the phase counts those, in each tenth of a second.
    buckets: Vec<u64>,
    /// What the longest of the workers took, in seconds; the last bucket ends there.
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
    /// Puts together what the workers did.
    pub(crate) fn new(phase: &Phase, tallies: &[Tally], costs: &Costs) -> Result<Figure, Failure> {
        let of = |tally: &Tally| if phase.names.is_some() { tally.names } else { tally.ops };
        // Not the sum of their rates: one that is done early has left the machine to the others.
        let longest = tallies.iter().map(|tally| tally.active).max().unwrap_or_default();
        let seconds = longest.as_secs_f64();
        let count: u64 = tallies.iter().map(of).sum();
        let each_us = |time: Duration| time.as_secs_f64() * 1e6 / count.max(1) as f64;
        let mut latencies = meter::latencies()?;
        let mut buckets = Vec::new();
        let mut kinds = BTreeMap::new();
        for tally in tallies {
            for (kind, (count, time)) in &tally.kinds {
                let sum: &mut (u64, Duration) = kinds.entry(kind.clone()).or_default();
                *sum = (sum.0 + count, sum.1 + *time);
            }
            for (nanos, times) in &tally.latencies {
                latencies.record_n(*nanos, *times)?;
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
            closing_bytes: None,
            memory_peak_bytes: costs.memory_peak_bytes,
            slab_bytes: costs.slab_bytes,
            space_bytes: costs.space_bytes,
            kinds_us: kinds
                .into_iter()
                .map(|(kind, (count, time))| (kind, time.as_secs_f64() * 1e6 / count as f64))
                .collect(),
            latencies,
            buckets,
            seconds,
            is_cut: tallies.iter().any(|tally| tally.is_cut),
        })
    }

    /// Whether the time of its phase was over before all was done.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Adds what the device wrote when the store was closed after it.
    pub(crate) fn add_closing(&mut self, bytes: Option<u64>) {
        self.closing_bytes = bytes;
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

/// How a comparison was run, for whoever reads its figures.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Setup {
    pub(crate) rounds: u32,
    /// Workers at once; `None`: as the workload wants.
    pub(crate) workers: Option<u64>,
    pub(crate) processes: bool,
    /// Operations in a second, if they came at a fixed rate.
    pub(crate) rate: Option<f64>,
    /// After which a phase was ended, if it was.
    pub(crate) limit_seconds: Option<u64>,
    pub(crate) warm: bool,
    /// What was left of the machine's memory, if it was held down.
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) image_bytes: u64,
    /// How many reads, and how many writes, disks of images answered in a second, if they were held down.
    pub(crate) iops: Option<u32>,
}

/// All figures of a comparison.
pub(crate) struct Report {
    setup: Setup,
    /// From the start of the first round to the end of the last, in seconds.
    seconds: f64,
    targets: Vec<String>,
    /// Of each target whether its device went past the page cache, if it had one.
    direct: Vec<Option<bool>>,
    phases: Vec<Phase>,
    /// By target, round and phase.
    figures: Vec<Vec<Vec<Figure>>>,
}

impl Report {
    /// An empty report.
    pub(crate) fn new(setup: Setup, targets: &[Spec], phases: Vec<Phase>) -> Report {
        let direct = vec![None; targets.len()];
        let figures = targets.iter().map(|_| Vec::new()).collect();
        let targets = targets.iter().map(ToString::to_string).collect();
        Report { setup, seconds: 0.0, targets, direct, phases, figures }
    }

    /// Adds a round of the target number `target`: one figure for each phase, and whether its device, if it has one, went
    /// past the page cache.
    pub(crate) fn add(&mut self, target: usize, figures: Vec<Figure>, is_direct: Option<bool>) {
        self.figures[target].push(figures);
        let direct = &mut self.direct[target];
        *direct = is_direct.map(|is_direct| is_direct && direct.unwrap_or(true));
    }

    /// Notes what all rounds took.
    pub(crate) fn took(&mut self, time: Duration) {
        self.seconds = time.as_secs_f64();
    }

    /// What a phase counts.
    fn unit(&self, phase: usize) -> &'static str {
        if self.phases[phase].names.is_some() { "names" } else { "operations" }
    }

    /// The rounds of a phase on a target.
    fn rounds(&self, target: usize, phase: usize) -> impl Iterator<Item = &Figure> + Clone {
        self.figures[target].iter().filter_map(move |round| round.get(phase))
    }

    /// A value of each round of a phase on a target, in the middle and at both ends.
    fn spread(&self, target: usize, phase: usize, value: impl Fn(&Figure) -> f64) -> Spread {
        Spread::of(self.rounds(target, phase).map(value).collect())
    }

    /// The latencies of all rounds of a phase on a target.
    fn latencies(&self, target: usize, phase: usize) -> Result<Histogram<u64>, Failure> {
        let mut all = meter::latencies()?;
        for figure in self.rounds(target, phase) {
            all.add(&figure.latencies)?;
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
mod tests {
    use super::*;

    #[test]
    fn spreads() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Spread::of(Vec::new()).max, 0.0);
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.06]).told(1), "2.1 (1.0-3.0)");
    }

    #[test]
    fn workers_add_up() {
        let tally = |ops, seconds| Tally {
            ops,
            names: ops,
            active: Duration::from_secs(seconds),
            cpu: Duration::from_secs(1),
            thread_cpu: Duration::from_secs(1),
            kinds: [("stat".to_owned(), (ops, Duration::from_secs(seconds)))].into(),
            latencies: vec![(1000, ops)],
            is_cut: false,
            buckets: vec![ops],
        };
        let tallies = [tally(10, 1), tally(10, 2)];
        let figure =
            Figure::new(&Phase::warm("x"), &tallies, &Costs::default()).expect("histogram");
        // While the second one works alone it has the machine to itself.
        assert_eq!((figure.count, figure.per_second, figure.seconds), (20, 10.0, 2.0));
        assert_eq!((figure.client_cpu_us, figure.latencies.len()), (100_000.0, 20));
        assert_eq!(figure.buckets, [20]);
        assert_eq!(figure.kinds_us, [("stat".to_owned(), 150_000.0)].into());
        assert!(figure.rates_by(5).iter().all(|rate| (rate - 200.0).abs() < 1e-6));
        assert_eq!(figure.rates_by(5).len(), 4);
        assert!(figure.rates_by(21).is_empty());
    }

    /// A phase of less than a tenth of a second, and the end of each, counted as a whole tenth.
    #[test]
    fn the_last_bucket_ends_with_the_phase() {
        let tally = |ms, buckets: &[u64]| Tally {
            ops: buckets.iter().sum(),
            names: buckets.iter().sum(),
            active: Duration::from_millis(ms),
            buckets: buckets.to_vec(),
            ..Tally::default()
        };
        let figure = |ms, buckets: &[u64]| {
            Figure::new(&Phase::warm("x"), &[tally(ms, buckets)], &Costs::default())
                .expect("figure")
        };
        let close = |found: &[f64], expected: &[f64]| {
            assert_eq!(found.len(), expected.len());
            let mut both = found.iter().zip(expected);
            assert!(both.all(|(one, other)| (one - other).abs() < 1e-6), "{found:?}");
        };
        close(&figure(20, &[10]).rates_by(5), &[500.0, 500.0]);
        close(&figure(110, &[10, 10]).rates_by(10), &[100.0, 1000.0]);
        let rates = |figure: &Figure| plots::over_time(figure).into_iter().map(|it| it.1).collect();
        let [short, long]: [Vec<f64>; 2] =
            [figure(20, &[10]), figure(110, &[10, 10])].each_ref().map(rates);
        close(&short, &[500.0]);
        close(&long, &[100.0]);
    }
}
