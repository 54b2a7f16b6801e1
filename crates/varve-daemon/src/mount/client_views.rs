//! Snapshots and transactions on the mount of a server: each is a mount of its own within it, by a client of its own
//! ([`crate::served_views`] is the server's side).
//!
//! 1. When a program looks up the place of a view, the view is mounted there ([`ClientViews::attach`]).
//! 2. Requests of the command line and of programs go to the server; what has to happen on this machine happens before or
//!    after that.
//! 3. A view that has ended, here or on another machine, is unmounted.
//!
//! Memory that programs of this machine have mapped and are writing to is written when they unmap it or call msync(2), not
//! by a commit.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::Mutex;
use serde_json::{Value, json};
use varve::{Error, Result};
use varve_client::{Client, Within};
use varve_engine::paths::WritePaths;
use varve_fs::fsck::Progress;
use varve_fs::{ViewKind, ViewName, is_fleeting, is_view_place};
use varve_fuse::{
    MountOptions, MountTarget, MountWatch, Notifier, Session, UnmountError, UnmountMode,
    mount_within,
};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult, Transact, Vfs};
use varve_wire::Failure;

use super::client::{Kernel, connect, session_for};
use super::options::Choices;
use super::settings::mount_options;
use crate::control::{Answers, Question, Report, ViewRequest};
use crate::error;
use crate::mount_source::source_of;
use crate::server_address::ServerAddress;
use crate::service::{Admitted, GateClosed, TransitionKind, Transitions};

/// The views of one mount.
pub(super) struct ClientViews {
    client: Arc<Client>,
    address: ServerAddress,
    dir: PathBuf,
    choices: Choices,
    mount: MountOptions,
    /// The main mount; `None` if no view can be mounted within it.
    main: Option<MountWatch>,
    notifier: Notifier,
    /// Only root gets into the mount: the kernel asks nothing about the path of a view before a program creates something in it.
    for_root_alone: bool,
    attached: Mutex<HashMap<ViewName, Arc<Client>>>,
    transitions: Transitions,
}

impl ClientViews {
    /// The views of a mount of `source` that is about to be served by `session`.
    pub(super) fn new(
        client: &Arc<Client>,
        (source, address): (&Path, &ServerAddress),
        dir: &Path,
        choices: &Choices,
        session: &Session,
        shows_views: bool,
    ) -> Arc<ClientViews> {
        let mut mount = mount_options(source, choices);
        mount.default_permissions |= !session.is_for_root_alone();
        // The paths of views begin at the root of the file system.
        let shows_views = shows_views && client.root() == InodeId::ROOT;
        let main = shows_views.then(|| MountWatch::find(dir, source.as_os_str()).ok().flatten());
        let views = Arc::new(ClientViews {
            client: Arc::clone(client),
            address: address.clone(),
            dir: dir.to_path_buf(),
            choices: choices.clone(),
            for_root_alone: !mount.default_permissions,
            mount,
            main: main.flatten(),
            notifier: session.notifier(),
            attached: Mutex::default(),
            transitions: Transitions::default(),
        });
        client.set_within(Arc::new(Places(Arc::downgrade(&views))));
        views
    }

    fn attached(&self, name: &ViewName) -> Option<Arc<Client>> {
        self.attached.lock().get(name).cloned()
    }

    /// Where a view is mounted.
    fn place(&self, name: &ViewName) -> Result<MountTarget> {
        let path = self.dir.join(name.path());
        match (&self.main, path.parent()) {
            (Some(main), Some(dir)) => Ok(MountTarget::new(main.id(), dir, name.name.as_str())),
            _ => Err(Error::failed(format!(
                "{} cannot show snapshots and transactions as directories",
                self.dir.display()
            ))
            .hint("have root mount varve://HOST/, without a directory behind it")),
        }
    }

