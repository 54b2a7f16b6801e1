//! The inodes that stay looked up for clients.
//!
//! A file system knows where an inode is as long as a front end holds a lookup of it. Clients say where they found an
//! inode in each request, so the server need not remember all that they know: the inodes of the latest requests stay
//! looked up once, at most [`NODES_MAX`]. Any other is found again by its place.

use std::collections::HashMap;

use parking_lot::Mutex;
use varve_types::InodeId;
use varve_vfs::{FsResult, Place, Vfs};
use varve_wire::Node;

/// The most inodes that stay looked up.
const NODES_MAX: usize = 1 << 17;
const SHARDS: usize = 64;

#[derive(Default)]
struct Shard {
    /// Whether the inode was used since the hand came by.
    used: HashMap<u64, bool>,
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

    /// Takes over a lookup that the file system has counted.
    pub(crate) fn note(&self, vfs: &dyn Vfs, ino: InodeId) {
        let mut shard = self.shard(ino).lock();
        let superfluous = shard.insert(ino.get());
        drop(shard);
        if let Some(ino) = superfluous {
            vfs.forget(InodeId::new(ino), 1);
        }
    }

    /// Finds the inode of a request, unless it is looked up already.
    pub(crate) fn recall(&self, vfs: &dyn Vfs, node: Node) -> FsResult<InodeId> {
        let ino = InodeId::new(node.ino);
        if let Some(used) = self.shard(ino).lock().used.get_mut(&node.ino) {
            *used = true;
            return Ok(ino);
        }
        let place = node.place.map(Place::from_bytes);
        // A walk over the file system is nothing that a client may ask for at will.
        let found = vfs.lookup_at(ino, place, false)?;
        self.note(vfs, found.attr.ino);
        Ok(ino)
    }

    /// Forgets all inodes.
    pub(crate) fn clear(&self, vfs: &dyn Vfs) {
        for shard in &self.shards {
            let shard = std::mem::take(&mut *shard.lock());
            shard.used.into_keys().for_each(|ino| vfs.forget(InodeId::new(ino), 1));
        }
    }

    /// Forgets an inode that is gone.
    pub(crate) fn forget(&self, vfs: &dyn Vfs, ino: InodeId) {
        let mut shard = self.shard(ino).lock();
        let was_known = shard.used.remove(&ino.get()).is_some();
        drop(shard);
        if was_known {
            vfs.forget(ino, 1);
        }
    }
}

impl Shard {
    /// Adds a number, and returns the number whose lookup is one too many: its own if it was there, or the one that
    /// it displaces.
    fn insert(&mut self, number: u64) -> Option<u64> {
        if self.used.insert(number, true).is_some() {
            return Some(number);
        }
        if self.ring.len() < NODES_MAX / SHARDS {
            self.ring.push(number);
            return None;
        }
        // The clock: what was used since the hand came by stays for another round.
        loop {
            self.hand = (self.hand + 1) % self.ring.len();
            let at = self.ring[self.hand];
            match self.used.get_mut(&at) {
                Some(used) if *used && at != number => *used = false,
                Some(_) if at == number => {}
                known => {
                    let was_known = known.is_some();
                    self.used.remove(&at);
                    self.ring[self.hand] = number;
                    return was_known.then_some(at);
                }
            }
        }
    }
}
