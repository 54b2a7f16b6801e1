//! Connections to a server, and the requests on them.
//!
//! A client has one connection for notices and one for each CPU for requests. A request takes a slot and goes out on the
//! connection of its thread ([`Transport::call`]). Threads that wait for answers take turns at reading: the first one
//! reads, puts answers into their slots and wakes their threads, until its own answer is there; then the next one
//! reads. So a single thread sends and receives without the help of another.
//!
//! A connection that breaks is made again by the thread that notices, with growing pauses, and the requests of that
//! connection that have no answer are sent once more under their numbers. If the server has begun anew, or has ended
//! the session, the open files are opened again first ([`Transport::recover`]).
//!
//! A call may wait for a limited time ([`Options::wait_max`]). When that is over it fails and abandons its request, which
//! the server executes all the same, now or later. The answer frees the slot; whoever reads the connection next finds
//! it, and a call that finds no free slot reads for that ([`Transport::read_abandoned`]). A file that an abandoned request
//! has opened is closed.
//!
//! Invariant: a slot is used again only after the answer to its request has arrived.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_wire::frame::{self, Frame, HEADER_BYTES, Kind};
use varve_wire::{Answer, FrameError, Header, Hello, Node, Notice, Refused, Request, Welcome};

use crate::client::{ConnectError, Inner, Options};
use crate::deadline::Deadline;
use crate::dial::{CONNECT_MAX, GLANCE, dial, unheard};

/// The most connections for requests.
const LINES_MAX: usize = 8;
/// Pauses between attempts grow from the first to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The number of the connection for notices.
const NOTICES: u32 = 0;

/// An answer as it came.
pub(crate) struct Received {
    bytes: Vec<u8>,
    body_end: usize,
}

impl Received {
    /// Decodes the answer.
    pub(crate) fn answer(&self) -> Result<Answer, FrameError> {
        varve_wire::decode(&self.bytes[HEADER_BYTES..self.body_end])
    }

    /// Returns the data behind the answer.
    pub(crate) fn data(&self) -> &[u8] {
        &self.bytes[self.body_end..]
    }

    /// Returns the data behind the answer.
    pub(crate) fn into_data(self) -> bytes::Bytes {
        bytes::Bytes::from(self.bytes).split_off(self.body_end)
    }
}

/// What becomes of a call.
#[derive(Default)]
enum State {
    #[default]
    Free,
    /// It has no answer yet. Nobody waits for the answer if `is_detached`.
    Sent {
        is_detached: bool,
    },
    /// It has no answer yet, and its thread has given up.
    Abandoned,
    /// Its thread reads the connection next.
    Leads,
    Answered(Received),
}

impl State {
    /// Whether an answer is still to come.
    fn is_open(&self) -> bool {
        matches!(self, State::Sent { .. } | State::Abandoned | State::Leads)
    }
}

#[derive(Default)]
struct Slot {
    call: Mutex<Pending>,
    changed: Condvar,
}

#[derive(Default)]
struct Pending {
    number: u64,
    /// The connection on which it was sent.
    line: usize,
    request: Vec<u8>,
    state: State,
}

impl Pending {
    /// Makes the message of the next request in this slot, which is number `at`.
    fn encode(&mut self, at: usize, request: &Request<'_>, data: &[u8]) {
        self.number += 1;
        let header =
            Header { slot: at as u32, number: self.number, ..Header::new(Kind::Request, 0) };
        self.request.clear();
        self.request.shrink_to(64 << 10);
        varve_wire::encode(&mut self.request, header, request, data);
    }

    /// Returns the request that closes what this one, to whose answer nobody has waited, has opened.
    fn closing(&self, answer: &[u8]) -> Option<Request<'static>> {
        let sent = frame::first(&self.request).ok()??;
        let (node, file) =
            match (varve_wire::decode(sent.body).ok()?, varve_wire::decode(answer).ok()?) {
                (Request::Open { node, file, .. }, Answer::Opened(_) | Answer::OpenedAt(..)) => {
                    (node, file)
                }
                (
                    Request::Create { file, .. } | Request::Tmpfile { file, .. },
                    Answer::Created(entry, _),
                ) => (Node { ino: entry.attr.ino, place: entry.place }, file),
                _ => return None,
            };
        Some(Request::Release { node, file })
    }
}

