//! A file that has its name once it is whole.
//!
//! 1. It is written without a name, so that nothing stays of it whatever ends the program. Where the storage has no such files, it
//!    has a name that no other has and that tells nobody that it is whole, and loses it with the program, unless a signal ends that.
//! 2. It is synced, gets its name unless that is taken by then, and its directory is synced. Where the storage can do that only by
//!    replacing a file, an empty one has the name for a moment.
//!
//! What no file can be called, or is there already, is refused before anything is written.
//!
//! It is for its owner alone.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use tempfile::NamedTempFile;

/// What begins the names of files that are not whole.
const UNFINISHED: &str = ".varve-unfinished-";

/// Where a process finds what it has open.
const DESCRIPTORS: &str = "/proc/self/fd";

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
        match path.symlink_metadata() {
            Ok(_) => return Err(Errno::EXIST.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let name = path.as_os_str().as_bytes();
        if [&b"/"[..], b"/."].iter().any(|end| name.ends_with(end)) {
            return Err(Errno::ISDIR.into());
        }
        // It gets its name by its descriptor.
        if !Path::new(DESCRIPTORS).exists() {
            return WholeFile::begin_named(path);
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
                let file = format!("{DESCRIPTORS}/{}", file.as_raw_fd());
                rustix::fs::linkat(CWD, file, CWD, &self.path, AtFlags::SYMLINK_FOLLOW)?;
            }
            Made::Named(named) => match named.persist_noclobber(&self.path) {
                Ok(_) => {}
                Err(refused) if refused.error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(refused.error);
                }
                Err(refused) => rename_over_own(refused.file, &self.path)?,
            },
        }
        self.dir.sync_all()
    }
}

/// Gives `named` the name `path` unless that is taken, where the storage can neither link nor rename without replacing: what is replaced
/// is an empty file of its own.
fn rename_over_own(named: NamedTempFile, path: &Path) -> io::Result<()> {
    drop(File::create_new(path)?);
    named.persist(path).map(drop).map_err(|refused| {
        let _ = std::fs::remove_file(path);
        refused.error
    })
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

    /// What no file can be called was met when all was written, and that was lost.
    #[test]
    fn a_name_that_no_file_can_have_is_refused_at_the_beginning() {
        let dir = tempfile::tempdir().unwrap();
        let long = "x".repeat(256);
        for name in ["new/", "new/.", long.as_str()] {
            let begun = WholeFile::begin(&dir.path().join(name));
            assert!(begun.is_err(), "{name}");
        }
    }

    #[test]
    fn where_files_can_only_be_replaced_none_but_its_own_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let made = |bytes: &[u8]| {
            let mut made = NamedTempFile::new_in(dir.path()).unwrap();
            made.write_all(bytes).unwrap();
            made
        };
        rename_over_own(made(b"first"), &path).unwrap();
        let refused = rename_over_own(made(b"second"), &path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

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
