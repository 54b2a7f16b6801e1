//! The rows of a memtable, each once, and an index that finds them by hash.
//!
//! Rows stand in chunks in the order in which their keys came, and stay where they are: no growth copies them. The index, an
//! open hash table, names the row of a key by 32 bits of the key's filter hash, mixed with its key space; so a row that is
//! there takes a look at two places of memory besides it, and one that is not mostly at one. It has room for the rows of a
//! full memtable from the beginning. Where rows are so small that it must grow, it does so by itself, without a look at rows.
//!
//! Filter hashes have no secret, and whoever chooses keys may choose many with one hash. So the index names no more than
//! [`SAME_TAG_MAX`] rows of those that share its bits of the hash. Of a key that is not among so many it does not know whether
//! it has a row ([`Probe::Crowded`]); then the tree does. Rows never leave, so what the index does not name has so many before it.

use hashbrown::HashTable;
use varve_types::{KeyspaceId, SeqNo};

use super::{Found, IsSeen, VERSION_OVERHEAD_BYTES};
use crate::key::Key;

/// Rows of a chunk: some 40 KiB.
const CHUNK_ROWS: usize = 512;
/// The most rows of one tag that the index names.
const SAME_TAG_MAX: usize = 8;

/// Names a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowId(u32);

/// A key's versions.
#[derive(Debug)]
pub(super) struct Row {
    keyspace: KeyspaceId,
    key: Key,
    seq: SeqNo,
    found: Found,
    /// Overwritten versions that snapshots may see; rarely any.
    older: Option<Box<Older>>,
}

/// Versions, oldest first.
#[derive(Debug, Default)]
struct Older(Vec<(SeqNo, Found)>);

impl Older {
    /// Adds a newer version. Where there is room for no more, those go that no snapshot sees, and there is room for as many
    /// again as are left; returns the bytes of those that went. So they are no more than twice those that were needed, or four,
    /// and each costs the same however many there are.
    fn push(&mut self, seq: SeqNo, found: Found, is_seen: &IsSeen<'_>) -> usize {
        self.0.push((seq, found));
        if self.0.len() < self.0.capacity() {
            return 0;
        }
        let mut freed = 0;
        self.0.dedup_by(|newer, kept| {
            let is_needless = !is_seen(kept.0, newer.0);
            if is_needless {
                std::mem::swap(newer, kept);
                freed += VERSION_OVERHEAD_BYTES + newer.1.len();
            }
            is_needless
        });
        self.0.reserve_exact(self.0.len());
        freed
    }

    /// The newest that is not newer than `seq`.
    fn at(&self, seq: SeqNo) -> Option<(SeqNo, &Found)> {
        let behind = self.0.partition_point(|(version, _)| *version <= seq);
        let (version, found) = self.0.get(behind.checked_sub(1)?)?;
        Some((*version, found))
    }
}

impl Row {
    /// A row with one version.
    pub(super) fn new(keyspace: KeyspaceId, key: Key, seq: SeqNo, found: Found) -> Row {
        Row { keyspace, key, seq, found, older: None }
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// The newest version that is not newer than `seq`.
    pub(super) fn at(&self, seq: SeqNo) -> Option<(SeqNo, &Found)> {
        if self.seq <= seq {
            return Some(self.newest());
        }
        self.older.as_ref()?.at(seq)
    }

    /// The newest version.
    pub(super) fn newest(&self) -> (SeqNo, &Found) {
        (self.seq, &self.found)
    }

    /// All versions, newest first.
    pub(super) fn versions(&self) -> impl Iterator<Item = (SeqNo, &Found)> {
        let older = self.older.iter().flat_map(|older| older.0.iter().rev());
        std::iter::once(self.newest()).chain(older.map(|(seq, found)| (*seq, found)))
    }

    /// Puts a newer version before the newest, which stays if a snapshot sees it; returns the bytes by which the row grew
    /// and shrank.
    pub(super) fn set(&mut self, seq: SeqNo, found: Found, is_seen: &IsSeen<'_>) -> (usize, usize) {
        let value_len = found.len();
        let old_seq = std::mem::replace(&mut self.seq, seq);
        let old = std::mem::replace(&mut self.found, found);
        if !is_seen(old_seq, seq) {
            return (value_len, old.len());
        }
        let freed = self.older.get_or_insert_default().push(old_seq, old, is_seen);
        (VERSION_OVERHEAD_BYTES + value_len, freed)
    }

    fn is(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        self.keyspace == keyspace && self.key.is(key)
    }
}

/// What the index says of a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// Its row.
    Found(RowId),
    /// It has none.
    Absent,
    /// It may have one or not.
    Crowded,
}

