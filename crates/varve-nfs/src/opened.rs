//! Keeps files open that clients read and write.
//!
//! NFS reads and writes by handles of files and has no open files. So a file stays open for [`IDLE_MAX`] after the
//! last call about it, and at most [`FILES_MAX`] files at once. Then it is closed, so that no other operation has to
//! wait for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use varve_types::InodeId;
use varve_vfs::{FsResult, Handle, OpenFlags, Vfs};

/// How long an unused file stays open.
const IDLE_MAX: Duration = Duration::from_secs(2);
/// The most files that are open at once.
const FILES_MAX: usize = 512;

/// An open file, closed when the last call that uses it has ended.
pub(crate) struct OpenFile {
    vfs: Arc<dyn Vfs>,
    ino: InodeId,
    pub(crate) handle: Handle,
    writes: bool,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        if let Err(error) = self.vfs.release(self.ino, self.handle) {
            log::error!("inode {}: {error}", self.ino);
        }
    }
}

struct InUse {
    file: Arc<OpenFile>,
    used: Instant,
}

/// The open files of one server.
#[derive(Default)]
pub(crate) struct Opened {
    files: Mutex<HashMap<InodeId, InUse>>,
}

impl Opened {
    /// Returns the file `ino`, open for reading, and also for writing if `write` is set.
    pub(crate) fn get(
        &self,
        vfs: &Arc<dyn Vfs>,
        ino: InodeId,
        writes: bool,
    ) -> FsResult<Arc<OpenFile>> {
        if let Some(known) = self.files.lock().get_mut(&ino)
            && (known.file.writes || !writes)
        {
            known.used = Instant::now();
            return Ok(Arc::clone(&known.file));
        }
        let flags = OpenFlags { read: true, write: writes, ..OpenFlags::default() };
        let handle = vfs.open(ino, flags)?.handle;
        Ok(self.keep(vfs, ino, handle, writes))
    }

    /// Keeps a file that a call has opened.
    pub(crate) fn keep(
        &self,
        vfs: &Arc<dyn Vfs>,
        ino: InodeId,
        handle: Handle,
        writes: bool,
    ) -> Arc<OpenFile> {
        let file = Arc::new(OpenFile { vfs: Arc::clone(vfs), ino, handle, writes });
        let mut files = self.files.lock();
        let in_use = InUse { file: Arc::clone(&file), used: Instant::now() };
        let mut closed = vec![files.insert(ino, in_use)];
        if files.len() > FILES_MAX {
            let oldest = files.iter().min_by_key(|(_, known)| known.used).map(|(ino, _)| *ino);
            closed.push(oldest.and_then(|oldest| files.remove(&oldest)));
        }
        drop(files);
        // A close may take long.
        drop(closed);
        file
    }

    /// Closes the files that were not used for some time, or all files.
    pub(crate) fn close_idle(&self, all: bool) {
        let mut files = self.files.lock();
        let is_idle = |known: &InUse| all || known.used.elapsed() > IDLE_MAX;
        let idle: Vec<InodeId> =
            files.iter().filter(|(_, known)| is_idle(known)).map(|(ino, _)| *ino).collect();
        let closed: Vec<_> = idle.iter().filter_map(|ino| files.remove(ino)).collect();
        drop(files);
        drop(closed);
    }
}
