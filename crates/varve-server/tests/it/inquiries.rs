//! Those who ask what a server has and does, and clients of other versions.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use varve_client::{ConnectError, inquire};
use varve_fs::{MountOptions, VarveFs};
use varve_server::{Asked, Host, Options, Server, Status, View};
use varve_testkit::eventually;
use varve_vfs::FsResult;
use varve_wire::frame::{self, HEADER_BYTES, Kind};
use varve_wire::{DATA_BYTES_MAX, Header, Hello, Inquiry, Refused, Request, VERSION};

use crate::hostile::Raw;
use crate::support::{Served, connect, machine, options};

const WAIT_MAX: Duration = Duration::from_secs(20);

/// Says so many bytes, once it may.
struct Telling {
    bytes: usize,
    goes_on: Mutex<bool>,
    changed: Condvar,
}

impl Host for Telling {
    fn open(&self, _path: &[u8]) -> Option<FsResult<View>> {
        None
    }

    fn close(&self, _path: &[u8]) {}

    fn report(&self, status: &Status) -> Vec<u8> {
        let mut goes_on = self.goes_on.lock();
        while !*goes_on {
            self.changed.wait(&mut goes_on);
        }
        let mut told = format!("{} {}", status.sessions_count, status.refused_hellos).into_bytes();
        told.resize(self.bytes.max(told.len()), b'x');
        told
    }

    fn ask(&self, _request: &[u8], _read_only: bool, _asked: &Asked<'_>) -> Vec<u8> {
        Vec::new()
    }
}

/// A server that tells so many bytes of itself, at once if `goes_on` is set.
fn telling(bytes: usize, goes_on: bool, options: Options) -> (Served, Arc<Telling>) {
    let machine = machine(1);
    let store = std::path::Path::new("/store");
    let fs = Arc::new(VarveFs::open(machine, store, MountOptions::default()).unwrap());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let host = Telling { bytes, goes_on: Mutex::new(goes_on), changed: Condvar::new() };
    let host = Arc::new(host);
    let told = Arc::<Telling>::clone(&host);
    let server = Server::start(Arc::<VarveFs>::clone(&fs), Some(told), listener, options).unwrap();
    (Served { fs, server }, host)
}

fn refused(error: ConnectError) -> String {
    match error {
        ConnectError::Refused(reason) => reason,
        other => panic!("{other}"),
    }
}

fn ask(served: &Served, token: &[u8]) -> Result<Vec<u8>, ConnectError> {
    inquire(&served.server.address().to_string(), token, WAIT_MAX)
}

#[test]
fn who_asks_gets_a_report_and_no_session() {
    let secret = Options { token: b"secret".to_vec(), ..options(1) };
    let (served, _host) = telling(0, true, secret);
    for wrong in [&b""[..], b"secreT", b"secret "] {
        assert!(refused(ask(&served, wrong).unwrap_err()).contains("token"));
    }
    assert_eq!(ask(&served, b"secret").unwrap(), b"0 3");
    let status = served.server.status();
    assert_eq!((status.sessions_count, status.refused_hellos, status.broken), (0, 3, 0));
    served.end();
}

#[test]
fn a_server_without_a_host_refuses_to_tell() {
    let served = Served::start(&machine(1), options(1));
    assert!(refused(ask(&served, b"").unwrap_err()).contains("nothing to tell"));
    served.end();
}

#[test]
fn a_report_that_fits_no_message_is_refused_with_its_size() {
    let (served, _host) = telling(DATA_BYTES_MAX, true, options(1));
    assert_eq!(ask(&served, b"").unwrap().len(), DATA_BYTES_MAX);
    served.end();
    let (served, _host) = telling(DATA_BYTES_MAX + 1, true, options(1));
    let reason = refused(ask(&served, b"").unwrap_err());
    assert!(reason.contains(&format!("{} bytes", DATA_BYTES_MAX + 1)), "{reason}");
    served.end();
}

