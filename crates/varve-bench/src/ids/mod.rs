//! `varve-bench ids`: how well ids of inodes can say where in the tree a file is (Sinnamohideen, thesis, 4.5).
//!
//! 1. Read the [`shape`] of a namespace: a tree of files, a dump, a trace, or one that the generator thinks up.
//! 2. [`measure`] what ids by the child-closest policy (4.2) take: bits where slots are as wide as each directory needs, and overflows
//!    where ids, and slots, have fixed widths.
//! 3. Print that as the thesis's tables 4.1 to 4.4 beside what it found for its traces ([`thesis`]), and figure 4.7 as quantiles or a
//!    chart.

mod measure;
mod shape;
mod thesis;

use std::fs::File;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use varve_trace::Reader;

use crate::chart::{Axis, Chart};
use crate::{Failure, output};
use measure::{FixedOverflows, Overflow, Properties, VariableIds, Widths};
use shape::Shape;
use thesis::TRACES;

/// The shares of objects for which the length of ids is printed.
const SHARES: [(&str, f64); 6] =
    [("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// A tree of files, a dump that `varve dump` wrote (`-`: the standard input), or a trace, for the tree that it tells of
    #[arg(required_unless_present = "generate")]
    from: Option<PathBuf>,
    /// Think up a namespace of so many files instead, like those found in use
    #[arg(long, value_name = "FILES", conflicts_with = "from")]
    generate: Option<u64>,
    /// What that is drawn by
    #[arg(long, default_value_t = 1, requires = "generate")]
    seed: u64,
    /// Also write figure 4.7, the distribution of lengths of ids, into this directory, as SVG
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

/// What was measured of a namespace.
struct Found {
    properties: Properties,
    /// Objects by the length of their ids in bits.
    lengths: Vec<u64>,
    /// Overflows by the bits of an id.
    variable: Vec<(u32, Overflow)>,
    fixed: Vec<(Widths, FixedOverflows)>,
}

impl Found {
    fn of(shape: &Shape) -> Found {
        let ids = VariableIds::of(shape);
        Found {
            properties: Properties::of(shape),
            lengths: ids.lengths(shape),
            variable: thesis::VARIABLE.map(|(bits, _)| (bits, ids.overflows(shape, bits))).to_vec(),
            fixed: thesis::FIXED.map(|(widths, ..)| (widths, widths.overflows(shape))).to_vec(),
        }
    }

    /// The longest id, in bits.
    fn max_bits(&self) -> u64 {
        self.lengths.len().saturating_sub(1) as u64
    }

    /// The length that this share of the objects does not exceed.
    fn bits_of_share(&self, share: f64) -> usize {
        let wanted = (share * self.properties.objects() as f64).ceil() as u64;
        let mut sum = 0;
        let reached = |objects: &u64| {
            sum += objects;
            sum >= wanted
        };
        self.lengths.iter().position(reached).unwrap_or(0)
    }

    fn percent(&self, objects: u64) -> f64 {
        100.0 * objects as f64 / self.properties.objects().max(1) as f64
    }

    /// The rows of table 4.1.
    fn properties(&self) -> [u64; 7] {
        let all = &self.properties;
        [
            all.objects(),
            all.files,
            all.directories,
            all.max_depth.into(),
            all.max_files,
            all.max_dirs.into(),
            self.max_bits(),
        ]
    }

    fn chart(&self) -> Chart {
        let objects = self.properties.objects() as f64;
        let mut sum = 0;
        let points = self.lengths.iter().enumerate().map(|(bits, here)| {
            sum += here;
            (bits as f64, 100.0 * sum as f64 / objects)
        });
        Chart {
            title: "Bits of ids with slots of variable width (figure 4.7)".to_owned(),
            x: Axis { name: "bits", is_log: false },
            y: Axis { name: "% of objects", is_log: false },
            lines: vec![("this namespace".to_owned(), points.collect())],
        }
    }

    fn json(&self) -> Value {
        let overflow = |found: &Overflow| {
            json!({
                "objects": found.objects,
                "percent": self.percent(found.objects),
                "groups": found.groups,
            })
        };
        let names = thesis::PROPERTIES.map(|(name, _)| name);
        let properties: serde_json::Map<String, Value> =
            names.into_iter().map(str::to_owned).zip(self.properties().map(Value::from)).collect();
        let variable = self
            .variable
            .iter()
            .map(|(id_bits, found)| json!({"id_bits": id_bits, "overflow": overflow(found)}));
        let fixed = self.fixed.iter().map(|(widths, found)| {
            json!({
                "id_bits": widths.id_bits,
                "directory_slot_bits": widths.dir_bits,
                "file_slot_bits": widths.file_bits,
                "too_deep": overflow(&found.too_deep),
                "too_wide": overflow(&found.too_wide),
                "catch_all": found.catch_all,
            })
        });
        json!({
            "properties": properties,
            "objects_by_id_bits": self.lengths,
            "variable_slots": variable.collect::<Vec<_>>(),
            "fixed_slots": fixed.collect::<Vec<_>>(),
        })
    }

    fn print(&self) {
        let traces = TRACES.map(|trace| format!("{trace:>12}")).concat();
        let counts = |all: &[u64; 5]| all.map(|value| format!("{value:>12}")).concat();
        let shares = |all: &[f64; 5]| all.map(|value| format!("{value:>10.2} %")).concat();
        output::line(format!("Properties (table 4.1)\n\n{:<28}{:>14}{traces}", "", "here"));
        for ((name, theirs), ours) in thesis::PROPERTIES.iter().zip(self.properties()) {
            output::line(format!("{:<28}{ours:>14}{}", name.replace('_', " "), counts(theirs)));
        }
        output::line("\nBits of ids, slots as wide as needed (figure 4.7)\n");
        output::line(SHARES.map(|(name, _)| format!("{name:>8}")).concat());
        output::line(SHARES.map(|(_, at)| format!("{:>8}", self.bits_of_share(at))).concat());
        output::line(format!(
            "\nOverflows, slots as wide as needed (table 4.2)\n\n{:<14}{:>14}{:>14}{traces}",
            "bits of an id", "here", "directories"
        ));
        for ((bits, found), (_, theirs)) in self.variable.iter().zip(&thesis::VARIABLE) {
            let Overflow { objects, groups } = found;
            output::line(format!("{bits:<14}{objects:>14}{groups:>14}{}", counts(theirs)));
        }
        let tables = [
            ("in depth, slots of fixed width (table 4.3)", true),
            ("in width, slots of fixed width (table 4.4)", false),
        ];
        for (name, is_depth) in tables {
            output::line(format!(
                "\nOverflows {name}\n\n{:<5}{:>5}{:>5}{:>12}{:>10}{:>10}{traces}",
                "id", "dir", "file", "here", "", "groups"
            ));
            for ((widths, found), (_, deep, wide)) in self.fixed.iter().zip(&thesis::FIXED) {
                let (ours, theirs) =
                    if is_depth { (found.too_deep, deep) } else { (found.too_wide, wide) };
                let Widths { id_bits, dir_bits, file_bits } = widths;
                output::line(format!(
                    "{id_bits:<5}{dir_bits:>5}{file_bits:>5}{:>12}{:>8.2} %{:>10}{}",
                    ours.objects,
                    self.percent(ours.objects),
                    ours.groups,
                    shares(theirs)
                ));
            }
        }
        if let Some((widths, found)) = self.fixed.iter().find(|(_, found)| found.catch_all > 0) {
            output::line(format!(
                "\nWith ids of {} bits, {} for a directory and {} for files, {} overflows go to the catch-all region.",
                widths.id_bits, widths.dir_bits, widths.file_bits, found.catch_all
            ));
        }
    }
}

fn write_chart(chart: &Chart, dir: &Path) -> Result<(), Failure> {
    let path = dir.join("id-bits.svg");
    let written = std::fs::create_dir_all(dir).and_then(|()| std::fs::write(&path, chart.svg()));
    Ok(written.map_err(|error| format!("cannot write {}: {error}", path.display()))?)
}

/// Whether a file begins as a trace does.
fn is_trace(path: &Path) -> bool {
    path != Path::new("-") && File::open(path).is_ok_and(|file| Reader::new(file).is_ok())
}

/// Measures and prints.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let shape = match (&options.from, options.generate) {
        (Some(tree), _) if tree.is_dir() => Shape::of_tree(tree)?,
        (Some(trace), _) if is_trace(trace) => Shape::of_trace(trace)?,
        (Some(dump), _) => Shape::of_dump(dump)?,
        (None, files) => Shape::generated(files.unwrap_or(0), options.seed)?,
    };
    let found = Found::of(&shape);
    if let Some(dir) = &options.plots {
        write_chart(&found.chart(), dir)?;
    }
    match options.json {
        true => output::line(serde_json::to_string_pretty(&found.json())?),
        false => found.print(),
    }
    Ok(())
}
