//! Messages between metadata servers and their clients, as bytes. This crate does no I/O.
//!
//! A connection carries frames in both directions ([`frame`]):
//!
//! 1. The client sends [`Hello`], and the server answers with [`Welcome`] or [`Refused`] ([`hello`]).
//!    Who only wants to know what the server does sends [`Inquiry`] instead.
//! 2. The client sends requests ([`Request`]), each under a slot and a number, as many at once as it has slots. The
//!    server sends an answer ([`Answer`]) for each, in any order.
//! 3. The server sends notices ([`Notice`]): what the client has cached may change. The client acknowledges each one.
//!
//! A message is a header of fixed size, a body in postcard's encoding (its variants are numbered in the order of
//! their definition: new ones go last), and data: the bytes of a read or write, which nothing copies or encodes.
//! docs/format/wire.md describes every message.
//!
//! Invariants: no decoder panics or allocates more than its input is long, whatever the bytes. A message that cannot
//! be decoded is an error that says which field is wrong.
//!
//! Source: CLUSTER.md, section 5; exactly-once slots as in NFS 4.1 (RFC 8881, section 2.10.6).

pub mod answer;
pub mod attr;
pub mod frame;
pub mod hello;
pub mod notice;
pub mod request;

pub use answer::{Answer, Failure};
pub use frame::{FrameError, Header, Kind};
pub use hello::{Hello, Inquiry, Refused, Welcome};
pub use notice::{Cached, Notice};
pub use request::{Node, Request};

use serde::{Deserialize, Serialize};

/// The version of the protocol.
pub const VERSION: u8 = 1;
/// The port on which servers listen unless told otherwise.
pub const PORT: u16 = 7377;
/// The most bytes of data in one message.
pub const DATA_BYTES_MAX: usize = 1 << 20;
/// The most bytes of the body of one message.
pub const BODY_BYTES_MAX: usize = 64 << 10;

/// Appends a message to `out`.
pub fn encode<T: Serialize>(out: &mut Vec<u8>, header: Header, body: &T, data: &[u8]) {
    let begin = frame::begin(out, header);
    // A body has no type that cannot be encoded, and a vector takes every byte.
    if let Ok(extended) = postcard::to_extend(body, std::mem::take(out)) {
        *out = extended;
    }
    let body_bytes = out.len() - begin - frame::HEADER_BYTES;
    out.extend_from_slice(data);
    frame::finish(out, begin, body_bytes);
}

/// Decodes the body of a message. Bytes behind it are an error.
pub fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, FrameError> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(FrameError::Superfluous(rest.len())),
        Err(cause) => Err(FrameError::Body(cause.to_string())),
    }
}
