//! Calls that open files, and calls about open files.

use bytes::Bytes;
use varve_types::{FileName, InodeId};
use varve_vfs::{
    Caller, FsError, OpenFlags, Opened, Place, Position, SeekFrom, SetIdTaken, Written,
};
use varve_wire::answer::{self, Answer};
use varve_wire::{DATA_BYTES_MAX, Node, Request};

use super::{Call, Served, done};
use crate::session::File;

impl Call<'_> {
    /// Makes a call about open files.
    pub(super) fn open_files(&self, request: &Request<'_>, data: &[u8]) -> Served {
        let vfs = self.vfs();
        match *request {
            Request::Create { ref caller, parent, name, perm, flags, file } => {
                self.create(caller.into(), (parent, name), perm, (flags.into(), file))
            }
            Request::Tmpfile { ref caller, parent, perm, flags, file } => {
                self.writable()?;
                self.session.has_room()?;
                let (parent, learned) = (self.node(parent)?, self.looks());
                let (entry, opened) =
                    self.settled(|| vfs.tmpfile(caller.into(), parent, perm, flags.into()))?;
                let opened = self.keep(file, entry.attr.ino, opened);
                Ok((Answer::Created(self.entry(None, &entry, learned), opened), Bytes::new()))
            }
            Request::Open { node, flags, file, again } => {
                self.open(node, flags.into(), file, again)
            }
            Request::Read { node, file, offset, length } => {
                let File { ino, handle } = self.file(node, file)?;
                let length = (length as usize).min(DATA_BYTES_MAX);
                Ok((Answer::Done, self.settled(|| vfs.read(ino, handle, offset, length))?))
            }
            Request::Write { node, file, offset, append, kill_set_id } => {
                self.write((node, file), (offset, append), data, kill_set_id)
            }
            Request::Release { node, file } => {
                let open = self.file(node, file)?;
                let _ = self.session.take(file);
                self.service.close(open)?;
                done()
            }
            Request::Fsync { node, file, data_only } => {
                let File { ino, handle } = self.file(node, file)?;
                vfs.fsync(ino, handle, data_only)?;
                done()
            }
            Request::Fallocate { node, file, mode, offset, length } => {
                let File { ino, handle } = self.file(node, file)?;
                let _change = self.change_inode(ino)?;
                self.settled(|| vfs.fallocate(ino, handle, mode.into(), offset, length))?;
                done()
            }
            Request::CopyRange { from, to, length } => {
                let position = |at: varve_wire::request::Position| {
                    let File { ino, handle } = self.file(at.node, at.file)?;
                    Ok::<_, FsError>(Position { ino, handle, offset: at.offset })
                };
                let (from, to) = (position(from)?, position(to)?);
                let _change = self.change_inode(to.ino)?;
                Ok((
                    Answer::Number(self.settled(|| vfs.copy_range(from, to, length))?),
                    Bytes::new(),
                ))
            }
            Request::Lseek { node, file, offset, hole } => {
                let File { ino, handle } = self.file(node, file)?;
                let what = if hole { SeekFrom::Hole } else { SeekFrom::Data };
                let found = self.settled(|| vfs.lseek(ino, handle, offset, what))?;
                Ok((Answer::Number(found), Bytes::new()))
            }
            _ => Err(FsError::NotImplemented.into()),
        }
    }

    fn write(
        &self,
        (node, file): (Node, u64),
        (offset, append): (u64, bool),
        data: &[u8],
        kill_set_id: bool,
    ) -> Served {
        let vfs = self.vfs();
        let File { ino, handle } = self.file(node, file)?;
        let _change = self.change_inode(ino)?;
        let written = self.settled(|| match append {
            true => vfs.append(ino, handle, offset, data, kill_set_id),
            false => vfs.write(ino, handle, offset, data, kill_set_id),
        })?;
        Ok((self::written(written), Bytes::new()))
    }

    fn create(
        &self,
        caller: Caller,
        (parent, name): (Node, &[u8]),
        perm: u32,
        (flags, file): (OpenFlags, u64),
    ) -> Served {
        self.session.has_room()?;
        let (parent, name) = (self.node(parent)?, FileName::new(name).map_err(FsError::from)?);
        // An existing file that would be cut is nothing that this call may change unseen.
        let flags = OpenFlags { exclusive: true, ..flags };
        self.writable()?;
        let names = [(parent, name.as_bytes())];
        let _names = self.service.changes.lock_names(&names, self.may_wait())?;
        let _change = self.change_inode(parent)?;
        let learned = self.looks();
        let (entry, opened) =
            self.settled(|| self.vfs().create(caller, parent, name, perm, flags))?;
        let opened = self.keep(file, entry.attr.ino, opened);
        let entry = self.entry(Some((parent, name.as_bytes())), &entry, learned);
        Ok((Answer::Created(entry, opened), Bytes::new()))
    }

    pub(super) fn open(&self, node: Node, flags: OpenFlags, file: u64, again: bool) -> Served {
        if again {
            return self.reopen(node, flags, file);
        }
        self.session.has_room()?;
        let ino = self.node(node)?;
        if flags.write {
            self.writable()?;
        }
        let _change = flags.truncate.then(|| self.change_inode(ino)).transpose()?;
        let opened = self.settled(|| self.vfs().open(ino, flags))?;
        let opened = self.keep(file, ino, opened);
        // From now on a rename leaves it where any place leads to it ([`Vfs::reopen`]). It may have moved before.
        let place = self.vfs().place(ino)?.map(Place::to_bytes);
        let answer = match place.is_some() && place != node.place {
            true => Answer::OpenedAt(opened, place),
            false => Answer::Opened(opened),
        };
        Ok((answer, Bytes::new()))
    }

    /// Opens a file that the client had open when another server served the file system, also if it has no name any more.
    fn reopen(&self, node: Node, flags: OpenFlags, file: u64) -> Served {
        let reread = Ok((Answer::Opened(answer::Opened { reread: true }), Bytes::new()));
        if self.session.has_file(file) {
            return reread;
        }
        // What has happened to a file since its session ended, nobody knows.
        if !self.session.may_reopen {
            return Err(FsError::Stale.into());
        }
        self.session.has_room()?;
        if flags.write {
            self.writable()?;
        }
        let (ino, place) = (InodeId::new(node.ino), node.place.map(Place::from_bytes));
        let opened = self.settled(|| self.vfs().reopen(ino, place, flags))?;
        let _ = self.keep(file, ino, opened);
        reread
    }

    /// Keeps an opened file under the client's number.
    pub(super) fn keep(&self, file: u64, ino: InodeId, opened: Opened) -> answer::Opened {
        let before = self.session.keep(file, File { ino, handle: opened.handle });
        if let Some(before) = before {
            // A number that is used twice: its first file is of no use to anybody.
            let _ = self.service.close(before);
        }
        answer::Opened { reread: opened.reread }
    }
}

/// Makes an answer of what a write has done.
pub(super) fn written(done: Written) -> Answer {
    let set_id = match done.set_id {
        SetIdTaken::None => 0,
        SetIdTaken::All => 1,
        SetIdTaken::AllButGroup => 2,
    };
    let bytes = u32::try_from(done.bytes).unwrap_or(u32::MAX);
    Answer::Written { offset: done.offset, bytes, set_id }
}
