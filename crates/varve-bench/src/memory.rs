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

/// How much of what was wanted must have been reserved.
const RESERVED_PARTS_MIN: (u64, u64) = (98, 100);

/// Huge pages, reserved until this is dropped.
pub(crate) struct Hold {
    _pages: Keeper,
}

impl Hold {
    /// Leaves about `left` bytes of memory for everything on this machine.
    pub(crate) fn new(left: u64) -> Result<Hold, Failure> {
        let total = memory_bytes(MEMINFO, "MemTotal")? - memory_bytes(MEMINFO, "Hugetlb")?;
        let page = memory_bytes(MEMINFO, "Hugepagesize")?;
        let used = total.saturating_sub(memory_bytes(MEMINFO, "MemAvailable")?);
        if left < used + SPARE_BYTES_MIN {
            let least = (used + SPARE_BYTES_MIN) >> 20;
            return Err(format!("--memory must leave {least}M on this machine now").into());
        }
        let before = pages()?;
        let more = total.saturating_sub(left) / page;
        let hold = Hold { _pages: Keeper::new(Path::new(PAGES), &before.to_string())? };
        for attempt in 1..=ATTEMPTS {
            write(Path::new(PAGES), &(before + more).to_string())?;
            let reserved = pages()?.saturating_sub(before);
            if reserved * RESERVED_PARTS_MIN.1 >= more * RESERVED_PARTS_MIN.0 {
                return Ok(hold);
            }
            if attempt % 5 == 1 {
                drop_caches()?;
            }
            // Not on every kernel, and no help on a machine without memory.
            drop(fs::write("/proc/sys/vm/compact_memory", "1"));
            std::thread::sleep(Duration::from_millis(100));
        }
        let reserved = pages()?.saturating_sub(before);
        Err(format!("the kernel gave {reserved} of {more} huge pages: memory is too fragmented")
            .into())
    }
}

fn pages() -> Result<u64, Failure> {
    Ok(fs::read_to_string(PAGES)?.trim().parse()?)
}
