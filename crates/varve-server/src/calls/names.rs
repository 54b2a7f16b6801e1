//! Calls about names.
//!
//! Calls that remove or replace a name look up what it stands for first, because that changes too. Calls that make a
//! name lock it as well: a rename that has found no target must not replace one that was made since.

use smallvec::{SmallVec, smallvec};
use varve_types::{FileName, InodeId};
use varve_vfs::{Attr, Entry, FileType, FsError, FsResult, RenameMode, Vfs};
use varve_wire::answer::{Answer, Listed};
use varve_wire::{Cached, DATA_BYTES_MAX, Node, Request};

use super::{Call, Served, Stop, done};

impl Call<'_> {
    /// Makes a call about names.
    pub(super) fn names(&self, request: &Request<'_>, data: &[u8]) -> Served {
        let vfs = self.vfs();
        match *request {
            Request::Lookup { parent, name } => {
                let (parent, name) =
                    (self.node(parent)?, FileName::new(name).map_err(FsError::from)?);
                let learned = self.looks();
                let found = self.settled(|| vfs.lookup(parent, name))?;
                self.entry_done(Some((parent, name.as_bytes())), &found, learned)
            }
            Request::LookupParent { dir } => {
                let (dir, learned) = (self.node(dir)?, self.looks());
                let found = self.settled(|| vfs.lookup_parent(dir))?;
                self.entry_done(None, &found, learned)
            }
            Request::LookupInode { ino } => {
                let learned = self.looks();
                let found = self.settled(|| vfs.lookup_inode(InodeId::new(ino)))?;
                self.entry_done(None, &found, learned)
            }
            Request::Mknod { ref caller, parent, name, mode, rdev } => {
                self.made(parent, name, |vfs, dir, name| {
                    vfs.mknod(caller.into(), dir, name, mode, rdev)
                })
            }
            Request::Mkdir { ref caller, parent, name, perm } => {
                self.made(parent, name, |vfs, dir, name| vfs.mkdir(caller.into(), dir, name, perm))
            }
            Request::Symlink { ref caller, parent, name } => {
                self.made(parent, name, |vfs, dir, name| {
                    vfs.symlink(caller.into(), dir, name, data)
                })
            }
            Request::Link { node, parent, name } => {
                let (ino, parent) = (self.node(node)?, self.node(parent)?);
                let name = FileName::new(name).map_err(FsError::from)?;
                self.writable()?;
                let names = [(parent, name.as_bytes())];
                let _names = self.service.changes.lock_names(&names, self.may_wait())?;
                let _change =
                    self.change(smallvec![Cached::Inode(parent.get()), Cached::Inode(ino.get())])?;
                let learned = self.changes();
                let linked = self.settled(|| vfs.link(ino, parent, name))?;
                self.entry_done(Some((parent, name.as_bytes())), &linked, learned)
            }
            Request::Unlink { parent, name } => {
                self.removes(parent, name, |dir, name| vfs.unlink(dir, name))
            }
            Request::Rmdir { parent, name } => {
                self.removes(parent, name, |dir, name| vfs.rmdir(dir, name))
            }
            Request::Rename { parent, name, new_parent, new_name, ref mode } => {
                self.rename((parent, name), (new_parent, new_name), mode.into())
            }
            Request::CloneTree { dir, old_name, parent, name } => {
                let dir = self.node(dir)?;
                let old_name = FileName::new(old_name).map_err(FsError::from)?;
                self.made(parent, name, |vfs, parent, name| {
                    vfs.clone_tree(dir, old_name, parent, name)
                })
            }
            Request::Readdir { node, cookie, with_attr, bytes } => {
                self.readdir(node, cookie, with_attr, bytes)
            }
            _ => Err(FsError::NotImplemented.into()),
        }
    }

    /// Makes an object by `make` under a name in a directory.
    fn made(
        &self,
        parent: Node,
        name: &[u8],
        make: impl Fn(&dyn Vfs, InodeId, FileName<'_>) -> FsResult<Entry>,
    ) -> Served {
        let (parent, name) = (self.node(parent)?, FileName::new(name).map_err(FsError::from)?);
        self.writable()?;
        let names = [(parent, name.as_bytes())];
        let _names = self.service.changes.lock_names(&names, self.may_wait())?;
        let _change = self.change_inode(parent)?;
        // The new inode is not what this call changes: others may have found it and begun to change it.
        let learned = self.looks();
        let made = self.settled(|| make(self.vfs(), parent, name))?;
        self.entry_done(Some((parent, name.as_bytes())), &made, learned)
    }

    /// Looks up what a name stands for, before it is removed or replaced: an inode whose link count changes.
    fn target(&self, dir: InodeId, name: FileName<'_>) -> Served<Option<Attr>> {
        match self.settled(|| self.vfs().lookup(dir, name)) {
            Ok(entry) => {
                self.service.nodes.note(self.vfs(), entry.attr.ino, Some(self.depth_in(dir)));
                Ok(Some(entry.attr))
            }
            Err(Stop::Failed(FsError::NotFound)) => Ok(None),
            Err(stop) => Err(stop),
        }
    }

    fn rename(
        &self,
        (parent, name): (Node, &[u8]),
        (new_parent, new_name): (Node, &[u8]),
        mode: RenameMode,
    ) -> Served {
        let (parent, new_parent) = (self.node(parent)?, self.node(new_parent)?);
        let (name, new_name) = (
            FileName::new(name).map_err(FsError::from)?,
            FileName::new(new_name).map_err(FsError::from)?,
        );
        let names = [(parent, name.as_bytes()), (new_parent, new_name.as_bytes())];
        self.writable()?;
        let _names = self.service.changes.lock_names(&names, self.may_wait())?;
        let targets = [self.target(parent, name)?, self.target(new_parent, new_name)?];
        let mut objects: SmallVec<[Cached; 4]> =
            [parent, new_parent].iter().map(|dir| Cached::Inode(dir.get())).collect();
        objects.dedup();
        for ((dir, name), target) in names.into_iter().zip(&targets) {
            let Some(target) = target else { continue };
            objects.push(Cached::Inode(target.ino.get()));
            objects.push(Cached::Name(dir.get(), name.to_vec()));
        }
        let _change = self.change(objects)?;
        self.settled(|| self.vfs().rename(parent, name, new_parent, new_name, mode))?;
        let [moved, replaced] = &targets;
        let same = moved.map(|moved| moved.ino) == replaced.map(|replaced| replaced.ino);
        if mode != RenameMode::Exchange && !same {
            self.removed(replaced.as_ref());
        }
        done()
    }

    /// A name of `target` is gone. A file without names must not stay looked up, because its bytes would stay. What has
    /// none, such as a directory, may: a program can still be in it.
    fn removed(&self, target: Option<&Attr>) {
        if let Some(target) = target
            && target.kind == FileType::Regular
            && target.nlink <= 1
        {
            self.service.nodes.forget(self.vfs(), target.ino);
        }
    }

    /// Removes a name by `remove`.
    fn removes(
        &self,
        parent: Node,
        name: &[u8],
        remove: impl Fn(InodeId, FileName<'_>) -> FsResult<()>,
    ) -> Served {
        let (parent, name) = (self.node(parent)?, FileName::new(name).map_err(FsError::from)?);
        self.writable()?;
        let names = [(parent, name.as_bytes())];
        let _names = self.service.changes.lock_names(&names, self.may_wait())?;
        let target = self.target(parent, name)?;
        let mut objects = smallvec![Cached::Inode(parent.get())];
        if let Some(target) = &target {
            objects.push(Cached::Inode(target.ino.get()));
            objects.push(Cached::Name(parent.get(), name.as_bytes().to_vec()));
        }
        let _change = self.change(objects)?;
        self.settled(|| remove(parent, name))?;
        self.removed(target.as_ref());
        done()
    }

    fn readdir(&self, node: Node, cookie: u64, with_attr: bool, bytes: u32) -> Served {
        let (ino, learned, vfs) = (self.node(node)?, self.looks(), self.vfs());
        let bytes_max = (bytes as usize).min(DATA_BYTES_MAX);
        let (mut data, mut names, mut is_end) = (Vec::new(), 0, true);
        let mut looked_up = SmallVec::<[InodeId; 64]>::new();
        let listed = self.settled(|| {
            (names, is_end) = (0, true);
            data.clear();
            vfs.readdir(ino, cookie, with_attr, &mut |entry| {
                let name = (ino, entry.name);
                let found = entry.attr.as_ref().map(|attr| self.found(Some(name), attr, learned));
                let listed = Listed {
                    ino: entry.ino.get(),
                    kind: entry.kind.mode_bits(),
                    cookie: entry.cookie,
                    name: entry.name,
                    found,
                };
                let before = data.len();
                if let Ok(extended) = postcard::to_extend(&listed, std::mem::take(&mut data)) {
                    data = extended;
                }
                if data.len() > bytes_max {
                    data.truncate(before);
                    is_end = false;
                    return false;
                }
                names += 1;
                if entry.attr.is_some() {
                    looked_up.push(entry.ino);
                }
                true
            })
        });
        let depth = self.depth_in(ino);
        for found in looked_up {
            self.service.nodes.note(vfs, found, Some(depth));
        }
        match listed {
            // The next request meets the error again.
            Err(Stop::Failed(_)) if names > 0 => is_end = false,
            listed => listed?,
        }
        Ok((Answer::Listed { names, is_end }, data.into()))
    }
}
