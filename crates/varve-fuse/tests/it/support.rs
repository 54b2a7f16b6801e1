//! Mounting for a test, and never leaving a mount behind.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tempfile::TempDir;
use varve_fuse::{
    Ended, MountError, MountMethod, MountOptions, NoUring, Notifier, PauseHandle, Paused, Session,
    SessionError, SessionOptions, StopHandle, Transport, UnmountError, UnmountMode, mount, unmount,
};
use varve_testkit::model::ModelFs;
use varve_testkit::{eventually, skipped, there_are_rings};
use varve_types::InodeId;
use varve_vfs::{Caller, SetAttr, Vfs};

/// The transport that the environment asks this run to use, so that the same tests run over each.
fn transport_of_this_run() -> Option<Transport> {
    match std::env::var("VARVE_TEST_TRANSPORT").ok()?.as_str() {
        "dev" => Some(Transport::Dev),
        "uring" => Some(Transport::Uring),
        other => panic!("VARVE_TEST_TRANSPORT is `{other}` instead of `dev` or `uring`"),
    }
}

/// Why this machine does not let us mount, wherever.
fn why_not(error: &MountError) -> String {
    match error {
        MountError::Refused { refusals, .. } => {
            refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        }
        error => error.to_string(),
    }
}

/// Whether this process may have no io_uring at all.
fn is_forbidden(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported)
}

/// A mounted file system, unmounted when dropped.
pub(crate) struct TestMount {
    dir: TempDir,
    method: MountMethod,
    server: Option<JoinHandle<Result<(), SessionError>>>,
    pause: Arc<Mutex<PauseHandle>>,
    stop: StopHandle,
    notifier: Notifier,
    /// Sessions that went on where another had stopped.
    resumed: Arc<AtomicU64>,
}

impl TestMount {
    /// Mounts `vfs` on a new directory; `None`, with the reason printed, if this machine does not let us.
    pub(crate) fn new(vfs: Arc<dyn Vfs>, session: &SessionOptions) -> Option<TestMount> {
        let mut options = MountOptions::new("test,store");
        options.methods = vec![MountMethod::Direct, MountMethod::Fusermount];
        TestMount::with_options(vfs, &options, session)
    }

    pub(crate) fn with_options(
        vfs: Arc<dyn Vfs>,
        options: &MountOptions,
        session: &SessionOptions,
    ) -> Option<TestMount> {
        let mut session = session.clone();
        session.transport = session.transport.or_else(transport_of_this_run);
        let dir = tempfile::tempdir().unwrap();
        let mounted = match mount(dir.path(), options) {
            Ok(mounted) => mounted,
            Err(err) => {
                skipped(&why_not(&err));
                return None;
            }
        };
        let method = mounted.method();
        let first = match Session::new(Arc::clone(&vfs), mounted, &session) {
            Err(SessionError::NoUring { source, .. }) => {
                match &source {
                    NoUring::Refused(error) if is_forbidden(error) => skipped(&source.to_string()),
                    _ => assert!(!there_are_rings(), "{source}"),
                }
                return None;
            }
            session => session.unwrap(),
        };
        let pause = Arc::new(Mutex::new(first.pause_handle()));
        let (stop, notifier) = (first.stop_handle(), first.notifier());
        let resumed = Arc::<AtomicU64>::default();
        let (pauses, count) = (Arc::clone(&pause), Arc::clone(&resumed));
        let server = std::thread::spawn(move || serve(&vfs, first, &session, &pauses, &count));
        Some(TestMount { dir, method, server: Some(server), pause, stop, notifier, resumed })
    }

    /// Pauses the session and lets another go on; returns when that one serves.
    pub(crate) fn change_session(&self) {
        let before = self.resumed.load(Ordering::SeqCst);
        self.pause.lock().pause().unwrap();
        eventually("another session", || self.resumed.load(Ordering::SeqCst) != before);
    }

    pub(crate) fn method(&self) -> MountMethod {
        self.method
    }

    pub(crate) fn stop_handle(&self) -> &StopHandle {
        &self.stop
    }

    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Unmounts and returns what the session returned.
    pub(crate) fn finish(self) -> Result<(), SessionError> {
        // A process that another test is just starting may hold copies of this test's descriptors.
        eventually("nobody uses the mount", || {
            match unmount(self.dir.path(), UnmountMode::Plain) {
                Err(UnmountError::Busy(_)) => false,
                unmounted => {
                    unmounted.unwrap();
                    true
                }
            }
        });
        self.join()
    }

    /// Waits for the session to end, after it was unmounted.
    pub(crate) fn join(mut self) -> Result<(), SessionError> {
        self.server.take().unwrap().join().unwrap()
    }
}

/// Serves until it is unmounted. A paused session is taken apart as for another process.
fn serve(
    vfs: &Arc<dyn Vfs>,
    mut session: Session,
    options: &SessionOptions,
    pause: &Mutex<PauseHandle>,
    resumed: &AtomicU64,
) -> Result<(), SessionError> {
    loop {
        let Ended::Paused(paused) = session.run()? else { return Ok(()) };
        let descriptor = paused.descriptor().try_clone_to_owned().unwrap();
        let (dir, state) = (paused.dir().to_path_buf(), paused.state());
        drop(paused);
        let paused = Paused::from_parts(descriptor, dir, &state).unwrap();
        session = Session::resume(Arc::clone(vfs), paused, options)?;
        *pause.lock() = session.pause_handle();
        resumed.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        if self.server.is_some() || std::thread::panicking() {
            let _ = unmount(self.dir.path(), UnmountMode::Force);
        }
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// A new file system in memory whose root belongs to whoever runs the tests.
pub(crate) fn model() -> Arc<ModelFs> {
    let model = ModelFs::on_this_machine();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    model.setattr(Caller::ROOT, InodeId::ROOT, owner).unwrap();
    Arc::new(model)
}

/// Mounts a new file system in memory with default options.
pub(crate) fn mounted() -> Option<TestMount> {
    TestMount::new(model(), &SessionOptions::default())
}
