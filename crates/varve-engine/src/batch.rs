//! A group of writes that happens whole or not at all.

use bytes::Bytes;
use varve_types::{BranchId, KeyspaceId};

use crate::Key;

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets a row.
    Put {
        /// Where.
        keyspace: KeyspaceId,
        /// The key.
        key: Key,
        /// The value.
        value: Bytes,
    },
    /// Removes a row; no error if there is none.
    Delete {
        /// Where.
        keyspace: KeyspaceId,
        /// The key.
        key: Key,
    },
}

impl Op {
    /// Where it goes.
    pub(crate) fn keyspace(&self) -> KeyspaceId {
        match self {
            Op::Put { keyspace, .. } | Op::Delete { keyspace, .. } => *keyspace,
        }
    }

    /// Bytes of its key and value.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Op::Put { key, value, .. } => (key.as_slice().len() + value.len()) as u64,
            Op::Delete { key, .. } => key.as_slice().len() as u64,
        }
    }

    /// The same, to be changed.
    pub(crate) fn keyspace_mut(&mut self) -> &mut KeyspaceId {
        match self {
            Op::Put { keyspace, .. } | Op::Delete { keyspace, .. } => keyspace,
        }
    }
}

/// Writes to be applied together, in order: of two on one key the later wins.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    ops: Vec<Op>,
    external: bool,
    reclaims: bool,
    ends: Option<BranchId>,
    /// Numbers of the writes that commute, in order.
    commuting: Vec<u32>,
}

impl Batch {
    /// No writes.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds: set `key` to `value`, which is copied if others have a part of its buffer too: that could be much larger, and the
    /// row in memory would keep all of it. Who alone has such a buffer must see to that himself.
    pub fn put(&mut self, keyspace: KeyspaceId, key: impl AsRef<[u8]>, value: impl Into<Bytes>) {
        let (key, mut value) = (Key::from_slice(key.as_ref()), value.into());
        if !value.is_unique() {
            value = Bytes::copy_from_slice(&value);
        }
        self.ops.push(Op::Put { keyspace, key, value });
    }

    /// Adds: set `key` to `value`, which changes it in a way that commutes with such changes of others, who see to that when
    /// they meet. For the locks of serializable branches it is no more than a read.
    pub fn put_commuting(
        &mut self,
        keyspace: KeyspaceId,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
    ) {
        self.commuting.push(self.ops.len() as u32);
        self.put(keyspace, key, value);
    }

    /// Whether the write with this number was added as one that commutes.
    pub(crate) fn commutes(&self, at: usize) -> bool {
        !self.commuting.is_empty() && self.commuting.binary_search(&(at as u32)).is_ok()
    }

    /// Adds: remove `key`.
    pub fn delete(&mut self, keyspace: KeyspaceId, key: impl AsRef<[u8]>) {
        self.ops.push(Op::Delete { keyspace, key: Key::from_slice(key.as_ref()) });
    }

    /// Marks that these rows refer to data outside the store, which must be durable before they are:
    /// the hook of [`crate::Store::set_external_sync`] runs first. After a power cut, such a batch that
    /// was never synced is dropped together with everything after it.
    pub fn depends_on_external(&mut self) {
        self.external = true;
    }

    /// Marks that this batch frees room, so that it is taken even when the disk is nearly full.
    pub fn reclaims_space(&mut self) {
        self.reclaims = true;
    }

    /// Makes these writes the commit of `branch`, which ends with them.
    pub(crate) fn ends(&mut self, branch: BranchId) {
        self.ends = Some(branch);
    }

    /// The branch whose commit these writes are.
    pub(crate) fn ended(&self) -> Option<BranchId> {
        self.ends
    }

    /// The writes, to change where they go.
    pub(crate) fn ops_mut(&mut self) -> &mut [Op] {
        &mut self.ops
    }

    /// The writes.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The writes, taken out.
    pub(crate) fn into_ops(self) -> Vec<Op> {
        self.ops
    }

    /// True if there are no writes.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Whether [`Batch::depends_on_external`] was called.
    pub fn is_external(&self) -> bool {
        self.external
    }

    /// Whether [`Batch::reclaims_space`] was called.
    pub fn is_reclaiming(&self) -> bool {
        self.reclaims
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Files that were cut kept their last chunks in memory, of which the memtable knew the part that stayed.
    #[test]
    fn a_part_of_a_large_buffer_does_not_keep_it() {
        let buffer: Arc<[u8]> = vec![7; 16 << 10].into();
        let (mut batch, keyspace) = (Batch::new(), KeyspaceId::new(1));
        let chunk = Bytes::from_owner(Arc::clone(&buffer));
        batch.put(keyspace, "cut", chunk.slice(..3));
        let stored = Bytes::from(vec![8; 16 << 10]);
        let at = stored.as_ptr();
        batch.put(keyspace, "whole", stored);
        drop(chunk);
        assert_eq!(Arc::strong_count(&buffer), 1);
        let values: Vec<&Bytes> = batch
            .ops()
            .iter()
            .filter_map(|op| match op {
                Op::Put { value, .. } => Some(value),
                Op::Delete { .. } => None,
            })
            .collect();
        assert_eq!(values[0], &[7; 3][..]);
        assert_eq!(values[1].as_ptr(), at, "what nobody else has is not copied");
    }
}
