//! What is measured: a file system that can be taken away and brought back.
//!
//! | target | what lies where |
//! | --- | --- |
//! | a path | a directory of its own below it; there is nothing to mount |
//! | `ext4`, `xfs`, `btrfs` | an image over a loop device |
//! | `varve` | a store in a directory, or on an ext4 image of its own, and a daemon that mounts it |
//! | `served` | such a store, a server for it, and a daemon that mounts the server |
//! | `library` | the same store, opened in this process |
//! | `tmpfs`, `null` | memory: taking them away would lose everything, so they stay |

mod daemon;
mod image;
mod slow;
mod spec;
mod store;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::getxattr;
use rustix::mount::{UnmountFlags, unmount};
use serde_json::Value;
use varve_fs::FormatOptions;
use varve_types::limits::XATTR_VALUE_BYTES_MAX;

use crate::Failure;
use crate::machine::{self, Traffic};
use crate::meter::cpu_of_this_process;
use crate::place::{Kernel, Library, Place};
use crate::run::Step;
use crate::scratch::Scratch;

use daemon::Daemon;
pub(crate) use image::NOT_DIRECT;
use image::{Format, Image};
pub(crate) use spec::{Kind, Spec};
use store::Store;

/// The attributes of a mount's root by which its daemon tells how requests travel and what its store did.
const SESSION_XATTR: &str = "user.varve.session";
const STATUS_XATTR: &str = "user.varve.status";

/// Where targets are made, and of what.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    /// The directory for images, on the disk to measure.
    pub(crate) base: Option<PathBuf>,
    /// The program `varve`.
    pub(crate) varve: PathBuf,
    /// The program that mounts a file system without storage.
    pub(crate) null: PathBuf,
    /// Bytes of an image; it is sparse unless it is filled.
    pub(crate) image_bytes: u64,
    /// Whether all bytes of an image are written before it is used.
    pub(crate) is_filled: bool,
    /// How many reads, and how many writes, the disk of an image answers in a second, if it is held down.
    pub(crate) iops: Option<u32>,
}

/// What it took to take a target away and bring it back.
pub(crate) struct Return {
    /// What had gone to and from its device when it had been taken away; `None` if it has none of its own.
    pub(crate) closed: Option<Traffic>,
    /// And just before it was brought back.
    pub(crate) begun: Option<Traffic>,
    pub(crate) opening: Opening,
}

/// What a target took to be mounted or opened.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Opening {
    pub(crate) seconds: f64,
    /// Bytes that its device read meanwhile; `None` if it has none of its own.
    pub(crate) read_bytes: Option<u64>,
}

/// A target that is ready to work on. Fields are dropped in their order: what stands on another comes first.
pub(crate) struct Target {
    place: Option<Box<dyn Place>>,
    backing: Backing,
    image: Option<Image>,
    scratch: Scratch,
}

/// What stands behind the place, besides an image.
enum Backing {
    /// Nothing: a directory or an image.
    None,
    /// tmpfs on this directory.
    Tmpfs(PathBuf),
    /// A store, mounted or opened.
    Store(Box<Store>),
    /// A file system without storage.
    Null(Daemon),
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let Backing::Tmpfs(dir) = self {
            // Fails only if somebody else has unmounted it already.
            let _ = unmount(&*dir, UnmountFlags::DETACH);
        }
    }
}

