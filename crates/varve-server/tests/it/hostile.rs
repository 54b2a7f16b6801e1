//! Clients that break the rules, while an honest one works on and finishes.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use varve_client::Client;
use varve_testkit::rng::Rng;
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, FsError, OpenFlags, RenameMode, Vfs};
use varve_wire::attr::{self, Entry};
use varve_wire::frame::{self, Frame, Kind};
use varve_wire::{Answer, Failure, Header, Hello, Node, Request, Welcome};

use crate::support::{Served, connect, machine, options};

const ROOT: Node = Node { ino: 1, place: None };
const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    append: false,
    appends: false,
    truncate: false,
    exclusive: false,
    sync: false,
    execute: false,
};

/// A client that sends what it likes.
pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
    input: Vec<u8>,
    number: u64,
}

impl Raw {
    pub(crate) fn silent(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(30))).unwrap();
        Raw { stream, input: Vec::new(), number: 0 }
    }

    /// One that has a session.
    pub(crate) fn connect(address: SocketAddr, client: [u64; 2], name: &str) -> (Raw, Welcome) {
        Raw::introduce(address, &Raw::hello(client, 1, name))
    }

    pub(crate) fn hello(client: [u64; 2], connection: u32, name: &str) -> Hello<'_> {
        let (path, token) = (&b""[..], &b""[..]);
        Hello { client, connection, features: 0, name, path, read_only: false, token }
    }

    pub(crate) fn introduce(address: SocketAddr, hello: &Hello<'_>) -> (Raw, Welcome) {
        let mut raw = Raw::silent(address);
        let mut message = Vec::new();
        varve_wire::encode(&mut message, Header::new(Kind::Hello, 0), hello, &[]);
        raw.stream.write_all(&message).unwrap();
        let (header, body, _) = raw.next().unwrap();
        assert_eq!(header.kind, Kind::Welcome);
        (raw, varve_wire::decode(&body).unwrap())
    }

    pub(crate) fn send(&mut self, slot: u32, request: &Request<'_>) {
        self.send_all(slot..slot + 1, request);
    }

    /// Sends a request in each of some slots, all at once.
    fn send_all(&mut self, slots: Range<u32>, request: &Request<'_>) {
        let mut messages = Vec::new();
        for slot in slots {
            self.number += 1;
            let header = Header { slot, number: self.number, ..Header::new(Kind::Request, 1) };
            varve_wire::encode(&mut messages, header, request, &[]);
        }
        self.stream.write_all(&messages).unwrap();
    }

    /// Reads a message; `None` at the end of the connection.
    pub(crate) fn next(&mut self) -> Option<(Header, Vec<u8>, usize)> {
        let mut part = vec![0; 256 << 10];
        loop {
            if let Some(Frame { header, body, data, bytes }) = frame::first(&self.input).unwrap() {
                let message = (header, body.to_vec(), data.len());
                self.input.drain(..bytes);
                return Some(message);
            }
            match self.stream.read(&mut part) {
                Ok(0) => return None,
                Ok(read) => self.input.extend_from_slice(&part[..read]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the server neither answers nor ends: {error}"),
            }
        }
    }

    pub(crate) fn call(&mut self, request: &Request<'_>) -> Answer {
        self.send(0, request);
        let (header, body, _) = self.next().unwrap();
        assert_eq!((header.kind, header.number), (Kind::Answer, self.number));
        varve_wire::decode(&body).unwrap()
    }

    fn lookup(&mut self, name: &str) -> Entry {
        match self.call(&Request::Lookup { parent: ROOT, name: name.as_bytes() }) {
            Answer::Entry(entry) => entry,
            other => panic!("{other:?}"),
        }
    }
}

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

/// What an honest client does meanwhile.
fn work(client: &Client, rounds: u64) {
    let begun = Instant::now();
    let root = InodeId::ROOT;
    for round in 0..rounds {
        let flags = OpenFlags { write: true, exclusive: true, ..READ };
        let made = client.create(Caller::ROOT, root, name("made"), 0o644, flags);
        let (entry, opened) = made.unwrap();
        let ino = entry.attr.ino;
        client.write_all(ino, opened.handle, 0, b"bytes", false).unwrap();
        client.fsync(ino, opened.handle, false).unwrap();
        assert_eq!(&client.read(ino, opened.handle, 0, 9).unwrap()[..], b"bytes", "{round}");
        client.release(ino, opened.handle).unwrap();
        client.rename(root, name("made"), root, name("moved"), RenameMode::NoReplace).unwrap();
        client.unlink(root, name("moved")).unwrap();
        client.forget(ino, 1);
    }
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(20), "others keep it waiting: {took:?}");
}

