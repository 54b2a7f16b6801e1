//! Opens files by paths. Below confined directories no path can lead elsewhere: see the module above.
//!
//! 1. [`Roots`] keeps the confined directories, each with its descriptor.
//! 2. A path below one of them is opened relative to that descriptor, without following links.
//! 3. Any other path is opened as usual.
//!
//! Invariant: a descriptor from here is closed in child processes.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, RwLock};
use rustix::fs::{self, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec, retry_on_intr};

use crate::failures::tried;

/// Permissions of new files.
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The confined directories, each with its descriptor.
#[derive(Debug, Default)]
pub(super) struct Roots {
    found: RwLock<Vec<(PathBuf, OwnedFd)>>,
    /// A spare descriptor: when no other is left, one thread at a time syncs a directory with it.
    spare: Mutex<Option<OwnedFd>>,
}

impl Roots {
    /// Adds a directory; does nothing if it is there already.
    pub(super) fn add(&self, dir: &Path) -> io::Result<()> {
        if self.found.read().iter().any(|(root, _)| root == dir) {
            return Ok(());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = fs::open(dir, flags, Mode::empty())?;
        self.found.write().push((dir.to_path_buf(), descriptor));
        self.keep_spare();
        Ok(())
    }

    /// Returns the first confined directory.
    pub(super) fn first(&self) -> Option<OwnedFd> {
        self.found.read().first().and_then(|(_, root)| fcntl_dupfd_cloexec(root, 0).ok())
    }

    fn keep_spare(&self) {
        let Some(mut spare) = self.spare.try_lock() else { return };
        if spare.is_none() {
            let found = self.found.read();
            *spare = found.first().and_then(|(_, root)| fcntl_dupfd_cloexec(root, 0).ok());
        }
    }

    /// Opens a descriptor that child processes do not inherit.
    pub(super) fn open(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC;
        let mode = if flags.contains(OFlags::CREATE) { FILE_MODE } else { Mode::empty() };
        let roots = self.found.read();
        let found = roots.iter().find_map(|(root, fd)| Some((fd, path.strip_prefix(root).ok()?)));
        let Some((root, below)) = found else {
            return Ok(retry_on_intr(|| fs::openat(CWD, path, flags, mode))?);
        };
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        let flags = flags | OFlags::NOFOLLOW;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match retry_on_intr(|| fs::openat2(root, below, flags, mode, resolve)) {
            // An older kernel, or a filter of system calls that refuses unknown ones.
            Err(Errno::NOSYS | Errno::PERM) => {
                Ok(retry_on_intr(|| fs::openat(root, below, flags, mode))?)
            }
            Err(Errno::LOOP) => Err(refused(path, "leads through a symbolic link")),
            opened => Ok(opened?),
        }
    }

    /// Opens a file. Below a root opens only regular files, and without side effects: a pipe would block, and a
    /// device may act. The call waits only for the end of a lease.
    pub(super) fn open_file(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOCTTY;
        let opened = self.open(path, flags | OFlags::NONBLOCK).or_else(|error| {
            match Errno::from_io_error(&error) {
                Some(Errno::AGAIN) => self.open_leased(path, flags),
                _ => Err(error),
            }
        });
        regular(path, opened?)
    }

    /// Opens a file on which another process has a lease (fcntl(2)), for example to find out whether the file has
    /// writers. Waits until the kernel ends the lease. By now a pipe may stand at `path`, so the file is not opened
    /// by its name again.
    fn open_leased(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let found = regular(path, self.open(path, OFlags::PATH)?)?;
        let again = format!("/proc/self/fd/{}", found.as_raw_fd());
        let flags = flags.difference(OFlags::CREATE) | OFlags::CLOEXEC;
        Ok(retry_on_intr(|| fs::openat(CWD, &again, flags, Mode::empty()))?)
    }

    /// Opens a directory for listing.
    pub(super) fn open_dir(&self, path: &Path) -> io::Result<OwnedFd> {
        self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Opens a directory and calls `sync` with it, even if no descriptor is left.
    pub(super) fn sync_dir(
        &self,
        path: &Path,
        sync: impl FnOnce(&OwnedFd) -> rustix::io::Result<()>,
    ) -> io::Result<()> {
        let opened = self.open_dir(path);
        let is_none_left = |error| matches!(error, Errno::NFILE | Errno::MFILE);
        let synced = match &opened {
            Err(error) if Errno::from_io_error(error).is_some_and(is_none_left) => {
                // Other threads without a descriptor wait for the spare one.
                let mut spare = self.spare.lock();
                drop(spare.take());
                let dir = self.open_dir(path)?;
                let synced = sync(&dir);
                *spare = Some(dir);
                synced
            }
            _ => sync(&opened?),
        };
        self.keep_spare();
        tried(synced.map_err(io::Error::from))
    }

    /// Returns the directory that holds `path`, and the last name.
    pub(super) fn parent<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or(Path::new("."));
        Ok((self.open(dir, OFlags::PATH | OFlags::DIRECTORY)?, name))
    }
}

/// Returns `opened` if it is a regular file.
fn regular(path: &Path, opened: OwnedFd) -> io::Result<OwnedFd> {
    match FileType::from_raw_mode(fs::fstat(&opened)?.st_mode) {
        FileType::RegularFile => Ok(opened),
        FileType::Directory => Err(io::ErrorKind::IsADirectory.into()),
        _ => Err(refused(path, "is no regular file")),
    }
}

fn refused(path: &Path, what: &str) -> io::Error {
    let text = format!("{} {what}, which nothing in a store does", path.display());
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::os::OsEnv;
    use crate::{Env, FileKind, OpenMode, is_passing};

    #[test]
    #[allow(clippy::disallowed_methods, reason = "sets traps that the environment cannot set")]
    fn no_path_leads_out_of_a_confined_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        for dir in [&root, &outside] {
            std::fs::create_dir(dir).unwrap();
        }
        std::fs::write(outside.join("secret"), "secret").unwrap();
        symlink(outside.join("secret"), root.join("file")).unwrap();
        symlink(outside.join("new"), root.join("dangling")).unwrap();
        symlink(&outside, root.join("dir")).unwrap();
        let pipe = root.join("pipe");
        let made = fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0);
        made.unwrap();
        let env = OsEnv::new();
        // By a path with a link to the root, which is the caller's business.
        let alias = dir.path().join("alias");
        symlink(&root, &alias).unwrap();
        env.confine(&alias).unwrap();
        env.confine(&alias).unwrap();
        let mode = OpenMode::CreateOrOpen;
        for name in ["file", "dangling", "dir/secret", "pipe", "../outside/secret", "dir/new"] {
            assert!(env.open(&alias.join(name), mode).is_err(), "{name}");
            assert!(env.open(&alias.join(name), OpenMode::Read).is_err(), "{name}");
            assert!(env.lock(&alias.join(name)).is_err(), "{name}");
            assert!(env.open_to_append(&alias.join(name)).is_err(), "{name}");
        }
        let inside = alias.join("inside");
        env.open(&inside, mode).unwrap();
        assert!(env.remove_file(&alias.join("dir/secret")).is_err());
        assert!(env.rename(&inside, &alias.join("dir/new")).is_err());
        assert!(env.link(&inside, &alias.join("dir/new")).is_err());
        assert!(env.create_dir(&alias.join("dir/new")).is_err());
        assert!(env.list(&alias.join("dir")).is_err());
        assert!(env.sync_dir(&alias.join("dir")).is_err());
        assert!(env.stat(&alias.join("dir/secret")).is_err());
        assert_eq!(env.stat(&alias.join("file")).unwrap().kind, FileKind::Other);
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
        let mut items = env.list(&alias).unwrap();
        items.sort_by(|a, b| a.name.cmp(&b.name));
        let kinds: Vec<_> = items.into_iter().map(|item| item.kind).collect();
        assert_eq!(kinds, [Other, Other, Other, File, Other]);
        env.remove_file(&alias.join("file")).unwrap();
        assert!(outside.join("secret").exists(), "the link went, not what it leads to");
    }

    /// A second sync found none kept while the first had it.
    #[test]
    #[allow(
        clippy::disallowed_methods,
        reason = "a process of its own, as it takes all descriptors"
    )]
    fn one_syncs_after_the_other_where_no_descriptors_are_left() {
        const CHILD: &str = "VARVE_TEST_WITHOUT_DESCRIPTORS";
        if std::env::var_os(CHILD).is_none() {
            let name = "one_syncs_after_the_other_where_no_descriptors_are_left";
            let name = format!("os::path::tests::{name}");
            let mut child = Command::new(std::env::current_exe().unwrap());
            let ran = child.args(["--exact", &name]).env(CHILD, "1").output().unwrap();
            let told = String::from_utf8_lossy(&ran.stdout);
            assert!(ran.status.success() && told.contains("1 passed"), "{told}");
            return;
        }
        let (dir, roots) = (tempfile::tempdir().unwrap(), Roots::default());
        roots.add(dir.path()).unwrap();
        let limit = Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, limit).unwrap();
        let open = || roots.open(dir.path(), OFlags::PATH);
        let mut all: Vec<_> = std::iter::from_fn(|| open().ok()).collect();
        assert!(!all.is_empty());
        for _ in 0..3 {
            let sync = |_: &OwnedFd| {
                assert!(roots.spare.is_locked());
                Ok(())
            };
            roots.sync_dir(dir.path(), sync).unwrap();
            assert!(is_passing(&open().unwrap_err()));
        }
        // Who opens something else at that moment may get it. Nothing was tried then.
        drop(roots.spare.lock().take());
        all.push(open().unwrap());
        assert!(is_passing(&roots.sync_dir(dir.path(), |_| Ok(())).unwrap_err()));
        all.clear();
        roots.sync_dir(dir.path(), |_| Ok(())).unwrap();
    }

    use FileKind::{File, Other};
}
