//! Entry rows: the names of one directory that share a hash.
//!
//! ```text
//! | version u8 | names - 1 u8 | names * ( slot u8 | name_len u8 | name | body ) |
//! body: | 1 | kind u8 | ino varint |   the inode has a row of its own
//!       | 2 | inode |                  the inode is here
//! ```
//!
//! Almost every row has one name, and has functions of its own that build no [`EntryRow`].
//!
//! Invariants: a name keeps its slot as long as it exists, because its directory cookie is the row's suffix and the
//! slot. Names are in the order of their slots. An empty row is not stored.

use std::ops::Range;

use bytes::Bytes;
use varve_types::InodeId;

use crate::inode::take_identity;
use crate::{DecodeError, FileKind, Inode, ROW_VERSION, Reader, put_varint};

/// The most names that may share a hash within one directory.
pub const NAMES_PER_ROW_MAX: usize = 256;

/// The usual size of the slot and the body of a name in bytes, which few names exceed.
const NAME_ROOM_BYTES: usize = 64;

const REFERENCE: u8 = 1;
const INLINE: u8 = 2;

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "almost every entry is the large one")]
pub enum Body {
    /// An inode in a row of its own: a directory, or a file that has or had several names, or moved while clients of a server had
    /// it open.
    Reference {
        /// Its id.
        ino: InodeId,
        /// What it is.
        kind: FileKind,
    },
    /// The inode itself.
    Inline(Inode),
}

impl Body {
    /// Returns the inode's identity.
    pub fn ino(&self) -> InodeId {
        match self {
            Body::Reference { ino, .. } => *ino,
            Body::Inline(inode) => inode.ino,
        }
    }

    /// Returns whether the inode is in a row of its own.
    pub fn is_reference(&self) -> bool {
        matches!(self, Body::Reference { .. })
    }

    /// Returns what the inode is.
    pub fn kind(&self) -> FileKind {
        match self {
            Body::Reference { kind, .. } => *kind,
            Body::Inline(inode) => inode.kind,
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Body, DecodeError> {
        match reader.u8()? {
            REFERENCE => {
                let kind = FileKind::from_u8(reader.u8()?)
                    .ok_or_else(|| reader.error("an unknown file type"))?;
                Ok(Body::Reference { ino: InodeId::new(reader.varint()?), kind })
            }
            INLINE => Inode::decode_from(reader).map(Body::Inline),
            _ => Err(reader.error("an unknown kind of entry")),
        }
    }
}

/// A row's value with the position of one inode in it.
#[derive(Clone, Debug)]
pub struct Inlined {
    row: Bytes,
    at: Range<usize>,
}

impl Inlined {
    /// Finds the inode in `slot` of a row's value; `None` if there is none. Checks the whole value as
    /// [`EntryRow::decode`] does.
    pub fn find(row: Bytes, slot: u8) -> Result<Option<(Inode, Inlined)>, DecodeError> {
        let mut reader = Reader::new(&row);
        reader.version()?;
        let (mut found, mut last) = (None, None);
        for _ in 0..=reader.u8()? {
            let (at, _) = take_name(&mut reader, last)?;
            last = Some(at);
            let start = reader.at();
            if let Body::Inline(inode) = Body::read(&mut reader)?
                && at == slot
            {
                found = Some((inode, start + 1..reader.at()));
            }
        }
        reader.end()?;
        Ok(found.map(|(inode, at)| (inode, Inlined { row, at })))
    }

    /// Returns the row as it was read.
    pub fn row(&self) -> &Bytes {
        &self.row
    }

    /// Returns the row's value with `inode` in place of the one that was read.
    pub fn replaced(&self, inode: &Inode) -> Vec<u8> {
        inode.encode_between(&[&self.row[..self.at.start]], &self.row[self.at.end..])
    }
}

/// One name, which owns its bytes or borrows them from the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<Name = Bytes> {
    /// Its number among the names of the row.
    pub slot: u8,
    /// The name, 1 to 255 bytes.
    pub name: Name,
    /// What it stands for.
    pub body: Body,
}

/// A name with the parts of its inode that a listing shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// Its number among the names of the row.
    pub slot: u8,
    /// The name.
    pub name: &'a [u8],
    /// The inode's identity.
    pub ino: InodeId,
    /// What the inode is.
    pub kind: FileKind,
}

