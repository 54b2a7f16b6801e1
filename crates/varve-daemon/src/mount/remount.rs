//! Other flags for a mount that is in use.

use std::path::Path;

use varve::{Error, Result};
use varve_fs::ViewKind;
use varve_fuse::{MountOptions, Transport, find_mounts};

use super::options::Choices;
use super::settings::{mount_again, mount_options};
use crate::error;
use crate::mount_source::views_of;
use crate::status::{ask_daemon, ask_session};

/// Sets the flags among `choices` on the mount on `dir` and on the mounts of snapshots and transactions within it, as
/// `mount -o remount` asks. The daemon keeps the other settings with which it began.
pub fn remount(dir: &Path, choices: &Choices) -> Result<()> {
    let look = || {
        find_mounts().map_err(|error| Error::io("read", Path::new("/proc/self/mountinfo"), &error))
    };
    let mounts = look()?;
    let resolved = dir.canonicalize().map_err(|error| Error::io("find", dir, &error))?;
    let Some(mount) = mounts.iter().rfind(|mount| mount.dir == resolved) else {
        return Err(Error::failed(format!("no Varve is mounted on {}", dir.display()))
            .hint("`findmnt -t fuse.varve` lists what is mounted"));
    };
    let options = mount_options(Path::new(&mount.source), choices);
    let began_read_only = || ask_daemon(&mount.dir).is_ok_and(|told| told["read_only"] == true);
    if !options.read_only && began_read_only() {
        let text =
            format!("{} was mounted with `ro`, and its daemon changes nothing", dir.display());
        return Err(Error::failed(text).hint(mount_again(&mount.dir)));
    }
    varve_fuse::remount(mount, &options).map_err(error::not_mounted)?;
    // Views that are mounted from now on get these flags by themselves; those that are mounted have the old ones.
    for (name, view) in views_of(mount, &look()?) {
        let read_only = options.read_only || name.kind == ViewKind::Snapshot;
        let options = MountOptions { read_only, ..options.clone() };
        let Err(error) = varve_fuse::remount(view, &options) else { continue };
        // A view that nobody uses may have gone meanwhile. It gets the new flags when it comes back.
        if look()?.iter().any(|mount| mount.id == view.id) {
            let text = format!(
                "{} is remounted, but a snapshot or transaction within it is not: {error}",
                dir.display()
            );
            let hint = "end the programs that write there, and remount again";
            return Err(Error::failed(text).hint(hint));
        }
    }
    Ok(())
}

/// The settings with which the daemon of a mount began, as far as it reports them.
#[derive(Clone, Copy, Debug, Default)]
pub struct DaemonSettings {
    transport: Option<Transport>,
    threads: Option<u64>,
    memory_bytes: Option<u64>,
}

impl DaemonSettings {
    /// The settings of the daemon that serves the mount on `dir`.
    pub fn of(dir: &Path) -> DaemonSettings {
        let (session, daemon) = (ask_session(dir), ask_daemon(dir));
        let told = session.as_ref().ok().and_then(|told| told["transport"].as_str());
        let known = [Transport::Dev, Transport::Uring];
        DaemonSettings {
            transport: known.into_iter().find(|known| Some(&*known.to_string()) == told),
            threads: session.as_ref().ok().and_then(|told| told["threads"].as_u64()),
            memory_bytes: daemon.ok().and_then(|told| told["memory_budget_bytes"].as_u64()),
        }
    }

    /// Whether one option asks for a setting that the daemon has already.
    pub fn agrees_with(&self, option: &Choices) -> bool {
        let threads = option.threads.map(|threads| threads.get() as u64);
        let same = |asked: Option<u64>, is: Option<u64>| asked.is_none() || asked == is;
        let asks = option.transport.is_some() || threads.is_some() || option.memory_bytes.is_some();
        asks && (option.transport.is_none() || option.transport == self.transport)
            && same(threads, self.threads)
            && same(option.memory_bytes, self.memory_bytes)
    }
}
