//! Which objects there are.

use std::path::PathBuf;

use varve_types::InodeId;
use varve_vfs::FsResult;

use super::Objects;
use crate::error;
use crate::files::exists;
use crate::overlay::EXTENSION;

impl Objects {
    /// Every object there is, in the order of ids, and the paths of files that are none.
    pub(crate) fn walk(&self) -> FsResult<ObjectWalk<'_>> {
        let mut walk = ObjectWalk { objects: self, levels: Default::default() };
        // A view need not have anything of its own, and a copy of a store without large files may lack their directory.
        if exists(self.env.as_ref(), &self.dir).map_err(|e| error::object("stat", &self.dir, e))? {
            walk.levels[0] = walk.list(self.dir.clone())?;
        }
        Ok(walk)
    }

    /// Of a view: the inodes of which it has something of its own, in order.
    pub(crate) fn own_inodes(&self) -> FsResult<Vec<InodeId>> {
        let mut own = Vec::new();
        for found in self.walk()? {
            match found? {
                Ok(ino) => own.push(ino),
                // What else is no object was begun.
                Err(path) if path.extension().is_some_and(|e| e == EXTENSION) => {
                    let number = path.file_stem().and_then(|name| name.to_str()?.parse().ok());
                    own.extend(number.map(InodeId::new));
                }
                Err(_) => {}
            }
        }
        own.sort_unstable();
        own.dedup();
        Ok(own)
    }
}

/// A walk over the object files, one directory of each level in memory.
pub(crate) struct ObjectWalk<'a> {
    objects: &'a Objects,
    /// What is left of the directory of each level, last first.
    levels: [Vec<Listed>; 3],
}

/// Something in the directories of objects; what is no number comes first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Listed {
    number: Option<u64>,
    path: PathBuf,
    is_dir: bool,
}

impl ObjectWalk<'_> {
    fn list(&self, dir: PathBuf) -> FsResult<Vec<Listed>> {
        let items = self.objects.env.list(&dir).map_err(|e| error::object("list", &dir, e))?;
        let mut listed: Vec<Listed> = items
            .into_iter()
            .map(|item| Listed {
                number: item.name.to_str().and_then(|name| name.parse().ok()),
                path: dir.join(&item.name),
                is_dir: item.kind == varve_env::FileKind::Dir,
            })
            .collect();
        listed.sort_unstable_by(|a, b| b.cmp(a));
        Ok(listed)
    }
}

impl Iterator for ObjectWalk<'_> {
    type Item = FsResult<Result<InodeId, PathBuf>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(Listed { number, path, is_dir }) = self.levels[2].pop() {
                let ino = number.map(InodeId::new).filter(|_| !is_dir);
                return Some(Ok(ino.filter(|ino| self.objects.path(*ino) == path).ok_or(path)));
            }
            let (level, item) = match self.levels[1].pop() {
                Some(item) => (2, item),
                None => (1, self.levels[0].pop()?),
            };
            if !item.is_dir || item.number.is_none() {
                return Some(Ok(Err(item.path)));
            }
            match self.list(item.path) {
                Ok(listed) => self.levels[level] = listed,
                Err(error) => {
                    self.levels = Default::default();
                    return Some(Err(error));
                }
            }
        }
    }
}
