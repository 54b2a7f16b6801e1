//! Limits on trees at the moment of a commit.
//!
//! A transaction keeps to the limits by what it sees, and so do all others by what they see. So two that each fit may
//! exceed a limit together, and whoever commits second learns of it: what would lie below each directory with limits is
//! summed up from the rows as the commit would leave them, its limits among them, before it is written. A tree may hold more than
//! its limit allows; then it is refused to grow. What the transaction has put there itself, before it set the limit, is such a
//! tree: it is refused only if others have made it grow beyond that.
//!
//! Costs, where there are limits: them, and what the transaction and the main tree have not summed up yet, at most the
//! directories that the transaction has changed something in.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use varve_engine::{Branch, Clash, Merged, SnapshotStore, Store};
use varve_namespace::merge::Sides;
use varve_schema::{Limits, META, RowKey, Usage};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::CommitError;
use super::plan::Plan;
use crate::error;
use crate::fs::VarveFs;
use crate::transactions::{Isolation, Transaction};
use crate::usage::total::usages_by;

impl VarveFs {
    /// `OverLimits` if more would lie below directories than their limits allow. REQUIRES: all row locks.
    pub(super) fn check_limits(
        &self,
        txn: &Transaction,
        (branch, view): (&Branch, &VarveFs),
        plan: &Plan,
    ) -> Result<(), CommitError> {
        let (theirs, ours) = (self.accounts.limited(), view.accounts.limited());
        let is_brought = |top: &&InodeId| !theirs.contains_key(top);
        let brought: Vec<InodeId> = ours.keys().filter(is_brought).copied().collect();
        let tops: Vec<InodeId> = theirs.keys().chain(&brought).copied().collect();
        if tops.is_empty() {
            return Ok(());
        }
        let base = branch.base().map_err(error::store)?;
        let after = |key: RowKey| self.row_after(txn, (branch, &base), plan, key);
        let mut marked: BTreeSet<InodeId> = self.accounts.marked_dirs().into_iter().collect();
        marked.extend(&plan.pending);
        let marked = Vec::from_iter(marked);
        let mut told = Vec::new();
        let is = |key: RowKey| self.store.get(self.meta, &key.to_bytes()).map_err(error::store);
        let mut usages = usages_by(&is, &brought, &marked)?;
        usages.extend(theirs.iter().map(|(top, (_, used))| (*top, *used)));
        let usages_after = usages_by(&after, &tops, &marked)?;
        let used = |of: &HashMap<InodeId, Usage>, top| of.get(&top).copied().unwrap_or_default();
        for top in tops {
            // Limits that the commit brings hold for it already.
            let key = RowKey::limits(top);
            let Some(row) = after(key)? else { continue };
            let limits =
                Limits::decode(&row).map_err(|error| error::unreadable(META, key, error))?;
            let (now, then) = (used(&usages, top), used(&usages_after, top));
            // Under the same limits the transaction has come to what it sees.
            let seen = ours.get(&top).filter(|(own, _)| *own == limits).map(|(_, used)| *used);
            let mut check = |limit: Option<u64>, of: fn(Usage) -> u64, what: &str| {
                let (now, seen, then) = (of(now), seen.map_or(0, of), of(then));
                if let Some(limit) = limit.filter(|limit| then > now.max(seen).max(*limit)) {
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

    /// A row of `meta` as the commit would leave it; as it is if the commit is a conflict because of it. REQUIRES: all row locks.
    pub(super) fn row_after(
        &self,
        txn: &Transaction,
        (branch, base): (&Branch, &SnapshotStore),
        plan: &Plan,
        key: RowKey,
    ) -> FsResult<Option<Bytes>> {
        let bytes = key.to_bytes();
        let get = |store: &dyn Store| store.get(self.meta, &bytes).map_err(error::store);
        if txn.isolation == Isolation::Serializable {
            return get(branch);
        }
        let theirs = get(self.store.as_ref())?;
        match branch.has_written(self.meta, &bytes).map_err(error::store)? {
            true => self.comes_to(txn, (branch, base), plan, key, [theirs, get(branch)?]),
            false => Ok(theirs),
        }
    }

    /// The same of a row that the transaction has changed: as the main tree has it, and as the transaction does.
    pub(super) fn comes_to(
        &self,
        txn: &Transaction,
        (branch, base): (&Branch, &SnapshotStore),
        plan: &Plan,
        key: RowKey,
        [theirs, ours]: [Option<Bytes>; 2],
    ) -> FsResult<Option<Bytes>> {
        let (keyspace, key) = (self.meta, key.to_bytes());
        // A serializable one sees the newest state, and its own rows are brought up to date.
        let is_newest = txn.isolation == Isolation::Serializable;
        if is_newest || !branch.others_have_written(keyspace, &key).map_err(error::store)? {
            return Ok(ours);
        }
        let was = base.get(keyspace, &key).map_err(error::store)?;
        let clash = Clash { keyspace, key: &key, base: was, theirs: theirs.clone(), ours };
        let [then, now] = [base, self.store.as_ref()].map(|store| self.inodes_of(store));
        let sides = Sides { epoch: txn.epoch.id(), base: &then, theirs: &now };
        Ok(match self.decided(&clash, (txn.purpose, &sides), plan) {
            Merged::Value(value) => Some(value),
            Merged::Deleted => None,
            Merged::Conflict => theirs,
        })
    }
}
