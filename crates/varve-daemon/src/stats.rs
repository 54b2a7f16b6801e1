//! What a mount or a server ([`served_status`]) does: the requests that its daemon serves, and what the engine does for them.
//!
//! The daemon counts from its start ([`take`]); the difference of two counts is what happened between them ([`Stats::since`]). It times a
//! sample of each kind of request (`varve_fuse`, `meters.rs`), in buckets from which quantiles are read.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use varve::{Error, Result};

use crate::mount_table::find_mount;
use crate::served_status;
use crate::status::{ask, ask_daemon};
use crate::target::not_on_mount;

/// The attribute of a mount's root that holds the counts of requests.
const REQUESTS_XATTR: &str = "user.varve.requests";

/// What a mount or a server did in a period.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// The length of the period, in seconds.
    pub seconds: f64,
    /// The requests, by kind.
    pub operations: BTreeMap<String, Requests>,
    /// Counts of a server, by name; nothing for a mount.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub server: BTreeMap<String, u64>,
    /// What a server has at the end of the period, by name; nothing for a mount.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub server_now: BTreeMap<String, u64>,
    /// The engine's counters, by name.
    pub engine: BTreeMap<String, u64>,
    /// What was asked of shared storage, by name; nothing for a store in a local directory.
    pub storage: BTreeMap<String, u64>,
    /// The engine's sizes at the end of the period, in bytes.
    pub engine_bytes: BTreeMap<String, u64>,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// All requests.
    pub count: u64,
    /// The requests that ended with an error, such as a name that exists already.
    pub failed: u64,
    /// The requests that were timed.
    pub timed: u64,
    /// The sum of their times in nanoseconds.
    pub nanos: u64,
    /// Each bucket's end in nanoseconds, and how many requests took less than it, but not less than the end before.
    pub buckets: Vec<(u64, u64)>,
}

/// The value of the attribute [`REQUESTS_XATTR`].
#[derive(Deserialize)]
struct RequestReport {
    seconds: f64,
    operations: BTreeMap<String, Requests>,
}

/// What the mount at `path` or above it, the server of the store `path`, or the server with this address did since it began. `token` is
/// the file with the secret that a server asks for.
pub fn take(path: &Path, token: Option<&Path>) -> Result<Stats> {
    if let Some(told) = served_status::ask(path, token)? {
        return served_status::stats(&told);
    }
    let mount = find_mount(path)?.ok_or_else(|| not_on_mount(path))?;
    let told: RequestReport = serde_json::from_value(ask(&mount.dir, REQUESTS_XATTR)?)
        .map_err(|error| Error::not_understood("what the daemon says of requests", error))?;
    let daemon = ask_daemon(&mount.dir)?;
    Ok(Stats { seconds: told.seconds, operations: told.operations, ..of_file_system(&daemon) })
}

/// The counts of the engine and of storage, of what a file system says of itself.
pub(crate) fn of_file_system(told: &Value) -> Stats {
    let numbers = |of: &Value, are_wanted: fn(&str) -> bool| {
        let fields = of.as_object().into_iter().flatten();
        let numbers = fields.filter_map(|(name, value)| Some((name.clone(), value.as_u64()?)));
        numbers.filter(|(name, _)| are_wanted(name)).collect()
    };
    Stats {
        engine: numbers(&told["engine"]["counters"], |_| true),
        storage: numbers(&told["storage"], |_| true),
        engine_bytes: numbers(&told["engine"], |name| name.ends_with("_bytes")),
        ..Stats::default()
    }
}

impl Stats {
    /// What the mount did since `before`; all counts, if another daemon has taken over meanwhile. REQUIRES: `before` is of the same mount.
    pub fn since(&self, before: &Stats) -> Stats {
        let fell = |(name, then): (&String, &Requests)| {
            self.operations.get(name).is_none_or(|now| now.count < then.count)
        };
        if before.seconds > self.seconds || before.operations.iter().any(fell) {
            return self.clone();
        }
        let nothing = Requests::default();
        let operations = self.operations.iter().map(|(name, now)| {
            (name.clone(), now.since(before.operations.get(name).unwrap_or(&nothing)))
        });
        let less = |now: &BTreeMap<String, u64>, then: &BTreeMap<String, u64>| {
            let counts = now.iter().map(|(name, now)| {
                (name.clone(), now.saturating_sub(then.get(name).copied().unwrap_or(0)))
            });
            counts.filter(|(_, count)| *count > 0).collect()
        };
        Stats {
            seconds: self.seconds - before.seconds,
            operations: operations.filter(|(_, requests)| *requests != nothing).collect(),
            server: less(&self.server, &before.server),
            server_now: self.server_now.clone(),
            engine: less(&self.engine, &before.engine),
            storage: less(&self.storage, &before.storage),
            engine_bytes: self.engine_bytes.clone(),
        }
    }

