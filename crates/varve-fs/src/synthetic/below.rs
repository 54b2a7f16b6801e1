//! The directory `.varve` of each directory below the root of a mount: links to what that was in each snapshot.
//!
//! ```text
//! D/.varve/snapshots/NAME -> ../../../.varve/snapshots/NAME/where/D/was
//!                            to D, and to the root from there
//! ```
//!
//! 1. A lookup of `.varve` in D finds this directory if D has no entry of that name and there are snapshots. Its inode id, and that
//!    of `snapshots` in it, are made of D's. A file or directory of that name takes precedence.
//! 2. A lookup of a snapshot's name there finds a link if D, known by its inode id, was in that snapshot: to the path that
//!    D had then, by as many steps up as D is deep now.
//! 3. The kernel keeps the target of a link as long as it knows the inode. So another target is another inode: links are
//!    numbered, and the [`LINKS_MAX`](super::links) that were looked up last are known.
//!
//! The kernel caches none of these names, so that it sees at once what was renamed, removed or is no snapshot any more.
//!
//! A directory of a clone has no row in snapshots that began before somebody looked into the directory that holds it. It is
//! found there, and gets one, by the way that leads to it now; if it was moved to another directory since, it is not.

use std::hash::{DefaultHasher, Hash, Hasher};

use varve_schema::{Content, Inode};
use varve_types::limits::SYMLINK_BYTES_MAX;
use varve_types::{FileName, InodeId, Timestamp};
use varve_vfs::{Entry, FsError, FsResult};

use super::id::{NUMBER_MAX, Numbered, SyntheticId, TOP_NAME, text};
use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::rows::read_path;
use crate::snapshots::stored_name::{HIDDEN_NAME, parse_name};
use crate::views::{ViewKind, ViewName};

/// One step up.
const UP: &str = "../";
/// Deeper than that no link leads to the root.
const DEPTH_MAX: usize = SYMLINK_BYTES_MAX / UP.len();

/// Whether `name` is that of the synthetic directory.
pub(crate) fn is_synthetic_below(name: FileName<'_>) -> bool {
    name.as_bytes() == TOP_NAME
}

impl VarveFs {
    /// The synthetic directory `.varve` in `dir`, which has no such name. `NotFound` if there is nothing to be found in it.
    pub(crate) fn look_up_below(&self, dir: InodeId) -> FsResult<Entry> {
        if self.views.is_none() || dir.get() > NUMBER_MAX {
            return Err(FsError::NotFound);
        }
        if self.view_names(ViewKind::Snapshot)?.is_empty() {
            return Err(FsError::NotFound);
        }
        let inode = self.synthetic(SyntheticId::Below(dir).id()).ok_or(FsError::NotFound)?;
        Ok(Entry::of(self.attr(&inode)?))
    }

    /// Whether `name`, which is not in `parent`, may come to be there without anybody making it.
    pub(crate) fn name_may_appear(&self, parent: InodeId, name: FileName<'_>) -> bool {
        parent.is_synthetic() || (is_synthetic_below(name) && self.views.is_some())
    }

    /// The result of moving or removing `name` in `dir`, where the synthetic directory stays.
    pub(crate) fn moving<T>(
        &self,
        dir: InodeId,
        name: FileName<'_>,
        result: FsResult<T>,
    ) -> FsResult<T> {
        match result {
            Err(FsError::NotFound)
                if is_synthetic_below(name) && self.look_up_below(dir).is_ok() =>
            {
                Err(FsError::NotPermitted)
            }
            result => result,
        }
    }

    /// Whether `dir` is a directory of the main tree.
    pub(crate) fn is_there(&self, dir: InodeId) -> bool {
        let row = self.inode_row(dir);
        row.is_ok_and(|row| row.is_some_and(|row| matches!(row.content, Content::Directory(_))))
    }

    /// A time that is another one when there are other snapshots in `.varve/snapshots`, or other names in the synthetic directory `of`, by
    /// which the kernel knows that a listing has changed.
    pub(super) fn time_of_listing(&self, of: SyntheticId) -> Timestamp {
        let of = if let SyntheticId::SnapshotsOf(_) = of { SyntheticId::Snapshots } else { of };
        let mut hasher = DefaultHasher::new();
        let names = self.names_in(of.id()).unwrap_or_default();
        names.iter().for_each(|(number, _, name)| (number, name).hash(&mut hasher));
        Timestamp::new(0, (hasher.finish() % 1_000_000_000) as u32).unwrap_or_default()
    }