/// Sends an inquiry.
fn begin(address: SocketAddr) -> Raw {
    let mut raw = Raw::silent(address);
    say(&mut raw, Kind::Inquiry);
    raw
}

fn say(raw: &mut Raw, kind: Kind) {
    let (mut message, token) = (Vec::new(), &b""[..]);
    let header = Header::new(kind, 0);
    let (client, connection, features, read_only) = ([7, 1], 1, 0, false);
    let hello = Hello { client, connection, features, name: "who", path: b"", read_only, token };
    match kind {
        Kind::Hello => varve_wire::encode(&mut message, header, &hello, &[]),
        Kind::Request => varve_wire::encode(&mut message, header, &Request::Statfs, &[]),
        _ => varve_wire::encode(&mut message, header, &Inquiry { token }, &[]),
    }
    raw.stream.write_all(&message).unwrap();
}

#[test]
fn an_inquiry_is_all_that_its_connection_is_for() {
    let (served, _host) = telling(0, true, options(1));
    for (times, kind) in [(1, Kind::Inquiry), (2, Kind::Hello), (3, Kind::Request)] {
        let mut raw = begin(served.server.address());
        assert_eq!(raw.next().unwrap().0.kind, Kind::Report);
        say(&mut raw, kind);
        assert_eq!(raw.next(), None);
        eventually("it is counted", || served.server.status().broken == times);
    }
    served.end();
}

/// Many who ask at once while the storage is slow take no room of others, and clients go on.
#[test]
fn those_who_ask_are_few_at_a_time() {
    let (served, host) = telling(0, false, options(1));
    let address = served.server.address();
    let client = connect(address, 1);
    let mut waiting: Vec<Raw> = Vec::new();
    let reason = loop {
        assert!(waiting.len() < 64, "one address has all of them");
        let mut raw = begin(address);
        // Who waits hears nothing.
        raw.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        match raw.stream.peek(&mut [0]) {
            Ok(1) => break raw.next().map(|(header, body, _)| (header.kind, body)),
            Ok(heard) => panic!("{heard} bytes"),
            Err(_) => waiting.push(raw),
        }
    };
    let (kind, body) = reason.unwrap();
    let refused: Refused = varve_wire::decode(&body).unwrap();
    assert_eq!((kind, refused.is_temporary), (Kind::Refused, true));
    assert_eq!(waiting.len(), 32);
    varve_vfs::Vfs::getattr(&client, varve_types::InodeId::ROOT).unwrap();
    *host.goes_on.lock() = true;
    host.changed.notify_all();
    for mut raw in waiting {
        raw.stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        assert_eq!(raw.next().unwrap().0.kind, Kind::Report);
    }
    assert_eq!(ask(&served, b"").unwrap(), b"1 1");
    drop(client);
    served.end();
}

/// It was hung up on without a word.
#[test]
fn a_client_of_another_version_is_told_both_versions() {
    let served = Served::start(&machine(1), options(1));
    let mut message = Vec::new();
    varve_wire::encode(&mut message, Header::new(Kind::Hello, 0), &"what later ones say", &[]);
    frame::set_version(&mut message, 9);
    let mut stream = TcpStream::connect(served.server.address()).unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.write_all(&message).unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap();
    assert_eq!(said[4], 9, "the refusal is of the client's version");
    frame::set_version(&mut said, VERSION);
    let frame = frame::first(&said).unwrap().unwrap();
    assert_eq!((frame.header.kind, frame.bytes), (Kind::Refused, said.len()));
    let reason = varve_wire::decode::<Refused>(frame.body).unwrap().reason;
    for part in [format!("version {VERSION} "), "version 9".into(), "of one version".into()] {
        assert!(reason.contains(&part), "{reason}");
    }
    assert!(HEADER_BYTES < said.len());
    eventually("it is counted", || served.server.status().refused_hellos == 1);
    served.end();
}
