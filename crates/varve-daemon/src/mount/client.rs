//! Mounts what a metadata server serves ([`varve_client`]).
//!
//! 1. Attach a FUSE connection to the directory.
//! 2. Connect to the server; remove the mount if that fails.
//! 3. Serve until it is unmounted. The kernel drops what the server recalls.
//!
//! A mount in the background keeps its messages in a directory of its own ([`state_dir`]).

use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use varve::{Error, Result};
use varve_client::{Client, ConnectError, Forgetful};
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_fuse::{MountMethod, Notifier, Session, SessionOptions, Transport};
use varve_types::InodeId;
use varve_vfs::Vfs;

use super::client_views::ClientViews;
use super::options::Choices;
use super::settings::{mount_options, session_options};
use super::signals::unmount_on_signals;
use crate::control::server::Control;
use crate::control::{Ready, Report, answer};
use crate::error;
use crate::server_address::{ServerAddress, read_token, state_dir};

/// How long the last sync of a mount that ends waits for the server.
const SYNC_WAIT_MAX: Duration = Duration::from_secs(20);
/// How long calls of a mount with `soft` wait for the server.
const SOFT_WAIT_MAX: Duration = Duration::from_secs(60);
/// Requests that may wait for the server at a time.
const THREADS: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");

/// Has the kernel drop what a server recalls.
pub(super) struct Kernel {
    notifier: Notifier,
    /// Called when the server does not let the client in any more.
    refused: Box<dyn Fn() + Send + Sync>,
}

impl Kernel {
    /// The kernel's mount of the main file system.
    fn of_main(notifier: Notifier) -> Kernel {
        Kernel { notifier, refused: Box::new(|| ()) }
    }

    /// The kernel's mount of a view; `refused` is called when the server does not let its client in any more.
    pub(super) fn of_view(
        notifier: Notifier,
        refused: impl Fn() + Send + Sync + 'static,
    ) -> Kernel {
        Kernel { notifier, refused: Box::new(refused) }
    }
}

impl Forgetful for Kernel {
    fn refused(&self) {
        (self.refused)();
    }

    fn inode_changed(&self, ino: InodeId) {
        if let Err(error) = self.notifier.inode_changed(ino) {
            log::warn!("the kernel may still show old attributes of inode {ino}: {error}");
        }
    }

    fn names_changed(&self) -> bool {
        self.notifier.names_dropped().unwrap_or_else(|error| {
            log::warn!("the kernel may still show old names: {error}");
            false
        })
    }
}

pub(crate) fn not_connected(error: &ConnectError) -> Error {
    Error::failed(error.to_string()).hint(match error {
        ConnectError::Network(..) => "see whether `varve serve` runs there, and listens on an address that this machine reaches",
        ConnectError::Protocol(..) => "see which program listens there, and whether both are of the same version",
        ConnectError::Refused(_) => "see the messages of the server; `-o token_file=FILE` gives the secret that it asks for",
        ConnectError::Thread(_) => "see how many threads this user may have",
    })
}

