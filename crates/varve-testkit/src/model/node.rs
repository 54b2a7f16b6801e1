//! The inodes of the model and their content.
//!
//! Invariant: a name keeps its cookie while it exists.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use varve_types::{FileFlags, InodeId, Timestamp};
use varve_vfs::{Attr, Caller, FileType, FsError, FsResult, Keep};

use super::data::Data;

/// One inode.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) attr: Attr,
    pub(super) body: Body,
    pub(super) xattrs: BTreeMap<Vec<u8>, Bytes>,
    pub(super) flags: FileFlags,
    /// Lookups not yet forgotten.
    pub(super) lookups: u64,
    /// Open handles.
    pub(super) opens: u32,
    /// Made without a name: may get its first one by link.
    pub(super) linkable: bool,
}

/// What an inode holds.
#[derive(Debug)]
pub(super) enum Body {
    /// A regular file.
    Regular(Data),
    /// A directory.
    Directory(Dir),
    /// A symbolic link.
    Symlink(Bytes),
    /// A fifo, socket or device.
    Special,
}

/// A name's target and its place in listings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dirent {
    pub(super) ino: InodeId,
    pub(super) cookie: u64,
}

/// The names of a directory. A name keeps its cookie while it exists.
#[derive(Debug)]
pub(super) struct Dir {
    pub(super) parent: InodeId,
    names: HashMap<Box<[u8]>, Dirent>,
    order: BTreeMap<u64, Box<[u8]>>,
    next_cookie: u64,
}

/// The cookie of `.`.
pub(super) const COOKIE_SELF: u64 = 1;
/// The cookie of `..`.
pub(super) const COOKIE_PARENT: u64 = 2;

impl Dir {
    /// An empty directory in `parent`.
    pub(super) fn new(parent: InodeId) -> Dir {
        Dir {
            parent,
            names: HashMap::new(),
            order: BTreeMap::new(),
            next_cookie: COOKIE_PARENT + 1,
        }
    }

    /// Returns what a name stands for.
    pub(super) fn get(&self, name: &[u8]) -> Option<InodeId> {
        self.names.get(name).map(|dirent| dirent.ino)
    }

    /// Makes `name` stand for `ino`.
    pub(super) fn set(&mut self, name: &[u8], ino: InodeId) {
        if let Some(dirent) = self.names.get_mut(name) {
            dirent.ino = ino;
            return;
        }
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.names.insert(name.into(), Dirent { ino, cookie });
        self.order.insert(cookie, name.into());
    }

    /// Takes a name away.
    pub(super) fn remove(&mut self, name: &[u8]) {
        if let Some(dirent) = self.names.remove(name) {
            self.order.remove(&dirent.cookie);
        }
    }

    /// Returns whether there are no names.
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the names after `cookie`, in the order of listings.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &[u8], InodeId)> {
        self.order.range(cookie + 1..).filter_map(|(cookie, name)| {
            self.names.get(name).map(|dirent| (*cookie, &**name, dirent.ino))
        })
    }
}

impl Node {
    /// A new inode with one name (two for a directory) and no lookups.
    pub(super) fn new(ino: InodeId, kind: FileType, body: Body, now: Timestamp) -> Node {
        let nlink = if kind == FileType::Directory { 2 } else { 1 };
        let attr = Attr {
            ino,
            kind,
            perm: 0,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            keep: Keep::Forever,
        };
        Node {
            attr,
            body,
            xattrs: BTreeMap::new(),
            flags: FileFlags::default(),
            lookups: 0,
            opens: 0,
            linkable: false,
        }
    }

    /// Gives a new inode its owner and permissions, as the directory it is born in has it: a set-group-id
    /// directory passes its group on, and to directories also the bit.
    pub(super) fn own(&mut self, caller: Caller, parent: &Attr, perm: u32) {
        let inherits = parent.perm & 0o2000 != 0;
        self.attr.uid = caller.uid;
        self.attr.gid = if inherits { parent.gid } else { caller.gid };
        self.attr.perm = perm & 0o7777 & !caller.umask;
        if inherits && self.attr.kind == FileType::Directory {
            self.attr.perm |= 0o2000;
        }
    }

    /// Returns the names, if this is a directory.
    pub(super) fn dir(&self) -> FsResult<&Dir> {
        match &self.body {
            Body::Directory(dir) => Ok(dir),
            _ => Err(FsError::NotDirectory),
        }
    }

    /// Returns the names, to change them.
    pub(super) fn dir_mut(&mut self) -> FsResult<&mut Dir> {
        match &mut self.body {
            Body::Directory(dir) => Ok(dir),
            _ => Err(FsError::NotDirectory),
        }
    }

    /// Returns the bytes, if this is a regular file.
    pub(super) fn data(&self) -> FsResult<&Data> {
        match &self.body {
            Body::Regular(data) => Ok(data),
            Body::Directory(_) => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid("not a regular file")),
        }
    }

    /// Returns the bytes, to change them.
    pub(super) fn data_mut(&mut self) -> FsResult<&mut Data> {
        match &mut self.body {
            Body::Regular(data) => Ok(data),
            Body::Directory(_) => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid("not a regular file")),
        }
    }

    /// `NotPermitted` if it is immutable, or append-only and not only something is added.
    pub(super) fn check_flags(&self, only_adds: bool) -> FsResult<()> {
        match self.flags.immutable() || self.flags.append_only() && !only_adds {
            true => Err(FsError::NotPermitted),
            false => Ok(()),
        }
    }

    /// Returns whether this may have flags.
    pub(super) fn has_flags(&self) -> bool {
        matches!(self.attr.kind, FileType::Regular | FileType::Directory)
    }

    /// Returns whether this is a directory.
    pub(super) fn is_dir(&self) -> bool {
        self.attr.kind == FileType::Directory
    }

    /// The bytes or names changed.
    pub(super) fn touch(&mut self, now: Timestamp) {
        self.attr.mtime = now;
        self.attr.ctime = now;
    }

    /// Clears the set-id bits and capabilities as a write by someone without the right does: set-group-id without
    /// group execution marks mandatory locking and stays.
    pub(super) fn kill_set_id(&mut self) {
        if !self.is_dir() {
            self.attr.perm &= !0o4000;
            if self.attr.perm & 0o010 != 0 {
                self.attr.perm &= !0o2000;
            }
            self.xattrs.remove(&b"security.capability"[..]);
        }
    }

    /// Returns the attributes as callers see them.
    pub(super) fn visible(&self) -> Attr {
        let blocks = match &self.body {
            Body::Regular(data) => data.blocks(),
            _ => 0,
        };
        Attr { blocks, ..self.attr }
    }
}
