//! The one trait through which the file system sees a store.

use std::fmt;
use std::ops::Bound;

use bytes::Bytes;
use varve_types::KeyspaceId;

use crate::{Batch, RowVersion, StoreResult};

/// Bytes of a batch of an insertion of many rows, nearly.
const INSERTED_BATCH_BYTES: usize = 1 << 20;

/// One row.
pub type Pair = (Bytes, Bytes);

/// Rows in key order, from [`Store::scan`]; after an error it yields nothing more.
pub type ScanIter<'a> = Box<dyn Iterator<Item = StoreResult<Pair>> + Send + 'a>;

/// Rows with ascending keys, none twice.
pub type SortedRows<'a> = &'a mut dyn Iterator<Item = Pair>;
/// Keys of rows in order, from [`Store::keys`]; after an error it yields nothing more.
pub type KeyIter<'a> = Box<dyn Iterator<Item = StoreResult<Bytes>> + Send + 'a>;

/// What a key space is made for. Fixed when it is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyspaceOptions {
    /// Every key is 8 bytes of prefix and 8 bytes of suffix. Scans of one prefix then skip the table
    /// files that do not hold it (TableFS 4.2.4).
    pub prefixed: bool,
    /// Blocks of table files are compressed with LZ4 where that saves room.
    pub compressed: bool,
}

/// The order of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Smallest key first.
    Forward,
    /// Largest key first.
    Reverse,
}

/// The keys of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The lower end.
    pub start: Bound<Vec<u8>>,
    /// The upper end.
    pub end: Bound<Vec<u8>>,
}

impl KeyRange {
    /// Every key.
    pub fn all() -> KeyRange {
        KeyRange { start: Bound::Unbounded, end: Bound::Unbounded }
    }

    /// Every key that begins with `prefix`.
    pub fn prefix(prefix: &[u8]) -> KeyRange {
        let mut end = prefix.to_vec();
        while end.last() == Some(&u8::MAX) {
            end.pop();
        }
        let end = match end.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(end)
            }
            None => Bound::Unbounded,
        };
        KeyRange { start: Bound::Included(prefix.to_vec()), end }
    }
}

/// A store. Calls may come from many threads at once.
///
/// Every error is a [`crate::StoreError`]: damage names file and offset, a full disk is
/// `NoSpace` and changes nothing, and after a failed sync every write is refused as `Poisoned`.
pub trait Store: Send + Sync + fmt::Debug {
    /// The key space called `name` (1 to 64 bytes), created durably if it does not exist. An existing
    /// one keeps the options it was created with.
    fn keyspace(&self, name: &str, options: KeyspaceOptions) -> StoreResult<KeyspaceId>;

    /// The names of all key spaces.
    fn keyspace_names(&self) -> StoreResult<Vec<String>>;

    /// Removes all rows of a key space, durably; costs the number of its table files, not of its rows. Named snapshots
    /// and branches lose sight of them, too: it is meant for scratch space.
    fn clear_keyspace(&self, keyspace: KeyspaceId) -> StoreResult<()>;

    /// The newest value of `key`.
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<Option<Bytes>>;

    /// Has the rows of `keys` fetched that are not in memory, for somebody who is about to [`Store::get`] them. Does not wait for
    /// them, but where values stand apart: then it waits for the rows, and not for the values. Gives how much is fetched, in
    /// blocks and values; nothing by a store that does no such thing.
    fn prefetch(&self, _keyspace: KeyspaceId, _keys: &[&[u8]]) -> StoreResult<usize> {
        Ok(0)
    }

    /// What changes with the row of `key`: as long as it is what it was before a [`Store::get`], another would find the
    /// same. `None` if the store keeps no account of that.
    fn version(&self, _keyspace: KeyspaceId, _key: &[u8]) -> Option<RowVersion> {
        None
    }

    /// Applies all of `batch` or nothing. When it returns, the batch survives the death of the
    /// process; it survives a power cut once [`Store::sync`] returns, or within 5 seconds.
    fn write(&self, batch: Batch) -> StoreResult<()>;

    /// [`Store::write`] of rows that can be made again from what is written. Where there is no room a store may keep them in memory, as if
    /// they were written, until [`Store::write_kept`] or there is room; a crash loses them then.
    fn write_derived(&self, batch: Batch) -> StoreResult<()> {
        self.write(batch)
    }

