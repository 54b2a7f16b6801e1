//! Clones: copies of files and directory trees that cost the same however large they are.
//!
//! 1. [`VarveFs::do_clone`] keeps the present state of the store as a *source* ([`sources`]), or takes a snapshot for
//!    one, and writes one name: a directory with the attributes and the account of the original that is *folded*, which
//!    means that its names are still to be taken from the source; or a file that *borrows* its bytes from it. Ids for all
//!    inodes that lie below are set aside. What large files that are open for writing have is made durable before, as their copies say
//!    how large they are.
//! 2. Whoever comes by a folded directory unfolds it first ([`unfold`], [`names`]): its names are copied, directories among
//!    them as folded ones. Whoever writes to a file that borrows its bytes makes them its own first ([`shared`]).
//! 3. Where the device has no room for that, what is only looked at stays in memory ([`unwritten`]).
//! 4. What is folded or borrows has a reference row. A source whose last reference is returned goes ([`VarveFs::drop_returned_sources`]).
//!
//! A clone is like any other part of the tree: it has the same `st_dev`, can be moved, linked, cloned and limited, and is
//! in snapshots and transactions, where it is unfolded on its own.
//!
//! Invariants, which [`crate::fsck`] checks: a folded directory counts names that it does not have yet; what is folded or
//! borrows has the reference row, and nothing else has one; the source that it names exists.
//!
//! Source: lazy copy-on-write of subtrees in Btrfs (`btrfs_copy_root`: only the top is copied, each node below when it is
//! first changed). Departure: a node is copied when it is first looked at, as an inode needs an id of its own.

mod names;
mod released;
mod shared;
mod sources;
mod state;
mod unfold;
mod unwritten;

use std::collections::BTreeSet;

use varve_engine::Direction;
use varve_namespace::directory::{adjust_dir, dangling, row_full};
use varve_namespace::flags::check_adds_name;
use varve_schema::key::MetaRow;
use varve_schema::{
    Body, CloneReference, Content, FileKind, Folded, Inode, META, RowKey, UsageChange,
};
use varve_types::{FileName, InodeId};
use varve_vfs::{FsError, FsResult, Gave};

use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::rows::rows_from;
use crate::snapshots::stored_name::hidden_name;
use names::Copying;
use sources::hidden_of;
pub(crate) use sources::{SourceParts, Sources, epochs_of};
pub(crate) use unwritten::{KeptBytes, UnwrittenStore};

/// Inode ids that are set aside for one clone at most.
const BELOW_MAX: u64 = 1 << 40;

/// What is to be cloned.
#[derive(Clone, Copy, Debug)]
pub struct Original<'a> {
    /// The snapshot that it is in; `None`: the main tree.
    pub snapshot: Option<&'a str>,
    /// The directory that holds its name.
    pub dir: InodeId,
    /// The name; `None`: the directory itself.
    pub name: Option<FileName<'a>>,
}

impl VarveFs {
    /// Makes `name` in `parent` a copy of `original` and gives its inode. Costs the same however large that is; large files
    /// that are open for writing are kept as for a snapshot. `Exists` if there is such a name, `QuotaExceeded` if
    /// all of it does not fit.
    pub fn do_clone(
        &self,
        original: Original<'_>,
        parent: InodeId,
        name: FileName<'_>,
    ) -> FsResult<InodeId> {
        self.writable()?;
        self.check_name(parent, name)?;
        // In a view there are no clones.
        let (views, sources) = (self.views()?, self.sources()?);
        if original.snapshot.is_none() {
            self.settle_before_view()?;
        }
        let changing = views.lock_changes();
        let key = RowKey::entry(parent, self.hasher.entry(name.as_bytes()));
        let (guards, into) = self.lock_unfolded(parent, &[RowKey::inode(parent), key])?;
        if self.entry_row(key)?.find(name.as_bytes()).is_some() {
            return Err(FsError::Exists);
        }
        check_adds_name(&into)?;
        drop(guards);
        let source = match original.snapshot {
            Some(snapshot) => self.find_snapshot(snapshot)?.ok_or(FsError::NotFound)?.0,
            None => {
                // What is not counted yet would be counted by everybody who unfolds it.
                self.settle_growing();
                let pin = |epoch: Epoch| {
                    let stored = hidden_name(epoch);
                    sources.db.create_snapshot(&stored)?;
                    Ok((epoch, stored))
                };
                self.begin_view(pin, |(_, stored)| sources.db.delete_snapshot(stored))?.0
            }
        };
        let cloned = self.clone_from(source, original, parent, name);
        if !sources.lends(source, sources.db.as_ref())? {
            // It failed, or has copied everything already.
            sources.note_returned(source);
            self.drop_sources_after_view(&changing);
        }
        cloned
    }

