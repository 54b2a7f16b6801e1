//! Rollback: the main tree becomes what a snapshot is, at once, as the commit of a transaction that undoes what has
//! changed since.
//!
//! In: the name of a snapshot. Out: the main tree as it was then, and what the kernel has to forget. Never: removes a snapshot, or changes
//! the main tree but by a commit.
//!
//! 1. A transaction begins that users do not see ([`Purpose::Rollback`]).
//! 2. Each row that was written after the snapshot gets its value of then, or goes ([`Undo`]). Left alone are the
//!    store's own counters and marks, and what is pending, but for files that were being written to at the time of
//!    the snapshot. Files that were open then without a name are no part of the tree, and do not come back.
//! 3. Large files that changed are copied, as the snapshot sees them, to where a transaction has its own; files that the
//!    snapshot does not have are to be removed.
//! 4. Directories of clones that have copied their names since do so in the transaction ([`folded`]).
//! 5. The transaction is committed ([`crate::commit`]): names and inodes of the kernel, open files, quotas and the
//!    accounts of directories follow, and a crash leaves all of it or nothing. The next mount drops a rollback that was begun
//!    and not committed when the process died.
//!
//! What programs change meanwhile counts as changed after the rollback if the two can both be, else all is done again.
//! All snapshots stay, those after this one too. Costs the changes, and copies of the large files that changed.

mod folded;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use varve_engine::{Batch, Branch, Direction, KeyRange, SnapshotStore, Store};
use varve_schema::key::MetaRow;
use varve_schema::{
    Body, CloneReference, Content, DictionaryRow, EntryRow, Inode, META, Pending, RowKey,
    decode_inode_row,
};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::{FsError, FsResult};

use crate::commit::{CommitError, Committed, Ending};
use crate::dictionaries::unreadable;
use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::fsck::Progress;
use crate::rows::read_pending_row;
use crate::superblock::view_dir;
use crate::transactions::{Purpose, Transaction, TransactionOptions};
use folded::FoldedThen;

/// How often a rollback that meets changes of others, or files that are just being removed, is tried.
const ATTEMPTS: u32 = 20;
/// The wait between two of them.
const PAUSE: Duration = Duration::from_millis(50);
/// Rows between two reports of progress.
const TOLD_ROWS: u64 = 1 << 10;
/// Bytes of one write to the transaction, about.
const BATCH_BYTES: usize = 1 << 20;

/// The phases of a rollback, as progress reports name them: it looks at rows of the present state, copies large files where
/// it must, and commits the changes.
pub const ROLL_BACK_PHASES: [&str; 3] = [ROWS, LARGE_FILES, CHANGES];
const ROWS: &str = "rows";
const LARGE_FILES: &str = "large files";
const CHANGES: &str = "changes";

/// Why a rollback has changed nothing, unless it is [`CommitError::Unfinished`].
#[derive(Debug)]
pub enum RollBackError {
    /// Dictionaries would have to come back that were dropped, with their pairs: the names.
    Dropped(Vec<String>),
    /// It could not be committed: others keep changing the same, or files are in use.
    NotCommitted(CommitError),
}

impl RollBackError {
    /// What has changed all the same.
    pub fn committed(&self) -> Option<&Committed> {
        match self {
            RollBackError::NotCommitted(error) => error.committed(),
            RollBackError::Dropped(_) => None,
        }
    }
}

impl From<CommitError> for RollBackError {
    fn from(error: CommitError) -> RollBackError {
        RollBackError::NotCommitted(error)
    }
}

impl From<FsError> for RollBackError {
    fn from(error: FsError) -> RollBackError {
        RollBackError::NotCommitted(error.into())
    }
}

impl VarveFs {
    /// Makes the tree what it was in the snapshot `name`, durably, all of it or nothing, dictionaries too. Costs what has
    /// changed since. `NotFound` if there is no such snapshot.
    pub fn roll_back(&self, name: &str) -> Result<Committed, RollBackError> {
        self.roll_back_watched(name, &mut |_| ())
    }

