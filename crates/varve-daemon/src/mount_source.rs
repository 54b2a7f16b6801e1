//! What the mount table shows as the source of a mount: the store, and the snapshot or transaction that is mounted.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use varve::store;
use varve_fs::ViewName;
use varve_fuse::{MountPoint, UnmountError, UnmountMode, find_mounts, unmount_that};

/// The source of a view's mount in the mount table.
pub(crate) fn source_of(main: &OsStr, name: &ViewName) -> OsString {
    [main, OsStr::new("#"), name.path().as_os_str()].into_iter().collect()
}

/// The store of a mount with this source, and the view of it, if it is the mount of one ([`source_of`]).
pub(crate) fn store_and_view(source: &OsStr) -> (PathBuf, Option<ViewName>) {
    let bytes = source.as_bytes();
    let mut marks = bytes.iter().enumerate().rev().filter(|(_, byte)| **byte == b'#');
    // The names of stores and of snapshots may contain the mark.
    let found = marks.find_map(|(mark, _)| {
        let view = ViewName::at(Path::new(OsStr::from_bytes(&bytes[mark + 1..])))?;
        Some((PathBuf::from(OsStr::from_bytes(&bytes[..mark])), Some(view)))
    });
    found.filter(|_| !store::is_store(Path::new(source))).unwrap_or_else(|| (source.into(), None))
}

/// The views that are mounted within `main`, with their mounts among `mounts`.
pub(crate) fn views_of<'a>(
    main: &'a MountPoint,
    mounts: &'a [MountPoint],
) -> impl Iterator<Item = (ViewName, &'a MountPoint)> {
    mounts.iter().filter_map(|mount| {
        let name = ViewName::at(mount.dir.strip_prefix(&main.dir).ok()?)?;
        (mount.source == source_of(&main.source, &name)).then_some((name, mount))
    })
}

/// Unmounts all views within the mount on `dir`.
pub(crate) fn unmount_below(dir: &Path, mode: UnmountMode) -> Result<(), UnmountError> {
    let views = dir.join(".varve");
    let mounts = find_mounts().unwrap_or_default();
    for mount in mounts.iter().rev().filter(|mount| mount.dir.starts_with(&views)) {
        match unmount_that(mount.id, &mount.dir, mode) {
            Ok(()) | Err(UnmountError::NotMounted(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use varve_fs::{FormatOptions, ViewKind};

    use super::*;

    #[test]
    fn the_source_of_a_mount_names_store_and_view() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().as_os_str().as_bytes();
        for name in [&b"plain"[..], b"not \xff UTF-8", b"with#mark"] {
            let store = [base, b"/", name].concat();
            let path = PathBuf::from(OsStr::from_bytes(&store));
            let at = |place: &str| {
                let source = [&store[..], place.as_bytes()].concat();
                store_and_view(OsStr::from_bytes(&source))
            };
            assert_eq!(at(""), (path.clone(), None));
            assert_eq!(at("#.varve/txn/17"), (path.clone(), Some(ViewName::transaction("17"))));
            for snapshot in ["before", "#1", "a#b", "\u{fc}"] {
                let name = ViewName { kind: ViewKind::Snapshot, name: snapshot.to_owned() };
                let place = format!("#.varve/snapshots/{snapshot}");
                assert_eq!(at(&place), (path.clone(), Some(name)));
            }
            assert!(at("#.varve/other/x").1.is_none());
        }
        let path = dir.path().join("s#.varve/txn/17");
        std::fs::create_dir_all(&path).unwrap();
        store::format(&path, &FormatOptions::default()).unwrap();
        assert_eq!(store_and_view(path.as_os_str()), (path.clone(), None));
    }
}
