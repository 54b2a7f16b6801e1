//! Limits on what lies below directories, kept at the moment of each operation.
//!
//! 1. Each directory with a limits row is the top of a [`Domain`], with counters of what lies below it, found when
//!    the store is opened ([`VarveFs::load_quotas`](crate::VarveFs::load_quotas)).
//! 2. A commit adds up what its charges mean for each domain above the charged directories ([`Accounts::reserve`]).
//!    What is added to a domain enters its counters before the batch is written, so that writers at the same
//!    time cannot together exceed a limit; if one does not fit, nothing is written. What goes leaves the counters
//!    after the batch is written.
//! 3. Which domains lie above a directory is found by following its parents, and kept ([`CHAINS_MAX`]).
//!
//! Whatever changes that takes all row locks at once: setting and clearing limits, and the move of a directory
//! between domains, which brings all of its usage along, pending usage of directories below included. Every commit
//! that charges holds a row lock, so it sees the counters before or after such a change, never between. Without
//! limits anywhere a commit reads one number to learn so.
//!
//! Source: the project quotas of XFS, with the directory tree in the place of the project id.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use varve_namespace::{Changes, Standing};
use varve_schema::{Content, Limits, Usage, UsageChange};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, StatFs};

use super::Accounts;
use crate::rows::read_inode_row;

/// Directories of which is kept which domains they lie in.
const CHAINS_MAX: usize = 4096;

/// The tree below a directory with limits.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) top: InodeId,
    pub(super) limits: Limits,
    used: Mutex<Usage>,
}

/// The domains that a directory lies in, the innermost first.
type Chain = SmallVec<[Arc<Domain>; 2]>;

/// All limits.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    /// Domains; changes only while all row locks are held.
    count: AtomicUsize,
    domains: RwLock<HashMap<InodeId, Arc<Domain>>>,
    chains: Mutex<HashMap<InodeId, Chain>>,
}

/// What a commit has added to counters and is to take from them; taken back when dropped.
#[derive(Default)]
pub(super) struct Reservation {
    domains: SmallVec<[(Arc<Domain>, UsageChange); 2]>,
    added: usize,
}

impl Domain {
    /// Adds `change`, unless something grows beyond its limit.
    fn add(&self, change: UsageChange) -> bool {
        let mut used = self.used.lock();
        let after = used.plus(change);
        let exceeds = |limit: Option<u64>, used: u64, more: i64| {
            limit.is_some_and(|limit| more > 0 && u128::from(used) + more as u128 > limit.into())
        };
        let exceeded = exceeds(self.limits.bytes, used.bytes, change.bytes)
            || exceeds(self.limits.inodes, used.inodes(), change.inodes());
        if !exceeded {
            *used = after;
        }
        !exceeded
    }

    /// Adds `change`, whatever the limits say.
    fn note(&self, change: UsageChange) {
        let mut used = self.used.lock();
        *used = used.plus(change);
    }

    /// What lies below it.
    pub(super) fn used(&self) -> Usage {
        *self.used.lock()
    }

    fn bytes_left(&self) -> u64 {
        let used = self.used.lock().bytes;
        self.limits.bytes.map_or(u64::MAX, |limit| limit.saturating_sub(used))
    }
}

/// What of a change must fit: what grows counts before it is written, what shrinks after.
fn growth(change: UsageChange) -> UsageChange {
    let UsageChange { bytes, files, dirs } = change;
    if files.wrapping_add(dirs) > 0 {
        UsageChange { bytes: bytes.max(0), files, dirs }
    } else {
        UsageChange { bytes: bytes.max(0), files: 0, dirs: 0 }
    }
}

impl Reservation {
    /// The batch is written.
    pub(super) fn keep(mut self) {
        for (domain, change) in std::mem::take(&mut self.domains) {
            domain.note(change.plus(growth(change).negated()));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        for (domain, change) in &self.domains[..self.added.min(self.domains.len())] {
            domain.note(growth(*change).negated());
        }
    }
}

impl Quotas {
    /// Whether there are any limits. REQUIRES, for an answer that holds: a row lock.
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    fn put(&self, top: InodeId, domain: Option<Domain>) {
        let mut domains = self.domains.write();
        match domain {
            Some(domain) => drop(domains.insert(top, Arc::new(domain))),
            None => drop(domains.remove(&top)),
        }
        self.count.store(domains.len(), Ordering::Relaxed);
        self.chains.lock().clear();
    }
}

impl Accounts {
    /// Whether there are limits anywhere. REQUIRES, for an answer that holds: a row lock.
    pub(crate) fn has_quotas(&self) -> bool {
        self.quotas.any()
    }

    /// The number of directories with limits.
    pub(crate) fn quota_count(&self) -> usize {
        self.quotas.count.load(Ordering::Relaxed)
    }

