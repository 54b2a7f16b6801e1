//! Runs operations on a file system as a kernel would.
//!
//! 1. [`Session`] looks up the names of an operation from the root down.
//! 2. It makes the call and records the outcome and the attributes of the inodes that it watches.
//! 3. It takes back every lookup. Handles stay open in slots.
//!
//! Invariant: each lookup is taken back.

use std::collections::HashMap;

use varve_types::{Errno, FileName, InodeId};
use varve_vfs::{
    Attr, FsError, FsResult, Handle, OpenFlags, Opened, Position, SeekFrom, SetAttr, SetTime, Vfs,
};

use super::op::{Op, Slot, TreePath};
use super::outcome::{Answer, AttrView, Listed, Outcome, Touched};
use crate::rng::Rng;

/// The most entries a listing may have before it counts as endless.
const LISTING_ENTRIES_MAX: usize = 100_000;

/// One user of one file system.
#[derive(Debug, Default)]
pub struct Session {
    slots: HashMap<Slot, (InodeId, Handle)>,
    seen: HashMap<InodeId, usize>,
    ops: u64,
    refusal: Option<String>,
    ignores_removed: bool,
}

/// The lookups and the watched inodes of one operation.
struct Call<'a> {
    fs: &'a dyn Vfs,
    held: Vec<InodeId>,
    watched: Vec<(InodeId, Option<Attr>)>,
    /// Whether to look at targets before the operation. Every fourth operation does not, so that
    /// objects which nobody has looked up are operated on too.
    looks_ahead: bool,
}

impl Call<'_> {
    fn lookup(&mut self, dir: InodeId, name: &[u8]) -> FsResult<InodeId> {
        let entry = self.fs.lookup(dir, FileName::new(name)?)?;
        Ok(self.hold(entry.attr.ino))
    }

    fn hold(&mut self, ino: InodeId) -> InodeId {
        self.held.push(ino);
        ino
    }

    fn watch(&mut self, ino: InodeId) -> InodeId {
        self.watched.push((ino, self.fs.getattr(ino).ok()));
        ino
    }

    fn walk(&mut self, names: &[Vec<u8>]) -> FsResult<InodeId> {
        names.iter().try_fold(InodeId::ROOT, |dir, name| self.lookup(dir, name))
    }

    /// Returns the object a path leads to, watched.
    fn target(&mut self, path: &TreePath) -> FsResult<InodeId> {
        let ino = self.walk(&path.0)?;
        Ok(self.watch(ino))
    }

    /// Returns the directory and the last name of a path, the directory and what the name stands for watched.
    fn place<'p>(&mut self, path: &'p TreePath) -> FsResult<(InodeId, FileName<'p>)> {
        let (dir, name) = path.split().ok_or(FsError::Invalid("the root has no name"))?;
        let dir = self.walk(dir)?;
        self.watch(dir);
        if self.looks_ahead
            && let Ok(ino) = self.lookup(dir, name)
        {
            self.watch(ino);
        }
        Ok((dir, FileName::new(name)?))
    }
}

impl Session {
    /// Runs one operation. One that finds no room leaves no trace here either: whoever compares sessions need not have run it in both.
    pub fn apply(&mut self, fs: &dyn Vfs, op: &Op) -> Outcome {
        let seen = self.seen.len();
        let outcome = self.apply_counted(fs, op);
        if outcome.answer == Err(Errno::NoSpace) {
            self.ops -= 1;
            self.seen.retain(|_, number| *number < seen);
        }
        outcome
    }

    fn apply_counted(&mut self, fs: &dyn Vfs, op: &Op) -> Outcome {
        self.ops += 1;
        let looks_ahead = !self.ops.is_multiple_of(4);
        let mut call = Call { fs, held: Vec::new(), watched: Vec::new(), looks_ahead };
        self.refusal = None;
        let answer = self.run(&mut call, op).map_err(|error| {
            self.refusal = Some(error.to_string());
            error.errno()
        });
        let touched = std::mem::take(&mut call.watched)
            .into_iter()
            .map(|(ino, before)| self.touched(fs, ino, before, op))
            .collect();
        for ino in call.held {
            fs.forget(ino, 1);
        }
        Outcome { answer, touched }
    }

    /// Takes objects without names for unknown.
    pub(super) fn ignore_removed(&mut self) {
        self.ignores_removed = true;
    }

    /// Ends all handles, for instance before a remount.
    pub fn release_all(&mut self, fs: &dyn Vfs) -> FsResult<()> {
        let mut slots: Vec<_> = self.slots.drain().collect();
        slots.sort_unstable();
        for (_, (ino, handle)) in slots {
            fs.release(ino, handle)?;
            fs.forget(ino, 1);
        }
        Ok(())
    }

