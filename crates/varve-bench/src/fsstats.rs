//! The statistics of a tree of files (Ren, thesis, chapter 3.2): sizes of files and directories, depths, skew.
//!
//! One walk, in a memory that does not grow with the tree but for the paths of directories still to visit. Values are exact to
//! two digits, the largest wholly. Files and directories of a directory are counted apart too, which the evaluation of inode ids
//! takes (Sinnamohideen, thesis, 4.5.1).

use std::fs::Metadata;
use std::path::Path;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::walk::{Visitor, walk};
use crate::{Failure, output};

/// The quantiles that are shown, each with its name.
const QUANTILES: [(&str, f64); 5] =
    [("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)];

/// A property of files or directories.
struct Property {
    values: Histogram<u64>,
    /// The histogram only knows where the step of the largest ends.
    max: u64,
    sum: u64,
}

impl Property {
    fn new() -> Result<Property, Failure> {
        Ok(Property { values: Histogram::new_with_bounds(1, 1 << 62, 2)?, max: 0, sum: 0 })
    }

    fn note(&mut self, value: u64) {
        self.values.saturating_record(value);
        self.max = self.max.max(value);
        self.sum = self.sum.saturating_add(value);
    }

    fn at(&self, quantile: f64) -> u64 {
        match quantile >= 1.0 {
            true => self.max,
            // Of values that count together the upper end is told.
            false => self.values.value_at_quantile(quantile).min(self.max),
        }
    }

    fn mean(&self) -> f64 {
        self.sum as f64 / self.values.len().max(1) as f64
    }

    /// The part of the sum that the largest hundredth of the values makes up.
    fn top_share(&self) -> f64 {
        let mut left = self.values.len().div_ceil(100);
        let mut sum = 0.0;
        let steps: Vec<(u64, u64)> = self
            .values
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect();
        for (value, count) in steps.into_iter().rev() {
            let taken = count.min(left);
            sum += value as f64 * taken as f64;
            left -= taken;
        }
        (sum / (self.sum as f64).max(1.0)).min(1.0)
    }

    fn json(&self) -> Value {
        let mut all = serde_json::Map::new();
        all.insert("count".to_owned(), json!(self.values.len()));
        all.insert("mean".to_owned(), json!(self.mean()));
        for (name, quantile) in QUANTILES {
            all.insert(name.to_owned(), json!(self.at(quantile)));
        }
        all.insert("share_of_top_hundredth".to_owned(), json!(self.top_share()));
        Value::Object(all)
    }
}

/// The statistics of a tree.
struct Statistics {
    file_bytes: Property,
    dir_names: Property,
    dir_files: Property,
    dir_dirs: Property,
    dir_depth: Property,
    file_depth: Property,
    others: u64,
    /// The files and directories that were found in the directory that is visited.
    here: (u64, u64),
}

impl Visitor for Statistics {
    /// Its depth.
    type Dir = u64;

    fn dir(&mut self, parent: Option<&u64>) -> u64 {
        self.here.1 += u64::from(parent.is_some());
        parent.map_or(0, |depth| depth + 1)
    }

    fn file(&mut self, depth: &u64, data: &Metadata) {
        self.here.0 += 1;
        match data.is_file() {
            true => {
                self.file_bytes.note(data.len());
                self.file_depth.note(depth + 1);
            }
            false => self.others += 1,
        }
    }

    fn end(&mut self, depth: &u64, entries: u64) {
        let (files, dirs) = std::mem::take(&mut self.here);
        self.dir_names.note(entries);
        self.dir_files.note(files);
        self.dir_dirs.note(dirs);
        self.dir_depth.note(*depth);
    }
}

impl Statistics {
    fn of(root: &Path) -> Result<Statistics, Failure> {
        let mut all = Statistics {
            file_bytes: Property::new()?,
            dir_names: Property::new()?,
            dir_files: Property::new()?,
            dir_dirs: Property::new()?,
            dir_depth: Property::new()?,
            file_depth: Property::new()?,
            others: 0,
            here: (0, 0),
        };
        walk(root, &mut all)?;
        Ok(all)
    }

    fn properties(&self) -> [(&'static str, &Property); 6] {
        [
            ("bytes of files", &self.file_bytes),
            ("names in directories", &self.dir_names),
            ("files in directories", &self.dir_files),
            ("directories in directories", &self.dir_dirs),
            ("depth of directories", &self.dir_depth),
            ("depth of files", &self.file_depth),
        ]
    }
}

/// Prints the statistics of the tree at `root`.
pub(crate) fn run(root: &Path, as_json: bool) -> Result<(), Failure> {
    let all = Statistics::of(root)?;
    if as_json {
        let properties: serde_json::Map<String, Value> = all
            .properties()
            .map(|(name, property)| (name.replace(' ', "_"), property.json()))
            .into_iter()
            .collect();
        let report = json!({"statistics": properties, "other_files": all.others});
        output::line(serde_json::to_string_pretty(&report)?);
        return Ok(());
    }
    output::line(format!(
        "{} files of {} bytes in {} directories, and {} of other kinds\n",
        all.file_bytes.values.len(),
        all.file_bytes.sum,
        all.dir_names.values.len(),
        all.others
    ));
    let quantiles = QUANTILES.map(|(name, _)| format!("{name:>12}")).concat();
    output::line(format!("{:<28}{:>12}{quantiles}{:>12}", "", "mean", "in top 1 %"));
    for (name, property) in all.properties() {
        let quantiles = QUANTILES.map(|(_, at)| format!("{:>12}", property.at(at))).concat();
        let share = format!("{:.0} %", 100.0 * property.top_share());
        output::line(format!("{name:<28}{:>12.1}{quantiles}{share:>12}", property.mean()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_known_tree_is_measured() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::create_dir_all(dir.path().join("a/b/c")).expect("directories");
        for (name, bytes) in [("a/x", 10), ("a/b/y", 20), ("a/b/c/z", 70_001)] {
            fs::write(dir.path().join(name), vec![0; bytes]).expect("file");
        }
        std::os::unix::fs::symlink("x", dir.path().join("a/link")).expect("symlink");
        let all = Statistics::of(dir.path()).expect("statistics");
        assert_eq!((all.file_bytes.values.len(), all.file_bytes.sum, all.others), (3, 70_031, 1));
        assert_eq!((all.file_bytes.at(0.5), all.file_bytes.at(1.0)), (20, 70_001));
        assert_eq!((all.dir_names.values.len(), all.dir_names.at(1.0)), (4, 3));
        // The link is a name like a file's.
        assert_eq!((all.dir_files.sum, all.dir_files.at(1.0)), (4, 2));
        assert_eq!((all.dir_dirs.sum, all.dir_dirs.at(1.0)), (3, 1));
        assert_eq!((all.dir_depth.at(1.0), all.file_depth.at(1.0)), (3, 4));
        assert!(all.file_bytes.top_share() > 0.99);
        // Values of so many digits count together, and the upper end was told.
        assert_eq!(all.file_bytes.at(0.9), 70_001);
    }
}
