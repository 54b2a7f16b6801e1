//! The usage of directory trees and the limits on them. Extended attributes of the directories hold both; the daemon answers them.

use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use varve::{Error, Result};
use varve_types::limits::XATTR_VALUE_BYTES_MAX;

use crate::mount_table::find_mount;

/// The attribute that holds the usage of a directory tree.
const USAGE: &str = "varve.usage";
/// The attribute that holds the limits on trees.
const LIMITS: &str = "varve.limits";
/// The action in messages about usage and limits.
const ASK: &str = "ask about";

/// What lies below a directory, without the directory. For any other file, the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Sum of the sizes of regular files and symbolic links.
    pub bytes: u64,
    /// Files of all types but directories; a file with several names counts once.
    pub files: u64,
    /// Directories.
    pub directories: u64,
}

/// A path and its usage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathUsage {
    /// The path, as it was reached.
    #[serde(with = "varve_engine::paths")]
    pub path: PathBuf,
    /// What lies below.
    #[serde(flatten)]
    pub usage: Usage,
}

/// The limits on a directory tree, and its usage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// The directory.
    #[serde(with = "varve_engine::paths")]
    pub path: PathBuf,
    /// The most bytes that may lie below.
    pub bytes_max: Option<u64>,
    /// The most files and directories that may lie below.
    pub inodes_max: Option<u64>,
    /// What lies below.
    #[serde(flatten)]
    pub usage: Usage,
}

/// Sets the limits on what may lie below the directory `path`; they replace its earlier limits.
pub fn set_quota(path: &Path, bytes: Option<u64>, inodes: Option<u64>) -> Result<()> {
    let words = [("bytes", bytes), ("inodes", inodes)];
    let words = words.iter().filter_map(|(name, limit)| Some(format!("{name}={}", (*limit)?)));
    let value = words.collect::<Vec<_>>().join(" ");
    rustix::fs::lsetxattr(path, LIMITS, value.as_bytes(), XattrFlags::empty())
        .map_err(|error| refused("set limits on", path, error))
}

/// Removes the limits of the directory `path`.
pub fn clear_quota(path: &Path) -> Result<()> {
    rustix::fs::lremovexattr(path, LIMITS)
        .map_err(|error| refused("take the limits off", path, error))
}

/// The limits that apply to the directory `path`, and the limits of directories below it.
pub fn quotas(path: &Path) -> Result<Vec<Quota>> {
    let mut quotas: Vec<Quota> = match value(path, LIMITS) {
        Err(Errno::TOOBIG | Errno::RANGE) => quotas_in_parts(path)?,
        told => understand(path, told)?,
    };
    if let Some(mount) = find_mount(path)? {
        for quota in &mut quotas {
            let below = quota.path.strip_prefix("/").unwrap_or(&quota.path);
            quota.path = mount.dir.join(below);
        }
    }
    Ok(quotas)
}

/// Reads limits that do not fit into one attribute.
fn quotas_in_parts(path: &Path) -> Result<Vec<Quota>> {
    let mut quotas = Vec::new();
    loop {
        let part: Vec<Quota> = ask(path, &format!("{LIMITS}.{}", quotas.len()))?;
        if part.is_empty() {
            return Ok(quotas);
        }
        quotas.extend(part);
    }
}

/// The usage of `path`, without a walk.
pub fn usage(path: &Path) -> Result<Usage> {
    ask(path, USAGE)
}

/// The usage of `path` and of each directory at most `depth` levels below it; a directory comes after the ones that it contains. Takes
/// as long as listing the directories above that depth.
pub fn usage_by_directory(path: &Path, depth: u32) -> Result<Vec<PathUsage>> {
    let mut found = Vec::new();
    collect(path, depth, &mut found)?;
    Ok(found)
}

fn collect(path: &Path, depth: u32, found: &mut Vec<PathUsage>) -> Result<()> {
    let usage = usage(path)?;
    if depth > 0 && usage.directories > 0 {
        for dir in directories_in(path)? {
            collect(&dir, depth - 1, found)?;
        }
    }
    found.push(PathUsage { path: path.to_path_buf(), usage });
    Ok(())
}

/// The directories in `path`, by name.
fn directories_in(path: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Error::io("list", path, &error);
    let mut dirs = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_type().map_err(failed)?.is_dir() {
            dirs.push(entry.path());
        }
    }
    dirs.sort();
    Ok(dirs)
}

/// The attribute `name` of `path`, whose value is JSON.
fn ask<T: DeserializeOwned>(path: &Path, name: &str) -> Result<T> {
    understand(path, value(path, name))
}

fn value(path: &Path, name: &str) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0_u8; XATTR_VALUE_BYTES_MAX];
    let length = rustix::fs::lgetxattr(path, name, &mut value[..])?;
    value.truncate(length);
    Ok(value)
}

fn understand<T: DeserializeOwned>(path: &Path, told: rustix::io::Result<Vec<u8>>) -> Result<T> {
    let told = told.map_err(|error| refused(ASK, path, error))?;
    serde_json::from_slice(&told).map_err(|error| {
        Error::not_understood(&format!("the answer about {}", path.display()), error)
    })
}

/// The error for a daemon that gives no answer about `path`.
fn refused(action: &str, path: &Path, error: Errno) -> Error {
    match error {
        Errno::OPNOTSUPP | Errno::NODATA | Errno::NOSYS => {
            Error::failed(format!("{} is not on a Varve mount", path.display())).hint(
                match action {
                    ASK => "`findmnt -t fuse.varve` lists the mounts; elsewhere use du(1)",
                    _ => "`findmnt -t fuse.varve` lists the mounts",
                },
            )
        }
        Errno::PERM => Error::io(action, path, &error.into())
            .hint("only root and the user who mounted may set limits"),
        Errno::NOTDIR => Error::io(action, path, &error.into())
            .hint("limits apply to directories, and to all that lies below them: name a directory"),
        error => Error::io(action, path, &error.into()),
    }
}
