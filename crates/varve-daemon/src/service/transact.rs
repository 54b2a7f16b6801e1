//! Transactions that programs on the mount begin and end by ioctl or extended attributes: the same as for clients of the socket, with
//! an errno for each refusal.

use std::sync::Arc;

use varve::transaction_options;
use varve_fs::{CommitError, ViewName};
use varve_fuse::UnmountMode;
use varve_vfs::{FsError, FsResult, Transact};

use super::{NotEnded, ViewService};

impl ViewService {
    /// Does what a program on the mount asks; returns the transaction's id.
    pub(super) fn transact(self: &Arc<Self>, what: Transact) -> FsResult<u64> {
        let _admitted = self.gate.enter().ok_or(FsError::TryAgain)?;
        self.check_writable()?;
        let name = |id: u64| ViewName::transaction(id.to_string());
        let ended = |id: u64, done: Result<(), NotEnded>| {
            // A transaction that has ended meanwhile is reported as such, whatever the refusal was.
            let gone = || self.fs().transaction(&id.to_string()).err();
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
                let name = self.fs().begin_transaction(dir, &options)?;
                self.begun(&name);
                self.attach_begun_soon(&name);
                name.name.parse().map_err(|_| FsError::Stale)
            }
            Transact::Commit(id) => {
                self.fs().transaction(&id.to_string())?;
                // The transaction that holds the locks may end by the same requests.
                ended(id, self.commit(&name(id), Some(&self.asked_waits)))
            }
            Transact::Abort(id) => {
                self.fs().transaction(&id.to_string())?;
                ended(id, self.abort(&name(id), UnmountMode::Force))
            }
        }
    }
}

/// The error that a program gets for a refused commit.
pub(crate) fn refused(error: CommitError) -> FsError {
    match error {
        CommitError::Conflict(told) => FsError::Conflict(told.join(", ")),
        CommitError::DeadlockVictim(_) => FsError::DeadlockVictim,
        CommitError::InUse(_) => FsError::TextBusy,
        CommitError::OverLimits(_) => FsError::QuotaExceeded,
        // The transaction stays open: the program can commit it when the others have ended.
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
