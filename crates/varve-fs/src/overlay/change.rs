//! Changes of an overlay: writing, cutting, keeping, and applying it to its base.

use std::io;
use std::ops::Range;

use varve_env::{Allocate, File};
use varve_schema::overlay::{BLOCK_BYTES, OverlayChange, OverlayRecord};
use varve_types::Timestamp;

use super::copying::{EOPNOTSUPP, Shifted, copy_range, data_in};
use super::journal::Journal;
use super::{Base, Overlay, State, ask, blocks_of, bytes_of};

/// The most blocks that are kept at once because those before them were.
const KEPT_RUN_MAX: u64 = 128;

impl Overlay {
    fn shifted(&self) -> Shifted<'_> {
        Shifted { file: self.file.as_ref(), by: self.data_start }
    }

    /// Copies blocks from the base, without making them its own.
    fn copy_in(&self, base: &dyn Base, blocks: &Range<u64>) -> io::Result<()> {
        let bytes = bytes_of(blocks);
        ask(base, |base| copy_range(&Shifted { file: base, by: 0 }, &self.shifted(), bytes))
    }

    /// Notes that blocks are its own, whose bytes are in place.
    fn record(&self, journal: &mut Journal, missing: &[Range<u64>]) -> io::Result<()> {
        for run in missing {
            let change = OverlayChange::Own { first: run.start, count: run.end - run.start };
            let record = OverlayRecord { change, boot: self.boot };
            journal.append(self.file.as_ref(), &self.header, record)?;
        }
        Ok(())
    }

    fn publish(&self, missing: &[Range<u64>]) {
        let mut state = self.state.write();
        missing.iter().for_each(|run| state.own.insert(run.clone()));
    }

    /// Says that nothing of the base is seen from the limit on, if no record does. REQUIRES: the journal's lock.
    fn record_limit(&self, journal: &mut Journal) -> io::Result<()> {
        let first = match &*self.state.read() {
            State { limit, limit_is_unrecorded: true, .. } => *limit,
            _ => return Ok(()),
        };
        let record = OverlayRecord { change: OverlayChange::Cut { first }, boot: self.boot };
        journal.append(self.file.as_ref(), &self.header, record)?;
        self.state.write().limit_is_unrecorded = false;
        Ok(())
    }

    /// Changes a range of bytes with `change`, which gets the overlay's file and how far on in it they are.
    /// Afterwards the blocks are its own.
    pub(super) fn change<T>(
        &self,
        base: &dyn Base,
        bytes: Range<u64>,
        change: impl FnOnce(&dyn File, u64) -> io::Result<T>,
    ) -> io::Result<T> {
        self.place_of(bytes.end)?;
        {
            let state = self.state.read();
            if state.owns(&bytes) && !state.limit_is_unrecorded {
                return change(self.file.as_ref(), self.data_start);
            }
        }
        let mut journal = self.journal.lock();
        self.record_limit(&mut journal)?;
        let missing = self.state.read().missing(blocks_of(&bytes));
        for run in &missing {
            // Blocks at the ends of the range that it does not cover keep what they had.
            let (first, last) = (run.start, run.end - 1);
            if first * BLOCK_BYTES < bytes.start || (first + 1) * BLOCK_BYTES > bytes.end {
                self.copy_in(base, &(first..first + 1))?;
            }
            if last != first && (last + 1) * BLOCK_BYTES > bytes.end {
                self.copy_in(base, &(last..last + 1))?;
            }
        }
        let changed = change(self.file.as_ref(), self.data_start)?;
        self.record(&mut journal, &missing)?;
        self.publish(&missing);
        Ok(changed)
    }

    /// Cuts or extends.
    pub(super) fn set_len(&self, base: &dyn Base, len: u64) -> io::Result<()> {
        let end_in_file = self.place_of(len)?;
        if len < self.len()? && !len.is_multiple_of(BLOCK_BYTES) {
            // What the block loses must not come back from the base.
            self.change(base, len..len + 1, |_, _| Ok(()))?;
        }
        let mut journal = self.journal.lock();
        self.record_limit(&mut journal)?;
        let is_cut = {
            let mut state = self.state.write();
            self.file.set_len(end_in_file)?;
            let end = len.div_ceil(BLOCK_BYTES);
            state.limit_is_unrecorded = end < state.limit;
            state.limit = state.limit.min(end);
            state.limit_is_unrecorded
        };
        if is_cut {
            self.record_limit(&mut journal)?;
            // Or a power cut could leave a longer file, with what was cut off.
            journal.sync(self.file.as_ref(), &self.header, false)?;
        }
        Ok(())
    }

    /// Changes the allocation of a range.
    pub(super) fn allocate(
        &self,
        base: &dyn Base,
        how: Allocate,
        offset: u64,
        len: u64,
    ) -> io::Result<()> {
        self.place_of(offset.saturating_add(len))?;
        let allocate = |file: &dyn File, by: u64| file.allocate(how, by + offset, len);
        match how {
            Allocate::Extend | Allocate::KeepSize => {
                let mut journal = self.journal.lock();
                self.record_limit(&mut journal)?;
                allocate(self.file.as_ref(), self.data_start)
            }
            Allocate::PunchHole | Allocate::ZeroRange | Allocate::ZeroKeepSize => {
                self.change(base, offset..offset.saturating_add(len), allocate)
            }
        }
    }

    pub(super) fn set_times(
        &self,
        accessed: Option<Timestamp>,
        modified: Option<Timestamp>,
    ) -> io::Result<()> {
        self.file.set_times(accessed, modified)
    }

    /// Makes everything durable; with `all` unset, but for the times.
    pub(crate) fn sync(&self, all: bool) -> io::Result<()> {
        self.journal.lock().sync(self.file.as_ref(), &self.header, all)
    }

    /// Of a Kept one: makes what it owns durable, whoever has left it so far.
    pub(crate) fn settle(&self) -> io::Result<()> {
        self.journal.lock().settle(self.file.as_ref(), &self.header)
    }

    /// Whether a power cut would take something, other than what the file's own sync covers.
    pub(crate) fn is_unsynced(&self) -> bool {
        self.journal.lock().is_unsynced()
    }

    /// Keeps a range of bytes of the base, which are about to change: durably.
    pub(crate) fn keep(&self, base: &dyn Base, bytes: &Range<u64>) -> io::Result<()> {
        if self.owns(bytes) {
            return Ok(());
        }
        let mut journal = self.journal.lock();
        let mut blocks = blocks_of(bytes);
        let first = match self.state.read().missing(blocks.clone()).first() {
            Some(run) => run.start,
            None => return Ok(()),
        };
        let wanted = blocks.end - first;
        let goes_on = first == journal.kept_to;
        let run =
            if goes_on { wanted.max((2 * journal.kept_run).min(KEPT_RUN_MAX)) } else { wanted };
        blocks = first..(first + run).min(self.header.base_blocks());
        let missing = self.state.read().missing(blocks.clone());
        self.take_in(&mut journal, &missing, |run| self.copy_in(base, run))?;
        (journal.kept_to, journal.kept_run) = (blocks.end, run);
        Ok(())
    }

    /// Keeps several ranges, at the cost of one.
    pub(crate) fn keep_ranges(&self, base: &dyn Base, ranges: &[Range<u64>]) -> io::Result<()> {
        let mut journal = self.journal.lock();
        let ours = self.state.read().clone();
        let blocks = ranges.iter().map(blocks_of);
        let missing: Vec<_> = blocks.flat_map(|blocks| ours.missing(blocks)).collect();
        self.take_in(&mut journal, &missing, |run| self.copy_in(base, run))
    }

    /// Makes blocks its own, durably, after `copy` has copied each run.
    fn take_in(
        &self,
        journal: &mut Journal,
        missing: &[Range<u64>],
        copy: impl FnMut(&Range<u64>) -> io::Result<()>,
    ) -> io::Result<()> {
        if missing.is_empty() {
            return Ok(());
        }
        missing.iter().try_for_each(copy)?;
        self.cover(missing)?;
        self.record(journal, missing)?;
        journal.sync(self.file.as_ref(), &self.header, false)?;
        self.publish(missing);
        Ok(())
    }

    /// Makes the file as long as these blocks reach, where they end with zeros that nobody has written.
    fn cover(&self, blocks: &[Range<u64>]) -> io::Result<()> {
        let end = blocks.iter().map(|run| bytes_of(run).end).max().unwrap_or(0);
        let end = self.place_of(end.min(self.header.base_len))?;
        if self.header.is_covering && self.file.stat()?.len < end {
            self.file.set_len(end)?;
        }
        Ok(())
    }

    /// Takes over, durably, the blocks of `later` that it has none of its own for. Both are of the kind that is kept,
    /// and what this one does not own is as `later` has it.
    pub(crate) fn adopt(&self, later: &Overlay) -> io::Result<()> {
        let mut journal = self.journal.lock();
        let blocks = self.header.base_blocks().min(later.header.base_blocks());
        let theirs = later.state.read().own.runs(blocks);
        let ours = self.state.read().clone();
        let missing: Vec<_> = theirs.into_iter().flat_map(|run| ours.missing(run)).collect();
        let (from, to) = (later.shifted(), self.shifted());
        self.take_in(&mut journal, &missing, |run| copy_range(&from, &to, bytes_of(run)))
    }

    /// The ranges of bytes that [`Overlay::apply`] changes in an object of `len` bytes.
    pub(crate) fn changes(&self, len: u64) -> io::Result<Vec<Range<u64>>> {
        let (state, own_len) = (self.state.read().clone(), self.len()?);
        let mut ranges: Vec<_> = state.own.runs(state.limit).iter().map(bytes_of).collect();
        ranges.push(state.limit * BLOCK_BYTES..len.max(own_len));
        ranges.retain(|range| range.start < range.end);
        Ok(ranges)
    }

    /// Takes room in `object` for what [`Overlay::apply`] will write, where the storage below can do so.
    pub(crate) fn reserve(&self, object: &dyn File) -> io::Result<()> {
        let (source, len) = (self.shifted(), self.len()?);
        for range in self.changes(len)? {
            for data in data_in(&source, range.start..range.end.min(len))? {
                let count = data.end - data.start;
                match object.allocate(Allocate::KeepSize, data.start, count) {
                    Err(error) if error.raw_os_error() == Some(EOPNOTSUPP) => return Ok(()),
                    reserved => reserved?,
                }
            }
        }
        Ok(())
    }

    /// Makes `object`, which is the base, what the overlay over it is: writes the blocks that are its own, sets length
    /// and time. Doing it again changes nothing; nothing is durable yet.
    pub(crate) fn apply(&self, object: &dyn File) -> io::Result<()> {
        let state = self.state.read().clone();
        let (len, target) = (self.len()?, Shifted { file: object, by: 0 });
        let visible = state.limit * BLOCK_BYTES;
        if visible < object.stat()?.len {
            object.set_len(visible)?;
        }
        for run in state.own.runs(state.limit) {
            let bytes = bytes_of(&run);
            copy_range(&self.shifted(), &target, bytes.start..bytes.end.min(len))?;
        }
        if visible < len {
            copy_range(&self.shifted(), &target, visible..len)?;
        }
        object.set_len(len)?;
        object.set_times(None, Some(self.file.stat()?.modified))
    }
}
