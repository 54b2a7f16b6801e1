//! Handles: open, create, tmpfile, release, and passthrough.
//!
//! A handle is *passthrough* when its bytes live in an object whose descriptor the front end may hand
//! to the kernel, and *cached* otherwise. The kernel refuses to mix the two on one inode, so the first
//! handle decides for all until the last is released. What the kernel writes it does not tell, so an object that a
//! view sees is passed through to writers only when all of it is kept.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use varve_env::{File, OpenMode};
use varve_namespace::attrs::{SET_GID, SET_UID};
use varve_namespace::flags::check_opens;
use varve_namespace::{Changes, Created, Decision, create_unnamed};
use varve_schema::{FileKind, InodeLocation, RowKey};
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, Entry, FsError, FsResult, Gave, Handle, OpenFlags, Opened};

use crate::descriptors::OpenNode;
use crate::error;
use crate::fs::VarveFs;
use crate::held::Held;

/// An open file.
pub(crate) type OpenFile = varve_session::OpenFile<Arc<dyn File>>;

impl VarveFs {
    pub(crate) fn do_open(&self, ino: InodeId, flags: OpenFlags) -> FsResult<Opened> {
        // For an open that writes the kernel has asked whether a program is executed from the file, and it knows best: it tells us of
        // the end of one when that is over. For an open that only reads it asks after this call, when the program would have lost
        // its text.
        self.open_asking(ino, flags, !flags.write)
    }

