//! What the requests about snapshots and transactions do to an open store, and their answers.
//!
//! The answers are JSON values, the same for a client of a daemon and for a process that has opened the store itself.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use varve::snapshots::not_found as no_snapshot;
use varve::transactions::not_found as no_transaction;
use varve::{Error, Result};
use varve_engine::paths::WritePaths;
use varve_fs::fsck::Progress;
use varve_fs::{
    ChangeKind, CommitError, Committed, Original, RollBackError, Transaction, TransactionLocks,
    VarveFs, ViewKind, ViewName,
};
use varve_types::{FileName, InodeId};
use varve_vfs::{FsError, Vfs, in_time};

use crate::control::CloneRequest;
use crate::slots::Slots;

/// How long a commit waits for large files to be closed: the kernel reports a close(2) after it has returned, when the program may have
/// ended already.
const CLOSE_WAIT_MAX: Duration = Duration::from_millis(200);

/// How often to check whether they are closed.
const CLOSE_POLL: Duration = Duration::from_millis(5);

/// The paths that changed between two snapshots, or since a snapshot.
pub(crate) fn diff_snapshots(fs: &VarveFs, from: &str, to: Option<&str>) -> Result<Value> {
    let diff = fs.snapshot_diff(from, to).map_err(|error| match error {
        FsError::NotFound => {
            let known = fs.view_names(ViewKind::Snapshot).unwrap_or_default();
            let missing = [Some(from), to].into_iter().flatten();
            let mut missing = missing.filter(|name| known.iter().all(|view| view.name != **name));
            no_snapshot(missing.next_back().unwrap_or(from), error)
        }
        FsError::Invalid(_) => Error::failed("the first snapshot is later than the second")
            .hint("name the older snapshot first"),
        other => Error::from(other),
    })?;
    Ok(json!({ "changes": diff.changes, "complete": diff.complete }))
}

/// Makes the clone of a request.
pub(crate) fn clone(fs: &VarveFs, request: &CloneRequest) -> Result<InodeId> {
    let CloneRequest { snapshot, dir, name, into, to } = request;
    let name = name.as_deref().map(FileName::new).transpose().map_err(FsError::from)?;
    let to = FileName::new(to).map_err(FsError::from)?;
    let original = Original { snapshot: snapshot.as_deref(), dir: InodeId::new(*dir), name };
    fs.do_clone(original, InodeId::new(*into), to).map_err(|error| match error {
        FsError::Exists => {
            Error::failed("a file of that name exists already").hint("clone to a new name")
        }
        FsError::QuotaExceeded => Error::failed("the limits on a directory tree are reached")
            .hint("the whole clone counts at once; `varve quota show` shows the limits"),
        other => Error::from(other),
    })
}

/// Commits a transaction; `open` is its file system if it is mounted. Waits for locks, and a moment for large files to be closed. With
/// `waits` it waits for locks only if one of these slots is free.
pub(crate) fn commit(
    fs: &VarveFs,
    id: &str,
    open: Option<&VarveFs>,
    waits: Option<&Slots>,
) -> std::result::Result<Committed, CommitError> {
    match open {
        Some(view) => commit_in_time(fs, id, view, CLOSE_WAIT_MAX, waits),
        None => {
            let view = fs.open_view(&ViewName::transaction(id))?;
            let committed = commit_in_time(fs, id, &view, CLOSE_WAIT_MAX, waits);
            // After the end of a transaction nothing is left to sync.
            let _ = view.close();
            committed
        }
    }
}

/// Commits; waits up to `close_wait_max` for large files to be closed.
fn commit_in_time(
    fs: &VarveFs,
    id: &str,
    view: &VarveFs,
    close_wait_max: Duration,
    waits: Option<&Slots>,
) -> std::result::Result<Committed, CommitError> {
    let begin = Instant::now();
    loop {
        match commit_unlocked(fs, id, view, waits) {
            Err(CommitError::InUse(_)) if begin.elapsed() < close_wait_max => {
                thread::sleep(CLOSE_POLL);
            }
            committed => return committed,
        }
    }
}

