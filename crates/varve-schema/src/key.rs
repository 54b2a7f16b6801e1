//! Keys: 8 bytes of prefix and 8 bytes of suffix, both big-endian.
//!
//! Invariant: keys sort as their numbers do, so all names of a directory, and all rows of an inode, are next to each
//! other.
//!
//! ```text
//! 0        8        16
//! | prefix | suffix |
//! ```

use varve_types::InodeId;

/// Prefix of the store's own bookkeeping rows.
const BOOKKEEPING: u64 = 0;
/// Prefix of pending rows.
const PENDING: u64 = 2;
/// Prefix of mark rows.
const MARK: u64 = 3;
/// Prefix of limits rows.
const LIMITS: u64 = 4;
/// Set in the suffix of extended attributes and of parent pointers, clear in that of data chunks and names.
const HIGH: u64 = 1 << 63;
/// Set besides `HIGH` in the suffix of references and remaps, where no hash of a name reaches.
const OF_CLONES: u64 = 1 << 62;
/// Set besides both in that of remaps.
const TWIN: u64 = 1 << 61;
/// The bits that are left for an inode id in these suffixes.
const ID_BITS: u64 = TWIN - 1;
/// Low bits of a directory cookie that number the names of one row.
const SLOT_BITS: u32 = 8;

/// The row that holds the end of the inode ids given out so far, as a varint after the version byte.
pub const ID_MARK: RowKey = RowKey { prefix: BOOKKEEPING, suffix: 1 };

/// The row that says which store it belongs to.
pub const STORE_ID: RowKey = RowKey { prefix: BOOKKEEPING, suffix: 2 };
/// The row that holds the snapshot that the present state becomes. The state was received and has no name yet.
pub const RECEIVED: RowKey = RowKey { prefix: BOOKKEEPING, suffix: 3 };

/// The key of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    prefix: u64,
    suffix: u64,
}

impl RowKey {
    /// Of the names in `dir` that hash to `suffix`.
    pub const fn entry(dir: InodeId, suffix: EntrySuffix) -> RowKey {
        RowKey { prefix: dir.get(), suffix: suffix.0 }
    }

    /// Of an inode's own row.
    pub const fn inode(ino: InodeId) -> RowKey {
        RowKey { prefix: ino.get(), suffix: 0 }
    }

    /// Of the work pending on an inode.
    pub const fn pending(ino: InodeId) -> RowKey {
        RowKey { prefix: PENDING, suffix: ino.get() }
    }

    /// Of the mark in `slot`.
    pub const fn mark(slot: u64) -> RowKey {
        RowKey { prefix: MARK, suffix: slot }
    }

    /// Of the limits on what lies below `dir`.
    pub const fn limits(dir: InodeId) -> RowKey {
        RowKey { prefix: LIMITS, suffix: dir.get() }
    }

    /// Of the parent pointers of `ino` whose (directory, name) hashes to `hash`; in the key space `meta`.
    pub const fn parent(ino: InodeId, hash: u64) -> RowKey {
        RowKey { prefix: ino.get(), suffix: HIGH | hash }
    }

    /// Of the reference of `ino`, below 2^61, from the state of the store whose epoch is `source`.
    pub const fn clone_reference(source: InodeId, ino: InodeId) -> RowKey {
        RowKey { prefix: source.get(), suffix: HIGH | OF_CLONES | (ino.get() & ID_BITS) }
    }

    /// Of what the file `old`, below 2^61, has become in the clone that has the id `clone`.
    pub const fn clone_remap(clone: InodeId, old: InodeId) -> RowKey {
        RowKey { prefix: clone.get(), suffix: HIGH | OF_CLONES | TWIN | (old.get() & ID_BITS) }
    }

    /// Of one chunk of a small file.
    pub const fn chunk(ino: InodeId, index: u64) -> RowKey {
        RowKey { prefix: ino.get(), suffix: index }
    }

    /// Of the extended attributes of `ino` whose names hash to `hash`.
    pub const fn xattr(ino: InodeId, hash: u64) -> RowKey {
        RowKey { prefix: ino.get(), suffix: HIGH | hash }
    }

