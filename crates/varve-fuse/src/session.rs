//! One served mount, from the handshake with the kernel to its end.
//!
//! 1. [`Session::new`] shakes hands and makes the adapter and the descriptors of the readers.
//! 2. [`Session::run`] starts the threads of the transport and waits for their end.
//! 3. The mount was removed ([`Ended::Unmounted`]) or the session was paused ([`Ended::Paused`]).
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
//! Invariants: a session ends when anyone unmounts its file system, and requests in progress are answered first. The
//! caller has to sync what is not durable then, because the kernel sends no request at the end.

use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use varve_vfs::Vfs;

use crate::adapter::Adapter;
use crate::agreement::Agreement;
use crate::bursts::Governor;
use crate::device::Device;
use crate::handover::{Gate, PauseHandle, Paused};
use crate::handshake::{self, Refusal};
use crate::mount::{Connection, Mounted, StopHandle};
use crate::notify::Notifier;
use crate::options::SessionOptions;
use crate::readers::{Readers, usable_cpus};
use crate::transport::{self, Carrier, Deaths, NoUring, Transport};

/// The most reader threads unless the options give a number.
const READERS_DEFAULT_MAX: usize = 16;
/// Why a session could not start or failed.
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
    /// The options ask for rings, and there are none.
    #[error("FUSE over io_uring for {dir}: {source}")]
    NoUring {
        /// The mount point.
        dir: PathBuf,
        /// The reason.
        source: NoUring,
    },
    /// The transport can no longer receive or answer requests.
    #[error("FUSE transport of {dir}: {source}")]
    Transport {
        /// The mount point.
        dir: PathBuf,
        /// The transport's reason.
        source: io::Error,
    },
}

/// How a session ended without an error.
#[derive(Debug)]
pub enum Ended {
    /// The file system was unmounted.
    Unmounted,
    /// The file system is still mounted and waits for the next session.
    Paused(Paused),
}

/// A mount that is ready to be served.
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
    /// Shakes hands with the kernel over `mounted`. If that fails, unmounts the directory.
    pub fn new(
        vfs: Arc<dyn Vfs>,
        mounted: Mounted,
        options: &SessionOptions,
    ) -> Result<Session, SessionError> {
        let Mounted { connection, stop, .. } = mounted;
        match start(connection, options, vfs.has_locks()) {
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

    /// Continues a paused session. If that fails, unmounts the directory.
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

    /// Returns a handle by which another thread can pause the session.
    pub fn pause_handle(&self) -> PauseHandle {
        PauseHandle::new(Arc::clone(&self.gate), self.transport(), self.stop.dir().to_path_buf())
    }

    /// Returns a handle by which another thread can end the session.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Returns the notifier that tells the kernel which of its caches no longer hold.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(self.devices[0].clone(), self.adapter.root())
    }

    /// Returns whether the mount is one of root alone, on which the kernel checks no permissions.
    pub fn is_for_root_alone(&self) -> bool {
        self.adapter.is_for_root_alone()
    }

    /// Returns how requests travel.
    pub fn transport(&self) -> Transport {
        self.carrier.transport()
    }

    /// Serves requests until the file system is unmounted or the session is paused.
    pub fn run(self) -> Result<Ended, SessionError> {
        let Session { adapter, readers, carrier, devices, governor, gate, stop } = self;
        let (device, dir) = (devices[0].clone(), stop.dir().to_path_buf());
        let on_failure = || stop.give_up();
        // Over /dev/fuse a thread takes each request by a call of its own, so it leaves none behind.
        let is_uring = matches!(carrier, Carrier::Uring(_));
        let _deaths = is_uring.then(|| stop.control()).flatten().and_then(Deaths::note);
        match transport::serve(&adapter, carrier, devices, &gate, &readers, &governor, on_failure) {
            Ok(true) => Ok(Ended::Unmounted),
            Ok(false) => Ok(Ended::Paused(Paused { device, state: adapter.leave(), dir })),
            Err(source) => Err(SessionError::Transport { dir, source }),
        }
    }
}

/// Shakes hands and makes a descriptor for each reader.
fn start(
    connection: Connection,
    options: &SessionOptions,
    has_locks: bool,
) -> Result<(Vec<Device>, Agreement, Carrier), Refusal> {
    let device = Device::new(connection.device);
    let (agreement, carrier) =
        handshake::shake_hands(&device, options, connection.root_alone, has_locks)?;
    Ok((one_each(&device, options)?, agreement, carrier))
}

/// Makes a descriptor for each reader, `device` first.
fn one_each(device: &Device, options: &SessionOptions) -> io::Result<Vec<Device>> {
    let one_per_cpu = usable_cpus().len().clamp(1, READERS_DEFAULT_MAX);
    let readers = options.threads.map_or(one_per_cpu, NonZeroUsize::get);
    let mut devices = vec![device.clone()];
    while devices.len() < readers {
        devices.push(if options.clone_device { device.duplicate()? } else { device.clone() });
    }
    Ok(devices)
}
