//! Requests whose clients go before they are begun.
//!
//! A new server lets changes wait until the leases of the server before have ended, so there is a time in which a request has come
//! and is not begun.

use varve_server::Policy;
use varve_testkit::eventually;
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, FsError, Vfs};
use varve_wire::frame::Kind;
use varve_wire::{Answer, Node, Request};

use crate::hostile::Raw;
use crate::support::{Served, connect, machine, options};

const ROOT: Node = Node { ino: 1, place: None };

fn makes(name: &str) -> Request<'_> {
    Request::Mkdir { caller: Caller::ROOT.into(), parent: ROOT, name: name.as_bytes(), perm: 0o755 }
}

fn in_flight(served: &Served) -> usize {
    served.server.status().sessions.iter().map(|client| client.in_flight).sum()
}

fn is_there(served: &Served, name: &str) -> bool {
    let found = connect(served.server.address(), 1)
        .lookup(InodeId::ROOT, FileName::new(name.as_bytes()).unwrap());
    match found {
        Ok(_) => true,
        Err(FsError::NotFound) => false,
        Err(error) => panic!("{error}"),
    }
}

/// The next answer is that of the client's first request, which made a directory.
fn has_made(raw: &mut Raw) {
    let (header, body, _) = raw.next().unwrap();
    assert_eq!((header.kind, header.number), (Kind::Answer, 1));
    let answer = varve_wire::decode(&body).unwrap();
    assert!(matches!(answer, Answer::Entry(_)), "{answer:?}");
}

#[test]
fn what_a_client_has_sent_that_is_gone_is_not_done_unless_it_comes_back() {
    let machine = machine(1);
    let leases = Policy::Rate { ms_max: 3000 };
    let served = Served::start(&machine, varve_server::Options { leases, ..options(1) });
    let address = served.server.address();
    let (mut gone, _) = Raw::connect(address, [8, 1], "gone");
    let (mut elsewhere, _) = Raw::connect(address, [8, 2], "elsewhere");
    gone.send(0, &makes("late"));
    elsewhere.send(0, &makes("moved"));
    eventually("both requests have come", || in_flight(&served) == 2);
    let (mut here, _) = Raw::introduce(address, &Raw::hello([8, 2], 2, "elsewhere"));
    here.send(0, &makes("moved"));
    drop((gone, elsewhere));
    has_made(&mut here);
    eventually("the request of the client that is gone is dropped", || in_flight(&served) == 0);
    assert!(is_there(&served, "moved"));
    assert!(!is_there(&served, "late"));
    let (mut back, _) = Raw::connect(address, [8, 1], "gone");
    back.send(0, &makes("late"));
    has_made(&mut back);
    back.send(0, &makes("late"));
    let (_, body, _) = back.next().unwrap();
    let again = varve_wire::decode(&body).unwrap();
    assert!(matches!(again, Answer::Failed(_)), "there was one already: {again:?}");
    drop((here, back));
    served.end();
}
