//! Disks that answer only so many requests a second, as rented volumes and those with turning plates do.
//!
//! A loop device over the image takes the place of the disk. The kernel lets through so many reads and so many writes of it
//! in a second. What is measured has a second loop device over that one, where requests for neighbouring blocks become one,
//! as on any disk, before they are counted.

use std::fs;
use std::path::{Path, PathBuf};

use super::image::Attached;
use crate::Failure;
use crate::keeper::{Keeper, write};

/// The root of the controller of block devices, in which what the kernel writes by itself counts too. Version 2 of control
/// groups has no limits for the root.
const GROUP: &str = "/sys/fs/cgroup/blkio";
const LIMITS: [&str; 2] = ["blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device"];

/// A disk that is held down until this is dropped, and there until it is no more used.
#[derive(Debug)]
pub(super) struct SlowDisk {
    limits: Vec<Keeper>,
    below: Attached,
}

impl SlowDisk {
    /// A disk on `file` that answers `iops` reads and `iops` writes a second.
    pub(super) fn new(file: &Path, iops: u32) -> Result<SlowDisk, Failure> {
        if !Path::new(GROUP).join(LIMITS[0]).exists() {
            return Err(format!(
                "--iops needs the blkio controller of control groups, version 1, at {GROUP}, which is not there"
            )
            .into());
        }
        write(&Path::new(GROUP).join("cgroup.procs"), &std::process::id().to_string())?;
        let mut disk = SlowDisk { limits: Vec::new(), below: Attached::new(file)? };
        let number = fs::read_to_string(format!("/sys/block/{}/dev", disk.below.name()))?;
        for limit in LIMITS.map(|limit| PathBuf::from(GROUP).join(limit)) {
            disk.limits.push(Keeper::writing(&limit, &format!("{} 0", number.trim()))?);
            write(&limit, &format!("{} {iops}", number.trim()))?;
        }
        Ok(disk)
    }

    /// The device.
    pub(super) fn device(&self) -> &str {
        self.below.device()
    }

    /// Frees the device with its last use, or now if it has none.
    pub(super) fn free_when_unused(&mut self) -> Result<(), Failure> {
        self.below.let_go()
    }
}
