//! What all demonstrations begin and end with: a temporary directory, and interrupts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::TempDir;
use varve::{Error, Result, check, exit_status};
use varve_env::os::signals::is_ignored;

/// How often the end of an interrupted demonstration tries to remove what threads still write to.
const REMOVE_TRIES: u32 = 20;

/// Makes a temporary directory in `parent`. Returns its path without symbolic links, too: a mount point is known by that.
pub(super) fn temporary_dir(parent: &Path) -> Result<(TempDir, PathBuf)> {
    let dir = tempfile::Builder::new()
        .prefix("varve-demo-")
        .tempdir_in(parent)
        .map_err(|error| Error::io("make a directory in", parent, &error))?;
    let path = dir.path().canonicalize().map_err(|error| Error::io("find", dir.path(), &error))?;
    Ok((dir, path))
}

/// Removes a directory to which other threads of this process may still add files. Calls `again` before each try.
pub(super) fn remove_all(path: &Path, mut again: impl FnMut()) {
    for _ in 0..REMOVE_TRIES {
        again();
        if std::fs::remove_dir_all(path).is_ok() || !path.exists() {
            return;
        }
    }
    log::warn!("{} could not be removed", path.display());
}

/// Checks a store.
pub(super) fn check(store: &Path) -> Result<()> {
    let report = check::check(store, &check::CheckOptions::default(), &mut |_| {})?;
    if report.is_clean() {
        return Ok(());
    }
    Err(Error::failed(format!("the check of the store found problems: {report:?}"))
        .hint("this must not happen: please report it"))
}

/// SIGINT, SIGTERM and SIGHUP, which end a demonstration. From its creation on they do nothing until [`Interrupts::end_by`].
pub(super) struct Interrupts {
    /// One came, and ends the process when everything is removed.
    came: Arc<AtomicBool>,
    /// Until a thread waits for them.
    signals: Option<Signals>,
}

impl Interrupts {
    pub(super) fn new() -> Result<Interrupts> {
        let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
        let signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hang_up))
            .map_err(|error| Error::machine("handle signals", error))?;
        Ok(Interrupts { came: Arc::default(), signals: Some(signals) })
    }

    /// Starts the thread that waits for them, the first time. It calls `end`, which removes everything, and ends the process.
    pub(super) fn end_by(&mut self, end: impl FnOnce() + Send + 'static) -> Result<()> {
        let Some(mut signals) = self.signals.take() else { return Ok(()) };
        let came = Arc::clone(&self.came);
        let wait = move || {
            if signals.forever().next().is_some() {
                // What other threads meet from here on is our doing.
                came.store(true, Ordering::SeqCst);
                log::set_max_level(log::LevelFilter::Off);
                end();
                std::process::exit(i32::from(exit_status::INTERRUPTED));
            }
        };
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(wait)
            .map(drop)
            .map_err(|error| Error::machine("start a thread", error))
    }

    /// Does not return once an interrupt came: what has failed since is no failure, and the thread that was interrupted removes
    /// everything and ends the process.
    pub(super) fn leave_it_to_them(&self) {
        while self.came.load(Ordering::SeqCst) {
            thread::park();
        }
    }
}