    fn clone_from(
        &self,
        source: Epoch,
        Original { dir, name: old_name, .. }: Original<'_>,
        parent: InodeId,
        name: FileName<'_>,
    ) -> FsResult<InodeId> {
        let from = self.sources()?.open(source)?;
        let old = match old_name {
            None => from.unfolded_row(dir)?,
            Some(name) => from.named(dir, name)?,
        };
        self.sync_lent(&old)?;
        let (ino, clone) = (self.ids.allocate()?, self.ids.allocate()?);
        let is_dir = old.kind == FileKind::Directory;
        let below = match &old.content {
            Content::Directory(info) => info.usage.inodes(),
            _ => 0,
        };
        // An account that says more is wrong, and no reason to use ids up: they are taken anew then.
        let (next, end) = self.ids.reserve(below.min(BELOW_MAX))?;
        let (top, made) = (old.ino, self.now());
        let folded = Folded { dir: top, top, clone, next, end, after: None, made };
        let suffix = self.hasher.entry(name.as_bytes());
        let key = RowKey::entry(parent, suffix);
        let (_guards, mut into) = self.lock_unfolded(parent, &[RowKey::inode(parent), key])?;
        let mut row = self.entry_row(key)?;
        if row.find(name.as_bytes()).is_some() {
            return Err(FsError::Exists);
        }
        check_adds_name(&into)?;
        let mut copying = Copying::new(self, &from, source, folded);
        let (body, counts) = if is_dir {
            let usage = copying.directory(parent, suffix, &old, ino)?;
            (Body::Reference { ino, kind: FileKind::Directory }, usage)
        } else {
            let file = copying.file(&old, ino)?;
            let counts = UsageChange::file(file.size);
            (Body::Inline(file), counts)
        };
        let (mut changes, _) = copying.finish();
        row.insert(name.as_bytes(), body).ok_or_else(|| row_full(&row))?;
        adjust_dir(&mut into, 1, i32::from(is_dir), made)?;
        changes.put_inode(&into);
        changes.charge(parent, counts);
        changes.put_entry_row(key, &row);
        self.commit_call(&mut changes, Gave::Inode(ino))?;
        Ok(ino)
    }

    /// Makes the bytes durable that a clone of `old` is about to say it has, and no row does: of large files that are open for writing.
    fn sync_lent(&self, old: &Inode) -> FsResult<()> {
        match &old.content {
            Content::Directory(_) => self.sync_open_objects(),
            content if content.is_dirty() => self.sync_open_objects_of(|ino| ino == old.ino),
            _ => Ok(()),
        }
    }

    /// The inode behind a name, which nobody may be changing.
    fn named(&self, dir: InodeId, name: FileName<'_>) -> FsResult<Inode> {
        self.unfolded_row(dir)?;
        let key = RowKey::entry(dir, self.hasher.entry(name.as_bytes()));
        let row = self.entry_row(key)?;
        let named = row.find(name.as_bytes()).ok_or(FsError::NotFound)?;
        match &named.body {
            Body::Inline(inode) => Ok(inode.clone()),
            Body::Reference { ino, .. } => {
                self.inode_row(*ino)?.ok_or_else(|| dangling(key, named))
            }
        }
    }

    /// Lets go of sources that nothing needs any more, if references were returned since the last time.
    pub(crate) fn drop_returned_sources(&self) {
        let Some(sources) = &self.sources else { return };
        if self.views.is_some() && sources.unwritten.has_written() {
            // What returned references without ending them has ended them now.
            hidden_of(&sources.db).into_keys().for_each(|source| sources.note_returned(source));
        }
        if self.views.is_some()
            && sources.returned.is_due()
            && let Ok(views) = self.views()
            && let Some(changing) = views.try_lock_changes()
        {
            self.drop_sources(sources.returned.take(), &changing);
        }
    }

