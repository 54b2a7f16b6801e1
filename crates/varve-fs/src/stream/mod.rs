//! Snapshots on their way from one store to another: a stream of frames ([`frame`]).
//!
//! In: a snapshot, or two, and a stream to write; or a stream to read. Out: the stream; or a snapshot of the same name here. Never: believes
//! what it reads ([`checks`]), or sends what only this store has a use for.
//!
//! 1. A state of a store is seen in its plain form ([`plain`]): what users see, and nothing of the store's own affairs. Two
//!    stores that have received the same have the same rows in that form.
//! 2. [`send`] writes the rows in which two states differ ([`differences`]), each with its large files, whole or as the
//!    [`pieces`] that differ.
//! 3. [`receive`] takes them in a transaction that nobody sees, and commits it; what was interrupted goes on ([`receipt`]).
//!
//! Source: `zfs send -i` and `zfs receive -s`.

mod apply;
mod checks;
mod differences;
pub mod frame;
mod outcome;
mod pieces;
mod plain;
mod receipt;
mod receive;
mod send;

pub use outcome::{Progress, ReceiveError, Received, Totals};
pub use receipt::Receipt;
pub use receive::read_header;

use varve_types::KeyspaceId;

/// The number of a key space in streams: of metadata, of data, of the names of dictionaries, and of the pairs of the first.
const META_SPACE: u32 = 0;
const DATA_SPACE: u32 = 1;
const NAMES_SPACE: u32 = 2;
const PAIRS_SPACE: u32 = 3;

/// A key space, with its number in streams.
type Space = (u32, KeyspaceId);

/// The digits that stand for bytes.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that hexadecimal digits stand for.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    let digit = |digit: u8| char::from(digit).to_digit(16);
    pairs.iter().map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8)).collect()
}
