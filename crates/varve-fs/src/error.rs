//! The one place where failures below become failures of the file system.

use std::io;
use std::path::Path;

use varve_engine::StoreError;
use varve_env::is_no_space;
use varve_types::InodeId;
use varve_vfs::{Blocked, FsError};

pub(crate) use varve_namespace::unreadable;

/// The cause behind a failed store call; its text, with file, offset and next step, is kept.
pub(crate) fn store(error: StoreError) -> FsError {
    match error {
        StoreError::NoSpace { .. } => FsError::NoSpace(error.to_string()),
        StoreError::Ended => FsError::Stale,
        StoreError::GaveWay { .. } => FsError::DeadlockVictim,
        StoreError::Blocked(blocked) => FsError::Blocked(Blocked {
            wait: blocked.wait,
            by: blocked.holders.iter().map(|id| id.get()).collect(),
            released: blocked.released,
        }),
        StoreError::Damaged { .. } => FsError::Damaged(error.to_string()),
        // What its manifest names is there as long as the store is.
        StoreError::Io { ref source, .. } if source.kind() == io::ErrorKind::NotFound => {
            FsError::Damaged(error.to_string())
        }
        StoreError::Io { .. }
        | StoreError::Poisoned { .. }
        | StoreError::Locked { .. }
        | StoreError::NewerFormat { .. }
        | StoreError::NotAStore { .. }
        | StoreError::Invalid(_)
        | StoreError::Conflict { .. }
        | StoreError::Closed => FsError::Storage(error.to_string()),
    }
}

/// The cause behind a failed operation on the object file of `ino`.
pub(crate) fn object(action: &str, path: &std::path::Path, error: io::Error) -> FsError {
    const EOPNOTSUPP: i32 = 95;
    match error.raw_os_error() {
        _ if error.kind() == io::ErrorKind::StaleNetworkFileHandle => FsError::Stale,
        _ if error.kind() == io::ErrorKind::FileTooLarge => FsError::FileTooLarge,
        Some(EOPNOTSUPP) => FsError::NotSupported("by the file system that holds the store"),
        _ if is_no_space(&error) => {
            FsError::NoSpace(format!("cannot {action} {}: {error}", path.display()))
        }
        _ => FsError::Storage(format!("cannot {action} {}: {error}", path.display())),
    }
}

/// A failed sync of object files, whose text names the file.
pub(crate) fn sync(error: io::Error) -> FsError {
    if is_no_space(&error) {
        return FsError::NoSpace(error.to_string());
    }
    FsError::Storage(error.to_string())
}

/// A chunk that a repair could not save.
pub(crate) fn lost_chunk(ino: InodeId, index: u64) -> FsError {
    let from = index.saturating_mul(varve_schema::CHUNK_BYTES as u64);
    FsError::Damaged(format!(
        "bytes of inode {ino} from offset {from} on are lost, as a repair of the store could not read them; write them anew \
         or remove the file (`varve fsck` names it)"
    ))
}

/// A failure of the file system while its store is opened.
pub(crate) fn invalid(error: FsError) -> StoreError {
    StoreError::Invalid(error.to_string())
}

/// The same of the store in `dir`, and whether it was for want of room.
pub(crate) fn unopened(dir: &Path) -> impl Fn(FsError) -> StoreError {
    move |error| match error {
        FsError::NoSpace(_) => StoreError::NoSpace { path: dir.to_path_buf() },
        error => invalid(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_stays_a_full_disk_and_texts_are_kept() {
        let full = store(StoreError::NoSpace { path: "/s".into() });
        assert!(matches!(full, FsError::NoSpace(text) if text.contains("/s")));
        let damaged =
            StoreError::Damaged { path: "/s/1.table".into(), offset: 77, detail: "x".into() };
        assert!(matches!(store(damaged), FsError::Damaged(text) if text.contains("offset 77")));
        let failed = |kind: io::ErrorKind| {
            store(StoreError::Io { action: "read", path: "/s/1.table".into(), source: kind.into() })
        };
        assert!(matches!(failed(io::ErrorKind::NotFound), FsError::Damaged(_)));
        assert!(matches!(failed(io::ErrorKind::TimedOut), FsError::Storage(_)));
        let raw = io::Error::from_raw_os_error(28);
        assert!(matches!(object("write", "/o".as_ref(), raw), FsError::NoSpace(_)));
        for large in [io::Error::from_raw_os_error(27), io::ErrorKind::FileTooLarge.into()] {
            assert!(matches!(object("write", "/o".as_ref(), large), FsError::FileTooLarge));
        }
    }
}
