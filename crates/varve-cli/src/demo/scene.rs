//! The temporary directory, stores and mount of a demonstration, and their end.
//!
//! ```text
//! new -> mount -> (work) -> unmount -> check -> mount -> close -> remove
//! ```
//!
//! Dropped anywhere on this way, it unmounts and removes everything. SIGINT, SIGTERM and SIGHUP do the same from a
//! thread of their own and end the process.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use tempfile::TempDir;
use varve::{Error, FileSystem, Result, store};
use varve_daemon::mount::{AttachError, Attached, Choices, not_unmounted};
use varve_daemon::status::bytes_below;
use varve_fs::{FormatOptions, MountOptions};
use varve_fuse::{StopHandle, UnmountMode};

use super::stage::{self, Interrupts};

/// A mount that is served by a thread of this process.
struct Served {
    thread: thread::JoinHandle<Result<()>>,
    stop: StopHandle,
}

/// Everything a demonstration makes.
pub(super) struct Scene {
    dir: Option<TempDir>,
    path: PathBuf,
    served: Option<Served>,
    library: Option<FileSystem>,
    /// What an interrupt must unmount.
    to_stop: Arc<Mutex<Option<StopHandle>>>,
    interrupts: Interrupts,
}

impl Scene {
    /// Makes the temporary directory and formats the stores.
    pub(super) fn new() -> Result<Scene> {
        let interrupts = Interrupts::new()?;
        let (dir, path) = stage::temporary_dir(&std::env::temp_dir())?;
        let scene = Scene {
            dir: Some(dir),
            path,
            served: None,
            library: None,
            to_stop: Arc::new(Mutex::new(None)),
            interrupts,
        };
        for name in ["plain", "mount"] {
            let path = scene.path.join(name);
            std::fs::create_dir(&path).map_err(|error| Error::io("create", &path, &error))?;
        }
        for store in [scene.store(), scene.library_store()] {
            let root_owner =
                (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            store::format(&store, &FormatOptions { root_owner, ..FormatOptions::default() })?;
        }
        Ok(scene)
    }

    /// A directory beside the stores.
    pub(super) fn plain_dir(&self) -> PathBuf {
        self.path.join("plain")
    }

    /// Where the store is mounted.
    pub(super) fn mount_point(&self) -> PathBuf {
        self.path.join("mount")
    }

    fn store(&self) -> PathBuf {
        self.path.join("store")
    }

    fn library_store(&self) -> PathBuf {
        self.path.join("library-store")
    }

    /// Mounts the store and serves it from a thread. Returns the method and the refusals of others.
    pub(super) fn mount(&mut self) -> std::result::Result<(String, Vec<String>), AttachError> {
        let to_stop = Arc::clone(&self.to_stop);
        // An interrupt waits until there is something to stop.
        let mut to_stop = to_stop.lock();
        let attached = Attached::new(&self.store(), &self.mount_point(), &Choices::default());
        // Only now: entering a private namespace needs a process with a single thread.
        self.end_on_signals()?;
        let attached = attached?;
        let ready = attached.ready().clone();
        let stop = attached.stop_handle();
        *to_stop = Some(stop.clone());
        let thread = thread::Builder::new()
            .name("mount".to_owned())
            .spawn(move || attached.serve())
            .map_err(|error| Error::machine("start a thread", error))?;
        self.served = Some(Served { thread, stop });
        Ok((ready.method, ready.refusals))
    }

    /// Unmounts and waits until the store is closed.
    pub(super) fn unmount(&mut self) -> Result<()> {
        let Some(served) = self.served.take() else { return Ok(()) };
        let stopped = served.stop.stop(UnmountMode::Plain);
        if stopped.is_err() {
            served.stop.stop(UnmountMode::Force).map_err(not_unmounted)?;
        }
        *self.to_stop.lock() = None;
        served
            .thread
            .join()
            .map_err(|_| Error::failed("the thread that served the mount panicked"))??;
        stopped.map_err(not_unmounted)
    }

    /// Checks the store of the mount.
    pub(super) fn check(&self) -> Result<()> {
        stage::check(&self.store())
    }

    /// The second store, opened through the library.
    pub(super) fn library(&mut self) -> Result<&FileSystem> {
        let opened = match self.library.take() {
            Some(opened) => opened,
            None => FileSystem::open(&self.library_store(), &MountOptions::default())?,
        };
        Ok(self.library.insert(opened))
    }

    /// Closes the second store and opens it again.
    pub(super) fn reopen_library(&mut self) -> Result<()> {
        if let Some(library) = self.library.take() {
            library.close()?;
        }
        self.library().map(drop)
    }

    /// Unmounts and closes.
    pub(super) fn close(&mut self) -> Result<()> {
        self.unmount()?;
        match self.library.take() {
            Some(library) => library.close(),
            None => Ok(()),
        }
    }

    /// Bytes that the store of the mount, or of the library if nothing was mounted, takes.
    pub(super) fn store_bytes(&self) -> u64 {
        let mounted = bytes_below(&self.store());
        mounted.max(bytes_below(&self.library_store()))
    }

    /// Removes everything.
    pub(super) fn remove(&mut self) -> Result<()> {
        self.close()?;
        match self.dir.take() {
            Some(dir) => dir.close().map_err(|error| Error::io("remove", &self.path, &error)),
            None => Ok(()),
        }
    }

    /// Starts the thread that waits for interrupts, the first time.
    fn end_on_signals(&mut self) -> Result<()> {
        let (to_stop, path) = (Arc::clone(&self.to_stop), self.path.clone());
        self.interrupts.end_by(move || {
            let mut to_stop = to_stop.lock();
            if let Some(stop) = to_stop.take() {
                drop(stop.stop(UnmountMode::Force));
            }
            stage::remove_all(&path, || ());
            // Still locked, so that nothing is mounted any more.
            std::mem::forget(to_stop);
        })
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.interrupts.leave_it_to_them();
        if let Err(error) = self.close() {
            log::warn!("{}", error.message());
        }
    }
}
