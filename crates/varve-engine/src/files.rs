//! The names of a store's files.
//!
//! ```text
//! CURRENT                  names the manifest in force
//! CURRENT.tmp              the next CURRENT before its rename
//! MANIFEST-000000000007    version edits
//! MANIFEST-000000000007.copy   the same, for a repair
//! 000000000008.wal         write-ahead log
//! 000000000009.table       table
//! 000000000010.seg         segment: values apart from their rows
//! 000000000011.map         maps of the upper sub-levels
//! LOCK                     held while the store is open
//! RESERVE-07               room that is held for a full device, and nothing else
//! ```
//!
//! One counter numbers manifests, logs, tables, segments and maps, so a number means one file.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use varve_env::{Env, is_no_space};
use varve_types::FileNo;

use crate::{StoreError, StoreResult};

/// The name of the file that names the manifest.
pub(crate) const CURRENT: &str = "CURRENT";
/// Its next version, before the rename.
pub(crate) const CURRENT_TMP: &str = "CURRENT.tmp";
/// The lock file.
pub(crate) const LOCK: &str = "LOCK";

/// A file of a store, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFile {
    /// A write-ahead log.
    Wal(FileNo),
    /// A table.
    Table(FileNo),
    /// A segment.
    Segment(FileNo),
    /// The maps of the upper sub-levels.
    Map(FileNo),
    /// A manifest.
    Manifest(FileNo),
    /// The copy of a manifest.
    ManifestCopy(FileNo),
    /// The name of the manifest in force.
    Current,
    /// A file whose writing was not finished.
    Temporary,
    /// Room that is held ([`crate::reserve`]).
    Reserve(u8),
}

impl StoreFile {
    /// What a name stands for, or `None` if it is not one of a store's.
    pub(crate) fn parse(name: &OsStr) -> Option<StoreFile> {
        let name = name.to_str()?;
        let number = |digits: &str| {
            let number: u64 = digits.parse().ok()?;
            // No other name stands for it.
            (format!("{number:012}") == digits).then_some(FileNo::new(number))
        };
        if name == CURRENT {
            return Some(StoreFile::Current);
        }
        if name == CURRENT_TMP {
            return Some(StoreFile::Temporary);
        }
        if let Some(digits) = name.strip_prefix("MANIFEST-") {
            return match digits.strip_suffix(".copy") {
                Some(digits) => number(digits).map(StoreFile::ManifestCopy),
                None => number(digits).map(StoreFile::Manifest),
            };
        }
        if let Some(digits) = name.strip_suffix(".wal") {
            return number(digits).map(StoreFile::Wal);
        }
        if let Some(digits) = name.strip_suffix(".seg") {
            return number(digits).map(StoreFile::Segment);
        }
        if let Some(digits) = name.strip_suffix(".map") {
            return number(digits).map(StoreFile::Map);
        }
        if let Some(digits) = name.strip_prefix("RESERVE-") {
            let number = digits.parse().ok().filter(|number| format!("{number:02}") == digits);
            return number.map(StoreFile::Reserve);
        }
        name.strip_suffix(".table").and_then(number).map(StoreFile::Table)
    }

    /// The number in the name, if it has one.
    pub(crate) fn number(self) -> Option<FileNo> {
        match self {
            StoreFile::Wal(no)
            | StoreFile::Table(no)
            | StoreFile::Segment(no)
            | StoreFile::Map(no)
            | StoreFile::Manifest(no)
            | StoreFile::ManifestCopy(no) => Some(no),
            StoreFile::Current | StoreFile::Temporary | StoreFile::Reserve(_) => None,
        }
    }

    /// The file's path within the store's directory.
    pub(crate) fn path(self, dir: &Path) -> PathBuf {
        match self {
            StoreFile::Wal(no) => dir.join(format!("{:012}.wal", no.get())),
            StoreFile::Table(no) => dir.join(format!("{:012}.table", no.get())),
            StoreFile::Segment(no) => dir.join(format!("{:012}.seg", no.get())),
            StoreFile::Map(no) => dir.join(format!("{:012}.map", no.get())),
            StoreFile::Manifest(no) => dir.join(format!("MANIFEST-{:012}", no.get())),
            StoreFile::ManifestCopy(no) => dir.join(format!("MANIFEST-{:012}.copy", no.get())),
            StoreFile::Current => dir.join(CURRENT),
            StoreFile::Temporary => dir.join(CURRENT_TMP),
            StoreFile::Reserve(number) => dir.join(format!("RESERVE-{number:02}")),
        }
    }
}

/// Numbers the files of a store. Each number is given once, branches and sub-levels included.
#[derive(Debug)]
pub(crate) struct FileNumbers(AtomicU64);

