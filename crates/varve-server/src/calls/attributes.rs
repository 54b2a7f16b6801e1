//! Calls about attributes of an inode.

use bytes::Bytes;
use varve_types::FileFlags;
use varve_vfs::{AccessMode, Caller, FsError};
use varve_wire::Request;
use varve_wire::answer::Answer;

use super::{Call, Served, done};

impl Call<'_> {
    /// Makes a call about attributes.
    pub(super) fn attributes(&self, request: &Request<'_>, data: &[u8]) -> Served {
        let vfs = self.vfs();
        match *request {
            Request::Getattr { node } => {
                let (ino, learned) = (self.node(node)?, self.looks());
                let attr = self.settled(|| vfs.getattr(ino))?;
                Ok((Answer::Attr(self.attr(&attr, None, learned)), Bytes::new()))
            }
            Request::Setattr { ref caller, node, ref set } => {
                let ino = self.node(node)?;
                let _change = self.change_inode(ino)?;
                let learned = self.changes();
                let attr = self.settled(|| vfs.setattr(caller.into(), ino, set.into()))?;
                Ok((Answer::Attr(self.attr(&attr, None, learned)), Bytes::new()))
            }
            Request::Readlink { node } => {
                let ino = self.node(node)?;
                Ok((Answer::Done, self.settled(|| vfs.readlink(ino))?))
            }
            Request::Access { ref caller, ref groups, node, rights } => {
                let mode = AccessMode {
                    read: rights & 4 != 0,
                    write: rights & 2 != 0,
                    execute: rights & 1 != 0,
                };
                let ino = self.node(node)?;
                self.settled(|| vfs.access(Caller::from(caller), groups, ino, mode))?;
                done()
            }
            Request::FileFlags { node } => {
                let ino = self.node(node)?;
                let flags = self.settled(|| vfs.file_flags(ino))?;
                Ok((Answer::Number(flags.bits().into()), Bytes::new()))
            }
            Request::SetFileFlags { node, flags } => {
                let ino = self.node(node)?;
                let flags = FileFlags::from_bits(flags).ok_or(FsError::Invalid("unknown flags"))?;
                let _change = self.change_inode(ino)?;
                self.settled(|| vfs.set_file_flags(ino, flags))?;
                done()
            }
            Request::Getxattr { node, name } => {
                let ino = self.node(node)?;
                Ok((Answer::Done, self.settled(|| vfs.getxattr(ino, name))?))
            }
            Request::Setxattr { node, name, mode } => {
                let ino = self.node(node)?;
                let _change = self.change_inode(ino)?;
                self.settled(|| vfs.setxattr(ino, name, data, mode.into()))?;
                done()
            }
            Request::Listxattr { node } => {
                let ino = self.node(node)?;
                Ok((Answer::Done, self.settled(|| vfs.listxattr(ino))?.into()))
            }
            Request::Removexattr { node, name } => {
                let ino = self.node(node)?;
                let _change = self.change_inode(ino)?;
                self.settled(|| vfs.removexattr(ino, name))?;
                done()
            }
            _ => Err(FsError::NotImplemented.into()),
        }
    }
}
