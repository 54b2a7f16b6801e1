//! The state that a file system has only in memory, which one process hands to its successor on the same mount: the
//! inodes that the kernel has looked up, with their counts, and the open files.
//!
//! ```text
//! | version u8 | next handle varint | spilled varint |
//! | count varint | known inode ... | count varint | open file ... |
//!
//! known inode:  | ino varint | lookups varint | flags u8 | place |
//!               flags: 0 orphan, 1 may still get its first name, 2 passthrough handles read an earlier object
//! place:        see [`InodeLocation`]
//! open file:    | handle varint | ino varint | flags u8 |
//!               flags: 0 read, 1 write, 2 append, 3 sync, 4 passthrough, 5 execute, 6 opened to append
//! ```
//!
//! `spilled` counts the inodes whose entries are in the key space `lookups`. The decoder never allocates memory by a
//! count alone.

use bytes::Bytes;
use varve_types::InodeId;

use crate::{DecodeError, InodeLocation, ROW_VERSION, Reader, put_varint};

const ORPHAN: u8 = 1;
const LINKABLE: u8 = 1 << 1;
const REPLACED: u8 = 1 << 2;

const READ: u8 = 1;
const WRITE: u8 = 1 << 1;
const APPEND: u8 = 1 << 2;
const SYNC: u8 = 1 << 3;
const PASSTHROUGH: u8 = 1 << 4;
const EXECUTE: u8 = 1 << 5;
const APPENDS: u8 = 1 << 6;

/// The volatile state of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    /// The number of the next handle.
    pub next_handle: u64,
    /// Known inodes whose entries are in the store.
    pub spilled: u64,
    /// Known inodes whose entries are in memory.
    pub known: Vec<KnownInode>,
    /// Open files.
    pub open: Vec<OpenHandle>,
}

/// An inode that the kernel looked up or has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownInode {
    /// Its id.
    pub ino: InodeId,
    /// The number of lookups that were not taken back.
    pub lookups: u64,
    /// Its last name is removed, and its rows wait for the last close.
    pub orphan: bool,
    /// It was made without a name and may still get one.
    pub linkable: bool,
    /// A commit has replaced the object that the kernel reads by passthrough.
    pub replaced: bool,
    /// Where its attributes are.
    pub place: InodeLocation,
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenHandle {
    /// The handle.
    pub handle: u64,
    /// The inode.
    pub ino: InodeId,
    /// Opened for reading.
    pub read: bool,
    /// Opened for writing.
    pub write: bool,
    /// Every write goes to the end.
    pub append: bool,
    /// Every write is durable before it returns.
    pub sync: bool,
    /// The kernel reads and writes its bytes by passthrough.
    pub passthrough: bool,
    /// A program runs from it.
    pub execute: bool,
    /// It was opened to append; the front end says for each write whether it goes to the end.
    pub appends: bool,
}

fn flag(on: bool, bit: u8) -> u8 {
    if on { bit } else { 0 }
}

impl Handover {
    /// Encodes the state.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![ROW_VERSION];
        put_varint(&mut out, self.next_handle);
        put_varint(&mut out, self.spilled);
        put_varint(&mut out, self.known.len() as u64);
        self.known.iter().for_each(|known| known.encode_to(&mut out));
        put_varint(&mut out, self.open.len() as u64);
        self.open.iter().for_each(|open| open.encode_to(&mut out));
        out
    }

    /// Decodes what [`Handover::encode`] wrote.
    pub fn decode(bytes: &Bytes) -> Result<Handover, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.version()?;
        let (next_handle, spilled) = (reader.varint()?, reader.varint()?);
        let known = list(&mut reader, KnownInode::decode_from)?;
        let open = list(&mut reader, OpenHandle::decode_from)?;
        reader.end()?;
        Ok(Handover { next_handle, spilled, known, open })
    }
}

/// Decodes as many items as the count before them says. Each takes at least a byte, so a wrong count ends with the
/// bytes.
fn list<T>(
    reader: &mut Reader<'_>,
    mut item: impl FnMut(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let mut items = Vec::new();
    for _ in 0..reader.varint()? {
        items.push(item(reader)?);
    }
    Ok(items)
}

/// Decodes a byte of flags; fails on unknown flags.
fn flags(reader: &mut Reader<'_>, known: u8) -> Result<u8, DecodeError> {
    match reader.u8()? {
        flags if flags & !known == 0 => Ok(flags),
        _ => Err(reader.error("unknown flags")),
    }
}

impl KnownInode {
    fn encode_to(&self, out: &mut Vec<u8>) {
        put_varint(out, self.ino.get());
        put_varint(out, self.lookups);
        out.push(
            flag(self.orphan, ORPHAN)
                | flag(self.linkable, LINKABLE)
                | flag(self.replaced, REPLACED),
        );
        self.place.encode_to(out);
    }

    fn decode_from(reader: &mut Reader<'_>) -> Result<KnownInode, DecodeError> {
        let (ino, lookups) = (InodeId::new(reader.varint()?), reader.varint()?);
        let flags = flags(reader, ORPHAN | LINKABLE | REPLACED)?;
        let place = InodeLocation::decode_from(reader)?;
        let has = |bit: u8| flags & bit != 0;
        let (orphan, linkable, replaced) = (has(ORPHAN), has(LINKABLE), has(REPLACED));
        Ok(KnownInode { ino, lookups, orphan, linkable, replaced, place })
    }
}

impl OpenHandle {
    fn encode_to(&self, out: &mut Vec<u8>) {
        put_varint(out, self.handle);
        put_varint(out, self.ino.get());
        out.push(
            flag(self.read, READ)
                | flag(self.write, WRITE)
                | flag(self.append, APPEND)
                | flag(self.sync, SYNC)
                | flag(self.passthrough, PASSTHROUGH)
                | flag(self.execute, EXECUTE)
                | flag(self.appends, APPENDS),
        );
    }

    fn decode_from(reader: &mut Reader<'_>) -> Result<OpenHandle, DecodeError> {
        let (handle, ino) = (reader.varint()?, InodeId::new(reader.varint()?));
        let known = READ | WRITE | APPEND | SYNC | PASSTHROUGH | EXECUTE | APPENDS;
        let flags = flags(reader, known)?;
        let has = |bit: u8| flags & bit != 0;
        let (read, write, append) = (has(READ), has(WRITE), has(APPEND));
        let (sync, passthrough, execute) = (has(SYNC), has(PASSTHROUGH), has(EXECUTE));
        let appends = has(APPENDS);
        Ok(OpenHandle { handle, ino, read, write, append, sync, passthrough, execute, appends })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_false_count_allocates_nothing() {
        let mut bytes = vec![ROW_VERSION, 0, 0];
        put_varint(&mut bytes, u64::MAX);
        let error = Handover::decode(&Bytes::from(bytes)).unwrap_err();
        assert_eq!(error.what, "the row ends too early");
    }
}
