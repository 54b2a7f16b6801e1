//! The process that serves a mount.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};

use crate::run::{Failure, Outcome};

/// How long a mount may take to answer.
const MOUNT_WAIT_MAX: Duration = Duration::from_secs(60);

/// How long the daemon may take to end after its mount is gone.
const EXIT_WAIT_MAX: Duration = Duration::from_secs(60);

/// A running daemon. Dropped, it is killed and its mount detached.
pub(crate) struct Daemon {
    /// `None` once it has ended.
    child: Option<Child>,
    mount_point: PathBuf,
    log: PathBuf,
}

/// Runs a program unless the parent has died before its death became a signal.
const RUN_FOR_PARENT: &str = "[ \"$PPID\" = \"$0\" ] && exec \"$@\"";

/// A command that runs `program` and, if this process is killed, sends it SIGTERM, which unmounts. What a terminal sends does
/// not reach it otherwise.
pub(super) fn command(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "sh", "-c", RUN_FOR_PARENT]);
    command.arg(std::process::id().to_string()).arg(program).process_group(0);
    command
}

impl Daemon {
    /// Starts it and waits until the mount answers; what it says goes to the file `log`.
    pub(super) fn start(
        mut command: Command,
        mount_point: &Path,
        log: &Path,
    ) -> Result<Daemon, Failure> {
        let before = fs::metadata(mount_point)?.dev();
        let said = fs::File::options().create(true).append(true).open(log)?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).spawn()?;
        let (mount_point, log) = (mount_point.to_path_buf(), log.to_path_buf());
        let mut daemon = Daemon { child: Some(child), mount_point, log };
        let begin = Instant::now();
        loop {
            if let Some(child) = &mut daemon.child
                && let Some(status) = child.try_wait()?
            {
                daemon.child = None;
                return Err(format!("the daemon ended: {status}\n{}", daemon.said()).into());
            }
            if fs::metadata(&daemon.mount_point).is_ok_and(|root| root.dev() != before) {
                return Ok(daemon);
            }
            if begin.elapsed() > MOUNT_WAIT_MAX {
                return Err(format!("the mount did not answer in {MOUNT_WAIT_MAX:?}").into());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default().trim().to_owned()
    }

    /// Waits for its end, which must be clean. REQUIRES: it is unmounted.
    pub(super) fn wait_for_end(mut self) -> Outcome {
        let begin = Instant::now();
        while begin.elapsed() < EXIT_WAIT_MAX {
            let Some(child) = &mut self.child else { return Ok(()) };
            if let Some(status) = child.try_wait()? {
                self.child = None;
                if status.success() {
                    return Ok(());
                }
                return Err(format!("the daemon ended with {status}\n{}", self.said()).into());
            }
            thread::sleep(Duration::from_millis(2));
        }
        Err(format!("the daemon did not end within {EXIT_WAIT_MAX:?} of the unmount").into())
    }

    /// Kills it without warning (SIGKILL); fails if it has ended before. Its dead mount stays.
    pub(super) fn kill(mut self) -> Outcome {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        if let Some(status) = child.try_wait()? {
            return Err(format!("the daemon ended before: {status}\n{}", self.said()).into());
        }
        child.kill()?;
        child.wait()?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // A run that failed half way: take everything down, whatever state it is in.
        if unmount(&self.mount_point, UnmountFlags::DETACH).is_err() || child.try_wait().is_err() {
            drop(child.kill());
        }
        let begin = Instant::now();
        while matches!(child.try_wait(), Ok(None)) && begin.elapsed() < EXIT_WAIT_MAX {
            thread::sleep(Duration::from_millis(10));
        }
        drop(child.kill());
        drop(child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the starter died before its death became a signal, the program ran for ever.
    #[test]
    fn what_another_process_starts_does_not_begin() {
        let mut own = command(Path::new("true"));
        let mut through = Command::new("sh");
        through
            .args(["-c", "\"$0\" \"$@\"; exit \"$?\""])
            .arg(own.get_program())
            .args(own.get_args());
        assert!(own.status().unwrap().success());
        assert!(!through.status().unwrap().success());
    }

    /// Ctrl-C took it down under the run, which then failed for that.
    #[test]
    fn a_terminal_does_not_interrupt_it() {
        let said = command(Path::new("cat")).arg("/proc/self/stat").output().unwrap().stdout;
        let said = String::from_utf8(said).unwrap();
        let fields: Vec<&str> = said.split(' ').collect();
        // Its id, its name, its state, its parent and its process group (proc_pid_stat(5)).
        assert_eq!(fields[0], fields[4]);
    }
}
