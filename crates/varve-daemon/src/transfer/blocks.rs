//! Blocks, as a stream goes over the control socket: each is `u32` length and so many bytes; the last has none.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// The most bytes of a block.
const BLOCK_BYTES_MAX: usize = 1 << 20;
/// Cuts what is written into blocks.
pub(super) struct BlockWriter<'a>(pub(super) &'a mut UnixStream);

impl BlockWriter<'_> {
    /// Writes the last block.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.0.write_all(&0_u32.to_le_bytes())
    }
}

impl Write for BlockWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let block = &bytes[..bytes.len().min(BLOCK_BYTES_MAX)];
        if !block.is_empty() {
            self.0.write_all(&(block.len() as u32).to_le_bytes())?;
            self.0.write_all(block)?;
        }
        Ok(block.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Puts blocks together again.
pub(super) struct BlockReader<'a> {
    input: &'a mut UnixStream,
    left: usize,
    ended: bool,
}

impl<'a> BlockReader<'a> {
    /// Reads the blocks that come from `input`.
    pub(super) fn new(input: &'a mut UnixStream) -> BlockReader<'a> {
        BlockReader { input, left: 0, ended: false }
    }
}

impl Read for BlockReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.ended {
            let mut len = [0; 4];
            self.input.read_exact(&mut len)?;
            self.left = u32::from_le_bytes(len) as usize;
            self.ended = self.left == 0;
        }
        if self.ended {
            return Ok(0);
        }
        let wanted = buffer.len().min(self.left);
        let count = self.input.read(&mut buffer[..wanted])?;
        if count == 0 && wanted > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        Ok(count)
    }
}
