//! Unmounts, and waits until the daemon has closed the store.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use varve::store::{self, Holder};
use varve::{Error, Result};
use varve_fuse::{
    MountPoint, UnmountMode, copies_of, find_mounts, find_mounts_of, is_dead, unmount_that,
};

use crate::control::client::EndPromise;
use crate::error;
use crate::mount_source::{store_and_view, unmount_below};
use crate::mount_table::present_mount;
use crate::server_address::is_server;
use crate::socket;
use crate::target::Target;

/// How long a daemon may take to write back and to close the store.
const RELEASE_WAIT_MAX: Duration = Duration::from_secs(120);

/// After how long a message names the processes that keep the mount. Most daemons are done before.
const COPIES_AFTER: Duration = Duration::from_secs(1);

/// The most processes that are named.
const COPIES_TOLD_MAX: usize = 8;

/// How often to check whether the store is closed.
const RELEASE_POLL: Duration = Duration::from_millis(10);

/// What has become of a mount and its store.
#[derive(Debug)]
pub struct Unmounted {
    /// The mount that is gone.
    pub mount: MountPoint,
    /// Where else the store is mounted; it stays open then.
    pub elsewhere: Option<PathBuf>,
    /// Whether the store is closed; `None` if this process cannot see that, as the store was moved or is closed to its user.
    pub is_closed: Option<bool>,
}

/// Unmounts `dir` and, unless `mode` is lazy or the store is mounted elsewhere too, waits until the daemon has closed the store. Fails
/// as the daemon does.
pub fn unmount_and_wait(dir: &Path, mode: UnmountMode) -> Result<Unmounted> {
    let mount =
        present_mount(dir)?.filter(|mount| is_at(mount, dir)).ok_or_else(|| not_mounted(dir))?;
    // The holder of a dead mount's store may be a process that only examines it.
    let serving = holder(&mount).filter(|holder| holder.mount_point.is_some());
    let served_by = serving.and_then(|holder| holder.pid);
    // The promise must be asked for before the daemon ends.
    let mut end = match mode {
        UnmountMode::Lazy => None,
        UnmountMode::Plain | UnmountMode::Force => {
            Target::on(dir, &mount).ok().and_then(|target| EndPromise::ask(&target))
        }
    };
    let unmounted =
        unmount_below(&mount.dir, mode).and_then(|()| unmount_that(mount.id, &mount.dir, mode));
    match unmounted {
        // The mounts of views within a dead mount cannot be reached; they end with it.
        Err(_) if is_dead(&mount.dir) => unmount_that(mount.id, &mount.dir, UnmountMode::Force),
        unmounted => unmounted,
    }
    .map_err(error::not_unmounted)?;
    let elsewhere = match mode {
        UnmountMode::Lazy => None,
        UnmountMode::Plain | UnmountMode::Force => {
            wait_until_closed(&mount, served_by, end.as_mut())?
        }
    };
    let source = store_and_view(&mount.source).0;
    let is_seen = store::is_store(&source) || (is_server(source.as_os_str()) && end.is_some());
    let is_closed = match mode {
        UnmountMode::Lazy => Some(false),
        _ if elsewhere.is_some() => Some(false),
        _ => is_seen.then_some(true),
    };
    Ok(Unmounted { mount, elsewhere, is_closed })
}

/// The error for a directory that is no mount. It may be a store that is served.
fn not_mounted(dir: &Path) -> Error {
    let error = Error::failed(format!("no Varve store is mounted on {}", dir.display()));
    let served_by = match store::is_store(dir) && socket::is_in(dir, socket::CONTROL) {
        true => store::holder(dir).ok().flatten().filter(|holder| holder.mount_point.is_none()),
        false => None,
    };
    match served_by.and_then(|holder| holder.pid) {
        Some(pid) => error.hint(format!(
            "it is a store that process {pid} serves: `kill {pid}` ends that; clients unmount by `varve umount` on their \
             machines"
        )),
        None => error.hint("`findmnt -t fuse.varve` lists the mounts"),
    }
}

