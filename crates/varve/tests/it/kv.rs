//! Dictionaries on the command line and on the daemon's socket.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use varve::kv::protocol::{End, Failure, MESSAGE_BYTES_MAX, Request, Response};
use varve_testkit::rng::Rng;

use crate::harness::{Mount, run, varve};

fn kv(path: &Path, arguments: &[&str]) -> Command {
    let (action, rest) = arguments.split_first().unwrap();
    let mut command = varve();
    command.args(["kv", action]).arg(path).args(rest);
    command
}

/// What a command that succeeds writes.
fn said(path: &Path, arguments: &[&str]) -> String {
    String::from_utf8(run(&mut kv(path, arguments)).stdout).unwrap()
}

/// What a command that fails says.
fn refused(path: &Path, arguments: &[&str]) -> String {
    let output = kv(path, arguments).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The same commands on whatever is at `path`.
fn works_on(path: &Path) {
    said(path, &["create", "tags"]);
    let error = refused(path, &["create", "tags"]);
    assert!(error.contains("of that name") && error.contains("hint: "), "{error}");
    assert!(refused(path, &["create", "a/b"]).contains("slash"));
    assert!(refused(path, &["put", "none", "k", "v"]).contains("no such dictionary"));
    said(path, &["put", "tags", "b", "two"]);
    said(path, &["put", "tags", "a", "one", "--sync"]);
    let mut put = kv(path, &["put", "tags", "c"]).stdin(Stdio::piped()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(b"three\nlines\n").unwrap();
    assert!(put.wait().unwrap().success());
    assert_eq!(said(path, &["get", "tags", "c"]), "three\nlines\n");
    assert_eq!(said(path, &["scan", "tags", "--to", "c"]), "a\tone\nb\ttwo\n");
    assert_eq!(
        said(path, &["scan", "tags", "--from", "b", "--reverse", "--limit", "1"]),
        "c\tthree\nlines\n\n"
    );
    said(path, &["delete", "tags", "b"]);
    assert!(refused(path, &["get", "tags", "b"]).contains("no value"));
    let pair: Value =
        serde_json::from_str(&said(path, &["scan", "tags", "--json", "--limit", "1"])).unwrap();
    assert_eq!(pair, serde_json::json!({ "key": "a", "value": "one" }));
    assert_eq!(said(path, &["list"]), "tags\n");
    said(path, &["drop", "tags"]);
    assert_eq!(said(path, &["list", "--json"]).trim(), "[]");
}

#[test]
fn a_store_that_is_not_mounted_answers_itself() {
    let dir = tempfile::tempdir().unwrap();
    run(varve().arg("format").arg(dir.path().join("store")));
    works_on(&dir.path().join("store"));
}

fn connect(mount: &Mount) -> UnixStream {
    let socket = UnixStream::connect(mount.store().join("kv")).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    socket
}

fn ask(socket: &mut UnixStream, request: &Request) -> std::io::Result<Response> {
    let body = request.encode();
    socket.write_all(&[&(body.len() as u32).to_le_bytes(), &body[..]].concat())?;
    hear(socket)
}

fn hear(socket: &mut UnixStream) -> std::io::Result<Response> {
    let mut len = [0; 4];
    socket.read_exact(&mut len)?;
    let mut body = vec![0; u32::from_le_bytes(len) as usize];
    socket.read_exact(&mut body)?;
    Ok(Response::decode(&body).unwrap())
}

#[test]
fn the_daemon_of_a_mount_answers() {
    let Some(mount) = Mount::new() else { return };
    works_on(&mount.path());
    let mut socket = connect(&mount);
    let name = b"many".to_vec();
    assert_eq!(ask(&mut socket, &Request::Create(name.clone())).unwrap(), Response::Done);
    for part in 0..4u32 {
        let row = |n: u32| ((part * 1000 + n).to_be_bytes().to_vec(), Some(vec![7; 300]));
        let changes = (0..1000).map(row).collect();
        let request = Request::Change { name: name.clone(), changes };
        assert_eq!(ask(&mut socket, &request).unwrap(), Response::Done);
    }
    let (mut found, mut start, mut pages) = (0, End::Open, 0);
    loop {
        let request = Request::Scan { name: name.clone(), start, end: End::Open, reverse: false };
        let Response::Pairs(pairs, more) = ask(&mut socket, &request).unwrap() else { panic!() };
        found += pairs.len();
        pages += 1;
        start = End::Excluded(pairs[pairs.len() - 1].0.clone());
        if !more {
            break;
        }
    }
    assert!(found == 4000 && pages > 2, "{found} pairs on {pages} pages");
    let large = vec![(b"large".to_vec(), Some(vec![1; (1 << 20) + 1]))];
    let refusal = ask(&mut socket, &Request::Change { name, changes: large }).unwrap();
    assert!(matches!(refusal, Response::Failed(Failure::Invalid, _)), "{refusal:?}");
    // What is no request is refused, and ends the connection.
    socket.write_all(&[1, 0, 0, 0, 9]).unwrap();
    assert!(matches!(hear(&mut socket).unwrap(), Response::Failed(Failure::Invalid, _)));
    assert!(hear(&mut socket).is_err());
    let mut socket = connect(&mount);
    socket.write_all(&(MESSAGE_BYTES_MAX as u32 + 1).to_le_bytes()).unwrap();
    assert!(hear(&mut socket).is_err());
    said(&mount.path(), &["drop", "many"]);
    assert_eq!(said(&mount.path(), &["list"]), "");
}

#[test]
fn the_death_of_the_daemon_loses_no_acknowledged_pair() {
    let Some(mount) = Mount::new() else { return };
    said(&mount.path(), &["create", "d"]);
    let mut socket = connect(&mount);
    let daemon = mount.daemon();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
    });
    let mut acknowledged = 0u32;
    loop {
        let changes = (0..3u8).map(|n| (vec![n], Some(acknowledged.to_be_bytes().to_vec())));
        let own = (acknowledged.to_be_bytes().to_vec(), Some(vec![1]));
        let changes = changes.chain([own]).collect();
        match ask(&mut socket, &Request::Change { name: b"d".to_vec(), changes }) {
            Ok(Response::Done) => acknowledged += 1,
            Ok(other) => panic!("{other:?}"),
            Err(_) => break,
        }
    }
    killer.join().unwrap();
    assert!(acknowledged > 10, "{acknowledged} changes");
    mount.unmount();
    let file_system = varve::store::FileSystem::open(&mount.store(), &Default::default()).unwrap();
    let all = varve_engine::KeyRange::all();
    let page = file_system
        .dictionaries()
        .scan(b"d", all, varve_engine::Direction::Forward, usize::MAX)
        .unwrap();
    let pairs: BTreeMap<Vec<u8>, Vec<u8>> =
        page.pairs.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    assert!((0..acknowledged).all(|n| pairs.contains_key(&n.to_be_bytes()[..])));
    let last: Vec<&Vec<u8>> = (0..3u8).map(|n| &pairs[&[n][..]]).collect();
    assert!(last.iter().all(|value| *value == last[0]), "changes of one request happen together");
    file_system.close().unwrap();
}