    /// The same after a view has ended, which may have been the last to read from some.
    pub(crate) fn drop_sources_after_view(&self, changing: &parking_lot::MutexGuard<'_, ()>) {
        let Some(sources) = &self.sources else { return };
        let mut asked = sources.returned.take_of_views(Epoch::LAST);
        asked.append(&mut sources.returned.take());
        self.drop_sources(asked, changing);
    }

    /// Lets go of those of the sources `asked` that nothing needs any more. Failures leave them until the next time.
    fn drop_sources(
        &self,
        mut asked: BTreeSet<Epoch>,
        _changing: &parking_lot::MutexGuard<'_, ()>,
    ) {
        let Some(sources) = &self.sources else { return };
        if self.options.read_only || asked.is_empty() {
            return;
        }
        if let Err(error) = self.drop_unneeded(&mut asked) {
            sources.returned.put_back(asked);
            log::warn!("states that clones read from stay for now: {error}");
        }
    }

    /// What is left in `asked` then is not known.
    fn drop_unneeded(&self, asked: &mut BTreeSet<Epoch>) -> FsResult<()> {
        let (sources, mut hidden) = (self.sources()?, None);
        // The newest first, as it may be the last that needs an older one.
        while let Some(epoch) = asked.last().copied() {
            if !sources.lends(epoch, sources.db.as_ref())? {
                let hidden = hidden.get_or_insert_with(|| hidden_of(&sources.db));
                if let Some(stored) = hidden.get(&epoch) {
                    self.drop_unread(epoch, stored, asked)?;
                }
            }
            asked.remove(&epoch);
        }
        Ok(())
    }

    /// Lets go of a source that the main tree does not read from, unless views do; older ones that it may have read from are asked,
    /// too.
    fn drop_unread(&self, epoch: Epoch, stored: &str, asked: &mut BTreeSet<Epoch>) -> FsResult<()> {
        let sources = self.sources()?;
        if sources.lends_to_views(epoch)? {
            sources.returned.note_of_views(epoch);
            return Ok(());
        }
        // A power cut must not bring the references back without what they are of.
        self.store.sync().map_err(error::store)?;
        sources.delete(epoch, stored)?;
        self.end_view(epoch);
        asked.append(&mut sources.returned.take_of_views(epoch));
        Ok(())
    }

    /// Whether anything reads from the state of the epoch `epoch`.
    pub(crate) fn is_source(&self, epoch: Epoch) -> FsResult<bool> {
        let sources = self.sources()?;
        Ok(sources.lends(epoch, sources.db.as_ref())? || sources.lends_to_views(epoch)?)
    }

    /// The first folded directory from `from` on that reads from the state of the epoch `source`.
    fn next_folded(&self, source: Epoch, from: InodeId) -> FsResult<Option<InodeId>> {
        let loans = self.store.scan(
            self.meta,
            rows_from(RowKey::clone_reference(source.id(), from)),
            Direction::Forward,
        );
        for loan in loans.map_err(error::store)? {
            let (key, value) = loan.map_err(error::store)?;
            let Some(key) = RowKey::from_bytes(&key) else { continue };
            let MetaRow::CloneReference(_, ino) = key.meta_kind() else { continue };
            let loan = CloneReference::decode(&value)
                .map_err(|error| error::unreadable(META, key, error))?;
            if let CloneReference::Directory(_) = loan {
                return Ok(Some(ino));
            }
        }
        Ok(None)
    }

    /// Unfolds everything within `top`: afterwards all names are there, though files may still borrow their bytes. REQUIRES:
    /// nobody moves directories meanwhile.
    pub(crate) fn unfold_within(&self, top: InodeId) -> FsResult<()> {
        let Some(sources) = self.sources.clone() else { return Ok(()) };
        for source in sources.epochs() {
            let mut from = InodeId::new(0);
            // What is unfolded has ids above that of its directory.
            while let Some(ino) = self.next_folded(source, from)? {
                if self.lies_within(ino, top)? {
                    self.unfold(ino)?;
                }
                from = InodeId::new(ino.get() + 1);
            }
        }
        Ok(())
    }
}
