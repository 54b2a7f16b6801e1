//! A file system that changes from one process to another while it is mounted.
//!
//! 1. [`VarveFs::hand_over`], when no call is under way any more: collects what is only in memory
//!    ([`Handover`]), closes the store, and gives the state with the store's lock, which stays held.
//! 2. [`VarveFs::resume`], in the next process or in the same: opens the store and takes the state over.
//!    The volatile key space stays as it is, and orphans stay, because the kernel may still ask for both.
//!
//! Descriptors are not handed over: objects are opened again when they are needed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use varve_engine::{StoreError, StoreResult};
use varve_env::{Env, File, FileLock};
use varve_schema::{Handover, InodeLocation, KnownInode, OpenHandle, Pending};
use varve_types::InodeId;
use varve_vfs::{FsResult, OpenFlags};

use crate::descriptors::OpenNode;
use crate::error::invalid;
use crate::fs::VarveFs;
use crate::open::OpenFile;
use crate::options::MountOptions;
use crate::superblock::Superblock;
use varve_session::{InodeEntry, NodeState};

/// What a successor needs besides the store.
#[derive(Debug)]
pub struct HandedOver {
    /// The encoded volatile state.
    pub state: Vec<u8>,
    /// The store's lock.
    pub lock: Box<dyn FileLock>,
}

impl VarveFs {
    /// Closes the store for a successor. REQUIRES: no call is under way, none follows, and the store was
    /// synced: so the successor finds everything even if the closing fails, which is only logged.
    pub fn hand_over(&self) -> StoreResult<HandedOver> {
        self.abandon_unsettled();
        // The successor knows nothing of what is only in memory.
        if let Err(error) = self.store.write_kept(true) {
            log::error!("files of clones that are open or known are lost to who has them: {error}");
        }
        if let Err(error) = self.session.inodes.tidy_store() {
            log::error!("places of inodes that are known no more stay in the store: {error}");
        }
        let handover = self.volatile_state();
        let (lock, closed) = self.shut_down(false);
        if let Err(error) = closed {
            log::error!("closing {}: {error}", self.dir.display());
        }
        Ok(HandedOver { state: handover.encode(), lock: lock.ok_or(StoreError::Closed)? })
    }

    /// Opens the store in `dir` and goes on where the process that gave `from` stopped. On an error the
    /// store is closed and the lock let go of.
    pub fn resume(
        env: Arc<dyn Env>,
        dir: &Path,
        options: MountOptions,
        from: HandedOver,
    ) -> StoreResult<VarveFs> {
        let handover = Handover::decode(&Bytes::from(from.state)).map_err(|error| {
            StoreError::Invalid(format!("the state handed over cannot be read: {error}"))
        })?;
        let Superblock { engine, design, .. } = Superblock::read(env.as_ref(), dir)?;
        let (db_env, db_options) = (Arc::clone(&env), options.engine(design));
        let open_store = |engine_dir: &Path| engine.open(&db_env, engine_dir, db_options);
        let fs = VarveFs::assemble(env, dir, options, from.lock, open_store)?;
        fs.begin_views()?;
        fs.take_over(handover)?;
        fs.load_quotas().map_err(invalid)?;
        fs.settle_unopened().map_err(invalid)?;
        fs.start_reaper()?;
        Ok(fs)
    }

    /// Notes files that are written to by who opened them before an earlier daemon died, and brings the rows of those up to date
    /// to which nobody writes by now: the process before has told of neither.
    fn settle_unopened(&self) -> FsResult<()> {
        if self.options.read_only {
            return Ok(());
        }
        let has_writers =
            |ino| self.session.inodes.node(ino).is_some_and(|node| node.state().writers > 0);
        self.each_pending(&mut |ino, kind| match kind {
            Pending::ObjectDirty { entry } if !has_writers(ino) => self.settle_pending(ino, entry),
            _ => Ok(()),
        })
    }

    fn volatile_state(&self) -> Handover {
        let (_, spilled) = self.session.inodes.counts();
        let mut handover =
            Handover { next_handle: self.session.handles.next(), spilled, ..Handover::default() };
        self.session.inodes.for_each(&mut |ino, known| {
            let of_node = |it: fn(&NodeState<Arc<dyn File>>) -> bool| {
                known.node.as_ref().is_some_and(|node| it(&node.state()))
            };
            handover.known.push(KnownInode {
                ino,
                lookups: known.lookups,
                orphan: known.orphan,
                linkable: of_node(|state| state.linkable),
                replaced: of_node(|state| state.replaced),
                place: known.place.clone(),
            });
        });
        self.session.handles.for_each(&mut |handle, file| {
            let OpenFlags { read, write, append, appends, sync, execute, .. } = file.flags;
            let (ino, passthrough) = (file.node.ino, file.passthrough);
            handover.open.push(OpenHandle {
                handle,
                ino,
                read,
                write,
                append,
                sync,
                passthrough,
                execute,
                appends,
            });
        });
        handover
    }

    fn take_over(&self, handover: Handover) -> StoreResult<()> {
        // There may have been commits.
        self.ends_move.store(true, Ordering::Release);
        self.session.inodes.restore_spilled(handover.spilled);
        let mut special = Vec::new();
        for KnownInode { ino, lookups, orphan, linkable, replaced, place } in handover.known {
            let mut known = InodeEntry::new(place, lookups);
            known.orphan = orphan;
            self.session.inodes.restore(ino, known);
            if linkable || replaced {
                special.push((ino, linkable, replaced));
            }
        }
        let mut files = Vec::new();
        for open in &handover.open {
            files.push((open.handle, self.reopen(open)?));
        }
        self.session.handles.restore(handover.next_handle, files);
        for (ino, linkable, replaced) in special {
            if let Some(node) = self.session.inodes.node(ino) {
                let mut state = node.state();
                (state.linkable, state.replaced) = (linkable, replaced);
            }
        }
        Ok(())
    }

    fn reopen(&self, open: &OpenHandle) -> StoreResult<OpenFile> {
        let node = self.node_of_open(open.ino)?;
        {
            let mut state = node.state();
            state.writers += u32::from(open.write);
            state.executing += u32::from(open.execute);
            if open.passthrough {
                state.passthrough += 1;
                state.straight_mappers += u32::from(open.read && open.write);
            } else {
                state.cached += 1;
                state.mappers += u32::from(open.read && open.write);
            }
        }
        let OpenHandle { read, write, append, appends, sync, execute, .. } = *open;
        let flags =
            OpenFlags { read, write, append, appends, sync, execute, ..OpenFlags::default() };
        Ok(OpenFile { node, flags, passthrough: open.passthrough })
    }

    /// The node of an inode that the state calls open, with one handle more.
    fn node_of_open(&self, ino: InodeId) -> StoreResult<Arc<OpenNode>> {
        let inode = self.read_inode(ino).map_err(|error| {
            StoreError::Invalid(format!("inode {ino}, which is open, cannot be read: {error}"))
        })?;
        let place = self.session.inodes.place(ino).map_err(invalid)?.unwrap_or(InodeLocation::Own);
        let node = self.session.inodes.open(ino, place).map_err(invalid)?;
        node.state().has_object = inode.content.is_object();
        Ok(node)
    }
}
