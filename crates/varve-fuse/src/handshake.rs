//! The first exchange on a connection: which version, which capabilities, which limits.
//!
//! The kernel sends INIT by itself once the file system is mounted and nothing else before it is answered.
//! Not asked for: write-back caching (the kernel would change sizes and times by itself) and
//! FUSE_EXPORT_SUPPORT (a `Vfs` has no lookup by inode id alone).

use std::io;

use crate::device::Device;
use crate::protocol::constants::*;
use crate::protocol::reply::{InitOut, Reply};
use crate::protocol::request::{Header, Init, Request};
use crate::session::{ReaddirPlus, SessionOptions};

/// The largest write in one request, in bytes; the kernel's own limit by default.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// The pages of the largest read or write.
const REQUEST_PAGES_MAX: u16 = 256;
/// Room for the longest request: a write with its header, or two names.
pub(crate) const REQUEST_BYTES_MAX: usize = WRITE_BYTES_MAX as usize + 4096;
/// How many requests that no program waits for (readahead, release) may be under way.
const BACKGROUND_REQUESTS_MAX: u16 = 64;
/// With so many the kernel holds back further readahead.
const BACKGROUND_REQUESTS_CONGESTED: u16 = BACKGROUND_REQUESTS_MAX / 4 * 3;
/// Objects may lie on any file system that is not itself stacked on another.
const STACK_DEPTH_MAX: u32 = 1;
/// The oldest protocol served: Linux 5.4.
const MINOR_MIN: u32 = 31;

/// What was agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreement {
    /// Backing files may be registered.
    pub(crate) passthrough: bool,
}

/// Receives INIT and answers it.
pub(crate) fn shake_hands(device: &Device, options: &SessionOptions) -> io::Result<Agreement> {
    let mut buffer = vec![0; REQUEST_BYTES_MAX];
    let ended = || io::Error::other("the file system was unmounted before it was served");
    let len = device.read(&mut buffer)?.ok_or_else(ended)?;
    let unexpected = || io::Error::other("the kernel's first request is not INIT");
    let (header, body) = Header::decode(&buffer[..len]).map_err(|_| unexpected())?;
    let Ok(Request::Init(offer)) = Request::decode(header.opcode, body) else {
        device.reply_errno(header.unique, libc::EIO);
        return Err(unexpected());
    };
    if let Err(reason) = check_version(&offer) {
        device.reply_errno(header.unique, libc::EPROTO);
        return Err(io::Error::other(reason));
    }
    let answer = answer(&offer, options);
    let mut reply = Reply::new();
    reply.init_out(&answer);
    device.reply(header.unique, &mut reply);
    Ok(Agreement { passthrough: answer.flags & FUSE_PASSTHROUGH != 0 })
}

/// Why the kernel's version cannot be served.
fn check_version(offer: &Init) -> Result<(), String> {
    if offer.major == FUSE_KERNEL_VERSION && offer.minor >= MINOR_MIN {
        return Ok(());
    }
    Err(format!(
        "the kernel speaks FUSE {}.{}; needed is {FUSE_KERNEL_VERSION}.{MINOR_MIN} or newer (Linux 5.4)",
        offer.major, offer.minor
    ))
}

/// What is wanted of what the kernel offers.
fn answer(offer: &Init, options: &SessionOptions) -> InitOut {
    let mut wanted = FUSE_ASYNC_READ
        | FUSE_BIG_WRITES
        | FUSE_ATOMIC_O_TRUNC
        | FUSE_DONT_MASK
        | FUSE_PARALLEL_DIROPS
        | FUSE_HANDLE_KILLPRIV_V2
        | FUSE_CACHE_SYMLINKS
        | FUSE_NO_OPENDIR_SUPPORT
        | FUSE_MAX_PAGES;
    wanted |= match options.readdir_plus {
        ReaddirPlus::Auto => FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO,
        ReaddirPlus::Always => FUSE_DO_READDIRPLUS,
        ReaddirPlus::Never => 0,
    };
    if options.passthrough && !options.sync_writes {
        wanted |= FUSE_PASSTHROUGH;
    }
    let flags = wanted & offer.flags;
    if flags != wanted {
        log::debug!("the kernel lacks the FUSE capabilities {:#x}", wanted & !flags);
    }
    InitOut {
        max_readahead: offer.max_readahead,
        flags,
        max_background: BACKGROUND_REQUESTS_MAX,
        congestion_threshold: BACKGROUND_REQUESTS_CONGESTED,
        max_write: WRITE_BYTES_MAX,
        max_pages: REQUEST_PAGES_MAX,
        max_stack_depth: if flags & FUSE_PASSTHROUGH != 0 { STACK_DEPTH_MAX } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(flags: u64) -> Init {
        Init { major: 7, minor: 45, max_readahead: 131_072, flags }
    }

    #[test]
    fn only_what_is_offered_is_asked_for() {
        let options = SessionOptions::default();
        let answer = answer(&offer(FUSE_ASYNC_READ | FUSE_INIT_EXT), &options);
        assert_eq!((answer.flags, answer.max_stack_depth), (FUSE_ASYNC_READ, 0));
        assert_eq!(answer.max_readahead, 131_072);
    }

    #[test]
    fn kernels_too_old_or_too_new_are_told_so() {
        for (major, minor, served) in
            [(7, 31, true), (7, 99, true), (7, 30, false), (8, 0, false), (6, 40, false)]
        {
            let checked = check_version(&Init { major, minor, ..offer(0) });
            assert_eq!(checked.is_ok(), served, "{major}.{minor}");
        }
    }

    #[test]
    fn passthrough_and_listings_follow_the_options() {
        let mut options =
            SessionOptions { readdir_plus: ReaddirPlus::Never, ..SessionOptions::default() };
        let granted = answer(&offer(u64::MAX), &options);
        assert_eq!(granted.flags & (FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO), 0);
        assert_ne!(granted.flags & FUSE_PASSTHROUGH, 0);
        assert_eq!(granted.max_stack_depth, 1);
        options.sync_writes = true;
        assert_eq!(answer(&offer(u64::MAX), &options).flags & FUSE_PASSTHROUGH, 0);
    }
}
