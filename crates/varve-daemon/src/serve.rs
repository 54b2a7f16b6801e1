//! Serves a store to clients on other machines ([`varve_server`]), without a mount on this one.
//!
//! 1. Listen, and open the store, which no other process may have open.
//! 2. Tell whoever started this process that the server answers ([`crate::ready_notice`]), and serve until SIGTERM, SIGINT or SIGHUP.
//! 3. Answer the requests that have come, and close the store. If that takes longer than [`Settings::stop_max`], the process ends
//!    without, as if it was killed: nothing that was acknowledged is lost.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use varve::{Error, FileSystem, Result, exit_status};
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_env::os::signals::is_ignored;
use varve_fs::MountOptions;
use varve_server::{Options, Policy, Server};

use crate::control::server::Control;
use crate::holder;
use crate::kv;
use crate::metrics::{self, Metrics};
use crate::ready_notice::ServiceManager;
use crate::served_status;
use crate::served_store::ServedStore;
use crate::served_views::ServedViews;

/// A store that is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The store.
    #[serde(with = "varve_engine::paths")]
    pub store: PathBuf,
    /// Where the server listens.
    pub address: SocketAddr,
    /// Where metrics are served over HTTP.
    pub metrics: Option<SocketAddr>,
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
    /// Requests that take longer are logged.
    pub slow: Duration,
    /// Where metrics are served over HTTP; `None` for nowhere.
    pub metrics: Option<SocketAddr>,
    /// How long the end of the server may take.
    pub stop_max: Duration,
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
    let metrics = settings.metrics.map(metrics::listen).transpose()?;
    let manager = ServiceManager::of_this_process();
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
        slow: settings.slow,
    };
    let served = match Served::start(dir, &file_system, (listener, metrics), options) {
        Ok(served) => served,
        Err(error) => {
            file_system.close()?;
            return Err(error);
        }
    };
    let told = served.ready(dir);
    manager.ready(&format!("{} is served on {}", dir.display(), told.address));
    ready(&told);
    let signal = signals.forever().next();
    let begin = Instant::now();
    manager.stopping();
    let before = served.server.status();
    if let Some(signal) = signal {
        let (waiting, working) = before.waiting;
        log::info!(
            "signal {signal}: the server ends; requests that have come and have no answer: {}",
            waiting + working
        );
    }
    end_in_time(dir, settings.stop_max)?;
    served.stop();
    file_system.close()?;
    let (clients, took) = (before.sessions_count, begin.elapsed());
    log::info!("the store is closed after {took:.1?}; clients that had a session: {clients}");
    Ok(())
}

/// Ends this process if it still runs after `stop_max`.
fn end_in_time(dir: &Path, stop_max: Duration) -> Result<()> {
    let dir = dir.to_path_buf();
    let end = move || {
        thread::sleep(stop_max);
        log::error!(
            "{} is not closed after {stop_max:?}, as calls still wait for its storage or for other clients: \
             this process ends without. What was acknowledged is in the log of the store",
            dir.display()
        );
        std::process::exit(i32::from(exit_status::FAILED));
    };
    let begun = thread::Builder::new().name("varve-stop".to_owned()).spawn(end);
    begun.map(drop).map_err(|error| Error::machine("start a thread", error))
}

/// A server, and how this machine asks it.
struct Served {
    server: Arc<Server>,
    store: Arc<ServedStore>,
    control: Option<Control>,
    dictionaries: Option<kv::Server>,
    metrics: Option<Metrics>,
}

impl Served {
    fn start(
        dir: &Path,
        file_system: &FileSystem,
        (listener, metrics): (TcpListener, Option<TcpListener>),
        options: Options,
    ) -> Result<Served> {
        let failed = |error| {
            Error::machine("start the server", error)
                .hint("see how many threads and descriptors this user may have")
        };
        let address = listener.local_addr().map_err(failed)?;
        let views = Arc::new(ServedViews::new(file_system.inner(), dir, address));
        let (host, read_only) = (Arc::<ServedViews>::clone(&views), options.read_only);
        let server = Server::start(file_system.vfs(), Some(host), listener, options);
        let server = Arc::new(server.map_err(failed)?);
        let store = ServedStore::new(&server, &views, read_only);
        let directory = || file_system.directory();
        let lend_inode = || file_system.lend_inode();
        let control = directory()
            .and_then(|dir| Control::listen(dir, &lend_inode))
            .inspect_err(|error| {
                log::warn!("no command on this machine can ask the server: {}", error.message());
            })
            .ok();
        if let Some(control) = &control {
            control.serves_store(Arc::<ServedStore>::clone(&store));
        }
        let dictionaries = directory()
            .and_then(|dir| kv::Server::listen(dir, &lend_inode))
            .inspect_err(|error| log::warn!("no dictionaries are served: {}", error.message()))
            .ok();
        if let Some(dictionaries) = &dictionaries {
            dictionaries.serves(Some(Arc::<ServedStore>::clone(&store)));
        }
        let of_metrics = Arc::clone(&server);
        let text = move || match served_status::stats(&views.told(&of_metrics.status())) {
            Ok(stats) => stats.to_prometheus(),
            Err(error) => format!("# {}\n", error.message()),
        };
        let metrics = metrics.map(|listener| Metrics::start(listener, text)).transpose();
        let mut served = Served { server, store, control, dictionaries, metrics: None };
        match metrics {
            Ok(metrics) => served.metrics = metrics,
            Err(error) => {
                served.stop();
                return Err(error);
            }
        }
        Ok(served)
    }

    fn ready(&self, dir: &Path) -> Ready {
        let metrics = self.metrics.as_ref().map(Metrics::address);
        Ready { store: dir.to_path_buf(), address: self.server.address(), metrics }
    }

    /// Answers what has come, of this machine first, as that may need clients to answer, and stops.
    fn stop(self) {
        drop((self.control, self.dictionaries));
        self.store.end();
        self.server.stop();
        drop(self.metrics);
    }
}
