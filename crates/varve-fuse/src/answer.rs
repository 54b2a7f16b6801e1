//! The answer to a request, before it is encoded for the transport that the request came by.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;

use crate::protocol::constants::opcode_name;

/// How to answer a request.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It went well, and what there is to say is in the reply.
    Body,
    /// It went well, with these bytes.
    Data(Bytes),
    /// It failed; or, with 0, it went well and there is nothing to say.
    Errno(i32),
    /// Another thread answers.
    Later,
}

/// Does `work` of a request; the answer if it panics, which is logged.
pub(crate) fn unless_it_panics<T>(opcode: u32, work: impl FnOnce() -> T) -> Result<T, Answer> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        log::error!("{} panicked", opcode_name(opcode));
        Answer::Errno(libc::EIO)
    })
}
