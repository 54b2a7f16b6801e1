//! What a server has and does, for people and for programs that watch it.
//!
//! Invariant: it does not grow with the number of clients beyond [`CLIENTS_MAX`].

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use varve_meta::SessionId;
use varve_types::Timed;

use crate::meters::Requests;
use crate::reactor::Reactor;
use crate::server::Shared;
use crate::session::Session;

/// The most clients that are named.
pub(crate) const CLIENTS_MAX: usize = 100;

/// What a server has and does.
#[derive(Clone, Debug)]
pub struct Status {
    /// How long it has served.
    pub up: Duration,
    /// Its epoch.
    pub epoch: u32,
    /// The clients of the server before that are awaited; `None` if the grace is over.
    pub grace: Option<Grace>,
    /// The number of sessions.
    pub sessions_count: usize,
    /// Those with the most requests under way, then with the most requests, at most [`CLIENTS_MAX`].
    pub sessions: Vec<Client>,
    /// Files that clients have open.
    pub open_files: usize,
    /// All connections.
    pub connections: usize,
    /// Snapshots and transactions that clients use.
    pub views: usize,
    /// Requests that wait for a thread, and those that a thread of those for waiting calls serves.
    pub waiting: (usize, usize),
    /// Requests by their names.
    pub requests: Vec<(&'static str, Requests)>,
    /// Requests that took longer than [`crate::Options::slow`].
    pub slow: u64,
    /// Bytes that came.
    pub bytes_in: u64,
    /// Bytes that were sent.
    pub bytes_out: u64,
    /// What clients may keep.
    pub leases: LeaseStatus,
    /// Connections that were not accepted, as there were too many.
    pub refused_connections: u64,
    /// Clients that were not let in.
    pub refused_hellos: u64,
    /// Connections that ended because of a message that makes no sense.
    pub broken: u64,
    /// How often the server stopped to read from a connection for which it holds much.
    pub paused: u64,
}

/// The time in which clients of the server before may come back.
#[derive(Clone, Debug)]
pub struct Grace {
    /// How many had a session, as far as the main file system knows; `None` as long as that is being read.
    pub expected: Option<usize>,
    /// How many of them have what they had.
    pub returned: usize,
    /// When it ends at the latest.
    pub ends_in: Duration,
}

/// Leases of all clients.
#[derive(Clone, Debug, Default)]
pub struct LeaseStatus {
    /// Leases that were given.
    pub given: u64,
    /// Places of the tables of leases in which clients are known as holders, for each of them.
    pub held: usize,
    /// Notices to clients that have to drop something.
    pub recalls: u64,
    /// How long changes have waited for that, or for leases to end.
    pub waits: Timed,
    /// Notices that a client has not acknowledged before its lease ended.
    pub timed_out: u64,
}

/// A client with a session.
#[derive(Clone, Debug)]
pub struct Client {
    /// What it calls itself.
    pub name: String,
    /// The number of its session.
    pub session: u32,
    /// Its address; of a client that is away the last one.
    pub address: SocketAddr,
    /// How long it has its session.
    pub age: Duration,
    /// Since when it has no connection; `None` if it has one.
    pub away: Option<Duration>,
    /// It may change nothing.
    pub read_only: bool,
    /// Its connections.
    pub connections: usize,
    /// Its open files.
    pub open_files: usize,
    /// In how many places of the table of leases it is known as a holder.
    pub leases_held: usize,
    /// Its requests under way.
    pub in_flight: usize,
    /// All its requests.
    pub requests: u64,
}

/// A session, before it is known whether it is told.
struct Seen {
    session: Arc<Session>,
    in_flight: usize,
    requests: u64,
}

impl Status {
    pub(crate) fn of(shared: &Shared) -> Status {
        let now_ms = shared.clock.now_ms();
        let services: Vec<_> = shared.services().collect();
        let mut held: HashMap<SessionId, usize> = HashMap::new();
        let mut seen = Vec::new();
        for service in &services {
            service.changes.each_holder(|session| *held.entry(session).or_default() += 1);
            seen.extend(service.sessions.all().into_iter().map(|session| Seen {
                in_flight: session.under_way(),
                requests: session.requests.load(Ordering::Relaxed),
                session,
            }));
        }
        let (sessions_count, open_files) =
            (seen.len(), seen.iter().map(|seen| seen.session.open_files()).sum());
        seen.sort_by_key(|seen| {
            std::cmp::Reverse((seen.in_flight, seen.requests, seen.session.id.0))
        });
        seen.truncate(CLIENTS_MAX);
        let client = |Seen { session, in_flight, requests }| {
            let leases_held = held.get(&session.id).copied().unwrap_or(0);
            client(&session, (in_flight, requests, leases_held), now_ms)
        };
        let meters = &shared.meters;
        Status {
            up: Duration::from_millis(now_ms),
            epoch: shared.options.epoch,
            grace: shared.grace(now_ms),
            sessions_count,
            sessions: seen.into_iter().map(client).collect(),
            open_files,
            connections: shared.reactors.iter().map(Reactor::connections).sum(),
            views: services.len() - 1,
            waiting: shared.workers.load(),
            requests: meters.requests(),
            slow: meters.slow.get(),
            bytes_in: meters.sum(|meter| &meter.bytes_in),
            bytes_out: meters.sum(|meter| &meter.bytes_out),
            leases: LeaseStatus {
                given: meters.leases.given(),
                held: held.values().sum(),
                recalls: meters.leases.recalls.get(),
                waits: varve_types::Timings::sum([&meters.leases.waits]),
                timed_out: meters.leases.timed_out.get(),
            },
            refused_connections: meters.refused_connections.get(),
            refused_hellos: meters.refused_hellos.get(),
            broken: meters.broken.get(),
            paused: meters.sum(|meter| &meter.paused),
        }
    }
}

fn client(
    session: &Session,
    (in_flight, requests, leases_held): (usize, u64, usize),
    now_ms: u64,
) -> Client {
    let connections = session.connections();
    let away_ms = now_ms.saturating_sub(session.seen_ms.load(Ordering::Relaxed));
    Client {
        name: session.name.clone(),
        session: session.id.0,
        address: session.address(),
        age: Duration::from_millis(now_ms.saturating_sub(session.began_ms)),
        away: (connections == 0).then(|| Duration::from_millis(away_ms)),
        read_only: session.read_only,
        connections,
        open_files: session.open_files(),
        leases_held,
        in_flight,
        requests,
    }
}
