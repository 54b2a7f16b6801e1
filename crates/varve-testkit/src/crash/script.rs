//! The script of a run: a seeded sequence of steps, and the states of the model after each.
//!
//! 1. The steps are made from the seed before any file system runs them.
//! 2. The model runs them and gives the [`History`].
//!
//! Invariant: for every moment of the run it is known what must be found after a crash.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use varve_env::sim::SimEnv;
use varve_types::InodeId;
use varve_vfs::{AllocateMode, Caller, FsResult, OpenFlags};

use super::history::History;
use crate::fsops::{Answer, Generator, Op, Outcome, Session, Slot, TreePath, Universe};
use crate::model::ModelFs;
use crate::rng::{Rng, mix};

/// Slots of open files, as the generator of operations has them.
const SLOTS: u64 = 4;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// An operation.
    Op(Op),
    /// An operation that finds no room, and so changes nothing.
    Refused(Op),
    /// All handles end, the file system is closed and opened again.
    Remount,
    /// The process dies and the next one opens the file system.
    Kill,
}

/// Which files are files of the storage below from their first byte on, and stay so if they are small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewLarge {
    /// None.
    Never,
    /// Once so many files were large when their last writer let go of them, any that is opened for writing while it is empty may be.
    After(usize),
    /// Those that are opened for writing.
    Always,
}

/// Which script to make.
#[derive(Clone, Debug)]
pub struct ScriptOptions {
    /// Steps in all.
    pub steps: usize,
    /// Files larger than this are files of the storage below, in bytes.
    pub large_file_threshold_bytes: u64,
    /// Which files begin large.
    pub new_large: NewLarge,
    /// Whether there are remounts and kills.
    pub restarts: bool,
    /// How many percent of the operations clone something.
    pub clones_percent: u64,
    /// How many percent copy from file to file.
    pub copies_percent: u64,
}

/// A sequence of steps and what must be found of it.
#[derive(Debug)]
pub struct Script {
    /// What it was made from.
    pub seed: u64,
    /// The steps.
    pub steps: Vec<Step>,
    /// What the model answered to each operation.
    pub outcomes: Vec<Option<Outcome>>,
    /// What they made of the model.
    pub history: History,
}

/// What an open slot of the model may do.
#[derive(Clone, Copy, Debug)]
struct Open {
    writes: bool,
    appends: bool,
    syncs: bool,
}

/// What a disk that fills up makes of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fits {
    /// It does what it does elsewhere.
    Whole,
    /// Of the bytes to write these are written.
    Part(usize),
    /// It finds no room.
    Refused,
}

/// Makes an operation where there may be no room for it.
pub type Gate<'a> = dyn FnMut(&Op) -> Fits + 'a;

/// Makes scripts.
struct Maker<'a> {
    rng: Rng,
    generator: Generator,
    model: ModelFs,
    session: Session,
    open: HashMap<Slot, Open>,
    threshold: u64,
    new_large: NewLarge,
    /// Files that were large when their last writer let go of them.
    became_large: usize,
    script: Script,
    gate: Option<&'a mut Gate<'a>>,
}

impl Script {
    /// Returns the script of `seed`.
    pub fn new(seed: u64, options: &ScriptOptions) -> FsResult<Script> {
        Script::gated(seed, options, None)
    }

    /// The same for a disk on which there is no room for all of it, which `gate` tells: it makes each operation, in its turn.
    pub fn on_full_disk<'a>(
        seed: u64,
        options: &ScriptOptions,
        gate: &'a mut Gate<'a>,
    ) -> FsResult<Script> {
        Script::gated(seed, options, Some(gate))
    }

    /// Whether some operation finds no room. The rows that a large file's last writer leaves may have found none either.
    pub fn has_refusals(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Refused(_)))
    }

    fn gated<'a>(
        seed: u64,
        options: &ScriptOptions,
        gate: Option<&'a mut Gate<'a>>,
    ) -> FsResult<Script> {
        let mut maker = Maker { gate, ..Maker::new(seed, options)? };
        while maker.script.steps.len() < options.steps {
            maker.step(options.restarts)?;
        }
        Ok(maker.script)
    }
}

