//! The store that a path names: itself, or by a mount of it.

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

use crate::holder::seen_mount;
use crate::mount_source::store_and_view;
use crate::mount_table::{find_mount, mount_of_opened, open, within_mount};
use crate::socket::{check_listener, unreached};

/// A store of which something is asked.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) store: PathBuf,
    /// Who serves the mount by which it was named: nobody else is to answer.
    served_by: Option<Uid>,
}

impl Target {
    /// The one in the directory `store`, whoever has it open.
    pub(crate) fn of_store(store: &Path) -> Target {
        Target { store: store.to_path_buf(), served_by: None }
    }

    /// The one at `path`, or the one mounted there.
    pub(crate) fn at(path: &Path) -> Result<Target> {
        match meant(path)? {
            Meant::Store => Ok(Target::of_store(path)),
            Meant::Mount(mount) => Target::on(path, &mount),
        }
    }

    /// The one that is mounted as `mount`, on which `path` is.
    pub(crate) fn on(path: &Path, mount: &MountPoint) -> Result<Target> {
        match place_on(mount)? {
            (asked, None) => Ok(asked),
            (_, Some(_)) => {
                let text = format!("{} lies in a snapshot or a transaction", path.display());
                Err(Error::failed(text).hint("name a directory of the mount itself"))
            }
        }
    }

    /// The daemon that was reached in the store, if it may answer; what else keeps it from that becomes an error by `otherwise`.
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

/// What a path stands for.
pub(crate) enum Meant {
    Store,
    Mount(MountPoint),
}

/// Whether `path` means a store or a mount. Anybody who may write to a mount can have something there look like a store, so that where
/// it is mounted means the mount, whatever is in it.
pub(crate) fn meant(path: &Path) -> Result<Meant> {
    match (find_mount(path)?, store::is_store(path)) {
        (Some(mount), true) if path.canonicalize().ok().as_ref() != Some(&mount.dir) => {
            let (path, dir) = (path.display(), mount.dir.display());
            let text = format!("{path} is a store, and on a mount of another");
            Err(Error::failed(text).hint(format!(
                "name {dir} if that mount is meant; mount the store, and name where, if it is that"
            )))
        }
        (Some(mount), _) => Ok(Meant::Mount(mount)),
        (None, true) => Ok(Meant::Store),
        (None, false) => Err(unseen(path, neither_store_nor_mount(path))),
    }
}

/// The store at `path`, or the one mounted there, and the view of it whose mount that is.
pub(crate) fn place_of(path: &Path) -> Result<(Target, Option<ViewName>)> {
    match meant(path)? {
        Meant::Store => Ok((Target::of_store(path), None)),
        Meant::Mount(mount) => place_on(&mount),
    }
}

fn place_on(mount: &MountPoint) -> Result<(Target, Option<ViewName>)> {
    match store_and_view(&mount.source) {
        (store, None) if !store::is_store(&store) => {
            let text = format!("the store {} is not to be found", store.display());
            let error = Error::failed(text).hint("was it moved while it is mounted?");
            Err(unseen(&store, error))
        }
        (store, view) => Ok((Target { store, served_by: Some(Uid::from_raw(mount.user)) }, view)),
    }
}

/// That `path` is neither.
fn neither_store_nor_mount(path: &Path) -> Error {
    within_mount(path).unwrap_or_else(|| {
        Error::failed(format!("{} is neither a store nor on a Varve mount", path.display()))
            .hint("`varve format` makes a store, `findmnt -t fuse.varve` lists the mounts")
    })
}

/// Opens `path`, which must be on a Varve mount, to be looked at.
pub(crate) fn open_on_mount(path: &Path, flags: OFlags) -> Result<(OwnedFd, MountPoint)> {
    let opened = open(path, flags).map_err(|error| Error::io("find", path, &error))?;
    let mount = mount_of_opened(path, &opened)?.ok_or_else(|| not_on_mount(path))?;
    Ok((opened, mount))
}

/// That `path`, which is not on a Varve mount, is on none.
pub(crate) fn not_on_mount(path: &Path) -> Error {
    if store::is_store(path) {
        return is_store(path);
    }
    within_mount(path).unwrap_or_else(|| {
        Error::failed(format!("{} is not on a Varve mount", path.display()))
            .hint("`findmnt -t fuse.varve` lists the mounts")
    })
}

/// That a store was named, and where its files are.
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

/// Why there is no store to be seen at `path`: who may not look there is told so, else it is `otherwise`.
fn unseen(path: &Path, otherwise: Error) -> Error {
    match OsEnv::new().stat(&path.join(SUPERBLOCK_NAME)) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            Error::io("look for a store in", path, &error)
        }
        _ => otherwise,
    }
}
