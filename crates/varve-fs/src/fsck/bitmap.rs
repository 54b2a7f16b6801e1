//! A set of inode ids in about a bit each, since ids are counted up.

use std::collections::BTreeMap;

use varve_types::InodeId;

const PAGE_BITS: u64 = 1 << 16;

/// A set of inode ids.
#[derive(Default)]
pub(super) struct InodeSet {
    pages: BTreeMap<u64, Box<[u64]>>,
}

impl InodeSet {
    /// Adds an id; false if it was there.
    pub(super) fn insert(&mut self, ino: InodeId) -> bool {
        let (page, word, bit) = split(ino);
        let page = self
            .pages
            .entry(page)
            .or_insert_with(|| vec![0; (PAGE_BITS / 64) as usize].into_boxed_slice());
        let before = page[word];
        page[word] |= bit;
        before & bit == 0
    }

    /// Whether an id is there.
    pub(super) fn contains(&self, ino: InodeId) -> bool {
        let (page, word, bit) = split(ino);
        self.pages.get(&page).is_some_and(|page| page[word] & bit != 0)
    }

    /// The ids that are in this set and not in `other`.
    pub(super) fn without<'a>(&'a self, other: &'a InodeSet) -> impl Iterator<Item = InodeId> + 'a {
        self.pages.iter().flat_map(move |(page, words)| {
            (0..PAGE_BITS)
                .filter(|bit| words[(bit / 64) as usize] & (1 << (bit % 64)) != 0)
                .map(move |bit| InodeId::new(page * PAGE_BITS + bit))
                .filter(|ino| !other.contains(*ino))
        })
    }
}

fn split(ino: InodeId) -> (u64, usize, u64) {
    let (page, rest) = (ino.get() / PAGE_BITS, ino.get() % PAGE_BITS);
    (page, (rest / 64) as usize, 1 << (rest % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_kept_apart() {
        let (mut set, mut other) = (InodeSet::default(), InodeSet::default());
        let inos = [0, 1, 63, 64, PAGE_BITS - 1, PAGE_BITS, u64::MAX].map(InodeId::new);
        for ino in inos {
            assert!(!set.contains(ino) && set.insert(ino) && !set.insert(ino) && set.contains(ino));
        }
        other.insert(InodeId::new(64));
        assert_eq!(set.without(&other).count(), inos.len() - 1);
        assert!(!set.contains(InodeId::new(2)));
    }
}
