//! The format of a trace in a file or stream.
//!
//! ```text
//! trace    8 bytes "varvetrc", u8 version: 1, then frames
//!
//! frame    offset  bytes  field
//!               0      4  bytes of the content, 1 to 1 MiB
//!               4      4  crc32c of: number of the frame u64, content
//!               8      n  content: varint time of the first record in microseconds since 1970, then records
//! ```
//!
//! Integers are little-endian.
//!
//! 1. A [`Writer`] collects records and writes a frame when it is full.
//! 2. A [`Reader`] checks one frame after the other and returns its records.
//!
//! Invariants: records are in the order of their times; a late record gets the time of the one before it. A trace
//! ends with its last whole frame. An incomplete frame at the end, which a killed recorder leaves, is no error, but
//! [`Reader::is_cut`] reports it.

use std::io::{self, ErrorKind, Read, Write};

use bytes::Bytes;
use varve_schema::{DecodeError, put_varint};

use crate::record::Record;

/// The bytes at the beginning of every trace.
const MAGIC: [u8; 8] = *b"varvetrc";
/// The version of the format.
const VERSION: u8 = 1;
/// Bytes before the content of a frame.
const FRAME_HEAD: u64 = 8;
/// The most bytes of a frame's content.
const CONTENT_BYTES_MAX: usize = 1 << 20;
/// The length at which a frame is written, in bytes.
const CONTENT_BYTES: usize = 64 << 10;

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The storage or the stream failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is not a trace.
    #[error("this is not a trace: it does not begin with \"varvetrc\"")]
    NoTrace,
    /// A newer program wrote it.
    #[error(
        "this is a trace of version {0}, and this program reads version 1; use a newer program"
    )]
    Version(u8),
    /// Its bytes are damaged.
    #[error("frame {frame} at offset {offset} is damaged: {what}; the records before it are whole")]
    Damaged {
        /// The number of the frame, from 0.
        frame: u64,
        /// Where in the trace it begins.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// A line of an imported log cannot be parsed.
    #[error("line {line}: {what}")]
    Line {
        /// Its number, from 1.
        line: u64,
        /// What is wrong.
        what: String,
    },
}

fn checksum(frame: u64, content: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&frame.to_le_bytes()), content)
}

/// Writes a trace.
pub struct Writer<W: Write> {
    out: W,
    content: Vec<u8>,
    frame: u64,
    /// The time of the last record.
    before_us: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace.
    pub fn new(mut out: W) -> io::Result<Writer<W>> {
        out.write_all(&MAGIC)?;
        out.write_all(&[VERSION])?;
        Ok(Writer { out, content: Vec::new(), frame: 0, before_us: 0 })
    }

    /// Appends a record. The writer writes it with the rest of its frame, at the latest in [`Writer::flush`].
    pub fn put(&mut self, record: &Record) -> io::Result<()> {
        if self.content.is_empty() {
            self.before_us = self.before_us.max(record.at_us);
            put_varint(&mut self.content, self.before_us);
        }
        record.encode(self.before_us, &mut self.content);
        self.before_us = self.before_us.max(record.at_us);
        if self.content.len() >= CONTENT_BYTES { self.end_frame() } else { Ok(()) }
    }

    fn end_frame(&mut self) -> io::Result<()> {
        if self.content.is_empty() {
            return Ok(());
        }
        let mut head = [0; FRAME_HEAD as usize];
        head[..4].copy_from_slice(&(self.content.len() as u32).to_le_bytes());
        head[4..].copy_from_slice(&checksum(self.frame, &self.content).to_le_bytes());
        self.out.write_all(&head)?;
        self.out.write_all(&self.content)?;
        self.content.clear();
        self.frame += 1;
        Ok(())
    }

    /// Writes all appended records and returns the underlying writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        Ok(self.out)
    }

    /// Writes all appended records.
    pub fn flush(&mut self) -> io::Result<()> {
        self.end_frame()?;
        self.out.flush()
    }
}

/// Reads a trace, record by record, in the memory of one frame.
pub struct Reader<R: Read> {
    input: R,
    frame: u64,
    /// Where the next frame begins.
    offset: u64,
    /// The remaining records of the present frame, the last one first.
    records: Vec<Record>,
    is_cut: bool,
    has_ended: bool,
}

