//! Files that are open because clients read and write them.
//!
//! NFS reads and writes by handles of files, not of open ones. A file that is asked for stays open for [`IDLE_MAX`] after the last call, at
//! most [`FILES_MAX`] at once; then it is closed, so that nothing else has to wait for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use varve_types::InodeId;
use varve_vfs::{FsResult, Handle, OpenFlags, Vfs};

/// How long a file stays open that nobody asks for.
const IDLE_MAX: Duration = Duration::from_secs(2);
/// Files that are open at once.
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

/// See above.
#[derive(Default)]
pub(crate) struct Opened {
    files: Mutex<HashMap<InodeId, InUse>>,
}

impl Opened {
    /// The file `ino`, open for reading, and for writing too if asked.
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

    /// Keeps a file that was opened.
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
        // Closing may take long.
        drop(closed);
        file
    }

    /// Closes the files that were not used for some time, or all.
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