/// Mounts what the server at `address` serves on `dir`, until it is unmounted. Calls `ready` from another thread when the mount answers.
pub(super) fn serve(
    source: &Path,
    address: &ServerAddress,
    dir: &Path,
    choices: &Choices,
    ready: impl FnOnce(&Ready) + Send,
) -> Result<()> {
    let mounted =
        varve_fuse::mount(dir, &mount_options(source, choices)).map_err(error::not_mounted)?;
    let facts = Ready {
        store: source.to_path_buf(),
        dir: mounted.dir().to_path_buf(),
        pid: std::process::id(),
        method: mounted.method().to_string(),
        is_private: mounted.method() == MountMethod::Namespace,
        refusals: mounted.refusals().iter().map(ToString::to_string).collect(),
    };
    let stop = mounted.stop_handle();
    let connected = connect(address, &facts.dir, choices);
    let client = match connected {
        Ok(client) => client,
        Err(error) => {
            drop(mounted);
            stop.give_up();
            return Err(error);
        }
    };
    let vfs: Arc<dyn Vfs> = Arc::clone(&client) as Arc<dyn Vfs>;
    let session = Session::new(vfs, mounted, &session_for(&client, choices))
        .map_err(|error| error::not_served(&error))?;
    client.set_front_end(Arc::new(Kernel::of_main(session.notifier())));
    let shows_views = facts.method != MountMethod::Fusermount.to_string();
    let views =
        ClientViews::new(&client, (source, address), &facts.dir, choices, &session, shows_views);
    let control = listen(source, &facts.dir);
    if let Some(control) = &control {
        control.serves(session.pause_handle(), Arc::<ClientViews>::clone(&views));
    }
    let waiting = Some(Arc::clone(&client));
    unmount_on_signals(session.stop_handle(), facts.dir.clone(), waiting)?;
    log::info!("{} is mounted on {}", source.display(), facts.dir.display());
    let ended = thread::scope(|scope| {
        let facts = &facts;
        scope.spawn(move || {
            if super::succession::answers(&facts.dir) {
                ready(facts);
            }
        });
        session.run()
    });
    views.close();
    let end_waiters = control.as_ref().map(Control::take_end_waiters);
    drop(control);
    // What is not durable yet becomes so, as when a local mount ends. Nobody waits for a server that is gone.
    let waiting = Arc::clone(&client);
    thread::spawn(move || {
        thread::sleep(SYNC_WAIT_MAX);
        waiting.end();
    });
    let synced = client.sync();
    client.end();
    log::info!("{} is unmounted", facts.dir.display());
    let ended =
        ended.map(drop).map_err(|error| error::not_served(&error)).and(synced.map_err(Error::from));
    report_end(end_waiters.unwrap_or_default(), &ended);
    ended
}

/// How long a call waits for the server before it fails; `None` for as long as it takes.
fn wait_max(choices: &Choices) -> Option<Duration> {
    let given = choices.timeout_s.map(|seconds| Duration::from_secs(seconds.into()));
    choices.soft.then(|| given.unwrap_or(SOFT_WAIT_MAX))
}

/// Listens for commands about the mount of `source` on `dir`.
fn listen(source: &Path, dir: &Path) -> Option<Control> {
    let control = state_dir(source, dir).and_then(|dir| {
        let opened = std::fs::File::open(&dir);
        let opened = opened.map_err(|error| Error::io("open", &dir, &error))?;
        Control::listen(opened.into(), &|| false)
    });
    control
        .inspect_err(|error| log::warn!("no command can ask this mount: {}", error.message()))
        .ok()
}

/// Reports how the mount has ended.
pub(super) fn report_end(waiters: Vec<UnixStream>, ended: &Result<()>) {
    for mut waiter in waiters {
        let report = match ended {
            Ok(()) => Report::Done(Value::Null),
            Err(error) => Report::of(error),
        };
        answer(&mut waiter, &report);
    }
}

/// The options of the session that serves the requests of the kernel by `client`.
pub(super) fn session_for(client: &Client, choices: &Choices) -> SessionOptions {
    SessionOptions {
        transport: Some(Transport::Dev),
        threads: choices.threads.or(Some(THREADS)),
        passthrough: false,
        auto_invalidate: true,
        root: client.root(),
        ..session_options(choices)
    }
}

pub(super) fn connect(
    address: &ServerAddress,
    dir: &Path,
    choices: &Choices,
) -> Result<Arc<Client>> {
    let env = OsEnv::new();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let options = varve_client::Options {
        address: address.host.clone(),
        path: address.path.as_bytes().to_vec(),
        name: format!("{host}:{}", dir.display()),
        client: [env.random(), env.random()],
        token: choices.token_file.as_deref().map_or(Ok(Vec::new()), read_token)?,
        read_only: choices.read_only,
        wait_max: wait_max(choices),
    };
    let client = Client::connect(options).map_err(|error| not_connected(&error))?;
    if client.is_read_only() && !choices.read_only {
        client.end();
        return Err(Error::failed("the server lets this machine read only")
            .hint("mount with `-o ro`, or see the exports of the server"));
    }
    Ok(Arc::new(client))
}
