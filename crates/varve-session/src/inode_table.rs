//! The inode table: where the inodes are that the front end knows.
//!
//! A front end names an inode by its id alone, but the attributes of a file with one name live in the
//! row of that name. For every inode that was looked up (and not forgotten) or is open, the table
//! keeps the [`InodeLocation`] of its attributes, the count of lookups and the open node.
//!
//! 1. lookup, create and readdir with attributes call [`InodeTable::note_lookup`] while they hold the lock of
//!    the row the inode was found in.
//! 2. rename, link and unlink call [`InodeTable::moved`] or [`InodeTable::detach`] under the locks of all
//!    rows involved. Whoever uses a place without locks checks that the row really holds the inode and
//!    asks again if not.
//! 3. [`InodeTable::forget`] ends an entry with its last lookup, [`InodeTable::closed`] with its last handle. An
//!    orphan's rows go when neither is left: whoever found a file before its last name went may still
//!    open and read it, as on any file system.
//!
//! Memory is bounded: a shard beyond its share gives entries that were not used lately to the key space
//! `lookups` of the store ([`Spill`]), which a mount clears unless it takes over from another process,
//! and reads them back when asked for.
//! Open, orphaned and detached inodes always stay in memory. While the store refuses writes all others stay too, and a shard tries
//! again when it has twice as many: who looks up then walks over it rarely enough.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use varve_schema::{Inode, InodeLocation, LookupsRow};
use varve_types::InodeId;
use varve_vfs::FsResult;

use crate::handles::OpenNode;
use crate::id_hash::{IdHash, RUN_IDS};

const SHARDS: usize = 64;

/// Where entries go that do not fit in memory. Nobody else reads or writes them.
pub trait Spill: Send + Sync {
    /// Writes entries. REQUIRES: none is detached.
    fn put(&self, entries: &[(InodeId, LookupsRow)]) -> FsResult<()>;

    /// Fetches and removes an entry.
    fn take(&self, ino: InodeId) -> FsResult<Option<LookupsRow>>;

    /// Removes what was fetched and could not be removed then, for a successor who does not know that it means nothing.
    fn remove_owed(&self) -> FsResult<()>;
}

/// Everything the front end knows, by inode id.
pub struct InodeTable<O> {
    shards: Box<[Line<O>]>,
    shard_entries_max: usize,
    /// Entries that are in the store instead. Counted under the lock of the entry's shard.
    spilled: AtomicU64,
    /// How often the store has refused entries since it last took some.
    refused: AtomicU64,
    spill: Box<dyn Spill>,
}

/// A shard in a cache line of its own: whoever looks something up loads no second one for it.
#[repr(align(64))]
struct Line<O>(Mutex<Shard<O>>);

const _: () = assert!(size_of::<Line<std::sync::Arc<u8>>>() == 64);

struct Shard<O> {
    map: HashMap<u64, InodeEntry<O>, IdHash>,
    /// So many entries may come beyond the share before it is tried again to spill some, after the store has refused them or
    /// too few may go.
    patience: usize,
}

/// What is known of an inode.
pub struct InodeEntry<O> {
    /// Where its attributes are.
    pub place: InodeLocation,
    /// How often it was looked up and not forgotten.
    pub lookups: u64,
    /// What is known of it while it is open.
    pub node: Option<Arc<OpenNode<O>>>,
    /// The last name is gone; the rows stay until neither lookup nor handle is left.
    pub orphan: bool,
    used: bool,
}

impl<O> InodeEntry<O> {
    /// An inode that is not open.
    pub fn new(place: InodeLocation, lookups: u64) -> InodeEntry<O> {
        InodeEntry { place, lookups, node: None, orphan: false, used: true }
    }

    fn is_open(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.state().handles > 0)
    }

    fn is_reachable(&self) -> bool {
        self.lookups > 0 || self.is_open()
    }

    /// Ends its node if no handle is left; true if nothing is left of it then.
    fn end_node(&mut self) -> bool {
        if !self.is_open() {
            self.node = None;
        }
        self.node.is_none() && self.lookups == 0
    }

    /// Its node, with one handle more.
    fn opened(&mut self, ino: InodeId) -> Arc<OpenNode<O>> {
        let node = self.node.get_or_insert_with(|| Arc::new(OpenNode::new(ino)));
        node.state().handles += 1;
        Arc::clone(node)
    }
}