/// Commits; waits for locks as long as other changes do, if a slot is free.
fn commit_unlocked(
    fs: &VarveFs,
    id: &str,
    view: &VarveFs,
    waits: Option<&Slots>,
) -> std::result::Result<Committed, CommitError> {
    let commit = || match fs.commit_transaction(id, view) {
        Err(CommitError::Failed(FsError::Blocked(blocked))) => Err(blocked),
        committed => Ok(committed),
    };
    let committed = commit().or_else(|blocked| match waits.map(Slots::take) {
        Some(None) => Err(blocked),
        _place => in_time(fs, fs.lock_wait_max(), commit),
    });
    committed.unwrap_or_else(|blocked| Err(FsError::Blocked(blocked).into()))
}

/// Rolls the file system back to a snapshot. Calls `follow` with what has changed, also after a partial failure.
pub(crate) fn roll_back(
    fs: &VarveFs,
    name: &str,
    progress: &mut dyn FnMut(Progress),
    follow: impl FnOnce(&Committed),
) -> Result<()> {
    let done = fs.roll_back_watched(name, progress);
    if let Some(committed) = done.as_ref().map_or_else(RollBackError::committed, Some) {
        follow(committed);
    }
    done.map(drop).map_err(|error| match error {
        RollBackError::Dropped(names) => Error::failed(format!(
            "nothing was rolled back, as dictionaries of the snapshot were dropped since, with their pairs:\n  {}",
            names.join("\n  ")
        ))
        .hint("copy the files out of the snapshot instead, below .varve/snapshots"),
        RollBackError::NotCommitted(error) => not_rolled_back(name, error),
    })
}

fn not_rolled_back(name: &str, error: CommitError) -> Error {
    match error {
        CommitError::Conflict(paths) => Error::failed(format!(
            "nothing was rolled back, as programs keep changing files:\n  {}",
            paths.join("\n  ")
        ))
        .hint("stop the programs, and try again"),
        CommitError::InUse(paths) => Error::failed(format!(
            "nothing was rolled back, as files that would change are in use: large files that are open for writing, removed, \
             or to be small again, and removed directories:\n  {}",
            paths.join("\n  ")
        ))
        .hint("close the files, leave the directories, and try again"),
        // The limits of the snapshot hold, and a rollback locks nothing.
        CommitError::OverLimits(trees) => Error::failed(trees.join(", ")),
        CommitError::DeadlockVictim(why) => Error::failed(why),
        CommitError::Failed(FsError::Blocked(_)) => {
            Error::failed("nothing was rolled back, as transactions have locked files that would change")
                .hint("try again when the transactions have ended; `varve txn list` shows their locks")
        }
        CommitError::Failed(FsError::NoSpace(text)) => {
            Error::failed(format!("nothing was rolled back: {text}")).hint("make room and try again")
        }
        CommitError::Unfinished(_, error) => Error::from(error),
        CommitError::Failed(error) => no_snapshot(name, error),
    }
}

/// The paths that a rollback would change.
pub(crate) fn rollback_diff(fs: &VarveFs, name: &str) -> Result<Value> {
    let diff = fs.roll_back_diff(name).map_err(|error| no_snapshot(name, error))?;
    Ok(json!({ "changes": diff.changes, "complete": diff.complete }))
}

/// Describes the open transactions, with their paths if the store is mounted on `dir`.
pub(crate) fn list_transactions(
    fs: &VarveFs,
    dir: Option<&Path>,
) -> Result<Vec<(Transaction, Value)>> {
    let locks = fs.lock_status()?;
    let described = |txn: Transaction| (txn, described(&txn, &locks, dir));
    Ok(fs.transactions()?.into_iter().map(described).collect())
}

