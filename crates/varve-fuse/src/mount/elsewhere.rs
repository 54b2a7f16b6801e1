//! Finds other mounts of a file system, which stay when it is unmounted here.
//!
//! A file system ends with its last mount. It may be bound to other directories, and all mounts are copied when a
//! process gets a mount namespace of its own. A copy is unmounted with its original if both are in one peer group
//! (mount_namespaces(7)). All other copies stay, and programs go on working there.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::path::PathBuf;

use super::table::{MountPoint, parse};

/// A mount that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The directory where the file system is mounted here.
    pub place: PathBuf,
    /// A process that sees it on another directory.
    pub process: u32,
    /// The directory where that process sees it.
    pub dir: PathBuf,
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Elsewhere { place, process, dir } = self;
        let (place, dir) = (place.display(), dir.display());
        write!(f, "{place} is also mounted on {dir}, as process {process} sees it")
    }
}

/// Returns the processes in whose mount namespaces a FUSE connection is mounted ([`MountPoint::connection`]), with
/// the directories. Skips the namespace of this process, and processes that it may not inspect.
#[allow(clippy::disallowed_methods, reason = "processes and mounts belong to the machine")]
pub fn copies_of(connection: u32) -> io::Result<Vec<(u32, PathBuf)>> {
    let mut places = HashMap::from([(std::fs::read_link("/proc/self/ns/mnt")?, None)]);
    let mut copies = Vec::new();
    for (process, proc) in processes()? {
        let Ok(namespace) = std::fs::read_link(proc.join("ns/mnt")) else { continue };
        let place = places.entry(namespace).or_insert_with(|| {
            let table = std::fs::read(proc.join("mountinfo")).unwrap_or_default();
            parse(&table).into_iter().find(|mount| mount.connection == connection)
        });
        copies.extend(place.as_ref().map(|mount| (process, mount.dir.clone())));
    }
    Ok(copies)
}

/// Returns all processes, each with its directory in proc(5).
#[allow(clippy::disallowed_methods, reason = "processes belong to the machine")]
fn processes() -> io::Result<Vec<(u32, PathBuf)>> {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc")? {
        let process = process?;
        let id = process.file_name().to_str().and_then(|name| name.parse().ok());
        found.extend(id.map(|id| (id, process.path())));
    }
    Ok(found)
}

/// Finds a mount that stays if the mounts on `places` are unmounted. Skips processes that this process may not
/// inspect.
pub fn seen_elsewhere(places: &[PathBuf]) -> io::Result<Option<Elsewhere>> {
    find(places, |_, _| true)
}

/// Finds such a mount as [`seen_elsewhere`] does, but ignores copies on the same directory, which every process with
/// a mount namespace of its own has.
pub fn bound_elsewhere(places: &[PathBuf]) -> io::Result<Option<Elsewhere>> {
    find(places, |asked, copy| asked.dir != copy.dir)
}

/// Finds such a mount. A mount in another namespace must satisfy `counts`, which gets the mount here and the copy.
#[allow(clippy::disallowed_methods, reason = "processes and mounts belong to the machine")]
fn find(
    places: &[PathBuf],
    counts: impl Fn(&MountPoint, &MountPoint) -> bool,
) -> io::Result<Option<Elsewhere>> {
    let own = parse(&std::fs::read("/proc/self/mountinfo")?);
    let asked: Vec<&MountPoint> = own.iter().filter(|mount| places.contains(&mount.dir)).collect();
    if asked.is_empty() {
        return Ok(None);
    }
    let found = |asked: &MountPoint, other: &MountPoint, process| Elsewhere {
        place: asked.dir.clone(),
        process,
        dir: other.dir.clone(),
    };
    let same = |one: &MountPoint, other: &MountPoint| one.connection == other.connection;
    for asked in &asked {
        if let Some(other) = own.iter().find(|other| same(asked, other) && other.id != asked.id) {
            return Ok(Some(found(asked, other, std::process::id())));
        }
    }
    let mut known = HashSet::from([std::fs::read_link("/proc/self/ns/mnt")?]);
    for (id, proc) in processes()? {
        let Ok(namespace) = std::fs::read_link(proc.join("ns/mnt")) else { continue };
        if known.contains(&namespace) {
            continue;
        }
        let Ok(table) = std::fs::read(proc.join("mountinfo")) else { continue };
        known.insert(namespace);
        for other in parse(&table) {
            let goes_along =
                |asked: &MountPoint| asked.peers.iter().any(|group| other.peers.contains(group));
            let stays = |asked: &&&MountPoint| {
                same(asked, &other) && !goes_along(asked) && counts(asked, &other)
            };
            if let Some(asked) = asked.iter().find(stays) {
                return Ok(Some(found(asked, &other, id)));
            }
        }
    }
    Ok(None)
}
