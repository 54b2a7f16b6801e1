//! The protocol of metadata servers without sockets, threads or clocks: it takes messages and times, and returns
//! decisions.
//!
//! - [`leases`]: what clients may keep, for how long, and who has to drop it before a change.
//! - [`slots`]: requests that arrive again are not executed again.
//!
//! Times are milliseconds of a clock that never goes back. Only their differences count.

pub mod leases;
pub mod slots;

pub use leases::{Holders, Learned, Leases, Policy};
pub use slots::{Begun, Slots};

/// The number that a server gives a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub u32);
