//! Collecting figures and printing medians.

use std::collections::{BTreeMap, BTreeSet};
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
        let mut all = serde_json::Map::new();
        all.insert("operation".to_owned(), json!(operation));
        for kind in self.kinds() {
            let Some(costs) = self.costs.get(&(operation.to_owned(), kind)) else { continue };
            let figures = json!({
                "elapsed_us": median(&costs.elapsed_us),
                "client_cpu_us": median(&costs.client_cpu_us),
                "daemon_cpu_us": median(&costs.daemon_cpu_us),
                "elapsed_us_rounds": costs.elapsed_us,
            });
            all.insert(kind.name(), figures);
        }
        let library = self.library_us.get(operation).map(|rounds| median(rounds));
        all.insert("library_us".to_owned(), json!(library));
        Value::Object(all)
    }

    /// What was measured.
    fn kinds(&self) -> BTreeSet<Kind> {
        self.costs.keys().map(|(_, kind)| *kind).collect()
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
            "CPU is client + daemon; ratio is ext4's time over this one's, above 1 this one is faster\n"
        );
        println!(
            "{:<12} {:<12} {:>8} {:>7} {:>15} {:>6}",
            "operation", "on", "time", "CPU", "client+daemon", "ratio"
        );
        for operation in &self.operations {
            let get = |kind: Kind| self.costs.get(&(operation.clone(), kind));
            let ext4 = get(Kind::Ext4).map(|costs| median(&costs.elapsed_us));
            for kind in self.kinds() {
                let Some(costs) = get(kind) else { continue };
                let elapsed = median(&costs.elapsed_us);
                let (client, daemon) = (median(&costs.client_cpu_us), median(&costs.daemon_cpu_us));
                let ratio = ext4.map(|ext4| ext4 / elapsed.max(f64::MIN_POSITIVE));
                println!(
                    "{operation:<12} {:<12} {elapsed:>8.2} {:>7.2} {:>15} {:>6}",
                    kind.name(),
                    client + daemon,
                    format!("{client:.1}+{daemon:.1}"),
                    ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
                );
            }
            if let Some(rounds) = self.library_us.get(operation) {
                println!("{operation:<12} {:<12} {:>8.2}", "library", median(rounds));
            }
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
