//! The mounts of views, within the mount of the store, and what clients ask about views.
//!
//! ```text
//! somebody comes by --arrive--> attached, served by a thread --unmounted, or its view ends--> gone
//! ```
//!
//! A view is attached when somebody first comes by its place (`varve_fs`, `views`), as a FUSE connection of its own: so
//! it has its own `st_dev`, node ids and caches. Within the process it is a file system beside the main one.
//! How they come and go is in `attach`, and who may do that in `turns`.
//! It takes CAP_SYS_ADMIN, which root has, and so has whoever mounts in a private namespace.

mod admission_gate;
mod attach;
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
use varve::{Error, Result, exit_status, snapshots, transactions};
use varve_engine::paths::WritePaths;
use varve_fs::fsck::Progress;
use varve_fs::{CommitError, VarveFs, ViewKind, ViewName};
use varve_fuse::{
    ASKED_WAITS_MAX, MountMethod, MountOptions, MountWatch, Notifier, SessionOptions, UnmountMode,
};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

pub(crate) use admission_gate::{Closed, Working, being_upgraded};

use crate::control::ViewRequest;
use crate::mount::{Attached, Choices, mount_again, mount_options, session_options};
use crate::requests::operations;
use crate::slots::Slots;
use crate::transfer;
use admission_gate::Door;
use transitions::Turns;
use usage::Claims;

/// Why a transaction is not ended, or what of its commit is missing.
enum NotEnded {
    Refused(CommitError),
    /// Somebody else is about to end it.
    ByAnother(BeingEnded),
    Failed(Error),
}

/// Somebody ends this view.
struct BeingEnded(ViewName);

impl NotEnded {
    /// Whether the transaction goes on.
    fn goes_on(&self) -> bool {
        match self {
            NotEnded::Refused(error) => error.committed().is_none(),
            NotEnded::ByAnother(_) | NotEnded::Failed(_) => true,
        }
    }
}

impl From<Error> for NotEnded {
    fn from(error: Error) -> NotEnded {
        NotEnded::Failed(error)
    }
}

impl From<BeingEnded> for NotEnded {
    fn from(being: BeingEnded) -> NotEnded {
        NotEnded::ByAnother(being)
    }
}

impl From<BeingEnded> for Error {
    fn from(BeingEnded(name): BeingEnded) -> Error {
        Error::failed(format!("{} is being ended already", name.path().display()))
            .hint("try again: by then it has ended, or goes on")
    }
}

/// The views of one mount.
pub(crate) struct ViewDesk {
    pub(crate) fs: Arc<VarveFs>,
    dir: PathBuf,
    /// The main mount; `None`: the kernel does not tell of it, and no view can be mounted.
    main: Option<MountWatch>,
    /// Whether views can be mounted: not where the helper of an ordinary user has mounted, whom the kernel lets mount
    /// nothing within.
    shows_views: bool,
    mount: MountOptions,
    session: SessionOptions,
    notifier: Notifier,
    /// Those that are attached.
    attached: Mutex<HashMap<ViewName, Arc<VarveFs>>>,
    turns: Turns,
    claims: Claims,
    door: Arc<Door>,
    /// Commits asked for on the mount that wait for what others have locked.
    asked_waits: Slots,
}

