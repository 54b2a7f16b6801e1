//! Transactions: views that can be written to, and become part of the main view as a whole or not at all.
//!
//! 1. [`VarveFs::begin_transaction`] begins a branch of the store. What it stands for, its epoch and the directory that
//!    it shows, is kept with the branch: over restarts, until it is committed or aborted.
//! 2. It is opened as any view ([`VarveFs::open_view`]), and written to.
//! 3. [`VarveFs::commit_transaction`] ([`super::commit`]) or [`VarveFs::abort_transaction`] ends it.
//!
//! Source: KVFS, thesis section 3.3.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use varve_engine::{BranchOptions, Db, KeyRange, LockOptions, Store, StoreResult};
use varve_namespace::directory::DEPTH_MAX;
use varve_schema::acl::ACL_ACCESS;
use varve_schema::key::MetaRow;
use varve_schema::{Content, Pending, RowKey};
use varve_types::{BranchId, InodeId};
use varve_vfs::{FsError, FsResult};

use super::serial::SerialStore;
use super::{ViewName, ViewParts};
use crate::attrs::ALL_EXECUTE;
use crate::dictionaries::Seen;
use crate::error;
use crate::fs::VarveFs;
use crate::kept::remove_tree;
use crate::objects::Objects;
use crate::superblock::{view_dir, views_dir};

/// What of others a transaction is kept apart from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// It sees its beginning, and of two that changed the same the first to commit wins.
    #[default]
    Snapshot,
    /// It sees the newest state, and keeps others from changing what it has looked at until it ends ([`super::serial`]).
    Serializable,
}

/// What a serializable transaction does where others have locked what it asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// It waits.
    #[default]
    Wait,
    /// It gives way, and has to begin again.
    Restart,
    /// The one call fails.
    Fail,
}

/// How a transaction is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionOptions {
    /// From what it is kept apart.
    pub isolation: Isolation,
    /// What it does about locks of others.
    pub on_conflict: OnConflict,
    /// The longest that one of its calls waits for locks, in milliseconds.
    pub lock_wait_ms: u64,
    /// Of transactions that wait for each other the one with the smallest number gives way; of equal ones the youngest.
    pub priority: u32,
    /// Seconds without use after which a mount aborts it; `None`: it does not.
    #[serde(default)]
    pub idle_abort_s: Option<u64>,
}

impl Default for TransactionOptions {
    fn default() -> TransactionOptions {
        TransactionOptions {
            isolation: Isolation::default(),
            on_conflict: OnConflict::default(),
            lock_wait_ms: 10_000,
            priority: 0,
            idle_abort_s: None,
        }
    }
}

/// What a transaction is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Purpose {
    /// Programs work in it.
    #[default]
    User,
    /// It takes the main view back to a snapshot ([`super::rollback`]), and nobody else sees it.
    Rollback,
    /// It takes what is received ([`super::stream`]), and nobody else sees it.
    Receive,
}

/// What is kept with a branch.
#[derive(Serialize, Deserialize)]
struct Info {
    epoch: u64,
    root: u64,
    begun: i64,
    #[serde(default)]
    options: TransactionOptions,
    #[serde(default)]
    purpose: Purpose,
}

impl Info {
    /// The transaction whose branch is `branch`.
    fn transaction(&self, branch: BranchId) -> Transaction {
        let Info { epoch, root, begun, options, purpose } = *self;
        let (epoch, root) = (InodeId::new(epoch), InodeId::new(root));
        let wait_ms = match options.on_conflict {
            OnConflict::Wait => options.lock_wait_ms,
            OnConflict::Restart | OnConflict::Fail => 0,
        };
        let TransactionOptions { isolation, idle_abort_s, .. } = options;
        let lock_wait = Duration::from_millis(wait_ms);
        Transaction { branch, epoch, root, begun, isolation, lock_wait, idle_abort_s, purpose }
    }
}

/// An open transaction.
#[derive(Clone, Copy, Debug)]
pub struct Transaction {
    pub(crate) branch: BranchId,
    pub(super) epoch: InodeId,
    /// The directory that it shows.
    pub root: InodeId,
    /// When it began, in seconds since 1970.
    pub begun: i64,
    /// From what it is kept apart.
    pub isolation: Isolation,
    lock_wait: Duration,
    /// Seconds without use after which a mount aborts it; `None`: it does not.
    pub idle_abort_s: Option<u64>,
    pub(super) purpose: Purpose,
}

impl Transaction {
    /// The name of the transaction of which `info` was kept with its branch.
    pub(crate) fn name_in(info: &str) -> Option<ViewName> {
        let Info { epoch, .. } = serde_json::from_str(info).ok()?;
        Some(ViewName::transaction(epoch.to_string()))
    }

