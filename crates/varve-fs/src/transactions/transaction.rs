//! What is known of a transaction: its branch, its epoch, the directory that it shows, and its options. All of it is stored with the
//! branch, so that it outlives the process.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use varve_engine::{Db, Store, StoreResult};
use varve_types::{BranchId, InodeId};

use crate::dictionaries::Seen;
use crate::epoch::Epoch;
use crate::objects::Objects;
use crate::views::ViewName;

/// Which changes of others a transaction does not see.
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
    /// It loses its locks, and has to begin again.
    Restart,
    /// The one call fails.
    Fail,
}

/// How a transaction is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionOptions {
    /// Which changes of others it does not see.
    pub isolation: Isolation,
    /// What it does about locks of others.
    pub on_conflict: OnConflict,
    /// The longest that one of its calls waits for locks, in milliseconds.
    pub lock_wait_ms: u64,
    /// Of transactions that wait for each other the one with the smallest number loses its locks; of equal ones the youngest.
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
pub(crate) enum Purpose {
    /// Programs work in it.
    #[default]
    User,
    /// It takes the main tree back to a snapshot ([`crate::rollback`]). Users do not see it.
    Rollback,
    /// It takes what is received ([`crate::stream`]). Users do not see it.
    Receive,
}

/// What is stored with a branch.
#[derive(Serialize, Deserialize)]
pub(super) struct Info {
    pub(super) epoch: u64,
    pub(super) root: u64,
    pub(super) begun: i64,
    #[serde(default)]
    pub(super) options: TransactionOptions,
    #[serde(default)]
    pub(super) purpose: Purpose,
}

impl Info {
    /// The transaction whose branch is `branch`.
    pub(super) fn transaction(&self, branch: BranchId) -> Transaction {
        let Info { epoch, root, begun, options, purpose } = *self;
        let (epoch, root) = (Epoch::new(epoch), InodeId::new(root));
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
    pub(crate) epoch: Epoch,
    /// The directory that it shows.
    pub root: InodeId,
    /// When it began, in seconds since 1970.
    pub begun: i64,
    /// Which changes of others it does not see.
    pub isolation: Isolation,
    lock_wait: Duration,
    /// Seconds without use after which a mount aborts it; `None`: it does not.
    pub idle_abort_s: Option<u64>,
    pub(crate) purpose: Purpose,
}

impl Transaction {
    /// The name of the transaction whose branch has this `info`.
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

    /// The epoch that the transaction sees: an inode that was born later is one that it has made itself. A serializable transaction
    /// sees the newest state, so that nothing tells which inodes are its own.
    pub(crate) fn base_epoch(&self) -> Epoch {
        match self.isolation {
            Isolation::Snapshot => self.epoch,
            Isolation::Serializable => Epoch::LAST,
        }
    }

    /// The same transaction, but the main tree knows only inodes that were born before `epoch`.
    pub(crate) fn with_epoch(self, epoch: Epoch) -> Transaction {
        Transaction { epoch, ..self }
    }

    /// The epoch as of which it sees large files; `None`: it sees them as they are.
    pub(crate) fn sees_objects_of(&self) -> Option<Epoch> {
        (self.isolation == Isolation::Snapshot).then_some(self.epoch)
    }

    /// The dictionaries that it has.
    pub(crate) fn seen(&self) -> Seen {
        match self.isolation {
            Isolation::Snapshot => Seen::Before(self.epoch),
            Isolation::Serializable => Seen::Locked,
        }
    }
}

/// The open transactions of a store, oldest first, those included that only this program uses.
pub(super) fn open_in(db: &Db) -> Vec<Transaction> {
    let branches = db.branches().into_iter();
    let known = branches.filter_map(|about| {
        let info: Info = serde_json::from_slice(&about.info).ok()?;
        Some(info.transaction(about.id))
    });
    known.collect()
}

/// The open transaction of an epoch.
pub(crate) fn transaction_of_epoch(db: &Db, epoch: Epoch) -> Option<Transaction> {
    open_in(db).into_iter().find(|txn| txn.epoch == epoch)
}

/// The epochs of the open transactions of a store.
pub(crate) fn transactions_of(db: &Db) -> Vec<Epoch> {
    open_in(db).iter().map(|txn| txn.epoch).collect()
}

/// Makes syncs of `db` make durable what an earlier process has left of the large files of open transactions, as rows in its log may
/// claim it. Nobody else does so until a transaction is opened. `of_view` gives the objects of the view of an epoch, which sees the store's as
/// of another. REQUIRES: the store has no hook of its own yet, so that it was not synced since such rows were found.
pub(crate) fn cover_left(
    db: &Db,
    of_view: &dyn Fn(Epoch, Option<Epoch>) -> Arc<Objects>,
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
