//! Files in objects.
//!
//! ```text
//! clean --open for writing, cut or extend--> dirty --last writer's release--> clean
//! ```
//!
//! Clean: the row has size, space and times, and all bytes it claims are durable before it. Dirty: the
//! object file has them, since the kernel may write to it without telling; the row's size is the one that
//! counts in its directory. A pending row names each dirty file that has a name, by which the mount after a
//! crash makes it clean.
//!
//! Before bytes are cut off, no clean row may be left that a power cut could bring back, or it would
//! claim bytes that are gone: the dirty row is synced first, once for each time the file is opened. So it is before the
//! kernel gets a file to write to whose writes are to be durable at once: what they append would be cut off.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use varve_env::{File, FileStat, OpenMode, is_no_space};
use varve_namespace::{Changes, Standing};
use varve_schema::{Body, Content, EntrySuffix, Inode, InodeLocation, RowKey};
use varve_types::{InodeId, Timestamp};
use varve_vfs::{FsError, FsResult};

use super::{At, end_of};
use crate::descriptors::OpenNode;
use crate::error;
use crate::fs::VarveFs;
use crate::held::Held;
use crate::objects::Stamp;
use crate::open::OpenFile;

/// The most bytes given back by one read.
const READ_BYTES_MAX: usize = 16 << 20;

impl VarveFs {
    pub(crate) fn object_error(&self, action: &str, ino: InodeId, error: io::Error) -> FsError {
        error::object(action, &self.objects.path(ino), error)
    }

    /// The object of an open inode, opened if it is not yet. REQUIRES: its bytes are in one.
    pub(crate) fn object_file(&self, node: &Arc<OpenNode>) -> FsResult<Arc<dyn File>> {
        self.find_object(node)?.ok_or(FsError::Stale)
    }

    /// The same; `None` if its bytes are in no object, as after a rollback. REQUIRES: no row is locked but its own.
    pub(crate) fn find_object(&self, node: &Arc<OpenNode>) -> FsResult<Option<Arc<dyn File>>> {
        loop {
            if let Some(object) = node.object() {
                return Ok(Some(object));
            }
            {
                // Else a commit could remove or replace what is opened before it is known as the node's.
                let _no_commit = self.objects.installing.read();
                match self.peek_inode(node.ino)?.map(|inode| inode.content) {
                    Some(Content::Object { .. }) => {
                        let open = || self.open_object(node.ino);
                        return self.objects.descriptors().object(node, open).map(Some);
                    }
                    Some(_) => return Ok(None),
                    None => {}
                }
            }
            // Who moves it is about to be done.
            drop(self.hold(node.ino)?);
        }
    }

    fn open_object(&self, ino: InodeId) -> FsResult<Arc<dyn File>> {
        let mode = if self.options.read_only { OpenMode::Read } else { OpenMode::ReadWrite };
        self.objects.open(ino, mode)
    }

    /// The object of any inode: the open one, or one opened for the purpose.
    pub(crate) fn any_object(&self, ino: InodeId) -> FsResult<Arc<dyn File>> {
        match self.session.inodes.node(ino) {
            Some(node) => self.object_file(&node),
            None => self.open_object(ino),
        }
    }

    /// What the object knows of itself.
    pub(crate) fn object_stat(&self, ino: InodeId) -> FsResult<FileStat> {
        match self.session.inodes.node(ino).and_then(|node| node.object()) {
            Some(object) => object.stat().map_err(|error| self.object_error("stat", ino, error)),
            None => self.objects.stat(ino),
        }
    }

    /// Sets the time of the last change of an object.
    pub(crate) fn set_object_time(
        &self,
        ino: InodeId,
        object: &dyn File,
        mtime: Timestamp,
    ) -> FsResult<()> {
        let fail = |error| self.object_error("set the times of", ino, error);
        object.set_times(None, Some(mtime)).map_err(fail)
    }

