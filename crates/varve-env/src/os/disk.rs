//! Identifies the disk on which a directory lies, anew each time it is plugged in.
//!
//! A disk by USB or iSCSI may lose its power, and with it what was not synced, while the machine goes on. When it
//! comes back it is another block device to the kernel, which numbers block devices in the order of their arrival
//! (`diskseq`, from Linux 5.15 on). So if the number is the same, the page cache above is still the same.
//!
//! 1. The number of the device is the one of the file system. A file system such as Btrfs has a number of its own;
//!    then the mount table has the number of the device.
//! 2. sysfs(5) has the number of a disk beside it, and for a partition one directory above.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{fstat, major, minor};

/// Returns the sequence number of the disk on which the opened directory lies; `None` if it lies on no disk, or the
/// kernel does not say.
pub(super) fn sequence(dir: &OwnedFd) -> Option<u64> {
    let device = fstat(dir).ok()?.st_dev;
    let device = if major(device) == 0 { mounted(dir)? } else { device };
    let disk = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let read = |name: &str| fs::read_to_string(Path::new(&disk).join(name)).ok();
    read("diskseq").or_else(|| read("../diskseq"))?.trim().parse().ok()
}

/// Returns the number of the block device of the mount on which the opened directory lies.
fn mounted(dir: &OwnedFd) -> Option<u64> {
    let told = fs::read_to_string(format!("/proc/self/fdinfo/{}", dir.as_raw_fd())).ok()?;
    let id = told.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    // Paths in the mount table need not be text.
    let table = fs::read("/proc/self/mountinfo").ok()?;
    let table = String::from_utf8_lossy(&table);
    let mount = table.lines().find(|line| line.split(' ').next() == Some(id))?;
    let source = mount.split_once(" - ")?.1.split(' ').nth(1)?;
    let found = fs::metadata(source).ok()?;
    found.file_type().is_block_device().then(|| found.rdev())
}
