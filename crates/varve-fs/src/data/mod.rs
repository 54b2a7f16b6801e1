//! The bytes of files.
//!
//! ```text
//! None --write--> Inline --beyond 512 bytes--> Chunks --beyond the threshold--> Object
//! ```
//!
//! Contents only move to the right, except that cutting a file in the store to nothing makes it `None`. A
//! file of the store (`small`) is read and written under the lock of its row, so that bytes and size change
//! together. A large file (`large`, `migrate`) has its bytes in an object file, whose reads and writes take
//! no row lock and may go past this program altogether.

mod ahead;
mod allocate;
mod copy;
mod large;
mod limited;
mod migrate;
mod seek;
mod small;
mod unsettled;

pub(crate) use large::copy_stat;
pub(crate) use unsettled::Unsettled;

use std::sync::atomic::Ordering;

use bytes::Bytes;
use varve_namespace::attrs::{kill_set_id, set_id_to_lose};
use varve_namespace::xattr::{drop_capability, has_capability};
use varve_namespace::{Changes, Standing};
use varve_schema::{Content, Inode};
use varve_types::limits::FILE_BYTES_MAX;
use varve_types::{InodeId, Timestamp};
use varve_vfs::{FsError, FsResult, Gave, Handle, OpenFlags, SetIdTaken, Written};

use crate::fs::VarveFs;
use crate::held::Held;

/// Where to write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum At {
    Offset(u64),
    /// Wherever the file ends when its turn comes.
    End,
    /// The same, which is here as far as the front end knows.
    Append(u64),
}

impl At {
    /// What becomes of it by a handle with these flags.
    fn by(self, flags: OpenFlags) -> At {
        if flags.append { At::End } else { self }
    }

    /// The byte, of a file that ends before `end`. REQUIRES: it is no append any more ([`VarveFs::now_at`]).
    fn before(self, end: u64) -> u64 {
        match self {
            At::Offset(offset) => offset,
            At::End | At::Append(_) => end,
        }
    }
}

impl VarveFs {
    /// Where an append goes. While all that changes files comes through one front end, where that says: it alone knows of writes
    /// that are no appends though their file is open to append (RWF_NOAPPEND). REQUIRES: the file cannot change.
    fn now_at(&self, at: At) -> At {
        match at {
            At::Append(offset) if !self.ends_move.load(Ordering::Acquire) => At::Offset(offset),
            At::Append(_) => At::End,
            other => other,
        }
    }

    pub(crate) fn do_read(
        &self,
        ino: InodeId,
        handle: Handle,
        offset: u64,
        len: usize,
    ) -> FsResult<Bytes> {
        let file = self.session.handles.get(ino, handle)?;
        if !file.flags.read {
            return Err(FsError::BadHandle);
        }
        // Where the bytes are may change between the looks, also back and forth: by a write, a commit, a rollback.
        loop {
            let mut inode = self.read_inode(ino)?;
            let bytes = match inode.content {
                Content::Shared(_) => self.read_borrowed(&inode, offset, len)?,
                Content::Chunks => {
                    let held = self.hold(ino)?;
                    inode = held.inode.clone();
                    match inode.content {
                        Content::Shared(_) | Content::Object { .. } => None,
                        _ => {
                            let bytes = self.read_small(&inode, offset, len)?;
                            let dir = held.counted_in().filter(|_| offset == 0);
                            drop(held);
                            if let Some(dir) = dir {
                                self.fetch_ahead(dir, ino);
                            }
                            Some(bytes)
                        }
                    }
                }
                Content::Object { .. } => match self.find_object(&file.node)? {
                    Some(object) => {
                        let left = self.claimed_end(&inode).saturating_sub(offset);
                        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
                        let bytes = self.read_object(ino, object.as_ref(), offset, len)?;
                        if let Some(end) = self.early_end(&inode, offset, (bytes.len(), len))? {
                            return Err(self.ends_early(ino, end, inode.size));
                        }
                        Some(bytes)
                    }
                    None => None,
                },
                _ => Some(self.read_small(&inode, offset, len)?),
            };
            if let Some(bytes) = bytes {
                self.touch_atime(&inode);
                return Ok(bytes);
            }
        }
    }

