//! One served mount: from the handshake with the kernel to its end.
//!
//! ```text
//! Mounted --Session::new--> Session --run--> serving --unmounted--> run returns
//!                 |                             |
//!                 +-- handshake fails:          +-- transport fails: mount detached by force,
//!                     mount detached                so that nobody waits for an answer for ever
//!
//! serving --PauseHandle::pause--> Paused --Session::resume--> Session
//! ```
//!
//! A session ends when its file system is unmounted by anyone; requests in progress are answered first.
//! What is not durable then is the caller's to sync: the kernel sends nothing at the end.

use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use varve_types::InodeId;
use varve_vfs::Vfs;

use crate::adapter::Adapter;
use crate::bursts::{Governor, IdlePoll};
use crate::device::Device;
use crate::handover::{Gate, PauseHandle, Paused};
use crate::handshake::{self, Agreement, Refusal};
use crate::mount::{Connection, Mounted, StopHandle};
use crate::notify::Notifier;
use crate::readers::{Placement, Readers, usable_cpus};
use crate::transport::{self, Carrier, Deaths, NoUring, Transport};

/// When listing a directory also brings the attributes of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaddirPlus {
    /// When the kernel has seen that the program asks for attributes too.
    Auto,
    /// Never.
    Never,
    /// Always.
    Always,
}

/// How to serve a mount.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How requests travel; `None` takes rings where the kernel offers them, else /dev/fuse.
    pub transport: Option<Transport>,
    /// Number of reader threads of /dev/fuse; `None` takes one per CPU, at most 16: each may fill a buffer of
    /// 1 MiB. Rings have one for each CPU in any case.
    pub threads: Option<NonZeroUsize>,
    /// Where they run.
    pub placement: Placement,
    /// Whether idle CPUs poll while requests come thick.
    pub idle_poll: IdlePoll,
    /// Let threads of rings give way to their callers while requests come thick, where this process may call them back
    /// (CAP_SYS_NICE).
    pub give_way: bool,
    /// Give each reader of /dev/fuse a descriptor of its own (FUSE_DEV_IOC_CLONE).
    pub clone_device: bool,
    /// How long the kernel may take a name's inode for known.
    pub entry_timeout: Duration,
    /// How long the kernel may take a name for absent.
    pub negative_timeout: Duration,
    /// How long the kernel may take attributes for known.
    pub attr_timeout: Duration,
    /// Let the kernel read and write large files straight.
    pub passthrough: bool,
    /// Serve extended attributes. Without them the kernel stops asking, which saves a round trip at the
    /// first write to each file.
    pub xattr: bool,
    /// Have the kernel obey access control lists, which are extended attributes. It then asks once for the
    /// list of each inode that somebody else than the owner wants access to, and for that of the root each
    /// time. Where it checks nothing ([`Mounted::is_for_root_alone`]) they are kept and obeyed by nobody.
    pub acl: bool,
    /// Attributes with listings.
    pub readdir_plus: ReaddirPlus,
    /// The directory that the mount shows as its root.
    pub root: InodeId,
    /// Make every write durable before it is answered (mount option `sync`). Excludes passthrough.
    pub sync_writes: bool,
    /// Make every change of a directory durable before it is answered (mount options `sync` and `dirsync`).
    pub sync_dirs: bool,
}

/// The most reader threads unless told otherwise.
const READERS_DEFAULT_MAX: usize = 16;
/// Long enough for ever: nothing that the kernel knows goes stale. What changes by another way than through its mount it is told
/// ([`Notifier`]), and of attributes of which nobody could tell it, that they do not hold ([`varve_vfs::Attr::is_fleeting`]).
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(365 * 24 * 3600);

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            transport: None,
            threads: None,
            placement: Placement::Pinned,
            idle_poll: IdlePoll::Auto,
            give_way: true,
            clone_device: false,
            entry_timeout: TIMEOUT_DEFAULT,
            negative_timeout: TIMEOUT_DEFAULT,
            attr_timeout: TIMEOUT_DEFAULT,
            passthrough: true,
            xattr: true,
            acl: true,
            readdir_plus: ReaddirPlus::Auto,
            root: InodeId::ROOT,
            sync_writes: false,
            sync_dirs: false,
        }
    }
}

/// Why a session could not start or ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The kernel and this program could not agree.
    #[error("FUSE handshake for {dir}: {source}")]
    Handshake {
        /// The mount point.
        dir: PathBuf,
        /// The transport's reason.
        source: io::Error,
    },
    /// Rings were asked for and are not to be had.
    #[error("FUSE over io_uring for {dir}: {source}")]
    NoUring {
        /// The mount point.
        dir: PathBuf,
        /// Why not.
        source: NoUring,
    },
    /// Requests can no longer be received or answered.
    #[error("FUSE transport of {dir}: {source}")]
    Transport {
        /// The mount point.
        dir: PathBuf,
        /// The transport's reason.
        source: io::Error,
    },
}

/// How a session ended well.
#[derive(Debug)]
pub enum Ended {
    /// The file system was unmounted.
    Unmounted,
    /// It is still mounted and waits for the next session.
    Paused(Paused),
}

