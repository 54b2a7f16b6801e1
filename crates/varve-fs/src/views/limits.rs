//! Limits on trees at the moment of a commit.
//!
//! A transaction keeps to the limits by what it sees, and so do all others by what they see. So two that each fit may
//! exceed a limit together, and whoever commits second learns of it: what would lie below each directory with limits is
//! summed up from the rows as the commit would leave them, its limits among them, before it is written. A tree may hold more than
//! its limit allows; then it is refused to grow.
//!
//! Costs, where there are limits: them, and what the transaction and the main view have not summed up yet, at most the
//! directories that the transaction has changed something in.

use std::collections::BTreeSet;

use bytes::Bytes;
use varve_engine::{Branch, Clash, Merged, SnapshotStore, Store};
use varve_schema::{Limits, RowKey, Usage};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::commit::CommitError;
use super::merge::{Sides, merge_rows};
use super::plan::Plan;
use super::txn::{Isolation, Transaction};
use crate::error;
use crate::fs::VarveFs;
use crate::usage::total::usages_by;

impl VarveFs {
    /// `OverLimits` if more would lie below directories than their limits allow. REQUIRES: all row locks.
    pub(super) fn check_limits(
        &self,
        txn: &Transaction,
        branch: &Branch,
        plan: &Plan,
    ) -> Result<(), CommitError> {
        if !self.accounts.has_quotas() {
            return Ok(());
        }
        let base = branch.base().map_err(error::store)?;
        let after = |key: RowKey| match txn.isolation {
            Isolation::Snapshot => self.row_after(txn, branch, &base, key),
            // It sees the newest state, and its own rows are brought up to date.
            Isolation::Serializable => branch.get(self.meta, &key.to_bytes()).map_err(error::store),
        };
        let mut marked: BTreeSet<InodeId> = self.accounts.marked_dirs().into_iter().collect();
        marked.extend(&plan.untold);
        let marked = Vec::from_iter(marked);
        let mut told = Vec::new();
        let limited = self.accounts.limited();
        let tops: Vec<InodeId> = limited.iter().map(|(top, ..)| *top).collect();
        let usages = usages_by(&after, &tops, &marked)?;
        for (top, limits, now) in limited {
            // Those that the commit brings hold for it already.
            let Some(row) = after(RowKey::limits(top))? else { continue };
            let limits = Limits::decode(&row).unwrap_or(limits);
            let then = usages.get(&top).copied().unwrap_or_default();
            let mut check = |limit: Option<u64>, of: fn(Usage) -> u64, what: &str| {
                let (now, then) = (of(now), of(then));
                if let Some(limit) = limit.filter(|limit| then > *limit && then > now) {
                    let path = self.path_of_inode(top);
                    told.push(format!("{path}: {then} {what}, its limit is {limit}"));
                }
            };
            check(limits.bytes, |usage| usage.bytes, "bytes");
            check(limits.inodes, Usage::inodes, "files and directories");
        }
        told.sort();
        if told.is_empty() { Ok(()) } else { Err(CommitError::OverLimits(told)) }
    }

    /// A row of `meta` as the commit would leave it; as it is if the commit is a conflict because of it.
    fn row_after(
        &self,
        txn: &Transaction,
        branch: &Branch,
        base: &SnapshotStore,
        key: RowKey,
    ) -> FsResult<Option<Bytes>> {
        let (keyspace, key) = (self.meta, key.to_bytes());
        let get = |store: &dyn Store| store.get(keyspace, &key).map_err(error::store);
        let (was, ours, theirs) = (get(base)?, get(branch)?, get(self.store.as_ref())?);
        if ours == was {
            return Ok(theirs);
        }
        if theirs == was {
            return Ok(ours);
        }
        let clash = Clash { keyspace, key: &key, base: was, theirs: theirs.clone(), ours };
        let theirs_all = self.store.as_ref();
        let sides = Sides { meta: keyspace, epoch: txn.epoch, base, theirs: theirs_all };
        Ok(match merge_rows(&clash, &sides) {
            Merged::Value(value) => Some(value),
            Merged::Deleted => None,
            Merged::Conflict => theirs,
        })
    }
}
