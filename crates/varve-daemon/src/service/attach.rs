//! How a view gets its mount, and how it loses it.
//!
//! Snapshots come and stay, as nobody says that he is done with one, and each costs threads and descriptors: when one is attached and
//! there are more than [`ATTACHED_MAX`], those that nobody uses and has used for longest are let go of.

use std::io::ErrorKind;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;

use varve::{Error, Result, exit_status};
use varve_fs::{VarveFs, ViewKind, ViewName};
use varve_fuse::{
    Elsewhere, IdlePoll, MountOptions, MountTarget, MountWatch, Session, SessionOptions, Transport,
    UnmountError, UnmountMode, bound_elsewhere, mount_within, seen_elsewhere,
};
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use super::transitions::Deed;
use super::{BeingEnded, ViewDesk};
use crate::error;
use crate::mount_source::source_of;

/// Snapshots that stay attached though nobody uses them.
const ATTACHED_MAX: usize = 64;
/// Threads that read the requests of a snapshot: with few, many snapshots cost little.
const SNAPSHOT_THREADS: NonZeroUsize = NonZeroUsize::new(2).unwrap();
/// How often the open files of a view may be elsewhere than they were a moment before.
const LOOKS_MAX: u32 = 20;

/// Fails if a view was found elsewhere, or if that could not be found out.
fn refuse_if(seen: std::io::Result<Option<Elsewhere>>) -> Result<()> {
    let seen = seen.map_err(|error| Error::io("look for mounts in", Path::new("/proc"), &error))?;
    seen.map_or(Ok(()), |seen| {
        Err(Error::failed(seen.to_string())
            .hint("end what runs there, or unmount it there, and try again"))
    })
}

/// What is told of a view whose mapped memory could not be written.
fn not_written(path: &Path, error: &std::io::Error) -> Error {
    let failed = Error::io("sync", path, error);
    match error.kind() {
        // Others had locked it.
        ErrorKind::ResourceBusy | ErrorKind::WouldBlock | ErrorKind::Deadlock => {
            failed.with_status(exit_status::CONFLICT).hint("try again")
        }
        _ => failed,
    }
}

impl ViewDesk {
    /// Mounts a view on its place, unless it is mounted.
    pub(super) fn attach(self: &Arc<Self>, name: &ViewName) -> FsResult<()> {
        self.check_shows_views()?;
        // As if it was gone already, to be looked up again, and by the successor.
        let _working = self.door.enter().ok_or(FsError::Stale)?;
        self.attach_now(name)?;
        if name.kind == ViewKind::Snapshot {
            self.make_room(name);
        }
        Ok(())
    }

    fn attach_now(self: &Arc<Self>, name: &ViewName) -> FsResult<()> {
        let _turn = self.turns.take(name, Deed::Attach).ok_or(FsError::Stale)?;
        if self.attached(name).is_some() {
            return Ok(());
        }
        let fs = Arc::new(self.fs.open_view(name)?);
        let failed = |reason: &dyn std::fmt::Display| {
            FsError::Storage(format!("{} cannot be mounted: {reason}", name.path().display()))
        };
        let place = self.place(name).map_err(|error| failed(&error.message()))?;
        let mounted = loop {
            let options = self.options_for(name)?;
            let mounted = mount_within(&place, &options).map_err(|error| failed(&error))?;
            // Who gives the main mount other flags gives them to the views that are mounted by then.
            if self.options_for(name).ok().is_none_or(|now| now == options) {
                break mounted;
            }
            drop(mounted);
            place.unmount(UnmountMode::Force).map_err(|error| failed(&error))?;
        };
        let options = self.session_for(name)?;
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
        self.attached.lock().insert(name.clone(), fs);
        if let Err(error) = thread::Builder::new().name("varve-view".to_owned()).spawn(serve) {
            if let Err(error) = self.end(name, UnmountMode::Force) {
                log::warn!("{}", error.message());
            }
            return Err(failed(&error));
        }
        Ok(())
    }

    /// Lets go of snapshots that nobody uses if there are too many beside `come`, which somebody is about to enter.
    fn make_room(&self, come: &ViewName) {
        let mut snapshots: Vec<_> = self
            .attached
            .lock()
            .iter()
            .filter(|(name, _)| name.kind == ViewKind::Snapshot && *name != come)
            .map(|(name, fs)| (fs.unused_for(), name.clone()))
            .collect();
        let too_many = (snapshots.len() + 1).saturating_sub(ATTACHED_MAX);
        if too_many == 0 {
            return;
        }
        snapshots.sort_unstable_by(|one, other| other.cmp(one));
        // Those that are in use are passed over.
        let let_go = snapshots.iter().filter(|(unused_for, name)| {
            let Some(_turn) = self.turns.try_let_go(name) else { return false };
            !unused_for.is_zero()
                && self.check_elsewhere(std::slice::from_ref(name)).is_ok()
                && self.end(name, UnmountMode::Plain).is_ok()
        });
        let let_go = let_go.take(too_many).count();
        log::debug!("{let_go} views that nobody uses are let go of");
    }

    fn session_for(&self, name: &ViewName) -> FsResult<SessionOptions> {
        let options = self.session.clone();
        Ok(match name.kind {
            ViewKind::Transaction => {
                SessionOptions { root: self.fs.transaction(&name.name)?.root, ..options }
            }
            ViewKind::Snapshot => SessionOptions {
                transport: Some(Transport::Dev),
                threads: Some(SNAPSHOT_THREADS),
                idle_poll: IdlePoll::Never,
                ..options
            },
        })
    }

