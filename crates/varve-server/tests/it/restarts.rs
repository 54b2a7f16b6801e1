//! Servers that begin anew while a client works: no request is executed twice, and none is lost.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use varve_client::Client;
use varve_server::Policy;
use varve_testkit::rng::Rng;
use varve_testkit::{Proxy, eventually, soak};
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, Entry, FileType, FsError, Handle, OpenFlags, RenameMode, SetAttr, Vfs};

use crate::support::{Served, clean_up, client_options, connect, machine, options};

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

/// Calls of which none may be made twice: the second one would fail, or its effect would be seen.
fn work(client: &Client, rounds: u64, rng: &mut Rng) {
    let root = InodeId::ROOT;
    let flags = OpenFlags { read: true, write: true, exclusive: true, ..OpenFlags::default() };
    let (log, opened) = client.create(Caller::ROOT, root, name("log"), 0o644, flags).unwrap();
    let mut held = VecDeque::new();
    for round in 0..rounds {
        hold(client, &mut held, rng);
        let size = client.getattr(log.attr.ino).unwrap().size;
        assert_eq!(size, round, "appends");
        let written = client.append(log.attr.ino, opened.handle, size, b"x", false).unwrap();
        assert_eq!((written.offset, written.bytes), (round, 1));
        let made = format!("made {round}");
        let moved = format!("moved {round}");
        let ino = match rng.below(4) {
            0 => client.mkdir(Caller::ROOT, root, name(&made), 0o755).unwrap().attr.ino,
            1 => client.symlink(Caller::ROOT, root, name(&made), b"target").unwrap().attr.ino,
            2 => client.mknod(Caller::ROOT, root, name(&made), 0o100_644, 0).unwrap().attr.ino,
            _ => {
                let made = client.create(Caller::ROOT, root, name(&made), 0o644, flags);
                let (entry, opened) = made.unwrap();
                client.write_all(entry.attr.ino, opened.handle, 0, b"bytes", false).unwrap();
                client.release(entry.attr.ino, opened.handle).unwrap();
                entry.attr.ino
            }
        };
        client.rename(root, name(&made), root, name(&moved), RenameMode::NoReplace).unwrap();
        let found = client.lookup(root, name(&moved)).unwrap();
        assert_eq!(found.attr.ino, ino);
        client.forget(ino, 1);
        let set = SetAttr { uid: Some(round as u32), ..SetAttr::default() };
        assert_eq!(client.setattr(Caller::ROOT, ino, set).unwrap().uid, round as u32);
        if found.attr.kind == FileType::Directory {
            client.rmdir(root, name(&moved)).unwrap();
        } else {
            client.link(ino, root, name("second")).unwrap();
            client.unlink(root, name(&moved)).unwrap();
            client.unlink(root, name("second")).unwrap();
        }
        client.forget(ino, 3);
    }
    client.release(log.attr.ino, opened.handle).unwrap();
    for file in held {
        client.release(file.ino, file.handle).unwrap();
    }
    // Nobody waits for the answer to a release. The first call sends it again if it was lost, the second one comes after it.
    for _ in 0..2 {
        client.statfs().unwrap();
    }
}

/// An open file without a name.
struct Held {
    ino: InodeId,
    handle: Handle,
    bytes: Vec<u8>,
}

/// Removes open files, and works with them as long as they are open.
fn hold(client: &Client, held: &mut VecDeque<Held>, rng: &mut Rng) {
    let flags = OpenFlags { read: true, write: true, exclusive: true, ..OpenFlags::default() };
    if rng.below(4) == 0 {
        let made = client.create(Caller::ROOT, InodeId::ROOT, name("held"), 0o644, flags);
        let (entry, opened) = made.unwrap();
        client.unlink(InodeId::ROOT, name("held")).unwrap();
        held.push_back(Held { ino: entry.attr.ino, handle: opened.handle, bytes: Vec::new() });
    }
    for Held { ino, handle, bytes } in held.iter_mut() {
        assert_eq!(client.read(*ino, *handle, 0, 1 << 20).unwrap(), *bytes);
        let more = vec![rng.below(256) as u8; 1 << rng.below(15)];
        client.write_all(*ino, *handle, bytes.len() as u64, &more, false).unwrap();
        bytes.extend(more);
        let attr = client.getattr(*ino).unwrap();
        assert_eq!((attr.nlink, attr.size), (0, bytes.len() as u64));
    }
    if held.len() > 3 {
        let Held { ino, handle, .. } = held.pop_front().unwrap();
        client.release(ino, handle).unwrap();
        client.forget(ino, 1);
    }
}

