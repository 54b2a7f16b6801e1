//! A file system in memory, just large enough to be driven through the kernel.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;

use bytes::Bytes;
use parking_lot::Mutex;
use varve_types::{FileName, InodeId, Timestamp};
use varve_vfs::{
    AccessMode, AllocateMode, Attr, Caller, DirEntry, Entry, FileType, FsError, FsResult, Handle,
    OpenFlags, Opened, RenameMode, SeekFrom, SetAttr, SetTime, StatFs, Vfs, XattrMode,
};

#[derive(Clone, Copy)]
struct Child {
    ino: InodeId,
    cookie: u64,
}

struct Node {
    attr: Attr,
    parent: InodeId,
    children: HashMap<Vec<u8>, Child>,
    cookies: BTreeMap<u64, Vec<u8>>,
    data: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    opens: u64,
}

struct Tree {
    nodes: HashMap<InodeId, Node>,
    next: u64,
    handles: HashMap<Handle, OpenFlags>,
    clock: i64,
}

/// The file system.
pub(crate) struct MemFs {
    tree: Mutex<Tree>,
}

fn new_attr(ino: InodeId, caller: Caller, mode: u32, rdev: u32, now: Timestamp) -> Attr {
    let kind = FileType::from_mode(mode).unwrap_or(FileType::Regular);
    Attr {
        ino,
        kind,
        perm: mode & 0o7777 & !caller.umask,
        nlink: if kind == FileType::Directory { 2 } else { 1 },
        uid: caller.uid,
        gid: caller.gid,
        rdev,
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
    }
}

impl Tree {
    fn now(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp::new(1_700_000_000 + self.clock, 0).unwrap_or_default()
    }

    fn get(&self, ino: InodeId) -> FsResult<&Node> {
        self.nodes.get(&ino).ok_or(FsError::Stale)
    }

    fn get_mut(&mut self, ino: InodeId) -> FsResult<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(FsError::Stale)
    }

    fn find(&self, parent: InodeId, name: FileName<'_>) -> FsResult<InodeId> {
        self.get(parent)?
            .children
            .get(name.as_bytes())
            .map(|child| child.ino)
            .ok_or(FsError::NotFound)
    }

    fn attach(&mut self, parent: InodeId, name: FileName<'_>, ino: InodeId) -> FsResult<()> {
        let now = self.now();
        let directory = self.get(ino)?.attr.kind == FileType::Directory;
        self.get_mut(ino)?.parent = parent;
        let cookie = self.next;
        self.next += 1;
        let dir = self.get_mut(parent)?;
        dir.children.insert(name.as_bytes().to_vec(), Child { ino, cookie });
        dir.cookies.insert(cookie, name.as_bytes().to_vec());
        dir.attr.nlink += u32::from(directory);
        (dir.attr.mtime, dir.attr.ctime) = (now, now);
        Ok(())
    }

    fn detach(&mut self, parent: InodeId, name: FileName<'_>) -> FsResult<InodeId> {
        let now = self.now();
        let ino = self.find(parent, name)?;
        let directory = self.get(ino)?.attr.kind == FileType::Directory;
        let dir = self.get_mut(parent)?;
        if let Some(child) = dir.children.remove(name.as_bytes()) {
            dir.cookies.remove(&child.cookie);
        }
        dir.attr.nlink -= u32::from(directory);
        (dir.attr.mtime, dir.attr.ctime) = (now, now);
        Ok(ino)
    }

    fn drop_link(&mut self, ino: InodeId) -> FsResult<()> {
        let now = self.now();
        let node = self.get_mut(ino)?;
        node.attr.nlink =
            if node.attr.kind == FileType::Directory { 0 } else { node.attr.nlink - 1 };
        node.attr.ctime = now;
        self.reclaim(ino);
        Ok(())
    }

    fn reclaim(&mut self, ino: InodeId) {
        if self.nodes.get(&ino).is_some_and(|node| node.attr.nlink == 0 && node.opens == 0) {
            self.nodes.remove(&ino);
        }
    }

    fn make(&mut self, caller: Caller, mode: u32, rdev: u32, parent: InodeId) -> InodeId {
        let now = self.now();
        let ino = InodeId::new(self.next);
        self.next += 1;
        let node = Node {
            attr: new_attr(ino, caller, mode, rdev, now),
            parent,
            children: HashMap::new(),
            cookies: BTreeMap::new(),
            data: Vec::new(),
            xattrs: BTreeMap::new(),
            opens: 0,
        };
        self.nodes.insert(ino, node);
        ino
    }

    fn add(
        &mut self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        mode: u32,
        rdev: u32,
    ) -> FsResult<Entry> {
        if self.find(parent, name).is_ok() {
            return Err(FsError::Exists);
        }
        let ino = self.make(caller, mode, rdev, parent);
        self.attach(parent, name, ino)?;
        Ok(Entry { attr: self.get(ino)?.attr })
    }

    fn open(&mut self, ino: InodeId, flags: OpenFlags) -> FsResult<Opened> {
        let handle = Handle(self.next);
        self.next += 1;
        if flags.truncate {
            self.resize(ino, 0)?;
        }
        self.get_mut(ino)?.opens += 1;
        self.handles.insert(handle, flags);
        Ok(Opened { handle, passthrough: false })
    }

    fn resize(&mut self, ino: InodeId, size: u64) -> FsResult<()> {
        let now = self.now();
        let node = self.get_mut(ino)?;
        node.data.resize(size as usize, 0);
        (node.attr.mtime, node.attr.ctime) = (now, now);
        set_size(node);
        Ok(())
    }
}

