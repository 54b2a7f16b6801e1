//! What may be found after a crash, and what must be found.
//!
//! Invariants: the rows of a file system are one history. A crash leaves its state after some step, from the last
//! synced step to the step under way. The bytes of large files are not part of that history, because the kernel
//! writes them directly to the storage below. For the large files of a state holds:
//!
//! - The *base* of a file is its content at the last step that synced it, or at the last step up to the found state
//!   whose row claims bytes (the move out of the rows, the release by the last writer).
//! - Each byte is one that the file had at that offset in its base or at any step since. It may be zero if the base
//!   had no byte there, or if the file was shorter in between.
//! - The length is one that the file had since its base, or the end of a write since; the write under way and a
//!   copy from another file, which is made in pieces, may end anywhere before their end.
//!
//! After the death of the process alone the base is the last step that ended.
//!
//! A clone of a large file has that file's bytes, which never change, and its row is right, until a program opens it
//! for writing or sets its length. From then on it is a large file, however short the file was before.
//!
//! A time that a call has set is found unchanged. All other times come from a clock, and the run and the model have
//! different clocks. Two times are equal if they are of the same step, which a [`Clock`] knows. The times of a large
//! file under writing are not in its row but on the storage below, which may have the times of a later step than the
//! found rows. So its mtime and ctime are among the ones that it had in the found state or since. Two calls leave
//! more:
//!
//! - A call that sets the mtime notes it in the row before the storage below has it.
//! - The storage may have a set time although a power cut took the row. That time hides the time of the last write,
//!   and the ctime is the one of the last surviving row.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use varve_types::{InodeId, Timestamp};
use varve_vfs::{FileType, FsResult, Vfs};

use super::clock::Clock;
use crate::fsops::{NodeDump, Times, TreeDump, TreePath, read_all, tree_but, tree_with};
use crate::model::ModelFs;

/// Bytes compared at a time.
const CHUNK_BYTES: usize = 512;

/// mtime, ctime and birth.
type NodeTimes = [Timestamp; 3];

/// One state of the tree.
#[derive(Clone, Debug)]
struct State {
    tree: Arc<TreeDump>,
    inodes: Arc<BTreeMap<TreePath, InodeId>>,
}

/// What happened to the bytes of one inode.
#[derive(Debug, Default)]
struct Bytes {
    /// What it held, from which step on.
    versions: Vec<(usize, Arc<Vec<u8>>)>,
    /// Steps after which its bytes are durable.
    synced: Vec<usize>,
    /// Steps whose rows claim its bytes, and the step whose bytes they are.
    claimed: Vec<(usize, usize)>,
    /// Where writes end, or the parts of them that survive, with their steps.
    ends: Vec<(usize, RangeInclusive<u64>)>,
    /// The step from which on it is large.
    large_from: Option<usize>,
    /// It is a clone that still has the bytes of a large file: large itself when it gets its own, however long it is then.
    borrows_large: bool,
    /// Its times, from which step on.
    times: Vec<(usize, NodeTimes)>,
}

/// The states of a run, from before its first step on.
#[derive(Debug)]
pub struct History {
    states: Vec<State>,
    bytes: HashMap<InodeId, Bytes>,
    /// Steps after which all rows are durable.
    synced: Vec<usize>,
    /// The model's clock.
    clock: Clock,
}

/// How far a run had come when it stopped, and what may be found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// Steps that had ended.
    pub steps: usize,
    /// Only the process died.
    pub killed: bool,
    /// Old bytes of other files may stand where nothing was ever synced.
    pub stale: bool,
    /// The storage alone lost its power, and nothing may tell that what was not synced of large files is lost.
    pub unplugged: bool,
    /// Something failed before: the row of a large file may not claim what its last writer left.
    pub failed: bool,
}

/// A tree and the bytes of its regular files.
#[derive(Debug)]
pub struct Found {
    /// The tree.
    pub tree: TreeDump,
    files: BTreeMap<TreePath, Vec<u8>>,
    /// Regular files that cannot be read, which the tree has not.
    pub lost: BTreeSet<TreePath>,
}

