//! `varve status`: tell about a store or a mount.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use varve::{Result, size};
use varve_daemon::logging;
use varve_daemon::status::{Status, status};
use varve_engine::StoreDesign;
use varve_types::Timestamp;

use crate::cmd::store_path;
use crate::output;

/// The arguments.
#[derive(Args)]
pub(crate) struct Arguments {
    /// A store, or a path on a mount
    #[arg(value_name = "STORE|DIR")]
    #[arg(value_parser = store_path())]
    path: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows the status.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
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

fn show(status: &Status) {
    let row = |name: &str, value: String| output::line(format!("{name:<40} {value}"));
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
        let how = if status.read_only == Some(true) { "read-only" } else { "read and write" };
        row("mounted on", format!("{} ({how})", dir.display()));
    }
    if let Some(session) = &status.session {
        let said = |field: &str| session.get(field).and_then(Value::as_str);
        let why = said("no_io_uring").map(|reason| format!(" ({reason})")).unwrap_or_default();
        row("requests over", format!("{}{why}", said("transport").unwrap_or("?")));
    }
    if let Some(error) = &status.daemon_error {
        row("daemon", error.clone());
    }
    if let Some(daemon) = &status.daemon {
        let mut daemon = daemon.clone();
        if let Some(fields) = daemon.as_object_mut() {
            // Said above.
            fields.retain(|field, _| {
                !["store", "superblock", "mount_point", "read_only"].contains(&field.as_str())
            });
        }
        let mut rows = Vec::new();
        flatten("", &daemon, &mut rows);
        for (name, value) in rows {
            row(&name, value);
        }
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