impl Target {
    /// Makes it, with room for `inodes` files and directories.
    pub(crate) fn new(spec: &Spec, ground: &Ground, inodes: u64) -> Result<Target, Failure> {
        let base = match &spec.kind {
            Kind::Path(path) => Some(path.as_path()),
            _ => spec.dir.as_deref().or(ground.base.as_deref()),
        };
        let scratch = Scratch::new(base)?;
        let image = |format: Format, inodes: u64, options: String| {
            let (file, dir) = (scratch.path().join("image"), scratch.dir("mounted")?);
            // Some for what no workload counts: its setup, the store's own files.
            let inodes = inodes + inodes / 10 + 10_000;
            Image::new(format, file, dir, ground, inodes, options).map(Some)
        };
        let options = spec.options.join(",");
        let image = match spec.kind {
            Kind::Ext4 => image(Format::Ext4, inodes, options)?,
            Kind::Xfs => image(Format::Xfs, inodes, options)?,
            Kind::Btrfs => image(Format::Btrfs, inodes, options)?,
            // Only large files are files below.
            Kind::Varve | Kind::Served | Kind::Library if spec.dir.is_none() => {
                let large = large_file_bytes_min(spec)?;
                image(Format::Ext4, inodes.min(ground.image_bytes / large), String::new())?
            }
            _ => None,
        };
        let below = image.as_ref().map_or(scratch.path(), Image::mount_point).to_path_buf();
        let backing = match spec.kind {
            Kind::Varve => {
                Backing::Store(Box::new(Store::mounted(spec, ground, &below, &scratch)?))
            }
            Kind::Served => {
                Backing::Store(Box::new(Store::served(spec, ground, &below, &scratch)?))
            }
            Kind::Library => Backing::Store(Box::new(Store::opened(spec, ground, &below)?)),
            Kind::Null => Backing::Null(null(spec, ground, &scratch)?),
            Kind::Tmpfs => Backing::Tmpfs(tmpfs(spec, &scratch)?),
            _ => Backing::None,
        };
        let mut target = Target { place: None, backing, image, scratch };
        target.appear()?;
        Ok(target)
    }

    /// Where to work.
    pub(crate) fn place(&self) -> Result<&dyn Place, Failure> {
        Ok(self.place.as_deref().ok_or("the target is not mounted")?)
    }

    fn appear(&mut self) -> Result<(), Failure> {
        let image = self.image.as_ref().map_or(self.scratch.path(), Image::mount_point);
        let dir = match &self.backing {
            Backing::Store(store) => match store.vfs() {
                Some(vfs) => {
                    self.place = Some(Box::new(Library::new(vfs)));
                    return Ok(());
                }
                None => store.mount_point(),
            },
            Backing::Null(daemon) => daemon.mount_point(),
            Backing::Tmpfs(dir) => dir,
            Backing::None => image,
        };
        // Below the root of an image there may be a lost+found.
        let dir = dir.join("work");
        if !dir.exists() {
            std::fs::create_dir(&dir)?;
        }
        self.place = Some(Box::new(Kernel::new(&dir)?));
        Ok(())
    }

