//! Finds, makes and removes names.
//!
//! The order of checks is the kernel's (fs/namei.c): first the parent, then the name, then what it stands for. A
//! removed directory that is still looked up accepts no new names.

use std::collections::HashSet;

use varve_types::{FileFlags, FileName, InodeId, limits};
use varve_vfs::{Attr, Caller, FileType, FsError, FsResult, OpenFlags, Opened, TreeUsage};

use super::State;
use super::node::{Body, COOKIE_PARENT, Node};

/// A new object: what it is, what it holds, and its permissions before the umask.
pub(super) struct New {
    pub(super) kind: FileType,
    pub(super) body: Body,
    pub(super) perm: u32,
    pub(super) rdev: u32,
    pub(super) size: u64,
}

impl State {
    /// Returns what `name` in `parent` stands for.
    pub(super) fn find(&self, parent: InodeId, name: FileName<'_>) -> FsResult<InodeId> {
        self.node(parent)?.dir()?.get(name.as_bytes()).ok_or(FsError::NotFound)
    }

    /// Counts a lookup and shows the inode.
    pub(super) fn count_lookup(&mut self, ino: InodeId) -> FsResult<Attr> {
        let node = self.node_mut(ino)?;
        node.lookups += 1;
        Ok(node.visible())
    }

    /// Refuses a name that is taken, and any name in a removed or immutable directory.
    pub(super) fn check_free(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        let node = self.node(parent)?;
        if node.dir()?.get(name.as_bytes()).is_some() {
            return Err(FsError::Exists);
        }
        if node.attr.nlink == 0 { Err(FsError::NotFound) } else { node.check_flags(true) }
    }

    /// Makes an object under a free name.
    pub(super) fn make(
        &mut self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        new: New,
    ) -> FsResult<InodeId> {
        self.check_free(parent, name)?;
        let ino = self.make_nameless(caller, parent, new)?;
        self.add_name(parent, name, ino)?;
        Ok(ino)
    }

    /// Makes an object that no name stands for yet.
    pub(super) fn make_nameless(
        &mut self,
        caller: Caller,
        parent: InodeId,
        new: New,
    ) -> FsResult<InodeId> {
        let (now, dir) = (self.now(), self.node(parent)?);
        let (born_in, flags) = (dir.attr, dir.flags.and(FileFlags::NO_DUMP));
        let ino = InodeId::new(self.nodes.len() as u64);
        let mut node = Node::new(ino, new.kind, new.body, now);
        node.own(caller, &born_in, new.perm);
        node.flags = if node.has_flags() { flags } else { FileFlags::default() };
        node.attr.rdev = new.rdev;
        node.attr.size = new.size;
        self.nodes.push(Some(Box::new(node)));
        Ok(ino)
    }

    /// Enters a name that was free and keeps the directory's counts and times.
    pub(super) fn add_name(
        &mut self,
        parent: InodeId,
        name: FileName<'_>,
        ino: InodeId,
    ) -> FsResult<()> {
        let (now, is_dir) = (self.now(), self.node(ino)?.is_dir());
        let node = self.node_mut(parent)?;
        node.dir_mut()?.set(name.as_bytes(), ino);
        node.attr.size += 1;
        node.attr.nlink += u32::from(is_dir);
        node.touch(now);
        Ok(())
    }

    /// Removes a name that is there and keeps the directory's counts and times.
    pub(super) fn drop_name(
        &mut self,
        parent: InodeId,
        name: FileName<'_>,
        was_dir: bool,
    ) -> FsResult<()> {
        let now = self.now();
        let node = self.node_mut(parent)?;
        node.dir_mut()?.remove(name.as_bytes());
        node.attr.size -= 1;
        node.attr.nlink -= u32::from(was_dir);
        node.touch(now);
        Ok(())
    }

    /// An inode lost one of its names; a directory its only one.
    pub(super) fn lose_link(&mut self, ino: InodeId) -> FsResult<()> {
        let now = self.now();
        let node = self.node_mut(ino)?;
        node.attr.nlink = if node.is_dir() { 0 } else { node.attr.nlink - 1 };
        node.attr.ctime = now;
        self.reap(ino);
        Ok(())
    }

