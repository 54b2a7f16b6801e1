//! A simulated machine on which something happens while a file is opened or removed, or a log synced.

use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_env::OpenMode;
use varve_env::sim::SimEnv;
use varve_testkit::hooked::{Before, HookedEnv, Hooks};

/// What happens instead of one opening, which fails.
pub(crate) type Instead = Box<dyn FnOnce() + Send>;

/// What happens to object files, and to the log, once it is set.
pub(crate) struct OnObjects {
    pub(crate) instead: Mutex<Option<Instead>>,
    /// Happens before each removal of an object file.
    pub(crate) before_removal: Mutex<Option<Before>>,
    /// Happens once, behind an opening.
    pub(crate) after_open: Mutex<Option<Instead>>,
    /// Happens once, behind the making of a directory for objects.
    pub(crate) after_create_dir: Mutex<Option<Instead>>,
    /// Happens before each sync of the log.
    pub(crate) before_log_sync: Arc<Mutex<Option<Before>>>,
    threads: bool,
}

/// A [`SimEnv`] whose next opening of an object file fails, after something else happened.
pub(crate) type Interposed = HookedEnv<OnObjects>;

/// The machine as it is, until its hooks are set.
pub(crate) fn interposed(sim: &Arc<SimEnv>) -> Interposed {
    HookedEnv::new(sim, OnObjects::new(false))
}

/// The same with the file system's own threads.
pub(crate) fn with_threads(sim: &Arc<SimEnv>) -> Interposed {
    HookedEnv::new(sim, OnObjects::new(true))
}

impl OnObjects {
    fn new(threads: bool) -> OnObjects {
        let (instead, before_removal) = (Mutex::new(None), Mutex::new(None));
        let (after_open, after_create_dir) = (Mutex::new(None), Mutex::new(None));
        let before_log_sync = Arc::default();
        OnObjects {
            instead,
            before_removal,
            after_open,
            after_create_dir,
            before_log_sync,
            threads,
        }
    }
}

fn is_object(path: &Path) -> bool {
    path.to_string_lossy().contains("/objects/")
}

impl Hooks for OnObjects {
    fn before_open(&self, path: &Path, _mode: OpenMode) -> io::Result<()> {
        const EIO: i32 = 5;
        if is_object(path)
            && let Some(instead) = self.instead.lock().take()
        {
            instead();
            return Err(io::Error::from_raw_os_error(EIO));
        }
        Ok(())
    }

    fn after_open(&self, path: &Path, _mode: OpenMode) {
        let after = if is_object(path) { self.after_open.lock().take() } else { None };
        if let Some(after) = after {
            after();
        }
    }

    fn after_create_dir(&self, path: &Path) {
        // Those above hold directories alone.
        let top = path.parent().and_then(Path::parent);
        if top.is_some_and(|top| top.ends_with("objects"))
            && let Some(after) = self.after_create_dir.lock().take()
        {
            after();
        }
    }

    fn before_removal(&self, path: &Path) {
        let before = self.before_removal.lock().clone();
        if let Some(before) = before.filter(|_| is_object(path)) {
            before();
        }
    }

    fn before_syncs_of(&self, path: &Path) -> Option<Before> {
        let is_log = path.extension().is_some_and(|extension| extension == "wal");
        let before = Arc::clone(&self.before_log_sync);
        is_log.then(|| -> Before {
            Arc::new(move || {
                let before = before.lock().clone();
                before.into_iter().for_each(|before| before());
            })
        })
    }

    fn is_deterministic(&self) -> bool {
        !self.threads
    }
}