impl<'a> Listed<'a> {
    /// Decodes the name of a row with one name, without the rest of its inode. `None` if the row has several names or
    /// is damaged.
    pub fn only(bytes: &'a Bytes) -> Option<Listed<'a>> {
        let mut reader = Reader::new(bytes);
        reader.version().ok()?;
        if reader.u8().ok()? != 0 {
            return None;
        }
        let slot = reader.u8().ok()?;
        let name_len = reader.u8().ok().filter(|len| *len > 0)?;
        let name = reader.borrow(usize::from(name_len)).ok()?;
        let (ino, kind) = match reader.u8().ok()? {
            REFERENCE => {
                let kind = FileKind::from_u8(reader.u8().ok()?)?;
                (InodeId::new(reader.varint().ok()?), kind)
            }
            INLINE => take_identity(&mut reader).ok().map(|(ino, kind, _)| (ino, kind))?,
            _ => return None,
        };
        Some(Listed { slot, name, ino, kind })
    }
}

impl<'a, Name: AsRef<[u8]>> From<&'a Named<Name>> for Listed<'a> {
    fn from(named: &'a Named<Name>) -> Listed<'a> {
        let (ino, kind) = (named.body.ino(), named.body.kind());
        Listed { slot: named.slot, name: named.name.as_ref(), ino, kind }
    }
}

impl<'a> Named<&'a [u8]> {
    /// Decodes the next name, whose slot comes after `last`.
    fn read(reader: &mut Reader<'a>, last: Option<u8>) -> Result<Named<&'a [u8]>, DecodeError> {
        let (slot, name) = take_name(reader, last)?;
        Ok(Named { slot, name, body: Body::read(reader)? })
    }
}

/// Decodes the slot of the next name, which comes after `last`, and the name.
fn take_name<'a>(reader: &mut Reader<'a>, last: Option<u8>) -> Result<(u8, &'a [u8]), DecodeError> {
    let slot = reader.u8()?;
    if last.is_some_and(|last| last >= slot) {
        return Err(reader.error("slots out of order"));
    }
    let name_len = reader.u8()?;
    if name_len == 0 {
        return Err(reader.error("an empty name"));
    }
    Ok((slot, reader.borrow(usize::from(name_len))?))
}

/// Begins a row for this number of names, which have this number of bytes together.
fn begin_row(names: usize, bytes: usize) -> Vec<u8> {
    debug_assert!((1..=NAMES_PER_ROW_MAX).contains(&names));
    let mut out = Vec::with_capacity(2 + bytes + NAME_ROOM_BYTES * names);
    out.extend_from_slice(&[ROW_VERSION, (names - 1) as u8]);
    out
}

fn put_name(out: &mut Vec<u8>, (slot, name): (u8, &[u8])) {
    debug_assert!((1..=255).contains(&name.len()));
    out.extend_from_slice(&[slot, name.len() as u8]);
    out.extend_from_slice(name);
}

fn put_reference(out: &mut Vec<u8>, name: (u8, &[u8]), ino: InodeId, kind: FileKind) {
    put_name(out, name);
    out.extend_from_slice(&[REFERENCE, kind as u8]);
    put_varint(out, ino.get());
}

fn put_inline(out: &mut Vec<u8>, name: (u8, &[u8]), inode: &Inode) {
    put_name(out, name);
    out.push(INLINE);
    inode.encode_to(out);
}

/// Encodes a row with one name and its inode.
fn encode_only((slot, name): (u8, &[u8]), inode: &Inode) -> Vec<u8> {
    debug_assert!((1..=255).contains(&name.len()));
    inode.encode_between(&[&[ROW_VERSION, 0, slot, name.len() as u8], name, &[INLINE]], &[])
}

/// The names of one row, in the order of their slots.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct EntryRow {
    names: Vec<Named>,
}

