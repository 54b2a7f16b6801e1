//! Snapshots and transactions, as the command line asks for them: of the daemon if the store is mounted
//! ([`crate::mounting`]), else on the store itself.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Uid;
use serde_json::{Value, json};
use varve_engine::paths::WritePaths;
use varve_fs::fsck::Progress;
use varve_fs::{
    ChangeKind, CommitError, Committed, MountOptions, Original, RollBackError, Transaction,
    TransactionLocks, TransactionOptions, VarveFs, ViewKind, ViewName,
};
use varve_fuse::MountPoint;
use varve_types::{FileName, InodeId};
use varve_vfs::{FsError, Vfs, in_time};

use crate::mounting::{find_mount, within_mount};
use crate::socket::{Places, check_listener, unreached};
use crate::store::{self, FileSystem};
use crate::transfer;
use crate::upgrade::control;
use crate::upgrade::request::Request;
pub use crate::upgrade::request::{CloneRequest, ViewRequest};
use crate::{Error, Result, exit_status};

/// How long a commit waits for large files to be closed: the kernel tells of that when close(2) has returned, and the program
/// may have ended.
const CLOSE_WAIT_MAX: Duration = Duration::from_millis(200);

/// How often to ask whether they are.
const CLOSE_POLL: Duration = Duration::from_millis(5);

/// Does `request` for the store at `path`, or the one mounted there; the answer is a JSON value.
pub fn ask(path: &Path, request: ViewRequest) -> Result<Value> {
    Asked::at(path)?.ask(request)
}

/// Takes the store at `path`, or the one mounted there, back to its snapshot `name`; `progress` hears how far that is.
pub fn roll_back_watched(
    path: &Path,
    name: &str,
    progress: &mut dyn FnMut(Progress),
) -> Result<()> {
    let request = ViewRequest::Rollback { name: name.to_owned(), dry_run: false, watched: true };
    Asked::at(path)?.ask_watching(request, progress).map(drop)
}

/// A store of which something is asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) store: PathBuf,
    /// Who serves the mount by which it was named: nobody else is to answer.
    served_by: Option<Uid>,
}

impl Asked {
    /// The one in the directory `store`, whoever has it open.
    pub(crate) fn of_store(store: &Path) -> Asked {
        Asked { store: store.to_path_buf(), served_by: None }
    }

    /// The one at `path`, or the one mounted there.
    pub(crate) fn at(path: &Path) -> Result<Asked> {
        match meant(path)? {
            Meant::Store => Ok(Asked::of_store(path)),
            Meant::Mount(mount) => Asked::on(path, &mount),
        }
    }

    /// The one that is mounted as `mount`, on which `path` is.
    pub(crate) fn on(path: &Path, mount: &MountPoint) -> Result<Asked> {
        match place_on(mount)? {
            (asked, None) => Ok(asked),
            (_, Some(_)) => {
                let text = format!("{} lies in a snapshot or a transaction", path.display());
                Err(Error::failed(text).hint("name a directory of the mount itself"))
            }
        }
    }

    /// Does `request`; the answer is a JSON value.
    pub(crate) fn ask(&self, request: ViewRequest) -> Result<Value> {
        self.ask_watching(request, &mut |_| ())
    }

