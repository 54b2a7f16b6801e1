//! Serves requests that open files and use open files.

use varve_vfs::{
    Entry, FsError, FsResult, Handle, OpenFlags, Opened, Position, SetIdTaken, Written,
};

use super::{Adapter, Call, DONE, Served};
use crate::answer::Answer;
use crate::backing::Route;
use crate::convert;
use crate::protocol::constants::FOPEN_KEEP_CACHE;
use crate::protocol::reply::OpenOut;
use crate::protocol::request::{CopyRange, Create, Fallocate, Read, Write};

impl Adapter {
    pub(super) fn open(&self, call: &mut Call<'_>, flags: u32, kill_set_id: bool) -> Served {
        let (ino, flags) = (call.ino, self.open_flags(flags));
        let caller = convert::caller(call.header, 0);
        if kill_set_id {
            // Before the file is cut: no changed file may keep the bits.
            self.kill_set_id(call, caller, ino)?;
        }
        let opened = self.vfs.open(ino, flags)?;
        let route = self.route(call.origin.device(), ino, opened);
        if matches!(route, Route::Straight(_))
            && flags.write
            && let Err(err) = self.kill_set_id_unless_root(call, ino)
        {
            // Writes by the kernel itself cannot clear the set-id bits, so the open does.
            self.backing.released(ino);
            self.vfs.release(ino, opened.handle)?;
            return Err(err);
        }
        if matches!(route, Route::Straight(_)) && flags.read && flags.write {
            // The kernel's times do not hold any more when a program changes mapped memory
            // ([`varve_vfs::Keep::Never`]).
            self.tell_of_attributes(call.origin, ino);
        }
        let flags = match route {
            // Drops the cached pages, because the kernel is about to write past them.
            Route::Straight(_) => 0,
            // The cached pages hold: a notice tells the kernel of bytes that change by another way than through this
            // mount.
            Route::Cached if !opened.reread => FOPEN_KEEP_CACHE,
            Route::Cached => 0,
        };
        call.reply.open_out(open_out(opened, flags, &route));
        Ok(Answer::Body)
    }

    pub(super) fn create(&self, call: &mut Call<'_>, request: &Create<'_>) -> Served {
        let caller = convert::caller(call.header, request.umask);
        let (perm, flags) = (request.mode & 0o7777, self.open_flags(request.flags));
        let name = convert::name(request.name)?;
        let new = OpenFlags { exclusive: true, ..flags };
        let made =
            self.vfs.create(caller, call.ino, name, perm, new).map_err(|error| match error {
                // The kernel took the name for absent and has checked no permissions of the file. So it must look
                // again.
                FsError::Exists if !flags.exclusive => FsError::Stale,
                error => error,
            })?;
        self.settled(call.ino, Ok(())).inspect_err(|_| self.undo_create(made))?;
        Ok(self.created(call, made))
    }

    pub(super) fn tmpfile(&self, call: &mut Call<'_>, request: &Create<'_>) -> Served {
        let caller = convert::caller(call.header, request.umask);
        let (perm, flags) = (request.mode & 0o7777, self.open_flags(request.flags));
        let made = self.vfs.tmpfile(caller, call.ino, perm, flags)?;
        Ok(self.created(call, made))
    }

    /// Answers a request that has made a file and opened it.
    fn created(&self, call: &mut Call<'_>, (entry, opened): (Entry, Opened)) -> Answer {
        let route = self.route(call.origin.device(), entry.attr.ino, opened);
        call.reply.entry_out(self.validity(&entry), &entry.attr);
        call.reply.open_out(open_out(opened, 0, &route));
        Answer::Body
    }

    pub(super) fn read(&self, call: &Call<'_>, request: &Read) -> Served {
        let (handle, size) = (Handle(request.handle), convert::length(request.size));
        Ok(Answer::Data(self.vfs.read(call.ino, handle, request.offset, size)?))
    }

