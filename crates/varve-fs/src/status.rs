//! What a file system says of itself, in one JSON object.
//!
//! It goes through the kernel as the value of an attribute, so it must not grow with what is in the store: the key spaces of
//! dictionaries, of which there may be a thousand, are told as one.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use varve_engine::paths::WritePaths;
use varve_schema::DictionaryRow;

use crate::fs::VarveFs;

/// How the sum of the key spaces of dictionaries is called.
const DICTIONARIES_NAME: &str = "dictionary-*";

/// By this field levels are told apart.
const LEVEL: &str = "level";

/// A mean, and the number of what it is the mean of.
const MEAN: &str = "mean_run_bytes";
const MEAN_OF: &str = "runs";

impl VarveFs {
    /// See [`varve_vfs::Vfs::status_json`].
    /// What was asked of storage that counts its requests; `None` for a local one.
    fn storage_counters(&self) -> Option<BTreeMap<&'static str, u64>> {
        let counters = self.env.storage_counters();
        (!counters.is_empty()).then(|| counters.into_iter().collect())
    }

    pub(crate) fn do_status_json(&self) -> String {
        let (known, spilled) = self.session.inodes.counts();
        let mut store = serde_json::from_str(&self.store.metrics_json()).unwrap_or_default();
        sum_up_dictionaries(&mut store);
        json!({
            "store": self.dir.written(),
            "superblock": self.superblock.public(),
            "read_only": self.options.read_only,
            "memory_budget_bytes": self.options.memory_budget_bytes,
            "mount_point": self.options.mount_point.written(),
            "inodes_known": known,
            "inodes_spilled": spilled,
            "files_open": self.session.handles.count(),
            "objects_open": self.objects.descriptors().count(),
            "quotas": self.accounts.quota_count(),
            "directories_marked": self.accounts.marked(),
            "objects_to_remove": self.reaper.queued(),
            "inode_ids_next": self.ids.next(),
            "storage": self.storage_counters(),
            "engine": store,
        })
        .to_string()
    }
}

/// Puts one key space in the place of those of dictionaries, with their number and the sums of what they say.
fn sum_up_dictionaries(store: &mut Value) {
    let Some(spaces) = store.get_mut("keyspaces").and_then(Value::as_array_mut) else { return };
    let is_of_pairs =
        |space: &Value| space["name"].as_str().is_some_and(DictionaryRow::is_keyspace);
    let (of_pairs, mut told): (Vec<Value>, Vec<Value>) =
        std::mem::take(spaces).into_iter().partition(is_of_pairs);
    let count = of_pairs.len();
    if let Some(mut sum) = of_pairs.into_iter().reduce(sum) {
        sum["name"] = json!(DICTIONARIES_NAME);
        sum["keyspaces"] = json!(count);
        told.push(sum);
    }
    *spaces = told;
}

/// The sum of two values of one shape: what holds of either, of both together; what is no number is that of the first.
fn sum(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            json!(one.as_u64().unwrap_or(0) + other.as_u64().unwrap_or(0))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.into_iter().zip(other).map(|(one, other)| sum(one, other)).collect()
        }
        (Value::Object(mut one), Value::Object(other)) => {
            let mean = mean(&one, &other);
            for (field, value) in other.into_iter().filter(|(field, _)| field != LEVEL) {
                let before = one.remove(&field).unwrap_or_default();
                one.insert(field, sum(before, value));
            }
            one.extend(mean.map(|mean| (MEAN.to_owned(), json!(mean))));
            Value::Object(one)
        }
        (Value::Bool(one), Value::Bool(other)) => json!(one || other),
        (Value::Null, other) => other,
        (one, _) => one,
    }
}

/// The [`MEAN`] of two objects together, if they have one.
fn mean(one: &Map<String, Value>, other: &Map<String, Value>) -> Option<u64> {
    let of = |object: &Map<String, Value>| {
        let number = |field| object.get(field).and_then(Value::as_u64);
        Some((number(MEAN)?, number(MEAN_OF)?))
    };
    let ((one, one_of), (other, other_of)) = (of(one)?, of(other)?);
    Some((one * one_of + other * other_of) / (one_of + other_of).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dictionaries_are_one_key_space() {
        let space = |name: &str, rows: u64, map: Value| {
            let levels = json!([{ "level": 0, "tables": rows }, { "level": 1, "tables": 0 }]);
            let runs = json!({ "runs": rows, "mean_run_bytes": 10 * rows });
            json!({ "name": name, "rows": rows, "levels": levels, "runs": runs, "map": map })
        };
        let told = |spaces: &[Value]| {
            let mut store = json!({ "keyspaces": spaces });
            sum_up_dictionaries(&mut store);
            store["keyspaces"].as_array().unwrap().clone()
        };
        let others = [space("meta", 7, Value::Null), space("dictionaries", 2, Value::Null)];
        assert_eq!(told(&others), others);
        let map = |degraded: bool, tables: u64| json!({ "degraded": degraded, "tables": tables });
        let [one, two, three] =
            [("0", 3, Value::Null), ("9", 1, map(false, 1)), ("17", 5, map(true, 2))]
                .map(|(number, rows, map)| space(&format!("dictionary-{number}"), rows, map));
        let [meta, names] = others;
        let mut expected = space("dictionary-*", 9, map(true, 3));
        expected["keyspaces"] = json!(3);
        expected["runs"]["mean_run_bytes"] = json!((30 * 3 + 10 + 50 * 5) / 9);
        assert_eq!(told(&[meta.clone(), one, two, names.clone(), three]), [meta, names, expected]);
        let mut other_engine = json!({ "engine": "fjall" });
        sum_up_dictionaries(&mut other_engine);
        assert_eq!(other_engine, json!({ "engine": "fjall" }));
    }
}
