//! Reads the overlays of all views: what they have changed and what is kept for them; and looks whether what is kept is there.

use std::io;
use std::path::Path;

use varve_engine::{Direction, KeyRange, Store};
use varve_env::{FileKind, OpenMode};
use varve_schema::key::MetaRow;
use varve_schema::{EntryRow, RowKey};
use varve_types::InodeId;
use varve_vfs::FsResult;

use super::Check;
use super::finding::{At, Finding};
use super::losses::path_of_dir_in;
use super::names::printable;
use crate::epoch::Epoch;
use crate::error;
use crate::overlay::{EXTENSION, Overlay};
use crate::preimages::{inspect_mark, marked_by};
use crate::snapshots::stored_name::parse_name;
use crate::superblock::{preimages_dir, views_dir};
use crate::transactions::transaction_of_epoch;

/// Directories below one another: of views, of views' objects (two), and one to spare.
const DEPTH_MAX: u32 = 4;

impl Check<'_> {
    pub(super) fn check_overlays(&mut self) -> FsResult<()> {
        self.begin("views");
        for dir in [preimages_dir(&self.volume.dir), views_dir(&self.volume.dir)] {
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
            } else if let Some(kept) = marked_by(&path) {
                self.check_kept(&kept, &path)?;
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
                self.damaged_overlay(path, error.to_string())
            }
            Err(error) => Err(error::object("read", path, error)),
        }
    }

    /// Looks whether what the mark `mark` says is kept at `path` is there, and as long as it was.
    fn check_kept(&mut self, path: &Path, mark: &Path) -> FsResult<()> {
        let env = self.volume.env.as_ref();
        if !seen_by(path).is_some_and(|(epoch, _)| self.has_view(epoch)) {
            return Ok(());
        }
        let stat = match env.stat(path) {
            // What a view that has ended meanwhile had is gone with its mark.
            Err(error) if error.kind() == io::ErrorKind::NotFound => match env.stat(mark) {
                Ok(_) => return self.damaged_overlay(path, format!("{} is gone", path.display())),
                Err(_) => return Ok(()),
            },
            stat => stat.map_err(|error| error::object("look at", path, error))?,
        };
        let len = inspect_mark(env, mark).ok().flatten();
        let is_blocks = path.extension().is_some();
        match len.filter(|len| !is_blocks && stat.len < *len) {
            Some(len) => {
                let (path_text, own) = (path.display(), stat.len);
                let detail = format!("{path_text} has {own} bytes and had {len}");
                self.damaged_overlay(path, detail)
            }
            None => Ok(()),
        }
    }

    /// Whether there is a snapshot or transaction of this epoch.
    fn has_view(&self, epoch: Epoch) -> bool {
        let Some(db) = &self.volume.db else { return false };
        let is_snapshot = |stored: &str| parse_name(stored).is_some_and(|(own, _)| own == epoch);
        db.snapshots().iter().any(|stored| is_snapshot(&stored.name))
            || transaction_of_epoch(db, epoch).is_some()
    }

    fn damaged_overlay(&mut self, path: &Path, detail: String) -> FsResult<()> {
        let (view, seen) = match seen_by(path) {
            Some((epoch, ino)) => self.seen_as(epoch, ino)?,
            None => ("a view".to_owned(), "a file".to_owned()),
        };
        let path = path.display().to_string();
        self.found(Finding::DamagedOverlay { path, detail, view, seen }, At::Own)
    }

    /// What the view of an epoch is called, and the path that an inode has there. Costs what the view has.
    fn seen_as(&self, epoch: Epoch, ino: InodeId) -> FsResult<(String, String)> {
        let number = || format!("inode {ino}");
        let Some(db) = &self.volume.db else { return Ok(("a view".to_owned(), number())) };
        let mut snapshots = db.snapshots().into_iter();
        let stored =
            snapshots.find(|stored| parse_name(&stored.name).is_some_and(|of| of.0 == epoch));
        let (view, rows): (String, Box<dyn Store>) = if let Some(stored) = stored {
            let name = match parse_name(&stored.name) {
                Some((_, name)) if !name.is_empty() => format!("snapshot {name}"),
                _ => format!("the state {epoch} of the store that clones read from"),
            };
            (name, Box::new(db.open_snapshot(&stored.name).map_err(error::store)?))
        } else if let Some(txn) = transaction_of_epoch(db, epoch) {
            let branch = db.open_branch(txn.branch).map_err(error::store)?;
            (format!("transaction {}", txn.name().name), Box::new(branch))
        } else {
            return Ok(("a view that has ended".to_owned(), number()));
        };
        let meta = self.volume.meta;
        for row in rows.scan(meta, KeyRange::all(), Direction::Forward).map_err(error::store)? {
            let (key, value) = row.map_err(error::store)?;
            let Some(MetaRow::Entry(dir, _)) = RowKey::from_bytes(&key).map(|key| key.meta_kind())
            else {
                continue;
            };
            let Ok(row) = EntryRow::decode(&value) else { continue };
            let Some(named) = row.names().iter().find(|named| named.body.ino() == ino).cloned()
            else {
                continue;
            };
            let get = |key: RowKey| rows.get(meta, &key.to_bytes()).map_err(error::store);
            let dir = path_of_dir_in(&get, dir)?;
            let name = printable(&named.name);
            let path = if dir == "/" { format!("/{name}") } else { format!("{dir}/{name}") };
            return Ok((view, path));
        }
        Ok((view, number()))
    }
}

/// The epoch of the view and the inode that a file below `kept/` or `views/` is of.
fn seen_by(path: &Path) -> Option<(Epoch, InodeId)> {
    let epoch = path.ancestors().nth(3)?.file_name()?.to_str()?;
    let ino = path.file_stem()?.to_str()?.parse().ok()?;
    Some((Epoch::parse(epoch)?, InodeId::new(ino)))
}
