//! A mount that changes from one session to the next, in this process or in another one, while programs
//! use it.
//!
//! ```text
//! serving --PauseHandle::pause--> Paused --Session::resume--> serving
//!                                   |  descriptor and state
//!                                   +----------------------> Paused in another process
//! ```
//!
//! 1. [`PauseHandle::pause`] closes a gate ([`gate`]) that each reader passes before it waits for a request, and
//!    wakes the readers that wait by a request for each: statfs(2) of the mount point, which no cache
//!    answers. So each takes at most one request more, answers it and stops. What they leave, those of
//!    other programs and ours, the kernel keeps in its queue.
//! 2. Syncs that are under way end and are answered ([`crate::waiters`]).
//! 3. [`Session::run`](crate::Session::run) returns a [`Paused`]. Programs only wait from here on.
//! 4. [`Session::resume`](crate::Session::resume) serves again. Only over /dev/fuse: rings end with a process. The kernel shakes hands once in the life of a
//!    mount, so what was agreed on then is part of the state, as are the backing files: both belong to the
//!    connection and not to the process.

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

/// Why bytes are no state of a session that can be gone on with.
#[derive(Debug, thiserror::Error)]
#[error("the state of the mount on {dir}: {reason}")]
pub struct StateError {
    dir: PathBuf,
    reason: String,
}

impl Paused {
    /// Puts together what another process took apart.
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

    /// The descriptor of the connection; the mount lives as long as one is open.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.descriptor()
    }

    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the next session must know, encoded.
    pub fn state(&self) -> Vec<u8> {
        self.state.encode()
    }
}

/// How long the requests under way may take before a pause is given up.
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

    /// Why this session cannot be paused, if so.
    pub fn check(&self) -> io::Result<()> {
        match self.transport {
            Transport::Dev => Ok(()),
            // The kernel binds requests that it has put into an entry to the process that owns the ring,
            // and fails them when the ring goes; entries cannot be taken back from it one by one.
            Transport::Uring => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "requests travel over io_uring, whose rings end with the process",
            )),
        }
    }

    /// Waits until the requests under way are answered; [`Session::run`](crate::Session::run) returns then.
    /// On an error the session goes on.
    pub fn pause(&self) -> io::Result<()> {
        self.check()?;
        self.gate.close();
        for _ in 0..self.gate.serving() {
            let dir = self.dir.clone();
            // The last of them are answered by the next session, so nobody waits for the threads.
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
