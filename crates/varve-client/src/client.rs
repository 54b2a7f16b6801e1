//! A client and its parts.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use varve_types::InodeId;
use varve_vfs::{FsResult, Transact};
use varve_wire::{FrameError, Welcome};

use crate::files::Files;
use crate::leases::Leases;
use crate::nodes::Nodes;
use crate::notices;
use crate::transport::Transport;

/// How a client connects.
#[derive(Clone, Debug)]
pub struct Options {
    /// The server: a host name or address, and a port.
    pub address: String,
    /// The directory to mount, as a path from the root of the file system.
    pub path: Vec<u8>,
    /// What the client calls itself in messages of the server.
    pub name: String,
    /// A random number that no other client has.
    pub client: [u64; 2],
    /// The secret that lets the client in.
    pub token: Vec<u8>,
    /// Refuse every change.
    pub read_only: bool,
    /// How long a call waits for the server before it fails; `None` for as long as it takes.
    pub wait_max: Option<Duration>,
}

/// Why a client cannot connect.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The server cannot be reached.
    #[error("{0} cannot be reached: {1}")]
    Network(String, #[source] io::Error),
    /// What answers is no server of this protocol.
    #[error("{0} does not answer as a metadata server: {1}")]
    Protocol(String, #[source] FrameError),
    /// The server does not let the client in.
    #[error("the server does not let this machine in: {0}")]
    Refused(String),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// A front end that keeps what it learns, and drops it when it is told to.
pub trait Forgetful: Send + Sync {
    /// The attributes and bytes of an inode, or the listing of a directory, may change.
    fn inode_changed(&self, ino: InodeId);
    /// The server does not let this client in any more: every call fails.
    fn refused(&self) {}
    /// Names may change: none may be used again without being asked for. False if the front end cannot do that; then it
    /// is given no names to keep.
    fn names_changed(&self) -> bool;
}

/// The mounts of other file systems of the server (snapshots, transactions) within the front end's.
pub trait Within: Send + Sync {
    /// As [`varve_vfs::Vfs::is_awaited`].
    fn is_awaited(&self, ino: InodeId) -> bool;
    /// As [`varve_vfs::Vfs::is_fleeting`].
    fn is_fleeting(&self, ino: InodeId) -> bool;
    /// As [`varve_vfs::Vfs::arrive`].
    fn arrive(&self, ino: InodeId) -> FsResult<()>;
    /// As [`varve_vfs::Vfs::transact`].
    fn transact(&self, what: Transact) -> FsResult<u64>;
    /// As [`varve_vfs::Vfs::controlled`].
    fn controlled(&self, ino: InodeId) -> FsResult<u64>;
}

/// What threads of a client share.
pub(crate) struct Inner {
    pub(crate) transport: Transport,
    pub(crate) nodes: Nodes,
    pub(crate) files: Files,
    pub(crate) leases: Leases,
    pub(crate) front_end: RwLock<Option<Arc<dyn Forgetful>>>,
    /// The front end can be told to drop names.
    pub(crate) keeps_names: AtomicBool,
    pub(crate) within: OnceLock<Arc<dyn Within>>,
    /// Numbers questions.
    pub(crate) questions: AtomicU64,
}

/// A file system whose rows are on a server.
pub struct Client {
    pub(crate) inner: Arc<Inner>,
    welcome: Welcome,
    notices: Mutex<Option<JoinHandle<()>>>,
}

impl Client {
    /// Connects to a server.
    pub fn connect(options: Options) -> Result<Client, ConnectError> {
        let (transport, welcome, _) = Transport::connect(options)?;
        let inner = Arc::new(Inner {
            transport,
            nodes: Nodes::new(),
            files: Files::default(),
            leases: Leases::default(),
            front_end: RwLock::new(None),
            keeps_names: AtomicBool::new(false),
            within: OnceLock::new(),
            questions: AtomicU64::new(0),
        });
        let of_thread = Arc::clone(&inner);
        let thread = std::thread::Builder::new().name("varve-notices".to_owned());
        let notices =
            thread.spawn(move || notices::run(&of_thread)).map_err(ConnectError::Thread)?;
        Ok(Client { inner, welcome, notices: Mutex::new(Some(notices)) })
    }

    /// Sets who is told of recalls, and calls [`varve_vfs::Vfs::delivered`]. Until then nothing that the server says may be
    /// kept.
    pub fn set_front_end(&self, front_end: Arc<dyn Forgetful>) {
        self.inner.keeps_names.store(front_end.names_changed(), Ordering::Relaxed);
        *self.inner.front_end.write() = Some(front_end);
        self.inner.leases.keep();
    }

    /// Sets who mounts other file systems of the server within the front end's, once.
    pub fn set_within(&self, within: Arc<dyn Within>) {
        // A second one would find the first one's mounts in its way.
        let _ = self.inner.within.set(within);
    }

    /// Returns the inode of the directory that is mounted.
    pub fn root(&self) -> InodeId {
        InodeId::new(self.welcome.root)
    }

    /// Returns the identity of the file system.
    pub fn file_system(&self) -> [u64; 2] {
        self.welcome.file_system
    }

    /// Returns whether the server lets this client change anything.
    pub fn is_read_only(&self) -> bool {
        self.welcome.read_only
    }

    /// Returns whether the server cannot be reached: its connection for notices is being made again.
    pub fn is_away(&self) -> bool {
        self.inner.transport.is_away()
    }

    /// Ends the connections. Calls fail from then on.
    pub fn end(&self) {
        self.inner.transport.end();
        if let Some(notices) = self.notices.lock().take() {
            // It has nothing that could panic, and nothing depends on it any more.
            drop(notices.join());
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end();
    }
}
