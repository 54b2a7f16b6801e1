//! The machine under a run: its own mount namespace, its scratch directory, the `varve` program and its
//! daemon.
//!
//! Nothing stays behind: [`enter_private_namespace`] moves the run into a mount namespace of its own, so
//! that every mount (and every loop device under one) goes away with the last process of the run, however
//! it ends; the daemon ends with the process that started it; [`Scratch`] is removed when it is dropped.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};

use crate::run::{Failure, Outcome, Step, workspace_root};

/// Set for the process that already runs in its own namespace.
const NAMESPACE_MARK: &str = "VARVE_XTASK_NAMESPACE";

/// How long a mount may take to answer.
const MOUNT_WAIT_MAX: Duration = Duration::from_secs(30);

/// How long the daemon may take to end after its mount is gone.
const EXIT_WAIT_MAX: Duration = Duration::from_secs(60);

/// Replaces this process by the same one in a mount namespace of its own. Without root it is also in a
/// user namespace of its own, where it may mount.
pub(crate) fn enter_private_namespace() -> Outcome {
    if std::env::var_os(NAMESPACE_MARK).is_some() {
        return Ok(());
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(NAMESPACE_MARK, "1");
    Err(format!("cannot run unshare: {}", command.exec()).into())
}

/// A temporary directory for one run.
pub(crate) struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    /// A new directory under `base`, or where temporary files go.
    pub(crate) fn new(base: Option<&Path>) -> Result<Scratch, Failure> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("varve-xtask-");
        let dir = match base {
            Some(base) => builder.tempdir_in(base)?,
            None => builder.tempdir()?,
        };
        Ok(Scratch { dir })
    }

    /// Leaves it where it is; returns its path.
    pub(crate) fn keep(self) -> PathBuf {
        self.dir.keep()
    }

    /// A path in it; the directory is made if it is missing.
    pub(crate) fn dir(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.dir.path().join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// A path in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// The program under test, built for release unless `given`.
pub(crate) fn varve_program(given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = given {
        return Ok(fs::canonicalize(path)?);
    }
    build(&["--bin", "varve"])?;
    Ok(target_dir()?.join("release/varve"))
}

/// The example program `name` of the crate `varve`, built for release.
pub(crate) fn varve_example(name: &str) -> Result<PathBuf, Failure> {
    build(&["--example", name])?;
    Ok(target_dir()?.join("release/examples").join(name))
}

fn build(what: &[&str]) -> Outcome {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Step::new(cargo)
        .args(["build", "--release", "--quiet", "-p", "varve"])
        .args(what)
        .dir(workspace_root())
        .show()
}

fn target_dir() -> Result<PathBuf, Failure> {
    #[derive(serde::Deserialize)]
    struct Metadata {
        target_directory: PathBuf,
    }
    let metadata = Step::new("cargo")
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .dir(workspace_root())
        .capture()?;
    let metadata: Metadata = serde_json::from_str(&metadata)?;
    Ok(metadata.target_directory)
}

/// A store, its mount point and the daemon that serves it.
pub(crate) struct Varve {
    program: PathBuf,
    store: PathBuf,
    mount_point: PathBuf,
    log: PathBuf,
    mount_args: Vec<String>,
    daemon: Option<Child>,
}

impl Varve {
    /// Formats a new store in `scratch`; `mount_args` go to every `varve mount`.
    pub(crate) fn format(
        program: &Path,
        scratch: &Scratch,
        mount_args: &[String],
    ) -> Result<Varve, Failure> {
        let store = scratch.path("store");
        Step::new(program).arg("format").arg(&store).quiet()?;
        Ok(Varve {
            program: program.to_path_buf(),
            store,
            mount_point: scratch.dir("varve")?,
            log: scratch.path("daemon.log"),
            mount_args: mount_args.to_vec(),
            daemon: None,
        })
    }

    /// Where the file system appears.
    pub(crate) fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Starts the daemon in the foreground of a child process and waits until the mount answers.
    pub(crate) fn mount(&mut self) -> Outcome {
        let before = fs::metadata(&self.mount_point)?.dev();
        let log = fs::File::options().create(true).append(true).open(&self.log)?;
        // If this process is killed, the daemon gets SIGTERM, which unmounts.
        let mut daemon = Command::new("setpriv")
            .args(["--pdeathsig", "TERM"])
            .arg(&self.program)
            .args(["mount", "-f"])
            .args(&self.mount_args)
            .arg(&self.store)
            .arg(&self.mount_point)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        let begin = Instant::now();
        loop {
            if let Some(status) = daemon.try_wait()? {
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                return Err(format!("varve mount ended: {status}\n{}", said.trim()).into());
            }
            if fs::metadata(&self.mount_point).is_ok_and(|root| root.dev() != before) {
                break;
            }
            if begin.elapsed() > MOUNT_WAIT_MAX {
                self.daemon = Some(daemon);
                return Err(format!("the mount did not answer in {MOUNT_WAIT_MAX:?}").into());
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Unmounts and waits for the daemon's end, which must be clean.
    pub(crate) fn unmount(&mut self) -> Outcome {
        Step::new(&self.program).arg("umount").arg(&self.mount_point).quiet()?;
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        let begin = Instant::now();
        while begin.elapsed() < EXIT_WAIT_MAX {
            match daemon.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let said = fs::read_to_string(&self.log).unwrap_or_default();
                    return Err(format!("the daemon ended with {status}\n{}", said.trim()).into());
                }
                None => thread::sleep(Duration::from_millis(2)),
            }
        }
        self.daemon = Some(daemon);
        Err(format!("the daemon did not end within {EXIT_WAIT_MAX:?} of the unmount").into())
    }

    /// Kills the daemon without warning (SIGKILL) and takes the dead mount away.
    pub(crate) fn kill(&mut self) -> Outcome {
        let Some(mut daemon) = self.daemon.take() else { return Err("no daemon runs".into()) };
        daemon.kill()?;
        daemon.wait()?;
        unmount(&self.mount_point, UnmountFlags::DETACH)?;
        Ok(())
    }

    /// Checks the store, which must not be mounted.
    pub(crate) fn fsck(&self) -> Outcome {
        Step::new(&self.program).arg("fsck").arg(&self.store).quiet()
    }

    /// CPU time of the daemon since its start.
    pub(crate) fn daemon_cpu(&self) -> Result<Duration, Failure> {
        let Some(daemon) = &self.daemon else { return Ok(Duration::ZERO) };
        let mut nanos = 0_u64;
        for task in fs::read_dir(format!("/proc/{}/task", daemon.id()))? {
            // A thread may end between the listing and the reading.
            let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
            let running = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
            nanos += running.ok_or_else(|| format!("unexpected schedstat: {text}"))?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// The daemon's memory: the value of `field` in /proc/PID/status, in bytes.
    pub(crate) fn daemon_memory_bytes(&self, field: &str) -> Result<u64, Failure> {
        let Some(daemon) = &self.daemon else { return Ok(0) };
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kib.ok_or_else(|| format!("no {field} in /proc/PID/status"))? * 1024)
    }

    /// Bytes that the store takes on the storage below.
    pub(crate) fn store_bytes(&self) -> Result<u64, Failure> {
        let text = Step::new("du").args(["-s", "-B1"]).arg(&self.store).capture()?;
        let bytes = text.split_whitespace().next().and_then(|word| word.parse().ok());
        bytes.ok_or_else(|| format!("unexpected answer of du: {text}").into())
    }
}

impl Drop for Varve {
    fn drop(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        // A run that failed half way: take everything down, whatever state it is in.
        if unmount(&self.mount_point, UnmountFlags::DETACH).is_err() || daemon.try_wait().is_err() {
            drop(daemon.kill());
        }
        let begin = Instant::now();
        while matches!(daemon.try_wait(), Ok(None)) && begin.elapsed() < EXIT_WAIT_MAX {
            thread::sleep(Duration::from_millis(10));
        }
        drop(daemon.kill());
        drop(daemon.wait());
    }
}

/// Empties the kernel's caches; needs root.
pub(crate) fn drop_caches() -> Outcome {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").map_err(|error| {
        format!("cannot drop the kernel's caches: {error}\nhint: run as root").into()
    })
}
