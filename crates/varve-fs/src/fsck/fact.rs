//! What a scan of the names learns, in records that are sorted by inode, so that all that is known of one
//! inode comes together without a table of all inodes in memory.
//!
//! The order within one inode is that of [`What`]: its own row, inodes within entries, what else is known; names
//! that refer to it last, each beside the parent pointers that lead to it.

use varve_schema::{
    Content, DecodeError, EntrySuffix, FileKind, Inode, Pending, Reader, put_varint,
};
use varve_types::InodeId;

use super::sorter::Record;

/// Where a name stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Spot {
    /// The directory.
    pub(crate) dir: u64,
    /// The row within it.
    pub(crate) suffix: EntrySuffix,
    /// The name within the row.
    pub(crate) slot: u8,
}

/// Where an inode says that its content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum ContentKind {
    /// In the inode, or nowhere, or with another.
    Inode = 1,
    /// In chunk rows.
    Chunks = 2,
    /// In an object whose size the row knows.
    Object = 3,
    /// In an object that knows its size better.
    DirtyObject = 4,
}

impl ContentKind {
    pub(crate) fn of(content: &Content) -> ContentKind {
        match content {
            Content::None
            | Content::Inline(_)
            | Content::Symlink(_)
            | Content::Directory(_)
            | Content::Shared(_) => ContentKind::Inode,
            Content::Chunks => ContentKind::Chunks,
            Content::Object { dirty: false, .. } => ContentKind::Object,
            Content::Object { dirty: true, .. } => ContentKind::DirtyObject,
        }
    }

    fn from_u8(raw: u8) -> Option<ContentKind> {
        match raw {
            1 => Some(ContentKind::Inode),
            2 => Some(ContentKind::Chunks),
            3 => Some(ContentKind::Object),
            4 => Some(ContentKind::DirtyObject),
            _ => None,
        }
    }

    /// True if an object file belongs to it.
    pub(crate) fn is_object(self) -> bool {
        matches!(self, ContentKind::Object | ContentKind::DirtyObject)
    }
}

/// What matters of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) kind: FileKind,
    pub(crate) place: ContentKind,
    pub(crate) has_xattrs: bool,
    pub(crate) nlink: u32,
    pub(crate) size: u64,
    /// The source from which it still reads names or bytes.
    pub(crate) source: Option<u64>,
}

impl Seen {
    pub(crate) fn of(inode: &Inode) -> Seen {
        Seen {
            kind: inode.kind,
            place: ContentKind::of(&inode.content),
            has_xattrs: inode.has_xattrs,
            nlink: inode.nlink,
            size: inode.size,
            source: inode.source().map(InodeId::get),
        }
    }
}

/// What an inode with a row of its own says of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Up {
    /// Nothing.
    Nowhere,
    /// A file: the name where it counts.
    Home { dir: u64, hash: u64 },
    /// A directory: where its name is, and whether its parent has not been told all of its usage.
    Directory { parent: u64, suffix: Option<EntrySuffix>, pending: bool },
}

/// A name of a file with a row of its own, as far as parent pointers know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pointed {
    pub(crate) dir: u64,
    /// The hash under which its pointer lies.
    pub(crate) hash: u64,
    /// A checksum of the name, to tell names apart that share a hash.
    pub(crate) print: u32,
}

/// One thing known of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// It has a row of its own.
    Own { seen: Seen, up: Up },
    /// It is within an entry.
    Inline { spot: Spot, seen: Seen },
    /// Work is pending on it.
    Pending(Pending),
    /// The mark in this slot names it.
    Mark(u64),
    /// There are limits on it.
    Limits,
    /// It has a reference to this source, perhaps for its names.
    CloneReference { source: u64, folded: bool },
    /// Names of it in this clone are yet to come.
    CloneRemap { clone: u64, old: u64, left: u64 },
    /// An entry refers to it.
    Name { spot: Spot, kind: FileKind, pointed: Pointed },
    /// A parent pointer of it.
    Pointer(Pointed),
}

/// One thing known of one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fact {
    pub(crate) ino: InodeId,
    pub(crate) what: What,
}

