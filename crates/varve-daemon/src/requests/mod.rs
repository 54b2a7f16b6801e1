//! Requests about snapshots, transactions and clones. The daemon answers them if it serves the store; else this process opens the store
//! and answers them ([`offline`]). Both use the same [`operations`].

mod offline;
pub(crate) mod operations;

use std::path::Path;

use serde_json::Value;
use varve::Result;
use varve_fs::fsck::Progress;

use crate::control::Request;
use crate::control::client;
pub use crate::control::{CloneRequest, ViewRequest};
use crate::target::Target;

/// Sends `request` for the store at `path`, or for the one that is mounted there; the answer is a JSON value.
pub fn ask(path: &Path, request: ViewRequest) -> Result<Value> {
    ask_target(&Target::at(path)?, request)
}

/// Rolls the store at `path`, or the one that is mounted there, back to its snapshot `name`. Calls `progress` as the work proceeds.
pub fn roll_back_watched(
    path: &Path,
    name: &str,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let request = ViewRequest::Rollback { name: name.to_owned(), dry_run: false, watched: true };
    ask_watching(&Target::at(path)?, request, progress).map(drop)
}

/// Sends `request` for the store `target`; the answer is a JSON value.
pub(crate) fn ask_target(target: &Target, request: ViewRequest) -> Result<Value> {
    ask_watching(target, request, &mut |_| ())
}

fn ask_watching(
    target: &Target,
    request: ViewRequest,
    progress: &mut dyn FnMut(Progress),
) -> Result<Value> {
    if !target.is_served()? {
        return offline::answer(&target.store, &request, progress);
    }
    client::ask_watching(target, &Request::Views(request), progress)
}