    /// The same, where the row is dirty or about to be, and reads it from there. What the storage below makes of it is no sign of a
    /// write.
    pub(crate) fn stamp_object(
        &self,
        ino: InodeId,
        object: &dyn File,
        mtime: Timestamp,
    ) -> FsResult<()> {
        self.set_object_time(ino, object, mtime)?;
        let fail = |error| self.object_error("stat", ino, error);
        let kept = object.stat().map_err(fail)?.modified;
        self.objects.stamps.note(ino, Stamp { mtime, kept });
        Ok(())
    }

    /// Whether `modified` is what the object of `inode` was stamped with, so that nobody has written since.
    pub(crate) fn is_stamp(&self, inode: &Inode, modified: Timestamp) -> bool {
        let mtime = inode.times.mtime;
        let stamp = Stamp { mtime, kept: modified };
        mtime == modified || self.objects.stamps.is_noted(inode.ino, stamp)
    }

    /// [`copy_stat`], where it is known whether the bytes changed.
    fn take_stat(&self, inode: &mut Inode, stat: &FileStat) {
        if self.is_stamp(inode, stat.modified) {
            inode.size = stat.len;
        } else {
            copy_stat(inode, stat);
        }
    }

    pub(super) fn read_object(
        &self,
        ino: InodeId,
        object: &dyn File,
        offset: u64,
        len: usize,
    ) -> FsResult<Bytes> {
        let fail = |error| self.object_error("read", ino, error);
        let mut buffer = vec![0; len.min(READ_BYTES_MAX)];
        let _no_commit = self.objects.installing.read();
        let len = object.read_at(&mut buffer, offset).map_err(fail)?;
        buffer.truncate(len);
        Ok(buffer.into())
    }

