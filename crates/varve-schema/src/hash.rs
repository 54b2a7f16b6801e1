//! The keyed hash that maps names to key suffixes.
//!
//! It is SipHash-1-3 with a secret key of the store, so that a user who only chooses names cannot make them collide
//! in one row. A store can be formatted with a narrower hash, which tests use to make names collide.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use varve_types::InodeId;

use crate::EntrySuffix;

/// Hashes names of directory entries, of extended attributes and of parent pointers.
#[derive(Clone)]
pub struct NameHasher {
    keyed: SipHasher13,
    mask: u64,
}

impl NameHasher {
    /// A hash with the secret `key`, which keeps `bits` bits (1 to 55).
    pub fn new(key: u128, bits: u32) -> NameHasher {
        let bits = bits.clamp(1, EntrySuffix::HASH_BITS_MAX);
        NameHasher { keyed: SipHasher13::new_with_key(&key.to_le_bytes()), mask: (1 << bits) - 1 }
    }

    /// Returns the key suffix of the entry called `name` within its directory.
    pub fn entry(&self, name: &[u8]) -> EntrySuffix {
        EntrySuffix::from_hash(self.keyed.hash(name) & self.mask)
    }

    /// Returns the hash in the key of the extended attribute called `name`; below 2^63.
    pub fn xattr(&self, name: &[u8]) -> u64 {
        self.keyed.hash(name) & self.mask
    }

    /// Returns the hash in the key of the pointer to the name `name` in `dir`; below 2^63.
    pub fn parent(&self, dir: InodeId, name: &[u8]) -> u64 {
        let mut hasher = self.keyed;
        hasher.write(&dir.get().to_be_bytes());
        hasher.write(name);
        hasher.finish() & self.mask
    }
}

impl std::fmt::Debug for NameHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NameHasher({} bits)", self.mask.count_ones())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_name_never_changes() {
        let hasher = NameHasher::new(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100, 55);
        // The first vector published with SipHash-1-3 is ab ac 01 58 05 0f c4 dc; 55 bits are kept.
        assert_eq!(hasher.entry(b"").get(), (0xabac_0158_050f_c4dc & ((1 << 55) - 1)) << 8);
        assert_eq!(hasher.entry(b"etc").get(), 5_503_761_886_458_423_296);
        let dir = InodeId::new(0x0102_0304_0506_0708);
        let whole = hasher.xattr(&[1, 2, 3, 4, 5, 6, 7, 8, b'e', b't', b'c']);
        assert_eq!(hasher.parent(dir, b"etc"), whole);
    }

    #[test]
    fn narrow_hashes_collide_and_other_keys_differ() {
        let narrow = NameHasher::new(7, 1);
        assert_eq!(narrow.entry(b"a"), narrow.entry(b"b"));
        assert_ne!(NameHasher::new(7, 55).entry(b"a"), NameHasher::new(8, 55).entry(b"a"));
    }
}