fn set_size(node: &mut Node) {
    node.attr.size = node.data.len() as u64;
    node.attr.blocks = node.attr.size.div_ceil(512);
}

fn drop_set_id(attr: &mut Attr) {
    attr.perm &= if attr.perm & 0o010 != 0 { !0o6000 } else { !0o4000 };
}

impl MemFs {
    /// An empty file system.
    pub(crate) fn new() -> MemFs {
        let mut tree = Tree {
            nodes: HashMap::new(),
            next: InodeId::ROOT.get(),
            handles: HashMap::new(),
            clock: 0,
        };
        let root = tree.make(Caller::ROOT, 0o040_777, 0, InodeId::ROOT);
        assert_eq!(root, InodeId::ROOT);
        tree.next = 16;
        MemFs { tree: Mutex::new(tree) }
    }

    /// How many files are open.
    pub(crate) fn open_files(&self) -> usize {
        self.tree.lock().handles.len()
    }
}

impl Vfs for MemFs {
    fn lookup(&self, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        let tree = self.tree.lock();
        Ok(Entry { attr: tree.get(tree.find(parent, name)?)?.attr })
    }

    fn lookup_parent(&self, dir: InodeId) -> FsResult<Entry> {
        let tree = self.tree.lock();
        Ok(Entry { attr: tree.get(tree.get(dir)?.parent)?.attr })
    }

    fn forget(&self, _ino: InodeId, _lookups: u64) {}

    fn getattr(&self, ino: InodeId) -> FsResult<Attr> {
        Ok(self.tree.lock().get(ino)?.attr)
    }

