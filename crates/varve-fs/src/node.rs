//! What is known of an inode while it is open, and the table of handles.
//!
//! Every handle of one inode shares one [`OpenNode`], which ends with the last handle.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use varve_env::File;
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, Handle, OpenFlags};

/// An inode with at least one handle.
#[derive(Debug)]
pub(crate) struct OpenNode {
    pub(crate) ino: InodeId,
    /// Held while bytes are appended to the object, so that each append finds the end, and where limits hold while it grows
    /// at all, after that was counted. No lock of a row is held by who waits for it.
    pub(crate) append: Mutex<()>,
    state: Mutex<NodeState>,
}

/// The changing part of an [`OpenNode`].
#[derive(Debug, Default)]
pub(crate) struct NodeState {
    /// Handles in all.
    pub(crate) handles: u32,
    /// Handles that may write.
    pub(crate) writers: u32,
    /// Handles from which a program is executed.
    pub(crate) executing: u32,
    /// Handles whose bytes go through this program.
    pub(crate) cached: u32,
    /// Handles whose bytes go straight to the object. Never together with `cached` ones: the kernel
    /// keeps one page cache for all.
    pub(crate) passthrough: u32,
    /// Made without a name, so that it may still get one.
    pub(crate) linkable: bool,
    /// The bytes are in an object file.
    pub(crate) has_object: bool,
    /// The object file, while it is open here ([`crate::descriptors`]).
    pub(crate) object: Option<Arc<dyn File>>,
    /// It was used since it was last looked at for closing.
    pub(crate) object_used: bool,
    /// No row that says "clean" can come back after a power cut, so the object may be cut.
    pub(crate) dirty_is_durable: bool,
}

impl OpenNode {
    pub(crate) fn new(ino: InodeId) -> OpenNode {
        OpenNode { ino, append: Mutex::new(()), state: Mutex::new(NodeState::default()) }
    }

    /// The changing part; held for moments only, and no other lock is taken under it.
    pub(crate) fn state(&self) -> parking_lot::MutexGuard<'_, NodeState> {
        self.state.lock()
    }

    /// The object file, while it is open here.
    pub(crate) fn object(&self) -> Option<Arc<dyn File>> {
        let mut state = self.state.lock();
        state.object_used = true;
        state.object.clone()
    }

    /// Whether the bytes are known to be in an object file.
    pub(crate) fn has_object(&self) -> bool {
        self.state.lock().has_object
    }
}

/// One open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) node: Arc<OpenNode>,
    pub(crate) flags: OpenFlags,
    pub(crate) passthrough: bool,
}

const SHARDS: usize = 16;

/// All open files by handle.
#[derive(Debug)]
pub(crate) struct Handles {
    next: AtomicU64,
    shards: [RwLock<HashMap<u64, Arc<OpenFile>>>; SHARDS],
}

impl Handles {
    pub(crate) fn new() -> Handles {
        Handles { next: AtomicU64::new(1), shards: std::array::from_fn(|_| RwLock::default()) }
    }

    fn shard(&self, number: u64) -> &RwLock<HashMap<u64, Arc<OpenFile>>> {
        &self.shards[number as usize % SHARDS]
    }

    pub(crate) fn insert(&self, file: OpenFile) -> Handle {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(number).write().insert(number, Arc::new(file));
        Handle(number)
    }

    /// The open file behind `handle`, which must belong to `ino`.
    pub(crate) fn get(&self, ino: InodeId, handle: Handle) -> FsResult<Arc<OpenFile>> {
        let found = self.shard(handle.0).read().get(&handle.0).cloned();
        found.filter(|file| file.node.ino == ino).ok_or(FsError::BadHandle)
    }

    /// The open file behind `handle`, of whatever inode.
    pub(crate) fn any(&self, handle: Handle) -> FsResult<Arc<OpenFile>> {
        self.shard(handle.0).read().get(&handle.0).cloned().ok_or(FsError::BadHandle)
    }

    /// The open inodes that may be written to, in order.
    pub(crate) fn written(&self) -> Vec<Arc<OpenNode>> {
        let mut nodes = BTreeMap::new();
        self.for_each(&mut |_, file| {
            if file.flags.write {
                nodes.insert(file.node.ino, Arc::clone(&file.node));
            }
        });
        nodes.into_values().collect()
    }

    /// Those of them with object files.
    pub(crate) fn written_objects(&self) -> Vec<Arc<OpenNode>> {
        let mut nodes = self.written();
        nodes.retain(|node| node.has_object());
        nodes
    }

    /// Calls `visit` with every handle's number and file.
    pub(crate) fn for_each(&self, visit: &mut dyn FnMut(u64, &OpenFile)) {
        for shard in &self.shards {
            shard.read().iter().for_each(|(number, file)| visit(*number, file));
        }
    }

    /// The number of the next handle.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Takes over the handles of the process before; the next one is `next`.
    pub(crate) fn restore(&self, next: u64, files: Vec<(u64, OpenFile)>) {
        self.next.store(next, Ordering::Relaxed);
        for (number, file) in files {
            self.shard(number).write().insert(number, Arc::new(file));
        }
    }

    pub(crate) fn remove(&self, ino: InodeId, handle: Handle) -> FsResult<Arc<OpenFile>> {
        let mut shard = self.shard(handle.0).write();
        match shard.get(&handle.0) {
            Some(file) if file.node.ino == ino => {}
            _ => return Err(FsError::BadHandle),
        }
        shard.remove(&handle.0).ok_or(FsError::BadHandle)
    }

    /// The number of open files.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }
}
