//! What is being received: a transaction that nobody sees, which survives the death of its process.
//!
//! 1. With its rows it holds the [`Receipt`]: what comes, and how far it is.
//! 2. It is gone on with by a stream that begins there, or dropped ([`VarveFs::discard_receipt`]).
//! 3. Its commit brings a row that says which snapshot the present state is to be. The snapshot is made before anything
//!    else can change, after a crash by the next mount ([`VarveFs::name_received`]).

use parking_lot::MutexGuard;
use serde::{Deserialize, Serialize};
use varve_engine::{Batch, Store};
use varve_schema::RowKey;
use varve_vfs::{FsError, FsResult};

use super::frame::{Position, SnapshotId};
use super::outcome::ReceiveError;
use super::{hex, unhex};
use crate::error;
use crate::fs::VarveFs;
use crate::snapshots::stored_name::stored_name;
use crate::transactions::{Purpose, Transaction};

/// Where a transaction keeps its receipt, in its private key space, whose keys have 16 bytes.
pub(super) const RECEIPT_KEY: &[u8] = b"received so far.";
/// The row that says which snapshot the present state is to be.
pub(super) const TO_BE_NAMED: RowKey = varve_schema::key::RECEIVED;

/// What is being received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// What comes.
    pub snapshot: SnapshotId,
    /// Since when.
    pub base: Option<SnapshotId>,
    /// What has come; `None` if nothing.
    pub position: Option<Position>,
}

impl Receipt {
    /// What stands for it on command lines.
    pub fn token(&self) -> String {
        hex(&serde_json::to_vec(self).unwrap_or_default())
    }

    /// The one that `token` stands for.
    pub fn of_token(token: &str) -> Option<Receipt> {
        serde_json::from_slice(&unhex(token)?).ok()
    }
}

impl VarveFs {
    /// What was being received when it was interrupted.
    pub fn interrupted_receipt(&self) -> FsResult<Option<Receipt>> {
        Ok(self.open_receipt()?.map(|(_, receipt)| receipt))
    }

    pub(super) fn open_receipt(&self) -> FsResult<Option<(Transaction, Receipt)>> {
        for txn in self.all_transactions()? {
            if txn.purpose == Purpose::Receive {
                let branch = self.views()?.db().open_branch(txn.branch).map_err(error::store)?;
                let noted = branch.get(self.lookups, RECEIPT_KEY).map_err(error::store)?;
                let receipt = noted.and_then(|noted| serde_json::from_slice(&noted).ok());
                return Ok(receipt.map(|receipt| (txn, receipt)));
            }
        }
        Ok(None)
    }

    /// Drops what was being received when it was interrupted; refused while something is.
    pub fn discard_receipt(&self) -> Result<(), ReceiveError> {
        let _alone = self.receive_alone()?;
        Ok(self.drop_receipt()?)
    }

    /// Keeps others from receiving.
    pub(super) fn receive_alone(&self) -> Result<MutexGuard<'_, ()>, ReceiveError> {
        let refused = || {
            ReceiveError::Refused(
                "another snapshot is being received here".to_owned(),
                "wait until that is done, or end the `varve snapshot receive` that waits for its stream: what has come is kept",
            )
        };
        self.views()?.receiving.try_lock().ok_or_else(refused)
    }

    /// REQUIRES: nobody receives but the caller.
    pub(super) fn drop_receipt(&self) -> FsResult<()> {
        self.writable()?;
        for txn in self.all_transactions()? {
            if txn.purpose == Purpose::Receive {
                self.drop_transaction(&txn.name().name)?;
            }
        }
        Ok(())
    }

    /// Step 3. Gives why what was received cannot have its name, which it then never gets: what the state is later is another.
    /// REQUIRES: nothing changes.
    pub(crate) fn name_received(&self) -> FsResult<Option<FsError>> {
        let Err(error) = self.try_name_received() else { return Ok(None) };
        self.is_not_to_be_named()?;
        Ok(Some(error))
    }

    fn is_not_to_be_named(&self) -> FsResult<()> {
        let mut batch = Batch::new();
        batch.reclaims_space();
        batch.delete(self.meta, TO_BE_NAMED.to_bytes());
        self.store.write(batch).map_err(error::store)
    }

    fn try_name_received(&self) -> FsResult<()> {
        let key = TO_BE_NAMED.to_bytes();
        let Some(row) = self.store.get(self.meta, &key).map_err(error::store)? else {
            return Ok(());
        };
        let (Some(views), Some(preimages)) = (&self.views, self.objects.preimages()) else {
            return Ok(());
        };
        let unreadable = || {
            FsError::Storage(
                "the row of a received snapshot cannot be read; run `varve fsck`".to_owned(),
            )
        };
        let SnapshotId { id, name } = SnapshotId::of_row(&row).ok_or_else(unreadable)?;
        if self.find_snapshot(&name)?.is_none() {
            let straight = self.written_straight()?;
            let epoch = self.ids.begin_epoch()?;
            let stored = stored_name(epoch, &id, &name);
            preimages.begin(epoch);
            let made = views.db().create_snapshot(&stored).map_err(error::store);
            let unmake = |_: &_| views.db().delete_snapshot(&stored);
            self.save_straight(epoch, &straight, made, unmake)?;
        }
        // Else a later state might be taken for it, once the snapshot is deleted.
        self.is_not_to_be_named()?;
        self.store.sync().map_err(error::store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::frame::FilePosition;

    #[test]
    fn what_is_to_be_named_is_written_as_version_1_wrote_it() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1/received.row");
        let id = "0123456789abcdef".repeat(2);
        let written = SnapshotId { id, name: "before \"the\" change".to_owned() };
        varve_testkit::golden(path, &written.row());
        assert_eq!(SnapshotId::of_row(&written.row()), Some(written));
    }

    #[test]
    fn a_token_stands_for_its_receipt_alone() {
        let snapshot = SnapshotId { id: "0123456789abcdef".repeat(2), name: "e\u{301}".to_owned() };
        let file = Some(FilePosition { ino: u64::MAX, offset: 0 });
        let position = Some(Position { space: 3, key: "00ff".to_owned(), file });
        for base in [None, Some(snapshot.clone())] {
            let position = position.clone();
            let receipt = Receipt { snapshot: snapshot.clone(), base, position };
            let token = receipt.token();
            assert_eq!(Receipt::of_token(&token).as_ref(), Some(&receipt));
            for wrong in [&token[1..], &token[2..], &token[..token.len() - 1], "", "+1", "x0"] {
                assert_eq!(Receipt::of_token(wrong), None, "{wrong}");
            }
        }
    }
}
