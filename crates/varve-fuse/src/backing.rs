//! Passthrough: which open files the kernel reads and writes without this program.
//!
//! The kernel ties the choice to the inode, not to the open: all files that are open on an inode at one time either
//! go through its page cache, or pass straight to the same backing file. An open that mixes the two fails with EIO.
//! So the table keeps, for each inode with open files, their number and the backing file that they share, if any. The
//! first open chooses and later ones follow.
//!
//! ```text
//!            open, file below           last release
//! (absent) ---------------------> Straight ----------> (absent)
//! (absent) ---------------------> Cached   ----------> (absent)
//!            open, anything else       last release
//! ```
//!
//! The kernel leaves a mode before it sends the last RELEASE, and enters it after it has received the reply to OPEN.
//! So an entry of the table lives a little longer than the kernel's mode, never shorter. It never lives longer than
//! the file system's handle: the file system gets a RELEASE after the table, and may use another object for the file
//! from then on. If the file system must see what is written to a file, that file goes through the cache, whatever
//! the table says.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use varve_types::InodeId;

use crate::device::{BackingFile, Device};
use crate::handover::OpenInode;

const SHARDS: usize = 16;

/// How an open file is served.
#[derive(Debug)]
pub(crate) enum Route {
    /// Through the page cache of the kernel and this program.
    Cached,
    /// By the kernel alone.
    Straight(Arc<BackingFile>),
}

#[derive(Debug)]
struct OpenFiles {
    count: u64,
    backing: Option<Arc<BackingFile>>,
}

/// The open files of a session by inode.
#[derive(Debug)]
pub(crate) struct BackingTable {
    shards: [Mutex<HashMap<InodeId, OpenFiles>>; SHARDS],
    agreed: bool,
    registers: AtomicBool,
}

impl BackingTable {
    /// A table without open files. Unless the kernel has `agreed` to passthrough, every file is served through the
    /// cache and the table counts nothing.
    pub(crate) fn new(agreed: bool) -> BackingTable {
        BackingTable {
            shards: std::array::from_fn(|_| Mutex::new(HashMap::new())),
            agreed,
            registers: AtomicBool::new(true),
        }
    }

    /// Returns the table of a session that continues with the inodes `open` on the connection of `device`.
    pub(crate) fn restore(agreed: bool, device: &Device, open: &[OpenInode]) -> BackingTable {
        let table = BackingTable::new(agreed);
        for inode in open {
            let ino = InodeId::new(inode.ino);
            let id = inode.backing.and_then(|id| i32::try_from(id).ok());
            let backing = id.map(|id| Arc::new(device.registered(id)));
            table.shard(ino).lock().insert(ino, OpenFiles { count: inode.count, backing });
        }
        table
    }

    /// Returns the open inodes, and leaves their backing files registered. REQUIRES: no request is under way.
    pub(crate) fn leave(self) -> Vec<OpenInode> {
        let all = self.shards.into_iter().flat_map(Mutex::into_inner);
        all.map(|(ino, OpenFiles { count, backing })| {
            // Only a request under way holds another reference.
            let id = backing.and_then(Arc::into_inner).map(BackingFile::leave);
            let backing = id.and_then(|id| u32::try_from(id).ok());
            OpenInode { ino: ino.get(), count, backing }
        })
        .collect()
    }

    fn shard(&self, ino: InodeId) -> &Mutex<HashMap<InodeId, OpenFiles>> {
        &self.shards[(ino.get() % SHARDS as u64) as usize]
    }

    /// Counts one more open file of `ino` and returns how to serve it. `may_be_straight` says whether the file may
    /// pass straight to a backing file. `register` registers the backing file with the kernel. It is called only for
    /// the first open file of the inode; if it fails, the file is served through the cache.
    pub(crate) fn opened(
        &self,
        ino: InodeId,
        may_be_straight: bool,
        register: impl FnOnce() -> Option<io::Result<BackingFile>>,
    ) -> Route {
        if !self.agreed {
            return Route::Cached;
        }
        let mut shard = self.shard(ino).lock();
        let files = match shard.entry(ino) {
            Entry::Occupied(files) => {
                let files = files.into_mut();
                if !may_be_straight {
                    files.backing = None;
                }
                files
            }
            Entry::Vacant(place) => {
                let registers = may_be_straight && self.registers.load(Ordering::Relaxed);
                let registered = if registers { register() } else { None };
                let backing = registered.and_then(|registered| self.accept(registered));
                place.insert(OpenFiles { count: 0, backing })
            }
        };
        files.count += 1;
        files.backing.clone().map_or(Route::Cached, Route::Straight)
    }

    /// Takes back one open file of `ino`. With the last one the kernel forgets the backing file.
    pub(crate) fn released(&self, ino: InodeId) {
        if !self.agreed {
            return;
        }
        let mut shard = self.shard(ino).lock();
        if let Entry::Occupied(mut files) = shard.entry(ino) {
            files.get_mut().count -= 1;
            if files.get().count == 0 {
                files.remove();
            }
        }
    }

    fn accept(&self, registered: io::Result<BackingFile>) -> Option<Arc<BackingFile>> {
        match registered {
            Ok(backing) => Some(Arc::new(backing)),
            Err(err) => {
                // EPERM: this needs CAP_SYS_ADMIN. ELOOP: the store lies on a stacked file system. Neither changes
                // while the file system is mounted.
                if matches!(err.raw_os_error(), Some(libc::EPERM | libc::ELOOP | libc::EOPNOTSUPP))
                {
                    self.registers.store(false, Ordering::Relaxed);
                }
                log::debug!("no passthrough: {err}");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};

    use super::*;

    /// A file that was opened while the last RELEASE of straight ones was under way was straight, though the file system
    /// had to see its writes: what a snapshot saw of it changed.
    #[test]
    fn what_must_not_be_straight_never_is() {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty()).unwrap();
        let (device, table) = (Device::new(null), BackingTable::new(true));
        let (ino, register) = (InodeId::new(20), || Some(Ok(device.registered(7))));
        let is_straight =
            |may_be| matches!(table.opened(ino, may_be, register), Route::Straight(_));
        assert!(is_straight(true) && is_straight(true));
        table.released(ino);
        assert!(!is_straight(false), "the last straight one is about to go");
        table.released(ino);
        assert!(!is_straight(true), "one that goes through the cache is there");
        table.released(ino);
        table.released(ino);
        assert!(is_straight(true));
        table.released(ino);
        assert!(!is_straight(false) && table.leave().len() == 1);
    }
}
