//! Whether a store takes reads and changes.
//!
//! ```text
//!            close
//!  open ---------------> closed       every call fails
//!    |                     ^
//!    | a failed sync       | close
//!    v                     |
//!  poisoned ---------------+          reads go on, changes and syncs fail
//! ```
//!
//! Invariants:
//! - A closed store stays closed, and a poisoned one stays poisoned, until it is opened again.
//! - Nothing follows the record that closes the log. So a writer asks once more under the writer's lock.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::poison::Poison;
use crate::{StoreError, StoreResult};

/// See the module's comment.
#[derive(Debug, Default)]
pub(crate) struct Health {
    closed: AtomicBool,
    pub(crate) poison: Poison,
}

impl Health {
    /// Fails if the store was closed.
    pub(crate) fn check_open(&self) -> StoreResult<()> {
        if self.closed.load(Ordering::Acquire) { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Fails if the store takes no changes any more.
    pub(crate) fn check_changeable(&self) -> StoreResult<()> {
        self.check_open()?;
        self.poison.check()
    }

    /// Closes the store; `Closed` if it was closed before.
    pub(crate) fn close(&self) -> StoreResult<()> {
        if self.closed.swap(true, Ordering::AcqRel) { Err(StoreError::Closed) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poisoned_store_is_open_and_a_closed_one_is_closed_once() {
        let health = Health::default();
        assert!(health.check_changeable().is_ok());
        health.poison.set(&"a cause");
        assert!(health.check_open().is_ok());
        assert!(matches!(health.check_changeable(), Err(StoreError::Poisoned { .. })));
        assert!(health.close().is_ok());
        assert!(matches!(health.check_changeable(), Err(StoreError::Closed)));
        assert!(matches!(health.close(), Err(StoreError::Closed)));
    }
}
