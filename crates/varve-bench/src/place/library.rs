//! Work through the library: calls of a file system, without the kernel.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;
use varve_types::{FileName, InodeId, Timestamp};
use varve_vfs::{
    Attr, Caller, FileType, FsError, Handle, OpenFlags, RenameMode, SetAttr, SetTime, Vfs,
};

use super::{Listed, OpenFile, Opening, Place, Stat, failed};
use crate::Failure;

/// Directories whose ids are remembered, at most.
const KNOWN_DIRS_MAX: usize = 1 << 18;

/// The permissions of a new file.
const PERM: u32 = 0o644;

/// A file system, called directly. It remembers the ids of directories, as a program that embeds one does and
/// as the kernel does; each is looked up once and given back when the directory goes.
pub(crate) struct Library {
    vfs: Arc<dyn Vfs>,
    dirs: RwLock<Dirs>,
}

/// The ids of directories by name, for every call, and the same names in order, for those that take directories away.
#[derive(Default)]
struct Dirs {
    ids: HashMap<String, InodeId>,
    names: BTreeSet<String>,
}

impl Dirs {
    fn remove(&mut self, dir: &str) -> Option<InodeId> {
        self.names.remove(dir);
        self.ids.remove(dir)
    }
}

type Found<T> = Result<T, FsError>;

impl Library {
    /// Work at the root of `vfs`.
    pub(crate) fn new(vfs: Arc<dyn Vfs>) -> Library {
        Library { vfs, dirs: RwLock::default() }
    }

    /// The id of the directory `dir`, and whether it is remembered; if not it is the caller's to give back.
    fn find(&self, dir: &str) -> Found<(InodeId, bool)> {
        if dir.is_empty() || dir == "." {
            return Ok((InodeId::ROOT, true));
        }
        if let Some(known) = self.dirs.read().ids.get(dir) {
            return Ok((*known, true));
        }
        let found = self.at(dir, |parent, name| self.vfs.lookup(parent, name))?.attr.ino;
        let mut dirs = self.dirs.write();
        // Another worker may have been faster.
        if dirs.ids.len() >= KNOWN_DIRS_MAX || dirs.ids.contains_key(dir) {
            return Ok((found, false));
        }
        dirs.names.insert(dir.to_owned());
        dirs.ids.insert(dir.to_owned(), found);
        Ok((found, true))
    }

    /// Calls `call` with the id of the directory `dir`.
    fn in_dir<T>(&self, dir: &str, call: impl FnOnce(InodeId) -> Found<T>) -> Found<T> {
        let (ino, is_remembered) = self.find(dir)?;
        let outcome = call(ino);
        if !is_remembered {
            self.vfs.forget(ino, 1);
        }
        outcome
    }

    /// Calls `call` with the id of the directory that holds `path` and the last name of it.
    fn at<T>(&self, path: &str, call: impl FnOnce(InodeId, FileName<'_>) -> Found<T>) -> Found<T> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.in_dir(parent, |parent| call(parent, file_name(name)?))
    }

    /// Looks `path` up, calls `call` with its attributes, and gives the lookup back.
    fn on<T>(&self, path: &str, call: impl FnOnce(Attr) -> Found<T>) -> Found<T> {
        if path == "." {
            return call(self.vfs.getattr(InodeId::ROOT)?);
        }
        let found = self.at(path, |parent, name| self.vfs.lookup(parent, name))?;
        let outcome = call(found.attr);
        self.vfs.forget(found.attr.ino, 1);
        outcome
    }

    fn set(&self, path: &str, set: SetAttr) -> Found<()> {
        self.on(path, |attr| self.vfs.setattr(Caller::ROOT, attr.ino, set).map(drop))
    }

    /// Forgets a directory that has gone from `path`, and those below it.
    fn forget_dir(&self, path: &str) {
        let mut dirs = self.dirs.write();
        let Some(ino) = dirs.remove(path) else { return };
        self.vfs.forget(ino, 1);
        // '0' follows '/'.
        let below = dirs.names.range(format!("{path}/")..format!("{path}0"));
        let below: Vec<String> = below.cloned().collect();
        for ino in below.iter().filter_map(|dir| dirs.remove(dir)) {
            self.vfs.forget(ino, 1);
        }
    }

    fn open_file(&self, path: &str, how: Opening) -> Found<LibraryFile> {
        let flags = OpenFlags {
            read: matches!(how, Opening::Read | Opening::Write),
            write: how != Opening::Read,
            exclusive: how == Opening::Create,
            ..OpenFlags::default()
        };
        let (ino, handle) = if how == Opening::Create {
            let (entry, opened) = self.at(path, |parent, name| {
                self.vfs.create(Caller::ROOT, parent, name, PERM, flags)
            })?;
            (entry.attr.ino, opened.handle)
        } else {
            let ino = self.at(path, |parent, name| self.vfs.lookup(parent, name))?.attr.ino;
            let opened = self.vfs.open(ino, flags).inspect_err(|_| self.vfs.forget(ino, 1))?;
            (ino, opened.handle)
        };
        Ok(LibraryFile { vfs: Arc::clone(&self.vfs), ino, handle, is_closed: false })
    }
}

impl Place for Library {
    fn root(&self) -> Option<&Path> {
        None
    }

    fn make_dir(&self, path: &str) -> Result<(), Failure> {
        self.at(path, |parent, name| self.vfs.mkdir(Caller::ROOT, parent, name, 0o755))
            .map(|made| self.vfs.forget(made.attr.ino, 1))
            .map_err(|error| failed("make", path, error))
    }