/// Returns how many servers there were, and how many open files without a name they left to the next.
fn run(seed: u64, rounds: u64) -> (u32, usize) {
    // Without leases, which each server would wait out.
    let options = |epoch| varve_server::Options { leases: Policy::None, ..options(epoch) };
    let machine = machine(seed);
    let served = Served::start(&machine, options(1));
    let address = served.server.address();
    let proxy = Proxy::start(address, Duration::ZERO);
    let client = connect(proxy.address(), seed);
    let is_over = AtomicBool::new(false);
    let (served, epoch, files) = std::thread::scope(|scope| {
        let (mut served, mut epoch, mut files) = (served, 1, 0);
        let worker = scope.spawn(|| {
            work(&client, rounds, &mut Rng::new(seed));
            is_over.store(true, Ordering::Relaxed);
        });
        let mut rng = Rng::new(seed);
        while !is_over.load(Ordering::Relaxed) && !worker.is_finished() {
            std::thread::sleep(Duration::from_micros(rng.below(30_000)));
            // Answers that are under way are lost.
            proxy.cut();
            files += served.end_for_another().len();
            let listener = TcpListener::bind(address).unwrap();
            epoch += 1;
            served = Served::on(&machine, listener, options(epoch));
            proxy.mend();
        }
        (served, epoch, files)
    });
    let mut names = Vec::new();
    let list = &mut |entry: &varve_vfs::DirEntry<'_>| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    };
    client.readdir(InodeId::ROOT, 0, false, list).unwrap();
    assert_eq!(names, [".", "..", "log"]);
    drop(client);
    // Of the last files the server may not have heard that they were closed: nobody used their connection again.
    served.end_for_another();
    clean_up(&machine);
    (epoch, files)
}

#[test]
fn no_request_is_executed_twice_over_restarts() {
    let runs = (0..3).map(|seed| run(seed, 300));
    let (servers, files) = runs.fold((0, 0), |sum, run| (sum.0 + run.0, sum.1 + run.1));
    assert!(servers > 10 && files > 10, "{servers} {files}");
}

/// Removed files go once all clients of the server before are back, or the time of their sessions is over.
#[test]
fn removed_files_that_nobody_opens_again_go() {
    let machine = machine(9);
    let options = |epoch| varve_server::Options {
        leases: Policy::None,
        session: Duration::from_secs(2),
        ..options(epoch)
    };
    let served = Served::start(&machine, options(1));
    let address = served.server.address();
    let proxy = Proxy::start(address, Duration::ZERO);
    let (client, other) = (connect(proxy.address(), 1), connect(address, 2));
    let mut files = [VecDeque::new(), VecDeque::new()];
    for (client, files) in [&client, &other].into_iter().zip(&mut files) {
        let mut rng = Rng::new(1);
        while files.is_empty() {
            hold(client, files, &mut rng);
        }
    }
    // One stays away for longer than its session.
    proxy.cut();
    assert_eq!(served.end_for_another().len(), 2);
    let listener = TcpListener::bind(address).unwrap();
    let served = Served::on(&machine, listener, options(2));
    let orphans = |served: &Served| served.fs.check(&mut |_| ()).unwrap().findings.len();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(orphans(&served), 2);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(orphans(&served), 1);
    hold(&other, &mut files[1], &mut Rng::new(2));
    proxy.mend();
    let Held { ino, handle, .. } = files[0][0];
    assert!(matches!(client.read(ino, handle, 0, 100), Err(FsError::Stale)));
    client.release(ino, handle).unwrap();
    while let Some(Held { ino, handle, .. }) = files[1].pop_front() {
        other.release(ino, handle).unwrap();
    }
    other.statfs().unwrap();
    drop((client, other));
    served.end();
}

