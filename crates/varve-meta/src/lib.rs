//! The protocol of metadata servers without sockets, threads or clocks: it takes messages and times, and returns
//! decisions.
//!
//! - [`leases`]: what clients may keep, for how long, and who has to drop it before a change.
//! - [`locks`]: locks of files that programs of many clients set, and who waits for them.
//! - [`slots`]: requests that arrive again are not executed again.
//!
//! Times are milliseconds of a clock that never goes back. Only their differences count.

pub mod leases;
pub mod locks;
pub mod slots;

pub use leases::{Holders, Learned, Leases, Policy};
pub use locks::{Holder, LockLimits, LockRefusal, LockTable, Requested, Resolved, Ticket};
pub use slots::{Begun, Slots};

/// The number that a server gives a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u32);