    fn remove_dir(&self, path: &str) -> Result<(), Failure> {
        self.forget_dir(path);
        self.at(path, |parent, name| self.vfs.rmdir(parent, name))
            .map_err(|error| failed("remove", path, error))
    }

    fn open(&self, path: &str, how: Opening) -> Result<Box<dyn OpenFile>, Failure> {
        let file = self.open_file(path, how).map_err(|error| failed("open", path, error))?;
        Ok(Box::new(file))
    }

    fn create(&self, path: &str) -> Result<(), Failure> {
        self.open_file(path, Opening::Create)
            .and_then(|mut file| file.end())
            .map_err(|error| failed("create", path, error))
    }

    fn stat(&self, path: &str) -> Result<Option<Stat>, Failure> {
        let stat = |attr: Attr| {
            let is_dir = attr.kind == FileType::Directory;
            Ok(Stat { is_dir, bytes: attr.size, mode: attr.perm, changed: attr.mtime.secs() })
        };
        match self.on(path, stat) {
            Ok(stat) => Ok(Some(stat)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(failed("stat", path, error)),
        }
    }

    fn chmod(&self, path: &str, mode: u32) -> Result<(), Failure> {
        self.set(path, SetAttr { perm: Some(mode), ..SetAttr::default() })
            .map_err(|error| failed("chmod", path, error))
    }

    fn utime(&self, path: &str, seconds: i64) -> Result<(), Failure> {
        let time = Timestamp::new(seconds, 0).map(SetTime::To);
        self.set(path, SetAttr { atime: time, mtime: time, ..SetAttr::default() })
            .map_err(|error| failed("set the times of", path, error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Failure> {
        self.forget_dir(from);
        self.at(from, |parent, name| {
            self.at(to, |new_parent, new_name| {
                self.vfs.rename(parent, name, new_parent, new_name, RenameMode::Replace)
            })
        })
        .map_err(|error| failed("rename", from, error))
    }

    fn unlink(&self, path: &str) -> Result<(), Failure> {
        self.at(path, |parent, name| self.vfs.unlink(parent, name))
            .map_err(|error| failed("unlink", path, error))
    }

    fn list(
        &self,
        path: &str,
        attributes: bool,
        each: &mut dyn FnMut(&str, Listed),
    ) -> Result<(), Failure> {
        let mut taken = Vec::new();
        let mut without = None;
        let outcome = self.in_dir(path, |dir| {
            self.vfs.readdir(dir, 0, attributes, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    let name = String::from_utf8_lossy(entry.name);
                    taken.extend(entry.attr.map(|attr| attr.ino));
                    if attributes && entry.attr.is_none() {
                        without = Some(name.clone().into_owned());
                    }
                    let is_dir = entry.kind == FileType::Directory;
                    each(&name, Listed { is_dir, bytes: entry.attr.map_or(0, |attr| attr.size) });
                }
                true
            })
        });
        for ino in taken {
            self.vfs.forget(ino, 1);
        }
        outcome.map_err(|error| failed("list", path, error))?;
        match without {
            None => Ok(()),
            Some(name) => Err(failed("list", path, format!("{name} has no attributes"))),
        }
    }

    fn sync(&self) -> Result<(), Failure> {
        Ok(self.vfs.sync()?)
    }
}

/// A file that is open through the library.
struct LibraryFile {
    vfs: Arc<dyn Vfs>,
    ino: InodeId,
    handle: Handle,
    is_closed: bool,
}

impl LibraryFile {
    fn end(&mut self) -> Found<()> {
        self.is_closed = true;
        let released = self.vfs.release(self.ino, self.handle);
        self.vfs.forget(self.ino, 1);
        released
    }
}

impl OpenFile for LibraryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Failure> {
        let bytes = self.vfs.read(self.ino, self.handle, offset, buffer.len())?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Failure> {
        Ok(self.vfs.write_all(self.ino, self.handle, offset, data, false)?)
    }

    fn sync(&self) -> Result<(), Failure> {
        Ok(self.vfs.fsync(self.ino, self.handle, false)?)
    }

    fn close(mut self: Box<Self>) -> Result<(), Failure> {
        self.end().map_err(|error| format!("cannot close inode {}: {error}", self.ino).into())
    }
}

impl Drop for LibraryFile {
    fn drop(&mut self) {
        if !self.is_closed {
            // Something else has failed and ends the run.
            let _ = self.end();
        }
    }
}

fn file_name(name: &str) -> Found<FileName<'_>> {
    Ok(FileName::new(name.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that could not be closed left a line on stderr, and figures.
    #[test]
    fn a_failed_close_is_an_error() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let store = dir.path().join("store");
        varve::store::format(&store, &varve_fs::FormatOptions::default()).expect("a store");
        let options = varve_fs::MountOptions::default();
        let file_system = varve::FileSystem::open(&store, &options).expect("it opens");
        let library = Library::new(file_system.vfs());
        let open = |name| library.open_file(name, Opening::Create).expect("a file");
        Box::new(open("whole")).close().expect("it closes");
        let gone = open("gone");
        gone.vfs.release(gone.ino, gone.handle).expect("closed behind its back");
        let error = Box::new(gone).close().expect_err("closed twice").to_string();
        assert!(error.contains("cannot close inode"), "{error}");
        drop(library);
        file_system.close().expect("the store closes");
    }
}
