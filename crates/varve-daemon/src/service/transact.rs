//! Transactions begun and ended by programs on the mount: the same as for clients, with an errno for each refusal.

use std::sync::Arc;

use varve::transaction_options;
use varve_fs::{CommitError, ViewName};
use varve_fuse::UnmountMode;
use varve_vfs::{FsError, FsResult, Transact};

use super::{NotEnded, ViewDesk};

impl ViewDesk {
    /// Does what a program on the mount asks.
    pub(super) fn transact(self: &Arc<Self>, what: Transact) -> FsResult<u64> {
        let _working = self.door.enter().ok_or(FsError::TryAgain)?;
        self.check_writable()?;
        let name = |id: u64| ViewName::transaction(id.to_string());
        let ended = |id: u64, done: Result<(), NotEnded>| {
            // Whoever comes too late is told so, whatever he has met.
            let gone = || self.fs.transaction(&id.to_string()).err();
            done.map(|()| id).map_err(|error| match error {
                NotEnded::Refused(error) => refused(error),
                NotEnded::ByAnother(_) => gone().unwrap_or(FsError::TryAgain),
                NotEnded::Failed(error) => {
                    gone().unwrap_or_else(|| FsError::Storage(error.message().to_owned()))
                }
            })
        };
        match what {
            Transact::Begin { dir, how } => {
                self.check_shows_views()?;
                let options = transaction_options::parse(&how);
                let options =
                    options.ok_or(FsError::Invalid("a transaction has no such option"))?;
                let name = self.fs.begin_transaction(dir, &options)?;
                self.begun(&name);
                self.attach_begun_soon(&name);
                name.name.parse().map_err(|_| FsError::Stale)
            }
            Transact::Commit(id) => {
                self.fs.transaction(&id.to_string())?;
                // Whoever is waited for may end by the same way.
                ended(id, self.commit(&name(id), Some(&self.asked_waits)))
            }
            Transact::Abort(id) => {
                self.fs.transaction(&id.to_string())?;
                ended(id, self.abort(&name(id), UnmountMode::Force))
            }
        }
    }
}

/// What a program is told of a commit that does not go.
fn refused(error: CommitError) -> FsError {
    match error {
        CommitError::Conflict(told) => FsError::Conflict(told.join(", ")),
        CommitError::GaveWay(_) => FsError::GaveWay,
        CommitError::InUse(_) => FsError::TextBusy,
        CommitError::OverLimits(_) => FsError::QuotaExceeded,
        // Nothing of it is lost by that: it can be committed when they have ended.
        CommitError::Failed(FsError::Blocked(_)) => FsError::TryAgain,
        CommitError::Failed(error) => error,
        CommitError::Unfinished(_, error) => FsError::Storage(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use varve_fs::Committed;
    use varve_types::Errno;
    use varve_vfs::Blocked;

    use super::*;

    /// What a program can do differs: commit again, abort, or look what there is.
    #[test]
    fn each_refusal_has_its_errno() {
        let blocked = FsError::Blocked(Blocked { wait: 1, by: vec![2], released: 0 });
        let full = || FsError::NoSpace("full".to_owned());
        for (error, errno) in [
            (CommitError::Failed(blocked), Errno::Again),
            (CommitError::Conflict(Vec::new()), Errno::Busy),
            (CommitError::InUse(Vec::new()), Errno::TextBusy),
            (CommitError::Failed(full()), Errno::NoSpace),
            (CommitError::Unfinished(Committed::default(), full()), Errno::Io),
        ] {
            let told = format!("{error:?}");
            assert_eq!(refused(error).errno(), errno, "{told}");
        }
    }
}
