//! Transactions and snapshots of a store that this process has open itself, without a mount.
//!
//! ```
//! use varve::FileSystem;
//! use varve_types::{FileName, InodeId};
//! use varve_vfs::{Caller, Vfs};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("store");
//! varve::store::format(&path, &Default::default())?;
//! let store = FileSystem::open(&path, &Default::default())?;
//! store.dictionaries().create(b"tags")?;
//!
//! // A directory and its tag, together or not at all.
//! let txn = store.begin()?;
//! let name = FileName::new(b"photos")?;
//! txn.vfs().mkdir(Caller::ROOT, InodeId::ROOT, name, 0o755)?;
//! txn.dictionaries().change(b"tags", vec![(b"photos"[..].into(), Some(b"holiday"[..].into()))])?;
//! assert!(store.vfs().lookup(InodeId::ROOT, name).is_err());
//! txn.commit()?;
//! assert!(store.vfs().lookup(InodeId::ROOT, name).is_ok());
//! assert_eq!(store.dictionaries().get(b"tags", b"photos")?.as_deref(), Some(&b"holiday"[..]));
//!
//! // What was there stays there, under a name.
//! store.create_snapshot("before")?;
//! store.vfs().rmdir(InodeId::ROOT, name)?;
//! assert!(store.snapshot("before")?.lookup(InodeId::ROOT, name).is_ok());
//! store.delete_snapshot("before")?;
//! store.close()?;
//! # Ok(())
//! # }
//! ```

use std::sync::{Arc, Weak};

use varve_fs::{Dictionaries, TransactionOptions, VarveFs, ViewKind, ViewName};
use varve_types::InodeId;
use varve_vfs::Vfs;

use crate::store::FileSystem;
use crate::{Result, views};

/// An open transaction: a file system and dictionaries of its own over a store. Dropping it neither commits nor
/// aborts: it stays open in the store, with what it has locked, until one of the two happens. One that locks, which is a
/// serializable one, ends with the store being closed, and nothing of it stays; others are there when it is opened again.
pub struct Transaction {
    main: Arc<VarveFs>,
    view: Arc<VarveFs>,
    id: String,
    root: InodeId,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("id", &self.id).finish_non_exhaustive()
    }
}

impl FileSystem {
    /// Begins a transaction. Costs the same however many files there are.
    ///
    /// ```
    /// # fn main() -> varve::Result<()> {
    /// # let dir = tempfile::tempdir().map_err(|error| varve::Error::failed(error.to_string()))?;
    /// # let path = dir.path().join("store");
    /// # varve::store::format(&path, &Default::default())?;
    /// let store = varve::FileSystem::open(&path, &Default::default())?;
    /// let txn = store.begin()?;
    /// assert_eq!(store.transactions()?, [txn.id()]);
    /// txn.abort()?;
    /// assert!(store.transaction("17").is_err());
    /// # store.close()
    /// # }
    /// ```
    pub fn begin(&self) -> Result<Transaction> {
        self.begin_at(InodeId::ROOT, &TransactionOptions::default())
    }

    /// The same for the directory `dir`, as `options` say: with which isolation and priority, and whether it gives way where others
    /// have locked what it asks for ([`OnConflict::Restart`](varve_fs::OnConflict)).
    ///
    /// Nothing here waits for locks, and `lock_wait_ms` is for mounts alone: a call that meets those of others fails with
    /// [`FsError::Blocked`](varve_vfs::FsError::Blocked), and can be made again when they have ended, for which
    /// [`Vfs::wait_for_locks`] waits. A serializable transaction counts as waiting from then on, and may be the one that gives
    /// way, until [`Vfs::wait_is_over`] says that the call is made again or given up. Nor is a transaction aborted that nobody
    /// uses: `idle_abort_s` counts while the store is mounted.
    ///
    /// ```
    /// use varve::{Isolation, TransactionOptions};
    /// use varve_types::{FileName, InodeId};
    /// use varve_vfs::{Caller, FsError, Vfs};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("store");
    /// # varve::store::format(&path, &Default::default())?;
    /// let store = varve::FileSystem::open(&path, &Default::default())?;
    /// let (photos, old) = (FileName::new(b"photos")?, FileName::new(b"old")?);
    /// let made = store.vfs().mkdir(Caller::ROOT, InodeId::ROOT, photos, 0o755)?.attr.ino;
    /// let isolation = Isolation::Serializable;
    /// let txn = store.begin_at(made, &TransactionOptions { isolation, ..Default::default() })?;
    /// assert_eq!(txn.root(), made);
    ///
    /// // What it has looked at nobody changes until it ends.
    /// assert!(txn.vfs().lookup(txn.root(), old).is_err());
    /// let refused = store.vfs().mkdir(Caller::ROOT, made, old, 0o755);
    /// assert!(matches!(refused, Err(FsError::Blocked(_))));
    /// txn.commit()?;
    /// store.vfs().mkdir(Caller::ROOT, made, old, 0o755)?;
    /// # store.close()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn begin_at(&self, dir: InodeId, options: &TransactionOptions) -> Result<Transaction> {
        let name = views::begin(&self.inner(), dir.get(), options)?;
        self.transaction(&name.name)
    }

    /// The open transaction with this id. All that are asked for share one file system.
    pub fn transaction(&self, id: &str) -> Result<Transaction> {
        let main = self.inner();
        let mut in_use = self.transactions.lock();
        in_use.retain(|_, view| view.strong_count() > 0);
        let opened = main.transaction(id).and_then(|txn| {
            let shared = in_use.get(id).and_then(Weak::upgrade);
            let view = shared.map_or_else(|| main.open_view(&txn.name()).map(Arc::new), Ok)?;
            Ok((txn.root, view))
        });
        let (root, view) = opened.map_err(|error| views::no_transaction(id, error))?;
        in_use.insert(id.to_owned(), Arc::downgrade(&view));
        drop(in_use);
        Ok(Transaction { main, view, id: id.to_owned(), root })
    }

    /// The ids of the open transactions, oldest first.
    pub fn transactions(&self) -> Result<Vec<String>> {
        let open = self.inner().transactions()?;
        Ok(open.iter().map(|txn| txn.name().name).collect())
    }

    /// Gives the present state a name, under which it stays until it is deleted. Costs the same however many files
    /// there are.
    pub fn create_snapshot(&self, name: &str) -> Result<()> {
        views::create_snapshot(&self.inner(), name).map(drop)
    }

    /// The state with a name, to read.
    pub fn snapshot(&self, name: &str) -> Result<Arc<dyn Vfs>> {
        let view = ViewName { kind: ViewKind::Snapshot, name: name.to_owned() };
        let opened = self.inner().open_view(&view);
        Ok(Arc::new(opened.map_err(|error| views::no_snapshot(name, error))?))
    }

    /// The names of the snapshots.
    pub fn snapshots(&self) -> Result<Vec<String>> {
        let names = self.inner().view_names(ViewKind::Snapshot)?;
        Ok(names.into_iter().map(|view| view.name).collect())
    }

    /// Deletes a snapshot. What only it held is freed. REQUIRES: nobody uses what [`FileSystem::snapshot`] gave.
    pub fn delete_snapshot(&self, name: &str) -> Result<()> {
        views::delete_snapshot(&self.inner(), name)
    }
}

