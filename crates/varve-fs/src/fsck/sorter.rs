//! Sorts more records than fit in memory.
//!
//! 1. [`Sorter::push`] fills a buffer. When it is full it is sorted and written to a file as a *run*.
//! 2. When there are [`FAN_IN`] runs they are merged into one, so that a merge never reads more at once.
//! 3. [`Sorter::finish`] gives a [`Sorted`], which can be walked as often as needed: the buffer if
//!    everything fitted, else a merge of the runs.
//!
//! ```text
//! run: chunks, each | len u32 | crc32c u32 | records, len bytes |
//! ```
//!
//! Invariants: memory stays within the budget plus one chunk for each run; a run's file has no name, so
//! that it goes with the process, whatever happens to it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use varve_env::{Env, File, OpenMode};
use varve_schema::{DecodeError, Reader};
use varve_vfs::{FsError, FsResult};

/// Runs that are merged at once.
const FAN_IN: usize = 32;
/// A run is written and read in chunks of about this size.
const CHUNK_BYTES: usize = 32 << 10;
/// Bytes before a chunk's records.
const HEADER_BYTES: usize = 8;
/// The smallest buffer, in records.
const RECORDS_MIN: usize = 64;

/// What can be sorted.
pub(crate) trait Record: Ord + Clone {
    /// Appends the record to a chunk.
    fn encode(&self, out: &mut Vec<u8>);
    /// Reads what [`Record::encode`] wrote.
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;
    /// Bytes of memory it takes.
    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
    }
}

/// Where runs go.
#[derive(Clone, Debug)]
pub(crate) struct SpillPlace {
    pub(crate) env: Arc<dyn Env>,
    pub(crate) dir: PathBuf,
}

impl SpillPlace {
    /// A new file without a name.
    fn file(&self) -> FsResult<Arc<dyn File>> {
        let path = self.dir.join(format!("varve-spill-{:016x}", self.env.random()));
        let file = self
            .env
            .open(&path, OpenMode::CreateNew)
            .map_err(|error| spill_error("create", &self.dir, &error))?;
        self.env
            .remove_file(&path)
            .map_err(|error| spill_error("unlink a file in", &self.dir, &error))?;
        Ok(file)
    }
}

fn spill_error(action: &str, dir: &Path, error: &io::Error) -> FsError {
    let text = format!(
        "cannot {action} {} (sorted data that does not fit in memory): {error}; \
         make room there, or name another directory or more memory",
        dir.display()
    );
    FsError::Storage(text)
}

/// Takes records in any order.
pub(crate) struct Sorter<R> {
    place: SpillPlace,
    budget_bytes: usize,
    buffer: Vec<R>,
    buffered_bytes: usize,
    runs: Vec<Run>,
    len: u64,
    spilled_bytes: u64,
}

impl<R: Record> Sorter<R> {
    /// An empty one, which keeps about `budget_bytes` in memory.
    pub(crate) fn new(place: &SpillPlace, budget_bytes: usize) -> Sorter<R> {
        Sorter {
            place: place.clone(),
            budget_bytes,
            buffer: Vec::new(),
            buffered_bytes: 0,
            runs: Vec::new(),
            len: 0,
            spilled_bytes: 0,
        }
    }

    /// Adds a record.
    pub(crate) fn push(&mut self, record: R) -> FsResult<()> {
        let bytes = record.memory_bytes();
        if self.buffered_bytes + bytes > self.budget_bytes && self.buffer.len() >= RECORDS_MIN {
            self.spill()?;
        }
        self.buffered_bytes += bytes;
        self.len += 1;
        self.buffer.push(record);
        Ok(())
    }

    fn spill(&mut self) -> FsResult<()> {
        self.buffer.sort_unstable();
        let mut writer = RunWriter::new(&self.place)?;
        for record in self.buffer.drain(..) {
            writer.push(&record)?;
        }
        self.buffered_bytes = 0;
        let run = writer.finish()?;
        self.spilled_bytes += run.len;
        self.runs.push(run);
        if self.runs.len() == FAN_IN {
            let runs = std::mem::take(&mut self.runs);
            let mut writer = RunWriter::new(&self.place)?;
            for record in Merge::<R>::new(&runs)? {
                writer.push(&record?)?;
            }
            let run = writer.finish()?;
            self.spilled_bytes += run.len;
            self.runs.push(run);
        }
        Ok(())
    }

