//! Medians of the rounds.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;

use super::{Call, Course, Found, Measured};
use crate::report::{self, Spread};
use crate::{Failure, output};

const LEGEND: &str = "thousands a second of all clients, microseconds of CPU of server and clients for each, requests, bytes out and in \
     and notices for each: medians";
const HEAD: [&str; 8] = ["call", "k/s", "server", "client", "requests", "out", "in", "notices"];

/// The figures of a call.
struct Row {
    rate: Spread,
    server_us: Option<Spread>,
    client_us: Spread,
    requests: f64,
    sent_bytes: f64,
    received_bytes: f64,
    notices: f64,
}

impl Row {
    fn of(rounds: &[Measured]) -> Row {
        let spread = |value: &dyn Fn(&Measured) -> f64| {
            Spread::of(rounds.iter().map(value).collect::<Vec<_>>())
        };
        let each = |measured: &Measured, value: f64| value / (measured.count.max(1)) as f64;
        let us = |measured: &Measured, time: Duration| each(measured, time.as_secs_f64() * 1e6);
        let of_server = |it: &Measured| us(it, it.server_cpu.unwrap_or_default());
        let median = |value: fn(&Measured) -> u64| spread(&|it| each(it, value(it) as f64)).median;
        Row {
            rate: spread(&|it| it.count as f64 / it.took.as_secs_f64() / 1000.0),
            server_us: rounds.iter().all(|it| it.server_cpu.is_some()).then(|| spread(&of_server)),
            client_us: spread(&|it| us(it, it.client_cpu)),
            requests: median(|it| it.counts.requests),
            sent_bytes: median(|it| it.counts.sent_bytes),
            received_bytes: median(|it| it.counts.received_bytes),
            notices: median(|it| it.counts.notices),
        }
    }

    fn cells(&self, call: Call) -> Vec<String> {
        // The client of mounts does not count them.
        let counted = |value: f64, decimals: usize| match self.requests > 0.0 {
            true => format!("{value:.decimals$}"),
            false => "-".to_owned(),
        };
        vec![
            format!("{call:?}").to_lowercase(),
            self.rate.told(1),
            self.server_us.map_or_else(|| "-".to_owned(), |us| us.told(2)),
            self.client_us.told(2),
            counted(self.requests, 3),
            counted(self.sent_bytes, 0),
            counted(self.received_bytes, 0),
            counted(self.notices, 3),
        ]
    }
}

/// Prints a table for each combination.
pub(super) fn print_table(found: &Found) {
    output::line(LEGEND);
    let courses: BTreeSet<Course> = found.keys().map(|(course, _)| *course).collect();
    for course in courses {
        output::line(format!("\n{course}"));
        let of_course = found.iter().filter(|((other, _), _)| *other == course);
        let rows = of_course.map(|((_, call), rounds)| Row::of(rounds).cells(*call));
        let head = HEAD.map(str::to_owned).to_vec();
        report::print(&std::iter::once(head).chain(rows).collect::<Vec<_>>());
    }
}

/// Prints all as JSON.
pub(super) fn print_json(found: &Found) -> Result<(), Failure> {
    let row = |((course, call), rounds): (&(Course, Call), &Vec<Measured>)| {
        let row = Row::of(rounds);
        json!({
            "by": format!("{:?}", course.by).to_lowercase(),
            "dirs": format!("{:?}", course.dirs).to_lowercase(),
            "clients": course.clients, "depth": course.depth, "call": call,
            "count": rounds.first().map(|it| it.count), "rounds": rounds.len(),
            "thousands_per_second": row.rate, "server_us": row.server_us,
            "client_us": row.client_us, "requests": row.requests, "sent_bytes": row.sent_bytes,
            "received_bytes": row.received_bytes, "notices": row.notices,
        })
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    output::line(serde_json::to_string_pretty(&json!({ "calls": rows }))?);
    Ok(())
}
