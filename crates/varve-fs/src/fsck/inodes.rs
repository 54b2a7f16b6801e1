//! All that is known of each inode, compared: its row, its names, its data, its attributes, its object.
//!
//! Facts, rows of the key space `data` and object files are walked side by side in the order of ids.

use std::path::PathBuf;

use bytes::Bytes;
use varve_engine::{Direction, KeyRange};
use varve_schema::{EntrySuffix, FileKind, ParentRow, Pending, RowKey};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::clones::Lent;
use super::fact::{ContentKind, Fact, Pointed, Seen, Spot, Up, What};
use super::names::printable;
use super::sorter::Sorted;
use super::tree::{Jump, NOWHERE};
use super::{At, Check, Finding};
use crate::error;
use crate::ids::is_inode_id;

pub(super) const PHASE: &str = "inodes and data";
/// Names of one directory that are looked at; it should have one.
const DIRECTORY_NAMES_MAX: usize = 1000;

/// A sequence whose next item can be looked at.
struct Ahead<I, T> {
    items: I,
    head: Option<T>,
}

impl<T, I: Iterator<Item = FsResult<T>>> Ahead<I, T> {
    fn new(mut items: I) -> FsResult<Ahead<I, T>> {
        let head = items.next().transpose()?;
        Ok(Ahead { items, head })
    }

    fn take(&mut self) -> FsResult<Option<T>> {
        let next = self.items.next().transpose()?;
        Ok(std::mem::replace(&mut self.head, next))
    }

    fn take_if(&mut self, wanted: impl FnOnce(&T) -> bool) -> FsResult<Option<T>> {
        if self.head.as_ref().is_some_and(wanted) { self.take() } else { Ok(None) }
    }
}

/// A row of the key space `data`.
pub(super) struct Row {
    pub(super) ino: u64,
    pub(super) key: Bytes,
    pub(super) value: Bytes,
}

/// What is known of one inode.
pub(super) struct CountedInode {
    pub(super) ino: InodeId,
    own: Option<(Seen, Up)>,
    inline: Option<(Spot, Seen)>,
    names: u64,
    /// Of a directory.
    spots: Vec<Spot>,
    pub(super) pending: Option<Pending>,
    is_marked: bool,
    /// The name that is being compared with its parent pointers.
    compared: Option<Compared>,
    /// The name that was compared first.
    first: Option<Spot>,
    home_found: bool,
    /// What clones have not copied yet.
    pub(super) lent: Lent,
}

/// A name, and how often it and pointers to it were seen.
struct Compared {
    pointed: Pointed,
    spot: Option<Spot>,
    names: u64,
    pointers: u64,
}

impl CountedInode {
    fn new(ino: InodeId) -> CountedInode {
        CountedInode {
            ino,
            own: None,
            inline: None,
            names: 0,
            spots: Vec::new(),
            pending: None,
            is_marked: false,
            compared: None,
            first: None,
            home_found: false,
            lent: Lent::default(),
        }
    }

    /// One of its names.
    pub(super) fn any_name(&self) -> Option<Spot> {
        self.inline.map(|(spot, _)| spot).or(self.first).or(self.spots.first().copied())
    }

    pub(super) fn is_directory(&self) -> bool {
        self.own.is_some_and(|(seen, _)| seen.kind == FileKind::Directory)
    }

    /// Whether it has a row of its own.
    pub(super) fn has_row(&self) -> bool {
        self.own.is_some()
    }

    pub(super) fn seen(&self) -> Option<Seen> {
        self.own.map(|(seen, _)| seen).or(self.inline.map(|(_, seen)| seen))
    }

    /// Where its attributes are.
    pub(super) fn at(&self) -> At {
        match (self.own, self.inline) {
            (None, Some((spot, _))) => At::Name(spot),
            _ => At::Own,
        }
    }

    fn is_orphan(&self) -> bool {
        matches!(self.pending, Some(Pending::Orphan | Pending::OrphanObjectMaking))
    }