    /// All records, in order.
    pub(crate) fn finish(mut self) -> FsResult<Sorted<R>> {
        if self.runs.is_empty() {
            self.buffer.sort_unstable();
        } else if !self.buffer.is_empty() {
            self.spill()?;
            self.buffer = Vec::new();
        }
        let Sorter { buffer, runs, len, spilled_bytes, .. } = self;
        Ok(Sorted { buffer, runs, len, spilled_bytes })
    }
}

/// Sorted records.
pub(crate) struct Sorted<R> {
    buffer: Vec<R>,
    runs: Vec<Run>,
    len: u64,
    spilled_bytes: u64,
}

impl<R: Record> Sorted<R> {
    /// Their number.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes that were written to files on the way.
    pub(crate) fn spilled_bytes(&self) -> u64 {
        self.spilled_bytes
    }

    /// The records in order.
    pub(crate) fn iter(&self) -> FsResult<SortedIter<'_, R>> {
        if self.runs.is_empty() {
            Ok(SortedIter::Buffer(self.buffer.iter()))
        } else {
            Merge::new(&self.runs).map(SortedIter::Merge)
        }
    }
}

/// A walk over [`Sorted`] records.
pub(crate) enum SortedIter<'a, R> {
    Buffer(std::slice::Iter<'a, R>),
    Merge(Merge<R>),
}

impl<R: Record> Iterator for SortedIter<'_, R> {
    type Item = FsResult<R>;

    fn next(&mut self) -> Option<FsResult<R>> {
        match self {
            SortedIter::Buffer(records) => records.next().cloned().map(Ok),
            SortedIter::Merge(merge) => merge.next(),
        }
    }
}

/// Sorted records in a file.
#[derive(Clone, Debug)]
struct Run {
    file: Arc<dyn File>,
    len: u64,
    dir: PathBuf,
}

struct RunWriter {
    run: Run,
    chunk: Vec<u8>,
}

impl RunWriter {
    fn new(place: &SpillPlace) -> FsResult<RunWriter> {
        let run = Run { file: place.file()?, len: 0, dir: place.dir.clone() };
        Ok(RunWriter { run, chunk: vec![0; HEADER_BYTES] })
    }

    fn push(&mut self, record: &impl Record) -> FsResult<()> {
        record.encode(&mut self.chunk);
        if self.chunk.len() >= CHUNK_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> FsResult<()> {
        let (header, records) = self.chunk.split_at_mut(HEADER_BYTES);
        header[..4].copy_from_slice(&(records.len() as u32).to_le_bytes());
        header[4..].copy_from_slice(&crc32c::crc32c(records).to_le_bytes());
        let run = &mut self.run;
        run.file
            .write_all_at(&self.chunk, run.len)
            .map_err(|error| spill_error("write to a file in", &run.dir, &error))?;
        run.len += self.chunk.len() as u64;
        self.chunk.truncate(HEADER_BYTES);
        Ok(())
    }

    fn finish(mut self) -> FsResult<Run> {
        if self.chunk.len() > HEADER_BYTES {
            self.write()?;
        }
        Ok(self.run)
    }
}

/// Reads a run from its beginning.
struct RunReader<R> {
    run: Run,
    offset: u64,
    records: VecDeque<R>,
}

impl<R: Record> RunReader<R> {
    fn next(&mut self) -> FsResult<Option<R>> {
        if self.records.is_empty() && self.offset < self.run.len {
            self.read_chunk()?;
        }
        Ok(self.records.pop_front())
    }