    fn ask_watching(
        &self,
        request: ViewRequest,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Value> {
        if !store::is_served(&self.store)? {
            return on_store(&self.store, &request, progress);
        }
        control::ask_watching(self, &Request::Views(request), progress)
    }

    /// The daemon that was reached in the store, if it may answer; what else keeps it from that becomes an error by `otherwise`.
    pub(crate) fn answered_by(
        &self,
        reached: io::Result<UnixStream>,
        otherwise: impl FnOnce(io::Error) -> Error,
    ) -> Result<UnixStream> {
        let daemon = reached.map_err(|error| unreached(&self.store, error, otherwise))?;
        if let Some(user) = self.served_by {
            check_listener(&daemon, &self.store, user)?;
        }
        Ok(daemon)
    }
}

/// What a path stands for.
pub(crate) enum Meant {
    Store,
    Mount(MountPoint),
}

/// Whether `path` means a store or a mount. Anybody who may write to a mount can have something there look like a store, so that where
/// it is mounted means the mount, whatever is in it.
pub(crate) fn meant(path: &Path) -> Result<Meant> {
    match (find_mount(path)?, store::is_store(path)) {
        (Some(mount), true) if path.canonicalize().ok().as_ref() != Some(&mount.dir) => {
            let (path, dir) = (path.display(), mount.dir.display());
            let text = format!("{path} is a store, and on a mount of another");
            Err(Error::failed(text).hint(format!(
                "name {dir} if that mount is meant; mount the store, and name where, if it is that"
            )))
        }
        (Some(mount), _) => Ok(Meant::Mount(mount)),
        (None, true) => Ok(Meant::Store),
        (None, false) => Err(store::unseen(path, neither_store_nor_mount(path))),
    }
}

/// The store at `path`, or the one mounted there, and the view of it whose mount that is.
pub(crate) fn place_of(path: &Path) -> Result<(Asked, Option<ViewName>)> {
    match meant(path)? {
        Meant::Store => Ok((Asked::of_store(path), None)),
        Meant::Mount(mount) => place_on(&mount),
    }
}

fn place_on(mount: &MountPoint) -> Result<(Asked, Option<ViewName>)> {
    match store_and_view(&mount.source) {
        (store, None) if !store::is_store(&store) => {
            let text = format!("the store {} is not to be found", store.display());
            let error = Error::failed(text).hint("was it moved while it is mounted?");
            Err(store::unseen(&store, error))
        }
        (store, view) => Ok((Asked { store, served_by: Some(Uid::from_raw(mount.user)) }, view)),
    }
}

/// That `path` is neither.
fn neither_store_nor_mount(path: &Path) -> Error {
    within_mount(path).unwrap_or_else(|| {
        Error::failed(format!("{} is neither a store nor on a Varve mount", path.display()))
            .hint("`varve format` makes a store, `findmnt -t fuse.varve` lists the mounts")
    })
}

/// The store of a mount with this source, and the view of it: mounts of views name their store and their place
/// (`mounting::views`).
pub(crate) fn store_and_view(source: &OsStr) -> (PathBuf, Option<ViewName>) {
    let bytes = source.as_bytes();
    let mut marks = bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'#');
    // The name of a store may have the mark in it, and so may that of a snapshot.
    let found = marks.find_map(|(mark, _)| {
        let view = ViewName::at(Path::new(OsStr::from_bytes(&bytes[mark + 1..])))?;
        Some((PathBuf::from(OsStr::from_bytes(&bytes[..mark])), Some(view)))
    });
    found.filter(|_| !store::is_store(Path::new(source))).unwrap_or_else(|| (source.into(), None))
}

fn on_store(
    store: &Path,
    request: &ViewRequest,
    progress: &mut dyn FnMut(Progress),
) -> Result<Value> {
    let file_system = FileSystem::open(store, &MountOptions::default())?;
    let fs = file_system.inner();
    let done = match request {
        ViewRequest::CreateSnapshot { name } => {
            create_snapshot(&fs, name).map(|_| json!({ "name": name, "path": null }))
        }
        ViewRequest::DeleteSnapshot { name } => delete_snapshot(&fs, name).map(|()| Value::Null),
        ViewRequest::ListSnapshots => list_snapshots(&fs, None),
        ViewRequest::DiffSnapshots { from, to } => diff_snapshots(&fs, from, to.as_deref()),
        ViewRequest::Rollback { name, dry_run: true, .. } => rollback_diff(&fs, name),
        ViewRequest::Rollback { name, dry_run: false, .. } => {
            roll_back(&fs, name, progress, |_| ()).map(|()| Value::Null)
        }
        ViewRequest::Commit { id } => commit(&fs, id, None, None)
            .map(|_| Value::Null)
            .map_err(|error| not_committed(&fs, id, error)),
        ViewRequest::Receipt => transfer::token(&fs),
        ViewRequest::DiscardReceipt => transfer::discard(&fs),
        ViewRequest::Send(_) | ViewRequest::Receive => {
            Err(Error::usage("a stream is sent and received otherwise".to_owned()))
        }
        ViewRequest::Abort { id } => abort(&fs, id).map(|()| Value::Null),
        ViewRequest::ListTransactions => list_transactions(&fs, None)
            .map(|listed| listed.into_iter().map(|(_, told)| told).collect()),
        ViewRequest::Diff { id } => diff(&fs, id),
        ViewRequest::Status { id } => status(&fs, id, None).map(|(_, told)| told),
        ViewRequest::Begin { .. } => Err(Error::failed("a transaction is begun on a mount")
            .hint("`varve mount STORE DIR` first")),
        ViewRequest::Clone(_) => {
            Err(Error::failed("a clone is made on a mount").hint("`varve mount STORE DIR` first"))
        }
    };
    file_system.close()?;
    done
}