    /// Writes what [`Store::write_derived`] has kept in memory; if that `reclaims`, as what frees room.
    fn write_kept(&self, _reclaims: bool) -> StoreResult<()> {
        Ok(())
    }

    /// Writes `rows`, durably when it returns and in any case after all that was written before; for many rows at
    /// once, which a store may take without its log. What a crash leaves of them is some of the first ones, unless
    /// the store says that it is all or nothing. `external` says what [`Batch::depends_on_external`] does.
    fn insert_sorted(
        &self,
        keyspace: KeyspaceId,
        rows: SortedRows<'_>,
        external: bool,
    ) -> StoreResult<()> {
        let mut rows = rows.peekable();
        while rows.peek().is_some() {
            let (mut batch, mut bytes) = (Batch::new(), 0);
            while bytes < INSERTED_BATCH_BYTES
                && let Some((key, value)) = rows.next()
            {
                bytes += key.len() + value.len();
                batch.put(keyspace, key, value);
            }
            if external {
                batch.depends_on_external();
            }
            self.write(batch)?;
        }
        self.sync()
    }

    /// Makes everything written before durable. Concurrent calls share one sync.
    fn sync(&self) -> StoreResult<()>;

    /// How many syncs have begun since the store was opened; none of them makes durable what is written later. `None`: every batch that
    /// depends on data outside is synced with these.
    fn syncs_begun(&self) -> Option<u64> {
        None
    }

    /// The rows of `range` as of now, in `direction`.
    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'_>>;

    /// Calls `visit` with the rows of `range` as of now, smallest key first, until it says false. It costs less than
    /// [`Store::scan`], whose rows may be kept.
    fn each_row(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        visit: &mut dyn FnMut(&[u8], Bytes) -> bool,
    ) -> StoreResult<()> {
        for row in self.scan(keyspace, range, Direction::Forward)? {
            let (key, value) = row?;
            if !visit(&key, value) {
                break;
            }
        }
        Ok(())
    }

    /// The keys of the rows of `range` as of now; values that stand apart from their rows are not read.
    fn keys(&self, keyspace: KeyspaceId, range: KeyRange) -> StoreResult<KeyIter<'_>>;

    /// Pins the present state.
    fn snapshot(&self) -> StoreResult<Box<dyn StoreSnapshot + '_>>;

    /// Calls `hook` before any batch marked [`Batch::depends_on_external`] becomes durable: it makes
    /// durable what such batches refer to outside the store. An error fails the sync. Set once, before
    /// the first write.
    fn set_external_sync(&self, hook: Box<dyn Fn() -> std::io::Result<()> + Send + Sync>);

    /// Whether writes may meet locks of serializable branches at present, so that it is worth saying which of them commute
    /// ([`Batch::put_commuting`]).
    fn meets_locks(&self) -> bool {
        false
    }

    /// Whether the device is nearly full.
    fn is_room_scarce(&self) -> bool {
        false
    }

    /// Gets room of the device back that rows take which nobody sees any more, for who finds none outside of the store. False if there is
    /// none to be had.
    fn get_room(&self) -> StoreResult<bool> {
        Ok(false)
    }

    /// Gives an inode that the store holds back to the device, for a name beside the store where there is no other inode. False if there
    /// is none to give.
    fn lend_inode(&self) -> bool {
        false
    }

    /// Counters and sizes as one JSON object.
    fn metrics_json(&self) -> String;

    /// Turns what only logs hold into tables if that is much and there is room, so that damage to the log of a closed store costs
    /// little: a log has one copy of each row, and no index. Worth its time before a close after which nobody opens the store at once.
    fn empty_logs(&self) -> StoreResult<()> {
        Ok(())
    }

    /// Syncs, stops the background threads and releases the store. Later calls fail.
    fn close(&self) -> StoreResult<()>;
}

/// The state of a store at one moment.
pub trait StoreSnapshot: Send + Sync {
    /// The value of `key` at that moment.
    fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> StoreResult<Option<Bytes>>;

    /// The rows of `range` at that moment.
    fn scan(
        &self,
        keyspace: KeyspaceId,
        range: KeyRange,
        direction: Direction,
    ) -> StoreResult<ScanIter<'_>>;
}
