//! The process that serves a mount.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::Failure;
use crate::machine::{self, memory_bytes};
use crate::meter::check_interrupt;
use crate::run;

/// How long a mount may take to answer: it may have a log to replay.
const MOUNT_WAIT_MAX: Duration = Duration::from_secs(120);

/// How long its mount may be in use by who is about to leave it.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(5);

/// How long the daemon may take to end after its mount is gone.
const EXIT_WAIT_MAX: Duration = Duration::from_secs(600);

/// A running daemon. Dropped, it is killed and its mount detached; if this process dies it gets SIGTERM, which
/// unmounts.
pub(super) struct Daemon {
    /// `None` once it has ended.
    child: Option<Child>,
    mount_point: PathBuf,
    log: PathBuf,
}

impl Daemon {
    /// Starts `program`, which serves in the foreground, and waits until the mount answers; what it says goes to
    /// the file `log`.
    pub(super) fn start(
        program: &Path,
        args: &[String],
        mount_point: &Path,
        log: &Path,
    ) -> Result<Daemon, Failure> {
        let before = fs::metadata(mount_point)?.dev();
        let said = File::options().create(true).append(true).open(log)?;
        let mut command = run::while_this_one_lives("TERM", program);
        // Ctrl-C is for this process, which takes the daemon down in order.
        command.args(args).process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        let child = command.spawn().map_err(|error| format!("cannot run setpriv: {error}"))?;
        let mut daemon = Daemon {
            child: Some(child),
            mount_point: mount_point.to_path_buf(),
            log: log.to_path_buf(),
        };
        let begin = Instant::now();
        while fs::metadata(mount_point).map_or(before, |root| root.dev()) == before {
            if let Some(child) = &mut daemon.child
                && let Some(status) = child.try_wait()?
            {
                daemon.child = None;
                return Err(format!("the daemon ended: {status}\n{}", daemon.said()).into());
            }
            check_interrupt()?;
            if begin.elapsed() > MOUNT_WAIT_MAX {
                return Err(format!("the mount did not answer in {MOUNT_WAIT_MAX:?}").into());
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(daemon)
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default().trim().to_owned()
    }

    /// Unmounts and waits for its end, which must be clean.
    pub(super) fn unmount(&mut self) -> Result<(), Failure> {
        let begin = Instant::now();
        // The daemon itself looks at its mount once it serves.
        while let Err(error) = unmount(&self.mount_point, UnmountFlags::empty()) {
            if error != Errno::BUSY || begin.elapsed() > BUSY_WAIT_MAX {
                return Err(format!("cannot unmount the target: {error}").into());
            }
            thread::sleep(Duration::from_millis(2));
        }
        while begin.elapsed() < EXIT_WAIT_MAX {
            let Some(child) = &mut self.child else { return Ok(()) };
            if let Some(status) = child.try_wait()? {
                self.child = None;
                return match status.success() {
                    true => Ok(()),
                    false => Err(format!("the daemon ended: {status}\n{}", self.said()).into()),
                };
            }
            thread::sleep(Duration::from_millis(2));
        }
        Err(format!("the daemon did not end within {EXIT_WAIT_MAX:?} of the unmount").into())
    }

    /// Where it serves.
    pub(super) fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    fn id(&self) -> Result<u32, Failure> {
        Ok(self.child.as_ref().ok_or("the daemon has ended")?.id())
    }

    /// Waits until it has nothing more to do, such as to take note of what the kernel has forgotten.
    pub(super) fn settle(&self) -> Result<(), Failure> {
        machine::settle(self.id()?)
    }

    /// CPU time since its start.
    pub(super) fn cpu(&self) -> Result<Duration, Failure> {
        machine::cpu_of(self.id()?)
    }

    /// The most memory it has taken, in bytes.
    pub(super) fn memory_peak_bytes(&self) -> Result<u64, Failure> {
        memory_bytes(&format!("/proc/{}/status", self.id()?), "VmHWM")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // A run that failed half way: take everything down, whatever state it is in.
        let _ = unmount(&self.mount_point, UnmountFlags::DETACH);
        drop(child.kill());
        drop(child.wait());
    }
}
