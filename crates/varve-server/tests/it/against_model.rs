//! Random operations over a client and on the model, which must answer alike.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use varve_testkit::fsops::Lockstep;
use varve_testkit::rng::Rng;
use varve_testkit::{Proxy, soak};

use crate::support::{Served, clean_up, client_options, connect, machine, options};

/// Runs operations over one client. With `cuts` the connections break again and again.
fn run(seed: u64, ops: u64, cuts: bool) {
    let machine = machine(seed);
    let served = Served::start(&machine, options(1));
    let proxy = Proxy::start(served.server.address(), Duration::ZERO);
    let address = if cuts { proxy.address() } else { served.server.address() };
    let client = connect(address, seed);
    let is_over = AtomicBool::new(false);
    let mut lockstep = Lockstep::new(seed).ignoring_removed();
    std::thread::scope(|scope| {
        if cuts {
            scope.spawn(|| {
                let mut rng = Rng::new(seed);
                while !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_micros(rng.below(8000)));
                    proxy.cut();
                    proxy.mend();
                }
            });
        }
        let done = lockstep.run(&client, ops);
        is_over.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    lockstep.check_tree(&client).unwrap();
    lockstep.check_usage(&client).unwrap();
    lockstep.release_all(&client).unwrap();
    drop(client);
    // Of the last files the server may not have heard that they were closed, where nobody used a broken connection again.
    let left = served.end_for_another();
    assert!(cuts || left.is_empty(), "{left:?}");
    clean_up(&machine);
}

#[test]
fn random_operations_over_a_client_answer_as_the_model_does() {
    for seed in 0..6 {
        run(seed, 400, false);
    }
}

/// A request that is sent again is not executed again: a second unlink would fail, a second append would be seen.
#[test]
fn random_operations_over_connections_that_break_answer_as_the_model_does() {
    for seed in 100..106 {
        run(seed, 400, true);
    }
}

#[test]
fn a_server_refuses_whoever_does_not_know_its_token() {
    let machine = machine(1);
    let token = b"secret".to_vec();
    let served = Served::start(&machine, varve_server::Options { token, ..options(1) });
    let of = |token: &[u8]| varve_client::Options {
        token: token.to_vec(),
        ..client_options(served.server.address(), 1)
    };
    for wrong in [&b""[..], b"secreT", b"secret "] {
        let refused = varve_client::Client::connect(of(wrong)).err().unwrap();
        assert!(refused.to_string().contains("token"), "{refused}");
    }
    drop(varve_client::Client::connect(of(b"secret")).unwrap());
    served.end();
}

/// Other seeds, for as long as `varve_testkit::soak` says.
#[test]
#[ignore = "a soak"]
fn soak_of_cuts() {
    println!("{}", soak(|seed| run(seed, 300, true)));
}
