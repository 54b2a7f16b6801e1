//! The frames of a sent snapshot.
//!
//! ```text
//! stream   8 bytes "varvesnd", then frames
//!
//! frame    offset  bytes  field
//!               0      1  kind: 1 header, 2 rows, 3 bytes, 4 file, 5 end, 6 changed, 7 hole
//!               1      4  bytes of the content, at most 4 MiB
//!               5      n  content
//!             5+n      4  crc32c of: number of the frame u64, kind, length, content
//!
//! header   JSON: [`Header`]
//! rows     varint key space, then of each row: varint length of the key, key, varint 0 if it is gone,
//!          else length of the value and 1, value
//! bytes    varint inode, varint offset, then the bytes
//! file     varint inode, varint length, varint seconds and nanoseconds of its last change
//! end      varint number of frames before it, varint rows, varint bytes of files
//! changed  varint inode, varint length that it has in the base
//! hole     varint inode, varint offset, varint bytes
//! ```
//!
//! The large files of a row come right behind the frame that ends with it. A file begins with nothing, or, after a frame
//! `changed`, with what it is in the base. Only streams of version 2 have frames `changed` and `hole`; those without a base
//! are of version 1.
//!
//! Key spaces are 0 for metadata, 1 for data, 2 for the names of dictionaries, and 3 and up for the pairs of dictionary 0
//! and up. Numbers are little-endian. What follows the end is no part of the stream.

use std::io::{self, Read, Write};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use varve_schema::{DecodeError, Reader, put_varint};

/// How every stream begins.
const MAGIC: [u8; 8] = *b"varvesnd";
/// The newest version of streams: large files come as what has changed in them.
pub const STREAM_VERSION: u32 = 2;
/// The version of streams whose large files all come whole.
pub const WHOLE_FILES_VERSION: u32 = 1;
/// The most bytes of a frame's content: more than a row can have beside a batch of others.
const CONTENT_BYTES_MAX: usize = 4 << 20;

/// The most bytes of a key in a [`Position`]. Metadata has none as long. With four digits for each a token fits the arguments of
/// a program and what daemons are asked for; where a longer key was the last, those that begin as it does come again.
pub(super) const POSITION_KEY_BYTES_MAX: usize = 4 << 10;

const HEADER: u8 = 1;
const ROWS: u8 = 2;
const BYTES: u8 = 3;
const FILE: u8 = 4;
const END: u8 = 5;
const CHANGED: u8 = 6;
const HOLE: u8 = 7;

/// What is wrong with a range of a file.
const BEYOND: &str = "a range beyond 64 bits";

/// A snapshot, as other stores know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotId {
    /// The same in every store that has the snapshot, and no other's.
    pub id: String,
    /// Its name where it was sent.
    pub name: String,
}

impl SnapshotId {
    /// The row of a state that is to be this snapshot.
    pub(super) fn row(&self) -> Vec<u8> {
        serde_json::json!(self).to_string().into_bytes()
    }

    /// The one in the row of a state that is to be a snapshot.
    pub fn of_row(row: &[u8]) -> Option<SnapshotId> {
        serde_json::from_slice(row).ok()
    }
}

/// What a stream says first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The version of the stream.
    pub version: u32,
    /// What is sent.
    pub snapshot: SnapshotId,
    /// What the receiver must have; without it, nothing.
    pub base: Option<SnapshotId>,
    /// An id above every inode of the snapshot.
    pub inodes_end: u64,
    /// No inode from this one on is in the base.
    pub new_from: u64,
    /// Key of the hash of names, 32 hexadecimal digits.
    pub name_hash_key: String,
    /// Bits kept of that hash.
    pub name_hash_bits: u32,
    /// Files larger than this are sent by themselves, in bytes.
    pub large_file_threshold_bytes: u64,
    /// Data is compressed where it is stored.
    pub compression: bool,
    /// Where an interrupted stream goes on; without it, at the beginning.
    pub from: Option<Position>,
}

/// How far a stream has come: all rows up to a key are received, and the large files of these rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The key space of the row.
    pub space: u32,
    /// The key of a row, or how a longer one begins, in hexadecimal digits: at most 4 KiB.
    pub key: String,
    /// Of the large files of the row of that key only those before this one are received.
    pub file: Option<FilePosition>,
}

/// How far a large file has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePosition {
    /// Its inode.
    pub ino: u64,
    /// What comes next, in bytes.
    pub offset: u64,
}

/// A row: its key, and its value unless it is gone.
pub type SentRow = (Vec<u8>, Option<Vec<u8>>);

