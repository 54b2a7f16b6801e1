//! Reads files of a store that may be anything: damaged, of another length, or made by somebody with a purpose.
//!
//! Invariant: no memory is taken for a length that a file or a handle merely claims; it is compared with what the
//! format allows first. A file with a hole of any size costs its owner nothing, and must not cost a reader more.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use varve_env::{Env, File, OpenMode};
use varve_format::log::LOG_BYTES_MAX;

use crate::files::io_error;
use crate::{StoreError, StoreResult};

/// The longest CURRENT: two names of manifests are far shorter.
pub(crate) const CURRENT_BYTES_MAX: u64 = 1 << 10;
/// The longest table that a repair reads as a whole to look for its rows: many times what flushes and compactions write.
pub(crate) const SALVAGED_BYTES_MAX: u64 = 1 << 30;

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

/// `len` bytes at `offset`; `Damaged` if the file ends before.
///
/// REQUIRES: `len` within a limit of the format.
pub(crate) fn read_part(file: &dyn File, path: &Path, offset: u64, len: u64) -> StoreResult<Bytes> {
    let read = || {
        let mut bytes = vec![0; usize::try_from(len).map_err(io::Error::other)?];
        file.read_exact_at(&mut bytes, offset)?;
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
