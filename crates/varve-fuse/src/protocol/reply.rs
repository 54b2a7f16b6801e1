//! Encodes answers.
//!
//! ```text
//! offset 0 len u32 | 4 error i32 (negative errno or 0) | 8 unique u64 | 16 the operation's own structure
//! ```
//!
//! A [`Reply`] is one buffer that a reader thread uses for all its answers:
//!
//! 1. [`Reply::clear`] starts an answer.
//! 2. The encoders append the body.
//! 3. [`Reply::finish`] writes the header.
//!
//! Invariant: the length in the header is the length of the whole answer.

use std::time::Duration;

use varve_types::Timestamp;
use varve_vfs::{Attr, DirEntry, FileType, StatFs};

use super::constants::{
    FOPEN_PASSTHROUGH, FUSE_INIT_EXT, FUSE_KERNEL_MINOR_VERSION, FUSE_KERNEL_VERSION,
};

/// Length of what precedes every answer.
pub(crate) const HEADER_BYTES: usize = 16;
/// The unit of I/O that stat(2) reports, in bytes.
const BLOCK_BYTES: u32 = 4096;
/// Length of the fixed part of a `fuse_dirent`.
const DIRENT_BYTES: usize = 24;
/// Length of a `fuse_entry_out`.
const ENTRY_BYTES: usize = 128;
/// `STATX_BASIC_STATS | STATX_BTIME`.
const STATX_MASK: u32 = 0x07ff | 0x0800;
/// Inode ids are never reused, so one generation does for all.
const GENERATION: u64 = 0;

/// How long the kernel may take a name and its attributes for known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    /// The name's inode.
    pub(crate) entry: Duration,
    /// The attributes.
    pub(crate) attr: Duration,
}

/// The answer to INIT.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InitOut {
    pub(crate) max_readahead: u32,
    pub(crate) flags: u64,
    pub(crate) max_background: u16,
    pub(crate) congestion_threshold: u16,
    pub(crate) max_write: u32,
    pub(crate) max_pages: u16,
    pub(crate) max_stack_depth: u32,
}

/// How an open file is served: flags, and the backing file if they say FOPEN_PASSTHROUGH.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenOut {
    pub(crate) handle: u64,
    pub(crate) flags: u32,
    pub(crate) backing: Option<i32>,
}