/// What was found, and the clock of the run.
struct Dated<'a> {
    found: &'a Found,
    clock: &'a Clock,
}

impl Found {
    /// Reads all of `fs`.
    pub fn read(fs: &dyn Vfs) -> FsResult<Found> {
        let mut files = BTreeMap::new();
        let tree = tree_with(fs, &mut |path, _, bytes| drop(files.insert(path.clone(), bytes)))?;
        Ok(Found { tree, files, lost: BTreeSet::new() })
    }

    /// The same where regular files may be lost.
    pub fn read_what_is_left(fs: &dyn Vfs) -> FsResult<Found> {
        let (mut files, mut lost) = (BTreeMap::new(), BTreeSet::new());
        let mut visit = |path: &TreePath, _, bytes| drop(files.insert(path.clone(), bytes));
        let tree = tree_but(fs, &mut visit, &mut |path, _| {
            lost.insert(path.clone());
            Ok(())
        })?;
        Ok(Found { tree, files, lost })
    }
}

impl History {
    pub(super) fn new(model: &ModelFs) -> FsResult<History> {
        let (states, bytes, clock) = (Vec::new(), HashMap::new(), Clock::default());
        let mut history = History { states, bytes, synced: vec![0], clock };
        history.push(model, &[])?;
        Ok(history)
    }

    /// Notes the state after one more step; files without a name are those `open`.
    pub(super) fn push(&mut self, model: &ModelFs, open: &[InodeId]) -> FsResult<()> {
        let step = self.states.len();
        let mut inodes = BTreeMap::new();
        let bytes = &mut self.bytes;
        let mut note = |ino: InodeId, content: Vec<u8>| {
            let known = bytes.entry(ino).or_default();
            if known.versions.last().is_none_or(|(_, last)| **last != content) {
                known.versions.push((step, Arc::new(content)));
            }
        };
        let tree = tree_with(model, &mut |path, ino, content| {
            inodes.insert(path.clone(), ino);
            note(ino, content);
        })?;
        for ino in open {
            if model.getattr(*ino).is_ok_and(|attr| attr.nlink == 0) {
                note(*ino, read_all(model, *ino)?);
            }
        }
        for ino in inodes.values().chain(open) {
            let Ok(attr) = model.getattr(*ino) else { continue };
            let (known, times) =
                (bytes.entry(*ino).or_default(), [attr.mtime, attr.ctime, attr.btime]);
            if known.times.last().is_none_or(|(_, last)| *last != times) {
                known.times.push((step, times));
            }
        }
        self.clock.step_ended(model.now());
        self.states.push(State { tree: Arc::new(tree), inodes: Arc::new(inodes) });
        Ok(())
    }

    pub(super) fn newest_len(&self, ino: InodeId) -> u64 {
        let newest = self.bytes.get(&ino).and_then(|bytes| bytes.versions.last());
        newest.map_or(0, |(_, content)| content.len() as u64)
    }

    pub(super) fn newest_inode(&self, path: &TreePath) -> Option<InodeId> {
        self.states.last()?.inodes.get(path).copied()
    }

    /// The step `at` writes up to the last of `ends`, or sets that length, and may leave each of them; the file is large from the step `large_from` on.
    pub(super) fn note_end(
        &mut self,
        ino: InodeId,
        at: usize,
        ends: RangeInclusive<u64>,
        large_from: Option<usize>,
    ) {
        self.bytes.entry(ino).or_default().ends.push((at, ends));
        if let Some(from) = large_from {
            self.note_large(ino, at, from);
        }
    }

    /// At the step `at` the file is large, and has been since the step `from`.
    pub(super) fn note_large(&mut self, ino: InodeId, at: usize, from: usize) {
        let bytes = self.bytes.entry(ino).or_default();
        if bytes.large_from.is_none() {
            bytes.large_from = Some(from);
            bytes.claimed.push((at, at - 1));
        }
    }

