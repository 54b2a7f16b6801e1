//! Collecting figures and printing medians.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::Options;
use super::subject::Kind;
use crate::run::{Outcome, median};

/// The figures of one operation on one file system, one of each per round, in microseconds per operation.
#[derive(Default)]
struct Costs {
    elapsed_us: Vec<f64>,
    client_cpu_us: Vec<f64>,
    daemon_cpu_us: Vec<f64>,
}

/// All figures of a run.
#[derive(Default)]
pub(super) struct Report {
    /// Operations in the order they were first measured.
    operations: Vec<String>,
    costs: BTreeMap<(String, Kind), Costs>,
    library_us: BTreeMap<String, Vec<f64>>,
    seconds: BTreeMap<(String, Kind), Vec<f64>>,
    bytes: BTreeMap<String, Vec<f64>>,
}

impl Report {
    /// Notes `count` operations that took these times together.
    pub(super) fn add(
        &mut self,
        kind: Kind,
        operation: &str,
        count: u64,
        elapsed: Duration,
        client_cpu: Duration,
        daemon_cpu: Duration,
    ) {
        if !self.operations.iter().any(|known| known == operation) {
            self.operations.push(operation.to_owned());
        }
        let each = |time: Duration| time.as_secs_f64() * 1e6 / count.max(1) as f64;
        let costs = self.costs.entry((operation.to_owned(), kind)).or_default();
        costs.elapsed_us.push(each(elapsed));
        costs.client_cpu_us.push(each(client_cpu));
        costs.daemon_cpu_us.push(each(daemon_cpu));
    }

    /// Notes the time of a long step.
    pub(super) fn add_seconds(&mut self, kind: Kind, name: &str, time: Duration) {
        self.seconds.entry((name.to_owned(), kind)).or_default().push(time.as_secs_f64());
    }

    /// Notes a size.
    pub(super) fn add_bytes(&mut self, name: &str, bytes: u64) {
        self.bytes.entry(name.to_owned()).or_default().push(bytes as f64);
    }

    /// Notes what the library's program printed: a JSON object of operation to microseconds.
    pub(super) fn add_library(&mut self, output: &str) -> Outcome {
        let figures: BTreeMap<String, f64> = serde_json::from_str(output)?;
        for (operation, us) in figures {
            self.library_us.entry(operation).or_default().push(us);
        }
        Ok(())
    }

    fn operation_json(&self, operation: &str) -> Value {
        let side = |kind: Kind| {
            self.costs.get(&(operation.to_owned(), kind)).map(|costs| {
                json!({
                    "elapsed_us": median(&costs.elapsed_us),
                    "client_cpu_us": median(&costs.client_cpu_us),
                    "daemon_cpu_us": median(&costs.daemon_cpu_us),
                    "elapsed_us_rounds": costs.elapsed_us,
                })
            })
        };
        json!({
            "operation": operation,
            "varve": side(Kind::Varve),
            "ext4": side(Kind::Ext4),
            "library_us": self.library_us.get(operation).map(|rounds| median(rounds)),
        })
    }

    /// Prints one JSON object.
    pub(super) fn print_json(&self, options: &Options) -> Outcome {
        let seconds: Vec<Value> = self
            .seconds
            .iter()
            .map(|((step, kind), rounds)| json!({"step": step, "on": kind.name(), "seconds": median(rounds)}))
            .collect();
        let bytes: BTreeMap<&String, f64> =
            self.bytes.iter().map(|(name, rounds)| (name, median(rounds))).collect();
        let library: BTreeMap<&String, f64> =
            self.library_us.iter().map(|(name, rounds)| (name, median(rounds))).collect();
        let report = json!({
            "files": options.files,
            "dirs": options.dirs,
            "rounds": options.rounds,
            "shuffle": options.shuffle,
            "operations": self.operations.iter().map(|name| self.operation_json(name)).collect::<Vec<_>>(),
            "library_us": library,
            "steps": seconds,
            "bytes": bytes,
        });
        println!("{}", serde_json::to_string_pretty(&report)?);
        Ok(())
    }

    /// Prints tables for people.
    pub(super) fn print_table(&self, options: &Options) -> Outcome {
        println!(
            "{} files in {} directories, medians of {} rounds; microseconds per operation",
            options.files, options.dirs, options.rounds
        );
        println!(
            "CPU is client + daemon; ratio is ext4's time over Varve's: above 1 Varve is faster\n"
        );
        println!(
            "{:<12} {:>8} {:>7} {:>15} {:>9} {:>9} {:>6} {:>9}",
            "operation", "varve", "CPU", "client+daemon", "ext4", "ext4 CPU", "ratio", "library"
        );
        for operation in &self.operations {
            let get = |kind: Kind| self.costs.get(&(operation.clone(), kind));
            let (Some(varve), Some(ext4)) = (get(Kind::Varve), get(Kind::Ext4)) else { continue };
            let (elapsed, other) = (median(&varve.elapsed_us), median(&ext4.elapsed_us));
            let (client, daemon) = (median(&varve.client_cpu_us), median(&varve.daemon_cpu_us));
            let library =
                self.library_us.get(operation).map(|rounds| format!("{:.2}", median(rounds)));
            println!(
                "{operation:<12} {elapsed:>8.2} {:>7.2} {:>15} {other:>9.2} {:>9.2} {:>6.2} {:>9}",
                client + daemon,
                format!("{client:.1}+{daemon:.1}"),
                median(&ext4.client_cpu_us),
                other / elapsed.max(f64::MIN_POSITIVE),
                library.unwrap_or_else(|| "-".to_owned()),
            );
        }
        println!();
        for ((step, kind), rounds) in &self.seconds {
            println!("{step:<28} {:<6} {:>9.2} s", kind.name(), median(rounds));
        }
        for (name, rounds) in &self.bytes {
            println!("{name:<44} {:>9.1} MiB", median(rounds) / f64::from(1 << 20));
        }
        Ok(())
    }
}
