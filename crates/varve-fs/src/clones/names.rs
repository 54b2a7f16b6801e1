//! Copying names from a source: what becomes of the inodes behind them.
//!
//! - A directory becomes a folded one, unless it is empty; a file borrows its bytes, unless they are within its inode; all
//!   else is copied. Attributes stay, extended ones too; birth and last change of attributes are when the clone was made, so
//!   that an inode in which both are equal has not been touched since ([`crate::commit`]).
//! - New ids come from those set aside for the clone, by a rule that the source alone decides: each directory has one
//!   for each of its names, in their order, and behind that of a subdirectory as many as lie below it. Where the source's
//!   own accounts were behind, and for files whose counted name is elsewhere, ids are taken anew.
//! - Names of one file stay names of one file. The first that is copied makes it, with as many links as names lie within
//!   the clone, and a remap row by which the others find it. It counts where the first name is that was copied.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use varve_engine::Direction;
use varve_namespace::{Changes, Parents};
use varve_schema::{
    Body, CloneReference, CloneRemap, Content, DirInfo, EntryRow, EntrySuffix, FileKind, Folded,
    Home, Inode, META, RowKey, SharedContent, Times, UsageChange, encode_inode_row,
};
use varve_types::{FileName, InodeId};
use varve_vfs::{FsError, FsResult};

use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::rows::{for_each_pointer, rows_from};

/// Names that are being copied by one batch.
pub(super) struct Copying<'a> {
    pub(super) fs: &'a VarveFs,
    /// The source.
    pub(super) from: &'a VarveFs,
    /// Its epoch.
    pub(super) source: Epoch,
    pub(super) folded: Folded,
    pub(super) changes: Changes,
    /// Bytes of what was copied, about.
    pub(super) bytes: usize,
    /// All that lies within what was cloned is unfolded in the source, so that all names in it are known.
    pub(super) all_known: bool,
    linked: BTreeMap<InodeId, Linked<'a>>,
}

/// A file of several names of which at least one is among those that are copied.
struct Linked<'a> {
    inode: Inode,
    /// Names that are still in folded directories.
    left: u64,
    parents: Parents<'a, VarveFs>,
}

