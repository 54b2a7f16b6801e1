//! Tables for people.

use hdrhistogram::Histogram;

use super::{Figure, Opening, Report};
use crate::machine::Traffic;
use crate::target::NOT_DIRECT;
use crate::{Failure, output};

const MIB: f64 = (1 << 20) as f64;

const LEGEND: &str = "\
Medians over the rounds, with the slowest and the fastest. Rates: of all workers, from when they were let go to the end
of the last. ratio: rate over that of the first target. us, p50 ...: latency of an operation in microseconds, mean and
quantiles of the operations of all rounds together. CPU: microseconds for one operation (or name, where names are
counted), client + daemon, until the last worker is done; all: of the whole machine, kernel threads and writing back
included. read, written: MiB of the device, writing back included. later: MiB that it wrote from then until the next
phase, while what must hold was checked, or until the target had been closed and unmounted. amplified: bytes that the
device wrote, later ones included, over those of the rows that were put into the store; those still in memtables are in
the log alone. memory: peak of the daemon, or of this program where it has the store open, since it was mounted or
opened, MiB; slab: where the kernel serves, what it keeps in its slabs of names and inodes of all file systems, among
others. space: on the device, MiB. sync s: to write everything back afterwards. What it took to bring targets back
before a cold phase stands below: rows that were in a store's memtables are there again by then, read from its log.";

/// What the columns are called.
const COLUMNS: [&str; 18] = [
    "target",
    "per second",
    "slowest - fastest",
    "ratio",
    "us",
    "p50",
    "p99",
    "p99.9",
    "CPU",
    "all",
    "read",
    "written",
    "later",
    "requests",
    "amplified",
    "memory",
    "space",
    "sync s",
];

/// What the columns are called where kinds of operations are told apart.
const KIND_COLUMNS: [&str; 6] = ["kind: target", "operations", "us", "p50", "p99", "p99.9"];

impl Report {
    /// Prints a table for each phase with a row for each target, and rates over time by `step` operations.
    pub(crate) fn print_table(&self, step: Option<u64>) -> Result<(), Failure> {
        output::line(format!("{LEGEND}\n\n{}", self.setup));
        for (target, session) in self.targets.iter().zip(&self.sessions) {
            for session in session {
                let said = |what: &str| session[what].as_str();
                let why = said("no_io_uring").map(|why| format!(" ({why})")).unwrap_or_default();
                output::line(format!(
                    "{target}: requests over {}{why}",
                    said("transport").unwrap_or("?")
                ));
            }
        }
        for (target, _) in self.targets.iter().zip(&self.direct).filter(|it| *it.1 == Some(false)) {
            output::line(format!("{target}: {NOT_DIRECT}"));
        }
        for (number, phase) in self.phases.iter().enumerate() {
            let unit = self.unit(number);
            let all = || (0..self.targets.len()).map(|target| self.rounds(target, number));
            let Some(most) = all().flatten().map(|figure| figure.count).max() else { break };
            let rounds = all().map(Iterator::count).max().unwrap_or(0);
            let (workers, state) = (self.workers(phase), self.state(phase));
            let name = &phase.name;
            output::line(format!(
                "\n{name}: {most} {unit}, {rounds} rounds, workers: {workers}, {state}"
            ));
            let mut rows = vec![COLUMNS.map(str::to_owned).to_vec()];
            for target in 0..self.targets.len() {
                // A round that was ended early has no figures of later phases.
                if self.rounds(target, number).next().is_some() {
                    rows.push(self.row(target, number)?);
                }
            }
            print(&rows);
            self.print_openings(number);
            self.print_cuts(number);
            self.print_kinds(number)?;
            if let Some(step) = step {
                self.print_steps(number, step);
            }
        }
        Ok(())
    }

    fn row(&self, target: usize, phase: usize) -> Result<Vec<String>, Failure> {
        let median = |value: fn(&Figure) -> f64| self.spread(target, phase, value).median;
        let known =
            |value: &dyn Fn(&Figure) -> Option<f64>| self.median_known(target, phase, value);
        let shown =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        let traffic = |value: fn(&Traffic) -> u64| {
            known(&|figure| figure.traffic.as_ref().map(|traffic| value(traffic) as f64))
        };
        let rate = self.spread(target, phase, |figure| figure.per_second);
        let ratio = self.ratio(target, phase);
        let latencies = self.latencies(target, phase, None)?;
        let [mean, half, p99, p999] = shown_us(&latencies);
        let later = known(&|figure| figure.later_bytes.map(|bytes| bytes as f64));
        let memory = known(&|figure| figure.memory_bytes().map(|bytes| bytes as f64 / MIB));
        let peak = known(&|figure| figure.memory_peak_bytes.map(|bytes| bytes as f64));
        let kernel = if memory.is_some() && peak.is_none() { "slab " } else { "" };
        let daemon_cpu = known(&|figure| figure.daemon_cpu_us);
        let requests = traffic(|traffic| traffic.reads + traffic.writes);
        Ok(vec![
            self.targets[target].clone(),
            format!("{:.0}", rate.median),
            format!("{:.0} - {:.0}", rate.min, rate.max),
            ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
            mean,
            half,
            p99,
            p999,
            format!(
                "{:.2} + {}",
                median(|figure| figure.client_cpu_us),
                daemon_cpu.map_or("-".to_owned(), |us| format!("{us:.2}"))
            ),
            format!("{:.1}", median(|figure| figure.machine_cpu_us)),
            shown(traffic(|traffic| traffic.read_bytes).map(|bytes| bytes / MIB)),
            shown(traffic(|traffic| traffic.written_bytes).map(|bytes| bytes / MIB)),
            shown(later.map(|bytes| bytes / MIB)),
            requests.map_or("-".to_owned(), |requests| format!("{requests:.0}")),
            shown(self.amplification(target, phase)),
            format!("{kernel}{}", shown(memory)),
            shown(known(&|figure| figure.space_bytes.map(|bytes| bytes as f64 / MIB))),
            format!("{:.2}", median(|figure| figure.sync_seconds)),
        ])
    }

