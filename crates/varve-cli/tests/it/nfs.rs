//! A store over NFS, asked by a client that others wrote (libnfs), and by calls put together here.

mod answers;
mod replies;
mod rights;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use varve_testkit::rng::Rng;
use varve_testkit::{Command, skipped, there_is};

use crate::harness::{fails, run, varve};
use crate::served::Server;

/// Serves a store over NFS.
fn serve<A: AsRef<OsStr>>(store: &Path, listen: &str, exports: [A; 2]) -> Server {
    Server::start("nfs", store, listen, exports)
}

fn connect(server: &Server) -> Client {
    let stream = TcpStream::connect(server.address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    Client { stream, transaction: 1, ids: [0, 0], groups: Vec::new() }
}

fn formatted() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let store = dir.path().join("store");
    run(varve().arg("format").arg(&store));
    (dir, store)
}

const ALL: [&str; 2] = ["--export", "/ 127.0.0.1(rw,no_root_squash)"];

#[test]
fn programs_work_over_nfs_and_over_a_kill_of_the_server() {
    if !there_is("gcc") {
        return;
    }
    if !Path::new("/usr/include/nfsc/libnfs.h").exists() {
        return skipped("there is no libnfs on this machine");
    }
    let (dir, store) = formatted();
    let client = dir.path().join("client");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/nfs/client.c");
    let mut compile = Command::new("gcc");
    compile.args(["-O1", "-Wall", "-o"]).arg(&client).arg(&source).arg("-lnfs");
    run(&mut compile);
    let mut server = serve(&store, "127.0.0.1:0", ALL);
    let port = server.address.port().to_string();
    let mut command = Command::new(&client);
    let mut program = command
        .arg(&port)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the client starts");
    let mut said = BufReader::new(program.stdout.take().expect("its output"));
    let mut line = String::new();
    let mut complaints = String::new();
    while said.read_line(&mut line).expect("what it says") > 0 && line != "killing is welcome\n" {
        complaints.push_str(&std::mem::take(&mut line));
    }
    assert_eq!(complaints, "");
    server.kill();
    let listen = server.address.to_string();
    let server = serve(&store, &listen, ALL);
    program.stdin.take().expect("its input").write_all(b"go on\n").expect("a line");
    said.read_to_string(&mut complaints).expect("what it says");
    assert_eq!(complaints, "");
    assert!(program.wait().expect("its end").success());
    server.stop();
    run(varve().arg("fsck").arg(&store));
}

/// A connection on which calls are put together by hand.
struct Client {
    stream: TcpStream,
    transaction: u32,
    /// The user and the group who call, and further groups.
    ids: [u32; 2],
    groups: Vec<u32>,
}

/// Numbers and bytes as XDR has them.
#[derive(Clone, Default)]
struct Xdr(Vec<u8>);

impl Xdr {
    fn numbers(mut self, numbers: &[u32]) -> Xdr {
        numbers.iter().for_each(|number| self.0.extend(number.to_be_bytes()));
        self
    }

    fn bytes(self, bytes: &[u8]) -> Xdr {
        let mut xdr = self.numbers(&[bytes.len() as u32]);
        xdr.0.extend_from_slice(bytes);
        xdr.0.resize(xdr.0.len().next_multiple_of(4), 0);
        xdr
    }
}

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
/// Attributes of which none is to be set, and of which only the mode 0644 is.
const NO_ATTRIBUTES: [u32; 6] = [0; 6];
const MODE: [u32; 7] = [1, 0o644, 0, 0, 0, 0, 0];

impl Client {
    /// A call.
    fn message(&self, program: u32, procedure: u32, arguments: &Xdr) -> Vec<u8> {
        let credentials = Xdr::default().numbers(&[0]).bytes(b"test").numbers(&self.ids);
        let credentials = credentials.numbers(&[self.groups.len() as u32]).numbers(&self.groups);
        let head = Xdr::default().numbers(&[self.transaction, 0, 2, program, 3, procedure, 1]);
        let mut message = head.bytes(&credentials.0).numbers(&[0, 0]).0;
        message.extend_from_slice(&arguments.0);
        message
    }

    fn send(&mut self, message: &[u8]) -> std::io::Result<()> {
        let head = (message.len() as u32 | 1 << 31).to_be_bytes();
        self.stream.write_all(&[&head, message].concat())
    }

    fn receive(&mut self) -> std::io::Result<Vec<u8>> {
        let mut head = [0; 4];
        self.stream.read_exact(&mut head)?;
        let mut reply = vec![0; (u32::from_be_bytes(head) & !(1 << 31)) as usize];
        self.stream.read_exact(&mut reply)?;
        Ok(reply)
    }

    /// What follows the head of the reply to an accepted call.
    fn call(&mut self, program: u32, procedure: u32, arguments: &Xdr) -> Vec<u8> {
        self.transaction += 1;
        self.again(program, procedure, arguments)
    }