    /// Returns what the last operation said if it was refused.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Returns the inode that is open in a slot.
    pub fn inode(&self, slot: Slot) -> Option<InodeId> {
        self.slots.get(&slot).map(|(ino, _)| *ino)
    }

    /// Returns the inodes that are open in slots.
    pub fn inodes(&self) -> Vec<InodeId> {
        self.slots.values().map(|(ino, _)| *ino).collect()
    }

    /// Forgets all handles without ending them: the file system died.
    pub fn abandon(&mut self) {
        self.slots.clear();
    }

    fn touched(&mut self, fs: &dyn Vfs, ino: InodeId, before: Option<Attr>, op: &Op) -> Touched {
        let is_ignored = |attr: &Attr| self.ignores_removed && attr.nlink == 0;
        let after = fs.getattr(ino).ok().filter(|attr| !is_ignored(attr));
        let moved = |time: fn(&Attr) -> varve_types::Timestamp| match (&before, &after) {
            // Which times an allocation moves differs between file systems.
            _ if matches!(op, Op::Fallocate { .. }) => false,
            (Some(before), Some(after)) => time(before) != time(after),
            _ => false,
        };
        Touched {
            mtime_moved: moved(|attr| attr.mtime),
            ctime_moved: moved(|attr| attr.ctime),
            after: after.map(|attr| self.view(&attr)),
        }
    }

    fn number(&mut self, ino: InodeId) -> usize {
        let next = self.seen.len();
        *self.seen.entry(ino).or_insert(next)
    }

    fn view(&mut self, attr: &Attr) -> AttrView {
        AttrView {
            inode: self.number(attr.ino),
            kind: attr.kind,
            perm: attr.perm,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            size: attr.size,
        }
    }

    fn shown(&mut self, attr: &Attr) -> Answer {
        Answer::Attr(self.view(attr), None, None)
    }