/// Makes a file of 1 MiB, and keeps it open.
fn large(client: &Client) -> (InodeId, varve_vfs::Handle) {
    let flags = OpenFlags { write: true, exclusive: true, ..READ };
    let made = client.create(Caller::ROOT, InodeId::ROOT, name("large"), 0o644, flags);
    let (entry, opened) = made.unwrap();
    client.write_all(entry.attr.ino, opened.handle, 0, &vec![7; 1 << 20], false).unwrap();
    (entry.attr.ino, opened.handle)
}

/// A server, an honest client, and the file `large`, which it has open.
fn with(attack: impl FnOnce(&Served, &Client)) {
    let machine = machine(1);
    let served = Served::start(&machine, options(1));
    let client = connect(served.server.address(), 1);
    let (ino, handle) = large(&client);
    attack(&served, &client);
    work(&client, 20);
    client.release(ino, handle).unwrap();
    drop(client);
    served.end();
}

fn requests_of(served: &Served, name: &str) -> u64 {
    let status = served.server.status();
    status.sessions.iter().find(|client| client.name == name).unwrap().requests
}

#[test]
fn a_client_that_reads_no_answers_makes_the_server_hold_little() {
    with(|served, client| {
        let (mut slow, _) = Raw::connect(served.server.address(), [8, 1], "slow");
        let found = slow.lookup("large");
        let node = Node { ino: found.attr.ino, place: found.place };
        let opened = slow.call(&Request::Open { node, flags: READ.into(), file: 1, again: false });
        assert!(matches!(opened, Answer::Opened(_)), "{opened:?}");
        let before = requests_of(served, "slow");
        // Each goes to a thread that may wait, and its answer has 1 MiB.
        slow.send_all(0..250, &Request::Read { node, file: 1, offset: 0, length: 1 << 20 });
        work(client, 20);
        // What the server holds, and what the network takes.
        let taken = requests_of(served, "slow") - before;
        assert!(taken < 100, "{taken} answers are held");
        for answer in 0..250 {
            let (header, _, bytes) = slow.next().unwrap();
            assert_eq!((header.kind, bytes), (Kind::Answer, 1 << 20), "{answer}");
        }
    });
}

#[test]
fn a_flood_of_requests_in_one_slot_delays_nobody() {
    with(|served, client| {
        let (mut flood, _) = Raw::connect(served.server.address(), [8, 1], "flood");
        let mut other = Raw {
            stream: flood.stream.try_clone().unwrap(),
            ..Raw::silent(served.server.address())
        };
        std::thread::scope(|scope| {
            // Calls that wait for the storage, each under a number of its own.
            scope.spawn(|| (0..20_000).for_each(|_| other.send(0, &Request::Sync)));
            scope.spawn(|| {
                for _ in 0..20_000 {
                    assert_eq!(flood.next().unwrap().0.kind, Kind::Answer);
                }
            });
            work(client, 20);
        });
    });
}

#[test]
fn garbage_ends_its_connection_and_nothing_else() {
    with(|served, client| {
        let address = served.server.address();
        let mut rng = Rng::new(3);
        let rounds = 50;
        for round in 0..rounds {
            let (mut raw, _) = Raw::connect(address, [9, round % 3], "garbage");
            let mut garbage: Vec<u8> = (0..200).map(|_| rng.below(256) as u8).collect();
            // A length that a frame can have, so that the rest is looked at.
            garbage[..4].copy_from_slice(&[196, 0, 0, 0]);
            garbage[4] = 99;
            raw.stream.write_all(&garbage).unwrap();
            assert_eq!(raw.next(), None, "{round}");
        }
        assert!(served.server.status().broken >= rounds);
        work(client, 20);
    });
}

#[test]
fn who_says_no_hello_is_not_kept() {
    with(|served, client| {
        let address = served.server.address();
        // A first message that claims to be long holds no memory.
        let mut long = Raw::silent(address);
        long.stream.write_all(&(1_u32 << 20).to_le_bytes()).unwrap();
        assert_eq!(long.next(), None);
        assert!(served.server.status().broken >= 1);
        let mut silent: Vec<Raw> = (0..50).map(|_| Raw::silent(address)).collect();
        for half in &mut silent[25..] {
            half.stream.write_all(&[60, 0, 0, 0, 1, 1]).unwrap();
        }
        let begun = Instant::now();
        work(client, 20);
        assert!(silent.iter_mut().all(|raw| raw.next().is_none()));
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    });
}

