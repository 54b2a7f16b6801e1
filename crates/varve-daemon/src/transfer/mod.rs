//! Sends snapshots as streams and receives them: the daemon does it if the store is mounted, else this process.
//!
//! ```text
//! client: {"views": {"send": ...}} LF      -->  daemon
//! client <--  {"done": ...} LF                   the daemon is ready
//! client <--  blocks, then a report LF           each block: u32 length, bytes; the last has none
//!
//! client: {"views": "receive"} LF          -->  daemon
//! client <--  {"done": ...} LF                   the daemon is ready
//! client: blocks                           -->  daemon
//! client <--  a report LF
//! ```
//!
//! A daemon that refuses sends a failure in place of the first line.

mod blocks;
mod operations;
mod serve;

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;
use varve::{Error, FileSystem, Result, store};
use varve_fs::stream::frame::FrameReader;
use varve_fs::stream::{Receipt, read_header};
use varve_fs::{FormatOptions, MountOptions};

pub use crate::control::SendRequest;
use crate::control::{Report, Request, ViewRequest, client};
use crate::holder;
use crate::mount_table::find_mount;
use crate::target::Target;
use blocks::{BlockReader, BlockWriter};
pub(crate) use operations::{discard, token};
use operations::{receive_into, refused, send_from, told, unreadable};
pub(crate) use serve::serve;

/// Bytes of a stream that are copied at a time.
const PIECE_BYTES: usize = 64 << 10;

impl SendRequest {
    /// The request that continues the interrupted receipt of `token`.
    pub fn of_token(token: &str) -> Result<SendRequest> {
        let receipt = Receipt::of_token(token.trim()).ok_or_else(|| {
            Error::usage("this is no token of an interrupted receipt".to_owned())
                .hint("`varve snapshot receive --token STORE` prints it, where it is received")
        })?;
        let (name, since) = (receipt.snapshot.name.clone(), receipt.base.as_ref());
        let since = since.map(|base| base.name.clone());
        Ok(SendRequest { name, since, resumed: Some(receipt) })
    }
}

/// Writes a snapshot of the store at `path`, or of the one that is mounted there, to `out`.
pub fn send(path: &Path, request: &SendRequest, out: &mut dyn Write) -> Result<Value> {
    let target = Target::at(path)?;
    if !holder::is_served(&target.store)? {
        let file_system = FileSystem::open(&target.store, &MountOptions::default())?;
        let sent = send_from(&file_system.inner(), request, out);
        file_system.close()?;
        return sent;
    }
    hear_stream(&target.store, ask_for(&target, ViewRequest::Send(request.clone()))?, out)
}

/// Writes what the daemon of `store` sends to `out`.
fn hear_stream(store: &Path, mut daemon: UnixStream, out: &mut dyn Write) -> Result<Value> {
    let mut blocks = BlockReader::new(&mut daemon);
    let passed = pass(&mut blocks, out).and_then(|()| out.flush().map_err(Cut::Writing));
    passed.map_err(|cut| match cut {
        Cut::Reading(error) => lost(store, &error),
        Cut::Writing(error) => Error::failed(format!("the stream cannot be written: {error}"))
            .hint("make room where the stream goes, and check that its reader still runs"),
    })?;
    report(&daemon)
}

/// Receives a snapshot into the store at `path`, into the one that is mounted there, or into a new one.
pub fn receive(path: &Path, input: &mut dyn Read) -> Result<Value> {
    let held = if is_for_a_new_store(path)? {
        None
    } else {
        let target = Target::at(path)?;
        holder::is_served(&target.store)?.then_some(target)
    };
    let Some(target) = held else { return receive_here(path, input) };
    let mut daemon = ask_for(&target, ViewRequest::Receive)?;
    let mut blocks = BlockWriter(&mut daemon);
    match pass(input, &mut blocks) {
        Ok(()) => {
            let _ = blocks.end();
            report(&daemon)
        }
        // A daemon that stops reading reports why.
        Err(Cut::Writing(_)) => report(&daemon),
        Err(Cut::Reading(error)) => {
            let _ = daemon.shutdown(Shutdown::Write);
            report(&daemon).map_err(|told| {
                let next = told.next_step().unwrap_or("send it again").to_owned();
                Error::failed(format!("the stream cannot be read: {error}")).hint(next)
            })
        }
    }
}

