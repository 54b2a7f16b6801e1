//! Limits on trees as they are read, set and listed ([`super::quota`] counts).

use std::collections::HashMap;
use std::sync::Arc;

use varve_engine::{Direction, KeyRange};
use varve_namespace::Changes;
use varve_schema::{Content, Limits, META, RowKey, Usage};
use varve_types::InodeId;
use varve_vfs::{FsResult, Gave, TreeLimits, TreeQuota, TreeUsage};

use super::quota::Domain;
use crate::error;
use crate::fs::VarveFs;

impl VarveFs {
    /// Reads all limits, and finds what lies below them. REQUIRES: nothing else uses the file system yet, or all row
    /// locks.
    pub(crate) fn load_quotas(&self) -> FsResult<()> {
        let range = KeyRange::prefix(&RowKey::limits_prefix());
        let mut found = Vec::new();
        let rows = self.store.scan(self.meta, range, Direction::Forward).map_err(error::store)?;
        for row in rows {
            let (key, value) = row.map_err(error::store)?;
            let Some(key) = RowKey::from_bytes(&key) else { continue };
            let limits =
                Limits::decode(&value).map_err(|error| error::unreadable(META, key, error))?;
            found.push((InodeId::new(key.suffix()), limits));
        }
        let tops: Vec<InodeId> = found.iter().map(|(top, _)| *top).collect();
        let usages = if tops.is_empty() { HashMap::new() } else { self.recorded_usages(&tops)? };
        for (top, limits) in found {
            let used = usages.get(&top).copied().unwrap_or_default();
            self.accounts.begin_domain(top, limits, used);
        }
        Ok(())
    }

    /// Reads all limits again, after rows changed by another way. REQUIRES: all row locks.
    pub(crate) fn reload_quotas(&self) -> FsResult<()> {
        self.accounts.domains().iter().for_each(|domain| self.accounts.end_domain(domain.top));
        self.accounts.forget_chains();
        self.load_quotas()
    }

    /// Sets the limits on what lies below `top`; none at all clears them. More may lie there already: then it
    /// cannot grow.
    pub(crate) fn do_set_limits(&self, top: InodeId, set: TreeLimits) -> FsResult<()> {
        self.writable()?;
        self.settle_growing();
        let limits = Limits { bytes: set.bytes, inodes: set.inodes };
        let _all = self.locks.lock_all();
        self.dir_row(top)?;
        let mut changes = Changes::new();
        let used = if limits == Limits::default() {
            changes.reclaims_space = true;
            changes.delete_meta(RowKey::limits(top));
            None
        } else {
            changes.put_meta(RowKey::limits(top), limits.encode());
            Some(self.recorded_usage(top)?)
        };
        self.commit_call(&mut changes, Gave::Nothing)?;
        match used {
            Some(used) => self.accounts.begin_domain(top, limits, used),
            None => self.accounts.end_domain(top),
        }
        Ok(())
    }

    /// The limits that hold for the directory `dir`, and those below it.
    pub(crate) fn do_quotas(&self, dir: InodeId) -> FsResult<Vec<TreeQuota>> {
        self.dir_row(dir)?;
        let mut related: Vec<_> = self.accounts.domains();
        for domain in std::mem::take(&mut related) {
            if self.lies_within(dir, domain.top)? || self.lies_within(domain.top, dir)? {
                related.push(domain);
            }
        }
        self.by_path(&related)
    }

    /// The limits that hold for the directory alone.
    pub(crate) fn do_quotas_of(&self, dir: InodeId) -> FsResult<Vec<TreeQuota>> {
        let (mut holding, mut at) = (Vec::new(), dir);
        loop {
            let Content::Directory(info) = self.dir_row(at)?.content else { break };
            holding.extend(self.accounts.domain(at));
            if at == InodeId::ROOT {
                break;
            }
            at = info.parent;
        }
        self.by_path(&holding)
    }

    /// The limits and the usage of domains, by path.
    fn by_path(&self, domains: &[Arc<Domain>]) -> FsResult<Vec<TreeQuota>> {
        let mut quotas = Vec::new();
        for domain in domains {
            let Some(path) = self.path_of(domain.top)? else { continue };
            let Usage { bytes, files, dirs } = domain.used();
            let Limits { bytes: most_bytes, inodes } = domain.limits;
            let limits = TreeLimits { bytes: most_bytes, inodes };
            quotas.push(TreeQuota { path, limits, usage: TreeUsage { bytes, files, dirs } });
        }
        quotas.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(quotas)
    }

    /// Whether `dir` is `above` or lies below it, at some moment during the call.
    pub(crate) fn lies_within(&self, dir: InodeId, above: InodeId) -> FsResult<bool> {
        let mut at = dir;
        while at != above {
            let row = self.inode_row(at)?.map(|inode| inode.content);
            let Some(Content::Directory(info)) = row.filter(|_| at != InodeId::ROOT) else {
                return Ok(false);
            };
            at = info.parent;
        }
        Ok(true)
    }
}
