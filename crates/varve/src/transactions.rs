//! Transactions on a store that this process has open.
//!
//! [`FileSystem`] has the calls for programs. The functions do the same to a file system that somebody else holds open, such as
//! a daemon.

use std::sync::{Arc, Weak};

use varve_fs::{CommitError, Dictionaries, TransactionOptions, VarveFs, ViewName};
use varve_types::InodeId;
use varve_vfs::{FsError, Vfs};

use crate::store::FileSystem;
use crate::{Error, Result, exit_status};

/// An open transaction: a file system and dictionaries of its own over a store.
///
/// Dropping it neither commits nor aborts it: it stays open in the store, with its locks, until a call does. A serializable transaction,
/// which takes locks, is aborted when the store is closed; others are open again when the store is.
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
    /// Begins a transaction. The cost does not depend on the number of files.
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

    /// Begins a transaction that shows the directory `dir`, with these `options`: its isolation, its priority, and whether it is the victim
    /// when it meets the locks of others ([`OnConflict::Restart`](varve_fs::OnConflict)).
    ///
    /// Calls of the library do not wait for locks; `lock_wait_ms` applies to mounts alone. A call that meets locks of others fails with
    /// [`FsError::Blocked`]. [`Vfs::wait_for_locks`] waits until the call can be made again. From then on a
    /// serializable transaction counts as waiting, and may become the deadlock victim, until [`Vfs::wait_is_over`] reports that the call is
    /// made again or given up. `idle_abort_s` counts only while the store is mounted.
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
    /// // Until it ends no other call changes what it has read.
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
        let name = begin(&self.inner(), dir, options)?;
        self.transaction(&name.name)
    }

    /// The open transaction with this id. All values for one id share one file system.
    pub fn transaction(&self, id: &str) -> Result<Transaction> {
        let main = self.inner();
        let mut in_use = self.transactions.lock();
        in_use.retain(|_, view| view.strong_count() > 0);
        let opened = main.transaction(id).and_then(|txn| {
            let shared = in_use.get(id).and_then(Weak::upgrade);
            let view = shared.map_or_else(|| main.open_view(&txn.name()).map(Arc::new), Ok)?;
            Ok((txn.root, view))
        });
        let (root, view) = opened.map_err(|error| not_found(id, error))?;
        in_use.insert(id.to_owned(), Arc::downgrade(&view));
        drop(in_use);
        Ok(Transaction { main, view, id: id.to_owned(), root })
    }

    /// The ids of the open transactions, oldest first.
    pub fn transactions(&self) -> Result<Vec<String>> {
        let open = self.inner().transactions()?;
        Ok(open.iter().map(|txn| txn.name().name).collect())
    }
}

impl Transaction {
    /// Its id, by which [`FileSystem::transaction`] and the command line know it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The inode number of the directory that it shows.
    pub fn root(&self) -> InodeId {
        self.root
    }

    /// Its file system.
    pub fn vfs(&self) -> Arc<dyn Vfs> {
        Arc::<VarveFs>::clone(&self.view)
    }

    /// Its dictionaries.
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
        committed.map(drop).map_err(|error| not_committed(&self.main, &self.id, error))
    }

    /// Aborts it: drops all of its changes.
    pub fn abort(self) -> Result<()> {
        abort(&self.main, &self.id)
    }
}

/// Begins a transaction of `fs` that shows the directory `root`.
pub fn begin(fs: &VarveFs, root: InodeId, options: &TransactionOptions) -> Result<ViewName> {
    Ok(fs.begin_transaction(root, options)?)
}