    /// Mounts a view at its place, unless it is mounted.
    fn attach(self: &Arc<Self>, name: &ViewName) -> FsResult<()> {
        let _transition =
            self.transitions.take(name, TransitionKind::Attach).ok_or(FsError::Stale)?;
        if self.attached(name).is_some() {
            return Ok(());
        }
        let failed = |reason: &dyn std::fmt::Display| {
            FsError::Storage(format!("{} cannot be mounted: {reason}", name.path().display()))
        };
        let place = self.place(name).map_err(|error| failed(&error.message()))?;
        let address = ServerAddress {
            host: self.address.host.clone(),
            path: name.path().to_string_lossy().into_owned(),
        };
        let mut choices = self.choices.clone();
        choices.read_only |= name.kind == ViewKind::Snapshot;
        let client = connect(&address, &place.path(), &choices);
        let client = client.map_err(|error| failed(&error.message()))?;
        let mount = MountOptions {
            read_only: choices.read_only || client.is_read_only(),
            source: source_of(&self.mount.source, name),
            ..self.mount.clone()
        };
        let mounted = mount_within(&place, &mount).map_err(|error| failed(&error))?;
        let vfs: Arc<dyn Vfs> = Arc::<Client>::clone(&client);
        let session = Session::new(vfs, mounted, &session_for(&client, &choices));
        let session = session.map_err(|error| failed(&error))?;
        let (views, view) = (Arc::downgrade(self), name.clone());
        client.set_front_end(Arc::new(Kernel::of_view(session.notifier(), move || {
            if let Some(views) = views.upgrade() {
                views.end_soon(&view);
            }
        })));
        let (views, view, served) = (Arc::downgrade(self), name.clone(), Arc::downgrade(&client));
        let serve = move || {
            if let Err(error) = session.run() {
                log::warn!("{error}");
            }
            if let Some(views) = views.upgrade() {
                views.release(&view, &served);
            }
        };
        self.attached.lock().insert(name.clone(), client);
        if let Err(error) = thread::Builder::new().name("varve-view".to_owned()).spawn(serve) {
            self.end(name);
            return Err(failed(&error));
        }
        Ok(())
    }

    /// Ends the client of a view that is not mounted any more.
    fn release(&self, name: &ViewName, served: &Weak<Client>) {
        let mut attached = self.attached.lock();
        if attached.get(name).is_some_and(|client| Weak::ptr_eq(&Arc::downgrade(client), served))
            && let Some(client) = attached.remove(name)
        {
            drop(attached);
            client.end();
        }
    }

    /// Unmounts a view, if it is mounted.
    fn detach(&self, name: &ViewName, mode: UnmountMode) -> Result<()> {
        if self.attached(name).is_none() {
            return Ok(());
        }
        match self.place(name)?.unmount(mode) {
            Ok(()) | Err(UnmountError::NotMounted(_)) => Ok(()),
            Err(error) => Err(error::not_unmounted(error)),
        }
    }

    /// Unmounts a view that has ended. Programs in it get errors.
    fn end(&self, name: &ViewName) {
        if let Some(client) = self.attached(name) {
            // What waits for the server is answered, so that the kernel can unmount.
            client.end();
            if let Err(error) = self.detach(name, UnmountMode::Force) {
                log::warn!("{}", error.message());
            }
            self.release(name, &Arc::downgrade(&client));
        }
        let told = self.notifier.name_changed(name.dir(), name.name.as_bytes());
        if let Err(error) = told.and_then(|()| self.listing_changed(name)) {
            log::warn!("the kernel may still show old names: {error}");
        }
    }

    /// Unmounts a view that has ended on another machine.
    fn end_soon(self: Arc<Self>, name: &ViewName) {
        let name = name.clone();
        let end = move || self.end(&name);
        if let Err(error) = thread::Builder::new().name("varve-leave".to_owned()).spawn(end) {
            log::warn!("a view that has ended stays mounted: {error}");
        }
    }

    fn listing_changed(&self, name: &ViewName) -> std::io::Result<()> {
        name.listed_in().try_for_each(|dir| self.notifier.inode_changed(dir))
    }

