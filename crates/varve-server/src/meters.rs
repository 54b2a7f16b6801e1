//! Counts what a server does.
//!
//! 1. Each thread that reads connections has a [`Meter`]. Requests of its connections count there, so that threads seldom add to
//!    the same memory, and nothing takes a lock.
//! 2. Each request is timed, from when the server has read it until its answer is ready: so its wait for a thread counts too.
//! 3. Whoever asks ([`crate::Server::status`]) gets the sums.

use std::sync::Arc;

use varve_types::{Counter, Timed, Timings};
use varve_wire::request::KINDS;

/// So many counters for leases that are given, so that threads seldom add to the same one.
const LEASE_COUNTERS: usize = 16;

/// The requests of one kind.
#[derive(Default)]
struct Kind {
    failed: Counter,
    timings: Timings,
}

/// The counts of one thread and its connections.
#[repr(align(128))]
pub(crate) struct Meter {
    kinds: [Kind; KINDS.len()],
    pub(crate) bytes_in: Counter,
    pub(crate) bytes_out: Counter,
    /// How often the server has stopped to read from a connection because it holds much for it.
    pub(crate) paused: Counter,
}

#[derive(Default)]
#[repr(align(128))]
struct Apart(Counter);

/// What was done about leases.
#[derive(Default)]
pub(crate) struct LeaseMeter {
    given: [Apart; LEASE_COUNTERS],
    /// Notices to clients that have to drop something.
    pub(crate) recalls: Counter,
    /// How long changes have waited for clients to do so, or for their leases to end.
    pub(crate) waits: Timings,
    /// Notices that no client has acknowledged before its lease ended.
    pub(crate) timed_out: Counter,
}

impl LeaseMeter {
    /// Counts a lease on the object with this number.
    pub(crate) fn give(&self, object: u64) {
        self.given[(object % LEASE_COUNTERS as u64) as usize].0.add(1);
    }

    pub(crate) fn given(&self) -> u64 {
        self.given.iter().map(|given| given.0.get()).sum()
    }
}

/// The counts of a server.
pub(crate) struct Meters {
    threads: Vec<Arc<Meter>>,
    pub(crate) leases: LeaseMeter,
    /// Requests that took longer than [`crate::Options::slow`].
    pub(crate) slow: Counter,
    /// Connections that were not accepted.
    pub(crate) refused_connections: Counter,
    /// Clients that were not let in.
    pub(crate) refused_hellos: Counter,
    /// Connections that ended because of a message that makes no sense.
    pub(crate) broken: Counter,
}

/// The requests of one kind so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Those that ended with an error, such as a name that exists already.
    pub failed: u64,
    /// All, with their times.
    pub timed: Timed,
}

impl Meter {
    fn new() -> Meter {
        Meter {
            kinds: std::array::from_fn(|_| Kind::default()),
            bytes_in: Counter::default(),
            bytes_out: Counter::default(),
            paused: Counter::default(),
        }
    }

    /// Counts a request of a kind ([`varve_wire::request::kind`]) that was answered after so many nanoseconds.
    pub(crate) fn answered(&self, kind: usize, nanos: u64, has_failed: bool) {
        let Some(kind) = self.kinds.get(kind) else { return };
        kind.timings.add(nanos);
        if has_failed {
            kind.failed.add(1);
        }
    }
}

impl Meters {
    /// Meters for so many threads.
    pub(crate) fn new(threads: usize) -> Meters {
        Meters {
            threads: (0..threads).map(|_| Arc::new(Meter::new())).collect(),
            leases: LeaseMeter::default(),
            slow: Counter::default(),
            refused_connections: Counter::default(),
            refused_hellos: Counter::default(),
            broken: Counter::default(),
        }
    }

    pub(crate) fn of_thread(&self, thread: usize) -> &Arc<Meter> {
        &self.threads[thread]
    }

    /// Returns the sum of a count over all threads.
    pub(crate) fn sum(&self, count: impl Fn(&Meter) -> &Counter) -> u64 {
        self.threads.iter().map(|thread| count(thread).get()).sum()
    }

    /// Returns the requests of each kind of which there were some.
    pub(crate) fn requests(&self) -> Vec<(&'static str, Requests)> {
        let of_kind = |(at, name): (usize, &'static str)| {
            let kinds = || self.threads.iter().map(move |thread| &thread.kinds[at]);
            let timed = Timings::sum(kinds().map(|kind| &kind.timings));
            (name, Requests { failed: kinds().map(|kind| kind.failed.get()).sum(), timed })
        };
        let all = KINDS.into_iter().enumerate().map(of_kind);
        all.filter(|(_, requests)| requests.timed.count > 0).collect()
    }
}
