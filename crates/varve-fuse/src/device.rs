//! The descriptor of a FUSE connection: requests come out of it, answers go in.
//!
//! One read(2) takes one request, one write(2) or writev(2) gives one answer, on the descriptor that the
//! request came from. Rings name it in their commands, and backing files are registered on it.

mod ioctl;

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::protocol::reply::{Reply, header};

/// One descriptor of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Device(Arc<OwnedFd>);

impl Device {
    pub(crate) fn new(descriptor: OwnedFd) -> Device {
        Device(Arc::new(descriptor))
    }

    /// A backing file that was registered on this connection before.
    pub(crate) fn registered(&self, id: i32) -> BackingFile {
        BackingFile { device: Some(self.clone()), id }
    }

    /// One more descriptor of the same connection, with a queue of its own.
    pub(crate) fn duplicate(&self) -> io::Result<Device> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
        ioctl::clone(&descriptor, &self.0)?;
        Ok(Device::new(descriptor))
    }

    /// The descriptor itself.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Waits for a request and reads it: its length, or nothing if the connection has ended.
    /// REQUIRES: room for the largest write agreed on and its header.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(len) => return Ok(Some(len)),
                // NOENT: the caller was killed before we could have the request.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                // CONNABORTED: it ended while we were about to have the request.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(err) => return Err(err.into()),
            }
        }
    }

    /// Answers request `unique` with what was filled into `reply`.
    pub(crate) fn reply(&self, unique: u64, reply: &mut Reply) {
        delivered(rustix::io::write(&self.0, reply.finish(unique)));
    }

    /// Answers with bytes that are not copied.
    pub(crate) fn reply_data(&self, unique: u64, data: &Bytes) {
        let header = header(unique, 0, data.len());
        let parts = [IoSlice::new(&header), IoSlice::new(data)];
        delivered(rustix::io::writev(&self.0, &parts));
    }

    /// Answers that the request failed (`errno` positive) or that it went well (0).
    pub(crate) fn reply_errno(&self, unique: u64, errno: i32) {
        delivered(rustix::io::write(&self.0, &header(unique, errno, 0)));
    }

    /// Tells the kernel something that it did not ask for.
    pub(crate) fn notify(&self, message: &[u8]) -> rustix::io::Result<()> {
        rustix::io::write(&self.0, message).map(drop)
    }

    /// Makes `file` known to the kernel as a backing file.
    pub(crate) fn register(&self, file: BorrowedFd<'_>) -> io::Result<BackingFile> {
        let id = ioctl::backing_open(&self.0, file)?;
        Ok(self.registered(id))
    }
}

/// NOENT: the connection was aborted, and nobody waits for the answer.
fn delivered(result: rustix::io::Result<usize>) {
    if let Err(err) = result
        && err != Errno::NOENT
    {
        log::error!("the kernel does not take an answer: {err}");
    }
}

/// A file that the kernel reads and writes straight, until this is dropped.
#[derive(Debug)]
pub(crate) struct BackingFile {
    /// None if the kernel is to keep the file.
    device: Option<Device>,
    id: i32,
}

impl BackingFile {
    /// The kernel's number for it.
    pub(crate) fn id(&self) -> i32 {
        self.id
    }

    /// Leaves it registered, for who serves the connection next.
    pub(crate) fn leave(mut self) -> i32 {
        self.device = None;
        self.id
    }
}

impl Drop for BackingFile {
    fn drop(&mut self) {
        if let Some(device) = &self.device
            && let Err(err) = ioctl::backing_close(&device.0, self.id)
        {
            log::debug!("cannot forget a backing file: {err}");
        }
    }
}
