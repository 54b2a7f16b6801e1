//! Bytes of large files, in pieces that depend on the bytes alone.
//!
//! The storage below may say of the same bytes that they are data or a hole. So that two dumps of one tree are the
//! same, a file is cut at multiples of [`DATA_BYTES_MAX`], and pages of zeros are holes. What the storage below says
//! only saves reading.

use varve_env::{File, Seek};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::line::DATA_BYTES_MAX;
use crate::error;
use crate::objects::Objects;

/// Zeros are left out in units of this many bytes.
const PAGE_BYTES: usize = 4096;
const ENXIO: i32 = 6;

/// Calls `take` with every piece of the object of `ino` that is no hole, and its offset.
pub(super) fn pieces(
    objects: &Objects,
    ino: InodeId,
    object: &dyn File,
    size: u64,
    take: &mut dyn FnMut(u64, &[u8]) -> FsResult<()>,
) -> FsResult<()> {
    let fail = |action| move |source| error::object(action, &objects.path(ino), source);
    let mut buffer = vec![0; DATA_BYTES_MAX];
    let mut at = 0;
    while at < size {
        match object.seek(Seek::Data, at) {
            Ok(data) => at = at.max(data - data % DATA_BYTES_MAX as u64),
            Err(error) if error.raw_os_error() == Some(ENXIO) => return Ok(()),
            Err(error) => return Err(fail("seek in")(error)),
        }
        let len = (size - at.min(size)).min(DATA_BYTES_MAX as u64) as usize;
        let window = &mut buffer[..len];
        object.read_exact_at(window, at).map_err(fail("read"))?;
        for (start, end) in runs(window) {
            take(at + start as u64, &window[start..end])?;
        }
        at += DATA_BYTES_MAX as u64;
    }
    Ok(())
}

/// The longest runs of pages that are not all zero.
fn runs(window: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (index, page) in window.chunks(PAGE_BYTES).enumerate() {
        if page.iter().all(|byte| *byte == 0) {
            continue;
        }
        let (start, end) = (index * PAGE_BYTES, index * PAGE_BYTES + page.len());
        match runs.last_mut() {
            Some(run) if run.1 == start => run.1 = end,
            _ => runs.push((start, end)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_zeros_are_holes() {
        let mut window = vec![0; 5 * PAGE_BYTES + 10];
        assert!(runs(&window).is_empty());
        window[PAGE_BYTES] = 1;
        window[3 * PAGE_BYTES - 1] = 1;
        window[5 * PAGE_BYTES + 9] = 1;
        let page = |index| index * PAGE_BYTES;
        assert_eq!(runs(&window), [(page(1), page(3)), (page(5), page(5) + 10)]);
    }
}
