//! A file system in a file, mounted over a loop device.
//!
//! The device reads and writes the file past the page cache, so that nothing of it stays in memory when its file
//! system is unmounted, and its counters are those of the file system alone; where the directory's file system cannot do
//! that, reports say so. As soon as the device is mounted it
//! is marked to be freed with its last mount, mounts go with the run's own mount namespace, and [`Keeper`] removes the file: however the run
//! ends nothing stays but directories, and a device if the run is killed while it is being mounted.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::statvfs;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};

use super::Ground;
use super::slow::SlowDisk;
use crate::Failure;
use crate::keeper::Keeper;
use crate::machine::{self, Traffic};
use crate::meter::check_interrupt;
use crate::run::Step;

/// How long an image may be in use when it is to be unmounted.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(10);

/// Bytes that are written at once to fill an image.
const FILL_BYTES: usize = 1 << 20;

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
    /// Removes the file.
    _file: Keeper,
    /// How many reads, and how many writes, its disk answers in a second, if it is held down.
    iops: Option<u32>,
    /// The loop device, while it is mounted.
    device: Option<String>,
    /// The counters of the device before it was mounted.
    attached: Traffic,
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
        let keeper = Keeper::removing(&file)?;
        let make = match format {
            Format::Ext4 => Step::new("mkfs.ext4")
                .args(["-q", "-F", "-N", &inodes.to_string()])
                .args(["-E", "lazy_itable_init=0,lazy_journal_init=0"]),
            Format::Xfs => Step::new("mkfs.xfs").arg("-q"),
            Format::Btrfs => Step::new("mkfs.btrfs").arg("-q"),
        };
        make.arg(&file).whole().quiet()?;
        if ground.is_filled {
            fill(&file)?;
        }
        let mut image = Image {
            format,
            file,
            mount_point,
            options,
            _file: keeper,
            iops: ground.iops,
            device: None,
            attached: Traffic::default(),
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
        let mut loops = Attached::new(below.unwrap_or(&self.file))?;
        self.disk.as_mut().map_or(Ok(()), SlowDisk::free_when_unused)?;
        let kind = match self.format {
            Format::Ext4 => "ext4",
            Format::Xfs => "xfs",
            Format::Btrfs => "btrfs",
        };
        self.attached = Traffic::of_device(loops.name())?;
        let mut mount = Step::new("mount").args(["-t", kind]).whole();
        if !self.options.is_empty() {
            mount = mount.args(["-o", &self.options]);
        }
        mount.arg(loops.device()).arg(&self.mount_point).quiet()?;
        self.device = Some(loops.device().to_owned());
        self.is_direct &= machine::is_direct(loops.name())?;
        if let Some(disk) = &self.disk {
            self.is_direct &= machine::is_direct(name_of(disk.device()))?;
        }
        // Of a mounted device this frees it with the last mount.
        loops.let_go()
    }

    /// Whether the device goes past the page cache, so that what is cold comes from the disk.
    pub(super) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Writes everything in it back to the device.
    pub(super) fn sync(&self) -> Result<(), Failure> {
        machine::sync(&self.mount_point)
    }

    /// Unmounts it. Returns what has gone to and from the device by then.
    pub(super) fn unmount(&mut self) -> Result<Traffic, Failure> {
        // Writes all that an unmount does: counters are gone with the mount.
        let read_only = || mount_remount(&self.mount_point, MountFlags::RDONLY, "");
        self.once_unused("mount read-only", read_only)?;
        let traffic = self.traffic()?;
        self.once_unused("unmount", || unmount(&self.mount_point, UnmountFlags::empty()))?;
        self.device = None;
        self.disk = None;
        Ok(traffic)
    }

    /// Does what only a mount that nobody uses can have done to it.
    fn once_unused(
        &self,
        what: &str,
        mut call: impl FnMut() -> Result<(), Errno>,
    ) -> Result<(), Failure> {
        let begin = Instant::now();
        // An overlay lets go of what is below it some moments after it was unmounted itself.
        while let Err(error) = call() {
            if error != Errno::BUSY || begin.elapsed() > BUSY_WAIT_MAX {
                return Err(format!("{what} {}: {error}", self.mount_point.display()).into());
            }
            thread::sleep(Duration::from_millis(20));
        }
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

    /// The same by when it was about to be mounted.
    pub(super) fn traffic_at_mount(&self) -> Traffic {
        self.attached
    }

    /// The same since then.
    pub(super) fn traffic_since_mount(&self) -> Result<Traffic, Failure> {
        Ok(self.traffic()?.since(self.attached))
    }
}

/// Writes all of `file` once more, so that none of it is a hole or room that was reserved and never written: what is measured does
/// not wait for the file system below to find room for it, nor for its journal.
fn fill(file: &Path) -> Result<(), Failure> {
    let image = File::options().read(true).write(true).open(file)?;
    let mut piece = vec![0; FILL_BYTES];
    let mut at = 0;
    loop {
        check_interrupt()?;
        let read = image.read_at(&mut piece, at)?;
        if read == 0 {
            return Ok(image.sync_all()?);
        }
        image.write_all_at(&piece[..read], at)?;
        at += read as u64;
    }
}

/// A loop device over a file, past the page cache if that can be. Dropped, it is let go.
#[derive(Debug)]
pub(super) struct Attached {
    device: String,
    is_held: bool,
}

impl Attached {
    /// Over `file`.
    pub(super) fn new(file: &Path) -> Result<Attached, Failure> {
        let attach = || Step::new("losetup").args(["--find", "--show"]).whole();
        let direct = attach().arg("--direct-io=on").arg(file).capture();
        let device = direct.or_else(|_| attach().arg(file).capture())?.trim().to_owned();
        Ok(Attached { device, is_held: true })
    }

    /// Its path.
    pub(super) fn device(&self) -> &str {
        &self.device
    }

    /// The kernel's name of it.
    pub(super) fn name(&self) -> &str {
        name_of(&self.device)
    }

    /// Lets the kernel free it with its last use, or now if it has none.
    pub(super) fn let_go(&mut self) -> Result<(), Failure> {
        if std::mem::take(&mut self.is_held) {
            Step::new("losetup").args(["--detach", &self.device]).whole().quiet()?;
        }
        Ok(())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(error) = self.let_go() {
            eprintln!("varve-bench: {} stays: {error}", self.device);
        }
    }
}

/// The kernel's name of the device at a path.
fn name_of(device: &str) -> &str {
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
