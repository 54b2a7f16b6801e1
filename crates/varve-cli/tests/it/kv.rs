//! Dictionaries on the command line and on the daemon's socket.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use varve_daemon::kv::protocol::{End, Failure, MESSAGE_BYTES_MAX, Request, Response};
use varve_testkit::rng::Rng;
use varve_testkit::{Command, eventually};

use crate::harness::{Mount, fails, run, varve, with_namespaces};

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
    fails(kv(path, arguments).stdin(Stdio::null()), 1)
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
    let mut put = kv(path, &["put", "tags", "d"]);
    let put = put.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut put = put.unwrap();
    // Not all of it is read.
    let _ = put.stdin.take().unwrap().write_all(&vec![0; 3 << 20]);
    let error = String::from_utf8(put.wait_with_output().unwrap().stderr).unwrap();
    assert!(error.contains("a value of more than 1048576 bytes"), "{error}");
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
    let body = request.encode(0);
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
    let (acknowledged, mut number) = (AtomicU32::new(0), 0u32);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            eventually("some changes", || acknowledged.load(Ordering::SeqCst) > 10);
            std::thread::sleep(std::time::Duration::from_millis(300));
            rustix::process::kill_process(daemon, rustix::process::Signal::KILL).unwrap();
        });
        loop {
            let changes = (0..3u8).map(|n| (vec![n], Some(number.to_be_bytes().to_vec())));
            let own = (number.to_be_bytes().to_vec(), Some(vec![1]));
            let changes = changes.chain([own]).collect();
            match ask(&mut socket, &Request::Change { name: b"d".to_vec(), changes }) {
                Ok(Response::Done) => number = acknowledged.fetch_add(1, Ordering::SeqCst) + 1,
                Ok(other) => panic!("{other:?}"),
                Err(_) => break,
            }
        }
    });
    let acknowledged = number;
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

/// Begins a transaction on all of a mount; gives its id and where it is seen.
fn begin(mount: &Mount) -> (String, PathBuf) {
    let said = run(varve().args(["txn", "begin"]).arg(mount.path())).stdout;
    let view = PathBuf::from(String::from_utf8(said).unwrap().trim_end());
    (view.file_name().unwrap().to_str().unwrap().to_owned(), view)
}

fn txn(mount: &Mount, action: &str, id: &str) -> Output {
    varve().args(["txn", action]).arg(mount.path()).arg(id).output().unwrap()
}

#[test]
fn pairs_belong_to_the_transaction_that_is_named() {
    let Some(mount) = Mount::new() else { return };
    let _copied = with_namespaces();
    let dir = mount.path();
    said(&dir, &["create", "tags"]);
    said(&dir, &["put", "tags", "k", "main"]);
    let (id, view) = begin(&mount);
    said(&dir, &["put", "tags", "k", "own", "--txn", &id]);
    said(&view, &["put", "tags", "in the view", "own"]);
    fs::write(view.join("file"), "tagged").unwrap();
    let scan = |path: &Path, more: &[&str]| said(path, &[&["scan", "tags"], more].concat());
    assert_eq!(scan(&dir, &["--txn", &id]), "in the view\town\nk\town\n");
    assert_eq!(scan(&view, &[]), scan(&dir, &["--txn", &id]));
    assert_eq!(scan(&dir, &[]), "k\tmain\n");
    assert!(refused(&dir, &["create", "more", "--txn", &id]).contains("outside of transactions"));
    assert!(refused(&dir, &["get", "tags", "k", "--txn", "7"]).contains("no transaction 7"));
    assert!(refused(&view, &["get", "tags", "k", "--txn", "7"]).contains("lies in"));
    assert_eq!(kv(&dir, &["list", "--txn", "0"]).output().unwrap().status.code(), Some(2));
    let status = String::from_utf8(txn(&mount, "status", &id).stdout).unwrap();
    assert!(status.contains("1 added") && status.contains("2 changed in dictionaries"), "{status}");
    said(&dir, &["put", "tags", "k", "later"]);
    let output = txn(&mount, "commit", &id);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("key k of dictionary tags\n"), "{error}");
    assert!(txn(&mount, "abort", &id).status.success());
    assert_eq!(scan(&dir, &[]), "k\tlater\n");
    assert!(!dir.join("file").exists());
    assert!(refused(&dir, &["get", "tags", "k", "--txn", &id]).contains("no transaction"));
    // A program that is run in a transaction needs no id.
    let script = "echo tagged > file && \"$0\" kv put . tags file size=7";
    let program = env!("CARGO_BIN_EXE_varve");
    let mut command = varve();
    command.args(["txn", "run"]).arg(&dir).args(["--", "sh", "-c", script, program]);
    run(command.current_dir(&dir));
    assert_eq!(said(&dir, &["get", "tags", "file"]), "size=7");
    assert_eq!(fs::read(dir.join("file")).unwrap(), b"tagged\n");
    // Of a store that is not mounted.
    let (id, view) = begin(&mount);
    fs::write(view.join("second"), "x").unwrap();
    mount.unmount();
    said(&mount.store(), &["put", "tags", "second", "offline", "--txn", &id]);
    assert_eq!(said(&mount.store(), &["list", "--txn", &id]), "tags\n");
    run(varve().args(["txn", "commit"]).arg(mount.store()).arg(&id));
    assert_eq!(said(&mount.store(), &["get", "tags", "second"]), "offline");
    mount.mount();
    assert_eq!(fs::read(dir.join("second")).unwrap(), b"x");
}

