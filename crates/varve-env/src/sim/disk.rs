//! The simulated disk and its page cache.
//!
//! Every file has the bytes that readers see, the bytes that are certainly on disk, and the changes in
//! between, in order. Every directory has the names that readers see and those that are certainly on
//! disk; changes of names wait in one list for the sync of their directory. A rename within one
//! directory is one change; one that crosses directories is one change until either is synced, and
//! from then on its other half waits alone.
//!
//! Copies of a disk share their nodes until one of them changes, so that a copy costs little.
//!
//! Invariant: a node lives while a name, a name on disk, a waiting change or an open file refers to it. Only nodes
//! with a name or an open file take space, unless the rules of [`super::room`] say otherwise.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path};
use std::sync::Arc;

use varve_types::Timestamp;

use super::content::{Change, Content, PAGE_BYTES};
use super::room::{FileRoom, RoomRules};
use crate::FileKind;
use crate::rng::Rng;

// Error numbers, as the kernel gives them in each case.
pub(super) const EPERM: i32 = 1;
pub(super) const ENOENT: i32 = 2;
pub(super) const EIO: i32 = 5;
pub(super) const ENXIO: i32 = 6;
pub(super) const EBADF: i32 = 9;
pub(super) const EEXIST: i32 = 17;
pub(super) const ENOTDIR: i32 = 20;
pub(super) const EISDIR: i32 = 21;
pub(super) const EINVAL: i32 = 22;
pub(super) const EFBIG: i32 = 27;
pub(super) const ENOSPC: i32 = 28;
pub(super) const ENOTEMPTY: i32 = 39;

/// Returns the error with this number.
pub(super) fn errno<T>(number: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(number))
}

/// A file or directory, whatever names it has.
pub(super) type NodeId = u64;
/// Files whose bytes are kept after they went.
const FREED_MAX: usize = 8;
/// The directory `/`.
pub(super) const ROOT: NodeId = 0;

/// Names of one directory.
pub(super) type Names = BTreeMap<OsString, NodeId>;

/// A file or directory.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) body: Body,
    /// Names that readers see.
    pub(super) links: u32,
    /// Names on disk, and waiting changes that would make one.
    pub(super) disk_refs: u32,
    /// Open files.
    pub(super) handles: u32,
    /// Pages that it takes.
    pub(super) taken_pages: u64,
    pub(super) modified: Timestamp,
    pub(super) accessed: Timestamp,
}

/// What a node holds.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// A regular file.
    File(FileBody),
    /// A directory.
    Dir(DirBody),
}

/// A regular file's bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct FileBody {
    pub(super) current: Content,
    pub(super) durable: Content,
    pub(super) unsynced: Vec<Change>,
    pub(super) room: FileRoom,
}

/// A directory's names.
#[derive(Clone, Debug, Default)]
pub(super) struct DirBody {
    pub(super) current: Names,
    pub(super) durable: Names,
    /// The most names that it ever had: its room comes back only with itself.
    pub(super) names_most: u64,
}

/// `name` in `dir` comes to stand for `node`, or for nothing.
#[derive(Clone, Debug)]
pub(super) struct NameEdit {
    pub(super) dir: NodeId,
    pub(super) name: OsString,
    pub(super) node: Option<NodeId>,
}

/// Edits that reach the disk together or not at all.
pub(super) type NameChange = Vec<NameEdit>;

/// The disk.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) nodes: BTreeMap<NodeId, Arc<Node>>,
    pub(super) unsynced_names: Vec<NameChange>,
    pub(super) next_node: NodeId,
    pub(super) used_pages: u64,
    pub(super) capacity_pages: u64,
    /// Pages that files of others take.
    pub(super) others_pages: u64,
    pub(super) rules: RoomRules,
    /// The bytes of files that went lately: what a sector that was never written may still hold.
    pub(super) freed: VecDeque<Content>,
    /// Copies of files may share room.
    pub(super) shares_room: bool,
    /// How often something could not be written.
    pub(super) failures: u64,
}