impl What {
    fn tag(&self) -> u8 {
        match self {
            What::Own { .. } => 1,
            What::Inline { .. } => 2,
            What::Pending(_) => 3,
            What::Mark(_) => 4,
            What::Limits => 5,
            What::Name { .. } => 6,
            What::Pointer(_) => 7,
            What::CloneReference { .. } => 8,
            What::CloneRemap { .. } => 9,
        }
    }

    fn order(&self) -> (u8, Option<Pointed>, u8, Option<Spot>) {
        match self {
            What::Name { spot, pointed, .. } => (6, Some(*pointed), 0, Some(*spot)),
            What::Pointer(pointed) => (6, Some(*pointed), 1, None),
            What::Inline { spot, .. } => (2, None, 0, Some(*spot)),
            What::Own { .. }
            | What::Pending(_)
            | What::Mark(_)
            | What::Limits
            | What::CloneReference { .. }
            | What::CloneRemap { .. } => (self.tag(), None, 0, None),
        }
    }
}

impl PartialOrd for Fact {
    fn partial_cmp(&self, other: &Fact) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Fact {
    fn cmp(&self, other: &Fact) -> std::cmp::Ordering {
        self.ino.cmp(&other.ino).then_with(|| self.what.order().cmp(&other.what.order()))
    }
}

fn put_pointed(out: &mut Vec<u8>, pointed: &Pointed) {
    put_varint(out, pointed.dir);
    put_varint(out, pointed.hash);
    out.extend_from_slice(&pointed.print.to_le_bytes());
}

fn take_pointed(reader: &mut Reader<'_>) -> Result<Pointed, DecodeError> {
    Ok(Pointed { dir: reader.varint()?, hash: reader.varint()?, print: reader.u32()? })
}

fn put_up(out: &mut Vec<u8>, up: &Up) {
    match up {
        Up::Nowhere => out.push(1),
        Up::Home { dir, hash } => {
            out.push(2);
            put_varint(out, *dir);
            put_varint(out, *hash);
        }
        Up::Directory { parent, suffix, pending } => {
            out.push(if *pending { 4 } else { 3 });
            put_varint(out, *parent);
            put_varint(out, suffix.map_or(0, EntrySuffix::get));
        }
    }
}

fn take_up(reader: &mut Reader<'_>) -> Result<Up, DecodeError> {
    Ok(match reader.u8()? {
        1 => Up::Nowhere,
        2 => Up::Home { dir: reader.varint()?, hash: reader.varint()? },
        tag @ (3 | 4) => {
            let parent = reader.varint()?;
            let suffix = EntrySuffix::new(reader.varint()?);
            Up::Directory { parent, suffix, pending: tag == 4 }
        }
        _ => return Err(reader.error("an unknown place")),
    })
}

fn put_spot(out: &mut Vec<u8>, spot: &Spot) {
    put_varint(out, spot.dir);
    put_varint(out, spot.suffix.get());
    out.push(spot.slot);
}

fn take_spot(reader: &mut Reader<'_>) -> Result<Spot, DecodeError> {
    let dir = reader.varint()?;
    let suffix =
        EntrySuffix::new(reader.varint()?).ok_or_else(|| reader.error("a wrong suffix"))?;
    Ok(Spot { dir, suffix, slot: reader.u8()? })
}

fn take_kind(reader: &mut Reader<'_>) -> Result<FileKind, DecodeError> {
    FileKind::from_u8(reader.u8()?).ok_or_else(|| reader.error("an unknown file type"))
}

fn put_seen(out: &mut Vec<u8>, seen: &Seen) {
    out.extend_from_slice(&[seen.kind as u8, seen.place as u8, u8::from(seen.has_xattrs)]);
    put_varint(out, u64::from(seen.nlink));
    put_varint(out, seen.size);
    put_varint(out, seen.source.unwrap_or(0));
}

fn take_seen(reader: &mut Reader<'_>) -> Result<Seen, DecodeError> {
    let kind = take_kind(reader)?;
    let place =
        ContentKind::from_u8(reader.u8()?).ok_or_else(|| reader.error("an unknown place"))?;
    let has_xattrs = reader.u8()? != 0;
    let (nlink, size) = (reader.varint32()?, reader.varint()?);
    let source = Some(reader.varint()?).filter(|source| *source != 0);
    Ok(Seen { kind, place, has_xattrs, nlink, size, source })
}

impl Record for Fact {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.ino.get());
        out.push(self.what.tag());
        match &self.what {
            What::Own { seen, up } => {
                put_seen(out, seen);
                put_up(out, up);
            }
            What::Inline { spot, seen } => {
                put_spot(out, spot);
                put_seen(out, seen);
            }
            What::Pending(pending) => {
                let row = pending.encode();
                put_varint(out, row.len() as u64);
                out.extend_from_slice(&row);
            }
            What::Mark(slot) => put_varint(out, *slot),
            What::Limits => {}
            What::Name { spot, kind, pointed } => {
                put_spot(out, spot);
                out.push(*kind as u8);
                put_pointed(out, pointed);
            }
            What::Pointer(pointed) => put_pointed(out, pointed),
            What::CloneReference { source, folded } => {
                put_varint(out, *source);
                out.push(u8::from(*folded));
            }
            What::CloneRemap { clone, old, left } => {
                [clone, old, left].into_iter().for_each(|number| put_varint(out, *number));
            }
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Fact, DecodeError> {
        let ino = InodeId::new(reader.varint()?);
        let what = match reader.u8()? {
            1 => What::Own { seen: take_seen(reader)?, up: take_up(reader)? },
            2 => What::Inline { spot: take_spot(reader)?, seen: take_seen(reader)? },
            3 => {
                let len = reader.varint32()?;
                What::Pending(Pending::decode(&reader.take(len as usize)?)?)
            }
            4 => What::Mark(reader.varint()?),
            5 => What::Limits,
            6 => {
                let (spot, kind) = (take_spot(reader)?, take_kind(reader)?);
                What::Name { spot, kind, pointed: take_pointed(reader)? }
            }
            7 => What::Pointer(take_pointed(reader)?),
            8 => What::CloneReference { source: reader.varint()?, folded: reader.u8()? != 0 },
            9 => {
                let (clone, old) = (reader.varint()?, reader.varint()?);
                What::CloneRemap { clone, old, left: reader.varint()? }
            }
            _ => return Err(reader.error("an unknown fact")),
        };
        Ok(Fact { ino, what })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn facts_come_back_and_sort_by_inode_and_kind() {
        let spot = Spot { dir: 9, suffix: EntrySuffix::from_hash(77), slot: 3 };
        let seen = Seen {
            kind: FileKind::Regular,
            place: ContentKind::DirtyObject,
            has_xattrs: true,
            nlink: 2,
            size: 1 << 40,
            source: Some(77),
        };
        let ino = InodeId::new(300);
        let pointed = Pointed { dir: 9, hash: 1 << 50, print: 7 };
        let up = Up::Directory { parent: 1, suffix: Some(spot.suffix), pending: true };
        let whats = [
            What::Own { seen, up },
            What::Own { seen, up: Up::Home { dir: 3, hash: 4 } },
            What::Own { seen, up: Up::Nowhere },
            What::Inline { spot, seen },
            What::Pending(Pending::ObjectDelete),
            What::Pending(Pending::ObjectDirty { entry: Some((ino, spot.suffix)) }),
            What::Mark(70),
            What::Limits,
            What::Name { spot, kind: FileKind::Directory, pointed },
            What::Pointer(pointed),
            What::CloneReference { source: 77, folded: true },
            What::CloneRemap { clone: 70, old: 71, left: 1 },
        ];
        for (i, what) in whats.into_iter().enumerate() {
            let fact = Fact { ino, what };
            let mut out = Vec::new();
            fact.encode(&mut out);
            let bytes = Bytes::from(out);
            let mut reader = Reader::new(&bytes);
            assert_eq!(Fact::decode(&mut reader), Ok(fact));
            assert_eq!(reader.end(), Ok(()));
            for later in &whats[i..] {
                assert!(fact <= Fact { ino, what: *later });
            }
            assert!(Fact { ino: InodeId::new(301), what: whats[0] } > fact);
        }
    }
}