    /// The newest step made `to` a clone of what `from` was before it.
    pub(super) fn note_clone(&mut self, from: &TreePath, to: &TreePath) {
        let [.., before, after] = &self.states[..] else { return };
        for (path, ino) in after.inodes.iter().filter(|(path, _)| path.is_within(to)) {
            let original = [&from.0[..], &path.0[to.0.len()..]].concat();
            let original = before.inodes.get(&TreePath(original));
            let is_large = |bytes: &Bytes| bytes.large_from.is_some() || bytes.borrows_large;
            if original.and_then(|original| self.bytes.get(original)).is_some_and(is_large) {
                self.bytes.entry(*ino).or_default().borrows_large = true;
            }
        }
    }

    /// The step `at` gives the file bytes of its own, if it is a clone that has none: those that it borrows, or none at all.
    pub(super) fn note_own_bytes(&mut self, ino: InodeId, at: usize, is_emptied: bool) {
        let Some(bytes) = self.bytes.get_mut(&ino) else { return };
        if std::mem::take(&mut bytes.borrows_large) && !is_emptied {
            self.note_large(ino, at, at);
        }
    }

    /// The row that the step `at` leaves claims the bytes of `ino`.
    pub(super) fn claim(&mut self, ino: InodeId, at: usize) {
        self.bytes.entry(ino).or_default().claimed.push((at, at));
    }

    /// The step `at` makes all rows durable, and with them the bytes they claim.
    pub(super) fn sync_rows(&mut self, at: usize) {
        self.synced.push(at);
    }

    /// The step `at` makes one file and all rows durable.
    pub(super) fn sync_file(&mut self, ino: InodeId, at: usize) {
        self.bytes.entry(ino).or_default().synced.push(at);
        self.sync_rows(at);
    }

    /// The step `at` makes everything durable.
    pub(super) fn sync_all(&mut self, at: usize) {
        self.bytes.values_mut().for_each(|bytes| bytes.synced.push(at));
        self.sync_rows(at);
    }

    /// Returns the first state that may be found.
    pub fn least(&self, reached: Reached) -> usize {
        if reached.killed { reached.steps } else { self.synced_rows(reached) }
    }

    /// Returns the last state whose rows are durable.
    fn synced_rows(&self, reached: Reached) -> usize {
        last_up_to(self.synced.iter().copied(), reached.steps).unwrap_or(0)
    }

    /// Checks what was found, and returns which state it is. `clock` is that of the run, up to what was reached.
    pub fn check(&self, found: &Found, clock: &Clock, reached: Reached) -> Result<usize, String> {
        let found = Dated { found, clock };
        let least = self.least(reached);
        let most = (reached.steps + 1).min(self.states.len() - 1);
        let mut closest: Option<(usize, Vec<String>)> = None;
        for at in (least..=most).rev() {
            let wrong = self.differences(at, &found, reached);
            if wrong.is_empty() {
                return Ok(at);
            }
            if closest.as_ref().is_none_or(|(_, lines)| wrong.len() < lines.len()) {
                closest = Some((at, wrong));
            }
        }
        let (at, lines) = closest.unwrap_or_default();
        let earlier = (0..least).rev().find(|at| self.differences(*at, &found, reached).is_empty());
        let earlier = earlier.map_or(String::new(), |at| format!("; it is the earlier state {at}"));
        let lines = lines.join("\n  ");
        Err(format!("none of the states {least} to {most}{earlier}; unlike state {at}:\n  {lines}"))
    }