    /// The text format of Prometheus, version 0.0.4. Its histograms contain the timed requests.
    #[allow(clippy::cast_precision_loss, reason = "is plotted")]
    pub fn to_prometheus(&self) -> String {
        let mut text = Exposition::default();
        text.family("varve_requests_total", "counter", "Requests, by kind.");
        for (name, requests) in &self.operations {
            text.sample("varve_requests_total", &operation(name), requests.count);
        }
        text.family("varve_requests_failed_total", "counter", "Those that ended with an error.");
        for (name, requests) in &self.operations {
            text.sample("varve_requests_failed_total", &operation(name), requests.failed);
        }
        let family = "varve_request_seconds";
        text.family(
            family,
            "histogram",
            "From taking a request up to its answer; of a mount a sample.",
        );
        for (name, requests) in &self.operations {
            let mut sum = 0;
            for (end, count) in &requests.buckets {
                sum += count;
                let labels = format!("{},le=\"{}\"", operation(name), seconds(*end));
                text.sample(&format!("{family}_bucket"), &labels, sum);
            }
            let infinite = format!("{},le=\"+Inf\"", operation(name));
            text.sample(&format!("{family}_bucket"), &infinite, requests.timed);
            text.sample(&format!("{family}_sum"), &operation(name), seconds(requests.nanos));
            text.sample(&format!("{family}_count"), &operation(name), requests.timed);
        }
        for (field, count) in &self.server {
            // Prometheus has times in seconds.
            let (name, count) = match field.strip_suffix("_nanos") {
                Some(field) => (format!("varve_server_{field}_seconds_total"), seconds(*count)),
                None => (format!("varve_server_{field}_total"), *count as f64),
            };
            text.family(&name, "counter", served_status::help(field));
            text.sample(&name, "", count);
        }
        for (field, value) in &self.server_now {
            let name = format!("varve_server_{field}");
            text.family(&name, "gauge", served_status::help(field));
            text.sample(&name, "", value);
        }
        for (name, count) in &self.engine {
            let name = format!("varve_engine_{name}_total");
            text.family(&name, "counter", "Counted by the engine.");
            text.sample(&name, "", count);
        }
        for (name, count) in &self.storage {
            let name = format!("varve_storage_{name}_total");
            text.family(&name, "counter", "Counted at the shared storage.");
            text.sample(&name, "", count);
        }
        for (name, bytes) in &self.engine_bytes {
            let name = format!("varve_engine_{name}");
            text.family(&name, "gauge", "A size of the engine in bytes.");
            text.sample(&name, "", bytes);
        }
        text.0
    }
}

/// Text in Prometheus' format.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.0.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        self.0.push_str(&format!("{name}{braces} {value}\n"));
    }
}

fn operation(name: &str) -> String {
    format!("operation=\"{}\"", name.to_ascii_lowercase())
}

#[allow(clippy::cast_precision_loss, reason = "is read by people and plotted")]
fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

