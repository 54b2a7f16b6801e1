//! One test for each point of docs/semantics.md, named as the page names it.
//!
//! Each runs twice: on a mount, and on a plain directory of the machine's own file system, which shows
//! that the expectation is the platform's and not ours.

mod acl;
mod alone;
mod attributes;
mod clones;
mod conflicts;
mod copy;
mod files;
mod flags;
mod followed;
mod full_disk;
mod handles;
mod idmaps;
mod limits;
mod locks;
mod misuse;
mod names;
mod past;
mod programs;
mod rights;
mod rollback;
mod runs;
mod sent;
mod serial;
mod trees;
mod txn_attributes;
mod unions;
mod views;
mod watching;
mod ways;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::harness::{self, Mount};

/// A change of an open file, and what it is called.
type NamedChange<'a> = (&'a str, &'a (dyn Fn(&File) + Sync));

/// Where a test runs.
pub(crate) enum Place {
    /// On a Varve mount.
    Mount(Mount),
    /// In a directory of the machine's own file system.
    Plain(tempfile::TempDir),
}

impl Place {
    pub(crate) fn dir(&self) -> PathBuf {
        match self {
            Place::Mount(mount) => mount.path(),
            Place::Plain(dir) => dir.path().to_path_buf(),
        }
    }

    /// Unmounts and mounts again, where there is something to unmount.
    fn remount(&self) {
        if let Place::Mount(mount) = self {
            mount.remount();
        }
    }

    /// Has another program take over, where there is a daemon and the transport allows it.
    fn upgrade(&self) {
        if let Place::Mount(mount) = self {
            mount.try_upgrade();
        }
    }

    /// Kills the daemon and waits until the mount is dead.
    fn kill_daemon(&self) {
        if let Place::Mount(mount) = self {
            mount.kill_daemon();
        }
    }

    /// Mounts the store where its dead mount still is.
    fn mount_again(&self) {
        if let Place::Mount(mount) = self {
            mount.mount();
        }
    }

    fn is_varve(&self) -> bool {
        matches!(self, Place::Mount(_))
    }
}

/// Declares each test once and runs it in both places.
macro_rules! semantics {
    ($($name:ident),* $(,)?) => {
        mod on_mount {
            $(#[test]
            fn $name() {
                if let Some(mount) = crate::harness::Mount::new() {
                    super::$name(&super::Place::Mount(mount));
                }
            })*
        }
        mod on_plain_directory {
            $(#[test]
            fn $name() {
                if crate::harness::can_mount() {
                    super::$name(&super::Place::Plain(tempfile::tempdir().unwrap()));
                }
            })*
        }
    };
}
pub(crate) use semantics;

/// Asserts that `result` failed with `errno`.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: rustix::io::Result<T>, errno: Errno) {
    assert_eq!(result.err(), Some(errno));
}

/// Asserts that a call of the standard library failed with `errno`.
#[track_caller]
fn refused_io<T: std::fmt::Debug>(result: io::Result<T>, errno: Errno) {
    assert_eq!(result.err().and_then(|error| error.raw_os_error()), Some(errno.raw_os_error()));
}

/// Does `work` as the user `uid` in `groups`, the first of them the main one.
fn as_user<T: Send>(uid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    harness::as_user(uid, groups[0], groups, work)
}

/// The permission bits of a file.
fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Sets them.
fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// The sorted names in a directory.
fn names(dir: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

/// `len` bytes that differ from place to place and from seed to seed.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    varve_testkit::rng::Rng::new(seed).bytes(len)
}

/// The last modification and change, in nanoseconds.
fn changed(path: &Path) -> (i128, i128) {
    let meta = std::fs::symlink_metadata(path).unwrap();
    let nanos = |secs: i64, nanos: i64| i128::from(secs) * 1_000_000_000 + i128::from(nanos);
    (nanos(meta.mtime(), meta.mtime_nsec()), nanos(meta.ctime(), meta.ctime_nsec()))
}

/// Waits until a new change is sure to carry a later time, on file systems with coarse clocks too.
fn tick() {
    std::thread::sleep(std::time::Duration::from_millis(20));
}

/// Everything a file holds, read in one go at offset 0.
fn content(file: &File) -> Vec<u8> {
    let len = file.metadata().unwrap().len() as usize;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}
