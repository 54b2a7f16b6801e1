//! The mounts of views, within the mount of the store.
//!
//! ```text
//! somebody comes by --arrive--> attached, served by a thread --unmounted, or its view ends--> gone
//! ```
//!
//! A view is attached when somebody first comes by its place (`varve_fs`, `views`), as a FUSE connection of its own: so
//! it has its own `st_dev`, node ids and caches. Within the process it is a file system beside the main one.
//! It takes CAP_SYS_ADMIN, which root has, and so has whoever mounts in a private namespace.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};
use varve_engine::paths::WritePaths;
use varve_fs::{CommitError, Committed, VarveFs, ViewKind, ViewName};
use varve_fuse::{
    MountOptions, Notifier, Session, SessionOptions, UnmountError, UnmountMode, find_mounts,
    mount_within, unmount, walk_apart,
};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use super::door::Door;
use super::idle::{self, Claims};
use super::{Attached, Choices, mount_options, session_options};
use crate::transfer;
use crate::views::{self, ViewRequest};
use crate::{Error, Result};

/// Why a transaction is not committed, or what of it is missing.
pub(super) enum NotCommitted {
    Refused(CommitError),
    Failed(Error),
}

impl NotCommitted {
    /// Whether the transaction goes on.
    fn goes_on(&self) -> bool {
        match self {
            NotCommitted::Refused(error) => error.committed().is_none(),
            NotCommitted::Failed(_) => true,
        }
    }
}

impl From<Error> for NotCommitted {
    fn from(error: Error) -> NotCommitted {
        NotCommitted::Failed(error)
    }
}

/// The views of one mount.
pub(crate) struct ViewDesk {
    pub(super) fs: Arc<VarveFs>,
    pub(super) dir: PathBuf,
    mount: MountOptions,
    session: SessionOptions,
    notifier: Notifier,
    /// Those that are attached. Held while one is being attached.
    attached: Mutex<HashMap<ViewName, Arc<VarveFs>>>,
    /// The views that are being committed or taken away, which are not attached meanwhile.
    ending: Mutex<HashSet<ViewName>>,
    pub(super) claims: Claims,
    pub(super) door: Arc<Door>,
}

impl ViewDesk {
    /// For a mount that is about to be served.
    pub(super) fn open(attached: &Attached, choices: &Choices) -> Arc<ViewDesk> {
        let mut mount = mount_options(&attached.store, choices);
        // As the mount is, which an older program may have made.
        mount.default_permissions |= !attached.session.is_for_root_alone();
        let desk = Arc::new(ViewDesk {
            fs: attached.file_system.inner(),
            dir: attached.ready.dir.clone(),
            mount,
            session: SessionOptions { passthrough: false, ..session_options(choices) },
            notifier: attached.session.notifier(),
            attached: Mutex::default(),
            ending: Mutex::default(),
            claims: Claims::default(),
            door: Arc::default(),
        });
        let weak = Arc::downgrade(&desk);
        desk.fs.attach_views_by(move |name| match weak.upgrade() {
            Some(desk) => desk.attach(name),
            None => Err(FsError::Stale),
        });
        let weak = Arc::downgrade(&desk);
        desk.fs.transact_by(move |what| match weak.upgrade() {
            Some(desk) => desk.transact(what),
            None => Err(FsError::Stale),
        });
        idle::watch(&desk);
        desk
    }

    /// Mounts a view on its place, unless it is mounted.
    fn attach(self: &Arc<Self>, name: &ViewName) -> FsResult<()> {
        // As if it was gone already, to be looked up again, and by the successor.
        let _working = self.door.enter().ok_or(FsError::Stale)?;
        let mut attached = self.attached.lock();
        if attached.contains_key(name) {
            return Ok(());
        }
        if self.ending.lock().contains(name) {
            return Err(FsError::Stale);
        }
        let fs = Arc::new(self.fs.open_view(name)?);
        let failed = |reason: &dyn std::fmt::Display| {
            FsError::Storage(format!("{} cannot be mounted: {reason}", name.path().display()))
        };
        let mut mount = self.mount.clone();
        mount.read_only |= name.kind == ViewKind::Snapshot;
        mount.source.push(format!("#{}", name.path().display()));
        let mounted = mount_within(&self.dir.join(name.path()), &mount).map_err(|e| failed(&e))?;
        let root = match name.kind {
            ViewKind::Transaction => self.fs.transaction(&name.name)?.root,
            ViewKind::Snapshot => InodeId::ROOT,
        };
        let options = SessionOptions { root, ..self.session.clone() };
        let session = Session::new(Arc::<VarveFs>::clone(&fs), mounted, &options);
        let session = session.map_err(|error| failed(&error))?;
        let (desk, view, served) = (Arc::downgrade(self), name.clone(), Arc::downgrade(&fs));
        let serve = move || {
            if let Err(error) = session.run() {
                log::warn!("{error}");
            }
            if let Some(desk) = desk.upgrade() {
                desk.let_go(&view, |fs| Weak::ptr_eq(&Arc::downgrade(fs), &served));
            }
        };
        if let Err(error) = thread::Builder::new().name("varve-view".to_owned()).spawn(serve) {
            if let Err(error) = self.detach(name, UnmountMode::Force) {
                log::warn!("{}", error.message());
            }
            return Err(failed(&error));
        }
        attached.insert(name.clone(), fs);
        Ok(())
    }