impl<O> InodeTable<O> {
    /// An empty table of about `entries_max` entries in memory.
    pub fn new(spill: Box<dyn Spill>, entries_max: usize) -> InodeTable<O> {
        InodeTable {
            shards: (0..SHARDS)
                .map(|_| Line(Mutex::new(Shard { map: HashMap::default(), patience: 0 })))
                .collect(),
            shard_entries_max: (entries_max / SHARDS).max(1),
            spilled: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            spill,
        }
    }

    /// Neighbours are in one shard, as they lie together in its table.
    fn shard(&self, ino: InodeId) -> &Mutex<Shard<O>> {
        &self.shards[(ino.get() / RUN_IDS) as usize % SHARDS].0
    }

    /// Where `ino` is, if it is known; a directory and a file with several names is in its own row
    /// whether known or not.
    pub fn place(&self, ino: InodeId) -> FsResult<Option<InodeLocation>> {
        let mut shard = self.shard(ino).lock();
        Ok(self.load(&mut shard, ino)?.map(|known| known.place.clone()))
    }

    /// Counts a lookup. REQUIRES: the lock of the row in `place`.
    pub fn note_lookup(&self, ino: InodeId, place: InodeLocation) -> FsResult<()> {
        let mut shard = self.shard(ino).lock();
        self.fetch(&mut shard, ino)?;
        match shard.map.entry(ino.get()) {
            Entry::Occupied(at) => {
                let known = at.into_mut();
                (known.place, known.used) = (place, true);
                known.lookups += 1;
            }
            Entry::Vacant(at) => {
                at.insert(InodeEntry::new(place, 1));
                self.make_room(&mut shard, ino);
            }
        }
        Ok(())
    }

    /// Counts the first lookup of `ino`. REQUIRES: the lock of the row in `place`; nobody knew `ino` before, so that it is
    /// not looked for among the spilled.
    pub fn note_new(&self, ino: InodeId, place: InodeLocation) {
        let mut shard = self.shard(ino).lock();
        shard.map.insert(ino.get(), InodeEntry::new(place, 1));
        self.make_room(&mut shard, ino);
    }

    /// Counts the first lookup of `ino`, and gives its node with one handle. REQUIRES: as [`InodeTable::note_new`].
    pub fn note_new_and_open(&self, ino: InodeId, place: InodeLocation) -> Arc<OpenNode<O>> {
        let mut shard = self.shard(ino).lock();
        let mut known = InodeEntry::new(place, 1);
        let node = known.opened(ino);
        shard.map.insert(ino.get(), known);
        self.make_room(&mut shard, ino);
        node
    }

    /// Takes back `lookups` lookups. True if that leaves an orphan that nobody can reach: its rows are to
    /// be removed, then [`InodeTable::close`] is to be called.
    pub fn forget(&self, ino: InodeId, lookups: u64) -> FsResult<bool> {
        let mut shard = self.shard(ino).lock();
        let Some(known) = self.load(&mut shard, ino)? else { return Ok(false) };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.is_reachable() {
            return Ok(false);
        }
        let orphan = known.orphan;
        if !orphan && known.node.is_none() {
            shard.map.remove(&ino.get());
        }
        Ok(orphan)
    }

    /// Notes that the attributes of `ino` moved. REQUIRES: the locks of the old and the new row.
    pub fn moved(&self, ino: InodeId, place: InodeLocation) -> FsResult<()> {
        let mut shard = self.shard(ino).lock();
        if let Some(known) = self.load(&mut shard, ino)? {
            known.place = place;
        }
        Ok(())
    }

    /// Notes that `inode` has no row any more; its attributes are kept while the front end knows it.
    /// REQUIRES: the lock of the row it was in.
    pub fn detach(&self, inode: Box<Inode>) -> FsResult<()> {
        self.moved(inode.ino, InodeLocation::Detached(inode))
    }

    /// The node of `ino`, made if there is none, with one handle more. REQUIRES: the lock of the row in
    /// `place`.
    pub fn open(&self, ino: InodeId, place: InodeLocation) -> FsResult<Arc<OpenNode<O>>> {
        let mut shard = self.shard(ino).lock();
        self.fetch(&mut shard, ino)?;
        let known = shard.map.entry(ino.get()).or_insert_with(|| InodeEntry::new(place, 0));
        known.used = true;
        Ok(known.opened(ino))
    }

