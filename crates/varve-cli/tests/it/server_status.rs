//! What a server says of itself, to people, programs, Prometheus and the service manager; and how it ends.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use varve_testkit::{Command, eventually};

use crate::harness::{Mount, fails, json, run, varve};
use crate::served::Server;
use crate::two_mounts::{Mounts, daemon_of};

/// A command that serves `store` on a free port, and writes its log to `log`.
fn serve(store: &Path, log: &Path, arguments: &[&str]) -> Command {
    let mut command = varve();
    command.args(["serve", "--json", "--listen", "127.0.0.1:0"]).args(arguments).arg(store);
    command.stderr(File::options().create(true).append(true).open(log).unwrap());
    command
}

/// Fetches metrics as Prometheus does.
fn fetch(metrics: SocketAddr) -> String {
    let mut stream = TcpStream::connect(metrics).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: varve\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    text.to_owned()
}

fn sample(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    Some(line.parse().unwrap())
}

/// The client of a server whose mount is `dir`.
fn client<'a>(told: &'a Value, dir: &Path) -> &'a Value {
    let clients = told["server"]["sessions"]["clients"].as_array().unwrap();
    let of_mount =
        |client: &&Value| client["name"].as_str().unwrap().ends_with(dir.to_str().unwrap());
    clients.iter().find(of_mount).unwrap()
}