impl EntryRow {
    /// Returns the names.
    pub fn names(&self) -> &[Named] {
        &self.names
    }

    /// Returns true if there are no names, which means that the row does not exist.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the entry called `name`.
    pub fn find(&self, name: &[u8]) -> Option<&Named> {
        self.names.iter().find(|named| named.name == name)
    }

    /// Returns the entry in `slot`.
    pub fn at(&self, slot: u8) -> Option<&Named> {
        self.names.iter().find(|named| named.slot == slot)
    }

    /// Adds a name in the lowest free slot and returns the slot; `None` if all are taken. REQUIRES: no entry of that
    /// name.
    pub fn insert(&mut self, name: &[u8], body: Body) -> Option<u8> {
        debug_assert!(self.find(name).is_none(), "one name twice");
        if self.names.len() == NAMES_PER_ROW_MAX {
            return None;
        }
        let at = self.names.iter().zip(0u8..).take_while(|(named, i)| named.slot == *i).count();
        let slot = at as u8;
        // A row that was read gets one more name and is written; space for more names would cost a kilobyte.
        self.names.reserve_exact(1);
        self.names.insert(at, Named { slot, name: Bytes::copy_from_slice(name), body });
        Some(slot)
    }

    /// Removes a name.
    pub fn remove(&mut self, name: &[u8]) -> Option<Named> {
        let at = self.names.iter().position(|named| named.name == name)?;
        Some(self.names.remove(at))
    }

    /// Removes the name in `slot`.
    pub fn remove_at(&mut self, slot: u8) -> Option<Named> {
        let at = self.names.iter().position(|named| named.slot == slot)?;
        Some(self.names.remove(at))
    }

    /// Replaces what the name in `slot` stands for; false if there is no such name.
    pub fn set_body(&mut self, slot: u8, body: Body) -> bool {
        match self.names.iter_mut().find(|named| named.slot == slot) {
            Some(named) => {
                named.body = body;
                true
            }
            None => false,
        }
    }

    /// Encodes the row. REQUIRES: it is not empty, and its names have 1 to 255 bytes.
    pub fn encode(&self) -> Vec<u8> {
        if let [Named { slot, name, body: Body::Inline(inode) }] = &self.names[..] {
            return encode_only((*slot, name), inode);
        }
        let bytes = self.names.iter().map(|named| named.name.len()).sum();
        let mut out = begin_row(self.names.len(), bytes);
        for named in &self.names {
            match &named.body {
                Body::Reference { ino, kind } => {
                    put_reference(&mut out, (named.slot, &named.name), *ino, *kind);
                }
                Body::Inline(inode) => put_inline(&mut out, (named.slot, &named.name), inode),
            }
        }
        out
    }

    /// Encodes a row with only `name`, in the first slot, for `inode`. A directory is a reference to a row of its
    /// own; any other inode is in this row. REQUIRES: the name has 1 to 255 bytes.
    pub fn encode_new(name: &[u8], inode: &Inode) -> Vec<u8> {
        if inode.kind != FileKind::Directory {
            return encode_only((0, name), inode);
        }
        let mut out = begin_row(1, name.len());
        put_reference(&mut out, (0, name), inode.ino, inode.kind);
        out
    }

    /// Reads a row's value.
    pub fn decode(bytes: &Bytes) -> Result<EntryRow, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let count = usize::from(reader.u8()?) + 1;
        let mut names: Vec<Named> = Vec::with_capacity(count.min(4));
        for _ in 0..count {
            let last = names.last().map(|last| last.slot);
            let Named { slot, name, body } = Named::read(&mut reader, last)?;
            names.push(Named { slot, name: bytes.slice_ref(name), body });
        }
        reader.end()?;
        Ok(EntryRow { names })
    }

    /// Decodes the name of a row with one name as [`EntryRow::decode`] does, without building a row. `None` if there
    /// are several names.
    pub fn only(bytes: &Bytes) -> Option<Result<Named<&[u8]>, DecodeError>> {
        let mut reader = Reader::new(bytes);
        let count = reader.version().and_then(|()| reader.u8());
        if count.is_ok_and(|count| count > 0) {
            return None;
        }
        let only = count.and_then(|_| {
            let only = Named::read(&mut reader, None)?;
            reader.end()?;
            Ok(only)
        });
        Some(only)
    }
}