    /// The node of `ino`, if it is open.
    pub fn node(&self, ino: InodeId) -> Option<Arc<OpenNode<O>>> {
        self.shard(ino).lock().map.get(&ino.get()).and_then(|known| known.node.clone())
    }

    /// Marks an inode whose last name goes as an orphan if its rows must stay: because it is open, or
    /// because the front end knows it and `has_more_rows` than fit in memory. Returns whether it is one.
    /// REQUIRES: the lock of the row it is in, so that nobody opens it meanwhile.
    pub fn mark_orphan(&self, ino: InodeId, has_more_rows: bool) -> FsResult<bool> {
        let mut shard = self.shard(ino).lock();
        let Some(known) = self.load(&mut shard, ino)? else { return Ok(false) };
        known.orphan = known.is_open() || (has_more_rows && known.lookups > 0);
        Ok(known.orphan)
    }

    /// Takes the mark back: the inode has a name, again or still.
    pub fn unmark_orphan(&self, ino: InodeId) {
        if let Some(known) = self.shard(ino).lock().map.get_mut(&ino.get()) {
            known.orphan = false;
        }
    }

    /// Whether `ino` is an orphan that neither a lookup nor a handle can reach.
    pub fn is_unreachable_orphan(&self, ino: InodeId) -> bool {
        let shard = self.shard(ino).lock();
        shard.map.get(&ino.get()).is_some_and(|known| known.orphan && !known.is_reachable())
    }

    /// Up to `max` orphans, which no lookup or handle reaches any more from now on. REQUIRES: no call is under way,
    /// and none follows.
    pub fn abandon_orphans(&self, max: usize) -> Vec<InodeId> {
        let mut orphans = Vec::new();
        for Line(shard) in &self.shards {
            let mut shard = shard.lock();
            let found = shard.map.iter_mut().filter(|(_, known)| known.orphan);
            for (ino, known) in found.take(max - orphans.len()) {
                (known.lookups, known.node) = (0, None);
                orphans.push(InodeId::new(*ino));
            }
        }
        orphans
    }

    /// Whether a lookup or a handle can reach `ino`.
    pub fn is_reachable(&self, ino: InodeId) -> bool {
        let shard = self.shard(ino).lock();
        shard.map.get(&ino.get()).is_some_and(InodeEntry::is_reachable)
    }

