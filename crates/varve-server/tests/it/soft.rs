//! Clients that wait for the server for a limited time: their calls fail when it has passed, and work again when the server
//! answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use varve_client::Client;
use varve_env::Env;
use varve_server::Policy;
use varve_testkit::{Proxy, eventually};
use varve_types::{FileName, InodeId};
use varve_vfs::{Caller, FsError, FsResult, OpenFlags, Vfs};

use crate::support::{Served, client_options, machine, options};

const ROOT: InodeId = InodeId::ROOT;

fn both() -> OpenFlags {
    OpenFlags { read: true, write: true, ..OpenFlags::default() }
}

fn name(text: &str) -> FileName<'_> {
    FileName::new(text.as_bytes()).unwrap()
}

fn served(seed: u64) -> (Arc<dyn Env>, Served, Proxy) {
    let machine = machine(seed);
    // Without leases, which a new server waits out.
    let options = varve_server::Options { leases: Policy::None, ..options(1) };
    let served = Served::start(&machine, options);
    let proxy = Proxy::start(served.server.address(), Duration::ZERO);
    (machine, served, proxy)
}

fn soft(proxy: &Proxy, wait_max: Duration) -> Client {
    let options = client_options(proxy.address(), 1);
    Client::connect(varve_client::Options { wait_max: Some(wait_max), ..options }).unwrap()
}

/// The call failed because it had waited for so long, and not for much longer.
fn timed_out<T: std::fmt::Debug>(begin: Instant, wait_max: Duration, done: FsResult<T>) {
    let waited = begin.elapsed();
    assert!(matches!(&done, Err(FsError::Storage(why)) if why.contains("within")), "{done:?}");
    assert!(waited >= wait_max && waited < wait_max + Duration::from_secs(2), "{waited:?}");
}

#[test]
fn a_call_of_a_soft_client_fails_when_it_has_waited_for_long_enough() {
    let (_machine, served, proxy) = served(1);
    let wait_max = Duration::from_millis(300);
    let client = soft(&proxy, wait_max);
    client.mkdir(Caller::ROOT, ROOT, name("before"), 0o755).unwrap();
    // One server is slow, the other one is gone. Several threads: most of them wait for another one that reads.
    for is_cut in [false, true] {
        match is_cut {
            true => proxy.cut(),
            false => proxy.set_delay(Duration::from_secs(3)),
        }
        std::thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| {
                    let begin = Instant::now();
                    timed_out(begin, wait_max, client.getattr(ROOT));
                });
            }
        });
        proxy.mend();
        proxy.set_delay(Duration::ZERO);
        eventually("a call is answered", || client.getattr(ROOT).is_ok());
        client.lookup(ROOT, name("before")).unwrap();
    }
    drop(client);
    served.end();
}

/// All slots have requests without an answer. None of them is lost: their answers free them.
#[test]
fn slots_of_abandoned_calls_come_back_with_their_answers() {
    let (_machine, served, proxy) = served(2);
    let wait_max = Duration::from_millis(50);
    let client = soft(&proxy, wait_max);
    client.getattr(ROOT).unwrap();
    proxy.set_delay(Duration::from_secs(4));
    let begin = Instant::now();
    let failed = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                while begin.elapsed() < Duration::from_secs(3) {
                    let begin = Instant::now();
                    timed_out(begin, wait_max, client.getattr(ROOT));
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let failed = failed.into_inner();
    assert!(failed > 300, "{failed}");
    let asked = served.server.status().sessions[0].requests;
    assert!(asked < 10, "the server has executed {asked} requests already");
    proxy.set_delay(Duration::ZERO);
    eventually("a call is answered", || client.getattr(ROOT).is_ok());
    // More calls than there are slots.
    for _ in 0..600 {
        eventually("a call is answered", || client.getattr(ROOT).is_ok());
    }
    drop(client);
    served.end();
}

/// The server opens a file for a call that has failed meanwhile. It does not stay open: its client does not know it.
#[test]
fn what_an_abandoned_call_has_opened_is_closed() {
    let (_machine, served, proxy) = served(3);
    let client = soft(&proxy, Duration::from_millis(300));
    let (entry, opened) = client.create(Caller::ROOT, ROOT, name("f"), 0o644, both()).unwrap();
    client.release(entry.attr.ino, opened.handle).unwrap();
    proxy.set_delay(Duration::from_secs(2));
    client.open(entry.attr.ino, both()).unwrap_err();
    client.create(Caller::ROOT, ROOT, name("g"), 0o644, both()).unwrap_err();
    client.tmpfile(Caller::ROOT, ROOT, 0o644, both()).unwrap_err();
    proxy.set_delay(Duration::ZERO);
    let open_files = || served.server.status().sessions[0].open_files;
    eventually("the server opens them", || open_files() == 3);
    eventually("they are closed", || {
        // Reads the answers.
        let _ = client.getattr(ROOT);
        open_files() == 0
    });
    client.lookup(ROOT, name("g")).unwrap();
    drop(client);
    served.end();
}
