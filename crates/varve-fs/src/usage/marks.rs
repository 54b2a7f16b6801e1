//! Which directories have something to tell their parents.
//!
//! A mark row `(3, slot)` names each. Slots are used again and again, so that the rows a mount reads are as few as
//! there were marks at a time, however many directories were ever marked. While the store is open this table
//! says who has which slot; it changes only under the lock of the directory's inode row.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use varve_engine::{Direction, KeyRange, Store};
use varve_schema::{META, Mark, RowKey};
use varve_types::{InodeId, KeyspaceId};
use varve_vfs::FsResult;

use crate::error;
use varve_session::IdHash;

/// Directories that may have pending usage before they propagate it at once.
pub(crate) const MARKS_MAX: usize = 1024;

/// The marked directories.
pub(super) struct Marks {
    table: Mutex<Table>,
    count: AtomicUsize,
    /// A directory was marked since the marked ones were last asked to tell.
    news: AtomicBool,
    of: MarksOf,
}

/// Whose marks they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarksOf {
    /// The main tree's, who gives out slots.
    Main,
    /// A view's, which begins with those of the main tree.
    View,
    /// A serializable view's, which knows its own alone, as those of the main tree come and go.
    SerialView,
}

/// In a view each directory has a slot of its own from here on, as the others are the main tree's to give.
const VIEW_SLOTS: u64 = 1 << 62;

#[derive(Default)]
struct Table {
    slots: HashMap<InodeId, u64, IdHash>,
    /// Slots below `next` that are not in use.
    free: Vec<u64>,
    next: u64,
}

impl Marks {
    /// The marks that an earlier mount left.
    pub(super) fn load(store: &dyn Store, meta: KeyspaceId, of: MarksOf) -> FsResult<Marks> {
        let mut table = Table::default();
        if of == MarksOf::SerialView {
            let (count, news) = (AtomicUsize::new(0), AtomicBool::new(false));
            return Ok(Marks { table: Mutex::new(table), count, news, of });
        }
        let range = KeyRange::prefix(&RowKey::mark_prefix());
        let mut used = HashSet::new();
        for row in store.scan(meta, range, Direction::Forward).map_err(error::store)? {
            let (key, value) = row.map_err(error::store)?;
            let Some(key) = RowKey::from_bytes(&key) else { continue };
            let Mark(dir) =
                Mark::decode(&value).map_err(|error| error::unreadable(META, key, error))?;
            table.slots.insert(dir, key.suffix());
            used.insert(key.suffix());
            table.next = table.next.max(key.suffix().saturating_add(1));
        }
        // Many slots at once are only in use where something is wrong; then new ones are taken.
        let gaps = if table.next as usize <= 4 * MARKS_MAX { table.next } else { 0 };
        table.free = (0..gaps).filter(|slot| !used.contains(slot)).collect();
        let count = AtomicUsize::new(table.slots.len());
        Ok(Marks { table: Mutex::new(table), count, news: AtomicBool::new(false), of })
    }

    /// A slot for a directory that begins to have something to tell; `None` if it has one. REQUIRES: the lock of
    /// its row, here and below; the row of the slot is written next, or the mark ended.
    pub(super) fn begin(&self, dir: InodeId) -> Option<u64> {
        let mut table = self.table.lock();
        if table.slots.contains_key(&dir) {
            return None;
        }
        let slot = if self.of != MarksOf::Main {
            VIEW_SLOTS | dir.get()
        } else {
            table.free.pop().unwrap_or_else(|| {
                table.next += 1;
                table.next - 1
            })
        };
        table.slots.insert(dir, slot);
        self.count.store(table.slots.len(), Ordering::Relaxed);
        self.news.store(true, Ordering::Relaxed);
        Some(slot)
    }

    /// The slot of a marked directory.
    pub(super) fn slot(&self, dir: InodeId) -> Option<u64> {
        self.table.lock().slots.get(&dir).copied()
    }

    /// Ends the mark of a directory, after its row is removed.
    pub(super) fn end(&self, dir: InodeId) {
        let mut table = self.table.lock();
        if let Some(slot) = table.slots.remove(&dir)
            && self.of == MarksOf::Main
        {
            table.free.push(slot);
        }
        self.count.store(table.slots.len(), Ordering::Relaxed);
    }

    /// Whether they are the main tree's.
    pub(super) fn are_of_main(&self) -> bool {
        self.of == MarksOf::Main
    }

    /// Whether a directory was marked since the last call; what earlier mounts left does not count.
    pub(super) fn take_news(&self) -> bool {
        self.news.swap(false, Ordering::Relaxed)
    }

    /// The marked directories.
    pub(super) fn dirs(&self) -> Vec<InodeId> {
        self.table.lock().slots.keys().copied().collect()
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Views kept a slot of each directory that was marked once, though they give none out again.
    #[test]
    fn slots_are_kept_by_who_gives_them_out_again() {
        for (of, kept) in [(MarksOf::Main, 1), (MarksOf::View, 0), (MarksOf::SerialView, 0)] {
            let (table, count, news) = Default::default();
            let marks = Marks { table, count, news, of };
            for dir in (20..1020).map(InodeId::new) {
                assert!(marks.begin(dir).is_some());
                marks.end(dir);
            }
            assert_eq!(marks.table.lock().free.len(), kept, "{of:?}");
        }
    }
}
