//! Work through system calls, below a directory.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::{Listed, OpenFile, Opening, Place, Stat, failed};
use crate::Failure;

/// A directory of the operating system.
pub(crate) struct Kernel {
    root: OwnedFd,
    path: PathBuf,
}

impl Kernel {
    /// Work below `path`.
    pub(crate) fn new(path: &Path) -> Result<Kernel, Failure> {
        let root = rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty())
            .map_err(|error| failed("open", &path.display().to_string(), error))?;
        Ok(Kernel { root, path: path.to_path_buf() })
    }
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const CREATE: OFlags =
    OFlags::CREATE.union(OFlags::EXCL).union(OFlags::WRONLY).union(OFlags::CLOEXEC);

impl Place for Kernel {
    fn root(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn make_dir(&self, path: &str) -> Result<(), Failure> {
        rustix::fs::mkdirat(&self.root, path, Mode::from_raw_mode(0o755))
            .map_err(|error| failed("make", path, error))
    }

    fn remove_dir(&self, path: &str) -> Result<(), Failure> {
        rustix::fs::unlinkat(&self.root, path, AtFlags::REMOVEDIR)
            .map_err(|error| failed("remove", path, error))
    }

    fn open(&self, path: &str, how: Opening) -> Result<Box<dyn OpenFile>, Failure> {
        let flags = match how {
            Opening::Read => OFlags::RDONLY | OFlags::CLOEXEC,
            Opening::Write => OFlags::RDWR | OFlags::CLOEXEC,
            Opening::Create => CREATE,
        };
        let fd = rustix::fs::openat(&self.root, path, flags, Mode::from_raw_mode(0o644))
            .map_err(|error| failed("open", path, error))?;
        Ok(Box::new(File::from(fd)))
    }

    fn create(&self, path: &str) -> Result<(), Failure> {
        rustix::fs::openat(&self.root, path, CREATE, Mode::from_raw_mode(0o644))
            .map(drop)
            .map_err(|error| failed("create", path, error))
    }

    fn stat(&self, path: &str) -> Result<Option<Stat>, Failure> {
        match rustix::fs::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Stat {
                is_dir: FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
                bytes: u64::try_from(stat.st_size).unwrap_or(0),
                mode: stat.st_mode & 0o7777,
                changed: stat.st_mtime,
            })),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed("stat", path, error)),
        }
    }

    fn chmod(&self, path: &str, mode: u32) -> Result<(), Failure> {
        rustix::fs::chmodat(&self.root, path, Mode::from_raw_mode(mode), AtFlags::empty())
            .map_err(|error| failed("chmod", path, error))
    }

    fn utime(&self, path: &str, seconds: i64) -> Result<(), Failure> {
        let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(&self.root, path, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| failed("set the times of", path, error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Failure> {
        rustix::fs::renameat(&self.root, from, &self.root, to)
            .map_err(|error| failed("rename", from, error))
    }

    fn unlink(&self, path: &str) -> Result<(), Failure> {
        rustix::fs::unlinkat(&self.root, path, AtFlags::empty())
            .map_err(|error| failed("unlink", path, error))
    }

    fn list(
        &self,
        path: &str,
        attributes: bool,
        each: &mut dyn FnMut(&str, Listed),
    ) -> Result<(), Failure> {
        let wrong = |error| failed("list", path, error);
        let fd = rustix::fs::openat(&self.root, path, DIRECTORY, Mode::empty()).map_err(wrong)?;
        for entry in Dir::read_from(&fd).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let (mut kind, mut bytes) = (entry.file_type(), 0);
            if attributes || kind == FileType::Unknown {
                let stat = rustix::fs::statat(fd.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW);
                let stat = stat.map_err(wrong)?;
                kind = FileType::from_raw_mode(stat.st_mode);
                bytes = u64::try_from(stat.st_size).unwrap_or(0);
            }
            let is_dir = kind == FileType::Directory;
            each(&name.to_string_lossy(), Listed { is_dir, bytes });
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), Failure> {
        // The kernel does not tell a FUSE server of syncfs(2); the fsync(2) of a directory it does.
        rustix::fs::syncfs(&self.root)?;
        rustix::fs::fsync(&self.root)?;
        Ok(())
    }
}

impl OpenFile for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Failure> {
        let mut filled = 0;
        while filled < buffer.len() {
            match FileExt::read_at(self, &mut buffer[filled..], offset + filled as u64)? {
                0 => break,
                read => filled += read,
            }
        }
        Ok(filled)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Failure> {
        Ok(self.write_all_at(data, offset)?)
    }

    fn sync(&self) -> Result<(), Failure> {
        Ok(self.sync_all()?)
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        // There is no safe call that tells what close(2) says; what it may say of bytes a sync says as well.
        drop(self);
        Ok(())
    }
}
