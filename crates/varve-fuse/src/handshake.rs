//! The first exchange on a connection: version, capabilities and limits.
//!
//! 1. The kernel sends INIT when the file system is mounted, and nothing else before the answer.
//! 2. The version is checked, and the transport chosen. The rings must exist before the answer: the kernel waits for
//!    them once the answer asks for rings.
//! 3. The answer names the capabilities that this program wants and the kernel offers.
//! 4. If rings have been switched off meanwhile, the kernel does not wait for them, and they are dropped.
//!
//! Invariants: the answer names no capability that the kernel did not offer. It never asks for write-back caching,
//! because the kernel would then change sizes and times by itself.

use std::io;

use rustix::param::page_size;

use crate::agreement::{Agreement, REQUEST_BYTES_MAX, WRITE_BYTES_MAX};
use crate::device::Device;
use crate::options::{ReaddirPlus, SessionOptions};
use crate::protocol::constants::*;
use crate::protocol::reply::{InitOut, Reply};
use crate::protocol::request::{Header, Init, Request};
use crate::transport::{self, Carrier, NoUring, PAYLOAD_BYTES_MAX, Transport};

/// The largest write in one request through rings. Every ring entry has room for it.
const RING_WRITE_BYTES_MAX: u32 = PAYLOAD_BYTES_MAX as u32;
/// The most requests under way that no program waits for (readahead, release).
const BACKGROUND_REQUESTS_MAX: u16 = 64;
/// With this many such requests the kernel holds back further readahead.
const BACKGROUND_REQUESTS_CONGESTED: u16 = BACKGROUND_REQUESTS_MAX / 4 * 3;
/// Backing files may lie on any file system that is not itself stacked on another.
const STACK_DEPTH_MAX: u32 = 1;
/// The oldest minor version that is served: Linux 5.4.
const MINOR_MIN: u32 = 31;

/// Why the handshake failed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The exchange failed.
    Exchange(io::Error),
    /// The options ask for rings, and there are none.
    NoUring(NoUring),
}

impl<E: Into<io::Error>> From<E> for Refusal {
    fn from(error: E) -> Refusal {
        Refusal::Exchange(error.into())
    }
}

/// Receives INIT, chooses the transport and answers. With `root_alone` the kernel checks no permissions on
/// the mount; with `has_locks` it asks for locks of files instead of keeping them.
pub(crate) fn shake_hands(
    device: &Device,
    options: &SessionOptions,
    root_alone: bool,
    has_locks: bool,
) -> Result<(Agreement, Carrier), Refusal> {
    let mut buffer = vec![0; REQUEST_BYTES_MAX];
    let ended = || io::Error::other("the file system was unmounted before it was served");
    let len = device.read(&mut buffer)?.ok_or_else(ended)?;
    let unexpected = || io::Error::other("the kernel's first request is not INIT");
    let (header, body) = Header::decode(&buffer[..len]).map_err(|_| unexpected())?;
    let Ok(Request::Init(offer)) = Request::decode(header.opcode, body) else {
        device.reply_errno(header.unique, libc::EIO);
        return Err(unexpected().into());
    };
    if let Err(reason) = check_version(&offer) {
        device.reply_errno(header.unique, libc::EPROTO);
        return Err(io::Error::other(reason).into());
    }
    let offered = offer.flags & FUSE_OVER_IO_URING != 0;
    let (carrier, no_uring) = transport::choose(device, options.transport, offered)
        .inspect_err(|_| device.reply_errno(header.unique, libc::EPROTO))
        .map_err(Refusal::NoUring)?;
    let locks = if has_locks { FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS } else { 0 };
    let answer = answer(&offer, options, carrier.transport(), root_alone, locks);
    let mut reply = Reply::new();
    reply.init_out(&answer);
    device.reply(header.unique, &mut reply);
    let (carrier, lost) = transport::keep(device, carrier)?;
    let no_uring = match lost {
        Some(reason) if options.transport.is_some() => return Err(Refusal::NoUring(reason)),
        lost => lost.or(no_uring),
    };
    let agreement = Agreement::new(&answer, root_alone, carrier.transport(), no_uring);
    Ok((agreement, carrier))
}

/// Checks the kernel's version. The error says why it cannot be served.
fn check_version(offer: &Init) -> Result<(), String> {
    if offer.major == FUSE_KERNEL_VERSION && offer.minor >= MINOR_MIN {
        return Ok(());
    }
    Err(format!(
        "the kernel speaks FUSE {}.{}; needed is {FUSE_KERNEL_VERSION}.{MINOR_MIN} or newer (Linux 5.4)",
        offer.major, offer.minor
    ))
}