/// Returns what precedes the answer to request `unique`, with `body` bytes after it. `errno` is 0 or positive.
pub(crate) fn header(unique: u64, errno: i32, body: usize) -> [u8; HEADER_BYTES] {
    let len = u32::try_from(HEADER_BYTES + body).unwrap_or(u32::MAX);
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&len.to_ne_bytes());
    header[4..8].copy_from_slice(&(-errno).to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// An answer under construction.
#[derive(Debug)]
pub(crate) struct Reply {
    bytes: Vec<u8>,
}

impl Reply {
    /// An empty answer.
    pub(crate) fn new() -> Reply {
        Reply { bytes: vec![0; HEADER_BYTES] }
    }

    /// Takes out what was filled in.
    pub(crate) fn clear(&mut self) {
        self.bytes.truncate(HEADER_BYTES);
    }

    /// Length of what was filled in.
    pub(crate) fn body_len(&self) -> usize {
        self.bytes.len() - HEADER_BYTES
    }

    /// Returns what was filled in.
    pub(crate) fn body(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..]
    }

    /// Returns the whole answer to request `unique`.
    pub(crate) fn finish(&mut self, unique: u64) -> &[u8] {
        let header = header(unique, 0, self.body_len());
        self.bytes[..HEADER_BYTES].copy_from_slice(&header);
        &self.bytes
    }

    /// Bytes as they are: a link's target, an attribute's value.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_ne_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_ne_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_ne_bytes());
    }

    fn zeros(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + count, 0);
    }

    /// ```text
    /// ino u64 | size u64 | blocks u64 | atime u64 | mtime u64 | ctime u64
    /// atimensec u32 | mtimensec u32 | ctimensec u32 | mode u32 | nlink u32 | uid u32 | gid u32 | rdev u32
    /// blksize u32 | flags u32
    /// ```
    fn attr(&mut self, attr: &Attr) {
        self.u64(attr.ino.get());
        self.u64(attr.size);
        self.u64(attr.blocks);
        let times = [attr.atime, attr.mtime, attr.ctime];
        times.iter().for_each(|time| self.bytes(&time.secs().to_ne_bytes()));
        times.iter().for_each(|time| self.u32(time.nanos()));
        self.u32(mode(attr));
        self.u32(attr.nlink);
        self.u32(attr.uid);
        self.u32(attr.gid);
        self.u32(attr.rdev);
        self.u32(BLOCK_BYTES);
        self.u32(0);
    }

    /// fuse_attr_out: `attr_valid u64 | attr_valid_nsec u32 | dummy u32 | attr`
    pub(crate) fn attr_out(&mut self, valid: Duration, attr: &Attr) {
        self.u64(valid.as_secs());
        self.u32(valid.subsec_nanos());
        self.u32(0);
        self.attr(attr);
    }

    /// `nodeid u64 | generation u64 | entry_valid u64 | attr_valid u64 | entry_valid_nsec u32 |
    /// attr_valid_nsec u32`
    fn entry_start(&mut self, node: u64, valid: Validity) {
        self.u64(node);
        self.u64(GENERATION);
        self.u64(valid.entry.as_secs());
        self.u64(valid.attr.as_secs());
        self.u32(valid.entry.subsec_nanos());
        self.u32(valid.attr.subsec_nanos());
    }

    /// fuse_entry_out: a name found or made.
    pub(crate) fn entry_out(&mut self, valid: Validity, attr: &Attr) {
        self.entry_of(attr.ino.get(), valid, attr);
    }

    /// The same of an inode that the kernel is to call `node`.
    pub(crate) fn entry_of(&mut self, node: u64, valid: Validity, attr: &Attr) {
        self.entry_start(node, valid);
        self.attr(attr);
    }

    /// fuse_entry_out with inode number 0: the name is absent, and may be remembered so.
    pub(crate) fn absent(&mut self, valid: Duration) {
        let end = self.bytes.len() + ENTRY_BYTES;
        self.entry_start(0, Validity { entry: valid, attr: Duration::ZERO });
        self.bytes.resize(end, 0);
    }

    /// fuse_open_out: `fh u64 | open_flags u32 | backing_id i32`
    pub(crate) fn open_out(&mut self, open: OpenOut) {
        self.u64(open.handle);
        self.u32(open.flags | if open.backing.is_some() { FOPEN_PASSTHROUGH } else { 0 });
        self.bytes(&open.backing.unwrap_or(0).to_ne_bytes());
    }

    /// fuse_write_out and fuse_getxattr_out: `size u32 | padding u32`
    pub(crate) fn size_out(&mut self, size: u32) {
        self.u32(size);
        self.u32(0);
    }

    /// fuse_copy_file_range_out.
    pub(crate) fn copied_out(&mut self, bytes: u64) {
        self.u64(bytes);
    }

    /// fuse_lk_out: `start u64 | end u64 | type u32 | pid u32`
    pub(crate) fn lock_out(&mut self, (first, last): (u64, u64), mode: u32, pid: u32) {
        self.u64(first);
        self.u64(last);
        self.u32(mode);
        self.u32(pid);
    }

    /// fuse_lseek_out.
    pub(crate) fn lseek_out(&mut self, offset: u64) {
        self.u64(offset);
    }

    /// fuse_statfs_out: `blocks u64 | bfree u64 | bavail u64 | files u64 | ffree u64 | bsize u32 |
    /// namelen u32 | frsize u32 | padding u32 | spare 6 * u32`
    pub(crate) fn statfs_out(&mut self, room: &StatFs) {
        let StatFs { blocks, blocks_free, blocks_available, files, files_free, .. } = *room;
        for count in [blocks, blocks_free, blocks_available, files, files_free] {
            self.u64(count);
        }
        self.u32(room.block_bytes);
        self.u32(room.name_bytes_max);
        self.u32(room.block_bytes);
        self.zeros(28);
    }

    /// ```text
    /// attr_valid u64 | attr_valid_nsec u32 | flags u32 | spare 2 * u64, then fuse_statx:
    /// mask u32 | blksize u32 | attributes u64 | nlink u32 | uid u32 | gid u32 | mode u16 | spare u16
    /// ino u64 | size u64 | blocks u64 | attributes_mask u64 | atime | btime | ctime | mtime
    /// rdev_major u32 | rdev_minor u32 | dev_major u32 | dev_minor u32 | spare 14 * u64
    /// ```
    pub(crate) fn statx_out(&mut self, valid: Duration, attr: &Attr) {
        self.u64(valid.as_secs());
        self.u32(valid.subsec_nanos());
        self.zeros(20);
        self.u32(STATX_MASK);
        self.u32(BLOCK_BYTES);
        self.u64(0);
        self.u32(attr.nlink);
        self.u32(attr.uid);
        self.u32(attr.gid);
        self.u16(u16::try_from(mode(attr)).unwrap_or(0));
        self.u16(0);
        self.u64(attr.ino.get());
        self.u64(attr.size);
        self.u64(attr.blocks);
        self.u64(0);
        for time in [attr.atime, attr.btime, attr.ctime, attr.mtime] {
            self.statx_time(time);
        }
        let device = u64::from(attr.rdev);
        self.u32(rustix::fs::major(device));
        self.u32(rustix::fs::minor(device));
        self.zeros(8 + 14 * 8);
    }

    /// `tv_sec i64 | tv_nsec u32 | reserved i32`
    fn statx_time(&mut self, time: Timestamp) {
        self.bytes(&time.secs().to_ne_bytes());
        self.u32(time.nanos());
        self.u32(0);
    }

    /// fuse_dirent, padded to a multiple of 8: `ino u64 | off u64 | namelen u32 | type u32 | name`. False,
    /// and nothing added, if the body would be longer than `limit`.
    pub(crate) fn dirent(&mut self, limit: usize, entry: &DirEntry<'_>) -> bool {
        let fits = self.body_len() + (DIRENT_BYTES + entry.name.len()).next_multiple_of(8) <= limit;
        if fits {
            self.u64(entry.ino.get());
            self.u64(entry.cookie);
            self.u32(u32::try_from(entry.name.len()).unwrap_or(0));
            self.u32(entry.kind.mode_bits() >> 12);
            self.bytes(entry.name);
            self.zeros(entry.name.len().next_multiple_of(8) - entry.name.len());
        }
        fits
    }

    /// fuse_direntplus: a fuse_entry_out, of inode number 0 for an entry without attributes, and a
    /// fuse_dirent. False, and nothing added, if the body would be longer than `limit`.
    pub(crate) fn direntplus(
        &mut self,
        limit: usize,
        valid: Validity,
        entry: &DirEntry<'_>,
    ) -> bool {
        let before = self.bytes.len();
        match &entry.attr {
            Some(attr) => self.entry_out(valid, attr),
            None => self.zeros(ENTRY_BYTES),
        }
        let fits = self.dirent(limit, entry);
        if !fits {
            self.bytes.truncate(before);
        }
        fits
    }

    /// ```text
    /// major u32 | minor u32 | max_readahead u32 | flags u32 | max_background u16 | congestion u16
    /// max_write u32 | time_gran u32 | max_pages u16 | map_alignment u16 | flags2 u32 | max_stack_depth u32
    /// request_timeout u16 | unused 11 * u16
    /// ```
    pub(crate) fn init_out(&mut self, init: &InitOut) {
        self.u32(FUSE_KERNEL_VERSION);
        self.u32(FUSE_KERNEL_MINOR_VERSION);
        self.u32(init.max_readahead);
        let upper = u32::try_from(init.flags >> 32).unwrap_or(0);
        let extended = if upper == 0 { 0 } else { FUSE_INIT_EXT };
        self.u32(u32::try_from((init.flags | extended) & u64::from(u32::MAX)).unwrap_or(0));
        self.u16(init.max_background);
        self.u16(init.congestion_threshold);
        self.u32(init.max_write);
        // Times are kept to the nanosecond.
        self.u32(1);
        self.u16(init.max_pages);
        self.u16(0);
        self.u32(upper);
        self.u32(init.max_stack_depth);
        self.zeros(24);
    }
}

fn mode(attr: &Attr) -> u32 {
    let kind: FileType = attr.kind;
    kind.mode_bits() | (attr.perm & 0o7777)
}