    /// One more name.
    pub(super) fn link(
        &mut self,
        ino: InodeId,
        parent: InodeId,
        name: FileName<'_>,
    ) -> FsResult<Attr> {
        self.node(ino)?;
        self.check_free(parent, name)?;
        let now = self.now();
        let node = self.node_mut(ino)?;
        match node.attr.nlink {
            _ if node.is_dir() => return Err(FsError::NotPermitted),
            0 if !node.linkable => return Err(FsError::NotFound),
            _ if node.flags.fixed() => return Err(FsError::NotPermitted),
            limits::LINKS_MAX.. => return Err(FsError::TooManyLinks),
            _ => {}
        }
        node.attr.nlink += 1;
        node.attr.ctime = now;
        node.linkable = false;
        self.add_name(parent, name, ino)?;
        self.count_lookup(ino)
    }

    /// Returns what lies below `ino`, found by walking; a file with several names counts wherever one of them is.
    pub(super) fn usage(&self, ino: InodeId) -> FsResult<TreeUsage> {
        let mut usage = TreeUsage::default();
        let (mut waiting, mut seen) = (vec![ino], HashSet::new());
        while let Some(at) = waiting.pop() {
            let node = self.node(at)?;
            match node.dir() {
                Ok(dir) => {
                    usage.dirs += u64::from(at != ino);
                    waiting.extend(dir.after(COOKIE_PARENT).map(|(_, _, child)| child));
                }
                Err(_) if seen.insert(at) => {
                    usage.files += 1;
                    usage.bytes += node.attr.size;
                }
                Err(_) => {}
            }
        }
        Ok(usage)
    }

    /// Returns whether flags let a name of `ino` go from `dir`.
    pub(super) fn check_takes(&self, dir: InodeId, ino: InodeId) -> FsResult<()> {
        self.node(dir)?.check_flags(false)?;
        self.node(ino)?.check_flags(false)
    }

    /// Removes a name of anything but a directory.
    pub(super) fn unlink(&mut self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        let ino = self.find(parent, name)?;
        if self.node(ino)?.is_dir() {
            return Err(FsError::IsDirectory);
        }
        self.check_takes(parent, ino)?;
        self.drop_name(parent, name, false)?;
        self.lose_link(ino)
    }

    /// Removes an empty directory.
    pub(super) fn rmdir(&mut self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        let ino = self.find(parent, name)?;
        self.node(ino)?.dir()?;
        self.check_takes(parent, ino)?;
        if !self.node(ino)?.dir()?.is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.drop_name(parent, name, true)?;
        self.lose_link(ino)
    }

    /// Makes or takes a regular file and opens it.
    pub(super) fn create(
        &mut self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Attr, Opened)> {
        let ino = match self.find(parent, name) {
            Ok(_) if flags.exclusive => return Err(FsError::Exists),
            Ok(ino) => ino,
            Err(FsError::NotFound) => self.make(caller, parent, name, New::regular(perm))?,
            Err(error) => return Err(error),
        };
        let opened = self.open(ino, flags)?;
        Ok((self.count_lookup(ino)?, opened))
    }

    /// Makes a regular file without a name and opens it.
    pub(super) fn tmpfile(
        &mut self,
        caller: Caller,
        parent: InodeId,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Attr, Opened)> {
        let dir = self.node(parent)?;
        dir.dir()?;
        dir.check_flags(true)?;
        let ino = self.make_nameless(caller, parent, New::regular(perm))?;
        let node = self.node_mut(ino)?;
        node.attr.nlink = 0;
        node.linkable = !flags.exclusive;
        let opened = self.open(ino, flags)?;
        Ok((self.count_lookup(ino)?, opened))
    }
}

impl New {
    /// An empty regular file.
    pub(super) fn regular(perm: u32) -> New {
        New {
            kind: FileType::Regular,
            body: Body::Regular(super::data::Data::default()),
            perm,
            rdev: 0,
            size: 0,
        }
    }
}
