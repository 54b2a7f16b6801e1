//! Snapshots that must not be deleted, as they are being sent or received upon.

use parking_lot::Mutex;

use crate::epoch::Epoch;

/// The epochs of the snapshots that are held, once for each time.
#[derive(Debug, Default)]
pub(crate) struct HeldEpochs(Mutex<Vec<Epoch>>);

/// Keeps snapshots from being deleted until it is dropped.
pub(crate) struct HeldSnapshots<'a> {
    held: &'a HeldEpochs,
    /// Their epochs, and the names by which the engine knows them.
    pub(crate) snapshots: Vec<(Epoch, String)>,
}

impl HeldEpochs {
    /// Holds these snapshots. REQUIRES: no view begins or ends.
    pub(super) fn hold(&self, snapshots: Vec<(Epoch, String)>) -> HeldSnapshots<'_> {
        self.0.lock().extend(snapshots.iter().map(|(epoch, _)| *epoch));
        HeldSnapshots { held: self, snapshots }
    }

    /// Whether the snapshot of this epoch is held.
    pub(super) fn contains(&self, epoch: Epoch) -> bool {
        self.0.lock().contains(&epoch)
    }
}

impl Drop for HeldSnapshots<'_> {
    fn drop(&mut self) {
        let mut held = self.held.0.lock();
        for (epoch, _) in &self.snapshots {
            if let Some(at) = held.iter().position(|other| other == epoch) {
                held.swap_remove(at);
            }
        }
    }
}