    /// The same row of another inode or directory.
    pub const fn of_inode(self, ino: InodeId) -> RowKey {
        RowKey { prefix: ino.get(), suffix: self.suffix }
    }

    /// Returns the first eight bytes as a number.
    pub const fn prefix(self) -> u64 {
        self.prefix
    }

    /// Returns the last eight bytes as a number.
    pub const fn suffix(self) -> u64 {
        self.suffix
    }

    /// Returns the bytes that sort as the keys do.
    pub fn to_bytes(self) -> [u8; 16] {
        ((u128::from(self.prefix) << 64) | u128::from(self.suffix)).to_be_bytes()
    }

    /// Returns the key with these bytes; `None` unless there are 16.
    pub fn from_bytes(bytes: &[u8]) -> Option<RowKey> {
        let all = u128::from_be_bytes(bytes.try_into().ok()?);
        Some(RowKey { prefix: (all >> 64) as u64, suffix: all as u64 })
    }

    /// Returns what a row of the key space `meta` is.
    pub fn meta_kind(self) -> MetaRow {
        match (self.prefix, self.suffix) {
            (BOOKKEEPING, _) => MetaRow::Bookkeeping,
            (PENDING, ino) => MetaRow::Pending(InodeId::new(ino)),
            (MARK, slot) => MetaRow::Mark(slot),
            (LIMITS, dir) => MetaRow::Limits(InodeId::new(dir)),
            (ino, 0) => MetaRow::Inode(InodeId::new(ino)),
            (source, suffix) if suffix & (HIGH | OF_CLONES | TWIN) == HIGH | OF_CLONES => {
                MetaRow::CloneReference(InodeId::new(source), InodeId::new(suffix & ID_BITS))
            }
            (clone, suffix) if suffix & (HIGH | OF_CLONES) == HIGH | OF_CLONES => {
                MetaRow::CloneRemap(InodeId::new(clone), InodeId::new(suffix & ID_BITS))
            }
            (ino, suffix) if suffix & HIGH != 0 => {
                MetaRow::Parent(InodeId::new(ino), suffix & !HIGH)
            }
            (dir, suffix) => match EntrySuffix::new(suffix) {
                Some(suffix) => MetaRow::Entry(InodeId::new(dir), suffix),
                None => MetaRow::Unknown,
            },
        }
    }

    /// Returns what a row of the key space `data` is.
    pub fn data_kind(self) -> DataRow {
        let ino = InodeId::new(self.prefix);
        if self.suffix & HIGH == 0 { DataRow::Chunk(ino, self.suffix) } else { DataRow::Xattr(ino) }
    }

    /// Returns the prefix shared by all rows of `dir` or inode `ino`, as bytes.
    pub fn prefix_bytes(ino: InodeId) -> [u8; 8] {
        ino.get().to_be_bytes()
    }

    /// Returns the prefix shared by all pending rows, as bytes.
    pub fn pending_prefix() -> [u8; 8] {
        PENDING.to_be_bytes()
    }

    /// Returns the prefix shared by all mark rows, as bytes.
    pub fn mark_prefix() -> [u8; 8] {
        MARK.to_be_bytes()
    }

    /// Returns the prefix shared by all limits rows, as bytes.
    pub fn limits_prefix() -> [u8; 8] {
        LIMITS.to_be_bytes()
    }
}

/// What a key of the key space `meta` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaRow {
    /// The store's own counters.
    Bookkeeping,
    /// Work pending on an inode.
    Pending(InodeId),
    /// A directory whose parent may not know all of its usage, in this slot.
    Mark(u64),
    /// Limits on what lies below a directory.
    Limits(InodeId),
    /// An inode's own row.
    Inode(InodeId),
    /// Names of an inode that has or had several, with their hash.
    Parent(InodeId, u64),
    /// What an inode still reads from a state of the store, given by its epoch.
    CloneReference(InodeId, InodeId),
    /// What a file of several names has become in a clone.
    CloneRemap(InodeId, InodeId),
    /// Names in a directory.
    Entry(InodeId, EntrySuffix),
    /// Nothing that this version writes.
    Unknown,
}

/// What a key of the key space `data` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataRow {
    /// A chunk of a small file, with its index.
    Chunk(InodeId, u64),
    /// Extended attributes.
    Xattr(InodeId),
}

