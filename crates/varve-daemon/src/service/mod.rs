//! The snapshots and transactions of one mount: their own mounts within it, and the requests about them.
//!
//! ```text
//! a program looks up its path --attach--> mounted, served by a thread --unmounted, or the view ends--> gone
//! ```
//!
//! 1. A snapshot or transaction ("view") is mounted when a program first looks up its path (`varve_fs`, `views`), as a FUSE connection
//!    of its own: so it has its own `st_dev`, node ids and caches. Within the process it is a file system beside the main one.
//! 2. [`attach`] mounts and unmounts it; [`transitions`] lets one thread at a time do so; [`idle`] aborts transactions without use.
//! 3. Requests come from the control socket ([`ViewService::answer`]), from the socket for dictionaries, and from programs on the mount
//!    ([`transact`]). Each enters through the [`admission_gate`], so that an upgrade waits for it.
//! 4. After a commit or rollback the kernel forgets what has changed ([`follow`]).
//!
//! Mounting a view takes CAP_SYS_ADMIN: root has it, and so has a user who mounts in a private namespace.

mod admission_gate;
mod attach;
mod ends;
mod follow;
mod idle;
mod leave;
mod transact;
mod transitions;
mod usage;

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use serde_json::{Value, json};
use varve::store::Present;
use varve::{Error, Result, snapshots, transactions};
use varve_engine::paths::WritePaths;
use varve_fs::fsck::Progress;
use varve_fs::{CommitError, VarveFs, ViewKind, ViewName};
use varve_fuse::{
    ASKED_WAITS_MAX, MountMethod, MountOptions, MountWatch, Notifier, SessionOptions, UnmountMode,
};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

pub(crate) use admission_gate::{Admitted, GateClosed, being_upgraded};

use crate::control::{Answers, ViewRequest};
use crate::kv::{self, DictionaryHost};
use crate::mount::{Attached, Choices, mount_again, mount_options, session_options};
use crate::requests::operations;
use crate::slots::Slots;
use crate::transfer;
use admission_gate::AdmissionGate;
pub(crate) use ends::NotEnded;
pub(crate) use transitions::{BeingEnded, TransitionKind, Transitions};
use usage::TransactionUsage;

/// The snapshots and transactions of one mount.
pub(crate) struct ViewService {
    present: Present,
    dir: PathBuf,
    /// The main mount; `None` if the mount table does not list it: then no view can be mounted.
    main: Option<MountWatch>,
    /// Whether views can be mounted. The kernel lets an ordinary user, who mounts by fusermount, mount nothing within.
    shows_views: bool,
    mount: MountOptions,
    session: SessionOptions,
    notifier: Notifier,
    /// The file systems of the views that are mounted.
    attached: Mutex<HashMap<ViewName, Arc<VarveFs>>>,
    transitions: Transitions,
    usage: TransactionUsage,
    gate: Arc<AdmissionGate>,
    /// Slots for commits by programs on the mount that wait for locks.
    asked_waits: Slots,
}

impl ViewService {
    /// The service of a mount that is about to be served.
    pub(crate) fn open(attached: &Attached, choices: &Choices) -> Arc<ViewService> {
        let mut mount = mount_options(&attached.store, choices);
        // An older program may have made the mount: take what it has.
        mount.default_permissions |= !attached.session.is_for_root_alone();
        let service = Arc::new(ViewService {
            present: attached.file_system.present(),
            dir: attached.ready.dir.clone(),
            main: find_main(attached),
            shows_views: !attached.file_system.is_followed()
                && attached.ready.method != MountMethod::Fusermount.to_string(),
            mount,
            session: SessionOptions { passthrough: false, ..session_options(choices) },
            notifier: attached.session.notifier(),
            attached: Mutex::default(),
            transitions: Transitions::default(),
            usage: TransactionUsage::default(),
            gate: Arc::default(),
            asked_waits: Slots::new(ASKED_WAITS_MAX),
        });
        let present = service.fs();
        let weak = Arc::downgrade(&service);
        present.attach_views_by(move |name| match weak.upgrade() {
            Some(service) => service.attach(name),
            None => Err(FsError::Stale),
        });
        let weak = Arc::downgrade(&service);
        present.transact_by(move |what| match weak.upgrade() {
            Some(service) => service.transact(what),
            None => Err(FsError::Stale),
        });
        let weak = Arc::downgrade(&service);
        present.write_back_by(move |files| match weak.upgrade() {
            Some(service) => service.write_back(files),
            None => Ok(()),
        });
        idle::watch(&service);
        service
    }