    /// Adds what `changes` charge to the counters of the domains above; `None` if that is not to be counted,
    /// `QuotaExceeded` if it does not fit.
    pub(super) fn reserve(&self, changes: &Changes) -> FsResult<Option<Reservation>> {
        if !self.quotas.any() || changes.standing == Standing::Propagated {
            return Ok(None);
        }
        let mut reserved = Reservation::default();
        for (dir, change) in changes.charges.iter().chain(&changes.brought) {
            for domain in self.chain(*dir)? {
                match reserved.domains.iter_mut().find(|(known, _)| known.top == domain.top) {
                    Some((_, sum)) => *sum = sum.plus(*change),
                    None => reserved.domains.push((domain, *change)),
                }
            }
        }
        for at in 0..reserved.domains.len() {
            let (domain, change) = &reserved.domains[at];
            if changes.standing == Standing::Happened {
                domain.note(growth(*change));
            } else if !domain.add(growth(*change)) {
                return Err(FsError::QuotaExceeded);
            }
            reserved.added += 1;
        }
        Ok(Some(reserved))
    }

    /// The domains that `dir` lies in.
    fn chain(&self, dir: InodeId) -> FsResult<Chain> {
        let mut chain = Chain::new();
        let mut at = dir;
        loop {
            if let Some(known) = self.quotas.chains.lock().get(&at) {
                chain.extend(known.iter().cloned());
                break;
            }
            chain.extend(self.quotas.domains.read().get(&at).cloned());
            if at == InodeId::ROOT {
                break;
            }
            let row = read_inode_row(self.store.as_ref(), self.meta, at)?;
            let Some(Content::Directory(info)) = row.map(|inode| inode.content) else { break };
            at = info.parent;
        }
        let mut chains = self.quotas.chains.lock();
        if chains.len() >= CHAINS_MAX {
            chains.clear();
        }
        chains.insert(dir, chain.clone());
        Ok(chain)
    }

    /// Whether a move from one directory to the other leaves or enters a domain.
    pub(crate) fn crosses(&self, from: InodeId, to: InodeId) -> FsResult<bool> {
        if from == to || !self.quotas.any() {
            return Ok(false);
        }
        let (from, to) = (self.chain(from)?, self.chain(to)?);
        Ok(!from.iter().map(|domain| domain.top).eq(to.iter().map(|domain| domain.top)))
    }

    /// Whether limits hold for what lies in `dir`.
    pub(crate) fn limits(&self, dir: Option<InodeId>) -> FsResult<bool> {
        match dir.filter(|_| self.quotas.any()) {
            Some(dir) => Ok(!self.chain(dir)?.is_empty()),
            None => Ok(false),
        }
    }

    /// Bytes that may still be added in `dir`.
    pub(crate) fn bytes_left(&self, dir: InodeId) -> FsResult<u64> {
        let left = self.chain(dir)?.iter().map(|domain| domain.bytes_left()).min();
        Ok(left.unwrap_or(u64::MAX))
    }

    /// The directories with limits, and what lies below them. REQUIRES, for an answer that holds: all row locks.
    pub(crate) fn limited(&self) -> HashMap<InodeId, (Limits, Usage)> {
        let domains = self.quotas.domains.read();
        let limited = |domain: &Arc<Domain>| (domain.limits, *domain.used.lock());
        domains.iter().map(|(top, domain)| (*top, limited(domain))).collect()
    }

    /// The room of the file system as the limits on its root leave it.
    pub(crate) fn within_root_limits(&self, mut room: StatFs) -> StatFs {
        let domain = self.quotas.domains.read().get(&InodeId::ROOT).cloned();
        let Some(domain) = domain.filter(|_| self.quotas.any()) else { return room };
        let used = *domain.used.lock();
        if let Some(limit) = domain.limits.bytes {
            let left = limit.saturating_sub(used.bytes) / u64::from(room.block_bytes);
            room.blocks = room.blocks.min(limit / u64::from(room.block_bytes));
            room.blocks_free = room.blocks_free.min(left);
            room.blocks_available = room.blocks_available.min(left);
        }
        if let Some(limit) = domain.limits.inodes {
            room.files = room.files.min(limit);
            room.files_free = room.files_free.min(limit.saturating_sub(used.inodes()));
        }
        room
    }

    /// Forgets which domains directories lie in. REQUIRES: all row locks.
    pub(crate) fn forget_chains(&self) {
        self.quotas.chains.lock().clear();
    }

    /// Whether `dir` has limits.
    pub(crate) fn is_top(&self, dir: InodeId) -> bool {
        self.quotas.any() && self.quotas.domains.read().contains_key(&dir)
    }

    /// All trees with limits.
    pub(super) fn domains(&self) -> Vec<Arc<Domain>> {
        self.quotas.domains.read().values().cloned().collect()
    }

    /// The tree below `top`, if it has limits.
    pub(super) fn domain(&self, top: InodeId) -> Option<Arc<Domain>> {
        self.quotas.domains.read().get(&top).cloned()
    }

    /// Sets the limits of the tree below `top`, which holds so much. REQUIRES: nothing else uses the file system yet, or all row locks.
    pub(super) fn begin_domain(&self, top: InodeId, limits: Limits, used: Usage) {
        self.quotas.put(top, Some(Domain { top, limits, used: Mutex::new(used) }));
    }

    /// Ends the domain of a directory that was removed. It was empty, so no counters depend on it.
    pub(super) fn end_domain(&self, top: InodeId) {
        self.quotas.put(top, None);
    }
}