impl<R: Read> Reader<R> {
    /// Begins to read a trace.
    pub fn new(mut input: R) -> Result<Reader<R>, TraceError> {
        let mut head = [0; MAGIC.len() + 1];
        input.read_exact(&mut head).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => TraceError::NoTrace,
            _ => TraceError::Io(error),
        })?;
        match head.split_last() {
            Some((&VERSION, magic)) if magic == MAGIC => {}
            Some((version, magic)) if magic == MAGIC => return Err(TraceError::Version(*version)),
            _ => return Err(TraceError::NoTrace),
        }
        let offset = head.len() as u64;
        let (records, is_cut, has_ended) = (Vec::new(), false, false);
        Ok(Reader { input, frame: 0, offset, records, is_cut, has_ended })
    }

    /// Returns whether the trace ended in the middle of a frame, whose records are missing.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn damaged(&self, what: impl ToString) -> TraceError {
        TraceError::Damaged { frame: self.frame, offset: self.offset, what: what.to_string() }
    }

    /// Reads the next frame; false at the end.
    fn next_frame(&mut self) -> Result<bool, TraceError> {
        let mut head = Vec::with_capacity(FRAME_HEAD as usize);
        Read::by_ref(&mut self.input).take(FRAME_HEAD).read_to_end(&mut head)?;
        let Some((bytes, sum)) = head.split_first_chunk::<4>().and_then(|(bytes, rest)| {
            Some((u32::from_le_bytes(*bytes) as usize, u32::from_le_bytes(rest.try_into().ok()?)))
        }) else {
            self.is_cut = !head.is_empty();
            return Ok(false);
        };
        if !(1..=CONTENT_BYTES_MAX).contains(&bytes) {
            return Err(self.damaged(format!("it says that it has {bytes} bytes")));
        }
        let mut content = Vec::new();
        Read::by_ref(&mut self.input).take(bytes as u64).read_to_end(&mut content)?;
        if content.len() < bytes {
            self.is_cut = true;
            return Ok(false);
        }
        if checksum(self.frame, &content) != sum {
            return Err(self.damaged("its checksum is another"));
        }
        self.records = decode(&Bytes::from(content)).map_err(|error| self.damaged(error))?;
        self.records.reverse();
        self.frame += 1;
        self.offset += FRAME_HEAD + bytes as u64;
        Ok(true)
    }
}

fn decode(content: &Bytes) -> Result<Vec<Record>, DecodeError> {
    let mut reader = varve_schema::Reader::new(content);
    let mut before_us = reader.varint()?;
    let mut records = Vec::new();
    while reader.end().is_err() {
        let record = Record::decode(&mut reader, before_us)?;
        before_us = record.at_us;
        records.push(record);
    }
    Ok(records)
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Result<Record, TraceError>;

    /// Returns the next record. After an error there is none.
    fn next(&mut self) -> Option<Result<Record, TraceError>> {
        while self.records.is_empty() && !self.has_ended {
            match self.next_frame() {
                Ok(true) => {}
                Ok(false) => self.has_ended = true,
                Err(error) => {
                    self.has_ended = true;
                    return Some(Err(error));
                }
            }
        }
        self.records.pop().map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{OPS, Op};

    /// A record of each operation, with every field in turn.
    fn records() -> Vec<Record> {
        let with_op = |(number, op): (usize, &Op)| {
            let number = number as u64;
            let mut record = Record::new(1_700_000_000_000_000 + number * 1000, number % 3, *op);
            record.took_us = number;
            record.object = number.is_multiple_of(2).then_some(number << 40);
            record.dir = number.is_multiple_of(3).then_some(number);
            record.name = vec![b'a'; number as usize % 4];
            record.new_dir = number.is_multiple_of(5).then_some(7);
            record.new_name = vec![0xff; number as usize % 3];
            record.error = number as u32 % 4;
            record.is_dir = number.is_multiple_of(7);
            record
        };
        OPS.iter().chain([&Op::Known]).enumerate().map(with_op).collect()
    }

    fn bytes(records: &[Record]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new()).expect("writer");
        records.iter().for_each(|record| writer.put(record).expect("put"));
        writer.finish().expect("finish")
    }

    fn read(bytes: &[u8]) -> (Vec<Record>, Option<TraceError>, bool) {
        let mut reader = match Reader::new(bytes) {
            Ok(reader) => reader,
            Err(error) => return (Vec::new(), Some(error), false),
        };
        let (mut records, mut failed) = (Vec::new(), None);
        for record in reader.by_ref() {
            match record {
                Ok(record) => records.push(record),
                Err(error) => failed = Some(error),
            }
        }
        (records, failed, reader.is_cut())
    }

    #[test]
    fn what_is_written_is_read() {
        let all: Vec<Record> = records().into_iter().cycle().take(20_000).collect();
        let mut sorted = all.clone();
        // Late ones get the time of the one before.
        let mut before = 0;
        for record in &mut sorted {
            before = record.at_us.max(before);
            record.at_us = before;
        }
        let (found, failed, is_cut) = read(&bytes(&all));
        assert!(failed.is_none() && !is_cut && found == sorted);
    }

    #[test]
    fn the_format_has_not_changed() {
        let golden = include_bytes!("../tests/golden/every_operation.trace");
        assert_eq!(bytes(&records()), golden, "a change of the format is another version");
        assert_eq!(read(golden).0, records());
    }

    #[test]
    fn no_damage_goes_unnoticed() {
        let whole = bytes(&records());
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            let (found, failed, is_cut) = read(&damaged);
            assert!(failed.is_some() || is_cut, "byte {at}");
            assert!(found.is_empty());
            let (found, failed, is_cut) = read(&whole[..at]);
            assert!(failed.is_some() == (at < 9) && is_cut == (at > 9) && found.is_empty(), "{at}");
        }
        let error = read(b"varvetrc\x02").1.expect("an error").to_string();
        assert!(error.contains("version 2"), "{error}");
    }
}