    /// Unmounts all views, after the main mount is gone.
    pub(super) fn close(&self) {
        let all: Vec<ViewName> = self.attached.lock().keys().cloned().collect();
        all.iter().for_each(|name| self.end(name));
    }

    fn ask(&self, question: &Question) -> FsResult<Vec<u8>> {
        let question =
            serde_json::to_vec(question).map_err(|error| FsError::Storage(error.to_string()))?;
        self.client.ask_host(&question)
    }

    /// Asks what is answered by a value or an errno.
    fn ask_for<T: serde::de::DeserializeOwned>(&self, question: &Question) -> FsResult<T> {
        let told = self.ask(question)?;
        let told: std::result::Result<T, Failure> = serde_json::from_slice(&told)
            .map_err(|error| FsError::Storage(format!("the server's answer: {error}")))?;
        told.map_err(FsError::from)
    }

    /// The transaction that `id` names: by its number, or by the path of its mount.
    fn transaction(&self, id: &str) -> ViewName {
        let place = Path::new(id).strip_prefix(&self.dir).ok().and_then(ViewName::at);
        let named = place.filter(|view| view.kind == ViewKind::Transaction);
        named.unwrap_or_else(|| ViewName::transaction(id))
    }

    /// Has the server do a request.
    fn forward(&self, request: ViewRequest) -> Result<Value> {
        let told = self.ask(&Question::Views(request))?;
        let report: Report = serde_json::from_slice(&told)
            .map_err(|error| Error::not_understood("the server's answer", error))?;
        report.into_value()
    }

    /// Mounts a transaction that has just begun, where no lookup would do so.
    fn attach_begun(self: &Arc<Self>, name: &ViewName) {
        if self.for_root_alone
            && let Err(error) = self.attach(name)
        {
            log::warn!("{} is not mounted yet: {error}", name.path().display());
        }
    }

    /// Adds to the description of a view where it is mounted.
    fn with_path(&self, mut told: Value, name: Option<ViewName>) -> Value {
        if self.main.is_some()
            && let Some(name) = name
        {
            told["path"] = json!(Some(self.dir.join(name.path())).written());
        }
        told
    }

    fn with_paths(&self, listed: Value, key: &str, kind: ViewKind) -> Value {
        let Value::Array(listed) = listed else { return listed };
        let described = listed.into_iter().map(|told| {
            let name = told[key].as_str().map(|name| ViewName { kind, name: name.to_owned() });
            self.with_path(told, name)
        });
        described.collect()
    }
}

impl Answers for ClientViews {
    fn enter(&self) -> Result<Option<Admitted>> {
        Ok(None)
    }

    fn admit(&self, is_change: bool) -> Result<()> {
        let read_only = self.choices.read_only
            || self.client.is_read_only()
            || self.main.as_ref().is_some_and(|main| main.now().read_only);
        if is_change && read_only { Err(FsError::ReadOnly.into()) } else { Ok(()) }
    }