    /// The longest that one of its calls waits for locks.
    pub fn lock_wait_max(&self) -> Duration {
        self.lock_wait
    }

    /// Its name among the views.
    pub fn name(&self) -> ViewName {
        ViewName::transaction(self.epoch.get().to_string())
    }

    /// The first id that only the transaction itself can have given to an inode it knows.
    pub(super) fn own_from(&self) -> InodeId {
        match self.isolation {
            Isolation::Snapshot => self.epoch,
            Isolation::Serializable => InodeId::FIRST_MADE_UP,
        }
    }

    /// The same, of which is known that no inode from `first` on is in the main view.
    pub(super) fn with_new_from(self, first: InodeId) -> Transaction {
        Transaction { epoch: first, ..self }
    }

    /// The epoch as of which it sees large files; `None`: it sees them as they are.
    pub(super) fn sees_objects_of(&self) -> Option<InodeId> {
        (self.isolation == Isolation::Snapshot).then_some(self.epoch)
    }

    /// The dictionaries that it has.
    pub(super) fn seen(&self) -> Seen {
        match self.isolation {
            Isolation::Snapshot => Seen::Before(self.epoch),
            Isolation::Serializable => Seen::Locked,
        }
    }
}

/// The open transactions of a store, oldest first, those too that nobody is to see.
fn open_in(db: &Db) -> Vec<Transaction> {
    let branches = db.branches().into_iter();
    let known = branches.filter_map(|about| {
        let info: Info = serde_json::from_slice(&about.info).ok()?;
        Some(info.transaction(about.id))
    });
    known.collect()
}

/// The open transaction of an epoch.
pub(crate) fn transaction_of_epoch(db: &Db, epoch: InodeId) -> Option<Transaction> {
    open_in(db).into_iter().find(|txn| txn.epoch == epoch)
}

/// The epochs of the open transactions of a store.
pub(crate) fn transactions_of(db: &Db) -> Vec<InodeId> {
    open_in(db).iter().map(|txn| txn.epoch).collect()
}

/// Has syncs of `db` make durable what an earlier process has left of the large files of open transactions, as rows in its log may
/// claim it: until somebody opens them nobody else does. `of_view` gives the objects of the view of an epoch, which sees the store's as
/// of another. REQUIRES: the store has no hook of its own yet, so that it was not synced since such rows were found.
pub(crate) fn cover_left(
    db: &Db,
    of_view: &dyn Fn(InodeId, Option<InodeId>) -> Arc<Objects>,
) -> StoreResult<()> {
    // What is received, and notes how far that is, is synced before it is noted. No rollback is gone on with.
    for txn in open_in(db).iter().filter(|txn| txn.purpose == Purpose::User) {
        let branch = db.open_branch(txn.branch)?;
        if !branch.may_await_external_sync()? {
            continue;
        }
        let objects = of_view(txn.epoch, txn.sees_objects_of());
        if objects.has_unclaimed() {
            branch.set_external_sync(Box::new(move || objects.sync_claimed()));
        }
    }
    Ok(())
}

impl VarveFs {
    /// Begins a transaction that shows the directory `root`. Costs the same however many files there are.
    pub fn begin_transaction(
        &self,
        root: InodeId,
        options: &TransactionOptions,
    ) -> FsResult<ViewName> {
        self.begin_transaction_for(root, options, Purpose::User).map(|txn| txn.name())
    }

    pub(super) fn begin_transaction_for(
        &self,
        root: InodeId,
        options: &TransactionOptions,
        purpose: Purpose,
    ) -> FsResult<Transaction> {
        self.writable()?;
        let views = self.views()?;
        if root.is_made_up() {
            return Err(FsError::NotSupported("a transaction that shows views"));
        }
        self.dir_row(root)?;
        match options.isolation {
            Isolation::Snapshot => self.settle_before_view()?,
            Isolation::Serializable => self.settle_all_waiting(),
        }
        let _changing = views.changing.lock();
        // None is half made when it begins.
        let _held = self.dictionaries().stand_still()?;
        let begun = self.now().secs();
        let pin = |epoch: InodeId| {
            let options = *options;
            let kept = Info { epoch: epoch.get(), root: root.get(), begun, options, purpose };
            let info = serde_json::to_vec(&kept).unwrap_or_default().into();
            let mut branch_options = BranchOptions {
                private: vec![self.lookups],
                written: vec![self.meta, self.data],
                info,
                ..BranchOptions::default()
            };
            if options.isolation == Isolation::Serializable {
                branch_options.locks = Some(LockOptions {
                    wait: None,
                    give_way: u64::MAX - u64::from(options.priority),
                    restarts: options.on_conflict == OnConflict::Restart,
                });
                let marks = Bytes::copy_from_slice(&RowKey::mark_prefix());
                branch_options.unlocked = vec![(self.data, Bytes::new()), (self.meta, marks)];
                let apart = [RowKey::pending_prefix(), RowKey::limits_prefix()];
                let apart = apart.map(|prefix| (self.meta, Bytes::copy_from_slice(&prefix)));
                branch_options.apart = apart.to_vec();
            }
            let branch = views.db.branch(&branch_options)?;
            let txn = kept.transaction(branch.id());
            Ok((branch, txn))
        };
        if options.isolation == Isolation::Serializable {
            // It sees what is, so there is nothing to keep.
            return Ok(pin(self.ids.allocate()?).map_err(error::store)?.1);
        }
        let (_, txn) = self.begin_view(pin, |(branch, _)| branch.abort())?;
        Ok(txn)
    }

