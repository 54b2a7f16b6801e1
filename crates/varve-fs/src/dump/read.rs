//! Reads a dump into a new store.
//!
//! 1. The directory must be empty or missing; then the first line says how the store in it is to be formatted.
//! 2. Each line becomes rows and object files at once ([`Load`]). Rows are sorted in memory and inserted as tables,
//!    past the log.
//! 3. The last line must fit all that came, and nothing may follow it.
//! 4. The whole store is checked as `varve fsck` does, and only then its superblock is written. So a dump whose
//!    lines contradict each other is refused too, and what an interrupted load leaves is no store.

use std::io::{BufRead, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;

use varve_engine::{StoreError, StoreResult};
use varve_env::Env;
use varve_schema::key::{ID_MARK, STORE_ID};
use varve_schema::{ROW_VERSION, put_varint};
use varve_vfs::FsError;

use super::line::{EndLine, Header, LINE_BYTES_MAX, Line, VERSION};
use super::load::Load;
use super::{Counts, Steps};
use crate::error::invalid;
use crate::format::{begin_store, complete_store, is_empty};
use crate::fsck::volume::{AlsoSync, Volume};
use crate::fsck::{CheckOptions, Progress, check_volume};
use crate::options::FormatOptions;
use crate::superblock::Superblock;

/// Rows that wait take one part in so many of the memory; the engine, and later the check, have the rest.
const ROWS_SHARE: usize = 4;

/// The lines of a dump, with their numbers and the checksum of those before.
struct Lines<'a> {
    input: &'a mut dyn BufRead,
    /// The number of the line that was read last.
    no: u64,
    /// Of all lines before that.
    crc32c: u32,
    line: Vec<u8>,
    /// What to do before the load is tried again.
    next_step: String,
}

impl Lines<'_> {
    /// An error in the line that was read last.
    fn error(&self, what: impl std::fmt::Display) -> StoreError {
        StoreError::Invalid(format!(
            "line {} of the dump: {what}; nothing was loaded: {}dump again",
            self.no, self.next_step
        ))
    }

    /// The next line.
    fn next(&mut self) -> StoreResult<Line> {
        self.crc32c = crc32c::crc32c_append(self.crc32c, &self.line);
        self.line.clear();
        self.no += 1;
        let mut limited = Read::take(&mut *self.input, LINE_BYTES_MAX as u64);
        let read = limited.read_until(b'\n', &mut self.line);
        read.map_err(|error| self.error(format!("cannot read: {error}")))?;
        let Some(text) = self.line.strip_suffix(b"\n") else {
            return Err(match self.line.len() {
                0 => self.error("missing; the dump was cut"),
                LINE_BYTES_MAX => self.error("too long"),
                _ => self.error("cut in the middle"),
            });
        };
        Line::parse(text).map_err(|error| self.error(error))
    }

    /// Checks the last line, and that nothing follows.
    fn end(&mut self, end: &EndLine, counts: Counts) -> StoreResult<()> {
        let EndLine { lines, inodes, names, crc32c } = end;
        if *crc32c != format!("{:08x}", self.crc32c) {
            let found = self.crc32c;
            return Err(self.error(format!(
                "crc32c: the lines before give {found:08x}; the dump was changed"
            )));
        }
        if (*lines, *inodes, *names) != (self.no - 1, counts.inodes, counts.names) {
            return Err(self.error("lines, inodes, names: other numbers than came"));
        }
        let mut more = [0];
        match self.input.read(&mut more) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.error("something follows it")),
            Err(error) => Err(self.error(format!("cannot read on: {error}"))),
        }
    }
}

fn format_options(lines: &Lines<'_>, header: Header) -> StoreResult<(FormatOptions, u64)> {
    if header.version != VERSION {
        return Err(lines.error(format!(
            "version: {} was written by another Varve; this one reads {VERSION}",
            header.version
        )));
    }
    let design = serde_json::from_value(serde_json::json!(header.design))
        .map_err(|error| lines.error(format!("design: {error}")))?;
    let options = FormatOptions {
        large_file_threshold_bytes: header.large_file_threshold_bytes,
        name_hash_bits: header.name_hash_bits,
        compression: header.compression,
        design,
        ..FormatOptions::default()
    };
    Ok((options, header.next_inode))
}

