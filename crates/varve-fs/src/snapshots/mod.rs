//! Named snapshots: what the store was at one moment.
//!
//! In: a name. Out: a snapshot that is made, deleted or held, two states to compare ([`Span`]), what changed between them ([`diff`]).
//! Never: a snapshot that changes; and it copies no rows, as a snapshot is a state that the engine keeps.
//!
//! The epoch of a snapshot is part of the name by which the engine knows it ([`mod@stored_name`]), and so is the id that the snapshot has in
//! all stores ([`crate::stream`]).

mod diff;
mod held;
pub(crate) mod stored_name;

use std::collections::BTreeSet;

use varve_engine::SnapshotStore;
use varve_types::InodeId;
use varve_vfs::{FsError, FsResult};

use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::lost::{LOST_NAME, Lost};
pub use diff::{ChangeKind, Diff, PathChange};
pub(crate) use held::{HeldEpochs, HeldSnapshots};
use stored_name::{HIDDEN_NAME, check_name, hidden_name, parse_name, stored_name};

/// Two states of the main tree.
struct Span {
    before: SnapshotStore,
    after: SnapshotStore,
    /// Large files that may have been written to in between.
    written: BTreeSet<InodeId>,
}

impl VarveFs {
    /// Gives the present state the name `name`. Costs the same however many files there are; large files that the kernel
    /// has open for writing straight, or mapped, are copied.
    pub fn create_snapshot(&self, name: &str) -> FsResult<()> {
        check_name(name)?;
        self.writable()?;
        let views = self.views()?;
        self.settle_before_view()?;
        let _changing = views.lock_changes();
        if self.find_snapshot(name)?.is_some() {
            return Err(FsError::Exists);
        }
        let pin = |epoch: Epoch| {
            let stored = stored_name(epoch, &format!("{:016x}", self.env.random()), name);
            views.db().create_snapshot(&stored)?;
            Ok(stored)
        };
        self.begin_view(pin, |stored| views.db().delete_snapshot(stored)).map(drop)
    }

    /// The epoch of a snapshot and how the store calls it, if there is such a snapshot.
    pub(crate) fn find_snapshot(&self, name: &str) -> FsResult<Option<(Epoch, String)>> {
        let stored = self.views()?.db().snapshots();
        Ok(stored.into_iter().find_map(|stored| {
            let (epoch, known) = parse_name(&stored.name)?;
            let is_it = known == name && known != HIDDEN_NAME;
            is_it.then(|| (epoch, stored.name.clone()))
        }))
    }

    /// Keeps these snapshots until the guard is dropped. `NotFound` if one is not there.
    pub(crate) fn hold_snapshots(&self, names: &[Option<&str>]) -> FsResult<HeldSnapshots<'_>> {
        let views = self.views()?;
        let _changing = views.lock_changes();
        let found = names.iter().flatten().map(|name| self.find_snapshot(name));
        let found = found.map(|found| found?.ok_or(FsError::NotFound));
        let snapshots = found.collect::<FsResult<Vec<_>>>()?;
        Ok(views.held.hold(snapshots))
    }

    /// Deletes a snapshot. What only it held is freed afterwards; what clones still read from it, when they do not read it any more.
    /// REQUIRES: it is not open.
    pub fn delete_snapshot(&self, name: &str) -> FsResult<()> {
        self.writable()?;
        let views = self.views()?;
        let changing = views.lock_changes();
        let (epoch, stored) = self.find_snapshot(name)?.ok_or(FsError::NotFound)?;
        if views.held.contains(epoch) {
            return Err(FsError::NotSupported(
                "deleting a snapshot that is being sent or received upon",
            ));
        }
        if self.is_source(epoch)? {
            let hidden = hidden_name(epoch);
            views.db().rename_snapshot(&stored, &hidden).map_err(error::store)?;
            self.sources()?.note_returned(epoch);
            return Ok(());
        }
        // A power cut must bring no clone back without it.
        self.store.sync().map_err(error::store)?;
        self.sources()?.delete(epoch, &stored)?;
        self.end_view(epoch);
        self.drop_sources_after_view(&changing);
        Ok(())
    }

    /// Refuses a snapshot that lost rows in a repair: absent rows would be taken for holes.
    pub(crate) fn require_whole(&self, epoch: Epoch) -> FsResult<()> {
        let lost = Lost::read(self.env.as_ref(), &self.dir);
        let lost = lost.map_err(|error| error::object("read", &self.dir.join(LOST_NAME), error))?;
        if lost.seen_at(epoch).is_empty() {
            return Ok(());
        }
        let text = "a repair of the store lost rows of this snapshot: it can be read, and copied file by file, not sent and not rolled back to";
        Err(FsError::Damaged(text.to_owned()))
    }

    /// The snapshot `from` and a later one, or the present.
    fn span(&self, from: &str, to: Option<&str>) -> FsResult<Span> {
        let db = self.views()?.db();
        let find = |name| self.find_snapshot(name)?.ok_or(FsError::NotFound);
        let (from, stored) = find(from)?;
        let before = db.open_snapshot(&stored).map_err(error::store)?;
        let (until, after) = match to.map(find).transpose()? {
            Some((to, _)) if to < from => {
                return Err(FsError::Invalid("the first snapshot is the later one"));
            }
            Some((to, stored)) => (Some(to), db.open_snapshot(&stored)),
            None => (None, db.present()),
        };
        let after = after.map_err(error::store)?;
        Ok(Span { before, after, written: self.written_between(from, until)? })
    }

    /// Large files that may have been written to after the view of epoch `from` began, and before that of `until` did.
    pub(crate) fn written_between(
        &self,
        from: Epoch,
        until: Option<Epoch>,
    ) -> FsResult<BTreeSet<InodeId>> {
        let Some(preimages) = self.objects.preimages() else { return Err(FsError::Stale) };
        let written = preimages.changed_between(from, until);
        written.map_err(|error| error::object("list", &self.dir.join("kept"), error))
    }
}
