//! Prints the figures.

use crate::phases::{Creates, Figures, Plan, Reads};
use crate::store::Outcome;

/// A line of the table: its name, how the figure is got and shown.
type Line = (&'static str, fn(&Figures) -> String);

fn creates(figure: fn(&Creates) -> f64, creates: &Creates) -> String {
    format!("{:.2}", figure(creates))
}

fn kib(reads: &Reads) -> String {
    format!("{:.1}", reads.read_bytes / 1024.0)
}

const LINES: [Line; 17] = [
    ("random create: us of CPU", |f| creates(|c| c.cpu_us, &f.random)),
    ("random create: write amplification", |f| creates(|c| c.write_amplification, &f.random)),
    ("random create: worst second of mean", |f| creates(|c| c.worst_second, &f.random)),
    ("random create: thousand rows a second", |f| creates(|c| c.rate / 1e3, &f.random)),
    ("space amplification at rest", |f| creates(|c| c.space, &f.random)),
    ("index and filters: bits per key", |f| {
        f.index_bits_per_key.map_or_else(|| "-".to_owned(), |bits| format!("{bits:.1}"))
    }),
    ("get, found: KiB from the device", |f| kib(&f.found)),
    ("get, found: us of CPU", |f| format!("{:.2}", f.found.cpu_us)),
    ("get, absent: KiB from the device", |f| format!("{:.3}", f.absent.read_bytes / 1024.0)),
    ("get, absent: us of CPU", |f| format!("{:.2}", f.absent.cpu_us)),
    ("scan of a directory: KiB", |f| kib(&f.scan)),
    ("scan of a directory: us of CPU", |f| format!("{:.1}", f.scan.cpu_us)),
    ("clustered create: us of CPU", |f| creates(|c| c.cpu_us, &f.clustered)),
    ("clustered create: write amplification", |f| creates(|c| c.write_amplification, &f.clustered)),
    ("clustered create: worst second", |f| creates(|c| c.worst_second, &f.clustered)),
    ("space amplification then", |f| creates(|c| c.space, &f.clustered)),
    ("scan of a clustered directory: KiB", |f| kib(&f.clustered_scan)),
];

/// One JSON object, by the stores' names.
pub(crate) fn json(results: &[(String, Figures)]) -> Outcome<()> {
    let by_name: serde_json::Map<String, serde_json::Value> = results
        .iter()
        .map(|(name, figures)| Ok((name.clone(), serde_json::to_value(figures)?)))
        .collect::<Outcome<_>>()?;
    println!("{}", serde_json::to_string_pretty(&by_name)?);
    Ok(())
}

/// A table in Markdown, a column for each store.
pub(crate) fn table(plan: &Plan, results: &[(String, Figures)]) -> Outcome<()> {
    let names: Vec<&str> = results.iter().map(|(name, _)| name.as_str()).collect();
    println!("| {} rows | {} |", plan.rows, names.join(" | "));
    println!("| --- |{}", " --- |".repeat(results.len()));
    for (name, show) in LINES {
        let cells: Vec<String> = results.iter().map(|(_, figures)| show(figures)).collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
    Ok(())
}
