//! What a mount is like now: `mount -o remount` changes it without a word to who serves it.

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
    known: Mutex<Known>,
}

/// What was last read of it.
#[derive(Debug)]
struct Known {
    /// The mount table, which tells by poll(2) that it has changed since it was opened.
    table: File,
    mount: MountPoint,
}

impl MountWatch {
    /// The mount of `source` on `dir`; `None` if it is not in the mount table.
    pub fn find(dir: &Path, source: &OsStr) -> io::Result<Option<MountWatch>> {
        let (table, mounts) = read()?;
        let is_it = |mount: &MountPoint| mount.dir == dir && mount.source == source;
        let found = mounts.into_iter().rfind(is_it);
        Ok(found
            .map(|mount| MountWatch { id: mount.id, known: Mutex::new(Known { table, mount }) }))
    }

    /// Its id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What it is like now; what it was last if it is gone, or the kernel does not tell.
    pub fn now(&self) -> MountPoint {
        let mut known = self.known.lock();
        if has_changed(&known.table) {
            match read() {
                Ok((table, mounts)) => {
                    known.table = table;
                    if let Some(mount) = mounts.into_iter().find(|mount| mount.id == self.id) {
                        known.mount = mount;
                    }
                }
                Err(error) => {
                    log::warn!("the flags of a mount are taken for what they were: {error}")
                }
            }
        }
        known.mount.clone()
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
