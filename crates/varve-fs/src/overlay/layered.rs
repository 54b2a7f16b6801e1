//! An overlay over its base, as one file.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use varve_env::{Allocate, File, FileStat, Seek};
use varve_types::Timestamp;

use super::{Base, Overlay};

/// The most bytes of one copy.
const COPY_BYTES_MAX: u64 = 1 << 20;

/// See the module's comment. REQUIRES of whoever changes it: the overlay is one that is written to.
pub(crate) struct Layered<'a> {
    overlay: &'a Overlay,
    base: &'a dyn Base,
}

impl<'a> Layered<'a> {
    pub(super) fn new(overlay: &'a Overlay, base: &'a dyn Base) -> Layered<'a> {
        Layered { overlay, base }
    }
}

impl File for Layered<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.overlay.read_at(self.base, buf, offset)
    }

    fn write_all_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        let write = |file: &dyn File, by| file.write_all_at(buf, by + offset);
        self.overlay.change(self.base, offset..end, write)
    }

    /// Blocks that are the base's until now are written as a whole or not at all.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let end = offset.checked_add(buf.len() as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        let len = self.overlay.len()?;
        if len < end {
            // The block that it ends in may grow by a part only if it is its own.
            self.overlay.change(self.base, len..len + 1, |_, _| Ok(()))?;
        }
        let mut at = offset;
        while at < end {
            let (is_own, next) = self.overlay.state.read().run(at, end);
            let piece = &buf[(at - offset) as usize..(next - offset) as usize];
            let write = |file: &dyn File, by| match is_own {
                true => file.write_at(piece, by + at),
                false => file.write_all_at(piece, by + at).map(|()| piece.len()),
            };
            match self.overlay.change(self.base, at..next, write) {
                Ok(count) => at += count as u64,
                Err(error) if at == offset => return Err(error),
                // The next call meets it again.
                Err(_) => break,
            }
        }
        Ok((at - offset) as usize)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.overlay.sync(false)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.overlay.sync(true)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.overlay.set_len(self.base, len)
    }

    fn allocate(&self, how: Allocate, offset: u64, len: u64) -> io::Result<()> {
        self.overlay.allocate(self.base, how, offset, len)
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        self.overlay.seek(self.base, what, offset)
    }

    fn stat(&self) -> io::Result<FileStat> {
        self.overlay.stat(self.base)
    }

    fn set_times(
        &self,
        accessed: Option<Timestamp>,
        modified: Option<Timestamp>,
    ) -> io::Result<()> {
        self.overlay.set_times(accessed, modified)
    }

    fn copy_from(&self, source: &dyn File, from: u64, to: u64, len: u64) -> io::Result<u64> {
        let mut buffer = vec![0; len.min(COPY_BYTES_MAX) as usize];
        let count = source.read_at(&mut buffer, from)?;
        Ok(self.write_at(&buffer[..count], to)? as u64)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl fmt::Debug for Layered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Layered").field(self.overlay).finish()
    }
}
