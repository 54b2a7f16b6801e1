//! The answer to a request, before it is encoded for the transport that the request came by.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;

use crate::protocol::constants::opcode_name;

/// The answer to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The request succeeded; the reply holds the body.
    Body,
    /// The request succeeded with these bytes as the body.
    Data(Bytes),
    /// The request failed with this errno; with 0 it succeeded without a body.
    Errno(i32),
    /// Another thread answers later.
    Later,
}

/// Runs `work` of a request. If it panics, logs that and returns the answer as the error.
pub(crate) fn unless_it_panics<T>(opcode: u32, work: impl FnOnce() -> T) -> Result<T, Answer> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        log::error!("{} panicked", opcode_name(opcode));
        Answer::Errno(libc::EIO)
    })
}
