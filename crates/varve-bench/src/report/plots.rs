//! Charts of a comparison: for each phase the rate over time and the distribution of latencies, of each kind of operation by
//! itself, with a line for each target.

use std::path::Path;

use super::{Figure, Report};
use crate::Failure;
use crate::chart::{Axis, Chart};
use crate::meter::BUCKET;

/// Points of a line, at most.
const POINTS_MAX: usize = 400;

impl Report {
    /// Writes them into the directory `dir`, which is made if it is missing.
    pub(crate) fn write_plots(&self, dir: &Path) -> Result<(), Failure> {
        let has_figures = |phase: usize| {
            (0..self.targets.len()).any(|it| self.rounds(it, phase).next().is_some())
        };
        let mut charts = Vec::new();
        for number in (0..self.phases.len()).filter(|phase| has_figures(*phase)) {
            let name = &self.phases[number].name;
            charts.push((format!("{name}-rate"), self.rate_chart(number)));
            let kinds = self.kinds(number);
            for kind in &kinds {
                let what = if kinds.len() > 1 { format!("{name}: {kind}") } else { name.clone() };
                let chart = self.latency_chart(number, kind, &what)?;
                charts.push((format!("{}-latency", what.replace(": ", "-")), chart));
            }
        }
        let names = file_names(charts.iter().map(|(name, _)| name.as_str()));
        for (name, (_, chart)) in names.iter().zip(&charts) {
            let path = dir.join(format!("{name}.svg"));
            std::fs::write(&path, chart.svg())
                .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        Ok(())
    }

    /// The rate of the first round over time.
    fn rate_chart(&self, phase: usize) -> Chart {
        let line = |(target, name): (usize, &String)| {
            (name.clone(), self.rounds(target, phase).next().map(over_time).unwrap_or_default())
        };
        Chart {
            title: format!("{}: rate over time, first round", self.phases[phase].name),
            x: Axis { name: "seconds", is_log: false },
            y: Axis { name: self.unit(phase), is_log: false },
            lines: self.targets.iter().enumerate().map(line).collect(),
        }
    }

    /// Which part of the operations of a kind, of all rounds, takes longer than a latency.
    fn latency_chart(&self, phase: usize, kind: &str, what: &str) -> Result<Chart, Failure> {
        let mut lines = Vec::new();
        for (target, name) in self.targets.iter().enumerate() {
            let latencies = self.latencies(target, phase, Some(kind))?;
            let total = latencies.len() as f64;
            let mut longer = latencies.len();
            let points = latencies.iter_recorded().map(|step| {
                let at = (step.value_iterated_to() as f64 / 1e3, longer as f64 / total);
                longer -= step.count_at_value();
                at
            });
            lines.push((name.clone(), points.collect()));
        }
        Ok(Chart {
            title: format!(
                "{what}: part of the operations of all rounds that take at least so long"
            ),
            x: Axis { name: "microseconds", is_log: true },
            y: Axis { name: "part", is_log: true },
            lines,
        })
    }
}

/// Names of files for charts, each another.
fn file_names<'a>(charts: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for chart in charts {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let mut name: String = chart.chars().map(plain).collect();
        while names.contains(&name) {
            name.push('-');
        }
        names.push(name);
    }
    names
}

/// Points of time and rate. The end of a phase, which is shorter than a bucket, has none, unless it is all there is.
pub(super) fn over_time(figure: &Figure) -> Vec<(f64, f64)> {
    let merged = figure.buckets.len().div_ceil(POINTS_MAX).max(1);
    let full = figure.buckets.len().saturating_sub(1).max(1);
    let seconds = BUCKET.as_secs_f64() * merged as f64;
    let parts = figure.buckets.get(..full).unwrap_or_default().chunks(merged).enumerate();
    parts
        .map(|(at, part)| {
            let begin = at * merged;
            let span: f64 =
                (begin..begin + part.len()).map(|number| figure.bucket_seconds(number)).sum();
            (at as f64 * seconds, part.iter().sum::<u64>() as f64 / span.max(1e-9))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Charts of a later phase took the place of an earlier one's.
    #[test]
    fn each_phase_has_files_of_its_own() {
        let names = file_names(["ls -l", "a b", "a-b", "a_b"].into_iter());
        assert_eq!(names, ["ls--l", "a-b", "a-b-", "a-b--"]);
    }
}
