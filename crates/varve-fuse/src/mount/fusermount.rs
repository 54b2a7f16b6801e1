//! Mounts and unmounts through fusermount3, the setuid helper of libfuse.
//!
//! The helper opens /dev/fuse and mounts it. Then it passes the descriptor over a Unix socket, as one byte with
//! SCM_RIGHTS. The environment variable `_FUSE_COMMFD` holds the number of the socket. The socket is the standard
//! input of the helper, so that no step is needed between fork and exec.

use std::ffi::OsString;
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use super::{Connection, MountOptions};

/// The names of the helper, the newer one first.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Mounts through the helper and receives the descriptor. The error is the reason why it cannot.
pub(super) fn mount(dir: &Path, options: &MountOptions) -> Result<Connection, String> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|err| format!("socketpair: {err}"))?;
    let mut helper = start(|command| {
        let stdin = theirs.try_clone()?;
        command.arg("-o").arg(option_list(options)).arg("--").arg(dir);
        command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(stdin));
        Ok(())
    })?;
    drop(theirs);
    let received = receive(&ours);
    drop(ours);
    let message = finish(&mut helper)?;
    match received {
        Ok(Some(device)) => Ok(Connection { device, root_alone: false }),
        Ok(None) if message.is_empty() => Err("it passed no descriptor".into()),
        Ok(None) => Err(message),
        Err(err) => Err(format!("receiving the descriptor: {err}")),
    }
}

/// Unmounts through the helper. The error is its reason why it cannot.
pub(super) fn unmount(dir: &Path, lazy: bool) -> Result<(), String> {
    let mut helper = start(|command| {
        command.arg("-u").stdin(Stdio::null());
        if lazy {
            command.arg("-z");
        }
        command.arg("--").arg(dir);
        Ok(())
    })?;
    let message = finish(&mut helper)?;
    if message.is_empty() { Ok(()) } else { Err(message) }
}

/// Starts the first helper that exists, with the arguments that `prepare` sets.
fn start(prepare: impl Fn(&mut Command) -> std::io::Result<()>) -> Result<Child, String> {
    for name in HELPERS {
        let mut command = Command::new(name);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        prepare(&mut command).map_err(|err| err.to_string())?;
        match command.spawn() {
            Ok(child) => return Ok(child),
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => {}
            Err(err) => return Err(format!("{name}: {err}")),
        }
    }
    Err(format!("no {} on the path (Debian: apt install fuse3)", HELPERS.join(" and no ")))
}

/// Waits for the helper. Returns an empty text if it succeeded, else what it wrote to standard error.
fn finish(helper: &mut Child) -> Result<String, String> {
    let mut message = String::new();
    if let Some(mut stderr) = helper.stderr.take() {
        stderr.read_to_string(&mut message).map_err(|err| err.to_string())?;
    }
    let status = helper.wait().map_err(|err| err.to_string())?;
    match message.trim() {
        _ if status.success() => Ok(String::new()),
        "" => Ok(status.to_string()),
        message => Ok(message.to_owned()),
    }
}

/// Returns the descriptor that arrives on `socket`; `None` if the helper closes the socket without one.
fn receive(socket: &OwnedFd) -> rustix::io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    rustix::io::retry_on_intr(|| {
        let mut data = [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

fn option_list(options: &MountOptions) -> OsString {
    let mut list = b"subtype=varve,default_permissions,fsname=".to_vec();
    for &byte in options.source.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            list.push(b'\\');
        }
        list.push(byte);
    }
    let flags = [
        (options.read_only, "ro"),
        (options.allow_other, "allow_other"),
        (options.no_suid, "nosuid"),
        (options.no_dev, "nodev"),
        (options.no_exec, "noexec"),
        // The helper refuses this option. That is better than a mount without it.
        (options.no_symfollow, "nosymfollow"),
        (options.synchronous, "sync"),
    ];
    for (set, word) in flags {
        if set {
            list.push(b',');
            list.extend_from_slice(word.as_bytes());
        }
    }
    OsString::from_vec(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_and_backslashes_of_the_source_are_escaped() {
        let mut options = MountOptions::new("/a,b\\c");
        options.allow_other = false;
        options.read_only = true;
        assert_eq!(
            option_list(&options),
            OsString::from("subtype=varve,default_permissions,fsname=/a\\,b\\\\c,ro")
        );
    }
}
