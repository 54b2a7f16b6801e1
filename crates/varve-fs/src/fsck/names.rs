//! The key space `meta`: entries, inodes, pending work.

use varve_engine::{Direction, KeyRange};
use varve_schema::key::{ID_MARK, MetaRow, STORE_ID};
use varve_schema::{
    Body, Content, DirInfo, EntryRow, EntrySuffix, FileKind, Inode, META, Named, Pending, Reader,
    RowKey, Usage, UsageChange, decode_inode_row,
};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::{Check, Finding};
use crate::error;

const PHASE: &str = "names";

/// The group of rows of one directory.
pub(super) struct Group {
    pub(super) ino: InodeId,
    info: Option<DirInfo>,
    entries: u64,
    subdirs: u64,
    /// What lies directly in it and what its subdirectories have told.
    pub(super) usage: Usage,
}

impl Check<'_> {
    pub(super) fn check_names(&mut self) -> FsResult<()> {
        self.begin(PHASE);
        let rows = self.snapshot.scan(self.fs.meta, KeyRange::all(), Direction::Forward);
        let mut group: Option<Group> = None;
        for row in rows.map_err(error::store)? {
            let (bytes, value) = row.map_err(error::store)?;
            self.step(PHASE);
            let Some(key) = RowKey::from_bytes(&bytes) else {
                self.found(Finding::UnknownRow { keyspace: META, prefix: 0, suffix: 0 });
                continue;
            };
            let ino = InodeId::new(key.prefix());
            if group.as_ref().is_none_or(|group| group.ino != ino) {
                self.end_group(group.take());
                let usage = Usage::default();
                group = Some(Group { ino, info: None, entries: 0, subdirs: 0, usage });
            }
            let Some(group) = &mut group else { continue };
            match key.meta_kind() {
                MetaRow::Bookkeeping => self.bookkeeping(key, &value),
                MetaRow::Pending(ino) => match Pending::decode(&value) {
                    Ok(pending) => self.note_pending(ino, pending),
                    Err(error) => self.unreadable(key, &error),
                },
                MetaRow::Mark(_) => self.mark_row(key, &value),
                MetaRow::Limits(dir) => self.limits_row(key, dir, &value)?,
                MetaRow::Parent(ino, hash) => self.parent_row(ino, hash, key, &value)?,
                MetaRow::Inode(ino) => match decode_inode_row(&value) {
                    Ok(inode) => self.inode_row(ino, &inode, group)?,
                    Err(error) => self.unreadable(key, &error),
                },
                MetaRow::Entry(dir, suffix) => match EntryRow::decode(&value) {
                    Ok(row) => {
                        for named in row.names() {
                            self.entry(dir, suffix, named, group)?;
                        }
                    }
                    Err(error) => self.unreadable(key, &error),
                },
                MetaRow::Unknown => self.found(Finding::UnknownRow {
                    keyspace: META,
                    prefix: key.prefix(),
                    suffix: key.suffix(),
                }),
            }
        }
        self.end_group(group);
        self.check_links();
        self.check_marks()?;
        if !self.inodes.contains(InodeId::ROOT) {
            self.found(Finding::NoRoot);
        }
        Ok(())
    }

    pub(super) fn unreadable(&mut self, key: RowKey, error: &varve_schema::DecodeError) {
        self.found(Finding::UnreadableRow {
            keyspace: META,
            prefix: key.prefix(),
            suffix: key.suffix(),
            detail: error.to_string(),
        });
    }

    fn bookkeeping(&mut self, key: RowKey, value: &bytes::Bytes) {
        if key == STORE_ID {
            // The open compared it with the superblock.
            return;
        }
        if key != ID_MARK {
            let (prefix, suffix) = (key.prefix(), key.suffix());
            return self.found(Finding::UnknownRow { keyspace: META, prefix, suffix });
        }
        let mut reader = Reader::new(value);
        match reader.version().and_then(|()| reader.varint()) {
            Ok(mark) => self.mark = mark,
            Err(error) => self.unreadable(key, &error),
        }
    }

    fn note_pending(&mut self, ino: InodeId, pending: Pending) {
        let what = match pending {
            Pending::Orphan => "removed while in use",
            Pending::OrphanObjectMaking => "removed while in use, being moved into an object file",
            Pending::ObjectMaking => "being moved into an object file",
            Pending::ObjectDelete => "its object file is to be removed",
            Pending::ObjectDirty { .. } => "being written",
        };
        self.pending.insert(ino.get(), pending);
        self.found(Finding::Pending { ino: ino.get(), what });
    }

    fn inode_row(&mut self, ino: InodeId, inode: &Inode, group: &mut Group) -> FsResult<()> {
        if inode.ino != ino {
            self.found(Finding::WrongInode { ino: ino.get(), found: inode.ino.get() });
            return Ok(());
        }
        self.note_inode(inode);
        match &inode.content {
            Content::Directory(info) => {
                group.info = Some(*info);
                self.report.directories += 1;
                let links = u64::from(info.subdirs) + 2;
                if u64::from(inode.nlink) != links {
                    self.found(Finding::WrongLinkCount {
                        ino: ino.get(),
                        recorded: inode.nlink.into(),
                        counted: links,
                    });
                }
                self.check_above(ino, info)?;
            }
            _ => {
                self.report.files += 1;
                self.linked.entry(ino.get()).or_default().recorded = Some(inode.nlink.into());
            }
        }
        Ok(())
    }

    /// Notes an inode that was found in some place, and where its content must be.
    fn note_inode(&mut self, inode: &Inode) {
        let ino = inode.ino;
        if !self.inodes.insert(ino) {
            self.found(Finding::InodeTwice { ino: ino.get() });
        }
        if ino != InodeId::ROOT && ino.get() >= self.mark {
            self.found(Finding::IdBeyondMark { ino: ino.get(), mark: self.mark });
        }
        if inode.has_xattrs {
            self.with_xattrs.insert(ino);
        }
        match inode.content {
            Content::Chunks => {
                self.with_chunks.insert(ino);
            }
            Content::Object { dirty, .. } => {
                self.large.insert(ino.get(), if dirty { 0 } else { inode.size });
            }
            _ => {}
        }
    }

    fn entry(
        &mut self,
        dir: InodeId,
        suffix: EntrySuffix,
        named: &Named,
        group: &mut Group,
    ) -> FsResult<()> {
        self.report.names += 1;
        group.entries += 1;
        let name = || named.name.escape_ascii().to_string();
        if self.fs.hasher.entry(&named.name) != suffix {
            self.found(Finding::MisplacedEntry { dir: dir.get(), name: name() });
        }
        match &named.body {
            Body::Inline(inode) => {
                self.report.files += 1;
                self.note_inode(inode);
                let ino = inode.ino.get();
                if inode.kind == FileKind::Directory {
                    self.found(Finding::WrongType { dir: dir.get(), name: name(), ino });
                }
                if inode.nlink != 1 {
                    let recorded = inode.nlink.into();
                    self.found(Finding::WrongLinkCount { ino, recorded, counted: 1 });
                }
                if inode.home.is_some() {
                    self.found(Finding::WrongHome { ino });
                }
                group.usage = group.usage.plus(UsageChange::file(inode.size));
            }
            Body::Reference { ino, kind: FileKind::Directory } => {
                group.subdirs += 1;
                let (dir, name, raw) = (dir.get(), name(), ino.get());
                let info = self.directory(*ino)?;
                group.usage = info.iter().fold(group.usage, |usage, info| usage.plus(info.told()));
                match info {
                    None => self.found(Finding::DanglingEntry { dir, name, ino: raw }),
                    Some(info) if info.parent.get() != dir || info.suffix != Some(suffix) => {
                        self.found(Finding::InodeTwice { ino: raw });
                    }
                    Some(_) => {}
                }
            }
            Body::Reference { ino, kind } => {
                self.linked.entry(ino.get()).or_default().counted += 1;
                self.check_reference(group, named, *ino, *kind)?;
            }
        }
        Ok(())
    }

    fn check_reference(
        &mut self,
        group: &mut Group,
        named: &Named,
        ino: InodeId,
        kind: FileKind,
    ) -> FsResult<()> {
        let (dir, name, raw) = (group.ino.get(), named.name.escape_ascii().to_string(), ino.get());
        match self.read_inode(ino)? {
            None => self.found(Finding::DanglingEntry { dir, name, ino: raw }),
            Some(inode) if inode.kind != kind => {
                self.found(Finding::WrongType { dir, name, ino: raw });
            }
            Some(inode) => self.count_linked(group, named, &inode),
        }
        Ok(())
    }

    fn end_group(&mut self, group: Option<Group>) {
        let Some(Group { ino, info, entries, subdirs, usage }) = group else { return };
        let dir = ino.get();
        match info {
            None if entries > 0 => self.found(Finding::EntriesWithoutDirectory { dir, entries }),
            None => {}
            Some(info) => {
                if info.entries != entries {
                    let recorded = info.entries;
                    self.found(Finding::WrongEntryCount { dir, recorded, counted: entries });
                }
                if u64::from(info.subdirs) != subdirs {
                    let recorded = info.subdirs.into();
                    self.found(Finding::WrongSubdirCount { dir, recorded, counted: subdirs });
                }
                self.check_usage(ino, &info, usage);
            }
        }
    }

    /// Checks that a directory has its name in its parent and that its parents lead to the root.
    fn check_above(&mut self, dir: InodeId, info: &DirInfo) -> FsResult<()> {
        if dir == InodeId::ROOT {
            self.reachable.insert(dir);
            return Ok(());
        }
        let named = match info.suffix {
            Some(suffix) => self.names_directory(info.parent, suffix, dir)?,
            None => false,
        };
        if !named {
            let parent = info.parent.get();
            self.found(Finding::DirectoryWithoutName { dir: dir.get(), parent });
        }
        let (mut path, mut at, mut parent) = (vec![dir], dir, info.parent);
        while !self.reachable.contains(at) && at != InodeId::ROOT {
            let above = self.directory(parent)?;
            let Some(above) = above.filter(|_| !path.contains(&parent)) else {
                self.found(Finding::UnreachableDirectory { dir: dir.get() });
                return Ok(());
            };
            path.push(parent);
            (at, parent) = (parent, above.parent);
        }
        for dir in path {
            self.reachable.insert(dir);
        }
        Ok(())
    }

    fn names_directory(
        &self,
        parent: InodeId,
        suffix: EntrySuffix,
        dir: InodeId,
    ) -> FsResult<bool> {
        let key = RowKey::entry(parent, suffix).to_bytes();
        let Some(value) = self.snapshot.get(self.fs.meta, &key).map_err(error::store)? else {
            return Ok(false);
        };
        let Ok(row) = EntryRow::decode(&value) else { return Ok(false) };
        Ok(row.names().iter().any(|named| named.body.ino() == dir))
    }

    /// The inode in its own row, if there is one that can be read.
    fn read_inode(&self, ino: InodeId) -> FsResult<Option<Inode>> {
        let key = RowKey::inode(ino).to_bytes();
        let value = self.snapshot.get(self.fs.meta, &key).map_err(error::store)?;
        Ok(value.and_then(|value| decode_inode_row(&value).ok()))
    }

    pub(super) fn directory(&self, ino: InodeId) -> FsResult<Option<DirInfo>> {
        Ok(self.read_inode(ino)?.and_then(|inode| match inode.content {
            Content::Directory(info) => Some(info),
            _ => None,
        }))
    }

    /// Compares link counts with names, and orphans with pending rows.
    fn check_links(&mut self) {
        let mut linked: Vec<_> = std::mem::take(&mut self.linked).into_iter().collect();
        linked.sort_unstable_by_key(|(ino, _)| *ino);
        for (ino, links) in linked {
            let Some(recorded) = links.recorded else { continue };
            let orphan = self.pending.get(&ino).is_some_and(|pending| is_orphan(*pending));
            if recorded != links.counted {
                self.found(Finding::WrongLinkCount { ino, recorded, counted: links.counted });
            } else if recorded == 0 && !orphan {
                self.found(Finding::InodeWithoutName { ino });
            }
            if links.counted > 0 && !links.home_found {
                self.found(Finding::WrongHome { ino });
            }
            if links.pointers != links.counted {
                let (pointers, names) = (links.pointers, links.counted);
                self.found(Finding::WrongParentPointers { ino, pointers, names });
            }
        }
        let mut lost: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| is_orphan(**pending))
            .map(|(ino, _)| *ino)
            .filter(|ino| !self.inodes.contains(InodeId::new(*ino)))
            .collect();
        lost.sort_unstable();
        for ino in lost {
            self.found(Finding::PendingWithoutInode { ino });
        }
    }
}

fn is_orphan(pending: Pending) -> bool {
    matches!(pending, Pending::Orphan | Pending::OrphanObjectMaking)
}