    /// What targets took to be brought back before a phase.
    fn print_openings(&self, phase: usize) {
        for (target, name) in self.targets.iter().enumerate() {
            let known = |value: &dyn Fn(&Opening) -> Option<f64>| {
                self.median_known(target, phase, |figure| value(figure.opening.as_ref()?))
            };
            let Some(seconds) = known(&|opening| Some(opening.seconds)) else { continue };
            let read = known(&|opening| Some(opening.read_bytes? as f64 / MIB));
            let read = read.map(|mib| format!(", {mib:.1} MiB read")).unwrap_or_default();
            output::line(format!("{name}: brought back in {seconds:.3} s{read}"));
        }
    }

    /// How far those came whose time was over.
    fn print_cuts(&self, phase: usize) {
        for (target, name) in self.targets.iter().enumerate() {
            for (round, figure) in self.rounds(target, phase).enumerate().filter(|it| it.1.is_cut) {
                let (count, unit, round) = (figure.count, self.unit(phase), round + 1);
                output::line(format!("{name}: ended after {count} {unit} of round {round}"));
            }
        }
    }

    /// The latencies of each kind of operation, where a phase has several.
    fn print_kinds(&self, phase: usize) -> Result<(), Failure> {
        let kinds = self.kinds(phase);
        if kinds.len() < 2 {
            return Ok(());
        }
        let mut rows = vec![KIND_COLUMNS.map(str::to_owned).to_vec()];
        for kind in kinds {
            for (target, name) in self.targets.iter().enumerate() {
                let latencies = self.latencies(target, phase, Some(kind))?;
                if latencies.is_empty() {
                    continue;
                }
                let mut row = vec![format!("{kind}: {name}"), latencies.len().to_string()];
                row.extend(shown_us(&latencies));
                rows.push(row);
            }
        }
        print(&rows);
        Ok(())
    }

    /// The rates of the first round, one for each `step` operations.
    fn print_steps(&self, phase: usize, step: u64) {
        let rows = self.steps(phase, step);
        if rows.len() > 1 {
            let unit = self.unit(phase);
            output::line(format!("{unit} per second, by {step} {unit}, first round"));
            print(&rows);
        }
    }

    /// The head and a row for each `step` operations, as many as the target has that came furthest.
    pub(super) fn steps(&self, phase: usize, step: u64) -> Vec<Vec<String>> {
        let targets = 0..self.targets.len();
        let first = |target| self.rounds(target, phase).next();
        let rates: Vec<Vec<f64>> = targets
            .map(|target| first(target).map(|round| round.rates_by(step)).unwrap_or_default())
            .collect();
        let mut rows = vec![vec![self.unit(phase).to_owned()]];
        rows[0].extend(self.targets.iter().cloned());
        for number in 0..rates.iter().map(Vec::len).max().unwrap_or(0) {
            let rate = |rates: &Vec<f64>| {
                rates.get(number).map_or("-".to_owned(), |rate| format!("{rate:.0}"))
            };
            rows.push(vec![((number as u64 + 1) * step).to_string()]);
            rows[number + 1].extend(rates.iter().map(rate));
        }
        rows
    }
}

/// Mean, median, p99 and p99.9 in microseconds.
fn shown_us(latencies: &Histogram<u64>) -> [String; 4] {
    let at = |quantile: f64| latencies.value_at_quantile(quantile) as f64;
    [latencies.mean(), at(0.5), at(0.99), at(0.999)].map(|nanos| format!("{:.1}", nanos / 1e3))
}

/// Prints rows in columns, the first to the left and the others to the right.
pub(crate) fn print(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell =
        |row: &[String], column: usize| row.get(column).map_or(0, |text| text.chars().count());
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().map(|row| cell(row, column)).max().unwrap_or(0))
        .collect();
    for row in rows {
        let cells =
            row.iter().zip(&widths).enumerate().map(|(column, (text, width))| match column {
                0 => format!("{text:<width$}"),
                _ => format!("{text:>width$}"),
            });
        output::line(cells.collect::<Vec<_>>().join("  "));
    }
}