    /// After a handle ended: true if that leaves an orphan that nobody can reach. Its rows are to be removed, then
    /// [`InodeTable::close`] is to be called. Else ends what `close` would end.
    pub fn closed(&self, ino: InodeId) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(known) = shard.map.get_mut(&ino.get()) else { return false };
        if known.orphan && !known.is_reachable() {
            return true;
        }
        if known.end_node() {
            shard.map.remove(&ino.get());
        }
        false
    }

    /// Ends the node of `ino` if no handle is left, and its entry if no lookup is left either.
    pub fn close(&self, ino: InodeId) {
        let mut shard = self.shard(ino).lock();
        if shard.map.get_mut(&ino.get()).is_some_and(InodeEntry::end_node) {
            shard.map.remove(&ino.get());
        }
    }

    /// How often the store has refused entries since it last took some.
    pub fn refusals(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Entries in memory and entries in the store.
    pub fn counts(&self) -> (u64, u64) {
        let known = self.shards.iter().map(|Line(shard)| shard.lock().map.len() as u64).sum();
        (known, self.spilled.load(Ordering::Relaxed))
    }

    /// Calls `visit` with every entry in memory.
    pub fn for_each(&self, visit: &mut dyn FnMut(InodeId, &InodeEntry<O>)) {
        for Line(shard) in &self.shards {
            shard.lock().map.iter().for_each(|(ino, known)| visit(InodeId::new(*ino), known));
        }
    }

    /// Takes over an entry of the process before.
    pub fn restore(&self, ino: InodeId, known: InodeEntry<O>) {
        self.shard(ino).lock().map.insert(ino.get(), known);
    }

    /// Leaves no entry in the store that is in memory as well. REQUIRES: nobody else uses it.
    pub fn tidy_store(&self) -> FsResult<()> {
        self.spill.remove_owed()
    }

    /// Takes over the number of entries in the store.
    pub fn restore_spilled(&self, spilled: u64) {
        self.spilled.store(spilled, Ordering::Relaxed);
    }

    /// The entry of `ino`, fetched from the store if it was spilled.
    fn load<'a>(
        &self,
        shard: &'a mut Shard<O>,
        ino: InodeId,
    ) -> FsResult<Option<&'a mut InodeEntry<O>>> {
        self.fetch(shard, ino)?;
        let Some(known) = shard.map.get_mut(&ino.get()) else { return Ok(None) };
        known.used = true;
        Ok(Some(known))
    }

    /// Fetches the entry of `ino` from the store if it was spilled.
    fn fetch(&self, shard: &mut Shard<O>, ino: InodeId) -> FsResult<()> {
        if self.spilled.load(Ordering::Relaxed) > 0
            && !shard.map.contains_key(&ino.get())
            && let Some(LookupsRow { lookups, place }) = self.spill.take(ino)?
        {
            self.spilled.fetch_sub(1, Ordering::Relaxed);
            shard.map.insert(ino.get(), InodeEntry::new(place, lookups));
            self.make_room(shard, ino);
        }
        Ok(())
    }

    /// Spills an eighth of the shard if it is beyond its share: entries not used since the last time
    /// first, never `keep`. What cannot be written stays in memory.
    fn make_room(&self, shard: &mut Shard<O>, keep: InodeId) {
        if shard.map.len() <= self.shard_entries_max {
            return;
        }
        if shard.patience > 0 {
            shard.patience -= 1;
            return;
        }
        let wanted = (self.shard_entries_max / 8).max(1);
        let victims = shard.victims(wanted, keep);
        let rows: Vec<(InodeId, LookupsRow)> = victims
            .iter()
            .filter_map(|ino| {
                let known = shard.map.get(ino)?;
                let row = LookupsRow { lookups: known.lookups, place: known.place.clone() };
                Some((InodeId::new(*ino), row))
            })
            .collect();
        match self.spill.put(&rows) {
            Ok(()) => {
                self.refused.store(0, Ordering::Relaxed);
                self.spilled.fetch_add(victims.len() as u64, Ordering::Relaxed);
                for ino in &victims {
                    shard.map.remove(ino);
                }
                // Where too few may go, not each that comes walks over all that stay.
                if shard.map.len() > self.shard_entries_max {
                    shard.patience = wanted;
                }
            }
            Err(error) => {
                shard.patience = shard.map.len();
                if self.refused.fetch_add(1, Ordering::Relaxed) == 0 {
                    log::warn!("the places of inodes stay in memory: {error}");
                }
            }
        }
    }
}

impl<O> Shard<O> {
    /// Up to `wanted` entries that may be spilled, those first that were not used since the last time.
    fn victims(&mut self, wanted: usize, keep: InodeId) -> Vec<u64> {
        let mut victims = Vec::with_capacity(wanted);
        for pass in 0..2 {
            for (ino, known) in &mut self.map {
                let movable = known.node.is_none()
                    && !known.orphan
                    && !matches!(known.place, InodeLocation::Detached(_))
                    && *ino != keep.get();
                if victims.len() < wanted && movable && !known.used {
                    victims.push(*ino);
                    // Not once more in the second pass.
                    known.used = true;
                } else if pass == 0 {
                    known.used = false;
                }
            }
            if victims.len() == wanted {
                break;
            }
        }
        victims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that were not used go first, each once, and others make up the number.
    #[test]
    fn victims_are_chosen_once() {
        let mut shard = Shard::<u8> { map: HashMap::default(), patience: 0 };
        for ino in 0..100 {
            let mut known = InodeEntry::new(InodeLocation::Own, 1);
            (known.used, known.orphan) = (ino >= 10, ino == 50);
            shard.map.insert(ino, known);
        }
        let mut victims = shard.victims(20, InodeId::new(3));
        assert_eq!(victims.len(), 20);
        victims.sort_unstable();
        victims.dedup();
        assert_eq!(victims.len(), 20);
        assert!([0, 1, 2, 4, 5, 6, 7, 8, 9].iter().all(|ino| victims.contains(ino)));
        assert!(!victims.contains(&3) && !victims.contains(&50));
    }
}
