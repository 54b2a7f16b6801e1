//! A simulated machine on which the store runs its threads.

use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use varve_env::OpenMode;
use varve_env::sim::SimEnv;
use varve_testkit::hooked::{HookedEnv, Hooks};

/// Lets compaction be held.
#[derive(Debug, Default)]
pub(crate) struct CompactionGate {
    is_held: Mutex<bool>,
    changed: Condvar,
}

/// A [`SimEnv`] that does not ask for determinism, and on which compaction can be held.
pub(crate) type Threaded = HookedEnv<CompactionGate>;

/// `sim` so, with nothing held.
pub(crate) fn threaded(sim: &Arc<SimEnv>) -> Threaded {
    HookedEnv::new(sim, CompactionGate::default())
}

impl CompactionGate {
    /// Lets compactions begin no table, or go on.
    pub(crate) fn hold(&self, hold: bool) {
        *self.is_held.lock() = hold;
        self.changed.notify_all();
    }

    fn wait_if_held(&self) {
        if std::thread::current().name() != Some("varve-compact") {
            return;
        }
        let mut held = self.is_held.lock();
        while *held {
            self.changed.wait(&mut held);
        }
    }
}

impl Hooks for CompactionGate {
    fn before_open(&self, _path: &Path, mode: OpenMode) -> io::Result<()> {
        if mode == OpenMode::CreateNew {
            self.wait_if_held();
        }
        Ok(())
    }

    fn is_deterministic(&self) -> bool {
        false
    }
}