/// Whatever comes, a message is refused or means what it says.
#[test]
fn arbitrary_messages_are_refused_or_read() {
    let samples = [
        Request::Create(b"name".to_vec()).encode(),
        Request::List.encode(),
        Request::Get { name: b"n".to_vec(), key: vec![] }.encode(),
        Request::Change {
            name: b"n".to_vec(),
            changes: vec![(b"k".to_vec(), None), (vec![1], Some(vec![2]))],
        }
        .encode(),
        Request::Scan {
            name: b"n".to_vec(),
            start: End::Open,
            end: End::Excluded(vec![9]),
            reverse: true,
        }
        .encode(),
        Response::Failed(Failure::Storage, "why".into()).encode(),
        Response::Names(vec![b"a".to_vec()]).encode(),
        Response::Value(Some(vec![1])).encode(),
        Response::Pairs(vec![(vec![1], vec![2])], true).encode(),
        Response::Done.encode(),
    ];
    let mut rng = Rng::new(5);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..40_000 {
        let mut body = rng.pick(&samples).clone();
        for _ in 0..rng.below(3) {
            let at = rng.below(body.len() as u64 + 1) as usize;
            let end = (at + rng.below(3) as usize).min(body.len());
            let put = rng.bytes(end - at);
            body.splice(at..end, put);
        }
        let request = Request::decode(&body);
        let response = Response::decode(&body);
        match (&request, &response) {
            (Ok(request), _) => assert_eq!(request.encode(), body),
            (_, Ok(response)) => assert_eq!(response.encode(), body),
            _ => refused += 1,
        }
        read += u64::from(request.is_ok() || response.is_ok());
    }
    assert!(read > 1000 && refused > 1000, "{read} read, {refused} refused");
}
