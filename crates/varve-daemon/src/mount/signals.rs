//! The signals that unmount.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use varve::{Error, Result};
use varve_client::Client;
use varve_env::os::signals::is_ignored;
use varve_fuse::{StopHandle, UnmountMode};

use crate::mount_source::unmount_below;

/// How long a mount that was told to end waits for a server that is away.
const AWAY_MAX: Duration = Duration::from_secs(10);
/// How often it is looked whether it is.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Unmounts on SIGTERM, SIGINT and SIGHUP; a process that was started with SIGHUP ignored (nohup) ignores it. If programs use the
/// mount, it ends when they are done; a second signal does not wait for them. With the `client` of a server
/// that is away, programs that wait for it get errors after some time.
pub(super) fn unmount_on_signals(
    stop: StopHandle,
    dir: PathBuf,
    mut client: Option<Arc<Client>>,
) -> Result<()> {
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
            if let Some(client) = client.take() {
                let stop = stop.clone();
                // An unmount may itself wait for the server.
                let watch = move || give_up_without_server(&stop, &client);
                if let Err(error) = thread::Builder::new().name("away".to_owned()).spawn(watch) {
                    log::warn!("the end waits for the server, should it be away: {error}");
                }
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

/// Ends the mount by force once its server has been away for long.
fn give_up_without_server(stop: &StopHandle, client: &Client) {
    let mut there = Instant::now();
    while there.elapsed() < AWAY_MAX {
        thread::sleep(LOOK_EVERY);
        if !client.is_away() {
            there = Instant::now();
        }
    }
    log::error!("the server is away: programs that wait for it get errors");
    stop.give_up();
    // Calls under way hold up the end of the session.
    client.end();
}
