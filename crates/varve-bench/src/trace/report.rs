//! What a trace shows, as tables, JSON and charts.

use std::path::Path;

use serde_json::{Value, json};
use varve_trace::{Analysis, OPS};

use crate::chart::{Axis, Chart};
use crate::{Failure, output};

/// Parts of all objects, the most popular first, for which the part of accesses is told (figure 3.9).
const POPULAR: [f64; 4] = [0.001, 0.01, 0.1, 0.5];
/// Depths that are told of each operation: the parts of operations on objects that are no deeper (figure 3.8).
const QUANTILES: [f64; 3] = [0.1, 0.5, 0.9];
/// Rows of the table of operations over time, at most.
const TIMES_MAX: usize = 12;

fn percent(part: u64, all: u64) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}

/// The depth that so many of the operations do not exceed.
fn depth(depths: &[u64], quantile: f64) -> usize {
    let all: u64 = depths.iter().sum();
    let (wanted, mut sum) = ((quantile * all as f64).ceil() as u64, 0);
    let reached = |operations: &u64| {
        sum += operations;
        sum >= wanted
    };
    depths.iter().position(reached).unwrap_or(0)
}

/// The parts of the accesses that go to the parts [`POPULAR`] of the objects.
fn popularity(accesses: &[u64]) -> [f64; POPULAR.len()] {
    let all: u64 = accesses.iter().sum();
    POPULAR.map(|part| {
        let objects = ((part * accesses.len() as f64).ceil() as usize).min(accesses.len());
        percent(accesses[..objects].iter().sum(), all)
    })
}

/// What operations change together, in the order of Sinnamohideen's tables: the name, the key, the count.
fn scopes(analysis: &Analysis) -> [(&'static str, &'static str, u64); 6] {
    let scopes = &analysis.scopes;
    [
        ("one file or directory", "single", scopes.single),
        ("a directory and what is in it", "parent_and_child", scopes.parent_and_child),
        ("two near directories: rename", "near_renames", scopes.near[0]),
        ("two near directories: link", "near_links", scopes.near[1]),
        ("two distant directories: rename", "distant_renames", scopes.distant[0]),
        ("two distant directories: link", "distant_links", scopes.distant[1]),
    ]
}