pub(crate) fn create_snapshot(fs: &VarveFs, name: &str) -> Result<ViewName> {
    fs.create_snapshot(name).map_err(|error| match error {
        FsError::Exists => Error::failed(format!("there is a snapshot `{name}` already"))
            .hint("choose another name, or delete it with `varve snapshot delete`"),
        FsError::Invalid(rule) => Error::failed(format!("{name:?} cannot be a name")).hint(rule),
        other => Error::from(other),
    })?;
    Ok(ViewName { kind: ViewKind::Snapshot, name: name.to_owned() })
}

pub(crate) fn delete_snapshot(fs: &VarveFs, name: &str) -> Result<()> {
    fs.delete_snapshot(name).map_err(|error| no_snapshot(name, error))
}

pub(crate) fn no_snapshot(name: &str, error: FsError) -> Error {
    match error {
        FsError::NotFound => Error::failed(format!("there is no snapshot `{name}`"))
            .hint("`varve snapshot list` tells their names"),
        other => Error::from(other),
    }
}

/// The paths that changed between two snapshots, or since one.
pub(crate) fn diff_snapshots(fs: &VarveFs, from: &str, to: Option<&str>) -> Result<Value> {
    let diff = fs.snapshot_diff(from, to).map_err(|error| match error {
        FsError::NotFound => {
            let known = fs.view_names(ViewKind::Snapshot).unwrap_or_default();
            let missing = [Some(from), to].into_iter().flatten();
            let mut missing = missing.filter(|name| known.iter().all(|view| view.name != **name));
            no_snapshot(missing.next_back().unwrap_or(from), error)
        }
        FsError::Invalid(_) => Error::failed("the first snapshot is the later one of the two")
            .hint("name the older one first"),
        other => Error::from(other),
    })?;
    Ok(json!({ "changes": diff.changes, "complete": diff.complete }))
}

/// Copies what the request says.
pub(crate) fn clone(fs: &VarveFs, request: &CloneRequest) -> Result<InodeId> {
    let CloneRequest { snapshot, dir, name, into, to } = request;
    let name = name.as_deref().map(FileName::new).transpose().map_err(FsError::from)?;
    let to = FileName::new(to).map_err(FsError::from)?;
    let original = Original { snapshot: snapshot.as_deref(), dir: InodeId::new(*dir), name };
    fs.do_clone(original, InodeId::new(*into), to).map_err(|error| match error {
        FsError::Exists => {
            Error::failed("there is a file of that name already").hint("clone to a new name")
        }
        FsError::QuotaExceeded => Error::failed("the limits on a directory tree are reached")
            .hint("all that a clone holds counts at once; `varve quota show` tells the limits"),
        other => Error::from(other),
    })
}

/// Begins a transaction that shows the directory `root`.
pub(crate) fn begin(fs: &VarveFs, root: u64, options: &TransactionOptions) -> Result<ViewName> {
    Ok(fs.begin_transaction(InodeId::new(root), options)?)
}

/// Commits a transaction, whose file system is `open` if it is mounted. Waits for what others have locked, where `waits` are counted
/// only if there is a place left among them, and a moment for large files to be closed.
pub(crate) fn commit(
    fs: &VarveFs,
    id: &str,
    open: Option<&VarveFs>,
    waits: Option<&Places>,
) -> std::result::Result<Committed, CommitError> {
    match open {
        Some(view) => commit_in_time(fs, id, view, CLOSE_WAIT_MAX, waits),
        None => {
            let view = fs.open_view(&ViewName::transaction(id))?;
            let committed = commit_in_time(fs, id, &view, CLOSE_WAIT_MAX, waits);
            // Of one that has ended nothing is left to sync.
            let _ = view.close();
            committed
        }
    }
}

