//! Small file systems to fill: images on loop devices, and memory.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

use crate::run::{Failure, Outcome, Step, there_is};

/// What a store is put on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ext4,
    Xfs,
    Btrfs,
    Tmpfs,
}

impl Kind {
    pub(super) const ALL: [Kind; 4] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
            Kind::Tmpfs => "tmpfs",
        }
    }

    /// Whether this machine can make one.
    pub(super) fn is_there(self) -> bool {
        self == Kind::Tmpfs || there_is(&format!("mkfs.{}", self.name()))
    }

    /// The smallest that can be made, in MiB.
    pub(super) fn least_mib(self) -> u64 {
        match self {
            Kind::Xfs => 300,
            Kind::Btrfs => 128,
            Kind::Ext4 | Kind::Tmpfs => 100,
        }
    }

    /// Whether the number of its files is fixed when it is made.
    pub(super) fn has_inode_limit(self) -> bool {
        matches!(self, Kind::Ext4 | Kind::Tmpfs)
    }
}

/// A mounted one. It goes when it is dropped.
pub(super) struct Storage {
    dir: PathBuf,
    image: PathBuf,
}

/// What is left of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    pub(super) total_bytes: u64,
    pub(super) available_bytes: u64,
}

impl Storage {
    /// Makes one of `mib` MiB in `scratch`, for `inodes_max` files if that is more than 0.
    pub(super) fn make(
        kind: Kind,
        mib: u64,
        inodes_max: u64,
        scratch: &Path,
    ) -> Result<Storage, Failure> {
        let (dir, image) = (scratch.join("storage"), scratch.join("image"));
        fs::create_dir_all(&dir)?;
        let storage = Storage { dir, image };
        if kind == Kind::Tmpfs {
            let mut options = format!("size={mib}m");
            if inodes_max > 0 {
                options += &format!(",nr_inodes={inodes_max}");
            }
            let mount = Step::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]);
            mount.arg(&storage.dir).quiet()?;
            return Ok(storage);
        }
        fs::File::create(&storage.image)?.set_len(mib << 20)?;
        let mut make = Step::new(format!("mkfs.{}", kind.name())).arg("-q");
        make = make.arg(if kind == Kind::Ext4 { "-F" } else { "-f" });
        if kind == Kind::Ext4 && inodes_max > 0 {
            make = make.args(["-N".to_owned(), inodes_max.to_string()]);
        }
        make.arg(&storage.image).quiet()?;
        Step::new("mount").args(["-o", "loop"]).arg(&storage.image).arg(&storage.dir).quiet()?;
        Ok(storage)
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn left(&self) -> Result<Left, Failure> {
        let stat = rustix::fs::statvfs(&self.dir)?;
        Ok(Left {
            total_bytes: stat.f_blocks * stat.f_frsize,
            available_bytes: stat.f_bavail * stat.f_frsize,
        })
    }

    /// Unmounts it, which nobody may use any more.
    pub(super) fn end(self) -> Outcome {
        unmount(&self.dir, UnmountFlags::empty())?;
        if self.image.exists() {
            fs::remove_file(&self.image)?;
        }
        Ok(())
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
        let _ = fs::remove_file(&self.image);
    }
}
