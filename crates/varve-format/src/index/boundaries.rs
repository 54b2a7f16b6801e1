//! The boundaries from which both compact indexes are made: the first key of each group of blocks except the first.
//!
//! A *boundary* is such a key, a *directory* the prefix of one or more boundaries. Boundary b parts group b
//! from group b + 1. A key belongs to the group whose number is that of the boundaries at or below it.
//!
//! Only directories in which a block begins have boundaries. The collector also notes the prefixes of the table next
//! to them, because these are looked up too and must be distinguished.

use super::pages::Pages;
use crate::filter::PREFIX_BYTES;
use crate::section::Handle;

/// A prefix with boundaries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Directory {
    pub(super) prefix: u64,
    /// How many.
    pub(super) boundaries: usize,
    /// The table's prefixes next to it.
    pub(super) neighbours: [Option<u64>; 2],
}

/// The first key of a group of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Boundary {
    pub(super) suffix: u64,
    /// The suffix of the key before it, unless that has another prefix.
    pub(super) before: Option<u64>,
}

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct BoundaryCollector {
    pub(super) pages: Pages,
    pub(super) directories: Vec<Directory>,
    pub(super) boundaries: Vec<Boundary>,
    /// The prefixes of the key noted last and of the last key with another one.
    prefixes: [Option<u64>; 2],
    /// Whether the next block begins with the key that ended the last.
    continues: bool,
}

impl BoundaryCollector {
    pub(super) fn new(block_pages: u32) -> BoundaryCollector {
        BoundaryCollector {
            pages: Pages::new(block_pages),
            directories: Vec::new(),
            boundaries: Vec::new(),
            prefixes: [None; 2],
            continues: false,
        }
    }

    /// See [`super::IndexBuilder::note_key`].
    pub(super) fn note_key(&mut self, key: &[u8]) {
        let (prefix, _) = split(key);
        let [current, _] = self.prefixes;
        if current == Some(prefix) {
            return;
        }
        if let Some(directory) = self.directories.last_mut()
            && Some(directory.prefix) == current
        {
            directory.neighbours[1] = Some(prefix);
        }
        self.prefixes = [Some(prefix), current];
    }

    /// See [`super::IndexBuilder::add`].
    pub(super) fn add(&mut self, last_key: &[u8], next_key: Option<&[u8]>, handle: Handle) {
        self.pages.add(handle, self.continues);
        self.continues = next_key == Some(last_key);
        let Some(next_key) = next_key.filter(|next_key| *next_key != last_key) else { return };
        let ((prefix, suffix), (last_prefix, last_suffix)) = (split(next_key), split(last_key));
        let before = (last_prefix == prefix).then_some(last_suffix);
        self.boundaries.push(Boundary { suffix, before });
        match self.directories.last_mut().filter(|last| last.prefix == prefix) {
            Some(directory) => directory.boundaries += 1,
            None => {
                let [current, other] = self.prefixes;
                let previous = if current == Some(prefix) { other } else { current };
                let neighbours = [previous, None];
                self.directories.push(Directory { prefix, boundaries: 1, neighbours });
            }
        }
    }

    /// Returns the directories with the boundaries of each.
    pub(super) fn by_directory(&self) -> impl Iterator<Item = (&Directory, &[Boundary])> {
        let mut rest = &self.boundaries[..];
        self.directories.iter().map(move |directory| {
            let (own, after) = rest.split_at(directory.boundaries);
            rest = after;
            (directory, own)
        })
    }
}

/// A key as two numbers in the same order; a shorter one as if zeros followed it, a longer one cut.
#[inline]
pub(super) fn split(key: &[u8]) -> (u64, u64) {
    if let Some(key) = key.first_chunk::<{ 2 * PREFIX_BYTES }>() {
        let both = u128::from_be_bytes(*key);
        return ((both >> 64) as u64, both as u64);
    }
    let mut whole = [0; 2 * PREFIX_BYTES];
    whole[..key.len()].copy_from_slice(key);
    let both = u128::from_be_bytes(whole);
    ((both >> 64) as u64, both as u64)
}