/// Whether to format a store at `path`: it does not exist, or is an empty directory that is not on a mount.
fn is_for_a_new_store(path: &Path) -> Result<bool> {
    match std::fs::read_dir(path) {
        Ok(mut items) => Ok(items.next().is_none() && find_mount(path)?.is_none()),
        Err(_) => {
            let found = std::fs::symlink_metadata(path);
            Ok(found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound))
        }
    }
}

/// Which side of a copy failed.
#[derive(Debug)]
enum Cut {
    Reading(io::Error),
    Writing(io::Error),
}

/// Copies `input` to `out`.
fn pass(input: &mut dyn Read, out: &mut dyn Write) -> std::result::Result<(), Cut> {
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => out.write_all(&buffer[..count]).map_err(Cut::Writing)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Cut::Reading(error)),
        }
    }
}

fn receive_here(path: &Path, input: &mut dyn Read) -> Result<Value> {
    let mut stream = FrameReader::new(input).map_err(|error| unreadable(&error))?;
    let header = read_header(&mut stream).map_err(|error| refused(None, error))?;
    if is_for_a_new_store(path)? {
        if let Some(base) = &header.base {
            return Err(Error::failed(format!(
                "there is no store at {}, and the stream has only what changed since snapshot `{}`",
                path.display(),
                base.name
            ))
            .hint("send and receive that one first, or send this one without --since"));
        }
        if header.from.is_some() {
            let (path, text) = (path.display(), "the stream is the rest of one that broke off");
            return Err(Error::failed(format!("there is no store at {path}, and {text}"))
                .hint("receive it where that was received, or send all of it, without --resume"));
        }
        let options = FormatOptions {
            large_file_threshold_bytes: header.large_file_threshold_bytes,
            name_hash_bits: header.name_hash_bits,
            compression: header.compression,
            name_hash_key: Some(header.name_hash_key.clone()),
            ..FormatOptions::default()
        };
        store::format(path, &options)?;
    }
    let file_system = FileSystem::open(path, &MountOptions::default())?;
    let received = receive_into(&file_system.inner(), &header, &mut stream, |_| ());
    file_system.close()?;
    received.map(|received| told(&received))
}

fn lost(store: &Path, error: &io::Error) -> Error {
    Error::failed(format!("the daemon of {} does not answer: {error}", store.display()))
        .hint("`varve status` shows whether it runs; its log is varve.log in the store")
}

/// Asks the daemon of a store for a stream, and waits until it is ready.
fn ask_for(target: &Target, request: ViewRequest) -> Result<UnixStream> {
    let store = &target.store;
    let mut daemon = target.answered_by(client::connect(store), |error| lost(store, &error))?;
    let mut line = serde_json::to_string(&Request::Views(request))
        .map_err(|error| Error::usage(format!("cannot write the request as JSON: {error}")))?;
    line.push('\n');
    // A daemon that refuses the client sends its reason and then closes the connection.
    let _ = daemon.write_all(line.as_bytes());
    report(&daemon)?;
    Ok(daemon)
}

