//! What a mount finishes: the work that pending rows name. Costs what was open or being removed at the
//! crash, nothing else.

use varve_engine::{Direction, KeyRange};
use varve_schema::{EntrySuffix, META, Pending, RowKey};
use varve_types::InodeId;
use varve_vfs::FsResult;

use crate::error;
use crate::fs::VarveFs;

/// Pending rows taken care of between two syncs.
const PENDING_BATCH: usize = 1000;

impl VarveFs {
    /// Reclaims orphans, objects half made and objects half removed, and settles files that were being written.
    pub(crate) fn finish_pending(&self) -> FsResult<()> {
        if self.options.read_only {
            return Ok(());
        }
        loop {
            let pending = self.pending(PENDING_BATCH)?;
            if pending.is_empty() {
                return Ok(());
            }
            for (ino, kind) in &pending {
                match kind {
                    Pending::Orphan => self.drop_orphan(*ino)?,
                    Pending::ObjectMaking => self.drop_begun_object(*ino)?,
                    Pending::OrphanObjectMaking => {
                        self.objects.remove(&[*ino])?;
                        self.drop_orphan(*ino)?;
                    }
                    Pending::ObjectDelete => self.reaper.enqueue(*ino),
                    Pending::ObjectDirty { entry } => self.settle_pending(*ino, *entry)?,
                }
            }
            log::info!("finished {} operations that a crash cut short", pending.len());
            self.reaper.sync_and_drain()?;
            if self.reaper.queued() > 0 {
                // Objects that cannot be removed now stay queued; fsck names them.
                return Ok(());
            }
        }
    }

    fn pending(&self, max: usize) -> FsResult<Vec<(InodeId, Pending)>> {
        let range = KeyRange::prefix(&RowKey::pending_prefix());
        let rows = self.store.scan(self.meta, range, Direction::Forward).map_err(error::store)?;
        let mut found = Vec::new();
        for row in rows.take(max) {
            let (key, value) = row.map_err(error::store)?;
            let Some(key) = RowKey::from_bytes(&key) else { continue };
            let kind = Pending::decode(&value).map_err(|error| error::row(META, key, error))?;
            found.push((InodeId::new(key.suffix()), kind));
        }
        Ok(found)
    }

    /// An orphan's row and data go; an orphan that got a name again only loses the pending row.
    fn drop_orphan(&self, ino: InodeId) -> FsResult<()> {
        self.reap_orphan(ino)?;
        if self.inode_row(ino)?.is_some() {
            let mut changes = self.changes();
            changes.delete_pending(ino);
            self.commit(changes)?;
        }
        Ok(())
    }

    /// The row of a file that was being written follows its object. If that cannot be asked the row stays as
    /// it is, and only the pending row goes: the object is asked whenever the file is looked at.
    fn settle_pending(&self, ino: InodeId, entry: Option<(InodeId, EntrySuffix)>) -> FsResult<()> {
        if let Err(error) = self.settle_left(ino, entry) {
            log::warn!("the size that counts for inode {ino} may be old: {error}");
        }
        let mut changes = self.changes();
        changes.batch.reclaims_space();
        changes.delete_pending(ino);
        self.commit(changes)
    }

    fn drop_begun_object(&self, ino: InodeId) -> FsResult<()> {
        self.objects.remove(&[ino])?;
        let mut changes = self.changes();
        changes.batch.reclaims_space();
        changes.delete_pending(ino);
        self.commit(changes)
    }
}
