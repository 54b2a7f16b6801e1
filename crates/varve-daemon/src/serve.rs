//! Serves a store to clients on other machines ([`varve_server`]), without a mount on this one.
//!
//! 1. Listen, and open the store, which no other process may have open.
//! 2. Serve until SIGTERM, SIGINT or SIGHUP.
//! 3. Answer the requests that have come, and close the store.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use varve::{Error, FileSystem, Result};
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_env::os::signals::is_ignored;
use varve_fs::MountOptions;
use varve_server::{Options, Policy, Server};

use crate::holder;
use crate::served_views::ServedViews;

/// A store that is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The store.
    #[serde(with = "varve_engine::paths")]
    pub store: PathBuf,
    /// Where the server listens.
    pub address: SocketAddr,
}

/// How a store is served.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a client may keep what it has learned.
    pub leases: Policy,
    /// How long a client may be away before its files are closed.
    pub session: Duration,
    /// The secret that clients must know; empty for none.
    pub token: Vec<u8>,
}

/// A listener, and the signals that end a server. Both come before the store is opened, so that nothing is opened in vain.
pub(crate) fn listen(listen: SocketAddr) -> Result<(TcpListener, Signals)> {
    let listener = TcpListener::bind(listen).map_err(|error| {
        Error::failed(format!("cannot listen on {listen}: {error}"))
            .hint("choose another address with --listen; only root may use ports below 1024")
    })?;
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    let signals = Signals::new([SIGTERM, SIGINT].into_iter().chain(hang_up))
        .map_err(|error| Error::machine("handle signals", error))?;
    Ok((listener, signals))
}

/// Serves the store in `dir` on `address` until a signal ends it. Calls `ready` when it answers.
pub fn serve(
    dir: &Path,
    address: SocketAddr,
    settings: &Settings,
    options: &MountOptions,
    ready: impl FnOnce(&Ready),
) -> Result<()> {
    let superblock = holder::superblock(dir)?;
    holder::require_free(dir)?;
    let (listener, mut signals) = listen(address)?;
    let file_system = FileSystem::open(dir, options)?;
    let half = |at: std::ops::Range<usize>| {
        superblock.uuid.get(at).and_then(|half| u64::from_str_radix(half, 16).ok()).unwrap_or(0)
    };
    let options = Options {
        file_system: [half(0..16), half(16..32)],
        // No server before had it, but for one in four thousand millions.
        epoch: OsEnv::new().random() as u32,
        leases: settings.leases,
        session: settings.session,
        token: settings.token.clone(),
        read_only: options.read_only,
    };
    let views = Arc::new(ServedViews::new(file_system.inner()));
    let server = match Server::start(file_system.vfs(), Some(views), listener, options) {
        Ok(server) => server,
        Err(error) => {
            file_system.close()?;
            return Err(Error::machine("start the server", error)
                .hint("see how many threads and descriptors this user may have"));
        }
    };
    ready(&Ready { store: dir.to_path_buf(), address: server.address() });
    if let Some(signal) = signals.forever().next() {
        log::info!("signal {signal}: answering the requests that have come");
    }
    server.stop();
    file_system.close()
}