/// By address with the secret, in the store's directory without, and over HTTP the same is told.
#[test]
fn a_server_says_what_its_clients_do() {
    let secrets = tempfile::tempdir().unwrap();
    let [token, log] = ["token", "log"].map(|name| secrets.path().join(name));
    fs::write(&token, "s3cret\n").unwrap();
    let told = token.to_str().unwrap();
    let more = ["--token-file", told, "--metrics", "127.0.0.1:0", "--slow", "0", "--session", "1"];
    let served = Mounts::of(&[], |store| Server::of(&mut serve(store, &log, &more)));
    let Some(mut mounts) = served else { return };
    for name in ["a", "b"] {
        mounts.mount_with(name, &format!("token_file={told}"));
    }
    let (a, b) = (mounts.path("a"), mounts.path("b"));
    let open = File::create(a.join("one")).unwrap();
    fs::write(b.join("two"), "2").unwrap();
    fs::read(a.join("two")).unwrap();
    fs::write(b.join("two"), "22").unwrap();
    fs::remove_file(b.join("none")).unwrap_err();

    let address = format!("varve://{}", mounts.address);
    status_is_told(&mounts, told);
    stats_are_told(&mounts, told);
    metrics_are_served(&mounts);

    // A mount says so of itself too.
    let of_mount = json(mounts.varve().args(["status", "--json"]).arg(a.join("one")));
    assert_eq!(of_mount["mount_point"], a.to_str().unwrap());
    assert_eq!(of_mount["address"], *format!("{address}/"));
    assert!(of_mount["file_system"]["engine"].is_object(), "{of_mount}");

    let refused = fails(varve().args(["status", &address]), 1);
    assert!(refused.contains("token") && refused.contains("--token-file"), "{refused}");
    let useless = fails(varve().args(["stats", "--token-file", told]).arg(mounts.store()), 2);
    assert!(useless.contains("by their address"), "{useless}");
    let nobody = fails(varve().args(["status", "varve://127.0.0.1:1"]), 1);
    assert!(nobody.contains("127.0.0.1:1 cannot be reached"), "{nobody}");

    // A client that dies.
    rustix::process::kill_process(daemon_of(&b), rustix::process::Signal::KILL).unwrap();
    eventually("its session ends", || {
        let told = json(&mut by_address(&mounts, "status", told));
        told["server"]["sessions"]["count"] == 1
    });
    let _ = rustix::mount::unmount(&b, rustix::mount::UnmountFlags::DETACH);
    mounts.names.retain(|name| name != "b");
    drop(open);
    mounts.end();
    let log = fs::read_to_string(log).unwrap();
    for part in [
        &format!("{} (session 1): a session begins", a.display()) as &str,
        "write at 0 of inode ",
        "create `one` of inode 1 took ",
        "not let in: the server does not know the client's token",
        "(session 2): has no connection; the session ends in 1.0 s unless it comes back",
        "(session 2): the session ends after ",
        "signal 15: the server ends",
        "the store is closed after ",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
}

/// A command that asks the server by its address.
fn by_address(mounts: &Mounts, verb: &str, token: &str) -> Command {
    let mut command = varve();
    command
        .args([verb, "--json", "--token-file", token])
        .arg(format!("varve://{}", mounts.address));
    command
}

fn status_is_told(mounts: &Mounts, token: &str) {
    let (a, b) = (mounts.path("a"), mounts.path("b"));
    let by_address = json(&mut by_address(mounts, "status", token));
    let by_directory = json(varve().args(["status", "--json"]).arg(mounts.store()));
    for told in [&by_address, &by_directory["server"]] {
        assert_eq!(told["store"], mounts.store().canonicalize().unwrap().to_str().unwrap());
        let server = &told["server"];
        assert_eq!(server["address"], *mounts.address);
        assert_eq!(server["sessions"]["count"], 2);
        assert_eq!(server["sessions"]["open_files"], 1);
        assert_eq!(server["requests"]["create"]["count"], 2);
        assert!(server["leases"]["recalls"].as_u64() > Some(0), "{server}");
        assert!(told["file_system"]["engine"]["counters"]["writes"].as_u64() > Some(0));
        assert_eq!([&client(told, &a)["open_files"], &client(told, &b)["open_files"]], [1, 0]);
        assert!(client(told, &b)["requests"].as_u64() > Some(3));
    }
    assert_eq!(by_directory["holder"]["mount_point"], Value::Null);
}

fn stats_are_told(mounts: &Mounts, token: &str) {
    let stats = json(&mut by_address(mounts, "stats", token));
    let writes = &stats["operations"]["write"];
    assert_eq!((&writes["count"], &writes["failed"]), (&2.into(), &0.into()));
    assert!(writes["p99_us"].as_f64() > Some(0.0), "{writes}");
    assert!(stats["operations"]["lookup"]["failed"].as_u64() > Some(0));
    assert_eq!(stats["server_now"]["sessions"], 2);
    let printed = run(varve().args(["stats", "-n", "1"]).arg(mounts.store())).stdout;
    let printed = String::from_utf8(printed).unwrap();
    assert!(printed.lines().any(|line| line.starts_with("write  ")), "{printed}");
    let printed = run(varve().arg("status").arg(mounts.store())).stdout;
    let printed = String::from_utf8(printed).unwrap();
    let a = mounts.path("a");
    let of_client = |line: &str| line.contains(a.to_str().unwrap());
    assert!(printed.lines().any(of_client) && printed.contains("recalls  "), "{printed}");
}

fn metrics_are_served(mounts: &Mounts) {
    let metrics = mounts.server.as_ref().unwrap().metrics.unwrap();
    let fetched = fetch(metrics);
    assert_eq!(sample(&fetched, "varve_requests_total{operation=\"create\"}"), Some(2.0));
    assert_eq!(sample(&fetched, "varve_server_sessions"), Some(2.0));
    assert!(sample(&fetched, "varve_server_recalls_total") > Some(0.0), "{fetched}");
    let exported = run(varve().args(["stats", "--prometheus"]).arg(mounts.store())).stdout;
    let exported = String::from_utf8(exported).unwrap();
    let names = |text: &str| {
        let types = text.lines().filter(|line| line.starts_with("# TYPE "));
        types.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names(&fetched), names(&exported));
    let a = mounts.path("a");
    for text in [&fetched, &exported] {
        assert!(!text.contains("two") && !text.contains(a.to_str().unwrap()), "a name: {text}");
    }
}

/// A service manager hears that the server is ready when it answers, and that it ends before it has ended.
#[test]
fn a_service_manager_hears_when_a_server_answers_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let [store, socket, log] = ["store", "notify", "log"].map(|name| dir.path().join(name));
    run(varve().arg("format").arg(&store));
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(varve_testkit::PATIENCE)).unwrap();
    let hear = || {
        let mut said = vec![0; 4096];
        let length = manager.recv(&mut said).unwrap();
        String::from_utf8(said[..length].to_vec()).unwrap()
    };
    let mut server = Server::of(serve(&store, &log, &[]).env("NOTIFY_SOCKET", &socket));
    let ready = hear();
    let (first, status) = ready.split_once('\n').unwrap();
    assert_eq!(first, "READY=1");
    assert_eq!(status, format!("STATUS={} is served on {}", store.display(), server.address));
    run(varve().args(["status", &format!("varve://{}", server.address)]));
    server.terminate();
    assert!(hear().starts_with("STOPPING=1\n"));
    assert_eq!(server.wait(), Some(0));
    run(varve().arg("fsck").arg(&store));
}

