//! `varve status`: tell about a store, a mount or a server.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use varve::{Result, size};
use varve_daemon::logging;
use varve_daemon::stats::Requests;
use varve_daemon::status::{Status, of_server, of_server_mount, status};
use varve_engine::StoreDesign;
use varve_types::Timestamp;

use crate::cmd::mount_source;
use crate::output;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store, a path on a mount, or the address of a server: varve://HOST[:PORT]
    #[arg(value_name = "STORE|DIR|SERVER")]
    #[arg(value_parser = mount_source())]
    path: PathBuf,
    /// The file with the secret that the server asks for
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows the status.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    if let Some(told) = of_server(&arguments.path, arguments.token_file.as_deref())? {
        if arguments.json {
            return output::json(&told);
        }
        show_server(&told);
        return Ok(());
    }
    if let Some(told) = of_server_mount(&arguments.path)? {
        if arguments.json {
            return output::json(&told);
        }
        show_server_mount(&told);
        return Ok(());
    }
    let status = status(&arguments.path)?;
    if arguments.json {
        return output::json(&status);
    }
    show(&status);
    Ok(())
}

/// A design as the names of its choices.
fn design(design: &StoreDesign) -> String {
    let name = |choice: serde_json::Value| choice.as_str().unwrap_or_default().to_owned();
    let StoreDesign { compaction, index, filter, values, .. } = design;
    let choices = [json!(compaction), json!(index), json!(filter), json!(values)];
    choices.map(name).join(", ")
}

fn row(name: &str, value: impl Into<String>) {
    output::line(format!("{name:<40} {}", value.into()));
}

/// The rows of all that a value says but for some fields.
fn rows(value: &Value, without: &[&str]) {
    let mut value = value.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|field, _| !without.contains(&field.as_str()));
    }
    let mut rows = Vec::new();
    flatten("", &value, &mut rows);
    for (name, value) in rows {
        // A server on another machine may say anything.
        row(&output::on_one_line(&name), output::on_one_line(&value));
    }
}

fn mounted_on(dir: &str, read_only: bool) {
    let how = if read_only { "read-only" } else { "read and write" };
    row("mounted on", format!("{dir} ({how})"));
}

fn requests_over(session: &Value) {
    let said = |field: &str| session.get(field).and_then(Value::as_str);
    let why = said("no_io_uring").map(|reason| format!(" ({reason})")).unwrap_or_default();
    row("requests over", format!("{}{why}", said("transport").unwrap_or("?")));
}

/// A path in an answer as text on one line.
fn path(told: &Value) -> String {
    String::from_utf8_lossy(&output::printable_path(told)).into_owned()
}

/// Shows the mount of a server.
fn show_server_mount(told: &Value) {
    row("server", path(&told["address"]));
    mounted_on(&path(&told["mount_point"]), told["read_only"] == true);
    requests_over(&told["session"]);
    rows(&told["file_system"], &["mount_point", "read_only"]);
}

/// Shows what a server says of itself.
fn show_server(told: &Value) {
    let server = &told["server"];
    let seconds = |value: &Value| duration(value.as_f64().unwrap_or(0.0));
    row("version", output::printable(&told["version"]));
    row("store", path(&told["store"]));
    row("address", output::printable(&server["address"]));
    let since = Timestamp::new(server["since"].as_i64().unwrap_or(0), 0);
    row(
        "up since",
        format!(
            "{} ({})",
            logging::utc(since.unwrap_or(Timestamp::EPOCH)),
            seconds(&server["up_s"])
        ),
    );
    match &server["grace"] {
        Value::Null => row("grace", "over: all clients of the server before are back or gone"),
        grace => row(
            "grace",
            format!(
                "{} of {} clients of the server before are back; ends in {} at the latest",
                grace["clients_returned"],
                grace["clients_expected"]
                    .as_u64()
                    .map_or("?".to_owned(), |count| count.to_string()),
                seconds(&grace["ends_in_s"])
            ),
        ),
    }
    rows(server, &["address", "since", "up_s", "grace", "sessions", "requests", "leases"]);
    let leases = &server["leases"];
    row("leases given", leases["given"].to_string());
    row("leases held", leases["held"].to_string());
    row("recalls", format!("{} ({} timed out)", leases["recalls"], leases["recalls_timed_out"]));
    row("waits for recalls", waits(&leases["recall_waits"]));
    rows(&told["file_system"], &["store", "superblock", "mount_point"]);
    show_requests(&server["requests"]);
    show_clients(&server["sessions"]);
}

/// Times as text, in one line.
fn waits(told: &Value) -> String {
    let of = |field: &str| told[field].as_u64().unwrap_or(0);
    let buckets = serde_json::from_value(told["buckets"].clone()).unwrap_or_default();
    let times =
        Requests { count: of("count"), timed: of("count"), nanos: of("nanos"), buckets, failed: 0 };
    let ms = |micros: Option<f64>| micros.map_or("-".to_owned(), |us| format!("{:.1}", us / 1e3));
    match times.count {
        0 => "0".to_owned(),
        count => format!(
            "{count} (mean {} ms, p50 {}, p99 {})",
            ms(times.mean_micros()),
            ms(times.quantile_micros(0.5)),
            ms(times.quantile_micros(0.99))
        ),
    }
}

