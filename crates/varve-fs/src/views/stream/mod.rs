//! Snapshots on their way from one store to another: a stream of frames ([`frame`]).
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
mod pieces;
mod plain;
mod receipt;
mod receive;
mod send;

pub use receipt::Receipt;
pub use receive::{ReceiveError, Received, read_header};
pub use send::{Progress, Totals};

use varve_types::KeyspaceId;
use varve_vfs::{FsError, FsResult};

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
fn unhex(text: &str) -> FsResult<Vec<u8>> {
    let wrong = || FsError::Invalid("a place of a stream that does not exist");
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return Err(wrong());
    }
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(|pair| byte(pair).ok_or_else(wrong)).collect()
}
