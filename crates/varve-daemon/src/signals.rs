//! Forwards signals to a program that this process runs. The end of the program decides the end of this process.

use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use varve::{Error, Result};
use varve_env::os::signals::is_ignored;

/// Forwards SIGTERM and SIGHUP until it is dropped. A signal that this process was started to ignore (nohup) stays ignored, by the
/// program too.
pub(crate) struct SignalRelay {
    shared: Arc<Mutex<Shared>>,
    handle: Handle,
}

#[derive(Default)]
struct Shared {
    /// The program that runs.
    program: Option<OwnedFd>,
    /// The last signal that came.
    came: Option<i32>,
}

impl Shared {
    fn pass_on(&self) {
        if let (Some(program), Some(signal)) = (&self.program, self.came)
            && let Some(signal) = Signal::from_named_raw(signal)
            && let Err(error) = pidfd_send_signal(program, signal)
        {
            log::debug!("cannot forward {signal:?}: {error}");
        }
    }
}

impl SignalRelay {
    /// Forwards signals from now on.
    pub(crate) fn start() -> Result<SignalRelay> {
        let failed = |error| Error::machine("handle signals", error);
        let heard = [SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal));
        let mut signals = Signals::new(heard.collect::<Vec<_>>()).map_err(failed)?;
        let (shared, handle) = (Arc::<Mutex<Shared>>::default(), signals.handle());
        let forwarded = Arc::clone(&shared);
        let pass = move || {
            for signal in signals.forever() {
                let mut shared = forwarded.lock();
                shared.came = Some(signal);
                shared.pass_on();
            }
        };
        std::thread::Builder::new().name("varve-signals".to_owned()).spawn(pass).map_err(failed)?;
        Ok(SignalRelay { shared, handle })
    }

    /// The last signal that came.
    pub(crate) fn came(&self) -> Option<i32> {
        self.shared.lock().came
    }

    /// Runs `command` to its end. A signal that came before is forwarded to it, too.
    pub(crate) fn run(&self, command: &mut Command) -> Result<ExitStatus> {
        let failed = |error| Error::machine("start a process", error);
        let mut child = command.spawn().map_err(failed)?;
        let program = Pid::from_child(&child);
        match pidfd_open(program, PidfdFlags::empty()) {
            Ok(program) => {
                let mut shared = self.shared.lock();
                shared.program = Some(program);
                shared.pass_on();
            }
            Err(error) => log::warn!("signals are not forwarded to the program: {error}"),
        }
        let ended = child.wait();
        self.shared.lock().program = None;
        ended.map_err(|error| Error::machine("wait for a process", error))
    }
}

impl Drop for SignalRelay {
    fn drop(&mut self) {
        self.handle.close();
    }
}
