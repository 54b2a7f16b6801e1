//! Views of a store that is served: what clients ask about snapshots, transactions and clones, and the file systems of
//! the views that they mount.
//!
//! The daemon of a client's mount sends a [`Question`] and mounts the view within its own mount (`mount::client_views`). The
//! answer is a [`Report`], or an id or a [`Failure`] where a program asked by ioctl.
//!
//! Invariants: a view has one file system here, however many clients use it. While a transaction is being ended nobody
//! opens it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use varve::{Error, Result, snapshots, transaction_options, transactions};
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_fs::{CommitError, Committed, VarveFs, ViewKind, ViewName};
use varve_server::{Asked, Host, Status, View};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, Transact, Vfs};
use varve_wire::Failure;

use crate::control::{Question, Report, ViewRequest};
use crate::requests::operations;
use crate::served_status;
use crate::service::{BeingEnded, NotEnded, TransitionKind, Transitions};
use crate::transfer;

/// The views of a store.
pub(crate) struct ServedViews {
    fs: Arc<VarveFs>,
    store: PathBuf,
    /// Where the server listens, and since when, in seconds.
    address: SocketAddr,
    since_secs: i64,
    open: Mutex<HashMap<ViewName, Arc<VarveFs>>>,
    transitions: Transitions,
}

fn path_of(name: &ViewName) -> Vec<u8> {
    name.path().into_os_string().into_encoded_bytes()
}

fn view_at(path: &[u8]) -> Option<ViewName> {
    ViewName::at(Path::new(std::str::from_utf8(path).ok()?))
}

impl ServedViews {
    /// The views of the store in the directory `store`, whose server listens on `address`.
    pub(crate) fn new(fs: Arc<VarveFs>, store: &Path, address: SocketAddr) -> ServedViews {
        let since_secs = OsEnv::new().now().secs();
        let (open, transitions) = (Mutex::default(), Transitions::default());
        let store = store.canonicalize().unwrap_or_else(|_| store.to_path_buf());
        ServedViews { fs, store, address, since_secs, open, transitions }
    }

    pub(crate) fn fs(&self) -> &Arc<VarveFs> {
        &self.fs
    }

    /// What the server and its store have and do.
    pub(crate) fn told(&self, status: &Status) -> Value {
        let file_system = self.fs.status_json();
        served_status::report((&self.store, self.address, self.since_secs), status, &file_system)
    }

    fn opened(&self, name: &ViewName) -> FsResult<View> {
        let _transition =
            self.transitions.take(name, TransitionKind::Attach).ok_or(FsError::Stale)?;
        let root = match name.kind {
            ViewKind::Transaction => self.fs.transaction(&name.name)?.root,
            ViewKind::Snapshot => InodeId::ROOT,
        };
        let fs = Arc::new(self.fs.open_view(name)?);
        self.open.lock().insert(name.clone(), Arc::clone(&fs));
        Ok(View { vfs: fs, root, read_only: name.kind == ViewKind::Snapshot })
    }

    fn commit(&self, name: &ViewName, asked: &Asked<'_>) -> std::result::Result<(), NotEnded> {
        self.transitions.ending(name, || {
            let found = self.fs.check_view(name);
            found.map_err(|error| NotEnded::Refused(error.into()))?;
            let open = self.open.lock().get(name).cloned();
            let done = operations::commit(&self.fs, &name.name, open.as_deref(), None);
            drop(open);
            if let Some(committed) = done.as_ref().map_or_else(CommitError::committed, Some) {
                changed(asked, committed);
                asked.ends(&path_of(name));
            }
            done.map(drop).map_err(NotEnded::Refused)
        })
    }

    fn abort<E: From<Error> + From<BeingEnded>>(
        &self,
        name: &ViewName,
        asked: &Asked<'_>,
    ) -> std::result::Result<(), E> {
        self.transitions.ending(name, || {
            let found = self.fs.check_view(name);
            found.map_err(|error| transactions::not_found(&name.name, error))?;
            asked.ends(&path_of(name));
            Ok::<_, E>(transactions::abort(&self.fs, &name.name)?)
        })
    }

    fn delete_snapshot(&self, name: &str, asked: &Asked<'_>) -> Result<()> {
        let view = ViewName { kind: ViewKind::Snapshot, name: name.to_owned() };
        self.transitions.ending(&view, || {
            let found = self.fs.check_view(&view);
            found.map_err(|error| snapshots::not_found(name, error))?;
            asked.ends(&path_of(&view));
            snapshots::delete(&self.fs, name)
        })
    }

