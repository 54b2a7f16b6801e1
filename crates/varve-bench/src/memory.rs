//! Holding the machine's memory down.
//!
//! A memory cgroup bounds one process and kills it, or lets a file system's buffers escape. So the machine itself
//! gets smaller: huge pages are reserved and left unused until so much is left for everything else.
//!
//! They are given back whatever happens. A process of its own, the keeper, waits for the end of a pipe whose other
//! end only this process has: when it drops [`Hold`], or dies however it may, the keeper writes the old number of
//! pages. The keeper lives in a process group of its own, ignores signals that end programs, and is the last one
//! that the kernel kills when memory runs out.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::Failure;
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
    keeper: Child,
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
        let keeper = Command::new(std::env::current_exe()?)
            .args(["give-back", &before.to_string()])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let hold = Hold { keeper };
        for attempt in 1..=ATTEMPTS {
            reserve(before + more)?;
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

impl Drop for Hold {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        match self.keeper.wait() {
            Ok(status) if status.success() => {}
            other => eprintln!("varve-bench: huge pages stay reserved ({other:?}): see {PAGES}"),
        }
    }
}

fn pages() -> Result<u64, Failure> {
    Ok(fs::read_to_string(PAGES)?.trim().parse()?)
}

fn reserve(count: u64) -> Result<(), Failure> {
    fs::write(PAGES, count.to_string())
        .map_err(|error| format!("cannot reserve huge pages: {error}\nhint: run as root").into())
}

/// Waits for the end of the standard input, then sets the number of huge pages to `count`.
pub(crate) fn give_back(count: u64) -> Result<(), Failure> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    // Only root may; then the kernel kills whom it wants.
    drop(fs::write("/proc/self/oom_score_adj", "-1000"));
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
    reserve(count)
}
