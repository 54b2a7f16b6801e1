//! Unmounting, and waiting until the store is free again.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use varve_fuse::{MountPoint, UnmountMode};

use crate::store;
use crate::{Error, Result};

/// How long a daemon may take to write back and let go.
const RELEASE_WAIT_MAX: Duration = Duration::from_secs(120);

/// How often to ask whether it has.
const RELEASE_POLL: Duration = Duration::from_millis(10);

/// The Varve mount that `path` is on: mounted there or above. `None` if there is none.
pub fn find_mount(path: &Path) -> Result<Option<MountPoint>> {
    let mounts = varve_fuse::find_mounts()
        .map_err(|error| Error::io("read", Path::new("/proc/self/mountinfo"), &error))?;
    // A mount whose daemon has died cannot be resolved, but its name can still be compared.
    let path = path
        .canonicalize()
        .or_else(|_| std::path::absolute(path))
        .map_err(|error| Error::io("find", path, &error))?;
    // Of several on one directory the last one covers the others.
    Ok(mounts
        .into_iter()
        .filter(|mount| path.starts_with(&mount.dir))
        .max_by_key(|mount| mount.dir.as_os_str().len()))
}

/// Unmounts `dir` and, unless `mode` is lazy, waits until the daemon has closed the store. Returns the
/// mount that is gone.
pub fn unmount_and_wait(dir: &Path, mode: UnmountMode) -> Result<MountPoint> {
    let mount = find_mount(dir)?.filter(|mount| is_at(mount, dir)).ok_or_else(|| {
        Error::failed(format!("no Varve store is mounted on {}", dir.display()))
            .hint("`findmnt -t fuse.varve` lists the mounts")
    })?;
    let unmounted = super::views::unmount_below(&mount.dir, mode)
        .and_then(|()| varve_fuse::unmount(&mount.dir, mode));
    match unmounted {
        // Nobody gets to the mounts of views through a dead mount; they go with it.
        Err(_) if varve_fuse::is_dead(&mount.dir) => {
            varve_fuse::unmount(&mount.dir, UnmountMode::Force)?
        }
        unmounted => unmounted?,
    }
    if mode == UnmountMode::Lazy {
        return Ok(mount);
    }
    let store = Path::new(&mount.source);
    let begin = Instant::now();
    while let Some(holder) = store::holder(store).unwrap_or(None) {
        // Mounted a second time meanwhile, or by a program that only looks: not what was unmounted.
        if holder.mount_point.as_deref() != Some(mount.dir.as_path()) {
            break;
        }
        if begin.elapsed() > RELEASE_WAIT_MAX {
            return Err(Error::failed(format!(
                "{} is unmounted, but {} has not closed it in {} seconds",
                store.display(),
                holder.describe(),
                RELEASE_WAIT_MAX.as_secs()
            ))
            .hint("programs may still have files open on it; the log is varve.log in the store"));
        }
        thread::sleep(RELEASE_POLL);
    }
    Ok(mount)
}

fn is_at(mount: &MountPoint, dir: &Path) -> bool {
    let same = |path: std::io::Result<std::path::PathBuf>| path.is_ok_and(|path| path == mount.dir);
    same(dir.canonicalize()) || same(std::path::absolute(dir))
}