/// One connection, made again when it breaks.
struct Line {
    number: u32,
    /// The connection as it is now, and how often it was made.
    stream: Mutex<(Option<Arc<TcpStream>>, u64)>,
    /// Held while writing, so that messages do not mix.
    writing: Mutex<()>,
    /// Held by the thread that reads.
    reading: Mutex<Input>,
    /// Slots whose threads wait while another thread reads.
    followers: Mutex<Vec<usize>>,
    /// Held while the connection is made.
    connecting: Mutex<()>,
}

/// What came and is not decoded.
#[derive(Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    begin: usize,
    /// Which connection it came from.
    made: u64,
}

/// In which session the open files are open.
struct Known {
    /// The epoch of the server, and the session.
    session: (u32, u32),
    /// The number of the last request of a recovery. It grows over all of them: a session whose recovery was cut off knows
    /// the numbers of that one.
    number: u64,
}

/// All connections of a client.
pub(crate) struct Transport {
    options: Options,
    lines: Vec<Line>,
    slots: Vec<Slot>,
    free: Mutex<Vec<usize>>,
    freed: Condvar,
    known: Mutex<Known>,
    is_ending: AtomicBool,
}

/// Why a call has no answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The client ends.
    Ending,
    /// The server does not let the client in any more.
    Refused(String),
    /// There was no answer within the time that calls may wait.
    TimedOut(String),
}

thread_local! {
    static LINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

static NEXT_LINE: AtomicUsize = AtomicUsize::new(0);

fn line_of_thread(lines: usize) -> usize {
    LINE.with(|line| {
        if line.get() == usize::MAX {
            line.set(NEXT_LINE.fetch_add(1, Ordering::Relaxed));
        }
        // The first connection is for notices.
        1 + line.get() % (lines - 1)
    })
}

impl Line {
    fn new(number: u32) -> Line {
        Line {
            number,
            stream: Mutex::default(),
            writing: Mutex::default(),
            reading: Mutex::default(),
            followers: Mutex::default(),
            connecting: Mutex::default(),
        }
    }

    /// Returns the connection, and how often it was made.
    fn current(&self) -> (Option<Arc<TcpStream>>, u64) {
        let stream = self.stream.lock();
        (stream.0.clone(), stream.1)
    }

    /// Sends a message. If that fails the connection ends, and what has no answer is sent on the next one.
    fn send(&self, message: &[u8], deadline: Deadline) -> io::Result<()> {
        let (Some(stream), _) = self.current() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let sent = match deadline.lock(&self.writing) {
            Some(_writing) => (&*stream).write_all(message),
            None => Err(io::ErrorKind::TimedOut.into()),
        };
        sent.inspect_err(|_| {
            // Wakes the thread that reads it.
            let _ = stream.shutdown(Shutdown::Both);
        })
    }
}

impl Input {
    /// Reads the next message from `stream`. After `TimedOut` the rest of a message that has begun may be read later.
    pub(crate) fn next(&mut self, stream: &TcpStream, deadline: Deadline) -> io::Result<Frame<'_>> {
        loop {
            let wrong = |error: FrameError| io::Error::new(io::ErrorKind::InvalidData, error);
            let have = self.bytes.len() - self.begin;
            let expected = frame::expected_bytes(&self.bytes[self.begin..]).map_err(wrong)?;
            if expected.is_some_and(|expected| expected <= have) {
                break;
            }
            if self.begin > 0 {
                self.bytes.drain(..self.begin);
                self.begin = 0;
            }
            let missing = expected.unwrap_or(0).saturating_sub(have);
            let end = self.bytes.len();
            self.bytes.resize(end + missing.max(16 << 10), 0);
            let read = loop {
                match (&mut &*stream).read(&mut self.bytes[end..]) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if deadline.has_passed() {
                            break Err(io::ErrorKind::TimedOut.into());
                        }
                    }
                    read => break read,
                }
            };
            self.bytes.truncate(end + read.as_ref().copied().unwrap_or(0));
            if read? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let frame = frame::first(&self.bytes[self.begin..])
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let frame = frame.ok_or(io::ErrorKind::InvalidData)?;
        self.begin += frame.bytes;
        Ok(frame)
    }

    fn restart(&mut self, made: u64) {
        if self.made != made {
            self.bytes.clear();
            (self.begin, self.made) = (0, made);
        }
    }
}

