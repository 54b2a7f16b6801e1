//! One io_uring and the memory of its entries.
//!
//! 1. [`Ring::new`] makes the ring, not yet usable, and maps memory for [`ENTRIES`] entries of
//!    [`ENTRY_BYTES`] each; a page is backed when it is first used.
//! 2. [`Ring::start`], on the thread that will serve, offers every entry to the kernel
//!    (FUSE_IO_URING_CMD_REGISTER).
//! 3. [`Ring::wait`] submits what is prepared and sleeps until something has arrived: one system call.
//! 4. [`Ring::commit`] prepares the answer in an entry to be taken and the entry to be filled again
//!    (FUSE_IO_URING_CMD_COMMIT_AND_FETCH).
//!
//! Invariant: the kernel writes to the entries only in the course of a system call on the ring by the
//! thread that started it. The kernel copies a request in the context of that thread (see
//! `fuse_uring_send_in_task` in its fs/fuse/dev_uring.c), and IORING_SETUP_DEFER_TASKRUN puts that off to
//! io_uring_enter(2). Between two such calls the entries are this thread's like any memory.
#![allow(unsafe_code, reason = "memory shared with the kernel, and submissions that point to it")]

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::time::Duration;

use io_uring::squeue::Entry128;
use io_uring::{EnterFlags, IoUring, opcode, types};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::param::page_size;

use crate::device::Device;
use crate::protocol::ring::{self, HEADERS_BYTES, LEAD_BYTES};
use crate::transport::held::ENTRIES;

/// The longest payload: a write's data, a listing.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 256 << 10;
const ENTRY_BYTES: usize = LEAD_BYTES + PAYLOAD_BYTES_MAX;
const MEMORY_BYTES: usize = ENTRIES * ENTRY_BYTES;
/// The length of the submission queue: one submission for every entry and one for the watch, rounded up to a power of
/// two.
const SUBMISSIONS: u32 = (ENTRIES + 1).next_power_of_two() as u32;
/// How long the kernel is given to find memory.
const MEMORY_WAIT: Duration = Duration::from_millis(1);
/// Marks the completion of the watch, which belongs to no entry.
const WATCH: u64 = u64::MAX;

/// `enum fuse_uring_cmd`.
const NO_COMMAND: u32 = 0;
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// What a completion says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A request lies in the entry.
    Request(usize),
    /// The kernel gave up the entry, with this errno.
    Refused(usize, i32),
    /// The watched descriptor is readable. This ends the watch.
    Watched,
}

/// The ring of one queue.
pub(super) struct Ring {
    // Closed before the memory is unmapped.
    ring: IoUring<Entry128>,
    memory: Memory,
    /// What each entry's registration points to; the kernel reads it in the course of the submission.
    places: Vec<[libc::iovec; 2]>,
    device: Device,
    queue: u16,
    /// The number of submissions that are prepared and not yet submitted.
    prepared: u32,
    enter_flags: EnterFlags,
}

// SAFETY: the pointers in `places` and `memory` are to memory that this value alone owns.
unsafe impl Send for Ring {}

impl Ring {
    /// Makes the ring of queue number `queue` of the connection `device`. The ring is disabled until it is started.
    pub(super) fn new(device: &Device, queue: u16) -> io::Result<Ring> {
        let mut builder = IoUring::<Entry128>::builder();
        builder.setup_r_disabled().setup_single_issuer().setup_defer_taskrun().setup_submit_all();
        let ring = builder.build(SUBMISSIONS)?;
        let memory = Memory::new()?;
        let places = (0..ENTRIES).map(|entry| memory.places(entry)).collect();
        let mut enter_flags = EnterFlags::GETEVENTS;
        // Else an idle mount would count as a CPU that waits for a disk.
        enter_flags.set(EnterFlags::NO_IOWAIT, ring.params().is_feature_no_iowait());
        Ok(Ring { ring, memory, places, device: device.clone(), queue, prepared: 0, enter_flags })
    }

    /// Binds the ring to the calling thread and prepares the registration of every entry.
    pub(super) fn start(&mut self) -> io::Result<()> {
        self.ring.submitter().register_enable_rings()?;
        // Commands then count no references to the file, on which all queues would meet.
        self.ring.submitter().register_files(&[self.device.descriptor().as_raw_fd()])?;
        // The kernel takes the entry registered last first. So entry 0 is used most, and the last ones'
        // pages only when many requests are under way.
        for entry in (0..ENTRIES).rev() {
            let command = ring::command(self.queue, 0);
            let place: *const libc::iovec = self.places[entry].as_ptr();
            let mut submission = self.command(REGISTER, entry, command, Some(place as u64));
            // SAFETY: `len` (u32) lies at offset 24 of a submission (`struct io_uring_sqe` in the kernel's
            // uapi), whose first 64 bytes an `Entry128`, `repr(C)` and 128 bytes long, begins with. The
            // crate has no setter for it.
            unsafe {
                const { assert!(size_of::<Entry128>() == 128) };
                ptr::from_mut(&mut submission).cast::<u32>().add(6).write(2);
            }
            self.prepare(&submission)?;
        }
        Ok(())
    }

