//! Rename, with the checks in the kernel's order (do_renameat2 and vfs_rename in fs/namei.c).

use varve_types::{FileName, InodeId};
use varve_vfs::{FileType, FsError, FsResult, RenameMode};

use super::State;
use super::names::New;
use super::node::Body;

impl State {
    /// Moves a name.
    pub(super) fn rename(
        &mut self,
        parent: InodeId,
        name: FileName<'_>,
        new_parent: InodeId,
        new_name: FileName<'_>,
        mode: RenameMode,
    ) -> FsResult<()> {
        self.node(parent)?.dir()?;
        self.node(new_parent)?.dir()?;
        let ino = self.find(parent, name)?;
        let target = match self.find(new_parent, new_name) {
            Ok(_) if mode.needs_absent() => return Err(FsError::Exists),
            Ok(target) => Some(target),
            Err(FsError::NotFound) if mode != RenameMode::Exchange => None,
            Err(error) => return Err(error),
        };
        if target != Some(ino) {
            self.check_takes(parent, ino)?;
            match target {
                Some(target) => self.check_takes(new_parent, target)?,
                None => self.node(new_parent)?.check_flags(true)?,
            }
        }
        if parent != new_parent {
            self.check_ancestry(ino, parent, target, new_parent, mode)?;
        }
        match target {
            Some(target) if target == ino => return Ok(()),
            Some(target) if mode == RenameMode::Exchange => {
                self.exchange((parent, name, ino), (new_parent, new_name, target))?;
            }
            Some(target) => {
                self.check_replace(ino, target)?;
                let was_dir = self.node(target)?.is_dir();
                self.drop_name(new_parent, new_name, was_dir)?;
                self.lose_link(target)?;
                self.move_name((parent, name, ino), (new_parent, new_name))?;
            }
            None if self.node(new_parent)?.attr.nlink == 0 => return Err(FsError::NotFound),
            None => self.move_name((parent, name, ino), (new_parent, new_name))?,
        }
        if let Some(caller) = mode.whiteout_by() {
            let new =
                New { kind: FileType::CharDevice, perm: 0, rdev: 0, size: 0, body: Body::Special };
            self.make(caller, parent, name, new)?;
        }
        Ok(())
    }

    /// Refuses to put a directory below itself, either of the two in an exchange, and to replace a
    /// directory that holds the source, which cannot be empty.
    fn check_ancestry(
        &self,
        ino: InodeId,
        parent: InodeId,
        target: Option<InodeId>,
        new_parent: InodeId,
        mode: RenameMode,
    ) -> FsResult<()> {
        if self.is_ancestor(ino, new_parent)? {
            return Err(FsError::IntoOwnSubtree);
        }
        match target {
            Some(target) if self.is_ancestor(target, parent)? => match mode {
                RenameMode::Exchange => Err(FsError::IntoOwnSubtree),
                _ => Err(FsError::NotEmpty),
            },
            _ => Ok(()),
        }
    }

    /// Returns whether `above` is `dir` or holds it.
    fn is_ancestor(&self, above: InodeId, dir: InodeId) -> FsResult<bool> {
        let mut at = dir;
        loop {
            if at == above {
                return Ok(true);
            }
            if at == InodeId::ROOT {
                return Ok(false);
            }
            at = self.node(at)?.dir()?.parent;
        }
    }

    fn check_replace(&self, ino: InodeId, target: InodeId) -> FsResult<()> {
        let target = self.node(target)?;
        match (self.node(ino)?.is_dir(), target.is_dir()) {
            (false, true) => Err(FsError::IsDirectory),
            (true, false) => Err(FsError::NotDirectory),
            (true, true) if !target.dir()?.is_empty() => Err(FsError::NotEmpty),
            _ => Ok(()),
        }
    }

    /// Moves to a name that is free by now.
    fn move_name(
        &mut self,
        (parent, name, ino): (InodeId, FileName<'_>, InodeId),
        (new_parent, new_name): (InodeId, FileName<'_>),
    ) -> FsResult<()> {
        let is_dir = self.node(ino)?.is_dir();
        self.drop_name(parent, name, is_dir)?;
        self.add_name(new_parent, new_name, ino)?;
        self.settle(ino, new_parent)
    }

    /// Swaps what two names stand for.
    fn exchange(
        &mut self,
        (parent, name, ino): (InodeId, FileName<'_>, InodeId),
        (new_parent, new_name, target): (InodeId, FileName<'_>, InodeId),
    ) -> FsResult<()> {
        let now = self.now();
        let (is_dir, target_is_dir) = (self.node(ino)?.is_dir(), self.node(target)?.is_dir());
        for (dir, name, goes, comes, holds) in [
            (parent, name, is_dir, target_is_dir, target),
            (new_parent, new_name, target_is_dir, is_dir, ino),
        ] {
            let node = self.node_mut(dir)?;
            node.dir_mut()?.set(name.as_bytes(), holds);
            node.attr.nlink = node.attr.nlink + u32::from(comes) - u32::from(goes);
            node.touch(now);
        }
        self.settle(ino, new_parent)?;
        self.settle(target, parent)
    }

    /// An inode has come to its new place.
    fn settle(&mut self, ino: InodeId, parent: InodeId) -> FsResult<()> {
        let now = self.now();
        let node = self.node_mut(ino)?;
        node.attr.ctime = now;
        if let Ok(dir) = node.dir_mut() {
            dir.parent = parent;
        }
        Ok(())
    }
}