/// Chooses the capabilities and limits from what the kernel offers. `locks` are those for locks of files, if the file
/// system keeps them.
fn answer(
    offer: &Init,
    options: &SessionOptions,
    transport: Transport,
    root_alone: bool,
    locks: u64,
) -> InitOut {
    let mut wanted = locks
        | FUSE_ASYNC_READ
        | FUSE_BIG_WRITES
        | FUSE_EXPORT_SUPPORT
        | FUSE_ATOMIC_O_TRUNC
        | FUSE_DONT_MASK
        | FUSE_PARALLEL_DIROPS
        | FUSE_HANDLE_KILLPRIV_V2
        | FUSE_CACHE_SYMLINKS
        | FUSE_NO_OPENDIR_SUPPORT
        | FUSE_MAX_PAGES;
    if options.xattr {
        wanted |= FUSE_SETXATTR_EXT;
    }
    if options.auto_invalidate {
        wanted |= FUSE_AUTO_INVAL_DATA;
    }
    // With this capability the kernel checks permissions, whatever the mount says.
    if options.xattr && options.acl && !root_alone {
        wanted |= FUSE_POSIX_ACL;
    }
    // Where the kernel does not check permissions, it refuses this capability and ends the mount.
    if !root_alone {
        wanted |= FUSE_ALLOW_IDMAP;
    }
    wanted |= match options.readdir_plus {
        ReaddirPlus::Auto => FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO,
        ReaddirPlus::Always => FUSE_DO_READDIRPLUS,
        ReaddirPlus::Never => 0,
    };
    if options.passthrough && !options.sync_writes {
        wanted |= FUSE_PASSTHROUGH;
    }
    let max_write = match transport {
        Transport::Dev => WRITE_BYTES_MAX,
        Transport::Uring => {
            wanted |= FUSE_OVER_IO_URING;
            RING_WRITE_BYTES_MAX
        }
    };
    let flags = wanted & offer.flags;
    if flags != wanted {
        log::debug!("the kernel lacks the FUSE capabilities {:#x}", wanted & !flags);
    }
    InitOut {
        max_readahead: offer.max_readahead,
        flags,
        max_background: BACKGROUND_REQUESTS_MAX,
        congestion_threshold: BACKGROUND_REQUESTS_CONGESTED,
        max_write,
        max_pages: pages_in(max_write, page_size()),
        max_stack_depth: if flags & FUSE_PASSTHROUGH != 0 { STACK_DEPTH_MAX } else { 0 },
    }
}

/// Returns how many pages of the machine `bytes` fill. A ring entry must have room for all pages that the kernel may
/// ask for.
fn pages_in(bytes: u32, page_bytes: usize) -> u16 {
    u16::try_from(bytes as usize / page_bytes).unwrap_or(u16::MAX)
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
        let answer =
            answer(&offer(FUSE_ASYNC_READ | FUSE_INIT_EXT), &options, Transport::Dev, false, 0);
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
        let granted = answer(&offer(u64::MAX), &options, Transport::Dev, false, 0);
        assert_eq!(granted.flags & (FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO), 0);
        assert_ne!(granted.flags & FUSE_PASSTHROUGH, 0);
        assert_eq!(granted.max_stack_depth, 1);
        options.sync_writes = true;
        let granted = answer(&offer(u64::MAX), &options, Transport::Dev, false, 0);
        assert_eq!(granted.flags & FUSE_PASSTHROUGH, 0);
    }

    #[test]
    fn rings_are_asked_for_with_room_for_the_largest_request() {
        let options = SessionOptions::default();
        let plain = answer(&offer(u64::MAX), &options, Transport::Dev, false, 0);
        assert_eq!(plain.flags & FUSE_OVER_IO_URING, 0);
        assert_eq!(plain.max_write, 1 << 20);
        assert_eq!(usize::from(plain.max_pages) * page_size(), 1 << 20);
        let rings = answer(&offer(u64::MAX), &options, Transport::Uring, false, 0);
        assert_ne!(rings.flags & FUSE_OVER_IO_URING, 0);
        assert_eq!(rings.max_write as usize, PAYLOAD_BYTES_MAX);
        assert_eq!(usize::from(rings.max_pages) * page_size(), PAYLOAD_BYTES_MAX);
    }

    /// Where pages are larger than 4 KiB the kernel refused all entries of rings, and the mount ended.
    #[test]
    fn whatever_the_size_of_pages_there_is_room_for_as_many_as_are_asked_for() {
        for (page_kib, pages) in [(4, (256, 64)), (16, (64, 16)), (64, (16, 4))] {
            let pages_in = |bytes| pages_in(bytes, page_kib << 10);
            assert_eq!((pages_in(WRITE_BYTES_MAX), pages_in(RING_WRITE_BYTES_MAX)), pages);
        }
    }

    #[test]
    fn lists_are_not_the_kernels_where_it_checks_nothing() {
        let options = SessionOptions::default();
        let lists = |root_alone| {
            let granted = answer(&offer(u64::MAX), &options, Transport::Dev, root_alone, 0);
            granted.flags & FUSE_POSIX_ACL != 0
        };
        assert!(lists(false) && !lists(true));
    }

    /// The kernel ends a connection that asks for it and checks nothing.
    #[test]
    fn ids_are_mapped_where_the_kernel_checks_permissions() {
        let options = SessionOptions::default();
        let maps = |offered, root_alone| {
            let granted = answer(&offer(offered), &options, Transport::Dev, root_alone, 0);
            granted.flags & FUSE_ALLOW_IDMAP != 0
        };
        assert!(maps(u64::MAX, false) && !maps(u64::MAX, true));
        assert!(!maps(!FUSE_ALLOW_IDMAP, false));
    }
}
