//! Passes by files that are damaged, where nobody asked for what stands there: the others get their turn.
//!
//! A file is damaged if a checksum says so, or if the device cannot read some of it. Where it cannot read many files it is the
//! device that fails, and that is told. A want of memory or descriptors says nothing about a file.

use std::collections::HashSet;

use varve_env::is_unreadable;
use varve_types::FileNo;

use crate::files::StoreFile;
use crate::{StoreError, StoreResult};

/// So many files of a key space may be such that the device cannot read them.
const UNREADABLE_FILES_MAX: usize = 32;

/// The files of a key space that are left alone, few; forgotten at close.
#[derive(Debug, Default)]
pub(crate) struct Damaged {
    /// Tables, zones and segments from which no room is got back.
    files: HashSet<FileNo>,
    /// Files of which the device could not read some.
    unreadable: HashSet<FileNo>,
}

impl Damaged {
    /// Whether `file` is left alone.
    pub(crate) fn has(&self, file: FileNo) -> bool {
        self.files.contains(&file)
    }

    /// Forgets files that are not `there` any more.
    pub(crate) fn retain(&mut self, there: impl Fn(FileNo) -> bool) {
        self.files.retain(|file| there(*file));
        self.unreadable.retain(|file| there(*file));
    }

    /// Goes on after `error`, if it says that a file is damaged, and leaves `files` alone from now on.
    pub(crate) fn pass_by(
        &mut self,
        error: StoreError,
        files: impl IntoIterator<Item = FileNo>,
    ) -> StoreResult<()> {
        if !self.is_damage(&error) {
            return Err(error);
        }
        log::warn!("no room is got back where a file is damaged: {error}");
        self.files.extend(files);
        Ok(())
    }

    /// Goes on after `error` of a merge, if the next one can do without a file: the segment in which a value is damaged, or
    /// else the table `cleaned`, from which nobody but cleaning has to take values.
    pub(crate) fn pass_by_input(
        &mut self,
        error: StoreError,
        cleaned: Option<FileNo>,
    ) -> StoreResult<()> {
        let named = match file_of(&error) {
            Some(StoreFile::Segment(segment)) => Some(segment),
            _ => None,
        };
        let mut files = named.into_iter().chain(cleaned);
        match files.find(|file| !self.has(*file)) {
            Some(file) => self.pass_by(error, [file]),
            None => Err(error),
        }
    }

    /// Whether `error` says that a file is damaged, and reading others may go on.
    fn is_damage(&mut self, error: &StoreError) -> bool {
        if !says_unreadable(error) {
            return false;
        }
        // Others may stand in its way, too, and all name the one.
        let file = file_of(error).and_then(StoreFile::number);
        matches!(error, StoreError::Damaged { .. })
            || file.is_some_and(|file| self.may_be_unreadable(file))
    }

    /// Counts `file` among those that cannot be read; false if these are too many.
    fn may_be_unreadable(&mut self, file: FileNo) -> bool {
        let is_one_more = !self.unreadable.contains(&file);
        if is_one_more && self.unreadable.len() >= UNREADABLE_FILES_MAX {
            return false;
        }
        self.unreadable.insert(file);
        true
    }
}

/// Whether `error` says that some of a file is damaged or cannot be read.
pub(super) fn says_unreadable(error: &StoreError) -> bool {
    match error {
        StoreError::Damaged { .. } => true,
        StoreError::Io { action: "open" | "read", source, .. } => is_unreadable(source),
        _ => false,
    }
}

/// The file of the store that `error` is about.
pub(super) fn file_of(error: &StoreError) -> Option<StoreFile> {
    let (StoreError::Damaged { path, .. } | StoreError::Io { path, .. }) = error else {
        return None;
    };
    StoreFile::parse(path.file_name()?)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use super::*;
    use crate::files::io_error;

    fn failed(action: &'static str, file: u64, number: i32) -> StoreError {
        let path = StoreFile::Table(FileNo::new(file)).path(Path::new("/store"));
        io_error(action, &path, io::Error::from_raw_os_error(number))
    }

    #[test]
    fn what_cannot_be_read_is_damaged_and_what_passes_is_not() {
        let mut damaged = Damaged::default();
        let mut passes =
            |action, number| damaged.pass_by(failed(action, 1, number), [FileNo::new(2)]).is_ok();
        // EIO, EBADMSG, EUCLEAN.
        for number in [5, 74, 117] {
            assert!(passes("read", number) && passes("open", number));
            assert!(!passes("write", number) && !passes("sync", number));
        }
        // ENOENT, ENOMEM, ENODEV, EMFILE, ENOSPC.
        assert!([2, 12, 19, 24, 28].iter().all(|number| !passes("read", *number)));
        assert!(damaged.has(FileNo::new(2)) && !damaged.has(FileNo::new(1)));
        damaged.retain(|file| file == FileNo::new(1));
        assert!(!damaged.has(FileNo::new(2)));
    }

    /// Each file that one of them was in the way of counted.
    #[test]
    fn a_device_of_which_many_files_cannot_be_read_is_to_blame() {
        let mut damaged = Damaged::default();
        let files_max = UNREADABLE_FILES_MAX as u64;
        let mut passes = |cannot_be_read, left_alone| {
            let error = failed("read", cannot_be_read, 5);
            damaged.pass_by(error, [FileNo::new(left_alone)]).is_ok()
        };
        assert!((100..200).all(|file| passes(1, file)));
        assert!((1..=files_max).all(|file| passes(file, file)));
        assert!(!passes(files_max + 1, 99) && passes(files_max, 99));
        damaged.retain(|file| file != FileNo::new(7));
        assert!(damaged.pass_by(failed("read", files_max + 1, 5), []).is_ok());
    }
}