fn show_requests(told: &Value) {
    output::line("");
    output::line(format!(
        "{:<16} {:>12} {:>9} {:>9} {:>9} {:>9}",
        "requests", "count", "failed", "mean us", "p50", "p99"
    ));
    for (name, requests) in told.as_object().into_iter().flatten() {
        let Ok(requests) = serde_json::from_value::<Requests>(requests.clone()) else { continue };
        let us = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.1}"));
        let name = output::on_one_line(name);
        output::line(format!(
            "{name:<16} {:>12} {:>9} {:>9} {:>9} {:>9}",
            requests.count,
            requests.failed,
            us(requests.mean_micros()),
            us(requests.quantile_micros(0.5)),
            us(requests.quantile_micros(0.99))
        ));
    }
}

fn show_clients(told: &Value) {
    output::line("");
    output::line(format!(
        "{:<28} {:<22} {:>9} {:>6} {:>7} {:>7} {:>9} {:>12}",
        "clients", "address", "session", "files", "leases", "asking", "age", "requests"
    ));
    for client in told["clients"].as_array().into_iter().flatten() {
        let age = duration(client["age_s"].as_f64().unwrap_or(0.0));
        let number = |field: &str| client[field].as_u64().unwrap_or(0);
        let away = client["away_s"].as_f64().map(|away| format!("  away for {}", duration(away)));
        output::line(format!(
            "{:<28} {:<22} {:>9} {:>6} {:>7} {:>7} {:>9} {:>12}{}{}",
            output::printable(&client["name"]),
            output::printable(&client["address"]),
            number("session"),
            number("open_files"),
            number("leases_held"),
            number("in_flight"),
            age,
            number("requests"),
            if client["read_only"] == true { "  read-only" } else { "" },
            away.unwrap_or_default(),
        ));
    }
    let rest = told["not_listed"].as_u64().unwrap_or(0);
    if rest > 0 {
        output::line(format!("and {rest} more; {} in all", told["count"]));
    }
}

/// A time for people.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "is read by people")]
fn duration(seconds: f64) -> String {
    let whole = seconds.max(0.0) as u64;
    match whole {
        0..60 => format!("{seconds:.0} s"),
        60..3600 => format!("{} min", whole / 60),
        3600..172_800 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} days", whole / 86_400),
    }
}

fn show(status: &Status) {
    let superblock = &status.superblock;
    row("store", status.store.display().to_string());
    if let Some(address) = &status.address {
        row("on", address.clone());
    }
    row("id", superblock.uuid.clone());
    let formatted = Timestamp::new(superblock.formatted_at_secs, 0).unwrap_or(Timestamp::EPOCH);
    row("formatted", logging::utc(formatted));
    row("format version", superblock.format_version.to_string());
    row("large files from", size::show(superblock.large_file_threshold_bytes));
    row("engine", json!(superblock.engine).as_str().unwrap_or_default().to_owned());
    row("tables", design(&superblock.design));
    row("in the store", size::show(status.engine_bytes));
    match &status.holder {
        Some(holder) => row("in use by", holder.describe()),
        None => row("in use by", "nobody".to_owned()),
    }
    if let Some(dir) = &status.mount_point {
        mounted_on(&dir.display().to_string(), status.read_only == Some(true));
    }
    status.session.iter().for_each(requests_over);
    if let Some(error) = &status.daemon_error {
        row("daemon", error.clone());
    }
    if let Some(daemon) = &status.daemon {
        // Said above.
        rows(daemon, &["store", "superblock", "mount_point", "read_only"]);
    }
    if let Some(server) = &status.server {
        output::line("");
        show_server(server);
    }
}

/// The leaves of a JSON value that say something, each with the path to it; sizes in units. Zeros, which
/// most counters are, and nulls are left out.
fn flatten(name: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    let below =
        |field: &str| if name.is_empty() { field.to_owned() } else { format!("{name}.{field}") };
    match value {
        Value::Null => {}
        Value::Object(fields) => {
            // What an item of a list calls itself is in its path already.
            for (field, value) in
                fields.iter().filter(|(field, _)| !LABELS.contains(&field.as_str()))
            {
                flatten(&below(field), value, rows);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                match item.as_array().map(Vec::as_slice) {
                    Some([Value::String(field), value]) => flatten(&below(field), value, rows),
                    _ => {
                        flatten(&below(&label(item).unwrap_or_else(|| at.to_string())), item, rows)
                    }
                }
            }
        }
        Value::Number(number) => {
            let whole = number.as_u64();
            if whole != Some(0) {
                let as_size = whole.filter(|_| name.contains("bytes")).map(size::show);
                rows.push((name.to_owned(), as_size.unwrap_or_else(|| number.to_string())));
            }
        }
        Value::String(text) => rows.push((name.to_owned(), text.clone())),
        Value::Bool(truth) => rows.push((name.to_owned(), truth.to_string())),
    }
}

/// Fields by which items of lists are told apart.
const LABELS: &[&str] = &["name", "level"];

/// The name of an item of a list.
fn label(item: &Value) -> Option<String> {
    match LABELS.iter().find_map(|field| item.get(field))? {
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_become_rows() {
        let value = serde_json::json!({
            "a": {"cache_bytes": 2048, "hits": 3, "misses": 0},
            "counters": [["gets", 7], ["puts", 0]],
            "spaces": [{"name": "meta", "rows": 5}],
            "list": [1, "x"],
        });
        let mut rows = Vec::new();
        flatten("", &value, &mut rows);
        let expected = [
            ("a.cache_bytes", "2.00 KiB"),
            ("a.hits", "3"),
            ("counters.gets", "7"),
            ("list.0", "1"),
            ("list.1", "x"),
            ("spaces.meta.rows", "5"),
        ];
        assert_eq!(rows, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
