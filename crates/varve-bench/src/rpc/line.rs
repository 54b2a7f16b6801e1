//! A client of two connections, one for notices and one for requests, without caches: it sends all that it can send at once, and reads
//! all that has come at once.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use varve_wire::frame::{self, Frame, Kind};
use varve_wire::{Answer, Header, Hello, Node, Request, Welcome};

use super::Counts;
use super::work::{Call, Files, Task, caller};
use crate::Failure;
use crate::meter::{check_interrupt, cpu_of_this_thread};

/// Room for what has come.
const READ_BYTES: usize = 256 << 10;

/// One direction of a connection, decoded.
struct Input {
    stream: TcpStream,
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
}

impl Input {
    fn new(stream: TcpStream) -> Input {
        Input { stream, bytes: vec![0; READ_BYTES], begin: 0, end: 0 }
    }

    /// Reads what is there, and waits for something if nothing is.
    fn read(&mut self) -> Result<(), Failure> {
        self.bytes.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        if self.end == self.bytes.len() {
            self.bytes.resize(2 * self.end, 0);
        }
        match self.stream.read(&mut self.bytes[self.end..])? {
            0 => Err("the server has closed the connection".into()),
            read => {
                self.end += read;
                Ok(())
            }
        }
    }

    /// The next message that has come, and where the one behind it begins.
    fn next(&self) -> Result<Option<(Frame<'_>, usize)>, Failure> {
        let frame = frame::first(&self.bytes[self.begin..self.end])?;
        Ok(frame.map(|frame| {
            let behind = self.begin + frame.bytes;
            (frame, behind)
        }))
    }
}

/// A client.
pub(super) struct Line {
    input: Input,
    output: Vec<u8>,
    root: Node,
    /// The last number of each slot.
    numbers: Vec<u64>,
    files: u64,
    notices: Notices,
}

/// The connection for notices, whose thread acknowledges them.
struct Notices {
    stream: TcpStream,
    count: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Notices {
    fn new(stream: TcpStream) -> Result<Notices, Failure> {
        let count = Arc::new(AtomicU64::new(0));
        let (mut input, counted) = (Input::new(stream.try_clone()?), Arc::clone(&count));
        let acknowledge = move || {
            let mut output = Vec::new();
            while input.read().is_ok() {
                output.clear();
                while let Ok(Some((frame, next))) = input.next() {
                    let header = Header { kind: Kind::Acknowledgement, ..frame.header };
                    varve_wire::encode(&mut output, header, &(), &[]);
                    counted.fetch_add(1, Ordering::Relaxed);
                    input.begin = next;
                }
                if input.stream.write_all(&output).is_err() {
                    return;
                }
            }
        };
        let thread = Some(std::thread::Builder::new().spawn(acknowledge)?);
        Ok(Notices { stream, count, thread })
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        // Its thread reads the end.
        let _ = self.stream.shutdown(Shutdown::Both);
        self.thread.take().map(JoinHandle::join);
    }
}

/// Connects, and introduces the client.
fn hello(
    address: SocketAddr,
    client: [u64; 2],
    connection: u32,
) -> Result<(Input, Welcome), Failure> {
    let stream = TcpStream::connect(address).map_err(|error| format!("{address}: {error}"))?;
    stream.set_nodelay(true)?;
    let name = "varve-bench";
    let hello =
        Hello { client, connection, features: 0, name, path: b"", read_only: false, token: b"" };
    let mut message = Vec::new();
    varve_wire::encode(&mut message, Header::new(Kind::Hello, 0), &hello, &[]);
    (&stream).write_all(&message)?;
    let mut input = Input::new(stream);
    loop {
        input.read()?;
        let Some((frame, next)) = input.next()? else { continue };
        if frame.header.kind != Kind::Welcome {
            return Err(format!("{address} does not let this client in").into());
        }
        let welcome = varve_wire::decode(frame.body)?;
        input.begin = next;
        return Ok((input, welcome));
    }
}

impl Line {
    /// Connects to a server as `client`.
    pub(super) fn connect(address: SocketAddr, client: [u64; 2]) -> Result<Line, Failure> {
        let (notices, welcome) = hello(address, client, 0)?;
        let (input, _) = hello(address, client, 1)?;
        Ok(Line {
            input,
            output: Vec::new(),
            root: Node { ino: welcome.root, place: None },
            numbers: vec![0; welcome.slots as usize],
            files: 0,
            notices: Notices::new(notices.stream)?,
        })
    }