    fn run(&mut self, call: &mut Call<'_>, op: &Op) -> FsResult<Answer> {
        if let Some(slot) = op.open_slot() {
            return match self.slots.get(&slot).copied() {
                Some((ino, handle)) => self.run_on_handle(call, op, slot, (ino, handle)),
                None => Ok(Answer::Skipped),
            };
        }
        match op {
            Op::Sync => call.fs.sync().map(|()| Answer::Done),
            Op::Getattr { .. }
            | Op::SetAttr { .. }
            | Op::Readlink { .. }
            | Op::Readdir { .. }
            | Op::Access { .. }
            | Op::SetXattr { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::GetFlags { .. }
            | Op::SetFlags { .. }
            | Op::FsyncDir { .. } => self.run_on_object(call, op),
            _ => self.run_on_name(call, op),
        }
    }

    fn run_on_name(&mut self, call: &mut Call<'_>, op: &Op) -> FsResult<Answer> {
        let fs = call.fs;
        let entry = match op {
            Op::Mknod { caller, path, mode, rdev } => {
                let (dir, name) = call.place(path)?;
                fs.mknod(*caller, dir, name, *mode, *rdev)?
            }
            Op::Mkdir { caller, path, perm } => {
                let (dir, name) = call.place(path)?;
                fs.mkdir(*caller, dir, name, *perm)?
            }
            Op::Symlink { caller, path, target } => {
                let (dir, name) = call.place(path)?;
                fs.symlink(*caller, dir, name, target)?
            }
            Op::Link { from, to } => {
                let ino = call.target(from)?;
                let (dir, name) = call.place(to)?;
                fs.link(ino, dir, name)?
            }
            Op::Unlink { path } => {
                let (dir, name) = call.place(path)?;
                return fs.unlink(dir, name).map(|()| Answer::Done);
            }
            Op::Rmdir { path } => {
                let (dir, name) = call.place(path)?;
                return fs.rmdir(dir, name).map(|()| Answer::Done);
            }
            Op::Rename { from, to, mode } => {
                let (dir, name) = call.place(from)?;
                let (new_dir, new_name) = call.place(to)?;
                return fs.rename(dir, name, new_dir, new_name, *mode).map(|()| Answer::Done);
            }
            Op::Clone { from, to } => {
                let (dir, name) = call.place(from)?;
                let (new_dir, new_name) = call.place(to)?;
                fs.clone_tree(dir, name, new_dir, new_name)?
            }
            Op::Create { caller, path, perm, flags, slot } => {
                let (dir, name) = call.place(path)?;
                let (entry, opened) = fs.create(*caller, dir, name, *perm, *flags)?;
                self.occupy(fs, *slot, entry.attr.ino, opened)?;
                return Ok(self.shown(&entry.attr));
            }
            Op::Tmpfile { caller, dir, perm, flags, slot } => {
                let dir = call.target(dir)?;
                let (entry, opened) = fs.tmpfile(*caller, dir, *perm, *flags)?;
                self.occupy(fs, *slot, entry.attr.ino, opened)?;
                return Ok(self.shown(&entry.attr));
            }
            Op::Open { path, flags, slot } => {
                let ino = call.target(path)?;
                let opened = fs.open(ino, *flags)?;
                // The slot takes over one lookup.
                call.held.retain(|held| *held != ino);
                self.occupy(fs, *slot, ino, opened)?;
                return Ok(Answer::Done);
            }
            _ => return Ok(Answer::Skipped),
        };
        call.hold(entry.attr.ino);
        Ok(self.shown(&entry.attr))
    }

    /// Puts a handle and one lookup of its inode into a slot.
    fn occupy(&mut self, fs: &dyn Vfs, slot: Slot, ino: InodeId, opened: Opened) -> FsResult<()> {
        if let Some((old, handle)) = self.slots.insert(slot, (ino, opened.handle)) {
            fs.release(old, handle)?;
            fs.forget(old, 1);
        }
        Ok(())
    }

    fn run_on_object(&mut self, call: &mut Call<'_>, op: &Op) -> FsResult<Answer> {
        let fs = call.fs;
        match op {
            Op::Getattr { path } => {
                let ino = call.target(path)?;
                let attr = fs.getattr(ino)?;
                Ok(self.shown(&attr))
            }
            Op::SetAttr { caller, path, set } => {
                let ino = call.target(path)?;
                let attr = fs.setattr(*caller, ino, *set)?;
                Ok(self.shown_after_set(&attr, set))
            }
            Op::Readlink { path } => {
                let ino = call.target(path)?;
                Ok(Answer::Bytes(fs.readlink(ino)?.to_vec()))
            }
            Op::Readdir { path, page, with_attr } => {
                let ino = call.target(path)?;
                self.list(fs, ino, *page, *with_attr)
            }
            Op::Access { caller, path, mode } => {
                let ino = call.target(path)?;
                fs.access(*caller, &[], ino, *mode).map(|()| Answer::Done)
            }
            Op::SetXattr { path, name, len, fill, mode } => {
                let ino = call.target(path)?;
                fs.setxattr(ino, name, &pattern(*fill, *len), *mode).map(|()| Answer::Done)
            }
            Op::GetXattr { path, name } => {
                let ino = call.target(path)?;
                Ok(Answer::Bytes(fs.getxattr(ino, name)?.to_vec()))
            }
            Op::ListXattr { path } => {
                let ino = call.target(path)?;
                Ok(Answer::Names(split_list(&fs.listxattr(ino)?)))
            }
            Op::RemoveXattr { path, name } => {
                let ino = call.target(path)?;
                fs.removexattr(ino, name).map(|()| Answer::Done)
            }
            Op::GetFlags { path } => {
                let ino = call.target(path)?;
                Ok(Answer::Flags(fs.file_flags(ino)?))
            }
            Op::SetFlags { path, flags } => {
                let ino = call.target(path)?;
                fs.set_file_flags(ino, *flags).map(|()| Answer::Done)
            }
            Op::FsyncDir { path } => {
                let ino = call.target(path)?;
                fs.fsync_dir(ino).map(|()| Answer::Done)
            }
            _ => Ok(Answer::Skipped),
        }
    }

    fn run_on_handle(
        &mut self,
        call: &mut Call<'_>,
        op: &Op,
        slot: Slot,
        (ino, handle): (InodeId, Handle),
    ) -> FsResult<Answer> {
        let fs = call.fs;
        call.watch(ino);
        match op {
            Op::SlotGetattr { .. } => {
                let attr = fs.getattr(ino)?;
                Ok(self.shown(&attr))
            }
            Op::SlotSetAttr { caller, set, .. } => {
                let attr = fs.setattr(*caller, ino, *set)?;
                Ok(self.shown_after_set(&attr, set))
            }
            Op::SlotLink { to, .. } => {
                let (dir, name) = call.place(to)?;
                let attr = fs.link(ino, dir, name)?.attr;
                call.hold(attr.ino);
                Ok(self.shown(&attr))
            }
            Op::Read { offset, len, .. } => {
                Ok(Answer::Bytes(fs.read(ino, handle, *offset, *len)?.to_vec()))
            }
            Op::Write { offset, len, fill, kill_set_id, .. } => {
                let data = pattern(*fill, *len);
                Ok(Answer::Count(fs.write(ino, handle, *offset, &data, *kill_set_id)?.bytes))
            }
            Op::CopyRange { from, from_offset, offset, len, .. } => {
                let Some((source, open)) = self.slots.get(from).copied() else {
                    return Ok(Answer::Skipped);
                };
                let from = Position { ino: source, handle: open, offset: *from_offset };
                let to = Position { ino, handle, offset: *offset };
                Ok(Answer::Count(fs.copy_range(from, to, *len)? as usize))
            }
            Op::Fallocate { mode, offset, len, .. } => {
                fs.fallocate(ino, handle, *mode, *offset, *len).map(|()| Answer::Done)
            }
            Op::Seek { offset, what, .. } => seek(fs, ino, handle, *offset, *what),
            Op::Fsync { data_only, .. } => fs.fsync(ino, handle, *data_only).map(|()| Answer::Done),
            Op::Release { .. } => {
                self.slots.remove(&slot);
                fs.release(ino, handle)?;
                call.hold(ino);
                Ok(Answer::Done)
            }
            _ => Ok(Answer::Skipped),
        }
    }

    /// Attributes, with the times that were set to fixed values.
    fn shown_after_set(&mut self, attr: &Attr, set: &SetAttr) -> Answer {
        let fixed = |set: Option<SetTime>, got| matches!(set, Some(SetTime::To(_))).then_some(got);
        Answer::Attr(self.view(attr), fixed(set.atime, attr.atime), fixed(set.mtime, attr.mtime))
    }

    /// Lists a directory in pages of `page` entries.
    fn list(
        &mut self,
        fs: &dyn Vfs,
        ino: InodeId,
        page: usize,
        with_attr: bool,
    ) -> FsResult<Answer> {
        let mut found = Vec::new();
        let (mut cookie, mut cookies_valid) = (0, true);
        loop {
            let (mut taken, mut refused) = (0, false);
            fs.readdir(ino, cookie, with_attr, &mut |entry| {
                if taken == page {
                    refused = true;
                    return false;
                }
                taken += 1;
                cookie = entry.cookie;
                cookies_valid &= (1..1 << 63).contains(&entry.cookie);
                found.push((entry.name.to_vec(), entry.kind, entry.ino, entry.attr));
                true
            })?;
            if !refused || found.len() > LISTING_ENTRIES_MAX {
                break;
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let mut listing = Vec::new();
        for (name, kind, ino, attr) in found {
            if attr.is_some() {
                fs.forget(ino, 1);
            }
            let attr = attr.map(|attr| self.view(&attr));
            listing.push(Listed { name, kind, inode: self.number(ino), attr });
        }
        Ok(Answer::Listing(listing, cookies_valid))
    }
}

/// The bytes an operation writes.
pub fn pattern(fill: u64, len: usize) -> Vec<u8> {
    Rng::new(fill).bytes(len)
}

/// Returns the names in an answer of listxattr, sorted.
pub(super) fn split_list(list: &[u8]) -> Vec<Vec<u8>> {
    let mut names: Vec<_> =
        list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect();
    names.sort();
    names
}

/// All bytes of a regular file.
pub(crate) fn read_all(fs: &dyn Vfs, ino: InodeId) -> FsResult<Vec<u8>> {
    const STEP_BYTES: usize = 1 << 20;
    let handle = fs.open(ino, OpenFlags { read: true, ..OpenFlags::default() })?.handle;
    let mut bytes = Vec::new();
    let result = loop {
        match fs.read(ino, handle, bytes.len() as u64, STEP_BYTES) {
            Ok(part) => bytes.extend_from_slice(&part),
            Err(error) => break Err(error),
        }
        if bytes.len() % STEP_BYTES != 0 || bytes.is_empty() {
            break Ok(());
        }
        if bytes.len() as u64 >= fs.getattr(ino)?.size {
            break Ok(());
        }
    };
    fs.release(ino, handle)?;
    result.map(|()| bytes)
}

/// Seeks, and checks the answer by the bytes. File systems may have holes of different units, but a hole and
/// everything before the data found must read as zeros.
fn seek(
    fs: &dyn Vfs,
    ino: InodeId,
    handle: Handle,
    offset: u64,
    what: SeekFrom,
) -> FsResult<Answer> {
    let bytes = read_all(fs, ino)?;
    let size = bytes.len() as u64;
    let zero = |from: u64, to: u64| {
        bytes.get(from as usize..to as usize).is_some_and(|part| part.iter().all(|byte| *byte == 0))
    };
    let allowed = match (fs.lseek(ino, handle, offset, what), what) {
        (Err(error), _) if offset >= size => return Err(error),
        (Ok(_), _) if offset >= size => false,
        (Ok(at), SeekFrom::Data) => at >= offset && at < size && zero(offset, at),
        (Ok(at), SeekFrom::Hole) => at >= offset && at <= size && (at == size || zero(at, at + 1)),
        (Err(FsError::NoSuchOffset), SeekFrom::Data) => zero(offset, size),
        (Err(error), _) => return Err(error),
    };
    Ok(Answer::SeekAllowed(allowed))
}
