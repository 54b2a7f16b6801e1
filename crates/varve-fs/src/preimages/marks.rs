//! Marks say that there is a preimage, so that its loss is noticed.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use varve_env::{Env, OpenMode};
use varve_types::InodeId;

use super::Preimages;
use crate::epoch::Epoch;
use crate::files::exists;
use crate::overlay::{EXTENSION, blocks_path};

/// How the names of marks end, after a point.
const MARK: &str = "mark";
const BLOCKS_MARK: &str = "blocks-mark";
/// Bytes of a mark: a length, little-endian, and its CRC32C.
const MARK_BYTES: usize = 12;
/// More files than one call saves or moves. The loss of others is not noticed.
const UNMARKED_MAX: usize = 1 << 16;

/// The mark of the file at `path`.
pub(super) fn mark_path(path: &Path) -> PathBuf {
    let is_blocks = path.extension().is_some_and(|extension| extension == EXTENSION);
    path.with_extension(if is_blocks { BLOCKS_MARK } else { MARK })
}

/// The file of which there is the mark `path`, if it is one.
pub(crate) fn marked_by(path: &Path) -> Option<PathBuf> {
    match path.extension()?.to_str()? {
        MARK => Some(path.with_extension("")),
        BLOCKS_MARK => Some(path.with_extension(EXTENSION)),
        _ => None,
    }
}

/// A mark of a file of `len` bytes.
fn encode_mark(len: u64) -> [u8; MARK_BYTES] {
    let (mut mark, len) = ([0; MARK_BYTES], len.to_le_bytes());
    mark[..8].copy_from_slice(&len);
    mark[8..].copy_from_slice(&crc32c::crc32c(&len).to_le_bytes());
    mark
}

/// The length that a mark says, if it can be read: a power cut may leave it empty.
fn decode_mark(bytes: &[u8]) -> Option<u64> {
    let (len, crc) = bytes.split_first_chunk::<8>()?;
    (crc == crc32c::crc32c(len).to_le_bytes()).then(|| u64::from_le_bytes(*len))
}

/// The length that the mark at `path` says of what it marks; `None` if it cannot be read.
pub fn inspect_mark(env: &dyn Env, path: &Path) -> io::Result<Option<u64>> {
    let mut bytes = [0; MARK_BYTES];
    let count = env.open(path, OpenMode::Read)?.read_at(&mut bytes, 0)?;
    Ok(decode_mark(&bytes[..count]))
}

impl Preimages {
    /// Notes that the file at `path` is there. Its absence is not noticed where that fails. REQUIRES: its name is durable.
    pub(super) fn mark(&self, path: &Path) {
        let mark = || {
            let mut len = self.env.stat(path)?.len;
            let is_whole = path.extension().is_none();
            if is_whole && let Some(blocks) = self.overlays.get(&blocks_path(path))? {
                // What came since is not durable, and no view sees it.
                len = len.min(blocks.needs_until());
            }
            let mark = self.env.open(&mark_path(path), OpenMode::CreateOrOpen)?;
            mark.write_all_at(&encode_mark(len), 0)
        };
        if let Err(error) = mark() {
            log::debug!("{} has no mark: {error}", path.display());
        }
    }

    /// Takes the mark of a file away that has moved on from `path`.
    pub(super) fn unmark(&self, path: &Path) -> io::Result<()> {
        match self.env.remove_file(&mark_path(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Has [`Preimages::marking`] mark the file at `path`, once its name is durable.
    pub(super) fn mark_later(&self, path: &Path) {
        let mut unmarked = self.unmarked.lock();
        if unmarked.len() < UNMARKED_MAX {
            unmarked.insert(path.to_path_buf());
        }
    }

    /// Calls `sync`, which makes the names in `dirs` durable, and marks the preimages that were saved there before.
    pub(crate) fn marking<E>(
        &self,
        dirs: &BTreeSet<PathBuf>,
        sync: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let is_there = |path: &PathBuf| path.parent().is_some_and(|dir| dirs.contains(dir));
        let named: Vec<PathBuf> = self.unmarked.lock().extract_if(.., is_there).collect();
        sync()?;
        let _saving = self.saving.lock();
        // What has moved on by now was marked there.
        named.iter().filter(|path| self.env.stat(path).is_ok()).for_each(|path| self.mark(path));
        Ok(())
    }

    /// Whether the file at `path` was there.
    pub(super) fn is_marked(&self, path: &Path) -> io::Result<bool> {
        exists(self.env.as_ref(), &mark_path(path))
    }

    /// Whether there was a preimage of the object at an epoch whose view is there, and it is gone. REQUIRES: all of it is not there, nor are
    /// blocks unless it `has_blocks`.
    pub(super) fn is_lost(&self, epoch: Epoch, ino: InodeId, has_blocks: bool) -> io::Result<bool> {
        // The preimages of a view that has ended have moved on.
        if !self.epochs.read().is_live(epoch) {
            return Ok(false);
        }
        let path = self.path(epoch, ino);
        Ok(self.is_marked(&path)? || !has_blocks && self.is_marked(&blocks_path(&path))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_written_as_version_1_wrote_them() {
        let written = encode_mark(0x0102_0304_0506);
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/v1/kept.mark");
        varve_testkit::golden(path, &written);
        assert_eq!(decode_mark(&written), Some(0x0102_0304_0506));
        for bit in 0..8 * MARK_BYTES {
            let mut other = written;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_mark(&other), None, "{bit}");
        }
        (0..MARK_BYTES).for_each(|len| assert_eq!(decode_mark(&written[..len]), None));
        for path in ["/k/5/0/0/7", "/k/5/0/0/7.blocks"] {
            assert_eq!(marked_by(&mark_path(Path::new(path))).as_deref(), Some(Path::new(path)));
            assert_eq!(marked_by(Path::new(path)), None);
        }
    }
}