    /// Whether it is dirty, has a name, and no pending row says where its row is, by which the next mount makes it clean.
    pub(super) fn is_unsettled(&self) -> bool {
        let is_dirty = self.seen().is_some_and(|seen| seen.place == ContentKind::DirtyObject);
        let place = match (self.own, self.inline) {
            (None, Some((spot, _))) => Some((InodeId::new(spot.dir), spot.suffix)),
            _ => None,
        };
        let is_named = self.names > 0 || place.is_some();
        is_dirty
            && is_named
            && match self.pending {
                None => true,
                Some(Pending::ObjectDirty { entry }) => entry != place,
                // What contradicts the row is dropped first, and a commit makes clean what it puts in place.
                Some(_) => false,
            }
    }
}

impl Check<'_> {
    pub(super) fn check_inodes(&mut self, facts: &Sorted<Fact>) -> FsResult<()> {
        self.begin(PHASE);
        let (all, mut walked, mut largest) = (facts.len(), 0, 0);
        let mut facts = Ahead::new(facts.iter()?)?;
        let rows = self.snapshot.scan(self.volume.data, KeyRange::all(), Direction::Forward);
        let mut rows = Ahead::new(rows.map_err(error::store)?.map(|row| {
            let (key, value) = row.map_err(error::store)?;
            let ino = RowKey::from_bytes(&key).map_or(0, RowKey::prefix);
            Ok(Row { ino, key, value })
        }))?;
        let volume = self.volume;
        let mut objects = Ahead::new(volume.objects.walk()?)?;
        loop {
            while let Some(stray) = objects.take_if(|object| !is_object(object))? {
                self.stray_file(stray)?;
            }
            let heads = [
                facts.head.as_ref().map(|fact: &Fact| fact.ino.get()),
                rows.head.as_ref().map(|row: &Row| row.ino),
                objects.head.as_ref().and_then(|object| object.as_ref().ok()).map(|ino| ino.get()),
            ];
            let Some(ino) = heads.into_iter().flatten().min() else { break };
            let ino = InodeId::new(ino);
            let mut known = CountedInode::new(ino);
            while let Some(fact) = facts.take_if(|fact| fact.ino == ino)? {
                walked += 1;
                self.step(PHASE);
                self.fact(&mut known, fact.what)?;
            }
            self.end_compare(&mut known)?;
            self.at(walked, all);
            if is_inode_id(ino) {
                self.report.largest_inode = self.report.largest_inode.max(ino.get());
                // Objects of lost inodes may be beyond the mark: both were lost with the same power cut.
                if known.seen().is_some() {
                    largest = largest.max(ino.get());
                }
            }
            self.check_known(&known)?;
            self.check_rows(&known, &mut || rows.take_if(|row| row.ino == ino.get()))?;
            let object = objects.take_if(|object| object.as_ref().is_ok_and(|o| *o == ino))?;
            self.check_object(&known, object.is_some())?;
        }
        let mark = self.mark;
        if largest >= mark.max(InodeId::FIRST_FREE.get()) {
            self.found(Finding::IdBeyondMark { mark, largest }, At::Own)?;
        }
        Ok(())
    }

    fn stray_file(&mut self, object: Result<InodeId, PathBuf>) -> FsResult<()> {
        let path = match object {
            Ok(ino) => self.volume.objects.path(ino),
            Err(path) => path,
        };
        self.found(Finding::StrayFile { path: path.display().to_string() }, At::Own)
    }

    fn fact(&mut self, known: &mut CountedInode, what: What) -> FsResult<()> {
        let ino = known.ino.get();
        match what {
            What::Own { seen, up } => known.own = Some((seen, up)),
            What::Pending(pending) => known.pending = Some(pending),
            What::Inline { spot, seen } => match (known.own, known.inline) {
                (Some(_), _) => self.found(Finding::InodeTwice { ino }, At::Name(spot))?,
                (None, Some((first, _))) => {
                    self.found(Finding::InodeTwice { ino }, At::Names(first, spot))?;
                }
                (None, None) => known.inline = Some((spot, seen)),
            },
            What::Mark(slot) => {
                known.is_marked = true;
                if !known.is_directory() {
                    let key = Bytes::copy_from_slice(&RowKey::mark(slot).to_bytes());
                    self.found(Finding::MarkWithoutDirectory { dir: ino }, At::Row(key))?;
                }
            }
            What::Limits if known.is_directory() => {}
            What::Limits => {
                let key = Bytes::copy_from_slice(&RowKey::limits(known.ino).to_bytes());
                self.found(Finding::LimitsWithoutDirectory { dir: ino }, At::Row(key))?;
            }
            What::CloneReference { .. } | What::CloneRemap { .. } => known.lent.note(what),
            What::Pointer(pointed) => self.compare_pointer(known, pointed, None)?,
            What::Name { spot, kind, pointed } => {
                known.names += 1;
                if known.own.is_some() && !known.is_directory() {
                    self.compare_pointer(known, pointed, Some(spot))?;
                }
                let own = known.own.map(|(seen, _)| seen.kind);
                if own == Some(FileKind::Directory) && known.spots.len() < DIRECTORY_NAMES_MAX {
                    known.spots.push(spot);
                }
                if known.seen().is_none() {
                    let (dir, name) = (spot.dir, self.name_at(spot)?);
                    self.found(Finding::DanglingEntry { dir, name, ino }, At::Name(spot))?;
                } else if own.is_some_and(|own| own != kind) {
                    let (dir, name) = (spot.dir, self.name_at(spot)?);
                    self.found(Finding::WrongType { dir, name, ino }, At::Name(spot))?;
                }
            }
        }
        Ok(())
    }

    /// Notes a name of a file with a row of its own, or a parent pointer; those that belong together follow
    /// each other.
    fn compare_pointer(
        &mut self,
        known: &mut CountedInode,
        pointed: Pointed,
        spot: Option<Spot>,
    ) -> FsResult<()> {
        if known.compared.as_ref().is_none_or(|compared| compared.pointed != pointed) {
            self.end_compare(known)?;
        }
        let start = Compared { pointed, spot, names: 0, pointers: 0 };
        let compared = known.compared.get_or_insert(start);
        match spot {
            None => compared.pointers += 1,
            Some(spot) => {
                compared.names += 1;
                let home = Up::Home { dir: pointed.dir, hash: pointed.hash };
                known.first.get_or_insert(spot);
                known.home_found |= known.own.is_some_and(|(_, up)| up == home);
            }
        }
        Ok(())
    }

    fn end_compare(&mut self, known: &mut CountedInode) -> FsResult<()> {
        let Some(Compared { pointed, spot, names, pointers }) = known.compared.take() else {
            return Ok(());
        };
        let (ino, dir) = (known.ino.get(), pointed.dir);
        if let Some(spot) = spot.filter(|_| pointers < names) {
            let name = self.name_at(spot)?;
            let finding = Finding::MissingParentPointer { ino, dir, name };
            self.found(finding, At::Name(spot))
        } else if pointers > names {
            let key = RowKey::parent(known.ino, pointed.hash).to_bytes();
            let value = self.snapshot.get(self.volume.meta, &key).map_err(error::store)?;
            let row = value.and_then(|value| ParentRow::decode(&value).ok()).unwrap_or_default();
            let mut pointers = row.pointers.iter();
            let is_it = |name: &[u8]| crc32c::crc32c(name) == pointed.print;
            let pointer = pointers.find(|p| p.dir.get() == dir && is_it(&p.name));
            let name = pointer.map_or_else(String::new, |pointer| printable(&pointer.name));
            let finding = Finding::StrayParentPointer { ino, dir, name };
            self.found(finding, At::Row(Bytes::copy_from_slice(&key)))
        } else {
            Ok(())
        }
    }

    /// Checks names and pending work of an inode.
    fn check_known(&mut self, known: &CountedInode) -> FsResult<()> {
        let ino = known.ino.get();
        if let Some(pending) = known.pending {
            self.check_pending(known, pending)?;
        }
        self.check_lent(known)?;
        match (known.own, known.inline) {
            (Some((_, Up::Directory { parent, suffix, pending })), _) => {
                let is_root = known.ino == InodeId::ROOT;
                if pending && (is_root || !known.is_marked) {
                    self.found(Finding::UntoldWithoutMark { dir: ino }, At::Own)?;
                }
                self.check_directory(known, parent, suffix)
            }
            (Some((seen, _)), _) => {
                if let Some(first) = known.first.filter(|_| !known.home_found) {
                    self.found(Finding::WrongHome { ino }, At::Name(first))?;
                }
                let (recorded, counted) =
                    (u64::from(seen.nlink), known.names.saturating_add(known.lent.names));
                if counted == 0 && !known.is_orphan() {
                    self.found(Finding::InodeWithoutName { ino }, At::Own)
                } else if recorded != counted {
                    self.found(Finding::WrongLinkCount { ino, recorded, counted }, At::Own)
                } else {
                    Ok(())
                }
            }
            (None, Some((spot, _))) if known.names > 0 => {
                let names = known.names + 1;
                self.found(Finding::NamesWithoutRow { ino, names }, At::Name(spot))
            }
            _ => Ok(()),
        }
    }

    fn check_pending(&mut self, known: &CountedInode, pending: Pending) -> FsResult<()> {
        let what = match pending {
            Pending::Orphan => "removed while in use",
            Pending::OrphanObjectMaking => "removed while in use, being moved into an object file",
            Pending::ObjectMaking => "being moved into an object file",
            Pending::ObjectDelete => "its object file is to be removed",
            Pending::ObjectDirty { .. } => "being written",
            Pending::ObjectInstall { .. } => {
                "changed by a transaction, whose object file is to be installed"
            }
        };
        let ino = known.ino.get();
        let named = known.names > 0
            || known.inline.is_some()
            || known
                .own
                .is_some_and(|(seen, ..)| seen.nlink > 0 || seen.kind == FileKind::Directory);
        let in_object = known.seen().is_some_and(|seen| seen.place.is_object());
        let finding = match pending {
            _ if known.is_orphan() && known.seen().is_none() => {
                Finding::PendingWithoutInode { ino }
            }
            _ if known.is_orphan() && named => Finding::PendingContradicted { ino, what },
            Pending::Orphan | Pending::ObjectInstall { .. } => Finding::Pending { ino, what },
            Pending::ObjectDirty { .. } => match known.seen() {
                Some(seen) if seen.place == ContentKind::DirtyObject => {
                    Finding::Pending { ino, what }
                }
                Some(_) => Finding::PendingContradicted { ino, what },
                None => Finding::PendingWithoutInode { ino },
            },
            _ if in_object => Finding::PendingContradicted { ino, what },
            _ => Finding::Pending { ino, what },
        };
        self.found(finding, At::Own)
    }

    /// Checks that a directory has one name, where it says.
    fn check_directory(
        &mut self,
        known: &CountedInode,
        parent: u64,
        suffix: Option<EntrySuffix>,
    ) -> FsResult<()> {
        let dir = known.ino.get();
        let is_root = known.ino == InodeId::ROOT;
        let home = |spot: &&Spot| spot.dir == parent && Some(spot.suffix) == suffix;
        let chosen = known.spots.iter().find(home).or(known.spots.first()).filter(|_| !is_root);
        for spot in known.spots.iter().filter(|spot| Some(*spot) != chosen) {
            let name = self.name_at(*spot)?;
            self.found(Finding::SecondName { dir: spot.dir, name, ino: dir }, At::Name(*spot))?;
        }
        if is_root && (parent != dir || suffix.is_some()) {
            self.found(Finding::WrongParent { dir, parent, found: dir }, At::Own)?;
        }
        let to = match chosen {
            _ if is_root => InodeId::ROOT.get(),
            None => {
                self.found(Finding::DirectoryWithoutName { dir, parent }, At::Own)?;
                NOWHERE
            }
            Some(spot) => {
                if !home(&spot) {
                    let found = spot.dir;
                    self.found(Finding::WrongParent { dir, parent, found }, At::Name(*spot))?;
                }
                spot.dir
            }
        };
        self.parents.push(Jump { from: dir, to, least: dir })
    }
}

fn is_object(object: &Result<InodeId, PathBuf>) -> bool {
    object.as_ref().is_ok_and(|ino| is_inode_id(*ino) && *ino != InodeId::ROOT)
}
