//! The times of the steps, for people and for programs.

use std::time::Duration;

use serde_json::json;

use crate::run::Outcome;

struct Row {
    step: String,
    plain: Option<Duration>,
    varve: Duration,
}

/// The steps that ran, in order.
#[derive(Default)]
pub(super) struct Table {
    rows: Vec<Row>,
    bytes: Vec<(String, u64)>,
    skipped: Vec<String>,
}

impl Table {
    /// Notes a step that ran on both sides.
    pub(super) fn add(&mut self, step: &str, plain: Duration, varve: Duration) {
        self.rows.push(Row { step: step.to_owned(), plain: Some(plain), varve });
    }

    /// Notes a step that has no reference.
    pub(super) fn add_tested(&mut self, step: &str, varve: Duration) {
        self.rows.push(Row { step: step.to_owned(), plain: None, varve });
    }

    /// Notes a size.
    pub(super) fn note_bytes(&mut self, name: &str, bytes: u64) {
        self.bytes.push((name.to_owned(), bytes));
    }

    /// Notes, and says at once, what this machine does not let be compared.
    pub(super) fn skip(&mut self, what: String) {
        eprintln!("skipped: {what}");
        self.skipped.push(what);
    }

    /// Prints the table.
    pub(super) fn print(&self, is_self_check: bool) -> Outcome {
        let tested = if is_self_check { "again" } else { "varve" };
        println!("\n{:<44} {:>10} {:>10} {:>7}", "step (seconds)", "plain", tested, "ratio");
        for row in &self.rows {
            let varve = row.varve.as_secs_f64();
            let plain = row.plain.map(|plain| plain.as_secs_f64());
            let ratio = plain.map(|plain| format!("{:.2}", varve / plain.max(1e-6)));
            println!(
                "{:<44} {:>10} {varve:>10.2} {:>7}",
                row.step,
                plain.map(|plain| format!("{plain:.2}")).unwrap_or_default(),
                ratio.unwrap_or_default(),
            );
        }
        for (name, bytes) in &self.bytes {
            println!("{name}: {:.1} MiB", *bytes as f64 / f64::from(1 << 20));
        }
        for what in &self.skipped {
            println!("skipped: {what}");
        }
        println!("realworld: everything is as on the plain directory, nothing was lost");
        Ok(())
    }

    /// Prints one JSON object.
    pub(super) fn print_json(&self) -> Outcome {
        let rows: Vec<_> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "step": row.step,
                    "plain_s": row.plain.map(|plain| plain.as_secs_f64()),
                    "varve_s": row.varve.as_secs_f64(),
                })
            })
            .collect();
        let bytes: serde_json::Map<_, _> =
            self.bytes.iter().map(|(name, bytes)| (name.clone(), json!(bytes))).collect();
        let report = json!({ "steps": rows, "bytes": bytes, "skipped": self.skipped });
        println!("{}", serde_json::to_string_pretty(&report)?);
        Ok(())
    }
}
