//! Requests of clients of a server, which are to be done exactly once though they are repeated.
//!
//! A client has slots, and numbers its requests in each slot upward; it sends the next request of a slot when it has the
//! answer of the one before. So the last number that was done says of every request of the slot whether it was.

use varve_types::{ClientId, InodeId};

use crate::Written;

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// The client.
    pub client: ClientId,
    /// The slot. The file system keeps one row for each: whoever takes requests bounds the slots of a client.
    pub slot: u32,
    /// The number within the slot, larger than those before.
    pub number: u64,
}

/// The last request that was done in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestDone {
    /// The number of the request.
    pub number: u64,
    /// What it gave.
    pub gave: Gave,
}

/// What a request gave, as far as its repetition cannot find that out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gave {
    /// Nothing but that it was done.
    Nothing,
    /// The inode that it made, linked, or found and cut.
    Inode(InodeId),
    /// What it wrote.
    Written(Written),
}
