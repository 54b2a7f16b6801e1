//! What the main tree knows of its views, and what the file system of a view is made of.
//!
//! In: the engine's store. Out: the store, the lock that is held while a view begins or ends, and the parts of the rooms that have views.
//! Never: begins or ends one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use varve_engine::{Db, Store};

use super::hooks::Hooks;
use crate::dictionaries::Dictionaries;
use crate::epoch::Epoch;
use crate::snapshots::HeldEpochs;
use crate::synthetic::Links;
use crate::transactions::{OpenTransactions, SerialStore};

/// What the main tree knows of its views.
pub(crate) struct Views {
    db: Arc<Db>,
    pub(crate) links: Links,
    pub(crate) hooks: Hooks,
    pub(crate) open: OpenTransactions,
    pub(crate) held: HeldEpochs,
    /// Held while a view begins or ends; not while a commit of rows alone waits to be durable.
    changing: Mutex<()>,
    /// The store is being closed, and views are left to the next mount.
    closed: AtomicBool,
    /// Held while a snapshot is received.
    pub(crate) receiving: Mutex<()>,
}

impl Views {
    /// The views of the store `db`; `random` is drawn anew each time.
    pub(crate) fn new(db: Arc<Db>, random: u64) -> Views {
        Views {
            db,
            links: Links::new(random),
            hooks: Hooks::default(),
            open: OpenTransactions::default(),
            held: HeldEpochs::default(),
            changing: Mutex::default(),
            closed: AtomicBool::new(false),
            receiving: Mutex::default(),
        }
    }

    /// The store.
    pub(crate) fn db(&self) -> &Arc<Db> {
        &self.db
    }

    /// Keeps views from beginning and ending.
    pub(crate) fn lock_changes(&self) -> MutexGuard<'_, ()> {
        self.changing.lock()
    }

    /// The same, unless it would have to wait.
    pub(crate) fn try_lock_changes(&self) -> Option<MutexGuard<'_, ()>> {
        self.changing.try_lock()
    }

    /// Waits until no view begins or ends. What still has to follow commits then is left to the next mount.
    pub(crate) fn close(&self) {
        let _changing = self.changing.lock();
        self.closed.store(true, Ordering::Release);
    }

    /// Makes the ends of views durable that may be in the log alone: a power cut would bring a transaction back without the files
    /// that are removed next. False, and that is logged, if it cannot be.
    pub(crate) fn make_ends_durable(&self) -> bool {
        let synced = self.db.sync();
        if let Err(error) = &synced {
            log::warn!("what views that have ended left stays until the next mount: {error}");
        }
        synced.is_ok()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Views {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Views").finish_non_exhaustive()
    }
}

/// What the file system of a view is made of.
pub(crate) struct ViewParts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dictionaries: Dictionaries,
    /// The epoch as of which it sees large files; `None`: as they are.
    pub(crate) sees_objects_of: Option<Epoch>,
    pub(crate) epoch: Epoch,
    /// The store, if this is a serializable transaction.
    pub(crate) serial: Option<Arc<SerialStore>>,
}
