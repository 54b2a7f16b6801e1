//! The ioctls of /dev/fuse (`FUSE_DEV_IOC_...` in the kernel's `fuse.h`).
#![allow(unsafe_code, reason = "an ioctl's argument is known to its caller only")]

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::io::Result;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};

const MAGIC: u8 = 229;
const CLONE: Opcode = opcode::read::<u32>(MAGIC, 0);
const BACKING_OPEN: Opcode = opcode::write::<BackingMap>(MAGIC, 1);
const BACKING_CLOSE: Opcode = opcode::write::<u32>(MAGIC, 2);

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// FUSE_DEV_IOC_BACKING_OPEN, whose result is the number of the backing file.
struct BackingOpen(BackingMap);

// SAFETY: `as_ptr` points to what the opcode's argument is, a fuse_backing_map, which the kernel only
// reads; the result is taken from the return value and the pointer left alone.
unsafe impl Ioctl for BackingOpen {
    type Output = i32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        BACKING_OPEN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<i32> {
        Ok(out)
    }
}

/// Makes `device`, freshly opened, one more descriptor of `connection`.
pub(super) fn clone(device: impl AsFd, connection: impl AsFd) -> Result<()> {
    let connection = connection.as_fd().as_raw_fd();
    // SAFETY: the argument of FUSE_DEV_IOC_CLONE is a pointer to a descriptor's number of 32 bits, which
    // the kernel only reads.
    unsafe { ioctl(device, Setter::<CLONE, i32>::new(connection)) }
}

/// Makes `file` a backing file of the connection `device` and returns its number.
pub(super) fn backing_open(device: impl AsFd, file: BorrowedFd<'_>) -> Result<i32> {
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: see the implementation of `Ioctl`; the kernel takes its own reference to the file.
    unsafe { ioctl(device, BackingOpen(map)) }
}

/// Removes a backing file; files that are open on it keep it.
pub(super) fn backing_close(device: impl AsFd, id: i32) -> Result<()> {
    // SAFETY: the argument of FUSE_DEV_IOC_BACKING_CLOSE is a pointer to a number of 32 bits, which the
    // kernel only reads.
    unsafe { ioctl(device, Setter::<BACKING_CLOSE, i32>::new(id)) }
}
