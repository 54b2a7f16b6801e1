//! The row that identifies the store to which the rows belong. So a superblock is never used with the engine files of
//! another store.
//!
//! ```text
//! | version u8 | upper half of the uuid varint | lower half varint |
//! ```

use bytes::Bytes;

use crate::{DecodeError, ROW_VERSION, Reader, put_varint};

/// The identity of a store, which its superblock holds too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreId(pub u128);

impl StoreId {
    /// Returns the row's value.
    pub fn encode(self) -> Vec<u8> {
        let mut out = vec![ROW_VERSION];
        put_varint(&mut out, (self.0 >> 64) as u64);
        put_varint(&mut out, self.0 as u64);
        out
    }

    /// Decodes a row's value.
    pub fn decode(bytes: &Bytes) -> Result<StoreId, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let upper = u128::from(reader.varint()?);
        let lower = u128::from(reader.varint()?);
        reader.end()?;
        Ok(StoreId(upper << 64 | lower))
    }
}
