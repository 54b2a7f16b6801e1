//! Which overlays are in memory: one of each at most, and the last used ones even while nobody uses them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use varve_env::{Env, FileStat, OpenMode};
use varve_schema::overlay::OverlayKind;

use super::Overlay;

/// Overlays that stay in memory, with their files open, although nobody uses them.
const RECENT_MAX: usize = 64;

/// Where the overlay is made that is to lie at `path`.
fn begun_path(path: &Path) -> PathBuf {
    path.with_extension("blocks-begun")
}

/// See the module's comment.
#[derive(Debug)]
pub(crate) struct Overlays {
    env: Arc<dyn Env>,
    known: Mutex<LoadedOverlays>,
}

#[derive(Debug, Default)]
struct LoadedOverlays {
    /// By path; some are gone from memory.
    live: HashMap<PathBuf, Weak<Overlay>>,
    /// The oldest first.
    recent: VecDeque<Arc<Overlay>>,
    /// When there are so many, those that are gone are looked for.
    tidy_at: usize,
}

impl LoadedOverlays {
    fn add(&mut self, path: &Path, overlay: Overlay) -> Arc<Overlay> {
        let overlay = Arc::new(overlay);
        if self.live.len() >= self.tidy_at {
            self.live.retain(|_, overlay| overlay.strong_count() > 0);
            self.tidy_at = 2 * self.live.len().max(RECENT_MAX);
        }
        self.live.insert(path.to_path_buf(), Arc::downgrade(&overlay));
        if self.recent.len() >= RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(Arc::clone(&overlay));
        overlay
    }

    fn take(&mut self, path: &Path) -> Option<Weak<Overlay>> {
        let taken = self.live.remove(path)?;
        self.recent.retain(|overlay| !std::ptr::eq(Arc::as_ptr(overlay), taken.as_ptr()));
        Some(taken)
    }
}

impl Overlays {
    /// None yet.
    pub(crate) fn new(env: Arc<dyn Env>) -> Overlays {
        Overlays { env, known: Mutex::default() }
    }

    /// The overlay at `path`, if there is one.
    pub(crate) fn get(&self, path: &Path) -> io::Result<Option<Arc<Overlay>>> {
        let mut known = self.known.lock();
        if let Some(overlay) = known.live.get(path).and_then(Weak::upgrade) {
            return Ok(Some(overlay));
        }
        let file = match self.env.open(path, OpenMode::ReadWrite) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let overlay = Overlay::load(self.env.as_ref(), file, path)?;
        Ok(Some(known.add(path, overlay)))
    }

    /// Makes one at `path` over a base of which `base` tells, durably but for the name. REQUIRES: there is none,
    /// and nobody else makes it.
    pub(crate) fn create(
        &self,
        path: &Path,
        kind: OverlayKind,
        base: &FileStat,
    ) -> io::Result<Arc<Overlay>> {
        self.put(path, self.begin(path, kind, base)?)
    }

    /// The same up to its name, which [`Overlays::put`] gives it.
    pub(crate) fn begin(
        &self,
        path: &Path,
        kind: OverlayKind,
        base: &FileStat,
    ) -> io::Result<Overlay> {
        Overlay::create(self.env.as_ref(), &begun_path(path), kind, base)
    }

    /// Has one that was [begun](Overlays::begin) for `path` found there.
    pub(crate) fn put(&self, path: &Path, begun: Overlay) -> io::Result<Arc<Overlay>> {
        // Who finds the file finds this one.
        let mut known = self.known.lock();
        self.env.rename(&begun_path(path), path)?;
        Ok(known.add(path, begun))
    }

    /// Moves one.
    pub(crate) fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut known = self.known.lock();
        self.env.rename(from, to)?;
        if let Some(moved) = known.take(from) {
            known.live.insert(to.to_path_buf(), moved);
        }
        Ok(())
    }

    /// Removes one, if it is there.
    pub(crate) fn remove(&self, path: &Path) -> io::Result<()> {
        let mut known = self.known.lock();
        known.take(path);
        match self.env.remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Lets go of those below `dir`, which nobody uses any more.
    pub(crate) fn forget_below(&self, dir: &Path) {
        let mut known = self.known.lock();
        let below: Vec<PathBuf> =
            known.live.keys().filter(|path| path.starts_with(dir)).cloned().collect();
        below.iter().for_each(|path| drop(known.take(path)));
    }
}
