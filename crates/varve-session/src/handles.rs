//! What is known of an inode while it is open, and the table of handles.
//!
//! Every handle of one inode shares one [`OpenNode`], which ends with the last handle.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, Handle, OpenFlags};

use crate::id_hash::IdHash;

/// An inode with at least one handle.
#[derive(Debug)]
pub struct OpenNode<O> {
    /// The inode.
    pub ino: InodeId,
    /// Held while bytes are appended to the object, so that each append finds the end, and where limits hold while it grows
    /// at all, after that was counted. No lock of a row is held by who waits for it.
    pub append: Mutex<()>,
    state: Mutex<NodeState<O>>,
}

/// The changing part of an [`OpenNode`].
#[derive(Debug)]
pub struct NodeState<O> {
    /// Handles in all.
    pub handles: u32,
    /// Handles that may write.
    pub writers: u32,
    /// Handles from which a program is executed.
    pub executing: u32,
    /// Handles whose bytes go through this program.
    pub cached: u32,
    /// Those of them that may both read and write, as a mapping in memory that is written to needs.
    pub mappers: u32,
    /// Handles whose bytes go straight to the object. Never together with `cached` ones: the kernel
    /// keeps one page cache for all.
    pub passthrough: u32,
    /// Those of them that may both read and write: what is changed in memory that they map nobody is told of.
    pub straight_mappers: u32,
    /// A commit has put another object in the place of the one that passthrough handles read, until the last of them ends.
    pub replaced: bool,
    /// The directory in which somebody opened it to write when it was empty, until nobody writes to it.
    pub began_in: Option<InodeId>,
    /// How many syncs of the store had begun then.
    pub began_after: Option<u64>,
    /// Made without a name, so that it may still get one.
    pub linkable: bool,
    /// The bytes are in an object file.
    pub has_object: bool,
    /// The object file, while it is open here (an executor may close it and open it again).
    pub object: Option<O>,
    /// It was used since it was last looked at for closing.
    pub object_used: bool,
    /// No row that says "clean" can come back after a power cut, so the object may be cut.
    pub dirty_is_durable: bool,
}

impl<O> Default for NodeState<O> {
    fn default() -> NodeState<O> {
        NodeState {
            handles: 0,
            writers: 0,
            executing: 0,
            cached: 0,
            mappers: 0,
            passthrough: 0,
            straight_mappers: 0,
            replaced: false,
            began_in: None,
            began_after: None,
            linkable: false,
            has_object: false,
            object: None,
            object_used: false,
            dirty_is_durable: false,
        }
    }
}

impl<O> OpenNode<O> {
    /// A node without handles.
    pub fn new(ino: InodeId) -> OpenNode<O> {
        OpenNode { ino, append: Mutex::new(()), state: Mutex::new(NodeState::default()) }
    }

    /// The changing part; held for moments only, and no other lock is taken under it.
    pub fn state(&self) -> parking_lot::MutexGuard<'_, NodeState<O>> {
        self.state.lock()
    }

    /// The object file, while it is open here.
    pub fn object(&self) -> Option<O>
    where
        O: Clone,
    {
        let mut state = self.state.lock();
        state.object_used = true;
        state.object.clone()
    }

    /// Whether the bytes are known to be in an object file.
    pub fn has_object(&self) -> bool {
        self.state.lock().has_object
    }
}

/// One open file.
#[derive(Debug)]
pub struct OpenFile<O> {
    /// The inode.
    pub node: Arc<OpenNode<O>>,
    /// How it is open.
    pub flags: OpenFlags,
    /// Its bytes go straight to the object.
    pub passthrough: bool,
}

const SHARDS: u64 = 16;

/// The open files whose handles leave the same rest, by the quotient: handles given out one after the other are in
/// different ones.
type Shard<O> = RwLock<HashMap<u64, Arc<OpenFile<O>>, IdHash>>;

/// All open files by handle.
#[derive(Debug)]
pub struct Handles<O> {
    next: AtomicU64,
    shards: [Shard<O>; SHARDS as usize],
}

impl<O> Default for Handles<O> {
    fn default() -> Handles<O> {
        Handles::new()
    }
}

impl<O> Handles<O> {
    /// No open files.
    pub fn new() -> Handles<O> {
        Handles { next: AtomicU64::new(1), shards: std::array::from_fn(|_| RwLock::default()) }
    }

