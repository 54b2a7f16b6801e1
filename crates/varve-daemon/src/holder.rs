//! The process that has a store open, as its lock and the mount table show it.
//!
//! A daemon that serves a mount answers requests; a command that needs the store for itself must wait until it is unmounted. A daemon
//! whose mount is gone closes the store, and commands wait for that.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use varve::store::{GLANCE, Holder, machine_to_read, wait_until_free};
use varve::{Error, Result};
use varve_engine::StoreError;
use varve_fs::Superblock;
use varve_fuse::MountPoint;

use crate::mount_source::store_and_view;
use crate::mount_table::find_mount;
use crate::socket;

/// How long a daemon whose mount is gone may take to close its store.
const CLOSING_WAIT_MAX: Duration = Duration::from_secs(10);

/// How long such a daemon may go on to listen before it counts as serving: programs may have files open on a mount that was detached
/// under them.
const LISTENING_WAIT_MAX: Duration = Duration::from_secs(1);

/// The superblock of the store in `dir`. The error for a directory on a mount names the store.
pub fn superblock(dir: &Path) -> Result<Superblock> {
    Superblock::read(&*machine_to_read(dir)?, dir).map_err(unopened)
}

/// Fails unless `dir` is a store that no process has open. Waits for a daemon that closes it.
pub fn require_offline(dir: &Path) -> Result<()> {
    Superblock::read_or_copy(&*machine_to_read(dir)?, dir).map_err(unopened)?;
    require_free(dir)
}

/// The error for a superblock that cannot be read. A directory that is no store may lie on the mount of one.
fn unopened(error: StoreError) -> Error {
    let StoreError::NotAStore { path } = &error else { return error.into() };
    let Ok(Some(mount)) = find_mount(path) else { return error.into() };
    let (store, _) = store_and_view(&mount.source);
    let (path, store) = (path.display(), store.display());
    Error::failed(format!("{path} is no store: it lies on a mount of {store}"))
        .hint("unmount it, and name the store itself")
}

/// Fails if a process has the store in `dir` open. Waits for a process that was just killed, and for a daemon that writes back after
/// umount(8), which does not wait for it.
pub fn require_free(dir: &Path) -> Result<()> {
    wait(dir, |_| false)?.map_or(Ok(()), |in_use| Err(in_use.refusal(dir)))
}

/// Whether a daemon serves the store in `dir` and answers requests. If not, the store can be opened. Waits like [`require_free`] for a
/// daemon that closes the store.
pub(crate) fn is_served(dir: &Path) -> Result<bool> {
    let serves = |in_use: &InUse| match in_use {
        // Programs have files open on a mount that was detached under them.
        InUse { closes: true, waited, .. } => {
            *waited >= LISTENING_WAIT_MAX && socket::is_in(dir, socket::CONTROL)
        }
        InUse { holder, .. } => holder.mount_point.is_some() || socket::is_in(dir, socket::CONTROL),
    };
    match wait(dir, serves)? {
        None => Ok(false),
        Some(in_use) if serves(&in_use) => Ok(true),
        Some(in_use) => Err(in_use.refusal(dir)),
    }
}

/// The mount of `store` by its `holder`, if this process sees it.
pub(crate) fn seen_mount(holder: &Holder, store: &Path) -> io::Result<Option<MountPoint>> {
    let mounts = varve_fuse::find_mounts()?;
    Ok(mount_among(holder, &mounts, store).cloned())
}

/// The commands that enter and unmount a mount that only the process `pid` sees.
pub fn words_of_private(pid: u32) -> String {
    format!("`nsenter --preserve-credentials -U -m -t {pid}` enters, `kill {pid}` unmounts")
}

/// A process that has a store open.
#[derive(Clone)]
struct InUse {
    holder: Holder,
    /// Its mount is gone.
    closes: bool,
    /// How long this process has waited for it.
    waited: Duration,
}

/// Waits for a limited time until no process has the store in `dir` open. Returns at once for a holder that `accepts` agrees to.
fn wait(dir: &Path, accepts: impl Fn(&InUse) -> bool) -> Result<Option<InUse>> {
    let mut last = None;
    let left = wait_until_free(dir, |holder, waited| {
        let closes = is_closing(holder, dir);
        let in_use = InUse { holder: holder.clone(), closes, waited };
        let wait_max = if closes { CLOSING_WAIT_MAX } else { GLANCE };
        let gives_up = waited >= wait_max || accepts(&in_use);
        last = Some(in_use);
        gives_up
    })?;
    Ok(left.and(last))
}

/// Whether the mount of `store` by `holder` is gone, so that it closes the store. A mount that only the holder and its children see
/// is not gone.
fn is_closing(holder: &Holder, store: &Path) -> bool {
    if holder.mount_point.is_none() || store.canonicalize().is_err() {
        return false;
    }
    let mounts = match holder.pid.map(varve_fuse::find_mounts_of) {
        Some(Ok(mounts)) => Ok(mounts),
        // The process belongs to another user, or has just ended.
        _ => varve_fuse::find_mounts(),
    };
    mounts.is_ok_and(|mounts| mount_among(holder, &mounts, store).is_none())
}

/// The mount of `store` by `holder` among `mounts`. The directory may have been renamed meanwhile, the store may have another path, and
/// another store may be mounted there by now.
fn mount_among<'a>(
    holder: &Holder,
    mounts: &'a [MountPoint],
    store: &Path,
) -> Option<&'a MountPoint> {
    let is_its = |mount: &&MountPoint| {
        let source = Path::new(&mount.source);
        let is_of_store = store.canonicalize().is_ok_and(|store| source == store);
        let is_there = holder.mount_point.as_ref() == Some(&mount.dir);
        (is_of_store, is_there && !are_two(source, store))
    };
    mounts.iter().filter(|mount| is_its(mount) != (false, false)).max_by_key(is_its)
}

/// Whether two paths certainly lead to two directories.
fn are_two(one: &Path, other: &Path) -> bool {
    let id = |path| std::fs::metadata(path).ok().map(|stat| (stat.dev(), stat.ino()));
    id(one).zip(id(other)).is_some_and(|(one, other)| one != other)
}

impl InUse {
    /// The error for a command that needs the store in `dir` for itself.
    fn refusal(&self, dir: &Path) -> Error {
        let text = format!("{} is in use by {}", dir.display(), self.holder.describe());
        let error = Error::failed(text);
        match &self.holder.mount_point {
            Some(mount_point) if self.closes => error.hint(format!(
                "{} is unmounted: wait until the store is closed, when the last program that uses its files is done",
                mount_point.display()
            )),
            Some(mount_point) => {
                error.hint(match (self.holder.pid, seen_mount(&self.holder, dir)) {
                    (Some(pid), Ok(None)) => {
                        format!("only process {pid} sees the mount: {}", words_of_private(pid))
                    }
                    (_, seen) => {
                        let seen = seen.ok().flatten().map(|mount| mount.dir);
                        let seen = seen.as_ref().unwrap_or(mount_point);
                        format!("`varve umount {}` first", seen.display())
                    }
                })
            }
            None if socket::is_in(dir, socket::CONTROL) => error.hint(match self.holder.pid {
                Some(pid) => format!("`kill {pid}` stops the server; its mounts wait until it is back"),
                None => "stop the server; its mounts wait until it is back".to_owned(),
            }),
            None => error.hint("wait for that process or stop it"),
        }
    }
}
