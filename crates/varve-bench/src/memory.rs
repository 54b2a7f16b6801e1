//! Holding the machine's memory down.
//!
//! A memory cgroup bounds one process and kills it, or lets a file system's buffers escape. So the machine itself
//! gets smaller: huge pages are reserved and left unused until so much is left for everything else. They are given back
//! whatever happens ([`Keeper`]).

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::Failure;
use crate::keeper::{Keeper, write};
use crate::machine::{drop_caches, memory_bytes};

const PAGES: &str = "/proc/sys/vm/nr_hugepages";
const MEMINFO: &str = "/proc/meminfo";

/// What must be left beyond what is in use already.
const SPARE_BYTES_MIN: u64 = 128 << 20;

/// How often the kernel is asked for pages, as it moves what is in their way.
const ATTEMPTS: u32 = 20;

/// Of so many bytes that are to be left one more may be.
const LEFT_PER_SPARE_BYTE: u64 = 50;

/// Huge pages, reserved until this is dropped.
pub(crate) struct Hold {
    _pages: Keeper,
    left_bytes: u64,
}

impl Hold {
    /// Leaves about `left` bytes of memory for everything on this machine.
    pub(crate) fn new(left: u64) -> Result<Hold, Failure> {
        let total = left_bytes()?;
        let page = memory_bytes(MEMINFO, "Hugepagesize")?;
        let used = total.saturating_sub(memory_bytes(MEMINFO, "MemAvailable")?);
        if left < used + SPARE_BYTES_MIN {
            let least = (used + SPARE_BYTES_MIN) >> 20;
            return Err(format!("--memory must leave {least}M on this machine now").into());
        }
        let before = pages()?;
        let more = total.saturating_sub(left) / page;
        let keeper = Keeper::writing(Path::new(PAGES), &before.to_string())?;
        for attempt in 1..=ATTEMPTS {
            write(Path::new(PAGES), &(before + more).to_string())?;
            let left_bytes = left_bytes()?;
            if is_near(left, left_bytes, page) {
                return Ok(Hold { _pages: keeper, left_bytes });
            }
            if attempt % 5 == 1 {
                drop_caches()?;
            }
            // Not on every kernel, and no help on a machine without memory.
            drop(fs::write("/proc/sys/vm/compact_memory", "1"));
            std::thread::sleep(Duration::from_millis(100));
        }
        let (reserved, left_bytes) = (pages()?.saturating_sub(before), left_bytes()? >> 20);
        Err(format!(
            "the kernel gave {reserved} of {more} huge pages, which leaves {left_bytes}M: memory is too fragmented\n\
             hint: try again, at best soon after the machine has booted, or leave more"
        )
        .into())
    }

    /// What it leaves, in bytes.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.left_bytes
    }
}

/// Memory that is not in huge pages, in bytes.
fn left_bytes() -> Result<u64, Failure> {
    Ok(memory_bytes(MEMINFO, "MemTotal")?.saturating_sub(memory_bytes(MEMINFO, "Hugetlb")?))
}

/// Whether what is left is what was to be left, up to one page and a small part of it.
fn is_near(wanted: u64, left: u64, page: u64) -> bool {
    left <= wanted + wanted / LEFT_PER_SPARE_BYTE + page
}

fn pages() -> Result<u64, Failure> {
    Ok(fs::read_to_string(PAGES)?.trim().parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a machine of 64 GiB that was held down to one, 98 % of what was to be reserved left more than two.
    #[test]
    fn what_is_left_is_bounded_by_what_was_to_be_left() {
        let (gib, page) = (1 << 30, 2 << 20);
        let reserved_98 = 64 * gib - 63 * gib / 100 * 98;
        assert!(!is_near(gib, reserved_98, page), "{reserved_98}");
        assert!(is_near(gib, gib + gib / 64, page) && !is_near(gib, gib + gib / 32, page));
        assert!(is_near(0, page, page));
    }
}
