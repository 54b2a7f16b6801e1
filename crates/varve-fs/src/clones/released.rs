//! Sources that may be needed no more, so that one reference that is returned has one source looked at.
//!
//! A source that something in the main tree reads from needs no look before that returns a reference. Of another that is hidden it was
//! seen that a view still reads from it, and a look is needed when a view ends; or it is to be looked at now.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::epoch::Epoch;

/// The sources of which it is to be seen whether anything still reads from them.
#[derive(Debug)]
pub(super) struct Released {
    is_due: AtomicBool,
    sources: Mutex<ReturnedSources>,
}

#[derive(Debug)]
struct ReturnedSources {
    now: BTreeSet<Epoch>,
    /// When a view has ended.
    of_views: BTreeSet<Epoch>,
}

impl Released {
    /// All of these are to be looked at.
    pub(super) fn of(now: BTreeSet<Epoch>) -> Released {
        let sources = Mutex::new(ReturnedSources { now, of_views: BTreeSet::new() });
        Released { is_due: AtomicBool::new(true), sources }
    }

    /// A reference of `source` was returned.
    pub(super) fn note(&self, source: Epoch) {
        self.sources.lock().now.insert(source);
        self.is_due.store(true, Ordering::Release);
    }

    /// Only views read from `source`.
    pub(super) fn note_of_views(&self, source: Epoch) {
        self.sources.lock().of_views.insert(source);
    }

    /// Whether some are to be looked at now.
    pub(super) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    /// Takes the sources to be looked at now.
    pub(super) fn take(&self) -> BTreeSet<Epoch> {
        self.is_due.store(false, Ordering::Release);
        std::mem::take(&mut self.sources.lock().now)
    }

    /// Takes the sources older than `before` that only views read from, one of which has ended.
    pub(super) fn take_of_views(&self, before: Epoch) -> BTreeSet<Epoch> {
        let of_views = &mut self.sources.lock().of_views;
        let others = of_views.split_off(&before);
        std::mem::replace(of_views, others)
    }

    /// These could not be looked at, and are with the next ones.
    pub(super) fn put_back(&self, sources: BTreeSet<Epoch>) {
        self.sources.lock().now.extend(sources);
    }
}
