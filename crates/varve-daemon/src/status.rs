//! The status of a store and of its mount.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::Serialize;
use serde_json::{Value, json};
use varve::store::{self, Holder, machine_to_read};
use varve::{Error, Result, anchor};
use varve_engine::paths::WritePaths;
use varve_env::Env;
use varve_fs::Superblock;
use varve_fs::superblock::engine_dir;
use varve_fuse::MountPoint;
use varve_types::limits::XATTR_VALUE_BYTES_MAX;

use crate::holder::{self, seen_mount};
use crate::mount_source::store_and_view;
use crate::mount_table::find_mount;
use crate::served_status;
use crate::server_address::is_server;
use crate::target::{PathMeaning, meaning_of};

/// The extended attribute of a mount's root that gives the daemon's own status.
const STATUS_XATTR: &str = "user.varve.status";

/// The extended attribute of a mount's root that gives the settings on which daemon and kernel agreed.
const SESSION_XATTR: &str = "user.varve.session";

/// The status of a store.
#[derive(Debug, Serialize)]
pub struct Status {
    /// The store.
    #[serde(with = "varve_engine::paths")]
    pub store: PathBuf,
    /// The address of a store on shared storage, whose anchor `store` is.
    pub address: Option<String>,
    /// The superblock; serialized without its secret.
    #[serde(serialize_with = "without_secret")]
    pub superblock: Superblock,
    /// The process that has the store open.
    pub holder: Option<Holder>,
    /// Where the store is mounted, if this process sees that.
    #[serde(with = "varve_engine::paths")]
    pub mount_point: Option<PathBuf>,
    /// Whether that mount is read-only.
    pub read_only: Option<bool>,
    /// Bytes that the engine's files take.
    pub engine_bytes: u64,
    /// The settings on which daemon and kernel agreed, such as the transport.
    pub session: Option<Value>,
    /// The daemon's own status: counters, sizes, cache hits.
    pub daemon: Option<Value>,
    /// What the server of the store says of itself, if one has it.
    pub server: Option<Value>,
    /// Why the daemon gives no status, although the store is mounted.
    pub daemon_error: Option<String>,
}

fn without_secret<S: serde::Serializer>(
    superblock: &Superblock,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    superblock.public().serialize(serializer)
}

/// What the server with the address `path` says of itself; `None` if `path` is no address. `token` is the file with the secret that the
/// server asks for.
pub fn of_server(path: &Path, token: Option<&Path>) -> Result<Option<Value>> {
    if is_server(path.as_os_str()) || token.is_some() {
        return served_status::ask(path, token);
    }
    Ok(None)
}

/// The status of the mount of a server at `path` or above it; `None` if there is none.
pub fn of_server_mount(path: &Path) -> Result<Option<Value>> {
    let Some(mount) = find_mount(path)? else { return Ok(None) };
    if !is_server(&mount.source) {
        return Ok(None);
    }
    Ok(Some(json!({
        "address": Path::new(&mount.source).written(),
        "mount_point": mount.dir.written(),
        "read_only": mount.read_only,
        "session": ask_session(&mount.dir)?,
        "file_system": ask_daemon(&mount.dir)?,
    })))
}

/// The status of a store, or of the store that is mounted at `path` or above it.
pub fn status(path: &Path) -> Result<Status> {
    match meaning_of(path)? {
        PathMeaning::Store => of_store(path, None),
        PathMeaning::Mount(mount) => match store_and_view(&mount.source) {
            (store, None) => of_store(&store, Some(&mount)),
            (store, Some(_)) => of_store(&store, None),
        },
    }
}