/// A mount about to be served.
pub struct Session {
    adapter: Adapter,
    readers: Readers,
    carrier: Carrier,
    devices: Vec<Device>,
    governor: Governor,
    gate: Arc<Gate>,
    stop: StopHandle,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("dir", &self.stop.dir()).finish_non_exhaustive()
    }
}

impl Session {
    /// Shakes hands with the kernel over `mounted`. If that fails, the directory is unmounted again.
    pub fn new(
        vfs: Arc<dyn Vfs>,
        mounted: Mounted,
        options: &SessionOptions,
    ) -> Result<Session, SessionError> {
        let Mounted { connection, stop, .. } = mounted;
        match start(connection, options) {
            Ok((devices, agreement, carrier)) => {
                if let Some(reason) = &agreement.no_uring {
                    log::info!("requests travel over {}: {reason}", agreement.transport);
                }
                let adapter = Adapter::new(vfs, options.clone(), agreement);
                Ok(Session::with(adapter, carrier, devices, options, stop))
            }
            Err(refusal) => {
                stop.give_up();
                let dir = stop.dir().to_path_buf();
                Err(match refusal {
                    Refusal::Exchange(source) => SessionError::Handshake { dir, source },
                    Refusal::NoUring(source) => SessionError::NoUring { dir, source },
                })
            }
        }
    }

    /// Goes on where the session that was paused has stopped. If that fails, the directory is unmounted.
    pub fn resume(
        vfs: Arc<dyn Vfs>,
        paused: Paused,
        options: &SessionOptions,
    ) -> Result<Session, SessionError> {
        let Paused { device, dir, state } = paused;
        let stop = StopHandle::on(dir);
        let agreement = Agreement::of(&state).map_err(io::Error::other);
        match agreement.and_then(|agreement| Ok((agreement, one_each(&device, options)?))) {
            Ok((agreement, devices)) => {
                let adapter = Adapter::resume(vfs, options.clone(), agreement, &device, &state);
                Ok(Session::with(adapter, Carrier::Dev, devices, options, stop))
            }
            Err(source) => {
                stop.give_up();
                Err(SessionError::Handshake { dir: stop.dir().to_path_buf(), source })
            }
        }
    }

    fn with(
        adapter: Adapter,
        carrier: Carrier,
        devices: Vec<Device>,
        options: &SessionOptions,
        stop: StopHandle,
    ) -> Session {
        let readers = Readers::new(options.placement);
        let rings_give_way = options.give_way && matches!(carrier, Carrier::Uring(_));
        let governor = Governor::new(options.idle_poll, rings_give_way);
        let gate = Arc::new(Gate::new(carrier.threads(devices.len())));
        Session { adapter, readers, carrier, devices, governor, gate, stop }
    }

    /// A handle by which another thread can pause the session.
    pub fn pause_handle(&self) -> PauseHandle {
        PauseHandle::new(Arc::clone(&self.gate), self.transport(), self.stop.dir().to_path_buf())
    }

    /// A handle by which another thread can end the session.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// By which the kernel is told that what it knows no longer holds.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(self.devices[0].clone(), self.adapter.root())
    }

    /// Whether the mount is one of root alone, on which no permissions are checked.
    pub fn is_for_root_alone(&self) -> bool {
        self.adapter.is_for_root_alone()
    }

    /// How requests travel.
    pub fn transport(&self) -> Transport {
        self.carrier.transport()
    }

    /// Serves requests until the file system is unmounted or the session paused.
    pub fn run(self) -> Result<Ended, SessionError> {
        let Session { adapter, readers, carrier, devices, governor, gate, stop } = self;
        let (device, dir) = (devices[0].clone(), stop.dir().to_path_buf());
        let on_failure = || stop.give_up();
        // Of /dev/fuse each request is taken by a call that is its own.
        let is_uring = matches!(carrier, Carrier::Uring(_));
        let _deaths = is_uring.then(|| stop.control()).flatten().and_then(Deaths::note);
        match transport::serve(&adapter, carrier, devices, &gate, &readers, &governor, on_failure) {
            Ok(true) => Ok(Ended::Unmounted),
            Ok(false) => Ok(Ended::Paused(Paused { device, state: adapter.leave(), dir })),
            Err(source) => Err(SessionError::Transport { dir, source }),
        }
    }
}

/// Shakes hands and takes a descriptor for each reader.
fn start(
    connection: Connection,
    options: &SessionOptions,
) -> Result<(Vec<Device>, Agreement, Carrier), Refusal> {
    let device = Device::new(connection.device);
    let (agreement, carrier) = handshake::shake_hands(&device, options, connection.root_alone)?;
    Ok((one_each(&device, options)?, agreement, carrier))
}

/// A descriptor for each reader, `device` first.
fn one_each(device: &Device, options: &SessionOptions) -> io::Result<Vec<Device>> {
    let one_per_cpu = usable_cpus().len().clamp(1, READERS_DEFAULT_MAX);
    let readers = options.threads.map_or(one_per_cpu, NonZeroUsize::get);
    let mut devices = vec![device.clone()];
    while devices.len() < readers {
        devices.push(if options.clone_device { device.duplicate()? } else { device.clone() });
    }
    Ok(devices)
}
