//! Branches: writable trees over a state of the store, or of another branch.
//!
//! 1. [`crate::Db::branch`] notes in the manifest what the branch stands over and at which moment; nothing is copied, and
//!    nothing grows with the store. The moment is pinned, so that compaction keeps what the branch sees.
//! 2. Each key space of the store that the branch writes to gets one beside it for the rows that it changes, durably
//!    before the first of them is logged. They are logged, kept in the memtables, flushed, compacted and recovered as
//!    all others, so a branch may outgrow memory. A deletion stays in them as a row that hides what lies below
//!    ([`crate::read_state::Layer`]).
//! 3. [`Branch::commit`] hands the changes to the parent at once ([`commit`]), or [`Branch::abort`] drops them.
//!
//! ```text
//!            begin                commit, abort
//! (nothing) -------> open (gate) ---------------> ended ------> gone
//!                    reads, writes                 every call    when the end is in the manifest
//!                                                  fails
//! ```
//!
//! Invariants:
//! - What a branch changed is invisible outside of it until it is committed, and then visible as a whole.
//! - A branch with branches of its own neither commits nor aborts.
//! - After a crash a branch is there as of some prefix of the acknowledged writes, its own among them, or its commit is.
//!
//! Source: KVFS (thesis 3.3, 4.2): transactions as trees of their own over the store's. Departures: the rows of a
//! branch stand in the common log instead of one of its own, so that one sync serves all; begin costs one manifest edit.

mod changes;
mod clash;
mod commit;
pub(crate) mod handle;
mod join;
pub(crate) mod named;
pub(crate) mod numbers;
pub(crate) mod record;
mod since;
pub(crate) mod store;

pub use changes::RowVisitor;
pub use clash::{CONFLICT_KEYS_MAX, Clash, Merged};
pub use commit::{Commuting, KeptLocks};
pub use handle::{Branch, BranchOptions};
pub use named::SnapshotInfo;
pub use record::BranchInfo;
pub use store::SnapshotStore;

#[cfg(test)]
mod tests;