/// A client that was away for too long finds its files closed, also those that still have names, and goes on with others.
#[test]
fn a_session_that_ended_takes_its_files_along() {
    let machine = machine(11);
    let session = Duration::from_secs(1);
    let served = Served::start(&machine, varve_server::Options { session, ..options(1) });
    let proxy = Proxy::start(served.server.address(), Duration::ZERO);
    let client = connect(proxy.address(), 1);
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let made = client.create(Caller::ROOT, InodeId::ROOT, name("f"), 0o644, flags);
    let (Entry { attr, .. }, opened) = made.unwrap();
    client.write_all(attr.ino, opened.handle, 0, b"bytes", false).unwrap();
    proxy.cut();
    eventually("the session ends", || served.server.status().sessions.is_empty());
    proxy.mend();
    assert!(matches!(client.read(attr.ino, opened.handle, 0, 10), Err(FsError::Stale)));
    let written = client.write_all(attr.ino, opened.handle, 0, b"other", false);
    assert!(matches!(written, Err(FsError::Stale)));
    // A server that lets clients of the one before open their files again makes no difference.
    let address = served.server.address();
    proxy.cut();
    served.end();
    let listener = TcpListener::bind(address).unwrap();
    let served = Served::on(&machine, listener, varve_server::Options { session, ..options(2) });
    proxy.mend();
    assert!(matches!(client.read(attr.ino, opened.handle, 0, 10), Err(FsError::Stale)));
    let again = client.open(attr.ino, flags).unwrap();
    assert_eq!(client.read(attr.ino, again.handle, 0, 10).unwrap(), b"bytes"[..]);
    client.release(attr.ino, opened.handle).unwrap();
    client.release(attr.ino, again.handle).unwrap();
    client.statfs().unwrap();
    drop(client);
    served.end();
}

/// Clients go on with their open files at the next server, whoever moved them, before they were opened or since.
#[test]
fn open_files_that_were_renamed_are_open_at_the_next_server() {
    let machine = machine(12);
    let served = Served::start(&machine, options(1));
    let address = served.server.address();
    let (one, other) = (connect(address, 1), connect(address, 2));
    let root = InodeId::ROOT;
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let moves = |client: &Client, text: &str, to: &str| {
        client.rename(root, name(text), root, name(to), RenameMode::NoReplace).unwrap();
    };
    // Which client moves the file, and whether it is open then.
    let cases = [(&one, false), (&one, true), (&other, false), (&other, true)];
    let mut files = Vec::new();
    for (at, (client, is_open)) in cases.into_iter().enumerate() {
        let (before, after) = (format!("before {at}"), format!("after {at}"));
        let made = one.mknod(Caller::ROOT, root, name(&before), 0o100_644, 0);
        let ino = made.unwrap().attr.ino;
        if !is_open {
            moves(client, &before, &after);
        }
        let opened = one.open(ino, flags).unwrap();
        if is_open {
            moves(client, &before, &after);
        }
        one.write_all(ino, opened.handle, 0, after.as_bytes(), false).unwrap();
        files.push((ino, opened.handle, after));
    }
    served.end();
    let served = Served::on(&machine, TcpListener::bind(address).unwrap(), options(2));
    for (ino, handle, after) in files {
        assert_eq!(one.read(ino, handle, 0, 100).unwrap(), after.as_bytes(), "{after}");
        one.release(ino, handle).unwrap();
        assert_eq!(other.lookup(root, name(&after)).unwrap().attr.ino, ino);
    }
    one.statfs().unwrap();
    drop((one, other));
    served.end();
}

/// A mounted directory may have another name when its client connects again.
#[test]
fn a_client_comes_back_to_a_directory_that_was_renamed() {
    let machine = machine(10);
    let served = Served::start(&machine, options(1));
    let proxy = Proxy::start(served.server.address(), Duration::ZERO);
    let other = connect(served.server.address(), 2);
    other.mkdir(Caller::ROOT, InodeId::ROOT, name("d"), 0o755).unwrap();
    let options = varve_client::Options {
        path: b"d".to_vec(),
        wait_max: Some(Duration::from_secs(3)),
        ..client_options(proxy.address(), 1)
    };
    let client = Client::connect(options).unwrap();
    client.mkdir(Caller::ROOT, client.root(), name("below"), 0o755).unwrap();
    other.rename(InodeId::ROOT, name("d"), InodeId::ROOT, name("e"), RenameMode::Replace).unwrap();
    proxy.cut();
    proxy.mend();
    client.lookup(client.root(), name("below")).unwrap();
    drop((client, other));
    served.end();
}

/// Other seeds, for as long as `varve_testkit::soak` says.
#[test]
#[ignore = "a soak"]
fn soak_of_restarts() {
    println!("{}", soak(|seed| assert!(run(seed, 300).0 > 0)));
}