/// What a frame says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// First of all.
    Header(Header),
    /// Rows of a key space, by key.
    Rows {
        /// The key space.
        space: u32,
        /// The rows.
        rows: Vec<SentRow>,
    },
    /// Bytes of a large file; between those that come it is as it began.
    Bytes {
        /// Its inode.
        ino: u64,
        /// Where they are.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// A large file begins with what it is in the base.
    Changed {
        /// Its inode.
        ino: u64,
        /// How long it is there.
        base_len: u64,
    },
    /// There are no bytes in this range of a large file any more.
    Hole {
        /// Its inode.
        ino: u64,
        /// Where it begins.
        offset: u64,
        /// How long it is.
        len: u64,
    },
    /// All bytes of a large file have come.
    File {
        /// Its inode.
        ino: u64,
        /// How long it is.
        len: u64,
        /// When it was changed last: seconds since 1970 and nanoseconds.
        modified: (i64, u32),
    },
    /// All has come.
    End {
        /// Frames before this one.
        frames: u64,
        /// Rows in them.
        rows: u64,
        /// Bytes of large files in them.
        bytes: u64,
    },
}

fn varints(numbers: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    numbers.iter().for_each(|number| put_varint(&mut out, *number));
    out
}

impl Frame {
    fn encode(&self) -> (u8, Vec<u8>) {
        let mut out = Vec::new();
        match self {
            Frame::Header(header) => (HEADER, serde_json::to_vec(header).unwrap_or_default()),
            Frame::Rows { space, rows } => {
                put_varint(&mut out, (*space).into());
                for (key, value) in rows {
                    put_varint(&mut out, key.len() as u64);
                    out.extend_from_slice(key);
                    put_varint(&mut out, value.as_ref().map_or(0, |value| value.len() as u64 + 1));
                    out.extend_from_slice(value.as_deref().unwrap_or_default());
                }
                (ROWS, out)
            }
            Frame::Bytes { ino, offset, bytes } => {
                put_varint(&mut out, *ino);
                put_varint(&mut out, *offset);
                out.extend_from_slice(bytes);
                (BYTES, out)
            }
            Frame::Changed { ino, base_len } => (CHANGED, varints(&[*ino, *base_len])),
            Frame::Hole { ino, offset, len } => (HOLE, varints(&[*ino, *offset, *len])),
            Frame::File { ino, len, modified: (secs, nanos) } => {
                (FILE, varints(&[*ino, *len, secs.cast_unsigned(), (*nanos).into()]))
            }
            Frame::End { frames, rows, bytes } => (END, varints(&[*frames, *rows, *bytes])),
        }
    }

    /// The frame of this kind and content, if it is one. Of every frame but a header there is one content.
    pub fn decode(kind: u8, content: &Bytes) -> Option<Frame> {
        if kind == HEADER {
            return serde_json::from_slice(content).ok().map(Frame::Header);
        }
        Frame::read(kind, Reader::new(content)).ok()
    }

    fn read(kind: u8, mut content: Reader<'_>) -> Result<Frame, DecodeError> {
        let frame = match kind {
            ROWS => {
                let (space, mut rows) = (content.varint32()?, Vec::new());
                while content.end().is_err() {
                    rows.push(read_row(&mut content)?);
                }
                Frame::Rows { space, rows }
            }
            BYTES => {
                let (ino, offset) = (content.varint()?, content.varint()?);
                let bytes = content.rest().to_vec();
                offset.checked_add(bytes.len() as u64).ok_or_else(|| content.error(BEYOND))?;
                Frame::Bytes { ino, offset, bytes }
            }
            CHANGED => Frame::Changed { ino: content.varint()?, base_len: content.varint()? },
            HOLE => {
                let (ino, offset, len) = (content.varint()?, content.varint()?, content.varint()?);
                offset.checked_add(len).ok_or_else(|| content.error(BEYOND))?;
                Frame::Hole { ino, offset, len }
            }
            FILE => {
                let (ino, len, secs) = (content.varint()?, content.varint()?, content.varint()?);
                Frame::File { ino, len, modified: (secs.cast_signed(), content.varint32()?) }
            }
            END => Frame::End {
                frames: content.varint()?,
                rows: content.varint()?,
                bytes: content.varint()?,
            },
            _ => return Err(content.error("an unknown kind")),
        };
        content.end().map(|()| frame)
    }
}

fn read_row(content: &mut Reader<'_>) -> Result<SentRow, DecodeError> {
    let len_max = |len| usize::try_from(len).unwrap_or(usize::MAX);
    let key_len = len_max(content.varint()?);
    let key = content.borrow(key_len)?.to_vec();
    let value = match content.varint()? {
        0 => None,
        len => Some(content.borrow(len_max(len - 1))?.to_vec()),
    };
    Ok((key, value))
}

fn checksum(number: u64, kind: u8, content: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&number.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &[kind]);
    let crc = crc32c::crc32c_append(crc, &(content.len() as u32).to_le_bytes());
    crc32c::crc32c_append(crc, content)
}

/// Writes a stream.
pub struct FrameWriter<'a> {
    out: &'a mut dyn Write,
    frames: u64,
}