/// A snapshot that is sent to a reader that does not read.
struct Stuck {
    send: std::process::Child,
    rest: std::process::ChildStdout,
    first: u8,
}

impl Stuck {
    fn of(store: &Path, name: &str) -> Stuck {
        let mut send = varve();
        send.args(["snapshot", "send"]).arg(store).arg(name);
        let mut send = send.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (mut rest, mut first) = (send.stdout.take().unwrap(), [0]);
        rest.read_exact(&mut first).unwrap();
        Stuck { send, rest, first: first[0] }
    }

    /// Reads the rest. Returns it all, and whether the sender was content.
    fn read(mut self) -> (Vec<u8>, bool) {
        let mut all = vec![self.first];
        self.rest.read_to_end(&mut all).unwrap();
        (all, self.send.wait().unwrap().success())
    }
}

/// A server stopped with a command under way served nobody any more, although it waited for that command.
#[test]
fn a_server_that_ends_serves_until_commands_on_its_machine_are_done() {
    let Some(mut mounts) = Mounts::new(&[], &[]) else { return };
    mounts.mount_with("a", "soft,timeo=5");
    let a = mounts.path("a");
    fs::write(a.join("large"), vec![7; 8 << 20]).unwrap();
    run(varve().args(["snapshot", "create"]).arg(mounts.store()).arg("s"));
    let stuck = Stuck::of(&mounts.store(), "s");
    mounts.server.as_ref().unwrap().terminate();
    eventually("the server takes no new command", || !mounts.store().join("control").exists());
    for n in 0..20 {
        fs::write(a.join(format!("f{n}")), "served").unwrap();
    }
    let (stream, is_content) = stuck.read();
    assert!(is_content);
    assert_eq!(mounts.server.as_mut().unwrap().wait(), Some(0));
    let copy = mounts.path("copy");
    let mut receive = varve();
    receive.args(["snapshot", "receive"]).arg(&copy).stdin(Stdio::piped());
    let mut receive = receive.spawn().unwrap();
    receive.stdin.take().unwrap().write_all(&stream).unwrap();
    assert!(receive.wait().unwrap().success());
    mounts.serve_again(&[]);
    assert_eq!(fs::read(a.join("f19")).unwrap(), b"served");
    mounts.end();
}

