//! Versions of an object that lie over one another, as one file that is only read.
//!
//! Each byte is that of the uppermost version that has it, else of what lies below all; beyond the end of a version nothing of those
//! below it is seen. However many they are, that takes no deeper a stack.
//!
//! It first looks for the version that has a byte and then reads there, and nothing keeps others from saving or moving versions in between.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use varve_env::{Allocate, File, FileStat, Seek};
use varve_types::Timestamp;

use crate::overlay::Overlay;

const ENXIO: i32 = 6;

/// See the module's comment. REQUIRES, as long as it is there: no version changes places, and what lies at the bottom changes only after
/// who has looked has read. Who holds `epochs` has both; else `saving` is held and nobody changes the object.
#[derive(Debug)]
pub(super) struct Stack<'a> {
    /// Blocks, the uppermost first.
    pub(super) blocks: &'a [Arc<Overlay>],
    /// What lies below them.
    pub(super) bottom: &'a dyn File,
}

/// Where a byte is.
enum ByteSource<'a> {
    Own(&'a Overlay),
    Bottom,
    /// Nowhere: it is zero.
    Hole,
}

impl Stack<'_> {
    fn len(&self) -> io::Result<u64> {
        match self.blocks.first() {
            Some(top) => Ok(top.base_len()),
            None => Ok(self.bottom.stat()?.len),
        }
    }

    /// Where the byte at `at` is, and up to where, at most `end`, those behind it are.
    fn place(&self, at: u64, mut end: u64) -> (ByteSource<'_>, u64) {
        for overlay in self.blocks {
            if at >= overlay.base_len() {
                return (ByteSource::Hole, end);
            }
            let (is_own, next) = overlay.run(at, end.min(overlay.base_len()));
            end = next;
            if is_own {
                return (ByteSource::Own(overlay), end);
            }
        }
        (ByteSource::Bottom, end)
    }
}

impl File for Stack<'_> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let end = self.len()?.min(offset.saturating_add(buf.len() as u64));
        let mut at = offset;
        while at < end {
            let (place, next) = self.place(at, end);
            let piece = &mut buf[(at - offset) as usize..(next - offset) as usize];
            let count = match place {
                ByteSource::Own(overlay) => overlay.read_own(piece, at)?,
                ByteSource::Bottom => {
                    let count = self.bottom.read_at(piece, at)?;
                    if let Some(lowest) = self.blocks.last() {
                        lowest.check_below(at + count as u64, next)?;
                    }
                    count
                }
                ByteSource::Hole => 0,
            };
            piece[count..].fill(0);
            at = next;
        }
        Ok(end.saturating_sub(offset) as usize)
    }

    fn seek(&self, what: Seek, offset: u64) -> io::Result<u64> {
        let (len, no_more) = (self.len()?, || io::Error::from_raw_os_error(ENXIO));
        if offset >= len {
            return Err(no_more());
        }
        let mut at = offset;
        while at < len {
            let (place, next) = self.place(at, len);
            let found = match place {
                ByteSource::Own(overlay) => overlay.seek_own(what, at),
                ByteSource::Bottom => self.bottom.seek(what, at),
                ByteSource::Hole => Err(no_more()),
            };
            match (found, what) {
                (Ok(found), _) if found < next => return Ok(found),
                // Past the end of what is asked everything is a hole.
                (Err(error), Seek::Hole) if error.raw_os_error() == Some(ENXIO) => return Ok(at),
                (Err(error), _) if error.raw_os_error() != Some(ENXIO) => return Err(error),
                _ => {}
            }
            at = next;
        }
        match what {
            Seek::Hole => Ok(len),
            Seek::Data => Err(no_more()),
        }
    }

    /// Room is what all take, but no more than the length.
    fn stat(&self) -> io::Result<FileStat> {
        let mut stat = self.bottom.stat()?;
        for overlay in self.blocks.iter().rev() {
            let own = overlay.stat_own()?;
            let allocated = own.allocated.saturating_add(stat.allocated);
            stat = FileStat { allocated: allocated.min(own.len.next_multiple_of(4096)), ..own };
        }
        Ok(stat)
    }

    fn write_all_at(&self, _buf: &[u8], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(())
    }

    fn set_len(&self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn allocate(&self, _how: Allocate, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn set_times(
        &self,
        _accessed: Option<Timestamp>,
        _modified: Option<Timestamp>,
    ) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn copy_from(&self, _: &dyn File, _from: u64, _to: u64, _len: u64) -> io::Result<u64> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
