//! Roots, so that an open reads few records, and what may be removed behind them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::extents::ObjectId;
use crate::record::{
    Garbage, GarbageKind, Root, data_name, dir_name, encode, journal_name, root_name,
};
use crate::store::{Live, Store, Writer};

/// A checkpoint is due after so many bytes of records.
const CHECKPOINT_BYTES: u64 = 16 << 20;
/// How many objects are uploaded at the same time.
pub(crate) const UPLOADS_MAX: usize = 16;
/// Names of files that stay in memory although nobody uses them.
const NAMES_KEPT: usize = 100_000;
/// Objects that one pass of the upkeep removes.
const REMOVED_AT_ONCE: usize = 500;

/// Objects that make a root, and then the root.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    objects: Vec<(String, Bytes)>,
    staged: Vec<ObjectId>,
    root: Bytes,
    seq: u64,
}

impl Store {
    /// Begins a checkpoint if it is due and none is under way. REQUIRES: the newest record is made, and nothing has
    /// changed since.
    pub(crate) fn begin_checkpoint(&self, writer: &Writer, live: &mut Live, is_asked: bool) {
        let is_due = is_asked
            || live.records_since_root >= self.options.checkpoint_records
            || live.bytes_since_root >= CHECKPOINT_BYTES;
        if !is_due || live.checkpoint.is_some() || live.records_since_root == 0 {
            return;
        }
        live.tree.seq = live.seq;
        let (table, saved) = live.tree.save(live.store, &mut || self.new_id(writer));
        let seq = live.seq;
        let first = live.root.map_or(1, |root| root + 1);
        if let Some(root) = live.root {
            live.tree.leave(GarbageKind::Root(root));
        }
        live.tree.leave(GarbageKind::Journal(first, seq + 1));
        live.tree.seq = seq + 1;
        let root = Root {
            store: live.store,
            seq,
            epoch: writer.epoch,
            owner: writer.owner.clone(),
            closed: live.is_closed,
            next_number: writer.next_number.load(Ordering::Relaxed),
            table,
            garbage: live.tree.garbage.clone(),
            fences: live.fences.clone(),
        };
        self.cache.stage(&saved.staged);
        let staged = saved.staged.into_iter().map(|(id, _)| id).collect();
        let root = encode(&root_name(seq), &root);
        live.checkpoint = Some(Arc::new(Checkpoint { objects: saved.objects, staged, root, seq }));
        (live.records_since_root, live.bytes_since_root) = (0, 0);
    }

    /// Makes the objects of a checkpoint that has begun, if its record is in its place.
    pub(crate) fn finish_checkpoint(&self) -> io::Result<()> {
        let checkpoint = {
            let live = self.live.lock();
            let is_recorded = |checkpoint: &Arc<Checkpoint>| {
                live.unsent.as_ref().is_none_or(|(seq, _)| *seq > checkpoint.seq)
            };
            match live.checkpoint.clone().filter(is_recorded) {
                Some(checkpoint) => checkpoint,
                None => return Ok(()),
            }
        };
        for objects in checkpoint.objects.chunks(UPLOADS_MAX) {
            self.requests.create_all(objects.to_vec())?;
        }
        self.cache.unstage(&checkpoint.staged);
        self.requests.create(&root_name(checkpoint.seq), &checkpoint.root)?;
        let mut live = self.live.lock();
        live.root = Some(checkpoint.seq);
        live.checkpoint = None;
        live.tree.forget(NAMES_KEPT);
        self.counts.lock().checkpoints += 1;
        Ok(())
    }

    /// Removes some of what nobody needs any more; returns how many objects.
    fn remove_garbage(&self) -> io::Result<usize> {
        let now = self.machine.now().secs();
        let age = self.options.reader_age.as_secs() as i64;
        let (mut due, fences) = {
            let mut live = self.live.lock();
            let Some(root) = live.root else { return Ok(0) };
            let is_due = |garbage: &Garbage| garbage.seq <= root && garbage.at + age <= now;
            // In the order of age: the first that is too young ends it.
            let count = live.tree.garbage.iter().take_while(|garbage| is_due(garbage)).count();
            let due: Vec<Garbage> = live.tree.garbage.drain(..count.min(REMOVED_AT_ONCE)).collect();
            (due, live.fences.clone())
        };
        let mut removed = 0;
        let mut outcome = Ok(());
        while let Some(garbage) = due.first() {
            let mut remove = |name: String| {
                removed += 1;
                self.requests.remove(&name)
            };
            outcome = match garbage.what {
                GarbageKind::Data(id) => remove(data_name(id)),
                GarbageKind::Dir(id) => remove(dir_name(id)),
                GarbageKind::Root(seq) => remove(root_name(seq)),
                GarbageKind::Journal(from, to) => (from..to)
                    .filter(|seq| !fences.contains(seq))
                    .try_for_each(|seq| remove(journal_name(seq))),
            };
            if outcome.is_err() {
                break;
            }
            due.remove(0);
        }
        if !due.is_empty() {
            let mut live = self.live.lock();
            live.tree.garbage.splice(..0, due);
        }
        outcome.map(|()| removed)
    }

    /// Work that nobody waits for: a checkpoint that has begun, and what may be removed.
    pub(crate) fn upkeep(&self) -> io::Result<()> {
        self.check()?;
        self.finish_checkpoint()?;
        while self.remove_garbage()? == REMOVED_AT_ONCE {}
        Ok(())
    }
}
