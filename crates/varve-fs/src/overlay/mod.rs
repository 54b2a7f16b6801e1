//! Overlays: blocks of a large file that lie over those of another file, its *base*.
//!
//! An overlay is one sparse file ([`varve_schema::overlay`] pictures it). It owns blocks of [`BLOCK_BYTES`], and
//! whoever reads through it gets the bytes of the blocks it owns from it and all others from the base:
//!
//! ```text
//! base      | b0 | b1 | b2 | b3 |            who reads sees | b0 | o1 | b2 | o3 | o4 |
//! overlay        | o1 |    | o3 | o4 |
//! ```
//!
//! Two kinds share the file and its rules:
//!
//! - *Written*: what somebody writes over a base that stands still ([`Overlay::over`] gives a [`File`]). A block that
//!   is written to for the first time is copied from the base as far as the write does not cover it. Length and
//!   times are its own. A transaction's large files are this ([`crate::transactions`]), and it ends by being applied to
//!   the base ([`Overlay::apply`]).
//! - *Kept*: what a base was before it changed. Who changes the base first has the blocks copied ([`Overlay::keep`]),
//!   durably, in runs that double as the changes go on one after the other. [`crate::preimages`] keeps what views
//!   see by this.
//!
//! How a base is given: as a [`Base`], which is asked with a closure for each piece that the overlay does not own, so
//! that it may be opened when it is needed and lie elsewhere at the next question. [`FileBase`] is one that is open. What
//! a Written one gives must be the same bytes each time.
//!
//! How it survives: (1) Bytes go to the overlay before the record that makes their block its own, so that the death of
//! the process leaves each block whole, from one side or the other. (2) A sync makes the bytes and records
//! durable and then the count of the records. (3) After a power cut only counted records are believed, so that no
//! record speaks of bytes that are lost; blocks of the others are the base's again, as before the write. Of a Kept one no
//! others ever are: its base has not changed yet.
//!
//! Invariants: the records say exactly which blocks below the *limit* are its own; from the limit on nothing of the base
//! is seen. One [`Overlay`] at most is in memory for each file ([`table`]), as it numbers the records.
//!
//! Lock order: journal, then state.

mod blocks;
mod change;
mod copying;
mod journal;
mod layered;
mod report;
mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Mutex, RwLock};
use varve_env::{Env, File, FileKind, FileStat, OpenMode, Seek};
use varve_schema::overlay::{BLOCK_BYTES, OverlayHeader, OverlayKind};

use blocks::Blocks;
pub(crate) use copying::{clear_range, copy_bytes, copy_part, data_of};
use journal::Journal;
pub(crate) use layered::Layered;
pub use report::{OverlayReport, inspect_overlay};
pub(crate) use table::Overlays;

/// How the name of an overlay's file ends, after a point.
pub(crate) const EXTENSION: &str = "blocks";
/// Room that header and a few records take, which is no room of the file.
const HEAD_BYTES: u64 = 1 << 14;
const ENXIO: i32 = 6;

/// Where the overlay of the file at `path` is.
pub(crate) fn blocks_path(path: &Path) -> PathBuf {
    path.with_extension(EXTENSION)
}

/// What lies below an overlay.
pub(crate) trait Base: Sync {
    /// Calls `with` with the file, once.
    fn with(&self, with: &mut dyn FnMut(&dyn File) -> io::Result<()>) -> io::Result<()>;
}

/// A base that is open.
pub(crate) struct FileBase<'a>(pub(crate) &'a dyn File);

impl Base for FileBase<'_> {
    fn with(&self, with: &mut dyn FnMut(&dyn File) -> io::Result<()>) -> io::Result<()> {
        with(self.0)
    }
}

/// Asks `base` for what `ask` finds out.
fn ask<T>(base: &dyn Base, ask: impl FnOnce(&dyn File) -> io::Result<T>) -> io::Result<T> {
    let (mut ask, mut answer) = (Some(ask), None);
    base.with(&mut |file| {
        answer = ask.take().map(|ask| ask(file)).transpose()?;
        Ok(())
    })?;
    answer.ok_or_else(|| io::Error::other("a base that was not asked"))
}

/// See the module's comment.
pub(crate) struct Overlay {
    file: Arc<dyn File>,
    header: OverlayHeader,
    data_start: u64,
    /// Stands for this run of the machine in records.
    boot: u64,
    state: RwLock<State>,
    journal: Mutex<Journal>,
    /// How many are keeping blocks, or waiting for who has looked before.
    keepers: AtomicU32,
}

/// Which blocks are its own.
#[derive(Clone, Debug, Default)]
struct State {
    own: Blocks,
    /// The first block from which on nothing of the base is seen.
    limit: u64,
    /// No record says so yet.
    limit_is_unrecorded: bool,
}