    /// The snapshots from the epoch `from` on in which `dir` was, each with the link to `dir` there, which is made when it is asked
    /// for.
    pub(super) fn links_from(
        &self,
        dir: InodeId,
        from: Epoch,
    ) -> FsResult<impl Iterator<Item = FsResult<Numbered>>> {
        let mut snapshots: Vec<(Epoch, String)> = Vec::new();
        for stored in self.views()?.db().snapshots() {
            if let Some((epoch, name)) = parse_name(&stored.name)
                && name != HIDDEN_NAME
                && epoch >= from
            {
                snapshots.push((epoch, stored.name));
            }
        }
        snapshots.sort_unstable();
        Ok(snapshots.into_iter().filter_map(move |(epoch, stored)| {
            let name = parse_name(&stored)?.1;
            match self.link_in(dir, epoch, &stored, name) {
                // The number of the link may be another one each time.
                Ok(link) => Some(Ok((epoch.get(), link, name.to_owned()))),
                Err(FsError::NotFound | FsError::TargetTooLong) => None,
                Err(error) => Some(Err(error)),
            }
        }))
    }

    /// The link to what `dir` was in the snapshot `name`; `NotFound` if it was not there, or there is no such snapshot.
    pub(super) fn link_of(&self, dir: InodeId, name: &[u8]) -> FsResult<SyntheticId> {
        let name = text(name)?;
        let (epoch, stored) = self.find_snapshot(name)?.ok_or(FsError::NotFound)?;
        self.link_in(dir, epoch, &stored, name)
    }

    /// The same, of the snapshot of this epoch, which the store calls `stored`.
    fn link_in(
        &self,
        dir: InodeId,
        epoch: Epoch,
        stored: &str,
        name: &str,
    ) -> FsResult<SyntheticId> {
        let then = match self.path_in(dir, epoch, stored) {
            Ok(path) => path.ok_or(FsError::NotFound)?,
            // It was deleted meanwhile.
            Err(_) if self.find_snapshot(name)?.is_none_or(|now| now.0 != epoch) => {
                return Err(FsError::NotFound);
            }
            Err(error) => return Err(error),
        };
        // Out of `.varve` and `snapshots` too.
        let up = UP.repeat(self.way_up(dir)?.len() + 2);
        let place = ViewName { kind: ViewKind::Snapshot, name: name.to_owned() }.path();
        let target = [up.as_bytes(), place.as_os_str().as_encoded_bytes(), &then].concat();
        if target.len() > SYMLINK_BYTES_MAX {
            return Err(FsError::TargetTooLong);
        }
        Ok(SyntheticId::Link(self.views()?.links.number(target)))
    }

    /// The path of `dir` in a snapshot, if it was there.
    fn path_in(&self, dir: InodeId, epoch: Epoch, stored: &str) -> FsResult<Option<Vec<u8>>> {
        if !epoch.knows(dir) {
            // It was made later.
            return Ok(None);
        }
        let then = self.views()?.db().open_snapshot(stored).map_err(error::store)?;
        let path = read_path(&then, self.meta, dir)?;
        let sources = self.sources()?;
        if path.is_some() || !sources.has_folded(epoch, &then)? {
            return Ok(path);
        }
        let then = sources.open(epoch)?;
        match then.path_of(dir)? {
            None if self.unfold_way(&then, dir)? => then.path_of(dir),
            path => Ok(path),
        }
    }

    /// Unfolds in the snapshot `then` the directories on the way to `dir`, as that is now; whether it was there.
    fn unfold_way(&self, then: &VarveFs, dir: InodeId) -> FsResult<bool> {
        let way = self.way_up(dir)?;
        let mut known = way.len();
        for (at, ino) in way.iter().enumerate().skip(1) {
            if then.inode_row(*ino)?.is_some() {
                known = at;
                break;
            }
        }
        if known == way.len() {
            return Ok(false);
        }
        for below in (0..known).rev() {
            then.unfolded_row(way[below + 1])?;
            if then.inode_row(way[below])?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// `dir` and the directories above it, but not the root. Each was right at a moment of its own.
    fn way_up(&self, dir: InodeId) -> FsResult<Vec<InodeId>> {
        let (mut way, mut at) = (Vec::new(), dir);
        while at != InodeId::ROOT {
            if way.len() > DEPTH_MAX {
                return Err(FsError::TargetTooLong);
            }
            let Some(Inode { content: Content::Directory(info), .. }) = self.inode_row(at)? else {
                return Err(FsError::NotFound);
            };
            way.push(at);
            at = info.parent;
        }
        Ok(way)
    }
}