    fn read_chunk(&mut self) -> FsResult<()> {
        let fail = |error: io::Error| spill_error("read a file in", &self.run.dir, &error);
        let mut header = [0; HEADER_BYTES];
        self.run.file.read_exact_at(&mut header, self.offset).map_err(fail)?;
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let start = self.offset + HEADER_BYTES as u64;
        let len = u64::from(word(0)).min(self.run.len.saturating_sub(start));
        let mut bytes = vec![0; len as usize];
        self.run.file.read_exact_at(&mut bytes, start).map_err(fail)?;
        if crc32c::crc32c(&bytes) != word(4) {
            let error = io::Error::other("what was read is not what was written");
            return Err(spill_error("read a file in", &self.run.dir, &error));
        }
        let bytes = Bytes::from(bytes);
        let mut reader = Reader::new(&bytes);
        while reader.end().is_err() {
            let record = R::decode(&mut reader).map_err(|error| fail(io::Error::other(error)))?;
            self.records.push_back(record);
        }
        self.offset = start + len;
        Ok(())
    }
}

/// One sequence of several runs.
pub(crate) struct Merge<R> {
    readers: Vec<RunReader<R>>,
    heads: BinaryHeap<Reverse<(R, usize)>>,
}

impl<R: Record> Merge<R> {
    fn new(runs: &[Run]) -> FsResult<Merge<R>> {
        let mut readers: Vec<RunReader<R>> = runs
            .iter()
            .map(|run| RunReader { run: run.clone(), offset: 0, records: VecDeque::new() })
            .collect();
        let mut heads = BinaryHeap::with_capacity(readers.len());
        for (i, reader) in readers.iter_mut().enumerate() {
            if let Some(record) = reader.next()? {
                heads.push(Reverse((record, i)));
            }
        }
        Ok(Merge { readers, heads })
    }
}

impl<R: Record> Iterator for Merge<R> {
    type Item = FsResult<R>;

    fn next(&mut self) -> Option<FsResult<R>> {
        let Reverse((record, i)) = self.heads.pop()?;
        match self.readers[i].next() {
            Ok(Some(next)) => self.heads.push(Reverse((next, i))),
            Ok(None) => {}
            Err(error) => {
                self.heads.clear();
                return Some(Err(error));
            }
        }
        Some(Ok(record))
    }
}

#[cfg(test)]
mod tests {
    use varve_env::sim::SimEnv;
    use varve_schema::put_varint;

    use super::*;

    impl Record for u64 {
        fn encode(&self, out: &mut Vec<u8>) {
            put_varint(out, *self);
        }

        fn decode(reader: &mut Reader<'_>) -> Result<u64, DecodeError> {
            reader.varint()
        }
    }

    fn numbers(count: u64) -> Vec<u64> {
        (0..count).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (i % 60)).collect()
    }

    fn sort(count: u64, budget_bytes: usize) -> Sorted<u64> {
        let env: Arc<dyn Env> = SimEnv::new(1);
        let place = SpillPlace { env, dir: "/".into() };
        let mut sorter = Sorter::new(&place, budget_bytes);
        for number in numbers(count) {
            sorter.push(number).unwrap();
        }
        sorter.finish().unwrap()
    }

    #[test]
    fn records_come_back_sorted_however_little_memory_there_is() {
        for (count, budget_bytes, spills) in
            [(0, 0, false), (10, 1 << 20, false), (1000, 1024, true), (50_000, 512, true)]
        {
            let sorted = sort(count, budget_bytes);
            assert_eq!(sorted.spilled_bytes() > 0, spills);
            let mut expected = numbers(count);
            expected.sort_unstable();
            for _ in 0..2 {
                let found: Vec<u64> = sorted.iter().unwrap().map(Result::unwrap).collect();
                assert_eq!((found.len() as u64, &found), (sorted.len(), &expected));
            }
        }
    }

    #[test]
    fn runs_have_no_names() {
        let env: Arc<dyn Env> = SimEnv::new(1);
        let place = SpillPlace { env: Arc::clone(&env), dir: "/".into() };
        let mut sorter = Sorter::new(&place, 0);
        for number in numbers(1000) {
            sorter.push(number).unwrap();
        }
        let sorted = sorter.finish().unwrap();
        assert!(sorted.spilled_bytes() > 0);
        assert_eq!(env.list(Path::new("/")).unwrap(), []);
    }
}