    /// Returns what is different from the state `at`.
    fn differences(&self, at: usize, dated: &Dated<'_>, reached: Reached) -> Vec<String> {
        let (state, found) = (&self.states[at], dated.found);
        let mut lines = Vec::new();
        for (path, node) in &state.tree.0 {
            let ino = state.inodes.get(path);
            let large = ino.and_then(|ino| self.bytes.get(ino)).filter(|bytes| bytes.is_large(at));
            let Some(other) = found.tree.0.get(path) else {
                let durable = self.synced_rows(reached);
                let may_be_lost = large.is_some_and(|bytes| !bytes.is_durable(durable, reached));
                if !(reached.unplugged && found.lost.contains(path) && may_be_lost) {
                    lines.push(format!("{path} is missing"));
                }
                continue;
            };
            if reached.unplugged
                && let Some(bytes) = large
                && same_but_bytes(node, other)
            {
                let content = found.files.get(path).map(Vec::as_slice).unwrap_or_default();
                let checked = bytes.check_unplugged(self.synced_rows(reached), content, reached);
                lines.extend(checked.err().map(|error| format!("{path}: {error}")));
                continue;
            }
            match large {
                Some(bytes) if same_but_bytes(node, other) => {
                    let content = found.files.get(path).map(Vec::as_slice).unwrap_or_default();
                    let checked = bytes.check(at, content, reached).and_then(|()| {
                        self.check_large_times(bytes, at, &other.times, dated, reached)
                    });
                    if let Err(error) = checked {
                        lines.push(format!("{path}: {error}"));
                    }
                }
                None if node.equals(other, Times::Ignore) => {
                    let same = |(time, other)| self.same_time(time, other, dated);
                    if !node.times.into_iter().zip(other.times).all(same) {
                        let (times, others) = (&node.times, &other.times);
                        let steps = (self.clock.steps_of(times), dated.clock.steps_of(others));
                        lines.push(format!("{path} has the times {others:?}; expected {times:?}; of steps {steps:?}"));
                    }
                }
                _ => lines.push(format!("{path} is {other:?}; expected {node:?}")),
            }
        }
        for path in found.tree.0.keys().filter(|path| !state.tree.0.contains_key(*path)) {
            lines.push(format!("{path} is there and should not be"));
        }
        lines
    }

    /// Returns whether the model's `time` and the `found` one are the same.
    fn same_time(&self, time: Timestamp, found: Timestamp, dated: &Dated<'_>) -> bool {
        let step = self.clock.step_of(time).filter(|step| *step < self.states.len());
        time == found || step.is_some_and(|step| dated.clock.step_of(found) == Some(step))
    }

    /// Checks the times of a large file in the state `at`.
    fn check_large_times(
        &self,
        bytes: &Bytes,
        at: usize,
        [mtime, ctime, birth]: &NodeTimes,
        dated: &Dated<'_>,
        reached: Reached,
    ) -> Result<(), String> {
        let (under_way, times) = (reached.steps + 1, &bytes.times);
        // The file has the mtime of before until the step under way ends.
        let first = last_up_to(times.iter().map(|(from, _)| *from), at.min(reached.steps));
        let first = first.unwrap_or(0);
        let had = |found: Timestamp, from: usize, kinds: &[usize]| {
            let since = times.iter().filter(|(step, _)| (from..=under_way).contains(step));
            let mut had = since.flat_map(|(_, times)| kinds.iter().map(|kind| times[*kind]));
            had.any(|time| self.same_time(time, found, dated))
        };
        let is_hidden = !reached.killed && had(*mtime, at + 1, &[0]);
        let changed_since = if is_hidden { 0 } else { first };
        // A write changes the storage's mtime, and the row's ctime follows later.
        if had(*mtime, first, &[0]) && had(*ctime, changed_since, &[0, 1]) && had(*birth, 0, &[2]) {
            return Ok(());
        }
        let steps = dated.clock.steps_of(&[*mtime, *ctime, *birth]);
        Err(format!(
            "it has the times {:?} of steps {steps:?}; the model has {times:?}, {first} being the first step that counts",
            [mtime, ctime, birth]
        ))
    }
}

/// Returns whether everything but size and bytes is the same, and the file has the bytes its size says.
fn same_but_bytes(expected: &NodeDump, found: &NodeDump) -> bool {
    let alike = NodeDump {
        size: expected.size,
        content_hash: expected.content_hash,
        content_len: expected.content_len,
        ..found.clone()
    };
    found.kind == FileType::Regular
        && found.size == found.content_len
        && expected.equals(&alike, Times::Ignore)
}

fn last_up_to(steps: impl Iterator<Item = usize>, most: usize) -> Option<usize> {
    steps.filter(|step| *step <= most).max()
}

impl Bytes {
    fn is_large(&self, at: usize) -> bool {
        self.large_from.is_some_and(|from| from <= at)
    }

