//! Rows of parent pointers: where the names of an inode are that has or had several. The names in one row share a
//! hash of (directory, name).
//!
//! ```text
//! | version u8 | count varint | count * ( directory varint | name_len u8 | name ) |
//! ```
//!
//! They lead from an inode to its names without a scan. This is needed when the name is removed in whose directory
//! the inode counts.

use bytes::Bytes;
use varve_types::InodeId;

use crate::{DecodeError, ROW_VERSION, Reader, put_varint};

/// One name of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentPointer {
    /// The directory that holds the name.
    pub dir: InodeId,
    /// The name, 1 to 255 bytes.
    pub name: Bytes,
}

/// The pointers of one row. A row without any is not stored.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ParentRow {
    /// In no particular order, none twice.
    pub pointers: Vec<ParentPointer>,
}

impl ParentRow {
    /// Adds a name; false if it was there.
    pub fn add(&mut self, dir: InodeId, name: &[u8]) -> bool {
        if self.position(dir, name).is_some() {
            return false;
        }
        self.pointers.push(ParentPointer { dir, name: Bytes::copy_from_slice(name) });
        true
    }

    /// Removes a name; false if it was not there.
    pub fn remove(&mut self, dir: InodeId, name: &[u8]) -> bool {
        let at = self.position(dir, name);
        at.map(|at| self.pointers.remove(at)).is_some()
    }

    fn position(&self, dir: InodeId, name: &[u8]) -> Option<usize> {
        self.pointers.iter().position(|pointer| pointer.dir == dir && pointer.name == name)
    }

    /// Returns the row's value. REQUIRES: names of 1 to 255 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let room: usize = self.pointers.iter().map(|pointer| pointer.name.len() + 11).sum();
        let mut out = Vec::with_capacity(room + 3);
        out.push(ROW_VERSION);
        put_varint(&mut out, self.pointers.len() as u64);
        for pointer in &self.pointers {
            debug_assert!((1..=255).contains(&pointer.name.len()));
            put_varint(&mut out, pointer.dir.get());
            out.push(pointer.name.len() as u8);
            out.extend_from_slice(&pointer.name);
        }
        out
    }

    /// Decodes a row's value.
    pub fn decode(bytes: &Bytes) -> Result<ParentRow, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let count = reader.varint()?;
        let mut pointers = Vec::new();
        for _ in 0..count {
            let dir = InodeId::new(reader.varint()?);
            let name_len = reader.u8()?;
            if name_len == 0 {
                return Err(reader.error("an empty name"));
            }
            pointers.push(ParentPointer { dir, name: reader.take(usize::from(name_len))? });
        }
        reader.end()?;
        Ok(ParentRow { pointers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_added_once_and_removed() {
        let mut row = ParentRow::default();
        let (a, b) = (InodeId::new(16), InodeId::new(1 << 40));
        assert!(row.add(a, b"x") && row.add(b, b"x") && row.add(a, b"y") && !row.add(a, b"x"));
        assert_eq!(ParentRow::decode(&row.encode().into()), Ok(row.clone()));
        assert!(row.remove(a, b"x") && !row.remove(a, b"x"));
        assert_eq!(row.pointers.len(), 2);
    }
}
