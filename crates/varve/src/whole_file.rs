//! A file that has its name once it is whole.
//!
//! 1. It is written without a name, so that nothing stays of it whatever ends the program. Where the storage has no such files, it
//!    has a name that no other has and that tells nobody that it is whole, and loses it with the program, unless a signal ends that.
//! 2. It is synced, gets its name unless that is taken by then, and its directory is synced.
//!
//! It is for its owner alone.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use tempfile::NamedTempFile;

/// What begins the names of files that are not whole.
const UNFINISHED: &str = ".varve-unfinished-";

/// A file that is being written.
pub(crate) struct WholeFile {
    path: PathBuf,
    dir: File,
    made: Made,
}

enum Made {
    Unnamed(File),
    Named(NamedTempFile),
}

impl WholeFile {
    /// Begins the file that will be called `path`. `AlreadyExists` if there is something.
    pub(crate) fn begin(path: &Path) -> io::Result<WholeFile> {
        if path.symlink_metadata().is_ok() {
            return Err(Errno::EXIST.into());
        }
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match rustix::fs::open(dir_of(path), flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => WholeFile::of(path, Made::Unnamed(file.into())),
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => WholeFile::begin_named(path),
            Err(error) => Err(error.into()),
        }
    }

    /// The same where the storage has no files without names.
    fn begin_named(path: &Path) -> io::Result<WholeFile> {
        let made = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(dir_of(path))?;
        WholeFile::of(path, Made::Named(made))
    }

    fn of(path: &Path, made: Made) -> io::Result<WholeFile> {
        Ok(WholeFile { path: path.to_path_buf(), dir: File::open(dir_of(path))?, made })
    }

    /// Where its bytes go.
    pub(crate) fn file(&self) -> &File {
        match &self.made {
            Made::Unnamed(file) => file,
            Made::Named(named) => named.as_file(),
        }
    }

    /// Gives it its name, durably, now that all is written. `AlreadyExists` if that is taken: then nothing is left of it.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.file().sync_all()?;
        match self.made {
            Made::Unnamed(file) => {
                let file = format!("/proc/self/fd/{}", file.as_raw_fd());
                rustix::fs::linkat(CWD, file, CWD, &self.path, AtFlags::SYMLINK_FOLLOW)?;
            }
            Made::Named(named) => drop(named.persist_noclobber(&self.path)?),
        }
        self.dir.sync_all()
    }
}

/// The directory that has the name `path`.
fn dir_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_has_its_name_when_it_is_whole_with_and_without_one_before() {
        for begin in [WholeFile::begin, WholeFile::begin_named] {
            let dir = tempfile::tempdir().unwrap();
            let names = || {
                let entries = std::fs::read_dir(dir.path()).unwrap();
                entries.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
            };
            let path = dir.path().join("file");
            drop(begin(&path).unwrap());
            assert!(names().is_empty());
            let (first, second) = (begin(&path).unwrap(), begin(&path).unwrap());
            first.file().write_all(b"whole").unwrap();
            assert!(!path.exists());
            first.finish().unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"whole");
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
            assert_eq!(second.finish().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(
                (std::fs::read(&path).unwrap(), names()),
                (b"whole".into(), vec!["file".into()])
            );
        }
    }
}
