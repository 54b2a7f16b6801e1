//! What is measured: a file system that can be taken away and brought back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::report::Report;
use crate::ext4::Ext4;
use crate::machine::{self, Null, Scratch, Varve};
use crate::run::{Failure, Outcome};

/// How a mount's requests travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Transport {
    /// As the daemon chooses.
    Auto,
    /// Over /dev/fuse.
    Dev,
    /// Over io_uring.
    Uring,
}

impl Transport {
    /// Its name as a mount option.
    fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Dev => "dev",
            Transport::Uring => "uring",
        }
    }
}

/// Which file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A Varve mount.
    Varve(Transport),
    /// A file system without storage, mounted by the same crate.
    Null(Transport),
    /// ext4 in a loop image.
    Ext4,
}

impl Kind {
    /// Its name in reports.
    pub(super) fn name(self) -> String {
        match self {
            Kind::Varve(Transport::Auto) => "varve".to_owned(),
            Kind::Varve(transport) => format!("varve {}", transport.name()),
            Kind::Null(Transport::Auto) => "null".to_owned(),
            Kind::Null(transport) => format!("null {}", transport.name()),
            Kind::Ext4 => "ext4".to_owned(),
        }
    }
}

/// The programs that serve the subjects.
pub(super) struct Programs {
    /// `varve`.
    pub(super) varve: PathBuf,
    /// The example `null` of varve-fuse, if it is measured.
    pub(super) null: Option<PathBuf>,
}

/// A mounted file system.
pub(super) struct Subject {
    kind: Kind,
    mounted: Mounted,
}

enum Mounted {
    Varve(Varve),
    Null(Null),
    Ext4(Ext4),
}

/// Bytes of the ext4 image; sparse, and enough for a kernel tree beside the files.
const EXT4_BYTES: u64 = 16 << 30;

/// Inodes beyond the measured files, for directories and an unpacked tree.
const EXT4_SPARE_INODES: u64 = 400_000;

impl Subject {
    /// Makes and mounts a new one in `scratch`; `mount_args` go to every `varve mount`.
    pub(super) fn new(
        kind: Kind,
        programs: &Programs,
        scratch: &Scratch,
        mount_args: &[String],
        files: u64,
    ) -> Result<Subject, Failure> {
        let mounted = match kind {
            Kind::Varve(transport) => {
                let mut arguments = mount_args.to_vec();
                arguments.extend(["-o".to_owned(), format!("transport={}", transport.name())]);
                let mut varve = Varve::format(&programs.varve, scratch, &arguments)?;
                varve.mount()?;
                Mounted::Varve(varve)
            }
            Kind::Null(transport) => {
                let program = programs.null.as_deref().ok_or("the null program is not built")?;
                Mounted::Null(Null::mount(program, scratch, transport.name())?)
            }
            Kind::Ext4 => {
                let mut ext4 = Ext4::format(scratch, EXT4_BYTES, files + EXT4_SPARE_INODES)?;
                ext4.mount()?;
                Mounted::Ext4(ext4)
            }
        };
        Ok(Subject { kind, mounted })
    }

    /// Which it is.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Where it appears.
    pub(super) fn root(&self) -> &Path {
        match &self.mounted {
            Mounted::Varve(varve) => varve.mount_point(),
            Mounted::Null(null) => null.mount_point(),
            Mounted::Ext4(ext4) => ext4.mount_point(),
        }
    }

    /// Unmounts, drops the kernel's caches, mounts again: nothing is in memory. What has no storage stays
    /// mounted, so that only the kernel's caches are cold.
    pub(super) fn make_cold(&mut self) -> Outcome {
        match &mut self.mounted {
            Mounted::Varve(varve) => varve.unmount()?,
            Mounted::Null(_) => {}
            Mounted::Ext4(ext4) => ext4.unmount()?,
        }
        machine::drop_caches()?;
        match &mut self.mounted {
            Mounted::Varve(varve) => varve.mount(),
            Mounted::Null(_) => Ok(()),
            Mounted::Ext4(ext4) => ext4.mount(),
        }
    }

    /// CPU time of the process that serves the mount, if there is one.
    pub(super) fn daemon_cpu(&self) -> Result<Duration, Failure> {
        match &self.mounted {
            Mounted::Varve(varve) => varve.daemon_cpu(),
            Mounted::Null(null) => null.daemon_cpu(),
            Mounted::Ext4(_) => Ok(Duration::ZERO),
        }
    }

    /// Notes the daemon's memory under `name`.
    pub(super) fn note_memory(&self, name: &str, report: &mut Report) -> Outcome {
        if let Mounted::Varve(varve) = &self.mounted {
            let kind = self.kind.name();
            for (what, field) in [("peak", "VmHWM"), ("anonymous", "RssAnon")] {
                let bytes = varve.daemon_memory_bytes(field)?;
                report.add_bytes(&format!("{kind}: daemon {what} memory {name}"), bytes);
            }
        }
        Ok(())
    }

    /// Unmounts; a Varve store is then checked.
    pub(super) fn finish(mut self, report: &mut Report) -> Outcome {
        match &mut self.mounted {
            Mounted::Varve(varve) => {
                varve.unmount()?;
                let name = format!("{}: store at the end", self.kind.name());
                report.add_bytes(&name, varve.store_bytes()?);
                varve.fsck()
            }
            Mounted::Null(null) => null.unmount(),
            Mounted::Ext4(ext4) => ext4.unmount(),
        }
    }
}
