//! Transactions: views that can be written to, and become part of the main tree as a whole or not at all.
//!
//! In: a directory to show and options; later the end. Out: a branch of the store, its file system, the list of open transactions, their
//! locks ([`serial`]) and pairs of dictionaries ([`pairs`]). Never: merges; the commit does ([`crate::commit`]).
//!
//! 1. [`VarveFs::begin_transaction`] begins a branch of the store. What it stands for, its epoch and the directory that
//!    it shows, is stored with the branch ([`transaction`]): over restarts, until it is committed or aborted.
//! 2. It is opened as any view ([`VarveFs::open_view`]), and written to.
//! 3. [`VarveFs::commit_transaction`] or [`VarveFs::abort_transaction`] ends it.
//!
//! Source: KVFS, thesis section 3.3.

mod open;
mod pairs;
mod serial;
mod transaction;

use std::sync::Arc;

use bytes::Bytes;
use varve_engine::{BranchOptions, KeyRange, LockOptions, Store};
use varve_namespace::directory::DEPTH_MAX;
use varve_schema::acl::ACL_ACCESS;
use varve_schema::key::MetaRow;
use varve_schema::{Content, Pending, RowKey};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use crate::attrs::ALL_EXECUTE;
use crate::epoch::Epoch;
use crate::error;
use crate::files::remove_tree;
use crate::fs::VarveFs;
use crate::superblock::{view_dir, views_dir};
use crate::views::{ViewName, ViewParts};
pub(crate) use open::OpenTransactions;
pub(crate) use serial::SerialStore;
pub use serial::TransactionLocks;
use transaction::{Info, open_in};
pub use transaction::{Isolation, OnConflict, Transaction, TransactionOptions};
pub(crate) use transaction::{Purpose, cover_left, transaction_of_epoch, transactions_of};

impl VarveFs {
    /// Begins a transaction that shows the directory `root`. Costs the same however many files there are.
    pub fn begin_transaction(
        &self,
        root: InodeId,
        options: &TransactionOptions,
    ) -> FsResult<ViewName> {
        self.begin_transaction_for(root, options, Purpose::User).map(|txn| txn.name())
    }

    pub(crate) fn begin_transaction_for(
        &self,
        root: InodeId,
        options: &TransactionOptions,
        purpose: Purpose,
    ) -> FsResult<Transaction> {
        self.writable()?;
        let views = self.views()?;
        if root.is_synthetic() {
            return Err(FsError::NotSupported("a transaction that shows views"));
        }
        self.dir_row(root)?;
        match options.isolation {
            Isolation::Snapshot => self.settle_before_view()?,
            Isolation::Serializable => self.settle_all_waiting(),
        }
        let _changing = views.lock_changes();
        // None is half made when it begins.
        let _held = self.dictionaries().stand_still()?;
        let begun = self.now().secs();
        let pin = |epoch: Epoch| {
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
            let branch = views.db().branch(&branch_options)?;
            let txn = kept.transaction(branch.id());
            Ok((branch, txn))
        };
        if options.isolation == Isolation::Serializable {
            // It sees what is, so there is nothing to keep.
            return Ok(pin(self.ids.begin_epoch()?).map_err(error::store)?.1);
        }
        let (_, txn) = self.begin_view(pin, |(branch, _)| branch.abort())?;
        Ok(txn)
    }

    /// The open transactions, oldest first.
    pub fn transactions(&self) -> FsResult<Vec<Transaction>> {
        let all = self.all_transactions()?.into_iter();
        Ok(all.filter(|txn| txn.purpose == Purpose::User).collect())
    }

    /// The open transactions, those included that only this program uses.
    pub(crate) fn all_transactions(&self) -> FsResult<Vec<Transaction>> {
        Ok(open_in(self.views()?.db()))
    }

    /// An open transaction that somebody began.
    pub fn transaction(&self, id: &str) -> FsResult<Transaction> {
        Some(self.any_transaction(id)?)
            .filter(|txn| txn.purpose == Purpose::User)
            .ok_or(FsError::NotFound)
    }

    /// Whether everybody may get to the directory `dir`, as far as the directories above it are concerned. Nobody may get to a
    /// directory that is removed.
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

    /// An open transaction, which only this program may use.
    pub(crate) fn any_transaction(&self, id: &str) -> FsResult<Transaction> {
        let open = self.all_transactions()?;
        open.into_iter().find(|txn| txn.name().name == id).ok_or(FsError::NotFound)
    }

    /// The file system of an open transaction.
    pub(crate) fn open_transaction(&self, txn: &Transaction) -> FsResult<VarveFs> {
        let branch = self.views()?.db().open_branch(txn.branch).map_err(error::store)?;
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
        let (db, read_only) = (Arc::clone(self.views()?.db()), self.options.read_only);
        let (store, serial): (Arc<dyn Store>, _) = match txn.isolation {
            Isolation::Snapshot => (Arc::new(branch), None),
            Isolation::Serializable => {
                let spaces = (self.meta, self.lookups);
                let store = Arc::new(SerialStore::new(db, branch, spaces, txn.lock_wait_max()));
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
        // What is pending while somebody has it open belongs to that opening.
        let finish = || fs.finish_pending_of_view(pending);
        self.views()?.open.open(epoch, &fs.accounts, finish)?;
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
    pub(crate) fn drop_transaction(&self, id: &str) -> FsResult<()> {
        let views = self.views()?;
        let changing = views.lock_changes();
        let txn = self.any_transaction(id)?;
        let branch = views.db().open_branch(txn.branch).map_err(error::store)?;
        branch.abort().map_err(error::store)?;
        self.forget_transaction(txn.epoch);
        self.drop_sources_after_view(&changing);
        Ok(())
    }

    /// Removes the files of a transaction that has ended.
    pub(crate) fn forget_transaction(&self, epoch: Epoch) {
        if let Some(views) = &self.views {
            views.open.forget(epoch);
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

    /// Removes the files of transactions that ended when an earlier process died, unless they are still to be put in
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
            .map(Epoch::new)
            .filter(|epoch| !needed.contains(epoch))
            .for_each(|epoch| self.forget_transaction(epoch));
        Ok(())
    }
}