/// All of it.
pub(super) fn json(analysis: &Analysis) -> Value {
    let all = analysis.operations();
    let of_ops = |counts: &[u64]| -> Value {
        let counts = OPS.iter().zip(counts).filter(|(_, count)| **count > 0);
        counts
            .map(|(op, count)| (op.name().to_owned(), json!(count)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let depths =
        OPS.iter().zip(&analysis.depths).filter(|(_, depths)| depths.iter().any(|it| *it > 0));
    let depths: serde_json::Map<String, Value> = depths
        .map(|(op, depths)| {
            let end = depths.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
            (op.name().to_owned(), json!(depths[..end]))
        })
        .collect();
    let scopes: serde_json::Map<String, Value> = scopes(analysis)
        .map(|(_, key, count)| (key.to_owned(), json!(count)))
        .into_iter()
        .collect();
    let accesses = analysis.tree.accesses();
    let popular: Vec<Value> = POPULAR
        .iter()
        .zip(popularity(&accesses))
        .map(|(objects, share)| json!({"objects": objects, "percent_of_accesses": share}))
        .collect();
    json!({
        "operations": all,
        "failed": analysis.failed,
        "begin_us": analysis.begin_us,
        "end_us": analysis.end_us,
        "mix": of_ops(&analysis.counts),
        "interval_us": analysis.interval_us,
        "intervals": analysis.intervals.iter().map(|counts| of_ops(counts)).collect::<Vec<_>>(),
        "depths": depths,
        "objects": accesses.len(),
        "popularity": popular,
        "changed_together": scopes,
        "renames": {
            "all": analysis.renames.all,
            "across_directories": analysis.renames.across,
            "conflicts": analysis.renames.conflicts,
        },
    })
}

/// Prints the tables.
pub(super) fn print(analysis: &Analysis) {
    let all = analysis.operations();
    let seconds = (analysis.end_us - analysis.begin_us) as f64 / 1e6;
    output::line(format!(
        "{all} operations in {seconds:.1} s, {} of them failed\n",
        analysis.failed
    ));
    let depths = QUANTILES.map(|quantile| format!("{:>7}", format!("p{:.0}", 100.0 * quantile)));
    output::line(format!(
        "{:<12}{:>14}{:>10}   depth{}",
        "operation",
        "count",
        "",
        depths.concat()
    ));
    for (number, op) in OPS.iter().enumerate().filter(|(number, _)| analysis.counts[*number] > 0) {
        let count = analysis.counts[number];
        let depths =
            QUANTILES.map(|quantile| format!("{:>7}", depth(&analysis.depths[number], quantile)));
        output::line(format!(
            "{:<12}{count:>14}{:>8.3} %        {}",
            op.name(),
            percent(count, all),
            depths.concat()
        ));
    }
    print_times(analysis);
    output::line("\nChanged together (Sinnamohideen, tables 3.1 and 3.2)\n");
    for (name, _, count) in scopes(analysis) {
        output::line(format!("{name:<34}{count:>14}{:>9.4} %", percent(count, all)));
    }
    let renames = &analysis.renames;
    output::line(format!(
        "\nRenames (Ren, table 3.2): {}, {} of them across directories; {} ({:.4} %) conflict with one of the second before",
        renames.all,
        renames.across,
        renames.conflicts,
        percent(renames.conflicts, renames.all)
    ));
    let accesses = analysis.tree.accesses();
    output::line(format!("\nPopularity (Ren, figure 3.9): {} objects\n", accesses.len()));
    for (objects, share) in POPULAR.iter().zip(popularity(&accesses)) {
        output::line(format!(
            "{:>6.1} % of them have {share:>5.1} % of the accesses",
            100.0 * objects
        ));
    }
}

/// Prints operations over time (figures 3.6 and 3.7), in some rows.
fn print_times(analysis: &Analysis) {
    let together = analysis.intervals.len().div_ceil(TIMES_MAX).max(1);
    let mut kinds: Vec<usize> = (0..OPS.len()).filter(|op| analysis.counts[*op] > 0).collect();
    kinds.sort_by_key(|op| std::cmp::Reverse(analysis.counts[*op]));
    kinds.truncate(6);
    let names: String = kinds.iter().map(|op| format!("{:>11}", OPS[*op].name())).collect();
    output::line(format!("\n{:>10}{:>12}{names}", "from", "per second"));
    for (number, intervals) in analysis.intervals.chunks(together).enumerate() {
        let count = |op: usize| intervals.iter().map(|counts| counts[op]).sum::<u64>();
        let here: u64 = (0..OPS.len()).map(count).sum();
        let seconds = intervals.len() as f64 * analysis.interval_us as f64 / 1e6;
        let from = (number * together) as f64 * analysis.interval_us as f64 / 1e6;
        let shares: String =
            kinds.iter().map(|op| format!("{:>9.1} %", percent(count(*op), here))).collect();
        output::line(format!("{from:>8.0} s{:>12.1}{shares}", here as f64 / seconds));
    }
}

/// Writes the charts: parts of operations over time, their rate, and popularity.
pub(super) fn write_charts(analysis: &Analysis, dir: &Path) -> Result<(), Failure> {
    let step = analysis.interval_us as f64 / 1e6;
    let at = |number: usize| number as f64 * step;
    let kinds = (0..OPS.len()).filter(|op| analysis.counts[*op] > 0);
    let parts = kinds.map(|op| {
        let points = analysis
            .intervals
            .iter()
            .enumerate()
            .map(|(number, counts)| (at(number), percent(counts[op], counts.iter().sum())));
        (OPS[op].name().to_owned(), points.collect())
    });
    let rate = analysis.intervals.iter().enumerate();
    let rate = rate.map(|(number, counts)| (at(number), counts.iter().sum::<u64>() as f64 / step));
    let accesses = analysis.tree.accesses();
    let (all, mut sum) = (accesses.iter().sum::<u64>(), 0);
    let every = accesses.len().div_ceil(400).max(1);
    let popular = accesses.iter().enumerate().filter_map(|(number, count)| {
        sum += count;
        let part = percent(number as u64 + 1, accesses.len() as u64);
        (number % every == 0 || number + 1 == accesses.len()).then(|| (part, percent(sum, all)))
    });
    let axis = |name| Axis { name, is_log: false };
    let charts = [
        (
            "mix",
            Chart {
                title: "Operations over time (figure 3.6)".to_owned(),
                x: axis("seconds"),
                y: axis("% of operations"),
                lines: parts.collect(),
            },
        ),
        (
            "rate",
            Chart {
                title: "Operations a second (figure 3.6)".to_owned(),
                x: axis("seconds"),
                y: axis("per second"),
                lines: vec![("all".to_owned(), rate.collect())],
            },
        ),
        (
            "popularity",
            Chart {
                title: "Accesses of the most popular objects (figure 3.9)".to_owned(),
                x: axis("% of objects"),
                y: axis("% of accesses"),
                lines: vec![("this trace".to_owned(), popular.collect())],
            },
        ),
    ];
    std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    for (name, chart) in charts {
        let path = dir.join(format!("{name}.svg"));
        std::fs::write(&path, chart.svg())
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}
