//! A file system in a file, mounted over a loop device.
//!
//! The device reads and writes the file past the page cache, so that nothing of it stays in memory when its file
//! system is unmounted, and its counters are those of the file system alone; where the directory's file system cannot do
//! that, reports say so. As soon as the device is mounted it
//! is marked to be freed with its last mount, and mounts go with the run's own mount namespace: however the run
//! ends nothing stays.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, openat, statvfs, syncfs};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::Ground;
use super::slow::SlowDisk;
use crate::Failure;
use crate::machine::{self, Traffic};
use crate::run::Step;

/// How long an image may be in use when it is to be unmounted.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(10);

/// What it means if the device of an image does not go past the page cache, and what to do.
pub(crate) const NOT_DIRECT: &str = "the loop device goes through the page cache of the machine, as its directory has no direct \
     I/O: what is cold may come from memory\nhint: give --base a directory on a disk";

/// Which file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Ext4,
    Xfs,
    Btrfs,
}

/// An image and its mount.
pub(super) struct Image {
    format: Format,
    file: PathBuf,
    mount_point: PathBuf,
    options: String,
    /// How many reads, and how many writes, its disk answers in a second, if it is held down.
    iops: Option<u32>,
    /// The loop device, while it is mounted.
    device: Option<String>,
    /// What lies below that, if it is held down.
    disk: Option<SlowDisk>,
    /// Whether that went past the page cache whenever it was attached.
    is_direct: bool,
    /// Bytes in use when it was new.
    used_when_new: u64,
}

impl Image {
    /// Makes one at `file` as `ground` says, with room for `inodes`, and mounts it on `mount_point`.
    pub(super) fn new(
        format: Format,
        file: PathBuf,
        mount_point: PathBuf,
        ground: &Ground,
        inodes: u64,
        options: String,
    ) -> Result<Image, Failure> {
        File::create_new(&file)?.set_len(ground.image_bytes)?;
        let make = match format {
            Format::Ext4 => Step::new("mkfs.ext4")
                .args(["-q", "-F", "-N", &inodes.to_string()])
                .args(["-E", "lazy_itable_init=0,lazy_journal_init=0"]),
            Format::Xfs => Step::new("mkfs.xfs").arg("-q"),
            Format::Btrfs => Step::new("mkfs.btrfs").arg("-q"),
        };
        make.arg(&file).quiet()?;
        let mut image = Image {
            format,
            file,
            mount_point,
            options,
            iops: ground.iops,
            device: None,
            disk: None,
            is_direct: true,
            used_when_new: 0,
        };
        image.mount()?;
        image.used_when_new = image.used_bytes()?;
        if !image.is_direct {
            eprintln!("varve-bench: {}: {NOT_DIRECT}", image.file.display());
        }
        Ok(image)
    }

    /// Where it is mounted.
    pub(super) fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Mounts it.
    pub(super) fn mount(&mut self) -> Result<(), Failure> {
        self.disk = self.iops.map(|iops| SlowDisk::new(&self.file, iops)).transpose()?;
        let below = self.disk.as_ref().map(|disk| Path::new(disk.device()));
        let attached = attach(below.unwrap_or(&self.file));
        self.disk.as_ref().map_or(Ok(()), SlowDisk::free_when_unused)?;
        let device = attached?;
        let kind = match self.format {
            Format::Ext4 => "ext4",
            Format::Xfs => "xfs",
            Format::Btrfs => "btrfs",
        };
        let mut mount = Step::new("mount").args(["-t", kind]);
        if !self.options.is_empty() {
            mount = mount.args(["-o", &self.options]);
        }
        let mounted = mount.arg(&device).arg(&self.mount_point).quiet();
        let is_direct = machine::is_direct(name_of(&device));
        // Of a mounted device this frees it with the last mount.
        Step::new("losetup").args(["--detach", &device]).quiet()?;
        mounted?;
        self.is_direct &= is_direct?;
        if let Some(disk) = &self.disk {
            self.is_direct &= machine::is_direct(name_of(disk.device()))?;
        }
        self.device = Some(device);
        Ok(())
    }

    /// Whether the device goes past the page cache, so that what is cold comes from the disk.
    pub(super) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Writes everything in it back to the device.
    pub(super) fn sync(&self) -> Result<(), Failure> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        syncfs(openat(CWD, &self.mount_point, flags, Mode::empty())?)?;
        Ok(())
    }

    /// Unmounts it, which also writes everything back.
    pub(super) fn unmount(&mut self) -> Result<(), Failure> {
        let begin = Instant::now();
        // An overlay lets go of what is below it some moments after it was unmounted itself.
        while let Err(error) = unmount(&self.mount_point, UnmountFlags::empty()) {
            if error != Errno::BUSY || begin.elapsed() > BUSY_WAIT_MAX {
                return Err(format!("unmount {}: {error}", self.mount_point.display()).into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.device = None;
        self.disk = None;
        Ok(())
    }

    /// Bytes in use.
    fn used_bytes(&self) -> Result<u64, Failure> {
        let room = statvfs(&self.mount_point)?;
        Ok((room.f_blocks - room.f_bfree) * room.f_frsize)
    }

    /// Bytes in use since it was new.
    pub(super) fn grown_bytes(&self) -> Result<u64, Failure> {
        Ok(self.used_bytes()?.saturating_sub(self.used_when_new))
    }

    /// What went to and from the device since it was attached to something first.
    pub(super) fn traffic(&self) -> Result<Traffic, Failure> {
        Traffic::of_device(name_of(self.device.as_deref().ok_or("the image is not mounted")?))
    }
}

/// A loop device over `file`, past the page cache if that can be.
pub(super) fn attach(file: &Path) -> Result<String, Failure> {
    let attach = || Step::new("losetup").args(["--find", "--show"]);
    let direct = attach().arg("--direct-io=on").arg(file).capture();
    let device = direct.or_else(|_| attach().arg(file).capture())?;
    Ok(device.trim().to_owned())
}

/// The kernel's name of the device at a path.
pub(super) fn name_of(device: &str) -> &str {
    device.rsplit('/').next().unwrap_or_default()
}

impl Drop for Image {
    fn drop(&mut self) {
        if self.device.is_some() {
            // Fails only if somebody else has unmounted it already.
            let _ = unmount(&self.mount_point, UnmountFlags::DETACH);
        }
    }
}