/// Why the transaction `id` is not committed, or what of it is missing.
pub(crate) fn not_committed(fs: &VarveFs, id: &str, error: CommitError) -> Error {
    match error {
        CommitError::Conflict(paths) => Error::failed(format!(
            "not committed, as others have changed what it changed:\n  {}",
            paths.join("\n  ")
        ))
        .with_status(exit_status::CONFLICT)
        .hint(format!(
            "the transaction is still open: `varve txn abort DIR {id}`, and begin again"
        )),
        CommitError::InUse(paths) => Error::failed(format!(
            "not committed, as large files are open for writing:\n  {}",
            paths.join("\n  ")
        ))
        .with_status(exit_status::CONFLICT)
        .hint("the transaction is still open: close them and commit again"),
        CommitError::OverLimits(trees) => Error::failed(format!(
            "not committed, as more would lie in directories than their limits allow:\n  {}",
            trees.join("\n  ")
        ))
        .hint(
            "the transaction is still open: remove something in it, or raise the limit with `varve quota set`, and \
             commit again",
        ),
        CommitError::GaveWay(why) => Error::failed(format!("not committed, as it gave way: {why}"))
            .with_status(exit_status::CONFLICT)
            .hint(format!("`varve txn abort DIR {id}`, and begin again")),
        CommitError::Failed(FsError::Blocked(blocked)) => {
            let holders = fs.transactions_of(&blocked).join(", ");
            Error::failed(format!(
                "not committed, as transaction {holders} has locked what it changed"
            ))
            .with_status(exit_status::CONFLICT)
            .hint("it is still open: commit it again when that one has ended")
        }
        CommitError::Failed(error @ (FsError::TryAgain | FsError::Busy)) => Error::failed(format!(
            "not committed, as programs keep writing to large files that it changed or needs: {error}"
        ))
        .with_status(exit_status::CONFLICT)
        .hint("it is still open: commit it again"),
        CommitError::Failed(FsError::NoSpace(text)) => Error::failed(format!("not committed: {text}"))
            .hint("the transaction is still open: make room and commit again"),
        CommitError::Unfinished(_, error) => Error::from(error),
        CommitError::Failed(error) => no_transaction(id, error),
    }
}

/// Commits; waits so long for large files that are being closed.
fn commit_in_time(
    fs: &VarveFs,
    id: &str,
    view: &VarveFs,
    close_wait_max: Duration,
    waits: Option<&Places>,
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

/// Commits; waits as long as any change of the main view for what others have locked, if there is a place.
fn commit_unlocked(
    fs: &VarveFs,
    id: &str,
    view: &VarveFs,
    waits: Option<&Places>,
) -> std::result::Result<Committed, CommitError> {
    let commit = || match fs.commit_transaction(id, view) {
        Err(CommitError::Failed(FsError::Blocked(blocked))) => Err(blocked),
        committed => Ok(committed),
    };
    let committed = commit().or_else(|blocked| match waits.map(Places::take) {
        Some(None) => Err(blocked),
        _place => in_time(fs, fs.lock_wait_max(), commit),
    });
    committed.unwrap_or_else(|blocked| Err(FsError::Blocked(blocked).into()))
}

/// Takes the file system back to a snapshot. `follow` is told of what has changed, also where not all went well.
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
            "nothing was rolled back, as programs keep changing:\n  {}",
            paths.join("\n  ")
        ))
        .hint("stop them, and try again"),
        CommitError::InUse(paths) => Error::failed(format!(
            "nothing was rolled back, as what would change is in use: large files that are open for writing, removed, \
             or to be small again, and removed directories:\n  {}",
            paths.join("\n  ")
        ))
        .hint("close the files, leave the directories, and try again"),
        // The limits of the snapshot hold, and a rollback locks nothing.
        CommitError::OverLimits(trees) => Error::failed(trees.join(", ")),
        CommitError::GaveWay(why) => Error::failed(why),
        CommitError::Failed(FsError::Blocked(_)) => {
            Error::failed("nothing was rolled back, as transactions have locked what would change")
                .hint("try again when they have ended; `varve txn list` tells of their locks")
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

/// Drops a transaction.
pub(crate) fn abort(fs: &VarveFs, id: &str) -> Result<()> {
    fs.abort_transaction(id).map_err(|error| no_transaction(id, error))
}

pub(crate) fn no_transaction(id: &str, error: FsError) -> Error {
    match error {
        FsError::NotFound | FsError::Stale => Error::failed(format!("no transaction {id} is open"))
            .hint("`varve txn list` tells those that are"),
        other => Error::from(other),
    }
}

/// The open transactions; with their paths if the store is mounted on `dir`.
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
        told["gave_way"] = locks.gave_way.clone().into();
        told["was_refused"] = locks.was_refused.into();
    }
    told
}