    /// The same call once more.
    fn again(&mut self, program: u32, procedure: u32, arguments: &Xdr) -> Vec<u8> {
        let message = self.message(program, procedure, arguments);
        self.send(&message).expect("sent");
        let reply = self.receive().expect("a reply");
        assert_eq!(reply[..4], self.transaction.to_be_bytes());
        assert_eq!(reply[4..24], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        reply[24..].to_vec()
    }

    fn root(&mut self) -> Vec<u8> {
        let reply = self.call(MOUNT, 1, &Xdr::default().bytes(b"/"));
        assert_eq!(number(&reply, 0), 0);
        reply[8..8 + number(&reply, 4) as usize].to_vec()
    }

    /// The status of a procedure.
    fn status(&mut self, procedure: u32, arguments: &Xdr) -> u32 {
        number(&self.call(NFS, procedure, arguments), 0)
    }
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn at(handle: &[u8], name: &[u8]) -> Xdr {
    Xdr::default().bytes(handle).bytes(name)
}

#[test]
fn a_call_that_comes_twice_is_done_once() {
    let (_dir, store) = formatted();
    let server = serve(&store, "127.0.0.1:0", ALL);
    let mut client = connect(&server);
    let root = client.root();
    let guarded = at(&root, b"file").numbers(&[1]).numbers(&MODE);
    let made = client.call(NFS, 8, &guarded);
    assert_eq!(number(&made, 0), 0);
    assert_eq!(client.again(NFS, 8, &guarded), made, "on the same connection");
    let transaction = client.transaction;
    let mut other = connect(&server);
    other.transaction = transaction;
    assert_eq!(other.again(NFS, 8, &guarded), made, "on another");
    assert_eq!(client.status(8, &guarded), 17, "a new call");
    let removed = client.call(NFS, 12, &at(&root, b"file"));
    assert_eq!(
        (number(&removed, 0), client.again(NFS, 12, &at(&root, b"file")) == removed),
        (0, true)
    );
    assert_eq!(client.status(12, &at(&root, b"file")), 2);
    // An exclusive call is the same as one that has the same verifier.
    let exclusive = |verifier: u32| at(&root, b"once").numbers(&[2, verifier, 7]);
    assert_eq!([1, 1, 2].map(|verifier| client.status(8, &exclusive(verifier))), [0, 0, 17]);
    server.stop();
}

#[test]
fn exports_say_who_may_do_what() {
    let (dir, store) = formatted();
    let server = serve(&store, "127.0.0.1:0", ALL);
    let mut client = connect(&server);
    let root = client.root();
    for name in [&b"public"[..], b"secret"] {
        assert_eq!(client.status(9, &at(&root, name).numbers(&NO_ATTRIBUTES)), 0);
    }
    server.stop();
    let exports = dir.path().join("exports");
    std::fs::write(&exports, "# who\n\n/public 10.0.0.0/8(rw) 127.0.0.0/8(ro)\n/secret 10.0.0.1\n")
        .unwrap();
    let from_file = [OsStr::new("--exports-file"), exports.as_os_str()];
    let server = serve(&store, "127.0.0.1:0", from_file);
    let mut client = connect(&server);
    let mut mount = |path: &str| client.call(MOUNT, 1, &Xdr::default().bytes(path.as_bytes()));
    assert_eq!(["/", "/secret", "/publicity"].map(|path| number(&mount(path), 0)), [13; 3]);
    assert_eq!(number(&mount("/public/none"), 0), 2);
    let reply = mount("/public/");
    let public = reply[8..8 + number(&reply, 4) as usize].to_vec();
    let mut client = connect(&server);
    assert_eq!(client.status(1, &Xdr::default().bytes(&public)), 0);
    assert_eq!(client.status(9, &at(&public, b"d").numbers(&NO_ATTRIBUTES)), 30, "to read only");
    assert_eq!(client.status(1, &Xdr::default().bytes(&root)), 13, "of an export that is gone");
    let listed = client.call(MOUNT, 5, &Xdr::default());
    assert!(listed.windows(7).any(|bytes| bytes == b"/secret"));
    server.stop();
    let none = fails(
        varve().args(["nfs", "--listen", "127.0.0.1:0", "--export", "/none *"]).arg(&store),
        1,
    );
    assert!(none.contains("/none cannot be exported: no such file"), "{none}");
    let nonsense = fails(varve().args(["nfs", "--export", "/ *(maybe)"]).arg(&store), 2);
    assert!(nonsense.contains("there is no option maybe"), "{nonsense}");
}

/// A call of each procedure that does something.
fn calls(root: &[u8], file: &[u8]) -> [(u32, Xdr); 21] {
    let of = |handle: &[u8]| Xdr::default().bytes(handle);
    [
        (1, of(file)),
        (2, of(file).numbers(&NO_ATTRIBUTES).numbers(&[0])),
        (3, at(root, b"file")),
        (4, of(file).numbers(&[63])),
        (5, of(file)),
        (6, of(file).numbers(&[0, 0, 100])),
        (7, of(file).numbers(&[0, 0, 5, 0]).bytes(b"hello")),
        (8, at(root, b"new").numbers(&[0]).numbers(&NO_ATTRIBUTES)),
        (9, at(root, b"dir").numbers(&NO_ATTRIBUTES)),
        (10, at(root, b"sym").numbers(&NO_ATTRIBUTES).bytes(b"target")),
        (11, at(root, b"fifo").numbers(&[7]).numbers(&NO_ATTRIBUTES)),
        (12, at(root, b"none")),
        (13, at(root, b"none")),
        (14, at(root, b"none").bytes(root).bytes(b"none2")),
        (15, of(file).bytes(root).bytes(b"link")),
        (16, of(root).numbers(&[0, 0, 0, 0, 4096])),
        (17, of(root).numbers(&[0, 0, 0, 0, 4096, 8192])),
        (18, of(root)),
        (19, of(root)),
        (20, of(root)),
        (21, of(file).numbers(&[0, 0, 0])),
    ]
}

/// Whoever sends nonsense has it refused, or loses the connection; all others go on.
#[test]
fn nonsense_harms_nobody() {
    let (_dir, store) = formatted();
    let server = serve(&store, "127.0.0.1:0", ALL);
    let mut good = connect(&server);
    let root = good.root();
    assert_eq!(good.status(8, &at(&root, b"file").numbers(&[0]).numbers(&MODE)), 0);
    let found = good.call(NFS, 3, &at(&root, b"file"));
    let file = found[8..8 + number(&found, 4) as usize].to_vec();
    let calls = calls(&root, &file);
    let mut rng = Rng::new(1);
    let mut random = |below: usize| rng.below(below as u64) as usize;
    let (mut bad, mut answered, mut ended) = (connect(&server), 0, 0);
    for round in 0..3000 {
        let (procedure, arguments) = &calls[round % calls.len()];
        bad.transaction += 1;
        let mut message = bad.message(NFS, *procedure, arguments);
        for _ in 0..=random(3) {
            let at = random(message.len());
            match random(4) {
                0 => message[at] ^= 1 << random(8),
                1 => message.truncate(at.max(4)),
                2 => message[at] = 0xff,
                _ => message.insert(at, random(256) as u8),
            }
        }
        let replied = bad.send(&message).and_then(|()| bad.receive());
        match replied {
            Ok(_) => answered += 1,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("no answer: {message:?}")
            }
            Err(_) => {
                ended += 1;
                bad = connect(&server);
                bad.transaction = round as u32 + 2;
            }
        }
    }
    assert!(answered > 1000 && ended > 50, "{answered} {ended}");
    // Messages that claim what they do not have.
    for head in [[0xff; 4], [0x7f, 0xff, 0xff, 0xff], [0, 0, 0, 0]] {
        let mut huge = connect(&server);
        huge.stream.write_all(&head).expect("sent");
        assert!(huge.receive().is_err());
    }
    assert_eq!(good.status(1, &Xdr::default().bytes(&root)), 0);
    // Programs, versions and procedures that there are not.
    for (program, procedure, why) in [(100_000, 0, 1), (NFS, 22, 3), (MOUNT, 9, 3)] {
        good.transaction += 1;
        let message = good.message(program, procedure, &Xdr::default());
        good.send(&message).expect("sent");
        assert_eq!(number(&good.receive().expect("a reply"), 20), why);
    }
    server.stop();
    run(varve().arg("fsck").arg(&store));
}

#[test]
fn listings_go_on_where_they_ended_whatever_has_gone() {
    let (_dir, store) = formatted();
    let server = serve(&store, "127.0.0.1:0", ALL);
    let mut client = connect(&server);
    let root = client.root();
    for number in 0..300 {
        let name = format!("name{number}");
        assert_eq!(client.status(8, &at(&root, name.as_bytes()).numbers(&[0]).numbers(&MODE)), 0);
    }
    assert_eq!(client.status(16, &Xdr::default().bytes(&root).numbers(&[0, 0, 0, 0, 50])), 10_005);
    let (mut names, mut cookie) = (std::collections::BTreeSet::new(), [0, 0]);
    loop {
        let plus = Xdr::default().bytes(&root).numbers(&cookie).numbers(&[0, 0, 1000, 4000]);
        let reply = client.call(NFS, 17, &plus);
        assert_eq!(number(&reply, 0), 0);
        // The status, attributes, and a verifier.
        let mut at = 4 + 4 + 84 + 8;
        while number(&reply, at) == 1 {
            let len = number(&reply, at + 12) as usize;
            let name = reply[at + 16..at + 16 + len].to_vec();
            at += 16 + len.next_multiple_of(4);
            cookie = [number(&reply, at), number(&reply, at + 4)];
            at += 8;
            at += 4 + if number(&reply, at) == 1 { 84 } else { 0 };
            at += 4 + if number(&reply, at) == 1 { 4 + 36 } else { 0 };
            // What was listed is removed behind the listing.
            if name.starts_with(b"name") {
                assert_eq!(client.status(12, &self::at(&root, &name)), 0);
                assert!(names.insert(name), "twice");
            }
        }
        if number(&reply, at + 4) == 1 {
            break;
        }
    }
    assert_eq!(names.len(), 300);
    server.stop();
}
