//! Inodes that clients have handles of, and which the file system is to remember.
//!
//! A file system knows where an inode is as long as its front end has looked it up and not let go. NFS has no such thing, so the inodes that
//! were asked for last stay looked up once, at most [`KNOWN_MAX`]. Any other is found again by its handle: in the directory where it was
//! found first, or else by its number, which may take a walk over the whole file system. One such walk goes on at a time; who
//! asks for another meanwhile is to ask later.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;
use varve_types::{FileName, InodeId};
use varve_vfs::{Entry, FsError, FsResult, Vfs};

use crate::handle::FileHandle;

/// Inodes that stay looked up.
const KNOWN_MAX: usize = 1 << 16;
/// Inodes that are remembered to be gone, so that nobody walks for them.
const GONE_MAX: usize = 1 << 12;

/// Numbers in the order in which they were used last, at most some.
struct Recent {
    max: usize,
    stamps: HashMap<u64, u64>,
    /// Numbers with the stamps that they had; old ones are passed over.
    queue: VecDeque<(u64, u64)>,
    next: u64,
}

impl Recent {
    fn new(max: usize) -> Recent {
        Recent { max, stamps: HashMap::new(), queue: VecDeque::new(), next: 0 }
    }

    /// Whether `number` is among them, which counts as a use.
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

    /// Adds a number that is not there; gives the one that has to go for it.
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

/// See above.
pub(crate) struct Known {
    inodes: Mutex<Recent>,
    gone: Mutex<Recent>,
    search: Mutex<()>,
}

impl Known {
    pub(crate) fn new() -> Known {
        Known::of_size(KNOWN_MAX)
    }

    fn of_size(max: usize) -> Known {
        Known {
            inodes: Mutex::new(Recent::new(max)),
            gone: Mutex::new(Recent::new(GONE_MAX)),
            search: Mutex::new(()),
        }
    }

    /// Takes over a lookup that was counted.
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

    /// Has the inode of a handle looked up, unless it is.
    pub(crate) fn recall(&self, vfs: &dyn Vfs, handle: &FileHandle) -> FsResult<()> {
        if self.inodes.lock().touch(handle.ino.get()) {
            return Ok(());
        }
        self.find(vfs, handle)
    }

    /// Looks for the inode of a handle that was not where it was thought to be.
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
        // What has a row of its own is found at once.
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

/// The inode `ino`, looked up, if `dir` has a name of it.
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
