//! Answers to requests that the server before has executed, and whose answers were lost with it.

use bytes::Bytes;
use varve_types::{FileName, InodeId};
use varve_vfs::{Entry, FsError, Gave, OpenFlags};
use varve_wire::answer::Answer;
use varve_wire::{Node, Request};

use super::files::written;
use super::{Call, Served, Stop, done};

impl Call<'_> {
    /// Answers a request that was executed and gave `gave`.
    pub(super) fn again(&self, request: &Request<'_>, gave: Gave) -> Served {
        match (request, gave) {
            (Request::Setattr { node, .. }, _) => {
                self.attributes(&Request::Getattr { node: *node }, &[])
            }
            (Request::CopyRange { .. }, Gave::Written(done)) => {
                Ok((Answer::Number(done.bytes as u64), Bytes::new()))
            }
            (_, Gave::Written(done)) => Ok((written(done), Bytes::new())),
            (Request::Create { parent, name, flags, file, .. }, Gave::Inode(ino)) => {
                let entry = self.found_again(*parent, name, ino)?;
                self.opened_again(entry, (*flags).into(), *file)
            }
            (Request::Tmpfile { flags, file, .. }, Gave::Inode(ino)) => {
                match self.settled(|| self.vfs().reopen(ino, None, (*flags).into())) {
                    Ok(opened) => {
                        let opened = self.keep(*file, ino, opened);
                        let attr = self.settled(|| self.vfs().getattr(ino))?;
                        let entry = self.found(None, &attr, self.looks());
                        Ok((Answer::Created(entry, opened), Bytes::new()))
                    }
                    // It went with the grace, and nobody has seen it: another one will do.
                    Err(Stop::Failed(FsError::Stale)) => self.serve(request, &[]),
                    Err(stop) => Err(stop),
                }
            }
            (Request::Open { node, flags, file, .. }, _) => {
                let flags = OpenFlags { truncate: false, ..(*flags).into() };
                self.open(*node, flags, *file, false)
            }
            (
                Request::Mknod { parent, name, .. }
                | Request::Mkdir { parent, name, .. }
                | Request::Symlink { parent, name, .. }
                | Request::Link { parent, name, .. }
                | Request::CloneTree { parent, name, .. },
                Gave::Inode(ino),
            ) => {
                let entry = self.found_again(*parent, name, ino)?;
                self.entry_done(None, &entry, self.looks())
            }
            _ => done(),
        }
    }

    /// Looks up what a request has made. By now it may have another name.
    fn found_again(&self, parent: Node, name: &[u8], ino: InodeId) -> Served<Entry> {
        let name = FileName::new(name).map_err(FsError::from)?;
        let parent = self.node(parent)?;
        if let Ok(entry) = self.settled(|| self.vfs().lookup(parent, name)) {
            if entry.attr.ino == ino {
                return Ok(entry);
            }
            self.vfs().forget(entry.attr.ino, 1);
        }
        self.settled(|| self.vfs().lookup_inode(ino))
    }

    fn opened_again(&self, entry: Entry, flags: OpenFlags, file: u64) -> Served {
        let flags = OpenFlags { truncate: false, exclusive: false, ..flags };
        let ino = entry.attr.ino;
        let opened = self.settled(|| self.vfs().open(ino, flags));
        let opened = opened.inspect_err(|_| self.vfs().forget(ino, 1))?;
        let opened = self.keep(file, ino, opened);
        Ok((Answer::Created(self.entry(None, &entry, self.looks()), opened), Bytes::new()))
    }
}
