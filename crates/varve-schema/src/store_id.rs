//! The row that says which store the rows belong to, so that a superblock and an engine of two stores are
//! never taken for one.
//!
//! ```text
//! | version u8 | upper half of the uuid varint | lower half varint |
//! ```

use bytes::Bytes;

use crate::{DecodeError, ROW_VERSION, Reader, put_varint};

/// The identity of a store, as its superblock has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreId(pub u128);

impl StoreId {
    /// The row's value.
    pub fn encode(self) -> Vec<u8> {
        let mut out = vec![ROW_VERSION];
        put_varint(&mut out, (self.0 >> 64) as u64);
        put_varint(&mut out, self.0 as u64);
        out
    }

    /// Reads a row's value.
    pub fn decode(bytes: &Bytes) -> Result<StoreId, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let upper = u128::from(reader.varint()?);
        let lower = u128::from(reader.varint()?);
        reader.end()?;
        Ok(StoreId(upper << 64 | lower))
    }
}
