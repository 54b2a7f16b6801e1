//! Paths of inodes and rows: for reports of conflicts, and to open files by their names.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use varve_engine::Clash;
use varve_schema::key::MetaRow;
use varve_schema::{EntryRow, InodeLocation, ParentRow, RowKey};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::FsResult;

use crate::fs::VarveFs;
use crate::held::{RETRIES_MAX, lost};
use crate::rows::for_each_pointer;

impl VarveFs {
    /// The files that programs have open to write to, each with a path from the directory `top` on. Who has mapped one has it open as
    /// well, and what he changes in memory comes before he closes it. Without those that have no name below `top`.
    pub fn open_for_writing(&self, top: InodeId) -> FsResult<Vec<(InodeId, PathBuf)>> {
        let Some(top) = self.path_of(top)? else { return Ok(Vec::new()) };
        let top = Path::new(OsStr::from_bytes(&top));
        let mut paths = Vec::new();
        for node in self.session.handles.written() {
            let path = self.path_below(top, node.ino)?;
            paths.extend(path.map(|path| (node.ino, path)));
        }
        Ok(paths)
    }

    /// The files among these that have a name, each with a path from the root on.
    pub(super) fn named_files(&self, files: &[InodeId]) -> FsResult<Vec<(InodeId, PathBuf)>> {
        let top = self.path_of(InodeId::ROOT)?.unwrap_or_default();
        let top = Path::new(OsStr::from_bytes(&top));
        let mut paths = Vec::new();
        for ino in files {
            let path = self.path_below(top, *ino)?;
            paths.extend(path.map(|path| (*ino, path)));
        }
        Ok(paths)
    }

    /// A path of a file, from the directory with the path `top` on.
    fn path_below(&self, top: &Path, ino: InodeId) -> FsResult<Option<PathBuf>> {
        let below = |dir: InodeId, name: &[u8]| {
            let above = self.path_of(dir)?.unwrap_or_default();
            let above = Path::new(OsStr::from_bytes(&above)).strip_prefix(top).ok();
            FsResult::Ok(above.map(|above| above.join(OsStr::from_bytes(name))))
        };
        for _ in 0..RETRIES_MAX {
            let place = self.session.inodes.place(ino)?;
            let key = match &place {
                Some(InodeLocation::Entry { key, slot }) => {
                    let row = self.entry_row(*key)?;
                    let named = row.at(*slot).filter(|named| named.body.ino() == ino);
                    if let Some(named) = named {
                        return below(InodeId::new(key.prefix()), &named.name);
                    }
                    *key
                }
                Some(InodeLocation::Own) | None => {
                    let mut found = None;
                    for_each_pointer(self.store.as_ref(), self.meta, ino, &mut |pointer| {
                        found = below(pointer.dir, &pointer.name)?;
                        Ok(found.is_none())
                    })?;
                    if found.is_some() {
                        return Ok(found);
                    }
                    RowKey::inode(ino)
                }
                Some(InodeLocation::Detached(_)) => return Ok(None),
            };
            // Whoever moves it has said so when he lets go of the row.
            drop(self.locks.lock(&[key]));
            if self.session.inodes.place(ino)? == place {
                return Ok(None);
            }
        }
        Err(lost(ino))
    }

    /// The path of an inode, for people.
    pub(crate) fn path_of_inode(&self, ino: InodeId) -> String {
        self.known_path(ino).unwrap_or_else(|| format!("inode {ino}"))
    }

    /// The same, if it is found: of a file of several names that of one of them.
    fn known_path(&self, ino: InodeId) -> Option<String> {
        if let Ok(Some(InodeLocation::Entry { key, slot })) = self.session.inodes.place(ino)
            && let Ok(row) = self.entry_row(key)
            && let Some(named) = row.at(slot)
        {
            return Some(self.path_of_name(InodeId::new(key.prefix()), &named.name));
        }
        if let Ok(Some(path)) = self.path_of(ino) {
            return Some(String::from_utf8_lossy(&path).into_owned());
        }
        let home = self.inode_row(ino).ok()??.home?;
        let key = RowKey::parent(ino, home.hash).to_bytes();
        let row = ParentRow::decode(&self.store.get(self.meta, &key).ok()??).ok()?;
        let named = row.pointers.iter().find(|pointer| pointer.dir == home.dir)?;
        Some(self.path_of_name(named.dir, &named.name))
    }

    fn path_of_name(&self, dir: InodeId, name: &[u8]) -> String {
        let above = self.path_of(dir).ok().flatten();
        let above = above.unwrap_or_else(|| format!("inode {dir}").into_bytes());
        let above = String::from_utf8_lossy(&above).trim_end_matches('/').to_owned();
        format!("{above}/{}", String::from_utf8_lossy(name))
    }

    /// The paths of `names`, each in its directory, and of what the rows `keys` stand for besides, as the main tree or else
    /// the transaction has them.
    pub(super) fn paths_of(
        &self,
        view: &VarveFs,
        names: &BTreeSet<(InodeId, Bytes)>,
        keys: &[(KeyspaceId, Bytes)],
    ) -> Vec<String> {
        let named = names.iter().map(|(dir, name)| {
            let fs = if self.path_of(*dir).is_ok_and(|path| path.is_some()) { self } else { view };
            fs.path_of_name(*dir, name)
        });
        let mut paths: BTreeSet<String> = named.collect();
        let mut unknown = BTreeSet::new();
        for ino in keys.iter().filter_map(|(keyspace, key)| self.concerned(*keyspace, key)) {
            match self.known_path(ino).or_else(|| view.known_path(ino)) {
                Some(path) => paths.insert(path),
                None => unknown.insert(format!("inode {ino}")),
            };
        }
        if paths.is_empty() { unknown.into_iter().collect() } else { paths.into_iter().collect() }
    }

    /// The inode that a row is about, if it is not one of names, which tell themselves.
    fn concerned(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<InodeId> {
        let key = RowKey::from_bytes(key)?;
        if keyspace == self.data {
            return Some(InodeId::new(key.prefix()));
        }
        match key.meta_kind() {
            MetaRow::Inode(ino)
            | MetaRow::Pending(ino)
            | MetaRow::Limits(ino)
            | MetaRow::Parent(ino, _)
            | MetaRow::CloneReference(_, ino)
            | MetaRow::CloneRemap(_, ino) => Some(ino),
            MetaRow::Entry(..) | MetaRow::Bookkeeping | MetaRow::Mark(_) | MetaRow::Unknown => None,
        }
    }
}

/// The names in the rows of a clash, if it is about names.
pub(crate) fn names_in(clash: &Clash<'_>, meta: KeyspaceId) -> Vec<(InodeId, Bytes)> {
    let key = RowKey::from_bytes(clash.key).filter(|_| clash.keyspace == meta);
    let Some(MetaRow::Entry(dir, _)) = key.map(RowKey::meta_kind) else { return Vec::new() };
    let rows = [&clash.base, &clash.theirs, &clash.ours].into_iter().flatten();
    let rows = rows.filter_map(|row| EntryRow::decode(row).ok());
    let names = rows.flat_map(|row| {
        let names = row.names().iter().map(|named| (dir, named.name.clone()));
        names.collect::<Vec<_>>()
    });
    names.collect()
}
