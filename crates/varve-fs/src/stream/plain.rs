//! A state of a store in its plain form: rows that say what users see, the same in every store that shows it.
//!
//! 1. Rows of the store's own affairs are none: its counters, marks, and what is pending.
//! 2. A file without a name is no part of the tree, nor is a directory that was removed while it was open.
//! 3. A large file that was being written to is as it was at that moment: its row follows its object.
//! 4. Every directory has told all that lies below it. So what marks and objects know better than the rows is added to
//!    the accounts of the directories above.
//! 5. A dictionary that is going is gone.
//!
//! What 2 to 4 need is found when the state is opened, by the rows of what is pending and of marks: it costs what was open
//! at the time. Clones that have not copied everything have no plain form, as they read from other states ([`cloned`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use bytes::Bytes;
use varve_engine::{Direction, KeyRange, SnapshotStore, Store};
use varve_env::FileStat;
use varve_schema::key::MetaRow;
use varve_schema::{
    Body, Content, DictionaryRow, EntryRow, EntrySuffix, Inode, META, Mark, Pending, RowKey,
    UsageChange, decode_inode_row, encode_inode_row,
};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use super::{DATA_SPACE, META_SPACE, NAMES_SPACE, Space};
use crate::data::copy_stat;
use crate::dictionaries::unreadable;
use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::rows::{pending_rows, read_entry_row, read_inode_row};

/// Directories above one another before they are taken for a loop.
const DEPTH_MAX: usize = 1 << 20;

/// See the module's comment.
pub(super) struct Plain<'a> {
    fs: &'a VarveFs,
    pub(super) rows: SnapshotStore,
    /// As of which large files are seen; `None`: as they are.
    epoch: Option<Epoch>,
    /// Files without a name.
    nameless: BTreeSet<InodeId>,
    /// What the objects of large files say that were being written to.
    written: BTreeMap<InodeId, FileStat>,
    /// What directories have not been told.
    pending: HashMap<InodeId, UsageChange>,
    /// Rows of metadata that may differ from what is stored.
    special: BTreeSet<RowKey>,
    /// The dictionaries in use, by their names.
    pub(super) dictionaries: BTreeMap<Vec<u8>, DictionaryRow>,
}

/// The error of what has no plain form.
fn cloned() -> FsError {
    FsError::NotSupported(
        "a stream of clones that have not copied everything; copy them with `cp -a`, remove them, and make another snapshot",
    )
}

impl VarveFs {
    /// The state `rows`, whose large files are as a view of the epoch `epoch` sees them, or as they are.
    pub(super) fn plain(
        &self,
        rows: SnapshotStore,
        epoch: impl Into<Option<Epoch>>,
    ) -> FsResult<Plain<'_>> {
        for source in self.sources()?.epochs() {
            if self.sources()?.lends(source, &rows)? {
                return Err(cloned());
            }
        }
        let mut plain = Plain {
            fs: self,
            rows,
            epoch: epoch.into(),
            nameless: BTreeSet::new(),
            written: BTreeMap::new(),
            pending: HashMap::new(),
            special: BTreeSet::new(),
            dictionaries: BTreeMap::new(),
        };
        plain.find_marked()?;
        plain.find_pending()?;
        plain.find_dictionaries()?;
        Ok(plain)
    }
}

