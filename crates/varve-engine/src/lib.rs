//! The log-structured store: sorted key spaces with atomic batches, snapshots and crash safety.
//!
//! [`Store`] is all the rooms above see. [`db::Db`] implements it.

pub mod batch;
pub mod error;
pub mod store;

pub use batch::{Batch, Op};
pub use error::{StoreError, StoreResult};
pub use store::{Direction, KeyRange, KeyspaceOptions, Pair, ScanIter, Store, StoreSnapshot};