/// Waits until the process `served_by` has closed the store of `mount`, which is gone, and has sent the report that `end` promises.
/// Returns where else the store is mounted, if the process goes on.
fn wait_until_closed(
    mount: &MountPoint,
    served_by: Option<u32>,
    mut end: Option<&mut EndPromise>,
) -> Result<Option<PathBuf>> {
    let begin = Instant::now();
    let mut held_by = None;
    let mut ended = None;
    loop {
        // A later holder is not the daemon of the mount that was unmounted.
        let holder = holder(mount).filter(|holder| holder.pid == served_by);
        // If the storage fails, the holder cannot be read, and the daemon still closes the store.
        if holder.is_none() && (end.is_none() || ended.is_some()) {
            break;
        }
        if let Some(elsewhere) = elsewhere(mount, holder.as_ref()) {
            return Ok(Some(elsewhere));
        }
        if begin.elapsed() > RELEASE_WAIT_MAX {
            let describe = |holder: Holder| holder.describe();
            return Err(Error::failed(format!(
                "{} is unmounted, but {} has not closed it in {} seconds",
                Path::new(&mount.source).display(),
                holder.map_or_else(|| "its daemon".to_owned(), describe),
                RELEASE_WAIT_MAX.as_secs()
            ))
            .hint(match held_by.filter(|copies: &String| !copies.is_empty()) {
                Some(copies) => format!("end the programs there: {copies}"),
                None => {
                    "programs may still have files open on it; the log is varve.log in the store"
                        .to_owned()
                }
            }));
        }
        if held_by.is_none() && begin.elapsed() > COPIES_AFTER {
            let copies = copies(mount);
            if !copies.is_empty() {
                log::warn!("waiting for copies of the mount in other mount namespaces: {copies}");
            }
            held_by = Some(copies);
        }
        match end.as_deref_mut().filter(|_| ended.is_none()) {
            Some(end) => ended = end.hear(RELEASE_POLL),
            None => thread::sleep(RELEASE_POLL),
        }
    }
    let store = Path::new(&mount.source).display();
    ended.unwrap_or(Ok(())).map(|()| None).map_err(|error| {
        let text = format!("{store} is unmounted, but its daemon failed: {}", error.message());
        let hint = format!("check the storage; `varve fsck {store}` shows the state of the store");
        Error::failed(text).with_status(error.status()).hint(hint)
    })
}

/// The processes that have a copy of `mount` in their own mount namespaces, as text.
fn copies(mount: &MountPoint) -> String {
    let copies = copies_of(mount.connection).unwrap_or_default();
    let described = copies.iter().take(COPIES_TOLD_MAX).map(|(process, dir)| {
        let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        format!(
            "process {process} ({}) sees it at {}",
            name.trim_end().escape_debug(),
            dir.display()
        )
    });
    let more = copies.len().saturating_sub(COPIES_TOLD_MAX);
    let more = (more > 0).then(|| format!("{more} more"));
    described.chain(more).collect::<Vec<_>>().join(", ")
}

/// The process that has the store of `mount` open.
fn holder(mount: &MountPoint) -> Option<Holder> {
    store::holder(Path::new(&mount.source)).unwrap_or(None).filter(|holder| holder.pid.is_some())
}

/// Where `holder` still serves the store of `mount`: at another path of the same connection, or where it has mounted the store itself if
/// `mount` was dead. The path alone decides nothing, since a directory above may have been renamed. Dead mounts do not count.
fn elsewhere(mount: &MountPoint, holder: Option<&Holder>) -> Option<PathBuf> {
    let theirs = holder.and_then(|holder| holder.pid).map(find_mounts_of);
    let theirs = theirs.and_then(|mounts| mounts.ok());
    let mounts = find_mounts().unwrap_or_default().into_iter().chain(theirs.unwrap_or_default());
    let mut same = mounts.filter(|other| other.source == mount.source);
    let is_served = |other: &MountPoint| {
        let mounted = holder.and_then(|holder| holder.mount_point.as_ref());
        other.connection == mount.connection || mounted == Some(&other.dir)
    };
    same.find(|other| is_served(other) && !is_dead(&other.dir)).map(|other| other.dir)
}

fn is_at(mount: &MountPoint, dir: &Path) -> bool {
    let same = |path: std::io::Result<std::path::PathBuf>| path.is_ok_and(|path| path == mount.dir);
    same(dir.canonicalize()) || same(std::path::absolute(dir))
}
