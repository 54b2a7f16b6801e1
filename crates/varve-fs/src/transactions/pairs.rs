//! Pairs of dictionaries that transactions change ([`crate::dictionaries`]).
//!
//! They are rows of the transaction's branch, so its commit brings them together with its files, or neither. Of two
//! transactions that changed one pair the first to commit wins, whatever both have made of it: nobody's reading of a
//! pair is overwritten unseen.
//!
//! A dictionary may be dropped in the main tree meanwhile. Then the transaction has none of that name any more, and
//! if it changed pairs of it its commit is a conflict: they would be pairs of no dictionary, or of a later one that has
//! the same number. A serializable one keeps the dictionaries that it has looked for from being dropped.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use varve_engine::{Branch, KeyRange};
use varve_types::KeyspaceId;
use varve_vfs::FsResult;

use super::Transaction;
use crate::commit::CommitError;
use crate::dictionaries::{Dictionaries, Held};
use crate::error;
use crate::fs::VarveFs;

impl VarveFs {
    /// Whether a key space has rows of files.
    pub(crate) fn is_of_files(&self, keyspace: KeyspaceId) -> bool {
        [self.meta, self.data, self.lookups].contains(&keyspace)
    }

    /// The dictionaries as the open transaction `id` has them. It need not be mounted for that.
    pub fn transaction_dictionaries(&self, id: &str) -> FsResult<Arc<Dictionaries>> {
        let txn = self.transaction(id)?;
        let views = self.views()?;
        let branch = views.db().open_branch(txn.branch).map_err(error::store)?;
        views.open.note_pairs_used(txn.epoch, self.monotonic_ms());
        Ok(Arc::new(self.dictionaries().within(Arc::new(branch), txn.seen())))
    }

    /// For how long nobody has asked for pairs of a transaction; `None`: nobody has since the store was opened.
    pub fn pairs_unused_for(&self, txn: &Transaction) -> Option<Duration> {
        let used = self.views.as_ref()?.open.pairs_used_ms(txn.epoch)?;
        Some(Duration::from_millis(self.monotonic_ms().saturating_sub(used)))
    }

    /// How many pairs of dictionaries a transaction has changed.
    pub fn transaction_pairs(&self, id: &str) -> FsResult<u64> {
        let txn = self.transaction(id)?;
        let branch = self.views()?.db().open_branch(txn.branch).map_err(error::store)?;
        let mut count = 0;
        for pairs in self.changed_pairs(&branch)? {
            count +=
                branch.count_changes(pairs, &KeyRange::all(), u64::MAX).map_err(error::store)?;
        }
        Ok(count)
    }

    /// The key spaces of dictionaries in which a transaction has changed pairs.
    fn changed_pairs(&self, branch: &Branch) -> FsResult<BTreeSet<KeyspaceId>> {
        let changed = branch.changed_spaces().map_err(error::store)?;
        Ok(changed.into_iter().filter(|keyspace| !self.is_of_files(*keyspace)).collect())
    }

    /// A conflict if pairs were changed of dictionaries that are gone. REQUIRES: `held` since before the plan was made.
    pub(crate) fn check_dictionaries(
        &self,
        held: &Held<'_>,
        txn: &Transaction,
        branch: &Branch,
    ) -> Result<(), CommitError> {
        let gone = held.gone(&self.changed_pairs(branch)?, txn.seen());
        if gone.is_empty() {
            return Ok(());
        }
        let before = branch.base().map_err(error::store)?;
        let mut told = Vec::new();
        for keyspace in gone {
            let name = self.dictionaries().name_of(keyspace, &before)?;
            told.push(format!("dictionary {name}, which was dropped"));
        }
        Err(CommitError::Conflict(told))
    }

    /// Pairs that are in conflict, for people.
    pub(crate) fn told_pairs(
        &self,
        branch: &Branch,
        pairs: &[(KeyspaceId, Bytes)],
    ) -> FsResult<Vec<String>> {
        let before = branch.base().map_err(error::store)?;
        let mut told = Vec::new();
        for keyspace in pairs.iter().map(|(keyspace, _)| *keyspace).collect::<BTreeSet<_>>() {
            let name = self.dictionaries().name_of(keyspace, &before)?;
            let keys = pairs.iter().filter(|(of, _)| *of == keyspace);
            told.extend(
                keys.map(|(_, key)| format!("key {} of dictionary {name}", key.escape_ascii())),
            );
        }
        Ok(told)
    }
}
