//! Reads a whole tree into a value that can be compared.
//!
//! Invariant: the walk takes back each lookup.

use std::collections::BTreeMap;
use std::collections::HashMap;

use varve_types::{FileFlags, FileName, InodeId, Timestamp};
use varve_vfs::{FileType, FsError, FsResult, Vfs};

use super::op::TreePath;
use super::session::{read_all, split_list};
use crate::rng::mix;

/// Whether a comparison of trees includes times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// mtime, ctime and birth must be equal.
    Compare,
    /// Times do not matter.
    Ignore,
}

/// One object of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields of varve_vfs::Attr")]
pub struct NodeDump {
    pub kind: FileType,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u32,
    pub size: u64,
    /// The first path, in order, that leads to the same inode.
    pub first_path: TreePath,
    /// Hash of the bytes of a regular file or of the target of a symbolic link.
    pub content_hash: u64,
    /// The bytes that were there to read; for a sound file its size.
    pub content_len: u64,
    /// What chattr(1) has set.
    pub flags: FileFlags,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The directory's `..` is the directory that holds it; true of everything else.
    pub parent_right: bool,
    /// The type that the listing gave is the type.
    pub listed_kind_right: bool,
    /// mtime, ctime and birth.
    pub times: [Timestamp; 3],
}

/// Every object below the root, and the root, by path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeDump(pub BTreeMap<TreePath, NodeDump>);

/// Reads the whole tree.
pub fn tree(fs: &dyn Vfs) -> FsResult<TreeDump> {
    tree_with(fs, &mut |_, _, _| ())
}

/// Reads the whole tree and passes the path, the inode and the bytes of each regular file to `visit`.
pub fn tree_with(
    fs: &dyn Vfs,
    visit: &mut dyn FnMut(&TreePath, InodeId, Vec<u8>),
) -> FsResult<TreeDump> {
    tree_but(fs, visit, &mut |_, error| Err(error))
}

/// Reads the tree as [`tree_with`] does, but skips regular files that cannot be read and whose error `lost` accepts.
pub fn tree_but(
    fs: &dyn Vfs,
    visit: &mut dyn FnMut(&TreePath, InodeId, Vec<u8>),
    lost: &mut dyn FnMut(&TreePath, FsError) -> FsResult<()>,
) -> FsResult<TreeDump> {
    let mut found = BTreeMap::new();
    let mut inos: HashMap<TreePath, InodeId> = HashMap::new();
    let mut waiting =
        vec![(TreePath::default(), InodeId::ROOT, InodeId::ROOT, FileType::Directory)];
    while let Some((path, parent, ino, listed)) = waiting.pop() {
        let (mut node, content) = match dump_node(fs, ino, parent) {
            Err(error) if listed == FileType::Regular => {
                lost(&path, error)?;
                continue;
            }
            dumped => dumped?,
        };
        if node.kind == FileType::Regular {
            visit(&path, ino, content);
        }
        node.listed_kind_right = node.kind == listed;
        if node.kind == FileType::Directory {
            for (name, kind) in list(fs, ino)? {
                let below = path.join(&name);
                match fs.lookup(ino, FileName::new(&name)?) {
                    Err(error) if kind == FileType::Regular => lost(&below, error)?,
                    entry => waiting.push((below, ino, entry?.attr.ino, kind)),
                }
            }
        }
        inos.insert(path.clone(), ino);
        found.insert(path, node);
    }
    let mut first: HashMap<InodeId, TreePath> = HashMap::new();
    for (path, node) in &mut found {
        let ino = inos[path];
        node.first_path = first.entry(ino).or_insert_with(|| path.clone()).clone();
        if ino != InodeId::ROOT {
            fs.forget(ino, 1);
        }
    }
    Ok(TreeDump(found))
}

fn dump_node(fs: &dyn Vfs, ino: InodeId, parent: InodeId) -> FsResult<(NodeDump, Vec<u8>)> {
    let attr = fs.getattr(ino)?;
    let content = match attr.kind {
        FileType::Regular => read_all(fs, ino)?,
        FileType::Symlink => fs.readlink(ino)?.to_vec(),
        _ => Vec::new(),
    };
    let mut parent_right = true;
    if attr.kind == FileType::Directory {
        let up = fs.lookup_parent(ino)?.attr.ino;
        fs.forget(up, 1);
        parent_right = up == parent;
    }
    let mut xattrs = BTreeMap::new();
    for name in split_list(&fs.listxattr(ino)?) {
        let value = fs.getxattr(ino, &name)?.to_vec();
        xattrs.insert(name, value);
    }
    let flags = match fs.file_flags(ino) {
        Err(FsError::NotSupported(_)) => FileFlags::default(),
        flags => flags?,
    };
    let node = NodeDump {
        kind: attr.kind,
        perm: attr.perm,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink,
        rdev: attr.rdev,
        size: attr.size,
        first_path: TreePath::default(),
        content_hash: hash(&content),
        content_len: content.len() as u64,
        flags,
        xattrs,
        parent_right,
        listed_kind_right: true,
        times: [attr.mtime, attr.ctime, attr.btime],
    };
    Ok((node, content))
}

fn list(fs: &dyn Vfs, ino: InodeId) -> FsResult<Vec<(Vec<u8>, FileType)>> {
    let mut names = Vec::new();
    fs.readdir(ino, 0, false, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push((entry.name.to_vec(), entry.kind));
        }
        true
    })?;
    Ok(names)
}

fn hash(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(hash ^ u64::from_le_bytes(word))
    })
}

impl TreeDump {
    /// Returns what is different in `other`, one line per path; empty if nothing is.
    pub fn differences(&self, other: &TreeDump, times: Times) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, node) in &self.0 {
            match other.0.get(path) {
                None => lines.push(format!("{path} is missing; expected {node:?}")),
                Some(found) if !node.equals(found, times) => {
                    lines.push(format!("{path} is {found:?}; expected {node:?}"));
                }
                Some(_) => {}
            }
        }
        for (path, node) in other.0.iter().filter(|(path, _)| !self.0.contains_key(path)) {
            lines.push(format!("{path} is there and should not be: {node:?}"));
        }
        lines
    }
}

impl NodeDump {
    /// Returns whether `other` is the same.
    pub fn equals(&self, other: &NodeDump, times: Times) -> bool {
        match times {
            Times::Compare => self == other,
            Times::Ignore => *self == NodeDump { times: self.times, ..other.clone() },
        }
    }
}