/// Reads a report, and no byte after it.
fn report(mut daemon: impl Read) -> Result<Value> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\n") {
        match daemon.read(&mut byte) {
            Ok(1) => line.push(byte[0]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => break,
        }
    }
    let report = serde_json::from_slice::<Report>(&line);
    report
        .map_err(|_| {
            Error::failed("the daemon has ended, or has another version").hint(
                "its log is varve.log in the store; what was being received is there as a whole or not at all, as `varve snapshot list` \
                 tells when it is mounted again; `varve upgrade` has this version take over",
            )
        })?
        .into_value()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use varve_fs::stream::ReceiveError;
    use varve_vfs::FsError;

    use super::*;
    use crate::control::answer;

    /// What a daemon that had died did not send was told as something that could not be written.
    #[test]
    fn who_cut_a_stream_is_told() {
        let mut out = Vec::new();
        let hear = |sent: &[u8], out: &mut dyn Write| {
            let (mut daemon, client) = UnixStream::pair().unwrap();
            daemon.write_all(sent).unwrap();
            drop(daemon);
            hear_stream(Path::new("/srv/store"), client, out).unwrap_err().message().to_owned()
        };
        let said = hear(b"\x05\0\0\0begin\x09\0\0\0cut", &mut out);
        assert!(said.contains("the daemon of /srv/store does not answer"), "{said}");
        assert_eq!(out, b"begincut");
        let said = hear(b"\x05\0\0\0begin\0\0\0\0", &mut &mut [0; 3][..]);
        assert!(said.contains("cannot be written"), "{said}");
    }

    /// Interrupted while it reads, as by SIGCONT, and once for good.
    struct Stopped<'a>(bool, &'a [u8]);

    impl Read for Stopped<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0 = !self.0;
            if self.0 { Err(io::ErrorKind::Interrupted.into()) } else { self.1.read(buffer) }
        }
    }

    /// Who was stopped and went on while a daemon committed was told that it had gone.
    #[test]
    fn who_is_interrupted_hears_the_report() {
        let line = Report::Done(json!({ "rows": 7 })).line();
        assert_eq!(report(Stopped(false, line.as_bytes())).unwrap(), json!({ "rows": 7 }));
        let said = report(Stopped(false, b"{")).unwrap_err();
        assert!(
            said.next_step().is_some_and(|next| next.contains("varve snapshot list")),
            "{said}"
        );
    }

    /// A daemon that compares large files says nothing for as long as that takes. It was given up after ten minutes, and when it was
    /// asked to go on again at the same place.
    #[test]
    fn a_daemon_that_is_silent_is_not_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let opened = std::fs::File::open(dir.path()).unwrap().into();
        let (listener, _name) = crate::socket::listen(opened, "control", &|| false).unwrap();
        let client = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut client, _) = listener.accept().unwrap();
                answer(&mut client, &Report::Done(Value::Null));
                // All of the request, or what is not read cuts the answer off.
                let mut line = String::new();
                io::BufRead::read_line(&mut io::BufReader::new(&client), &mut line).unwrap();
            });
            ask_for(&Target::of_store(dir.path()), ViewRequest::Receive).unwrap()
        });
        assert_eq!(client.read_timeout().unwrap(), None);
    }

    /// Who had no room for a stream was not told that what had come was kept, and took the rest of it.
    #[test]
    fn who_has_no_room_for_a_stream_is_told_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        store::format(&from, &FormatOptions::default()).unwrap();
        let there = FileSystem::open(&from, &MountOptions::default()).unwrap();
        there.inner().create_snapshot("one").unwrap();
        let (mut stream, request) =
            (Vec::new(), SendRequest { name: "one".to_owned(), since: None, resumed: None });
        send_from(&there.inner(), &request, &mut stream).unwrap();
        there.close().unwrap();
        stream.truncate(stream.len() - 1);
        receive(&to, &mut &stream[..]).unwrap_err();
        let here = FileSystem::open(&to, &MountOptions::default()).unwrap();
        let full = FsError::NoSpace("the disk is full; make room".to_owned());
        let said = refused(Some(&here.inner()), ReceiveError::from(full));
        assert!(said.message().contains("nothing was received yet: the disk is full"), "{said}");
        let next = said.next_step().unwrap();
        for step in ["--token", "--resume", "--discard"] {
            assert!(next.contains(step), "{next}");
        }
        here.close().unwrap();
    }
}