#[test]
fn the_death_of_the_daemon_parts_no_file_from_its_tag() {
    let Some(mount) = Mount::new() else { return };
    let dir = mount.path();
    said(&dir, &["create", "tags"]);
    let mut rng = Rng::new(7);
    let (mut committed, mut cut) = (0, 0);
    for round in 0..50 {
        if round >= 5 && committed > 0 && cut > 0 {
            break;
        }
        let (last, hit) = (rng.below(3), rng.below(4));
        let (daemon, patience) = (mount.daemon(), std::time::Duration::from_millis(rng.below(12)));
        let mut killer = None;
        for n in 0..=last {
            let name = format!("{round}-{n}");
            let mut view = PathBuf::new();
            for step in 0..4 {
                if (n, step) == (last, hit) {
                    killer = Some(std::thread::spawn(move || {
                        std::thread::sleep(patience);
                        rustix::process::kill_process(daemon, rustix::process::Signal::KILL)
                    }));
                }
                let id = view.file_name().and_then(|id| id.to_str()).unwrap_or("-").to_owned();
                let done = match step {
                    0 => {
                        let begun = varve().args(["txn", "begin"]).arg(&dir).output().unwrap();
                        view = String::from_utf8(begun.stdout).unwrap().trim_end().into();
                        begun.status.success()
                    }
                    1 => kv(&dir, &["put", "tags", &name, "x", "--txn", &id])
                        .output()
                        .is_ok_and(|output| output.status.success()),
                    2 => fs::write(view.join(&name), "x").is_ok(),
                    _ => txn(&mount, "commit", &id).status.success(),
                };
                if !done {
                    assert!(killer.is_some(), "only the death of the daemon is in the way");
                    break;
                }
                committed += u32::from(step == 3);
            }
        }
        killer.unwrap().join().unwrap().unwrap();
        mount.unmount();
        mount.mount();
        let mut files: Vec<String> = fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let tags = said(&dir, &["scan", "tags"]).replace("\tx", "");
        assert_eq!(files, tags.lines().collect::<Vec<_>>());
        let listed = run(varve().args(["txn", "list", "--json"]).arg(&dir)).stdout;
        let open: Value = serde_json::from_slice(&listed).unwrap();
        for left in open.as_array().unwrap() {
            cut += 1;
            assert!(txn(&mount, "abort", left["id"].as_str().unwrap()).status.success());
        }
    }
    assert!(committed > 0, "{committed} committed, {cut} cut short");
    mount.unmount();
    run(varve().arg("fsck").arg(mount.store()));
    mount.mount();
}

/// Whatever comes, a message is refused or means what it says.
#[test]
fn arbitrary_messages_are_refused_or_read() {
    let samples = [
        Request::Create(b"name".to_vec()).encode(0),
        Request::List.encode(77),
        Request::Get { name: b"n".to_vec(), key: vec![] }.encode(77),
        Request::Change {
            name: b"n".to_vec(),
            changes: vec![(b"k".to_vec(), None), (vec![1], Some(vec![2]))],
        }
        .encode(77),
        Request::Scan {
            name: b"n".to_vec(),
            start: End::Open,
            end: End::Excluded(vec![9]),
            reverse: true,
        }
        .encode(77),
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
            (Ok((transaction, request)), _) => assert_eq!(request.encode(*transaction), body),
            (_, Ok(response)) => assert_eq!(response.encode(), body),
            _ => refused += 1,
        }
        read += u64::from(request.is_ok() || response.is_ok());
    }
    assert!(read > 1000 && refused > 1000, "{read} read, {refused} refused");
}

/// A store was opened, and a daemon connected to, before there was a value: the one stayed locked, and the other hung up on who did not
/// say anything.
#[test]
fn nobody_waits_for_a_value_that_is_yet_to_come() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    run(varve().arg("format").arg(&store));
    said(&store, &["create", "tags"]);
    let mut put = kv(&store, &["put", "tags", "k"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut value = put.stdin.take().unwrap();
    // More than a pipe holds: when it is written, the rest of it is being read.
    value.write_all(&vec![b'x'; 300_000]).unwrap();
    assert_eq!(said(&store, &["list"]), "tags\n");
    drop(value);
    assert!(put.wait().unwrap().success());
    assert_eq!(said(&store, &["get", "tags", "k"]).len(), 300_000);
}
