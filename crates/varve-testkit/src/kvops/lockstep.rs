//! Runs random operations on a store and on the oracle, and compares them.
//!
//! 1. [`KvLockstep::run`] generates an operation, makes it on the store and compares the answer with the oracle.
//! 2. It pauses for the test to reopen or maintain the store.
//! 3. After a crash [`KvLockstep::check_recovered`] finds the batches that survived, and goes on from there.

use std::collections::VecDeque;
use std::fmt;

use super::generate::{KvGenerator, KvOp, KvUniverse};
use super::history::{History, State, Survived};
use super::{KvRange, KvRead, KvStore, KvWrite, Space};

/// How many operations a mismatch shows.
const HISTORY_OPS: usize = 20;

/// Why [`KvLockstep::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// All operations ran.
    Finished,
    /// The test should close and open the store, check it with [`KvLockstep::check_recovered`], and go
    /// on.
    Reopen,
    /// The test should let the store do maintenance, and go on.
    Maintain,
}

/// Why an operation failed.
pub enum KvFailure {
    /// The store answered wrongly.
    Mismatch(String),
    /// The store reported an error, which a crash test expects and others do not.
    Store(String),
}

/// Runs random operations on a store and compares every answer with the oracle.
#[derive(Debug)]
pub struct KvLockstep {
    seed: u64,
    generator: KvGenerator,
    history: History,
    recent: VecDeque<(u64, KvOp)>,
    step: u64,
    left: Option<u64>,
}

impl KvLockstep {
    /// Returns the sequence of `seed` in `universe`, for a store that is empty.
    pub fn new(seed: u64, universe: KvUniverse) -> KvLockstep {
        let generator = KvGenerator::new(seed, universe);
        let history = History::new(generator.spaces());
        KvLockstep { seed, generator, history, recent: VecDeque::new(), step: 0, left: None }
    }

    /// Returns the oracle.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Runs `count` operations in all; called again after a pause it goes on with the rest of them.
    pub fn run(&mut self, store: &dyn KvStore, count: u64) -> Result<Pause, KvFailure> {
        let mut left = self.left.take().unwrap_or(count);
        while left > 0 {
            left -= 1;
            let op = self.generator.next_op();
            let pause = match op {
                KvOp::Reopen => Some(Pause::Reopen),
                KvOp::Maintain => Some(Pause::Maintain),
                _ => None,
            };
            self.apply(store, op)?;
            if let Some(pause) = pause {
                self.left = Some(left);
                return Ok(pause);
            }
        }
        Ok(Pause::Finished)
    }

    /// Runs one operation.
    pub fn apply(&mut self, store: &dyn KvStore, op: KvOp) -> Result<(), KvFailure> {
        self.step += 1;
        if self.recent.len() == HISTORY_OPS {
            self.recent.pop_front();
        }
        self.recent.push_back((self.step, op.clone()));
        match op {
            KvOp::Write(batch) => self.write(store, &batch),
            KvOp::Sync => {
                store.sync().map_err(KvFailure::Store)?;
                self.history.sync();
                Ok(())
            }
            KvOp::Get(space, key) => {
                let found = store.get(space, &key).map_err(KvFailure::Store)?;
                let expected = self.history.newest().get(space, &key);
                self.check(expected == found, || {
                    format!("found {:?} bytes", found.map(|v| v.len()))
                })
            }
            KvOp::Scan(space, range) => {
                let verdict = check_scan(self.history.newest(), store, space, &range);
                self.judge(verdict)
            }
            KvOp::Snapshot(batches, ranges) => self.snapshot(store, &batches, &ranges),
            KvOp::Reopen | KvOp::Maintain => Ok(()),
        }
    }

    /// Reads everything and compares it with the newest state.
    pub fn check_all(&self, store: &dyn KvStore) -> Result<(), KvFailure> {
        let found = self.dump(store)?;
        let lines = self.history.newest().differences(&found);
        self.check(lines.is_empty(), || lines.join("\n"))
    }