/// The paths that a transaction has changed.
pub(crate) fn diff(fs: &VarveFs, id: &str) -> Result<Value> {
    let diff = fs.transaction_diff(id).map_err(|error| no_transaction(id, error))?;
    Ok(json!({ "changes": diff.changes, "complete": diff.complete }))
}

/// A transaction and how much it has changed; with its path if the store is mounted on `dir`.
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

/// The snapshots; with their paths if the store is mounted on `dir`.
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
    use varve_testkit::PATIENCE;
    use varve_vfs::{Blocked, Caller, OpenFlags};

    use super::*;

    /// Who tried again where that helps could not tell by the status of some refusals.
    #[test]
    fn what_a_retry_cures_has_a_status_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        store::format(dir.path(), &varve_fs::FormatOptions::default()).unwrap();
        let file_system = FileSystem::open(dir.path(), &MountOptions::default()).unwrap();
        let fs = file_system.inner();
        let blocked = || FsError::Blocked(Blocked { wait: 1, by: vec![2], released: 0 });
        let cured = [
            CommitError::Conflict(vec!["a".to_owned()]),
            CommitError::InUse(vec!["a".to_owned()]),
            CommitError::GaveWay("so".to_owned()),
            CommitError::Failed(blocked()),
            CommitError::Failed(FsError::TryAgain),
            CommitError::Failed(FsError::Busy),
        ];
        let not = [
            CommitError::OverLimits(vec!["a".to_owned()]),
            CommitError::Failed(FsError::NoSpace("full".to_owned())),
            CommitError::Failed(FsError::Storage("broken".to_owned())),
            CommitError::Failed(FsError::NotFound),
            CommitError::Unfinished(Committed::default(), FsError::Storage("broken".to_owned())),
        ];
        let cured = cured.into_iter().map(|error| (error, exit_status::CONFLICT));
        for (error, status) in cured.chain(not.map(|error| (error, exit_status::FAILED))) {
            let told = format!("{error:?}");
            let error = not_committed(&fs, "7", error);
            assert_eq!(error.status(), status, "{told}");
            assert!(error.next_step().is_some() || status == exit_status::FAILED, "{told}");
        }
    }

    /// Who committed right after a close was refused now and then, as the kernel had not told of it.
    #[test]
    fn a_commit_waits_for_large_files_to_be_closed() {
        let dir = tempfile::tempdir().unwrap();
        store::format(dir.path(), &varve_fs::FormatOptions::default()).unwrap();
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

    #[test]
    fn the_source_of_a_mount_names_store_and_view() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().as_os_str().as_bytes();
        for name in [&b"plain"[..], b"not \xff UTF-8", b"with#mark"] {
            let store = [base, b"/", name].concat();
            let path = PathBuf::from(OsStr::from_bytes(&store));
            let at = |place: &str| {
                let source = [&store[..], place.as_bytes()].concat();
                store_and_view(OsStr::from_bytes(&source))
            };
            assert_eq!(at(""), (path.clone(), None));
            assert_eq!(at("#.varve/txn/17"), (path.clone(), Some(ViewName::transaction("17"))));
            for snapshot in ["before", "#1", "a#b", "\u{fc}"] {
                let name = ViewName { kind: ViewKind::Snapshot, name: snapshot.to_owned() };
                let place = format!("#.varve/snapshots/{snapshot}");
                assert_eq!(at(&place), (path.clone(), Some(name)));
            }
            assert!(at("#.varve/other/x").1.is_none());
        }
        let path = dir.path().join("s#.varve/txn/17");
        std::fs::create_dir_all(&path).unwrap();
        store::format(&path, &varve_fs::FormatOptions::default()).unwrap();
        assert_eq!(store_and_view(path.as_os_str()), (path.clone(), None));
    }
}