fn of_store(dir: &Path, mount: Option<&MountPoint>) -> Result<Status> {
    let superblock = holder::superblock(dir)?;
    let holder = store::holder(dir)?;
    let found = match (mount, &holder) {
        (Some(mount), _) => Some(mount.clone()),
        (None, Some(holder)) => its_mount(holder, dir)?,
        (None, None) => None,
    };
    let answer = found.as_ref().map(|mount| ask_daemon(&mount.dir));
    let session = found.as_ref().and_then(|mount| ask_session(&mount.dir).ok());
    // The status of a mount needs its daemon's answer; that of a store does not.
    let (daemon, mut daemon_error) = match answer {
        Some(Ok(answer)) => (Some(answer), None),
        Some(Err(error)) if mount.is_some() => return Err(error),
        Some(Err(error)) => (None, Some(error.message().to_owned())),
        None => (None, None),
    };
    let server = match (&found, &holder) {
        (None, Some(_)) => served_status::ask(dir, None).unwrap_or_else(|error| {
            daemon_error = Some(error.message().to_owned());
            None
        }),
        _ => None,
    };
    Ok(Status {
        server,
        store: dir.to_path_buf(),
        address: anchor::settings(dir)?.map(|settings| settings.uri),
        superblock,
        holder,
        mount_point: found.as_ref().map(|mount| mount.dir.clone()),
        read_only: found.as_ref().map(|mount| mount.read_only),
        engine_bytes: match anchor::is_anchor(dir) {
            true => bytes_in(&*machine_to_read(dir)?, &engine_dir(dir)),
            false => bytes_below(&engine_dir(dir)),
        },
        session,
        daemon,
        daemon_error,
    })
}

/// The mount of `store` by its holder, unless another covers it.
fn its_mount(holder: &Holder, store: &Path) -> Result<Option<MountPoint>> {
    let seen = seen_mount(holder, store)
        .map_err(|error| Error::io("read", Path::new("/proc/self/mountinfo"), &error))?;
    let Some(seen) = seen else { return Ok(None) };
    Ok(find_mount(&seen.dir)?.filter(|found| found.id == seen.id))
}

/// The daemon's own status, read over its mount.
pub fn ask_daemon(mount_point: &Path) -> Result<Value> {
    ask(mount_point, STATUS_XATTR)
}

/// The settings on which daemon and kernel agreed, read over the mount.
pub(crate) fn ask_session(mount_point: &Path) -> Result<Value> {
    ask(mount_point, SESSION_XATTR)
}

pub(crate) fn ask(mount_point: &Path, attribute: &str) -> Result<Value> {
    let mut buffer = vec![0_u8; XATTR_VALUE_BYTES_MAX];
    let length = rustix::fs::getxattr(mount_point, attribute, &mut buffer[..])
        .map_err(|error| no_answer(mount_point, error))?;
    serde_json::from_slice(&buffer[..length])
        .map_err(|error| Error::not_understood("the daemon's status", error))
}

/// The error for a daemon of the mount on `dir` that gives no answer.
fn no_answer(dir: &Path, error: Errno) -> Error {
    let dir = dir.display();
    match error {
        Errno::TOOBIG | Errno::RANGE => Error::failed(format!(
            "the mount on {dir} has a longer answer than the kernel passes on"
        ))
        .hint(format!("`varve upgrade {dir}` if its daemon is of an earlier version")),
        error => Error::failed(format!("the mount on {dir} does not answer: {error}"))
            .hint(format!("if its daemon has died, `varve umount {dir}` and mount again")),
    }
}

/// Bytes allocated to the files in `dir`, as the engine sees them.
fn bytes_in(machine: &dyn Env, dir: &Path) -> u64 {
    let names = machine.list(dir).unwrap_or_default().into_iter().map(|item| dir.join(item.name));
    names.filter_map(|path| machine.stat(&path).ok()).map(|stat| stat.allocated).sum()
}

/// Bytes allocated to the files below `dir`. Files that vanish meanwhile do not count.
pub fn bytes_below(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    let mut pending = vec![dir.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(stat) if stat.is_dir() => pending.push(entry.path()),
                Ok(stat) => bytes += stat.blocks() * 512,
                Err(_) => {}
            }
        }
    }
    bytes
}
