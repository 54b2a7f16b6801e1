//! Sends a snapshot from an open store, and receives one into an open store.

use std::io::{self, Write};

use serde_json::{Value, json};
use varve::snapshots::not_found as no_snapshot;
use varve::{Error, Result};
use varve_fs::stream::frame::{FrameReader, Header};
use varve_fs::stream::{Receipt, ReceiveError, Received, Totals};
use varve_fs::{CommitError, Committed, VarveFs};
use varve_vfs::FsError;

use crate::control::SendRequest;

/// The answer to a client about a receipt.
pub(super) fn told(received: &Received) -> Value {
    let Totals { rows, files, bytes } = received.totals;
    json!({ "name": received.snapshot.name, "id": received.snapshot.id, "rows": rows, "files": files, "bytes": bytes })
}

/// Sends from an open store.
pub(super) fn send_from(fs: &VarveFs, request: &SendRequest, out: &mut dyn Write) -> Result<Value> {
    let SendRequest { name, since, resumed } = request;
    let sent = fs.send_snapshot(name, since.as_deref(), resumed.as_ref(), out, &mut |_| ());
    let Totals { rows, files, bytes } = sent.map_err(|error| match error {
        FsError::NotFound => {
            let known = fs.view_names(varve_fs::ViewKind::Snapshot).unwrap_or_default();
            let is_missing = |name: &&String| known.iter().all(|view| view.name != **name);
            no_snapshot(since.as_ref().filter(is_missing).unwrap_or(name), error)
        }
        FsError::Invalid(rule) if resumed.is_some() => {
            Error::failed(rule).hint("send the snapshot from its beginning")
        }
        FsError::Invalid(rule) => {
            Error::failed(rule).hint("name the later snapshot, and the older one with --since")
        }
        FsError::Conflict(dropped) => {
            Error::failed(dropped).hint("make a snapshot of what is there now, and send that")
        }
        other => Error::from(other),
    })?;
    Ok(json!({ "name": name, "rows": rows, "files": files, "bytes": bytes }))
}

/// Receives into an open store. Calls `follow` with what has changed.
pub(super) fn receive_into(
    fs: &VarveFs,
    header: &Header,
    stream: &mut FrameReader<'_>,
    follow: impl FnOnce(&Committed),
) -> Result<Received> {
    let done = fs.receive_snapshot(header, stream, &mut |_| ());
    let committed = match &done {
        Ok(received) => Some(&received.committed),
        Err(error) => error.committed(),
    };
    if let Some(committed) = committed {
        follow(committed);
    }
    done.map_err(|error| refused(Some(fs), error))
}

pub(super) fn refused(fs: Option<&VarveFs>, error: ReceiveError) -> Error {
    match error {
        ReceiveError::Refused(text, hint) => Error::failed(text).hint(hint),
        ReceiveError::Stream(text) => Error::failed(format!("nothing was received: {text}"))
            .hint("send it again; `varve snapshot send` says whether it could write all of it"),
        ReceiveError::Interrupted(error) => {
            let receipt = fs.and_then(|fs| fs.interrupted_receipt().ok().flatten());
            let error = Error::failed(format!("nothing was received yet: {error}"));
            match receipt.filter(|receipt| receipt.position.is_some()) {
                Some(receipt) => error.hint(format!(
                    "go on with `varve snapshot send STORE --resume {}`",
                    receipt.token()
                )),
                None => error.hint("send it again"),
            }
        }
        ReceiveError::Commit(CommitError::InUse(paths)) => Error::failed(format!(
            "nothing was received, as large files are open for writing:\n  {}",
            paths.join("\n  ")
        ))
        .hint("close them, and receive again"),
        ReceiveError::Commit(CommitError::Conflict(paths)) => Error::failed(format!(
            "nothing was received, as programs have changed:\n  {}",
            paths.join("\n  ")
        ))
        .hint("stop them, roll back to the last snapshot, and receive again"),
        // The limits of the snapshot hold.
        ReceiveError::Commit(CommitError::OverLimits(trees)) => Error::failed(trees.join(", ")),
        ReceiveError::Commit(CommitError::Unfinished(_, error)) => Error::from(error),
        ReceiveError::Commit(CommitError::DeadlockVictim(why)) => {
            Error::failed(format!("nothing was received: {why}"))
        }
        ReceiveError::Commit(CommitError::Failed(error)) => match error {
            FsError::Invalid(rule) => Error::failed("the snapshot's name cannot be one").hint(rule),
            other => cut_short(fs, other),
        },
    }
}

/// The error for a store that could not take the rest of the stream.
pub(super) fn cut_short(fs: Option<&VarveFs>, error: FsError) -> Error {
    let is_full = matches!(error, FsError::NoSpace(_));
    let cause = Error::from(error);
    let receipt = fs.and_then(|fs| fs.interrupted_receipt().ok().flatten());
    if receipt.and_then(|receipt| receipt.position).is_none() {
        return cause;
    }
    let first = match cause.next_step() {
        Some(next) => next.to_owned(),
        None if is_full => "make room".to_owned(),
        None => "mend that".to_owned(),
    };
    Error::failed(format!("nothing was received yet: {}", cause.message())).hint(format!(
        "{first}; what has come is kept, and takes room: `varve snapshot receive --token` prints with what `varve snapshot send \
         --resume` goes on, `varve snapshot receive --discard` drops it"
    ))
}

/// The token of the interrupted receipt of an open store, if there is one.
pub(crate) fn token(fs: &VarveFs) -> Result<Value> {
    let receipt = fs.interrupted_receipt()?;
    let receipt = receipt.filter(|receipt| receipt.position.is_some());
    Ok(json!({ "token": receipt.as_ref().map(Receipt::token) }))
}

/// Drops the interrupted receipt of an open store.
pub(crate) fn discard(fs: &VarveFs) -> Result<Value> {
    match fs.discard_receipt() {
        Ok(()) => Ok(Value::Null),
        Err(ReceiveError::Commit(CommitError::Failed(error))) => Err(error.into()),
        Err(error) => Err(refused(Some(fs), error)),
    }
}

pub(super) fn unreadable(error: &io::Error) -> Error {
    Error::failed(format!("nothing was received: {error}"))
        .hint("give what `varve snapshot send` has written")
}