impl Disk {
    /// An empty disk: nothing but `/`.
    pub(super) fn new(capacity_bytes: u64) -> Disk {
        let root = Node {
            body: Body::Dir(DirBody::default()),
            links: 1,
            disk_refs: 1,
            handles: 0,
            taken_pages: 0,
            modified: Timestamp::EPOCH,
            accessed: Timestamp::EPOCH,
        };
        Disk {
            nodes: BTreeMap::from([(ROOT, Arc::new(root))]),
            unsynced_names: Vec::new(),
            next_node: ROOT + 1,
            used_pages: 0,
            capacity_pages: capacity_bytes / PAGE_BYTES,
            others_pages: 0,
            rules: RoomRules::default(),
            freed: VecDeque::new(),
            shares_room: false,
            failures: 0,
        }
    }

    /// A node, to change it.
    pub(super) fn node_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        self.nodes.get_mut(&node).map(Arc::make_mut)
    }

    /// Returns the node a path leads to.
    pub(super) fn resolve(&self, path: &Path) -> io::Result<NodeId> {
        let mut at = ROOT;
        for component in path.components() {
            match component {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => match self.dir(at)?.current.get(name) {
                    Some(node) => at = *node,
                    None => return errno(ENOENT),
                },
                Component::ParentDir | Component::Prefix(_) => return errno(EINVAL),
            }
        }
        Ok(at)
    }

    /// Returns the directory that holds a path's last name, and that name.
    pub(super) fn resolve_parent<'p>(&self, path: &'p Path) -> io::Result<(NodeId, &'p OsStr)> {
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => {
                let dir = self.resolve(parent)?;
                self.dir(dir)?;
                Ok((dir, name))
            }
            _ => errno(EINVAL),
        }
    }

    /// Returns the names of a directory.
    pub(super) fn dir(&self, node: NodeId) -> io::Result<&DirBody> {
        match self.nodes.get(&node).map(|node| &node.body) {
            Some(Body::Dir(dir)) => Ok(dir),
            Some(Body::File(_)) => errno(ENOTDIR),
            None => errno(ENOENT),
        }
    }

    /// Returns the bytes of a file.
    pub(super) fn file(&self, node: NodeId) -> io::Result<&FileBody> {
        match self.nodes.get(&node).map(|node| &node.body) {
            Some(Body::File(file)) => Ok(file),
            Some(Body::Dir(_)) => errno(EISDIR),
            None => errno(ENOENT),
        }
    }

    /// Returns the bytes of a file, to change them.
    pub(super) fn file_mut(&mut self, node: NodeId) -> io::Result<&mut FileBody> {
        match self.node_mut(node).map(|node| &mut node.body) {
            Some(Body::File(file)) => Ok(file),
            Some(Body::Dir(_)) => errno(EISDIR),
            None => errno(ENOENT),
        }
    }

    /// Returns what a node is.
    pub(super) fn kind(&self, node: NodeId) -> FileKind {
        match self.nodes.get(&node).map(|node| &node.body) {
            Some(Body::File(_)) => FileKind::File,
            Some(Body::Dir(_)) => FileKind::Dir,
            None => FileKind::Other,
        }
    }

    /// Makes a node under a name that is free.
    pub(super) fn create(
        &mut self,
        dir: NodeId,
        name: &OsStr,
        body: Body,
        now: Timestamp,
    ) -> io::Result<NodeId> {
        let node = self.next_node;
        let change = vec![NameEdit { dir, name: name.to_owned(), node: Some(node) }];
        self.check_names(&change)?;
        self.check_inode(u64::from(matches!(body, Body::Dir(_))))?;
        self.next_node += 1;
        let (links, disk_refs, handles, taken_pages) = (0, 0, 0, 0);
        let (modified, accessed) = (now, now);
        let made = Node { body, links, disk_refs, handles, taken_pages, modified, accessed };
        self.nodes.insert(node, Arc::new(made));
        self.change_names(change)?;
        self.recount(node);
        Ok(node)
    }

    /// Makes a change of names visible and lets it wait for its sync.
    pub(super) fn change_names(&mut self, change: NameChange) -> io::Result<()> {
        self.check_names(&change)?;
        for edit in &change {
            if let Some(node) = edit.node.and_then(|node| self.node_mut(node)) {
                node.links += 1;
                node.disk_refs += 1;
            }
            let Some(Body::Dir(dir)) = self.node_mut(edit.dir).map(|node| &mut node.body) else {
                return errno(ENOTDIR);
            };
            let replaced = match edit.node {
                Some(node) => dir.current.insert(edit.name.clone(), node),
                None => dir.current.remove(&edit.name),
            };
            dir.names_most = dir.names_most.max(dir.current.len() as u64);
            self.recount(edit.dir);
            if let Some(replaced) = replaced {
                self.release(replaced, |node| node.links -= 1);
            }
        }
        self.unsynced_names.push(change);
        Ok(())
    }

    /// Makes a directory's names durable.
    pub(super) fn sync_dir(&mut self, dir: NodeId) -> io::Result<()> {
        self.dir(dir)?;
        let mut waiting = std::mem::take(&mut self.unsynced_names);
        for change in &mut waiting {
            for edit in change.extract_if(.., |edit| edit.dir == dir) {
                self.commit_name(edit);
            }
        }
        waiting.retain(|change| !change.is_empty());
        self.unsynced_names = waiting;
        Ok(())
    }

    /// A sync of names that failed: each waiting edit of the directory is on disk or lost for good.
    pub(super) fn lose_names(&mut self, dir: NodeId, rng: &mut Rng) {
        self.failures += 1;
        let mut waiting = std::mem::take(&mut self.unsynced_names);
        for change in &mut waiting {
            for edit in change.extract_if(.., |edit| edit.dir == dir) {
                if rng.chance(50) {
                    self.commit_name(edit);
                } else if let Some(node) = edit.node {
                    self.release(node, |node| node.disk_refs -= 1);
                }
            }
        }
        waiting.retain(|change| !change.is_empty());
        self.unsynced_names = waiting;
    }

    fn commit_name(&mut self, edit: NameEdit) {
        let Some(Body::Dir(dir)) = self.node_mut(edit.dir).map(|node| &mut node.body) else {
            return;
        };
        let replaced = match edit.node {
            Some(node) => dir.durable.insert(edit.name, node),
            None => dir.durable.remove(&edit.name),
        };
        if let Some(replaced) = replaced {
            self.release(replaced, |node| node.disk_refs -= 1);
        }
    }

    /// Takes a reference away with `drop_ref`; frees the room and then the node when the last is gone.
    pub(super) fn release(&mut self, id: NodeId, drop_ref: fn(&mut Node)) {
        let Some(node) = self.node_mut(id) else {
            return;
        };
        drop_ref(node);
        if node.links > 0 || node.handles > 0 {
            return;
        }
        let mut freed = None;
        if let Body::File(file) = &mut node.body {
            freed = Some(std::mem::take(&mut file.current));
        }
        let gone = node.disk_refs == 0;
        self.recount(id);
        if let Some(content) = freed.filter(|content| content.page_count() > 0) {
            self.freed.truncate(FREED_MAX - 1);
            self.freed.push_front(content);
        }
        if !gone {
            return;
        }
        let Some(Body::Dir(dir)) = self.nodes.remove(&id).map(|node| node.body.clone()) else {
            return;
        };
        for child in dir.durable.into_values() {
            self.release(child, |node| node.disk_refs -= 1);
        }
    }

    /// A node and, if it is a directory, all that readers see below it.
    pub(super) fn nodes_below(&self, node: NodeId) -> Vec<NodeId> {
        let (mut found, mut waiting) = (Vec::new(), vec![node]);
        while let Some(node) = waiting.pop() {
            found.push(node);
            waiting.extend(self.dir(node).into_iter().flat_map(|dir| dir.current.values()));
        }
        found
    }
}