    /// Makes a directory, unless another client has made it.
    pub(super) fn mkdir(&mut self, name: &[u8], is_new: bool) -> Result<Node, Failure> {
        let parent = self.root;
        self.put(
            0,
            &match is_new {
                true => Request::Mkdir { caller: caller(), parent, name, perm: 0o755 },
                false => Request::Lookup { parent, name },
            },
        )?;
        self.send()?;
        loop {
            self.input.read()?;
            let Some((frame, next)) = self.input.next()? else { continue };
            let answer = varve_wire::decode(frame.body)?;
            self.input.begin = next;
            let Answer::Entry(entry) = answer else {
                return Err(format!("a directory: {answer:?}").into());
            };
            return Ok(Node { ino: entry.attr.ino, place: entry.place });
        }
    }

    /// Makes a request part of what is sent next.
    fn put(&mut self, slot: usize, request: &Request<'_>) -> Result<(), Failure> {
        let number = self.numbers.get_mut(slot).ok_or("the server has too few slots")?;
        *number += 1;
        let header = Header { slot: slot as u32, number: *number, ..Header::new(Kind::Request, 0) };
        varve_wire::encode(&mut self.output, header, request, &[]);
        Ok(())
    }

    fn send(&mut self) -> Result<u64, Failure> {
        self.input.stream.write_all(&self.output)?;
        let bytes = self.output.len() as u64;
        self.output.clear();
        Ok(bytes)
    }

    /// Makes all calls of a phase, `depth` at a time.
    pub(super) fn run(
        &mut self,
        call: Call,
        files: &mut Files,
        depth: u32,
    ) -> Result<Counts, Failure> {
        let (mut counts, cpu) = (Counts::default(), cpu_of_this_thread());
        let notices = self.notices.count.load(Ordering::Relaxed);
        let (mut next, tasks) = (0, files.tasks(call));
        let mut slots: Vec<Option<Task>> = Vec::new();
        slots.resize_with((depth as usize).min(tasks), || None);
        let mut under_way = 0;
        for slot in 0..slots.len() {
            self.begin((slot, &mut slots), call, &mut next, files)?;
            under_way += 1;
        }
        counts.requests += under_way;
        while under_way > 0 {
            check_interrupt()?;
            counts.sent_bytes += self.send()?;
            let before = self.input.end - self.input.begin;
            self.input.read()?;
            counts.received_bytes += (self.input.end - self.input.begin - before) as u64;
            while let Some((Frame { header, body, data, .. }, behind)) = self.input.next()? {
                let slot = header.slot as usize;
                let task = slots.get_mut(slot).and_then(Option::as_mut);
                let task = task.ok_or("an answer to no request")?;
                let (done, goes_on) = task.answered(&varve_wire::decode(body)?, data, files)?;
                counts.done += done;
                self.input.begin = behind;
                if goes_on {
                    let task = slots[slot].take().ok_or("no task")?;
                    self.put(slot, &task.request(files))?;
                    slots[slot] = Some(task);
                } else if next < tasks {
                    self.begin((slot, &mut slots), call, &mut next, files)?;
                } else {
                    slots[slot] = None;
                    under_way -= 1;
                    continue;
                }
                counts.requests += 1;
            }
        }
        counts.notices = self.notices.count.load(Ordering::Relaxed) - notices;
        counts.cpu = cpu_of_this_thread().saturating_sub(cpu);
        Ok(counts)
    }

    /// Begins the next task in a slot.
    fn begin(
        &mut self,
        (slot, slots): (usize, &mut [Option<Task>]),
        call: Call,
        next: &mut usize,
        files: &Files,
    ) -> Result<(), Failure> {
        self.files += 1;
        let task = Task::new(call, *next, self.files, files);
        *next += 1;
        self.put(slot, &task.request(files))?;
        slots[slot] = Some(task);
        Ok(())
    }
}
