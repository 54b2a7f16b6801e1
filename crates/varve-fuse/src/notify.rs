//! Tells the kernel which names, attributes and bytes in its caches no longer hold, because they changed by another
//! way than through its mount.
//!
//! ```text
//! | len u32 | code i32 | 0 u64 |                                     before each
//! inode (2): | ino u64 | offset i64 | length i64 |                   its attributes and all its bytes
//! name (3):  | directory u64 | length u32 | flags u32 | name | 0 |
//! all names (8): nothing
//! ```
//!
//! With an offset below 0 the kernel keeps the bytes of the inode. To forget a name the kernel takes its lock of the
//! directory, and to forget bytes its locks of pages. So a caller must hold no lock for which a request could wait,
//! and must not be a thread that serves requests. Any thread may send a notice about attributes alone, or about all
//! names.

use std::io;

use rustix::io::Errno;
use varve_types::InodeId;

use crate::device::Device;

const INVAL_INODE: i32 = 2;
const INVAL_ENTRY: i32 = 3;
const INC_EPOCH: i32 = 8;
/// The length of the header before the body.
const HEADER_BYTES: usize = 16;

/// Sends notices to the kernel about one mount.
#[derive(Clone, Debug)]
pub struct Notifier {
    device: Device,
    root: InodeId,
}

impl Notifier {
    pub(crate) fn new(device: Device, root: InodeId) -> Notifier {
        Notifier { device, root }
    }

    /// Tells the kernel that the attributes and bytes of `ino`, or the listing of a directory, may have changed.
    /// Succeeds if the kernel does not know the inode.
    pub fn inode_changed(&self, ino: InodeId) -> io::Result<()> {
        self.invalidate(ino, 0)
    }

    /// Tells the kernel that the attributes of `ino` may have changed, but not its bytes.
    pub fn attributes_changed(&self, ino: InodeId) -> io::Result<()> {
        self.invalidate(ino, -1)
    }

    fn invalidate(&self, ino: InodeId, offset: i64) -> io::Result<()> {
        let mut body = self.node(ino).to_ne_bytes().to_vec();
        body.extend_from_slice(&offset.to_ne_bytes());
        body.extend_from_slice(&[0; 8]);
        self.send(INVAL_INODE, &body)
    }

    /// Tells the kernel that `name` in `dir` may stand for another inode now, or for none, or for the first time for
    /// one. Succeeds if the kernel does not know the name.
    pub fn name_changed(&self, dir: InodeId, name: &[u8]) -> io::Result<()> {
        let mut body = self.node(dir).to_ne_bytes().to_vec();
        body.extend_from_slice(&u32::try_from(name.len()).unwrap_or(u32::MAX).to_ne_bytes());
        body.extend_from_slice(&[0; 4]);
        body.extend_from_slice(name);
        body.push(0);
        self.send(INVAL_ENTRY, &body)
    }

    /// Tells the kernel that several names in `dir` and its listing may have changed.
    pub fn names_changed<'a>(
        &self,
        dir: InodeId,
        names: impl IntoIterator<Item = &'a [u8]>,
    ) -> io::Result<()> {
        let told = names.into_iter().map(|name| self.name_changed(dir, name));
        let told = told.fold(Ok(()), io::Result::and);
        // Not before the names: the kernel would keep a listing that was read before and arrived after this notice. A
        // notice about a name waits until listings under way have ended.
        told.and(self.inode_changed(dir))
    }

    /// Tells the kernel that every name that it knows may stand for another inode now, or for none. It asks for each
    /// name again when a program next uses it; attributes and bytes in its caches stay. False if this kernel does not
    /// know the notice (before Linux 6.16): then names that change elsewhere need a notice each, or must not be kept.
    ///
    /// A name that the kernel asks for anew loses what is mounted on it or below it (`d_invalidate` in its
    /// fs/dcache.c), even if the name still stands for the same directory.
    pub fn names_dropped(&self) -> io::Result<bool> {
        match self.send(INC_EPOCH, &[]) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the kernel's number of `ino`.
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
            // NOENT: the kernel does not know it. NODEV, CONNABORTED, NOTCONN: the connection has ended.
            Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN) | Ok(()) => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}