#[cfg(test)]
mod tests {
    use varve_types::{FileFlags, Timestamp};

    use super::*;
    use crate::{Content, DirInfo, Times};

    #[test]
    fn a_new_row_is_as_if_its_name_was_inserted() {
        let (file, dir) = (FileKind::Regular, FileKind::Directory);
        let info = Content::Directory(DirInfo::new(InodeId::ROOT, None));
        for (kind, content) in [(file, Content::None), (dir, info)] {
            let inode = Inode {
                ino: InodeId::new(70_000),
                kind,
                perm: 0o640,
                nlink: 1,
                uid: 1000,
                gid: 7,
                rdev: 0,
                size: 0,
                times: Times::all(Timestamp::EPOCH),
                has_xattrs: false,
                flags: FileFlags::default(),
                home: None,
                content,
            };
            let body = match kind {
                FileKind::Directory => Body::Reference { ino: inode.ino, kind },
                _ => Body::Inline(inode.clone()),
            };
            for name in [&b"a"[..], &[0xff; 255]] {
                let mut row = EntryRow::default();
                assert_eq!(row.insert(name, body.clone()), Some(0));
                assert_eq!(EntryRow::encode_new(name, &inode), row.encode());
            }
        }
    }

    /// In rows of one and of several names, whole and with each bit flipped, beside the row taken apart and put together.
    #[test]
    fn an_inode_is_found_and_replaced_where_it_is() {
        let inode = |ino, content| Inode {
            ino: InodeId::new(ino),
            kind: FileKind::Regular,
            perm: 0o640,
            nlink: 1,
            uid: 1000,
            gid: 7,
            rdev: 0,
            size: 3,
            times: Times::all(Timestamp::EPOCH),
            has_xattrs: false,
            flags: FileFlags::default(),
            home: None,
            content,
        };
        let reference = Body::Reference { ino: InodeId::new(300), kind: FileKind::Directory };
        let bytes = Content::Inline(Bytes::from_static(b"abc"));
        let several = [
            Body::Inline(inode(200, Content::None)),
            reference,
            Body::Inline(inode(400, bytes)),
            Body::Inline(inode(500, Content::Chunks)),
        ];
        let longer =
            Inode { size: 1 << 40, ..inode(200, Content::Object { dirty: false, blocks: 77 }) };
        for names in 1..=several.len() {
            let mut row = EntryRow::default();
            for (body, i) in several[..names].iter().zip(0..) {
                assert_eq!(row.insert(&[b'a' + i], body.clone()), Some(i));
            }
            let stored = Bytes::from(row.encode());
            for slot in 0..=names as u8 {
                let found = Inlined::find(stored.clone(), slot).unwrap();
                let Some(Body::Inline(there)) = row.at(slot).map(|named| &named.body) else {
                    assert!(found.is_none());
                    continue;
                };
                let (inode, inlined) = found.unwrap();
                assert_eq!((&inode, inlined.row()), (there, &stored));
                assert_eq!(inlined.replaced(&inode), stored);
                let mut changed = row.clone();
                assert!(changed.set_body(slot, Body::Inline(longer.clone())));
                assert_eq!(inlined.replaced(&longer), changed.encode());
                for bit in 0..8 * stored.len() {
                    let mut damaged = stored.to_vec();
                    damaged[bit / 8] ^= 1 << (bit % 8);
                    let damaged = Bytes::from(damaged);
                    let found = Inlined::find(damaged.clone(), slot);
                    let found = found.map(|found| found.map(|(inode, _)| inode));
                    let decoded = EntryRow::decode(&damaged).map(|row| match row.at(slot)?.body {
                        Body::Inline(ref inode) => Some(inode.clone()),
                        Body::Reference { .. } => None,
                    });
                    assert_eq!(found, decoded, "bit {bit}");
                }
            }
        }
    }
}
