//! How a snapshot or a transaction gets its mount, and how it loses it.
//!
//! No program says that it is done with a snapshot, and each mount costs threads and descriptors. So each time a snapshot is attached
//! while more than [`ATTACHED_MAX`] are, the daemon detaches the least recently used ones among those that no program uses.

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

use super::ViewService;
use super::transitions::TransitionKind;
use crate::error;
use crate::mount_source::source_of;

/// Snapshots that stay attached although no program uses them.
const ATTACHED_MAX: usize = 64;
/// Threads that read the requests of a snapshot: with few, many snapshots cost little.
const SNAPSHOT_THREADS: NonZeroUsize = NonZeroUsize::new(2).unwrap();
/// How often the list of a view's open files is read again because files were renamed or closed meanwhile.
const LOOKS_MAX: u32 = 20;

/// Fails if `seen` names another place where the view is mounted, or if the search failed.
fn refuse_if(seen: std::io::Result<Option<Elsewhere>>) -> Result<()> {
    let seen = seen.map_err(|error| Error::io("look for mounts in", Path::new("/proc"), &error))?;
    seen.map_or(Ok(()), |seen| {
        Err(Error::failed(seen.to_string())
            .hint("end the programs that run there, or unmount it there, and try again"))
    })
}

/// The error for a view whose mapped memory could not be written.
fn not_written(path: &Path, error: &std::io::Error) -> Error {
    let failed = Error::io("sync", path, error);
    match error.kind() {
        // Another transaction has locked the file.
        ErrorKind::ResourceBusy | ErrorKind::WouldBlock | ErrorKind::Deadlock => {
            failed.with_status(exit_status::CONFLICT).hint("try again")
        }
        _ => failed,
    }
}

impl ViewService {
    /// Mounts a view at its path, unless it is mounted.
    pub(super) fn attach(self: &Arc<Self>, name: &ViewName) -> FsResult<()> {
        self.check_shows_views()?;
        // During an upgrade the view counts as gone: the kernel looks it up again, and the successor answers.
        let _admitted = self.gate.enter().ok_or(FsError::Stale)?;
        self.attach_now(name)?;
        if name.kind == ViewKind::Snapshot {
            self.make_room(name);
        }
        Ok(())
    }

