//! What is measured: a file system that can be taken away and brought back.

use std::path::Path;
use std::time::Duration;

use super::report::Report;
use crate::ext4::Ext4;
use crate::machine::{self, Scratch, Varve};
use crate::run::{Failure, Outcome};

/// Which file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A Varve mount.
    Varve,
    /// ext4 in a loop image.
    Ext4,
}

impl Kind {
    /// Its name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Varve => "varve",
            Kind::Ext4 => "ext4",
        }
    }
}

/// A mounted file system.
pub(super) enum Subject {
    /// A Varve mount and its daemon.
    Varve(Varve),
    /// An ext4 mount.
    Ext4(Ext4),
}

/// Bytes of the ext4 image; sparse, and enough for a kernel tree beside the files.
const EXT4_BYTES: u64 = 16 << 30;

/// Inodes beyond the measured files, for directories and an unpacked tree.
const EXT4_SPARE_INODES: u64 = 400_000;

impl Subject {
    /// Makes and mounts a new one in `scratch`.
    pub(super) fn new(
        kind: Kind,
        program: &Path,
        scratch: &Scratch,
        mount_args: &[String],
        files: u64,
    ) -> Result<Subject, Failure> {
        let mut subject = match kind {
            Kind::Varve => Subject::Varve(Varve::format(program, scratch, mount_args)?),
            Kind::Ext4 => {
                Subject::Ext4(Ext4::format(scratch, EXT4_BYTES, files + EXT4_SPARE_INODES)?)
            }
        };
        subject.mount()?;
        Ok(subject)
    }

    /// Which it is.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Subject::Varve(_) => Kind::Varve,
            Subject::Ext4(_) => Kind::Ext4,
        }
    }

    /// Where it appears.
    pub(super) fn root(&self) -> &Path {
        match self {
            Subject::Varve(varve) => varve.mount_point(),
            Subject::Ext4(ext4) => ext4.mount_point(),
        }
    }

    fn mount(&mut self) -> Outcome {
        match self {
            Subject::Varve(varve) => varve.mount(),
            Subject::Ext4(ext4) => ext4.mount(),
        }
    }

    /// Unmounts, drops the kernel's caches, mounts again: nothing is in memory.
    pub(super) fn make_cold(&mut self) -> Outcome {
        match self {
            Subject::Varve(varve) => varve.unmount()?,
            Subject::Ext4(ext4) => ext4.unmount()?,
        }
        machine::drop_caches()?;
        self.mount()
    }

    /// CPU time of the process that serves the mount, if there is one.
    pub(super) fn daemon_cpu(&self) -> Result<Duration, Failure> {
        match self {
            Subject::Varve(varve) => varve.daemon_cpu(),
            Subject::Ext4(_) => Ok(Duration::ZERO),
        }
    }

    /// Notes the daemon's memory under `name`.
    pub(super) fn note_memory(&self, name: &str, report: &mut Report) -> Outcome {
        if let Subject::Varve(varve) = self {
            report.add_bytes(
                &format!("daemon peak memory {name}"),
                varve.daemon_memory_bytes("VmHWM")?,
            );
            report.add_bytes(
                &format!("daemon anonymous memory {name}"),
                varve.daemon_memory_bytes("RssAnon")?,
            );
        }
        Ok(())
    }

    /// Unmounts; a Varve store is then checked.
    pub(super) fn finish(mut self, report: &mut Report) -> Outcome {
        match &mut self {
            Subject::Varve(varve) => {
                varve.unmount()?;
                report.add_bytes("store at the end", varve.store_bytes()?);
                varve.fsck()
            }
            Subject::Ext4(ext4) => ext4.unmount(),
        }
    }
}
