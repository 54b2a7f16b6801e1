//! Who works with views, and how an upgrade takes their mounts away.

use std::time::Duration;

use varve::{Error, Result};
use varve_fuse::UnmountMode;

use super::ViewDesk;
use super::admission_gate::{Closed, NotClosed, Working, being_upgraded};

/// How long an upgrade waits for requests about views: longer than a commit waits for locks.
const LEAVE_WAIT_MAX: Duration = Duration::from_secs(20);

impl ViewDesk {
    /// For who is about to [`ViewDesk::answer`], [`ViewDesk::transfer`] or [`ViewDesk::redesign`].
    pub(crate) fn enter(&self) -> Result<Working> {
        self.door.enter().ok_or_else(being_upgraded)
    }

    /// Takes all mounts of views away before another program takes the main one over, when nobody works with them any more.
    /// As long as what it gives is there nobody begins to.
    pub(crate) fn leave(&self) -> Result<Closed> {
        let closed = self.door.close(LEAVE_WAIT_MAX).map_err(|error| match error {
            NotClosed::Already => being_upgraded(),
            NotClosed::Busy => Error::failed(format!(
                "snapshots or transactions are being made, ended or sent, for {} seconds now",
                LEAVE_WAIT_MAX.as_secs()
            ))
            .hint("upgrade again when they are done"),
        })?;
        let attached = self.all_attached();
        self.check_elsewhere(&attached)?;
        for name in attached {
            self.end(&name, UnmountMode::Plain).map_err(|error| {
                error.hint("leave the views below .varve first: upgrade again then")
            })?;
        }
        Ok(closed)
    }
}
