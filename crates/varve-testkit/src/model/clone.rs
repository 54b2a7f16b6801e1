//! Clones trees by walking and copying them.

use std::collections::HashMap;

use varve_types::{FileName, InodeId};
use varve_vfs::FsResult;

use super::State;
use super::node::{Body, COOKIE_PARENT, Dir, Node};

impl State {
    /// Makes `name` in `parent` a copy of what `old_name` in `dir` stands for. Names of one file become names of one file.
    pub(super) fn clone_tree(
        &mut self,
        dir: InodeId,
        old_name: FileName<'_>,
        parent: InodeId,
        name: FileName<'_>,
    ) -> FsResult<InodeId> {
        self.check_free(parent, name)?;
        let old = self.find(dir, old_name)?;
        let mut copied = HashMap::new();
        let new = self.copy(old, parent, &mut copied)?;
        self.add_name(parent, name, new)?;
        Ok(new)
    }

    fn copy(
        &mut self,
        old: InodeId,
        parent: InodeId,
        copied: &mut HashMap<InodeId, InodeId>,
    ) -> FsResult<InodeId> {
        if let Some(new) = copied.get(&old).copied() {
            self.node_mut(new)?.attr.nlink += 1;
            return Ok(new);
        }
        let (ino, now) = (InodeId::new(self.nodes.len() as u64), self.now());
        let node = self.node(old)?;
        let (body, names) = match &node.body {
            Body::Regular(data) => (Body::Regular(data.clone()), Vec::new()),
            Body::Symlink(target) => (Body::Symlink(target.clone()), Vec::new()),
            Body::Special => (Body::Special, Vec::new()),
            Body::Directory(dir) => {
                let names = dir.after(COOKIE_PARENT).map(|(_, name, ino)| (name.to_vec(), ino));
                (Body::Directory(Dir::new(parent)), names.collect())
            }
        };
        let (attr, xattrs, flags) = (node.attr, node.xattrs.clone(), node.flags);
        let mut new = Node::new(ino, attr.kind, body, now);
        let nlink = if new.is_dir() { attr.nlink } else { 1 };
        new.attr = varve_vfs::Attr { ino, nlink, ctime: now, btime: now, ..attr };
        new.xattrs = xattrs;
        new.flags = flags;
        copied.insert(old, ino);
        self.nodes.push(Some(Box::new(new)));
        for (name, child) in names {
            let child = self.copy(child, ino, copied)?;
            self.node_mut(ino)?.dir_mut()?.set(&name, child);
        }
        Ok(ino)
    }
}