    fn setattr(&self, _caller: Caller, ino: InodeId, set: SetAttr) -> FsResult<Attr> {
        let mut tree = self.tree.lock();
        if let Some(size) = set.size {
            tree.resize(ino, size)?;
        }
        let now = tree.now();
        let attr = &mut tree.get_mut(ino)?.attr;
        if set.kill_set_id {
            drop_set_id(attr);
        }
        let at = |time: SetTime| if let SetTime::To(time) = time { time } else { now };
        attr.perm = set.perm.unwrap_or(attr.perm);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, at);
        attr.mtime = set.mtime.map_or(attr.mtime, at);
        attr.ctime = now;
        Ok(*attr)
    }

    fn readlink(&self, ino: InodeId) -> FsResult<Bytes> {
        Ok(Bytes::from(self.tree.lock().get(ino)?.data.clone()))
    }

    fn mknod(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        mode: u32,
        rdev: u32,
    ) -> FsResult<Entry> {
        self.tree.lock().add(caller, parent, name, mode, rdev)
    }

    fn mkdir(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
    ) -> FsResult<Entry> {
        self.tree.lock().add(caller, parent, name, 0o040_000 | perm, 0)
    }

    fn symlink(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        target: &[u8],
    ) -> FsResult<Entry> {
        let mut tree = self.tree.lock();
        let entry = tree.add(caller, parent, name, 0o120_777, 0)?;
        let node = tree.get_mut(entry.attr.ino)?;
        node.data = target.to_vec();
        set_size(node);
        Ok(Entry { attr: node.attr })
    }

    fn link(&self, ino: InodeId, parent: InodeId, name: FileName<'_>) -> FsResult<Entry> {
        let mut tree = self.tree.lock();
        if tree.find(parent, name).is_ok() {
            return Err(FsError::Exists);
        }
        tree.attach(parent, name, ino)?;
        let attr = &mut tree.get_mut(ino)?.attr;
        attr.nlink += 1;
        Ok(Entry { attr: *attr })
    }

    fn unlink(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        let mut tree = self.tree.lock();
        let ino = tree.detach(parent, name)?;
        tree.drop_link(ino)
    }

    fn rmdir(&self, parent: InodeId, name: FileName<'_>) -> FsResult<()> {
        let mut tree = self.tree.lock();
        let ino = tree.find(parent, name)?;
        if !tree.get(ino)?.children.is_empty() {
            return Err(FsError::NotEmpty);
        }
        tree.detach(parent, name)?;
        tree.drop_link(ino)
    }

    fn rename(
        &self,
        parent: InodeId,
        name: FileName<'_>,
        new_parent: InodeId,
        new_name: FileName<'_>,
        mode: RenameMode,
    ) -> FsResult<()> {
        let mut tree = self.tree.lock();
        let ino = tree.find(parent, name)?;
        let target = tree.find(new_parent, new_name).ok();
        match (mode, target) {
            (RenameMode::Exchange, None) => Err(FsError::NotFound),
            (RenameMode::NoReplace, Some(_)) => Err(FsError::Exists),
            (_, Some(target)) if target == ino => Ok(()),
            (RenameMode::Exchange, Some(target)) => {
                tree.detach(parent, name)?;
                tree.detach(new_parent, new_name)?;
                tree.attach(parent, name, target)?;
                tree.attach(new_parent, new_name, ino)
            }
            (_, target) => {
                if let Some(target) = target {
                    if !tree.get(target)?.children.is_empty() {
                        return Err(FsError::NotEmpty);
                    }
                    tree.detach(new_parent, new_name)?;
                    tree.drop_link(target)?;
                }
                tree.detach(parent, name)?;
                tree.attach(new_parent, new_name, ino)
            }
        }
    }

    fn create(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        let mut tree = self.tree.lock();
        let entry = tree.add(caller, parent, name, 0o100_000 | perm, 0)?;
        let opened = tree.open(entry.attr.ino, flags)?;
        Ok((entry, opened))
    }

    fn tmpfile(
        &self,
        _caller: Caller,
        _parent: InodeId,
        _perm: u32,
        _flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        Err(FsError::NotSupported("files without a name"))
    }

    fn open(&self, ino: InodeId, flags: OpenFlags) -> FsResult<Opened> {
        self.tree.lock().open(ino, flags)
    }

    fn with_passthrough(
        &self,
        _handle: Handle,
        _take: &mut dyn FnMut(BorrowedFd<'_>),
    ) -> FsResult<()> {
        Err(FsError::NotSupported("passthrough"))
    }

    fn read(&self, ino: InodeId, _handle: Handle, offset: u64, len: usize) -> FsResult<Bytes> {
        let tree = self.tree.lock();
        let data = &tree.get(ino)?.data;
        let start = data.len().min(offset as usize);
        let end = data.len().min(start + len);
        Ok(Bytes::copy_from_slice(&data[start..end]))
    }

    fn write(
        &self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> FsResult<usize> {
        let mut tree = self.tree.lock();
        let now = tree.now();
        let append = tree.handles.get(&handle).ok_or(FsError::BadHandle)?.append;
        let node = tree.get_mut(ino)?;
        let start = if append { node.data.len() } else { offset as usize };
        let end = start + data.len();
        if node.data.len() < end {
            node.data.resize(end, 0);
        }
        node.data[start..end].copy_from_slice(data);
        if kill_set_id {
            drop_set_id(&mut node.attr);
        }
        (node.attr.mtime, node.attr.ctime) = (now, now);
        set_size(node);
        Ok(data.len())
    }

    fn release(&self, ino: InodeId, handle: Handle) -> FsResult<()> {
        let mut tree = self.tree.lock();
        tree.handles.remove(&handle).ok_or(FsError::BadHandle)?;
        tree.get_mut(ino)?.opens -= 1;
        tree.reclaim(ino);
        Ok(())
    }

    fn fsync(&self, _ino: InodeId, handle: Handle, _data_only: bool) -> FsResult<()> {
        self.tree.lock().handles.get(&handle).map(|_| ()).ok_or(FsError::BadHandle)
    }

    fn fsync_dir(&self, ino: InodeId) -> FsResult<()> {
        self.getattr(ino).map(|_| ())
    }

    fn sync(&self) -> FsResult<()> {
        Ok(())
    }

    fn readdir(
        &self,
        ino: InodeId,
        cookie: u64,
        with_attr: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> FsResult<()> {
        let tree = self.tree.lock();
        let dir = tree.get(ino)?;
        let kind = FileType::Directory;
        for (at, dots, ino) in [(1, &b"."[..], ino), (2, b"..", dir.parent)] {
            if cookie < at && !emit(&DirEntry { ino, kind, name: dots, cookie: at, attr: None }) {
                return Ok(());
            }
        }
        for (&at, name) in dir.cookies.range(cookie.max(2) + 1..) {
            let attr = tree.get(dir.children[name].ino)?.attr;
            let given = with_attr.then_some(attr);
            if !emit(&DirEntry { ino: attr.ino, kind: attr.kind, name, cookie: at, attr: given }) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn statfs(&self) -> FsResult<StatFs> {
        Ok(StatFs {
            block_bytes: 4096,
            blocks: 1000,
            blocks_free: 600,
            blocks_available: 500,
            files: 100,
            files_free: 90,
            name_bytes_max: 255,
        })
    }

    fn access(
        &self,
        _caller: Caller,
        _groups: &[u32],
        _ino: InodeId,
        _mode: AccessMode,
    ) -> FsResult<()> {
        Err(FsError::NotSupported("access is checked by the kernel"))
    }

    fn fallocate(
        &self,
        ino: InodeId,
        _handle: Handle,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> FsResult<()> {
        let mut tree = self.tree.lock();
        let end = offset + len;
        let size = tree.get(ino)?.attr.size;
        if matches!(mode, AllocateMode::Extend | AllocateMode::ZeroRange) && end > size {
            tree.resize(ino, end)?;
        }
        if !matches!(mode, AllocateMode::Extend | AllocateMode::KeepSize) {
            let data = &mut tree.get_mut(ino)?.data;
            let end = data.len().min(end as usize);
            if let Some(range) = data.get_mut(offset as usize..end) {
                range.fill(0);
            }
        }
        Ok(())
    }

    fn lseek(&self, ino: InodeId, _handle: Handle, offset: u64, what: SeekFrom) -> FsResult<u64> {
        let size = self.getattr(ino)?.size;
        match what {
            _ if offset >= size => Err(FsError::NoSuchOffset),
            SeekFrom::Data => Ok(offset),
            SeekFrom::Hole => Ok(size),
        }
    }

    fn getxattr(&self, ino: InodeId, name: &[u8]) -> FsResult<Bytes> {
        let tree = self.tree.lock();
        tree.get(ino)?
            .xattrs
            .get(name)
            .map(|value| Bytes::from(value.clone()))
            .ok_or(FsError::NoXattr)
    }

    fn setxattr(&self, ino: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> FsResult<()> {
        let mut tree = self.tree.lock();
        let xattrs = &mut tree.get_mut(ino)?.xattrs;
        match (mode, xattrs.contains_key(name)) {
            (XattrMode::Create, true) => Err(FsError::XattrExists),
            (XattrMode::Replace, false) => Err(FsError::NoXattr),
            _ => {
                xattrs.insert(name.to_vec(), value.to_vec());
                Ok(())
            }
        }
    }

    fn listxattr(&self, ino: InodeId) -> FsResult<Vec<u8>> {
        let tree = self.tree.lock();
        Ok(tree
            .get(ino)?
            .xattrs
            .keys()
            .flat_map(|name| [name.as_slice(), b"\0"].concat())
            .collect())
    }

    fn removexattr(&self, ino: InodeId, name: &[u8]) -> FsResult<()> {
        let mut tree = self.tree.lock();
        tree.get_mut(ino)?.xattrs.remove(name).map(|_| ()).ok_or(FsError::NoXattr)
    }

    fn status_json(&self) -> String {
        String::from("{\"kind\":\"memory\"}")
    }
}