    /// Opens a file. One from which a program is executed is not cut if it is `asked` here.
    fn open_asking(&self, ino: InodeId, flags: OpenFlags, asked: bool) -> FsResult<Opened> {
        if flags.write || flags.truncate {
            self.writable()?;
        }
        let mut held = if flags.truncate { self.hold_counted(ino)? } else { self.hold(ino)? };
        match held.inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsDirectory),
            _ => return Err(FsError::Invalid("only regular files are opened here")),
        }
        check_opens(&held.inode, flags)?;
        self.revive(&mut held)?;
        let node = self.session.inodes.open(ino, held.place())?;
        if held.inode.nlink == 0 {
            // One that was kept over a restart is not known as one yet.
            self.session.inodes.mark_orphan(ino, true)?;
        }
        let was_dirty = held.inode.content.is_dirty();
        let keeps_text = asked && flags.truncate && node.state().executing > 0;
        let opened = match keeps_text {
            true => Err(FsError::TextBusy),
            false => self.open_held(&mut held, &node, flags),
        };
        if opened.is_err() {
            node.state().handles -= 1;
            let may_be_dirty = flags.write || flags.truncate;
            let made_dirty = may_be_dirty && !was_dirty && held.inode.content.is_object();
            drop(held);
            if made_dirty {
                // For a writer who does not come.
                self.settle_unwritten(ino);
            }
            // The last lookup may have been forgotten meanwhile, and left the rows of an orphan to us.
            self.let_go(ino).unwrap_or_else(|error| log::warn!("orphan {ino} stays: {error}"));
        }
        opened
    }

    /// Opens the held file, whose node has the new handle counted already.
    fn open_held(
        &self,
        held: &mut Held<'_>,
        node: &Arc<OpenNode>,
        flags: OpenFlags,
    ) -> FsResult<Opened> {
        // The kernel has all that are open straight share one object: it would write to the one that is no longer the file's.
        if (flags.write || flags.truncate) && node.state().replaced {
            return Err(FsError::TextBusy);
        }
        if flags.write && !flags.truncate {
            self.own_bytes(held)?;
        }
        if flags.truncate {
            let mut changes = Changes::new();
            let now = self.now();
            self.resize(&mut changes, held, 0, now)?;
            if held.inode.content.is_object() {
                changes.depends_on_external = true;
            }
            self.stage(&mut changes, held)?;
            self.commit_call(&mut changes, Gave::Inode(held.inode.ino))?;
        }
        if flags.write {
            self.begin(held, node);
        }
        let has_descriptor = self.may_go_straight(held, node, flags)?;
        let opened = self.add_handle(node, flags, has_descriptor);
        Ok(if flags.read { self.note_reader(held, opened) } else { opened })
    }

    /// Gets the object of the held file ready for a handle, if it is in one; whether its descriptor may be given to the kernel.
    fn may_go_straight(
        &self,
        held: &mut Held<'_>,
        node: &Arc<OpenNode>,
        flags: OpenFlags,
    ) -> FsResult<bool> {
        if !held.inode.content.is_object() {
            return Ok(false);
        }
        self.check_changed_elsewhere(&held.inode)?;
        let object = self.object_file(node)?;
        let ends_right = self.trim_object(&held.inode, object.as_ref())?;
        if flags.write {
            self.make_dirty(held, object.as_ref())?;
        }
        // Where limits hold every write must pass here.
        let limited = self.accounts.limits(held.counted_in())?;
        // So must writes to a file with set-id bits: past us the kernel judges them by the rights of the opener.
        let append_only = held.inode.flags.append_only();
        let watched = limited || append_only || held.inode.perm & (SET_UID | SET_GID) != 0;
        let straight = node.state().passthrough > 0;
        if straight && append_only && flags.read && flags.write {
            // What it maps it could change anywhere.
            return Err(FsError::TextBusy);
        }
        let has_descriptor = object.fd().is_some()
            && ends_right
            && (straight || !watched && self.may_pass(held.inode.ino, object.as_ref(), flags)?);
        if straight && flags.write {
            self.objects.save_all(held.inode.ino)?;
        }
        if has_descriptor && flags.write && flags.sync {
            // Of what is written straight, and durable with the write, nobody tells us. That no clean row can come back is not
            // enough: none may be durable yet that leads to a file which has begun as an object.
            self.store.sync().map_err(error::store)?;
            node.state().dirty_is_durable = true;
        }
        Ok(has_descriptor)
    }

    /// Whether an object that nobody has open straight may be: one that views see may only be read so, unless all of it
    /// is kept, as the kernel does not tell what it writes. On a device that is nearly full who writes passes here, where room can be
    /// got back for him.
    fn may_pass(&self, ino: InodeId, object: &dyn File, flags: OpenFlags) -> FsResult<bool> {
        if !self.options.passthrough || !flags.write {
            return Ok(self.options.passthrough);
        }
        Ok(!self.store.is_room_scarce() && self.objects.is_free(ino, object)?)
    }

    /// Sees to the time of last access of the held file, which was opened for reading. The kernel's own reads
    /// of an object pass us by, so the open stands for them.
    fn note_reader(&self, held: &mut Held<'_>, opened: Opened) -> Opened {
        let due = match self.attr(&held.inode) {
            Ok(attr) if attr.size > 0 => self.atime_due(attr.atime, attr.mtime, attr.ctime),
            _ => None,
        };
        let Some(now) = due else { return opened };
        if opened.passthrough {
            held.inode.times.atime = now;
            if let Err(error) = self.write_back(held) {
                log::debug!("the time of last access of inode {} stays: {error}", held.inode.ino);
            }
        }
        Opened { reread: !opened.passthrough, ..opened }
    }

    /// Gives out a handle that is counted in `node.handles` already.
    pub(crate) fn add_handle(
        &self,
        node: &Arc<OpenNode>,
        flags: OpenFlags,
        has_descriptor: bool,
    ) -> Opened {
        node.state().writers += u32::from(flags.write);
        self.add_counted_handle(node, flags, has_descriptor)
    }

    /// The same of one that is counted among the writers, too, if it is one.
    fn add_counted_handle(
        &self,
        node: &Arc<OpenNode>,
        flags: OpenFlags,
        has_descriptor: bool,
    ) -> Opened {
        let mut state = node.state();
        let passthrough = self.options.passthrough && has_descriptor && state.cached == 0;
        if passthrough {
            state.passthrough += 1;
            state.straight_mappers += u32::from(flags.read && flags.write);
        } else {
            state.cached += 1;
            state.mappers += u32::from(flags.read && flags.write);
        }
        state.executing += u32::from(flags.execute);
        drop(state);
        let handle =
            self.session.handles.insert(OpenFile { node: Arc::clone(node), flags, passthrough });
        Opened { handle, passthrough, reread: false }
    }

    pub(crate) fn do_create(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        loop {
            let made = match flags.write && self.begins_large(parent) {
                true => self.make_large(caller, parent, name, perm, flags),
                false => self.make_and_open(caller, parent, name, perm, flags),
            };
            match made {
                Err(FsError::Exists) if !flags.exclusive => {}
                made => return made,
            }
            let entry = match self.do_lookup(parent, name) {
                Err(FsError::NotFound) => continue,
                found => found?,
            };
            // Nobody else knew of a file to ask about.
            match self.open_asking(entry.attr.ino, flags, true) {
                Ok(opened) => {
                    let attr = self.attr(&self.read_inode(entry.attr.ino)?)?;
                    return Ok((Entry::of(attr), opened));
                }
                Err(error) => {
                    self.do_forget(entry.attr.ino, 1)?;
                    if !matches!(error, FsError::Stale) {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Makes a file that is expected to grow large, and opens it for writing. Once it has its name nothing makes this fail: where
    /// it cannot begin as an object, it begins small.
    fn make_large(
        &self,
        caller: Caller,
        parent: InodeId,
        name: FileName<'_>,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        let (entry, node) = self.make_and_count(caller, parent, name, perm)?;
        let ino = entry.attr.ino;
        let grow = |held: &mut Held<'_>| {
            // The writer is counted, so that the object is dirty from the first on.
            self.begin(held, &node);
            let straight = self.may_go_straight(held, &node, flags);
            straight.unwrap_or_else(|error| self.not_straight(ino, &error))
        };
        let mut held = self.hold(ino);
        let has_descriptor = match &mut held {
            Ok(held) => grow(held),
            Err(error) => self.not_straight(ino, error),
        };
        let opened = self.add_counted_handle(&node, flags, has_descriptor);
        let attr = held.and_then(|held| self.attr(&held.inode)).unwrap_or(entry.attr);
        Ok((Entry::of(attr), opened))
    }

    /// Notes why the kernel does not get a new file to write to; that it does not.
    fn not_straight(&self, ino: InodeId, why: &FsError) -> bool {
        self.not_again(why);
        log::debug!("inode {ino} is not written straight: {why}");
        false
    }

    pub(crate) fn do_tmpfile(
        &self,
        caller: Caller,
        parent: InodeId,
        perm: u32,
        flags: OpenFlags,
    ) -> FsResult<(Entry, Opened)> {
        self.writable()?;
        if parent.is_synthetic() {
            return Err(FsError::NotPermitted);
        }
        // A commit takes all rows of a view under their locks.
        let keys = [RowKey::inode(parent)];
        let mut decision = Decision::default();
        let (_locks, created) = self.decide(&keys, &mut decision, |rows, decision, now| {
            create_unnamed(rows, &mut decision.changes, caller, parent, perm, now)
        })?;
        let Created { inode, .. } = created;
        self.commit_call(&mut decision.changes, Gave::Inode(inode.ino))?;
        let node = self.session.inodes.note_new_and_open(inode.ino, InodeLocation::Own);
        self.session.inodes.mark_orphan(inode.ino, true)?;
        node.state().linkable = !flags.exclusive;
        let opened = self.add_handle(&node, flags, false);
        Ok((Entry::of(self.attr(&inode)?), opened))
    }

    pub(crate) fn do_with_passthrough(
        &self,
        handle: Handle,
        take: &mut dyn FnMut(BorrowedFd<'_>),
    ) -> FsResult<()> {
        let file = self.session.handles.any(handle)?;
        let refused = || FsError::NotSupported("passthrough for this handle");
        if !file.passthrough {
            return Err(refused());
        }
        let object = {
            // Else a commit could put another in its place meanwhile.
            let _no_commit = self.objects.installing.read();
            // The kernel opens it anew as each program does, and keeps this as long as one has it open, which must not
            // look like somebody who writes.
            self.objects.open(file.node.ino, OpenMode::Read)?
        };
        take(object.fd().ok_or_else(refused)?);
        Ok(())
    }

    pub(crate) fn do_release(&self, ino: InodeId, handle: Handle) -> FsResult<()> {
        let (mut many_noted, mut may_leave_bytes) = (false, false);
        let file = self.session.handles.remove(ino, handle, |file| {
            may_leave_bytes = file.flags.write && file.node.has_object();
            if may_leave_bytes {
                self.objects.begin_release();
            }
            many_noted = file.passthrough && file.flags.write && self.objects.mapped.note(ino);
        })?;
        if many_noted {
            self.forget_unmapped();
        }
        let node = &file.node;
        let (last, last_writer, began_in) = {
            let mut state = node.state();
            state.handles -= 1;
            if file.passthrough {
                state.passthrough -= 1;
                state.straight_mappers -= u32::from(file.flags.read && file.flags.write);
                state.replaced &= state.passthrough > 0;
            } else {
                state.cached -= 1;
                state.mappers -= u32::from(file.flags.read && file.flags.write);
            }
            state.writers -= u32::from(file.flags.write);
            state.executing -= u32::from(file.flags.execute);
            let unwritten = file.flags.write && state.writers == 0;
            let began_in = if unwritten { state.began_in.take() } else { None };
            (state.handles == 0, unwritten && state.has_object, began_in)
        };
        if last_writer && !(last && self.session.inodes.is_unreachable_orphan(ino)) {
            self.settle_unwritten(ino);
        }
        if may_leave_bytes {
            self.objects.end_release();
        }
        if let Some(dir) = began_in {
            self.note_habit(dir, ino, last_writer);
        }
        if last { self.let_go(ino) } else { Ok(()) }
    }

    /// After a handle ended: an orphan that nobody can reach goes, and so does a node without handles.
    fn let_go(&self, ino: InodeId) -> FsResult<()> {
        if !self.session.inodes.closed(ino) {
            return Ok(());
        }
        let reaped = self.reap_orphan(ino);
        self.session.inodes.close(ino);
        reaped
    }
}
