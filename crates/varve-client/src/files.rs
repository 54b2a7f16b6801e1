//! The files that the front end has open, under numbers that this client chooses.
//!
//! A server that has begun anew does not know them, so the client opens each of them again under its number.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use varve_types::InodeId;
use varve_vfs::OpenFlags;

/// An open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFile {
    pub(crate) ino: InodeId,
    /// How it is opened again: what an open does only once is not in it.
    pub(crate) flags: OpenFlags,
}

/// All open files.
#[derive(Default)]
pub(crate) struct Files {
    open: Mutex<HashMap<u64, OpenFile>>,
    next: AtomicU64,
}

impl Files {
    /// Returns a number that no open file has.
    pub(crate) fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes an open file.
    pub(crate) fn opened(&self, file: u64, ino: InodeId, flags: OpenFlags) {
        let flags = OpenFlags { truncate: false, exclusive: false, ..flags };
        self.open.lock().insert(file, OpenFile { ino, flags });
    }

    pub(crate) fn released(&self, file: u64) {
        self.open.lock().remove(&file);
    }

    pub(crate) fn all(&self) -> Vec<(u64, OpenFile)> {
        self.open.lock().iter().map(|(file, open)| (*file, *open)).collect()
    }
}
