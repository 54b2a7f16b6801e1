//! What the front end that serves a mount does for the file system: attach views, begin and end transactions, write mapped memory back.
//!
//! In: functions of the front end, each replaced by the next front end's. Out: the function that is set. Never: calls one while a lock is
//! held here.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_types::InodeId;
use varve_vfs::{FsResult, Transact};

use super::name::ViewName;

/// Attaches a mount of the view to its place, or says why it cannot.
pub(super) type Attach = Arc<dyn Fn(&ViewName) -> FsResult<()> + Send + Sync>;

/// Makes the kernel write what programs have changed in mapped memory of files of the main tree, each with its path there.
pub(super) type WriteBack = Arc<dyn Fn(&[(InodeId, PathBuf)]) -> io::Result<()> + Send + Sync>;

/// Begins or ends a transaction, with its mount.
pub(super) type Transacting = Arc<dyn Fn(Transact) -> FsResult<u64> + Send + Sync>;

/// A function of the front end; `None` while no front end serves the file system.
pub(crate) struct Hook<F>(Mutex<Option<F>>);

impl<F: Clone> Hook<F> {
    /// Replaces the function.
    pub(super) fn set(&self, function: F) {
        *self.0.lock() = Some(function);
    }

    /// The function.
    pub(crate) fn get(&self) -> Option<F> {
        self.0.lock().clone()
    }
}

impl<F> Default for Hook<F> {
    fn default() -> Hook<F> {
        Hook(Mutex::new(None))
    }
}

/// The functions of the front end.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(super) attach: Hook<Attach>,
    pub(super) transacting: Hook<Transacting>,
    pub(crate) write_back: Hook<WriteBack>,
}
