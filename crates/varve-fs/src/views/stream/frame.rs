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

use serde::{Deserialize, Serialize};

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

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn varints(numbers: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    numbers.iter().for_each(|number| put_varint(&mut out, *number));
    out
}

/// What is left of a content.
struct Content<'a>(&'a [u8]);

impl<'a> Content<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(taken)
    }
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

    /// The frame of this kind and content, if it is one.
    pub fn decode(kind: u8, content: &[u8]) -> Option<Frame> {
        let mut rest = Content(content);
        let frame = match kind {
            HEADER => return serde_json::from_slice(content).ok().map(Frame::Header),
            ROWS => {
                let (space, mut rows) = (u32::try_from(rest.varint()?).ok()?, Vec::new());
                while !rest.0.is_empty() {
                    let len = rest.varint()?;
                    let key = rest.take(len)?.to_vec();
                    let value = match rest.varint()? {
                        0 => None,
                        len => Some(rest.take(len - 1)?.to_vec()),
                    };
                    rows.push((key, value));
                }
                Frame::Rows { space, rows }
            }
            BYTES => {
                let (ino, offset) = (rest.varint()?, rest.varint()?);
                offset.checked_add(rest.0.len() as u64)?;
                let bytes = std::mem::take(&mut rest.0).to_vec();
                Frame::Bytes { ino, offset, bytes }
            }
            CHANGED => Frame::Changed { ino: rest.varint()?, base_len: rest.varint()? },
            HOLE => {
                let (ino, offset, len) = (rest.varint()?, rest.varint()?, rest.varint()?);
                offset.checked_add(len)?;
                Frame::Hole { ino, offset, len }
            }
            FILE => {
                let (ino, len, secs) = (rest.varint()?, rest.varint()?, rest.varint()?);
                let nanos = u32::try_from(rest.varint()?).ok()?;
                Frame::File { ino, len, modified: (secs.cast_signed(), nanos) }
            }
            END => {
                let (frames, rows, bytes) = (rest.varint()?, rest.varint()?, rest.varint()?);
                Frame::End { frames, rows, bytes }
            }
            _ => return None,
        };
        rest.0.is_empty().then_some(frame)
    }
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
        Frame::decode(kind, &content).ok_or_else(unknown)
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
