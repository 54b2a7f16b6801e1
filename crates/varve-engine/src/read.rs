//! Reads files of a store that may be anything: damaged, of another length, or made by somebody with a purpose.
//!
//! Invariant: no memory is taken for a length that a file or a handle merely claims; it is compared with what the
//! format allows first. A file with a hole of any size costs its owner nothing, and must not cost a reader more.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use varve_env::{Env, File, OpenMode, Seek};
use varve_format::log::LOG_BYTES_MAX;
use varve_format::table::{FOOTER_BYTES, Footer};
use varve_types::FileSalt;

use crate::files::{format_error, io_error};
use crate::{StoreError, StoreResult};

/// The longest CURRENT: two names of manifests are far shorter.
pub(crate) const CURRENT_BYTES_MAX: u64 = 1 << 10;
/// The longest table that a repair reads as a whole to look for its rows: many times what flushes and compactions write.
pub(crate) const SALVAGED_BYTES_MAX: u64 = 1 << 30;
/// From this many bytes on, holes are looked for instead of read.
const HOLES_SOUGHT_BYTES: u64 = 4 << 20;
/// The operating system's number for an offset after which no data follow.
const ENXIO: i32 = 6;

/// A log or a manifest as a whole.
pub(crate) fn read_log(env: &dyn Env, path: &Path) -> StoreResult<Bytes> {
    read_whole(env, path, LOG_BYTES_MAX)
}

/// The whole of a file; `Damaged` without reading it if it has more than `bytes_max` bytes.
pub(crate) fn read_whole(env: &dyn Env, path: &Path, bytes_max: u64) -> StoreResult<Bytes> {
    let (file, len) = open(env, path)?;
    if len > bytes_max {
        let detail = format!("a file of {len} bytes where at most {bytes_max} can stand");
        return Err(StoreError::Damaged { path: path.to_path_buf(), offset: bytes_max, detail });
    }
    read_part(&*file, path, 0, len)
}

/// A file open for reading, and its length.
pub(crate) fn open(env: &dyn Env, path: &Path) -> StoreResult<(Arc<dyn File>, u64)> {
    let open = || {
        let file = env.open(path, OpenMode::Read)?;
        let len = file.stat()?.len;
        Ok((file, len))
    };
    open().map_err(|error| io_error("read", path, error))
}

/// The table at `path`, its length, and its footer with the salt `salt`, or with what it says itself of it: where no
/// manifest is at hand, the table's own word is all there is.
pub(crate) fn open_table(
    env: &dyn Env,
    path: &Path,
    salt: Option<FileSalt>,
) -> StoreResult<(Arc<dyn File>, u64, Footer)> {
    let (file, len) = open(env, path)?;
    let Some(offset) = len.checked_sub(FOOTER_BYTES as u64) else {
        let detail = format!("{len} bytes, shorter than a table's footer");
        return Err(StoreError::Damaged { path: path.to_path_buf(), offset: 0, detail });
    };
    let end = read_part(&*file, path, offset, FOOTER_BYTES as u64)?;
    let footer = salt
        .map_or_else(|| Footer::salt_of(&end), Ok)
        .and_then(|salt| Footer::decode(&end, salt, offset))
        .and_then(|footer| footer.properties.check().map(|()| footer))
        .map_err(|error| format_error(path, error.shifted(offset)))?;
    Ok((file, len, footer))
}

/// `len` bytes at `offset`; `Damaged` if the file ends before.
///
/// REQUIRES: `len` within a limit of the format.
pub(crate) fn read_part(file: &dyn File, path: &Path, offset: u64, len: u64) -> StoreResult<Bytes> {
    let read = || {
        let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
        fill(file, offset, &mut bytes)?;
        Ok(Bytes::from(bytes))
    };
    read().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            let (path, detail) = (path.to_path_buf(), error.to_string());
            StoreError::Damaged { path, offset, detail }
        }
        _ => io_error("read", path, error),
    })
}

/// Fills `bytes`, which are zeros, from `offset`. Memory of the operating system that nobody wrote to takes none, so
/// the holes of a large file are left as they are.
fn fill(file: &dyn File, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
    let len = bytes.len() as u64;
    if len < HOLES_SOUGHT_BYTES || file.stat()?.len < offset + len {
        return file.read_exact_at(bytes, offset);
    }
    let mut at = 0;
    while at < len {
        let data = match file.seek(Seek::Data, offset + at) {
            Ok(data) => (data - offset).min(len),
            Err(error) if error.raw_os_error() == Some(ENXIO) => break,
            Err(error) => return Err(error),
        };
        let hole = (file.seek(Seek::Hole, offset + data)? - offset).min(len);
        file.read_exact_at(&mut bytes[data as usize..hole as usize], offset + data)?;
        at = hole;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use varve_env::sim::SimEnv;

    use super::*;

    #[test]
    fn a_large_part_is_read_with_its_holes() {
        let env = SimEnv::new(1);
        let path = Path::new("/file");
        let file = env.open(path, OpenMode::CreateNew).unwrap();
        for at in [5 << 20, (7 << 20) + 100, 13 << 20] {
            file.write_all_at(&[at as u8 + 9; 70_000], at).unwrap();
        }
        file.set_len(20 << 20).unwrap();
        for (offset, len) in [(0, 20 << 20), (1, 10 << 20), ((5 << 20) + 17, 14 << 20)] {
            let mut whole = vec![0; len];
            file.read_exact_at(&mut whole, offset).unwrap();
            assert!(read_part(&*file, path, offset, len as u64).unwrap() == whole, "{offset}");
        }
        let error = read_part(&*file, path, 10 << 20, 11 << 20).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { offset: 0xa0_0000, .. }), "{error}");
        let error = read_whole(&*env, path, (20 << 20) - 1).unwrap_err();
        assert!(error.to_string().contains("20971520 bytes"), "{error}");
    }
}
