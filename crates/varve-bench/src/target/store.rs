//! A Varve store, mounted by a daemon, served and mounted by two, or opened in this process.
//!
//! Options: `dev`, `uring` or `auto` choose the transport of a mount; those of [`FORMAT_OPTIONS`] with a value go to
//! `varve format`; the rest are mount options, of which the library knows `memory=SIZE`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use varve::FileSystem;
use varve::check::{self, CheckOptions};
use varve_fs::{FormatOptions, MountOptions};
use varve_vfs::Vfs;

use super::daemon::Daemon;
use super::{Ground, Spec};
use crate::Failure;
use crate::machine::{self, memory_bytes};
use crate::run::Step;
use crate::scratch::Scratch;
use crate::server::Server;

/// Options that a store is formatted with.
const FORMAT_OPTIONS: &[&str] = &[
    "preset",
    "compaction",
    "stitch-threshold",
    "index",
    "filter",
    "filtered-levels",
    "values",
    "tuning",
    "compression",
    "large-file-threshold",
    "engine",
];

/// A store and what serves it.
pub(super) struct Store {
    path: PathBuf,
    served: Served,
}

enum Served {
    /// By a daemon, while it runs.
    Mounted {
        program: PathBuf,
        args: Vec<String>,
        mount_point: PathBuf,
        log: PathBuf,
        daemon: Option<Daemon>,
    },
    /// By a server, and a daemon that mounts that, while they run.
    Remote {
        program: PathBuf,
        options: Vec<String>,
        mount_point: PathBuf,
        logs: [PathBuf; 2],
        running: Option<(Daemon, Server)>,
    },
    /// By this process, while it is open; whether its peak of memory counts from then.
    Opened { options: MountOptions, file_system: Option<FileSystem>, has_own_peak: bool },
}

impl Store {
    /// Formats one in `below` and mounts it.
    pub(super) fn mounted(
        spec: &Spec,
        ground: &Ground,
        below: &Path,
        scratch: &Scratch,
    ) -> Result<Store, Failure> {
        let path = format(spec, ground, below)?;
        let mount_point = scratch.dir("varve")?;
        let mut args = mount_options(spec);
        args.extend([&path, &mount_point].map(|path| path.to_string_lossy().into_owned()));
        let served = Served::Mounted {
            program: ground.varve.clone(),
            args,
            mount_point,
            log: scratch.path().join("varve.log"),
            daemon: None,
        };
        let mut store = Store { path, served };
        store.start()?;
        Ok(store)
    }

    /// Formats one in `below`, serves it, and mounts the server.
    pub(super) fn served(
        spec: &Spec,
        ground: &Ground,
        below: &Path,
        scratch: &Scratch,
    ) -> Result<Store, Failure> {
        let served = Served::Remote {
            program: ground.varve.clone(),
            options: mount_options(spec),
            mount_point: scratch.dir("varve")?,
            logs: ["serve.log", "varve.log"].map(|name| scratch.path().join(name)),
            running: None,
        };
        let mut store = Store { path: format(spec, ground, below)?, served };
        store.start()?;
        Ok(store)
    }

    /// Formats one in `below` and opens it.
    pub(super) fn opened(spec: &Spec, ground: &Ground, below: &Path) -> Result<Store, Failure> {
        let options = Store::library_options(spec)?;
        let path = format(spec, ground, below)?;
        let served = Served::Opened { options, file_system: None, has_own_peak: false };
        let mut store = Store { path, served };
        store.start()?;
        Ok(store)
    }

    /// How the library opens it.
    pub(super) fn library_options(spec: &Spec) -> Result<MountOptions, Failure> {
        let mut options = MountOptions::default();
        for option in split(spec).1 {
            let Some(("memory", size)) = option.split_once('=') else {
                return Err(format!("{spec}: the library has no option {option}").into());
            };
            options.memory_budget_bytes = usize::try_from(varve::size::parse(size)?)?;
        }
        Ok(options)
    }

    /// Mounts or opens it.
    pub(super) fn start(&mut self) -> Result<(), Failure> {
        match &mut self.served {
            Served::Mounted { program, args, mount_point, log, daemon } => {
                *daemon = Some(Daemon::start(program, args, mount_point, log)?);
            }
            Served::Remote { program, options, mount_point, logs, running } => {
                let [of_server, of_mount] = logs;
                let server = Server::start(program, &self.path, &[], of_server)?;
                let mut args = options.clone();
                let what = format!("varve://{}/", server.address());
                args.extend([what, mount_point.to_string_lossy().into_owned()]);
                let daemon = Daemon::start(program, &args, mount_point, of_mount)?;
                *running = Some((daemon, server));
            }
            Served::Opened { options, file_system, has_own_peak } => {
                // Not every kernel does.
                *has_own_peak = machine::forget_memory_peak().is_ok();
                *file_system = Some(FileSystem::open(&self.path, options)?);
            }
        }
        Ok(())
    }

