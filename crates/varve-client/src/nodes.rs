//! The inodes that the front end knows, with the places where the server found them.

use std::collections::HashMap;

use parking_lot::Mutex;
use varve_types::InodeId;
use varve_wire::Node;
use varve_wire::attr::Place;

const SHARDS: usize = 64;

struct Known {
    place: Place,
    lookups: u64,
}

/// Inodes that are looked up.
pub(crate) struct Nodes {
    shards: Vec<Mutex<HashMap<u64, Known>>>,
}

impl Nodes {
    pub(crate) fn new() -> Nodes {
        Nodes { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, ino: u64) -> &Mutex<HashMap<u64, Known>> {
        &self.shards[(ino / 16) as usize % SHARDS]
    }

    /// Counts a lookup of an inode that the server found at `place`.
    pub(crate) fn note(&self, ino: u64, place: Place) {
        let mut shard = self.shard(ino).lock();
        let known = shard.entry(ino).or_insert(Known { place, lookups: 0 });
        known.lookups += 1;
        known.place = place.or(known.place);
    }

    /// Notes that the server has found an inode at another place.
    pub(crate) fn moved(&self, ino: InodeId, place: Place) {
        if let Some(known) = self.shard(ino.get()).lock().get_mut(&ino.get()) {
            known.place = place;
        }
    }

    /// Returns the inode as requests name it.
    pub(crate) fn node(&self, ino: InodeId) -> Node {
        let ino = ino.get();
        let place = self.shard(ino).lock().get(&ino).and_then(|known| known.place);
        Node { ino, place }
    }

    /// Calls `visit` with each inode.
    pub(crate) fn each(&self, mut visit: impl FnMut(InodeId)) {
        for shard in &self.shards {
            let known: Vec<u64> = shard.lock().keys().copied().collect();
            known.into_iter().map(InodeId::new).for_each(&mut visit);
        }
    }

    /// Takes back lookups.
    pub(crate) fn forget(&self, ino: InodeId, lookups: u64) {
        let mut shard = self.shard(ino.get()).lock();
        if let Some(known) = shard.get_mut(&ino.get()) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 {
                shard.remove(&ino.get());
            }
        }
    }
}
