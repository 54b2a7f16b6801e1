//! Why a snapshot or transaction does not end, and what those who asked for it are told.

use varve::{Error, exit_status, transactions};
use varve_fs::{CommitError, VarveFs, ViewName};
use varve_vfs::FsError;

use super::transitions::BeingEnded;

/// Why a transaction did not end, or what is missing of its commit.
pub(crate) enum NotEnded {
    Refused(CommitError),
    /// Another request ends it.
    ByAnother(BeingEnded),
    Failed(Error),
}

impl NotEnded {
    /// Whether the transaction stays open.
    pub(super) fn goes_on(&self) -> bool {
        match self {
            NotEnded::Refused(error) => error.committed().is_none(),
            NotEnded::ByAnother(_) | NotEnded::Failed(_) => true,
        }
    }

    /// The error of a command that was to commit the transaction `name`.
    pub(crate) fn explained(self, fs: &VarveFs, name: &ViewName) -> Error {
        match self {
            NotEnded::Refused(error) => transactions::not_committed(fs, &name.name, error),
            NotEnded::ByAnother(being) => Error::from(being).with_status(exit_status::CONFLICT),
            NotEnded::Failed(error) => error,
        }
    }

    /// The error of a program's call that was to end the transaction `id`. One that has ended meanwhile is reported as such, whatever
    /// the refusal was.
    pub(crate) fn told_to_program(self, fs: &VarveFs, id: u64) -> FsError {
        let gone = || fs.transaction(&id.to_string()).err();
        match self {
            NotEnded::Refused(error) => refused(error),
            NotEnded::ByAnother(_) => gone().unwrap_or(FsError::TryAgain),
            NotEnded::Failed(error) => {
                gone().unwrap_or_else(|| FsError::Storage(error.message().to_owned()))
            }
        }
    }
}

impl From<Error> for NotEnded {
    fn from(error: Error) -> NotEnded {
        NotEnded::Failed(error)
    }
}

impl From<BeingEnded> for NotEnded {
    fn from(being: BeingEnded) -> NotEnded {
        NotEnded::ByAnother(being)
    }
}

/// The error that a program gets for a refused commit.
fn refused(error: CommitError) -> FsError {
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
