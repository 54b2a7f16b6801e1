//! The signals that unmount.

use std::path::PathBuf;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use varve::{Error, Result};
use varve_env::os::signals::is_ignored;
use varve_fuse::{StopHandle, UnmountMode};

use crate::mount_source::unmount_below;

/// Unmounts on SIGTERM, SIGINT and SIGHUP; a process that was started with SIGHUP ignored (nohup) ignores it. If programs use the
/// mount, it ends when they are done; a second signal does not wait for them.
pub(super) fn unmount_on_signals(stop: StopHandle, dir: PathBuf) -> Result<()> {
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut signals = Signals::new([SIGTERM, SIGINT].into_iter().chain(hang_up))
        .map_err(|error| Error::machine("handle signals", error))?;
    let wait = move || {
        let mut is_first = true;
        for signal in signals.forever() {
            log::info!("signal {signal}: unmounting");
            if !std::mem::take(&mut is_first) {
                // A detached mount that is in use can be reached only by its connection.
                stop.give_up();
                continue;
            }
            let plain = UnmountMode::Plain;
            unmount_below(&dir, plain).unwrap_or_else(|error| log::warn!("{error}"));
            if stop.stop(plain).is_err() {
                log::warn!("the mount is in use, and ends when the last program is done");
                stop.stop(UnmountMode::Lazy).unwrap_or_else(|error| log::warn!("{error}"));
            }
        }
    };
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(wait)
        .map(drop)
        .map_err(|error| Error::machine("start a thread", error))
}
