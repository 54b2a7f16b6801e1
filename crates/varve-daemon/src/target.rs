//! The store that a path means: the store itself, or the one that is mounted there.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::Uid;
use varve::{Error, Result, store};
use varve_env::Env;
use varve_env::os::OsEnv;
use varve_fs::ViewName;
use varve_fs::superblock::SUPERBLOCK_NAME;
use varve_fuse::MountPoint;

use crate::holder::{is_served, seen_mount};
use crate::mount_source::store_and_view;
use crate::mount_table::{find_mount, mount_of_opened, open, within_mount};
use crate::server_address::{is_server, state_dir};
use crate::socket::{check_listener, unreached};

/// The store to which a request goes.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) store: PathBuf,
    /// The user that serves the mount by which the store was named: no other user's process may answer.
    served_by: Option<Uid>,
    /// It is the mount of a server, and `store` is where its daemon listens.
    is_of_server: bool,
}

impl Target {
    /// The store in the directory `store`, whichever process has it open.
    pub(crate) fn of_store(store: &Path) -> Target {
        Target { store: store.to_path_buf(), served_by: None, is_of_server: false }
    }

    /// The store at `path`, or the one that is mounted there.
    pub(crate) fn at(path: &Path) -> Result<Target> {
        match meaning_of(path)? {
            PathMeaning::Store => Ok(Target::of_store(path)),
            PathMeaning::Mount(mount) => Target::on(path, &mount),
        }
    }

    /// The store that is mounted as `mount`, on which `path` lies.
    pub(crate) fn on(path: &Path, mount: &MountPoint) -> Result<Target> {
        match target_on(mount)? {
            (asked, None) => Ok(asked),
            (_, Some(_)) => {
                let text = format!("{} lies in a snapshot or a transaction", path.display());
                Err(Error::failed(text).hint("name a directory of the mount itself"))
            }
        }
    }

    /// Whether a daemon answers requests. If not, the store can be opened. Waits for a daemon that closes it.
    pub(crate) fn is_served(&self) -> Result<bool> {
        if self.is_of_server { Ok(true) } else { is_served(&self.store) }
    }

    /// Fails on the mount of a server, whose daemon has no dictionaries.
    pub(crate) fn require_dictionaries(&self, path: &Path) -> Result<()> {
        match self.is_of_server {
            false => Ok(()),
            true => {
                let text = format!("{} lies on the mount of a server", path.display());
                Err(Error::failed(text)
                    .hint("dictionaries are used on the machine that has the store"))
            }
        }
    }

    /// Checks that the process behind the connection may answer for the store. `otherwise` makes an error of a failed connection.
    pub(crate) fn answered_by(
        &self,
        reached: io::Result<UnixStream>,
        otherwise: impl FnOnce(io::Error) -> Error,
    ) -> Result<UnixStream> {
        let daemon = reached.map_err(|error| unreached(&self.store, error, otherwise))?;
        if let Some(user) = self.served_by {
            check_listener(&daemon, &self.store, user)?;
        }
        Ok(daemon)
    }
}

/// What a path means.
pub(crate) enum PathMeaning {
    Store,
    Mount(MountPoint),
}

/// Whether `path` means a store or a mount. A user who may write to a mount can make something there look like a store, so the mount
/// point always means the mount.
pub(crate) fn meaning_of(path: &Path) -> Result<PathMeaning> {
    match (find_mount(path)?, store::is_store(path)) {
        (Some(mount), true) if path.canonicalize().ok().as_ref() != Some(&mount.dir) => {
            let (path, dir) = (path.display(), mount.dir.display());
            let text = format!("{path} is a store, and lies on a mount of another store");
            Err(Error::failed(text).hint(format!(
                "name {dir} if you mean that mount; if you mean the store, mount it and name its mount point"
            )))
        }
        (Some(mount), _) => Ok(PathMeaning::Mount(mount)),
        (None, true) => Ok(PathMeaning::Store),
        (None, false) => Err(unseen(path, neither_store_nor_mount(path))),
    }
}

/// The store that `path` means, and the view in whose mount `path` lies.
pub(crate) fn target_and_view(path: &Path) -> Result<(Target, Option<ViewName>)> {
    match meaning_of(path)? {
        PathMeaning::Store => Ok((Target::of_store(path), None)),
        PathMeaning::Mount(mount) => target_on(&mount),
    }
}

fn target_on(mount: &MountPoint) -> Result<(Target, Option<ViewName>)> {
    match store_and_view(&mount.source) {
        (server, view) if is_server(server.as_os_str()) => {
            // A view is mounted within the mount whose daemon listens.
            let within = view.as_ref().and_then(|view| without(&mount.dir, &view.path()));
            let store = state_dir(&server, within.as_deref().unwrap_or(&mount.dir))?;
            let served_by = Some(Uid::from_raw(mount.user));
            Ok((Target { store, served_by, is_of_server: true }, view))
        }
        (store, None) if !store::is_store(&store) => {
            let text = format!("there is no store at {} any more", store.display());
            let error = Error::failed(text)
                .hint("move the store back to that path: it was moved while it is mounted");
            Err(unseen(&store, error))
        }
        (store, view) => {
            let served_by = Some(Uid::from_raw(mount.user));
            Ok((Target { store, served_by, is_of_server: false }, view))
        }
    }
}

/// `path` without `end`.
fn without(path: &Path, end: &Path) -> Option<PathBuf> {
    let is_end = path.ends_with(end);
    is_end.then(|| path.ancestors().nth(end.components().count()))?.map(Path::to_path_buf)
}

/// The error for a `path` that is neither a store nor on a mount.
fn neither_store_nor_mount(path: &Path) -> Error {
    within_mount(path).unwrap_or_else(|| {
        Error::failed(format!("{} is neither a store nor on a Varve mount", path.display()))
            .hint("`varve format` makes a store, `findmnt -t fuse.varve` lists the mounts")
    })
}

/// Opens `path` for examination. Fails if it is not on a Varve mount.
pub(crate) fn open_on_mount(path: &Path, flags: OFlags) -> Result<(OwnedFd, MountPoint)> {
    let opened = open(path, flags).map_err(|error| Error::io("find", path, &error))?;
    let mount = mount_of_opened(path, &opened)?.ok_or_else(|| not_on_mount(path))?;
    Ok((opened, mount))
}

/// The error for a `path` that is not on a Varve mount.
pub(crate) fn not_on_mount(path: &Path) -> Error {
    if store::is_store(path) {
        return is_store(path);
    }
    within_mount(path).unwrap_or_else(|| {
        Error::failed(format!("{} is not on a Varve mount", path.display()))
            .hint("`findmnt -t fuse.varve` lists the mounts")
    })
}

/// The error for a store in the place of a mount; the hint names where it is mounted.
fn is_store(path: &Path) -> Error {
    let mounted = store::holder(path).ok().flatten();
    let mounted = mounted.and_then(|holder| seen_mount(&holder, path).ok().flatten());
    let path = path.display();
    Error::failed(format!("{path} is a store, and not on a Varve mount")).hint(match mounted {
        Some(MountPoint { dir, .. }) => {
            format!("name {}, where it is mounted, or a directory below that", dir.display())
        }
        None => format!("`varve mount {path} DIR`, and name DIR"),
    })
}

/// The error for a `path` where no store is found: missing permission if that is the cause, else `otherwise`.
fn unseen(path: &Path, otherwise: Error) -> Error {
    match OsEnv::new().stat(&path.join(SUPERBLOCK_NAME)) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Error::io("look for a store in", path, &error)
        }
        _ => otherwise,
    }
}
