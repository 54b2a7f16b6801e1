//! What lies below directories, and limits on it.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use serde_json::{Value, json};

use super::{Place, names, pattern, semantics};
use crate::harness::{run, varve};

semantics!(tree_usage);

/// What lies below `dir` by a walk: bytes, files, directories.
fn walk(dir: &Path) -> (u64, u64, u64) {
    let (mut usage, mut seen, mut waiting) = ((0, 0, 0), HashSet::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = waiting.pop() {
        for name in names(&dir) {
            let path = dir.join(name);
            let meta = fs::symlink_metadata(&path).unwrap();
            if meta.is_dir() {
                usage.2 += 1;
                waiting.push(path);
            } else if seen.insert(meta.ino()) {
                usage.1 += 1;
                let counts = meta.is_file() || meta.is_symlink();
                usage.0 += if counts { meta.len() } else { 0 };
            }
        }
    }
    usage
}

/// Asserts what lies below `dir`, by a walk and, on a mount, by `varve du`.
#[track_caller]
fn holds(place: &Place, dir: &Path, expected: (u64, u64, u64)) {
    assert_eq!(walk(dir), expected);
    if place.is_varve() {
        let told = run(varve().args(["du", "--json"]).arg(dir)).stdout;
        let told: Value = serde_json::from_slice(&told).unwrap();
        let (bytes, files, directories) = expected;
        let path = dir.to_str().unwrap();
        let usage =
            json!({"path": path, "bytes": bytes, "files": files, "directories": directories});
        assert_eq!(told, json!([usage]));
    }
}

fn tree_usage(place: &Place) {
    let top = place.dir().join("top");
    let deep = top.join("a/b/c");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("small"), pattern(1, 300)).unwrap();
    fs::write(deep.join("large"), pattern(2, 300_000)).unwrap();
    symlink("small", deep.join("link")).unwrap();
    holds(place, &top, (300_305, 3, 3));
    holds(place, &deep, (300_305, 3, 0));
    // While a large file grows in the hands of a program.
    let large = OpenOptions::new().write(true).open(deep.join("large")).unwrap();
    large.write_all_at(&[7; 50], 300_000).unwrap();
    holds(place, &top, (300_355, 3, 3));
    large.set_len(100_000).unwrap();
    drop(large);
    holds(place, &top, (100_305, 3, 3));
    // A second name in the same tree counts nothing; a whole tree moves with what lies below it.
    fs::hard_link(deep.join("small"), top.join("again")).unwrap();
    holds(place, &top, (100_305, 3, 3));
    let other = place.dir().join("other");
    fs::create_dir(&other).unwrap();
    fs::remove_file(top.join("again")).unwrap();
    fs::rename(top.join("a/b"), other.join("b")).unwrap();
    holds(place, &top, (0, 0, 1));
    holds(place, &other, (100_305, 3, 2));
    place.remount();
    holds(place, &other, (100_305, 3, 2));
    holds(place, &place.dir(), (100_305, 3, 5));
    fs::remove_dir_all(&other).unwrap();
    holds(place, &place.dir(), (0, 0, 2));
}
