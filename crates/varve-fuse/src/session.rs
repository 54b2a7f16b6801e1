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

/// The most reader threads unless told otherwise.
const READERS_DEFAULT_MAX: usize = 16;
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
