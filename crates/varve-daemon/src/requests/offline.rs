//! Answers a request in this process, for a store that no daemon serves.

use std::path::Path;

use serde_json::{Value, json};
use varve::{Error, FileSystem, Result, snapshots, transactions};
use varve_fs::MountOptions;
use varve_fs::fsck::Progress;

use super::operations;
use crate::control::ViewRequest;
use crate::transfer;

/// Opens the store in the directory `store`, does `request` and closes the store.
pub(super) fn answer(
    store: &Path,
    request: &ViewRequest,
    progress: &mut dyn FnMut(Progress),
) -> Result<Value> {
    let file_system = FileSystem::open(store, &MountOptions::default())?;
    let fs = file_system.inner();
    let done = match request {
        ViewRequest::CreateSnapshot { name } => {
            snapshots::create(&fs, name).map(|_| json!({ "name": name, "path": null }))
        }
        ViewRequest::DeleteSnapshot { name } => snapshots::delete(&fs, name).map(|()| Value::Null),
        ViewRequest::ListSnapshots => operations::list_snapshots(&fs, None),
        ViewRequest::DiffSnapshots { from, to } => {
            operations::diff_snapshots(&fs, from, to.as_deref())
        }
        ViewRequest::Rollback { name, dry_run: true, .. } => operations::rollback_diff(&fs, name),
        ViewRequest::Rollback { name, dry_run: false, .. } => {
            operations::roll_back(&fs, name, progress, |_| ()).map(|()| Value::Null)
        }
        ViewRequest::Commit { id } => operations::commit(&fs, id, None, None)
            .map(|_| Value::Null)
            .map_err(|error| transactions::not_committed(&fs, id, error)),
        ViewRequest::Receipt => transfer::token(&fs),
        ViewRequest::DiscardReceipt => transfer::discard(&fs),
        ViewRequest::Send(_) | ViewRequest::Receive => Err(Error::usage(
            "this request cannot carry a stream: use `varve snapshot send` and `receive`"
                .to_owned(),
        )),
        ViewRequest::Abort { id } => transactions::abort(&fs, id).map(|()| Value::Null),
        ViewRequest::ListTransactions => operations::list_transactions(&fs, None)
            .map(|listed| listed.into_iter().map(|(_, told)| told).collect()),
        ViewRequest::Diff { id } => operations::diff(&fs, id),
        ViewRequest::Status { id } => operations::status(&fs, id, None).map(|(_, told)| told),
        ViewRequest::Begin { .. } => {
            Err(Error::failed("a transaction begins on a mount, and the store is not mounted")
                .hint("mount the store by `varve mount STORE DIR` first"))
        }
        ViewRequest::Clone(_) => {
            Err(Error::failed("a clone is made on a mount, and the store is not mounted")
                .hint("mount the store by `varve mount STORE DIR` first"))
        }
    };
    file_system.close()?;
    done
}
