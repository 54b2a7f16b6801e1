//! What becomes of preimages when views end.
//!
//! A version at the epoch of a view that ends goes to the view before it, block by block; what nobody needs then goes.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use varve_types::InodeId;

use super::Preimages;
use super::marks::mark_path;
use crate::epoch::Epoch;
use crate::files::{exists, remove_tree};
use crate::overlay::blocks_path;

impl Preimages {
    /// No view of this epoch is left: what nobody else needs goes. Costs the number of preimages there.
    pub(crate) fn end(&self, epoch: Epoch) -> io::Result<()> {
        self.retire(epoch);
        let before = self.epochs.read().all.range(..epoch).next_back().copied();
        let top = self.dir.join(epoch.get().to_string());
        let mut failed = None;
        for upper in self.list(&top)? {
            for lower in self.list(&upper)? {
                for ino in inodes_in(&self.list(&lower)?) {
                    let Some(before) = before.filter(|before| before.knows(ino)) else { continue };
                    let _saving = self.saving.lock();
                    // The others need not wait for one that cannot be read.
                    failed = failed.or(self.pass_on(ino, epoch, before).err());
                }
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        self.alter(|epochs| {
            epochs.all.remove(&epoch);
            epochs.ended.remove(&epoch);
        });
        self.overlays.forget_below(&top);
        remove_tree(self.env.as_ref(), &top)
    }

    /// Gives the preimages at `epoch` to the epoch before it, as far as that one needs them. REQUIRES: `saving`.
    pub(super) fn pass_on(&self, ino: InodeId, epoch: Epoch, before: Epoch) -> io::Result<()> {
        let (later, earlier) = (self.path(epoch, ino), self.path(before, ino));
        let (later_blocks, earlier_blocks) = (blocks_path(&later), blocks_path(&earlier));
        let has_all = exists(self.env.as_ref(), &later)?;
        let is_damaged = |error: &io::Error| error.kind() == io::ErrorKind::InvalidData;
        let blocks = match self.overlays.get(&later_blocks) {
            Err(error) if is_damaged(&error) => return self.pass_on_damaged(&later, &earlier),
            blocks => blocks?,
        };
        if !has_all && blocks.is_none() {
            return self.pass_on_loss(&later, &earlier);
        }
        let holds_all = self.holds_all(before, ino)?;
        // Nothing saves a version that is damaged or gone.
        let is_lost = match self.overlays.get(&earlier_blocks) {
            _ if holds_all => false,
            Err(error) if is_damaged(&error) => true,
            earlier => self.is_lost(before, ino, earlier?.is_some())?,
        };
        if !holds_all && !is_lost {
            self.create_dirs(&earlier)?;
            match (self.overlays.get(&earlier_blocks)?, blocks) {
                (Some(blocks), Some(later)) => {
                    self.rely_on(&earlier, &blocks)?;
                    self.save_in(&earlier, &blocks, |blocks| blocks.adopt(&later))?;
                }
                (None, Some(blocks)) => {
                    blocks.settle()?;
                    let _nobody_reads = self.epochs.write();
                    self.overlays.rename(&later_blocks, &earlier_blocks)?;
                    self.unmark(&later_blocks)?;
                    self.name(&earlier_blocks)?;
                    self.mark(&earlier_blocks);
                }
                (_, None) => {}
            }
            if has_all {
                let _nobody_reads = self.epochs.write();
                self.env.rename(&later, &earlier)?;
                self.unmark(&later)?;
                self.name(&earlier)?;
                self.mark(&earlier);
            }
        }
        let _nobody_reads = self.epochs.write();
        self.overlays.remove(&later_blocks)?;
        self.remove(&later)
    }

    /// Gives blocks that are damaged to the version before, which needs them: it cannot be read any more either, instead of showing what is
    /// below. REQUIRES: `saving`.
    fn pass_on_damaged(&self, later: &Path, earlier: &Path) -> io::Result<()> {
        self.create_dirs(earlier)?;
        let (later_blocks, earlier_blocks) = (blocks_path(later), blocks_path(earlier));
        let _nobody_reads = self.epochs.write();
        self.overlays.remove(&earlier_blocks)?;
        self.env.rename(&later_blocks, &earlier_blocks)?;
        self.name(&earlier_blocks)?;
        self.remove(later)
    }

    /// Gives the marks of what is gone to the version before, which misses it too: unless that has something itself, as it has when what
    /// is marked moved there. REQUIRES: `saving`, and there is no preimage at `later`.
    fn pass_on_loss(&self, later: &Path, earlier: &Path) -> io::Result<()> {
        let marked = |path: &Path| -> io::Result<Vec<PathBuf>> {
            let files = [path.to_path_buf(), blocks_path(path)];
            let marks = files.iter().map(|file| mark_path(file));
            marks
                .filter_map(|mark| {
                    exists(self.env.as_ref(), &mark).map(|is| is.then_some(mark)).transpose()
                })
                .collect()
        };
        let marks = marked(later)?;
        if marks.is_empty() || !marked(earlier)?.is_empty() {
            return Ok(());
        }
        for file in [earlier.to_path_buf(), blocks_path(earlier)] {
            if exists(self.env.as_ref(), &file)? {
                return Ok(());
            }
        }
        self.create_dirs(earlier)?;
        let _nobody_reads = self.epochs.write();
        marks.iter().try_for_each(|mark| {
            let is_whole = *mark == mark_path(later);
            let to = if is_whole { earlier.to_path_buf() } else { blocks_path(earlier) };
            self.env.rename(mark, &mark_path(&to))
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match self.env.remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// The epochs that have preimages although there is no such view any more: of views that were ending.
    /// The newest first, as what they pass on must pass all of them.
    pub(crate) fn ended(&self) -> io::Result<Vec<Epoch>> {
        let epochs = self.epochs.read();
        let listed = self.list(&self.dir)?.into_iter().filter_map(|path| {
            let epoch = Epoch::parse(path.file_name()?.to_str()?)?;
            (!epochs.all.contains(&epoch)).then_some(epoch)
        });
        let mut ended: Vec<Epoch> = listed.collect();
        ended.sort_unstable_by(|a, b| b.cmp(a));
        Ok(ended)
    }

    /// What is in a directory, or nothing.
    pub(super) fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        match self.env.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            items => Ok(items?.into_iter().map(|item| dir.join(item.name)).collect()),
        }
    }
}

/// The inodes of which something is among these files.
pub(super) fn inodes_in(paths: &[PathBuf]) -> BTreeSet<InodeId> {
    let number = |path: &PathBuf| path.file_stem()?.to_str()?.parse().ok().map(InodeId::new);
    paths.iter().filter_map(number).collect()
}