    /// The main file system; of a mount that follows its owner, its present state.
    pub(crate) fn fs(&self) -> Arc<VarveFs> {
        self.present.get()
    }

    /// Refuses a change that is not asked for through the mount, while the mount is read-only.
    pub(crate) fn admit(&self, is_change: bool) -> Result<()> {
        if !is_change {
            return Ok(());
        }
        self.check_writable().map_err(|error| {
            let error = Error::from(error);
            if self.mount.read_only { error.hint(mount_again(&self.dir)) } else { error }
        })
    }

    /// Does a client's request. REQUIRES: the caller has entered, and [`ViewService::admit`] has let the request pass.
    pub(crate) fn answer(
        self: &Arc<Self>,
        request: &ViewRequest,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Value> {
        self.answered(request, progress).map_err(|error| match request {
            ViewRequest::Commit { id }
            | ViewRequest::Abort { id }
            | ViewRequest::Diff { id }
            | ViewRequest::Status { id } => self.usage.explain(&self.transaction(id).name, error),
            _ => error,
        })
    }

    /// Fails on a mount within which no view can be mounted.
    fn check_shows_views(&self) -> FsResult<()> {
        match self.shows_views {
            true => Ok(()),
            false => Err(FsError::NotSupported(
                "snapshots and transactions as directories of an ordinary user's mount",
            )),
        }
    }

    /// Fails on a mount within which no program could enter `what`; the hint says which mount would show it.
    fn check_shown(&self, what: &str) -> Result<()> {
        self.check_shows_views().map_err(|_| {
            let dir = self.dir.display();
            let text = format!(
                "{dir} cannot show {what} as a directory: fusermount has mounted it, and within its mount an ordinary user cannot mount"
            );
            Error::failed(text).hint(format!(
                "have root mount the store; or `varve umount {dir}`, and mount it in a shell of your own namespace: \
                 `unshare --user --map-current-user --mount --keep-caps`"
            ))
        })
    }

    /// The directory below which views are mounted, if they can be.
    fn shown_at(&self) -> Option<&Path> {
        self.shows_views.then_some(&self.dir)
    }

    /// The transaction that `id` names: by its number, or by the path of its mount.
    fn transaction(&self, id: &str) -> ViewName {
        let place = Path::new(id).strip_prefix(&self.dir).ok().and_then(ViewName::at);
        let named = place.filter(|view| view.kind == ViewKind::Transaction);
        named.unwrap_or_else(|| ViewName::transaction(id))
    }

    /// Fails while the mount is read-only.
    pub(crate) fn check_writable(&self) -> FsResult<()> {
        match self.mount.read_only || self.main.as_ref().is_some_and(|main| main.now().read_only) {
            true => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }

    fn roll_back(
        self: &Arc<Self>,
        name: &str,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Value> {
        operations::roll_back(&self.fs(), name, progress, |committed| self.follow(committed))?;
        Ok(Value::Null)
    }

    fn answered(
        self: &Arc<Self>,
        request: &ViewRequest,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Value> {
        match request {
            ViewRequest::CreateSnapshot { name } => self.create_snapshot(name),
            ViewRequest::DeleteSnapshot { name } => {
                self.delete_snapshot(name).map(|()| Value::Null)
            }
            ViewRequest::ListSnapshots => operations::list_snapshots(&self.fs(), self.shown_at()),
            ViewRequest::DiffSnapshots { from, to } => {
                operations::diff_snapshots(&self.fs(), from, to.as_deref())
            }
            ViewRequest::Receipt => transfer::token(&self.fs()),
            ViewRequest::DiscardReceipt => transfer::discard(&self.fs()),
            ViewRequest::Send(_) | ViewRequest::Receive => Err(Error::failed(
                "this request cannot carry a stream: use `varve snapshot send` and `receive`",
            )),
            ViewRequest::Rollback { name, dry_run: true, .. } => {
                operations::rollback_diff(&self.fs(), name)
            }
            ViewRequest::Rollback { name, dry_run: false, .. } => self.roll_back(name, progress),
            ViewRequest::Begin { root, options } => {
                self.check_shown("a transaction")?;
                let name = transactions::begin(&self.fs(), InodeId::new(*root), options)?;
                self.begun(&name);
                self.attach_begun(&name);
                Ok(json!({ "id": name.name, "path": self.dir.join(name.path()).written() }))
            }
            ViewRequest::Commit { id } => {
                let name = self.transaction(id);
                self.commit(&name, None).map_err(|error| error.explained(&self.fs(), &name))?;
                Ok(Value::Null)
            }
            ViewRequest::Abort { id } => {
                self.abort::<Error>(&self.transaction(id), UnmountMode::Force).map(|()| Value::Null)
            }
            ViewRequest::Clone(request) => {
                let ino = operations::clone(&self.fs(), request)?;
                let into = InodeId::new(request.into);
                self.told(self.notifier.names_changed(into, [&request.to[..]]));
                Ok(json!({ "inode": ino.get() }))
            }
            ViewRequest::ListTransactions => {
                let listed = operations::list_transactions(&self.fs(), self.shown_at())?;
                Ok(listed.into_iter().map(|(txn, told)| self.with_use(&txn, told)).collect())
            }
            ViewRequest::Diff { id } => {
                let name = self.transaction(id);
                self.sync(&name)?;
                operations::diff(&self.fs(), &name.name)
            }
            ViewRequest::Status { id } => {
                let name = self.transaction(id);
                self.sync(&name)?;
                let (txn, told) = operations::status(&self.fs(), &name.name, self.shown_at())?;
                Ok(self.with_use(&txn, told))
            }
        }
    }

    fn create_snapshot(&self, name: &str) -> Result<Value> {
        let view = snapshots::create(&self.fs(), name)?;
        let path = self.shown_at().map(|dir| dir.join(view.path()));
        self.listing_changed(&view);
        let mut created = json!({ "name": name, "path": path.written() });
        if let Err(error) = self.check_shown("a snapshot") {
            created["note"] = error.to_string().into();
        }
        Ok(created)
    }

    /// Deletes a snapshot that no program uses.
    fn delete_snapshot(&self, name: &str) -> Result<()> {
        let view = ViewName { kind: ViewKind::Snapshot, name: name.to_owned() };
        self.transitions.ending(&view, || {
            let found = self.fs().check_view(&view);
            found.map_err(|error| snapshots::not_found(name, error))?;
            self.end_unbound(&view)?;
            snapshots::delete(&self.fs(), name)
        })?;
        self.name_changed(&view);
        Ok(())
    }

    /// Writes the next tables again by the store's design. REQUIRES: the caller has entered.
    pub(crate) fn redesign(&self) -> Result<Value> {
        serde_json::to_value(self.fs().redesign()?)
            .map_err(|error| Error::failed(format!("cannot write the result as JSON: {error}")))
    }

    /// Serves a client that sends or receives a stream.
    pub(crate) fn transfer(&self, request: &ViewRequest, client: &mut UnixStream) {
        transfer::serve(&self.fs(), request, client, |snapshot, committed| {
            self.follow(committed);
            let name = snapshot.name.clone();
            self.listing_changed(&ViewName { kind: ViewKind::Snapshot, name });
        });
    }

    /// Aborts a transaction; fails if `mode` is plain and programs are in it.
    fn abort<E: From<Error> + From<BeingEnded>>(
        &self,
        name: &ViewName,
        mode: UnmountMode,
    ) -> std::result::Result<(), E> {
        self.transitions.ending(name, || {
            let found = self.fs().check_view(name);
            found.map_err(|error| transactions::not_found(&name.name, error))?;
            self.end(name, mode)?;
            Ok::<_, E>(transactions::abort(&self.fs(), &name.name)?)
        })?;
        self.name_changed(name);
        Ok(())
    }

    /// Commits a transaction. With `waits` it waits for locks only if one of these slots is free.
    fn commit(&self, name: &ViewName, waits: Option<&Slots>) -> std::result::Result<(), NotEnded> {
        let done = self.transitions.ending(name, || self.commit_ending(name, waits));
        if !done.as_ref().is_err_and(NotEnded::goes_on) {
            self.name_changed(name);
        }
        done
    }

    fn commit_ending(
        &self,
        name: &ViewName,
        waits: Option<&Slots>,
    ) -> std::result::Result<(), NotEnded> {
        self.fs().check_view(name).map_err(|error| NotEnded::Refused(error.into()))?;
        let open = self.sync(name).map_err(|error| self.not_synced(name, error))?;
        let done = operations::commit(&self.fs(), &name.name, open.as_deref(), waits);
        let Some(committed) = done.as_ref().map_or_else(CommitError::committed, Some) else {
            return done.map(drop).map_err(NotEnded::Refused);
        };
        self.follow(committed);
        // The commit is done, whatever becomes of the transaction's mount.
        if let Err(error) = self.end(name, UnmountMode::Force) {
            log::warn!(
                "{} is committed, but still mounted: {}",
                name.path().display(),
                error.message()
            );
        }
        done.map(drop).map_err(NotEnded::Refused)
    }

    /// Why the mapped memory of a transaction could not be written. All writes fail in a transaction that has lost its locks.
    fn not_synced(&self, name: &ViewName, error: Error) -> NotEnded {
        let all = self.fs().lock_status().unwrap_or_default();
        let found = all.into_iter().find(|locks| locks.id == name.name);
        match found.and_then(|locks| locks.lost_locks) {
            Some(why) => NotEnded::Refused(CommitError::DeadlockVictim(why)),
            None => NotEnded::Failed(error),
        }
    }

    fn told(&self, told: std::io::Result<()>) {
        if let Err(error) = told {
            log::warn!("the kernel may still show old names or attributes: {error}");
        }
    }

    fn begun(&self, name: &ViewName) {
        self.listing_changed(name);
        self.usage.begun();
    }

    /// Whether only root gets into the mount: then the kernel checks no permissions, and asks nothing about the path of a view before a
    /// program creates something in it, when it is too late to mount it.
    fn is_for_root_alone(&self) -> bool {
        !self.mount.default_permissions
    }

    /// Mounts a transaction that has just begun, where no lookup would do so.
    fn attach_begun(self: &Arc<Self>, name: &ViewName) {
        if self.is_for_root_alone()
            && let Err(error) = self.attach(name)
        {
            log::warn!("{} is not mounted yet: {error}", name.path().display());
        }
    }

    /// Like [`ViewService::attach_begun`], from a thread of its own. A request on the mount must be answered first, since the kernel may
    /// have locked directories on the path of the view.
    fn attach_begun_soon(self: &Arc<Self>, name: &ViewName) {
        if !self.is_for_root_alone() {
            return;
        }
        let (service, view) = (Arc::clone(self), name.clone());
        let attach = move || service.attach_begun(&view);
        if let Err(error) = thread::Builder::new().name("varve-arrive".to_owned()).spawn(attach) {
            log::warn!("{} is not mounted yet: {error}", name.path().display());
        }
    }

    /// Has the kernel forget the path of a view that is gone, and the listings that show it.
    fn name_changed(&self, view: &ViewName) {
        self.told(self.notifier.name_changed(view.dir(), view.name.as_bytes()));
        self.listing_changed(view);
    }

    /// Has the kernel forget the listings that show a new view. The path itself is not forgotten: the kernel never keeps that such a name
    /// is absent ([`varve_vfs::Vfs::may_appear`]), and forgetting it would unmount a view that a program has entered meanwhile.
    fn listing_changed(&self, view: &ViewName) {
        for dir in view.listed_in() {
            self.told(self.notifier.inode_changed(dir));
        }
    }
}

impl DictionaryHost for ViewService {
    fn admit(&self, is_change: bool) -> Result<()> {
        ViewService::admit(self, is_change)
    }

    fn answer(&self, transaction: u64, request: &kv::protocol::Request) -> kv::protocol::Response {
        kv::answer(&self.fs(), transaction, request)
    }
}

impl Answers for ViewService {
    fn enter(&self) -> Result<Option<Admitted>> {
        ViewService::enter(self).map(Some)
    }

    fn admit(&self, is_change: bool) -> Result<()> {
        ViewService::admit(self, is_change)
    }

    fn answer(
        self: Arc<Self>,
        request: &ViewRequest,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Value> {
        ViewService::answer(&self, request, progress)
    }

    fn transfer(&self, request: &ViewRequest, client: &mut UnixStream) {
        ViewService::transfer(self, request, client);
    }

    fn redesign(&self) -> Result<Value> {
        ViewService::redesign(self)
    }

    fn leave(&self) -> Result<GateClosed> {
        ViewService::leave(self)
    }
}

/// The mount that is about to be served.
fn find_main(attached: &Attached) -> Option<MountWatch> {
    let found = MountWatch::find(&attached.ready.dir, attached.store.as_os_str());
    found
        .inspect_err(|error| log::warn!("snapshots and transactions cannot be mounted: {error}"))
        .ok()
        .flatten()
}
