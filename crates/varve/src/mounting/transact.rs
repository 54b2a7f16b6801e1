//! Transactions begun and ended by programs on the mount: the same as for clients, with an errno for each refusal.

use std::sync::Arc;

use varve_fs::{CommitError, ViewName};
use varve_fuse::UnmountMode;
use varve_vfs::{FsError, FsResult, Transact};

use super::views::{NotCommitted, ViewDesk};
use crate::{Error, transaction};

impl ViewDesk {
    /// Does what a program on the mount asks.
    pub(super) fn transact(self: &Arc<Self>, what: Transact) -> FsResult<u64> {
        let _working = self.door.enter().ok_or(FsError::TryAgain)?;
        let name = |id: u64| ViewName::transaction(id.to_string());
        let failed = |error: Error| FsError::Storage(error.message().to_owned());
        match what {
            Transact::Begin { dir, how } => {
                let options = transaction::options(&how);
                let options =
                    options.ok_or(FsError::Invalid("a transaction has no such option"))?;
                let name = self.fs.begin_transaction(dir, &options)?;
                self.begun(&name);
                self.attach_begun_soon(&name);
                name.name.parse().map_err(|_| FsError::Stale)
            }
            Transact::Commit(id) => {
                self.fs.transaction(&id.to_string())?;
                self.commit(&name(id)).map(|()| id).map_err(|error| match error {
                    NotCommitted::Refused(CommitError::Conflict(told)) => {
                        FsError::Conflict(told.join(", "))
                    }
                    NotCommitted::Refused(CommitError::GaveWay(_)) => FsError::GaveWay,
                    NotCommitted::Refused(CommitError::InUse(_)) => FsError::TextBusy,
                    NotCommitted::Refused(CommitError::OverLimits(_)) => FsError::QuotaExceeded,
                    NotCommitted::Refused(CommitError::Failed(error)) => error,
                    NotCommitted::Failed(error) => failed(error),
                })
            }
            Transact::Abort(id) => {
                self.fs.transaction(&id.to_string())?;
                self.abort(&name(id), UnmountMode::Force).map(|()| id).map_err(failed)
            }
        }
    }
}
