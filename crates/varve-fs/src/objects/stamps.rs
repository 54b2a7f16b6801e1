//! Times that objects were given and that the storage below keeps otherwise: less exactly, or not so far from now.
//!
//! The time of a dirty file is that of its object, unless nobody has written since it was given one. Without what is noted here the
//! storage's version of the time would pass for that of a write.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use varve_types::{InodeId, Timestamp};

use crate::id_hash::IdHash;

/// The most objects of which it is noted. The times of others become what the storage makes of them.
const STAMPS_MAX: usize = 1 << 16;

/// By object, while its row is dirty. On storage that keeps times as they are there are none.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    any: AtomicBool,
    stamps: Mutex<HashMap<InodeId, Stamp, IdHash>>,
}

/// A time that an object was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The time.
    pub(crate) mtime: Timestamp,
    /// What the object has instead.
    pub(crate) kept: Timestamp,
}

impl Stamps {
    /// Notes what became of the time that an object was given.
    pub(crate) fn note(&self, ino: InodeId, stamp: Stamp) {
        if stamp.kept == stamp.mtime {
            return self.forget(ino);
        }
        let mut stamps = self.stamps.lock();
        if stamps.len() < STAMPS_MAX || stamps.contains_key(&ino) {
            stamps.insert(ino, stamp);
            self.any.store(true, Ordering::Release);
        }
    }

    /// Whether that is what became of it.
    pub(crate) fn is_noted(&self, ino: InodeId, stamp: Stamp) -> bool {
        self.any.load(Ordering::Acquire) && self.stamps.lock().get(&ino) == Some(&stamp)
    }

    /// Its row is clean, or it is removed.
    pub(crate) fn forget(&self, ino: InodeId) {
        if self.any.load(Ordering::Acquire) {
            self.stamps.lock().remove(&ino);
        }
    }
}