impl FileNumbers {
    /// Counts from `first` on.
    pub(crate) fn new(first: FileNo) -> FileNumbers {
        FileNumbers(AtomicU64::new(first.get()))
    }

    /// A number for a new file.
    pub(crate) fn take(&self) -> FileNo {
        FileNo::new(self.0.fetch_add(1, Ordering::Relaxed))
    }

    /// The number that the next new file will have.
    pub(crate) fn next(&self) -> FileNo {
        FileNo::new(self.0.load(Ordering::Relaxed))
    }
}

/// The largest number of a stray file: those of the store that count on from it are below [`FileNo::MAX`] for good.
const STRAY_MAX: FileNo = FileNo::new(FileNo::MAX.get() / 2);
/// More files than a store makes after the last edit that says how far it has counted.
const UNNOTED_FILES_MAX: u64 = 1 << 32;

/// The number of the next file of the store at `dir`: above those of all `files`, and at least `counted`, if a manifest says
/// that the store has counted so far; `Damaged` if a file has a number that no store comes to.
pub(crate) fn next_number(
    dir: &Path,
    files: &[StoreFile],
    counted: Option<FileNo>,
) -> StoreResult<FileNo> {
    let first = counted.unwrap_or(FileNo::new(1));
    let numbered = files.iter().filter_map(|file| Some((file.number()?, file)));
    let Some((last, file)) = numbered.max_by_key(|(no, _)| *no) else { return Ok(first) };
    let own_max = first.max(STRAY_MAX).get() + UNNOTED_FILES_MAX;
    if last.get() > own_max {
        let detail = "its number leaves none to those of further files".to_owned();
        return Err(StoreError::Damaged { path: file.path(dir), offset: 0, detail });
    }
    Ok(first.max(last.next()))
}

/// A file that is removed when its last user lets go of it, if it is no longer needed by then.
#[derive(Debug)]
pub(crate) struct OwnedFile {
    no: FileNo,
    path: PathBuf,
    env: Arc<dyn Env>,
    obsolete: AtomicBool,
}

impl OwnedFile {
    /// A file that is needed.
    pub(crate) fn new(no: FileNo, path: PathBuf, env: Arc<dyn Env>) -> OwnedFile {
        OwnedFile { no, path, env, obsolete: AtomicBool::new(false) }
    }

    pub(crate) fn no(&self) -> FileNo {
        self.no
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Has the file removed.
    pub(crate) fn mark_obsolete(&self) {
        self.obsolete.store(true, Ordering::Release);
    }

    /// Whether it is to be removed.
    pub(crate) fn is_obsolete(&self) -> bool {
        self.obsolete.load(Ordering::Acquire)
    }
}

impl Drop for OwnedFile {
    fn drop(&mut self) {
        if !self.is_obsolete() {
            return;
        }
        // What is left behind here is removed at the next open.
        if let Err(error) = self.env.remove_file(&self.path) {
            log::warn!("cannot remove {}, which is obsolete: {error}", self.path.display());
        }
    }
}

/// The error of an operation on a file: `NoSpace` if the device is full, else `Io`.
pub(crate) fn io_error(action: &'static str, path: &Path, source: io::Error) -> StoreError {
    if is_no_space(&source) {
        let dir = path.parent().unwrap_or(path);
        return StoreError::NoSpace { path: dir.to_path_buf() };
    }
    StoreError::Io { action, path: path.to_path_buf(), source }
}

/// The error of bytes of a file that do not decode. The error's offset counts from the file's start.
pub(crate) fn format_error(path: &Path, error: varve_format::FormatError) -> StoreError {
    match error.newer() {
        Some((found, supported)) => {
            StoreError::NewerFormat { path: path.to_path_buf(), found, supported }
        }
        None => StoreError::Damaged {
            path: path.to_path_buf(),
            offset: error.offset,
            detail: error.problem.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for no in [42, 999_999_999_999, 1_000_000_000_000, u64::MAX].map(FileNo::new) {
            for file in [
                StoreFile::Wal(no),
                StoreFile::Table(no),
                StoreFile::Segment(no),
                StoreFile::Map(no),
                StoreFile::Manifest(no),
                StoreFile::Current,
                StoreFile::Temporary,
                StoreFile::Reserve(7),
                StoreFile::Reserve(255),
            ] {
                let path = file.path(Path::new("/store"));
                assert_eq!(StoreFile::parse(path.file_name().unwrap()), Some(file));
            }
        }
        for name in [
            "",
            "42.wal",
            "00000000004x.wal",
            "+00000000042.wal",
            "0000000000042.wal",
            "18446744073709551616.wal",
            "MANIFEST-",
            "RESERVE-7",
            "RESERVE-256",
            "LOCK",
            "000000000042.sst",
        ] {
            assert_eq!(StoreFile::parse(OsStr::new(name)), None, "{name}");
        }
    }
}
