//! A store on the real machine in a temporary directory, and calls without ceremony.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use varve_env::Env;
use varve_env::os::OsEnv;
use varve_fs::{FormatOptions, MountOptions, VarveFs, format};
use varve_types::{FileName, InodeId};
use varve_vfs::{Attr, Caller, FsResult, Handle, OpenFlags, RenameMode, SetAttr, Vfs};

pub(crate) const ROOT: InodeId = InodeId::ROOT;
pub(crate) const READ: OpenFlags = flags(true, false);
pub(crate) const WRITE: OpenFlags = flags(false, true);
pub(crate) const BOTH: OpenFlags = flags(true, true);

const fn flags(read: bool, write: bool) -> OpenFlags {
    OpenFlags {
        read,
        write,
        append: false,
        appends: false,
        truncate: false,
        exclusive: false,
        sync: false,
        execute: false,
    }
}

pub(crate) fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

/// A file system on the real machine.
pub(crate) struct Rig {
    pub(crate) fs: VarveFs,
    pub(crate) dir: tempfile::TempDir,
    options: MountOptions,
}

impl std::ops::Deref for Rig {
    type Target = VarveFs;

    fn deref(&self) -> &VarveFs {
        &self.fs
    }
}

pub(crate) fn os_env() -> Arc<dyn Env> {
    OsEnv::new()
}

/// The file of `fd`, which may be passed through, open for reading and writing as the kernel opens it for programs.
pub(crate) fn opened_straight(fd: BorrowedFd<'_>) -> File {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    File::options().read(true).write(true).open(path).unwrap()
}

pub(crate) fn store_of(dir: &Path) -> std::path::PathBuf {
    dir.join("store")
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::with(&FormatOptions::default(), MountOptions::default())
    }

    pub(crate) fn with(format_options: &FormatOptions, options: MountOptions) -> Rig {
        let dir = tempfile::tempdir().unwrap();
        format(&os_env(), &store_of(dir.path()), format_options).unwrap();
        let fs = VarveFs::open(os_env(), &store_of(dir.path()), options.clone()).unwrap();
        Rig { fs, dir, options }
    }

    /// Closes the store and opens it again.
    pub(crate) fn remount(self) -> Rig {
        self.fs.close().unwrap();
        self.after_death()
    }

    /// The same, with other options.
    pub(crate) fn remount_with(self, options: MountOptions) -> Rig {
        Rig { options, ..self }.remount()
    }

    /// Has another process take the store over.
    pub(crate) fn after_upgrade(self) -> Rig {
        let Rig { fs, dir, options } = self;
        fs.sync().unwrap();
        let (handed_over, store) = (fs.hand_over().unwrap(), store_of(dir.path()));
        drop(fs);
        let fs = VarveFs::resume(os_env(), &store, options.clone(), handed_over).unwrap();
        Rig { fs, dir, options }
    }

    /// Dumps the store as it is when the daemon dies, and opens it again.
    pub(crate) fn dumped(self) -> (Result<Vec<u8>, String>, Rig) {
        let Rig { fs, dir, options } = self;
        drop(fs);
        let (store, mut out) = (store_of(dir.path()), Vec::new());
        let dumped = varve_fs::dump::dump_store(os_env(), &store, 16 << 20, &mut out, &mut |_| ());
        let fs = VarveFs::open(os_env(), &store, options.clone()).unwrap();
        (dumped.map(|_| out).map_err(|error| error.to_string()), Rig { fs, dir, options })
    }

    /// Opens the store again as it is when the daemon dies.
    pub(crate) fn after_death(self) -> Rig {
        let Rig { fs, dir, options } = self;
        drop(fs);
        let fs = VarveFs::open(os_env(), &store_of(dir.path()), options.clone()).unwrap();
        Rig { fs, dir, options }
    }
}

/// Calls on any file system, as root.
pub(crate) trait Calls: Vfs {
    fn mk(&self, dir: InodeId, text: &str) -> InodeId {
        let (entry, opened) = self.create(Caller::ROOT, dir, name(text), 0o644, BOTH).unwrap();
        self.release(entry.attr.ino, opened.handle).unwrap();
        entry.attr.ino
    }

    fn mk_dir(&self, dir: InodeId, text: &str) -> InodeId {
        self.mkdir(Caller::ROOT, dir, name(text), 0o755).unwrap().attr.ino
    }

    fn find(&self, dir: InodeId, text: &str) -> FsResult<Attr> {
        self.lookup(dir, name(text)).map(|entry| entry.attr)
    }

    fn open_as(&self, ino: InodeId, flags: OpenFlags) -> Handle {
        self.open(ino, flags).unwrap().handle
    }

    fn put_at(&self, ino: InodeId, offset: u64, data: &[u8]) {
        let handle = self.open_as(ino, WRITE);
        assert_eq!(self.write(ino, handle, offset, data, false).unwrap().bytes, data.len());
        self.release(ino, handle).unwrap();
    }

    fn contents(&self, ino: InodeId) -> Vec<u8> {
        let handle = self.open_as(ino, READ);
        let bytes = self.read(ino, handle, 0, 1 << 24).unwrap();
        self.release(ino, handle).unwrap();
        bytes.to_vec()
    }

    fn cut(&self, ino: InodeId, size: u64) {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.setattr(Caller::ROOT, ino, set).unwrap();
    }

    fn mv(&self, dir: InodeId, from: &str, to_dir: InodeId, to: &str) -> FsResult<()> {
        self.rename(dir, name(from), to_dir, name(to), RenameMode::Replace)
    }

    /// The names in a directory, without `.` and `..`, read `step` at a time.
    fn list_by(&self, dir: InodeId, step: usize) -> Vec<String> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let mut taken = 0;
            self.readdir(dir, cookie, false, &mut |entry| {
                if taken == step {
                    return false;
                }
                taken += 1;
                cookie = entry.cookie;
                if entry.name != b"." && entry.name != b".." {
                    names.push(String::from_utf8_lossy(entry.name).into_owned());
                }
                true
            })
            .unwrap();
            if taken < step {
                names.sort();
                return names;
            }
        }
    }

    fn list(&self, dir: InodeId) -> Vec<String> {
        self.list_by(dir, usize::MAX)
    }
}

impl<T: Vfs + ?Sized> Calls for T {}
