//! Hands a mount from one session to the next, in this process or in another one, while programs use the mount.
//!
//! ```text
//! serving --PauseHandle::pause--> Paused --Session::resume--> serving
//!                                   |  descriptor and state
//!                                   +----------------------> Paused in another process
//! ```
//!
//! 1. [`PauseHandle::pause`] closes a gate ([`gate`]) that each reader passes before it waits for a request. It wakes
//!    each waiting reader by a request: statfs(2) of the mount point, which no cache answers. So each reader takes at
//!    most one more request, answers it and stops. The kernel keeps all other requests in its queue.
//! 2. Syncs that are under way end and get their answers ([`crate::waiters`]).
//! 3. [`Session::run`](crate::Session::run) returns a [`Paused`]. From here on programs wait.
//! 4. [`Session::resume`](crate::Session::resume) serves again. This works only over /dev/fuse, because rings end
//!    with a process. The kernel shakes hands once in the life of a mount, so the agreement is part of the state. So
//!    are the backing files. Both belong to the connection and not to the process.

mod gate;
mod state;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::agreement::Agreement;
use crate::device::Device;
use crate::transport::Transport;
pub(crate) use gate::Gate;
pub(crate) use state::{OpenInode, ROOT_ALONE, SessionState};

/// A mount that nobody serves at the moment.
#[derive(Debug)]
pub struct Paused {
    pub(crate) device: Device,
    pub(crate) dir: PathBuf,
    pub(crate) state: SessionState,
}

/// Why a session cannot continue from the bytes of a state.
#[derive(Debug, thiserror::Error)]
#[error("the state of the mount on {dir}: {reason}")]
pub struct StateError {
    dir: PathBuf,
    reason: String,
}

impl Paused {
    /// Builds a paused session from the parts that another process passed on.
    pub fn from_parts(
        descriptor: OwnedFd,
        dir: PathBuf,
        state: &[u8],
    ) -> Result<Paused, StateError> {
        let checked = SessionState::decode(state).map_err(str::to_owned);
        let checked = checked.and_then(|state| Agreement::of(&state).map(|_| state));
        match checked {
            Ok(state) => Ok(Paused { device: Device::new(descriptor), dir, state }),
            Err(reason) => Err(StateError { dir, reason }),
        }
    }

    /// Returns the descriptor of the connection. The mount lives as long as one descriptor is open.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.descriptor()
    }

    /// Returns the mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the encoded state that the next session needs.
    pub fn state(&self) -> Vec<u8> {
        self.state.encode()
    }
}

/// How long the requests under way may take before the pause fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Pauses a session from another thread.
#[derive(Clone, Debug)]
pub struct PauseHandle {
    gate: Arc<Gate>,
    transport: Transport,
    dir: PathBuf,
}

impl PauseHandle {
    pub(crate) fn new(gate: Arc<Gate>, transport: Transport, dir: PathBuf) -> PauseHandle {
        PauseHandle { gate, transport, dir }
    }

    /// Fails with the reason if this session cannot be paused.
    pub fn check(&self) -> io::Result<()> {
        match self.transport {
            Transport::Dev => Ok(()),
            // The kernel binds the requests in ring entries to the process that owns the ring, and fails them when
            // the ring is closed. There is no way to take a single entry back.
            Transport::Uring => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "requests travel over io_uring, whose rings end with the process",
            )),
        }
    }

    /// Waits until the requests under way are answered. Then [`Session::run`](crate::Session::run) returns. After an
    /// error the session continues.
    pub fn pause(&self) -> io::Result<()> {
        self.check()?;
        self.gate.close();
        for _ in 0..self.gate.serving() {
            let dir = self.dir.clone();
            // The next session answers the last of these requests, so nobody joins the threads.
            let wake = move || {
                let _ = rustix::fs::statfs(&dir);
            };
            if let Err(error) = thread::Builder::new().name("varve-wake".to_owned()).spawn(wake) {
                log::warn!("cannot wake a reader: {error}");
            }
        }
        if self.gate.wait_closed(PATIENCE) {
            return Ok(());
        }
        let (dir, seconds) = (self.dir.display(), PATIENCE.as_secs());
        let reason = format!(
            "requests have not ended in {seconds} seconds, or {dir} is covered by another mount"
        );
        Err(io::Error::new(io::ErrorKind::TimedOut, reason))
    }
}
