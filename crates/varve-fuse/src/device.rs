//! The descriptor of a FUSE connection, which requests come from and answers go to.
//!
//! One read(2) takes one request. One write(2) or writev(2) sends one answer, on the descriptor that the request came
//! from. Rings name the descriptor in their commands, and backing files are registered on it.

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

    /// Returns a backing file that was registered on this connection before.
    pub(crate) fn registered(&self, id: i32) -> BackingFile {
        BackingFile { device: Some(self.clone()), id }
    }

    /// Opens one more descriptor of the same connection, with a queue of its own.
    pub(crate) fn duplicate(&self) -> io::Result<Device> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
        ioctl::clone(&descriptor, &self.0)?;
        Ok(Device::new(descriptor))
    }

    /// Returns the descriptor itself.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Waits for a request and reads it. Returns its length, or `None` if the connection has ended. REQUIRES: the
    /// buffer has room for the largest agreed write and its header.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(len) => return Ok(Some(len)),
                // NOENT: the caller was killed before this read got the request.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                // CONNABORTED: the connection ended before this read got the request.
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Err(err) => return Err(err.into()),
            }
        }
    }

    /// Answers request `unique` with the body in `reply`.
    pub(crate) fn reply(&self, unique: u64, reply: &mut Reply) {
        delivered(rustix::io::write(&self.0, reply.finish(unique)));
    }

    /// Answers with bytes, without copying them.
    pub(crate) fn reply_data(&self, unique: u64, data: &Bytes) {
        let header = header(unique, 0, data.len());
        let parts = [IoSlice::new(&header), IoSlice::new(data)];
        delivered(rustix::io::writev(&self.0, &parts));
    }

    /// Answers that the request failed (`errno` is positive) or succeeded (0).
    pub(crate) fn reply_errno(&self, unique: u64, errno: i32) {
        delivered(rustix::io::write(&self.0, &header(unique, errno, 0)));
    }

    /// Sends the kernel a notice for which it did not ask.
    pub(crate) fn notify(&self, message: &[u8]) -> rustix::io::Result<()> {
        rustix::io::write(&self.0, message).map(drop)
    }

    /// Registers `file` with the kernel as a backing file.
    pub(crate) fn register(&self, file: BorrowedFd<'_>) -> io::Result<BackingFile> {
        let id = ioctl::backing_open(&self.0, file)?;
        Ok(self.registered(id))
    }
}

/// Logs a failed answer. NOENT is no failure: the connection was aborted, so no caller waits.
fn delivered(result: rustix::io::Result<usize>) {
    if let Err(err) = result
        && err != Errno::NOENT
    {
        log::error!("the kernel did not take an answer: {err}");
    }
}

/// A file that the kernel reads and writes by itself until this is dropped.
#[derive(Debug)]
pub(crate) struct BackingFile {
    /// `None` if the kernel keeps the file after the drop.
    device: Option<Device>,
    id: i32,
}

impl BackingFile {
    /// Returns the kernel's number of the backing file.
    pub(crate) fn id(&self) -> i32 {
        self.id
    }

    /// Leaves the file registered, for the next session on the connection.
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