/// What the index has of a row.
#[derive(Debug)]
struct Slot {
    tag: Tag,
    id: RowId,
}

/// What the index knows of a key's hash. It has all of it in its slots, so that it can move them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tag(u32);

impl Tag {
    #[inline]
    fn of(keyspace: KeyspaceId, hash: u64) -> Tag {
        Tag((hash ^ u64::from(keyspace.get()).wrapping_mul(0x9e37_79b9_7f4a_7c15)) as u32)
    }

    /// The tag for a table that takes the place from the lower bits and tells apart by the uppermost.
    #[inline]
    fn spread(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

/// See the module's comment.
#[derive(Debug)]
pub(super) struct Rows {
    /// All but the last are full.
    chunks: Vec<Vec<Row>>,
    index: HashTable<Slot>,
}

impl Rows {
    /// None yet, and room for so many in the index.
    pub(super) fn with_room(rows: usize) -> Rows {
        Rows { chunks: Vec::new(), index: HashTable::with_capacity(rows) }
    }

    /// What the index says of `key`, whose filter hash is `hash`.
    #[inline]
    pub(super) fn find(&self, keyspace: KeyspaceId, key: &[u8], hash: u64) -> Probe {
        let tag = Tag::of(keyspace, hash);
        let mut others = 0;
        let is_it = |slot: &Slot| {
            let is_it = slot.tag == tag && self.get(slot.id).is(keyspace, key);
            others += usize::from(slot.tag == tag && !is_it);
            is_it
        };
        match self.index.find(tag.spread(), is_it) {
            Some(slot) => Probe::Found(slot.id),
            None if others < SAME_TAG_MAX => Probe::Absent,
            None => Probe::Crowded,
        }
    }

    #[inline]
    pub(super) fn get(&self, id: RowId) -> &Row {
        &self.chunks[id.0 as usize / CHUNK_ROWS][id.0 as usize % CHUNK_ROWS]
    }

    pub(super) fn get_mut(&mut self, id: RowId) -> &mut Row {
        &mut self.chunks[id.0 as usize / CHUNK_ROWS][id.0 as usize % CHUNK_ROWS]
    }

    /// Adds a row whose key has this filter hash.
    ///
    /// REQUIRES: its key has none; `probe` is what the index said of it.
    pub(super) fn add(&mut self, row: Row, hash: u64, probe: &Probe) -> RowId {
        let at = self.chunks.len().saturating_sub(1) * CHUNK_ROWS
            + self.chunks.last().map_or(0, Vec::len);
        // More would take half a terabyte of memory.
        let id = RowId(u32::try_from(at).expect("a memtable has less than 2^32 rows"));
        if *probe == Probe::Absent {
            let tag = Tag::of(row.keyspace, hash);
            self.index.insert_unique(tag.spread(), Slot { tag, id }, |slot| slot.tag.spread());
        }
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK_ROWS => chunk.push(row),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK_ROWS);
                chunk.push(row);
                self.chunks.push(chunk);
            }
        }
        id
    }

    /// How many rows the index names.
    #[cfg(test)]
    pub(super) fn named(&self) -> usize {
        self.index.len()
    }
}
