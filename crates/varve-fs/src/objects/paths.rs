//! Where objects lie in the storage below.

use std::path::{Path, PathBuf};

use varve_types::InodeId;

/// Files within one directory, and directories within the one above.
const FAN_OUT: u64 = 10_000;

/// Where a file is made that is to lie at `path` when it is whole.
pub(crate) fn begun_path(path: &Path) -> PathBuf {
    path.with_extension("begun")
}

/// Where the object of `ino` is below `dir`.
pub(crate) fn object_path(dir: &Path, ino: InodeId) -> PathBuf {
    let number = ino.get();
    let lower = number / FAN_OUT;
    let upper = lower / FAN_OUT;
    dir.join(upper.to_string()).join(lower.to_string()).join(number.to_string())
}
