//! What a server and its store have and do: as JSON, which `varve status` and `varve stats` ask for, and in Prometheus' format.
//!
//! It is asked for over the network ([`varve_client::inquire`]), or by a socket in the store where this machine has that.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use varve::{Error, Result, store};
use varve_client::ConnectError;
use varve_engine::paths::WritePaths;
use varve_server::{Client, Requests, Status};
use varve_types::Timed;

use crate::control::{self, Request};
use crate::mount::not_connected;
use crate::server_address::{ServerAddress, read_token};
use crate::stats::Stats;
use crate::target::Target;
use crate::{socket, stats};

/// How long a server may take to say what it does.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// What a server says of itself, as JSON.
pub(crate) fn report(
    (store, address, since_secs): (&Path, SocketAddr, i64),
    of: &Status,
    file_system: &str,
) -> Value {
    let Status { leases, grace, .. } = of;
    let requests: BTreeMap<&str, Value> =
        of.requests.iter().map(|(name, requests)| (*name, told_requests(requests))).collect();
    let grace = grace.as_ref().map(|grace| {
        json!({
            "clients_expected": grace.expected,
            "clients_returned": grace.returned,
            "ends_in_s": grace.ends_in.as_secs(),
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "store": store.written(),
        "server": {
            "address": address,
            "since": since_secs,
            "up_s": of.up.as_secs_f64(),
            "epoch": of.epoch,
            "grace": grace,
            "sessions": {
                "count": of.sessions_count,
                "open_files": of.open_files,
                "clients": of.sessions.iter().map(told_client).collect::<Vec<_>>(),
                "not_listed": of.sessions_count - of.sessions.len(),
            },
            "connections": of.connections,
            "views": of.views,
            "requests_waiting": of.waiting.0,
            "requests_on_threads": of.waiting.1,
            "requests_slow": of.slow,
            "bytes_in": of.bytes_in,
            "bytes_out": of.bytes_out,
            "leases": {
                "given": leases.given,
                "held": leases.held,
                "recalls": leases.recalls,
                "recalls_timed_out": leases.timed_out,
                "recall_waits": told_times(&leases.waits),
            },
            "connections_refused": of.refused_connections,
            "connections_broken": of.broken,
            "connections_paused": of.paused,
            "clients_refused": of.refused_hellos,
            "requests": requests,
        },
        "file_system": serde_json::from_str::<Value>(file_system).unwrap_or_default(),
    })
}

fn told_times(Timed { count, nanos, buckets }: &Timed) -> Value {
    json!({ "count": count, "nanos": nanos, "buckets": buckets })
}

fn told_requests(Requests { failed, timed }: &Requests) -> Value {
    let Timed { count, nanos, buckets } = timed;
    json!({ "count": count, "failed": failed, "timed": count, "nanos": nanos, "buckets": buckets })
}

fn told_client(client: &Client) -> Value {
    json!({
        "name": client.name,
        "session": client.session,
        "address": client.address,
        "age_s": client.age.as_secs(),
        "away_s": client.away.map(|away| away.as_secs()),
        "read_only": client.read_only,
        "connections": client.connections,
        "open_files": client.open_files,
        "leases_held": client.leases_held,
        "in_flight": client.in_flight,
        "requests": client.requests,
    })
}

/// What the server says that `path` names by its address, or whose store `path` is; `None` if it names neither. `token` is the file with
/// the secret that a server asks for.
pub(crate) fn ask(path: &Path, token: Option<&Path>) -> Result<Option<Value>> {
    if let Some(address) = ServerAddress::parse(path) {
        let token = token.map_or(Ok(Vec::new()), read_token)?;
        let told = varve_client::inquire(&address?.host, &token, WAIT_MAX);
        let told = told.map_err(|error| match error {
            ConnectError::Refused(_) => Error::failed(error.to_string())
                .hint("--token-file FILE gives the secret that it asks for; its messages say more"),
            error => not_connected(&error),
        })?;
        let told = serde_json::from_slice(&told);
        return told
            .map(Some)
            .map_err(|error| Error::not_understood("what the server says of itself", error));
    }
    if token.is_some() {
        return Err(Error::usage("a secret is for servers that are named by their address")
            .hint("leave out --token-file, or name the server: varve://HOST[:PORT]"));
    }
    if !store::is_store(path) || !is_served(path)? {
        return Ok(None);
    }
    control::client::ask(&Target::of_store(path), &Request::Server).map(Some)
}

/// Whether a server has the store in `path`: a process that has it open, has no mount of it, and listens for commands.
fn is_served(path: &Path) -> Result<bool> {
    let has_no_mount = store::holder(path)?.is_some_and(|holder| holder.mount_point.is_none());
    Ok(has_no_mount && socket::is_in(path, socket::CONTROL))
}

/// A number of a server: its name, where it is in what the server says, and what it counts, for people.
type Number = (&'static str, &'static str, &'static str);

/// What [`Stats::server`] has.
const COUNTS: [Number; 12] = [
    ("bytes_in", "/server/bytes_in", "Bytes that came from clients."),
    ("bytes_out", "/server/bytes_out", "Bytes that were sent to clients."),
    ("requests_slow", "/server/requests_slow", "Requests that took longer than --slow."),
    ("leases_given", "/server/leases/given", "Leases given to clients on what they cache."),
    ("recalls", "/server/leases/recalls", "Notices by which clients had to drop what they cached."),
    (
        "recalls_timed_out",
        "/server/leases/recalls_timed_out",
        "Notices that no client has confirmed before its lease ended.",
    ),
    (
        "recall_waits",
        "/server/leases/recall_waits/count",
        "Changes that waited for clients to drop what they cached.",
    ),
    (
        "recall_wait_nanos",
        "/server/leases/recall_waits/nanos",
        "Time for which such changes waited.",
    ),
    (
        "connections_refused",
        "/server/connections_refused",
        "Connections that were not accepted, as there were too many.",
    ),
    (
        "connections_broken",
        "/server/connections_broken",
        "Connections that ended because of bytes that are no message.",
    ),
    (
        "connections_paused",
        "/server/connections_paused",
        "How often a connection was not read because the server held much for it.",
    ),
    (
        "clients_refused",
        "/server/clients_refused",
        "Clients that were not let in, most for want of the secret.",
    ),
];

/// What [`Stats::server_now`] has.
const SIZES: [Number; 9] = [
    ("sessions", "/server/sessions/count", "Clients that have a session now."),
    ("open_files", "/server/sessions/open_files", "Files that clients have open now."),
    ("connections", "/server/connections", "Connections now."),
    ("views", "/server/views", "Snapshots and transactions that clients use now."),
    (
        "leases_held",
        "/server/leases/held",
        "Places of the table of leases with a client that is known by name.",
    ),
    ("requests_waiting", "/server/requests_waiting", "Requests that wait for a thread now."),
    (
        "requests_on_threads",
        "/server/requests_on_threads",
        "Requests now on threads for calls that wait.",
    ),
    ("in_grace", "/server/grace", "1 while clients of the server before may come back."),
    ("start_time_seconds", "/server/since", "When the server began, in seconds since 1970."),
];

/// What a number of [`Stats::server`] or [`Stats::server_now`] counts, for people.
pub(crate) fn help(field: &str) -> &'static str {
    let mut numbers = COUNTS.iter().chain(&SIZES);
    numbers.find(|(name, ..)| *name == field).map_or("Counted by the server.", |(.., help)| help)
}

/// What a server has done since it began, from what it says of itself.
pub(crate) fn stats(told: &Value) -> Result<Stats> {
    let server = &told["server"];
    let operations = serde_json::from_value(server["requests"].clone())
        .map_err(|error| Error::not_understood("what the server says of requests", error))?;
    let number = |(name, at, _): &Number| {
        let value = told.pointer(at).unwrap_or(&Value::Null);
        // The grace is told as long as there is one.
        (name.to_string(), value.as_u64().unwrap_or(u64::from(value.is_object())))
    };
    Ok(Stats {
        seconds: server["up_s"].as_f64().unwrap_or(0.0),
        operations,
        server: COUNTS.iter().map(number).collect(),
        server_now: SIZES.iter().map(number).collect(),
        ..stats::of_file_system(&told["file_system"])
    })
}

#[cfg(test)]
mod tests {
    use varve_server::{Grace, LeaseStatus};

    use super::*;

    fn status() -> Status {
        let timed = Timed { count: 3, nanos: 6000, buckets: vec![(1024, 1), (4096, 2)] };
        Status {
            up: Duration::from_millis(1500),
            epoch: 7,
            grace: Some(Grace { expected: Some(2), returned: 1, ends_in: Duration::from_secs(9) }),
            sessions_count: 101,
            sessions: vec![Client {
                name: "host:/mnt".to_owned(),
                session: 4,
                address: ([10, 0, 0, 1], 700).into(),
                age: Duration::from_secs(60),
                away: None,
                read_only: false,
                connections: 3,
                open_files: 5,
                leases_held: 6,
                in_flight: 1,
                requests: 9,
            }],
            open_files: 17,
            connections: 300,
            views: 1,
            waiting: (2, 3),
            requests: vec![("lookup", Requests { failed: 1, timed: timed.clone() })],
            slow: 1,
            bytes_in: 1000,
            bytes_out: 2000,
            leases: LeaseStatus { given: 10, held: 6, recalls: 4, waits: timed, timed_out: 1 },
            refused_connections: 1,
            refused_hellos: 2,
            broken: 3,
            paused: 4,
        }
    }

    #[test]
    fn what_a_server_says_becomes_statistics() {
        let engine = r#"{"engine":{"counters":{"writes":8},"memory_bytes":5},"storage":null}"#;
        let address = ([127, 0, 0, 1], 7377).into();
        let told = report((Path::new("/srv/store"), address, 1_800_000_000), &status(), engine);
        assert_eq!(told["server"]["sessions"]["not_listed"], 100);
        let missing = COUNTS.iter().chain(&SIZES).find(|(_, at, _)| told.pointer(at).is_none());
        assert_eq!(missing, None);
        let stats = stats(&told).unwrap();
        assert!((stats.seconds - 1.5).abs() < 1e-9);
        assert_eq!(stats.operations["lookup"].quantile_micros(0.5), Some(4.096));
        assert_eq!(stats.engine["writes"], 8);
        let text = stats.to_prometheus();
        for line in [
            "varve_requests_total{operation=\"lookup\"} 3",
            "varve_server_bytes_in_total 1000",
            "varve_server_recall_wait_seconds_total 0.000006",
            "varve_server_clients_refused_total 2",
            "# TYPE varve_server_sessions gauge",
            "varve_server_sessions 101",
            "varve_server_in_grace 1",
            "varve_server_start_time_seconds 1800000000",
            "varve_engine_writes_total 8",
        ] {
            assert!(text.lines().any(|said| said == line), "{line}\n{text}");
        }
    }
}
