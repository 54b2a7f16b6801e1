//! An ext4 file system in a file, as the neighbour to measure beside.
//!
//! `mount -o loop` marks the loop device to be freed with its last mount.

use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use crate::machine::Scratch;
use crate::run::{Failure, Outcome, Step};

/// A mounted ext4 image.
pub(crate) struct Ext4 {
    image: PathBuf,
    mount_point: PathBuf,
    is_mounted: bool,
}

impl Ext4 {
    /// Makes an image of `bytes` (sparse) in `scratch` with room for `files` files.
    pub(crate) fn format(scratch: &Scratch, bytes: u64, files: u64) -> Result<Ext4, Failure> {
        let image = scratch.path("ext4.img");
        std::fs::File::create(&image)?.set_len(bytes)?;
        Step::new("/sbin/mkfs.ext4")
            .args([
                "-q",
                "-F",
                "-N",
                &files.to_string(),
                "-E",
                "lazy_itable_init=0,lazy_journal_init=0",
            ])
            .arg(&image)
            .quiet()?;
        Ok(Ext4 { image, mount_point: scratch.dir("ext4")?, is_mounted: false })
    }

    /// Where it appears.
    pub(crate) fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Mounts it with the options that are the default on Debian.
    pub(crate) fn mount(&mut self) -> Outcome {
        Step::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.mount_point).quiet()?;
        self.is_mounted = true;
        Ok(())
    }

    /// Unmounts it, which also writes everything back.
    pub(crate) fn unmount(&mut self) -> Outcome {
        Step::new("umount").arg(&self.mount_point).quiet()?;
        self.is_mounted = false;
        Ok(())
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        if self.is_mounted {
            // Fails only if somebody else has unmounted it already.
            let _ = unmount(&self.mount_point, UnmountFlags::DETACH);
        }
    }
}