/// A command that never ends does not keep the server.
#[test]
fn a_server_ends_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let [store, files, log] = ["store", "files", "log"].map(|name| dir.path().join(name));
    run(varve().arg("format").arg(&store));
    let mut server = Server::of(&mut serve(&store, &log, &["--stop-max", "1"]));
    run(varve().args(["kv", "create"]).arg(&store).arg("d"));
    let value = "v".repeat(100_000);
    for key in 0..30 {
        run(varve().args(["kv", "put"]).arg(&store).args(["d", &key.to_string(), &value]));
    }
    run(varve().args(["snapshot", "create"]).arg(&store).arg("s"));
    let stuck = Stuck::of(&store, "s");
    let begin = Instant::now();
    server.terminate();
    assert_eq!(server.wait(), Some(1));
    let took = begin.elapsed();
    assert!((1..15).contains(&took.as_secs()), "{took:?}");
    assert!(!stuck.read().1, "it was cut off");
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("is not closed after 1s"), "{log}");
    run(varve().arg("fsck").arg(&store));
    let got = run(varve().args(["kv", "get"]).arg(&store).args(["d", "29"]));
    assert_eq!(got.stdout, value.as_bytes());
    assert!(!files.exists());
}

/// The commands about a store work beside its server, or say what is in their way.
#[test]
fn commands_on_a_store_that_is_served_do_it_or_say_why_not() {
    let dir = tempfile::tempdir().unwrap();
    let [store, log, mount] = ["store", "log", "mount"].map(|name| dir.path().join(name));
    run(varve().arg("format").arg(&store));
    fs::create_dir(&mount).unwrap();
    let server = Server::of(&mut serve(&store, &log, &[]));
    let pid = server.pid().as_raw_nonzero();
    let on = |verbs: &[&str], rest: &[&str]| {
        let mut command = varve();
        command.args(verbs).arg(&store).args(rest);
        command
    };
    run(&mut on(&["kv", "create"], &["d"]));
    run(&mut on(&["kv", "put"], &["d", "key", "value"]));
    assert_eq!(run(&mut on(&["kv", "get"], &["d", "key"])).stdout, b"value");
    let missing = fails(&mut on(&["kv", "get"], &["e", "key"]), 1);
    assert!(missing.contains("no dictionary") || missing.contains("kv list"), "{missing}");
    run(&mut on(&["snapshot", "create"], &["s"]));
    run(&mut on(&["snapshot", "list"], &[]));
    run(&mut on(&["snapshot", "delete"], &["s"]));
    run(&mut on(&["tune"], &["--now"]));
    let stop = format!("`kill {pid}`");
    for (command, said) in [
        (on(&["umount"], &[]), [&format!("process {pid} serves") as &str, &stop]),
        (on(&["upgrade"], &[]), ["a server is not replaced", "stop it"]),
        (on(&["fsck"], &[]), ["is in use by process", &stop]),
        (on(&["mount"], &[mount.to_str().unwrap()]), ["is in use by process", &stop]),
        (on(&["snapshot", "receive"], &[]), ["receives no snapshots", "stop the server"]),
    ] {
        let mut command = command;
        let refused = fails(command.stdin(Stdio::null()), 1);
        for part in said {
            assert!(refused.contains(part), "{part}: {refused}");
        }
    }
    server.stop();
    // A server that changes nothing.
    let server = Server::of(&mut serve(&store, &log, &["--read-only"]));
    assert_eq!(run(&mut on(&["kv", "get"], &["d", "key"])).stdout, b"value");
    let refused = fails(&mut on(&["kv", "put"], &["d", "key", "other"]), 1);
    assert!(refused.contains("read-only") || refused.contains("Read-only"), "{refused}");
    fails(&mut on(&["snapshot", "create"], &["s"]), 1);
    server.stop();
    assert_eq!(run(&mut on(&["kv", "get"], &["d", "key"])).stdout, b"value");
}

/// Who took a dead mount of the store away waited for the end of the server, and then failed.
#[test]
fn a_dead_mount_of_a_store_that_is_served_goes_at_once() {
    let Some(mount) = Mount::new() else { return };
    if crate::harness::through_server() {
        return;
    }
    let log: PathBuf = mount.path().with_extension("log");
    mount.kill_daemon();
    let server = Server::of(&mut serve(&mount.store(), &log, &[]));
    let begin = Instant::now();
    run(varve().arg("umount").arg(mount.path()));
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    server.stop();
}
