//! What programs have changed in mapped memory of small files of the main tree, when a commit changes these files too.
//!
//! The kernel writes such memory in whole pages, when it likes. A page that it wrote behind the commit would bring back what the
//! commit has changed beside it. So it is had to write all of them first; a page that is changed after that counts as written after
//! the commit.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use varve_types::InodeId;
use varve_vfs::FsResult;

use super::plan::Plan;
use crate::fs::VarveFs;
use crate::transactions::{Isolation, Transaction};

/// How often the files may be elsewhere than they were a moment before.
const LOOKS_MAX: u32 = 20;

impl VarveFs {
    /// The files that the commit changes of which programs may have changed mapped memory in the main tree; `None` if there are none
    /// but those `written` back already.
    pub(super) fn mapped_before(
        &self,
        txn: &Transaction,
        plan: &Plan,
        written: &BTreeSet<InodeId>,
    ) -> FsResult<Option<Vec<InodeId>>> {
        // What a serializable one changes it has locked: the kernel's writes would wait for its end.
        let is_locked = txn.isolation == Isolation::Serializable;
        if is_locked || self.views()?.hooks.write_back.get().is_none() {
            return Ok(None);
        }
        // Large ones are in the way of the commit.
        let open = self.session.handles.written().into_iter().map(|node| node.ino);
        let mapped = open.filter(|ino| plan.told.inodes.contains(ino) && !written.contains(ino));
        let mapped: Vec<InodeId> = mapped.collect();
        Ok((!mapped.is_empty()).then_some(mapped))
    }

    /// Has mapped memory of these files written. Of those of which that cannot be, which is logged, the kernel writes it later, if it
    /// has not tried and failed. REQUIRES: no locks are held.
    pub(super) fn write_mapped(&self, files: &[InodeId]) -> FsResult<()> {
        let Some(work) = self.views()?.hooks.write_back.get() else { return Ok(()) };
        let mut has_failed = false;
        for look in 1.. {
            let Err(error) = work(&self.named_files(files)?) else { break };
            // Renamed or closed meanwhile.
            let are_elsewhere = error.kind() == ErrorKind::NotFound;
            if are_elsewhere && look < LOOKS_MAX {
                continue;
            }
            log::warn!("what programs have mapped may be written behind a commit: {error}");
            // A failure does not tell whether others were elsewhere.
            if are_elsewhere || std::mem::replace(&mut has_failed, true) {
                break;
            }
        }
        Ok(())
    }
}