impl Plain<'_> {
    fn find_marked(&mut self) -> FsResult<()> {
        let mut marked = Vec::new();
        let range = KeyRange::prefix(&RowKey::mark_prefix());
        let rows = self.rows.scan(self.fs.meta, range, Direction::Forward);
        for row in rows.map_err(error::store)? {
            let (key, value) = row.map_err(error::store)?;
            let Some(key) = RowKey::from_bytes(&key) else { continue };
            let Mark(dir) =
                Mark::decode(&value).map_err(|error| error::unreadable(META, key, error))?;
            marked.push(dir);
        }
        for dir in marked {
            let Some(inode) = self.inode(dir)? else { continue };
            if let Content::Directory(info) = inode.content
                && !info.pending.is_zero()
                && is_seen(&inode)
            {
                self.special.insert(RowKey::inode(dir));
                self.tell(info.parent, info.pending)?;
            }
        }
        Ok(())
    }

    /// Adds `change` to the directory `dir` and all above it.
    fn tell(&mut self, dir: InodeId, change: UsageChange) -> FsResult<()> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            let pending = self.pending.entry(at).or_default();
            *pending = pending.plus(change);
            self.special.insert(RowKey::inode(at));
            if at == InodeId::ROOT {
                return Ok(());
            }
            match self.inode(at)?.map(|inode| inode.content) {
                Some(Content::Directory(info)) => at = info.parent,
                _ => break,
            }
        }
        Err(FsError::Storage(format!(
            "the directories above {dir} do not lead to the root; run `varve fsck`"
        )))
    }

    fn find_pending(&mut self) -> FsResult<()> {
        let none = InodeId::new(0);
        for (ino, pending) in pending_rows(&self.rows, self.fs.meta, none, usize::MAX)?.0 {
            match pending {
                Pending::Orphan | Pending::OrphanObjectMaking => {
                    // One that got a name again may still be noted.
                    if self.inode(ino)?.is_none_or(|inode| inode.nlink == 0) {
                        self.nameless.insert(ino);
                        self.special.insert(RowKey::inode(ino));
                    }
                }
                Pending::ObjectDirty { entry } => self.note_written(ino, entry)?,
                Pending::ObjectMaking | Pending::ObjectDelete | Pending::ObjectInstall { .. } => {}
            }
        }
        Ok(())
    }

    fn note_written(
        &mut self,
        ino: InodeId,
        entry: Option<(InodeId, EntrySuffix)>,
    ) -> FsResult<()> {
        let (key, inode) = match entry.map(|(dir, suffix)| RowKey::entry(dir, suffix)) {
            None => (RowKey::inode(ino), self.inode(ino)?),
            Some(key) => {
                let row = read_entry_row(&self.rows, self.fs.meta, key)?;
                let mut inodes = row.names().iter().filter_map(|named| match &named.body {
                    Body::Inline(inode) if inode.ino == ino => Some(inode.clone()),
                    _ => None,
                });
                (key, inodes.next())
            }
        };
        let is_dirty = |inode: &Inode| inode.content.is_dirty();
        let Some(inode) = inode.filter(is_dirty).filter(is_seen) else { return Ok(()) };
        let stat = self.read_object(ino, |file| file.stat())?;
        self.special.insert(key);
        let home = entry.map(|(dir, _)| dir).or(inode.home.map(|home| home.dir));
        let grown = UsageChange::size(inode.size, stat.len);
        if let Some(dir) = home.filter(|_| !grown.is_zero()) {
            self.tell(dir, grown)?;
        }
        self.written.insert(ino, stat);
        Ok(())
    }

    fn find_dictionaries(&mut self) -> FsResult<()> {
        let names = self.fs.dictionaries().names();
        let rows = self.rows.scan(names, KeyRange::all(), Direction::Forward);
        for row in rows.map_err(error::store)? {
            let (name, row) = row.map_err(error::store)?;
            let row = DictionaryRow::decode(&row).map_err(|cause| unreadable(&name, &cause))?;
            if !row.going {
                self.dictionaries.insert(name.to_vec(), row);
            }
        }
        Ok(())
    }

    fn inode(&self, ino: InodeId) -> FsResult<Option<Inode>> {
        read_inode_row(&self.rows, self.fs.meta, ino)
    }

    /// Calls `with` with a large file as it is in this state.
    pub(super) fn read_object<T>(
        &self,
        ino: InodeId,
        with: impl FnOnce(&dyn varve_env::File) -> std::io::Result<T>,
    ) -> FsResult<T> {
        let read = self.fs.objects.read_as_of(self.epoch, ino, with);
        read.map_err(|error| error::object("read", &self.fs.objects.path(ino), error))
    }

    /// Where the large file `ino` of `len` bytes may have other bytes than in an earlier state, in which it has as many as
    /// is said there. REQUIRES: both are snapshots.
    pub(super) fn may_differ(
        &self,
        (earlier, base_len): (&Plain<'_>, u64),
        ino: InodeId,
        len: u64,
    ) -> FsResult<Vec<Range<u64>>> {
        let (Some(preimages), Some(from), Some(until)) =
            (self.fs.objects.preimages(), earlier.epoch, self.epoch)
        else {
            return Err(FsError::Stale);
        };
        let differ = preimages.may_differ((from, base_len), (until, len), ino);
        differ.map_err(|error| error::object("compare", &self.fs.objects.path(ino), error))
    }

    /// Whether directories have something to tell.
    pub(super) fn is_settled(&self) -> bool {
        self.pending.is_empty()
    }

    /// The keys of `space` whose rows may differ in their plain form though they are stored alike.
    pub(super) fn special_keys(&self, (number, space): Space) -> FsResult<BTreeSet<Vec<u8>>> {
        let bytes = |key: &RowKey| key.to_bytes().to_vec();
        match number {
            META_SPACE => Ok(self.special.iter().map(bytes).collect()),
            DATA_SPACE => {
                let mut keys = BTreeSet::new();
                for ino in &self.nameless {
                    let range = KeyRange::prefix(&RowKey::prefix_bytes(*ino));
                    for key in self.rows.keys(space, range).map_err(error::store)? {
                        keys.insert(key.map_err(error::store)?.to_vec());
                    }
                }
                Ok(keys)
            }
            _ => Ok(BTreeSet::new()),
        }
    }

    /// The plain form of a row of which `stored` is stored; `None` if there is none.
    pub(super) fn row(
        &self,
        (number, _): Space,
        key: &[u8],
        stored: Option<Bytes>,
    ) -> FsResult<Option<Bytes>> {
        let Some(stored) = stored else { return Ok(None) };
        let Some(row_key) = RowKey::from_bytes(key).filter(|_| number <= DATA_SPACE) else {
            let is_there = number != NAMES_SPACE || self.dictionaries.contains_key(key);
            return Ok(is_there.then_some(stored));
        };
        if number == DATA_SPACE {
            let is_seen = !self.nameless.contains(&InodeId::new(row_key.prefix()));
            return Ok(is_seen.then_some(stored));
        }
        self.meta_row(row_key, stored)
    }

    fn meta_row(&self, key: RowKey, stored: Bytes) -> FsResult<Option<Bytes>> {
        let unreadable = |error| error::unreadable(META, key, error);
        match key.meta_kind() {
            MetaRow::Bookkeeping | MetaRow::Mark(_) | MetaRow::Pending(_) => Ok(None),
            MetaRow::CloneReference(..) | MetaRow::CloneRemap(..) => Err(cloned()),
            MetaRow::Limits(_) => Ok(Some(stored)),
            MetaRow::Parent(ino, _) => Ok(Some(stored).filter(|_| !self.nameless.contains(&ino))),
            MetaRow::Inode(_) => {
                let inode = decode_inode_row(&stored).map_err(unreadable)?;
                if !is_seen(&inode) {
                    return Ok(None);
                }
                let plain = self.inode_as_seen(&inode)?;
                Ok(Some(plain.map_or(stored, |inode| encode_inode_row(&inode).into())))
            }
            MetaRow::Entry(..) => {
                let row = EntryRow::decode(&stored).map_err(unreadable)?;
                let mut plain = None;
                for named in row.names() {
                    if let Body::Inline(inode) = &named.body
                        && let Some(inode) = self.inode_as_seen(inode)?
                    {
                        let row: &mut EntryRow = plain.get_or_insert_with(|| row.clone());
                        row.set_body(named.slot, Body::Inline(inode));
                    }
                }
                Ok(Some(plain.map_or(stored, |row| row.encode().into())))
            }
            MetaRow::Unknown => Err(FsError::Storage(format!(
                "the row {:x} {:x} is of no kind that is known; run `varve fsck`",
                key.prefix(),
                key.suffix()
            ))),
        }
    }

    /// The inode in its plain form, if that is not how it is stored.
    fn inode_as_seen(&self, inode: &Inode) -> FsResult<Option<Inode>> {
        match &inode.content {
            Content::Shared(_) => Err(cloned()),
            Content::Directory(info) if info.source.is_some() => Err(cloned()),
            Content::Directory(info) => {
                let told = self.pending.get(&inode.ino).copied().unwrap_or_default();
                if told.is_zero() && info.pending.is_zero() {
                    return Ok(None);
                }
                let mut info = *info;
                (info.usage, info.pending) = (info.usage.plus(told), UsageChange::default());
                Ok(Some(Inode { content: Content::Directory(info), ..inode.clone() }))
            }
            Content::Object { dirty: true, .. } => {
                let Some(stat) = self.written.get(&inode.ino) else {
                    return Err(FsError::Storage(format!(
                        "the size of the large file {} is not known in this snapshot; write to it and make another",
                        inode.ino
                    )));
                };
                let mut inode = inode.clone();
                copy_stat(&mut inode, stat);
                let blocks = stat.allocated.div_ceil(512);
                inode.content = Content::Object { dirty: false, blocks };
                Ok(Some(inode))
            }
            _ => Ok(None),
        }
    }
}

/// Whether a file or directory is part of the tree.
fn is_seen(inode: &Inode) -> bool {
    match &inode.content {
        Content::Directory(info) => info.suffix.is_some() || inode.ino == InodeId::ROOT,
        _ => inode.nlink > 0,
    }
}

/// The large files in a row of metadata, each with its length.
pub(super) fn objects_in(key: &[u8], row: Option<&Bytes>) -> FsResult<Vec<(InodeId, u64)>> {
    let (Some(key), Some(row)) = (RowKey::from_bytes(key), row) else { return Ok(Vec::new()) };
    let unreadable = |error| error::unreadable(META, key, error);
    let large = |inode: &Inode| inode.content.is_object().then_some((inode.ino, inode.size));
    Ok(match key.meta_kind() {
        MetaRow::Entry(..) => {
            let row = EntryRow::decode(row).map_err(unreadable)?;
            let inlined = row.names().iter().filter_map(|named| match &named.body {
                Body::Inline(inode) => large(inode),
                Body::Reference { .. } => None,
            });
            inlined.collect()
        }
        MetaRow::Inode(_) => {
            large(&decode_inode_row(row).map_err(unreadable)?).into_iter().collect()
        }
        _ => Vec::new(),
    })
}
