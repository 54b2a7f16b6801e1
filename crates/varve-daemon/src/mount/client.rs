//! Mounts what a metadata server serves ([`varve_client`]).
//!
//! 1. Attach a FUSE connection to the directory.
//! 2. Connect to the server; remove the mount if that fails.
//! 3. Serve until it is unmounted. The kernel drops what the server recalls.
//!
//! A mount in the background keeps its messages in a directory of its own ([`state_dir`]).

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use varve::{Error, Result, anchor};
use varve_client::{Client, ConnectError, Forgetful};
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_fuse::{MountMethod, Notifier, Session, SessionOptions, Transport};
use varve_types::InodeId;
use varve_vfs::Vfs;

use super::options::Choices;
use super::settings::{mount_options, session_options};
use super::signals::unmount_on_signals;
use crate::control::Ready;
use crate::error;
use crate::server_address::ServerAddress;

/// How long the last sync of a mount that ends waits for the server.
const SYNC_WAIT_MAX: Duration = Duration::from_secs(20);
/// How long calls of a mount with `soft` wait for the server.
const SOFT_WAIT_MAX: Duration = Duration::from_secs(60);
/// Requests that may wait for the server at a time.
const THREADS: NonZeroUsize = NonZeroUsize::new(32).expect("not zero");

/// The directory in which the mount of `source` on `dir` keeps its messages, made if it is missing.
pub(crate) fn state_dir(source: &Path, dir: &Path) -> Result<PathBuf> {
    anchor::dir_for(&format!("{} {}", source.display(), dir.display()))
}

/// Has the kernel drop what a server recalls.
struct Kernel(Notifier);

impl Forgetful for Kernel {
    fn inode_changed(&self, ino: InodeId) {
        if let Err(error) = self.0.inode_changed(ino) {
            log::warn!("the kernel may still show old attributes of inode {ino}: {error}");
        }
    }

    fn names_changed(&self) -> bool {
        self.0.names_dropped().unwrap_or_else(|error| {
            log::warn!("the kernel may still show old names: {error}");
            false
        })
    }
}

fn not_connected(error: &ConnectError) -> Error {
    Error::failed(error.to_string()).hint(match error {
        ConnectError::Network(..) => "see whether `varve serve` runs there, and listens on an address that this machine reaches",
        ConnectError::Protocol(..) => "see which program listens there, and whether both are of the same version",
        ConnectError::Refused(_) => "see the messages of the server",
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
    let options = SessionOptions {
        transport: Some(Transport::Dev),
        threads: choices.threads.or(Some(THREADS)),
        passthrough: false,
        auto_invalidate: true,
        root: client.root(),
        ..session_options(choices)
    };
    let vfs: Arc<dyn Vfs> = Arc::clone(&client) as Arc<dyn Vfs>;
    let session =
        Session::new(vfs, mounted, &options).map_err(|error| error::not_served(&error))?;
    client.set_front_end(Arc::new(Kernel(session.notifier())));
    unmount_on_signals(session.stop_handle(), facts.dir.clone())?;
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
    // What is not durable yet becomes so, as when a local mount ends. Nobody waits for a server that is gone.
    let waiting = Arc::clone(&client);
    thread::spawn(move || {
        thread::sleep(SYNC_WAIT_MAX);
        waiting.end();
    });
    let synced = client.sync();
    client.end();
    log::info!("{} is unmounted", facts.dir.display());
    ended.map_err(|error| error::not_served(&error))?;
    Ok(synced?)
}

/// How long a call waits for the server before it fails; `None` for as long as it takes.
fn wait_max(choices: &Choices) -> Option<Duration> {
    let given = choices.timeout_s.map(|seconds| Duration::from_secs(seconds.into()));
    choices.soft.then(|| given.unwrap_or(SOFT_WAIT_MAX))
}

fn connect(address: &ServerAddress, dir: &Path, choices: &Choices) -> Result<Arc<Client>> {
    let env = OsEnv::new();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let options = varve_client::Options {
        address: address.host.clone(),
        path: address.path.as_bytes().to_vec(),
        name: format!("{host}:{}", dir.display()),
        client: [env.random(), env.random()],
        token: Vec::new(),
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