impl State {
    /// Whether the byte at `at` is the overlay's own, and up to where, at most `end`, that goes on.
    fn run(&self, at: u64, end: u64) -> (bool, u64) {
        let block = at / BLOCK_BYTES;
        if block >= self.limit {
            return (true, end);
        }
        let (is_own, next) = self.own.run(block, self.limit);
        let goes_on = is_own && next == self.limit;
        (is_own, if goes_on { end } else { end.min(next * BLOCK_BYTES) })
    }

    fn owns(&self, range: &Range<u64>) -> bool {
        range.is_empty() || self.run(range.start, range.end) == (true, range.end)
    }

    /// The runs of blocks in a range that are not its own.
    fn missing(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        let (mut at, end) = (blocks.start, blocks.end.min(self.limit));
        let mut missing = Vec::new();
        while at < end {
            let (is_own, next) = self.own.run(at, end);
            if !is_own {
                missing.push(at..next);
            }
            at = next;
        }
        missing
    }
}

/// The blocks that a range of bytes touches.
fn blocks_of(bytes: &Range<u64>) -> Range<u64> {
    match bytes.is_empty() {
        true => 0..0,
        false => bytes.start / BLOCK_BYTES..bytes.end.div_ceil(BLOCK_BYTES),
    }
}

fn bytes_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES
}

impl Overlay {
    /// Makes one at `begun` over a base of which `base` tells, durably but for the name; `FileTooLarge` if that leaves no room for
    /// the records.
    fn create(
        env: &dyn Env,
        begun: &Path,
        kind: OverlayKind,
        base: &FileStat,
    ) -> io::Result<Overlay> {
        let header = OverlayHeader {
            kind,
            salt: env.random(),
            base_len: base.len,
            modified: base.modified,
            is_covering: kind == OverlayKind::Kept,
        };
        if !header.has_room() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let file = env.open(begun, OpenMode::CreateOrOpen)?;
        file.set_len(0)?;
        let journal = Journal::create(file.as_ref(), &header)?;
        let len = if kind == OverlayKind::Written { base.len } else { 0 };
        file.set_len(header.data_start() + len)?;
        file.set_times(None, Some(base.modified))?;
        file.sync_all()?;
        let state = State { limit: header.base_blocks(), ..State::default() };
        Ok(Overlay::new(env, file, header, state, journal))
    }

