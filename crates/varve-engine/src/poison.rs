//! Remembers the first failure after which the disk's content is unknown.
//!
//! Reads go on; every later write and sync fails with the first cause. A failed fsync is never retried:
//! the kernel may have dropped the dirty pages and would report success. One that was not tried, for want of a descriptor, is.

use std::io;
use std::path::Path;
use std::sync::OnceLock;

use varve_env::{Env, is_passing};

use crate::{StoreError, StoreResult};

/// The first failure, if there was one.
#[derive(Debug, Default)]
pub(crate) struct Poison(OnceLock<String>);

impl Poison {
    /// Fails if the store is poisoned.
    pub(crate) fn check(&self) -> StoreResult<()> {
        match self.0.get() {
            None => Ok(()),
            Some(cause) => Err(StoreError::Poisoned { cause: cause.clone() }),
        }
    }

    /// Poisons the store, unless it already is, and returns what callers are told.
    pub(crate) fn set(&self, cause: &dyn std::fmt::Display) -> StoreError {
        let first = self.0.get_or_init(|| {
            let cause = cause.to_string();
            log::error!("the store takes no more writes: {cause}");
            cause
        });
        StoreError::Poisoned { cause: first.clone() }
    }

    /// What callers are told of a sync that failed: poisons, unless it was not tried.
    pub(crate) fn sync_failed(
        &self,
        action: &'static str,
        path: &Path,
        error: io::Error,
    ) -> StoreError {
        let was_tried = !is_passing(&error);
        let failed = StoreError::Io { action, path: path.to_path_buf(), source: error };
        if was_tried { self.set(&failed) } else { failed }
    }

    /// Makes durable which files there are in `dir`. A failure poisons, unless nothing was tried.
    pub(crate) fn sync_dir(&self, env: &dyn Env, dir: &Path) -> StoreResult<()> {
        env.sync_dir(dir).map_err(|error| self.sync_failed("sync", dir, error))
    }

    /// The cause, if the store is poisoned.
    pub(crate) fn cause(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_stays() {
        let poison = Poison::default();
        assert!(poison.check().is_ok());
        poison.set(&"first");
        poison.set(&"second");
        let error = poison.check().unwrap_err();
        assert!(matches!(error, StoreError::Poisoned { cause } if cause == "first"));
    }
}