    /// The same, and reports progress by [`ROLL_BACK_PHASES`]. It begins again where it meets changes of others.
    pub fn roll_back_watched(
        &self,
        name: &str,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Committed, RollBackError> {
        self.writable()?;
        let mut left = ATTEMPTS;
        loop {
            left -= 1;
            match self.try_roll_back(name, progress) {
                Err(RollBackError::NotCommitted(
                    CommitError::Conflict(_)
                    | CommitError::InUse(_)
                    | CommitError::Failed(FsError::Blocked(_)),
                )) if left > 0 => {
                    self.env.sleep(PAUSE);
                }
                done => return done,
            }
        }
    }

    fn try_roll_back(
        &self,
        name: &str,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Committed, RollBackError> {
        let (epoch, stored) = self.find_snapshot(name)?.ok_or(FsError::NotFound)?;
        self.require_whole(epoch)?;
        let before = self.views()?.db().open_snapshot(&stored).map_err(error::store)?;
        let options = TransactionOptions::default();
        let txn = self.begin_transaction_for(InodeId::ROOT, &options, Purpose::Rollback)?;
        let done = self.undo(&txn, epoch, &before, progress).and_then(|(now, folded)| {
            let view = self.open_transaction(&txn)?;
            self.unfold_known(&view, (&before, &now), folded)?;
            // What it sees of large files was kept only if it is still there.
            let still = self.find_snapshot(name)?.map(|(epoch, _)| epoch);
            still.filter(|still| *still == epoch).ok_or(FsError::NotFound)?;
            Ok(self.commit_with(&txn.name().name, &view, Ending::default())?)
        });
        let has_ended = |error: &RollBackError| error.committed().is_some();
        if done.as_ref().is_err_and(|error| !has_ended(error))
            && let Err(error) = self.drop_transaction(&txn.name().name)
        {
            log::warn!("what a rollback had begun stays until the next mount: {error}");
        }
        done
    }

    /// Steps 2 and 3. Gives the state that is undone, and what of it step 4 is about.
    fn undo(
        &self,
        txn: &Transaction,
        epoch: Epoch,
        before: &SnapshotStore,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(SnapshotStore, FoldedThen), RollBackError> {
        let views = self.views()?;
        let branch = views.db().open_branch(txn.branch).map_err(error::store)?;
        let now = branch.base().map_err(error::store)?;
        let written = self.written_between(epoch, Some(txn.epoch))?;
        let mut undo = Undo::new(self, before, &now, &branch);
        let (spaces, mut failed) = (self.spaces_of(&[before, &now])?, None);
        let mut rows = 0;
        let walked = now.changes_since(before, &spaces, &mut |keyspace, key, now| {
            if rows % TOLD_ROWS == 0 {
                progress(Progress { phase: ROWS, done: rows, permille: None });
            }
            rows += 1;
            failed = undo.row(keyspace, key, now).err();
            failed.is_none()
        });
        walked.map_err(error::store)?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        undo.finish(&written)?;
        let own = view_dir(&self.dir, txn.epoch);
        let staged = Arc::new(self.objects.of_view(own, Some(epoch)));
        let copied: Vec<InodeId> = undo.objects_then.intersection(&written).copied().collect();
        for (done, ino) in copied.iter().enumerate() {
            let permille = Some((done * 1000 / copied.len()) as u16);
            progress(Progress { phase: LARGE_FILES, done: done as u64, permille });
            staged.copy_own(*ino)?;
        }
        staged.sync_claimed().map_err(error::sync)?;
        progress(Progress { phase: CHANGES, done: rows, permille: None });
        let folded = undo.folded;
        Ok((now, folded))
    }

    /// The key spaces that hold what users see: files, and the dictionaries of any of `states`.
    fn spaces_of(&self, states: &[&SnapshotStore]) -> FsResult<Vec<KeyspaceId>> {
        let names = self.dictionaries().names();
        let (mut spaces, mut known) = (vec![self.meta, self.data, names], BTreeSet::new());
        for state in states {
            let rows = state.scan(names, KeyRange::all(), Direction::Forward);
            for row in rows.map_err(error::store)? {
                let (name, row) = row.map_err(error::store)?;
                let row = DictionaryRow::decode(&row).map_err(|e| unreadable(&name, &e))?;
                if known.insert(row.number) {
                    spaces.push(self.dictionaries().pairs(row)?);
                }
            }
        }
        Ok(spaces)
    }
}

/// Writes to a transaction what undoes changes.
struct Undo<'a> {
    fs: &'a VarveFs,
    before: &'a SnapshotStore,
    now: &'a SnapshotStore,
    branch: &'a Branch,
    names: KeyspaceId,
    batch: Batch,
    bytes: usize,
    /// Large files that are being removed, or made of files without a name.
    going: BTreeSet<InodeId>,
    /// Files that had no name then: their rows go, or stay as they are where they have no name now either.
    nameless: BTreeSet<InodeId>,
    /// Large files in rows that differ, as they were and as they are.
    objects_then: BTreeSet<InodeId>,
    objects_now: BTreeSet<InodeId>,
    /// Paths of files that are needed and still in use.
    in_use: BTreeSet<String>,
    /// Dictionaries whose pairs are gone.
    dropped: BTreeSet<String>,
    /// What clones had yet to copy then, and have copied since.
    folded: FoldedThen,
}

impl<'a> Undo<'a> {
    fn new(
        fs: &'a VarveFs,
        before: &'a SnapshotStore,
        now: &'a SnapshotStore,
        branch: &'a Branch,
    ) -> Undo<'a> {
        Undo {
            fs,
            before,
            now,
            branch,
            names: fs.dictionaries().names(),
            batch: Batch::new(),
            bytes: 0,
            going: BTreeSet::new(),
            nameless: BTreeSet::new(),
            objects_then: BTreeSet::new(),
            objects_now: BTreeSet::new(),
            in_use: BTreeSet::new(),
            dropped: BTreeSet::new(),
            folded: FoldedThen::default(),
        }
    }

    /// Takes a row that was written since, as it is now. Pending rows come before those of the inodes they name.
    fn row(&mut self, keyspace: KeyspaceId, key: &[u8], now: Option<Bytes>) -> FsResult<()> {
        let then = self.before.get(keyspace, key).map_err(error::store)?;
        if then == now {
            return Ok(());
        }
        if keyspace == self.names {
            self.dictionary(key, then.as_ref(), now.as_ref())?;
        } else if let Some(key) = RowKey::from_bytes(key).filter(|_| keyspace == self.fs.meta) {
            return self.meta_row(key, then, now);
        } else if let Some(key) = RowKey::from_bytes(key).filter(|_| keyspace == self.fs.data)
            && self.nameless.contains(&InodeId::new(key.prefix()))
        {
            return Ok(());
        }
        self.put(keyspace, key, then)
    }

    fn meta_row(&mut self, key: RowKey, then: Option<Bytes>, now: Option<Bytes>) -> FsResult<()> {
        match key.meta_kind() {
            MetaRow::Bookkeeping | MetaRow::Mark(_) => return Ok(()),
            MetaRow::Pending(ino) => return self.pending(ino, then.as_ref(), now.as_ref()),
            MetaRow::Entry(dir, _) => {
                for row in names_in(key, now.as_ref())?.names() {
                    note_object(&mut self.objects_now, &row.body);
                }
                for row in names_in(key, then.as_ref())?.names() {
                    note_object(&mut self.objects_then, &row.body);
                    if self.going.contains(&row.body.ino()) {
                        let dir = self.fs.path_of(dir)?.unwrap_or_else(|| b"...".to_vec());
                        let path = [&dir[..], b"/", &row.name].concat();
                        self.in_use.insert(String::from_utf8_lossy(&path).into_owned());
                    }
                }
            }
            MetaRow::Inode(ino) => {
                let (was, is) = (inode_in(key, then.as_ref())?, inode_in(key, now.as_ref())?);
                if was.as_ref().is_some_and(|was| was.nlink == 0) {
                    self.nameless.insert(ino);
                    if is.as_ref().is_some_and(|is| is.nlink == 0) {
                        return Ok(());
                    }
                    self.remove_data(ino)?;
                    is.into_iter()
                        .for_each(|is| note_object(&mut self.objects_now, &Body::Inline(is)));
                    return self.put(self.fs.meta, &key.to_bytes(), None);
                }
                if let Some(inode) = is {
                    note_object(&mut self.objects_now, &Body::Inline(inode));
                }
                if let Some(inode) = was {
                    if self.going.contains(&ino) && inode.nlink > 0 {
                        self.in_use.insert(self.fs.path_of_inode(ino));
                    }
                    note_object(&mut self.objects_then, &Body::Inline(inode));
                }
            }
            MetaRow::CloneReference(_, ino) => {
                let loan = then.as_ref().map(CloneReference::decode).transpose();
                let loan = loan.map_err(|error| error::unreadable(META, key, error))?;
                loan.into_iter().for_each(|loan| self.folded.add(ino, loan));
            }
            MetaRow::Limits(_)
            | MetaRow::Parent(..)
            | MetaRow::CloneRemap(..)
            | MetaRow::Unknown => {}
        }
        self.put(self.fs.meta, &key.to_bytes(), then)
    }

    /// Removes all chunks and extended attributes of an inode, also those that nobody has written since.
    fn remove_data(&mut self, ino: InodeId) -> FsResult<()> {
        let (data, now) = (self.fs.data, self.now);
        let range = KeyRange::prefix(&RowKey::prefix_bytes(ino));
        for key in now.keys(data, range).map_err(error::store)? {
            self.put(data, &key.map_err(error::store)?, None)?;
        }
        Ok(())
    }

    fn pending(&mut self, ino: InodeId, then: Option<&Bytes>, now: Option<&Bytes>) -> FsResult<()> {
        let key = RowKey::pending(ino);
        let decode = |row: Option<&Bytes>| row.map(Pending::decode).transpose();
        let unreadable = |error| error::unreadable(META, key, error);
        let now = decode(now).map_err(unreadable)?;
        if let Some(Pending::OrphanObjectMaking | Pending::ObjectDelete) = now {
            self.going.insert(ino);
        }
        let then = decode(then).map_err(unreadable)?;
        let then = then.filter(|pending| matches!(pending, Pending::ObjectDirty { .. }));
        match (then, now) {
            // What has no name left but is known gets it back; where it never had one, the commit keeps it.
            (None, Some(Pending::ObjectDirty { .. } | Pending::Orphan)) => {
                self.put(self.fs.meta, &key.to_bytes(), None)
            }
            (None, _) => Ok(()),
            (Some(then), _) => self.put(self.fs.meta, &key.to_bytes(), Some(then.encode().into())),
        }
    }

    /// Pairs are gone with the dictionary that had them, whatever snapshots there are.
    fn dictionary(
        &mut self,
        name: &[u8],
        then: Option<&Bytes>,
        now: Option<&Bytes>,
    ) -> FsResult<()> {
        let decode = |row: Option<&Bytes>| {
            let row = row.map(DictionaryRow::decode).transpose();
            row.map_err(|error| unreadable(name, &error))
        };
        let (then, now) = (decode(then)?, decode(now)?);
        if then.is_some_and(|then| !then.going) && then != now {
            self.dropped.insert(name.escape_ascii().to_string());
        }
        Ok(())
    }

    fn put(&mut self, keyspace: KeyspaceId, key: &[u8], value: Option<Bytes>) -> FsResult<()> {
        self.bytes += key.len() + value.as_ref().map_or(0, Bytes::len);
        let key = Bytes::copy_from_slice(key);
        match value {
            Some(value) => self.batch.put(keyspace, key, value),
            None => self.batch.delete(keyspace, key),
        }
        if self.bytes >= BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> FsResult<()> {
        self.bytes = 0;
        match std::mem::take(&mut self.batch) {
            batch if batch.is_empty() => Ok(()),
            batch => self.branch.write(batch).map_err(error::store),
        }
    }

    /// Has large files removed that were none then, and writes what is left. Refuses if something is in the way.
    fn finish(&mut self, written: &BTreeSet<InodeId>) -> Result<(), RollBackError> {
        let gone: Vec<InodeId> = self.objects_now.difference(&self.objects_then).copied().collect();
        for ino in gone {
            let delete = Pending::ObjectDelete.encode();
            self.put(self.fs.meta, &RowKey::pending(ino).to_bytes(), Some(delete.into()))?;
        }
        self.flush()?;
        for ino in written {
            let pending = read_pending_row(self.now, self.fs.meta, *ino)?;
            if let Some(Pending::ObjectDirty { .. }) = pending {
                self.in_use.insert(self.fs.path_of_inode(*ino));
            }
        }
        for ino in self.going.iter().filter(|ino| self.folded.concerns(**ino)) {
            self.in_use.insert(self.fs.path_of_inode(*ino));
        }
        match () {
            () if !self.dropped.is_empty() => Err(RollBackError::Dropped(all(&mut self.dropped))),
            () if !self.in_use.is_empty() => Err(CommitError::InUse(all(&mut self.in_use)).into()),
            () => Ok(()),
        }
    }
}

fn all(set: &mut BTreeSet<String>) -> Vec<String> {
    std::mem::take(set).into_iter().collect()
}

fn names_in(key: RowKey, row: Option<&Bytes>) -> FsResult<EntryRow> {
    let names =
        row.map(EntryRow::decode).transpose().map_err(|e| error::unreadable(META, key, e))?;
    Ok(names.unwrap_or_default())
}

fn inode_in(key: RowKey, row: Option<&Bytes>) -> FsResult<Option<Inode>> {
    row.map(decode_inode_row).transpose().map_err(|error| error::unreadable(META, key, error))
}

fn note_object(objects: &mut BTreeSet<InodeId>, body: &Body) {
    if let Body::Inline(Inode { ino, content: Content::Object { .. }, .. }) = body {
        objects.insert(*ino);
    }
}