impl<'a> FrameWriter<'a> {
    /// Begins a stream.
    pub fn new(out: &'a mut dyn Write) -> io::Result<FrameWriter<'a>> {
        out.write_all(&MAGIC)?;
        Ok(FrameWriter { out, frames: 0 })
    }

    /// Frames written.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Writes a frame.
    pub fn write(&mut self, frame: &Frame) -> io::Result<()> {
        let (kind, content) = frame.encode();
        if content.len() > CONTENT_BYTES_MAX {
            return Err(io::Error::other("a frame of more than 4 MiB"));
        }
        self.out.write_all(&[kind])?;
        self.out.write_all(&(content.len() as u32).to_le_bytes())?;
        self.out.write_all(&content)?;
        self.out.write_all(&checksum(self.frames, kind, &content).to_le_bytes())?;
        self.frames += 1;
        if matches!(frame, Frame::End { .. }) { self.out.flush() } else { Ok(()) }
    }
}

/// Reads a stream.
pub struct FrameReader<'a> {
    input: &'a mut dyn Read,
    frames: u64,
    offset: u64,
}

impl<'a> FrameReader<'a> {
    /// Begins to read. `InvalidData` if this is no stream.
    pub fn new(input: &'a mut dyn Read) -> io::Result<FrameReader<'a>> {
        let mut reader = FrameReader { input, frames: 0, offset: 0 };
        let mut magic = [0; 8];
        reader.fill(&mut magic)?;
        if magic != MAGIC {
            return Err(wrong("this is no sent snapshot".to_owned()));
        }
        Ok(reader)
    }

    /// Frames read.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// The next frame. `InvalidData` names the place of what is damaged, `UnexpectedEof` says that the stream ends too early.
    pub fn next_frame(&mut self) -> io::Result<Frame> {
        let at = self.offset;
        let (mut head, mut crc) = ([0; 5], [0; 4]);
        self.fill(&mut head)?;
        let kind = head[0];
        let len = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if len > CONTENT_BYTES_MAX {
            return Err(wrong(format!(
                "the stream is damaged at offset {at}: a frame of {len} bytes"
            )));
        }
        let mut content = vec![0; len];
        self.fill(&mut content)?;
        self.fill(&mut crc)?;
        if u32::from_le_bytes(crc) != checksum(self.frames, kind, &content) {
            return Err(wrong(format!("the stream is damaged at offset {at}: a wrong checksum")));
        }
        self.frames += 1;
        let unknown = || wrong(format!("the stream has an unknown frame at offset {at}"));
        Frame::decode(kind, &content.into()).ok_or_else(unknown)
    }

    fn fill(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let at = self.offset;
        self.input.read_exact(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                io::Error::new(error.kind(), format!("the stream ends early, after offset {at}"))
            }
            _ => error,
        })?;
        self.offset += buffer.len() as u64;
        Ok(())
    }
}

fn wrong(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number was taken in longer forms, too.
    #[test]
    fn each_frame_has_one_content() {
        let frames = [
            Frame::Rows { space: 1, rows: vec![(vec![], None), (vec![7; 9], Some(vec![8; 300]))] },
            Frame::Bytes { ino: 300, offset: u64::MAX - 9, bytes: vec![5; 9] },
            Frame::Changed { ino: 300, base_len: u64::MAX },
            Frame::Hole { ino: 300, offset: u64::MAX - 9, len: 9 },
            Frame::File { ino: 300, len: 0, modified: (-1, 999_999_999) },
            Frame::End { frames: 0, rows: 1, bytes: 1 << 40 },
        ];
        for frame in frames {
            let (kind, content) = frame.encode();
            let decoded = |content: &[u8]| Frame::decode(kind, &content.to_vec().into());
            assert_eq!(decoded(&content).as_ref(), Some(&frame));
            let first_end = content.iter().position(|byte| byte & 0x80 == 0).unwrap();
            let mut longer = content.clone();
            longer[first_end] |= 0x80;
            longer.insert(first_end + 1, 0);
            assert_eq!(decoded(&longer), None, "{frame:?}");
            if !matches!(frame, Frame::Bytes { .. }) {
                assert_eq!(decoded(&content[..content.len() - 1]), None, "{frame:?}");
                assert_eq!(decoded(&[&content[..], &[0x80]].concat()), None, "{frame:?}");
            }
        }
        for beyond in [
            (BYTES, [varints(&[1, u64::MAX]), vec![5; 9]].concat()),
            (HOLE, varints(&[1, u64::MAX, 1])),
            (ROWS, varints(&[1 << 32])),
            (FILE, varints(&[1, 1, 1, 1 << 32])),
            (0, varints(&[1])),
            (HOLE + 1, varints(&[1])),
        ] {
            assert_eq!(Frame::decode(beyond.0, &beyond.1.into()), None);
        }
    }
}
