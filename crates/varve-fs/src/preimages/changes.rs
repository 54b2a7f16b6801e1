//! What preimages say about changes: which objects may differ between two views, and in which places.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use varve_schema::overlay::BLOCK_BYTES;
use varve_types::InodeId;

use super::ending::inodes_in;
use super::{Layers, Preimages};
use crate::epoch::Epoch;

impl Preimages {
    /// The objects that changed after the view `from` began and before the view `until` did, or until now: those that have a
    /// preimage from in between. An object that was saved because a writer had it open may be as it was. Costs the number of preimages.
    pub(crate) fn changed_between(
        &self,
        from: Epoch,
        until: Option<Epoch>,
    ) -> io::Result<BTreeSet<InodeId>> {
        let _saving = self.saving.lock();
        let until = until.unwrap_or(Epoch::LAST);
        let epochs: Vec<Epoch> = self.epochs.read().all.range(from..until).copied().collect();
        let mut changed = BTreeSet::new();
        for epoch in epochs {
            for upper in self.list(&self.dir.join(epoch.get().to_string()))? {
                for lower in self.list(&upper)? {
                    changed.extend(inodes_in(&self.list(&lower)?));
                }
            }
        }
        Ok(changed)
    }

    /// Where the object `ino`, of which the view `until` sees the first `len` bytes, may have other bytes there than for
    /// the view `from`, for which it has `base_len`: the blocks that were saved in between, or all of it if all was. In
    /// order, none twice. REQUIRES: both views last.
    pub(crate) fn may_differ(
        &self,
        (from, base_len): (Epoch, u64),
        (until, len): (Epoch, u64),
        ino: InodeId,
    ) -> io::Result<Vec<Range<u64>>> {
        let epochs = self.epochs.read();
        let (mut same, mut ranges) = (base_len.min(len), Vec::new());
        for epoch in epochs.all.range(from..until) {
            // One epoch after the other, as what the later ones have may be on its way to the earlier ones.
            let Layers { blocks, all } = self.layers_at(&epochs, *epoch, ino)?;
            if all.is_some() {
                return Ok(std::iter::once(0..len).collect());
            }
            for overlay in blocks {
                same = same.min(overlay.base_len());
                ranges.extend(overlay.changes(len)?);
            }
        }
        // Beyond the end of one of them, none says anything.
        ranges.push(same / BLOCK_BYTES * BLOCK_BYTES..len);
        Ok(joined(ranges, len))
    }
}

/// Ranges in order, those that touch as one, none beyond `len`.
fn joined(mut ranges: Vec<Range<u64>>, len: u64) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        let range = range.start..range.end.min(len);
        match joined.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}