    fn options_for(&self, name: &ViewName) -> FsResult<MountOptions> {
        let mut mount = self.mount.clone();
        // As the main mount is now.
        if let Some(now) = self.main.as_ref().map(MountWatch::now) {
            mount.read_only = now.read_only;
            (mount.no_suid, mount.no_dev, mount.no_exec) = (now.no_suid, now.no_dev, now.no_exec);
            mount.no_symfollow = now.no_symfollow;
        }
        mount.read_only |= name.kind == ViewKind::Snapshot;
        mount.source = source_of(&mount.source, name);
        // The way to a transaction does not lead through the directories above what it shows.
        if mount.allow_other
            && name.kind == ViewKind::Transaction
            && !self.fs.all_may_reach(self.fs.transaction(&name.name)?.root)?
        {
            (mount.allow_other, mount.default_permissions) = (false, true);
        }
        Ok(mount)
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
    pub(super) fn ending<E: From<BeingEnded>>(
        &self,
        name: &ViewName,
        work: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let turn = self.turns.take(name, Deed::End);
        let _turn = turn.ok_or_else(|| BeingEnded(name.clone()))?;
        work()
    }

    /// Takes the mount of a view away that ends. Programs still in it get errors, unless the mode is plain: then it stays.
    pub(super) fn end(&self, name: &ViewName, mode: UnmountMode) -> Result<()> {
        self.detach(name, mode)?;
        self.let_go(name, |_| true);
        Ok(())
    }

    /// Takes the mount of a view away for good, if nobody uses it nor has bound it to another place. Copies that programs have in mount
    /// namespaces of their own go on without large files.
    pub(super) fn end_unbound(&self, name: &ViewName) -> Result<()> {
        refuse_if(bound_elsewhere(&[self.dir.join(name.path())]))?;
        self.end(name, UnmountMode::Plain)
    }

    /// Fails if one of these views is mounted elsewhere too, as in mount namespaces of programs, where it would go on; or if that
    /// cannot be found out.
    pub(super) fn check_elsewhere(&self, names: &[ViewName]) -> Result<()> {
        let places: Vec<PathBuf> = names.iter().map(|name| self.dir.join(name.path())).collect();
        refuse_if(seen_elsewhere(&places))
    }

    /// Takes the mount of a view away, if it has one, as `mode` says.
    fn detach(&self, name: &ViewName, mode: UnmountMode) -> Result<()> {
        if self.attached(name).is_none() {
            return Ok(());
        }
        match self.place(name)?.unmount(mode) {
            Ok(()) | Err(UnmountError::NotMounted(_)) => Ok(()),
            Err(error @ UnmountError::Failed { .. }) => Err(Error::failed(error.to_string())
                .hint("the path to the mount must be what it was when it was mounted")),
            Err(error) => Err(error::not_unmounted(error)),
        }
    }

    /// Where a view is mounted. REQUIRES: there is such a view, or was.
    pub(super) fn place(&self, name: &ViewName) -> Result<MountTarget> {
        let path = self.dir.join(name.path());
        match (&self.main, path.parent()) {
            (Some(main), Some(dir)) => Ok(MountTarget::new(main.id(), dir, name.name.as_str())),
            _ => {
                let text = format!("{} is not to be found in the mount table", self.dir.display());
                Err(Error::failed(text).hint("unmount and mount again"))
            }
        }
    }

    /// The main mount is gone: ends what is left.
    pub(crate) fn close(&self) {
        for name in self.all_attached() {
            if let Err(error) = self.detach(&name, UnmountMode::Force) {
                log::warn!("{}", error.message());
            }
            self.let_go(&name, |_| true);
        }
    }

    pub(super) fn all_attached(&self) -> Vec<ViewName> {
        self.attached.lock().keys().cloned().collect()
    }

    /// The file system of a view, if it is mounted.
    pub(super) fn attached(&self, name: &ViewName) -> Option<Arc<VarveFs>> {
        self.attached.lock().get(name).cloned()
    }

    /// Has what programs have changed in the mapped memory of these files of the main view written.
    pub(super) fn write_back(&self, files: &[(InodeId, PathBuf)]) -> std::io::Result<()> {
        match &self.main {
            Some(main) => MountTarget::new(main.id(), &self.dir, ".").write_back(files),
            None => Ok(()),
        }
    }

    /// Has what programs have changed in the mapped memory of a view written. Gives its file system, if it is attached.
    pub(super) fn sync(&self, name: &ViewName) -> Result<Option<Arc<VarveFs>>> {
        let Some(open) = self.attached(name) else { return Ok(None) };
        let top = match name.kind {
            ViewKind::Transaction => self.fs.transaction(&name.name)?.root,
            ViewKind::Snapshot => return Ok(Some(open)),
        };
        let place = self.place(name)?;
        for look in 1.. {
            let files = open.open_for_writing(top)?;
            // It takes a process.
            if files.is_empty() {
                break;
            }
            match place.write_back(&files) {
                Ok(()) => break,
                // Renamed or closed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound && look < LOOKS_MAX => {}
                Err(error) => return Err(not_written(&place.path(), &error)),
            }
        }
        Ok(Some(open))
    }
}
