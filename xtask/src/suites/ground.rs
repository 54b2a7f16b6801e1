//! Where a suite runs: a fresh store with its mount, or a plain directory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::How;
use crate::machine::{Scratch, Varve};
use crate::run::{Failure, Outcome, Step};

/// What mount(8) runs for FUSE file systems without a helper of their own.
const MOUNT_HELPER: &str = "/sbin/mount.fuse3";

/// The ground under a suite. A suite works in [`Ground::dir`] and puts what is not under test, such as
/// outputs and settings, into [`Ground::outside`].
pub(crate) struct Ground {
    // Declared before the scratch directory: the mount goes before the directory that it is in.
    varve: Option<Varve>,
    scratch: Scratch,
    dir: PathBuf,
    program: Option<PathBuf>,
}

impl Ground {
    /// Formats and mounts a store served by `program`; without one, a plain directory.
    pub(crate) fn new(program: Option<&Path>, how: &How) -> Result<Ground, Failure> {
        let scratch = Scratch::new(how.base.as_deref())?;
        // Suites run programs as other users.
        fs::set_permissions(scratch.path(""), fs::Permissions::from_mode(0o755))?;
        let mut varve = None;
        let mut dir = scratch.dir("plain")?;
        if let Some(program) = program {
            let mut mounted = Varve::format(program, &scratch, &how.mount_arg)?;
            mounted.mount()?;
            dir = mounted.mount_point().to_path_buf();
            varve = Some(mounted);
        }
        Ok(Ground { varve, scratch, dir, program: program.map(Path::to_path_buf) })
    }

    /// The directory under test.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A directory that is not under test; it is made if it is missing.
    pub(crate) fn outside(&self, name: &str) -> Result<PathBuf, Failure> {
        self.scratch.dir(name)
    }

    /// Makes the program under test what mount(8) runs to remount: for the time of this run, in its own mount
    /// namespace, it stands in the place of libfuse's helper. Without that helper mount(8) needs none.
    pub(crate) fn stand_in_for_mount_helper(&self) -> Outcome {
        let helper = Path::new(MOUNT_HELPER);
        match &self.program {
            Some(program) if helper.exists() => {
                Step::new("mount").arg("--bind").arg(program).arg(helper).quiet()
            }
            _ => Ok(()),
        }
    }

    /// Whether the ground is a mount of Varve.
    pub(crate) fn is_varve(&self) -> bool {
        self.varve.is_some()
    }

    /// Kills the daemon with SIGKILL. A plain directory has none, and nothing happens.
    pub(crate) fn kill(&mut self) -> Outcome {
        self.varve.as_mut().map_or(Ok(()), Varve::kill)
    }

    /// Checks the store of a killed daemon and mounts it again.
    pub(crate) fn recover(&mut self) -> Outcome {
        let Some(varve) = &mut self.varve else { return Ok(()) };
        varve.fsck()?;
        varve.mount()
    }

    /// Unmounts, which must end the daemon cleanly, and checks the store.
    pub(crate) fn close(mut self) -> Outcome {
        let Some(varve) = &mut self.varve else { return Ok(()) };
        varve.unmount()?;
        varve.fsck()
    }

    /// Takes the mount away and leaves the rest where it is; returns its path.
    pub(crate) fn keep(self) -> PathBuf {
        drop(self.varve);
        self.scratch.keep()
    }
}
