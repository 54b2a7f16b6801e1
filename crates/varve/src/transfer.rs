//! Snapshots sent to streams and received from them, on a store itself or by the daemon that has it mounted.
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
//! A daemon that will not take part says why in the place of being ready. It serves such a client on a thread of its own, so that others are heard meanwhile.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::{Value, json};
use varve_fs::stream::frame::{FrameReader, Header, SnapshotId};
use varve_fs::stream::{Receipt, ReceiveError, Received, Totals, read_header};
use varve_fs::{CommitError, Committed, FormatOptions, MountOptions, VarveFs};
use varve_vfs::FsError;

use crate::mounting::{Report, find_mount};
use crate::store::{self, FileSystem};
use crate::upgrade::control;
use crate::upgrade::request::Request;
pub use crate::upgrade::request::SendRequest;
use crate::views::{Asked, ViewRequest, no_snapshot};
use crate::{Error, Result};

/// The most bytes of a block.
const BLOCK_BYTES_MAX: usize = 1 << 20;
/// Bytes of a stream that are passed on at once.
const PIECE_BYTES: usize = 64 << 10;

impl SendRequest {
    /// What goes on with the receipt that `token` stands for.
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

/// Writes a snapshot of the store at `path`, or the one mounted there, to `out`.
pub fn send(path: &Path, request: &SendRequest, out: &mut dyn Write) -> Result<Value> {
    let asked = Asked::at(path)?;
    if !store::is_served(&asked.store)? {
        let file_system = FileSystem::open(&asked.store, &MountOptions::default())?;
        let sent = send_from(&file_system.inner(), request, out);
        file_system.close()?;
        return sent;
    }
    hear_stream(&asked.store, ask_for(&asked, ViewRequest::Send(request.clone()))?, out)
}

/// Writes what the daemon of `store` sends to `out`.
fn hear_stream(store: &Path, mut daemon: UnixStream, out: &mut dyn Write) -> Result<Value> {
    let mut blocks = BlockReader::new(&mut daemon);
    let passed = pass(&mut blocks, out).and_then(|()| out.flush().map_err(Cut::Writing));
    passed.map_err(|cut| match cut {
        Cut::Reading(error) => lost(store, &error),
        Cut::Writing(error) => Error::failed(format!("the stream cannot be written: {error}"))
            .hint("is there room where it goes, and is its reader still there?"),
    })?;
    report(&daemon)
}

/// Receives a snapshot into the store at `path`, the one mounted there, or a new one.
pub fn receive(path: &Path, input: &mut dyn Read) -> Result<Value> {
    let held = if is_for_a_new_store(path)? {
        None
    } else {
        let asked = Asked::at(path)?;
        store::is_served(&asked.store)?.then_some(asked)
    };
    let Some(asked) = held else { return receive_here(path, input) };
    let mut daemon = ask_for(&asked, ViewRequest::Receive)?;
    let mut blocks = BlockWriter(&mut daemon);
    match pass(input, &mut blocks) {
        Ok(()) => {
            let _ = blocks.end();
            report(&daemon)
        }
        // A daemon that has had enough says why.
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

/// Whether a store is to be made at `path`: nothing is there, or an empty directory that is not on a mount.
fn is_for_a_new_store(path: &Path) -> Result<bool> {
    match std::fs::read_dir(path) {
        Ok(mut items) => Ok(items.next().is_none() && find_mount(path)?.is_none()),
        Err(_) => {
            let found = std::fs::symlink_metadata(path);
            Ok(found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound))
        }
    }
}

/// Why not all of a stream got through.
#[derive(Debug)]
enum Cut {
    Reading(io::Error),
    Writing(io::Error),
}

/// Writes what there is to read.
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

fn told(received: &Received) -> Value {
    let Totals { rows, files, bytes } = received.totals;
    json!({ "name": received.snapshot.name, "id": received.snapshot.id, "rows": rows, "files": files, "bytes": bytes })
}

/// Sends from an open store.
fn send_from(fs: &VarveFs, request: &SendRequest, out: &mut dyn Write) -> Result<Value> {
    let SendRequest { name, since, resumed } = request;
    let sent = fs.send_snapshot(name, since.as_deref(), resumed.as_ref(), out, &mut |_| ());
    let Totals { rows, files, bytes } = sent.map_err(|error| match error {
        FsError::NotFound => {
            let known = fs.view_names(varve_fs::ViewKind::Snapshot).unwrap_or_default();
            let is_missing = |name: &&String| known.iter().all(|view| view.name != **name);
            no_snapshot(since.as_ref().filter(is_missing).unwrap_or(name), error)
        }
        FsError::Invalid(rule) if resumed.is_some() => {
            Error::failed(rule).hint("send the snapshot from its beginning")
        }
        FsError::Invalid(rule) => {
            Error::failed(rule).hint("name the later snapshot, and the older one with --since")
        }
        FsError::Conflict(dropped) => {
            Error::failed(dropped).hint("make a snapshot of what is there now, and send that")
        }
        other => Error::from(other),
    })?;
    Ok(json!({ "name": name, "rows": rows, "files": files, "bytes": bytes }))
}

/// Receives into an open store. `follow` is told of what has changed.
fn receive_into(
    fs: &VarveFs,
    header: &Header,
    stream: &mut FrameReader<'_>,
    follow: impl FnOnce(&Committed),
) -> Result<Received> {
    let done = fs.receive_snapshot(header, stream, &mut |_| ());
    let committed = match &done {
        Ok(received) => Some(&received.committed),
        Err(error) => error.committed(),
    };
    if let Some(committed) = committed {
        follow(committed);
    }
    done.map_err(|error| refused(Some(fs), error))
}

fn refused(fs: Option<&VarveFs>, error: ReceiveError) -> Error {
    match error {
        ReceiveError::Refused(text, hint) => Error::failed(text).hint(hint),
        ReceiveError::Stream(text) => Error::failed(format!("nothing was received: {text}"))
            .hint("send it again; `varve snapshot send` says whether it could write all of it"),
        ReceiveError::Interrupted(error) => {
            let receipt = fs.and_then(|fs| fs.interrupted_receipt().ok().flatten());
            let error = Error::failed(format!("nothing was received yet: {error}"));
            match receipt.filter(|receipt| receipt.position.is_some()) {
                Some(receipt) => error.hint(format!(
                    "go on with `varve snapshot send STORE --resume {}`",
                    receipt.token()
                )),
                None => error.hint("send it again"),
            }
        }
        ReceiveError::Commit(CommitError::InUse(paths)) => Error::failed(format!(
            "nothing was received, as large files are open for writing:\n  {}",
            paths.join("\n  ")
        ))
        .hint("close them, and receive again"),
        ReceiveError::Commit(CommitError::Conflict(paths)) => Error::failed(format!(
            "nothing was received, as programs have changed:\n  {}",
            paths.join("\n  ")
        ))
        .hint("stop them, roll back to the last snapshot, and receive again"),
        // The limits of the snapshot hold.
        ReceiveError::Commit(CommitError::OverLimits(trees)) => Error::failed(trees.join(", ")),
        ReceiveError::Commit(CommitError::Unfinished(_, error)) => Error::from(error),
        ReceiveError::Commit(CommitError::GaveWay(why)) => {
            Error::failed(format!("nothing was received: {why}"))
        }
        ReceiveError::Commit(CommitError::Failed(error)) => match error {
            FsError::Invalid(rule) => Error::failed("the snapshot's name cannot be one").hint(rule),
            other => cut_short(fs, other),
        },
    }
}

/// The store itself could not go on with what was coming.
fn cut_short(fs: Option<&VarveFs>, error: FsError) -> Error {
    let is_full = matches!(error, FsError::NoSpace(_));
    let cause = Error::from(error);
    let receipt = fs.and_then(|fs| fs.interrupted_receipt().ok().flatten());
    if receipt.and_then(|receipt| receipt.position).is_none() {
        return cause;
    }
    let first = match cause.next_step() {
        Some(next) => next.to_owned(),
        None if is_full => "make room".to_owned(),
        None => "mend that".to_owned(),
    };
    Error::failed(format!("nothing was received yet: {}", cause.message())).hint(format!(
        "{first}; what has come is kept, and takes room: `varve snapshot receive --token` prints with what `varve snapshot send \
         --resume` goes on, `varve snapshot receive --discard` drops it"
    ))
}

/// The token of what was interrupted at an open store, or nothing.
pub(crate) fn token(fs: &VarveFs) -> Result<Value> {
    let receipt = fs.interrupted_receipt()?;
    let receipt = receipt.filter(|receipt| receipt.position.is_some());
    Ok(json!({ "token": receipt.as_ref().map(Receipt::token) }))
}

/// Drops what was interrupted at an open store.
pub(crate) fn discard(fs: &VarveFs) -> Result<Value> {
    match fs.discard_receipt() {
        Ok(()) => Ok(Value::Null),
        Err(ReceiveError::Commit(CommitError::Failed(error))) => Err(error.into()),
        Err(error) => Err(refused(Some(fs), error)),
    }
}

/// Serves a client who asked a daemon for a stream; `follow` is told of what has changed by which snapshot, also where not all
/// went well.
pub(crate) fn serve(
    fs: &VarveFs,
    request: &ViewRequest,
    client: &mut UnixStream,
    follow: impl FnOnce(&SnapshotId, &Committed),
) {
    // Whoever has gone has hung up. Who is there may say nothing, and take nothing, as long as large files are compared at the other end, a
    // commit takes, or he is stopped.
    let patient = client.set_read_timeout(None).and_then(|()| client.set_write_timeout(None));
    if let Err(error) = patient {
        return control::answer(client, &Report::of(&unreadable(&error)));
    }
    control::answer(client, &Report::Done(Value::Null));
    let done = match request {
        ViewRequest::Send(request) => {
            let mut blocks = BlockWriter(client);
            let sent = send_from(fs, request, &mut blocks);
            let _ = blocks.end();
            sent
        }
        _ => take(fs, client, follow).map(|received| told(&received)),
    };
    control::answer(client, &done.map_or_else(|error| Report::of(&error), Report::Done));
    // Who is told that nothing is received need not send the rest of it. What has come but was not read would cut the
    // answer off; nothing more comes after this.
    let _ = client.shutdown(Shutdown::Both);
    let _ = io::copy(client, &mut io::sink());
}

fn take(
    fs: &VarveFs,
    client: &mut UnixStream,
    follow: impl FnOnce(&SnapshotId, &Committed),
) -> Result<Received> {
    let mut blocks = BlockReader::new(client);
    let mut stream = FrameReader::new(&mut blocks).map_err(|error| unreadable(&error))?;
    let header = read_header(&mut stream).map_err(|error| refused(None, error))?;
    receive_into(fs, &header, &mut stream, |committed| follow(&header.snapshot, committed))
}

fn unreadable(error: &io::Error) -> Error {
    Error::failed(format!("nothing was received: {error}"))
        .hint("give what `varve snapshot send` has written")
}

fn lost(store: &Path, error: &io::Error) -> Error {
    Error::failed(format!("the daemon of {} does not answer: {error}", store.display()))
        .hint("`varve status` tells whether it runs; its log is varve.log in the store")
}

/// Asks the daemon of a store for its part in a stream, and hears that it is ready.
fn ask_for(asked: &Asked, request: ViewRequest) -> Result<UnixStream> {
    let store = &asked.store;
    let mut daemon = asked.answered_by(control::connect(store), |error| lost(store, &error))?;
    let mut line = serde_json::to_string(&Request::Views(request))
        .map_err(|error| Error::usage(format!("the request cannot be sent: {error}")))?;
    line.push('\n');
    // A daemon that does not hear us says why before it hangs up.
    let _ = daemon.write_all(line.as_bytes());
    report(&daemon)?;
    Ok(daemon)
}

/// Reads one line, no byte more.
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
            Error::failed("the daemon has gone, or is of another version").hint(
                "its log is varve.log in the store; what was being received is there as a whole or not at all, as `varve snapshot list` \
                 tells when it is mounted again; `varve upgrade` has this version take over",
            )
        })?
        .into_value()
}

