//! Hands over from the daemon to its successor: by execve(2), so that the process stays the same for its supervisor, and by a socket on
//! the standard input that carries descriptors and state.
//!
//! ```text
//! message: one byte, and descriptors by SCM_RIGHTS, in this order:
//!   the connection (/dev/fuse) | the store's lock | a memfd with the handover message
//!   | if bit 0 is set: the client that asked | if bit 1 is set: the program that ran before
//! ```
//!
//! The message waits in the socket during execve(2), so the new program inherits the standard input alone.

use std::ffi::OsString;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use signal_hook::consts::SIGPIPE;

use varve::{Error, Result};

use super::abilities::SUCCESSOR;
use super::handover_message::HandoverMessage;

const HAS_CLIENT: u8 = 1;
const HAS_PROGRAM: u8 = 1 << 1;
const DESCRIPTORS_MAX: usize = 5;
/// The largest handover message that is read: some ten million known inodes.
const MESSAGE_BYTES_MAX: u64 = 1 << 30;

/// What a successor gets.
#[derive(Debug)]
pub(crate) struct Handover {
    /// The connection to the kernel.
    pub(crate) device: OwnedFd,
    /// The store's lock.
    pub(crate) lock: OwnedFd,
    pub(crate) message: HandoverMessage,
    /// The client that asked for the upgrade and waits for the report.
    pub(crate) client: Option<UnixStream>,
    /// The program to go back to.
    pub(crate) program: Option<File>,
}

/// The arguments of this process for the next one: the same, and `role`.
pub(crate) fn arguments(role: &str) -> Vec<OsString> {
    let own = std::env::args_os().skip(1).filter(|argument| argument != SUCCESSOR);
    own.chain([role.into()]).collect()
}

/// Becomes `program` with `arguments`, and passes `handover` to it. Returns only if that fails.
pub(crate) fn become_program(program: &Path, arguments: &[OsString], handover: &Handover) -> Error {
    let failed = |reason: &dyn std::fmt::Display| {
        Error::failed(format!("cannot become {}: {reason}", program.display()))
    };
    let socket = match pack(handover) {
        Ok(socket) => socket,
        Err(error) => return failed(&error),
    };
    let error = Command::new(program).args(arguments).stdin(Stdio::from(socket)).exec();
    // The standard library has prepared this process for another program: undo what would harm it.
    if let Ok(null) = File::open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(null);
    }
    let _ = signal_hook::flag::register(SIGPIPE, Arc::new(AtomicBool::new(false)));
    failed(&error)
}

/// A socket in which the message waits.
fn pack(handover: &Handover) -> std::io::Result<OwnedFd> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut state = File::from(rustix::fs::memfd_create("varve-handover", MemfdFlags::CLOEXEC)?);
    state.write_all(&handover.message.encode())?;
    let mut descriptors: Vec<BorrowedFd<'_>> =
        vec![handover.device.as_fd(), handover.lock.as_fd(), state.as_fd()];
    let mut mark = 0;
    if let Some(client) = &handover.client {
        mark |= HAS_CLIENT;
        descriptors.push(client.as_fd());
    }
    if let Some(program) = &handover.program {
        mark |= HAS_PROGRAM;
        descriptors.push(program.as_fd());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(&ours, &[IoSlice::new(&[mark])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(theirs)
}

/// Reads what the previous program left on the standard input.
pub(crate) fn receive() -> Result<Handover> {
    let failed =
        |reason: String| Error::failed(format!("cannot take over from the daemon: {reason}"));
    let socket = std::io::stdin();
    let (mark, descriptors) = unpack(socket.as_fd()).map_err(|error| failed(error.to_string()))?;
    if let Ok(null) = File::open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(null);
    }
    let mut descriptors = descriptors.into_iter();
    let missing = || failed("a descriptor is missing".to_owned());
    let mut next = || descriptors.next().ok_or_else(missing);
    let (device, lock, state) = (next()?, next()?, next()?);
    let client = if mark & HAS_CLIENT != 0 { Some(UnixStream::from(next()?)) } else { None };
    let program = if mark & HAS_PROGRAM != 0 { Some(File::from(next()?)) } else { None };
    let bytes = read_all(File::from(state)).map_err(|error| failed(error.to_string()))?;
    let message = HandoverMessage::decode(&bytes)
        .map_err(|reason| failed(format!("its handover message cannot be read: {reason}")))?;
    Ok(Handover { device, lock, message, client, program })
}

fn unpack(socket: BorrowedFd<'_>) -> std::io::Result<(u8, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut mark = [0_u8; 1];
    let mut data = [IoSliceMut::new(&mut mark)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    rustix::net::recvmsg(socket, &mut data, &mut control, flags)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok((mark[0], descriptors))
}

fn read_all(mut state: File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    state.rewind()?;
    state.take(MESSAGE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handover_goes_through_the_socket() {
        let null = || OwnedFd::from(File::open("/dev/null").unwrap());
        let (client, mut asker) = UnixStream::pair().unwrap();
        let message = HandoverMessage { facts: vec![1], session: vec![2], files: vec![3; 1 << 20] };
        let (device, lock) = (null(), null());
        let handover = Handover { device, lock, message, client: Some(client), program: None };
        let socket = pack(&handover).unwrap();
        drop(handover.client);
        let (mark, mut descriptors) = unpack(socket.as_fd()).unwrap();
        assert_eq!((mark, descriptors.len()), (HAS_CLIENT, 4));
        let mut client = UnixStream::from(descriptors.pop().unwrap());
        client.write_all(b"ready").unwrap();
        drop(client);
        let mut heard = String::new();
        asker.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "ready");
        let bytes = read_all(File::from(descriptors.pop().unwrap())).unwrap();
        assert_eq!(HandoverMessage::decode(&bytes), Ok(handover.message));
        assert!(unpack(socket.as_fd()).is_ok_and(|(_, none)| none.is_empty()));
    }
}
