//! Transactions: views that can be written to, and become part of the main view as a whole or not at all.
//!
//! 1. [`VarveFs::begin_transaction`] begins a branch of the store. What it stands for, its epoch and the directory that
//!    it shows, is kept with the branch: over restarts, until it is committed or aborted.
//! 2. It is opened as any view ([`VarveFs::open_view`]), and written to.
//! 3. [`VarveFs::commit_transaction`] ([`super::commit`]) or [`VarveFs::abort_transaction`] ends it.
//!
//! Source: KVFS, thesis section 3.3.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use varve_engine::{BranchOptions, Store};
use varve_schema::key::MetaRow;
use varve_schema::{Pending, RowKey};
use varve_types::{BranchId, InodeId};
use varve_vfs::{FsError, FsResult};

use super::{ViewKind, ViewName};
use crate::error;
use crate::fs::VarveFs;
use crate::kept::remove_tree;
use crate::superblock::views_dir;

/// What is kept with a branch.
#[derive(Serialize, Deserialize)]
struct Info {
    epoch: u64,
    root: u64,
    begun: i64,
}

/// An open transaction.
#[derive(Clone, Copy, Debug)]
pub struct Transaction {
    pub(super) branch: BranchId,
    pub(super) epoch: InodeId,
    /// The directory that it shows.
    pub root: InodeId,
    /// When it began, in seconds since 1970.
    pub begun: i64,
}

impl Transaction {
    /// The name of the transaction of which `info` was kept with its branch.
    pub(crate) fn name_in(info: &str) -> Option<ViewName> {
        let Info { epoch, .. } = serde_json::from_str(info).ok()?;
        Some(ViewName { kind: ViewKind::Transaction, name: epoch.to_string() })
    }

    /// Its name among the views.
    pub fn name(&self) -> ViewName {
        ViewName { kind: ViewKind::Transaction, name: self.epoch.get().to_string() }
    }
}

impl VarveFs {
    /// Begins a transaction that shows the directory `root`. Costs the same however many files there are.
    pub fn begin_transaction(&self, root: InodeId) -> FsResult<ViewName> {
        self.writable()?;
        let views = self.views()?;
        self.dir_row(root)?;
        let _changing = views.changing.lock();
        // None is half made when it begins.
        let _held = self.dictionaries().stand_still()?;
        let begun = self.now().secs();
        let pin = |epoch: InodeId| {
            let info = Info { epoch: epoch.get(), root: root.get(), begun };
            let info = serde_json::to_vec(&info).unwrap_or_default().into();
            let options =
                BranchOptions { private: vec![self.lookups], info, ..BranchOptions::default() };
            let branch = views.db.branch(&options)?;
            let name = Transaction { branch: branch.id(), epoch, root, begun }.name();
            Ok((branch, name))
        };
        let (_, name) = self.begin_view(pin, |(branch, _)| branch.abort())?;
        Ok(name)
    }

    /// The open transactions, oldest first.
    pub fn transactions(&self) -> FsResult<Vec<Transaction>> {
        let branches = self.views()?.db.branches();
        Ok(branches
            .into_iter()
            .filter_map(|about| {
                let Info { epoch, root, begun } = serde_json::from_slice(&about.info).ok()?;
                let (epoch, root) = (InodeId::new(epoch), InodeId::new(root));
                Some(Transaction { branch: about.id, epoch, root, begun })
            })
            .collect())
    }

    /// An open transaction.
    pub fn transaction(&self, id: &str) -> FsResult<Transaction> {
        let open = self.transactions()?;
        open.into_iter().find(|txn| txn.name().name == id).ok_or(FsError::NotFound)
    }

    /// The file system of an open transaction.
    pub(super) fn open_transaction(&self, txn: &Transaction) -> FsResult<VarveFs> {
        let branch = self.views()?.db.open_branch(txn.branch).map_err(error::store)?;
        let mut written = Vec::new();
        let walked = branch.changes(&mut |keyspace, key, value| {
            let key = RowKey::from_bytes(key).filter(|_| keyspace == self.meta);
            if let Some(MetaRow::Pending(ino)) = key.map(RowKey::meta_kind)
                && let Some(Ok(Pending::ObjectDirty { entry })) =
                    value.as_ref().map(Pending::decode)
            {
                written.push((ino, entry));
            }
            true
        });
        walked.map_err(error::store)?;
        let (branch, read_only): (Arc<dyn Store>, _) = (Arc::new(branch), self.options.read_only);
        let dictionaries = self.dictionaries().within(Arc::clone(&branch), txn.epoch);
        let fs = self.view_on(branch, dictionaries, txn.epoch, read_only).map_err(error::store)?;
        // Large files that were being written to when an earlier process died.
        for (ino, entry) in written {
            fs.settle_pending(ino, entry)?;
        }
        fs.load_quotas()?;
        Ok(fs)
    }

    /// Drops a transaction and all that was changed in it. REQUIRES: it is not open.
    pub fn abort_transaction(&self, id: &str) -> FsResult<()> {
        let views = self.views()?;
        let _changing = views.changing.lock();
        let txn = self.transaction(id)?;
        let branch = views.db.open_branch(txn.branch).map_err(error::store)?;
        branch.abort().map_err(error::store)?;
        self.forget_transaction(txn.epoch);
        Ok(())
    }

    /// Lets go of the files of a transaction that has ended.
    pub(super) fn forget_transaction(&self, epoch: InodeId) {
        self.end_view(epoch);
        let own = views_dir(&self.dir).join(epoch.get().to_string());
        if let Err(error) = remove_tree(self.env.as_ref(), &own) {
            log::warn!("{} stays until the next mount: {error}", own.display());
        }
    }

    /// Lets go of the files of transactions that ended while an earlier process died.
    pub(crate) fn forget_ended_transactions(&self) -> FsResult<()> {
        let Some(views) = &self.views else { return Ok(()) };
        let dir = views_dir(&self.dir);
        let items = match self.env.list(&dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            items => items.map_err(|error| error::object("list", &dir, error))?,
        };
        // A commit may be in the log alone, which knows the branch no more.
        views.db.sync().map_err(error::store)?;
        let open = self.transactions()?;
        for item in items {
            let epoch = item.name.to_str().and_then(|name| name.parse().ok()).map(InodeId::new);
            if let Some(epoch) = epoch.filter(|epoch| open.iter().all(|txn| txn.epoch != *epoch)) {
                self.forget_transaction(epoch);
            }
        }
        Ok(())
    }
}