    /// Where a handle is, and its key there.
    fn shard(&self, number: u64) -> (&Shard<O>, u64) {
        (&self.shards[(number % SHARDS) as usize], number / SHARDS)
    }

    fn put(&self, number: u64, file: OpenFile<O>) {
        let (shard, key) = self.shard(number);
        shard.write().insert(key, Arc::new(file));
    }

    /// Gives an open file a handle.
    pub fn insert(&self, file: OpenFile<O>) -> Handle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.put(number, file);
        Handle(number)
    }

    /// The open file behind `handle`, which must belong to `ino`.
    pub fn get(&self, ino: InodeId, handle: Handle) -> FsResult<Arc<OpenFile<O>>> {
        self.any(handle).ok().filter(|file| file.node.ino == ino).ok_or(FsError::BadHandle)
    }

    /// The open file behind `handle`, of whatever inode.
    pub fn any(&self, handle: Handle) -> FsResult<Arc<OpenFile<O>>> {
        let (shard, key) = self.shard(handle.0);
        shard.read().get(&key).cloned().ok_or(FsError::BadHandle)
    }

    /// The open inodes that may be written to, in order.
    pub fn written(&self) -> Vec<Arc<OpenNode<O>>> {
        let mut nodes = BTreeMap::new();
        self.for_each(&mut |_, file| {
            if file.flags.write {
                nodes.insert(file.node.ino, Arc::clone(&file.node));
            }
        });
        nodes.into_values().collect()
    }

    /// Those of them with object files.
    pub fn written_objects(&self) -> Vec<Arc<OpenNode<O>>> {
        let mut nodes = self.written();
        nodes.retain(|node| node.has_object());
        nodes
    }

    /// Calls `visit` with every handle's number and file.
    pub fn for_each(&self, visit: &mut dyn FnMut(u64, &OpenFile<O>)) {
        for (rest, shard) in (0..).zip(&self.shards) {
            shard.read().iter().for_each(|(key, file)| visit(key * SHARDS + rest, file));
        }
    }

    /// The number of the next handle.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Takes over the handles of the process before; the next one is `next`.
    pub fn restore(&self, next: u64, files: Vec<(u64, OpenFile<O>)>) {
        self.next.store(next, Ordering::Relaxed);
        for (number, file) in files {
            self.put(number, file);
        }
    }

    /// Takes a file out, after `first` was called with it.
    pub fn remove(
        &self,
        ino: InodeId,
        handle: Handle,
        first: impl FnOnce(&OpenFile<O>),
    ) -> FsResult<Arc<OpenFile<O>>> {
        let (shard, key) = self.shard(handle.0);
        match shard.write().entry(key) {
            Entry::Occupied(at) if at.get().node.ino == ino => {
                first(at.get());
                Ok(at.remove())
            }
            _ => Err(FsError::BadHandle),
        }
    }

    /// The number of open files.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(ino: u64) -> OpenFile<u8> {
        let node = Arc::new(OpenNode::new(InodeId::new(ino)));
        OpenFile { node, flags: OpenFlags::default(), passthrough: false }
    }

    /// A process that takes over finds each handle under the number that the kernel knows.
    #[test]
    fn handles_keep_their_numbers() {
        let handles = Handles::new();
        let given: Vec<Handle> = (0..100).map(|ino| handles.insert(open(ino))).collect();
        for (ino, handle) in (0..).zip(&given) {
            let (right, wrong) = (InodeId::new(ino), InodeId::new(ino + 1));
            assert_eq!(handles.get(right, *handle).expect("open").node.ino, right);
            assert!(
                handles.get(wrong, *handle).is_err()
                    && handles.remove(wrong, *handle, |_| ()).is_err()
            );
            if ino % 2 == 0 {
                handles.remove(right, *handle, |_| ()).expect("open");
                assert!(
                    handles.any(*handle).is_err()
                        && handles.remove(right, *handle, |_| ()).is_err()
                );
            }
        }
        assert_eq!(handles.count(), 50);
        let taken_over = Handles::new();
        let mut files = Vec::new();
        handles.for_each(&mut |number, file| files.push((number, open(file.node.ino.get()))));
        taken_over.restore(handles.next(), files);
        for (ino, handle) in (0..).zip(&given).filter(|(ino, _)| ino % 2 == 1) {
            assert_eq!(taken_over.any(*handle).expect("open").node.ino, InodeId::new(ino));
        }
        assert!(taken_over.insert(open(7)).0 > given[99].0);
    }
}
