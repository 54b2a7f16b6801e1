//! The machine under a run: its own mount namespace, its scratch directory, the `varve` program and its
//! daemon.
//!
//! [`Varve`] is a store and its mounts, each served by a [`Daemon`]: one mount, or with `VARVE_TEST_SERVER` set any number of
//! clients of a server that has the store.
//!
//! Nothing stays behind: [`enter_private_namespace`] moves the run into a mount namespace of its own, so
//! that every mount (and every loop device under one) goes away with the last process of the run, however
//! it ends, and what others unmount meanwhile goes from it too; the daemon ends with the process that
//! started it; [`Scratch`] is removed when it is dropped.

mod daemon;
mod server;

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{UnmountFlags, unmount};

use daemon::Daemon;
use server::Server;

use crate::run::{Failure, Outcome, Step, workspace_root};

/// If this is set, stores are mounted through a server.
const THROUGH_SERVER: &str = "VARVE_TEST_SERVER";

/// Set for the process that already runs in its own namespace.
const NAMESPACE_MARK: &str = "VARVE_XTASK_NAMESPACE";

/// Replaces this process by the same one in a mount namespace of its own. Without root it is also in a
/// user namespace of its own, where it may mount.
pub(crate) fn enter_private_namespace() -> Outcome {
    if std::env::var_os(NAMESPACE_MARK).is_some() {
        return Ok(());
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "slave"]);
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(NAMESPACE_MARK, "1");
    Err(format!("cannot run unshare: {}", command.exec()).into())
}

/// Whether programs of the run may run as other users: not inside a user namespace that knows only one.
pub(crate) fn may_switch_users() -> bool {
    let ids = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let count = ids.split_whitespace().nth(2).and_then(|count| count.parse::<u64>().ok());
    rustix::process::geteuid().is_root() && count.is_some_and(|count| count > 1)
}

/// Whether stores are mounted through a server.
pub(crate) fn is_served() -> bool {
    std::env::var_os(THROUGH_SERVER).is_some()
}

/// A temporary directory for one run.
pub(crate) struct Scratch {
    dir: tempfile::TempDir,
}

/// Where in a scratch directory the daemons of [`Varve`] write what they have to say.
pub(crate) const LOG_NAME: &str = "daemon.log";

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
    build("varve-cli", &["--bin", "varve"])?;
    Ok(target_dir()?.join("release/varve"))
}

