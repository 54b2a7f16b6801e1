//! Compares the usage that a file system reports for every directory with a walk of the model.
//!
//! A file with several names counts in the directory of one of them, which the file system chooses. So the usage of a
//! directory lies between the sum without and the sum with the files that also have names elsewhere. For the root it
//! is exact.

use std::collections::BTreeMap;

use varve_types::{FileName, InodeId};
use varve_vfs::{FileType, FsResult, TreeUsage, Vfs};

use super::op::TreePath;
use super::tree::TreeDump;

/// The least and the most that may lie below a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bounds {
    least: TreeUsage,
    most: TreeUsage,
}

/// Returns the directories of `expected` for which `fs` reports a wrong usage, one line each.
pub(super) fn differences(expected: &TreeDump, fs: &dyn Vfs) -> FsResult<Vec<String>> {
    let mut lines = Vec::new();
    for (path, node) in &expected.0 {
        if node.kind != FileType::Directory {
            continue;
        }
        let Bounds { least, most } = bounds(expected, path);
        let found = at_path(fs, path)?;
        let fits = |least: u64, found: u64, most: u64| (least..=most).contains(&found);
        if !fits(least.bytes, found.bytes, most.bytes)
            || !fits(least.files, found.files, most.files)
            || found.dirs != most.dirs
        {
            lines.push(format!("{path} holds {found:?}; expected {least:?} to {most:?}"));
        }
    }
    Ok(lines)
}

fn bounds(tree: &TreeDump, top: &TreePath) -> Bounds {
    let mut dirs = 0;
    // Files by their first path anywhere: size, names below the top, names in all.
    let mut files: BTreeMap<&TreePath, (u64, u32, u32)> = BTreeMap::new();
    let below = tree.0.iter().filter(|(path, _)| *path != top && path.is_within(top));
    for (_, node) in below {
        if node.kind == FileType::Directory {
            dirs += 1;
        } else {
            let counted = matches!(node.kind, FileType::Regular | FileType::Symlink);
            let size = if counted { node.size } else { 0 };
            files.entry(&node.first_path).or_insert((size, 0, node.nlink)).1 += 1;
        }
    }
    let sum =
        |with_shared: bool| {
            let counted = files.values().filter(|(_, below, all)| with_shared || below == all);
            counted.fold(TreeUsage { dirs, ..TreeUsage::default() }, |usage, (size, _, _)| {
                TreeUsage { bytes: usage.bytes + size, files: usage.files + 1, ..usage }
            })
        };
    Bounds { least: sum(false), most: sum(true) }
}

fn at_path(fs: &dyn Vfs, path: &TreePath) -> FsResult<TreeUsage> {
    let mut at = InodeId::ROOT;
    let mut taken = Vec::new();
    let mut found = Ok(());
    for name in &path.0 {
        let looked_up =
            FileName::new(name).map_err(Into::into).and_then(|name| fs.lookup(at, name));
        match looked_up {
            Ok(entry) => at = entry.attr.ino,
            Err(error) => {
                found = Err(error);
                break;
            }
        }
        taken.push(at);
    }
    let usage = found.and_then(|()| fs.usage(at));
    for ino in taken {
        fs.forget(ino, 1);
    }
    usage
}