    /// Returns what it held after `step`, if it was there.
    fn version(&self, step: usize) -> Option<&Vec<u8>> {
        let before = self.versions.iter().rev().find(|(from, _)| *from <= step);
        before.map(|(_, content)| content.as_ref())
    }

    /// Returns whether it is as it was when it was synced last, while all rows were at `synced`.
    fn is_durable(&self, synced: usize, reached: Reached) -> bool {
        let base = self.base(synced, reached);
        let is_later = |step: usize| step > base;
        self.claimed.iter().any(|(row, _)| *row <= synced)
            && !self.versions.iter().any(|(from, _)| is_later(*from))
            && !self.ends.iter().any(|(step, _)| is_later(*step))
    }

    /// Checks the bytes of a large file where rows may claim bytes that are lost: those of a file that was changed since it was synced
    /// may be anything that is left of it.
    fn check_unplugged(&self, synced: usize, found: &[u8], reached: Reached) -> Result<(), String> {
        if !self.is_durable(synced, reached) {
            return Ok(());
        }
        self.check(synced, found, Reached { unplugged: false, ..reached })
    }

    fn base(&self, at: usize, reached: Reached) -> usize {
        if reached.killed {
            return reached.steps;
        }
        let synced = last_up_to(self.synced.iter().copied(), reached.steps);
        let claims = self.claimed.iter().filter(|(row, bytes)| {
            let by_release = row == bytes;
            // What is found may end within a step that did something else before the release.
            if by_release { *row < at && !reached.failed } else { *row <= at }
        });
        let claimed = claims.map(|(_, bytes)| *bytes).max();
        synced.max(claimed).unwrap_or(0)
    }

    /// Checks the bytes of a large file in the state `at`.
    fn check(&self, at: usize, found: &[u8], reached: Reached) -> Result<(), String> {
        let (base_step, last_step) = (self.base(at, reached), reached.steps + 1);
        let empty = Vec::new();
        let base = self.version(base_step).unwrap_or(&empty);
        let since =
            self.versions.iter().filter(|(from, _)| (base_step + 1..=last_step).contains(from));
        let later: Vec<&Vec<u8>> = since.map(|(_, content)| content.as_ref()).collect();
        let ends = self.ends.iter().filter(|(step, _)| (base_step + 1..=last_step).contains(step));
        let len = found.len() as u64;
        let known_len = base.len() as u64 == len
            || later.iter().any(|content| content.len() as u64 == len)
            || ends.clone().any(|(step, ends)| {
                ends.contains(&len) || (*step == last_step && *ends.end() > len)
            });
        if !known_len {
            let ends: Vec<_> = ends.map(|(_, ends)| ends).collect();
            return Err(format!(
                "it has {len} bytes; had {} at step {base_step}, then {ends:?}",
                base.len()
            ));
        }
        let newest = later.last().copied().unwrap_or(base);
        for (chunk, start) in found.chunks(CHUNK_BYTES).zip((0..).step_by(CHUNK_BYTES)) {
            let is_whole =
                |content: &Vec<u8>| content.get(start..start + chunk.len()) == Some(chunk);
            if !is_whole(newest) && !is_whole(base) {
                check_bytes(chunk, start, base, &later, reached.stale)
                    .map_err(|error| format!("{error} since step {base_step}"))?;
            }
        }
        Ok(())
    }
}

/// Checks bytes that begin at `start`, one by one.
fn check_bytes(
    chunk: &[u8],
    start: usize,
    base: &Vec<u8>,
    later: &[&Vec<u8>],
    stale: bool,
) -> Result<(), String> {
    for (at, byte) in (start..).zip(chunk) {
        let is_one = |content: &Vec<u8>| content.get(at) == Some(byte);
        if is_one(base) || later.iter().any(|content| is_one(content)) {
            continue;
        }
        let unwritten = at >= base.len() || later.iter().any(|content| at >= content.len());
        if unwritten && (*byte == 0 || stale) {
            continue;
        }
        return Err(format!("byte {at} is {byte:#x}, which it never was"));
    }
    Ok(())
}
