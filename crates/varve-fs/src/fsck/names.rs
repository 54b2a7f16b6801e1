//! The key space `meta`: entries, inodes, pending work, row by row.
//!
//! What one row or the rows of one directory tell is checked here: keys, names and their hashes, the counts
//! of a directory. The rest becomes [`Fact`]s for `inodes`.

use bytes::Bytes;
use varve_engine::{Direction, KeyRange};
use varve_schema::key::{ID_MARK, MetaRow, RECEIVED, STORE_ID};
use varve_schema::{
    Body, CloneReference, CloneRemap, Content, DirInfo, EntryRow, FileKind, Inode, Limits, META,
    Mark, Named, ParentRow, Pending, Reader, RowKey, StoreId, UsageChange, decode_inode_row,
};
use varve_types::limits::FILE_BYTES_MAX;
use varve_types::{FileName, InodeId};
use varve_vfs::FsResult;

use super::accounts::Account;
use super::fact::{Fact, Pointed, Seen, Spot, Up, What};
use super::{At, Check, Finding};
use crate::error;
use crate::ids::is_inode_id;
use crate::stream::frame::SnapshotId;

const PHASE: &str = "names";

/// The group of rows of one directory.
struct Group {
    ino: InodeId,
    info: Option<DirInfo>,
    entries: u64,
    subdirs: u64,
    /// The files that are within its entries.
    inline: UsageChange,
}