    /// Prepares a watch that completes when `descriptor` is readable. REQUIRES: the descriptor stays open.
    pub(super) fn watch(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let readable = u32::try_from(libc::POLLIN).unwrap_or(1);
        let watch = opcode::PollAdd::new(types::Fd(descriptor.as_raw_fd()), readable);
        self.prepare(&watch.build().user_data(WATCH).into())
    }

    /// Returns the memory of an entry. REQUIRES: a request has arrived in it and is not committed.
    pub(super) fn entry(&mut self, entry: usize) -> &mut [u8] {
        self.memory.entry(entry)
    }

    /// Prepares the submission that sends the answer in an entry and fetches the next request.
    pub(super) fn commit(&mut self, entry: usize, unique: u64) -> io::Result<()> {
        let command = ring::command(self.queue, unique);
        let submission = self.command(COMMIT_AND_FETCH, entry, command, None);
        self.prepare(&submission)
    }

    fn command(
        &self,
        operation: u32,
        entry: usize,
        command: [u8; ring::COMMAND_BYTES],
        place: Option<u64>,
    ) -> Entry128 {
        opcode::UringCmd80::new(types::Fixed(0), operation)
            .cmd(command)
            .addr(place)
            .build()
            .user_data(entry as u64)
    }

    fn prepare(&mut self, submission: &Entry128) -> io::Result<()> {
        // SAFETY: what a submission points to lives in `self.places` and `self.memory` and is not moved;
        // both outlive the ring. The descriptors are open: the device is held here, the other by REQUIRES.
        unsafe { self.ring.submission().push(submission) }.map_err(io::Error::other)?;
        self.prepared += 1;
        Ok(())
    }

    /// Submits what is prepared without waiting.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        self.enter(0, EnterFlags::empty())
    }

    /// Submits what is prepared, waits for at least one completion and adds what has arrived to `arrivals`.
    pub(super) fn wait(&mut self, arrivals: &mut Vec<Arrival>) -> io::Result<()> {
        self.enter(1, self.enter_flags)?;
        while self.prepared > 0 {
            // Out of memory for some; what is prepared must go before its memory may be touched again.
            self.enter(0, EnterFlags::empty())?;
        }
        arrivals.extend(self.ring.completion().map(|completion| {
            let (mark, result) = (completion.user_data(), completion.result());
            match usize::try_from(mark) {
                Ok(entry) if entry < ENTRIES && result >= 0 => Arrival::Request(entry),
                Ok(entry) if entry < ENTRIES => Arrival::Refused(entry, -result),
                _ => Arrival::Watched,
            }
        }));
        Ok(())
    }

    fn enter(&mut self, wanted: u32, flags: EnterFlags) -> io::Result<()> {
        // SAFETY: no argument of its own; the entries' memory is borrowed by nobody, as `self` is exclusive.
        let entered = unsafe {
            self.ring.submitter().enter::<libc::sigset_t>(self.prepared, wanted, flags.bits(), None)
        };
        match entered {
            Ok(submitted) => {
                let submitted = u32::try_from(submitted).unwrap_or(self.prepared);
                self.prepared = self.prepared.saturating_sub(submitted);
                Ok(())
            }
            Err(err) if err.kind() == io::ErrorKind::Interrupted => Ok(()),
            // The kernel had no memory for a submission just now (io_uring_enter(2)); what is prepared goes with the next call.
            Err(err) if err.raw_os_error() == Some(libc::EAGAIN) => {
                #[allow(clippy::disallowed_methods, reason = "waits for the kernel's memory")]
                std::thread::sleep(MEMORY_WAIT);
                Ok(())
            }
            Err(err) => Err(err),
        }
    }

    /// Gives the pages of an entry's payload beyond `keep` bytes back to the machine.
    pub(super) fn trim(&mut self, entry: usize, keep: usize) {
        self.memory.trim(entry, keep);
    }
}