/// The hash of a name as it stands in keys: in 256..2^63, the low 8 bits 0. A directory cookie is the
/// suffix with the name's slot in those bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntrySuffix(u64);

impl EntrySuffix {
    /// Bits of the hash that a suffix holds.
    pub const HASH_BITS_MAX: u32 = 55;

    /// Returns the suffix with this value, if it is one.
    pub const fn new(raw: u64) -> Option<EntrySuffix> {
        let slot = raw & ((1 << SLOT_BITS) - 1);
        if slot == 0 && raw != 0 && raw < HIGH { Some(EntrySuffix(raw)) } else { None }
    }

    /// Returns the suffix for a hash, of which the low 55 bits count; 0 becomes 1.
    pub const fn from_hash(hash: u64) -> EntrySuffix {
        let hash = hash & ((1 << Self::HASH_BITS_MAX) - 1);
        EntrySuffix((if hash == 0 { 1 } else { hash }) << SLOT_BITS)
    }

    /// Returns the value.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the directory cookie of the name in `slot`.
    pub const fn cookie(self, slot: u8) -> u64 {
        self.0 | slot as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_their_numbers_do() {
        let keys = [
            ID_MARK,
            RowKey::inode(InodeId::ROOT),
            RowKey::entry(InodeId::ROOT, EntrySuffix::from_hash(1)),
            RowKey::entry(InodeId::ROOT, EntrySuffix::from_hash(u64::MAX)),
            RowKey::pending(InodeId::new(16)),
            RowKey::inode(InodeId::new(255)),
            RowKey::inode(InodeId::new(256)),
        ];
        for pair in keys.windows(2) {
            assert!(pair[0] < pair[1] && pair[0].to_bytes() < pair[1].to_bytes());
        }
        for key in keys {
            assert_eq!(RowKey::from_bytes(&key.to_bytes()), Some(key));
        }
        assert_eq!(RowKey::from_bytes(&[0; 15]), None);
    }

    #[test]
    fn cookies_lie_between_256_and_2_to_the_63() {
        for hash in [0, 1, 1 << 54, u64::MAX] {
            let suffix = EntrySuffix::from_hash(hash);
            for slot in [0, 1, 255] {
                let cookie = suffix.cookie(slot);
                assert!((256..1 << 63).contains(&cookie));
                assert_eq!(cookie, suffix.get() + u64::from(slot));
            }
        }
    }

    #[test]
    fn every_key_tells_what_it_is() {
        let (ino, suffix) = (InodeId::new(77), EntrySuffix::from_hash(5));
        assert_eq!(ID_MARK.meta_kind(), MetaRow::Bookkeeping);
        assert_eq!(RowKey::pending(ino).meta_kind(), MetaRow::Pending(ino));
        assert_eq!(RowKey::inode(ino).meta_kind(), MetaRow::Inode(ino));
        assert_eq!(RowKey::entry(ino, suffix).meta_kind(), MetaRow::Entry(ino, suffix));
        assert_eq!(RowKey::chunk(ino, 1).meta_kind(), MetaRow::Unknown);
        assert_eq!(RowKey::mark(9).meta_kind(), MetaRow::Mark(9));
        assert_eq!(RowKey::limits(ino).meta_kind(), MetaRow::Limits(ino));
        assert_eq!(RowKey::parent(ino, 9).meta_kind(), MetaRow::Parent(ino, 9));
        let (wide, hash) = (InodeId::new((1 << 61) - 1), (1 << EntrySuffix::HASH_BITS_MAX) - 1);
        assert_eq!(RowKey::parent(wide, hash).meta_kind(), MetaRow::Parent(wide, hash));
        assert_eq!(
            RowKey::clone_reference(ino, wide).meta_kind(),
            MetaRow::CloneReference(ino, wide)
        );
        assert_eq!(RowKey::clone_remap(ino, wide).meta_kind(), MetaRow::CloneRemap(ino, wide));
        assert_eq!(RowKey::chunk(ino, 3).data_kind(), DataRow::Chunk(ino, 3));
        assert_eq!(RowKey::xattr(ino, 3).data_kind(), DataRow::Xattr(ino));
    }
}