impl Transaction {
    /// Its id, by which [`FileSystem::transaction`] and the command line know it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The directory that it shows.
    pub fn root(&self) -> InodeId {
        self.root
    }

    /// Its file system.
    pub fn vfs(&self) -> Arc<dyn Vfs> {
        Arc::<VarveFs>::clone(&self.view)
    }

    /// The dictionaries as it has them.
    pub fn dictionaries(&self) -> &Arc<Dictionaries> {
        self.view.dictionaries()
    }

    /// Makes all that was changed in it part of the store at once, durably. After it calls of the transaction fail. Waits
    /// neither for locks nor for files to be closed.
    ///
    /// If that does not go, because others have changed or locked the same, large files are open for writing, or limits or the
    /// disk are full, nothing has happened, the error says why, and the transaction goes on; if it gave way to others it can
    /// only be aborted. An error may also be of what belongs to a commit that has happened, its sync or the large files that take
    /// their places: then the transaction is no longer among [`FileSystem::transactions`], and what is missing is done when the
    /// store is opened again. After a failed sync it takes no changes before that, and a power cut may take the commit.
    pub fn commit(&self) -> Result<()> {
        let committed = self.main.commit_transaction(&self.id, &self.view);
        committed.map(drop).map_err(|error| views::not_committed(&self.main, &self.id, error))
    }

    /// Drops it with all that was changed in it.
    pub fn abort(self) -> Result<()> {
        views::abort(&self.main, &self.id)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use varve_fs::{FormatOptions, Isolation, MountOptions};
    use varve_types::FileName;
    use varve_vfs::{Caller, RenameMode};

    use super::*;
    use crate::store;

    /// A commit was tried again and again while another transaction had locked what it changed, although the same thread would
    /// have had to end that.
    #[test]
    fn a_commit_waits_for_no_locks() {
        let dir = tempfile::tempdir().unwrap();
        store::format(dir.path(), &FormatOptions::default()).unwrap();
        let file_system = FileSystem::open(dir.path(), &MountOptions::default()).unwrap();
        let isolation = Isolation::Serializable;
        let options = TransactionOptions { isolation, ..TransactionOptions::default() };
        let locking = file_system.begin_at(InodeId::ROOT, &options).unwrap();
        let name = FileName::new(b"name").unwrap();
        assert!(locking.vfs().lookup(InodeId::ROOT, name).is_err());
        let txn = file_system.begin().unwrap();
        txn.vfs().mkdir(Caller::ROOT, InodeId::ROOT, name, 0o755).unwrap();
        let begin = Instant::now();
        let refused = txn.commit().unwrap_err();
        assert!(begin.elapsed() < file_system.vfs().lock_wait_max(), "it waited");
        assert!(refused.message().contains(locking.id()), "{refused}");
        locking.abort().unwrap();
        txn.commit().unwrap();
        assert!(file_system.vfs().lookup(InodeId::ROOT, name).is_ok());
        drop(txn);
        file_system.close().unwrap();
    }

    /// Each had a file system of its own, which knew nothing of what the other moved.
    #[test]
    fn who_asks_for_a_transaction_again_gets_the_same() {
        let dir = tempfile::tempdir().unwrap();
        store::format(dir.path(), &FormatOptions::default()).unwrap();
        let file_system = FileSystem::open(dir.path(), &MountOptions::default()).unwrap();
        let one = file_system.begin().unwrap();
        let two = file_system.transaction(one.id()).unwrap();
        let (root, [old, new]) =
            (InodeId::ROOT, [b"old", b"new"].map(|name| FileName::new(name).unwrap()));
        one.vfs().mkdir(Caller::ROOT, root, old, 0o755).unwrap();
        let seen = two.vfs().lookup(root, old).unwrap().attr.ino;
        one.vfs().rename(root, old, root, new, RenameMode::Replace).unwrap();
        assert_eq!(two.vfs().getattr(seen).unwrap().ino, seen);
        drop(one);
        two.commit().unwrap();
        assert!(file_system.vfs().lookup(root, new).is_ok());
        drop(two);
        file_system.close().unwrap();
    }
}
