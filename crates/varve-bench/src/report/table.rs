//! Tables for people.

use super::{Figure, Report};
use crate::Failure;
use crate::machine::Traffic;

const MIB: f64 = (1 << 20) as f64;

const LEGEND: &str = "\
Medians over the rounds, with the slowest and the fastest. ratio: rate over that of the first target. us, p50 ...:
latency of an operation in microseconds, mean and quantiles. CPU: microseconds for one operation (or name, where
names are counted), client + daemon; all: of the whole machine, kernel threads and writing back included. read,
written: MiB of the device, writing back included. amplified: bytes that the device wrote over those of the rows.
memory: peak of the daemon, MiB. space: on the device, MiB. sync s: to write everything back afterwards.";

/// What the columns are called.
const COLUMNS: [&str; 17] = [
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
    "requests",
    "amplified",
    "memory",
    "space",
    "sync s",
];

impl Report {
    /// Prints a table for each phase with a row for each target, and rates over time by `step` operations.
    pub(crate) fn print_table(&self, step: Option<u64>) -> Result<(), Failure> {
        println!("{LEGEND}");
        for (number, phase) in self.phases.iter().enumerate() {
            let unit = if phase.names.is_some() { "names" } else { "operations" };
            let count = self.rounds(0, number).next().map_or(0, |figure| figure.count);
            let rounds = self.rounds(0, number).count();
            println!("\n{}: {count} {unit}, {rounds} rounds", phase.name);
            let mut rows = vec![COLUMNS.map(str::to_owned).to_vec()];
            for target in 0..self.targets.len() {
                rows.push(self.row(target, number)?);
            }
            print(&rows);
            self.print_kinds(number);
            if let Some(step) = step {
                self.print_steps(number, step);
            }
        }
        Ok(())
    }

    fn row(&self, target: usize, phase: usize) -> Result<Vec<String>, Failure> {
        let median = |value: fn(&Figure) -> f64| self.spread(target, phase, value).median;
        let known = |value: &dyn Fn(&Figure) -> Option<f64>| {
            let values: Option<Vec<f64>> = self.rounds(target, phase).map(value).collect();
            values.map(|values| super::Spread::of(values).median)
        };
        let shown =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        let traffic = |value: fn(&Traffic) -> u64| {
            known(&|figure| figure.traffic.as_ref().map(|traffic| value(traffic) as f64))
        };
        let rate = self.spread(target, phase, |figure| figure.per_second);
        let first = self.spread(0, phase, |figure| figure.per_second);
        let latencies = self.latencies(target, phase)?;
        let at = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1e3;
        let row_bytes = self.phases[phase].row_bytes;
        let amplified =
            traffic(|traffic| traffic.written_bytes).zip(row_bytes).map(|(written, bytes)| {
                written / (median(|figure| figure.count as f64) * bytes as f64)
            });
        let requests = traffic(|traffic| traffic.reads + traffic.writes);
        Ok(vec![
            self.targets[target].clone(),
            format!("{:.0}", rate.median),
            format!("{:.0} - {:.0}", rate.min, rate.max),
            format!("{:.2}", rate.median / first.median.max(f64::MIN_POSITIVE)),
            format!("{:.1}", latencies.mean() / 1e3),
            format!("{:.1}", at(0.5)),
            format!("{:.1}", at(0.99)),
            format!("{:.1}", at(0.999)),
            format!(
                "{:.2} + {:.2}",
                median(|figure| figure.client_cpu_us),
                median(|figure| figure.daemon_cpu_us)
            ),
            format!("{:.1}", median(|figure| figure.machine_cpu_us)),
            shown(traffic(|traffic| traffic.read_bytes).map(|bytes| bytes / MIB)),
            shown(traffic(|traffic| traffic.written_bytes).map(|bytes| bytes / MIB)),
            requests.map_or("-".to_owned(), |requests| format!("{requests:.0}")),
            shown(amplified),
            shown(known(&|figure| figure.memory_peak_bytes.map(|bytes| bytes as f64 / MIB))),
            shown(known(&|figure| figure.space_bytes.map(|bytes| bytes as f64 / MIB))),
            format!("{:.2}", median(|figure| figure.sync_seconds)),
        ])
    }

    /// The mean latency of each kind of operation, where a phase has several.
    fn print_kinds(&self, phase: usize) {
        let Some(first) = self.rounds(0, phase).next() else { return };
        if first.kinds_us.len() < 2 {
            return;
        }
        let mut rows = vec![vec!["us".to_owned()]];
        rows[0].extend(first.kinds_us.keys().cloned());
        for (target, name) in self.targets.iter().enumerate() {
            let median = |kind: &String| {
                let value = |figure: &Figure| figure.kinds_us.get(kind).copied().unwrap_or(0.0);
                format!("{:.1}", self.spread(target, phase, value).median)
            };
            rows.push(
                std::iter::once(name.clone()).chain(first.kinds_us.keys().map(median)).collect(),
            );
        }
        print(&rows);
    }

    /// The rates of the first round, one for each `step` operations.
    fn print_steps(&self, phase: usize, step: u64) {
        let mut rows = vec![vec!["operations".to_owned()]];
        rows[0].extend(self.targets.iter().cloned());
        for target in 0..self.targets.len() {
            let Some(figure) = self.rounds(target, phase).next() else { continue };
            for (number, rate) in figure.rates_by(step).into_iter().enumerate() {
                if rows.len() == number + 1 {
                    rows.push(vec![((number as u64 + 1) * step).to_string()]);
                }
                rows[number + 1].push(format!("{rate:.0}"));
            }
        }
        if rows.len() > 1 {
            println!("operations per second, by {step} operations");
            print(&rows);
        }
    }
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
        println!("{}", cells.collect::<Vec<_>>().join("  "));
    }
}