    pub(super) fn write(&self, call: &mut Call<'_>, request: &Write<'_>) -> Served {
        let written = self.written(call, request);
        if request.kill_set_id {
            match written.as_ref().map_or(SetIdTaken::All, |written| written.set_id) {
                SetIdTaken::None => {}
                // Without a notice the kernel would still execute the file with these bits, because a WRITE does not
                // change the mode in its cache.
                SetIdTaken::All => self.tell_of_attributes(call.origin, call.ino),
                SetIdTaken::AllButGroup => {
                    self.tell_of_attributes(call.origin, call.ino);
                    let killed = self.kill_set_id(call, convert::caller(call.header, 0), call.ino);
                    // The bytes are written, so an error here must not make the program write them again. The bit
                    // gives nobody a right.
                    if self.unless_it_waits(killed).is_none() {
                        log::warn!("inode {} keeps set-group-id after a write", call.ino);
                    }
                }
            }
        }
        call.reply.size_out(u32::try_from(written?.bytes).unwrap_or(u32::MAX));
        Ok(Answer::Body)
    }

    fn written(&self, call: &Call<'_>, request: &Write<'_>) -> FsResult<Written> {
        let Write { handle, offset, is_writeback, open_flags, kill_set_id, data } = *request;
        let handle = Handle(handle);
        if is_writeback {
            // The kernel reports errors of such a write to programs, but not a partial write.
            let written = self.vfs.write_all(call.ino, handle, offset, data, kill_set_id);
            if matches!(written, Err(FsError::NotPermitted)) {
                // Changes in mapped memory did not become bytes of the file, so no program may read them.
                self.astray.tell(self.notifier(call.origin), call.ino);
            }
            written?;
            let set_id = if kill_set_id { SetIdTaken::AllButGroup } else { SetIdTaken::None };
            Ok(Written { offset, bytes: data.len(), set_id })
        } else if convert::open_flags(open_flags).append {
            let written = self.vfs.append(call.ino, handle, offset, data, kill_set_id)?;
            if written.offset != offset {
                self.astray.tell(self.notifier(call.origin), call.ino);
            }
            Ok(written)
        } else {
            self.vfs.write(call.ino, handle, offset, data, kill_set_id)
        }
    }

    pub(super) fn release(&self, call: &Call<'_>, handle: Handle) -> Served {
        // First, because the kernel has released the backing file. When the file system has closed the file, a commit
        // may replace its object, and the next open must get the new object.
        self.backing.released(call.ino);
        self.vfs.release(call.ino, handle)?;
        Ok(DONE)
    }

    pub(super) fn fallocate(&self, call: &Call<'_>, request: &Fallocate) -> Served {
        let Fallocate { handle, offset, length, mode } = *request;
        let mode = convert::allocate_mode(mode)?;
        self.kill_set_id_of_others(call, call.ino)?;
        self.vfs.fallocate(call.ino, Handle(handle), mode, offset, length)?;
        Ok(DONE)
    }

    pub(super) fn copy_range(&self, call: &mut Call<'_>, request: &CopyRange) -> Served {
        let CopyRange { handle, offset, to_node, to_handle, to_offset, length, is_long } = *request;
        let from = Position { ino: call.ino, handle: Handle(handle), offset };
        let to_ino = self.inode(to_node);
        let to = Position { ino: to_ino, handle: Handle(to_handle), offset: to_offset };
        let length = if is_long { length } else { length.min(u64::from(u32::MAX)) };
        self.kill_set_id_of_others(call, to_ino)?;
        let copied = self.vfs.copy_range(from, to, length)?;
        match u32::try_from(copied) {
            Ok(copied) if !is_long => call.reply.size_out(copied),
            _ => call.reply.copied_out(copied),
        }
        Ok(Answer::Body)
    }

    pub(super) fn lseek(
        &self,
        call: &mut Call<'_>,
        handle: Handle,
        offset: u64,
        whence: u32,
    ) -> Served {
        let what = convert::seek_from(whence)?;
        let signed = |offset: u64| -> FsResult<i64> {
            i64::try_from(offset).map_err(|_| FsError::NoSuchOffset)
        };
        signed(offset)?;
        let found = self.vfs.lseek(call.ino, handle, offset, what)?;
        signed(found).map_err(|_| FsError::TooLarge)?;
        call.reply.lseek_out(found);
        Ok(Answer::Body)
    }
}

fn open_out(opened: Opened, flags: u32, route: &Route) -> OpenOut {
    let backing = match route {
        Route::Straight(backing) => Some(backing.id()),
        Route::Cached => None,
    };
    OpenOut { handle: opened.handle.0, flags, backing }
}
