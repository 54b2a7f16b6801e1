//! Which disk a directory lies on, as often as it was plugged in.
//!
//! A disk that loses its power, as one by USB or iSCSI, forgets what it was not told to keep, though the machine goes on. To be used again
//! it becomes another block device to the kernel, which numbers all of these in the order in which they come (`diskseq`, from Linux
//! 5.15 on). So where the number is the same the page cache above is still the one that was.
//!
//! 1. The number of the device is that of the file system, or, where that has one of its own (Btrfs), of what is mounted.
//! 2. sysfs(5) has the number of a disk beside it, and for a partition one directory above.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{fstat, major, minor};

/// The sequence number of the disk on which the opened directory lies; `None` if it lies on none, or the kernel does not tell.
pub(super) fn sequence(dir: &OwnedFd) -> Option<u64> {
    let device = fstat(dir).ok()?.st_dev;
    let device = if major(device) == 0 { mounted(dir)? } else { device };
    let disk = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let read = |name: &str| fs::read_to_string(Path::new(&disk).join(name)).ok();
    read("diskseq").or_else(|| read("../diskseq"))?.trim().parse().ok()
}

/// The number of the block device that is mounted where the opened directory lies.
fn mounted(dir: &OwnedFd) -> Option<u64> {
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{}", dir.as_raw_fd())).ok()?;
    let id = told.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    // Paths in it need not be text.
    let table = fs::read("/proc/self/mountinfo").ok()?;
    let table = String::from_utf8_lossy(&table);
    let mount = table.lines().find(|line| line.split(' ').next() == Some(id))?;
    let source = mount.split_once(" - ")?.1.split(' ').nth(1)?;
    let found = fs::metadata(source).ok()?;
    found.file_type().is_block_device().then(|| found.rdev())
}
