//! How requests enter the service, and how an upgrade empties it.

use std::time::Duration;

use varve::{Error, Result};
use varve_fuse::UnmountMode;

use super::ViewService;
use super::admission_gate::{Admitted, GateClosed, NotClosed, being_upgraded};

/// How long an upgrade waits for requests about snapshots and transactions: longer than a commit waits for locks.
const LEAVE_WAIT_MAX: Duration = Duration::from_secs(20);

impl ViewService {
    /// Admits a request that calls [`ViewService::answer`], [`ViewService::transfer`] or [`ViewService::redesign`].
    pub(crate) fn enter(&self) -> Result<Admitted> {
        self.gate.enter().ok_or_else(being_upgraded)
    }

    /// Closes the gate and unmounts all snapshots and transactions, before another program takes the main mount over. Requests are
    /// refused until the returned value is dropped.
    pub(crate) fn leave(&self) -> Result<GateClosed> {
        let closed = self.gate.close(LEAVE_WAIT_MAX).map_err(|error| match error {
            NotClosed::Already => being_upgraded(),
            NotClosed::Busy => Error::failed(format!(
                "requests about snapshots or transactions have been under way for {} seconds",
                LEAVE_WAIT_MAX.as_secs()
            ))
            .hint("upgrade again when the requests are done"),
        })?;
        let attached = self.all_attached();
        self.check_elsewhere(&attached)?;
        for name in attached {
            self.end(&name, UnmountMode::Plain).map_err(|error| {
                error.hint("end the programs in directories below .varve, and upgrade again")
            })?;
        }
        Ok(closed)
    }
}