impl<'a> Maker<'a> {
    fn new(seed: u64, options: &ScriptOptions) -> FsResult<Maker<'a>> {
        let &ScriptOptions { large_file_threshold_bytes: threshold, .. } = options;
        let &ScriptOptions { new_large, clones_percent, copies_percent, .. } = options;
        let large = [threshold / 2, threshold - 1, threshold + 1, 2 * threshold];
        let sizes = [&[0, 1, 500, 513, 4096], &large[..]].concat();
        let universe = Universe { sizes, clones_percent, copies_percent, ..Universe::default() };
        let model = ModelFs::new(SimEnv::new(seed));
        let history = History::new(&model)?;
        Ok(Maker {
            rng: Rng::new(mix(seed)),
            generator: Generator::new(seed, universe),
            model,
            session: Session::default(),
            open: HashMap::new(),
            threshold,
            new_large,
            became_large: 0,
            script: Script { seed, steps: Vec::new(), outcomes: Vec::new(), history },
            gate: None,
        })
    }

    fn step(&mut self, restarts: bool) -> FsResult<()> {
        match self.rng.below(100) {
            0..3 => self.op(Op::Sync),
            3..9 => {
                let (slot, data_only) = (self.rng.below(SLOTS) as Slot, self.rng.chance(50));
                self.op(Op::Fsync { slot, data_only })
            }
            9..11 => self.op(Op::FsyncDir { path: Default::default() }),
            11 if restarts => self.restart(Step::Remount),
            12 if restarts => self.restart(Step::Kill),
            13..33 => {
                let op = self.write();
                self.op(op)
            }
            33..39 => {
                let op = self.create();
                self.op(op)
            }
            _ => {
                let op = self.generator.next_op();
                if changes_nothing(&op) { Ok(()) } else { self.op(op) }
            }
        }
    }

    /// A write of mostly small pieces to whatever is open.
    fn write(&mut self) -> Op {
        let offset = match self.rng.below(3) {
            0 => 0,
            1 => self.rng.below(4096),
            _ => self.rng.below(self.threshold + 4096),
        };
        let len = if self.rng.chance(10) { 20_000 } else { 3000 };
        Op::Write {
            slot: self.rng.below(SLOTS) as Slot,
            offset,
            len: self.rng.between(1, len) as usize,
            fill: self.rng.next_u64(),
            kill_set_id: false,
        }
    }

    /// A file in the root, so that handles are open and names that exist are found.
    fn create(&mut self) -> Op {
        let name = [b'a' + self.rng.below(5) as u8];
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let slot = self.rng.below(SLOTS) as Slot;
        let path = TreePath::default().join(&name);
        Op::Create { caller: Caller::ROOT, path, perm: 0o644, flags, slot }
    }

    /// Ends all handles. After the death of the process the rows of large files stay as they are.
    fn restart(&mut self, step: Step) -> FsResult<()> {
        let at = self.script.steps.len() + 1;
        for slot in self.open.clone().into_keys() {
            if let Some(ino) = self.session.inode(slot)
                && step == Step::Remount
            {
                self.script.history.claim(ino, at);
            }
        }
        self.session.release_all(&self.model)?;
        self.open.clear();
        if step == Step::Remount {
            self.script.history.sync_all(at);
        }
        self.script.steps.push(step);
        self.script.outcomes.push(None);
        self.script.history.push(&self.model, &[])
    }

    fn op(&mut self, op: Op) -> FsResult<()> {
        let at = self.script.steps.len() + 1;
        let before = op.slot().and_then(|slot| self.session.inode(slot));
        let fits = self.gate.as_mut().map_or(Fits::Whole, |gate| gate(&op));
        if fits == Fits::Refused {
            // Before it was refused the bytes may have moved to where there was room for them, but not for more.
            if let Some((ino, _)) =
                self.end_of(&op, before).filter(|(_, ends)| *ends.end() > self.threshold)
            {
                self.script.history.note_large(ino, at, at);
            }
            self.script.steps.push(Step::Refused(op));
            self.script.outcomes.push(None);
            return self.script.history.push(&self.model, &self.session.inodes());
        }
        let asked = op.clone();
        // Where there was room for a part alone, the bytes may have moved as for the whole.
        let reach = self.end_of(&asked, before).map_or(0, |(_, ends)| *ends.end());
        let op = fitted(op, fits);
        let end = self.end_of(&op, before);
        let is_changed = end.is_some();
        let outcome = self.session.apply(&self.model, &op);
        let done = outcome.answer.as_ref().is_ok_and(|answer| *answer != Answer::Skipped);
        self.script.history.push(&self.model, &self.session.inodes())?;
        if done {
            let own = self.owns_bytes(&op);
            let history = &mut self.script.history;
            own.iter().for_each(|(ino, is_emptied)| history.note_own_bytes(*ino, at, *is_emptied));
            if let Some((ino, ends)) = end {
                let large_from = match self.new_large {
                    NewLarge::Always => Some(0),
                    _ => Some(at).filter(|_| reach > self.threshold),
                };
                history.note_end(ino, at, ends, large_from);
            }
            self.generator.observe(&op);
            self.note_done(&op, before, at, is_changed);
        }
        self.script.steps.push(Step::Op(asked));
        self.script.outcomes.push(Some(outcome));
        Ok(())
    }

    /// Returns the inode whose bytes `op` changes so that they reach to one of the given places, the last once all of it is done, and no
    /// less if nothing else of the file survives. A copy is made in pieces where its source has holes.
    fn end_of(&self, op: &Op, slot: Option<InodeId>) -> Option<(InodeId, RangeInclusive<u64>)> {
        let all = |ino, end| (ino, end..=end);
        let history = &self.script.history;
        match op {
            Op::Write { slot: written, offset, len, .. } => {
                let ino = slot?;
                let appends = self.open.get(written).is_some_and(|open| open.appends);
                let start = if appends { history.newest_len(ino) } else { *offset };
                Some(all(ino, start + *len as u64)).filter(|_| *len > 0)
            }
            Op::CopyRange { from, from_offset, offset, len, .. } => {
                let left =
                    history.newest_len(self.session.inode(*from)?).saturating_sub(*from_offset);
                let len = left.min(*len);
                Some((slot?, offset + 1..=offset + len)).filter(|_| len > 0)
            }
            Op::Fallocate {
                mode: AllocateMode::Extend | AllocateMode::ZeroRange,
                offset,
                len,
                ..
            } => Some(all(slot?, offset + len)),
            Op::SlotSetAttr { set, .. } => Some(all(slot?, set.size?)),
            Op::SetAttr { path, set, .. } => Some(all(history.newest_inode(path)?, set.size?)),
            _ => None,
        }
    }

    /// Returns the inode that has its own bytes after `op`, and whether those are none.
    fn owns_bytes(&self, op: &Op) -> Option<(InodeId, bool)> {
        match op {
            Op::Open { flags, slot, .. } | Op::Create { flags, slot, .. }
                if flags.write || flags.truncate =>
            {
                Some((self.session.inode(*slot)?, flags.truncate))
            }
            Op::SetAttr { path, set, .. } => {
                Some((self.script.history.newest_inode(path)?, set.size? == 0))
            }
            Op::SlotSetAttr { slot, set, .. } => Some((self.session.inode(*slot)?, set.size? == 0)),
            _ => None,
        }
    }

    /// From which step on `ino`, which the step `at` opened for writing, counts as large although its bytes need not be many.
    fn begins_large_from(&self, ino: InodeId, at: usize) -> Option<usize> {
        match self.new_large {
            NewLarge::Never => None,
            NewLarge::After(count) => {
                let may = self.became_large >= count && self.script.history.newest_len(ino) == 0;
                may.then_some(at - 1)
            }
            // Without a byte, too, the storage below has its times.
            NewLarge::Always => Some(0),
        }
    }

    fn note_done(&mut self, op: &Op, before: Option<InodeId>, at: usize, is_changed: bool) {
        let history = &mut self.script.history;
        match op {
            Op::Clone { from, to } => history.note_clone(from, to),
            Op::Sync => history.sync_all(at),
            Op::FsyncDir { .. } => history.sync_rows(at),
            Op::Fsync { .. } => {
                before.iter().for_each(|ino| history.sync_file(*ino, at));
            }
            Op::Write { slot, .. } | Op::CopyRange { slot, .. } if is_changed => {
                let syncs = self.open.get(slot).is_some_and(|open| open.syncs);
                if let Some(ino) = before.filter(|_| syncs) {
                    history.sync_file(ino, at);
                }
            }
            Op::Create { flags, slot, .. }
            | Op::Open { flags, slot, .. }
            | Op::Tmpfile { flags, slot, .. } => {
                if let Some(ino) = self.session.inode(*slot).filter(|_| flags.write)
                    && let Some(from) = self.begins_large_from(ino, at)
                {
                    self.script.history.note_large(ino, at, from);
                }
                let open = Open { writes: flags.write, appends: flags.append, syncs: flags.sync };
                let old = self.open.insert(*slot, open);
                self.released(old, before, at);
            }
            Op::Release { slot } => {
                let old = self.open.remove(slot);
                self.released(old, before, at);
            }
            _ => {}
        }
    }

    /// Notes that a handle ended. The last one that wrote leaves a row that claims the bytes.
    fn released(&mut self, open: Option<Open>, ino: Option<InodeId>, at: usize) {
        let (Some(Open { writes: true, .. }), Some(ino)) = (open, ino) else { return };
        let session = &self.session;
        let same = |slot: &Slot| session.inode(*slot) == Some(ino);
        if !self.open.iter().any(|(slot, open)| open.writes && same(slot)) {
            self.script.history.claim(ino, at);
            self.became_large += usize::from(self.script.history.newest_len(ino) > self.threshold);
        }
    }
}

