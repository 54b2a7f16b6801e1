//! What lies below the directories of a mount and the limits on it, as its daemon knows them: asked for, and set, by
//! attributes of the directories.

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
/// What is done to a path whose usage or limits are to be told.
const ASK: &str = "ask about";

/// What lies below a directory, itself not counted; of anything else, itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Sum of the sizes of regular files and symbolic links.
    pub bytes: u64,
    /// Files, and everything else that is no directory; one with several names counts once.
    pub files: u64,
    /// Directories.
    pub directories: u64,
}

/// A path and what lies below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathUsage {
    /// The path, as it was reached.
    #[serde(with = "varve_engine::paths")]
    pub path: PathBuf,
    /// What lies below.
    #[serde(flatten)]
    pub usage: Usage,
}

/// The limits on a directory tree, and how far they are used up.
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

/// Limits what may lie below the directory `path`, in place of what limits it had.
pub fn set_quota(path: &Path, bytes: Option<u64>, inodes: Option<u64>) -> Result<()> {
    let words = [("bytes", bytes), ("inodes", inodes)];
    let words = words.iter().filter_map(|(name, limit)| Some(format!("{name}={}", (*limit)?)));
    let value = words.collect::<Vec<_>>().join(" ");
    rustix::fs::lsetxattr(path, LIMITS, value.as_bytes(), XattrFlags::empty())
        .map_err(|error| refused("set limits on", path, error))
}

/// Takes the limits off the directory `path`.
pub fn clear_quota(path: &Path) -> Result<()> {
    rustix::fs::lremovexattr(path, LIMITS)
        .map_err(|error| refused("take the limits off", path, error))
}

/// The limits that hold for the directory `path`, and those below it.
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

/// Those of which there are more than an attribute can hold.
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

/// What lies below `path`, without a walk.
pub fn usage(path: &Path) -> Result<Usage> {
    ask(path, USAGE)
}

/// What lies below `path` and below each directory at most `depth` levels under it; what holds others comes after
/// them. Takes as long as it takes to list the directories above that depth.
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

/// The attribute `name` of `path`, which a daemon answers in JSON.
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

/// Why a daemon did not answer about `path`.
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
            .hint("limits are set by the superuser and by the user who mounted"),
        Errno::NOTDIR => Error::io(action, path, &error.into())
            .hint("limits are set on directories; they hold for all that lies below"),
        error => Error::io(action, path, &error.into()),
    }
}