    /// Runs `attempt`, again as long as it finds no room and some can be got back: of files that were removed, or of their rows.
    pub(super) fn with_room<T>(&self, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match attempt() {
                Err(error) if is_no_space(&error) => {
                    let drained = self.reaper.drain_for_room().unwrap_or(false);
                    if !drained && !self.store.get_room().unwrap_or(false) {
                        return Err(error);
                    }
                }
                other => return other,
            }
        }
    }

    /// Writes to an object as much of `data` as the storage below takes, and says where and how many bytes that is.
    pub(super) fn write_object(
        &self,
        file: &OpenFile,
        object: &dyn File,
        at: At,
        data: &[u8],
    ) -> FsResult<(u64, usize)> {
        if self.accounts.has_quotas() {
            return self.write_counted(file, object, at, data);
        }
        let fail = |error| self.object_error("write", file.node.ino, error);
        let at = self.now_at(at);
        let appending = matches!(at, At::End).then(|| file.node.append.lock());
        let offset = match &appending {
            Some(_) => at.before(object.stat().map_err(fail)?.len),
            None => at.before(0),
        };
        end_of(offset, data.len() as u64)?;
        let write = || object.write_at(data, offset);
        Ok((offset, self.with_room(write).map_err(fail)?))
    }

    /// Cuts off what a power cut left in the object although the row that would have claimed it is gone. Says whether the
    /// object ends where it should: on a mount that may not change it, it need not ([`VarveFs::claimed_end`]).
    /// Fails if bytes that the row claims are missing: no crash loses them.
    pub(crate) fn trim_object(&self, inode: &Inode, object: &dyn File) -> FsResult<bool> {
        let Content::Object { dirty: false, .. } = inode.content else { return Ok(true) };
        let fail = |error| self.object_error("cut", inode.ino, error);
        let (len, size) = (object.stat().map_err(fail)?.len, inode.size);
        if len < size {
            return Err(self.ends_early(inode.ino, len, size));
        }
        if len > size && self.options.read_only {
            return Ok(false);
        }
        if len > size {
            object.set_len(size).map_err(fail)?;
        }
        Ok(true)
    }

    /// The error of a large file whose bytes end at `len`, below the size that its row claims.
    pub(crate) fn ends_early(&self, ino: InodeId, len: u64, size: u64) -> FsError {
        FsError::Storage(format!(
            "{} is damaged at offset {len}: it ends here, its row says {size} bytes; run `varve fsck`, \
             restore the file from a backup",
            self.objects.path(ino).display()
        ))
    }

    /// Where the bytes of `inode` ended when `read` of the `wanted` bytes from `offset` on were found, if that is before its row
    /// says: the row is clean and still says so. A file that somebody cuts meanwhile gets another row first.
    pub(super) fn early_end(
        &self,
        inode: &Inode,
        offset: u64,
        (read, wanted): (usize, usize),
    ) -> FsResult<Option<u64>> {
        let Content::Object { dirty: false, .. } = inode.content else { return Ok(None) };
        let claimed = inode.size.saturating_sub(offset);
        if read as u64 >= claimed.min(wanted.min(READ_BYTES_MAX) as u64) {
            return Ok(None);
        }
        let now = self.read_inode(inode.ino)?;
        let is_same = now.content == inode.content && now.size == inode.size;
        Ok(is_same.then_some(offset + read as u64))
    }

    /// Where the bytes of an object end for who reads it: at its end, but on a mount that may not change anything at that of
    /// what a clean row claims.
    pub(super) fn claimed_end(&self, inode: &Inode) -> u64 {
        match inode.content {
            Content::Object { dirty: false, .. } if self.options.read_only => inode.size,
            _ => u64::MAX,
        }
    }

    /// Makes a clean row dirty, before the object changes. Commits.
    pub(crate) fn make_dirty(&self, held: &mut Held<'_>, object: &dyn File) -> FsResult<()> {
        let ino = held.inode.ino;
        self.check_changed_elsewhere(&held.inode)?;
        let Content::Object { dirty: false, .. } = held.inode.content else { return Ok(()) };
        self.trim_object(&held.inode, object)?;
        self.stamp_object(ino, object, held.inode.times.mtime)?;
        held.inode.content = Content::Object { dirty: true, blocks: 0 };
        if let Some(node) = self.session.inodes.node(ino) {
            node.state().dirty_is_durable = false;
        }
        let mut changes = Changes::new();
        // Takes no room worth counting, and cutting a large file begins with it.
        changes.reclaims_space = true;
        self.stage(&mut changes, held)?;
        self.commit(&mut changes)
    }

    /// Makes it durable that a row is dirty, so that no power cut brings back the clean one before it, unless that is known
    /// to be. REQUIRES: the row is locked, and `node` is that of the inode, if it is open.
    pub(crate) fn make_dirty_durable(&self, node: Option<&Arc<OpenNode>>) -> FsResult<()> {
        if node.is_some_and(|node| node.state().dirty_is_durable) {
            return Ok(());
        }
        self.store.sync().map_err(error::store)?;
        if let Some(node) = node {
            node.state().dirty_is_durable = true;
        }
        Ok(())
    }

    /// Copies what the object knows into the held inode and makes it clean. The caller commits it with a
    /// batch that depends on external data.
    fn make_clean(&self, held: &mut Held<'_>, object: Arc<dyn File>) -> FsResult<()> {
        let inode = &mut held.inode;
        let stat = object.stat().map_err(|error| self.object_error("stat", inode.ino, error))?;
        self.take_stat(inode, &stat);
        inode.content = Content::Object { dirty: false, blocks: stat.allocated.div_ceil(512) };
        self.objects.claim(inode.ino, object);
        Ok(())
    }

    /// Copies size and times from the object of a dirty inode that is about to lose it.
    pub(crate) fn take_from_object(&self, inode: &mut Inode) -> FsResult<()> {
        if inode.content.is_dirty() {
            self.take_stat(inode, &self.object_stat(inode.ino)?);
        }
        Ok(())
    }

    /// Cuts or extends the held object. The caller stages the inode in a batch that depends on external
    /// data.
    pub(super) fn resize_object(
        &self,
        held: &mut Held<'_>,
        size: u64,
        now: Timestamp,
    ) -> FsResult<()> {
        let ino = held.inode.ino;
        let fail = |error| self.object_error("cut or extend", ino, error);
        let grows = size > self.size_now(&held.inode)?;
        if grows {
            self.check_growth(held, size)?;
        }
        let object = self.any_object(ino)?;
        self.make_dirty(held, object.as_ref())?;
        let node = self.session.inodes.node(ino);
        if size < object.stat().map_err(fail)?.len {
            self.make_dirty_durable(node.as_ref())?;
        }
        if grows {
            self.count_held(held, size)?;
        }
        object.set_len(size).map_err(fail)?;
        self.stamp_object(ino, object.as_ref(), now)?;
        let writers = node.as_ref().is_some_and(|node| node.state().writers > 0);
        if !writers && !self.objects.mapped.is_left(ino) {
            self.make_clean(held, object)?;
            self.objects.stamps.forget(ino);
            if let Some(node) = &node {
                node.state().dirty_is_durable = false;
            }
        }
        held.inode.size = size;
        Ok(())
    }

    /// Makes the row clean after the last writer's release, unless someone writes again already. `Busy` if someone does who opened
    /// the file before a daemon died.
    pub(crate) fn settle_object(&self, ino: InodeId) -> FsResult<()> {
        let mut held = self.hold_counted(ino)?;
        // Not that of the release: if its last handle ended meanwhile, whoever opened the file since has another.
        let node = self.session.inodes.node(ino);
        if node.as_ref().is_some_and(|node| node.state().writers > 0) {
            return Ok(());
        }
        if !held.inode.content.is_dirty() || held.inode.nlink == 0 {
            return Ok(());
        }
        if self.is_left_written(ino)? {
            return Err(FsError::Busy);
        }
        self.commit_clean(&mut held, self.any_object(ino)?)?;
        if let Some(node) = node {
            node.state().dirty_is_durable = false;
        }
        Ok(())
    }

    /// Makes the row of a file clean that was being written when an earlier mount died, found in the entry row
    /// of `entry` or in its own. False if somebody still writes to it, or if it cannot be now: that is tried again later.
    pub(crate) fn settle_left(
        &self,
        ino: InodeId,
        entry: Option<(InodeId, EntrySuffix)>,
    ) -> FsResult<bool> {
        let Some(place) = self.place_left(ino, entry)? else { return Ok(true) };
        self.session.inodes.note_lookup(ino, place)?;
        let settled = match self.settle_object(ino) {
            // Without a row there is nothing to bring up to date.
            Ok(()) | Err(FsError::Stale) => Ok(true),
            Err(why) => self.settle_left_later(ino, &why).map(|()| false),
        };
        self.session.inodes.forget(ino, 1)?;
        settled
    }

    fn settle_left_later(&self, ino: InodeId, why: &FsError) -> FsResult<()> {
        if !matches!(why, FsError::Busy) {
            log::warn!("the size that counts for inode {ino} may be old: {why}");
        }
        if self.serial.is_some() {
            // The commit of a serializable view brings up to date what it must.
            self.not_again(why);
            return Ok(());
        }
        self.settle_later(ino, why)
    }

    /// Where the row of a large file is whose pending row names `entry`.
    pub(crate) fn place_left(
        &self,
        ino: InodeId,
        entry: Option<(InodeId, EntrySuffix)>,
    ) -> FsResult<Option<InodeLocation>> {
        let Some((dir, suffix)) = entry else { return Ok(Some(InodeLocation::Own)) };
        let key = RowKey::entry(dir, suffix);
        let row = self.entry_row(key)?;
        let mut names = row.names().iter();
        let found =
            names.find(|named| matches!(&named.body, Body::Inline(inode) if inode.ino == ino));
        Ok(found.map(|named| InodeLocation::Entry { key, slot: named.slot }))
    }

    fn commit_clean(&self, held: &mut Held<'_>, object: Arc<dyn File>) -> FsResult<()> {
        self.make_clean(held, object)?;
        let mut changes = Changes::new();
        changes.standing = Standing::Happened;
        changes.settles = true;
        changes.depends_on_external = true;
        self.stage(&mut changes, held)?;
        self.commit(&mut changes)?;
        self.objects.stamps.forget(held.inode.ino);
        Ok(())
    }
}

/// Copies size and times. The time of the last change of attributes follows only if the bytes changed
/// since the row noted their time, because that time can be set to anything.
pub(crate) fn copy_stat(inode: &mut Inode, stat: &FileStat) {
    inode.size = stat.len;
    if stat.modified != inode.times.mtime {
        inode.times.mtime = stat.modified;
        inode.times.ctime = inode.times.ctime.max(stat.modified);
    }
}