/// A name as messages have it.
pub(super) fn printable(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

impl Check<'_> {
    pub(super) fn check_names(&mut self) -> FsResult<()> {
        self.begin(PHASE);
        let rows = self.snapshot.scan(self.volume.meta, KeyRange::all(), Direction::Forward);
        let mut group: Option<Group> = None;
        let mut has_root = false;
        for row in rows.map_err(error::store)? {
            let (bytes, value) = row.map_err(error::store)?;
            let Some(key) = RowKey::from_bytes(&bytes) else {
                self.unknown(META, bytes)?;
                continue;
            };
            let ino = InodeId::new(key.prefix());
            if group.as_ref().is_none_or(|group| group.ino != ino) {
                self.end_group(group.take())?;
                let inline = UsageChange::default();
                group = Some(Group { ino, info: None, entries: 0, subdirs: 0, inline });
                self.at(ino.get(), self.mark);
            }
            self.step(PHASE);
            let Some(group) = &mut group else { continue };
            self.meta_row(key, bytes, &value, group)?;
            has_root |= ino == InodeId::ROOT && group.info.is_some();
        }
        self.end_group(group)?;
        if !self.has_store_id {
            self.found(Finding::NoStoreId, At::Own)?;
        }
        if !has_root {
            self.found(Finding::NoRoot, At::Own)?;
        }
        Ok(())
    }

    fn meta_row(
        &mut self,
        key: RowKey,
        bytes: Bytes,
        value: &Bytes,
        group: &mut Group,
    ) -> FsResult<()> {
        match key.meta_kind() {
            MetaRow::Bookkeeping => self.bookkeeping(key, bytes, value),
            MetaRow::Pending(ino) => match Pending::decode(value) {
                Ok(pending) => self.facts.push(Fact { ino, what: What::Pending(pending) }),
                Err(error) => self.unreadable(META, bytes, &error),
            },
            MetaRow::Mark(slot) => match Mark::decode(value) {
                Ok(Mark(ino)) => self.facts.push(Fact { ino, what: What::Mark(slot) }),
                Err(error) => self.unreadable(META, bytes, &error),
            },
            MetaRow::Limits(ino) => match Limits::decode(value) {
                Ok(_) => self.facts.push(Fact { ino, what: What::Limits }),
                Err(error) => self.unreadable(META, bytes, &error),
            },
            MetaRow::Parent(ino, hash) if is_inode_id(ino) => match ParentRow::decode(value) {
                Ok(row) => self.pointers(ino, hash, bytes, &row),
                Err(error) => self.unreadable(META, bytes, &error),
            },
            MetaRow::CloneReference(source, ino) => match CloneReference::decode(value) {
                Ok(loan) => {
                    self.facts.push(Fact { ino, what: What::clone_reference(source, loan) })
                }
                Err(error) => self.unreadable(META, bytes, &error),
            },
            MetaRow::CloneRemap(clone, old) => match CloneRemap::decode(value) {
                Ok(CloneRemap { ino, left }) => {
                    let what = What::CloneRemap { clone: clone.get(), old: old.get(), left };
                    self.facts.push(Fact { ino, what })
                }
                Err(error) => self.unreadable(META, bytes, &error),
            },
            MetaRow::Inode(ino) if is_inode_id(ino) => match decode_inode_row(value) {
                Ok(inode) => self.inode_row(ino, &inode, group),
                Err(error) => self.unreadable(META, bytes, &error),
            },
            MetaRow::Entry(dir, suffix) if is_inode_id(dir) => match EntryRow::decode(value) {
                Ok(row) => {
                    for named in row.names() {
                        self.entry(Spot { dir: dir.get(), suffix, slot: named.slot }, &row, named)?;
                        group.entries += 1;
                        group.subdirs += u64::from(named.body.kind() == FileKind::Directory);
                        if let Body::Inline(inode) = &named.body {
                            group.inline = group.inline.plus(UsageChange::file(inode.size));
                        }
                    }
                    Ok(())
                }
                Err(error) => self.unreadable(META, bytes, &error),
            },
            MetaRow::Inode(_) | MetaRow::Entry(..) | MetaRow::Parent(..) | MetaRow::Unknown => {
                self.unknown(META, bytes)
            }
        }
    }

    /// Checks that parent pointers lie where their hash says.
    fn pointers(&mut self, ino: InodeId, hash: u64, key: Bytes, row: &ParentRow) -> FsResult<()> {
        for pointer in &row.pointers {
            let (dir, name) = (pointer.dir.get(), &pointer.name);
            if self.volume.hasher.parent(pointer.dir, name) == hash {
                let what = What::Pointer(Pointed { dir, hash, print: crc32c::crc32c(name) });
                self.facts.push(Fact { ino, what })?;
            } else {
                let (ino, name) = (ino.get(), printable(name));
                let finding = Finding::StrayParentPointer { ino, dir, name };
                self.found(finding, At::Row(key.clone()))?;
            }
        }
        Ok(())
    }

    pub(super) fn unknown(&mut self, keyspace: &'static str, key: Bytes) -> FsResult<()> {
        let numbers = RowKey::from_bytes(&key);
        let (prefix, suffix) = numbers.map_or((0, 0), |key| (key.prefix(), key.suffix()));
        self.found(Finding::UnknownRow { keyspace, prefix, suffix }, At::Row(key))
    }

    pub(super) fn unreadable(
        &mut self,
        keyspace: &'static str,
        key: Bytes,
        error: &varve_schema::DecodeError,
    ) -> FsResult<()> {
        let numbers = RowKey::from_bytes(&key);
        let (prefix, suffix) = numbers.map_or((0, 0), |key| (key.prefix(), key.suffix()));
        let detail = error.to_string();
        self.found(Finding::UnreadableRow { keyspace, prefix, suffix, detail }, At::Row(key))
    }

    fn bookkeeping(&mut self, key: RowKey, bytes: Bytes, value: &Bytes) -> FsResult<()> {
        if key == STORE_ID {
            return match StoreId::decode(value) {
                Ok(id) if self.volume.store_id.is_none_or(|own| own == id) => {
                    self.has_store_id = true;
                    Ok(())
                }
                Ok(_) => {
                    self.has_store_id = true;
                    self.found(Finding::OtherStore, At::Own)
                }
                Err(error) => self.unreadable(META, bytes, &error),
            };
        }
        // The next mount makes the snapshot.
        if key == RECEIVED && SnapshotId::of_row(value).is_some() {
            return Ok(());
        }
        if key != ID_MARK {
            return self.unknown(META, bytes);
        }
        let mut reader = Reader::new(value);
        match reader.version().and_then(|()| reader.varint()) {
            Ok(mark) => self.mark = mark,
            Err(error) => self.unreadable(META, bytes, &error)?,
        }
        Ok(())
    }

    fn inode_row(&mut self, ino: InodeId, inode: &Inode, group: &mut Group) -> FsResult<()> {
        if inode.ino != ino {
            let finding = Finding::WrongInode { ino: ino.get(), found: inode.ino.get() };
            self.found(finding, At::Own)?;
        }
        let mut up = match inode.home {
            Some(home) => Up::Home { dir: home.dir.get(), hash: home.hash },
            None => Up::Nowhere,
        };
        if let Some(home) = inode.home {
            self.accounts.push(Account::share(home.dir, UsageChange::file(inode.size)))?;
        }
        if let Content::Directory(info) = &inode.content {
            group.info = Some(*info);
            let pending = !info.pending.is_zero();
            up = Up::Directory { parent: info.parent.get(), suffix: info.suffix, pending };
            if ino != InodeId::ROOT {
                self.accounts.push(Account::share(info.parent, info.propagated()))?;
            }
            self.report.directories += 1;
            let links = u64::from(info.subdirs) + 2;
            if u64::from(inode.nlink) != links {
                let (ino, recorded) = (ino.get(), inode.nlink.into());
                self.found(Finding::WrongLinkCount { ino, recorded, counted: links }, At::Own)?;
            }
        } else {
            self.report.files += 1;
        }
        self.check_content(ino, inode, At::Own)?;
        self.facts.push(Fact { ino, what: What::Own { seen: Seen::of(inode), up } })
    }

    /// Checks the size of an inode, and compares what it holds with that.
    fn check_content(&mut self, ino: InodeId, inode: &Inode, at: At) -> FsResult<()> {
        let is_link = matches!(inode.content, Content::Symlink(_));
        if inode.size > FILE_BYTES_MAX && !is_link {
            let (ino, size) = (ino.get(), inode.size);
            return self.found(Finding::ImpossibleSize { ino, size }, at);
        }
        let found = match &inode.content {
            Content::Inline(bytes) if bytes.len() as u64 > inode.size => bytes.len(),
            Content::Symlink(target) if target.len() as u64 != inode.size => target.len(),
            _ => return Ok(()),
        };
        let (ino, size, found) = (ino.get(), inode.size, found as u64);
        self.found(Finding::ContentBeyondSize { ino, size, found }, at)
    }

    fn entry(&mut self, spot: Spot, row: &EntryRow, named: &Named) -> FsResult<()> {
        self.report.names += 1;
        let (dir, name) = (spot.dir, || printable(&named.name));
        let at = || At::Name(spot);
        if FileName::new(&named.name).is_err() {
            self.found(Finding::BadName { dir, name: name() }, at())?;
        } else if self.volume.hasher.entry(&named.name) != spot.suffix {
            self.found(Finding::MisplacedEntry { dir, name: name() }, at())?;
        } else if row.find(&named.name).is_some_and(|first| first.slot != named.slot) {
            self.found(Finding::DuplicateName { dir, name: name() }, at())?;
        }
        match &named.body {
            Body::Inline(inode) => self.inline(spot, named, inode),
            Body::Reference { ino, kind } => {
                let pointed = self.pointed(spot, named);
                let what = What::Name { spot, kind: *kind, pointed };
                self.facts.push(Fact { ino: *ino, what })
            }
        }
    }

    fn pointed(&self, spot: Spot, named: &Named) -> Pointed {
        let hash = self.volume.hasher.parent(InodeId::new(spot.dir), &named.name);
        Pointed { dir: spot.dir, hash, print: crc32c::crc32c(&named.name) }
    }

    fn inline(&mut self, spot: Spot, named: &Named, inode: &Inode) -> FsResult<()> {
        self.report.files += 1;
        let (dir, ino) = (spot.dir, inode.ino.get());
        let at = || At::Name(spot);
        if !is_inode_id(inode.ino) || inode.ino == InodeId::ROOT {
            let name = printable(&named.name);
            return self.found(Finding::ImpossibleId { dir, name, ino }, at());
        }
        if inode.kind == FileKind::Directory {
            let name = printable(&named.name);
            self.found(Finding::WrongType { dir, name, ino }, at())?;
        } else if inode.nlink != 1 {
            let recorded = inode.nlink.into();
            self.found(Finding::WrongLinkCount { ino, recorded, counted: 1 }, at())?;
        }
        if inode.home.is_some() {
            self.found(Finding::WrongHome { ino }, at())?;
        }
        self.check_content(inode.ino, inode, at())?;
        self.facts.push(Fact { ino: inode.ino, what: What::Inline { spot, seen: Seen::of(inode) } })
    }

    fn end_group(&mut self, group: Option<Group>) -> FsResult<()> {
        let Some(Group { ino, info, entries, subdirs, inline }) = group else { return Ok(()) };
        let dir = ino.get();
        self.doubt_names(ino, info.is_some())?;
        let Some(info) = info else {
            if entries > 0 {
                self.found(Finding::EntriesWithoutDirectory { dir, entries }, At::Own)?;
            }
            return Ok(());
        };
        if info.source.is_some() {
            // It counts names that it has yet to get.
            return Ok(());
        }
        self.accounts.push(Account::recorded(ino, info.usage))?;
        self.accounts.push(Account::share(ino, inline))?;
        if info.entries != entries {
            let recorded = info.entries;
            self.found(Finding::WrongEntryCount { dir, recorded, counted: entries }, At::Own)?;
        }
        if u64::from(info.subdirs) != subdirs {
            let recorded = info.subdirs.into();
            self.found(Finding::WrongSubdirCount { dir, recorded, counted: subdirs }, At::Own)?;
        }
        Ok(())
    }

    /// The name at `spot`, for messages.
    pub(super) fn name_at(&self, spot: Spot) -> FsResult<String> {
        let key = RowKey::entry(InodeId::new(spot.dir), spot.suffix).to_bytes();
        let value = self.snapshot.get(self.volume.meta, &key).map_err(error::store)?;
        let row = value.and_then(|value| EntryRow::decode(&value).ok()).unwrap_or_default();
        Ok(row.at(spot.slot).map_or_else(String::new, |named| printable(&named.name)))
    }
}