impl Transport {
    /// Connects to the server, once for notices and once to learn what it serves.
    pub(crate) fn connect(options: Options) -> Result<(Transport, Welcome, u32), ConnectError> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(LINES_MAX);
        let lines: Vec<Line> = (0..=cpus).map(|number| Line::new(number as u32)).collect();
        let (stream, welcome, epoch) = hello(&options, NOTICES, Deadline::NEVER)?;
        *lines[0].stream.lock() = (Some(Arc::new(stream)), 1);
        let slots = welcome.slots.clamp(2, 4096) as usize;
        let transport = Transport {
            options,
            lines,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            // The last slot is for requests that come before all others on a new session.
            free: Mutex::new((0..slots - 1).rev().collect()),
            freed: Condvar::new(),
            known: Mutex::new(Known { session: (epoch, welcome.session), number: 0 }),
            is_ending: AtomicBool::new(false),
        };
        Ok((transport, welcome, epoch))
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Returns whether the server cannot be reached.
    pub(crate) fn is_away(&self) -> bool {
        self.lines[0].connecting.is_locked()
    }

    /// Ends all connections. Calls fail from then on.
    pub(crate) fn end(&self) {
        self.is_ending.store(true, Ordering::Release);
        for line in &self.lines {
            if let Some(stream) = &line.stream.lock().0 {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        for slot in &self.slots {
            let _call = slot.call.lock();
            slot.changed.notify_all();
        }
        self.freed.notify_all();
    }

    /// Takes a free slot.
    fn take_slot(&self, inner: &Inner, deadline: Deadline) -> Result<usize, CallError> {
        loop {
            let mut free = self.free.lock();
            if self.is_ending() {
                return Err(CallError::Ending);
            }
            if let Some(slot) = free.pop() {
                return Ok(slot);
            }
            if deadline.is_never() {
                self.freed.wait(&mut free);
                continue;
            }
            drop(free);
            if deadline.has_passed() {
                return Err(self.timed_out("as many calls as it allows have no answer"));
            }
            if !self.read_abandoned(inner, deadline)? {
                let mut free = self.free.lock();
                if free.is_empty() {
                    deadline.within(GLANCE).wait(&self.freed, &mut free);
                }
            }
        }
    }

    /// Reads for a moment on a connection that has answers to come for which nobody waits. Returns whether there is one
    /// that no other thread reads.
    fn read_abandoned(&self, inner: &Inner, deadline: Deadline) -> Result<bool, CallError> {
        let mut is_awaited = [false; LINES_MAX + 1];
        for slot in &self.slots {
            let Some(call) = slot.call.try_lock() else { continue };
            is_awaited[call.line] |=
                matches!(call.state, State::Abandoned | State::Sent { is_detached: true });
        }
        let mut has_read = false;
        for (line, _) in self.lines.iter().zip(is_awaited).filter(|(_, is_awaited)| *is_awaited) {
            let Some(mut input) = line.reading.try_lock() else { continue };
            has_read = true;
            let is_free = || !self.free.lock().is_empty();
            let led =
                self.lead(inner, line, &mut input, &is_free, (deadline.within(GLANCE), deadline));
            drop(input);
            self.next_leader(line);
            match led {
                Ok(()) => break,
                Err(CallError::TimedOut(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(has_read)
    }

    fn give_slot(&self, slot: usize) {
        self.free.lock().push(slot);
        self.freed.notify_one();
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn call(
        &self,
        inner: &Inner,
        request: &Request<'_>,
        data: &[u8],
    ) -> Result<Received, CallError> {
        let deadline = Deadline::after(self.options.wait_max);
        let slot = self.begin(inner, request, data, false, deadline)?;
        let answered = self.wait(inner, slot, deadline);
        if answered.is_ok() {
            self.give_slot(slot);
        }
        answered
    }

    /// Sends a request to whose answer nobody waits.
    pub(crate) fn send(&self, inner: &Inner, request: &Request<'_>) -> Result<(), CallError> {
        // Not the last slots: their answers are read by the next calls.
        if self.free.lock().len() < self.slots.len() / 2 {
            return self.call(inner, request, &[]).map(drop);
        }
        let deadline = Deadline::after(self.options.wait_max);
        self.begin(inner, request, &[], true, deadline).map(drop)
    }

    fn begin(
        &self,
        inner: &Inner,
        request: &Request<'_>,
        data: &[u8],
        is_detached: bool,
        deadline: Deadline,
    ) -> Result<usize, CallError> {
        let at = self.take_slot(inner, deadline)?;
        let line = line_of_thread(self.lines.len());
        let mut call = self.slots[at].call.lock();
        call.line = line;
        call.state = State::Sent { is_detached };
        call.encode(at, request, data);
        // A failure is noticed by whoever reads the connection.
        let _ = self.lines[line].send(&call.request, deadline);
        Ok(at)
    }

    fn timed_out(&self, why: &str) -> CallError {
        let waited = self.options.wait_max.unwrap_or_default();
        CallError::TimedOut(format!(
            "{} did not answer within {waited:?}: {why}",
            self.options.address
        ))
    }

    /// Waits for the answer in a slot.
    fn wait(&self, inner: &Inner, at: usize, deadline: Deadline) -> Result<Received, CallError> {
        let slot = &self.slots[at];
        let mut call = slot.call.lock();
        let line = &self.lines[call.line];
        loop {
            if self.is_ending() {
                return Err(CallError::Ending);
            }
            let leads = match std::mem::take(&mut call.state) {
                State::Answered(received) => return Ok(received),
                state => matches!(state, State::Leads),
            };
            if deadline.has_passed() {
                call.state = State::Abandoned;
                drop(call);
                if leads {
                    self.next_leader(line);
                }
                return Err(self.timed_out("the request is under way"));
            }
            call.state = State::Sent { is_detached: false };
            // Whoever reads looks here after it has stopped.
            let mut followers = line.followers.lock();
            if let Some(mut input) = line.reading.try_lock() {
                drop(followers);
                drop(call);
                let is_answered = || matches!(self.slots[at].call.lock().state, State::Answered(_));
                let led = self.lead(inner, line, &mut input, &is_answered, (deadline, deadline));
                drop(input);
                self.next_leader(line);
                call = slot.call.lock();
                if let Err(error) = led {
                    // If its answer comes after all, it gives the slot back.
                    call.state = State::Abandoned;
                    return Err(error);
                }
                continue;
            }
            followers.push(at);
            drop(followers);
            deadline.wait(&slot.changed, &mut call);
            line.followers.lock().retain(|follower| *follower != at);
        }
    }

    /// Lets another thread read, if one waits for that.
    fn next_leader(&self, line: &Line) {
        loop {
            let Some(at) = line.followers.lock().pop() else { return };
            let slot = &self.slots[at];
            let mut call = slot.call.lock();
            if let State::Sent { is_detached: false } = call.state {
                call.state = State::Leads;
                slot.changed.notify_all();
                return;
            }
        }
    }

    /// Reads a connection until `is_done`: until the first deadline, and while the connection is broken until the second.
    fn lead(
        &self,
        inner: &Inner,
        line: &Line,
        input: &mut Input,
        is_done: &dyn Fn() -> bool,
        (until, deadline): (Deadline, Deadline),
    ) -> Result<(), CallError> {
        loop {
            if is_done() {
                return Ok(());
            }
            if until.has_passed() {
                return Err(self.timed_out("the request is under way"));
            }
            let (stream, made) = line.current();
            input.restart(made);
            let read = match &stream {
                Some(stream) => input.next(stream, until),
                None => Err(io::ErrorKind::NotConnected.into()),
            };
            match read {
                Ok(Frame { header, body, data, .. }) if header.kind == Kind::Answer => {
                    self.answered(header, body, data);
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut && until.has_passed() => {}
                Err(error) => self.reconnect(inner, line, made, &error, deadline)?,
            }
        }
    }

    /// Puts an answer into its slot, which becomes free if nobody waits for the answer.
    fn answered(&self, header: Header, body: &[u8], data: &[u8]) {
        let at = header.slot as usize;
        let Some(slot) = self.slots.get(at) else { return };
        let mut call = slot.call.lock();
        if call.number != header.number {
            return;
        }
        if let State::Abandoned = call.state
            && let Some(closing) = call.closing(body)
        {
            call.state = State::Sent { is_detached: true };
            call.encode(at, &closing, &[]);
            let deadline = Deadline::after(self.options.wait_max);
            // If this fails, so does the next read.
            let _ = self.lines[call.line].send(&call.request, deadline);
            return;
        }
        match call.state {
            State::Sent { is_detached: true } | State::Abandoned => {
                call.state = State::Free;
                drop(call);
                self.give_slot(at);
            }
            State::Sent { is_detached: false } | State::Leads => {
                let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len() + data.len());
                bytes.resize(HEADER_BYTES, 0);
                bytes.extend_from_slice(body);
                let body_end = bytes.len();
                bytes.extend_from_slice(data);
                call.state = State::Answered(Received { bytes, body_end });
                slot.changed.notify_all();
            }
            State::Free | State::Answered(_) => {}
        }
    }

    /// Makes a connection again that broke when it had been made `made` times, and sends its requests again.
    fn reconnect(
        &self,
        inner: &Inner,
        line: &Line,
        made: u64,
        why: &io::Error,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let Some(_connecting) = deadline.lock(&line.connecting) else {
            return Err(self.timed_out("another call connects"));
        };
        if line.current().1 != made {
            return Ok(());
        }
        if let Some(broken) = line.current().0 {
            log::info!("connection {} to {}: {why}", line.number, self.options.address);
            let _ = broken.shutdown(Shutdown::Both);
        }
        let (mut pause, pause_max) = PAUSES;
        let stream = loop {
            if self.is_ending() {
                return Err(CallError::Ending);
            }
            let failed = match hello(&self.options, line.number, deadline) {
                Ok((stream, welcome, epoch)) => {
                    match self.recover(inner, &stream, (epoch, welcome.session), deadline) {
                        Ok(()) => break stream,
                        Err(error) => {
                            let _ = stream.shutdown(Shutdown::Both);
                            error.to_string()
                        }
                    }
                }
                Err(ConnectError::Refused(reason)) => return Err(CallError::Refused(reason)),
                Err(error) => error.to_string(),
            };
            if deadline.has_passed() {
                return Err(self.timed_out(&failed));
            }
            log::debug!("{failed}");
            std::thread::sleep(deadline.left(pause));
            pause = (pause * 2).min(pause_max);
        };
        if made > 0 {
            log::info!("connection {} to {} is there again", line.number, self.options.address);
        }
        *line.stream.lock() = (Some(Arc::new(stream)), made + 1);
        let at_line = self.lines.iter().position(|other| std::ptr::eq(other, line));
        for slot in &self.slots {
            let call = slot.call.lock();
            if call.state.is_open() && Some(call.line) == at_line {
                // If this fails too, the next read does.
                let _ = line.send(&call.request, deadline);
            }
        }
        Ok(())
    }

    /// Opens all open files again, unless the session is the one that has them.
    fn recover(
        &self,
        inner: &Inner,
        stream: &TcpStream,
        session: (u32, u32),
        deadline: Deadline,
    ) -> io::Result<()> {
        let known = deadline.lock(&self.known);
        let mut known = known.ok_or_else(|| io::Error::from(io::ErrorKind::TimedOut))?;
        if known.session == session {
            return Ok(());
        }
        let mut input = Input::default();
        let mut ask = |request: &Request<'_>| {
            known.number += 1;
            self.ask_first((stream, deadline), &mut input, (session.0, known.number), request)
        };
        for (file, open) in inner.files.all() {
            let node = inner.nodes.node(open.ino);
            let again = Request::Open { node, flags: open.flags.into(), file, again: true };
            if let Answer::Failed(failure) = ask(&again)? {
                let error = varve_vfs::FsError::from(failure);
                log::error!(
                    "inode {} is not open at {} any more: {error}. Calls on the open file fail; close it and open it again",
                    open.ino,
                    self.options.address
                );
                // Also not at a later server, which does not know for how long the file was not open.
                inner.files.released(file);
            }
        }
        // A server that does not know this does without.
        ask(&Request::Recovered)?;
        // What the server before has said holds no longer than its leases, which the new one waits out.
        inner.leases.recall();
        known.session = session;
        Ok(())
    }

    /// Makes a call on a new connection, before all others.
    fn ask_first(
        &self,
        (stream, deadline): (&TcpStream, Deadline),
        input: &mut Input,
        (epoch, number): (u32, u64),
        request: &Request<'_>,
    ) -> io::Result<Answer> {
        // The last slot is for these.
        let slot = (self.slots.len() - 1) as u32;
        let mut message = Vec::new();
        let header = Header { slot, number, ..Header::new(Kind::Request, epoch) };
        varve_wire::encode(&mut message, header, request, &[]);
        (&*stream).write_all(&message)?;
        loop {
            let Frame { header, body, .. } = input.next(stream, deadline)?;
            if header.kind == Kind::Answer && (header.slot, header.number) == (slot, number) {
                return varve_wire::decode(body)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }

    /// Returns the next notice; `None` when the client ends.
    pub(crate) fn next_notice(&self, inner: &Inner) -> Option<(Header, Notice)> {
        let line = &self.lines[0];
        let mut input = line.reading.lock();
        loop {
            if self.is_ending() {
                return None;
            }
            let (stream, made) = line.current();
            input.restart(made);
            let read = match &stream {
                Some(stream) => input.next(stream, Deadline::NEVER).and_then(|frame| {
                    let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, error);
                    Ok((frame.header, varve_wire::decode(frame.body).map_err(wrong)?))
                }),
                None => Err(io::ErrorKind::NotConnected.into()),
            };
            match read {
                Ok((header, notice)) if header.kind == Kind::Notice => {
                    return Some((header, notice));
                }
                Ok(_) => {}
                Err(error) => match self.reconnect(inner, line, made, &error, Deadline::NEVER) {
                    Ok(()) | Err(CallError::TimedOut(_)) => {}
                    Err(CallError::Ending) => return None,
                    Err(CallError::Refused(reason)) => {
                        log::error!("{}: {reason}", self.options.address);
                        if let Some(front_end) = &*inner.front_end.read() {
                            front_end.refused();
                        }
                        std::thread::sleep(PAUSES.1);
                    }
                },
            }
        }
    }

    /// Tells the server that a notice is obeyed.
    pub(crate) fn acknowledge(&self, header: Header) {
        let mut message = Vec::new();
        varve_wire::encode(&mut message, header, &(), &[]);
        let _ = self.lines[0].send(&message, Deadline::NEVER);
    }
}

/// Makes one connection and introduces the client.
fn hello(
    options: &Options,
    connection: u32,
    deadline: Deadline,
) -> Result<(TcpStream, Welcome, u32), ConnectError> {
    let deadline = deadline.within(CONNECT_MAX);
    let failed = |error: io::Error| ConnectError::Network(options.address.clone(), error);
    let stream = dial(&options.address, deadline)?;
    stream.set_write_timeout(options.wait_max).map_err(failed)?;
    let mut message = Vec::new();
    let hello = Hello {
        client: options.client,
        connection,
        features: 0,
        name: &options.name,
        path: &options.path,
        read_only: options.read_only,
        token: &options.token,
    };
    varve_wire::encode(&mut message, Header::new(Kind::Hello, 0), &hello, &[]);
    (&stream).write_all(&message).map_err(failed)?;
    let mut input = Input::default();
    let heard = input.next(&stream, deadline);
    let Frame { header, body, .. } = heard.map_err(|error| unheard(&options.address, error))?;
    let wrong = |error| ConnectError::Protocol(options.address.clone(), error);
    match header.kind {
        Kind::Welcome => {
            let welcome = varve_wire::decode(body).map_err(wrong)?;
            if options.wait_max.is_none() || connection == NOTICES {
                stream.set_read_timeout(None).map_err(failed)?;
            }
            Ok((stream, welcome, header.epoch))
        }
        Kind::Refused => {
            let refused: Refused = varve_wire::decode(body).map_err(wrong)?;
            let Refused { is_temporary, reason } = refused;
            Err(match is_temporary {
                true => failed(io::Error::other(reason)),
                false => ConnectError::Refused(reason),
            })
        }
        _ => Err(wrong(FrameError::Unexpected("a server's first message is a welcome"))),
    }
}