#[test]
fn half_of_a_request_holds_up_nobody() {
    with(|served, client| {
        let halves: Vec<Raw> = (0..50)
            .map(|number| {
                let (mut raw, _) = Raw::connect(served.server.address(), [10, number], "half");
                raw.stream.write_all(&(1_u32 << 20).to_le_bytes()).unwrap();
                raw.stream.write_all(&[1, 4]).unwrap();
                raw
            })
            .collect();
        work(client, 20);
        drop(halves);
    });
}

#[test]
fn a_guessed_client_number_gets_nothing_of_anothers_session() {
    with(|served, client| {
        let address = served.server.address();
        let mut sessions = Vec::new();
        // The honest one is (7, 1).
        for guess in [[7, 0], [7, 2], [0, 1], [1, 7], [7, 1 << 63 | 1]] {
            let (mut raw, welcome) = Raw::connect(address, guess, "guess");
            sessions.push(welcome.session);
            let found = raw.lookup("large");
            let node = Node { ino: found.attr.ino, place: found.place };
            for file in 0..20 {
                let read = Request::Read { node, file, offset: 0, length: 1 };
                for request in [read, Request::Release { node, file }] {
                    let failed = Answer::Failed(Failure::from(&FsError::Stale));
                    assert_eq!(raw.call(&request), failed);
                }
            }
        }
        sessions.dedup();
        assert_eq!(sessions.len(), 5);
        work(client, 20);
    });
}

#[test]
fn forged_inode_ids_fail_and_harm_nobody() {
    with(|served, client| {
        let (mut raw, _) = Raw::connect(served.server.address(), [8, 1], "forger");
        let mut rng = Rng::new(5);
        let found = raw.lookup("large");
        let caller = attr::Caller { uid: 0, gid: 0, umask: 0 };
        for round in 0..2000 {
            let mut place = found.place;
            if let Some(place) = &mut place {
                let at = rng.below(place.len() as u64) as usize;
                place[at] ^= 1 << rng.below(8);
            }
            // Another inode at the place of this one, this one elsewhere, both, or no place.
            let forged = (rng.below(1 << 40) << rng.below(24)) | 1 << 13;
            let ino = if round % 2 == 0 { forged } else { found.attr.ino };
            let place = if rng.below(3) == 0 { None } else { place };
            let (node, name) = (Node { ino, place }, b"name".as_slice());
            let request = match round % 7 {
                0 => Request::Getattr { node },
                1 => Request::Lookup { parent: node, name },
                2 => Request::Mkdir { caller: caller.clone(), parent: node, name, perm: 0o755 },
                3 => Request::Link { node, parent: node, name },
                4 => Request::Readdir { node, cookie: rng.below(9), with_attr: true, bytes: 9999 },
                5 => Request::Unlink { parent: node, name },
                _ => Request::Usage { node },
            };
            match raw.call(&request) {
                Answer::Failed(Failure { cause, text }) => {
                    assert!(![31, 32].contains(&cause), "{request:?}: {text}");
                }
                // A place is a hint: with the right number the file is found without it.
                Answer::Attr(attr) => assert_eq!(attr.ino, found.attr.ino),
                Answer::Usage(_) if ino == found.attr.ino => {}
                other => panic!("{request:?}: {other:?}"),
            }
        }
        work(client, 20);
    });
}

/// The memory of sessions without work. Both ends are in this process, and the ends of the clients hold nothing.
#[test]
#[ignore = "a measurement; it needs 18,000 file descriptors"]
fn memory_of_idle_sessions() {
    let resident_kib = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    with(|served, _| {
        let address = served.server.address();
        let before = resident_kib();
        let mut idle: Vec<Raw> = Vec::new();
        for number in 0..8000 {
            let (mut raw, _) = Raw::connect(address, [11, number], "idle");
            assert!(matches!(raw.call(&Request::Statfs), Answer::StatFs(_)));
            raw.input = Vec::new();
            idle.push(raw);
        }
        let kib = resident_kib() - before;
        println!("{} sessions: {kib} KiB, {} bytes each", idle.len(), kib * 1024 / 8000);
        assert!(kib < 8000 * 64, "{kib} KiB");
    });
}