    /// Writes everything back to the device: of a store what it has given to the file system below. Rows of its memtables are in
    /// its log by then, and not in tables.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        self.place()?.sync()?;
        match (&self.backing, &self.image) {
            (Backing::Store(_), Some(image)) => image.sync(),
            _ => Ok(()),
        }
    }

    /// Takes it away, drops the kernel's caches, brings it back: in memory is what bringing it back takes there.
    pub(crate) fn make_cold(&mut self) -> Result<Return, Failure> {
        let closed = self.take_away()?;
        if self.image.is_none() {
            // Only what is written back can be dropped.
            machine::sync(self.scratch.path())?;
        }
        machine::drop_caches()?;
        if let Backing::Null(daemon) = &self.backing {
            daemon.settle()?;
        }
        let begin = Instant::now();
        if let Some(image) = &mut self.image {
            image.mount()?;
        }
        if let Backing::Store(store) = &mut self.backing {
            store.start()?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        self.appear()?;
        let read = self.image.as_ref().map(Image::traffic_since_mount).transpose()?;
        let opening = Opening { seconds, read_bytes: read.map(|traffic| traffic.read_bytes) };
        let begun = self.image.as_ref().map(Image::traffic_at_mount);
        Ok(Return { closed, begun, opening })
    }

    /// Closes the store, if it is one, and unmounts the image, if there is one. Returns what has gone to and from its device by
    /// then. Memtables stay in the log.
    fn take_away(&mut self) -> Result<Option<Traffic>, Failure> {
        self.place = None;
        if let Backing::Store(store) = &mut self.backing {
            store.stop()?;
        }
        self.image.as_mut().map(Image::unmount).transpose()
    }

    /// CPU time of those who serve the workers, so far; `workers` is what the workers themselves took, for what
    /// is served in their own process. `None` if the kernel serves them.
    pub(crate) fn daemon_cpu(&self, workers: Duration) -> Result<Option<Duration>, Failure> {
        match &self.backing {
            Backing::Store(store) => match store.cpu()? {
                Some(cpu) => Ok(Some(cpu)),
                None => Ok(Some(cpu_of_this_process().saturating_sub(workers))),
            },
            Backing::Null(daemon) => daemon.cpu().map(Some),
            Backing::None | Backing::Tmpfs(_) => Ok(None),
        }
    }

    /// The most memory that who serves the workers has taken, in bytes; `None` if that is the kernel.
    pub(crate) fn memory_peak_bytes(&self) -> Result<Option<u64>, Failure> {
        match &self.backing {
            Backing::Store(store) => store.memory_peak_bytes(),
            Backing::Null(daemon) => daemon.memory_peak_bytes().map(Some),
            Backing::None | Backing::Tmpfs(_) => Ok(None),
        }
    }

    /// What went to and from its device so far; `None` if it has none of its own.
    pub(crate) fn traffic(&self) -> Result<Option<Traffic>, Failure> {
        self.image.as_ref().map(Image::traffic).transpose()
    }

    /// Bytes of the rows that were put into its store so far; `None` if it is none, or one that does not count them.
    pub(crate) fn row_bytes(&self) -> Result<Option<u64>, Failure> {
        let Backing::Store(store) = &self.backing else { return Ok(None) };
        let said: Value = match store.vfs() {
            Some(vfs) => serde_json::from_str(&vfs.status_json())?,
            None => asked(store.mount_point(), STATUS_XATTR)?,
        };
        Ok(said["engine"]["counters"]["row_bytes"].as_u64())
    }

    /// Bytes that it takes on its device; `None` if it has none of its own.
    pub(crate) fn space_bytes(&self) -> Result<Option<u64>, Failure> {
        self.image.as_ref().map(Image::grown_bytes).transpose()
    }

    /// Whether its device goes past the page cache; `None` if it has none of its own.
    pub(crate) fn is_direct(&self) -> Option<bool> {
        self.image.as_ref().map(Image::is_direct)
    }

    /// What its daemon and the kernel have agreed on, such as how requests travel; `None` if it has no daemon, or one that does
    /// not tell.
    pub(crate) fn session(&self) -> Option<Value> {
        let dir = match &self.backing {
            Backing::Store(store) => store.daemon()?.mount_point(),
            Backing::Null(daemon) => daemon.mount_point(),
            Backing::None | Backing::Tmpfs(_) => return None,
        };
        asked(dir, SESSION_XATTR).ok()
    }

    /// Takes it away; with `fsck` checks a store as a whole. Returns what [`Target::take_away`] does.
    pub(crate) fn finish(mut self, fsck: bool) -> Result<Option<Traffic>, Failure> {
        let closed = self.take_away()?;
        match &mut self.backing {
            Backing::Store(store) if fsck => {
                self.image.as_mut().map_or(Ok(()), Image::mount)?;
                store.fsck()?;
                self.image.as_mut().map(Image::unmount).transpose()?;
            }
            Backing::Null(daemon) => daemon.unmount()?,
            _ => {}
        }
        Ok(closed)
    }
}

/// Bytes of the smallest large file of a store.
fn large_file_bytes_min(spec: &Spec) -> Result<u64, Failure> {
    let given = spec.options.iter().find_map(|it| it.strip_prefix("large-file-threshold="));
    let default = FormatOptions::default().large_file_threshold_bytes;
    Ok(given.map_or(Ok(default), varve::size::parse)?.max(1))
}

/// What the daemon that serves `dir` tells in an attribute.
fn asked(dir: &Path, attribute: &str) -> Result<Value, Failure> {
    let mut said = vec![0_u8; XATTR_VALUE_BYTES_MAX];
    let length = getxattr(dir, attribute, &mut said[..])
        .map_err(|error| format!("cannot read {attribute} of {}: {error}", dir.display()))?;
    Ok(serde_json::from_slice(&said[..length])?)
}

fn null(spec: &Spec, ground: &Ground, scratch: &Scratch) -> Result<Daemon, Failure> {
    let dir = scratch.dir("null")?;
    let mut args = vec![dir.to_string_lossy().into_owned()];
    args.extend(spec.options.iter().cloned());
    Daemon::start(&ground.null, &args, &dir, &scratch.path().join("null.log"))
}

fn tmpfs(spec: &Spec, scratch: &Scratch) -> Result<PathBuf, Failure> {
    let dir = scratch.dir("tmpfs")?;
    let mut mount = Step::new("mount").args(["-t", "tmpfs"]);
    if !spec.options.is_empty() {
        mount = mount.args(["-o", &spec.options.join(",")]);
    }
    mount.arg("tmpfs").arg(&dir).quiet()?;
    Ok(dir)
}