    fn answer(
        self: Arc<Self>,
        request: &ViewRequest,
        _progress: &mut dyn FnMut(Progress),
    ) -> Result<Value> {
        match request {
            ViewRequest::Begin { .. } => {
                // Fails on a mount within which no program could enter it.
                self.place(&ViewName::transaction("0"))?;
                let told = self.forward(request.clone())?;
                let name = told["id"].as_str().map(ViewName::transaction);
                if let Some(name) = &name {
                    self.attach_begun(name);
                }
                Ok(self.with_path(told, name))
            }
            ViewRequest::Commit { id } | ViewRequest::Abort { id } => {
                let name = self.transaction(id);
                let id = name.name.clone();
                let done = self.forward(match request {
                    ViewRequest::Commit { .. } => ViewRequest::Commit { id },
                    _ => ViewRequest::Abort { id },
                });
                if done.is_ok() {
                    self.end(&name);
                }
                done
            }
            ViewRequest::Diff { id } => {
                self.forward(ViewRequest::Diff { id: self.transaction(id).name })
            }
            ViewRequest::Status { id } => {
                let name = self.transaction(id);
                let told = self.forward(ViewRequest::Status { id: name.name.clone() })?;
                Ok(self.with_path(told, Some(name)))
            }
            ViewRequest::ListTransactions => {
                let listed = self.forward(request.clone())?;
                Ok(self.with_paths(listed, "id", ViewKind::Transaction))
            }
            ViewRequest::ListSnapshots => {
                let listed = self.forward(request.clone())?;
                Ok(self.with_paths(listed, "name", ViewKind::Snapshot))
            }
            ViewRequest::CreateSnapshot { name } => {
                let view = ViewName { kind: ViewKind::Snapshot, name: name.clone() };
                let told = self.forward(request.clone())?;
                if let Err(error) = self.listing_changed(&view) {
                    log::warn!("the kernel may not list the snapshot yet: {error}");
                }
                Ok(self.with_path(told, Some(view)))
            }
            ViewRequest::DeleteSnapshot { name } => {
                let view = ViewName { kind: ViewKind::Snapshot, name: name.clone() };
                self.detach(&view, UnmountMode::Plain)?;
                let told = self.forward(request.clone());
                if told.is_ok() {
                    self.end(&view);
                }
                told
            }
            other => self.forward(other.clone()),
        }
    }

    fn transfer(&self, request: &ViewRequest, client: &mut std::os::unix::net::UnixStream) {
        let done = self.forward(request.clone());
        let report = done.map_or_else(|error| Report::of(&error), Report::Done);
        crate::control::answer(client, &report);
    }

    fn redesign(&self) -> Result<Value> {
        Err(Error::failed("the tables of a store are written again where the store is")
            .hint("run the command on the machine that has the store, once the server is stopped"))
    }

    fn leave(&self) -> Result<GateClosed> {
        Err(Error::failed("the mount of a server cannot be upgraded")
            .hint("unmount it, and mount it with the new program"))
    }
}

/// What the client asks about the places of views.
struct Places(Weak<ClientViews>);

impl Places {
    fn views(&self) -> FsResult<Arc<ClientViews>> {
        self.0.upgrade().ok_or(FsError::Stale)
    }
}

impl Within for Places {
    fn is_awaited(&self, ino: InodeId) -> bool {
        is_view_place(ino)
    }

    fn is_fleeting(&self, ino: InodeId) -> bool {
        is_fleeting(ino)
    }

    fn arrive(&self, ino: InodeId) -> FsResult<()> {
        let views = self.views()?;
        let path: PathBuf = views.ask_for(&Question::ViewAt(ino.get()))?;
        views.attach(&ViewName::at(&path).ok_or(FsError::Stale)?)?;
        Err(FsError::Stale)
    }

    fn transact(&self, what: Transact) -> FsResult<u64> {
        let views = self.views()?;
        let ended = |id: u64, question: Question| {
            let done = views.ask_for(&question)?;
            views.end(&ViewName::transaction(id.to_string()));
            Ok(done)
        };
        match what {
            Transact::Begin { dir, how } => {
                if views.main.is_none() {
                    return Err(FsError::NotSupported("transactions as directories of this mount"));
                }
                let id: u64 = views.ask_for(&Question::Begin(dir.get(), how))?;
                if views.for_root_alone {
                    // The kernel may have locked directories on the path of the view until this request is answered.
                    let (views, name) = (Arc::clone(&views), ViewName::transaction(id.to_string()));
                    let attach = move || views.attach_begun(&name);
                    let begun =
                        thread::Builder::new().name("varve-arrive".to_owned()).spawn(attach);
                    if let Err(error) = begun {
                        log::warn!("a transaction is not mounted yet: {error}");
                    }
                }
                Ok(id)
            }
            Transact::Commit(id) => ended(id, Question::Commit(id)),
            Transact::Abort(id) => ended(id, Question::Abort(id)),
        }
    }

    fn controlled(&self, ino: InodeId) -> FsResult<u64> {
        varve_fs::controlled(ino)
    }
}
