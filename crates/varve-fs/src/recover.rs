//! What a mount finishes before it is usable: the work that pending rows name, besides removals. Costs what was
//! open at the crash, nothing else.

use std::collections::BTreeSet;

use varve_namespace::Changes;
use varve_schema::{EntrySuffix, Pending};
use varve_types::InodeId;
use varve_vfs::FsResult;

use crate::epoch::Epoch;
use crate::error;
use crate::fs::VarveFs;
use crate::rows::{PendingRows, pending_rows};

/// Pending rows read at a time.
const PENDING_BATCH: usize = 1000;

impl VarveFs {
    /// Calls `visit` with every pending row, in the order of ids; it may write and remove those it is called with.
    pub(crate) fn each_pending(
        &self,
        visit: &mut dyn FnMut(InodeId, Pending) -> FsResult<()>,
    ) -> FsResult<()> {
        let mut next = Some(InodeId::new(0));
        while let Some(from) = next {
            let (pending, rest) =
                pending_rows(self.store.as_ref(), self.meta, from, PENDING_BATCH)?;
            next = rest;
            pending.into_iter().try_for_each(|(ino, kind)| visit(ino, kind))?;
        }
        Ok(())
    }

    /// The views of which something is still to be put in place.
    pub(crate) fn awaited_views(&self) -> FsResult<BTreeSet<Epoch>> {
        let mut views = BTreeSet::new();
        self.each_pending(&mut |_, kind| {
            if let Pending::ObjectInstall { view } = kind {
                views.insert(Epoch::of(view));
            }
            Ok(())
        })?;
        Ok(views)
    }

    /// Reclaims orphans, unless they are to be kept, and objects half made, settles files that were being written, and puts
    /// in place what a commit has made of large files. Objects half removed are the reaper's ([`crate::reaper`]), as that may
    /// take long.
    ///
    /// A mount that may not change anything does the last alone, as it recovers the log: rows say that the commit has
    /// happened, and readers of large files must not see what was before it.
    pub(crate) fn finish_pending(&self) -> FsResult<()> {
        let (mut finished, read_only) = (0, self.options.read_only);
        let mut is_durable = false;
        self.each_pending(&mut |ino, kind| {
            if read_only && !matches!(kind, Pending::ObjectInstall { .. }) {
                return Ok(());
            }
            finished += u64::from(kind != Pending::ObjectDelete);
            // The log may have been recovered from memory alone: another power cut must not take the commit, and leave what
            // it has made of large files.
            if changes_object(kind) && !std::mem::replace(&mut is_durable, true) {
                self.store.sync().map_err(error::store)?;
            }
            match kind {
                Pending::ObjectInstall { view } => self.install_pending(ino, Epoch::of(view)),
                other => self.finish_work(ino, other),
            }
        })?;
        if finished > 0 {
            log::info!("finished {finished} operations that a crash cut short");
            self.store.sync().map_err(error::store)?;
        }
        Ok(())
    }

    /// Of a view that nobody else has open: the same for what those who had it left, among these pending rows. Removals and
    /// what is to be installed are the commit's.
    pub(crate) fn finish_pending_of_view(&self, pending: PendingRows) -> FsResult<()> {
        if self.options.read_only {
            return Ok(());
        }
        pending.into_iter().try_for_each(|(ino, kind)| self.finish_work(ino, kind))
    }

    /// Finishes what a pending row names, unless it is a removal or an installation.
    fn finish_work(&self, ino: InodeId, kind: Pending) -> FsResult<()> {
        match kind {
            Pending::Orphan if self.keeps_orphan(ino)? => Ok(()),
            Pending::Orphan => self.drop_orphan(ino),
            Pending::ObjectMaking => self.drop_begun_object(ino),
            Pending::OrphanObjectMaking => {
                self.objects.remove(&[ino])?;
                match self.keeps_orphan(ino)? {
                    true => self.put_pending(ino, Pending::Orphan),
                    false => self.drop_orphan(ino),
                }
            }
            Pending::ObjectDirty { entry } => self.settle_pending(ino, entry),
            Pending::ObjectDelete | Pending::ObjectInstall { .. } => Ok(()),
        }
    }

    /// Whether an orphan stays until somebody opens it again or nobody may any more.
    fn keeps_orphan(&self, ino: InodeId) -> FsResult<bool> {
        let keeps = self.options.keep_orphans;
        Ok(keeps && self.inode_row(ino)?.is_some_and(|inode| inode.nlink == 0))
    }

    /// An orphan's row and data go; an orphan that got a name again only loses the pending row.
    fn drop_orphan(&self, ino: InodeId) -> FsResult<()> {
        self.reap_orphan(ino)?;
        if self.inode_row(ino)?.is_some() {
            self.end_pending(ino)?;
        }
        Ok(())
    }

    /// The row of a file that was being written follows its object. While somebody still writes to it, whose daemon has died, both
    /// that and the pending row stay as they are; also if that cannot be known, or there is no room: the object is asked
    /// whenever the file is looked at, and the next mount tries again.
    pub(crate) fn settle_pending(
        &self,
        ino: InodeId,
        entry: Option<(InodeId, EntrySuffix)>,
    ) -> FsResult<()> {
        match self.note_left_open(ino).and_then(|()| self.settle_left(ino, entry)) {
            Ok(true) => self.end_pending(ino),
            Ok(false) => Ok(()),
            Err(error) => {
                log::warn!("the size that counts for inode {ino} may be old: {error}");
                Ok(())
            }
        }
    }

    fn end_pending(&self, ino: InodeId) -> FsResult<()> {
        let mut changes = Changes::new();
        changes.reclaims_space = true;
        changes.delete_pending(ino);
        self.commit(&mut changes)
    }

    fn put_pending(&self, ino: InodeId, pending: Pending) -> FsResult<()> {
        let mut changes = Changes::new();
        changes.reclaims_space = true;
        changes.put_pending(ino, pending);
        self.commit(&mut changes)
    }

    fn drop_begun_object(&self, ino: InodeId) -> FsResult<()> {
        self.objects.remove(&[ino])?;
        self.end_pending(ino)
    }
}

/// Whether what this names is done to an object, which a power cut does not take back with the row.
fn changes_object(kind: Pending) -> bool {
    match kind {
        Pending::ObjectInstall { .. } | Pending::ObjectMaking | Pending::OrphanObjectMaking => true,
        // The reaper syncs before it removes.
        Pending::ObjectDelete | Pending::Orphan | Pending::ObjectDirty { .. } => false,
    }
}