/// Whether the kernel takes commands for the connection of `device`, whose handshake is done. Once it does, it goes on to do so.
pub(super) fn takes_commands(device: &Device) -> io::Result<bool> {
    let mut ring = IoUring::<Entry128>::builder().build(1)?;
    let descriptor = types::Fd(device.descriptor().as_raw_fd());
    let probe = opcode::UringCmd80::new(descriptor, NO_COMMAND).build();
    // SAFETY: it points to nothing, and the device is borrowed until it is complete.
    unsafe { ring.submission().push(&probe) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let answer = ring.completion().next().map(|completion| completion.result());
    Ok(answer != Some(-libc::EOPNOTSUPP))
}

/// The memory of all entries of a ring.
struct Memory {
    base: NonNull<u8>,
}

impl Memory {
    fn new() -> io::Result<Memory> {
        let (access, kind) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping of no file at an address of the kernel's choice.
        let mapped =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), MEMORY_BYTES, access, kind)? };
        let base = NonNull::new(mapped.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // Huge pages would back far more than what requests touch.
        // SAFETY: the range is the mapping's; the advice changes no content.
        let advised = unsafe { rustix::mm::madvise(mapped, MEMORY_BYTES, Advice::LinuxNoHugepage) };
        if let Err(err) = advised {
            log::debug!("huge pages may back ring entries: {err}");
        }
        Ok(Memory { base })
    }

    fn start(&self, entry: usize) -> NonNull<u8> {
        assert!(entry < ENTRIES);
        // SAFETY: within the mapping, by the assertion.
        unsafe { self.base.add(entry * ENTRY_BYTES) }
    }

    /// Returns the pointers to the headers and to the payload of an entry, for its registration.
    fn places(&self, entry: usize) -> [libc::iovec; 2] {
        let start = self.start(entry);
        // SAFETY: an entry is longer than its lead.
        let payload = unsafe { start.add(LEAD_BYTES) };
        [
            libc::iovec { iov_base: start.as_ptr().cast::<c_void>(), iov_len: HEADERS_BYTES },
            libc::iovec { iov_base: payload.as_ptr().cast::<c_void>(), iov_len: PAYLOAD_BYTES_MAX },
        ]
    }

    fn entry(&mut self, entry: usize) -> &mut [u8] {
        // SAFETY: the entry lies within the mapping, which is zeroed or written to and lives as long as
        // `self`; nobody else writes to it (see the module's invariant), and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start(entry).as_ptr(), ENTRY_BYTES) }
    }

    fn trim(&mut self, entry: usize, keep: usize) {
        assert!(entry < ENTRIES);
        let pages = pages_beyond(entry, keep, page_size());
        if pages.is_empty() {
            return;
        }
        // SAFETY: whole pages of the mapping, within the entry's payload; they read as zeros afterwards, and nobody borrows them.
        let given = unsafe {
            let start = self.base.add(pages.start);
            rustix::mm::madvise(start.as_ptr().cast(), pages.len(), Advice::LinuxDontNeed)
        };
        if let Err(err) = given {
            log::debug!("cannot give back a ring entry's pages: {err}");
        }
    }
}

/// Returns the range of the memory of all entries with the whole pages that an entry has beyond the first `keep`
/// bytes of its payload. Where pages are larger than 4 KiB, a page that the entry shares with another is not in the
/// range.
fn pages_beyond(entry: usize, keep: usize, page_bytes: usize) -> Range<usize> {
    let start = entry * ENTRY_BYTES + LEAD_BYTES + keep;
    let end = (entry + 1) * ENTRY_BYTES;
    start.next_multiple_of(page_bytes)..end / page_bytes * page_bytes
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`, of which no slice is left.
        if let Err(err) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), MEMORY_BYTES) } {
            log::debug!("cannot unmap ring entries: {err}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_lie_apart_and_give_their_pages_back() {
        let mut memory = Memory::new().unwrap();
        memory.entry(0).fill(1);
        memory.entry(ENTRIES - 1).fill(2);
        assert!(memory.entry(1).iter().all(|&byte| byte == 0));
        memory.trim(0, 5000);
        let (kept, given) = memory.entry(0).split_at(LEAD_BYTES + 8192);
        assert!(kept.iter().all(|&byte| byte == 1) && given.iter().all(|&byte| byte == 0));
        memory.trim(ENTRIES - 1, PAYLOAD_BYTES_MAX);
        assert!(memory.entry(ENTRIES - 1).iter().all(|&byte| byte == 2));
    }

    /// Of larger pages than 4 KiB those went that the next entry began in.
    #[test]
    fn an_entry_gives_back_no_page_of_another() {
        for page_bytes in [4 << 10, 16 << 10, 64 << 10] {
            for (entry, keep) in (0..ENTRIES).flat_map(|entry| [(entry, 0), (entry, 16 << 10)]) {
                let pages = pages_beyond(entry, keep, page_bytes);
                let payload = entry * ENTRY_BYTES + LEAD_BYTES;
                assert!(payload + keep <= pages.start && pages.end <= (entry + 1) * ENTRY_BYTES);
                assert!([pages.start, pages.end].iter().all(|at| at.is_multiple_of(page_bytes)));
                assert!(PAYLOAD_BYTES_MAX - keep - pages.len() < 2 * page_bytes);
            }
        }
        assert!(pages_beyond(0, PAYLOAD_BYTES_MAX, 4 << 10).is_empty());
    }

    #[test]
    fn the_kernel_is_told_of_places_within_the_entry() {
        let mut memory = Memory::new().unwrap();
        for entry in [0, 7, ENTRIES - 1] {
            let [headers, payload] = memory.places(entry);
            let bytes = memory.entry(entry).as_ptr_range();
            assert_eq!(headers.iov_base as *const u8, bytes.start);
            assert_eq!((headers.iov_len, payload.iov_len), (HEADERS_BYTES, PAYLOAD_BYTES_MAX));
            assert_eq!(payload.iov_base as usize + payload.iov_len, bytes.end as usize);
        }
    }
}