    fn attach_now(self: &Arc<Self>, name: &ViewName) -> FsResult<()> {
        let _transition =
            self.transitions.take(name, TransitionKind::Attach).ok_or(FsError::Stale)?;
        if self.attached(name).is_some() {
            return Ok(());
        }
        let fs = Arc::new(self.fs().open_view(name)?);
        let failed = |reason: &dyn std::fmt::Display| {
            FsError::Storage(format!("{} cannot be mounted: {reason}", name.path().display()))
        };
        let place = self.place(name).map_err(|error| failed(&error.message()))?;
        let mounted = loop {
            let options = self.options_for(name)?;
            let mounted = mount_within(&place, &options).map_err(|error| failed(&error))?;
            // `remount` changes the flags of the views that are mounted at that moment; this one was not.
            if self.options_for(name).ok().is_none_or(|now| now == options) {
                break mounted;
            }
            drop(mounted);
            place.unmount(UnmountMode::Force).map_err(|error| failed(&error))?;
        };
        let options = self.session_for(name)?;
        let session = Session::new(Arc::<VarveFs>::clone(&fs), mounted, &options);
        let session = session.map_err(|error| failed(&error))?;
        let (service, view, served) = (Arc::downgrade(self), name.clone(), Arc::downgrade(&fs));
        let serve = move || {
            if let Err(error) = session.run() {
                log::warn!("{error}");
            }
            if let Some(service) = service.upgrade() {
                service.release(&view, |fs| Weak::ptr_eq(&Arc::downgrade(fs), &served));
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

    /// Detaches snapshots that no program uses if too many are attached. Keeps `come`, which a program is about to enter.
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
        // Snapshots in use stay.
        let detached = snapshots.iter().filter(|(unused_for, name)| {
            let Some(_transition) = self.transitions.try_detach(name) else { return false };
            !unused_for.is_zero()
                && self.check_elsewhere(std::slice::from_ref(name)).is_ok()
                && self.end(name, UnmountMode::Plain).is_ok()
        });
        let detached = detached.take(too_many).count();
        log::debug!("{detached} snapshots that no program uses are detached");
    }

    fn session_for(&self, name: &ViewName) -> FsResult<SessionOptions> {
        let options = self.session.clone();
        Ok(match name.kind {
            ViewKind::Transaction => {
                SessionOptions { root: self.fs().transaction(&name.name)?.root, ..options }
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
        // The flags that the main mount has now.
        if let Some(now) = self.main.as_ref().map(MountWatch::now) {
            mount.read_only = now.read_only;
            (mount.no_suid, mount.no_dev, mount.no_exec) = (now.no_suid, now.no_dev, now.no_exec);
            mount.no_symfollow = now.no_symfollow;
        }
        mount.read_only |= name.kind == ViewKind::Snapshot;
        mount.source = source_of(&mount.source, name);
        // The path of a transaction does not lead through the directories above its root, so their permissions would not count.
        if mount.allow_other
            && name.kind == ViewKind::Transaction
            && !self.fs().all_may_reach(self.fs().transaction(&name.name)?.root)?
        {
            (mount.allow_other, mount.default_permissions) = (false, true);
        }
        Ok(mount)
    }

    /// Closes the file system of a view that is not mounted any more, if it is attached still and `is_it`.
    fn release(&self, name: &ViewName, is_it: impl FnOnce(&Arc<VarveFs>) -> bool) {
        let mut attached = self.attached.lock();
        if !attached.get(name).is_some_and(is_it) {
            return;
        }
        let gone = attached.remove(name);
        drop(attached);
        if let Some(fs) = &gone {
            self.usage.note(&name.name, fs.unused_for());
        }
        if let Some(Err(error)) = gone.map(|fs| fs.close()) {
            log::warn!("{}: {error}", name.path().display());
        }
    }

    /// Unmounts a view that ends and closes it. Programs in it get errors, unless `mode` is plain: then a view in use stays.
    pub(super) fn end(&self, name: &ViewName, mode: UnmountMode) -> Result<()> {
        self.detach(name, mode)?;
        self.release(name, |_| true);
        Ok(())
    }

    /// Unmounts a view for good, if no program uses it and it is not bound to another path. Copies in mount namespaces of programs
    /// stay, without large files.
    pub(super) fn end_unbound(&self, name: &ViewName) -> Result<()> {
        refuse_if(bound_elsewhere(&[self.dir.join(name.path())]))?;
        self.end(name, UnmountMode::Plain)
    }

    /// Fails if one of these views is mounted elsewhere too, where it would stay, such as in a program's mount namespace; or if the
    /// search fails.
    pub(super) fn check_elsewhere(&self, names: &[ViewName]) -> Result<()> {
        let places: Vec<PathBuf> = names.iter().map(|name| self.dir.join(name.path())).collect();
        refuse_if(seen_elsewhere(&places))
    }

    /// Unmounts a view by `mode`, if it is mounted.
    fn detach(&self, name: &ViewName, mode: UnmountMode) -> Result<()> {
        if self.attached(name).is_none() {
            return Ok(());
        }
        match self.place(name)?.unmount(mode) {
            Ok(()) | Err(UnmountError::NotMounted(_)) => Ok(()),
            Err(error @ UnmountError::Failed { .. }) => Err(Error::failed(error.to_string())
                .hint("give the mount the path again that it had when it was mounted")),
            Err(error) => Err(error::not_unmounted(error)),
        }
    }

    /// Where a view is mounted. REQUIRES: the view exists, or has existed.
    pub(super) fn place(&self, name: &ViewName) -> Result<MountTarget> {
        let path = self.dir.join(name.path());
        match (&self.main, path.parent()) {
            (Some(main), Some(dir)) => Ok(MountTarget::new(main.id(), dir, name.name.as_str())),
            _ => {
                let text = format!("the mount table does not list {}", self.dir.display());
                Err(Error::failed(text).hint("unmount the store and mount it again"))
            }
        }
    }

    /// Detaches all views, after the main mount is gone.
    pub(crate) fn close(&self) {
        for name in self.all_attached() {
            if let Err(error) = self.detach(&name, UnmountMode::Force) {
                log::warn!("{}", error.message());
            }
            self.release(&name, |_| true);
        }
    }

    pub(super) fn all_attached(&self) -> Vec<ViewName> {
        self.attached.lock().keys().cloned().collect()
    }

    /// The file system of a view, if it is mounted.
    pub(super) fn attached(&self, name: &ViewName) -> Option<Arc<VarveFs>> {
        self.attached.lock().get(name).cloned()
    }

    /// Writes what programs have changed in the mapped memory of these files of the present state.
    pub(super) fn write_back(&self, files: &[(InodeId, PathBuf)]) -> std::io::Result<()> {
        match &self.main {
            Some(main) => MountTarget::new(main.id(), &self.dir, ".").write_back(files),
            None => Ok(()),
        }
    }

    /// Writes what programs have changed in the mapped memory of a view. Returns its file system, if it is attached.
    pub(super) fn sync(&self, name: &ViewName) -> Result<Option<Arc<VarveFs>>> {
        let Some(open) = self.attached(name) else { return Ok(None) };
        let top = match name.kind {
            ViewKind::Transaction => self.fs().transaction(&name.name)?.root,
            ViewKind::Snapshot => return Ok(Some(open)),
        };
        let place = self.place(name)?;
        for look in 1.. {
            let files = open.open_for_writing(top)?;
            // Writing takes a process of its own.
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
