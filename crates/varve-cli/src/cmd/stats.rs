//! `varve stats`: what a mount or a server does.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use varve::{Error, Result, size};
use varve_daemon::stats::{Requests, Stats, take};

use crate::cmd::mount_source;
use crate::output;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A path on a mount, a store that is served, or the address of a server: varve://HOST[:PORT]
    #[arg(value_name = "DIR|STORE|SERVER", default_value = ".")]
    #[arg(value_parser = mount_source())]
    path: PathBuf,
    /// The file with the secret that the server asks for
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Seconds between two reports, 0.001 to 86400; the first report covers all the time since the daemon began
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// The number of reports [default: until interrupted, one with --json]
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// Print JSON, a line for each report
    #[arg(long)]
    json: bool,
    /// Print the counts since the daemon began once, in the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "count", "interval"])]
    prometheus: bool,
}

/// Reads an interval, from a millisecond to a day.
fn interval(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=86400.0).contains(seconds));
    let seconds = seconds.ok_or("a number of seconds from 0.001 to 86400 is wanted")?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Prints the reports.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let take = || take(&arguments.path, arguments.token_file.as_deref());
    let mut before = take()?;
    if arguments.prometheus {
        output::bytes(before.to_prometheus().as_bytes());
        return Ok(());
    }
    let count = arguments.count.unwrap_or(if arguments.json { 1 } else { u64::MAX });
    for turn in 0..count {
        let told = match turn {
            0 => before.clone(),
            _ => {
                std::thread::sleep(arguments.interval);
                let now = take()?;
                let told = now.since(&before);
                before = now;
                told
            }
        };
        if !output::is_wanted() {
            return Ok(());
        }
        match arguments.json {
            true => output::line(as_json(&told)?),
            false => show(&told),
        }
    }
    Ok(())
}

fn as_json(stats: &Stats) -> Result<String> {
    let mut value = json!(stats);
    for (name, requests) in &stats.operations {
        let told = &mut value["operations"][name];
        told["mean_us"] = json!(requests.mean_micros());
        for (field, quantile) in QUANTILES {
            told[format!("{field}_us")] = json!(requests.quantile_micros(quantile));
        }
    }
    serde_json::to_string(&value)
        .map_err(|error| Error::failed(format!("cannot write JSON: {error}")))
}

const QUANTILES: [(&str, f64); 3] = [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)];

fn show(stats: &Stats) {
    let per_second = |count: u64| rate(count, stats.seconds);
    let span = format!("{:.1} s", stats.seconds);
    output::line(format!(
        "{:<16} {:>12} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}",
        span, "requests", "per s", "failed", "mean us", "p50", "p99", "p99.9"
    ));
    for (name, requests) in &stats.operations {
        let Requests { count, failed, .. } = requests;
        let micros = |micros: Option<f64>| micros.map_or("-".to_owned(), |us| format!("{us:.1}"));
        let [p50, p99, p999] =
            QUANTILES.map(|(_, quantile)| micros(requests.quantile_micros(quantile)));
        output::line(format!(
            "{:<16} {count:>12} {:>10} {failed:>9} {:>9} {p50:>9} {p99:>9} {p999:>9}",
            name.to_ascii_lowercase(),
            per_second(*count),
            micros(requests.mean_micros()),
        ));
    }
    let server = stats.server.iter().map(|(name, count)| (format!("server.{name}"), count));
    let engine = stats.engine.iter().map(|(name, count)| (format!("engine.{name}"), count));
    let storage = stats.storage.iter().map(|(name, count)| (format!("storage.{name}"), count));
    for (name, count) in server.chain(engine).chain(storage).filter(|(_, count)| **count > 0) {
        let (name, unit) = match name.strip_suffix("_nanos") {
            Some(name) => (format!("{name}_ms"), 1_000_000),
            None => (name, 1),
        };
        let shown = |number: u64| match name.contains("bytes") {
            true => size::show(number),
            false => (number / unit).to_string(),
        };
        let [all, rate] = [*count, per_second(*count)].map(shown);
        output::line(format!("{name:<35} {all:>12} {rate:>12}/s"));
    }
    for (name, value) in stats.server_now.iter().filter(|(name, _)| *name != "start_time_seconds") {
        output::line(format!("server.{name:<28} {value:>12}"));
    }
    for name in ["memory_bytes", "memory_budget_bytes"] {
        if let Some(bytes) = stats.engine_bytes.get(name) {
            output::line(format!("engine.{name:<28} {:>12}", size::show(*bytes)));
        }
    }
    output::line("");
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "is read by people"
)]
fn rate(count: u64, seconds: f64) -> u64 {
    if seconds > 0.0 { (count as f64 / seconds).round() as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_seconds() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "0", "-1", "NaN", "inf", "1e9", "x"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_per_second() {
        assert_eq!([rate(10, 2.0), rate(3, 0.0), rate(1, 3.0)], [5, 0, 0]);
    }
}
