//! Which bytes of a file lie where: a map of ranges that do not overlap. What no extent covers reads as zeros.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The number of an object, which is used once in the life of a store: no two owners have the same epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct ObjectId {
    pub(crate) epoch: u64,
    pub(crate) number: u64,
}

/// Where the bytes of an extent are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// In memory.
    Memory(Bytes),
    /// At `from` of the payload of an object. If it is shared, other files may have it too.
    Object { id: ObjectId, from: u64, shared: bool },
    /// Nowhere; they are zeros. Only where a map lies over another one.
    Zeros,
}

impl Source {
    /// The part that begins `skip` bytes later and has `len` bytes.
    fn part(&self, skip: u64, len: u64) -> Source {
        match self {
            Source::Memory(bytes) => {
                Source::Memory(bytes.slice(skip as usize..(skip + len) as usize))
            }
            &Source::Object { id, from, shared } => {
                Source::Object { id, from: from + skip, shared }
            }
            Source::Zeros => Source::Zeros,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) len: u64,
    pub(crate) source: Source,
}

/// The extents of a file by their offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extents(BTreeMap<u64, Extent>);

impl Extents {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Extent)> {
        self.0.iter().map(|(&offset, extent)| (offset, extent))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, &mut Extent)> {
        self.0.iter_mut().map(|(&offset, extent)| (offset, extent))
    }

    /// Takes the extents out of `range`, and returns them with their offsets.
    pub(crate) fn take(&mut self, range: Range<u64>) -> Vec<(u64, Extent)> {
        if range.is_empty() {
            return Vec::new();
        }
        self.split_at(range.start);
        self.split_at(range.end);
        let mut rest = self.0.split_off(&range.start);
        let behind = rest.split_off(&range.end);
        self.0.extend(behind);
        rest.into_iter().collect()
    }

    /// Puts an extent at `offset`, in the place of what is there. Returns what was there.
    pub(crate) fn put(&mut self, offset: u64, extent: Extent) -> Vec<(u64, Extent)> {
        // Most writes of a log are behind all others.
        if self.0.last_key_value().is_none_or(|(&at, last)| at + last.len <= offset) {
            self.0.insert(offset, extent);
            return Vec::new();
        }
        let was = self.take(offset..offset + extent.len);
        self.0.insert(offset, extent);
        was
    }

    /// Returns the pieces that make up `range`, in order and without gaps: length, and the source if there is one.
    pub(crate) fn pieces(&self, range: Range<u64>) -> Vec<(u64, Option<Source>)> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        let first = self.0.range(..=range.start).next_back().map_or(range.start, |(&at, _)| at);
        for (&offset, extent) in self.0.range(first..range.end.max(first)) {
            let end = (offset + extent.len).min(range.end);
            if end <= at {
                continue;
            }
            if offset > at {
                pieces.push((offset - at, None));
                at = offset;
            }
            pieces.push((end - at, Some(extent.source.part(at - offset, end - at))));
            at = end;
        }
        if at < range.end {
            pieces.push((range.end - at, None));
        }
        pieces
    }

    /// Cuts an extent in two where `offset` is within it.
    fn split_at(&mut self, offset: u64) {
        let Some((&at, extent)) = self.0.range_mut(..offset).next_back() else { return };
        let left = offset - at;
        if left >= extent.len {
            return;
        }
        let behind =
            Extent { len: extent.len - left, source: extent.source.part(left, extent.len - left) };
        extent.source = extent.source.part(0, left);
        extent.len = left;
        self.0.insert(offset, behind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random writes and holes against an array of bytes.
    #[test]
    fn a_map_of_extents_reads_as_what_was_written() {
        let mut rng = varve_testkit::rng::Rng::new(7);
        let (mut extents, mut model) = (Extents::default(), vec![0u8; 400]);
        for round in 0..4000u64 {
            let offset = rng.below(300);
            let len = 1 + rng.below(99);
            let range = offset as usize..(offset + len) as usize;
            if rng.below(4) == 0 {
                extents.take(offset..offset + len);
                model[range].fill(0);
            } else {
                let bytes = Bytes::from(vec![round as u8 | 1; len as usize]);
                model[range].copy_from_slice(&bytes);
                extents.put(offset, Extent { len, source: Source::Memory(bytes) });
            }
            let (from, to) = (rng.below(200), 200 + rng.below(200));
            let mut read = Vec::new();
            for (len, source) in extents.pieces(from..to) {
                match source {
                    Some(Source::Memory(bytes)) => {
                        assert_eq!(bytes.len() as u64, len);
                        read.extend_from_slice(&bytes);
                    }
                    _ => read.resize(read.len() + len as usize, 0),
                }
            }
            assert_eq!(read, model[from as usize..to as usize], "round {round}");
        }
    }
}
