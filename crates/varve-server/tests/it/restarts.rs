//! Servers that begin anew while a client works: no request is executed twice, and none is lost.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use varve_client::Client;
use varve_server::Policy;
use varve_testkit::rng::Rng;
use varve_testkit::{Proxy, soak};
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, FileType, OpenFlags, RenameMode, SetAttr, Vfs};

use crate::support::{Served, connect, machine, options};

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

/// Calls of which none may be made twice: the second one would fail, or its effect would be seen.
fn work(client: &Client, rounds: u64, rng: &mut Rng) {
    let root = InodeId::ROOT;
    let flags = OpenFlags { read: true, write: true, exclusive: true, ..OpenFlags::default() };
    let (log, opened) = client.create(Caller::ROOT, root, name("log"), 0o644, flags).unwrap();
    for round in 0..rounds {
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
}

/// Returns how many servers there were.
fn run(seed: u64, rounds: u64) -> u32 {
    // Without leases, which each server would wait out.
    let options = |epoch| varve_server::Options { leases: Policy::None, ..options(epoch) };
    let machine = machine(seed);
    let served = Served::start(&machine, options(1));
    let address = served.server.address();
    let proxy = Proxy::start(address, Duration::ZERO);
    let client = connect(proxy.address(), seed);
    let is_over = AtomicBool::new(false);
    let (served, epoch) = std::thread::scope(|scope| {
        let (mut served, mut epoch) = (served, 1);
        let worker = scope.spawn(|| {
            work(&client, rounds, &mut Rng::new(seed));
            is_over.store(true, Ordering::Relaxed);
        });
        let mut rng = Rng::new(seed);
        while !is_over.load(Ordering::Relaxed) && !worker.is_finished() {
            std::thread::sleep(Duration::from_micros(rng.below(30_000)));
            // Answers that are under way are lost.
            proxy.cut();
            served.end();
            let listener = TcpListener::bind(address).unwrap();
            epoch += 1;
            served = Served::on(&machine, listener, options(epoch));
            proxy.mend();
        }
        (served, epoch)
    });
    let mut names = Vec::new();
    let list = &mut |entry: &varve_vfs::DirEntry<'_>| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    };
    client.readdir(InodeId::ROOT, 0, false, list).unwrap();
    assert_eq!(names, [".", "..", "log"]);
    drop(client);
    served.end();
    epoch
}

#[test]
fn no_request_is_executed_twice_over_restarts() {
    let servers: u32 = (0..3).map(|seed| run(seed, 300)).sum();
    assert!(servers > 10, "{servers}");
}

/// Other seeds, for as long as `varve_testkit::soak` says.
#[test]
#[ignore = "a soak"]
fn soak_of_restarts() {
    println!("{}", soak(|seed| assert!(run(seed, 300) > 0)));
}
