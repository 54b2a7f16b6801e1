//! Work through the library: calls of a [`Vfs`], without the kernel.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use varve_types::{FileName, InodeId};
use varve_vfs::{Attr, Caller, FsError, OpenFlags, SetAttr, Vfs};

use super::{Listed, Place};
use varve::{Error, Result};

/// Bytes per read and write call.
const CALL_BYTES: usize = 1 << 20;

/// A file system, called directly. It remembers the ids of directories, as a program that embeds one does.
pub(crate) struct Library {
    vfs: Arc<dyn Vfs>,
    dirs: Mutex<HashMap<String, InodeId>>,
}

impl Library {
    /// Work at the root of `vfs`.
    pub(crate) fn new(vfs: Arc<dyn Vfs>) -> Library {
        Library { vfs, dirs: Mutex::new(HashMap::new()) }
    }

    fn dir(&self, dir: &str) -> Result<InodeId> {
        let mut dirs = self.dirs.lock();
        if let Some(known) = dirs.get(dir) {
            return Ok(*known);
        }
        let found = self
            .vfs
            .lookup(InodeId::ROOT, name(dir)?)
            .map_err(|error| failed("find", dir, &error))?;
        dirs.insert(dir.to_owned(), found.attr.ino);
        Ok(found.attr.ino)
    }

    /// Looks a file up, calls `call` with its attributes, and gives the lookup back.
    fn on_file<T>(
        &self,
        dir: &str,
        file: &str,
        call: impl FnOnce(Attr) -> std::result::Result<T, FsError>,
    ) -> Result<T> {
        let found = self
            .vfs
            .lookup(self.dir(dir)?, name(file)?)
            .map_err(|error| failed("find", file, &error))?;
        let result = call(found.attr);
        self.vfs.forget(found.attr.ino, 1);
        result.map_err(|error| failed("use", file, &error))
    }
}

impl Place for Library {
    fn make_dir(&self, dir: &str) -> Result<()> {
        let made = self.vfs.mkdir(Caller::ROOT, InodeId::ROOT, name(dir)?, 0o755);
        let made = made.map_err(|error| failed("create", dir, &error))?;
        self.dirs.lock().insert(dir.to_owned(), made.attr.ino);
        Ok(())
    }

    fn create(&self, dir: &str, file: &str) -> Result<()> {
        let flags = OpenFlags { write: true, exclusive: true, ..OpenFlags::default() };
        let (entry, opened) = self
            .vfs
            .create(Caller::ROOT, self.dir(dir)?, name(file)?, 0o644, flags)
            .map_err(|error| failed("create", file, &error))?;
        let released = self.vfs.release(entry.attr.ino, opened.handle);
        self.vfs.forget(entry.attr.ino, 1);
        released.map_err(|error| failed("close", file, &error))
    }

    fn write(&self, dir: &str, file: &str, data: &[u8], durable: bool) -> Result<()> {
        let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
        let (entry, opened) = self
            .vfs
            .create(Caller::ROOT, self.dir(dir)?, name(file)?, 0o644, flags)
            .map_err(|error| failed("create", file, &error))?;
        let ino = entry.attr.ino;
        let mut offset = 0;
        let written = data.chunks(CALL_BYTES).try_for_each(|chunk| {
            self.vfs.write_all(ino, opened.handle, offset, chunk, false)?;
            offset += chunk.len() as u64;
            Ok(())
        });
        let synced = if durable { self.vfs.fsync(ino, opened.handle, false) } else { Ok(()) };
        let released = self.vfs.release(ino, opened.handle);
        self.vfs.forget(ino, 1);
        written.and(synced).and(released).map_err(|error: FsError| failed("write", file, &error))
    }

    fn read(&self, dir: &str, file: &str) -> Result<Vec<u8>> {
        self.on_file(dir, file, |attr| {
            let opened =
                self.vfs.open(attr.ino, OpenFlags { read: true, ..OpenFlags::default() })?;
            let mut data = Vec::new();
            let outcome = loop {
                match self.vfs.read(attr.ino, opened.handle, data.len() as u64, CALL_BYTES) {
                    Ok(bytes) if bytes.is_empty() => break Ok(()),
                    Ok(bytes) => data.extend_from_slice(&bytes),
                    Err(error) => break Err(error),
                }
            };
            outcome.and(self.vfs.release(attr.ino, opened.handle)).map(|()| data)
        })
    }

    fn stat(&self, dir: &str, file: &str) -> Result<u64> {
        self.on_file(dir, file, |attr| Ok(attr.size))
    }

    fn list(&self, dir: &str) -> Result<Vec<Listed>> {
        let ino = self.dir(dir)?;
        let mut listed = Vec::new();
        let mut taken = Vec::new();
        let outcome = self.vfs.readdir(ino, 0, true, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                if let Some(attr) = entry.attr {
                    taken.push(attr.ino);
                }
                let name = String::from_utf8_lossy(entry.name).into_owned();
                listed.push(Listed { name, bytes: entry.attr.map_or(0, |attr| attr.size) });
            }
            true
        });
        for ino in taken {
            self.vfs.forget(ino, 1);
        }
        outcome.map_err(|error| failed("list", dir, &error))?;
        listed.sort_unstable();
        Ok(listed)
    }

    fn chmod(&self, dir: &str, file: &str, mode: u32) -> Result<()> {
        let set = SetAttr { perm: Some(mode), ..SetAttr::default() };
        self.on_file(dir, file, |attr| self.vfs.setattr(Caller::ROOT, attr.ino, set).map(drop))
    }

    fn rename(&self, dir: &str, from: &str, to: &str) -> Result<()> {
        let parent = self.dir(dir)?;
        self.vfs
            .rename(parent, name(from)?, parent, name(to)?, varve_vfs::RenameMode::Replace)
            .map_err(|error| failed("rename", from, &error))
    }

    fn unlink(&self, dir: &str, file: &str) -> Result<()> {
        self.vfs.unlink(self.dir(dir)?, name(file)?).map_err(|error| failed("remove", file, &error))
    }
}

fn name(text: &str) -> Result<FileName<'_>> {
    FileName::new(text.as_bytes()).map_err(|error| Error::failed(format!("{text}: {error}")))
}

fn failed(action: &str, name: &str, error: &FsError) -> Error {
    Error::failed(format!("cannot {action} {name}: {error}"))
}
