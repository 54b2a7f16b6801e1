//! The inodes that stay looked up for clients, who may have handles of any inode.
//!
//! A file system knows where an inode is as long as a front end holds a lookup of it. NFS clients do not say which
//! inodes they still use. So the inodes of the latest requests stay looked up once, at most [`LOOKED_UP_MAX`]. Any
//! other inode is found again by its handle: in the directory where it was found first, or else by its number, which
//! may take a walk over the whole file system. Only one such walk runs at a time; another request that needs one
//! fails as `TryAgain`.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use varve_types::{FileName, InodeId};
use varve_vfs::{Entry, FsError, FsResult, Vfs};

use crate::handle::FileHandle;

/// The most inodes that stay looked up.
const LOOKED_UP_MAX: usize = 1 << 16;
/// The most removed inodes that are remembered, so that no walk looks for them.
const GONE_MAX: usize = 1 << 12;

/// Numbers in the order of their last use, at most `max`.
struct Recent {
    max: usize,
    stamps: HashMap<u64, u64>,
    /// Each use of a number with its stamp; entries whose stamp is not the latest are skipped.
    queue: VecDeque<(u64, u64)>,
    next: u64,
}

impl Recent {
    fn new(max: usize) -> Recent {
        Recent { max, stamps: HashMap::new(), queue: VecDeque::new(), next: 0 }
    }

    /// Returns whether `number` is among them, and counts that as a use.
    fn touch(&mut self, number: u64) -> bool {
        let next = self.next;
        let Some(stamp) = self.stamps.get_mut(&number) else { return false };
        *stamp = next;
        self.note(number);
        true
    }

    fn note(&mut self, number: u64) {
        self.queue.push_back((number, self.next));
        self.next += 1;
        if self.queue.len() > 2 * self.max {
            let stamps = &self.stamps;
            self.queue.retain(|(number, stamp)| stamps.get(number) == Some(stamp));
        }
    }

    /// Adds a number that is not there, and returns the number that it displaces.
    fn insert(&mut self, number: u64) -> Option<u64> {
        self.stamps.insert(number, self.next);
        self.note(number);
        if self.stamps.len() <= self.max {
            return None;
        }
        while let Some((oldest, stamp)) = self.queue.pop_front() {
            if self.stamps.get(&oldest) == Some(&stamp) {
                self.stamps.remove(&oldest);
                return Some(oldest);
            }
        }
        None
    }

    fn remove(&mut self, number: u64) -> bool {
        self.stamps.remove(&number).is_some()
    }
}

/// The inodes that are looked up, and the latest that were found to be gone.
pub(crate) struct LookedUp {
    inodes: Mutex<Recent>,
    gone: Mutex<Recent>,
    search: Mutex<()>,
}

impl LookedUp {
    pub(crate) fn new() -> LookedUp {
        LookedUp::of_size(LOOKED_UP_MAX)
    }

    fn of_size(max: usize) -> LookedUp {
        LookedUp {
            inodes: Mutex::new(Recent::new(max)),
            gone: Mutex::new(Recent::new(GONE_MAX)),
            search: Mutex::new(()),
        }
    }

    /// Takes over a lookup that the file system has counted.
    pub(crate) fn note(&self, vfs: &dyn Vfs, ino: InodeId) {
        let mut inodes = self.inodes.lock();
        let superfluous = match inodes.touch(ino.get()) {
            true => Some(ino),
            false => inodes.insert(ino.get()).map(InodeId::new),
        };
        drop(inodes);
        if let Some(ino) = superfluous {
            vfs.forget(ino, 1);
        }
    }

    /// Looks up the inode of a handle unless it is looked up already.
    pub(crate) fn recall(&self, vfs: &dyn Vfs, handle: &FileHandle) -> FsResult<()> {
        if self.inodes.lock().touch(handle.ino.get()) {
            return Ok(());
        }
        self.find(vfs, handle)
    }

    /// Looks for the inode of a handle again, after the file system did not find it where it was.
    pub(crate) fn find_again(&self, vfs: &dyn Vfs, handle: &FileHandle) -> FsResult<()> {
        if self.inodes.lock().remove(handle.ino.get()) {
            vfs.forget(handle.ino, 1);
        }
        self.find(vfs, handle)
    }

    fn find(&self, vfs: &dyn Vfs, handle: &FileHandle) -> FsResult<()> {
        let ino = handle.ino;
        if self.gone.lock().touch(ino.get()) {
            return Err(FsError::Stale);
        }
        // An inode with a row of its own is found without a search.
        let found = match vfs.getattr(ino) {
            Ok(_) => vfs.lookup_inode(ino),
            Err(FsError::Stale) => match handle.parent.map(|dir| in_directory(vfs, dir, ino)) {
                Some(Ok(Some(entry))) => Ok(entry),
                _ => {
                    let _search = self.search.try_lock().ok_or(FsError::TryAgain)?;
                    vfs.lookup_inode(ino)
                }
            },
            Err(error) => Err(error),
        };
        match found {
            Ok(entry) => {
                self.note(vfs, entry.attr.ino);
                Ok(())
            }
            Err(error) => {
                if matches!(error, FsError::Stale) {
                    let mut gone = self.gone.lock();
                    if !gone.touch(ino.get()) {
                        gone.insert(ino.get());
                    }
                }
                Err(error)
            }
        }
    }
}

/// Looks up the inode `ino` if `dir` has a name of it.
fn in_directory(vfs: &dyn Vfs, dir: InodeId, ino: InodeId) -> FsResult<Option<Entry>> {
    let mut name = None;
    vfs.readdir(dir, 0, false, &mut |entry| {
        if entry.ino == ino && !matches!(entry.name, b"." | b"..") {
            name = Some(entry.name.to_vec());
        }
        name.is_none()
    })?;
    let Some(name) = name else { return Ok(None) };
    let entry = vfs.lookup(dir, FileName::new(&name)?)?;
    if entry.attr.ino == ino {
        return Ok(Some(entry));
    }
    vfs.forget(entry.attr.ino, 1);
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_that_was_not_used_for_longest_goes() {
        let mut recent = Recent::new(3);
        assert_eq!([1, 2, 3].map(|number| recent.insert(number)), [None; 3]);
        assert!(recent.touch(1) && !recent.touch(9));
        assert_eq!(recent.insert(4), Some(2));
        assert!(recent.remove(3) && !recent.remove(3));
        assert_eq!(recent.insert(5), None);
        for _ in 0..1000 {
            assert!(recent.touch(4));
        }
        assert!(recent.queue.len() <= 7, "{}", recent.queue.len());
        assert_eq!(recent.insert(6), Some(1));
    }
}
