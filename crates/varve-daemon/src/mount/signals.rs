//! The signals that unmount.

use std::path::PathBuf;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use varve::{Error, Result};
use varve_env::os::signals::is_ignored;
use varve_fuse::{StopHandle, UnmountMode};

use crate::mount_source::unmount_below;

/// SIGTERM, SIGINT and, unless whoever started this ignores it (nohup), SIGHUP unmount; if programs still use the mount it goes when they are done, and a second
/// signal does not wait for them.
pub(super) fn unmount_on_signals(stop: StopHandle, dir: PathBuf) -> Result<()> {
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let mut signals = Signals::new([SIGTERM, SIGINT].into_iter().chain(hang_up))
        .map_err(|error| Error::machine("handle signals", error))?;
    let wait = move || {
        let mut is_first = true;
        for signal in signals.forever() {
            log::info!("signal {signal}: unmounting");
            if !std::mem::take(&mut is_first) {
                // Of what is detached, but held, only its connection can be got at.
                stop.give_up();
                continue;
            }
            let plain = UnmountMode::Plain;
            unmount_below(&dir, plain).unwrap_or_else(|error| log::warn!("{error}"));
            if stop.stop(plain).is_err() {
                log::warn!("the mount is in use and goes when the last program is done");
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
