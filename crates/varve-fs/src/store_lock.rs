//! The file `LOCK` of a store: the process that has the store open locks it, and notes its id and mount point in it.
//!
//! In: the directory of a store. Out: its lock, or what the note says. Never: waits for the lock.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use varve_engine::paths::WritePaths;
use varve_engine::{StoreError, StoreResult};
use varve_env::{Env, FileLock, OpenMode, is_no_space};

use crate::superblock::lock_path;

/// Takes the lock of the store in `dir`, or says which process holds it.
pub(crate) fn take_lock(
    env: &dyn Env,
    dir: &Path,
    mount_point: Option<&Path>,
) -> StoreResult<Box<dyn FileLock>> {
    let path = lock_path(dir);
    let io = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::ReadOnlyFilesystem => StoreError::Invalid(format!(
            "{} is on a read-only file system; a mount must be able to write there, also with -o ro, for \
             its log: make it writable or mount a copy",
            dir.display()
        )),
        _ => StoreError::Io { action: "lock", path: path.clone(), source },
    };
    match env.lock(&path).map_err(io)? {
        Some(lock) => {
            match write_note(lock.as_ref(), mount_point) {
                // Opening the store finds room for the note.
                Err(error) if is_no_space(&error) => {}
                written => written.map_err(io)?,
            }
            Ok(lock)
        }
        None => {
            let holder = holder(env, dir).unwrap_or_else(|| "it does not say which".into());
            Err(StoreError::Locked { path: dir.to_path_buf(), holder })
        }
    }
}

/// Notes in the file of a lock which process holds it.
pub(crate) fn write_note(lock: &dyn FileLock, mount_point: Option<&Path>) -> std::io::Result<()> {
    let note =
        serde_json::json!({ "pid": std::process::id(), "mount_point": mount_point.written() });
    lock.write_note(note.to_string().as_bytes())
}

/// The most bytes of a lock's note that are read; the longest path, which may have four for each of its own, fits.
const NOTE_BYTES_MAX: usize = 32 << 10;

/// What the process that has the store in `dir` open says of itself: a JSON object with `pid` and
/// `mount_point`. An old note stays after the store is closed.
pub fn holder(env: &dyn Env, dir: &Path) -> Option<String> {
    let file = env.open(&lock_path(dir), OpenMode::Read).ok()?;
    let mut note = vec![0; NOTE_BYTES_MAX];
    let len = file.read_at(&mut note, 0).ok()?;
    note.truncate(len);
    String::from_utf8(note).ok().filter(|note| !note.is_empty())
}

/// A lock that is held until all of its owners have dropped it.
#[derive(Debug)]
pub(crate) struct SharedLock(Arc<Box<dyn FileLock>>);

impl SharedLock {
    /// Shares `lock`.
    pub(crate) fn of(lock: &Arc<Box<dyn FileLock>>) -> SharedLock {
        SharedLock(Arc::clone(lock))
    }
}

impl FileLock for SharedLock {
    fn write_note(&self, note: &[u8]) -> std::io::Result<()> {
        self.0.write_note(note)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }
}