impl ViewDesk {
    /// For a mount that is about to be served.
    pub(crate) fn open(attached: &Attached, choices: &Choices) -> Arc<ViewDesk> {
        let mut mount = mount_options(&attached.store, choices);
        // As the mount is, which an older program may have made.
        mount.default_permissions |= !attached.session.is_for_root_alone();
        let desk = Arc::new(ViewDesk {
            fs: attached.file_system.inner(),
            dir: attached.ready.dir.clone(),
            main: find_main(attached),
            shows_views: attached.ready.method != MountMethod::Fusermount.to_string(),
            mount,
            session: SessionOptions { passthrough: false, ..session_options(choices) },
            notifier: attached.session.notifier(),
            attached: Mutex::default(),
            turns: Turns::default(),
            claims: Claims::default(),
            door: Arc::default(),
            asked_waits: Slots::new(ASKED_WAITS_MAX),
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
        let weak = Arc::downgrade(&desk);
        desk.fs.write_back_by(move |files| match weak.upgrade() {
            Some(desk) => desk.write_back(files),
            None => Ok(()),
        });
        idle::watch(&desk);
        desk
    }

    /// Refuses who asks for a change by another way than the mount, and says what to do about it, while that is read-only. Nothing is
    /// looked at for who asks for none.
    pub(crate) fn admit(&self, is_change: bool) -> Result<()> {
        if !is_change {
            return Ok(());
        }
        self.check_writable().map_err(|error| {
            let error = Error::from(error);
            if self.mount.read_only { error.hint(mount_again(&self.dir)) } else { error }
        })
    }

    /// Does what a client asks. REQUIRES: the caller has entered, and the request is admitted.
    pub(crate) fn answer(
        self: &Arc<Self>,
        request: &ViewRequest,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Value> {
        self.answered(request, progress).map_err(|error| match request {
            ViewRequest::Commit { id }
            | ViewRequest::Abort { id }
            | ViewRequest::Diff { id }
            | ViewRequest::Status { id } => self.claims.explain(&self.transaction(id).name, error),
            _ => error,
        })
    }

    /// Refuses what needs the directory of a view on a mount that can have none.
    fn check_shows_views(&self) -> FsResult<()> {
        match self.shows_views {
            true => Ok(()),
            false => Err(FsError::NotSupported(
                "snapshots and transactions as directories of an ordinary user's mount",
            )),
        }
    }

    /// Fails where no program could enter `what`, and says which mount would show it.
    fn check_shown(&self, what: &str) -> Result<()> {
        self.check_shows_views().map_err(|_| {
            let dir = self.dir.display();
            let text = format!(
                "{dir} cannot show {what} as a directory: fusermount has mounted it, and an ordinary user mounts nothing within"
            );
            Error::failed(text).hint(format!(
                "have root mount the store; or `varve umount {dir}`, and mount it in a shell of your own namespace: \
                 `unshare --user --map-current-user --mount --keep-caps`"
            ))
        })
    }

    /// The directory below which views are to be found, if they are.
    fn shown_at(&self) -> Option<&Path> {
        self.shows_views.then_some(&self.dir)
    }

    /// What a client means by `id`: a transaction's id, or the path at which it is mounted.
    fn transaction(&self, id: &str) -> ViewName {
        let place = Path::new(id).strip_prefix(&self.dir).ok().and_then(ViewName::at);
        let named = place.filter(|view| view.kind == ViewKind::Transaction);
        named.unwrap_or_else(|| ViewName::transaction(id))
    }

    /// Refuses changes by other ways than the mount while that is read-only.
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
        operations::roll_back(&self.fs, name, progress, |committed| self.follow(committed))?;
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
            ViewRequest::ListSnapshots => operations::list_snapshots(&self.fs, self.shown_at()),
            ViewRequest::DiffSnapshots { from, to } => {
                operations::diff_snapshots(&self.fs, from, to.as_deref())
            }
            ViewRequest::Receipt => transfer::token(&self.fs),
            ViewRequest::DiscardReceipt => transfer::discard(&self.fs),
            ViewRequest::Send(_) | ViewRequest::Receive => {
                Err(Error::failed("a stream is sent and received otherwise"))
            }
            ViewRequest::Rollback { name, dry_run: true, .. } => {
                operations::rollback_diff(&self.fs, name)
            }
            ViewRequest::Rollback { name, dry_run: false, .. } => self.roll_back(name, progress),
            ViewRequest::Begin { root, options } => {
                self.check_shown("a transaction")?;
                let name = transactions::begin(&self.fs, InodeId::new(*root), options)?;
                self.begun(&name);
                self.attach_begun(&name);
                Ok(json!({ "id": name.name, "path": self.dir.join(name.path()).written() }))
            }
            ViewRequest::Commit { id } => {
                let name = self.transaction(id);
                self.commit(&name, None).map_err(|error| match error {
                    NotEnded::Refused(error) => {
                        transactions::not_committed(&self.fs, &name.name, error)
                    }
                    NotEnded::ByAnother(being) => {
                        Error::from(being).with_status(exit_status::CONFLICT)
                    }
                    NotEnded::Failed(error) => error,
                })?;
                Ok(Value::Null)
            }
            ViewRequest::Abort { id } => {
                self.abort::<Error>(&self.transaction(id), UnmountMode::Force).map(|()| Value::Null)
            }
            ViewRequest::Clone(request) => {
                let ino = operations::clone(&self.fs, request)?;
                let into = InodeId::new(request.into);
                self.told(self.notifier.names_changed(into, [&request.to[..]]));
                Ok(json!({ "inode": ino.get() }))
            }
            ViewRequest::ListTransactions => {
                let listed = operations::list_transactions(&self.fs, self.shown_at())?;
                Ok(listed.into_iter().map(|(txn, told)| self.with_use(&txn, told)).collect())
            }
            ViewRequest::Diff { id } => {
                let name = self.transaction(id);
                self.sync(&name)?;
                operations::diff(&self.fs, &name.name)
            }
            ViewRequest::Status { id } => {
                let name = self.transaction(id);
                self.sync(&name)?;
                let (txn, told) = operations::status(&self.fs, &name.name, self.shown_at())?;
                Ok(self.with_use(&txn, told))
            }
        }
    }

    fn create_snapshot(&self, name: &str) -> Result<Value> {
        let view = snapshots::create(&self.fs, name)?;
        let path = self.shown_at().map(|dir| dir.join(view.path()));
        self.listing_changed(&view);
        let mut created = json!({ "name": name, "path": path.written() });
        if let Err(error) = self.check_shown("a snapshot") {
            created["note"] = error.to_string().into();
        }
        Ok(created)
    }

    /// Deletes a snapshot that nobody uses.
    fn delete_snapshot(&self, name: &str) -> Result<()> {
        let view = ViewName { kind: ViewKind::Snapshot, name: name.to_owned() };
        self.ending(&view, || {
            let found = self.fs.check_view(&view);
            found.map_err(|error| snapshots::not_found(name, error))?;
            self.end_unbound(&view)?;
            snapshots::delete(&self.fs, name)
        })?;
        self.name_changed(&view);
        Ok(())
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
            self.listing_changed(&ViewName { kind: ViewKind::Snapshot, name });
        });
    }

    /// Drops a transaction; not if the mode is plain and programs are in it.
    fn abort<E: From<Error> + From<BeingEnded>>(
        &self,
        name: &ViewName,
        mode: UnmountMode,
    ) -> std::result::Result<(), E> {
        self.ending(name, || {
            let found = self.fs.check_view(name);
            found.map_err(|error| transactions::not_found(&name.name, error))?;
            self.end(name, mode)?;
            Ok::<_, E>(transactions::abort(&self.fs, &name.name)?)
        })?;
        self.name_changed(name);
        Ok(())
    }

    /// Commits a transaction; where `waits` are counted it takes one of them to wait for what others have locked.
    fn commit(&self, name: &ViewName, waits: Option<&Slots>) -> std::result::Result<(), NotEnded> {
        let done = self.ending(name, || self.commit_ending(name, waits));
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
        self.fs.check_view(name).map_err(|error| NotEnded::Refused(error.into()))?;
        let open = self.sync(name).map_err(|error| self.not_synced(name, error))?;
        let done = operations::commit(&self.fs, &name.name, open.as_deref(), waits);
        let Some(committed) = done.as_ref().map_or_else(CommitError::committed, Some) else {
            return done.map(drop).map_err(NotEnded::Refused);
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
        done.map(drop).map_err(NotEnded::Refused)
    }

    /// Why what programs have changed in the mapped memory of a transaction could not be written: all fails in one that has lost its
    /// locks.
    fn not_synced(&self, name: &ViewName, error: Error) -> NotEnded {
        let all = self.fs.lock_status().unwrap_or_default();
        let gave_way = all.into_iter().find(|locks| locks.id == name.name);
        match gave_way.and_then(|locks| locks.gave_way) {
            Some(why) => NotEnded::Refused(CommitError::GaveWay(why)),
            None => NotEnded::Failed(error),
        }
    }

    fn told(&self, told: std::io::Result<()>) {
        if let Err(error) = told {
            log::warn!("the kernel may not see all that changed: {error}");
        }
    }

    fn begun(&self, name: &ViewName) {
        self.listing_changed(name);
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
    fn attach_begun_soon(self: &Arc<Self>, name: &ViewName) {
        if !self.is_for_root_alone() {
            return;
        }
        let (desk, view) = (Arc::clone(self), name.clone());
        let attach = move || desk.attach_begun(&view);
        if let Err(error) = thread::Builder::new().name("varve-arrive".to_owned()).spawn(attach) {
            log::warn!("{} is not mounted yet: {error}", name.path().display());
        }
    }

    /// Has the kernel forget what it knows of the place of a view that is gone, and of who lists it.
    fn name_changed(&self, view: &ViewName) {
        self.told(self.notifier.name_changed(view.dir(), view.name.as_bytes()));
        self.listing_changed(view);
    }

    /// Has the kernel list anew what has a view that has begun. Of its place there is nothing to be forgotten, as the kernel never keeps
    /// that there is no such name ([`varve_vfs::Vfs::may_appear`]): and if somebody was there already, that would take the view's
    /// mount away again.
    fn listing_changed(&self, view: &ViewName) {
        for dir in view.listed_in() {
            self.told(self.notifier.inode_changed(dir));
        }
    }
}

/// The mount that is about to be served.
fn find_main(attached: &Attached) -> Option<MountWatch> {
    let found = MountWatch::find(&attached.ready.dir, attached.store.as_os_str());
    found.inspect_err(|error| log::warn!("no views: {error}")).ok().flatten()
}