/// Refuses a directory for a load, unless it is empty or missing.
fn require_empty(env: &dyn Env, dir: &Path) -> StoreResult<()> {
    match is_empty(env, dir) {
        Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(()),
        Ok(false) => Err(StoreError::Invalid(format!(
            "{} is not empty; choose another directory, or remove what is in it if an earlier load has left that",
            dir.display()
        ))),
        checked => checked.map(drop),
    }
}

/// Makes a store in `dir`, which must be empty or missing, of the dump that `input` gives; takes about
/// `memory_bytes`. `progress` is told of the lines, then of the check.
pub fn load_store(
    env: Arc<dyn Env>,
    dir: &Path,
    memory_bytes: usize,
    input: &mut dyn BufRead,
    progress: &mut dyn FnMut(Progress),
) -> StoreResult<Counts> {
    require_empty(env.as_ref(), dir)?;
    let mut lines = Lines { input, no: 0, crc32c: 0, line: Vec::new(), next_step: String::new() };
    let Line::VarveDump(header) = lines.next()? else {
        return Err(lines.error("not the first line of a dump"));
    };
    let (options, next_inode) = format_options(&lines, header)?;
    let lock = begin_store(env.as_ref(), dir, &options)?;
    lines.next_step = format!("remove what is in {}, and ", dir.display());
    let superblock = Superblock::new(env.as_ref(), &options);
    let check = CheckOptions { memory_bytes, ..CheckOptions::default() };
    let engine = (check.engine_bytes(), true);
    let also = AlsoSync::default();
    let volume = Volume::assemble(Arc::clone(&env), dir, &superblock, lock, engine, also)?;
    let rows = (memory_bytes / ROWS_SHARE, superblock.compression);
    let steps = Steps::begin(progress);
    let loaded = load(&volume, &mut lines, next_inode, rows, steps).and_then(|counts| {
        let checked = check_volume(&volume, &check, progress, &mut |_, _| Ok(()));
        match checked.map_err(invalid)?.findings.first() {
            Some(finding) => Err(lines.error(format!("what came is no sound tree: {finding}"))),
            None => Ok(counts),
        }
    });
    let synced = loaded.and_then(|counts| volume.store.sync().map(|()| counts));
    let closed = volume.store.close();
    let counts = synced?;
    closed?;
    complete_store(env.as_ref(), dir, &superblock)?;
    Ok(counts)
}

/// All lines behind the first.
fn load(
    volume: &Volume,
    lines: &mut Lines<'_>,
    next_inode: u64,
    (rows_bytes, compression): (usize, bool),
    mut steps: Steps<'_>,
) -> StoreResult<Counts> {
    let mut load = Load::new(volume, next_inode, rows_bytes, compression);
    if let Some(id) = volume.store_id {
        load.bookkeeping(STORE_ID, id.encode()).map_err(invalid)?;
    }
    let mut mark = vec![ROW_VERSION];
    put_varint(&mut mark, next_inode);
    load.bookkeeping(ID_MARK, mark).map_err(invalid)?;
    loop {
        let line = lines.next()?;
        steps.line(Counts { lines: lines.no, ..load.counts });
        let done = match line {
            Line::VarveDump(_) => Err(FsError::Storage("a second first line".to_owned())),
            Line::Limits(line) => load.limits(&line),
            Line::Inode(line) => {
                steps.inode(&line);
                load.inode(line)
            }
            Line::Link(line) => load.link(line),
            Line::Xattr(line) => load.xattr(line),
            Line::Data(line) => load.data(line),
            Line::Dictionary(line) => load.dictionary(line),
            Line::Pair(line) => load.pair(line),
            Line::End(end) => {
                let finished = load.finish_inode().and_then(|()| load.write());
                finished.map_err(|error| lines.error(error))?;
                lines.end(&end, load.counts)?;
                return Ok(Counts { lines: lines.no - 1, ..load.counts });
            }
        };
        done.map_err(|error| lines.error(error))?;
    }
}