    /// Lets go of the file system of a view that is not mounted any more, if it `is_it` and that has not happened yet.
    fn let_go(&self, name: &ViewName, is_it: impl FnOnce(&Arc<VarveFs>) -> bool) {
        let mut attached = self.attached.lock();
        if !attached.get(name).is_some_and(is_it) {
            return;
        }
        let gone = attached.remove(name);
        drop(attached);
        if let Some(fs) = &gone {
            self.claims.note(&name.name, fs.unused_for());
        }
        if let Some(Err(error)) = gone.map(|fs| fs.close()) {
            log::warn!("{}: {error}", name.path().display());
        }
    }

    /// Does `work`, which ends the view `name` if it goes well, while nobody can attach it. REQUIRES: `work` looks first whether
    /// there is such a view: its name may be anything that a client has sent, and so may the path where it would be mounted.
    fn ending<E: From<Error>>(
        &self,
        name: &ViewName,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if !self.ending.lock().insert(name.clone()) {
            let text = format!("{} is being ended already", name.path().display());
            return Err(Error::failed(text).into());
        }
        // Whoever is attaching it has not seen that yet.
        drop(self.attached.lock());
        let done = work();
        self.ending.lock().remove(name);
        done
    }

    /// Takes the mount of a view away, as `mode` says.
    fn detach(&self, name: &ViewName, mode: UnmountMode) -> Result<()> {
        let path = self.dir.join(name.path());
        let walk = move || {
            // What the kernel has in memory of it, it drops when its root is closed: that takes its time after many files.
            let root = (mode == UnmountMode::Force).then(|| open_path(&path));
            (unmount(&path, mode), root)
        };
        match walk_apart(None, walk).map_err(|error| self.cannot_walk(name, &error))? {
            Ok(()) | Err(UnmountError::NotMounted(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn cannot_walk(&self, name: &ViewName, error: &std::io::Error) -> Error {
        Error::io("walk to", &self.dir.join(name.path()), error)
    }

    /// The main mount is gone: ends what is left.
    pub(super) fn close(&self) {
        let left: Vec<ViewName> = self.attached.lock().keys().cloned().collect();
        for name in left {
            if let Err(error) = self.detach(&name, UnmountMode::Force) {
                log::warn!("{}", error.message());
            }
            self.let_go(&name, |_| true);
        }
    }

    /// The file system of a view, if it is mounted.
    pub(super) fn attached(&self, name: &ViewName) -> Option<Arc<VarveFs>> {
        self.attached.lock().get(name).cloned()
    }

    /// Does what a client asks. REQUIRES: the caller has entered.
    pub(crate) fn answer(self: &Arc<Self>, request: &ViewRequest) -> Result<Value> {
        self.answered(request).map_err(|error| match request {
            ViewRequest::Commit { id }
            | ViewRequest::Abort { id }
            | ViewRequest::Diff { id }
            | ViewRequest::Status { id } => self.claims.explain(&self.transaction(id).name, error),
            _ => error,
        })
    }

    /// What a client means by `id`: a transaction's id, or the path at which it is mounted.
    fn transaction(&self, id: &str) -> ViewName {
        let place = Path::new(id).strip_prefix(&self.dir).ok().and_then(ViewName::at);
        let named = place.filter(|view| view.kind == ViewKind::Transaction);
        named.unwrap_or_else(|| ViewName::transaction(id))
    }

    fn answered(self: &Arc<Self>, request: &ViewRequest) -> Result<Value> {
        match request {
            ViewRequest::CreateSnapshot { name } => {
                let path = self.dir.join(views::create_snapshot(&self.fs, name)?.path());
                self.name_changed(&ViewName { kind: ViewKind::Snapshot, name: name.clone() });
                Ok(json!({ "name": name, "path": path.written() }))
            }
            ViewRequest::DeleteSnapshot { name } => {
                let view = ViewName { kind: ViewKind::Snapshot, name: name.clone() };
                self.ending(&view, || {
                    let found = self.fs.check_view(&view);
                    found.map_err(|error| views::no_snapshot(name, error))?;
                    self.end(&view, UnmountMode::Plain)?;
                    views::delete_snapshot(&self.fs, name)
                })?;
                self.name_changed(&view);
                Ok(Value::Null)
            }
            ViewRequest::ListSnapshots => views::list_snapshots(&self.fs, Some(&self.dir)),
            ViewRequest::DiffSnapshots { from, to } => {
                views::diff_snapshots(&self.fs, from, to.as_deref())
            }
            ViewRequest::Receipt => transfer::token(&self.fs),
            ViewRequest::DiscardReceipt => Ok(self.fs.discard_receipt().map(|()| Value::Null)?),
            ViewRequest::Send(_) | ViewRequest::Receive => {
                Err(Error::failed("a stream is sent and received otherwise"))
            }
            ViewRequest::Rollback { name, dry_run: true } => views::rollback_diff(&self.fs, name),
            ViewRequest::Rollback { name, dry_run: false } => {
                views::roll_back(&self.fs, name, |committed| self.follow(committed))?;
                Ok(Value::Null)
            }
            ViewRequest::Begin { root, options } => {
                let name = views::begin(&self.fs, *root, options)?;
                self.begun(&name);
                self.attach_begun(&name);
                Ok(json!({ "id": name.name, "path": self.dir.join(name.path()).written() }))
            }
            ViewRequest::Commit { id } => {
                let name = self.transaction(id);
                self.commit(&name).map_err(|error| match error {
                    NotCommitted::Refused(error) => {
                        views::not_committed(&self.fs, &name.name, error)
                    }
                    NotCommitted::Failed(error) => error,
                })?;
                Ok(Value::Null)
            }
            ViewRequest::Abort { id } => {
                self.abort(&self.transaction(id), UnmountMode::Force)?;
                Ok(Value::Null)
            }
            ViewRequest::Clone(request) => {
                let ino = views::clone(&self.fs, request)?;
                let into = InodeId::new(request.into);
                self.told(self.notifier.name_changed(into, &request.to));
                self.told(self.notifier.inode_changed(into));
                Ok(json!({ "inode": ino.get() }))
            }
            ViewRequest::ListTransactions => {
                let listed = views::list_transactions(&self.fs, Some(&self.dir))?;
                Ok(listed.into_iter().map(|(txn, told)| self.with_use(&txn, told)).collect())
            }
            ViewRequest::Diff { id } => {
                let name = self.transaction(id);
                self.sync(&name)?;
                views::diff(&self.fs, &name.name)
            }
            ViewRequest::Status { id } => {
                let name = self.transaction(id);
                self.sync(&name)?;
                let (txn, told) = views::status(&self.fs, &name.name, Some(&self.dir))?;
                Ok(self.with_use(&txn, told))
            }
        }
    }

    /// Takes the next step to make all tables what the store's design says. REQUIRES: the caller has entered.
    pub(crate) fn redesign(&self) -> Result<Value> {
        serde_json::to_value(self.fs.redesign()?)
            .map_err(|error| Error::failed(format!("cannot tell what was done: {error}")))
    }

    /// Serves a client who sends or receives a stream.
    pub(crate) fn transfer(&self, request: &ViewRequest, client: &mut UnixStream) {
        transfer::serve(&self.fs, request, client, |snapshot, committed| {
            self.follow(committed);
            let name = snapshot.name.clone();
            self.name_changed(&ViewName { kind: ViewKind::Snapshot, name });
        });
    }

    /// Drops a transaction; not if the mode is plain and programs are in it.
    pub(super) fn abort(&self, name: &ViewName, mode: UnmountMode) -> Result<()> {
        self.ending(name, || {
            let found = self.fs.check_view(name);
            found.map_err(|error| views::no_transaction(&name.name, error))?;
            self.end(name, mode)?;
            views::abort(&self.fs, &name.name)
        })?;
        self.name_changed(name);
        Ok(())
    }

    pub(super) fn commit(&self, name: &ViewName) -> std::result::Result<(), NotCommitted> {
        let done = self.ending(name, || self.commit_ending(name));
        if !done.as_ref().is_err_and(NotCommitted::goes_on) {
            self.name_changed(name);
        }
        done
    }

    fn commit_ending(&self, name: &ViewName) -> std::result::Result<(), NotCommitted> {
        self.fs.check_view(name).map_err(|error| NotCommitted::Refused(error.into()))?;
        let open = self.sync(name)?;
        let done = views::commit(&self.fs, &name.name, open.as_deref());
        let Some(committed) = done.as_ref().map_or_else(CommitError::committed, Some) else {
            return done.map(drop).map_err(NotCommitted::Refused);
        };
        self.follow(committed);
        // What it was is part of the main view now, whatever becomes of its mount.
        if let Err(error) = self.end(name, UnmountMode::Force) {
            log::warn!(
                "{} is committed, but still mounted: {}",
                name.path().display(),
                error.message()
            );
        }
        done.map(drop).map_err(NotCommitted::Refused)
    }

    /// Has the kernel forget what it knows of the main view that has changed without it.
    fn follow(&self, committed: &Committed) {
        for (dir, changed) in &committed.names {
            self.told(self.notifier.name_changed(*dir, changed));
        }
        for ino in &committed.inodes {
            self.told(self.notifier.inode_changed(*ino));
        }
    }

    /// Has what programs have changed in the mapped memory of a view written. Gives its file system, if it is attached.
    fn sync(&self, name: &ViewName) -> Result<Option<Arc<VarveFs>>> {
        let Some(open) = self.attached(name) else { return Ok(None) };
        let path = self.dir.join(name.path());
        let walk = {
            let path = path.clone();
            move || (std::fs::File::open(&path).and_then(|root| Ok(rustix::fs::syncfs(&root)?)), ())
        };
        let synced = walk_apart(None, walk).and_then(|synced| synced);
        synced.map_err(|error| Error::io("sync", &path, &error))?;
        Ok(Some(open))
    }

    /// Takes the mount of a view away that ends. Programs still in it get errors, unless the mode is plain: then it stays.
    fn end(&self, name: &ViewName, mode: UnmountMode) -> Result<()> {
        self.detach(name, mode)?;
        self.let_go(name, |_| true);
        Ok(())
    }

    fn told(&self, told: std::io::Result<()>) {
        if let Err(error) = told {
            log::warn!("the kernel may not see all that changed: {error}");
        }
    }

    pub(super) fn begun(&self, name: &ViewName) {
        self.name_changed(name);
        self.claims.begun();
    }

    /// Whether the mount is one of root alone: nothing is asked of the place of a view there before something is made in it,
    /// when it is too late to mount it.
    fn is_for_root_alone(&self) -> bool {
        !self.mount.default_permissions
    }

    /// Mounts the view that has just begun, where nobody coming by would.
    fn attach_begun(self: &Arc<Self>, name: &ViewName) {
        if self.is_for_root_alone()
            && let Err(error) = self.attach(name)
        {
            log::warn!("{} is not mounted yet: {error}", name.path().display());
        }
    }

    /// The same from a request on the mount, which must be answered first: the kernel may have locked what the way to the
    /// view leads through.
    pub(super) fn attach_begun_soon(self: &Arc<Self>, name: &ViewName) {
        if !self.is_for_root_alone() {
            return;
        }
        let (desk, view) = (Arc::clone(self), name.clone());
        let attach = move || desk.attach_begun(&view);
        if let Err(error) = thread::Builder::new().name("varve-arrive".to_owned()).spawn(attach) {
            log::warn!("{} is not mounted yet: {error}", name.path().display());
        }
    }

    /// Has the kernel forget what it knows of the place of a view, and of who else lists it.
    fn name_changed(&self, view: &ViewName) {
        self.told(self.notifier.name_changed(view.dir(), view.name.as_bytes()));
        for dir in view.listed_in() {
            self.told(self.notifier.inode_changed(dir));
        }
    }
}

/// Opens what is at `path`, without asking a mount on it for anything.
pub(super) fn open_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// Unmounts the views of the mount on `dir`.
pub(super) fn unmount_below(
    dir: &Path,
    mode: UnmountMode,
) -> std::result::Result<(), UnmountError> {
    let views = dir.join(".varve");
    let mounts = find_mounts().unwrap_or_default();
    for mount in mounts.iter().rev().filter(|mount| mount.dir.starts_with(&views)) {
        match unmount(&mount.dir, mode) {
            Ok(()) | Err(UnmountError::NotMounted(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
