//! The inodes that stay looked up for clients.
//!
//! A file system knows where an inode is as long as a front end holds a lookup of it. Clients say where they found an
//! inode in each request, so the server need not remember all that they know: the inodes of the latest requests stay
//! looked up once, at most [`NODES_MAX`]. Any other is found again by its place.
//!
//! Of each of them it is known how deep in the tree it was when it was found by its name, for the lengths of leases.

use std::collections::HashMap;

use parking_lot::Mutex;
use varve_types::InodeId;
use varve_vfs::{FsResult, Place, Vfs};
use varve_wire::Node;

/// The most inodes that stay looked up.
const NODES_MAX: usize = 1 << 17;
const SHARDS: usize = 64;

/// The depth of what was not found by a name lately, such as what a program has open: deep, for a short lease.
const DEEP: u8 = 16;

struct Known {
    /// It was used since the hand came by.
    is_used: bool,
    /// How many directories lie above it.
    depth: u8,
}

#[derive(Default)]
struct Shard {
    known: HashMap<u64, Known>,
    /// All of them, in the order of the hand.
    ring: Vec<u64>,
    hand: usize,
}

/// Inodes that are looked up.
pub(crate) struct Nodes {
    shards: Vec<Mutex<Shard>>,
}

impl Nodes {
    pub(crate) fn new() -> Nodes {
        Nodes { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, ino: InodeId) -> &Mutex<Shard> {
        &self.shards[(ino.get() as usize / 16) % SHARDS]
    }

    /// Returns how many directories lay above an inode when it was found.
    pub(crate) fn depth(&self, ino: InodeId) -> u8 {
        self.shard(ino).lock().known.get(&ino.get()).map_or(DEEP, |known| known.depth)
    }

    /// Takes over a lookup that the file system has counted, of an inode at such a depth.
    pub(crate) fn note(&self, vfs: &dyn Vfs, ino: InodeId, depth: Option<u8>) {
        let mut shard = self.shard(ino).lock();
        let superfluous = shard.insert(ino.get(), depth);
        drop(shard);
        if let Some(ino) = superfluous {
            vfs.forget(InodeId::new(ino), 1);
        }
    }

    /// Finds the inode of a request, unless it is looked up already.
    pub(crate) fn recall(&self, vfs: &dyn Vfs, node: Node) -> FsResult<InodeId> {
        let ino = InodeId::new(node.ino);
        if let Some(known) = self.shard(ino).lock().known.get_mut(&node.ino) {
            known.is_used = true;
            return Ok(ino);
        }
        let place = node.place.map(Place::from_bytes);
        // A walk over the file system is nothing that a client may ask for at will.
        let found = vfs.lookup_at(ino, place, false)?;
        self.note(vfs, found.attr.ino, None);
        Ok(ino)
    }

    /// Forgets all inodes.
    pub(crate) fn clear(&self, vfs: &dyn Vfs) {
        for shard in &self.shards {
            let shard = std::mem::take(&mut *shard.lock());
            shard.known.into_keys().for_each(|ino| vfs.forget(InodeId::new(ino), 1));
        }
    }

    /// Forgets an inode that is gone.
    pub(crate) fn forget(&self, vfs: &dyn Vfs, ino: InodeId) {
        let mut shard = self.shard(ino).lock();
        let was_known = shard.known.remove(&ino.get()).is_some();
        drop(shard);
        if was_known {
            vfs.forget(ino, 1);
        }
    }
}

impl Shard {
    /// Adds a number, and returns the number whose lookup is one too many: its own if it was there, or the one that
    /// it displaces.
    fn insert(&mut self, number: u64, depth: Option<u8>) -> Option<u64> {
        if let Some(known) = self.known.get_mut(&number) {
            known.is_used = true;
            known.depth = depth.unwrap_or(known.depth);
            return Some(number);
        }
        self.known.insert(number, Known { is_used: true, depth: depth.unwrap_or(DEEP) });
        if self.ring.len() < NODES_MAX / SHARDS {
            self.ring.push(number);
            return None;
        }
        // The clock: what was used since the hand came by stays for another round.
        loop {
            self.hand = (self.hand + 1) % self.ring.len();
            let at = self.ring[self.hand];
            match self.known.get_mut(&at) {
                Some(known) if known.is_used && at != number => known.is_used = false,
                Some(_) if at == number => {}
                known => {
                    let was_known = known.is_some();
                    self.known.remove(&at);
                    self.ring[self.hand] = number;
                    return was_known.then_some(at);
                }
            }
        }
    }
}
