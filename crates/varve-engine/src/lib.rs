//! The log-structured store: sorted key spaces with atomic batches, snapshots and crash safety.
//!
//! [`Store`] is all the rooms above see. [`Db`] implements it:
//!
//! 1. A batch is appended to the write-ahead log, then applied to the memtable ([`db`]).
//! 2. A full memtable is flushed to table files of level 0; compaction moves rows down the levels.
//! 3. A manifest of version edits says which tables make up the store.
//! 4. Large values may stand apart from their rows, in segments, which move on their own.
//! 5. Reads look at memtables, then at tables from the newest to the oldest.
//!
//! Source: TableFS 4.1.2 (the LSM-tree as LevelDB has it) and 4.2.4 (prefix filters). Varve departs from
//! LevelDB in the log's proof of what is durable, which tells a torn tail from damage; in several key
//! spaces that share one log; and in slowing writers down smoothly instead of stopping them.

mod base;
pub mod batch;
pub mod branch;
mod commit;
mod compaction;
pub mod db;
pub mod design;
pub mod error;
mod external;
mod files;
#[cfg(feature = "fjall")]
pub mod fjall;
mod health;
pub mod inspect;
mod iter;
mod key;
mod keyspace;
mod manifest;
mod memtable;
mod metrics;
pub mod options;
mod pace;
pub mod paths;
mod place;
mod plans;
mod poison;
mod read;
mod read_state;
mod reads;
pub mod repair;
mod reserve;
mod row_versions;
mod segment;
mod snapshot;
mod space;
pub mod store;
mod sublevel_map;
mod table;
pub mod tuning;
pub mod txn;
mod verify;
mod version;
mod versions;
mod wal;

pub use batch::{Batch, Op};
pub use branch::{
    Branch, BranchInfo, BranchOptions, CONFLICT_KEYS_MAX, Clash, Commuting, KeptLocks, Merged,
    RowVisitor, SnapshotInfo, SnapshotStore,
};
pub use commit::ingest::NewTable;
pub use compaction::defragment::Defragmented;
pub use compaction::policy::defragment::Fit;
pub use compaction::redesign::Redesign;
pub use db::Db;
pub use design::StoreDesign;
pub use error::{StoreError, StoreResult};
pub use inspect::{Inspection, inspect, inspect_store};
pub use key::Key;
pub use metrics::Fragmentation;
pub use options::{CompactionPolicy, DbOptions, ValuePolicy};
pub use reserve::Reserve;
pub use row_versions::RowVersion;
pub use store::{
    Direction, KeyIter, KeyRange, KeyspaceOptions, Pair, ScanIter, SortedRows, Store, StoreSnapshot,
};
pub use txn::locks::LockStatus;
pub use txn::terms::{Blocked, GaveWay, LockOptions};
pub use verify::{VerifyProgress, VerifyReport};
