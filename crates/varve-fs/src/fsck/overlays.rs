//! Reads the overlays of all views: what they have changed and what is kept for them.

use std::io;
use std::path::Path;

use varve_env::{FileKind, OpenMode};
use varve_vfs::FsResult;

use super::Check;
use super::finding::{At, Finding};
use crate::error;
use crate::overlay::{EXTENSION, Overlay};
use crate::superblock::{kept_dir, views_dir};

/// Directories below one another: of views, of views' objects (two), and one to spare.
const DEPTH_MAX: u32 = 4;

impl Check<'_> {
    pub(super) fn check_overlays(&mut self) -> FsResult<()> {
        self.begin("views");
        for dir in [kept_dir(&self.volume.dir), views_dir(&self.volume.dir)] {
            self.check_overlays_in(&dir, DEPTH_MAX)?;
        }
        Ok(())
    }

    fn check_overlays_in(&mut self, dir: &Path, depth: u32) -> FsResult<()> {
        let items = match self.volume.env.list(dir) {
            // A view may end meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            items => items.map_err(|error| error::object("list", dir, error))?,
        };
        for item in items {
            let path = dir.join(&item.name);
            if item.kind == FileKind::Dir && depth > 0 {
                self.check_overlays_in(&path, depth - 1)?;
            } else if path.extension().is_some_and(|extension| extension == EXTENSION) {
                self.step("views");
                self.check_overlay(&path)?;
            }
        }
        Ok(())
    }

    fn check_overlay(&mut self, path: &Path) -> FsResult<()> {
        let env = self.volume.env.as_ref();
        let loaded = env.open(path, OpenMode::Read).and_then(|file| Overlay::load(env, file, path));
        match loaded {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let (path, detail) = (path.display().to_string(), error.to_string());
                self.found(Finding::DamagedOverlay { path, detail }, At::Own)
            }
            Err(error) => Err(error::object("read", path, error)),
        }
    }
}
