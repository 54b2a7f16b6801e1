//! Copying ranges from file to file, holes as holes.

use std::io;
use std::ops::Range;

use varve_env::{Allocate, File, Seek};

use super::ENXIO;

/// Zeros written at once where the storage below cannot make holes.
const ZEROS_BYTES: u64 = 1 << 20;
pub(super) const EOPNOTSUPP: i32 = 95;

/// A file, and how much further on in it the bytes are.
pub(super) struct Shifted<'a> {
    pub(super) file: &'a dyn File,
    pub(super) by: u64,
}

/// Copies the first `len` bytes, holes as holes; the length is left to the caller.
pub(crate) fn copy_bytes(source: &dyn File, target: &dyn File, len: u64) -> io::Result<()> {
    copy_range(&Shifted { file: source, by: 0 }, &Shifted { file: target, by: 0 }, 0..len)
}

/// The parts of a range that are no holes.
pub(crate) fn data_of(file: &dyn File, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    data_in(&Shifted { file, by: 0 }, range)
}

/// Makes a hole of a range, as far as the file reaches.
pub(crate) fn clear_range(file: &dyn File, range: Range<u64>) -> io::Result<()> {
    clear(&Shifted { file, by: 0 }, range)
}

/// Copies up to `len` bytes from one place to another, holes as holes; the target grows as by a write. Gives how many,
/// fewer only where the source ends or what follows failed, and whether any were written.
pub(crate) fn copy_part(
    (source, from): (&dyn File, u64),
    (target, to): (&dyn File, u64),
    len: u64,
) -> io::Result<(u64, bool)> {
    let (source, target) = (Shifted { file: source, by: from }, Shifted { file: target, by: to });
    let len = len.min(source.file.stat()?.len.saturating_sub(from));
    let (mut at, mut written) = (0, false);
    let before = target.file.stat()?;
    // With holes in between at once, so that no power cut leaves a length that comes from the holes.
    let grows = next(&source, Seek::Hole, 0)? < len && before.len < to + len;
    if grows {
        target.file.write_all_at(&[0], to + len - 1)?;
        written = true;
    }
    let mut failed = None;
    while at < len && failed.is_none() {
        match copy_run(&source, &target, at..len) {
            Ok((0, _)) => break,
            Ok((copied, is_data)) => (at, written) = (at + copied, written || is_data),
            Err(error) => failed = Some(error),
        }
    }
    // Nor does a copy that ends early leave one, and one that does not begin leaves nothing.
    if grows && at < len && target.file.stat()?.len == to + len {
        match at {
            0 => {
                target.file.set_len(before.len)?;
                target.file.set_times(None, Some(before.modified))?;
            }
            _ => target.file.set_len(before.len.max(to + at))?,
        }
    }
    match failed {
        Some(error) if at == 0 => Err(error),
        // The next call meets it again.
        _ => Ok((at, written)),
    }
}

/// Copies the data that a range begins with, or the hole; gives how many bytes, and whether it was data.
fn copy_run(
    source: &Shifted<'_>,
    target: &Shifted<'_>,
    Range { start, end }: Range<u64>,
) -> io::Result<(u64, bool)> {
    let data = next(source, Seek::Data, start)?.min(end);
    if start < data {
        clear(target, start..data)?;
        return Ok((data - start, false));
    }
    let len = next(source, Seek::Hole, start)?.min(end) - start;
    let (from, to) = (source.by + start, target.by + start);
    Ok((target.file.copy_from(source.file, from, to, len)?, true))
}

/// Copies a range of bytes. What `source` does not reach is a hole; the target's length is left to the caller where
/// the range ends in one.
pub(super) fn copy_range(
    source: &Shifted<'_>,
    target: &Shifted<'_>,
    range: Range<u64>,
) -> io::Result<()> {
    let mut at = range.start;
    for Range { start: mut data, end } in data_in(source, range.clone())? {
        clear(target, at..data)?;
        while data < end {
            let (from, to) = (source.by + data, target.by + data);
            match target.file.copy_from(source.file, from, to, end - data)? {
                0 => {
                    clear(target, data..end)?;
                    break;
                }
                copied => data += copied,
            }
        }
        at = end;
    }
    clear(target, at..range.end)
}

/// The parts of a range that are no holes.
pub(super) fn data_in(source: &Shifted<'_>, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let (mut parts, mut at) = (Vec::new(), range.start);
    while at < range.end {
        let data = next(source, Seek::Data, at)?.min(range.end);
        at = if data < range.end { next(source, Seek::Hole, data)?.min(range.end) } else { data };
        if data < at {
            parts.push(data..at);
        }
    }
    Ok(parts)
}

/// The next data or hole, or no end.
fn next(source: &Shifted<'_>, what: Seek, at: u64) -> io::Result<u64> {
    match source.file.seek(what, source.by + at) {
        Ok(found) => Ok(found.saturating_sub(source.by)),
        Err(error) if error.raw_os_error() == Some(ENXIO) => Ok(u64::MAX),
        Err(error) => Err(error),
    }
}

/// Makes a range read as zeros, as far as the file reaches.
pub(super) fn clear(target: &Shifted<'_>, range: Range<u64>) -> io::Result<()> {
    if range.is_empty() || next(target, Seek::Data, range.start)? >= range.end {
        return Ok(());
    }
    let end = range.end.min(target.file.stat()?.len.saturating_sub(target.by));
    let len = end.saturating_sub(range.start);
    match target.file.allocate(Allocate::PunchHole, target.by + range.start, len) {
        Err(error) if error.raw_os_error() == Some(EOPNOTSUPP) => {}
        punched => return punched,
    }
    let zeros = vec![0; len.min(ZEROS_BYTES) as usize];
    let mut at = range.start;
    while at < end {
        let piece = (end - at).min(ZEROS_BYTES);
        target.file.write_all_at(&zeros[..piece as usize], target.by + at)?;
        at += piece;
    }
    Ok(())
}
