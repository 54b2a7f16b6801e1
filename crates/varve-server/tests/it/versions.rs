//! A client of another release of the same version of the protocol: it makes calls that the server does not know.

use std::io::Write;

use serde::Serialize;
use varve_vfs::FsError;
use varve_wire::frame::Kind;
use varve_wire::{Answer, Failure, Header, Hello, Request};

use crate::hostile::Raw;
use crate::support::{Served, machine, options};

const SLOT: u32 = 3;

/// Sends a request and returns its answer.
fn call(raw: &mut Raw, number: u64, body: &impl Serialize, data: &[u8]) -> Answer {
    let mut message = Vec::new();
    let header = Header { slot: SLOT, number, ..Header::new(Kind::Request, 1) };
    varve_wire::encode(&mut message, header, body, data);
    raw.stream.write_all(&message).unwrap();
    let (header, body, _) = raw.next().unwrap();
    assert_eq!((header.kind, header.slot, header.number), (Kind::Answer, SLOT, number));
    varve_wire::decode(&body).unwrap()
}

#[test]
fn a_call_that_the_server_does_not_know_is_answered_and_the_session_lives() {
    let served = Served::start(&machine(1), options(1));
    let hello = Hello {
        client: [7, 1],
        connection: 1,
        features: u64::MAX,
        name: "newer",
        path: b"",
        read_only: false,
        token: b"",
    };
    let (mut raw, _) = Raw::introduce(served.server.address(), &hello);
    let is_unknown = |answer: Answer| {
        let unknown = Failure::from(&FsError::NotSupported(""));
        matches!(answer, Answer::Failed(failure) if failure.cause == unknown.cause)
    };
    // A call of later, with fields and data; the same again; a known call with a field of later.
    let later = (0x7f_u8, 1_u8, 2_u8, 3_u8);
    assert!(is_unknown(call(&mut raw, 1, &later, b"data of later")));
    assert!(is_unknown(call(&mut raw, 1, &later, b"data of later")));
    assert!(is_unknown(call(&mut raw, 2, &(Request::Statfs, 5_u8), &[])));
    assert!(matches!(call(&mut raw, 3, &Request::Statfs, &[]), Answer::StatFs(_)));
    let status = served.server.status();
    assert_eq!((status.sessions.len(), status.broken), (1, 0));
    drop(raw);
    served.end();
}
