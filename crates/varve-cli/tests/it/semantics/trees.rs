//! What lies below directories, and limits on it.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use serde_json::{Value, json};
use varve_testkit::Command;

use super::{Place, names, pattern, refused, refused_io, semantics};
use crate::harness::{run, varve};

semantics!(tree_usage, tree_limits);

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

fn tree_limits(place: &Place) {
    let top = place.dir().join("top");
    let dir = top.join("dir");
    fs::create_dir_all(&dir).unwrap();
    let file = File::create(dir.join("f")).unwrap();
    if !place.is_varve() {
        // The machine's own directories have no limits: what is refused below goes well there.
        file.write_all_at(&[1; 200_001], 0).unwrap();
        return;
    }
    run(varve().args(["quota", "set", "--bytes", "200000", "--inodes", "3"]).arg(&top));
    // Exactly the limit, and not a byte more, however it is asked for.
    file.write_all_at(&[1; 199_990], 0).unwrap();
    assert_eq!(file.write_at(&[2; 30], 199_990).unwrap(), 10, "as much as fits");
    refused_io(file.write_at(b"x", 200_000), Errno::DQUOT);
    refused_io(file.set_len(200_001), Errno::DQUOT);
    refused(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 200_001), Errno::DQUOT);
    file.write_all_at(b"over", 100).unwrap();
    file.set_len(100).unwrap();
    // Inodes.
    fs::write(dir.join("second"), "").unwrap();
    refused_io(fs::write(dir.join("third"), ""), Errno::DQUOT);
    refused_io(fs::create_dir(dir.join("third")), Errno::DQUOT);
    refused_io(symlink("x", dir.join("third")), Errno::DQUOT);
    fs::write(place.dir().join("outside"), "").unwrap();
    refused_io(fs::rename(place.dir().join("outside"), dir.join("third")), Errno::DQUOT);
    fs::hard_link(dir.join("f"), dir.join("again")).unwrap();
    refused_io(fs::hard_link(place.dir().join("outside"), dir.join("f2")), Errno::XDEV);
    // A whole tree that does not fit stays where it is.
    let tree = place.dir().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("large"), pattern(1, 199_901)).unwrap();
    fs::remove_file(dir.join("second")).unwrap();
    fs::remove_file(dir.join("again")).unwrap();
    run(varve().args(["quota", "set", "--bytes", "200000"]).arg(&top));
    refused_io(fs::rename(&tree, top.join("tree")), Errno::DQUOT);
    file.set_len(99).unwrap();
    fs::rename(&tree, top.join("tree")).unwrap();
    drop(file);
    place.remount();
    let told = run(varve().args(["quota", "show", "--json"]).arg(place.dir())).stdout;
    let told: Value = serde_json::from_slice(&told).unwrap();
    let expected = json!({"path": top.to_str().unwrap(), "bytes_max": 200_000, "inodes_max": null,
        "bytes": 200_000, "files": 2, "directories": 2});
    assert_eq!(told, json!([expected]));
    refused_io(
        OpenOptions::new().append(true).open(dir.join("f")).unwrap().write(b"x"),
        Errno::DQUOT,
    );
    // Nobody else may set them; and without them everything fits.
    let as_other = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(varve().get_program())
        .args(["quota", "clear"])
        .arg(&top)
        .output()
        .unwrap();
    assert!(!as_other.status.success());
    run(varve().args(["quota", "clear"]).arg(&top));
    OpenOptions::new().append(true).open(dir.join("f")).unwrap().write_all(b"x").unwrap();
    holds(place, &top, (200_001, 2, 2));
}