fn build(package: &str, what: &[&str]) -> Outcome {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Step::new(cargo)
        .args(["build", "--release", "--quiet", "-p", package])
        .args(what)
        .dir(workspace_root())
        .show()
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> Result<PathBuf, Failure> {
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

/// A store and its mounts.
pub(crate) struct Varve {
    program: PathBuf,
    store: PathBuf,
    log: PathBuf,
    mount_args: Vec<String>,
    server: Option<Server>,
    mounts: Vec<Mount>,
}

/// A mount point, and the daemon that serves it while it is mounted.
struct Mount {
    point: PathBuf,
    daemon: Option<Daemon>,
}

impl Varve {
    /// Formats a new store in `scratch`; `mount_args` go to every `varve mount`.
    pub(crate) fn format(
        program: &Path,
        scratch: &Scratch,
        mount_args: &[String],
    ) -> Result<Varve, Failure> {
        Varve::format_at(program, scratch, &scratch.path("store"), mount_args)
    }

    /// The same in the directory `store`.
    pub(crate) fn format_at(
        program: &Path,
        scratch: &Scratch,
        store: &Path,
        mount_args: &[String],
    ) -> Result<Varve, Failure> {
        let store = store.to_path_buf();
        Step::new(program).arg("format").arg(&store).quiet()?;
        Ok(Varve {
            program: program.to_path_buf(),
            store,
            log: scratch.path(LOG_NAME),
            mount_args: mount_args.to_vec(),
            server: None,
            mounts: vec![Mount { point: scratch.dir("varve")?, daemon: None }],
        })
    }

    /// Has one more mount from the next [`Varve::mount`] on. REQUIRES: [`is_served`].
    pub(crate) fn add_mount(&mut self, scratch: &Scratch) -> Outcome {
        let point = scratch.dir(&format!("varve-{}", self.mounts.len()))?;
        self.mounts.push(Mount { point, daemon: None });
        Ok(())
    }

    /// The program under test.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Where the file system appears.
    pub(crate) fn mount_point(&self) -> &Path {
        &self.mounts[0].point
    }

    /// Where each of its mounts appears.
    pub(crate) fn mount_points(&self) -> impl Iterator<Item = &Path> {
        self.mounts.iter().map(|mount| mount.point.as_path())
    }

    /// Starts the daemons in the foreground of child processes and waits until the mounts answer.
    pub(crate) fn mount(&mut self) -> Outcome {
        self.mount_with(&[])
    }

    /// The same with further arguments.
    pub(crate) fn mount_with(&mut self, arguments: &[&str]) -> Outcome {
        match &self.server {
            // What killed mounts have asked for may happen until then.
            Some(server) => server.wait_for_the_dead(&self.program)?,
            None if is_served() => {
                self.server = Some(Server::start(&self.program, &self.store, &self.log)?);
            }
            None => {}
        }
        let server = self.server.as_ref().map(|server| PathBuf::from(server.source()));
        let source = server.as_ref().unwrap_or(&self.store);
        for mount in &mut self.mounts {
            let mut command = daemon::command(&self.program);
            command
                .args(["mount", "-f"])
                .args(&self.mount_args)
                .args(arguments)
                .arg(source)
                .arg(&mount.point);
            mount.daemon = Some(Daemon::start(command, &mount.point, &self.log)?);
        }
        Ok(())
    }

    /// Unmounts and waits for the daemons' ends, which must be clean.
    pub(crate) fn unmount(&mut self) -> Outcome {
        for mount in &mut self.mounts {
            Step::new(&self.program).arg("umount").arg(&mount.point).quiet()?;
            mount.daemon.take().map_or(Ok(()), Daemon::wait_for_end)?;
        }
        self.server.take().map_or(Ok(()), Server::stop)
    }

    /// Kills all daemons, and the server, without warning (SIGKILL) and takes the dead mounts away.
    pub(crate) fn kill(&mut self) -> Outcome {
        // A mount that waits for its server answers nothing, not even to be looked at: the server goes last.
        (0..self.mounts.len()).try_for_each(|at| self.kill_one(at))?;
        drop(self.server.take());
        Ok(())
    }

    /// The same for the mount `at` alone.
    pub(crate) fn kill_one(&mut self, at: usize) -> Outcome {
        let mount = &mut self.mounts[at];
        let Some(daemon) = mount.daemon.take() else { return Err("no daemon runs".into()) };
        daemon.kill()?;
        unmount(&mount.point, UnmountFlags::DETACH)?;
        Ok(())
    }

    /// Kills the server without warning and starts it again in the same place, under its clients.
    pub(crate) fn restart_server(&mut self) -> Outcome {
        let Some(server) = self.server.take() else { return Err("no server runs".into()) };
        self.server = Some(server.start_again(&self.program, &self.store, &self.log)?);
        Ok(())
    }

    /// Whether a server has the store.
    pub(crate) fn has_server(&self) -> bool {
        self.server.is_some()
    }

    /// Checks the store, which must not be mounted.
    pub(crate) fn fsck(&self) -> Outcome {
        Step::new(&self.program).arg("fsck").arg(&self.store).quiet()
    }

    /// Bytes that the store takes on the storage below.
    pub(crate) fn store_bytes(&self) -> Result<u64, Failure> {
        let text = Step::new("du").args(["-s", "-B1"]).arg(&self.store).capture()?;
        let bytes = text.split_whitespace().next().and_then(|word| word.parse().ok());
        bytes.ok_or_else(|| format!("unexpected answer of du: {text}").into())
    }
}
