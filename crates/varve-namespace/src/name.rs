//! A name in a directory, with the hash that says in which row it is.

use varve_schema::{EntrySuffix, NameHasher, RowKey};
use varve_types::{FileName, InodeId};

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct NameIn<'a> {
    /// The directory.
    pub dir: InodeId,
    /// The name.
    pub name: FileName<'a>,
    /// Its hash.
    pub suffix: EntrySuffix,
}

impl<'a> NameIn<'a> {
    /// The name `name` in `dir`.
    pub fn new(hasher: &NameHasher, dir: InodeId, name: FileName<'a>) -> NameIn<'a> {
        NameIn { dir, name, suffix: hasher.entry(name.as_bytes()) }
    }

    /// The row that it is in.
    pub fn key(&self) -> RowKey {
        RowKey::entry(self.dir, self.suffix)
    }

    /// The name, as bytes.
    pub fn bytes(&self) -> &'a [u8] {
        self.name.as_bytes()
    }
}
