//! The report of `varve-bench versions`: a row for each act of each target, with a column for each size of the tree.

use std::collections::BTreeMap;

use serde_json::json;

use super::Measured;
use crate::report::Spread;
use crate::{Failure, output};

const MIB: f64 = (1 << 20) as f64;

const LEGEND: &str = "\
Medians over the rounds, for trees of so many files each. ms: the program that does it, from its start to its end. sync
ms: to write everything back afterwards. MiB: written to the device, with that. growth: ms of the largest tree over ms
of the smallest.";

/// The rounds of one act on a tree of one size.
struct Cell {
    files: u64,
    ms: Spread,
    sync_ms: Spread,
    written_bytes: Spread,
}

/// An act of a target: its name, and how many files it is about.
type Act = (&'static str, Option<u64>);

/// All acts of all targets, in the order in which they came first.
pub(super) struct Report {
    rows: Vec<(String, Act, Vec<Cell>)>,
}

impl Report {
    /// What was measured.
    pub(super) fn of(found: &[Measured]) -> Report {
        let mut order: Vec<(String, Act)> = Vec::new();
        let mut cells: BTreeMap<(String, Act, u64), Vec<&Measured>> = BTreeMap::new();
        for it in found {
            let row = (it.target.clone(), (it.act, it.changes));
            if !order.contains(&row) {
                order.push(row.clone());
            }
            cells.entry((row.0, row.1, it.files)).or_default().push(it);
        }
        let cell = |files: u64, rounds: &[&Measured]| {
            let spread = |value: fn(&Measured) -> f64| {
                Spread::of(rounds.iter().map(|it| value(it)).collect())
            };
            Cell {
                files,
                ms: spread(|it| it.took.as_secs_f64() * 1e3),
                sync_ms: spread(|it| it.synced.as_secs_f64() * 1e3),
                written_bytes: spread(|it| it.written_bytes as f64),
            }
        };
        let rows = order.into_iter().map(|(target, act)| {
            let of_row = cells.iter().filter(|((t, a, _), _)| *t == target && *a == act);
            let of_row = of_row.map(|((_, _, files), rounds)| cell(*files, rounds)).collect();
            (target, act, of_row)
        });
        Report { rows: rows.collect() }
    }

    /// Prints it for people.
    pub(super) fn print_table(&self) -> Result<(), Failure> {
        output::line(LEGEND);
        let mut sizes: Vec<u64> = self
            .rows
            .iter()
            .flat_map(|(_, _, cells)| cells.iter().map(|cell| cell.files))
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut table = vec![vec!["target".to_owned(), "act".to_owned(), "changes".to_owned()]];
        if let Some(head) = table.first_mut() {
            for files in &sizes {
                head.extend([format!("{files}: ms"), "sync ms".to_owned(), "MiB".to_owned()]);
            }
            head.push("growth".to_owned());
        }
        for (target, (act, changes), cells) in &self.rows {
            let changes = changes.map_or("-".to_owned(), |changes| changes.to_string());
            let mut row = vec![target.clone(), (*act).to_owned(), changes];
            for files in &sizes {
                row.extend(match cells.iter().find(|cell| cell.files == *files) {
                    Some(cell) => [
                        format!("{:.1}", cell.ms.median),
                        format!("{:.1}", cell.sync_ms.median),
                        format!("{:.2}", cell.written_bytes.median / MIB),
                    ],
                    None => ["-"; 3].map(str::to_owned),
                });
            }
            let growth = match (cells.first(), cells.last()) {
                (Some(first), Some(last)) if cells.len() > 1 => {
                    format!("{:.2}", last.ms.median / first.ms.median.max(f64::MIN_POSITIVE))
                }
                _ => "-".to_owned(),
            };
            row.push(growth);
            table.push(row);
        }
        crate::report::print(&table);
        Ok(())
    }

    /// Prints it for programs.
    pub(super) fn print_json(&self) -> Result<(), Failure> {
        let rows = self.rows.iter().flat_map(|(target, (act, changes), cells)| {
            cells.iter().map(move |cell| {
                json!({
                    "target": target, "act": act, "changes": changes, "files": cell.files,
                    "ms": cell.ms, "sync_ms": cell.sync_ms, "written_bytes": cell.written_bytes,
                })
            })
        });
        let all: Vec<_> = rows.collect();
        output::line(serde_json::to_string_pretty(&json!({ "acts": all }))?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rounds_of_one_act_are_one_cell() {
        let found = |act, files, ms| Measured {
            target: "varve".to_owned(),
            act,
            changes: None,
            files,
            took: Duration::from_millis(ms),
            synced: Duration::ZERO,
            written_bytes: ms,
        };
        let all = [
            found("clone", 10, 3),
            found("begin", 10, 1),
            found("clone", 10, 5),
            found("clone", 10, 4),
            found("clone", 1000, 8),
        ];
        let report = Report::of(&all);
        let [(_, (first, _), cells), (_, (second, _), _)] = &report.rows[..] else {
            panic!("two acts")
        };
        assert_eq!((*first, *second), ("clone", "begin"));
        let told: Vec<_> = cells.iter().map(|cell| (cell.files, cell.ms.median)).collect();
        assert_eq!(told, [(10, 4.0), (1000, 8.0)]);
    }
}