/// The error for people if the commit of the transaction `id` failed, or is not finished.
pub fn not_committed(fs: &VarveFs, id: &str, error: CommitError) -> Error {
    match error {
        CommitError::Conflict(paths) => Error::failed(format!(
            "not committed, as others have changed what it changed:\n  {}",
            paths.join("\n  ")
        ))
        .with_status(exit_status::CONFLICT)
        .hint(format!(
            "the transaction is still open: `varve txn abort DIR {id}`, and begin again"
        )),
        CommitError::InUse(paths) => Error::failed(format!(
            "not committed, as large files are open for writing:\n  {}",
            paths.join("\n  ")
        ))
        .with_status(exit_status::CONFLICT)
        .hint("the transaction is still open: close them and commit again"),
        CommitError::OverLimits(trees) => Error::failed(format!(
            "not committed, as more would lie in directories than their limits allow:\n  {}",
            trees.join("\n  ")
        ))
        .hint(
            "the transaction is still open: remove something in it, or raise the limit with `varve quota set`, and \
             commit again",
        ),
        CommitError::DeadlockVictim(why) => Error::failed(format!("not committed, as it gave way: {why}"))
            .with_status(exit_status::CONFLICT)
            .hint(format!("`varve txn abort DIR {id}`, and begin again")),
        CommitError::Failed(FsError::Blocked(blocked)) => {
            let holders = fs.transactions_of(&blocked).join(", ");
            Error::failed(format!(
                "not committed, as transaction {holders} has locked what it changed"
            ))
            .with_status(exit_status::CONFLICT)
            .hint("the transaction is still open: commit it again when the other has ended")
        }
        CommitError::Failed(error @ (FsError::TryAgain | FsError::Busy)) => Error::failed(format!(
            "not committed, as programs keep writing to large files that it changed or needs: {error}"
        ))
        .with_status(exit_status::CONFLICT)
        .hint("the transaction is still open: commit it again"),
        CommitError::Failed(FsError::NoSpace(text)) => Error::failed(format!("not committed: {text}"))
            .hint("the transaction is still open: make room and commit again"),
        CommitError::Unfinished(_, error) => Error::from(error),
        CommitError::Failed(error) => not_found(id, error),
    }
}

/// Aborts a transaction of `fs`.
pub fn abort(fs: &VarveFs, id: &str) -> Result<()> {
    fs.abort_transaction(id).map_err(|error| not_found(id, error))
}

/// The error for people if `error` came of the transaction `id`.
pub fn not_found(id: &str, error: FsError) -> Error {
    match error {
        FsError::NotFound | FsError::Stale => Error::failed(format!("no transaction {id} is open"))
            .hint("`varve txn list` lists the open transactions"),
        other => Error::from(other),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use varve_fs::{Committed, FormatOptions, Isolation, MountOptions};
    use varve_types::FileName;
    use varve_vfs::{Blocked, Caller, RenameMode};

    use super::*;
    use crate::store;

    /// Who tried again where that helps could not tell by the status of some refusals.
    #[test]
    fn what_a_retry_cures_has_a_status_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        store::format(dir.path(), &FormatOptions::default()).unwrap();
        let file_system = FileSystem::open(dir.path(), &MountOptions::default()).unwrap();
        let fs = file_system.inner();
        let blocked = || FsError::Blocked(Blocked { wait: 1, by: vec![2], released: 0 });
        let cured = [
            CommitError::Conflict(vec!["a".to_owned()]),
            CommitError::InUse(vec!["a".to_owned()]),
            CommitError::DeadlockVictim("so".to_owned()),
            CommitError::Failed(blocked()),
            CommitError::Failed(FsError::TryAgain),
            CommitError::Failed(FsError::Busy),
        ];
        let not = [
            CommitError::OverLimits(vec!["a".to_owned()]),
            CommitError::Failed(FsError::NoSpace("full".to_owned())),
            CommitError::Failed(FsError::Storage("broken".to_owned())),
            CommitError::Failed(FsError::NotFound),
            CommitError::Unfinished(Committed::default(), FsError::Storage("broken".to_owned())),
        ];
        let cured = cured.into_iter().map(|error| (error, exit_status::CONFLICT));
        for (error, status) in cured.chain(not.map(|error| (error, exit_status::FAILED))) {
            let told = format!("{error:?}");
            let error = not_committed(&fs, "7", error);
            assert_eq!(error.status(), status, "{told}");
            assert!(error.next_step().is_some() || status == exit_status::FAILED, "{told}");
        }
    }

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