    /// After the store was closed, killed or cut off and opened again: finds which prefix of the batches
    /// it holds, and goes on from there. Returns how many batches since the last power cut that is.
    pub fn check_recovered(
        &mut self,
        store: &dyn KvStore,
        survived: Survived,
    ) -> Result<usize, KvFailure> {
        let found = self.dump(store)?;
        let (acknowledged, synced) = (self.history.acknowledged(), self.history.synced());
        self.history.recover(found, survived).map_err(|lines| {
            let what = format!(
                "after recovery ({survived:?}): no prefix of the {acknowledged} acknowledged batches \
                 that holds the {synced} synced ones; against the newest state:\n{}",
                lines.join("\n")
            );
            self.mismatch(&what)
        })
    }

    fn write(&mut self, store: &dyn KvStore, batch: &[KvWrite]) -> Result<(), KvFailure> {
        match store.write(batch) {
            Ok(()) => {
                self.history.acknowledge(batch);
                Ok(())
            }
            Err(error) => {
                self.history.doubt(batch);
                Err(KvFailure::Store(error))
            }
        }
    }

    fn snapshot(
        &mut self,
        store: &dyn KvStore,
        batches: &[Vec<KvWrite>],
        ranges: &[(Space, KvRange)],
    ) -> Result<(), KvFailure> {
        let pinned = self.history.newest().clone();
        let mut result = Ok(());
        let mut inspect = |snapshot: &dyn KvRead| {
            result = batches.iter().try_for_each(|batch| self.write(store, batch)).and_then(|()| {
                ranges.iter().try_for_each(|(space, range)| {
                    self.judge(check_scan(&pinned, snapshot, *space, range))?;
                    for write in batches.iter().flatten() {
                        let found =
                            snapshot.get(write.space, &write.key).map_err(KvFailure::Store)?;
                        let expected = pinned.get(write.space, &write.key);
                        self.check(found == expected, || {
                            format!("the snapshot moved at {write:?}")
                        })?;
                    }
                    Ok(())
                })
            });
        };
        store.with_snapshot(&mut inspect).map_err(KvFailure::Store)?;
        result
    }

    fn dump(&self, store: &dyn KvStore) -> Result<State, KvFailure> {
        let all = KvRange::all();
        let spaces = 0..self.generator.spaces();
        let rows: Result<Vec<_>, String> = spaces.map(|space| store.scan(space, &all)).collect();
        rows.map(State::from_rows).map_err(KvFailure::Store)
    }

    fn judge(&self, verdict: Result<Option<String>, String>) -> Result<(), KvFailure> {
        match verdict {
            Ok(None) => Ok(()),
            Ok(Some(what)) => Err(self.mismatch(&what)),
            Err(error) => Err(KvFailure::Store(error)),
        }
    }

    fn check(&self, right: bool, what: impl FnOnce() -> String) -> Result<(), KvFailure> {
        if right { Ok(()) } else { Err(self.mismatch(&what())) }
    }

    fn mismatch(&self, what: &str) -> KvFailure {
        let recent: Vec<_> =
            self.recent.iter().map(|(step, op)| format!("{step} {op:?}")).collect();
        let (seed, step) = (self.seed, self.step);
        KvFailure::Mismatch(format!("seed {seed}, step {step}:\n{}\n{what}", recent.join("\n")))
    }
}

/// Returns what is wrong with a scan, if anything.
fn check_scan(
    state: &State,
    read: &dyn KvRead,
    space: Space,
    range: &KvRange,
) -> Result<Option<String>, String> {
    let (expected, found) = (state.scan(space, range), read.scan(space, range)?);
    let first = expected.iter().zip(&found).position(|(a, b)| a != b);
    if first.is_none() && expected.len() == found.len() {
        return Ok(None);
    }
    let at = first.unwrap_or(expected.len().min(found.len()));
    let show = |row: Option<&(Vec<u8>, Vec<u8>)>| {
        row.map(|(key, value)| format!("{}=[{} bytes]", key.escape_ascii(), value.len()))
    };
    let (a, b) = (show(expected.get(at)), show(found.get(at)));
    let (total, got) = (expected.len(), found.len());
    Ok(Some(format!("row {at} of {total} expected {a:?}, found {b:?} of {got}")))
}

impl fmt::Display for KvFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KvFailure::Mismatch(text) => f.write_str(text),
            KvFailure::Store(text) => write!(f, "the store failed: {text}"),
        }
    }
}

impl fmt::Debug for KvFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for KvFailure {}
