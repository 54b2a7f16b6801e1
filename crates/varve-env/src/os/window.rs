//! Windows: parts of files that are written as memory.
//!
//! A store to a shared mapping of the page cache survives the death of the process as a write(2) does, and costs a
//! copy in place of a system call. A store reports as SIGBUS what a system call reports as an error:
//!
//! - No space: a window is written only where space is allocated, on file systems that never move the blocks of a
//!   file when they are written (ext4, XFS, tmpfs).
//! - A failing disk, or a file that another process has cut: the handler of SIGBUS maps anonymous memory in place of
//!   the window and notes the failure. The store is repeated there, and [`Window::write`] fails when it sees the
//!   note. Faults at other addresses go to the handler that was there before.
//!
//! Invariant: the handler touches only atomics. So the open windows are in an array of fixed length ([`SLOTS`]).

#![allow(
    unsafe_code,
    reason = "a mapping, and the handler of the signal that a failing one raises"
)]

use std::io;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, compiler_fence};

use rustix::fs::{self, FsWord};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;

use crate::{File, Window};

/// `f_type` of file systems on which a write to allocated space takes no new space: ext4, XFS, tmpfs.
const STEADY: [FsWord; 3] = [0xef53, 0x5846_5342, 0x0102_1994];
const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// The open windows, for the handler. A process with more open logs writes the others by system calls.
static SLOTS: [WindowSlot; 64] = [const { WindowSlot::empty() }; 64];
/// The earlier action of SIGBUS; `None` if the handler could not be set.
static BEFORE: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// The address range of an open window.
struct WindowSlot {
    taken: AtomicBool,
    /// Its first address; 0 while there is none.
    start: AtomicUsize,
    len: AtomicUsize,
    /// The storage failed below it.
    failed: AtomicBool,
}

impl WindowSlot {
    const fn empty() -> WindowSlot {
        WindowSlot {
            taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
        }
    }

    fn has(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::Acquire);
        start != 0 && (start..start + self.len.load(Ordering::Acquire)).contains(&address)
    }
}

/// A mapped part of a file.
#[derive(Debug)]
pub(super) struct OsWindow {
    memory: NonNull<u8>,
    len: usize,
    /// Where in the file it begins.
    offset: u64,
    slot: &'static WindowSlot,
}

// SAFETY: the mapping is this value's alone, and is reached through `&mut self`.
unsafe impl Send for OsWindow {}
// SAFETY: nothing is done through `&self`.
unsafe impl Sync for OsWindow {}

impl std::fmt::Debug for WindowSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WindowSlot").field("failed", &self.failed).finish_non_exhaustive()
    }
}

impl OsWindow {
    /// Opens a window over `len` bytes of `fd` from `offset` on. `None` if a store to allocated space within the
    /// file's length could fail for another reason than a failing disk, or if too many windows are open.
    pub(super) fn open(fd: &OwnedFd, offset: u64, len: u64) -> io::Result<Option<OsWindow>> {
        if !STEADY.contains(&fs::fstatfs(fd)?.f_type) || !handles_faults() {
            return Ok(None);
        }
        let lead = offset % page_size() as u64;
        let (offset, Ok(len)) = (offset - lead, usize::try_from(len + lead)) else {
            return Ok(None);
        };
        let is_free = |slot: &&WindowSlot| !slot.taken.swap(true, Ordering::AcqRel);
        let Some(slot) = SLOTS.iter().find(is_free) else { return Ok(None) };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe { mmap(ptr::null_mut(), len, ACCESS, MapFlags::SHARED, fd, offset) };
        let memory = match mapped.map(|start| NonNull::new(start.cast())) {
            Ok(Some(memory)) => memory,
            failed => {
                slot.taken.store(false, Ordering::Release);
                return failed.map(|_| None).map_err(io::Error::from);
            }
        };
        slot.failed.store(false, Ordering::Release);
        slot.len.store(len, Ordering::Release);
        slot.start.store(memory.as_ptr() as usize, Ordering::Release);
        Ok(Some(OsWindow { memory, len, offset, slot }))
    }
}

/// See [`File::warm_room`]. If the storage fails, stores to the pages fail too.
pub(super) fn warm_room(file: &dyn File, offset: u64, len: u64) {
    /// Each write makes one page of the cache of up to this size. A store makes all of its page dirty, which the next sync writes.
    const PAGE: u64 = 32 << 10;
    static ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
    let (mut at, end) = (offset, offset + len);
    while at < end {
        let next = (at + 1).next_multiple_of(PAGE).min(end);
        if file.write_all_at(&ZEROS[..(next - at) as usize], at).is_err() {
            return;
        }
        at = next;
    }
}

impl Window for OsWindow {
    fn write(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let at = offset.checked_sub(self.offset).and_then(|at| usize::try_from(at).ok());
        let Some(at) =
            at.filter(|at| self.len.checked_sub(*at).is_some_and(|room| bytes.len() <= room))
        else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // SAFETY: `bytes.len()` bytes from `at` on are within the mapping, which nothing borrows.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.as_ptr().add(at), bytes.len())
        };
        // The handler runs on this thread, before the store that raised the signal is over.
        compiler_fence(Ordering::SeqCst);
        match self.slot.failed.load(Ordering::Acquire) {
            true => Err(io::Error::from_raw_os_error(libc::EIO)),
            false => Ok(()),
        }
    }
}