    /// Does a request of the command line.
    pub(crate) fn answered(&self, request: &ViewRequest, asked: &Asked<'_>) -> Result<Value> {
        let fs = &self.fs;
        match request {
            ViewRequest::CreateSnapshot { name } => {
                snapshots::create(fs, name).map(|_| json!({ "name": name, "path": null }))
            }
            ViewRequest::DeleteSnapshot { name } => {
                self.delete_snapshot(name, asked).map(|()| Value::Null)
            }
            ViewRequest::ListSnapshots => operations::list_snapshots(fs, None),
            ViewRequest::DiffSnapshots { from, to } => {
                operations::diff_snapshots(fs, from, to.as_deref())
            }
            ViewRequest::Rollback { name, dry_run: true, .. } => {
                operations::rollback_diff(fs, name)
            }
            ViewRequest::Rollback { name, dry_run: false, .. } => {
                operations::roll_back(fs, name, &mut |_| (), |committed| {
                    changed(asked, committed)
                })?;
                Ok(Value::Null)
            }
            ViewRequest::Receipt => transfer::token(fs),
            ViewRequest::DiscardReceipt => transfer::discard(fs),
            ViewRequest::Send(_) | ViewRequest::Receive => Err(Error::failed(
                "a mount of a server sends and receives no snapshots",
            )
            .hint("run `varve snapshot send` or `receive` on the machine that has the store")),
            ViewRequest::Begin { options, .. } if options.idle_abort_s.is_some() => {
                Err(Error::failed("a server does not know which transactions programs use")
                    .hint("begin it without --idle-abort, and end it yourself"))
            }
            ViewRequest::Begin { root, options } => {
                let name = transactions::begin(fs, InodeId::new(*root), options)?;
                Ok(json!({ "id": name.name, "path": null }))
            }
            ViewRequest::Commit { id } => {
                let name = ViewName::transaction(id);
                self.commit(&name, asked).map_err(|error| error.explained(fs, &name))?;
                Ok(Value::Null)
            }
            ViewRequest::Abort { id } => {
                self.abort::<Error>(&ViewName::transaction(id), asked).map(|()| Value::Null)
            }
            ViewRequest::ListTransactions => operations::list_transactions(fs, None)
                .map(|listed| listed.into_iter().map(|(_, told)| told).collect()),
            ViewRequest::Diff { id } => operations::diff(fs, id),
            ViewRequest::Status { id } => operations::status(fs, id, None).map(|(_, told)| told),
            ViewRequest::Clone(request) => {
                let ino = operations::clone(fs, request)?;
                let into = InodeId::new(request.into);
                asked.changed([into], [(into, request.to.clone())]);
                Ok(json!({ "inode": ino.get() }))
            }
        }
    }

    /// Does what a program on a client's mount asks.
    fn transact(&self, what: Transact, asked: &Asked<'_>) -> FsResult<u64> {
        let name = |id: u64| ViewName::transaction(id.to_string());
        let ended = |id: u64, done: std::result::Result<(), NotEnded>| {
            done.map(|()| id).map_err(|error| error.told_to_program(&self.fs, id))
        };
        match what {
            Transact::Begin { dir, how } => {
                let options = transaction_options::parse(&how);
                let options =
                    options.ok_or(FsError::Invalid("a transaction has no such option"))?;
                if options.idle_abort_s.is_some() {
                    return Err(FsError::NotSupported(
                        "the end of unused transactions by a server",
                    ));
                }
                let name = self.fs.begin_transaction(dir, &options)?;
                name.name.parse().map_err(|_| FsError::Stale)
            }
            Transact::Commit(id) => {
                self.fs.transaction(&id.to_string())?;
                ended(id, self.commit(&name(id), asked))
            }
            Transact::Abort(id) => {
                self.fs.transaction(&id.to_string())?;
                ended(id, self.abort(&name(id), asked))
            }
        }
    }

    fn answer(
        &self,
        question: Question,
        read_only: bool,
        asked: &Asked<'_>,
    ) -> serde_json::Result<Vec<u8>> {
        let what = match question {
            Question::Views(request) => {
                let done = match read_only && request.is_change() {
                    true => Err(FsError::ReadOnly.into()),
                    false => self.answered(&request, asked),
                };
                let report = done.map_or_else(|error| Report::of(&error), Report::Done);
                return Ok(report.line().into_bytes());
            }
            Question::ViewAt(ino) => {
                let name = self.fs.view_at(InodeId::new(ino)).ok_or(FsError::Stale);
                let path = name.map(|name| name.path()).map_err(|error| Failure::from(&error));
                return serde_json::to_vec(&path);
            }
            Question::Begin(dir, how) => Transact::Begin { dir: InodeId::new(dir), how },
            Question::Commit(id) => Transact::Commit(id),
            Question::Abort(id) => Transact::Abort(id),
        };
        let done = match read_only {
            true => Err(FsError::ReadOnly),
            false => self.transact(what, asked),
        };
        serde_json::to_vec(&done.map_err(|error| Failure::from(&error)))
    }
}

/// Tells clients what a commit has changed.
fn changed(asked: &Asked<'_>, committed: &Committed) {
    let names = committed.names.iter().map(|(dir, name)| (*dir, name.to_vec()));
    asked.changed(committed.inodes.iter().copied(), names);
}

impl Host for ServedViews {
    fn open(&self, path: &[u8]) -> Option<FsResult<View>> {
        Some(self.opened(&view_at(path)?))
    }

    fn close(&self, path: &[u8]) {
        let gone = view_at(path).and_then(|name| self.open.lock().remove(&name));
        if let Some(Err(error)) = gone.map(|fs| fs.close()) {
            log::warn!("{}: {error}", String::from_utf8_lossy(path));
        }
    }

    fn report(&self, status: &Status) -> Vec<u8> {
        self.told(status).to_string().into_bytes()
    }

    fn ask(&self, request: &[u8], read_only: bool, asked: &Asked<'_>) -> Vec<u8> {
        let answered = serde_json::from_slice(request)
            .and_then(|question| self.answer(question, read_only, asked));
        answered.unwrap_or_else(|error| {
            let error = Error::failed(format!("the server cannot read the request: {error}"))
                .hint("use programs of one version on both machines");
            Report::of(&error).line().into_bytes()
        })
    }
}
