//! The machine that a store is opened on: this one, or this one with the files of a store on shared storage.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use varve_env::os::OsEnv;
use varve_env::{Env, ShadowEnv};
use varve_storage::{
    CacheOptions, Collected, Location, Owner, Remote, RemoteEnv, Retry, StorageCounts, StoreOptions,
};

use crate::anchor::{self, StorageSettings};
use crate::{Error, Result};

/// The machine of one store.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    local: Arc<OsEnv>,
    remote: Option<Arc<RemoteEnv>>,
    /// What opening a store writes, if this process does not own it.
    shadow: Option<Arc<ShadowEnv>>,
}

impl Machine {
    /// The machine of the store in `dir`, to read. Whoever writes to the store is not disturbed.
    pub(crate) fn to_read(dir: &Path) -> Result<Machine> {
        let machine =
            Machine::open(OsEnv::new(), dir, |env, remote| RemoteEnv::read(env, dir, remote))?;
        let shadow = machine.remote.clone().map(|remote| ShadowEnv::new(remote));
        Ok(Machine { shadow, ..machine })
    }

    /// The machine of the store in `dir`, to change. A store on shared storage has one owner, which this process becomes; with
    /// `take_over` also if another process is the owner. `local` is the machine on which `dir` is locked.
    pub(crate) fn to_write(local: Arc<OsEnv>, dir: &Path, take_over: bool) -> Result<Machine> {
        let owner = this_process(&local);
        let boot_id = owner.boot_id;
        Machine::open(local, dir, |env, mut remote| {
            remote.options.take_over = take_over;
            RemoteEnv::own(env, dir, remote, owner, |owner| has_ended(owner, boot_id))
        })
    }

    fn open(
        local: Arc<OsEnv>,
        dir: &Path,
        open: impl FnOnce(Arc<dyn Env>, Remote) -> io::Result<Arc<RemoteEnv>>,
    ) -> Result<Machine> {
        let remote = match anchor::settings(dir)? {
            None => None,
            Some(settings) => {
                let machine: Arc<dyn Env> = Arc::<OsEnv>::clone(&local);
                let remote = remote(&machine, dir, &settings)?;
                Some(open(machine, remote).map_err(|error| unopened(&settings, &error))?)
            }
        };
        Ok(Machine { local, remote, shadow: None })
    }

    /// What the store is opened on.
    pub(crate) fn env(&self) -> Arc<dyn Env> {
        match (&self.shadow, &self.remote) {
            (Some(shadow), _) => Arc::<ShadowEnv>::clone(shadow),
            (None, Some(remote)) => Arc::<RemoteEnv>::clone(remote),
            (None, None) => Arc::<OsEnv>::clone(&self.local),
        }
    }

    /// The machine itself, for what lies beside the files of a store.
    pub(crate) fn local(&self) -> &OsEnv {
        &self.local
    }

    /// The storage of a store that this process reads and others change; `None` for a local store and for the owner.
    pub(crate) fn followed(&self) -> Option<Arc<RemoteEnv>> {
        self.remote.clone().filter(|_| self.shadow.is_some())
    }

    /// The machine itself, without the files of a store.
    pub(crate) fn alone(&self) -> Machine {
        Machine { local: Arc::clone(&self.local), remote: None, shadow: None }
    }

    /// What was asked of shared storage; `None` for a local store.
    pub(crate) fn storage_counts(&self) -> Option<StorageCounts> {
        self.remote.as_ref().map(|remote| remote.counts())
    }

    /// Makes everything durable and gives the store up.
    pub(crate) fn close(&self) -> Result<()> {
        let Some(remote) = &self.remote else { return Ok(()) };
        remote.close().map_err(|error| {
            Error::failed(format!("cannot close {}: {error}", remote.address()))
                .hint("what was synced before is there; the next mount finds it")
        })
    }
}

/// Makes an empty store on shared storage, if `dir` is an anchor.
pub(crate) fn format(dir: &Path) -> Result<()> {
    let Some(settings) = anchor::settings(dir)? else { return Ok(()) };
    let machine: Arc<dyn Env> = OsEnv::new();
    varve_storage::format(&machine, &remote(&machine, dir, &settings)?).map_err(|error| {
        let error = Error::failed(format!("cannot format {}: {error}", settings.uri));
        error.hint("choose another prefix; nothing there was changed")
    })
}

/// The objects that nobody needs, if `dir` is an anchor. With `remove` they are garbage from now on.
pub(crate) fn collect(dir: &Path, remove: bool) -> Result<Option<Collected>> {
    let machine = match remove {
        true => Machine::to_write(OsEnv::new(), dir, false)?,
        false => Machine::to_read(dir)?,
    };
    let Some(remote) = &machine.remote else { return Ok(None) };
    let collected = remote.collect().map_err(|error| {
        Error::failed(format!("cannot look for what nobody needs: {error}"))
            .hint("`varve fsck` finds out what is damaged")
    });
    machine.close()?;
    collected.map(Some)
}

fn remote(machine: &Arc<dyn Env>, dir: &Path, settings: &StorageSettings) -> Result<Remote> {
    let location = Location::parse(&settings.uri)
        .map_err(|error| Error::failed(format!("{}: {error}", settings.uri)))?;
    let objects =
        location.objects(machine, &settings.options).map_err(|error| unopened(settings, &error))?;
    let mut options = StoreOptions { purpose: purpose(), ..StoreOptions::default() };
    if let Some(seconds) = settings.lease_seconds {
        options.lease = Duration::from_secs(seconds);
    }
    let cache = CacheOptions { dir: anchor::cache_dir(dir), bytes_max: settings.cache_bytes };
    Ok(Remote {
        objects,
        options,
        retry: Retry::default(),
        cache: (settings.cache_bytes > 0).then_some(cache),
    })
}

fn unopened(settings: &StorageSettings, error: &io::Error) -> Error {
    let text = format!("cannot open {}: {error}", settings.uri);
    let hint = match error.kind() {
        io::ErrorKind::ResourceBusy => {
            "unmount it there; `varve mount --take-over` fences that process off, whose programs then get EIO"
        }
        io::ErrorKind::NotFound => "`varve format` makes a store there",
        io::ErrorKind::PermissionDenied => {
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, as for other tools"
        }
        _ => "check the address, --endpoint and the network",
    };
    Error::failed(text).hint(hint)
}

/// What this process is, for whoever finds the store in use.
fn purpose() -> String {
    let mut arguments = std::env::args_os().skip(1).map(|part| part.to_string_lossy().into_owned());
    format!("varve {}", arguments.next().unwrap_or_default()).trim_end().to_owned()
}

fn this_process(machine: &OsEnv) -> Owner {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Owner {
        host: host.trim().to_owned(),
        boot_id: machine.boot_id(),
        process: std::process::id(),
        purpose: purpose(),
        ..Owner::default()
    }
}

/// Whether an owner was a process of this boot of this machine, and is gone.
fn has_ended(owner: &Owner, boot_id: u128) -> bool {
    if owner.boot_id != boot_id {
        return false;
    }
    match fs::read_to_string(format!("/proc/{}/stat", owner.process)) {
        // A zombie has ended, too: nobody has asked for its status yet (proc_pid_stat(5)).
        Ok(stat) => stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X'])),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}
