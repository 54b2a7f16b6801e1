//! A file system in memory, as simple as possible. Tests compare Varve's file system with it as the definition of
//! correct, and benchmarks compare with it as the file system without storage.
//!
//! One mutex, one table of inodes, one table of names per directory. Ids are given out in order and never reused. An
//! inode exists while it has a name, a lookup that was not forgotten, or an open handle. The front end checks
//! permissions, except for [`varve_vfs::Vfs::access`].
//!
//! Departures from a disk file system: nothing is durable, holes have a unit of 64 KiB, and space is unlimited.

mod clone;
mod data;
mod files;
mod names;
mod node;
mod rename;
mod vfs;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_types::{InodeId, Timestamp};
use varve_vfs::{FileType, FsError, FsResult, Handle, OpenFlags};

use node::{Body, Dir, Node};

/// The model.
pub struct ModelFs {
    state: Mutex<State>,
}

/// An open handle.
struct OpenFile {
    ino: InodeId,
    flags: OpenFlags,
}

/// The whole state. Inodes are found by their number.
struct State {
    env: Arc<dyn Env>,
    nodes: Vec<Option<Box<Node>>>,
    handles: HashMap<Handle, OpenFile>,
    next_handle: u64,
}

impl ModelFs {
    /// An empty file system whose root belongs to the superuser, with the clock of `env`.
    pub fn new(env: Arc<dyn Env>) -> ModelFs {
        let mut nodes: Vec<Option<Box<Node>>> = Vec::new();
        nodes.resize_with(InodeId::FIRST_FREE.get() as usize, || None);
        let dir = Body::Directory(Dir::new(InodeId::ROOT));
        let mut root = Node::new(InodeId::ROOT, FileType::Directory, dir, env.now());
        root.attr.perm = 0o755;
        nodes[InodeId::ROOT.get() as usize] = Some(Box::new(root));
        ModelFs { state: Mutex::new(State { env, nodes, handles: HashMap::new(), next_handle: 1 }) }
    }

    /// An empty file system with the clock of the machine, for front ends that know no environment.
    pub fn on_this_machine() -> ModelFs {
        ModelFs::new(OsEnv::new())
    }

    /// Returns the time of day.
    pub(crate) fn now(&self) -> Timestamp {
        self.state.lock().now()
    }

    /// Returns how many inodes there are, the root and those without a name included.
    pub fn inode_count(&self) -> usize {
        self.state.lock().nodes.iter().flatten().count()
    }
}

impl State {
    fn now(&self) -> Timestamp {
        self.env.now()
    }

    fn node(&self, ino: InodeId) -> FsResult<&Node> {
        self.nodes.get(ino.get() as usize).and_then(|node| node.as_deref()).ok_or(FsError::Stale)
    }

    fn node_mut(&mut self, ino: InodeId) -> FsResult<&mut Node> {
        self.nodes
            .get_mut(ino.get() as usize)
            .and_then(|node| node.as_deref_mut())
            .ok_or(FsError::Stale)
    }

    /// Drops an inode that nothing refers to any more.
    fn reap(&mut self, ino: InodeId) {
        let unused = |node: &Node| node.attr.nlink == 0 && node.lookups == 0 && node.opens == 0;
        if self.node(ino).is_ok_and(unused) {
            self.nodes[ino.get() as usize] = None;
        }
    }
}

impl fmt::Debug for ModelFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelFs").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