impl Requests {
    fn since(&self, before: &Requests) -> Requests {
        let earlier: BTreeMap<u64, u64> = before.buckets.iter().copied().collect();
        let buckets = self.buckets.iter().map(|(end, count)| {
            (*end, count.saturating_sub(earlier.get(end).copied().unwrap_or(0)))
        });
        Requests {
            count: self.count.saturating_sub(before.count),
            failed: self.failed.saturating_sub(before.failed),
            timed: self.timed.saturating_sub(before.timed),
            nanos: self.nanos.saturating_sub(before.nanos),
            buckets: buckets.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// The mean of the times, in microseconds; `None` if none was timed.
    #[allow(clippy::cast_precision_loss, reason = "is read by people")]
    pub fn mean_micros(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.nanos as f64 / self.timed as f64 / 1e3)
    }

    /// The time in microseconds within which the share `quantile` of the timed requests was answered, rounded up to the end of a bucket,
    /// which is at most 1.5 times its beginning; `None` if none was timed.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a count"
    )]
    pub fn quantile_micros(&self, quantile: f64) -> Option<f64> {
        let rank = (quantile * self.timed as f64).ceil().max(1.0) as u64;
        let mut sum = 0;
        let reached = self.buckets.iter().find(|(_, count)| {
            sum += count;
            sum >= rank
        });
        reached.map(|(end, _)| *end as f64 / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(count: u64, buckets: &[(u64, u64)]) -> Requests {
        let timed = buckets.iter().map(|(_, count)| count).sum();
        Requests { count, failed: 1, timed, nanos: timed * 1000, buckets: buckets.to_vec() }
    }

    fn stats(seconds: f64, lookups: Requests, writes: u64) -> Stats {
        Stats {
            seconds,
            operations: [("LOOKUP".to_owned(), lookups)].into(),
            server: BTreeMap::new(),
            server_now: BTreeMap::new(),
            engine: [("writes".to_owned(), writes)].into(),
            storage: [("reads".to_owned(), 3 * writes)].into(),
            engine_bytes: [("memory_bytes".to_owned(), 10)].into(),
        }
    }

    #[test]
    fn what_happened_between_two_moments_is_their_difference() {
        let before = stats(10.0, requests(100, &[(1024, 3), (2048, 2)]), 7);
        let now = stats(12.0, requests(150, &[(1024, 3), (2048, 4), (4096, 1)]), 9);
        let between = now.since(&before);
        assert!((between.seconds - 2.0).abs() < 1e-9);
        let lookups = &between.operations["LOOKUP"];
        assert_eq!((lookups.count, lookups.failed, lookups.timed), (50, 0, 3));
        assert_eq!(lookups.buckets, [(2048, 2), (4096, 1)]);
        assert_eq!(between.engine, [("writes".to_owned(), 2)].into());
        assert_eq!(between.storage, [("reads".to_owned(), 6)].into());
        assert_eq!(now.since(&now).operations, BTreeMap::new());
        // Another daemon counts anew, and may have done so for longer.
        assert_eq!(before.since(&now), before);
        let next = stats(57.0, requests(3, &[(1024, 3)]), 1);
        assert_eq!(next.since(&before), next);
    }

    #[test]
    fn quantiles_are_read_from_buckets() {
        let some = requests(170, &[(1024, 5), (2048, 4), (1 << 20, 1)]);
        assert_eq!(some.quantile_micros(0.5), Some(1.024));
        assert_eq!(some.quantile_micros(0.51), Some(2.048));
        assert_eq!(some.quantile_micros(0.99), Some(1048.576));
        assert_eq!(some.mean_micros(), Some(1.0));
        assert_eq!(Requests::default().quantile_micros(0.5), None);
        assert_eq!(Requests::default().mean_micros(), None);
    }

    #[test]
    fn prometheus_reads_it() {
        let text = stats(10.0, requests(100, &[(1024, 3), (2048, 2)]), 7).to_prometheus();
        for line in [
            "# TYPE varve_requests_total counter",
            "varve_requests_total{operation=\"lookup\"} 100",
            "varve_requests_failed_total{operation=\"lookup\"} 1",
            "# TYPE varve_request_seconds histogram",
            "varve_request_seconds_bucket{operation=\"lookup\",le=\"0.000001024\"} 3",
            "varve_request_seconds_bucket{operation=\"lookup\",le=\"0.000002048\"} 5",
            "varve_request_seconds_bucket{operation=\"lookup\",le=\"+Inf\"} 5",
            "varve_request_seconds_sum{operation=\"lookup\"} 0.000005",
            "varve_request_seconds_count{operation=\"lookup\"} 5",
            "varve_engine_writes_total 7",
            "varve_storage_reads_total 21",
            "# TYPE varve_engine_memory_bytes gauge",
            "varve_engine_memory_bytes 10",
        ] {
            assert!(text.lines().any(|said| said == line), "{line}\n{text}");
        }
    }
}