/// Returns what is left of `op` on a disk that has room for a part.
fn fitted(op: Op, fits: Fits) -> Op {
    match (op, fits) {
        (Op::Write { slot, offset, fill, kill_set_id, .. }, Fits::Part(len)) => {
            Op::Write { slot, offset, len, fill, kill_set_id }
        }
        (Op::CopyRange { from, from_offset, slot, offset, .. }, Fits::Part(len)) => {
            Op::CopyRange { from, from_offset, slot, offset, len: len as u64 }
        }
        (op, _) => op,
    }
}

/// Returns whether `op` leaves no trace that could be found after a crash.
fn changes_nothing(op: &Op) -> bool {
    matches!(
        op,
        Op::Getattr { .. }
            | Op::Readlink { .. }
            | Op::Access { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::GetFlags { .. }
            | Op::SlotGetattr { .. }
            | Op::Seek { .. }
            | Op::Readdir { .. }
    )
}

#[cfg(test)]
mod tests {
    use varve_vfs::SetAttr;

    use super::super::clock::Clock;
    use super::super::history::{Found, Reached};
    use super::*;

    const THRESHOLD: u64 = 16 << 10;

    fn write(offset: u64, len: usize) -> Op {
        Op::Write { slot: 0, offset, len, fill: offset, kill_set_id: false }
    }

    fn create(append: bool) -> Op {
        let flags = OpenFlags { read: true, write: true, append, ..OpenFlags::default() };
        let path = TreePath::default().join(b"f");
        Op::Create { caller: Caller::ROOT, path, perm: 0o644, flags, slot: 0 }
    }

    fn history(ops: &[Op]) -> History {
        let options = ScriptOptions {
            steps: 0,
            large_file_threshold_bytes: THRESHOLD,
            new_large: NewLarge::Never,
            restarts: false,
            clones_percent: 0,
            copies_percent: 0,
        };
        let mut maker = Maker::new(1, &options).unwrap();
        ops.iter().for_each(|op| maker.op(op.clone()).unwrap());
        maker.script.history
    }

    /// What is found where each of `steps` makes these operations, and then more steps of `reached` are said to have been.
    fn check(history: &History, steps: &[&[Op]], reached: Reached) -> Result<usize, String> {
        let (disk, mut session) = (ModelFs::new(SimEnv::new(2)), Session::default());
        let mut clock = Clock::begin(disk.now());
        for (at, ops) in (1..).zip(steps) {
            for op in *ops {
                assert!(session.apply(&disk, op).answer.is_ok(), "{op:?}");
                // Its clock is another than the model's.
                disk.now();
            }
            if at <= reached.steps {
                clock.step_ended(disk.now());
            }
        }
        history.check(&Found::read(&disk).unwrap(), &clock, reached)
    }

    /// What is found of the steps `ops` if the file has `len` bytes, and whether a power cut may leave that.
    fn may_be_found(ops: &[Op], len: u64) -> Result<usize, String> {
        let set = SetAttr { size: Some(len), ..SetAttr::default() };
        let cut = Op::SlotSetAttr { caller: Caller::ROOT, slot: 0, set };
        let last = [ops[ops.len() - 1].clone(), cut];
        let mut steps: Vec<&[Op]> = ops.chunks(1).collect();
        steps[ops.len() - 1] = &last;
        let reached = Reached { steps: ops.len(), ..Reached::default() };
        check(&history(ops), &steps, reached)
    }

    /// The same bytes are written again, so that two states differ by their times alone.
    #[test]
    fn times_are_those_of_their_steps() {
        for len in [3000, 20_000] {
            let ops = [create(false), write(0, len), write(0, len)];
            let (history, [create, first, again]) =
                (history(&ops), &ops.each_ref().map(std::slice::from_ref));
            let killed = Reached { steps: 3, killed: true, ..Reached::default() };
            let cut = Reached { killed: false, ..killed };
            for reached in [killed, cut] {
                assert_eq!(check(&history, &[create, first, again], reached), Ok(3));
                check(&history, &[create, first, &[], again], reached).unwrap_err();
            }
            assert_eq!(check(&history, &[create, first, &[]], cut), Ok(2));
            let lost = check(&history, &[create, first, &[]], killed).unwrap_err();
            assert!(lost.contains("times"), "{lost}");
        }
    }

    /// A power cut kept the length of a second write, within a large file, and not that of the first. The
    /// history took every write for an append, so it refused that length and allowed one that never was.
    #[test]
    fn the_length_of_any_write_may_survive_alone() {
        let ops = [create(false), write(0, 20_000), write(100, 320)];
        may_be_found(&ops, 420).unwrap();
        may_be_found(&ops, 20_000).unwrap();
        may_be_found(&ops, 20_320).unwrap_err();
        may_be_found(&ops, 421).unwrap_err();
    }

    #[test]
    fn an_append_ends_beyond_what_was_there() {
        let ops = [create(true), write(0, 20_000), write(100, 320)];
        may_be_found(&ops, 20_320).unwrap();
        may_be_found(&ops, 420).unwrap_err();
    }

    #[test]
    fn only_what_grows_a_file_makes_it_large() {
        let punch = |mode| Op::Fallocate { slot: 0, mode, offset: 0, len: 2 * THRESHOLD };
        let small = [create(false), write(0, 10_000), write(0, 9000)];
        may_be_found(&small, 19_000).unwrap_err();
        for mode in [AllocateMode::PunchHole, AllocateMode::KeepSize, AllocateMode::ZeroKeepSize] {
            let ops = [create(false), write(0, 10_000), punch(mode)];
            may_be_found(&ops, 10_000).unwrap();
            may_be_found(&ops, 2 * THRESHOLD).unwrap_err();
        }
    }

    /// A clone of a large file that was cut to less than makes a file large was held to be small after it was opened for writing, so that
    /// the times of a write to it were refused.
    #[test]
    fn a_clone_of_a_large_file_is_large_from_the_open_for_writing_on() {
        let [f, c, g] = [b"f", b"c", b"g"].map(|name| TreePath::default().join(name));
        let (caller, size) = (Caller::ROOT, Some(9000));
        let cut =
            Op::SetAttr { caller, path: f.clone(), set: SetAttr { size, ..SetAttr::default() } };
        let clone = Op::Clone { from: f, to: c.clone() };
        let later = Op::Mkdir { caller, path: g, perm: 0o755 };
        let last_write_alone = |len, truncate| {
            let flags = OpenFlags { read: true, write: true, truncate, ..OpenFlags::default() };
            let open = Op::Open { path: c.clone(), flags, slot: 0 };
            let (first, last) = (write(0, len), write(0, 100));
            let ops = [create(false), first, cut.clone(), clone.clone(), open, later.clone(), last];
            let mut steps: Vec<&[Op]> = ops.chunks(1).collect();
            steps[5] = &[];
            check(&history(&ops), &steps, Reached { steps: 7, ..Reached::default() })
        };
        assert_eq!(last_write_alone(20_000, false), Ok(5));
        // Of what is small all rows are lost together.
        last_write_alone(10_000, false).unwrap_err();
        last_write_alone(20_000, true).unwrap_err();
    }
}