impl<'a> Copying<'a> {
    pub(super) fn new(
        fs: &'a VarveFs,
        from: &'a VarveFs,
        source: Epoch,
        folded: Folded,
    ) -> Copying<'a> {
        let (changes, linked) = (Changes::new(), BTreeMap::new());
        Copying { fs, from, source, folded, changes, bytes: 0, all_known: false, linked }
    }

    /// The rows that must be locked to copy `names`, as far as they are known.
    pub(super) fn needed(&self, names: &EntryRow) -> FsResult<SmallVec<[RowKey; 4]>> {
        let mut keys = SmallVec::new();
        for named in names.names() {
            if let Body::Reference { ino, kind } = &named.body
                && *kind != FileKind::Directory
            {
                keys.push(RowKey::clone_remap(self.folded.clone, *ino));
                keys.extend(self.clone_remap(*ino)?.map(|twin| RowKey::inode(twin.ino)));
            }
        }
        Ok(keys)
    }

    /// Copies the names of one row into that of `dir` with the same suffix. False, and nothing of this may be used, if a
    /// file among them may have names that are not known. REQUIRES: the locks of [`Copying::needed`].
    pub(super) fn copy_row(
        &mut self,
        dir: InodeId,
        suffix: EntrySuffix,
        names: &EntryRow,
    ) -> FsResult<bool> {
        let mut copied = EntryRow::default();
        for named in names.names() {
            let body = match &named.body {
                Body::Inline(old) => {
                    let ino = self.id()?;
                    let new = self.file(old, ino)?;
                    self.recount(dir, UsageChange::file(old.size), UsageChange::file(new.size));
                    Body::Inline(new)
                }
                Body::Reference { ino, kind: FileKind::Directory } => {
                    let old = self.from.dir_row(*ino)?;
                    let ino = self.id()?;
                    let now = self.directory(dir, suffix, &old, ino)?;
                    if let Content::Directory(then) = &old.content {
                        self.recount(dir, then.propagated(), now);
                    }
                    Body::Reference { ino, kind: FileKind::Directory }
                }
                Body::Reference { ino, kind } => {
                    match self.name_of_linked(dir, FileName::new(&named.name)?, *ino)? {
                        Some(new) => Body::Reference { ino: new, kind: *kind },
                        None => return Ok(false),
                    }
                }
            };
            copied.insert(&named.name, body);
        }
        let row = copied.encode();
        self.bytes += row.len();
        self.changes.put_meta(RowKey::entry(dir, suffix), row);
        self.folded.after = Some(suffix);
        Ok(true)
    }

    /// All that was copied, but for what is known of the directory itself.
    pub(super) fn finish(mut self) -> (Changes, Folded) {
        for (old, Linked { inode, left, parents }) in self.linked {
            self.changes.put_inode(&inode);
            parents.stage(&mut self.changes);
            let key = RowKey::clone_remap(self.folded.clone, old);
            match left {
                0 => self.changes.delete_meta(key),
                _ => self.changes.put_meta(key, CloneRemap { ino: inode.ino, left }.encode()),
            }
        }
        (self.changes, self.folded)
    }

    /// The next id of those set aside.
    fn id(&mut self) -> FsResult<InodeId> {
        Ok(self.ids(1)?.0)
    }

    fn ids(&mut self, count: u64) -> FsResult<(InodeId, InodeId)> {
        let (next, end) = (self.folded.next.get(), self.folded.end.get());
        match next.checked_add(count).filter(|after| *after <= end) {
            Some(after) => {
                self.folded.next = InodeId::new(after);
                Ok((InodeId::new(next), self.folded.next))
            }
            // One is needed; more were only to keep to the rule.
            None => self.fs.ids.reserve(count.min(1)),
        }
    }

    /// What counted for something in `dir` of the source counts here as `now`.
    pub(super) fn recount(&mut self, dir: InodeId, then: UsageChange, now: UsageChange) {
        let difference = now.plus(then.negated());
        if !difference.is_zero() {
            self.changes.charge(dir, difference);
        }
    }

    /// The inode `old` of the source as `ino`, in the row of a name.
    pub(super) fn file(&mut self, old: &Inode, ino: InodeId) -> FsResult<Inode> {
        let mut new = self.like(old, ino)?;
        (new.nlink, new.home) = (1, None);
        let borrowed = match &old.content {
            Content::Chunks => {
                Some(SharedContent { source: self.source.id(), ino: old.ino, blocks: None })
            }
            Content::Object { .. } => {
                let attr = self.from.attr(old)?;
                (new.size, new.times.mtime) = (attr.size, attr.mtime);
                let blocks = Some(attr.blocks);
                Some(SharedContent { source: self.source.id(), ino: old.ino, blocks })
            }
            Content::Shared(borrowed) => Some(*borrowed),
            _ => None,
        };
        if let Some(borrowed) = borrowed {
            new.content = Content::Shared(borrowed);
            self.changes.put_meta(
                RowKey::clone_reference(borrowed.source, ino),
                CloneReference::File.encode(),
            );
        }
        Ok(new)
    }

    /// The directory `old` of the source as `ino` with a name in `parent`; gives what counts for it there.
    pub(super) fn directory(
        &mut self,
        parent: InodeId,
        suffix: EntrySuffix,
        old: &Inode,
        ino: InodeId,
    ) -> FsResult<UsageChange> {
        let Content::Directory(then) = &old.content else { return Err(FsError::NotDirectory) };
        let mut new = self.like(old, ino)?;
        let source = (then.entries > 0).then_some(self.source.id());
        let pending = UsageChange::default();
        let info = DirInfo { parent, suffix: Some(suffix), pending, source, ..*then };
        if source.is_some() {
            let (next, end) = self.ids(then.usage.inodes())?;
            let folded = Folded { dir: old.ino, next, end, after: None, ..self.folded };
            let loan = CloneReference::Directory(folded).encode();
            self.changes.put_meta(RowKey::clone_reference(self.source.id(), ino), loan);
        }
        new.content = Content::Directory(info);
        self.changes.put_meta(RowKey::inode(ino), encode_inode_row(&new));
        Ok(info.propagated())
    }

    /// `old` as `ino`, with its extended attributes.
    fn like(&mut self, old: &Inode, ino: InodeId) -> FsResult<Inode> {
        let made = self.folded.made;
        if old.has_xattrs {
            let range = rows_from(RowKey::xattr(old.ino, 0));
            let rows = self.from.store.scan(self.from.data, range, Direction::Forward);
            for row in rows.map_err(error::store)? {
                let (key, value) = row.map_err(error::store)?;
                let Some(key) = RowKey::from_bytes(&key) else { continue };
                self.bytes += value.len();
                self.changes.put_data(key.of_inode(ino), value);
            }
        }
        Ok(Inode { ino, times: Times { ctime: made, btime: made, ..old.times }, ..old.clone() })
    }

    fn clone_remap(&self, old: InodeId) -> FsResult<Option<CloneRemap>> {
        let key = RowKey::clone_remap(self.folded.clone, old);
        let value = self.fs.store.get(self.fs.meta, &key.to_bytes()).map_err(error::store)?;
        let decode =
            |value| CloneRemap::decode(&value).map_err(|error| error::unreadable(META, key, error));
        value.map(decode).transpose()
    }

    /// The name `name` in `dir` of the file `old` of several names; gives what that is called here. `None` if not all of its
    /// names are known.
    fn name_of_linked(
        &mut self,
        dir: InodeId,
        name: FileName<'_>,
        old: InodeId,
    ) -> FsResult<Option<InodeId>> {
        let gone = |ino| {
            FsError::Storage(format!("inode {ino} of a cloned tree has no row; run `varve fsck`"))
        };
        let then = self.from.inode_row(old)?.ok_or_else(|| gone(old))?;
        let hash = self.fs.hasher.parent(self.folded.dir, name.as_bytes());
        let counted = then.home == Some(Home { dir: self.folded.dir, hash });
        // An id is set aside for it here if it counts here, whether it is needed or not.
        let own = if counted { Some(self.id()?) } else { None };
        let mut linked = match self.linked.remove(&old) {
            Some(linked) => linked,
            None => match self.clone_remap(old)? {
                Some(twin) => {
                    let inode = self.fs.inode_row(twin.ino)?.ok_or_else(|| gone(twin.ino))?;
                    Linked { inode, left: twin.left, parents: Parents::new(self.fs, twin.ino) }
                }
                None => {
                    let Some(left) = self.names_within(&then)? else { return Ok(None) };
                    let ino = match own {
                        Some(ino) => ino,
                        None => self.fs.ids.allocate()?,
                    };
                    let mut inode = self.file(&then, ino)?;
                    inode.nlink = u32::try_from(left).unwrap_or(u32::MAX);
                    Linked { inode, left, parents: Parents::new(self.fs, ino) }
                }
            },
        };
        let home = linked.parents.add(dir, name.as_bytes())?;
        linked.left = linked.left.saturating_sub(1);
        let mut counts = UsageChange::default();
        if linked.inode.home.is_none() {
            linked.inode.home = Some(home);
            counts = UsageChange::file(linked.inode.size);
        }
        let before = if counted { UsageChange::file(then.size) } else { UsageChange::default() };
        self.recount(dir, before, counts);
        let ino = linked.inode.ino;
        self.linked.insert(old, linked);
        Ok(Some(ino))
    }

    /// How many names of `file` lie within what was cloned. `None` if some may of which nothing tells where they lie: those that
    /// the source, a clone itself, has not copied.
    fn names_within(&self, file: &Inode) -> FsResult<Option<u64>> {
        let (known, within) = self.count_names(file)?;
        let all_known = self.all_known || known >= u64::from(file.nlink);
        Ok(all_known.then_some(within.max(1)))
    }

    /// How many names of `file` are known, and how many of them lie within what was cloned.
    fn count_names(&self, file: &Inode) -> FsResult<(u64, u64)> {
        let (mut known, mut within) = (0, 0);
        for_each_pointer(self.from.store.as_ref(), self.from.meta, file.ino, &mut |pointer| {
            known += 1;
            within += u64::from(self.from.lies_within(pointer.dir, self.folded.top)?);
            Ok(true)
        })?;
        Ok((known, within))
    }
}
