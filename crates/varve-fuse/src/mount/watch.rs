//! The current flags of a mount. `mount -o remount` changes them without a notice to the server of the mount.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::table::{MountPoint, parse};

/// A mount that this process serves.
#[derive(Debug)]
pub struct MountWatch {
    id: u64,
    last_read: Mutex<LastRead>,
}

/// What was last read about the mount.
#[derive(Debug)]
struct LastRead {
    /// The mount table. By poll(2) it reports that it has changed since it was opened.
    table: File,
    mount: MountPoint,
}

impl MountWatch {
    /// Finds the mount of `source` on `dir`; `None` if it is not in the mount table.
    pub fn find(dir: &Path, source: &OsStr) -> io::Result<Option<MountWatch>> {
        let (table, mounts) = read()?;
        let is_it = |mount: &MountPoint| mount.dir == dir && mount.source == source;
        let found = mounts.into_iter().rfind(is_it);
        Ok(found.map(|mount| MountWatch {
            id: mount.id,
            last_read: Mutex::new(LastRead { table, mount }),
        }))
    }

    /// Returns the id of the mount.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the mount as it is now, or as it was last if it is gone or the kernel's table cannot be read.
    pub fn now(&self) -> MountPoint {
        let mut last_read = self.last_read.lock();
        if has_changed(&last_read.table) {
            match read() {
                Ok((table, mounts)) => {
                    last_read.table = table;
                    if let Some(mount) = mounts.into_iter().find(|mount| mount.id == self.id) {
                        last_read.mount = mount;
                    }
                }
                Err(error) => {
                    log::warn!(
                        "cannot read the mount table, so the last known flags of a mount stay in use: {error}"
                    )
                }
            }
        }
        last_read.mount.clone()
    }
}

fn has_changed(table: &File) -> bool {
    let mut watched = [PollFd::new(table, PollFlags::PRI)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let polled = poll(&mut watched, Some(&at_once));
    polled.is_err() || watched[0].revents().intersects(PollFlags::PRI | PollFlags::ERR)
}

#[allow(clippy::disallowed_methods, reason = "the mount table belongs to the machine")]
fn read() -> io::Result<(File, Vec<MountPoint>)> {
    let mut table = File::open("/proc/self/mountinfo")?;
    let mut bytes = Vec::new();
    table.read_to_end(&mut bytes)?;
    Ok((table, parse(&bytes)))
}