impl Drop for OsWindow {
    fn drop(&mut self) {
        self.slot.start.store(0, Ordering::Release);
        // SAFETY: the mapping of this value, or what the handler put in its place; nothing borrows it.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.len) };
        self.slot.taken.store(false, Ordering::Release);
    }
}

/// Sets the handler, once in the life of the process. False if that is not allowed.
fn handles_faults() -> bool {
    let set = || {
        // SAFETY: all zeros is a valid value of this plain structure of C.
        let (mut ours, mut before): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        ours.sa_sigaction = on_fault as extern "C" fn(_, _, _) as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: both point to such structures; the handler does only what a handler may.
        let result = unsafe { libc::sigaction(libc::SIGBUS, &ours, &mut before) };
        (result == 0).then_some(before)
    };
    BEFORE.get_or_init(set).is_some()
}

extern "C" fn on_fault(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes what SA_SIGINFO promises.
    let address = unsafe { (*info).si_addr() } as usize;
    if let Some(slot) = SLOTS.iter().find(|slot| slot.has(address)) {
        let (start, len) = (slot.start.load(Ordering::Acquire), slot.len.load(Ordering::Acquire));
        // SAFETY: the range is that of a window, whose owner is the interrupted thread or at least has not unmapped
        // it; a system call without the C library's errno.
        let replaced = unsafe {
            mmap_anonymous(start as *mut _, len, ACCESS, MapFlags::PRIVATE | MapFlags::FIXED)
        };
        if replaced.is_ok() {
            slot.failed.store(true, Ordering::Release);
            return;
        }
    }
    // SAFETY: the handler of before is called as it would have been, or the default put back, which ends the process
    // when the fault is repeated.
    unsafe {
        match BEFORE.get().copied().flatten() {
            Some(before) if before.sa_sigaction > libc::SIG_IGN => {
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    let call: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(before.sa_sigaction);
                    call(signal, info, context);
                } else {
                    let call: extern "C" fn(libc::c_int) = std::mem::transmute(before.sa_sigaction);
                    call(signal);
                }
            }
            _ => {
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::os::file::OsFile;

    const LEN: u64 = 3 << 16;

    /// A file of which `LEN` bytes are allocated, and a window over all but its first 5000 bytes. Nothing on storage that
    /// cannot have one.
    fn open() -> Option<(OwnedFd, OsWindow)> {
        let fd = OwnedFd::from(tempfile::tempfile().unwrap());
        fs::fallocate(&fd, fs::FallocateFlags::empty(), 0, LEN).unwrap();
        let window = OsWindow::open(&fd, 5000, LEN - 5000).unwrap();
        if window.is_none() {
            varve_testkit::skipped("the storage of temporary files has no windows");
        }
        Some((fd, window?))
    }

    #[test]
    fn what_is_written_is_in_the_file() {
        let Some((fd, mut window)) = open() else { return };
        for (offset, byte) in [(5000, 1), (70_000, 2), (LEN - 8, 3)] {
            window.write(&[byte; 8], offset).unwrap();
            let mut read = [0; 8];
            assert_eq!(rustix::io::pread(&fd, &mut read, offset), Ok(8));
            assert_eq!(read, [byte; 8]);
        }
        for (offset, len) in [(0, 8), (LEN - 7, 8), (LEN, 1), (u64::MAX, 1)] {
            assert!(window.write(&vec![9; len], offset).is_err(), "{offset}");
        }
    }

    #[test]
    fn warm_room_reads_as_zeros_and_is_written_through_a_window() {
        let Some((fd, mut window)) = open() else { return };
        window.write(&[1; 8], 5000).unwrap();
        let file = OsFile::new(fd);
        file.warm_room(5008, LEN - 5008);
        window.write(&[2; 8], 140_000).unwrap();
        let mut read = vec![9; LEN as usize];
        file.read_exact_at(&mut read, 0).unwrap();
        let mut expected = vec![0; LEN as usize];
        expected[5000..5008].fill(1);
        expected[140_000..140_008].fill(2);
        assert!(read == expected);
        assert_eq!(file.stat().unwrap().len, LEN);
    }

    /// A file that somebody cuts raises what a failing disk raises.
    #[test]
    fn a_store_that_fails_is_an_error_and_others_go_on() {
        let (Some((fd, mut window)), Some((other_fd, mut other))) = (open(), open()) else {
            return;
        };
        window.write(b"before", 8192).unwrap();
        fs::ftruncate(&fd, 4096).unwrap();
        let failed = window.write(b"after", 9000).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EIO));
        assert!(window.write(b"later", 5000).is_err());
        other.write(b"whole", 9000).unwrap();
        let mut read = [0; 5];
        assert_eq!(rustix::io::pread(&other_fd, &mut read, 9000), Ok(5));
        assert_eq!(&read, b"whole");
        drop(window);
        let (_, mut next) = open().unwrap();
        next.write(b"new", 9000).unwrap();
    }
}
