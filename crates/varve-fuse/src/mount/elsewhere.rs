//! Mounts that stay when the same is unmounted here.
//!
//! A file system ends with its last mount. The same may be bound to other places, and mounts are copied whenever a process gets a mount
//! namespace of its own. A copy goes along with what it was copied from if it gets what is mounted and unmounted there (its
//! groups, mount_namespaces(7)); all others stay, and whoever works there goes on.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io;
use std::path::PathBuf;

use super::table::{MountPoint, parse};

/// Such a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Where it is mounted here.
    pub place: PathBuf,
    /// A process that sees it elsewhere.
    pub process: u32,
    /// Where that sees it.
    pub dir: PathBuf,
}

impl fmt::Display for Elsewhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Elsewhere { place, process, dir } = self;
        let (place, dir) = (place.display(), dir.display());
        write!(f, "{place} is also mounted on {dir}, as process {process} sees it")
    }
}

/// The processes in whose mount namespaces, beside this process's, a FUSE connection is mounted ([`MountPoint::connection`]), and where. What
/// this process may not look at is passed over.
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

/// All processes, each with its directory in proc(5).
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

/// Finds a mount that stays if those on `places` are unmounted. What this process may not look at is passed over.
pub fn seen_elsewhere(places: &[PathBuf]) -> io::Result<Option<Elsewhere>> {
    find(places, |_, _| true)
}

/// The same without copies that processes have at the same place, as whoever gets a mount namespace has of all that is mounted.
pub fn bound_elsewhere(places: &[PathBuf]) -> io::Result<Option<Elsewhere>> {
    find(places, |asked, copy| asked.dir != copy.dir)
}

/// Finds such a mount; of those in other namespaces one that `counts` beside the one that was asked about.
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