/// Cuts what is written into blocks.
struct BlockWriter<'a>(&'a mut UnixStream);

impl BlockWriter<'_> {
    fn end(&mut self) -> io::Result<()> {
        self.0.write_all(&0_u32.to_le_bytes())
    }
}

impl Write for BlockWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let block = &bytes[..bytes.len().min(BLOCK_BYTES_MAX)];
        if !block.is_empty() {
            self.0.write_all(&(block.len() as u32).to_le_bytes())?;
            self.0.write_all(block)?;
        }
        Ok(block.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Puts blocks together again.
struct BlockReader<'a> {
    input: &'a mut UnixStream,
    left: usize,
    ended: bool,
}

impl<'a> BlockReader<'a> {
    fn new(input: &'a mut UnixStream) -> BlockReader<'a> {
        BlockReader { input, left: 0, ended: false }
    }
}

impl Read for BlockReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.ended {
            let mut len = [0; 4];
            self.input.read_exact(&mut len)?;
            self.left = u32::from_le_bytes(len) as usize;
            self.ended = self.left == 0;
        }
        if self.ended {
            return Ok(0);
        }
        let wanted = buffer.len().min(self.left);
        let count = self.input.read(&mut buffer[..wanted])?;
        if count == 0 && wanted > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
        let (listener, _name) = crate::socket::listen(opened, "control").unwrap();
        let client = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut client, _) = listener.accept().unwrap();
                control::answer(&mut client, &Report::Done(Value::Null));
                // All of the request, or what is not read cuts the answer off.
                let mut line = String::new();
                io::BufRead::read_line(&mut io::BufReader::new(&client), &mut line).unwrap();
            });
            ask_for(&Asked::of_store(dir.path()), ViewRequest::Receive).unwrap()
        });
        assert_eq!(client.read_timeout().unwrap(), None);
    }

    /// A daemon that sent gave up while the one that was to receive compared large files, or its client was stopped.
    #[test]
    fn a_daemon_waits_for_its_client() {
        let dir = tempfile::tempdir().unwrap();
        store::format(dir.path(), &FormatOptions::default()).unwrap();
        let file_system = FileSystem::open(dir.path(), &MountOptions::default()).unwrap();
        let fs = file_system.inner();
        let (mut daemon, client) = UnixStream::pair().unwrap();
        let waits = daemon.try_clone().unwrap();
        // Until it is understood a request has little time.
        daemon.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        let patience = std::thread::scope(|scope| {
            scope.spawn(|| serve(&fs, &ViewRequest::Receive, &mut daemon, |_, _| ()));
            report(&client).unwrap();
            let patience = (waits.read_timeout().unwrap(), waits.write_timeout().unwrap());
            client.shutdown(Shutdown::Both).unwrap();
            patience
        });
        assert_eq!(patience, (None, None));
        drop(fs);
        file_system.close().unwrap();
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