    /// Writes `data`: of a large file fewer bytes of it if the storage below takes no more.
    pub(crate) fn do_write(
        &self,
        ino: InodeId,
        handle: Handle,
        at: At,
        data: &[u8],
        kill: bool,
    ) -> FsResult<Written> {
        let file = self.session.handles.get(ino, handle)?;
        if !file.flags.write {
            return Err(FsError::BadHandle);
        }
        let at = at.by(file.flags);
        if data.is_empty() {
            let offset = self.now_at(at).before(0);
            return Ok(Written { offset, bytes: 0, set_id: SetIdTaken::None });
        }
        let mut set_id = SetIdTaken::None;
        let (offset, bytes);
        if file.node.has_object() {
            self.check_writes(&self.read_inode(ino)?, file.flags, self.now_at(at))?;
            if kill {
                set_id = self.drop_set_id(ino)?;
            }
            let object = self.object_file(&file.node)?;
            (offset, bytes) = self.write_object(&file, object.as_ref(), at, data)?;
        } else {
            let mut held = self.hold(ino)?;
            self.own_bytes(&mut held)?;
            let at_least = self.now_at(at).before(held.inode.size);
            if at_least.saturating_add(data.len() as u64) > held.inode.size {
                held = self.and_directory(held)?;
                // It may have given up its locks meanwhile.
                self.own_bytes(&mut held)?;
            }
            self.check_writes(&held.inode, file.flags, self.now_at(at))?;
            let from = self.now_at(at).before(held.inode.size);
            let end = end_of(from, data.len() as u64)?;
            if kill {
                set_id = kill_set_id(&mut held.inode);
            }
            let in_object = held.inode.content.is_object();
            if in_object || end > self.superblock.large_file_threshold_bytes {
                if !in_object {
                    self.migrate(&mut held)?;
                }
                drop(held);
                if kill {
                    set_id = set_id.max(self.drop_set_id(ino)?);
                }
                let object = self.object_file(&file.node)?;
                (offset, bytes) = self.write_object(&file, object.as_ref(), at, data)?;
            } else {
                (offset, bytes) = (from, data.len());
                let now = self.now();
                let mut changes = Changes::new();
                if kill {
                    drop_capability(self, &mut changes, &mut held.inode)?;
                }
                self.write_small(&mut changes, &mut held.inode, from, data)?;
                changed(&mut held.inode, now);
                self.stage(&mut changes, &mut held)?;
                self.commit_call(&mut changes, Gave::Written(Written { offset, bytes, set_id }))?;
            }
        }
        if file.flags.sync {
            self.sync_file(&file, true)?;
        }
        Ok(Written { offset, bytes, set_id })
    }

    /// Cuts or extends the held file; part of the work may already be committed when it returns, the
    /// rest is in `changes` and in the held inode, which the caller stages.
    pub(crate) fn resize(
        &self,
        changes: &mut Changes,
        held: &mut Held<'_>,
        size: u64,
        now: Timestamp,
    ) -> FsResult<()> {
        if held.is_detached() {
            held.inode.size = size;
            changed(&mut held.inode, now);
            return Ok(());
        }
        if size == 0 && matches!(held.inode.content, Content::Shared(_)) {
            changes.release_source(&held.inode);
            held.inode.content = Content::None;
        }
        self.own_bytes(held)?;
        let in_object = held.inode.content.is_object();
        if in_object || size > self.superblock.large_file_threshold_bytes {
            if !in_object {
                self.migrate(held)?;
            }
            self.resize_object(held, size, now)?;
            // It has happened, however little room or limits leave.
            changes.reclaims_space = true;
            changes.standing = Standing::Happened;
        } else {
            if size == 0 || size < held.inode.size {
                changes.reclaims_space = true;
            }
            self.resize_small(changes, &mut held.inode, size)?;
        }
        changed(&mut held.inode, now);
        Ok(())
    }

    /// Clears the set-id bits and capabilities that a write takes, before bytes change that are not of the same batch. Says which bits
    /// there were.
    fn drop_set_id(&self, ino: InodeId) -> FsResult<SetIdTaken> {
        let loses = |inode: &Inode| match set_id_to_lose(inode) {
            0 => has_capability(self, inode),
            _ => Ok(true),
        };
        let mut inode = self.read_inode(ino)?;
        if !loses(&inode)? {
            return Ok(kill_set_id(&mut inode));
        }
        let mut held = self.hold(ino)?;
        // Somebody else may have cleared them.
        if !loses(&held.inode)? {
            return Ok(kill_set_id(&mut held.inode));
        }
        let set_id = kill_set_id(&mut held.inode);
        held.inode.times.ctime = self.now();
        let mut changes = Changes::new();
        drop_capability(self, &mut changes, &mut held.inode)?;
        // Takes no room worth counting, and what is written over needs none.
        changes.reclaims_space = true;
        self.stage(&mut changes, &mut held)?;
        self.commit(&mut changes)?;
        Ok(set_id)
    }

    pub(crate) fn do_fsync(&self, ino: InodeId, handle: Handle, data_only: bool) -> FsResult<()> {
        let file = self.session.handles.get(ino, handle)?;
        self.sync_file(&file, data_only)
    }

    /// Makes the bytes durable that went to objects which are still open for writing, or are being let go of.
    pub(crate) fn sync_open_objects(&self) -> FsResult<()> {
        self.sync_open_objects_of(|_| true)
    }

    /// The same of those files that are `concerned`, and of all that are being let go of.
    pub(crate) fn sync_open_objects_of(&self, concerned: impl Fn(InodeId) -> bool) -> FsResult<()> {
        let open = self.session.handles.written_objects();
        self.objects.sync_let_go()?;
        for node in open.into_iter().filter(|node| concerned(node.ino)) {
            match self.find_object(&node) {
                Ok(Some(object)) => self.objects.sync(node.ino, object.as_ref(), false)?,
                // It was closed meanwhile, and removed or taken back.
                Ok(None) | Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn sync_file(&self, file: &crate::open::OpenFile, data_only: bool) -> FsResult<()> {
        if file.node.has_object()
            && let Some(object) = self.find_object(&file.node)?
        {
            self.objects.sync(file.node.ino, object.as_ref(), data_only)?;
        }
        self.reaper.sync_and_drain()
    }
}

/// Sets the times that a change of the bytes sets.
pub(crate) fn changed(inode: &mut Inode, now: Timestamp) {
    inode.times.mtime = now;
    inode.times.ctime = now;
}

/// The end of a range, if no file is too small to hold it.
fn end_of(offset: u64, len: u64) -> FsResult<u64> {
    match offset.checked_add(len) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(end),
        _ => Err(FsError::FileTooLarge),
    }
}
