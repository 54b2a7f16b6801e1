//! What the kernel is told of its own accord: that names, attributes or bytes it knows no longer hold, because
//! they changed by another way than through its mount.
//!
//! ```text
//! | len u32 | code i32 | 0 u64 |                                     before each
//! inode (2): | ino u64 | offset i64 | length i64 |                   its attributes and all its bytes
//! name (3):  | directory u64 | length u32 | flags u32 | name | 0 |
//! ```
//!
//! With an offset below 0 an inode keeps its bytes. The kernel takes its own lock of a directory to forget a name in it, and
//! of pages to forget bytes, so whoever tells it that must hold no lock that a request could wait for, and must not be a
//! thread that serves requests. Of attributes alone it is told by any thread.

use std::io;

use rustix::io::Errno;
use varve_types::InodeId;

use crate::device::Device;

const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
/// Length of what precedes the body.
const HEADER_BYTES: usize = 16;

/// Tells the kernel of one mount what no longer holds.
#[derive(Clone, Debug)]
pub struct Notifier {
    device: Device,
    root: InodeId,
}

impl Notifier {
    pub(crate) fn new(device: Device, root: InodeId) -> Notifier {
        Notifier { device, root }
    }

    /// The attributes and bytes of `ino`, or the listing of a directory, may be others now. No error if the kernel
    /// does not know it.
    pub fn inode_changed(&self, ino: InodeId) -> io::Result<()> {
        self.invalidate(ino, 0)
    }

    /// The same for its attributes alone.
    pub(crate) fn attributes_changed(&self, ino: InodeId) -> io::Result<()> {
        self.invalidate(ino, -1)
    }

    fn invalidate(&self, ino: InodeId, offset: i64) -> io::Result<()> {
        let mut body = self.node(ino).to_ne_bytes().to_vec();
        body.extend_from_slice(&offset.to_ne_bytes());
        body.extend_from_slice(&[0; 8]);
        self.send(INVAL_INODE, &body)
    }

    /// `name` in `dir` may stand for something else now, or for nothing, or for something at last. No error if the
    /// kernel does not know it.
    pub fn name_changed(&self, dir: InodeId, name: &[u8]) -> io::Result<()> {
        let mut body = self.node(dir).to_ne_bytes().to_vec();
        body.extend_from_slice(&u32::try_from(name.len()).unwrap_or(u32::MAX).to_ne_bytes());
        body.extend_from_slice(&[0; 4]);
        body.extend_from_slice(name);
        body.push(0);
        self.send(INVAL_ENTRY, &body)
    }

    /// The same of several, and of the listing of `dir`.
    pub fn names_changed<'a>(
        &self,
        dir: InodeId,
        names: impl IntoIterator<Item = &'a [u8]>,
    ) -> io::Result<()> {
        let told = names.into_iter().map(|name| self.name_changed(dir, name));
        let told = told.fold(Ok(()), io::Result::and);
        // Not before: a listing that was read then and came later than this would be kept. To forget a name waits for the end of those
        // under way.
        told.and(self.inode_changed(dir))
    }

    /// What the kernel calls `ino`.
    fn node(&self, ino: InodeId) -> u64 {
        if ino == self.root { InodeId::ROOT.get() } else { ino.get() }
    }

    fn send(&self, code: i32, body: &[u8]) -> io::Result<()> {
        let len = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
        let mut message = len.to_ne_bytes().to_vec();
        message.extend_from_slice(&code.to_ne_bytes());
        message.extend_from_slice(&[0; 8]);
        message.extend_from_slice(body);
        match self.device.notify(&message) {
            // NOENT: unknown to the kernel. NODEV, CONNABORTED, NOTCONN: nobody is left to be told.
            Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN) | Ok(()) => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}
