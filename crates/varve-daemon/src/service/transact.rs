//! Transactions that programs on the mount begin and end by ioctl or extended attributes: the same as for clients of the socket, with
//! an errno for each refusal.

use std::sync::Arc;

use varve::transaction_options;
use varve_fs::ViewName;
use varve_fuse::UnmountMode;
use varve_vfs::{FsError, FsResult, Transact};

use super::{NotEnded, ViewService};

impl ViewService {
    /// Does what a program on the mount asks; returns the transaction's id.
    pub(super) fn transact(self: &Arc<Self>, what: Transact) -> FsResult<u64> {
        let _admitted = self.gate.enter().ok_or(FsError::TryAgain)?;
        self.check_writable()?;
        let name = |id: u64| ViewName::transaction(id.to_string());
        let fs = self.fs();
        let ended = |id: u64, done: Result<(), NotEnded>| {
            done.map(|()| id).map_err(|error| error.told_to_program(&fs, id))
        };
        match what {
            Transact::Begin { dir, how } => {
                self.check_shows_views()?;
                let options = transaction_options::parse(&how);
                let options =
                    options.ok_or(FsError::Invalid("a transaction has no such option"))?;
                let name = fs.begin_transaction(dir, &options)?;
                self.begun(&name);
                self.attach_begun_soon(&name);
                name.name.parse().map_err(|_| FsError::Stale)
            }
            Transact::Commit(id) => {
                fs.transaction(&id.to_string())?;
                // The transaction that holds the locks may end by the same requests.
                ended(id, self.commit(&name(id), Some(&self.asked_waits)))
            }
            Transact::Abort(id) => {
                fs.transaction(&id.to_string())?;
                ended(id, self.abort(&name(id), UnmountMode::Force))
            }
        }
    }
}