    /// Reads the one in `file`, which is called `path`.
    pub(crate) fn load(env: &dyn Env, file: Arc<dyn File>, path: &Path) -> io::Result<Overlay> {
        let damaged = |(offset, what): (u64, String)| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} is damaged at offset {offset}: {what}", path.display()),
            )
        };
        let loaded = journal::load(file.as_ref(), boot_of(env))?;
        let (header, state, journal) = loaded.map_err(damaged)?;
        Ok(Overlay::new(env, file, header, state, journal))
    }

    fn new(
        env: &dyn Env,
        file: Arc<dyn File>,
        header: OverlayHeader,
        state: State,
        journal: Journal,
    ) -> Overlay {
        let (state, journal) = (RwLock::new(state), Mutex::new(journal));
        let data_start = header.data_start();
        let (boot, keepers) = (boot_of(env), AtomicU32::new(0));
        Overlay { file, header, data_start, boot, state, journal, keepers }
    }

    /// Where the byte at `at` is in its file; `FileTooLarge` if that is beyond what files have.
    fn place_of(&self, at: u64) -> io::Result<u64> {
        let place = self.data_start.checked_add(at).filter(|place| i64::try_from(*place).is_ok());
        place.ok_or_else(|| io::ErrorKind::FileTooLarge.into())
    }

    /// It over `base`, as one file.
    pub(crate) fn over<'a>(&'a self, base: &'a dyn Base) -> Layered<'a> {
        Layered::new(self, base)
    }

    /// Whether a range of bytes needs no base.
    pub(crate) fn owns(&self, bytes: &Range<u64>) -> bool {
        let end = bytes.end.min(self.header.base_len);
        self.state.read().owns(&(bytes.start.min(end)..end))
    }

    /// How far anything of the base is read through it.
    pub(crate) fn needs_until(&self) -> u64 {
        let (mut at, mut needed) = (0, 0);
        while at < self.header.base_len {
            let (is_own, end) = self.run(at, self.header.base_len);
            needed = if is_own { needed } else { end };
            at = end;
        }
        needed
    }

    /// Whether the byte at `at` is its own, and up to where, at most `end`, that goes on.
    pub(crate) fn run(&self, at: u64, end: u64) -> (bool, u64) {
        self.state.read().run(at, end)
    }

    /// Reads bytes that are its own; of those behind the last that was written, none.
    pub(crate) fn read_own(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(buf, self.data_start + at)
    }

    /// Seeks among bytes that are its own.
    pub(crate) fn seek_own(&self, what: Seek, at: u64) -> io::Result<u64> {
        self.file.seek(what, self.data_start + at).map(|found| found - self.data_start)
    }

    /// Calls `keep`, which keeps blocks, and then `wait`, which returns when nobody reads any more who has looked for them in
    /// the base before. Until then it has keepers.
    pub(crate) fn keep_by(
        &self,
        keep: impl FnOnce(&Overlay) -> io::Result<()>,
        wait: impl FnOnce(),
    ) -> io::Result<()> {
        self.keepers.fetch_add(1, Ordering::Relaxed);
        let kept = keep(self);
        wait();
        self.keepers.fetch_sub(1, Ordering::Release);
        kept
    }

    /// Whether somebody may still read from the base what it [owns](Overlay::owns) by now. To be asked after that.
    pub(crate) fn has_keepers(&self) -> bool {
        self.keepers.load(Ordering::Acquire) > 0
    }

    /// The length of its base when it was made.
    pub(crate) fn base_len(&self) -> u64 {
        self.header.base_len
    }

    /// The length of what lies under and over each other.
    pub(crate) fn len(&self) -> io::Result<u64> {
        match self.header.kind {
            OverlayKind::Kept => Ok(self.header.base_len),
            OverlayKind::Written => Ok(self.file.stat()?.len.saturating_sub(self.data_start)),
        }
    }

    fn read_at(&self, base: &dyn Base, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.state.read();
        let end = self.len()?.min(offset.saturating_add(buf.len() as u64));
        let mut at = offset;
        while at < end {
            let (is_own, next) = state.run(at, end);
            let piece = &mut buf[(at - offset) as usize..(next - offset) as usize];
            let count = match is_own {
                true => self.read_own(piece, at)?,
                false => ask(base, |base| base.read_at(piece, at))?,
            };
            if !is_own {
                self.check_below(at + count as u64, next)?;
            }
            piece[count..].fill(0);
            at = next;
        }
        Ok(end.saturating_sub(offset) as usize)
    }

    /// Fails if what lies below, of which `at..end` was wanted and not found, had bytes there when the overlay was made: it was cut
    /// behind our back.
    pub(crate) fn check_below(&self, at: u64, end: u64) -> io::Result<()> {
        let base_len = self.header.base_len;
        if at < end.min(base_len) {
            let text = format!("it ends at offset {at} and had {base_len} bytes; run `varve fsck`");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        Ok(())
    }

    fn seek(&self, base: &dyn Base, what: Seek, offset: u64) -> io::Result<u64> {
        let state = self.state.read();
        let len = self.len()?;
        if offset >= len {
            return Err(io::Error::from_raw_os_error(ENXIO));
        }
        let mut at = offset;
        while at < len {
            let (is_own, next) = state.run(at, len);
            let found = match is_own {
                true => self.seek_own(what, at),
                false => ask(base, |base| base.seek(what, at)),
            };
            match (found, what) {
                (Ok(found), _) if found < next => return Ok(found),
                // Past the end of what is asked everything is a hole.
                (Err(error), Seek::Hole) if error.raw_os_error() == Some(ENXIO) => return Ok(at),
                (Err(error), Seek::Data) if error.raw_os_error() == Some(ENXIO) => {}
                (Err(error), _) => return Err(error),
                (Ok(_), _) => {}
            }
            at = next;
        }
        match what {
            Seek::Hole => Ok(len),
            Seek::Data => Err(io::Error::from_raw_os_error(ENXIO)),
        }
    }

    /// Room is what both take, but no more than the length: blocks of the base under its own are counted as long as that
    /// is less.
    fn stat(&self, base: &dyn Base) -> io::Result<FileStat> {
        let own = self.stat_own()?;
        let sees_base = self.state.read().limit > 0;
        let below = if sees_base { ask(base, |base| base.stat())?.allocated } else { 0 };
        let room = own.allocated.saturating_add(below);
        Ok(FileStat { allocated: room.min(own.len.next_multiple_of(4096)), ..own })
    }

    /// The same, but for the room that the base takes.
    pub(crate) fn stat_own(&self) -> io::Result<FileStat> {
        let (stat, len) = (self.file.stat()?, self.len()?);
        let allocated = stat.allocated.saturating_sub(HEAD_BYTES);
        let modified = match self.header.kind {
            OverlayKind::Kept => self.header.modified,
            OverlayKind::Written => stat.modified,
        };
        Ok(FileStat { kind: FileKind::File, len, allocated, modified, ..stat })
    }
}

/// What stands for this run of the machine.
fn boot_of(env: &dyn Env) -> u64 {
    let boot = env.boot_id();
    (boot >> 64) as u64 ^ boot as u64
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlay").field("file", &self.file).field("header", &self.header).finish()
    }
}
