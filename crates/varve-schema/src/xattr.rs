//! Rows of extended attributes: all attributes of one inode whose names share a hash.
//!
//! ```text
//! | version u8 | count varint | count * ( name_len u8 | name | value_len varint | value ) |
//! ```

use bytes::Bytes;

use crate::{DecodeError, ROW_VERSION, Reader, put_varint};

/// One extended attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// Its name, with the namespace (`user.` and so on); 1 to 255 bytes.
    pub name: Bytes,
    /// Its value.
    pub value: Bytes,
}

/// The attributes of one row.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct XattrRow {
    /// In no particular order; names are unique.
    pub attrs: Vec<Xattr>,
}

impl XattrRow {
    /// Returns the attribute called `name`.
    pub fn get(&self, name: &[u8]) -> Option<&Xattr> {
        self.attrs.iter().find(|attr| attr.name == name)
    }

    /// Creates or replaces an attribute.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        self.remove(name);
        let (name, value) = (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
        self.attrs.push(Xattr { name, value });
    }

    /// Removes an attribute. Returns whether it was there.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let before = self.attrs.len();
        self.attrs.retain(|attr| attr.name != name);
        self.attrs.len() != before
    }

    /// Returns the row's value. REQUIRES: names of 1 to 255 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let room: usize = self.attrs.iter().map(|a| a.name.len() + a.value.len() + 4).sum();
        let mut out = Vec::with_capacity(room + 3);
        out.push(ROW_VERSION);
        put_varint(&mut out, self.attrs.len() as u64);
        for attr in &self.attrs {
            debug_assert!((1..=255).contains(&attr.name.len()));
            out.push(attr.name.len() as u8);
            out.extend_from_slice(&attr.name);
            put_varint(&mut out, attr.value.len() as u64);
            out.extend_from_slice(&attr.value);
        }
        out
    }

    /// Decodes a row's value.
    pub fn decode(bytes: &Bytes) -> Result<XattrRow, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let count = reader.varint()?;
        let mut attrs = Vec::new();
        for _ in 0..count {
            let name_len = reader.u8()?;
            if name_len == 0 {
                return Err(reader.error("an empty attribute name"));
            }
            let name = reader.take(usize::from(name_len))?;
            let value_len = reader.varint32()?;
            attrs.push(Xattr { name, value: reader.take(value_len as usize)? });
        }
        reader.end()?;
        Ok(XattrRow { attrs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_can_be_set_replaced_and_removed() {
        let mut row = XattrRow::default();
        row.set(b"user.a", b"1");
        row.set(b"user.b", b"");
        row.set(b"user.a", b"2");
        assert_eq!(row.attrs.len(), 2);
        assert_eq!(row.get(b"user.a").map(|a| &a.value[..]), Some(&b"2"[..]));
        let back = XattrRow::decode(&Bytes::from(row.encode())).unwrap();
        assert_eq!(back, row);
        assert!(row.remove(b"user.b") && !row.remove(b"user.b"));
    }
}