    /// The open transactions, oldest first.
    pub fn transactions(&self) -> FsResult<Vec<Transaction>> {
        let all = self.all_transactions()?.into_iter();
        Ok(all.filter(|txn| txn.purpose == Purpose::User).collect())
    }

    /// Those too that nobody is to see.
    pub(super) fn all_transactions(&self) -> FsResult<Vec<Transaction>> {
        Ok(open_in(&self.views()?.db))
    }

    /// An open transaction that somebody began.
    pub fn transaction(&self, id: &str) -> FsResult<Transaction> {
        Some(self.any_transaction(id)?)
            .filter(|txn| txn.purpose == Purpose::User)
            .ok_or(FsError::NotFound)
    }

    /// Whether everybody may get to the directory `dir`, as far as the directories above it are concerned; nobody to one that is
    /// removed.
    pub fn all_may_reach(&self, dir: InodeId) -> FsResult<bool> {
        match self.is_reached_by_all(dir) {
            Err(FsError::NotFound) => Ok(false),
            found => found,
        }
    }

    fn is_reached_by_all(&self, dir: InodeId) -> FsResult<bool> {
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == InodeId::ROOT {
                return Ok(true);
            }
            let Content::Directory(info) = self.dir_row(at)?.content else { break };
            at = info.parent;
            let above = self.dir_row(at)?;
            // A list may keep out some of those whom the mode lets in.
            let is_listed = match self.do_getxattr(at, ACL_ACCESS) {
                Ok(_) => true,
                Err(FsError::NoXattr) => false,
                Err(error) => return Err(error),
            };
            if above.perm & ALL_EXECUTE != ALL_EXECUTE || is_listed {
                break;
            }
        }
        Ok(false)
    }

    /// One that nobody is to see, too.
    pub(super) fn any_transaction(&self, id: &str) -> FsResult<Transaction> {
        let open = self.all_transactions()?;
        open.into_iter().find(|txn| txn.name().name == id).ok_or(FsError::NotFound)
    }

    /// The file system of an open transaction.
    pub(super) fn open_transaction(&self, txn: &Transaction) -> FsResult<VarveFs> {
        let branch = self.views()?.db.open_branch(txn.branch).map_err(error::store)?;
        let mut pending = Vec::new();
        let range = KeyRange::prefix(&RowKey::pending_prefix());
        let walked = branch.changes_of(self.meta, &range, &mut |_, key, value| {
            if let Some(MetaRow::Pending(ino)) = RowKey::from_bytes(key).map(RowKey::meta_kind)
                && let Some(Ok(kind)) = value.as_ref().map(Pending::decode)
                && kind != Pending::ObjectDelete
            {
                pending.push((ino, kind));
            }
            true
        });
        walked.map_err(error::store)?;
        let (db, read_only) = (Arc::clone(&self.views()?.db), self.options.read_only);
        let (store, serial): (Arc<dyn Store>, _) = match txn.isolation {
            Isolation::Snapshot => (Arc::new(branch), None),
            Isolation::Serializable => {
                let spaces = (self.meta, self.lookups);
                let store = Arc::new(SerialStore::new(db, branch, spaces, txn.lock_wait));
                (Arc::clone(&store) as Arc<dyn Store>, Some(store))
            }
        };
        let dictionaries = self.dictionaries().within(Arc::clone(&store), txn.seen());
        let (sees_objects_of, epoch) = (txn.sees_objects_of(), txn.epoch);
        let view = ViewParts { store, dictionaries, sees_objects_of, epoch, serial };
        let fs = self.view_on(view, read_only).map_err(error::store)?;
        if txn.purpose != Purpose::User {
            // Large files came by others than these objects.
            fs.objects.note_unclaimed();
        }
        let mut opened = self.views()?.opened.lock();
        opened.retain(|(_, accounts)| accounts.strong_count() > 0);
        // What is pending while somebody has it open is his.
        if opened.iter().all(|(open, _)| *open != epoch) {
            fs.finish_pending_of_view(pending)?;
        }
        opened.push((epoch, Arc::downgrade(&fs.accounts)));
        drop(opened);
        fs.load_quotas()?;
        Ok(fs)
    }

    /// Drops a transaction and all that was changed in it. REQUIRES: it is not open.
    pub fn abort_transaction(&self, id: &str) -> FsResult<()> {
        self.writable()?;
        self.transaction(id)?;
        self.drop_transaction(id)
    }

    /// [`VarveFs::abort_transaction`] for any.
    pub(super) fn drop_transaction(&self, id: &str) -> FsResult<()> {
        let views = self.views()?;
        let changing = views.changing.lock();
        let txn = self.any_transaction(id)?;
        let branch = views.db.open_branch(txn.branch).map_err(error::store)?;
        branch.abort().map_err(error::store)?;
        self.forget_transaction(txn.epoch);
        self.drop_sources_after_view(&changing);
        Ok(())
    }

    /// Lets go of the files of a transaction that has ended.
    pub(super) fn forget_transaction(&self, epoch: InodeId) {
        if let Some(views) = &self.views {
            views.pairs_used.lock().remove(&epoch);
        }
        if let Some(sources) = &self.sources {
            sources.end_claims(epoch);
        }
        self.end_view(epoch);
        let own = view_dir(&self.dir, epoch);
        self.objects.forget_below(&own);
        if let Err(error) = remove_tree(self.env.as_ref(), &own) {
            log::warn!("{} stays until the next mount: {error}", own.display());
        }
    }

    /// Drops what rollbacks had begun when an earlier process died.
    pub(crate) fn drop_unfinished(&self) -> FsResult<()> {
        if self.views.is_none() || self.options.read_only {
            return Ok(());
        }
        for txn in self.all_transactions()? {
            if txn.purpose == Purpose::Rollback {
                self.drop_transaction(&txn.name().name)?;
            }
        }
        Ok(())
    }

    /// Lets go of the files of transactions that ended while an earlier process died, unless they are still to be put in
    /// place.
    pub(crate) fn forget_ended_transactions(&self) -> FsResult<()> {
        let Some(views) = &self.views else { return Ok(()) };
        let dir = views_dir(&self.dir);
        let items = match self.env.list(&dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            items => items.map_err(|error| error::object("list", &dir, error))?,
        };
        if !views.make_ends_durable() {
            return Ok(());
        }
        let mut needed = self.awaited_views()?;
        needed.extend(self.all_transactions()?.iter().map(|txn| txn.epoch));
        let epochs = items.iter().filter_map(|item| item.name.to_str()?.parse().ok());
        epochs
            .map(InodeId::new)
            .filter(|epoch| !needed.contains(epoch))
            .for_each(|epoch| self.forget_transaction(epoch));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By it a store that is opened again knows its transactions.
    #[test]
    fn what_is_kept_with_a_branch_is_as_version_1_kept_it() {
        let options = TransactionOptions {
            isolation: Isolation::Serializable,
            on_conflict: OnConflict::Restart,
            lock_wait_ms: 2500,
            priority: 7,
            idle_abort_s: Some(7200),
        };
        let (epoch, begun, purpose) = (1 << 40, 1_700_000_000, Purpose::Receive);
        let written =
            serde_json::to_vec(&Info { epoch, root: 1, begun, options, purpose }).unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1/transaction.info");
        varve_testkit::golden(path, &written);
        let read: Info = serde_json::from_slice(&written).unwrap();
        assert_eq!((read.epoch, read.root, read.begun), (epoch, 1, begun));
        assert_eq!((read.options, read.purpose), (options, purpose));
        // Damage is never another transaction's: what is cut off is none at all.
        for len in 0..written.len() {
            assert!(serde_json::from_slice::<Info>(&written[..len]).is_err(), "cut at {len}");
        }
        for at in 0..written.len() {
            let mut bytes = written.clone();
            bytes[at] ^= 0x80;
            assert!(serde_json::from_slice::<Info>(&bytes).is_err(), "byte {at}");
        }
    }

    /// Before there were options, transactions were begun without.
    #[test]
    fn what_is_not_said_is_as_it_was_before_it_could_be() {
        let read: Info = serde_json::from_str(r#"{"epoch":9,"root":1,"begun":5}"#).unwrap();
        assert_eq!((read.options, read.purpose), (TransactionOptions::default(), Purpose::User));
    }
}