    /// Unmounts or closes it. REQUIRES: nothing uses it.
    pub(super) fn stop(&mut self) -> Result<(), Failure> {
        match &mut self.served {
            Served::Mounted { daemon, .. } => daemon.take().map_or(Ok(()), |mut it| it.unmount()),
            Served::Remote { running, .. } => {
                let Some((mut daemon, server)) = running.take() else { return Ok(()) };
                daemon.unmount()?;
                server.stop()
            }
            Served::Opened { file_system, .. } => {
                Ok(file_system.take().map_or(Ok(()), FileSystem::close)?)
            }
        }
    }

    /// The file system, if it is open in this process.
    pub(super) fn vfs(&self) -> Option<Arc<dyn Vfs>> {
        match &self.served {
            Served::Opened { file_system, .. } => file_system.as_ref().map(FileSystem::vfs),
            Served::Mounted { .. } | Served::Remote { .. } => None,
        }
    }

    /// Where it is mounted, or the store's own directory.
    pub(super) fn mount_point(&self) -> &Path {
        match &self.served {
            Served::Mounted { mount_point, .. } | Served::Remote { mount_point, .. } => mount_point,
            Served::Opened { .. } => &self.path,
        }
    }

    /// The process of the mount, if it is mounted.
    pub(super) fn daemon(&self) -> Option<&Daemon> {
        match &self.served {
            Served::Mounted { daemon, .. } => daemon.as_ref(),
            Served::Remote { running, .. } => running.as_ref().map(|(daemon, _)| daemon),
            Served::Opened { .. } => None,
        }
    }

    /// CPU time since the start of the processes of the mount and the server; `None` if it is not mounted.
    pub(super) fn cpu(&self) -> Result<Option<Duration>, Failure> {
        let Some(daemon) = self.daemon() else { return Ok(None) };
        let of_server = match &self.served {
            Served::Remote { running: Some((_, server)), .. } => machine::cpu_of(server.id())?,
            _ => Duration::ZERO,
        };
        Ok(Some(daemon.cpu()? + of_server))
    }

    /// The most memory that who serves it has taken since it was started, in bytes; `None` if that cannot be told.
    pub(super) fn memory_peak_bytes(&self) -> Result<Option<u64>, Failure> {
        match &self.served {
            Served::Mounted { daemon, .. } => {
                daemon.as_ref().map(Daemon::memory_peak_bytes).transpose()
            }
            Served::Remote { running, .. } => {
                let Some((daemon, server)) = running else { return Ok(None) };
                let of_server = memory_bytes(&format!("/proc/{}/status", server.id()), "VmHWM")?;
                Ok(Some(daemon.memory_peak_bytes()? + of_server))
            }
            Served::Opened { has_own_peak, .. } => {
                let peak = has_own_peak.then(|| memory_bytes("/proc/self/status", "VmHWM"));
                peak.transpose()
            }
        }
    }

    /// Checks all of it. REQUIRES: it is stopped.
    pub(super) fn fsck(&self) -> Result<(), Failure> {
        let report = check::check(&self.path, &CheckOptions::default(), &mut |_| {})?;
        match report.is_clean() {
            true => Ok(()),
            false => {
                Err(format!("check failed: `varve fsck {}` finds problems", self.path.display())
                    .into())
            }
        }
    }
}

/// The first arguments of `varve` for a mount.
fn mount_options(spec: &Spec) -> Vec<String> {
    let transport = |option: &str| match option {
        "auto" | "dev" | "uring" => format!("transport={option}"),
        other => other.to_owned(),
    };
    let options: Vec<String> = split(spec).1.into_iter().map(transport).collect();
    let mut args = vec!["mount".to_owned(), "-f".to_owned()];
    if !options.is_empty() {
        args.extend(["-o".to_owned(), options.join(",")]);
    }
    args
}

/// The options of `spec` that are for `varve format`, and the others.
fn split(spec: &Spec) -> (Vec<&str>, Vec<&str>) {
    let is_of_format = |option: &&str| {
        option.split_once('=').is_some_and(|(name, _)| FORMAT_OPTIONS.contains(&name))
    };
    spec.options.iter().map(String::as_str).partition(is_of_format)
}

/// Formats a store in `below` with those options that are for that; returns its path.
fn format(spec: &Spec, ground: &Ground, below: &Path) -> Result<PathBuf, Failure> {
    let path = below.join("store");
    let options = split(spec).0;
    if options.is_empty() {
        varve::store::format(&path, &FormatOptions::default())?;
    } else {
        // What these options mean only the command line knows.
        let options = options.iter().map(|option| format!("--{option}"));
        Step::new(&ground.varve).arg("format").args(options).arg(&path).quiet()?;
    }
    Ok(path)
}