fn described(txn: &Transaction, locks: &[TransactionLocks], dir: Option<&Path>) -> Value {
    let id = txn.name().name;
    let path = dir.map(|dir| dir.join(txn.name().path())).written();
    let mut told = json!({
        "id": id, "path": path, "root": txn.root.get(), "begun": txn.begun, "isolation": txn.isolation,
        "idle_abort_s": txn.idle_abort_s,
    });
    if let Some(locks) = locks.iter().find(|locks| locks.id == id) {
        told["locks"] = locks.locks.into();
        told["waits_for"] = locks.waits_for.clone().into();
        told["gave_way"] = locks.lost_locks.clone().into();
        told["was_refused"] = locks.was_refused.into();
    }
    told
}

/// The paths that a transaction has changed.
pub(crate) fn diff(fs: &VarveFs, id: &str) -> Result<Value> {
    let diff = fs.transaction_diff(id).map_err(|error| no_transaction(id, error))?;
    Ok(json!({ "changes": diff.changes, "complete": diff.complete }))
}

/// Describes a transaction and how much it has changed, with its path if the store is mounted on `dir`.
pub(crate) fn status(fs: &VarveFs, id: &str, dir: Option<&Path>) -> Result<(Transaction, Value)> {
    let txn = fs.transaction(id).map_err(|error| no_transaction(id, error))?;
    let diff = fs.transaction_diff(id).map_err(|error| no_transaction(id, error))?;
    let count = |kind| diff.changes.iter().filter(|change| change.change == kind).count();
    let mut status = described(&txn, &fs.lock_status()?, dir);
    status["pairs"] = fs.transaction_pairs(id).map_err(|error| no_transaction(id, error))?.into();
    status["added"] = count(ChangeKind::Added).into();
    status["removed"] = count(ChangeKind::Removed).into();
    status["changed"] = count(ChangeKind::Changed).into();
    status["renamed"] = count(ChangeKind::Renamed).into();
    status["complete"] = diff.complete.into();
    Ok((txn, status))
}

/// Lists the snapshots, with their paths if the store is mounted on `dir`.
pub(crate) fn list_snapshots(fs: &VarveFs, dir: Option<&Path>) -> Result<Value> {
    let names = fs.view_names(ViewKind::Snapshot)?;
    let described = names
        .iter()
        .map(|view| (&view.name, dir.map(|dir| dir.join(view.path())).written()))
        .map(|(name, path)| json!({ "name": name, "path": path }));
    Ok(described.collect())
}

#[cfg(test)]
mod tests {
    use varve::{FileSystem, store};
    use varve_fs::{FormatOptions, MountOptions, TransactionOptions};
    use varve_testkit::PATIENCE;
    use varve_vfs::{Caller, OpenFlags};

    use super::*;

    /// Who committed right after a close was refused now and then, as the kernel had not told of it.
    #[test]
    fn a_commit_waits_for_large_files_to_be_closed() {
        let dir = tempfile::tempdir().unwrap();
        store::format(dir.path(), &FormatOptions::default()).unwrap();
        let file_system = FileSystem::open(dir.path(), &MountOptions::default()).unwrap();
        let fs = file_system.inner();
        let name = fs.begin_transaction(InodeId::ROOT, &TransactionOptions::default()).unwrap();
        let view = fs.open_view(&name).unwrap();
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let large = FileName::new(b"large").unwrap();
        let (entry, opened) =
            view.create(Caller::ROOT, InodeId::ROOT, large, 0o644, flags).unwrap();
        view.write(entry.attr.ino, opened.handle, 0, &vec![1; 300_000], false).unwrap();
        let commit = |close_wait_max| commit_in_time(&fs, &name.name, &view, close_wait_max, None);
        assert!(matches!(commit(Duration::ZERO), Err(CommitError::InUse(_))));
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                view.release(entry.attr.ino, opened.handle).unwrap();
            });
            commit(PATIENCE).unwrap();
        });
        assert_eq!(fs.lookup(InodeId::ROOT, large).unwrap().attr.size, 300_000);
        let _ = view.close();
        drop(fs);
        file_system.close().unwrap();
    }
}
